//! Enhanced connection establishment (ECE).

use bareverbs_provider::request::Ece;
use bareverbs_provider::traits::Provider;

use super::{Qp, Transport};
#[cfg(doc)]
use crate::Error;
use crate::error::Result;

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
    /// ```
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
    /// # use bareverbs_test_support::example;
    /// # let pd = example::pd()?;
    /// # let cq = pd.context().create_cq(&bareverbs::cq::CqInit::new(32))?;
    /// # let mut qp = pd.create_qp(&bareverbs::qp::QpInit::new(&cq, &cq))?;
    /// # let rtr = RtrAttr::new(AhAttr::default(), 17);
    /// # example::unsupported(example(&mut qp, Ece::default(), &rtr));
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Unsupported`] without [`Capabilities::ece`](crate::device::Capabilities::ece).
    #[doc(alias = "ibv_query_ece")]
    pub fn query_ece(&self) -> Result<Ece> {
        self.core.query_ece()
    }

    /// Requests these ECE options with the next transition, such as that to RTR.
    ///
    /// # Errors
    /// - [`Error::Unsupported`]: no [`Capabilities::ece`](crate::device::Capabilities::ece).
    /// - [`Error::Invalid`]: the options are of another vendor.
    #[doc(alias = "ibv_set_ece")]
    pub fn set_ece(&mut self, ece: Ece) -> Result<()> {
        self.core.set_ece(ece)
    }
}
