//! Proof that the kernel ABI declared in `bareverbs-uapi` is the one in the real headers of each
//! series in `KERNELS`.
//!
//! The machine's C compiler preprocesses the headers and compiles one program per kernel that
//! prints every size, offset and value ([`compiler`]); what it prints is compared with the registry
//! ([`compare`]), and what the headers declare must be declared in Rust too ([`complete`]). What is
//! left out stands in [`exempt`], with reasons.

pub mod compare;
pub mod compiler;
pub mod complete;
pub mod declared;
pub mod exempt;
#[cfg(test)]
mod fixture;
pub mod header;
pub mod methods;

/// The headers of which every item must be declared in Rust.
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

/// Whether every item of a header must be declared.
pub fn covered(file: &str) -> bool {
    COVERED_HEADERS.contains(&file)
}
