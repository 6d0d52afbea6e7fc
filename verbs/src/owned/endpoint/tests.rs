use std::mem;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bareverbs_provider::caps::MrQuirks;
use bareverbs_provider::device::IoctlError;
use proptest::prelude::*;
use rustix::io::Errno;

use super::*;
use crate::cq::CqInit;
use crate::error::{DoorbellError, PushError};
use crate::mr::ImplicitMr;
use crate::owned::in_flight::{PROBE, PostRecv};
use crate::owned::keepalive::{INTERVAL, Policy};
use crate::owned::{Done, Outcome, Spin};
use crate::qp::RecvRequest;
use crate::testing::tasks::{Never, Wakes};
use crate::testing::{Hook, Plain, completion, refuse_ioctls, succeed_ioctls};
use crate::values::Mtu;
use crate::wait::Caller;
use crate::{Access, Buffer, Gid, MemoryOwner, Mr, Remote, WcOpcode};

/// Memory that counts how often it is freed.
struct Counted(Vec<u8>, Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.1.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: the heap block of the vector does not move with the vector, and is never freed if the
// vector is forgotten.
unsafe impl MemoryOwner for Counted {
    fn region(&mut self) -> (NonNull<u8>, usize) {
        // From the second byte on: not page-aligned.
        (NonNull::from(&mut self.0[1..]).cast(), self.0.len() - 1)
    }
}

#[test]
fn odp_mr_must_be_page_aligned_if_the_driver_ignores_page_offsets() {
    let quirks = MrQuirks { odp_ignores_page_offset: true, ..MrQuirks::default() };
    let mut setup = Setup::of(Plain::with(quirks));
    let pd = setup.endpoint.queues.qp.pd().clone();
    setup.region = ImplicitMr::for_test(pd.domain(), Access::LOCAL_WRITE | Access::ON_DEMAND);
    let mut memory = Buffer::zeroed(64).unwrap();
    let (start, _) = memory.region();
    // SAFETY: within the buffer.
    let within_page = unsafe { start.add(1) };
    for (start, refused) in [(start, false), (within_page, true)] {
        let part = setup.region.part(Placed(start)).map_err(|failed| failed.error).unwrap();
        assert_eq!(part.check_postable("Endpoint::post(Op::recv)", 0).is_err(), refused);
        for right in [Access::REMOTE_WRITE, Access::REMOTE_READ] {
            let rights = Access::LOCAL_WRITE | right | Access::ON_DEMAND;
            let failed = pd.register(Placed(start), rights).map_err(|failed| failed.error).unwrap_err();
            assert_eq!(matches!(failed, Error::Invalid { .. }), refused, "{right:?}: {failed}");
        }
    }
    let part = setup.region.part(Counted(vec![0; 64], Arc::default())).map_err(|failed| failed.error);
    let refused = setup.endpoint.post(Op::recv(part.unwrap())).unwrap_err();
    assert!(refused.to_string().contains("without ON_DEMAND"), "{refused}");
    assert!(setup.plain.log().received.is_empty());
}

/// 32 bytes at a given address.
struct Placed(NonNull<u8>);

// SAFETY: the only test that uses it keeps the buffer of these bytes.
unsafe impl MemoryOwner for Placed {
    fn region(&mut self) -> (NonNull<u8>, usize) {
        (self.0, 32)
    }
}

struct Setup {
    plain: Plain,
    region: ImplicitMr,
    endpoint: Endpoint<Mr<Counted>, Plain>,
    freed: Arc<AtomicUsize>,
}

impl Setup {
    fn new() -> Self {
        Self::of(Plain::default())
    }

    fn of(plain: Plain) -> Self {
        Self::with(plain, 4)
    }

    /// With room for `sends` sends.
    fn with(plain: Plain, sends: u32) -> Self {
        let pd = plain.domain();
        let context = pd.context();
        let endpoint = Endpoint {
            queues: Queues::new(QueueParts {
                qp: plain.queue_pair(&pd),
                cq: context.create_cq(&CqInit::new(8)).unwrap(),
                channel: CompChannel::for_test(context.file()),
                sends,
                recvs: 2,
                max_sge: 4,
                signal_every: 3,
                spin: Spin::Never,
                keepalive: Policy::Never,
                probes: true,
                probe_memory: None,
            }),
            address: Address::new(Gid::default(), 1),
            attr: ConnectAttr::new(1, 0),
            resolve: ResolveTimeout::default(),
        };
        let region = ImplicitMr::for_test(pd.domain(), Access::LOCAL_WRITE);
        Self { plain, region, endpoint, freed: Arc::default() }
    }

    /// A part of an implicit MR. Dropping it frees its memory without a kernel command.
    fn buffer(&self) -> Mr<Counted> {
        let part = self.region.part(Counted(vec![7; 16], Arc::clone(&self.freed)));
        part.map_err(|Refused { error, .. }| error).unwrap()
    }

    fn freed(&self) -> usize {
        self.freed.load(Ordering::Relaxed)
    }

    /// Posts a receive and returns its `wr_id`.
    fn post(&mut self) -> u64 {
        let buffer = self.buffer();
        self.endpoint.post(Op::recv(buffer)).unwrap();
        *self.plain.log().received.last().unwrap()
    }

    fn complete(&self, wr_id: u64, status: WcStatus) {
        let opcode = if owner(wr_id) == RECVS { WcOpcode::RECV } else { WcOpcode::SEND };
        self.complete_as(wr_id, status, opcode);
    }

    fn complete_as(&self, wr_id: u64, status: WcStatus, opcode: WcOpcode) {
        let completion = WorkCompletion { opcode, ..completion(wr_id, status) };
        self.plain.log().completions.push_back(completion);
    }

    /// Posts a send with this tag and returns its `wr_id`.
    fn send(&mut self, tag: u64, signaled: bool) -> u64 {
        let op = Op::send(self.buffer(), ..).tag(tag);
        self.endpoint.post(if signaled { op } else { op.unsignaled() }).unwrap();
        self.plain.log().sent.last().unwrap().1
    }

    /// The tags of all operations that have ended, negative for those that failed.
    fn ended(&mut self) -> Vec<i64> {
        let tag = |result| match result {
            Ok(Done { tag, .. }) => tag as i64,
            Err(Failed { tag, .. }) => -(tag as i64),
        };
        std::iter::from_fn(|| self.endpoint.poll().map(tag)).collect()
    }

    /// Makes the kernel refuse the next doorbell of the send queue.
    fn refuse_doorbell(&self) {
        let refused = IoctlError::new("PostSend", Errno::NOMEM);
        self.plain.log().refusals.push_back(DoorbellError::TakenBack(refused));
    }

    /// Posts a batch with the tags 2 and 3, whose doorbell is refused.
    fn post_refused_batch(&mut self, signaled: bool) {
        self.refuse_doorbell();
        let buffers = [self.buffer(), self.buffer()];
        let mut batch = self.endpoint.batch();
        for (buffer, tag) in buffers.into_iter().zip(2..) {
            let op = Op::send(buffer, ..).tag(tag);
            batch.post(if signaled { op } else { op.unsignaled() }).unwrap();
        }
        batch.ring().unwrap_err();
    }

    /// Whether the send that was posted last was signalled.
    fn signaled(&self) -> bool {
        let log = self.plain.log();
        log.signaled.last() == log.sent.last().map(|(_, wr_id)| wr_id)
    }

    /// Polls a completion of an operation that is not outstanding.
    fn poll_unknown(&mut self, expected: u64) {
        let failed = self.endpoint.poll().unwrap().unwrap_err();
        assert!(matches!(failed.error, Error::UnknownCompletion { wr_id } if wr_id == expected), "{failed}");
        assert!(failed.buffer.is_none());
    }
}

#[test]
fn mr_of_another_pd_is_rejected_and_returned() {
    let mut setup = Setup::new();
    let same_context = setup.endpoint.queues.qp.pd().context().alloc_pd().unwrap();
    let other_context = setup.plain.domain();
    for pd in [&same_context, &other_context] {
        setup.region = ImplicitMr::for_test(pd.domain(), Access::LOCAL_WRITE);
        let remote = Remote { addr: 0, rkey: 1 };
        let received = setup.endpoint.post(Op::recv(setup.buffer()));
        let received = received.map_err(|refused| (refused.error, refused.object.into_buffer()));
        let ops = [
            Op::send(setup.buffer(), ..),
            Op::write(setup.buffer(), .., remote),
            Op::read(setup.buffer(), .., remote),
        ];
        let posted = ops.map(|op| {
            let posted = setup.endpoint.post(op);
            posted.map_err(|refused| (refused.error, refused.object.into_buffer()))
        });
        for posted in posted.into_iter().chain([received]) {
            let (error, buffer) = posted.unwrap_err();
            assert!(matches!(error, Error::Invalid { .. }), "{error}");
            assert!(error.to_string().contains("different PDs"), "{error}");
            assert_eq!(buffer.len(), 15);
        }
    }
    assert_eq!(setup.endpoint.pending(), 0);
    let (received, sent) = {
        let log = setup.plain.log();
        (log.received.len(), log.sent.len())
    };
    assert_eq!((received, sent), (0, 0));
}

#[test]
fn buffers_of_outstanding_operations_are_leaked_if_destroy_qp_fails() {
    let mut setup = Setup::new();
    setup.post();
    setup.post();
    let Setup { plain, endpoint, freed, .. } = setup;
    drop(endpoint);
    assert_eq!((freed.load(Ordering::Relaxed), plain.log().freed.len()), (0, 0));
}

#[test]
fn unknown_completion_returns_no_buffer_and_moves_qp_to_err() {
    for nonsense in [0, 1, 1 << 62, 2 << 62 | 1, 2 << 62 | 1 << 61, 3 << 62, u64::MAX] {
        for status in [WcStatus::SUCCESS, WcStatus::WR_FLUSH_ERR] {
            let mut setup = Setup::new();
            let posted = setup.post();
            setup.complete(nonsense, status);
            setup.complete(posted, WcStatus::WR_FLUSH_ERR);
            setup.poll_unknown(nonsense);
            assert_eq!((setup.endpoint.pending(), setup.freed()), (1, 0));
            assert_eq!(setup.endpoint.qp().state(), QpState::ERR);
            let refused = setup.endpoint.post(Op::recv(setup.buffer())).unwrap_err();
            assert!(refused.error.to_string().contains("the connection has failed"), "{refused}");
            let flushed = setup.endpoint.next().wait().unwrap_err();
            assert!(flushed.buffer.is_some());
            // The transition to ERR is issued once.
            assert_eq!(setup.plain.log().states, [QpState::ERR]);
        }
    }
}

#[test]
fn failed_endpoint_rejects_posts_even_if_the_kernel_refuses_err() {
    let mut setup = Setup::new();
    setup.post();
    let refused = IoctlError::new("ModifyQp", Errno::NOMEM);
    setup.plain.log().answers.push_back(Err(refused));
    setup.complete(0, WcStatus::SUCCESS);
    setup.poll_unknown(0);
    assert_ne!(setup.endpoint.qp().state(), QpState::ERR);
    let refused = setup.endpoint.post(Op::recv(setup.buffer())).unwrap_err();
    assert!(refused.error.to_string().contains("the connection has failed"), "{refused}");
}

#[test]
fn duplicate_completion_returns_no_second_buffer() {
    let mut setup = Setup::new();
    let first = setup.post();
    setup.complete(first, WcStatus::SUCCESS);
    let done = setup.endpoint.poll().unwrap().unwrap();
    assert_eq!(done.message(), Some(&[7][..]));
    let second = setup.post();
    assert_ne!(second, first);
    setup.complete(first, WcStatus::SUCCESS);
    setup.poll_unknown(first);
    assert_eq!(setup.endpoint.pending(), 1);
    setup.complete(second, WcStatus::SUCCESS);
    assert!(setup.endpoint.poll().unwrap().is_ok());
}

#[test]
fn caller_panic_between_post_and_poll_keeps_outstanding_buffers() {
    let mut setup = Setup::new();
    let freed = Arc::clone(&setup.freed);
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
        setup.post();
        panic!("in between");
    }))
    .unwrap_err();
    assert_eq!(freed.load(Ordering::Relaxed), 0);
}

struct Panics;

impl PostRecv for Panics {
    unsafe fn post(&mut self, _: &RecvRequest<'_>) -> Result<(), PostError> {
        panic!("after the request was published");
    }
}

#[test]
fn provider_panic_in_post_keeps_the_buffer() {
    let mut setup = Setup::new();
    let buffer = setup.buffer();
    let Setup { endpoint, freed, .. } = &mut setup;
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _ = endpoint.queues.in_flight.recvs.post(&mut Panics, Op::recv(buffer));
    }))
    .unwrap_err();
    assert_eq!((freed.load(Ordering::Relaxed), endpoint.pending()), (0, 1));
}

#[test]
fn receives_and_sends_have_their_own_depth() {
    let mut setup = Setup::new();
    setup.post();
    setup.post();
    let full = setup.endpoint.post(Op::recv(setup.buffer())).unwrap_err();
    assert!(full.to_string().contains("(2 requests)"), "{full}");
    assert!(full.is_full() && full.object.into_buffer().len() == 15);
    for tag in 1..=4 {
        setup.send(tag, true);
    }
    let full = setup.endpoint.post(Op::send(setup.buffer(), ..).tag(5)).unwrap_err();
    assert!(full.is_full() && full.object.tag == 5 && full.object.into_buffer().len() == 15);
    assert_eq!((setup.endpoint.pending_sends(), setup.endpoint.pending_recvs()), (4, 2));
}

#[test]
fn signaled_completion_returns_older_unsignaled_operations_first() {
    let mut setup = Setup::new();
    setup.send(1, false);
    setup.send(2, false);
    let third = setup.send(3, true);
    setup.complete(third, WcStatus::SUCCESS);
    let done = setup.endpoint.poll().unwrap().unwrap();
    assert_eq!((done.tag, done.len, done.opcode), (1, 15, WcOpcode::SEND));
    drop(done);
    assert_eq!((setup.ended(), setup.freed()), (vec![2, 3], 3));
}

#[test]
fn failed_operation_returns_older_unsignaled_operations_as_done() {
    let mut setup = Setup::new();
    setup.send(1, false);
    let second = setup.send(2, true);
    let third = setup.send(3, true);
    setup.complete(second, WcStatus::REM_ACCESS_ERR);
    setup.complete(third, WcStatus::WR_FLUSH_ERR);
    assert_eq!(setup.endpoint.poll().unwrap().unwrap().tag, 1);
    let failed = setup.endpoint.poll().unwrap().unwrap_err();
    assert_eq!((failed.tag, failed.outcome), (2, Outcome::Refused));
    let failed = setup.endpoint.poll().unwrap().unwrap_err();
    assert_eq!((failed.tag, failed.outcome), (3, Outcome::Unknown));
    assert_eq!(failed.cause, Some(WcStatus::REM_ACCESS_ERR));
    assert!(setup.endpoint.poll().is_none());
}

#[test]
fn failed_receives_and_sends_are_distinguished() {
    let mut setup = Setup::new();
    let (recv, send) = (setup.post(), setup.send(1, true));
    setup.complete(recv, WcStatus::WR_FLUSH_ERR);
    setup.complete(send, WcStatus::WR_FLUSH_ERR);
    let failed = |setup: &mut Setup| setup.endpoint.poll().unwrap().unwrap_err().is_recv();
    // A device reports a failure without its opcode: the queue of the request decides.
    let mut kinds = [failed(&mut setup), failed(&mut setup)];
    kinds.sort_unstable();
    assert_eq!(kinds, [false, true]);
}

#[test]
fn failures_that_are_reaped_together_are_all_returned() {
    let mut setup = Setup::new();
    setup.send(1, false);
    let second = setup.send(2, true);
    let third = setup.send(3, true);
    let fourth = setup.send(4, true);
    setup.complete(second, WcStatus::RETRY_EXC_ERR);
    setup.complete(third, WcStatus::WR_FLUSH_ERR);
    setup.complete(fourth, WcStatus::WR_FLUSH_ERR);
    setup.endpoint.queues.reap().unwrap();
    assert_eq!(setup.endpoint.queues.in_flight.sends.queue().outstanding(), 0);
    assert_eq!((setup.ended(), setup.freed()), (vec![1, -2, -3, -4], 4));
}

#[test]
fn unsignaled_operation_between_failures_has_failed() {
    let mut setup = Setup::new();
    let first = setup.send(1, true);
    setup.send(2, false);
    let third = setup.send(3, true);
    setup.complete(first, WcStatus::RETRY_EXC_ERR);
    setup.complete(third, WcStatus::WR_FLUSH_ERR);
    setup.endpoint.queues.reap().unwrap();
    assert_eq!(setup.ended(), [-1, -2, -3]);
}

#[test]
fn long_runs_and_the_last_slot_are_signaled() {
    let mut setup = Setup::new();
    let signaled: Vec<_> = (1..=4)
        .map(|tag| {
            setup.send(tag, false);
            setup.signaled()
        })
        .collect();
    assert_eq!(signaled, [false, false, true, true]);
}

proptest! {
    #[test]
    fn runs_of_unsignaled_operations_are_limited(
        steps in prop::collection::vec(prop::option::weighted(0.8, any::<bool>()), 1..60),
    ) {
        let mut setup = Setup::new();
        // The outstanding sends, and whether each is signalled.
        let mut model: Vec<(u64, bool)> = Vec::new();
        for step in steps {
            match step {
                Some(_) if model.len() == 4 => {
                    prop_assert!(setup.endpoint.post(Op::send(setup.buffer(), ..)).is_err());
                }
                Some(signaled) => {
                    let run = model.iter().rev().take_while(|(_, signaled)| !signaled).count();
                    let expected = signaled || run == 2 || model.len() == 3;
                    let wr_id = setup.send(model.len() as u64, signaled);
                    prop_assert_eq!(setup.signaled(), expected);
                    model.push((wr_id, expected));
                }
                None => {
                    let Some(at) = model.iter().position(|(_, signaled)| *signaled) else { continue };
                    setup.complete(model[at].0, WcStatus::SUCCESS);
                    prop_assert_eq!(setup.ended().len(), at + 1);
                    model.drain(..=at);
                }
            }
        }
    }
}

#[test]
fn unsignaled_tail_of_a_failed_connection_ends_by_the_marker() {
    let mut setup = Setup::new();
    let first = setup.send(1, true);
    setup.send(2, false);
    setup.complete(first, WcStatus::RETRY_EXC_ERR);
    assert_eq!(setup.ended(), [-1]);
    let (_, marker) = *setup.plain.log().sent.last().unwrap();
    assert_eq!(marker, MARKER);
    setup.complete(marker, WcStatus::WR_FLUSH_ERR);
    assert_eq!((setup.ended(), setup.endpoint.pending()), (vec![-2], 0));
    // The marker is posted once.
    setup.endpoint.abort();
    assert_eq!(setup.plain.log().sent.len(), 3);
}

#[test]
fn repeated_completions_of_the_marker_are_unknown() {
    let mut setup = Setup::new();
    setup.send(1, false);
    setup.endpoint.abort();
    for _ in 0..3 {
        setup.complete(MARKER, WcStatus::WR_FLUSH_ERR);
    }
    // A send that fails has a completion of its own.
    assert_eq!(setup.endpoint.poll().unwrap().unwrap().tag, 1);
    setup.poll_unknown(MARKER);
    setup.poll_unknown(MARKER);
    assert!(setup.endpoint.poll().is_none());
}

#[test]
fn operations_of_a_forgotten_batch_are_flushed_by_abort() {
    let mut setup = Setup::new();
    let buffer = setup.buffer();
    let mut batch = setup.endpoint.batch();
    batch.post(Op::send(buffer, ..).tag(4)).unwrap();
    std::mem::forget(batch);
    assert_eq!(setup.plain.log().sent.len(), 0);
    setup.endpoint.abort();
    let sent = setup.plain.log().sent.clone();
    let [(_, wr_id)] = sent[..] else { panic!("{sent:?}") };
    setup.complete(wr_id, WcStatus::WR_FLUSH_ERR);
    assert_eq!((setup.ended(), setup.endpoint.pending()), (vec![-4], 0));
    setup.endpoint.abort();
    assert_eq!(setup.plain.log().doorbells, 1);
}

#[test]
fn wait_for_unsignaled_operations_only_is_rejected() {
    let mut setup = Setup::new();
    setup.send(1, false);
    let failed = setup.endpoint.next().wait().unwrap_err();
    assert!(failed.to_string().contains("are unsignalled"), "{failed}");
    let second = setup.send(2, true);
    setup.complete(second, WcStatus::SUCCESS);
    assert_eq!(setup.endpoint.next().wait().unwrap().tag, 1);
}

#[test]
fn batch_is_posted_by_ring_and_taken_back_by_drop() {
    let mut setup = Setup::new();
    let buffers = [setup.buffer(), setup.buffer()];
    let mut batch = setup.endpoint.batch();
    for buffer in buffers {
        batch.post(Op::send(buffer, ..)).unwrap();
    }
    assert_eq!((batch.len(), setup.plain.log().sent.len()), (2, 0));
    batch.ring().unwrap();
    assert_eq!(setup.plain.log().sent.len(), 2);
    // An unsignalled operation, which begins a run, and a signalled one.
    let buffers = [setup.buffer(), setup.buffer()];
    let mut batch = setup.endpoint.batch();
    let [one, two] = buffers.map(|buffer| Op::send(buffer, ..));
    batch.post(one.unsignaled()).unwrap();
    batch.post(two).unwrap();
    assert_eq!(setup.freed.load(Ordering::Relaxed), 0);
    drop(batch);
    assert_eq!((setup.freed(), setup.endpoint.pending()), (2, 2));
    // The queue has room for them again. Nothing of the dropped batch is posted.
    let buffers = [setup.buffer(), setup.buffer()];
    for buffer in buffers {
        setup.endpoint.post(Op::send(buffer, ..)).unwrap();
    }
    let sent = {
        let log = setup.plain.log();
        assert_eq!(log.doorbells, 3);
        log.sent.iter().map(|sent| sent.1).collect::<Vec<_>>()
    };
    assert_eq!(sent.len(), 4);
    sent.iter().for_each(|wr_id| setup.complete(*wr_id, WcStatus::SUCCESS));
    for _ in 0..4 {
        assert!(setup.endpoint.poll().unwrap().is_ok());
    }
    assert_eq!(setup.endpoint.pending(), 0);
}

#[test]
fn batch_with_a_refused_doorbell_is_returned_as_not_executed() {
    let mut setup = Setup::new();
    let first = setup.send(1, true);
    setup.post_refused_batch(false);
    assert!(setup.endpoint.poll().is_none(), "the first operation is outstanding");
    assert_eq!(setup.freed(), 0);
    setup.complete(first, WcStatus::WR_FLUSH_ERR);
    assert_eq!(setup.endpoint.poll().unwrap().unwrap_err().outcome, Outcome::Unknown);
    for tag in [2, 3] {
        let failed = setup.endpoint.poll().unwrap().unwrap_err();
        assert_eq!((failed.tag, failed.outcome, failed.buffer.is_some()), (tag, Outcome::NotExecuted, true));
        assert_eq!(failed.error.errno(), Some(Errno::NOMEM));
    }
    assert_eq!(setup.endpoint.pending(), 0);
}

#[test]
fn completion_of_a_taken_back_request_ends_no_older_one() {
    let mut setup = Setup::new();
    let first = setup.send(1, true);
    setup.post_refused_batch(true);
    let last = *setup.plain.log().signaled.last().unwrap();
    // Obligation 4 of `CompletionQueue` allows it.
    setup.complete(last, WcStatus::GENERAL_ERR);
    setup.poll_unknown(last);
    assert!(setup.endpoint.poll().is_none(), "the first operation is outstanding");
    setup.complete(first, WcStatus::WR_FLUSH_ERR);
    assert_eq!((setup.ended(), setup.freed()), (vec![-1, -2, -3], 3));
}

#[test]
fn unsignaled_operation_before_a_batch_that_was_taken_back_ends_by_the_marker() {
    for signaled in [false, true] {
        let mut setup = Setup::new();
        setup.send(1, false);
        setup.post_refused_batch(signaled);
        assert_eq!(setup.plain.log().sent.last().unwrap().1, MARKER, "signaled: {signaled}");
        setup.complete(MARKER, WcStatus::WR_FLUSH_ERR);
        let outcomes = [Outcome::Unknown, Outcome::NotExecuted, Outcome::NotExecuted];
        for (tag, outcome) in (1..).zip(outcomes) {
            let failed = setup.endpoint.poll().unwrap().unwrap_err();
            assert_eq!((failed.tag, failed.outcome), (tag, outcome), "signaled: {signaled}");
        }
        assert_eq!(setup.endpoint.pending(), 0);
    }
}

#[test]
fn refused_doorbell_of_a_post_ends_the_connection() {
    let mut setup = Setup::new();
    setup.refuse_doorbell();
    let refused = setup.endpoint.post(Op::send(setup.buffer(), ..).tag(1)).unwrap_err();
    assert!(matches!(refused.error, Error::Post(_)), "{refused}");
    assert_eq!(refused.object.into_buffer().len(), 15);
    // Its `wr_id` is not used again.
    let closed = setup.endpoint.post(Op::send(setup.buffer(), ..).tag(2)).unwrap_err();
    assert!(closed.to_string().contains("the connection has failed"), "{closed}");
    assert_eq!(setup.endpoint.pending(), 0);
}

#[test]
fn completion_of_an_unpublished_request_returns_no_buffer() {
    let mut setup = Setup::new();
    let buffer = setup.buffer();
    let mut batch = setup.endpoint.batch();
    batch.post(Op::send(buffer, ..).tag(1)).unwrap();
    mem::forget(batch);
    let pushed = *setup.plain.log().signaled.last().unwrap();
    setup.complete(pushed, WcStatus::SUCCESS);
    setup.poll_unknown(pushed);
    assert_eq!((setup.endpoint.pending_sends(), setup.freed()), (1, 0));
}

/// Forgets a batch with a send of the tag 1. Returns its `wr_id`.
fn forget_batch(setup: &mut Setup) -> u64 {
    let buffer = setup.buffer();
    let mut batch = setup.endpoint.batch();
    batch.post(Op::send(buffer, ..).tag(1)).unwrap();
    mem::forget(batch);
    *setup.plain.log().signaled.last().unwrap()
}

/// Makes the queue reject the next request.
fn reject(setup: &Setup) {
    setup.plain.log().send_rejections.push_back(PushError::InlineTooLong { given: 2, max: 1 });
}

#[test]
fn rejected_post_publishes_a_forgotten_batch() {
    for parts in [false, true] {
        let mut setup = Setup::new();
        let pushed = forget_batch(&mut setup);
        reject(&setup);
        if parts {
            let buffers = [(setup.buffer(), 0..3), (setup.buffer(), 0..4)];
            drop(setup.endpoint.post(Op::send_parts(buffers).tag(2)).unwrap_err());
        } else {
            drop(setup.endpoint.post(Op::send(setup.buffer(), ..).tag(2)).unwrap_err());
        }
        let posted = setup.plain.log().sent.last().map(|(_, wr_id)| *wr_id);
        assert_eq!(posted, Some(pushed), "it was posted");
        setup.complete(pushed, WcStatus::SUCCESS);
        assert_eq!((setup.ended(), setup.endpoint.pending()), (vec![1], 0));
    }
}

#[test]
fn refused_doorbell_of_a_rejected_post_keeps_what_may_be_executed() {
    for parts in [false, true] {
        let mut setup = Setup::new();
        let pushed = forget_batch(&mut setup);
        reject(&setup);
        let refused = IoctlError::new("PostSend", Errno::NOMEM);
        setup.plain.log().refusals.push_back(DoorbellError::Posted(refused));
        if parts {
            let buffers = [(setup.buffer(), 0..3), (setup.buffer(), 0..4)];
            drop(setup.endpoint.post(Op::send_parts(buffers).tag(2)).unwrap_err());
        } else {
            drop(setup.endpoint.post(Op::send(setup.buffer(), ..).tag(2)).unwrap_err());
        }
        let freed = setup.freed();
        assert!(setup.endpoint.poll().is_none(), "it may be executed");
        setup.complete(pushed, WcStatus::WR_FLUSH_ERR);
        assert_eq!((setup.ended(), setup.freed() - freed), (vec![-1], 1));
    }
}

#[test]
fn doorbell_that_takes_back_a_batch_keeps_what_an_earlier_one_posted() {
    let mut setup = Setup::new();
    let pushed = forget_batch(&mut setup);
    reject(&setup);
    drop(setup.endpoint.post(Op::send(setup.buffer(), ..).tag(9)).unwrap_err());
    setup.post_refused_batch(true);
    assert!(setup.endpoint.poll().is_none(), "the first operation is outstanding");
    setup.complete(pushed, WcStatus::WR_FLUSH_ERR);
    assert_eq!(setup.ended(), [-1, -2, -3]);
}

#[test]
fn rejected_probe_publishes_a_forgotten_batch() {
    let mut setup = Setup::new();
    let pushed = forget_batch(&mut setup);
    reject(&setup);
    assert!(matches!(setup.endpoint.probe(), Err(Error::Post(_))));
    let posted = setup.plain.log().sent.last().map(|(_, wr_id)| *wr_id);
    assert_eq!(posted, Some(pushed), "it was posted");
    // A later doorbell takes back its own request only.
    setup.post_refused_batch(true);
    assert!(setup.endpoint.poll().is_none(), "the first operation is outstanding");
    setup.complete(pushed, WcStatus::WR_FLUSH_ERR);
    assert_eq!(setup.ended(), [-1, -2, -3]);
}

/// Forgets a batch with an unsignalled send of the tag 1. Returns its `wr_id`.
fn forget_unsignaled_batch(setup: &mut Setup) -> u64 {
    let (buffer, wr_id) = (setup.buffer(), setup.endpoint.queues.in_flight.sends.queue().posted());
    let mut batch = setup.endpoint.batch();
    batch.post(Op::send(buffer, ..).tag(1).unsignaled()).unwrap();
    mem::forget(batch);
    wr_id
}

#[test]
fn rejected_marker_publishes_a_forgotten_batch() {
    let mut setup = Setup::new();
    let pushed = forget_unsignaled_batch(&mut setup);
    reject(&setup);
    setup.endpoint.abort();
    let posted = setup.plain.log().sent.last().map(|(_, wr_id)| *wr_id);
    assert_eq!(posted, Some(pushed), "it was posted");
    setup.complete(pushed, WcStatus::WR_FLUSH_ERR);
    assert_eq!((setup.ended(), setup.endpoint.pending()), (vec![-1], 0));
}

#[test]
fn marker_that_is_taken_back_ends_a_forgotten_batch() {
    let mut setup = Setup::new();
    forget_unsignaled_batch(&mut setup);
    let refused = DoorbellError::TakenBack(IoctlError::new("post_send", Errno::NOMEM));
    setup.plain.log().refusals.push_back(refused);
    setup.endpoint.abort();
    let failed = setup.endpoint.poll().expect("it never completes").unwrap_err();
    assert_eq!((failed.tag, failed.outcome), (1, Outcome::NotExecuted));
    assert_eq!(setup.endpoint.pending(), 0);
}

#[test]
fn completion_of_an_unsignaled_request_that_was_taken_back_ends_no_older_one() {
    let mut setup = Setup::new();
    let first = setup.send(1, true);
    setup.post_refused_batch(false);
    setup.complete(first + 2, WcStatus::GENERAL_ERR);
    setup.poll_unknown(first + 2);
    assert!(setup.endpoint.poll().is_none(), "the first operation is outstanding");
    setup.complete(first, WcStatus::WR_FLUSH_ERR);
    assert_eq!((setup.ended(), setup.freed()), (vec![-1, -2, -3], 3));
}

#[test]
fn flush_after_a_failed_send_is_not_blamed_on_abort() {
    for polled in [true, false] {
        let mut setup = Setup::new();
        let (received, sent) = (setup.post(), setup.send(1, true));
        setup.complete(sent, WcStatus::REM_ACCESS_ERR);
        if polled {
            assert_eq!(setup.ended(), [-1]);
        }
        setup.endpoint.abort();
        if !polled {
            assert_eq!(setup.ended(), [-1]);
        }
        setup.complete(received, WcStatus::WR_FLUSH_ERR);
        let flushed = setup.endpoint.poll().unwrap().unwrap_err();
        assert_eq!((flushed.cause, flushed.is_recv()), (Some(WcStatus::REM_ACCESS_ERR), true));
        let text = flushed.to_string();
        assert!(text.contains("REM_ACCESS_ERR") && !text.contains("this side"), "{text}");
        let error = Error::from(flushed);
        assert!(matches!(error, Error::Completion { status: WcStatus::REM_ACCESS_ERR, .. }), "{error}");
    }
    let mut setup = Setup::new();
    let received = setup.post();
    setup.endpoint.abort();
    setup.complete(received, WcStatus::WR_FLUSH_ERR);
    let flushed = setup.endpoint.poll().unwrap().unwrap_err();
    assert!(flushed.cause.is_none() && flushed.to_string().contains("this side has ended"), "{flushed}");
}

/// Makes the device end these requests when the QP is moved to ERR.
fn flush_in_err(plain: &Plain, ended: Vec<(u64, WcStatus)>) {
    let device = plain.clone();
    plain.log().modified = Hook(Some(Arc::new(move |state| {
        assert_eq!(state, u64::from(QpState::ERR.0));
        let completions = ended.iter().map(|(wr_id, status)| completion(*wr_id, *status));
        device.log().completions.extend(completions);
    })));
}

#[test]
fn close_whose_limit_has_passed_is_aborted_without_losing_a_buffer() {
    let test = |first: WcStatus| {
        let mut setup = Setup::new();
        let (channel, _events) = CompChannel::with_pipe(setup.endpoint.qp().pd().context().file());
        setup.endpoint.queues.channel = channel;
        let flushed = [setup.send(1, true), setup.send(2, true), setup.post()];
        let statuses = [first, WcStatus::WR_FLUSH_ERR, WcStatus::WR_FLUSH_ERR];
        flush_in_err(&setup.plain, flushed.into_iter().zip(statuses).collect());
        succeed_ioctls();
        let (plain, mut closing) = (setup.plain.clone(), setup.endpoint.close());
        assert!(closing.wait_timeout(Duration::from_nanos(1)).is_none(), "the sends are outstanding");
        assert!(plain.log().states.is_empty(), "the QP is in RTS");
        let ended = closing.abort().wait().unwrap();
        plain.log().modified = Hook(None);
        let [sent, late, received] = <[_; 3]>::try_from(ended).unwrap();
        assert_eq!(sent.is_ok(), first == WcStatus::SUCCESS, "{sent:?}");
        let (late, received) = (late.unwrap_err(), received.unwrap_err());
        // A request that failed has flushed those behind it.
        assert_eq!(late.ended_here, first == WcStatus::SUCCESS, "{late:?}");
        assert!(received.is_recv() && received.is_flushed(), "{received:?}");
        assert!([late, received].iter().all(|failed| failed.buffer.is_some()));
    };
    for first in [WcStatus::SUCCESS, WcStatus::REM_ACCESS_ERR] {
        std::thread::spawn(move || test(first)).join().unwrap();
    }
}

#[test]
fn close_whose_limit_has_passed_goes_on_to_wait() {
    let test = || {
        let mut setup = Setup::new();
        let (channel, _events) = CompChannel::with_pipe(setup.endpoint.qp().pd().context().file());
        setup.endpoint.queues.channel = channel;
        let (received, sent) = (setup.post(), setup.send(1, true));
        flush_in_err(&setup.plain, vec![(received, WcStatus::WR_FLUSH_ERR)]);
        succeed_ioctls();
        let (plain, freed, mut closing) = (setup.plain.clone(), setup.freed, setup.endpoint.close());
        assert!(closing.wait_timeout(Duration::from_nanos(1)).is_none(), "the send is outstanding");
        plain.log().completions.push_back(completion(sent, WcStatus::SUCCESS));
        let ended = closing.wait().unwrap();
        plain.log().modified = Hook(None);
        assert!(matches!(&ended[..], [Ok(sent), Err(received)] if sent.tag == 1 && received.is_recv()));
        assert_eq!(freed.load(Ordering::Relaxed), 0);
    };
    std::thread::spawn(test).join().unwrap();
}

#[test]
fn close_is_awaited() {
    use std::task::{Context, Poll, Waker};

    let test = || {
        let mut context = Context::from_waker(Waker::noop());
        let mut setup = Setup::new();
        let (received, sent) = (setup.post(), setup.send(1, true));
        flush_in_err(&setup.plain, vec![(received, WcStatus::WR_FLUSH_ERR)]);
        succeed_ioctls();
        setup.endpoint.attach(Never::Readable).unwrap();
        let (plain, mut closing) = (setup.plain.clone(), setup.endpoint.close());
        assert!(std::pin::Pin::new(&mut closing).poll(&mut context).is_pending());
        plain.log().completions.push_back(completion(sent, WcStatus::SUCCESS));
        let polled = std::pin::Pin::new(&mut closing).poll(&mut context);
        plain.log().modified = Hook(None);
        let Poll::Ready(Ok(ended)) = polled else { panic!("{polled:?}") };
        assert!(matches!(&ended[..], [Ok(sent), Err(received)] if sent.tag == 1 && received.is_recv()));
    };
    std::thread::spawn(test).join().unwrap();
}

#[test]
fn dropped_close_frees_the_buffers_as_the_endpoint_does() {
    let test = || {
        let mut setup = Setup::new();
        setup.post();
        setup.send(1, true);
        succeed_ioctls();
        drop(setup.endpoint.close());
        assert_eq!(setup.freed.load(Ordering::Relaxed), 2);
    };
    std::thread::spawn(test).join().unwrap();
}

#[test]
fn close_waits_for_unsignaled_sends() {
    let mut setup = Setup::new();
    setup.send(1, false);
    setup.send(2, false);
    let plain = setup.plain.clone();
    // The device executes the marker as soon as it is pushed.
    setup.plain.log().pushed = Hook(Some(Arc::new(move |wr_id| {
        if wr_id == MARKER {
            plain.log().completions.push_back(completion(wr_id, WcStatus::SUCCESS));
        }
    })));
    let drained = setup.endpoint.queues.poll_drain(Caller::Thread(None));
    assert!(matches!(drained, std::task::Poll::Ready(Ok(true))));
    let states = setup.plain.log().states.clone();
    assert!(states.is_empty(), "the QP is in RTS");
    setup.plain.log().pushed = Hook(None);
    setup.endpoint.abort();
    assert_eq!((setup.ended(), setup.plain.log().sent.len()), (vec![1, 2], 3));
}

#[test]
fn completion_of_a_buffer_within_an_operation_is_unknown() {
    for earlier in [false, true] {
        let mut setup = Setup::new();
        let before = earlier.then(|| setup.send(1, true));
        setup.endpoint.post(Op::send_parts([(setup.buffer(), 0..3), (setup.buffer(), 0..4)]).tag(2)).unwrap();
        let sent = setup.plain.log().sent.last().unwrap().1;
        if let Some(before) = before {
            setup.complete(before, WcStatus::SUCCESS);
            assert_eq!(setup.ended(), [1]);
        }
        let freed = setup.freed();
        setup.complete(sent - 1, WcStatus::SUCCESS);
        setup.poll_unknown(sent - 1);
        assert_eq!((setup.endpoint.pending(), setup.freed()), (2, freed));
        setup.complete(sent, WcStatus::WR_FLUSH_ERR);
        assert_eq!(setup.ended(), [-2, -2]);
    }
    let mut setup = Setup::new();
    setup.endpoint.post(Op::recv_parts([(setup.buffer(), 0..4), (setup.buffer(), 0..15)]).tag(7)).unwrap();
    let received = *setup.plain.log().received.last().unwrap();
    setup.complete(received - 1, WcStatus::SUCCESS);
    setup.poll_unknown(received - 1);
    assert_eq!((setup.endpoint.pending(), setup.freed()), (2, 0));
    setup.complete(received, WcStatus::WR_FLUSH_ERR);
    assert_eq!(setup.ended(), [-7, -7]);
}

#[test]
fn scope_ends_after_a_failed_send() {
    let mut setup = Setup::new();
    let region = setup.buffer();
    let plain = setup.plain.clone();
    let result = setup.endpoint.scope(|scope| {
        scope.post(Op::send(&region, ..).tag(1)).unwrap();
        let wr_id = plain.log().sent.last().unwrap().1;
        plain.log().completions.push_back(completion(wr_id, WcStatus::RETRY_EXC_ERR));
    });
    result.unwrap();
    assert_eq!(setup.ended(), [-1]);
}

#[test]
fn panic_in_a_scope_reaches_its_caller_though_the_device_flushes_nothing() {
    let test = || {
        let mut setup = Setup::new();
        succeed_ioctls();
        let region = setup.buffer();
        let scope = std::panic::AssertUnwindSafe(|| {
            setup.endpoint.scope(|scope| {
                scope.post(Op::send(&region, ..).tag(1)).unwrap();
                panic!("in the scope");
            })
        });
        let panic = std::panic::catch_unwind(scope).unwrap_err();
        assert_eq!(panic.downcast_ref(), Some(&"in the scope"));
    };
    std::thread::spawn(test).join().unwrap();
}

#[test]
fn scope_of_a_refused_operation_does_not_wait_for_older_ones() {
    let mut setup = Setup::new();
    setup.send(7, false);
    reject(&setup);
    let region = setup.buffer();
    let refused = setup.endpoint.scope(|scope| scope.post(Op::send(&region, ..).tag(1)).is_err());
    assert!(refused.unwrap(), "the queue rejects the request");
    assert_eq!(setup.endpoint.pending_sends(), 1);
}

#[test]
fn scope_of_a_refused_operation_waits_for_the_others() {
    let test = || {
        let mut setup = Setup::new();
        succeed_ioctls();
        let region = setup.buffer();
        let plain = setup.plain.clone();
        let ended = setup.endpoint.scope(|scope| {
            scope.set_timeout(Duration::ZERO);
            scope.post(Op::send(&region, ..).tag(1)).unwrap();
            let rejection = PushError::InlineTooLong { given: 2, max: 1 };
            plain.log().send_rejections.push_back(rejection);
            assert!(scope.post(Op::send(&region, ..).tag(2)).is_err());
        });
        ended.unwrap_err();
    };
    std::thread::spawn(test).join().unwrap();
}

#[test]
fn receive_has_the_opcode_of_a_receive_whatever_the_device_says() {
    for (opcode, expected) in [
        (WcOpcode::SEND, WcOpcode::RECV),
        (WcOpcode::RDMA_READ, WcOpcode::RECV),
        (WcOpcode::RECV_RDMA_WITH_IMM, WcOpcode::RECV_RDMA_WITH_IMM),
    ] {
        let mut setup = Setup::new();
        let received = setup.post();
        setup.complete_as(received, WcStatus::SUCCESS, opcode);
        let done = setup.endpoint.poll().unwrap().unwrap();
        assert_eq!((done.opcode, done.is_recv()), (expected, true));
    }
}

#[test]
fn receive_that_completes_out_of_order_is_unknown() {
    let mut setup = Setup::new();
    setup.post();
    let second = setup.post();
    setup.complete(second, WcStatus::SUCCESS);
    setup.poll_unknown(second);
    assert_eq!((setup.endpoint.pending(), setup.freed()), (2, 0));
}

#[test]
fn close_of_an_endpoint_that_cannot_be_destroyed_leaks_its_buffers() {
    let mut setup = Setup::new();
    let posted = setup.post();
    setup.complete(posted, WcStatus::WR_FLUSH_ERR);
    setup.send(1, true);
    let Setup { endpoint, freed, .. } = setup;
    endpoint.close().abort().wait().unwrap_err();
    assert_eq!(freed.load(Ordering::Relaxed), 0);
}

#[test]
fn posting_and_polling_do_not_allocate() {
    let mut setup = Setup::new();
    let mut buffer = Some(setup.buffer());
    let mut receive = Some(setup.buffer());
    let run = |setup: &mut Setup, buffer: &mut Option<_>, receive: &mut Option<_>| {
        setup.endpoint.post(Op::recv(receive.take().unwrap())).unwrap();
        setup.endpoint.post(Op::send(buffer.take().unwrap(), ..)).unwrap();
        let (received, sent) = {
            let log = setup.plain.log();
            (*log.received.last().unwrap(), log.sent.last().unwrap().1)
        };
        setup.complete(received, WcStatus::SUCCESS);
        setup.complete(sent, WcStatus::SUCCESS);
        *receive = setup.endpoint.poll().unwrap().unwrap().buffer;
        *buffer = setup.endpoint.poll().unwrap().unwrap().buffer;
    };
    // The log allocates now and then. It has room for 100 entries.
    setup.plain.reserve(100);
    run(&mut setup, &mut buffer, &mut receive);
    let counted = bareverbs_test_support::allocations::allocations(|| {
        for _ in 0..20 {
            run(&mut setup, &mut buffer, &mut receive);
        }
    });
    assert_eq!(counted, 0);
}

#[test]
fn reaped_operations_are_returned_before_later_ones_of_either_direction() {
    let mut setup = Setup::new();
    let received = setup.post();
    let first = setup.send(1, true);
    setup.complete(received, WcStatus::SUCCESS);
    setup.endpoint.queues.reap().unwrap();
    setup.complete(first, WcStatus::SUCCESS);
    assert!(setup.endpoint.poll().unwrap().unwrap().is_recv());
    assert_eq!(setup.endpoint.poll().unwrap().unwrap().tag, 1);
    // Later operations take the fast path again.
    let second = setup.send(2, true);
    setup.complete(second, WcStatus::SUCCESS);
    assert_eq!((setup.ended(), setup.endpoint.pending()), (vec![2], 0));
}

#[test]
fn completion_with_the_opcode_of_the_other_direction_ends_its_operation() {
    let mut setup = Setup::new();
    let (received, sent) = (setup.post(), setup.send(1, true));
    setup.complete_as(sent, WcStatus::SUCCESS, WcOpcode::RECV);
    assert_eq!(setup.ended(), [1]);
    setup.complete_as(received, WcStatus::SUCCESS, WcOpcode::SEND);
    assert!(setup.endpoint.poll().unwrap().unwrap().buffer.is_some());
    assert_eq!(setup.endpoint.pending(), 0);
}

#[test]
fn completions_that_the_fast_path_declines_are_returned_in_order() {
    let mut setup = Setup::new();
    setup.plain.log().declines = true;
    assert!(setup.endpoint.poll().is_none());
    let received = setup.post();
    let (first, second) = (setup.send(1, true), setup.send(2, true));
    setup.complete(first, WcStatus::SUCCESS);
    setup.complete(received, WcStatus::SUCCESS);
    setup.complete(second, WcStatus::REM_OP_ERR);
    assert_eq!(setup.endpoint.poll().unwrap().unwrap().tag, 1);
    setup.endpoint.queues.reap().unwrap();
    assert_eq!(setup.endpoint.poll().unwrap().unwrap_err().tag, 2);
    assert!(setup.endpoint.poll().unwrap().unwrap().is_recv());
    assert!(setup.endpoint.poll().is_none());
}

const REMOTE: Remote = Remote { addr: 0, rkey: 1 };

/// The tag, the length and the success of each operation that has ended.
fn results(setup: &mut Setup) -> Vec<(u64, u32, bool)> {
    let result = |result| match result {
        Ok(Done { tag, len, buffer: Some(_), .. }) => (tag, len, true),
        Err(Failed { tag, buffer: Some(_), .. }) => (tag, 0, false),
        other => panic!("{other:?}"),
    };
    std::iter::from_fn(|| setup.endpoint.poll().map(result)).collect()
}

#[test]
fn each_buffer_of_a_send_is_returned_with_its_bytes() {
    let mut setup = Setup::new();
    setup.send(1, false);
    setup.endpoint.post(Op::send_parts([(setup.buffer(), 0..3), (setup.buffer(), 2..15)]).tag(2)).unwrap();
    let sent = setup.plain.log().sent.last().unwrap().1;
    let last = setup.send(3, true);
    assert_eq!((setup.endpoint.pending_sends(), results(&mut setup)), (4, vec![]));
    setup.complete(sent, WcStatus::SUCCESS);
    assert_eq!(results(&mut setup), [(1, 15, true), (2, 3, true), (2, 13, true)]);
    setup.complete(last, WcStatus::SUCCESS);
    assert_eq!(results(&mut setup), [(3, 15, true)]);
}

#[test]
fn buffers_of_a_failed_send_fail_together() {
    let mut setup = Setup::new();
    setup.endpoint.post(Op::send_parts([(setup.buffer(), 0..3), (setup.buffer(), 0..4)]).tag(2)).unwrap();
    let failed = setup.plain.log().sent.last().unwrap().1;
    setup
        .endpoint
        .post(Op::write_parts([(setup.buffer(), 0..3), (setup.buffer(), 0..4)], REMOTE).tag(3))
        .unwrap();
    let flushed = setup.plain.log().sent.last().unwrap().1;
    setup.complete(failed, WcStatus::REM_OP_ERR);
    setup.complete(flushed, WcStatus::WR_FLUSH_ERR);
    let expected = [(2, 0, false), (2, 0, false), (3, 0, false), (3, 0, false)];
    assert_eq!(results(&mut setup), expected);
}

#[test]
fn message_fills_the_buffers_of_a_receive_in_order() {
    let mut setup = Setup::new();
    for (len, expected) in [(12, [(7, 4, true), (7, 8, true)]), (3, [(7, 3, true), (7, 0, true)])] {
        setup
            .endpoint
            .post(Op::recv_parts([(setup.buffer(), 0..4), (setup.buffer(), 0..15)]).tag(7))
            .unwrap();
        let received = *setup.plain.log().received.last().unwrap();
        let arrived = WorkCompletion { byte_len: len, ..completion(received, WcStatus::SUCCESS) };
        setup.plain.log().completions.push_back(arrived);
        assert_eq!(results(&mut setup), expected);
    }
    let next = setup.post();
    setup.complete(next, WcStatus::SUCCESS);
    assert_eq!(results(&mut setup), [(0, 1, true)]);
}

#[test]
fn buffers_of_an_aborted_receive_fail_together() {
    let mut setup = Setup::new();
    setup.endpoint.post(Op::recv_parts([(setup.buffer(), 0..4), (setup.buffer(), 0..15)]).tag(7)).unwrap();
    let received = *setup.plain.log().received.last().unwrap();
    setup.complete(received, WcStatus::WR_FLUSH_ERR);
    assert_eq!(results(&mut setup), [(7, 0, false), (7, 0, false)]);
}

#[test]
fn refused_operation_of_several_buffers_returns_them() {
    let mut setup = Setup::new();
    let parts = || [(setup.buffer(), 0..3), (setup.buffer(), 0..17)];
    let (sends, recvs) = (parts(), parts());
    let refused = setup.endpoint.post(Op::send_parts(sends).tag(5)).unwrap_err();
    assert!(refused.to_string().contains("bytes 0..17 exceed"), "{refused}");
    assert_eq!(refused.object.tag, 5);
    assert_eq!(refused.object.into_buffer().into_inner()[1].1, 0..17);
    drop(setup.endpoint.post(Op::recv_parts(recvs).tag(5)).unwrap_err());
    // The doorbell is refused, which takes the request back.
    setup.refuse_doorbell();
    let parts = [(setup.buffer(), 0..3), (setup.buffer(), 0..4), (setup.buffer(), 1..2)];
    let refused = setup.endpoint.post(Op::send_parts(parts).tag(6)).unwrap_err();
    assert!(matches!(refused.error, Error::Post(_)), "{refused}");
    let parts = refused.object.into_buffer().into_inner();
    assert_eq!(parts.each_ref().map(|(_, range)| range.clone()), [0..3, 0..4, 1..2]);
    assert_eq!((setup.endpoint.pending(), setup.freed()), (0, 4));
    let closed = setup.endpoint.post(Op::recv_parts(parts).tag(6)).unwrap_err();
    assert!(matches!(closed.error, Error::Closed { .. }), "{closed}");
    drop(closed);
    assert_eq!(setup.freed(), 7);
}

#[test]
fn ranges_of_several_buffers_have_any_type() {
    fn sent<R: RangeBounds<usize> + Clone>(range: R) -> Vec<(u64, u32, bool)> {
        let mut setup = Setup::new();
        let parts = [(); 2].map(|()| (setup.buffer(), range.clone()));
        setup.endpoint.post(Op::send_parts(parts).tag(1)).unwrap();
        let sent = setup.plain.log().sent.last().unwrap().1;
        setup.complete(sent, WcStatus::SUCCESS);
        results(&mut setup)
    }
    for (results, len) in [(sent(..), 15), (sent(..=2), 3), (sent(5..), 10), (sent(..4), 4), (sent(4..=6), 3)]
    {
        assert_eq!(results, [(1, len, true); 2]);
    }
    let setup = &mut Setup::new();
    let parts = [(setup.buffer(), ..=15)];
    let refused = setup.endpoint.post(Op::recv_parts(parts).tag(1)).unwrap_err();
    assert_eq!(refused.object.into_buffer().into_inner()[0].1, ..=15, "the range as it was given");
}

#[test]
fn operations_of_several_buffers_allocate_nothing() {
    let mut setup = Setup::new();
    setup.plain.reserve(100);
    let mut parts = Some([(setup.buffer(), 0..3), (setup.buffer(), 0..4)]);
    let mut run = || {
        setup.endpoint.post(Op::send_parts(parts.take().unwrap()).tag(1)).unwrap();
        let sent = setup.plain.log().sent.last().unwrap().1;
        setup.complete(sent, WcStatus::SUCCESS);
        let mut next = || setup.endpoint.poll().unwrap().unwrap().into_buffer();
        parts = Some([(next(), 0..3), (next(), 0..4)]);
        setup.endpoint.post(Op::recv_parts(parts.take().unwrap()).tag(1)).unwrap();
        let received = *setup.plain.log().received.last().unwrap();
        setup.complete(received, WcStatus::SUCCESS);
        let mut next = || setup.endpoint.poll().unwrap().unwrap().into_buffer();
        parts = Some([(next(), 0..3), (next(), 0..4)]);
    };
    run();
    let counted = bareverbs_test_support::allocations::allocations(|| (0..20).for_each(|_| run()));
    assert_eq!(counted, 0);
}

#[test]
fn closed_endpoint_rejects_posts_after_its_operations_ended() {
    let mut setup = Setup::new();
    let sent = setup.send(1, true);
    setup.endpoint.abort();
    setup.complete(sent, WcStatus::SUCCESS);
    assert_eq!(setup.ended(), [1]);
    for _ in 0..8 {
        let refused = setup.endpoint.post(Op::send(setup.buffer(), ..)).unwrap_err();
        assert!(refused.to_string().contains("the connection has failed"), "{refused}");
    }
}

#[test]
fn forgotten_values_do_not_end_the_wait_of_a_scope() {
    let mut setup = Setup::new();
    let (region, mut answer) = (setup.buffer(), setup.buffer());
    let plain = setup.plain.clone();
    setup
        .endpoint
        .scope(|scope| {
            scope.post(Op::send(&region, ..).tag(1)).unwrap();
            scope.post(Op::send(&region, ..).tag(2)).unwrap();
            mem::forget(scope.post(Op::recv(&mut answer).tag(3)));
            let posted = plain.log().sent.iter().map(|(_, wr_id)| *wr_id).collect::<Vec<_>>();
            plain.log().completions.push_back(completion(posted[0], WcStatus::SUCCESS));
            mem::forget(scope.poll());
            let received = plain.log().received.clone();
            let ends = posted[1..].iter().chain(&received);
            plain.log().completions.extend(ends.map(|wr_id| completion(*wr_id, WcStatus::SUCCESS)));
            // The reference to the scope.
            mem::forget(Box::new(scope));
        })
        .unwrap();
    // The scope has reaped both operations that were not polled.
    assert_eq!((setup.endpoint.queues.in_flight.in_use(), setup.plain.log().completions.len()), (0, 0));
    assert_eq!(setup.ended(), [2, 3]);
}

/// Posts a send of a borrowed region in a scope, and lets the scope expire.
fn expire_in_scope(setup: &mut Setup) -> Result<()> {
    let region = setup.buffer();
    setup.endpoint.scope(|scope| {
        scope.set_timeout(Duration::ZERO);
        scope.post(Op::send(&region, ..).tag(1)).unwrap();
    })
}

#[test]
fn scope_destroys_the_qp_if_its_operations_are_not_flushed() {
    let test = || {
        let mut setup = Setup::new();
        let freed = Arc::clone(&setup.freed);
        succeed_ioctls();
        let owned = setup.send(7, true);
        // The channel of the setup fails to wait.
        expire_in_scope(&mut setup).unwrap_err();
        assert!(setup.endpoint.qp().is_destroyed() && setup.freed() == 1, "the region of the scope");
        // A completion that was in the CQ.
        setup.complete(owned, WcStatus::SUCCESS);
        assert_eq!(setup.ended(), [7, -1]);
        let refused = setup.endpoint.post(Op::recv(setup.buffer())).unwrap_err();
        assert!(refused.to_string().contains("the connection has failed"), "{refused}");
        drop((setup, refused));
        assert_eq!(freed.load(Ordering::Relaxed), 3);
    };
    std::thread::spawn(test).join().unwrap();
}

#[test]
fn scope_aborts_the_process_if_the_qp_cannot_be_destroyed() {
    use std::os::unix::process::ExitStatusExt;

    const CHILD: &str = "BAREVERBS_TEST_SCOPE_ABORTS";
    if std::env::var_os(CHILD).is_some() {
        let _ = expire_in_scope(&mut Setup::new());
        // Not reached: the parent expects a signal.
        std::process::exit(0);
    }
    let name = std::thread::current().name().expect("the name of the test").to_owned();
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    let output = child.args(["--exact", &name, "--nocapture"]).env(CHILD, "1").output().unwrap();
    assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{output:?}");
}

#[test]
fn await_of_a_complete_operation_neither_arms_nor_waits() {
    use std::task::{Context, Poll, Waker};

    let mut setup = Setup::new();
    let first = setup.send(1, true);
    let second = setup.send(2, true);
    setup.complete(first, WcStatus::SUCCESS);
    setup.complete(second, WcStatus::WR_FLUSH_ERR);
    let Setup { plain, mut endpoint, .. } = setup;
    endpoint.attach(Never::Waits).unwrap();
    let mut context = Context::from_waker(Waker::noop());
    for expected in [1, -2] {
        let polled = std::pin::pin!(endpoint.next()).poll(&mut context);
        let Poll::Ready(ended) = polled else { panic!("the first poll returns it") };
        let tag = ended.map_or_else(|failed| -(failed.tag as i64), |done| done.tag as i64);
        assert_eq!((tag, plain.log().arms), (expected, 0));
    }
}

#[test]
fn idle_connection_probes_its_peer_and_fails_with_the_probe() {
    const SECOND: Duration = Duration::from_secs(1);
    let mut setup = Setup::new();
    let recv = setup.post();
    let start = Instant::now();
    setup.endpoint.queues.keepalive.start(Some(SECOND));
    assert_eq!(setup.endpoint.queues.keep_alive(start), Some(start + SECOND));
    assert!(setup.plain.log().sent.is_empty());
    assert_eq!(setup.endpoint.queues.keep_alive(start + SECOND), Some(start + 2 * SECOND));
    setup.endpoint.queues.keep_alive(start + 2 * SECOND);
    let sent: Vec<_> = setup.plain.log().sent.iter().map(|(_, wr_id)| *wr_id).collect();
    assert_eq!(sent, [PROBE], "one at a time");
    assert_eq!(setup.endpoint.pending(), 1, "it is no operation of the caller");
    setup.complete(PROBE, WcStatus::RETRY_EXC_ERR);
    setup.complete(recv, WcStatus::WR_FLUSH_ERR);
    let failed = setup.endpoint.poll().unwrap().unwrap_err();
    assert_eq!((failed.cause, failed.is_recv()), (Some(WcStatus::RETRY_EXC_ERR), true));
    assert!(failed.is_operation() && failed.is_peer_lost());
    setup.endpoint.queues.keep_alive(start + 9 * SECOND);
    assert_eq!(setup.plain.log().sent.len(), 1, "a failed connection is not probed");
    assert!(matches!(setup.endpoint.probe(), Err(Error::Closed { .. })));
}

#[test]
fn peer_of_iwarp_is_dead_after_three_intervals_without_an_answer_to_a_read() {
    const SECOND: Duration = Duration::from_secs(1);
    for has_send in [false, true] {
        let mut setup = Setup::of(Plain::iwarp());
        setup.post();
        if has_send {
            setup.send(1, true);
        }
        let start = Instant::now();
        setup.endpoint.queues.keepalive.start(Some(SECOND));
        let look =
            |setup: &mut Setup, seconds: u32| setup.endpoint.queues.keep_alive(start + seconds * SECOND);
        look(&mut setup, 0);
        look(&mut setup, 1);
        assert_eq!(setup.plain.log().reads, [PROBE]);
        look(&mut setup, 2);
        setup.complete(PROBE, WcStatus::SUCCESS);
        assert!(setup.endpoint.poll().is_none());
        for seconds in 3..6 {
            look(&mut setup, seconds);
        }
        assert_eq!(setup.plain.log().reads, [PROBE; 2], "one at a time");
        assert_eq!(setup.endpoint.queues.cause, None, "two intervals");
        look(&mut setup, 6);
        // The data of a send may be slow.
        let cause = (!has_send).then_some(WcStatus::RETRY_EXC_ERR);
        assert_eq!(setup.endpoint.queues.cause, cause);
    }
}

#[test]
fn close_on_iwarp_waits_for_the_answer_to_a_read_behind_the_sends() {
    let test = |answer: WcStatus| {
        let mut setup = Setup::of(Plain::iwarp());
        let (channel, _events) = CompChannel::with_pipe(setup.endpoint.qp().pd().context().file());
        setup.endpoint.queues.channel = channel;
        let sent = setup.send(1, true);
        setup.complete(sent, WcStatus::SUCCESS);
        flush_in_err(&setup.plain, vec![]);
        succeed_ioctls();
        let (plain, mut closing) = (setup.plain.clone(), setup.endpoint.close());
        assert!(closing.wait_timeout(Duration::from_nanos(1)).is_none(), "the read is outstanding");
        assert_eq!(plain.log().reads, [PROBE]);
        plain.log().completions.push_back(completion(PROBE, answer));
        let ended = closing.wait().unwrap();
        plain.log().modified = Hook(None);
        assert!(matches!(&ended[..], [Ok(sent)] if sent.tag == 1), "{ended:?}");
        assert_eq!(plain.log().reads.len(), 1);
    };
    for answer in [WcStatus::SUCCESS, WcStatus::WR_FLUSH_ERR] {
        std::thread::spawn(move || test(answer)).join().unwrap();
    }
}

#[test]
fn close_on_iwarp_ends_without_reads() {
    let test = || {
        let setup = Setup::of(Plain::iwarp());
        setup.plain.log().send_rejections.push_back(PushError::MaxRdAtomicZero { operation: "a read" });
        flush_in_err(&setup.plain, vec![]);
        succeed_ioctls();
        let plain = setup.plain.clone();
        assert!(setup.endpoint.close().wait().unwrap().is_empty());
        plain.log().modified = Hook(None);
    };
    std::thread::spawn(test).join().unwrap();
}

#[test]
fn endpoint_of_iwarp_is_connected_by_the_connection_manager_only() {
    let mut setup = Setup::of(Plain::iwarp());
    setup.endpoint.queues.qp.assume_state(QpState::INIT);
    let peer = Address::new(Gid::default(), 7);
    let refused = setup.endpoint.connect(&peer).unwrap_err();
    let feature = crate::error::Feature::ConnectByAddress;
    assert!(matches!(refused, Error::Unsupported { feature: of, .. } if of == feature), "{refused}");
    assert!(refused.to_string().contains("use the crate bareverbs-rdmacm"), "{refused}");
    setup.endpoint.connect(&peer.of_cm_peer()).unwrap();
    assert_eq!(setup.endpoint.qp().state(), QpState::RTS);
    assert!(setup.plain.log().states.is_empty(), "no command is issued");
    // By the connection manager, without an address.
    let mut setup = Setup::of(Plain::iwarp());
    setup.endpoint.queues.qp.assume_state(QpState::INIT);
    setup.endpoint.queues.policy = Policy::Default;
    setup.endpoint.set_cm_state(QpState::RTS).unwrap();
    let now = Instant::now();
    assert_eq!(setup.endpoint.queues.keep_alive(now), Some(now + INTERVAL));
    setup.endpoint.set_cm_state(QpState::ERR).unwrap();
    let refused = setup.endpoint.set_cm_state(QpState::RTS).unwrap_err();
    assert!(matches!(refused, Error::Closed { .. }), "{refused}");
}

#[test]
fn peer_of_a_connection_manager_is_probed_by_default() {
    for (chosen, interval) in [(Policy::Default, Some(INTERVAL)), (Policy::Never, None)] {
        let mut setup = Setup::new();
        let Queues { qp, policy, .. } = &mut setup.endpoint.queues;
        qp.assume_state(QpState::RTR);
        *policy = chosen;
        let attr = QpAttr { qp_state: QpState::RTS, ..QpAttr::default() };
        setup.endpoint.modify_qp(&attr, QpAttrMask::STATE).unwrap();
        let now = Instant::now();
        assert_eq!(setup.endpoint.queues.keep_alive(now), interval.map(|interval| now + interval));
    }
}

#[test]
fn endpoint_without_room_for_a_probe_is_not_probed() {
    const SECOND: Duration = Duration::from_secs(1);
    let mut setup = Setup::new();
    setup.post();
    let Queues { probes, policy, .. } = &mut setup.endpoint.queues;
    (*probes, *policy) = (false, Policy::Every(SECOND));
    setup.endpoint.queues.start_keepalive(true);
    assert_eq!(setup.endpoint.queues.keep_alive(Instant::now()), None);
    let refused = setup.endpoint.probe().unwrap_err();
    assert!(matches!(refused, Error::Invalid { verb: "Endpoint::probe", .. }), "{refused}");
    assert!(setup.plain.log().sent.is_empty());
    assert_eq!(setup.endpoint.qp().state(), QpState::RTS);
}

#[test]
fn failed_probe_without_operations_is_reported_by_the_next_probe() {
    let mut setup = Setup::new();
    setup.endpoint.probe().unwrap();
    setup.complete(PROBE, WcStatus::RETRY_EXC_ERR);
    assert!(setup.endpoint.poll().is_none());
    assert!(matches!(setup.endpoint.next().wait().unwrap_err().error, Error::Invalid { .. }));
    assert!(matches!(setup.endpoint.probe(), Err(Error::Closed { .. })));
}

#[test]
fn completed_probe_returns_no_operation_and_permits_the_next_one() {
    let mut setup = Setup::new();
    // The probe takes no room from the sends.
    let sends = [1, 2, 3, 4].map(|tag| setup.send(tag, true));
    setup.endpoint.probe().unwrap();
    setup.complete(PROBE, WcStatus::SUCCESS);
    for wr_id in sends {
        setup.complete(wr_id, WcStatus::SUCCESS);
    }
    assert_eq!(setup.ended(), [1, 2, 3, 4]);
    setup.endpoint.probe().unwrap();
    assert_eq!(setup.plain.log().sent.len(), 6);
    setup.complete(PROBE, WcStatus::SUCCESS);
    setup.complete(PROBE, WcStatus::SUCCESS);
    let failed = setup.endpoint.poll().unwrap().unwrap_err();
    assert!(matches!(failed.error, Error::UnknownCompletion { wr_id: PROBE }), "a repeated one: {failed}");
}

#[test]
fn probe_whose_doorbell_is_refused_ends_the_connection() {
    let mut setup = Setup::new();
    setup.post();
    let refused = DoorbellError::TakenBack(IoctlError::new("post_send", Errno::NOMEM));
    setup.plain.log().refusals.push_back(refused);
    assert!(matches!(setup.endpoint.probe(), Err(Error::Post(_))));
    assert_eq!(setup.endpoint.qp().state(), QpState::ERR);
    setup.complete(PROBE, WcStatus::WR_FLUSH_ERR);
    let failed = setup.endpoint.poll().unwrap().unwrap_err();
    assert!(matches!(failed.error, Error::UnknownCompletion { .. }), "it was not posted: {failed}");
}

#[test]
fn endpoint_arms_its_cq_again_after_its_event_was_read() {
    let mut setup = Setup::new();
    let (channel, events) = CompChannel::with_pipe(setup.endpoint.qp().pd().context().file());
    setup.endpoint.queues.channel = channel;
    setup.post();
    rustix::io::write(&events, &[0; 8]).unwrap();
    // The event is that of a completion which another poll has taken.
    assert!(setup.endpoint.next().wait_timeout(Duration::from_millis(20)).is_none());
    assert_eq!(setup.plain.log().arms, 2);
}

/// A setup with two receives, a signalled send with tag 3 and an unsignalled one with tag 4. The first
/// receive is complete. The device is removed.
fn removed_setup(kernel_destroys: bool) -> Setup {
    let mut setup = Setup::new();
    let (channel, other) = CompChannel::removable(setup.endpoint.qp().pd().context().file());
    setup.endpoint.queues.channel = channel;
    let received = setup.post();
    setup.post();
    setup.send(3, true);
    setup.send(4, false);
    if kernel_destroys {
        succeed_ioctls();
    }
    let plain = setup.plain.clone();
    // A completion that arrives before the removal, and that no poll has found.
    setup.plain.log().armed = Hook(Some(Arc::new(move |_| {
        plain.log().completions.push_back(completion(received, WcStatus::SUCCESS))
    })));
    drop(other);
    setup
}

#[test]
fn removal_of_the_device_ends_the_operations_with_their_buffers() {
    let test = |end: fn(&mut Setup)| {
        let mut setup = removed_setup(true);
        let freed = Arc::clone(&setup.freed);
        end(&mut setup);
        assert_eq!((setup.endpoint.pending(), setup.plain.log().states.len()), (0, 0));
        assert!(
            setup.endpoint.next().wait().unwrap_err().to_string().contains("no operation is outstanding")
        );
        assert!(matches!(setup.endpoint.arm(), Err(Error::DeviceRemoved { verb: "Endpoint::arm" })));
        let refused = setup.endpoint.post(Op::recv(setup.buffer())).unwrap_err();
        assert!(matches!(refused.error, Error::Closed { .. }), "{refused}");
        setup.plain.log().armed = Hook(None);
        drop((setup, refused));
        assert_eq!(freed.load(Ordering::Relaxed), 5);
    };
    let ends: [fn(&mut Setup); 3] = [
        |setup| {
            assert!(setup.endpoint.next().wait().unwrap().is_recv(), "it completed before the removal");
            let failed =
                [(); 3].map(|()| setup.endpoint.next().wait_timeout(Duration::ZERO).transpose().unwrap_err());
            for (failed, (verb, tag)) in failed.into_iter().zip([
                ("Endpoint::post(Op::send)", 3),
                ("Endpoint::post(Op::send)", 4),
                ("Endpoint::post(Op::recv)", 0),
            ]) {
                assert!(matches!(failed.error, Error::DeviceRemoved { verb: of } if of == verb), "{failed}");
                assert!(failed.is_operation() && failed.buffer.is_some() && failed.tag == tag, "{failed:?}");
                assert_eq!((failed.outcome, failed.cause), (Outcome::Unknown, None));
            }
        },
        |setup| {
            assert!(setup.endpoint.arm().is_err());
            assert_eq!(setup.ended().len(), 4);
        },
        // A wait that polls without limit.
        |setup| {
            setup.endpoint.queues.spin = SpinState::new(Spin::Always);
            setup.plain.log().armed = Hook(None);
            let failed = [(); 4].map(|()| setup.endpoint.next().wait().unwrap_err().error);
            assert!(failed.iter().all(|error| matches!(error, Error::DeviceRemoved { .. })), "{failed:?}");
        },
    ];
    for end in ends {
        std::thread::spawn(move || test(end)).join().unwrap();
    }
}

#[test]
fn removal_of_the_device_keeps_the_completions_that_are_in_the_cq() {
    let test = || {
        let mut setup = Setup::new();
        let freed = Arc::clone(&setup.freed);
        let received = setup.post();
        setup.post();
        let sent = setup.send(1, true);
        setup.send(2, true);
        setup.complete(received, WcStatus::SUCCESS);
        setup.complete(sent, WcStatus::SUCCESS);
        succeed_ioctls();
        assert!(setup.endpoint.queues.end_removed());
        let ended: Vec<_> = std::iter::from_fn(|| setup.endpoint.poll()).collect();
        let done = |recv| ended.iter().flatten().filter(|done| done.is_recv() == recv).count();
        assert_eq!((ended.len(), done(false), done(true)), (4, 1, 1), "{ended:?}");
        for failed in ended.iter().filter_map(|ended| ended.as_ref().err()) {
            assert!(matches!(failed.error, Error::DeviceRemoved { .. }), "{failed}");
        }
        // A second command would fail, and leak the buffers.
        refuse_ioctls();
        drop((setup, ended));
        assert_eq!(freed.load(Ordering::Relaxed), 4);
    };
    std::thread::spawn(test).join().unwrap();
}

#[test]
fn close_of_a_removed_device_returns_the_operations() {
    let test = || {
        let setup = removed_setup(true);
        setup.plain.log().armed = Hook(None);
        let ended = setup.endpoint.close().wait().unwrap();
        let removed = |ended: &Result<_, Failed<_>>| {
            matches!(ended, Err(Failed { error: Error::DeviceRemoved { .. }, buffer: Some(_), .. }))
        };
        assert!(ended.len() == 4 && ended.iter().all(removed), "{ended:?}");
    };
    std::thread::spawn(test).join().unwrap();
}

#[test]
fn close_posts_no_marker_to_a_destroyed_qp() {
    let test = || {
        let Setup { mut endpoint, plain, .. } = removed_setup(true);
        assert!(endpoint.next().wait().unwrap().is_recv());
        plain.log().armed = Hook(None);
        // The newest operation, which is unsignalled, is outstanding.
        assert!(matches!(endpoint.next().wait().unwrap_err().error, Error::DeviceRemoved { .. }));
        let sent = plain.log().sent.len();
        let ended = endpoint.close().wait().unwrap();
        assert!(!ended.is_empty());
        assert_eq!(plain.log().sent.len(), sent);
    };
    std::thread::spawn(test).join().unwrap();
}

#[test]
fn scope_ends_with_an_error_if_the_device_is_removed_at_its_end() {
    let test = || {
        let mut setup = removed_setup(true);
        let region = setup.buffer();
        let ended = setup.endpoint.scope(|scope| scope.post(Op::send(&region, ..).tag(9)).unwrap());
        assert!(matches!(ended, Err(Error::DeviceRemoved { verb: "Endpoint::scope" })), "{ended:?}");
        assert_eq!(setup.ended(), [-3, -4, -9, 0, 0]);
        assert!(setup.endpoint.scope(|_| ()).is_ok(), "no operation was outstanding");
        setup.plain.log().armed = Hook(None);
    };
    std::thread::spawn(test).join().unwrap();
}

#[test]
fn operations_go_on_if_the_kernel_does_not_confirm_the_removal() {
    let Setup { mut endpoint, plain, freed, .. } = removed_setup(false);
    assert!(endpoint.next().wait().unwrap().is_recv());
    plain.log().armed = Hook(None);
    for _ in 0..2 {
        let failed = endpoint.next().wait().unwrap_err();
        assert_eq!(failed.error.errno(), Some(Errno::IO));
        assert!(!failed.is_operation() && !matches!(failed.error, Error::DeviceRemoved { .. }), "{failed}");
    }
    assert_eq!(endpoint.pending(), 3);
    drop(endpoint);
    assert_eq!(freed.load(Ordering::Relaxed), 1, "the memory is leaked");
}

#[test]
fn waits_poll_again_after_they_have_armed_the_cq() {
    let mut setup = Setup::new();
    let wr_id = setup.post();
    let plain = setup.plain.clone();
    setup.plain.log().armed = Hook(Some(Arc::new(move |_| {
        plain.log().completions.push_back(completion(wr_id, WcStatus::SUCCESS))
    })));
    // The channel of the setup fails to wait.
    assert!(setup.endpoint.next().wait().unwrap().is_recv());
    setup.plain.log().armed = Hook(None);
}

#[test]
fn marker_whose_doorbell_was_refused_counts_as_posted() {
    let mut setup = Setup::new();
    setup.send(1, false);
    let refused = DoorbellError::Posted(IoctlError::new("PostSend", Errno::NOMEM));
    setup.plain.log().refusals.push_back(refused);
    setup.endpoint.abort();
    setup.complete(MARKER, WcStatus::WR_FLUSH_ERR);
    assert_eq!((setup.ended(), setup.endpoint.pending()), (vec![1], 0));
}

#[test]
fn qp_of_a_dropped_endpoint_is_moved_to_err_only_for_a_driver_that_needs_it() {
    for (needs, states) in [(false, &[][..]), (true, &[QpState::ERR])] {
        let mut setup = Setup::new();
        setup.plain.log().needs_error_before_destroy = needs;
        setup.send(1, false);
        let Setup { plain, endpoint, .. } = setup;
        drop(endpoint);
        assert_eq!(plain.log().states, states);
    }
}

#[test]
fn failed_endpoint_is_closed_for_connect() {
    let mut setup = Setup::new();
    setup.endpoint.abort();
    let connected = setup.endpoint.connect(&Address::new(Gid::default(), 1));
    assert!(matches!(connected, Err(Error::Closed { verb: "Endpoint::connect", .. })), "{connected:?}");
    let attr = QpAttr { qp_state: QpState::RTS, ..QpAttr::default() };
    let connected = setup.endpoint.modify_qp(&attr, QpAttrMask::STATE);
    assert!(matches!(connected, Err(Error::Closed { verb: "Endpoint::modify_qp", .. })), "{connected:?}");
}

#[test]
fn endpoint_refuses_the_address_of_a_server() {
    let mut setup = Setup::new();
    let server = Address { flow_control: 2, ..Address::new(Gid::default(), 1) };
    let refused = setup.endpoint.connect(&server).unwrap_err();
    assert!(refused.to_string().contains("that of a `Server` or `Client`"), "{refused}");
}

#[test]
fn endpoint_resolves_its_peer_again_after_a_timeout() {
    let test = || {
        succeed_ioctls();
        let mut setup = Setup::new();
        setup.endpoint.queues.qp.assume_state(QpState::INIT);
        let late = IoctlError::new("ModifyQp", Errno::TIMEDOUT);
        setup.plain.log().answers.extend([Err(late); 2]);
        let gid = "fe80::1".parse().unwrap();
        let peer = Address { mtu: Mtu::Mtu256, rd_atomic: 0, ..Address::new(gid, 1) };
        setup.endpoint.connect(&peer).unwrap();
        assert_eq!(setup.plain.log().states, [QpState::RTR, QpState::RTS]);
    };
    std::thread::spawn(test).join().unwrap();
}

#[test]
fn endpoint_whose_qp_was_destroyed_cannot_connect() {
    let test = || {
        let mut setup = Setup::new();
        succeed_ioctls();
        expire_in_scope(&mut setup).unwrap_err();
        let connected = setup.endpoint.connect(&Address::new(Gid::default(), 1));
        assert!(matches!(connected, Err(Error::Closed { verb: "Endpoint::connect", .. })), "{connected:?}");
        let attr = QpAttr { qp_state: QpState::RTS, ..QpAttr::default() };
        let connected = setup.endpoint.modify_qp(&attr, QpAttrMask::STATE);
        assert!(matches!(connected, Err(Error::Closed { verb: "Endpoint::modify_qp", .. })), "{connected:?}");
    };
    std::thread::spawn(test).join().unwrap();
}

#[test]
fn scope_of_a_refused_receive_does_not_wait_for_it() {
    let test = || {
        let mut setup = Setup::new();
        succeed_ioctls();
        let mut region = setup.buffer();
        setup.plain.log().rejections.push_back(PushError::QueueFull { capacity: 1 });
        let refused = setup.endpoint.scope(|scope| scope.post(Op::recv(&mut region).tag(1)).is_err());
        assert!(refused.unwrap(), "the queue rejects the request");
        assert!(!setup.endpoint.qp().is_destroyed());
    };
    std::thread::spawn(test).join().unwrap();
}

#[test]
fn awaits_that_end_at_once_let_other_tasks_run() {
    use std::task::{Context, Poll};

    let mut setup = Setup::new();
    let wakes = Arc::new(Wakes::default());
    let waker = std::task::Waker::from(Arc::clone(&wakes));
    let mut context = Context::from_waker(&waker);
    let plain = setup.plain.clone();
    let mut yields = Vec::new();
    setup.post();
    let mut endpoint = setup.endpoint;
    endpoint.attach(Never::Waits).unwrap();
    for number in 1..=300_u32 {
        let wr_id = *plain.log().received.last().unwrap();
        let opcode = WcOpcode::RECV;
        let success = WorkCompletion { opcode, ..completion(wr_id, WcStatus::SUCCESS) };
        plain.log().completions.push_back(success);
        // A future that is dropped loses no operation.
        let buffer = loop {
            match std::pin::pin!(endpoint.next()).poll(&mut context) {
                Poll::Ready(done) => break done.unwrap().into_buffer(),
                Poll::Pending => yields.push(number),
            }
        };
        endpoint.post(Op::recv(buffer)).unwrap();
    }
    assert_eq!(yields, [128, 255]);
    assert_eq!(wakes.0.load(Ordering::Relaxed), 2, "the task is polled again");
}

#[cfg(feature = "futures")]
#[test]
fn stream_of_results_that_are_there_lets_other_tasks_run() {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use futures_core::Stream;

    let mut setup = Setup::new();
    let wakes = Arc::new(Wakes::default());
    let waker = std::task::Waker::from(Arc::clone(&wakes));
    let mut context = Context::from_waker(&waker);
    let plain = setup.plain.clone();
    let mut yields = Vec::new();
    setup.post();
    let mut endpoint = setup.endpoint;
    endpoint.attach(Never::Waits).unwrap();
    for number in 1..=300_u32 {
        let wr_id = *plain.log().received.last().unwrap();
        let opcode = WcOpcode::RECV;
        let success = WorkCompletion { opcode, ..completion(wr_id, WcStatus::SUCCESS) };
        plain.log().completions.push_back(success);
        let buffer = loop {
            match Pin::new(&mut endpoint).poll_next(&mut context) {
                Poll::Ready(done) => break done.unwrap().unwrap().into_buffer(),
                Poll::Pending => yields.push(number),
            }
        };
        endpoint.post(Op::recv(buffer)).unwrap();
    }
    assert_eq!(yields, [128, 255]);
    assert_eq!(wakes.0.load(Ordering::Relaxed), 2, "the task is polled again");
}

#[test]
fn await_arms_the_cq_again_after_its_event_was_read() {
    use std::task::{Context, Waker};

    let mut setup = Setup::new();
    let (channel, events) = CompChannel::with_pipe(setup.endpoint.qp().pd().context().file());
    setup.endpoint.queues.channel = channel;
    setup.post();
    rustix::io::write(&events, &[0; 8]).unwrap();
    let Setup { plain, mut endpoint, .. } = setup;
    endpoint.attach(Never::ReadableAgain).unwrap();
    let mut wait = std::pin::pin!(endpoint.next());
    assert!(wait.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    assert_eq!(plain.log().arms, 2);
}

#[test]
fn await_without_a_runtime_names_attach() {
    use std::task::{Context, Poll, Waker};

    let mut setup = Setup::new();
    setup.endpoint.queues.spin = SpinState::new(Spin::Never);
    setup.post();
    let polled = std::pin::pin!(setup.endpoint.next()).poll(&mut Context::from_waker(Waker::noop()));
    let Poll::Ready(Err(refused)) = polled else { panic!("it is refused") };
    assert!(matches!(refused.error, Error::Invalid { verb: "Endpoint::next", .. }), "{refused}");
    assert!(refused.to_string().contains("call `attach` first"), "{refused}");
    let polled = std::pin::pin!(setup.endpoint.close()).poll(&mut Context::from_waker(Waker::noop()));
    let Poll::Ready(Err(refused)) = polled else { panic!("it is refused") };
    assert!(matches!(refused, Error::Invalid { verb: "Endpoint::close", .. }), "{refused}");
    assert!(setup.plain.log().states.is_empty(), "the QP is in RTS");
}

#[test]
fn swapped_endpoints_keep_their_runtimes() {
    use std::task::{Context, Poll, Waker};

    let mut context = Context::from_waker(Waker::noop());
    let (mut one, mut other) = (Setup::new(), Setup::new());
    let wr_id = one.post();
    one.endpoint.queues.spin = SpinState::new(Spin::Never);
    one.endpoint.attach(Never::Readable).unwrap();
    std::mem::swap(&mut one.endpoint, &mut other.endpoint);
    let mut endpoint = other.endpoint;
    assert!(std::pin::pin!(endpoint.next()).poll(&mut context).is_pending());
    one.plain.log().completions.push_back(completion(wr_id, WcStatus::SUCCESS));
    let polled = std::pin::pin!(endpoint.next()).poll(&mut context);
    assert!(matches!(polled, Poll::Ready(Ok(done)) if done.is_recv()));
}

#[test]
fn completion_of_a_cq_is_awaited_on_its_own_channel_only() {
    use std::task::{Context, Poll, Waker};

    let mut context = Context::from_waker(Waker::noop());
    let plain = Plain::default();
    let pd = plain.domain();
    let [mut own, mut other] = [(); 2].map(|()| CompChannel::for_test(pd.context().file()));
    let init = CqInit { channel: Some(&own), ..CqInit::new(8) };
    let mut cq = pd.context().create_cq(&init).unwrap();
    let polled = std::pin::pin!(other.completion(&mut cq)).poll(&mut context);
    assert!(matches!(polled, Poll::Ready(Err(Error::Invalid { verb: "CompChannel::completion", .. }))));
    let log = plain.clone();
    plain.log().armed =
        Hook(Some(Arc::new(move |_| log.log().completions.push_back(completion(7, WcStatus::SUCCESS)))));
    let polled = std::pin::pin!(own.completion(&mut cq)).poll(&mut context);
    assert!(matches!(polled, Poll::Ready(Ok(WorkCompletion { wr_id: 7, .. }))), "it arrived meanwhile");
    plain.log().armed = Hook(None);
}

#[test]
fn operation_on_borrowed_memory_is_signalled() {
    let mut setup = Setup::new();
    succeed_ioctls();
    let (region, plain) = (setup.buffer(), setup.plain.clone());
    let ended = setup.endpoint.scope(|scope| {
        scope.post(Op::send(&region, ..).tag(1).unsignaled()).unwrap();
        let mut log = plain.log();
        let wr_id = *log.signaled.last().expect("a signalled request");
        log.completions.push_back(completion(wr_id, WcStatus::SUCCESS));
    });
    ended.unwrap();
    assert_ne!(setup.endpoint.qp().state(), QpState::ERR);
}

#[test]
fn completion_at_the_time_limit_of_a_wait_is_returned() {
    let mut setup = Setup::new();
    let (channel, _events) = CompChannel::with_pipe(setup.endpoint.qp().pd().context().file());
    setup.endpoint.queues.channel = channel;
    let (wr_id, plain) = (setup.post(), setup.plain.clone());
    // It arrives after the last poll before the sleep.
    setup.plain.log().empty = Hook(Some(Arc::new(move |_| {
        let mut log = plain.log();
        if log.arms == 1 && log.completions.is_empty() {
            log.completions.push_back(completion(wr_id, WcStatus::SUCCESS));
        }
    })));
    let done = setup.endpoint.next().wait_timeout(Duration::ZERO).transpose().unwrap();
    setup.plain.log().empty = Hook(None);
    assert!(done.is_some_and(|done| done.is_recv()));
}

/// Makes the device fail the next probe.
fn fail_probes(plain: &Plain) {
    let log = plain.clone();
    plain.log().pushed = Hook(Some(Arc::new(move |wr_id| {
        if wr_id == PROBE {
            log.log().completions.push_back(completion(wr_id, WcStatus::RETRY_EXC_ERR));
        }
    })));
}

/// An idle endpoint whose peer is dead, with a receive.
fn idle_endpoint() -> (Setup, std::os::fd::OwnedFd) {
    let mut setup = Setup::new();
    let (channel, events) = CompChannel::with_pipe(setup.endpoint.qp().pd().context().file());
    setup.endpoint.queues.channel = channel;
    let (wr_id, plain) = (setup.post(), setup.plain.clone());
    fail_probes(&setup.plain);
    setup.plain.log().modified = Hook(Some(Arc::new(move |_| {
        plain.log().completions.push_back(completion(wr_id, WcStatus::WR_FLUSH_ERR));
    })));
    setup.endpoint.queues.keepalive.start(Some(Duration::from_millis(1)));
    (setup, events)
}

fn assert_dead(ended: Completed<Mr<Counted>>, plain: &Plain) {
    let failed = ended.unwrap_err();
    assert!(failed.is_recv() && failed.is_peer_lost(), "{failed}");
    let mut log = plain.log();
    (log.pushed, log.modified) = (Hook(None), Hook(None));
}

#[test]
fn wait_of_a_thread_without_a_limit_goes_on_after_a_probe() {
    let (mut setup, _events) = idle_endpoint();
    assert_dead(setup.endpoint.next().wait(), &setup.plain);
}

#[cfg(feature = "tokio")]
#[test]
fn await_probes_an_idle_peer() {
    assert!(crate::testing::ends(|| {
        let (mut setup, _events) = idle_endpoint();
        let runtime = ::tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
        let ended = runtime.block_on(async {
            setup.endpoint.attach(crate::runtime::Tokio).unwrap();
            setup.endpoint.next().await
        });
        assert_dead(ended, &setup.plain);
    }));
}

#[test]
fn wait_for_the_marker_is_no_wait_without_end() {
    let mut setup = Setup::new();
    let (channel, _events) = CompChannel::with_pipe(setup.endpoint.qp().pd().context().file());
    setup.endpoint.queues.channel = channel;
    setup.send(1, false);
    setup.endpoint.abort();
    assert!(setup.endpoint.next().wait_timeout(Duration::ZERO).is_none(), "the marker is outstanding");
    setup.complete(MARKER, WcStatus::WR_FLUSH_ERR);
    assert_eq!(setup.endpoint.next().wait().unwrap().tag, 1);
}

#[test]
fn close_sleeps_until_the_marker_is_complete() {
    let mut setup = Setup::new();
    setup.send(1, false);
    let plain = setup.plain.clone();
    setup.plain.log().armed = Hook(Some(Arc::new(move |_| {
        plain.log().completions.push_back(completion(MARKER, WcStatus::SUCCESS));
    })));
    let drained = setup.endpoint.queues.poll_drain(Caller::Thread(None));
    assert!(matches!(drained, std::task::Poll::Ready(Ok(true))));
    setup.plain.log().armed = Hook(None);
    assert_eq!(setup.ended(), [1]);
}

#[test]
fn await_that_polls_wakes_its_task() {
    use std::task::{Context, Waker};

    let mut setup = Setup::new();
    setup.endpoint.queues.spin = SpinState::new(Spin::Always);
    setup.post();
    setup.endpoint.attach(Never::Waits).unwrap();
    let wakes = Arc::new(Wakes::default());
    let waker = Waker::from(Arc::clone(&wakes));
    let mut wait = std::pin::pin!(setup.endpoint.next());
    for polls in 1..4 {
        assert!(wait.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        assert_eq!(wakes.0.load(Ordering::Relaxed), polls);
    }
}

#[test]
fn await_reads_all_events_of_its_channel() {
    use std::task::{Context, Waker};

    let mut setup = Setup::new();
    let (channel, events) = CompChannel::with_pipe(setup.endpoint.qp().pd().context().file());
    setup.endpoint.queues.channel = channel;
    setup.post();
    rustix::io::write(&events, &[0; 16]).unwrap();
    setup.endpoint.attach(Never::ReadableAgain).unwrap();
    let mut wait = std::pin::pin!(setup.endpoint.next());
    assert!(wait.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    assert!(setup.endpoint.queues.channel.try_wait().unwrap().is_none(), "the reactor reports none of them");
}

#[test]
fn await_that_has_slept_has_its_whole_budget_again() {
    use std::task::{Context, Waker};

    let mut setup = Setup::new();
    setup.endpoint.attach(Never::Readable).unwrap();
    let mut context = Context::from_waker(Waker::noop());
    for awaits in [100, 120] {
        for _ in 0..awaits {
            let wr_id = setup.post();
            setup.complete(wr_id, WcStatus::SUCCESS);
            assert!(std::pin::pin!(setup.endpoint.next()).poll(&mut context).is_ready());
        }
        let wr_id = setup.post();
        assert!(std::pin::pin!(setup.endpoint.next()).poll(&mut context).is_pending());
        setup.complete(wr_id, WcStatus::SUCCESS);
        assert!(setup.endpoint.poll().is_some_and(|done| done.is_ok()));
    }
}

#[test]
fn refused_operations_behind_the_marker_are_not_executed() {
    let mut setup = Setup::new();
    setup.send(1, false);
    setup.refuse_doorbell();
    let buffer = setup.buffer();
    let mut batch = setup.endpoint.batch();
    batch.post(Op::send(buffer, ..).tag(2).unsignaled()).unwrap();
    batch.ring().unwrap_err();
    setup.complete(MARKER, WcStatus::WR_FLUSH_ERR);
    let outcomes: Vec<_> = std::iter::from_fn(|| setup.endpoint.poll())
        .map(|ended| ended.map_or_else(|failed| (failed.tag, failed.outcome), |done| panic!("{done:?}")))
        .collect();
    assert_eq!(outcomes, [(1, Outcome::Unknown), (2, Outcome::NotExecuted)]);
}

#[test]
fn close_does_not_wait_for_refused_operations() {
    let mut setup = Setup::new();
    setup.post_refused_batch(true);
    let drained = setup.endpoint.queues.poll_drain(Caller::Thread(Some(Instant::now())));
    assert!(matches!(drained, std::task::Poll::Ready(Ok(true))));
}

#[test]
fn operations_of_a_dropped_batch_begin_no_run() {
    let mut setup = Setup::with(Plain::default(), 16);
    (1..=2).for_each(|tag| _ = setup.send(tag, false));
    let buffers = [setup.buffer(), setup.buffer()];
    let mut batch = setup.endpoint.batch();
    let [one, two] = buffers.map(|buffer| Op::send(buffer, ..));
    batch.post(one).unwrap();
    batch.post(two.unsignaled()).unwrap();
    drop(batch);
    // The next request has a `wr_id` of the batch.
    setup.plain.log().signaled.clear();
    setup.send(3, false);
    assert!(setup.signaled(), "two unsignalled operations are before it");
}

#[test]
fn write_with_immediate_fills_no_buffer_of_a_receive() {
    let mut setup = Setup::new();
    setup.endpoint.post(Op::recv_parts([(setup.buffer(), 0..4), (setup.buffer(), 0..15)]).tag(7)).unwrap();
    let received = *setup.plain.log().received.last().unwrap();
    let opcode = WcOpcode::RECV_RDMA_WITH_IMM;
    let arrived = WorkCompletion { opcode, byte_len: 4096, ..completion(received, WcStatus::SUCCESS) };
    setup.plain.log().completions.push_back(arrived);
    assert_eq!(results(&mut setup), [(7, 0, true), (7, 4096, true)]);
}

#[test]
fn buffers_of_a_refused_operation_keep_their_ranges() {
    let mut setup = Setup::new();
    let parts = || {
        let mut number = 0;
        [0..3, 0..4].map(|range| {
            number += 1;
            let part = setup.region.part(Counted(vec![number; 16], Arc::default()));
            (part.map_err(|refused| refused.error).unwrap(), range)
        })
    };
    let (sends, recvs) = (parts(), parts());
    let assert_order = |parts: [(Mr<Counted>, std::ops::Range<usize>); 2]| {
        let found = parts.map(|(buffer, range)| (buffer.bytes().unwrap()[0], range));
        assert_eq!(found, [(1, 0..3), (2, 0..4)]);
    };
    reject(&setup);
    let refused = setup.endpoint.post(Op::send_parts(sends)).unwrap_err();
    assert_order(refused.object.into_buffer().into_inner());
    setup.plain.log().rejections.push_back(PushError::QueueFull { capacity: 1 });
    let refused = setup.endpoint.post(Op::recv_parts(recvs)).unwrap_err();
    assert_order(refused.object.into_buffer().into_inner());
    assert_eq!(setup.endpoint.pending(), 0);
}

#[test]
fn operation_of_more_buffers_than_have_room_is_refused() {
    let mut setup = Setup::new();
    (1..=3).for_each(|tag| _ = setup.send(tag, true));
    setup.post();
    let (sends, recvs) =
        ([(setup.buffer(), ..), (setup.buffer(), ..)], [(setup.buffer(), ..), (setup.buffer(), ..)]);
    assert!(setup.endpoint.post(Op::send_parts(sends)).unwrap_err().is_full());
    assert!(setup.endpoint.post(Op::recv_parts(recvs)).unwrap_err().is_full());
    assert_eq!((setup.endpoint.pending_sends(), setup.endpoint.pending_recvs()), (3, 1));
}

#[test]
fn empty_batch_rings_for_no_forgotten_one() {
    let mut setup = Setup::new();
    let buffer = setup.buffer();
    let mut batch = setup.endpoint.batch();
    batch.post(Op::send(buffer, ..)).unwrap();
    std::mem::forget(batch);
    setup.endpoint.batch().ring().unwrap();
    let doorbells = setup.plain.log().doorbells;
    assert_eq!(doorbells, 0);
}

#[test]
fn refused_operation_is_not_in_the_batch() {
    let mut setup = Setup::new();
    reject(&setup);
    let buffer = setup.buffer();
    let mut batch = setup.endpoint.batch();
    assert!(batch.post(Op::send(buffer, ..)).is_err());
    assert!(batch.is_empty());
    batch.ring().unwrap();
    let doorbells = setup.plain.log().doorbells;
    assert_eq!(doorbells, 0);
}

#[test]
fn batch_that_counts_as_posted_is_not_rung_again() {
    let mut setup = Setup::new();
    let refused = IoctlError::new("PostSend", Errno::NOMEM);
    // A second doorbell would take back what the device may execute.
    setup.plain.log().refusals.extend([DoorbellError::Posted(refused), DoorbellError::TakenBack(refused)]);
    let buffer = setup.buffer();
    let mut batch = setup.endpoint.batch();
    batch.post(Op::send(buffer, ..)).unwrap();
    batch.ring().unwrap_err();
    assert!(setup.endpoint.poll().is_none(), "the device may use the buffer");
    assert_eq!((setup.endpoint.pending(), setup.freed()), (1, 0));
}

#[test]
fn scope_waits_for_a_request_whose_post_panics() {
    let test = || {
        let mut setup = Setup::new();
        // A wait finds that the device was removed.
        let (channel, other) = CompChannel::removable(setup.endpoint.qp().pd().context().file());
        setup.endpoint.queues.channel = channel;
        drop(other);
        succeed_ioctls();
        let region = setup.buffer();
        setup.plain.log().pushed = Hook(Some(Arc::new(|_| panic!("in the post"))));
        let scope = std::panic::AssertUnwindSafe(|| {
            setup.endpoint.scope(|scope| scope.post(Op::send(&region, ..).tag(1)))
        });
        let panic = std::panic::catch_unwind(scope).unwrap_err();
        assert_eq!(panic.downcast_ref(), Some(&"in the post"));
        setup.plain.log().pushed = Hook(None);
        // The request may have been posted.
        assert!(setup.endpoint.qp().is_destroyed(), "the scope did not wait");
    };
    std::thread::spawn(test).join().unwrap();
}

#[test]
fn panic_in_a_scope_aborts_the_endpoint_though_no_operation_is_outstanding() {
    let mut setup = Setup::new();
    let scope = std::panic::AssertUnwindSafe(|| setup.endpoint.scope(|_| panic!("in the scope")));
    std::panic::catch_unwind(scope).unwrap_err();
    assert_eq!(setup.endpoint.qp().state(), QpState::ERR);
    let refused = setup.endpoint.post(Op::recv(setup.buffer())).unwrap_err();
    assert!(matches!(refused.error, Error::Closed { .. }), "{refused}");
}

#[test]
fn chunks_of_a_region_are_disjoint() {
    use crate::buffer::Lend;
    use crate::owned::buffer::checked_sge;

    let setup = Setup::new();
    let mut region = setup.buffer();
    let start = region.bytes().unwrap().as_ptr().addr() as u64;
    let domain = setup.endpoint.qp().pd().domain();
    let places: Vec<_> = region
        .lend()
        .chunks(4)
        .map(|chunk| checked_sge("test", &chunk, domain, ..).unwrap())
        .map(|sge| (sge.addr - start, sge.length))
        .collect();
    assert_eq!(places, [(0, 4), (4, 4), (8, 4), (12, 3)]);
}
