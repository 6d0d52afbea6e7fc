//! The provider behind a context, as an enumeration of those built in.

use std::sync::Arc;

use bareverbs_mlx5::Mlx5;
use bareverbs_provider::command::{ContextInfo, QpHandle};
use bareverbs_provider::contract::{
    AhRequest, Completion, CompletionQueue, CqRequest, CreateError, CreatedAh, CreatedCq, CreatedQp,
    CreatedSrq, DmRequest, DoorbellError, Ece, Offloads, Provider, QpRequest, RecvQueue, SendQueue,
    SrqChange, SrqRequest, XrcTargetRequest,
};
use bareverbs_provider::device::{DeviceFile, IoctlError};
use bareverbs_provider::dm::DeviceMemory;
use bareverbs_provider::rss::{CreatedWq, RssQpRequest, WqChange, WqRequest};
use bareverbs_provider::work::{
    Datagram, Frame, PushError, RecvRequest, SendRequest, WcFlags, WcOpcode, WcStatus, WorkCompletion,
    XrcOperation,
};
use bareverbs_rxe::Rxe;
use bareverbs_uapi::write::structs::ModifyQpReq;
use rustix::io::Errno;

/// Declares the enumerations over the providers and passes every call on to the variant.
macro_rules! providers {
    ($($(#[$meta:meta])* $variant:ident($provider:ty)),* $(,)?) => {
        /// Whichever built-in provider drives the device.
        ///
        /// An enumeration rather than a trait object: the data path has a predictable branch, not
        /// an indirect call. Code that shall not have the branch either opens the device with
        /// [`Device::open_as`](crate::Device::open_as).
        #[allow(clippy::large_enum_variant, reason = "a process has few of them")]
        pub enum AnyProvider { $($(#[$meta])* $variant($provider),)* }

        /// Its completion queues.
        pub enum AnyCq { $($(#[$meta])* $variant(<$provider as Provider>::Cq),)* }

        /// Its send queues.
        pub enum AnySq { $($(#[$meta])* $variant(<$provider as Provider>::Sq),)* }

        /// Its receive queues.
        pub enum AnyRq { $($(#[$meta])* $variant(<$provider as Provider>::Rq),)* }

        /// Its shared receive queues.
        pub enum AnySrq { $($(#[$meta])* $variant(<$provider as Provider>::Srq),)* }

        /// What its send queues need of an address handle.
        pub enum AnyAh { $($(#[$meta])* $variant(<$provider as Provider>::Ah),)* }

        /// Its completions.
        pub enum AnyCompletion<'a> {
            $($(#[$meta])* $variant(<<$provider as Provider>::Cq as CompletionQueue>::Completion<'a>),)*
        }

        // SAFETY: each method passes on to the provider of the variant, which fulfils the
        // obligations; handles, queues and failures are passed back as they are. Where provider and
        // queue are of different variants, nothing is done.
        unsafe impl Provider for AnyProvider {
            type Cq = AnyCq;
            type Sq = AnySq;
            type Rq = AnyRq;
            type Srq = AnySrq;
            type Ah = AnyAh;

            fn drives(driver_id: u32) -> bool {
                $(<$provider>::drives(driver_id))||*
            }

            fn open(file: Arc<DeviceFile>) -> Result<Self, IoctlError> {
                $(if <$provider>::drives(file.driver_id()) {
                    return <$provider>::open(file).map(Self::$variant);
                })*
                Err(IoctlError { method: "open", errno: Errno::OPNOTSUPP })
            }

            fn import(file: Arc<DeviceFile>) -> Result<Self, CreateError> {
                $(if <$provider>::drives(file.driver_id()) {
                    return <$provider>::import(file).map(Self::$variant);
                })*
                Err(IoctlError { method: "import", errno: Errno::OPNOTSUPP }.into())
            }

            fn is_shareable(&self) -> bool {
                match self { $(Self::$variant(provider) => provider.is_shareable(),)* }
            }

            fn import_pd(&self, handle: u32) -> Result<(), CreateError> {
                match self { $(Self::$variant(provider) => provider.import_pd(handle),)* }
            }

            fn import_dm(&self, handle: u32) -> Result<DeviceMemory, CreateError> {
                match self { $(Self::$variant(provider) => provider.import_dm(handle),)* }
            }

            fn context_info(&self) -> ContextInfo {
                match self { $(Self::$variant(provider) => provider.context_info(),)* }
            }

            fn offloads(&self) -> Result<Offloads, IoctlError> {
                match self { $(Self::$variant(provider) => provider.offloads(),)* }
            }

            fn read_clock(&self) -> Result<u64, CreateError> {
                match self { $(Self::$variant(provider) => provider.read_clock(),)* }
            }

            fn null_key(&self) -> Option<u32> {
                match self { $(Self::$variant(provider) => provider.null_key(),)* }
            }

            fn has_ece(&self) -> bool {
                match self { $(Self::$variant(provider) => provider.has_ece(),)* }
            }

            fn has_raw_packets(&self) -> bool {
                match self { $(Self::$variant(provider) => provider.has_raw_packets(),)* }
            }

            fn alloc_dm(&self, request: &DmRequest) -> Result<(u32, DeviceMemory), CreateError> {
                match self { $(Self::$variant(provider) => provider.alloc_dm(request),)* }
            }

            fn alloc_pd(&self) -> Result<u32, IoctlError> {
                match self { $(Self::$variant(provider) => provider.alloc_pd(),)* }
            }

            unsafe fn create_cq(&self, request: &CqRequest<'_>) -> Result<CreatedCq<Self>, CreateError> {
                match self {
                    $(Self::$variant(provider) => {
                        // SAFETY: the caller's promise is the same.
                        let created = unsafe { provider.create_cq(request) }?;
                        let CreatedCq { handle, entries, queue } = created;
                        Ok(CreatedCq { handle, entries, queue: AnyCq::$variant(queue) })
                    })*
                }
            }

            unsafe fn resize_cq(&self, cq: u32, queue: &mut AnyCq, entries: u32) -> Result<u32, CreateError> {
                match (self, queue) {
                    $((Self::$variant(provider), AnyCq::$variant(queue)) => {
                        // SAFETY: the caller's promise is the same.
                        unsafe { provider.resize_cq(cq, queue, entries) }
                    })*
                    _ => Err(CreateError::Unsupported { what: "queues of another provider" }),
                }
            }

            unsafe fn create_qp(&self, request: &QpRequest) -> Result<CreatedQp<Self>, CreateError> {
                match self {
                    $(Self::$variant(provider) => {
                        // SAFETY: the caller's promise is the same.
                        let created = unsafe { provider.create_qp(request) }?;
                        let CreatedQp { handle, qp_num, cap, sq, rq } = created;
                        let (sq, rq) = (AnySq::$variant(sq), rq.map(AnyRq::$variant));
                        Ok(CreatedQp { handle, qp_num, cap, sq, rq })
                    })*
                }
            }

            fn create_xrc_target(&self, request: &XrcTargetRequest) -> Result<QpHandle, CreateError> {
                match self { $(Self::$variant(provider) => provider.create_xrc_target(request),)* }
            }

            unsafe fn create_srq(&self, request: &SrqRequest) -> Result<CreatedSrq<Self>, CreateError> {
                match self {
                    $(Self::$variant(provider) => {
                        // SAFETY: the caller's promise is the same.
                        let created = unsafe { provider.create_srq(request) }?;
                        let CreatedSrq { handle, max_wr, max_sge, srq_num, queue } = created;
                        Ok(CreatedSrq { handle, max_wr, max_sge, srq_num, queue: AnySrq::$variant(queue) })
                    })*
                }
            }

            unsafe fn modify_srq(&self, srq: u32, queue: &mut AnySrq, change: SrqChange) -> Result<(), CreateError> {
                match (self, queue) {
                    $((Self::$variant(provider), AnySrq::$variant(queue)) => {
                        // SAFETY: the caller's promise is the same.
                        unsafe { provider.modify_srq(srq, queue, change) }
                    })*
                    _ => Err(CreateError::Unsupported { what: "shared receive queues of another device" }),
                }
            }

            unsafe fn create_wq(&self, request: &WqRequest) -> Result<CreatedWq<Self>, CreateError> {
                match self {
                    $(Self::$variant(provider) => {
                        // SAFETY: the caller's promise is the same.
                        let created = unsafe { provider.create_wq(request) }?;
                        let CreatedWq { handle, wq_num, max_wr, max_sge, queue } = created;
                        Ok(CreatedWq { handle, wq_num, max_wr, max_sge, queue: AnyRq::$variant(queue) })
                    })*
                }
            }

            unsafe fn modify_wq(&self, wq: u32, change: WqChange) -> Result<(), CreateError> {
                // SAFETY: the caller's promise is the same.
                match self { $(Self::$variant(provider) => unsafe { provider.modify_wq(wq, change) },)* }
            }

            fn create_rss_qp(&self, request: &RssQpRequest) -> Result<QpHandle, CreateError> {
                match self { $(Self::$variant(provider) => provider.create_rss_qp(request),)* }
            }

            fn create_ah(&self, request: &AhRequest) -> Result<CreatedAh<Self>, CreateError> {
                match self {
                    $(Self::$variant(provider) => {
                        let CreatedAh { handle, ah } = provider.create_ah(request)?;
                        Ok(CreatedAh { handle, ah: AnyAh::$variant(ah) })
                    })*
                }
            }
        }

        // SAFETY: each method that has obligations passes on to the queue of the variant, which
        // fulfils them. A request with an address handle of another variant is refused before any
        // queue sees it.
        unsafe impl SendQueue for AnySq {
            type Ah = AnyAh;

            #[inline]
            fn capacity(&self) -> u32 {
                match self { $(Self::$variant(queue) => queue.capacity(),)* }
            }

            #[inline(always)]
            unsafe fn try_push(&mut self, request: &SendRequest<'_>) -> bool {
                // SAFETY: the caller's promise is the same.
                match self { $(Self::$variant(queue) => unsafe { queue.try_push(request) },)* }
            }

            #[inline(always)]
            unsafe fn try_push_all(&mut self, requests: &[SendRequest<'_>]) -> usize {
                // SAFETY: the caller's promise is the same.
                match self { $(Self::$variant(queue) => unsafe { queue.try_push_all(requests) },)* }
            }

            #[inline(always)]
            unsafe fn try_post(
                &mut self,
                request: &SendRequest<'_>,
                defer: bool,
            ) -> Option<Result<(), DoorbellError>> {
                // SAFETY: the caller's promise is the same.
                match self { $(Self::$variant(queue) => unsafe { queue.try_post(request, defer) },)* }
            }

            #[inline]
            unsafe fn push(&mut self, request: &SendRequest<'_>) -> Result<(), PushError> {
                // SAFETY: the caller's promise is the same.
                match self { $(Self::$variant(queue) => unsafe { queue.push(request) },)* }
            }

            #[inline]
            unsafe fn push_datagram(
                &mut self,
                request: &SendRequest<'_, Datagram<'_, AnyAh>>,
            ) -> Result<(), PushError> {
                match (self, request.operation.ah) {
                    $((Self::$variant(queue), AnyAh::$variant(ah)) => {
                        let request = request.with(request.operation.over(ah));
                        // SAFETY: the caller's promise is the same.
                        unsafe { queue.push_datagram(&request) }
                    })*
                    _ => Err(PushError::ForeignAddress),
                }
            }

            unsafe fn push_xrc(&mut self, request: &SendRequest<'_, XrcOperation>) -> Result<(), PushError> {
                // SAFETY: the caller's promise is the same.
                match self { $(Self::$variant(queue) => unsafe { queue.push_xrc(request) },)* }
            }

            fn owns_doorbell(&self) -> bool {
                match self { $(Self::$variant(queue) => queue.owns_doorbell(),)* }
            }

            unsafe fn push_frame(&mut self, request: &SendRequest<'_, Frame<'_>>) -> Result<(), PushError> {
                // SAFETY: the caller's promise is the same.
                match self { $(Self::$variant(queue) => unsafe { queue.push_frame(request) },)* }
            }

            #[inline]
            fn defer(&mut self) -> Result<(), DoorbellError> {
                match self { $(Self::$variant(queue) => queue.defer(),)* }
            }

            #[inline]
            fn deferred(&self) -> u32 {
                match self { $(Self::$variant(queue) => queue.deferred(),)* }
            }

            #[inline]
            fn ring(&mut self) -> Result<(), DoorbellError> {
                match self { $(Self::$variant(queue) => queue.ring(),)* }
            }

            #[inline]
            fn abort(&mut self) {
                match self { $(Self::$variant(queue) => queue.abort(),)* }
            }

            fn failure(&self) -> Option<(u64, WcStatus)> {
                match self { $(Self::$variant(queue) => queue.failure(),)* }
            }

            unsafe fn reset(&mut self) {
                // SAFETY: the caller's promise is the same.
                match self { $(Self::$variant(queue) => unsafe { queue.reset() },)* }
            }

            fn validate_modify(&self, request: &ModifyQpReq) -> Result<(), &'static str> {
                match self { $(Self::$variant(queue) => queue.validate_modify(request),)* }
            }

            fn resets_twice(&self) -> bool {
                match self { $(Self::$variant(queue) => queue.resets_twice(),)* }
            }

            fn ece(&self) -> Option<Ece> {
                match self { $(Self::$variant(queue) => queue.ece(),)* }
            }

            fn set_ece(&mut self, options: u32) {
                match self { $(Self::$variant(queue) => queue.set_ece(options),)* }
            }

            unsafe fn modify(&mut self, file: &DeviceFile, request: &ModifyQpReq) -> Result<(), IoctlError> {
                // SAFETY: the caller's promise is the same.
                match self { $(Self::$variant(queue) => unsafe { queue.modify(file, request) },)* }
            }

            fn modified(&mut self, request: &ModifyQpReq) {
                match self { $(Self::$variant(queue) => queue.modified(request),)* }
            }

            fn resume(&mut self) -> Result<(), IoctlError> {
                match self { $(Self::$variant(queue) => queue.resume(),)* }
            }
        }

        providers!(@recv AnyRq $($variant)*);
        providers!(@recv AnySrq $($variant)*);

        // SAFETY: each method passes on to the queue of the variant, which fulfils the obligations.
        unsafe impl CompletionQueue for AnyCq {
            type Completion<'a> = AnyCompletion<'a>;

            #[inline]
            fn capacity(&self) -> u32 {
                match self { $(Self::$variant(queue) => queue.capacity(),)* }
            }

            #[inline(always)]
            fn next(&mut self) -> Option<AnyCompletion<'_>> {
                match self { $(Self::$variant(queue) => queue.next().map(AnyCompletion::$variant),)* }
            }

            #[inline(always)]
            fn next_value(&mut self) -> Option<WorkCompletion> {
                match self { $(Self::$variant(queue) => queue.next_value(),)* }
            }

            #[inline(always)]
            fn next_values(&mut self, into: &mut [WorkCompletion]) -> usize {
                match self { $(Self::$variant(queue) => queue.next_values(into),)* }
            }

            #[inline(always)]
            fn release(&mut self) {
                match self { $(Self::$variant(queue) => queue.release(),)* }
            }

            #[inline]
            fn arm(&mut self, solicited_only: bool) -> Result<(), IoctlError> {
                match self { $(Self::$variant(queue) => queue.arm(solicited_only),)* }
            }
        }

        impl Completion for AnyCompletion<'_> {
            providers!(@field $($variant)*: wr_id -> u64);
            providers!(@field $($variant)*: status -> WcStatus);
            providers!(@field $($variant)*: opcode -> WcOpcode);
            providers!(@field $($variant)*: byte_len -> u32);
            providers!(@field $($variant)*: qp_num -> u32);
            providers!(@field $($variant)*: src_qp -> u32);
            providers!(@field $($variant)*: imm_data -> Option<u32>);
            providers!(@field $($variant)*: invalidated_rkey -> Option<u32>);
            providers!(@field $($variant)*: vendor_err -> u32);
            providers!(@field $($variant)*: wc_flags -> WcFlags);
            providers!(@field $($variant)*: slid -> u16);
            providers!(@field $($variant)*: sl -> u8);
            providers!(@field $($variant)*: dlid_path_bits -> u8);
            providers!(@field $($variant)*: timestamp -> Option<u64>);
            providers!(@field $($variant)*: to_value -> WorkCompletion);
        }
    };
    (@recv $queue:ident $($variant:ident)*) => {
        // SAFETY: each method that has obligations passes on to the queue of the variant, which
        // fulfils them.
        unsafe impl RecvQueue for $queue {
            #[inline]
            fn capacity(&self) -> u32 {
                match self { $(Self::$variant(queue) => queue.capacity(),)* }
            }

            fn posted(&self) -> u32 {
                match self { $(Self::$variant(queue) => queue.posted(),)* }
            }

            #[inline(always)]
            unsafe fn try_push(&mut self, request: &RecvRequest<'_>) -> bool {
                // SAFETY: the caller's promise is the same.
                match self { $(Self::$variant(queue) => unsafe { queue.try_push(request) },)* }
            }

            #[inline(always)]
            unsafe fn try_push_all(&mut self, requests: &[RecvRequest<'_>]) -> usize {
                // SAFETY: the caller's promise is the same.
                match self { $(Self::$variant(queue) => unsafe { queue.try_push_all(requests) },)* }
            }

            #[inline(always)]
            unsafe fn try_post(&mut self, request: &RecvRequest<'_>) -> bool {
                // SAFETY: the caller's promise is the same.
                match self { $(Self::$variant(queue) => unsafe { queue.try_post(request) },)* }
            }

            #[inline]
            unsafe fn push(&mut self, request: &RecvRequest<'_>) -> Result<(), PushError> {
                // SAFETY: the caller's promise is the same.
                match self { $(Self::$variant(queue) => unsafe { queue.push(request) },)* }
            }

            #[inline]
            fn ring(&mut self) {
                match self { $(Self::$variant(queue) => queue.ring(),)* }
            }

            #[inline]
            fn abort(&mut self) {
                match self { $(Self::$variant(queue) => queue.abort(),)* }
            }

            unsafe fn reset(&mut self) {
                // SAFETY: the caller's promise is the same.
                match self { $(Self::$variant(queue) => unsafe { queue.reset() },)* }
            }

            fn abandon(&mut self) {
                match self { $(Self::$variant(queue) => queue.abandon(),)* }
            }
        }
    };
    (@field $($variant:ident)*: $name:ident -> $ty:ty) => {
        #[inline]
        fn $name(&self) -> $ty {
            match self { $(Self::$variant(completion) => completion.$name(),)* }
        }
    };
}

providers! {
    /// Soft-RoCE.
    Rxe(Rxe),
    /// ConnectX adapters.
    Mlx5(Mlx5),
}
