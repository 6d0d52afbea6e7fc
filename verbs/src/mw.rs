//! Memory windows.

use std::fmt;
use std::ops::RangeBounds;
use std::sync::Arc;

use bareverbs_provider::command;
use bareverbs_provider::traits::Provider;
use rustix::io::Errno;

use crate::error::{Error, Feature, Refused, Result};
use crate::mr::Mr;
use crate::pd::Pd;
use crate::pd::shared::PdShared;
use crate::{Access, Remote};

pub use bareverbs_provider::work::MwBind;
pub use bareverbs_uapi::verbs_values::MwType;

const BIND_VERB: &str = "bind_mw";

/// Access rights that a window can grant.
const MW_ACCESS: Access = Access::REMOTE_WRITE
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::ZERO_BASED)
    .union(Access::FLUSH_GLOBAL)
    .union(Access::FLUSH_PERSISTENT);

/// The next remote key after `rkey`: the low byte plus 1 modulo 256, the other bytes unchanged.
///
/// ```
/// assert_eq!(bareverbs::mw::inc_rkey(0x1234_5678), 0x1234_5679);
/// assert_eq!(bareverbs::mw::inc_rkey(0x1234_56ff), 0x1234_5600);
/// ```
#[doc(alias = "ibv_inc_rkey")]
#[must_use]
pub fn inc_rkey(rkey: u32) -> u32 {
    rkey & !0xff | rkey.wrapping_add(1) & 0xff
}

/// A memory window: a remote key to part of a region. Work requests bind and invalidate it, without
/// a system call.
///
/// A window of type 1 is valid for all QPs of its protection domain and can be rebound at any time,
/// also to an empty range. A window of type 2 is valid for the QP that bound it. It must be
/// invalidated by [`Operation::LocalInv`](crate::qp::Operation::LocalInv) or by a peer's
/// [`Operation::SendInv`](crate::qp::Operation::SendInv) before it can be bound again.
///
/// ```
/// use bareverbs::mw::MwType;
/// use bareverbs::qp::{Operation, Payload, SendFlags, SendRequest};
/// use bareverbs::{Access, Buffer, WcStatus};
///
/// # use bareverbs_test_support::example;
/// # let pd = example::pd()?;
/// # let [(mut qp, mut cq), (peer, _)] = example::qps(&pd)?;
/// let region = pd.register(Buffer::zeroed(4096)?, Access::LOCAL_WRITE | Access::MW_BIND)?;
/// let mut window = pd.alloc_mw(MwType::TYPE_2)?;
/// let bind = window.bind(&region, 1024..2048, Access::REMOTE_WRITE)?;
/// let request = SendRequest {
///     wr_id: 1,
///     operation: Operation::BindMw(bind),
///     flags: SendFlags::SIGNALED,
///     payload: Payload::Sges(&[]),
/// };
/// // SAFETY: the region outlives the window's binding, and its bytes are only copied.
/// unsafe { qp.post_send(&[request]) }?;
/// let completion = loop {
///     if let Some(completion) = cq.poll_one() {
///         break completion;
///     }
/// };
/// assert_eq!(completion.status, WcStatus::SUCCESS);
/// window.bound(&bind);
/// println!("send the peer {:?}", window.remote(bind.addr));
/// # Ok::<(), bareverbs::Report>(())
/// ```
///
/// On rxe a window grants access to all of its region: the kernel checks requests against the
/// region's bounds (`check_rkey` of `rxe_resp.c`). Also on rxe, drop a bound window of type 2
/// before the QP that bound it: otherwise the kernel waits for the window for 50 seconds
/// (`__rxe_cleanup` of `rxe_pool.c`).
///
/// Invalidate or deallocate a window before its region is dropped. rxe is known to refuse to
/// deregister a region with a bound window: [`Mr::into_inner`] returns the region, and a dropped
/// region leaks its memory. No other driver is known to refuse.
#[doc(alias = "ibv_mw")]
pub struct Mw {
    domain: Arc<PdShared>,
    /// `None` after it was deallocated.
    handle: Option<u32>,
    rkey: u32,
    mw_type: MwType,
}

impl<P: Provider> Pd<P> {
    /// Allocates an unbound memory window.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device has no memory windows; [`Error::Invalid`] for an
    /// unknown type; [`Error::Kernel`].
    #[doc(alias = "ibv_alloc_mw")]
    pub fn alloc_mw(&self, mw_type: MwType) -> Result<Mw> {
        Mw::alloc(self.domain(), mw_type)
    }
}

impl Mw {
    pub(crate) fn alloc(domain: &Arc<PdShared>, mw_type: MwType) -> Result<Self> {
        const VERB: &str = "alloc_mw";
        if !matches!(mw_type, MwType::TYPE_1 | MwType::TYPE_2) {
            let reason = format!("invalid memory window type {mw_type:?}: use TYPE_1 or TYPE_2");
            return Err(Error::invalid(VERB, reason));
        }
        let made =
            command::alloc_mw(&domain.context.file, domain.handle, mw_type).map_err(
                |refused| match refused.errno {
                    Errno::OPNOTSUPP => Error::unsupported(VERB, Feature::MemoryWindows),
                    _ => Error::kernel(VERB, format!("{mw_type:?}"), refused),
                },
            )?;
        Ok(Self::new(domain, made.handle, made.rkey, mw_type))
    }

    pub(crate) fn new(domain: &Arc<PdShared>, handle: u32, rkey: u32, mw_type: MwType) -> Self {
        Self { domain: Arc::clone(domain), handle: Some(handle), rkey, mw_type }
    }

    /// Its kernel handle.
    #[must_use]
    pub fn handle(&self) -> u32 {
        // `None` only in values that are being dropped.
        self.handle.unwrap_or(u32::MAX)
    }

    /// Releases the handle: drop no longer deallocates the kernel object. The kernel deallocates it
    /// when the device file is closed.
    ///
    /// [`RawObject::of`](crate::raw::RawObject::of) can own the object again; see
    /// [its example](crate::raw::RawObject).
    #[must_use = "nothing else has the handle"]
    pub fn into_handle(mut self) -> u32 {
        self.handle.take().unwrap_or(u32::MAX)
    }

    /// Its remote key.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// Its type.
    #[must_use]
    pub fn mw_type(&self) -> MwType {
        self.mw_type
    }

    /// The remote address and key for `addr`, an address of the MR. If the window is bound with
    /// [`Access::ZERO_BASED`], `addr` is an offset in the window.
    #[must_use]
    pub fn remote(&self, addr: u64) -> Remote {
        Remote { addr, rkey: self.rkey }
    }

    /// A bind to a range of `region` for an [`Operation::BindMw`](crate::qp::Operation::BindMw). The
    /// window's new key is [`inc_rkey`] of its current one. After the operation has completed, the
    /// caller reports it with [`Mw::bound`].
    ///
    /// # Errors
    /// [`Error::Invalid`] in these cases:
    ///
    /// - The range is empty or exceeds the region.
    /// - The region was registered without [`Access::MW_BIND`], or without [`Access::LOCAL_WRITE`]
    ///   for a window with write or atomic access.
    /// - The region belongs to another protection domain, or a change of it has failed halfway.
    /// - A window can't grant the access rights. A window of type 1 can't be
    ///   [`Access::ZERO_BASED`] (IBTA o10-36.2.2).
    #[doc(alias = "ibv_bind_mw")]
    #[doc(alias = "ibv_wr_bind_mw")]
    pub fn bind<M>(&self, region: &Mr<M>, range: impl RangeBounds<usize>, access: Access) -> Result<MwBind> {
        let invalid = |reason: String| Err(Error::invalid(BIND_VERB, reason));
        if !Arc::ptr_eq(&self.domain, region.domain()) {
            return Err(Error::foreign(BIND_VERB, "the MR and the MW belong to different PDs"));
        }
        region.check_keys(BIND_VERB)?;
        if !region.access().contains(Access::MW_BIND) {
            return invalid("the MR was registered without MW_BIND".into());
        }
        let unknown = access.difference(MW_ACCESS);
        if !unknown.is_empty() {
            return invalid(format!("an MW cannot grant access {unknown:?}"));
        }
        if self.mw_type == MwType::TYPE_1 && access.contains(Access::ZERO_BASED) {
            return invalid("an MW of type 1 cannot be ZERO_BASED (IBTA o10-36.2.2)".into());
        }
        let writes = access.intersection(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        if !writes.is_empty() && !region.access().contains(Access::LOCAL_WRITE) {
            return invalid(format!("{writes:?} requires an MR registered with LOCAL_WRITE"));
        }
        let (start, length) = region.range(BIND_VERB, range)?;
        if length == 0 {
            let text = "an MW is bound to at least 1 byte; unbind a type 1 MW with `unbind`";
            return Err(Error::empty(BIND_VERB, text));
        }
        Ok(MwBind {
            mw_type: self.mw_type,
            mw_rkey: self.rkey,
            rkey: inc_rkey(self.rkey),
            mr_lkey: region.lkey(),
            addr: region.addr().wrapping_add(start as u64),
            length: length as u64,
            access,
        })
    }

    /// A bind to an empty range, which unbinds a window of type 1.
    #[must_use]
    pub fn unbind(&self) -> MwBind {
        MwBind {
            mw_type: self.mw_type,
            mw_rkey: self.rkey,
            rkey: inc_rkey(self.rkey),
            mr_lkey: 0,
            addr: 0,
            length: 0,
            access: Access::empty(),
        }
    }

    /// Records that `bind` has completed: the window has its new key.
    pub fn bound(&mut self, bind: &MwBind) {
        self.rkey = bind.rkey;
    }

    /// Deallocates it, bound or not. Its key is invalid afterwards. Drop does the same and ignores
    /// errors.
    ///
    /// # Errors
    /// The window and [`Error::Kernel`].
    #[doc(alias = "ibv_dealloc_mw")]
    pub fn dealloc(mut self) -> Result<(), Refused<Self>> {
        self.dealloc_inner().map_err(|error| Refused::new(error, self))
    }

    fn dealloc_inner(&mut self) -> Result<()> {
        let Some(handle) = self.handle else { return Ok(()) };
        // SAFETY: the window belongs to this value, which forgets the handle if this succeeds.
        unsafe { command::dealloc_mw(&self.domain.context.file, handle) }
            .map_err(|refused| Error::kernel("dealloc_mw", format!("rkey {:#x}", self.rkey), refused))?;
        self.handle = None;
        Ok(())
    }
}

impl Drop for Mw {
    fn drop(&mut self) {
        // If the kernel refuses, closing the device file frees the window.
        let _ = self.dealloc_inner();
    }
}

impl fmt::Debug for Mw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mw")
            .field("rkey", &format_args!("{:#x}", self.rkey))
            .field("mw_type", &self.mw_type)
            .finish_non_exhaustive()
    }
}
