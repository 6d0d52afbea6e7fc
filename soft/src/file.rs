//! A context: the ioctls, write commands and mappings of one open device.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bareverbs_provider::Errno;
use bareverbs_provider::device::{Backend, BeforeWait};
use bareverbs_provider::mapping::Mapping;
use bareverbs_uapi::uverbs::ObjectClass;
use bareverbs_uapi::verbs_values::EventType;
use rustix::event::{EventfdFlags, eventfd};

use crate::call::Call;
use crate::methods;
use crate::methods::command;
use crate::objects::{ContextState, Resources, Transaction};
use crate::port::Port;
use crate::sys::lock;

/// An open device.
pub(crate) struct Context {
    /// `None` after a panic has left it in an unknown state.
    state: Mutex<Option<ContextState>>,
    /// That of the state.
    has_unsent: Arc<AtomicBool>,
    port: Arc<Port>,
    fd: OwnedFd,
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("fd", &self.fd).finish_non_exhaustive()
    }
}

impl Context {
    /// # Errors
    ///
    /// `EMFILE`, `ENFILE`, `ENOMEM`.
    pub(crate) fn new(port: Arc<Port>) -> Result<Self, Errno> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC)?;
        let state = ContextState::new(Arc::clone(&port));
        let has_unsent = Arc::clone(&state.has_unsent);
        Ok(Self { state: Mutex::new(Some(state)), has_unsent, port, fd })
    }

    /// Calls `f`. After a panic, this and all later calls are `EIO`.
    fn with<R>(&self, f: impl FnOnce(&mut ContextState) -> Result<R, Errno>) -> Result<R, Errno> {
        // A panic is caught while the lock is held.
        let mut place = lock(&self.state);
        let state = place.as_mut().ok_or(Errno::IO)?;
        state.send_unsent();
        match catch_unwind(AssertUnwindSafe(|| f(state))) {
            Ok(result) => result,
            Err(_) => {
                // Its objects stay: their memory may be in use.
                std::mem::forget(place.take());
                Err(Errno::IO)
            }
        }
    }

    /// Adds the numbers of objects.
    pub(crate) fn count(&self, all: &mut Resources) {
        let _ = self.with(|state| {
            let count = |class| state.handles(class).len();
            all.contexts += usize::from(state.has_context);
            all.pds += count(ObjectClass::PD);
            all.cqs += count(ObjectClass::CQ);
            all.qps += count(ObjectClass::QP);
            all.srqs += count(ObjectClass::SRQ);
            all.mrs += count(ObjectClass::MR);
            Ok(())
        });
    }

    /// Raises an asynchronous event of the device or its port.
    pub(crate) fn raise(&self, event: EventType) {
        let _ = self.with(|state| {
            state.raise(event);
            Ok(())
        });
    }

    /// Reports the removal of the device. Handles last until their destruction, as in the kernel.
    pub(crate) fn end(&self) {
        let _ = self.with(|state| {
            state.end();
            Ok(())
        });
    }
}

// SAFETY:
// 1. Calls copy by `user`, which the kernel checks. Registered memory and queues are the engine's.
// 2. Descriptors in responses are new sockets, given away by `Transaction::finish`.
// 3. `ContextState::reserve` returns handles that are free.
// 4. `ContextState::take_ring` gives out a queue's memory once.
// 5. `Transaction::finish` undoes creations that fail, `ContextState::destroy` keeps an object after
//    an error, and the engine doesn't read the queue if it refuses a doorbell with `EINVAL`.
// 6. Destroyed objects are destroyed in the engine, under the fabric's lock. The removal of a device
//    drops the engine under that lock before the port counts as removed.
// 7. `Context::with` catches panics.
// 8. A device withholds completions while the memory of packets is to be copied (`EnginePort::post`).
unsafe impl Backend for Context {
    unsafe fn ioctl(&self, bytes: &mut [u8]) -> Result<(), Errno> {
        self.with(|state| {
            let mut call = Call::new(bytes)?;
            if state.port.is_removed() && !call.may_destroy() {
                return Err(Errno::IO);
            }
            let mut txn = Transaction::new(state);
            let result = call.parse(&mut txn).and_then(|()| methods::execute(&mut txn, &mut call));
            txn.finish(result)
        })
    }

    unsafe fn write(&self, bytes: &[u8]) -> Result<(), Errno> {
        self.with(|state| {
            let mut txn = Transaction::new(state);
            let result = command::write(&mut txn, bytes);
            txn.finish(result)
        })
    }

    fn map(&self, offset: u64, len: usize) -> Result<Arc<Mapping>, Errno> {
        self.with(|state| state.take_ring(offset, len))
    }

    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn before_wait(
        &self,
        end: Option<Instant>,
        alarm: Option<Duration>,
        is_ready: &dyn Fn() -> bool,
    ) -> Result<BeforeWait, Errno> {
        if self.has_unsent.load(Ordering::Relaxed) {
            let _ = self.with(|_| Ok(()));
        }
        self.port.fabric().before_wait(end, alarm, is_ready)
    }

    fn virtual_now(&self) -> Option<Duration> {
        let fabric = self.port.fabric();
        fabric.has_virtual_time().then(|| fabric.now())
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        let _ = self.with(|state| {
            state.clear();
            Ok(())
        });
    }
}
