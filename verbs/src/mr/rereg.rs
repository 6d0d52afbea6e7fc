//! Re-registration (REREG_MR) and queries (QUERY_MR) of regions.

use std::sync::Arc;

use bareverbs_provider::command::{self, MrInfo, MrRequest, ReregMr, Translation};
use bareverbs_provider::device::IoctlError;
use bareverbs_provider::traits::Provider;
use rustix::io::Errno;

use super::{Mr, Object, REMOTE_ACCESSIBLE, Registration, check_page_offset, check_raw_range, span};
use crate::error::Feature;
use crate::pd::shared::PdShared;
use crate::{Access, Error, MemoryOwner, Pd, RawMemory, Result, locked_memory, mr_hints};

const VERB: &str = "rereg_mr";

/// Whether a REREG_MR that failed with `errno` has left the region as it was. docs/soundness.md lists
/// the errnos of each driver and where they come from.
pub(super) fn changed_nothing(domain: &PdShared, errno: Errno) -> bool {
    // `ESTALE`: a forked child issues no command. No driver changes a region before it checks for
    // support and for the rights of the memory.
    let checked_first = matches!(errno, Errno::STALE | Errno::OPNOTSUPP | Errno::ACCESS);
    checked_first || domain.context.mr_quirks.rereg_is_atomic && errno != Errno::FAULT
}

impl Registration {
    /// # Safety
    ///
    /// As for [`command::rereg_mr`].
    unsafe fn change(
        &mut self,
        translation: Option<Translation>,
        domain: Option<&Arc<PdShared>>,
        access: Option<Access>,
    ) -> Result<()> {
        if domain.is_some_and(|domain| !Arc::ptr_eq(&domain.context, &self.domain.context)) {
            let reason = "the PD and the MR belong to different contexts";
            return Err(Error::foreign(VERB, reason));
        }
        let Object::Own(handle) = self.object else {
            let reason = "a child of an implicit ODP MR has the access and the PD of its parent";
            return Err(Error::invalid(VERB, reason));
        };
        if let Some(access) = access
            && (access ^ self.access).contains(Access::ON_DEMAND)
            && self.domain.context.mr_quirks.odp_is_fixed
        {
            let reason =
                "the driver cannot change ON_DEMAND of an MR: keep it unchanged, or register a new MR";
            return Err(Error::invalid(VERB, reason));
        }
        // Of several changes, a driver may have made one when it fails. A driver that takes new memory
        // registers it with all new attributes.
        debug_assert!(translation.is_some() || domain.is_none() || access.is_none(), "one change a command");
        let change = ReregMr { translation, pd: domain.map(|domain| domain.handle), access };
        let file = Arc::clone(&self.domain.context.file);
        // SAFETY: the caller of `change` upholds the contract for the range with the new rights.
        let answer = unsafe { command::rereg_mr(&file, handle, &change) };
        if let Some(access) = access
            && !answer.is_err_and(|refused| refused.errno == Errno::STALE)
        {
            // Rights count as granted even if the command fails, with any errno: a driver may fail
            // after the device has changed the region. `ESTALE` alone means that no command was
            // issued.
            self.ever_granted |= access;
        }
        self.half_changed |= answer.is_err_and(|refused| !changed_nothing(&self.domain, refused.errno));
        let (mut lkey, mut rkey) = answer.map_err(|refused| self.explain(&change, refused))?;
        if let Some(Translation { iova, .. }) = translation {
            // Kernels before 7.2 return the keys of the MR that was replaced (`ib_uverbs_rereg_mr` of
            // `uverbs_cmd.c`).
            let info = command::query_mr(&file, handle).map_err(|refused| {
                self.half_changed = true;
                Error::kernel("query_mr", format!("lkey {:#x}", self.lkey), refused)
            })?;
            (lkey, rkey, self.iova) = (info.lkey, info.rkey, iova);
        }
        self.lkey = lkey;
        self.rkey = rkey;
        if let Some(domain) = domain {
            self.domain = Arc::clone(domain);
        }
        if let Some(access) = access {
            self.access = access;
        }
        Ok(())
    }

    /// The error of a change that the kernel refused.
    fn explain(&self, change: &ReregMr, refused: IoctlError) -> Error {
        let ReregMr { translation, access, .. } = *change;
        if refused.errno == Errno::OPNOTSUPP {
            let feature = if translation.is_some() { Feature::MrReplacement } else { Feature::MrRereg };
            return Error::unsupported(VERB, feature);
        }
        let capabilities = &self.domain.context.capabilities;
        let error = Error::kernel(VERB, format!("lkey {:#x}, {change:?}", self.lkey), refused);
        if let Some(Translation { addr, length, iova }) = translation {
            let access = access.unwrap_or(self.access);
            let request = MrRequest { pd: self.domain.handle, addr, length, iova, access, dmah: None };
            return error.or_hint(|errno| mr_hints::hint(errno, &request, capabilities));
        }
        error.or_hint(|errno| match errno {
            Errno::ACCESS => {
                Some("an MR registered without LOCAL_WRITE cannot be made writable: register a new MR".into())
            }
            Errno::INVAL => access.and_then(|access| mr_hints::access_hint(access, capabilities)),
            _ => None,
        })
    }
}

impl<M> Mr<M> {
    /// The kernel's information about it.
    ///
    /// # Errors
    /// [`Error::Kernel`].
    pub fn query(&self) -> Result<MrInfo> {
        let registration = &self.inner.registration;
        command::query_mr(&registration.domain.context.file, registration.handle())
            .map_err(|refused| Error::kernel("query_mr", format!("lkey {:#x}", registration.lkey), refused))
    }

    /// # Safety
    ///
    /// As for [`command::rereg_mr`].
    unsafe fn rereg(&mut self, domain: Option<&Arc<PdShared>>, access: Option<Access>) -> Result<()> {
        // SAFETY: the caller's contract is the same.
        let changed = unsafe { self.inner.registration.change(None, domain, access) };
        self.inner.verify();
        // The driver may pin the memory again, for other rights.
        changed
            .map_err(|error| error.or_hint(|errno| locked_memory::hint(errno, Some(self.inner.len as u64))))
    }

    /// Moves it to another protection domain of the same context. Its keys may change.
    ///
    /// ```
    /// # let pd = bareverbs_test_support::example::pd()?;
    /// # let mut mr = pd.register(bareverbs::Buffer::zeroed(4096)?, bareverbs::Access::LOCAL_WRITE)?;
    /// # let pd = &pd.context().alloc_pd()?;
    /// mr.move_to(pd)?;
    /// println!("peers now name it by {:#x}", mr.rkey());
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the kernel or the device does not support it; [`Error::Invalid`]
    /// for a domain of another context; [`Error::Kernel`], after which the region may not be
    /// postable, as for [`Mr::set_access`].
    #[doc(alias = "ibv_rereg_mr")]
    #[doc(alias = "IBV_REREG_MR_CHANGE_PD")]
    pub fn move_to<P: Provider>(&mut self, pd: &Pd<P>) -> Result<()> {
        // SAFETY: the rights do not change. `MemoryOwner`, the borrow or the caller of
        // `register_raw` upheld the contract for them at registration.
        unsafe { self.rereg(Some(pd.domain()), None) }
    }
}

impl<M: MemoryOwner> Mr<M> {
    /// Changes its access rights. Its keys may change.
    ///
    /// After the first request for a right by which peers can write, [`Mr::bytes`] is `None` until
    /// the region is deregistered. Later changes of the rights, or a failure of this one, do not
    /// matter: a driver may fail after the device has changed the region.
    ///
    /// ```
    /// # let pd = bareverbs_test_support::example::pd()?;
    /// # let mut mr = pd.register(bareverbs::Buffer::zeroed(4096)?, bareverbs::Access::LOCAL_WRITE)?;
    /// use bareverbs::{Access, Error};
    ///
    /// match mr.set_access(Access::LOCAL_WRITE | Access::REMOTE_READ) {
    ///     Err(Error::Unsupported { .. }) => println!("register a new MR"),
    ///     other => other?,
    /// }
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    ///
    /// The rights of a borrowed region are local and can't change: a peer could access a forgotten
    /// region after the borrow has ended.
    ///
    /// ```compile_fail,E0599
    /// # use bareverbs::{Access, Borrowed, Mr};
    /// # fn open_to_peers(mut borrowed: Mr<Borrowed<'_>>) {
    /// borrowed.set_access(Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
    /// # }
    /// ```
    ///
    /// # Errors
    /// - [`Error::Unsupported`] if the kernel or the device does not support it.
    /// - [`Error::Invalid`] as for [`Pd::register`], and on rxe if [`Access::ON_DEMAND`] would
    ///   change.
    /// - [`Error::Kernel`] with `EACCES` for write access to memory that was registered for
    ///   reading.
    /// - [`Error::Kernel`] with another errno. The driver may have changed the region in part, and
    ///   revoked its keys. No operation can be posted on it then: deregister it, and register the
    ///   memory again. rxe changes nothing if it fails with an errno other than `EFAULT`.
    #[doc(alias = "ibv_rereg_mr")]
    #[doc(alias = "IBV_REREG_MR_CHANGE_ACCESS")]
    pub fn set_access(&mut self, access: Access) -> Result<()> {
        if access.intersects(REMOTE_ACCESSIBLE) {
            let addr = self.inner.start.addr().get();
            check_page_offset(VERB, self.domain(), access | self.access(), addr)?;
        }
        // SAFETY: `MemoryOwner` guarantees that the bytes stay valid and that only the region
        // accesses them, so any right may be granted. The exclusive borrow ends all slices that
        // `bytes` returned, and `rereg` records the rights in `ever_granted` before `bytes` can be
        // called again.
        unsafe { self.rereg(None, Some(access)) }
    }
}

impl Mr<RawMemory> {
    /// Changes its access rights. Its keys may change.
    ///
    /// # Errors
    /// As for [`Mr::set_access`].
    ///
    /// # Safety
    ///
    /// As for [`Pd::register_raw`], with the new rights.
    #[doc(alias = "ibv_rereg_mr")]
    pub unsafe fn set_raw_access(&mut self, access: Access) -> Result<()> {
        // SAFETY: the caller upholds the same contract.
        unsafe { self.rereg(None, Some(access)) }
    }

    /// Registers the address range of `len` bytes from `addr` in place of the region's range, and
    /// changes its protection domain and its access rights if they are `Some`: one command makes all
    /// changes. `iova` is as for [`Pd::register_raw`]. The keys may change.
    ///
    /// ```
    /// # use bareverbs::{Access, Buffer, Mr, RawMemory, Result};
    /// fn grow(region: &mut Mr<RawMemory>, larger: &Buffer) -> Result<()> {
    ///     let addr = larger.as_ptr().cast_mut();
    ///     // SAFETY: the caller keeps both buffers, and reads neither while an operation is in progress.
    ///     unsafe { region.replace_raw::<bareverbs::AnyProvider>(addr, larger.len(), None, None, None) }
    /// }
    /// # use bareverbs_test_support::example;
    /// # let pd = example::pd()?;
    /// # let (small, large) = (Buffer::zeroed(4096)?, Buffer::zeroed(8192)?);
    /// # // SAFETY: the buffers outlive the region.
    /// # let mut region =
    /// #     unsafe { pd.register_raw(small.as_ptr().cast_mut(), 4096, None, Access::LOCAL_WRITE) }?;
    /// # example::unsupported(grow(&mut region, &large));
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    ///
    /// # Errors
    /// - [`Error::Unsupported`] if the kernel or the driver does not support it, such as rxe.
    /// - [`Error::Invalid`] as for [`Pd::register_raw`], for a part of an implicit region, and for a
    ///   domain of another context.
    /// - [`Error::Kernel`], after which the region may not be postable, as for [`Mr::set_access`].
    ///
    /// # Safety
    ///
    /// As for [`Pd::register_raw`] with the new range and the new rights. If the call fails with
    /// [`Error::Kernel`], that contract holds for both ranges until the region is deregistered. The
    /// device accesses the old range by windows that are bound to the region until they are
    /// invalidated.
    #[doc(alias = "ibv_rereg_mr")]
    #[doc(alias = "IBV_REREG_MR_CHANGE_TRANSLATION")]
    pub unsafe fn replace_raw<P: Provider>(
        &mut self,
        addr: *mut u8,
        len: usize,
        iova: Option<u64>,
        pd: Option<&Pd<P>>,
        access: Option<Access>,
    ) -> Result<()> {
        let rights = access.unwrap_or(self.access());
        let (start, iova) = check_raw_range(VERB, addr, len, iova, rights)?;
        let translation = Translation { addr: start, length: len as u64, iova };
        let domain = pd.map(Pd::domain);
        // SAFETY: the caller upholds the contract for both ranges.
        let changed = unsafe { self.inner.registration.change(Some(translation), domain, access) };
        if changed.is_ok() {
            (self.inner.start, self.inner.len) = span(addr, len);
        }
        self.inner.verify();
        changed
    }
}

#[cfg(test)]
mod tests {
    use bareverbs_provider::caps::MrQuirks;

    use super::*;
    use crate::testing::Plain;

    #[test]
    fn errno_and_driver_say_whether_a_refused_rereg_mr_changed_the_region() {
        for (errno, atomic_driver, other_driver) in [
            (Errno::STALE, true, true),
            (Errno::OPNOTSUPP, true, true),
            (Errno::ACCESS, true, true),
            (Errno::INVAL, true, false),
            (Errno::NOMEM, true, false),
            (Errno::FAULT, false, false),
        ] {
            for (rereg_is_atomic, unchanged) in [(true, atomic_driver), (false, other_driver)] {
                let plain = Plain::with(MrQuirks { rereg_is_atomic, ..MrQuirks::default() });
                assert_eq!(changed_nothing(plain.domain().domain(), errno), unchanged, "{errno:?}");
            }
        }
    }
}
