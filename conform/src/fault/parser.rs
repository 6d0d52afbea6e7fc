//! Faults of the parser of ioctls, and of the life of objects.

use bareverbs_uapi::ioctl::{Attribute, AttributeFlags, Header, VERBS_IOCTL};
use bareverbs_uapi::method::{Access, AttributeKind, PayloadSize, UHW_OUT};
use bareverbs_uapi::uverbs::{
    CqCreate, GetContext, InfoHandles, InvokeWrite, QpCreate, QueryMr, QueryPort, RegMr, SrqCreate,
};
use rustix::io::Errno;

use super::call::{ParsedCall, header, is_new};
use super::tracked::{File, Tracked, word_at};
use super::{Fault, is_in};
use crate::base::{is_class_on_rxe, is_on_rxe};
use crate::call::UNMAPPED;
use crate::fuzz::destroyed;
use crate::own_memory::read;
use crate::rules::Rule;

/// The rules that these faults break.
#[cfg(test)]
pub(crate) const RULES: &[Rule] = &[
    Rule::IoctlNumber,
    Rule::HeaderUnreadable,
    Rule::HeaderLength,
    Rule::HeaderReserved,
    Rule::DriverId,
    Rule::UnknownMethod,
    Rule::MethodPresent,
    Rule::AttributePresent,
    Rule::AttributesUnreadable,
    Rule::UnknownMandatory,
    Rule::UnknownOptional,
    Rule::AttributeFlags,
    Rule::KnownOptional,
    Rule::AttributeOrder,
    Rule::Duplicate,
    Rule::Missing,
    Rule::MissingForHandler,
    Rule::AttributeReserved,
    Rule::TooShort,
    Rule::TooLong,
    Rule::ZeroTail,
    Rule::NonZeroTail,
    Rule::InputUnreadable,
    Rule::OutputUnwritable,
    Rule::OutputFlag,
    Rule::OutputTail,
    Rule::ConstantRange,
    Rule::FlagsLength,
    Rule::FlagsFourBytes,
    Rule::FlagsUnknown,
    Rule::HandleUnknown,
    Rule::HandleNegative,
    Rule::HandleWide,
    Rule::HandleType,
    Rule::HandleDestroyed,
    Rule::HandleForeign,
    Rule::HandleAbsentClass,
    Rule::HandleLength,
    Rule::NewHandleInput,
    Rule::FdClosed,
    Rule::FdOtherFile,
    Rule::FdForeign,
    Rule::FdWide,
    Rule::NeedsContext,
    Rule::GoodCall,
    Rule::SecondContext,
    Rule::CheckOrder,
    Rule::Undo,
    Rule::CloseFrees,
    Rule::Busy,
    Rule::DestroyTwice,
];

/// The fault of a call whose header or attributes are not read.
pub(super) fn of_header(broken: Rule, driver_id: u32, number: u32, address: u64) -> Option<Fault> {
    let error = |rule, condition, errno, instead| {
        is_in(broken, rule, condition).then_some(Fault::Error(errno, instead))
    };
    if let Some(fault) = error(Rule::IoctlNumber, number != VERBS_IOCTL, Errno::NOTTY, Errno::INVAL) {
        return Some(fault);
    }
    let Some(header) = header(address) else {
        return error(Rule::HeaderUnreadable, true, Errno::FAULT, Errno::INVAL);
    };
    let attributes = usize::from(header.num_attrs) * size_of::<Attribute>();
    let length = size_of::<Header>() + attributes;
    let is_wrong = usize::from(header.length) != length || length > 4096;
    let is_reserved = header.reserved1 != 0 || header.reserved2 != 0;
    let method = ParsedCall::method(driver_id, &header).filter(|method| is_on_rxe(method));
    let readable = read(address + size_of::<Header>() as u64, attributes.min(4096)).is_ok();
    let is_unread = method.is_some() && !is_wrong && !readable;
    None.or_else(|| error(Rule::HeaderLength, is_wrong, Errno::INVAL, Errno::MSGSIZE))
        .or_else(|| error(Rule::HeaderReserved, is_reserved, Errno::PROTONOSUPPORT, Errno::INVAL))
        .or_else(|| error(Rule::CheckOrder, is_wrong && is_reserved, Errno::INVAL, Errno::PROTONOSUPPORT))
        .or_else(|| error(Rule::DriverId, header.driver_id != driver_id, Errno::INVAL, Errno::NODEV))
        .or_else(|| error(Rule::UnknownMethod, method.is_none(), Errno::PROTONOSUPPORT, Errno::INVAL))
        .or_else(|| error(Rule::AttributesUnreadable, is_unread, Errno::FAULT, Errno::INVAL))
}

/// The shortest and the longest payload of an attribute, and whether a struct may be longer.
fn sizes(kind: AttributeKind) -> Option<(usize, usize, bool)> {
    Some(match kind {
        AttributeKind::Constant { .. } => (8, 8, false),
        AttributeKind::Flags { .. } => (4, 8, false),
        AttributeKind::Input { size, .. } | AttributeKind::Output { size, .. } => match size {
            PayloadSize::Exact(len) => (len, len, false),
            PayloadSize::AtLeast(len) => (len, usize::from(u16::MAX), false),
            PayloadSize::Within { minimum, maximum } => (minimum, maximum, false),
            PayloadSize::Extensible { minimum, known } => (minimum, known, true),
        },
        _ => return None,
    })
}

/// The bytes of an input behind those of the struct that the kernel knows; `None` if they can't be read.
/// Empty if there are none.
fn tail(raw: Attribute, kind: AttributeKind) -> Option<Vec<u8>> {
    match (kind, sizes(kind)) {
        (AttributeKind::Input { .. }, Some((_, most, true))) if usize::from(raw.len) > most => {
            read(raw.data + most as u64, usize::from(raw.len) - most).ok()
        }
        _ => Some(Vec::new()),
    }
}

/// An optional attribute that the handler needs and the call lacks: the error.
fn missing_for_handler(call: &ParsedCall) -> Option<Errno> {
    let mut needed: Vec<(u16, Errno)> = Vec::new();
    if call.is::<QpCreate>() {
        let handles =
            [QpCreate::PD_HANDLE.id(), QpCreate::SEND_CQ_HANDLE.id(), QpCreate::RECV_CQ_HANDLE.id()];
        needed.extend(handles.map(|id| (id, Errno::NOENT)));
    }
    if call.is::<QpCreate>() || call.is::<CqCreate>() || call.is::<SrqCreate>() {
        needed.push((UHW_OUT, Errno::INVAL));
    }
    if call.is::<RegMr>() {
        needed.push((RegMr::ADDR.id(), Errno::INVAL));
    }
    if call.is::<InfoHandles>() {
        needed.push((InfoHandles::HANDLES_LIST.id(), Errno::INVAL));
        needed.push((InfoHandles::TOTAL_HANDLES.id(), Errno::NOENT));
    }
    needed.into_iter().find(|(id, _)| !call.has(*id)).map(|(_, errno)| errno)
}

/// The fault of the attributes of a call, whatever they name.
pub(super) fn of_attributes(broken: Rule, call: &ParsedCall, file: &File) -> Option<Fault> {
    let refused = |condition: bool, errno| condition.then_some(Fault::Refused(errno));
    let error = |condition: bool, errno, instead| condition.then_some(Fault::Error(errno, instead));
    let any =
        |test: &dyn Fn(Attribute, AttributeKind) -> bool| call.known().any(|(raw, kind)| test(raw, kind));
    let is_array = |kind| matches!(kind, AttributeKind::Handles { .. } | AttributeKind::Enumeration { .. });
    let is_reserved = any(&|raw, kind| raw.attr_data != 0 && !is_array(kind));
    let probes_series = call.is::<GetContext>() && !file.has_context;
    match broken {
        Rule::MethodPresent => refused(call.is::<QueryMr>(), Errno::PROTONOSUPPORT),
        Rule::AttributePresent => {
            let hidden = call.raw(CqCreate::BUFFER_VA.id()).filter(|_| call.is::<CqCreate>());
            let is_mandatory = hidden.is_some_and(|raw| raw.flags.contains(AttributeFlags::MANDATORY));
            refused(is_mandatory, Errno::PROTONOSUPPORT)
        }
        Rule::UnknownMandatory => error(call.has_unknown(true), Errno::PROTONOSUPPORT, Errno::INVAL),
        Rule::UnknownOptional => refused(call.has_unknown(false), Errno::PROTONOSUPPORT),
        Rule::AttributeFlags => refused(any(&|raw, _| raw.flags.bits() & 0xfffc != 0), Errno::INVAL),
        Rule::KnownOptional => {
            refused(any(&|raw, _| !raw.flags.contains(AttributeFlags::MANDATORY)), Errno::INVAL)
        }
        Rule::AttributeOrder => {
            let first_new = call.kinds().position(|(_, kind)| kind.is_some_and(is_new));
            refused(first_new.is_some_and(|position| position > 0), Errno::INVAL)
        }
        Rule::Duplicate => {
            let mut ids: Vec<_> = call.known().map(|(raw, _)| raw.attr_id).collect();
            let count = ids.len();
            ids.sort_unstable();
            ids.dedup();
            error(ids.len() < count, Errno::INVAL, Errno::EXIST)
        }
        Rule::Missing => {
            let mut mandatory = call.method.attributes.iter().filter(|info| info.mandatory);
            error(mandatory.any(|info| !call.has(info.id)), Errno::INVAL, Errno::OPNOTSUPP)
        }
        Rule::MissingForHandler => missing_for_handler(call).map(|errno| Fault::Error(errno, Errno::NODATA)),
        Rule::AttributeReserved => error(is_reserved, Errno::INVAL, Errno::OPNOTSUPP),
        Rule::TooShort => {
            let is_short =
                any(&|raw, kind| sizes(kind).is_some_and(|(least, ..)| usize::from(raw.len) < least));
            error(is_short && !probes_series, Errno::INVAL, Errno::NOSPC)
        }
        Rule::TooLong => {
            let is_long = any(&|raw, kind| {
                sizes(kind).is_some_and(|(_, most, extensible)| usize::from(raw.len) > most && !extensible)
            });
            error(is_long, Errno::INVAL, Errno::MSGSIZE)
        }
        Rule::ZeroTail => {
            let is_zero = |tail: Vec<u8>| !tail.is_empty() && tail.iter().all(|byte| *byte == 0);
            refused(any(&|raw, kind| tail(raw, kind).is_some_and(is_zero)), Errno::INVAL)
        }
        Rule::NonZeroTail => {
            let is_zero = |tail: Vec<u8>| tail.iter().all(|byte| *byte == 0);
            let is_other = any(&|raw, kind| !tail(raw, kind).is_some_and(is_zero));
            error(is_other, Errno::OPNOTSUPP, Errno::INVAL)
        }
        Rule::InputUnreadable => {
            let is_unreadable = any(&|raw, kind| {
                matches!(kind, AttributeKind::Input { .. }) && raw.len > 8 && raw.data == UNMAPPED
            });
            // Requests of commands have a rule of their own.
            error(is_unreadable && !call.is::<InvokeWrite>(), Errno::FAULT, Errno::INVAL)
        }
        Rule::OutputUnwritable => {
            let is_unwritable =
                any(&|raw, kind| matches!(kind, AttributeKind::Output { .. }) && raw.data == UNMAPPED);
            error(is_unwritable, Errno::FAULT, Errno::INVAL)
        }
        Rule::OutputFlag => Some(Fault::Unmarked),
        Rule::OutputTail => call.known().find_map(|(raw, kind)| match kind {
            AttributeKind::Output { size: PayloadSize::Extensible { known, .. }, .. }
                if usize::from(raw.len) > known =>
            {
                Some(Fault::Output(raw.data + known as u64))
            }
            _ => None,
        }),
        Rule::ConstantRange | Rule::FlagsLength | Rule::FlagsFourBytes | Rule::FlagsUnknown => {
            call.known().find_map(|(raw, kind)| of_number(broken, raw, kind))
        }
        Rule::CheckOrder => error(is_reserved && call.has_unknown(true), Errno::PROTONOSUPPORT, Errno::INVAL),
        Rule::GoodCall => refused(call.is::<QueryPort>(), Errno::IO),
        Rule::NeedsContext => {
            let needs = !file.has_context && !call.is::<GetContext>();
            error(needs, Errno::INVAL, Errno::PERM)
        }
        Rule::SecondContext => error(file.has_context && call.is::<GetContext>(), Errno::INVAL, Errno::BUSY),
        Rule::Undo => {
            let creates = any(&|_, kind| is_new(kind));
            (creates && file.has_context).then_some(Fault::Leak)
        }
        _ => None,
    }
}

/// The fault of a constant or of flags.
fn of_number(broken: Rule, Attribute { data, len, .. }: Attribute, kind: AttributeKind) -> Option<Fault> {
    match (broken, kind) {
        (Rule::ConstantRange, AttributeKind::Constant { size, .. }) => {
            (size < 8 && data >> (8 * size) != 0).then_some(Fault::Error(Errno::INVAL, Errno::OVERFLOW))
        }
        (Rule::FlagsLength, AttributeKind::Flags { .. }) => {
            (5..8).contains(&len).then_some(Fault::Error(Errno::INVAL, Errno::OPNOTSUPP))
        }
        (Rule::FlagsFourBytes, AttributeKind::Flags { .. }) => {
            (len == 4).then_some(Fault::Refused(Errno::INVAL))
        }
        (Rule::FlagsUnknown, AttributeKind::Flags { names, .. }) => {
            let known = names.map_or(0, |info| info.values.iter().fold(0, |all, value| all | value.value));
            (data & !(known | 0x3ff0_0000) != 0).then_some(Fault::Error(Errno::INVAL, Errno::OPNOTSUPP))
        }
        _ => None,
    }
}

/// The fault of the objects that a call names.
pub(super) fn of_objects(
    broken: Rule,
    call: &ParsedCall,
    tracked: &Tracked,
    number: u32,
    others: [i32; 2],
) -> Option<Fault> {
    let file = tracked.file(number)?;
    match broken {
        Rule::FdClosed | Rule::FdOtherFile | Rule::FdForeign | Rule::FdWide => {
            call.known().find_map(|(raw, kind)| of_descriptor(broken, raw, kind, tracked, number, others))
        }
        Rule::NewHandleInput => call
            .known()
            .any(|(raw, kind)| is_new(kind) && raw.data != 0)
            .then_some(Fault::Refused(Errno::INVAL)),
        Rule::HandleLength => call
            .known()
            .any(|(raw, kind)| {
                let is_reference = matches!(
                    kind,
                    AttributeKind::Handle { .. }
                        | AttributeKind::Descriptor { .. }
                        | AttributeKind::RawDescriptor
                );
                is_reference && raw.len != 0
            })
            .then_some(Fault::Error(Errno::INVAL, Errno::NOSPC)),
        Rule::Busy | Rule::DestroyTwice => of_destruction(broken, call, file),
        _ => call
            .handles()
            .find_map(|(raw, class, access)| of_handle(broken, (raw, class, access), tracked, number)),
    }
}

fn of_handle(
    broken: Rule,
    (raw, class, access): (Attribute, u16, Access),
    tracked: &Tracked,
    number: u32,
) -> Option<Fault> {
    let file = tracked.file(number)?;
    let data = raw.data.cast_signed();
    if broken == Rule::HandleAbsentClass {
        return (!is_class_on_rxe(class)).then_some(Fault::Error(Errno::INVAL, Errno::NOENT));
    }
    if broken == Rule::HandleNegative {
        return (data < 0).then_some(Fault::Error(Errno::INVAL, Errno::NOENT));
    }
    let Ok(handle) = u32::try_from(data) else {
        return (broken == Rule::HandleWide && data > 0).then_some(Fault::Accepted(Errno::NOENT));
    };
    let live = file.objects.get(&handle);
    let is_known = live.is_some() || file.is_destroyed(handle) || tracked.is_foreign(number, handle);
    let fault = Fault::Error(Errno::NOENT, Errno::INVAL);
    match broken {
        Rule::HandleUnknown => (!is_known).then_some(fault),
        Rule::HandleDestroyed => {
            let destroys = matches!(access, Access::Destroy);
            (file.is_destroyed(handle) && !destroys).then_some(fault)
        }
        Rule::HandleForeign => (live.is_none() && tracked.is_foreign(number, handle)).then_some(fault),
        Rule::HandleType => live.is_some_and(|of| *of != class).then_some(Fault::Accepted(Errno::INVAL)),
        _ => None,
    }
}

fn of_descriptor(
    broken: Rule,
    raw: Attribute,
    kind: AttributeKind,
    tracked: &Tracked,
    number: u32,
    others: [i32; 2],
) -> Option<Fault> {
    let class = match kind {
        AttributeKind::Descriptor { object, .. } if !is_new(kind) => Some(object),
        AttributeKind::RawDescriptor => None,
        _ => return None,
    };
    let Ok(fd) = i32::try_from(raw.data.cast_signed()) else {
        return (broken == Rule::FdWide).then_some(Fault::Error(Errno::INVAL, Errno::BADF));
    };
    let class = class?;
    let is_broken = match tracked.descriptors.get(&fd) {
        Some((of, _)) if *of != class => broken == Rule::FdOtherFile,
        Some((_, of)) if *of != number => broken == Rule::FdForeign,
        Some(_) => false,
        None if others.contains(&fd) => broken == Rule::FdOtherFile,
        None => broken == Rule::FdClosed,
    };
    is_broken.then_some(Fault::Error(Errno::BADF, Errno::INVAL))
}

/// The fault of a call or command that destroys an object.
fn of_destruction(broken: Rule, call: &ParsedCall, file: &File) -> Option<Fault> {
    let by_method = call.handles().find(|(_, _, access)| matches!(access, Access::Destroy));
    let by_command = || {
        let (_, at) = destroyed(call.command()?)?;
        word_at(&call.input(InvokeWrite::CORE_IN.id()), at)
    };
    let handle = by_method.map(|(raw, ..)| raw.data as u32).or_else(by_command)?;
    match broken {
        Rule::Busy => Some(Fault::Accepted(Errno::BUSY)),
        _ => file.is_destroyed(handle).then_some(Fault::Accepted(Errno::NOENT)),
    }
}
