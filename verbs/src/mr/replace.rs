//! Replacement of a region's memory (REREG_MR with a new translation).

use std::mem::{ManuallyDrop, MaybeUninit};

use bareverbs_provider::command::{self, MrRequest, ReregMr, Translation};
use rustix::io::Errno;

use super::rereg::changed_nothing;
use super::{Mr, Object, check_page_offset};
use crate::error::Feature;
use crate::{Access, Error, MemoryOwner, Refused, Result, mr_hints};

const VERB: &str = "rereg_mr";

/// What a rejected [`Mr::replace`] leaves: the object of its [`Refused`].
#[derive(Debug)]
#[non_exhaustive]
pub enum NotReplaced<M, N> {
    /// The region is unchanged, and the new memory is not registered.
    Unchanged {
        /// The region.
        region: Mr<M>,
        /// The new memory.
        memory: N,
    },
    /// The kernel rejected the change, after which the region was deregistered: the kernel may have
    /// revoked its keys.
    Deregistered {
        /// The memory of the region.
        old: M,
        /// The new memory.
        memory: N,
    },
    /// The kernel rejected the change and the deregistration. The device may access either memory,
    /// so both are leaked.
    Leaked,
}

impl<M: MemoryOwner> Mr<M> {
    /// Registers other memory in place of the region's, with the same rights, and returns the old
    /// memory. Keys and address of the region may change. It costs less than a deregistration and a
    /// registration on devices that support it.
    ///
    /// ```
    /// # fn swap(region: bareverbs::Mr<Vec<u8>>) -> bareverbs::Result<()> {
    /// let (region, old) = region.replace(vec![0; 1 << 16])?;
    /// println!("{} bytes in place of {}", region.len(), old.len());
    /// # Ok(())
    /// # }
    /// # use bareverbs_test_support::example;
    /// # let pd = example::pd()?;
    /// # let mr = pd.register(vec![0; 4096], bareverbs::Access::LOCAL_WRITE)?;
    /// # example::unsupported(swap(mr));
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    ///
    /// # Errors
    /// - [`Error::Unsupported`] if the kernel or the driver does not support it, such as rxe.
    /// - [`Error::Invalid`] for memory of 0 bytes, a part of an implicit region, a region with the
    ///   right [`Access::MW_BIND`] (a bound window would keep the old memory in use), and for ODP
    ///   regions as for [`Pd::register`](crate::Pd::register).
    /// - [`Error::Kernel`].
    ///
    /// The errors return the region and the new memory, or both memories, unless they are leaked:
    /// [`NotReplaced`].
    #[doc(alias = "ibv_rereg_mr")]
    #[doc(alias = "IBV_REREG_MR_CHANGE_TRANSLATION")]
    #[expect(clippy::type_complexity, reason = "an alias would hide the two results")]
    pub fn replace<N: MemoryOwner>(self, memory: N) -> Result<(Mr<N>, M), Refused<NotReplaced<M, N>>> {
        let mut memory = MaybeUninit::new(memory);
        // SAFETY: it was just initialised.
        let (start, len) = unsafe { memory.assume_init_mut() }.region();
        let access = self.access();
        let handle = match self.check_replace(start, len) {
            Ok(handle) => handle,
            Err(error) => {
                // SAFETY: it was initialised above and not moved out of.
                let memory = unsafe { memory.assume_init() };
                return Err(Refused::new(error, NotReplaced::Unchanged { region: self, memory }));
            }
        };
        let addr = start.as_ptr().expose_provenance() as u64;
        let iova = if access.contains(Access::ZERO_BASED) { 0 } else { addr };
        let translation = Some(Translation { addr, length: len as u64, iova });
        let change = ReregMr { translation, ..ReregMr::default() };
        let file = &self.inner.registration.domain.context.file;
        // SAFETY: the region owns the kernel object. `MemoryOwner` guarantees that the new bytes
        // are valid while their owner exists, and that nothing else accesses them. Both owners are
        // kept until the kernel has replaced or deregistered the memory.
        let answer = unsafe { command::rereg_mr(file, handle, &change) };
        let refusal = |refused| {
            let domain = self.domain();
            let pd = domain.handle;
            let request = MrRequest { pd, addr, length: len as u64, iova, access, dmah: None };
            Error::kernel(VERB, format!("{len} bytes at {addr:#x}"), refused)
                .or_hint(|errno| mr_hints::hint(errno, &request, &domain.context.capabilities))
        };
        let refused = match answer {
            // Kernels before 7.2 return the keys of the MR that was replaced
            // (`ib_uverbs_rereg_mr` of `uverbs_cmd.c`).
            Ok(_) => match command::query_mr(file, handle) {
                Ok(info) => {
                    let parts = self.into_parts();
                    let mut registration = ManuallyDrop::into_inner(parts.registration);
                    (registration.lkey, registration.rkey, registration.iova) = (info.lkey, info.rkey, iova);
                    // SAFETY: the memory was initialised when the region was created. The kernel
                    // has replaced it, so the device does not access it any more.
                    let old = unsafe { parts.memory.assume_init() };
                    return Ok((Mr::new(registration, memory, start, len), old));
                }
                Err(refused) => refused,
            },
            Err(refused) if changed_nothing(self.domain(), refused.errno) => {
                let error = match refused.errno {
                    Errno::OPNOTSUPP => Error::unsupported(VERB, Feature::MrReplacement),
                    _ => refusal(refused),
                };
                // SAFETY: it was initialised above and not moved out of.
                let memory = unsafe { memory.assume_init() };
                return Err(Refused::new(error, NotReplaced::Unchanged { region: self, memory }));
            }
            Err(refused) => refused,
        };
        let error = refusal(refused);
        let left = match self.dereg() {
            // SAFETY: it was initialised above and not moved out of. The region is deregistered, so
            // the device does not access it.
            Ok(old) => NotReplaced::Deregistered { old, memory: unsafe { memory.assume_init() } },
            // The memory in `MaybeUninit` is leaked.
            Err(refused) => {
                refused.object.abandon();
                NotReplaced::Leaked
            }
        };
        Err(Refused::new(error, left))
    }

    /// The handle of the region, if its memory can be replaced by `len` bytes at `start`.
    fn check_replace(&self, start: std::ptr::NonNull<u8>, len: usize) -> Result<u32> {
        let invalid = |reason: &'static str| Err(Error::invalid(VERB, reason));
        let Object::Own(handle) = self.inner.registration.object else {
            return invalid("a child of an implicit ODP MR has no memory of its own in the kernel");
        };
        if len == 0 {
            return Err(Error::empty(VERB, "the length of an MR must be at least 1 byte"));
        }
        if self.inner.registration.ever_granted.contains(Access::MW_BIND) {
            return invalid("an MW may be bound to the MR: register a new MR");
        }
        check_page_offset(VERB, self.domain(), self.access(), start.addr().get())?;
        Ok(handle)
    }
}
