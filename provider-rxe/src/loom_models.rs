//! Models of the doorbell between user space and the requester, for `cargo xtask loom`.
//!
//! They are small copies of the kernel's loops (`rxe_task.c`, `rxe_req.c`, `rxe_comp.c`), not the
//! product's code. They show whether a doorbell may be omitted while an earlier request has not been
//! taken: docs/research/doorbell-elision.md.

use std::sync::Arc as StdArc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use loom::sync::atomic::Ordering::{Acquire, Release, SeqCst};
use loom::sync::atomic::{AtomicU32, fence};
use loom::sync::{Arc, Mutex};
use loom::thread;

/// `wqe_state_posted`.
const POSTED: u32 = 0;
/// `wqe_state_pending`: the requester has sent the request.
const PENDING: u32 = 2;

/// The states of a task that matter here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    Idle,
    Busy,
    Armed,
}

/// What the task does with requests.
#[derive(Clone, Copy, Debug)]
enum Pass {
    /// RTS: sends each request and marks its slot.
    Send,
    /// ERR: flushes each request. Its slot keeps its state.
    Flush,
}

/// When user space omits the doorbell.
#[derive(Clone, Copy, Debug)]
enum Rule {
    Never,
    /// The earlier slot is in state `posted`.
    SlotPosted,
    /// It is, and the consumer index has not passed it.
    SlotPostedAndOutstanding,
}

/// A send queue and the requester's task. Request 0 is published, and its doorbell was rung.
struct Queue {
    producer: AtomicU32,
    consumer: AtomicU32,
    /// The state of slot 0.
    slot: AtomicU32,
    task: Mutex<Task>,
    pass: Pass,
    /// Whether a full barrier follows each store of the kernel.
    full_barrier: bool,
}

impl Queue {
    /// `rxe_sched_task`: whether the task has to be started.
    fn ring(&self) -> bool {
        let mut task = self.task.lock().expect("no thread panics");
        let idle = *task == Task::Idle;
        *task = if idle { Task::Busy } else { Task::Armed };
        idle
    }

    /// `do_task`: passes until one finds nothing and no doorbell was rung since. Returns the index of
    /// the next request.
    fn run(&self, mut next: u32) -> u32 {
        loop {
            while self.producer.load(Acquire) != next {
                match self.pass {
                    Pass::Send if next == 0 => {
                        self.slot.store(PENDING, loom::sync::atomic::Ordering::Relaxed)
                    }
                    Pass::Send => {}
                    Pass::Flush => self.consumer.store(next + 1, Release),
                }
                next += 1;
                if self.full_barrier {
                    fence(SeqCst);
                }
            }
            let mut task = self.task.lock().expect("no thread panics");
            if *task == Task::Busy {
                *task = Task::Idle;
                return next;
            }
            *task = Task::Busy;
        }
    }

    /// Publishes request 1. Returns whether the task has to be started.
    fn post(&self, rule: Rule) -> bool {
        self.producer.store(2, Release);
        fence(SeqCst);
        let posted = self.slot.load(Acquire) == POSTED;
        let outstanding = self.consumer.load(Acquire) == 0;
        let omit = match rule {
            Rule::Never => false,
            Rule::SlotPosted => posted,
            Rule::SlotPostedAndOutstanding => posted && outstanding,
        };
        !omit && self.ring()
    }
}

/// Whether the task misses request 1 in any order.
fn wakeup_is_lost(pass: Pass, full_barrier: bool, rule: Rule) -> bool {
    let lost = StdArc::new(AtomicBool::new(false));
    let found = StdArc::clone(&lost);
    loom::model(move || {
        let queue = Arc::new(Queue {
            producer: AtomicU32::new(1),
            consumer: AtomicU32::new(0),
            slot: AtomicU32::new(POSTED),
            task: Mutex::new(Task::Busy),
            pass,
            full_barrier,
        });
        let kernel = Arc::clone(&queue);
        let worker = thread::spawn(move || kernel.run(0));
        let started = queue.post(rule);
        let mut next = worker.join().expect("no thread panics");
        if started {
            next = queue.run(next);
        }
        if next != 2 {
            lost.store(true, Relaxed);
        }
    });
    found.load(Relaxed)
}

#[test]
fn loom_doorbell_elision_in_rts_needs_a_full_barrier_of_the_kernel() {
    assert!(!wakeup_is_lost(Pass::Send, true, Rule::SlotPosted));
    assert!(wakeup_is_lost(Pass::Send, false, Rule::SlotPosted));
}

#[test]
fn loom_doorbell_elision_in_err_loses_requests_behind_a_flushed_slot() {
    assert!(wakeup_is_lost(Pass::Flush, true, Rule::SlotPosted));
}

#[test]
fn loom_doorbell_elision_in_err_by_the_consumer_index_needs_a_full_barrier_of_the_kernel() {
    assert!(!wakeup_is_lost(Pass::Flush, true, Rule::SlotPostedAndOutstanding));
    assert!(wakeup_is_lost(Pass::Flush, false, Rule::SlotPostedAndOutstanding));
}

#[test]
fn loom_rung_doorbells_are_never_lost() {
    for pass in [Pass::Send, Pass::Flush] {
        assert!(!wakeup_is_lost(pass, false, Rule::Never));
    }
}
