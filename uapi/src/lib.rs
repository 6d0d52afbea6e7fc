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

#[macro_use]
pub mod abi;
pub mod decode;
#[macro_use]
pub mod driver;
pub mod ioctl;
pub mod kernels;
#[macro_use]
pub mod method;
pub mod mlx5;
pub mod netlink;
pub mod nldev;
pub mod print;
pub mod rdma_cm;
pub mod registry;
pub mod rtnetlink;
pub mod rxe;
pub mod uverbs;
pub mod verbs_values;
#[macro_use]
pub mod write;

/// The examples of the README compile.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct ReadmeExamples;
