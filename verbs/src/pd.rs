//! Protection domains.

pub(crate) mod shared;

use std::sync::Arc;

use bareverbs_provider::traits::Provider;
use rustix::io::Errno;

use self::shared::PdShared;
use crate::context::Context;
use crate::error::{Error, Refused, Result};
use crate::provider::AnyProvider;
use crate::released::Released;

/// A protection domain. A QP can access only memory regions of its own domain.
///
/// Cloning is cheap. The domain is deallocated when the last object that was created in it is
/// dropped, or by [`Pd::dealloc`].
#[doc(alias = "ibv_pd")]
pub struct Pd<P: Provider = AnyProvider> {
    context: Context<P>,
    domain: Arc<PdShared>,
}

impl<P: Provider> Context<P> {
    /// Creates a protection domain.
    ///
    /// # Errors
    /// [`Error::Kernel`], for example if the device has no protection domain left.
    #[doc(alias = "ibv_alloc_pd")]
    pub fn alloc_pd(&self) -> Result<Pd<P>> {
        Pd::alloc(self)
    }

    /// Imports a protection domain that another process created in this context. `handle` is
    /// [`Pd::handle`] of that process. The other process stays the owner: dropping the imported
    /// domain does not deallocate it.
    ///
    /// The other process can't deallocate the domain while this process has objects in it.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the driver does not support imports; [`Error::Kernel`] with
    /// `ENOENT` if the context has no such domain.
    #[doc(alias = "ibv_import_pd")]
    #[doc(alias = "ibv_unimport_pd")]
    pub fn import_pd(&self, handle: u32) -> Result<Pd<P>> {
        Pd::import(self, handle)
    }
}

impl<P: Provider> Clone for Pd<P> {
    fn clone(&self) -> Self {
        Self { context: self.context.clone(), domain: Arc::clone(&self.domain) }
    }
}

impl<P: Provider> Pd<P> {
    pub(crate) fn alloc(context: &Context<P>) -> Result<Self> {
        let handle = context
            .provider()
            .alloc_pd()
            .map_err(|refused| Error::kernel("alloc_pd", context.device().name(), refused))?;
        Ok(Self::new(context, handle))
    }

    pub(crate) fn import(context: &Context<P>, handle: u32) -> Result<Self> {
        context.provider().import_pd(handle).map_err(|reason| Error::import("import_pd", handle, reason))?;
        let pd = Self::new(context, handle);
        // The process that created it deallocates it.
        pd.domain.released.set();
        Ok(pd)
    }

    pub(crate) fn new(context: &Context<P>, handle: u32) -> Self {
        let domain = PdShared { context: Arc::clone(context.inner()), handle, released: Released::default() };
        Self { context: context.clone(), domain: Arc::new(domain) }
    }

    /// Deallocates it, unless it is [imported](Context::import_pd). Drop of the last object in it
    /// does the same, and ignores errors.
    ///
    /// ```
    /// # fn example(pd: bareverbs::Pd) -> bareverbs::Result<()> {
    /// let pd = match pd.dealloc() {
    ///     Ok(()) => return Ok(()),
    ///     // A raw call has created an object in it.
    ///     Err(refused) => refused.object,
    /// };
    /// # drop(pd);
    /// # Ok(())
    /// # }
    /// # example(bareverbs_test_support::example::pd()?)?;
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    ///
    /// # Errors
    /// The domain and the reason:
    ///
    /// - [`Error::Invalid`]: this process still has clones or objects of the domain.
    /// - [`Error::Kernel`]: the kernel rejects the command, with `EBUSY` while the domain has an
    ///   object that a raw call or another process has created.
    #[doc(alias = "ibv_dealloc_pd")]
    pub fn dealloc(mut self) -> Result<(), Refused<Self>> {
        const VERB: &str = "dealloc_pd";
        let Some(domain) = Arc::get_mut(&mut self.domain) else {
            let error = Error::in_use(VERB, "clones or objects of the PD are left: drop them first");
            return Err(Refused::new(error, self));
        };
        domain.dealloc().map_err(|refused| {
            let asked = format!("PD handle {}", self.handle());
            let error = Error::kernel(VERB, asked, refused).or_hint(|errno| {
                (errno == Errno::BUSY)
                    .then(|| "an object of a raw call or of another process is left in it".into())
            });
            Refused::new(error, self)
        })
    }

    /// Its kernel handle. Other processes [import](Context::import_pd) the domain by it.
    #[must_use]
    pub fn handle(&self) -> u32 {
        self.domain.handle
    }

    /// The context it belongs to.
    #[must_use]
    pub fn context(&self) -> &Context<P> {
        &self.context
    }

    pub(crate) fn domain(&self) -> &Arc<PdShared> {
        &self.domain
    }
}
