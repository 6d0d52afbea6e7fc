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

/// The headers whose items must all be declared in Rust.
pub const COVERED_HEADERS: &[&str] = &[
    "rdma/ib_user_ioctl_cmds.h",
    "rdma/ib_user_ioctl_verbs.h",
    "rdma/ib_user_sa.h",
    "rdma/ib_user_verbs.h",
    "rdma/mlx5-abi.h",
    "rdma/mlx5_user_ioctl_cmds.h",
    "rdma/mlx5_user_ioctl_verbs.h",
    "rdma/rdma_netlink.h",
    "rdma/rdma_user_cm.h",
    "rdma/rdma_user_ioctl.h",
    "rdma/rdma_user_ioctl_cmds.h",
    "rdma/rdma_user_rxe.h",
];

/// Whether all items of a header must be declared.
pub fn covered(file: &str) -> bool {
    COVERED_HEADERS.contains(&file)
}
