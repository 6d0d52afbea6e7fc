//! Models of the table and of the choice of the leader, for `cargo xtask loom`.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use loom::thread;

use super::election::{DriverKind, Election};
use super::table::{Reaped, Table};
use crate::sync::loom_models::{Bell, model};
use crate::sync::{Mutex, lock};

/// Awaits the operation.
fn wait<T, R: Copy>(table: &Table<T, R>, wr_id: u64) -> (T, R) {
    let (bell, waker) = Bell::new();
    loop {
        match table.poll(wr_id, &Context::from_waker(&waker)) {
            Poll::Ready(result) => return result.expect("the operation is awaited once"),
            Poll::Pending => bell.sleep(),
        }
    }
}

fn complete<T>(table: &Table<T, u32>, wr_id: u64, result: u32) -> Option<T> {
    match table.complete(wr_id, result) {
        Reaped::Waiting(waker) => {
            waker.into_iter().for_each(Waker::wake);
            None
        }
        Reaped::Detached(operation) => Some(operation),
        Reaped::Unknown => panic!("the operation is in flight"),
    }
}

#[test]
fn completion_wakes_a_task_that_registers_meanwhile() {
    model(|| {
        let table = Arc::new(Table::new(1));
        let wr_id = table.insert(0, "operation");
        let reaper = {
            let table = Arc::clone(&table);
            thread::spawn(move || assert!(complete(&table, wr_id, 7).is_none()))
        };
        assert_eq!(wait(&table, wr_id), ("operation", 7));
        reaper.join().unwrap();
    });
}

#[test]
fn buffer_of_a_detached_operation_is_returned_once() {
    model(|| {
        let table = Arc::new(Table::new(1));
        let wr_id = table.insert(0, "buffer");
        let reaper = {
            let table = Arc::clone(&table);
            thread::spawn(move || complete(&table, wr_id, 7))
        };
        let detached = table.detach(wr_id);
        let reaped = reaper.join().unwrap();
        assert!(detached.is_some() != reaped.is_some());
        // The slot is free.
        table.insert(0, "next");
    });
}

#[test]
fn late_completion_ends_no_later_operation_of_the_slot() {
    model(|| {
        let table = Arc::new(Table::new(1));
        let first = table.insert(0, 1);
        assert!(complete(&table, first, 1).is_none());
        let repeats = {
            let table = Arc::clone(&table);
            thread::spawn(move || assert!(matches!(table.complete(first, 9), Reaped::Unknown)))
        };
        assert_eq!(wait(&table, first), (1, 1));
        let second = table.insert(0, 2);
        repeats.join().unwrap();
        assert!(complete(&table, second, 2).is_none());
        assert_eq!(wait(&table, second), (2, 2));
    });
}

#[test]
fn retired_slot_returns_its_buffer_once() {
    model(|| {
        let table = Arc::new(Table::new(1));
        let wr_id = table.insert(0, "buffer");
        assert!(table.detach(wr_id).is_none());
        let reaper = {
            let table = Arc::clone(&table);
            thread::spawn(move || matches!(table.complete(wr_id, ()), Reaped::Detached(..)))
        };
        let abandoned = table.abandon(0).is_some();
        assert!(abandoned != reaper.join().unwrap());
    });
}

/// Sleeps until it leads, then leaves.
fn lead_once(election: &Election) {
    let (bell, waker) = Bell::new();
    let id = election.join(&waker);
    while !election.leads(id) {
        bell.sleep();
    }
    if let Some(next) = election.leave(id) {
        next.wake();
    }
}

#[test]
fn leaving_leader_wakes_a_follower() {
    model(|| {
        let election = Arc::new(Election::new(2));
        let other = {
            let election = Arc::clone(&election);
            thread::spawn(move || lead_once(&election))
        };
        lead_once(&election);
        other.join().unwrap();
    });
}

#[test]
fn appointed_follower_that_leaves_appoints_another() {
    model(|| {
        let election = Arc::new(Election::new(2));
        let (_, waker) = Bell::new();
        let leader = election.join(&waker);
        let hasty = {
            let election = Arc::clone(&election);
            // It leaves at its time limit without looking whether it leads.
            thread::spawn(move || {
                let (_, waker) = Bell::new();
                let id = election.join(&waker);
                if let Some(next) = election.leave(id) {
                    next.wake();
                }
            })
        };
        let patient = {
            let election = Arc::clone(&election);
            thread::spawn(move || lead_once(&election))
        };
        if let Some(next) = election.leave(leader) {
            next.wake();
        }
        hasty.join().unwrap();
        patient.join().unwrap();
    });
}

#[test]
fn thread_that_joins_leads_after_the_driver_was_dropped() {
    model(|| {
        let election = Arc::new(Election::new(2));
        assert!(election.attach_driver(DriverKind::Thread));
        let driver = {
            let election = Arc::clone(&election);
            thread::spawn(move || {
                if let Some(next) = election.detach_driver() {
                    next.wake();
                }
            })
        };
        lead_once(&election);
        driver.join().unwrap();
    });
}

/// A CQ whose armed state raises one event.
#[derive(Default)]
struct ModelCq {
    completions: Vec<u64>,
    armed: bool,
    event: bool,
    /// Who sleeps on the descriptor of events.
    sleepers: Vec<Waker>,
}

struct ModelHub {
    table: Table<(), u32>,
    election: Election,
    /// Stands for the lock of the reaper and for the device's CQ.
    cq: Mutex<ModelCq>,
}

impl ModelHub {
    fn new() -> Self {
        Self { table: Table::new(2), election: Election::new(2), cq: Mutex::new(ModelCq::default()) }
    }

    /// What the device does.
    fn device(&self, wr_id: u64) {
        let sleepers = {
            let mut cq = lock(&self.cq);
            cq.completions.push(wr_id);
            cq.event |= std::mem::take(&mut cq.armed);
            if cq.event { std::mem::take(&mut cq.sleepers) } else { Vec::new() }
        };
        sleepers.into_iter().for_each(Waker::wake);
    }

    /// As `HubInner::turn`.
    fn poll(&self) -> bool {
        let mut woken = Vec::new();
        let reaped = {
            let Some(mut cq) = self.cq.try_lock() else { return false };
            let taken = std::mem::take(&mut cq.completions);
            for wr_id in &taken {
                if let Reaped::Waiting(Some(waker)) = self.table.complete(*wr_id, 7) {
                    woken.push(waker);
                }
            }
            !taken.is_empty()
        };
        woken.into_iter().for_each(Waker::wake);
        reaped
    }

    /// As `HubInner::poll_own`, of an operation that was not polled before. Returns whether it was taken.
    fn poll_own(&self, wr_id: u64) -> bool {
        if let Some(mut cq) = self.cq.try_lock()
            && let Some(slot) = self.table.lock_posted(wr_id)
            && cq.completions.first() == Some(&wr_id)
        {
            cq.completions.remove(0);
            return slot.take().is_some();
        }
        self.poll();
        false
    }

    /// The arm protocol of `HubInner::arm` and `take_events`. Returns whether the caller may sleep.
    fn arm(&self, waker: &Waker) -> bool {
        let mut cq = lock(&self.cq);
        cq.event = false;
        if !cq.completions.is_empty() {
            return false;
        }
        cq.armed = true;
        cq.sleepers.push(waker.clone());
        true
    }

    /// As `Driver::poll`, until a task of the same thread has the result of an operation.
    fn drive(&self, wr_id: u64) {
        let (bell, waker) = Bell::new();
        let mut taken = self.poll_own(wr_id);
        while !taken {
            self.election.register_driver(&waker);
            taken = self.table.poll(wr_id, &Context::from_waker(&waker)).is_ready();
            if !taken && !self.poll() && self.arm(&waker) {
                bell.sleep();
            }
        }
        if let Some(next) = self.election.detach_driver() {
            next.wake();
        }
    }

    /// As `HubInner::block_on`.
    fn wait(&self, wr_id: u64) {
        if self.poll_own(wr_id) {
            return;
        }
        let (bell, waker) = Bell::new();
        let mut id = None;
        loop {
            if self.table.poll(wr_id, &Context::from_waker(&waker)).is_ready() {
                break;
            }
            if self.poll() {
                continue;
            }
            let id = *id.get_or_insert_with(|| self.election.join(&waker));
            if !self.election.leads(id) {
                bell.sleep();
                continue;
            }
            if self.arm(&waker) {
                bell.sleep();
            }
        }
        if let Some(id) = id
            && let Some(next) = self.election.leave(id)
        {
            next.wake();
        }
    }
}

#[test]
fn blocked_threads_get_their_results_without_a_driver() {
    model(|| {
        let hub = Arc::new(ModelHub::new());
        let ids = [hub.table.insert(0, ()), hub.table.insert(1, ())];
        let other = {
            let hub = Arc::clone(&hub);
            thread::spawn(move || hub.wait(ids[1]))
        };
        let device = {
            let hub = Arc::clone(&hub);
            thread::spawn(move || ids.into_iter().for_each(|id| hub.device(id)))
        };
        hub.wait(ids[0]);
        device.join().unwrap();
        other.join().unwrap();
    });
}

#[test]
fn blocked_thread_gets_its_result_if_the_task_of_the_driver_does_not_run() {
    model(|| {
        let hub = Arc::new(ModelHub::new());
        let wr_id = hub.table.insert(0, ());
        // It was polled once.
        let (_, driver) = Bell::new();
        assert!(hub.election.attach_driver(DriverKind::Task));
        hub.election.register_driver(&driver);
        assert!(hub.arm(&driver));
        let device = {
            let hub = Arc::clone(&hub);
            thread::spawn(move || hub.device(wr_id))
        };
        hub.wait(wr_id);
        device.join().unwrap();
    });
}

#[test]
fn driver_and_blocked_thread_get_their_results() {
    for kind in [DriverKind::Task, DriverKind::Thread] {
        model(move || {
            let hub = Arc::new(ModelHub::new());
            let ids = [hub.table.insert(0, ()), hub.table.insert(1, ())];
            assert!(hub.election.attach_driver(kind));
            let driver = {
                let hub = Arc::clone(&hub);
                thread::spawn(move || hub.drive(ids[1]))
            };
            let device = {
                let hub = Arc::clone(&hub);
                thread::spawn(move || ids.into_iter().for_each(|id| hub.device(id)))
            };
            hub.wait(ids[0]);
            device.join().unwrap();
            driver.join().unwrap();
        });
    }
}
