//! Programs that write anything into their rings.

use std::mem::offset_of;

use bareverbs_uapi::rxe::{QueueBuf, SendWqe};
use proptest::prelude::*;

use super::*;

/// Writes anywhere in a ring, also into its header.
fn scribble(ring: &QueueMemory, at: usize, bytes: &[u8]) {
    let at = at % (ring.len() - bytes.len());
    // SAFETY: within the mapping; no device accesses it now.
    unsafe { ring.mapping().as_ptr().as_ptr().add(at).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
}

/// Offsets in a ring that matter: the indices, and the fields of the first slots.
fn place() -> impl Strategy<Value = usize> {
    prop_oneof![Just(128usize), Just(256), 384..1500usize, any::<usize>()]
}

fn value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        prop::collection::vec(0..16u8, 1..9),
        prop::collection::vec(any::<u8>(), 1..64),
        any::<u32>().prop_map(|word| word.to_ne_bytes().to_vec()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// The device neither panics nor hangs, and reaches registered memory only.
    #[test]
    fn any_rings_are_survived(
        writes in prop::collection::vec((0..5u8, place(), value()), 1..40),
        kind in prop::sample::select(vec![QpType::RC, QpType::UC, QpType::UD]),
    ) {
        let mut pair = Pair::on(&Fabric::new(), kind, |attributes| attributes.rnr_retry = 0);
        let guard = [Mapping::anonymous(4096).unwrap(), Mapping::anonymous(4096).unwrap()];
        let cq_ring = pair.a.with(|engine| engine.port.cqs.get(pair.a.cq).unwrap().memory());
        if kind != QpType::UD {
            for wr_id in 0..8 {
                pair.qb.receive(wr_id, &[pair.b.sge(0, 100)]);
                let sge = [pair.a.sge(0, 100)];
                let operation = if wr_id.is_multiple_of(2) { Operation::Send } else { Operation::Write(pair.b.remote(0)) };
                pair.qa.push(wr_id, operation, SendFlags::SIGNALED, Payload::Sges(&sge));
            }
            let _ = pair.qa.sq.ring();
        }
        for (which, at, bytes) in &writes {
            let ring = match which {
                0 | 1 => &pair.qa.sq_ring,
                2 => pair.qa.rq_ring.as_ref().unwrap(),
                3 => pair.qb.rq_ring.as_ref().unwrap(),
                _ => &cq_ring,
            };
            scribble(ring, *at, bytes);
            let _ = pair.a.with(|engine| engine.post_send(pair.qa.qpn));
        }
        pair.a.modify(pair.qa.qpn, State::Error, &QpAttributes::default());
        pair.a.modify(pair.qa.qpn, State::Reset, &QpAttributes::default());
        for page in guard {
            // SAFETY: the page is mapped, and nothing writes it.
            let clean = (0..4096).all(|at| unsafe { page.as_ptr().as_ptr().add(at).read() } == 0);
            prop_assert!(clean);
        }
        pair.b.with(|engine| engine.destroy_qp(pair.qb.qpn));
    }
}

#[test]
fn panic_fails_the_fabric() {
    let peer = Peer::new(&Fabric::new(), 2, 8);
    let quiet = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let result = peer.fabric.with(peer.device, |_| -> Result<(), Errno> { panic!("a bug") });
    std::panic::set_hook(quiet);
    assert_eq!(result, Err(Errno::IO));
    assert_eq!(peer.fabric.with(peer.device, |_| Ok(())), Err(Errno::IO));
}

#[test]
fn removed_device_fails_with_eio() {
    let fabric = Fabric::new();
    let peer = Peer::new(&fabric, 2, 8);
    peer.remove();
    assert_eq!(fabric.with(peer.device, |_| Ok(())), Err(Errno::IO));
}

/// The place of the first slot's data length in a send queue.
const DATA_LENGTH: usize = size_of::<QueueBuf>() + offset_of!(SendWqe, dma.length);

#[test]
fn inline_data_beyond_the_capacity_is_malformed() {
    for length in [65, u32::MAX] {
        let mut pair = Pair::rc();
        let payload = Payload::Inline(&[&[7; 64]]);
        pair.qa.push(1, Operation::Write(pair.b.remote(0)), SendFlags::SIGNALED, payload);
        scribble(&pair.qa.sq_ring, DATA_LENGTH, &length.to_ne_bytes());
        pair.qa.sq.ring().unwrap();
        assert_eq!(pair.a.drain(), [(1, WcStatus::WR_FLUSH_ERR)]);
        assert_eq!(pair.qa.sq.failure(), Some((1, WcStatus::LOC_QP_OP_ERR)));
    }
}

#[test]
fn request_that_changes_during_its_execution_fails() {
    let mut pair = Pair::rc();
    let sge = [pair.a.sge(0, 8)];
    for wr_id in 1..3 {
        pair.qa.push(wr_id, Operation::Send, SendFlags::SIGNALED, Payload::Sges(&sge));
    }
    pair.qa.sq.ring().unwrap();
    // Both are in execution: there is no receive yet.
    scribble(&pair.qa.sq_ring, DATA_LENGTH, &4_u32.to_ne_bytes());
    for wr_id in 1..3 {
        pair.qb.receive(wr_id, &[pair.b.sge(0, 8)]);
    }
    assert_eq!(
        (pair.a.wait().status, pair.a.wait().status),
        (WcStatus::WR_FLUSH_ERR, WcStatus::WR_FLUSH_ERR)
    );
    assert_eq!(pair.qa.sq.failure(), Some((1, WcStatus::LOC_QP_OP_ERR)));
    assert_eq!(pair.b.drain(), []);
}
