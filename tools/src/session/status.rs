//! Completion statuses: the texts of libibverbs, and the likely cause.

use bareverbs::{Context, PortNum, WcStatus};

/// The text of the status (`ibv_wc_status_str`).
pub(crate) fn words(status: WcStatus) -> &'static str {
    match status.0 {
        0 => "success",
        1 => "local length error",
        2 => "local QP operation error",
        3 => "local EE context operation error",
        4 => "local protection error",
        5 => "Work Request Flushed Error",
        6 => "memory management operation error",
        7 => "bad response error",
        8 => "local access error",
        9 => "remote invalid request error",
        10 => "remote access error",
        11 => "remote operation error",
        12 => "transport retry counter exceeded",
        13 => "RNR retry counter exceeded",
        14 => "local RDD violation error",
        15 => "remote invalid RD request",
        16 => "aborted error",
        17 => "invalid EE context number",
        18 => "invalid EE context state",
        19 => "fatal error",
        20 => "response timeout error",
        21 => "general error",
        22 => "TM error",
        23 => "TM software rendezvous",
        _ => "unknown",
    }
}

/// The cause of the failure of a request: the link of the port, if it is down; otherwise the likely cause
/// in a message exchange, or that on the device. `is_send`: the request was a send, not a receive.
pub(crate) fn cause(context: &Context, port: impl Into<PortNum>, status: WcStatus, is_send: bool) -> String {
    if may_be_link(status)
        && let Some(down) = context.link_down(port)
    {
        return down.to_string();
    }
    likely_reason(status, is_send).map_or_else(|| context.explain(status), str::to_owned)
}

/// Whether requests may complete with the status because the link is down. A device gets no
/// acknowledgement then, or it finds no route (Soft-RoCE: LOC_QP_OP_ERR, since Linux 6.4 WR_FLUSH_ERR).
pub(crate) fn may_be_link(status: WcStatus) -> bool {
    matches!(status, WcStatus::RETRY_EXC_ERR | WcStatus::LOC_QP_OP_ERR | WcStatus::WR_FLUSH_ERR)
}

/// The likely causes of the status in a message exchange, the most likely first, if it has one there.
fn likely_reason(status: WcStatus, is_send: bool) -> Option<&'static str> {
    match status {
        WcStatus::RETRY_EXC_ERR => Some("the peer has exited or is unreachable"),
        WcStatus::LOC_LEN_ERR => {
            Some("the peer's message is longer than the receive: both sides need the same -s")
        }
        WcStatus::REM_INV_REQ_ERR => {
            Some("the peer's receive is shorter than the message: both sides need the same -s")
        }
        // Soft-RoCE reports this of a receive that is shorter than its message (rxe_resp.c,
        // RESPST_ERR_MALFORMED_WQE). Of a send see `may_be_link`.
        WcStatus::LOC_QP_OP_ERR if !is_send => {
            Some("the peer's message may be longer than the receive: both sides need the same -s")
        }
        WcStatus::REM_OP_ERR => {
            Some("the peer's receive may be shorter than the message: both sides need the same -s")
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_read_as_in_libibverbs() {
        assert_eq!(words(WcStatus::SUCCESS), "success");
        assert_eq!(words(WcStatus::WR_FLUSH_ERR), "Work Request Flushed Error");
        assert_eq!(words(WcStatus::RETRY_EXC_ERR), "transport retry counter exceeded");
        assert_eq!(words(WcStatus(4711)), "unknown");
    }

    #[test]
    fn link_may_be_the_cause_of_failures_without_an_answer() {
        for (status, is_possible) in [
            (WcStatus::RETRY_EXC_ERR, true),
            (WcStatus::LOC_QP_OP_ERR, true),
            (WcStatus::WR_FLUSH_ERR, true),
            (WcStatus::RNR_RETRY_EXC_ERR, false),
            (WcStatus::LOC_LEN_ERR, false),
            (WcStatus::REM_ACCESS_ERR, false),
        ] {
            assert_eq!(may_be_link(status), is_possible, "{status:?}");
        }
    }

    #[test]
    fn size_is_named_for_receives_only() {
        let reason = |is_send| likely_reason(WcStatus::LOC_QP_OP_ERR, is_send);
        assert!(reason(false).unwrap().contains("longer than the receive"));
        assert_eq!(reason(true), None);
    }
}
