//! Guest memory: reachable only through mappings that are checked on every access.

mod copy;
mod map;
mod own;

pub(crate) use map::MAX_REGIONS;
pub use map::{DmaFault, DmaMap, MapError};
pub(crate) use own::OwnMemory;
