//! The tasks of the two halves of an endpoint.

use std::mem;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};

use bareverbs_provider::wake::wake_all;

use crate::owned::hub::reaper::Direction;
use crate::sync::{Mutex, lock};

/// The tasks that wait for the descriptor of the endpoint.
///
/// The runtime keeps one waker, that of the last task that has registered. If that task has stopped to
/// poll its half, the other one must be woken nevertheless. So both halves register the same waker,
/// which wakes both.
pub(super) struct HalfTasks {
    both: Arc<Both>,
    waker: Waker,
}

struct Both(Mutex<[Option<Waker>; 2]>);

impl HalfTasks {
    pub(super) fn new() -> Self {
        let both = Arc::new(Both(Mutex::new([None, None])));
        Self { waker: Waker::from(Arc::clone(&both)), both }
    }

    /// Registers the task of a half. Returns the waker for the runtime.
    pub(super) fn register(&self, direction: Direction, cx: &Context<'_>) -> &Waker {
        // Cloning and dropping a waker may run any code, so both are done without the lock.
        let waker = cx.waker().clone();
        let earlier = lock(&self.both.0)[direction as usize].replace(waker);
        drop(earlier);
        &self.waker
    }
}

impl Wake for Both {
    fn wake(self: Arc<Self>) {
        let wakers = mem::take(&mut *lock(&self.0));
        wake_all(wakers.into_iter().flatten());
    }
}
