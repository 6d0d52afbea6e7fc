//! Queues that the kernel empties or moves, compared with counters.

use bareverbs_provider::Errno;
use bareverbs_provider::device::IoctlError;
use bareverbs_provider::doorbell::Doorbell;
use bareverbs_provider::error::{CreateError, DoorbellError};
use bareverbs_provider::traits::{Completion, CompletionQueue, QpControl, RecvQueue, SendQueue};
use bareverbs_provider::work::{Operation, Payload, RecvRequest, SendFlags, SendRequest};
use bareverbs_rxe::testing::{CountingArm, CountingDoorbell, KernelConsumer, KernelProducer, PlainMemory};
use bareverbs_rxe::{RxeCq, RxeRq, RxeSq, SendLimits};
use bareverbs_uapi::uverbs::types::QpType;
use bareverbs_uapi::write::structs::Wc;
use proptest::prelude::*;

#[derive(Clone, Copy, Debug)]
enum Step {
    KernelPosts(u8),
    Take(u8),
    Release,
    Resize(u32),
    ResizeWithoutMapping(u32),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (1..40u8).prop_map(Step::KernelPosts),
        4 => (1..40u8).prop_map(Step::Take),
        2 => Just(Step::Release),
        2 => (1..70u32).prop_map(Step::Resize),
        1 => (1..70u32).prop_map(Step::ResizeWithoutMapping),
    ];
    prop::collection::vec(step, 1..80)
}

fn mapping_failed() -> CreateError {
    CreateError::Ioctl(IoctlError::new("mmap", Errno::NOMEM))
}

proptest! {
    #[test]
    fn cq_resize_preserves_completions_once_and_in_order(steps in steps()) {
        let element = size_of::<Wc>();
        let memory = PlainMemory::new(8, element);
        // SAFETY: the memory is plain, and this is the only queue in it.
        let mut queue = unsafe { RxeCq::new(memory.clone(), 8, CountingArm::default()) }.unwrap();
        let mut kernel = KernelProducer::new(memory);
        // Numbers posted and taken, and whether the process has mapped the kernel's current memory.
        let (mut posted, mut taken, mut sees) = (0, 0, true);
        for step in steps.into_iter().chain([Step::Resize(70)]) {
            match step {
                Step::KernelPosts(n) => for _ in 0..n {
                    if kernel.post(&Wc { wr_id: posted, ..Wc::zeroed() }) {
                        posted += 1;
                    }
                },
                Step::Take(n) => for _ in 0..n {
                    match queue.next().map(|wc| wc.wr_id()) {
                        Some(wr_id) => {
                            prop_assert_eq!(wr_id, taken);
                            taken += 1;
                        }
                        None => prop_assert!(!sees || taken == posted),
                    }
                },
                Step::Release => queue.release(),
                Step::Resize(depth) | Step::ResizeWithoutMapping(depth) => {
                    queue.release();
                    let memory = PlainMemory::new(depth, element);
                    if !kernel.resize(memory.clone()) {
                        continue;
                    }
                    sees = matches!(step, Step::Resize(_));
                    let mapped = if sees { Ok(memory) } else { Err(mapping_failed()) };
                    // SAFETY: the kernel's side has moved, and all taken slots are released.
                    prop_assert_eq!(unsafe { queue.finish_resize(mapped, depth) }.is_ok(), sees);
                }
            }
        }
        while let Some(wr_id) = queue.next().map(|wc| wc.wr_id()) {
            prop_assert_eq!(wr_id, taken);
            taken += 1;
        }
        prop_assert_eq!(taken, posted);
    }

    #[test]
    fn reset_queue_has_its_full_capacity(depth in 1..40u32, used in 0..200u32, left in 0..40u32) {
        let memory = PlainMemory::new(depth, 208 + 16);
        let limits = SendLimits::new(QpType::RC, 1, 0).unwrap();
        // SAFETY: the memory is plain, and this is the only queue in it.
        let mut queue = unsafe { RxeSq::new(memory.clone(), depth, limits, CountingDoorbell::default()) }.unwrap();
        let mut kernel = KernelConsumer::new(memory);
        let received = PlainMemory::new(depth, 40);
        // SAFETY: the memory is plain, and this is the only queue in it.
        let mut receives = unsafe { RxeRq::new(received.clone(), depth, 0) }.unwrap();
        let mut receiver = KernelConsumer::new(received);
        let send = SendRequest {
            wr_id: 0,
            operation: Operation::Send,
            flags: SendFlags::empty(),
            payload: Payload::Sges(&[]),
        };
        let recv = RecvRequest { wr_id: 0, sges: &[] };
        let capacity = queue.capacity();
        for i in 0..used + left % (capacity + 1) {
            // SAFETY: no kernel executes the requests.
            unsafe { (queue.push(&send).unwrap(), receives.push(&recv).unwrap()) };
            queue.ring().unwrap();
            receives.ring();
            if i < used {
                prop_assert!(kernel.take().is_some() && receiver.take().is_some());
            }
        }
        // The kernel drops the remaining requests, as on RESET, while a batch is being written.
        // SAFETY: no kernel executes the requests.
        let _ = unsafe { (queue.push(&send), receives.push(&recv)) };
        while kernel.take().is_some() {}
        while receiver.take().is_some() {}
        // SAFETY: the kernel's side has taken all published requests, or there is no kernel's side.
        unsafe { queue.reset() };
        // SAFETY: the kernel's side has taken all published requests, or there is no kernel's side.
        unsafe { receives.reset() };
        for _ in 0..capacity {
            // SAFETY: no kernel executes the requests.
            unsafe { (queue.push(&send).unwrap(), receives.push(&recv).unwrap()) };
        }
        // SAFETY: no kernel executes the requests.
        let full = unsafe { (queue.push(&send).is_err(), receives.push(&recv).is_err()) };
        prop_assert_eq!(full, (true, true));
        queue.ring().unwrap();
        receives.ring();
        for _ in 0..capacity {
            prop_assert!(kernel.take().is_some() && receiver.take().is_some());
        }
        prop_assert!(kernel.take().is_none() && receiver.take().is_none());
    }
}

/// The doorbell of a QP below RTS, whose requester a timer may start at any time.
struct BelowRts(PlainMemory);

impl Doorbell for BelowRts {
    fn ring(&mut self) -> Result<(), Errno> {
        let published = KernelConsumer::new(self.0.clone()).take().is_some();
        assert!(!published, "a request is published below RTS");
        Err(Errno::INVAL)
    }
}

#[test]
fn nothing_is_published_after_reset_before_the_doorbell_succeeds() {
    let memory = PlainMemory::new(4, 208 + 16);
    let limits = SendLimits::new(QpType::RC, 1, 0).expect("rxe has RC");
    let doorbell = BelowRts(memory.clone());
    // SAFETY: the memory is plain, and this is the only queue in it.
    let mut queue = unsafe { RxeSq::new(memory, 4, limits, doorbell) }.expect("a sound header");
    // SAFETY: there is no kernel's side.
    unsafe { queue.reset() };
    for _ in 0..3 {
        let operation = Operation::Send;
        let flags = SendFlags::empty();
        let request = SendRequest { wr_id: 1, operation, flags, payload: Payload::Sges(&[]) };
        // SAFETY: no kernel executes the requests.
        unsafe {
            queue.push(&request).expect("room");
            queue.defer().expect("no doorbell");
            queue.push(&request).expect("room");
        }
        assert!(matches!(queue.ring(), Err(DoorbellError::TakenBack(_))));
        assert_eq!(queue.deferred(), 0);
    }
}

#[test]
fn resume_rings_the_doorbell_without_new_requests() {
    let memory = PlainMemory::new(4, 208 + 16);
    let limits = SendLimits::new(QpType::RC, 1, 0).expect("rxe has RC");
    let doorbell = CountingDoorbell::default();
    // SAFETY: the memory is plain, and this is the only queue in it.
    let mut queue = unsafe { RxeSq::new(memory, 4, limits, doorbell.clone()) }.expect("a sound header");
    queue.ring().expect("nothing to ring for");
    assert_eq!(doorbell.doorbells(), 0);
    queue.resume().expect("the doorbell answers well");
    assert_eq!(doorbell.doorbells(), 1);
}
