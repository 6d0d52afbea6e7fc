//! A send queue in ERR, against a model of the requester of kernels before 6.4.

use std::mem::offset_of;

use bareverbs_provider::Errno;
use bareverbs_provider::doorbell::Doorbell;
use bareverbs_provider::error::DoorbellError;
use bareverbs_provider::traits::{QpControl, SendQueue};
use bareverbs_provider::work::{Operation, Payload, SendFlags, SendRequest};
use bareverbs_rxe::testing::{CountingDoorbell, KernelConsumer, PlainMemory};
use bareverbs_rxe::{RxeSq, SendLimits};
use bareverbs_uapi::rxe::SendWqe;
use bareverbs_uapi::uverbs::types::QpType;
use bareverbs_uapi::verbs_values::{QpAttrMask, QpState, WcStatus};
use bareverbs_uapi::write::structs::ModifyQpReq;
use proptest::prelude::*;

/// The requester in ERR. At the end of the queue it does nothing. Elsewhere it advances its index
/// by one and wakes the completer, which flushes the whole queue.
struct Requester {
    memory: PlainMemory,
    completer: KernelConsumer,
    index: u32,
    slots: u32,
    flushed: std::sync::mpsc::Sender<u64>,
}

impl Doorbell for Requester {
    fn ring(&mut self) -> Result<(), Errno> {
        // SAFETY: the word is within the memory.
        if self.index == unsafe { self.memory.producer().read_volatile() } {
            return Ok(());
        }
        self.index = (self.index + 1) % self.slots;
        let mut taken = 0;
        while let Some(bytes) = self.completer.take() {
            self.flushed.send(u64::from_ne_bytes(bytes[..8].try_into().unwrap())).unwrap();
            taken += 1;
        }
        // SAFETY: the word is within the memory.
        let end = unsafe { self.memory.producer().read_volatile() };
        for back in 1..=taken {
            let status = WcStatus::WR_FLUSH_ERR.0.to_ne_bytes();
            self.memory.put(end.wrapping_sub(back) % self.slots, offset_of!(SendWqe, status), &status);
        }
        Ok(())
    }
}

fn to_error() -> ModifyQpReq {
    ModifyQpReq { attr_mask: QpAttrMask::STATE, qp_state: QpState::ERR, ..ModifyQpReq::zeroed() }
}

fn send(wr_id: u64) -> SendRequest<'static> {
    SendRequest { wr_id, operation: Operation::Send, flags: SendFlags::empty(), payload: Payload::Sges(&[]) }
}

fn queue<D: Doorbell>(memory: PlainMemory, depth: u32, doorbell: D) -> RxeSq<D, PlainMemory> {
    // SAFETY: the memory is plain, and this is the only queue in it.
    unsafe { RxeSq::new(memory, depth, SendLimits::new(QpType::RC, 1, 0).unwrap(), doorbell) }.unwrap()
}

proptest! {
    #[test]
    fn everything_posted_in_the_error_state_is_flushed(
        log2_slots in 1..6u32,
        behind in prop::option::of(any::<u32>()),
        batches in prop::collection::vec(1..40u32, 1..80),
    ) {
        let slots = 1 << log2_slots;
        let memory = PlainMemory::new(slots - 1, 208 + 16);
        let (flushed, seen) = std::sync::mpsc::channel();
        let completer = KernelConsumer::new(memory.clone());
        let index = behind.unwrap_or(0) % slots;
        let doorbell = Requester { memory: memory.clone(), completer, index, slots, flushed };
        let mut queue = queue(memory, slots - 1, doorbell);
        // All earlier requests have succeeded, but the requester was retrying them.
        if behind.is_some() {
            queue.modified(&to_error());
        }
        let mut next = 0;
        for batch in batches {
            let begin = next;
            for _ in 0..batch.min(slots - 1) {
                // SAFETY: no kernel executes the request.
                unsafe { queue.push(&send(next)) }.unwrap();
                next += 1;
            }
            queue.ring().unwrap();
            prop_assert_eq!(seen.try_iter().collect::<Vec<_>>(), (begin..next).collect::<Vec<_>>());
        }
    }
}

#[test]
fn einval_doorbell_after_a_failed_request_takes_the_batch_back() {
    let memory = PlainMemory::new(7, 208 + 16);
    let doorbell = CountingDoorbell::default();
    let mut queue = queue(memory.clone(), 7, doorbell.clone());
    let mut kernel = KernelConsumer::new(memory.clone());
    // SAFETY: no kernel executes the requests.
    unsafe { queue.push(&send(1)) }.unwrap();
    queue.ring().unwrap();
    assert!(kernel.take().is_some());
    memory.put(0, offset_of!(SendWqe, status), &WcStatus::WR_FLUSH_ERR.0.to_ne_bytes());
    // SAFETY: no kernel executes the requests.
    unsafe { (queue.push(&send(2)).unwrap(), queue.push(&send(3)).unwrap()) };
    doorbell.answer(Err(Errno::INVAL));
    assert!(matches!(queue.ring(), Err(DoorbellError::TakenBack(_))));
    assert!(kernel.take().is_none(), "both are taken back");
    doorbell.answer(Ok(()));
    // SAFETY: no kernel executes the requests.
    unsafe { queue.push(&send(4)) }.unwrap();
    queue.ring().unwrap();
    assert_eq!(kernel.take().map(|bytes| bytes[0]), Some(4));
}

/// Returns `EINVAL` as below RTS, but the QP enters ERR at that moment, and the kernel flushes the
/// slot that it finds.
struct Falling(KernelConsumer);

impl Doorbell for Falling {
    fn ring(&mut self) -> Result<(), Errno> {
        self.0.take();
        Err(Errno::INVAL)
    }
}

#[test]
fn partly_flushed_batch_is_not_taken_back() {
    let memory = PlainMemory::new(7, 208 + 16);
    let mut queue = queue(memory.clone(), 7, Falling(KernelConsumer::new(memory.clone())));
    // SAFETY: no kernel executes the requests.
    unsafe { (queue.push(&send(1)).unwrap(), queue.push(&send(2)).unwrap()) };
    assert!(matches!(queue.ring(), Err(DoorbellError::Posted(_))));
    let mut kernel = KernelConsumer::new(memory);
    assert_eq!(kernel.take().map(|bytes| bytes[0]), Some(2), "the rest of the batch");
    assert_eq!(kernel.take(), None, "and no earlier slot");
}

#[test]
fn batch_reported_as_posted_is_published_completely() {
    let memory = PlainMemory::new(7, 208 + 16);
    let doorbell = CountingDoorbell::default();
    let mut queue = queue(memory.clone(), 7, doorbell.clone());
    queue.modified(&to_error());
    // SAFETY: no kernel executes the requests.
    unsafe { (queue.push(&send(1)).unwrap(), queue.push(&send(2)).unwrap()) };
    doorbell.answer(Err(Errno::NOMEM));
    assert!(matches!(queue.ring(), Err(DoorbellError::Posted(_))));
    queue.abort();
    let mut kernel = KernelConsumer::new(memory);
    let taken: Vec<_> = std::iter::from_fn(|| kernel.take()).map(|bytes| bytes[0]).collect();
    assert_eq!(taken, [1, 2]);
}
