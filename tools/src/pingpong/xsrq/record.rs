//! The address record of a run over XRC, as 66 bytes of text.
//!
//! `LLLL:RRRRRR:SSSSSS:PPPPPP:QQQQQQ:GGGGGGGGGGGGGGGGGGGGGGGGGGGGGGGG` and a NUL: LID, QP number of
//! the target, QP number of the sender, first PSN, SRQ number, and GID in hexadecimal
//! (libibverbs/examples/xsrq_pingpong.c, send_local_dest).

use std::net::Ipv6Addr;
use std::ops::Range;

use serde::Serialize;

use crate::pingpong::record::Record;
use crate::session::hex::{BadRecord, read_hex, write_hex};

/// Bytes of a record.
pub(crate) const XRC_RECORD_LEN: usize = 66;

const LID: Range<usize> = 0..4;
const TARGET: Range<usize> = 5..11;
const SENDER: Range<usize> = 12..18;
const PSN: Range<usize> = 19..25;
const SRQ: Range<usize> = 26..32;
const GID: Range<usize> = 33..65;
const SEPARATORS: [(usize, u8); 6] = [(4, b':'), (11, b':'), (18, b':'), (25, b':'), (32, b':'), (65, 0)];

/// The address of one side of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct XrcRecord {
    pub(crate) lid: u16,
    /// The QP number of the XRC target.
    pub(crate) recv_qpn: u32,
    /// The QP number of the XRC initiator.
    pub(crate) send_qpn: u32,
    /// The first PSN of both.
    pub(crate) psn: u32,
    /// The SRQ number.
    pub(crate) srqn: u32,
    /// All zero if the path needs no GID.
    pub(crate) gid: Ipv6Addr,
}

impl XrcRecord {
    pub(crate) fn encode(&self) -> [u8; XRC_RECORD_LEN] {
        let mut bytes = [0; XRC_RECORD_LEN];
        for (at, byte) in SEPARATORS {
            bytes[at] = byte;
        }
        write_hex(&mut bytes[LID], self.lid.into());
        let numbers = [(TARGET, self.recv_qpn), (SENDER, self.send_qpn), (PSN, self.psn), (SRQ, self.srqn)];
        for (field, number) in numbers {
            write_hex(&mut bytes[field], number.into());
        }
        write_hex(&mut bytes[GID], self.gid.to_bits());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8; XRC_RECORD_LEN]) -> Result<Self, BadRecord> {
        for (at, expected) in SEPARATORS {
            if bytes[at] != expected {
                return Err(BadRecord::Separator { at, expected, found: bytes[at] });
            }
        }
        // Each field's digits fill its type exactly, or leave 8 bits of it zero.
        Ok(Self {
            lid: read_hex(bytes, LID)? as u16,
            recv_qpn: read_hex(bytes, TARGET)? as u32,
            send_qpn: read_hex(bytes, SENDER)? as u32,
            psn: read_hex(bytes, PSN)? as u32,
            srqn: read_hex(bytes, SRQ)? as u32,
            gid: Ipv6Addr::from_bits(read_hex(bytes, GID)?),
        })
    }

    /// The GID, if packets can be addressed to it.
    pub(crate) fn gid(&self) -> Option<Ipv6Addr> {
        let Self { lid, psn, gid, .. } = *self;
        Record { lid, qpn: self.recv_qpn, psn, gid }.has_gid().then_some(gid)
    }

    /// The line with the address; `whose` is `local` or `remote`.
    pub(crate) fn line(&self, whose: &str) -> String {
        let Self { lid, recv_qpn, send_qpn, psn, srqn, gid } = self;
        format!(
            "{whose:>8}: LID {lid:04x}, QPN RECV {recv_qpn:06x} SEND {send_qpn:06x}, PSN {psn:06x}, SRQN {srqn:06x}, \
             GID {gid}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TEXT: &[u8; XRC_RECORD_LEN] =
        b"0012:00001f:000020:abcdef:000003:00000000000000000000ffff0a010001\0";

    fn record() -> XrcRecord {
        let gid = "::ffff:10.1.0.1".parse().unwrap();
        XrcRecord { lid: 0x12, recv_qpn: 0x1f, send_qpn: 0x20, psn: 0xab_cdef, srqn: 3, gid }
    }

    #[test]
    fn bytes_and_line_match_ibv_xsrq_pingpong() {
        assert_eq!(&record().encode(), TEXT);
        assert_eq!(XrcRecord::decode(TEXT), Ok(record()));
        assert_eq!(
            record().line("local"),
            "   local: LID 0012, QPN RECV 00001f SEND 000020, PSN abcdef, SRQN 000003, GID ::ffff:10.1.0.1"
        );
    }

    proptest! {
        #[test]
        fn one_damaged_byte_never_passes_as_the_same_record(at in 0..XRC_RECORD_LEN, byte: u8) {
            let mut bytes = *TEXT;
            bytes[at] = byte;
            let same = bytes.eq_ignore_ascii_case(TEXT);
            prop_assert_eq!(XrcRecord::decode(&bytes) == Ok(record()), same);
        }
    }
}
