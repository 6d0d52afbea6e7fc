//! CQ resize.

use std::sync::Arc;

use bareverbs_provider::barrier;
use bareverbs_provider::request::QueueMemory;
use bareverbs_provider::traits::CompletionQueue;

use super::Mlx5Cq;
use super::notify::Armed;
use super::ring::{OWNER, Ring, counted};
use crate::cqe::{CQE, CqeOpcode};

impl Mlx5Cq {
    /// What the ring lies in.
    pub(crate) fn memory(&self) -> QueueMemory {
        if self.ring.memory().is_huge() { QueueMemory::HugePages } else { QueueMemory::Ordinary }
    }

    /// Moves to `ring`: `command` has the kernel tell the device of it. After a refusal the queue
    /// keeps the ring that it has.
    ///
    /// The ring that owners of queue pairs see is locked over all of it, so no queue pair is reset
    /// meanwhile: neither the old ring nor the new one alone would show what was written of it.
    pub(crate) fn resize_by<E>(
        &mut self,
        ring: Ring,
        command: impl FnOnce(&Ring) -> Result<(), E>,
    ) -> Result<(), E> {
        assert_eq!(ring.shift, self.ring.shift, "entries keep their size");
        let ring = ring.compressed(self.ring.mini_cqe_format);
        // The device is told of all room in the old ring before it marks its end there.
        self.release();
        let shared = Arc::clone(&self.shared);
        let mut current = shared.ring();
        command(&ring)?;
        self.switch_ring(&mut current, ring);
        Ok(())
    }

    /// Switches to `ring`, of which the kernel has informed the device, and copies the remaining
    /// CQEs there. `shared` is the ring as the owners of queue pairs see it.
    ///
    /// The device marks the end of the old ring with a CQE of its own. The mark takes a number, but
    /// it raises no event: the device goes on waiting for what the queue was armed for.
    fn switch_ring(&mut self, shared: &mut Ring, ring: Ring) {
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
            // SAFETY: both CQEs lie in their rings and have the same size; the device has written
            // the old one, and writes the new one only when it has come round.
            unsafe {
                let whole = from_start - CQE;
                let (from, into) = (self.ring.at(index).sub(whole), ring.at(to).cast_mut().sub(whole));
                into.copy_from_nonoverlapping(from, from_start);
                into.add(from_start - 1).write(op_own & !OWNER | owner);
            }
            index = to;
        }
        if let Armed::Any(first) | Armed::Solicited(first) = &mut self.armed {
            *first = counted(first.wrapping_add(1));
        }
        self.consumer = self.consumer.wrapping_add(1);
        // CQEs of queue pairs that were reset or destroyed have moved with the others.
        self.shared.retired().move_on();
        *shared = ring.clone();
        self.ring = ring;
        self.reload_ring();
        // Readers of the new ring start at its first CQE.
        self.release();
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
