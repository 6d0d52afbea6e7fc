//! The queues of a QP, each with a lock.

use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard};

use bareverbs::qp::{RecvHalf, SendHalf};
use bareverbs::untyped::{AnyTransport, QpCore};

use crate::object::{Holder, lock};

pub(super) type Send = SendHalf<'static, AnyTransport>;
type Recv = RecvHalf<'static, AnyTransport>;

/// A QP whose halves two threads use at the same time. Other calls lock both halves.
pub(crate) struct Queues {
    /// From a box, and borrowed by both halves. A half is used with its lock held only, and the core
    /// with both.
    core: NonNull<QpCore>,
    send: Mutex<Send>,
    recv: Mutex<Recv>,
}

// SAFETY: the core and its halves may be sent to other threads, and the locks order their use.
unsafe impl std::marker::Send for Queues {}
// SAFETY: as for `Send`.
unsafe impl Sync for Queues {}

impl Queues {
    pub(crate) fn send(&self) -> MutexGuard<'_, Send> {
        lock(&self.send)
    }

    pub(crate) fn recv(&self) -> MutexGuard<'_, Recv> {
        lock(&self.recv)
    }

    /// Uses the core while no thread uses a half.
    pub(crate) fn with_core<R>(&self, call: impl FnOnce(&mut QpCore) -> R) -> R {
        let (mut send, mut recv) = (self.send(), self.recv());
        // SAFETY: both locks are held, so nothing else uses the core. The halves are not used until they
        // are replaced: the old ones end where the core is borrowed.
        unsafe {
            let result = call(&mut *self.core.as_ptr());
            (*send, *recv) = split(self.core);
            result
        }
    }
}

impl Holder<QpCore> for Queues {
    fn of_value(core: QpCore) -> Self {
        let core = NonNull::from(Box::leak(Box::new(core)));
        // SAFETY: nothing else uses the core, which exists as long as the halves.
        let (send, recv) = unsafe { split(core) };
        Self { core, send: Mutex::new(send), recv: Mutex::new(recv) }
    }

    fn into_value(self) -> QpCore {
        // SAFETY: `of_value` leaked the box. The halves are not used again.
        *unsafe { Box::from_raw(self.core.as_ptr()) }
    }
}

/// # Safety
///
/// The core exists as long as the halves, and nothing else uses it while they are used.
unsafe fn split(core: NonNull<QpCore>) -> (Send, Recv) {
    // SAFETY: by the contract.
    unsafe { &mut *core.as_ptr() }.split()
}
