//! A ConnectX in software.
//!
//! Three parts, each of which stands alone: [`engine`] moves messages between queue pairs over any memory; `firmware` is the command interface
//! through which a driver makes the engine's objects; `shell` is the PCI function around both, served to a virtual machine over vfio-user.
//! [`Fabric`] joins devices. [`PlainCard`] is the engine alone, and [`CommandCard`] the firmware on top of it, over
//! memory of this process.
#![recursion_limit = "256"]

mod commands;
mod control;
mod device;
pub mod engine;
mod fabric;
mod firmware;
pub mod memory;
mod plain;
mod shell;
#[cfg(feature = "test-utils")]
pub mod testing;

pub use commands::CommandCard;
pub use control::{Change, Control};
pub use device::Setup;
pub use engine::Link;
pub use fabric::{Fabric, Faults};
pub use plain::{Memory, PlainCard};
pub use shell::Server;
