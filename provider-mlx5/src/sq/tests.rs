use super::*;
use bareverbs_provider::work::{Operation, Payload, Remote, Sge};

use crate::fixture::Fixture;

/// Offset of the flags in a control segment.
const FLAGS: usize = 11;

#[test]
fn each_send_is_signalled_where_all_are_or_it_asks_for_it() {
    for all in [false, true] {
        for flags in [SendFlags::empty(), SendFlags::SIGNALED] {
            let Fixture { mut sq, rq, .. } = Fixture::new(false);
            sq.base_flags = if all { ControlFlags::CQ_UPDATE } else { ControlFlags::empty() };
            let operation = Operation::Write(Remote { addr: 64, rkey: 1 });
            let payload = Payload::Sges(&[Sge { addr: 64, length: 8, lkey: 1 }]);
            // SAFETY: no device accesses the memory.
            unsafe { sq.push(&SendRequest { wr_id: 1, operation, flags, payload }) }.expect("room");
            let is_signalled = sq.block(0)[FLAGS] & ControlFlags::CQ_UPDATE.bits() != 0;
            assert_eq!(is_signalled, all || flags.contains(SendFlags::SIGNALED), "{all} {flags:?}");
            drop(rq);
        }
    }
}
