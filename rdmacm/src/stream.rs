//! Byte streams over RDMA, used like TCP streams and wire-compatible with rdma-core's rsocket.
//!
//! [`RdmaStream`] implements [`Read`](std::io::Read) and [`Write`](std::io::Write),
//! [`RdmaListener`] accepts streams. With the features `tokio` and `async-io`, a stream with a
//! [runtime](StreamOptions::runtime) implements the traits of the runtime for its tasks.
//!
//! # Protocol
//!
//! | | |
//! |---|---|
//! | connection | port space TCP, RC; 40 bytes of private data (`rs_conn_data`) each way carry buffers and credits |
//! | data | RDMA write with immediate data into the peer's ring; the immediate data is the length. On iWARP, a write and a message of 4 bytes |
//! | flow control | credits of messages, and halves of the ring that the reader has freed |
//! | end | immediate data `RS_OP_CTRL`: `RS_CTRL_SHUTDOWN` for one direction, `RS_CTRL_DISCONNECT` for both |
//!
//! Source: `librdmacm/rsocket.c` of rdma-core and its protocol note. Peers that break the protocol
//! end the stream with a [`ProtocolError`]; they can write into the ring only, and never cause
//! undefined behaviour. Like TCP, a stream has no integrity check beyond that of the packets, and no
//! encryption.
//!
//! # Coming from rsocket
//!
//! | rsocket | here |
//! |---|---|
//! | `rsocket`, `rconnect` | [`RdmaStream::connect`], [`StreamOptions::connect`] |
//! | `rbind`, `rlisten`, `raccept` | [`RdmaListener::bind`], [`RdmaListener::accept`] |
//! | `rsend`, `rwrite`; `rrecv`, `rread` | [`RdmaStream::send`], [`RdmaStream::recv`]; `Write` and `Read` |
//! | `rshutdown`, `rclose` | [`RdmaStream::shutdown`], [`RdmaStream::close`] or drop |
//! | `rpoll`, `rselect`, `repoll_wait` | `poll` or `epoll` of the [descriptor](RdmaStream#descriptor), then [`RdmaStream::readiness`] |
//! | `riomap`, `riounmap`, `riowrite` | [`RdmaStream::map`], [`RdmaStream::unmap`], [`RdmaStream::write_mapped`] |
//! | `rsetsockopt`: `SO_SNDBUF`, `SO_RCVBUF`, `RDMA_SQSIZE`, `RDMA_RQSIZE`, `RDMA_INLINE`, `RDMA_IOMAPSIZE` | [`StreamOptions`]; sizes are not doubled |
//! | `rsetsockopt`: `SO_KEEPALIVE`, `TCP_KEEPIDLE`; `SO_LINGER` | [`RdmaStream::set_keepalive`]; [`RdmaStream::set_linger`] |
//! | `rfcntl` with `O_NONBLOCK` | [`RdmaStream::set_nonblocking`] |
//! | `rreadv`, `rwritev`, `rsendmsg`, `rrecvmsg`, `MSG_PEEK`, `RDMA_ROUTE` | none |

mod blocking;
mod connect;
mod error;
mod inbound;
mod link;
mod options;
mod outbound;
mod ring;
mod session;
mod shared;
#[cfg(any(feature = "async-io", feature = "tokio"))]
mod task;
mod wire;
mod woken;

pub use self::blocking::{RdmaStream, Readiness};
pub use self::connect::RdmaListener;
pub use self::error::{ProtocolError, StreamError};
pub use self::options::StreamOptions;
pub use self::wire::OfferError;

/// The result of a call of a stream.
pub type Result<T, E = StreamError> = std::result::Result<T, E>;

#[cfg(test)]
mod tests;
