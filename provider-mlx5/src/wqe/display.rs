//! `Display` for send WQEs.

use std::fmt;

use super::{BLOCK, ControlFlags, Opcode, SEGMENT};

/// The bytes of a send WQE, displayed segment by segment.
///
/// ```
/// use bareverbs_mlx5::wqe::{self, Control, ControlFlags, Opcode, WqeDisplay};
///
/// let nop = Control {
///     opcode: Opcode::NOP, index: 3, qp_num: 0x2a, segments: 1, flags: ControlFlags::CQ_UPDATE, imm: 0,
/// };
/// let text = WqeDisplay::new(&wqe::bytes(nop.segment())).to_string();
/// assert_eq!(text, "3: NOP of QP 0x2a, 1 segments, CQ_UPDATE\n");
/// ```
#[derive(Clone, Copy, Debug)]
pub struct WqeDisplay<'a>(&'a [u8]);

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |word| u32::from_be_bytes(word.try_into().expect("four bytes")))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at)) << 32 | u64::from(word(bytes, at + 4))
}

impl<'a> WqeDisplay<'a> {
    /// The WQE that begins with the first byte. A WQE that is longer than `bytes` is truncated.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Blocks of the WQE by its control segment, at least 1.
    #[must_use]
    pub fn blocks(&self) -> usize {
        (self.ds_count() * SEGMENT).div_ceil(BLOCK).max(1)
    }

    fn ds_count(&self) -> usize {
        word(self.0, 4) as usize & 0x3f
    }

    fn opcode(&self) -> Opcode {
        Opcode(word(self.0, 0) as u8)
    }
}

/// Displays a data segment or inline data, and returns the number of segments.
fn data(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> Result<usize, fmt::Error> {
    let first = word(bytes, 0);
    if first >> 31 == 0 {
        let (lkey, addr) = (word(bytes, 4), long(bytes, 8));
        writeln!(f, "    data      {first} bytes at {addr:#x}, lkey {lkey:#x}")?;
        return Ok(1);
    }
    let length = (first & 0x3ff) as usize;
    let inline = &bytes[4.min(bytes.len())..(4 + length).min(bytes.len())];
    writeln!(f, "    inline    {length} bytes: {}", inline.escape_ascii())?;
    Ok((length + 4).div_ceil(SEGMENT))
}

impl fmt::Display for WqeDisplay<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (opcode, ds_count) = (self.opcode(), self.ds_count());
        let (index, qp) = (word(self.0, 0) >> 8 & 0xffff, word(self.0, 4) >> 8);
        write!(f, "{index}: {opcode} of QP {qp:#x}, {ds_count} segments")?;
        let flags = ControlFlags::from_bits_retain(word(self.0, 8) as u8);
        if !flags.is_empty() {
            write!(f, ", ")?;
            bitflags::parser::to_writer(&flags, &mut *f)?;
        }
        match word(self.0, 12) {
            0 => writeln!(f)?,
            imm => writeln!(f, ", imm {imm:#x}")?,
        }
        let end = self.0.len().min(ds_count * SEGMENT);
        let mut at = SEGMENT;
        let rest = |at: usize| &self.0[at.min(end)..end];
        if matches!(opcode.0, 0x08 | 0x09 | 0x10 | 0x11 | 0x12) && at < end {
            let (addr, rkey) = (long(rest(at), 0), word(rest(at), 8));
            writeln!(f, "    remote    {addr:#x}, rkey {rkey:#x}")?;
            at += SEGMENT;
        }
        if matches!(opcode, Opcode::ATOMIC_CS | Opcode::ATOMIC_FA) && at < end {
            let (swap_or_add, compare) = (long(rest(at), 0), long(rest(at), 8));
            writeln!(f, "    atomic    {swap_or_add:#x}, compared with {compare:#x}")?;
            at += SEGMENT;
        }
        if opcode == Opcode::UMR {
            writeln!(f, "    key       {:02x?}", rest(at))?;
            return Ok(());
        }
        if opcode == Opcode::TSO && at < end {
            let (flags, header) = (word(rest(at), 4), word(rest(at), 12) >> 16 & 0x3ff);
            let checksums = if flags >> 30 == 0 { "" } else { ", checksums" };
            writeln!(f, "    ethernet  header of {header} bytes, segments of {}{checksums}", flags & 0x3fff)?;
            // The inline header begins in the segment's last two bytes.
            at += (14 + header as usize).div_ceil(SEGMENT).max(1) * SEGMENT;
        }
        // The address vector of a datagram: the Q_Key, reserved bytes, and a QPN with the extended
        // bit.
        let is_send = matches!(opcode, Opcode::SEND | Opcode::SEND_IMM);
        if is_send && rest(at).len() >= 3 * SEGMENT && word(rest(at), 4) == 0 && word(rest(at), 8) >> 31 == 1
        {
            let (qkey, to, path) = (word(rest(at), 0), word(rest(at), 8) & 0xff_ffff, word(rest(at), 12));
            writeln!(f, "    datagram  to QP {to:#x}, qkey {qkey:#x}, path {path:#010x}")?;
            at += 3 * SEGMENT;
        }
        while at < end {
            at += SEGMENT * data(f, rest(at))?.max(1);
        }
        Ok(())
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match *self {
            Self::NOP => "NOP",
            Self::SEND_INVAL => "SEND_INVAL",
            Self::RDMA_WRITE => "RDMA_WRITE",
            Self::RDMA_WRITE_IMM => "RDMA_WRITE_IMM",
            Self::SEND => "SEND",
            Self::SEND_IMM => "SEND_IMM",
            Self::TSO => "TSO",
            Self::RDMA_READ => "RDMA_READ",
            Self::ATOMIC_CS => "ATOMIC_CS",
            Self::ATOMIC_FA => "ATOMIC_FA",
            Self::UMR => "UMR",
            Self(other) => return write!(f, "opcode {other:#04x}"),
        };
        f.write_str(name)
    }
}

#[cfg(test)]
mod tests {
    use bareverbs_provider::work::{Remote, Sge};
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::wqe::{self, AddressVector, Control, Segment};

    fn display(segments: &[Segment]) -> String {
        let bytes: Vec<u8> = segments.iter().flat_map(|segment| wqe::bytes(*segment)).collect();
        WqeDisplay::new(&bytes).to_string()
    }

    #[test]
    fn fetch_and_add_display_has_remote_atomic_and_data() {
        let control = Control {
            opcode: Opcode::ATOMIC_FA,
            index: 9,
            qp_num: 0x4d,
            segments: 4,
            flags: ControlFlags::CQ_UPDATE | ControlFlags::FENCE,
            imm: 0,
        };
        let text = display(&[
            control.segment(),
            wqe::remote_address(Remote { addr: 0x1000, rkey: 0x99 }),
            wqe::atomic(5, 0),
            wqe::data(Sge { addr: 0x7f00, length: 8, lkey: 0x88 }),
        ]);
        let lines = "9: ATOMIC_FA of QP 0x4d, 4 segments, CQ_UPDATE | FENCE\n    \
                     remote    0x1000, rkey 0x99\n    \
                     atomic    0x5, compared with 0x0\n    \
                     data      8 bytes at 0x7f00, lkey 0x88\n";
        assert_eq!(text, lines);
    }

    #[test]
    fn datagram_display_has_its_destination() {
        let flags = ControlFlags::empty();
        let control = Control { opcode: Opcode::SEND, index: 0, qp_num: 1, segments: 5, flags, imm: 0 };
        let vector = AddressVector {
            path: 0x0500_1234,
            rmac: [0; 6],
            traffic_class: 0,
            hop_limit: 0,
            grh: 0,
            rgid: [0; 16],
        };
        let [a, b, c] = vector.segments(0x77, 0x1111);
        let inline = [u64::from_ne_bytes([0x80, 0, 0, 2, b'h', b'i', 0, 0]), 0];
        let text = display(&[control.segment(), a, b, c, inline]);
        assert!(text.contains("datagram  to QP 0x77, qkey 0x1111, path 0x05001234\n"), "{text}");
        assert!(text.ends_with("    inline    2 bytes: hi\n"), "{text}");
    }

    #[test]
    fn tso_display_has_header_and_mss() {
        let flags = ControlFlags::empty();
        let control = Control { opcode: Opcode::TSO, index: 0, qp_num: 1, segments: 7, flags, imm: 0 };
        let header = [wqe::ethernet(true, 1400, 54), [0; 2], [0; 2], [0; 2], [0; 2]];
        let memory = wqe::data(Sge { addr: 0x7f00, length: 9000, lkey: 0x88 });
        let text = display(&[&[control.segment()][..], &header, &[memory]].concat());
        let lines = "0: TSO of QP 0x1, 7 segments\n    \
                     ethernet  header of 54 bytes, segments of 1400, checksums\n    \
                     data      9000 bytes at 0x7f00, lkey 0x88\n";
        assert_eq!(text, lines);
    }

    proptest! {
        #[test]
        fn any_bytes_can_be_displayed(bytes in vec(any::<u8>(), 0..200)) {
            let display = WqeDisplay::new(&bytes);
            prop_assert!(display.to_string().contains(" of QP "));
            prop_assert!((1..=16).contains(&display.blocks()));
        }
    }
}
