//! Receive work queues and RSS QPs.

use std::sync::Arc;

use bareverbs_provider::Errno;
use bareverbs_provider::command::{self, DriverPayload, QpHandle};
use bareverbs_provider::device::{DeviceFile, IoctlError};
use bareverbs_provider::error::{CreateError, Feature};
use bareverbs_provider::mapping::Mapping;
use bareverbs_provider::queue_allocator::QueueResource;
use bareverbs_provider::request::{RssQpRequest, WqChange, WqRequest};
use bareverbs_provider::rss::{HashFields, TOEPLITZ_KEY};
use bareverbs_provider::traits::CreatedWq;
use bareverbs_uapi::mlx5::{
    CreateQpResp, CreateQpRssReq, CreateWqReq, CreateWqResp, ModifyWqReq, QpFlags, RxHashFields,
    RxHashFunctions,
};
use zerocopy::IntoBytes;

use super::{Mlx5, memory};
use crate::doorbell::DoorbellRecord;
use crate::qp_memory::{QpMemory, ReceiveLayout};
use crate::rq::Mlx5Rq;
use crate::uidx_table::clean::CqShared;
use crate::uidx_table::{QueueRecord, QueueRecordRef, RqTracker, Side, Source, SqTracker, UidxTable};

/// A work queue's memory, allocated before the create command.
pub(crate) struct WqMemory {
    pub(crate) layout: ReceiveLayout,
    pub(crate) record: QueueRecordRef,
    pub(crate) memory: Arc<QpMemory>,
}

impl WqMemory {
    /// A queue of this layout in `ring`. Its CQEs are written to `cq`.
    pub(crate) fn new(
        table: &Arc<UidxTable>,
        cq: Arc<CqShared>,
        ring: Mapping,
        doorbell: DoorbellRecord,
        layout: ReceiveLayout,
    ) -> Result<Self, IoctlError> {
        let source = Source::Own(RqTracker::new(layout.slots));
        let record = QueueRecord::new(table, [Arc::clone(&cq), cq], SqTracker::new(1), source)
            .ok_or(IoctlError::new("WqCreate (user index)", Errno::NOMEM))?;
        let memory = Arc::new(QpMemory::new(ring, doorbell, record.clone()));
        Ok(Self { layout, record, memory })
    }

    /// The address of the ring.
    pub(crate) fn ring(&self) -> u64 {
        self.memory.ring(self.layout.bytes()).as_ptr().expose_provenance() as u64
    }

    /// The queue. Pollers find it from now on.
    pub(crate) fn finish(self) -> Mlx5Rq {
        let Self { layout, record, memory } = self;
        let queue = Mlx5Rq::new(record.clone(), memory, layout.slots, layout.log_segments(), layout.sge);
        record.publish(Side::Recv);
        queue
    }
}

/// # Safety
///
/// As for [`Provider::create_wq`](bareverbs_provider::traits::Provider::create_wq).
pub(crate) unsafe fn create(
    mlx5: &Mlx5,
    cq: Arc<CqShared>,
    request: &WqRequest<'_>,
) -> Result<CreatedWq<Mlx5>, CreateError> {
    if mlx5.ucontext_resp().cqe_version == 0 {
        // The driver does not create raw packet QPs with CQEs of version 0 either.
        return Err(CreateError::Unsupported { feature: Feature::Wqs });
    }
    let layout = ReceiveLayout::new(request.max_wr, request.max_sge, mlx5.limits())?;
    let ring = memory::addressed_ring(QueueResource::Wq, layout.bytes(), request.memory)?;
    let doorbell = memory::doorbell_record(&mlx5.records, request.memory)?;
    let db_addr = doorbell.address();
    let queue = WqMemory::new(mlx5.table(), cq, ring, doorbell, layout)?;
    let driver = CreateWqReq {
        buf_addr: queue.ring(),
        db_addr,
        rq_wqe_count: layout.slots,
        rq_wqe_shift: layout.shift,
        user_index: queue.record.user_index(),
        ..CreateWqReq::zeroed()
    };
    let mut response = CreateWqResp::zeroed();
    let payload = DriverPayload { input: driver.as_bytes(), output: response.as_mut_bytes() };
    let asked = WqRequest { max_wr: layout.slots, max_sge: layout.sge, ..*request };
    // SAFETY: the ring has the size that the kernel computes from count and shift
    // (`set_user_rq_size` of its `qp.c`). The returned queue keeps the ring and the doorbell
    // record. The caller keeps the queue until the kernel has destroyed the WQ.
    let made = unsafe { command::create_wq(mlx5.file(), &asked, payload) }?;
    Ok(CreatedWq {
        handle: made.handle,
        wq_num: made.wq_num,
        max_wr: layout.slots,
        max_sge: layout.sge,
        queue: queue.finish(),
    })
}

/// # Safety
///
/// As for [`Provider::modify_wq`](bareverbs_provider::traits::Provider::modify_wq).
pub(crate) unsafe fn modify(file: &DeviceFile, wq: u32, change: WqChange) -> Result<(), CreateError> {
    let driver = ModifyWqReq::zeroed();
    let payload = DriverPayload { input: driver.as_bytes(), output: &mut [] };
    // SAFETY: the caller owns the work queue and resets its queue, as `Provider::modify_wq`
    // requires. The payload has no address fields.
    unsafe { command::modify_wq(file, wq, change, payload) }?;
    Ok(())
}

pub(crate) fn create_rss_qp(file: &DeviceFile, request: &RssQpRequest) -> Result<QpHandle, CreateError> {
    let mut driver = CreateQpRssReq {
        rx_hash_fields_mask: RxHashFields::from_bits_retain(request.fields.bits()),
        rx_hash_function: RxHashFunctions::TOEPLITZ,
        rx_key_len: TOEPLITZ_KEY as u8,
        // The driver hashes the inner headers of tunneled packets only with this flag.
        flags: if request.fields.contains(HashFields::INNER) {
            QpFlags::TUNNEL_OFFLOADS
        } else {
            QpFlags::empty()
        },
        ..CreateQpRssReq::zeroed()
    };
    driver.rx_hash_key[..TOEPLITZ_KEY].copy_from_slice(&request.key);
    let mut response = CreateQpResp::zeroed();
    let payload = DriverPayload { input: driver.as_bytes(), output: response.as_mut_bytes() };
    // SAFETY: the payload has no address fields, and the response has its full size.
    Ok(unsafe { command::create_rss_qp(file, request, payload) }?)
}
