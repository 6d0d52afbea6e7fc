//! The rules of the ioctl parser, at every attribute of every method.

use std::rc::Rc;

use bareverbs_uapi::ioctl::{AttributeFlags, Header};
use bareverbs_uapi::method::{Access, AttributeKind, MethodInfo, PayloadSize};
use bareverbs_uapi::registry;
use bareverbs_uapi::uverbs::ObjectClass;

use crate::answer::{Answer, Expect};
use crate::base::{Attr, Base, Effect, complete, is_class_on_rxe, is_on_rxe, length};
use crate::call::{Call, FILL, Payload, Slot, UNMAPPED};
use crate::check::Check;
use crate::guard::Guard;
use crate::rules::Rule;
use crate::session::Session;
use crate::step::{Step, fail, skip};

/// Changes a valid call at an attribute.
pub(super) type Mutate = Rc<dyn Fn(&mut Session<'_>, &mut Call, u16) -> Step<()>>;

/// When the kernel finds a fault.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Before the handler runs.
    Parser,
    /// In the handler, behind its test of the driver's support.
    Handler,
    /// In the handler after the object is destroyed or made.
    Response,
}

pub(super) struct Mutation {
    pub(super) suffix: String,
    pub(super) rule: Rule,
    pub(super) phase: Phase,
    pub(super) answer: Option<Answer>,
    pub(super) mutate: Mutate,
}

fn mutation(
    suffix: &str,
    rule: Rule,
    phase: Phase,
    answer: impl Into<Option<Answer>>,
    mutate: impl Fn(&mut Session<'_>, &mut Call, u16) -> Step<()> + 'static,
) -> Mutation {
    Mutation { suffix: suffix.to_owned(), rule, phase, answer: answer.into(), mutate: Rc::new(mutate) }
}

/// A change of one attribute that needs no session.
fn change(
    suffix: &str,
    rule: Rule,
    phase: Phase,
    answer: impl Into<Option<Answer>>,
    change: impl Fn(&mut Slot) + 'static,
) -> Mutation {
    mutation(suffix, rule, phase, answer, move |_, call, id| {
        call.slot_mut(id).map_or_else(
            || fail("the call lacks the attribute"),
            |slot| {
                change(slot);
                Ok(())
            },
        )
    })
}

fn set_data(
    suffix: &str,
    rule: Rule,
    phase: Phase,
    answer: impl Into<Option<Answer>>,
    data: u64,
) -> Mutation {
    change(suffix, rule, phase, answer, move |slot| slot.raw.data = data)
}

fn set_len(
    suffix: &str,
    rule: Rule,
    phase: Phase,
    answer: impl Into<Option<Answer>>,
    len: usize,
) -> Mutation {
    let len = u16::try_from(len).unwrap_or(u16::MAX);
    change(suffix, rule, phase, answer, move |slot| slot.set_len(len))
}

fn set_number(suffix: &str, rule: Rule, answer: Answer, value: u64) -> Mutation {
    change(suffix, rule, Phase::Handler, answer, move |slot| {
        *slot = Slot::number(slot.raw.attr_id, value);
    })
}

/// The mutations of any attribute.
pub(super) fn common(attr: &Attr) -> Vec<Mutation> {
    use Phase::Parser;
    let mut list = vec![
        mutation("", Rule::Duplicate, Parser, Answer::INVAL, |_, call, id| {
            let Some(slot) = call.slot(id).cloned() else { return fail("the call lacks the attribute") };
            call.slots.push(slot);
            Ok(())
        }),
        change("", Rule::AttributeFlags, Parser, None, |slot| {
            slot.raw.flags |= AttributeFlags::from_bits_retain(0xfffc);
        }),
        change("", Rule::KnownOptional, Parser, None, |slot| slot.raw.flags = AttributeFlags::empty()),
        mutation("first", Rule::AttributeOrder, Parser, None, |_, call, id| {
            call.slots.sort_by_key(|slot| slot.raw.attr_id != id);
            Ok(())
        }),
        mutation("last", Rule::AttributeOrder, Parser, None, |_, call, id| {
            call.slots.sort_by_key(|slot| slot.raw.attr_id == id);
            Ok(())
        }),
    ];
    if let Some(answer) = attr.missing {
        let rule =
            if answer == Answer::INVAL && attr.id < 0x1000 { Rule::Missing } else { Rule::MissingForHandler };
        let phase = if attr.kind_is_mandatory() { Parser } else { Phase::Handler };
        list.push(mutation("", rule, phase, answer, |_, call, id| {
            call.slots.retain(|slot| slot.raw.attr_id != id);
            Ok(())
        }));
    }
    if matches!(attr.kind, AttributeKind::Enumeration { .. }) {
        list.push(change("", Rule::EnumElement, Parser, Answer::OPNOTSUPP, |slot| slot.raw.attr_data = 0xff));
        list.push(change("", Rule::EnumReserved, Parser, Answer::INVAL, |slot| slot.raw.attr_data |= 0x100));
    } else {
        for (suffix, bits) in [("low", 1), ("high", 0x8000)] {
            list.push(change(suffix, Rule::AttributeReserved, Parser, Answer::INVAL, move |slot| {
                slot.raw.attr_data = bits;
            }));
        }
    }
    list
}

impl Attr {
    pub(super) fn kind_is_mandatory(&self) -> bool {
        self.in_base && self.missing == Some(Answer::INVAL) && self.id < 0x1000
    }
}

fn handle_lengths() -> [Mutation; 2] {
    [4, 8].map(|len| {
        change(&len.to_string(), Rule::HandleLength, Phase::Parser, Answer::INVAL, move |slot| {
            slot.raw.len = len
        })
    })
}

/// The mutations of a handle of an existing object.
fn existing_handle(class: u16) -> Vec<Mutation> {
    use Phase::Parser;
    let mut list = vec![
        set_data("0x7ffffff0", Rule::HandleUnknown, Parser, Answer::NOENT, 0x7fff_fff0),
        set_data("0xffffffff", Rule::HandleUnknown, Parser, Answer::NOENT, 0xffff_ffff),
        set_data("-1", Rule::HandleNegative, Parser, Answer::INVAL, u64::MAX),
        set_data("minimum", Rule::HandleNegative, Parser, Answer::INVAL, 1 << 63),
        change("bit-32", Rule::HandleWide, Parser, Answer::NOENT, |slot| slot.raw.data |= 1 << 32),
        change("bit-62", Rule::HandleWide, Parser, Answer::NOENT, |slot| slot.raw.data |= 1 << 62),
        mutation("", Rule::HandleDestroyed, Parser, Answer::NOENT, move |session, call, id| {
            let handle = session.object(class)?;
            if session.destroy(class, handle)? != Answer::Ok {
                return fail("an unused object can't be destroyed");
            }
            set_handle(call, id, handle)
        }),
        mutation("", Rule::HandleForeign, Parser, Answer::NOENT, move |session, call, id| {
            let mut other = session.other()?;
            for _ in 0..24 {
                other.pd()?;
            }
            let handle = other.object(class)?;
            session.keep(other);
            set_handle(call, id, handle)
        }),
    ];
    for other in [ObjectClass::PD, ObjectClass::MW, ObjectClass::MR] {
        if other.0 != class {
            let suffix = other.to_string().to_lowercase();
            list.push(mutation(
                &suffix,
                Rule::HandleType,
                Parser,
                Answer::INVAL,
                move |session, call, id| {
                    let handle = session.object(other.0)?;
                    set_handle(call, id, handle)
                },
            ));
        }
    }
    list.extend(handle_lengths());
    list
}

fn set_handle(call: &mut Call, id: u16, handle: u32) -> Step<()> {
    match call.slot_mut(id) {
        Some(slot) => {
            slot.raw.data = handle.into();
            Ok(())
        }
        None => fail("the call lacks the attribute"),
    }
}

/// The mutations of a descriptor of an existing object.
fn existing_fd(class: u16) -> Vec<Mutation> {
    use Phase::Parser;
    let set_fd = |call: &mut Call, id: u16, fd: i32| -> Step<()> {
        let Some(slot) = call.slot_mut(id) else { return fail("the call lacks the attribute") };
        slot.raw.data = i64::from(fd).cast_unsigned();
        Ok(())
    };
    let other = if class == ObjectClass::ASYNC_EVENT.0 {
        ObjectClass::COMP_CHANNEL
    } else {
        ObjectClass::ASYNC_EVENT
    };
    let mut list = vec![
        set_data("-1", Rule::FdClosed, Parser, Answer::BADF, u64::MAX),
        set_data("0x7fffffff", Rule::FdClosed, Parser, Answer::BADF, 0x7fff_ffff),
        mutation("closed", Rule::FdClosed, Parser, Answer::BADF, move |session, call, id| {
            let fd = session.descriptor(class)?;
            session.close(fd);
            set_fd(call, id, fd)
        }),
        mutation("null", Rule::FdOtherFile, Parser, Answer::BADF, move |session, call, id| {
            set_fd(call, id, session.file().other_fds()[1])
        }),
        mutation("uverbs", Rule::FdOtherFile, Parser, Answer::BADF, move |session, call, id| {
            set_fd(call, id, session.file().other_fds()[0])
        }),
        mutation("class", Rule::FdOtherFile, Parser, Answer::BADF, move |session, call, id| {
            let fd = session.descriptor(other.0)?;
            set_fd(call, id, fd)
        }),
        mutation("", Rule::FdForeign, Parser, Answer::BADF, move |session, call, id| {
            let mut other = session.other()?;
            let fd = other.descriptor(class)?;
            session.keep(other);
            set_fd(call, id, fd)
        }),
        set_data("minimum", Rule::FdWide, Parser, Answer::INVAL, 1 << 63),
        change("bit-32", Rule::FdWide, Parser, Answer::INVAL, |slot| slot.raw.data |= 1 << 32),
    ];
    list.extend(handle_lengths());
    list
}

/// The mutations of an attribute by its kind.
pub(super) fn by_kind(attr: &Attr) -> Vec<Mutation> {
    match attr.kind {
        AttributeKind::Handle { access: Access::New, .. }
        | AttributeKind::Descriptor { access: Access::New, .. } => {
            let mut list = vec![set_data("", Rule::NewHandleInput, Phase::Parser, None, u64::MAX)];
            list.extend(handle_lengths());
            list
        }
        AttributeKind::Handle { object, .. } => existing_handle(object),
        AttributeKind::Descriptor { object, .. } => existing_fd(object),
        AttributeKind::RawDescriptor => {
            let mut list: Vec<_> = handle_lengths().into();
            for (suffix, data) in [("2^31", 1 << 31), ("minimum", 1 << 63)] {
                list.push(set_data(suffix, Rule::FdWide, Phase::Parser, Answer::INVAL, data));
            }
            list
        }
        AttributeKind::Constant { size, .. } => constant(size),
        AttributeKind::Flags { names, .. } => {
            flags(names.map_or(0, |info| info.values.iter().fold(0, |all, value| all | value.value)))
        }
        AttributeKind::Input { size, .. } => input(attr, size),
        AttributeKind::Output { size, .. } => output(attr, size),
        AttributeKind::Handles { .. } | AttributeKind::Enumeration { .. } => Vec::new(),
    }
}

/// Lengths of an attribute that the parser refuses.
fn lengths(rule: Rule, lengths: &[usize]) -> impl Iterator<Item = Mutation> {
    lengths.iter().map(move |len| set_len(&len.to_string(), rule, Phase::Parser, Answer::INVAL, *len))
}

/// The mutations of a number of `size` bytes, which takes 8 bytes in a call.
fn constant(size: usize) -> Vec<Mutation> {
    let mut list: Vec<_> =
        lengths(Rule::TooShort, &[0, 4, 7]).chain(lengths(Rule::TooLong, &[9, 16])).collect();
    if size < 8 {
        for (suffix, value) in [("above", 1 << (8 * size)), ("maximum", u64::MAX)] {
            list.push(set_number(suffix, Rule::ConstantRange, Answer::INVAL, value));
        }
    }
    list
}

/// The mutations of flags with these known bits.
fn flags(known: u64) -> Vec<Mutation> {
    let mut list: Vec<_> = lengths(Rule::TooShort, &[0, 3]).chain(lengths(Rule::TooLong, &[9])).collect();
    for len in [5, 7] {
        list.push(set_len(&len.to_string(), Rule::FlagsLength, Phase::Handler, Answer::INVAL, len));
    }
    list.push(set_len("", Rule::FlagsFourBytes, Phase::Handler, None, 4));
    for bit in [15, 30, 31, 32, 63].into_iter().filter(|bit| known & (1 << bit) == 0) {
        list.push(set_number(&format!("bit-{bit}"), Rule::FlagsUnknown, Answer::INVAL, 1 << bit));
    }
    list
}

/// Lengths of a payload below its minimum.
fn too_short(size: PayloadSize) -> Vec<Mutation> {
    let minimum = minimum(size);
    let mut list = Vec::new();
    if minimum > 0 {
        list.push(set_len("one-less", Rule::TooShort, Phase::Parser, Answer::INVAL, minimum - 1));
    }
    if minimum > 1 {
        list.push(set_len("0", Rule::TooShort, Phase::Parser, Answer::INVAL, 0));
    }
    list
}

/// The mutations of an input.
fn input(attr: &Attr, size: PayloadSize) -> Vec<Mutation> {
    use Phase::{Handler, Parser};
    let mut list = too_short(size);
    match size {
        PayloadSize::Exact(len) => {
            list.push(set_len("one-more", Rule::TooLong, Parser, Answer::INVAL, len + 1));
            list.push(set_len("maximum", Rule::TooLong, Parser, Answer::INVAL, 65535));
        }
        PayloadSize::Extensible { known, .. } => {
            list.push(set_len("", Rule::ZeroTail, Parser, None, known + 8));
            list.push(change("", Rule::NonZeroTail, Parser, Answer::OPNOTSUPP, move |slot| {
                slot.set_len((known + 8) as u16);
                if let Payload::Input(bytes) = &mut slot.payload {
                    bytes[known + 7] = 1;
                }
            }));
            list.push(change("unreadable", Rule::NonZeroTail, Parser, Answer::OPNOTSUPP, move |slot| {
                slot.unmap();
                slot.raw.len = (known + 8) as u16;
            }));
        }
        PayloadSize::AtLeast(_) | PayloadSize::Within { .. } => {}
    }
    if length(size).max(minimum(size)) > 8 {
        // Input that is read later than it is parsed.
        let answer = attr.read.then_some(Answer::FAULT);
        let phase = if attr.copied { Parser } else { Handler };
        list.push(change("", Rule::InputUnreadable, phase, answer, |slot| slot.unmap()));
    }
    list
}

/// The mutations of an output.
fn output(attr: &Attr, size: PayloadSize) -> Vec<Mutation> {
    use Phase::{Parser, Response};
    let mut list = too_short(size);
    match size {
        PayloadSize::Exact(len) => {
            list.push(set_len("one-more", Rule::TooLong, Parser, Answer::INVAL, len + 1));
        }
        PayloadSize::Extensible { known, .. } => {
            list.push(set_len("", Rule::OutputTail, Parser, None, known + 8));
        }
        PayloadSize::AtLeast(_) | PayloadSize::Within { .. } => {}
    }
    if attr.written {
        list.push(change("", Rule::OutputUnwritable, Response, Answer::FAULT, |slot| slot.unmap()));
        list.push(mutation("", Rule::OutputFlag, Parser, None, |_, _, _| Ok(())));
    }
    list
}

fn minimum(size: PayloadSize) -> usize {
    match size {
        PayloadSize::Exact(len) | PayloadSize::AtLeast(len) => len,
        PayloadSize::Within { minimum, .. } | PayloadSize::Extensible { minimum, .. } => minimum,
    }
}

fn name(method: &MethodInfo, attr: &str, rule: Rule, suffix: &str) -> String {
    let separator = if suffix.is_empty() { "" } else { "-" };
    format!("parser::{}::{attr}::{}{separator}{suffix}", method.rust, rule.id())
}

/// Executes a changed call, and the valid one after a refusal.
pub(super) fn run(
    session: &mut Session<'_>,
    base: &Base,
    attr: Option<&Attr>,
    mutate: &Mutate,
    answer: Expect,
    after: impl Fn(&Call) -> Step<()>,
) -> Step<()> {
    let since = attr.map_or(base.method.since, |attr| attr.since.max(base.method.since));
    if session.series < since {
        return skip(format!("kernels have it since {}", since.name()));
    }
    let (mut valid, effect) = base.build(session)?;
    complete(session, base, &mut valid)?;
    if let Some(attr) = attr.filter(|attr| !attr.in_base) {
        let slot = base.slot(session, attr)?;
        valid.slots.push(slot);
    }
    let mut call = valid.clone();
    mutate(session, &mut call, attr.map_or(0, |attr| attr.id))?;
    let got = session.judge(&mut call, answer)?;
    match (got, effect) {
        (Answer::Ok, _) => {
            after(&call)?;
            apply(session, &call, effect);
            Ok(())
        }
        // The object was destroyed before its response was written.
        (Answer::FAULT, Effect::Destroys { class, handle }) => {
            session.forget(class, handle);
            again(session, &mut valid, Answer::NOENT)
        }
        _ => {
            let expected = with(base, attr).on(session.series);
            again(session, &mut valid, expected)?;
            if expected == Answer::Ok {
                apply(session, &valid, effect);
            }
            Ok(())
        }
    }
}

/// The answer of the valid call, with the attribute.
fn with(base: &Base, attr: Option<&Attr>) -> Expect {
    attr.and_then(|attr| attr.with).map_or(base.answer, Expect::Is)
}

fn again(session: &mut Session<'_>, valid: &mut Call, expected: Answer) -> Step<()> {
    match session.execute(valid) {
        got if got == expected => Ok(()),
        got => fail(format!("the valid call after the refused one: expected {expected}, got {got}: {valid}")),
    }
}

fn apply(session: &mut Session<'_>, call: &Call, effect: Effect) {
    let made = |id: u16| call.slot(id).map_or(u64::MAX, |slot| slot.raw.data);
    match effect {
        Effect::Nothing => {}
        Effect::Makes { class, id } => session.note_object(class, made(id) as u32),
        Effect::MakesFd { class, id } => session.note_descriptor(class, made(id) as i32),
        Effect::Destroys { class, handle } => session.forget(class, handle),
        Effect::MakesContext => session.note_context(),
    }
}

/// What a successful call must have written.
fn after_check(rule: Rule, attr: &Attr) -> impl Fn(&Call) -> Step<()> + use<> {
    let (id, kind) = (attr.id, attr.kind);
    move |call| {
        let Some(slot) = call.slot(id) else { return Ok(()) };
        match (rule, kind) {
            (Rule::OutputFlag, _) if !slot.is_written() => {
                fail("the output has no UVERBS_ATTR_F_VALID_OUTPUT after success")
            }
            (Rule::OutputTail, AttributeKind::Output { size: PayloadSize::Extensible { known, .. }, .. }) => {
                match slot.bytes().get(known..known + 8) {
                    Some([0, 0, 0, 0, 0, 0, 0, 0]) => Ok(()),
                    tail => fail(format!("the tail is {tail:02x?} (filled with {FILL:#x}), not zero")),
                }
            }
            _ => Ok(()),
        }
    }
}

/// The checks of one attribute.
fn of_attribute(base: &Rc<Base>, attr: &Attr, checks: &mut Vec<Check>) {
    let method = base.method;
    if !base.has_value(attr) {
        if let AttributeKind::Handle { object, .. } = attr.kind
            && !is_class_on_rxe(object)
        {
            let (shared, own) = (Rc::clone(base), *attr);
            let rule = Rule::HandleAbsentClass;
            checks.push(Check::new(name(method, attr.name, rule, ""), rule, Answer::INVAL, move |session| {
                let mutate: Mutate = Rc::new(move |_, call, _| {
                    call.slots.push(Slot::word(own.id, 0));
                    Ok(())
                });
                run(session, &shared, None, &mutate, Answer::INVAL.into(), |_| Ok(()))
            }));
        }
        return;
    }
    let mut mutations = common(attr);
    mutations.extend(by_kind(attr));
    if !attr.in_base {
        mutations.push(mutation("with", Rule::GoodCall, Phase::Parser, None, |_, _, _| Ok(())));
    }
    for Mutation { suffix, rule, phase, answer, mutate } in mutations {
        let valid = with(base, Some(attr));
        let expect = match (answer, phase) {
            (None, _) => valid,
            (Some(answer), Phase::Parser) => answer.into(),
            (Some(answer), Phase::Handler | Phase::Response) => behind(valid, answer),
        };
        if rule == Rule::OutputFlag && base.answer.on(bareverbs_uapi::abi::Since::V7_2) != Answer::Ok {
            continue;
        }
        let (shared, own) = (Rc::clone(base), *attr);
        checks.push(Check::new(name(method, attr.name, rule, &suffix), rule, expect, move |session| {
            run(session, &shared, Some(&own), &mutate, expect, after_check(rule, &own))
        }));
    }
}

/// The answer to a fault that the handler finds behind its test of the driver's support.
fn behind(base: Expect, fault: Answer) -> Expect {
    let after = |answer| if answer == Answer::Ok { fault } else { answer };
    match base {
        Expect::Is(answer) => after(answer).into(),
        Expect::Changed { change, before, after: now } => {
            Expect::Changed { change, before: after(before), after: after(now) }
        }
    }
}

/// Ids that no method of the core has, with and without the bits of a driver's namespace.
pub(super) const UNKNOWN_IDS: [u16; 4] = [60, 0x0fff, 0x1ffe, 0xf001];

/// The mutations of a whole call.
fn whole(base: &Base) -> Vec<Mutation> {
    use Phase::Parser;
    let mut list = vec![
        mutation("", Rule::GoodCall, Parser, None, |_, _, _| Ok(())),
        mutation("reversed", Rule::AttributeOrder, Parser, None, |_, call, _| {
            call.slots.reverse();
            Ok(())
        }),
    ];
    if base.attributes.iter().any(Attr::kind_is_mandatory) {
        list.push(mutation("", Rule::Missing, Parser, Answer::INVAL, |_, call, _| {
            call.slots.clear();
            Ok(())
        }));
    }
    for id in UNKNOWN_IDS {
        let suffix = format!("{id:#x}");
        let answer = Answer::PROTONOSUPPORT;
        list.push(mutation(&suffix, Rule::UnknownMandatory, Parser, answer, move |_, call, _| {
            call.slots.push(Slot::number(id, 1));
            Ok(())
        }));
        list.push(mutation(&suffix, Rule::UnknownOptional, Parser, None, move |_, call, _| {
            let mut slot = Slot::number(id, 1);
            slot.raw.flags = AttributeFlags::empty();
            slot.raw.attr_data = 0xffff;
            call.slots.push(slot);
            Ok(())
        }));
    }
    list
}

/// The checks of one method.
fn of_method(base: &Rc<Base>, checks: &mut Vec<Check>) {
    let method = base.method;
    for Mutation { suffix, rule, answer, mutate, .. } in whole(base) {
        let (shared, expect) = (Rc::clone(base), answer.map_or(base.answer, Expect::Is));
        checks.push(Check::new(name(method, "all", rule, &suffix), rule, expect, move |session| {
            run(session, &shared, None, &mutate, expect, |_| Ok(()))
        }));
    }
    if let Some(answer) = base.without_context {
        let shared = Rc::clone(base);
        let rule = Rule::NeedsContext;
        checks.push(Check::new(name(method, "all", rule, ""), rule, answer, move |session| {
            if session.series < method.since {
                return skip(format!("kernels have it since {}", method.since.name()));
            }
            let mut made = session.other()?;
            let (mut call, _) = shared.build(&mut made)?;
            drop(made);
            session.judge(&mut call, answer).map(drop)
        }));
    }
}

/// A change of a header: its rule, a suffix, the answer and the change.
type HeaderChange = (Rule, &'static str, Answer, fn(&mut Header));

const HEADERS: [HeaderChange; 23] = [
    (Rule::HeaderLength, "0", Answer::INVAL, |header| header.length = 0),
    (Rule::HeaderLength, "one-less", Answer::INVAL, |header| header.length -= 1),
    (Rule::HeaderLength, "one-more", Answer::INVAL, |header| header.length += 1),
    (Rule::HeaderLength, "without-last", Answer::INVAL, |header| header.length -= 16),
    (Rule::HeaderLength, "one-attribute-more", Answer::INVAL, |header| header.length += 16),
    (Rule::HeaderLength, "fewer-attributes", Answer::INVAL, |header| header.num_attrs -= 1),
    (Rule::HeaderLength, "more-attributes", Answer::INVAL, |header| header.num_attrs += 1),
    (Rule::HeaderLength, "no-attributes", Answer::INVAL, |header| header.num_attrs = 0),
    (Rule::HeaderLength, "above-a-page", Answer::INVAL, |header| {
        header.num_attrs = 255;
        header.length = 24 + 16 * 255;
    }),
    (Rule::HeaderLength, "wrapped", Answer::INVAL, |header| {
        // 24 + 16 × 4097 is 24 + 16 in 16 bits.
        header.num_attrs = 4097;
        header.length = 40;
    }),
    (Rule::HeaderReserved, "reserved1", Answer::PROTONOSUPPORT, |header| header.reserved1 = 1),
    (Rule::HeaderReserved, "reserved1-high", Answer::PROTONOSUPPORT, |header| header.reserved1 = 1 << 63),
    (Rule::HeaderReserved, "reserved2", Answer::PROTONOSUPPORT, |header| header.reserved2 = 1),
    (Rule::HeaderReserved, "reserved2-high", Answer::PROTONOSUPPORT, |header| header.reserved2 = 1 << 31),
    (Rule::DriverId, "0", Answer::INVAL, |header| header.driver_id = 0),
    (Rule::DriverId, "next", Answer::INVAL, |header| header.driver_id += 1),
    (Rule::DriverId, "maximum", Answer::INVAL, |header| header.driver_id = u32::MAX),
    (Rule::DriverId, "bit-31", Answer::INVAL, |header| header.driver_id |= 1 << 31),
    (Rule::CheckOrder, "length-before-reserved", Answer::INVAL, |header| {
        header.length += 1;
        header.reserved1 = 1;
    }),
    (Rule::CheckOrder, "reserved-before-driver", Answer::PROTONOSUPPORT, |header| {
        header.reserved2 = 1;
        header.driver_id = 0;
    }),
    (Rule::CheckOrder, "driver-before-object", Answer::INVAL, |header| {
        header.driver_id = 0;
        header.object_id = 0xfff;
    }),
    (Rule::CheckOrder, "length-before-driver", Answer::INVAL, |header| {
        header.length = 0;
        header.driver_id = 0;
    }),
    (Rule::CheckOrder, "length-before-object", Answer::INVAL, |header| {
        header.length = 0;
        header.object_id = 0xfff;
    }),
];

/// Numbers that are not that of the ioctl.
const NUMBERS: [(&str, u32); 6] = [
    ("number-0", 0xc018_1b00),
    ("number-2", 0xc018_1b02),
    ("type", 0xc018_1c01),
    ("direction", 0x4018_1b01),
    ("size", 0xc010_1b01),
    ("zero", 0),
];

/// The checks of headers, which are the same for all methods.
fn of_headers(checks: &mut Vec<Check>) {
    let method = registry::Driver::default().method(0, 5);
    let Some(base) = method.and_then(Base::on_rxe).map(Rc::new) else { return };
    for (rule, suffix, answer, change) in HEADERS {
        let shared = Rc::clone(&base);
        let name = format!("header::all::all::{}-{suffix}", rule.id());
        checks.push(Check::new(name, rule, answer, move |session| {
            let (mut call, _) = shared.build(session)?;
            call.encode();
            call.counted = false;
            change(&mut call.header);
            session.judge(&mut call, answer).map(drop)
        }));
    }
    for (suffix, number) in NUMBERS {
        let (rule, shared) = (Rule::IoctlNumber, Rc::clone(&base));
        let name = format!("header::all::all::{}-{suffix}", rule.id());
        checks.push(Check::new(name, rule, Answer::NOTTY, move |session| {
            let (mut call, _) = shared.build(session)?;
            let mut bytes = call.encode();
            let address = bytes.as_mut_ptr().expose_provenance() as u64;
            // SAFETY: the call's addresses are those of its own buffers.
            let result = unsafe { session.file().ioctl(number, address) };
            session.compare(&call, Answer::NOTTY, Answer::of(&result)).map(drop)
        }));
    }
    of_memory(&base, checks);
}

/// Where the bytes of a call end, and an unreadable page begins.
#[derive(Clone, Copy)]
enum Cut {
    BeforeHeader,
    WithinHeader,
    BehindHeader,
    WithinAttributes,
    BehindAll,
}

/// The checks of unreadable calls.
fn of_memory(base: &Rc<Base>, checks: &mut Vec<Check>) {
    let cases = [
        (Rule::HeaderUnreadable, "null", Cut::BeforeHeader, Answer::FAULT),
        (Rule::HeaderUnreadable, "end", Cut::WithinHeader, Answer::FAULT),
        (Rule::AttributesUnreadable, "all", Cut::BehindHeader, Answer::FAULT),
        (Rule::AttributesUnreadable, "last", Cut::WithinAttributes, Answer::FAULT),
        (Rule::AttributesUnreadable, "none", Cut::BehindAll, Answer::Ok),
    ];
    for (rule, suffix, cut, answer) in cases {
        let shared = Rc::clone(base);
        let name = format!("header::all::all::{}-{suffix}", rule.id());
        checks.push(Check::new(name, rule, answer, move |session| {
            let (mut call, _) = shared.build(session)?;
            let bytes = call.encode();
            let readable = match cut {
                Cut::BeforeHeader => 0,
                Cut::WithinHeader => 23,
                Cut::BehindHeader => 24,
                Cut::WithinAttributes => bytes.len() - 8,
                Cut::BehindAll => bytes.len(),
            };
            let Some(guard) = Guard::ending_with(&bytes[..readable]) else { return skip("no memory") };
            let address = if readable == 0 { UNMAPPED } else { guard.address() };
            // SAFETY: the kernel finds the call's bytes at the address, up to a page without
            // access. The call's addresses are those of its own buffers.
            let result = unsafe { session.file().ioctl(bareverbs_uapi::ioctl::VERBS_IOCTL, address) };
            session.compare(&call, answer, Answer::of(&result)).map(drop)
        }));
    }
}

/// Number of method ids of each class that are tried.
const METHOD_IDS: u16 = 24;

/// The checks of methods that a kernel or a driver does not have.
fn of_absent_methods(checks: &mut Vec<Check>) {
    let refuse = |name: String, rule: Rule, object: u16, ids: Vec<u16>| {
        Check::new(name, rule, Answer::PROTONOSUPPORT, move |session| {
            session.context()?;
            for id in &ids {
                let mut call = Call::new(session.driver_id(), object, *id);
                session.judge(&mut call, Answer::PROTONOSUPPORT)?;
            }
            Ok(())
        })
    };
    for object in (0..24).chain([0xfff, 0x1000, 0x1001, 0x10ff, 0x8000, 0xffff]) {
        let known: Vec<u16> = registry::OBJECTS
            .iter()
            .filter(|info| info.id == object)
            .flat_map(|info| info.methods)
            .map(|method| method.id)
            .collect();
        let ids = (0..METHOD_IDS).chain([0x0fff, 0x1000, 0x1001, 0x8000, 0xffff]);
        let ids: Vec<u16> = ids.filter(|id| !known.contains(id)).collect();
        let title = registry::OBJECTS.iter().find(|info| info.id == object);
        let title = title.map_or_else(|| format!("object-{object:#x}"), |info| info.rust.to_owned());
        let rule = Rule::UnknownMethod;
        checks.push(refuse(format!("method::{title}::undefined::{}", rule.id()), rule, object, ids));
    }
    for method in registry::OBJECTS.iter().flat_map(|object| object.methods) {
        let rule = Rule::UnknownMethod;
        if !is_on_rxe(method) {
            let name = format!("method::{}::absent-on-driver::{}", method.rust, rule.id());
            checks.push(refuse(name, rule, method.object, vec![method.id]));
        }
    }
}

/// Whether a method exists exactly on the series that the table declares.
fn of_presence(checks: &mut Vec<Check>) {
    for method in registry::OBJECTS.iter().flat_map(|object| object.methods).copied() {
        if !is_on_rxe(method) {
            continue;
        }
        let rule = Rule::MethodPresent;
        let name = format!("method::{}::all::{}", method.rust, rule.id());
        checks.push(Check::new(name, rule, Answer::INVAL, move |session| {
            session.context()?;
            let absent = session.series < method.since;
            // An attribute of the wrong form: a method that exists refuses it.
            let Some(first) = method.attributes.first() else { return skip("the method has no attributes") };
            let mut slot = Slot::word(first.id, 0);
            slot.raw.attr_data = 0xffff;
            slot.raw.len = 1;
            let mut call = Call::of(session.driver_id(), method).with(slot);
            let expected = if absent { Answer::PROTONOSUPPORT } else { Answer::INVAL };
            session.judge(&mut call, expected).map(drop)
        }));
        for info in method.attributes {
            let rule = Rule::AttributePresent;
            let name = format!("method::{}::{}::{}", method.rust, info.rust, rule.id());
            checks.push(Check::new(name, rule, Answer::INVAL, move |session| {
                session.context()?;
                let known = session.series >= method.since.max(info.since);
                let mut slot = Slot::word(info.id, 0);
                slot.raw.attr_data = 0xffff;
                slot.raw.len = 1;
                let mut call = Call::of(session.driver_id(), method).with(slot);
                let expected = if known { Answer::INVAL } else { Answer::PROTONOSUPPORT };
                session.judge(&mut call, expected).map(drop)
            }));
        }
    }
}

/// The checks of the parser on Soft-RoCE.
pub(crate) fn checks() -> Vec<Check> {
    let mut checks = Vec::new();
    of_headers(&mut checks);
    of_presence(&mut checks);
    of_absent_methods(&mut checks);
    for method in registry::OBJECTS.iter().flat_map(|object| object.methods).copied() {
        let Some(base) = Base::on_rxe(method).map(Rc::new) else { continue };
        of_method(&base, &mut checks);
        for attr in &base.attributes {
            of_attribute(&base, attr, &mut checks);
        }
    }
    checks
}
