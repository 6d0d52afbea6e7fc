//! What a device can do.

use bareverbs_provider::contract::Provider;
use bareverbs_provider::device::{DeviceFile, IoctlError};
use bareverbs_uapi::uverbs::types::QpType;
use bareverbs_uapi::write::structs::ExQueryDeviceResp;
use bareverbs_uapi::write::types::{DeviceCapFlags, OdpGeneralCaps};

use super::query_port_speed;
#[cfg(doc)]
use crate::{Context, CqInit, RawPacket, RssQp};

/// What the kernel and the device can do, found out when the device was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// The kernel and the driver tell a port's effective speed: [`Context::port_speed`].
    pub port_speed: bool,
    /// Memory regions on demand, whose pages are not pinned:
    /// [`Access::ON_DEMAND`](crate::Access::ON_DEMAND).
    ///
    /// The Soft-RoCE of 7.2 forgets where in its page an address lies when it copies to or from
    /// such a region (`__rxe_odp_mr_copy` of `rxe_odp.c`): there, only packets that begin a page
    /// move the right bytes. Atomics and flushes are right anywhere.
    pub odp: bool,
    /// Regions on demand over the whole address space:
    /// [`Pd::register_implicit`](crate::Pd::register_implicit).
    pub odp_implicit: bool,
    /// Advice about regions on demand, such as [`Mr::prefetch`](crate::Mr::prefetch).
    pub advise_mr: bool,
    /// Times in completions, and the clock that they are of: [`CqInit::timestamps`],
    /// [`Context::raw_clock`].
    pub completion_timestamps: bool,
    /// Compressed runs of completions: [`CqInit::compressed`](crate::CqInit::compressed).
    pub compressed_completions: bool,
    /// Memory on the device itself: [`Context::alloc_dm`].
    pub device_memory: bool,
    /// Memory windows: [`Pd::alloc_mw`](crate::Pd::alloc_mw).
    pub memory_windows: bool,
    /// Flushes of remote memory: [`Operation::Flush`](crate::Operation::Flush).
    pub flush: bool,
    /// Atomic writes of 8 bytes: [`Operation::AtomicWrite`](crate::Operation::AtomicWrite).
    pub atomic_write: bool,
    /// A region that is nowhere: [`Pd::alloc_null_mr`](crate::Pd::alloc_null_mr).
    pub null_mr: bool,
    /// Options of a connection beyond the standard: [`Qp::query_ece`](crate::Qp::query_ece). Ends
    /// that only receive over XRC have none.
    pub ece: bool,
    /// Queue pairs of whole Ethernet frames: [`RawPacket`].
    pub raw_packets: bool,
    /// Work queues: [`Pd::create_wq`](crate::Pd::create_wq).
    pub work_queues: bool,
    /// Queue pairs that spread frames over work queues: [`RssQp`].
    pub rss: bool,
    /// XRC domains: [`Context::open_xrcd`].
    pub xrc: bool,
    /// Other processes can use the context and what is in it: [`Context::import`].
    pub import: bool,
    /// Completion vectors.
    pub num_comp_vectors: u32,
}

impl Capabilities {
    /// Those of an open device, of which the kernel said `attr`.
    pub(super) fn of<P: Provider>(
        file: &DeviceFile,
        provider: &P,
        attr: &ExQueryDeviceResp,
    ) -> Result<Self, IoctlError> {
        let odp = attr.odp_caps.general_caps;
        let has = |flags| attr.device_cap_flags_ex.intersects(flags);
        Ok(Self {
            port_speed: query_port_speed(file, 1).is_ok(),
            odp: odp.contains(OdpGeneralCaps::SUPPORT),
            odp_implicit: odp.contains(OdpGeneralCaps::SUPPORT_IMPLICIT),
            // There is no way to ask without a region; the drivers that page on demand are those
            // that take advice.
            advise_mr: odp.contains(OdpGeneralCaps::SUPPORT),
            completion_timestamps: attr.timestamp_mask != 0,
            compressed_completions: provider.offloads()?.compressed_completions,
            device_memory: attr.max_dm_size != 0,
            memory_windows: has(DeviceCapFlags::MEM_WINDOW),
            flush: has(DeviceCapFlags::FLUSH_GLOBAL | DeviceCapFlags::FLUSH_PERSISTENT),
            atomic_write: has(DeviceCapFlags::ATOMIC_WRITE),
            null_mr: provider.null_key().is_some(),
            ece: provider.has_ece(),
            raw_packets: provider.has_raw_packets(),
            // Nothing but whole frames comes to them.
            work_queues: provider.has_raw_packets() && attr.max_wq_type_rq != 0,
            rss: provider.has_raw_packets() && attr.rss_caps.supported_qpts & 1 << QpType::RAW_PACKET.0 != 0,
            xrc: has(DeviceCapFlags::XRC),
            import: provider.is_shareable(),
            num_comp_vectors: provider.context_info().num_comp_vectors,
        })
    }
}
