//! The address record of a queue pair, as 52 bytes of text.
//!
//! `LLLL:QQQQQQ:PPPPPP:GGGGGGGGGGGGGGGGGGGGGGGGGGGGGGGG` and a NUL: LID, QP number, first PSN and
//! GID in hexadecimal, the GID's bytes in order (libibverbs/examples/rc_pingpong.c,
//! pp_client_exch_dest).

use std::net::Ipv6Addr;
use std::ops::Range;

use serde::Serialize;

use crate::session::hex::{BadRecord, read_hex, write_hex};

/// Bytes of a record.
pub(crate) const RECORD_LEN: usize = 52;

const LID: Range<usize> = 0..4;
const QPN: Range<usize> = 5..11;
const PSN: Range<usize> = 12..18;
const GID: Range<usize> = 19..51;
const SEPARATORS: [(usize, u8); 4] = [(4, b':'), (11, b':'), (18, b':'), (51, 0)];

/// The address of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Record {
    pub(crate) lid: u16,
    /// 24 bits.
    pub(crate) qpn: u32,
    /// 24 bits.
    pub(crate) psn: u32,
    /// All zero if the path needs no GID.
    pub(crate) gid: Ipv6Addr,
}

impl Record {
    /// The blank record, which addresses no queue pair.
    pub(crate) const BLANK: Self = Self { lid: 0, qpn: 0, psn: 0, gid: Ipv6Addr::UNSPECIFIED };

    /// Whether the record has a GID to which packets can be addressed, by the rule of
    /// ibv_rc_pingpong.
    pub(crate) fn has_gid(&self) -> bool {
        self.gid.octets()[8..] != [0; 8]
    }

    pub(crate) fn encode(&self) -> [u8; RECORD_LEN] {
        let mut bytes = [0; RECORD_LEN];
        for (at, byte) in SEPARATORS {
            bytes[at] = byte;
        }
        write_hex(&mut bytes[LID], self.lid.into());
        write_hex(&mut bytes[QPN], self.qpn.into());
        write_hex(&mut bytes[PSN], self.psn.into());
        write_hex(&mut bytes[GID], self.gid.to_bits());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; RECORD_LEN]) -> Result<Self, BadRecord> {
        for (at, expected) in SEPARATORS {
            if bytes[at] != expected {
                return Err(BadRecord::Separator { at, expected, found: bytes[at] });
            }
        }
        // Each field's digits fill its type exactly, or leave 8 bits of it zero.
        Ok(Self {
            lid: read_hex(bytes, LID)? as u16,
            qpn: read_hex(bytes, QPN)? as u32,
            psn: read_hex(bytes, PSN)? as u32,
            gid: Ipv6Addr::from_bits(read_hex(bytes, GID)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TEXT: &[u8; RECORD_LEN] = b"0012:00001f:abcdef:00000000000000000000ffff0a010001\0";

    #[test]
    fn bytes_match_ibv_rc_pingpong() {
        let record = Record { lid: 0x12, qpn: 0x1f, psn: 0xab_cdef, gid: "::ffff:10.1.0.1".parse().unwrap() };
        assert_eq!(&record.encode(), TEXT);
        assert_eq!(Record::decode(TEXT), Ok(record));
    }

    #[test]
    fn gid_with_zero_interface_id_is_empty() {
        let with = |gid: &str| Record { lid: 0, qpn: 0, psn: 0, gid: gid.parse().unwrap() };
        assert!(with("::ffff:10.1.0.1").has_gid());
        assert!(with("fe80::1").has_gid());
        assert!(!with("::").has_gid());
        assert!(!with("fe80::").has_gid());
    }

    #[test]
    fn record_errors_name_the_offset() {
        let mut bytes = *TEXT;
        bytes[4] = b';';
        assert_eq!(Record::decode(&bytes), Err(BadRecord::Separator { at: 4, expected: b':', found: b';' }));
        let mut bytes = *TEXT;
        bytes[51] = b'0';
        assert_eq!(Record::decode(&bytes), Err(BadRecord::Separator { at: 51, expected: 0, found: b'0' }));
        let mut bytes = *TEXT;
        bytes[50] = b'g';
        assert_eq!(Record::decode(&bytes), Err(BadRecord::Digit { at: 50, found: b'g' }));
        let mut bytes = *TEXT;
        bytes[0] = b' ';
        assert_eq!(
            Record::decode(&bytes).unwrap_err().to_string(),
            "byte 0 is 0x20, not a hexadecimal digit"
        );
    }

    proptest! {
        #[test]
        fn encoded_commands_decode_to_equal_values(lid: u16, qpn in 0..1u32 << 24, psn in 0..1u32 << 24, gid: u128) {
            let record = Record { lid, qpn, psn, gid: Ipv6Addr::from_bits(gid) };
            prop_assert_eq!(Record::decode(&record.encode()), Ok(record));
        }

        #[test]
        fn any_52_bytes_are_a_record_or_an_error_at_a_place(
            bytes in proptest::array::uniform32(any::<u8>()),
            tail in proptest::array::uniform20(any::<u8>()),
        ) {
            let mut all = [0; RECORD_LEN];
            all[..32].copy_from_slice(&bytes);
            all[32..].copy_from_slice(&tail);
            match Record::decode(&all) {
                Ok(record) => prop_assert!(record.encode().eq_ignore_ascii_case(&all)),
                Err(BadRecord::Separator { at, found, .. } | BadRecord::Digit { at, found }) => {
                    prop_assert_eq!(all[at], found);
                }
            }
        }

        #[test]
        fn one_damaged_byte_never_passes_as_the_same_record(at in 0..RECORD_LEN, byte: u8) {
            prop_assume!(!byte.eq_ignore_ascii_case(&TEXT[at]));
            let mut bytes = *TEXT;
            bytes[at] = byte;
            prop_assert_ne!(Record::decode(&bytes).ok(), Record::decode(TEXT).ok());
        }
    }
}
