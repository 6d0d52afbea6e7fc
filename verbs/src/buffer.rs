//! Buffers of the safe layer: registered bytes that operations own.
//!
//! ```text
//!                  owns its bytes, and a device may write them
//! Pool::take ───────────► PoolBuffer      returns to its pool on drop; the default of all types
//! Pd::register ─────────► Mr              one region, one operation at a time
//! RegionMut::register ──► RegionMut ◄──── split_at, chunks, try_join: many operations on one region
//!                            │  │
//!              freeze ───────┘  └─────── expose(rights)
//!                 ▼                          ▼
//!              Region                   RemoteRegion      peers read and write it by its `Remote`
//!              Clone; sends and             │ source ────► RemoteRegionSource   sends from it
//!              writes from it               │ revoke
//!                                           ▼
//!                                       RegionMut
//! AnyBuffer: any of these, for connections that post several kinds
//! Endpoint::scope: borrows of any of these, and of memory that the program borrows ([`Lend`])
//! ```
//!
//! | type | registration | device writes it | the program's view | to many operations at once |
//! |---|---|---|---|---|
//! | [`PoolBuffer`](crate::PoolBuffer) | one per pool | yes | `&[u8]`, `&mut [u8]` | one buffer each |
//! | [`Mr`](crate::Mr) | its own | yes | `&[u8]`, or copies if peers have rights | no |
//! | [`RegionMut`](crate::RegionMut) | shared by its ranges | yes | `&[u8]`, `&mut [u8]` | one range each |
//! | [`Region`](crate::Region) | that of its `RegionMut` | no | `&[u8]` | clones of the same bytes |
//! | [`RemoteRegion`](crate::RemoteRegion) | its own, with remote rights | peers do | copies and atomic words | [`RemoteRegionSource`]s |
//!
//! A posted buffer moves into the connection and comes back with its completion. `mem::forget` of a
//! connection or of a result leaks the buffer, which then stays registered and valid.
//!
//! [`Source`] is what a device may read, [`Target`] what it may also write. Both are sealed.

pub use crate::owned::{
    Chunks, Lend, LendRange, LocalAtomics, PendingPoolBuffer, RemoteRegionSource, Source, Target, Word,
};
