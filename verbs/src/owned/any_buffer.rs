//! A buffer of any type, for connections that post several types.

use super::buffer::Source;
use super::buffer::sealed::{Domain, PdId, Registered};
use super::pool::PoolBuffer;
use super::region::{Region, RegionMut};
use super::remote_region::RemoteRegionSource;
use crate::error::Result;
use crate::memory::Buffer;

/// A [`RegionMut`], a [`Region`], a [`RemoteRegionSource`] or a [`PoolBuffer`], for connections that
/// post several of them.
///
/// It is a [`Source`] only: a device may not write all of them. Operations that write the buffer take
/// the [`RegionMut`] or the [`PoolBuffer`] itself, and [`Op::any`](super::Op::any) converts them:
///
/// ```
/// use bareverbs::{AnyBuffer, Endpoint, Op};
///
/// # use bareverbs_test_support::example;
/// # let pd = example::pd()?;
/// # let [mut endpoint, mut peer] = example::endpoints::<AnyBuffer>(&pd)?;
/// # let buffers = example::buffers(&pd)?;
/// # let memory = example::exposed(&pd, 64)?;
/// # let from = memory.remote(0)?;
/// let [message, value, old] = buffers;
/// endpoint.post(Op::recv(message).tag(1).any())?;
/// endpoint.post(Op::read(value, ..64, from).tag(2).any())?;
/// endpoint.post(Op::fetch_add(old, from, 1).tag(3).any())?;
/// # Ok::<(), bareverbs::Report>(())
/// ```
#[derive(Debug)]
#[non_exhaustive]
pub enum AnyBuffer<M = Buffer> {
    /// An exclusive range.
    RegionMut(RegionMut<M>),
    /// A read-only range.
    Region(Region<M>),
    /// A range that peers access.
    RemoteRegionSource(RemoteRegionSource<M>),
    /// A slot of a pool.
    PoolBuffer(PoolBuffer),
}

impl<M> From<RemoteRegionSource<M>> for AnyBuffer<M> {
    fn from(source: RemoteRegionSource<M>) -> Self {
        Self::RemoteRegionSource(source)
    }
}

impl<M> From<RegionMut<M>> for AnyBuffer<M> {
    fn from(part: RegionMut<M>) -> Self {
        Self::RegionMut(part)
    }
}

impl<M> From<Region<M>> for AnyBuffer<M> {
    fn from(shared: Region<M>) -> Self {
        Self::Region(shared)
    }
}

impl<M> From<PoolBuffer> for AnyBuffer<M> {
    fn from(buffer: PoolBuffer) -> Self {
        Self::PoolBuffer(buffer)
    }
}

impl<M> AnyBuffer<M> {
    /// Its bytes. `None` if peers access them.
    #[must_use]
    pub fn bytes(&self) -> Option<&[u8]> {
        match self {
            Self::RegionMut(part) => Some(part.bytes()),
            Self::Region(shared) => Some(shared.bytes()),
            Self::RemoteRegionSource(_) => None,
            Self::PoolBuffer(buffer) => Some(buffer.bytes()),
        }
    }
}

macro_rules! forward {
    ($($method:ident($($argument:ident: $of:ty),*) -> $result:ty;)*) => {
        impl<M> Registered for AnyBuffer<M> {
            $(#[inline]
            fn $method(&self $(, $argument: $of)*) -> $result {
                match self {
                    Self::RegionMut(part) => part.$method($($argument),*),
                    Self::Region(shared) => shared.$method($($argument),*),
                    Self::RemoteRegionSource(source) => source.$method($($argument),*),
                    Self::PoolBuffer(buffer) => buffer.$method($($argument),*),
                }
            })*
        }
    };
}

forward! {
    domain() -> Domain<'_>;
    iova() -> u64;
    lkey() -> u32;
    length() -> usize;
    check_bounds(verb: &'static str, start: usize) -> Result<()>;
    verified_pd() -> PdId;
    verified_len() -> u32;
}

// SAFETY: each of them is a `Source`.
unsafe impl<M: Send + Sync + 'static> Source for AnyBuffer<M> {
    fn try_bytes(&self) -> Option<&[u8]> {
        self.bytes()
    }
}
