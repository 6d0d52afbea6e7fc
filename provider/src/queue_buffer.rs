//! Memory for a queue that the caller chooses: its own, or part of a dma-buf.

use std::alloc::Layout;
use std::any::Any;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bareverbs_uapi::uverbs::types::{BufferDesc, BufferType};
use rustix::fs::{SeekFrom, fstatfs, seek};
use rustix::io::Errno;

use crate::device::IoctlError;
use crate::error::{CreateError, Limit};
use crate::mapping::{Mapping, Protection};
use crate::process::ForkGuard;

/// Alignment in bytes of a ring's memory: a page of the device (`MLX5_ADAPTER_PAGE_SHIFT`).
pub const QUEUE_BUFFER_ALIGN: usize = 4096;

/// `DMA_BUF_MAGIC` of `linux/magic.h`: the file system of dma-bufs.
const DMA_BUF_MAGIC: u64 = 0x444d_4142;

/// Memory for one queue at a time. A queue that is created in it keeps it until the kernel has
/// destroyed the queue. No safe code reaches the memory in between.
///
/// Clones name the same memory.
#[derive(Clone, Debug)]
pub struct QueueBuffer {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    start: NonNull<u8>,
    len: usize,
    /// Whether a queue has the memory.
    leased: AtomicBool,
    /// A forked child may not inherit the memory.
    fork_guard: ForkGuard,
    source: Source,
}

#[derive(Debug)]
enum Source {
    /// Memory of the process, freed by its owner's drop.
    Memory(Box<dyn Any + Send + Sync>),
    /// Part of a dma-buf from `offset` on.
    Dmabuf { fd: OwnedFd, offset: u64, _mapping: Mapping },
}

// SAFETY: the memory belongs to no thread, and `Inner` accesses it only in `QueueBuffer::lease`,
// which one caller at a time passes.
unsafe impl Send for Inner {}
// SAFETY: as for `Send`.
unsafe impl Sync for Inner {}

/// The right of one queue to a buffer. It ends by drop.
#[derive(Debug)]
pub(crate) struct Lease(Arc<Inner>);

impl Drop for Lease {
    fn drop(&mut self) {
        // The next lease sees all accesses of this one.
        self.0.leased.store(false, Ordering::Release);
    }
}

impl Inner {
    fn new(start: NonNull<u8>, len: usize, source: Source) -> Result<Self, Errno> {
        let (leased, fork_guard) = (AtomicBool::new(false), ForkGuard::new()?);
        Ok(Self { start, len, leased, fork_guard, source })
    }
}

impl QueueBuffer {
    /// `len` bytes at `start`, which `owner` frees when it is dropped.
    ///
    /// # Errors
    ///
    /// `EINVAL` if `len` is 0; otherwise the error of `mmap` or `madvise`.
    ///
    /// # Safety
    ///
    /// The bytes must be valid for reads and writes until `owner` is dropped, also if it is moved,
    /// and forever if it is leaked. Nothing else may access them in that time.
    pub unsafe fn new(
        start: NonNull<u8>,
        len: usize,
        owner: Box<dyn Any + Send + Sync>,
    ) -> Result<Self, Errno> {
        if len == 0 {
            return Err(Errno::INVAL);
        }
        Ok(Self { inner: Arc::new(Inner::new(start, len, Source::Memory(owner))?) })
    }

    /// `len` bytes of a dma-buf from `offset` on. They are mapped into the process.
    ///
    /// # Errors
    ///
    /// `EINVAL` if the descriptor is not a dma-buf, the range exceeds it, or `offset` is not a
    /// multiple of the page size; otherwise the error of `mmap`: not every exporter supports it.
    ///
    /// # Safety
    ///
    /// While a queue has the memory, nothing else may access these bytes, also through other
    /// descriptors of the dma-buf or of the memory behind it.
    pub unsafe fn dmabuf(fd: OwnedFd, offset: u64, len: usize) -> Result<Self, Errno> {
        // An access beyond the end of an ordinary file would raise SIGBUS.
        if u64::try_from(fstatfs(&fd)?.f_type) != Ok(DMA_BUF_MAGIC) {
            return Err(Errno::INVAL);
        }
        let end = offset.checked_add(len as u64).ok_or(Errno::INVAL)?;
        if end > seek(&fd, SeekFrom::End(0))? || !offset.is_multiple_of(QUEUE_BUFFER_ALIGN as u64) {
            return Err(Errno::INVAL);
        }
        let mapping = Mapping::new(&fd, offset, len, Protection::ReadWrite)?;
        let start = mapping.as_ptr();
        let source = Source::Dmabuf { fd, offset, _mapping: mapping };
        Ok(Self { inner: Arc::new(Inner::new(start, len, source)?) })
    }

    /// Length in bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "a buffer is never empty")]
    pub fn len(&self) -> usize {
        self.inner.len
    }

    /// Whether a queue has the memory.
    #[must_use]
    pub fn is_leased(&self) -> bool {
        self.inner.leased.load(Ordering::Relaxed)
    }

    /// The first bytes as zeroed memory of a queue, of the size of `layout`. The lease ends when the
    /// mapping is dropped.
    ///
    /// # Errors
    ///
    /// [`CreateError::Limit`] if the buffer is too short, [`CreateError::Misaligned`] if it has not the
    /// alignment of `layout`, [`CreateError::BufferInUse`] if another queue has it, and `ESTALE` in a
    /// process that was forked from the one that created the buffer.
    pub fn lease(&self, layout: Layout) -> Result<Mapping, CreateError> {
        let (bytes, align) = (layout.size(), layout.align());
        let Inner { start, len, leased, fork_guard, .. } = &*self.inner;
        let failed = |errno| CreateError::Ioctl(IoctlError::new("QueueBuffer", errno));
        if !fork_guard.is_same_process() {
            return Err(failed(Errno::STALE));
        }
        if bytes > *len {
            let (asked, max) = (bytes as u64, *len as u64);
            return Err(CreateError::Limit { limit: Limit::QueueBytes, asked, max });
        }
        if !start.addr().get().is_multiple_of(align) {
            return Err(CreateError::Misaligned { align });
        }
        if leased.swap(true, Ordering::Acquire) {
            return Err(CreateError::BufferInUse);
        }
        let lease = Lease(Arc::clone(&self.inner));
        // SAFETY: the buffer has the bytes, this process mapped them, and no other lease exists.
        unsafe { start.write_bytes(0, bytes) };
        Mapping::leased(*start, *len, lease).map_err(failed)
    }

    /// The description of `bytes` bytes from `offset` on for the kernel. Both are within the buffer
    /// or the kernel rejects them.
    #[must_use]
    pub fn desc(&self, offset: usize, bytes: usize) -> BufferDesc {
        let (offset, length) = (offset as u64, bytes as u64);
        match &self.inner.source {
            Source::Memory(_) => {
                let start = self.inner.start.as_ptr().expose_provenance() as u64;
                let addr = start.wrapping_add(offset);
                BufferDesc { buffer_type: BufferType::VA, addr, length, ..BufferDesc::zeroed() }
            }
            Source::Dmabuf { fd, offset: first, .. } => BufferDesc {
                buffer_type: BufferType::DMABUF,
                fd: fd.as_raw_fd(),
                addr: first.wrapping_add(offset),
                length,
                ..BufferDesc::zeroed()
            },
        }
    }

    /// Whether the memory is part of a dma-buf.
    #[must_use]
    pub fn is_dmabuf(&self) -> bool {
        matches!(self.inner.source, Source::Dmabuf { .. })
    }

    /// The owner of the memory.
    ///
    /// # Errors
    ///
    /// The buffer, if a queue or a clone has it, or its memory is a dma-buf.
    pub fn into_owner(self) -> Result<Box<dyn Any + Send + Sync>, Self> {
        if !matches!(self.inner.source, Source::Memory(_)) {
            return Err(self);
        }
        match Arc::try_unwrap(self.inner) {
            Ok(Inner { source: Source::Memory(owner), .. }) => Ok(owner),
            Ok(inner) => Err(Self { inner: Arc::new(inner) }),
            Err(inner) => Err(Self { inner }),
        }
    }

    /// The descriptor of the dma-buf.
    ///
    /// # Errors
    ///
    /// The buffer, if a queue or a clone has it, or its memory is not a dma-buf.
    pub fn into_fd(self) -> Result<OwnedFd, Self> {
        if !matches!(self.inner.source, Source::Dmabuf { .. }) {
            return Err(self);
        }
        match Arc::try_unwrap(self.inner) {
            Ok(Inner { source: Source::Dmabuf { fd, .. }, .. }) => Ok(fd),
            Ok(inner) => Err(Self { inner: Arc::new(inner) }),
            Err(inner) => Err(Self { inner }),
        }
    }

    /// Whether the owner of the memory is of type `M`.
    #[must_use]
    pub fn is_owned_by<M: 'static>(&self) -> bool {
        matches!(&self.inner.source, Source::Memory(owner) if owner.is::<M>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue_allocator::{QueueAllocator, QueueResource};

    /// The layout of a ring.
    fn ring(bytes: usize) -> Layout {
        Layout::from_size_align(bytes, QUEUE_BUFFER_ALIGN).unwrap()
    }

    /// A buffer of `len` bytes of ones, owned by a mapping.
    fn buffer(len: usize) -> QueueBuffer {
        let memory = Mapping::anonymous(len).unwrap();
        let start = memory.as_ptr();
        // SAFETY: the mapping has the bytes, and nothing else accesses them.
        unsafe { start.write_bytes(1, len) };
        // SAFETY: the mapping keeps the bytes at their address.
        unsafe { QueueBuffer::new(start, len, Box::new(memory)) }.unwrap()
    }

    #[test]
    fn one_lease_exists_at_a_time() {
        let buffer = buffer(8192);
        let lease = buffer.lease(ring(4096)).unwrap();
        assert!(buffer.is_leased());
        assert_eq!(buffer.lease(ring(4096)).map(drop), Err(CreateError::BufferInUse));
        assert_eq!(buffer.clone().lease(ring(4096)).map(drop), Err(CreateError::BufferInUse));
        drop(lease);
        assert!(!buffer.is_leased());
        buffer.lease(ring(8192)).unwrap();
    }

    #[test]
    fn leased_memory_is_zeroed() {
        let buffer = buffer(4096);
        let lease = buffer.lease(ring(100)).unwrap();
        assert_eq!(lease.len(), 4096);
        for (at, wanted) in [(0, 0), (99, 0), (100, 1), (4095, 1)] {
            // SAFETY: within the memory, which has no other user.
            assert_eq!(unsafe { lease.as_ptr().add(at).read() }, wanted, "byte {at}");
        }
    }

    #[test]
    fn lease_above_the_length_fails_with_both_sizes() {
        let limit = Limit::QueueBytes;
        let refused = buffer(4096).lease(ring(4097)).map(drop);
        assert_eq!(refused, Err(CreateError::Limit { limit, asked: 4097, max: 4096 }));
    }

    #[test]
    fn owner_comes_back_after_the_lease() {
        let buffer = buffer(4096);
        let start = buffer.inner.start;
        let lease = buffer.lease(ring(64)).unwrap();
        let buffer = buffer.into_owner().map(drop).unwrap_err();
        let buffer = buffer.into_fd().map(drop).unwrap_err();
        assert!(buffer.is_owned_by::<Mapping>() && !buffer.is_owned_by::<Vec<u8>>());
        drop(lease);
        let memory = buffer.into_owner().unwrap().downcast::<Mapping>().unwrap();
        assert_eq!(memory.as_ptr(), start);
    }

    #[test]
    fn lease_keeps_the_memory_without_the_buffer() {
        let buffer = buffer(4096);
        let lease = buffer.lease(ring(64)).unwrap();
        drop(buffer);
        // SAFETY: the lease keeps the memory, which has no other user.
        assert_eq!(unsafe { lease.as_ptr().read() }, 0);
    }

    #[test]
    fn unaligned_and_empty_memory_is_rejected() {
        let memory = Mapping::anonymous(8192).unwrap();
        // SAFETY: the test keeps the mapping, and nothing accesses it.
        let empty = unsafe { QueueBuffer::new(memory.as_ptr(), 0, Box::new(())) };
        assert_eq!(empty.map(drop), Err(Errno::INVAL));
        // SAFETY: within the mapping.
        let inside = unsafe { memory.as_ptr().add(64) };
        // SAFETY: the buffer keeps the mapping, and nothing else accesses it.
        let buffer = unsafe { QueueBuffer::new(inside, 4096, Box::new(memory)) }.unwrap();
        assert_eq!(buffer.lease(ring(8)).map(drop), Err(CreateError::Misaligned { align: 4096 }));
        assert!(!buffer.is_leased());
        buffer.lease(Layout::new::<u64>()).unwrap();
    }

    #[test]
    fn buffer_allocates_rings() {
        let buffer = buffer(8192);
        let allocate = |resource| buffer.allocate(resource, ring(64)).unwrap().map(|it| it.inner.start);
        assert_eq!(allocate(QueueResource::Qp), Some(buffer.inner.start));
        assert_eq!(allocate(QueueResource::DoorbellRecord), None);
        assert!(!buffer.is_dmabuf());
    }

    #[test]
    fn description_names_the_part() {
        let buffer = buffer(8192);
        let start = buffer.inner.start.addr().get() as u64;
        let desc = buffer.desc(4096, 64);
        assert_eq!((desc.buffer_type, desc.addr, desc.length), (BufferType::VA, start + 4096, 64));
        assert_eq!((desc.flags, desc.optional_flags, desc.fd), (0, 0, 0));
    }

    /// The child would be killed by an access to the memory, which it does not inherit.
    #[cfg(not(any(loom, miri)))]
    #[test]
    fn lease_in_a_forked_child_fails_with_estale() {
        use std::os::unix::process::CommandExt;

        let buffer = buffer(4096);
        let inherited = buffer.clone();
        let mut child = std::process::Command::new("/bin/true");
        let lease = move || match inherited.lease(ring(64)).map(drop) {
            Err(CreateError::Ioctl(IoctlError { errno: Errno::STALE, .. })) => Ok(()),
            _ => Err(Errno::PROTO.into()),
        };
        // SAFETY: the child accesses an atomic. It does not allocate and takes no lock.
        unsafe { child.pre_exec(lease) };
        assert!(child.status().unwrap().success());
        buffer.lease(ring(64)).unwrap();
    }

    #[cfg(not(miri))]
    #[test]
    fn other_files_are_no_dmabufs() {
        let null = std::fs::File::open("/dev/null").unwrap();
        let file = std::fs::File::open(std::env::current_exe().unwrap()).unwrap();
        for file in [null, file] {
            // SAFETY: no queue gets the memory.
            let refused = unsafe { QueueBuffer::dmabuf(file.into(), 0, 4096) };
            assert_eq!(refused.map(drop), Err(Errno::INVAL));
        }
    }
}
