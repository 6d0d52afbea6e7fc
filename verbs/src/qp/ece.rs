//! Options of a connection beyond the standard.

use bareverbs_provider::contract::{Ece, Provider, SendQueue};

use super::{Qp, Transport};
use crate::{Error, Result};

/// How the verbs are refused where there is no such thing.
const ECE_OPTIONS: &str = "ECE options are";

impl<T: Transport, P: Provider> Qp<T, P> {
    /// What the device can do for the connection beyond the standard, or, after options were
    /// [set](Qp::set_ece) and a change has told the device, what it keeps of them. The options are
    /// none while they are set and not told yet.
    ///
    /// Two ends that wish to use such options tell each other: the one that connects sends what it
    /// has, the other sets that, goes to RTR, and answers with what is left, which the first sets
    /// before it goes to RTR itself.
    ///
    /// ```no_run
    /// # use bareverbs::{AhAttr, Ece, InitAttr, Qp, Rc, Result, RtrAttr};
    /// # fn example(qp: &mut Qp<Rc>, of_peer: Ece, address: &RtrAttr) -> Result<Ece> {
    /// qp.init(&InitAttr::new(1))?;
    /// qp.set_ece(of_peer)?;
    /// qp.ready_to_receive(address)?;
    /// // The peer is to set these.
    /// qp.query_ece()
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Unsupported`] without [`Capabilities::ece`](crate::Capabilities::ece).
    #[doc(alias = "ibv_query_ece")]
    pub fn query_ece(&self) -> Result<Ece> {
        self.sq.ece().ok_or(Error::Unsupported { verb: "query_ece", what: ECE_OPTIONS })
    }

    /// Has the next change of the queue pair, such as that to RTR, ask the device for these
    /// options.
    ///
    /// # Errors
    /// [`Error::Unsupported`] without [`Capabilities::ece`](crate::Capabilities::ece);
    /// [`Error::Invalid`] for options of another vendor.
    #[doc(alias = "ibv_set_ece")]
    pub fn set_ece(&mut self, ece: Ece) -> Result<()> {
        const VERB: &str = "set_ece";
        let own = self.sq.ece().ok_or(Error::Unsupported { verb: VERB, what: ECE_OPTIONS })?;
        if ece.vendor_id != own.vendor_id {
            let (given, own) = (ece.vendor_id, own.vendor_id);
            let reason =
                format!("the options are of vendor {given:#x}, and this device is of vendor {own:#x}");
            return Err(Error::invalid(VERB, reason));
        }
        self.sq.set_ece(ece.options);
        Ok(())
    }
}
