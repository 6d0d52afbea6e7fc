//! The provider traits, and the tools that providers are built from.
//!
//! A provider supports one device family: the memory layout of its queues, the format of its WQEs
//! and CQEs, and its doorbell. It implements [`traits`]. This crate supports no particular device.
//! The providers of this project use nothing that an out-of-tree provider could not.
//!
//! | module | contents |
//! |---|---|
//! | [`traits`] | the traits of providers, queues and completions, and the created objects |
//! | [`request`] | parameters of objects, as plain structs |
//! | [`caps`] | capabilities of a context |
//! | [`clock`] | the clock of a device |
//! | [`error`] | errors of creation and of doorbells |
//! | [`work`] | work requests and completions as values |
//! | [`rss`] | hash fields and functions of receive-side scaling |
//! | [`device`] | the device file: ioctls and mappings |
//! | [`copy`] | copies of memory that others access at the same time |
//! | [`free_list`] | a lock-free list of free slots |
//! | [`dm`] | device memory |
//! | [`doorbell`] | doorbells by a command of the kernel |
//! | [`command`] | the kernel's commands, one function each |
//! | [`layout`] | addresses of a queue's ring, indices and doorbell |
//! | [`handle_guard`] | destroys a kernel object unless its creation succeeds |
//! | [`mapping`] | mapped memory |
//! | [`queue_buffer`], [`queue_allocator`] | memory of queues that the caller chooses |
//! | [`process`] | fork detection |
//! | [`thread_domain`] | a doorbell register that chosen QPs share |
//! | [`ring`] | a ring of slots in shared memory, producer and consumer |
//! | [`elements`] | a queue of elements that carry their owner, producer and consumer |
//! | [`barrier`] | all memory barriers, named by purpose |
//! | [`wake`] | wakes many tasks, although wakers may panic |

#![deny(missing_debug_implementations)]

pub mod barrier;
pub mod caps;
pub mod clock;
pub mod command;
pub mod copy;
pub mod device;
pub mod dm;
pub mod doorbell;
pub mod elements;
pub mod error;
pub mod free_list;
pub mod handle_guard;
pub mod layout;
#[cfg(all(test, loom))]
mod loom_models;
pub mod mapping;
mod pages;
pub mod pci_atomic;
pub mod process;
pub mod queue_allocator;
pub mod queue_buffer;
pub mod request;
pub mod ring;
pub mod rss;
pub mod thread_domain;
pub mod traits;
#[doc(hidden)]
pub mod wait;
pub mod wake;
pub mod work;

pub use rustix::io::Errno;
