//! The order of checks: which error a call with two faults returns.

use std::rc::Rc;

use bareverbs_uapi::method::{Access, AttributeKind};
use bareverbs_uapi::registry;
use bareverbs_uapi::uverbs::types::QpType;
use bareverbs_uapi::uverbs::{CqCreate, ObjectClass, QpCreate};

use super::parser::{Mutate, UNKNOWN_IDS, run};
use crate::answer::Answer;
use crate::base::Base;
use crate::call::{Call, Slot};
use crate::check::Check;
use crate::rules::Rule;
use crate::session::Session;
use crate::step::{Step, fail};

/// An attribute that no kernel has.
fn unknown() -> Slot {
    Slot::number(UNKNOWN_IDS[0], 1)
}

/// Makes an attribute of the call invalid by its reserved bytes.
fn spoil(call: &mut Call, id: u16) -> Step<()> {
    match call.slot_mut(id) {
        Some(slot) => slot.raw.attr_data = 1,
        None => return fail("the call has no such attribute"),
    }
    Ok(())
}

/// Sets the handle of an attribute to one that no object has.
fn unknown_handle(call: &mut Call, id: u16) -> Step<()> {
    match call.slot_mut(id) {
        Some(slot) => slot.raw.data = 0x7fff_fff0,
        None => return fail("the call has no such attribute"),
    }
    Ok(())
}

/// Two faults of a call: a suffix, the answer, and the change of the call at an attribute.
type Pair = (&'static str, Answer, fn(&mut Call, u16) -> Step<()>);

/// The faults of a call, and its first attribute.
const FAULTS: [Pair; 4] = [
    ("unknown-then-reserved", Answer::PROTONOSUPPORT, |call, id| {
        spoil(call, id)?;
        call.slots.insert(0, unknown());
        Ok(())
    }),
    ("reserved-then-unknown", Answer::INVAL, |call, id| {
        spoil(call, id)?;
        call.slots.push(unknown());
        Ok(())
    }),
    ("driver-id-then-unknown", Answer::INVAL, |call, _| {
        call.header.driver_id = 0;
        call.slots.push(unknown());
        Ok(())
    }),
    ("header-then-reserved", Answer::PROTONOSUPPORT, |call, id| {
        call.header.reserved1 = 1;
        spoil(call, id)
    }),
];

/// The faults at a mandatory attribute.
const MANDATORY: [Pair; 1] = [("unknown-then-missing", Answer::PROTONOSUPPORT, |call, id| {
    call.slots.retain(|slot| slot.raw.attr_id != id);
    call.slots.push(unknown());
    Ok(())
})];

/// The faults at the handle of an existing object.
const HANDLES: [Pair; 2] = [
    ("handle-then-unknown", Answer::NOENT, |call, id| {
        unknown_handle(call, id)?;
        call.slots.push(unknown());
        Ok(())
    }),
    ("unknown-then-handle", Answer::PROTONOSUPPORT, |call, id| {
        unknown_handle(call, id)?;
        call.slots.insert(0, unknown());
        Ok(())
    }),
];

/// A pair at an attribute: the suffix of its name, the answer, and the change of the call.
type Placed = (String, Answer, Mutate);

fn place(pair: Pair, suffix: String, id: u16) -> Placed {
    let (_, answer, change) = pair;
    (suffix, answer, Rc::new(move |_, call, _| change(call, id)))
}

/// The pairs of faults at one method. Attributes are parsed in the caller's order, then mandatory ones
/// are looked for, then the handler runs.
fn pairs(base: &Base) -> Vec<Placed> {
    let mut given = base.attributes.iter().filter(|attr| attr.in_base).peekable();
    let Some(first) = given.peek().map(|attr| attr.id) else { return Vec::new() };
    let mut pairs: Vec<Placed> =
        FAULTS.into_iter().map(|pair| place(pair, pair.0.to_owned(), first)).collect();
    for attr in given {
        let mut add = |table: &[Pair]| {
            pairs.extend(table.iter().map(|pair| place(*pair, format!("{}-{}", pair.0, attr.name), attr.id)));
        };
        if attr.missing == Some(Answer::INVAL) && attr.kind_is_mandatory() {
            add(&MANDATORY);
        }
        let reads = matches!(
            attr.kind,
            AttributeKind::Handle { access: Access::Read | Access::Write | Access::Destroy, .. }
        );
        if reads {
            add(&HANDLES);
        }
    }
    pairs
}

/// Moves the attribute of the new object to the front: it is allocated before all others are parsed.
fn front(call: &mut Call, new: u16) {
    call.slots.sort_by_key(|slot| slot.raw.attr_id != new);
}

/// Calls that fail after the handle of the new object was allocated: a suffix, the answer, and the
/// change of the call with that attribute in front.
const UNDONE: [Pair; 2] = [
    ("unknown-last", Answer::PROTONOSUPPORT, |call, new| {
        front(call, new);
        call.slots.push(unknown());
        Ok(())
    }),
    ("new-object-twice", Answer::INVAL, |call, new| {
        front(call, new);
        let again = call.slots.first().cloned();
        call.slots.extend(again);
        Ok(())
    }),
];

/// Calls that fail after the handle of the new object was allocated: the last attribute is bad.
fn undone(base: &Base) -> Vec<Placed> {
    let makes = base.attributes.iter().find(|attr| {
        matches!(
            attr.kind,
            AttributeKind::Handle { access: Access::New, .. }
                | AttributeKind::Descriptor { access: Access::New, .. }
        )
    });
    let Some(new) = makes.map(|attr| attr.id) else { return Vec::new() };
    let mut pairs: Vec<Placed> = UNDONE.into_iter().map(|pair| place(pair, pair.0.to_owned(), new)).collect();
    for attr in base.attributes.iter().filter(|attr| attr.in_base && attr.id != new) {
        let id = attr.id;
        let mutate: Mutate = Rc::new(move |_, call, _| {
            front(call, new);
            spoil(call, id)?;
            call.slots.sort_by_key(|slot| slot.raw.attr_id == id);
            Ok(())
        });
        pairs.push((format!("reserved-last-{}", attr.name), Answer::INVAL, mutate));
    }
    pairs
}

/// The same for handlers: which of two values that the core and the driver refuse decides.
type HandlerPair = (&'static str, &'static str, Answer, fn(&mut Session<'_>) -> Step<Call>);

const HANDLERS: [HandlerPair; 4] = [
    ("CqCreate", "channel-then-entries", Answer::BADF, |session| {
        session.context()?;
        let channel = Slot::word(CqCreate::COMP_CHANNEL.id(), 0x7fff_fff0);
        Ok(session.cq_call(u32::MAX).with(channel))
    }),
    ("QpCreate", "handle-then-type", Answer::NOENT, |session| {
        let cq = session.cq()?;
        Ok(session.qp_call(QpType(7), 0x7fff_fff0, cq))
    }),
    ("QpCreate", "class-then-type", Answer::INVAL, |session| {
        let cq = session.cq()?;
        Ok(session.qp_call(QpType::XRC_INI, cq, cq))
    }),
    ("QpCreate", "srq-then-type", Answer::NOENT, |session| {
        let (pd, cq) = (session.pd()?, session.cq()?);
        Ok(session.qp_call(QpType(7), pd, cq).with(Slot::word(QpCreate::SRQ_HANDLE.id(), 0x7fff_fff0)))
    }),
];

pub(crate) fn checks() -> Vec<Check> {
    let mut checks = Vec::new();
    for method in registry::OBJECTS.iter().flat_map(|object| object.methods).copied() {
        let Some(base) = Base::on_rxe(method).map(Rc::new) else { continue };
        // Objects that a failed call leaves are leaks, which the runner finds.
        let rule = Rule::CheckOrder;
        for pairs in [pairs(&base), undone(&base)] {
            for (suffix, answer, mutate) in pairs {
                let name = format!("order::{}::all::{}-{suffix}", method.rust, rule.id());
                let shared = Rc::clone(&base);
                checks.push(Check::new(name, rule, answer, move |session| {
                    run(session, &shared, None, &mutate, answer.into(), |_| Ok(()))
                }));
            }
        }
    }
    for (method, suffix, answer, build) in HANDLERS {
        let rule = Rule::CheckOrder;
        let name = format!("order::{method}::handler::{}-{suffix}", rule.id());
        checks.push(Check::new(name, rule, answer, move |session| {
            session.needs_rxe_payloads()?;
            let mut call = build(session)?;
            session.judge(&mut call, answer)?;
            // Nothing is left, and the next object is made as if nothing had happened.
            session.object(ObjectClass::QP.0).map(drop)
        }));
    }
    checks
}
