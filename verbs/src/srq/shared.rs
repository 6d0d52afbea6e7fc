//! The part of an SRQ that its QPs share.

use std::sync::{Arc, Mutex};

use bareverbs_provider::command;
use bareverbs_provider::device::IoctlError;
use bareverbs_provider::traits::Provider;

use crate::cq::CqShared;
use crate::recv_queue::leak_queue;
use crate::released::Released;
use crate::xrcd::Xrcd;
use crate::{Context, Pd};

/// The part of an SRQ that its QPs share.
pub(crate) struct SrqShared<P: Provider> {
    pub(super) pd: Pd<P>,
    pub(crate) handle: u32,
    /// The queue, moved here when the owner drops the SRQ before the last QP. Posted receives stay
    /// valid.
    pub(super) orphan: Mutex<Option<P::Srq>>,
    pub(super) destroyed: bool,
    pub(crate) released: Released,
    /// XRC only: the XRC domain and the CQ of the SRQ. Both are destroyed after the SRQ.
    pub(super) _xrc: Option<(Xrcd<P>, Arc<CqShared<P>>)>,
}

impl<P: Provider> SrqShared<P> {
    pub(crate) fn context(&self) -> &Context<P> {
        self.pd.context()
    }

    /// Destroys the SRQ. Returns the kernel's `events_reported`: the number of its asynchronous
    /// events that were read.
    ///
    /// # Safety
    ///
    /// The SRQ must not be destroyed already. No code may use it afterwards.
    unsafe fn destroy(&mut self) -> Result<u32, IoctlError> {
        // SAFETY: the caller's contract is stronger.
        unsafe { self.try_destroy() }.inspect_err(|_| leak_queue(&mut self.orphan))
    }

    /// As `destroy`, but the SRQ remains usable if the kernel refuses.
    ///
    /// # Safety
    ///
    /// The SRQ must not be destroyed already. If this succeeds, no code may use it afterwards.
    pub(super) unsafe fn try_destroy(&mut self) -> Result<u32, IoctlError> {
        // SAFETY: every user of the SRQ holds an `Arc<SrqShared>`, which is borrowed exclusively,
        // so no other user is left.
        let resp = unsafe { command::destroy_srq(self.pd.context().file(), self.handle) }?;
        self.destroyed = true;
        Ok(resp.events_reported)
    }
}

impl<P: Provider> Drop for SrqShared<P> {
    fn drop(&mut self) {
        if self.released.get() {
            // The kernel object still exists. The caller may free the memory of its receives after
            // it has destroyed the object.
            leak_queue(&mut self.orphan);
        } else if !self.destroyed {
            // SAFETY: the SRQ is not destroyed yet, and `self` is being dropped.
            let _ = unsafe { self.destroy() };
        }
    }
}
