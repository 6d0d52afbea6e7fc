//! A provider of queues that exist already.

use std::fmt;
use std::sync::{Arc, Mutex};

use bareverbs::Errno;
use bareverbs::Provider;
use bareverbs_provider::caps::Capabilities;
use bareverbs_provider::device::{DeviceFile, IoctlError};
use bareverbs_provider::error::CreateError;
use bareverbs_provider::request::{AhRequest, CqRequest, QpRequest, SrqChange, SrqRequest};
use bareverbs_provider::traits::{CreatedAh, CreatedCq, CreatedQp, CreatedSrq};

/// Gives out the queues of `P` that it was made of, each once. It creates no other objects.
pub struct Given<P: Provider> {
    cq: Mutex<Option<P::Cq>>,
    qp: Mutex<Option<(P::Sq, P::Rq)>>,
}

impl<P: Provider> Given<P> {
    /// A provider of a QP and its CQ.
    ///
    /// # Safety
    ///
    /// `qp` must be the queues of a connected QP, and `cq` their CQ. The device must not access memory of
    /// requests after the provider was dropped.
    pub unsafe fn new(cq: P::Cq, qp: (P::Sq, P::Rq)) -> Self {
        Self { cq: Mutex::new(Some(cq)), qp: Mutex::new(Some(qp)) }
    }
}

impl<P: Provider> fmt::Debug for Given<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Given").finish_non_exhaustive()
    }
}

fn unsupported() -> IoctlError {
    IoctlError::new("measured", Errno::NOTTY)
}

fn take<T>(given: &Mutex<Option<T>>) -> Result<T, CreateError> {
    given.lock().expect("no panic").take().ok_or(CreateError::Ioctl(unsupported()))
}

// SAFETY: the caller of `new` upholds the contract for the queues, and each is given out once.
unsafe impl<P: Provider> Provider for Given<P> {
    type Cq = P::Cq;
    type Sq = P::Sq;
    type Rq = P::Rq;
    type Srq = P::Srq;
    type Ah = P::Ah;

    fn drives(_: u32) -> bool {
        false
    }

    fn open(_: Arc<DeviceFile>) -> Result<Self, IoctlError> {
        Err(unsupported())
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { num_comp_vectors: 1, ..Capabilities::default() }
    }

    fn alloc_pd(&self) -> Result<u32, IoctlError> {
        Ok(1)
    }

    unsafe fn create_cq(&self, request: &CqRequest<'_>) -> Result<CreatedCq<Self>, CreateError> {
        Ok(CreatedCq { handle: 1, entries: request.entries, queue: take(&self.cq)? })
    }

    unsafe fn create_qp(&self, request: &QpRequest<'_>) -> Result<CreatedQp<Self>, CreateError> {
        let (sq, rq) = take(&self.qp)?;
        Ok(CreatedQp { handle: 1, qp_num: 1, cap: request.cap, sq, rq: Some(rq) })
    }

    unsafe fn create_srq(&self, _: &SrqRequest<'_>) -> Result<CreatedSrq<Self>, CreateError> {
        Err(CreateError::Ioctl(unsupported()))
    }

    unsafe fn modify_srq(&self, _: u32, _: &mut P::Srq, _: SrqChange) -> Result<(), CreateError> {
        Err(CreateError::Ioctl(unsupported()))
    }

    fn create_ah(&self, _: &AhRequest) -> Result<CreatedAh<Self>, CreateError> {
        Err(CreateError::Ioctl(unsupported()))
    }
}
