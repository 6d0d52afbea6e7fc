//! Lengths of messages, contents of completions, inline data, and peers that do not answer.

use bareverbs_uapi::rxe::SendWqe;
use bareverbs_uapi::uverbs::types::QpType;
use bareverbs_uapi::verbs_values::{QpState, SendFlags, WcFlags, WcStatus};
use bareverbs_uapi::write::structs::{ModifyQpReq, Wc};
use bareverbs_uapi::write::types::{WcOpcode, WrOpcode};

use super::Device;
use super::operation::{IMMEDIATE, Operation};
use super::trial::{Effect, Requester, Results, Trial, status};
use crate::answer::Answer;
use crate::check::{Bug, Check, EVERY};
use crate::generate::pair::{Options, Pair, RECV_ID, SEND_ID, one_sge};
use crate::rules::Rule;
use crate::session::Session;
use crate::step::{Step, fail};

/// Lengths around the path MTU of 1024 bytes, and up to the size of the receive.
const LENGTHS: [u32; 10] = [0, 1, 3, 4, 1023, 1024, 1025, 2048, 5000, MAXIMUM];
const MAXIMUM: u32 = 8192;

fn of_lengths(checks: &mut Vec<Check>, operation: &'static Operation, qp_type: QpType) {
    let rule = Rule::Operation;
    for length in LENGTHS {
        let mut trial = Trial::new(operation, qp_type);
        trial.length = length;
        trial.receive = |wqe, sge| {
            one_sge(&mut wqe.dma, MAXIMUM);
            sge.length = MAXIMUM;
        };
        let (suffix, results) = (format!("length-{length}"), Results::success(operation));
        checks.push(trial.check(rule, &suffix, "at a path MTU of 1024 bytes", results));
    }
}

/// The opcode of a request's completion.
fn completed(operation: &Operation) -> WcOpcode {
    match operation.opcode {
        WrOpcode::RDMA_WRITE | WrOpcode::RDMA_WRITE_WITH_IMM => WcOpcode::RDMA_WRITE,
        WrOpcode::RDMA_READ => WcOpcode::RDMA_READ,
        WrOpcode::ATOMIC_CMP_AND_SWP => WcOpcode::COMP_SWAP,
        WrOpcode::ATOMIC_FETCH_AND_ADD => WcOpcode::FETCH_ADD,
        WrOpcode::FLUSH => WcOpcode::FLUSH,
        WrOpcode::ATOMIC_WRITE => WcOpcode::ATOMIC_WRITE,
        _ => WcOpcode::SEND,
    }
}

fn has_immediate(operation: &Operation) -> bool {
    [WrOpcode::SEND_WITH_IMM, WrOpcode::RDMA_WRITE_WITH_IMM].contains(&operation.opcode)
}

/// Compares one value of a completion.
fn value(session: &mut Session<'_>, what: &str, expected: u32, got: u32) -> Step<()> {
    session.compare(&what, Answer::Value(expected.into()), Answer::Value(got.into())).map(drop)
}

fn judge_sent(session: &mut Session<'_>, pair: &Pair, operation: &Operation, wc: &Wc) -> Step<()> {
    value(session, "the status of the request", WcStatus::SUCCESS.0, wc.status.0)?;
    value(session, "the opcode of the request's completion", completed(operation).0, wc.opcode.0)?;
    value(session, "the QPN of the request's completion", pair.sender.number, wc.qp_num)?;
    value(session, "the flags of the request's completion", 0, wc.wc_flags.bits())
}

fn judge_received(session: &mut Session<'_>, pair: &Pair, operation: &Operation, wc: &Wc) -> Step<()> {
    let write = operation.opcode == WrOpcode::RDMA_WRITE_WITH_IMM;
    let opcode = if write { WcOpcode::RECV_RDMA_WITH_IMM } else { WcOpcode::RECV };
    value(session, "the status of the receive", WcStatus::SUCCESS.0, wc.status.0)?;
    value(session, "the opcode of the receive's completion", opcode.0, wc.opcode.0)?;
    value(session, "the length of the received message", operation.length, wc.byte_len)?;
    value(session, "the QPN of the receive's completion", pair.receiver.number, wc.qp_num)?;
    let mut flags = if has_immediate(operation) { WcFlags::WITH_IMM } else { WcFlags::empty() };
    // rxe says so of each message; others, of messages whose GRH is in the receive.
    flags.set(WcFlags::GRH, session.is_rxe());
    value(session, "the flags of the receive's completion", flags.bits(), wc.wc_flags.bits())?;
    let immediate = if has_immediate(operation) { IMMEDIATE } else { 0 };
    value(session, "the immediate data", immediate, wc.ex)
}

fn of_completions(checks: &mut Vec<Check>, device: Device, operation: &'static Operation, qp_type: QpType) {
    let rule = Rule::Completion;
    let trial = Trial::new(operation, qp_type);
    let check = Check::new(trial.name(rule, "request"), rule, Answer::Value(0), move |session| {
        let mut pair = trial.post(session)?;
        let wc = pair.completion(SEND_ID)?;
        judge_sent(session, &pair, operation, &wc)
    });
    checks.push(if has_immediate(operation) && device == Device::Rxe {
        check.of_bug(Bug {
            page: "send-completions-carry-the-immediate-flag",
            series: EVERY,
            answer: Answer::Value(WcFlags::WITH_IMM.bits().into()),
        })
    } else {
        check
    });
    if operation.receives {
        let name = trial.name(rule, "receive");
        let immediate = if has_immediate(operation) { IMMEDIATE } else { 0 };
        checks.push(Check::new(name, rule, Answer::Value(immediate.into()), move |session| {
            let mut pair = trial.post(session)?;
            let wc = pair.completion(RECV_ID)?;
            judge_received(session, &pair, operation, &wc)
        }));
    }
}

/// A send whose data is in the WQE, as SGE address and length.
fn inline(wqe: &mut SendWqe, length: u32) {
    wqe.wr.send_flags = SendFlags::SIGNALED | SendFlags::INLINE;
    (wqe.dma.length, wqe.dma.resid, wqe.dma.num_sge) = (length, length, 0);
}

fn of_inline(checks: &mut Vec<Check>, device: Device, operation: &'static Operation, qp_type: QpType) {
    let rule = Rule::Inline;
    let mut trial = Trial::new(operation, qp_type);
    trial.change = |wqe, sge, _, _| {
        inline(wqe, 8);
        sge.addr = u64::from_ne_bytes([super::operation::LOCAL_BYTE; 8]);
    };
    trial.length = 8;
    checks.push(trial.check(rule, "8-bytes", "as inline data", Results::success(operation)));
    if device != Device::Rxe {
        return;
    }
    // The request ends within the mapped queue: the kernel reads no other memory.
    trial.length = 512;
    trial.change = |wqe, _, _, _| inline(wqe, 512);
    trial.receive = |wqe, sge| {
        one_sge(&mut wqe.dma, MAXIMUM);
        sge.length = MAXIMUM;
    };
    let results = Results::not_sent(operation, status(WcStatus::LOC_QP_OP_ERR));
    let check = trial.check(rule, "above-the-limit", "as inline data", results);
    checks.push(check.of_bug(Bug {
        page: "inline-data-is-not-limited",
        series: EVERY,
        answer: status(WcStatus::SUCCESS),
    }));
}

/// A request with a length and no SGE.
fn of_no_sge(checks: &mut Vec<Check>, operation: &'static Operation, qp_type: QpType) {
    let rule = Rule::LocalKey;
    let mut trial = Trial::new(operation, qp_type);
    trial.change = |wqe, _, _, _| wqe.dma.num_sge = 0;
    let results = if operation.responds {
        let requester = Requester::Completes(status(WcStatus::LOC_PROT_ERR).into());
        Results { requester, effect: Effect::Remote, ..Results::success(operation) }
    } else {
        Results::not_sent(operation, status(WcStatus::LOC_QP_OP_ERR))
    };
    let check = trial.check(rule, "no-sge", "with a length and no SGE", results);
    checks.push(check.of_bug(Bug {
        page: "requests-without-sge-use-the-first-one",
        series: EVERY,
        answer: status(WcStatus::SUCCESS),
    }));
}

/// QPs that retry fast: a suffix and their attributes.
type Retries = (&'static str, fn(&mut ModifyQpReq));

const RETRIES: [Retries; 3] = [
    ("no-peer-retry_cnt-0", |request| (request.timeout, request.retry_cnt) = (8, 0)),
    ("no-peer-retry_cnt-1", |request| (request.timeout, request.retry_cnt) = (8, 1)),
    ("no-peer-retry_cnt-6", |request| (request.timeout, request.retry_cnt) = (8, 6)),
];

/// A peer that does not answer.
fn of_no_peer(checks: &mut Vec<Check>, device: Device) {
    let rule = Rule::Retry;
    let expected = status(WcStatus::RETRY_EXC_ERR);
    for operation in device.operations().filter(|operation| operation.on.contains(&QpType::RC)) {
        for (suffix, attributes) in RETRIES {
            let mut trial = Trial::new(operation, QpType::RC);
            trial.options.attributes = attributes;
            checks.push(Check::new(trial.name(rule, suffix), rule, expected, move |session| {
                let mut pair = trial.prepare(session)?;
                pair.receiver.qp.reset(session)?;
                trial.send(session, &mut pair)?;
                let wc = pair.completion(SEND_ID)?;
                let text = format!("{} to a QP in RESET", operation.name);
                session.compare(&text, expected, Answer::Status(wc.status.0)).map(drop)
            }));
        }
    }
}

/// A doorbell in a state: the answer, and the status of the send; `None` if it does not complete.
const DOORBELLS: [(QpState, Answer, Option<WcStatus>); 6] = [
    (QpState::RESET, Answer::INVAL, None),
    (QpState::INIT, Answer::INVAL, None),
    (QpState::RTR, Answer::INVAL, None),
    (QpState::RTS, Answer::Ok, Some(WcStatus::SUCCESS)),
    (QpState::SQD, Answer::Ok, None),
    (QpState::ERR, Answer::Ok, Some(WcStatus::WR_FLUSH_ERR)),
];

fn of_states(checks: &mut Vec<Check>) {
    let rule = Rule::SendState;
    for qp_type in [QpType::RC, QpType::UC] {
        for (state, answer, expected) in DOORBELLS {
            let name = format!("data::{qp_type}::{state}::{}-doorbell", rule.id());
            checks.push(Check::new(name, rule, answer, move |session| {
                let options = Options { unconnected: true, ..Options::of(qp_type) };
                let mut pair = Pair::with(session, &options)?;
                pair.receiver.qp.to(session, QpState::RTS)?;
                pair.sender.qp.to(session, state)?;
                pair.post_recv(0, &|_, _| {})?;
                pair.sender.push_send(&|_, _| {})?;
                let mut call = pair.sender.doorbell(session);
                session.judge(&mut call, answer)?;
                let got = match expected {
                    Some(_) => Some(pair.completion(SEND_ID)?.status),
                    None => pair.pending(SEND_ID).map(|wc| wc.status),
                };
                match (got, expected) {
                    (got, expected) if got == expected => Ok(()),
                    (Some(got), Some(expected)) => {
                        fail(format!("the send completed with {got:?}, expected {expected:?}"))
                    }
                    (got, _) => fail(format!("the send completed with {got:?}")),
                }
            }));
        }
    }
}

pub(crate) fn checks(checks: &mut Vec<Check>, device: Device) {
    for operation in device.operations() {
        for qp_type in operation.on.iter().copied() {
            of_completions(checks, device, operation, qp_type);
            if operation.has_sges() && device == Device::Rxe {
                of_no_sge(checks, operation, qp_type);
            }
            if operation.has_sges() && !operation.is_atomic() {
                of_lengths(checks, operation, qp_type);
                if !operation.responds {
                    of_inline(checks, device, operation, qp_type);
                }
            }
        }
    }
    of_no_peer(checks, device);
    if device == Device::Rxe {
        of_states(checks);
    }
}
