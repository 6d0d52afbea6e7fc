//! Completion counters of the QP.

use bareverbs_provider::traits::Provider;

use super::QpCore;
use crate::comp_cntr::{CompCntr, CompCntrOps};
use crate::error::{Error, Result};

impl<P: Provider> QpCore<P> {
    /// As [`Qp::attach_comp_cntr`](crate::qp::Qp::attach_comp_cntr).
    ///
    /// # Errors
    /// As for [`Qp::attach_comp_cntr`](crate::qp::Qp::attach_comp_cntr).
    pub fn attach_comp_cntr(&mut self, counter: &CompCntr, ops: CompCntrOps) -> Result<()> {
        if ops.is_empty() {
            return Err(Error::empty("qp_attach_comp_cntr", "no operation is selected"));
        }
        let shared = counter.attach(self.pd.context(), self.kernel.handle, ops)?;
        self.comp_cntrs.push(shared);
        Ok(())
    }
}
