//! Two QPs of rxe on one port, connected to each other, with their queues in shared memory.

use std::mem::offset_of;
use std::thread::sleep;
use std::time::{Duration, Instant};

use bareverbs_uapi::rxe::{DmaInfo, QueueBuf, RecvWqe, SendWqe, Sge};
use bareverbs_uapi::uverbs::types::{AccessFlags, QpType};
use bareverbs_uapi::uverbs::{CqCreate, ObjectClass, QpCreate, SrqCreate};
use bareverbs_uapi::verbs_values::{QpState, SendFlags};
use bareverbs_uapi::write::structs::{ModifyQpReq, PostSendReq, RegMrResp, Wc};
use bareverbs_uapi::write::types::WrOpcode;
use bareverbs_uapi::write::{self, WriteCommand};
use rustix::mm::ProtFlags;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::life::queue;
use super::qp_states::Qp;
use crate::answer::Answer;
use crate::call::{Call, Slot};
use crate::map::Map;
use crate::session::{Session, Step, fail};

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

/// A QP with its mapped queues.
pub(crate) struct Endpoint {
    pub(crate) qp: Qp,
    pub(crate) number: u32,
    pub(crate) region: Region,
    send: Ring,
    recv: Ring,
}

impl Endpoint {
    /// The status that the kernel stored in the WQE of the first send.
    pub(crate) fn first_status(&self) -> Step<u32> {
        self.status(0)
    }

    /// The status that the kernel stored in the WQE of a send.
    pub(crate) fn status(&self, index: u32) -> Step<u32> {
        self.send.status(index).map_or_else(|| fail("the WQE is not in the mapping"), Ok)
    }

    /// Posts a send of [`LENGTH`] bytes, changed, and rings the doorbell.
    pub(crate) fn post_send(
        &mut self,
        session: &mut Session<'_>,
        change: &dyn Fn(&mut SendWqe, &mut Sge),
    ) -> Step<()> {
        self.push_send(change)?;
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
        self.send.push(&[wqe.as_bytes(), sge.as_bytes()].concat(), 0)
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
        self.recv.push(&[wqe.as_bytes(), sge.as_bytes()].concat(), cycles)
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
    pub(crate) cq: Ring,
    pub(crate) sender: Endpoint,
    pub(crate) receiver: Endpoint,
    /// Completions that no check has asked for yet.
    pending: Vec<Wc>,
}

/// Identifier of a send, and of a receive, unless a check changes it.
pub(crate) const SEND_ID: u64 = 0x5e4d;
pub(crate) const RECV_ID: u64 = 0x4ecf;

/// Timeout of a completion. The guests of tests are slow.
const TIMEOUT: Duration = Duration::from_secs(20);

impl Pair {
    /// Two QPs in RTS that allow everything. The CQ has this completion channel.
    pub(crate) fn new(session: &mut Session<'_>, qp_type: QpType, channel: Option<i32>) -> Step<Self> {
        Self::with(session, &Options { channel, ..Options::of(qp_type) })
    }

    pub(crate) fn with(session: &mut Session<'_>, options: &Options) -> Step<Self> {
        session.needs_rxe_payloads()?;
        let pd = session.pd()?;
        let mut call = session.cq_call(16);
        if let Some(fd) = options.channel {
            call = call.with(Slot::word(CqCreate::COMP_CHANNEL.id(), i64::from(fd).cast_unsigned()));
        }
        session.prepare(&mut call)?;
        let cq_handle = session.made(&call, ObjectClass::CQ, CqCreate::HANDLE.id());
        let cq = Ring::of(session, &call, 0)?;
        let local = Region::new(session, pd, LOCAL, options.local)?;
        let remote = Region::new(session, pd, REMOTE, options.remote)?;
        let qp_type = options.qp_type;
        let mut sender = Self::endpoint(session, qp_type, pd, cq_handle, local, false)?;
        let mut receiver = Self::endpoint(session, qp_type, pd, cq_handle, remote, options.srq)?;
        let (index, gid) = session.ipv4_gid()?;
        receiver.qp.request.qp_access_flags = options.access;
        let numbers = [receiver.number, sender.number];
        for (endpoint, peer) in [&mut sender, &mut receiver].into_iter().zip(numbers) {
            let request = &mut endpoint.qp.request;
            (request.dest.dgid, request.dest.sgid_index) = (gid, index);
            (request.rq_psn, request.sq_psn, request.dest_qp_num) = (0, 0, peer);
            request.retry_cnt = 3;
            (options.attributes)(request);
            if !options.unconnected {
                endpoint.qp.to(session, QpState::RTS)?;
            }
        }
        Ok(Self { pd, cq_handle, cq, sender, receiver, pending: Vec::new() })
    }

    fn endpoint(
        session: &mut Session<'_>,
        qp_type: QpType,
        pd: u32,
        cq: u32,
        region: Region,
        srq: bool,
    ) -> Step<Endpoint> {
        let mut call = session.qp_call(qp_type, pd, cq);
        let mut shared = None;
        if srq {
            let mut made = session.srq_call(pd);
            session.prepare(&mut made)?;
            let handle = session.made(&made, ObjectClass::SRQ, SrqCreate::HANDLE.id());
            call = call.with(Slot::word(QpCreate::SRQ_HANDLE.id(), handle.into()));
            shared = Some(Ring::of(session, &made, 0)?);
        }
        session.prepare(&mut call)?;
        let handle = session.made(&call, ObjectClass::QP, QpCreate::HANDLE.id());
        let number = call.u32_of(QpCreate::RESP_QP_NUM.id());
        let recv = match shared {
            Some(ring) => ring,
            None => Ring::of(session, &call, 0)?,
        };
        let send = Ring::of(session, &call, 1)?;
        Ok(Endpoint { qp: Qp::of(session, handle, qp_type)?, number, region, send, recv })
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
            if begin.elapsed() > TIMEOUT {
                return fail(format!("no completion within {} s", TIMEOUT.as_secs()));
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
