//! Remote keys and addresses that a request must not use.

use bareverbs_uapi::rxe::{AtomicWr, FlushWr, RdmaWr, SendWqe, Sge};
use bareverbs_uapi::uverbs::ObjectClass;
use bareverbs_uapi::uverbs::types::QpType;
use bareverbs_uapi::verbs_values::WcStatus;
use bareverbs_uapi::write::types::WrOpcode;

use super::Device;
use super::operation::Operation;
use super::trial::{Change, Effect, Results, Trial, status};
use crate::answer::Answer;
use crate::check::Check;
use crate::generate::pair::{REGION, Region, SEND_ID};
use crate::rules::Rule;
use crate::step::fail;

/// The R_Key that a request has.
fn rkey(wqe: &SendWqe, operation: &Operation) -> u32 {
    if operation.is_atomic() {
        wqe.wr.get::<AtomicWr>().rkey
    } else if operation.opcode == WrOpcode::FLUSH {
        wqe.wr.get::<FlushWr>().rkey
    } else {
        wqe.wr.get::<RdmaWr>().rkey
    }
}

/// Moves the target of a request by some bytes.
fn shift(wqe: &mut SendWqe, operation: &Operation, bytes: u64) {
    let (target, rkey) = (wqe.iova.wrapping_add(bytes), rkey(wqe, operation));
    operation.aim(wqe, target, rkey);
}

/// A key or an address that the region does not allow.
const WRONG: [(&str, &str, Change); 8] = [
    ("key-0", "with the R_Key 0", |wqe, _, operation, region| operation.aim(wqe, region.start, 0)),
    ("key-unknown", "with an R_Key of no region", |wqe, _, operation, region| {
        operation.aim(wqe, region.start, 0x00de_ad00);
    }),
    ("key-low-byte", "with another low byte of the R_Key", |wqe, _, operation, region| {
        operation.aim(wqe, region.start, region.rkey ^ 0xff);
    }),
    ("key-window", "with an R_Key of no window", |wqe, _, operation, region| {
        operation.aim(wqe, region.start, 0x00ff_ff01);
    }),
    ("address-0", "at address 0", |wqe, _, operation, region| operation.aim(wqe, 0, region.rkey)),
    ("before", "8 bytes before the region", |wqe, _, operation, _| {
        shift(wqe, operation, 8_u64.wrapping_neg())
    }),
    ("across-the-end", "with its last byte behind the region", |wqe, _, operation, _| {
        let len = u64::from(wqe.dma.length);
        shift(wqe, operation, REGION as u64 - len + 8);
    }),
    ("behind", "behind the region", |wqe, _, operation, _| shift(wqe, operation, REGION as u64)),
];

fn violated(device: Device, operation: &Operation, qp_type: QpType) -> Results {
    if qp_type == QpType::RC {
        Results::refused(operation, WcStatus::REM_ACCESS_ERR, device.receive_of_violation())
    } else {
        Results::dropped(operation)
    }
}

/// A request that wraps around the end of the address space.
fn wrapping(wqe: &mut SendWqe, _: &mut Sge, operation: &Operation, region: &Region) {
    let len = u64::from(wqe.dma.length);
    operation.aim(wqe, 0_u64.wrapping_sub(len), region.rkey);
}

/// An atomic at an address that is not a multiple of 8.
fn unaligned(wqe: &mut SendWqe, _: &mut Sge, operation: &Operation, _: &Region) {
    shift(wqe, operation, 4);
}

/// An empty request with an R_Key of no region.
fn empty(wqe: &mut SendWqe, _: &mut Sge, operation: &Operation, _: &Region) {
    operation.aim(wqe, 0x1000, 0x00de_ad00);
}

pub(crate) fn checks(checks: &mut Vec<Check>, device: Device) {
    let rule = Rule::RemoteKey;
    for operation in device.operations().filter(|operation| operation.has_key()) {
        of_regions(checks, operation);
        for qp_type in operation.on.iter().copied() {
            let trial = Trial::new(operation, qp_type);
            let violated = violated(device, operation, qp_type);
            for (suffix, title, change) in WRONG {
                checks.push(Trial { change, ..trial }.check(rule, suffix, title, violated));
            }
            let wraps = Trial { change: wrapping, ..trial };
            let mut wraps = wraps.check(rule, "wraps", "with its end behind the last address", violated);
            if device == Device::Rxe {
                wraps.hazard = Some("6.12 before 6.12.112 and 7.2 before 7.2.8 use a wild pointer");
            }
            checks.push(wraps);
            if !operation.is_atomic() && operation.opcode != WrOpcode::ATOMIC_WRITE {
                // An empty read or write needs no R_Key (C9-88).
                let results = match operation.opcode {
                    WrOpcode::FLUSH => violated,
                    _ => Results { effect: Effect::None, ..Results::success(operation) },
                };
                let trial = Trial { length: 0, change: empty, ..trial };
                checks.push(trial.check(rule, "empty", "with an R_Key of no region", results));
            }
            // The provider of mlx5 accepts aligned atomics only.
            if operation.length == 8 && device == Device::Rxe {
                let results = Results::refused(operation, WcStatus::REM_INV_REQ_ERR, WcStatus::WR_FLUSH_ERR);
                let trial = Trial { change: unaligned, ..trial };
                checks.push(trial.check(rule, "unaligned", "4 bytes behind a multiple of 8", results));
            }
        }
    }
}

/// Keys of regions that are gone or belong to another PD.
fn of_regions(checks: &mut Vec<Check>, operation: &'static Operation) {
    let rule = Rule::RemoteKey;
    let expected = status(WcStatus::REM_ACCESS_ERR);
    for (suffix, foreign) in [("key-deregistered", false), ("key-of-another-pd", true)] {
        let trial = Trial::new(operation, QpType::RC);
        checks.push(Check::new(trial.name(rule, suffix), rule, expected, move |session| {
            let mut pair = trial.prepare(session)?;
            if operation.receives {
                pair.post_recv(0, &|_, _| {})?;
            }
            let region = &mut pair.receiver.region;
            if foreign {
                let pd = session.pd()?;
                *region = Region::new(session, pd, region.offset, trial.options.remote)?;
            } else if session.destroy(ObjectClass::MR.0, region.handle)? != Answer::Ok {
                return fail("the region can't be deregistered");
            }
            trial.send(session, &mut pair)?;
            let wc = pair.completion(SEND_ID)?;
            let text = format!("{} with a {suffix}", operation.name);
            session.compare(&text, expected, Answer::Status(wc.status.0)).map(drop)
        }));
    }
}
