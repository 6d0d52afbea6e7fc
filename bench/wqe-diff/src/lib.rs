//! Compares the WQEs of our provider and of rdma-core for the same requests, as fetched by the
//! device.
//!
//! [`generate`] generates requests from a seed, and [`request`] serializes them. The program of
//! this crate and `c/wqe-diff.c` parse and post them. The device records the fetched entries
//! ([`record`]), and [`compare`] compares the two recordings field by field ([`fields`]). `cargo
//! xtask wqe-diff` runs all of it.

pub mod compare;
pub mod fields;
pub mod generate;
pub mod record;
pub mod request;
