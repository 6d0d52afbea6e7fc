//! Moving to another ring.

use std::sync::PoisonError;

use bareverbs_provider::barrier;
use bareverbs_provider::contract::QueueMemory;

use super::Mlx5Cq;
use super::ring::{OWNER, Ring};
use crate::cqe::{CQE, CqeOpcode};

impl Mlx5Cq {
    /// What the ring lies in.
    pub(crate) fn memory(&self) -> QueueMemory {
        if self.ring.memory().is_huge() { QueueMemory::HugePages } else { QueueMemory::Ordinary }
    }

    /// Goes on in `ring`, which the kernel has told the device of; what was left in the old one is moved there.
    ///
    /// The device marks the end of the old ring with an entry of its own, which counts.
    pub(crate) fn follow(&mut self, ring: Ring) {
        assert_eq!(ring.shift, self.ring.shift, "entries keep their size");
        let ring = ring.compressed(self.ring.minis);
        self.expand_all();
        let mut index = self.consumer;
        for _ in 0..self.ring.entries() {
            let entry = self.ring.entry(index);
            let op_own = entry.op_own();
            if !self.ring.written(index, op_own) || entry.opcode() == CqeOpcode::RESIZE {
                break;
            }
            barrier::after_device_wrote();
            // The mark takes one number, so what was left comes one later.
            let to = index.wrapping_add(1);
            let from_start = 1usize << self.ring.shift;
            let owner = (to >> ring.log & 1) as u8;
            // SAFETY: both entries lie in their rings and have the same size; the device has written the old one, and
            // writes the new one only when it has come round.
            unsafe {
                let whole = from_start - CQE;
                let (from, into) = (self.ring.at(index).sub(whole), ring.at(to).cast_mut().sub(whole));
                into.copy_from_nonoverlapping(from, from_start);
                into.add(from_start - 1).write(op_own & !OWNER | owner);
            }
            index = to;
        }
        self.consumer = self.consumer.wrapping_add(1);
        *self.shared.ring.lock().unwrap_or_else(PoisonError::into_inner) = ring.clone();
        self.ring = ring;
        self.look_up();
    }
}
