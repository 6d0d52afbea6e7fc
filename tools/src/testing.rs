//! The program's parsers of files and of data from peers, for tests and fuzzing.

use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::cli::EntryKind;
use crate::cmtime::mesh;
use crate::dump;
use crate::perf::control::Control;
use crate::perf::exchange::{Exchange, Preamble, Role};
use crate::perf::wire::{KeyForm, KeyRecord, Version};
use crate::pingpong::exchange::RecordsError;
use crate::pingpong::record::{self, Record};
use crate::pingpong::xsrq::record::{self as xrc_record, XrcRecord};
use crate::session::exchange::Peer;
use crate::session::hex::BadRecord;
use crate::signal::Stop;

/// Bytes of an address record.
pub const RECORD_LEN: usize = record::RECORD_LEN;
/// Bytes of an address record of the XRC ping-pong.
pub const XRC_RECORD_LEN: usize = xrc_record::XRC_RECORD_LEN;

/// Bytes of a record of a peer of `bareverbs cmtime`.
pub const PEER_LEN: usize = mesh::RECORD;

/// Decodes a record of a peer of `bareverbs cmtime` and encodes it again.
///
/// # Errors
/// The error message of the program.
pub fn recode_peer(record: &[u8; PEER_LEN]) -> Result<[u8; PEER_LEN], String> {
    mesh::Peer::decode(record).map(mesh::Peer::encode).map_err(|error| error.to_string())
}

/// The output of `bareverbs dump cqe` for a file.
///
/// # Errors
/// The error message of the program.
pub fn dump_cqe(file: Vec<u8>) -> Result<String, String> {
    dump::describe(file, EntryKind::Cqe).map_err(|error| format!("{error:#}"))
}

/// The output of `bareverbs dump wqe` for a file.
///
/// # Errors
/// The error message of the program.
pub fn dump_wqe(file: Vec<u8>) -> Result<String, String> {
    dump::describe(file, EntryKind::Wqe).map_err(|error| format!("{error:#}"))
}

/// Decodes an address record and encodes it again.
///
/// # Errors
/// The message, and the index of the wrong byte.
pub fn recode(record: &[u8; RECORD_LEN]) -> Result<[u8; RECORD_LEN], (String, usize)> {
    Record::decode(record).map(|record| record.encode()).map_err(place)
}

/// Decodes an address record of the XRC ping-pong and encodes it again.
///
/// # Errors
/// The message, and the index of the wrong byte.
pub fn recode_xrc(record: &[u8; XRC_RECORD_LEN]) -> Result<[u8; XRC_RECORD_LEN], (String, usize)> {
    XrcRecord::decode(record)
        .map(|record| {
            // The program prints this line for every record that it receives.
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
    /// `places` records. The first `ours` records are used.
    Records {
        /// Queue pairs of this side.
        ours: usize,
        /// Records that the peer sends, including blank ones.
        places: usize,
    },
    /// The record of the XRC ping-pong.
    XrcRecord,
    /// The client's closing `done`.
    Done,
    /// The closing item of the XRC ping-pong.
    End,
}

/// Receives from a peer that sends `bytes` and closes the connection. Returns the records, encoded
/// again.
///
/// # Errors
/// The error message of the program.
///
/// # Panics
/// If the process has no descriptors left.
pub fn receive(read: Read, bytes: &[u8]) -> Result<Vec<Vec<u8>>, String> {
    let stop = Stop::new().expect("an eventfd");
    let (ours, mut theirs) = UnixStream::pair().expect("a pair of sockets");
    for socket in [&ours, &theirs] {
        socket.set_nonblocking(true).expect("a socket");
    }
    // Bytes that do not fit into the socket's buffer are not sent.
    let _ = theirs.write(bytes);
    theirs.shutdown(Shutdown::Write).expect("a connected socket");
    let peer = Peer::from_socket(ours.into(), &stop, Duration::from_secs(1));
    let message = |error: RecordsError| error.to_string();
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

/// Decodes a version record of perftest and encodes it again.
///
/// # Errors
/// The error message of the program.
pub fn recode_perf_version(bytes: &[u8; 16]) -> Result<[u8; 16], String> {
    Version::decode(bytes).map(Version::encode).map_err(|error| error.to_string())
}

/// The form of an address record of perftest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PerfKeyForm {
    /// Text without a GID.
    Lid,
    /// Text with a GID.
    Gid,
    /// Numbers, as over the connection manager.
    Binary,
}

/// Decodes an address record of perftest and encodes it again.
///
/// # Errors
/// The error message of the program.
pub fn recode_perf_key(form: PerfKeyForm, bytes: &[u8]) -> Result<Vec<u8>, String> {
    let form = match form {
        PerfKeyForm::Lid => KeyForm::Lid,
        PerfKeyForm::Gid => KeyForm::Gid,
        PerfKeyForm::Binary => KeyForm::Binary,
    };
    KeyRecord::decode(form, bytes).map(|record| record.encode(form)).map_err(|error| error.to_string())
}

/// The messages of perftest before the address records, with a peer that sends `bytes` and closes
/// the connection. Returns the agreed values.
///
/// # Errors
/// The error message of the program.
///
/// # Panics
/// If the process has no descriptors left.
pub fn perf_preamble(server: bool, bytes: &[u8]) -> Result<String, String> {
    let stop = Stop::new().expect("an eventfd");
    let (ours, mut theirs) = UnixStream::pair().expect("a pair of sockets");
    for socket in [&ours, &theirs] {
        socket.set_nonblocking(true).expect("a socket");
    }
    // Bytes that do not fit into the socket's buffer are not sent.
    let _ = theirs.write(bytes);
    theirs.shutdown(Shutdown::Write).expect("a connected socket");
    let peer = Peer::from_socket(ours.into(), &stop, Duration::from_secs(1));
    let role = if server { Role::Server } else { Role::Client };
    let local = Preamble {
        peer: Version::OURS,
        cycle_buffer: 4096,
        cache_line: 64,
        mtu: bareverbs::values::Mtu::Mtu1024,
    };
    let exchange = Exchange::new(Control::Tcp(peer), role, KeyForm::Gid);
    exchange
        .preamble(local, &["op=write".to_owned()])
        .map(|agreed| format!("{agreed:?}"))
        .map_err(|error| error.to_string())
}
