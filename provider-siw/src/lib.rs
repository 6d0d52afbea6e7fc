//! The provider for Soft-iWARP (`siw`), RDMA over TCP connections of the kernel.
//!
//! The kernel executes the requests. Its queues are pages that it shares with the process. Posting fills an
//! element and publishes it by its flags; polling reads the elements of the CQ. Neither needs a system
//! call, except for the doorbell.
//!
//! QPs are RC. The kernel's connection manager (rdma_cm) connects them and moves them to RTS; a
//! `MODIFY_QP` can't.
//!
//! # The send queue's doorbell
//!
//! The doorbell is the write command `POST_SEND` without requests
//! ([`KernelDoorbell`](bareverbs_provider::doorbell::KernelDoorbell)). The kernel sends in the caller's
//! context until the socket is full, then by a thread. It takes an element, stores 0 in its flags, and looks
//! at the next one. So the doorbell is omitted if the element before the batch is not taken yet: the kernel
//! will find the batch. Both sides need a full barrier between their store and their load; the kernel has it
//! in `smp_store_mb` (`siw_activate_tx_from_sq` of `siw_qp.c`).
//!
//! `ENOTCONN` means that the QP is not in RTS, or that its state is locked at the moment. The requests stay
//! in the queue and count as posted. In ERROR, the doorbell succeeds and does nothing.
//!
//! A malformed element stops the queue: the kernel neither takes nor completes it. So requests are checked
//! while they are written: the operation, the SGEs, inline data, the fence of a read.
//!
//! # Completions
//!
//! A SEND or RDMA WRITE is complete when TCP has taken it; the peer has not acknowledged it. An RDMA READ
//! is complete when its data has arrived. READs beyond the depth of the connection (ORD) wait in the
//! kernel, and the requests behind them (`siw_activate_tx_from_sq` of `siw_qp.c`). The CQ restores the
//! order of posting. Requests that the kernel
//! leaves in the queues of a failed QP are flushed by the provider, in software. No completion event is
//! raised for those: a thread that posts to a failed QP should poll afterwards. Each error of a completion
//! moves the QP to ERR.
//!
//! Successful completions that the caller does not ask for take an element of the CQ nevertheless, until it
//! is polled, in two cases: RDMA reads, and messages that TCP would otherwise send from the caller's memory
//! even after their completion (4096 bytes and more).

#![deny(missing_debug_implementations)]

mod completion;
mod control;
mod memory;
mod order;
mod provider;
mod recv;
mod send;
mod shared;
#[cfg(feature = "test-utils")]
pub mod testing;

pub use completion::{SiwCompletion, SiwCq};
pub use control::Control;
pub use memory::{QueueMemory, SharedMemory};
pub use provider::Siw;
pub use recv::SiwRq;
pub use send::{QpMemory, SiwAh, SiwSq};
pub use shared::CqShared;
