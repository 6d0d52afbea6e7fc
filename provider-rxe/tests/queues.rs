//! The queues against a simulated kernel on plain memory, compared with `VecDeque`s after each
//! step.

use std::collections::VecDeque;

use bareverbs_provider::Errno;
use bareverbs_provider::error::{CreateError, DoorbellError, Feature};
use bareverbs_provider::traits::{Completion, CompletionQueue, QpControl, RecvQueue, SendQueue};
use bareverbs_provider::work::{
    Imm, Operation, Payload, PushError, RecvRequest, SendFlags, SendRequest, Sge, WcFlags, WcOpcode, WcStatus,
};
use bareverbs_rxe::testing::{CountingArm, CountingDoorbell, KernelConsumer, KernelProducer, PlainMemory};
use bareverbs_rxe::{RxeCq, RxeRq, RxeSq, SendLimits};
use bareverbs_uapi::uverbs::types::QpType;
use bareverbs_uapi::write::structs::Wc;
use proptest::prelude::*;

fn number(bytes: &[u8]) -> u64 {
    u64::from_ne_bytes(bytes[..8].try_into().expect("8 bytes"))
}

fn limits() -> SendLimits {
    SendLimits::new(QpType::RC, 1, 0).expect("rxe has RC")
}

const SGE: Sge = Sge { addr: 1, length: 1, lkey: 1 };

fn send(wr_id: u64) -> SendRequest<'static> {
    SendRequest {
        wr_id,
        operation: Operation::Send,
        flags: SendFlags::empty(),
        payload: Payload::Sges(&[SGE]),
    }
}

/// A step of a send or receive queue.
#[derive(Clone, Copy, Debug)]
enum Fill {
    Push(u8),
    Defer,
    Ring,
    RefusedRing,
    Abort,
    KernelTakes(u8),
}

fn fills() -> impl Strategy<Value = Vec<Fill>> {
    let step = prop_oneof![
        4 => (1..40u8).prop_map(Fill::Push),
        2 => Just(Fill::Defer),
        3 => Just(Fill::Ring),
        1 => Just(Fill::RefusedRing),
        1 => Just(Fill::Abort),
        4 => (1..40u8).prop_map(Fill::KernelTakes),
    ];
    prop::collection::vec(step, 1..60)
}

/// A ring of `depth` that starts at slot `start`.
fn started_at(depth: u32, start: u32, element: usize) -> PlainMemory {
    let memory = PlainMemory::new(depth, element);
    let mask = (depth + 1).next_power_of_two() - 1;
    memory.set_indices(start & mask, start & mask);
    memory
}

#[test]
fn receive_queue_resized_to_short_memory_is_lost() {
    // SAFETY: the memory is plain, and this is the only queue in it.
    let mut queue = unsafe { RxeRq::new(PlainMemory::new(7, 40), 7, 0) }.unwrap();
    // SAFETY: the kernel's side has moved, and all taken slots are released.
    let result = unsafe { queue.finish_resize(Ok(PlainMemory::new(7, 40)), 100) };
    assert!(matches!(result, Err(CreateError::Layout { .. })));
    // SAFETY: no kernel executes the request.
    let result = unsafe { queue.push(&RecvRequest { wr_id: 1, sges: &[] }) };
    assert_eq!(result, Err(PushError::QueueLost));
}

#[test]
fn receive_queue_without_memory_rejects_posts_until_resized() {
    let memory = PlainMemory::new(7, 40);
    // SAFETY: the memory is plain, and this is the only queue in it.
    let mut queue = unsafe { RxeRq::new(memory.clone(), 7, 0) }.unwrap();
    // SAFETY: no kernel reads the old memory.
    let result = unsafe { queue.finish_resize(Ok(PlainMemory::new(7, 40)), 100) };
    assert!(matches!(result, Err(CreateError::Layout { .. })));
    for consumer in 0..8 {
        memory.set_indices(0, consumer);
        // SAFETY: no kernel executes the request.
        let result = unsafe { queue.push(&RecvRequest { wr_id: 1, sges: &[] }) };
        assert_eq!(result, Err(PushError::QueueLost), "consumer index {consumer}");
    }
}

proptest! {
    #[test]
    fn send_queue_matches_bounded_queue_model(depth in 0..40u32, start: u32, steps in fills()) {
        let memory = started_at(depth, start, 208 + 16);
        let doorbell = CountingDoorbell::default();
        // SAFETY: the memory is plain, and this is the only queue in it.
        let mut queue = unsafe { RxeSq::new(memory.clone(), depth, limits(), doorbell.clone()) }.unwrap();
        let mut kernel = KernelConsumer::new(memory);
        let capacity = (depth + 1).next_power_of_two() - 1;
        prop_assert_eq!(queue.capacity(), capacity);

        let (mut batch, mut deferred, mut posted) = (VecDeque::new(), VecDeque::new(), VecDeque::new());
        let (mut next, mut rings) = (0, 0);
        for step in steps {
            match step {
                Fill::Push(n) => for _ in 0..n {
                    // SAFETY: no kernel executes the request.
                    let short = unsafe { queue.try_push(&send(next)) };
                    // SAFETY: no kernel executes the request.
                    let result = if short { Ok(()) } else { unsafe { queue.push(&send(next)) } };
                    if batch.len() + deferred.len() + posted.len() < capacity as usize {
                        prop_assert_eq!(result, Ok(()));
                        batch.push_back(next);
                        next += 1;
                    } else {
                        prop_assert_eq!(result, Err(PushError::QueueFull { capacity }));
                    }
                },
                Fill::Defer => {
                    prop_assert_eq!(queue.defer(), Ok(()));
                    deferred.append(&mut batch);
                }
                Fill::Ring => {
                    deferred.append(&mut batch);
                    rings += u32::from(!deferred.is_empty());
                    prop_assert_eq!(queue.ring(), Ok(()));
                    posted.append(&mut deferred);
                }
                Fill::RefusedRing => {
                    deferred.append(&mut batch);
                    rings += u32::from(!deferred.is_empty());
                    doorbell.answer(Err(Errno::INVAL));
                    let result = queue.ring();
                    doorbell.answer(Ok(()));
                    prop_assert_eq!(matches!(result, Err(DoorbellError::TakenBack(_))), !deferred.is_empty());
                    deferred.clear();
                }
                Fill::Abort => {
                    queue.abort();
                    batch.clear();
                }
                Fill::KernelTakes(n) => for _ in 0..n {
                    let taken = kernel.take().map(|bytes| number(&bytes));
                    prop_assert_eq!(taken, posted.pop_front());
                },
            }
            prop_assert_eq!(doorbell.doorbells(), rings);
            prop_assert_eq!(queue.deferred() as usize, deferred.len());
        }
    }

    #[test]
    fn resize_preserves_posted_receives_in_order(
        depth in 1..40u32,
        start: u32,
        steps in prop::collection::vec((1..40u8, 0..40u8, 1..80u32, any::<bool>()), 1..30),
    ) {
        let memory = started_at(depth, start, 40);
        // SAFETY: the memory is plain, and this is the only queue in it.
        let mut queue = unsafe { RxeRq::new(memory.clone(), depth, 0) }.unwrap();
        let mut kernel = KernelConsumer::new(memory);
        let (mut posted, mut next) = (VecDeque::new(), 0);
        for (fill, take, depth, unmapped) in steps {
            for _ in 0..fill {
                // SAFETY: no kernel executes the request.
                let result = unsafe { queue.push(&RecvRequest { wr_id: next, sges: &[] }) };
                if posted.len() < queue.capacity() as usize {
                    prop_assert_eq!(result, Ok(()));
                    posted.push_back(next);
                    next += 1;
                } else {
                    let capacity = queue.capacity();
                    prop_assert_eq!(result, Err(PushError::QueueFull { capacity }));
                }
            }
            queue.ring();
            for _ in 0..take {
                prop_assert_eq!(kernel.take().map(|bytes| number(&bytes)), posted.pop_front());
            }
            let capacity = (depth + 1).next_power_of_two() - 1;
            let Some(memory) = kernel.resize(depth, 40) else {
                prop_assert!(posted.len() > capacity as usize);
                continue;
            };
            if unmapped {
                let failed = CreateError::Unsupported { feature: Feature::QpType };
                // SAFETY: the kernel's side has moved and no longer reads the old memory.
                prop_assert_eq!(unsafe { queue.finish_resize(Err(failed), depth) }, Err(failed));
                // SAFETY: no kernel executes the request.
                let result = unsafe { queue.push(&RecvRequest { wr_id: next, sges: &[] }) };
                prop_assert_eq!(result, Err(PushError::QueueLost));
                queue.ring();
                let memory = kernel.resize(depth, 40).unwrap();
                // SAFETY: the kernel's side has moved, and all taken slots are released.
                unsafe { queue.finish_resize(Ok(memory), depth) }.unwrap();
            } else {
                // SAFETY: the kernel's side has moved, and all taken slots are released.
                unsafe { queue.finish_resize(Ok(memory), depth) }.unwrap();
            }
            prop_assert_eq!(queue.capacity(), capacity);
        }
        while let Some(expected) = posted.pop_front() {
            prop_assert_eq!(kernel.take().map(|bytes| number(&bytes)), Some(expected));
        }
        prop_assert!(kernel.take().is_none());
    }

    #[test]
    fn receive_queue_matches_bounded_queue_model(depth in 0..40u32, start: u32, steps in fills()) {
        let memory = started_at(depth, start, 40 + 16);
        // SAFETY: the memory is plain, and this is the only queue in it.
        let mut queue = unsafe { RxeRq::new(memory.clone(), depth, 1) }.unwrap();
        let mut kernel = KernelConsumer::new(memory);
        let capacity = (depth + 1).next_power_of_two() - 1;

        let (mut batch, mut posted, mut next) = (VecDeque::new(), VecDeque::new(), 0);
        for step in steps {
            match step {
                Fill::Push(n) => for _ in 0..n {
                    // SAFETY: no kernel executes the request.
                    let short = unsafe { queue.try_push(&RecvRequest { wr_id: next, sges: &[SGE] }) };
                    let result = if short {
                        Ok(())
                    } else {
                        // SAFETY: no kernel executes the request.
                        unsafe { queue.push(&RecvRequest { wr_id: next, sges: &[SGE] }) }
                    };
                    if batch.len() + posted.len() < capacity as usize {
                        prop_assert_eq!(result, Ok(()));
                        batch.push_back(next);
                        next += 1;
                    } else {
                        prop_assert_eq!(result, Err(PushError::QueueFull { capacity }));
                    }
                },
                Fill::Ring | Fill::RefusedRing | Fill::Defer => {
                    queue.ring();
                    posted.append(&mut batch);
                }
                Fill::Abort => {
                    queue.abort();
                    batch.clear();
                }
                Fill::KernelTakes(n) => for _ in 0..n {
                    let taken = kernel.take().map(|bytes| number(&bytes));
                    prop_assert_eq!(taken, posted.pop_front());
                },
            }
        }
    }

    #[test]
    fn completion_queue_frees_slots_on_release(
        depth in 1..40u32,
        start: u32,
        steps in prop::collection::vec((0..3u8, 1..40u8), 1..60),
    ) {
        let memory = started_at(depth, start, size_of::<Wc>());
        // SAFETY: the memory is plain, and this is the only queue in it.
        let mut queue = unsafe { RxeCq::new(memory.clone(), depth, CountingArm::default()) }.unwrap();
        let mut kernel = KernelProducer::new(memory);
        let capacity = queue.capacity() as usize;

        let (mut filled, mut taken, mut next) = (VecDeque::new(), 0, 0);
        for (step, n) in steps {
            match step {
                0 => for _ in 0..n {
                    let room = filled.len() + taken < capacity;
                    prop_assert_eq!(kernel.post(&Wc { wr_id: next, ..Wc::zeroed() }), room);
                    if room {
                        filled.push_back(next);
                    }
                    next += 1;
                },
                1 => for _ in 0..n {
                    let got = queue.next().map(|completion| completion.wr_id());
                    taken += usize::from(got.is_some());
                    prop_assert_eq!(got, filled.pop_front());
                },
                _ => {
                    queue.release();
                    taken = 0;
                }
            }
        }
    }

    /// For any header and any indices of the kernel, a queue is either rejected or stays within its
    /// memory.
    #[test]
    fn malicious_kernel_never_causes_out_of_bounds_access(
        size in 384..8192usize,
        log2_slot in prop_oneof![0..70u32, any::<u32>()],
        mask in prop_oneof![(0..33u32).prop_map(|n| (1u64 << n).wrapping_sub(1) as u32), any::<u32>()],
        depth in 0..40u32,
        indices: [u32; 6],
    ) {
        let memory = PlainMemory::with_header(size, log2_slot, mask);
        memory.set_indices(indices[0], indices[1]);
        // SAFETY: the memory is plain, and this is the only queue in it.
        if let Ok(mut queue) = unsafe { RxeCq::new(memory.clone(), depth, CountingArm::default()) } {
            prop_assert!(384 + ((u64::from(mask) + 1) << log2_slot) <= size as u64);
            for index in indices {
                memory.set_indices(index, index);
                for _ in 0..100 {
                    if let Some(completion) = queue.next() {
                        completion.to_value();
                    }
                }
                queue.release();
            }
        }
        // SAFETY: the memory is plain, and this is the only queue in it.
        if let Ok(mut queue) = unsafe { RxeSq::new(memory.clone(), depth, limits(), CountingDoorbell::default()) } {
            for index in indices {
                memory.set_indices(index, index);
                for n in 0..100 {
                    // SAFETY: no kernel executes the request.
                    let _ = unsafe { queue.push(&send(n)) };
                }
                queue.ring().unwrap();
            }
        }
    }
}

#[track_caller]
fn layout_problem(memory: PlainMemory, depth: u32) -> &'static str {
    // SAFETY: the memory is plain, and this is the only queue in it.
    match unsafe { RxeCq::new(memory, depth, CountingArm::default()) } {
        Err(CreateError::Layout { queue: "CQ", problem, .. }) => problem,
        other => panic!("{other:?}"),
    }
}

#[test]
fn impossible_queue_header_is_rejected_with_reason() {
    let header = PlainMemory::with_header;
    assert!(
        layout_problem(header(384 + 64 * 16, 5, 15), 8).contains("slot size"),
        "32 bytes hold no completion"
    );
    assert!(layout_problem(header(384 + 64 * 16, 40, 15), 8).contains("slot size"));
    assert!(layout_problem(header(384 + 64 * 16, 6, 14), 8).contains("power of two"));
    assert!(layout_problem(header(384 + 64 * 16, 6, u32::MAX), 8).contains("power of two"));
    assert!(layout_problem(header(384 + 64 * 16, 6, 7), 8).contains("fewer elements"));
    assert!(layout_problem(header(384 + 64 * 15, 6, 15), 8).contains("exceed the memory"));
    // SAFETY: the memory is plain, and this is the only queue in it.
    assert!(unsafe { RxeCq::new(header(384 + 64 * 16, 6, 15), 15, CountingArm::default()) }.is_ok());
}

#[test]
fn only_einval_doorbells_take_the_batch_back() {
    let memory = PlainMemory::new(7, 224);
    let doorbell = CountingDoorbell::default();
    // SAFETY: the memory is plain, and this is the only queue in it.
    let mut queue = unsafe { RxeSq::new(memory.clone(), 7, limits(), doorbell.clone()) }.unwrap();
    let mut kernel = KernelConsumer::new(memory);

    doorbell.answer(Err(Errno::INVAL));
    // SAFETY: no kernel executes the requests, here and below.
    unsafe { queue.push(&send(1)) }.unwrap();
    assert!(matches!(queue.ring(), Err(DoorbellError::TakenBack(refused)) if refused.errno == Errno::INVAL));
    assert_eq!(kernel.take(), None, "the kernel finds nothing of it");

    doorbell.answer(Err(Errno::NOMEM));
    // SAFETY: no kernel executes the requests, here and below.
    unsafe { queue.push(&send(2)) }.unwrap();
    assert!(matches!(queue.ring(), Err(DoorbellError::Posted(refused)) if refused.errno == Errno::NOMEM));
    assert_eq!(kernel.take().map(|bytes| number(&bytes)), Some(2), "a worker under way may take it");

    doorbell.answer(Ok(()));
    for n in 3..10 {
        // SAFETY: no kernel executes the requests, here and below.
        unsafe { queue.push(&send(n)) }.expect("the whole ring is free again");
    }
    assert_eq!(queue.ring(), Ok(()));
    for n in 3..10 {
        assert_eq!(kernel.take().map(|bytes| number(&bytes)), Some(n));
    }
}

#[test]
fn qp_needs_err_before_it_is_destroyed_until_the_kernel_has_consumed_its_sends() {
    let memory = PlainMemory::new(7, 224);
    // SAFETY: the memory is plain, and this is the only queue in it.
    let mut queue = unsafe { RxeSq::new(memory.clone(), 7, limits(), CountingDoorbell::default()) }.unwrap();
    let mut kernel = KernelConsumer::new(memory);
    // SAFETY: no kernel executes the request.
    unsafe { queue.push(&send(1)) }.unwrap();
    assert!(!queue.needs_error_before_destroy(), "the kernel does not know the request");
    queue.ring().unwrap();
    assert!(queue.needs_error_before_destroy());
    kernel.take().unwrap();
    assert!(!queue.needs_error_before_destroy(), "also without a completion");
}

fn completed(wc: Wc) -> (Option<Imm>, Option<u32>, bareverbs_provider::work::WorkCompletion) {
    let memory = PlainMemory::new(1, size_of::<Wc>());
    // SAFETY: the memory is plain, and this is the only queue in it.
    let mut queue = unsafe { RxeCq::new(memory.clone(), 1, CountingArm::default()) }.unwrap();
    assert!(KernelProducer::new(memory).post(&wc));
    let completion = queue.next().expect("one is there");
    assert_eq!(completion.status(), wc.status);
    assert_eq!(completion.opcode(), wc.opcode);
    assert_eq!(completion.byte_len(), wc.byte_len);
    assert_eq!(completion.qp_num(), wc.qp_num);
    assert_eq!(completion.src_qp(), wc.src_qp);
    assert_eq!(completion.vendor_err(), wc.vendor_err);
    assert_eq!(completion.wc_flags(), completion.to_value().wc_flags);
    assert_eq!(
        (completion.slid(), completion.sl(), completion.dlid_path_bits()),
        (wc.slid, wc.sl, wc.dlid_path_bits)
    );
    (completion.imm(), completion.invalidated_rkey(), completion.to_value())
}

#[test]
fn immediate_data_is_returned_in_host_byte_order() {
    let wire = 0x0102_0304u32.to_be();
    let wc = Wc {
        opcode: WcOpcode::RECV,
        byte_len: 5,
        ex: wire,
        qp_num: 17,
        src_qp: 18,
        wc_flags: WcFlags::WITH_IMM | WcFlags::GRH,
        slid: 19,
        sl: 3,
        dlid_path_bits: 5,
        ..Wc::zeroed()
    };
    let (imm, rkey, value) = completed(wc);
    assert_eq!((imm, value.imm()), (Some(Imm(0x0102_0304)), Some(Imm(0x0102_0304))));
    assert_eq!(rkey, None);
    assert_eq!((value.ex, value.src_qp, value.wc_flags), (wire, 18, wc.wc_flags));
}

#[test]
fn receive_with_invalidate_returns_the_rkey() {
    let wc = Wc { opcode: WcOpcode::RECV, ex: 77, wc_flags: WcFlags::WITH_INVALIDATE, ..Wc::zeroed() };
    let (imm, rkey, _) = completed(wc);
    assert_eq!((imm, rkey), (None, Some(77)));
}

#[test]
fn send_completions_have_no_immediate_data() {
    let wc = Wc { opcode: WcOpcode::SEND, wc_flags: WcFlags::WITH_IMM, ..Wc::zeroed() };
    let (imm, _, value) = completed(wc);
    assert_eq!(imm, None);
    assert!(!value.wc_flags.contains(WcFlags::WITH_IMM));
}

#[test]
fn failed_completion_has_status_wr_id_and_qp_num() {
    let wc = Wc { wr_id: 3, status: WcStatus::RNR_RETRY_EXC_ERR, vendor_err: 4, qp_num: 5, ..Wc::zeroed() };
    let (_, _, value) = completed(wc);
    assert_eq!((value.wr_id, value.status, value.vendor_err, value.qp_num), (3, wc.status, 4, 5));
}

#[test]
fn polling_an_empty_queue_releases_no_slot() {
    let memory = PlainMemory::new(3, size_of::<Wc>());
    memory.set_indices(2, 2);
    // SAFETY: the memory is plain, and this is the only queue in it.
    let mut queue = unsafe { RxeCq::new(memory.clone(), 3, CountingArm::default()) }.unwrap();
    let mut kernel = KernelProducer::new(memory.clone());
    let consumer = |memory: &PlainMemory| {
        // SAFETY: the word is accessed only by this function.
        unsafe { bareverbs_provider::barrier::read_peer_index(memory.consumer()) }
    };
    assert!(queue.next().is_none());
    queue.release();
    assert_eq!(consumer(&memory), 2);

    assert!(kernel.post(&Wc::zeroed()));
    assert!(queue.next().is_some());
    assert_eq!(consumer(&memory), 2, "a slot that is looked at is not given back yet");
    assert!(queue.next().is_none());
    queue.release();
    assert_eq!(consumer(&memory), 3, "one taken, one given back");
    queue.release();
    assert_eq!(consumer(&memory), 3);
}
