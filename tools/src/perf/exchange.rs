//! The control connection: perftest's exchange in both roles.
//!
//! Every exchange is symmetric. The client writes its message and then reads the peer's; the server
//! reads first. So at most one message is in flight in each direction.

use bareverbs::values::Mtu;

use super::control::Control;
use super::wire::{
    BadMessage, BandwidthReport, KeyForm, KeyRecord, Message, Version, decode_mtu, decode_settings,
    decode_size, encode_mtu, encode_settings,
};
pub(crate) use crate::session::Role;
use crate::session::exchange::ExchangeError;

/// Why the exchange failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProtocolError {
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    #[error(transparent)]
    Message(#[from] BadMessage),
    #[error(
        "the two sides differ: the peer has {theirs}, this side {ours}; start both with the same \
         operation and options"
    )]
    Settings { ours: String, theirs: String },
    #[error("the peer's QP number is 0: the peer is not a perftest that runs this test")]
    NoQp,
    #[error("the peer is perftest {0}: {1} needs this program on both sides, with the same options")]
    OnlyBareverbs(Version, &'static str),
    #[error(
        "the peer is perftest {0}, whose address record over the connection manager (--cm, -R) is not known"
    )]
    BinaryRecord(Version),
}

/// Largest cycle buffer that is accepted from a peer. Pages of Linux have at most 64 KiB.
const MAX_CYCLE_BUFFER: i32 = 1 << 20;
/// Largest cache line that is accepted from a peer.
const MAX_CACHE_LINE: i32 = 1 << 12;

/// What both sides agreed on before the address records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Preamble {
    pub(crate) peer: Version,
    /// Bytes of the buffer that short messages cycle through.
    pub(crate) cycle_buffer: u32,
    pub(crate) cache_line: u32,
    pub(crate) mtu: Mtu,
}

/// A connected control connection.
#[derive(Debug)]
pub(crate) struct Exchange<'s> {
    control: Control<'s>,
    role: Role,
    form: KeyForm,
}

impl<'s> Exchange<'s> {
    pub(crate) fn new(control: Control<'s>, role: Role, form: KeyForm) -> Self {
        Self { control, role, form }
    }

    pub(crate) fn control(&self) -> &Control<'s> {
        &self.control
    }

    /// Exchanges messages of equal length. A patient side waits for the peer without limit.
    fn swap(&self, what: Message, ours: &[u8], patient: bool) -> Result<Vec<u8>, ExchangeError> {
        let item = what.item();
        let receive = || self.control.receive(item, patient);
        match self.role {
            Role::Client => {
                self.control.send(ours, item)?;
                receive()
            }
            Role::Server => {
                let theirs = receive()?;
                self.control.send(ours, item)?;
                Ok(theirs)
            }
        }
    }

    fn swap_array<const N: usize>(&self, what: Message, ours: [u8; N]) -> Result<[u8; N], ExchangeError> {
        let theirs = self.swap(what, &ours, false)?;
        Ok(*theirs.first_chunk().expect("the message has the length that was read"))
    }

    /// The messages before the address records. `settings` are compared with those of a peer that
    /// is this program.
    pub(crate) fn preamble(&self, local: Preamble, settings: &[String]) -> Result<Preamble, ProtocolError> {
        let peer = Version::decode(&self.swap_array(Message::Version, local.peer.encode())?)?;
        if self.form == KeyForm::Binary && peer.hundredths >= Version::LONGER_BINARY_RECORD {
            return Err(ProtocolError::BinaryRecord(peer));
        }
        let size = |what, ours: u32, max| {
            let theirs = self.swap_array(what, ours.to_be_bytes())?;
            Ok::<_, ProtocolError>(ours.max(decode_size(what, theirs, max)?))
        };
        let cycle_buffer = size(Message::CycleBuffer, local.cycle_buffer, MAX_CYCLE_BUFFER)?;
        let cache_line = size(Message::CacheLine, local.cache_line, MAX_CACHE_LINE)?;
        let theirs = decode_mtu(self.swap_array(Message::Mtu, encode_mtu(local.mtu))?);
        let mtu = theirs.map_or(local.mtu, |theirs| theirs.min(local.mtu));
        if peer.bareverbs && local.peer.bareverbs {
            let theirs = self.swap_array(Message::Settings, encode_settings(settings))?;
            compare_settings(settings, &decode_settings(&theirs)?)?;
        }
        Ok(Preamble { peer, cycle_buffer, cache_line, mtu })
    }

    /// Exchanges the records of all queue pairs.
    pub(crate) fn keys(&self, ours: &[KeyRecord]) -> Result<Vec<KeyRecord>, ProtocolError> {
        ours.iter().map(|record| self.key(record, false)).collect()
    }

    /// Waits until the peer is at the same place: an exchange of the first queue pair's record.
    pub(crate) fn barrier(&self, first: &KeyRecord) -> Result<KeyRecord, ProtocolError> {
        self.key(first, true)
    }

    fn key(&self, record: &KeyRecord, patient: bool) -> Result<KeyRecord, ProtocolError> {
        let theirs = self.swap(Message::Key(self.form), &record.encode(self.form), patient)?;
        let theirs = KeyRecord::decode(self.form, &theirs)?;
        if theirs.qpn == 0 { Err(ProtocolError::NoQp) } else { Ok(theirs) }
    }

    /// Waits until the peer is at the same place, before there are queue pairs: an exchange of an empty
    /// record.
    pub(crate) fn sync(&self) -> Result<(), ProtocolError> {
        let ours = KeyRecord::default().encode(self.form);
        let theirs = self.swap(Message::Key(self.form), &ours, true)?;
        KeyRecord::decode(self.form, &theirs)?;
        Ok(())
    }

    /// Exchanges the bandwidth reports. That of the peer is not checked.
    pub(crate) fn report(&self, ours: &BandwidthReport) -> Result<BandwidthReport, ProtocolError> {
        let mut theirs = [[0; 8]; 5];
        for (bytes, theirs) in ours.encode().into_iter().zip(&mut theirs) {
            *theirs = self.swap_array(Message::Report, bytes)?;
        }
        Ok(BandwidthReport::decode(theirs))
    }

    /// Exchanges the numbers of messages that the queue pairs have sent. The peer may still run.
    pub(crate) fn counts(&self, ours: &[u64]) -> Result<Vec<u64>, ProtocolError> {
        ours.iter().map(|&count| self.number(Message::Count, count)).collect()
    }

    /// Exchanges whether the data was as expected. Returns the peer's answer.
    pub(crate) fn outcome(&self, correct: bool) -> Result<bool, ProtocolError> {
        Ok(self.number(Message::Outcome, correct.into())? == 1)
    }

    fn number(&self, what: Message, ours: u64) -> Result<u64, ProtocolError> {
        let theirs = self.swap(what, &ours.to_be_bytes(), true)?;
        Ok(u64::from_be_bytes(*theirs.first_chunk().expect("the message has the length that was read")))
    }
}

/// Compares the settings word by word.
fn compare_settings(ours: &[String], theirs: &[String]) -> Result<(), ProtocolError> {
    let only = |some: &[String], others: &[String]| {
        let words: Vec<_> = some.iter().filter(|word| !others.contains(word)).cloned().collect();
        if words.is_empty() { "nothing more".to_owned() } else { words.join(", ") }
    };
    if ours.iter().all(|word| theirs.contains(word)) && ours.len() == theirs.len() {
        return Ok(());
    }
    Err(ProtocolError::Settings { ours: only(ours, theirs), theirs: only(theirs, ours) })
}

#[cfg(all(test, feature = "test-utils"))]
mod tests {
    use super::*;
    use crate::session::exchange::Peer;
    use crate::signal::Stop;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    const KEY: KeyRecord = KeyRecord {
        lid: 0,
        out_reads: 1,
        qpn: 0x11,
        psn: 0x22,
        rkey: 0x33,
        vaddr: 0x4000,
        gid: Some(std::net::Ipv6Addr::LOCALHOST),
        srqn: 0,
    };

    fn local(bareverbs: bool) -> Preamble {
        let peer = Version { bareverbs, ..Version::OURS };
        Preamble { peer, cycle_buffer: 4096, cache_line: 64, mtu: Mtu::Mtu1024 }
    }

    /// Runs a side against `other`, which has the other end of the connection.
    fn against<T>(
        role: Role,
        other: impl FnOnce(UnixStream) + Send,
        run: impl FnOnce(&Exchange<'_>) -> Result<T, ProtocolError>,
    ) -> Result<T, ProtocolError> {
        let stop = Stop::new().unwrap();
        let (ours, theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let peer = Peer::from_socket(ours.into(), &stop, Duration::from_millis(300));
        std::thread::scope(|scope| {
            scope.spawn(move || other(theirs));
            run(&Exchange::new(Control::Tcp(peer), role, KeyForm::Gid))
        })
    }

    /// A side of this program, for the other end.
    fn exchange(socket: UnixStream, role: Role, run: impl FnOnce(&Exchange<'_>)) {
        let stop = Stop::new().unwrap();
        socket.set_nonblocking(true).unwrap();
        let peer = Peer::from_socket(socket.into(), &stop, Duration::from_millis(300));
        run(&Exchange::new(Control::Tcp(peer), role, KeyForm::Gid));
    }

    #[test]
    fn client_sends_the_bytes_of_perftest() {
        let mut heard = Vec::new();
        let agreed = against(
            Role::Client,
            |mut stream| {
                let answers: [&[u8]; 5] = [
                    b"6.24\0\0\0\0\0\0\0\0\0\0\0\0",
                    &[0, 0, 0x40, 0],
                    &[0, 0, 0, 128],
                    b"2\0",
                    &KeyRecord { qpn: 0x99, ..KEY }.encode(KeyForm::Gid),
                ];
                for answer in answers {
                    let mut bytes = vec![0; answer.len()];
                    assert_eq!(stream.read(&mut bytes).unwrap(), answer.len(), "one read has the message");
                    heard.extend(bytes);
                    stream.write_all(answer).unwrap();
                }
            },
            |exchange| {
                let agreed = exchange.preamble(local(true), &[])?;
                assert_eq!(exchange.keys(&[KEY])?[0].qpn, 0x99);
                Ok(agreed)
            },
        );
        let agreed = agreed.unwrap();
        assert_eq!((agreed.cycle_buffer, agreed.cache_line, agreed.mtu), (0x4000, 128, Mtu::Mtu512));
        let version = b"6.24\0bareverbs1\0".as_slice();
        let rest = [&[0, 0, 0x10, 0][..], &[0, 0, 0, 64], b"3\0", &KEY.encode(KeyForm::Gid)].concat();
        assert_eq!(heard, [version, &rest].concat());
    }

    #[test]
    fn sides_agree_on_sizes_mtu_and_reports() {
        let settings = ["op=write".to_owned()];
        let report = BandwidthReport { size: 4096, iterations: 10, average: 1.5, ..Default::default() };
        let other = settings.clone();
        against(
            Role::Server,
            move |socket| {
                exchange(socket, Role::Client, |exchange| {
                    let mine = Preamble { mtu: Mtu::Mtu4096, cycle_buffer: 65536, ..local(true) };
                    let agreed = exchange.preamble(mine, &other).unwrap();
                    assert_eq!((agreed.cycle_buffer, agreed.mtu), (65536, Mtu::Mtu1024));
                    assert_eq!(exchange.barrier(&KEY).unwrap().qpn, 0x12);
                    assert_eq!(exchange.report(&BandwidthReport::default()).unwrap(), report);
                });
            },
            |exchange| {
                assert_eq!(exchange.preamble(local(true), &settings)?.cycle_buffer, 65536);
                exchange.barrier(&KeyRecord { qpn: 0x12, ..KEY })?;
                exchange.report(&report)
            },
        )
        .unwrap();
    }

    #[test]
    fn different_settings_are_named() {
        let error = against(
            Role::Server,
            |socket| {
                exchange(socket, Role::Client, |exchange| {
                    let settings = ["op=write".to_owned(), "size=4096".to_owned()];
                    assert!(exchange.preamble(local(true), &settings).is_err());
                });
            },
            |exchange| exchange.preamble(local(true), &["op=write".to_owned(), "size=64".to_owned()]),
        );
        let text = error.unwrap_err().to_string();
        assert!(text.contains("the peer has size=4096, this side size=64"), "{text}");
    }

    #[test]
    fn peers_that_speak_garbage_are_reported() {
        for (bytes, words) in [
            (&b"HTTP/1.1 400 Bad"[..], "it is not perftest"),
            (b"5.60\0\0\0\0\0\0\0\0\0\0\0\0", "too old"),
            (b"6.24\0\0\0\0\0\0\0\0\0\0\0\0\xff\xff\xff\xff", "out of range"),
            (b"6.24", "4 of the 16 bytes"),
            (b"", "0 of the 16 bytes"),
        ] {
            let error = against(
                Role::Server,
                |mut stream| {
                    let (first, rest) = bytes.split_at(bytes.len().min(16));
                    stream.write_all(first).unwrap();
                    let mut answer = [0; 16];
                    if !rest.is_empty() {
                        stream.read_exact(&mut answer).unwrap();
                        stream.write_all(rest).unwrap();
                    }
                    stream.shutdown(std::net::Shutdown::Write).unwrap();
                    let _ = stream.read_to_end(&mut Vec::new());
                },
                |exchange| exchange.preamble(local(true), &[]),
            );
            let text = error.unwrap_err().to_string();
            assert!(text.contains(words), "{text}");
        }
    }
}
