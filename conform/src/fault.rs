//! A device whose answers break one rule: the test of the suite.
//!
//! Each rule has one fault. It is in the answer of a call, which the call itself and the objects of the
//! file decide, or in a queue. The faults of [`SOFT_ROCE`] and [`CONNECTX`] are tested on kernels, the
//! others on a soft device.

mod call;
pub(crate) mod data;
pub(crate) mod parser;
mod tracked;

use std::cell::{Cell, RefCell};
use std::mem::offset_of;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use bareverbs_netlink::ResourceSummary;
use bareverbs_trace::overread_len;
use bareverbs_uapi::ioctl::{Attribute, AttributeFlags, VERBS_IOCTL};
use bareverbs_uapi::method::Method;
use bareverbs_uapi::method::{AttributeKind, UHW_OUT};
use bareverbs_uapi::netlink::messages;
use bareverbs_uapi::nldev::{Attribute as NetlinkAttribute, Client};
use bareverbs_uapi::registry;
use bareverbs_uapi::uverbs::{CqCreate, InvokeWrite};
use bareverbs_uapi::verbs_values::QpAttrMask;
use bareverbs_uapi::write::structs::{AllocPdReq, AllocPdResp};
use bareverbs_uapi::write::{self, EXTENDED, WriteCommand, WriteCommandInfo};
use rustix::io::Errno;
use rustix::mm::ProtFlags;
use zerocopy::{FromZeros, IntoBytes};

use self::call::ParsedCall;
use self::tracked::Tracked;
use crate::call::{Call, Slot};
use crate::environment::{Restricted, Restriction};
use crate::generate::alone::PROBE;
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
    Rule::Capability,
    Rule::Memlock,
    Rule::Cgroup,
    Rule::Namespace,
    Rule::ExclusiveNamespace,
    Rule::Fork,
];

/// The rules that a fault on a ConnectX breaks: Soft-RoCE has no such attributes.
pub(crate) const CONNECTX: &[Rule] = &[Rule::EnumElement, Rule::EnumReserved, Rule::HandleArray];

/// A device with a fault.
pub(crate) struct Faulty {
    device: Box<dyn Target>,
    broken: Rule,
    tracked: RefCell<Tracked>,
    restriction: Rc<Cell<Option<Restriction>>>,
}

impl Faulty {
    pub(crate) fn new(device: Box<dyn Target>, broken: Rule) -> Self {
        Self { device, broken, tracked: RefCell::default(), restriction: Rc::default() }
    }
}

/// A restriction of the device below, until dropped.
struct Lifted {
    restriction: Rc<Cell<Option<Restriction>>>,
    _of_device: Box<dyn Restricted>,
}

impl Restricted for Lifted {}

impl Drop for Lifted {
    fn drop(&mut self) {
        self.restriction.set(None);
    }
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

    fn releases_late(&self) -> bool {
        self.device.releases_late()
    }

    fn timeout(&self) -> Duration {
        self.device.timeout()
    }

    fn open(&self) -> Result<Box<dyn UverbsFile + '_>, Errno> {
        let fault = match (self.restriction.get(), self.broken) {
            (Some(Restriction::Namespace), Rule::Namespace) => Some(Fault::Refused(Errno::PERM)),
            (Some(Restriction::ExclusiveNamespace), Rule::ExclusiveNamespace) => {
                Some(Fault::Error(Errno::PERM, Errno::ACCESS))
            }
            _ => None,
        };
        if let Some(Fault::Refused(errno)) = fault {
            return Err(errno);
        }
        let file = instead(self.device.open(), fault)?;
        let number = self.tracked.borrow_mut().open();
        Ok(Box::new(FaultyFile { file, device: self, number }))
    }

    fn resources(&self) -> Result<ResourceSummary, String> {
        let mut resources = self.device.resources()?;
        resources.pd += self.tracked.borrow().left;
        Ok(resources)
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

    fn difference(&self, check: &str) -> Option<&'static str> {
        self.device.difference(check)
    }

    fn restrict(&self, restriction: Restriction) -> Result<Box<dyn Restricted>, String> {
        let of_device = self.device.restrict(restriction)?;
        self.restriction.set(Some(restriction));
        Ok(Box::new(Lifted { restriction: Rc::clone(&self.restriction), _of_device: of_device }))
    }
}

/// A wrong answer: the error that takes the place of the kernel's.
enum Fault {
    /// The call is not made.
    Refused(Errno),
    /// This error of the kernel is another one.
    Error(Errno, Errno),
    /// This error of the kernel is a success.
    Accepted(Errno),
    /// The call fails although the kernel executed it.
    Success(Errno),
    /// A byte at this address is added to.
    Output(u64),
    /// The outputs are not marked as written.
    Unmarked,
    /// A call that fails leaves an object.
    Leak,
}

/// The answer with a fault.
fn instead<T>(result: Result<T, Errno>, fault: Option<Fault>) -> Result<T, Errno> {
    match (result, fault) {
        (Err(errno), Some(Fault::Error(of, instead))) if errno == of => Err(instead),
        (Ok(_), Some(Fault::Success(errno))) => Err(errno),
        (result, _) => result,
    }
}

/// The answer of a call with a fault.
fn of_call(result: Result<(), Errno>, fault: Option<Fault>) -> Result<(), Errno> {
    match (result, fault) {
        (Err(errno), Some(Fault::Accepted(of))) if errno == of => Ok(()),
        (result, fault) => instead(result, fault),
    }
}

fn is_in(broken: Rule, rule: Rule, condition: bool) -> bool {
    broken == rule && condition
}

/// The fault of a call that the environment of the process restricts.
fn of_restriction(broken: Rule, restriction: Restriction) -> Option<Fault> {
    Some(match (broken, restriction) {
        (Rule::Capability, Restriction::Without(_)) => Fault::Error(Errno::PERM, Errno::OPNOTSUPP),
        (Rule::Memlock, Restriction::Memlock(_)) => Fault::Error(Errno::NOMEM, Errno::FAULT),
        (Rule::Cgroup, Restriction::Cgroup { .. }) => Fault::Error(Errno::AGAIN, Errno::NOMEM),
        _ => return None,
    })
}

/// The fault of a method other than `INVOKE_WRITE`.
fn of_method(broken: Rule, call: &ParsedCall) -> Option<Fault> {
    let entries = call.raw(CqCreate::CQE.id()).filter(|_| call.is::<CqCreate>());
    // The limit of rxe.
    if is_in(broken, Rule::Limit, entries.is_some_and(|raw| raw.data as u32 > 32767)) {
        return Some(Fault::Error(Errno::INVAL, Errno::NOMEM));
    }
    call.attributes.iter().find_map(|(raw, info)| match info.as_ref()?.kind {
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
fn of_command(broken: Rule, call: &ParsedCall) -> Option<Fault> {
    let (input, output) = (InvokeWrite::CORE_IN.id(), InvokeWrite::CORE_OUT.id());
    let number = call.raw(InvokeWrite::WRITE_CMD.id())?.data as u32;
    let is_extended = number & EXTENDED != 0;
    let (input_len, output_len) = (call.len(input), call.len(output));
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
    let is_short = call.len(UHW_OUT) < commands::driver_response(number);
    if is(Rule::DriverPayload, is_short && !short_input) {
        return Some(Fault::Error(Errno::INVAL, Errno::NOSPC));
    }
    if is(Rule::RequestUnreadable, call.is_unmapped(input)) {
        return Some(Fault::Error(Errno::FAULT, Errno::INVAL));
    }
    if is(Rule::ResponseUnwritable, call.is_unmapped(output) || call.is_unmapped(UHW_OUT)) {
        return Some(Fault::Error(Errno::FAULT, Errno::INVAL));
    }
    let request = call.input(input);
    let tail = request.get(size..).unwrap_or_default();
    if is(Rule::RequestZeroTail, !tail.is_empty() && tail.iter().all(|byte| *byte == 0)) {
        return Some(Fault::Refused(Errno::OPNOTSUPP));
    }
    if is(Rule::RequestTail, tail.iter().any(|byte| *byte != 0)) {
        return Some(Fault::Error(Errno::OPNOTSUPP, Errno::INVAL));
    }
    if is(Rule::ResponseTail, response > 0 && output_len > response) {
        return Some(Fault::Output(call.raw(output)?.data + response as u64 + 7));
    }
    if is(Rule::QueryValue, number == write::QuerySrq::INFO.number) {
        return Some(Fault::Output(call.raw(output)?.data));
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
    device: &'t Faulty,
    /// The number of the file.
    number: u32,
}

impl Drop for FaultyFile<'_> {
    fn drop(&mut self) {
        let mut tracked = self.device.tracked.borrow_mut();
        let objects = tracked.close(self.number);
        if self.device.broken == Rule::CloseFrees {
            tracked.left += objects as u64;
        }
    }
}

impl FaultyFile<'_> {
    /// The fault of an ioctl. Values in memory are changed at once.
    fn fault(&self, number: u32, address: u64) -> Option<Fault> {
        let (broken, driver_id) = (self.device.broken, self.device.driver_id());
        if let Some(fault) = parser::of_header(broken, driver_id, number, address) {
            return Some(fault);
        }
        let call = ParsedCall::at(driver_id, address).filter(|_| number == VERBS_IOCTL)?;
        // Calls that find out whether an attribute exists have other faults as well.
        let is_presence = [Rule::MethodPresent, Rule::AttributePresent].contains(&broken);
        if call.known().any(|(raw, _)| raw.attr_data == PROBE) && !is_presence {
            return None;
        }
        let tracked = self.device.tracked.borrow();
        let file = tracked.file(self.number)?;
        let of_restriction = || of_restriction(broken, self.device.restriction.get()?);
        let of_command = || {
            let is_command = call.is::<InvokeWrite>();
            if is_command { of_command(broken, &call) } else { of_method(broken, &call) }
        };
        parser::of_attributes(broken, &call, file)
            .or_else(|| parser::of_objects(broken, &call, &tracked, self.number, self.file.other_fds()))
            .or_else(|| data::of_command(broken, &call, file))
            .or_else(of_restriction)
            .or_else(of_command)
    }

    /// Creates an object that no call asks for.
    fn leak(&self) {
        let (request, number) = (AllocPdReq::new_zeroed(), write::AllocPd::INFO.number);
        let mut call = Call::of(self.device.driver_id(), &InvokeWrite::INFO)
            .with(Slot::number(InvokeWrite::WRITE_CMD.id(), number.into()))
            .with(Slot::input(InvokeWrite::CORE_IN.id(), request.as_bytes()))
            .with(Slot::output(InvokeWrite::CORE_OUT.id(), size_of::<AllocPdResp>()));
        let mut bytes = call.encode();
        // SAFETY: the addresses of the call are those of its own buffers, as long as it says.
        let _ = unsafe { self.file.ioctl(VERBS_IOCTL, bytes.as_mut_ptr().expose_provenance() as u64) };
    }
}

/// Clears the mark of written outputs.
fn unmark(call: &ParsedCall) -> Result<(), Errno> {
    for (position, (raw, _)) in call.attributes.iter().enumerate() {
        let address = call.address + (position * size_of::<Attribute>()) as u64;
        let flags = raw.flags - AttributeFlags::VALID_OUTPUT;
        store(address + offset_of!(Attribute, flags) as u64, &flags.bits().to_ne_bytes())?;
    }
    Ok(())
}

impl UverbsFile for FaultyFile<'_> {
    unsafe fn ioctl(&self, number: u32, address: u64) -> Result<(), Errno> {
        let fault = self.fault(number, address);
        if let Some(Fault::Refused(errno)) = fault {
            return Err(errno);
        }
        let completions = self
            .device
            .tracked
            .borrow()
            .file(self.number)
            .map(|file| data::completions(self.device.broken, file));
        // SAFETY: the caller upholds the contract of the call's addresses.
        let result = unsafe { self.file.ioctl(number, address) };
        let call = ParsedCall::at(self.device.driver_id(), address).filter(|_| result.is_ok());
        if let Some(call) = &call {
            self.device.tracked.borrow_mut().follow(self.number, call);
        }
        data::change_completions(&completions.unwrap_or_default());
        match (&result, &fault, call) {
            (Ok(()), Some(Fault::Output(at)), _) => {
                if let Ok(byte) = read(*at, 1) {
                    store(*at, &[byte[0].wrapping_add(1)])?;
                }
            }
            (Ok(()), Some(Fault::Unmarked), Some(call)) => unmark(&call)?,
            (Err(_), Some(Fault::Leak), _) => self.leak(),
            _ => {}
        }
        of_call(result, fault)
    }

    unsafe fn write(&self, command: &WriteBuffer) -> Result<usize, Errno> {
        let fault = of_write(self.device.broken, command.command());
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
        let result = unsafe { self.file.write_in_child(command) }?;
        let fault = Fault::Error(Errno::ACCESS, Errno::PERM);
        Ok(instead(result, (self.device.broken == Rule::Fork).then_some(fault)))
    }

    fn close(&self, fd: i32) {
        self.device.tracked.borrow_mut().descriptors.remove(&fd);
        self.file.close(fd);
    }

    fn other_fds(&self) -> [i32; 2] {
        self.file.other_fds()
    }

    fn read(&self, fd: i32, buffer: &mut [u8]) -> Result<usize, Errno> {
        let fault = Fault::Error(Errno::INVAL, Errno::AGAIN);
        let result = self.file.read(fd, buffer);
        data::change_event(self.device.broken, buffer);
        instead(result, (self.device.broken == Rule::EventFd).then_some(fault))
    }

    fn is_readable(&self, fd: i32) -> Result<bool, Errno> {
        self.file.is_readable(fd)
    }

    fn duplicate(&self) -> Result<OwnedFd, Errno> {
        self.file.duplicate()
    }

    fn map(&self, offset: u64, len: usize, protection: ProtFlags) -> Result<Map, Errno> {
        let fault = Fault::Error(Errno::INVAL, Errno::NOMEM);
        let map = self.file.map(offset, len, protection);
        if let Ok(map) = &map {
            self.device.tracked.borrow_mut().mapped(self.number, offset, map.address());
        }
        instead(map, (self.device.broken == Rule::Mmap).then_some(fault))
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
}
