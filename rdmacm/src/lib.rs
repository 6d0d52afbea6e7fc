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
//! | [`connection`] | connections with their queue pairs: [`Listener`], [`Connector`], [`Connected`] |
//! | [`stream`] | byte streams, used like those of [`std::net`] |
//! | [`datagram`] | datagrams, used like those of [`std::net`] |
//! | [`CmId`], [`EventChannel`], [`event`] | identifiers: commands, waits for their events, or events for a loop |
//! | [`command`] | single commands of the kernel's ABI |
//!
//! # Waiting
//!
//! Calls that wait return a [`Waiting`]. A thread takes the result by [`Waiting::wait`] or
//! [`Waiting::wait_timeout`], a task by `.await`. The async runtime is given once, at set-up:
//! [`Listener::attach`], [`Connector::attach`], [`EventChannel::attach`],
//! [`StreamOptions::runtime`](stream::StreamOptions::runtime).
//!
//! # Events
//!
//! Events name their identifier by a [`Key`] that is never reused. They need no acknowledgement, so
//! destroying an identifier can't deadlock, and loses no event of another.
//!
//! Connections of a [`Listener`] or a [`Connector`] share a channel, which is one open file. Each gets
//! its own events, also when several threads or tasks wait for different ones.
//!
//! # Coming from librdmacm
//!
//! | librdmacm | here |
//! |---|---|
//! | `rdma_get_devices` | [`bareverbs::devices`]; a [`connection::Domains`] opens each device once |
//! | `rdma_create_event_channel`, `rdma_get_cm_event` | [`EventChannel::new`], [`EventChannel::next`], [`EventChannel::try_wait`] |
//! | `rdma_ack_cm_event` | none: events need no acknowledgement |
//! | `rdma_create_id`, `rdma_destroy_id` | [`CmId::new`], drop or [`CmId::destroy`] |
//! | `rdma_bind_addr`, `rdma_listen`, `rdma_get_request` | [`CmId::bind_addr`], [`CmId::listen`], [`CmId::request`] |
//! | `rdma_event_str` | `Debug` of [`event::EventKind`] |
//! | `rdma_getaddrinfo` | [`AddrInfo::lookup`]; [`Listener::bind`] and [`Connector::connect`] take names |
//! | `rdma_resolve_addr`, `rdma_resolve_route` | [`CmId::resolve_addr`], [`CmId::resolve_route`]; both: [`CmId::resolve`] |
//! | `rdma_create_qp`, `rdma_create_ep` | [`Pd::create_qp`](bareverbs::Pd::create_qp) or [`Endpoint`](bareverbs::Endpoint), then [`connection::Route::connect`] or [`connection::Incoming::accept`] |
//! | `rdma_connect`, `rdma_accept`, `rdma_establish` | [`CmId::connect`], [`ConnectRequest::accept`], [`CmId::establish`]; with the moves of the QP: [`CmId::connect_qp`], [`ConnectRequest::accept_qp`], [`CmId::establish_qp`] |
//! | `rdma_reject`, `rdma_reject_ece` | [`ConnectRequest::reject`], [`ConnectRequest::reject_ece`], or drop |
//! | `rdma_init_qp_attr` | [`CmId::init_qp_attr`] |
//! | `rdma_get_local_addr`, `rdma_get_peer_addr`, `rdma_get_src_port`, `rdma_get_dst_port` | [`CmId::addresses`] |
//! | `rdma_disconnect`, `rdma_notify`, `rdma_migrate_id` | [`CmId::disconnect`], [`CmId::notify`], [`CmId::migrate`] |
//! | `rdma_join_multicast_ex`, `rdma_leave_multicast` | [`CmId::join_multicast`], [`event::UdPeer::attach`], [`CmId::leave_multicast`] |
//! | `rdma_set_option` | `CmId::set_tos`, `set_reuse_addr`, `set_ipv6_only`, `set_ack_timeout`, `set_path`; [`IdOptions`] |
//! | `rdma_set_local_ece`, `rdma_get_remote_ece` | [`ConnParam::ece`] or [`ConnectOptions::ece`], [`PeerParam::ece`] |
//! | `rdma_reg_msgs`, `rdma_post_send`, `rdma_get_send_comp` and the other inline functions | [`Pd::register`](bareverbs::Pd::register), and the operations of [`Endpoint`](bareverbs::Endpoint) |
//! | `rdma_create_srq`, `rdma_destroy_srq` | [`Pd::create_srq`](bareverbs::Pd::create_srq), drop |
//! | `rdma_resolve_addrinfo`, `rdma_query_addrinfo`, `rdma_write_cm_event` | [`CmId::resolve_ib_service`], [`CmId::ib_services`], [`CmId::write_user_event`] |
//! | `rsocket`, `rconnect`, `rlisten`, `raccept` | [`stream::RdmaStream`], [`stream::RdmaListener`] |
//! | `rsocket` of type `SOCK_DGRAM` | [`datagram::DatagramSocket`] |
//!
//! Differences that matter to a program that is ported:
//!
//! - [`ConnParam::new`] has 6 retries and one read or atomic in each direction. A zeroed
//!   `rdma_conn_param` has none.
//! - A QP that this crate moves to RTS has the RNR timer of [`ConnectOptions::min_rnr_timer`]. The
//!   attributes of the kernel have 655 ms.
//! - [`CmId::listen`] twice, [`CmId::accept`] twice and the migration of a listener fail with
//!   [`Error::Invalid`].
//!
//! # Soft devices
//!
//! With the feature `soft`, most of this works on [soft devices](bareverbs::soft), which need no
//! kernel module: on those that the process has created by name, and by
//! [`EventChannel::on`](crate::EventChannel) and [`Domains`](connection::Domains) on those of a
//! fabric. `bareverbs_soft::CmFile` lists the differences: addresses of the family `AF_IB` and
//! services of InfiniBand don't exist there. Where the pages say that the kernel executes a command,
//! the process does.
//!
//! # Forks
//!
//! As handles of [`bareverbs`], those of this crate are unusable in a forked child: calls fail with
//! `ESTALE`, and drop releases nothing.

// Its simulated kernel writes responses to their addresses.
#![cfg_attr(test, deny(unsafe_code))]
#![cfg_attr(not(test), forbid(unsafe_code))]
#![deny(missing_debug_implementations)]

mod addr;
mod attr;
mod channel;
mod chardev;
pub mod command;
pub mod connection;
pub mod datagram;
mod error;
pub mod event;
mod id;
mod key;
mod multicast;
mod name;
mod option;
mod param;
#[cfg(feature = "test-utils")]
pub mod parsers;
mod private_data;
mod qp;
mod ready;
mod request;
mod status;
mod steps;
pub mod stream;
#[cfg(test)]
mod testing;
mod waiting;
mod waits;

pub use addr::{Addr, IbAddr, PortSpace};
pub use channel::EventChannel;
pub use chardev::CmDevice;
pub use connection::{ConnectOptions, Connected, Connector, Link, Listener};
pub use error::{CommandError, Error, Feature, Result};
pub use id::{Addresses, BoundDevice, CmId, IbService, ServiceKey};
pub use key::Key;
pub use multicast::JoinMode;
pub use name::{AddrFamily, AddrHints, AddrInfo, Name};
pub use option::{IdOptions, PathRecord};
pub use param::{ConnParam, Message, PeerParam};
pub use private_data::PrivateData;
pub use request::ConnectRequest;
pub use waiting::Waiting;

/// Compiles the examples of the crate's README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

/// Compiles the decision tree.
#[cfg(doctest)]
#[doc = include_str!("../../docs/choosing.md")]
struct Choosing;

/// Compiles the recipes.
#[cfg(doctest)]
#[doc = include_str!("../../docs/cookbook.md")]
struct Cookbook;
