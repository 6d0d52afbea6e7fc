//! The SRQ of a server, and the queue of events for the application.

use std::collections::{HashMap, VecDeque};
use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Waker};

use bareverbs_provider::traits::Provider;
use bareverbs_provider::work::RecvRequest;

use super::PeerConn;
use crate::debug::debug;
use crate::owned::buffer::checked_sge;
use crate::owned::hub::reaper::Failure;
use crate::owned::pool::Loans;
use crate::owned::server::{PeerId, Summary};
use crate::owned::{Pool, PoolBuffer, RegionMut};
use crate::qp::WrId;
use crate::srq::Srq;
use crate::sync::{Mutex, lock};
use crate::{Error, Imm, Pd, Result};

/// Set in the `wr_id`s of receives of an SRQ.
pub(crate) const SHARED: u64 = 1 << 63;

/// The receives and the events of a server.
pub struct Inbound<P: Provider> {
    /// The PD of the SRQ.
    pd: Pd<P>,
    receives: Mutex<Receives<P>>,
    /// Buffers of receives and of sends.
    pub(crate) pool: Pool,
    /// The buffers of receives that are used while no other is free.
    pub(crate) loans: Loans,
    /// The receives of these buffers, by their slots. They are not posted meanwhile.
    lent: Mutex<HashMap<u32, Lent<P>>>,
    events: Mutex<Events<P>>,
    /// Messages that were accepted, and those of them that have ended.
    accepted: AtomicU64,
    sent: AtomicU64,
    failed: AtomicU64,
    detached: AtomicU64,
    /// Whether a task or thread waits for the end of peers.
    is_ending: AtomicBool,
}

struct Receives<P: Provider> {
    /// `None` once it is destroyed.
    srq: Option<Srq<P>>,
    slots: Vec<Slot>,
}

/// A receive whose buffer is on loan, and the connection whose message it had.
struct Lent<P: Provider> {
    conn: Arc<PeerConn<P>>,
    index: u32,
}

/// A receive. It is posted while it has its buffer.
struct Slot {
    /// Counts its uses from 1, in 30 bits. With another one, its `wr_id` could be that of a probe.
    generation: u32,
    buffer: Option<PoolBuffer>,
    /// The memory of the word of the message, where it is no immediate data.
    word: Option<RegionMut>,
}

struct Events<P: Provider> {
    queue: VecDeque<RawEvent<P>>,
    /// Peers that both ends have finished with.
    finished: Vec<PeerId>,
    /// The waker of the task or thread that waits for an event.
    reader: Option<Waker>,
    /// The wakers of the tasks and threads that wait for the end of peers.
    shutdown_wakers: Vec<Waker>,
}

impl<P: Provider> Events<P> {
    fn take_wakers(&mut self) -> Vec<Waker> {
        let mut wakers = mem::take(&mut self.shutdown_wakers);
        wakers.extend(self.reader.take());
        wakers
    }
}

/// An event, before it is given to the application.
pub(crate) enum RawEvent<P: Provider> {
    Message { conn: Arc<PeerConn<P>>, receive: Receive, len: usize },
    Failed(PeerId, Failure),
    Closed(PeerId),
}

/// A receive that a message has consumed, and its buffer.
pub(crate) struct Receive {
    index: u32,
    pub(crate) buffer: PoolBuffer,
    /// The word of the message, where it is no immediate data.
    pub(crate) word: Option<Imm>,
}

impl<P: Provider> Inbound<P> {
    /// `words`: the memory of the words of the receives, or none.
    pub(crate) fn new(
        srq: Srq<P>,
        pool: Pool,
        receives: usize,
        peers: usize,
        words: impl IntoIterator<Item = RegionMut>,
    ) -> Self {
        let mut words = words.into_iter();
        let slot = |_| Slot { generation: 1, buffer: None, word: words.next() };
        let events = Events {
            // Each receive has one message at a time, each peer ends once and closes once.
            queue: VecDeque::with_capacity(receives + 2 * peers),
            finished: Vec::with_capacity(peers),
            reader: None,
            shutdown_wakers: Vec::new(),
        };
        Self {
            pd: srq.pd().clone(),
            loans: Loans::new(&pool),
            lent: Mutex::new(HashMap::with_capacity(receives)),
            pool,
            receives: Mutex::new(Receives { srq: Some(srq), slots: (0..receives).map(slot).collect() }),
            events: Mutex::new(events),
            accepted: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            detached: AtomicU64::new(0),
            is_ending: AtomicBool::new(false),
        }
    }

    /// Whether this process opened the device. Otherwise it was inherited by a fork.
    pub(crate) fn is_of_this_process(&self) -> bool {
        self.pd.context().file().check_same_process().is_ok()
    }

    /// Calls `work` with the SRQ.
    pub(crate) fn with_srq<T>(&self, work: impl FnOnce(&Srq<P>) -> T) -> Option<T> {
        lock(&self.receives).srq.as_ref().map(work)
    }

    /// Posts the receive `index` into `buffer`.
    pub(crate) fn post(&self, index: u32, buffer: PoolBuffer) -> Result<()> {
        let sge = checked_sge("Server", &buffer, self.pd.domain(), ..)?;
        let mut receives = lock(&self.receives);
        let Receives { srq: Some(srq), slots } = &mut *receives else { return Ok(()) };
        let slot = &mut slots[index as usize];
        // The slot owns the buffer before the request is posted, so a panic in between does not
        // free it.
        slot.buffer = Some(buffer);
        let both = match &slot.word {
            Some(word) => [checked_sge("Server", word, self.pd.domain(), ..)?, sge],
            None => [sge; 2],
        };
        let sges = if slot.word.is_some() { &both[..] } else { &both[1..] };
        let wr_id = SHARED | u64::from(WrId { owner: slot.generation, request: index });
        // SAFETY: the slot keeps the word and the buffer, which `checked_sge` found to be of the SRQ's PD, until
        // the provider reports the completion of `wr_id` or `Drop` has destroyed the SRQ. If that
        // fails, or the inbound is forgotten, the buffer is leaked. A `Target` is not accessed
        // meanwhile.
        match unsafe { srq.post_recv(&[RecvRequest { wr_id, sges }]) } {
            Ok(()) => Ok(()),
            // It counts as posted.
            Err(error) if error.accepted > 0 => Ok(()),
            // The slot keeps the buffer.
            Err(error) => Err(error.into()),
        }
    }

    /// Posts a consumed receive again. It fails only if the device was removed: the slot keeps the
    /// buffer then. The caller may hold locks, and the drop of a buffer may run a waker.
    pub(crate) fn post_again(&self, receive: Receive) {
        let Receive { index, buffer, .. } = receive;
        let _ = self.post(index, buffer);
    }

    /// Lends the buffer of a receive that a message of `conn` has consumed. The receive is posted, and
    /// the credit of the message returned, when the buffer is dropped.
    ///
    /// So a message whose buffer is in use costs its peer a credit, as one that is not dropped does.
    /// Buffers on loan and those of sends do not mix: neither the receives nor the callers that wait
    /// for a buffer take those of the other.
    #[cold]
    pub(crate) fn lend(&self, conn: &Arc<PeerConn<P>>, Receive { index, buffer, .. }: Receive) -> PoolBuffer {
        let lent = Lent { conn: Arc::clone(conn), index };
        let previous = lock(&self.lent).insert(buffer.slot(), lent);
        debug_assert!(previous.is_none(), "a slot has one buffer");
        self.loans.lend(buffer)
    }

    /// Takes the receive whose buffer was on loan.
    pub(crate) fn take_lent(&self, buffer: PoolBuffer) -> Option<(Arc<PeerConn<P>>, Receive)> {
        let Lent { conn, index } = lock(&self.lent).remove(&buffer.slot())?;
        Some((conn, Receive { index, buffer, word: None }))
    }

    /// Takes the receive of a completion. `None` if none in flight has the `wr_id`.
    pub(crate) fn take(&self, wr_id: u64) -> Option<Receive> {
        let WrId { owner, request: index } = (wr_id & !SHARED).into();
        let mut receives = lock(&self.receives);
        let slot = receives.slots.get_mut(index as usize)?;
        if slot.generation != owner {
            return None;
        }
        let buffer = slot.buffer.take()?;
        slot.generation = if slot.generation == u32::MAX >> 2 { 1 } else { slot.generation + 1 };
        let word = slot.word.as_ref().and_then(|word| word.bytes().first_chunk());
        Some(Receive { index, buffer, word: word.map(|word| Imm(u32::from_be_bytes(*word))) })
    }

    /// The counts of the messages that have ended.
    pub(crate) fn summary(&self) -> Summary {
        let [sent, detached, failed] =
            [&self.sent, &self.detached, &self.failed].map(|counter| counter.load(Ordering::Relaxed));
        Summary { sent, detached, failed }
    }

    /// Counts a message that was accepted. It ends once.
    pub(crate) fn count_accepted(&self) {
        self.accepted.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a message that has ended. The caller must wake the returned wakers.
    #[must_use]
    pub(super) fn count_ended(&self, success: bool, detached: bool) -> Vec<Waker> {
        self.detached.fetch_add(detached.into(), Ordering::Relaxed);
        let ended = if success { &self.sent } else { &self.failed };
        // Either the waiter sees this count, or this call sees that it waits: both are in one order with
        // `register_shutdown` and `has_messages_in_flight`.
        ended.fetch_add(1, Ordering::SeqCst);
        match self.is_ending.load(Ordering::SeqCst) {
            true => self.shutdown_wakers(),
            false => Vec::new(),
        }
    }

    /// Whether messages were accepted that have not ended.
    pub(crate) fn has_messages_in_flight(&self) -> bool {
        let ended = self.sent.load(Ordering::SeqCst) + self.failed.load(Ordering::SeqCst);
        self.accepted.load(Ordering::SeqCst) != ended
    }

    /// Adds an event. The caller must wake the returned waker.
    #[must_use]
    pub(crate) fn push(&self, event: RawEvent<P>) -> Option<Waker> {
        let mut events = lock(&self.events);
        events.queue.push_back(event);
        events.reader.take()
    }

    /// Adds a peer that both ends have finished with. The caller must wake the returned wakers.
    #[must_use]
    pub(crate) fn finished(&self, peer: PeerId) -> Vec<Waker> {
        let mut events = lock(&self.events);
        events.finished.push(peer);
        events.take_wakers()
    }

    /// Takes the wakers of the tasks and threads that wait for the end of peers. The caller must
    /// wake them.
    #[must_use]
    pub(crate) fn shutdown_wakers(&self) -> Vec<Waker> {
        mem::take(&mut lock(&self.events).shutdown_wakers)
    }

    /// Takes the wakers of all tasks and threads that wait for an event or for the end of peers. The
    /// caller must wake them.
    #[must_use]
    pub(crate) fn take_wakers(&self) -> Vec<Waker> {
        lock(&self.events).take_wakers()
    }

    /// As [`take_wakers`](Self::take_wakers), with those of the tasks and threads that wait for a
    /// buffer.
    #[must_use]
    pub(crate) fn take_all_wakers(&self) -> Vec<Waker> {
        let mut wakers = self.take_wakers();
        wakers.extend(self.pool.take_wakers());
        wakers
    }

    /// Takes the peers that both ends have finished with.
    pub(crate) fn take_finished(&self) -> Option<PeerId> {
        lock(&self.events).finished.pop()
    }

    /// Takes the oldest event.
    pub(crate) fn pop(&self) -> Option<RawEvent<P>> {
        lock(&self.events).queue.pop_front()
    }

    /// Puts back an event that [`pop`](Self::pop) has returned.
    #[cold]
    pub(crate) fn put_back(&self, event: RawEvent<P>) {
        lock(&self.events).queue.push_front(event);
    }

    /// Registers the waker of the task or thread that waits for an event.
    pub(crate) fn register_reader(&self, cx: &Context<'_>) {
        let waker = cx.waker().clone();
        let previous = lock(&self.events).reader.replace(waker);
        drop(previous);
    }

    /// Registers the waker of the task or thread that waits for the end of peers.
    pub(crate) fn register_shutdown(&self, cx: &Context<'_>) {
        let waker = cx.waker().clone();
        self.is_ending.store(true, Ordering::SeqCst);
        let mut events = lock(&self.events);
        if events.shutdown_wakers.iter().all(|known| !known.will_wake(&waker)) {
            events.shutdown_wakers.push(waker);
        } else {
            drop(events);
            drop(waker);
        }
    }
}

debug! {
    it: "Inbound" [P: Provider] Inbound<P> { pool = it.pool }
}

impl<P: Provider> Drop for Inbound<P> {
    fn drop(&mut self) {
        let receives = self.receives.get_mut();
        // Not dropped, even if destroying the SRQ panics.
        let slots = mem::ManuallyDrop::new(mem::take(&mut receives.slots));
        let destroyed = match receives.srq.take() {
            Some(srq) => srq.destroy().map(drop).map_err(Error::from),
            None => Err(Error::invalid("Server", "the SRQ is taken in `Drop` only")),
        };
        if destroyed.is_ok() {
            drop(mem::ManuallyDrop::into_inner(slots));
        }
    }
}

#[cfg(test)]
impl<P: Provider> Inbound<P> {
    pub(crate) fn set_word(&self, index: usize, word: u32) {
        let mut receives = lock(&self.receives);
        let own = receives.slots[index].word.as_mut().expect("the memory of a word");
        own.bytes_mut().copy_from_slice(&word.to_be_bytes());
    }

    pub(crate) fn set_generation(&self, index: usize, generation: u32) {
        lock(&self.receives).slots[index].generation = generation;
    }
}
