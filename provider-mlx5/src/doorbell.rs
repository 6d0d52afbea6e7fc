//! Doorbells: how the device learns that there is work, and how far a queue has been read.
//!
//! Two things announce work: a *doorbell record*, two words in ordinary memory that the device
//! reads when it needs to know how far a queue goes, and for sends and for arming a *register* in
//! the doorbell area (UAR) of its BAR, whose write makes it look. RqTracker need the record only.

use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, PoisonError};

use bareverbs_provider::Errno;
use bareverbs_provider::barrier;
use bareverbs_provider::device::{DeviceFile, IoctlError};
use bareverbs_provider::mapping::{Mapping, Protection};
use bareverbs_uapi::method::Call;
use bareverbs_uapi::mlx5::verbs::UarType;
use bareverbs_uapi::mlx5::{UarObjAlloc, UarObjDestroy};

use crate::fast_path::{FastWqe, SegmentReg};
use crate::lock::Mutex;
use crate::sync::{AtomicU32, Ordering, Zeroed, ZeroedArray};
use crate::wqe::{BLOCK, Segment};

/// Records of a page.
const RECORDS: usize = PAGE / 64;

/// The two words of a record, big-endian. Each record has a cache line, so that queues of different
/// threads don't share one.
#[derive(Debug, Default)]
#[repr(C, align(64))]
struct Words([AtomicU32; 2]);

// SAFETY: they are atomics, and zeros are their default.
unsafe impl Zeroed for Words {}

pub(crate) const PAGE: usize = 4096;

/// Which word of a doorbell record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Word {
    /// How far a receive queue has been filled, or a completion queue read.
    #[doc(alias = "MLX5_RCV_DBR")]
    #[doc(alias = "MLX5_CQ_SET_CI")]
    First = 0,
    /// How far a send queue has been filled, or what a completion queue is armed for.
    #[doc(alias = "MLX5_SND_DBR")]
    #[doc(alias = "MLX5_CQ_ARM_DB")]
    Second = 1,
}

/// Pages of doorbell records, which the kernel pins one by one.
#[derive(Debug, Default)]
pub struct DoorbellRecords {
    pages: Mutex<Vec<Arc<Page>>>,
}

#[derive(Debug)]
struct Page {
    records: ZeroedArray<Words>,
    /// One bit per record that is in use.
    used: Mutex<u64>,
}

impl DoorbellRecords {
    /// A record that is zero.
    ///
    /// # Errors
    /// There is no memory for another page.
    pub fn take(&self) -> Result<DoorbellRecord, Errno> {
        let mut pages = self.pages.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(record) = pages.iter().find_map(Page::take) {
            return Ok(record);
        }
        // Pages of which nothing is used go when their last record does.
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
        let words = NonNull::from(self.records.get(index)?);
        let record = DoorbellRecord { words, index, page: Arc::clone(self) };
        record.set(Word::First, 0);
        record.set(Word::Second, 0);
        Some(record)
    }
}

/// Two words that the device reads when it likes.
#[derive(Debug)]
pub struct DoorbellRecord {
    words: NonNull<Words>,
    index: usize,
    page: Arc<Page>,
}

// SAFETY: the words belong to no thread, and `page` keeps them.
unsafe impl Send for DoorbellRecord {}
// SAFETY: a shared record gives access to its words by atomics only.
unsafe impl Sync for DoorbellRecord {}

impl DoorbellRecord {
    /// Where it is.
    #[must_use]
    pub fn address(&self) -> u64 {
        self.words.as_ptr().expose_provenance() as u64
    }

    /// Writes a word. The caller sees to the order with what it announces.
    #[inline]
    pub fn set(&self, word: Word, value: u32) {
        self.atomic(word).store(value.to_be(), Ordering::Relaxed);
    }

    /// A word by itself, for those who keep the record.
    pub(crate) fn word(&self, word: Word) -> RecordWord {
        RecordWord(NonNull::from(self.atomic(word)))
    }

    /// What was last written.
    #[must_use]
    #[inline]
    pub fn get(&self, word: Word) -> u32 {
        u32::from_be(self.atomic(word).load(Ordering::Relaxed))
    }

    #[inline(always)]
    fn atomic(&self, word: Word) -> &AtomicU32 {
        // SAFETY: `page` keeps the record's words, which are accessed by atomics only.
        &unsafe { self.words.as_ref() }.0[word as usize]
    }
}

/// A word of a record, found in one step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RecordWord(NonNull<AtomicU32>);

// SAFETY: the word belongs to no thread; those who use it see to its being there.
unsafe impl Send for RecordWord {}

impl RecordWord {
    /// Writes the word, as [`DoorbellRecord::set`] does.
    ///
    /// # Safety
    ///
    /// The record must still be there.
    #[inline(always)]
    pub(crate) unsafe fn set(self, value: u32) {
        // SAFETY: a word of a record that is there, by this function's contract.
        unsafe { self.0.as_ref() }.store(value.to_be(), Ordering::Relaxed);
    }

    /// Writes the lower half of the word, where the upper one has always been 0.
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
            // SAFETY: the second half of a big-endian word of a record that is there and that no
            // other thread accesses, by this function's contract.
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
        *self.page.used.lock().unwrap_or_else(PoisonError::into_inner) &= !(1 << self.index);
    }
}

/// Where the first register for sends is in a doorbell page.
#[doc(alias = "MLX5_BF_OFFSET")]
const SEND: usize = 0x800;

/// Where the register that arms completion queues is in a doorbell page.
#[doc(alias = "MLX5_CQ_DOORBELL")]
const ARM: usize = 0x20;

/// A doorbell page of the device.
#[derive(Debug)]
pub struct Uar {
    memory: Mapping,
    page_id: u32,
    /// The kernel's object; none where the page is plain memory.
    object: Option<(Arc<DeviceFile>, u32)>,
}

impl Uar {
    /// A page from the kernel: write-combining, for one owner who copies requests into it, or
    /// uncached.
    ///
    /// # Errors
    /// The kernel's error: `EOPNOTSUPP` where the processor can't combine writes to the device.
    pub fn alloc(file: &Arc<DeviceFile>, kind: UarType) -> Result<Self, IoctlError> {
        let (mut offset, mut length, mut page_id) = (0, 0, 0);
        let mut call = Call::<UarObjAlloc>::new(file.driver_id());
        call.make(UarObjAlloc::HANDLE);
        call.constant(UarObjAlloc::TYPE, kind);
        call.output(UarObjAlloc::MMAP_OFFSET, &mut offset);
        call.output(UarObjAlloc::MMAP_LENGTH, &mut length);
        call.output(UarObjAlloc::PAGE_ID, &mut page_id);
        // SAFETY: the method writes nothing but its attributes.
        unsafe { file.execute(&mut call) }?;
        let handle = call.made(UarObjAlloc::HANDLE);
        match file.map(offset, length as usize, Protection::Write) {
            Ok(memory) if memory.len() >= PAGE => {
                Ok(Self { memory, page_id, object: Some((Arc::clone(file), handle)) })
            }
            other => {
                destroy(file, handle);
                Err(other.err().unwrap_or(IoctlError { method: "mmap", errno: Errno::INVAL }))
            }
        }
    }

    /// A page of plain memory in place of a device's, for tests, benches and devices in software.
    ///
    /// # Errors
    /// There is no memory.
    pub fn plain() -> Result<Self, Errno> {
        Ok(Self { memory: Mapping::anonymous(PAGE)?, page_id: 0, object: None })
    }

    /// The device's number for it.
    #[must_use]
    pub fn page_id(&self) -> u32 {
        self.page_id
    }

    /// Its first byte.
    #[must_use]
    pub fn as_ptr(&self) -> NonNull<u8> {
        self.memory.as_ptr()
    }

    fn register(&self, offset: usize) -> NonNull<u64> {
        const { assert!(SEND + 2 * MAX_HALF <= PAGE && ARM + 8 <= PAGE) };
        // SAFETY: a page is mapped, as `alloc` checked.
        unsafe { self.memory.as_ptr().add(offset).cast() }
    }

    /// Writes a register that several threads may write: by an atomic of 8 bytes, as all of them
    /// do. The device takes each write by itself, so they need no order among each other.
    ///
    /// The barriers on both sides have the compiler keep the write, and keep it by itself.
    #[inline(always)]
    fn write(&self, offset: usize, value: u64) {
        barrier::before_write_combining();
        // SAFETY: the register lies in the page, which `self` keeps mapped, at a multiple of 8
        // bytes. Pages whose registers are written in other ways belong to a `BlueFlame`, which is
        // the only one to write there.
        unsafe { AtomicU64::from_ptr(self.register(offset).as_ptr()) }.store(value, Ordering::Relaxed);
        barrier::flush_write_combining();
    }

    /// Arms a completion queue.
    #[inline]
    pub(crate) fn arm(&self, doorbell: u64) {
        self.write(ARM, doorbell.to_be());
    }
}

fn destroy(file: &DeviceFile, handle: u32) {
    let mut call = Call::<UarObjDestroy>::new(file.driver_id());
    call.destroy(UarObjDestroy::HANDLE, handle);
    // Where the kernel does not let go, the page goes with the device file.
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

/// Most bytes of one half of a register.
const MAX_HALF: usize = 512;

/// A register that a send queue rings, as [`SendRegister::Shared`] or with BlueFlame.
#[derive(Debug)]
pub enum SendRegister {
    /// One that several queues may ring, by writes of 8 bytes.
    Shared(Arc<Uar>),
    /// One that no other queue uses.
    Exclusive(BlueFlame),
}

impl SendRegister {
    /// The device's number for its page.
    #[must_use]
    pub fn page_id(&self) -> u32 {
        match self {
            Self::Shared(uar) => uar.page_id,
            Self::Exclusive(register) => register.uar.page_id,
        }
    }

    /// Whether no other queue rings it.
    #[must_use]
    pub fn is_own(&self) -> bool {
        match self {
            // One for all is the context's too.
            Self::Shared(uar) => Arc::strong_count(uar) == 1,
            Self::Exclusive(_) => true,
        }
    }

    /// Rings: `control` is the first 8 bytes of the last request.
    #[inline(always)]
    pub(crate) fn ring(&mut self, control: u64) {
        match self {
            Self::Shared(uar) => uar.write(SEND, control),
            Self::Exclusive(register) => register.write(control),
        }
    }
}

/// A register of one owner, into which a whole request can be copied, so that the device need not
/// fetch it.
///
/// That needs the register to be exclusive: the copies of two owners would mix. So a `BlueFlame`
/// owns its page and is neither shared nor cloned. It has two halves that are used in turn, because
/// one may still be on its way.
#[derive(Debug)]
pub struct BlueFlame {
    uar: Uar,
    /// Bytes of a half, at least those of a block.
    half: usize,
    /// The half that comes next.
    next: NonNull<u64>,
}

// SAFETY: the register belongs to no thread, and to no other value.
unsafe impl Send for BlueFlame {}

impl BlueFlame {
    /// The first register of a page of its own. `size` is the device's `bf_reg_size`: the bytes of
    /// both halves.
    ///
    /// # Errors
    /// The page comes back where a half has no room for a block.
    pub fn new(uar: Uar, size: u32) -> Result<Self, Uar> {
        let half = (size as usize / 2).min(MAX_HALF) / BLOCK * BLOCK;
        if half == 0 {
            return Err(uar);
        }
        let next = uar.register(SEND);
        Ok(Self { uar, half, next })
    }

    /// Bytes of the longest request that can be copied.
    #[must_use]
    #[inline]
    pub fn room(&self) -> usize {
        self.half
    }

    #[inline(always)]
    fn next(&mut self) -> NonNull<u64> {
        let register = self.next;
        const { assert!(SEND & (2 * MAX_HALF - 1) == 0) };
        // SAFETY: the halves lie one behind the other in a page that `uar` keeps. Their addresses
        // differ in the bits of `half`, which those of the first one don't have: so this is the
        // other one's, and not 0.
        self.next =
            unsafe { NonNull::new_unchecked(register.as_ptr().map_addr(|address| address ^ self.half)) };
        register
    }

    /// Rings without a copy of the request.
    #[inline(always)]
    fn write(&mut self, control: u64) {
        let register = self.next();
        barrier::before_write_combining();
        // SAFETY: the register lies in a page that `uar` keeps mapped, and nothing else writes it.
        unsafe { register.write_volatile(control) };
        barrier::flush_write_combining();
    }

    /// Copies a request of one block from registers: the whole block, as the device expects it.
    #[inline(always)]
    pub(crate) fn copy_fast(&mut self, request: &FastWqe) {
        let [first, second] = request.segments;
        let segments = [first, second, request.third.unwrap_or(SegmentReg::ZERO), SegmentReg::ZERO];
        let to = self.next().cast::<Segment>().as_ptr();
        barrier::before_write_combining();
        for (index, segment) in segments.into_iter().enumerate() {
            // SAFETY: the segments lie in the half, which has room for a block and starts at a
            // multiple of its size.
            unsafe { segment.write(to.add(index)) };
        }
        barrier::flush_write_combining();
    }

    /// Copies a request of `blocks` blocks, at most [`BlueFlame::room`], whose blocks `block`
    /// gives.
    ///
    /// # Safety
    ///
    /// `block` must give addresses of [`BLOCK`] readable bytes, aligned to 8.
    #[inline(always)]
    pub(crate) unsafe fn copy(&mut self, blocks: usize, block: impl Fn(usize) -> *const Segment) {
        debug_assert!(blocks * BLOCK <= self.half);
        let mut to = self.next();
        barrier::before_write_combining();
        for index in 0..blocks {
            let from = block(index).cast::<u64>();
            for word in 0..BLOCK / 8 {
                // SAFETY: the words lie in the block, by this function's contract, and in the half,
                // whose bytes are at least those of the request.
                unsafe { to.write_volatile(from.add(word).read()) };
                // SAFETY: the words lie in the block, by this function's contract, and in the half,
                // whose bytes are at least those of the request.
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
        let halves = unsafe { [SEND, SEND + 256].map(|at| start.add(at).cast::<u64>().read_volatile()) };
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
        let copied = unsafe { start.add(SEND).cast::<[[Segment; 4]; 2]>().read() };
        assert_eq!(copied, blocks);
    }

    #[test]
    fn set_low_writes_only_the_low_half() {
        let record = DoorbellRecords::default().take().expect("memory");
        // SAFETY: the record is there.
        unsafe { record.word(Word::Second).set_low(0x1234) };
        assert_eq!((record.get(Word::First), record.get(Word::Second)), (0, 0x1234));
        // SAFETY: the record is there.
        unsafe { record.word(Word::First).set(0xab_cdef) };
        assert_eq!((record.get(Word::First), record.get(Word::Second)), (0xab_cdef, 0x1234));
    }
}
