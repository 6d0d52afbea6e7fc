//! RDMA verbs on Linux with no C underneath.
//!
//! A program posts work requests to a queue pair and polls completions. Between the program and the
//! kernel or the NIC there is only Rust. The crate issues the kernel's uverbs commands itself. It
//! needs no C library at build time or at run time.
//!
//! ```
//! use bareverbs::{Access, Buffer, Device, Endpoint, Op, Report};
//!
//! fn main() -> Result<(), Report> {
//!     let pd = Device::find("soft0")?.open()?.alloc_pd()?;
//!     let mut alice = Endpoint::new(&pd, 1, 16)?;
//!     let mut bob = Endpoint::new(&pd, 1, 16)?;
//!     // Between two machines, the addresses go over a socket.
//!     alice.connect(&bob.address())?;
//!     bob.connect(&alice.address())?;
//!
//!     bob.post(Op::recv(pd.register(Buffer::zeroed(4096)?, Access::LOCAL_WRITE)?))?;
//!     let mut hello = pd.register(Buffer::zeroed(4096)?, Access::LOCAL_WRITE)?;
//!     hello.write(0, b"hello, bob")?;
//!     alice.post(Op::send(hello, ..10))?;
//!
//!     assert_eq!(bob.next().wait()?.message(), Some(&b"hello, bob"[..]));
//!     Ok(())
//! }
//! ```
//!
//! `soft0` needs the cargo feature `soft`.
//!
//! # Levels
//!
//! The root has what most programs need: devices, memory, errors, and the safe layer. In the safe layer
//! an operation owns its buffer until its completion is polled, and nothing is `unsafe`.
//!
//! | type | for |
//! |---|---|
//! | [`Endpoint`] | one connection with one owner; completions in order; the fastest |
//! | [`Hub`] and its [`Connection`]s | many connections, shared by threads or tasks; a future per operation |
//! | [`server`] | messages with flow control from many peers: [`Server`](server::Server), [`Client`](server::Client) |
//! | [`Datagrams`] | UD: datagrams to any number of peers, and multicast groups |
//! | [`qp`], [`cq`], [`srq`], … and [`raw`] | the verbs: every transport and attribute |
//!
//! The verbs stand in modules by subject. [`Qp::post_send`] and [`Qp::post_recv`] take
//! scatter/gather elements (SGEs) and are `unsafe`, because the compiler cannot see how long a device
//! uses memory. All other verbs are safe. [`untyped`] has QPs whose transport is known at run time
//! only. [`raw`] issues any method of the kernel ABI.
//!
//! [`docs/choosing.md`] of the repository is a decision tree. The crate `bareverbs-netlink` lists and
//! changes devices without opening them: links, counters, objects and their owners.
//!
//! # Objects and ownership
//!
//! [`Device`] → [`Context`] → [`Pd`] → [`Mr`], [`Srq`], [`Wq`], [`Ah`] and [`Qp`]; [`Context`] →
//! [`CompChannel`], [`Cq`] and [`Xrcd`]. Handles own their parents, so every drop order is right.
//! Each queue has a single owner. The two [halves](qp::Qp::split) of a QP can be used by two threads at
//! once.
//!
//! Types carry the provider as a parameter. The default, [`AnyProvider`], chooses the provider by
//! the device's driver.
//!
//! # Waiting
//!
//! Calls that wait for completions, events or buffers return a value. A task awaits it; a thread calls
//! its `wait`, or its `wait_timeout`, which returns `None` if the limit has passed. No result is lost
//! then. `connect` and `admit` block the thread: in a task, call them in the runtime's
//! `spawn_blocking`.
//!
//! [`CompChannel`], [`AsyncEvents`], [`Endpoint`] and [`Datagrams`] take the async [`runtime`] once, by
//! `attach`; a hub and a server take it by `drive`. The features `tokio` and `async-io` (off by default)
//! have one each. The file descriptors of the four types work with `poll`, `epoll` and the like.
//!
//! # Forks
//!
//! There is no `ibv_fork_init` (`RDMAV_FORK_SAFE`): the kernel copies pinned pages. Handles are
//! unusable in a forked child. The child does not affect the queues, objects and registered memory
//! of the parent:
//!
//! - Every verb on an inherited handle fails with `ESTALE`. Events are not read. Drop releases
//!   nothing.
//! - Queue memory is not inherited. The caller of `fork`, which is an `unsafe` function, must
//!   ensure that the child neither polls nor posts: the child has no mapping there, or another one.
//! - The kernel copies registered memory for the child, as it does all private memory. It copies
//!   pinned pages at fork (since Linux 5.12; see
//!   [`SystemInfo::copy_on_fork`](bareverbs_netlink::SystemInfo::copy_on_fork)). So parent and device
//!   keep sharing the original pages, and the child's accesses affect neither.
//! - The child may open the device again, call `exec` or exit. If the device supports it, the child
//!   may also import the parent's context by a file descriptor that the parent has sent:
//!   [`Context::import`].
//!
//! A daemon that forks into the background should open the device afterwards.
//!
//! # Coming from libibverbs
//!
//! The search of this documentation also finds C names.
//!
//! | libibverbs | here |
//! |---|---|
//! | `ibv_get_device_list`, `ibv_open_device` | [`devices`], [`Device::find`], [`Device::open`] |
//! | `ibv_query_device_ex`, `ibv_query_port` | [`Context::query_device`], [`Context::query_port`] |
//! | `ibv_query_gid_table`, `ibv_query_gid_ex` | [`Context::gid_table`], [`Context::gid`] |
//! | `ibv_alloc_pd`, `ibv_reg_mr`, `ibv_rereg_mr` | [`Context::alloc_pd`], [`Pd::register`]; [`Mr::move_to`], [`Mr::set_access`] |
//! | `ibv_create_comp_channel`, `ibv_get_cq_event` | [`Context::create_comp_channel`], [`CompChannel::next`] |
//! | `ibv_create_cq_ex`, `ibv_req_notify_cq` | [`Context::create_cq`], [`Cq::arm`] |
//! | `ibv_poll_cq`, `ibv_start_poll`, `ibv_wc_read_*` | [`Cq::poll_into`], [`Cq::poll`], [`Completion`] |
//! | `ibv_create_qp_ex`, `ibv_modify_qp` | [`Pd::create_qp`], [`Qp::bring_up`], [`Qp::modify`] |
//! | `ibv_post_send`, `ibv_wr_start`, `ibv_post_recv` | [`Qp::post_send`], [`Qp::start_send`], [`Qp::post_recv`] |
//! | `ibv_create_srq`, `ibv_create_ah`, `ibv_alloc_mw` | [`Pd::create_srq`], [`Pd::create_ah`], [`Pd::alloc_mw`] |
//! | `ibv_get_async_event` | [`Context::async_events`], [`AsyncEvents::next`] |
//! | `ibv_ack_cq_events`, `ibv_ack_async_event` | none: events need no acknowledgement |
//! | `ibv_destroy_*`, `ibv_dealloc_*`, `ibv_close_device` | drop, or methods such as [`Qp::destroy`], which return errors |
//! | `ibv_import_device`, `ibv_import_pd` | [`Context::import`], [`Context::import_pd`] |
//! | `ibv_alloc_td`, `ibv_alloc_parent_domain` | [`Context::alloc_td`]; [`QpInit::doorbell`], [`QueueMemory::From`] |
//! | `mlx5dv_init_obj` | [`Qp::layout`], [`Cq::layout`] |
//! | `ibv_cmd_*` | [`raw`] |
//! | tag matching (`ibv_post_srq_ops`), ESP flow actions | none |
//!
//! [`docs/c-functions.md`] of the repository lists every function of libibverbs, librdmacm and
//! libmlx5.
//!
//! [`docs/c-functions.md`]: https://github.com/bareverbs/bareverbs/blob/main/docs/c-functions.md
//! [`docs/choosing.md`]: https://github.com/bareverbs/bareverbs/blob/main/docs/choosing.md
//!
//! # Errors
//!
//! An [`Error`] names the verb, its arguments, the origin of the failure and the remedy. That text is
//! its `Display`. A `main` prints it if it returns a [`Report`]; of an [`Error`] it prints the fields.
//! A failed call that consumed an object returns it in a [`Refused`]. Posting follows the `bad_wr`
//! rule: [`PostError::accepted`] counts the posted requests, and those are executed.
//!
//! [`Ah`]: ah::Ah
//! [`CompChannel`]: cq::CompChannel
//! [`CompChannel::next`]: cq::CompChannel::next
//! [`Completion`]: cq::Completion
//! [`Cq`]: cq::Cq
//! [`Cq::arm`]: cq::Cq::arm
//! [`Cq::layout`]: cq::Cq::layout
//! [`Cq::poll`]: cq::Cq::poll
//! [`Cq::poll_into`]: cq::Cq::poll_into
//! [`PostError::accepted`]: error::PostError::accepted
//! [`Qp`]: qp::Qp
//! [`Qp::bring_up`]: qp::Qp::bring_up
//! [`Qp::destroy`]: qp::Qp::destroy
//! [`Qp::layout`]: qp::Qp::layout
//! [`Qp::modify`]: qp::Qp::modify
//! [`Qp::post_recv`]: qp::Qp::post_recv
//! [`Qp::post_send`]: qp::Qp::post_send
//! [`Qp::start_send`]: qp::Qp::start_send
//! [`QpInit::doorbell`]: qp::QpInit::doorbell
//! [`QueueMemory::From`]: qp::QueueMemory::From
//! [`Srq`]: srq::Srq
//! [`Wq`]: rss::Wq
//! [`Xrcd`]: xrc::Xrcd

#![deny(missing_debug_implementations)]

/// Compiles the example of the repository's README.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

/// Runs the examples about tests with soft devices.
#[cfg(doctest)]
#[doc = include_str!("../../docs/testing-your-program.md")]
struct Testing;

mod address;
pub mod ah;
mod ah_attr;
mod alarm;
mod attributes;
pub mod buffer;
mod channel;
pub mod comp_cntr;
mod context;
pub mod cq;
pub mod datagram;
mod debug;
pub mod device;
mod discovery;
pub mod dm;
mod dmabuf;
mod dmah;
pub mod error;
mod ethernet;
mod event_fd;
mod events;
pub mod flow;
mod gid;
mod import;
mod link_down;
mod locked_memory;
mod memory;
pub mod mr;
mod mr_hints;
mod mr_keys;
pub mod mw;
mod owned;
#[cfg(feature = "test-utils")]
pub mod parsers;
mod pd;
mod pkey;
mod post_error;
mod provider;
pub mod qp;
mod queue_buffer;
mod range;
pub mod raw;
mod recv_queue;
mod released;
pub mod rss;
pub mod runtime;
#[cfg(feature = "soft")]
pub mod soft;
pub mod srq;
#[doc(hidden)]
pub mod sync;
#[cfg(any(test, feature = "test-utils"))]
pub mod testing;
mod thread_domain;
pub mod untyped;
pub mod values;
mod wait;
mod wake_sources;
mod wq;
mod wr_id;
pub mod xrc;
mod xrcd;

pub use address::Address;
pub use bareverbs_provider::Errno;
pub use bareverbs_provider::traits::Provider;
pub use bareverbs_provider::work::{Imm, Remote};
pub use bareverbs_uapi::uverbs::types::AccessFlags as Access;
pub use bareverbs_uapi::verbs_values::WcStatus;
pub use bareverbs_uapi::write::types::WcOpcode;
pub use context::Context;
pub use device::{Device, devices};
pub use error::{Error, Refused, Report, Result};
pub use events::{AsyncEvent, AsyncEvents};
pub use gid::Gid;
pub use memory::{Borrowed, Buffer, MemoryOwner, RawMemory};
pub use mr::Mr;
pub use owned::{
    AnyBuffer, Batch, Closing, Completed, Connection, Datagrams, Destination, Done, Endpoint,
    EndpointOptions, Failed, Hub, Next, Op, Outcome, Pending, Pool, PoolBuffer, Region, RegionMut,
    RemoteRegion, Scope, Spin, hub, op, server,
};
pub use pd::Pd;
pub use provider::AnyProvider;
#[cfg(feature = "test-utils")]
pub use provider::{AnyCq, AnyRq, AnySq};
pub use values::PortNum;

/// Compiles the examples of the crate's README.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;
