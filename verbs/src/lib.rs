//! RDMA verbs on Linux with no C underneath.
//!
//! A program hands work requests to a queue pair and reads completions; between it and the kernel
//! or the NIC there is only Rust. There is no library to find at run time and no build-time one:
//! the crate speaks the kernel's uverbs ABI itself.
//!
//! ```no_run
//! use bareverbs::owned::Endpoint;
//! use bareverbs::{Access, Buffer, Device};
//!
//! let pd = Device::find("rxe0")?.open()?.alloc_pd()?;
//! let mut alice = Endpoint::new(&pd, 1, 16)?;
//! let mut bob = Endpoint::new(&pd, 1, 16)?;
//! // Between two machines, the addresses go over a socket.
//! alice.connect(&bob.address())?;
//! bob.connect(&alice.address())?;
//!
//! bob.post_recv(pd.register(Buffer::zeroed(4096)?, Access::LOCAL_WRITE)?)?;
//! let mut hello = pd.register(Buffer::zeroed(4096)?, Access::LOCAL_WRITE)?;
//! hello.write(0, b"hello, bob")?;
//! alice.post_send(hello, ..10)?;
//!
//! assert_eq!(bob.wait()?.message(), Some(&b"hello, bob"[..]));
//! # Ok::<(), bareverbs::Error>(())
//! ```
//!
//! # Two levels
//!
//! [`owned`] is safe: an operation owns its buffer until its completion is reaped. Beneath it,
//! [`Qp::post_send`] and [`Qp::post_recv`] take scatter/gather elements and are `unsafe`, since the
//! compiler cannot see how long a device uses memory. Everything else (devices, regions, queues,
//! bring-up, polling, events) is safe and shared by both.
//!
//! # How things hang together
//!
//! [`Device`] → [`Context`] → [`Pd`] → [`Mr`], [`Srq`], [`Wq`], [`Ah`] and [`Qp`]; [`Context`] →
//! [`CompChannel`], [`Cq`] and [`Xrcd`]. Handles own what they were made from, so they can be
//! dropped in any order and nothing is given back too early. Queues have a single owner; a queue
//! pair's two [halves](Qp::split) can be used by two threads at once.
//!
//! Types carry the provider as a parameter whose default, [`AnyProvider`], picks the one that
//! drives the device.
//!
//! # Waiting
//!
//! [`CompChannel`], [`AsyncEvents`] and [`owned::Endpoint`] wait by blocking, or not at all, or
//! lend a descriptor to `poll` and the like. The features `tokio` and `async-io` (off by default)
//! add modules of the same names, in which tasks wait.
//!
//! # Forks
//!
//! A child that a program forks leaves its parent's queues, objects and registered memory alone,
//! whatever it does:
//!
//! - Handles that it inherited are no use to it. Every verb on them fails with `ESTALE`, events are
//!   not taken, and dropping them gives nothing back; what the parent made stays the parent's.
//! - It does not inherit the memory of queues. Where it polls or posts all the same, it is ended by
//!   `SIGSEGV`.
//! - Registered memory is copied for it when it is forked, as all private memory is, pages that are
//!   pinned at once (since Linux 5.12;
//!   [`SystemInfo::copy_on_fork`](netlink::SystemInfo::copy_on_fork) tells). So parent and device
//!   go on sharing their pages, and the child can read what was there, and write it, without either
//!   noticing.
//! - It may open the device anew and use what it makes then, `exec`, or exit. Where the device can
//!   do it, it may also take over its parent's context by a descriptor that the parent has sent:
//!   [`Context::import`].
//!
//! A program that goes into the background by forking should open the device afterwards.
//!
//! # Errors
//!
//! An [`Error`] says what was asked, what refused it and what to do. Posting follows the `bad_wr`
//! rule: a [`PostError`] tells how many requests were accepted, and those are carried out.

/// The README, whose example is compiled with the others.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;

mod ah;
#[cfg(feature = "async-io")]
pub mod async_io;
mod attributes;
mod channel;
mod context;
mod cq;
mod device;
mod dm;
mod dmabuf;
mod error;
mod ethernet;
mod event_fd;
mod events;
mod gid;
mod import;
mod memory;
mod mr;
mod mr_hints;
mod mw;
pub mod netlink;
pub mod owned;
#[cfg(feature = "test-utils")]
pub mod parsers;
mod pd;
mod pkey;
mod provider;
mod qp;
mod rss;
#[cfg(any(feature = "async-io", feature = "tokio"))]
mod runtime;
mod srq;
#[cfg(test)]
mod testing;
#[cfg(feature = "tokio")]
pub mod tokio;
mod values;
mod wq;
mod wr_id;
mod xrc;

pub use ah::{Ah, Grh};
pub use attributes::{DeviceAttr, PortAttr};
pub use bareverbs_provider::Errno;
pub use bareverbs_provider::contract::{
    Completion, CreateError, DoorbellChoice, DoorbellError, Ece, Provider, QueueMemory,
};
pub use bareverbs_provider::device::IoctlError;
pub use bareverbs_provider::rss::{HashFields, HashFunctions, TOEPLITZ_KEY};
pub use bareverbs_provider::work::{
    Frame, MwBind, Operation, Payload, PushError, RecvRequest, Remote, SendFlags, SendRequest, Sge, WcFlags,
    WorkCompletion, XrcOperation,
};
pub use bareverbs_uapi::nldev::NodeType;
pub use bareverbs_uapi::uverbs::ObjectClass;
pub use bareverbs_uapi::uverbs::types::{
    AccessFlags as Access, AdviseMrAdvice as Advice, DriverId, GidType, PortCapFlags, PortFlags, WqFlags,
};
pub use bareverbs_uapi::verbs_values::{
    AtomicCap, EventType, LinkLayer, MwType, PortPhysState, PortSpeed, PortState, PortWidth, QpAttrMask,
    QpState, TmCapFlags, WcStatus, WqState,
};
pub use bareverbs_uapi::write::types::{
    DeviceCapFlags, OdpGeneralCaps, OdpTransportCaps, PlacementType, RawPacketCaps, SelectivityLevel,
    WcOpcode,
};
pub use channel::{CompChannel, CompEvent};
pub use context::{Capabilities, Context};
pub use cq::{Arm, Completions, Cq, CqEventCounts, CqInit};
pub use device::{Device, FoundBy, devices};
pub use dm::{Dm, DmInit, DmMr};
pub use dmabuf::{DmabufMr, NullMr};
pub use error::{Error, KernelError, Result, wc_status_str};
pub use ethernet::{EthernetAddress, MacAddress};
pub use events::{AsyncEvent, AsyncEvents};
pub use gid::{Gid, GidEntry};
pub use import::ImportedMr;
pub use memory::{Borrowed, Buffer, MemoryOwner, RawMemory};
pub use mr::{ImplicitMr, LocalAccess, Mr, MrInfo, MrKeys, RegisterError};
pub use mw::{Mw, inc_rkey};
pub use pd::Pd;
pub use provider::AnyProvider;
#[cfg(feature = "test-utils")]
pub use provider::{AnyCq, AnyRq, AnySq};
pub use qp::{
    AhAttr, Batch, Connected, Datagram, EthernetMatch, FlowId, FlowRule, GRH_BYTES, GlobalRoute, InitAttr,
    Ipv4Match, MULTICAST_QP, PortMatch, PostError, PostReason, Qp, QpAttr, QpCap, QpInit, QpInitAttr,
    RawPacket, Rc, RecvHalf, RtrAttr, RtsAttr, SendFailure, SendHalf, Transport, Uc, UcOperation, UcRtrAttr,
    Ud, UdInitAttr, UpperMatch, XrcSend, XrcTarget, XrcTargetRtsAttr,
};
pub use rss::{IndirectionTable, RssHash, RssInit, RssQp};
pub use srq::{Srq, SrqAttr, SrqInit};
pub use values::{Guid, Mtu};
pub use wq::{Wq, WqInit};
pub use wr_id::WrId;
pub use xrc::{XrcSrq, XrcSrqInit, Xrcd, XrcdShare};

/// The examples of the README compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct ReadmeExamples;
