//! Enhanced connection establishment (ECE).

use bareverbs_provider::request::Ece;
use bareverbs_provider::traits::{Provider, QpControl};

use super::{Qp, Transport};
use crate::error::Feature;
use crate::{Error, Result};

impl<T: Transport, P: Provider> Qp<T, P> {
    /// The ECE options. Initially, the options that the device supports for the connection. After
    /// [`Qp::set_ece`] and a transition, the options that the device accepted. Between the two
    /// calls, no options.
    ///
    /// Two ends negotiate options in this order:
    ///
    /// - The active end sends its options to the passive end.
    /// - The passive end sets them, goes to RTR, and returns the accepted options.
    /// - The active end sets those before it goes to RTR itself.
    ///
    /// ```no_run
    /// # use bareverbs::Result;
    /// # use bareverbs::ah::AhAttr;
    /// # use bareverbs::qp::{Ece, InitAttr, Qp, Rc, RtrAttr};
    /// # fn example(qp: &mut Qp<Rc>, of_peer: Ece, address: &RtrAttr) -> Result<Ece> {
    /// qp.init(&InitAttr::new(1))?;
    /// qp.set_ece(of_peer)?;
    /// qp.ready_to_receive(address)?;
    /// // The peer sets the returned options.
    /// qp.query_ece()
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Unsupported`] without [`Capabilities::ece`](crate::device::Capabilities::ece).
    #[doc(alias = "ibv_query_ece")]
    pub fn query_ece(&self) -> Result<Ece> {
        self.sq.ece().ok_or(Error::unsupported("query_ece", Feature::Ece))
    }

    /// Requests these ECE options with the next transition, such as that to RTR.
    ///
    /// # Errors
    /// - [`Error::Unsupported`]: no [`Capabilities::ece`](crate::device::Capabilities::ece).
    /// - [`Error::Invalid`]: the options are of another vendor.
    #[doc(alias = "ibv_set_ece")]
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
