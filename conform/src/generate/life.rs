//! Life cycle of objects: use counts, destruction, queues in memory and event descriptors.

use bareverbs_uapi::method::{Method, UHW_OUT};
use bareverbs_uapi::uverbs::ObjectClass;
use bareverbs_uapi::uverbs::types::QpType;
use bareverbs_uapi::uverbs::{CqCreate, GetContext};

use crate::answer::Answer;
use crate::call::{Call, Slot};
use crate::check::Check;
use crate::rules::Rule;
use crate::session::{Session, Step, fail};

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

pub(crate) fn checks() -> Vec<Check> {
    let mut checks = Vec::new();
    for (way, by_command) in [("method", false), ("command", true)] {
        for (used, user, make) in USES {
            let rule = Rule::Busy;
            let user_name =
                if user == ObjectClass::DEVICE { "multicast".to_owned() } else { user.to_string() };
            checks.push(Check::new(
                name(&used.to_string(), way, rule, &user_name),
                rule,
                Answer::BUSY,
                move |session| {
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
                },
            ));
        }
        for class in CLASSES {
            let rule = Rule::DestroyTwice;
            checks.push(Check::new(
                name(&class.to_string(), way, rule, ""),
                rule,
                Answer::NOENT,
                move |session| {
                    let handle = session.object(class.0)?;
                    let mut call = destroyer(session, class, handle, by_command)?;
                    session.judge(&mut call, Answer::Ok)?;
                    session.forget(class.0, handle);
                    let mut call = destroyer(session, class, handle, by_command)?;
                    session.judge(&mut call, Answer::NOENT).map(drop)
                },
            ));
        }
    }
    for class in CLASSES {
        let rule = Rule::CloseFrees;
        checks.push(Check::new(
            name(&class.to_string(), "all", rule, ""),
            rule,
            Answer::Ok,
            move |session| {
                let mut other = session.other()?;
                for _ in 0..3 {
                    other.object(class.0)?;
                }
                drop(other);
                // The runner compares the device's objects.
                session.context()
            },
        ));
    }
    of_contexts(&mut checks);
    of_maps(&mut checks);
    of_events(&mut checks);
    checks
}

fn of_contexts(checks: &mut Vec<Check>) {
    let rule = Rule::SecondContext;
    checks.push(Check::new(name("GetContext", "all", rule, ""), rule, Answer::INVAL, |session| {
        session.context()?;
        let mut call = Call::of(session.driver_id(), &GetContext::INFO);
        session.judge(&mut call, Answer::INVAL).map(drop)
    }));
    // Event channels may be closed before the CQ that uses them.
    for class in [ObjectClass::COMP_CHANNEL, ObjectClass::ASYNC_EVENT] {
        let rule = Rule::DestroyTwice;
        let title = format!("life::Cq::{class}::closed-first");
        checks.push(Check::new(title, rule, Answer::Ok, move |session| {
            session.context()?;
            session.needs_rxe_payloads()?;
            let fd = session.descriptor(class.0)?;
            let id = if class == ObjectClass::COMP_CHANNEL {
                CqCreate::COMP_CHANNEL.id()
            } else {
                CqCreate::EVENT_FD.id()
            };
            let mut call = session.cq_call(16).with(Slot::word(id, i64::from(fd).cast_unsigned()));
            session.prepare(&mut call)?;
            let cq = session.made(&call, ObjectClass::CQ, CqCreate::HANDLE.id());
            session.close(fd);
            let mut call = session.destroy_call(ObjectClass::CQ.0, cq)?;
            session.judge(&mut call, Answer::Ok)?;
            session.forget(ObjectClass::CQ.0, cq);
            Ok(())
        }));
    }
}

/// Offset and length of a queue of rxe, in the driver's response.
fn queue(call: &Call, position: usize) -> Step<(u64, usize)> {
    let bytes = call.slot(UHW_OUT).map(Slot::bytes).unwrap_or_default();
    let info = bytes.get(position * 16..position * 16 + 12);
    let parts = info.and_then(|info| Some((info.first_chunk()?, info.last_chunk()?)));
    match parts {
        Some((offset, len)) => Ok((u64::from_ne_bytes(*offset), u32::from_ne_bytes(*len) as usize)),
        None => fail("the driver's response has no queue"),
    }
}

/// Makes an object with queues. Returns the call.
type Queued = (&'static str, usize, fn(&mut Session<'_>) -> Step<Call>);

const QUEUES: [Queued; 4] = [
    ("Cq", 0, |session| {
        session.context()?;
        let mut call = session.cq_call(16);
        session.prepare(&mut call)?;
        session.made(&call, ObjectClass::CQ, CqCreate::HANDLE.id());
        Ok(call)
    }),
    ("QpRecv", 0, new_qp),
    ("QpSend", 1, new_qp),
    ("Srq", 0, |session| {
        let pd = session.pd()?;
        let mut call = session.srq_call(pd);
        session.prepare(&mut call)?;
        session.made(&call, ObjectClass::SRQ, bareverbs_uapi::uverbs::SrqCreate::HANDLE.id());
        Ok(call)
    }),
];

fn new_qp(session: &mut Session<'_>) -> Step<Call> {
    let (pd, cq) = (session.pd()?, session.cq()?);
    let mut call = session.qp_call(QpType::RC, pd, cq);
    session.prepare(&mut call)?;
    session.made(&call, ObjectClass::QP, bareverbs_uapi::uverbs::QpCreate::HANDLE.id());
    Ok(call)
}

fn map(session: &mut Session<'_>, offset: u64, len: usize, expected: Answer) -> Step<()> {
    let result = session.file().map(offset, len);
    let text = format!("mmap() of {len} bytes at offset {offset:#x}");
    session.compare(&text, expected, Answer::of(&result)).map(drop)
}

fn of_maps(checks: &mut Vec<Check>) {
    const PAGE: usize = 4096;
    let rule = Rule::Mmap;
    for (kind, position, make) in QUEUES {
        let mut add = |suffix: &str, answer: Answer, body: fn(&mut Session<'_>, u64, usize) -> Step<()>| {
            checks.push(Check::new(
                format!("mmap::{kind}::all::{}-{suffix}", rule.id()),
                rule,
                answer,
                move |session| {
                    session.needs_rxe_payloads()?;
                    let call = make(session)?;
                    let (offset, len) = queue(&call, position)?;
                    body(session, offset, len)
                },
            ));
        };
        add("whole", Answer::Ok, |session, offset, len| map(session, offset, len, Answer::Ok));
        add("first-page", Answer::Ok, |session, offset, _| map(session, offset, PAGE, Answer::Ok));
        add("twice", Answer::INVAL, |session, offset, len| {
            map(session, offset, len, Answer::Ok)?;
            map(session, offset, len, Answer::INVAL)
        });
        add("longer", Answer::INVAL, |session, offset, len| {
            map(session, offset, len.next_multiple_of(PAGE) + PAGE, Answer::INVAL)?;
            // A refused mapping does not use up the queue.
            map(session, offset, len, Answer::Ok)
        });
        add("unknown-offset", Answer::INVAL, |session, offset, len| {
            map(session, offset + (1 << 40), len, Answer::INVAL)
        });
        add("other-file", Answer::INVAL, |session, offset, len| {
            let mut other = session.other()?;
            map(&mut other, offset, len, Answer::INVAL)?;
            map(session, offset, len, Answer::Ok)
        });
        add("without-context", Answer::INVAL, |session, offset, len| {
            let mut other = Session::open(session.target, session.series)?;
            let result = map(&mut other, offset, len, Answer::INVAL);
            session.judged = other.judged.take();
            result
        });
    }
}

fn of_events(checks: &mut Vec<Check>) {
    let rule = Rule::EventFd;
    for class in [ObjectClass::COMP_CHANNEL, ObjectClass::ASYNC_EVENT] {
        for (suffix, len) in [("empty", 64), ("empty-short", 1)] {
            checks.push(Check::new(
                format!("event::{class}::read::{}-{suffix}", rule.id()),
                rule,
                Answer::AGAIN,
                move |session| {
                    let fd = session.descriptor(class.0)?;
                    let result = session.file().read(fd, &mut vec![0; len]);
                    let text = format!("read() of {len} bytes from a descriptor of class {class}");
                    session.compare(&text, Answer::AGAIN, Answer::of(&result)).map(drop)
                },
            ));
        }
    }
}
