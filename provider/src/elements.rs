//! Queues of elements that carry their owner in their flags, in memory shared with the kernel.
//!
//! There are no shared indices. The producer fills an element and then stores flags with the bit
//! [`VALID`], which gives it to the consumer. The consumer copies the element and stores 0, which gives it
//! back. Each side counts privately, modulo the number of elements, a power of two.
//!
//! The other side is trusted only with the bytes of the elements: every returned pointer is that of an
//! element. The consumer executes the requests in published elements, so the functions that decide which
//! ones are published are `unsafe`, as in [`ring`](crate::ring):
//!
//! ```compile_fail,E0133
//! # use bareverbs_provider::elements::{ElementProducer, Published};
//! fn publish_what_is_in_the_element(producer: &mut ElementProducer, published: &Published) {
//!     producer.advance(1);
//!     producer.publish(published);
//! }
//! ```

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::barrier::{publish_element_flags, read_element_flags, read_element_word, release_element_word};

/// The flag of an element that the consumer owns.
pub const VALID: u16 = 1;

/// [`VALID`] in the first byte of the word of an element of a completion queue.
const VALID_WORD: u64 = u64::from_ne_bytes([VALID as u8, 0, 0, 0, 0, 0, 0, 0]);

/// Location of a queue of elements in memory.
#[derive(Clone, Copy, Debug)]
pub struct ElementMemory {
    /// The first element.
    pub first: NonNull<u8>,
    /// Bytes from an element to the next one.
    pub stride: usize,
    /// Offset of the flags in an element: 16 bits, aligned. Of a completion queue, the 64 bits whose first
    /// byte has [`VALID`], aligned.
    pub flags: usize,
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

    #[inline(always)]
    fn word(&self, count: u32) -> *mut u8 {
        // SAFETY: `element` returned it.
        unsafe { self.word_of(self.element(count)) }
    }

    /// # Safety
    ///
    /// It must be an element of the queue.
    #[inline(always)]
    unsafe fn word_of(&self, element: NonNull<u8>) -> *mut u8 {
        // SAFETY: the flags are in the element.
        unsafe { element.add(self.flags) }.as_ptr()
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

    #[inline(always)]
    fn flags(&self, count: u32) -> u16 {
        // SAFETY: `element` returned it.
        unsafe { self.flags_of(self.element(count)) }
    }

    /// # Safety
    ///
    /// It must be an element of the queue.
    #[inline(always)]
    unsafe fn flags_of(&self, element: NonNull<u8>) -> u16 {
        // SAFETY: the flags are aligned and valid, and all accesses go through `barrier`, by the contracts
        // of the constructors of the queues.
        unsafe { read_element_flags(self.word_of(element).cast()) }
    }

    /// # Safety
    ///
    /// It must be an element of the queue.
    #[inline(always)]
    unsafe fn store_of(&self, element: NonNull<u8>, flags: u16) {
        // SAFETY: as in `flags_of`.
        unsafe { publish_element_flags(self.word_of(element).cast(), flags) }
    }
}

/// The number of elements that a producer has published, for [`take_back`].
pub type Published = AtomicU32;

/// The producer's side of a send queue or receive queue. Without `FLAGS`, all elements of the queue have no
/// flags but [`VALID`].
#[derive(Debug)]
pub struct ElementProducer<const FLAGS: bool = true> {
    memory: ElementMemory,
    end: NonNull<u8>,
    /// The element that is filled next.
    next: NonNull<u8>,
    /// The element that is published next.
    unpublished: NonNull<u8>,
    /// Elements that were filled.
    filled: u32,
    /// Elements that were published.
    published: u32,
    /// The flags of filled elements that were not published.
    flags: Box<[u16]>,
}

// SAFETY: the memory belongs to no thread, and the caller of `new` promised that nothing else is its
// producer.
unsafe impl<const FLAGS: bool> Send for ElementProducer<FLAGS> {}

impl ElementProducer {
    /// Adds the next element to the batch, with these flags.
    ///
    /// # Safety
    ///
    /// [`next_element`](Self::next_element) must have returned it since the last call, and it must hold a
    /// complete request except for its flags, whose memory the consumer may access once it is published.
    #[inline(always)]
    pub unsafe fn advance(&mut self, flags: u16) {
        let index = (self.filled & self.memory.mask) as usize;
        if let Some(slot) = self.flags.get_mut(index) {
            *slot = flags;
        }
        self.count_filled();
    }
}

impl ElementProducer<false> {
    /// Adds the next element to the batch.
    ///
    /// # Safety
    ///
    /// As for [`ElementProducer::advance`] of a queue with flags.
    #[inline(always)]
    pub unsafe fn advance(&mut self) {
        self.count_filled();
    }
}

impl<const FLAGS: bool> ElementProducer<FLAGS> {
    /// Creates the producer of an empty queue.
    ///
    /// # Safety
    ///
    /// 1. The elements must be valid for reads and writes until the value is dropped, and no Rust
    ///    reference to them may exist. Their number must be a power of two of at most 2^31.
    /// 2. This must be the only producer of the queue, and all elements must have the flags 0.
    /// 3. The flags must be aligned, and accessed by this process only through this module.
    #[must_use]
    pub unsafe fn new(memory: ElementMemory) -> Self {
        let flags = if FLAGS { vec![0; memory.mask as usize + 1] } else { Vec::new() }.into_boxed_slice();
        let ElementMemory { first, .. } = memory;
        Self { memory, end: memory.end(), next: first, unpublished: first, filled: 0, published: 0, flags }
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
        self.filled.wrapping_sub(self.published)
    }

    /// The next element, if it is free.
    #[inline(always)]
    #[must_use]
    pub fn next_element(&self) -> Option<NonNull<u8>> {
        // SAFETY: `next` is an element.
        let flags = unsafe { self.memory.flags_of(self.next) };
        (flags & VALID == 0 && self.pending() <= self.memory.mask).then_some(self.next)
    }

    #[inline(always)]
    fn count_filled(&mut self) {
        // SAFETY: `next` is an element.
        self.next = unsafe { self.memory.after(self.next, self.end) };
        self.filled = self.filled.wrapping_add(1);
    }

    /// Publishes the batch, in order. `count` is set to the number of published elements before.
    #[inline(always)]
    pub fn publish(&mut self, count: &Published) {
        count.store(self.filled, Ordering::Relaxed);
        let batch = self.published..self.filled;
        let mut element = self.unpublished;
        self.published = batch.end;
        self.unpublished = self.next;
        let mut number = batch.start;
        while number != batch.end {
            let index = (number & self.memory.mask) as usize;
            let flags = if FLAGS { self.flags.get(index).copied().unwrap_or(0) } else { 0 };
            // SAFETY: `element` is the one with this number.
            unsafe { self.memory.store_of(element, flags | VALID) };
            number = number.wrapping_add(1);
            if number == batch.end {
                break;
            }
            // SAFETY: as above.
            element = unsafe { self.memory.after(element, self.end) };
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
        batch > self.memory.mask
            || self.memory.flags(self.published.wrapping_sub(batch).wrapping_sub(1)) & VALID == 0
    }

    /// Whether the consumer has taken the first one of the last `batch` published elements.
    #[must_use]
    pub fn has_begun(&self, batch: u32) -> bool {
        self.memory.flags(self.published.wrapping_sub(batch)) & VALID == 0
    }

    /// Discards the elements that were filled after the first `keep` ones of the batch.
    #[inline]
    pub fn abort_to(&mut self, keep: u32) {
        self.filled = self.published.wrapping_add(keep.min(self.pending()));
        self.next = self.memory.element(self.filled);
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
        let valid: Vec<u32> = numbers.filter(|number| memory.flags(*number) & VALID != 0).collect();
        if published.load(Ordering::Relaxed) == end {
            break valid;
        }
    };
    for number in newest_first.into_iter().rev() {
        let element = memory.element(number);
        take(element);
        // SAFETY: `element` returned it.
        unsafe { memory.store_of(element, 0) };
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
    unsafe { read_element_word(memory.word(count).cast()) & VALID_WORD != 0 }
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
    place: *mut u64,
}

impl ElementConsumer {
    /// Creates the consumer of a queue.
    ///
    /// # Safety
    ///
    /// As for [`ElementProducer::new`], with one consumer, and with words of 64 bits in place of flags.
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
        let (place, word) = unsafe {
            let place = self.memory.word_of(element).cast();
            (place, read_element_word(place))
        };
        (word & VALID_WORD != 0).then_some(FilledElement { element, word, place })
    }

    /// Gives the element that [`peek`](Self::peek) returned back to the producer.
    ///
    /// # Safety
    ///
    /// It must be the result of the last call, which must not have been given back.
    #[inline(always)]
    pub unsafe fn release(&mut self, FilledElement { element, place, .. }: FilledElement) {
        // SAFETY: as in `peek`. `element` is `next`, by this function's contract.
        unsafe {
            release_element_word(place);
            self.next = self.memory.after(element, self.end);
        }
    }
}
