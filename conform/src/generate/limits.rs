//! Limits of the device, and what queries return.

use bareverbs_uapi::abi::Since;
use bareverbs_uapi::method::Method;
use bareverbs_uapi::uverbs::types::QpType;
use bareverbs_uapi::uverbs::{
    CqCreate, GetContext, ObjectClass, QpCreate, QueryGidEntry, QueryMr, RegMr, SrqCreate,
};
use bareverbs_uapi::verbs_values::{QpAttrMask, QpState};
use bareverbs_uapi::write::structs::{
    ExQueryDeviceResp, ModifyQpReq, QueryDeviceReq, QueryDeviceResp, QueryPortReq, QueryPortResp,
    QueryQpResp, QuerySrqReq, QuerySrqResp, RegMrReq, RegMrResp,
};
use bareverbs_uapi::write::{self, WriteCommand};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

use super::qp_states::Qp;
use crate::answer::{Answer, Change, Expect};
use crate::call::{Call, Slot};
use crate::check::{Check, Row, row};
use crate::rules::Rule;
use crate::session::Session;
use crate::step::{Step, fail, skip};

static CURRENT_STATE: Change = Change {
    name: "rxe-query-qp-current-state",
    since: Since::V6_12,
    why: "rxe reports the state as the current state too since 6.12 (sw/rxe/rxe_qp.c: rxe_qp_to_attr)",
};

static RXE_CREATED_SIZES: Change = Change {
    name: "rxe-created-sizes",
    since: Since::V6_12,
    why: "rxe returns the size that a queue has since 6.12; before, the creation of a QP or SRQ returned the \
          requested size (sw/rxe/rxe_qp.c: rxe_init_sq, rxe_init_rq; sw/rxe/rxe_srq.c: rxe_srq_from_init)",
};

/// The number of requests that a queue of rxe has room for. One slot stays empty.
fn room(asked: u32) -> u64 {
    u64::from(asked + 1).next_power_of_two() - 1
}

/// The size that the creation of a queue returns.
fn created_size(asked: u32) -> Expect {
    Expect::Changed {
        change: &RXE_CREATED_SIZES,
        before: Answer::Value(asked.into()),
        after: Answer::Value(room(asked)),
    }
}

/// Judges the sizes that the creation of a queue and a query returned.
fn sizes(session: &mut Session<'_>, what: &str, asked: u32, granted: u32, queried: u32) -> Step<()> {
    value(session, what, room(asked), queried.into())?;
    let expected = created_size(asked).on(session.series);
    session
        .compare(&format!("{what} of a creation with {asked}"), expected, Answer::Value(granted.into()))
        .map(drop)
}

/// The limits of the device.
fn device(session: &mut Session<'_>) -> Step<QueryDeviceResp> {
    session.invoke::<write::QueryDevice>(&QueryDeviceReq::new_zeroed())
}

fn number(id: u16, value: u32) -> Slot {
    Slot::input(id, &value.to_ne_bytes())
}

fn replace(mut call: Call, slot: Slot) -> Call {
    let id = slot.raw.attr_id;
    call.slots.retain(|known| known.raw.attr_id != id);
    call.with(slot)
}

/// Position of a capability in `ib_uverbs_qp_cap`.
fn qp_with(session: &mut Session<'_>, position: usize, value: u32) -> Step<Call> {
    let (pd, cq) = (session.pd()?, session.cq()?);
    let mut caps = [4_u32, 4, 1, 1, 0];
    caps[position] = value;
    let bytes: Vec<u8> = caps.iter().flat_map(|cap| cap.to_ne_bytes()).collect();
    let call = session.qp_call(QpType::RC, pd, cq);
    Ok(replace(call, Slot::input(QpCreate::CAP.id(), &bytes)))
}

fn srq_with(session: &mut Session<'_>, id: u16, value: u32) -> Step<Call> {
    let pd = session.pd()?;
    let call = session.srq_call(pd);
    Ok(replace(call, number(id, value)))
}

/// A limit: its name, the value of the device, whether a creation with the value itself is affordable,
/// the class and the handle attribute of the new object, and the call with a value.
struct Limit {
    name: &'static str,
    value: fn(&mut Session<'_>) -> Step<u32>,
    affordable: bool,
    made: Made,
    call: fn(&mut Session<'_>, u32) -> Step<Call>,
}

type Made = Option<(ObjectClass, u16)>;

const QP: Made = Some((ObjectClass::QP, QpCreate::HANDLE.id()));
const CQ: Made = Some((ObjectClass::CQ, CqCreate::HANDLE.id()));
const SRQ: Made = Some((ObjectClass::SRQ, SrqCreate::HANDLE.id()));

const LIMITS: [Limit; 9] = [
    Limit {
        name: "Qp::max_send_wr",
        value: |session| Ok(device(session)?.max_qp_wr),
        affordable: false,
        made: QP,
        call: |session, value| qp_with(session, 0, value),
    },
    Limit {
        name: "Qp::max_recv_wr",
        value: |session| Ok(device(session)?.max_qp_wr),
        affordable: false,
        made: QP,
        call: |session, value| qp_with(session, 1, value),
    },
    Limit {
        name: "Qp::max_send_sge",
        value: |session| Ok(device(session)?.max_sge),
        affordable: true,
        made: QP,
        call: |session, value| qp_with(session, 2, value),
    },
    Limit {
        name: "Qp::max_recv_sge",
        value: |session| Ok(device(session)?.max_sge),
        affordable: true,
        made: QP,
        call: |session, value| qp_with(session, 3, value),
    },
    Limit {
        name: "Cq::cqe",
        value: |session| Ok(device(session)?.max_cqe),
        affordable: true,
        made: CQ,
        call: |session, value| {
            session.context()?;
            Ok(session.cq_call(value))
        },
    },
    Limit {
        name: "Cq::comp_vector",
        value: |session| Ok(completion_vectors(session)?.saturating_sub(1)),
        affordable: true,
        made: CQ,
        call: |session, value| {
            session.context()?;
            let call = session.cq_call(16);
            Ok(replace(call, number(CqCreate::COMP_VECTOR.id(), value)))
        },
    },
    Limit {
        name: "Srq::max_wr",
        value: |session| Ok(device(session)?.max_srq_wr),
        affordable: false,
        made: SRQ,
        call: |session, value| srq_with(session, SrqCreate::MAX_WR.id(), value),
    },
    Limit {
        name: "Srq::max_sge",
        value: |session| Ok(device(session)?.max_srq_sge),
        affordable: true,
        made: SRQ,
        call: |session, value| srq_with(session, SrqCreate::MAX_SGE.id(), value),
    },
    Limit {
        name: "Port::port_num",
        value: |session| Ok(device(session)?.phys_port_cnt.into()),
        affordable: true,
        made: None,
        call: |session, value| {
            session.context()?;
            let mut request = QueryPortReq::new_zeroed();
            request.port_num = value as u8;
            let len = size_of::<QueryPortResp>();
            Ok(session.command(write::QueryPort::INFO.number, request.as_bytes(), len, 0))
        },
    },
];

/// The completion vectors of a device. A file of its own is asked, because GET_CONTEXT succeeds once.
fn completion_vectors(session: &Session<'_>) -> Step<u32> {
    let mut other = Session::open(session.target, session.series)?;
    let id = GetContext::NUM_COMP_VECTORS.id();
    let mut call = Call::of(other.driver_id(), &GetContext::INFO).with(Slot::output(id, 4));
    other.prepare(&mut call)?;
    Ok(call.u32_of(id))
}

/// A value at a limit or above it: a suffix, the value and the answer.
type Place = (&'static str, fn(u32) -> u32, Answer);

const PLACES: [Place; 3] = [
    ("at", |value| value, Answer::Ok),
    ("one-above", |value| value + 1, Answer::INVAL),
    ("maximum", |_| u32::MAX, Answer::INVAL),
];

fn of_limits(checks: &mut Vec<Check>) {
    let rule = Rule::Limit;
    for limit in &LIMITS {
        for (suffix, change, answer) in PLACES {
            // The port has 8 bits.
            let truncated = suffix == "maximum" && limit.made.is_none();
            if (answer == Answer::Ok && !limit.affordable) || truncated {
                continue;
            }
            let name = format!("limit::{}::{}-{suffix}", limit.name, rule.id());
            checks.push(Check::new(name, rule, answer, move |session| {
                session.needs_rxe_payloads()?;
                let value = change((limit.value)(session)?);
                let mut call = (limit.call)(session, value)?;
                if session.judge(&mut call, answer)? == Answer::Ok
                    && let Some((class, id)) = limit.made
                {
                    session.made(&call, class, id);
                }
                Ok(())
            }));
        }
    }
}

/// A limit of a QP's outstanding reads and atomics: its name, its value, the state before the
/// transition that sets it, its bit, the answer above it, and its field.
type Depth =
    (&'static str, fn(&QueryDeviceResp) -> u32, QpState, QpAttrMask, Answer, fn(&mut ModifyQpReq, u8));

const DEPTHS: [Depth; 2] = [
    (
        "max_dest_rd_atomic",
        |device| device.max_qp_rd_atom,
        QpState::INIT,
        QpAttrMask::MAX_DEST_RD_ATOMIC,
        // rxe compares the depth of the requester only (`rxe_qp_chk_attr`).
        Answer::Ok,
        |request, value| request.max_dest_rd_atomic = value,
    ),
    (
        "max_rd_atomic",
        |device| device.max_qp_init_rd_atom,
        QpState::RTR,
        QpAttrMask::MAX_QP_RD_ATOMIC,
        Answer::INVAL,
        |request, value| request.max_rd_atomic = value,
    ),
];

fn of_depths(checks: &mut Vec<Check>) {
    let rule = Rule::Limit;
    for (field, value, from, mask, above, set) in DEPTHS {
        for (suffix, more, answer) in [("at", 0, Answer::Ok), ("one-above", 1, above)] {
            let name = format!("limit::Qp::{field}::{}-{suffix}", rule.id());
            checks.push(Check::new(name, rule, answer, move |session| {
                session.needs_rxe_payloads()?;
                let limit = value(&device(session)?) + more;
                let Ok(limit) = u8::try_from(limit) else { return fail(format!("the limit is {limit}")) };
                let mut qp = Qp::new(session, QpType::RC)?;
                qp.to(session, from)?;
                let to = if from == QpState::INIT { QpState::RTR } else { QpState::RTS };
                let mut request = qp.required(to)?;
                request.attr_mask |= mask;
                set(&mut request, limit);
                qp.judge_request(session, &request, answer)
            }));
        }
    }
}

/// Queries the entry of the GID table that is `more` behind the last one.
fn gid_entry(session: &mut Session<'_>, more: u32, answer: Answer) -> Step<()> {
    session.needs_rxe_payloads()?;
    let mut request = QueryPortReq::new_zeroed();
    request.port_num = 1;
    let port: QueryPortResp = session.invoke::<write::QueryPort>(&request)?;
    let index = port.gid_tbl_len.saturating_sub(1) + more;
    let mut call = Call::of(session.driver_id(), &QueryGidEntry::INFO)
        .with(Slot::number(QueryGidEntry::PORT.id(), 1))
        .with(Slot::number(QueryGidEntry::GID_INDEX.id(), index.into()))
        .with(Slot::number(QueryGidEntry::FLAGS.id(), 0))
        .with(Slot::output(QueryGidEntry::RESP_ENTRY.id(), 32));
    session.judge(&mut call, answer).map(drop)
}

const GID_INDICES: [Row; 2] = [
    row("Port::gid_index", Rule::Limit, "last", Answer::NODATA, |session, answer| {
        gid_entry(session, 0, answer)
    }),
    row("Port::gid_index", Rule::Limit, "beyond", Answer::INVAL, |session, answer| {
        gid_entry(session, 1, answer)
    }),
];

/// Compares a value that a query returned.
fn value(session: &mut Session<'_>, what: &str, expected: u64, got: u64) -> Step<()> {
    session.compare(&what, Answer::Value(expected), Answer::Value(got)).map(drop)
}

/// A value of a QP's attributes: its name, the state that the QP is brought to, and the value of the
/// request and of the query.
type QpValue = (&'static str, QpState, fn(&ModifyQpReq) -> u64, fn(&QueryQpResp) -> u64);

const QP_VALUES: [QpValue; 18] = {
    use QpState as S;
    [
        ("qp_state-RESET", S::RESET, |_| 0, |r| r.qp_state.0.into()),
        ("qp_state-INIT", S::INIT, |_| 1, |r| r.qp_state.0.into()),
        ("qp_state-RTR", S::RTR, |_| 2, |r| r.qp_state.0.into()),
        ("qp_state-RTS", S::RTS, |_| 3, |r| r.qp_state.0.into()),
        ("qp_state-ERR", S::ERR, |_| 6, |r| r.qp_state.0.into()),
        (
            "qp_access_flags",
            S::INIT,
            |q| q.qp_access_flags.bits().into(),
            |r| r.qp_access_flags.bits().into(),
        ),
        ("port_num", S::INIT, |q| q.port_num.into(), |r| r.port_num.into()),
        ("pkey_index", S::INIT, |q| q.pkey_index.into(), |r| r.pkey_index.into()),
        ("path_mtu", S::RTR, |q| u64::from(q.path_mtu.0), |r| u64::from(r.path_mtu.0)),
        ("dest_qp_num", S::RTR, |q| q.dest_qp_num.into(), |r| r.dest_qp_num.into()),
        ("rq_psn", S::RTR, |q| q.rq_psn.into(), |r| r.rq_psn.into()),
        ("max_dest_rd_atomic", S::RTR, |q| q.max_dest_rd_atomic.into(), |r| r.max_dest_rd_atomic.into()),
        ("min_rnr_timer", S::RTR, |q| q.min_rnr_timer.0.into(), |r| r.min_rnr_timer.0.into()),
        ("timeout", S::RTS, |q| q.timeout.into(), |r| r.timeout.into()),
        ("retry_cnt", S::RTS, |q| q.retry_cnt.into(), |r| r.retry_cnt.into()),
        ("rnr_retry", S::RTS, |q| q.rnr_retry.into(), |r| r.rnr_retry.into()),
        ("sq_psn", S::RTS, |q| q.sq_psn.into(), |r| r.sq_psn.into()),
        ("max_rd_atomic", S::RTS, |q| q.max_rd_atomic.into(), |r| r.max_rd_atomic.into()),
    ]
};

/// A capability of a QP: its name, its position in `ib_uverbs_qp_cap`, and the value of the query.
type Cap = (&'static str, usize, fn(&QueryQpResp) -> u32);

const CAPS: [Cap; 5] = [
    ("max_send_wr", 0, |r| r.max_send_wr),
    ("max_recv_wr", 1, |r| r.max_recv_wr),
    ("max_send_sge", 2, |r| r.max_send_sge),
    ("max_recv_sge", 3, |r| r.max_recv_sge),
    ("max_inline_data", 4, |r| r.max_inline_data),
];

/// What QUERY_MR returns: its name, its attribute, and the value of the registration.
type MrValue = (&'static str, u16, fn(&RegMrReq, &RegMrResp) -> u64);

const MR_VALUES: [MrValue; 4] = [
    ("lkey", QueryMr::RESP_LKEY.id(), |_, response| response.lkey.into()),
    ("rkey", QueryMr::RESP_RKEY.id(), |_, response| response.rkey.into()),
    ("length", QueryMr::RESP_LENGTH.id(), |request, _| request.length),
    ("iova", QueryMr::RESP_IOVA.id(), |request, _| request.hca_va),
];

fn of_values(checks: &mut Vec<Check>) {
    let rule = Rule::QueryValue;
    for (what, state, sent, returned) in QP_VALUES {
        let name = format!("query::Qp::attribute::{}-{what}", rule.id());
        checks.push(Check::new(name, rule, Answer::Ok, move |session| {
            session.needs_rxe_payloads()?;
            let mut qp = Qp::new(session, QpType::RC)?;
            qp.to(session, state)?;
            let response = qp.query(session)?;
            let (sent, returned) = (sent(&qp.request), returned(&response));
            value(session, what, sent, returned)
        }));
    }
    for (what, id, registered) in MR_VALUES {
        let name = format!("query::Mr::command::{}-{what}", rule.id());
        checks.push(Check::new(name, rule, Answer::Ok, move |session| {
            let pd = session.pd()?;
            let request = session.mr_request(pd, 1);
            let response: RegMrResp = session.invoke::<write::RegMr>(&request)?;
            session.note_object(ObjectClass::MR.0, response.mr_handle);
            let got = query_mr(session, response.mr_handle, id)?;
            value(session, what, registered(&request, &response), got)
        }));
    }
}

/// A capability that the creation of a QP granted, and that a query returns.
fn judge_cap(session: &mut Session<'_>, cap: usize, asked: u32) -> Step<()> {
    let (what, position, returned) = CAPS[cap];
    session.needs_rxe_payloads()?;
    let mut call = qp_with(session, position, asked)?;
    session.prepare(&mut call)?;
    let handle = session.made(&call, ObjectClass::QP, QpCreate::HANDLE.id());
    let bytes = call.slot(QpCreate::RESP_CAP.id()).map(Slot::bytes).unwrap_or_default();
    let granted = bytes.as_chunks::<4>().0.get(position).map(|word| u32::from_ne_bytes(*word));
    let Some(granted) = granted else { return fail("the creation reported no capabilities") };
    if granted < asked {
        return fail(format!("{what}: {asked} requested, {granted} granted"));
    }
    let qp = Qp::of(session, handle, QpType::RC)?;
    let response = qp.query(session)?;
    if position < QUEUES {
        return sizes(session, what, asked, granted, returned(&response));
    }
    value(session, what, granted.into(), returned(&response).into())
}

/// The number of capabilities that are sizes of queues, which come first. The others are returned as
/// they are.
const QUEUES: usize = 2;

fn judge_srq_size(session: &mut Session<'_>, asked: u32) -> Step<()> {
    session.needs_rxe_payloads()?;
    let mut call = srq_with(session, SrqCreate::MAX_WR.id(), asked)?;
    session.prepare(&mut call)?;
    let mut request = QuerySrqReq::new_zeroed();
    request.srq_handle = session.made(&call, ObjectClass::SRQ, SrqCreate::HANDLE.id());
    let granted = call.u32_of(SrqCreate::RESP_MAX_WR.id());
    let response: QuerySrqResp = session.invoke::<write::QuerySrq>(&request)?;
    sizes(session, "max_wr", asked, granted, response.max_wr)
}

fn judge_cq_size(session: &mut Session<'_>, asked: u32) -> Step<()> {
    session.needs_rxe_payloads()?;
    session.context()?;
    let mut call = session.cq_call(asked);
    session.prepare(&mut call)?;
    session.made(&call, ObjectClass::CQ, CqCreate::HANDLE.id());
    let granted = call.u32_of(CqCreate::RESP_CQE.id());
    value(session, "whether the CQ has the requested entries", 1, (granted >= asked).into())
}

fn of_sizes(checks: &mut Vec<Check>) {
    let rule = Rule::QueryValue;
    let name = |what: &str, asked| format!("query::{what}::{}-{asked}", rule.id());
    for (cap, (what, position, _)) in CAPS.into_iter().enumerate() {
        for asked in [1, 3, 10, 31] {
            let expect = if position < QUEUES { created_size(asked) } else { Answer::Ok.into() };
            let name = name(&format!("Qp::{what}"), asked);
            checks.push(Check::new(name, rule, expect, move |session| judge_cap(session, cap, asked)));
        }
    }
    for asked in [1, 3, 10, 31, 1000] {
        let (srq, cq) = (name("Srq::max_wr", asked), name("Cq::cqe", asked));
        checks
            .push(Check::new(srq, rule, created_size(asked), move |session| judge_srq_size(session, asked)));
        checks.push(Check::new(cq, rule, Answer::Ok, move |session| judge_cq_size(session, asked)));
    }
}

const QUERIES: [Row; 3] = [
    row("Qp::attribute", Rule::QueryValue, "cur_qp_state", Answer::Value(QpState::RTS.0 as u64), {
        |session, expected| {
            session.needs_rxe_payloads()?;
            let mut qp = Qp::new(session, QpType::RC)?;
            qp.to(session, QpState::RTS)?;
            let got = qp.query(session)?.cur_qp_state.0;
            session.compare(&"cur_qp_state in RTS", expected, Answer::Value(got.into())).map(drop)
        }
    })
    .since(&CURRENT_STATE, Answer::Value(0)),
    row("Mr::method", Rule::KnownBug, "length", Answer::Value(4096), |session, expected| {
        if session.series < Since::V7_2 {
            return skip("the kernel has the method since 7.2");
        }
        session.context()?;
        let (pd, memory) = (session.pd()?, session.memory());
        let mut call = Call::of(session.driver_id(), &RegMr::INFO)
            .with(Slot::word(RegMr::HANDLE.id(), 0))
            .with(Slot::word(RegMr::PD_HANDLE.id(), pd.into()))
            .with(Slot::number(RegMr::IOVA.id(), memory))
            .with(Slot::number(RegMr::ADDR.id(), memory))
            .with(Slot::number(RegMr::LENGTH.id(), 4096))
            .with(Slot::number(RegMr::ACCESS_FLAGS.id(), 1))
            .with(Slot::output(RegMr::RESP_LKEY.id(), 4))
            .with(Slot::output(RegMr::RESP_RKEY.id(), 4));
        session.prepare(&mut call)?;
        let handle = session.made(&call, ObjectClass::MR, RegMr::HANDLE.id());
        let got = query_mr(session, handle, QueryMr::RESP_LENGTH.id())?;
        session.compare(&"the length of a region that REG_MR made", expected, Answer::Value(got)).map(drop)
    })
    .of_bug("the-reg_mr-method-makes-unusable-regions", &[Since::V7_2, Since::V7_3], Answer::Value(0)),
    row("Device::attributes", Rule::QueryValue, "extended", Answer::Ok, |session, _| {
        let plain = device(session)?;
        let extended: ExQueryDeviceResp = session
            .invoke::<write::ex::QueryDevice>(&bareverbs_uapi::write::structs::ExQueryDevice::new_zeroed())?;
        let same = plain.as_bytes() == extended.base.as_bytes();
        value(session, "whether the extended query has the same attributes", 1, same.into())
    }),
];

fn query_mr(session: &mut Session<'_>, handle: u32, id: u16) -> Step<u64> {
    let mut call = Call::of(session.driver_id(), &QueryMr::INFO)
        .with(Slot::word(QueryMr::HANDLE.id(), handle.into()))
        .with(Slot::output(QueryMr::RESP_LKEY.id(), 4))
        .with(Slot::output(QueryMr::RESP_RKEY.id(), 4))
        .with(Slot::output(QueryMr::RESP_LENGTH.id(), 8))
        .with(Slot::output(QueryMr::RESP_IOVA.id(), 8));
    session.prepare(&mut call)?;
    let bytes = call.slot(id).map(Slot::bytes).unwrap_or_default();
    let mut word = [0; 8];
    word[..bytes.len().min(8)].copy_from_slice(&bytes[..bytes.len().min(8)]);
    u64::read_from_bytes(&word).or_else(|_| fail("the response is short"))
}

pub(crate) fn checks() -> Vec<Check> {
    let mut checks = Vec::new();
    of_limits(&mut checks);
    of_depths(&mut checks);
    checks.extend(GID_INDICES.iter().map(|row| row.check("limit")));
    of_values(&mut checks);
    of_sizes(&mut checks);
    checks.extend(QUERIES.iter().map(|row| row.check("query")));
    checks
}
