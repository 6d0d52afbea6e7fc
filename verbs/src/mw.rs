//! Memory windows.

use std::fmt;
use std::ops::RangeBounds;
use std::sync::Arc;

use bareverbs_provider::command;
use rustix::io::Errno;

use crate::pd::PdShared;
use crate::{Access, Error, Mr, MwBind, MwType, Remote, Result};

const BIND_VERB: &str = "bind_mw";

/// What a window can give a peer.
const MW_ACCESS: Access = Access::REMOTE_WRITE
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::ZERO_BASED)
    .union(Access::FLUSH_GLOBAL)
    .union(Access::FLUSH_PERSISTENT);

/// The key that follows `rkey`: the low byte counted up, the rest as it is.
///
/// ```
/// assert_eq!(bareverbs::inc_rkey(0x1234_5678), 0x1234_5679);
/// assert_eq!(bareverbs::inc_rkey(0x1234_56ff), 0x1234_5600);
/// ```
#[doc(alias = "ibv_inc_rkey")]
#[must_use]
pub fn inc_rkey(rkey: u32) -> u32 {
    rkey & !0xff | rkey.wrapping_add(1) & 0xff
}

/// A memory window: a key to part of a region that can be given and taken by work requests, without
/// the kernel.
///
/// A window of type 1 serves all queue pairs of its protection domain and is bound anew at will,
/// also to nothing. One of type 2 serves the queue pair that bound it, and is freed by
/// [`Operation::LocalInv`](crate::Operation::LocalInv) or by a peer's
/// [`Operation::SendInv`](crate::Operation::SendInv) before it can be bound again.
///
/// ```no_run
/// use bareverbs::{Access, Buffer, Device, MwType, Operation, Payload, SendFlags, SendRequest};
///
/// # fn bind(qp: &mut bareverbs::Qp<bareverbs::Rc>, cq: &mut bareverbs::Cq) -> bareverbs::Result<()> {
/// let pd = qp.pd().clone();
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
/// while cq.poll_one().is_none() {}
/// window.bound(&bind);
/// println!("tell the peer {:?}", window.remote(bind.addr));
/// # Ok(())
/// # }
/// ```
///
/// On Soft-RoCE a window opens all of the region beneath it: the kernel holds requests to the
/// region's bounds (`check_rkey` of `rxe_resp.c`). There too, drop a bound window of type 2 before
/// the queue pair that bound it: the kernel waits for it for 50 seconds otherwise (`__rxe_cleanup`
/// of `rxe_pool.c`).
///
/// Invalidate or deallocate a window before the region beneath it is dropped. Soft-RoCE is known to
/// refuse to deregister a region with a bound window: [`Mr::into_inner`] fails then, and a dropped
/// region leaks its memory. No other driver is known to refuse.
#[doc(alias = "ibv_mw")]
pub struct Mw {
    domain: Arc<PdShared>,
    /// None when it was given back.
    handle: Option<u32>,
    rkey: u32,
    mw_type: MwType,
}

impl Mw {
    pub(crate) fn alloc(domain: &Arc<PdShared>, mw_type: MwType) -> Result<Self> {
        const VERB: &str = "alloc_mw";
        if !matches!(mw_type, MwType::TYPE_1 | MwType::TYPE_2) {
            let reason = format!("{mw_type:?} is no type of memory window: there are TYPE_1 and TYPE_2");
            return Err(Error::invalid(VERB, reason));
        }
        let made =
            command::alloc_mw(&domain.context.file, domain.handle, mw_type).map_err(
                |refused| match refused.errno {
                    Errno::OPNOTSUPP => Error::Unsupported { verb: VERB, what: "memory windows are" },
                    _ => Error::kernel(VERB, format!("{mw_type:?}"), refused),
                },
            )?;
        Ok(Self { domain: Arc::clone(domain), handle: Some(made.handle), rkey: made.rkey, mw_type })
    }

    /// Its key.
    #[must_use]
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// Its type.
    #[must_use]
    pub fn mw_type(&self) -> MwType {
        self.mw_type
    }

    /// The byte at `addr` of the region beneath, as peers name it through the window.
    #[must_use]
    pub fn remote(&self, addr: u64) -> Remote {
        Remote { addr, rkey: self.rkey }
    }

    /// A bind to a range of `region`, under the key after its present one, for an
    /// [`Operation::BindMw`](crate::Operation::BindMw). When that has completed, say so with
    /// [`Mw::bound`].
    ///
    /// # Errors
    /// [`Error::Invalid`] where the range reaches beyond the region or is empty, the region was
    /// registered without [`Access::MW_BIND`], without [`Access::LOCAL_WRITE`] where peers shall
    /// write, or in another protection domain, and for rights that a window cannot give.
    #[doc(alias = "ibv_bind_mw")]
    #[doc(alias = "ibv_wr_bind_mw")]
    pub fn bind<M>(&self, region: &Mr<M>, range: impl RangeBounds<usize>, access: Access) -> Result<MwBind> {
        let invalid = |reason: String| Err(Error::invalid(BIND_VERB, reason));
        if !Arc::ptr_eq(&self.domain, region.domain()) {
            return invalid("the region belongs to another protection domain than the window".into());
        }
        if !region.access().contains(Access::MW_BIND) {
            return invalid("the region was registered without MW_BIND".into());
        }
        let unknown = access.difference(MW_ACCESS);
        if !unknown.is_empty() {
            return invalid(format!("a window can't grant access {unknown:?}"));
        }
        let writes = access.intersection(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        if !writes.is_empty() && !region.access().contains(Access::LOCAL_WRITE) {
            return invalid(format!("{writes:?} needs a region that was registered with LOCAL_WRITE"));
        }
        let (start, length) = region.range(BIND_VERB, range)?;
        if length == 0 {
            return invalid(
                "a window is bound to at least 1 byte; one of type 1 is unbound by `unbind`".into(),
            );
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

    /// A bind of a window of type 1 to nothing.
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

    /// Takes note that `bind` was carried out: the window has its new key.
    pub fn bound(&mut self, bind: &MwBind) {
        self.rkey = bind.rkey;
    }

    /// Gives it back, bound or not; its key is void from here on. Dropping it does the same.
    ///
    /// # Errors
    /// The kernel refuses.
    #[doc(alias = "ibv_dealloc_mw")]
    pub fn dealloc(mut self) -> Result<()> {
        self.dealloc_inner()
    }

    fn dealloc_inner(&mut self) -> Result<()> {
        let Some(handle) = self.handle.take() else { return Ok(()) };
        // SAFETY: the window is this value's, which forgets the handle.
        unsafe { command::dealloc_mw(&self.domain.context.file, handle) }
            .map_err(|refused| Error::kernel("dealloc_mw", format!("rkey {:#x}", self.rkey), refused))
    }
}

impl Drop for Mw {
    fn drop(&mut self) {
        // Where the kernel does not let go, the window goes with the device file.
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
