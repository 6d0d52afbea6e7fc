//! The operations of a hub, each in a slot of its own.

use std::mem;
use std::num::NonZeroU32;
use std::task::{Context, Poll, Waker};

use crate::qp::WrId;
use crate::sync::{Mutex, MutexGuard, lock};

const LAST_GENERATION: u32 = (1 << 30) - 1;

/// Operations by the `wr_id` of their requests, with the results of those that ended. `T` is an
/// operation, with its buffer, and `R` its result.
///
/// The lower half of a `wr_id` is the index of the slot. The upper half is the generation of the
/// slot, which counts its operations from 1 to 2^30 - 1. So a `wr_id` repeats only after 2^30 - 1
/// uses of its slot, 0 is never valid, and the two highest bits are 0.
///
/// | state | from | until |
/// |---|---|---|
/// | free | | [`insert`](Self::insert) |
/// | queued | [`insert_queued`](Self::insert_queued) | [`publish`](Self::publish) |
/// | posted | `insert`, `publish` | [`complete`](Self::complete), [`take_back`](Self::take_back) |
/// | done | `complete` | [`poll`](Self::poll) returns the result, [`detach`](Self::detach) |
/// | detached | `detach` of a posted operation | `complete` |
///
/// No request that a device knows has the `wr_id` of a queued operation: it is not posted yet, or it is
/// a buffer of a request of several. So no completion ends it. Otherwise it is as a posted one.
/// [`abandon`](Self::abandon) ends every state. Each slot has a lock of its own, which is held for a
/// few instructions, or while one completion is polled. No code of the application runs with a lock
/// held.
pub(crate) struct Table<T, R> {
    slots: Box<[Mutex<Slot<T, R>>]>,
}

struct Slot<T, R> {
    /// Generation of the current operation, or of the next one if the slot is free.
    generation: NonZeroU32,
    queued: bool,
    state: State<R>,
    /// `None` exactly if the slot is free. Not in `state`, so that a completion does not move it.
    operation: Option<T>,
    /// Of a posted operation only.
    waker: Option<Waker>,
}

#[derive(Clone, Copy)]
enum State<R> {
    Free,
    Posted,
    Done(R),
    Detached,
}

/// What a completion ended.
#[must_use]
pub(crate) enum Reaped<T> {
    /// No operation in flight has the `wr_id`.
    Unknown,
    /// An operation whose result is wanted. The waker of its task, if one waits.
    Waiting(Option<Waker>),
    /// A detached operation. Its slot is free.
    Detached(T),
}

impl<T, R> Slot<T, R> {
    /// Ends the operation: the generation of the next one differs.
    #[inline]
    fn free(&mut self) -> Option<T> {
        self.generation = match self.generation.get() {
            LAST_GENERATION => NonZeroU32::MIN,
            generation => NonZeroU32::MIN.saturating_add(generation),
        };
        (self.queued, self.state) = (false, State::Free);
        self.operation.take()
    }
}

impl<T, R: Copy> Table<T, R> {
    /// Creates `capacity` free slots.
    pub(crate) fn new(capacity: u32) -> Self {
        let slot = |_| {
            Mutex::new(Slot {
                generation: NonZeroU32::MIN,
                queued: false,
                state: State::Free,
                operation: None,
                waker: None,
            })
        };
        Self { slots: (0..capacity).map(slot).collect() }
    }

    /// The index of the slot that `wr_id` names.
    pub(crate) fn index(wr_id: u64) -> u32 {
        WrId::from(wr_id).request
    }

    /// The `wr_id` of the current operation of the slot `index`, or of the next one if it is free.
    pub(crate) fn wr_id(&self, index: u32) -> u64 {
        WrId { owner: lock(&self.slots[index as usize]).generation.get(), request: index }.into()
    }

    /// Applies `access` to the slot of `wr_id`, unless the slot is of another generation.
    #[inline]
    fn with<V>(&self, wr_id: u64, access: impl FnOnce(&mut Slot<T, R>) -> V) -> Option<V> {
        let WrId { owner, request } = wr_id.into();
        let mut slot = lock(self.slots.get(request as usize)?);
        (slot.generation.get() == owner).then(|| access(&mut slot))
    }

    /// Stores `operation` in the free slot `index`, which the caller owns. Returns its `wr_id`.
    #[inline]
    pub(crate) fn insert(&self, index: u32, operation: T) -> u64 {
        self.store(index, operation, false)
    }

    /// Stores as `insert` does an operation that is posted later, or a buffer of a request of several.
    pub(crate) fn insert_queued(&self, index: u32, operation: T) -> u64 {
        self.store(index, operation, true)
    }

    #[inline(always)]
    fn store(&self, index: u32, operation: T, is_queued: bool) -> u64 {
        let mut slot = lock(&self.slots[index as usize]);
        debug_assert!(matches!(slot.state, State::Free), "the caller owns a free slot");
        slot.state = State::Posted;
        if is_queued {
            slot.queued = true;
        }
        // A free slot has no operation. The compiler does not know that, and would drop one.
        mem::forget(slot.operation.replace(operation));
        WrId { owner: slot.generation.get(), request: index }.into()
    }

    /// A queued operation is about to be published to the device, or was flushed.
    pub(crate) fn publish(&self, wr_id: u64) {
        self.with(wr_id, |slot| slot.queued = false);
    }

    /// Removes an operation whose request was not posted.
    pub(crate) fn take_back(&self, wr_id: u64) -> Option<T> {
        let taken = self.with(wr_id, |slot| match slot.state {
            State::Posted => Some((slot.free(), slot.waker.take())),
            _ => None,
        });
        // The waker is dropped here, without the lock.
        taken.flatten().and_then(|(operation, _)| operation)
    }

    /// Ends the operation of a completion.
    #[inline]
    pub(crate) fn complete(&self, wr_id: u64, result: R) -> Reaped<T> {
        let reaped = self.with(wr_id, |slot| match slot.state {
            State::Posted if !slot.queued => {
                slot.state = State::Done(result);
                Reaped::Waiting(slot.waker.take())
            }
            State::Detached if !slot.queued => match slot.free() {
                Some(operation) => Reaped::Detached(operation),
                None => Reaped::Unknown,
            },
            _ => Reaped::Unknown,
        });
        reaped.unwrap_or(Reaped::Unknown)
    }

    /// Locks the slot of a posted operation, to [take](Posted::take) it if its completion is polled.
    #[inline(always)]
    pub(crate) fn lock_posted(&self, wr_id: u64) -> Option<Posted<'_, T, R>> {
        let WrId { owner, request } = wr_id.into();
        let slot = lock(self.slots.get(request as usize)?);
        let posted = slot.generation.get() == owner && matches!(slot.state, State::Posted) && !slot.queued;
        posted.then_some(Posted(slot))
    }

    /// Takes the result of an operation that ended and frees its slot. Otherwise registers the
    /// waker of `cx` in place of an earlier one. `Ready(None)` if no operation has the `wr_id`.
    pub(crate) fn poll(&self, wr_id: u64, cx: &Context<'_>) -> Poll<Option<(T, R)>> {
        // Cloning and dropping a waker may run any code, so both are done without the lock.
        let mut waker: Option<Waker> = None;
        loop {
            let polled = self.with(wr_id, |slot| match slot.state {
                State::Done(result) => Polled::Done(slot.free().map(|operation| (operation, result))),
                State::Posted if slot.waker.as_ref().is_some_and(|known| known.will_wake(cx.waker())) => {
                    Polled::Waits(None)
                }
                State::Posted => match waker.take() {
                    Some(waker) => Polled::Waits(slot.waker.replace(waker)),
                    None => Polled::Clone,
                },
                State::Free | State::Detached => Polled::Done(None),
            });
            match polled {
                Some(Polled::Done(ended)) => return Poll::Ready(ended),
                Some(Polled::Waits(previous)) => {
                    drop(previous);
                    return Poll::Pending;
                }
                Some(Polled::Clone) => waker = Some(cx.waker().clone()),
                None => return Poll::Ready(None),
            }
        }
    }

    /// Whether an operation is in flight, and not detached.
    #[inline]
    pub(crate) fn is_in_flight(&self, wr_id: u64) -> bool {
        self.with(wr_id, |slot| matches!(slot.state, State::Posted)).unwrap_or(false)
    }

    /// Looks at an operation in flight.
    pub(crate) fn inspect<V>(&self, wr_id: u64, look: impl FnOnce(&T) -> V) -> Option<V> {
        let looked = self.with(wr_id, |slot| match slot.state {
            State::Posted | State::Detached => slot.operation.as_ref().map(look),
            _ => None,
        });
        looked.flatten()
    }

    /// Gives up the result of an operation. Returns the operation if it has ended: its slot is free.
    /// Otherwise the table keeps it until its completion.
    pub(crate) fn detach(&self, wr_id: u64) -> Option<T> {
        let detached = self.with(wr_id, |slot| match slot.state {
            State::Posted => {
                slot.state = State::Detached;
                (None, slot.waker.take())
            }
            State::Done(_) => (slot.free(), None),
            State::Free | State::Detached => (None, None),
        });
        // The waker is dropped here, without the lock.
        detached.and_then(|(ended, _)| ended)
    }

    /// Frees the slot `index` in any state. Returns its operation, and whether it was in flight.
    pub(crate) fn abandon(&self, index: u32) -> Option<(T, bool)> {
        let (operation, in_flight, waker) = {
            let mut slot = lock(self.slots.get(index as usize)?);
            let in_flight = match slot.state {
                State::Free => return None,
                State::Posted | State::Detached => true,
                State::Done(_) => false,
            };
            (slot.free(), in_flight, slot.waker.take())
        };
        // Without the lock.
        drop(waker);
        operation.map(|operation| (operation, in_flight))
    }

    /// Takes the wakers of all tasks that wait for an operation. The caller must wake them.
    pub(crate) fn take_wakers(&self) -> impl Iterator<Item = Waker> {
        self.slots.iter().filter_map(|slot| lock(slot).waker.take())
    }
}

/// The locked slot of a posted operation.
pub(crate) struct Posted<'t, T, R>(MutexGuard<'t, Slot<T, R>>);

impl<T, R> Posted<'_, T, R> {
    /// Takes the operation, which has succeeded, instead of [`complete`](Table::complete) and
    /// [`poll`](Table::poll), and frees its slot. No waker may be registered.
    #[inline(always)]
    pub(crate) fn take(mut self) -> Option<T> {
        debug_assert!(self.0.waker.is_none(), "the operation is polled for the first time");
        self.0.free()
    }
}

enum Polled<T, R> {
    Done(Option<(T, R)>),
    /// With the waker that was registered before.
    Waits(Option<Waker>),
    /// The waker is to be cloned first.
    Clone,
}

#[cfg(all(test, not(loom)))]
mod tests;
