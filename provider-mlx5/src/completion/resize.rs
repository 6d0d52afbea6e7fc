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
mod tests {
    use std::time::Duration;

    use bareverbs_provider::traits::{CompletionQueue, SendQueue};

    use super::Mlx5Cq;
    use crate::cqe::CqeOpcode;
    use crate::doorbell::Word;
    use crate::fixture::{Device, Fixture, LOG, poll, send};
    use crate::testing::resize;

    /// Arms the queue; the number of events by which the device tells a late arming.
    fn arm(cq: &mut Mlx5Cq, solicited_only: bool) -> u32 {
        cq.arm(solicited_only).expect("a write to memory");
        cq.shared.doorbell.get(Word::Second) >> 28
    }

    fn move_to(cq: &mut Mlx5Cq, device: &mut Device, log: u32) {
        resize(cq, log, |ring| device.moves(ring, log)).expect("memory");
    }

    #[test]
    fn a_resize_counts_as_no_event() {
        for solicited_only in [false, true] {
            let Fixture { mut device, mut cq, sq: _sq, rq: _rq, .. } = Fixture::new(false);
            for log in [LOG + 1, LOG, LOG, LOG + 2] {
                assert_eq!(arm(&mut cq, solicited_only), 0);
                move_to(&mut cq, &mut device, log);
            }
            assert_eq!(arm(&mut cq, solicited_only), 0);
        }
    }

    #[test]
    fn an_event_counts_whether_it_was_raised_before_a_resize_or_after() {
        for (solicited_only, before) in [(false, false), (false, true), (true, false), (true, true)] {
            let Fixture { mut device, mut cq, sq: _sq, rq: _rq, user_index, .. } = Fixture::new(false);
            arm(&mut cq, solicited_only);
            if before {
                // An error raises either kind of event.
                device.completes(CqeOpcode::REQ_ERR, user_index, 0);
            }
            move_to(&mut cq, &mut device, LOG + 1);
            if !before {
                device.completes(CqeOpcode::REQ_ERR, user_index, 0);
            }
            assert!(cq.next().is_some());
            assert_eq!(arm(&mut cq, solicited_only), 1, "{solicited_only} {before}");
        }
    }

    #[test]
    fn completions_that_are_not_solicited_move_without_an_event() {
        let Fixture { mut device, mut cq, mut sq, rq: _rq, user_index, .. } = Fixture::new(false);
        send(&mut sq, 1).expect("room");
        arm(&mut cq, true);
        device.completes(CqeOpcode::REQ, user_index, 0);
        move_to(&mut cq, &mut device, LOG + 1);
        assert_eq!(arm(&mut cq, true), 0);
        assert_eq!(poll(&mut cq), Some(1));
        assert_eq!(arm(&mut cq, true), 0);
    }

    #[test]
    fn no_queue_pair_is_reset_while_the_kernel_resizes_its_completion_queue() {
        let Fixture { mut device, mut cq, mut sq, rq, user_index, .. } = Fixture::with_cached_records();
        send(&mut sq, 1).expect("room");
        std::thread::scope(|scope| {
            let sq = &mut sq;
            resize(&mut cq, LOG + 1, |ring| {
                // SAFETY: no kernel and no device has the queue.
                let owner = scope.spawn(|| unsafe { sq.reset() });
                std::thread::sleep(Duration::from_millis(20));
                assert!(!owner.is_finished(), "the owner waits for the kernel");
                device.completes(CqeOpcode::REQ, user_index, 1);
                device.moves(ring, LOG + 1);
            })
            .expect("memory");
        });
        assert_eq!(poll(&mut cq), None, "of before the reset");
        drop(rq);
    }

    #[test]
    fn the_device_knows_of_all_room_before_it_marks_the_end_of_a_ring() {
        let Fixture { mut device, mut cq, mut sq, rq: _rq, user_index, .. } = Fixture::new(false);
        send(&mut sq, 1).expect("room");
        device.completes(CqeOpcode::REQ, user_index, 0);
        assert!(cq.next().is_some());
        let shared = std::sync::Arc::clone(cq.shared());
        resize(&mut cq, LOG, |ring| {
            assert_eq!(shared.doorbell.get(Word::First), 1);
            device.moves(ring, LOG);
        })
        .expect("memory");
        assert_eq!(shared.doorbell.get(Word::First), 2, "the mark takes a number");
    }
}
