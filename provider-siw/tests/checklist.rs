//! The queues on plain memory: each rule of the kernel's ABI by name.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use bareverbs_provider::Errno;
use bareverbs_provider::doorbell::Doorbell;
use bareverbs_provider::error::DoorbellError;
use bareverbs_provider::traits::{Completion, CompletionQueue, QpControl, RecvQueue, SendQueue, Visitor};
use bareverbs_provider::work::{
    Imm, Operation, PushError, RecvRequest, Remote, SendFlags, SendRequest, Sge, WcOpcode, WcStatus,
    WorkCompletion,
};
use bareverbs_siw::testing::{CountingDoorbell, KernelConsumer, KernelProducer, PlainControl, PlainMemory};
use bareverbs_siw::{QpMemory, SharedMemory, SiwCq, SiwRq, SiwSq};
use bareverbs_uapi::siw::{Cqe, Opcode, Rqe, Sqe, WcStatus as SiwStatus, WqeFlags};
use bareverbs_uapi::verbs_values::{QpAttrMask, QpState};
use bareverbs_uapi::write::structs::ModifyQpReq;
use proptest::prelude::*;

const QPN: u32 = 5;

/// A QP with one CQ, and the kernel's side of both.
struct Setup {
    sq: SiwSq<CountingDoorbell>,
    rq: SiwRq,
    cq: SiwCq,
    kernel_sq: KernelConsumer<Sqe>,
    kernel_rq: KernelConsumer<Rqe>,
    kernel_cq: KernelProducer,
    doorbell: CountingDoorbell,
    control: Arc<PlainControl>,
    cq_memory: Arc<PlainMemory>,
}

const DEPTH: u32 = 8;
/// Elements of the CQ, half of which its user knows of.
const CQES: u32 = 32;

impl Setup {
    fn new() -> Self {
        Self::with(false)
    }

    fn with(signal_all: bool) -> Self {
        let cq_memory = PlainMemory::cq(CQES);
        // SAFETY: the memory is that of a CQ, and there is one consumer.
        let cq = unsafe { SiwCq::new(cq_memory.clone(), CQES, CQES / 2) }.unwrap();
        let (doorbell, control) = (CountingDoorbell::default(), Arc::new(PlainControl::default()));
        let (sq_memory, rq_memory) = (PlainMemory::sq(DEPTH), PlainMemory::rq(DEPTH));
        let memory = QpMemory {
            sq: (sq_memory.clone() as SharedMemory, DEPTH),
            rq: Some((rq_memory.clone() as SharedMemory, DEPTH)),
        };
        // SAFETY: the memory is that of a new QP, and there is one producer for each queue.
        let (sq, rq) = unsafe {
            SiwSq::new(QPN, memory, signal_all, [cq.shared(), cq.shared()], doorbell.clone(), control.clone())
        }
        .unwrap();
        Self {
            sq,
            rq: rq.unwrap(),
            cq,
            kernel_sq: KernelConsumer::new(sq_memory, DEPTH),
            kernel_rq: KernelConsumer::new(rq_memory, DEPTH),
            kernel_cq: KernelProducer::new(cq_memory.clone(), CQES),
            doorbell,
            control,
            cq_memory,
        }
    }

    fn push(&mut self, request: &SendRequest<'_>) -> Result<(), PushError> {
        // SAFETY: there is no device, and the memory of requests is never accessed.
        unsafe { if self.sq.try_push(request) { Ok(()) } else { self.sq.push(request) } }
    }

    fn post(&mut self, request: &SendRequest<'_>) {
        self.push(request).unwrap();
        self.sq.ring().unwrap();
    }

    fn push_recv(&mut self, request: &RecvRequest<'_>) -> Result<(), PushError> {
        push_recv(&mut self.rq, request)
    }

    fn recv(&mut self, wr_id: u64) {
        self.push_recv(&RecvRequest::new(wr_id, &[SMALL])).unwrap();
        self.rq.ring();
    }

    fn complete(&mut self, wr_id: u64, opcode: Opcode, status: SiwStatus) {
        assert!(self.kernel_cq.post(&cqe(wr_id, opcode, status)), "the CQ is full");
    }

    fn poll(&mut self) -> Vec<(u64, WcStatus)> {
        std::iter::from_fn(|| self.cq.next_value().map(|done| (done.wr_id, done.status))).collect()
    }
}

fn push_recv(rq: &mut SiwRq, request: &RecvRequest<'_>) -> Result<(), PushError> {
    // SAFETY: as in `Setup::push`.
    unsafe { if rq.try_push(request) { Ok(()) } else { rq.push(request) } }
}

fn cqe(wr_id: u64, opcode: Opcode, status: SiwStatus) -> Cqe {
    Cqe { id: wr_id, flags: 1, opcode, status, bytes: 0, imm_data: 0, qp_id: QPN.into() }
}

const SMALL: Sge = Sge { addr: 0x1000, length: 64, lkey: 7 };
const LARGE: Sge = Sge { addr: 0x1000, length: 4096, lkey: 7 };
const REMOTE: Remote = Remote { addr: 0x2000, rkey: 9 };
const OK: SiwStatus = SiwStatus::SUCCESS;
const FLUSH: SiwStatus = SiwStatus::WR_FLUSH_ERR;

fn send(wr_id: u64) -> SendRequest<'static> {
    SendRequest::send(wr_id, &[SMALL]).signaled()
}

fn read(wr_id: u64) -> SendRequest<'static> {
    SendRequest::read(wr_id, REMOTE, &[SMALL]).signaled()
}

#[test]
fn point_2_number_of_elements_is_that_of_the_kernel() {
    let memory: SharedMemory = PlainMemory::cq(32);
    for (count, entries, fits) in
        [(32, 16, true), (32, 33, false), (64, 16, false), (24, 16, false), (0, 0, false)]
    {
        // SAFETY: the memory is that of a CQ.
        let made = unsafe { SiwCq::new(memory.clone(), count, entries) };
        assert_eq!(made.is_ok(), fits, "{count} elements for {entries}");
    }
    // The word that arms the queue is behind the elements.
    let without_word: SharedMemory = PlainMemory::new(32 * size_of::<Cqe>());
    // SAFETY: as above.
    assert!(unsafe { SiwCq::new(without_word, 32, 16) }.is_err());
}

#[test]
fn point_3_malformed_requests_are_rejected_before_they_are_published() {
    let mut setup = Setup::new();
    let sges = [SMALL; 7];
    let long = [Sge { length: 1 << 30, ..SMALL }; 2];
    let bytes = [0; 81];
    let refused = |setup: &mut Setup, request: SendRequest<'_>| setup.push(&request).unwrap_err();
    assert_eq!(refused(&mut setup, SendRequest::send(1, &sges)), PushError::TooManySges { given: 7, max: 6 });
    assert_eq!(
        refused(&mut setup, SendRequest::read(1, REMOTE, &sges[..2])),
        PushError::TooManySges { given: 2, max: 1 }
    );
    assert_eq!(
        refused(&mut setup, SendRequest::send(1, &long)),
        PushError::MessageTooLong { given: 1 << 31, max: i32::MAX as u64 }
    );
    assert_eq!(
        refused(&mut setup, SendRequest::send(1, &[]).inline(&[&bytes])),
        PushError::InlineTooLong { given: 81, max: 80 }
    );
    assert_eq!(
        refused(&mut setup, SendRequest::read(1, REMOTE, &[]).inline(&[&[1]])),
        PushError::InlineResult
    );
    assert!(matches!(
        refused(&mut setup, SendRequest::send_inv(1, 3, &[]).inline(&[&[1]])),
        PushError::Unsupported { .. }
    ));
    setup.sq.ring().unwrap();
    assert!(setup.kernel_sq.take().is_none());
    assert_eq!(setup.doorbell.doorbells(), 0);

    // A READ never has the fence, which would stop the queue.
    setup.post(&read(1).fenced());
    let sqe = setup.kernel_sq.take().unwrap();
    assert_eq!(sqe.flags, WqeFlags::VALID | WqeFlags::SIGNALLED);
    setup.post(&send(2).fenced().solicited());
    let flags = setup.kernel_sq.take().unwrap().flags;
    assert!(flags.contains(WqeFlags::READ_FENCE | WqeFlags::SOLICITED));

    // Without reads at a time, the kernel would not take it either.
    let mut setup = Setup::new();
    setup.control.more_reads.store(-1, Ordering::Relaxed);
    assert!(matches!(setup.push(&read(1)), Err(PushError::MaxRdAtomicZero { .. })));
    // The number is asked for again: the connection may be established meanwhile.
    setup.control.more_reads.store(0, Ordering::Relaxed);
    setup.push(&read(1)).unwrap();
}

#[test]
fn point_3_fast_path_declines_what_the_slow_path_rejects() {
    let mut setup = Setup::new();
    setup.post(&send(1));
    setup.recv(1);
    let (bytes, long) = ([0; 81], [Sge { length: 1 << 31, ..SMALL }]);
    let given = 1 << 31;
    assert_eq!(
        setup.push(&SendRequest::send(2, &[]).inline(&[&bytes])),
        Err(PushError::InlineTooLong { given: 81, max: 80 })
    );
    let too_long = PushError::MessageTooLong { given, max: i32::MAX as u64 };
    assert_eq!(setup.push(&SendRequest::send(2, &long).signaled()), Err(too_long));
    assert_eq!(setup.push_recv(&RecvRequest::new(2, &long)), Err(too_long));
    let longest = [Sge { length: i32::MAX as u32, ..SMALL }];
    setup.push(&SendRequest::send(2, &longest).signaled()).unwrap();
    setup.push_recv(&RecvRequest::new(2, &longest)).unwrap();
}

#[test]
fn point_4_sges_and_flags_are_encoded() {
    let mut setup = Setup::new();
    let empty = Sge { addr: 1, length: 0, lkey: 2 };
    setup.post(&SendRequest::send_inv(3, 11, &[empty, SMALL, empty, LARGE]).signaled());
    let sqe = setup.kernel_sq.take().unwrap();
    assert_eq!((sqe.id, sqe.opcode, sqe.rkey, sqe.num_sge), (3, Opcode::SEND_REMOTE_INV, 11, 2));
    assert_eq!((sqe.sge[0].length, sqe.sge[1].length), (64, 4096));
    setup.post(&SendRequest::read(4, REMOTE, &[]));
    let sqe = setup.kernel_sq.take().unwrap();
    assert_eq!((sqe.opcode, sqe.num_sge, sqe.sge[0].length), (Opcode::READ, 1, 0));
    assert_eq!((sqe.raddr, sqe.rkey), (REMOTE.addr, REMOTE.rkey));
    setup.post(&SendRequest::write(5, REMOTE, &[]).inline(&[&[1; 40], &[2; 40]]));
    let sqe = setup.kernel_sq.take().unwrap();
    assert_eq!(sqe.flags, WqeFlags::VALID | WqeFlags::INLINE);
    assert_eq!(sqe.sge[0].length, 80);
    assert_eq!((sqe.sge[1].laddr, sqe.sge[5].lkey), (0x0101_0101_0101_0101, 0x0202_0202));
    setup.recv(6);
    let rqe = setup.kernel_rq.take().unwrap();
    assert_eq!((rqe.id, rqe.flags, rqe.num_sge, rqe.sge[0].length), (6, WqeFlags::VALID, 1, 64));
}

/// `siw_sq_flush` and `siw_rq_flush` take elements with any flag for published ones.
#[test]
fn point_4_requests_are_not_flushed_by_the_kernel_before_the_doorbell() {
    let mut setup = Setup::new();
    for wr_id in 1..=2 {
        setup
            .push(&SendRequest { flags: SendFlags::SIGNALED | SendFlags::SOLICITED, ..send(wr_id) })
            .unwrap();
        setup.push_recv(&RecvRequest::new(wr_id, &[SMALL])).unwrap();
    }
    assert!(setup.kernel_sq.flush().is_none() && setup.kernel_rq.flush().is_none());
    setup.sq.ring().unwrap();
    setup.rq.ring();
    for wr_id in 1..=2 {
        let (sqe, rqe) = (setup.kernel_sq.flush().unwrap(), setup.kernel_rq.flush().unwrap());
        assert_eq!((sqe.id, rqe.id), (wr_id, wr_id));
        assert_eq!(sqe.flags, WqeFlags::VALID | WqeFlags::SIGNALLED | WqeFlags::SOLICITED);
    }
}

#[test]
fn point_4_receives_of_a_shared_queue_are_encoded() {
    let memory = PlainMemory::rq(DEPTH);
    for depth in [DEPTH, DEPTH + 1] {
        // SAFETY: the memory is that of an SRQ, and the value is dropped.
        let made = unsafe { SiwRq::srq(memory.clone(), DEPTH, depth) };
        assert_eq!(made.is_ok(), depth == DEPTH);
    }
    // SAFETY: as above, and there is one producer from here on.
    let mut srq = unsafe { SiwRq::srq(memory.clone(), DEPTH, DEPTH) }.unwrap();
    let mut kernel = KernelConsumer::<Rqe>::new(memory, DEPTH);
    let [long, empty] = [1 << 30, 0].map(|length| Sge { length, ..SMALL });
    for (sges, refused) in [
        (&[SMALL; 7][..], PushError::TooManySges { given: 7, max: 6 }),
        (&[long; 2], PushError::MessageTooLong { given: 1 << 31, max: i32::MAX as u64 }),
    ] {
        assert_eq!(push_recv(&mut srq, &RecvRequest::new(1, sges)), Err(refused));
    }
    for (wr_id, sges) in [(2, &[empty, SMALL][..]), (3, &[]), (4, &[SMALL])] {
        push_recv(&mut srq, &RecvRequest::new(wr_id, sges)).unwrap();
        assert!(kernel.take().is_none());
        srq.ring();
        let rqe = kernel.take().unwrap();
        assert_eq!((rqe.id, usize::from(rqe.num_sge)), (wr_id, sges.len()));
        let lengths = rqe.sge.iter().map(|sge| sge.length).take(sges.len());
        assert!(lengths.eq(sges.iter().map(|sge| sge.length)), "{rqe:?}");
    }
    push_recv(&mut srq, &RecvRequest::new(5, &[SMALL])).unwrap();
    srq.abort();
    push_recv(&mut srq, &RecvRequest::new(6, &[SMALL])).unwrap();
    srq.ring();
    assert_eq!(kernel.take().map(|rqe| rqe.id), Some(6));
    assert!(kernel.take().is_none());
}

#[test]
fn point_4_all_requests_of_a_queue_that_signals_all_are_signalled() {
    for signal_all in [false, true] {
        let mut setup = Setup::with(signal_all);
        for _ in 0..2 {
            setup.post(&SendRequest::send(1, &[SMALL]));
            let is_signaled = setup.kernel_sq.take().unwrap().flags.contains(WqeFlags::SIGNALLED);
            assert_eq!(is_signaled, signal_all);
        }
    }
}

#[test]
fn point_5_doorbell_is_omitted_while_the_kernel_has_an_earlier_element() {
    let mut setup = Setup::new();
    setup.post(&send(0));
    assert_eq!(setup.doorbell.doorbells(), 1);
    setup.post(&send(1));
    assert_eq!(setup.doorbell.doorbells(), 1, "the kernel has not taken the first one");
    while setup.kernel_sq.take().is_some() {}
    setup.post(&send(2));
    assert_eq!(setup.doorbell.doorbells(), 2);
    while setup.kernel_sq.take().is_some() {}
    // The whole queue at once.
    (0..u64::from(DEPTH)).for_each(|wr_id| setup.push(&send(wr_id)).unwrap());
    assert!(matches!(setup.push(&send(9)), Err(PushError::QueueFull { capacity: DEPTH })));
    setup.sq.ring().unwrap();
    assert_eq!(setup.doorbell.doorbells(), 3);
    // Deferred requests wait, others are discarded.
    while setup.kernel_sq.take().is_some() {}
    setup.push(&send(1)).unwrap();
    setup.sq.defer().unwrap();
    setup.push(&read(2)).unwrap();
    setup.sq.abort();
    assert!(setup.kernel_sq.take().is_none());
    setup.sq.ring().unwrap();
    assert_eq!(setup.kernel_sq.take().unwrap().id, 1);
    assert!(setup.kernel_sq.take().is_none());
    // An abort after a doorbell discards all.
    setup.push(&send(3)).unwrap();
    setup.sq.abort();
    setup.sq.ring().unwrap();
    assert!(setup.kernel_sq.take().is_none());
    // A discarded READ does not keep requests from the fast path.
    // SAFETY: as in `push`.
    assert!(unsafe { setup.sq.try_push(&send(4)) });
}

#[test]
fn point_6_refused_doorbell_leaves_the_requests_in_the_queue() {
    let mut setup = Setup::new();
    setup.doorbell.answer(Err(Errno::NOTCONN));
    setup.post(&send(0));
    setup.doorbell.answer(Ok(()));
    setup.post(&send(1));
    assert_eq!(setup.doorbell.doorbells(), 2, "the kernel does not work on the queue");
    let taken: Vec<u64> = std::iter::from_fn(|| setup.kernel_sq.take()).map(|sqe| sqe.id).collect();
    assert_eq!(taken, [0, 1]);
    setup.doorbell.answer(Err(Errno::NOMEM));
    setup.push(&send(2)).unwrap();
    assert!(matches!(setup.sq.ring(), Err(DoorbellError::Posted(_))));
    assert_eq!(setup.kernel_sq.take().unwrap().id, 2);
    assert_eq!(setup.control.errors.load(Ordering::Relaxed), 0);
}

#[test]
fn point_7_completions_are_copied_and_given_back() {
    let mut setup = Setup::new();
    for turn in 0..3 * u64::from(CQES) {
        let done = Cqe { bytes: 12, ..cqe(turn, Opcode::RECEIVE, OK) };
        assert!(setup.kernel_cq.post(&done));
        let taken = setup.cq.next().unwrap();
        assert_eq!(
            (taken.wr_id(), taken.status(), taken.opcode()),
            (turn, WcStatus::SUCCESS, WcOpcode::RECV)
        );
        assert_eq!((taken.byte_len(), taken.qp_num(), taken.imm()), (12, QPN, None));
    }
    // Numbers that the kernel does not have.
    setup.complete(1, Opcode(200), OK);
    setup.complete(2, Opcode::RECEIVE, SiwStatus(77));
    setup.complete(3, Opcode::COUNT, OK);
    assert_eq!(setup.poll(), [1, 2, 3].map(|wr_id| (wr_id, WcStatus::GENERAL_ERR)));
}

#[test]
fn point_7_operations_and_statuses_are_those_of_the_kernel() {
    let mut setup = Setup::new();
    for (opcode, reported) in [
        (Opcode::WRITE, WcOpcode::RDMA_WRITE),
        (Opcode::READ, WcOpcode::RDMA_READ),
        (Opcode::SEND, WcOpcode::SEND),
        (Opcode::SEND_REMOTE_INV, WcOpcode::SEND),
        (Opcode::RECEIVE, WcOpcode::RECV),
    ] {
        setup.complete(1, opcode, OK);
        assert_eq!(setup.cq.next().map(|done| done.opcode()), Some(reported));
    }
    for (status, reported) in [
        (SiwStatus::SUCCESS, WcStatus::SUCCESS),
        (SiwStatus::LOC_LEN_ERR, WcStatus::LOC_LEN_ERR),
        (SiwStatus::LOC_PROT_ERR, WcStatus::LOC_PROT_ERR),
        (SiwStatus::LOC_QP_OP_ERR, WcStatus::LOC_QP_OP_ERR),
        (SiwStatus::WR_FLUSH_ERR, WcStatus::WR_FLUSH_ERR),
        (SiwStatus::BAD_RESP_ERR, WcStatus::BAD_RESP_ERR),
        (SiwStatus::LOC_ACCESS_ERR, WcStatus::LOC_ACCESS_ERR),
        (SiwStatus::REM_ACCESS_ERR, WcStatus::REM_ACCESS_ERR),
        (SiwStatus::REM_INV_REQ_ERR, WcStatus::REM_INV_REQ_ERR),
        (SiwStatus::GENERAL_ERR, WcStatus::GENERAL_ERR),
    ] {
        setup.complete(1, Opcode::SEND, status);
        let done = setup.cq.next().unwrap();
        assert_eq!((done.status(), done.vendor_err()), (reported, status.0.into()));
    }
}

#[test]
fn point_8_armed_queue_is_woken_by_any_completion() {
    for solicited_only in [false, true] {
        let mut setup = Setup::new();
        setup.cq.arm(solicited_only).unwrap();
        assert_eq!(setup.cq_memory.armed(CQES), 3);
    }
}

#[test]
fn point_9_requests_after_a_failure_are_flushed() {
    let mut setup = Setup::new();
    setup.recv(1);
    setup.post(&send(2));
    // The kernel flushes the receive, and not the send, which was published after it had flushed sends.
    assert!(setup.kernel_rq.take().is_some());
    setup.complete(1, Opcode::RECEIVE, FLUSH);
    let flushed = WcStatus::WR_FLUSH_ERR;
    assert_eq!(setup.poll(), [(1, flushed), (2, flushed)]);
    assert_eq!(setup.control.errors.load(Ordering::Relaxed), 1, "moved to ERR once");
    assert!(setup.kernel_sq.take().is_none(), "the element was taken back");
    // Later ones, signalled or not.
    setup.post(&SendRequest::send(3, &[SMALL]));
    setup.post(&read(4));
    setup.recv(5);
    assert_eq!(setup.poll(), [(3, flushed), (4, flushed), (5, flushed)]);
    assert_eq!(setup.doorbell.doorbells(), 1);
    assert_eq!(setup.control.errors.load(Ordering::Relaxed), 1);
}

#[test]
fn point_9_end_of_a_connection_is_asked_of_the_kernel() {
    let mut setup = Setup::new();
    setup.control.ended.store(true, Ordering::Relaxed);
    // The doorbell succeeds, and the kernel takes nothing.
    setup.post(&send(1));
    assert_eq!(setup.poll(), [(1, WcStatus::WR_FLUSH_ERR)]);
    // A refused doorbell may be of a connection that has ended as well.
    let mut setup = Setup::new();
    setup.control.ended.store(true, Ordering::Relaxed);
    setup.doorbell.answer(Err(Errno::NOTCONN));
    setup.post(&send(1));
    assert_eq!(setup.poll(), [(1, WcStatus::WR_FLUSH_ERR)]);
    // It executes no reads, and flushes them.
    setup.control.more_reads.store(-1, Ordering::Relaxed);
    setup.post(&read(2));
    assert_eq!(setup.poll(), [(2, WcStatus::WR_FLUSH_ERR)]);
}

/// A doorbell in which the kernel takes one element.
struct TakingDoorbell(KernelConsumer<Sqe>);

impl Doorbell for TakingDoorbell {
    fn ring(&mut self) -> Result<(), Errno> {
        self.0.take().map(drop).ok_or(Errno::NOTCONN)
    }
}

#[test]
fn point_9_kernel_that_takes_the_first_of_a_batch_is_not_asked() {
    // SAFETY: the memory is that of a CQ, and there is one consumer.
    let mut cq = unsafe { SiwCq::new(PlainMemory::cq(CQES), CQES, CQES / 2) }.unwrap();
    let (sq, control) = (PlainMemory::sq(DEPTH), Arc::new(PlainControl::default()));
    control.ended.store(true, Ordering::Relaxed);
    let doorbell = TakingDoorbell(KernelConsumer::new(sq.clone(), DEPTH));
    let (memory, cqs) = (QpMemory { sq: (sq, DEPTH), rq: None }, [cq.shared(), cq.shared()]);
    // SAFETY: as in `Setup::new`.
    let (mut sq, _) = unsafe { SiwSq::new(QPN, memory, false, cqs, doorbell, control) }.unwrap();
    for wr_id in 0..2 {
        // SAFETY: there is no device.
        unsafe { sq.push(&send(wr_id)) }.unwrap();
    }
    sq.ring().unwrap();
    assert!(cq.next_value().is_none());
}

#[test]
fn point_9_reads_that_the_kernel_did_not_take_are_flushed_once_and_in_order() {
    let mut setup = Setup::new();
    setup.post(&read(1));
    assert!(setup.kernel_sq.take().is_some(), "its response is awaited");
    setup.push(&send(2)).unwrap();
    setup.push(&read(3)).unwrap();
    setup.push(&send(4)).unwrap();
    setup.control.ended.store(true, Ordering::Relaxed);
    setup.sq.ring().unwrap();
    let flushed = [1, 2, 3, 4].map(|wr_id| (wr_id, WcStatus::WR_FLUSH_ERR));
    assert_eq!(setup.poll(), flushed);
    setup.post(&read(5));
    setup.post(&send(6));
    assert_eq!(setup.poll(), [5, 6].map(|wr_id| (wr_id, WcStatus::WR_FLUSH_ERR)));
}

#[test]
fn point_9_change_to_err_flushes_and_is_tried_again_if_the_kernel_refuses() {
    let mut setup = Setup::new();
    setup.recv(1);
    setup.control.refusal.store(Errno::NOMEM.raw_os_error(), Ordering::Relaxed);
    let request =
        ModifyQpReq { attr_mask: QpAttrMask::STATE, qp_state: QpState::ERR, ..ModifyQpReq::zeroed() };
    setup.sq.modified(&request);
    assert_eq!(setup.poll(), []);
    setup.control.refusal.store(0, Ordering::Relaxed);
    setup.sq.modified(&request);
    assert_eq!(setup.poll(), [(1, WcStatus::WR_FLUSH_ERR)]);
}

#[test]
fn point_9_no_command_names_a_qp_whose_handle_was_released() {
    let mut setup = Setup::new();
    setup.sq.release_handle();
    setup.complete(1, Opcode::RECEIVE, FLUSH);
    assert_eq!(setup.poll().len(), 1);
    assert_eq!(setup.control.errors.load(Ordering::Relaxed), 0);
    // Its owner may still use it.
    setup.recv(2);
    assert_eq!(setup.control.errors.load(Ordering::Relaxed), 1);
    assert_eq!(setup.poll(), [(2, WcStatus::WR_FLUSH_ERR)]);
}

#[test]
fn point_10_operations_that_iwarp_lacks_are_unsupported() {
    let mut setup = Setup::new();
    for operation in [
        Operation::SendImm(Imm(1)),
        Operation::WriteImm(REMOTE, Imm(1)),
        Operation::FetchAdd { remote: REMOTE, add: 1 },
        Operation::CmpSwp { remote: REMOTE, compare: 0, swap: 1 },
        Operation::LocalInv(1),
        Operation::AtomicWrite { remote: REMOTE, value: [0; 8] },
    ] {
        let refused = setup.push(&send(1).with(operation)).unwrap_err();
        assert_eq!(refused, PushError::Unsupported { operation: operation.name() });
    }
}

#[test]
fn point_11_states_that_the_kernel_ignores_or_refuses_are_rejected() {
    let setup = Setup::new();
    for (state, allowed) in [
        (QpState::RESET, false),
        (QpState::INIT, true),
        (QpState::RTR, true),
        (QpState::RTS, false),
        (QpState::SQD, true),
        (QpState::ERR, true),
    ] {
        let request = ModifyQpReq { attr_mask: QpAttrMask::STATE, qp_state: state, ..ModifyQpReq::zeroed() };
        assert_eq!(setup.sq.validate_modify(&request).is_ok(), allowed, "{state:?}");
        let other = ModifyQpReq { attr_mask: QpAttrMask::PORT, ..request };
        assert!(setup.sq.validate_modify(&other).is_ok());
    }
}

#[test]
fn completions_of_a_destroyed_qp_are_not_those_of_its_successor() {
    let Setup { sq, rq, mut cq, mut kernel_cq, .. } = Setup::new();
    kernel_cq.post(&cqe(1, Opcode::SEND, FLUSH));
    drop((sq, rq));
    // The kernel gives the same number to the next QP.
    let control = Arc::new(PlainControl::default());
    let memory = QpMemory { sq: (PlainMemory::sq(DEPTH), DEPTH), rq: Some((PlainMemory::rq(DEPTH), DEPTH)) };
    let doorbell = CountingDoorbell::default();
    // SAFETY: as in `Setup::new`.
    let _next =
        unsafe { SiwSq::new(QPN, memory, false, [cq.shared(), cq.shared()], doorbell, control.clone()) };
    assert_eq!(cq.next_value().unwrap().wr_id, 1);
    assert_eq!(control.errors.load(Ordering::Relaxed), 0);
    kernel_cq.post(&cqe(2, Opcode::SEND, FLUSH));
    assert_eq!(cq.next_value().unwrap().wr_id, 2);
    assert_eq!(control.errors.load(Ordering::Relaxed), 1);
}

#[test]
fn completions_of_a_destroyed_qp_that_fill_the_cq_are_not_those_of_its_successor() {
    let Setup { sq, rq, mut cq, mut kernel_cq, .. } = Setup::new();
    for wr_id in 0..CQES.into() {
        assert!(kernel_cq.post(&cqe(wr_id, Opcode::SEND, FLUSH)));
    }
    drop((sq, rq));
    let (_next, _, _, control) = another_qp(&cq, QPN, true);
    assert_eq!(std::iter::from_fn(|| cq.next_value()).count(), CQES as usize);
    assert_eq!(control.errors.load(Ordering::Relaxed), 0);
}

#[test]
fn qp_is_known_after_its_predecessor_with_the_same_number_is_dropped() {
    let Setup { sq, rq, mut cq, mut kernel_cq, .. } = Setup::new();
    // The kernel has destroyed the first QP, and its queues are dropped later.
    let (_next, _, _, control) = another_qp(&cq, QPN, true);
    drop((sq, rq));
    kernel_cq.post(&cqe(1, Opcode::SEND, FLUSH));
    assert_eq!(cq.next_value().unwrap().wr_id, 1);
    assert_eq!(control.errors.load(Ordering::Relaxed), 1);
}

#[test]
fn flushed_send_of_a_dropped_qp_is_reported() {
    let Setup { mut sq, rq, mut cq, .. } = Setup::new();
    // SAFETY: there is no device.
    unsafe { sq.push(&send(1)) }.unwrap();
    sq.ring().unwrap();
    sq.modified(&to_error());
    drop((sq, rq));
    let done = cq.next_value().map(|done| (done.wr_id, done.status));
    assert_eq!(done, Some((1, WcStatus::WR_FLUSH_ERR)));
}

#[test]
fn queues_of_a_qp_report_to_their_own_cqs() {
    let Setup { cq: mut send_cq, kernel_cq: mut kernel_send_cq, .. } = Setup::new();
    let Setup { cq: mut recv_cq, kernel_cq: mut kernel_recv_cq, .. } = Setup::new();
    // Completions of earlier QPs in one of both.
    for wr_id in 0..3 {
        kernel_send_cq.post(&cqe(wr_id, Opcode::SEND, OK));
        assert!(send_cq.next_value().is_some());
    }
    let control = Arc::new(PlainControl::default());
    let memory = QpMemory { sq: (PlainMemory::sq(DEPTH), DEPTH), rq: Some((PlainMemory::rq(DEPTH), DEPTH)) };
    let (cqs, doorbell) = ([send_cq.shared(), recv_cq.shared()], CountingDoorbell::default());
    // SAFETY: as in `Setup::new`.
    let (mut sq, rq) = unsafe { SiwSq::new(QPN, memory, false, cqs, doorbell, control.clone()) }.unwrap();
    // SAFETY: there is no device.
    unsafe { sq.push(&send(1)) }.unwrap();
    sq.ring().unwrap();
    let mut rq = rq.unwrap();
    push_recv(&mut rq, &RecvRequest::new(2, &[SMALL])).unwrap();
    rq.ring();
    // A receive that fails tells of the failure.
    kernel_recv_cq.post(&cqe(0, Opcode::RECEIVE, SiwStatus::LOC_LEN_ERR));
    let polled = |cq: &mut SiwCq| std::iter::from_fn(|| cq.next_value()).map(|done| done.wr_id).collect();
    let [received, sent]: [Vec<u64>; 2] = [polled(&mut recv_cq), polled(&mut send_cq)];
    assert_eq!(control.errors.load(Ordering::Relaxed), 1);
    assert_eq!((received, sent), (vec![0, 2], vec![1]));
}

/// The queues of another QP on a CQ, and its commands.
fn another_qp(
    cq: &SiwCq,
    qp_num: u32,
    with_rq: bool,
) -> (SiwSq<CountingDoorbell>, Option<SiwRq>, Weak<PlainMemory>, Arc<PlainControl>) {
    let (sq, control) = (PlainMemory::sq(DEPTH), Arc::new(PlainControl::default()));
    let (kept, doorbell) = (Arc::downgrade(&sq), CountingDoorbell::default());
    let rq = with_rq.then(|| (PlainMemory::rq(DEPTH) as SharedMemory, DEPTH));
    let (memory, cqs) = (QpMemory { sq: (sq, DEPTH), rq }, [cq.shared(), cq.shared()]);
    // SAFETY: as in `Setup::new`.
    let (sq, rq) = unsafe { SiwSq::new(qp_num, memory, false, cqs, doorbell, control.clone()) }.unwrap();
    (sq, rq, kept, control)
}

fn to_error() -> ModifyQpReq {
    ModifyQpReq { attr_mask: QpAttrMask::STATE, qp_state: QpState::ERR, ..ModifyQpReq::zeroed() }
}

#[test]
fn qp_is_created_on_a_full_cq() {
    let mut setup = Setup::new();
    for wr_id in 0..CQES.into() {
        setup.complete(wr_id, Opcode::RECEIVE, OK);
    }
    let _next = another_qp(&setup.cq, QPN + 1, false);
    assert_eq!(setup.poll().len(), CQES as usize);
}

#[test]
fn failed_qp_and_its_cq_are_freed_if_nobody_polls() {
    for cq_is_first in [false, true] {
        let memory = PlainMemory::cq(CQES);
        let kept_cq = Arc::downgrade(&memory);
        // SAFETY: the memory is that of a CQ, and there is one consumer.
        let cq = unsafe { SiwCq::new(memory, CQES, CQES / 2) }.unwrap();
        let (mut sq, rq, kept_sq, _) = another_qp(&cq, QPN + 1, true);
        sq.modified(&to_error());
        if cq_is_first {
            drop(cq);
            drop((sq, rq));
        } else {
            drop((sq, rq));
            drop(cq);
        }
        assert!(kept_sq.upgrade().is_none() && kept_cq.upgrade().is_none());
    }
}

#[test]
fn flushed_request_is_found_behind_any_number_of_failed_qps() {
    // SAFETY: the memory is that of a CQ, and there is one consumer.
    let mut cq = unsafe { SiwCq::new(PlainMemory::cq(2), 2, 1) }.unwrap();
    let mut qps: Vec<_> = (0..9).map(|_| another_qp(&cq, QPN + 1, true)).collect();
    for (sq, ..) in &mut qps {
        sq.modified(&to_error());
    }
    let rq = qps[8].1.as_mut().unwrap();
    let sges = [SMALL];
    // SAFETY: there is no device.
    unsafe { rq.push(&RecvRequest::new(7, &sges)) }.unwrap();
    rq.ring();
    assert_eq!(cq.next_value().map(|done| done.wr_id), Some(7));
}

#[test]
fn completion_is_not_taken_for_that_of_an_unpublished_request() {
    let mut setup = Setup::new();
    setup.post(&send(0));
    // Its success would not be reported.
    setup.push(&SendRequest::write(0, REMOTE, &[LARGE])).unwrap();
    setup.complete(0, Opcode::SEND, OK);
    assert_eq!(setup.poll(), [(0, WcStatus::SUCCESS)]);
    setup.sq.abort();
    // The room of the aborted one was given back once.
    for wr_id in 0..u64::from(CQES / 2) {
        setup.post(&SendRequest::write(wr_id, REMOTE, &[LARGE]));
        setup.kernel_sq.take().unwrap();
    }
    assert!(setup.push(&SendRequest::write(99, REMOTE, &[LARGE])).is_err());
}

#[test]
fn unreported_completions_have_room_in_the_cq() {
    let mut setup = Setup::new();
    for turn in 0..3 {
        for wr_id in 0..u64::from(CQES / 2) {
            setup.post(&SendRequest::write(wr_id, REMOTE, &[LARGE]));
            let sqe = setup.kernel_sq.take().unwrap();
            assert!(sqe.flags.contains(WqeFlags::SIGNALLED), "TCP copies the data");
            setup.complete(wr_id, Opcode::WRITE, OK);
        }
        let refused = setup.push(&SendRequest::write(99, REMOTE, &[LARGE])).unwrap_err();
        assert!(matches!(refused, PushError::QueueFull { .. }), "{turn}");
        setup.complete(100, Opcode::RECEIVE, OK);
        assert_eq!(setup.poll(), [(100, WcStatus::SUCCESS)]);
    }
    setup.post(&SendRequest::write(1, REMOTE, &[SMALL]));
    assert!(!setup.kernel_sq.take().unwrap().flags.contains(WqeFlags::SIGNALLED));
}

#[test]
fn room_of_unreported_completions_is_given_back_by_the_end_of_a_qp() {
    // Room for 4.
    // SAFETY: the memory is that of a CQ, and there is one consumer.
    let mut cq = unsafe { SiwCq::new(PlainMemory::cq(8), 8, 4) }.unwrap();
    let fill = |sq: &mut SiwSq<CountingDoorbell>, request: &SendRequest<'_>| {
        // SAFETY: there is no device.
        std::iter::repeat_with(|| unsafe { sq.push(request) }).take_while(Result::is_ok).count()
    };
    let hidden = [SendRequest::write(1, REMOTE, &[LARGE]), SendRequest::read(1, REMOTE, &[SMALL])];
    for (request, is_published) in hidden.iter().flat_map(|request| [(request, false), (request, true)]) {
        let (mut sq, ..) = another_qp(&cq, QPN, false);
        assert_eq!(fill(&mut sq, request), 4, "{request:?}, {is_published}");
        if is_published {
            sq.ring().unwrap();
        }
    }
    // READs whose completions the kernel loses.
    let sq_memory = PlainMemory::sq(DEPTH);
    let memory = QpMemory { sq: (sq_memory.clone(), DEPTH), rq: None };
    let (doorbell, control) = (CountingDoorbell::default(), Arc::new(PlainControl::default()));
    let cqs = [cq.shared(), cq.shared()];
    // SAFETY: as in `Setup::new`.
    let (mut sq, _) = unsafe { SiwSq::new(QPN, memory, false, cqs, doorbell, control) }.unwrap();
    assert_eq!(fill(&mut sq, &hidden[1]), 4);
    sq.ring().unwrap();
    let mut kernel = KernelConsumer::<Sqe>::new(sq_memory, DEPTH);
    assert_eq!(std::iter::from_fn(|| kernel.take()).count(), 4);
    sq.modified(&to_error());
    assert_eq!(std::iter::from_fn(|| cq.next_value()).count(), 4);
    let (mut next, ..) = another_qp(&cq, QPN + 1, false);
    assert_eq!(fill(&mut next, &hidden[0]), 4);
}

/// Whether the fast path takes the next completion.
struct IsFast;

impl Visitor for IsFast {
    type Output = bool;

    fn completion(self, _: impl Completion) -> bool {
        true
    }

    fn empty(self) -> bool {
        panic!("there is a completion")
    }

    fn declined(self) -> bool {
        false
    }
}

#[test]
fn fast_path_takes_sends_again_after_the_last_read_of_all_qps() {
    let mut setup = Setup::new();
    let mut other = another_qp(&setup.cq, QPN + 1, false);
    setup.post(&read(1));
    // SAFETY: as in `Setup::push`.
    unsafe { other.0.push(&read(2)) }.unwrap();
    other.0.ring().unwrap();
    setup.post(&send(3));
    setup.complete(1, Opcode::READ, OK);
    setup.complete(3, Opcode::SEND, OK);
    assert_eq!(setup.poll(), [(1, WcStatus::SUCCESS), (3, WcStatus::SUCCESS)]);
    for (wr_id, is_fast) in [(4, false), (5, true)] {
        setup.post(&send(wr_id));
        setup.complete(wr_id, Opcode::SEND, OK);
        assert_eq!(setup.cq.visit_next(IsFast), is_fast);
        assert_eq!(setup.poll().len(), usize::from(!is_fast));
        drop(std::mem::replace(&mut other, another_qp(&setup.cq, QPN + 2, false)));
    }
}

#[test]
fn send_of_the_same_batch_waits_for_an_earlier_read() {
    let mut setup = Setup::new();
    setup.post(&send(0));
    setup.complete(0, Opcode::SEND, OK);
    assert_eq!(setup.poll().len(), 1);
    setup.push(&read(1)).unwrap();
    setup.push(&send(2)).unwrap();
    setup.sq.ring().unwrap();
    setup.complete(2, Opcode::SEND, OK);
    assert_eq!(setup.poll(), []);
    setup.complete(1, Opcode::READ, OK);
    assert_eq!(setup.poll(), [1, 2].map(|wr_id| (wr_id, WcStatus::SUCCESS)));
}

/// A request of a random program, and when the kernel completes it.
#[derive(Clone, Copy, Debug)]
struct Step {
    is_read: bool,
    is_signaled: bool,
    is_large: bool,
    /// READs whose responses arrive before the next request is posted.
    responses: u8,
    poll: bool,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = (any::<bool>(), any::<bool>(), any::<bool>(), 0u8..3, any::<bool>());
    let step = step.prop_map(|(is_read, is_signaled, is_large, responses, poll)| Step {
        is_read,
        is_signaled,
        is_large,
        responses,
        poll,
    });
    proptest::collection::vec(step, 1..60)
}

proptest! {
    /// The kernel completes other requests when it takes them, and READs later, in order. At the end it may
    /// flush, and lose the completions of READs.
    #[test]
    fn completions_come_in_the_order_of_posting(
        steps in steps(),
        fails_at in proptest::option::of(0usize..60),
        loses in any::<bool>(),
    ) {
        let mut setup = Setup::new();
        let (mut reads, mut expected, mut done) =
            (std::collections::VecDeque::<(u64, bool)>::new(), Vec::new(), Vec::new());
        let mut outstanding = 0;
        for (at, step) in steps.iter().enumerate() {
            let wr_id = at as u64 + 1;
            let sges = [if step.is_large { LARGE } else { SMALL }];
            let request = if step.is_read {
                SendRequest::read(wr_id, REMOTE, &sges)
            } else {
                SendRequest::send(wr_id, &sges)
            };
            let request = if step.is_signaled { request.signaled() } else { request };
            if setup.push(&request).is_err() {
                done.extend(setup.poll());
                if setup.push(&request).is_err() {
                    continue;
                }
            }
            setup.sq.ring().unwrap();
            outstanding += usize::from(step.is_signaled);
            let sqe = setup.kernel_sq.take().unwrap();
            let fails = fails_at == Some(at) && !step.is_read;
            if fails {
                // A request that can't be sent is completed at once. Then the kernel flushes all READs.
                expected.push(wr_id);
                setup.complete(wr_id, sqe.opcode, SiwStatus::LOC_QP_OP_ERR);
                for (wr_id, is_signaled) in std::mem::take(&mut reads) {
                    if !is_signaled {
                        expected.push(wr_id);
                    }
                    if !loses && !setup.kernel_cq.post(&cqe(wr_id, Opcode::READ, FLUSH)) {
                        // The CQ is full: the kernel loses it.
                    }
                }
                break;
            }
            if step.is_signaled {
                expected.push(wr_id);
            }
            if step.is_read {
                reads.push_back((wr_id, step.is_signaled));
            } else if sqe.flags.contains(WqeFlags::SIGNALLED) {
                setup.complete(wr_id, sqe.opcode, OK);
            }
            for _ in 0..step.responses {
                if let Some((wr_id, _)) = reads.pop_front() {
                    setup.complete(wr_id, Opcode::READ, OK);
                }
            }
            if step.poll || outstanding >= 12 {
                let polled = setup.poll();
                outstanding = outstanding.saturating_sub(polled.len());
                done.extend(polled);
            }
        }
        done.extend(setup.poll());
        for (wr_id, _) in reads {
            setup.complete(wr_id, Opcode::READ, OK);
            done.extend(setup.poll());
        }
        let ids: Vec<u64> = done.iter().map(|(wr_id, _)| *wr_id).collect();
        prop_assert!(ids.is_sorted(), "{:?}", ids);
        expected.sort_unstable();
        prop_assert_eq!(ids, expected);
    }

    /// A malicious kernel writes any bytes anywhere: no call panics, loops or writes outside of the queues.
    #[test]
    fn malicious_kernel_causes_no_harm(
        writes in proptest::collection::vec((0usize..CQES as usize * 32, any::<[u8; 16]>(), any::<u8>()), 1..80),
    ) {
        let mut setup = Setup::new();
        let len = CQES as usize * 32 + 8;
        for (at, bytes, action) in writes {
            let at = at.min(len - bytes.len());
            setup.cq_memory.overwrite(at, &bytes);
            let wr_id = u64::from(action);
            match action % 5 {
                0 => drop(setup.push(&read(wr_id))),
                1 => drop(setup.push(&SendRequest::write(wr_id, REMOTE, &[LARGE]))),
                2 => setup.sq.ring().unwrap(),
                3 => setup.recv_if_free(wr_id),
                _ => drop(setup.kernel_sq.take()),
            }
            let polled = std::iter::from_fn(|| setup.cq.next_value()).take(200).count();
            prop_assert!(polled < 200, "the kernel stops writing, so the queue becomes empty");
        }
    }
}

impl Setup {
    fn recv_if_free(&mut self, wr_id: u64) {
        let request = RecvRequest::new(wr_id, &[]);
        // SAFETY: as in `push`.
        if unsafe { self.rq.push(&request) }.is_ok() {
            self.rq.ring();
        }
    }
}

#[test]
fn elements_of_the_fast_path_are_those_of_the_slow_one() {
    let mut setup = Setup::new();
    for flags in [SendFlags::empty(), SendFlags::SIGNALED, SendFlags::SOLICITED | SendFlags::FENCE] {
        let (sges, parts) = ([SMALL], [&[3; 80][..]]);
        let request = SendRequest::write(1, REMOTE, &sges).flags(flags);
        for request in [request, request.inline(&parts)] {
            // SAFETY: as in `push`.
            unsafe { setup.sq.push(&request) }.unwrap();
            setup.sq.ring().unwrap();
            let slow = setup.kernel_sq.take().unwrap();
            // SAFETY: as in `push`.
            assert!(unsafe { setup.sq.try_push(&request) });
            setup.sq.ring().unwrap();
            assert_eq!(setup.kernel_sq.take().unwrap(), slow);
        }
    }
}

#[test]
fn receives_of_the_fast_paths_are_those_of_the_slow_one() {
    let mut setup = Setup::new();
    let two = [SMALL; 2];
    let (one, requests) = ([SMALL], [RecvRequest::new(1, &[SMALL]); DEPTH as usize + 1]);
    let request = RecvRequest::new(1, &one);
    // SAFETY: as in `push`.
    unsafe { setup.rq.push(&request) }.unwrap();
    setup.rq.ring();
    let slow = setup.kernel_rq.take().unwrap();
    for _ in 0..2 * DEPTH {
        // SAFETY: as in `push`.
        assert!(unsafe { setup.rq.try_post(&request) });
        assert_eq!(setup.kernel_rq.take(), Some(slow));
    }
    // A list ends at the end of the queue.
    // SAFETY: as in `push`.
    assert_eq!(unsafe { setup.rq.try_push_all(&requests) }, DEPTH as usize);
    // SAFETY: as in `push`.
    assert!(unsafe { !setup.rq.try_push(&request) && !setup.rq.try_post(&request) });
    assert!(setup.kernel_rq.take().is_none(), "nothing is published");
    setup.rq.ring();
    // SAFETY: as in `push`.
    assert!(unsafe { !setup.rq.try_post(&request) }, "the queue is full");
    for _ in 0..DEPTH {
        assert_eq!(setup.kernel_rq.take(), Some(slow));
    }
    // It also ends at a request that the fast path does not encode.
    let list = [request, RecvRequest::new(1, &two), request];
    // SAFETY: as in `push`.
    assert_eq!(unsafe { setup.rq.try_push_all(&list) }, 1);
    // A request is not published before those that were pushed.
    // SAFETY: as in `push`.
    assert!(unsafe { !setup.rq.try_post(&request) });
    setup.rq.abort();
    // SAFETY: as in `push`.
    assert!(unsafe { setup.rq.try_post(&request) });
    assert_eq!((setup.kernel_rq.take(), setup.kernel_rq.take()), (Some(slow), None));
}

#[test]
fn receive_that_is_posted_to_a_failed_qp_by_the_fast_path_is_flushed() {
    let mut setup = Setup::new();
    setup.sq.modified(&to_error());
    // SAFETY: as in `push`.
    assert!(unsafe { setup.rq.try_post(&RecvRequest::new(3, &[SMALL])) });
    assert_eq!(setup.poll(), [(3, WcStatus::WR_FLUSH_ERR)]);
}

#[test]
fn list_of_completions_is_polled_in_order_through_failures() {
    let mut setup = Setup::new();
    let ids = |into: &[WorkCompletion]| into.iter().map(|done| done.wr_id).collect::<Vec<_>>();
    let mut into = [WorkCompletion::default(); 4];
    assert_eq!(setup.cq.next_values(&mut into), 0);
    for wr_id in 1..=6 {
        setup.complete(wr_id, Opcode::RECEIVE, if wr_id == 3 { FLUSH } else { OK });
    }
    assert_eq!(setup.cq.next_values(&mut []), 0);
    assert_eq!(setup.cq.next_values(&mut into), 4);
    assert_eq!(ids(&into), [1, 2, 3, 4]);
    assert_eq!(into.map(|done| done.status == WcStatus::SUCCESS), [true, true, false, true]);
    assert_eq!(setup.cq.next_values(&mut into), 2);
    assert_eq!(ids(&into[..2]), [5, 6]);
    assert_eq!(setup.cq.next_values(&mut into), 0);
}
