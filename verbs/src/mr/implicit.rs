//! Implicit ODP regions.

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::Arc;

use bareverbs_provider::traits::Provider;
use bareverbs_provider::work::Sge;

use super::{LocalAccess, Mr, Object, Registration, VERB};
use crate::error::Feature;
use crate::pd::Pd;
use crate::pd::shared::PdShared;
use crate::{Access, Error, MemoryOwner, Refused, Remote, Result};

/// An implicit ODP region. One pair of keys covers the whole address space of the process, also
/// memory that is mapped later. Nothing is pinned: pages are faulted in when operations access
/// them. [`Pd::register_implicit`](crate::Pd::register_implicit) creates it.
///
/// ```
/// # fn example(pd: &bareverbs::Pd) -> bareverbs::Result<()> {
/// use bareverbs::mr::LocalAccess;
/// use bareverbs::Buffer;
///
/// let everything = pd.register_implicit(LocalAccess::ReadWrite)?;
/// // As good as registered, without a system call for each.
/// let mut question = everything.part(Buffer::zeroed(4096)?)?;
/// let answer = everything.part(vec![0; 65536])?;
/// question.write(0, b"what is behind it?")?;
/// answer.prefetch(..)?;
/// let sges = [question.sge(..18)?];
/// # Ok(())
/// # }
/// # use bareverbs_test_support::example;
/// # let pd = example::pd()?;
/// # example::unsupported(example(&pd));
/// # Ok::<(), bareverbs::Report>(())
/// ```
#[doc(alias = "ibv_mr")]
#[derive(Clone)]
pub struct ImplicitMr {
    implicit: Arc<ImplicitRegistration>,
}

/// The kernel object. It is deregistered when the last user drops it.
pub(super) struct ImplicitRegistration(Registration);

impl<P: Provider> Pd<P> {
    /// Registers the whole address space of the process as an implicit ODP region with local
    /// rights.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device has no implicit ODP
    /// ([`Capabilities::odp_implicit`](crate::device::Capabilities::odp_implicit)); [`Error::Kernel`].
    #[doc(alias = "ibv_reg_mr")]
    pub fn register_implicit(&self, access: LocalAccess) -> Result<ImplicitMr> {
        ImplicitMr::local(self.domain(), access)
    }

    /// Registers the whole address space of the process as an implicit ODP region with any rights.
    ///
    /// # Errors
    /// As for [`Pd::register_implicit`].
    ///
    /// # Safety
    ///
    /// As far as `access` allows, a peer that knows the key can read and write all memory of the
    /// process at any time until the region and its parts are dropped. The caller is responsible
    /// for all accesses of the peers that get the key.
    #[doc(alias = "ibv_reg_mr")]
    pub unsafe fn register_implicit_remote(&self, access: Access) -> Result<ImplicitMr> {
        // SAFETY: the caller upholds the same contract.
        unsafe { ImplicitMr::register(self.domain(), access) }
    }
}

impl ImplicitRegistration {
    pub(super) fn handle(&self) -> u32 {
        self.0.handle()
    }
}

impl Drop for ImplicitRegistration {
    fn drop(&mut self) {
        // If the kernel refuses, closing the file frees the region.
        // SAFETY: the region is deregistered only here, when it is dropped.
        let _ = unsafe { self.0.dereg() };
    }
}

impl ImplicitMr {
    pub(crate) fn local(domain: &Arc<PdShared>, access: LocalAccess) -> Result<Self> {
        let access = match access {
            LocalAccess::Read => Access::empty(),
            LocalAccess::ReadWrite => Access::LOCAL_WRITE,
        };
        // SAFETY: the rights are local, so only operations of this process access memory through
        // it. Posting one is either `unsafe`, where the caller upholds the validity of the memory,
        // or uses a part, which owns its memory.
        unsafe { Self::register(domain, access) }
    }

    /// # Safety
    ///
    /// As for [`Pd::register_implicit_remote`](crate::Pd::register_implicit_remote).
    pub(crate) unsafe fn register(domain: &Arc<PdShared>, access: Access) -> Result<Self> {
        if !domain.context.capabilities.odp_implicit {
            return Err(Error::unsupported(VERB, Feature::ImplicitOdp));
        }
        // SAFETY: the caller upholds the contract for all of the process's memory. The kernel
        // recognises an implicit region by address 0 and this length.
        let registration = unsafe {
            Registration::new(domain, ptr::null_mut(), usize::MAX, None, access | Access::ON_DEMAND, None)
        }?;
        Ok(Self { implicit: Arc::new(ImplicitRegistration(registration)) })
    }

    /// A region with these rights that is not registered.
    #[cfg(test)]
    pub(crate) fn for_test(domain: &Arc<PdShared>, access: Access) -> Self {
        Self { implicit: Arc::new(ImplicitRegistration(Registration::for_test(domain, access))) }
    }

    /// Its kernel handle.
    #[must_use]
    pub fn handle(&self) -> u32 {
        self.implicit.handle()
    }

    /// The local key, for operations of this process.
    #[must_use]
    pub fn lkey(&self) -> u32 {
        self.implicit.0.lkey
    }

    /// The remote key, for operations of peers.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        self.implicit.0.rkey
    }

    /// Its access rights.
    #[must_use]
    pub fn access(&self) -> Access {
        self.implicit.0.access
    }

    /// A scatter/gather element for `length` bytes starting at `addr`.
    #[must_use]
    pub fn sge(&self, addr: *const u8, length: u32) -> Sge {
        Sge { addr: addr.expose_provenance() as u64, length, lkey: self.lkey() }
    }

    /// The remote address and key of the byte at `addr`.
    #[must_use]
    pub fn remote(&self, addr: *const u8) -> Remote {
        Remote { addr: addr.expose_provenance() as u64, rkey: self.rkey() }
    }

    /// Takes ownership of memory as a part of this region. The part is used like a region of its
    /// own, with the keys and rights of this region. This needs no system call. The region is
    /// deregistered when its last part is dropped.
    ///
    /// The kernel does not know parts, so dropping one always frees its memory. The caller of a
    /// post keeps the memory until the request is complete
    /// ([`SendHalf::post_send`](crate::qp::SendHalf::post_send)).
    ///
    /// # Errors
    /// [`Error::Invalid`] for memory of 0 bytes. The error returns the memory.
    pub fn part<M: MemoryOwner>(&self, memory: M) -> Result<Mr<M>, Refused<M>> {
        let mut memory = MaybeUninit::new(memory);
        // SAFETY: it was just initialised.
        let (start, len) = unsafe { memory.assume_init_mut() }.region();
        if len == 0 {
            let error = Error::empty(VERB, "the length of an MR must be at least 1 byte");
            // SAFETY: it was initialised above and not moved out of.
            return Err(Refused::new(error, unsafe { memory.assume_init() }));
        }
        let implicit = &self.implicit.0;
        let registration = Registration {
            domain: Arc::clone(&implicit.domain),
            object: Object::Implicit(Arc::clone(&self.implicit)),
            lkey: implicit.lkey,
            rkey: implicit.rkey,
            iova: start.as_ptr().expose_provenance() as u64,
            access: implicit.access,
            ever_granted: implicit.ever_granted,
            half_changed: false,
            _hints: None,
        };
        Ok(Mr::new(registration, memory, start, len))
    }
}

impl std::fmt::Debug for ImplicitMr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ImplicitMr")
            .field("lkey", &format_args!("{:#x}", self.lkey()))
            .field("rkey", &format_args!("{:#x}", self.rkey()))
            .field("access", &self.access())
            .finish_non_exhaustive()
    }
}
