//! The raw level: any method of the kernel's ABI on an open device.
//!
//! The typed API above it covers the verbs. This level is for methods without a verb, for tests of
//! the ABI and for research. It works with [`uapi`], the declarations of the ABI.
//!
//! | task | item |
//! |---|---|
//! | a method that only queries, safely | [`RawContext::query`] |
//! | any method, typed | [`RawContext::execute`] |
//! | a write command (`INVOKE_WRITE`) | [`RawContext::invoke`] |
//! | any ids, attributes and lengths, also invalid ones | [`UntypedCall`] |
//! | names and values of a call | [`display_call`] |
//! | an object that a raw call created | [`RawObject`], or `from_handle` of [`Pd`](crate::Pd), [`Mr`](crate::Mr), [`Mw`](crate::mw::Mw), [`Dm`](crate::dm::Dm), [`Xrcd`](crate::xrc::Xrcd) |
//! | the handle of an object | `handle` of each type; `into_handle` releases it |
//! | addresses of rings, doorbell records and registers | [`Qp::layout`](crate::qp::Qp::layout), [`Cq::layout`](crate::cq::Cq::layout), [`Srq::layout`](crate::srq::Srq::layout), [`Wq::layout`](crate::rss::Wq::layout) |
//!
//! QPs, CQs, SRQs and WQs of raw calls have no `from_handle`: a provider keeps the state of their
//! rings in user space, where the kernel can't look it up, and so does an [`Ah`](crate::ah::Ah) with
//! its address vector. A [`RawObject`] owns them.
//!
//! The example `raw_level` of this crate does each of them.
//!
//! The PD number of an mlx5 protection domain, by a method without a verb:
//!
//! ```no_run
//! use bareverbs::raw::uapi::mlx5::PdQuery;
//!
//! # fn example(pd: &bareverbs::Pd) -> Result<(), Box<dyn std::error::Error>> {
//! let raw = pd.context().raw();
//! let mut number = 0;
//! raw.query::<PdQuery>()
//!     .handle(PdQuery::HANDLE, pd.handle())
//!     .output(PdQuery::RESP_PDN, &mut number)
//!     .execute()?;
//! println!("PD number {number}");
//! # Ok(())
//! # }
//! ```
//!
//! A method that creates an object, and the object's owner:
//!
//! ```
//! use bareverbs::raw::RawObject;
//! use bareverbs::raw::uapi::uverbs::{CountersCreate, object};
//!
//! # fn example(context: &bareverbs::Context) -> Result<(), bareverbs::Errno> {
//! let raw = context.raw();
//! let mut call = raw.call::<CountersCreate>();
//! call.make(CountersCreate::HANDLE);
//! // SAFETY: the call has no addresses, and a new object affects no other.
//! unsafe { raw.execute(&mut call) }?;
//! // SAFETY: the call created the object, and nothing else has its handle.
//! let counters = unsafe { RawObject::of::<object::Counters>(&raw, call.made(CountersCreate::HANDLE)) };
//! println!("counters {}", counters.handle());
//! # Ok(())
//! # }
//! # // A soft device has none.
//! # let context = bareverbs_test_support::example::context()?;
//! # assert!(example(&context).is_err());
//! # Ok::<(), bareverbs::Report>(())
//! ```

mod adopt;
mod call;
mod display;
mod handles;
mod object;
mod query;

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use bareverbs_provider::device::DeviceFile;
use bareverbs_provider::traits::Provider;
use rustix::io::Errno;
use uapi::method::{Call, Method, MethodInfo};
use uapi::registry::{self, Driver};
use uapi::rules::Rules;
use uapi::write::{self, WriteCommand};

pub use bareverbs_provider::layout::{DoorbellLayout, QueueLayout, RawPacketNumbers, RegisterLayout};
pub use bareverbs_provider::mapping::{Mapping, Protection};
pub use bareverbs_uapi as uapi;

pub use call::UntypedCall;
pub use display::{DisplayCall, display_call};
pub use object::{RawDestroyError, RawObject};
pub use query::{Query, QueryError};

use crate::context::{Context, ContextInner};
pub use crate::mr::raw::RawMr;
pub use crate::qp::core::QpLayout;

/// The raw level of a context. It keeps the device open.
///
/// The kernel's errors are returned as [`Errno`], unchanged. A call that a signal interrupts is
/// repeated, so `EINTR` is not returned. In a forked child every call fails with `ESTALE`.
#[derive(Clone)]
pub struct RawContext {
    inner: Arc<ContextInner>,
}

impl<P: Provider> Context<P> {
    /// The raw level of the context: any method of the kernel's ABI. See [`raw`](crate::raw).
    #[must_use]
    pub fn raw(&self) -> RawContext {
        RawContext { inner: Arc::clone(self.inner()) }
    }
}

impl RawContext {
    fn file(&self) -> &DeviceFile {
        &self.inner.file
    }

    /// The id of the kernel driver, which the header of each call contains.
    #[must_use]
    pub fn driver_id(&self) -> u32 {
        self.file().driver_id()
    }

    /// The additions of the driver to the core's classes, methods and attributes.
    #[must_use]
    pub fn driver(&self) -> Driver {
        registry::driver(self.driver_id())
    }

    /// The rules of the methods of the core and of the driver.
    fn rules(&self) -> Rules {
        Rules::of(self.driver_id())
    }

    /// All methods that [`uapi`] declares for the core and for this driver.
    ///
    /// ```
    /// # let context = bareverbs_test_support::example::context()?;
    /// for method in context.raw().methods().filter(|method| method.is_query()) {
    ///     println!("{} ({}) is a query", method.rust, method.c);
    /// }
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    pub fn methods(&self) -> impl Iterator<Item = &'static MethodInfo> + use<> {
        self.driver().methods()
    }

    /// A call of method `M` without attributes, for [`RawContext::execute`].
    ///
    /// ```
    /// use bareverbs::raw::uapi::uverbs::MrDestroy;
    ///
    /// # let context = bareverbs_test_support::example::context()?;
    /// let mut call = context.raw().call::<MrDestroy>();
    /// call.destroy(MrDestroy::HANDLE, 7);
    /// // "Call(MrDestroy on RXE {HANDLE: destroy Mr 7})"
    /// println!("{call:?}");
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    #[must_use]
    pub fn call<'a, M: Method>(&self) -> Call<'a, M> {
        Call::new(self.driver_id())
    }

    /// A call of a method that only queries. It needs no `unsafe`.
    ///
    /// ```
    /// use bareverbs::raw::uapi::uverbs::QueryMr;
    ///
    /// # let pd = bareverbs_test_support::example::pd()?;
    /// # let context = pd.context();
    /// # let mr = pd.register(vec![0; 4096], bareverbs::Access::LOCAL_WRITE)?;
    /// let (mut lkey, mut rkey, mut length, mut iova) = (0, 0, 0, 0);
    /// context
    ///     .raw()
    ///     .query::<QueryMr>()
    ///     .handle(QueryMr::HANDLE, mr.handle())
    ///     .output(QueryMr::RESP_LKEY, &mut lkey)
    ///     .output(QueryMr::RESP_RKEY, &mut rkey)
    ///     .output(QueryMr::RESP_LENGTH, &mut length)
    ///     .output(QueryMr::RESP_IOVA, &mut iova)
    ///     .execute()?;
    /// assert_eq!((lkey, rkey), (mr.lkey(), mr.rkey()));
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    pub fn query<'a, M: Method>(&self) -> Query<'a, M> {
        Query::new(self.clone())
    }

    /// Executes a call. Outputs are written to the values that the call borrows; [`Call::wrote`]
    /// says which, [`Call::made`] returns the handle of a new object.
    ///
    /// ```
    /// use bareverbs::raw::uapi::uverbs::PdDestroy;
    ///
    /// # fn example(context: &bareverbs::Context, pd: bareverbs::Pd) -> Result<(), bareverbs::Errno> {
    /// let raw = context.raw();
    /// let handle = pd.into_handle();
    /// let mut call = raw.call::<PdDestroy>();
    /// call.destroy(PdDestroy::HANDLE, handle);
    /// // SAFETY: the domain was released, and nothing else has its handle.
    /// unsafe { raw.execute(&mut call) }
    /// # }
    /// # let pd = bareverbs_test_support::example::pd()?;
    /// # let context = pd.context().clone();
    /// # example(&context, pd)?;
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    ///
    /// # Errors
    /// The kernel's error.
    ///
    /// # Safety
    ///
    /// 1. The bytes of the call are those that its methods wrote: nothing changed them by
    ///    [`Call::as_mut_bytes`]. Each attribute has the type that the kernel's method has.
    /// 2. Objects: the call destroys or modifies only objects that the caller owns or whose owner
    ///    permits it. A safe handle relies on its object: a call must not destroy it, change the
    ///    state of its QP, resize its queue or change the rights of its MR.
    /// 3. Memory: addresses in numbers, structs and driver payloads meet the method's requirements.
    ///    The kernel and the device access the memory of a created object as long as it exists.
    /// 4. Descriptors in the call are open.
    pub unsafe fn execute<M: Method>(&self, call: &mut Call<'_, M>) -> Result<(), Errno> {
        // SAFETY: by the caller, the bytes are a header of the correct length, and the memory that
        // attributes point to is borrowed or meets the method's requirements.
        unsafe { self.file().execute_raw(call.as_mut_bytes()) }
    }

    /// Executes a write command by the ioctl method `INVOKE_WRITE`. A command with driver payloads,
    /// or with data after its struct, is built by [`uapi::write::invoke_bytes`] and executed by
    /// [`RawContext::execute`].
    ///
    /// ```
    /// use bareverbs::raw::uapi::write::{QuerySrq, structs::{QuerySrqReq, QuerySrqResp}};
    ///
    /// # let pd = bareverbs_test_support::example::pd()?;
    /// # let srq = pd.create_srq(&bareverbs::srq::SrqInit::new(32))?;
    /// let request = QuerySrqReq { srq_handle: srq.handle(), ..QuerySrqReq::zeroed() };
    /// let mut response = QuerySrqResp::zeroed();
    /// // SAFETY: the command only reads the SRQ's attributes.
    /// unsafe { srq.pd().context().raw().invoke::<QuerySrq>(&request, &mut response) }?;
    /// println!("{} receives", response.max_wr);
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    ///
    /// # Errors
    /// The kernel's error.
    ///
    /// # Safety
    ///
    /// As for [`RawContext::execute`]. Any command may modify objects: the table of commands does
    /// not say which do.
    pub unsafe fn invoke<C: WriteCommand>(
        &self,
        request: &C::Request,
        response: &mut C::Response,
    ) -> Result<(), Errno> {
        let mut call = write::invoke::<C>(self.driver_id(), request, response);
        // SAFETY: the caller upholds the contract; the call was just built.
        unsafe { self.execute(&mut call) }
    }

    /// Executes an untyped call.
    ///
    /// The kernel's answer to a header with a wrong length:
    ///
    /// ```
    /// use bareverbs::Errno;
    /// use bareverbs::raw::UntypedCall;
    /// use bareverbs::raw::uapi::method::Method;
    /// use bareverbs::raw::uapi::uverbs::QueryMr;
    ///
    /// # let context = bareverbs_test_support::example::context()?;
    /// let raw = context.raw();
    /// let mut call = UntypedCall::minimal(raw.driver_id(), &QueryMr::INFO, 0);
    /// call.header_mut().length += 1;
    /// // SAFETY: the method writes only to its outputs, which are buffers of the call.
    /// assert_eq!(unsafe { raw.execute_untyped(&mut call) }, Err(Errno::INVAL));
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    ///
    /// # Errors
    /// The kernel's error.
    ///
    /// # Safety
    ///
    /// As 2. to 4. of [`RawContext::execute`]. Attributes added by [`UntypedCall::push`] contain
    /// any numbers, which the kernel may use as addresses: for each, the memory there permits the
    /// access, or no access occurs because the address is not mapped. Buffers of
    /// [`UntypedCall::input`] and [`UntypedCall::output`] are the call's own and need no care, even
    /// with wrong lengths.
    pub unsafe fn execute_untyped(&self, call: &mut UntypedCall) -> Result<(), Errno> {
        let mut bytes = call.encode();
        // SAFETY: `encode` returns at least as many bytes as the header says, and attributes with
        // buffers point to as many bytes as they say. The caller guarantees the rest.
        let result = unsafe { self.file().execute_raw(&mut bytes) };
        call.read_back(&bytes);
        result
    }

    /// Maps part of the device file, such as a UAR or device memory, at an offset that a method
    /// returned.
    ///
    /// ```no_run
    /// use bareverbs::raw::uapi::mlx5::{UarObjAlloc, resources, verbs::UarType};
    /// use bareverbs::raw::{Protection, RawObject};
    ///
    /// # fn example(context: &bareverbs::Context) -> Result<(), bareverbs::Errno> {
    /// let raw = context.raw();
    /// let (mut offset, mut length, mut page) = (0, 0, 0);
    /// let mut call = raw.call::<UarObjAlloc>();
    /// call.make(UarObjAlloc::HANDLE)
    ///     .constant(UarObjAlloc::TYPE, UarType::NC)
    ///     .output(UarObjAlloc::MMAP_OFFSET, &mut offset)
    ///     .output(UarObjAlloc::MMAP_LENGTH, &mut length)
    ///     .output(UarObjAlloc::PAGE_ID, &mut page);
    /// // SAFETY: the call has no addresses, and a new object affects no other.
    /// unsafe { raw.execute(&mut call) }?;
    /// // SAFETY: the call created the object, and nothing else has its handle.
    /// let uar = unsafe { RawObject::of::<resources::Uar>(&raw, call.made(UarObjAlloc::HANDLE)) };
    /// let registers = raw.map(offset, length as usize, Protection::Write)?;
    /// println!("UAR page {page} at {:?}", registers.as_ptr());
    /// # drop(uar);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The error of `mmap`.
    pub fn map(&self, offset: u64, len: usize, protection: Protection) -> Result<Mapping, Errno> {
        self.file().map(offset, len, protection).map_err(|refused| refused.errno)
    }
}

impl AsFd for RawContext {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file().as_fd()
    }
}

impl fmt::Debug for RawContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawContext").field("device", &self.inner.device.name()).finish_non_exhaustive()
    }
}
