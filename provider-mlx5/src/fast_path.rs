//! The fast path of send queues. It encodes the most frequent requests, each a WQE of one block, in
//! CPU registers.

use bareverbs_provider::work::{Operation, Payload, SendFlags, SendRequest, Sge};

use crate::wqe::{self, Control, ControlFlags, Opcode, Segment};

/// A segment in a CPU register.
#[derive(Clone, Copy)]
pub(crate) struct SegmentReg(imp::Register);

impl SegmentReg {
    pub(crate) const ZERO: Self = Self(imp::ZERO);

    /// A segment from words in memory order.
    #[inline(always)]
    fn new(words: Segment) -> Self {
        Self(imp::from_words(words))
    }

    /// An inline segment with 8 bytes of data.
    #[inline(always)]
    fn inline(bytes: &[u8; 8]) -> Self {
        Self(imp::after_word(wqe::inline_header(8), bytes))
    }

    /// Writes the segment by one store, to memory that the device may read.
    ///
    /// # Safety
    ///
    /// There must be room for a segment at `to`, aligned to 16.
    #[inline(always)]
    pub(crate) unsafe fn write(self, to: *mut Segment) {
        // SAFETY: this function's contract.
        unsafe { to.cast::<imp::Register>().write_volatile(self.0) };
    }
}

#[cfg(target_arch = "x86_64")]
mod imp {
    use std::arch::x86_64::{__m128i, _mm_or_si128, _mm_set_epi32, _mm_set_epi64x, _mm_slli_si128};

    use crate::wqe::Segment;

    pub(super) type Register = __m128i;

    // SAFETY: any 16 bytes are a valid value.
    pub(super) const ZERO: Register = unsafe { std::mem::zeroed() };

    #[inline(always)]
    pub(super) fn from_words([first, second]: Segment) -> Register {
        // SAFETY: every x86-64 processor has these instructions.
        unsafe { _mm_set_epi64x(second as i64, first as i64) }
    }

    /// A word of 4 bytes and the `bytes` behind it, in memory order.
    #[inline(always)]
    pub(super) fn after_word(word: u32, bytes: &[u8; 8]) -> Register {
        // SAFETY: every x86-64 processor has these instructions.
        unsafe {
            let bytes = _mm_set_epi64x(0, i64::from_le_bytes(*bytes));
            _mm_or_si128(_mm_slli_si128::<4>(bytes), _mm_set_epi32(0, 0, 0, word as i32))
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod imp {
    use crate::wqe::Segment;

    pub(super) type Register = Segment;

    pub(super) const ZERO: Register = [0; 2];

    #[inline(always)]
    pub(super) fn from_words(words: Segment) -> Register {
        words
    }

    /// A word of 4 bytes and the `bytes` behind it, in memory order.
    #[inline(always)]
    pub(super) fn after_word(word: u32, bytes: &[u8; 8]) -> Register {
        let bytes = u64::from_le_bytes(*bytes);
        [(u64::from(u32::from_le_bytes(word.to_ne_bytes())) | bytes << 32).to_le(), (bytes >> 32).to_le()]
    }
}

/// A WQE of one block with two or three segments.
#[derive(Clone, Copy)]
pub(crate) struct FastWqe {
    /// The first 8 bytes of the control segment.
    pub(crate) control: u64,
    pub(crate) segments: [SegmentReg; 2],
    pub(crate) third: Option<SegmentReg>,
}

/// The parts that all WQEs of a queue share.
#[derive(Debug)]
pub(crate) struct Templates {
    /// First 8 bytes of the control segments of a write and of a send, with index 0.
    write: u64,
    send: u64,
    /// Second 8 bytes of the control segment, indexed by the request's flags.
    flags: [u64; FLAGS],
    /// Maximum bytes of a message.
    longest: u32,
}

const FLAGS: usize = SendFlags::all().bits() as usize + 1;

impl Templates {
    /// Templates for `qp_num`. Every WQE has the flags `base_flags`.
    pub(crate) fn new(qp_num: u32, base_flags: ControlFlags, max_message: u64) -> Self {
        let control =
            |opcode, segments, flags| Control { opcode, index: 0, qp_num, segments, flags, imm: 0 }.segment();
        let flags = std::array::from_fn(|flags| {
            let flags = base_flags | control_flags(SendFlags::from_bits_truncate(flags as u32));
            control(Opcode::NOP, 0, flags)[1]
        });
        Self {
            write: control(Opcode::RDMA_WRITE, 3, base_flags)[0],
            send: control(Opcode::SEND, 2, base_flags)[0],
            flags,
            longest: max_message.min(i32::MAX as u64) as u32,
        }
    }

    /// Encodes a request at `index`: a send or a write with one SGE or 8 bytes inline. Returns
    /// `None` for other requests.
    #[inline(always)]
    pub(crate) fn request(&self, index: u32, request: &SendRequest<'_>) -> Option<FastWqe> {
        let data = match request.payload {
            Payload::Inline([part]) => SegmentReg::inline((*part).try_into().ok()?),
            // The device reads a byte count of 0 as 2^31.
            Payload::Sges([sge]) if sge.length.wrapping_sub(1) < self.longest => {
                SegmentReg::new(data_segment(sge))
            }
            _ => return None,
        };
        let index = u64::from((index as u16).to_be()) << if cfg!(target_endian = "little") { 8 } else { 40 };
        let flags = self.flags[(request.flags & SendFlags::all()).bits() as usize];
        match request.operation {
            Operation::Write(remote) => {
                let control = self.write | index;
                let segments =
                    [SegmentReg::new([control, flags]), SegmentReg::new(wqe::remote_address(remote))];
                Some(FastWqe { control, segments, third: Some(data) })
            }
            Operation::Send => {
                let control = self.send | index;
                Some(FastWqe { control, segments: [SegmentReg::new([control, flags]), data], third: None })
            }
            _ => None,
        }
    }
}

/// The data segment of an SGE of 1 to 2^31 - 1 bytes. Length and lkey are loaded at once.
#[inline(always)]
pub(crate) fn data_segment(sge: &Sge) -> Segment {
    // SAFETY: `Sge` has C layout and 16 bytes without padding, so its bytes are two valid words.
    let [addr, words] = unsafe { std::mem::transmute::<Sge, [u64; 2]>(*sge) };
    let words = if cfg!(target_endian = "little") { words.rotate_left(32) } else { words };
    [words.to_be(), addr.to_be()]
}

/// The control segment's flags for a request's flags.
#[inline(always)]
pub(crate) fn control_flags(flags: SendFlags) -> ControlFlags {
    let mut control = ControlFlags::empty();
    if flags.contains(SendFlags::SIGNALED) {
        control |= ControlFlags::CQ_UPDATE;
    }
    if flags.contains(SendFlags::SOLICITED) {
        control |= ControlFlags::SOLICITED;
    }
    if flags.contains(SendFlags::FENCE) {
        control |= ControlFlags::FENCE;
    }
    control
}

#[cfg(test)]
mod tests {
    use bareverbs_provider::work::{Imm, Remote};
    use proptest::prelude::*;

    use super::*;

    const QP: u32 = 0x00ab_cdef;

    fn segments(wqe: &FastWqe) -> Vec<Segment> {
        let all = wqe.segments.iter().chain(&wqe.third);
        all.map(|segment_reg| {
            let mut segment = Aligned([0; 2]);
            // SAFETY: room for a segment, aligned to 16.
            unsafe { segment_reg.write(&mut segment.0) };
            segment.0
        })
        .collect()
    }

    #[repr(align(16))]
    struct Aligned(Segment);

    proptest! {
        #[test]
        fn fast_path_wqe_matches_the_prm(
            index in any::<u32>(), addr in any::<u64>(), rkey in any::<u32>(), bytes in any::<[u8; 8]>(),
            lkey in any::<u32>(), length in 1u32..i32::MAX as u32, flags in 0u32..8, base_flags in any::<bool>(),
            write in any::<bool>(), inline in any::<bool>(),
        ) {
            let base_flags = if base_flags { ControlFlags::CQ_UPDATE } else { ControlFlags::empty() };
            let templates = Templates::new(QP, base_flags, 1 << 31);
            let remote = Remote { addr, rkey };
            let flags = SendFlags::from_bits_truncate(flags);
            let (sges, parts) = ([Sge { addr, length, lkey }], [&bytes[..]]);
            let request = SendRequest {
                wr_id: 1,
                operation: if write { Operation::Write(remote) } else { Operation::Send },
                flags,
                payload: if inline { Payload::Inline(&parts) } else { Payload::Sges(&sges) },
            };
            let opcode = if write { Opcode::RDMA_WRITE } else { Opcode::SEND };
            let control = Control {
                opcode, index: index as u16, qp_num: QP, segments: 2 + u8::from(write),
                flags: base_flags | control_flags(flags), imm: 0,
            };
            let mut expected = vec![control.segment()];
            if write {
                expected.push(wqe::remote_address(remote));
            }
            if inline {
                let mut data = [0; 16];
                data[..4].copy_from_slice(&wqe::inline_header(8).to_ne_bytes());
                data[4..12].copy_from_slice(&bytes);
                let word = |at| u64::from_ne_bytes(data[at..at + 8].try_into().expect("8 bytes"));
                expected.push([word(0), word(8)]);
            } else {
                expected.push(wqe::data(sges[0]));
            }
            let wqe = templates.request(index, &request).expect("the fast path");
            prop_assert_eq!(wqe.control, expected[0][0]);
            prop_assert_eq!(segments(&wqe), expected);
        }
    }

    #[test]
    fn infrequent_requests_take_the_slow_path() {
        let templates = Templates::new(QP, ControlFlags::empty(), 1 << 30);
        let sge = Sge { addr: 0x1000, length: 8, lkey: 1 };
        fn declines(templates: &Templates, operation: Operation, payload: Payload<'_>) -> bool {
            let request = SendRequest { wr_id: 1, operation, flags: SendFlags::empty(), payload };
            templates.request(0, &request).is_none()
        }
        let declined = |operation, sges: &[Sge]| declines(&templates, operation, Payload::Sges(sges));
        assert!(!declined(Operation::Send, &[sge]));
        assert!(declined(Operation::SendImm(Imm(1)), &[sge]));
        assert!(declined(Operation::Send, &[]));
        assert!(declined(Operation::Send, &[sge, sge]));
        for length in [0, (1 << 30) + 1, 1 << 31, u32::MAX] {
            assert!(declined(Operation::Send, &[Sge { length, ..sge }]), "{length}");
        }
        let lists: [&[&[u8]]; 4] = [&[], &[b"1234567"], &[b"123456789"], &[b"1234", b"5678"]];
        for parts in lists {
            assert!(declines(&templates, Operation::Send, Payload::Inline(parts)));
        }
    }
}
