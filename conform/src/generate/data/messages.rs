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
use crate::check::{Bug, Check};
use crate::generate::pair::{Options, Pair, RECV_ID, SEND_ID, one_sge};
use crate::rules::Rule;
use crate::session::{Session, Step, fail};
use bareverbs_uapi::abi::Since;

/// All checked series.
const EVERY: &[Since] = &[Since::V6_1, Since::V6_12, Since::V7_2, Since::V7_3];

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
        let results = Results::success(operation);
        let name = format!("data::{qp_type}::{}::{}-length-{length}", operation.name, rule.id());
        checks.push(Check::new(name, rule, results.expect(), move |session| {
            trial.judge(session, "at a path MTU of 1024 bytes", &results)
        }));
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
    let name = format!("data::{qp_type}::{}::{}-request", operation.name, rule.id());
    let check = Check::new(name, rule, Answer::Value(0), move |session| {
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
        let name = format!("data::{qp_type}::{}::{}-receive", operation.name, rule.id());
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
    let mut results = Results::success(operation);
    trial.length = 8;
    let name = format!("data::{qp_type}::{}::{}-8-bytes", operation.name, rule.id());
    checks.push(Check::new(name, rule, results.expect(), move |session| {
        trial.judge(session, "as inline data", &results)
    }));
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
    results = Results::not_sent(operation, status(WcStatus::LOC_QP_OP_ERR));
    let name = format!("data::{qp_type}::{}::{}-above-the-limit", operation.name, rule.id());
    let check = Check::new(name, rule, results.expect(), move |session| {
        trial.judge(session, "as inline data", &results)
    });
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
    let name = format!("data::{qp_type}::{}::{}-no-sge", operation.name, rule.id());
    let check = Check::new(name, rule, results.expect(), move |session| {
        trial.judge(session, "with a length and no SGE", &results)
    });
    checks.push(check.of_bug(Bug {
        page: "requests-without-sge-use-the-first-one",
        series: EVERY,
        answer: status(WcStatus::SUCCESS),
    }));
}

/// Changes the attributes of QPs.
type Attributes = fn(&mut ModifyQpReq);

/// A peer that does not answer.
fn of_no_peer(checks: &mut Vec<Check>, device: Device) {
    let rule = Rule::Retry;
    let expected = status(WcStatus::RETRY_EXC_ERR);
    let fast: [(&str, Attributes); 3] = [
        ("retry_cnt-0", |request| (request.timeout, request.retry_cnt) = (8, 0)),
        ("retry_cnt-1", |request| (request.timeout, request.retry_cnt) = (8, 1)),
        ("retry_cnt-6", |request| (request.timeout, request.retry_cnt) = (8, 6)),
    ];
    for operation in device.operations().filter(|operation| operation.on.contains(&QpType::RC)) {
        for (suffix, attributes) in fast {
            let mut trial = Trial::new(operation, QpType::RC);
            trial.options.attributes = attributes;
            let name = format!("data::RC::{}::{}-no-peer-{suffix}", operation.name, rule.id());
            checks.push(Check::new(name, rule, expected, move |session| {
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

/// A doorbell in each state.
fn of_states(checks: &mut Vec<Check>) {
    let rule = Rule::SendState;
    let states = [
        (QpState::RESET, Answer::INVAL),
        (QpState::INIT, Answer::INVAL),
        (QpState::RTR, Answer::INVAL),
        (QpState::RTS, Answer::Ok),
        (QpState::SQD, Answer::Ok),
        (QpState::ERR, Answer::Ok),
    ];
    for qp_type in [QpType::RC, QpType::UC] {
        for (state, answer) in states {
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
                let expected = match state {
                    QpState::RTS => Some(WcStatus::SUCCESS),
                    QpState::ERR => Some(WcStatus::WR_FLUSH_ERR),
                    _ => None,
                };
                match expected {
                    Some(expected) => {
                        let wc = pair.completion(SEND_ID)?;
                        if wc.status == expected {
                            Ok(())
                        } else {
                            fail(format!("the send completed with {:?}, expected {expected:?}", wc.status))
                        }
                    }
                    None => match pair.pending(SEND_ID) {
                        None => Ok(()),
                        Some(wc) => fail(format!("the send completed with {:?}", wc.status)),
                    },
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
