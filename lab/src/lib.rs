//! The lab: boots real kernels with Soft-RoCE or Soft-iWARP in QEMU and runs commands and tests in them.
//!
//! Everything is fetched from Debian into a [`Cache`]: kernels ([`Kernel`]), QEMU ([`Tools`]), a
//! root with rdma-core ([`RdmaCore`]), headers ([`headers`]), [`Tshark`]. [`Guests::boot`] starts one
//! guest per host. `cargo xtask lab` is the command line.

#![deny(missing_debug_implementations)]

mod apt;
mod cache;
mod console;
mod cpio;
mod deb;
mod guest;
mod hca;
mod headers;
mod initramfs;
mod kernel;
mod kernel_source;
mod llvm;
mod modules;
mod old_glibc;
mod output;
pub mod pcap;
mod process;
mod qemu;
mod rdma_core;
mod series;
mod sources;
mod tools;
mod tshark;
mod verbs_programs;
mod wire;

pub use bareverbs_lab_init::frame::ToGuest;
pub use bareverbs_lab_init::{Exec, HcaPort, LinkType, TerminalSize};

pub use crate::cache::Cache;
pub use crate::guest::{Failure, Finished, Guests, Output, Report, Setup, Stream};
pub use crate::hca::Hca;
pub use crate::headers::{HeaderDirs, fetch_headers, headers};
pub use crate::initramfs::Programs;
pub use crate::kernel::Kernel;
pub use crate::kernel_source::NotFetched;
pub use crate::llvm::Llvm;
pub use crate::modules::Modules;
pub use crate::old_glibc::OldGlibc;
pub use crate::output::Prefixed;
pub use crate::qemu::Accelerator;
pub use crate::rdma_core::RdmaCore;
pub use crate::series::Series;
pub use crate::tools::Tools;
pub use crate::tshark::Tshark;
pub use crate::verbs_programs::VerbsPrograms;
pub use bareverbs_uapi::kernels::Since;
