//! Waiting for a buffer of a pool.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use super::slots::Ticket;
use super::{Inner, PoolBuffer};
use crate::Result;
use crate::debug::debug;
use crate::owned::park::Parker;
use crate::wait::{Caller, waits};

/// A wait for a buffer of a [`Pool`](super::Pool), from [`Pool::acquire`](super::Pool::acquire).
///
/// Tasks await it as a future; [`wait`](Self::wait) and [`wait_timeout`](Self::wait_timeout) block a
/// thread. It takes its place among the waits when it is first polled, and gets its buffer in this
/// order: [`Pool::take`](super::Pool::take) returns `None` meanwhile. Each buffer that is given back
/// wakes one wait. After it has returned a buffer, it waits for another one. A thread that can't sleep
/// gets [`Error::System`](crate::Error::System) (`EMFILE`, `ENFILE`, `ENOMEM`); a task gets no error.
///
/// # Dropping it
///
/// It can be dropped at any time, by `select!`, a timeout or the end of a task. If it was given a
/// buffer, the next wait gets it. So a wait that is neither polled nor dropped may keep a buffer, and
/// `mem::forget` may remove one from the pool.
///
/// # Return of buffers
///
/// A wait does not poll a CQ. A buffer of a detached operation comes back when another thread, or a
/// [driver](crate::owned::Hub#drivers), reaps its completion.
#[doc(alias = "PendingLease")]
#[must_use = "a wait does nothing unless it is polled"]
pub struct PendingPoolBuffer {
    pool: Arc<Inner>,
    /// Its place among the waits.
    ticket: Option<Ticket>,
}

impl PendingPoolBuffer {
    pub(super) fn new(pool: Arc<Inner>) -> Self {
        Self { pool, ticket: None }
    }

    fn poll_by(&mut self, caller: Caller<'_>) -> Poll<Result<PoolBuffer>> {
        match caller {
            Caller::Thread(end) => Parker::block_on(end, |waker| self.poll_buffer(waker).map(Ok)),
            Caller::Task(waker) => self.poll_buffer(waker).map(Ok),
        }
    }

    pub(crate) fn poll_buffer(&mut self, waker: &Waker) -> Poll<PoolBuffer> {
        self.pool
            .slots
            .poll(&mut self.ticket, &Context::from_waker(waker))
            .map(|slot| PoolBuffer::new(&self.pool, slot))
    }

    /// Gives its place up, as dropping it does. The next poll takes a new one.
    pub(crate) fn cancel(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.pool.slots.cancel(ticket);
        }
    }
}

waits!([] PendingPoolBuffer => Result<PoolBuffer>);

impl Drop for PendingPoolBuffer {
    fn drop(&mut self) {
        self.cancel();
    }
}

debug! {
    it: "PendingPoolBuffer" [] PendingPoolBuffer { waits = it.ticket.is_some() }
}
