//! Queues of rxe in shared memory: their mappings, and hostile contents.

use std::mem::offset_of;

use bareverbs_uapi::abi::Since;
use bareverbs_uapi::rxe::{QueueBuf, SendWqe, Sge};
use bareverbs_uapi::uverbs::types::QpType;
use bareverbs_uapi::uverbs::{CqCreate, ObjectClass, QpCreate, SrqCreate};
use bareverbs_uapi::verbs_values::WcStatus;
use bareverbs_uapi::write::structs::{ResizeCqReq, ResizeCqResp};
use bareverbs_uapi::write::types::WrOpcode;
use bareverbs_uapi::write::{self, WriteCommand};
use rustix::mm::ProtFlags;
use zerocopy::{FromZeros, IntoBytes};

use super::life::queue;
use super::pair::{Pair, READ_WRITE, RECV_ID, REGION, SEND_ID};
use crate::answer::{Answer, Change, Expect};
use crate::call::Call;
use crate::check::{Check, Row, row};
use crate::map::Map;
use crate::rules::Rule;
use crate::session::Session;
use crate::step::{Step, fail};

const PAGE: usize = 4096;

/// rxe reports the status of a failed request by the flush of its queue.
pub(crate) static RXE_FAILED_REQUESTS: Change = Change {
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
}

/// The offsets and lengths of a CQ's ring, before and after a resize.
fn resized(session: &mut Session<'_>) -> Step<[(u64, usize); 2]> {
    session.needs_rxe_payloads()?;
    session.context()?;
    let mut call = session.cq_call(16);
    session.prepare(&mut call)?;
    let handle = session.made(&call, ObjectClass::CQ, CqCreate::HANDLE.id());
    let mut request = ResizeCqReq::new_zeroed();
    (request.cq_handle, request.cqe) = (handle, 100);
    let number = write::ResizeCq::INFO.number;
    let mut resize = session.command(number, request.as_bytes(), size_of::<ResizeCqResp>(), 16);
    session.prepare(&mut resize)?;
    Ok([queue(&call, 0)?, queue(&resize, 0)?])
}

const RESIZED: [Row; 2] = [
    row("Cq::resized", Rule::Mmap, "old-offset", Answer::INVAL, |session, answer| {
        let [(offset, len), _] = resized(session)?;
        map(session, offset, len, READ_WRITE, answer).map(drop)
    }),
    row("Cq::resized", Rule::Mmap, "new-offset", Answer::Ok, |session, answer| {
        let [_, (offset, len)] = resized(session)?;
        map(session, offset, len, READ_WRITE, answer).map(drop)
    }),
];

/// A request that the transport or the memory does not allow: its name, its title, the status of
/// kernels before the flush, its hazard, and the change of the request.
type Bad = (&'static str, &'static str, WcStatus, Option<&'static str>, fn(&mut SendWqe, &mut Sge));

const BEYOND: Option<&str> = Some("kernels before 6.1.188 and 6.12.110 read beyond the queue");

const BAD: [Bad; 6] = [
    ("l_key-unknown", "l_key-unknown", WcStatus::LOC_QP_OP_ERR, None, |_, sge| sge.lkey = 0x00de_ad00),
    ("sge-behind-the-region", "sge-behind-the-region", WcStatus::LOC_PROT_ERR, None, |_, sge| {
        sge.addr += REGION as u64;
    }),
    ("length-above-sges", "length-above-sges", WcStatus::LOC_QP_OP_ERR, None, |wqe, _| {
        (wqe.dma.length, wqe.dma.resid) = (256, 256);
    }),
    ("many-sges", "65535 SGEs", WcStatus::LOC_QP_OP_ERR, BEYOND, |wqe, _| wqe.dma.num_sge = 0xffff),
    (
        "opcode-2^24",
        "the opcode 2^24",
        WcStatus::LOC_QP_OP_ERR,
        Some("kernels read beyond a table (send-opcodes-are-not-limited)"),
        |wqe, _| wqe.wr.opcode = WrOpcode(1 << 24),
    ),
    ("current-sge", "a current SGE of 1000", WcStatus::LOC_QP_OP_ERR, BEYOND, |wqe, _| {
        wqe.dma.cur_sge = 1000;
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
    let wc = pair.completion(SEND_ID)?;
    let text = format!("a send of a {qp_type} QP with {title}");
    session.compare(&text, expect.on(session.series), Answer::Status(wc.status.0))?;
    match pair.sender.first_status()? {
        0 => fail("the WQE has the status SUCCESS"),
        _ => Ok(()),
    }
}

/// The status of a request that fails before it is sent.
pub(crate) fn flushed(before: WcStatus) -> Expect {
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
        for (suffix, title, before, hazard, change) in BAD {
            let name = format!("ring::{kind}::send::{}-{suffix}", rule.id());
            let expect = flushed(before);
            let mut check = Check::new(name, rule, expect, move |session| {
                refused(session, qp_type, title, expect, &change)
            });
            check.hazard = hazard;
            checks.push(check);
        }
    }
}

/// A producer index that is some cycles beyond the queue.
fn judge_producer(session: &mut Session<'_>, cycles: u32, answer: Answer) -> Step<()> {
    let mut pair = Pair::new(session, QpType::RC, None)?;
    pair.post_recv(cycles, &|_, _| {})?;
    pair.post_send(session, &|_, _| {})?;
    let wc = pair.completion(RECV_ID)?;
    let text = format!("a receive whose producer index is {cycles} cycles beyond the queue");
    session.compare(&text, answer, Answer::Status(wc.status.0)).map(drop)
}

/// A consumer index that is some cycles beyond the queue.
fn judge_consumer(session: &mut Session<'_>, cycles: u32, answer: Answer) -> Step<()> {
    let mut pair = Pair::new(session, QpType::RC, None)?;
    pair.post_recv(0, &|_, _| {})?;
    let stored = cycles.wrapping_mul(pair.cq.ring()?.mask().wrapping_add(1));
    pair.cq.ring()?.store_consumer(stored)?;
    pair.post_send(session, &|_, _| {})?;
    let wc = pair.completion(SEND_ID)?;
    let text = format!("a send with a CQ whose consumer index is {stored:#x}");
    session.compare(&text, answer, Answer::Status(wc.status.0)).map(drop)
}

/// An index of a ring: its place, and what judges it at a number of cycles beyond the queue.
type Index = (&'static str, fn(&mut Session<'_>, u32, Answer) -> Step<()>);

const INDICES: [Index; 2] = [("RC::recv", judge_producer), ("Cq::consumer", judge_consumer)];

fn of_indices(checks: &mut Vec<Check>) {
    let rule = Rule::RingIndex;
    let success = Answer::Status(WcStatus::SUCCESS.0);
    for (suffix, cycles) in [("in-range", 0), ("one-cycle", 1), ("many-cycles", 0x10_0001)] {
        for (place, judge) in INDICES {
            let name = format!("ring::{place}::{}-{suffix}", rule.id());
            checks.push(Check::new(name, rule, success, move |session| judge(session, cycles, success)));
        }
    }
}

pub(crate) fn checks() -> Vec<Check> {
    let mut checks = Vec::new();
    of_maps(&mut checks);
    checks.extend(RESIZED.iter().map(|row| row.check("mmap")));
    of_requests(&mut checks);
    of_indices(&mut checks);
    checks
}
