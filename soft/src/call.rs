//! The ioctl parser, with the checks of Linux 7.2 in their order (`core/uverbs_ioctl.c`).

use std::os::fd::BorrowedFd;

use bareverbs_provider::Errno;
use bareverbs_uapi::abi::{EnumInfo, Since};
use bareverbs_uapi::ioctl::{Attribute, AttributeFlags, Header};
use bareverbs_uapi::method::{Access, AttributeKind, PayloadSize, UHW_IN, UHW_OUT};
use bareverbs_uapi::rules::{MethodRules, Rules};
use bareverbs_uapi::uverbs::types::DriverId;
use bareverbs_uapi::uverbs::{AdviseMr, DmMrReg, InvokeWrite, ObjectClass};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::channel::{ChannelKind, ChannelUse};
use crate::objects::{ContextState, Transaction, is_class};
use crate::user;

/// The longest call: a page.
const MAX_CALL: usize = 4096;

/// The kernel whose methods and attributes the device has.
const SERIES: Since = Since::V7_2;

/// A call of a method.
#[derive(Debug)]
pub(crate) struct Call<'c> {
    bytes: &'c mut [u8],
    pub(crate) method: &'static MethodRules,
    attributes: Vec<ParsedAttribute>,
    /// The object that the call destroys.
    pub(crate) destroyed: Option<u32>,
}

/// An attribute that passed the parser.
#[derive(Clone, Copy, Debug)]
struct ParsedAttribute {
    raw: Attribute,
    /// Where it is in the call.
    at: usize,
}

/// Bytes of the program.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Source<'a> {
    /// In the call itself.
    Inline([u8; 8], usize),
    /// In the bytes of a write command.
    Slice(&'a [u8]),
    Address(u64, usize),
}

impl Source<'_> {
    pub(crate) const EMPTY: Self = Self::Inline([0; 8], 0);

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Inline(_, len) | Self::Address(_, len) => *len,
            Self::Slice(bytes) => bytes.len(),
        }
    }

    /// Copies the bytes from `at` on.
    pub(crate) fn read(&self, at: usize, to: &mut [u8]) -> Result<(), Errno> {
        let own = match self {
            Self::Inline(bytes, len) => &bytes[..*len],
            Self::Slice(bytes) => bytes,
            Self::Address(address, len) => {
                at.checked_add(to.len()).filter(|end| end <= len).ok_or(Errno::FAULT)?;
                let address = address.checked_add(at as u64).ok_or(Errno::FAULT)?;
                return user::read(address, to);
            }
        };
        let from = at.checked_add(to.len()).and_then(|end| own.get(at..end)).ok_or(Errno::FAULT)?;
        to.copy_from_slice(from);
        Ok(())
    }

    /// Whether the bytes from `at` on are zero.
    pub(crate) fn is_zero_from(&self, mut at: usize) -> Result<bool, Errno> {
        let mut chunk = [0; 256];
        while at < self.len() {
            let part = (self.len() - at).min(chunk.len());
            self.read(at, &mut chunk[..part])?;
            if chunk[..part].iter().any(|byte| *byte != 0) {
                return Ok(false);
            }
            at += part;
        }
        Ok(true)
    }
}

/// Memory of the program for a response.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sink {
    pub(crate) address: u64,
    pub(crate) len: usize,
}

impl Sink {
    pub(crate) const EMPTY: Self = Self { address: 0, len: 0 };

    /// Writes bytes at `at`, which must fit.
    pub(crate) fn write(&self, at: usize, bytes: &[u8]) -> Result<(), Errno> {
        at.checked_add(bytes.len()).filter(|end| *end <= self.len).ok_or(Errno::FAULT)?;
        let address = self.address.checked_add(at as u64).ok_or(Errno::FAULT)?;
        // SAFETY: outputs of the call are memory that only the call accesses, by the contract of
        // `DeviceFile::execute_raw` and `write_raw`.
        unsafe { user::write(address, bytes) }
    }

    /// Writes as much of `bytes` as fits, and zeros behind them.
    pub(crate) fn fill(&self, bytes: &[u8]) -> Result<(), Errno> {
        let zeros = [0; 256];
        let mut at = bytes.len();
        while at < self.len {
            let part = (self.len - at).min(zeros.len());
            self.write(at, &zeros[..part])?;
            at += part;
        }
        self.write(0, &bytes[..bytes.len().min(self.len)])
    }
}

/// The named bits of flags.
pub(crate) fn named(info: &EnumInfo) -> u64 {
    info.values.iter().fold(0, |all, value| all | value.value)
}

/// Whether Soft-RoCE has a method. The kernel drops methods with a mandatory handle of an absent class.
fn is_method(method: &MethodRules) -> bool {
    method.since <= SERIES && is_class(method.object) && !method.is::<DmMrReg>()
}

impl<'c> Call<'c> {
    /// Parses the header.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub(crate) fn new(bytes: &'c mut [u8]) -> Result<Self, Errno> {
        let (header, rest) = Header::read_from_prefix(bytes).map_err(|_| Errno::FAULT)?;
        let attributes = usize::from(header.num_attrs) * size_of::<Attribute>();
        let length = size_of::<Header>() + attributes;
        if length > MAX_CALL || usize::from(header.length) != length {
            return Err(Errno::INVAL);
        }
        if header.reserved1 != 0 || header.reserved2 != 0 {
            return Err(Errno::PROTONOSUPPORT);
        }
        if header.driver_id != DriverId::RXE.0 {
            return Err(Errno::INVAL);
        }
        let method = Rules::of(DriverId::RXE.0).method(header.object_id, header.method_id);
        let method = method.filter(|method| is_method(method)).ok_or(Errno::PROTONOSUPPORT)?;
        if rest.len() < attributes {
            return Err(Errno::FAULT);
        }
        let bytes = &mut bytes[..length];
        Ok(Self { bytes, method, attributes: Vec::new(), destroyed: None })
    }

    /// Whether the method may be a destruction. Those don't fail after the removal of the device.
    pub(crate) fn may_destroy(&self) -> bool {
        let destroys = |kind| matches!(kind, AttributeKind::Handle { access: Access::Destroy, .. });
        self.method.is::<InvokeWrite>() || self.method.attributes.iter().any(|info| destroys(info.kind))
    }

    /// Parses the attributes in their order, and finds and reserves their objects.
    ///
    /// # Errors
    ///
    /// The kernel's.
    pub(crate) fn parse(&mut self, txn: &mut Transaction<'_>) -> Result<(), Errno> {
        for at in (size_of::<Header>()..self.bytes.len()).step_by(size_of::<Attribute>()) {
            let raw = Attribute::read_from_prefix(&self.bytes[at..]).map_err(|_| Errno::FAULT)?.0;
            let Some(kind) = self.kind(raw.attr_id) else {
                if raw.flags.contains(AttributeFlags::MANDATORY) {
                    return Err(Errno::PROTONOSUPPORT);
                }
                continue;
            };
            if self.get(raw.attr_id).is_ok() {
                return Err(Errno::INVAL);
            }
            self.check(&raw, kind)?;
            let raw = self.resolve(txn, raw, kind, at)?;
            self.attributes.push(ParsedAttribute { raw, at });
        }
        let mandatory = self.method.attributes.iter().filter(|info| info.mandatory);
        if mandatory.clone().any(|info| self.get(info.id).is_err()) {
            return Err(Errno::INVAL);
        }
        Ok(())
    }

    /// The kind of an attribute that the method has.
    fn kind(&self, id: u16) -> Option<AttributeKind> {
        let size = PayloadSize::AtLeast(0);
        match id {
            UHW_IN if self.method.driver_payload => Some(AttributeKind::Input { size, payload: None }),
            UHW_OUT if self.method.driver_payload => Some(AttributeKind::Output { size, payload: None }),
            _ => {
                let known = self.method.attributes.iter().find(|info| info.id == id && info.since <= SERIES);
                known.map(|info| info.kind)
            }
        }
    }

    /// Checks what needs no object.
    fn check(&self, raw: &Attribute, kind: AttributeKind) -> Result<(), Errno> {
        let len = usize::from(raw.len);
        let (least, most, extensible) = match kind {
            AttributeKind::Handle { .. } | AttributeKind::Descriptor { .. } => (0, 0, false),
            AttributeKind::RawDescriptor => {
                i32::try_from(raw.data.cast_signed()).map_err(|_| Errno::INVAL)?;
                (0, 0, false)
            }
            AttributeKind::Constant { .. } => (8, 8, false),
            AttributeKind::Flags { .. } => (4, 8, false),
            AttributeKind::Input { size, .. } | AttributeKind::Output { size, .. } => match size {
                PayloadSize::Exact(len) => (len, len, false),
                PayloadSize::AtLeast(len) => (len, usize::from(u16::MAX), false),
                PayloadSize::Within { minimum, maximum } => (minimum, maximum, false),
                PayloadSize::Extensible { minimum, known } => (minimum, known, true),
            },
            // Of drivers that the device is not.
            AttributeKind::Handles { .. } | AttributeKind::Enumeration { .. } => {
                return Err(Errno::OPNOTSUPP);
            }
        };
        let is_input = matches!(kind, AttributeKind::Input { .. });
        if is_input && extensible && len > most && source(raw).is_zero_from(most) != Ok(true) {
            return Err(Errno::OPNOTSUPP);
        }
        if len < least || (len > most && !extensible) || raw.attr_data != 0 {
            return Err(Errno::INVAL);
        }
        if self.method.is::<AdviseMr>() && raw.attr_id == AdviseMr::SGE_LIST.id() {
            // The kernel's parser copies this input only.
            source(raw).read(0, &mut vec![0; len])?;
        }
        Ok(())
    }

    /// Finds or reserves the object of an attribute.
    fn resolve(
        &mut self,
        txn: &mut Transaction<'_>,
        mut raw: Attribute,
        kind: AttributeKind,
        at: usize,
    ) -> Result<Attribute, Errno> {
        match kind {
            AttributeKind::Handle { object, access } => {
                let class = ObjectClass(object);
                match access {
                    Access::New => {
                        raw.data = txn.reserve(class)?.into();
                        self.set_data(at, raw.data);
                    }
                    Access::Destroy => self.destroyed = Some(txn.state.find(class, raw.data.cast_signed())?),
                    Access::Read | Access::Write => {
                        txn.state.find(class, raw.data.cast_signed())?;
                    }
                }
            }
            AttributeKind::Descriptor { object, access: Access::New } => {
                let fd = txn.new_channel(channel_kind(object)?)?;
                raw.data = i64::from(fd).cast_unsigned();
                self.set_data(at, raw.data);
            }
            AttributeKind::Descriptor { object, .. } => {
                let fd = i32::try_from(raw.data.cast_signed()).map_err(|_| Errno::INVAL)?;
                channel_of(txn.state, channel_kind(object)?, fd)?;
            }
            _ => {}
        }
        Ok(raw)
    }

    fn set_data(&mut self, at: usize, data: u64) {
        // The last field of `Attribute`.
        self.bytes[at + 8..at + 16].copy_from_slice(&data.to_ne_bytes());
    }

    fn get(&self, id: u16) -> Result<&ParsedAttribute, Errno> {
        self.attributes.iter().find(|attribute| attribute.raw.attr_id == id).ok_or(Errno::NOENT)
    }

    pub(crate) fn has(&self, id: u16) -> bool {
        self.get(id).is_ok()
    }

    /// A handle.
    ///
    /// # Errors
    ///
    /// `ENOENT` without the attribute.
    pub(crate) fn handle(&self, id: u16) -> Result<u32, Errno> {
        Ok(self.get(id)?.raw.data as u32)
    }

    /// A channel that the call uses.
    ///
    /// # Errors
    ///
    /// `EBADF`.
    pub(crate) fn channel(
        &self,
        state: &ContextState,
        id: u16,
        kind: ChannelKind,
    ) -> Result<Option<ChannelUse>, Errno> {
        let Ok(attribute) = self.get(id) else { return Ok(None) };
        channel_of(state, kind, attribute.raw.data as i32).map(Some)
    }

    /// A constant of `size` bytes.
    ///
    /// # Errors
    ///
    /// `ENOENT` without the attribute, `EINVAL` out of range.
    pub(crate) fn constant(&self, id: u16) -> Result<u64, Errno> {
        let data = self.get(id)?.raw.data;
        match self.kind(id) {
            Some(AttributeKind::Constant { size, .. }) if size < 8 && data >> (8 * size) != 0 => {
                Err(Errno::INVAL)
            }
            _ => Ok(data),
        }
    }

    /// A flag word; 0 without the attribute.
    ///
    /// # Errors
    ///
    /// `EINVAL` for other lengths than 4 and 8, and for bits that are not allowed.
    pub(crate) fn flags(&self, id: u16, allowed: u64) -> Result<u32, Errno> {
        let Ok(attribute) = self.get(id) else { return Ok(0) };
        let flags = match attribute.raw.len {
            8 => attribute.raw.data,
            // The first bytes of the field.
            4 => u64::from(u32::from_ne_bytes(
                attribute.raw.data.to_ne_bytes()[..4].try_into().unwrap_or_default(),
            )),
            _ => return Err(Errno::INVAL),
        };
        if flags & !allowed != 0 { Err(Errno::INVAL) } else { Ok(flags as u32) }
    }

    /// A value; zero behind what the program has.
    ///
    /// # Errors
    ///
    /// `ENOENT` without the attribute, `EFAULT`.
    pub(crate) fn value<T: FromBytes + FromZeros + IntoBytes + Immutable + KnownLayout>(
        &self,
        id: u16,
    ) -> Result<T, Errno> {
        let source = source(&self.get(id)?.raw);
        let mut value = T::new_zeroed();
        let len = source.len().min(size_of::<T>());
        source.read(0, &mut value.as_mut_bytes()[..len])?;
        Ok(value)
    }

    /// An input; empty without the attribute.
    pub(crate) fn source(&self, id: u16) -> Source<'static> {
        self.get(id).map_or(Source::EMPTY, |attribute| source(&attribute.raw))
    }

    /// An output; empty without the attribute.
    pub(crate) fn sink(&self, id: u16) -> Sink {
        self.get(id).map_or(Sink::EMPTY, |attribute| Sink {
            address: attribute.raw.data,
            len: attribute.raw.len.into(),
        })
    }

    /// Writes an output as far as there is room, and marks it as written.
    ///
    /// # Errors
    ///
    /// `ENOENT` without the attribute, `EFAULT`.
    pub(crate) fn write(&mut self, id: u16, bytes: &[u8]) -> Result<(), Errno> {
        let sink = self.sink(id);
        self.get(id)?;
        sink.write(0, &bytes[..bytes.len().min(sink.len)])?;
        self.mark_written(id);
        Ok(())
    }

    /// The same for an optional output.
    ///
    /// # Errors
    ///
    /// `EFAULT`.
    pub(crate) fn write_optional(&mut self, id: u16, bytes: &[u8]) -> Result<(), Errno> {
        if self.has(id) { self.write(id, bytes) } else { Ok(()) }
    }

    /// Writes an output, and zeros behind it.
    ///
    /// # Errors
    ///
    /// `ENOENT` without the attribute, `EFAULT`.
    pub(crate) fn write_struct(&mut self, id: u16, bytes: &[u8]) -> Result<(), Errno> {
        self.get(id)?;
        self.sink(id).fill(bytes)?;
        self.mark_written(id);
        Ok(())
    }

    /// Marks an output, if there is one, as written.
    pub(crate) fn mark_written(&mut self, id: u16) {
        let Ok(attribute) = self.get(id) else { return };
        let (at, flags) = (attribute.at, attribute.raw.flags | AttributeFlags::VALID_OUTPUT);
        self.bytes[at + 4..at + 6].copy_from_slice(&flags.bits().to_ne_bytes());
    }
}

/// The bytes of an input.
fn source(raw: &Attribute) -> Source<'static> {
    match usize::from(raw.len) {
        len @ 0..=8 => Source::Inline(raw.data.to_ne_bytes(), len),
        len => Source::Address(raw.data, len),
    }
}

/// The kind of channel that objects of a class are.
fn channel_kind(class: u16) -> Result<ChannelKind, Errno> {
    match ObjectClass(class) {
        ObjectClass::COMP_CHANNEL => Ok(ChannelKind::Completion),
        ObjectClass::ASYNC_EVENT => Ok(ChannelKind::Async),
        _ => Err(Errno::INVAL),
    }
}

/// The channel behind a descriptor of the program.
///
/// # Errors
///
/// `EBADF`.
pub(crate) fn channel_of(state: &ContextState, kind: ChannelKind, fd: i32) -> Result<ChannelUse, Errno> {
    if fd < 0 {
        return Err(Errno::BADF);
    }
    // SAFETY: the number is not -1. If no file is open under it, `fstat` fails with `EBADF`.
    state.channel(kind, unsafe { BorrowedFd::borrow_raw(fd) })
}
