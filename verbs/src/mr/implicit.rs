//! Regions on demand over the whole address space.

use std::mem::{ManuallyDrop, MaybeUninit};
use std::ptr;
use std::sync::Arc;

use super::{LocalAccess, Mr, Object, RegisterError, Registration, VERB};
use crate::pd::PdShared;
use crate::{Access, Error, MemoryOwner, Remote, Result, Sge};

/// A region on demand over all of the process's memory, also what is mapped later: one pair of keys
/// for everything; see [`Pd::register_implicit`](crate::Pd::register_implicit). Nothing is pinned,
/// and pages are found when operations come to them.
///
/// ```no_run
/// use bareverbs::{Buffer, Device, LocalAccess};
///
/// let pd = Device::first()?.open()?.alloc_pd()?;
/// let everything = pd.register_implicit(LocalAccess::ReadWrite)?;
/// // As good as registered, without a system call for each.
/// let mut question = everything.part(Buffer::zeroed(4096)?)?;
/// let answer = everything.part(vec![0; 65536])?;
/// question.write(0, b"what is behind it?")?;
/// answer.prefetch(..)?;
/// let sges = [question.sge(..18)?];
/// # Ok::<(), bareverbs::Error>(())
/// ```
#[doc(alias = "ibv_mr")]
#[derive(Clone)]
pub struct ImplicitMr {
    implicit: Arc<ImplicitRegistration>,
}

/// The kernel's object, given back with the last who uses it.
pub(super) struct ImplicitRegistration(Registration);

impl ImplicitRegistration {
    pub(super) fn handle(&self) -> u32 {
        self.0.handle()
    }
}

impl Drop for ImplicitRegistration {
    fn drop(&mut self) {
        // Where the kernel does not let go, closing the file does it.
        // SAFETY: the region is being dropped, which is the only place that ends it.
        let _ = unsafe { self.0.dereg() };
    }
}

impl ImplicitMr {
    pub(crate) fn local(domain: &Arc<PdShared>, access: LocalAccess) -> Result<Self> {
        let access = match access {
            LocalAccess::Read => Access::empty(),
            LocalAccess::ReadWrite => Access::LOCAL_WRITE,
        };
        // SAFETY: the rights are local, so only operations of this process reach memory through it.
        // Posting one is `unsafe` and its caller answers for the memory, or it is over a part,
        // which owns its memory.
        unsafe { Self::register(domain, access) }
    }

    /// # Safety
    ///
    /// As for [`Pd::register_implicit_remote`](crate::Pd::register_implicit_remote).
    pub(crate) unsafe fn register(domain: &Arc<PdShared>, access: Access) -> Result<Self> {
        if !domain.context.capabilities.odp_implicit {
            return Err(Error::Unsupported { verb: VERB, what: "implicit ODP MRs are" });
        }
        // SAFETY: the caller answers for all of the process's memory, which the kernel knows by
        // these numbers.
        let registration = unsafe {
            Registration::new(domain, ptr::null_mut(), usize::MAX, None, access | Access::ON_DEMAND)
        }?;
        Ok(Self { implicit: Arc::new(ImplicitRegistration(registration)) })
    }

    /// A region of these rights that no device knows.
    #[cfg(test)]
    pub(crate) fn for_test(domain: &Arc<PdShared>, access: Access) -> Self {
        Self { implicit: Arc::new(ImplicitRegistration(Registration::for_test(domain, access))) }
    }

    /// The key by which this process's operations name it.
    #[must_use]
    pub fn lkey(&self) -> u32 {
        self.implicit.0.lkey
    }

    /// The key by which peers name it.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        self.implicit.0.rkey
    }

    /// What may be done with it.
    #[must_use]
    pub fn access(&self) -> Access {
        self.implicit.0.access
    }

    /// A scatter/gather element over `length` bytes from `addr` on.
    #[must_use]
    pub fn sge(&self, addr: *const u8, length: u32) -> Sge {
        Sge { addr: addr.expose_provenance() as u64, length, lkey: self.lkey() }
    }

    /// The byte at `addr`, as peers name it.
    #[must_use]
    pub fn remote(&self, addr: *const u8) -> Remote {
        Remote { addr: addr.expose_provenance() as u64, rkey: self.rkey() }
    }

    /// Owns memory from here on as a part of this region: it is used like a region of its own, with
    /// this one's keys and rights, and costs no system call. The region stays until the last of its
    /// parts is gone.
    ///
    /// The kernel knows nothing of parts, so dropping one always frees its memory: the promise of
    /// whoever posts an operation on it covers that
    /// ([`SendHalf::post_send`](crate::SendHalf::post_send)).
    ///
    /// # Errors
    /// [`Error::Invalid`] for no bytes. The error gives the memory back.
    pub fn part<M: MemoryOwner>(&self, memory: M) -> Result<Mr<M>, RegisterError<M>> {
        let mut memory = MaybeUninit::new(memory);
        // SAFETY: it was just filled.
        let (start, len) = unsafe { memory.assume_init_mut() }.region();
        if len == 0 {
            let error = Error::invalid(VERB, "a region must have at least 1 byte");
            // SAFETY: it was filled above and not moved out of.
            return Err(RegisterError { error, memory: unsafe { memory.assume_init() } });
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
        };
        Ok(Mr { registration: ManuallyDrop::new(registration), memory, start, len })
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
