//! Two QPs on one port, connected to each other. The queues of rxe are in memory that is shared with
//! the kernel; those of other drivers are a provider's.

use std::mem::offset_of;
use std::thread::sleep;
use std::time::{Duration, Instant};

use bareverbs_uapi::method::UHW_OUT;
use bareverbs_uapi::rxe::{DmaInfo, QueueBuf, RecvWqe, SendWqe, Sge};
use bareverbs_uapi::uverbs::types::{AccessFlags, QpType};
use bareverbs_uapi::uverbs::{CqCreate, InvokeWrite, ObjectClass, QpCreate, SrqCreate};
use bareverbs_uapi::verbs_values::{LinkLayer, QpState, SendFlags, WcStatus};
use bareverbs_uapi::write::structs::{
    AhAttr, CreateAhReq, CreateAhResp, ModifyQpReq, PostSendReq, QueryPortReq, QueryPortResp, RegMrResp, Wc,
};
use bareverbs_uapi::write::types::WrOpcode;
use bareverbs_uapi::write::{self, WriteCommand};
use rustix::mm::ProtFlags;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::life::queue;
use super::qp_states::Qp;
use crate::answer::Answer;
use crate::call::{Call, Slot};
use crate::map::Map;
use crate::provided::{ProvidedCq, ProvidedQp};
use crate::session::Session;
use crate::step::{Step, fail};

pub(crate) const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// A mapped queue.
pub(crate) struct Ring {
    map: Map,
    slot: usize,
    mask: u32,
    /// The index that this side advances.
    index: u32,
}

impl Ring {
    /// Maps a queue that a call made.
    fn of(session: &Session<'_>, call: &Call, position: usize) -> Step<Self> {
        let (offset, len) = queue(call, position)?;
        let map = session
            .file()
            .map(offset, len, READ_WRITE)
            .or_else(|errno| fail(format!("the queue can't be mapped: {}", Answer::errno(errno))))?;
        let word = |offset| map.index(offset).map_or_else(|| fail("the queue has no header"), Ok);
        let log2 = word(offset_of!(QueueBuf, log2_elem_size))?;
        let mask = word(offset_of!(QueueBuf, index_mask))?;
        if log2 > 16 {
            return fail(format!("the slots have 2^{log2} bytes"));
        }
        Ok(Self { map, slot: 1 << log2, mask, index: 0 })
    }

    /// The number of slots less one.
    pub(crate) fn mask(&self) -> u32 {
        self.mask
    }

    /// Stores the index that this side advances. The kernel must take it modulo the size.
    pub(crate) fn store_consumer(&self, value: u32) -> Step<()> {
        let stored = self.map.publish(offset_of!(QueueBuf, consumer_index), value);
        stored.map_or_else(|| fail("the queue has no header"), Ok)
    }

    fn offset(&self, index: u32) -> usize {
        size_of::<QueueBuf>() + (index & self.mask) as usize * self.slot
    }

    /// Fills the next slot. `cycles`: how often the published index is beyond the size.
    fn push(&mut self, bytes: &[u8], cycles: u32) -> Step<()> {
        let filled = self.map.copy_in(self.offset(self.index), bytes);
        self.index = (self.index + 1) & self.mask;
        let stored = self.index.wrapping_add(cycles.wrapping_mul(self.mask.wrapping_add(1)));
        let published = self.map.publish(offset_of!(QueueBuf, producer_index), stored);
        filled.and(published).map_or_else(|| fail("the slot is not in the mapping"), Ok)
    }

    /// The status that the kernel stored in a WQE.
    fn status(&self, index: u32) -> Option<u32> {
        let mut word = [0; 4];
        self.map.copy_out(self.offset(index) + offset_of!(SendWqe, status), &mut word)?;
        Some(u32::from_ne_bytes(word))
    }

    /// Takes the next completion.
    fn pop(&mut self) -> Option<Wc> {
        if self.map.index(offset_of!(QueueBuf, producer_index))? == self.index {
            return None;
        }
        let mut bytes = [0; size_of::<Wc>()];
        self.map.copy_out(self.offset(self.index), &mut bytes)?;
        self.index = (self.index + 1) & self.mask;
        self.map.publish(offset_of!(QueueBuf, consumer_index), self.index)?;
        Wc::read_from_bytes(&bytes).ok()
    }
}

/// How a [`Pair`] is made.
#[derive(Clone, Copy)]
pub(crate) struct Options {
    /// The transport of both QPs.
    pub(crate) qp_type: QpType,
    /// The completion channel of the CQ.
    pub(crate) channel: Option<i32>,
    /// What peers of the receiver may do.
    pub(crate) access: AccessFlags,
    /// The rights of the sender's region.
    pub(crate) local: AccessFlags,
    /// The rights of the receiver's region.
    pub(crate) remote: AccessFlags,
    /// Whether the receiver takes its receives from an SRQ.
    pub(crate) srq: bool,
    /// Whether the QPs stay in RESET.
    pub(crate) unconnected: bool,
    /// Changes the attributes of both QPs.
    pub(crate) attributes: fn(&mut ModifyQpReq),
}

impl Options {
    /// QPs of a transport that allow everything.
    pub(crate) fn of(qp_type: QpType) -> Self {
        let access = AccessFlags::LOCAL_WRITE
            | AccessFlags::REMOTE_WRITE
            | AccessFlags::REMOTE_READ
            | AccessFlags::REMOTE_ATOMIC;
        Self {
            qp_type,
            channel: None,
            access: access.difference(AccessFlags::LOCAL_WRITE),
            local: AccessFlags::LOCAL_WRITE,
            remote: access,
            srq: false,
            unconnected: false,
            attributes: |_| {},
        }
    }
}

/// A registered range of the session's memory.
#[derive(Clone, Copy)]
pub(crate) struct Region {
    pub(crate) handle: u32,
    pub(crate) lkey: u32,
    pub(crate) rkey: u32,
    /// Its first address.
    pub(crate) start: u64,
    /// Its first byte in the session's memory.
    pub(crate) offset: usize,
}

/// Length of each region in bytes.
pub(crate) const REGION: usize = 1 << 14;
/// First byte of the sender's region in the session's memory.
const LOCAL: usize = 1 << 13;
/// First byte of the receiver's region in the session's memory.
const REMOTE: usize = 1 << 15;
/// First byte of the receive buffers in the receiver's region.
pub(crate) const RECEIVED: usize = 1 << 13;
/// Length of requests and receives in bytes, unless a check changes it.
pub(crate) const LENGTH: u32 = 64;

impl Region {
    pub(crate) fn new(session: &mut Session<'_>, pd: u32, offset: usize, access: AccessFlags) -> Step<Self> {
        let mut request = session.mr_request(pd, access.bits());
        request.start += offset as u64;
        (request.hca_va, request.length) = (request.start, REGION as u64);
        let response: RegMrResp = session.invoke::<write::RegMr>(&request)?;
        session.note_object(ObjectClass::MR.0, response.mr_handle);
        let RegMrResp { mr_handle: handle, lkey, rkey, .. } = response;
        Ok(Self { handle, lkey, rkey, start: request.start, offset })
    }

    /// An SGE of its first bytes.
    pub(crate) fn sge(&self, length: u32) -> Sge {
        let mut sge = Sge::new_zeroed();
        (sge.addr, sge.length, sge.lkey) = (self.start, length, self.lkey);
        sge
    }
}

/// The queues of a QP.
enum Queues {
    Rings { send: Ring, recv: Ring },
    Provided(Box<ProvidedQp>),
}

/// A QP with its queues.
pub(crate) struct Endpoint {
    pub(crate) qp: Qp,
    pub(crate) number: u32,
    pub(crate) region: Region,
    /// The handle of its SRQ.
    pub(crate) srq: Option<u32>,
    queues: Queues,
}

/// A CQ.
pub(crate) enum Completions {
    Ring(Ring),
    Provided(ProvidedCq),
}

impl Completions {
    /// Takes the next completion.
    fn pop(&mut self) -> Option<Wc> {
        match self {
            Self::Ring(ring) => ring.pop(),
            Self::Provided(cq) => cq.pop(),
        }
    }

    /// The queue in shared memory.
    pub(crate) fn ring(&self) -> Step<&Ring> {
        match self {
            Self::Ring(ring) => Ok(ring),
            Self::Provided(_) => fail("the CQ is not in shared memory"),
        }
    }
}

impl Endpoint {
    /// The status that the kernel stored in the WQE of the first send.
    pub(crate) fn first_status(&self) -> Step<u32> {
        self.status(0)
    }

    /// The status that the kernel stored in the WQE of a send.
    pub(crate) fn status(&self, index: u32) -> Step<u32> {
        let Queues::Rings { send, .. } = &self.queues else {
            return fail("the WQEs of the driver have no status");
        };
        send.status(index).map_or_else(|| fail("the WQE is not in the mapping"), Ok)
    }

    /// The status of a request: that in its WQE, or that of its completion if WQEs have none.
    pub(crate) fn status_of(&self, index: u32, wc: &Wc) -> Step<WcStatus> {
        match self.queues {
            Queues::Rings { .. } => self.status(index).map(WcStatus),
            Queues::Provided(_) => Ok(wc.status),
        }
    }

    /// Posts a send of [`LENGTH`] bytes, changed, and rings the doorbell.
    pub(crate) fn post_send(
        &mut self,
        session: &mut Session<'_>,
        change: &dyn Fn(&mut SendWqe, &mut Sge),
    ) -> Step<()> {
        self.push_send(change)?;
        if let Queues::Provided(qp) = &mut self.queues {
            return qp.ring();
        }
        let mut call = self.doorbell(session);
        session.prepare(&mut call)
    }

    /// Fills the next slot of the send queue.
    pub(crate) fn push_send(&mut self, change: &dyn Fn(&mut SendWqe, &mut Sge)) -> Step<()> {
        let (mut wqe, mut sge) = (SendWqe::new_zeroed(), self.region.sge(LENGTH));
        (wqe.wr.wr_id, wqe.wr.opcode) = (SEND_ID, WrOpcode::SEND);
        wqe.wr.send_flags = SendFlags::SIGNALED;
        one_sge(&mut wqe.dma, LENGTH);
        change(&mut wqe, &mut sge);
        match &mut self.queues {
            Queues::Rings { send, .. } => send.push(&[wqe.as_bytes(), sge.as_bytes()].concat(), 0),
            Queues::Provided(qp) => qp.push_send(&wqe, &sge),
        }
    }

    /// Makes an address handle. Returns the number that requests of this QP name it by.
    pub(crate) fn address(&mut self, session: &mut Session<'_>, pd: u32, attr: AhAttr) -> Step<u32> {
        if let Queues::Provided(qp) = &mut self.queues {
            let (handle, ah) = session.provider()?.address(pd, attr)?;
            session.note_object(ObjectClass::AH.0, handle);
            return Ok(qp.keep_address(ah));
        }
        let mut request = CreateAhReq::new_zeroed();
        (request.pd_handle, request.attr) = (pd, attr);
        let number = write::CreateAh::INFO.number;
        let mut call = session.command(number, request.as_bytes(), size_of::<CreateAhResp>(), 8);
        session.prepare(&mut call)?;
        let response = call.slot(InvokeWrite::CORE_OUT.id()).map(Slot::bytes);
        let Some(Ok((response, _))) = response.map(CreateAhResp::read_from_prefix) else {
            return fail("CREATE_AH has no response");
        };
        session.note_object(ObjectClass::AH.0, response.ah_handle);
        Ok(call.u32_of(UHW_OUT))
    }

    /// The call that starts the send queue.
    pub(crate) fn doorbell(&self, session: &Session<'_>) -> Call {
        let mut request = PostSendReq::new_zeroed();
        (request.qp_handle, request.wqe_size) = (self.qp.request.qp_handle, 56);
        session.command(write::PostSend::INFO.number, request.as_bytes(), 4, 0)
    }

    /// Posts a receive of [`LENGTH`] bytes, changed. `cycles`: how often the published index is
    /// beyond the size of the queue.
    pub(crate) fn post_recv(&mut self, cycles: u32, change: &dyn Fn(&mut RecvWqe, &mut Sge)) -> Step<()> {
        let (mut wqe, mut sge) = (RecvWqe::new_zeroed(), self.region.sge(LENGTH));
        sge.addr += RECEIVED as u64;
        wqe.wr_id = RECV_ID;
        one_sge(&mut wqe.dma, LENGTH);
        change(&mut wqe, &mut sge);
        match &mut self.queues {
            Queues::Rings { recv, .. } => recv.push(&[wqe.as_bytes(), sge.as_bytes()].concat(), cycles),
            Queues::Provided(qp) => qp.post_recv(&wqe, &sge),
        }
    }
}

/// The data of a request with one SGE.
pub(crate) fn one_sge(dma: &mut DmaInfo, length: u32) {
    (dma.length, dma.resid, dma.num_sge) = (length, length, 1);
}

/// Two QPs on one CQ; datagrams have no connection.
pub(crate) struct Pair {
    pub(crate) pd: u32,
    pub(crate) cq_handle: u32,
    pub(crate) sender: Endpoint,
    pub(crate) receiver: Endpoint,
    /// Declared after the QPs that use it: dropped after them.
    pub(crate) cq: Completions,
    /// Completions that no check has asked for yet.
    pending: Vec<Wc>,
    /// Timeout of a completion.
    timeout: Duration,
}

/// Identifier of a send, and of a receive, unless a check changes it.
pub(crate) const SEND_ID: u64 = 0x5e4d;
pub(crate) const RECV_ID: u64 = 0x4ecf;

/// A path from the port to itself.
pub(crate) fn loopback(session: &mut Session<'_>) -> Step<AhAttr> {
    let mut attr = session.path()?;
    let request = QueryPortReq { port_num: 1, ..QueryPortReq::new_zeroed() };
    let port: QueryPortResp = session.invoke::<write::QueryPort>(&request)?;
    if port.link_layer == LinkLayer::INFINIBAND {
        (attr.is_global, attr.dlid) = (0, port.lid);
    } else {
        let (index, gid) = session.ipv4_gid()?;
        (attr.grh.dgid, attr.grh.sgid_index) = (gid, index);
    }
    Ok(attr)
}

impl Pair {
    /// Two QPs in RTS that allow everything. The CQ has this completion channel.
    pub(crate) fn new(session: &mut Session<'_>, qp_type: QpType, channel: Option<i32>) -> Step<Self> {
        Self::with(session, &Options { channel, ..Options::of(qp_type) })
    }

    pub(crate) fn with(session: &mut Session<'_>, options: &Options) -> Step<Self> {
        let pd = session.pd()?;
        let (cq_handle, cq) = Self::completions(session, options.channel)?;
        let local = Region::new(session, pd, LOCAL, options.local)?;
        let remote = Region::new(session, pd, REMOTE, options.remote)?;
        let qp_type = options.qp_type;
        let mut sender = Self::endpoint(session, qp_type, pd, cq_handle, local, false)?;
        let mut receiver = Self::endpoint(session, qp_type, pd, cq_handle, remote, options.srq)?;
        let path = loopback(session)?;
        receiver.qp.request.qp_access_flags = options.access;
        let numbers = [receiver.number, sender.number];
        for (endpoint, peer) in [&mut sender, &mut receiver].into_iter().zip(numbers) {
            let request = &mut endpoint.qp.request;
            (request.dest.dgid, request.dest.sgid_index) = (path.grh.dgid, path.grh.sgid_index);
            (request.dest.is_global, request.dest.dlid) = (path.is_global, path.dlid);
            (request.rq_psn, request.sq_psn, request.dest_qp_num) = (0, 0, peer);
            request.retry_cnt = 3;
            (options.attributes)(request);
            if !options.unconnected {
                endpoint.qp.to(session, QpState::RTS)?;
            }
        }
        let timeout = session.target.timeout();
        Ok(Self { pd, cq_handle, sender, receiver, cq, pending: Vec::new(), timeout })
    }

    /// Makes the CQ.
    fn completions(session: &mut Session<'_>, channel: Option<i32>) -> Step<(u32, Completions)> {
        if !session.is_rxe() {
            if channel.is_some() {
                return fail("the suite makes no CQ with a channel for this driver");
            }
            let cq = ProvidedCq::new(&session.provider()?)?;
            return Ok((cq.handle, Completions::Provided(cq)));
        }
        let mut call = session.cq_call(16);
        if let Some(fd) = channel {
            call = call.with(Slot::word(CqCreate::COMP_CHANNEL.id(), i64::from(fd).cast_unsigned()));
        }
        session.prepare(&mut call)?;
        let handle = session.made(&call, ObjectClass::CQ, CqCreate::HANDLE.id());
        Ok((handle, Completions::Ring(Ring::of(session, &call, 0)?)))
    }

    fn endpoint(
        session: &mut Session<'_>,
        qp_type: QpType,
        pd: u32,
        cq: u32,
        region: Region,
        srq: bool,
    ) -> Step<Endpoint> {
        if !session.is_rxe() {
            let made = ProvidedQp::new(&session.provider()?, qp_type, pd, cq, srq)?;
            let (qp, number) = (Qp::of(session, made.handle, qp_type)?, made.number);
            return Ok(Endpoint {
                qp,
                number,
                region,
                srq: made.srq(),
                queues: Queues::Provided(Box::new(made)),
            });
        }
        let mut call = session.qp_call(qp_type, pd, cq);
        let mut shared = None;
        if srq {
            let mut made = session.srq_call(pd);
            session.prepare(&mut made)?;
            let handle = session.made(&made, ObjectClass::SRQ, SrqCreate::HANDLE.id());
            call = call.with(Slot::word(QpCreate::SRQ_HANDLE.id(), handle.into()));
            shared = Some((handle, Ring::of(session, &made, 0)?));
        }
        session.prepare(&mut call)?;
        let handle = session.made(&call, ObjectClass::QP, QpCreate::HANDLE.id());
        let number = call.u32_of(QpCreate::RESP_QP_NUM.id());
        let (srq, recv) = match shared {
            Some((handle, ring)) => (Some(handle), ring),
            None => (None, Ring::of(session, &call, 0)?),
        };
        let queues = Queues::Rings { send: Ring::of(session, &call, 1)?, recv };
        Ok(Endpoint { qp: Qp::of(session, handle, qp_type)?, number, region, srq, queues })
    }

    /// Posts a receive at the receiver.
    pub(crate) fn post_recv(&mut self, cycles: u32, change: &dyn Fn(&mut RecvWqe, &mut Sge)) -> Step<()> {
        self.receiver.post_recv(cycles, change)
    }

    /// Posts a send at the sender, and rings the doorbell.
    pub(crate) fn post_send(
        &mut self,
        session: &mut Session<'_>,
        change: &dyn Fn(&mut SendWqe, &mut Sge),
    ) -> Step<()> {
        self.sender.post_send(session, change)
    }

    /// Waits for the completion of a request with this identifier.
    pub(crate) fn completion(&mut self, wr_id: u64) -> Step<Wc> {
        let begin = Instant::now();
        loop {
            if let Some(wc) = self.pending(wr_id) {
                return Ok(wc);
            }
            if begin.elapsed() > self.timeout {
                return fail(format!("no completion within {} s", self.timeout.as_secs()));
            }
            sleep(Duration::from_millis(1));
        }
    }

    /// The completion of a request with this identifier, if there is one now.
    pub(crate) fn pending(&mut self, wr_id: u64) -> Option<Wc> {
        while let Some(wc) = self.cq.pop() {
            self.pending.push(wc);
        }
        let position = self.pending.iter().position(|wc| wc.wr_id == wr_id)?;
        Some(self.pending.remove(position))
    }
}
