//! States of QPs that the kernel's connection manager moves.

use bareverbs_provider::traits::Provider;
use bareverbs_uapi::verbs_values::QpState;

use super::{Connected, Qp};
#[cfg(doc)]
use crate::Error;
use crate::error::Result;

impl<T: Connected, P: Provider> Qp<T, P> {
    /// Sets the state to which the kernel's connection manager (rdma_cm) has moved the QP of an
    /// [iWARP](crate::device::Capabilities::iwarp) device. No command is sent. `bareverbs-rdmacm` calls it
    /// at its events.
    ///
    /// | event | state |
    /// |---|---|
    /// | `ESTABLISHED`; of the accepting side also a successful `ACCEPT` | RTS |
    /// | `DISCONNECTED`, or a failed connection | ERR |
    ///
    /// Of iWARP, [`Qp::modify`] can't move a QP to RTS, and [`Qp::query`] of Linux 6.1 does not report the
    /// state. In ERR, requests that the kernel left in the queues complete with
    /// [`WR_FLUSH_ERR`](crate::WcStatus::WR_FLUSH_ERR), earlier and later ones. If the kernel has not moved
    /// the QP to RTS, sends that are posted stay in the queue.
    ///
    /// # Errors
    /// [`Error::Invalid`]: the device is not an iWARP device, or the transition is not one of: RESET, INIT,
    /// RTR or RTS to RTS; any state except RESET to ERR.
    pub fn set_cm_state(&mut self, state: QpState) -> Result<()> {
        self.core.set_cm_state(state)
    }
}
