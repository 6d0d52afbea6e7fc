//! The cost of the data path: number of doorbells, no allocations.

use bareverbs_provider::traits::{Completion, CompletionQueue, RecvQueue, SendQueue};
use bareverbs_provider::work::{
    Imm, Operation, Payload, RecvRequest, Remote, SendFlags, SendRequest, Sge, WcStatus,
};
use bareverbs_rxe::testing::{CountingArm, CountingDoorbell, KernelProducer, PlainMemory};
use bareverbs_rxe::{RxeCq, RxeRq, RxeSq, SendLimits};
use bareverbs_test_support::allocations::{CountingAllocator, allocations};
use bareverbs_uapi::uverbs::types::QpType;
use bareverbs_uapi::write::structs::Wc;

#[global_allocator]
static COUNTING: CountingAllocator = CountingAllocator;

const SGES: [Sge; 2] = [Sge { addr: 64, length: 64, lkey: 1 }, Sge { addr: 4096, length: 32, lkey: 2 }];

fn send_queue(depth: u32) -> (RxeSq<CountingDoorbell, PlainMemory>, CountingDoorbell) {
    let doorbell = CountingDoorbell::default();
    let limits = SendLimits::new(QpType::RC, 2, 32).expect("rxe has RC");
    let memory = PlainMemory::new(depth, 208 + 32);
    // SAFETY: the memory is plain, and this is the only queue in it.
    (unsafe { RxeSq::new(memory, depth, limits, doorbell.clone()) }.expect("a sound header"), doorbell)
}

fn requests() -> [SendRequest<'static>; 4] {
    let remote = Remote { addr: 8, rkey: 9 };
    let request =
        |operation, payload| SendRequest { wr_id: 1, operation, flags: SendFlags::SIGNALED, payload };
    [
        request(Operation::Send, Payload::Sges(&SGES)),
        request(Operation::WriteImm(remote, Imm(5)), Payload::Inline(&[b"inline", b" bytes"])),
        request(Operation::Read(remote), Payload::Sges(&SGES)),
        request(Operation::Send, Payload::Sges(&[SGES[0]; 3])),
    ]
}

#[test]
fn allocation_counter_counts() {
    assert_eq!(allocations(|| drop(std::hint::black_box(Box::new(1)))), 1);
}

#[test]
fn batch_of_64_sends_rings_one_doorbell() {
    let (mut queue, doorbell) = send_queue(64);
    for _ in 0..64 {
        // SAFETY: no kernel executes the requests.
        unsafe { queue.push(&requests()[0]) }.expect("room");
    }
    assert_eq!(doorbell.doorbells(), 0, "pushing rings nothing");
    queue.ring().expect("answered");
    assert_eq!(doorbell.doorbells(), 1);
    queue.ring().expect("nothing to do");
    assert_eq!(doorbell.doorbells(), 1, "an empty batch rings nothing");
    queue.abort();
    queue.ring().expect("nothing to do");
    assert_eq!(doorbell.doorbells(), 1);
}

#[test]
fn sending_and_rejecting_do_not_allocate() {
    let (mut queue, _) = send_queue(127);
    let [send, write, read, too_wide] = requests();
    let count = allocations(|| {
        for _ in 0..42 {
            // SAFETY: no kernel executes the requests.
            unsafe {
                queue.push(&send).expect("room");
                queue.push(&write).expect("room");
                queue.push(&read).expect("room");
                queue.push(&too_wide).expect_err("three elements where two fit");
            }
            queue.ring().expect("answered");
        }
        // SAFETY: no kernel executes the requests.
        while unsafe { queue.push(&send) }.is_ok() {}
    });
    assert_eq!(count, 0);
}

#[test]
fn receiving_does_not_allocate() {
    // SAFETY: the memory is plain, and this is the only queue in it.
    let mut queue = unsafe { RxeRq::new(PlainMemory::new(64, 40 + 32), 64, 2) }.expect("a sound header");
    let count = allocations(|| {
        for wr_id in 0..64 {
            // SAFETY: no kernel executes the requests.
            unsafe { queue.push(&RecvRequest { wr_id, sges: &SGES }) }.expect("room");
        }
        queue.ring();
    });
    assert_eq!(count, 0);
}

#[test]
fn polling_neither_allocates_nor_arms() {
    let memory = PlainMemory::new(64, size_of::<Wc>());
    let arm = CountingArm::default();
    // SAFETY: the memory is plain, and this is the only queue in it.
    let mut queue = unsafe { RxeCq::new(memory.clone(), 64, arm.clone()) }.expect("a sound header");
    let mut kernel = KernelProducer::new(memory);
    let count = allocations(|| {
        for wr_id in 0..1000 {
            assert!(kernel.post(&Wc { wr_id, ..Wc::zeroed() }));
            let completion = queue.next().expect("one is there");
            assert_eq!((completion.wr_id(), completion.status()), (wr_id, WcStatus::SUCCESS));
            assert!(queue.next().is_none());
            queue.release();
        }
    });
    assert_eq!(count, 0);
    assert_eq!(arm.asked(), 0);
}
