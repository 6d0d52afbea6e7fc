//! A ring of slots in memory shared with the kernel.
//!
//! The number of slots is a power of two. One slot always stays empty, so equal indices mean that
//! the ring is empty. Each side owns one index and reads the other's. This side works on private
//! copies: it fills or reads slots and then stores the shared index once per batch.
//!
//! The other side is trusted only with the bytes in the slots. Its index is masked when read, so
//! every returned pointer lies inside the ring. [`Producer::new`], [`Consumer::new`] and
//! [`Producer::resync`] also read this side's own index from shared memory and mask it.
//!
//! The other side executes the requests in published slots: it reads and writes the memory that
//! they refer to. Functions that decide which slots are published are `unsafe`:
//! [`Producer::advance`], [`FreeSlot::fill`], [`Producer::take_back`] and [`Producer::close`]. The
//! other methods of [`Producer`] publish only slots that were filled through these, or discard such
//! slots. A [`Consumer`] causes no access to memory outside the ring, so its methods are safe.
//!
//! ```compile_fail,E0133
//! # use bareverbs_provider::ring::Producer;
//! fn publish_what_is_in_the_slot(producer: &mut Producer) {
//!     producer.advance();
//!     producer.publish();
//! }
//! ```
//!
//! ```compile_fail,E0133
//! # use bareverbs_provider::ring::Producer;
//! fn publish_what_is_in_the_slot(producer: &mut Producer) {
//!     if let Some(slot) = producer.cached_free_slot() {
//!         slot.fill();
//!     }
//! }
//! ```
//!
//! ```compile_fail,E0133
//! # use bareverbs_provider::ring::Producer;
//! fn publish_the_rest_of_the_ring(producer: &mut Producer) {
//!     let batch = producer.publish();
//!     producer.take_back(batch);
//! }
//! ```
//!
//! ```compile_fail,E0133
//! # use bareverbs_provider::ring::Producer;
//! fn publish_the_whole_ring(producer: &mut Producer) {
//!     producer.close();
//!     producer.publish();
//! }
//! ```
//!
//! ```
//! use std::ptr::NonNull;
//!
//! use bareverbs_provider::ring::{Consumer, Producer, RingMemory};
//!
//! // Both sides in one process; the index words and four slots of 8 bytes.
//! let mut indices = [0u32; 2];
//! let mut slots = [0u64; 4];
//! let indices = NonNull::from(&mut indices).cast::<u32>();
//! // SAFETY: there are two words.
//! let consumer = unsafe { indices.add(1) };
//! let slots = NonNull::from(&mut slots).cast();
//! let ring = RingMemory { producer: indices, consumer, slots, log2_slot: 3, mask: 3 };
//!
//! // SAFETY: the memory outlives both, and each is the only one of its side.
//! let (mut producer, mut consumer) = unsafe { (Producer::new(ring), Consumer::new(ring)) };
//! while let Some(slot) = producer.next_slot() {
//!     // SAFETY: a free slot is the producer's, and any 8 bytes are an element of this ring.
//!     unsafe {
//!         slot.cast::<u64>().write(42);
//!         producer.advance();
//!     }
//! }
//! assert_eq!(producer.pending(), 3);
//! assert!(consumer.take().is_none(), "not published yet");
//! producer.publish();
//! assert!(consumer.take().is_some());
//! ```

use std::ptr::NonNull;

use crate::barrier::{publish_own_index, read_own_index, read_peer_index};
use crate::layout::{DoorbellLayout, QueueLayout};

/// Location of a ring in memory.
#[derive(Clone, Copy, Debug)]
pub struct RingMemory {
    /// The producer index: the slot that is filled next.
    pub producer: NonNull<u32>,
    /// The consumer index: the slot that is taken next.
    pub consumer: NonNull<u32>,
    /// The first slot.
    pub slots: NonNull<u8>,
    /// Binary logarithm of the bytes of a slot.
    pub log2_slot: u32,
    /// Number of slots, a power of two, less one.
    pub mask: u32,
}

impl RingMemory {
    /// Bytes of all slots together.
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        (self.mask as u64 + 1) << self.log2_slot
    }

    fn layout(&self, index: u32) -> QueueLayout {
        let doorbell = DoorbellLayout::Indices { producer: self.producer, consumer: self.consumer };
        QueueLayout::new(self.slots, self.mask + 1, 1 << self.log2_slot, index, doorbell)
    }

    #[inline]
    fn slot(&self, index: u32) -> NonNull<u8> {
        debug_assert!(index <= self.mask);
        // SAFETY: `index` was masked, so the offset is below `bytes()`, which the constructors
        // require to be valid.
        unsafe { self.slots.add((index as usize) << self.log2_slot) }
    }
}

/// The producer side of a ring.
#[derive(Debug)]
pub struct Producer {
    ring: RingMemory,
    /// Private producer index: the next slot to fill.
    next: u32,
    /// The last published producer index.
    published: u32,
    /// The consumer index as last read. The consumer may have advanced since.
    taken: u32,
    /// Whether [`Producer::close`] made the ring full, regardless of the consumer index.
    closed: bool,
}

// SAFETY: the ring's memory belongs to no thread, and the caller of `Producer::new` promised that
// nothing else uses the producer's side of it.
unsafe impl Send for Producer {}

/// A published batch, for [`Producer::take_back`].
#[derive(Clone, Copy, Debug)]
pub struct Published {
    from: u32,
    count: u32,
}

impl Published {
    /// Number of slots in the batch.
    #[inline]
    #[must_use]
    pub fn count(&self) -> u32 {
        self.count
    }
}

/// The next slot to fill.
#[derive(Debug)]
pub struct FreeSlot<'a> {
    producer: &'a mut Producer,
    after: u32,
}

impl FreeSlot<'_> {
    /// Its first byte. Until it is filled and published, nothing else reads or writes it.
    #[inline(always)]
    #[must_use]
    pub fn start(&self) -> NonNull<u8> {
        self.producer.ring.slot(self.producer.next)
    }

    /// Marks the slot as filled.
    ///
    /// # Safety
    ///
    /// As for [`Producer::advance`].
    #[inline(always)]
    pub unsafe fn fill(self) {
        self.producer.next = self.after;
    }
}

/// A position in the ring.
#[derive(Clone, Copy, Debug)]
pub struct Position(u32);

impl Producer {
    /// Creates the producer at the shared producer index.
    ///
    /// # Safety
    ///
    /// `ring.mask + 1` must be a power of two. The index words must be aligned. They and the slots
    /// must be valid for reads and writes as long as the `Producer` or any pointer from it is used.
    /// Nothing else in this process may act as this ring's producer, or access the words except
    /// through [`crate::barrier`].
    #[must_use]
    pub unsafe fn new(ring: RingMemory) -> Self {
        // SAFETY: valid by this function's contract.
        let own = unsafe { read_own_index(ring.producer.as_ptr()) } & ring.mask;
        // SAFETY: valid by this function's contract.
        let taken = unsafe { read_peer_index(ring.consumer.as_ptr()) } & ring.mask;
        Self { ring, next: own, published: own, taken, closed: false }
    }

    /// Capacity: the largest number of slots that can be filled at the same time.
    #[inline]
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.ring.mask
    }

    /// Addresses of the ring and its indices, and the next slot to fill.
    #[must_use]
    pub fn layout(&self) -> QueueLayout {
        self.ring.layout(self.next)
    }

    /// All slots. The other side may be writing some of them.
    pub fn slots(&self) -> impl Iterator<Item = NonNull<u8>> + '_ {
        (0..=self.ring.mask).map(|index| self.ring.slot(index))
    }

    /// The next slot to fill, unless the ring is full. It stays the next one until
    /// [`Producer::advance`].
    ///
    /// Until then nothing else reads or writes it, so plain writes are in order.
    #[inline]
    #[must_use]
    pub fn next_slot(&mut self) -> Option<NonNull<u8>> {
        let after = (self.next + 1) & self.ring.mask;
        if after == self.taken {
            // SAFETY: the words are valid: promised by the caller of `new`.
            let taken = unsafe { read_peer_index(self.ring.consumer.as_ptr()) } & self.ring.mask;
            if after == taken || self.closed {
                return None;
            }
            self.taken = taken;
        }
        Some(self.ring.slot(self.next))
    }

    /// The next slot to fill, unless the ring is full according to the cached consumer index.
    ///
    /// This is the fast path of [`Producer::next_slot`]: it does not read the other side's index.
    #[inline(always)]
    pub fn cached_free_slot(&mut self) -> Option<FreeSlot<'_>> {
        let after = (self.next + 1) & self.ring.mask;
        if after == self.taken {
            return None;
        }
        Some(FreeSlot { after, producer: self })
    }

    /// Marks the slot that [`Producer::next_slot`] returned as filled.
    ///
    /// # Safety
    ///
    /// 1. [`Producer::next_slot`] returned the slot since the last `advance`, [`FreeSlot::fill`] or
    ///    [`Producer::resync`]: it is free.
    /// 2. The slot holds a complete element. If the other side executes elements, as the kernel
    ///    does with requests, then it may access the memory that this element refers to from the
    ///    next [`Producer::publish`] or [`Producer::publish_next`] on, unless [`Producer::abort`]
    ///    or [`Producer::abort_to`] comes first.
    #[inline]
    pub unsafe fn advance(&mut self) {
        self.next = (self.next + 1) & self.ring.mask;
    }

    /// Number of filled slots that are not published.
    #[inline]
    #[must_use]
    pub fn pending(&self) -> u32 {
        self.next.wrapping_sub(self.published) & self.ring.mask
    }

    /// Number of published slots that the consumer has not released yet. The consumer may release
    /// more meanwhile.
    #[must_use]
    pub fn outstanding(&self) -> u32 {
        // SAFETY: the words are valid: promised by the caller of `new`.
        let taken = unsafe { read_peer_index(self.ring.consumer.as_ptr()) } & self.ring.mask;
        self.published.wrapping_sub(taken) & self.ring.mask
    }

    /// Publishes all filled slots.
    #[inline]
    pub fn publish(&mut self) -> Published {
        let next = self.next;
        let batch = Published { from: self.published, count: self.pending() };
        // SAFETY: the words are valid: promised by the caller of `new`.
        unsafe { publish_own_index(self.ring.producer.as_ptr(), next) };
        self.published = next;
        batch
    }

    /// Publishes the first filled slot that is not published yet, if there is one.
    pub fn publish_next(&mut self) -> Published {
        let count = self.pending().min(1);
        let batch = Published { from: self.published, count };
        self.published = (self.published + count) & self.ring.mask;
        // SAFETY: the words are valid: promised by the caller of `new`.
        unsafe { publish_own_index(self.ring.producer.as_ptr(), self.published) };
        batch
    }

    /// The slot that was published last; in a new ring, a slot that never was published. The other
    /// side may be writing it, as in [`Producer::slots`].
    #[inline]
    #[must_use]
    pub fn last_published(&self) -> NonNull<u8> {
        self.ring.slot(self.published.wrapping_sub(1) & self.ring.mask)
    }

    /// Withdraws the batch that was published last, and discards slots that were filled since.
    ///
    /// # Safety
    ///
    /// 1. `batch` must be the return value of the last [`Producer::publish`] or
    ///    [`Producer::publish_next`] of this producer.
    /// 2. The consumer must not have taken a slot of the batch, and must not take one during the
    ///    call. A consumer that is past the start of the batch takes the rest of the ring for
    ///    filled slots. If this is possible, the caller must know that the consumer accesses no
    ///    memory that those slots refer to.
    pub unsafe fn take_back(&mut self, batch: Published) {
        // SAFETY: the words are valid: promised by the caller of `new`.
        unsafe { publish_own_index(self.ring.producer.as_ptr(), batch.from) };
        self.published = batch.from;
        self.next = batch.from;
    }

    /// Makes the ring full until [`Producer::resync`], with the consumer index as it is.
    ///
    /// # Safety
    ///
    /// The consumer must no longer read the slots or the producer index: a later
    /// [`Producer::publish`] stores an index that makes every slot look filled.
    pub unsafe fn close(&mut self) {
        // SAFETY: the words are valid: promised by the caller of `new`.
        self.taken = unsafe { read_peer_index(self.ring.consumer.as_ptr()) } & self.ring.mask;
        self.next = self.taken.wrapping_sub(1) & self.ring.mask;
        self.published = self.next;
        self.closed = true;
    }

    /// Discards the filled slots that were not published.
    #[inline]
    pub fn abort(&mut self) {
        self.next = self.published;
    }

    /// The current position, for [`Producer::abort_to`] and [`Producer::pending_before`].
    #[inline]
    #[must_use]
    pub fn position(&self) -> Position {
        Position(self.next)
    }

    /// Number of filled slots before `position` that are not published.
    #[inline]
    #[must_use]
    pub fn pending_before(&self, position: Position) -> u32 {
        position.0.wrapping_sub(self.published) & self.ring.mask
    }

    /// Discards the slots that were filled since `position`. If slots before it were published or
    /// discarded since, discards all slots that were not published.
    #[inline]
    pub fn abort_to(&mut self, position: Position) {
        let keep = self.pending_before(position);
        let keep = if keep <= self.pending() { keep } else { 0 };
        self.next = (self.published + keep) & self.ring.mask;
    }

    /// Restarts at the shared indices, for use after the consumer has emptied the ring. Slots that
    /// were filled and not published are discarded.
    pub fn resync(&mut self) {
        // SAFETY: the caller of `Producer::new` promised that the ring stays valid as long as the
        // `Producer` is used, and that it is the only producer.
        *self = unsafe { Self::new(self.ring) };
    }
}

/// The consumer side of a ring.
#[derive(Debug)]
pub struct Consumer {
    ring: RingMemory,
    /// Private consumer index: the next slot to take.
    next: u32,
    /// The producer index as last read. The producer may have advanced since.
    filled: u32,
}

// SAFETY: the ring's memory belongs to no thread, and the caller of `Consumer::new` promised that
// nothing else uses the consumer's side of it.
unsafe impl Send for Consumer {}

impl Consumer {
    /// Creates the consumer at the shared consumer index.
    ///
    /// # Safety
    ///
    /// As for [`Producer::new`], with the roles of producer and consumer exchanged.
    #[must_use]
    pub unsafe fn new(ring: RingMemory) -> Self {
        // SAFETY: valid by this function's contract.
        let own = unsafe { read_own_index(ring.consumer.as_ptr()) } & ring.mask;
        Self { ring, next: own, filled: own }
    }

    /// Capacity: the largest number of slots that can be filled at the same time.
    #[inline]
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.ring.mask
    }

    /// Addresses of the ring and its indices, and the next slot to take.
    #[must_use]
    pub fn layout(&self) -> QueueLayout {
        self.ring.layout(self.next)
    }

    /// Takes the next filled slot, if there is one.
    ///
    /// Its bytes stay unchanged until [`Consumer::release`]. A misbehaving producer may change them
    /// all the same, so they must be read as volatile.
    #[inline]
    #[must_use]
    pub fn take(&mut self) -> Option<NonNull<u8>> {
        // The compiler must assume that the producer index may alias any index, also this one.
        let next = self.next;
        if next == self.filled {
            // SAFETY: the words are valid: promised by the caller of `new`.
            let filled = unsafe { read_peer_index(self.ring.producer.as_ptr()) } & self.ring.mask;
            if next == filled {
                return None;
            }
            self.filled = filled;
        }
        self.next = (next + 1) & self.ring.mask;
        Some(self.ring.slot(next))
    }

    /// Takes filled slots, up to the length of `into`, stores `value` of each in `into`, and
    /// releases all taken slots. Returns the number of slots.
    #[inline(always)]
    pub fn take_into<T>(&mut self, into: &mut [T], value: impl Fn(NonNull<u8>) -> T) -> usize {
        let RingMemory { producer, mask, .. } = self.ring;
        let mut next = self.next;
        // SAFETY: the words are valid: promised by the caller of `new`.
        let filled = unsafe { read_peer_index(producer.as_ptr()) } & mask;
        if next == filled {
            return 0;
        }
        self.filled = filled;
        // Usually there is only one slot, so it is handled before the cost of a loop.
        let [first, rest @ ..] = into else { return 0 };
        *first = value(self.ring.slot(next));
        next = (next + 1) & mask;
        let mut taken = 1;
        if next != filled {
            // One bound for both the ring and the places.
            let further = rest.len().min((filled.wrapping_sub(next) & mask) as usize);
            for place in &mut rest[..further] {
                *place = value(self.ring.slot(next));
                next = (next + 1) & mask;
            }
            taken += further;
        }
        self.next = next;
        self.release();
        taken
    }

    /// Releases all taken slots.
    #[inline]
    pub fn release(&mut self) {
        // SAFETY: the words are valid: promised by the caller of `new`.
        unsafe { publish_own_index(self.ring.consumer.as_ptr(), self.next) };
    }

    /// Restarts at the shared indices, for use after the producer's side has moved the consumer
    /// index. Slots that were taken and not released are taken again.
    pub fn resync(&mut self) {
        // SAFETY: the caller of `Consumer::new` promised that the ring stays valid as long as the
        // `Consumer` is used, and that it is the only consumer.
        *self = unsafe { Self::new(self.ring) };
    }
}
