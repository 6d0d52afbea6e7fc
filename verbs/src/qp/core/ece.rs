//! Enhanced connection establishment (ECE).

use bareverbs_provider::request::Ece;
use bareverbs_provider::traits::{Provider, QpControl};

use super::QpCore;
use crate::error::{Error, Feature, Result};

impl<P: Provider> QpCore<P> {
    /// As [`Qp::query_ece`](crate::qp::Qp::query_ece).
    ///
    /// # Errors
    /// As for [`Qp::query_ece`](crate::qp::Qp::query_ece).
    pub fn query_ece(&self) -> Result<Ece> {
        self.sq.ece().ok_or(Error::unsupported("query_ece", Feature::Ece))
    }

    /// As [`Qp::set_ece`](crate::qp::Qp::set_ece).
    ///
    /// # Errors
    /// As for [`Qp::set_ece`](crate::qp::Qp::set_ece).
    pub fn set_ece(&mut self, ece: Ece) -> Result<()> {
        const VERB: &str = "set_ece";
        let own = self.sq.ece().ok_or(Error::unsupported(VERB, Feature::Ece))?;
        if ece.vendor_id != own.vendor_id {
            let (given, own) = (ece.vendor_id, own.vendor_id);
            let reason = format!("the options are of vendor {given:#x}, the device is of vendor {own:#x}");
            return Err(Error::invalid(VERB, reason));
        }
        self.sq.set_ece(ece.options);
        Ok(())
    }
}
