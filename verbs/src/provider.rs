//! The provider of a context, as an enum of the built-in providers.
//!
//! Each variant exists with its cargo feature. Without any, the enums have an uninhabited variant
//! only: no device can be opened as [`AnyProvider`].
#![allow(unreachable_patterns, unused_variables, reason = "without some of the providers")]

use std::sync::Arc;

use bareverbs_provider::caps::Capabilities;
use bareverbs_provider::clock::ClockInfo;
use bareverbs_provider::command::{MrPayload, QpHandle};
use bareverbs_provider::device::{DeviceFile, IoctlError};
use bareverbs_provider::dm::DeviceMemory;
use bareverbs_provider::error::{CreateError, DoorbellError, Feature};
use bareverbs_provider::layout::QueueLayout;
use bareverbs_provider::pci_atomic::PciAtomicCaps;
use bareverbs_provider::request::{
    AhRequest, Burst, CountedFlowRequest, CqRequest, DmRequest, Ece, QpRequest, QueueMemory, RssQpRequest,
    SrqChange, SrqRequest, WqChange, WqRequest, XrcTargetRequest,
};
use bareverbs_provider::thread_domain::ThreadDomain;
use bareverbs_provider::traits::{
    Completion, CompletionQueue, CreatedAh, CreatedCq, CreatedQp, CreatedSrq, CreatedWq, Provider, QpControl,
    RecvQueue, SendQueue, Visitor,
};
use bareverbs_provider::work::{
    Datagram, Frame, Imm, PushError, RecvRequest, SendRequest, WcFlags, WcOpcode, WcStatus, WorkCompletion,
    XrcOperation,
};
use bareverbs_uapi::uverbs::types::DriverId;
use bareverbs_uapi::write::structs::{ExModifyQp, ModifyQpReq};
use rustix::io::Errno;

/// Implements each listed method by a call of the same method on the variant's value.
macro_rules! forward {
    ([$($variant:ident $feature:tt)*]) => {};
    ([$($variant:ident $feature:tt)*]
        $(#[$meta:meta])* fn $name:ident(&self $(, $arg:ident: $ty:ty)* $(,)?) $(-> $ret:ty)?; $($rest:tt)*) => {
        $(#[$meta])*
        fn $name(&self $(, $arg: $ty)*) $(-> $ret)? {
            forward!(@safe self, $name($($arg),*), $($variant $feature)*)
        }
        forward!([$($variant $feature)*] $($rest)*);
    };
    ([$($variant:ident $feature:tt)*]
        $(#[$meta:meta])* fn $name:ident(&mut self $(, $arg:ident: $ty:ty)* $(,)?) $(-> $ret:ty)?; $($rest:tt)*) => {
        $(#[$meta])*
        fn $name(&mut self $(, $arg: $ty)*) $(-> $ret)? {
            forward!(@safe self, $name($($arg),*), $($variant $feature)*)
        }
        forward!([$($variant $feature)*] $($rest)*);
    };
    ([$($variant:ident $feature:tt)*]
        $(#[$meta:meta])* unsafe fn $name:ident(&self $(, $arg:ident: $ty:ty)* $(,)?) $(-> $ret:ty)?;
        $($rest:tt)*) => {
        $(#[$meta])*
        unsafe fn $name(&self $(, $arg: $ty)*) $(-> $ret)? {
            forward!(@unsafe self, $name($($arg),*), $($variant $feature)*)
        }
        forward!([$($variant $feature)*] $($rest)*);
    };
    ([$($variant:ident $feature:tt)*]
        $(#[$meta:meta])* unsafe fn $name:ident(&mut self $(, $arg:ident: $ty:ty)* $(,)?) $(-> $ret:ty)?;
        $($rest:tt)*) => {
        $(#[$meta])*
        unsafe fn $name(&mut self $(, $arg: $ty)*) $(-> $ret)? {
            forward!(@unsafe self, $name($($arg),*), $($variant $feature)*)
        }
        forward!([$($variant $feature)*] $($rest)*);
    };
    (@safe $this:ident, $name:ident $args:tt, $($variant:ident $feature:tt)*) => {
        match $this {
            $(#[cfg(feature = $feature)] Self::$variant(inner) => inner.$name $args,)*
            #[cfg(not(any($(feature = $feature),*)))]
            Self::None(never, ..) => match *never {},
        }
    };
    (@unsafe $this:ident, $name:ident $args:tt, $($variant:ident $feature:tt)*) => {
        match $this {
            $(#[cfg(feature = $feature)] Self::$variant(inner) => {
                // SAFETY: the caller upholds the method's contract, which is also the variant's.
                unsafe { inner.$name $args }
            })*
            #[cfg(not(any($(feature = $feature),*)))]
            Self::None(never, ..) => match *never {},
        }
    };
}

/// A provider that [`AnyProvider`] may be, for code that knows which one a queue is of. A function that is
/// compiled for one provider has no branch over providers, and needs the registers of one.
///
/// [`AnyProvider`] is one itself: its queues are of any provider.
///
/// ```
/// use bareverbs::AnyProvider;
/// use bareverbs::qp::{SendHalf, SendRequest};
/// use bareverbs::untyped::{AnyOperation, AnyTransport, BuiltIn};
///
/// /// Posts by the fast path of a provider; `false`: the request was not posted.
/// ///
/// /// # Safety
/// ///
/// /// As for [`SendHalf::post_send`] and [`SendHalf::of_provider`].
/// unsafe fn post<P: BuiltIn>(
///     half: SendHalf<'_, AnyTransport>,
///     request: &SendRequest<'_, AnyOperation<'_, P>>,
/// ) -> bool {
///     // SAFETY: the caller's contract is the same.
///     unsafe { half.of_provider::<P>().try_post_send(request) }.is_some()
/// }
/// # let _ = post::<AnyProvider>;
/// ```
pub trait BuiltIn: Provider {
    /// The CQ of this provider; `None`: it is of another one.
    fn cq(queue: &mut AnyCq) -> Option<&mut Self::Cq>;
    /// The send queue of this provider; `None`: it is of another one.
    fn sq(queue: &mut AnySq) -> Option<&mut Self::Sq>;
    /// The receive queue of this provider; `None`: it is of another one.
    fn rq(queue: &mut AnyRq) -> Option<&mut Self::Rq>;
    /// The SRQ of this provider; `None`: it is of another one.
    fn srq(queue: &mut AnySrq) -> Option<&mut Self::Srq>;
}

impl BuiltIn for AnyProvider {
    fn cq(queue: &mut AnyCq) -> Option<&mut AnyCq> {
        Some(queue)
    }

    fn sq(queue: &mut AnySq) -> Option<&mut AnySq> {
        Some(queue)
    }

    fn rq(queue: &mut AnyRq) -> Option<&mut AnyRq> {
        Some(queue)
    }

    fn srq(queue: &mut AnySrq) -> Option<&mut AnySrq> {
        Some(queue)
    }
}

/// Declares the enums over the providers and forwards every call to the variant.
macro_rules! providers {
    ($($(#[$meta:meta])* $feature:literal => $variant:ident($provider:ty)),* $(,)?) => {
        /// The built-in provider that drives the device.
        ///
        /// The data path of an enum has a predictable branch; a trait object would have an indirect
        /// call. [`Device::open_as`](crate::Device::open_as) opens a device without the branch.
        ///
        /// It opens the devices of the providers that cargo features select, one for each variant.
        #[allow(clippy::large_enum_variant, reason = "a process has few providers")]
        #[non_exhaustive]
        pub enum AnyProvider {
            $($(#[$meta])* #[cfg(feature = $feature)] $variant($provider),)*
            #[cfg(not(any($(feature = $feature),*)))]
            #[doc(hidden)]
            None(std::convert::Infallible),
        }

        /// A CQ of the built-in providers.
        #[non_exhaustive]
        pub enum AnyCq {
            $($(#[$meta])* #[cfg(feature = $feature)] $variant(<$provider as Provider>::Cq),)*
            #[cfg(not(any($(feature = $feature),*)))]
            #[doc(hidden)]
            None(std::convert::Infallible),
        }

        /// A send queue of the built-in providers.
        #[allow(clippy::large_enum_variant, reason = "the data path needs no further pointer")]
        #[non_exhaustive]
        pub enum AnySq {
            $($(#[$meta])* #[cfg(feature = $feature)] $variant(<$provider as Provider>::Sq),)*
            #[cfg(not(any($(feature = $feature),*)))]
            #[doc(hidden)]
            None(std::convert::Infallible),
        }

        /// A receive queue of the built-in providers.
        #[non_exhaustive]
        pub enum AnyRq {
            $($(#[$meta])* #[cfg(feature = $feature)] $variant(<$provider as Provider>::Rq),)*
            #[cfg(not(any($(feature = $feature),*)))]
            #[doc(hidden)]
            None(std::convert::Infallible),
        }

        /// An SRQ of the built-in providers.
        #[non_exhaustive]
        pub enum AnySrq {
            $($(#[$meta])* #[cfg(feature = $feature)] $variant(<$provider as Provider>::Srq),)*
            #[cfg(not(any($(feature = $feature),*)))]
            #[doc(hidden)]
            None(std::convert::Infallible),
        }

        /// The cargo features of the built-in providers.
        pub(crate) const FEATURES: &[&str] = &[$($feature),*];

        /// Causes of a status that only devices of a driver have: [`Provider::explain`].
        pub(crate) fn explain(driver: DriverId, status: WcStatus) -> Option<&'static str> {
            $(#[cfg(feature = $feature)] if <$provider>::drives(driver.0) {
                return <$provider>::explain(status);
            })*
            None
        }

        /// The part of an address handle that the send queues of the built-in providers need.
        #[non_exhaustive]
        pub enum AnyAh {
            $($(#[$meta])* #[cfg(feature = $feature)] $variant(<$provider as Provider>::Ah),)*
            #[cfg(not(any($(feature = $feature),*)))]
            #[doc(hidden)]
            None(std::convert::Infallible),
        }

        /// A completion of the built-in providers.
        #[non_exhaustive]
        pub enum AnyCompletion<'a> {
            $(
                $(#[$meta])*
                #[cfg(feature = $feature)]
                $variant(<<$provider as Provider>::Cq as CompletionQueue>::Completion<'a>),
            )*
            #[cfg(not(any($(feature = $feature),*)))]
            #[doc(hidden)]
            None(std::convert::Infallible, std::marker::PhantomData<&'a ()>),
        }

        // SAFETY: each method forwards to the provider of the variant, which upholds the
        // obligations. Handles, queues and errors are returned unchanged. If provider and queue are
        // of different variants, the method changes nothing and returns `CreateError::Unsupported`.
        unsafe impl Provider for AnyProvider {
            type Cq = AnyCq;
            type Sq = AnySq;
            type Rq = AnyRq;
            type Srq = AnySrq;
            type Ah = AnyAh;

            fn drives(driver_id: u32) -> bool {
                $(#[cfg(feature = $feature)] if <$provider>::drives(driver_id) {
                    return true;
                })*
                false
            }

            fn open(file: Arc<DeviceFile>) -> Result<Self, IoctlError> {
                $(#[cfg(feature = $feature)] if <$provider>::drives(file.driver_id()) {
                    return <$provider>::open(file).map(Self::$variant);
                })*
                Err(IoctlError::new("open", Errno::OPNOTSUPP))
            }

            fn import(file: Arc<DeviceFile>) -> Result<Self, CreateError> {
                $(#[cfg(feature = $feature)] if <$provider>::drives(file.driver_id()) {
                    return <$provider>::import(file).map(Self::$variant);
                })*
                Err(IoctlError::new("import", Errno::OPNOTSUPP).into())
            }

            forward! { [$($variant $feature)*]
                fn capabilities(&self) -> Capabilities;
                fn mr_payload(&self) -> Option<MrPayload>;
                fn import_pd(&self, handle: u32) -> Result<(), CreateError>;
                fn import_dm(&self, handle: u32) -> Result<DeviceMemory, CreateError>;
                fn read_clock(&self) -> Result<u64, CreateError>;
                fn clock_info(&self) -> Result<ClockInfo, CreateError>;
                fn alloc_dm(&self, request: &DmRequest) -> Result<(u32, DeviceMemory), CreateError>;
                fn pci_atomic_caps(&self) -> Result<PciAtomicCaps, IoctlError>;
                fn create_counted_flow(&self, request: &CountedFlowRequest<'_>) -> Result<u32, CreateError>;
                fn alloc_td(&self) -> Result<ThreadDomain, CreateError>;
                fn alloc_pd(&self) -> Result<u32, IoctlError>;
                fn create_xrc_target(&self, request: &XrcTargetRequest) -> Result<QpHandle, CreateError>;
                unsafe fn modify_wq(&self, wq: u32, change: WqChange) -> Result<(), CreateError>;
                fn create_rss_qp(&self, request: &RssQpRequest) -> Result<QpHandle, CreateError>;
            }

            unsafe fn create_cq(&self, request: &CqRequest<'_>) -> Result<CreatedCq<Self>, CreateError> {
                match self {
                    $(#[cfg(feature = $feature)] Self::$variant(provider) => {
                        // SAFETY: the caller upholds the same contract.
                        let created = unsafe { provider.create_cq(request) }?;
                        let CreatedCq { handle, entries, queue } = created;
                        Ok(CreatedCq { handle, entries, queue: AnyCq::$variant(queue) })
                    })*
                    #[cfg(not(any($(feature = $feature),*)))]
                    Self::None(never) => match *never {},
                }
            }

            unsafe fn resize_cq(
                &self,
                cq: u32,
                queue: &mut AnyCq,
                entries: u32,
                memory: QueueMemory<'_>,
            ) -> Result<u32, CreateError> {
                match (self, queue) {
                    $(#[cfg(feature = $feature)] (Self::$variant(provider), AnyCq::$variant(queue)) => {
                        // SAFETY: the caller upholds the same contract.
                        unsafe { provider.resize_cq(cq, queue, entries, memory) }
                    })*
                    _ => Err(CreateError::Unsupported { feature: Feature::ForeignObjects }),
                }
            }

            unsafe fn create_qp(&self, request: &QpRequest<'_>) -> Result<CreatedQp<Self>, CreateError> {
                match self {
                    $(#[cfg(feature = $feature)] Self::$variant(provider) => {
                        // SAFETY: the caller upholds the same contract.
                        let created = unsafe { provider.create_qp(request) }?;
                        let CreatedQp { handle, qp_num, cap, sq, rq } = created;
                        let (sq, rq) = (AnySq::$variant(sq), rq.map(AnyRq::$variant));
                        Ok(CreatedQp { handle, qp_num, cap, sq, rq })
                    })*
                    #[cfg(not(any($(feature = $feature),*)))]
                    Self::None(never) => match *never {},
                }
            }

            unsafe fn create_srq(&self, request: &SrqRequest<'_>) -> Result<CreatedSrq<Self>, CreateError> {
                match self {
                    $(#[cfg(feature = $feature)] Self::$variant(provider) => {
                        // SAFETY: the caller upholds the same contract.
                        let created = unsafe { provider.create_srq(request) }?;
                        let CreatedSrq { handle, max_wr, max_sge, srq_num, queue } = created;
                        Ok(CreatedSrq { handle, max_wr, max_sge, srq_num, queue: AnySrq::$variant(queue) })
                    })*
                    #[cfg(not(any($(feature = $feature),*)))]
                    Self::None(never) => match *never {},
                }
            }

            unsafe fn modify_srq(&self, srq: u32, queue: &mut AnySrq, change: SrqChange) -> Result<(), CreateError> {
                match (self, queue) {
                    $(#[cfg(feature = $feature)] (Self::$variant(provider), AnySrq::$variant(queue)) => {
                        // SAFETY: the caller upholds the same contract.
                        unsafe { provider.modify_srq(srq, queue, change) }
                    })*
                    _ => Err(CreateError::Unsupported { feature: Feature::ForeignObjects }),
                }
            }

            unsafe fn create_wq(&self, request: &WqRequest<'_>) -> Result<CreatedWq<Self>, CreateError> {
                match self {
                    $(#[cfg(feature = $feature)] Self::$variant(provider) => {
                        // SAFETY: the caller upholds the same contract.
                        let created = unsafe { provider.create_wq(request) }?;
                        let CreatedWq { handle, wq_num, max_wr, max_sge, queue } = created;
                        Ok(CreatedWq { handle, wq_num, max_wr, max_sge, queue: AnyRq::$variant(queue) })
                    })*
                    #[cfg(not(any($(feature = $feature),*)))]
                    Self::None(never) => match *never {},
                }
            }

            fn address_vector(ah: &AnyAh) -> Vec<u8> {
                match ah {
                    $(#[cfg(feature = $feature)] AnyAh::$variant(ah) => {
                        <$provider as Provider>::address_vector(ah)
                    })*
                    #[cfg(not(any($(feature = $feature),*)))]
                    AnyAh::None(never) => match *never {},
                }
            }

            fn create_ah(&self, request: &AhRequest) -> Result<CreatedAh<Self>, CreateError> {
                match self {
                    $(#[cfg(feature = $feature)] Self::$variant(provider) => {
                        let CreatedAh { handle, ah } = provider.create_ah(request)?;
                        Ok(CreatedAh { handle, ah: AnyAh::$variant(ah) })
                    })*
                    #[cfg(not(any($(feature = $feature),*)))]
                    Self::None(never) => match *never {},
                }
            }
        }

        // SAFETY: each method with obligations forwards to the queue of the variant, which upholds
        // them. A request with an address handle of another variant fails with
        // `PushError::ForeignAh` and reaches no queue.
        unsafe impl SendQueue for AnySq {
            type Ah = AnyAh;

            #[inline]
            unsafe fn push_datagram(
                &mut self,
                request: &SendRequest<'_, Datagram<'_, AnyAh>>,
            ) -> Result<(), PushError> {
                match (self, request.operation.ah) {
                    $(#[cfg(feature = $feature)] (Self::$variant(queue), AnyAh::$variant(ah)) => {
                        let request = request.with(request.operation.over(ah));
                        // SAFETY: the caller upholds the same contract.
                        unsafe { queue.push_datagram(&request) }
                    })*
                    _ => Err(PushError::ForeignAh),
                }
            }

            forward! { [$($variant $feature)*]
                #[inline]
                fn capacity(&self) -> u32;
                fn layout(&self) -> Option<QueueLayout>;
                #[inline(always)]
                unsafe fn try_push(&mut self, request: &SendRequest<'_>) -> bool;
                #[inline(always)]
                unsafe fn try_push_all(&mut self, requests: &[SendRequest<'_>]) -> usize;
                #[inline(always)]
                unsafe fn try_post(
                    &mut self, request: &SendRequest<'_>, defer: bool,
                ) -> Option<Result<(), DoorbellError>>;
                #[inline]
                unsafe fn push(&mut self, request: &SendRequest<'_>) -> Result<(), PushError>;
                unsafe fn push_xrc(&mut self, request: &SendRequest<'_, XrcOperation>) -> Result<(), PushError>;
                unsafe fn push_frame(&mut self, request: &SendRequest<'_, Frame<'_>>) -> Result<(), PushError>;
                fn owns_doorbell(&self) -> bool;
                #[inline]
                fn defer(&mut self) -> Result<(), DoorbellError>;
                #[inline]
                fn deferred(&self) -> u32;
                #[inline]
                fn ring(&mut self) -> Result<(), DoorbellError>;
                #[inline]
                fn abort(&mut self);
                fn failure(&self) -> Option<(u64, WcStatus)>;
                unsafe fn reset(&mut self);
            }
        }

        // SAFETY: each method forwards to the queue of the variant, which upholds the obligations.
        unsafe impl QpControl for AnySq {
            forward! { [$($variant $feature)*]
                fn validate_modify(&self, request: &ModifyQpReq) -> Result<(), &'static str>;
                fn needs_second_reset(&self) -> bool;
                fn needs_error_before_destroy(&self) -> bool;
                fn release_handle(&mut self);
                fn ece(&self) -> Option<Ece>;
                fn set_ece(&mut self, options: u32);
                unsafe fn modify(&mut self, file: &DeviceFile, request: &ModifyQpReq) -> Result<(), IoctlError>;
                unsafe fn modify_rate(
                    &mut self, file: &DeviceFile, request: &ExModifyQp, burst: Burst,
                ) -> Result<(), IoctlError>;
                fn modified(&mut self, request: &ModifyQpReq);
                fn resume(&mut self) -> Result<(), IoctlError>;
            }
        }

        $(
            #[cfg(feature = $feature)]
            providers!(@built_in $variant($provider): cq AnyCq Cq, sq AnySq Sq, rq AnyRq Rq, srq AnySrq Srq);
        )*

        providers!(@recv AnyRq $($variant $feature)*);
        providers!(@recv AnySrq $($variant $feature)*);

        // SAFETY: each method forwards to the queue of the variant, which upholds the obligations.
        unsafe impl CompletionQueue for AnyCq {
            type Completion<'a> = AnyCompletion<'a>;

            #[inline(always)]
            fn visit_next<V: Visitor>(&mut self, visitor: V) -> V::Output {
                forward!(@safe self, visit_next(visitor), $($variant $feature)*)
            }

            #[inline(always)]
            fn next(&mut self) -> Option<AnyCompletion<'_>> {
                match self {
                    $(#[cfg(feature = $feature)] Self::$variant(queue) => {
                        queue.next().map(AnyCompletion::$variant)
                    })*
                    #[cfg(not(any($(feature = $feature),*)))]
                    Self::None(never) => match *never {},
                }
            }

            forward! { [$($variant $feature)*]
                #[inline]
                fn capacity(&self) -> u32;
                fn layout(&self) -> Option<QueueLayout>;
                #[inline(always)]
                fn next_value(&mut self) -> Option<WorkCompletion>;
                #[inline(always)]
                fn next_values(&mut self, into: &mut [WorkCompletion]) -> usize;
                #[inline(always)]
                fn release(&mut self);
                #[inline]
                fn arm(&mut self, solicited_only: bool) -> Result<(), IoctlError>;
            }
        }

        impl Completion for AnyCompletion<'_> {
            forward! { [$($variant $feature)*]
                #[inline]
                fn wr_id(&self) -> u64;
                #[inline]
                fn status(&self) -> WcStatus;
                #[inline]
                fn opcode(&self) -> WcOpcode;
                #[inline]
                fn is_recv(&self) -> bool;
                #[inline]
                fn recv_opcode(&self) -> WcOpcode;
                #[inline]
                fn byte_len(&self) -> u32;
                #[inline]
                fn qp_num(&self) -> u32;
                #[inline]
                fn src_qp(&self) -> u32;
                #[inline]
                fn imm(&self) -> Option<Imm>;
                #[inline]
                fn recv_imm(&self) -> Option<Imm>;
                #[inline]
                fn invalidated_rkey(&self) -> Option<u32>;
                #[inline]
                fn vendor_err(&self) -> u32;
                #[inline]
                fn wc_flags(&self) -> WcFlags;
                #[inline]
                fn slid(&self) -> u16;
                #[inline]
                fn sl(&self) -> u8;
                #[inline]
                fn dlid_path_bits(&self) -> u8;
                #[inline]
                fn pkey_index(&self) -> u16;
                #[inline]
                fn cvlan(&self) -> Option<u16>;
                fn flow_tag(&self) -> Option<u32>;
                #[inline]
                fn timestamp(&self) -> Option<u64>;
                #[inline]
                fn to_value(&self) -> WorkCompletion;
            }
        }
    };
    (@built_in $variant:ident($provider:ty): $($method:ident $queue:ident $kind:ident),*) => {
        impl BuiltIn for $provider {
            $(
                #[inline(always)]
                fn $method(queue: &mut $queue) -> Option<&mut Self::$kind> {
                    match queue {
                        $queue::$variant(queue) => Some(queue),
                        _ => None,
                    }
                }
            )*
        }
    };
    (@recv $queue:ident $($variant:ident $feature:tt)*) => {
        // SAFETY: each method with obligations forwards to the queue of the variant, which upholds
        // them.
        unsafe impl RecvQueue for $queue {
            forward! { [$($variant $feature)*]
                #[inline]
                fn capacity(&self) -> u32;
                fn layout(&self) -> Option<QueueLayout>;
                fn posted(&self) -> u32;
                #[inline(always)]
                unsafe fn try_push(&mut self, request: &RecvRequest<'_>) -> bool;
                #[inline(always)]
                unsafe fn try_push_all(&mut self, requests: &[RecvRequest<'_>]) -> usize;
                #[inline(always)]
                unsafe fn try_post(&mut self, request: &RecvRequest<'_>) -> bool;
                #[inline]
                unsafe fn push(&mut self, request: &RecvRequest<'_>) -> Result<(), PushError>;
                #[inline]
                fn ring(&mut self);
                #[inline]
                fn abort(&mut self);
                unsafe fn reset(&mut self);
                fn abandon(&mut self);
            }
        }
    };
}

providers! {
    /// Soft-RoCE, with the feature `rxe`.
    "rxe" => Rxe(bareverbs_rxe::Rxe),
    /// ConnectX adapters, with the feature `mlx5`.
    "mlx5" => Mlx5(bareverbs_mlx5::Mlx5),
    /// Soft-iWARP, with the feature `siw`.
    "siw" => Siw(bareverbs_siw::Siw),
}
