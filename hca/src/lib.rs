//! A software ConnectX.
//!
//! The crate has three layers:
//!
//! - [`engine`]: the data path (QPs, CQs, EQs, memory keys) over any memory.
//! - `firmware`: the command interface, by which a driver creates the engine's objects.
//! - `vfio_user`: the PCI function around both, served to a virtual machine over vfio-user.
//!
//! [`Fabric`] connects devices. [`InProcessHca`] is the engine alone and [`FirmwareHarness`] the
//! firmware on top of it; both use memory of this process.
#![recursion_limit = "256"]
#![deny(missing_debug_implementations)]

mod control;
mod device;
pub mod engine;
mod fabric;
mod firmware;
mod firmware_harness;
mod in_process;
pub mod memory;
#[cfg(feature = "test-utils")]
pub mod testing;
mod vfio_user;

pub use bareverbs_transport::{Fault, FaultInjector};
pub use control::Control;
pub use device::{PortChange, Setup};
pub use engine::Link;
pub use fabric::Fabric;
pub use firmware_harness::FirmwareHarness;
pub use in_process::{InProcessHca, Memory};
pub use vfio_user::Server;
