//! Conditions that enable the fast path of a queue, and the limits that a queue reports.

use bareverbs_provider::error::{CreateError, Feature};
use bareverbs_provider::traits::{QpControl, RecvQueue, SendQueue};
use bareverbs_provider::work::{
    Datagram, Operation, Payload, PushError, RecvRequest, Remote, SendFlags, SendRequest, Sge,
};
use bareverbs_rxe::testing::{CountingDoorbell, KernelConsumer, PlainMemory};
use bareverbs_rxe::{RxeAh, RxeRq, RxeSq, SendLimits};
use bareverbs_uapi::uverbs::types::QpType;
use bareverbs_uapi::verbs_values::QpAttrMask;
use bareverbs_uapi::write::structs::ModifyQpReq;

const SGE: Sge = Sge { addr: 0x1000, length: 16, lkey: 7 };

fn send_queue(qp_type: QpType, max_sge: u32, max_inline: u32) -> RxeSq<CountingDoorbell, PlainMemory> {
    let limits = SendLimits::new(qp_type, max_sge, max_inline).expect("a type that rxe has");
    let memory = PlainMemory::new(7, 208 + 128);
    // SAFETY: the memory is plain, and this is the only queue in it.
    unsafe { RxeSq::new(memory, 7, limits, CountingDoorbell::default()) }.expect("a sound header")
}

fn request(operation: Operation, payload: Payload<'_>) -> SendRequest<'_> {
    SendRequest { wr_id: 1, operation, flags: SendFlags::SIGNALED, payload }
}

#[test]
fn ud_queue_rejects_requests_without_an_ah() {
    let mut queue = send_queue(QpType::UD, 4, 64);
    let ah = RxeAh { number: 5 };
    let datagram = SendRequest {
        wr_id: 1,
        operation: Datagram { ah: &ah, qp_num: 9, qkey: 1, imm: None, header: &[] },
        flags: SendFlags::SIGNALED,
        payload: Payload::Sges(&[SGE]),
    };
    let write = Operation::Write(Remote { addr: 64, rkey: 1 });
    // SAFETY: no kernel executes the requests; here and below.
    unsafe {
        queue.push_datagram(&datagram).expect("room");
        for operation in [Operation::Send, write] {
            assert!(!queue.try_push(&request(operation, Payload::Sges(&[SGE]))), "{operation:?}");
            assert!(!queue.try_push(&request(operation, Payload::Inline(&[&[1; 8]]))), "{operation:?}");
        }
    }
}

#[test]
fn queue_of_zero_sges_declines_sges_on_the_fast_path() {
    let mut queue = send_queue(QpType::RC, 0, 16);
    let element = request(Operation::Send, Payload::Sges(&[SGE]));
    // SAFETY: no kernel executes the requests.
    unsafe {
        queue.push(&request(Operation::Send, Payload::Inline(&[&[1; 8]]))).expect("room");
        assert!(!queue.try_push(&element));
        assert!(matches!(queue.push(&element), Err(PushError::TooManySges { given: 1, .. })));
    }
}

#[test]
fn fast_path_takes_inline_data_up_to_max_inline() {
    for max_inline in [8, 9, 15, 16, 24] {
        let mut queue = send_queue(QpType::RC, 1, max_inline);
        // SAFETY: no kernel executes the requests.
        unsafe { queue.push(&request(Operation::Send, Payload::Sges(&[SGE]))) }.expect("room");
        for length in 1..=32 {
            let bytes = [7; 32];
            let parts = [&bytes[..length]];
            // SAFETY: no kernel executes the requests.
            let taken = unsafe { queue.try_push(&request(Operation::Send, Payload::Inline(&parts))) };
            queue.abort();
            let fits = (8..=16).contains(&length) && length <= max_inline as usize;
            assert_eq!(taken, fits, "{length} bytes in a queue for {max_inline}");
        }
    }
}

#[test]
fn posted_counts_receives_the_kernel_has_not_consumed() {
    let memory = PlainMemory::new(7, 40 + 16);
    // SAFETY: the memory is plain, and this is the only queue in it.
    let mut queue = unsafe { RxeRq::new(memory.clone(), 7, 1) }.expect("a sound header");
    let mut kernel = KernelConsumer::new(memory);
    assert_eq!(queue.posted(), 0);
    for wr_id in 0..5 {
        // SAFETY: no kernel executes the requests.
        unsafe { queue.push(&RecvRequest { wr_id, sges: &[SGE] }) }.expect("room");
    }
    assert_eq!(queue.posted(), 0, "not published yet");
    queue.ring();
    assert_eq!(queue.posted(), 5);
    assert!(kernel.take().is_some() && kernel.take().is_some());
    assert_eq!(queue.posted(), 3);
    let failed = CreateError::Unsupported { feature: Feature::QpType };
    // SAFETY: the kernel's side no longer reads the memory.
    assert_eq!(unsafe { queue.finish_resize(Err(failed), 7) }, Err(failed));
    assert_eq!(queue.posted(), 0, "the kernel's queue is elsewhere");
}

#[test]
fn raising_max_dest_rd_atomic_is_rejected() {
    let mut queue = send_queue(QpType::RC, 1, 0);
    let change = |max_dest_rd_atomic| ModifyQpReq {
        attr_mask: QpAttrMask::MAX_DEST_RD_ATOMIC,
        max_dest_rd_atomic,
        ..ModifyQpReq::zeroed()
    };
    assert_eq!(queue.validate_modify(&change(16)), Ok(()));
    queue.modified(&change(2));
    assert_eq!(queue.validate_modify(&change(2)), Ok(()));
    assert!(queue.validate_modify(&change(3)).is_err_and(|reason| reason.contains("max_dest_rd_atomic")));
}

#[test]
fn slot_holds_the_largest_request_exactly() {
    let made = |log2_slot, max_sge, max_inline| {
        let limits = SendLimits::new(QpType::RC, max_sge, max_inline).expect("a type that rxe has");
        let memory = PlainMemory::with_header(1 << 16, log2_slot, 7);
        // SAFETY: the memory is plain, and this is the only queue in it.
        unsafe { RxeSq::new(memory, 7, limits, CountingDoorbell::default()) }.is_ok()
    };
    // A WQE has 208 bytes, and 8 more for the value of an atomic write.
    assert!(!made(7, 0, 0) && made(8, 0, 0));
    assert!(made(8, 3, 48) && !made(8, 4, 0) && !made(8, 0, 49));
    assert!(!made(8, u32::MAX, 0) && !made(8, 0, u32::MAX));
}

#[test]
fn operations_without_payload_reject_empty_sges() {
    let mut queue = send_queue(QpType::RC, 2, 16);
    let payloads = [
        Payload::Sges(&[Sge { length: 0, ..SGE }]),
        Payload::Sges(&[SGE]),
        Payload::Inline(&[]),
        Payload::Inline(&[&[1; 8]]),
    ];
    for payload in payloads {
        // SAFETY: no kernel executes the requests.
        let pushed = unsafe { queue.push(&request(Operation::LocalInv(1), payload)) };
        assert!(matches!(pushed, Err(PushError::UnexpectedPayload { .. })), "{payload:?}");
    }
    // SAFETY: no kernel executes the requests.
    unsafe { queue.push(&request(Operation::LocalInv(1), Payload::Sges(&[]))) }.expect("no payload");
}
