//! Allocators of queue memory.

use std::alloc::Layout;
use std::fmt::Debug;

use crate::error::CreateError;
use crate::queue_buffer::QueueBuffer;

/// What memory is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum QueueResource {
    /// The rings of a QP.
    #[doc(alias = "MLX5DV_RES_TYPE_QP")]
    Qp,
    /// The ring of a WQ.
    #[doc(alias = "MLX5DV_RES_TYPE_RWQ")]
    Wq,
    /// The doorbell record of a queue: indices that the device reads.
    #[doc(alias = "MLX5DV_RES_TYPE_DBR")]
    DoorbellRecord,
    /// The ring of an SRQ.
    #[doc(alias = "MLX5DV_RES_TYPE_SRQ")]
    Srq,
    /// The ring of a CQ.
    #[doc(alias = "MLX5DV_RES_TYPE_CQ")]
    Cq,
}

/// What an allocator returns: memory, or `None` for memory of the provider.
pub type Allocation = Result<Option<QueueBuffer>, CreateError>;

/// Allocates the memory of queues. A provider calls it when it knows the size of the memory: once for
/// each ring and doorbell record of an object, and at a resize.
///
/// A [`QueueBuffer`] is the allocator of one ring.
#[doc(alias = "ibv_alloc_parent_domain")]
#[doc(alias = "ibv_parent_domain_init_attr")]
pub trait QueueAllocator: Debug + Send + Sync {
    /// Returns memory of this size and alignment, or `None` for memory of the provider. The queue
    /// overwrites the memory, and leases it until the kernel has destroyed the object.
    ///
    /// # Errors
    ///
    /// [`CreateError::NoMemory`], for instance. The creation fails with the error.
    fn allocate(&self, resource: QueueResource, layout: Layout) -> Allocation;
}

impl QueueAllocator for QueueBuffer {
    /// The buffer. Doorbell records are in memory of the provider.
    fn allocate(&self, resource: QueueResource, _: Layout) -> Allocation {
        Ok((resource != QueueResource::DoorbellRecord).then(|| self.clone()))
    }
}
