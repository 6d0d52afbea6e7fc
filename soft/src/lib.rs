//! A RoCE v2 device in user space.
//!
//! The device executes the uverbs ABI of the kernel's Soft-RoCE driver in this process, behind
//! [`DeviceFile`](bareverbs_provider::device::DeviceFile), so the provider of Soft-RoCE runs on it
//! unchanged.
//!
//! | module | content |
//! |---|---|
//! | `device`, `port` | [`SoftDevice`]; addresses and attributes of its port |
//! | `file` | a context: the ioctls, write commands and mappings of one open device |
//! | `call`, `user` | the ioctl parser; copies from and to addresses of the program |
//! | `objects` | handles, references between objects, destruction, `mmap` offsets of queues |
//! | `methods` | the handlers; one file per object, `command` and `write_command`, `state_table` (QP states), `path` |
//! | `channel` | completion channels and asynchronous events as descriptors |
//! | `cm` | the communication manager: connections by messages on QP 1 |
//! | `engine` | the data path: rings, memory keys, and the transport's [`Device`](bareverbs_transport::Device) |
//! | `fabric` | devices on one wire under one lock, time, and injected faults |
//! | `rdma_cm` | the connection manager for programs: [`CmFile`] |
//! | `wire` | packets of RoCE v2 over UDP sockets |
//! | `capture`, `event_log` | records of packets and of the actions of QPs |
//! | `call_faults` | calls that fail by fault injection |
//! | `address_error`, `mac`, `sys` | [`AddressError`]; MAC addresses; locks and errors of the C library |
#![deny(missing_debug_implementations)]

mod address_error;
mod call;
mod call_faults;
mod capture;
mod channel;
mod cm;
mod device;
mod engine;
mod event_log;
mod fabric;
mod file;
mod mac;
mod methods;
mod objects;
mod port;
mod rdma_cm;
mod sys;
#[cfg(feature = "test-utils")]
#[doc(hidden)]
pub mod testing;
mod user;
mod wire;

pub use address_error::AddressError;
pub use bareverbs_transport::packet::Operation as Opcode;
pub use bareverbs_transport::{Fault, InjectedFault};
pub use call_faults::{FaultError, Method};
pub use device::SoftDevice;
pub use event_log::{EventLog, LogEntry, PacketSummary, PrintOnPanic, QpAction};
pub use fabric::Fabric;
pub use objects::Resources;
pub use rdma_cm::CmFile;
pub use wire::DroppedPackets;
