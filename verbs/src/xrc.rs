//! Extended reliable connections (XRC): domains and their SRQs.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use bareverbs_provider::command;
use bareverbs_provider::traits::Provider;
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::cq::Cq;
use crate::error::{Feature, PostError};
use crate::qp::RecvRequest;
use crate::raw::{QueueLayout, Released};
use crate::srq::{Srq, SrqAttr, SrqInit};
use crate::{AnyProvider, Context, Error, Pd, Refused, Result};

pub use crate::qp::xrc::{XrcSend, XrcTarget, XrcTargetRtsAttr};
pub use bareverbs_provider::work::XrcOperation;

/// How an XRC domain is shared between processes.
#[doc(alias = "ibv_xrcd_init_attr")]
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum XrcdShare<'a> {
    /// Private to this process.
    Private,
    /// Joins the domain of the file, which processes share by its inode.
    Join(BorrowedFd<'a>),
    /// Joins the domain of the file, or creates it.
    JoinOrCreate(BorrowedFd<'a>),
    /// Creates the domain of the file. Fails if it exists.
    Create(BorrowedFd<'a>),
}

/// An XRC domain.
///
/// An extended reliable connection (XRC) connects an [`XrcSend`] QP to an
/// [`XrcTarget`] of another machine. Each request names an [`XrcSrq`] there and consumes a receive
/// of it.
///
/// Any target of a domain delivers to any SRQ of the domain, whichever process created them. So N
/// processes on each of M machines need N·M connections per machine, not N·N·M.
///
/// Processes share a domain by a file: the domain belongs to the file's inode while any process has
/// it open.
///
/// ```no_run
/// use bareverbs::Device;
/// use bareverbs::cq::CqInit;
/// use bareverbs::qp::QpInit;
/// use bareverbs::srq::SrqInit;
/// use bareverbs::xrc::{XrcSend, XrcSrqInit, XrcdShare};
/// # fn example(file: std::fs::File) -> bareverbs::Result<()> {
/// use std::os::fd::AsFd;
///
/// let context = Device::find("mlx5_0")?.open()?;
/// let (pd, cq) = (context.alloc_pd()?, context.create_cq(&CqInit::new(64))?);
/// let xrcd = context.open_xrcd(XrcdShare::JoinOrCreate(file.as_fd()))?;
/// // The SRQ of this process, for all connections.
/// let srq = pd.create_xrc_srq(&XrcSrqInit { srq: SrqInit::new(32), xrcd: &xrcd, cq: &cq })?;
/// // Peers connect to `target.qp_num()` and send to `srq.srq_num()`.
/// let target = xrcd.create_target(0)?;
/// let sender = pd.create_qp::<XrcSend>(&QpInit::new(&cq, &cq))?;
/// # Ok(())
/// # }
/// ```
///
/// `Xrcd` is cheap to clone. The domain is closed after the last clone, SRQ and QP of it is
/// dropped.
#[doc(alias = "ibv_xrcd")]
pub struct Xrcd<P: Provider = AnyProvider> {
    inner: Arc<Inner<P>>,
}

struct Inner<P: Provider> {
    context: Context<P>,
    handle: u32,
    closed: bool,
    released: Released,
}

impl<P: Provider> Clone for Xrcd<P> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<P: Provider> Xrcd<P> {
    pub(crate) fn open(context: &Context<P>, share: XrcdShare<'_>) -> Result<Self> {
        const VERB: &str = "open_xrcd";
        if !context.capabilities().xrc {
            return Err(Error::unsupported(VERB, Feature::XrcDomains));
        }
        let (shared, flags) = match share {
            XrcdShare::Private => (None, OFlags::CREATE),
            XrcdShare::Join(fd) => (Some(fd), OFlags::empty()),
            XrcdShare::JoinOrCreate(fd) => (Some(fd), OFlags::CREATE),
            XrcdShare::Create(fd) => (Some(fd), OFlags::CREATE | OFlags::EXCL),
        };
        let handle = command::open_xrcd(context.file(), shared, flags).map_err(|refused| {
            Error::kernel(VERB, format!("{share:?}"), refused).or_hint(|errno| match (errno, share) {
                (Errno::AGAIN, XrcdShare::Join(_)) => {
                    Some("no process has an XRC domain with that file: create it first".into())
                }
                (Errno::INVAL, XrcdShare::Create(_)) => {
                    Some("an XRC domain with that file exists: join it".into())
                }
                _ => None,
            })
        })?;
        Ok(Self::new(context, handle))
    }

    pub(crate) fn new(context: &Context<P>, handle: u32) -> Self {
        let released = Released::default();
        Self { inner: Arc::new(Inner { context: context.clone(), handle, closed: false, released }) }
    }

    /// The context of the domain.
    #[must_use]
    pub fn context(&self) -> &Context<P> {
        &self.inner.context
    }

    /// Its kernel handle.
    #[must_use]
    pub fn handle(&self) -> u32 {
        self.inner.handle
    }

    /// Releases the handle: drop no longer closes the kernel object. The kernel closes it when the
    /// device file is closed.
    ///
    /// [`RawObject::of`](crate::raw::RawObject::of) can own the object again; see
    /// [its example](crate::raw::RawObject).
    #[must_use = "nothing else has the handle"]
    pub fn into_handle(self) -> u32 {
        self.inner.released.set();
        self.inner.handle
    }

    /// Creates an XRC target QP in the domain, in the state RESET. `user_data` is reported in its
    /// [asynchronous events](crate::AsyncEvent::Qp).
    ///
    /// # Errors
    /// [`Error::Kernel`]: the kernel rejects the command, for instance if the device has no more
    /// QPs.
    #[doc(alias = "ibv_create_qp_ex")]
    pub fn create_target(&self, user_data: u64) -> Result<XrcTarget<P>> {
        XrcTarget::create(self, user_data)
    }

    /// Opens the XRC target QP `qp_num` of the domain, which another process has created. The QP
    /// exists until all processes have closed it. Its creator makes the state transitions.
    ///
    /// # Errors
    /// [`Error::Kernel`]: the kernel rejects the command, with `EINVAL` if the domain has no such
    /// QP.
    #[doc(alias = "ibv_open_qp")]
    pub fn open_target(&self, qp_num: u32, user_data: u64) -> Result<XrcTarget<P>> {
        XrcTarget::open(self, qp_num, user_data)
    }

    /// Closes the domain. It is destroyed when the last process closes it. Drop ignores errors;
    /// the domain is closed after its last SRQ and QP.
    ///
    /// # Errors
    /// The domain and the reason:
    ///
    /// - [`Error::Invalid`]: this process still has clones, SRQs or QPs of the domain.
    /// - [`Error::Kernel`]: the kernel rejects the command.
    #[doc(alias = "ibv_close_xrcd")]
    pub fn close(mut self) -> Result<(), Refused<Self>> {
        const VERB: &str = "close_xrcd";
        let Some(inner) = Arc::get_mut(&mut self.inner) else {
            let error = Error::in_use(VERB, "SRQs or QPs still use it: drop them first");
            return Err(Refused::new(error, self));
        };
        // SAFETY: every user of the domain holds an `Arc` of this, and this is the last one. If
        // this succeeds, it is dropped next.
        match unsafe { command::close_xrcd(inner.context.file(), inner.handle) } {
            Ok(()) => {
                inner.closed = true;
                Ok(())
            }
            Err(refused) => {
                let asked = format!("XRC domain handle {}", inner.handle);
                Err(Refused::new(Error::kernel(VERB, asked, refused), self))
            }
        }
    }
}

impl<P: Provider> Drop for Inner<P> {
    fn drop(&mut self) {
        if !self.closed && !self.released.get() {
            // The command fails only if the domain has an object that could not be destroyed.
            // Closing the device file frees both.
            // SAFETY: every user of the domain holds an `Arc` of this, so there is none left.
            let _ = unsafe { command::close_xrcd(self.context.file(), self.handle) };
        }
    }
}

/// Attributes for the creation of an XRC SRQ.
#[doc(alias = "ibv_srq_init_attr_ex")]
pub struct XrcSrqInit<'a, P: Provider = AnyProvider> {
    /// Depth, width, limit and user data.
    pub srq: SrqInit,
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

    /// Queries the attributes from the kernel.
    ///
    /// # Errors
    /// [`Error::Kernel`]: the kernel rejects the command.
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
