//! A device whose answers break one rule: the test of the suite on a kernel.
//!
//! The models of the parser and of the data path break the other rules.

use std::os::fd::OwnedFd;

use bareverbs_netlink::ResourceSummary;
use bareverbs_trace::overread_len;
use bareverbs_uapi::ioctl::{Attribute, Header};
use bareverbs_uapi::method::{AttributeInfo, AttributeKind, Method, MethodInfo, UHW_OUT};
use bareverbs_uapi::netlink::messages;
use bareverbs_uapi::nldev::{Attribute as NetlinkAttribute, Client};
use bareverbs_uapi::registry;
use bareverbs_uapi::uverbs::{CqCreate, InvokeWrite};
use bareverbs_uapi::verbs_values::QpAttrMask;
use bareverbs_uapi::write::{self, EXTENDED, WriteCommand, WriteCommandInfo};
use rustix::io::Errno;
use rustix::mm::ProtFlags;
use zerocopy::FromBytes;

use crate::call::UNMAPPED;
use crate::environment::{Restricted, Restriction};
use crate::generate::{NOWHERE, commands, nldev};
use crate::map::Map;
use crate::own_memory::{read, store};
use crate::request::Request;
use crate::rules::Rule;
use crate::target::{CmFile, Target, UverbsFile};
use crate::write_buffer::WriteBuffer;

/// The rules that a fault on Soft-RoCE breaks.
pub(crate) const SOFT_ROCE: &[Rule] = &[
    Rule::DriverPayload,
    Rule::WriteUnknown,
    Rule::WriteNumber,
    Rule::RequestShort,
    Rule::ExtendedShort,
    Rule::ResponseShort,
    Rule::RequestUnreadable,
    Rule::ResponseUnwritable,
    Rule::RequestZeroTail,
    Rule::RequestTail,
    Rule::RequestHandle,
    Rule::ResponseTail,
    Rule::RequestField,
    Rule::QpAttributeRange,
    Rule::Limit,
    Rule::Mmap,
    Rule::EventFd,
    Rule::WriteHeader,
    Rule::WriteParity,
    Rule::WriteOverread,
    Rule::MrAccess,
    Rule::QueryValue,
    Rule::CmHeader,
    Rule::CmResponse,
    Rule::CmId,
    Rule::CmState,
    Rule::CmField,
    Rule::NetlinkType,
    Rule::NetlinkAttribute,
    Rule::NetlinkUnknown,
    Rule::NetlinkObject,
    Rule::NetlinkPermission,
];

/// The rules that a fault on a ConnectX breaks: Soft-RoCE has no such attributes.
pub(crate) const CONNECTX: &[Rule] = &[Rule::EnumElement, Rule::EnumReserved, Rule::HandleArray];

/// A device with a fault.
pub(crate) struct Faulty {
    pub(crate) device: Box<dyn Target>,
    pub(crate) broken: Rule,
}

impl Target for Faulty {
    fn name(&self) -> String {
        self.device.name()
    }

    fn kernel(&self) -> String {
        self.device.kernel()
    }

    fn driver_id(&self) -> u32 {
        self.device.driver_id()
    }

    fn open(&self) -> Result<Box<dyn UverbsFile + '_>, Errno> {
        Ok(Box::new(FaultyFile {
            file: self.device.open()?,
            driver_id: self.driver_id(),
            broken: self.broken,
        }))
    }

    fn resources(&self) -> Result<ResourceSummary, String> {
        self.device.resources()
    }

    fn warnings(&self) -> Vec<String> {
        self.device.warnings()
    }

    fn open_cm(&self) -> Result<Box<dyn CmFile + '_>, Errno> {
        Ok(Box::new(FaultyCmFile { file: self.device.open_cm()?, broken: self.broken }))
    }

    fn netlink(&self, message: &[u8]) -> Result<(), Errno> {
        instead(self.device.netlink(message), of_message(self.broken, message))
    }

    fn netlink_index(&self) -> u32 {
        self.device.netlink_index()
    }

    fn restrict(&self, restriction: Restriction) -> Result<Box<dyn Restricted>, String> {
        self.device.restrict(restriction)
    }
}

/// A wrong answer: the error that takes the place of the kernel's.
enum Fault {
    /// The call is not made.
    Refused(Errno),
    /// This error of the kernel is another one.
    Error(Errno, Errno),
    /// The call fails although the kernel executed it.
    Success(Errno),
    /// A byte at this address is added to.
    Output(u64),
}

/// The answer with a fault.
fn instead<T>(result: Result<T, Errno>, fault: Option<Fault>) -> Result<T, Errno> {
    match (result, fault) {
        (Err(errno), Some(Fault::Error(of, instead))) if errno == of => Err(instead),
        (Ok(_), Some(Fault::Success(errno))) => Err(errno),
        (result, _) => result,
    }
}

fn is_in(broken: Rule, rule: Rule, condition: bool) -> bool {
    broken == rule && condition
}

/// A call, as the kernel reads it.
struct Seen {
    method: &'static MethodInfo,
    attributes: Vec<(Attribute, Option<&'static AttributeInfo>)>,
}

impl Seen {
    /// The call at an address, if it has a declared method.
    fn at(driver_id: u32, address: u64) -> Option<Self> {
        let bytes = read(address, size_of::<Header>()).ok()?;
        let header = Header::read_from_bytes(&bytes).ok()?;
        let driver = registry::driver(driver_id);
        let method = driver.method(header.object_id, header.method_id)?;
        let len = usize::from(header.num_attrs) * size_of::<Attribute>();
        let bytes = read(address + size_of::<Header>() as u64, len).ok()?;
        let attributes = bytes.chunks_exact(size_of::<Attribute>()).filter_map(|bytes| {
            let raw = Attribute::read_from_bytes(bytes).ok()?;
            Some((raw, driver.attributes(method).find(|info| info.id == raw.attr_id)))
        });
        Some(Self { method, attributes: attributes.collect() })
    }

    fn is<M: Method>(&self) -> bool {
        (self.method.object, self.method.id) == (M::INFO.object, M::INFO.id)
    }

    fn raw(&self, id: u16) -> Option<Attribute> {
        self.attributes.iter().map(|(raw, _)| *raw).find(|raw| raw.attr_id == id)
    }

    fn len(&self, id: u16) -> usize {
        self.raw(id).map_or(0, |raw| raw.len.into())
    }

    fn is_unmapped(&self, id: u16) -> bool {
        self.raw(id).is_some_and(|raw| raw.data == UNMAPPED && raw.len > 8)
    }

    /// The bytes of an input; empty if it has no memory.
    fn input(&self, id: u16) -> Vec<u8> {
        match self.raw(id) {
            Some(Attribute { data, len, .. }) if len <= 8 => data.to_ne_bytes()[..len.into()].to_vec(),
            Some(Attribute { data, len, .. }) => read(data, len.into()).unwrap_or_default(),
            None => Vec::new(),
        }
    }
}

/// The fault of an ioctl.
fn of_call(broken: Rule, driver_id: u32, address: u64) -> Option<Fault> {
    let seen = Seen::at(driver_id, address)?;
    if seen.is::<InvokeWrite>() {
        return of_command(broken, &seen);
    }
    let entries = seen.raw(CqCreate::CQE.id()).filter(|_| seen.is::<CqCreate>());
    // The limit of rxe.
    if is_in(broken, Rule::Limit, entries.is_some_and(|raw| raw.data as u32 > 32767)) {
        return Some(Fault::Error(Errno::INVAL, Errno::NOMEM));
    }
    seen.attributes.iter().find_map(|(raw, info)| match info.as_ref()?.kind {
        AttributeKind::Enumeration { .. } => {
            let [element, reserved] = raw.attr_data.to_le_bytes();
            let is_element = is_in(broken, Rule::EnumElement, element == 0xff && reserved == 0);
            let is_reserved = is_in(broken, Rule::EnumReserved, element == 0 && reserved != 0);
            if is_element {
                Some(Fault::Error(Errno::OPNOTSUPP, Errno::INVAL))
            } else {
                is_reserved.then_some(Fault::Error(Errno::INVAL, Errno::OPNOTSUPP))
            }
        }
        AttributeKind::Handles { .. } => {
            let is_uneven = is_in(broken, Rule::HandleArray, raw.len % 4 != 0 && raw.attr_data == 0);
            is_uneven.then_some(Fault::Error(Errno::INVAL, Errno::NOENT))
        }
        _ => None,
    })
}

/// The fault of a command through `INVOKE_WRITE`.
fn of_command(broken: Rule, seen: &Seen) -> Option<Fault> {
    let (input, output) = (InvokeWrite::CORE_IN.id(), InvokeWrite::CORE_OUT.id());
    let number = seen.raw(InvokeWrite::WRITE_CMD.id())?.data as u32;
    let is_extended = number & EXTENDED != 0;
    let (input_len, output_len) = (seen.len(input), seen.len(output));
    let is = |rule, condition| is_in(broken, rule, condition);
    if is(Rule::WriteNumber, number & !(EXTENDED | 0xff) != 0) {
        return Some(Fault::Error(Errno::INVAL, Errno::OPNOTSUPP));
    }
    if is(Rule::WriteUnknown, number & !(EXTENDED | 0xff) == 0 && !commands::is_on_rxe(number)) {
        return Some(Fault::Error(Errno::OPNOTSUPP, Errno::INVAL));
    }
    let info = registry::command(number)?;
    let size = info.request.map_or(0, |request| request.size);
    let response = info.response.map_or(0, |response| response.size);
    let short_input = input_len < info.request_minimum;
    let short_output = output_len < info.response_minimum;
    if is(Rule::RequestShort, !is_extended && short_input) {
        return Some(Fault::Refused(Errno::FAULT));
    }
    if is(Rule::ExtendedShort, is_extended && (short_input || short_output)) {
        return Some(Fault::Refused(Errno::NOSPC));
    }
    if is(Rule::ResponseShort, !is_extended && !short_input && short_output) {
        return Some(Fault::Error(Errno::NOSPC, Errno::INVAL));
    }
    let is_short = seen.len(UHW_OUT) < commands::driver_response(number);
    if is(Rule::DriverPayload, is_short && !short_input) {
        return Some(Fault::Error(Errno::INVAL, Errno::NOSPC));
    }
    if is(Rule::RequestUnreadable, seen.is_unmapped(input)) {
        return Some(Fault::Error(Errno::FAULT, Errno::INVAL));
    }
    if is(Rule::ResponseUnwritable, seen.is_unmapped(output) || seen.is_unmapped(UHW_OUT)) {
        return Some(Fault::Error(Errno::FAULT, Errno::INVAL));
    }
    let request = seen.input(input);
    let tail = request.get(size..).unwrap_or_default();
    if is(Rule::RequestZeroTail, !tail.is_empty() && tail.iter().all(|byte| *byte == 0)) {
        return Some(Fault::Refused(Errno::OPNOTSUPP));
    }
    if is(Rule::RequestTail, tail.iter().any(|byte| *byte != 0)) {
        return Some(Fault::Error(Errno::OPNOTSUPP, Errno::INVAL));
    }
    if is(Rule::ResponseTail, response > 0 && output_len > response) {
        return Some(Fault::Output(seen.raw(output)?.data + response as u64 + 7));
    }
    if is(Rule::QueryValue, number == write::QuerySrq::INFO.number) {
        return Some(Fault::Output(seen.raw(output)?.data));
    }
    let request = Request { command: info, bytes: request };
    is_field(broken, info, &request).then_some(Fault::Error(
        if broken == Rule::RequestHandle { Errno::NOENT } else { Errno::INVAL },
        Errno::NOMEM,
    ))
}

/// Whether a field of a request has a value for which the rule requires an error.
fn is_field(broken: Rule, info: &WriteCommandInfo, request: &Request) -> bool {
    if request.bytes.len() < info.request_minimum {
        return false;
    }
    let number = info.number;
    match broken {
        Rule::RequestHandle => {
            request.handles().iter().any(|field| [NOWHERE, u32::MAX].contains(&request.get(field)))
        }
        Rule::RequestField => {
            number == write::AllocMw::INFO.number && !(1..=2).contains(&(request.get("mw_type") & 0xff))
        }
        // Without LOCAL_WRITE.
        Rule::MrAccess => number == write::RegMr::INFO.number && request.get("access_flags") & 1 == 0,
        Rule::QpAttributeRange => {
            let has_mtu = request.get("attr_mask") & QpAttrMask::PATH_MTU.bits() != 0;
            number == write::ModifyQp::INFO.number && has_mtu && request.get("path_mtu") & 0xff > 5
        }
        _ => false,
    }
}

/// The fault of a command by `write()`.
fn of_write(broken: Rule, command: &[u8]) -> Option<Fault> {
    let number = command.first_chunk().map_or(0, |bytes| u32::from_ne_bytes(*bytes));
    let words = command.get(4..6).map_or(0, |bytes| u16::from_ne_bytes([bytes[0], bytes[1]]));
    let is_whole = usize::from(words) * 4 == command.len() && command.len() > 8;
    if is_in(broken, Rule::WriteHeader, !is_whole && number & EXTENDED == 0) {
        return Some(Fault::Error(Errno::INVAL, Errno::MSGSIZE));
    }
    if is_in(broken, Rule::WriteOverread, overread_len(command) > 0) {
        return Some(Fault::Refused(Errno::NOSPC));
    }
    let is_pd = is_whole && number == write::AllocPd::INFO.number;
    is_in(broken, Rule::WriteParity, is_pd).then_some(Fault::Refused(Errno::INVAL))
}

/// The fault of a command of the connection manager.
fn of_cm(broken: Rule, command: &[u8]) -> Option<Fault> {
    const DISCONNECT: u32 = 10;
    const SET_OPTION: u32 = 14;
    let number = command.first_chunk().map_or(u32::MAX, |bytes| u32::from_ne_bytes(*bytes));
    let stated = command.get(4..6).map_or(0, |bytes| u16::from_ne_bytes([bytes[0], bytes[1]]));
    let len = command.len().saturating_sub(8);
    let (of, instead) = match broken {
        Rule::CmHeader if usize::from(stated) > len => (Errno::INVAL, Errno::NOSPC),
        Rule::CmResponse => (Errno::NOSPC, Errno::INVAL),
        Rule::CmId => (Errno::NOENT, Errno::BADF),
        Rule::CmState if number == DISCONNECT && usize::from(stated) == len => (Errno::INVAL, Errno::NOTCONN),
        Rule::CmField if number == SET_OPTION => (Errno::NOSYS, Errno::INVAL),
        _ => return None,
    };
    Some(Fault::Error(of, instead))
}

/// The fault of a message to RDMA netlink.
fn of_message(broken: Rule, bytes: &[u8]) -> Option<Fault> {
    let message = messages(bytes).next()?.ok()?;
    let attributes: Vec<_> = message.attributes().filter_map(Result::ok).collect();
    let unknown_device = attributes.iter().any(|attribute| {
        attribute.kind == NetlinkAttribute::DEV_INDEX.0 && attribute.payload == NOWHERE.to_ne_bytes()
    });
    let has_unknown = attributes.iter().any(|attribute| attribute.kind == nldev::UNKNOWN);
    Some(match broken {
        Rule::NetlinkType if message.header.kind >> 10 != Client::NLDEV.0 => {
            Fault::Error(Errno::INVAL, Errno::OPNOTSUPP)
        }
        Rule::NetlinkAttribute if attributes.iter().any(|attribute| attribute.payload.len() < 4) => {
            Fault::Error(Errno::INVAL, Errno::RANGE)
        }
        Rule::NetlinkUnknown if has_unknown => Fault::Success(Errno::INVAL),
        Rule::NetlinkObject if unknown_device => Fault::Error(Errno::INVAL, Errno::NODEV),
        Rule::NetlinkPermission => Fault::Error(Errno::PERM, Errno::ACCESS),
        _ => return None,
    })
}

struct FaultyFile<'t> {
    file: Box<dyn UverbsFile + 't>,
    driver_id: u32,
    broken: Rule,
}

impl UverbsFile for FaultyFile<'_> {
    unsafe fn ioctl(&self, number: u32, address: u64) -> Result<(), Errno> {
        let fault = of_call(self.broken, self.driver_id, address);
        if let Some(Fault::Refused(errno)) = fault {
            return Err(errno);
        }
        // SAFETY: the caller upholds the contract of the call's addresses.
        let result = unsafe { self.file.ioctl(number, address) };
        if let (Ok(()), Some(Fault::Output(at))) = (result, &fault)
            && let Ok(byte) = read(*at, 1)
        {
            store(*at, &[byte[0].wrapping_add(1)])?;
        }
        instead(result, fault)
    }

    unsafe fn write(&self, command: &WriteBuffer) -> Result<usize, Errno> {
        let fault = of_write(self.broken, command.command());
        if let Some(Fault::Refused(errno)) = fault {
            return Err(errno);
        }
        // SAFETY: as for `ioctl`.
        instead(unsafe { self.file.write(command) }, fault)
    }

    unsafe fn ioctl_in_child(&self, number: u32, address: u64) -> Result<Result<(), Errno>, String> {
        // SAFETY: as for `ioctl`.
        unsafe { self.file.ioctl_in_child(number, address) }
    }

    unsafe fn write_in_child(&self, command: &WriteBuffer) -> Result<Result<(), Errno>, String> {
        // SAFETY: as for `ioctl`.
        unsafe { self.file.write_in_child(command) }
    }

    fn close(&self, fd: i32) {
        self.file.close(fd);
    }

    fn other_fds(&self) -> [i32; 2] {
        self.file.other_fds()
    }

    fn read(&self, fd: i32, buffer: &mut [u8]) -> Result<usize, Errno> {
        let fault = Fault::Error(Errno::INVAL, Errno::AGAIN);
        instead(self.file.read(fd, buffer), (self.broken == Rule::EventFd).then_some(fault))
    }

    fn is_readable(&self, fd: i32) -> Result<bool, Errno> {
        self.file.is_readable(fd)
    }

    fn duplicate(&self) -> Result<OwnedFd, Errno> {
        self.file.duplicate()
    }

    fn map(&self, offset: u64, len: usize, protection: ProtFlags) -> Result<Map, Errno> {
        let fault = Fault::Error(Errno::INVAL, Errno::NOMEM);
        instead(self.file.map(offset, len, protection), (self.broken == Rule::Mmap).then_some(fault))
    }
}

struct FaultyCmFile<'t> {
    file: Box<dyn CmFile + 't>,
    broken: Rule,
}

impl CmFile for FaultyCmFile<'_> {
    unsafe fn write(&self, command: &[u8]) -> Result<usize, Errno> {
        // SAFETY: the caller upholds the contract of the command's addresses.
        instead(unsafe { self.file.write(command) }, of_cm(self.broken, command))
    }

    fn descriptor(&self) -> i32 {
        self.file.descriptor()
    }

    fn is_readable(&self) -> Result<bool, Errno> {
        self.file.is_readable()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fault_takes_the_place_of_its_own_error_only() {
        let other = || Some(Fault::Error(Errno::INVAL, Errno::NOMEM));
        let success = || Some(Fault::Success(Errno::INVAL));
        for (result, fault, expected) in [
            (Err(Errno::INVAL), other(), Err(Errno::NOMEM)),
            (Err(Errno::FAULT), other(), Err(Errno::FAULT)),
            (Ok(3), other(), Ok(3)),
            (Ok(3), success(), Err(Errno::INVAL)),
            (Err(Errno::PERM), success(), Err(Errno::PERM)),
            (Err(Errno::PERM), None, Err(Errno::PERM)),
        ] {
            assert_eq!(instead(result, fault), expected);
        }
    }

    #[test]
    fn written_commands_with_a_fault_are_known_by_their_header() {
        let fault = |broken, number: u32, words: u16, len: usize| {
            let mut command = vec![0; len];
            command[..4].copy_from_slice(&number.to_ne_bytes());
            command[4..6].copy_from_slice(&words.to_ne_bytes());
            of_write(broken, &command).is_some()
        };
        let number = write::AllocPd::INFO.number;
        assert!(fault(Rule::WriteParity, number, 4, 16));
        assert!(!fault(Rule::WriteParity, number, 3, 16), "another length");
        assert!(!fault(Rule::WriteParity, number, 2, 8), "no request");
        assert!(fault(Rule::WriteHeader, number, 3, 16) && fault(Rule::WriteHeader, number, 2, 8));
        assert!(!fault(Rule::WriteHeader, number, 4, 16), "its header is consistent");
        assert!(!fault(Rule::WriteHeader, number | EXTENDED, 3, 16));
        let number = write::DestroyCq::INFO.number;
        assert!(fault(Rule::WriteOverread, number, 4, 16) && !fault(Rule::WriteOverread, number, 6, 24));
    }

    #[test]
    fn fields_with_a_fault_are_out_of_range() {
        let is_field = |broken, info, field, value| {
            is_field(broken, info, &Request::new(info).set(field, value)).then_some(value)
        };
        let of_windows = |value| is_field(Rule::RequestField, &write::AllocMw::INFO, "mw_type", value);
        assert_eq!((0..4).filter_map(of_windows).collect::<Vec<_>>(), [0, 3]);
        let of_regions = |value| is_field(Rule::MrAccess, &write::RegMr::INFO, "access_flags", value);
        assert_eq!((0..4).filter_map(of_regions).collect::<Vec<_>>(), [0, 2]);
    }

    #[test]
    fn attribute_without_memory_has_more_than_8_bytes() {
        let attribute = Attribute { attr_id: 1, len: 9, data: UNMAPPED, ..Attribute::zeroed() };
        let is_unmapped = |attribute, id| {
            let seen = Seen { method: &InvokeWrite::INFO, attributes: vec![(attribute, None)] };
            seen.is_unmapped(id)
        };
        assert!(is_unmapped(attribute, 1));
        assert!(!is_unmapped(attribute, 2), "another attribute");
        // Up to 8 bytes are the data itself.
        assert!(!is_unmapped(Attribute { len: 8, ..attribute }, 1));
    }
}
