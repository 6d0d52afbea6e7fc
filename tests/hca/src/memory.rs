//! Guest memory: reachable only through mappings that are checked on every access.

mod card;
mod copy;
mod map;
mod own;

pub(crate) use card::{CardMemory, NoMemory, SIZE as CARD_SIZE, START as CARD_START, UNIT};
pub(crate) use map::MAX_REGIONS;
pub use map::{DmaFault, DmaMap, MapError};
pub(crate) use own::OwnMemory;
