//! Queues of rxe in shared memory: their mappings, and hostile contents.

use std::mem::offset_of;
use std::thread::sleep;
use std::time::{Duration, Instant};

use bareverbs_uapi::abi::Since;
use bareverbs_uapi::rxe::{DmaInfo, QueueBuf, RecvWqe, SendWqe, Sge};
use bareverbs_uapi::uverbs::types::QpType;
use bareverbs_uapi::uverbs::{CqCreate, ObjectClass, QpCreate, SrqCreate};
use bareverbs_uapi::verbs_values::{QpState, SendFlags, WcStatus};
use bareverbs_uapi::write::structs::{PostSendReq, RegMrResp, ResizeCqReq, ResizeCqResp, Wc};
use bareverbs_uapi::write::types::WrOpcode;
use bareverbs_uapi::write::{self, WriteCommand};
use rustix::mm::ProtFlags;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::life::queue;
use super::qp_states::Qp;
use crate::answer::{Answer, Change, Expect};
use crate::call::{Call, Slot};
use crate::check::Check;
use crate::map::Map;
use crate::rules::Rule;
use crate::session::{Session, Step, fail};

const PAGE: usize = 4096;
const READ_WRITE: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// rxe reports the status of a failed request by the flush of its queue.
static RXE_FAILED_REQUESTS: Change = Change {
    name: "rxe-failed-request-flushed",
    since: Since::V6_12,
    why: "the requester moves the QP to ERR and leaves the completion to the flush since 6.4; its own status \
          is in the WQE only (sw/rxe/rxe_req.c: rxe_requester)",
};

/// Makes an object with a queue. Returns the call.
type Queued = (&'static str, usize, fn(&mut Session<'_>) -> Step<(Call, ObjectClass, u32)>);

const QUEUES: [Queued; 4] = [
    ("Cq", 0, |session| {
        session.context()?;
        let mut call = session.cq_call(16);
        session.prepare(&mut call)?;
        let cq = session.made(&call, ObjectClass::CQ, CqCreate::HANDLE.id());
        Ok((call, ObjectClass::CQ, cq))
    }),
    ("QpRecv", 0, new_qp),
    ("QpSend", 1, new_qp),
    ("Srq", 0, |session| {
        let pd = session.pd()?;
        let mut call = session.srq_call(pd);
        session.prepare(&mut call)?;
        let srq = session.made(&call, ObjectClass::SRQ, SrqCreate::HANDLE.id());
        Ok((call, ObjectClass::SRQ, srq))
    }),
];

fn new_qp(session: &mut Session<'_>) -> Step<(Call, ObjectClass, u32)> {
    let (pd, cq) = (session.pd()?, session.cq()?);
    let mut call = session.qp_call(QpType::RC, pd, cq);
    session.prepare(&mut call)?;
    let qp = session.made(&call, ObjectClass::QP, QpCreate::HANDLE.id());
    Ok((call, ObjectClass::QP, qp))
}

/// Maps a queue as the judged call.
fn map(
    session: &mut Session<'_>,
    offset: u64,
    len: usize,
    protection: ProtFlags,
    expected: Answer,
) -> Step<Option<Map>> {
    let result = session.file().map(offset, len, protection);
    let text = format!("mmap() of {len} bytes at offset {offset:#x} with {protection:?}");
    session.compare(&text, expected, Answer::of(&result))?;
    Ok(result.ok())
}

/// A queue of a check.
struct Made {
    class: ObjectClass,
    handle: u32,
    offset: u64,
    len: usize,
}

type MapCase = (&'static str, Answer, fn(&mut Session<'_>, Made) -> Step<()>);

const MAPS: [MapCase; 16] = [
    ("whole", Answer::Ok, |session, made| {
        map(session, made.offset, made.len, READ_WRITE, Answer::Ok).map(drop)
    }),
    ("first-page", Answer::Ok, |session, made| {
        map(session, made.offset, PAGE, READ_WRITE, Answer::Ok).map(drop)
    }),
    ("read-only", Answer::Ok, |session, made| {
        map(session, made.offset, made.len, ProtFlags::READ, Answer::Ok).map(drop)
    }),
    ("no-access", Answer::Ok, |session, made| {
        map(session, made.offset, made.len, ProtFlags::empty(), Answer::Ok).map(drop)
    }),
    ("length-0", Answer::INVAL, |session, made| {
        map(session, made.offset, 0, READ_WRITE, Answer::INVAL)?;
        // A refused mapping does not use up the queue.
        map(session, made.offset, made.len, READ_WRITE, Answer::Ok).map(drop)
    }),
    ("unaligned", Answer::INVAL, |session, made| {
        map(session, made.offset + 8, made.len, READ_WRITE, Answer::INVAL)?;
        map(session, made.offset, made.len, READ_WRITE, Answer::Ok).map(drop)
    }),
    ("second-page", Answer::INVAL, |session, made| {
        map(session, made.offset + PAGE as u64, PAGE, READ_WRITE, Answer::INVAL)?;
        map(session, made.offset, made.len, READ_WRITE, Answer::Ok).map(drop)
    }),
    ("twice", Answer::INVAL, |session, made| {
        let first = map(session, made.offset, made.len, READ_WRITE, Answer::Ok)?;
        let second = map(session, made.offset, made.len, READ_WRITE, Answer::INVAL);
        drop(first);
        second.map(drop)
    }),
    ("after-unmap", Answer::INVAL, |session, made| {
        drop(map(session, made.offset, made.len, READ_WRITE, Answer::Ok)?);
        map(session, made.offset, made.len, READ_WRITE, Answer::INVAL).map(drop)
    }),
    ("longer", Answer::INVAL, |session, made| {
        let longer = made.len.next_multiple_of(PAGE) + PAGE;
        map(session, made.offset, longer, READ_WRITE, Answer::INVAL)?;
        map(session, made.offset, made.len, READ_WRITE, Answer::Ok).map(drop)
    }),
    ("unknown-offset", Answer::INVAL, |session, made| {
        map(session, made.offset + (1 << 40), made.len, READ_WRITE, Answer::INVAL).map(drop)
    }),
    ("other-file", Answer::INVAL, |session, made| {
        let mut other = session.other()?;
        map(&mut other, made.offset, made.len, READ_WRITE, Answer::INVAL)?;
        map(session, made.offset, made.len, READ_WRITE, Answer::Ok).map(drop)
    }),
    ("without-context", Answer::INVAL, |session, made| {
        let mut other = Session::open(session.target, session.series)?;
        let result = map(&mut other, made.offset, made.len, READ_WRITE, Answer::INVAL);
        session.judged = other.judged.take();
        result.map(drop)
    }),
    ("after-destroy", Answer::INVAL, |session, made| {
        destroy(session, &made)?;
        map(session, made.offset, made.len, READ_WRITE, Answer::INVAL).map(drop)
    }),
    ("mapped-after-destroy", Answer::INVAL, |session, made| {
        // The memory stays until it is unmapped.
        let kept = map(session, made.offset, made.len, READ_WRITE, Answer::Ok)?;
        destroy(session, &made)?;
        let mask = kept.as_ref().and_then(|kept| kept.index(offset_of!(QueueBuf, index_mask)));
        if mask.is_none_or(|mask| mask == 0) {
            return fail("the header of the queue is gone");
        }
        map(session, made.offset, made.len, READ_WRITE, Answer::INVAL).map(drop)
    }),
    ("mapped-after-close", Answer::INVAL, |session, made| {
        let mut other = session.other()?;
        let mut call = other.cq_call(16);
        other.prepare(&mut call)?;
        other.made(&call, ObjectClass::CQ, CqCreate::HANDLE.id());
        let (offset, len) = queue(&call, 0)?;
        let kept = map(&mut other, offset, len, READ_WRITE, Answer::Ok)?;
        drop(other);
        let mask = kept.as_ref().and_then(|kept| kept.index(offset_of!(QueueBuf, index_mask)));
        if mask.is_none_or(|mask| mask == 0) {
            return fail("the header of the queue is gone");
        }
        map(session, offset, len, READ_WRITE, Answer::INVAL)?;
        map(session, made.offset, made.len, READ_WRITE, Answer::Ok).map(drop)
    }),
];

fn destroy(session: &mut Session<'_>, made: &Made) -> Step<()> {
    match session.destroy(made.class.0, made.handle)? {
        Answer::Ok => Ok(()),
        got => fail(format!("the object can't be destroyed: {got}")),
    }
}

fn of_maps(checks: &mut Vec<Check>) {
    let rule = Rule::Mmap;
    for (kind, position, make) in QUEUES {
        for (suffix, answer, body) in MAPS {
            // The receive queue follows the send queue, which has one page.
            if kind == "QpSend" && suffix == "second-page" {
                continue;
            }
            let name = format!("mmap::{kind}::all::{}-{suffix}", rule.id());
            checks.push(Check::new(name, rule, answer, move |session| {
                session.needs_rxe_payloads()?;
                let (call, class, handle) = make(session)?;
                let (offset, len) = queue(&call, position)?;
                body(session, Made { class, handle, offset, len })
            }));
        }
    }
    for (suffix, expected) in [("old-offset", Answer::INVAL), ("new-offset", Answer::Ok)] {
        let name = format!("mmap::Cq::resized::{}-{suffix}", rule.id());
        checks.push(Check::new(name, rule, expected, move |session| {
            session.needs_rxe_payloads()?;
            session.context()?;
            let mut call = session.cq_call(16);
            session.prepare(&mut call)?;
            let handle = session.made(&call, ObjectClass::CQ, CqCreate::HANDLE.id());
            let (old, len) = queue(&call, 0)?;
            let mut request = ResizeCqReq::new_zeroed();
            (request.cq_handle, request.cqe) = (handle, 100);
            let number = write::ResizeCq::INFO.number;
            let mut resize = session.command(number, request.as_bytes(), size_of::<ResizeCqResp>(), 16);
            session.prepare(&mut resize)?;
            let (new, new_len) = queue(&resize, 0)?;
            let (offset, len) = if expected == Answer::Ok { (new, new_len) } else { (old, len) };
            map(session, offset, len, READ_WRITE, expected).map(drop)
        }));
    }
}

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

/// A QP with its mapped queues.
pub(crate) struct Endpoint {
    pub(crate) qp: Qp,
    number: u32,
    send: Ring,
    recv: Ring,
}

/// Two connected QPs on one CQ; datagrams have no connection.
pub(crate) struct Pair {
    pub(crate) cq_handle: u32,
    cq: Ring,
    pub(crate) sender: Endpoint,
    pub(crate) receiver: Endpoint,
    region: RegMrResp,
    memory: u64,
}

/// Identifier of the send, and of the receive, of a check.
const SEND_ID: u64 = 0x5e4d;
const RECV_ID: u64 = 0x4ecf;

/// Timeout of a completion. The guests of tests are slow.
const TIMEOUT: Duration = Duration::from_secs(20);

impl Pair {
    /// Two QPs in RTS. The CQ has this completion channel.
    pub(crate) fn new(session: &mut Session<'_>, qp_type: QpType, channel: Option<i32>) -> Step<Self> {
        session.needs_rxe_payloads()?;
        let pd = session.pd()?;
        let mut call = session.cq_call(16);
        if let Some(fd) = channel {
            call = call.with(Slot::word(CqCreate::COMP_CHANNEL.id(), i64::from(fd).cast_unsigned()));
        }
        session.prepare(&mut call)?;
        let cq_handle = session.made(&call, ObjectClass::CQ, CqCreate::HANDLE.id());
        let cq = Ring::of(session, &call, 0)?;
        let region = session.mr_with(pd, 1)?;
        let memory = session.memory();
        let mut sender = Self::endpoint(session, qp_type, pd, cq_handle)?;
        let mut receiver = Self::endpoint(session, qp_type, pd, cq_handle)?;
        let (index, gid) = session.ipv4_gid()?;
        let numbers = [receiver.number, sender.number];
        for (endpoint, peer) in [&mut sender, &mut receiver].into_iter().zip(numbers) {
            let request = &mut endpoint.qp.request;
            (request.dest.dgid, request.dest.sgid_index) = (gid, index);
            (request.rq_psn, request.sq_psn, request.dest_qp_num) = (0, 0, peer);
            request.retry_cnt = 3;
            endpoint.qp.to(session, QpState::RTS)?;
        }
        Ok(Self { cq_handle, cq, sender, receiver, region, memory })
    }

    fn endpoint(session: &mut Session<'_>, qp_type: QpType, pd: u32, cq: u32) -> Step<Endpoint> {
        let mut call = session.qp_call(qp_type, pd, cq);
        session.prepare(&mut call)?;
        let handle = session.made(&call, ObjectClass::QP, QpCreate::HANDLE.id());
        let number = call.u32_of(QpCreate::RESP_QP_NUM.id());
        let (recv, send) = (Ring::of(session, &call, 0)?, Ring::of(session, &call, 1)?);
        Ok(Endpoint { qp: Qp::of(session, handle, qp_type)?, number, send, recv })
    }

    fn sge(&self) -> Sge {
        let mut sge = Sge::new_zeroed();
        (sge.addr, sge.length, sge.lkey) = (self.memory, 64, self.region.lkey);
        sge
    }

    /// Posts a receive of 64 bytes at the receiver.
    pub(crate) fn post_recv(&mut self, cycles: u32, change: fn(&mut RecvWqe, &mut Sge)) -> Step<()> {
        let (mut wqe, mut sge) = (RecvWqe::new_zeroed(), self.sge());
        wqe.wr_id = RECV_ID;
        set(&mut wqe.dma, 64);
        change(&mut wqe, &mut sge);
        self.receiver.recv.push(&[wqe.as_bytes(), sge.as_bytes()].concat(), cycles)
    }

    /// Posts a send of 64 bytes, changed, and rings the doorbell.
    pub(crate) fn post_send(
        &mut self,
        session: &mut Session<'_>,
        change: &dyn Fn(&mut SendWqe, &mut Sge),
    ) -> Step<()> {
        let (mut wqe, mut sge) = (SendWqe::new_zeroed(), self.sge());
        (wqe.wr.wr_id, wqe.wr.opcode) = (SEND_ID, WrOpcode::SEND);
        wqe.wr.send_flags = SendFlags::SIGNALED;
        set(&mut wqe.dma, 64);
        change(&mut wqe, &mut sge);
        self.sender.send.push(&[wqe.as_bytes(), sge.as_bytes()].concat(), 0)?;
        let mut request = PostSendReq::new_zeroed();
        (request.qp_handle, request.wqe_size) = (self.sender.qp.request.qp_handle, 56);
        let mut call = session.command(write::PostSend::INFO.number, request.as_bytes(), 4, 0);
        session.prepare(&mut call)
    }

    /// Waits for the completion of the send (`true`) or of the receive.
    pub(crate) fn completion(&mut self, of_send: bool) -> Step<Wc> {
        let wanted = if of_send { SEND_ID } else { RECV_ID };
        let begin = Instant::now();
        loop {
            match self.cq.pop() {
                Some(wc) if wc.wr_id == wanted => return Ok(wc),
                Some(_) => {}
                None if begin.elapsed() > TIMEOUT => {
                    return fail(format!("no completion within {} s", TIMEOUT.as_secs()));
                }
                None => sleep(Duration::from_millis(1)),
            }
        }
    }
}

/// The data of a request with one SGE.
fn set(dma: &mut DmaInfo, length: u32) {
    (dma.length, dma.resid, dma.num_sge) = (length, length, 1);
}

/// A request that the transport or the memory does not allow: its name, the status of kernels before
/// the flush, and the change of the request.
type Bad = (&'static str, WcStatus, fn(&mut SendWqe, &mut Sge));

const BAD: [Bad; 3] = [
    ("l_key-unknown", WcStatus::LOC_QP_OP_ERR, |_, sge| sge.lkey = 0x00de_ad00),
    ("sge-behind-the-region", WcStatus::LOC_PROT_ERR, |_, sge| sge.addr += 4096),
    ("length-above-sges", WcStatus::LOC_QP_OP_ERR, |wqe, _| {
        (wqe.dma.length, wqe.dma.resid) = (256, 256);
    }),
];

/// Operations that a transport lacks.
const OPERATIONS: [(QpType, &str, &[WrOpcode]); 3] = [
    (QpType::RC, "RC", &[WrOpcode::TSO]),
    (
        QpType::UC,
        "UC",
        &[
            WrOpcode::RDMA_READ,
            WrOpcode::ATOMIC_CMP_AND_SWP,
            WrOpcode::ATOMIC_FETCH_AND_ADD,
            WrOpcode::RDMA_READ_WITH_INV,
            WrOpcode::TSO,
        ],
    ),
    (
        QpType::UD,
        "UD",
        &[
            WrOpcode::RDMA_WRITE,
            WrOpcode::RDMA_WRITE_WITH_IMM,
            WrOpcode::RDMA_READ,
            WrOpcode::ATOMIC_CMP_AND_SWP,
            WrOpcode::ATOMIC_FETCH_AND_ADD,
            WrOpcode::RDMA_READ_WITH_INV,
            WrOpcode::TSO,
        ],
    ),
];

/// Judges the completion of a send, and the status in its WQE.
fn refused(
    session: &mut Session<'_>,
    qp_type: QpType,
    title: &str,
    expect: Expect,
    change: &dyn Fn(&mut SendWqe, &mut Sge),
) -> Step<()> {
    let mut pair = Pair::new(session, qp_type, None)?;
    pair.post_send(session, change)?;
    let wc = pair.completion(true)?;
    let text = format!("a send of a {qp_type} QP with {title}");
    session.compare(&text, expect.on(session.series), Answer::Status(wc.status.0))?;
    match pair.sender.send.status(0) {
        Some(0) | None => fail("the WQE has the status SUCCESS"),
        Some(_) => Ok(()),
    }
}

fn flushed(before: WcStatus) -> Expect {
    Expect::Changed {
        change: &RXE_FAILED_REQUESTS,
        before: Answer::Status(before.0),
        after: Answer::Status(WcStatus::WR_FLUSH_ERR.0),
    }
}

fn of_requests(checks: &mut Vec<Check>) {
    let rule = Rule::RingRequest;
    for (qp_type, kind, operations) in OPERATIONS {
        for operation in operations.iter().copied() {
            let name = format!("ring::{kind}::send::{}-opcode-{}", rule.id(), operation.0);
            let expect = flushed(WcStatus::LOC_QP_OP_ERR);
            checks.push(Check::new(name, rule, expect, move |session| {
                let title = format!("operation {operation}");
                refused(session, qp_type, &title, expect, &|wqe, _| wqe.wr.opcode = operation)
            }));
        }
        if qp_type == QpType::UD {
            continue;
        }
        for (suffix, before, change) in BAD {
            let name = format!("ring::{kind}::send::{}-{suffix}", rule.id());
            let expect = flushed(before);
            checks.push(Check::new(name, rule, expect, move |session| {
                refused(session, qp_type, suffix, expect, &change)
            }));
        }
        let name = format!("ring::{kind}::send::{}-many-sges", rule.id());
        let expect = flushed(WcStatus::LOC_QP_OP_ERR);
        let check = Check::new(name, rule, expect, move |session| {
            refused(session, qp_type, "65535 SGEs", expect, &|wqe, _| wqe.dma.num_sge = 0xffff)
        });
        checks.push(check.hazardous("kernels before 6.1.188 and 6.12.110 read beyond the queue"));
        let name = format!("ring::{kind}::send::{}-current-sge", rule.id());
        let check = Check::new(name, rule, expect, move |session| {
            refused(session, qp_type, "a current SGE of 1000", expect, &|wqe, _| wqe.dma.cur_sge = 1000)
        });
        checks.push(check.hazardous("kernels before 6.1.188 and 6.12.110 read beyond the queue"));
    }
}

fn of_indices(checks: &mut Vec<Check>) {
    let rule = Rule::RingIndex;
    let success = Answer::Status(WcStatus::SUCCESS.0);
    for (suffix, cycles) in [("in-range", 0), ("one-cycle", 1), ("many-cycles", 0x10_0001)] {
        let name = format!("ring::RC::recv::{}-{suffix}", rule.id());
        checks.push(Check::new(name, rule, success, move |session| {
            let mut pair = Pair::new(session, QpType::RC, None)?;
            pair.post_recv(cycles, |_, _| {})?;
            pair.post_send(session, &|_, _| {})?;
            let wc = pair.completion(false)?;
            let text = format!("a receive whose producer index is {cycles} cycles beyond the queue");
            session.compare(&text, success, Answer::Status(wc.status.0)).map(drop)
        }));
        let name = format!("ring::Cq::consumer::{}-{suffix}", rule.id());
        checks.push(Check::new(name, rule, success, move |session| {
            let mut pair = Pair::new(session, QpType::RC, None)?;
            pair.post_recv(0, |_, _| {})?;
            let stored = cycles.wrapping_mul(pair.cq.mask().wrapping_add(1));
            pair.cq.map.publish(offset_of!(QueueBuf, consumer_index), stored);
            pair.post_send(session, &|_, _| {})?;
            let wc = pair.completion(true)?;
            let text = format!("a send with a CQ whose consumer index is {stored:#x}");
            session.compare(&text, success, Answer::Status(wc.status.0)).map(drop)
        }));
    }
}

pub(crate) fn checks() -> Vec<Check> {
    let mut checks = Vec::new();
    of_maps(&mut checks);
    of_requests(&mut checks);
    of_indices(&mut checks);
    checks
}
