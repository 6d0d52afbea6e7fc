//! Local keys and SGEs that a request must not use.

use bareverbs_uapi::abi::Since;
use bareverbs_uapi::uverbs::types::{AccessFlags, QpType};
use bareverbs_uapi::verbs_values::WcStatus;

use super::Device;
use super::operation::Operation;
use super::trial::{Change, Effect, Requester, Results, Trial, status};
use crate::answer;
use crate::answer::Expect;
use crate::check::Check;
use crate::generate::pair::REGION;
use crate::rules::Rule;

/// rxe reports an SGE beyond its region by another status.
static RXE_RANGE_STATUS: answer::Change = answer::Change {
    name: "rxe-sge-range-status",
    since: Since::V6_12,
    why: "mr_check_range fails with EINVAL since 6.4, which the requester reports as LOC_QP_OP_ERR; before, \
          with EFAULT, reported as LOC_PROT_ERR (sw/rxe/rxe_mr.c: mr_check_range)",
};

/// What is wrong with the SGE of a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// The key names no region that may be used.
    Key,
    /// The range is not in the region.
    Range,
}

const WRONG: [(&str, &str, Fault, Change); 6] = [
    ("key-0", "with the L_Key 0", Fault::Key, |_, sge, _, _| sge.lkey = 0),
    ("key-unknown", "with an L_Key of no region", Fault::Key, |_, sge, _, _| sge.lkey = 0x00de_ad00),
    ("key-low-byte", "with another low byte of the L_Key", Fault::Key, |_, sge, _, _| sge.lkey ^= 0xff),
    ("before", "with an SGE 8 bytes before the region", Fault::Range, |_, sge, _, _| sge.addr -= 8),
    ("across-the-end", "with an SGE across the end of the region", Fault::Range, |_, sge, _, _| {
        sge.addr += REGION as u64 - u64::from(sge.length) + 8;
    }),
    ("behind", "with an SGE behind the region", Fault::Range, |_, sge, _, _| sge.addr += REGION as u64),
];

/// The results of a request with a wrong SGE.
///
/// A response that can't be stored is an error of the completer: the peer has executed the request.
fn results(device: Device, operation: &Operation, fault: Fault) -> Results {
    if operation.responds {
        let requester = Requester::Completes(status(WcStatus::LOC_PROT_ERR).into());
        return Results { requester, effect: Effect::Remote, ..Results::success(operation) };
    }
    let status_of = match fault {
        _ if device == Device::Mlx5 => status(WcStatus::LOC_PROT_ERR).into(),
        Fault::Key => status(WcStatus::LOC_QP_OP_ERR).into(),
        Fault::Range => Expect::Changed {
            change: &RXE_RANGE_STATUS,
            before: status(WcStatus::LOC_PROT_ERR),
            after: status(WcStatus::LOC_QP_OP_ERR),
        },
    };
    Results::not_sent(operation, status_of)
}

fn of_operation(checks: &mut Vec<Check>, device: Device, operation: &'static Operation, qp_type: QpType) {
    let rule = Rule::LocalKey;
    for (suffix, title, fault, change) in WRONG {
        let trial = Trial { change, ..Trial::new(operation, qp_type) };
        checks.push(trial.check(rule, suffix, title, results(device, operation, fault)));
    }
    // Sends and writes only read the region. Responses need LOCAL_WRITE.
    let mut trial = Trial::new(operation, qp_type);
    trial.options.local = AccessFlags::empty();
    let results =
        if operation.responds { results(device, operation, Fault::Key) } else { Results::success(operation) };
    checks.push(trial.check(rule, "read-only", "with a region without LOCAL_WRITE", results));
}

pub(crate) fn checks(checks: &mut Vec<Check>, device: Device) {
    for operation in device.operations().filter(|operation| operation.has_sges()) {
        for qp_type in operation.on.iter().copied() {
            of_operation(checks, device, operation, qp_type);
        }
    }
}
