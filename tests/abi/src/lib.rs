//! Checks that the kernel ABI declared in `bareverbs-uapi` equals the real headers of each series
//! in `KERNELS`.
//!
//! The machine's C compiler preprocesses the headers and compiles one program per kernel, which
//! prints all sizes, offsets and values ([`compiler`]). The output is compared with the registry
//! ([`compare`]). Items of the headers must be declared in Rust too ([`complete`]). [`exempt`]
//! lists the exceptions with their reasons.

pub mod compare;
pub mod compiler;
pub mod complete;
pub mod declared;
pub mod exempt;
#[cfg(test)]
mod fixture;
pub mod header;
pub mod methods;

use std::collections::BTreeSet;
use std::sync::LazyLock;

use self::declared::Declared;

/// The headers whose items must all be declared in Rust: those of the RDMA subsystem for programs that
/// a declaration names, and that of the ioctl numbers, which are macros with parameters.
pub static COVERED_HEADERS: LazyLock<BTreeSet<&str>> = LazyLock::new(|| {
    let mut headers = Declared::from_registry().headers();
    headers.retain(|header| header.starts_with("rdma/"));
    headers.insert("rdma/rdma_user_ioctl.h");
    headers
});

/// Whether all items of a header must be declared.
pub fn covered(file: &str) -> bool {
    COVERED_HEADERS.contains(file)
}
