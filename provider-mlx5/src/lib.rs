//! The provider for ConnectX adapters (`mlx5`).
//!
//! The adapter reads requests from and writes completions to rings in the program's own memory.
//! Posting writes a request into a ring, advances a counter in memory and writes to a register of
//! the adapter; polling reads an entry and a bit that says whose it is. No system call takes part
//! in either.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use bareverbs_mlx5::Mlx5;
//! use bareverbs_provider::request::{CqRequest, QueueMemory};
//! use bareverbs_provider::traits::{CompletionQueue, Provider};
//! use bareverbs_provider::device::DeviceFile;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let file = Arc::new(DeviceFile::open("/dev/infiniband/uverbs0", 1)?);
//! let mlx5 = Mlx5::open(file)?;
//! let memory = QueueMemory::Ordinary;
//! let request =
//!     CqRequest { entries: 100, user_handle: 0, channel: None, vector: 0, compressed: false, memory };
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
//! [`wqe`] and [`cqe`] are the adapter's formats as values and views, free of any queue.
//! [`doorbell`] has the doorbell records and registers. [`Mlx5Completion::entry`] shows the entry
//! behind a completion, [`Mlx5Sq::block`] a block of a send queue; both can be printed
//! ([`wqe::WqeDisplay`]), as `bareverbs dump` does.
//!
//! [`Mlx5Sq::push_raw_wqe`] takes a request that was built by hand. The example `raw_wqe` of the
//! crate `bareverbs` posts two of them on a queue pair that was brought up in the ordinary way.
//!
//! # Who may touch what
//!
//! A send queue, a receive queue and a completion queue have an owner each, who may be three
//! threads. What they share is how far the requests are done, and their ids: a completion names its
//! request by its place in the queue. That is in one record per queue pair, made of atomics; the
//! table that leads from a completion to the record is the module `uidx_table`'s.

pub mod cqe;
pub mod doorbell;
pub mod wqe;

mod address;
mod cq;
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
