//! Errors of datagram sockets.

use std::io;

use rustix::io::Errno;

use crate::Error;

/// An error of a datagram socket.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DatagramError {
    /// The message is longer than a packet of the port. Nothing was sent.
    #[error("a message of {len} bytes; the port carries at most {max}")]
    TooLong {
        /// Bytes of the message.
        len: usize,
        /// The longest message of the port in bytes.
        max: usize,
    },
    /// [`DatagramSocket::send`](super::DatagramSocket::send) without a peer.
    #[error("the datagram socket is not connected: call `connect`, or use `send_to`")]
    NotConnected,
    /// The connection manager, a verb, or the UDP socket failed.
    #[error(transparent)]
    Cm(#[from] Error),
}

impl DatagramError {
    /// The errno, if the kernel reported one. `ECONNREFUSED`: a connected socket's peer has no socket.
    #[must_use]
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Cm(error) => error.errno(),
            _ => None,
        }
    }

    fn kind(&self) -> io::ErrorKind {
        match self {
            Self::TooLong { .. } => io::ErrorKind::InvalidInput,
            Self::NotConnected => io::ErrorKind::NotConnected,
            Self::Cm(error) => error.kind(),
        }
    }
}

impl From<bareverbs::Error> for DatagramError {
    fn from(error: bareverbs::Error) -> Self {
        Self::Cm(error.into())
    }
}

impl<B> From<bareverbs::Refused<B>> for DatagramError {
    fn from(refused: bareverbs::Refused<B>) -> Self {
        refused.error.into()
    }
}

impl<B> From<bareverbs::Failed<B>> for DatagramError {
    fn from(failed: bareverbs::Failed<B>) -> Self {
        bareverbs::Error::from(failed).into()
    }
}

impl From<DatagramError> for io::Error {
    /// An error of the matching kind, with the socket's error as its source.
    fn from(error: DatagramError) -> Self {
        Self::new(error.kind(), error)
    }
}

/// The error of a call of the UDP socket or of `epoll`.
pub(super) fn system(what: &'static str, error: &io::Error) -> Error {
    Error::System { what, errno: Errno::from_io_error(error).unwrap_or(Errno::IO) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn io_errors_have_the_kind_of_their_cause() {
        let refused = system("sending a lookup", &io::Error::from(Errno::CONNREFUSED));
        for (error, kind) in [
            (DatagramError::TooLong { len: 3000, max: 2032 }, io::ErrorKind::InvalidInput),
            (DatagramError::NotConnected, io::ErrorKind::NotConnected),
            (refused.into(), io::ErrorKind::ConnectionRefused),
        ] {
            assert_eq!(io::Error::from(error).kind(), kind);
        }
    }
}
