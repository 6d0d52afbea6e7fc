//! Doorbell records and doorbell registers.
//!
//! A *doorbell record* is two words in host memory. They hold the counters of a queue, which the
//! device reads when it needs them. A *doorbell register* lies in a page of the device's BAR (UAR).
//! A write to it starts the processing of sends or arms a CQ. Receive queues use the record only.

use std::alloc::Layout;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, PoisonError};

use bareverbs_provider::Errno;
use bareverbs_provider::barrier;
use bareverbs_provider::device::{DeviceFile, IoctlError};
use bareverbs_provider::layout::{DoorbellLayout, RegisterLayout};
use bareverbs_provider::mapping::{Mapping, Protection};
use bareverbs_uapi::method::Call;
use bareverbs_uapi::mlx5::verbs::UarType;
use bareverbs_uapi::mlx5::{UarObjAlloc, UarObjDestroy};

use crate::fast_path::{FastWqe, SegmentReg};
use crate::lock::Mutex;
use crate::sync::{AtomicU32, Ordering, Zeroed, ZeroedArray};
use crate::wqe::{BLOCK, Segment};

/// Doorbell records per page.
const RECORDS: usize = PAGE / 64;

/// The two words of a record, big-endian.
#[derive(Debug, Default)]
#[repr(C, align(8))]
struct Words([AtomicU32; 2]);

/// A record of a page. It has a cache line, so that queues of different threads don't share one.
#[derive(Debug, Default)]
#[repr(C, align(64))]
struct Slot(Words);

// SAFETY: the words are atomics, and zeros are their default.
unsafe impl Zeroed for Slot {}

pub(crate) const PAGE: usize = 4096;

/// The two words of a doorbell record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Word {
    /// Producer index of a receive queue, or consumer index of a completion queue.
    #[doc(alias = "MLX5_RCV_DBR")]
    #[doc(alias = "MLX5_CQ_SET_CI")]
    First = 0,
    /// Producer index of a send queue, or arm state of a completion queue.
    #[doc(alias = "MLX5_SND_DBR")]
    #[doc(alias = "MLX5_CQ_ARM_DB")]
    Second = 1,
}

/// Pages of doorbell records. The kernel pins each page.
#[derive(Debug, Default)]
pub struct DoorbellRecords {
    pages: Mutex<Vec<Arc<Page>>>,
}

#[derive(Debug)]
struct Page {
    records: ZeroedArray<Slot>,
    /// One bit per record that is in use.
    used: Mutex<u64>,
}

impl DoorbellRecords {
    /// Allocates a record. Both words are 0.
    ///
    /// # Errors
    /// The error of the page's allocation, such as `ENOMEM`.
    pub fn take(&self) -> Result<DoorbellRecord, Errno> {
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(record) = pages.iter().find_map(Page::take) {
            return Ok(record);
        }
        // Unused pages are freed here: their only reference is this list's.
        pages.retain(|page| Arc::strong_count(page) > 1);
        let page = Arc::new(Page { records: ZeroedArray::new(RECORDS)?, used: Mutex::new(0) });
        let record = Page::take(&page).ok_or(Errno::NOMEM)?;
        pages.push(page);
        Ok(record)
    }
}

impl Page {
    fn take(self: &Arc<Self>) -> Option<DoorbellRecord> {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let index = used.trailing_ones() as usize;
        if index >= RECORDS {
            return None;
        }
        *used |= 1 << index;
        let Slot(words) = self.records.get(index)?;
        let record = DoorbellRecord {
            words: NonNull::from(words),
            memory: RecordMemory::Page(Arc::clone(self), index),
        };
        record.set(Word::First, 0);
        record.set(Word::Second, 0);
        Some(record)
    }
}

/// A doorbell record: two words that the device may read at any time.
#[derive(Debug)]
pub struct DoorbellRecord {
    words: NonNull<Words>,
    memory: RecordMemory,
}

/// The memory of a record.
#[derive(Debug)]
enum RecordMemory {
    /// The slot of a page at this index.
    Page(Arc<Page>, usize),
    /// A mapping of its own.
    Own { _mapping: Mapping },
}

// SAFETY: the words have no thread affinity, and `memory` keeps them valid.
unsafe impl Send for DoorbellRecord {}
// SAFETY: a shared record gives access to its words by atomics only.
unsafe impl Sync for DoorbellRecord {}

impl DoorbellRecord {
    /// Size and alignment of a record.
    pub(crate) const LAYOUT: Layout = Layout::new::<Words>();

    /// A record at the start of zeroed memory, which has the size and the alignment of
    /// [`LAYOUT`](Self::LAYOUT).
    pub(crate) fn in_memory(memory: Mapping) -> Self {
        let words: NonNull<Words> = memory.as_ptr().cast();
        assert!(memory.len() >= size_of::<Words>() && words.is_aligned(), "room for a record");
        Self { words, memory: RecordMemory::Own { _mapping: memory } }
    }

    /// Address of the record.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.words.as_ptr().expose_provenance() as u64
    }

    /// Its address, and the register that belongs to it.
    pub(crate) fn layout(&self, register: Option<RegisterLayout>) -> DoorbellLayout {
        DoorbellLayout::Record { record: self.words.cast(), register }
    }

    /// Stores a word. The caller orders the store with what it publishes.
    #[inline]
    pub fn set(&self, word: Word, value: u32) {
        self.atomic(word).store(value.to_be(), Ordering::Relaxed);
    }

    /// One word, without the record. The user keeps the record valid.
    pub(crate) fn word(&self, word: Word) -> RecordWord {
        RecordWord(NonNull::from(self.atomic(word)))
    }

    /// The last value stored.
    #[must_use]
    #[inline]
    pub fn get(&self, word: Word) -> u32 {
        u32::from_be(self.atomic(word).load(Ordering::Relaxed))
    }

    #[inline(always)]
    fn atomic(&self, word: Word) -> &AtomicU32 {
        // SAFETY: `memory` keeps the words valid, and they are accessed by atomics only.
        &unsafe { self.words.as_ref() }.0[word as usize]
    }
}

/// The address of one word of a record.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordWord(NonNull<AtomicU32>);

// SAFETY: the word has no thread affinity, and the users of `set` keep the record valid.
unsafe impl Send for RecordWord {}

impl RecordWord {
    /// Stores the word, as [`DoorbellRecord::set`] does.
    ///
    /// # Safety
    ///
    /// The record must be valid.
    #[inline(always)]
    pub(crate) unsafe fn set(self, value: u32) {
        // SAFETY: the record is valid, by this function's contract.
        unsafe { self.0.as_ref() }.store(value.to_be(), Ordering::Relaxed);
    }

    /// Stores the low 16 bits of the word. The high 16 bits must never have been set.
    ///
    /// # Safety
    ///
    /// As for [`RecordWord::set`]. No other thread may access the word at the same time: atomics of
    /// different sizes must not race.
    #[inline(always)]
    pub(crate) unsafe fn set_low(self, value: u16) {
        #[cfg(not(loom))]
        {
            use std::sync::atomic::AtomicU16;
            // SAFETY: the second half of a big-endian word. The record is valid and no other thread
            // accesses the word, by this function's contract.
            unsafe { self.0.cast::<AtomicU16>().add(1).as_ref() }.store(value.to_be(), Ordering::Relaxed);
        }
        #[cfg(loom)]
        // SAFETY: this function's contract.
        unsafe {
            self.set(value.into());
        }
    }
}

impl Drop for DoorbellRecord {
    fn drop(&mut self) {
        if let RecordMemory::Page(page, index) = &self.memory {
            *page.used.lock().unwrap_or_else(PoisonError::into_inner) &= !(1 << index);
        }
    }
}

/// Offset of the first send doorbell register in a UAR page.
#[doc(alias = "MLX5_BF_OFFSET")]
const SQ_DOORBELL: usize = 0x800;

/// Offset of the register that arms completion queues in a UAR page.
#[doc(alias = "MLX5_CQ_DOORBELL")]
const CQ_DOORBELL: usize = 0x20;

/// A UAR page: a page of doorbell registers.
#[derive(Debug)]
pub struct Uar {
    memory: Mapping,
    page_id: u32,
    /// Its offset for `mmap` of the device file, in bytes.
    mmap_offset: u64,
    /// The kernel's object; `None` for a page of host memory.
    object: Option<(Arc<DeviceFile>, u32)>,
}

impl Uar {
    /// Allocates a UAR page: write-combining for one owner that copies WQEs into it, or non-cached.
    ///
    /// # Errors
    /// The kernel's error. `EOPNOTSUPP` if the processor can't combine writes to the device.
    pub fn alloc(file: &Arc<DeviceFile>, kind: UarType) -> Result<Self, IoctlError> {
        let (mut offset, mut length, mut page_id) = (0, 0, 0);
        let mut call = Call::<UarObjAlloc>::new(file.driver_id());
        call.make(UarObjAlloc::HANDLE);
        call.constant(UarObjAlloc::TYPE, kind);
        call.output(UarObjAlloc::MMAP_OFFSET, &mut offset);
        call.output(UarObjAlloc::MMAP_LENGTH, &mut length);
        call.output(UarObjAlloc::PAGE_ID, &mut page_id);
        // SAFETY: the method writes only to its attributes.
        unsafe { file.execute(&mut call) }?;
        let handle = call.made(UarObjAlloc::HANDLE);
        match file.map(offset, length as usize, Protection::Write) {
            Ok(memory) if memory.len() >= PAGE => {
                Ok(Self { memory, page_id, mmap_offset: offset, object: Some((Arc::clone(file), handle)) })
            }
            other => {
                destroy(file, handle);
                Err(other.err().unwrap_or(IoctlError::new("mmap", Errno::INVAL)))
            }
        }
    }

    /// A page of host memory in place of a UAR, for tests, benches and software devices.
    ///
    /// # Errors
    /// The error of the page's allocation, such as `ENOMEM`.
    pub fn plain() -> Result<Self, Errno> {
        Ok(Self { memory: Mapping::anonymous(PAGE)?, page_id: 0, mmap_offset: 0, object: None })
    }

    /// The device's index of the page.
    #[must_use]
    pub fn page_id(&self) -> u32 {
        self.page_id
    }

    /// Address of the page.
    #[must_use]
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.memory.as_ptr()
    }

    /// The register at this offset of the page.
    fn layout(&self, offset: usize) -> RegisterLayout {
        RegisterLayout::new(self.as_ptr(), self.page_id, offset as u32).with_mmap_offset(self.mmap_offset)
    }

    /// The register that arms completion queues.
    pub(crate) fn cq_register(&self) -> RegisterLayout {
        self.layout(CQ_DOORBELL)
    }

    /// The first send doorbell register, with BlueFlame halves of `half` bytes.
    fn sq_register(&self, half: usize) -> RegisterLayout {
        self.layout(SQ_DOORBELL).with_blueflame(half as u32)
    }

    fn register(&self, offset: usize) -> NonNull<u64> {
        const { assert!(SQ_DOORBELL + 2 * MAX_HALF <= PAGE && CQ_DOORBELL + 8 <= PAGE) };
        // SAFETY: a page is mapped, as `alloc` checked.
        unsafe { self.memory.as_ptr().add(offset).cast() }
    }

    /// Writes a register that several threads may write. Every writer uses an atomic store of 8
    /// bytes. The device processes each write on its own, so the writers need no order among
    /// themselves.
    ///
    /// The barriers on both sides stop the compiler from removing or merging the store.
    #[inline(always)]
    fn write(&self, offset: usize, value: u64) {
        barrier::before_write_combining();
        // SAFETY: the register is 8-byte aligned and lies in the page, which `self` keeps mapped.
        // All writes here are atomic: a page whose registers are written otherwise belongs to a
        // `BlueFlame`, its only writer.
        unsafe { AtomicU64::from_ptr(self.register(offset).as_ptr()) }.store(value, Ordering::Relaxed);
        barrier::flush_write_combining();
    }

    /// Arms a completion queue.
    #[inline]
    pub(crate) fn arm(&self, doorbell: u64) {
        self.write(CQ_DOORBELL, doorbell.to_be());
    }
}

fn destroy(file: &DeviceFile, handle: u32) {
    let mut call = Call::<UarObjDestroy>::new(file.driver_id());
    call.destroy(UarObjDestroy::HANDLE, handle);
    // If the kernel refuses, it frees the page when the device file is closed.
    // SAFETY: the method writes nothing.
    let _ = unsafe { file.execute(&mut call) };
}

impl Drop for Uar {
    fn drop(&mut self) {
        if let Some((file, handle)) = &self.object {
            destroy(file, *handle);
        }
    }
}

/// Maximum bytes of one half of a register.
const MAX_HALF: usize = 512;

/// The doorbell register of a send queue.
#[derive(Debug)]
pub enum SendRegister {
    /// Several queues may write it, by 8-byte stores.
    Shared(Arc<Uar>),
    /// Only one queue writes it, and it takes BlueFlame copies.
    Exclusive(BlueFlame),
}

impl SendRegister {
    /// The device's index of its page.
    #[must_use]
    pub fn page_id(&self) -> u32 {
        match self {
            Self::Shared(uar) => uar.page_id,
            Self::Exclusive(register) => register.uar.page_id,
        }
    }

    /// Address, UAR index, offset and BlueFlame size of the register.
    pub(crate) fn layout(&self) -> RegisterLayout {
        match self {
            Self::Shared(uar) => uar.sq_register(0),
            Self::Exclusive(register) => register.uar.sq_register(register.half),
        }
    }

    /// Whether no other queue uses it.
    #[must_use]
    pub fn is_own(&self) -> bool {
        match self {
            // The register that all queues share has a second reference in the context.
            Self::Shared(uar) => Arc::strong_count(uar) == 1,
            Self::Exclusive(_) => true,
        }
    }

    /// Rings the doorbell. `control` is the first 8 bytes of the last WQE.
    #[inline(always)]
    pub(crate) fn ring(&mut self, control: u64) {
        match self {
            Self::Shared(uar) => uar.write(SQ_DOORBELL, control),
            Self::Exclusive(register) => register.write(control),
        }
    }
}

/// A doorbell register that takes BlueFlame copies: the CPU writes a whole WQE into it, so that the
/// device need not fetch the WQE.
///
/// The register must be exclusive, because copies of two writers would mix. So a `BlueFlame` owns
/// its page and is neither shared nor cloned. The register has two halves, used alternately: a half
/// may still be in transit when the next WQE is posted.
#[derive(Debug)]
pub struct BlueFlame {
    uar: Uar,
    /// Bytes of a half, at least [`BLOCK`].
    half: usize,
    /// The half of the next doorbell.
    next: NonNull<u64>,
}

// SAFETY: the register has no thread affinity and no other owner.
unsafe impl Send for BlueFlame {}

impl BlueFlame {
    /// The first register of `uar`. `size` is the device's `bf_reg_size`: the bytes of both halves.
    ///
    /// # Errors
    /// Returns `uar` if a half is smaller than a block.
    pub fn new(uar: Uar, size: u32) -> Result<Self, Uar> {
        let half = (size as usize / 2).min(MAX_HALF) / BLOCK * BLOCK;
        if half == 0 {
            return Err(uar);
        }
        let next = uar.register(SQ_DOORBELL);
        Ok(Self { uar, half, next })
    }

    /// Maximum bytes of a WQE that can be copied.
    #[must_use]
    #[inline]
    pub fn room(&self) -> usize {
        self.half
    }

    #[inline(always)]
    fn next(&mut self) -> NonNull<u64> {
        let register = self.next;
        const { assert!(SQ_DOORBELL & (2 * MAX_HALF - 1) == 0) };
        // SAFETY: the halves are adjacent in a page that `uar` keeps mapped. The assertion above
        // shows that the bits of `half` are clear in the first half's address. So the XOR gives the
        // address of the other half, which is not 0.
        self.next =
            unsafe { NonNull::new_unchecked(register.as_ptr().map_addr(|address| address ^ self.half)) };
        register
    }

    /// Rings the doorbell without a BlueFlame copy.
    #[inline(always)]
    fn write(&mut self, control: u64) {
        let register = self.next();
        barrier::before_write_combining();
        // SAFETY: `uar` keeps the page mapped, and only this value writes the register.
        unsafe { register.write_volatile(control) };
        barrier::flush_write_combining();
    }

    /// Copies a WQE of one block from CPU registers. The device expects the whole block.
    #[inline(always)]
    pub(crate) fn copy_fast(&mut self, request: &FastWqe) {
        let [first, second] = request.segments;
        let segments = [first, second, request.third.unwrap_or(SegmentReg::ZERO), SegmentReg::ZERO];
        let to = self.next().cast::<Segment>().as_ptr();
        barrier::before_write_combining();
        for (index, segment) in segments.into_iter().enumerate() {
            // SAFETY: the segments lie in the half, which has room for a block and is aligned to
            // its size.
            unsafe { segment.write(to.add(index)) };
        }
        barrier::flush_write_combining();
    }

    /// Copies a WQE of `blocks` blocks, which [`BlueFlame::room`] bounds. `block` returns the
    /// address of each.
    ///
    /// # Safety
    ///
    /// `block` must return addresses of [`BLOCK`] readable bytes, aligned to 8.
    #[inline(always)]
    pub(crate) unsafe fn copy(&mut self, blocks: usize, block: impl Fn(usize) -> *const Segment) {
        debug_assert!(blocks * BLOCK <= self.half);
        let mut to = self.next();
        barrier::before_write_combining();
        for index in 0..blocks {
            let from = block(index).cast::<u64>();
            for word in 0..BLOCK / 8 {
                // SAFETY: the words lie in the block, by this function's contract, and in the half,
                // which is at least as long as the WQE.
                unsafe { to.write_volatile(from.add(word).read()) };
                // SAFETY: the words lie in the block, by this function's contract, and in the half,
                // which is at least as long as the WQE.
                to = unsafe { to.add(1) };
            }
        }
        barrier::flush_write_combining();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doorbell_records_are_unique_and_reused_after_drop() {
        let pool = DoorbellRecords::default();
        let taken: Vec<_> = (0..RECORDS + 1).map(|_| pool.take().expect("memory")).collect();
        let mut addresses: Vec<_> = taken.iter().map(DoorbellRecord::address).collect();
        addresses.sort_unstable();
        addresses.dedup();
        assert_eq!(addresses.len(), RECORDS + 1);
        let first = taken[0].address();
        taken[0].set(Word::Second, 7);
        drop(taken);
        let again = pool.take().expect("memory");
        assert_eq!((again.address(), again.get(Word::Second)), (first, 0));
    }

    #[test]
    fn blueflame_register_alternates_between_halves() {
        let uar = Uar::plain().expect("memory");
        let start = uar.as_ptr();
        let mut register = SendRegister::Exclusive(BlueFlame::new(uar, 512).expect("room"));
        for value in 1..=3 {
            register.ring(value);
        }
        // SAFETY: within the page.
        let halves =
            unsafe { [SQ_DOORBELL, SQ_DOORBELL + 256].map(|at| start.add(at).cast::<u64>().read_volatile()) };
        assert_eq!(halves, [3, 2]);
    }

    #[test]
    fn blueflame_half_below_one_block_is_rejected() {
        assert!(BlueFlame::new(Uar::plain().expect("memory"), 2 * BLOCK as u32 - 1).is_err());
        assert!(BlueFlame::new(Uar::plain().expect("memory"), 2 * BLOCK as u32).is_ok());
    }

    #[test]
    fn blueflame_copies_each_block() {
        let uar = Uar::plain().expect("memory");
        let start = uar.as_ptr();
        let mut register = BlueFlame::new(uar, 512).expect("room");
        let blocks = [[[1u64, 2]; 4], [[3, 4]; 4]];
        // SAFETY: the blocks are arrays of this function.
        unsafe { register.copy(2, |index| blocks[index].as_ptr()) };
        // SAFETY: within the page.
        let copied = unsafe { start.add(SQ_DOORBELL).cast::<[[Segment; 4]; 2]>().read() };
        assert_eq!(copied, blocks);
    }

    #[test]
    fn set_low_writes_only_the_low_half() {
        let record = DoorbellRecords::default().take().expect("memory");
        // SAFETY: the record is valid.
        unsafe { record.word(Word::Second).set_low(0x1234) };
        assert_eq!((record.get(Word::First), record.get(Word::Second)), (0, 0x1234));
        // SAFETY: the record is valid.
        unsafe { record.word(Word::First).set(0xab_cdef) };
        assert_eq!((record.get(Word::First), record.get(Word::Second)), (0xab_cdef, 0x1234));
    }
}
