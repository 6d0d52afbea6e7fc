//! Access rights: of the receiver's QP, and of its key.

use std::thread::sleep;
use std::time::{Duration, Instant};

use bareverbs_uapi::uverbs::types::{AccessFlags, QpType};
use bareverbs_uapi::verbs_values::{EventType, WcStatus};
use bareverbs_uapi::write::types::WrOpcode;

use super::Device;
use super::operation::Operation;
use super::trial::{Results, Trial};
use crate::answer::{Answer, Change, Expect};
use crate::check::Check;
use crate::generate::pair::SEND_ID;
use crate::rules::Rule;
use crate::session::Session;
use crate::step::Step;
use bareverbs_uapi::abi::Since;
use rustix::io::Errno;

/// Timeout of an event that follows a completion.
const TIMEOUT: Duration = Duration::from_secs(5);

/// rxe reports violations of keys as events.
static RXE_ACCESS_EVENT: Change = Change {
    name: "rxe-access-event",
    since: Since::V7_2,
    why: "the responder raises QP_ACCESS_ERR for an R_Key violation without a receive \
          (sw/rxe/rxe_resp.c: get_rkey_violation_state); before, it raised no event",
};

/// The rights that a set has all subsets of.
const RIGHTS: [(AccessFlags, &str); 3] = [
    (AccessFlags::REMOTE_WRITE, "write"),
    (AccessFlags::REMOTE_READ, "read"),
    (AccessFlags::REMOTE_ATOMIC, "atomic"),
];

/// All sets of rights with their names. An operation with another right has the empty and the full set.
fn sets(operation: &Operation) -> Vec<(String, AccessFlags)> {
    if !RIGHTS.iter().any(|(right, _)| *right == operation.right) {
        let others = RIGHTS.iter().fold(AccessFlags::empty(), |all, (right, _)| all | *right);
        return vec![
            ("none".to_owned(), AccessFlags::empty()),
            ("others".to_owned(), others),
            ("own".to_owned(), operation.right),
        ];
    }
    (0..1 << RIGHTS.len())
        .map(|bits: usize| {
            let chosen: Vec<_> = RIGHTS
                .iter()
                .enumerate()
                .filter(|(bit, _)| bits >> bit & 1 == 1)
                .map(|(_, one)| one)
                .collect();
            let names: Vec<_> = chosen.iter().map(|(_, name)| *name).collect();
            let set = chosen.iter().fold(AccessFlags::empty(), |all, (right, _)| all | *right);
            (if names.is_empty() { "none".to_owned() } else { names.join("+") }, set)
        })
        .collect()
}

fn of_qp(checks: &mut Vec<Check>, operation: &'static Operation, qp_type: QpType) {
    let rule = Rule::QpAccess;
    for (set, access) in sets(operation) {
        let results = match qp_type {
            _ if access.contains(operation.right) => Results::success(operation),
            QpType::RC => Results::refused(operation, WcStatus::REM_INV_REQ_ERR, WcStatus::WR_FLUSH_ERR),
            _ => Results::dropped(operation),
        };
        let mut trial = Trial::new(operation, qp_type);
        trial.options.access = access;
        checks.push(trial.check(rule, &set, "with these rights of the QP", results));
    }
}

fn of_key(checks: &mut Vec<Check>, device: Device, operation: &'static Operation, qp_type: QpType) {
    let rule = Rule::RemoteKey;
    for (set, access) in sets(operation) {
        let results = match qp_type {
            _ if access.contains(operation.right) => Results::success(operation),
            QpType::RC => {
                Results::refused(operation, WcStatus::REM_ACCESS_ERR, device.receive_of_violation())
            }
            _ => Results::dropped(operation),
        };
        let mut trial = Trial::new(operation, qp_type);
        trial.options.remote = access | AccessFlags::LOCAL_WRITE;
        let suffix = format!("rights-{set}");
        checks.push(trial.check(rule, &suffix, "with these rights of the key", results));
    }
}

/// The event of the receiver after a violation of its key.
fn of_event(checks: &mut Vec<Check>, device: Device, operation: &'static Operation) {
    let rule = Rule::AccessEvent;
    let event = Answer::Value(EventType::QP_ACCESS_ERR.0.into());
    let immediate = operation.opcode == WrOpcode::RDMA_WRITE_WITH_IMM;
    let expect = if device == Device::Mlx5 {
        event.into()
    } else if immediate {
        Answer::AGAIN.into()
    } else {
        Expect::Changed { change: &RXE_ACCESS_EVENT, before: Answer::AGAIN, after: event }
    };
    let name = format!("data::RC::{}::{}", operation.name, rule.id());
    checks.push(Check::new(name, rule, expect, move |session| {
        session.context()?;
        let fd = session.async_fd()?;
        let mut trial = Trial::new(operation, QpType::RC);
        trial.options.remote = AccessFlags::LOCAL_WRITE;
        let mut pair = trial.post(session)?;
        pair.completion(SEND_ID)?;
        judge_event(session, fd, "the event of a request whose R_Key does not allow it", expect)
    }));
}

/// Judges the next event of a descriptor.
pub(super) fn judge_event(session: &mut Session<'_>, fd: i32, text: &str, expect: Expect) -> Step<()> {
    let mut bytes = [0; 16];
    let begin = Instant::now();
    let awaited = !session.is_rxe() && expect.on(session.series) != Answer::AGAIN;
    let got = loop {
        match session.file().read(fd, &mut bytes) {
            Ok(_) => {
                let [.., a, b, c, d, _, _, _, _] = bytes;
                break Answer::Value(u32::from_ne_bytes([a, b, c, d]).into());
            }
            // The events of rxe precede the completion.
            Err(Errno::AGAIN) if awaited && begin.elapsed() < TIMEOUT => {
                sleep(Duration::from_millis(1));
            }
            Err(errno) => break Answer::errno(errno),
        }
    };
    session.compare(&text, expect.on(session.series), got).map(drop)
}

pub(crate) fn checks(checks: &mut Vec<Check>, device: Device) {
    for operation in device.operations().filter(|operation| operation.has_key()) {
        for qp_type in operation.on {
            of_qp(checks, operation, *qp_type);
            of_key(checks, device, operation, *qp_type);
        }
        of_event(checks, device, operation);
    }
}
