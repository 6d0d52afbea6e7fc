//! Models of the waits for a slot, for `cargo xtask loom`.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use loom::sync::atomic::{AtomicBool, Ordering};
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

/// The wakers are taken after an end is set, which the waits observe after they have registered theirs.
#[test]
fn wait_observes_an_end_or_is_woken_for_it() {
    model(|| {
        let (slots, ended) = (Arc::new(Slots::new(1)), Arc::new(AtomicBool::new(false)));
        let slot = slots.take().unwrap();
        let other = {
            let (slots, ended) = (Arc::clone(&slots), Arc::clone(&ended));
            thread::spawn(move || {
                let ((bell, waker), mut ticket) = (Bell::new(), None);
                loop {
                    let polled = slots.poll(&mut ticket, &Context::from_waker(&waker));
                    if let Poll::Ready(slot) = polled {
                        return Some(slot);
                    }
                    if ended.load(Ordering::Acquire) {
                        slots.cancel(ticket.unwrap());
                        return None;
                    }
                    bell.sleep();
                }
            })
        };
        ended.store(true, Ordering::Release);
        slots.take_wakers().into_iter().for_each(Waker::wake);
        slots.put_back(slot);
        let taken = other.join().unwrap();
        assert_eq!(slots.take().or(taken), Some(slot));
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
