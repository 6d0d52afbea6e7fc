//! Handles that drop does not destroy, and queues that drop does not free.

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use bareverbs_provider::traits::RecvQueue;

/// Leaks the queue that the owner of an SRQ or WQ left, because the device may still use its ring. This
/// process no longer writes the memory of its receives.
pub(crate) fn leak_queue(orphan: &mut Mutex<Option<impl RecvQueue>>) {
    let queue = orphan.get_mut().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(mut queue) = queue.map(ManuallyDrop::new) {
        queue.abandon();
    }
}

/// Whether `into_handle` released the handle: drop does not destroy the kernel object.
#[derive(Debug, Default)]
pub(crate) struct Released(AtomicBool);

impl Released {
    pub(crate) fn set(&self) {
        self.0.store(true, Ordering::Release);
    }

    pub(crate) fn get(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}
