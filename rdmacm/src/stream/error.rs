//! Errors of streams.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;

use super::wire::OfferError;

/// How a peer breaks the protocol of streams. The stream has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ProtocolError {
    /// More messages than were granted.
    #[error("the peer sent more messages than its {window} credits")]
    Overrun {
        /// Credits of the peer.
        window: u16,
    },
    /// A message longer than what is left of the data buffer.
    #[error("the peer announced {len} bytes, its data buffer has room for {room}")]
    BeyondBuffer {
        /// Bytes of the message.
        len: u32,
        /// Bytes left in the buffer.
        room: u32,
    },
    /// Credits that the peer can't have.
    #[error("the peer granted messages up to {limit}; {sent} were sent, and it holds {window} at a time")]
    Credits {
        /// The granted limit, modulo 2^16.
        limit: u16,
        /// Messages sent, modulo 2^16.
        sent: u16,
        /// Messages that the peer holds at a time.
        window: u16,
    },
    /// A data buffer without room.
    #[error("the peer granted a data buffer of 0 bytes")]
    EmptyBuffer,
    /// A message without a word: without immediate data, or on iWARP not of 4 bytes.
    #[error("the peer sent a message without the word of a stream")]
    MissingWord,
    /// A word without a defined meaning.
    #[error("the peer sent the word {0:#010x}, which is not an `RS_OP_*` of rsocket")]
    UnknownWord(u32),
    /// An entry beyond the iomap table of this side.
    #[error("the peer wrote entry {index} of an iomap table of {entries}")]
    IomapIndex {
        /// Index of the entry.
        index: u32,
        /// Entries of the table.
        entries: u32,
    },
}

/// An error of a stream.
///
/// An error that ended the stream is returned by every later call, so it can be cloned.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// The peer's private data is not that of a stream.
    #[error("the peer is not an rsocket stream: {0}")]
    Offer(#[from] OfferError),
    /// The peer broke the protocol.
    #[error("{0}")]
    Protocol(#[from] ProtocolError),
    /// The peer has ended the stream. Bytes of a write may not have arrived.
    #[error("the peer has ended the stream")]
    Disconnected,
    /// This side has shut down its sending direction, or both.
    #[error("this side has shut the stream down for writing")]
    Shutdown,
    /// The time limit of the stream has passed. The stream has not ended because of it.
    #[error("the time limit of {limit:?} has passed")]
    TimedOut {
        /// The time limit.
        limit: Duration,
    },
    /// The stream is non-blocking, and the call would wait.
    #[error("the call would block")]
    WouldBlock,
    /// No memory of the peer is mapped at the offset.
    #[error("the peer has mapped no memory at offset {offset:#x}")]
    NotMapped {
        /// The offset.
        offset: u64,
    },
    /// The peer's iomap table has no free entry.
    #[error("all {entries} entries of the peer's iomap table are in use")]
    IomapFull {
        /// Entries of the table.
        entries: usize,
    },
    /// A verb failed, or an operation of the queue pair.
    #[error("{0}")]
    Verbs(Arc<bareverbs::Error>),
    /// The connection manager failed, or the name of the peer was not resolved
    /// ([`Error::Name`](crate::Error::Name)).
    #[error("{0}")]
    Cm(Arc<crate::Error>),
}

impl From<bareverbs::Error> for StreamError {
    fn from(error: bareverbs::Error) -> Self {
        Self::Verbs(Arc::new(error))
    }
}

impl<B> From<bareverbs::Refused<B>> for StreamError {
    fn from(refused: bareverbs::Refused<B>) -> Self {
        refused.error.into()
    }
}

impl From<crate::Error> for StreamError {
    fn from(error: crate::Error) -> Self {
        Self::Cm(Arc::new(error))
    }
}

impl StreamError {
    /// The errno, if the kernel reported one.
    #[must_use]
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Verbs(error) => error.errno(),
            Self::Cm(error) => error.errno(),
            _ => None,
        }
    }

    fn kind(&self) -> io::ErrorKind {
        match self {
            Self::Offer(_) | Self::Protocol(_) => io::ErrorKind::InvalidData,
            Self::Disconnected | Self::Verbs(_) => io::ErrorKind::ConnectionReset,
            Self::Shutdown => io::ErrorKind::BrokenPipe,
            Self::TimedOut { .. } => io::ErrorKind::TimedOut,
            Self::WouldBlock => io::ErrorKind::WouldBlock,
            Self::NotMapped { .. } => io::ErrorKind::InvalidInput,
            Self::IomapFull { .. } => io::ErrorKind::StorageFull,
            Self::Cm(error) => error.kind(),
        }
    }
}

impl From<StreamError> for io::Error {
    /// An error of the matching kind, with the stream's error as its source.
    fn from(error: StreamError) -> Self {
        match error {
            StreamError::WouldBlock => io::ErrorKind::WouldBlock.into(),
            error => Self::new(error.kind(), error),
        }
    }
}
