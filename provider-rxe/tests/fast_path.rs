//! The fast path of the queues, compared with the slow path.

use bareverbs_provider::traits::{RecvQueue, SendQueue};
use bareverbs_provider::work::{Imm, Operation, Payload, RecvRequest, Remote, SendFlags, SendRequest, Sge};
use bareverbs_rxe::testing::{CountingDoorbell, PlainMemory};
use bareverbs_rxe::{RxeRq, RxeSq, SendLimits};
use bareverbs_uapi::uverbs::types::QpType;
use proptest::prelude::*;

const REMOTE: Remote = Remote { addr: 0x1122_3344_5566_7788, rkey: 0x99aa_bbcc };
const SGE: Sge = Sge { addr: 0x1000, length: 16, lkey: 7 };
const SEND: SendRequest<'_> = SendRequest {
    wr_id: 1,
    operation: Operation::Send,
    flags: SendFlags::SIGNALED,
    payload: Payload::Sges(&[SGE]),
};

fn send_queue(
    qp_type: QpType,
    max_sge: u32,
    max_inline: u32,
) -> (RxeSq<CountingDoorbell, PlainMemory>, PlainMemory) {
    let memory = PlainMemory::new(7, 208 + 128);
    let limits = SendLimits::new(qp_type, max_sge, max_inline).expect("a type that rxe has");
    // SAFETY: the memory is plain, and this is the only queue in it.
    let queue = unsafe { RxeSq::new(memory.clone(), 7, limits, CountingDoorbell::default()) }
        .expect("a sound header");
    (queue, memory)
}

fn recv_queue(max_sge: u32) -> (RxeRq<PlainMemory>, PlainMemory) {
    let memory = PlainMemory::new(7, 40 + 64);
    // SAFETY: the memory is plain, and this is the only queue in it.
    (unsafe { RxeRq::new(memory.clone(), 7, max_sge) }.expect("a sound header"), memory)
}

#[test]
fn fast_path_is_enabled_by_push_and_disabled_by_reset() {
    let (mut queue, _) = send_queue(QpType::RC, 1, 0);
    let (mut receives, _) = recv_queue(1);
    let receive = RecvRequest { wr_id: 1, sges: &[SGE] };
    for after_reset in [false, true] {
        // SAFETY: no kernel executes the requests; here and below.
        unsafe {
            assert!(!queue.try_push(&SEND));
            queue.push(&SEND).expect("room");
            if after_reset {
                assert!(!queue.try_push(&SEND), "no doorbell was rung");
                queue.ring().expect("the doorbell answers well");
                queue.push(&SEND).expect("room");
            }
            assert!(queue.try_push(&SEND));
            assert!(!receives.try_push(&receive));
            receives.push(&receive).expect("room");
            assert!(receives.try_push(&receive));
        }
        // SAFETY: the kernel's side has taken all published requests, or there is no kernel's side.
        unsafe { queue.reset() };
        // SAFETY: the kernel's side has taken all published requests, or there is no kernel's side.
        unsafe { receives.reset() };
    }
}

#[test]
fn fast_path_stays_disabled_on_ud_queues() {
    let (mut queue, _) = send_queue(QpType::UD, 4, 64);
    // SAFETY: no kernel executes the requests.
    unsafe {
        queue.push(&SEND).expect_err("a datagram needs an address");
        assert!(!queue.try_push(&SEND));
    }
}

#[test]
fn fast_path_declines_when_the_queue_is_full() {
    let (mut queue, _) = send_queue(QpType::RC, 1, 0);
    // SAFETY: no kernel executes the requests.
    unsafe {
        queue.push(&SEND).expect("room");
        assert_eq!((0..10).filter(|_| queue.try_push(&SEND)).count(), 6);
        queue.push(&SEND).expect_err("seven requests are all that fit");
    }
}

proptest! {
    #[test]
    fn fast_and_slow_path_write_equal_send_wqes(
        max_sge in 0..3u32,
        max_inline in 0..128u32,
        wr_id: u64,
        flags: u32,
        kind in 0..5u8,
        bytes in prop::collection::vec(any::<u8>(), 0..140),
        lengths in prop::collection::vec(any::<u32>(), 0..4),
        inline: bool,
    ) {
        let operation = [
            Operation::Send,
            Operation::Write(REMOTE),
            Operation::SendImm(Imm(7)),
            Operation::WriteImm(REMOTE, Imm(7)),
            Operation::Read(REMOTE),
        ][usize::from(kind)];
        let sges: Vec<_> = lengths.iter().map(|&length| Sge { length, ..SGE }).collect();
        let parts = [&bytes[..]];
        let payload = if inline { Payload::Inline(&parts) } else { Payload::Sges(&sges) };
        let request = SendRequest { wr_id, operation, flags: SendFlags::from_bits_retain(flags), payload };

        let (mut queue, memory) = send_queue(QpType::RC, max_sge, max_inline);
        let nothing = SendRequest { payload: Payload::Sges(&[]), ..SEND };
        // SAFETY: no kernel executes the requests.
        unsafe { queue.push(&nothing) }.unwrap();
        // SAFETY: no kernel executes the requests.
        let taken = unsafe { queue.try_push(&request) };
        // SAFETY: no kernel executes the requests.
        let long = unsafe { queue.push(&request) };
        prop_assert!(!taken || long.is_ok(), "what is refused must not be taken");
        if taken {
            prop_assert_eq!(memory.slot_bytes(1), memory.slot_bytes(2));
        }
        let short = match payload {
            Payload::Inline(_) => (8..=16).contains(&bytes.len()),
            Payload::Sges(_) => sges.len() == 1 && sges[0].length < 1 << 31,
        };
        prop_assert_eq!(taken, short && long.is_ok() && kind < 2);
    }

    #[test]
    fn fast_and_slow_path_write_equal_receive_wqes(
        max_sge in 0..3u32,
        wr_id: u64,
        lengths in prop::collection::vec(any::<u32>(), 0..4),
    ) {
        let sges: Vec<_> = lengths.iter().map(|&length| Sge { length, ..SGE }).collect();
        let request = RecvRequest { wr_id, sges: &sges };
        let (mut queue, memory) = recv_queue(max_sge);
        // SAFETY: no kernel executes the requests.
        unsafe { queue.push(&RecvRequest { wr_id: 0, sges: &[] }) }.unwrap();
        // SAFETY: no kernel executes the requests.
        let taken = unsafe { queue.try_push(&request) };
        // SAFETY: no kernel executes the requests.
        let long = unsafe { queue.push(&request) };
        prop_assert!(!taken || long.is_ok(), "what is refused must not be taken");
        if taken {
            prop_assert_eq!(memory.slot_bytes(1), memory.slot_bytes(2));
        }
        prop_assert_eq!(taken, sges.len() == 1 && sges[0].length < 1 << 31 && long.is_ok());
    }
}
