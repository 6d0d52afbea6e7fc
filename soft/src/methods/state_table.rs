//! The transitions of QPs and the attributes that they take (`qp_state_table` of `core/verbs.c`, and the
//! InfiniBand specification, volume 1, 10.3 and 11.2.5.3).

use bareverbs_uapi::uverbs::types::QpType;
use bareverbs_uapi::verbs_values::{QpAttrMask as Mask, QpState};

/// A transition: the states, and the required and optional attributes of RC, UC and UD.
struct Transition {
    from: QpState,
    to: QpState,
    required: [Mask; 3],
    optional: [Mask; 3],
}

const fn transition(from: QpState, to: QpState, required: [u32; 3], optional: [u32; 3]) -> Transition {
    const fn masks(bits: [u32; 3]) -> [Mask; 3] {
        [Mask::from_bits_retain(bits[0]), Mask::from_bits_retain(bits[1]), Mask::from_bits_retain(bits[2])]
    }
    Transition { from, to, required: masks(required), optional: masks(optional) }
}

const CUR_STATE: u32 = Mask::CUR_STATE.bits();
const NOTIFY: u32 = Mask::EN_SQD_ASYNC_NOTIFY.bits();
const ACCESS: u32 = Mask::ACCESS_FLAGS.bits();
const PKEY: u32 = Mask::PKEY_INDEX.bits();
const PORT: u32 = Mask::PORT.bits();
const QKEY: u32 = Mask::QKEY.bits();
const AV: u32 = Mask::AV.bits();
const ALT: u32 = Mask::ALT_PATH.bits();
const MIG: u32 = Mask::PATH_MIG_STATE.bits();
const RNR_TIMER: u32 = Mask::MIN_RNR_TIMER.bits();
const SQ_PSN: u32 = Mask::SQ_PSN.bits();
const DEST_RD: u32 = Mask::MAX_DEST_RD_ATOMIC.bits();
/// What a requester of RC needs.
const REQUESTER: u32 =
    Mask::TIMEOUT.bits() | Mask::RETRY_CNT.bits() | Mask::RNR_RETRY.bits() | Mask::MAX_QP_RD_ATOMIC.bits();
/// What a connected responder needs.
const RESPONDER: u32 = AV | Mask::PATH_MTU.bits() | Mask::DEST_QPN.bits() | Mask::RQ_PSN.bits();
/// What a connected QP that sends may change.
const CONNECTED: u32 = CUR_STATE | ALT | ACCESS | MIG;
const SENDING: [u32; 3] = [CONNECTED | RNR_TIMER, CONNECTED, CUR_STATE | QKEY];
const INITIAL: [u32; 3] = [PKEY | PORT | ACCESS, PKEY | PORT | ACCESS, PKEY | PORT | QKEY];
const NONE: [u32; 3] = [0; 3];

const TRANSITIONS: &[Transition] = &[
    transition(QpState::RESET, QpState::INIT, INITIAL, NONE),
    transition(QpState::INIT, QpState::INIT, NONE, INITIAL),
    transition(
        QpState::INIT,
        QpState::RTR,
        [RESPONDER | DEST_RD | RNR_TIMER, RESPONDER, 0],
        [ALT | ACCESS | PKEY, ALT | ACCESS | PKEY, PKEY | QKEY],
    ),
    transition(QpState::RTR, QpState::RTS, [REQUESTER | SQ_PSN, SQ_PSN, SQ_PSN], SENDING),
    transition(QpState::RTS, QpState::RTS, NONE, SENDING),
    transition(QpState::RTS, QpState::SQD, NONE, [NOTIFY; 3]),
    transition(QpState::SQD, QpState::RTS, NONE, SENDING),
    transition(
        QpState::SQD,
        QpState::SQD,
        NONE,
        [
            AV | ALT | ACCESS | PKEY | MIG | PORT | REQUESTER | DEST_RD | RNR_TIMER,
            AV | ALT | ACCESS | PKEY | MIG,
            PKEY | QKEY,
        ],
    ),
    transition(QpState::SQE, QpState::RTS, NONE, [0, CUR_STATE | ACCESS, CUR_STATE | QKEY]),
];

/// Whether a QP in the state `from` may be moved to another with these attributes (`ib_modify_qp_is_ok`).
/// RC never gets into SQE.
pub(super) fn is_allowed(qp_type: QpType, from: QpState, to: QpState, mask: Mask) -> bool {
    let given = mask & !Mask::STATE;
    if to == QpState::RESET || (to == QpState::ERR && from != QpState::RESET) {
        return given.is_empty();
    }
    let of_type = match qp_type {
        QpType::RC => 0,
        QpType::UC => 1,
        _ => 2,
    };
    TRANSITIONS.iter().any(|row| {
        let (required, optional) = (row.required[of_type], row.optional[of_type]);
        (row.from, row.to) == (from, to) && given.contains(required) && (required | optional).contains(given)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transitions_take_their_required_and_optional_attributes_only() {
        let initial = Mask::STATE | Mask::PKEY_INDEX | Mask::PORT | Mask::ACCESS_FLAGS;
        let to_init = |qp_type, mask| is_allowed(qp_type, QpState::RESET, QpState::INIT, mask);
        assert!(to_init(QpType::RC, initial) && to_init(QpType::UC, initial));
        assert!(!to_init(QpType::UD, initial));
        assert!(!to_init(QpType::RC, initial & !Mask::PORT));
        assert!(!to_init(QpType::RC, initial | Mask::QKEY));
        assert!(!is_allowed(QpType::RC, QpState::RESET, QpState::RTS, Mask::STATE));
    }

    #[test]
    fn attributes_of_a_drained_queue_depend_on_the_type() {
        let takes = |qp_type, attribute| {
            is_allowed(qp_type, QpState::SQD, QpState::SQD, Mask::STATE | Mask::from_bits_retain(attribute))
        };
        let types = [QpType::RC, QpType::UC, QpType::UD];
        for (attribute, expected) in [
            (PORT, [true, false, false]),
            (RNR_TIMER, [true, false, false]),
            (DEST_RD, [true, false, false]),
            (AV, [true, true, false]),
            (ACCESS, [true, true, false]),
            (PKEY, [true, true, true]),
            (QKEY, [false, false, true]),
            (SQ_PSN, [false, false, false]),
        ] {
            assert_eq!(types.map(|qp_type| takes(qp_type, attribute)), expected, "{attribute:#x}");
        }
    }

    #[test]
    fn every_state_leads_to_reset_and_all_but_reset_to_err() {
        for from in [QpState::RESET, QpState::INIT, QpState::RTR, QpState::RTS, QpState::SQD, QpState::ERR] {
            assert!(is_allowed(QpType::RC, from, QpState::RESET, Mask::STATE));
            let to_error = is_allowed(QpType::RC, from, QpState::ERR, Mask::STATE);
            assert_eq!(to_error, from != QpState::RESET);
        }
    }
}
