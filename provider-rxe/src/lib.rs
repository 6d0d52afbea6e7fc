//! The provider for Soft-RoCE (`rxe`), RDMA over an ordinary network interface.
//!
//! The kernel carries out the requests; its queues are vmalloc'ed pages that it shares with the
//! program. Posting writes a request into a slot and advances an index in those pages, and so does
//! polling, without a system call. Only two things need one: telling the kernel to look at the send
//! queue, once per batch, and asking for a completion event.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use bareverbs_provider::request::{CqRequest, QueueMemory};
//! use bareverbs_provider::traits::{CompletionQueue, Provider};
//! use bareverbs_provider::device::DeviceFile;
//! use bareverbs_rxe::Rxe;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let file = Arc::new(DeviceFile::open("/dev/infiniband/uverbs0", 14)?);
//! let rxe = Rxe::open(file)?;
//! let memory = QueueMemory::Ordinary;
//! let request =
//!     CqRequest { entries: 100, user_handle: 0, channel: None, vector: 0, compressed: false, memory };
//! // SAFETY: the queue and its kernel object last until the program ends.
//! let mut cq = unsafe { rxe.create_cq(&request) }?;
//! assert!(cq.entries >= 100);
//! assert!(cq.queue.next().is_none());
//! # Ok(())
//! # }
//! ```
//!
//! # The send queue's doorbell
//!
//! The kernel looks at a send queue when the write command `POST_SEND` comes with no requests in
//! it. What it answers decides what becomes of a batch that is already in the ring (`rxe_post_send`
//! in the kernel's `rxe_verbs.c`, the same in 6.1, 6.12 and 7.2):
//!
//! - Below the state RTS it answers `EINVAL` before it schedules anything. Nothing else makes it
//!   look at the ring below RTS either: no packets are outstanding whose answers or timers could,
//!   and answers that come in are dropped. So the batch is taken back. Left in place it would be
//!   sent by the first doorbell after the change to RTS, long after its post failed.
//! - From RTS on it answers 0, also in SQD, where it waits, and in ERR, where the doorbell is what
//!   makes it flush the queue.
//! - Any other answer comes from layers above the driver (no memory for the command, the device
//!   gone) and says nothing about the queue: earlier requests may keep the kernel's worker going,
//!   and it reads the shared index as it goes. Taking a batch back under a worker that has begun it
//!   would make the worker take the rest of the ring for requests. So the batch stays, and counts
//!   as posted.
//!
//! A change of the queue pair's state by another thread between the two steps of a refused doorbell
//! can at worst produce flush completions for requests that were taken back, because from INIT and
//! RTR the only ways on are RTS, which looks at nothing by itself, and ERR and RESET, which send
//! nothing.
//!
//! # What the kernel must find in a slot
//!
//! The kernels of the 6.x series trust a slot's counts of SGEs, so a malformed one must never be
//! published. Requests are checked while they are written: SGEs against the width that the ring was
//! made for, inline bytes against the slot, the sum of bytes against the largest message, atomics
//! against their size and alignment. The fields that only the kernel uses are left as they are,
//! except those that it reads before it writes them: state, status and the read/atomic mark, which
//! start as zero.

mod completion;
mod doorbell;
mod memory;
mod provider;
mod rd_atomic;
mod recv;
mod send;
#[cfg(feature = "test-utils")]
pub mod testing;

pub use completion::{Arm, KernelArm, RxeCompletion, RxeCq};
pub use doorbell::{Doorbell, KernelDoorbell};
pub use memory::{KernelQueue, QueueMemory};
pub use provider::Rxe;
pub use recv::{RxeRq, RxeSrq};
pub use send::{RxeAh, RxeSq, SendLimits};
