//! The bytes of the stream protocol: private data, immediate data, and the records that peers write
//! into each other's memory. Source: `librdmacm/rsocket.c` of rdma-core and its protocol note.

use bareverbs::Pd;
use zerocopy::{FromBytes, Immutable, IntoBytes, transmute};

/// Version of the protocol.
const VERSION: u8 = 1;

/// Bit of the flags: the sender's memory is big endian (`RS_CONN_FLAG_NET`).
const BIG_ENDIAN: u8 = 1 << 0;

/// Bit of the flags: the sender knows mapped memory (`RS_CONN_FLAG_IOMAP`).
const KNOWS_IOMAP: u8 = 1 << 1;

/// Bit of the flags: the peer may read the sender's table, to probe the connection on iWARP. rsocket has no
/// such bit, and ignores it.
const READABLE: u8 = 1 << 7;

/// Entries in the table of data buffers that a side offers.
pub(crate) const SLOTS: usize = 2;

/// Sends that are kept for control messages, which take no credits.
pub(crate) const CONTROLS: u32 = 4;

/// Receives for the peer's control messages, which take no credits: those on their way, and those
/// that have arrived and were not handled. Without a receive, the peer's device retries after a
/// delay.
pub(crate) const CONTROL_RECVS: u32 = 2 * CONTROLS;

/// Bytes of memory with its key, as records describe it (`struct rs_sge`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct Span {
    /// Address of the first byte, in the owner's address space.
    pub(crate) addr: u64,
    /// R_Key.
    pub(crate) key: u32,
    /// Length in bytes, or the number of entries of a table.
    pub(crate) len: u32,
}

/// Whether a host of the byte order has the numbers of this host's records reversed.
fn is_reversed(big_endian: bool) -> bool {
    big_endian != cfg!(target_endian = "big")
}

impl Span {
    /// Size of the record.
    pub(crate) const SIZE: usize = size_of::<Self>();

    /// The record with the numbers in the byte order of a host.
    fn ordered(self, big_endian: bool) -> Self {
        let Self { addr, key, len } = self;
        match is_reversed(big_endian) {
            true => Self { addr: addr.swap_bytes(), key: key.swap_bytes(), len: len.swap_bytes() },
            false => self,
        }
    }

    /// The record in the memory of a host of the given byte order.
    pub(crate) fn to_bytes(self, big_endian: bool) -> [u8; Self::SIZE] {
        transmute!(self.ordered(big_endian))
    }

    /// The record of this host's own memory.
    pub(crate) fn from_own_bytes(bytes: [u8; Self::SIZE]) -> Self {
        transmute!(bytes)
    }
}

/// Memory that its owner lets the peer write, with the offset that the owner gave it
/// (`struct rs_iomap`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable)]
#[repr(C)]
pub(crate) struct IomapEntry {
    pub(crate) offset: u64,
    pub(crate) span: Span,
}

impl IomapEntry {
    /// Size of the record.
    pub(crate) const SIZE: usize = size_of::<Self>();

    /// The record in the memory of a host of the given byte order.
    pub(crate) fn to_bytes(self, big_endian: bool) -> [u8; Self::SIZE] {
        let offset = if is_reversed(big_endian) { self.offset.swap_bytes() } else { self.offset };
        transmute!(Self { offset, span: self.span.ordered(big_endian) })
    }

    /// The record of this host's own memory.
    pub(crate) fn from_own_bytes(bytes: [u8; Self::SIZE]) -> Self {
        transmute!(bytes)
    }
}

/// Number of iomap entries as one byte: up to 128 exactly, then in steps of 256
/// (`rs_value_to_scale`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct IomapSize(pub(crate) u8);

impl IomapSize {
    /// The largest number.
    pub(crate) const MAX: u32 = 0x7f << 8;

    /// The code of the largest number that is at most `entries`.
    pub(crate) fn at_most(entries: u32) -> Self {
        match entries {
            0..=128 => Self(entries as u8),
            129..=255 => Self(128),
            _ => Self(0x80 | (entries.min(Self::MAX) >> 8) as u8),
        }
    }

    /// The number of entries.
    pub(crate) fn entries(self) -> u32 {
        match self.0 {
            0..=128 => u32::from(self.0),
            _ => u32::from(self.0 & 0x7f) << 8,
        }
    }
}

/// The private data that each side sends: `rs_conn_data` of rsocket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Offer {
    /// The sender's memory is big endian.
    pub(crate) big_endian: bool,
    /// The sender accepts iomap entries.
    pub(crate) iomap: bool,
    /// The peer may read the sender's table.
    pub(crate) readable: bool,
    /// Number of messages that the sender can receive before it grants more.
    pub(crate) credits: u16,
    /// Entries of the sender's iomap table, which follows its table of data buffers in memory.
    pub(crate) iomap_size: IomapSize,
    /// The sender's table of the peer's data buffers. Its length is the number of entries.
    pub(crate) table: Span,
    /// The first data buffer that the peer may write.
    pub(crate) data: Span,
}

/// Why the private data of a peer is not an offer of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OfferError {
    /// It is shorter than an offer.
    #[error("the private data has {0} bytes, an rsocket stream has {len}", len = Offer::SIZE)]
    Length(usize),
    /// Another version.
    #[error("version {0} of the rsocket protocol, expected {VERSION}")]
    Version(u8),
    /// The peer can't receive any message.
    #[error("the peer grants no credits")]
    NoCredits,
    /// The peer's table is too short for two data buffers.
    #[error("the peer's table has {0} entries, expected {SLOTS}")]
    Table(u32),
    /// The peer's first data buffer is empty.
    #[error("the peer's data buffer is empty")]
    NoData,
}

impl Offer {
    /// Bytes of private data.
    pub(crate) const SIZE: usize = 40;

    /// The private data.
    pub(crate) fn to_bytes(self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[0] = VERSION;
        let flags = [(self.big_endian, BIG_ENDIAN), (self.iomap, KNOWS_IOMAP), (self.readable, READABLE)];
        bytes[1] = flags.iter().map(|(is_set, bit)| u8::from(*is_set) * bit).sum();
        bytes[2..4].copy_from_slice(&self.credits.to_be_bytes());
        bytes[7] = self.iomap_size.0;
        bytes[8..24].copy_from_slice(&self.table.to_bytes(true));
        bytes[24..].copy_from_slice(&self.data.to_bytes(true));
        bytes
    }

    /// Decodes the private data of a peer. Bytes after the offer are padding.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, OfferError> {
        let Some(bytes) = bytes.first_chunk::<{ Self::SIZE }>() else {
            return Err(OfferError::Length(bytes.len()));
        };
        if bytes[0] != VERSION {
            return Err(OfferError::Version(bytes[0]));
        }
        let span = |at: usize| Span::from_own_bytes(array(&bytes[at..])).ordered(true);
        let offer = Self {
            big_endian: bytes[1] & BIG_ENDIAN != 0,
            iomap: bytes[1] & KNOWS_IOMAP != 0,
            readable: bytes[1] & READABLE != 0,
            credits: u16::from_be_bytes(array(&bytes[2..])),
            iomap_size: IomapSize(bytes[7]),
            table: span(8),
            data: span(24),
        };
        if offer.credits == 0 {
            return Err(OfferError::NoCredits);
        }
        if offer.table.len < SLOTS as u32 {
            return Err(OfferError::Table(offer.table.len));
        }
        if offer.data.len == 0 {
            return Err(OfferError::NoData);
        }
        Ok(offer)
    }

    /// Address of entry `slot` of the sender's table of data buffers.
    pub(crate) fn slot_addr(&self, slot: u32) -> u64 {
        self.table.addr.wrapping_add(u64::from(slot) * Span::SIZE as u64)
    }

    /// Address of entry `index` of the sender's iomap table.
    pub(crate) fn iomap_addr(&self, index: u32) -> u64 {
        self.slot_addr(self.table.len).wrapping_add(u64::from(index) * IomapEntry::SIZE as u64)
    }
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    *bytes.first_chunk().expect("a field within the offer")
}

/// The immediate data of a message: 3 bits of operation (`RS_OP_*`), 29 bits of value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// The message wrote this number of bytes into the current data buffer (`RS_OP_DATA`).
    Data(u32),
    /// Credits: the receiver of the word may send messages up to this number, counted modulo 2^16
    /// (`RS_OP_SGL`). The message may also have written a table entry.
    Credits(u16),
    /// The message wrote an entry of the iomap table (`RS_OP_IOMAP_SGL`).
    Iomap(u32),
    /// The sender of the word sends no more and receives no more (`RS_CTRL_DISCONNECT`).
    Disconnect,
    /// No meaning for the stream (`RS_CTRL_KEEPALIVE`).
    Keepalive,
    /// The sender of the word sends no more (`RS_CTRL_SHUTDOWN`).
    Shutdown,
    /// A word without a defined meaning.
    Unknown(u32),
}

impl Word {
    /// The largest value of a word.
    pub(crate) const MAX: u32 = (1 << 29) - 1;

    const fn of(operation: u32, value: u32) -> u32 {
        operation << 29 | value & Self::MAX
    }

    /// The immediate data.
    pub(crate) fn to_imm(self) -> u32 {
        match self {
            Self::Data(len) => Self::of(0, len),
            Self::Credits(limit) => Self::of(4, limit.into()),
            Self::Iomap(index) => Self::of(6, index),
            Self::Disconnect => Self::of(7, 0),
            Self::Keepalive => Self::of(7, 1),
            Self::Shutdown => Self::of(7, 2),
            Self::Unknown(word) => word,
        }
    }

    /// The word of immediate data.
    pub(crate) fn from_imm(imm: u32) -> Self {
        let value = imm & Self::MAX;
        match (imm >> 29, value) {
            (0, _) => Self::Data(value),
            // The sum of the peer's counter and its queue's size may need 17 bits.
            (4, _) => Self::Credits(value as u16),
            (6, _) => Self::Iomap(value),
            (7, 0) => Self::Disconnect,
            (7, 1) => Self::Keepalive,
            (7, 2) => Self::Shutdown,
            _ => Self::Unknown(imm),
        }
    }
}

/// How the words of a stream are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WordCarrier {
    /// As the immediate data of a write.
    Immediate,
    /// By a send behind the write, in the byte order of the sender: iWARP has no immediate data
    /// (`RS_OPT_MSG_SEND`).
    Send,
}

impl WordCarrier {
    /// That of the streams on a device.
    pub(crate) fn of(pd: &Pd) -> Self {
        if pd.context().capabilities().iwarp { Self::Send } else { Self::Immediate }
    }

    /// Requests of a number of messages, and of a read that probes the peer.
    pub(crate) fn sends(self, messages: u32) -> u32 {
        match self {
            Self::Immediate => messages,
            Self::Send => 2 * messages + 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn offer() -> Offer {
        Offer {
            big_endian: false,
            iomap: true,
            readable: false,
            credits: 384,
            iomap_size: IomapSize::at_most(128),
            table: Span { addr: 0x1112_1314_1516_1718, key: 0x2122_2324, len: 2 },
            data: Span { addr: 0x3132_3334_3536_3738, key: 0x4142_4344, len: 65536 },
        }
    }

    #[test]
    fn offer_has_the_layout_of_rsocket() {
        let bytes = offer().to_bytes();
        assert_eq!(bytes[..8], [1, 2, 0x01, 0x80, 0, 0, 0, 128]);
        assert_eq!(
            bytes[8..24],
            [0x11, 0x12, 0x13, 0x14, 0x15, 0x16, 0x17, 0x18, 0x21, 0x22, 0x23, 0x24, 0, 0, 0, 2]
        );
        assert_eq!(bytes[24..32], [0x31, 0x32, 0x33, 0x34, 0x35, 0x36, 0x37, 0x38]);
        assert_eq!(bytes[32..], [0x41, 0x42, 0x43, 0x44, 0, 1, 0, 0]);
    }

    #[test]
    fn padding_of_private_data_is_ignored() {
        let mut bytes = [0; 56];
        bytes[..Offer::SIZE].copy_from_slice(&offer().to_bytes());
        assert_eq!(Offer::from_bytes(&bytes), Ok(offer()));
    }

    #[test]
    fn offers_that_no_stream_can_use_are_rejected() {
        let reject = |at: usize, value: u8| {
            let mut bytes = offer().to_bytes();
            bytes[at] = value;
            Offer::from_bytes(&bytes).unwrap_err()
        };
        assert_eq!(Offer::from_bytes(&offer().to_bytes()[..39]), Err(OfferError::Length(39)));
        assert_eq!(reject(0, 2), OfferError::Version(2));
        assert_eq!(reject(23, 1), OfferError::Table(1));
        assert_eq!(reject(37, 0), OfferError::NoData);
        let mut bytes = offer().to_bytes();
        bytes[2..4].fill(0);
        assert_eq!(Offer::from_bytes(&bytes), Err(OfferError::NoCredits));
    }

    #[test]
    fn iomap_table_follows_the_table_of_data_buffers() {
        let offer = offer();
        assert_eq!(offer.slot_addr(1), offer.table.addr + 16);
        assert_eq!(offer.iomap_addr(3), offer.table.addr + 32 + 3 * 24);
        let longer = Offer { table: Span { len: 5, ..offer.table }, ..offer };
        assert_eq!(longer.iomap_addr(3), offer.table.addr + 5 * 16 + 3 * 24);
    }

    #[test]
    fn iomap_sizes_are_exact_to_128_and_then_in_steps_of_256() {
        for (entries, granted) in
            [(0, 0), (1, 1), (128, 128), (129, 128), (255, 128), (256, 256), (511, 256), (u32::MAX, 32512)]
        {
            assert_eq!(IomapSize::at_most(entries).entries(), granted, "{entries}");
        }
    }

    #[test]
    fn control_words_have_the_values_of_rsocket() {
        let words = [
            (Word::Data(5), 5),
            (Word::Credits(384), 0x8000_0180),
            (Word::Iomap(1), 0xc000_0001),
            (Word::Disconnect, 0xe000_0000),
            (Word::Keepalive, 0xe000_0001),
            (Word::Shutdown, 0xe000_0002),
        ];
        for (word, imm) in words {
            assert_eq!(word.to_imm(), imm, "{word:?}");
            assert_eq!(Word::from_imm(imm), word);
        }
        // A counter of 17 bits.
        assert_eq!(Word::from_imm(0x8001_0002), Word::Credits(2));
    }

    proptest! {
        #[test]
        fn any_bytes_decode_to_an_offer_that_encodes_to_them(mut bytes in prop::array::uniform32(0u8..), tail in prop::array::uniform8(0u8..)) {
            bytes[0] = VERSION;
            bytes[1] &= BIG_ENDIAN | KNOWS_IOMAP | READABLE;
            bytes[4..7].fill(0);
            let all = [&bytes[..], &tail[..]].concat();
            if let Ok(offer) = Offer::from_bytes(&all) {
                prop_assert_eq!(&offer.to_bytes()[..], &all[..]);
            }
        }

        #[test]
        fn any_immediate_data_round_trips(imm: u32) {
            let word = Word::from_imm(imm);
            if !matches!(word, Word::Credits(_)) {
                prop_assert_eq!(word.to_imm(), imm);
            }
            prop_assert_eq!(Word::from_imm(word.to_imm()), word);
        }

        #[test]
        fn iomap_records_round_trip(addr: u64, key: u32, len: u32, offset: u64) {
            let span = Span { addr, key, len };
            let own = cfg!(target_endian = "big");
            prop_assert_eq!(Span::from_own_bytes(span.to_bytes(own)), span);
            let entry = IomapEntry { offset, span };
            prop_assert_eq!(IomapEntry::from_own_bytes(entry.to_bytes(own)), entry);
            let mut swapped = span.to_bytes(!own);
            swapped[..8].reverse();
            swapped[8..12].reverse();
            swapped[12..].reverse();
            prop_assert_eq!(Span::from_own_bytes(swapped), span);
        }
    }
}
