//! Errors that end a run early, with their messages.

use std::time::Duration;

use bareverbs::WcStatus;
use bareverbs::device::LinkDown;

use crate::session::status;

/// Timeout of the next completion, after the first one.
pub(crate) const COMPLETION_TIMEOUT: Duration = Duration::from_secs(10);

/// A failed request: its status and its `wr_id`.
pub(crate) type Failure = (WcStatus, u64);

/// Why a run ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum RunError {
    #[error("Failed status {} ({}) for wr_id {wr_id}: {cause}{progress}", status::words(*.status), .status.0)]
    Status { status: WcStatus, wr_id: u32, cause: String, progress: Progress },
    #[error("no completion for {} s: {down}{progress}", waited.as_secs())]
    LinkDown { waited: Duration, down: LinkDown, progress: Progress },
    #[error("no completion for {} s; the QP of the peer still exists{progress}", waited.as_secs())]
    PeerStalled { waited: Duration, progress: Progress },
    #[error(
        "no completion for {} s; a probe of the peer's QP was not completed within {} s{progress}",
        waited.as_secs(), probe.as_secs()
    )]
    ProbeUnanswered { waited: Duration, probe: Duration, progress: Progress },
    #[error(
        "no completion for {} s: the peer has exited, or a message was lost (not reported by this \
         transport){progress}",
        waited.as_secs()
    )]
    PeerLost { waited: Duration, progress: Progress },
}

/// The progress of a run.
#[derive(Debug)]
pub(crate) struct Progress {
    pub(crate) sent: u64,
    pub(crate) received: u64,
    pub(crate) flushed: u64,
}

impl std::fmt::Display for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let flush = WcStatus::WR_FLUSH_ERR;
        write!(
            f,
            "; {} messages were sent and {} received, then {} requests completed with status {} ({})",
            self.sent,
            self.received,
            self.flushed,
            status::words(flush),
            flush.0
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::state::SEND_ID;
    use super::*;

    const PROGRESS: Progress = Progress { sent: 7, received: 6, flushed: 500 };

    #[test]
    fn peer_loss_error_names_status_and_progress() {
        let (status, cause) = (WcStatus::RETRY_EXC_ERR, "the peer has exited or is unreachable".into());
        let error = RunError::Status { status, wr_id: SEND_ID as u32, cause, progress: PROGRESS };
        assert_eq!(
            error.to_string(),
            "Failed status transport retry counter exceeded (12) for wr_id 2: the peer has exited \
             or is unreachable; 7 messages were sent and 6 received, then 500 requests completed \
             with status Work Request Flushed Error (5)"
        );
    }

    #[test]
    fn silent_peer_is_reported_with_the_timeout() {
        let text = RunError::PeerStalled { waited: COMPLETION_TIMEOUT, progress: PROGRESS }.to_string();
        assert!(text.starts_with("no completion for 10 s; the QP of the peer still exists; 7 "), "{text}");
    }

    #[test]
    fn unanswered_probe_is_reported_with_both_timeouts() {
        let (waited, probe) = (COMPLETION_TIMEOUT, Duration::from_secs(20));
        let text = RunError::ProbeUnanswered { waited, probe, progress: PROGRESS }.to_string();
        let words = "no completion for 10 s; a probe of the peer's QP was not completed within 20 s; 7 ";
        assert!(text.starts_with(words), "{text}");
    }

    #[test]
    fn unreliable_transport_error_names_both_causes() {
        let text = RunError::PeerLost { waited: COMPLETION_TIMEOUT, progress: PROGRESS }.to_string();
        assert!(
            text.starts_with(
                "no completion for 10 s: the peer has exited, or a message was lost (not reported \
                 by this transport); 7 messages were sent"
            ),
            "{text}"
        );
    }
}
