//! References to CQs.

use std::sync::Arc;

use bareverbs_provider::traits::Provider;

use super::CqShared;
use crate::{AnyProvider, Context};

/// A reference to a CQ, with which QPs and WQs are created: [`QpInit::with_cqs`], [`WqInit::with_cq`].
/// [`Cq::reference`](super::Cq::reference) returns that of a CQ. A clone of it creates objects while another
/// thread polls the CQ:
///
/// ```
/// use bareverbs::Device;
/// use bareverbs::cq::CqInit;
/// use bareverbs::qp::{QpInit, Rc};
///
/// let context = Device::find("soft0")?.open()?;
/// let pd = context.alloc_pd()?;
/// let mut cq = context.create_cq(&CqInit::new(16))?;
/// let reference = cq.reference().clone();
/// let qp = std::thread::scope(|scope| {
///     scope.spawn(|| cq.poll_one());
///     pd.create_qp::<Rc>(&QpInit::with_cqs(&reference, &reference))
/// })?;
///
/// let cq = cq.destroy().unwrap_err().object;
/// drop((qp, reference));
/// assert!(cq.destroy().is_ok());
/// # Ok::<(), bareverbs::Error>(())
/// ```
///
/// The kernel object is destroyed after the last reference, as after the last QP.
///
/// [`QpInit::with_cqs`]: crate::qp::QpInit::with_cqs
/// [`WqInit::with_cq`]: crate::rss::WqInit::with_cq
pub struct CqRef<P: Provider = AnyProvider>(pub(super) Arc<CqShared<P>>);

impl<P: Provider> Clone for CqRef<P> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<P: Provider> CqRef<P> {
    /// The handle of the CQ in the kernel.
    #[must_use]
    pub fn handle(&self) -> u32 {
        self.0.handle
    }

    pub(crate) fn user_data(&self) -> u64 {
        self.0.user_data
    }

    pub(crate) fn context(&self) -> &Context<P> {
        &self.0.context
    }

    pub(crate) fn shared(&self) -> &Arc<CqShared<P>> {
        &self.0
    }
}
