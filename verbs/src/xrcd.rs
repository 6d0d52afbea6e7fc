//! XRC domains.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use bareverbs_provider::command;
use bareverbs_provider::device::IoctlError;
use bareverbs_provider::traits::Provider;
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::context::Context;
use crate::error::{Error, Feature, Refused, Result};
use crate::provider::AnyProvider;
use crate::released::Released;

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
/// An extended reliable connection (XRC) connects an [`XrcSend`](crate::xrc::XrcSend) QP to an
/// [`XrcTarget`](crate::xrc::XrcTarget) of another machine. Each request names an
/// [`XrcSrq`](crate::xrc::XrcSrq) there and consumes a receive of it.
///
/// Any target of a domain delivers to any SRQ of the domain, whichever process created them. So N
/// processes on each of M machines need N·M connections per machine, not N·N·M.
///
/// Processes share a domain by a file: the domain belongs to the file's inode while any process has
/// it open.
///
/// ```
/// use bareverbs::cq::CqInit;
/// use bareverbs::qp::QpInit;
/// use bareverbs::srq::SrqInit;
/// use bareverbs::xrc::{XrcSend, XrcSrqInit, XrcdShare};
/// # fn example(context: &bareverbs::Context, file: std::fs::File) -> bareverbs::Result<()> {
/// use std::os::fd::AsFd;
///
/// let (pd, cq) = (context.alloc_pd()?, context.create_cq(&CqInit::new(64))?);
/// let xrcd = context.open_xrcd(XrcdShare::JoinOrCreate(file.as_fd()))?;
/// // The SRQ of this process, for all connections.
/// let srq = pd.create_xrc_srq(&XrcSrqInit { srq: SrqInit::new(32), xrcd: &xrcd, cq: &cq })?;
/// // Peers connect to `target.qp_num()` and send to `srq.srq_num()`.
/// let target = xrcd.create_target(0)?;
/// let sender = pd.create_qp::<XrcSend>(&QpInit::new(&cq, &cq))?;
/// # Ok(())
/// # }
/// # use bareverbs_test_support::example;
/// # let context = example::context()?;
/// # let file = std::fs::File::open("/dev/null")?;
/// # example::unsupported(example(&context, file));
/// # Ok::<(), bareverbs::Report>(())
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
    released: Released,
}

impl<P: Provider> Clone for Xrcd<P> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<P: Provider> Context<P> {
    /// Creates an XRC domain, or joins one that other processes share. [`Xrcd`] describes its use.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device has no XRC domains; [`Error::Kernel`] with `EAGAIN` if
    /// [`XrcdShare::Join`] finds no domain, and with `EINVAL` if [`XrcdShare::Create`] finds one.
    #[doc(alias = "ibv_open_xrcd")]
    pub fn open_xrcd(&self, share: XrcdShare<'_>) -> Result<Xrcd<P>> {
        Xrcd::open(self, share)
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
        Self { inner: Arc::new(Inner { context: context.clone(), handle, released }) }
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
        inner.close().map_err(|refused| {
            let error = Error::kernel(VERB, format!("XRC domain handle {}", self.handle()), refused);
            Refused::new(error, self)
        })
    }
}

impl<P: Provider> Inner<P> {
    fn close(&mut self) -> Result<(), IoctlError> {
        // SAFETY: nothing shares this. Every user of the domain holds an `Arc` of it.
        self.released.destroy(|| unsafe { command::close_xrcd(self.context.file(), self.handle) })
    }
}

impl<P: Provider> Drop for Inner<P> {
    fn drop(&mut self) {
        // The command fails only if the domain has an object that could not be destroyed.
        // Closing the device file frees both.
        let _ = self.close();
    }
}
