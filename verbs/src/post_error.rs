//! Errors of posting.

use std::fmt;

use bareverbs_provider::Errno;
use bareverbs_provider::error::DoorbellError;
use bareverbs_provider::work::{PushError, WcStatus};
use bareverbs_uapi::verbs_values::{QpState, WqState};

/// An error of a post: not all requests were posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "bad_wr")]
#[non_exhaustive]
pub struct PostError {
    /// The number of requests that were posted and will complete. It is the index of the rejected
    /// request.
    pub accepted: usize,
    /// The cause.
    pub reason: PostReason,
}

impl fmt::Display for PostError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.accepted {
            0 => write!(f, "no request was posted: {}", self.reason),
            1 => write!(f, "1 request was posted, the next was rejected: {}", self.reason),
            accepted => write!(f, "{accepted} requests were posted, the next was rejected: {}", self.reason),
        }
    }
}

impl std::error::Error for PostError {}

/// The cause of a rejected post.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostReason {
    /// The queue rejected the request.
    #[error(transparent)]
    Queue(#[from] PushError),
    /// The QP is in a state that does not allow the post.
    #[error("the QP is in {0:?}: receives require INIT or later, sends require RTS, so connect the QP first")]
    State(QpState),
    /// The work queue is in a state that does not allow the post.
    #[error("the WQ is in {0:?}; posting requires RDY")]
    WqState(WqState),
    /// The QP uses an SRQ: post receives to the SRQ.
    #[error("the QP uses an SRQ: post receives to the SRQ")]
    UsesSrq,
    /// The QP is an XRC initiator, which has no receives.
    #[error("an XRC initiator QP has no receives: post them to an SRQ of the XRC domain")]
    XrcInitiator,
    /// The kernel refused the doorbell.
    #[error("the doorbell failed: {0}")]
    Doorbell(DoorbellError),
}

impl PostReason {
    /// The kernel's errno, if it refused the doorbell.
    #[must_use]
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Doorbell(DoorbellError::TakenBack(refused) | DoorbellError::Posted(refused)) => {
                Some(refused.errno)
            }
            _ => None,
        }
    }
}

/// A send that failed locally, and its status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SendFailure {
    /// The `wr_id` of the request.
    pub wr_id: u64,
    /// The status.
    pub status: WcStatus,
}

impl From<(u64, WcStatus)> for SendFailure {
    fn from((wr_id, status): (u64, WcStatus)) -> Self {
        Self { wr_id, status }
    }
}

/// All `requests` were posted or none: they share one doorbell.
#[cold]
pub(crate) fn doorbell_error(error: DoorbellError, requests: usize) -> PostError {
    let accepted = if matches!(error, DoorbellError::Posted(_)) { requests } else { 0 };
    PostError { accepted, reason: PostReason::Doorbell(error) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn post_error_names_accepted_count_and_reason() {
        let error = |accepted, reason| PostError { accepted, reason }.to_string();
        assert_eq!(
            error(0, PostReason::State(QpState::RESET)),
            "no request was posted: the QP is in RESET: receives require INIT or later, sends require \
             RTS, so connect the QP first"
        );
        assert_eq!(
            error(64, PushError::QueueFull { capacity: 64 }.into()),
            "64 requests were posted, the next was rejected: the queue is full (64 requests): poll \
             completions first, or create a deeper queue"
        );
    }
}
