//! Execution of requests.

use bareverbs_uapi::rxe::{AtomicWr, FlushWr, MwWr, RdmaWr, UdWr};
use bareverbs_uapi::verbs_values::{SendFlags, WcFlags, WcStatus};
use bareverbs_uapi::write::types::{WcOpcode, WrOpcode};

use super::*;

/// The end of a request that is not successful.
enum Failure {
    /// It was not sent: the status of its WQE.
    Local(WcStatus),
    /// It was sent: the status of its completion.
    Remote(WcStatus),
}

type Executed = Result<(), Failure>;

/// A request of a send queue.
struct Request {
    wqe: SendWqe,
    /// The bytes behind the WQE: inline data or SGEs.
    data: Vec<u8>,
    /// Handle of its QP.
    of: u32,
    qp_type: QpType,
    number: u32,
    pd: u32,
}

/// What a peer refuses.
enum Refusal {
    /// The right of the QP, or an operand.
    Invalid,
    /// The key.
    Key,
    /// No receive is posted.
    NotReady,
    /// The receive does not fit.
    Receive,
    /// The peer does not respond.
    Silent,
}

/// The right that an operation needs at its peer; `None` for sends.
fn right(opcode: WrOpcode) -> Option<AccessFlags> {
    Some(match opcode {
        WrOpcode::RDMA_WRITE | WrOpcode::RDMA_WRITE_WITH_IMM | WrOpcode::ATOMIC_WRITE => {
            AccessFlags::REMOTE_WRITE
        }
        WrOpcode::RDMA_READ => AccessFlags::REMOTE_READ,
        WrOpcode::ATOMIC_CMP_AND_SWP | WrOpcode::ATOMIC_FETCH_AND_ADD => AccessFlags::REMOTE_ATOMIC,
        WrOpcode::FLUSH => AccessFlags::FLUSH_GLOBAL,
        _ => return None,
    })
}

fn is_atomic(opcode: WrOpcode) -> bool {
    [WrOpcode::ATOMIC_CMP_AND_SWP, WrOpcode::ATOMIC_FETCH_AND_ADD].contains(&opcode)
}

fn consumes(opcode: WrOpcode) -> bool {
    right(opcode).is_none() || opcode == WrOpcode::RDMA_WRITE_WITH_IMM
}

fn has_immediate(opcode: WrOpcode) -> bool {
    [WrOpcode::SEND_WITH_IMM, WrOpcode::RDMA_WRITE_WITH_IMM].contains(&opcode)
}

/// Whether a transport has an operation.
fn has(qp_type: QpType, opcode: WrOpcode) -> bool {
    let sends = [WrOpcode::SEND, WrOpcode::SEND_WITH_IMM];
    match qp_type {
        QpType::RC => {
            right(opcode).is_some()
                || sends.contains(&opcode)
                || [WrOpcode::SEND_WITH_INV, WrOpcode::BIND_MW, WrOpcode::LOCAL_INV].contains(&opcode)
        }
        QpType::UC => {
            sends.contains(&opcode) || [WrOpcode::RDMA_WRITE, WrOpcode::RDMA_WRITE_WITH_IMM].contains(&opcode)
        }
        _ => sends.contains(&opcode),
    }
}

/// The opcode of a request's completion.
fn completed(opcode: WrOpcode) -> WcOpcode {
    match opcode {
        WrOpcode::RDMA_WRITE | WrOpcode::RDMA_WRITE_WITH_IMM => WcOpcode::RDMA_WRITE,
        WrOpcode::RDMA_READ => WcOpcode::RDMA_READ,
        WrOpcode::ATOMIC_CMP_AND_SWP => WcOpcode::COMP_SWAP,
        WrOpcode::ATOMIC_FETCH_AND_ADD => WcOpcode::FETCH_ADD,
        WrOpcode::FLUSH => WcOpcode::FLUSH,
        WrOpcode::ATOMIC_WRITE => WcOpcode::ATOMIC_WRITE,
        _ => WcOpcode::SEND,
    }
}

impl Request {
    /// The SGE, if there is one of this length.
    fn sge(&self) -> Option<Sge> {
        let (sge, _) = Sge::read_from_prefix(&self.data).ok()?;
        (self.wqe.dma.num_sge == 1 && sge.length >= self.wqe.dma.length).then_some(sge)
    }

    /// The target of an operation with a key: its address and its R_Key.
    fn target(&self) -> (u64, u32) {
        if is_atomic(self.wqe.wr.opcode) {
            let form: AtomicWr = self.wqe.wr.get();
            (form.remote_addr, form.rkey)
        } else if self.wqe.wr.opcode == WrOpcode::FLUSH {
            let form: FlushWr = self.wqe.wr.get();
            (form.remote_addr, form.rkey)
        } else {
            let form: RdmaWr = self.wqe.wr.get();
            (form.remote_addr, form.rkey)
        }
    }
}

impl State {
    /// Whether a region of the PD with this key has a range and these rights.
    fn may_use(&self, pd: u32, key: u32, (start, length): (u64, u64), rights: AccessFlags) -> bool {
        self.regions.values().any(|region| {
            let end = start.checked_add(length);
            let inside = start >= region.start && end.is_some_and(|end| end <= region.start + region.length);
            region.pd == pd && region.key == key && inside && region.access.contains(rights)
        })
    }

    fn complete(&self, cq: u32, wc: Wc) {
        if let Some(queue) = self.cqs.get(&cq) {
            queue.push(wc.as_bytes());
        }
    }

    /// The receive queue of a QP.
    fn receives(&self, qp: u32) -> Option<&Queue> {
        let qp = self.qps.get(&qp)?;
        match qp.srq {
            Some(srq) => self.srqs.get(&srq).map(|srq| &srq.queue),
            None => qp.recv.as_ref(),
        }
    }
}

impl DataFile<'_> {
    /// Completes all requests of a QP in ERR. Receives of an SRQ stay posted.
    pub(super) fn enter_error(&self, state: &mut State, handle: u32) {
        let Some(qp) = state.qps.get_mut(&handle) else { return };
        qp.state = QpState::ERR;
        let (cq, number, shared) = (qp.cq, qp.number, qp.srq.is_some());
        let flushed =
            |wr_id| Wc { wr_id, status: WcStatus::WR_FLUSH_ERR, qp_num: number, ..Wc::new_zeroed() };
        let Some(qp) = state.qps.get(&handle) else { return };
        while let Some(bytes) = qp.send.peek(0) {
            let Ok((wqe, _)) = SendWqe::read_from_prefix(&bytes) else { return };
            qp.send.complete(WcStatus::WR_FLUSH_ERR);
            state.complete(cq, flushed(wqe.wr.wr_id));
        }
        if shared && !self.breaks(Rule::SharedReceive) {
            return;
        }
        while let Some(bytes) = state.receives(handle).and_then(|queue| queue.peek(0)) {
            let Ok((wqe, _)) = RecvWqe::read_from_prefix(&bytes) else { return };
            state.receives(handle).into_iter().for_each(Queue::release);
            state.complete(cq, flushed(wqe.wr_id));
        }
    }

    /// Executes the requests of a send queue.
    pub(super) fn doorbell(&self, state: &mut State, handle: u32) -> Result<(), Errno> {
        let qp = state.qps.get(&handle).ok_or(Errno::NOENT)?;
        if [QpState::RESET, QpState::INIT, QpState::RTR].contains(&qp.state) {
            return if self.breaks(Rule::SendState) { Ok(()) } else { Err(Errno::INVAL) };
        }
        if qp.state == QpState::SQD {
            return Ok(());
        }
        if qp.state == QpState::ERR {
            self.enter_error(state, handle);
            return Ok(());
        }
        let (qp_type, number, pd, cq) = (qp.qp_type, qp.number, qp.pd, qp.cq);
        while let Some(bytes) = state.qps.get(&handle).and_then(|qp| qp.send.peek(0)) {
            let (wqe, data) = SendWqe::read_from_prefix(&bytes).map_err(|_| Errno::FAULT)?;
            let request = Request { wqe, data: data.to_vec(), of: handle, qp_type, number, pd };
            let executed = self.execute(state, &request);
            let wqe = &request.wqe;
            let (stored, status) = match executed {
                Ok(()) => (WcStatus::SUCCESS, WcStatus::SUCCESS),
                Err(Failure::Local(status)) => (status, WcStatus::WR_FLUSH_ERR),
                Err(Failure::Remote(status)) => (status, status),
            };
            let Some(qp) = state.qps.get(&handle) else { break };
            qp.send.complete(stored);
            let mut opcode = completed(wqe.wr.opcode);
            if self.breaks(Rule::Completion) {
                opcode = WcOpcode::TSO;
            }
            state
                .complete(cq, Wc { wr_id: wqe.wr.wr_id, status, opcode, qp_num: number, ..Wc::new_zeroed() });
            if status != WcStatus::SUCCESS {
                self.enter_error(state, handle);
                break;
            }
        }
        Ok(())
    }

    fn execute(&self, state: &mut State, request: &Request) -> Executed {
        let wqe = &request.wqe;
        if !has(request.qp_type, wqe.wr.opcode) {
            let refused = Failure::Local(WcStatus::LOC_QP_OP_ERR);
            return if self.breaks(Rule::RingRequest) { Ok(()) } else { Err(refused) };
        }
        match wqe.wr.opcode {
            WrOpcode::BIND_MW => return self.bind(state, request),
            WrOpcode::LOCAL_INV => return self.invalidate(state, wqe.wr.ex),
            _ => {}
        }
        let payload = self.gather(state, request)?;
        if request.qp_type == QpType::UD {
            return self.datagram(state, request, &payload);
        }
        let peer = state
            .qps
            .iter()
            .find(|(_, qp)| state.qps[&request.of].request.dest_qp_num == qp.number)
            .map(|(handle, _)| *handle);
        let refusal = match peer {
            Some(peer) => match self.at_peer(state, request, peer, &payload) {
                Ok(()) => return self.respond(state, request),
                Err(refusal) => refusal,
            },
            None => Refusal::Silent,
        };
        if request.qp_type == QpType::UC {
            return Ok(());
        }
        Err(Failure::Remote(match refusal {
            Refusal::Invalid => WcStatus::REM_INV_REQ_ERR,
            Refusal::Key => WcStatus::REM_ACCESS_ERR,
            Refusal::NotReady => WcStatus::RNR_RETRY_EXC_ERR,
            Refusal::Receive => WcStatus::REM_OP_ERR,
            Refusal::Silent if self.breaks(Rule::Retry) => WcStatus::REM_OP_ERR,
            Refusal::Silent => WcStatus::RETRY_EXC_ERR,
        }))
    }

    /// The bytes that a request sends.
    fn gather(&self, state: &State, request: &Request) -> Result<Vec<u8>, Failure> {
        let wqe = &request.wqe;
        let length = wqe.dma.length as usize;
        let refused = || Failure::Local(WcStatus::LOC_QP_OP_ERR);
        if wqe.wr.send_flags.contains(SendFlags::INLINE) {
            if wqe.dma.length > MAX_INLINE {
                return Err(refused());
            }
            let mut bytes = request.data[..length].to_vec();
            if self.breaks(Rule::Inline) {
                bytes.fill(0);
            }
            return Ok(bytes);
        }
        match wqe.wr.opcode {
            WrOpcode::ATOMIC_WRITE => return Ok(request.data[..8].to_vec()),
            WrOpcode::FLUSH | WrOpcode::RDMA_READ => return Ok(Vec::new()),
            opcode if is_atomic(opcode) => return Ok(Vec::new()),
            _ if length == 0 => return Ok(Vec::new()),
            _ => {}
        }
        let sge = request.sge().ok_or_else(refused)?;
        let range = (sge.addr, u64::from(wqe.dma.length));
        if !state.may_use(request.pd, sge.lkey, range, AccessFlags::empty()) && !self.breaks(Rule::LocalKey) {
            return Err(refused());
        }
        read(sge.addr, length).map_err(|_| refused())
    }

    /// Executes a request at its peer.
    fn at_peer(
        &self,
        state: &mut State,
        request: &Request,
        peer: u32,
        payload: &[u8],
    ) -> Result<(), Refusal> {
        let wqe = &request.wqe;
        let qp = &state.qps[&peer];
        if ![QpState::RTR, QpState::RTS, QpState::SQD].contains(&qp.state) {
            return Err(Refusal::Silent);
        }
        let (allowed, reliable) = (qp.request.qp_access_flags, request.qp_type == QpType::RC);
        let needed = right(wqe.wr.opcode);
        if needed.is_some_and(|right| !allowed.contains(right)) && !self.breaks(Rule::QpAccess) {
            if reliable {
                self.enter_error(state, peer);
            }
            return Err(Refusal::Invalid);
        }
        let (target, _) = request.target();
        if (is_atomic(wqe.wr.opcode) || wqe.wr.opcode == WrOpcode::ATOMIC_WRITE) && !target.is_multiple_of(8)
        {
            self.enter_error(state, peer);
            return Err(Refusal::Invalid);
        }
        let has_receive = state.receives(peer).is_some_and(|queue| queue.filled() > 0);
        if consumes(wqe.wr.opcode) && !has_receive {
            return Err(Refusal::NotReady);
        }
        if needed.is_some_and(|right| !self.opens(state, request, peer, right)) {
            if reliable {
                self.violated(state, request, peer);
            }
            return Err(Refusal::Key);
        }
        if wqe.wr.opcode == WrOpcode::SEND_WITH_INV && self.invalidate(state, wqe.wr.ex).is_err() {
            self.receive(state, peer, WcStatus::REM_INV_REQ_ERR, Wc::new_zeroed());
            self.enter_error(state, peer);
            return Err(Refusal::Invalid);
        }
        let written = match wqe.wr.opcode {
            WrOpcode::RDMA_WRITE | WrOpcode::RDMA_WRITE_WITH_IMM | WrOpcode::ATOMIC_WRITE => target,
            WrOpcode::SEND | WrOpcode::SEND_WITH_IMM | WrOpcode::SEND_WITH_INV => {
                match self.place(state, peer, payload.len()) {
                    Some(address) => address,
                    None => {
                        self.receive(state, peer, WcStatus::LOC_QP_OP_ERR, Wc::new_zeroed());
                        self.enter_error(state, peer);
                        return Err(Refusal::Receive);
                    }
                }
            }
            _ => 0,
        };
        let stored = payload.len() - usize::from(self.breaks(Rule::Operation) && !payload.is_empty());
        let _ = store(written, &payload[..stored]);
        if consumes(wqe.wr.opcode) {
            self.receive_message(state, request, peer, WcFlags::GRH, payload.len() as u32);
        }
        Ok(())
    }

    /// Whether the R_Key of a request opens its target.
    fn opens(&self, state: &State, request: &Request, peer: u32, right: AccessFlags) -> bool {
        let ((start, key), length) = (request.target(), u64::from(request.wqe.dma.length));
        if length == 0 && request.wqe.wr.opcode != WrOpcode::FLUSH {
            return true;
        }
        let qp = &state.qps[&peer];
        if let Some(window) = state.windows.values().find(|window| window.key == key) {
            let Some((from, size, rights, number)) = window.bound else { return false };
            let inside = start >= from && start + length <= from + size;
            return number == qp.number && (inside && rights.contains(right) || self.breaks(Rule::Window));
        }
        // The fault: the range is not compared with the region.
        let is_named = |region: &&Region| region.pd == qp.pd && region.key == key;
        let range = match state.regions.values().find(is_named) {
            Some(region) if self.breaks(Rule::RemoteKey) => (region.start, 0),
            _ => (start, length),
        };
        state.may_use(qp.pd, key, range, right)
    }

    /// A violation of a key at a reliable peer.
    fn violated(&self, state: &mut State, request: &Request, peer: u32) {
        if consumes(request.wqe.wr.opcode) {
            self.receive(state, peer, WcStatus::REM_ACCESS_ERR, Wc::new_zeroed());
        } else if !self.breaks(Rule::AccessEvent) {
            state.events.push_back(EventType::QP_ACCESS_ERR);
        }
        self.enter_error(state, peer);
    }

    /// The receive that the next message takes.
    fn next_receive(&self, state: &State, peer: u32) -> Option<(RecvWqe, Sge)> {
        let queue = state.receives(peer)?;
        let newest = self.breaks(Rule::SharedReceive) && state.qps[&peer].srq.is_some();
        let bytes = queue.peek(if newest { queue.filled().saturating_sub(1) } else { 0 })?;
        let (wqe, rest) = RecvWqe::read_from_prefix(&bytes).ok()?;
        Some((wqe, Sge::read_from_prefix(rest).ok()?.0))
    }

    /// The memory of the next receive, if a message of this length fits.
    fn place(&self, state: &State, peer: u32, length: usize) -> Option<u64> {
        let (wqe, sge) = self.next_receive(state, peer)?;
        let (pd, length) = (state.qps[&peer].pd, length as u64);
        let room = if wqe.dma.num_sge == 0 { 0 } else { wqe.dma.length.min(sge.length) };
        let usable = length == 0 || state.may_use(pd, sge.lkey, (sge.addr, length), AccessFlags::LOCAL_WRITE);
        (u64::from(room) >= length && usable || self.breaks(Rule::ReceiveBuffer)).then_some(sge.addr)
    }

    /// Completes the next receive.
    fn receive(&self, state: &mut State, peer: u32, status: WcStatus, wc: Wc) {
        let Some((wqe, _)) = self.next_receive(state, peer) else { return };
        let Some(queue) = state.receives(peer) else { return };
        let status = if queue.is_in_range() || !self.breaks(Rule::RingIndex) {
            status
        } else {
            WcStatus::LOC_QP_OP_ERR
        };
        queue.release();
        let left = queue.filled();
        let qp = &state.qps[&peer];
        state.complete(qp.cq, Wc { wr_id: wqe.wr_id, status, qp_num: qp.number, ..wc });
        if let Some(srq) = qp.srq.and_then(|srq| state.srqs.get_mut(&srq))
            && left < srq.limit
        {
            srq.limit = 0;
            state.events.push_back(EventType::SRQ_LIMIT_REACHED);
        }
    }

    /// Completes the next receive with a message.
    fn receive_message(&self, state: &mut State, request: &Request, peer: u32, flags: WcFlags, length: u32) {
        let opcode = request.wqe.wr.opcode;
        let mut wc = Wc { byte_len: length, src_qp: request.number, wc_flags: flags, ..Wc::new_zeroed() };
        wc.opcode = match opcode {
            _ if self.breaks(Rule::Completion) => WcOpcode::TSO,
            WrOpcode::RDMA_WRITE_WITH_IMM => WcOpcode::RECV_RDMA_WITH_IMM,
            _ => WcOpcode::RECV,
        };
        if has_immediate(opcode) {
            (wc.wc_flags, wc.ex) = (flags | WcFlags::WITH_IMM, request.wqe.wr.ex);
        }
        if opcode == WrOpcode::SEND_WITH_INV {
            (wc.wc_flags, wc.ex) = (flags | WcFlags::WITH_INVALIDATE, request.wqe.wr.ex);
        }
        self.receive(state, peer, WcStatus::SUCCESS, wc);
    }

    /// Stores the response of a read or an atomic, and executes the atomic.
    fn respond(&self, state: &State, request: &Request) -> Executed {
        let (wqe, (target, _)) = (&request.wqe, request.target());
        let form: AtomicWr = wqe.wr.get();
        let length = wqe.dma.length as usize;
        let response = match wqe.wr.opcode {
            WrOpcode::RDMA_READ => read(target, length).unwrap_or_default(),
            opcode if is_atomic(opcode) => {
                let old = read(target, 8).unwrap_or_default();
                let value = bareverbs_uapi::print::native(&old);
                let new = match opcode {
                    WrOpcode::ATOMIC_FETCH_AND_ADD => value.wrapping_add(form.compare_add),
                    _ if value == form.compare_add => form.swap,
                    _ => value,
                };
                let _ = store(target, &new.to_ne_bytes());
                old
            }
            _ => return Ok(()),
        };
        if response.is_empty() {
            return Ok(());
        }
        let range = |sge: &Sge| (sge.addr, response.len() as u64);
        let usable = |sge: &Sge| {
            state.may_use(request.pd, sge.lkey, range(sge), AccessFlags::LOCAL_WRITE)
                || self.breaks(Rule::LocalKey)
        };
        let Some(sge) = request.sge().filter(usable) else {
            return Err(Failure::Remote(WcStatus::LOC_PROT_ERR));
        };
        let stored = response.len() - usize::from(self.breaks(Rule::Operation));
        let _ = store(sge.addr, &response[..stored]);
        Ok(())
    }

    /// Sends a datagram.
    fn datagram(&self, state: &mut State, request: &Request, payload: &[u8]) -> Executed {
        let form: UdWr = request.wqe.wr.get();
        if state.addresses.get(&form.ah_num) != Some(&request.pd) {
            return Err(Failure::Local(WcStatus::LOC_QP_OP_ERR));
        }
        if payload.len() > 1024 {
            return Ok(());
        }
        let accepts = |qp: &Qp| {
            let key = qp.request.qkey == form.remote_qkey || self.breaks(Rule::Datagram);
            qp.number == form.remote_qpn && qp.qp_type == QpType::UD && qp.state == QpState::RTS && key
        };
        let Some(peer) = state.qps.iter().find(|(_, qp)| accepts(qp)).map(|(handle, _)| *handle) else {
            return Ok(());
        };
        let grh = 40;
        if let Some(address) = self.place(state, peer, payload.len() + grh) {
            let _ = store(address, &[&vec![0; grh], payload].concat());
            let length = (payload.len() + grh) as u32;
            self.receive_message(state, request, peer, WcFlags::GRH, length);
        }
        Ok(())
    }

    /// Binds a window.
    fn bind(&self, state: &mut State, request: &Request) -> Executed {
        let MwWr { addr, length, mr_lkey, mw_rkey, rkey, access } = request.wqe.wr.get();
        let refused = || Failure::Local(WcStatus::MW_BIND_ERR);
        let writes = AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
        let rights = writes | AccessFlags::REMOTE_READ | AccessFlags::ZERO_BASED;
        let region = state.regions.values().find(|region| {
            let start = if access.contains(AccessFlags::ZERO_BASED) { region.start } else { addr };
            let end = start.checked_add(length);
            let inside = start >= region.start && end.is_some_and(|end| end <= region.start + region.length);
            region.key == mr_lkey
                && region.pd == request.pd
                && inside
                && region.access.contains(AccessFlags::MW_BIND)
                && (!access.intersects(writes) || region.access.contains(AccessFlags::LOCAL_WRITE))
        });
        if region.is_none() || length == 0 || !rights.contains(access) {
            return Err(refused());
        }
        let of_window = |window: &&mut Window| window.key == mw_rkey && window.pd == request.pd;
        let Some(window) = state.windows.values_mut().find(of_window) else { return Err(refused()) };
        if window.bound.is_some() {
            return Err(refused());
        }
        window.key = mw_rkey & !0xff | rkey & 0xff;
        window.bound = Some((addr, length, access, request.number));
        Ok(())
    }

    /// Invalidates the key of a bound window.
    fn invalidate(&self, state: &mut State, key: u32) -> Executed {
        match state.windows.values_mut().find(|window| window.key == key && window.bound.is_some()) {
            Some(_) if self.breaks(Rule::Invalidate) => Ok(()),
            Some(window) => {
                window.bound = None;
                Ok(())
            }
            None => Err(Failure::Local(WcStatus::LOC_QP_OP_ERR)),
        }
    }
}
