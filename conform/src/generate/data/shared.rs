//! Receives of an SRQ.

use bareverbs_uapi::method::UHW_IN;
use bareverbs_uapi::rxe::{RecvWqe, Sge};
use bareverbs_uapi::uverbs::types::QpType;
use bareverbs_uapi::verbs_values::{EventType, QpState, SrqAttrMask, WcStatus};
use bareverbs_uapi::write::structs::ModifySrqReq;
use bareverbs_uapi::write::types::WrOpcode;
use bareverbs_uapi::write::{self, WriteCommand};
use zerocopy::{FromZeros, IntoBytes};

use super::Device;
use super::operation::Operation;
use super::receive::{self, Fault};
use super::rights::judge_event;
use super::trial::{Trial, status, wait_state};
use super::windows::aim;
use crate::answer::Answer;
use crate::call::Slot;
use crate::check::Check;
use crate::generate::pair::{LENGTH, Options, Pair, RECV_ID, SEND_ID, one_sge};
use crate::rules::Rule;
use crate::session::Session;
use crate::step::{Step, fail};

/// A request whose receiver has an SRQ.
fn shared(operation: &'static Operation, qp_type: QpType) -> Trial {
    let mut trial = Trial::new(operation, qp_type);
    trial.options.srq = true;
    trial
}

fn name(operation: &str, qp_type: QpType, suffix: &str) -> String {
    format!("data::{qp_type}::{operation}::{}-{suffix}", Rule::SharedReceive.id())
}

/// A receive of an SRQ: a suffix, what is wrong with it, and its change.
type Taken = (&'static str, Fault, fn(&mut RecvWqe, &mut Sge));

const TAKEN: [Taken; 3] = [
    ("good", Fault::Fits, |_, _| {}),
    ("one-byte-short", Fault::Short, |wqe, sge| {
        one_sge(&mut wqe.dma, LENGTH - 1);
        sge.length = LENGTH - 1;
    }),
    ("key-low-byte", Fault::Memory, |_, sge| sge.lkey ^= 0xff),
];

fn of_operation(checks: &mut Vec<Check>, device: Device, operation: &'static Operation, qp_type: QpType) {
    for (suffix, fault, receive) in TAKEN {
        let trial = Trial { receive, ..shared(operation, qp_type) };
        let results = receive::results(device, operation, qp_type, fault);
        checks.push(trial.check(Rule::SharedReceive, suffix, format!("from an SRQ: {suffix}"), results));
    }
    of_violation(checks, operation, qp_type);
    of_empty(checks, operation, qp_type);
}

/// A QP that goes to ERR leaves the receives of its SRQ posted.
fn of_violation(checks: &mut Vec<Check>, operation: &'static Operation, qp_type: QpType) {
    if qp_type != QpType::RC || operation.has_key() {
        return;
    }
    let rule = Rule::SharedReceive;
    let name = name(operation.name, qp_type, "error-keeps-receives");
    checks.push(Check::new(name, rule, Answer::Nothing, move |session| {
        let mut pair = Pair::with(session, &Options { srq: true, ..Options::of(qp_type) })?;
        pair.post_recv(0, &|_, _| {})?;
        let (start, rkey) = (pair.receiver.region.start, pair.receiver.region.rkey ^ 0xff);
        pair.post_send(session, &|wqe, _| aim(wqe, WrOpcode::RDMA_WRITE, start, rkey))?;
        pair.completion(SEND_ID)?;
        wait_state(session, &pair.receiver, QpState::ERR, "receiver")?;
        let got = pair.pending(RECV_ID).map_or(Answer::Nothing, |wc| status(wc.status));
        session.compare(&"the receive of an SRQ whose QP is in ERR", Answer::Nothing, got).map(drop)
    }));
}

/// A message without a receive in the SRQ.
fn of_empty(checks: &mut Vec<Check>, operation: &'static Operation, qp_type: QpType) {
    let expected = if qp_type == QpType::RC { WcStatus::RNR_RETRY_EXC_ERR } else { WcStatus::SUCCESS };
    let mut trial = shared(operation, qp_type);
    trial.options.attributes = |request| (request.rnr_retry, request.min_rnr_timer.0) = (0, 1);
    let name = name(operation.name, qp_type, "no-receive");
    checks.push(Check::new(name, Rule::SharedReceive, status(expected), move |session| {
        let mut pair = trial.post_with(session, false)?;
        let wc = pair.completion(SEND_ID)?;
        let text = format!("{} to an empty SRQ", operation.name);
        session.compare(&text, status(expected), status(wc.status)).map(drop)
    }));
}

/// Receives are taken in the order of their posting, and name the QP.
fn of_order(checks: &mut Vec<Check>, qp_type: QpType) {
    let rule = Rule::SharedReceive;
    let expected = Answer::Value(RECV_ID);
    checks.push(Check::new(name("SEND", qp_type, "oldest-first"), rule, expected, move |session| {
        let mut pair = Pair::with(session, &Options { srq: true, ..Options::of(qp_type) })?;
        for wr_id in [RECV_ID, RECV_ID + 1] {
            pair.post_recv(0, &|wqe, _| wqe.wr_id = wr_id)?;
        }
        pair.post_send(session, &|_, _| {})?;
        pair.completion(SEND_ID)?;
        let wc = pair.completion(RECV_ID)?;
        if wc.qp_num != pair.receiver.number {
            return fail(format!("the completion names QP {:#x}", wc.qp_num));
        }
        let second = pair.pending(RECV_ID + 1);
        let got = Answer::Value(if second.is_none() { wc.wr_id } else { RECV_ID + 1 });
        session.compare(&"the receive that a message takes from an SRQ", expected, got).map(drop)
    }));
}

/// The SRQ limit raises its event once, when fewer receives are left.
fn of_limit(checks: &mut Vec<Check>) {
    let rule = Rule::SharedReceive;
    let reached = Answer::Value(EventType::SRQ_LIMIT_REACHED.0.into());
    for (suffix, limit, expected) in [("limit-reached", 2, reached), ("limit-not-reached", 1, Answer::AGAIN)]
    {
        checks.push(Check::new(name("SEND", QpType::RC, suffix), rule, expected, move |session| {
            session.context()?;
            let fd = session.async_fd()?;
            let mut pair = Pair::with(session, &Options { srq: true, ..Options::of(QpType::RC) })?;
            for _ in 0..2 {
                pair.post_recv(0, &|_, _| {})?;
            }
            arm(session, &pair, limit)?;
            pair.post_send(session, &|_, _| {})?;
            pair.completion(RECV_ID)?;
            judge_event(session, fd, "the event of an SRQ with one receive left", expected.into())
        }));
    }
}

/// Sets the limit of the receiver's SRQ.
fn arm(session: &mut Session<'_>, pair: &Pair, limit: u32) -> Step<()> {
    let mut request = ModifySrqReq::new_zeroed();
    let Some(srq) = pair.receiver.srq else { return fail("the receiver has no SRQ") };
    (request.srq_handle, request.srq_limit, request.attr_mask) = (srq, limit, SrqAttrMask::LIMIT);
    let mut call = session.command(write::ModifySrq::INFO.number, request.as_bytes(), 0, 0);
    if session.is_rxe() {
        call = call.with(Slot::number(UHW_IN, 0));
    }
    session.prepare(&mut call)
}

pub(crate) fn checks(checks: &mut Vec<Check>, device: Device) {
    for operation in device.operations().filter(|operation| operation.receives) {
        for qp_type in operation.on.iter().copied() {
            of_operation(checks, device, operation, qp_type);
        }
    }
    of_order(checks, QpType::RC);
    of_order(checks, QpType::UC);
    of_limit(checks);
}
