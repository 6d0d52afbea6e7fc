//! The messages of perftest's control connection, as bytes.
//!
//! Every message has a fixed length and no header. Numbers are big-endian or text. The layout is
//! that of perftest 6.24, which all versions since 5.70 understand.

use std::fmt;
use std::net::Ipv6Addr;

use serde::{Deserialize, Serialize};

use crate::session::exchange::Item;
use crate::session::hex::{BadRecord, read_hex, write_hex};

/// Bytes of the version record.
pub(crate) const VERSION_LEN: usize = 16;
/// Bytes of the settings that two sides of this program compare.
pub(crate) const SETTINGS_LEN: usize = 256;
/// The mark of this program, after the NUL that ends the version. perftest does not read it.
const MARK: &[u8; 11] = b"bareverbs1\0";

/// A message of the exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Message {
    Version,
    /// The size of the buffer that messages cycle through: a page.
    CycleBuffer,
    CacheLine,
    Mtu,
    /// Only between two sides of this program.
    Settings,
    Key(KeyForm),
    /// A value of the bandwidth report.
    Report,
    /// The messages that a queue pair has sent. Only between two sides of this program.
    Count,
    /// Whether the data was as expected. Only between two sides of this program.
    Outcome,
}

/// The largest figure that a peer or a file may have. Sums and ratios of such figures are finite.
pub(crate) const LARGEST_FIGURE: f64 = 1e18;

/// The values of a bandwidth report, in order.
const REPORT: [&str; 5] = ["size", "iterations", "peak bandwidth", "average bandwidth", "message rate"];

impl Message {
    pub(crate) fn item(self) -> Item {
        Item { name: self.name(), len: self.len() }
    }

    fn len(self) -> usize {
        match self {
            Self::Version => VERSION_LEN,
            Self::CycleBuffer | Self::CacheLine => 4,
            Self::Mtu => 2,
            Self::Settings => SETTINGS_LEN,
            Self::Key(form) => form.len(),
            Self::Report | Self::Count | Self::Outcome => 8,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Version => "the version record",
            Self::CycleBuffer => "the size of the cycle buffer",
            Self::CacheLine => "the size of a cache line",
            Self::Mtu => "the MTU",
            Self::Settings => "the settings",
            Self::Key(_) => "the address record",
            Self::Count => "the number of messages",
            Self::Outcome => "the outcome of the comparison",
            Self::Report => "a value of the report",
        }
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A message that can't be decoded.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum BadMessage {
    #[error("the peer's version record {0:?} is not a number: it is not perftest")]
    NoVersion(String),
    #[error("the peer announces perftest {0}, which is too old: 5.70 or later is needed")]
    TooOld(Version),
    #[error("{what} of {value} bytes is out of range (1 to {max})")]
    Size { what: Message, value: i32, max: i32 },
    #[error("the peer's address record is not valid: {0}")]
    Record(#[from] BadRecord),
    #[error("the peer's address record has {0} bytes instead of {BINARY_LEN}")]
    Binary(usize),
    #[error("the peer's address record has {value:#x} at byte {at}, a number of 16 bits")]
    Field { at: usize, value: u32 },
    #[error("the settings of the peer are not text")]
    Settings,
    #[error("the peer reports a {what} of {value}, which is not a rate")]
    Rate { what: &'static str, value: f64 },
}

/// The announced version of perftest, and whether the side is this program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Version {
    /// 624 is 6.24.
    pub(crate) hundredths: u32,
    pub(crate) bareverbs: bool,
}

impl Version {
    /// From 6.28 on, perftest exchanges a negotiation record that depends on its build.
    pub(crate) const OURS: Self = Self { hundredths: 624, bareverbs: true };
    /// perftest's first version with more bytes in a binary record.
    pub(crate) const LONGER_BINARY_RECORD: u32 = 629;
    /// perftest rejects older versions.
    const OLDEST: u32 = 570;

    pub(crate) fn encode(self) -> [u8; VERSION_LEN] {
        let mut bytes = [0; VERSION_LEN];
        let number = format!("{self}");
        let end = number.len().min(VERSION_LEN);
        bytes[..end].copy_from_slice(&number.as_bytes()[..end]);
        if self.bareverbs && end + 1 + MARK.len() <= VERSION_LEN {
            bytes[end + 1..end + 1 + MARK.len()].copy_from_slice(MARK);
        }
        bytes
    }

    /// perftest reads the text up to the NUL as a decimal fraction.
    pub(crate) fn decode(bytes: &[u8; VERSION_LEN]) -> Result<Self, BadMessage> {
        let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(VERSION_LEN);
        let text = &bytes[..end];
        let bad = || BadMessage::NoVersion(text.escape_ascii().to_string());
        let (whole, fraction) = match text.iter().position(|&byte| byte == b'.') {
            Some(dot) => (&text[..dot], &text[dot + 1..]),
            None => (text, &[][..]),
        };
        let digit = |&byte: &u8| char::from(byte).to_digit(10).ok_or_else(bad);
        if whole.is_empty() || whole.len() > 6 {
            return Err(bad());
        }
        let major = whole.iter().try_fold(0, |value, byte| Ok::<_, BadMessage>(value * 10 + digit(byte)?))?;
        let digits = fraction.iter().map(digit).collect::<Result<Vec<_>, _>>()?;
        let place = |index: usize| digits.get(index).copied().unwrap_or(0);
        let hundredths = major * 100 + place(0) * 10 + place(1);
        let rest = &bytes[end..];
        let bareverbs = rest.get(1..).is_some_and(|rest| rest.starts_with(MARK));
        let version = Self { hundredths, bareverbs };
        if hundredths < Self::OLDEST { Err(BadMessage::TooOld(version)) } else { Ok(version) }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:02}", self.hundredths / 100, self.hundredths % 100)
    }
}

/// Decodes a size in bytes from 1 to `max`: a cycle buffer or a cache line.
pub(crate) fn decode_size(what: Message, bytes: [u8; 4], max: i32) -> Result<u32, BadMessage> {
    let value = i32::from_be_bytes(bytes);
    match u32::try_from(value) {
        Ok(size) if size > 0 && value <= max => Ok(size),
        _ => Err(BadMessage::Size { what, value, max }),
    }
}

/// Encodes an MTU in the encoding of `enum ibv_mtu`, as a digit and a NUL.
pub(crate) fn encode_mtu(mtu: bareverbs::values::Mtu) -> [u8; 2] {
    [b'0' + mtu as u8, 0]
}

/// Decodes an MTU. perftest ignores a value that is none.
pub(crate) fn decode_mtu(bytes: [u8; 2]) -> Option<bareverbs::values::Mtu> {
    bareverbs::values::Mtu::from_raw(bytes[0].wrapping_sub(b'0'))
}

/// The form of the address record. Both sides need the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyForm {
    /// Without a GID: InfiniBand, where no GID index was given.
    Lid,
    Gid,
    /// With `--cm`: numbers, as perftest has them up to 6.28.
    Binary,
}

/// Widths in digits of the fields before the GID.
const WIDTHS: [usize; 6] = [4, 4, 6, 6, 8, 16];
/// Bytes of the fields of `WIDTHS`, with a separator after each.
const HEAD_LEN: usize = 4 + 4 + 6 + 6 + 8 + 16 + WIDTHS.len();
const GID_BYTES: usize = 16;
/// Bytes of a binary record.
const BINARY_LEN: usize = 56;
/// Digits of the SRQ number.
const SRQN_WIDTH: usize = 8;

impl KeyForm {
    pub(crate) const fn len(self) -> usize {
        // The closing NUL, and with a GID a separator before it.
        match self {
            Self::Lid => HEAD_LEN + SRQN_WIDTH + 1,
            Self::Gid => HEAD_LEN + 3 * GID_BYTES + SRQN_WIDTH + 2,
            Self::Binary => BINARY_LEN,
        }
    }

    /// The ranges of the fields, in order: those of `WIDTHS`, the bytes of the GID, the SRQ number.
    fn fields(self) -> impl Iterator<Item = std::ops::Range<usize>> {
        let gid = if self == Self::Gid { GID_BYTES } else { 0 };
        let widths = WIDTHS.into_iter().chain(std::iter::repeat_n(2, gid)).chain([SRQN_WIDTH]);
        widths.scan(0, |at, width| {
            let start = *at;
            *at += width + 1;
            Some(start..start + width)
        })
    }
}

/// The address of a queue pair, and the memory that the peer accesses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct KeyRecord {
    pub(crate) lid: u16,
    /// Outstanding reads and atomics that this side can serve and issue.
    pub(crate) out_reads: u16,
    pub(crate) qpn: u32,
    pub(crate) psn: u32,
    pub(crate) rkey: u32,
    pub(crate) vaddr: u64,
    pub(crate) gid: Option<Ipv6Addr>,
    pub(crate) srqn: u32,
}

impl KeyRecord {
    /// Numbers of 4 bytes, the address in 8, the GID in 16; a hole before the address, and the GID index
    /// at the end, which no side reads.
    fn encode_binary(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(BINARY_LEN);
        for number in [self.lid.into(), self.out_reads.into(), self.qpn, self.psn, self.rkey, 0] {
            bytes.extend(number.to_be_bytes());
        }
        bytes.extend(self.vaddr.to_be_bytes());
        bytes.extend(self.gid.unwrap_or(Ipv6Addr::UNSPECIFIED).octets());
        bytes.extend(self.srqn.to_be_bytes());
        bytes.extend([0; 4]);
        bytes
    }

    fn decode_binary(bytes: &[u8]) -> Result<Self, BadMessage> {
        let bytes: &[u8; BINARY_LEN] = bytes.try_into().map_err(|_| BadMessage::Binary(bytes.len()))?;
        let number =
            |at: usize| u32::from_be_bytes(*bytes[at..].first_chunk().expect("the record has this field"));
        let small =
            |at: usize| u16::try_from(number(at)).map_err(|_| BadMessage::Field { at, value: number(at) });
        let gid = Ipv6Addr::from(*bytes[32..].first_chunk::<GID_BYTES>().expect("the record has a GID"));
        Ok(Self {
            lid: small(0)?,
            out_reads: small(4)?,
            qpn: number(8),
            psn: number(12),
            rkey: number(16),
            vaddr: u64::from(number(24)) << 32 | u64::from(number(28)),
            gid: (gid != Ipv6Addr::UNSPECIFIED).then_some(gid),
            srqn: number(48),
        })
    }

    pub(crate) fn encode(&self, form: KeyForm) -> Vec<u8> {
        if form == KeyForm::Binary {
            return self.encode_binary();
        }
        let mut bytes = vec![b':'; form.len()];
        let head = [
            u64::from(self.lid),
            self.out_reads.into(),
            self.qpn.into(),
            self.psn.into(),
            self.rkey.into(),
            self.vaddr,
        ];
        let gid = self.gid.unwrap_or(Ipv6Addr::UNSPECIFIED).octets();
        let gid = if form == KeyForm::Gid { &gid[..] } else { &[] };
        let values = head.into_iter().chain(gid.iter().map(|&byte| byte.into())).chain([self.srqn.into()]);
        for (field, value) in form.fields().zip(values) {
            write_hex(&mut bytes[field], value.into());
        }
        *bytes.last_mut().expect("a record has bytes") = 0;
        bytes
    }

    pub(crate) fn decode(form: KeyForm, bytes: &[u8]) -> Result<Self, BadMessage> {
        if form == KeyForm::Binary {
            return Self::decode_binary(bytes);
        }
        let mut at = 0;
        let mut values = Vec::with_capacity(1 + WIDTHS.len() + GID_BYTES);
        for field in form.fields() {
            at = field.end;
            values.push(read_hex(bytes, field)?);
            // A NUL ends the record, directly or after a separator.
            let expected = if at + 1 == bytes.len() { 0 } else { b':' };
            if bytes[at] != expected {
                return Err(BadRecord::Separator { at, expected, found: bytes[at] }.into());
            }
        }
        if let Some(&found) = bytes.get(at + 1)
            && found != 0
        {
            return Err(BadRecord::Separator { at: at + 1, expected: 0, found }.into());
        }
        let [lid, out_reads, qpn, psn, rkey, vaddr, rest @ ..] = &values[..] else {
            unreachable!("every form has these fields")
        };
        let (gid, srqn) = rest.split_at(rest.len() - 1);
        let gid = (form == KeyForm::Gid).then(|| {
            let mut octets = [0; GID_BYTES];
            for (octet, value) in octets.iter_mut().zip(gid) {
                *octet = *value as u8;
            }
            Ipv6Addr::from(octets)
        });
        // Each field has at most as many digits as its type.
        Ok(Self {
            lid: *lid as u16,
            out_reads: *out_reads as u16,
            qpn: *qpn as u32,
            psn: *psn as u32,
            rkey: *rkey as u32,
            vaddr: *vaddr as u64,
            gid,
            srqn: srqn[0] as u32,
        })
    }
}

/// The bandwidth report of a side, in its own unit: MiB/s, or Gbit/s with `--report_gbits`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct BandwidthReport {
    pub(crate) size: u64,
    pub(crate) iterations: u64,
    pub(crate) peak: f64,
    pub(crate) average: f64,
    /// Million messages per second.
    pub(crate) message_rate: f64,
}

impl BandwidthReport {
    /// The values, each a message.
    pub(crate) fn encode(&self) -> [[u8; 8]; 5] {
        [
            self.size.to_be_bytes(),
            self.iterations.to_be_bytes(),
            self.peak.to_be_bytes(),
            self.average.to_be_bytes(),
            self.message_rate.to_be_bytes(),
        ]
    }

    pub(crate) fn decode([size, iterations, peak, average, message_rate]: [[u8; 8]; 5]) -> Self {
        Self {
            size: u64::from_be_bytes(size),
            iterations: u64::from_be_bytes(iterations),
            peak: f64::from_be_bytes(peak),
            average: f64::from_be_bytes(average),
            message_rate: f64::from_be_bytes(message_rate),
        }
    }

    /// Rejects rates that are negative, infinite, too large or not a number. perftest does not
    /// initialise the report of a side that only served memory: that one is not to be checked.
    pub(crate) fn checked(self) -> Result<Self, BadMessage> {
        let [_, _, names @ ..] = REPORT;
        for (what, value) in names.into_iter().zip([self.peak, self.average, self.message_rate]) {
            if !(0.0..=LARGEST_FIGURE).contains(&value) {
                return Err(BadMessage::Rate { what, value });
            }
        }
        Ok(self)
    }

    /// The sum of the reports of two peers.
    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            size: other.size,
            iterations: self.iterations.saturating_add(other.iterations),
            peak: self.peak + other.peak,
            average: self.average + other.average,
            message_rate: self.message_rate + other.message_rate,
        }
    }
}

/// Encodes the settings of a run: words, padded with NULs. Words that don't fit are left out.
pub(crate) fn encode_settings(words: &[String]) -> [u8; SETTINGS_LEN] {
    let mut bytes = [0; SETTINGS_LEN];
    let mut at = 0;
    for word in words.iter().filter(|word| !word.is_empty()) {
        let next = at + word.len() + 1;
        if next > SETTINGS_LEN {
            break;
        }
        bytes[at..next - 1].copy_from_slice(word.as_bytes());
        bytes[next - 1] = b' ';
        at = next;
    }
    bytes
}

pub(crate) fn decode_settings(bytes: &[u8; SETTINGS_LEN]) -> Result<Vec<String>, BadMessage> {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(SETTINGS_LEN);
    if !bytes[..end].iter().all(|&byte| byte == b' ' || byte.is_ascii_graphic()) {
        return Err(BadMessage::Settings);
    }
    let text = str::from_utf8(&bytes[..end]).map_err(|_| BadMessage::Settings)?;
    Ok(text.split_ascii_whitespace().map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use bareverbs::values::Mtu;
    use proptest::prelude::*;

    const GID_TEXT: &[u8] = b"0000:0001:000011:0abcde:00001a2b:00007f0012345000:\
        00:00:00:00:00:00:00:00:00:00:ff:ff:0a:00:00:01:00000000:\0";
    const LID_TEXT: &[u8] = b"0012:0010:000011:0abcde:00001a2b:00007f0012345000:00000007\0";

    fn record() -> KeyRecord {
        KeyRecord {
            lid: 0,
            out_reads: 1,
            qpn: 0x11,
            psn: 0x0a_bcde,
            rkey: 0x1a2b,
            vaddr: 0x7f00_1234_5000,
            gid: Some("::ffff:10.0.0.1".parse().unwrap()),
            srqn: 0,
        }
    }

    #[test]
    fn binary_records_match_perftest() {
        let record = KeyRecord { lid: 0x12, out_reads: 16, srqn: 7, ..record() };
        let bytes = record.encode(KeyForm::Binary);
        let expected = [
            &[0, 0, 0, 0x12, 0, 0, 0, 16, 0, 0, 0, 0x11, 0, 0x0a, 0xbc, 0xde, 0, 0, 0x1a, 0x2b][..],
            &[0, 0, 0, 0, 0, 0, 0x7f, 0, 0x12, 0x34, 0x50, 0],
            &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1],
            &[0, 0, 0, 7, 0, 0, 0, 0],
        ];
        assert_eq!(bytes, expected.concat());
        assert_eq!(KeyRecord::decode(KeyForm::Binary, &bytes), Ok(record));
        let short = KeyRecord::decode(KeyForm::Binary, &bytes[1..]);
        assert_eq!(short, Err(BadMessage::Binary(55)));
        let mut large = bytes;
        large[1] = 1;
        let large = KeyRecord::decode(KeyForm::Binary, &large);
        assert_eq!(large, Err(BadMessage::Field { at: 0, value: 0x0001_0012 }));
    }

    #[test]
    fn address_records_match_perftest() {
        assert_eq!((KeyForm::Lid.len(), KeyForm::Gid.len()), (59, 108));
        assert_eq!(record().encode(KeyForm::Gid), GID_TEXT);
        assert_eq!(KeyRecord::decode(KeyForm::Gid, GID_TEXT), Ok(record()));
        let by_lid = KeyRecord { lid: 0x12, out_reads: 16, gid: None, srqn: 7, ..record() };
        assert_eq!(by_lid.encode(KeyForm::Lid), LID_TEXT);
        assert_eq!(KeyRecord::decode(KeyForm::Lid, LID_TEXT), Ok(by_lid));
    }

    #[test]
    fn address_record_errors_name_the_offset() {
        for (at, byte) in [(4, b';'), (49, 0), (97, b'x'), (106, 0), (107, b':'), (0, b'g')] {
            let mut bytes = GID_TEXT.to_vec();
            bytes[at] = byte;
            let error = KeyRecord::decode(KeyForm::Gid, &bytes).unwrap_err().to_string();
            assert!(error.contains(&format!("byte {at} is ")), "{error}");
        }
        let mut bytes = LID_TEXT.to_vec();
        bytes[58] = b':';
        assert!(KeyRecord::decode(KeyForm::Lid, &bytes).is_err());
    }

    #[test]
    fn version_is_perftests_text() {
        let theirs = *b"6.24\0\0\0\0\0\0\0\0\0\0\0\0";
        assert_eq!(Version::decode(&theirs), Ok(Version { hundredths: 624, bareverbs: false }));
        let ours = Version::OURS.encode();
        assert_eq!(ours[..5], theirs[..5]);
        assert_eq!(Version::decode(&ours), Ok(Version::OURS));
        let decode = |text: &[u8]| {
            let mut bytes = [0; VERSION_LEN];
            bytes[..text.len()].copy_from_slice(text);
            Version::decode(&bytes).map(|version| version.hundredths)
        };
        assert_eq!(decode(b"6.3"), Ok(630));
        assert_eq!(decode(b"7"), Ok(700));
        assert!(matches!(decode(b"5.69"), Err(BadMessage::TooOld(_))));
        for wrong in [&b""[..], b"GET / HTTP/1.1\r\n", b".5", b"6.2x", b"99999999"] {
            assert!(matches!(decode(wrong), Err(BadMessage::NoVersion(_))), "{wrong:?}");
        }
    }

    #[test]
    fn sizes_and_mtus_are_perftests() {
        assert_eq!(decode_size(Message::CycleBuffer, [0, 0, 0x10, 0], 1 << 20), Ok(4096));
        for value in [0, -1, i32::MIN, (1 << 20) + 1] {
            assert!(decode_size(Message::CacheLine, value.to_be_bytes(), 1 << 20).is_err());
        }
        assert_eq!(encode_mtu(Mtu::Mtu1024), *b"3\0");
        assert_eq!(decode_mtu(*b"5\0"), Some(Mtu::Mtu4096));
        for none in [*b"0\0", *b"6\0", [0, 0], [255, 0]] {
            assert_eq!(decode_mtu(none), None);
        }
    }

    #[test]
    fn report_values_are_big_endian() {
        let report =
            BandwidthReport { size: 65536, iterations: 5000, peak: 1.0, average: -2.0, message_rate: 0.5 };
        let bytes = report.encode();
        assert_eq!(bytes[0], [0, 0, 0, 0, 0, 1, 0, 0]);
        assert_eq!(bytes[2], [0x3f, 0xf0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(BandwidthReport::decode(bytes), report);
    }

    #[test]
    fn invalid_rates_of_a_peer_are_rejected() {
        let valid = BandwidthReport { size: 64, iterations: 5, peak: 0.0, average: 2.5, message_rate: 0.5 };
        assert_eq!(valid.checked(), Ok(valid));
        for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.5, 1e19] {
            for (what, report) in [
                ("peak bandwidth", BandwidthReport { peak: value, ..valid }),
                ("average bandwidth", BandwidthReport { average: value, ..valid }),
                ("message rate", BandwidthReport { message_rate: value, ..valid }),
            ] {
                let error = report.checked().unwrap_err().to_string();
                assert!(error.contains(what) && error.contains(&value.to_string()), "{error}");
            }
        }
    }

    #[test]
    fn iterations_of_peers_do_not_overflow() {
        let report = BandwidthReport { iterations: u64::MAX, ..Default::default() };
        assert_eq!(report.plus(report).iterations, u64::MAX);
    }

    #[test]
    fn reports_of_peers_are_added() {
        let of = |iterations, peak, average, message_rate| BandwidthReport {
            size: 64,
            iterations,
            peak,
            average,
            message_rate,
        };
        assert_eq!(of(1, 8.0, 4.0, 2.0).plus(of(2, 1.0, 0.5, 0.25)), of(3, 9.0, 4.5, 2.25));
    }

    #[test]
    fn settings_that_do_not_fit_are_left_out() {
        let longest = "x".repeat(SETTINGS_LEN - 1);
        assert_eq!(decode_settings(&encode_settings(std::slice::from_ref(&longest))).unwrap(), [longest]);
        let words = ["y".to_owned(), "x".repeat(SETTINGS_LEN - 2)];
        assert_eq!(decode_settings(&encode_settings(&words)).unwrap(), ["y"]);
    }

    #[test]
    fn settings_are_padded_words() {
        let words = ["op=write".to_owned(), "size=65536".to_owned()];
        let bytes = encode_settings(&words);
        assert!(bytes.starts_with(b"op=write size=65536 \0"));
        assert_eq!(decode_settings(&bytes).unwrap(), words);
        assert_eq!(decode_settings(&[0xff; SETTINGS_LEN]), Err(BadMessage::Settings));
    }

    fn any_record() -> impl Strategy<Value = KeyRecord> {
        let numbers = (any::<u16>(), any::<u16>(), 0..1u32 << 24, 0..1u32 << 24);
        (numbers, any::<u32>(), any::<u64>(), any::<u128>(), any::<u32>()).prop_map(
            |((lid, out_reads, qpn, psn), rkey, vaddr, gid, srqn)| {
                let gid = Some(Ipv6Addr::from_bits(gid));
                KeyRecord { lid, out_reads, qpn, psn, rkey, vaddr, gid, srqn }
            },
        )
    }

    proptest! {
        #[test]
        fn encoded_records_decode_to_equal_values(record in any_record()) {
            prop_assert_eq!(KeyRecord::decode(KeyForm::Gid, &record.encode(KeyForm::Gid)), Ok(record));
            let by_lid = KeyRecord { gid: None, ..record };
            prop_assert_eq!(KeyRecord::decode(KeyForm::Lid, &by_lid.encode(KeyForm::Lid)), Ok(by_lid));
        }

        #[test]
        fn one_damaged_byte_never_passes_as_the_same_record(record in any_record(), at in 0..108usize, byte: u8) {
            let mut bytes = record.encode(KeyForm::Gid);
            prop_assume!(!byte.eq_ignore_ascii_case(&bytes[at]));
            bytes[at] = byte;
            prop_assert_ne!(KeyRecord::decode(KeyForm::Gid, &bytes), Ok(record));
        }

        #[test]
        fn any_version_record_decodes_or_is_refused(bytes: [u8; VERSION_LEN]) {
            if let Ok(version) = Version::decode(&bytes) {
                let again = Version::decode(&version.encode());
                prop_assert_eq!(again.unwrap().hundredths, version.hundredths);
            }
        }

        #[test]
        fn every_supported_version_round_trips(hundredths in 570..100_000u32) {
            let version = Version { hundredths, bareverbs: false };
            prop_assert_eq!(Version::decode(&version.encode()), Ok(version));
        }

        #[test]
        fn bandwidth_reports_round_trip(size: u64, iterations: u64, peak: f64, average: f64) {
            let report = BandwidthReport { size, iterations, peak, average, message_rate: peak };
            prop_assert_eq!(BandwidthReport::decode(report.encode()).encode(), report.encode());
        }

        #[test]
        fn reports_of_a_peer_are_rates_or_refused(bits: [u64; 3], iterations: [u64; 2]) {
            let [peak, average, message_rate] = bits.map(f64::from_bits);
            let report = BandwidthReport { size: 64, iterations: iterations[0], peak, average, message_rate };
            let all_valid = [peak, average, message_rate].into_iter().all(|rate| (0.0..=1e18).contains(&rate));
            match BandwidthReport::decode(report.encode()).checked() {
                Ok(checked) => {
                    prop_assert!(all_valid, "{:?}", checked);
                    let sum = checked.plus(BandwidthReport { iterations: iterations[1], ..checked });
                    prop_assert!((sum.peak + sum.average + sum.message_rate).is_finite());
                }
                Err(error) => {
                    prop_assert!(!all_valid, "{}", error);
                    prop_assert!(error.to_string().contains("which is not a rate"));
                }
            }
        }
    }
}
