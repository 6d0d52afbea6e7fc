//! The write commands through `INVOKE_WRITE`, and by `write()`.

use bareverbs_trace::OVERREAD;
use bareverbs_uapi::abi::Since;
use bareverbs_uapi::method::{UHW_IN, UHW_OUT};
use bareverbs_uapi::registry;
use bareverbs_uapi::uverbs::types::{DriverId, QpType};
use bareverbs_uapi::uverbs::{InvokeWrite, ObjectClass};
use bareverbs_uapi::write::{EXTENDED, WriteCommandInfo};
use zerocopy::IntoBytes;

use super::NOWHERE;
use crate::answer::{Answer, Change, Expect};
use crate::call::{Call, FILL, Payload, Slot, UNMAPPED};
use crate::check::Check;
use crate::guard::Guard;
use crate::request::Request;
use crate::rules::Rule;
use crate::session::Session;
use crate::step::{Step, fail, skip};
use crate::write_buffer::WriteBuffer;

pub(crate) static UNREADABLE_TAIL: Change = Change {
    name: "request-tail-unreadable",
    since: Since::V7_2,
    why: "uverbs_request uses copy_struct_from_user since 7.2, which reports an unreadable tail; before, \
          ib_is_buffer_cleared took it for a tail that is not zero",
};

static CQ_WITHOUT_ENTRIES: Change = Change {
    name: "create-cq-without-entries",
    since: Since::V7_2,
    why: "the core refuses a CQ of 0 entries since 7.2, before it looks at the channel (core/uverbs_cmd.c: \
          create_cq); before, the driver did",
};

/// A regression of 7.2; see `docs/findings/get-context-by-invoke-write.md`.
pub(crate) static INVOKE_WRITE_GET_CONTEXT: Change = Change {
    name: "get-context-by-invoke-write",
    since: Since::V7_2,
    why: "ib_init_ucontext looks for the attribute FD_ARR (2) of GET_CONTEXT, which is WRITE_CMD of \
          INVOKE_WRITE: it takes the command number for two descriptors (core/uverbs_cmd.c)",
};

pub(crate) static RXE_REREG_MR: Change = Change {
    name: "rxe-rereg-mr",
    since: Since::V6_12,
    why: "rxe has rereg_user_mr since 6.12, for PD and access (sw/rxe/rxe_verbs.c: rxe_rereg_user_mr)",
};

/// The effect of a successful command.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Effect {
    Nothing,
    /// Makes an object; its handle begins the response.
    Makes(ObjectClass),
    /// Makes a descriptor; it begins the response.
    MakesFd(ObjectClass),
    /// Destroys the object that the field names.
    Destroys(ObjectClass, &'static str),
    /// Makes the context of the file, with a descriptor.
    MakesContext,
}

/// A command that rxe has, with its valid request.
#[derive(Clone, Copy)]
struct Command {
    number: u32,
    effect: Effect,
    /// Length of the driver's response.
    uhw_out: usize,
    /// Length of the driver's request.
    uhw_in: usize,
    since: Since,
    build: fn(&mut Session<'_>, Request) -> Step<Request>,
}

impl Command {
    fn info(&self) -> &'static WriteCommandInfo {
        registry::command(self.number).expect("the table has the command")
    }

    /// The answer of a valid call.
    fn answer(&self) -> Expect {
        match self.effect {
            Effect::MakesContext => {
                Expect::Changed { change: &INVOKE_WRITE_GET_CONTEXT, before: Answer::Ok, after: Answer::BADF }
            }
            _ => Answer::Ok.into(),
        }
    }

    fn title(&self) -> String {
        let prefix = if self.number & EXTENDED == 0 { "" } else { "Ex" };
        format!("{prefix}{}", self.info().rust)
    }
}

const fn command(
    number: u32,
    effect: Effect,
    build: fn(&mut Session<'_>, Request) -> Step<Request>,
) -> Command {
    Command { number, effect, uhw_out: 0, uhw_in: 0, since: Since::V6_1, build }
}

impl Command {
    const fn answers(mut self, uhw_out: usize) -> Self {
        self.uhw_out = uhw_out;
        self
    }
}

fn destroys(class: ObjectClass, session: &mut Session<'_>, request: Request, field: &str) -> Step<Request> {
    let handle = session.object(class.0)?;
    Ok(request.set(field, handle.into()))
}

/// The fields of a QP's creation, which two commands share.
fn qp_fields(session: &mut Session<'_>, request: Request) -> Step<Request> {
    let pd = session.pd()?;
    let cq = session.cq()?;
    Ok(request
        .set("user_handle", 0x77)
        .set("pd_handle", pd.into())
        .set("send_cq_handle", cq.into())
        .set("recv_cq_handle", cq.into())
        .set("max_send_wr", 4)
        .set("max_recv_wr", 4)
        .set("max_send_sge", 1)
        .set("max_recv_sge", 1)
        .set("qp_type", QpType::RC.0.into()))
}

fn multicast(session: &mut Session<'_>, request: Request) -> Step<Request> {
    session.needs_rxe_payloads()?;
    let qp = session.qp(QpType::UD)?;
    let mut gid = [0; 16];
    (gid[0], gid[1], gid[15]) = (0xff, 0x0e, 0x42);
    Ok(request.set_bytes("gid", &gid).set("qp_handle", qp.into()))
}

/// The commands that rxe has.
static COMMANDS: [Command; 33] = [
    command(0, Effect::MakesContext, |_, request| Ok(request)),
    command(1, Effect::Nothing, |_, request| Ok(request)),
    command(2, Effect::Nothing, |_, request| Ok(request.set("port_num", 1))),
    command(3, Effect::Makes(ObjectClass::PD), |_, request| Ok(request)),
    command(4, Effect::Destroys(ObjectClass::PD, "pd_handle"), |session, request| {
        destroys(ObjectClass::PD, session, request, "pd_handle")
    }),
    command(5, Effect::Makes(ObjectClass::AH), |session, request| {
        let pd = session.pd()?;
        let path = session.path()?;
        Ok(request.set("pd_handle", pd.into()).set_bytes("attr", path.as_bytes()))
    })
    .answers(8),
    command(8, Effect::Destroys(ObjectClass::AH, "ah_handle"), |session, request| {
        destroys(ObjectClass::AH, session, request, "ah_handle")
    }),
    command(9, Effect::Makes(ObjectClass::MR), |session, request| {
        let pd = session.pd()?;
        let memory = session.memory();
        Ok(request
            .set("start", memory)
            .set("length", 4096)
            .set("hca_va", memory)
            .set("pd_handle", pd.into())
            .set("access_flags", 1))
    }),
    Command {
        since: Since::V6_12,
        ..command(11, Effect::Nothing, |session, request| {
            let pd = session.pd()?;
            let mr = session.mr_with(pd, 1)?.mr_handle;
            // IB_MR_REREG_ACCESS
            Ok(request.set("mr_handle", mr.into()).set("flags", 4).set("access_flags", 7))
        })
    },
    command(13, Effect::Destroys(ObjectClass::MR, "mr_handle"), |session, request| {
        destroys(ObjectClass::MR, session, request, "mr_handle")
    }),
    command(14, Effect::Makes(ObjectClass::MW), |session, request| {
        let pd = session.pd()?;
        Ok(request.set("pd_handle", pd.into()).set("mw_type", 1))
    }),
    command(16, Effect::Destroys(ObjectClass::MW, "mw_handle"), |session, request| {
        destroys(ObjectClass::MW, session, request, "mw_handle")
    }),
    command(17, Effect::MakesFd(ObjectClass::COMP_CHANNEL), |_, request| Ok(request)),
    command(18, Effect::Makes(ObjectClass::CQ), |_, request| {
        Ok(request.set("cqe", 16).set("comp_channel", u64::from(u32::MAX)))
    })
    .answers(16),
    command(19, Effect::Nothing, |session, request| {
        let cq = session.cq()?;
        Ok(request.set("cq_handle", cq.into()).set("cqe", 32))
    })
    .answers(16),
    command(20, Effect::Destroys(ObjectClass::CQ, "cq_handle"), |session, request| {
        destroys(ObjectClass::CQ, session, request, "cq_handle")
    }),
    command(23, Effect::Nothing, |session, request| {
        let cq = session.cq()?;
        Ok(request.set("cq_handle", cq.into()))
    }),
    command(24, Effect::Makes(ObjectClass::QP), qp_fields).answers(32),
    command(25, Effect::Nothing, |session, request| {
        let qp = session.qp(QpType::RC)?;
        Ok(request.set("qp_handle", qp.into()).set("attr_mask", 1))
    }),
    command(26, Effect::Nothing, |session, request| {
        let qp = session.qp(QpType::RC)?;
        Ok(request.set("qp_handle", qp.into()).set("attr_mask", 1))
    }),
    command(27, Effect::Destroys(ObjectClass::QP, "qp_handle"), |session, request| {
        destroys(ObjectClass::QP, session, request, "qp_handle")
    }),
    command(28, Effect::Nothing, |session, request| {
        let mut qp = super::qp_states::Qp::new(session, QpType::RC)?;
        qp.to(session, bareverbs_uapi::verbs_values::QpState::RTS)?;
        Ok(request.set("qp_handle", qp.request.qp_handle.into()).set("wqe_size", 56))
    }),
    command(30, Effect::Nothing, multicast),
    command(31, Effect::Nothing, |session, request| {
        let request = multicast(session, request)?;
        let mut call = session.command(30, &request.bytes, 0, 0);
        session.prepare(&mut call)?;
        Ok(request)
    }),
    command(32, Effect::Makes(ObjectClass::SRQ), |session, request| {
        let pd = session.pd()?;
        Ok(request.set("pd_handle", pd.into()).set("max_wr", 4).set("max_sge", 1))
    })
    .answers(24),
    Command {
        uhw_in: 8,
        ..command(33, Effect::Nothing, |session, request| {
            let srq = session.srq()?;
            // IB_SRQ_LIMIT
            Ok(request.set("srq_handle", srq.into()).set("attr_mask", 2).set("srq_limit", 1))
        })
    },
    command(34, Effect::Nothing, |session, request| {
        let srq = session.srq()?;
        Ok(request.set("srq_handle", srq.into()))
    }),
    command(35, Effect::Destroys(ObjectClass::SRQ, "srq_handle"), |session, request| {
        destroys(ObjectClass::SRQ, session, request, "srq_handle")
    }),
    command(39, Effect::Makes(ObjectClass::SRQ), |session, request| {
        let pd = session.pd()?;
        Ok(request.set("pd_handle", pd.into()).set("max_wr", 4).set("max_sge", 1))
    })
    .answers(24),
    command(EXTENDED | 1, Effect::Nothing, |_, request| Ok(request)),
    command(EXTENDED | 18, Effect::Makes(ObjectClass::CQ), |_, request| {
        Ok(request.set("cqe", 16).set("comp_channel", u64::from(u32::MAX)))
    })
    .answers(16),
    command(EXTENDED | 24, Effect::Makes(ObjectClass::QP), qp_fields).answers(32),
    command(EXTENDED | 26, Effect::Nothing, |session, request| {
        let qp = session.qp(QpType::RC)?;
        Ok(request.set("qp_handle", qp.into()).set("attr_mask", 1))
    }),
];

/// Whether rxe has a command.
#[cfg(any(test, feature = "test-utils"))]
pub(crate) fn is_on_rxe(number: u32) -> bool {
    COMMANDS.iter().any(|command| command.number == number)
}

/// Length of the driver's response.
#[cfg(any(test, feature = "test-utils"))]
pub(crate) fn driver_response(number: u32) -> usize {
    COMMANDS.iter().find(|command| command.number == number).map_or(0, |command| command.uhw_out)
}

/// A valid call of a command, its request, and the file's context if the command needs it.
fn build(command: &Command, session: &mut Session<'_>) -> Step<(Call, Request)> {
    if session.series < command.since {
        return skip(format!("rxe has the command since {}", command.since.name()));
    }
    if command.effect != Effect::MakesContext {
        session.context()?;
    }
    if command.uhw_out + command.uhw_in > 0 {
        session.needs_rxe_payloads()?;
    }
    let info = command.info();
    let request = (command.build)(session, Request::new(info))?;
    let response = info.response.map_or(0, |info| info.size);
    let mut call = session.command(command.number, &request.bytes, response, command.uhw_out);
    if command.uhw_in > 0 {
        call = call.with(Slot::input(UHW_IN, &vec![0; command.uhw_in]));
    }
    Ok((call, request))
}

/// Notes the effect of a successful command. The response may be absent.
fn apply(
    command: &Command,
    session: &mut Session<'_>,
    request: &Request,
    response: Option<&Slot>,
) -> Step<()> {
    let bytes = response.and_then(|slot| slot.bytes().first_chunk());
    apply_first(command, session, request, bytes.map(|bytes| u32::from_ne_bytes(*bytes)))
}

fn apply_first(
    command: &Command,
    session: &mut Session<'_>,
    request: &Request,
    first: Option<u32>,
) -> Step<()> {
    let response = first.unwrap_or(0);
    match command.effect {
        Effect::Nothing => {}
        Effect::Makes(class) if first.is_none() => session.note_new(class.0)?,
        Effect::Makes(class) => session.note_object(class.0, response),
        Effect::MakesFd(class) => session.note_descriptor(class.0, response.cast_signed()),
        Effect::Destroys(class, field) => session.forget(class.0, request.get(field)),
        Effect::MakesContext => {
            session.note_context();
            session.note_descriptor(ObjectClass::ASYNC_EVENT.0, response.cast_signed());
        }
    }
    Ok(())
}

/// Executes a changed command, and the valid one after a refusal.
fn run(
    command: &Command,
    session: &mut Session<'_>,
    expect: Expect,
    mutate: impl Fn(&mut Session<'_>, &mut Call, &mut Request) -> Step<()>,
) -> Step<()> {
    let (mut valid, request) = build(command, session)?;
    let (mut call, mut changed) = (valid.clone(), request.clone());
    mutate(session, &mut call, &mut changed)?;
    let got = session.judge(&mut call, expect)?;
    let out = InvokeWrite::CORE_OUT.id();
    match got {
        Answer::Ok => apply(command, session, &changed, call.slot(out)),
        Answer::FAULT
            if matches!(command.effect, Effect::Destroys(..)) && call.slot(out).is_some_and(unmapped) =>
        {
            // Destroyed before the response was written.
            apply(command, session, &request, None)?;
            match session.execute(&mut valid) {
                Answer::NOENT => Ok(()),
                got => fail(format!("the valid call after EFAULT: expected ENOENT, got {got}: {valid}")),
            }
        }
        _ => match session.execute(&mut valid) {
            Answer::Ok => apply(command, session, &request, valid.slot(out)),
            got if got == command.answer().on(session.series) => Ok(()),
            got => fail(format!("the valid call after the refused one failed with {got}: {valid}")),
        },
    }
}

fn unmapped(slot: &Slot) -> bool {
    slot.payload == Payload::None && slot.raw.data == UNMAPPED
}

fn slot_mut(call: &mut Call, id: u16) -> Step<&mut Slot> {
    call.slot_mut(id).map_or_else(|| fail("the command has no such payload"), Ok)
}

/// Replaces the request of a call.
fn replace(call: &mut Call, bytes: &[u8]) -> Step<()> {
    let id = InvokeWrite::CORE_IN.id();
    *slot_mut(call, id)? = Slot::input(id, bytes);
    Ok(())
}

fn title(command: &Command, place: &str, rule: Rule, suffix: &str) -> String {
    let separator = if suffix.is_empty() { "" } else { "-" };
    format!("command::{}::{place}::{}{separator}{suffix}", command.title(), rule.id())
}

const CORE_IN: u16 = InvokeWrite::CORE_IN.id();
const CORE_OUT: u16 = InvokeWrite::CORE_OUT.id();

/// The rule and the expected answer of a check of a command; `None`: the command has no such check.
type Applies = fn(&Command) -> Option<(Rule, Expect)>;

/// A change of a valid call: the place, a suffix, what it expects, and the change.
type Mutation = (&'static str, &'static str, Applies, fn(&Command, &mut Call, &Request) -> Step<()>);

/// The rule of requests or responses that are too short.
fn short(command: &Command, rule: Rule) -> Rule {
    if command.is_extended() { Rule::ExtendedShort } else { rule }
}

/// What a check expects of commands with a response.
fn of_response(command: &Command, rule: Rule, answer: impl Into<Expect>) -> Option<(Rule, Expect)> {
    command.info().response.map(|_| (rule, answer.into()))
}

/// What a check expects of commands with a driver's response.
fn of_driver(command: &Command, rule: Rule, answer: Answer) -> Option<(Rule, Expect)> {
    (command.uhw_out > 0 && command.number != 5).then(|| (rule, answer.into()))
}

const MUTATIONS: [Mutation; 13] = [
    ("all", "", |command| Some((Rule::GoodCall, command.answer())), |_, _, _| Ok(())),
    (
        "request",
        "one-less",
        |command| Some((short(command, Rule::RequestShort), command.answer_of_short().into())),
        |command, call, _| cut(call, CORE_IN, command.info().request_minimum - 1),
    ),
    (
        "request",
        "absent",
        |command| Some((short(command, Rule::RequestShort), command.answer_without_request())),
        |_, call, _| remove(call, CORE_IN),
    ),
    (
        "request",
        "",
        |command| {
            let size = command.info().request.map_or(0, |info| info.size);
            (size > 8).then_some((Rule::RequestUnreadable, Expect::Is(Answer::FAULT)))
        },
        |_, call, _| unmap(call, CORE_IN),
    ),
    (
        "request",
        "",
        |command| Some((Rule::RequestZeroTail, command.answer())),
        |_, call, request| append(call, request, [0; 8]),
    ),
    (
        "request",
        "first",
        |_| Some((Rule::RequestTail, Expect::Is(Answer::OPNOTSUPP))),
        |_, call, request| append(call, request, [1, 0, 0, 0, 0, 0, 0, 0]),
    ),
    (
        "request",
        "last",
        |_| Some((Rule::RequestTail, Expect::Is(Answer::OPNOTSUPP))),
        |_, call, request| append(call, request, [0, 0, 0, 0, 0, 0, 0, 1]),
    ),
    (
        "response",
        "one-less",
        |command| {
            of_response(command, short(command, Rule::ResponseShort), command.answer_of_short_response())
        },
        |command, call, _| cut(call, CORE_OUT, command.info().response_minimum - 1),
    ),
    (
        "response",
        "absent",
        |command| {
            of_response(command, short(command, Rule::ResponseShort), command.answer_of_short_response())
        },
        |_, call, _| remove(call, CORE_OUT),
    ),
    (
        "response",
        "",
        |command| of_response(command, Rule::ResponseUnwritable, Answer::FAULT),
        |_, call, _| unmap(call, CORE_OUT),
    ),
    (
        "UHW_OUT",
        "one-less",
        |command| of_driver(command, Rule::DriverPayload, Answer::INVAL),
        |command, call, _| cut(call, UHW_OUT, command.uhw_out - 1),
    ),
    (
        "UHW_OUT",
        "absent",
        |command| of_driver(command, Rule::DriverPayload, Answer::INVAL),
        |_, call, _| remove(call, UHW_OUT),
    ),
    (
        "UHW_OUT",
        "",
        |command| of_driver(command, Rule::ResponseUnwritable, Answer::FAULT),
        |_, call, _| unmap(call, UHW_OUT),
    ),
];

/// Sets the length of a payload.
fn cut(call: &mut Call, id: u16, len: usize) -> Step<()> {
    slot_mut(call, id)?.set_len(len as u16);
    Ok(())
}

/// Replaces the address of a payload by one without memory.
fn unmap(call: &mut Call, id: u16) -> Step<()> {
    slot_mut(call, id)?.unmap();
    Ok(())
}

fn remove(call: &mut Call, id: u16) -> Step<()> {
    call.slots.retain(|slot| slot.raw.attr_id != id);
    Ok(())
}

fn append(call: &mut Call, request: &Request, tail: [u8; 8]) -> Step<()> {
    replace(call, &[request.bytes.as_slice(), &tail].concat())
}

impl Command {
    fn is_extended(&self) -> bool {
        self.number & EXTENDED != 0
    }

    /// The answer to a request that is one byte too short.
    fn answer_of_short(&self) -> Answer {
        // INVOKE_WRITE itself refuses requests below 4 bytes.
        match self.info().request_minimum {
            _ if self.is_extended() => Answer::Ok,
            0..=4 => Answer::INVAL,
            _ => Answer::NOSPC,
        }
    }

    /// The answer to a call without a request.
    fn answer_without_request(&self) -> Expect {
        // A request of zeros names descriptor 0 as its channel.
        if self.number == (EXTENDED | 18) {
            let (before, after) = (Answer::BADF, Answer::INVAL);
            return Expect::Changed { change: &CQ_WITHOUT_ENTRIES, before, after };
        }
        // Only QUERY_DEVICE takes a request of zeros.
        let answer = match self.is_extended() {
            true if self.info().rust == "QueryDevice" => Answer::Ok,
            true => Answer::INVAL,
            false => Answer::NOSPC,
        };
        answer.into()
    }

    /// The answer to a call whose response is too short or absent.
    fn answer_of_short_response(&self) -> Answer {
        if self.is_extended() { Answer::Ok } else { Answer::NOSPC }
    }

    /// The answer on a file without a context.
    fn answer_without_context(&self) -> Answer {
        // Commands with handles look the object up first, in a file that has none.
        let handles = Request::new(self.info()).handles();
        let makes = matches!(self.effect, Effect::Makes(_) | Effect::MakesFd(_));
        if makes || handles.is_empty() { Answer::INVAL } else { Answer::NOENT }
    }
}

/// A judged call that is not followed by the valid one: the place, a suffix, what it expects, and the
/// call.
type Judged = (&'static str, &'static str, Applies, fn(&Command, &mut Session<'_>, Expect) -> Step<()>);

const JUDGED: [Judged; 3] = [
    (
        "request",
        "unreadable",
        |command| {
            let (before, after) = (Answer::OPNOTSUPP, Answer::FAULT);
            let expect = Expect::Changed { change: &UNREADABLE_TAIL, before, after };
            (command.info().rust != "PostSend").then_some((Rule::RequestTail, expect))
        },
        |command, session, expect| {
            let (mut call, request) = build(command, session)?;
            let Some(guard) = Guard::ending_with(&request.bytes) else { return skip("no memory") };
            let slot = slot_mut(&mut call, CORE_IN)?;
            (slot.payload, slot.raw.data) = (Payload::None, guard.address());
            slot.raw.len = (request.bytes.len() + 8) as u16;
            session.judge(&mut call, expect).map(drop)
        },
    ),
    (
        "response",
        "",
        |command| of_response(command, Rule::ResponseTail, command.answer()),
        |command, session, expect| {
            let size = command.info().response.map_or(0, |response| response.size);
            let (mut call, request) = build(command, session)?;
            cut(&mut call, CORE_OUT, size + 8)?;
            if session.judge(&mut call, expect)? != Answer::Ok {
                return Ok(());
            }
            apply(command, session, &request, call.slot(CORE_OUT))?;
            match call.slot(CORE_OUT).and_then(|slot| slot.bytes().get(size..size + 8)) {
                Some([0, 0, 0, 0, 0, 0, 0, 0]) => Ok(()),
                // The kernel answers with the struct of the extended command.
                Some([0, 0, 0, 0, _, 0, 0, 0]) if [18, 24].contains(&command.number) => Ok(()),
                tail => fail(format!("the tail is {tail:02x?} (filled with {FILL:#x}), not zero")),
            }
        },
    ),
    (
        "all",
        "",
        |command| {
            let needs_context = command.effect != Effect::MakesContext;
            needs_context.then(|| (Rule::NeedsContext, command.answer_without_context().into()))
        },
        |command, session, expect| {
            let mut other = session.other()?;
            let (mut call, _) = build(command, &mut other)?;
            session.judge(&mut call, expect).map(drop)
        },
    ),
];

fn of_command(command: &'static Command, checks: &mut Vec<Check>) {
    for (place, suffix, applies, mutate) in MUTATIONS {
        let Some((rule, expect)) = applies(command) else { continue };
        checks.push(Check::new(title(command, place, rule, suffix), rule, expect, move |session| {
            run(command, session, expect, |_, call, request| mutate(command, call, request))
        }));
    }
    for (place, suffix, applies, body) in JUDGED {
        let Some((rule, expect)) = applies(command) else { continue };
        checks.push(Check::new(title(command, place, rule, suffix), rule, expect, move |session| {
            body(command, session, expect)
        }));
    }
    of_handles(command, checks);
}

/// Whether a command reads a handle only for some requests that the valid one is not of.
fn is_conditional(field: &str, request: &Request) -> bool {
    match field {
        "srq_handle" => request.has("is_srq"),
        "rwq_ind_tbl_handle" | "xrcd_handle" => true,
        "cq_handle" => request.has("srq_type"),
        _ => false,
    }
}

/// The class of the handle in a field.
fn class_of(field: &str) -> Option<ObjectClass> {
    Some(match field {
        "pd_handle" => ObjectClass::PD,
        "cq_handle" | "send_cq_handle" | "recv_cq_handle" => ObjectClass::CQ,
        "qp_handle" => ObjectClass::QP,
        "srq_handle" => ObjectClass::SRQ,
        "ah_handle" => ObjectClass::AH,
        "mr_handle" => ObjectClass::MR,
        "mw_handle" => ObjectClass::MW,
        _ => return None,
    })
}

/// A handle that names no object of the class: a suffix, the answer, and what makes it.
type NoHandle = (&'static str, Answer, fn(&mut Session<'_>, ObjectClass) -> Step<u32>);

const NO_HANDLES: [NoHandle; 4] = [
    ("unknown", Answer::NOENT, |_, _| Ok(NOWHERE)),
    ("maximum", Answer::NOENT, |_, _| Ok(u32::MAX)),
    ("destroyed", Answer::NOENT, |session, class| {
        let handle = session.object(class.0)?;
        session.destroy(class.0, handle)?;
        Ok(handle)
    }),
    ("type", Answer::INVAL, |session, class| {
        let other = if class == ObjectClass::MW { ObjectClass::PD } else { ObjectClass::MW };
        session.object(other.0)
    }),
];

fn of_handles(command: &'static Command, checks: &mut Vec<Check>) {
    let (rule, request) = (Rule::RequestHandle, Request::new(command.info()));
    for field in request.handles() {
        let Some(class) = class_of(field) else { continue };
        // REREG_MR reads the PD only with its flag.
        if is_conditional(field, &request) || (command.number == 11 && field == "pd_handle") {
            continue;
        }
        for (suffix, answer, make) in NO_HANDLES {
            checks.push(Check::new(title(command, field, rule, suffix), rule, answer, move |session| {
                run(command, session, answer.into(), |session, call, request| {
                    let handle = make(session, class)?;
                    replace(call, &request.clone().set(field, handle.into()).bytes)
                })
            }));
        }
    }
}

/// Fields with an invalid value: command, suffix, field, value, answer.
const FIELDS: &[(u32, &str, &str, u64, Answer)] = &[
    (2, "0", "port_num", 0, Answer::INVAL),
    (2, "2", "port_num", 2, Answer::INVAL),
    (2, "255", "port_num", 255, Answer::INVAL),
    (9, "other-page-offset", "hca_va", 1, Answer::INVAL),
    (9, "remote-write-alone", "access_flags", 2, Answer::INVAL),
    (9, "remote-atomic-alone", "access_flags", 8, Answer::INVAL),
    (9, "bit-30", "access_flags", 1 << 30, Answer::INVAL),
    (9, "bit-31", "access_flags", 1 << 31, Answer::INVAL),
    (9, "relaxed-ordering", "access_flags", 1 << 20 | 1, Answer::Ok),
    (9, "optional-range", "access_flags", 0x3ff0_0001, Answer::Ok),
    (9, "all-rxe", "access_flags", 0x1f, Answer::Ok),
    (11, "0", "flags", 0, Answer::INVAL),
    (11, "translation", "flags", 1, Answer::OPNOTSUPP),
    (11, "bit-3", "flags", 8, Answer::OPNOTSUPP),
    (11, "bit-31", "flags", 1 << 31, Answer::OPNOTSUPP),
    (11, "remote-write-alone", "access_flags", 2, Answer::INVAL),
    (11, "bit-31-of-access", "access_flags", 1 << 31, Answer::INVAL),
    (14, "0", "mw_type", 0, Answer::INVAL),
    (14, "3", "mw_type", 3, Answer::INVAL),
    (14, "255", "mw_type", 255, Answer::INVAL),
    (14, "2", "mw_type", 2, Answer::Ok),
    (18, "0", "cqe", 0, Answer::INVAL),
    (18, "32767", "cqe", 32767, Answer::Ok),
    (18, "32768", "cqe", 32768, Answer::INVAL),
    (18, "maximum", "cqe", 0xffff_ffff, Answer::INVAL),
    (18, "many", "comp_vector", 4096, Answer::INVAL),
    (18, "maximum", "comp_vector", 0xffff_ffff, Answer::INVAL),
    (18, "closed", "comp_channel", 0x7fff_fff0, Answer::BADF),
    (19, "0", "cqe", 0, Answer::INVAL),
    (19, "32768", "cqe", 32768, Answer::INVAL),
    (19, "maximum", "cqe", 0xffff_ffff, Answer::INVAL),
    (19, "1", "cqe", 1, Answer::Ok),
    (24, "GSI", "qp_type", 1, Answer::INVAL),
    (24, "SMI", "qp_type", 0, Answer::INVAL),
    (24, "XRC_INI", "qp_type", 9, Answer::OPNOTSUPP),
    (24, "11", "qp_type", 11, Answer::INVAL),
    (24, "7", "qp_type", 7, Answer::INVAL),
    (24, "DRIVER", "qp_type", 255, Answer::OPNOTSUPP),
    (24, "UC", "qp_type", 3, Answer::Ok),
    (24, "UD", "qp_type", 4, Answer::Ok),
    (24, "33", "max_send_sge", 33, Answer::INVAL),
    (24, "33", "max_recv_sge", 33, Answer::INVAL),
    (24, "32", "max_send_sge", 32, Answer::Ok),
    (24, "above", "max_send_wr", (1 << 20) + 1, Answer::INVAL),
    (24, "above", "max_recv_wr", (1 << 20) + 1, Answer::INVAL),
    (24, "maximum", "max_send_wr", 0xffff_ffff, Answer::INVAL),
    (24, "513", "max_inline_data", 513, Answer::INVAL),
    (24, "512", "max_inline_data", 512, Answer::Ok),
    (26, "bit-21", "attr_mask", 1 << 21, Answer::OPNOTSUPP),
    (26, "bit-25", "attr_mask", 1 << 25, Answer::OPNOTSUPP),
    (26, "bit-31", "attr_mask", 1 << 31, Answer::OPNOTSUPP),
    (28, "0", "wqe_size", 0, Answer::INVAL),
    (28, "55", "wqe_size", 55, Answer::INVAL),
    (28, "beyond", "wr_count", 1, Answer::NOSPC),
    (28, "maximum", "wr_count", 0xffff_ffff, Answer::NOSPC),
    (28, "beyond", "sge_count", 1, Answer::NOSPC),
    (28, "maximum", "sge_count", 0xffff_ffff, Answer::NOSPC),
    (32, "0", "max_wr", 0, Answer::INVAL),
    (32, "above", "max_wr", (1 << 20) + 1, Answer::INVAL),
    (32, "maximum", "max_wr", 0xffff_ffff, Answer::INVAL),
    (32, "28", "max_sge", 28, Answer::INVAL),
    (32, "27", "max_sge", 27, Answer::Ok),
    (33, "limit-above", "srq_limit", 1 << 20, Answer::INVAL),
    (39, "XRC", "srq_type", 1, Answer::INVAL),
    (39, "3", "srq_type", 3, Answer::OPNOTSUPP),
    (EXTENDED | 1, "1", "comp_mask", 1, Answer::INVAL),
    (EXTENDED | 1, "bit-31", "comp_mask", 1 << 31, Answer::INVAL),
    (EXTENDED | 1, "1", "reserved", 1, Answer::INVAL),
    (EXTENDED | 18, "1", "comp_mask", 1, Answer::INVAL),
    (EXTENDED | 18, "1", "reserved", 1, Answer::INVAL),
    (EXTENDED | 18, "timestamps", "flags", 1, Answer::OPNOTSUPP),
    (EXTENDED | 18, "ignore-overrun", "flags", 2, Answer::OPNOTSUPP),
    (EXTENDED | 18, "bit-31", "flags", 1 << 31, Answer::OPNOTSUPP),
    (EXTENDED | 18, "0", "cqe", 0, Answer::INVAL),
    (EXTENDED | 24, "bit-1", "comp_mask", 2, Answer::INVAL),
    (EXTENDED | 24, "bit-31", "comp_mask", 1 << 31, Answer::INVAL),
    (EXTENDED | 24, "1", "reserved", 1, Answer::INVAL),
    (EXTENDED | 24, "bit-0", "create_flags", 1, Answer::INVAL),
    (EXTENDED | 24, "bit-31", "create_flags", 1 << 31, Answer::INVAL),
    (EXTENDED | 24, "multicast-loopback", "create_flags", 2, Answer::OPNOTSUPP),
    (EXTENDED | 24, "scatter-fcs", "create_flags", 1 << 8, Answer::OPNOTSUPP),
    (EXTENDED | 26, "bit-21", "attr_mask", 1 << 21, Answer::OPNOTSUPP),
    (EXTENDED | 26, "rate-limit", "attr_mask", 1 << 25, Answer::OPNOTSUPP),
    (EXTENDED | 26, "bit-31", "attr_mask", 1 << 31, Answer::OPNOTSUPP),
];

/// Fields whose answer depends on the series.
static RXE_ODP: Change = Change {
    name: "rxe-odp",
    since: Since::V7_2,
    why: "rxe supports on-demand paging since 7.2 (sw/rxe/rxe_odp.c)",
};
static MR_ACCESS_UNSUPPORTED: Change = Change {
    name: "rxe-mr-access-unsupported",
    since: Since::V6_12,
    why: "rxe refuses access flags that it does not implement since 6.12 (sw/rxe/rxe_verbs.c: rxe_reg_user_mr)",
};
static FLUSH: Change = Change {
    name: "flush-access",
    since: Since::V6_12,
    why: "the flush access flags exist since 6.12 (include/rdma/ib_verbs.h: ib_check_mr_access)",
};

/// Fields whose answer depends on the series: as [`FIELDS`], with the change and the answer before it.
const CHANGED_FIELDS: [(u32, &str, &str, u64, Expect); 3] = [
    (9, "zero-based", "access_flags", 0x21, UNSUPPORTED),
    (9, "hugetlb", "access_flags", 0x81, UNSUPPORTED),
    (9, "flush-global", "access_flags", 0x101, {
        Expect::Changed { change: &FLUSH, before: Answer::INVAL, after: Answer::Ok }
    }),
];

const UNSUPPORTED: Expect =
    Expect::Changed { change: &MR_ACCESS_UNSUPPORTED, before: Answer::Ok, after: Answer::OPNOTSUPP };

/// Sets a field of a valid request.
fn run_with(
    command: &Command,
    session: &mut Session<'_>,
    expect: Expect,
    field: &str,
    value: u64,
) -> Step<()> {
    run(command, session, expect, |_, call, request| replace(call, &request.clone().set(field, value).bytes))
}

fn of_fields(checks: &mut Vec<Check>) {
    let fixed = FIELDS
        .iter()
        .map(|&(number, suffix, field, value, answer)| (number, suffix, field, value, Expect::Is(answer)));
    for (number, suffix, field, value, expect) in fixed.chain(CHANGED_FIELDS) {
        let Some(command) = find(number) else { continue };
        let rule = if field == "access_flags" { Rule::MrAccess } else { Rule::RequestField };
        checks.push(Check::new(title(command, field, rule, suffix), rule, expect, move |session| {
            run_with(command, session, expect, field, value)
        }));
    }
    // Three answers: the flag is known since 6.1, refused for the device by another error since
    // 6.12, and supported since 7.2.
    let Some(command) = find(9) else { return };
    let rule = Rule::MrAccess;
    let old = Expect::Changed { change: &FLUSH, before: Answer::INVAL, after: Answer::OPNOTSUPP };
    let title = title(command, "access_flags", rule, "on-demand");
    checks.push(Check::new(title, rule, old, move |session| {
        let expect = if session.series >= RXE_ODP.since { Answer::Ok.into() } else { old };
        run_with(command, session, expect, "access_flags", 0x41)
    }));
}

/// The command with a number.
fn find(number: u32) -> Option<&'static Command> {
    COMMANDS.iter().find(|command| command.number == number)
}

/// Command numbers without a handler, and numbers with undefined bits.
fn of_numbers(checks: &mut Vec<Check>) {
    let mut add = |rule: Rule, number: u32, expect: Expect| {
        let name = format!("command::{number:#x}::all::{}", rule.id());
        checks.push(Check::new(name, rule, expect, move |session| {
            session.context()?;
            let mut call = session.command(number, &[0; 256], 512, 0);
            session.judge(&mut call, expect).map(drop)
        }));
    };
    for base in [0, EXTENDED] {
        for number in (0..=58).chain([127, 128, 255]).map(|number| base | number) {
            match find(number) {
                // A command that rxe got later.
                Some(command) if command.since > Since::V6_1 => {
                    let change = &RXE_REREG_MR;
                    let (before, after) = (Answer::OPNOTSUPP, Answer::INVAL);
                    add(Rule::WriteUnknown, number, Expect::Changed { change, before, after });
                }
                Some(_) => {}
                None => add(Rule::WriteUnknown, number, Answer::OPNOTSUPP.into()),
            }
        }
    }
    for bit in 8..31 {
        add(Rule::WriteNumber, 1 | 1 << bit, Answer::INVAL.into());
    }
}

/// The checks of commands through `INVOKE_WRITE` on Soft-RoCE.
pub(crate) fn checks(driver_id: u32) -> Vec<Check> {
    let mut checks = Vec::new();
    if driver_id != DriverId::RXE.0 {
        return checks;
    }
    of_numbers(&mut checks);
    for command in &COMMANDS {
        of_command(command, &mut checks);
    }
    of_fields(&mut checks);
    of_write(&mut checks);
    of_short_destroy_cq(&mut checks);
    checks
}

/// A command for `write()`: its bytes, and the buffer of its response.
struct Written {
    bytes: Vec<u8>,
    response: Vec<u8>,
}

/// The bytes of a command. `adjust` gets the words of the header in and out.
fn written(command: &Command, request: &Request, adjust: impl Fn(&mut [u16; 2])) -> Written {
    let info = command.info();
    let core_out = info.response.map_or(0, |info| info.size);
    let mut response = vec![FILL; core_out + command.uhw_out];
    let address = if response.is_empty() { 0 } else { response.as_mut_ptr().expose_provenance() as u64 };
    let mut bytes = Vec::new();
    if command.number & EXTENDED == 0 {
        let input = 8 + request.bytes.len() + command.uhw_in;
        let mut words = [input / 4, response.len() / 4].map(|words| words as u16);
        adjust(&mut words);
        bytes.extend(command.number.to_ne_bytes());
        bytes.extend(words.iter().flat_map(|words| words.to_ne_bytes()));
        let request =
            if request.has("response") { request.clone().set("response", address) } else { request.clone() };
        bytes.extend(&request.bytes);
        bytes.extend(vec![0; command.uhw_in]);
    } else {
        let mut words = [request.bytes.len() / 8, core_out / 8].map(|words| words as u16);
        adjust(&mut words);
        bytes.extend(command.number.to_ne_bytes());
        bytes.extend(words.iter().flat_map(|words| words.to_ne_bytes()));
        bytes.extend(address.to_ne_bytes());
        bytes.extend([0, command.uhw_out / 8].iter().flat_map(|words| (*words as u16).to_ne_bytes()));
        bytes.extend([0; 4]);
        bytes.extend(&request.bytes);
    }
    Written { bytes, response }
}

/// Writes a command and judges the answer.
fn judge_write(session: &mut Session<'_>, call: &Call, bytes: &[u8], expected: Answer) -> Step<Answer> {
    judge_buffer(session, call, &WriteBuffer::new(bytes), expected)
}

/// Writes a command with the bytes behind it, and judges the answer.
fn judge_buffer(
    session: &mut Session<'_>,
    call: &Call,
    buffer: &WriteBuffer,
    expected: Answer,
) -> Step<Answer> {
    let bytes = buffer.command();
    // SAFETY: the response's address is that of a buffer as long as the header says, or a header
    // that does not fit the command refuses it before the kernel writes.
    let result = unsafe { session.file().write(buffer) };
    let text =
        format!("write() of {} bytes, head {:02x?}: {call}", bytes.len(), &bytes[..bytes.len().min(24)]);
    session.compare(&text, expected, Answer::of(&result))
}

/// Words of the header that do not fit the command: a suffix, the answer, and the change of the words in
/// and out.
type Words = (&'static str, Answer, fn(&mut [u16; 2]));

const WORDS: [Words; 4] = [
    ("in-words-more", Answer::INVAL, |words| words[0] += 1),
    ("in-words-less", Answer::INVAL, |words| words[0] -= 1),
    ("in-words-0", Answer::INVAL, |words| words[0] = 0),
    (OUT_WORDS, Answer::NOSPC, |words| words[1] = 0),
];

/// Of commands with a response, except extended ones.
const OUT_WORDS: &str = "out-words-0";

/// Bytes that are no valid command: the command that they change, its title, a suffix, the answer, and the
/// change.
type Bytes = (u32, &'static str, &'static str, Answer, fn(&mut Vec<u8>));

const BYTES: [Bytes; 13] = [
    (1, "all", "empty", Answer::INVAL, |bytes| bytes.clear()),
    (1, "all", "7-bytes", Answer::INVAL, |bytes| bytes.truncate(7)),
    (1, "all", "8-bytes", Answer::INVAL, |bytes| bytes.truncate(8)),
    (1, "all", "number-unknown", Answer::OPNOTSUPP, |bytes| renumber(bytes, 41)),
    (1, "all", "number-hole", Answer::OPNOTSUPP, |bytes| renumber(bytes, 22)),
    (1, "all", "number-unsupported", Answer::OPNOTSUPP, |bytes| renumber(bytes, 37)),
    (1, "all", "number-extended-unknown", Answer::OPNOTSUPP, |bytes| renumber(bytes, EXTENDED | 58)),
    (1, "all", "number-bit-8", Answer::INVAL, |bytes| renumber(bytes, 0x101)),
    (1, "all", "number-bit-30", Answer::INVAL, |bytes| renumber(bytes, 1 << 30 | 1)),
    (EXTENDED | 1, "ExQueryDevice", "reserved", Answer::INVAL, |bytes| bytes[20] = 1),
    (EXTENDED | 1, "ExQueryDevice", "no-response", Answer::INVAL, |bytes| bytes[8..16].fill(0)),
    (EXTENDED | 1, "ExQueryDevice", "response-not-user", Answer::FAULT, |bytes| {
        bytes[8..16].copy_from_slice(&(1_u64 << 63).to_ne_bytes());
    }),
    (EXTENDED | 1, "ExQueryDevice", "no-room", Answer::INVAL, |bytes| bytes[6..8].fill(0)),
];

fn renumber(bytes: &mut [u8], number: u32) {
    bytes[..4].copy_from_slice(&number.to_ne_bytes());
}

fn of_write(checks: &mut Vec<Check>) {
    for command in &COMMANDS {
        let rule = Rule::WriteParity;
        checks.push(Check::new(title(command, "write", rule, ""), rule, Answer::Ok, move |session| {
            let (call, request) = build(command, session)?;
            let written = written(command, &request, |_| {});
            judge_write(session, &call, &written.bytes, Answer::Ok)?;
            let first = written.response.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes));
            apply_first(command, session, &request, first)
        }));
        let rule = Rule::WriteHeader;
        let has_response = command.info().response.is_some() && !command.is_extended();
        for (suffix, answer, adjust) in WORDS.into_iter().filter(|row| row.0 != OUT_WORDS || has_response) {
            checks.push(Check::new(title(command, "write", rule, suffix), rule, answer, move |session| {
                let (call, request) = build(command, session)?;
                let written = written(command, &request, adjust);
                judge_write(session, &call, &written.bytes, answer).map(drop)
            }));
        }
    }
    for (number, title, suffix, answer, change) in BYTES {
        let rule = Rule::WriteHeader;
        let name = format!("command::{title}::write::{}-{suffix}", rule.id());
        checks.push(Check::new(name, rule, answer, move |session| {
            let Some(command) = find(number) else { return skip("no such command") };
            let (call, request) = build(command, session)?;
            let mut written = written(command, &request, |_| {});
            change(&mut written.bytes);
            judge_write(session, &call, &written.bytes, answer).map(drop)
        }));
    }
}

/// `DESTROY_CQ` of fewer bytes than its struct. The kernel accepts 16 bytes.
fn of_short_destroy_cq(checks: &mut Vec<Check>) {
    let (Some(destroy_cq), Some(destroy_qp)) = (find(20), find(27)) else { return };
    /// The first bytes of a command, with a header for them, and the bytes behind them.
    fn split(
        command: &'static Command,
        session: &mut Session<'_>,
        len: usize,
    ) -> Step<(Call, Request, Vec<u8>, [u8; OVERREAD])> {
        let (call, request) = build(command, session)?;
        // No response: only the size of the request of this command is checked.
        let Written { mut bytes, .. } = written(command, &request, |words| *words = [(len / 4) as u16, 0]);
        let mut tail = [0; OVERREAD];
        let rest = &bytes[len..];
        let copied = rest.len().min(OVERREAD);
        tail[..copied].copy_from_slice(&rest[..copied]);
        bytes.truncate(len);
        Ok((call, request, bytes, tail))
    }
    let rule = Rule::WriteOverread;
    checks.push(Check::new(title(destroy_cq, "write", rule, "live"), rule, Answer::Ok, move |session| {
        let (call, request, bytes, tail) = split(destroy_cq, session, 16)?;
        judge_buffer(session, &call, &WriteBuffer::with_tail(&bytes, tail), Answer::Ok)?;
        apply_first(destroy_cq, session, &request, None)
    }));
    type Place = fn(&[u8]) -> Option<WriteBuffer>;
    let places: [(&str, Answer, Place); 2] = [
        ("maximum", Answer::NOENT, |bytes| Some(WriteBuffer::new(bytes))),
        ("unreadable", Answer::FAULT, WriteBuffer::before_unmapped),
    ];
    for (name, answer, buffer) in places {
        checks.push(Check::new(title(destroy_cq, "write", rule, name), rule, answer, move |session| {
            let (call, _, bytes, _) = split(destroy_cq, session, 16)?;
            let Some(buffer) = buffer(&bytes) else { return skip("no memory") };
            judge_buffer(session, &call, &buffer, answer).map(drop)
        }));
    }
    let rule = Rule::RequestShort;
    for (command, len) in [(destroy_cq, 8), (destroy_cq, 12), (destroy_cq, 20), (destroy_qp, 16)] {
        let title = title(command, "write", rule, &format!("{len}-bytes"));
        checks.push(Check::new(title, rule, Answer::NOSPC, move |session| {
            let (call, _, bytes, tail) = split(command, session, len)?;
            judge_buffer(session, &call, &WriteBuffer::with_tail(&bytes, tail), Answer::NOSPC).map(drop)
        }));
    }
}
