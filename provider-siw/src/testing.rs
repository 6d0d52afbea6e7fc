//! The kernel's side of the queues, on plain memory.
//!
//! It operates the elements as the kernel's `siw_qp.c` does. It is written independently of the user-space
//! side, so that tests, benches and fuzzing can run a queue without a kernel.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU8, AtomicU16, AtomicU32, Ordering, fence};

use bareverbs_provider::Errno;
use bareverbs_provider::device::IoctlError;
use bareverbs_provider::doorbell::Doorbell;
use bareverbs_uapi::siw::{Cqe, Rqe, Sqe};
use zerocopy::{FromBytes, IntoBytes};

use crate::completion::cq_bytes;
use crate::control::Control;
use crate::memory::QueueMemory;

const ALIGN: usize = 4096;
const VALID: u16 = 1;

/// The memory of a queue, zeroed.
#[derive(Debug)]
pub struct PlainMemory {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: the allocation belongs to no thread, and all access goes through raw pointers in the order that
// the queues keep.
unsafe impl Send for PlainMemory {}
// SAFETY: as above.
unsafe impl Sync for PlainMemory {}

// SAFETY: the allocation is page aligned, freed when the value is dropped, and exposed by raw pointers only.
unsafe impl QueueMemory for PlainMemory {
    fn start(&self) -> NonNull<u8> {
        self.start
    }

    fn size(&self) -> usize {
        self.layout.size()
    }
}

impl Drop for PlainMemory {
    fn drop(&mut self) {
        // SAFETY: allocated with this layout in `new`.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}

impl PlainMemory {
    /// `size` bytes.
    ///
    /// # Panics
    ///
    /// Panics if `size` is 0.
    #[must_use]
    pub fn new(size: usize) -> Arc<Self> {
        assert!(size > 0, "no memory");
        let layout = Layout::from_size_align(size, ALIGN).expect("a size that memory can have");
        // SAFETY: the size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        Arc::new(Self { start, layout })
    }

    /// Memory of a send queue.
    #[must_use]
    pub fn sq(count: u32) -> Arc<Self> {
        Self::new(count as usize * size_of::<Sqe>())
    }

    /// Memory of a receive queue.
    #[must_use]
    pub fn rq(count: u32) -> Arc<Self> {
        Self::new(count as usize * size_of::<Rqe>())
    }

    /// Memory of a completion queue.
    #[must_use]
    pub fn cq(count: u32) -> Arc<Self> {
        Self::new(cq_bytes(count))
    }

    fn at(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.size()), "beyond the memory");
        // SAFETY: checked against the size.
        unsafe { self.start.as_ptr().add(offset) }
    }

    /// A copy of bytes.
    #[must_use]
    pub fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        // SAFETY: `at` checked the range; the test avoids races with writers.
        unsafe { self.at(offset, len).copy_to_nonoverlapping(bytes.as_mut_ptr(), len) };
        bytes
    }

    /// Writes bytes anywhere, as a malicious kernel might.
    pub fn overwrite(&self, offset: usize, bytes: &[u8]) {
        // SAFETY: `at` checked the range; queues hold no references into the memory.
        unsafe {
            self.at(offset, bytes.len()).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
    }

    /// The word that arms the completion queue of `count` elements.
    #[must_use]
    pub fn armed(&self, count: u32) -> u32 {
        let at = self.at(count as usize * size_of::<Cqe>(), 4);
        // SAFETY: `at` checked the range, and the word is aligned.
        unsafe { AtomicU32::from_ptr(at.cast()) }.load(Ordering::SeqCst)
    }
}

/// The kernel's side of a send queue or receive queue with elements of type `T`.
#[derive(Debug)]
pub struct KernelConsumer<T> {
    memory: Arc<PlainMemory>,
    count: u32,
    next: u32,
    element: std::marker::PhantomData<T>,
}

impl<T: FromBytes> KernelConsumer<T> {
    /// The kernel's side of a new queue of `count` elements.
    #[must_use]
    pub fn new(memory: Arc<PlainMemory>, count: u32) -> Self {
        Self { memory, count, next: 0, element: std::marker::PhantomData }
    }

    fn flags(&self, offset: usize) -> &AtomicU16 {
        // SAFETY: `at` checks the range, and the flags are aligned.
        unsafe { AtomicU16::from_ptr(self.memory.at(offset + 8, 2).cast()) }
    }

    /// Takes the next element, if it is valid, and frees it (`siw_activate_tx_from_sq`).
    pub fn take(&mut self) -> Option<T> {
        self.take_with(VALID)
    }

    /// Takes the next element if it has any flag, and frees it (`siw_sq_flush`, `siw_rq_flush`).
    pub fn flush(&mut self) -> Option<T> {
        self.take_with(u16::MAX)
    }

    fn take_with(&mut self, flags: u16) -> Option<T> {
        let offset = (self.next % self.count) as usize * size_of::<T>();
        if self.flags(offset).load(Ordering::Acquire) & flags == 0 {
            return None;
        }
        let bytes = self.memory.bytes(offset, size_of::<T>());
        self.flags(offset).store(0, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        self.next = self.next.wrapping_add(1);
        Some(T::read_from_bytes(&bytes).unwrap_or_else(|_| unreachable!("the bytes of an element")))
    }
}

/// The kernel's side of a completion queue.
#[derive(Debug)]
pub struct KernelProducer {
    memory: Arc<PlainMemory>,
    count: u32,
    next: u32,
}

impl KernelProducer {
    /// The kernel's side of a new queue of `count` elements.
    #[must_use]
    pub fn new(memory: Arc<PlainMemory>, count: u32) -> Self {
        Self { memory, count, next: 0 }
    }

    /// Adds a completion to the queue. If the queue is full, drops it and returns `false`
    /// (`siw_sqe_complete`).
    pub fn post(&mut self, cqe: &Cqe) -> bool {
        let offset = (self.next % self.count) as usize * size_of::<Cqe>();
        // SAFETY: `at` checks the range.
        let flags = unsafe { AtomicU8::from_ptr(self.memory.at(offset + 8, 1)) };
        if flags.load(Ordering::Acquire) != 0 {
            return false;
        }
        let bytes = cqe.as_bytes();
        self.memory.overwrite(offset, &bytes[..8]);
        self.memory.overwrite(offset + 9, &bytes[9..]);
        flags.store(1, Ordering::Release);
        self.next = self.next.wrapping_add(1);
        true
    }
}

/// A doorbell that counts its calls and returns the result set by the test. Clones share the state.
#[derive(Clone, Debug, Default)]
pub struct CountingDoorbell {
    state: Arc<(AtomicU32, AtomicI32)>,
}

impl CountingDoorbell {
    /// The number of calls.
    #[must_use]
    pub fn doorbells(&self) -> u32 {
        self.state.0.load(Ordering::Relaxed)
    }

    /// Sets the result of later calls.
    pub fn answer(&self, answer: Result<(), Errno>) {
        self.state.1.store(answer.err().map_or(0, Errno::raw_os_error), Ordering::Relaxed);
    }
}

impl Doorbell for CountingDoorbell {
    fn ring(&mut self) -> Result<(), Errno> {
        self.state.0.fetch_add(1, Ordering::Relaxed);
        match self.state.1.load(Ordering::Relaxed) {
            0 => Ok(()),
            errno => Err(Errno::from_raw_os_error(errno)),
        }
    }
}

/// Commands that count, and whose answers the test sets.
#[derive(Debug, Default)]
pub struct PlainControl {
    /// How often the QP was moved to ERR.
    pub errors: AtomicU32,
    /// Whether the kernel reports that the connection has ended.
    pub ended: std::sync::atomic::AtomicBool,
    /// The errno of moves to ERR; 0 for success.
    pub refusal: AtomicI32,
    /// The reads at a time, less 1.
    pub more_reads: AtomicI32,
}

impl Control for PlainControl {
    fn set_error(&self) -> Result<(), IoctlError> {
        match self.refusal.load(Ordering::Relaxed) {
            0 => {
                self.errors.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            errno => Err(IoctlError::new("ModifyQp", Errno::from_raw_os_error(errno))),
        }
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    fn max_reads(&self) -> Result<u32, IoctlError> {
        Ok((self.more_reads.load(Ordering::Relaxed) + 1).unsigned_abs())
    }
}
