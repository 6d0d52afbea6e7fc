//! The queues of a QP, each with a lock.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::mem;

use bareverbs::error::Refused;
use bareverbs::qp::{RecvHalf, SendHalf};
use bareverbs::untyped::{AnyTransport, QpCore};

use crate::lock::{Held, Lock};

/// A QP whose queues two threads use at the same time. Other calls lock both.
pub(crate) struct Queues {
    send: Lock,
    recv: Lock,
    /// Its send half is used with `send` locked, its receive half with `recv`, and the whole with both.
    core: UnsafeCell<QpCore>,
}

// SAFETY: the locks order the use of the halves and of the core, which may be sent to other threads. They
// are elided only if the program uses the object by one thread at a time.
unsafe impl Sync for Queues {}

/// The locked send queue.
pub(super) struct Sends<'q> {
    held: Held<'q>,
    core: *mut QpCore,
}

/// The locked receive queue.
pub(super) struct Receives<'q> {
    held: Held<'q>,
    core: *mut QpCore,
}

impl Queues {
    pub(super) fn new(core: QpCore, is_single_threaded: bool) -> Self {
        let lock = || Lock::new(is_single_threaded);
        Self { send: lock(), recv: lock(), core: UnsafeCell::new(core) }
    }

    /// As [`Lock::is_elided`], of both queues.
    #[inline(always)]
    pub(super) fn are_elided(&self) -> bool {
        self.send.is_elided()
    }

    pub(super) fn send(&self) -> Sends<'_> {
        Sends { held: self.send.lock(), core: self.core.get() }
    }

    /// As [`Queues::send`], unless another thread has locked it.
    #[inline(always)]
    pub(super) fn try_send(&self, is_elided: bool) -> Option<Sends<'_>> {
        Some(Sends { held: self.send.try_lock(is_elided)?, core: self.core.get() })
    }

    /// The send queue that [`Sends::leave_locked`] left.
    ///
    /// # Safety
    ///
    /// It was left locked, and no other value of it exists.
    #[inline(always)]
    pub(super) unsafe fn locked_send(&self) -> Sends<'_> {
        // SAFETY: by the contract.
        Sends { held: unsafe { Held::take_up(&self.send) }, core: self.core.get() }
    }

    pub(super) fn recv(&self) -> Receives<'_> {
        Receives { held: self.recv.lock(), core: self.core.get() }
    }

    /// As [`Queues::recv`], unless another thread has locked it.
    #[inline(always)]
    pub(super) fn try_recv(&self, is_elided: bool) -> Option<Receives<'_>> {
        Some(Receives { held: self.recv.try_lock(is_elided)?, core: self.core.get() })
    }

    /// The receive queue that [`Receives::leave_locked`] left.
    ///
    /// # Safety
    ///
    /// It was left locked, and no other value of it exists.
    #[inline(always)]
    pub(super) unsafe fn locked_recv(&self) -> Receives<'_> {
        // SAFETY: by the contract.
        Receives { held: unsafe { Held::take_up(&self.recv) }, core: self.core.get() }
    }

    /// Returns the number of events that were read. A refused QP keeps the state of its locks.
    #[expect(clippy::result_large_err, reason = "the error returns the object without an allocation")]
    pub(super) fn destroy(self) -> Result<u32, Refused<Self>> {
        let Self { send, recv, core } = self;
        let refused =
            |refused: Refused<QpCore>| refused.map(|core| Self { send, recv, core: UnsafeCell::new(core) });
        core.into_inner().destroy().map_err(refused)
    }

    /// The core of a QP that nothing else uses.
    pub(super) fn core(&mut self) -> &mut QpCore {
        self.core.get_mut()
    }

    /// Uses the core while no thread uses a half.
    pub(crate) fn with_core<R>(&self, call: impl FnOnce(&mut QpCore) -> R) -> R {
        let (_send, _recv) = (self.send.lock(), self.recv.lock());
        // SAFETY: both locks are held, so nothing else uses the core.
        call(unsafe { &mut *self.core.get() })
    }
}

impl Sends<'_> {
    #[inline(always)]
    pub(super) fn half(&mut self) -> SendHalf<'_, AnyTransport> {
        // SAFETY: the lock is held, so nothing else uses the send half. Both are needed for the whole.
        unsafe { QpCore::send_half(self.core) }
    }

    /// As [`Held::unlock_with`].
    #[inline(always)]
    pub(super) fn unlock_with(self, result: c_int) -> c_int {
        self.held.unlock_with(result)
    }

    /// Leaves the queue locked.
    #[inline(always)]
    pub(super) fn leave_locked(self) {
        mem::forget(self);
    }
}

impl Receives<'_> {
    /// As [`Held::unlock_with`].
    #[inline(always)]
    pub(super) fn unlock_with(self, result: c_int) -> c_int {
        self.held.unlock_with(result)
    }

    /// Leaves the queue locked.
    #[inline(always)]
    pub(super) fn leave_locked(self) {
        mem::forget(self);
    }

    #[inline(always)]
    pub(super) fn half(&mut self) -> RecvHalf<'_, AnyTransport> {
        // SAFETY: the lock is held, so nothing else uses the receive half. Both are needed for the whole.
        unsafe { QpCore::recv_half(self.core) }
    }
}
