//! Options of streams.

use std::sync::Arc;
use std::time::Duration;

use bareverbs::runtime::Runtime;
use bareverbs::values::RetryCount;

use super::wire::{IomapEntry, IomapSize, SLOTS, Span};
use crate::connection::Domains;
use crate::{Error, IdOptions, Result};

/// Options of a stream, fixed when it is created. The defaults are those of rdma-core's rsocket, except
/// `retry_count` (rsocket: 7).
///
/// | option | default | range |
/// |---|---|---|
/// | [`send_buffer`](Self::send_buffer) | 128 KiB | 2 KiB to 1 GiB |
/// | [`recv_buffer`](Self::recv_buffer) | 128 KiB | 2 bytes to 1 GiB, even |
/// | [`sends`](Self::sends), [`recvs`](Self::recvs) | 384 messages | 16 to 65534 |
/// | [`inline`](Self::inline) | 64 bytes | 0 to the device's maximum |
/// | [`iomap_size`](Self::iomap_size) | 0 entries | 0 to 32512, rounded down |
/// | [`retry_count`](Self::retry_count) | 6 | 0 to 7 |
/// | [`id_options`](Self::id_options) | none | |
/// | [`domains`](Self::domains) | [`Domains::of_process`] | |
/// | [`runtime`](Self::runtime) | none | |
#[doc(alias = "rsetsockopt")]
#[derive(Clone, Debug)]
#[must_use]
pub struct StreamOptions {
    pub(super) send_buffer: usize,
    pub(super) recv_buffer: usize,
    pub(super) sends: u16,
    pub(super) recvs: u16,
    pub(super) inline: u32,
    pub(super) iomap_size: u32,
    pub(super) id_options: IdOptions,
    pub(super) retry_count: RetryCount,
    /// `None`: the list of the process, as it is when a stream is created.
    pub(super) domains: Option<Domains>,
    pub(super) runtime: Option<Arc<dyn Runtime>>,
}

impl Default for StreamOptions {
    fn default() -> Self {
        Self {
            send_buffer: 128 << 10,
            recv_buffer: 128 << 10,
            sends: 384,
            recvs: 384,
            inline: 64,
            iomap_size: 0,
            id_options: IdOptions::default(),
            retry_count: RetryCount::DEFAULT,
            domains: None,
            runtime: None,
        }
    }
}

/// The largest buffer.
const MAX_BUFFER: usize = 1 << 30;

impl StreamOptions {
    /// Bytes that can be on their way to the peer (`SO_SNDBUF`).
    #[doc(alias = "SO_SNDBUF")]
    pub fn send_buffer(mut self, bytes: usize) -> Self {
        self.send_buffer = bytes;
        self
    }

    /// Bytes that the peer can send before this side reads (`SO_RCVBUF`).
    #[doc(alias = "SO_RCVBUF")]
    pub fn recv_buffer(mut self, bytes: usize) -> Self {
        self.recv_buffer = bytes;
        self
    }

    /// Messages that can be on their way to the peer (`RDMA_SQSIZE`).
    #[doc(alias = "RDMA_SQSIZE")]
    pub fn sends(mut self, messages: u16) -> Self {
        self.sends = messages;
        self
    }

    /// Messages that the peer can send before this side reads (`RDMA_RQSIZE`).
    #[doc(alias = "RDMA_RQSIZE")]
    pub fn recvs(mut self, messages: u16) -> Self {
        self.recvs = messages;
        self
    }

    /// Writes up to this size are copied into the work request (`RDMA_INLINE`). 0: none is. The queue
    /// pair has room for 24 bytes at least, the largest control message.
    #[doc(alias = "RDMA_INLINE")]
    pub fn inline(mut self, bytes: u32) -> Self {
        self.inline = bytes;
        self
    }

    /// Ranges of the peer's memory that this side can write directly (`RDMA_IOMAPSIZE`), 0 to 32512.
    /// 129 to 255 become 128. Values above are rounded down to a multiple of 256, or to 32512.
    #[doc(alias = "RDMA_IOMAPSIZE")]
    pub fn iomap_size(mut self, entries: u32) -> Self {
        self.iomap_size = IomapSize::at_most(entries).entries();
        self
    }

    /// Source address, type of service, ACK timeout, and the options of listeners.
    ///
    /// ```
    /// use bareverbs_rdmacm::IdOptions;
    /// use bareverbs_rdmacm::stream::StreamOptions;
    ///
    /// let options = StreamOptions::default().id_options(IdOptions { backlog: 16, ..IdOptions::default() });
    /// ```
    #[doc(alias = "rsetsockopt")]
    #[doc(alias = "IP_TOS")]
    #[doc(alias = "SO_REUSEADDR")]
    #[doc(alias = "IPV6_V6ONLY")]
    pub fn id_options(mut self, options: IdOptions) -> Self {
        self.id_options = options;
        self
    }

    /// The number of retries of a request after a timeout or a NAK of a PSN sequence error, 0 to 7. The
    /// value of the connecting side applies to both QPs; that of a listener has no effect. The default is
    /// 6: a dead peer ends the stream on every device.
    ///
    /// Soft-RoCE counts each lost or late packet as a retry of the whole write, which has up to 64
    /// packets. On a network that loses or reorders many, use [`RetryCount::MAX`]. Soft-RoCE then retries
    /// without limit: neither writes nor keepalives fail when the peer is dead. Only the time limits of
    /// reads and writes notice it.
    ///
    /// ```
    /// use bareverbs::values::RetryCount;
    /// use bareverbs_rdmacm::stream::StreamOptions;
    ///
    /// let options = StreamOptions::default().retry_count(RetryCount::MAX);
    /// ```
    #[doc(alias = "retry_cnt")]
    pub fn retry_count(mut self, count: RetryCount) -> Self {
        self.retry_count = count;
        self
    }

    /// The open devices of the stream, in place of those that the streams of the process share.
    pub fn domains(mut self, domains: &Domains) -> Self {
        self.domains = Some(domains.clone());
        self
    }

    /// The async runtime whose tasks use the streams. They implement its traits `AsyncRead` and
    /// `AsyncWrite`, if the feature `tokio` or `async-io` is enabled.
    ///
    /// Streams and listeners are created in tasks of the runtime, where it needs that. Drop of a stream
    /// does not wait, unless [`RdmaStream::set_linger`](super::RdmaStream::set_linger) says so: bytes
    /// that are not acknowledged may be lost.
    ///
    /// ```no_run
    /// use bareverbs::runtime::Runtime;
    /// use bareverbs_rdmacm::stream::StreamOptions;
    ///
    /// // `runtime` is `Tokio` or `AsyncIo` of `bareverbs::runtime`.
    /// async fn serve(runtime: impl Runtime) -> bareverbs_rdmacm::stream::Result<()> {
    ///     let listener = StreamOptions::default().runtime(runtime).listen("0.0.0.0:7471")?;
    ///     loop {
    ///         println!("{}", listener.accept().await?.peer_addr());
    ///     }
    /// }
    /// ```
    #[doc(alias = "AsyncStream")]
    #[doc(alias = "AsyncListener")]
    pub fn runtime(mut self, runtime: impl Runtime) -> Self {
        self.runtime = Some(Arc::new(runtime));
        self
    }

    /// The list for a stream that is created now.
    pub(super) fn list(&self) -> Domains {
        self.domains.clone().unwrap_or_else(Domains::of_process)
    }

    /// Bytes of the table that the peer writes.
    pub(super) fn table_len(&self) -> usize {
        SLOTS * Span::SIZE + self.iomap_size as usize * IomapEntry::SIZE
    }

    /// Bytes of inline data of the queue pair.
    pub(super) fn queue_inline(&self) -> u32 {
        self.inline.max(IomapEntry::SIZE as u32)
    }

    pub(super) fn check(&self, verb: &'static str) -> Result<()> {
        let Self { send_buffer, recv_buffer, sends, recvs, .. } = *self;
        let reason = if !(2048..=MAX_BUFFER).contains(&send_buffer) {
            format!("send_buffer: {send_buffer} is not 2 KiB to 1 GiB")
        } else if !(2..=MAX_BUFFER).contains(&recv_buffer) || recv_buffer % 2 == 1 {
            format!("recv_buffer: {recv_buffer} is not an even number of bytes up to 1 GiB")
        } else if !(16..=65534).contains(&sends) || !(16..=65534).contains(&recvs) {
            format!("sends, recvs: {sends} and {recvs} messages are not both 16 to 65534")
        } else {
            return Ok(());
        };
        Err(Error::invalid(verb, reason))
    }
}

/// The shortest interval of keepalives.
const MIN_KEEPALIVE: Duration = Duration::from_millis(1);

/// The interval of the keepalives, or `None` for none.
pub(super) fn keepalive_interval(asked: Option<Duration>) -> Result<Option<Duration>> {
    match asked.filter(|interval| !interval.is_zero()) {
        Some(interval) if interval < MIN_KEEPALIVE => {
            let reason = format!("keepalive: {interval:?} is below {MIN_KEEPALIVE:?}; 0 turns probes off");
            Err(Error::invalid("RdmaStream::set_keepalive", reason))
        }
        interval => Ok(interval),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keepalive_is_off_at_0_and_rejected_below_a_millisecond() {
        for off in [None, Some(Duration::ZERO)] {
            assert_eq!(keepalive_interval(off).unwrap(), None);
        }
        assert_eq!(keepalive_interval(Some(MIN_KEEPALIVE)).unwrap(), Some(MIN_KEEPALIVE));
        let refused = keepalive_interval(Some(MIN_KEEPALIVE - Duration::from_nanos(1))).unwrap_err();
        assert!(matches!(refused, Error::Invalid { .. }), "{refused}");
    }
}
