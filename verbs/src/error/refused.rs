//! A failed call that returns its object.

use std::fmt;

use super::Error;

/// A call that failed, and the object that it consumed. The object is unchanged and can be used
/// further, unless the call says otherwise.
///
/// | call | object |
/// |---|---|
/// | `destroy`, `dealloc`, `dereg`, `free`, `close` of a handle | the handle; drop attempts the same again |
/// | [`Pd::register`](crate::Pd::register), [`ImplicitMr::part`](crate::mr::ImplicitMr::part) | the memory |
/// | [`Mr::replace`](crate::Mr::replace) | [`NotReplaced`](crate::mr::NotReplaced) |
/// | `post` of an [`Endpoint`](crate::owned::Endpoint::post), a [`Scope`](crate::owned::Scope::post) or [`Datagrams`](crate::owned::Datagrams::post) | the [`Op`](crate::owned::Op) |
/// | [`RegionMut::new`](crate::owned::RegionMut::new) | the MR |
/// | [`RegionMut::expose`](crate::owned::RegionMut::expose), [`RemoteRegion::revoke`](crate::owned::RemoteRegion::revoke) | the `RegionMut`, the `RemoteRegion` |
///
/// ```
/// # fn example(mr: bareverbs::Mr<Vec<u8>>, mw: bareverbs::mw::Mw) -> bareverbs::Result<Vec<u8>> {
/// // rxe refuses to deregister an MR while an MW is bound to it.
/// let mr = match mr.into_inner() {
///     Ok(memory) => return Ok(memory),
///     Err(refused) => refused.object,
/// };
/// mw.dealloc()?;
/// Ok(mr.into_inner()?)
/// # }
/// # let pd = bareverbs_test_support::example::pd()?;
/// # let mr = pd.register(vec![0; 4096], bareverbs::Access::LOCAL_WRITE)?;
/// # let mw = pd.alloc_mw(bareverbs::mw::MwType::TYPE_2)?;
/// # assert_eq!(example(mr, mw)?.len(), 4096);
/// # Ok::<(), bareverbs::Report>(())
/// ```
///
/// `?` converts it to its error and drops the object. `E` is the error of the crate that has the
/// call. Its text and its sources are those of the error.
#[doc(alias = "DestroyError")]
#[doc(alias = "NotPosted")]
#[doc(alias = "NotPostedParts")]
#[doc(alias = "RegisterError")]
#[doc(alias = "PartError")]
#[doc(alias = "ExposeError")]
#[doc(alias = "RevokeError")]
#[non_exhaustive]
#[must_use = "it holds the object of the call"]
pub struct Refused<T, E = Error> {
    /// The reason.
    pub error: E,
    /// The object.
    pub object: T,
}

impl<T, E> Refused<T, E> {
    /// An error with the object of its call, for crates whose calls return objects.
    pub fn new(error: E, object: T) -> Self {
        Self { error, object }
    }

    /// The same reason for the object that `wrap` makes of this one.
    ///
    /// ```
    /// use bareverbs::mr::DmabufMr;
    /// use bareverbs::{Mr, Refused};
    ///
    /// enum Region {
    ///     Memory(Mr<Vec<u8>>),
    ///     Dmabuf(DmabufMr),
    /// }
    ///
    /// fn dereg(region: Region) -> Result<(), Refused<Region>> {
    ///     match region {
    ///         Region::Memory(mr) => mr.dereg().map(drop).map_err(|refused| refused.map(Region::Memory)),
    ///         Region::Dmabuf(mr) => mr.dereg().map_err(|refused| refused.map(Region::Dmabuf)),
    ///     }
    /// }
    /// ```
    pub fn map<U>(self, wrap: impl FnOnce(T) -> U) -> Refused<U, E> {
        Refused { error: self.error, object: wrap(self.object) }
    }
}

impl<T> Refused<T> {
    /// Whether a queue was full, as [`Error::is_full`].
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.error.is_full()
    }
}

impl<T, E: fmt::Debug> fmt::Debug for Refused<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Refused").field("error", &self.error).finish_non_exhaustive()
    }
}

impl<T, E: fmt::Display> fmt::Display for Refused<T, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

// The text is that of the error, which is therefore not the source as well.
impl<T, E: std::error::Error> std::error::Error for Refused<T, E> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

impl<T> From<Refused<T>> for Error {
    /// The object is dropped.
    fn from(refused: Refused<T>) -> Self {
        refused.error
    }
}
