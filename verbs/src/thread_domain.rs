//! Thread domains.

use bareverbs_provider::thread_domain::ThreadDomain;
use bareverbs_provider::traits::Provider;

use crate::{Context, Error, Result};

impl<P: Provider> Context<P> {
    /// Allocates a thread domain: a doorbell register for the QPs of one thread, which
    /// [`QpInit::doorbell`](crate::qp::QpInit::doorbell) chooses.
    ///
    /// On ConnectX the register is in a page of its own, which no QP outside of the domain writes. The
    /// QPs ring it by stores of 8 bytes, and the device fetches each request: only a QP with
    /// [`DoorbellChoice::Own`](crate::qp::DoorbellChoice::Own) copies requests into its register
    /// (*BlueFlame*). Threads may post to QPs of one domain at the same time.
    ///
    /// ```
    /// # fn example(pd: &bareverbs::Pd) -> bareverbs::Result<()> {
    /// use bareverbs::cq::CqInit;
    /// use bareverbs::qp::{DoorbellChoice, QpInit, Rc};
    ///
    /// let td = pd.context().alloc_td()?;
    /// let cq = pd.context().create_cq(&CqInit::new(64))?;
    /// let init = QpInit { doorbell: DoorbellChoice::Domain(&td), ..QpInit::new(&cq, &cq) };
    /// let qps = [pd.create_qp::<Rc>(&init)?, pd.create_qp::<Rc>(&init)?];
    /// # Ok(())
    /// # }
    /// # use bareverbs_test_support::example;
    /// # let pd = example::pd()?;
    /// # example::unsupported(example(&pd));
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    ///
    /// # Errors
    /// - [`Error::Unsupported`]: the device has no such registers. Only ConnectX has.
    /// - [`Error::Kernel`], with `ENOMEM` if the device has no register left.
    #[doc(alias = "ibv_alloc_td")]
    #[doc(alias = "ibv_dealloc_td")]
    pub fn alloc_td(&self) -> Result<ThreadDomain> {
        let allocated = self.provider().alloc_td();
        allocated.map_err(|reason| Error::create("alloc_td", self.device().name(), reason))
    }
}
