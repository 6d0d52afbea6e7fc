//! The state table: required and optional attributes of each transition.

use bareverbs_uapi::uverbs::types::QpType;
use bareverbs_uapi::verbs_values::{MigState, QpAttrMask, QpState};

use crate::error::{Error, InvalidCause, Result};
use crate::qp::attr::QpAttr;

/// Maximum of QPNs and PSNs.
const MAX_24_BITS: u32 = 0xff_ffff;

const AV: QpAttrMask = QpAttrMask::AV;
const ACCESS: QpAttrMask = QpAttrMask::ACCESS_FLAGS;
const PKEY: QpAttrMask = QpAttrMask::PKEY_INDEX;
const PORT: QpAttrMask = QpAttrMask::PORT;
const QKEY: QpAttrMask = QpAttrMask::QKEY;
const CUR: QpAttrMask = QpAttrMask::CUR_STATE;
const SQ_PSN: QpAttrMask = QpAttrMask::SQ_PSN;
const RNR_TIMER: QpAttrMask = QpAttrMask::MIN_RNR_TIMER;
const NOTIFY: QpAttrMask = QpAttrMask::EN_SQD_ASYNC_NOTIFY;
const NONE: QpAttrMask = QpAttrMask::empty();
const MIGRATION: QpAttrMask = QpAttrMask::ALT_PATH.union(QpAttrMask::PATH_MIG_STATE);
const PEER: QpAttrMask = AV.union(QpAttrMask::PATH_MTU).union(QpAttrMask::DEST_QPN).union(QpAttrMask::RQ_PSN);
const RETRIES: QpAttrMask = QpAttrMask::TIMEOUT.union(QpAttrMask::RETRY_CNT).union(QpAttrMask::RNR_RETRY);
const MAX_RD_ATOMIC: QpAttrMask = QpAttrMask::MAX_QP_RD_ATOMIC;
const MAX_DEST_RD_ATOMIC: QpAttrMask = QpAttrMask::MAX_DEST_RD_ATOMIC;

/// Required and optional attributes of a transition; `None` if the transition is invalid. The
/// values are those of the kernel's `qp_state_table` (`core/verbs.c`).
fn qp_state_table(qp_type: QpType, from: QpState, to: QpState) -> Option<(QpAttrMask, QpAttrMask)> {
    if qp_type == QpType::RAW_PACKET {
        let (required, _) = qp_state_table(QpType::UD, from, to)?;
        return Some(match (from, to) {
            (QpState::RESET, QpState::INIT) => (required & PORT, NONE),
            (QpState::RTR | QpState::RTS, QpState::RTS) => (NONE, QpAttrMask::RATE_LIMIT),
            _ => (NONE, NONE),
        });
    }
    let (reliable, datagrams) = (qp_type == QpType::RC, qp_type == QpType::UD);
    // Each side of a reliable transport has attributes of its own.
    let requester = reliable || qp_type == QpType::XRC_INI;
    let responder = reliable || qp_type == QpType::XRC_TGT;
    let rnr_timer = if responder { RNR_TIMER } else { NONE };
    let rts_optional = if datagrams { CUR | QKEY } else { CUR | ACCESS | MIGRATION | rnr_timer };
    Some(match (from, to) {
        (_, QpState::RESET) => (NONE, NONE),
        (QpState::RESET, QpState::ERR) => return None,
        (_, QpState::ERR) => (NONE, NONE),
        (QpState::RESET, QpState::INIT) if datagrams => (PKEY | PORT | QKEY, NONE),
        (QpState::RESET, QpState::INIT) => (PKEY | PORT | ACCESS, NONE),
        (QpState::INIT, QpState::INIT) if datagrams => (NONE, PKEY | PORT | QKEY),
        (QpState::INIT, QpState::INIT) => (NONE, PKEY | PORT | ACCESS),
        (QpState::INIT, QpState::RTR) if datagrams => (NONE, PKEY | QKEY),
        (QpState::INIT, QpState::RTR) => {
            let required = if responder { PEER | MAX_DEST_RD_ATOMIC | RNR_TIMER } else { PEER };
            (required, QpAttrMask::ALT_PATH | ACCESS | PKEY)
        }
        (QpState::RTR, QpState::RTS) => {
            let required = match (requester, responder) {
                (true, _) => SQ_PSN | RETRIES | MAX_RD_ATOMIC,
                (false, true) => SQ_PSN | QpAttrMask::TIMEOUT,
                (false, false) => SQ_PSN,
            };
            (required, rts_optional)
        }
        (QpState::RTS | QpState::SQD, QpState::RTS) => (NONE, rts_optional),
        (QpState::RTS, QpState::SQD) => (NONE, NOTIFY),
        (QpState::SQD, QpState::SQD) if datagrams => (NONE, PKEY | QKEY),
        (QpState::SQD, QpState::SQD) if reliable => (
            NONE,
            PORT | AV | RETRIES | MAX_RD_ATOMIC | MAX_DEST_RD_ATOMIC | ACCESS | PKEY | RNR_TIMER | MIGRATION,
        ),
        (QpState::SQD, QpState::SQD) if requester => {
            (NONE, PORT | AV | RETRIES | MAX_RD_ATOMIC | ACCESS | PKEY | MIGRATION)
        }
        (QpState::SQD, QpState::SQD) if responder => (
            NONE,
            PORT | AV | QpAttrMask::TIMEOUT | MAX_DEST_RD_ATOMIC | ACCESS | PKEY | RNR_TIMER | MIGRATION,
        ),
        (QpState::SQD, QpState::SQD) => (NONE, AV | ACCESS | PKEY | MIGRATION),
        (QpState::SQE, QpState::RTS) if !requester && !responder => {
            (NONE, if datagrams { CUR | QKEY } else { CUR | ACCESS })
        }
        _ => return None,
    })
}

/// Explains an `EINVAL` of the kernel for a modify.
pub(super) fn explain_invalid_modify(
    qp_type: QpType,
    from: QpState,
    attr: &QpAttr,
    mask: QpAttrMask,
) -> String {
    let to = if mask.contains(QpAttrMask::STATE) { attr.qp_state } else { from };
    let Some((required, optional)) = qp_state_table(qp_type, from, to) else {
        return format!(
            "no transition from {from:?} to {to:?}: the order is RESET, INIT, RTR, RTS; RTS to SQD \
             and back; any state to ERR or RESET"
        );
    };
    let missing = required.difference(mask);
    let unexpected = mask.difference(required | optional | QpAttrMask::STATE);
    if !missing.is_empty() {
        format!("the transition also requires {missing:?}")
    } else if !unexpected.is_empty() {
        format!("the transition does not allow {unexpected:?}")
    } else {
        "a value may exceed a limit of the device, or the QP may have moved itself to ERR: query it".into()
    }
}

/// Rejects values that exceed their packet field or table. Kernels truncate them or do not check
/// them.
pub(super) fn check_values(
    verb: &'static str,
    state: QpState,
    attr: &QpAttr,
    mask: QpAttrMask,
) -> Result<()> {
    for (bit, what, asked) in [
        (QpAttrMask::RQ_PSN, "rq_psn", attr.rq_psn),
        (SQ_PSN, "sq_psn", attr.sq_psn),
        (QpAttrMask::DEST_QPN, "dest_qp_num", attr.dest_qp_num),
    ] {
        if mask.contains(bit) {
            check_24_bits(verb, what, asked)?;
        }
    }
    if mask.contains(QpAttrMask::PATH_MIG_STATE) {
        let (asked, max) = (attr.path_mig_state.0, MigState::ARMED.0);
        Error::check_range(verb, "path_mig_state", asked.into(), max.into())?;
    }
    if mask.contains(QpAttrMask::PATH_MTU) && attr.path_mtu.is_none() {
        return Err(Error::invalid(verb, "the mask has PATH_MTU, but path_mtu is None"));
    }
    // A QP may have moved itself to SQE after a failed send. From there it can go to RTS.
    if mask.contains(CUR) && ![state, QpState::SQE].contains(&attr.cur_qp_state) {
        let cause = InvalidCause::QpState { state, required: attr.cur_qp_state, moved_itself: false };
        return Err(Error::invalid(verb, cause));
    }
    Ok(())
}

pub(crate) fn check_24_bits(verb: &'static str, what: &'static str, asked: u32) -> Result<()> {
    Error::check_range(verb, what, asked.into(), MAX_24_BITS.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::Mtu;

    fn explanation(qp_type: QpType, from: QpState, to: QpState, mask: QpAttrMask) -> String {
        let attr = QpAttr { qp_state: to, ..QpAttr::default() };
        explain_invalid_modify(qp_type, from, &attr, mask | QpAttrMask::STATE)
    }

    #[test]
    fn missing_and_disallowed_attributes_are_named() {
        let (rc, ud) = (QpType::RC, QpType::UD);
        let text = explanation(rc, QpState::INIT, QpState::RTR, PEER | RNR_TIMER);
        assert!(text.contains("requires") && text.contains("MAX_DEST_RD_ATOMIC"), "{text}");
        assert!(!text.contains("MIN_RNR_TIMER"), "{text}");
        let text = explanation(ud, QpState::INIT, QpState::RTR, AV);
        assert!(text.contains("does not allow") && text.contains("AV"), "{text}");
        let text = explanation(rc, QpState::INIT, QpState::RTS, NONE);
        assert!(text.starts_with("no transition from INIT to RTS: the order is RESET, INIT"), "{text}");
        assert!(explanation(rc, QpState::RTS, QpState::SQD, NOTIFY).starts_with("a value may exceed"));
        let text = explain_invalid_modify(rc, QpState::RTS, &QpAttr::default(), PORT);
        assert!(text.contains("does not allow") && text.contains("PORT"), "{text}");
    }

    #[test]
    fn sides_of_reliable_transports_have_attributes_of_their_own() {
        let to_rts = |qp_type| qp_state_table(qp_type, QpState::RTR, QpState::RTS).unwrap();
        let both = SQ_PSN | RETRIES | MAX_RD_ATOMIC;
        for (qp_type, required, rnr_timer, leaves_sqe) in [
            (QpType::RC, both, true, false),
            (QpType::XRC_INI, both, false, false),
            (QpType::XRC_TGT, SQ_PSN | QpAttrMask::TIMEOUT, true, false),
            (QpType::UC, SQ_PSN, false, true),
            (QpType::UD, SQ_PSN, false, true),
        ] {
            let (found, optional) = to_rts(qp_type);
            assert_eq!((found, optional.contains(RNR_TIMER)), (required, rnr_timer), "{qp_type:?}");
            let recovers = qp_state_table(qp_type, QpState::SQE, QpState::RTS).is_some();
            assert_eq!(recovers, leaves_sqe, "{qp_type:?}");
        }
    }

    #[test]
    fn out_of_range_attributes_are_rejected() {
        let check = |attr: QpAttr, mask| check_values("modify_qp", QpState::RTS, &attr, mask);
        let zero = QpAttr::default();
        for (attr, mask, words) in [
            (
                QpAttr { rq_psn: 1 << 24, ..zero },
                QpAttrMask::RQ_PSN,
                "rq_psn 0x1000000 has more than 24 bits",
            ),
            (
                QpAttr { path_mig_state: MigState(3), ..zero },
                QpAttrMask::PATH_MIG_STATE,
                "path_mig_state 3 is above 2",
            ),
            (zero, QpAttrMask::PATH_MTU, "the mask has PATH_MTU, but path_mtu is None"),
            (zero, CUR, "the QP is in RTS, not in RESET"),
        ] {
            let refused = check(attr, mask).unwrap_err().to_string();
            assert_eq!(refused, format!("modify_qp: {words}"));
            check(attr, NONE).unwrap();
        }
        let max = QpAttr {
            path_mig_state: MigState::ARMED,
            sq_psn: MAX_24_BITS,
            path_mtu: Some(Mtu::Mtu256),
            ..zero
        };
        check(max, QpAttrMask::PATH_MIG_STATE | SQ_PSN | QpAttrMask::PATH_MTU).unwrap();
    }
}
