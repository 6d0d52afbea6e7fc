//! What the queues of a QP and its CQs share, and the end of a QP.
//!
//! The kernel flushes the queues of a QP once, when the QP enters ERROR. It never completes an element that
//! is published later, and not all that were published before: a failed request leaves the QP in RTS with a
//! closed connection (`siw_qp_cm_drop` of `siw_cm.c`). So the provider completes the rest:
//!
//! 1. It learns that the QP has failed from a completion with an error, from a state change by the caller,
//!    or from the doorbell.
//! 2. It moves the QP to ERR. The kernel takes no element afterwards.
//! 3. It takes back what is left in the queues, and adds a completion for each to the CQ in software. READs
//!    whose completions the kernel has lost are flushed behind them.
//!
//! Later requests are published as before, and step 3 follows at once. So a request is completed by the
//! thread that posts it, or by the thread that learns of the failure: each looks for the other's store
//! (`barrier::before_peer_is_checked`).

use std::collections::{HashMap, VecDeque};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use bareverbs_provider::barrier::before_peer_is_checked;
use bareverbs_provider::elements::{ElementMemory, Published, is_filled, take_back};
use bareverbs_uapi::siw::{Cqe, Opcode, Sqe, WcStatus};

use crate::control::Control;
use crate::memory::SharedMemory;
use crate::order::Order;

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A completion that the provider makes when it flushes a QP, as the kernel does not.
#[derive(Debug)]
pub(crate) enum Flushed {
    /// A receive.
    Receive(Cqe),
    /// A send of this QP. Weak, because the QP keeps the CQ.
    Send(Weak<QpShared>, Cqe),
    /// Those of the first so many READs of this QP whose completions the kernel has lost.
    Reads(Weak<QpShared>, u64),
}

/// What a CQ and the queues of its QPs share.
pub struct CqShared {
    /// A bit of each operation whose successful completions are reported as they are. The others may have
    /// to be held back or not reported. READs are posted after their bit was cleared.
    plain: AtomicU32,
    /// The number of QPs whose completions may have to be held back or not reported. It changes with `plain`.
    ordering: Mutex<u32>,
    /// How many more requests may be signalled to the kernel although the caller does not ask for it.
    room: AtomicU32,
    /// Number of `flushed`.
    waiting: AtomicU32,
    flushed: Mutex<VecDeque<Flushed>>,
    qps: Mutex<HashMap<u32, Weak<QpShared>>>,
    ring: ElementMemory,
    /// Elements that were taken from the ring.
    taken: AtomicU64,
    _keep: SharedMemory,
}

impl std::fmt::Debug for CqShared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CqShared")
            .field("plain", &self.plain)
            .field("room", &self.room)
            .finish_non_exhaustive()
    }
}

impl CqShared {
    /// A CQ whose ring has `room` elements more than its user knows of.
    ///
    /// # Safety
    ///
    /// The elements must be those of an `ElementConsumer`, and lie in the memory of `keep`.
    #[must_use]
    pub(crate) unsafe fn new(room: u32, ring: ElementMemory, keep: SharedMemory) -> Arc<Self> {
        Arc::new(Self {
            plain: AtomicU32::new(u32::MAX),
            ordering: Mutex::new(0),
            room: AtomicU32::new(room),
            waiting: AtomicU32::new(0),
            flushed: Mutex::default(),
            qps: Mutex::default(),
            ring,
            taken: AtomicU64::new(0),
            _keep: keep,
        })
    }

    /// Whether a successful completion of this operation is reported as it is.
    #[inline(always)]
    pub(crate) fn is_plain(&self, opcode: u32) -> bool {
        self.plain.load(Ordering::Relaxed) >> (opcode % u32::BITS) & 1 != 0
    }

    /// A QP begins (`true`) or ends to have completions that may have to be held back or not reported.
    fn set_ordering(&self, begins: bool) {
        let mut ordering = lock(&self.ordering);
        *ordering = if begins { *ordering + 1 } else { *ordering - 1 };
        let plain = if *ordering == 0 { u32::MAX } else { 1 << Opcode::RECEIVE.0 };
        self.plain.store(plain, Ordering::Release);
    }

    #[inline(always)]
    pub(crate) fn has_flushed(&self) -> bool {
        self.waiting.load(Ordering::Acquire) != 0
    }

    pub(crate) fn take_flushed(&self) -> Option<Flushed> {
        let next = lock(&self.flushed).pop_front();
        if next.is_some() {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        }
        next
    }

    fn add_flushed(&self, flushed: Flushed) {
        lock(&self.flushed).push_back(flushed);
        self.waiting.fetch_add(1, Ordering::Release);
    }

    /// Reserves an element for a completion that is not reported. Returns `false` if there is none.
    pub(crate) fn reserve(&self) -> bool {
        self.room.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |room| room.checked_sub(1)).is_ok()
    }

    pub(crate) fn unreserve(&self, count: u32) {
        self.room.fetch_add(count, Ordering::Relaxed);
    }

    /// Counts an element, before it is given back to the kernel.
    #[inline(always)]
    pub(crate) fn count_taken(&self) {
        // Only the consumer stores.
        self.taken.store(self.taken.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
    }

    /// Elements that were counted.
    pub(crate) fn taken(&self) -> u64 {
        self.taken.load(Ordering::Relaxed)
    }

    /// The number of the first element that the kernel has not filled yet.
    fn end_of_ring(&self) -> u64 {
        let mut end = self.taken.load(Ordering::Relaxed);
        loop {
            // In a full ring, the first element follows the last one.
            let limit = end + u64::from(self.ring.mask);
            // SAFETY: the ring is that of a consumer, and `_keep` keeps it, by the contract of `new`.
            while end <= limit && unsafe { is_filled(self.ring, end as u32) } {
                end += 1;
            }
            // An element that was given back meanwhile has been counted before.
            let taken = self.taken.load(Ordering::Relaxed);
            if taken <= end {
                return end;
            }
            end = taken;
        }
    }

    /// The QP with this number, of the completion with the number `count`. `None` if it was destroyed: the
    /// kernel gives its number to a new QP, while completions of the old one are in the ring.
    pub(crate) fn qp(&self, qp_num: u64, count: u64) -> Option<Arc<QpShared>> {
        let qp_num = u32::try_from(qp_num).ok()?;
        let qp = lock(&self.qps).get(&qp_num)?.upgrade()?;
        let first = if std::ptr::eq(self, &raw const *qp.send_cq) { qp.first[0] } else { qp.first[1] };
        (count >= first).then_some(qp)
    }

    fn add_qp(&self, qp: &Arc<QpShared>) {
        lock(&self.qps).insert(qp.qp_num, Arc::downgrade(qp));
    }

    fn remove_qp(&self, qp: &QpShared) {
        let mut qps = lock(&self.qps);
        if qps.get(&qp.qp_num).is_some_and(|known| std::ptr::eq(known.as_ptr(), qp)) {
            qps.remove(&qp.qp_num);
        }
    }
}

/// A queue of a QP, for the thread that takes its elements back.
pub(crate) struct Queue {
    pub(crate) memory: ElementMemory,
    pub(crate) published: Published,
    /// Whether the QP has failed.
    has_failed: AtomicBool,
    /// Keeps the elements.
    _keep: SharedMemory,
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Queue").field("memory", &self.memory).finish_non_exhaustive()
    }
}

impl Queue {
    /// # Safety
    ///
    /// The memory of `keep` must contain the elements, which are those of an `ElementProducer` that
    /// publishes by this value's counter.
    pub(crate) unsafe fn new(memory: ElementMemory, keep: SharedMemory) -> Self {
        Self { memory, published: Published::new(0), has_failed: AtomicBool::new(false), _keep: keep }
    }

    /// Whether requests that are published are completed by this process. To be called after the
    /// publication and [`before_peer_is_checked`].
    #[inline(always)]
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Relaxed)
    }
}

/// How far the end of a QP is.
#[derive(Debug)]
struct End {
    /// The commands of other threads than the owner's; `None` once the handle was released.
    control: Option<Arc<dyn Control>>,
    /// Whether the QP was moved to ERR.
    is_in_error: bool,
}

/// What the queues of a QP and its CQs share.
#[derive(Debug)]
pub(crate) struct QpShared {
    qp_num: u32,
    /// READs of `order`.
    reads: AtomicU32,
    order: Mutex<Order>,
    end: Mutex<End>,
    pub(crate) sq: Queue,
    pub(crate) rq: Option<Arc<Queue>>,
    send_cq: Arc<CqShared>,
    recv_cq: Arc<CqShared>,
    /// The numbers of the first completions in both that may be of this QP.
    first: [u64; 2],
}

impl QpShared {
    pub(crate) fn new(
        qp_num: u32,
        control: Arc<dyn Control>,
        (sq, rq): (Queue, Option<Queue>),
        [send_cq, recv_cq]: [&Arc<CqShared>; 2],
    ) -> Arc<Self> {
        let requests = sq.memory.mask as usize + 1;
        let qp = Arc::new(Self {
            qp_num,
            reads: AtomicU32::new(0),
            order: Mutex::new(Order::with_capacity(requests)),
            end: Mutex::new(End { control: Some(control), is_in_error: false }),
            sq,
            rq: rq.map(Arc::new),
            send_cq: Arc::clone(send_cq),
            recv_cq: Arc::clone(recv_cq),
            first: [send_cq, recv_cq].map(|cq| cq.end_of_ring()),
        });
        send_cq.add_qp(&qp);
        recv_cq.add_qp(&qp);
        qp
    }

    /// The send queue is dropped: the kernel has destroyed the QP.
    pub(crate) fn remove(&self) {
        self.release_handle();
        self.send_cq.unreserve(self.change_order(Order::clear));
        self.send_cq.remove_qp(self);
        self.recv_cq.remove_qp(self);
    }

    pub(crate) fn release_handle(&self) {
        lock(&self.end).control = None;
    }

    /// Whether READs are outstanding: then each request needs an entry.
    #[inline(always)]
    pub(crate) fn has_reads(&self) -> bool {
        self.reads.load(Ordering::Relaxed) != 0
    }

    /// The CQ of the sends.
    pub(crate) fn send_cq(&self) -> &CqShared {
        &self.send_cq
    }

    /// Requests are about to be published. Those that are hidden have [reserved](CqShared::reserve) room.
    pub(crate) fn add(&self, entries: impl Iterator<Item = Entry>) {
        self.change_order(|order| {
            for Entry { wr_id, is_read, is_signaled, is_hidden } in entries {
                if is_read {
                    order.read(wr_id, is_hidden);
                } else {
                    order.other(wr_id, is_signaled, is_hidden);
                }
            }
            order.is_publishing = true;
        });
    }

    /// The requests that were passed to [`add`](Self::add) are published. To be called before
    /// [`Queue::has_failed`].
    pub(crate) fn published(&self) {
        lock(&self.order).is_publishing = false;
    }

    fn change_order<T>(&self, change: impl FnOnce(&mut Order) -> T) -> T {
        let mut order = lock(&self.order);
        let was_empty = order.is_empty();
        let result = change(&mut order);
        self.reads.store(order.reads() as u32, Ordering::Relaxed);
        if order.is_empty() != was_empty {
            self.send_cq.set_ordering(was_empty);
        }
        result
    }

    /// Takes a completion of a send from the kernel, and passes on those that can be reported.
    pub(crate) fn complete(&self, cqe: Cqe, report: impl FnMut(Cqe)) {
        let is_hidden = self.change_order(|order| order.complete(cqe, report));
        self.send_cq.unreserve(is_hidden.into());
    }

    /// The kernel has reported all completions of the first `reads` READs, and those that it did not take were
    /// passed to [`complete`](Self::complete).
    pub(crate) fn end_reads(&self, reads: u64, report: impl FnMut(Cqe)) {
        let hidden =
            self.change_order(|order| order.end(reads, |wr_id| self.flushed(wr_id, Opcode::READ), report));
        self.send_cq.unreserve(hidden);
    }

    /// The QP was moved to ERR by a command of its owner.
    pub(crate) fn moved_to_error(&self) {
        lock(&self.end).is_in_error = true;
    }

    /// The QP has failed, or an element was published after it had: completes what is in its queues. The
    /// owner of the queues passes its own commands, another thread `None`.
    #[cold]
    pub(crate) fn fail(self: &Arc<Self>, owner: Option<&dyn Control>) {
        for queue in self.rq.as_deref().into_iter().chain([&self.sq]) {
            queue.has_failed.store(true, Ordering::Relaxed);
        }
        before_peer_is_checked();
        let mut end = lock(&self.end);
        if !end.is_in_error {
            let answer = match (owner, &end.control) {
                (Some(control), _) => control.set_error(),
                (None, Some(control)) => control.set_error(),
                // The owner destroys the QP.
                (None, None) => return,
            };
            if answer.is_err() {
                // Tried again with the next error or request.
                return;
            }
            end.is_in_error = true;
        }
        let this = Arc::downgrade(self);
        // Before the flush, which takes back those of them that the kernel did not take. Who is publishing
        // some learns of the failure, and comes here.
        let reads = lock(&self.order).published_reads();
        Self::flush(&self.sq, |element| {
            let sqe = element.cast::<Sqe>().as_ptr();
            // SAFETY: the element is an `Sqe`, which was published and was not taken.
            let (wr_id, opcode) = unsafe {
                ((&raw const (*sqe).id).read_volatile(), (&raw const (*sqe).opcode).read_volatile())
            };
            self.send_cq.add_flushed(Flushed::Send(Weak::clone(&this), self.flushed(wr_id, opcode)));
        });
        if let Some(reads) = reads {
            self.send_cq.add_flushed(Flushed::Reads(this, reads));
        }
        if let Some(rq) = &self.rq {
            Self::flush(rq, |element| {
                // SAFETY: the element begins with the `wr_id`.
                let wr_id = unsafe { element.cast::<u64>().as_ptr().read_volatile() };
                self.recv_cq.add_flushed(Flushed::Receive(self.flushed(wr_id, Opcode::RECEIVE)));
            });
        }
    }

    fn flush(queue: &Queue, take: impl FnMut(NonNull<u8>)) {
        // SAFETY: the memory and the counter are those of a producer, by the contract of `Queue::new`, and
        // `queue` keeps the memory. The QP is in ERR: the kernel takes no element. The lock of `end` is held.
        unsafe { take_back(queue.memory, &queue.published, take) };
    }

    fn flushed(&self, wr_id: u64, opcode: Opcode) -> Cqe {
        let (status, qp_id) = (WcStatus::WR_FLUSH_ERR, self.qp_num.into());
        Cqe { id: wr_id, opcode, status, qp_id, ..Cqe::zeroed() }
    }
}

/// A request whose completion is held back or not reported.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) wr_id: u64,
    pub(crate) is_read: bool,
    /// Whether the kernel completes its success.
    pub(crate) is_signaled: bool,
    /// Whether its success is not reported.
    pub(crate) is_hidden: bool,
}
