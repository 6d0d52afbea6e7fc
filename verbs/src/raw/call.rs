use std::fmt;

use zerocopy::{FromBytes, IntoBytes};

use super::display_call;
use super::uapi::ioctl::{Attribute, AttributeFlags, Header};
use super::uapi::method::{Access, AttributeInfo, AttributeKind, MethodInfo, PayloadSize};

/// A call of any object id, method id and attributes, valid or not: for tests of the ABI.
///
/// It owns its buffers. [`RawContext::execute_untyped`](super::RawContext::execute_untyped)
/// executes it.
///
/// A query with a buffer of the wrong length, and with an undefined attribute:
///
/// ```
/// use bareverbs::raw::UntypedCall;
/// use bareverbs::raw::uapi::method::Method;
/// use bareverbs::raw::uapi::uverbs::QueryMr;
///
/// # let context = bareverbs_test_support::example::context()?;
/// let raw = context.raw();
/// let mut call = UntypedCall::of(raw.driver_id(), &QueryMr::INFO);
/// call.word(QueryMr::HANDLE.id(), 0xffff).output(QueryMr::RESP_LKEY.id(), 3).word(0x77, 1);
/// // SAFETY: the method writes only to its outputs, which are buffers of the call.
/// let result = unsafe { raw.execute_untyped(&mut call) };
/// println!("{call}: {result:?}");
/// # Ok::<(), bareverbs::Report>(())
/// ```
///
/// Built by hand: a number that the kernel may take for an address, inputs of any length, flags and
/// header fields of choice:
///
/// ```
/// use bareverbs::raw::UntypedCall;
/// use bareverbs::raw::uapi::ioctl::{Attribute, AttributeFlags};
/// use bareverbs::raw::uapi::method::Method;
/// use bareverbs::raw::uapi::uverbs::{QueryMr, types::DriverId};
///
/// let mut call = UntypedCall::new(DriverId::RXE.0, QueryMr::INFO.object, QueryMr::INFO.id);
/// // A handle.
/// call.word(QueryMr::HANDLE.id(), 7);
/// // An output that the kernel would write to address 8.
/// let (attr_id, flags) = (QueryMr::RESP_LKEY.id(), AttributeFlags::MANDATORY);
/// call.push(Attribute { attr_id, len: 4, flags, attr_data: 0, data: 8 });
/// // An undefined attribute with 3 bytes of input, which the kernel may ignore.
/// call.input(0x77, b"abc").attribute_mut(0x77).expect("just added").flags = AttributeFlags::empty();
/// call.output(QueryMr::RESP_RKEY.id(), 4);
/// call.header_mut().reserved1 = 1;
/// assert_eq!((call.header().num_attrs, call.header().length), (4, 24 + 4 * 16));
/// assert_eq!(call.answer(QueryMr::RESP_RKEY.id()), Some(&[0; 4][..]), "zero until it is executed");
/// assert!(!call.wrote(QueryMr::RESP_RKEY.id()));
/// ```
#[derive(Clone)]
pub struct UntypedCall {
    header: Header,
    slots: Vec<Slot>,
}

#[derive(Clone)]
struct Slot {
    attribute: Attribute,
    /// The payload; `None` if the attribute is sent as it is.
    payload: Option<Payload>,
}

#[derive(Clone)]
struct Payload {
    bytes: Vec<u8>,
    output: bool,
}

impl UntypedCall {
    /// A call without attributes.
    #[must_use]
    pub fn new(driver_id: u32, object_id: u16, method_id: u16) -> Self {
        let length = size_of::<Header>() as u16;
        let header = Header { length, object_id, method_id, driver_id, ..Header::zeroed() };
        Self { header, slots: Vec::new() }
    }

    /// A call of a declared method without attributes.
    #[must_use]
    pub fn of(driver_id: u32, method: &MethodInfo) -> Self {
        Self::new(driver_id, method.object, method.id)
    }

    /// A call of a declared method with its mandatory attributes only, each of minimal size. All
    /// handles and descriptors are `object`, all numbers 0.
    ///
    /// ```
    /// use bareverbs::raw::UntypedCall;
    /// use bareverbs::raw::uapi::method::Method;
    /// use bareverbs::raw::uapi::uverbs::{PdDestroy, types::DriverId};
    ///
    /// let call = UntypedCall::minimal(DriverId::RXE.0, &PdDestroy::INFO, 9);
    /// assert_eq!(call.to_string(), "PdDestroy on RXE {HANDLE: destroy Pd 9}");
    /// ```
    #[must_use]
    pub fn minimal(driver_id: u32, method: &MethodInfo, object: u32) -> Self {
        let mut call = Self::of(driver_id, method);
        for attribute in method.attributes.iter().filter(|attribute| attribute.mandatory) {
            call.attribute_of(attribute, object);
        }
        call
    }

    /// Adds an attribute of its minimal size. A handle or descriptor is `object`; all other bytes
    /// are 0.
    pub fn attribute_of(&mut self, info: &AttributeInfo, object: u32) -> &mut Self {
        self.attribute_of_kind(info.id, info.kind, object)
    }

    /// As [`attribute_of`](Self::attribute_of).
    pub(super) fn attribute_of_kind(&mut self, id: u16, kind: AttributeKind, object: u32) -> &mut Self {
        match kind {
            AttributeKind::Handle { access: Access::New, .. } => self.word(id, 0),
            AttributeKind::Descriptor { access: Access::New, .. } => self.word(id, u64::MAX),
            AttributeKind::Handle { .. } => self.word(id, object.into()),
            AttributeKind::Descriptor { .. } | AttributeKind::RawDescriptor => {
                self.word(id, i64::from(object.cast_signed()).cast_unsigned())
            }
            AttributeKind::Handles { minimum, .. } => {
                self.input(id, object.to_ne_bytes().repeat(minimum).as_slice())
            }
            AttributeKind::Constant { .. } | AttributeKind::Flags { .. } => self.input(id, &[0; 8]),
            AttributeKind::Enumeration { .. } => self.input(id, &[]),
            AttributeKind::Input { size, .. } => self.input(id, &vec![0; minimum(size)]),
            AttributeKind::Output { size, .. } => self.output(id, minimum(size)),
        }
    }

    /// The header. Its length and number of attributes count the attributes added so far. Values
    /// set here are sent unchanged.
    ///
    /// [`UntypedCall`] has an example.
    pub fn header_mut(&mut self) -> &mut Header {
        &mut self.header
    }

    /// The header.
    #[must_use]
    pub fn header(&self) -> &Header {
        &self.header
    }

    fn add(&mut self, attribute: Attribute, payload: Option<Payload>) -> &mut Self {
        self.slots.push(Slot { attribute, payload });
        self.header.num_attrs = self.header.num_attrs.wrapping_add(1);
        self.header.length = self.header.length.wrapping_add(size_of::<Attribute>() as u16);
        self
    }

    /// Adds an attribute that is sent as it is.
    ///
    /// [`UntypedCall`] has an example.
    pub fn push(&mut self, attribute: Attribute) -> &mut Self {
        self.add(attribute, None)
    }

    /// Adds a handle, a descriptor or another number, with length 0 and the flag mandatory.
    ///
    /// [`UntypedCall`] has an example.
    pub fn word(&mut self, id: u16, data: u64) -> &mut Self {
        self.push(Attribute { data, ..attribute(id, 0) })
    }

    /// Adds input bytes, with the flag mandatory. Up to 8 bytes are stored in the attribute itself.
    ///
    /// [`UntypedCall`] has an example.
    ///
    /// # Panics
    /// If there are more than 65,535 bytes.
    pub fn input(&mut self, id: u16, bytes: &[u8]) -> &mut Self {
        let len = u16::try_from(bytes.len()).expect("at most 65,535 bytes");
        self.add(attribute(id, len), Some(Payload { bytes: bytes.to_vec(), output: false }))
    }

    /// Adds an output of `len` bytes, with the flag mandatory. [`UntypedCall::answer`] returns it.
    ///
    /// [`UntypedCall`] has an example.
    ///
    /// # Panics
    /// If there are more than 65,535 bytes.
    pub fn output(&mut self, id: u16, len: usize) -> &mut Self {
        let short = u16::try_from(len).expect("at most 65,535 bytes");
        self.add(attribute(id, short), Some(Payload { bytes: vec![0; len], output: true }))
    }

    /// The first attribute with this id, mutable: its flags, its element of an enumeration,
    /// or a wrong length. If it has a buffer, its `data` is overwritten when the call is executed,
    /// and the buffer grows to a longer length.
    pub fn attribute_mut(&mut self, id: u16) -> Option<&mut Attribute> {
        self.slots.iter_mut().map(|slot| &mut slot.attribute).find(|attribute| attribute.attr_id == id)
    }

    /// The first attribute with this id. After the call, its `data` is the handle or descriptor of
    /// a new object.
    #[must_use]
    pub fn attribute(&self, id: u16) -> Option<&Attribute> {
        self.slots.iter().map(|slot| &slot.attribute).find(|attribute| attribute.attr_id == id)
    }

    /// Whether the kernel wrote the output attribute with this id.
    #[must_use]
    pub fn wrote(&self, id: u16) -> bool {
        self.attribute(id).is_some_and(|attribute| attribute.flags.contains(AttributeFlags::VALID_OUTPUT))
    }

    /// The bytes of the first output with this id. They are zero until the kernel wrote them.
    ///
    /// [`UntypedCall`] has an example.
    #[must_use]
    pub fn answer(&self, id: u16) -> Option<&[u8]> {
        let slot = self.slots.iter().find(|slot| slot.attribute.attr_id == id)?;
        let output = slot.payload.as_ref().filter(|payload| payload.output)?;
        Some(&output.bytes[..output.bytes.len().min(slot.attribute.len.into())])
    }

    /// The bytes for the kernel: at least as many as the header says. Attributes with a buffer
    /// point to it, and it has at least as many bytes as the attribute says.
    pub(super) fn encode(&mut self) -> Vec<u8> {
        let mut bytes = self.header.as_bytes().to_vec();
        for Slot { attribute, payload } in &mut self.slots {
            if let Some(Payload { bytes, output }) = payload {
                bytes.resize(bytes.len().max(attribute.len.into()).max(8), 0);
                attribute.data = if *output || attribute.len > 8 {
                    bytes.as_mut_ptr().expose_provenance() as u64
                } else {
                    u64::from_ne_bytes(std::array::from_fn(|i| bytes[i]))
                };
            }
            bytes.extend_from_slice(attribute.as_bytes());
        }
        bytes.resize(bytes.len().max(self.header.length.into()), 0);
        bytes
    }

    /// Takes the attributes as the kernel left them.
    pub(super) fn read_back(&mut self, bytes: &[u8]) {
        let attributes = bytes[size_of::<Header>()..].chunks_exact(size_of::<Attribute>());
        for (slot, bytes) in self.slots.iter_mut().zip(attributes) {
            if let Ok(attribute) = Attribute::read_from_bytes(bytes) {
                slot.attribute = attribute;
            }
        }
    }
}

fn attribute(attr_id: u16, len: u16) -> Attribute {
    Attribute { attr_id, len, flags: AttributeFlags::MANDATORY, attr_data: 0, data: 0 }
}

fn minimum(size: PayloadSize) -> usize {
    match size {
        PayloadSize::Exact(bytes) | PayloadSize::AtLeast(bytes) => bytes,
        PayloadSize::Within { minimum, .. } | PayloadSize::Extensible { minimum, .. } => minimum,
    }
}

impl fmt::Display for UntypedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&display_call(&self.clone().encode()), f)
    }
}

impl fmt::Debug for UntypedCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UntypedCall({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw::uapi::method::Method;
    use crate::raw::uapi::uverbs::types::DriverId;
    use crate::raw::uapi::uverbs::{PdDestroy, QueryMr};

    fn call() -> UntypedCall {
        UntypedCall::minimal(DriverId::RXE.0, &QueryMr::INFO, 7)
    }

    #[test]
    fn minimal_call_has_the_mandatory_attributes() {
        let mut call = call();
        assert_eq!((call.header().num_attrs, call.header().length), (4, 24 + 4 * 16));
        assert_eq!(call.answer(QueryMr::RESP_LENGTH.id()).map(<[u8]>::len), Some(8));
        assert_eq!(call.answer(QueryMr::HANDLE.id()), None);
        assert!(call.to_string().starts_with("QueryMr on RXE {HANDLE: Mr 7"), "{call}");
        let bytes = call.encode();
        assert_eq!(bytes.len(), 24 + 4 * 16);
    }

    #[test]
    fn wrong_header_lengths_stay_within_the_bytes() {
        let mut call = call();
        for length in [0, 23, 24, 100, u16::MAX] {
            call.header_mut().length = length;
            assert!(call.encode().len() >= usize::from(length).max(24 + 4 * 16));
        }
    }

    #[test]
    fn wrong_attribute_lengths_stay_within_the_buffers() {
        let mut call = call();
        for len in [0, 3, 9, u16::MAX] {
            call.attribute_mut(QueryMr::RESP_LKEY.id()).unwrap().len = len;
            call.encode();
            assert!(call.answer(QueryMr::RESP_LKEY.id()).unwrap().len() >= len.into());
        }
        let mut call = UntypedCall::of(DriverId::RXE.0, &PdDestroy::INFO);
        call.input(0, b"abc").attribute_mut(0).unwrap().len = u16::MAX;
        call.encode();
        assert_ne!(call.attribute(0).unwrap().data, 0, "its address");
        call.attribute_mut(0).unwrap().len = 3;
        call.encode();
        assert_eq!(call.attribute(0).unwrap().data.to_ne_bytes()[..4], *b"abc\0");
    }

    #[test]
    fn read_back_takes_flags_and_data() {
        let mut call = call();
        let mut bytes = call.encode();
        bytes[24 + 16 + 4] |= 2;
        bytes[24 + 8] = 42;
        call.read_back(&bytes);
        assert!(call.wrote(QueryMr::RESP_LKEY.id()) && !call.wrote(QueryMr::RESP_RKEY.id()));
        assert_eq!(call.attribute(QueryMr::HANDLE.id()).unwrap().data, 42);
    }
}
