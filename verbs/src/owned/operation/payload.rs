//! The payloads of operations.

use std::fmt;

use bareverbs_provider::work::{Payload, Sge};

use super::super::Source;
use super::super::buffer::sealed::{Domain, PdId, Registered};
use super::super::buffer::{checked_sge, verified_sge};
use super::ByteRange;
use crate::Result;

/// Bytes that are copied when they are posted. They need not be registered.
#[doc(alias = "IBV_SEND_INLINE")]
#[derive(Clone, Copy)]
pub struct Inline<'a>(pub(in crate::owned) &'a [u8]);

/// Maximum of the buffers of an operation.
pub(in crate::owned) const MAX_PARTS: usize = 8;

/// Several buffers and their ranges.
pub struct Parts<B, R, const N: usize>(pub(in crate::owned) [(B, R); N]);

impl<B, R, const N: usize> Parts<B, R, N> {
    /// The buffers and their ranges as given.
    pub fn into_inner(self) -> [(B, R); N] {
        self.0
    }
}

impl<B, R, const N: usize> fmt::Debug for Parts<B, R, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parts").field("buffers", &N).finish_non_exhaustive()
    }
}

/// The payload of a receive that has no buffer, from [`Op::recv_empty`](super::Op::recv_empty).
#[derive(Debug)]
pub struct NoBuffer(pub(super) ());

impl fmt::Debug for Inline<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inline").field("len", &self.0.len()).finish()
    }
}

/// The payload of an operation for an endpoint or a connection with buffers of type `B`: such a buffer,
/// [`Inline`] bytes or [`NoBuffer`]. It is sealed.
///
/// # Safety
///
/// The bytes that the place names are those of the buffer of [`split`](Self::split), are only read while
/// the request is posted, or satisfy the contract of posting by another promise. A `place` that is not
/// `None` is the one of `checked`.
#[doc(alias = "Load")]
pub unsafe trait OpPayload<B>: Sized {
    #[doc(hidden)]
    type Place: Place;

    /// The payload without its buffer.
    #[doc(hidden)]
    type Kept;

    /// Its place, if it was verified before.
    #[doc(hidden)]
    fn place(&self, pd: PdId, range: ByteRange) -> Option<Self::Place>;

    /// Its place.
    #[doc(hidden)]
    fn checked(&self, verb: &'static str, domain: Domain<'_>, range: ByteRange) -> Result<Self::Place>;

    #[doc(hidden)]
    fn split(self) -> (Option<B>, Self::Kept);

    /// Undoes [`split`](Self::split).
    #[doc(hidden)]
    fn join(buffer: Option<B>, kept: Self::Kept) -> Self;
}

/// The place of a payload, as a request names it.
pub trait Place: Copy {
    /// Its length in bytes.
    fn len(&self) -> u32;

    /// The payload of a request.
    fn payload(&self) -> Payload<'_>;

    /// The elements of a receive.
    #[inline(always)]
    fn sges(&self) -> &[Sge] {
        match self.payload() {
            Payload::Sges(sges) => sges,
            Payload::Inline(_) => &[],
        }
    }
}

impl Place for Sge {
    #[inline(always)]
    fn len(&self) -> u32 {
        self.length
    }

    #[inline(always)]
    fn payload(&self) -> Payload<'_> {
        Payload::Sges(std::slice::from_ref(self))
    }
}

impl Place for Inline<'_> {
    #[inline(always)]
    fn len(&self) -> u32 {
        // The provider rejects bytes beyond its limit, which is far below 4 GiB.
        self.0.len() as u32
    }

    #[inline(always)]
    fn payload(&self) -> Payload<'_> {
        Payload::Inline(std::slice::from_ref(&self.0))
    }
}

impl Place for () {
    #[inline(always)]
    fn len(&self) -> u32 {
        0
    }

    #[inline(always)]
    fn payload(&self) -> Payload<'_> {
        Payload::Sges(&[])
    }
}

// SAFETY: the place is that of the buffer, which is the one of `split`.
unsafe impl<B: Source> OpPayload<B> for B {
    type Place = Sge;
    type Kept = ();

    #[inline(always)]
    fn place(&self, pd: PdId, range: ByteRange) -> Option<Sge> {
        verified_sge(self, pd, range)
    }

    fn checked(&self, verb: &'static str, domain: Domain<'_>, range: ByteRange) -> Result<Sge> {
        checked_sge(verb, self, domain.0, range)
    }

    #[inline(always)]
    fn split(self) -> (Option<B>, ()) {
        (Some(self), ())
    }

    fn join(buffer: Option<B>, (): ()) -> Self {
        buffer.expect("the operation was posted with a buffer")
    }
}

// SAFETY: inline bytes are copied while the request is posted.
unsafe impl<B> OpPayload<B> for Inline<'_> {
    type Place = Self;
    type Kept = Self;

    #[inline(always)]
    fn place(&self, _: PdId, _: ByteRange) -> Option<Self> {
        Some(*self)
    }

    fn checked(&self, _: &'static str, _: Domain<'_>, _: ByteRange) -> Result<Self> {
        Ok(*self)
    }

    #[inline(always)]
    fn split(self) -> (Option<B>, Self) {
        (None, self)
    }

    fn join(_: Option<B>, kept: Self) -> Self {
        kept
    }
}

// SAFETY: it names no bytes.
unsafe impl<B> OpPayload<B> for NoBuffer {
    type Place = ();
    type Kept = Self;

    #[inline(always)]
    fn place(&self, _: PdId, _: ByteRange) -> Option<()> {
        Some(())
    }

    fn checked(&self, _: &'static str, _: Domain<'_>, _: ByteRange) -> Result<()> {
        Ok(())
    }

    #[inline(always)]
    fn split(self) -> (Option<B>, Self) {
        (None, self)
    }

    fn join(_: Option<B>, kept: Self) -> Self {
        kept
    }
}

/// A borrowed region.
pub(in crate::owned) struct Lent<'r, R>(&'r R);

impl<'r, R> Lent<'r, R> {
    /// # Safety
    ///
    /// The bytes of the region must satisfy the contract of
    /// [`Qp::post_send`](crate::qp::Qp::post_send) or [`Qp::post_recv`](crate::qp::Qp::post_recv)
    /// from a post of the value until the operation has ended, or the QP is destroyed.
    pub(in crate::owned) unsafe fn new(region: &'r R) -> Self {
        Self(region)
    }
}

// SAFETY: the caller of `new` has promised it.
unsafe impl<B, R: Registered> OpPayload<B> for Lent<'_, R> {
    type Place = Sge;
    type Kept = Self;

    #[inline(always)]
    fn place(&self, pd: PdId, range: ByteRange) -> Option<Sge> {
        verified_sge(self.0, pd, range)
    }

    fn checked(&self, verb: &'static str, domain: Domain<'_>, range: ByteRange) -> Result<Sge> {
        checked_sge(verb, self.0, domain.0, range)
    }

    #[inline(always)]
    fn split(self) -> (Option<B>, Self) {
        (None, self)
    }

    fn join(_: Option<B>, kept: Self) -> Self {
        kept
    }
}
