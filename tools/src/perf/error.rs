//! Errors that end a run early, with the path and what to try.

use std::fmt;
use std::time::Duration;

use bareverbs::WcStatus;
use bareverbs::device::{LinkDown, LinkLayer};
use bareverbs::values::{AckTimeout, Mtu};

use super::wire::KeyRecord;
use crate::session::{RETRY_CNT, status};

/// How far a run has come.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Progress {
    pub(crate) sent: u64,
    pub(crate) received: u64,
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} messages were sent and {} received", self.sent, self.received)
    }
}

/// The path of a failed queue pair.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PathInfo {
    pub(crate) local: KeyRecord,
    pub(crate) remote: KeyRecord,
    pub(crate) mtu: Mtu,
    pub(crate) timeout: AckTimeout,
    pub(crate) link_layer: LinkLayer,
}

impl fmt::Display for PathInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = |record: &KeyRecord| match record.gid {
            Some(gid) => format!("QP {:#x} at GID {gid}", record.qpn),
            None => format!("QP {:#x} at LID {}", record.qpn, record.lid),
        };
        write!(f, "{} to the peer's {}, MTU {}", address(&self.local), address(&self.remote), self.mtu)
    }
}

/// Why a run ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    #[error("{path}: {} ({}): {cause}; {progress}", status::words(*.status), .status.0)]
    Status { status: WcStatus, path: Box<PathInfo>, cause: String, progress: Progress },
    #[error("{end}: {down}; {progress}")]
    LinkDown { end: &'static str, down: LinkDown, progress: Progress },
    #[error(
        "the peer closed its connection during the run, so it has ended or was killed; its own \
         output says why; {0}"
    )]
    PeerGone(Progress),
    #[error(
        "nothing completed for {} s, and the peer still runs: both sides need the same test, size \
         (-s), number (-n) or duration (-D); {progress}",
        waited.as_secs()
    )]
    Stalled { waited: Duration, progress: Progress },
    #[error(
        "nothing arrived for {} s; {transport} does not report lost messages: try more receives \
         (-r) on the receiver or fewer requests (-t) on the sender; {progress}",
        waited.as_secs()
    )]
    Lost { waited: Duration, transport: String, progress: Progress },
    #[error("received {found} bytes instead of {expected}: both sides need the same size (-s)")]
    WrongLength { found: u32, expected: u32 },
    #[error("another thread of the run failed")]
    Aborted,
    #[error("the peer found corrupt data (--verify): its output names the message and the byte")]
    CorruptAtPeer,
    #[error("a completion for an unknown request {0:#x}: the driver or the device has a defect")]
    UnknownRequest(u64),
}

/// What the status means on this path and what to try, the most likely first. `is_send`: the request was
/// one of the send queue.
pub(super) fn advice(status: WcStatus, path: &PathInfo, is_send: bool) -> String {
    let roce = path.link_layer == LinkLayer::ETHERNET;
    match status {
        WcStatus::RETRY_EXC_ERR => {
            let wait = path.timeout.duration().map_or_else(
                || "without a timeout".to_owned(),
                |time| format!("each {:.0} ms", time.as_secs_f64() * 1e3),
            );
            let check = if roce {
                "check that the peer runs and its link is up, that both GIDs (-x) have a route to each other and \
                 one RoCE version, that UDP port 4791 is open, and that the MTU (-m) fits all links; if the \
                 peer's processor is busy, raise the timeout (-u)"
            } else {
                "check that the peer runs and its link is up, the LIDs and the subnet manager; if the peer's \
                 processor is busy, raise the timeout (-u)"
            };
            format!("the peer did not acknowledge after {RETRY_CNT} retries, {wait}; {check}")
        }
        WcStatus::RNR_RETRY_EXC_ERR => {
            "the peer posted no receive in time: use more receives (-r) on its side".into()
        }
        WcStatus::REM_ACCESS_ERR => {
            "the peer's memory does not permit this access: both sides need the same operation and size (-s)"
                .into()
        }
        WcStatus::REM_INV_REQ_ERR => {
            "the peer rejects the request: both sides need the same operation and size (-s)".into()
        }
        WcStatus::LOC_QP_OP_ERR if is_send => {
            let route =
                if roce { "has no route to the peer's GID, a firewall drops its packets, " } else { "" };
            format!("this side {route}or its link was down for a moment")
        }
        WcStatus::LOC_LEN_ERR | WcStatus::LOC_QP_OP_ERR | WcStatus::REM_OP_ERR => {
            "a message may be longer than its receive: both sides need the same size (-s)".into()
        }
        WcStatus::WR_FLUSH_ERR => {
            "the queue pair failed: the peer may have sent a message that does not fit (-s), or an earlier \
             request failed"
                .into()
        }
        _ => "unexpected in this test; the kernel log may say more".into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_error_names_path_timeout_and_remedy() {
        let local =
            KeyRecord { qpn: 0x11, gid: Some("::ffff:10.1.0.1".parse().unwrap()), ..Default::default() };
        let remote = KeyRecord { qpn: 0x12, gid: Some("::ffff:10.1.0.2".parse().unwrap()), ..local };
        let path = PathInfo {
            local,
            remote,
            mtu: Mtu::Mtu1024,
            timeout: AckTimeout::new(16).unwrap(),
            link_layer: LinkLayer::ETHERNET,
        };
        let progress = Progress { sent: 7, received: 0 };
        let status = WcStatus::RETRY_EXC_ERR;
        let failed = |path: PathInfo| {
            RunError::Status { status, path: Box::new(path), cause: advice(status, &path, true), progress }
                .to_string()
        };
        let text = failed(path);
        for words in [
            "QP 0x11 at GID ::ffff:10.1.0.1 to the peer's QP 0x12 at GID ::ffff:10.1.0.2, MTU 1024",
            "transport retry counter exceeded (12)",
            "6 retries, each 268 ms",
            "UDP port 4791",
            "7 messages were sent and 0 received",
        ] {
            assert!(text.contains(words), "{text}");
        }
        let by_lid = KeyRecord { lid: 4, gid: None, ..local };
        let path = PathInfo { local: by_lid, remote: by_lid, link_layer: LinkLayer::INFINIBAND, ..path };
        let text = failed(path);
        assert!(text.contains("at LID 4") && text.contains("subnet manager"), "{text}");
        // The size can't be the cause of a send that fails here.
        assert!(!advice(WcStatus::LOC_QP_OP_ERR, &path, true).contains("-s"));
        assert!(advice(WcStatus::LOC_QP_OP_ERR, &path, false).contains("-s"));
    }
}
