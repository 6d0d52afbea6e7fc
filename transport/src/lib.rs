//! The transport layer of InfiniBand and RoCE v2 (InfiniBand specification, volume 1, chapters 9 and
//! 10), in pure Rust.
//!
//! The crate contains no device. It executes the QPs of a device that implements [`Device`], which
//! has the formats of queues and completions, memory keys and events. The crate has neither threads
//! nor a clock: the device's owner passes in the time, doorbells and packets.
//!
//! # The path of a message
//!
//! | step | file |
//! |---|---|
//! | A doorbell makes the QP ready ([`Scheduler::wake`]), and [`Scheduler::run`] gives it a turn | `scheduler` |
//! | The requester takes the next WQE from the device as [`Work`], and gives it its PSNs | `requester`, `requester/fetch` |
//! | It gathers the payload of each packet from the SGEs, and transmits it as a [`Packet`](packet::Packet). Between devices in one process, the packet may have the address of the payload ([`Device::zero_copy`]) | `requester/packetize`, `gather` |
//! | The wire carries the packet as a value, or as bytes: BTH and extension headers, RoCE v2 frames | `bth`, `roce` |
//! | The peer's [`Scheduler::receive`] finds the QP | `scheduler` |
//! | The responder checks the PSN, executes the request, and owes an ACK, a NAK or data. UD has a responder of its own | `responder/request`, `datagram` |
//! | It scatters the payload of a SEND into a receive WQE, which the device completes | `receive_queue` |
//! | Its next turn sends the responses | `responder/response` |
//! | The requester completes the acknowledged WQEs, or repeats the lost packets | `requester/response` |
//! | The device reports the completions in the order of the SQ | `requester/complete`, `send_queue` |
//!
//! `qp` has the state of both sides, `qp/migration` and `qp/pacing` path migration and rate limits.
//! `error_state` flushes the queues. [`Status`], [`Event`] and [`Counters`] are what a device
//! translates for its driver.
//!
//! # Tools for a wire
//!
//! [`FaultInjector`] injects each [`Fault`] into packets by rules and a seed, [`pcap`] records packets.
#![forbid(unsafe_code)]
#![deny(missing_debug_implementations)]

/// Compiles the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub mod bth;
pub mod checksum;
mod data;
mod datagram;
mod device;
mod error_state;
mod faults;
mod gather;
pub mod packet;
pub mod pcap;
mod pool;
mod qp;
mod random;
mod receive_queue;
mod requester;
mod responder;
pub mod roce;
mod scheduler;
mod send_queue;
mod service;
mod status;
mod table;
mod traffic;
mod work;

pub use device::{
    Access, AccessError, Counters, Device, Event, Fetched, KeyRange, PageFault, Policy, QueueFault, Queues,
    ReceiveQueue, RecvOutcome, SendCompletion, SendWqe, Step,
};
pub use faults::{Fault, FaultInjector, InjectedFault, Verdict};
pub use gather::gather;
pub use pool::Pool;
pub use qp::Qp;
pub use qp::attributes::{QpAttributes, State};
pub use qp::migration::{AlternatePath, Migration};
pub use qp::pacing::Rate;
pub use random::SplitMix64;
pub use scheduler::Scheduler;
pub use service::{ManagementQp, Service};
pub use status::Status;
pub use table::Table;
pub use traffic::{DirectionCounters, Tally, Traffic};
pub use work::{Action, AddressVector, Fence, Receive, RecvFetch, Segment, Sge, Work};
