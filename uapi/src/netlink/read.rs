use core::{fmt, str};

use zerocopy::{FromBytes, Immutable, KnownLayout};

use super::{
    AttributeHeader, ControlType, ErrorBody, MessageFlags, MessageHeader, NESTED, NET_BYTE_ORDER,
    ReportAttribute, aligned,
};

/// Iterator over the messages of a datagram. A malformed message yields an error and ends the
/// iteration.
#[must_use]
pub fn messages(datagram: &[u8]) -> Messages<'_> {
    Messages { rest: datagram }
}

/// Errors of decoding received bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Malformed {
    /// There are fewer bytes than a header or a fixed struct needs.
    Truncated {
        /// Number of bytes needed.
        needed: usize,
        /// Number of bytes available.
        available: usize,
    },
    /// The length in a header is shorter than the header or longer than its container.
    Length {
        /// The length in the header.
        stated: usize,
        /// Number of bytes available.
        available: usize,
    },
    /// The payload of an attribute does not have the size of the requested type.
    Size {
        /// Type of the attribute.
        attribute: u16,
        /// Size of the requested type in bytes.
        expected: usize,
        /// Number of bytes available.
        found: usize,
    },
    /// An attribute's payload is not UTF-8.
    Text {
        /// Type of the attribute.
        attribute: u16,
    },
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Truncated { needed, available } => {
                write!(f, "netlink data is truncated: {needed} bytes needed, {available} available")
            }
            Self::Length { stated, available } => {
                write!(
                    f,
                    "a netlink header's length of {stated} bytes exceeds the {available} bytes available"
                )
            }
            Self::Size { attribute, expected, found } => {
                write!(f, "netlink attribute {attribute} has {found} bytes instead of {expected}")
            }
            Self::Text { attribute } => write!(f, "netlink attribute {attribute} is not UTF-8"),
        }
    }
}

impl core::error::Error for Malformed {}

/// The messages of a datagram.
#[derive(Clone, Debug)]
pub struct Messages<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Messages<'a> {
    type Item = Result<Message<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let bytes = core::mem::take(&mut self.rest);
        if bytes.is_empty() {
            return None;
        }
        Some(split::<MessageHeader>(bytes, |header| header.length as usize).map(|(header, payload, rest)| {
            self.rest = rest;
            Message { header, payload }
        }))
    }
}

/// Splits a header of type `H` and its payload from the front of `bytes`.
fn split<H: FromBytes + KnownLayout + Immutable>(
    bytes: &[u8],
    stated: impl FnOnce(&H) -> usize,
) -> Result<(H, &[u8], &[u8]), Malformed> {
    let (header, _) = H::read_from_prefix(bytes)
        .map_err(|_| Malformed::Truncated { needed: size_of::<H>(), available: bytes.len() })?;
    let stated = stated(&header);
    let payload =
        bytes.get(size_of::<H>()..stated).ok_or(Malformed::Length { stated, available: bytes.len() })?;
    Ok((header, payload, bytes.get(aligned(stated)..).unwrap_or_default()))
}

/// A received message.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// Its header.
    pub header: MessageHeader,
    /// The bytes after the header.
    pub payload: &'a [u8],
}

/// The kind of a response.
#[derive(Clone, Copy, Debug)]
pub enum Content<'a> {
    /// No operation.
    Noop,
    /// The kernel lost messages to this socket.
    Overrun,
    /// The request succeeded.
    Acknowledged(Report<'a>),
    /// The request failed with [`Report::errno`].
    Error(Report<'a>),
    /// End of a multipart response; success if [`Report::errno`] is 0.
    Done(Report<'a>),
    /// A protocol-specific message, for [`Message::body`] or [`Message::attributes`].
    Data,
}

/// The kernel's report about a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report<'a> {
    /// The errno as a positive number; 0 means success.
    pub errno: i32,
    /// The header of the request; `None` at the end of a multipart response.
    pub request: Option<MessageHeader>,
    /// Error text, if the socket has the option [`super::SocketOption::EXT_ACK`].
    pub message: Option<&'a str>,
    /// Offset of the rejected attribute in the request.
    pub offset: Option<u32>,
    /// Type of a missing attribute.
    pub missing: Option<u32>,
    /// Offset of the nested attribute that lacks it.
    pub missing_in: Option<u32>,
}

impl<'a> Message<'a> {
    /// The content of the message.
    ///
    /// # Errors
    /// The body of a control message is truncated or has malformed attributes.
    pub fn content(&self) -> Result<Content<'a>, Malformed> {
        Ok(match ControlType(self.header.kind) {
            ControlType::NOOP => Content::Noop,
            ControlType::OVERRUN => Content::Overrun,
            ControlType::ERROR => {
                let report = self.error()?;
                if report.errno == 0 { Content::Acknowledged(report) } else { Content::Error(report) }
            }
            ControlType::DONE => Content::Done(self.done()?),
            _ => Content::Data,
        })
    }

    fn error(&self) -> Result<Report<'a>, Malformed> {
        let (body, rest) = read::<ErrorBody>(self.payload)?;
        let mut report =
            Report { errno: body.error.saturating_neg(), request: Some(body.request), ..Report::default() };
        if self.header.flags.contains(MessageFlags::ACK_ATTRIBUTES) {
            let request = if self.header.flags.contains(MessageFlags::CAPPED) {
                0
            } else {
                aligned(body.request.length as usize).saturating_sub(size_of::<MessageHeader>())
            };
            let available = rest.len();
            let attributes = rest.get(request..).ok_or(Malformed::Length { stated: request, available })?;
            report.read_attributes(attributes)?;
        }
        Ok(report)
    }

    fn done(&self) -> Result<Report<'a>, Malformed> {
        if self.payload.is_empty() {
            return Ok(Report::default());
        }
        let (error, rest) = read::<i32>(self.payload)?;
        let mut report = Report { errno: error.saturating_neg(), ..Report::default() };
        if self.header.flags.contains(MessageFlags::ACK_ATTRIBUTES) {
            report.read_attributes(rest)?;
        }
        Ok(report)
    }

    /// The fixed struct of the protocol and the attributes after it.
    ///
    /// # Errors
    /// The message is shorter than the struct.
    pub fn body<T: FromBytes + KnownLayout + Immutable>(&self) -> Result<(T, Attributes<'a>), Malformed> {
        let (body, rest) = read(self.payload)?;
        Ok((body, Attributes { rest }))
    }

    /// The attributes of a message without a fixed struct, as in RDMA netlink.
    #[must_use]
    pub fn attributes(&self) -> Attributes<'a> {
        Attributes { rest: self.payload }
    }
}

fn read<T: FromBytes + KnownLayout + Immutable>(bytes: &[u8]) -> Result<(T, &[u8]), Malformed> {
    let (value, _) = T::read_from_prefix(bytes)
        .map_err(|_| Malformed::Truncated { needed: size_of::<T>(), available: bytes.len() })?;
    Ok((value, bytes.get(aligned(size_of::<T>())..).unwrap_or_default()))
}

impl<'a> Report<'a> {
    fn read_attributes(&mut self, bytes: &'a [u8]) -> Result<(), Malformed> {
        for attribute in (Attributes { rest: bytes }) {
            let attribute = attribute?;
            match ReportAttribute(attribute.kind) {
                ReportAttribute::MESSAGE => self.message = Some(attribute.str()?),
                ReportAttribute::OFFSET => self.offset = Some(attribute.u32()?),
                ReportAttribute::MISSING_TYPE => self.missing = Some(attribute.u32()?),
                ReportAttribute::MISSING_NEST => self.missing_in = Some(attribute.u32()?),
                _ => {}
            }
        }
        Ok(())
    }
}

/// Iterator over the attributes of a message or a nested attribute. A malformed attribute yields an
/// error and ends the iteration.
#[derive(Clone, Debug)]
pub struct Attributes<'a> {
    rest: &'a [u8],
}

impl<'a> Attributes<'a> {
    /// The attributes in these bytes.
    #[must_use]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The first attribute of that type. Also `None` if a malformed attribute precedes it.
    #[must_use]
    pub fn find(&self, attribute: u16) -> Option<Attribute<'a>> {
        self.clone().map_while(Result::ok).find(|found| found.kind == attribute)
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = Result<Attribute<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        let bytes = core::mem::take(&mut self.rest);
        if bytes.is_empty() {
            return None;
        }
        Some(split::<AttributeHeader>(bytes, |header| header.length.into()).map(|(header, payload, rest)| {
            self.rest = rest;
            Attribute {
                kind: header.kind & !(NESTED | NET_BYTE_ORDER),
                nested: header.kind & NESTED != 0,
                net_byte_order: header.kind & NET_BYTE_ORDER != 0,
                payload,
            }
        }))
    }
}

/// A received attribute.
#[derive(Clone, Copy, Debug)]
pub struct Attribute<'a> {
    /// Its type, without the two flags.
    pub kind: u16,
    /// Whether it has the flag [`super::NESTED`]. Older senders do not set it.
    pub nested: bool,
    /// Whether it has the flag [`super::NET_BYTE_ORDER`].
    pub net_byte_order: bool,
    /// Its payload.
    pub payload: &'a [u8],
}

macro_rules! number_getters {
    ($($ty:ident),*) => {$(
        #[doc = concat!("The payload as a `", stringify!($ty), "`.\n\n# Errors\nIt has another size.")]
        pub fn $ty(&self) -> Result<$ty, Malformed> {
            self.payload.try_into().map($ty::from_ne_bytes).map_err(|_| Malformed::Size {
                attribute: self.kind,
                expected: size_of::<$ty>(),
                found: self.payload.len(),
            })
        }
    )*};
}

impl<'a> Attribute<'a> {
    number_getters!(u8, u16, u32, u64, i32, i64);

    /// The payload as text up to the first NUL byte, or all of it if there is none.
    ///
    /// # Errors
    /// It is not UTF-8.
    pub fn str(&self) -> Result<&'a str, Malformed> {
        let end = self.payload.iter().position(|&byte| byte == 0).unwrap_or(self.payload.len());
        str::from_utf8(&self.payload[..end]).map_err(|_| Malformed::Text { attribute: self.kind })
    }

    /// The attributes in the payload.
    #[must_use]
    pub const fn attributes(&self) -> Attributes<'a> {
        Attributes { rest: self.payload }
    }
}
