//! The ring that the device writes CQEs to.

pub(crate) mod mini_cqe;

use std::sync::Arc;

use bareverbs_provider::mapping::Mapping;

use self::mini_cqe::MiniCqeFormat;
use crate::cqe::{CQE, Cqe, CqeOpcode};

/// The `op_own` of a CQE that was never written. It remains invalid until the device has written it
/// in its first round.
const NEVER_WRITTEN: u8 = CqeOpcode::INVALID.0 << 4 | OWNER;

/// The owner bit in `op_own`.
pub(crate) const OWNER: u8 = 1;

/// CQE indices have 24 bits.
pub(crate) const COUNT: u32 = 0xff_ffff;

/// The ring that the device writes CQEs to.
#[derive(Clone, Debug)]
pub(crate) struct Ring {
    memory: Arc<Mapping>,
    /// The 64 bytes of the first CQE that have the fields.
    pub(crate) start: *const u8,
    /// Log2 of the number of CQEs.
    pub(crate) log: u32,
    /// Log2 of the bytes of a CQE.
    pub(crate) shift: u32,
    /// The format of compressed CQEs, if compression is enabled.
    pub(crate) mini_cqe_format: Option<MiniCqeFormat>,
}

// SAFETY: `memory` owns the memory, which belongs to no thread.
unsafe impl Send for Ring {}
// SAFETY: `memory` owns the memory, which belongs to no thread. Besides the device, only the poller
// writes CQEs: in a resize, before another thread has the ring, and in the expansion of compressed
// CQEs, by atomics. Other threads read by atomics of the same size (`Ring::first_unwritten`). The
// poller's non-atomic reads do not conflict with writes of other threads, because there are none.
unsafe impl Sync for Ring {}

impl Ring {
    /// Creates a ring of `1 << log` CQEs of 64 or 128 bytes and marks all of them as never written.
    pub(crate) fn new(memory: Mapping, log: u32, cqe_size: usize) -> Self {
        let fits = memory.len() >= cqe_size << log && 1 << log <= COUNT / 2;
        assert!(matches!(cqe_size, CQE | 128) && fits, "a ring of entries");
        // SAFETY: within the first CQE.
        let start = unsafe { memory.as_ptr().add(cqe_size - CQE) }.as_ptr();
        let ring = Self {
            memory: Arc::new(memory),
            start,
            log,
            shift: cqe_size.trailing_zeros(),
            mini_cqe_format: None,
        };
        for index in 0..ring.entries() {
            // SAFETY: the byte lies in the ring, which nothing else accesses yet.
            unsafe { ring.at(index).cast_mut().add(CQE - 1).write(NEVER_WRITTEN) };
        }
        ring
    }

    /// The same ring with this format of compressed CQEs; `None` disables compression.
    pub(crate) fn compressed(self, mini_cqe_format: Option<MiniCqeFormat>) -> Self {
        Self { mini_cqe_format, ..self }
    }

    pub(crate) fn entries(&self) -> u32 {
        1 << self.log
    }

    pub(crate) fn memory(&self) -> &Mapping {
        &self.memory
    }

    /// The address of the ring for the device.
    pub(crate) fn address(&self) -> u64 {
        self.memory.as_ptr().as_ptr().expose_provenance() as u64
    }

    #[inline(always)]
    pub(crate) fn at(&self, index: u32) -> *const u8 {
        let index = index & (self.entries() - 1);
        // SAFETY: the CQE lies in the ring, which `new` checked.
        unsafe { self.start.add((index as usize) << self.shift) }
    }

    #[inline(always)]
    pub(crate) fn entry(&self, index: u32) -> Cqe<'_> {
        // SAFETY: the CQE lies in the ring, which `self` owns. CQEs are at multiples of 64 bytes
        // from the start of a page.
        unsafe { Cqe::new(self.at(index)) }
    }

    /// Whether the device has written CQE `index`, which is counted on, given its `op_own`.
    #[inline(always)]
    pub(crate) fn written(&self, index: u32, op_own: u8) -> bool {
        (op_own & OWNER != 0) == (index >> self.log & 1 != 0) && op_own >> 4 != CqeOpcode::INVALID.0
    }

    /// The owner bit of CQE `index`, which is counted on, once it is written.
    pub(crate) fn owner(&self, index: u32) -> u8 {
        (index >> self.log & 1) as u8
    }
}

/// Reduces a number of CQEs to 24 bits.
pub(crate) fn counted(entries: u32) -> u32 {
    entries & COUNT
}

/// Whether CQE `index` was written before CQE `until`; both are known by their low 24 bits.
pub(crate) fn is_before(index: u32, until: u32) -> bool {
    until.wrapping_sub(index) << 8 != 0 && until.wrapping_sub(index) << 8 >> 31 == 0
}

#[cfg(test)]
mod tests {
    use super::is_before;

    #[test]
    fn is_before_handles_the_24_bit_wrap() {
        assert!(is_before(4, 5) && !is_before(5, 5) && !is_before(6, 5));
        assert!(is_before(0xff_ffff, 1) && !is_before(1, 0xff_ffff));
        assert!(is_before(0x1ff_ffff, 0x200_0001));
    }
}

#[cfg(test)]
mod exhaustive;
