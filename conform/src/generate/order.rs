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
use crate::session::{Session, Step, fail};

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

/// Two faults of a call: a suffix, the answer, and the change of the call.
type Pair = (String, Answer, Mutate);

/// The pairs of faults at one method. Attributes are parsed in the caller's order, then mandatory ones
/// are looked for, then the handler runs.
fn pairs(base: &Base) -> Vec<Pair> {
    let mut pairs: Vec<Pair> = Vec::new();
    let Some(first) = base.attributes.iter().find(|attr| attr.in_base) else { return pairs };
    let id = first.id;
    pairs.push((
        "unknown-then-reserved".into(),
        Answer::PROTONOSUPPORT,
        Rc::new(move |_, call, _| {
            spoil(call, id)?;
            call.slots.insert(0, unknown());
            Ok(())
        }),
    ));
    pairs.push((
        "reserved-then-unknown".into(),
        Answer::INVAL,
        Rc::new(move |_, call, _| {
            spoil(call, id)?;
            call.slots.push(unknown());
            Ok(())
        }),
    ));
    pairs.push((
        "driver-id-then-unknown".into(),
        Answer::INVAL,
        Rc::new(|_, call, _| {
            call.header.driver_id = 0;
            call.slots.push(unknown());
            Ok(())
        }),
    ));
    pairs.push((
        "header-then-reserved".into(),
        Answer::PROTONOSUPPORT,
        Rc::new(move |_, call, _| {
            call.header.reserved1 = 1;
            spoil(call, id)
        }),
    ));
    for attr in base.attributes.iter().filter(|attr| attr.in_base) {
        let id = attr.id;
        if attr.missing == Some(Answer::INVAL) && attr.kind_is_mandatory() {
            pairs.push((
                format!("unknown-then-missing-{}", attr.name),
                Answer::PROTONOSUPPORT,
                Rc::new(move |_, call, _| {
                    call.slots.retain(|slot| slot.raw.attr_id != id);
                    call.slots.push(unknown());
                    Ok(())
                }),
            ));
        }
        let reads = matches!(
            attr.kind,
            AttributeKind::Handle { access: Access::Read | Access::Write | Access::Destroy, .. }
        );
        if reads {
            pairs.push((
                format!("handle-then-unknown-{}", attr.name),
                Answer::NOENT,
                Rc::new(move |_, call, _| {
                    match call.slot_mut(id) {
                        Some(slot) => slot.raw.data = 0x7fff_fff0,
                        None => return fail("the call has no such attribute"),
                    }
                    call.slots.push(unknown());
                    Ok(())
                }),
            ));
            pairs.push((
                format!("unknown-then-handle-{}", attr.name),
                Answer::PROTONOSUPPORT,
                Rc::new(move |_, call, _| {
                    match call.slot_mut(id) {
                        Some(slot) => slot.raw.data = 0x7fff_fff0,
                        None => return fail("the call has no such attribute"),
                    }
                    call.slots.insert(0, unknown());
                    Ok(())
                }),
            ));
        }
    }
    pairs
}

/// Calls that fail after the handle of the new object was allocated: the last attribute is bad.
fn undone(base: &Base) -> Vec<Pair> {
    let makes = base.attributes.iter().find(|attr| {
        matches!(
            attr.kind,
            AttributeKind::Handle { access: Access::New, .. }
                | AttributeKind::Descriptor { access: Access::New, .. }
        )
    });
    let Some(new) = makes.map(|attr| attr.id) else { return Vec::new() };
    let first = move |call: &mut Call| {
        // The new object is allocated before all other attributes are parsed.
        if let Some(position) = call.slots.iter().position(|slot| slot.raw.attr_id == new) {
            let slot = call.slots.remove(position);
            call.slots.insert(0, slot);
        }
    };
    let mut pairs: Vec<Pair> = vec![
        (
            "unknown-last".into(),
            Answer::PROTONOSUPPORT,
            Rc::new(move |_, call, _| {
                first(call);
                call.slots.push(unknown());
                Ok(())
            }),
        ),
        (
            "new-object-twice".into(),
            Answer::INVAL,
            Rc::new(move |_, call, _| {
                first(call);
                let again = call.slots.first().cloned();
                call.slots.extend(again);
                Ok(())
            }),
        ),
    ];
    for attr in base.attributes.iter().filter(|attr| attr.in_base && attr.id != new) {
        let id = attr.id;
        pairs.push((
            format!("reserved-last-{}", attr.name),
            Answer::INVAL,
            Rc::new(move |_, call, _| {
                first(call);
                spoil(call, id)?;
                let position = call.slots.iter().position(|slot| slot.raw.attr_id == id);
                if let Some(position) = position {
                    let slot = call.slots.remove(position);
                    call.slots.push(slot);
                }
                Ok(())
            }),
        ));
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
