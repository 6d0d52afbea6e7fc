//! Election of the thread or task that waits for the events of a hub's CQ.
//!
//! Any thread or task may reap completions at any time. One of them waits for the events of the CQ
//! while the others sleep: the hub's driver if there is one, else the leader, one of the blocked
//! threads. The other blocked threads are followers. They sleep until their result is available or
//! they become the leader.

use std::task::Waker;

use crate::sync::{Mutex, lock};

/// The choice of the leader among blocked threads, and the presence of a driver.
///
/// | event | effect |
/// |---|---|
/// | a thread joins, and there is neither a driver that was polled nor a leader | it leads |
/// | the leader leaves, and there is no driver | a follower leads and is woken |
/// | the leader leaves, and there is a driver | the driver is woken, because the leader may have read its event |
/// | the driver leaves | a follower leads and is woken, unless a thread leads already |
///
/// The leader changes under the lock. A follower that was made the leader and leaves at that
/// moment, for example on a timeout, leaves as the leader.
pub(crate) struct Election {
    state: Mutex<State>,
}

struct State {
    driver: Driver,
    leader: Option<WaiterId>,
    followers: Vec<(WaiterId, Waker)>,
    next: u64,
}

enum Driver {
    Absent,
    /// It was never polled: blocked threads do not rely on it.
    Unpolled,
    /// With the waker of its task, if it has been polled.
    Present(Option<Waker>),
}

impl Driver {
    fn take(&mut self) -> Option<Waker> {
        match self {
            Self::Present(waker) => waker.take(),
            Self::Absent | Self::Unpolled => None,
        }
    }

    /// Whether it waits for events, or will.
    fn runs(&self) -> bool {
        matches!(self, Self::Present(_))
    }
}

/// A blocked thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WaiterId(u64);

impl Election {
    /// `threads` threads can block without an allocation.
    pub(crate) fn new(threads: usize) -> Self {
        let followers = Vec::with_capacity(threads);
        Self { state: Mutex::new(State { driver: Driver::Absent, leader: None, followers, next: 0 }) }
    }

    /// Adds a thread that is about to sleep. `waker` wakes it.
    pub(crate) fn join(&self, waker: &Waker) -> WaiterId {
        let waker = waker.clone();
        let mut state = lock(&self.state);
        let id = WaiterId(state.next);
        state.next += 1;
        if state.leader.is_none() && !state.driver.runs() {
            state.leader = Some(id);
        } else {
            state.followers.push((id, waker));
        }
        id
    }

    /// Whether the thread waits for events.
    pub(crate) fn leads(&self, id: WaiterId) -> bool {
        lock(&self.state).leader == Some(id)
    }

    /// Removes a thread. The caller must wake the returned waker.
    #[must_use]
    pub(crate) fn leave(&self, id: WaiterId) -> Option<Waker> {
        let mut state = lock(&self.state);
        if state.leader == Some(id) {
            state.leader = None;
            return state.appoint();
        }
        let at = state.followers.iter().position(|(other, _)| *other == id);
        let own = at.map(|at| state.followers.swap_remove(at));
        drop(state);
        // The waker is dropped without the lock.
        drop(own);
        None
    }

    /// Makes the caller the driver. `false` if there is one.
    #[must_use]
    pub(crate) fn attach_driver(&self) -> bool {
        let mut state = lock(&self.state);
        let absent = matches!(state.driver, Driver::Absent);
        if absent {
            state.driver = Driver::Unpolled;
        }
        absent
    }

    /// Whether there is a driver.
    pub(crate) fn has_driver(&self) -> bool {
        !matches!(lock(&self.state).driver, Driver::Absent)
    }

    /// Registers the waker of the driver, which is about to sleep.
    pub(crate) fn register_driver(&self, waker: &Waker) {
        let known = match &lock(&self.state).driver {
            Driver::Present(Some(known)) => known.will_wake(waker),
            _ => false,
        };
        if !known {
            let waker = waker.clone();
            let previous = std::mem::replace(&mut lock(&self.state).driver, Driver::Present(Some(waker)));
            // The previous waker is dropped without the lock.
            drop(previous);
        }
    }

    /// Takes the waker of the driver, which registers it again when it sleeps the next time.
    #[must_use]
    pub(crate) fn driver(&self) -> Option<Waker> {
        lock(&self.state).driver.take()
    }

    /// Removes the driver. The caller must wake the returned waker.
    #[must_use]
    pub(crate) fn detach_driver(&self) -> Option<Waker> {
        let mut state = lock(&self.state);
        let driver = std::mem::replace(&mut state.driver, Driver::Absent);
        let appointed = if state.leader.is_none() { state.appoint() } else { None };
        drop(state);
        drop(driver);
        appointed
    }
}

impl State {
    /// Makes a follower the leader if there is neither a driver nor a leader. Returns its waker.
    fn appoint(&mut self) -> Option<Waker> {
        if self.driver.runs() {
            return self.driver.take();
        }
        let (id, waker) = self.followers.pop()?;
        self.leader = Some(id);
        Some(waker)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::task::Wake;

    use proptest::prelude::*;

    use super::*;

    #[derive(Default)]
    struct Flag(AtomicBool);

    impl Wake for Flag {
        fn wake(self: Arc<Self>) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    struct Thread {
        id: WaiterId,
        flag: Arc<Flag>,
        /// Whether it has observed that it leads.
        leads: bool,
    }

    #[test]
    fn driver_that_was_never_polled_leaves_a_thread_to_lead() {
        let election = Election::new(4);
        assert!(election.attach_driver() && election.has_driver());
        let id = election.join(Waker::noop());
        assert!(election.leads(id));
        election.register_driver(Waker::noop());
        let follower = election.join(Waker::noop());
        assert!(!election.leads(follower));
        assert!(election.leave(id).is_some(), "the driver is woken");
    }

    proptest! {
        /// At most one thread leads. If threads sleep, the leader has observed its role or was
        /// woken, or there is a driver.
        #[test]
        fn while_threads_sleep_one_leads_or_there_is_a_driver(steps in prop::collection::vec(any::<(u8, prop::sample::Index)>(), 1..80)) {
            let election = Election::new(4);
            let mut threads: Vec<Thread> = Vec::new();
            let driver = Arc::new(Flag::default());
            let mut driven = false;
            for (step, which) in steps {
                match step % 5 {
                    0 | 1 => {
                        let flag = Arc::new(Flag::default());
                        let id = election.join(&Waker::from(Arc::clone(&flag)));
                        threads.push(Thread { id, flag, leads: election.leads(id) });
                    }
                    2 if !threads.is_empty() => {
                        // Also one that was appointed and has not noticed.
                        let left = threads.swap_remove(which.index(threads.len()));
                        let led = election.leads(left.id);
                        driver.0.store(false, Ordering::Relaxed);
                        if let Some(waker) = election.leave(left.id) {
                            prop_assert!(led);
                            waker.wake();
                        }
                        // The leader may have read the driver's event.
                        prop_assert_eq!(driver.0.load(Ordering::Relaxed), led && driven);
                        if driven {
                            election.register_driver(&Waker::from(Arc::clone(&driver)));
                        }
                    }
                    3 => {
                        prop_assert_eq!(election.attach_driver(), !driven);
                        driven = true;
                        election.register_driver(&Waker::from(Arc::clone(&driver)));
                    }
                    4 if driven => {
                        driven = false;
                        if let Some(waker) = election.detach_driver() {
                            waker.wake();
                        }
                    }
                    _ => {}
                }
                for thread in &mut threads {
                    if thread.flag.0.swap(false, Ordering::Relaxed) {
                        thread.leads = election.leads(thread.id);
                    }
                }
                prop_assert_eq!(election.has_driver(), driven);
                let leaders = threads.iter().filter(|thread| election.leads(thread.id)).count();
                let aware = threads.iter().filter(|thread| thread.leads).count();
                prop_assert_eq!(leaders, aware, "each leader knows that it leads");
                prop_assert!(leaders == 1 || leaders == 0 && (driven || threads.is_empty()));
            }
        }
    }
}
