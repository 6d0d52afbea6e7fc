//! The PCI function around the device, served over vfio-user.

pub(crate) mod bar;
mod interrupts;
pub(crate) mod pci;
mod protocol;
mod server;
#[cfg(feature = "test-utils")]
pub(crate) mod testing;

pub use server::Server;
