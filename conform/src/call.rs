//! Calls of any form, valid or not.

use std::fmt;

use bareverbs::raw::display_call;
use bareverbs_uapi::ioctl::{Attribute, AttributeFlags, Header};
use bareverbs_uapi::method::MethodInfo;
use zerocopy::{FromBytes, IntoBytes};

/// An address below `vm.mmap_min_addr`: no process has memory there.
pub(crate) const UNMAPPED: u64 = 0x10;

/// Byte that fills outputs before a call, to see what the kernel wrote.
pub(crate) const FILL: u8 = 0xa5;

/// An ioctl call with its own buffers. Every address in it is that of an own buffer or
/// [`UNMAPPED`], except where a check puts an address of the session's memory into an input.
#[derive(Clone)]
pub(crate) struct Call {
    pub(crate) header: Header,
    /// Whether the header states the length and number of [`Call::slots`].
    pub(crate) counted: bool,
    pub(crate) slots: Vec<Slot>,
}

/// One attribute of a call.
#[derive(Clone)]
pub(crate) struct Slot {
    pub(crate) raw: Attribute,
    pub(crate) payload: Payload,
}

/// Source of the data of an attribute.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Payload {
    /// The attribute is sent as it is.
    None,
    /// Input bytes. Up to 8 bytes are sent in the attribute itself.
    Input(Vec<u8>),
    /// Output bytes.
    Output(Vec<u8>),
}

impl Slot {
    fn new(id: u16, len: usize, payload: Payload) -> Self {
        let len = u16::try_from(len).expect("payloads of checks are short");
        let flags = AttributeFlags::MANDATORY;
        Self { raw: Attribute { attr_id: id, len, flags, attr_data: 0, data: 0 }, payload }
    }

    /// A handle, a descriptor or another number.
    pub(crate) fn word(id: u16, data: u64) -> Self {
        let mut slot = Self::new(id, 0, Payload::None);
        slot.raw.data = data;
        slot
    }

    pub(crate) fn input(id: u16, bytes: &[u8]) -> Self {
        Self::new(id, bytes.len(), Payload::Input(bytes.to_vec()))
    }

    pub(crate) fn number(id: u16, value: u64) -> Self {
        Self::input(id, &value.to_ne_bytes())
    }

    pub(crate) fn output(id: u16, len: usize) -> Self {
        Self::new(id, len, Payload::Output(vec![FILL; len]))
    }

    /// Sets the length. The buffer is at least as long.
    pub(crate) fn set_len(&mut self, len: u16) {
        self.raw.len = len;
        match &mut self.payload {
            Payload::None => {}
            Payload::Input(bytes) => bytes.resize(bytes.len().max(len.into()), 0),
            Payload::Output(bytes) => bytes.resize(bytes.len().max(len.into()), FILL),
        }
    }

    /// Replaces the address of the payload by one without memory.
    pub(crate) fn unmap(&mut self) {
        self.payload = Payload::None;
        self.raw.data = UNMAPPED;
    }

    /// The bytes of an output.
    pub(crate) fn bytes(&self) -> &[u8] {
        match &self.payload {
            Payload::Output(bytes) | Payload::Input(bytes) => bytes,
            Payload::None => &[],
        }
    }

    pub(crate) fn is_written(&self) -> bool {
        self.raw.flags.contains(AttributeFlags::VALID_OUTPUT)
    }
}

impl Call {
    pub(crate) fn new(driver_id: u32, object_id: u16, method_id: u16) -> Self {
        let header = Header { object_id, method_id, driver_id, ..Header::zeroed() };
        Self { header, counted: true, slots: Vec::new() }
    }

    pub(crate) fn of(driver_id: u32, method: &MethodInfo) -> Self {
        Self::new(driver_id, method.object, method.id)
    }

    pub(crate) fn with(mut self, slot: Slot) -> Self {
        self.slots.push(slot);
        self
    }

    /// The first attribute with this id.
    pub(crate) fn slot(&self, id: u16) -> Option<&Slot> {
        self.slots.iter().find(|slot| slot.raw.attr_id == id)
    }

    pub(crate) fn slot_mut(&mut self, id: u16) -> Option<&mut Slot> {
        self.slots.iter_mut().find(|slot| slot.raw.attr_id == id)
    }

    /// The first four bytes of an output.
    pub(crate) fn u32_of(&self, id: u16) -> u32 {
        let bytes = self.slot(id).map(Slot::bytes).and_then(|bytes| bytes.first_chunk());
        bytes.map_or(0, |bytes| u32::from_ne_bytes(*bytes))
    }

    /// The bytes for the kernel. Attributes with a buffer point to it, and it has at least as many
    /// bytes as the attribute says.
    pub(crate) fn encode(&mut self) -> Vec<u8> {
        if self.counted {
            self.header.num_attrs = u16::try_from(self.slots.len()).expect("few attributes");
            let length = size_of::<Header>() + self.slots.len() * size_of::<Attribute>();
            self.header.length = u16::try_from(length).expect("few attributes");
        }
        let mut bytes = self.header.as_bytes().to_vec();
        for Slot { raw, payload } in &mut self.slots {
            match payload {
                Payload::None => {}
                Payload::Input(bytes) if raw.len <= 8 => {
                    bytes.resize(bytes.len().max(8), 0);
                    raw.data = u64::from_ne_bytes(std::array::from_fn(|i| bytes[i]));
                }
                Payload::Input(bytes) | Payload::Output(bytes) => {
                    bytes.resize(bytes.len().max(raw.len.into()), 0);
                    raw.data = bytes.as_mut_ptr().expose_provenance() as u64;
                }
            }
            bytes.extend_from_slice(raw.as_bytes());
        }
        bytes.resize(bytes.len().max(self.header.length.into()), 0);
        bytes
    }

    /// Takes the attributes as the kernel left them.
    pub(crate) fn read_back(&mut self, bytes: &[u8]) {
        let attributes = bytes[size_of::<Header>()..].chunks_exact(size_of::<Attribute>());
        for (slot, bytes) in self.slots.iter_mut().zip(attributes) {
            if let Ok(raw) = Attribute::read_from_bytes(bytes) {
                slot.raw = raw;
            }
        }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The copy's buffers are printed, so it stays until the end.
        let mut copy = self.clone();
        let bytes = copy.encode();
        let Header { length, num_attrs, reserved1, reserved2, .. } = self.header;
        if !self.counted {
            write!(f, "length {length}, {num_attrs} attributes: ")?;
        }
        if (reserved1, reserved2) != (0, 0) {
            write!(f, "reserved1 {reserved1:#x}, reserved2 {reserved2:#x}: ")?;
        }
        fmt::Display::fmt(&display_call(&bytes), f)?;
        for slot in &self.slots {
            let Attribute { attr_id, len, flags, attr_data, data } = slot.raw;
            let odd = flags & !(AttributeFlags::MANDATORY | AttributeFlags::VALID_OUTPUT);
            if attr_data != 0 || !odd.is_empty() {
                write!(f, "; attribute {attr_id:#x}: flags {:#x}, attr_data {attr_data:#x}", flags.bits())?;
            }
            if len != 0 && slot.payload == Payload::None && data == UNMAPPED {
                write!(f, "; attribute {attr_id:#x}: {len} bytes at an unmapped address")?;
            }
        }
        Ok(())
    }
}
