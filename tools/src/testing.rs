//! The program's readers of files and of peers, reachable for tests and fuzzing.

use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::cli::EntryKind;
use crate::dump;
use crate::pingpong::exchange::{ExchangeError, Peer};
use crate::pingpong::record::{self, BadRecord, Record};
use crate::pingpong::xsrq::record::{self as xrc_record, XrcRecord};
use crate::signal::Stop;

/// Bytes of an address record.
pub const RECORD_LEN: usize = record::RECORD_LEN;
/// Bytes of an address record of the XRC ping-pong.
pub const XRC_RECORD_LEN: usize = xrc_record::XRC_RECORD_LEN;

/// What `bareverbs dump cqe` prints of a file.
///
/// # Errors
/// The message that the program ends with.
pub fn dump_cqe(file: Vec<u8>) -> Result<String, String> {
    dump::describe(file, EntryKind::Cqe).map_err(|error| format!("{error:#}"))
}

/// What `bareverbs dump wqe` prints of a file.
///
/// # Errors
/// The message that the program ends with.
pub fn dump_wqe(file: Vec<u8>) -> Result<String, String> {
    dump::describe(file, EntryKind::Wqe).map_err(|error| format!("{error:#}"))
}

/// An address record, decoded and encoded again.
///
/// # Errors
/// What is wrong, and the index of the byte.
pub fn recode(record: &[u8; RECORD_LEN]) -> Result<[u8; RECORD_LEN], (String, usize)> {
    Record::decode(record).map(|record| record.encode()).map_err(place)
}

/// An address record of the XRC ping-pong, decoded and encoded again.
///
/// # Errors
/// What is wrong, and the index of the byte.
pub fn recode_xrc(record: &[u8; XRC_RECORD_LEN]) -> Result<[u8; XRC_RECORD_LEN], (String, usize)> {
    XrcRecord::decode(record)
        .map(|record| {
            // The line is printed for every record that is received.
            assert!(record.line("remote").starts_with("  remote: LID "));
            record.encode()
        })
        .map_err(place)
}

fn place(error: BadRecord) -> (String, usize) {
    let (BadRecord::Separator { at, .. } | BadRecord::Digit { at, .. }) = error;
    (error.to_string(), at)
}

/// A step of the exchange that reads from the peer.
#[derive(Clone, Copy, Debug)]
pub enum Read {
    /// As many records as this side has, from so many places.
    Records {
        /// Queue pairs of this side.
        ours: usize,
        /// Records that the peer sends, blank ones included.
        places: usize,
    },
    /// The record of the XRC ping-pong.
    XrcRecord,
    /// The client's closing word.
    Done,
    /// The closing word of the XRC ping-pong.
    End,
}

/// Reads what a peer that sends `bytes` and closes the connection has said; returns the records,
/// encoded again.
///
/// # Errors
/// The message that the program ends with.
///
/// # Panics
/// Where the process has no descriptors left.
pub fn receive(read: Read, bytes: &[u8]) -> Result<Vec<Vec<u8>>, String> {
    let stop = Stop::new().expect("an eventfd");
    let (ours, mut theirs) = UnixStream::pair().expect("a pair of sockets");
    for socket in [&ours, &theirs] {
        socket.set_nonblocking(true).expect("a socket");
    }
    // What the socket has no room for is not sent.
    let _ = theirs.write(bytes);
    theirs.shutdown(Shutdown::Write).expect("a connected socket");
    let peer = Peer::from_socket(ours.into(), &stop, Duration::from_secs(1));
    let message = |error: ExchangeError| error.to_string();
    match read {
        Read::Records { ours, places } => peer
            .receive_records(ours, places)
            .map(|records| records.iter().map(|record| record.encode().to_vec()).collect())
            .map_err(message),
        Read::XrcRecord => {
            peer.receive_xrc_record().map(|record| vec![record.encode().to_vec()]).map_err(message)
        }
        Read::Done => peer.receive_done().map(|()| Vec::new()).map_err(message),
        Read::End => peer.receive_end().map(|()| Vec::new()).map_err(message),
    }
}
