//! Extended reliable connections: domains and their shared receive queues.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use bareverbs_provider::command;
use bareverbs_provider::contract::Provider;
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::{
    AnyProvider, Context, Cq, Error, Pd, PostError, RecvRequest, Result, Srq, SrqAttr, SrqInit, XrcTarget,
};

/// Whom an XRC domain is shared with.
#[derive(Clone, Copy, Debug)]
pub enum XrcdShare<'a> {
    /// Nobody: it is this process's own.
    Private,
    /// Processes that name the same file: joins their domain.
    Join(BorrowedFd<'a>),
    /// The same, but makes the domain where there is none.
    JoinOrCreate(BorrowedFd<'a>),
    /// The same, but makes the domain, which must not be there.
    Create(BorrowedFd<'a>),
}

/// An XRC domain.
///
/// An extended reliable connection (XRC) leads from an [`XrcSend`](crate::XrcSend) queue pair of
/// one process to an [`XrcTarget`] of another machine. There, each request takes a receive of the
/// [`XrcSrq`] that it names. Queues and targets of a domain belong together, whichever process made
/// them: N processes on each of M machines reach each other over N·M connections a machine, not
/// N·N·M, since what comes to any target reaches every process's own queue.
///
/// Processes find each other's domain by a file: it is that of the file's inode, for as long as
/// somebody has it.
///
/// ```no_run
/// use bareverbs::{CqInit, Device, QpInit, SrqInit, XrcSend, XrcSrqInit, XrcdShare};
/// # fn example(file: std::fs::File) -> bareverbs::Result<()> {
/// use std::os::fd::AsFd;
///
/// let context = Device::find("mlx5_0")?.open()?;
/// let (pd, cq) = (context.alloc_pd()?, context.create_cq(&CqInit::new(64))?);
/// let xrcd = context.open_xrcd(XrcdShare::JoinOrCreate(file.as_fd()))?;
/// // What this process receives, whichever connection it comes over.
/// let srq = pd.create_xrc_srq(&XrcSrqInit { srq: SrqInit::new(32), xrcd: &xrcd, cq: &cq })?;
/// // The two ends of connections: peers send to `target.qp_num()` and name `srq.srq_num()`.
/// let target = xrcd.create_target(0)?;
/// let sender = pd.create_qp::<XrcSend>(&QpInit::new(&cq, &cq))?;
/// # Ok(())
/// # }
/// ```
///
/// It is cheap to clone, and lives as long as anything that was made in it.
#[doc(alias = "ibv_xrcd")]
pub struct Xrcd<P: Provider = AnyProvider> {
    inner: Arc<Inner<P>>,
}

struct Inner<P: Provider> {
    context: Context<P>,
    handle: u32,
    closed: bool,
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
            return Err(Error::Unsupported { verb: VERB, what: "XRC domains are" });
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
                    Some("no process has an XRC domain of that file: create it first".into())
                }
                (Errno::INVAL, XrcdShare::Create(_)) => {
                    Some("an XRC domain of that file exists already: join it".into())
                }
                _ => None,
            })
        })?;
        let inner = Inner { context: context.clone(), handle, closed: false };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The context it belongs to.
    #[must_use]
    pub fn context(&self) -> &Context<P> {
        &self.inner.context
    }

    pub(crate) fn handle(&self) -> u32 {
        self.inner.handle
    }

    /// Makes a queue pair that receives for the domain, in the state RESET. `user_data` comes back
    /// in its [asynchronous events](crate::AsyncEvent::Qp).
    ///
    /// # Errors
    /// The kernel refuses, as where the device has no more queue pairs.
    #[doc(alias = "ibv_create_qp_ex")]
    pub fn create_target(&self, user_data: u64) -> Result<XrcTarget<P>> {
        XrcTarget::create(self, user_data)
    }

    /// Takes part in the domain's receiving queue pair `qp_num`, which another process has made. It
    /// then exists until all have let go of it. The way from state to state stays the maker's: it
    /// is where the maker has brought it.
    ///
    /// # Errors
    /// The kernel refuses, with `EINVAL` where the domain has no such queue pair.
    #[doc(alias = "ibv_open_qp")]
    pub fn open_target(&self, qp_num: u32, user_data: u64) -> Result<XrcTarget<P>> {
        XrcTarget::open(self, qp_num, user_data)
    }

    /// Leaves the domain; with the last process that has it, it goes. Dropping does the same in
    /// silence, when nothing made in it is left.
    ///
    /// # Errors
    /// [`Error::Invalid`] where something of this process is still in it, with the last of which it
    /// goes; the kernel refuses.
    #[doc(alias = "ibv_close_xrcd")]
    pub fn close(self) -> Result<()> {
        const VERB: &str = "close_xrcd";
        let Some(mut inner) = Arc::into_inner(self.inner) else {
            return Err(Error::invalid(VERB, "queues or queue pairs are still in it: drop them first"));
        };
        inner.closed = true;
        // SAFETY: all that names the domain keeps it, and this was the last that did.
        unsafe { command::close_xrcd(inner.context.file(), inner.handle) }
            .map_err(|refused| Error::kernel(VERB, "an XRC domain", refused))
    }
}

impl<P: Provider> Drop for Inner<P> {
    fn drop(&mut self) {
        if !self.closed {
            // It fails only where an object that could not be given back is in it; closing the file
            // frees both.
            // SAFETY: all that names the domain keeps it, so nothing does any more.
            let _ = unsafe { command::close_xrcd(self.context.file(), self.handle) };
        }
    }
}

/// What a shared receive queue of an XRC domain is to be.
#[doc(alias = "ibv_srq_init_attr_ex")]
pub struct XrcSrqInit<'a, P: Provider = AnyProvider> {
    /// Depth, width, limit and user data.
    pub srq: SrqInit,
    /// Its domain.
    pub xrcd: &'a Xrcd<P>,
    /// The queue for its completions.
    pub cq: &'a Cq<P>,
}

/// A shared receive queue of an XRC domain: requests that come to any target of the domain and name
/// it by [`XrcSrq::srq_num`] take its receives. [`Xrcd`] shows how it is made.
///
/// Its completions come to its own completion queue; each tells by `qp_num` the target that it came
/// to, which may be another process's.
///
/// It is no shared receive queue of ordinary queue pairs, and those do not take it:
///
/// ```compile_fail,E0308
/// # use bareverbs::{Cq, QpInit, XrcSrq};
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

    /// Its number on the wire, by which peers name it; 24 bits.
    #[doc(alias = "ibv_get_srq_num")]
    #[must_use]
    pub fn srq_num(&self) -> u32 {
        self.srq_num
    }

    /// [`SrqInit::user_data`].
    #[must_use]
    pub fn user_data(&self) -> u64 {
        self.srq.user_data()
    }

    /// The protection domain that the memory of its receives belongs to.
    #[must_use]
    pub fn pd(&self) -> &Pd<P> {
        self.srq.pd()
    }

    /// Receives that can be outstanding, at least as many as asked for.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.srq.capacity()
    }

    /// Scatter elements of a receive.
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
    /// A request is in use until it is complete or the queue was destroyed: [`XrcSrq::destroy`]
    /// returned `Ok`. Where the kernel refuses, there or when the queue is dropped, requests stay
    /// in use for the life of the process. While a request is in use, the memory that its elements
    /// name must stay registered, mapped and allocated, and nobody may look at it or change it,
    /// except by the copying methods of the region.
    #[doc(alias = "ibv_post_srq_recv")]
    #[inline]
    pub unsafe fn post_recv(&mut self, requests: &[RecvRequest<'_>]) -> Result<(), PostError> {
        // SAFETY: the caller's promise is the same: no queue pair of this process shares the queue,
        // so it is destroyed where this is.
        unsafe { self.srq.post_recv(requests) }
    }

    /// What the kernel says of it.
    ///
    /// # Errors
    /// The kernel refuses.
    #[doc(alias = "ibv_query_srq")]
    pub fn query(&self) -> Result<SrqAttr> {
        self.srq.query()
    }

    /// Asks for one event when a message leaves fewer than `limit` receives posted, as
    /// [`Srq::set_limit`] does.
    ///
    /// # Errors
    /// As for [`Srq::set_limit`].
    #[doc(alias = "ibv_modify_srq")]
    pub fn set_limit(&mut self, limit: u32) -> Result<()> {
        self.srq.set_limit(limit)
    }

    /// Destroys it and tells how many of its [events](crate::AsyncEvent::Srq) have been read.
    /// Dropping does the same in silence.
    ///
    /// # Errors
    /// The kernel refuses.
    #[doc(alias = "ibv_destroy_srq")]
    pub fn destroy(self) -> Result<u32> {
        self.srq.destroy()
    }
}
