//! Completion counters of QPs.

use bareverbs_provider::traits::Provider;

use super::{Qp, Transport};
#[cfg(doc)]
use crate::Error;
use crate::comp_cntr::{CompCntr, CompCntrOps};
use crate::error::Result;

impl<T: Transport, P: Provider> Qp<T, P> {
    /// Lets a counter count the completions of these operations, until the QP is destroyed. Each
    /// operation has at most one counter. The QP keeps the counter.
    ///
    /// # Errors
    /// - [`Error::Unsupported`]: the device has no completion counters.
    /// - [`Error::Invalid`]: no operation is selected, or the counter is one of another context.
    /// - [`Error::Kernel`]: the kernel rejects the command.
    #[doc(alias = "ibv_qp_attach_comp_cntr")]
    pub fn attach_comp_cntr(&mut self, counter: &CompCntr, ops: CompCntrOps) -> Result<()> {
        self.core.attach_comp_cntr(counter, ops)
    }
}
