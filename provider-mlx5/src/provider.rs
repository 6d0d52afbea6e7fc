//! The provider.

mod ah;
mod clock;
mod clock_page;
mod cq;
mod dm;
mod flow;
mod import;
mod memory;
mod pci_atomic;
mod qp;
mod srq;
pub(crate) mod wq;
mod xrc;

use std::collections::HashMap;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use bareverbs_provider::Errno;
use bareverbs_provider::caps::{Capabilities, MrQuirks};
use bareverbs_provider::clock::ClockInfo;
use bareverbs_provider::command::{self, ContextInfo, DriverPayload, QpHandle};
use bareverbs_provider::device::{DeviceFile, IoctlError};
use bareverbs_provider::dm::DeviceMemory;
use bareverbs_provider::error::CreateError;
use bareverbs_provider::pci_atomic::PciAtomicCaps;
use bareverbs_provider::request::{
    AhRequest, CqRequest, DmRequest, QpRequest, QueueMemory, SrqChange, SrqRequest, XrcTargetRequest,
};
use bareverbs_provider::request::{CountedFlowRequest, RssQpRequest, WqChange, WqRequest};
use bareverbs_provider::rss::{HashFields, HashFunctions};
use bareverbs_provider::thread_domain::ThreadDomain;
use bareverbs_provider::traits::CreatedWq;
use bareverbs_provider::traits::{CreatedAh, CreatedCq, CreatedQp, CreatedSrq, Provider};
use bareverbs_uapi::mlx5::verbs::UarType;
use bareverbs_uapi::mlx5::{
    AllocPdResp, AllocUcontextFlags, AllocUcontextReqV2, AllocUcontextResp, AllocUcontextRespMask,
    CqeCompressionFormats, InlineMode, LibCaps, QueryDeviceResp,
};
use bareverbs_uapi::uverbs::types::DriverId;
use zerocopy::IntoBytes;

use self::clock::Clock;
use self::clock_page::ClockPage;
use crate::cq::Mlx5Cq;
use crate::cq_ring::mini_cqe::MiniCqeFormat;
use crate::doorbell::{DoorbellRecords, Uar};
use crate::qp_memory::Limits;
use crate::rq::Mlx5Rq;
use crate::sq::{Mlx5Ah, Mlx5Sq};
use crate::srq::Mlx5Srq;
use crate::uidx_table::UidxTable;
use crate::uidx_table::clean::CqShared;
use crate::uidx_table::srq_slots::SrqShared;

/// Maximum number of a context's queue pairs with a doorbell register of their own, which is a page
/// each. Further queue pairs share one register.
const EXCLUSIVE_REGISTERS: u32 = 16;

/// An open ConnectX device.
#[derive(Debug)]
pub struct Mlx5 {
    file: Arc<DeviceFile>,
    caps: Capabilities,
    /// The preferred mini CQE format among those that the device supports.
    mini_cqe_format: Option<(MiniCqeFormat, CqeCompressionFormats)>,
    ucontext: AllocUcontextResp,
    table: Arc<UidxTable>,
    records: DoorbellRecords,
    /// The shared register, for arming CQs and for queue pairs without their own.
    uar: Arc<Uar>,
    /// Exclusive registers that may still be allocated.
    exclusive: AtomicU32,
    cqs: Mutex<HashMap<u32, Weak<CqShared>>>,
    srqs: Mutex<HashMap<u32, Weak<SrqShared>>>,
    clock: Clock,
    clock_page: ClockPage,
}

fn ioctl_error(method: &'static str) -> impl FnOnce(Errno) -> IoctlError {
    move |errno| IoctlError::new(method, errno)
}

/// Stores an object under the kernel's handle, and removes the entries of dropped objects.
fn track<T>(map: &Mutex<HashMap<u32, Weak<T>>>, handle: u32, object: &Arc<T>) {
    let mut map = map.lock().unwrap_or_else(PoisonError::into_inner);
    map.retain(|_, known| known.strong_count() > 0);
    map.insert(handle, Arc::downgrade(object));
}

/// The object with this handle, or `ENOENT` as an error of `method`.
fn lookup<T>(
    map: &Mutex<HashMap<u32, Weak<T>>>,
    handle: u32,
    method: &'static str,
) -> Result<Arc<T>, IoctlError> {
    let map = map.lock().unwrap_or_else(PoisonError::into_inner);
    map.get(&handle).and_then(Weak::upgrade).ok_or(IoctlError::new(method, Errno::NOENT))
}

/// Queries the mlx5 part of the device attributes.
fn query_driver(file: &DeviceFile) -> Result<QueryDeviceResp, IoctlError> {
    let mut resp = QueryDeviceResp::zeroed();
    let payload = DriverPayload { input: &[], output: resp.as_mut_bytes() };
    // SAFETY: the response has no address fields and its full size.
    unsafe { command::query_driver(file, payload) }?;
    Ok(resp)
}

fn create_context(
    file: &DeviceFile,
    flags: AllocUcontextFlags,
) -> Result<(ContextInfo, AllocUcontextResp), IoctlError> {
    let request = AllocUcontextReqV2 {
        flags,
        max_cqe_version: 1,
        lib_caps: LibCaps::FOUR_K_UAR | LibCaps::DYN_UAR,
        ..AllocUcontextReqV2::zeroed()
    };
    let mut resp = AllocUcontextResp::zeroed();
    let payload = DriverPayload { input: request.as_bytes(), output: resp.as_mut_bytes() };
    // SAFETY: the request has no address fields, and the response has its full size.
    let info = unsafe { command::get_context(file, payload) }?;
    Ok((info, resp))
}

fn capabilities(
    info: ContextInfo,
    ucontext: &AllocUcontextResp,
    device: &QueryDeviceResp,
    (shareable, devx, queue_dmabufs): (bool, bool, bool),
) -> Capabilities {
    let null_key = ucontext.comp_mask.contains(AllocUcontextRespMask::DUMP_FILL_MKEY);
    Capabilities {
        num_comp_vectors: info.num_comp_vectors,
        core_support: info.core_support,
        shareable,
        devx,
        queue_buffers: true,
        queue_dmabufs,
        ece: ucontext.comp_mask.contains(AllocUcontextRespMask::ECE),
        // On Ethernet the driver reports how many header bytes a WQE must hold inline. With CQEs of
        // version 0 it creates no raw packet QPs.
        raw_packets: ucontext.cqe_version > 0
            && matches!(ucontext.eth_min_inline, InlineMode::NONE | InlineMode::L2),
        iwarp: false,
        null_key: null_key.then_some(ucontext.dump_fill_mkey),
        compressed_completions: MiniCqeFormat::best(device.cqe_comp_caps.supported_format).is_some(),
        max_tso: device.tso_caps.max_tso,
        tso_supported_qpts: device.tso_caps.supported_qpts,
        rx_hash_fields_mask: HashFields::from_bits_retain(device.rss_caps.rx_hash_fields_mask.bits()),
        rx_hash_function: HashFunctions::from_bits_retain(device.rss_caps.rx_hash_function.bits()),
        qp_rate_limit_min: device.packet_pacing_caps.qp_rate_limit_min,
        qp_rate_limit_max: device.packet_pacing_caps.qp_rate_limit_max,
        rate_limit_supported_qpts: device.packet_pacing_caps.supported_qpts,
        // `ib_umem_get` of `core/umem.c`.
        pins_queues: true,
        link_down_statuses: &[],
        mr_quirks: MrQuirks::default(),
    }
}

impl Mlx5 {
    fn new(
        file: Arc<DeviceFile>,
        info: ContextInfo,
        resp: AllocUcontextResp,
        (shareable, devx): (bool, bool),
    ) -> Result<Self, IoctlError> {
        if resp.cqe_version > 1 {
            return Err(IoctlError::new("GetContext (completions of a later version)", Errno::OPNOTSUPP));
        }
        let device = query_driver(&file)?;
        let mini_cqe_format = MiniCqeFormat::best(device.cqe_comp_caps.supported_format);
        let caps = capabilities(info, &resp, &device, (shareable, devx, command::queue_buffers(&file)));
        let uar = Arc::new(Uar::alloc(&file, UarType::NC)?);
        let queues = resp.qp_tab_size.clamp(1 << 12, 1 << 20);
        let table = Arc::new(UidxTable::new(queues, resp.cqe_version).map_err(ioctl_error("mmap"))?);
        Ok(Self {
            file,
            caps,
            mini_cqe_format,
            ucontext: resp,
            table,
            records: DoorbellRecords::default(),
            uar,
            exclusive: AtomicU32::new(EXCLUSIVE_REGISTERS),
            cqs: Mutex::default(),
            srqs: Mutex::default(),
            clock: Clock::default(),
            clock_page: ClockPage::default(),
        })
    }

    /// The driver's response to the creation of the context.
    #[must_use]
    pub fn ucontext_resp(&self) -> &AllocUcontextResp {
        &self.ucontext
    }

    /// Fails with `ESTALE` in a forked child, as a command does. The creation of a queue calls it
    /// before it accesses doorbell records and the uidx table, which a child does not have.
    fn check_same_process(&self, method: &'static str) -> Result<(), IoctlError> {
        self.file.check_same_process().map_err(ioctl_error(method))
    }

    pub(crate) fn file(&self) -> &DeviceFile {
        &self.file
    }

    pub(crate) fn table(&self) -> &Arc<UidxTable> {
        &self.table
    }

    fn limits(&self) -> Limits {
        Limits {
            send_bytes: self.ucontext.max_sq_desc_sz.into(),
            recv_bytes: self.ucontext.max_rq_desc_sz.into(),
            send_blocks: self.ucontext.max_send_wqebb,
            receives: self.ucontext.max_recv_wr,
        }
    }
}

// SAFETY: by the numbers of the trait's obligations:
// 1. Handles come from the kernel's responses to create calls in the context of `file`, and only
//    the caller gets them.
// 2. The memory of a ring and its doorbell record are allocated for each object, or leased from a
//    buffer to that object alone, and the returned queues keep them. For the object, the
//    device accesses nothing else but the memory that requests name.
// 3. An object is created after all of its memory is allocated, or `HandleGuard` destroys it.
//    Nothing was posted to it.
// 4. `do_resize_cq` gives the queue the new ring only after the kernel has switched to it, and
//    keeps the old one otherwise. SRQs are not resized.
// 5. `dm` maps the pages that the kernel reports for the memory, and checks that the memory lies
//    within them.
// 6. The null key is the device's own (`dump_fill_mkey`). Writes are discarded, and reads return no
//    bytes of any memory.
// 7. The device checks each access against the bounds of its mkey.
unsafe impl Provider for Mlx5 {
    type Cq = Mlx5Cq;
    type Sq = Mlx5Sq;
    type Rq = Mlx5Rq;
    type Srq = Mlx5Srq;
    type Ah = Mlx5Ah;

    fn drives(driver_id: u32) -> bool {
        driver_id == DriverId::MLX5.0
    }

    fn open(file: Arc<DeviceFile>) -> Result<Self, IoctlError> {
        if !Self::drives(file.driver_id()) {
            return Err(IoctlError::new("GetContext", Errno::INVAL));
        }
        // Devices without DEVX, or without a free user context, refuse the flag.
        let created = create_context(&file, AllocUcontextFlags::DEVX);
        let devx = created.is_ok();
        let (info, resp) = created.or_else(|_| create_context(&file, AllocUcontextFlags::empty()))?;
        let shareable = import::query_context(&file).is_ok();
        Self::new(file, info, resp, (shareable, devx))
    }

    fn import(file: Arc<DeviceFile>) -> Result<Self, CreateError> {
        if !Self::drives(file.driver_id()) {
            return Err(IoctlError::new("QueryContext", Errno::INVAL).into());
        }
        let (info, resp) = import::query_context(&file)?;
        Ok(Self::new(file, info, resp, (true, false))?)
    }

    fn import_pd(&self, handle: u32) -> Result<(), CreateError> {
        import::query_pd(&self.file, handle)?;
        Ok(())
    }

    fn import_dm(&self, handle: u32) -> Result<DeviceMemory, CreateError> {
        dm::import(&self.file, handle)
    }

    fn capabilities(&self) -> Capabilities {
        self.caps
    }

    fn read_clock(&self) -> Result<u64, CreateError> {
        self.clock.read(&self.file, &self.ucontext)
    }

    fn clock_info(&self) -> Result<ClockInfo, CreateError> {
        self.clock_page.read(&self.file, &self.ucontext)
    }

    fn pci_atomic_caps(&self) -> Result<PciAtomicCaps, IoctlError> {
        pci_atomic::query(&self.file)
    }

    fn create_counted_flow(&self, request: &CountedFlowRequest<'_>) -> Result<u32, CreateError> {
        flow::create_counted(&self.file, request)
    }

    fn alloc_dm(&self, request: &DmRequest) -> Result<(u32, DeviceMemory), CreateError> {
        dm::alloc(&self.file, request)
    }

    fn alloc_td(&self) -> Result<ThreadDomain, CreateError> {
        self.do_alloc_td()
    }

    fn alloc_pd(&self) -> Result<u32, IoctlError> {
        let mut response = AllocPdResp::zeroed();
        let payload = DriverPayload { input: &[], output: response.as_mut_bytes() };
        // SAFETY: the response has its full size.
        unsafe { command::alloc_pd(&self.file, payload) }
    }

    unsafe fn create_cq(&self, request: &CqRequest<'_>) -> Result<CreatedCq<Self>, CreateError> {
        self.check_same_process("CqCreate")?;
        // SAFETY: the caller's promise is the same.
        unsafe { self.do_create_cq(request) }
    }

    unsafe fn resize_cq(
        &self,
        cq: u32,
        queue: &mut Mlx5Cq,
        entries: u32,
        memory: QueueMemory<'_>,
    ) -> Result<u32, CreateError> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.do_resize_cq(cq, queue, entries, memory) }
    }

    unsafe fn create_qp(&self, request: &QpRequest<'_>) -> Result<CreatedQp<Self>, CreateError> {
        self.check_same_process("QpCreate")?;
        // SAFETY: the caller's promise is the same.
        unsafe { self.do_create_qp(request) }
    }

    fn create_xrc_target(&self, request: &XrcTargetRequest) -> Result<QpHandle, CreateError> {
        xrc::create_target(&self.file, self.ucontext.cqe_version, request)
    }

    unsafe fn create_srq(&self, request: &SrqRequest<'_>) -> Result<CreatedSrq<Self>, CreateError> {
        self.check_same_process("SrqCreate")?;
        // SAFETY: the caller's promise is the same.
        unsafe { self.do_create_srq(request) }
    }

    unsafe fn modify_srq(&self, srq: u32, queue: &mut Mlx5Srq, change: SrqChange) -> Result<(), CreateError> {
        // SAFETY: the caller's promise is the same.
        unsafe { self.do_modify_srq(srq, queue, change) }
    }

    unsafe fn create_wq(&self, request: &WqRequest<'_>) -> Result<CreatedWq<Self>, CreateError> {
        self.check_same_process("WqCreate")?;
        let cq = lookup(&self.cqs, request.cq, "WqCreate")?;
        // SAFETY: the caller's promise is the same.
        unsafe { wq::create(self, cq, request) }
    }

    unsafe fn modify_wq(&self, handle: u32, change: WqChange) -> Result<(), CreateError> {
        // SAFETY: the caller owns the work queue and resets its queue, as this method requires.
        unsafe { wq::modify(&self.file, handle, change) }
    }

    fn create_rss_qp(&self, request: &RssQpRequest) -> Result<QpHandle, CreateError> {
        wq::create_rss_qp(&self.file, request)
    }

    /// The 48 bytes of `mlx5_wqe_av`, without QPN and Q_Key.
    fn address_vector(ah: &Mlx5Ah) -> Vec<u8> {
        ah.vector.segments(0, 0).as_bytes().to_vec()
    }

    fn create_ah(&self, request: &AhRequest) -> Result<CreatedAh<Self>, CreateError> {
        self.do_create_ah(request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn null(driver_id: DriverId) -> Arc<DeviceFile> {
        let null = std::fs::File::open("/dev/null").unwrap();
        // SAFETY: `/dev/null` fails every ioctl and mmap.
        Arc::new(unsafe { DeviceFile::from_fd_unchecked(null.into(), driver_id.0) }.unwrap())
    }

    /// The child would be killed by an access to a doorbell record or to the uidx table.
    #[cfg(not(any(loom, miri)))]
    #[test]
    fn queue_creation_in_a_forked_child_fails_with_estale() {
        use std::os::unix::process::CommandExt;

        use bareverbs_provider::mapping::Mapping;
        use bareverbs_uapi::uverbs::types::WqFlags;
        use bareverbs_uapi::write::types::CqCreateFlags;

        use crate::cq_ring::Ring;
        use crate::cqe::CQE;

        let mlx5 = Mlx5 {
            file: null(DriverId::MLX5),
            caps: Capabilities::default(),
            mini_cqe_format: None,
            ucontext: AllocUcontextResp {
                cqe_version: 1,
                max_rq_desc_sz: 512,
                ..AllocUcontextResp::zeroed()
            },
            table: Arc::new(UidxTable::new(8, 1).unwrap()),
            records: DoorbellRecords::default(),
            uar: Arc::new(Uar::plain().unwrap()),
            exclusive: AtomicU32::new(0),
            cqs: Mutex::default(),
            srqs: Mutex::default(),
            clock: Clock::default(),
            clock_page: ClockPage::default(),
        };
        // The page of doorbell records has room for more.
        let _record = mlx5.records.take().unwrap();
        let ring = Ring::new(Mapping::anonymous(CQE).unwrap(), 0, CQE);
        let cq = Mlx5Cq::new(ring, 1, &mlx5.table, mlx5.records.take().unwrap(), &mlx5.uar);
        track(&mlx5.cqs, 1, cq.shared());
        let (memory, pd, user_handle) = (QueueMemory::BasePages, 0, 0);
        let create = move || {
            let request = CqRequest {
                entries: 1,
                user_handle,
                channel: None,
                vector: 0,
                compressed: false,
                cqe_size: bareverbs_provider::request::CqeSize::Bytes64,
                flags: CqCreateFlags::empty(),
                memory,
            };
            // SAFETY: `/dev/null` creates nothing.
            let cq = unsafe { mlx5.create_cq(&request) }.map(drop);
            let request = SrqRequest { pd, max_wr: 1, max_sge: 1, limit: 0, user_handle, memory, xrc: None };
            // SAFETY: `/dev/null` creates nothing.
            let srq = unsafe { mlx5.create_srq(&request) }.map(drop);
            let flags = WqFlags::empty();
            let request = WqRequest { pd, cq: 1, max_wr: 1, max_sge: 1, flags, memory, user_handle };
            // SAFETY: `/dev/null` creates nothing.
            let wq = unsafe { mlx5.create_wq(&request) }.map(drop);
            let is_estale =
                |result| matches!(result, Err(CreateError::Ioctl(IoctlError { errno: Errno::STALE, .. })));
            if [cq, srq, wq].into_iter().all(is_estale) { Ok(()) } else { Err(Errno::PROTO.into()) }
        };
        let mut child = std::process::Command::new("/bin/true");
        // SAFETY: the child allocates, which libc permits after `fork`, and uses locks that no
        // other thread has.
        unsafe { child.pre_exec(create) };
        assert!(child.status().expect("every call fails with ESTALE").success(), "the child was killed");
    }

    #[test]
    fn open_rejects_files_of_other_drivers() {
        let refused = Mlx5::open(null(DriverId::UNKNOWN)).map(drop).unwrap_err();
        assert_eq!(refused, IoctlError::new("GetContext", Errno::INVAL));
    }
}
