//! Models of the waits for a slot, for `cargo xtask loom`.

use std::sync::Arc;
use std::task::{Context, Poll};

use loom::thread;

use super::slots::Slots;
use crate::sync::loom_models::{Bell, model};

/// Waits for a slot.
fn wait(slots: &Slots) -> u32 {
    let ((bell, waker), mut ticket) = (Bell::new(), None);
    loop {
        match slots.poll(&mut ticket, &Context::from_waker(&waker)) {
            Poll::Ready(slot) => return slot,
            Poll::Pending => bell.sleep(),
        }
    }
}

#[test]
fn returned_slot_ends_a_wait_that_begins_meanwhile() {
    model(|| {
        let slots = Arc::new(Slots::new(1));
        let slot = slots.take().unwrap();
        let other = {
            let slots = Arc::clone(&slots);
            thread::spawn(move || wait(&slots))
        };
        slots.put_back(slot);
        let slot = other.join().unwrap();
        assert_eq!(slots.take(), None);
        slots.put_back(slot);
        assert_eq!(slots.take(), Some(slot));
    });
}

#[test]
fn each_returned_slot_ends_one_wait() {
    model(|| {
        let slots = Arc::new(Slots::new(2));
        let taken = [slots.take().unwrap(), slots.take().unwrap()];
        let other = {
            let slots = Arc::clone(&slots);
            thread::spawn(move || wait(&slots))
        };
        let returns = {
            let slots = Arc::clone(&slots);
            thread::spawn(move || taken.into_iter().for_each(|slot| slots.put_back(slot)))
        };
        let mut held = [wait(&slots), other.join().unwrap()];
        returns.join().unwrap();
        held.sort_unstable();
        assert_eq!((held, slots.take()), ([0, 1], None));
    });
}

#[test]
fn slot_of_a_cancelled_wait_ends_the_next_one() {
    model(|| {
        let slots = Arc::new(Slots::new(1));
        let slot = slots.take().unwrap();
        let ((_, waker), mut ticket) = (Bell::new(), None);
        assert!(slots.poll(&mut ticket, &Context::from_waker(&waker)).is_pending());
        let next = {
            let slots = Arc::clone(&slots);
            thread::spawn(move || wait(&slots))
        };
        let returns = {
            let slots = Arc::clone(&slots);
            thread::spawn(move || slots.put_back(slot))
        };
        slots.cancel(ticket.unwrap());
        returns.join().unwrap();
        assert_eq!((next.join().unwrap(), slots.take()), (slot, None));
    });
}

#[test]
fn slot_is_free_after_the_last_wait_was_cancelled() {
    model(|| {
        let slots = Arc::new(Slots::new(1));
        let slot = slots.take().unwrap();
        let ((_, waker), mut ticket) = (Bell::new(), None);
        assert!(slots.poll(&mut ticket, &Context::from_waker(&waker)).is_pending());
        let returns = {
            let slots = Arc::clone(&slots);
            thread::spawn(move || slots.put_back(slot))
        };
        slots.cancel(ticket.unwrap());
        returns.join().unwrap();
        assert_eq!(slots.take(), Some(slot));
    });
}
