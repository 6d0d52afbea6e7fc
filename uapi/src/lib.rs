//! The Linux kernel's RDMA user ABI as Rust types.
//!
//! This crate has types, encoders and decoders only: no file descriptor, no system call, no policy.
//! Every struct, enumeration, flag set and constant is declared once, with its C name and the first
//! kernel series that has it. The declaration generates the Rust type, its printable names, and the
//! tables ([`registry`]) that the layout proof compares with the kernel headers.
//!
//! Every ioctl method is declared once too ([`method`]). The declaration generates the typed
//! encoder ([`method::Call`]), the decoder and the tables for the conformance tests.
#![no_std]
#![forbid(unsafe_code)]
#![deny(missing_debug_implementations)]

#[macro_use]
pub mod abi;
pub mod decode;
#[macro_use]
pub mod driver;
#[expect(missing_debug_implementations, reason = "zerocopy's derives generate types without it")]
pub mod ioctl;
pub mod kernels;
#[macro_use]
pub mod method;
#[expect(missing_debug_implementations, reason = "zerocopy's derives generate types without it")]
pub mod mlx5;
#[expect(missing_debug_implementations, reason = "zerocopy's derives generate types without it")]
pub mod netlink;
#[expect(missing_debug_implementations, reason = "zerocopy's derives generate types without it")]
pub mod nldev;
pub mod print;
#[expect(missing_debug_implementations, reason = "zerocopy's derives generate types without it")]
pub mod rdma_cm;
pub mod registry;
#[expect(missing_debug_implementations, reason = "zerocopy's derives generate types without it")]
pub mod rtnetlink;
pub mod rules;
#[expect(missing_debug_implementations, reason = "zerocopy's derives generate types without it")]
pub mod rxe;
#[expect(missing_debug_implementations, reason = "zerocopy's derives generate types without it")]
pub mod siw;
#[expect(missing_debug_implementations, reason = "zerocopy's derives generate types without it")]
mod user_verbs;
#[expect(missing_debug_implementations, reason = "zerocopy's derives generate types without it")]
pub mod uverbs;
#[expect(missing_debug_implementations, reason = "zerocopy's derives generate types without it")]
mod uverbs_values;
pub mod values;
#[expect(missing_debug_implementations, reason = "zerocopy's derives generate types without it")]
pub mod verbs_values;
#[macro_use]
pub mod write;

/// The examples of the README compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct ReadmeExamples;
