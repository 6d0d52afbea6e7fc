//! The RDMA connection manager on Linux with no C underneath.
//!
//! Programs that use RDMA rarely exchange queue pair numbers by hand. They bind to an IP address,
//! listen, resolve, connect and accept. This crate talks to the kernel's connection manager,
//! `/dev/infiniband/rdma_cm`. It needs no librdmacm.
//!
//! # Levels
//!
//! | module | for |
//! |---|---|
//! | [`connection`] | connections with their queue pairs: [`Listener`], [`Connector`] |
//! | [`blocking`] | identifiers whose calls wait, with time limits |
//! | `tokio`, `async_io` | the same in tasks (features of these names) |
//! | [`EventChannel`], [`CmId`], [`event`] | programs that are driven by events |
//! | [`command`] | single commands of the kernel's ABI |
//!
//! # Events
//!
//! Events name their identifier by a [`Key`] that is never reused. They need no acknowledgement, so
//! destroying an identifier can't deadlock, and loses no event of another.
//!
//! # Forks
//!
//! As handles of [`bareverbs`], those of this crate are unusable in a forked child: calls fail with
//! `ESTALE`, and drop releases nothing.

#![deny(unsafe_code)]
#![deny(missing_debug_implementations)]

mod addr;
#[cfg(feature = "async-io")]
pub mod async_io;
pub mod blocking;
mod channel;
mod chardev;
pub mod command;
pub mod connection;
mod error;
pub mod event;
mod id;
mod key;
mod multicast;
mod option;
mod param;
#[cfg(feature = "test-utils")]
pub mod parsers;
mod qp;
mod request;
#[cfg(any(feature = "async-io", feature = "tokio"))]
mod runtime;
mod steps;
#[cfg(feature = "tokio")]
pub mod tokio;

pub use addr::{Addr, IbAddr, PortSpace};
pub use channel::EventChannel;
pub use chardev::CmDevice;
pub use connection::{ConnectOptions, Connection, Connector, Listener};
pub use error::{CommandError, Error, Result};
pub use id::{Addresses, BoundDevice, CmId, IbService, ServiceKey};
pub use key::Key;
pub use multicast::JoinMode;
pub use option::PathRecord;
pub use param::{ConnParam, Message, PeerParam, PrivateData};
pub use request::ConnectRequest;

/// Compiles the examples of the crate's README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
