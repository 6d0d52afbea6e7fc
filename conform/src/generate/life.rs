//! Life cycle of objects: use counts, destruction, queues in memory and event descriptors.

use bareverbs_uapi::method::{Method, UHW_OUT};
use bareverbs_uapi::uverbs::ObjectClass;
use bareverbs_uapi::uverbs::types::QpType;
use bareverbs_uapi::uverbs::{CqCreate, GetContext};

use crate::answer::Answer;
use crate::call::{Call, Slot};
use crate::check::{Check, Row, row};
use crate::rules::Rule;
use crate::session::Session;
use crate::step::{Step, fail};

/// An object that uses another: the class that is used, the class of the user, and how to make both
/// (used first).
type Use = (ObjectClass, ObjectClass, fn(&mut Session<'_>) -> Step<(u32, u32)>);

const USES: [Use; 8] = [
    (ObjectClass::PD, ObjectClass::MR, |session| {
        let pd = session.pd()?;
        Ok((pd, session.mr_with(pd, 1)?.mr_handle))
    }),
    (ObjectClass::PD, ObjectClass::MW, |session| {
        let pd = session.pd()?;
        Ok((pd, session.mw_on(pd)?))
    }),
    (ObjectClass::PD, ObjectClass::AH, |session| {
        let pd = session.pd()?;
        Ok((pd, session.ah_on(pd)?))
    }),
    (ObjectClass::PD, ObjectClass::SRQ, |session| {
        let pd = session.pd()?;
        Ok((pd, session.srq_on(pd)?))
    }),
    (ObjectClass::PD, ObjectClass::QP, |session| {
        let (pd, cq) = (session.pd()?, session.cq()?);
        Ok((pd, session.qp_on(QpType::RC, pd, cq)?))
    }),
    (ObjectClass::CQ, ObjectClass::QP, |session| {
        let (pd, cq) = (session.pd()?, session.cq()?);
        Ok((cq, session.qp_on(QpType::UC, pd, cq)?))
    }),
    (ObjectClass::SRQ, ObjectClass::QP, |session| {
        use bareverbs_uapi::uverbs::QpCreate;
        let (pd, cq) = (session.pd()?, session.cq()?);
        let srq = session.srq_on(pd)?;
        let mut call =
            session.qp_call(QpType::RC, pd, cq).with(Slot::word(QpCreate::SRQ_HANDLE.id(), srq.into()));
        session.prepare(&mut call)?;
        Ok((srq, session.made(&call, ObjectClass::QP, QpCreate::HANDLE.id())))
    }),
    (ObjectClass::QP, ObjectClass::DEVICE, |session| {
        // A multicast group uses the QP until it is detached.
        let qp = session.qp(QpType::UD)?;
        multicast(session, 30, qp)?;
        Ok((qp, qp))
    }),
];

/// The last 24 bytes of ATTACH_MCAST's and DETACH_MCAST's requests are QP and LID.
fn multicast(session: &mut Session<'_>, command: u32, qp: u32) -> Step<()> {
    let mut request = [0; 24];
    (request[0], request[1], request[15]) = (0xff, 0x0e, 0x43);
    request[16..20].copy_from_slice(&qp.to_ne_bytes());
    let mut call = session.command(command, &request, 0, 0);
    session.prepare(&mut call)
}

/// The classes of objects with a handle that rxe has.
const CLASSES: [ObjectClass; 7] = [
    ObjectClass::PD,
    ObjectClass::CQ,
    ObjectClass::QP,
    ObjectClass::SRQ,
    ObjectClass::AH,
    ObjectClass::MR,
    ObjectClass::MW,
];

/// The commands that destroy objects, with the position of the handle in their requests.
const COMMANDS: [(ObjectClass, u32, usize, usize); 7] = [
    (ObjectClass::PD, 4, 0, 4),
    (ObjectClass::AH, 8, 0, 4),
    (ObjectClass::MR, 13, 0, 4),
    (ObjectClass::MW, 16, 0, 4),
    (ObjectClass::CQ, 20, 8, 16),
    (ObjectClass::QP, 27, 8, 16),
    (ObjectClass::SRQ, 35, 8, 16),
];

/// The call that destroys an object, by its method or by its command.
fn destroyer(session: &Session<'_>, class: ObjectClass, handle: u32, by_command: bool) -> Step<Call> {
    if !by_command {
        return session.destroy_call(class.0, handle);
    }
    let Some((_, number, offset, len)) = COMMANDS.iter().find(|(of, ..)| *of == class) else {
        return fail("the class has no such command");
    };
    let mut request = vec![0; *len];
    request[*offset..offset + 4].copy_from_slice(&handle.to_ne_bytes());
    Ok(session.command(*number, &request, if *len > 4 { 8 } else { 0 }, 0))
}

fn name(place: &str, kind: &str, rule: Rule, suffix: &str) -> String {
    let separator = if suffix.is_empty() { "" } else { "-" };
    format!("life::{place}::{kind}::{}{separator}{suffix}", rule.id())
}

/// A class with the user that keeps its objects busy.
fn of_uses(checks: &mut Vec<Check>, way: &str, by_command: bool) {
    let rule = Rule::Busy;
    for (used, user, make) in USES {
        let user_name = if user == ObjectClass::DEVICE { "multicast".to_owned() } else { user.to_string() };
        let title = name(&used.to_string(), way, rule, &user_name);
        checks.push(Check::new(title, rule, Answer::BUSY, move |session| {
            let (object, other) = make(session)?;
            let mut call = destroyer(session, used, object, by_command)?;
            session.judge(&mut call, Answer::BUSY)?;
            if user == ObjectClass::DEVICE {
                multicast(session, 31, other)?;
            } else if session.destroy(user.0, other)? != Answer::Ok {
                return fail("the user of the object can't be destroyed");
            }
            let mut call = destroyer(session, used, object, by_command)?;
            session.judge(&mut call, Answer::Ok)?;
            session.forget(used.0, object);
            Ok(())
        }));
    }
}

/// What is done with an object of a class: kind, rule, answer and body.
type OfClass = (&'static str, Rule, Answer, fn(&mut Session<'_>, ObjectClass) -> Step<()>);

const OF_CLASS: [OfClass; 3] = [
    ("method", Rule::DestroyTwice, Answer::NOENT, |session, class| destroy_twice(session, class, false)),
    ("command", Rule::DestroyTwice, Answer::NOENT, |session, class| destroy_twice(session, class, true)),
    ("all", Rule::CloseFrees, Answer::Ok, |session, class| {
        let mut other = session.other()?;
        for _ in 0..3 {
            other.object(class.0)?;
        }
        drop(other);
        // The runner compares the device's objects.
        session.context()
    }),
];

fn destroy_twice(session: &mut Session<'_>, class: ObjectClass, by_command: bool) -> Step<()> {
    let handle = session.object(class.0)?;
    let mut call = destroyer(session, class, handle, by_command)?;
    session.judge(&mut call, Answer::Ok)?;
    session.forget(class.0, handle);
    let mut call = destroyer(session, class, handle, by_command)?;
    session.judge(&mut call, Answer::NOENT).map(drop)
}

fn of_classes(checks: &mut Vec<Check>) {
    for (kind, rule, answer, body) in OF_CLASS {
        for class in CLASSES {
            let title = name(&class.to_string(), kind, rule, "");
            checks.push(Check::new(title, rule, answer, move |session| body(session, class)));
        }
    }
}

/// Destroys a CQ whose event channel is closed.
fn closed_first(session: &mut Session<'_>, class: ObjectClass, id: u16, answer: Answer) -> Step<()> {
    session.context()?;
    session.needs_rxe_payloads()?;
    let fd = session.descriptor(class.0)?;
    let mut call = session.cq_call(16).with(Slot::word(id, i64::from(fd).cast_unsigned()));
    session.prepare(&mut call)?;
    let cq = session.made(&call, ObjectClass::CQ, CqCreate::HANDLE.id());
    session.close(fd);
    let mut call = session.destroy_call(ObjectClass::CQ.0, cq)?;
    session.judge(&mut call, answer)?;
    session.forget(ObjectClass::CQ.0, cq);
    Ok(())
}

const CONTEXTS: [Row; 1] =
    [row("GetContext::all", Rule::SecondContext, "", Answer::INVAL, |session, answer| {
        session.context()?;
        let mut call = Call::of(session.driver_id(), &GetContext::INFO);
        session.judge(&mut call, answer).map(drop)
    })];

/// Event channels may be closed before the CQ that uses them.
fn of_channels(checks: &mut Vec<Check>) {
    let channels = [
        (ObjectClass::COMP_CHANNEL, CqCreate::COMP_CHANNEL.id()),
        (ObjectClass::ASYNC_EVENT, CqCreate::EVENT_FD.id()),
    ];
    for (class, id) in channels {
        let title = format!("life::Cq::{class}::closed-first");
        checks.push(Check::new(title, Rule::DestroyTwice, Answer::Ok, move |session| {
            closed_first(session, class, id, Answer::Ok)
        }));
    }
}

pub(crate) fn checks() -> Vec<Check> {
    let mut checks = Vec::new();
    of_uses(&mut checks, "method", false);
    of_uses(&mut checks, "command", true);
    of_classes(&mut checks);
    checks.extend(CONTEXTS.iter().map(|row| row.check("life")));
    of_channels(&mut checks);
    checks
}

/// Offset and length of a queue of rxe, in the driver's response.
pub(crate) fn queue(call: &Call, position: usize) -> Step<(u64, usize)> {
    let bytes = call.slot(UHW_OUT).map(Slot::bytes).unwrap_or_default();
    let info = bytes.get(position * 16..position * 16 + 12);
    let parts = info.and_then(|info| Some((info.first_chunk()?, info.last_chunk()?)));
    match parts {
        Some((offset, len)) => Ok((u64::from_ne_bytes(*offset), u32::from_ne_bytes(*len) as usize)),
        None => fail("the driver's response has no queue"),
    }
}
