//! The provider for Soft-RoCE (`rxe`), RDMA over an ordinary network interface.
//!
//! The kernel executes the requests. Its queues are vmalloc'ed pages that it shares with the
//! process. Posting writes a WQE into a slot and advances the producer index. Polling reads a CQE
//! and advances the consumer index. Neither needs a system call. Two operations do: the send
//! doorbell, once per batch, and arming a CQ.
//!
//! ```
//! use std::sync::Arc;
//!
//! use bareverbs_provider::request::{CqeSize, CqRequest, QueueMemory};
//! use bareverbs_provider::traits::{CompletionQueue, Provider};
//! use bareverbs_uapi::write::types::CqCreateFlags;
//! use bareverbs_rxe::Rxe;
//! use bareverbs_soft::{Fabric, SoftDevice};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Or a device of the kernel: `DeviceFile::open("/dev/infiniband/uverbs0", DriverId::RXE.0)`
//! let file = Arc::new(SoftDevice::new(&Fabric::new()).open()?);
//! let rxe = Rxe::open(file)?;
//! let (memory, flags) = (QueueMemory::BasePages, CqCreateFlags::empty());
//! let request = CqRequest {
//!     entries: 100, user_handle: 0, channel: None, vector: 0, compressed: false,
//!     cqe_size: CqeSize::Bytes64, flags, memory,
//! };
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
//! The doorbell is the write command `POST_SEND` without requests, by `write()`. If the kernel
//! refuses that before it executes anything (`EACCES` of a thread whose credentials changed since
//! the open, `EPERM`, `EINVAL`), the doorbell is the ioctl method `INVOKE_WRITE`. The result
//! decides what happens to a batch that is already in the ring (`rxe_post_send` in the kernel's
//! `rxe_verbs.c`, the same in 6.1, 6.12 and 7.2):
//!
//! - Below RTS the kernel returns `EINVAL` before it schedules anything. The batch is taken back: if
//!   it stayed, the first doorbell in RTS would send it long after its post failed. A QP that never
//!   was in RTS has sent nothing, so nothing else makes the kernel read its ring.
//! - After a reset, the requester may run at any time: the reset stops neither the RNR timer nor the
//!   retransmission timer, and a packet that leaves the send buffer may wake the requester
//!   (`rnr_nak_timer` in `rxe_req.c`, `retransmit_timer` in `rxe_comp.c`, `rxe_skb_tx_dtor` in
//!   `rxe_net.c`). The requester stops in RESET and reads the ring in INIT and RTR. So the queue
//!   publishes nothing after a reset before a doorbell has returned 0. A batch that is posted earlier
//!   is discarded, with `EINVAL`. This costs one system call for each reset.
//! - From RTS on the kernel returns 0. In SQD the batch waits. In ERR the doorbell makes the kernel
//!   flush the queue.
//! - Any other error comes from layers above the driver (no memory for the command, device removed)
//!   and says nothing about the queue. The kernel's worker may still process earlier requests, and
//!   it reads the shared index as it proceeds. If a batch were taken back after the worker began
//!   it, the worker would read the rest of the ring as requests. The batch therefore stays and
//!   counts as posted.
//!
//! Another thread may change the QP's state between the failed doorbell and the take-back. At
//! worst, the kernel then generates flush completions for requests that were taken back: INIT and
//! RTR lead only to RTS, which does not read the ring by itself, and to ERR and RESET, which send
//! nothing.
//!
//! # WQE validity
//!
//! Kernels of the 6.x series trust the SGE counts in a slot, so a malformed WQE must never be
//! published. Requests are checked while they are written: SGEs against the width of the ring,
//! inline bytes against the slot, the total length against the largest message, atomics against
//! their size and alignment.
//!
//! Fields that only the kernel uses are left unchanged, except those that it reads before it writes
//! them: state, status and the read/atomic mark. They start as zero.

#![deny(missing_debug_implementations)]

mod completion;
#[cfg(all(test, loom))]
mod loom_models;
mod memory;
mod provider;
mod rd_atomic;
mod recv;
mod send;
#[cfg(feature = "test-utils")]
pub mod testing;

pub use completion::{Arm, KernelArm, RxeCompletion, RxeCq};
pub use memory::{KernelQueue, QueueMemory};
pub use provider::Rxe;
pub use recv::{RxeRq, RxeSrq};
pub use send::{RxeAh, RxeSq, SendLimits};
