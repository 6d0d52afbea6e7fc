//! The provider for ConnectX devices (`mlx5`).
//!
//! The rings are memory of this process. The device reads WQEs from them and writes CQEs to them. A
//! post writes a WQE and stores the producer index in the doorbell record; a post of sends also
//! writes a doorbell register. A poll reads a CQE and its owner bit. None of them makes a system
//! call.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use bareverbs_mlx5::Mlx5;
//! use bareverbs_provider::request::{CqeSize, CqRequest, QueueMemory};
//! use bareverbs_provider::traits::{CompletionQueue, Provider};
//! use bareverbs_uapi::write::types::CqCreateFlags;
//! use bareverbs_provider::device::DeviceFile;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let file = Arc::new(DeviceFile::open("/dev/infiniband/uverbs0", 1)?);
//! let mlx5 = Mlx5::open(file)?;
//! let (memory, flags) = (QueueMemory::BasePages, CqCreateFlags::empty());
//! let request = CqRequest {
//!     entries: 100, user_handle: 0, channel: None, vector: 0, compressed: false,
//!     cqe_size: CqeSize::Bytes64, flags, memory,
//! };
//! // SAFETY: the queue and its kernel object last until the program ends.
//! let mut cq = unsafe { mlx5.create_cq(&request) }?;
//! assert!(cq.entries >= 100);
//! assert!(cq.queue.next().is_none());
//! # Ok(())
//! # }
//! ```
//!
//! # Low-level access
//!
//! [`wqe`] and [`cqe`] are the device's formats as values and views, independent of any queue.
//! [`doorbell`] has the doorbell records and registers. [`Mlx5Completion::entry`] is the CQE of a
//! completion. [`Mlx5Sq::block`] is a block of a send queue. Both can be printed
//! ([`wqe::WqeDisplay`]), as `bareverbs dump` does.
//!
//! [`Mlx5Sq::push_raw_wqe`] posts a WQE that the caller built. The example `raw_wqe` of the crate
//! `bareverbs` posts two of them on a connected queue pair.
//!
//! # Threads
//!
//! A send queue, a receive queue and a completion queue have one owner each. The owners may be
//! three threads. They share the counts of completed requests and the work request ids, because a
//! CQE names its request by its index in the queue. One `QueueRecord` per queue pair holds both as
//! atomics. The module `uidx_table` maps a CQE to its record.

#![deny(missing_debug_implementations)]

pub mod cqe;
pub mod doorbell;
pub mod wqe;

mod address;
mod cq;
mod cq_ring;
mod fast_path;
#[cfg(test)]
mod fixture;
mod lock;
#[cfg(all(test, loom))]
mod loom_models;
mod provider;
mod qp_memory;
mod rq;
mod scatter_to_cqe;
mod sq;
mod srq;
mod sync;
#[cfg(feature = "test-utils")]
pub mod testing;
mod uidx_table;

pub use cq::{Mlx5Completion, Mlx5Cq};
pub use provider::Mlx5;
pub use rq::Mlx5Rq;
pub use sq::{Mlx5Ah, Mlx5Sq, RawWqe};
pub use srq::Mlx5Srq;
