//! Advice for ODP regions (ADVISE_MR).

use std::fmt;
use std::ops::RangeBounds;
use std::sync::Arc;

use bareverbs_provider::traits::Provider;
use bareverbs_provider::work::Sge;
use bareverbs_uapi::method::Call;
use bareverbs_uapi::uverbs::AdviseMr;
use bareverbs_uapi::uverbs::types::{AdviseMrAdvice as Advice, AdviseMrFlag};
use bareverbs_uapi::write::structs;
use rustix::io::Errno;

use super::Mr;
use crate::error::{Feature, Limit};
use crate::pd::Pd;
use crate::pd::shared::PdShared;
use crate::range::element;
use crate::{Access, Error, RawMemory, Result};

const VERB: &str = "advise_mr";

impl<P: Provider> Pd<P> {
    /// Gives advice for ranges of several ODP regions of the domain in one command.
    ///
    /// ```
    /// # fn fetch(pd: &bareverbs::Pd, a: &bareverbs::Mr<Vec<u8>>, b: &bareverbs::Mr<Vec<u8>>) -> bareverbs::Result<()> {
    /// use bareverbs::mr::Advice;
    ///
    /// pd.advise(Advice::PREFETCH).with(a, ..4096)?.with(b, ..)?.execute()
    /// # }
    /// # use bareverbs_test_support::example;
    /// # let pd = example::pd()?;
    /// # let mr = pd.register(vec![0; 4096], bareverbs::Access::LOCAL_WRITE)?;
    /// # example::unsupported(fetch(&pd, &mr, &mr));
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    #[doc(alias = "ibv_advise_mr")]
    pub fn advise(&self, advice: Advice) -> AdviceList {
        AdviceList::new(self.domain(), advice)
    }
}

impl<M> Mr<M> {
    /// Prefetches the pages of a range of an [ODP](Access::ON_DEMAND) region: for writing if the
    /// region has [`Access::LOCAL_WRITE`], else for reading.
    ///
    /// # Errors
    /// As for [`Mr::advise`].
    #[doc(alias = "ibv_advise_mr")]
    pub fn prefetch(&self, range: impl RangeBounds<usize>) -> Result<()> {
        let writable = self.access().intersects(Access::LOCAL_WRITE);
        self.advise(range, if writable { Advice::PREFETCH_WRITE } else { Advice::PREFETCH })
    }

    /// Gives advice for a range of an [ODP](Access::ON_DEMAND) region and waits until it is done.
    /// Advice does not change data. It changes only whether operations cause page faults.
    ///
    /// ```
    /// # fn advise(region: &bareverbs::Mr<bareverbs::Buffer>) -> bareverbs::Result<()> {
    /// use bareverbs::mr::Advice;
    ///
    /// // Maps the resident pages, then faults in the first 64 KiB.
    /// region.advise(.., Advice::PREFETCH_NO_FAULT)?;
    /// region.advise(..65536, Advice::PREFETCH)
    /// # }
    /// # use bareverbs_test_support::example;
    /// # let pd = example::pd()?;
    /// # let mr = pd.register(bareverbs::Buffer::zeroed(4096)?, bareverbs::Access::LOCAL_WRITE)?;
    /// # example::unsupported(advise(&mr));
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    ///
    /// # Errors
    /// - [`Error::Invalid`] if the region is not ODP or the range exceeds it.
    /// - [`Error::Unsupported`] if the device takes no advice
    ///   ([`Capabilities::advise_mr`](crate::device::Capabilities::advise_mr)).
    /// - [`Error::Kernel`], for example on rxe for a region without [`Access::LOCAL_WRITE`].
    #[doc(alias = "ibv_advise_mr")]
    pub fn advise(&self, range: impl RangeBounds<usize>, advice: Advice) -> Result<()> {
        self.advise_with_flags(range, advice, AdviseMrFlag::FLUSH)
    }

    /// Gives advice for a range of it. Does not wait until it is done and does not report whether
    /// it succeeded.
    ///
    /// # Errors
    /// As for [`Mr::advise`], for errors that the kernel detects at once.
    #[doc(alias = "ibv_advise_mr")]
    pub fn advise_async(&self, range: impl RangeBounds<usize>, advice: Advice) -> Result<()> {
        self.advise_with_flags(range, advice, AdviseMrFlag::empty())
    }

    fn advise_with_flags(
        &self,
        range: impl RangeBounds<usize>,
        advice: Advice,
        flags: AdviseMrFlag,
    ) -> Result<()> {
        AdviceList::new(self.domain(), advice).with(self, range)?.execute_with(flags)
    }
}

/// Advice for several ranges of ODP regions in one command, by [`Pd::advise`](crate::Pd::advise).
#[doc(alias = "ibv_advise_mr")]
#[must_use = "`execute` gives the advice"]
pub struct AdviceList {
    domain: Arc<PdShared>,
    advice: Advice,
    ranges: Vec<structs::Sge>,
}

impl fmt::Debug for AdviceList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { advice, ranges, .. } = self;
        f.debug_struct("AdviceList").field("advice", advice).field("ranges", ranges).finish_non_exhaustive()
    }
}

impl AdviceList {
    pub(crate) fn new(domain: &Arc<PdShared>, advice: Advice) -> Self {
        Self { domain: Arc::clone(domain), advice, ranges: Vec::new() }
    }

    /// Adds a range of a region.
    ///
    /// # Errors
    /// As for [`Mr::advise`]; [`Error::Invalid`] for a region of another protection domain.
    pub fn with<M>(mut self, region: &Mr<M>, range: impl RangeBounds<usize>) -> Result<Self> {
        let range = region.range(VERB, range)?;
        let Sge { addr, length, .. } = element(VERB, region.addr(), range, region.lkey())?;
        self.add(region, addr, length)?;
        Ok(self)
    }

    /// Adds `length` bytes of a region from the address `addr` in operations on: also a range of an
    /// implicit region. The kernel checks that the region has them.
    ///
    /// ```
    /// # use bareverbs::mr::Advice;
    /// # use bareverbs::{Mr, Pd, RawMemory, Result};
    /// fn fetch(pd: &Pd, region: &Mr<RawMemory>) -> Result<()> {
    ///     pd.advise(Advice::PREFETCH).with_addr(region, region.addr(), 4096)?.execute()
    /// }
    /// # use bareverbs_test_support::example;
    /// # let pd = example::pd()?;
    /// # let buffer = bareverbs::Buffer::zeroed(4096)?;
    /// # let access = bareverbs::Access::LOCAL_WRITE;
    /// # // SAFETY: the buffer outlives the region.
    /// # let mr = unsafe { pd.register_raw(buffer.as_ptr().cast_mut(), 4096, None, access) }?;
    /// # example::unsupported(fetch(&pd, &mr));
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    ///
    /// # Errors
    /// As for [`AdviceList::with`], but for the range.
    pub fn with_addr(mut self, region: &Mr<RawMemory>, addr: u64, length: u32) -> Result<Self> {
        self.add(region, addr, length)?;
        Ok(self)
    }

    fn add<M>(&mut self, region: &Mr<M>, addr: u64, length: u32) -> Result<()> {
        if !Arc::ptr_eq(&self.domain, region.domain()) {
            return Err(Error::foreign(VERB, "the MR belongs to another PD"));
        }
        if !self.domain.context.capabilities.advise_mr {
            return Err(Error::unsupported(VERB, Feature::MrAdvice));
        }
        // rxe does not check that a region is ODP (`rxe_ib_prefetch_sg_list` of `rxe_odp.c`).
        if !region.access().contains(Access::ON_DEMAND) {
            let reason = "the MR is pinned: advice requires an MR registered with ON_DEMAND";
            return Err(Error::invalid(VERB, reason));
        }
        if length > 0 {
            self.ranges.push(structs::Sge { addr, length, lkey: region.lkey() });
        }
        Ok(())
    }

    /// Gives the advice and waits until it is done.
    ///
    /// # Errors
    /// [`Error::Limit`] for more than 4,095 ranges; [`Error::Kernel`].
    pub fn execute(self) -> Result<()> {
        self.execute_with(AdviseMrFlag::FLUSH)
    }

    /// Gives the advice, as [`Mr::advise_async`] does.
    ///
    /// # Errors
    /// As for [`AdviceList::execute`].
    pub fn execute_async(self) -> Result<()> {
        self.execute_with(AdviseMrFlag::empty())
    }

    fn execute_with(self, flags: AdviseMrFlag) -> Result<()> {
        let Self { domain, advice, ranges } = &self;
        // An attribute has at most 65,535 bytes.
        let max = usize::from(u16::MAX) / size_of::<structs::Sge>();
        Error::check_limit(VERB, Limit::AdviseRanges, ranges.len() as u64, max as u64)?;
        if ranges.is_empty() {
            return Ok(());
        }
        let mut call = Call::<AdviseMr>::new(domain.context.file.driver_id());
        call.handle(AdviseMr::PD_HANDLE, domain.handle);
        call.constant(AdviseMr::ADVICE, *advice);
        call.flags(AdviseMr::FLAGS, flags);
        call.input_slice(AdviseMr::SGE_LIST, ranges);
        // SAFETY: the method reads only its attributes. Prefetching does not change data.
        unsafe { domain.context.file.execute(&mut call) }.map_err(|refused| {
            let asked = match ranges.as_slice() {
                [structs::Sge { addr, length, .. }] => format!("{advice:?}, {length} bytes at {addr:#x}"),
                ranges => format!("{advice:?}, {} ranges", ranges.len()),
            };
            Error::kernel(VERB, asked, refused).or_hint(|errno| {
                (errno == Errno::PERM).then(|| "PREFETCH_WRITE requires a region with LOCAL_WRITE".into())
            })
        })
    }
}
