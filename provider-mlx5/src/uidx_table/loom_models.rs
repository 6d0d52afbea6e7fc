//! Loom models of table entries whose user index is reused.

use std::ptr::NonNull;
use std::sync::Arc;

use bareverbs_provider::mapping::Mapping;
use loom::thread;

use super::clean::CqShared;
use super::{QueueRecord, QueueRecordRef, RqTracker, Side, Source, SqTracker, UidxTable};
use crate::cq_ring::Ring;
use crate::cqe::CQE;
use crate::doorbell::DoorbellRecords;
use crate::fixture::LOG;
use crate::sync::Ordering;

/// A record in a new table, with a CQ of its own.
fn record() -> QueueRecordRef {
    let table = Arc::new(UidxTable::new(2, 1).expect("memory"));
    let ring = Ring::new(Mapping::anonymous(CQE << LOG).expect("memory"), LOG, CQE);
    let doorbell = DoorbellRecords::default().take().expect("memory");
    let cq = Arc::new(CqShared::new(&table, 1, doorbell, ring));
    let source = Source::Own(RqTracker::new(1));
    QueueRecord::new(&table, [Arc::clone(&cq), cq], SqTracker::new(1), source).expect("a free user index")
}

/// The entry of a reused user index has the address of a freed record until the next record is
/// published. The poller of the next record's CQ looks the user index up at the same time, because
/// a faulty device wrote a CQE.
fn publish_concurrent_with_lookup(side: Side) {
    loom::model(move || {
        // In place of the freed record, so that a poller that finds it does no harm.
        let freed = record();
        let next = record();
        next.entry().record.store(NonNull::from(&*freed).as_ptr(), Ordering::Relaxed);
        let address = NonNull::from(&*next).addr();
        let (table, id, tag) = (Arc::clone(&next.table), next.id(), next.cq(side).tag());
        let poller = thread::spawn(move || {
            let entry = table.entry(id).expect("an index of the table");
            // SAFETY: this thread is the poller of the only CQ. Both records live until it ends.
            let found = unsafe { entry.record(side, tag) }.map(|record| NonNull::from(record).addr());
            assert!(found.is_none_or(|found| found == address), "the freed record was found");
        });
        next.publish(side);
        poller.join().expect("the poller finds the published record or none");
        drop((next, freed));
    });
}

#[test]
fn send_lookup_concurrent_with_reuse_of_a_uidx() {
    publish_concurrent_with_lookup(Side::Send);
}

#[test]
fn receive_lookup_concurrent_with_reuse_of_a_uidx() {
    publish_concurrent_with_lookup(Side::Recv);
}
