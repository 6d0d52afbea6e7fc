//! The free slots of a pool, and the tasks that wait for one.

use std::collections::VecDeque;
use std::mem;
use std::task::{Context, Poll, Waker};

use bareverbs_provider::free_list::FreeList;
use bareverbs_provider::wake::wake_all;

use crate::sync::{Mutex, lock};

/// The slots of a pool that no buffer has.
///
/// While a task waits, the list is empty and [marked](FreeList::mark). A slot that is returned goes to
/// the task that has waited longest, so no later caller gets it. Without a waiting task, taking and
/// returning a slot does not lock.
pub(super) struct Slots {
    free: FreeList,
    waiting: Mutex<Waiting>,
}

/// The tasks that wait, the oldest first. The list is marked exactly if one of them has no slot.
struct Waiting {
    next: u64,
    tasks: VecDeque<Task>,
}

struct Task {
    ticket: u64,
    waker: Waker,
    /// The slot that it was given.
    slot: Option<u32>,
}

/// The place of a task among those that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Ticket(u64);

impl Waiting {
    fn find(&self, Ticket(ticket): Ticket) -> Option<usize> {
        // Tickets are in ascending order.
        self.tasks.binary_search_by_key(&ticket, |task| task.ticket).ok()
    }

    fn has_task_without_slot(&self) -> bool {
        self.tasks.iter().any(|task| task.slot.is_none())
    }
}

impl Slots {
    pub(super) fn new(count: usize) -> Self {
        Self::of(FreeList::new(count))
    }

    /// Slots of which none is free, and which [`try_put_back`](Self::try_put_back) refuses.
    pub(super) fn refusing(count: usize) -> Self {
        let free = FreeList::all_taken(count);
        let marked = free.mark();
        debug_assert!(marked, "it has no slot");
        Self::of(free)
    }

    fn of(free: FreeList) -> Self {
        let waiting = Waiting { next: 0, tasks: VecDeque::new() };
        Self { free, waiting: Mutex::new(waiting) }
    }

    pub(super) fn capacity(&self) -> usize {
        self.free.capacity()
    }

    /// Takes a free slot. `None` if there is none, also if tasks wait.
    #[inline]
    pub(super) fn take(&self) -> Option<u32> {
        self.free.take()
    }

    /// Returns a slot that was taken.
    #[inline]
    pub(super) fn put_back(&self, slot: u32) {
        if !self.try_put_back(slot) {
            self.hand_over(slot);
        }
    }

    /// Returns a slot that was taken, unless tasks wait. `false`: the caller must call
    /// [`hand_over`](Self::hand_over).
    #[inline]
    pub(super) fn try_put_back(&self, slot: u32) -> bool {
        self.free.put_back(slot)
    }

    /// Gives a slot that the marked list refused to the oldest task without one.
    #[cold]
    pub(super) fn hand_over(&self, slot: u32) {
        let mut waiting = lock(&self.waiting);
        let waker = match waiting.tasks.iter_mut().find(|task| task.slot.is_none()) {
            Some(task) => {
                task.slot = Some(slot);
                Some(mem::replace(&mut task.waker, Waker::noop().clone()))
            }
            None => None,
        };
        if !waiting.has_task_without_slot() {
            self.free.unmark();
        }
        // The tasks may have gone since the list refused the slot. Only the holder of the lock marks it.
        let put_back = waker.is_some() || self.free.put_back(slot);
        debug_assert!(put_back, "an unmarked list accepts slots");
        drop(waiting);
        // The slot is not lost if the waker panics.
        wake_all(waker);
    }

    /// Takes a slot, or registers the waker of `cx`. The first call of a task that has to wait fills
    /// `ticket`. The call that returns the slot empties it.
    pub(super) fn poll(&self, ticket: &mut Option<Ticket>, cx: &Context<'_>) -> Poll<u32> {
        if ticket.is_none()
            && let Some(slot) = self.take()
        {
            return Poll::Ready(slot);
        }
        // Cloning and dropping a waker may run any code, so both are done without the lock.
        let mut waker = cx.waker().clone();
        let polled = self.poll_waiting(ticket, &mut waker).map(|slot| Taken { slots: self, slot });
        drop(waker);
        polled.map(Taken::into_slot)
    }

    /// As [`Slots::poll`]. It takes `waker`, or exchanges it for the one to be dropped.
    fn poll_waiting(&self, ticket: &mut Option<Ticket>, waker: &mut Waker) -> Poll<u32> {
        let mut waiting = lock(&self.waiting);
        if let Some(at) = ticket.and_then(|ticket| waiting.find(ticket)) {
            let task = &mut waiting.tasks[at];
            let slot = task.slot;
            if slot.is_some() {
                waiting.tasks.remove(at);
                *ticket = None;
            } else {
                mem::swap(&mut task.waker, waker);
            }
            return slot.map_or(Poll::Pending, Poll::Ready);
        }
        while !self.free.mark() {
            if let Some(slot) = self.free.take() {
                return Poll::Ready(slot);
            }
        }
        let waker = mem::replace(waker, Waker::noop().clone());
        let number = waiting.next;
        waiting.next += 1;
        waiting.tasks.push_back(Task { ticket: number, waker, slot: None });
        *ticket = Some(Ticket(number));
        Poll::Pending
    }

    /// Takes the wakers of the tasks without a slot, which keep their places. The caller must wake
    /// them.
    #[must_use]
    pub(super) fn take_wakers(&self) -> Vec<Waker> {
        let mut waiting = lock(&self.waiting);
        let tasks = waiting.tasks.iter_mut().filter(|task| task.slot.is_none());
        tasks.map(|task| mem::replace(&mut task.waker, Waker::noop().clone())).collect()
    }

    /// Ends the wait of a task. If it was given a slot, the next task gets it.
    pub(super) fn cancel(&self, ticket: Ticket) {
        let mut waiting = lock(&self.waiting);
        let task = waiting.find(ticket).and_then(|at| waiting.tasks.remove(at));
        if !waiting.has_task_without_slot() {
            self.free.unmark();
        }
        drop(waiting);
        if let Some(slot) = task.and_then(|task| task.slot) {
            self.put_back(slot);
        }
    }
}

/// A slot that was taken. It is put back if the thread unwinds before the caller gets it.
struct Taken<'s> {
    slots: &'s Slots,
    slot: u32,
}

impl Taken<'_> {
    fn into_slot(self) -> u32 {
        mem::ManuallyDrop::new(self).slot
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        self.slots.put_back(self.slot);
    }
}
