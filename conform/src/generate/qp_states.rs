//! The state machine of queue pairs: every transition, and every attribute of it.

use std::thread::sleep;
use std::time::{Duration, Instant};

use bareverbs_uapi::abi::Since;
use bareverbs_uapi::uverbs::ObjectClass;
use bareverbs_uapi::uverbs::types::QpType;
use bareverbs_uapi::verbs_values::{QpAttrMask as Mask, QpState};
use bareverbs_uapi::write::structs::{ModifyQpReq, QueryQpReq, QueryQpResp};
use bareverbs_uapi::write::{self, WriteCommand};
use zerocopy::{FromZeros, IntoBytes};

use crate::answer::{Answer, Change, Expect};
use crate::check::{Check, Row, row};
use crate::rules::Rule;
use crate::session::Session;
use crate::step::{Step, fail, skip};

/// rxe judges the mask by the state table only with `IB_QP_STATE`.
pub(crate) static RXE_MASK_WITHOUT_STATE: Change = Change {
    name: "rxe-modify-qp-mask-without-state",
    since: Since::V6_12,
    why: "rxe consults ib_modify_qp_is_ok only if the mask has IB_QP_STATE (sw/rxe/rxe_qp.c: \
          rxe_qp_from_attr); before, rxe_qp_chk_attr always did",
};

/// The transports that rxe has.
const TYPES: [(QpType, &str); 3] = [(QpType::RC, "RC"), (QpType::UC, "UC"), (QpType::UD, "UD")];

/// The states that a QP can be brought to. SQE is entered by a failed request only.
const REACHABLE: [QpState; 6] =
    [QpState::RESET, QpState::INIT, QpState::RTR, QpState::RTS, QpState::SQD, QpState::ERR];

const ALL: [QpState; 7] =
    [QpState::RESET, QpState::INIT, QpState::RTR, QpState::RTS, QpState::SQD, QpState::SQE, QpState::ERR];

/// The attributes that one bit selects each, without STATE.
const ATTRIBUTES: [Mask; 20] = [
    Mask::CUR_STATE,
    Mask::EN_SQD_ASYNC_NOTIFY,
    Mask::ACCESS_FLAGS,
    Mask::PKEY_INDEX,
    Mask::PORT,
    Mask::QKEY,
    Mask::AV,
    Mask::PATH_MTU,
    Mask::TIMEOUT,
    Mask::RETRY_CNT,
    Mask::RNR_RETRY,
    Mask::RQ_PSN,
    Mask::MAX_QP_RD_ATOMIC,
    Mask::ALT_PATH,
    Mask::MIN_RNR_TIMER,
    Mask::SQ_PSN,
    Mask::MAX_DEST_RD_ATOMIC,
    Mask::PATH_MIG_STATE,
    Mask::CAP,
    Mask::DEST_QPN,
];

/// Required and optional attributes of a transition; `None` if there is no such transition.
/// `qp_state_table` of core/verbs.c.
pub(crate) fn table(from: QpState, to: QpState, qp_type: QpType) -> Option<(Mask, Mask)> {
    let none = Mask::empty();
    let rc = qp_type == QpType::RC;
    let ud = qp_type == QpType::UD;
    // The attributes of a path that is not in use yet.
    let early = if ud { Mask::QKEY } else { Mask::ACCESS_FLAGS };
    // The optional attributes of a QP that sends.
    let late = if ud {
        Mask::CUR_STATE | Mask::QKEY
    } else {
        let rnr = if rc { Mask::MIN_RNR_TIMER } else { none };
        Mask::CUR_STATE | Mask::ALT_PATH | Mask::ACCESS_FLAGS | Mask::PATH_MIG_STATE | rnr
    };
    Some(match (from, to) {
        (_, QpState::RESET) => (none, none),
        (QpState::RESET, QpState::ERR) => return None,
        (_, QpState::ERR) => (none, none),
        (QpState::RESET, QpState::INIT) => (Mask::PKEY_INDEX | Mask::PORT | early, none),
        (QpState::INIT, QpState::INIT) => (none, Mask::PKEY_INDEX | Mask::PORT | early),
        (QpState::INIT, QpState::RTR) if ud => (none, Mask::PKEY_INDEX | Mask::QKEY),
        (QpState::INIT, QpState::RTR) => {
            let responder = if rc { Mask::MAX_DEST_RD_ATOMIC | Mask::MIN_RNR_TIMER } else { none };
            (
                Mask::AV | Mask::PATH_MTU | Mask::DEST_QPN | Mask::RQ_PSN | responder,
                Mask::ALT_PATH | Mask::ACCESS_FLAGS | Mask::PKEY_INDEX,
            )
        }
        (QpState::RTR, QpState::RTS) => {
            let requester = Mask::TIMEOUT | Mask::RETRY_CNT | Mask::RNR_RETRY | Mask::MAX_QP_RD_ATOMIC;
            (if rc { requester | Mask::SQ_PSN } else { Mask::SQ_PSN }, late)
        }
        (QpState::RTS | QpState::SQD, QpState::RTS) => (none, late),
        (QpState::RTS, QpState::SQD) => (none, Mask::EN_SQD_ASYNC_NOTIFY),
        (QpState::SQD, QpState::SQD) if ud => (none, Mask::PKEY_INDEX | Mask::QKEY),
        (QpState::SQD, QpState::SQD) => {
            let path =
                Mask::AV | Mask::ALT_PATH | Mask::ACCESS_FLAGS | Mask::PKEY_INDEX | Mask::PATH_MIG_STATE;
            let timers = Mask::PORT
                | Mask::TIMEOUT
                | Mask::RETRY_CNT
                | Mask::RNR_RETRY
                | Mask::MAX_QP_RD_ATOMIC
                | Mask::MAX_DEST_RD_ATOMIC
                | Mask::MIN_RNR_TIMER;
            (none, if rc { path | timers } else { path })
        }
        _ => return None,
    })
}

/// Whether the table accepts a mask.
pub(crate) fn accepts(from: QpState, to: QpState, qp_type: QpType, mask: Mask) -> bool {
    let sends = [QpState::RTR, QpState::RTS, QpState::SQD, QpState::SQE].contains(&from);
    if mask.contains(Mask::CUR_STATE) && !sends {
        return false;
    }
    // The core adds the port to a path, except in a transition to RTR.
    let port = if mask.contains(Mask::AV) && to != QpState::RTR { Mask::PORT } else { Mask::empty() };
    table(from, to, qp_type).is_some_and(|(required, optional)| {
        mask.contains(required) && ((mask | port) & !(required | optional | Mask::STATE)).is_empty()
    })
}

/// A QP of a check.
pub(crate) struct Qp {
    handle: u32,
    qp_type: QpType,
    state: QpState,
    /// A request with valid values of all attributes.
    pub(crate) request: ModifyQpReq,
}

impl Qp {
    pub(crate) fn new(session: &mut Session<'_>, qp_type: QpType) -> Step<Self> {
        let handle = session.qp(qp_type)?;
        Self::of(session, handle, qp_type)
    }

    /// A QP that was made already.
    pub(crate) fn of(session: &mut Session<'_>, handle: u32, qp_type: QpType) -> Step<Self> {
        let path = session.path()?;
        let mut request = ModifyQpReq::new_zeroed();
        request.qp_handle = handle;
        for dest in [&mut request.dest, &mut request.alt_dest] {
            dest.dgid = path.grh.dgid;
            dest.hop_limit = 64;
            dest.is_global = 1;
            dest.port_num = 1;
        }
        request.qkey = 0x1111_1111;
        (request.rq_psn, request.sq_psn) = (0x12_3456, 0x65_4321);
        request.dest_qp_num = 0x11;
        request.qp_access_flags = bareverbs_uapi::uverbs::types::AccessFlags::from_bits_retain(0xe);
        request.path_mtu.0 = 3;
        (request.max_rd_atomic, request.max_dest_rd_atomic) = (1, 1);
        request.min_rnr_timer.0 = 12;
        (request.port_num, request.alt_port_num) = (1, 1);
        (request.timeout, request.alt_timeout) = (14, 14);
        (request.retry_cnt, request.rnr_retry) = (7, 7);
        Ok(Self { handle, qp_type, state: QpState::RESET, request })
    }

    fn request(&self, to: QpState, mask: Mask) -> ModifyQpReq {
        let mut request = self.request;
        (request.attr_mask, request.qp_state, request.cur_qp_state) = (mask, to, self.state);
        request
    }

    /// A valid request of a transition with its required attributes.
    pub(crate) fn required(&self, to: QpState) -> Step<ModifyQpReq> {
        match table(self.state, to, self.qp_type) {
            Some((required, _)) => Ok(self.request(to, required | Mask::STATE)),
            None => fail("no such transition"),
        }
    }

    /// Brings the QP to a state by valid requests.
    pub(crate) fn to(&mut self, session: &mut Session<'_>, state: QpState) -> Step<()> {
        let path: &[QpState] = match state {
            QpState::RESET => &[],
            QpState::INIT => &[QpState::INIT],
            QpState::RTR => &[QpState::INIT, QpState::RTR],
            QpState::RTS => &[QpState::INIT, QpState::RTR, QpState::RTS],
            QpState::SQD => &[QpState::INIT, QpState::RTR, QpState::RTS, QpState::SQD],
            QpState::ERR => &[QpState::INIT, QpState::ERR],
            _ => return skip("no request brings a QP to this state"),
        };
        for next in path {
            let Some((required, _)) = table(self.state, *next, self.qp_type) else {
                return fail("the state table has no such transition");
            };
            let request = self.request(*next, required | Mask::STATE);
            session.invoke::<write::ModifyQp>(&request)?;
            self.state = *next;
        }
        if state == QpState::SQD {
            self.drain(session)?;
        }
        Ok(())
    }

    /// Brings the QP back to RESET.
    pub(crate) fn reset(&mut self, session: &mut Session<'_>) -> Step<()> {
        let request = self.request(QpState::RESET, Mask::STATE);
        session.invoke::<write::ModifyQp>(&request)?;
        self.state = QpState::RESET;
        Ok(())
    }

    pub(crate) fn query(&self, session: &mut Session<'_>) -> Step<QueryQpResp> {
        let mut request = QueryQpReq::new_zeroed();
        request.qp_handle = self.handle;
        request.attr_mask = Mask::STATE;
        session.invoke::<write::QueryQp>(&request)
    }

    /// Waits until the send queue is drained.
    fn drain(&self, session: &mut Session<'_>) -> Step<()> {
        let begin = Instant::now();
        while self.query(session)?.sq_draining != 0 {
            if begin.elapsed() > Duration::from_secs(5) {
                return fail("the send queue does not drain");
            }
            sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Judges a request, and the state behind it.
    pub(crate) fn judge(
        &self,
        session: &mut Session<'_>,
        to: QpState,
        mask: Mask,
        expect: impl Into<Expect>,
    ) -> Step<()> {
        self.judge_request(session, &self.request(to, mask), expect)
    }

    pub(crate) fn judge_request(
        &self,
        session: &mut Session<'_>,
        request: &ModifyQpReq,
        expect: impl Into<Expect>,
    ) -> Step<()> {
        let mut call = session.command(write::ModifyQp::INFO.number, request.as_bytes(), 0, 0);
        let got = session.judge(&mut call, expect)?;
        let moved = got == Answer::Ok && request.attr_mask.contains(Mask::STATE);
        let expected = if moved { request.qp_state } else { self.state };
        let state = self.query(session)?.qp_state;
        if state != expected {
            return fail(format!("the QP is in {state:?} after the call, expected {expected:?}"));
        }
        Ok(())
    }
}

fn name(kind: &str, from: QpState, to: QpState, rule: Rule, attribute: Mask) -> String {
    let separator = if attribute.is_empty() { String::new() } else { format!("-{attribute}") };
    format!("qp::{kind}::{from}-{to}::{}{separator}", rule.id())
}

fn check(
    name: String,
    rule: Rule,
    qp_type: QpType,
    from: QpState,
    to: QpState,
    mask: Mask,
    expect: Expect,
) -> Check {
    Check::new(name, rule, expect, move |session| {
        let mut qp = Qp::new(session, qp_type)?;
        qp.to(session, from)?;
        qp.judge(session, to, mask, expect)
    })
}

fn answer(accepted: bool) -> Answer {
    if accepted { Answer::Ok } else { Answer::INVAL }
}

/// The answer to a request without a new state.
fn without_state(from: QpState, qp_type: QpType, bit: Mask) -> Expect {
    let before = answer(accepts(from, from, qp_type, bit) && bit != Mask::ALT_PATH);
    // The core refuses alternate paths on Ethernet, and rxe access flags of datagrams.
    let refused = bit == Mask::ALT_PATH || (bit == Mask::ACCESS_FLAGS && qp_type == QpType::UD);
    let after = answer(!refused);
    if before == after {
        before.into()
    } else {
        Expect::Changed { change: &RXE_MASK_WITHOUT_STATE, before, after }
    }
}

pub(crate) fn checks() -> Vec<Check> {
    let mut checks = Vec::new();
    for (qp_type, kind) in TYPES {
        for from in REACHABLE {
            for to in ALL {
                let row = table(from, to, qp_type);
                let (required, _) = row.unwrap_or_default();
                let rule = Rule::Transition;
                let title = name(kind, from, to, rule, Mask::empty());
                let mask = required | Mask::STATE;
                checks.push(check(title, rule, qp_type, from, to, mask, answer(row.is_some()).into()));
                if row.is_none() {
                    continue;
                }
                for bit in ATTRIBUTES {
                    if required.contains(bit) {
                        let rule = Rule::TransitionRequired;
                        let title = name(kind, from, to, rule, bit);
                        checks.push(check(title, rule, qp_type, from, to, mask & !bit, Answer::INVAL.into()));
                        continue;
                    }
                    let rule = Rule::TransitionExtra;
                    let title = name(kind, from, to, rule, bit);
                    // The core refuses alternate paths on Ethernet (`_ib_modify_qp`).
                    // It adds PORT to a path, which UC in SQD does not take: its AV is unusable.
                    let good = accepts(from, to, qp_type, mask | bit) && bit != Mask::ALT_PATH;
                    checks.push(check(title, rule, qp_type, from, to, mask | bit, answer(good).into()));
                }
            }
            for bit in ATTRIBUTES {
                let rule = Rule::TransitionExtra;
                let title = format!("qp::{kind}::{from}-without-STATE::{}-{bit}", rule.id());
                let expect = without_state(from, qp_type, bit);
                checks.push(check(title, rule, qp_type, from, from, bit, expect));
            }
        }
    }
    ranges(&mut checks);
    checks.push(DESTROYED.check("qp"));
    checks
}

const DESTROYED: Row =
    row("all::handles", Rule::RequestHandle, "destroyed", Answer::NOENT, |session, answer| {
        let mut qp = Qp::new(session, QpType::RC)?;
        session.destroy(ObjectClass::QP.0, qp.handle)?;
        qp.state = QpState::RESET;
        let request = qp.request(QpState::RESET, Mask::STATE);
        let mut call = session.command(write::ModifyQp::INFO.number, request.as_bytes(), 0, 0);
        session.judge(&mut call, answer).map(drop)
    });

/// A value out of range, in a request that is valid otherwise.
type Value = (&'static str, QpState, QpState, Answer, fn(&mut ModifyQpReq));

const VALUES: [Value; 22] = {
    use QpState as S;
    [
        ("port_num-0", S::RESET, S::INIT, Answer::INVAL, |r| r.port_num = 0),
        ("port_num-2", S::RESET, S::INIT, Answer::INVAL, |r| r.port_num = 2),
        ("port_num-255", S::RESET, S::INIT, Answer::INVAL, |r| r.port_num = 255),
        ("qp_state-7", S::RESET, S::INIT, Answer::INVAL, |r| r.qp_state = QpState(7)),
        ("qp_state-255", S::RESET, S::INIT, Answer::INVAL, |r| r.qp_state = QpState(255)),
        ("dest.port_num-0", S::INIT, S::RTR, Answer::INVAL, |r| r.dest.port_num = 0),
        ("dest.port_num-2", S::INIT, S::RTR, Answer::INVAL, |r| r.dest.port_num = 2),
        ("dest.sgid_index-empty", S::INIT, S::RTR, Answer::NODATA, |r| r.dest.sgid_index = 200),
        ("dest.is_global-0", S::INIT, S::RTR, Answer::INVAL, |r| r.dest.is_global = 0),
        ("path_mtu-5", S::INIT, S::RTR, Answer::Ok, |r| r.path_mtu.0 = 5),
        ("path_mtu-6", S::INIT, S::RTR, Answer::INVAL, |r| r.path_mtu.0 = 6),
        ("path_mtu-255", S::INIT, S::RTR, Answer::INVAL, |r| r.path_mtu.0 = 255),
        ("rq_psn-25-bits", S::INIT, S::RTR, Answer::Ok, |r| r.rq_psn = 1 << 24),
        ("max_dest_rd_atomic-0", S::INIT, S::RTR, Answer::Ok, |r| r.max_dest_rd_atomic = 0),
        ("timeout-31", S::RTR, S::RTS, Answer::Ok, |r| r.timeout = 31),
        ("timeout-32", S::RTR, S::RTS, Answer::INVAL, |r| r.timeout = 32),
        ("timeout-255", S::RTR, S::RTS, Answer::INVAL, |r| r.timeout = 255),
        ("max_rd_atomic-128", S::RTR, S::RTS, Answer::Ok, |r| r.max_rd_atomic = 128),
        ("max_rd_atomic-129", S::RTR, S::RTS, Answer::INVAL, |r| r.max_rd_atomic = 129),
        ("max_rd_atomic-0", S::RTR, S::RTS, Answer::Ok, |r| r.max_rd_atomic = 0),
        ("sq_psn-25-bits", S::RTR, S::RTS, Answer::Ok, |r| r.sq_psn = 1 << 24),
        ("cur_qp_state-7", S::RTR, S::RTS, Answer::INVAL, |r| {
            r.attr_mask |= Mask::CUR_STATE;
            r.cur_qp_state = QpState(7);
        }),
    ]
};

fn ranges(checks: &mut Vec<Check>) {
    let rule = Rule::QpAttributeRange;
    for (suffix, from, to, answer, change) in VALUES {
        checks.push(Check::new(
            format!("qp::RC::{from}-{to}::{}-{suffix}", rule.id()),
            rule,
            answer,
            move |session| {
                let mut qp = Qp::new(session, QpType::RC)?;
                qp.to(session, from)?;
                let Some((required, _)) = table(from, to, QpType::RC) else {
                    return fail("no such transition");
                };
                let mut request = qp.request(to, required | Mask::STATE);
                change(&mut request);
                qp.judge_request(session, &request, answer)
            },
        ));
    }
    for bit in 21..32 {
        let title = format!("qp::RC::RESET-RESET::{}-bit-{bit}", rule.id());
        let mask = Mask::from_bits_retain(1 << bit) | Mask::STATE;
        let (state, answer) = (QpState::RESET, Answer::OPNOTSUPP.into());
        checks.push(check(title, rule, QpType::RC, state, state, mask, answer));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accepted_masks_are_the_required_and_optional_attributes() {
        let required = Mask::STATE | Mask::PKEY_INDEX | Mask::PORT | Mask::ACCESS_FLAGS;
        assert!(accepts(QpState::RESET, QpState::INIT, QpType::RC, required));
        assert!(!accepts(QpState::RESET, QpState::INIT, QpType::RC, required & !Mask::PORT));
        assert!(!accepts(QpState::RESET, QpState::INIT, QpType::RC, required | Mask::QKEY));
        assert!(!accepts(QpState::RESET, QpState::INIT, QpType::UD, required));
        assert!(!accepts(QpState::RESET, QpState::ERR, QpType::RC, Mask::STATE));
        assert!(!accepts(QpState::INIT, QpState::INIT, QpType::RC, Mask::STATE | Mask::CUR_STATE));
        assert!(accepts(QpState::SQD, QpState::SQD, QpType::RC, Mask::AV));
        assert!(!accepts(QpState::SQD, QpState::SQD, QpType::UC, Mask::AV), "the core adds PORT");
    }
}
