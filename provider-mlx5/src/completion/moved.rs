//! Moving to another ring.

use bareverbs_provider::barrier;
use bareverbs_provider::contract::{CompletionQueue, QueueMemory};

use super::Mlx5Cq;
use super::ring::{OWNER, Ring, counted};
use crate::cqe::{CQE, CqeOpcode};

impl Mlx5Cq {
    /// What the ring lies in.
    pub(crate) fn memory(&self) -> QueueMemory {
        if self.ring.memory().is_huge() { QueueMemory::HugePages } else { QueueMemory::Ordinary }
    }

    /// Goes on in `ring`, which the kernel has told the device of; what was left in the old one is moved there.
    ///
    /// The device marks the end of the old ring with an entry of its own, which counts.
    ///
    /// `shared` is the ring as the owners of queue pairs see it, which the caller has had locked since before the kernel
    /// was told. So no queue pair is reset meanwhile: neither the old ring nor the new one alone would show what was written
    /// of it.
    pub(crate) fn follow(&mut self, shared: &mut Ring, ring: Ring) {
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
        // Entries of queue pairs that were reset have moved with the others.
        for (.., until) in &mut self.shared.strays().reset {
            *until = counted(until.wrapping_add(1));
        }
        *shared = ring.clone();
        self.ring = ring;
        self.look_up();
        // Whoever looks for entries in the new ring begins where the first of them is.
        self.release();
    }
}
