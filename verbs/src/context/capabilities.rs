//! Capabilities of a device.

use bareverbs_provider::device::{DeviceFile, IoctlError};
use bareverbs_provider::traits::Provider;
use bareverbs_uapi::uverbs::types::QpType;
use bareverbs_uapi::write::structs::ExQueryDeviceResp;
use bareverbs_uapi::write::types::{DeviceCapFlags, OdpGeneralCaps};

use super::query_port_speed;

/// Capabilities of the kernel and the device, determined at open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// The kernel and the driver report the effective speed of a port:
    /// [`Context::port_speed`](crate::Context::port_speed).
    pub port_speed: bool,
    /// On-demand paging (ODP): memory regions whose pages are not pinned,
    /// [`Access::ON_DEMAND`](crate::Access::ON_DEMAND).
    ///
    /// rxe of Linux 7.2 ignores the offset within the page when it copies to or from an ODP region
    /// (`__rxe_odp_mr_copy` of `rxe_odp.c`). Data is correct only for packets that begin at a page
    /// boundary. Atomics and flushes are correct at any offset.
    pub odp: bool,
    /// Implicit ODP regions, which cover the whole address space:
    /// [`Pd::register_implicit`](crate::Pd::register_implicit).
    pub odp_implicit: bool,
    /// Advice for ODP regions, such as [`Mr::prefetch`](crate::Mr::prefetch).
    pub advise_mr: bool,
    /// Timestamps in completions, and reads of their clock:
    /// [`CqInit::timestamps`](crate::cq::CqInit::timestamps),
    /// [`Context::raw_clock`](crate::Context::raw_clock).
    pub completion_timestamps: bool,
    /// CQE compression: [`CqInit::compressed`](crate::cq::CqInit::compressed).
    pub compressed_completions: bool,
    /// Queues in memory of the caller: [`QueueMemory::From`](crate::qp::QueueMemory::From).
    pub queue_buffers: bool,
    /// CQs and QPs in dma-bufs: [`QueueBuffer::dmabuf`](crate::qp::QueueBuffer::dmabuf). The kernel is
    /// asked when the context is opened.
    pub queue_dmabufs: bool,
    /// Device memory: [`Context::alloc_dm`](crate::Context::alloc_dm).
    pub device_memory: bool,
    /// Memory windows: [`Pd::alloc_mw`](crate::Pd::alloc_mw).
    pub memory_windows: bool,
    /// Flushes of remote memory: [`Operation::Flush`](crate::qp::Operation::Flush).
    pub flush: bool,
    /// Atomic writes of 8 bytes: [`Operation::AtomicWrite`](crate::qp::Operation::AtomicWrite).
    pub atomic_write: bool,
    /// The null MR: [`Pd::alloc_null_mr`](crate::Pd::alloc_null_mr).
    pub null_mr: bool,
    /// Enhanced connection establishment (ECE), options of a connection beyond the standard:
    /// [`Qp::query_ece`](crate::qp::Qp::query_ece). XRC target QPs have none.
    pub ece: bool,
    /// Raw packet QPs, which send and receive whole Ethernet frames:
    /// [`RawPacket`](crate::qp::RawPacket).
    pub raw_packets: bool,
    /// The device speaks iWARP. Its QPs are RC and are connected by rdma_cm only: the kernel moves them to
    /// RTS ([`Qp::set_cm_state`](crate::qp::Qp::set_cm_state)). There are no immediates and no atomics.
    pub iwarp: bool,
    /// Work queues: [`Pd::create_wq`](crate::Pd::create_wq).
    pub work_queues: bool,
    /// RSS QPs, which distribute frames over work queues: [`RssQp`](crate::rss::RssQp).
    pub rss: bool,
    /// XRC domains: [`Context::open_xrcd`](crate::Context::open_xrcd).
    pub xrc: bool,
    /// Other processes can use the context and its objects:
    /// [`Context::import`](crate::Context::import).
    pub import: bool,
    /// DEVX: programs execute commands of the firmware by the methods `Devx…` of
    /// [`raw::uapi::mlx5`](crate::raw::uapi::mlx5). mlx5 contexts have it where the device does. Of an
    /// [imported](crate::Context::import) context it is unknown, and `false`.
    #[doc(alias = "MLX5DV_CONTEXT_FLAGS_DEVX")]
    pub devx: bool,
    /// Number of completion vectors.
    pub num_comp_vectors: u32,
}

impl Capabilities {
    /// Capabilities of an open device. `attr` is the kernel's response to QUERY_DEVICE_EX.
    pub(super) fn of<P: Provider>(
        file: &DeviceFile,
        provider: &P,
        attr: &ExQueryDeviceResp,
    ) -> Result<Self, IoctlError> {
        let of_provider = provider.capabilities();
        let odp = attr.odp_caps.general_caps;
        let has = |flags| attr.device_cap_flags_ex.intersects(flags);
        Ok(Self {
            port_speed: query_port_speed(file, 1).is_ok(),
            odp: odp.contains(OdpGeneralCaps::SUPPORT),
            odp_implicit: odp.contains(OdpGeneralCaps::SUPPORT_IMPLICIT),
            // The kernel does not report it. The drivers with ODP are the drivers that implement
            // ADVISE_MR.
            advise_mr: odp.contains(OdpGeneralCaps::SUPPORT),
            completion_timestamps: attr.timestamp_mask != 0,
            compressed_completions: of_provider.compressed_completions,
            queue_buffers: of_provider.queue_buffers,
            queue_dmabufs: of_provider.queue_dmabufs,
            device_memory: attr.max_dm_size != 0,
            memory_windows: has(DeviceCapFlags::MEM_WINDOW),
            flush: has(DeviceCapFlags::FLUSH_GLOBAL | DeviceCapFlags::FLUSH_PERSISTENT),
            atomic_write: has(DeviceCapFlags::ATOMIC_WRITE),
            null_mr: of_provider.null_key.is_some(),
            ece: of_provider.ece,
            raw_packets: of_provider.raw_packets,
            iwarp: of_provider.iwarp,
            // Work queues receive whole frames only.
            work_queues: of_provider.raw_packets && attr.max_wq_type_rq != 0,
            rss: of_provider.raw_packets && attr.rss_caps.supported_qpts & 1 << QpType::RAW_PACKET.0 != 0,
            xrc: has(DeviceCapFlags::XRC),
            import: of_provider.shareable,
            devx: of_provider.devx,
            num_comp_vectors: of_provider.num_comp_vectors,
        })
    }
}
