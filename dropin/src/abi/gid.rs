//! GIDs.

use zerocopy::{Immutable, IntoBytes};

/// A GID in network byte order. C declares it as a union with two integers of 64 bits.
#[repr(C, align(8))]
#[derive(Clone, Copy, IntoBytes, Immutable)]
pub(crate) struct ibv_gid(pub(crate) [u8; 16]);
