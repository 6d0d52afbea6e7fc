use super::*;
use bareverbs_provider::work::{Operation, Payload, Remote, Sge, WcOpcode};

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

#[test]
fn wqe_with_its_control_segment_is_posted_as_it_is_but_for_the_counter() {
    let Fixture { mut sq, rq, .. } = Fixture::new(false);
    let control = |block: u16| {
        let flags = ControlFlags::CQ_UPDATE.bits() | ControlFlags::FENCE.bits();
        let mut bytes = [0x5a, 0, 0, Opcode::NOP.0, 0, 0, 0x2a, 2, 9, 8, 7, flags, 1, 2, 3, 4];
        bytes[1..3].copy_from_slice(&block.to_be_bytes());
        bytes
    };
    let segment = |bytes: [u8; 16]| {
        let [first, second] = [&bytes[..8], &bytes[8..]];
        [first, second].map(|half| u64::from_ne_bytes(half.try_into().unwrap()))
    };
    let data = segment([7; 16]);
    for block in 0..2 {
        let wqe = [segment(control(0xffff)), data];
        // SAFETY: no device accesses the memory.
        unsafe { sq.push_whole_wqe(block, &wqe, WcOpcode(136)) }.expect("room");
        let written = sq.block(block as u32);
        assert_eq!(written[..32], [control(block as u16), [7; 16]].concat());
    }
    // SAFETY: as above.
    let refused = unsafe { sq.push_whole_wqe(2, &[], WcOpcode(136)) };
    assert!(matches!(refused, Err(PushError::Unsupported { .. })), "{refused:?}");
    let too_long = vec![data; sq.max_segments() + 1];
    // SAFETY: as above.
    let refused = unsafe { sq.push_whole_wqe(2, &too_long, WcOpcode(136)) };
    assert!(matches!(refused, Err(PushError::Unsupported { .. })), "{refused:?}");
    drop(rq);
}

#[test]
fn fast_path_declines_the_operations_of_other_transports() {
    let Fixture { mut sq, rq, .. } = Fixture::new(false);
    sq.limits.qp_type = QpType::XRC_INI;
    let payload = Payload::Sges(&[Sge { addr: 64, length: 8, lkey: 1 }]);
    let request = SendRequest { wr_id: 1, operation: Operation::Send, flags: SendFlags::empty(), payload };
    let xrc = XrcOperation { remote_srq: 1, operation: Operation::Send };
    // SAFETY: no device accesses the memory.
    unsafe {
        sq.push_xrc(&request.with(xrc)).expect("room");
        assert!(!sq.try_push(&request));
        assert!(sq.ring().is_ok());
        assert!(sq.try_post(&request, false).is_none());
    }
    drop(rq);
}
