//! Queues of elements that carry their owner in their flags, in memory shared with the kernel.
//!
//! There are no shared indices. The producer fills an element and then stores its word, whose flags have
//! the bit [`VALID`], which gives it to the consumer. The consumer copies the element and stores flags of
//! 0, which gives it back. Each side counts privately, modulo the number of elements, a power of two.
//!
//! The other side is trusted only with the bytes of the elements: every returned pointer is that of an
//! element. The consumer executes the requests in published elements, so the functions that decide which
//! ones are published are `unsafe`, as in [`ring`](crate::ring):
//!
//! ```compile_fail,E0133
//! # use bareverbs_provider::elements::{ElementProducer, Published};
//! fn publish_what_is_in_the_element(producer: &mut ElementProducer, published: &Published) {
//!     producer.advance(0);
//!     producer.publish(published, |_| 0);
//! }
//! ```

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::barrier::{read_element_word, set_element_bits, store_element_word};

/// The flag of an element that the consumer owns.
pub const VALID: u16 = 1;

/// Offset of the word in an element, in bytes. It begins with the flags.
const WORD: usize = 8;

/// The flags of a request in its word.
#[inline(always)]
const fn in_word(flags: u16) -> u64 {
    let [low, high] = flags.to_ne_bytes();
    u64::from_ne_bytes([low, high, 0, 0, 0, 0, 0, 0])
}

/// [`VALID`] in the word of a request: its flags have 16 bits.
const VALID_REQUEST: u64 = in_word(VALID);

/// [`VALID`] in the word of a completion: its flags have 8 bits.
const VALID_COMPLETION: u64 = u64::from_ne_bytes([VALID as u8, 0, 0, 0, 0, 0, 0, 0]);

/// Location of a queue of elements in memory.
#[derive(Clone, Copy, Debug)]
pub struct ElementMemory {
    /// The first element.
    pub first: NonNull<u8>,
    /// Bytes from an element to the next one.
    pub stride: usize,
    /// Number of elements less one. The number is a power of two.
    pub mask: u32,
}

// SAFETY: the location belongs to no thread, and a shared one gives out raw pointers only.
unsafe impl Send for ElementMemory {}
// SAFETY: as above.
unsafe impl Sync for ElementMemory {}

impl ElementMemory {
    #[inline(always)]
    fn element(&self, count: u32) -> NonNull<u8> {
        let index = (count & self.mask) as usize;
        // SAFETY: the index is that of an element, all of which are valid, by the contracts of the
        // constructors of the queues.
        unsafe { self.first.add(index * self.stride) }
    }

    /// The end of the last element.
    fn end(&self) -> NonNull<u8> {
        // SAFETY: all elements are valid, by the contracts of the constructors of the queues.
        unsafe { self.first.add((self.mask as usize + 1) * self.stride) }
    }

    /// The element after `element`. `end` is that of the queue.
    ///
    /// # Safety
    ///
    /// It must be an element of the queue.
    #[inline(always)]
    unsafe fn after(&self, element: NonNull<u8>, end: NonNull<u8>) -> NonNull<u8> {
        // SAFETY: the result is an element, or the end of the last one.
        let next = unsafe { element.add(self.stride) };
        if next == end { self.first } else { next }
    }

    /// Whether this request is the consumer's.
    #[inline(always)]
    fn is_valid(&self, count: u32) -> bool {
        // SAFETY: `element` returned it.
        unsafe { is_valid(self.element(count)) }
    }
}

/// The place of an element's word.
///
/// # Safety
///
/// It must be an element of a queue.
#[inline(always)]
unsafe fn word_of(element: NonNull<u8>) -> *mut u64 {
    // SAFETY: the word is in the element.
    unsafe { element.add(WORD) }.as_ptr().cast()
}

/// Whether a request is the consumer's.
///
/// # Safety
///
/// It must be an element of a queue.
#[inline(always)]
unsafe fn is_valid(element: NonNull<u8>) -> bool {
    // SAFETY: the word is aligned and valid, and all accesses go through `barrier`, by the contracts of the
    // constructors of the queues.
    unsafe { read_element_word(word_of(element)) & VALID_REQUEST != 0 }
}

/// Stores the word of an element.
///
/// # Safety
///
/// It must be an element of a queue.
#[inline(always)]
unsafe fn store_word(element: NonNull<u8>, word: u64) {
    // SAFETY: as in `is_valid`.
    unsafe { store_element_word(word_of(element), word) }
}

/// The number of elements that a producer has published, for [`take_back`].
pub type Published = AtomicU32;

/// The producer's side of a send queue or receive queue.
///
/// The word of an element that was filled is in the element, without any flag until it is published: a
/// consumer that stops may take elements with other flags than [`VALID`] for published ones
/// (`siw_sq_flush` of `siw_qp.c`).
#[derive(Debug)]
pub struct ElementProducer {
    memory: ElementMemory,
    end: NonNull<u8>,
    /// The element that is filled next.
    next: NonNull<u8>,
    /// Elements that were published.
    published: u32,
    /// Elements that were filled and not published.
    pending: u32,
}

// SAFETY: the memory belongs to no thread, and the caller of `new` promised that nothing else is its
// producer.
unsafe impl Send for ElementProducer {}

impl ElementProducer {
    /// Creates the producer of an empty queue.
    ///
    /// # Safety
    ///
    /// 1. The elements must be valid for reads and writes until the value is dropped, and no Rust
    ///    reference to them may exist. Their number must be a power of two of at most 2^31.
    /// 2. This must be the only producer of the queue, and all elements must have the flags 0.
    /// 3. The 8 bytes from offset 8 on must be aligned, and stored by this process only through this
    ///    module.
    #[must_use]
    pub unsafe fn new(memory: ElementMemory) -> Self {
        Self { memory, end: memory.end(), next: memory.first, published: 0, pending: 0 }
    }

    /// Number of elements.
    #[inline]
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.memory.mask + 1
    }

    /// Elements that were filled and not published.
    #[inline]
    #[must_use]
    pub fn pending(&self) -> u32 {
        self.pending
    }

    /// The next element, if it is free.
    #[inline(always)]
    #[must_use]
    pub fn next_element(&self) -> Option<NonNull<u8>> {
        // SAFETY: `next` is an element.
        let is_free = unsafe { !is_valid(self.next) } && self.pending <= self.memory.mask;
        is_free.then_some(self.next)
    }

    /// The next element, if it is free and none is pending, for [`publish_next`](Self::publish_next).
    #[inline(always)]
    #[must_use]
    pub fn only_element(&self) -> Option<NonNull<u8>> {
        // SAFETY: `next` is an element.
        let is_free = unsafe { !is_valid(self.next) } && self.pending == 0;
        is_free.then_some(self.next)
    }

    /// Adds the next element to the batch, with this word. Its flags are those of
    /// [`publish`](Self::publish).
    ///
    /// # Safety
    ///
    /// [`next_element`](Self::next_element) must have returned it since the last call, and it must hold a
    /// complete request except for its word, whose memory the consumer may access once it is published.
    #[inline(always)]
    pub unsafe fn advance(&mut self, word: u64) {
        // SAFETY: `next` is an element.
        unsafe {
            store_word(self.next, word & !in_word(u16::MAX));
            self.next = self.memory.after(self.next, self.end);
        }
        self.pending = self.pending.wrapping_add(1);
    }

    /// Adds the next elements to the batch, while they are free, at most `most`. `fill` fills each: it takes
    /// its place among them, and returns its word, or ends the list. Returns their number.
    ///
    /// # Safety
    ///
    /// An element whose word `fill` returns must be as for [`advance`](Self::advance).
    #[inline(always)]
    pub unsafe fn advance_by(
        &mut self,
        most: usize,
        mut fill: impl FnMut(usize, NonNull<u8>) -> Option<u64>,
    ) -> usize {
        let most = most.min((self.capacity() - self.pending) as usize);
        let (mut next, end) = (self.next, self.end);
        let mut filled = 0;
        while filled < most {
            // SAFETY: `next` is an element.
            if unsafe { is_valid(next) } {
                break;
            }
            let Some(word) = fill(filled, next) else { break };
            // SAFETY: as above.
            unsafe {
                store_word(next, word & !in_word(u16::MAX));
                next = self.memory.after(next, end);
            }
            filled += 1;
        }
        self.next = next;
        self.pending += filled as u32;
        filled
    }

    /// Publishes the batch, in order. `count` is set to the number of published elements before. `flags`
    /// returns those of an element, by its place in the batch; [`VALID`] is added.
    #[inline(always)]
    pub fn publish(&mut self, count: &Published, flags: impl Fn(u32) -> u16) {
        let mut element = self.memory.element(self.published);
        self.published = self.published.wrapping_add(self.pending);
        count.store(self.published, Ordering::Relaxed);
        for place in 0..self.pending {
            // SAFETY: the element is pending, so its word was stored.
            element = unsafe {
                set_element_bits(word_of(element), in_word(flags(place) | VALID));
                self.memory.after(element, self.end)
            };
        }
        self.pending = 0;
    }

    /// Publishes the next element with this word and its flags, as a batch of its own. `count` as for
    /// [`publish`](Self::publish).
    ///
    /// # Safety
    ///
    /// As for [`advance`](Self::advance), with [`only_element`](Self::only_element), which must have returned
    /// `element`.
    #[inline(always)]
    pub unsafe fn publish_next(&mut self, element: NonNull<u8>, word: u64, count: &Published) {
        self.published = self.published.wrapping_add(1);
        // Only the producer stores.
        count.store(count.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        // SAFETY: `next` is an element.
        unsafe {
            store_word(element, word | VALID_REQUEST);
            self.next = self.memory.after(element, self.end);
        }
    }

    /// Whether the element that was published as the last one before the batch of `batch` elements, the last
    /// one that was published, is free again. The consumer may be idle then. `true` for a batch of all
    /// elements.
    ///
    /// [`barrier::before_peer_is_checked`](crate::barrier::before_peer_is_checked) must be between the
    /// publication and this call: otherwise the consumer may miss the batch, and this call its idleness.
    #[inline(always)]
    #[must_use]
    pub fn consumer_may_be_idle(&self, batch: u32) -> bool {
        batch > self.memory.mask || !self.memory.is_valid(self.published.wrapping_sub(batch).wrapping_sub(1))
    }

    /// Whether the consumer has taken the first one of the last `batch` published elements.
    #[must_use]
    pub fn has_begun(&self, batch: u32) -> bool {
        !self.memory.is_valid(self.published.wrapping_sub(batch))
    }

    /// Discards the elements that were filled after the first `keep` ones of the batch.
    #[inline]
    pub fn abort_to(&mut self, keep: u32) {
        self.pending = self.pending.min(keep);
        self.next = self.memory.element(self.published.wrapping_add(self.pending));
    }
}

/// Takes back the published elements that the consumer has not taken, in the order of publication. `take`
/// reads each.
///
/// # Safety
///
/// 1. `memory` must be that of an [`ElementProducer`], and valid. `published` must be the counter that is
///    passed to its `publish`.
/// 2. The consumer must have stopped: it takes no element now or later, except that it may report one as
///    failed.
/// 3. Calls for the same queue must not overlap.
pub unsafe fn take_back(memory: ElementMemory, published: &Published, mut take: impl FnMut(NonNull<u8>)) {
    // From the newest to the oldest: who sees the flags of an element sees those of the elements before it.
    // Elements of a later publication are not among these numbers, so the search begins again. Its thread
    // finds the consumer stopped, and waits for this call.
    let newest_first = loop {
        let end = published.load(Ordering::Relaxed);
        let numbers = (0..=memory.mask).map(|age| end.wrapping_sub(1).wrapping_sub(age));
        let valid: Vec<u32> = numbers.filter(|number| memory.is_valid(*number)).collect();
        if published.load(Ordering::Relaxed) == end {
            break valid;
        }
    };
    for number in newest_first.into_iter().rev() {
        let element = memory.element(number);
        take(element);
        // SAFETY: `element` returned it.
        unsafe { store_word(element, 0) };
    }
}

/// Whether the element of a completion queue with this number, counted modulo the number of elements, was
/// filled and not given back. Any thread may ask.
///
/// # Safety
///
/// `memory` must be that of an [`ElementConsumer`], and valid.
#[must_use]
pub unsafe fn is_filled(memory: ElementMemory, count: u32) -> bool {
    // SAFETY: the word is aligned and valid, and all accesses go through `barrier`.
    unsafe { read_element_word(word_of(memory.element(count))) & VALID_COMPLETION != 0 }
}

/// The consumer's side of a completion queue.
#[derive(Debug)]
pub struct ElementConsumer {
    memory: ElementMemory,
    /// The next element. An index would be multiplied for each access.
    next: NonNull<u8>,
    end: NonNull<u8>,
}

// SAFETY: the memory belongs to no thread, and the caller of `new` promised that nothing else is its
// consumer.
unsafe impl Send for ElementConsumer {}

/// An element of a completion queue that the producer has filled.
#[derive(Clone, Copy, Debug)]
pub struct FilledElement {
    /// The element.
    pub element: NonNull<u8>,
    /// The word with its flags.
    pub word: u64,
}

impl ElementConsumer {
    /// Creates the consumer of a queue.
    ///
    /// # Safety
    ///
    /// As for [`ElementProducer::new`], with one consumer.
    #[must_use]
    pub unsafe fn new(memory: ElementMemory) -> Self {
        Self { memory, next: memory.first, end: memory.end() }
    }

    /// Number of elements.
    #[inline]
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.memory.mask + 1
    }

    /// The next element, if the producer has filled it. It stays this side's until
    /// [`release`](Self::release).
    #[inline(always)]
    #[must_use]
    pub fn peek(&self) -> Option<FilledElement> {
        let element = self.next;
        // SAFETY: `next` is an element. Its word is aligned and valid, and all accesses go through
        // `barrier`, by the contract of `new`.
        let word = unsafe { read_element_word(word_of(element)) };
        (word & VALID_COMPLETION != 0).then_some(FilledElement { element, word })
    }

    /// Takes elements into `into` until it is full, no element is filled or `copy` declines one by `false`.
    /// An element that was copied is given back. Returns their number.
    #[inline(always)]
    pub fn take_into<T>(
        &mut self,
        into: &mut [T],
        mut copy: impl FnMut(FilledElement, &mut T) -> bool,
    ) -> usize {
        let mut taken = 0;
        for slot in into {
            let Some(filled) = self.peek() else { break };
            if !copy(filled, slot) {
                break;
            }
            // SAFETY: `peek` returned it.
            unsafe { self.release(filled) };
            taken += 1;
        }
        taken
    }

    /// Gives the element that [`peek`](Self::peek) returned back to the producer.
    ///
    /// # Safety
    ///
    /// It must be the result of the last call, which must not have been given back.
    #[inline(always)]
    pub unsafe fn release(&mut self, FilledElement { element, .. }: FilledElement) {
        // SAFETY: as in `peek`. `element` is `next`, by this function's contract.
        unsafe {
            store_word(element, 0);
            self.next = self.memory.after(element, self.end);
        }
    }
}
