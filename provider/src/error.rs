//! Errors of providers: creation and doorbells.

mod kinds;

use crate::device::IoctlError;
pub use kinds::{Feature, Limit};

/// An object could not be created or changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CreateError {
    /// The kernel rejected the command, or the mapping of the queue's memory.
    #[error(transparent)]
    Ioctl(#[from] IoctlError),
    /// The kernel's description of the queue's memory is impossible.
    #[error("invalid memory layout of the {queue} from the kernel: {problem} ({value})")]
    Layout {
        /// The queue.
        queue: &'static str,
        /// The problem.
        problem: &'static str,
        /// The invalid value.
        value: u64,
    },
    /// A size above a limit that the kernel does not report.
    #[error("{limit} {asked} is above the maximum of {max}")]
    Limit {
        /// The size.
        limit: Limit,
        /// The size that was requested.
        asked: u64,
        /// The largest size.
        max: u64,
    },
    /// Too few huge pages are free.
    #[error(
        "fewer than {pages} huge pages of 2 MiB are free: reserve some, for example with `sysctl \
         vm.nr_hugepages=64`, or use base pages"
    )]
    NoHugePages {
        /// Pages that the queue needs.
        pages: u64,
    },
    /// Another queue has the [`QueueBuffer`](crate::queue_buffer::QueueBuffer).
    #[error("another queue uses the queue buffer: pass a buffer of its own to each queue")]
    BufferInUse,
    /// The memory of a queue is not aligned.
    #[error("the memory of the queue must begin at a multiple of {align} bytes")]
    Misaligned {
        /// The alignment in bytes.
        align: usize,
    },
    /// A [`QueueAllocator`](crate::queue_allocator::QueueAllocator) has no memory.
    #[error("the allocator has no memory for the queue: {bytes} bytes")]
    NoMemory {
        /// The size of the memory.
        bytes: usize,
    },
    /// The provider, the kernel or the device does not support the object or the option.
    #[error("{feature}")]
    Unsupported {
        /// The object or the option.
        feature: Feature,
    },
}

/// The doorbell failed. The variant says whether the batch is posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DoorbellError {
    /// The device accesses no memory for any of the requests, now or later: they were taken back.
    #[error("{0}; the requests were taken back")]
    TakenBack(IoctlError),
    /// The requests count as posted. The device may execute them. They complete at the latest when
    /// the QP enters the error state.
    #[error("{0}; the requests may still be executed")]
    Posted(IoctlError),
}
