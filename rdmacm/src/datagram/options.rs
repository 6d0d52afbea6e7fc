//! Options of datagram sockets.

use std::sync::Arc;

use bareverbs::runtime::Runtime;

use super::wire::SLOT;
use crate::connection::Domains;
use crate::{Error, Result};

/// Sizes of a datagram socket, fixed when it is bound. The defaults are those of rdma-core's rsocket.
///
/// | option | default | range |
/// |---|---|---|
/// | [`send_buffer`](Self::send_buffer), [`recv_buffer`](Self::recv_buffer) | 128 KiB: 64 messages | 2 KiB to 64 MiB |
/// | [`inline`](Self::inline) | 64 bytes | 0 to the device's maximum |
/// | [`domains`](Self::domains) | [`Domains::of_process`] | |
/// | [`runtime`](Self::runtime) | none | |
///
/// ```
/// # bareverbs::Device::find("soft0").unwrap();
/// use bareverbs_rdmacm::datagram::DatagramSocketOptions;
///
/// let socket = DatagramSocketOptions::default().recv_buffer(1 << 20).bind("127.0.0.1:0")?;
/// # Ok::<(), bareverbs_rdmacm::datagram::DatagramError>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "`bind` creates the socket"]
pub struct DatagramSocketOptions {
    send_buffer: usize,
    recv_buffer: usize,
    pub(super) inline: u32,
    /// `None`: the list of the process, as it is when the socket is bound.
    domains: Option<Domains>,
    pub(super) runtime: Option<Arc<dyn Runtime>>,
}

/// The sizes of a buffer.
const BUFFERS: std::ops::RangeInclusive<usize> = SLOT..=64 << 20;

impl Default for DatagramSocketOptions {
    fn default() -> Self {
        Self { send_buffer: 128 << 10, recv_buffer: 128 << 10, inline: 64, domains: None, runtime: None }
    }
}

impl DatagramSocketOptions {
    /// Bytes of messages that the device has not sent yet (`SO_SNDBUF`). Each message takes 2 KiB.
    #[doc(alias = "SO_SNDBUF")]
    pub fn send_buffer(mut self, bytes: usize) -> Self {
        self.send_buffer = bytes;
        self
    }

    /// Bytes of messages that were not received by the program yet (`SO_RCVBUF`). Each message takes
    /// 2 KiB. Messages beyond it are lost.
    #[doc(alias = "SO_RCVBUF")]
    pub fn recv_buffer(mut self, bytes: usize) -> Self {
        self.recv_buffer = bytes;
        self
    }

    /// Messages up to this size, with their header of 8 bytes (IPv6: 24), are copied into the work
    /// request (`RDMA_INLINE`). 0: none is.
    #[doc(alias = "RDMA_INLINE")]
    pub fn inline(mut self, bytes: u32) -> Self {
        self.inline = bytes;
        self
    }

    /// The open devices of the socket, in place of those that the streams and datagram sockets of the
    /// process share.
    pub fn domains(mut self, domains: &Domains) -> Self {
        self.domains = Some(domains.clone());
        self
    }

    /// The async runtime whose tasks use the socket. The socket is bound in a task of the runtime, if it
    /// needs that.
    pub fn runtime(mut self, runtime: impl Runtime) -> Self {
        self.runtime = Some(Arc::new(runtime));
        self
    }

    /// Rejects sizes out of range.
    pub(super) fn check(&self, verb: &'static str) -> Result<()> {
        for (option, bytes) in [("send_buffer", self.send_buffer), ("recv_buffer", self.recv_buffer)] {
            if !BUFFERS.contains(&bytes) {
                return Err(Error::invalid(verb, format!("{option}: {bytes} is not 2 KiB to 64 MiB")));
            }
        }
        Ok(())
    }

    /// Messages of the send buffer.
    pub(super) fn sends(&self) -> usize {
        self.send_buffer / SLOT
    }

    /// Messages of the receive buffer.
    pub(super) fn recvs(&self) -> usize {
        self.recv_buffer / SLOT
    }

    /// The list for a socket that is bound now.
    pub(super) fn list(&self) -> Domains {
        self.domains.clone().unwrap_or_else(Domains::of_process)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::datagram::DatagramError;

    #[test]
    fn buffers_out_of_range_are_rejected() {
        for options in [
            DatagramSocketOptions::default().send_buffer(SLOT - 1),
            DatagramSocketOptions::default().recv_buffer((64 << 20) + 1),
        ] {
            let error = options.bind("127.0.0.1:0").unwrap_err();
            assert!(matches!(error, DatagramError::Cm(Error::Invalid { .. })), "{error}");
        }
        let options = DatagramSocketOptions::default();
        assert_eq!((options.sends(), options.recvs()), (64, 64));
    }
}
