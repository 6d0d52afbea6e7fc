//! Making queues.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use bareverbs_provider::Errno;
use bareverbs_provider::command::{self, ContextInfo, DriverPayload, QpHandle};
use bareverbs_provider::contract::{
    AhRequest, CompletionQueue, CqRequest, CreateError, CreatedAh, CreatedCq, CreatedQp, CreatedSrq,
    DmRequest, DoorbellChoice, Offloads, Provider, QpRequest, QueueMemory, RecvQueue, SrqChange, SrqRequest,
    XrcTargetRequest,
};
use bareverbs_provider::device::{DeviceFile, Refused};
use bareverbs_provider::dm::DeviceMemory;
use bareverbs_provider::mapping::{HUGE_PAGE, Mapping};
use bareverbs_provider::rss::{CreatedWq, HashFields, HashFunctions, RssQpRequest, WqChange, WqRequest};
use bareverbs_provider::unfinished::Unfinished;
use bareverbs_uapi::mlx5::verbs::UarType;
use bareverbs_uapi::mlx5::{
    AllocPdResp, AllocUcontextReqV2, AllocUcontextResp, AllocUcontextRespMask, CommandsWithPayload, CqFlags,
    CreateAhResp, CreateCqReq, CreateCqResp, CreateQpReq, CreateQpResp, CreateSrqReq, CreateSrqResp,
    InlineMode, LibCaps, QpFlags, QueryDeviceResp, ResizeCqReq,
};
use bareverbs_uapi::uverbs::types::{DriverId, QpCreateFlags, QpType};
use bareverbs_uapi::verbs_values::{LinkLayer, SrqAttrMask};
use bareverbs_uapi::write::structs::ModifySrqReq;
use zerocopy::IntoBytes;

use crate::address::{self, Link};
use crate::clock::Clock;
use crate::completion::{CqShared, Minis, Mlx5Cq, Ring};
use crate::cqe::CQE;
use crate::doorbell::{BlueFlame, DoorbellRecords, SendRegister, Uar};
use crate::pair::{Layout, Limits, PairMemory};
use crate::recv::Mlx5Rq;
use crate::send::{FIRST_VERSION, FRAME_HEADER, Mlx5Ah, Mlx5Sq, Options, SendLimits};
use crate::srq::{Mlx5Srq, SrqShared};
use crate::table::{NO_USER_INDEX, Receives, Record, Sends, Source, Table};
use crate::wqe::SEGMENT;
use crate::{dm, import, wq, xrc};

/// Queue pairs of a context that get a register of their own, which is a page each; the others share one.
const EXCLUSIVE_REGISTERS: u32 = 16;

/// Completions of a queue are counted by 24 bits, of which one tells a full queue from an empty one.
const MAX_CQE_LOG: u32 = 22;

/// A ConnectX adapter, opened.
#[derive(Debug)]
pub struct Mlx5 {
    file: Arc<DeviceFile>,
    info: ContextInfo,
    told: AllocUcontextResp,
    table: Arc<Table>,
    records: DoorbellRecords,
    /// The register for all who have none of their own, and for arming.
    uar: Arc<Uar>,
    /// Registers that may still be given to one owner.
    exclusive: AtomicU32,
    cqs: Mutex<HashMap<u32, Weak<CqShared>>>,
    srqs: Mutex<HashMap<u32, Weak<SrqShared>>>,
    clock: Clock,
    is_shareable: bool,
}

fn refused(method: &'static str) -> impl FnOnce(Errno) -> Refused {
    move |errno| Refused { method, errno }
}

/// Notes an object under the kernel's handle, and forgets those that are gone.
fn note<T>(map: &Mutex<HashMap<u32, Weak<T>>>, handle: u32, object: &Arc<T>) {
    let mut map = map.lock().unwrap_or_else(PoisonError::into_inner);
    map.retain(|_, known| known.strong_count() > 0);
    map.insert(handle, Arc::downgrade(object));
}

/// The object under a handle, as the method that names it would say if the kernel did not know it.
fn known<T>(
    map: &Mutex<HashMap<u32, Weak<T>>>,
    handle: u32,
    method: &'static str,
) -> Result<Arc<T>, Refused> {
    let map = map.lock().unwrap_or_else(PoisonError::into_inner);
    map.get(&handle).and_then(Weak::upgrade).ok_or(Refused { method, errno: Errno::NOENT })
}

/// Memory for a queue of so many bytes.
pub(crate) fn queue_memory(bytes: usize, memory: QueueMemory) -> Result<Mapping, CreateError> {
    match memory {
        QueueMemory::Ordinary => Ok(Mapping::anonymous(bytes).map_err(refused("mmap"))?),
        QueueMemory::HugePages => Mapping::huge(bytes).map_err(|errno| match errno {
            Errno::NOMEM => CreateError::NoHugePages { pages: bytes.div_ceil(HUGE_PAGE) as u64 },
            errno => refused("mmap (huge pages)")(errno).into(),
        }),
    }
}

impl Mlx5 {
    fn new(
        file: Arc<DeviceFile>,
        info: ContextInfo,
        told: AllocUcontextResp,
        is_shareable: bool,
    ) -> Result<Self, Refused> {
        if told.cqe_version > 1 {
            return Err(Refused {
                method: "GetContext (completions of a later version)",
                errno: Errno::OPNOTSUPP,
            });
        }
        let uar = Arc::new(Uar::alloc(&file, UarType::NC)?);
        let queues = told.qp_tab_size.clamp(1 << 12, 1 << 20);
        let table = Arc::new(Table::new(queues, told.cqe_version).map_err(refused("mmap"))?);
        Ok(Self {
            file,
            info,
            told,
            table,
            records: DoorbellRecords::default(),
            uar,
            exclusive: AtomicU32::new(EXCLUSIVE_REGISTERS),
            cqs: Mutex::default(),
            srqs: Mutex::default(),
            clock: Clock::default(),
            is_shareable,
        })
    }

    /// What the driver said of the device when it was opened.
    #[must_use]
    pub fn told(&self) -> &AllocUcontextResp {
        &self.told
    }

    pub(crate) fn file(&self) -> &DeviceFile {
        &self.file
    }

    pub(crate) fn table(&self) -> &Arc<Table> {
        &self.table
    }

    fn ring(&self, entries: u32, memory: QueueMemory) -> Result<(Ring, u32), CreateError> {
        // One entry always stays free.
        let log = u64::from(entries).saturating_add(1).next_power_of_two().trailing_zeros();
        if log > MAX_CQE_LOG {
            let max = (1 << MAX_CQE_LOG) - 1;
            return Err(CreateError::Limit { what: "entries", asked: entries.into(), max });
        }
        let memory = queue_memory(CQE << log, memory)?;
        Ok((Ring::new(memory, log, CQE), (1 << log) - 1))
    }

    /// What the driver tells of the device.
    fn query_driver(&self) -> Result<QueryDeviceResp, Refused> {
        let mut told = QueryDeviceResp::zeroed();
        let payload = DriverPayload { input: &[], output: told.as_mut_bytes() };
        // SAFETY: the response holds no addresses, and has its full size.
        unsafe { command::query_driver(&self.file, payload) }?;
        Ok(told)
    }

    fn register(&self, choice: DoorbellChoice) -> Result<SendRegister, CreateError> {
        match choice {
            DoorbellChoice::Any => Ok(self.some_register()),
            DoorbellChoice::Shared => Ok(SendRegister::Shared(Arc::clone(&self.uar))),
            DoorbellChoice::Own => {
                let combined = match Uar::alloc(&self.file, UarType::BF) {
                    Ok(uar) => BlueFlame::new(uar, self.told.bf_reg_size).ok(),
                    Err(Refused { errno: Errno::OPNOTSUPP, .. }) => None,
                    Err(refused) => return Err(refused.into()),
                };
                Ok(match combined {
                    Some(register) => SendRegister::Exclusive(register),
                    // This machine doesn't combine writes: requests can't be copied, but it is its own.
                    None => SendRegister::Shared(Arc::new(Uar::alloc(&self.file, UarType::NC)?)),
                })
            }
        }
    }

    /// A register of one's own while there are some, and the shared one otherwise.
    fn some_register(&self) -> SendRegister {
        let shared = || SendRegister::Shared(Arc::clone(&self.uar));
        let take = |left: u32| left.checked_sub(1);
        if self.exclusive.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_err() {
            return shared();
        }
        match Uar::alloc(&self.file, UarType::BF) {
            Ok(uar) => {
                BlueFlame::new(uar, self.told.bf_reg_size).map_or_else(|_| shared(), SendRegister::Exclusive)
            }
            Err(_) => {
                // This machine doesn't combine writes, or the device has no pages left: it need not be asked again.
                self.exclusive.store(0, Ordering::Relaxed);
                shared()
            }
        }
    }

    /// Bytes of the longest message, or datagram, of the first port.
    fn max_message(&self, qp_type: QpType) -> Result<u64, Refused> {
        let port = command::query_port(&self.file, 1)?.legacy_resp;
        Ok(match qp_type {
            QpType::UD => 128 << port.active_mtu.0.clamp(1, 5),
            _ => port.max_msg_sz.into(),
        })
    }

    /// Most bytes of a large send; none where the queue pair is to have none.
    fn max_tso(&self, request: &QpRequest) -> Result<u64, CreateError> {
        if request.max_tso_header == 0 {
            return Ok(0);
        }
        let told = self.query_driver()?.tso_caps;
        if told.max_tso == 0 || told.supported_qpts >> request.qp_type.0 & 1 == 0 {
            return Err(CreateError::Unsupported { what: "large sends of such queue pairs" });
        }
        Ok(told.max_tso.into())
    }

    fn limits(&self) -> Limits {
        Limits {
            send_bytes: self.told.max_sq_desc_sz.into(),
            recv_bytes: self.told.max_rq_desc_sz.into(),
            send_blocks: self.told.max_send_wqebb,
            receives: self.told.max_recv_wr,
        }
    }
}

impl Provider for Mlx5 {
    type Cq = Mlx5Cq;
    type Sq = Mlx5Sq;
    type Rq = Mlx5Rq;
    type Srq = Mlx5Srq;
    type Ah = Mlx5Ah;

    fn drives(driver_id: u32) -> bool {
        driver_id == DriverId::MLX5.0
    }

    fn open(file: Arc<DeviceFile>) -> Result<Self, Refused> {
        let request = AllocUcontextReqV2 {
            max_cqe_version: 1,
            lib_caps: LibCaps::FOUR_K_UAR | LibCaps::DYN_UAR,
            ..AllocUcontextReqV2::zeroed()
        };
        let mut told = AllocUcontextResp::zeroed();
        let payload = DriverPayload { input: request.as_bytes(), output: told.as_mut_bytes() };
        // SAFETY: the request holds no addresses, and the response has its full size.
        let info = unsafe { command::get_context(&file, payload) }?;
        let is_shareable = import::query_context(&file).is_ok();
        Self::new(file, info, told, is_shareable)
    }

    fn import(file: Arc<DeviceFile>) -> Result<Self, CreateError> {
        let (info, told) = import::query_context(&file)?;
        Ok(Self::new(file, info, told, true)?)
    }

    fn is_shareable(&self) -> bool {
        self.is_shareable
    }

    fn import_pd(&self, handle: u32) -> Result<(), CreateError> {
        import::query_pd(&self.file, handle)?;
        Ok(())
    }

    fn import_dm(&self, handle: u32) -> Result<DeviceMemory, CreateError> {
        dm::import(&self.file, handle)
    }

    fn context_info(&self) -> ContextInfo {
        self.info
    }

    fn offloads(&self) -> Result<Offloads, Refused> {
        let told = self.query_driver()?;
        Ok(Offloads {
            compressed_completions: Minis::best(told.cqe_comp_caps.supported_format).is_some(),
            max_tso: told.tso_caps.max_tso,
            tso_supported_qpts: told.tso_caps.supported_qpts,
            rx_hash_fields_mask: HashFields::from_bits_retain(told.rss_caps.rx_hash_fields_mask.bits()),
            rx_hash_function: HashFunctions::from_bits_retain(told.rss_caps.rx_hash_function.bits()),
            qp_rate_limit_min: told.packet_pacing_caps.qp_rate_limit_min,
            qp_rate_limit_max: told.packet_pacing_caps.qp_rate_limit_max,
            rate_limit_supported_qpts: told.packet_pacing_caps.supported_qpts,
        })
    }

    fn read_clock(&self) -> Result<u64, CreateError> {
        self.clock.read(&self.file, &self.told)
    }

    fn null_key(&self) -> Option<u32> {
        self.told
            .comp_mask
            .contains(AllocUcontextRespMask::DUMP_FILL_MKEY)
            .then_some(self.told.dump_fill_mkey)
    }

    fn has_ece(&self) -> bool {
        self.told.comp_mask.contains(AllocUcontextRespMask::ECE)
    }

    fn has_raw_packets(&self) -> bool {
        // On Ethernet the driver tells how much of a frame's headers a request must hold itself.
        // With completions of version 0 it makes no such queue pairs.
        self.told.cqe_version > 0 && matches!(self.told.eth_min_inline, InlineMode::NONE | InlineMode::L2)
    }

    fn alloc_dm(&self, request: &DmRequest) -> Result<(u32, DeviceMemory), CreateError> {
        dm::alloc(&self.file, request)
    }

    fn alloc_pd(&self) -> Result<u32, Refused> {
        let mut response = AllocPdResp::zeroed();
        let payload = DriverPayload { input: &[], output: response.as_mut_bytes() };
        // SAFETY: the response has its full size.
        unsafe { command::alloc_pd(&self.file, payload) }
    }

    fn create_cq(&self, request: &CqRequest) -> Result<CreatedCq<Self>, CreateError> {
        let (ring, entries) = self.ring(request.entries, request.memory)?;
        let minis = if request.compressed {
            let told = self.query_driver()?.cqe_comp_caps.supported_format;
            Some(Minis::best(told).ok_or(CreateError::Unsupported { what: "compressed completions" })?)
        } else {
            None
        };
        let ring = ring.compressed(minis.map(|(minis, _)| minis));
        let doorbell = self.records.take().map_err(refused("mmap"))?;
        let driver = CreateCqReq {
            buf_addr: ring.address(),
            db_addr: doorbell.address(),
            cqe_size: CQE as u32,
            cqe_comp_en: minis.is_some().into(),
            cqe_comp_res_format: minis.map_or(0, |(_, format)| format.bits() as u8),
            flags: CqFlags::UAR_PAGE_INDEX,
            // The kernel takes the index as wide as this.
            uar_page_index: self.uar.page_id() as u16,
            ..CreateCqReq::zeroed()
        };
        let mut response = CreateCqResp::zeroed();
        let payload = DriverPayload { input: driver.as_bytes(), output: response.as_mut_bytes() };
        // SAFETY: the ring has the size that the kernel computes from the entries (`create_cq_user` of its `cq.c`), and
        // it and the record stay until the queue was destroyed.
        let made = unsafe { command::create_cq(&self.file, &CqRequest { entries, ..*request }, payload) }?;
        let queue = Mlx5Cq::new(ring, response.cqn, &self.table, doorbell, &self.uar);
        note(&self.cqs, made.handle, queue.shared());
        Ok(CreatedCq { handle: made.handle, entries: queue.capacity(), queue })
    }

    fn resize_cq(&self, cq: u32, queue: &mut Mlx5Cq, entries: u32) -> Result<u32, CreateError> {
        let (ring, entries) = self.ring(entries, queue.memory())?;
        if entries == queue.capacity() {
            return Ok(entries);
        }
        queue.release();
        let driver = ResizeCqReq { buf_addr: ring.address(), cqe_size: CQE as u16, ..ResizeCqReq::zeroed() };
        let payload = DriverPayload { input: driver.as_bytes(), output: &mut [] };
        // SAFETY: as in `create_cq`.
        unsafe { command::resize_cq(&self.file, cq, entries, payload) }?;
        queue.follow(ring);
        Ok(queue.capacity())
    }

    fn create_qp(&self, request: &QpRequest) -> Result<CreatedQp<Self>, CreateError> {
        const METHOD: &str = "QpCreate";
        let known_type = match request.qp_type {
            QpType::RC | QpType::UC | QpType::UD | QpType::XRC_INI => true,
            QpType::RAW_PACKET => self.has_raw_packets(),
            _ => false,
        };
        if !known_type {
            return Err(CreateError::Unsupported { what: "queue pairs of this type" });
        }
        let receives = request.srq.is_none() && request.qp_type != QpType::XRC_INI;
        let mut flags = QpFlags::UAR_PAGE_INDEX;
        if request.scatter_to_cqe {
            let signals_all = request.flags.contains(QpCreateFlags::SQ_SIG_ALL);
            // Where all sends are signalled, what they read would come in completions too.
            if !receives || signals_all || !matches!(request.qp_type, QpType::RC | QpType::UC) {
                let what = "messages in completions for other than connected queue pairs with receives of their own and \
                            sends signalled one by one";
                return Err(CreateError::Unsupported { what });
            }
            flags |= QpFlags::SCATTER_CQE;
        }
        let max_tso = self.max_tso(request)?;
        let layout =
            Layout::new(request.qp_type, &request.cap, request.max_tso_header, !receives, self.limits())?;
        let cqs = [known(&self.cqs, request.send_cq, METHOD)?, known(&self.cqs, request.recv_cq, METHOD)?];
        let source = match request.srq {
            Some(srq) => Source::Shared(known(&self.srqs, srq, METHOD)?),
            None if request.scatter_to_cqe => {
                Source::Own(Receives::keeping(layout.recv_slots, layout.recv_sge))
            }
            None => Source::Own(Receives::new(layout.recv_slots)),
        };
        let max_message = self.max_message(request.qp_type)?;
        let record = Record::new(&self.table, cqs, Sends::new(layout.send_blocks), source)
            .ok_or(Refused { method: "QpCreate (user index)", errno: Errno::NOMEM })?;
        let rings = queue_memory(layout.bytes(), request.memory)?;
        let doorbell = self.records.take().map_err(refused("mmap"))?;
        let register = self.register(request.doorbell)?;
        let start = rings.as_ptr().as_ptr().expose_provenance() as u64;
        let is_raw = request.qp_type == QpType::RAW_PACKET;
        let driver = CreateQpReq {
            buf_addr: start,
            sq_buf_addr: if is_raw { start + layout.send_offset() as u64 } else { 0 },
            db_addr: doorbell.address(),
            sq_wqe_count: layout.send_blocks,
            rq_wqe_count: layout.recv_slots,
            rq_wqe_shift: layout.told_recv_shift(),
            flags,
            uidx: record.user_index(),
            bfreg_index: register.page_id(),
            ece_options: if self.has_ece() { FIRST_VERSION } else { 0 },
            ..CreateQpReq::zeroed()
        };
        let mut response = CreateQpResp::zeroed();
        let payload = DriverPayload { input: driver.as_bytes(), output: response.as_mut_bytes() };
        let cap = layout.cap();
        let memory = Arc::new(PairMemory::new(rings, doorbell, Arc::clone(&record)));
        // SAFETY: the rings have the size that the kernel computes from their counts (`set_user_buf_size` of its
        // `qp.c`), and they and the record stay until the queue pair was destroyed.
        let made = unsafe { command::create_qp(&self.file, &QpRequest { cap, ..*request }, payload) }?;
        let limits = SendLimits {
            qp_type: request.qp_type,
            requests: layout.sends,
            max_sge: layout.send_sge,
            max_inline: layout.inline,
            max_message,
            frame_header: if self.told.eth_min_inline == InlineMode::NONE { 0 } else { FRAME_HEADER },
            tso_header: request.max_tso_header.into(),
            max_tso,
            signal_all: request.flags.contains(QpCreateFlags::SQ_SIG_ALL),
        };
        let rq = receives.then(|| {
            let (slots, shift) = (layout.recv_slots.max(1), layout.recv_shift - SEGMENT.trailing_zeros());
            Mlx5Rq::new(Arc::clone(&record), Arc::clone(&memory), slots, shift, layout.recv_sge)
        });
        let place = (layout.send_offset(), layout.send_blocks);
        let sq = Mlx5Sq::new(Arc::clone(&record), memory, register, place, made.qp_num, limits)
            .with_options(self.has_ece().then(|| Options::new(response.ece_options)));
        let srq_num = match &record.source {
            Source::Shared(srq) => srq.number(),
            Source::Own(_) => 0,
        };
        record.begin(made.qp_num, srq_num);
        Ok(CreatedQp { handle: made.handle, qp_num: made.qp_num, cap, sq, rq })
    }

    fn create_xrc_target(&self, request: &XrcTargetRequest) -> Result<QpHandle, CreateError> {
        xrc::create_target(&self.file, self.told.cqe_version, request)
    }

    fn create_srq(&self, request: &SrqRequest) -> Result<CreatedSrq<Self>, CreateError> {
        let shift = Mlx5Srq::shift(request.max_sge);
        let slots = u64::from(request.max_wr) + 1;
        if slots > 1 << 16 {
            let (asked, max) = (request.max_wr.into(), (1 << 16) - 1);
            return Err(CreateError::Limit { what: "max_wr", asked, max });
        }
        if shift > 16 {
            let (asked, max) = (request.max_sge.into(), (1 << 12) - 1);
            return Err(CreateError::Limit { what: "max_sge", asked, max });
        }
        let slots = (slots as u32).next_power_of_two().max(2);
        let memory = queue_memory((slots as usize) << shift, request.memory)?;
        let doorbell = self.records.take().map_err(refused("mmap"))?;
        let max_sge = (1 << shift) / SEGMENT as u32 - 1;
        let address = memory.as_ptr().as_ptr().expose_provenance() as u64;
        let db_addr = doorbell.address();
        let mut queue = Mlx5Srq::new(memory, slots, shift, max_sge, doorbell);
        let record = match request.xrc {
            Some(xrc) => Some(self.record_of_srq(known(&self.cqs, xrc.cq, "SrqCreate")?, &queue)?),
            None => None,
        };
        let driver = CreateSrqReq {
            buf_addr: address,
            db_addr,
            uidx: record.as_ref().map_or(NO_USER_INDEX, |record| record.user_index()),
            ..CreateSrqReq::zeroed()
        };
        let mut response = CreateSrqResp::zeroed();
        let payload = DriverPayload { input: driver.as_bytes(), output: response.as_mut_bytes() };
        let asked = SrqRequest { max_wr: slots - 1, ..*request };
        // SAFETY: the memory has the size that the kernel computes from depth and width (`mlx5_ib_create_srq` of its
        // `srq.c`), and it and the record stay until the queue was destroyed.
        let made = unsafe { command::create_srq(&self.file, &asked, payload) }?;
        let destroy = |file: &DeviceFile, handle| {
            let _ = command::destroy_srq(file, handle);
        };
        let unfinished = Unfinished::new(&self.file, made.handle, destroy);
        if request.limit > 0 {
            // The driver takes none when it makes the queue.
            self.limit_srq(made.handle, request.limit)?;
        }
        queue.shared().set_number(response.srqn);
        note(&self.srqs, made.handle, queue.shared());
        if let Some(record) = record {
            queue.list(record);
        }
        Ok(CreatedSrq {
            handle: unfinished.finished(),
            max_wr: queue.capacity(),
            max_sge,
            srq_num: response.srqn,
            queue,
        })
    }

    fn modify_srq(&self, srq: u32, queue: &mut Mlx5Srq, change: SrqChange) -> Result<(), CreateError> {
        queue.ring();
        match change {
            SrqChange::Limit(limit) => Ok(self.limit_srq(srq, limit)?),
            SrqChange::MaxWr(_) => {
                Err(CreateError::Unsupported { what: "shared receive queues that change their size" })
            }
        }
    }

    fn create_wq(&self, request: &WqRequest) -> Result<CreatedWq<Self>, CreateError> {
        let cq = known(&self.cqs, request.cq, "WqCreate")?;
        let doorbell = self.records.take().map_err(refused("mmap"))?;
        wq::create(self, cq, doorbell, self.limits(), request)
    }

    fn modify_wq(&self, handle: u32, change: WqChange) -> Result<(), CreateError> {
        wq::modify(&self.file, handle, change)
    }

    fn create_rss_qp(&self, request: &RssQpRequest) -> Result<QpHandle, CreateError> {
        wq::create_rss_qp(&self.file, request)
    }

    fn create_ah(&self, request: &AhRequest) -> Result<CreatedAh<Self>, CreateError> {
        let attr = &request.attr;
        let port = command::query_port(&self.file, attr.port_num)?.legacy_resp;
        let ethernet = port.link_layer == LinkLayer::ETHERNET;
        if ethernet && attr.is_global == 0 {
            return Err(CreateError::Unsupported { what: "paths without a GID on Ethernet" });
        }
        if ethernet && !self.told.cmds_supp_uhw.contains(CommandsWithPayload::CREATE_AH) {
            return Err(CreateError::Unsupported {
                what: "address handles whose next hop the kernel does not tell",
            });
        }
        let mut response = CreateAhResp::zeroed();
        let output: &mut [u8] = if ethernet { response.as_mut_bytes() } else { &mut [] };
        // SAFETY: the response has its full size.
        let made = unsafe { command::create_ah(&self.file, request, DriverPayload { input: &[], output }) }?;
        let destroy = |file: &DeviceFile, handle| {
            let _ = command::destroy_ah(file, handle);
        };
        let unfinished = Unfinished::new(&self.file, made.handle, destroy);
        let link = if ethernet {
            let index = attr.grh.sgid_index.into();
            let gid = command::query_gid_entry(&self.file, attr.port_num.into(), index)?;
            Link::Ethernet { mac: response.dmac, gid_type: gid.gid_type }
        } else {
            Link::InfiniBand
        };
        let ah = Mlx5Ah { vector: address::vector(attr, link) };
        Ok(CreatedAh { handle: unfinished.finished(), ah })
    }
}

impl Mlx5 {
    /// What leads from completions of a shared receive queue, all of which come to `cq`, to the queue.
    fn record_of_srq(&self, cq: Arc<CqShared>, queue: &Mlx5Srq) -> Result<Arc<Record>, Refused> {
        let source = Source::Shared(Arc::clone(queue.shared()));
        Record::new(&self.table, [Arc::clone(&cq), cq], Sends::new(1), source)
            .ok_or(Refused { method: "SrqCreate (user index)", errno: Errno::NOMEM })
    }

    fn limit_srq(&self, srq: u32, limit: u32) -> Result<(), Refused> {
        let request = ModifySrqReq {
            srq_handle: srq,
            attr_mask: SrqAttrMask::LIMIT,
            srq_limit: limit,
            ..ModifySrqReq::zeroed()
        };
        // SAFETY: there is no payload.
        unsafe { command::modify_srq(&self.file, &request, DriverPayload::default()) }
    }
}
