//! CQE version 0: CQEs name queues by QPN and SRQN.
//!
//! Such a CQE contains the QPN and, for a receive from an SRQ, the SRQN. It contains no user index.
//! The map translates both to the user index of the record. After that, lookup is the same as with
//! version 1.
//!
//! One difference remains: the device may reuse a QPN or SRQN while CQEs of its previous queue are
//! still to be polled. CQEs that were written before the new queue was created belong to the
//! previous, destroyed queue.

use bareverbs_provider::Errno;

use super::{QueueRecord, QueueRecordRef, Side};
use crate::cqe::Cqe;
use crate::sync::{AtomicU32, Ordering, ZeroedArray};

/// The number of QPNs, and of SRQNs.
const NUMBERS: usize = if cfg!(loom) { 1 << 4 } else { 1 << 24 };

/// In [`QpnSrqn`]: no number is stored.
const NO_NUMBER: u32 = u32::MAX;

/// User indices by QPN and by SRQN; 0 for none. Untouched entries use no memory.
#[derive(Debug)]
pub(super) struct QpnMap {
    qps: ZeroedArray<AtomicU32>,
    srqs: ZeroedArray<AtomicU32>,
}

fn slot(numbers: &ZeroedArray<AtomicU32>, number: u32) -> &AtomicU32 {
    numbers.get(number as usize & (NUMBERS - 1)).expect("there are so many")
}

/// The SRQN in a receive's CQE; 0 for none.
fn srq_num(cqe: &Cqe<'_>) -> u32 {
    cqe.srqn_uidx() & 0xff_ffff
}

impl QpnMap {
    pub(super) fn new() -> Result<Self, Errno> {
        let words = || ZeroedArray::new(NUMBERS);
        Ok(Self { qps: words()?, srqs: words()? })
    }

    /// The user index of the queue that a CQE names. Only an SRQ with a CQ of its own has a user
    /// index.
    #[cold]
    pub(super) fn id(&self, cqe: &Cqe<'_>, side: Side) -> u32 {
        if side == Side::Recv && srq_num(cqe) != 0 {
            let id = slot(&self.srqs, srq_num(cqe)).load(Ordering::Acquire);
            if id != 0 {
                return id;
            }
        }
        slot(&self.qps, cqe.qp_num()).load(Ordering::Acquire)
    }
}

/// The QPN and the SRQN of a queue.
#[derive(Debug)]
pub(super) struct QpnSrqn {
    qp: AtomicU32,
    srq: AtomicU32,
}

impl Default for QpnSrqn {
    fn default() -> Self {
        Self { qp: AtomicU32::new(NO_NUMBER), srq: AtomicU32::new(NO_NUMBER) }
    }
}

impl QueueRecord {
    /// Maps the CQEs of a queue pair to this record: CQEs that contain `qp_num` and, for receives,
    /// the SRQN `srq_num`, 0 for none.
    pub(crate) fn store(record: &QueueRecordRef, qp_num: u32, srq_num: u32) {
        let reused = record.table.qpn_map.as_ref().is_some_and(|qpn_map| {
            record.wire_numbers.qp.store(qp_num, Ordering::Relaxed);
            record.wire_numbers.srq.store(srq_num, Ordering::Relaxed);
            slot(&qpn_map.qps, qp_num).swap(record.id, Ordering::AcqRel) != 0
        });
        for side in [Side::Send, Side::Recv] {
            Self::store_side(record, side, reused);
        }
    }

    /// Maps the CQEs of an SRQ with a CQ of its own to this record.
    pub(crate) fn store_srq(record: &QueueRecordRef, srq_num: u32) {
        let reused = record.table.qpn_map.as_ref().is_some_and(|qpn_map| {
            record.wire_numbers.srq.store(srq_num, Ordering::Relaxed);
            slot(&qpn_map.srqs, srq_num).swap(record.id, Ordering::AcqRel) != 0
        });
        Self::store_side(record, Side::Recv, reused);
    }

    fn store_side(record: &QueueRecordRef, side: Side, reused: bool) {
        if reused {
            // CQEs that are already in the ring belong to the previous queue of this number.
            record.cq(side).clean(record, side, 0);
        } else {
            record.publish(side);
        }
    }

    /// Whether a CQE belongs to this queue. With CQE version 0, the result is also true for a CQE
    /// of another queue with the same QPN or SRQN. `id` is the user index that the CQE leads to.
    pub(crate) fn matches_cqe(&self, id: u32, side: Side, cqe: &Cqe<'_>) -> bool {
        if self.table.qpn_map.is_none() {
            return self.id == id;
        }
        let (qp, srq) =
            (self.wire_numbers.qp.load(Ordering::Relaxed), self.wire_numbers.srq.load(Ordering::Relaxed));
        match side {
            Side::Send => qp == cqe.qp_num(),
            Side::Recv => srq == srq_num(cqe) && (qp == NO_NUMBER || qp == cqe.qp_num()),
        }
    }

    /// Removes the QPN or SRQN from the map, unless another queue has it by now.
    pub(super) fn clear(&self) {
        let Some(qpn_map) = &self.table.qpn_map else { return };
        let (qp, srq) =
            (self.wire_numbers.qp.load(Ordering::Relaxed), self.wire_numbers.srq.load(Ordering::Relaxed));
        let (names, number) = if qp == NO_NUMBER { (&qpn_map.srqs, srq) } else { (&qpn_map.qps, qp) };
        if number != NO_NUMBER {
            let _ = slot(names, number).compare_exchange(self.id, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}
