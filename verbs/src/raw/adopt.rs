use std::os::fd::OwnedFd;

use bareverbs_provider::traits::Provider;

use crate::cq::CompChannel;
use crate::dm::Dm;
use crate::mr::raw::RawMr;
use crate::mw::{Mw, MwType};
use crate::xrc::Xrcd;
use crate::{AsyncEvents, Context, Mr, Pd, RawMemory, Result};

impl<P: Provider> Pd<P> {
    /// The protection domain with this handle, created by a raw call in this context. It is
    /// deallocated when the last object of it is dropped.
    ///
    /// ```
    /// use bareverbs::raw::uapi::write::structs::{AllocPdReq, AllocPdResp};
    /// use bareverbs::raw::uapi::write::{self, AllocPd};
    /// use bareverbs::{Context, Errno, Pd};
    ///
    /// # fn example(context: &Context) -> Result<Pd, Errno> {
    /// let raw = context.raw();
    /// // The driver's response; mlx5 returns the PD number.
    /// let (request, mut response, mut driver) = (AllocPdReq::zeroed(), AllocPdResp::zeroed(), [0; 8]);
    /// let mut call = write::invoke::<AllocPd>(raw.driver_id(), &request, &mut response);
    /// call.driver_output(&mut driver);
    /// // SAFETY: the command only creates an object.
    /// unsafe { raw.execute(&mut call) }?;
    /// // SAFETY: the handle is that of a new domain, and nothing else has it.
    /// Ok(unsafe { Pd::from_handle(context, response.pd_handle) })
    /// # }
    /// # example(&bareverbs_test_support::example::context()?)?.dealloc()?;
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    ///
    /// # Safety
    ///
    /// The handle names a protection domain of this context that the caller owns: nothing else
    /// deallocates it.
    #[must_use]
    pub unsafe fn from_handle(context: &Context<P>, handle: u32) -> Self {
        Self::new(context, handle)
    }
}

impl<P: Provider> Xrcd<P> {
    /// The XRC domain with this handle, opened by a raw call in this context. It is closed when the
    /// last object of it is dropped.
    ///
    /// ```
    /// use bareverbs::raw::uapi::write;
    /// use bareverbs::raw::uapi::write::OpenXrcd;
    /// use bareverbs::raw::uapi::write::structs::{OpenXrcdReq, OpenXrcdResp};
    /// use bareverbs::xrc::Xrcd;
    /// use bareverbs::{Context, Errno};
    ///
    /// # fn example(context: &Context) -> Result<Xrcd, Errno> {
    /// let raw = context.raw();
    /// // Of no file, so no other process joins it.
    /// let request = OpenXrcdReq { fd: u32::MAX, ..OpenXrcdReq::zeroed() };
    /// let mut response = OpenXrcdResp::zeroed();
    /// // SAFETY: the command only creates an object.
    /// unsafe { raw.invoke::<OpenXrcd>(&request, &mut response) }?;
    /// // SAFETY: the handle is that of a new domain, and nothing else has it.
    /// Ok(unsafe { Xrcd::from_handle(context, response.xrcd_handle) })
    /// # }
    /// # // A soft device has none.
    /// # let context = bareverbs_test_support::example::context()?;
    /// # assert!(example(&context).is_err());
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
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
    /// ```
    /// use bareverbs::mw::{Mw, MwType};
    /// use bareverbs::raw::uapi::write::AllocMw;
    /// use bareverbs::raw::uapi::write::structs::{AllocMwReq, AllocMwResp};
    /// use bareverbs::{Errno, Pd};
    ///
    /// # fn example(pd: &Pd) -> Result<Mw, Errno> {
    /// let mw_type = MwType::TYPE_2;
    /// let request = AllocMwReq { pd_handle: pd.handle(), mw_type, ..AllocMwReq::zeroed() };
    /// let mut response = AllocMwResp::zeroed();
    /// // SAFETY: the command only creates an object.
    /// unsafe { pd.context().raw().invoke::<AllocMw>(&request, &mut response) }?;
    /// // SAFETY: the handle is that of a new window, and nothing else has it.
    /// Ok(unsafe { Mw::from_handle(pd, response.mw_handle, response.rkey, mw_type) })
    /// # }
    /// # example(&bareverbs_test_support::example::pd()?)?.dealloc()?;
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
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
    /// ```no_run
    /// use bareverbs::dm::Dm;
    /// use bareverbs::raw::uapi::mlx5::attributes;
    /// use bareverbs::raw::uapi::uverbs::DmAlloc;
    /// use bareverbs::{Context, Error};
    ///
    /// # fn example(context: &Context) -> Result<Dm, Box<dyn std::error::Error>> {
    /// let raw = context.raw();
    /// let (length, alignment, mut start, mut page) = (256, 0, 0, 0);
    /// let mut call = raw.call::<DmAlloc>();
    /// call.make(DmAlloc::HANDLE)
    ///     .input(DmAlloc::LENGTH, &length)
    ///     .input(DmAlloc::ALIGNMENT, &alignment)
    ///     .output(attributes::DmAlloc::RESP_START_OFFSET, &mut start)
    ///     .output(attributes::DmAlloc::RESP_PAGE_INDEX, &mut page);
    /// // SAFETY: the call has no addresses, and a new object affects no other.
    /// unsafe { raw.execute(&mut call) }?;
    /// // SAFETY: the handle is that of new memory, and nothing else has it.
    /// Ok(unsafe { Dm::from_handle(context, call.made(DmAlloc::HANDLE)) }?)
    /// # }
    /// ```
    ///
    /// # Errors
    /// As for [`Context::import_dm`].
    ///
    /// # Safety
    ///
    /// The handle names device memory of this context that the caller owns: nothing else frees it.
    pub unsafe fn from_handle<P: Provider>(context: &Context<P>, handle: u32) -> Result<Self> {
        Self::adopt(context, handle)
    }
}

impl Mr<RawMemory> {
    /// The memory region with this handle, registered by a raw call: `len` bytes from `addr` on.
    ///
    /// ```
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
    /// # let pd = bareverbs_test_support::example::pd()?;
    /// # let mut bytes = vec![0; 4096];
    /// # // SAFETY: the memory is freed after the region.
    /// # drop(unsafe { example(&pd, bytes.as_mut_ptr(), 4096) }?);
    /// # Ok::<(), bareverbs::Report>(())
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
    /// ```
    /// use std::os::fd::{FromRawFd, OwnedFd};
    ///
    /// use bareverbs::Context;
    /// use bareverbs::cq::CompChannel;
    /// use bareverbs::raw::uapi::write::CreateCompChannel;
    /// use bareverbs::raw::uapi::write::structs::{CreateCompChannelReq, CreateCompChannelResp};
    ///
    /// # fn example(context: &Context) -> Result<CompChannel, Box<dyn std::error::Error>> {
    /// let (request, mut response) = (CreateCompChannelReq::zeroed(), CreateCompChannelResp::zeroed());
    /// // SAFETY: the command only creates a descriptor.
    /// unsafe { context.raw().invoke::<CreateCompChannel>(&request, &mut response) }?;
    /// // SAFETY: the descriptor is new, and nothing else has it.
    /// let fd = unsafe { OwnedFd::from_raw_fd(response.fd as i32) };
    /// Ok(CompChannel::from_fd(context, fd)?)
    /// # }
    /// # example(&bareverbs_test_support::example::context()?).expect("a channel");
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
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
    /// ```
    /// use std::os::fd::{FromRawFd, OwnedFd};
    ///
    /// use bareverbs::raw::uapi::uverbs::AsyncEventAlloc;
    /// use bareverbs::{AsyncEvents, Context};
    ///
    /// # fn example(context: &Context) -> Result<AsyncEvents, Box<dyn std::error::Error>> {
    /// let raw = context.raw();
    /// let mut call = raw.call::<AsyncEventAlloc>();
    /// call.make_descriptor(AsyncEventAlloc::FD_HANDLE);
    /// // SAFETY: the method only creates a descriptor.
    /// unsafe { raw.execute(&mut call) }?;
    /// // SAFETY: the descriptor is new, and nothing else has it.
    /// let fd = unsafe { OwnedFd::from_raw_fd(call.made_descriptor(AsyncEventAlloc::FD_HANDLE)) };
    /// Ok(AsyncEvents::from_fd(context, fd)?)
    /// # }
    /// # example(&bareverbs_test_support::example::context()?).expect("a descriptor");
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    ///
    /// # Errors
    /// As for [`CompChannel::from_fd`].
    pub fn from_fd<P: Provider>(context: &Context<P>, fd: OwnedFd) -> Result<Self> {
        Self::over_fd(context.file(), fd)
    }
}
