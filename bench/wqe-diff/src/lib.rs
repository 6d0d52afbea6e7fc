//! The same requests, posted by our provider and by the C library's, as the device fetched them.
//!
//! [`generate`] makes requests from a seed and [`request`] writes them down; the program of this
//! crate and `c/wqe-diff.c` read them and post them; the device records what it fetches
//! ([`record`]), and [`compare`] sets the two side by side, field by field ([`fields`]).
//! `cargo xtask wqe-diff` does all that.

pub mod compare;
pub mod fields;
pub mod generate;
pub mod record;
pub mod request;
