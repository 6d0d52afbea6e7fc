//! Conversion of attributes to values.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::ops::RangeInclusive;

use bareverbs_uapi::netlink::{self, Attributes, Malformed};
use bareverbs_uapi::nldev::{Attribute, CounterMask, CounterMode, EventType, PrintType};
use bareverbs_uapi::rdma_cm::PortSpace;
use bareverbs_uapi::rdma_cm::address::{AddressFamily, SocketAddressIn, SocketAddressIn6};
use bareverbs_uapi::uverbs::types::{QpType, SrqType};
use bareverbs_uapi::verbs_values::{MigState, PollContext, QpState};
use zerocopy::FromBytes;

use crate::PortNum;

/// A value of an attribute of an object. Unknown attributes are ignored.
pub(crate) trait FromAttribute: Sized {
    fn from_attribute(object: &Attributes<'_>, attribute: Attribute) -> Result<Self, Malformed>;
}

/// Declares a type whose fields are attributes of an object: `field: Type = ATTRIBUTE;`.
macro_rules! netlink_struct {
    ($( $(#[$meta:meta])* $name:ident { $( $(#[$fmeta:meta])* $field:ident: $type:ty = $attribute:ident; )* } )*) => {$(
        $(#[$meta])*
        #[derive(Clone, Debug, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct $name { $( $(#[$fmeta])* pub $field: $type, )* }

        impl $name {
            pub(crate) fn read(
                object: &bareverbs_uapi::netlink::Attributes<'_>,
            ) -> Result<Self, bareverbs_uapi::netlink::Malformed> {
                use bareverbs_uapi::nldev::Attribute;
                use $crate::attrs::FromAttribute;
                Ok(Self { $( $field: FromAttribute::from_attribute(object, Attribute::$attribute)?, )* })
            }
        }
    )*};
}

pub(crate) use netlink_struct;

/// The objects of a nested attribute, each parsed by `read`.
pub(crate) fn list<T>(
    object: &Attributes<'_>,
    table: Attribute,
    read: impl Fn(&Attributes<'_>) -> Result<T, Malformed>,
) -> Result<Vec<T>, Malformed> {
    let Some(table) = object.find(table.0) else { return Ok(Vec::new()) };
    table.attributes().map(|entry| read(&entry?.attributes())).collect()
}

/// Owner of an object.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Owner {
    /// A process, by its id in the caller's PID namespace.
    Process(u32),
    /// A part of the kernel, such as `ib_core`.
    Kernel(String),
    /// A process that has exited, or that is not in the caller's PID namespace.
    Unknown,
}

impl FromAttribute for Owner {
    fn from_attribute(object: &Attributes<'_>, _: Attribute) -> Result<Self, Malformed> {
        if let Some(name) = object.find(Attribute::RES_KERN_NAME.0) {
            return Ok(Self::Kernel(name.str()?.to_owned()));
        }
        Ok(match object.find(Attribute::RES_PID.0) {
            Some(pid) => Self::Process(pid.u32()?),
            None => Self::Unknown,
        })
    }
}

/// A driver-specific attribute of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DriverDetail {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: DriverValue,
    /// Whether the driver requests hexadecimal output of the number.
    pub hex: bool,
}

/// The value of a [`DriverDetail`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DriverValue {
    /// An unsigned number.
    Unsigned(u64),
    /// A signed number.
    Signed(i64),
    /// Text.
    Text(String),
}

impl FromAttribute for Vec<DriverDetail> {
    fn from_attribute(object: &Attributes<'_>, attribute: Attribute) -> Result<Self, Malformed> {
        let Some(table) = object.find(attribute.0) else { return Ok(Self::new()) };
        let (mut details, mut name, mut hex) = (Self::new(), None::<String>, false);
        for entry in table.attributes() {
            let entry = entry?;
            let value = match Attribute(entry.kind) {
                Attribute::DRIVER_STRING if name.is_none() => {
                    name = Some(entry.str()?.to_owned());
                    continue;
                }
                Attribute::DRIVER_PRINT_TYPE => {
                    hex = PrintType(entry.u8()?) == PrintType::HEX;
                    continue;
                }
                Attribute::DRIVER_STRING => DriverValue::Text(entry.str()?.to_owned()),
                Attribute::DRIVER_U32 => DriverValue::Unsigned(entry.u32()?.into()),
                Attribute::DRIVER_U64 => DriverValue::Unsigned(entry.u64()?),
                Attribute::DRIVER_S32 => DriverValue::Signed(entry.i32()?.into()),
                Attribute::DRIVER_S64 => DriverValue::Signed(entry.i64()?),
                _ => continue,
            };
            details.extend(name.take().map(|name| DriverDetail { name, value, hex }));
            hex = false;
        }
        Ok(details)
    }
}

/// QP numbers. The kernel reports them one by one or as ranges.
impl FromAttribute for Vec<RangeInclusive<u32>> {
    fn from_attribute(object: &Attributes<'_>, attribute: Attribute) -> Result<Self, Malformed> {
        list(object, attribute, |entry| {
            let number = |attribute| Option::<u32>::from_attribute(entry, attribute);
            let one = number(Attribute::RES_LQPN)?;
            let first = number(Attribute::MIN_RANGE)?.or(one).unwrap_or(0);
            Ok(first..=number(Attribute::MAX_RANGE)?.or(one).unwrap_or(first))
        })
    }
}

macro_rules! optional_attrs {
    ($($type:ty: |$found:ident| $value:expr;)*) => {$(
        impl FromAttribute for Option<$type> {
            fn from_attribute(object: &Attributes<'_>, attribute: Attribute) -> Result<Self, Malformed> {
                object.find(attribute.0).map(|$found| Ok($value)).transpose()
            }
        }
    )*};
}

optional_attrs! {
    bool: |found| found.u8()? != 0;
    u8: |found| found.u8()?;
    u32: |found| found.u32()?;
    u64: |found| found.u64()?;
    String: |found| found.str()?.to_owned();
    QpType: |found| QpType(found.u8()?.into());
    QpState: |found| QpState(found.u8()?);
    MigState: |found| MigState(found.u8()?);
    PollContext: |found| PollContext(found.u8()?);
    SrqType: |found| SrqType(found.u8()?.into());
    PortSpace: |found| PortSpace(found.u32()? as u16);
    CounterMode: |found| CounterMode(found.u32()?);
    EventType: |found| EventType(found.u8()?);
    CounterMask: |found| CounterMask::from_bits_retain(found.u32()?);
}

macro_rules! attrs_or_default {
    ($($type:ty),*) => {$(
        impl FromAttribute for $type {
            fn from_attribute(object: &Attributes<'_>, attribute: Attribute) -> Result<Self, Malformed> {
                Ok(Option::from_attribute(object, attribute)?.unwrap_or_default())
            }
        }
    )*};
}

attrs_or_default!(u32, u64, String);

/// The port; `None` too if its number is above 255.
impl FromAttribute for Option<PortNum> {
    fn from_attribute(object: &Attributes<'_>, attribute: Attribute) -> Result<Self, Malformed> {
        let number = Option::<u32>::from_attribute(object, attribute)?;
        Ok(number.and_then(|number| PortNum::try_from(number).ok()))
    }
}

/// An IP address. Addresses of other families are ignored.
impl FromAttribute for Option<SocketAddr> {
    fn from_attribute(object: &Attributes<'_>, attribute: Attribute) -> Result<Self, Malformed> {
        Ok(object.find(attribute.0).as_ref().and_then(socket_address))
    }
}

fn socket_address(found: &netlink::Attribute<'_>) -> Option<SocketAddr> {
    let (v4, _) = SocketAddressIn::read_from_prefix(found.payload).ok()?;
    match v4.family {
        AddressFamily::INET => Some((Ipv4Addr::from(v4.address), v4.port.get()).into()),
        AddressFamily::INET6 => {
            let (v6, _) = SocketAddressIn6::read_from_prefix(found.payload).ok()?;
            let address = Ipv6Addr::from(v6.address);
            Some(SocketAddrV6::new(address, v6.port.get(), v6.flow_info.get(), v6.scope_id).into())
        }
        _ => None,
    }
}
