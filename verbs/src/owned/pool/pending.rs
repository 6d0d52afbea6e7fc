//! Waiting for a buffer of a pool.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use super::slots::Ticket;
use super::{Inner, PoolBuffer};
use crate::Result;
use crate::owned::hub::park::Parker;

/// A wait for a buffer of a [`Pool`](super::Pool), from [`Pool::acquire`](super::Pool::acquire).
///
/// Tasks await it as a future; [`wait`](Self::wait) and [`wait_timeout`](Self::wait_timeout) block a
/// thread. It takes its place among the waits when it is first polled, and gets its buffer in this
/// order: [`Pool::take`](super::Pool::take) returns `None` meanwhile. Each buffer that is given back
/// wakes one wait.
///
/// # Dropping it
///
/// It can be dropped at any time, by `select!`, a timeout or the end of a task. If it was given a
/// buffer, the next wait gets it. So a wait that is neither polled nor dropped may keep a buffer, and
/// `mem::forget` may remove one from the pool.
///
/// # Who gives buffers back
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

    /// Blocks until there is a buffer.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System): the thread could not sleep (`EMFILE`, `ENFILE`,
    /// `ENOMEM`).
    pub fn wait(mut self) -> Result<PoolBuffer> {
        loop {
            // Without a time limit it returns only with a buffer.
            if let Some(lease) = self.wait_until(None)? {
                return Ok(lease);
            }
        }
    }

    /// Blocks until there is a buffer, at most for `timeout`. Returns `Ok(None)` on a timeout; the wait
    /// keeps its place until it is dropped.
    ///
    /// # Errors
    /// As for [`PendingPoolBuffer::wait`].
    pub fn wait_timeout(&mut self, timeout: Duration) -> Result<Option<PoolBuffer>> {
        self.wait_until(Instant::now().checked_add(timeout))
    }

    fn wait_until(&mut self, end: Option<Instant>) -> Result<Option<PoolBuffer>> {
        Parker::with(|parker, waker| {
            let cx = Context::from_waker(waker);
            loop {
                if let Poll::Ready(lease) = self.poll_lease(&cx) {
                    return Ok(Some(lease));
                }
                if end.is_some_and(|end| Instant::now() >= end) {
                    return Ok(None);
                }
                parker.sleep(None, end)?;
            }
        })
    }

    pub(crate) fn poll_lease(&mut self, cx: &Context<'_>) -> Poll<PoolBuffer> {
        self.pool.slots.poll(&mut self.ticket, cx).map(|slot| PoolBuffer::new(&self.pool, slot))
    }

    /// Gives its place up, as dropping it does. The next poll takes a new one.
    pub(crate) fn cancel(&mut self) {
        if let Some(ticket) = self.ticket.take() {
            self.pool.slots.cancel(ticket);
        }
    }
}

impl Future for PendingPoolBuffer {
    type Output = PoolBuffer;

    /// Cancel-safe: see [dropping it](PendingPoolBuffer#dropping-it). After it has returned a buffer, it
    /// waits for another one.
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<PoolBuffer> {
        self.get_mut().poll_lease(cx)
    }
}

impl Drop for PendingPoolBuffer {
    fn drop(&mut self) {
        self.cancel();
    }
}

impl fmt::Debug for PendingPoolBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PendingPoolBuffer").field("waits", &self.ticket.is_some()).finish_non_exhaustive()
    }
}
