//! CQ resize.

use std::sync::Arc;

use bareverbs_provider::barrier;
use bareverbs_provider::traits::CompletionQueue;

use super::Mlx5Cq;
use super::notify::Armed;
use crate::cq_ring::{OWNER, Ring, counted};
use crate::cqe::{CQE, CqeOpcode};

impl Mlx5Cq {
    /// Bytes of a CQE.
    pub(crate) fn cqe_size(&self) -> usize {
        1 << self.ring.shift
    }

    /// Resizes the CQ to `ring`. `command` makes the kernel issue the resize to the device. If it
    /// fails, the CQ keeps its current ring.
    ///
    /// The lock of the ring that owners of queue pairs see is held throughout, so no queue pair is
    /// reset in between. During the resize, neither ring alone contains all CQEs of a queue pair.
    pub(crate) fn resize_by<E>(
        &mut self,
        ring: Ring,
        command: impl FnOnce(&Ring) -> Result<(), E>,
    ) -> Result<(), E> {
        assert_eq!(ring.shift, self.ring.shift, "entries keep their size");
        let ring = ring.compressed(self.ring.mini_cqe_format);
        // All polled CQEs are released before the device marks the end of the old ring.
        self.release();
        let shared = Arc::clone(&self.shared);
        let mut current = shared.ring();
        command(&ring)?;
        self.switch_ring(&mut current, ring);
        Ok(())
    }

    /// Switches to `ring`, which the device already uses, and copies the remaining CQEs there.
    /// `shared` is the ring as the owners of queue pairs see it.
    ///
    /// The device marks the end of the old ring with a RESIZE CQE. That CQE takes an index but
    /// raises no event, so the CQ remains armed.
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
            // The RESIZE CQE takes one index, so the index of each remaining CQE is incremented.
            let to = index.wrapping_add(1);
            let from_start = 1usize << self.ring.shift;
            let owner = (to >> ring.log & 1) as u8;
            // SAFETY: both CQEs lie in their rings and have the same size. The device has written
            // the old CQE. It writes the new one only after it has wrapped.
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
        // CQEs of retired queue pairs were copied with the others.
        self.shared.retired().after_resize();
        *shared = ring.clone();
        self.ring = ring;
        self.reload_ring();
        // Owners of queue pairs count CQEs of the new ring from this consumer index.
        self.release();
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
