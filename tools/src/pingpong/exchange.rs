//! The exchange of address records over TCP, byte for byte that of the C programs.
//!
//! The client writes its records. The server answers with its own records when its queue pairs can
//! receive. The client writes `done` and a NUL, and the connection is closed. Each side sends one
//! record, or 256 if there are several queue pairs; unused records are blank.

use super::record::{RECORD_LEN, Record};
use super::xsrq::record::{XRC_RECORD_LEN, XrcRecord};
use crate::session::exchange::{ExchangeError, Item, Peer};
use crate::session::hex::BadRecord;

const DONE: &[u8; 5] = b"done\0";
const END: &[u8; 4] = b"END\0";

const OWN_RECORD: Item = Item { name: "the local address record", len: RECORD_LEN };
const OWN_XRC_RECORD: Item = Item { name: "the local address record", len: XRC_RECORD_LEN };
const PEER_XRC_RECORD: Item = Item { name: "its address record", len: XRC_RECORD_LEN };
const CLOSING: &str = "its closing message";
const DONE_ITEM: Item = Item { name: CLOSING, len: DONE.len() };
/// The closing item of the XRC ping-pong, which both sides send.
const END_ITEM: Item = Item { name: CLOSING, len: END.len() };

/// The records of a peer.
fn peer_records(count: usize) -> Item {
    let name = if count == 1 { "its address record" } else { "its address records" };
    Item { name, len: count * RECORD_LEN }
}

/// Why the exchange of records failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RecordsError {
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    #[error("invalid address record from the peer")]
    InvalidRecord(#[from] BadRecord),
    #[error("the peer uses {theirs} QPs, this side {ours}: both sides need the same -q")]
    QpCountMismatch { ours: usize, theirs: usize },
    #[error("the peer ended the exchange with \"{0}\" instead of \"done\\0\"")]
    NotDone(String),
    #[error("the peer ended the run with \"{0}\" instead of \"END\\0\"")]
    NotEnded(String),
}

impl Peer<'_> {
    /// Writes the local records, each with one call, then blank ones up to `places`.
    pub(crate) fn send_records(&self, records: &[Record], places: usize) -> Result<(), ExchangeError> {
        let blanks = std::iter::repeat_n(&Record::BLANK, places.saturating_sub(records.len()));
        records.iter().chain(blanks).try_for_each(|record| self.send(&record.encode(), OWN_RECORD))
    }

    /// Reads `places` records: `ours` used records, then blank ones.
    pub(crate) fn receive_records(&self, ours: usize, places: usize) -> Result<Vec<Record>, RecordsError> {
        let bytes = self.receive(peer_records(places))?;
        let (records, _) = bytes.as_chunks();
        let mut records = records.iter().map(Record::decode).collect::<Result<Vec<_>, _>>()?;
        // A peer's queue pair never has the number 0.
        let theirs = records.iter().take_while(|record| record.qpn != 0).count();
        if theirs != ours && places > 1 {
            return Err(RecordsError::QpCountMismatch { ours, theirs });
        }
        records.truncate(ours);
        Ok(records)
    }

    /// Ends the exchange as the client.
    pub(crate) fn send_done(&self) -> Result<(), ExchangeError> {
        self.send(DONE, DONE_ITEM)
    }

    /// Waits for the client's end of the exchange.
    pub(crate) fn receive_done(&self) -> Result<(), RecordsError> {
        let bytes = self.receive(DONE_ITEM)?;
        if bytes == DONE { Ok(()) } else { Err(RecordsError::NotDone(bytes.escape_ascii().to_string())) }
    }

    /// Writes the local record of a run over XRC.
    pub(crate) fn send_xrc_record(&self, record: &XrcRecord) -> Result<(), ExchangeError> {
        self.send(&record.encode(), OWN_XRC_RECORD)
    }

    /// Reads the peer's record of a run over XRC.
    pub(crate) fn receive_xrc_record(&self) -> Result<XrcRecord, RecordsError> {
        let bytes = self.receive(PEER_XRC_RECORD)?;
        let record = bytes.first_chunk().expect("the length is that of a record");
        Ok(XrcRecord::decode(record)?)
    }

    /// Sends the end of a run over XRC: this side has received all its messages.
    pub(crate) fn send_end(&self) -> Result<(), ExchangeError> {
        self.send(END, END_ITEM)
    }

    /// Waits for the peer's end of a run over XRC.
    pub(crate) fn receive_end(&self) -> Result<(), RecordsError> {
        let bytes = self.receive(END_ITEM)?;
        if bytes == END { Ok(()) } else { Err(RecordsError::NotEnded(bytes.escape_ascii().to_string())) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::exchange::Server;
    use crate::signal::{Interrupted, Stop};
    use std::io::{Read, Write};
    use std::net::{Ipv4Addr, Ipv6Addr, TcpListener, TcpStream};
    use std::thread;
    use std::time::Duration;

    const OURS: Record = Record { lid: 0, qpn: 0x11, psn: 0x22, gid: Ipv6Addr::LOCALHOST };
    const THEIRS: Record = Record { lid: 7, qpn: 0x33, psn: 0x44, gid: Ipv6Addr::UNSPECIFIED };
    const SOON: Duration = Duration::from_millis(200);

    /// The server's part of the exchange with `client` as the peer.
    fn serve(client: impl FnOnce(TcpStream) + Send) -> Result<Record, RecordsError> {
        let stop = Stop::new().unwrap();
        let server = Server::listen(0).unwrap();
        let port = server.port();
        thread::scope(|scope| {
            scope.spawn(move || client(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap()));
            let mut peer = server.accept(&stop)?;
            peer.timeout = SOON;
            let record = peer.receive_records(1, 1)?[0];
            peer.send_records(&[OURS], 1)?;
            peer.receive_done()?;
            Ok(record)
        })
    }

    /// The client's part of the exchange with `server` as the peer.
    fn call(server: impl FnOnce(TcpStream) + Send) -> Result<Record, RecordsError> {
        let stop = Stop::new().unwrap();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        thread::scope(|scope| {
            scope.spawn(move || server(listener.accept().unwrap().0));
            let mut peer = Peer::connect("127.0.0.1", port, &stop)?;
            peer.timeout = SOON;
            peer.send_records(&[OURS], 1)?;
            let record = peer.receive_records(1, 1)?[0];
            peer.send_done()?;
            Ok(record)
        })
    }

    fn error(result: Result<Record, RecordsError>) -> String {
        whole(result.expect_err("the exchange must fail"))
    }

    /// The error with its causes, as the program prints it.
    fn whole(error: RecordsError) -> String {
        format!("{:#}", anyhow::Error::from(error))
    }

    /// Reads until the other side closes. An earlier close could truncate its answer.
    fn drain(mut stream: TcpStream) {
        let _ = stream.read_to_end(&mut Vec::new());
    }

    #[test]
    fn client_sends_exactly_record_and_done() {
        let mut heard = Vec::new();
        let result = call(|mut stream| {
            let mut record = [0; RECORD_LEN];
            assert_eq!(stream.read(&mut record).unwrap(), RECORD_LEN, "a record comes from one read");
            stream.write_all(&THEIRS.encode()).unwrap();
            heard.extend(record);
            stream.read_to_end(&mut heard).unwrap();
        });
        assert_eq!(result.unwrap(), THEIRS);
        assert_eq!(heard, [&OURS.encode()[..], DONE].concat());
    }

    #[test]
    fn server_sends_exactly_its_record() {
        let mut heard = Vec::new();
        let result = serve(|mut stream| {
            stream.write_all(&THEIRS.encode()).unwrap();
            let mut record = [0; RECORD_LEN];
            assert_eq!(stream.read(&mut record).unwrap(), RECORD_LEN, "a record comes from one read");
            stream.write_all(DONE).unwrap();
            heard.extend(record);
            stream.read_to_end(&mut heard).unwrap();
        });
        assert_eq!(result.unwrap(), THEIRS);
        assert_eq!(heard, OURS.encode());
    }

    #[test]
    fn server_accepts_ipv4_and_ipv6_clients() {
        let mut hosts = vec!["127.0.0.1"];
        hosts.extend(TcpListener::bind("[::1]:0").ok().map(|_| "::1"));
        for host in hosts {
            let stop = Stop::new().unwrap();
            let server = Server::listen(0).unwrap();
            let port = server.port();
            thread::scope(|scope| {
                scope.spawn(|| {
                    let peer = server.accept(&stop).unwrap();
                    assert_eq!(peer.receive_records(1, 1).unwrap(), [THEIRS]);
                    peer.send_records(&[OURS], 1).unwrap();
                    peer.receive_done().unwrap();
                });
                let peer = Peer::connect(host, port, &stop).unwrap();
                peer.send_records(&[THEIRS], 1).unwrap();
                assert_eq!(peer.receive_records(1, 1).unwrap(), [OURS]);
                peer.send_done().unwrap();
            });
        }
    }

    #[test]
    fn record_received_in_pieces_is_reassembled() {
        let result = serve(|mut stream| {
            stream.set_nodelay(true).unwrap();
            for piece in THEIRS.encode().chunks(20) {
                stream.write_all(piece).unwrap();
                thread::sleep(Duration::from_millis(5));
            }
            stream.read_exact(&mut [0; RECORD_LEN]).unwrap();
            stream.write_all(DONE).unwrap();
            drain(stream);
        });
        assert_eq!(result.unwrap(), THEIRS);
    }

    #[test]
    fn peer_that_closes_at_once_is_reported() {
        assert_eq!(
            error(serve(drop)),
            "the peer closed the connection after 0 of the 52 bytes of its address record"
        );
    }

    #[test]
    fn server_that_closes_early_is_reported() {
        let text = error(call(|mut stream| stream.read_exact(&mut [0; RECORD_LEN]).unwrap()));
        assert_eq!(text, "the peer closed the connection after 0 of the 52 bytes of its address record");
    }

    #[test]
    fn truncated_data_is_reported_when_the_peer_closes() {
        let text = error(serve(|mut stream| stream.write_all(&THEIRS.encode()[..20]).unwrap()));
        assert_eq!(text, "the peer closed the connection after 20 of the 52 bytes of its address record");
    }

    #[test]
    fn truncated_data_is_reported_when_the_peer_stalls() {
        let text = error(serve(|mut stream| {
            stream.write_all(&THEIRS.encode()[..20]).unwrap();
            drain(stream);
        }));
        assert_eq!(
            text,
            "timeout after 20 of the 52 bytes of its address record: the peer sent nothing for 0.2 s"
        );
    }

    #[test]
    fn silent_peer_error_names_the_timeout() {
        assert_eq!(
            error(serve(drain)),
            "timeout after 0 of the 52 bytes of its address record: the peer sent nothing for 0.2 s"
        );
        assert_eq!(
            error(call(drain)),
            "timeout after 0 of the 52 bytes of its address record: the peer sent nothing for 0.2 s"
        );
    }

    #[test]
    fn excess_data_is_reported_on_both_sides() {
        let bytes = [&THEIRS.encode()[..], b"more"].concat();
        let text = error(serve(|mut stream| {
            stream.write_all(&bytes).unwrap();
            drain(stream);
        }));
        assert_eq!(text, "the peer sent more than the 52 bytes of its address record");
        let text = error(call(|mut stream| {
            stream.write_all(&bytes).unwrap();
            drain(stream);
        }));
        assert_eq!(text, "the peer sent more than the 52 bytes of its address record");
    }

    #[test]
    fn invalid_record_error_names_the_offset() {
        let text = error(serve(|mut stream| {
            stream.write_all(b"GET / HTTP/1.1\r\nHost: 10.1.0.1:18515\r\nAccept: */*\r\n\r\n").unwrap();
            drain(stream);
        }));
        assert!(text.starts_with("the peer sent more than the 52 bytes"), "{text}");
        let text = error(serve(|mut stream| {
            stream.write_all(&[0xff; RECORD_LEN]).unwrap();
            drain(stream);
        }));
        assert_eq!(
            text,
            "invalid address record from the peer: byte 4 is 0xff where 0x3a must separate the fields"
        );
    }

    #[test]
    fn missing_done_is_reported() {
        let with_end = |end: &'static [u8]| {
            error(serve(move |mut stream| {
                stream.write_all(&THEIRS.encode()).unwrap();
                stream.read_exact(&mut [0; RECORD_LEN]).unwrap();
                stream.write_all(end).unwrap();
            }))
        };
        assert_eq!(
            with_end(b"gone\0"),
            "the peer ended the exchange with \"gone\\x00\" instead of \"done\\0\""
        );
        assert_eq!(
            with_end(b"do"),
            "the peer closed the connection after 2 of the 5 bytes of its closing message"
        );
        assert_eq!(
            with_end(b""),
            "the peer closed the connection after 0 of the 5 bytes of its closing message"
        );
        assert_eq!(with_end(b"done\0more"), "the peer sent more than the 5 bytes of its closing message");
    }

    #[test]
    fn exchange_can_be_interrupted() {
        let stop = Stop::new().unwrap();
        let server = Server::listen(0).unwrap();
        let port = server.port();
        let client = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        let peer = server.accept(&stop).unwrap();
        stop.trigger();
        let error = peer.receive_records(1, 1).unwrap_err();
        let cause = std::error::Error::source(&error).and_then(|cause| cause.downcast_ref::<Interrupted>());
        assert!(cause.is_some(), "{error:?} gives the program's exit status away");
        drop(client);
    }
}
