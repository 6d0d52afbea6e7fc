//! A ring of slots in memory shared with the kernel.
//!
//! The number of slots is a power of two and one slot always stays empty, so that equal indices
//! mean "empty" and nothing else. Each side owns one index and reads the other's. This side works
//! on private copies: slots are filled or read at leisure, and the shared index is stored once per
//! batch.
//!
//! The other side is not trusted with more than the bytes in the slots. Its index is masked when
//! read, so whatever it holds, every pointer given out lies inside the ring. [`Producer::new`],
//! [`Consumer::new`] and [`Producer::resync`] take this side's own index from the shared memory
//! too, masked as well.
//!
//! The other side carries out the requests in published slots: it reads and writes the memory that
//! they name. Functions that decide which slots are published are `unsafe`: [`Producer::advance`],
//! [`FreeSlot::fill`], [`Producer::take_back`] and [`Producer::close`]. The rest of [`Producer`]
//! publishes only slots that were filled through these, or forgets such slots. A [`Consumer`] makes
//! no side touch any memory but the ring, so its methods are safe.
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

/// Where a ring lies.
#[derive(Clone, Copy, Debug)]
pub struct RingMemory {
    /// The index of the slot that is filled next.
    pub producer: NonNull<u32>,
    /// The index of the slot that is taken next.
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

    #[inline]
    fn slot(&self, index: u32) -> NonNull<u8> {
        debug_assert!(index <= self.mask);
        // SAFETY: `index` was masked, so the offset is below `bytes()`, which the constructors
        // require to be valid.
        unsafe { self.slots.add((index as usize) << self.log2_slot) }
    }
}

/// The side that fills slots.
#[derive(Debug)]
pub struct Producer {
    ring: RingMemory,
    /// The slot to fill next.
    next: u32,
    /// The index that was published last.
    published: u32,
    /// The other side's index as last read; it may have taken more since.
    taken: u32,
    /// Whether [`Producer::close`] made the ring full, whatever the other side's index says.
    closed: bool,
}

// SAFETY: the ring's memory belongs to no thread, and the caller of `Producer::new` promised that
// nothing else uses the producer's side of it.
unsafe impl Send for Producer {}

/// A batch that was published, as [`Producer::take_back`] wants it.
#[derive(Clone, Copy, Debug)]
pub struct Published {
    from: u32,
    count: u32,
}

impl Published {
    /// How many slots it has.
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

    /// Counts it as filled.
    ///
    /// # Safety
    ///
    /// As for [`Producer::advance`].
    #[inline(always)]
    pub unsafe fn fill(self) {
        self.producer.next = self.after;
    }
}

/// A place in the ring.
#[derive(Clone, Copy, Debug)]
pub struct Position(u32);

impl Producer {
    /// Takes up the producer's side where the shared index stands.
    ///
    /// # Safety
    ///
    /// `ring.mask + 1` must be a power of two. The index words must be aligned, and they and the
    /// slots valid for reads and writes as long as the `Producer` and any pointer from it is used.
    /// Nothing else in this process may act as this ring's producer or access the words except
    /// through [`crate::barrier`].
    #[must_use]
    pub unsafe fn new(ring: RingMemory) -> Self {
        // SAFETY: valid by this function's contract.
        let own = unsafe { read_own_index(ring.producer.as_ptr()) } & ring.mask;
        // SAFETY: valid by this function's contract.
        let taken = unsafe { read_peer_index(ring.consumer.as_ptr()) } & ring.mask;
        Self { ring, next: own, published: own, taken, closed: false }
    }

    /// Slots that can be filled at the same time.
    #[inline]
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.ring.mask
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

    /// The next slot to fill, unless the ring is full by the cached index of the other side.
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

    /// Counts the slot that [`Producer::next_slot`] gave as filled.
    ///
    /// # Safety
    ///
    /// 1. [`Producer::next_slot`] returned the slot since the last `advance`, [`FreeSlot::fill`]
    ///    or [`Producer::resync`]: it is free.
    /// 2. The slot holds a whole element. If the other side carries out elements, as the kernel
    ///    does with requests, then the memory that this one names may be read and written so from
    ///    the next [`Producer::publish`] or [`Producer::publish_next`] on, unless
    ///    [`Producer::abort`] or [`Producer::abort_to`] comes first.
    #[inline]
    pub unsafe fn advance(&mut self) {
        self.next = (self.next + 1) & self.ring.mask;
    }

    /// Filled slots that are not published.
    #[inline]
    #[must_use]
    pub fn pending(&self) -> u32 {
        self.next.wrapping_sub(self.published) & self.ring.mask
    }

    /// Slots that were published and that the other side has not yet given back; it may give back
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

    /// The slot that was published last; in a new ring, one that never was. The other side may be
    /// writing it, as in [`Producer::slots`].
    #[inline]
    #[must_use]
    pub fn last_published(&self) -> NonNull<u8> {
        self.ring.slot(self.published.wrapping_sub(1) & self.ring.mask)
    }

    /// Withdraws the batch that was published last, and forgets what was filled since.
    ///
    /// # Safety
    ///
    /// 1. `batch` must be what the last [`Producer::publish`] or [`Producer::publish_next`] of this
    ///    producer returned.
    /// 2. The other side must not have taken a slot of the batch, and not take one while this runs.
    ///    A peer that is past the start of the batch takes the rest of the ring for filled slots;
    ///    where it may be, it must be known that it accesses no memory that those name.
    pub unsafe fn take_back(&mut self, batch: Published) {
        // SAFETY: the words are valid: promised by the caller of `new`.
        unsafe { publish_own_index(self.ring.producer.as_ptr(), batch.from) };
        self.published = batch.from;
        self.next = batch.from;
    }

    /// Makes the ring full until [`Producer::resync`], where the other side has left it.
    ///
    /// # Safety
    ///
    /// The other side must not read the slots or the producer's index any more: a later
    /// [`Producer::publish`] stores an index that makes every slot look filled.
    pub unsafe fn close(&mut self) {
        // SAFETY: the words are valid: promised by the caller of `new`.
        self.taken = unsafe { read_peer_index(self.ring.consumer.as_ptr()) } & self.ring.mask;
        self.next = self.taken.wrapping_sub(1) & self.ring.mask;
        self.published = self.next;
        self.closed = true;
    }

    /// Forgets the filled slots that were not published.
    #[inline]
    pub fn abort(&mut self) {
        self.next = self.published;
    }

    /// Where the next slot is, as [`Producer::abort_to`] and [`Producer::pending_before`] want it.
    #[inline]
    #[must_use]
    pub fn position(&self) -> Position {
        Position(self.next)
    }

    /// Filled slots before `position` that are not published.
    #[inline]
    #[must_use]
    pub fn pending_before(&self, position: Position) -> u32 {
        position.0.wrapping_sub(self.published) & self.ring.mask
    }

    /// Forgets the slots that were filled since `position`, unless some before it were published or
    /// forgotten since: then those that were not published.
    #[inline]
    pub fn abort_to(&mut self, position: Position) {
        let keep = self.pending_before(position);
        let keep = if keep <= self.pending() { keep } else { 0 };
        self.next = (self.published + keep) & self.ring.mask;
    }

    /// Takes the ring up anew where the shared indices stand, as after the other side has emptied
    /// it. Slots that were filled and not published are forgotten.
    pub fn resync(&mut self) {
        // SAFETY: who called `Producer::new` promised that the ring stays valid as long as the
        // `Producer` is used, and that it is the only producer.
        *self = unsafe { Self::new(self.ring) };
    }
}

/// The side that takes slots.
#[derive(Debug)]
pub struct Consumer {
    ring: RingMemory,
    /// The slot to take next.
    next: u32,
    /// The other side's index as last read; it may have filled more since.
    filled: u32,
}

// SAFETY: the ring's memory belongs to no thread, and the caller of `Consumer::new` promised that
// nothing else uses the consumer's side of it.
unsafe impl Send for Consumer {}

impl Consumer {
    /// Takes up the consumer's side where the shared index stands.
    ///
    /// # Safety
    ///
    /// As for [`Producer::new`], with the consumer in the producer's place.
    #[must_use]
    pub unsafe fn new(ring: RingMemory) -> Self {
        // SAFETY: valid by this function's contract.
        let own = unsafe { read_own_index(ring.consumer.as_ptr()) } & ring.mask;
        Self { ring, next: own, filled: own }
    }

    /// Slots that can be filled at the same time.
    #[inline]
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.ring.mask
    }

    /// Takes the next filled slot, if there is one.
    ///
    /// Its bytes stay in place until [`Consumer::release`]. A peer that breaks the rules may change
    /// them all the same, so they must be read as volatile.
    #[inline]
    #[must_use]
    pub fn take(&mut self) -> Option<NonNull<u8>> {
        // The compiler must take it that the other side's index is anything's index, this one's
        // too.
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

    /// Takes as many filled slots as there are and as `into` has room for, puts what `value` makes
    /// of each into it, and gives all taken slots back; tells how many.
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
        // The first is mostly the only one, so it comes before what a loop costs.
        let [first, rest @ ..] = into else { return 0 };
        *first = value(self.ring.slot(next));
        next = (next + 1) & mask;
        let mut taken = 1;
        if next != filled {
            for place in rest {
                *place = value(self.ring.slot(next));
                next = (next + 1) & mask;
                taken += 1;
                if next == filled {
                    break;
                }
            }
        }
        self.next = next;
        self.release();
        taken
    }

    /// Gives all taken slots back.
    #[inline]
    pub fn release(&mut self) {
        // SAFETY: the words are valid: promised by the caller of `new`.
        unsafe { publish_own_index(self.ring.consumer.as_ptr(), self.next) };
    }

    /// Takes the ring up anew where the shared indices stand, as after the other side has moved
    /// this side's index. Slots that were taken and not released are taken again.
    pub fn resync(&mut self) {
        // SAFETY: who called `Consumer::new` promised that the ring stays valid as long as the
        // `Consumer` is used, and that it is the only consumer.
        *self = unsafe { Self::new(self.ring) };
    }
}
