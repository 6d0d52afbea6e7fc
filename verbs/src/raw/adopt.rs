use std::os::fd::OwnedFd;

use bareverbs_provider::traits::Provider;

use crate::{Access, AsyncEvents, CompChannel, Context, Dm, Mr, Mw, MwType, Pd, RawMemory, Result, Xrcd};

/// A memory region that a raw call registered, for [`Mr::from_handle`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RawMr {
    /// Its handle.
    pub handle: u32,
    /// L_Key.
    pub lkey: u32,
    /// R_Key.
    pub rkey: u32,
    /// The address of its first byte in operations (IOVA).
    pub iova: u64,
    /// Its access rights.
    pub access: Access,
}

impl<P: Provider> Pd<P> {
    /// The protection domain with this handle, created by a raw call in this context. It is
    /// deallocated when the last object of it is dropped.
    ///
    /// # Safety
    ///
    /// The handle names a protection domain of this context that the caller owns: nothing else
    /// deallocates it.
    #[must_use]
    pub unsafe fn from_handle(context: &Context<P>, handle: u32) -> Self {
        Self::new(context, handle, false)
    }
}

impl<P: Provider> Xrcd<P> {
    /// The XRC domain with this handle, opened by a raw call in this context. It is closed when the
    /// last object of it is dropped.
    ///
    /// # Safety
    ///
    /// The handle names an XRC domain of this context that the caller owns: nothing else closes it.
    #[must_use]
    pub unsafe fn from_handle(context: &Context<P>, handle: u32) -> Self {
        Self::new(context, handle)
    }
}

impl Mw {
    /// The memory window of this domain with this handle, allocated by a raw call.
    ///
    /// # Safety
    ///
    /// The handle names a memory window of the domain's context that the caller owns: nothing else
    /// deallocates it.
    #[must_use]
    pub unsafe fn from_handle<P: Provider>(pd: &Pd<P>, handle: u32, rkey: u32, mw_type: MwType) -> Self {
        Self::new(pd.domain(), handle, rkey, mw_type)
    }
}

impl Dm {
    /// The device memory with this handle, allocated by a raw call in this context. It is freed
    /// when its last region is dropped.
    ///
    /// # Errors
    /// As for [`Context::import_dm`].
    ///
    /// # Safety
    ///
    /// The handle names device memory of this context that the caller owns: nothing else frees it.
    pub unsafe fn from_handle<P: Provider>(context: &Context<P>, handle: u32) -> Result<Self> {
        Self::import(context, handle, false)
    }
}

impl Mr<RawMemory> {
    /// The memory region with this handle, registered by a raw call: `len` bytes from `addr` on.
    ///
    /// ```no_run
    /// use bareverbs::raw::RawMr;
    /// use bareverbs::raw::uapi::uverbs::RegMr;
    /// use bareverbs::{Access, Mr, Pd, RawMemory};
    ///
    /// # unsafe fn example(pd: &Pd, addr: *mut u8, len: u64) -> Result<Mr<RawMemory>, bareverbs::Errno> {
    /// let raw = pd.context().raw();
    /// let (iova, access) = (addr.expose_provenance() as u64, Access::LOCAL_WRITE);
    /// let (mut lkey, mut rkey) = (0, 0);
    /// let mut call = raw.call::<RegMr>();
    /// call.make(RegMr::HANDLE)
    ///     .handle(RegMr::PD_HANDLE, pd.handle())
    ///     .input(RegMr::IOVA, &iova)
    ///     .input(RegMr::ADDR, &iova)
    ///     .input(RegMr::LENGTH, &len)
    ///     .flags(RegMr::ACCESS_FLAGS, access)
    ///     .output(RegMr::RESP_LKEY, &mut lkey)
    ///     .output(RegMr::RESP_RKEY, &mut rkey);
    /// // SAFETY: the range stays mapped until the region is dropped.
    /// unsafe { raw.execute(&mut call) }?;
    /// let handle = call.made(RegMr::HANDLE);
    /// let object = RawMr { handle, lkey, rkey, iova, access };
    /// // SAFETY: the region is that of the call above.
    /// Ok(unsafe { Mr::from_handle(pd, &object, addr, len as usize) })
    /// # }
    /// ```
    ///
    /// # Safety
    ///
    /// The handle names a memory region of this domain that the caller owns: nothing else
    /// deregisters it. Keys, IOVA and access rights are the region's, and the region never had
    /// other rights. The contract of [`Pd::register_raw`] holds for the range.
    #[must_use]
    pub unsafe fn from_handle<P: Provider>(pd: &Pd<P>, object: &RawMr, addr: *mut u8, len: usize) -> Self {
        // SAFETY: the caller's contract is the same.
        unsafe { Self::adopt(pd.domain(), object, addr, len) }
    }
}

impl CompChannel {
    /// The channel of this descriptor, which a raw call of this context created.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System) if the descriptor can't be made non-blocking. Reads
    /// of another kind of file fail with `EPROTO`.
    pub fn from_fd<P: Provider>(context: &Context<P>, fd: OwnedFd) -> Result<Self> {
        Self::over_fd(context.file(), fd)
    }
}

impl AsyncEvents {
    /// The stream of asynchronous events of this descriptor, which a raw call of this context
    /// created.
    ///
    /// # Errors
    /// As for [`CompChannel::from_fd`].
    pub fn from_fd<P: Provider>(context: &Context<P>, fd: OwnedFd) -> Result<Self> {
        Self::over_fd(context.file(), fd)
    }
}
