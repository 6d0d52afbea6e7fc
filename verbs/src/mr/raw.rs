//! Memory regions that raw calls registered.

use crate::Access;

/// A memory region that a raw call registered, for [`Mr::from_handle`](crate::Mr::from_handle).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawMr {
    /// Its handle.
    pub handle: u32,
    /// L_Key.
    pub lkey: u32,
    /// R_Key.
    pub rkey: u32,
    /// The address of its first byte in operations (IOVA).
    pub iova: u64,
    /// Its access rights.
    pub access: Access,
}
