//! The calls that programs make to the Linux kernel's RDMA interfaces.
//!
//! [`decode`](mod@decode) prints messages as text and JSON. [`trace`](mod@trace) follows the calls of a
//! program. [`replay`](mod@replay) makes recorded calls again and compares the answers.
#![deny(missing_debug_implementations)]

pub mod decode;
mod overread;
pub mod replay;
mod resources;
pub mod trace;

pub use overread::{OVERREAD, overread_len};
pub use resources::ResourceChange;
