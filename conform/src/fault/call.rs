//! A call, as the kernel reads it.

use bareverbs_uapi::ioctl::{Attribute, AttributeFlags, Header};
use bareverbs_uapi::method::{
    Access, AttributeInfo, AttributeKind, Method, MethodInfo, PayloadSize, UHW_IN, UHW_OUT,
};
use bareverbs_uapi::registry;
use bareverbs_uapi::uverbs::InvokeWrite;
use bareverbs_uapi::write::WriteCommandInfo;
use zerocopy::FromBytes;

use crate::call::UNMAPPED;
use crate::own_memory::read;

/// A call with a declared method and readable attributes.
pub(super) struct ParsedCall {
    pub(super) method: &'static MethodInfo,
    pub(super) attributes: Vec<(Attribute, Option<&'static AttributeInfo>)>,
    /// The address of its first attribute.
    pub(super) address: u64,
}

/// The header of the call at an address.
pub(super) fn header(address: u64) -> Option<Header> {
    Header::read_from_bytes(&read(address, size_of::<Header>()).ok()?).ok()
}

impl ParsedCall {
    /// The call at an address, if it has a declared method.
    pub(super) fn at(driver_id: u32, address: u64) -> Option<Self> {
        let header = header(address)?;
        let driver = registry::driver(driver_id);
        let method = Self::method(driver_id, &header)?;
        let len = usize::from(header.num_attrs) * size_of::<Attribute>();
        let address = address + size_of::<Header>() as u64;
        let bytes = read(address, len).ok()?;
        let attributes = bytes.chunks_exact(size_of::<Attribute>()).filter_map(|bytes| {
            let raw = Attribute::read_from_bytes(bytes).ok()?;
            Some((raw, driver.attributes(method).find(|info| info.id == raw.attr_id)))
        });
        Some(Self { method, attributes: attributes.collect(), address })
    }

    /// The method that a header names.
    pub(super) fn method(driver_id: u32, header: &Header) -> Option<&'static MethodInfo> {
        registry::driver(driver_id).method(header.object_id, header.method_id)
    }

    pub(super) fn is<M: Method>(&self) -> bool {
        self.method.is::<M>()
    }

    pub(super) fn raw(&self, id: u16) -> Option<Attribute> {
        self.attributes.iter().map(|(raw, _)| *raw).find(|raw| raw.attr_id == id)
    }

    pub(super) fn has(&self, id: u16) -> bool {
        self.raw(id).is_some()
    }

    pub(super) fn len(&self, id: u16) -> usize {
        self.raw(id).map_or(0, |raw| raw.len.into())
    }

    pub(super) fn is_unmapped(&self, id: u16) -> bool {
        self.raw(id).is_some_and(|raw| raw.data == UNMAPPED && raw.len > 8)
    }

    /// The bytes of an input; empty if it has no memory.
    pub(super) fn input(&self, id: u16) -> Vec<u8> {
        match self.raw(id) {
            Some(Attribute { data, len, .. }) if len <= 8 => data.to_ne_bytes()[..len.into()].to_vec(),
            _ => self.output(id),
        }
    }

    /// The bytes of an output; empty if it has no memory.
    pub(super) fn output(&self, id: u16) -> Vec<u8> {
        self.raw(id).and_then(|raw| read(raw.data, raw.len.into()).ok()).unwrap_or_default()
    }

    /// The attributes with their declared types; `None` if the method has no such attribute.
    pub(super) fn kinds(&self) -> impl Iterator<Item = (Attribute, Option<AttributeKind>)> {
        let size = PayloadSize::AtLeast(0);
        self.attributes.iter().map(move |(raw, info)| {
            let kind = match raw.attr_id {
                UHW_IN if self.method.driver_payload => Some(AttributeKind::Input { size, payload: None }),
                UHW_OUT if self.method.driver_payload => Some(AttributeKind::Output { size, payload: None }),
                _ => info.map(|info| info.kind),
            };
            (*raw, kind)
        })
    }

    /// The attributes that the method has.
    pub(super) fn known(&self) -> impl Iterator<Item = (Attribute, AttributeKind)> {
        self.kinds().filter_map(|(raw, kind)| Some((raw, kind?)))
    }

    /// Whether the method lacks an attribute of the call that is mandatory, or one that is not.
    pub(super) fn has_unknown(&self, mandatory: bool) -> bool {
        self.kinds()
            .any(|(raw, kind)| kind.is_none() && raw.flags.contains(AttributeFlags::MANDATORY) == mandatory)
    }

    /// The handles of existing objects: attribute, class and access.
    pub(super) fn handles(&self) -> impl Iterator<Item = (Attribute, u16, Access)> {
        self.known().filter_map(|(raw, kind)| match kind {
            AttributeKind::Handle { object, access } if !is_new(kind) => Some((raw, object, access)),
            _ => None,
        })
    }

    /// The command of an `INVOKE_WRITE`.
    pub(super) fn command(&self) -> Option<&'static WriteCommandInfo> {
        let number = self.raw(InvokeWrite::WRITE_CMD.id()).filter(|_| self.is::<InvokeWrite>())?;
        registry::command(number.data as u32)
    }
}

/// Whether an attribute is the handle or descriptor of a new object.
pub(super) fn is_new(kind: AttributeKind) -> bool {
    matches!(
        kind,
        AttributeKind::Handle { access: Access::New, .. }
            | AttributeKind::Descriptor { access: Access::New, .. }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attribute_without_memory_has_more_than_8_bytes() {
        let attribute = Attribute { attr_id: 1, len: 9, data: UNMAPPED, ..Attribute::zeroed() };
        let is_unmapped = |attribute, id| {
            let attributes = vec![(attribute, None)];
            let call = ParsedCall { method: &InvokeWrite::INFO, attributes, address: 0 };
            call.is_unmapped(id)
        };
        assert!(is_unmapped(attribute, 1));
        assert!(!is_unmapped(attribute, 2), "another attribute");
        // Up to 8 bytes are the data itself.
        assert!(!is_unmapped(Attribute { len: 8, ..attribute }, 1));
    }
}
