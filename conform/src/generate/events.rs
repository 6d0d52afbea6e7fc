//! Event descriptors: reads, readiness, destruction of objects with events.

use std::thread::sleep;
use std::time::{Duration, Instant};

use bareverbs_uapi::uverbs::ObjectClass;
use bareverbs_uapi::uverbs::types::QpType;
use bareverbs_uapi::verbs_values::QpState;
use bareverbs_uapi::write::structs::ReqNotifyCqReq;
use bareverbs_uapi::write::{self, WriteCommand};
use zerocopy::{FromZeros, IntoBytes};

use super::pair::Pair;
use super::qp_states::Qp;
use crate::answer::Answer;
use crate::check::Check;
use crate::rules::Rule;
use crate::session::Session;
use crate::step::{Step, fail};

/// An event that waits in its queue.
struct Queued {
    fd: i32,
    /// Length of the event in bytes.
    len: usize,
    /// The user handle of the object that raised it; the first 8 bytes of the event.
    element: u64,
    /// The object.
    class: ObjectClass,
    handle: u32,
    /// The users of the object, which are destroyed first.
    users: Vec<u32>,
}

/// Waits until a descriptor is readable.
fn wait(session: &Session<'_>, fd: i32) -> Step<()> {
    let (begin, timeout) = (Instant::now(), session.target.timeout());
    while !is_readable(session, fd)? {
        if begin.elapsed() > timeout {
            return fail(format!("no event within {} s", timeout.as_secs()));
        }
        sleep(Duration::from_millis(1));
    }
    Ok(())
}

fn is_readable(session: &Session<'_>, fd: i32) -> Step<bool> {
    session.file().is_readable(fd).or_else(|errno| fail(format!("poll() failed: {}", Answer::errno(errno))))
}

/// A completion event of a send.
fn completion_event(session: &mut Session<'_>) -> Step<Queued> {
    session.context()?;
    let fd = session.comp_channel()?;
    let mut pair = Pair::new(session, QpType::RC, Some(fd))?;
    let mut request = ReqNotifyCqReq::new_zeroed();
    request.cq_handle = pair.cq_handle;
    let mut call = session.command(write::ReqNotifyCq::INFO.number, request.as_bytes(), 0, 0);
    session.prepare(&mut call)?;
    pair.post_recv(0, &|_, _| {})?;
    pair.post_send(session, &|_, _| {})?;
    wait(session, fd)?;
    let users = [&pair.sender, &pair.receiver].map(|endpoint| endpoint.qp.request.qp_handle).to_vec();
    Ok(Queued { fd, len: 8, element: 0x1234, class: ObjectClass::CQ, handle: pair.cq_handle, users })
}

/// The event `SQ_DRAINED` of a QP.
fn drained_event(session: &mut Session<'_>) -> Step<Queued> {
    session.needs_rxe_payloads()?;
    let fd = session.async_fd()?;
    let mut qp = Qp::new(session, QpType::RC)?;
    qp.to(session, QpState::SQD)?;
    wait(session, fd)?;
    let handle = qp.request.qp_handle;
    Ok(Queued { fd, len: 16, element: 0x5678, class: ObjectClass::QP, handle, users: Vec::new() })
}

/// Reads as the judged call. Returns the bytes.
fn read(session: &mut Session<'_>, fd: i32, len: usize, expected: Answer) -> Step<Vec<u8>> {
    let mut bytes = vec![0; len];
    let result = session.file().read(fd, &mut bytes);
    let text = format!("read() of {len} bytes from an event descriptor");
    session.compare(&text, expected, Answer::of(&result))?;
    bytes.truncate(result.unwrap_or(0));
    Ok(bytes)
}

/// Reads the only event, and finds the queue empty.
fn take(session: &mut Session<'_>, event: &Queued, len: usize) -> Step<()> {
    let bytes = read(session, event.fd, len, Answer::Ok)?;
    let element = bytes.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes));
    if bytes.len() != event.len || element != Some(event.element) {
        return fail(format!("the event is {bytes:02x?}"));
    }
    if is_readable(session, event.fd)? {
        return fail("the descriptor is readable without an event");
    }
    let result = session.file().read(event.fd, &mut [0; 64]);
    match Answer::of(&result) {
        Answer::AGAIN => Ok(()),
        got => fail(format!("a read without an event: {got}, expected EAGAIN")),
    }
}

/// Destroys the object of an event. The kernel counts the events that were read.
fn destroy(session: &mut Session<'_>, event: &Queued, reported: u32) -> Step<()> {
    for user in &event.users {
        if session.destroy(ObjectClass::QP.0, *user)? != Answer::Ok {
            return fail("a QP can't be destroyed");
        }
    }
    let mut call = session.destroy_call(event.class.0, event.handle)?;
    session.prepare(&mut call)?;
    session.forget(event.class.0, event.handle);
    let first = call.slots.iter().find(|slot| slot.is_written()).map(|slot| slot.bytes().to_vec());
    let counted =
        first.as_ref().and_then(|bytes| bytes.first_chunk()).map(|bytes| u32::from_ne_bytes(*bytes));
    let text = "the events that the destruction of an object reports";
    let got = Answer::Value(counted.map_or(u64::MAX, u64::from));
    session.compare(&text, Answer::Value(reported.into()), got).map(drop)
}

type Make = fn(&mut Session<'_>) -> Step<Queued>;
type Case = (&'static str, Answer, fn(&mut Session<'_>, Queued) -> Step<()>);

const QUEUED: [Case; 8] = [
    ("whole", Answer::Ok, |session, event| take(session, &event, event.len)),
    ("longer", Answer::Ok, |session, event| take(session, &event, 64)),
    ("one-less", Answer::INVAL, |session, event| {
        read(session, event.fd, event.len - 1, Answer::INVAL)?;
        // The event stays.
        take(session, &event, event.len)?;
        read(session, event.fd, event.len - 1, Answer::AGAIN).map(drop)
    }),
    ("length-0", Answer::INVAL, |session, event| {
        read(session, event.fd, 0, Answer::INVAL)?;
        take(session, &event, event.len)
    }),
    ("after-destroy", Answer::AGAIN, |session, event| {
        destroy(session, &event, 0)?;
        if is_readable(session, event.fd)? {
            return fail("the event outlives its object");
        }
        read(session, event.fd, 64, Answer::AGAIN).map(drop)
    }),
    ("count-unread", Answer::Value(0), |session, event| destroy(session, &event, 0)),
    ("count-read", Answer::Value(1), |session, event| {
        take(session, &event, event.len)?;
        destroy(session, &event, 1)
    }),
    ("closed-unread", Answer::Value(0), |session, event| {
        session.close(event.fd);
        destroy(session, &event, 0)
    }),
];

/// A descriptor of a class without an event: a suffix, the answers of completion channels and of
/// descriptors of asynchronous events, and the body.
type Empty = (&'static str, [Answer; 2], fn(&mut Session<'_>, ObjectClass, Answer) -> Step<()>);

const EMPTY: [Empty; 3] = [
    ("empty", [Answer::AGAIN; 2], |session, class, answer| read_empty(session, class, 64, answer)),
    ("empty-short", [Answer::AGAIN; 2], |session, class, answer| read_empty(session, class, 1, answer)),
    // The completion channel ends with its file; the descriptor of asynchronous events does not.
    ("file-closed", [Answer::IO, Answer::AGAIN], |session, class, answer| {
        let mut other = session.other()?;
        let fd = other.descriptor(class.0)?;
        other.leave_open(fd);
        drop(other);
        let result = read(session, fd, 64, answer);
        session.file().close(fd);
        result.map(drop)
    }),
];

fn read_empty(session: &mut Session<'_>, class: ObjectClass, len: usize, answer: Answer) -> Step<()> {
    let fd = session.descriptor(class.0)?;
    if is_readable(session, fd)? {
        return fail("the descriptor is readable without an event");
    }
    read(session, fd, len, answer).map(drop)
}

const CLASSES: [(ObjectClass, Make); 2] =
    [(ObjectClass::COMP_CHANNEL, completion_event), (ObjectClass::ASYNC_EVENT, drained_event)];

pub(crate) fn checks() -> Vec<Check> {
    let mut checks = Vec::new();
    let rule = Rule::EventFd;
    for (position, (class, make)) in CLASSES.into_iter().enumerate() {
        for (suffix, answers, body) in EMPTY {
            let name = format!("event::{class}::read::{}-{suffix}", rule.id());
            let answer = answers[position];
            checks.push(Check::new(name, rule, answer, move |session| body(session, class, answer)));
        }
        for (suffix, answer, body) in QUEUED {
            let name = format!("event::{class}::queued::{}-{suffix}", rule.id());
            checks.push(Check::new(name, rule, answer, move |session| {
                let event = make(session)?;
                body(session, event)
            }));
        }
    }
    checks
}
