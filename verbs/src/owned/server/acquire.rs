//! Waits for a buffer of a server.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};

use bareverbs_provider::traits::Provider;

use super::{Handle, Inner, ROUNDS};
use crate::debug::debug;
use crate::owned::hub::reaper::BATCH;
use crate::owned::{PendingPoolBuffer, PoolBuffer, Source};
use crate::wait::{Caller, waits};
use crate::{AnyProvider, Error, Result};

const VERB: &str = "Handle::acquire";

/// A wait for a buffer of a [`Server`](super::Server) or a [`Client`](super::Client), from
/// [`Handle::acquire`].
///
/// Tasks await it as a future; [`wait`](Self::wait) and [`wait_timeout`](Self::wait_timeout) block a
/// thread. It takes its place among the waits when it is first polled, and gets its buffer in this
/// order. Each buffer that is free again wakes one wait. After it has returned a buffer, it waits for
/// another one.
///
/// Unlike a [`PendingPoolBuffer`] of a [`Pool`](crate::owned::Pool), it polls the CQ, so it reaps the
/// sends whose buffers it waits for. It reads no events: buffers that messages of peers have are not
/// among those that it waits for.
///
/// # Dropping it
///
/// It can be dropped at any time, by `select!`, a timeout or the end of a task. If it was given a
/// buffer, the next wait gets it. So a wait that is neither polled nor dropped may keep a buffer.
///
/// # Errors
///
/// | error | cause |
/// |---|---|
/// | [`Error::Closed`] | The server was [shut down](Handle::shutdown), or the `Server` or `Client` was dropped, also while it waits. Buffers that are free then are not returned either. |
/// | [`Error::NoDriver`] | A task polls it, no buffer is free, and there is no [driver](crate::owned::Hub#drivers). It keeps its place, and can be polled again. |
/// | [`Error::DeviceRemoved`] | The device was removed, and no buffer is free. |
/// | [`Error::System`] | A thread could not sleep. |
///
/// The end of a peer is no error: its messages fail, and their buffers are free when the results are
/// taken or dropped.
#[must_use = "a wait does nothing unless it is polled"]
pub struct PendingBuffer<B: Source = PoolBuffer, P: Provider = AnyProvider> {
    server: Arc<Inner<B, P>>,
    wait: PendingPoolBuffer,
}

impl<B: Source, P: Provider> Handle<B, P> {
    /// Waits for a buffer for a message, in a task or a thread.
    ///
    /// Waits get buffers in the order of their first polls, before callers of [`take`](Self::take).
    /// Waiting allocates only if more callers wait than ever before.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use bareverbs::server::{Handle, PeerId};
    ///
    /// # async fn send(handle: &Handle, peer: PeerId) -> bareverbs::Result<()> {
    /// let mut message = handle.acquire().await?;
    /// message.bytes_mut()[..5].copy_from_slice(b"hello");
    /// handle.send(peer, message, ..5).await?;
    /// # Ok(())
    /// # }
    /// # fn block(handle: &Handle) -> bareverbs::Result<()> {
    ///
    /// // A thread blocks:
    /// let message = handle.acquire().wait()?;
    /// let in_time = handle.acquire().wait_timeout(Duration::from_millis(100)).transpose()?;
    /// # drop((message, in_time));
    /// # Ok(())
    /// # }
    /// # use bareverbs_test_support::example;
    /// # let pd = example::pd()?;
    /// # let (server, peer, _client) = example::server(&pd)?;
    /// # example::block_on(send(server.handle(), peer))?;
    /// # block(server.handle())?;
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    ///
    /// A task that holds a buffer while it waits for another one may wait for ever, if all buffers are
    /// held like this.
    ///
    /// # Errors
    /// [The errors of the wait](PendingBuffer#errors).
    pub fn acquire(&self) -> PendingBuffer<B, P> {
        PendingBuffer { server: Arc::clone(&self.inner), wait: self.inner.inbound.pool.acquire() }
    }
}

impl<B: Source, P: Provider> PendingBuffer<B, P> {
    fn poll_by(&mut self, caller: Caller<'_>) -> Poll<Result<PoolBuffer>> {
        let hub = Arc::clone(&self.server.hub.inner);
        hub.poll_by(caller, VERB, |cx| self.poll_buffer(cx))
    }

    /// Takes a buffer, or registers the task and helps to reap.
    fn poll_buffer(&mut self, cx: &Context<'_>) -> Poll<Result<PoolBuffer>> {
        for _ in 0..ROUNDS {
            self.check_open()?;
            if let Poll::Ready(buffer) = self.wait.poll_buffer(cx.waker()) {
                return Poll::Ready(Ok(buffer));
            }
            // The end of the server either finds the waker, or was before this.
            self.check_open()?;
            if self.server.hub.poll(BATCH) == 0 {
                return Poll::Pending;
            }
        }
        // Others get their turn first.
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// Gives the place of the wait up once no message can be sent.
    fn check_open(&mut self) -> Result<()> {
        let Inner { closed, reader_dropped, .. } = &*self.server;
        let reason = if closed.load(Ordering::Acquire) {
            "the server was shut down"
        } else if reader_dropped.load(Ordering::Acquire) {
            "the `Server` or `Client`, which reads the messages of peers, was dropped"
        } else {
            return Ok(());
        };
        self.wait.cancel();
        Err(Error::Closed { verb: VERB, reason })
    }
}

waits!([B: Source, P: Provider] PendingBuffer<B, P> => Result<PoolBuffer>);

// It contains no pinned values.
impl<B: Source, P: Provider> Unpin for PendingBuffer<B, P> {}

debug! {
    it: "PendingBuffer" [B: Source, P: Provider] PendingBuffer<B, P> { wait = it.wait }
}
