//! The PCI function around the card, served over vfio-user.

pub(crate) mod bar;
mod interrupts;
pub(crate) mod pci;
mod protocol;
mod server;

pub use server::Server;
