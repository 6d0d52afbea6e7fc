//! A model of the kernel's ioctl parser, with one rule broken on request: the test of the suite.

pub(crate) mod data;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::rc::Rc;

use bareverbs_netlink::ResourceSummary;
use bareverbs_uapi::ioctl::{Attribute, AttributeFlags, Header, VERBS_IOCTL};
use bareverbs_uapi::method::{
    Access, AttributeInfo, AttributeKind, Method, MethodInfo, PayloadSize, UHW_IN, UHW_OUT,
};
use bareverbs_uapi::registry;
use bareverbs_uapi::uverbs::types::{DriverId, QpType};
use bareverbs_uapi::uverbs::{
    CqCreate, GetContext, InfoHandles, InvokeWrite, ObjectClass, QpCreate, QueryCompCntrCaps, QueryContext,
    QueryMr, QueryPort, QueryPortSpeed, RegDmabufMr, RegMr, SrqCreate,
};
use bareverbs_uapi::write::structs::RegMrReq;
use rustix::io::Errno;
use rustix::mm::ProtFlags;
use zerocopy::FromBytes;

use crate::base::{is_class_on_rxe, is_on_rxe};
use crate::environment::{Restricted, Restriction};
use crate::map::Map;
use crate::own_memory::{read, store};
use crate::rules::Rule;
use crate::target::{CmFile, Target, UverbsFile};
use crate::write_buffer::WriteBuffer;

/// The rules that the model can break.
pub(crate) const SEEDS: &[Rule] = &[
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
    Rule::Capability,
    Rule::Memlock,
    Rule::Cgroup,
    Rule::Namespace,
    Rule::ExclusiveNamespace,
    Rule::Fork,
];

/// A device of the model.
pub(crate) struct Model {
    shared: Rc<Shared>,
}

struct Shared {
    broken: Option<Rule>,
    resources: RefCell<ResourceSummary>,
    /// The highest handle that any open file has.
    highest: Cell<u32>,
    next_fd: Cell<i32>,
    /// Descriptors of all files: class and number of the file.
    fds: RefCell<BTreeMap<i32, (u16, u32)>>,
    files: Cell<u32>,
    restriction: Cell<Option<Restriction>>,
    /// Contexts and objects that were made under the restriction.
    charged: Cell<(u32, u32)>,
    /// Bytes of all regions.
    pinned: Cell<u64>,
}

/// A restriction of a model, until dropped.
struct ModelRestricted(Rc<Shared>);

impl Drop for ModelRestricted {
    fn drop(&mut self) {
        self.0.restriction.set(None);
    }
}

impl Restricted for ModelRestricted {}

impl Model {
    pub(crate) fn new(broken: Option<Rule>) -> Self {
        let shared = Shared {
            broken,
            resources: RefCell::default(),
            highest: Cell::new(0),
            next_fd: Cell::new(1000),
            fds: RefCell::default(),
            files: Cell::new(0),
            restriction: Cell::new(None),
            charged: Cell::new((0, 0)),
            pinned: Cell::new(0),
        };
        Self { shared: Rc::new(shared) }
    }
}

impl Target for Model {
    fn name(&self) -> String {
        "model0".into()
    }

    fn kernel(&self) -> String {
        "model".into()
    }

    fn driver_id(&self) -> u32 {
        DriverId::RXE.0
    }

    fn is_asynchronous(&self) -> bool {
        false
    }

    fn open(&self) -> Result<Box<dyn UverbsFile + '_>, Errno> {
        let refused = match self.shared.restriction.get() {
            Some(Restriction::Namespace) => self.shared.breaks(Rule::Namespace),
            Some(Restriction::ExclusiveNamespace) => !self.shared.breaks(Rule::ExclusiveNamespace),
            _ => false,
        };
        if refused {
            return Err(Errno::PERM);
        }
        let number = self.shared.files.get() + 1;
        self.shared.files.set(number);
        Ok(Box::new(ModelFile {
            shared: Rc::clone(&self.shared),
            number,
            has_context: Cell::new(false),
            objects: RefCell::default(),
            used: RefCell::default(),
            regions: RefCell::default(),
        }))
    }

    fn resources(&self) -> Result<ResourceSummary, String> {
        Ok(*self.shared.resources.borrow())
    }

    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }

    fn open_cm(&self) -> Result<Box<dyn CmFile + '_>, Errno> {
        Err(Errno::NOSYS)
    }

    fn netlink(&self, _message: &[u8]) -> Result<(), Errno> {
        Err(Errno::NOSYS)
    }

    fn netlink_index(&self) -> u32 {
        0
    }

    fn restrict(&self, restriction: Restriction) -> Result<Box<dyn Restricted>, String> {
        self.shared.restriction.set(Some(restriction));
        self.shared.charged.set((0, 0));
        Ok(Box::new(ModelRestricted(Rc::clone(&self.shared))))
    }
}

struct Object {
    class: u16,
    /// Handles of the objects that it uses.
    uses: Vec<u32>,
}

struct ModelFile {
    shared: Rc<Shared>,
    number: u32,
    has_context: Cell<bool>,
    /// Objects by handle.
    objects: RefCell<BTreeMap<u32, Object>>,
    /// Handles that were in use.
    used: RefCell<BTreeSet<u32>>,
    /// Bytes of the regions by handle.
    regions: RefCell<BTreeMap<u32, u64>>,
}

impl Drop for ModelFile {
    fn drop(&mut self) {
        let handles: Vec<u32> = self.objects.borrow().keys().copied().collect();
        for handle in handles.into_iter().filter(|_| !self.breaks(Rule::CloseFrees)) {
            self.remove(handle);
        }
        if self.has_context.get() {
            self.shared.count(ObjectClass::DEVICE.0, -1);
        }
        self.shared.fds.borrow_mut().retain(|_, (_, file)| *file != self.number);
    }
}

impl Shared {
    fn count(&self, class: u16, change: i64) {
        count(&mut self.resources.borrow_mut(), class, change);
    }

    fn breaks(&self, rule: Rule) -> bool {
        self.broken == Some(rule)
    }

    /// Counts a context or an object of the cgroup.
    fn charge(&self, of_context: bool) -> Result<(), Errno> {
        let Some(Restriction::Cgroup { handles, objects }) = self.restriction.get() else { return Ok(()) };
        let (contexts, made) = self.charged.get();
        let (count, limit) = if of_context { (contexts, handles) } else { (made, objects) };
        if limit.is_some_and(|limit| count >= limit) && !self.breaks(Rule::Cgroup) {
            return Err(Errno::AGAIN);
        }
        self.charged.set(if of_context { (contexts + 1, made) } else { (contexts, made + 1) });
        Ok(())
    }

    /// Counts the bytes of a region.
    fn pin(&self, bytes: u64) -> Result<(), Errno> {
        let pinned = self.pinned.get() + bytes;
        match self.restriction.get() {
            Some(Restriction::Memlock(limit)) if pinned > limit && !self.breaks(Rule::Memlock) => {
                Err(if limit == 0 { Errno::PERM } else { Errno::NOMEM })
            }
            _ => {
                self.pinned.set(pinned);
                Ok(())
            }
        }
    }
}

/// Changes the number of objects of a class.
fn count(resources: &mut ResourceSummary, class: u16, change: i64) {
    let counter = match ObjectClass(class) {
        ObjectClass::DEVICE => &mut resources.ctx,
        ObjectClass::PD => &mut resources.pd,
        ObjectClass::CQ => &mut resources.cq,
        ObjectClass::QP => &mut resources.qp,
        ObjectClass::SRQ => &mut resources.srq,
        ObjectClass::MR => &mut resources.mr,
        _ => return,
    };
    *counter = counter.wrapping_add_signed(change);
}

/// An attribute that passed the parser.
struct Parsed {
    raw: Attribute,
    /// Address of the attribute in the call.
    address: u64,
    kind: AttributeKind,
}

/// A call during its execution.
#[derive(Default)]
struct Running {
    parsed: BTreeMap<u16, Parsed>,
    made: Vec<u32>,
    used: Vec<u32>,
    made_fds: Vec<i32>,
    destroyed: Option<u32>,
}

impl ModelFile {
    fn breaks(&self, rule: Rule) -> bool {
        self.shared.breaks(rule)
    }

    /// An error unless the rule is broken.
    fn refuse(&self, rule: Rule, errno: Errno) -> Result<(), Errno> {
        if self.breaks(rule) { Ok(()) } else { Err(errno) }
    }

    /// The error of a rule, or another one if the rule is broken.
    fn error(&self, rule: Rule, errno: Errno, instead: Errno) -> Errno {
        if self.breaks(rule) { instead } else { errno }
    }

    fn call(&self, number: u32, address: u64) -> Result<(), Errno> {
        if number != VERBS_IOCTL {
            self.refuse(Rule::IoctlNumber, Errno::NOTTY)?;
        }
        let unreadable = |_| self.error(Rule::HeaderUnreadable, Errno::FAULT, Errno::INVAL);
        let bytes = read(address, size_of::<Header>()).map_err(unreadable)?;
        let header = Header::read_from_bytes(&bytes).map_err(|_| Errno::FAULT)?;
        let length = size_of::<Header>() + usize::from(header.num_attrs) * size_of::<Attribute>();
        let check_length = || {
            if usize::from(header.length) != length || length > 4096 {
                self.refuse(Rule::HeaderLength, Errno::INVAL)?;
            }
            Ok(())
        };
        if !self.breaks(Rule::CheckOrder) {
            check_length()?;
        }
        if header.reserved1 != 0 || header.reserved2 != 0 {
            self.refuse(Rule::HeaderReserved, Errno::PROTONOSUPPORT)?;
        }
        if header.driver_id != DriverId::RXE.0 {
            self.refuse(Rule::DriverId, Errno::INVAL)?;
        }
        let method = registry::Driver::default()
            .method(header.object_id, header.method_id)
            .filter(|method| is_on_rxe(method) && is_class_on_rxe(method.object))
            .filter(|method| !(self.breaks(Rule::MethodPresent) && is::<QueryMr>(method)));
        let Some(method) = method else {
            return Err(self.error(Rule::UnknownMethod, Errno::PROTONOSUPPORT, Errno::INVAL));
        };
        check_length()?;
        let attributes = address + size_of::<Header>() as u64;
        let count = usize::from(header.num_attrs).min(64);
        let unreadable = |_| self.error(Rule::AttributesUnreadable, Errno::FAULT, Errno::INVAL);
        let bytes = read(attributes, count * size_of::<Attribute>()).map_err(unreadable)?;
        let mut running = Running::default();
        let result = self.run(method, &bytes, attributes, &mut running);
        if result.is_err() && !self.breaks(Rule::Undo) {
            for handle in running.made {
                self.remove(handle);
            }
            for fd in running.made_fds {
                self.shared.fds.borrow_mut().remove(&fd);
            }
        }
        result
    }

    fn run(&self, method: &MethodInfo, bytes: &[u8], at: u64, running: &mut Running) -> Result<(), Errno> {
        for (position, bytes) in bytes.chunks_exact(size_of::<Attribute>()).enumerate() {
            let raw = Attribute::read_from_bytes(bytes).map_err(|_| Errno::FAULT)?;
            let address = at + (position * size_of::<Attribute>()) as u64;
            self.set(method, raw, address, position, running)?;
        }
        for info in method.attributes.iter().filter(|info| info.mandatory) {
            if !running.parsed.contains_key(&info.id) {
                self.refuse(Rule::Missing, Errno::INVAL)?;
            }
        }
        if let Some(handle) = running.destroyed {
            self.destroy(handle)?;
        }
        for handle in &running.made {
            if let Some(object) = self.objects.borrow_mut().get_mut(handle) {
                object.uses.clone_from(&running.used);
            }
        }
        self.handle(method, running)
    }

    fn set(
        &self,
        method: &MethodInfo,
        raw: Attribute,
        address: u64,
        position: usize,
        running: &mut Running,
    ) -> Result<(), Errno> {
        let payload = |kind: fn(PayloadSize) -> AttributeKind| kind(PayloadSize::AtLeast(0));
        let kind = match raw.attr_id {
            UHW_IN if method.driver_payload => {
                Some(payload(|size| AttributeKind::Input { size, payload: None }))
            }
            UHW_OUT if method.driver_payload => {
                Some(payload(|size| AttributeKind::Output { size, payload: None }))
            }
            id => method.attributes.iter().find(|info| info.id == id).map(|info: &AttributeInfo| info.kind),
        };
        let hidden = self.breaks(Rule::AttributePresent)
            && is::<CqCreate>(method)
            && raw.attr_id == CqCreate::BUFFER_VA.id();
        let Some(kind) = kind.filter(|_| !hidden) else {
            if raw.flags.contains(AttributeFlags::MANDATORY) {
                return self.refuse(Rule::UnknownMandatory, Errno::PROTONOSUPPORT);
            }
            return if self.breaks(Rule::UnknownOptional) { Err(Errno::PROTONOSUPPORT) } else { Ok(()) };
        };
        if running.parsed.contains_key(&raw.attr_id) {
            return self.refuse(Rule::Duplicate, Errno::INVAL);
        }
        if self.breaks(Rule::AttributeFlags) && raw.flags.bits() & 0xfffc != 0 {
            return Err(Errno::INVAL);
        }
        if self.breaks(Rule::KnownOptional) && !raw.flags.contains(AttributeFlags::MANDATORY) {
            return Err(Errno::INVAL);
        }
        let is_new = matches!(
            kind,
            AttributeKind::Handle { access: Access::New, .. }
                | AttributeKind::Descriptor { access: Access::New, .. }
        );
        if self.breaks(Rule::AttributeOrder) && is_new && position != 0 && running.made.is_empty() {
            return Err(Errno::INVAL);
        }
        self.process(&raw, kind, address, running)?;
        running.parsed.insert(raw.attr_id, Parsed { raw, address, kind });
        Ok(())
    }

    fn process(
        &self,
        raw: &Attribute,
        kind: AttributeKind,
        at: u64,
        running: &mut Running,
    ) -> Result<(), Errno> {
        let len = usize::from(raw.len);
        let (least, most, extensible) = match kind {
            AttributeKind::Handle { .. }
            | AttributeKind::Descriptor { .. }
            | AttributeKind::RawDescriptor => {
                return self.reference(raw, kind, at, running);
            }
            AttributeKind::Constant { .. } => (8, 8, false),
            AttributeKind::Flags { .. } => (4, 8, false),
            AttributeKind::Input { size, .. } | AttributeKind::Output { size, .. } => match size {
                PayloadSize::Exact(len) => (len, len, false),
                PayloadSize::AtLeast(len) => (len, usize::from(u16::MAX), false),
                PayloadSize::Within { minimum, maximum } => (minimum, maximum, false),
                PayloadSize::Extensible { minimum, known } => (minimum, known, true),
            },
            AttributeKind::Handles { .. } | AttributeKind::Enumeration { .. } => {
                return Err(Errno::OPNOTSUPP);
            }
        };
        if extensible && len > most && matches!(kind, AttributeKind::Input { .. }) {
            let tail = read(raw.data + most as u64, len - most);
            if tail.map_or(true, |tail| tail.iter().any(|byte| *byte != 0)) {
                self.refuse(Rule::NonZeroTail, Errno::OPNOTSUPP)?;
            } else if self.breaks(Rule::ZeroTail) {
                return Err(Errno::INVAL);
            }
        }
        // The suite finds the series by the attribute of GET_CONTEXT.
        if len < least {
            // The suite finds the series by the length of FD_ARR.
            let probed = raw.attr_id == GetContext::FD_ARR.id() && !self.has_context.get();
            if probed {
                return Err(Errno::INVAL);
            }
            self.refuse(Rule::TooShort, Errno::INVAL)?;
        }
        if len > most && !extensible {
            self.refuse(Rule::TooLong, Errno::INVAL)?;
        }
        if raw.attr_data != 0 {
            self.refuse(Rule::AttributeReserved, Errno::INVAL)?;
        }
        Ok(())
    }

    fn reference(
        &self,
        raw: &Attribute,
        kind: AttributeKind,
        at: u64,
        running: &mut Running,
    ) -> Result<(), Errno> {
        if raw.attr_data != 0 {
            self.refuse(Rule::AttributeReserved, Errno::INVAL)?;
        }
        if raw.len != 0 {
            self.refuse(Rule::HandleLength, Errno::INVAL)?;
        }
        let data = raw.data.cast_signed();
        match kind {
            AttributeKind::RawDescriptor => {
                if i32::try_from(data).is_err() {
                    self.refuse(Rule::FdWide, Errno::INVAL)?;
                }
                Ok(())
            }
            AttributeKind::Handle { object, access: Access::New } => {
                let handle = self.make(object, raw)?;
                running.made.push(handle);
                store(at + 8, &u64::from(handle).to_ne_bytes())
            }
            AttributeKind::Descriptor { object, access: Access::New } => {
                self.need_context()?;
                self.new_input(raw)?;
                let fd = self.make_fd(object);
                running.made_fds.push(fd);
                store(at + 8, &i64::from(fd).to_ne_bytes())
            }
            AttributeKind::Handle { object, access } => {
                // A new object is not found before the call succeeds.
                if running.made.contains(&(raw.data as u32)) && raw.data >> 32 == 0 {
                    return Err(self.error(Rule::HandleDestroyed, Errno::NOENT, Errno::INVAL));
                }
                if matches!(access, Access::Destroy) {
                    running.destroyed = Some(self.find_to_destroy(object, raw.data)?);
                } else {
                    running.used.push(self.find(object, raw.data)?);
                }
                Ok(())
            }
            AttributeKind::Descriptor { object, .. } => {
                let Ok(fd) = i32::try_from(data) else {
                    return self.refuse(Rule::FdWide, Errno::INVAL);
                };
                let known = self.shared.fds.borrow().get(&fd).copied();
                match known {
                    Some((class, _)) if class != object => {
                        Err(self.error(Rule::FdOtherFile, Errno::BADF, Errno::INVAL))
                    }
                    Some((_, file)) if file != self.number => self.refuse(Rule::FdForeign, Errno::BADF),
                    Some(_) => Ok(()),
                    None if self.other_fds().contains(&fd) => {
                        Err(self.error(Rule::FdOtherFile, Errno::BADF, Errno::INVAL))
                    }
                    None => Err(self.error(Rule::FdClosed, Errno::BADF, Errno::INVAL)),
                }
            }
            _ => Err(Errno::INVAL),
        }
    }

    fn new_input(&self, raw: &Attribute) -> Result<(), Errno> {
        if self.breaks(Rule::NewHandleInput) && raw.data != 0 { Err(Errno::INVAL) } else { Ok(()) }
    }

    fn need_context(&self) -> Result<(), Errno> {
        if self.has_context.get() {
            return Ok(());
        }
        Err(self.error(Rule::NeedsContext, Errno::INVAL, Errno::PERM))
    }

    fn make(&self, class: u16, raw: &Attribute) -> Result<u32, Errno> {
        self.need_context()?;
        self.new_input(raw)?;
        self.add(class)
    }

    /// Adds an object with the lowest free handle.
    fn add(&self, class: u16) -> Result<u32, Errno> {
        self.shared.charge(false)?;
        let mut objects = self.objects.borrow_mut();
        let handle = (0..).find(|handle| !objects.contains_key(handle)).expect("a free handle");
        objects.insert(handle, Object { class, uses: Vec::new() });
        self.used.borrow_mut().insert(handle);
        self.shared.highest.set(self.shared.highest.get().max(handle));
        self.shared.count(class, 1);
        Ok(handle)
    }

    fn remove(&self, handle: u32) {
        if let Some(object) = self.objects.borrow_mut().remove(&handle) {
            self.shared.count(object.class, -1);
            let (contexts, made) = self.shared.charged.get();
            self.shared.charged.set((contexts, made.saturating_sub(1)));
        }
        if let Some(bytes) = self.regions.borrow_mut().remove(&handle) {
            self.shared.pinned.set(self.shared.pinned.get() - bytes);
        }
    }

    /// Removes an object unless another one uses it.
    fn destroy(&self, handle: u32) -> Result<(), Errno> {
        let is_used = self.objects.borrow().values().any(|object| object.uses.contains(&handle));
        if is_used {
            self.refuse(Rule::Busy, Errno::BUSY)?;
        }
        self.remove(handle);
        Ok(())
    }

    fn make_fd(&self, class: u16) -> i32 {
        let fd = self.shared.next_fd.get();
        self.shared.next_fd.set(fd + 1);
        self.shared.fds.borrow_mut().insert(fd, (class, self.number));
        fd
    }

    fn find(&self, class: u16, data: u64) -> Result<u32, Errno> {
        if !is_class_on_rxe(class) {
            return Err(self.error(Rule::HandleAbsentClass, Errno::INVAL, Errno::NOENT));
        }
        if data.cast_signed() < 0 {
            return Err(self.error(Rule::HandleNegative, Errno::INVAL, Errno::NOENT));
        }
        let wide = data > u64::from(u32::MAX);
        if wide && !self.breaks(Rule::HandleWide) {
            return Err(Errno::NOENT);
        }
        let handle = data as u32;
        match self.objects.borrow().get(&handle) {
            Some(found) if found.class != class => {
                self.refuse(Rule::HandleType, Errno::INVAL)?;
                Ok(handle)
            }
            Some(_) => Ok(handle),
            None => {
                let rule = if self.used.borrow().contains(&handle) {
                    Rule::HandleDestroyed
                } else if handle <= self.shared.highest.get() {
                    Rule::HandleForeign
                } else {
                    Rule::HandleUnknown
                };
                Err(self.error(rule, Errno::NOENT, Errno::INVAL))
            }
        }
    }

    fn find_to_destroy(&self, class: u16, data: u64) -> Result<u32, Errno> {
        let handle = data as u32;
        let destroyed = self.used.borrow().contains(&handle) && !self.objects.borrow().contains_key(&handle);
        if destroyed && self.breaks(Rule::DestroyTwice) { Ok(handle) } else { self.find(class, data) }
    }

    fn handle(&self, method: &MethodInfo, running: &Running) -> Result<(), Errno> {
        let device = method.object == ObjectClass::DEVICE.0;
        if device && !is::<GetContext>(method) && !is::<InfoHandles>(method) {
            self.need_context()?;
        }
        if is::<QueryContext>(method)
            || is::<QueryPortSpeed>(method)
            || is::<QueryCompCntrCaps>(method)
            || is::<RegDmabufMr>(method)
        {
            return Err(Errno::OPNOTSUPP);
        }
        if is::<QueryPort>(method) && self.breaks(Rule::GoodCall) {
            return Err(Errno::IO);
        }
        self.needed(method, running)?;
        let is_raw =
            |parsed: &Parsed| is::<QpCreate>(method) && parsed.raw.data == u64::from(QpType::RAW_PACKET.0);
        let has_source = is::<QpCreate>(method) && running.parsed.contains_key(&QpCreate::SOURCE_QPN.id());
        if has_source || running.parsed.get(&QpCreate::TYPE.id()).is_some_and(is_raw) {
            let unprivileged = matches!(self.shared.restriction.get(), Some(Restriction::Without(_)));
            let refused = unprivileged && !self.breaks(Rule::Capability);
            return Err(if refused { Errno::PERM } else { Errno::OPNOTSUPP });
        }
        let is_empty = |parsed: &Parsed| is::<CqCreate>(method) && parsed.raw.data as u32 == 0;
        if running.parsed.get(&CqCreate::CQE.id()).is_some_and(is_empty) {
            return Err(Errno::INVAL);
        }
        for parsed in running.parsed.values() {
            self.input(method, parsed)?;
        }
        if is::<GetContext>(method) {
            if self.has_context.get() {
                return self.refuse(Rule::SecondContext, Errno::INVAL);
            }
            self.shared.charge(true)?;
            self.outputs(method, running, &[])?;
            self.has_context.set(true);
            self.shared.count(ObjectClass::DEVICE.0, 1);
            return Ok(());
        }
        if is::<InfoHandles>(method) {
            return self.list(running);
        }
        if is::<InvokeWrite>(method) {
            return self.command(method, running);
        }
        self.outputs(method, running, &[])
    }

    /// Attributes that a handler needs although they are optional.
    fn needed(&self, method: &MethodInfo, running: &Running) -> Result<(), Errno> {
        let has = |id: u16| running.parsed.contains_key(&id);
        let mut needed: Vec<(u16, Errno)> = Vec::new();
        if is::<QpCreate>(method) {
            for id in [QpCreate::PD_HANDLE.id(), QpCreate::SEND_CQ_HANDLE.id(), QpCreate::RECV_CQ_HANDLE.id()]
            {
                needed.push((id, Errno::NOENT));
            }
        }
        if is::<QpCreate>(method) || is::<CqCreate>(method) || is::<SrqCreate>(method) {
            needed.push((UHW_OUT, Errno::INVAL));
        }
        if is::<RegMr>(method) {
            needed.push((RegMr::ADDR.id(), Errno::INVAL));
        }
        if is::<InfoHandles>(method) {
            needed.push((InfoHandles::HANDLES_LIST.id(), Errno::INVAL));
            needed.push((InfoHandles::TOTAL_HANDLES.id(), Errno::NOENT));
        }
        for (_, errno) in needed.into_iter().filter(|(id, _)| !has(*id)) {
            self.refuse(Rule::MissingForHandler, errno)?;
        }
        Ok(())
    }

    fn input(&self, method: &MethodInfo, parsed: &Parsed) -> Result<(), Errno> {
        let Attribute { data, len, attr_id, .. } = parsed.raw;
        match parsed.kind {
            AttributeKind::Constant { size, .. } if size < 8 && data >> (8 * size) != 0 => {
                self.refuse(Rule::ConstantRange, Errno::INVAL)
            }
            AttributeKind::Flags { names, .. } => {
                match len {
                    8 => {}
                    4 if self.breaks(Rule::FlagsFourBytes) => return Err(Errno::INVAL),
                    4 => {}
                    _ => self.refuse(Rule::FlagsLength, Errno::INVAL)?,
                }
                let known =
                    names.map_or(0, |info| info.values.iter().fold(0, |all, value| all | value.value));
                if data & !(known | 0x3ff0_0000) != 0 {
                    self.refuse(Rule::FlagsUnknown, Errno::INVAL)?;
                }
                Ok(())
            }
            AttributeKind::Input { .. } if len > 8 => {
                // rxe does not read the buffer descriptors of queues.
                let unread = is::<CqCreate>(method) && attr_id == CqCreate::BUF_UMEM.id()
                    || is::<QpCreate>(method) && attr_id >= QpCreate::BUF_UMEM.id()
                    || is::<SrqCreate>(method) && attr_id == SrqCreate::BUF_UMEM.id();
                if !unread && read(data, len.into()).is_err() {
                    self.refuse(Rule::InputUnreadable, Errno::FAULT)?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Writes the outputs, zero except the first of `response`.
    fn outputs(&self, method: &MethodInfo, running: &Running, response: &[u8]) -> Result<(), Errno> {
        for parsed in running.parsed.values() {
            let AttributeKind::Output { size, .. } = parsed.kind else { continue };
            if is::<SrqCreate>(method) && parsed.raw.attr_id == SrqCreate::RESP_SRQ_NUM.id() {
                continue;
            }
            let len = usize::from(parsed.raw.len);
            let len = match size {
                PayloadSize::Extensible { known, .. } if self.breaks(Rule::OutputTail) => len.min(known),
                _ => len,
            };
            let mut bytes = vec![0; len];
            if parsed.raw.attr_id == InvokeWrite::CORE_OUT.id() {
                let copied = response.len().min(len);
                bytes[..copied].copy_from_slice(&response[..copied]);
            }
            self.output(parsed, &bytes)?;
        }
        Ok(())
    }

    fn output(&self, parsed: &Parsed, bytes: &[u8]) -> Result<(), Errno> {
        if store(parsed.raw.data, bytes).is_err() {
            self.refuse(Rule::OutputUnwritable, Errno::FAULT)?;
        }
        if self.breaks(Rule::OutputFlag) {
            return Ok(());
        }
        let flags = parsed.raw.flags | AttributeFlags::VALID_OUTPUT;
        store(parsed.address + 4, &flags.bits().to_ne_bytes())
    }

    fn list(&self, running: &Running) -> Result<(), Errno> {
        let get = |id: u16| running.parsed.get(&id);
        let Some(class) = get(InfoHandles::OBJECT_ID.id()) else { return Ok(()) };
        let class = class.raw.data as u16;
        if !is_class_on_rxe(class) {
            return Err(Errno::NOENT);
        }
        let mut handles: Vec<u32> = Vec::new();
        let objects = self.objects.borrow();
        handles.extend(objects.iter().filter(|(_, object)| object.class == class).map(|(handle, _)| *handle));
        let fds = self.shared.fds.borrow();
        let own = fds.iter().filter(|(_, (of, file))| *of == class && *file == self.number);
        handles.extend(own.map(|_| 0));
        if let Some(list) = get(InfoHandles::HANDLES_LIST.id()) {
            handles.truncate(usize::from(list.raw.len) / 4);
            let bytes: Vec<u8> = handles.iter().flat_map(|handle| handle.to_ne_bytes()).collect();
            self.output(list, &bytes)?;
        }
        if let Some(total) = get(InfoHandles::TOTAL_HANDLES.id()) {
            let bytes = (handles.len() as u64).to_ne_bytes();
            self.output(total, &bytes[..usize::from(total.raw.len).min(8)])?;
        }
        Ok(())
    }

    /// The bytes of an input.
    fn payload(&self, parsed: &Parsed) -> Result<Vec<u8>, Errno> {
        let Attribute { data, len, .. } = parsed.raw;
        match usize::from(len) {
            len @ 0..=8 => Ok(data.to_ne_bytes()[..len].to_vec()),
            len => read(data, len).map_err(|_| self.error(Rule::InputUnreadable, Errno::FAULT, Errno::INVAL)),
        }
    }

    /// The commands that make and destroy the objects of the checks.
    fn command(&self, method: &MethodInfo, running: &Running) -> Result<(), Errno> {
        let number =
            running.parsed.get(&InvokeWrite::WRITE_CMD.id()).map_or(0, |parsed| parsed.raw.data as u32);
        let len = |id: u16| running.parsed.get(&id).map_or(0, |parsed| usize::from(parsed.raw.len));
        let Some(info) = registry::command(number) else { return Err(Errno::OPNOTSUPP) };
        let (input, output) = (len(InvokeWrite::CORE_IN.id()), len(InvokeWrite::CORE_OUT.id()));
        let short = input < info.request_minimum || output < info.response_minimum;
        let fault = [Rule::TooShort, Rule::MissingForHandler].into_iter().any(|rule| self.breaks(rule));
        if short && !fault {
            return Err(Errno::NOSPC);
        }
        let request = running.parsed.get(&InvokeWrite::CORE_IN.id());
        let request = request.map_or(Ok(Vec::new()), |parsed| self.payload(parsed))?;
        if let Some((class, at)) = crate::fuzz::destroyed(info) {
            let handle = request.get(at..at + 4).map_or(0, bareverbs_uapi::print::native);
            let handle = self.find_to_destroy(class, handle)?;
            return self.destroy(handle);
        }
        let fields = info.request.map_or(&[][..], |info| info.fields);
        let pd = crate::request::position(fields, "pd_handle", "base")
            .and_then(|(at, _)| request.get(at..at + 4))
            .map(|bytes| self.find(ObjectClass::PD.0, bareverbs_uapi::print::native(bytes)))
            .transpose()?;
        let class = match number {
            1 => return self.outputs(method, running, &[]),
            3 => ObjectClass::PD,
            5 => ObjectClass::AH,
            9 => ObjectClass::MR,
            14 => ObjectClass::MW,
            17 => {
                let fd = self.make_fd(ObjectClass::COMP_CHANNEL.0);
                let result = self.outputs(method, running, &fd.to_ne_bytes());
                if result.is_err() {
                    self.shared.fds.borrow_mut().remove(&fd);
                }
                return result;
            }
            _ => return Err(Errno::OPNOTSUPP),
        };
        let uses = pd.into_iter().collect();
        let handle = self.add(class.0)?;
        if let Some(object) = self.objects.borrow_mut().get_mut(&handle) {
            object.uses = uses;
        }
        if class == ObjectClass::MR
            && let Some(parsed) = running.parsed.get(&InvokeWrite::CORE_IN.id())
            && let Ok((request, _)) = RegMrReq::read_from_prefix(&read(parsed.raw.data, input)?)
        {
            self.shared.pin(request.length).inspect_err(|_| self.remove(handle))?;
            self.regions.borrow_mut().insert(handle, request.length);
        }
        let result = self.outputs(method, running, &handle.to_ne_bytes());
        if result.is_err() && !self.breaks(Rule::Undo) {
            self.remove(handle);
        }
        result
    }
}

fn is<M: Method>(method: &MethodInfo) -> bool {
    (method.object, method.id) == (M::INFO.object, M::INFO.id)
}

impl UverbsFile for ModelFile {
    unsafe fn ioctl(&self, number: u32, address: u64) -> Result<(), Errno> {
        self.call(number, address)
    }

    unsafe fn write(&self, _command: &WriteBuffer) -> Result<usize, Errno> {
        Err(Errno::NOSYS)
    }

    unsafe fn ioctl_in_child(&self, number: u32, address: u64) -> Result<Result<(), Errno>, String> {
        Ok(self.call(number, address))
    }

    unsafe fn write_in_child(&self, _command: &WriteBuffer) -> Result<Result<(), Errno>, String> {
        Ok(self.refuse(Rule::Fork, Errno::ACCESS))
    }

    fn close(&self, fd: i32) {
        self.shared.fds.borrow_mut().remove(&fd);
    }

    fn other_fds(&self) -> [i32; 2] {
        [3, 4]
    }

    fn read(&self, _fd: i32, _buffer: &mut [u8]) -> Result<usize, Errno> {
        Err(Errno::NOSYS)
    }

    fn is_readable(&self, _fd: i32) -> Result<bool, Errno> {
        Err(Errno::NOSYS)
    }

    fn duplicate(&self) -> Result<OwnedFd, Errno> {
        Err(Errno::NOSYS)
    }

    fn map(&self, _offset: u64, _len: usize, _protection: ProtFlags) -> Result<Map, Errno> {
        Err(Errno::NOSYS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::{environment, life, order, parser};
    use crate::{Filter, Results, Suite, Verdict};

    fn results(broken: Option<Rule>) -> Result<Results, String> {
        let environment = environment::checks().into_iter();
        // The model has no MODIFY_QP and no EX_CREATE_QP.
        let modelled = |name: &str| !name.contains("ModifyQp") && !name.contains("ExCreateQp");
        let environment = environment.filter(|check| modelled(&check.name));
        // The model has no multicast groups.
        let life = life::checks().into_iter().filter(|check| !check.name.ends_with("-multicast"));
        let checks = parser::checks().into_iter().chain(order::checks()).chain(life).chain(environment);
        let checks = checks.collect();
        let suite = Suite::of(Box::new(Model::new(broken)), checks).map_err(|error| error.to_string())?;
        // The hazards are those of a kernel.
        let suite = suite.without_passed_calls().with_hazards();
        Ok(suite.run(&Filter::default(), 0, |_, _, _| {}))
    }

    #[test]
    fn parser_checks_pass_on_the_model_without_fault() {
        let results = results(None).unwrap();
        let failed: Vec<_> = results.checks.iter().filter(|one| one.verdict == Verdict::Failed).collect();
        let names: Vec<_> = failed.iter().map(|one| format!("{}: {}", one.name, one.reason)).collect();
        assert!(failed.is_empty(), "{}", names.join("\n"));
        assert!(results.count(Verdict::Passed) > 500, "{}", results.count(Verdict::Passed));
    }

    #[test]
    fn suite_names_each_broken_rule() {
        let judge = |rule: &Rule| {
            let named = results(Some(*rule)).map(|results| results.broken_rule());
            let right = named.as_ref().map(|named| named.as_deref()) == Ok(Some(rule.id()));
            (!right).then(|| format!("{}: {named:?}", rule.id()))
        };
        let parts = SEEDS.chunks(SEEDS.len().div_ceil(4));
        let wrong: Vec<String> = std::thread::scope(|scope| {
            let running: Vec<_> = parts
                .map(|part| scope.spawn(move || part.iter().filter_map(judge).collect::<Vec<_>>()))
                .collect();
            running.into_iter().flat_map(|part| part.join().expect("the suite does not panic")).collect()
        });
        assert!(wrong.is_empty(), "{} of {} seeds:\n{}", wrong.len(), SEEDS.len(), wrong.join("\n"));
    }
}
