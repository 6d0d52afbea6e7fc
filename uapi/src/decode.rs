//! Decodes the bytes of an ioctl call to names and values, by the declarations of the encoder.
//!
//! ```
//! use bareverbs_uapi::decode::{NoMemory, decode};
//! use bareverbs_uapi::method::Call;
//! use bareverbs_uapi::uverbs::{PdDestroy, types::DriverId};
//!
//! let mut call = Call::<PdDestroy>::new(DriverId::RXE.0);
//! call.destroy(PdDestroy::HANDLE, 7);
//! let decoded = decode(call.as_bytes(), &NoMemory)?;
//! assert_eq!(decoded.to_string(), "PdDestroy on RXE {HANDLE: destroy Pd 7}");
//! # Ok::<(), bareverbs_uapi::decode::DecodeError>(())
//! ```
//!
//! `{}` prints a call in one line. `{:#}` prints one line for each attribute and field.

mod payload;
mod print;

use core::fmt;

use zerocopy::FromBytes;

use crate::abi::{EnumInfo, FieldKind, StructInfo};
use crate::driver::DriverPayload;
use crate::ioctl::{Attribute, AttributeFlags, Header};
use crate::method::{
    Access, AttributeInfo, AttributeKind, Call, Method, MethodInfo, ObjectInfo, PayloadSize, UHW_IN, UHW_OUT,
};
use crate::registry::{self, Driver};
use crate::uverbs::InvokeWrite;
use crate::write::WriteCommandInfo;

use payload::Source;
pub use payload::{Layout, Payload};

/// The memory of the calling process, as seen by a tracer.
pub trait Memory {
    /// Reads `buffer` from `address`; `false` if the memory can't be read.
    fn read(&self, address: u64, buffer: &mut [u8]) -> bool;
}

/// No memory: payloads are printed as addresses.
#[derive(Clone, Copy, Debug)]
pub struct NoMemory;

impl Memory for NoMemory {
    fn read(&self, _address: u64, _buffer: &mut [u8]) -> bool {
        false
    }
}

/// Errors of decoding a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DecodeError {
    /// There are fewer bytes than a header has.
    Header {
        /// Number of bytes given.
        given: usize,
    },
    /// The length in the header does not match its number of attributes.
    Length {
        /// Length of the call in bytes, according to the header.
        length: u16,
        /// Number of attributes, according to the header.
        attributes: u16,
    },
    /// The call is longer than the bytes given.
    Truncated {
        /// Length of the call in bytes, according to the header.
        length: u16,
        /// Number of bytes given.
        given: usize,
    },
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header { given } => {
                write!(f, "{given} bytes are shorter than an ioctl header of {} bytes", size_of::<Header>())
            }
            Self::Length { length, attributes } => {
                write!(f, "the header's length of {length} bytes does not match {attributes} attributes")
            }
            Self::Truncated { length, given } => {
                write!(f, "the header's length of {length} bytes exceeds the {given} bytes given")
            }
        }
    }
}

impl core::error::Error for DecodeError {}

/// Decodes a call. The driver id of the call selects the driver-specific objects and attributes.
///
/// # Errors
///
/// Only for an invalid header. Unknown ids are printed as numbers.
pub fn decode<'a>(bytes: &'a [u8], memory: &'a dyn Memory) -> Result<DecodedCall<'a>, DecodeError> {
    let driver = header(bytes)?.driver_id;
    decode_for(bytes, memory, registry::driver(driver))
}

/// Decodes a call with driver-specific additions that the caller supplies.
///
/// # Errors
///
/// As for [`decode`].
pub fn decode_for<'a>(
    bytes: &'a [u8],
    memory: &'a dyn Memory,
    driver: Driver,
) -> Result<DecodedCall<'a>, DecodeError> {
    let header = header(bytes)?;
    let attributes = &bytes[size_of::<Header>()..usize::from(header.length)];
    Ok(DecodedCall { header, attributes, memory, driver })
}

fn header(bytes: &[u8]) -> Result<Header, DecodeError> {
    let (header, _) =
        Header::read_from_prefix(bytes).map_err(|_| DecodeError::Header { given: bytes.len() })?;
    let Header { length, num_attrs, .. } = header;
    if usize::from(length) != size_of::<Header>() + usize::from(num_attrs) * size_of::<Attribute>() {
        return Err(DecodeError::Length { length, attributes: num_attrs });
    }
    if bytes.len() < usize::from(length) {
        return Err(DecodeError::Truncated { length, given: bytes.len() });
    }
    Ok(header)
}

impl<M: Method> fmt::Debug for Call<'_, M> {
    /// The names and values, as [`decode`] without access to memory prints them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match decode(self.bytes_in_buffer(), &NoMemory) {
            Ok(call) => write!(f, "Call({call})"),
            Err(error) => write!(f, "Call({error})"),
        }
    }
}

/// A decoded call. Printing never fails.
#[derive(Clone, Copy)]
pub struct DecodedCall<'a> {
    header: Header,
    attributes: &'a [u8],
    memory: &'a dyn Memory,
    driver: Driver,
}

impl<'a> DecodedCall<'a> {
    /// Its header.
    #[must_use]
    pub const fn header(&self) -> &Header {
        &self.header
    }

    /// The object class, if it is known.
    #[must_use]
    pub fn object(&self) -> Option<&'static ObjectInfo> {
        self.driver.objects().find(|object| object.id == self.header.object_id)
    }

    /// The method, if it is known.
    #[must_use]
    pub fn method(&self) -> Option<&'static MethodInfo> {
        self.driver.method(self.header.object_id, self.header.method_id)
    }

    /// The write command of a call of [`InvokeWrite`], if it is known.
    #[must_use]
    pub fn command(&self) -> Option<&'static WriteCommandInfo> {
        if !self.method().is_some_and(is_invoke_write) {
            return None;
        }
        self.raw_attributes()
            .find(|attribute| attribute.attr_id == InvokeWrite::WRITE_CMD.id())
            .and_then(|attribute| registry::command(u32::try_from(attribute.data).ok()?))
    }

    /// The attributes, in the order of the call.
    pub fn attributes(&self) -> impl Iterator<Item = DecodedAttribute<'a>> {
        let (driver, memory, method, command) = (self.driver, self.memory, self.method(), self.command());
        self.raw_attributes().map(move |raw| {
            let mut known = method.into_iter().flat_map(|method| driver.attributes(method));
            let info = known.find(|attribute| attribute.id == raw.attr_id);
            DecodedAttribute { raw, info, method, command, driver, memory }
        })
    }

    fn raw_attributes(&self) -> impl Iterator<Item = Attribute> + use<'a> {
        self.attributes
            .chunks_exact(size_of::<Attribute>())
            .filter_map(|bytes| Attribute::read_from_bytes(bytes).ok())
    }
}

fn is_invoke_write(method: &MethodInfo) -> bool {
    (method.object, method.id) == (InvokeWrite::INFO.object, InvokeWrite::INFO.id)
}

/// One attribute of a call.
#[derive(Clone, Copy)]
pub struct DecodedAttribute<'a> {
    raw: Attribute,
    info: Option<&'static AttributeInfo>,
    method: Option<&'static MethodInfo>,
    command: Option<&'static WriteCommandInfo>,
    driver: Driver,
    memory: &'a dyn Memory,
}

/// Value of an attribute.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum DecodedValue<'a> {
    /// A handle.
    Handle {
        /// Id of the object class.
        object: u16,
        /// The access of the call to the object.
        access: Access,
        /// The handle.
        handle: u64,
    },
    /// A descriptor of an object.
    Descriptor {
        /// Id of the object class.
        object: u16,
        /// The access of the call to the object.
        access: Access,
        /// The descriptor.
        fd: i64,
    },
    /// A descriptor that is not a uverbs object.
    RawDescriptor(i64),
    /// A number, a named value or flags.
    Number {
        /// The names.
        names: Option<&'static EnumInfo>,
        /// The value.
        value: u64,
    },
    /// The number of a write command.
    Command {
        /// The number.
        number: u64,
        /// The command, if it is known.
        info: Option<&'static WriteCommandInfo>,
    },
    /// An enumeration element and its payload.
    Element {
        /// The element.
        element: u8,
        /// Its names.
        names: Option<&'static EnumInfo>,
        /// Its payload.
        payload: Payload<'a>,
    },
    /// Input bytes.
    Input(Payload<'a>),
    /// Output bytes.
    Output {
        /// Their address.
        payload: Payload<'a>,
        /// Whether the kernel has written them.
        written: bool,
    },
    /// An unknown attribute.
    Unknown {
        /// Size of its payload in bytes.
        len: u16,
        /// Its data word.
        data: u64,
    },
}

impl<'a> DecodedAttribute<'a> {
    /// The raw attribute.
    #[must_use]
    pub const fn raw(&self) -> &Attribute {
        &self.raw
    }

    /// Its description; `None` for driver payloads, which each driver declares.
    #[must_use]
    pub const fn info(&self) -> Option<&'static AttributeInfo> {
        self.info
    }

    /// Its name, if it is known.
    #[must_use]
    pub fn name(&self) -> Option<&'static str> {
        match (self.info, self.raw.attr_id) {
            (Some(info), _) => Some(info.rust),
            (None, UHW_IN) if self.has_driver_payload() => Some("UHW_IN"),
            (None, UHW_OUT) if self.has_driver_payload() => Some("UHW_OUT"),
            _ => None,
        }
    }

    /// Its value.
    #[must_use]
    pub fn value(&self) -> DecodedValue<'a> {
        let Attribute { len, data, .. } = self.raw;
        let Some(info) = self.info else {
            return match self.raw.attr_id {
                UHW_IN if self.has_driver_payload() => {
                    DecodedValue::Input(self.inbound(self.driver_layout(|payload| payload.request)))
                }
                UHW_OUT if self.has_driver_payload() => {
                    self.outbound(self.driver_layout(|payload| payload.response))
                }
                _ => DecodedValue::Unknown { len, data },
            };
        };
        match info.kind {
            AttributeKind::Handle { object, access } => DecodedValue::Handle { object, access, handle: data },
            AttributeKind::Descriptor { object, access } => {
                DecodedValue::Descriptor { object, access, fd: data.cast_signed() }
            }
            AttributeKind::RawDescriptor => DecodedValue::RawDescriptor(data.cast_signed()),
            AttributeKind::Constant { .. } if self.is_invoke_write(InvokeWrite::WRITE_CMD.id()) => {
                DecodedValue::Command { number: data, info: self.command }
            }
            AttributeKind::Constant { names, .. } | AttributeKind::Flags { names, .. } => {
                DecodedValue::Number { names, value: number(data, len) }
            }
            AttributeKind::Enumeration { names } => DecodedValue::Element {
                element: self.raw.attr_data.to_ne_bytes()[0],
                names,
                payload: self.inbound(Layout::Bytes),
            },
            AttributeKind::Handles { .. } => {
                DecodedValue::Input(self.inbound(Layout::Elements(FieldKind::Unsigned(4))))
            }
            AttributeKind::Input { size, payload } => {
                DecodedValue::Input(self.inbound(self.layout(size, payload)))
            }
            AttributeKind::Output { size, payload } => self.outbound(self.layout(size, payload)),
        }
    }

    fn has_driver_payload(&self) -> bool {
        self.method.is_some_and(|method| method.driver_payload)
    }

    fn driver_layout(&self, of: fn(&DriverPayload) -> Option<&'static StructInfo>) -> Layout {
        let payload = match (self.command, self.method) {
            (Some(command), _) => self.driver.command_payload(command.number),
            (None, Some(method)) => self.driver.method_payload(method.object, method.id),
            (None, None) => None,
        };
        payload.and_then(of).map_or(Layout::Bytes, |info| Layout::One(FieldKind::Struct(info)))
    }

    fn is_invoke_write(&self, attribute: u16) -> bool {
        self.method.is_some_and(is_invoke_write) && self.raw.attr_id == attribute
    }

    fn layout(&self, size: PayloadSize, kind: Option<FieldKind>) -> Layout {
        let core = match self.command {
            Some(command) if self.is_invoke_write(InvokeWrite::CORE_IN.id()) => command.request,
            Some(command) if self.is_invoke_write(InvokeWrite::CORE_OUT.id()) => command.response,
            _ => None,
        };
        match (core, kind, size) {
            (Some(info), ..) => Layout::One(FieldKind::Struct(info)),
            (None, Some(FieldKind::Unsigned(1)), PayloadSize::AtLeast(_)) | (None, None, _) => Layout::Bytes,
            (None, Some(kind), PayloadSize::AtLeast(_)) => Layout::Elements(kind),
            (None, Some(kind), _) => Layout::One(kind),
        }
    }

    fn inbound(&self, layout: Layout) -> Payload<'a> {
        let len = usize::from(self.raw.len);
        let source = match len {
            0..=8 => Source::Inline(self.raw.data.to_ne_bytes()),
            _ => Source::Address(self.raw.data),
        };
        Payload { len, source, layout, memory: self.memory }
    }

    fn outbound(&self, layout: Layout) -> DecodedValue<'a> {
        let source = Source::Address(self.raw.data);
        DecodedValue::Output {
            payload: Payload { len: usize::from(self.raw.len), source, layout, memory: self.memory },
            written: self.raw.flags.contains(AttributeFlags::VALID_OUTPUT),
        }
    }
}

/// A constant or flag word: the low half if it has 4 bytes.
fn number(data: u64, len: u16) -> u64 {
    let [a, b, c, d, ..] = data.to_ne_bytes();
    if len == 4 { u32::from_ne_bytes([a, b, c, d]).into() } else { data }
}
