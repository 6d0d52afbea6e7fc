//! Receives that do not fit the message, and messages without a receive.

use bareverbs_uapi::rxe::{RecvWqe, Sge};
use bareverbs_uapi::uverbs::types::{AccessFlags, QpType};
use bareverbs_uapi::verbs_values::WcStatus;
use bareverbs_uapi::write::structs::ModifyQpReq;
use bareverbs_uapi::write::types::WrOpcode;

use super::Device;
use super::operation::Operation;
use super::trial::{Results, Trial, status};
use crate::check::Check;
use crate::generate::pair::{LENGTH, REGION, SEND_ID, one_sge};
use crate::rules::Rule;

/// What is wrong with a receive.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Fault {
    /// Nothing.
    Fits,
    /// It is shorter than the message.
    Short,
    /// Its memory may not be used.
    Memory,
}

type Wrong = (&'static str, &'static str, Fault, fn(&mut RecvWqe, &mut Sge));

const WRONG: [Wrong; 7] = [
    ("longer", "with a receive of twice the length", Fault::Fits, |wqe, sge| {
        one_sge(&mut wqe.dma, 2 * LENGTH);
        sge.length = 2 * LENGTH;
    }),
    ("one-byte-short", "with a receive that is one byte too short", Fault::Short, |wqe, sge| {
        one_sge(&mut wqe.dma, LENGTH - 1);
        sge.length = LENGTH - 1;
    }),
    ("empty", "with a receive without SGE", Fault::Short, |wqe, sge| {
        (wqe.dma.length, wqe.dma.resid, wqe.dma.num_sge) = (0, 0, 0);
        sge.length = 0;
    }),
    ("key-unknown", "with a receive whose L_Key is unknown", Fault::Memory, |_, sge| {
        sge.lkey = 0x00de_ad00;
    }),
    ("key-low-byte", "with a receive that has another low byte of the L_Key", Fault::Memory, |_, sge| {
        sge.lkey ^= 0xff;
    }),
    ("behind", "with a receive behind its region", Fault::Memory, |_, sge| sge.addr += REGION as u64),
    ("before", "with a receive before its region", Fault::Memory, |_, sge| sge.addr -= REGION as u64),
];

/// The results of a message with this receive. rxe reports a short receive like one whose memory may not
/// be used, and so at both sides (docs/kernel-bugs.md: statuses).
pub(super) fn results(device: Device, operation: &Operation, qp_type: QpType, fault: Fault) -> Results {
    // The data of a write goes to its own target.
    if fault == Fault::Fits || operation.opcode == WrOpcode::RDMA_WRITE_WITH_IMM {
        return Results::success(operation);
    }
    let mut results = match (device, fault) {
        (Device::Rxe, _) => Results::refused(operation, WcStatus::REM_OP_ERR, WcStatus::LOC_QP_OP_ERR),
        (Device::Mlx5, Fault::Short) => {
            Results::refused(operation, WcStatus::REM_INV_REQ_ERR, WcStatus::LOC_LEN_ERR)
        }
        (Device::Mlx5, _) => Results::refused(operation, WcStatus::REM_OP_ERR, WcStatus::LOC_PROT_ERR),
    };
    if qp_type == QpType::UC {
        // The requester has no answer.
        results.requester = Results::success(operation).requester;
    }
    results
}

fn of_operation(checks: &mut Vec<Check>, device: Device, operation: &'static Operation, qp_type: QpType) {
    let rule = Rule::ReceiveBuffer;
    for (suffix, title, fault, receive) in WRONG {
        let trial = Trial { receive, ..Trial::new(operation, qp_type) };
        checks.push(trial.check(rule, suffix, title, results(device, operation, qp_type, fault)));
    }
    if operation.has_key() {
        return;
    }
    let mut trial = Trial::new(operation, qp_type);
    trial.options.remote = AccessFlags::empty();
    let results = results(device, operation, qp_type, Fault::Memory);
    checks.push(trial.check(rule, "read-only", "with a receive in a region without LOCAL_WRITE", results));
}

/// Posting without a receive: a suffix, the value of `rnr_retry`, and the attributes of the QPs.
type Retries = (&'static str, u8, fn(&mut ModifyQpReq));

const RETRIES: [Retries; 2] = [
    ("no-receive-without-retry", 0, |request| (request.rnr_retry, request.min_rnr_timer.0) = (0, 1)),
    ("no-receive-one-retry", 1, |request| (request.rnr_retry, request.min_rnr_timer.0) = (1, 1)),
];

/// A message without a receive: RC retries `rnr_retry` times, UC drops it.
fn of_none(checks: &mut Vec<Check>, operation: &'static Operation, qp_type: QpType) {
    let rule = Rule::Retry;
    let expected = if qp_type == QpType::RC { WcStatus::RNR_RETRY_EXC_ERR } else { WcStatus::SUCCESS };
    for (suffix, retries, attributes) in RETRIES {
        let mut trial = Trial::new(operation, qp_type);
        trial.options.attributes = attributes;
        checks.push(Check::new(trial.name(rule, suffix), rule, status(expected), move |session| {
            let mut pair = trial.post_with(session, false)?;
            let wc = pair.completion(SEND_ID)?;
            let text = format!("{} without a receive and rnr_retry {retries}", operation.name);
            session.compare(&text, status(expected), status(wc.status)).map(drop)
        }));
    }
}

pub(crate) fn checks(checks: &mut Vec<Check>, device: Device) {
    for operation in device.operations().filter(|operation| operation.receives) {
        for qp_type in operation.on.iter().copied() {
            of_operation(checks, device, operation, qp_type);
            of_none(checks, operation, qp_type);
        }
    }
}
