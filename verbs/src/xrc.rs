//! Extended reliable connections (XRC): SRQs, and the public names of domains and QPs.

use bareverbs_provider::layout::QueueLayout;
use bareverbs_provider::traits::Provider;
use bareverbs_provider::work::RecvRequest;

use crate::cq::Cq;
use crate::error::{PostError, Refused, Result};
use crate::pd::Pd;
use crate::provider::AnyProvider;
use crate::srq::{Srq, SrqAttr, SrqInit};

pub use crate::qp::xrc::{XrcSend, XrcTarget, XrcTargetRtsAttr};
pub use crate::xrcd::{Xrcd, XrcdShare};
pub use bareverbs_provider::work::XrcOperation;

/// Attributes for the creation of an XRC SRQ.
#[doc(alias = "ibv_srq_init_attr_ex")]
pub struct XrcSrqInit<'a, P: Provider = AnyProvider> {
    /// Depth, width, limit and user data.
    pub srq: SrqInit<'a>,
    /// XRC domain of the SRQ.
    pub xrcd: &'a Xrcd<P>,
    /// CQ for its completions.
    pub cq: &'a Cq<P>,
}

/// An SRQ of an XRC domain. Requests to any target of the domain that name it by
/// [`XrcSrq::srq_num`] consume its receives. [`Xrcd`] has an example.
///
/// Its completions go to its own CQ. Their `qp_num` is that of the target, which may belong to
/// another process.
///
/// An XRC SRQ is not an ordinary SRQ, and ordinary QPs do not accept it:
///
/// ```compile_fail,E0308
/// # use bareverbs::cq::Cq;
/// # use bareverbs::qp::QpInit;
/// # use bareverbs::xrc::XrcSrq;
/// # fn wrong<'a>(cq: &'a Cq, srq: &'a XrcSrq) -> QpInit<'a> {
/// QpInit { srq: Some(srq), ..QpInit::new(cq, cq) }
/// # }
/// ```
#[doc(alias = "IBV_SRQT_XRC")]
pub struct XrcSrq<P: Provider = AnyProvider> {
    srq: Srq<P>,
    srq_num: u32,
}

impl<P: Provider> Pd<P> {
    /// Creates a shared receive queue of an XRC domain.
    ///
    /// # Errors
    /// - [`Error::Invalid`](crate::Error::Invalid) for 0 receives, a limit above their number, or a
    ///   domain or completion queue of another context.
    /// - [`Error::Limit`](crate::Error::Limit) for a depth or a number of SGEs above the device's
    ///   limit.
    /// - [`Error::Kernel`](crate::Error::Kernel).
    #[doc(alias = "ibv_create_srq_ex")]
    pub fn create_xrc_srq(&self, init: &XrcSrqInit<'_, P>) -> Result<XrcSrq<P>> {
        XrcSrq::create(self, init)
    }
}

impl<P: Provider> XrcSrq<P> {
    pub(crate) fn create(pd: &Pd<P>, init: &XrcSrqInit<'_, P>) -> Result<Self> {
        let (srq, srq_num) = Srq::create_for(pd, &init.srq, Some((init.xrcd, init.cq)))?;
        Ok(Self { srq, srq_num })
    }

    /// The SRQ number, by which peers name it; 24 bits.
    #[doc(alias = "ibv_get_srq_num")]
    #[must_use]
    pub fn srq_num(&self) -> u32 {
        self.srq_num
    }

    /// Its kernel handle.
    #[must_use]
    pub fn handle(&self) -> u32 {
        self.srq.handle()
    }

    /// Releases the handle, as [`Srq::into_handle`] does.
    ///
    /// [`RawObject::of`](crate::raw::RawObject::of) can own the object again; see
    /// [its example](crate::raw::RawObject).
    #[must_use = "nothing else has the handle"]
    pub fn into_handle(self) -> u32 {
        self.srq.into_handle()
    }

    /// The addresses of its ring and doorbell record, as for [`Cq::layout`].
    ///
    /// ```no_run
    /// # fn show(srq: &bareverbs::xrc::XrcSrq) {
    /// if let Some(layout) = srq.layout() {
    ///     println!("{} slots of {} bytes at {:?}", layout.slots, layout.stride, layout.ring);
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn layout(&self) -> Option<QueueLayout> {
        self.srq.layout()
    }

    /// [`SrqInit::user_data`].
    #[must_use]
    pub fn user_data(&self) -> u64 {
        self.srq.user_data()
    }

    /// The protection domain of the SRQ and of its receives' memory.
    #[must_use]
    pub fn pd(&self) -> &Pd<P> {
        self.srq.pd()
    }

    /// Receives that can be outstanding, at least as many as requested.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.srq.capacity()
    }

    /// SGEs of a receive.
    #[must_use]
    pub fn max_sge(&self) -> u32 {
        self.srq.max_sge()
    }

    /// Posts receives.
    ///
    /// # Errors
    /// As for [`Srq::post_recv`].
    ///
    /// # Safety
    ///
    /// A request is in use until it completes or the SRQ was destroyed: [`XrcSrq::destroy`]
    /// returned `Ok`. If the kernel refuses, in `destroy` or in drop, requests stay in use until
    /// the process exits.
    ///
    /// While a request is in use, the memory of its SGEs must stay registered, mapped and
    /// allocated. No code may read or write that memory, except by the copying methods of the MR.
    #[doc(alias = "ibv_post_srq_recv")]
    #[inline]
    pub unsafe fn post_recv(&mut self, requests: &[RecvRequest<'_>]) -> Result<(), PostError> {
        // SAFETY: the caller's contract is the same: no QP of this process shares the SRQ, so it is
        // destroyed with this value.
        unsafe { self.srq.post_recv(requests) }
    }

    /// As [`Srq::post_recv_each`].
    ///
    /// # Errors
    /// As for [`Srq::post_recv`].
    ///
    /// # Safety
    ///
    /// As for [`Srq::post_recv`].
    #[doc(alias = "ibv_post_srq_recv")]
    #[inline]
    pub unsafe fn post_recv_each<'r>(
        &mut self,
        requests: impl IntoIterator<Item = RecvRequest<'r>>,
    ) -> Result<(), PostError> {
        // SAFETY: the caller's contract is the same.
        unsafe { self.srq.post_recv_each(requests) }
    }

    /// Queries the attributes from the kernel.
    ///
    /// # Errors
    /// [`Error::Kernel`](crate::Error::Kernel): the kernel rejects the command.
    #[doc(alias = "ibv_query_srq")]
    pub fn query(&self) -> Result<SrqAttr> {
        self.srq.query()
    }

    /// Arms one event, raised when a message leaves fewer than `limit` receives posted, as
    /// [`Srq::set_limit`] does.
    ///
    /// # Errors
    /// As for [`Srq::set_limit`].
    #[doc(alias = "ibv_modify_srq")]
    pub fn set_limit(&mut self, limit: u32) -> Result<()> {
        self.srq.set_limit(limit)
    }

    /// Destroys the SRQ. Returns the number of its [events](crate::AsyncEvent::Srq) that have been
    /// read. Drop ignores errors.
    ///
    /// # Errors
    /// As for [`Srq::destroy`].
    #[doc(alias = "ibv_destroy_srq")]
    pub fn destroy(self) -> Result<u32, Refused<Self>> {
        let srq_num = self.srq_num;
        self.srq.destroy().map_err(|refused| refused.map(|srq| Self { srq, srq_num }))
    }
}
