//! Memory for memory regions.

use std::ffi::c_void;
use std::fmt;
use std::marker::PhantomData;
use std::ops::{Deref, DerefMut};
use std::ptr::{self, NonNull};

use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use crate::{Error, Result};

/// An owner of bytes at a stable address.
///
/// # Safety
///
/// The bytes that each call of [`region`](MemoryOwner::region) returns must be initialised, and
/// valid for reads and writes at the same address while the owner exists. This includes moves of
/// the owner. If the owner is forgotten ([`std::mem::forget`]) or leaked, they must stay valid
/// forever. While the owner is registered, nothing else may access them.
///
/// Types that own their memory may implement this trait. Types that borrow it must not, because the
/// borrow of a forgotten value ends:
///
/// ```compile_fail,E0277
/// fn owns<M: bareverbs::MemoryOwner>() {}
/// owns::<bareverbs::Borrowed<'static>>();
/// ```
///
/// ```compile_fail,E0277
/// fn owns<M: bareverbs::MemoryOwner>() {}
/// owns::<bareverbs::RawMemory>();
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not own registrable memory",
    label = "not an owner of memory that stays valid if leaked",
    note = "use a `Buffer`, a `Vec<u8>` or a `Box<[u8]>`",
    note = "register a slice with `Pd::register_borrowed` and post it with the `unsafe` methods of \
            `Qp`; register other memory with the `unsafe` method `Pd::register_raw`"
)]
pub unsafe trait MemoryOwner {
    /// Address of the first byte, and length in bytes.
    fn region(&mut self) -> (NonNull<u8>, usize);
}

// SAFETY: the heap block does not move with the vector. A registered vector is not accessible, so
// it can't reallocate.
unsafe impl MemoryOwner for Vec<u8> {
    fn region(&mut self) -> (NonNull<u8>, usize) {
        (NonNull::from(self.as_mut_slice()).cast(), self.len())
    }
}

// SAFETY: the heap block does not move with the box.
unsafe impl MemoryOwner for Box<[u8]> {
    fn region(&mut self) -> (NonNull<u8>, usize) {
        (NonNull::from(&mut **self).cast(), self.len())
    }
}

#[cfg(feature = "memmap2")]
// SAFETY: the mapping does not move with its handle and is unmapped only when the handle is
// dropped. The callers of the unsafe constructors of `MmapMut` are responsible for changes of the
// file by other processes.
unsafe impl MemoryOwner for memmap2::MmapMut {
    fn region(&mut self) -> (NonNull<u8>, usize) {
        (NonNull::from(&mut **self).cast(), self.len())
    }
}

/// Owned, zeroed, page-aligned memory.
///
/// Registration pins whole pages. A `Buffer` does not share its pages with other data.
///
/// ```
/// let mut buffer = bareverbs::Buffer::zeroed(100)?;
/// buffer[..5].copy_from_slice(b"hello");
/// assert_eq!((buffer.len(), buffer[99]), (100, 0));
/// # Ok::<(), bareverbs::Error>(())
/// ```
#[doc(alias = "ibv_alloc_buf")]
pub struct Buffer {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping belongs to this value alone, like a box's block.
unsafe impl Send for Buffer {}
// SAFETY: a shared reference gives only shared references to the bytes.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// `len` bytes of zeros.
    ///
    /// # Errors
    /// [`Error::System`] if there is not enough memory.
    pub fn zeroed(len: usize) -> Result<Self> {
        // SAFETY: an anonymous private mapping at an address of the kernel's choice replaces
        // nothing.
        let start = unsafe {
            rustix::mm::mmap_anonymous(
                ptr::null_mut(),
                Self::mapped(len),
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        };
        start
            .and_then(|start| NonNull::new(start.cast()).ok_or(Errno::NOMEM))
            .map(|start| Self { start, len })
            .map_err(|errno| Error::system(format!("mapping a buffer of {len} bytes"), errno))
    }

    /// Length of the mapping in bytes, at least 1.
    fn mapped(len: usize) -> usize {
        len.max(1)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: `zeroed` created the mapping with this size, and no reference to it outlives the
        // buffer. Unmapping fails only if it splits a mapping beyond the kernel's limit; the bytes
        // stay mapped then.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast::<c_void>(), Self::mapped(self.len)) };
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping has `len` initialised bytes while the buffer exists.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the mapping has `len` initialised bytes while the buffer exists. It belongs to
        // this buffer, which is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for Buffer {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer").field("len", &self.len).finish_non_exhaustive()
    }
}

// SAFETY: the mapping does not move with the buffer.
unsafe impl MemoryOwner for Buffer {
    fn region(&mut self) -> (NonNull<u8>, usize) {
        (self.start, self.len)
    }
}

/// Memory that is borrowed by its region. [`Pd::register_borrowed`](crate::Pd::register_borrowed)
/// registers it.
///
/// It does not implement [`MemoryOwner`], because the borrow of a forgotten value ends.
#[derive(Debug)]
pub struct Borrowed<'a> {
    start: NonNull<u8>,
    len: usize,
    _borrow: PhantomData<&'a mut [u8]>,
}

// SAFETY: it represents an exclusive borrow of bytes, which may be sent to another thread.
unsafe impl Send for Borrowed<'_> {}
// SAFETY: a shared reference to it gives no access to the bytes.
unsafe impl Sync for Borrowed<'_> {}

impl<'a> Borrowed<'a> {
    pub(crate) fn new(memory: &'a mut [u8]) -> Self {
        Self { len: memory.len(), start: NonNull::from(memory).cast(), _borrow: PhantomData }
    }

    /// Returns the borrowed memory.
    #[must_use]
    pub fn into_slice(self) -> &'a mut [u8] {
        // SAFETY: start and length are those of the exclusive borrow that this value represents.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }

    pub(crate) fn region(&self) -> (NonNull<u8>, usize) {
        (self.start, self.len)
    }
}

/// Memory whose validity the caller of [`Pd::register_raw`](crate::Pd::register_raw) guarantees. It
/// does not implement [`MemoryOwner`].
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct RawMemory;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffer_is_zeroed_writable_and_page_aligned() {
        let mut buffer = Buffer::zeroed(5000).unwrap();
        assert!(buffer.iter().all(|byte| *byte == 0));
        buffer[4999] = 7;
        assert_eq!(buffer.region().0.addr().get() % 4096, 0);
        assert_eq!((buffer.len(), buffer[4999]), (5000, 7));
        assert!(Buffer::zeroed(0).unwrap().is_empty());
    }

    #[test]
    fn buffer_larger_than_the_address_space_fails() {
        assert!(Buffer::zeroed(usize::MAX).is_err());
    }

    #[test]
    fn memory_owners_keep_their_address_when_moved() {
        fn check_address<M: MemoryOwner>(mut owner: M, len: usize) {
            let before = owner.region();
            let mut moved = Box::new(owner);
            assert_eq!((moved.region(), before.1), (before, len));
        }
        check_address(vec![0; 10], 10);
        check_address(vec![0; 11].into_boxed_slice(), 11);
        check_address(Buffer::zeroed(12).unwrap(), 12);
        #[cfg(feature = "memmap2")]
        check_address(memmap2::MmapMut::map_anon(13).unwrap(), 13);
    }

    #[test]
    fn borrowed_memory_is_returned() {
        let mut bytes = *b"hello";
        let borrowed = Borrowed::new(&mut bytes);
        borrowed.into_slice()[0] = b'j';
        assert_eq!(&bytes, b"jello");
    }
}
