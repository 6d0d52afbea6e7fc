//! The rules of the parser at single attributes, which need no valid call: for any driver.

use bareverbs_uapi::abi::Since;
use bareverbs_uapi::method::{AttributeInfo, AttributeKind, MethodInfo};
use bareverbs_uapi::registry;

use super::parser::{Mutation, Phase, by_kind, common};
use crate::answer::Answer;
use crate::base::{Attr, length};
use crate::call::{Call, Payload, Slot};
use crate::check::Check;
use crate::rules::Rule;
use crate::session::Session;
use crate::step::{Step, fail, skip};

/// Class id of attributes that take handles of any class.
const ANY_CLASS: u16 = u16::MAX;

/// The rules that a call with one attribute shows.
const RULES: [Rule; 15] = [
    Rule::AttributeReserved,
    Rule::EnumElement,
    Rule::EnumReserved,
    Rule::TooShort,
    Rule::TooLong,
    Rule::NonZeroTail,
    Rule::HandleUnknown,
    Rule::HandleNegative,
    Rule::HandleWide,
    Rule::HandleLength,
    Rule::FdClosed,
    Rule::FdOtherFile,
    Rule::FdWide,
    Rule::HandleArray,
    Rule::AttributePresent,
];

/// The reserved bytes of an attribute that may exist.
pub(crate) const PROBE: u16 = 0xffff;

/// An attribute with the wrong form for any kind.
fn wrong(id: u16) -> Slot {
    let mut slot = Slot::word(id, 0);
    slot.raw.attr_data = PROBE;
    slot.raw.len = 1;
    slot
}

/// Whether the device has the method and the attribute.
pub(crate) fn is_known(session: &mut Session<'_>, method: &MethodInfo, id: u16) -> bool {
    let mut call = Call::of(session.driver_id(), method).with(wrong(id));
    session.execute(&mut call) != Answer::PROTONOSUPPORT
}

fn slot(info: &AttributeInfo) -> Slot {
    let id = info.id;
    match info.kind {
        AttributeKind::Handle { .. } => Slot::word(id, 0),
        AttributeKind::Descriptor { .. } | AttributeKind::RawDescriptor => Slot::word(id, 0),
        AttributeKind::Constant { .. } | AttributeKind::Flags { .. } => Slot::number(id, 0),
        AttributeKind::Input { size, .. } => Slot::input(id, &vec![0; length(size)]),
        AttributeKind::Output { size, .. } => Slot::output(id, length(size)),
        AttributeKind::Handles { minimum, .. } => Slot::input(id, &vec![0; 4 * minimum]),
        AttributeKind::Enumeration { .. } => Slot::input(id, &[]),
    }
}

/// Skips a check of handles whose class the device lacks: every one fails with `EINVAL`.
fn needs_class(session: &mut Session<'_>, kind: AttributeKind) -> Step<()> {
    match kind {
        AttributeKind::Handle { object, .. } | AttributeKind::Handles { object, .. }
            if object != ANY_CLASS && session.handles(object)?.is_none() =>
        {
            skip("the device lacks the class of the object")
        }
        _ => Ok(()),
    }
}

/// The mutations of an array of handles: suffix, number of bytes, the handle in it.
fn arrays(minimum: usize, maximum: usize) -> Vec<(&'static str, Answer, usize)> {
    let mut list = vec![("not-4", Answer::INVAL, 3), ("above", Answer::INVAL, 4 * (maximum + 1))];
    if minimum > 0 {
        list.push(("below", Answer::INVAL, 4 * (minimum - 1)));
    }
    list.push(("unknown", Answer::NOENT, 4 * minimum.max(1)));
    list
}

fn of_attribute(method: &'static MethodInfo, info: &'static AttributeInfo, checks: &mut Vec<Check>) {
    let attr = Attr::of(info);
    let since = method.since.max(info.since);
    let name = |rule: Rule, suffix: &str| {
        let separator = if suffix.is_empty() { "" } else { "-" };
        // A driver's method or attribute may have the name of one of the core.
        let prefix = if (method.id | info.id) & 0x1000 == 0 { "" } else { "driver-" };
        format!("parser::{prefix}{}::{}::{}{separator}{suffix}", method.rust, info.rust, rule.id())
    };
    let rule = Rule::AttributePresent;
    checks.push(Check::new(name(rule, ""), rule, Answer::INVAL, move |session| {
        let Some(first) = method.attributes.first() else { return skip("the method has no attributes") };
        if !is_known(session, method, first.id) {
            return skip("the device lacks the method");
        }
        let expected = if session.series >= since { Answer::INVAL } else { Answer::PROTONOSUPPORT };
        let mut call = Call::of(session.driver_id(), method).with(wrong(info.id));
        let got = session.execute(&mut call);
        // An enumeration has an element in place of the reserved bytes.
        let known = [Answer::INVAL, Answer::OPNOTSUPP].contains(&got) && expected == Answer::INVAL;
        session.compare(&call, if known { got } else { expected }, got).map(drop)
    }));
    if let AttributeKind::Handles { minimum, maximum, .. } = info.kind {
        for (suffix, answer, len) in arrays(minimum, maximum) {
            let rule = Rule::HandleArray;
            checks.push(Check::new(name(rule, suffix), rule, answer, move |session| {
                if !is_known(session, method, info.id) {
                    return skip("the device lacks the method or the attribute");
                }
                needs_class(session, info.kind)?;
                let bytes: Vec<u8> = 0x7fff_fff0_u32.to_ne_bytes().into_iter().cycle().take(len).collect();
                let slot = Slot::input(info.id, &bytes);
                session.judge(&mut Call::of(session.driver_id(), method).with(slot), answer).map(drop)
            }));
        }
    }
    for Mutation { suffix, rule, phase, answer, mutate } in common(&attr).into_iter().chain(by_kind(&attr)) {
        let (Some(answer), Phase::Parser) = (answer, phase) else { continue };
        // These need objects.
        let needs_objects = rule == Rule::FdClosed && suffix == "closed" || suffix == "class";
        if !RULES.contains(&rule) || needs_objects {
            continue;
        }
        checks.push(Check::new(name(rule, &suffix), rule, answer, move |session| {
            if !is_known(session, method, info.id) {
                return skip("the device lacks the method or the attribute");
            }
            let mut call = Call::of(session.driver_id(), method).with(slot(info));
            if call.slots.iter().any(|slot| matches!(slot.payload, Payload::None))
                && rule == Rule::NonZeroTail
            {
                return fail("an input has no payload");
            }
            needs_class(session, info.kind)?;
            mutate(session, &mut call, info.id)?;
            session.judge(&mut call, answer).map(drop)
        }));
    }
}

/// The checks of all methods that the tables declare for a driver.
pub(crate) fn checks(driver_id: u32) -> Vec<Check> {
    let driver = registry::driver(driver_id);
    let mut checks = Vec::new();
    for method in driver.methods() {
        for info in driver.attributes(method) {
            of_attribute(method, info, &mut checks);
        }
    }
    checks
}

/// An attribute of the driver that kernels have since 6.12, as a probe of the series.
pub(crate) fn since_6_12(driver_id: u32) -> Option<(&'static MethodInfo, u16)> {
    let driver = registry::driver(driver_id);
    driver.attributes.iter().find_map(|added| {
        let info = added.attributes.iter().find(|info| info.since == Since::V6_12)?;
        Some((added.method, info.id))
    })
}
