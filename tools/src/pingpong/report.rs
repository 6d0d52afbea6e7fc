//! The report of a run: the lines of ibv_rc_pingpong, or the same as JSON.

use std::time::Duration;

use serde::Serialize;

use super::check::Source;
use super::latency::LatencyFigures;
use super::record::Record;
use crate::cli::pingpong::Kind;
use crate::session::Role;

/// A finished run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) transport: Kind,
    pub(crate) side: Role,
    pub(crate) device: String,
    pub(crate) port: u8,
    pub(crate) gid_index: Option<u8>,
    pub(crate) mtu: u32,
    pub(crate) local: Addresses,
    pub(crate) remote: Addresses,
    pub(crate) size: u32,
    pub(crate) iters: u32,
    pub(crate) inline: bool,
    /// The number of completion events that ended a sleep; absent when polling.
    pub(crate) events: Option<u64>,
    #[serde(flatten)]
    pub(crate) figures: Figures,
    /// Intervals between received messages; absent without `-t` and with a single message.
    pub(crate) timestamps: Option<LatencyFigures>,
    pub(crate) check: Option<Checked>,
}

/// A side's address; a list for the ping-pongs with several queue pairs.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
pub(crate) enum Addresses {
    One(Record),
    Several(Vec<Record>),
}

impl Addresses {
    pub(crate) fn new(kind: Kind, records: &[Record]) -> Self {
        match (kind, records) {
            (Kind::Srq, _) | (_, []) => Self::Several(records.to_vec()),
            (_, [record, ..]) => Self::One(*record),
        }
    }
}

/// The result of `-c`: every byte of this many messages of the peer was checked.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Checked {
    pub(crate) messages: u64,
    /// Absent if the messages were too short to distinguish the origins.
    pub(crate) data: Option<Source>,
}

/// The throughput figures of a run.
#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct Figures {
    pub(crate) bytes: u64,
    pub(crate) seconds: f64,
    pub(crate) mbit_per_second: f64,
    pub(crate) usec_per_iter: f64,
}

impl Figures {
    /// Figures of `iters` messages of `size` bytes each way.
    pub(crate) fn new(size: u32, iters: u32, time: Duration) -> Self {
        let bytes = u64::from(size) * u64::from(iters) * 2;
        let usec = time.as_secs_f64() * 1e6;
        Self {
            bytes,
            seconds: time.as_secs_f64(),
            mbit_per_second: bytes as f64 * 8.0 / usec,
            usec_per_iter: usec / f64::from(iters),
        }
    }
}

/// The line with an address; `whose` is `local` or `remote`.
pub(crate) fn address_line(kind: Kind, whose: &str, record: &Record) -> String {
    let Record { lid, qpn, psn, gid } = record;
    // The colon is a quirk of ibv_ud_pingpong.
    let comma = if (kind, whose) == (Kind::Ud, "local") { ':' } else { ',' };
    format!(
        "  {:<15} LID 0x{lid:04x}, QPN 0x{qpn:06x}, PSN 0x{psn:06x}{comma} GID {gid}",
        format!("{whose} address:")
    )
}

impl Report {
    /// The lines with the throughput.
    pub(crate) fn lines(&self) -> [String; 2] {
        let Figures { bytes, seconds, mbit_per_second, usec_per_iter } = self.figures;
        [
            format!("{bytes} bytes in {seconds:.2} seconds = {mbit_per_second:.2} Mbit/sec"),
            format!("{} iters in {seconds:.2} seconds = {usec_per_iter:.2} usec/iter", self.iters),
        ]
    }

    /// The line about the check.
    pub(crate) fn check_line(&self) -> Option<String> {
        let Checked { messages, data } = self.check?;
        let against = match data {
            Some(Source::Pattern) => "the pattern",
            Some(Source::Echo) => "the sent data (the peer echoes)",
            None => "the pattern or the sent data (too few bytes to distinguish)",
        };
        Some(format!("all bytes of {messages} messages from the peer match {against}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv6Addr;

    const LOCAL: Record =
        Record { lid: 0, qpn: 0x11, psn: 0xabcdef, gid: Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0xa01, 1) };
    const REMOTE: Record =
        Record { lid: 1, qpn: 0x12, psn: 0x1, gid: Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1) };

    fn report() -> Report {
        Report {
            transport: Kind::Rc,
            side: Role::Client,
            device: "rxe0".into(),
            port: 1,
            gid_index: Some(1),
            mtu: 1024,
            local: Addresses::One(LOCAL),
            remote: Addresses::One(REMOTE),
            size: 4096,
            iters: 1000,
            inline: false,
            events: None,
            figures: Figures::new(4096, 1000, Duration::from_micros(14_040)),
            timestamps: None,
            check: Some(Checked { messages: 1000, data: Some(Source::Echo) }),
        }
    }

    #[test]
    fn lines_match_ibv_rc_pingpong() {
        let report = report();
        assert_eq!(
            address_line(Kind::Rc, "local", &LOCAL),
            "  local address:  LID 0x0000, QPN 0x000011, PSN 0xabcdef, GID ::ffff:10.1.0.1"
        );
        assert_eq!(
            address_line(Kind::Rc, "remote", &REMOTE),
            "  remote address: LID 0x0001, QPN 0x000012, PSN 0x000001, GID fe80::1"
        );
        assert_eq!(
            report.lines(),
            [
                "8192000 bytes in 0.01 seconds = 4667.81 Mbit/sec",
                "1000 iters in 0.01 seconds = 14.04 usec/iter",
            ]
        );
    }

    #[test]
    fn no_gid_shows_as_two_colons() {
        let record = Record { gid: Ipv6Addr::UNSPECIFIED, ..LOCAL };
        assert!(address_line(Kind::Uc, "local", &record).ends_with(", GID ::"));
        assert!(address_line(Kind::Ud, "remote", &record).ends_with(", GID ::"));
        assert!(address_line(Kind::Ud, "local", &record).ends_with(": GID ::"));
    }

    #[test]
    fn check_reports_the_expected_bytes() {
        let mut report = report();
        assert_eq!(
            report.check_line().unwrap(),
            "all bytes of 1000 messages from the peer match the sent data (the peer echoes)"
        );
        report.check = None;
        assert_eq!(report.check_line(), None);
    }

    #[test]
    fn json_holds_the_same_as_the_lines() {
        let json = serde_json::to_value(report()).unwrap();
        assert_eq!((&json["transport"], &json["side"]), (&"rc".into(), &"client".into()));
        assert_eq!(json["local"]["gid"], "::ffff:10.1.0.1");
        assert_eq!(json["remote"]["qpn"], 0x12);
        assert_eq!(json["bytes"], 8_192_000);
        assert_eq!(json["usec_per_iter"], 14.04);
        assert_eq!(json["events"], serde_json::Value::Null);
        let several = serde_json::to_value(Addresses::new(Kind::Srq, &[LOCAL])).unwrap();
        assert_eq!(several[0]["qpn"], 0x11);
        assert_eq!(json["check"], serde_json::json!({ "messages": 1000, "data": "echo" }));
    }
}
