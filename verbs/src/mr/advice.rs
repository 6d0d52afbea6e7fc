//! Advice for ODP regions (ADVISE_MR).

use std::ops::RangeBounds;

use bareverbs_uapi::method::Call;
use bareverbs_uapi::uverbs::AdviseMr;
use bareverbs_uapi::uverbs::types::AdviseMrFlag;
use bareverbs_uapi::write::structs;

use super::Mr;
use crate::{Access, Advice, Error, Result, Sge};

const VERB: &str = "advise_mr";

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
    /// ```no_run
    /// # fn advise(region: &bareverbs::Mr<bareverbs::Buffer>) -> bareverbs::Result<()> {
    /// use bareverbs::Advice;
    ///
    /// // Everything that is in memory now; and then the first 64 KiB, wherever they are.
    /// region.advise(.., Advice::PREFETCH_NO_FAULT)?;
    /// region.advise(..65536, Advice::PREFETCH)
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Invalid`] if the region is not ODP or the range exceeds it; [`Error::Unsupported`]
    /// if the device takes no advice ([`Capabilities::advise_mr`](crate::Capabilities::advise_mr));
    /// [`Error::Kernel`], for example on rxe for a region without [`Access::LOCAL_WRITE`].
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
        let Sge { addr, length, lkey } = self.sge(range)?;
        let domain = &self.registration.domain;
        if !domain.context.capabilities.advise_mr {
            return Err(Error::Unsupported { verb: VERB, what: "MR advice is" });
        }
        // rxe does not check that a region is ODP (`rxe_ib_prefetch_sg_list` of `rxe_odp.c`).
        if !self.access().contains(Access::ON_DEMAND) {
            let reason = "the MR is pinned: advice requires an MR registered with ON_DEMAND";
            return Err(Error::invalid(VERB, reason));
        }
        if length == 0 {
            return Ok(());
        }
        let ranges = [structs::Sge { addr, length, lkey }];
        let mut call = Call::<AdviseMr>::new(domain.context.file.driver_id());
        call.handle(AdviseMr::PD_HANDLE, domain.handle);
        call.constant(AdviseMr::ADVICE, advice);
        call.flags(AdviseMr::FLAGS, flags);
        call.input_slice(AdviseMr::SGE_LIST, &ranges);
        // SAFETY: the method reads only its attributes. Prefetching does not change data.
        unsafe { domain.context.file.execute(&mut call) }.map_err(|refused| {
            Error::kernel(VERB, format!("{advice:?}, {length} bytes at {addr:#x}"), refused)
        })
    }
}
