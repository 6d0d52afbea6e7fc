//! The exchange of address records over TCP, byte for byte that of the C programs.
//!
//! The client writes its records. The server answers with its own records when its queue pairs can
//! receive. The client writes `done` and a NUL, and the connection is closed. The C programs read a
//! record with one `read`, so each is written with one call. Each side sends one record, or 256 if
//! there are several queue pairs; unused records are blank.

use std::fmt::Write as _;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::PollFlags;
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, accept_with, bind, connect, listen, recv,
    send, socket_with, sockopt,
};

use super::record::{BadRecord, RECORD_LEN, Record};
use super::xsrq::record::{XRC_RECORD_LEN, XrcRecord};
use crate::perf::wire::Message;
use crate::signal::{Interrupted, Stop, Timeout, Wake};

/// Timeout of each step of the exchange. A server waits for its client without limit.
pub(crate) const EXCHANGE_TIMEOUT: Duration = Duration::from_secs(10);
/// Added to the timeout for each further queue pair, which the peer connects between the steps.
pub(crate) const TIMEOUT_PER_QP: Duration = Duration::from_millis(100);

/// Added to the timeout for each MiB of messages, whose memory the peer fills and registers between the
/// steps. Guests without KVM are slow.
const TIMEOUT_PER_MIB: Duration = Duration::from_secs(2);

const DONE: &[u8; 5] = b"done\0";
const END: &[u8; 4] = b"END\0";

/// Why the exchange failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ExchangeError {
    #[error("cannot listen on TCP port {port}")]
    Listen { port: u16, source: io::Error },
    #[error("cannot accept a client: {0}")]
    Accept(io::Error),
    #[error("no address for host {host}")]
    NoAddress { host: String, source: io::Error },
    #[error("cannot connect to {host}:{port}:{attempts}")]
    Connect { host: String, port: u16, attempts: String },
    #[error("cannot set keepalive on the connection: {0}")]
    KeepAlive(io::Error),
    #[error("cannot write {what}")]
    Write { what: Item, source: io::Error },
    #[error("only {written} of the {} bytes of {what} were written", what.len())]
    ShortWrite { what: Item, written: usize },
    #[error("cannot read {what}")]
    Read { what: Item, source: io::Error },
    #[error("the peer closed the connection after {received} of the {} bytes of {what}", what.len())]
    Closed { what: Item, received: usize },
    #[error("timeout after {received} of the {} bytes of {what}: the peer sent nothing for {}", what.len(), seconds(*timeout))]
    Stalled { what: Item, received: usize, timeout: Duration },
    #[error("the peer sent more than the {} bytes of {what}", what.len())]
    TooMuch { what: Item },
    #[error("invalid address record from the peer")]
    InvalidRecord(#[from] BadRecord),
    #[error("the peer uses {theirs} QPs, this side {ours}: both sides need the same -q")]
    QpCountMismatch { ours: usize, theirs: usize },
    #[error("the peer ended the exchange with \"{0}\" instead of \"done\\0\"")]
    NotDone(String),
    #[error("the peer ended the run with \"{0}\" instead of \"END\\0\"")]
    NotEnded(String),
    #[error("the exchange with the peer was interrupted")]
    Interrupted(#[from] Interrupted),
}

/// The item that was written or read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Item {
    OwnRecord,
    PeerRecords(usize),
    OwnXrcRecord,
    PeerXrcRecord,
    Done,
    /// The closing item of the XRC ping-pong, which both sides send.
    End,
    /// A message of perftest's exchange.
    Perf(Message),
}

impl Item {
    fn len(self) -> usize {
        match self {
            Self::OwnRecord => RECORD_LEN,
            Self::PeerRecords(count) => count * RECORD_LEN,
            Self::OwnXrcRecord | Self::PeerXrcRecord => XRC_RECORD_LEN,
            Self::Done => DONE.len(),
            Self::End => END.len(),
            Self::Perf(message) => message.len(),
        }
    }
}

impl std::fmt::Display for Item {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::OwnRecord | Self::OwnXrcRecord => f.write_str("the local address record"),
            Self::PeerRecords(1) | Self::PeerXrcRecord => f.write_str("its address record"),
            Self::PeerRecords(count) => write!(f, "its {count} address records"),
            Self::Done | Self::End => f.write_str("its closing message"),
            Self::Perf(message) => message.fmt(f),
        }
    }
}

fn seconds(time: Duration) -> String {
    format!("{} s", time.as_secs_f32())
}

/// A server's socket, on every address of the host.
#[derive(Debug)]
pub(crate) struct Server {
    socket: OwnedFd,
}

impl Server {
    /// Listens for IPv6 and IPv4 clients, or for IPv4 only if the kernel has no IPv6.
    pub(crate) fn listen(port: u16) -> Result<Self, ExchangeError> {
        Self::listen_for(port, 1)
    }

    /// `listen` with a backlog of `clients`.
    pub(crate) fn listen_for(port: u16, clients: i32) -> Result<Self, ExchangeError> {
        let open = |address: SocketAddr| -> rustix::io::Result<OwnedFd> {
            let socket = socket_for(&address)?;
            sockopt::set_socket_reuseaddr(&socket, true)?;
            if address.is_ipv6() {
                sockopt::set_ipv6_v6only(&socket, false)?;
            }
            bind(&socket, &address)?;
            listen(&socket, clients)?;
            Ok(socket)
        };
        open((Ipv6Addr::UNSPECIFIED, port).into())
            .or_else(|errno| match errno {
                Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL => open((Ipv4Addr::UNSPECIFIED, port).into()),
                other => Err(other),
            })
            .map(|socket| Self { socket })
            .map_err(|errno| ExchangeError::Listen { port, source: errno.into() })
    }

    /// Waits for a client.
    pub(crate) fn accept<'s>(&self, stop: &'s Stop) -> Result<Peer<'s>, ExchangeError> {
        loop {
            if let Some(peer) = self.accept_within(stop, None)? {
                return Ok(peer);
            }
        }
    }

    /// Waits for a client, up to a limit.
    pub(crate) fn accept_within<'s>(
        &self,
        stop: &'s Stop,
        limit: Option<Duration>,
    ) -> Result<Option<Peer<'s>>, ExchangeError> {
        let mut timeout = limit.map(Timeout::after);
        loop {
            let woken = stop.wait(self.socket.as_fd(), PollFlags::IN, timeout.as_mut());
            match woken.map_err(ExchangeError::Accept)? {
                Wake::Stopped => return Err(Interrupted.into()),
                Wake::TimedOut => return Ok(None),
                Wake::Ready => {}
            }
            match accept_with(&self.socket, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(socket) => return Ok(Some(Peer { socket, stop, timeout: EXCHANGE_TIMEOUT })),
                // The client has already closed the connection.
                Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => {}
                Err(errno) => return Err(ExchangeError::Accept(errno.into())),
            }
        }
    }
}

/// The connection to the peer.
#[derive(Debug)]
pub(crate) struct Peer<'s> {
    socket: OwnedFd,
    stop: &'s Stop,
    timeout: Duration,
}

impl<'s> Peer<'s> {
    /// A peer on `socket`, which is non-blocking.
    #[cfg(feature = "test-utils")]
    pub(crate) fn from_socket(socket: OwnedFd, stop: &'s Stop, timeout: Duration) -> Self {
        Self { socket, stop, timeout }
    }

    /// Connects to the first address of the host that answers.
    pub(crate) fn connect(host: &str, port: u16, stop: &'s Stop) -> Result<Self, ExchangeError> {
        let addresses = (host, port)
            .to_socket_addrs()
            .map_err(|source| ExchangeError::NoAddress { host: host.into(), source })?;
        let mut attempts = String::new();
        let mut refused = false;
        for address in addresses {
            match Self::connect_to(address, stop, EXCHANGE_TIMEOUT) {
                Ok(Some(socket)) => return Ok(Self { socket, stop, timeout: EXCHANGE_TIMEOUT }),
                Ok(None) => return Err(Interrupted.into()),
                Err(error) => {
                    refused |= error.kind() == io::ErrorKind::ConnectionRefused;
                    let between = if attempts.is_empty() { ' ' } else { ';' };
                    let _ = write!(attempts, "{between}{}: {error}", address.ip());
                }
            }
        }
        if refused {
            attempts += ": no server waits there: start it first";
        }
        Err(ExchangeError::Connect { host: host.into(), port, attempts })
    }

    fn connect_to(address: SocketAddr, stop: &Stop, timeout: Duration) -> io::Result<Option<OwnedFd>> {
        let socket = socket_for(&address)?;
        match connect(&socket, &address) {
            Ok(()) => return Ok(Some(socket)),
            Err(Errno::INPROGRESS) => {}
            Err(errno) => return Err(errno.into()),
        }
        match stop.wait(socket.as_fd(), PollFlags::OUT, Some(&mut Timeout::after(timeout)))? {
            Wake::Stopped => Ok(None),
            Wake::TimedOut => {
                Err(io::Error::new(io::ErrorKind::TimedOut, format!("no response for {}", seconds(timeout))))
            }
            Wake::Ready => {
                sockopt::socket_error(&socket)??;
                Ok(Some(socket))
            }
        }
    }

    /// The address of the other end, if the socket has one.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        rustix::net::getpeername(&self.socket).ok().flatten().and_then(|address| address.try_into().ok())
    }

    /// Extends the timeout for a run on several queue pairs.
    pub(crate) fn with_queue_pairs(self, queue_pairs: u32) -> Self {
        Self { timeout: self.timeout + TIMEOUT_PER_QP * queue_pairs.saturating_sub(1), ..self }
    }

    /// Extends the timeout for messages of `len` bytes.
    pub(crate) fn with_messages(self, len: u32) -> Self {
        Self { timeout: self.timeout + TIMEOUT_PER_MIB * (len >> 20), ..self }
    }

    /// Writes the local records, each with one call, then blank ones up to `places`.
    pub(crate) fn send_records(&self, records: &[Record], places: usize) -> Result<(), ExchangeError> {
        let blanks = std::iter::repeat_n(&Record::BLANK, places.saturating_sub(records.len()));
        records.iter().chain(blanks).try_for_each(|record| self.send(&record.encode(), Item::OwnRecord))
    }

    /// Reads `places` records: `ours` used records, then blank ones.
    pub(crate) fn receive_records(&self, ours: usize, places: usize) -> Result<Vec<Record>, ExchangeError> {
        let bytes = self.receive(Item::PeerRecords(places))?;
        let (records, _) = bytes.as_chunks();
        let mut records = records.iter().map(Record::decode).collect::<Result<Vec<_>, _>>()?;
        // A peer's queue pair never has the number 0.
        let theirs = records.iter().take_while(|record| record.qpn != 0).count();
        if theirs != ours && places > 1 {
            return Err(ExchangeError::QpCountMismatch { ours, theirs });
        }
        records.truncate(ours);
        Ok(records)
    }

    /// Ends the exchange as the client.
    pub(crate) fn send_done(&self) -> Result<(), ExchangeError> {
        self.send(DONE, Item::Done)
    }

    /// Waits for the client's end of the exchange.
    pub(crate) fn receive_done(&self) -> Result<(), ExchangeError> {
        let bytes = self.receive(Item::Done)?;
        if bytes == DONE { Ok(()) } else { Err(ExchangeError::NotDone(bytes.escape_ascii().to_string())) }
    }

    /// Writes the local record of a run over XRC.
    pub(crate) fn send_xrc_record(&self, record: &XrcRecord) -> Result<(), ExchangeError> {
        self.send(&record.encode(), Item::OwnXrcRecord)
    }

    /// Reads the peer's record of a run over XRC.
    pub(crate) fn receive_xrc_record(&self) -> Result<XrcRecord, ExchangeError> {
        let bytes = self.receive(Item::PeerXrcRecord)?;
        let record = bytes.first_chunk().expect("the length is that of a record");
        Ok(XrcRecord::decode(record)?)
    }

    /// Sends the end of a run over XRC: this side has received all its messages.
    pub(crate) fn send_end(&self) -> Result<(), ExchangeError> {
        self.send(END, Item::End)
    }

    /// Waits for the peer's end of a run over XRC.
    pub(crate) fn receive_end(&self) -> Result<(), ExchangeError> {
        let bytes = self.receive(Item::End)?;
        if bytes == END { Ok(()) } else { Err(ExchangeError::NotEnded(bytes.escape_ascii().to_string())) }
    }

    /// Writes an item with one call.
    pub(crate) fn send(&self, bytes: &[u8], what: Item) -> Result<(), ExchangeError> {
        let failed = |source| ExchangeError::Write { what, source };
        let mut timeout = Timeout::after(self.timeout);
        loop {
            match send(&self.socket, bytes, SendFlags::NOSIGNAL) {
                Ok(written) if written == bytes.len() => return Ok(()),
                Ok(written) => return Err(ExchangeError::ShortWrite { what, written }),
                Err(Errno::AGAIN) => {}
                Err(errno) => return Err(failed(errno.into())),
            }
            match self.stop.wait(self.socket.as_fd(), PollFlags::OUT, Some(&mut timeout)).map_err(failed)? {
                Wake::Stopped => return Err(Interrupted.into()),
                Wake::TimedOut => return Err(failed(io::ErrorKind::TimedOut.into())),
                Wake::Ready => {}
            }
        }
    }

    /// Reads one item, in any number of pieces.
    pub(crate) fn receive(&self, what: Item) -> Result<Vec<u8>, ExchangeError> {
        self.receive_until(what, Some(Timeout::after(self.timeout)))
    }

    /// Reads one item and waits for it without limit. The end of the connection ends the wait, and
    /// a host that no longer answers ends the connection.
    pub(crate) fn receive_patiently(&self, what: Item) -> Result<Vec<u8>, ExchangeError> {
        self.receive_until(what, None)
    }

    /// Lets the kernel probe a peer that is silent for 5 s, and end the connection after 5 probes.
    pub(crate) fn keep_alive(&self) -> Result<(), ExchangeError> {
        let set = || {
            sockopt::set_tcp_keepidle(&self.socket, Duration::from_secs(5))?;
            sockopt::set_tcp_keepintvl(&self.socket, Duration::from_secs(1))?;
            sockopt::set_tcp_keepcnt(&self.socket, 5)?;
            sockopt::set_socket_keepalive(&self.socket, true)
        };
        set().map_err(|errno: Errno| ExchangeError::KeepAlive(errno.into()))
    }

    /// The descriptor of the connection.
    pub(crate) fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn receive_until(&self, what: Item, mut timeout: Option<Timeout>) -> Result<Vec<u8>, ExchangeError> {
        let failed = |source| ExchangeError::Read { what, source };
        // The sides take turns, so a further byte is an error (`ExchangeError::TooMuch`). The
        // buffer has room for one more byte to detect it.
        let mut bytes = vec![0; what.len() + 1];
        let mut received = 0;
        while received < what.len() {
            match self.stop.wait(self.socket.as_fd(), PollFlags::IN, timeout.as_mut()).map_err(failed)? {
                Wake::Stopped => return Err(Interrupted.into()),
                Wake::TimedOut => {
                    return Err(ExchangeError::Stalled { what, received, timeout: self.timeout });
                }
                Wake::Ready => {}
            }
            match recv(&self.socket, &mut bytes[received..], RecvFlags::empty()) {
                Ok((0, _)) => return Err(ExchangeError::Closed { what, received }),
                Ok((count, _)) => received += count,
                Err(Errno::AGAIN | Errno::INTR) => {}
                Err(errno) => return Err(failed(errno.into())),
            }
        }
        if received > what.len() {
            return Err(ExchangeError::TooMuch { what });
        }
        bytes.truncate(received);
        Ok(bytes)
    }
}

fn socket_for(address: &SocketAddr) -> rustix::io::Result<OwnedFd> {
    let family = if address.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::thread;

    const OURS: Record = Record { lid: 0, qpn: 0x11, psn: 0x22, gid: Ipv6Addr::LOCALHOST };
    const THEIRS: Record = Record { lid: 7, qpn: 0x33, psn: 0x44, gid: Ipv6Addr::UNSPECIFIED };
    const SOON: Duration = Duration::from_millis(200);

    fn port_of(server: &Server) -> u16 {
        let address = rustix::net::getsockname(&server.socket).unwrap();
        SocketAddr::try_from(address).unwrap().port()
    }

    /// The server's part of the exchange with `client` as the peer.
    fn serve(client: impl FnOnce(TcpStream) + Send) -> Result<Record, ExchangeError> {
        let stop = Stop::new().unwrap();
        let server = Server::listen(0).unwrap();
        let port = port_of(&server);
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

    #[test]
    fn timeout_grows_with_queue_pairs_and_messages() {
        let stop = Stop::new().unwrap();
        let (socket, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let peer = Peer { socket: socket.into(), stop: &stop, timeout: EXCHANGE_TIMEOUT };
        let peer = peer.with_queue_pairs(11).with_messages(8 << 20);
        assert_eq!(peer.timeout, EXCHANGE_TIMEOUT + 10 * TIMEOUT_PER_QP + 8 * TIMEOUT_PER_MIB);
        assert_eq!(peer.with_queue_pairs(1).with_messages(65536).timeout, Duration::from_secs(27));
    }

    /// The client's part of the exchange with `server` as the peer.
    fn call(server: impl FnOnce(TcpStream) + Send) -> Result<Record, ExchangeError> {
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

    fn error(result: Result<Record, ExchangeError>) -> String {
        whole(result.expect_err("the exchange must fail"))
    }

    /// The error with its causes, as the program prints it.
    fn whole(error: ExchangeError) -> String {
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
            let port = port_of(&server);
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
    fn connection_refused_error_names_the_address() {
        let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        let stop = Stop::new().unwrap();
        let text = whole(Peer::connect("127.0.0.1", free, &stop).unwrap_err());
        assert_eq!(
            text,
            format!(
                "cannot connect to 127.0.0.1:{free}: 127.0.0.1: Connection refused (os error 111): no server \
                 waits there: start it first"
            )
        );
    }

    #[test]
    fn unresolvable_host_is_reported() {
        let stop = Stop::new().unwrap();
        let text = whole(Peer::connect("no host has spaces", 1, &stop).unwrap_err());
        assert!(text.starts_with("no address for host no host has spaces: "), "{text}");
    }

    #[test]
    fn tcp_port_in_use_is_reported() {
        let first = Server::listen(0).unwrap();
        let port = port_of(&first);
        let text = whole(Server::listen(port).unwrap_err());
        assert_eq!(text, format!("cannot listen on TCP port {port}: Address already in use (os error 98)"));
    }

    #[test]
    fn server_waits_forever_and_can_be_interrupted() {
        let stop = Stop::new().unwrap();
        let server = Server::listen(0).unwrap();
        stop.trigger();
        assert!(matches!(server.accept(&stop), Err(ExchangeError::Interrupted(_))));
    }

    #[test]
    fn exchange_can_be_interrupted() {
        let stop = Stop::new().unwrap();
        let server = Server::listen(0).unwrap();
        let port = port_of(&server);
        let client = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        let peer = server.accept(&stop).unwrap();
        stop.trigger();
        let error = peer.receive_records(1, 1).unwrap_err();
        let cause = std::error::Error::source(&error).and_then(|cause| cause.downcast_ref::<Interrupted>());
        assert!(cause.is_some(), "{error:?} gives the program's exit status away");
        drop(client);
    }
}
