//! What a provider is, and the tools it is built from.
//!
//! A provider knows one kind of device: how its queues lie in memory, how a work request is written
//! into them and how its doorbell is rung. It fulfils the traits of [`contract`]; nothing in this
//! crate knows any particular device, and the providers of this project use nothing that one
//! outside it could not.
//!
//! | module | what it gives |
//! |---|---|
//! | [`contract`] | the traits, and what queues are asked for and made as |
//! | [`work`] | work requests and completions as values |
//! | [`rss`] | work queues that receive, and what spreads frames over them |
//! | [`device`] | the device file: calls and mappings |
//! | [`command`] | the kernel's commands, one function each |
//! | [`mapping`] | shared memory |
//! | [`process`] | fork detection |
//! | [`ring`] | a ring of slots in shared memory, either side |
//! | [`barrier`] | memory ordering, all of it |

pub mod barrier;
pub mod command;
pub mod contract;
pub mod device;
pub mod dm;
pub mod handle_guard;
#[cfg(all(test, loom))]
mod loom_models;
pub mod mapping;
mod pages;
pub mod process;
pub mod ring;
pub mod rss;
pub mod work;

pub use rustix::io::Errno;
