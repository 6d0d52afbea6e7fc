//! Polling by value, and the checks of queue memory.

use std::ptr::NonNull;

use bareverbs_provider::error::CreateError;
use bareverbs_provider::mapping::Mapping;
use bareverbs_provider::traits::{Completion, CompletionQueue};
use bareverbs_provider::work::{WcOpcode, WcStatus, WorkCompletion};
use bareverbs_rxe::testing::{CountingArm, CountingDoorbell, KernelProducer, PlainMemory};
use bareverbs_rxe::{KernelQueue, QueueMemory, RxeCq, RxeSq, SendLimits};
use bareverbs_uapi::rxe::QueueBuf;
use bareverbs_uapi::uverbs::types::QpType;
use bareverbs_uapi::write::structs::Wc;
use proptest::prelude::*;

type Queue = RxeCq<CountingArm, PlainMemory>;

/// A queue for `capacity` completions whose ring starts at slot `start`, and the kernel's side.
fn queue(capacity: u32, start: u32) -> (Queue, KernelProducer) {
    let memory = PlainMemory::new(capacity, size_of::<Wc>());
    memory.set_indices(start, start);
    let kernel = KernelProducer::new(memory.clone());
    // SAFETY: the memory is plain, and this is the only queue in it.
    let queue = unsafe { RxeCq::new(memory, capacity, CountingArm::default()) };
    (queue.unwrap(), kernel)
}

fn receive(wr_id: u64) -> Wc {
    Wc { wr_id, opcode: WcOpcode::RECV, byte_len: wr_id as u32 + 7, qp_num: 17, ..Wc::zeroed() }
}

/// A value that differs from every posted completion.
fn untouched() -> WorkCompletion {
    let (mut queue, mut kernel) = queue(1, 0);
    assert!(kernel.post(&Wc { wr_id: u64::MAX, status: WcStatus::GENERAL_ERR, ..Wc::zeroed() }));
    queue.next().expect("posted").to_value()
}

fn check(value: &WorkCompletion, wr_id: u64) {
    let WorkCompletion { status, opcode, byte_len, qp_num, .. } = *value;
    assert_eq!((value.wr_id, status, opcode), (wr_id, WcStatus::SUCCESS, WcOpcode::RECV));
    assert_eq!((byte_len, qp_num), (wr_id as u32 + 7, 17));
}

#[test]
fn every_fill_level_is_polled_into_every_length_of_slice_in_order() {
    for capacity in [1, 3, 7, 15] {
        let starts = [0, 1, capacity / 2, capacity - 1, capacity];
        let fills = (0..=capacity).flat_map(|filled| starts.map(|start| (filled, start)));
        for (filled, start) in fills {
            for len in 0..=capacity as usize + 1 {
                let (mut queue, mut kernel) = queue(capacity, start);
                for wr_id in 0..u64::from(filled) {
                    assert!(kernel.post(&receive(wr_id)));
                }
                // Until the queue is empty.
                let mut polled = 0;
                loop {
                    let mut into = vec![untouched(); len];
                    let count = queue.next_values(&mut into);
                    assert_eq!(count, len.min(filled as usize - polled), "{filled} of {capacity}");
                    for (at, value) in into[..count].iter().enumerate() {
                        check(value, (polled + at) as u64);
                    }
                    for value in &into[count..] {
                        assert_eq!(value.wr_id, u64::MAX, "the rest of the slice stays");
                    }
                    polled += count;
                    if count == 0 {
                        break;
                    }
                }
                if len > 0 {
                    // All slots are released to the kernel.
                    for wr_id in 0..u64::from(capacity) {
                        assert!(kernel.post(&receive(wr_id)), "slot {wr_id} of {capacity}");
                    }
                    assert!(!kernel.post(&receive(0)), "no more than the capacity");
                }
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Post(u8),
    Into(u8),
    One,
    Cursor(u8),
}

proptest! {
    #[test]
    fn all_poll_functions_return_each_completion_once_and_in_order(
        log2 in 1..6u32,
        start: u32,
        steps in prop::collection::vec(
            prop_oneof![
                (1..40u8).prop_map(Step::Post),
                (0..40u8).prop_map(Step::Into),
                Just(Step::One),
                (1..5u8).prop_map(Step::Cursor),
            ],
            1..60,
        ),
    ) {
        let capacity = (1 << log2) - 1;
        let (mut queue, mut kernel) = queue(capacity, start & capacity);
        prop_assert_eq!(queue.capacity(), capacity);
        let (mut posted, mut polled) = (0, 0);
        for step in steps {
            match step {
                Step::Post(count) => for _ in 0..count {
                    let room = posted - polled < u64::from(capacity);
                    prop_assert_eq!(kernel.post(&receive(posted)), room);
                    posted += u64::from(room);
                },
                Step::Into(len) => {
                    let mut into = vec![untouched(); len.into()];
                    let count = queue.next_values(&mut into);
                    prop_assert_eq!(count as u64, u64::from(len).min(posted - polled));
                    for value in &into[..count] {
                        check(value, polled);
                        polled += 1;
                    }
                }
                Step::One => {
                    let value = queue.next_value();
                    prop_assert_eq!(value.is_some(), polled < posted);
                    if let Some(value) = value {
                        check(&value, polled);
                        polled += 1;
                    }
                }
                Step::Cursor(count) => {
                    for _ in 0..count {
                        let wr_id = queue.next().map(|completion| completion.wr_id());
                        prop_assert_eq!(wr_id, (polled < posted).then_some(polled));
                        polled += u64::from(wr_id.is_some());
                    }
                    queue.release();
                }
            }
        }
    }
}

#[test]
fn each_arm_is_one_kernel_request() {
    let arm = CountingArm::default();
    let memory = PlainMemory::new(3, size_of::<Wc>());
    // SAFETY: the memory is plain, and this is the only queue in it.
    let mut queue = unsafe { RxeCq::new(memory, 3, arm.clone()) }.unwrap();
    for asked in 1..4 {
        queue.arm(false).unwrap();
        assert_eq!(arm.asked(), asked);
    }
}

/// Memory that reports a size of its own.
struct Claims<M>(M, usize);

// SAFETY: no test claims more bytes than the memory has, and its own contract holds for them.
unsafe impl<M: QueueMemory> QueueMemory for Claims<M> {
    fn start(&self) -> NonNull<u8> {
        self.0.start()
    }

    fn size(&self) -> usize {
        self.1
    }
}

fn problem(memory: impl QueueMemory) -> Option<&'static str> {
    // SAFETY: the memory is plain, and this is the only queue in it.
    match unsafe { RxeCq::new(memory, 1, CountingArm::default()) } {
        Ok(_) => None,
        Err(CreateError::Layout { problem, .. }) => Some(problem),
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn queue_memory_must_hold_header_and_all_slots() {
    let header = size_of::<QueueBuf>();
    let there = PlainMemory::with_header(4096, 6, 1);
    let claimed = |size| problem(Claims(there.clone(), size));
    assert_eq!(claimed(header - 1), Some("the memory is smaller than the header"));
    assert_eq!(claimed(header), Some("the slots exceed the memory"));
    assert_eq!(claimed(header + 127), Some("the slots exceed the memory"));
    assert_eq!(claimed(header + 128), None);
}

#[test]
fn slot_size_must_be_between_element_size_and_65536() {
    let too_large = Some("the log2 slot size does not match the element size");
    let sized = |log2| problem(PlainMemory::with_header(1 << 20, log2, 1));
    assert_eq!((sized(5), sized(6), sized(16), sized(17)), (too_large, None, None, too_large));
    // A WQE of 208 bytes with three SGEs of 16 bytes fills a slot of 256 bytes.
    let limits = SendLimits::new(QpType::RC, 3, 0).unwrap();
    let memory = PlainMemory::with_header(1 << 16, 8, 3);
    // SAFETY: the memory is plain, and this is the only queue in it.
    assert!(unsafe { RxeSq::new(memory, 3, limits, CountingDoorbell::default()) }.is_ok());
}

#[test]
fn queue_memory_has_the_size_of_its_mapping() {
    let mapping = Mapping::anonymous(8192).unwrap();
    let start = mapping.as_ptr();
    let memory = KernelQueue::try_from(mapping).unwrap();
    assert_eq!((memory.start(), memory.size()), (start, 8192));
}
