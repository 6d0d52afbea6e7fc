//! Completion statuses: the texts of libibverbs, and the likely cause.

use bareverbs::{Context, WcStatus};

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

/// The likely cause of the status: in a ping-pong if it has one there, otherwise on the device.
pub(crate) fn cause(context: &Context, status: WcStatus) -> String {
    likely_reason(status).map_or_else(|| context.explain(status), str::to_owned)
}

/// The most likely cause of the status in a ping-pong, if it has one.
fn likely_reason(status: WcStatus) -> Option<&'static str> {
    match status {
        WcStatus::RETRY_EXC_ERR => Some("the peer has exited or is unreachable"),
        WcStatus::LOC_LEN_ERR => {
            Some("the peer's message is longer than the receive: both sides need the same -s")
        }
        WcStatus::REM_INV_REQ_ERR => {
            Some("the peer's receive is shorter than the message: both sides need the same -s")
        }
        // Soft-RoCE reports this if messages are longer than receives (rxe_resp.c,
        // RESPST_ERR_MALFORMED_WQE); other devices also for other reasons.
        WcStatus::LOC_QP_OP_ERR => {
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
}
