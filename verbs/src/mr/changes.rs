//! What a region is told to become, and what the kernel knows of it.

use std::sync::Arc;

use bareverbs_provider::command::{self, MrInfo, ReregMr};
use bareverbs_provider::contract::Provider;
use rustix::io::Errno;

use super::{Mr, Object};
use crate::pd::Domain;
use crate::{Access, Error, MemoryOwner, Pd, RawMemory, Result, mr_hints};

const VERB: &str = "rereg_mr";

impl<M> Mr<M> {
    /// What the kernel knows of it.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn query(&self) -> Result<MrInfo> {
        let registration = &self.registration;
        command::query_mr(&registration.domain.session.file, registration.handle())
            .map_err(|refused| Error::refused("query_mr", format!("lkey {:#x}", registration.lkey), refused))
    }

    /// # Safety
    ///
    /// As for [`command::rereg_mr`].
    unsafe fn change(&mut self, domain: Option<&Arc<Domain>>, access: Option<Access>) -> Result<()> {
        let registration = &mut *self.registration;
        if domain.is_some_and(|domain| !Arc::ptr_eq(&domain.session, &registration.domain.session)) {
            let reason = "the protection domain belongs to another context than the region";
            return Err(Error::invalid(VERB, reason));
        }
        let Object::Own(handle) = registration.object else {
            let reason = "it is part of a region over all memory, and has that region's rights and domain";
            return Err(Error::invalid(VERB, reason));
        };
        let change = ReregMr { pd: domain.map(|domain| domain.handle), access };
        let file = Arc::clone(&registration.domain.session.file);
        // SAFETY: the caller answers for the range.
        let answer = unsafe { command::rereg_mr(&file, handle, &change) };
        let (lkey, rkey) = answer.map_err(|refused| match refused.errno {
            Errno::OPNOTSUPP => Error::Unsupported { verb: VERB, what: "such changes of memory regions are" },
            _ => Error::refused(VERB, format!("lkey {:#x}, {change:?}", registration.lkey), refused).or_hint(
                |errno| match errno {
                    Errno::ACCESS => Some(
                        "a region that was registered without LOCAL_WRITE cannot be made writable: register anew"
                            .into(),
                    ),
                    Errno::INVAL | Errno::OPNOTSUPP => {
                        access.and_then(|access| mr_hints::rights(access, &registration.domain.session.capabilities))
                    }
                    _ => None,
                },
            ),
        })?;
        registration.lkey = lkey;
        registration.rkey = rkey;
        if let Some(domain) = domain {
            registration.domain = Arc::clone(domain);
        }
        if let Some(access) = access {
            registration.access = access;
        }
        Ok(())
    }

    /// Moves it to another protection domain of the same context. Its keys may change.
    ///
    /// ```no_run
    /// # fn hand_over(mut mr: bareverbs::Mr<bareverbs::Buffer>, pd: &bareverbs::Pd) -> bareverbs::Result<()> {
    /// mr.move_to(pd)?;
    /// println!("peers now name it by {:#x}", mr.rkey());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the kernel or the device cannot do that; [`Error::Invalid`] for a domain of another
    /// context; the kernel refuses.
    #[doc(alias = "ibv_rereg_mr")]
    pub fn move_to<P: Provider>(&mut self, pd: &Pd<P>) -> Result<()> {
        // SAFETY: who may use the memory, and how, was promised at registration and stays the same.
        unsafe { self.change(Some(pd.domain()), None) }
    }
}

impl<M: MemoryOwner> Mr<M> {
    /// Changes what may be done with it. Its keys may change.
    ///
    /// ```no_run
    /// # fn open_to_peers(mut mr: bareverbs::Mr<bareverbs::Buffer>) -> bareverbs::Result<()> {
    /// use bareverbs::{Access, Error};
    ///
    /// match mr.set_access(Access::LOCAL_WRITE | Access::REMOTE_READ) {
    ///     Err(Error::Unsupported { .. }) => println!("to be registered anew: this kernel changes no rights"),
    ///     other => other?,
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Unsupported`] where the kernel or the device cannot do that; the kernel refuses, with `EACCES` for
    /// writing to memory that was registered for reading.
    #[doc(alias = "ibv_rereg_mr")]
    pub fn set_access(&mut self, access: Access) -> Result<()> {
        // SAFETY: the owner is the region's own, so any access is right; the exclusive borrow says that nobody looks at
        // the bytes in place.
        unsafe { self.change(None, Some(access)) }
    }
}

impl Mr<RawMemory> {
    /// Changes what may be done with it. Its keys may change.
    ///
    /// # Errors
    /// As for [`Mr::set_access`].
    ///
    /// # Safety
    ///
    /// As for [`Pd::register_raw`], with the new rights.
    #[doc(alias = "ibv_rereg_mr")]
    pub unsafe fn set_raw_access(&mut self, access: Access) -> Result<()> {
        // SAFETY: the caller answers for the range.
        unsafe { self.change(None, Some(access)) }
    }
}
