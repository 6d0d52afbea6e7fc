//! Memory of queues that the caller chooses.

use std::alloc::Layout;
use std::os::fd::OwnedFd;

use bareverbs_provider::queue_allocator::{Allocation, QueueAllocator, QueueResource};
use bareverbs_provider::queue_buffer as provider;
use rustix::io::Errno;

use crate::{Error, MemoryOwner, Result};

/// Memory for a queue that the caller chooses, such as memory of a NUMA node, of a GPU or of a
/// confidential guest's shared pool: its own memory, or part of a dma-buf.
///
/// [`QueueMemory::From`](crate::qp::QueueMemory::From) names it. A queue keeps the memory until the
/// kernel has destroyed the queue, and one queue has it at a time. No safe code reaches the memory in
/// between. Creation overwrites it.
///
/// The memory of a ring begins at a multiple of 4096 bytes, as that of a [`Buffer`](crate::Buffer) and
/// of a mapping does; creation fails with [`Error::Invalid`] otherwise. The doorbell record, 8 bytes,
/// stays in memory of the library. A [`QueueAllocator`] can choose both.
///
/// ConnectX only: creation fails with [`Error::Unsupported`] elsewhere, because `rdma_rxe` allocates its
/// queues itself. See [`Capabilities::queue_buffers`](crate::device::Capabilities::queue_buffers). A
/// buffer that is too short fails with [`Error::Limit`] for
/// [`Limit::QueueBytes`](crate::error::Limit::QueueBytes), which has the required length.
///
/// ```
/// # fn create(context: &bareverbs::Context) -> bareverbs::Result<()> {
/// use bareverbs::Buffer;
/// use bareverbs::cq::CqInit;
/// use bareverbs::qp::{QueueBuffer, QueueMemory};
///
/// let buffer = QueueBuffer::new(Buffer::zeroed(64 * 1024)?)?;
/// let memory = QueueMemory::From(&buffer);
/// let cq = context.create_cq(&CqInit { memory, ..CqInit::new(1023) })?;
/// assert!(buffer.is_in_use());
/// drop(cq);
/// let memory: Buffer = buffer.into_memory().expect("no queue has it");
/// # Ok(())
/// # }
/// # use bareverbs_test_support::example;
/// # let context = example::context()?;
/// # example::unsupported(create(&context));
/// # Ok::<(), bareverbs::Report>(())
/// ```
#[doc(alias = "ib_uverbs_buffer_desc")]
#[derive(Debug)]
pub struct QueueBuffer(provider::QueueBuffer);

impl QueueBuffer {
    /// Memory of this process.
    ///
    /// # Errors
    /// [`Error::Invalid`]: the memory is empty.
    #[doc(alias = "IB_UVERBS_BUFFER_TYPE_VA")]
    pub fn new<M: MemoryOwner + Send + Sync + 'static>(memory: M) -> Result<Self> {
        let mut owner = Box::new(memory);
        let (start, len) = owner.region();
        // SAFETY: the bytes are valid at that address while `owner` exists, and for ever if it is
        // leaked, by the contract of `MemoryOwner`. `QueueBuffer` gives no access to `owner`.
        let buffer = unsafe { provider::QueueBuffer::new(start, len, owner) };
        buffer.map(Self).map_err(|errno| {
            if errno != Errno::INVAL {
                return Error::system("mapping a page of the fork detection", errno);
            }
            Error::empty("QueueBuffer::new", "0 bytes can't hold a queue: pass at least 1 byte")
        })
    }

    /// `len` bytes of a dma-buf from `offset` on, both in bytes. They are mapped into the process.
    /// `offset` is a multiple of the page size. Only CQs and QPs take it, and only since Linux 7.2; see
    /// [`Capabilities::queue_dmabufs`](crate::device::Capabilities::queue_dmabufs).
    ///
    /// The exporter must support `mmap`, and its memory must be coherent with the processor's
    /// caches. An access raises `SIGBUS` if the exporter revokes the memory.
    ///
    /// Safe code can access a dma-buf through other descriptors, so this is `unsafe`:
    ///
    /// ```compile_fail,E0133
    /// # use bareverbs::qp::QueueBuffer;
    /// fn overlap(fd: std::os::fd::OwnedFd) -> bareverbs::Result<[QueueBuffer; 2]> {
    ///     let other = fd.try_clone().expect("a descriptor");
    ///     Ok([QueueBuffer::dmabuf(fd, 0, 4096)?, QueueBuffer::dmabuf(other, 0, 4096)?])
    /// }
    /// ```
    ///
    /// # Safety
    ///
    /// While a queue has the memory, nothing else may access these bytes: no other `QueueBuffer`, MR
    /// or mapping, no file behind the dma-buf, and no [`Dm`](crate::dm::Dm) that was exported.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the descriptor is not a dma-buf, `len` is 0, the range exceeds the
    ///   dma-buf, or `offset` is not a multiple of the page size.
    /// - [`Error::System`]: the exporter does not map the dma-buf.
    #[doc(alias = "IB_UVERBS_BUFFER_TYPE_DMABUF")]
    pub unsafe fn dmabuf(fd: OwnedFd, offset: u64, len: usize) -> Result<Self> {
        // SAFETY: the caller's contract is the same.
        let buffer = unsafe { provider::QueueBuffer::dmabuf(fd, offset, len) };
        buffer.map(Self).map_err(|errno| {
            if errno == Errno::INVAL {
                let reason = format!(
                    "{len} bytes at {offset:#x} can't be mapped: pass a dma-buf, a range within it, and \
                     an offset that is a multiple of the page size"
                );
                return Error::invalid("QueueBuffer::dmabuf", reason);
            }
            Error::system(format!("mapping {len} bytes of a dma-buf"), errno)
        })
    }

    /// Length in bytes.
    #[must_use]
    #[allow(clippy::len_without_is_empty, reason = "a buffer is never empty")]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether a queue has the memory.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        self.0.is_leased()
    }

    /// Returns the memory of [`new`](Self::new).
    ///
    /// # Errors
    /// The buffer, if a queue has the memory, or it is not an `M`.
    pub fn into_memory<M: MemoryOwner + 'static>(self) -> Result<M, Self> {
        if !self.0.is_owned_by::<M>() {
            return Err(self);
        }
        let owner = self.0.into_owner().map_err(Self)?;
        Ok(*owner.downcast().expect("its type was compared"))
    }

    /// Returns the descriptor of [`dmabuf`](Self::dmabuf).
    ///
    /// # Errors
    /// The buffer, if a queue has the memory, or it is not a dma-buf.
    pub fn into_dmabuf(self) -> Result<OwnedFd, Self> {
        self.0.into_fd().map_err(Self)
    }
}

impl QueueAllocator for QueueBuffer {
    /// The buffer, for a ring.
    fn allocate(&self, resource: QueueResource, layout: Layout) -> Allocation {
        self.0.allocate(resource, layout)
    }
}

impl From<QueueBuffer> for provider::QueueBuffer {
    /// The buffer as an [`Allocation`] contains it.
    fn from(buffer: QueueBuffer) -> Self {
        buffer.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Buffer;

    #[test]
    fn memory_comes_back_with_its_type() {
        let buffer = QueueBuffer::new(Buffer::zeroed(8192).unwrap()).unwrap();
        assert_eq!((buffer.len(), buffer.is_in_use()), (8192, false));
        let buffer = buffer.into_memory::<Vec<u8>>().map(drop).unwrap_err();
        let buffer = buffer.into_dmabuf().map(drop).unwrap_err();
        assert_eq!(buffer.into_memory::<Buffer>().unwrap().len(), 8192);
    }

    #[test]
    fn empty_memory_is_rejected() {
        assert!(matches!(QueueBuffer::new(Vec::new()).map(drop), Err(Error::Invalid { .. })));
    }
}
