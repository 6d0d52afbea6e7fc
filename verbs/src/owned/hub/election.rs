//! Election of the thread or task that waits for the events of a hub's CQ.
//!
//! Any thread or task may reap completions at any time. One of them waits for the events of the CQ
//! while the others sleep: the leader, one of the blocked threads. The other blocked threads are
//! followers. They sleep until their result is available or they become the leader. The hub's driver
//! waits as well.
//!
//! A driver that is a task runs only while its runtime has a thread for it. That thread may be the
//! blocked one, so blocked threads don't rely on a task. They rely on a driver that is a thread.

use std::task::Waker;

use crate::sync::{Mutex, lock};

/// The choice of the leader among blocked threads, and the presence of a driver.
///
/// | event | effect |
/// |---|---|
/// | a thread joins, and there is neither a leader nor a driver that is a thread | it leads |
/// | the leader leaves, and there is no driver that is a thread | a follower leads and is woken |
/// | the leader leaves, and no follower leads | the driver is woken, because the leader may have read its event |
/// | the driver leaves | a follower leads and is woken, unless a thread leads already |
///
/// The leader changes under the lock. A follower that was made the leader and leaves at that
/// moment, for example on a timeout, leaves as the leader.
pub(crate) struct Election {
    state: Mutex<State>,
}

struct State {
    driver: Option<Driver>,
    leader: Option<WaiterId>,
    followers: Vec<(WaiterId, Waker)>,
    next: u64,
}

struct Driver {
    kind: DriverKind,
    /// While it sleeps, or was polled and was not woken since.
    waker: Option<Waker>,
}

/// What polls a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DriverKind {
    Task,
    /// A thread of its own, which waits for events until the hub is dropped.
    Thread,
}

/// A blocked thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WaiterId(u64);

impl Election {
    /// `threads` threads can block without an allocation.
    pub(crate) fn new(threads: usize) -> Self {
        let followers = Vec::with_capacity(threads);
        Self { state: Mutex::new(State { driver: None, leader: None, followers, next: 0 }) }
    }

    /// Adds a thread that is about to sleep. `waker` wakes it.
    pub(crate) fn join(&self, waker: &Waker) -> WaiterId {
        let waker = waker.clone();
        let mut state = lock(&self.state);
        let id = WaiterId(state.next);
        state.next += 1;
        if state.leader.is_none() && !state.has_driver_thread() {
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
    pub(crate) fn attach_driver(&self, kind: DriverKind) -> bool {
        let mut state = lock(&self.state);
        let absent = state.driver.is_none();
        if absent {
            state.driver = Some(Driver { kind, waker: None });
        }
        absent
    }

    /// Whether there is a driver.
    pub(crate) fn has_driver(&self) -> bool {
        lock(&self.state).driver.is_some()
    }

    /// Registers the waker of the driver, which is about to sleep.
    pub(crate) fn register_driver(&self, waker: &Waker) {
        let known = match &lock(&self.state).driver {
            Some(Driver { waker: Some(known), .. }) => known.will_wake(waker),
            _ => false,
        };
        if !known {
            let mut waker = Some(waker.clone());
            if let Some(driver) = &mut lock(&self.state).driver {
                std::mem::swap(&mut driver.waker, &mut waker);
            }
            // The previous waker is dropped without the lock.
            drop(waker);
        }
    }

    /// Takes the waker of the driver, which registers it again when it sleeps the next time.
    #[must_use]
    pub(crate) fn driver(&self) -> Option<Waker> {
        lock(&self.state).take_driver_waker()
    }

    /// Removes the driver. The caller must wake the returned waker.
    #[must_use]
    pub(crate) fn detach_driver(&self) -> Option<Waker> {
        let mut state = lock(&self.state);
        let driver = state.driver.take();
        let appointed = if state.leader.is_none() { state.appoint() } else { None };
        drop(state);
        drop(driver);
        appointed
    }
}

impl State {
    fn has_driver_thread(&self) -> bool {
        matches!(self.driver, Some(Driver { kind: DriverKind::Thread, .. }))
    }

    fn take_driver_waker(&mut self) -> Option<Waker> {
        self.driver.as_mut()?.waker.take()
    }

    /// Makes a follower the leader, unless the driver is a thread. Returns the waker of the follower,
    /// or that of the driver.
    fn appoint(&mut self) -> Option<Waker> {
        if !self.has_driver_thread()
            && let Some((id, waker)) = self.followers.pop()
        {
            self.leader = Some(id);
            return Some(waker);
        }
        self.take_driver_waker()
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
    fn driver_that_is_a_task_leaves_a_thread_to_lead() {
        let election = Election::new(4);
        assert!(election.attach_driver(DriverKind::Task) && election.has_driver());
        election.register_driver(Waker::noop());
        let id = election.join(Waker::noop());
        assert!(election.leads(id));
        let follower = election.join(Waker::noop());
        assert!(!election.leads(follower));
        assert!(election.leave(id).is_some() && election.leads(follower));
        assert!(election.driver().is_some(), "the driver was not woken");
        election.register_driver(Waker::noop());
        assert!(election.leave(follower).is_some() && election.driver().is_none(), "the driver is woken");
    }

    #[test]
    fn driver_thread_is_woken_by_earlier_leader() {
        let election = Election::new(4);
        let id = election.join(Waker::noop());
        assert!(election.attach_driver(DriverKind::Thread));
        election.register_driver(Waker::noop());
        let follower = election.join(Waker::noop());
        assert!(election.leads(id) && !election.leads(follower));
        assert!(election.leave(id).is_some() && election.driver().is_none(), "the driver is woken");
        assert!(!election.leads(follower));
        assert!(election.detach_driver().is_some() && election.leads(follower));
    }

    proptest! {
        /// At most one thread leads. If threads sleep, the leader has observed its role or was
        /// woken, or there is a driver that is a thread.
        #[test]
        fn while_threads_sleep_one_leads_or_a_thread_drives(steps in prop::collection::vec(any::<(u8, prop::sample::Index)>(), 1..80)) {
            let election = Election::new(4);
            let mut threads: Vec<Thread> = Vec::new();
            let driver = Arc::new(Flag::default());
            let mut driven = None;
            for (step, which) in steps {
                match step % 6 {
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
                        let led_last = led && !threads.iter().any(|thread| election.leads(thread.id));
                        prop_assert_eq!(driver.0.load(Ordering::Relaxed), led_last && driven.is_some());
                        if driven.is_some() {
                            election.register_driver(&Waker::from(Arc::clone(&driver)));
                        }
                    }
                    3 | 5 => {
                        let kind = if step % 6 == 3 { DriverKind::Task } else { DriverKind::Thread };
                        prop_assert_eq!(election.attach_driver(kind), driven.is_none());
                        driven.get_or_insert(kind);
                        election.register_driver(&Waker::from(Arc::clone(&driver)));
                    }
                    4 if driven.is_some() => {
                        driven = None;
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
                prop_assert_eq!(election.has_driver(), driven.is_some());
                let leaders = threads.iter().filter(|thread| election.leads(thread.id)).count();
                let aware = threads.iter().filter(|thread| thread.leads).count();
                prop_assert_eq!(leaders, aware, "each leader knows that it leads");
                let relied_on = driven == Some(DriverKind::Thread);
                prop_assert!(leaders == 1 || leaders == 0 && (relied_on || threads.is_empty()));
            }
        }
    }
}
