//! Shared receive queues.

use std::sync::Arc;

use bareverbs_provider::Errno;
use bareverbs_provider::command::{self, DriverPayload};
use bareverbs_provider::device::IoctlError;
use bareverbs_provider::error::{CreateError, Feature, Limit};
use bareverbs_provider::handle_guard::HandleGuard;
use bareverbs_provider::queue_allocator::QueueResource;
use bareverbs_provider::request::{SrqChange, SrqRequest};
use bareverbs_provider::traits::{CreatedSrq, RecvQueue};
use bareverbs_uapi::mlx5::{CreateSrqReq, CreateSrqResp};
use bareverbs_uapi::verbs_values::SrqAttrMask;
use bareverbs_uapi::write::structs::ModifySrqReq;
use zerocopy::IntoBytes;

use super::{Mlx5, lookup, memory, track};
use crate::srq::Mlx5Srq;
use crate::uidx_table::clean::CqShared;
use crate::uidx_table::{DEFAULT_UIDX, QueueRecord, QueueRecordRef, Source, SqTracker};
use crate::wqe::SEGMENT;

impl Mlx5 {
    /// # Safety
    ///
    /// As for [`Provider::create_srq`](bareverbs_provider::traits::Provider::create_srq).
    pub(super) unsafe fn do_create_srq(
        &self,
        request: &SrqRequest<'_>,
    ) -> Result<CreatedSrq<Self>, CreateError> {
        let shift = Mlx5Srq::shift(request.max_sge);
        let slots = u64::from(request.max_wr) + 1;
        if slots > 1 << 16 {
            let (asked, max) = (request.max_wr.into(), (1 << 16) - 1);
            return Err(CreateError::Limit { limit: Limit::SrqMaxWr, asked, max });
        }
        if shift > 16 {
            let (asked, max) = (request.max_sge.into(), (1 << 12) - 1);
            return Err(CreateError::Limit { limit: Limit::SrqMaxSge, asked, max });
        }
        let slots = (slots as u32).next_power_of_two().max(2);
        let ring = memory::addressed_ring(QueueResource::Srq, (slots as usize) << shift, request.memory)?;
        let doorbell = memory::doorbell_record(&self.records, request.memory)?;
        let max_sge = (1 << shift) / SEGMENT as u32 - 1;
        let address = ring.as_ptr().as_ptr().expose_provenance() as u64;
        let db_addr = doorbell.address();
        let mut queue = Mlx5Srq::new(ring, slots, shift, max_sge, doorbell);
        let record = match request.xrc {
            Some(xrc) => Some(self.record_of_srq(lookup(&self.cqs, xrc.cq, "SrqCreate")?, &queue)?),
            None => None,
        };
        let driver = CreateSrqReq {
            buf_addr: address,
            db_addr,
            uidx: record.as_ref().map_or(DEFAULT_UIDX, |record| record.user_index()),
            ..CreateSrqReq::zeroed()
        };
        let mut response = CreateSrqResp::zeroed();
        let payload = DriverPayload { input: driver.as_bytes(), output: response.as_mut_bytes() };
        let asked = SrqRequest { max_wr: slots - 1, ..*request };
        // SAFETY: the memory has the size that the kernel computes from depth and width
        // (`mlx5_ib_create_srq` of its `srq.c`). The returned queue keeps the memory and the
        // doorbell record. The caller keeps the queue until the kernel has destroyed the SRQ.
        let made = unsafe { command::create_srq(&self.file, &asked, payload) }?;
        queue.shared().set_number(response.srqn);
        if let Some(record) = record {
            queue.attach_record(record);
        }
        // SAFETY: the SRQ was just created and has no other user.
        let guard = unsafe { HandleGuard::new(&self.file, made.handle, command::destroy_srq, queue) };
        if request.limit > 0 {
            // The create command does not set a limit.
            self.arm_srq_limit(made.handle, request.limit)?;
        }
        let (handle, queue) = guard.disarm();
        track(&self.srqs, handle, queue.shared());
        Ok(CreatedSrq { handle, max_wr: queue.capacity(), max_sge, srq_num: response.srqn, queue })
    }

    /// # Safety
    ///
    /// As for [`Provider::modify_srq`](bareverbs_provider::traits::Provider::modify_srq).
    pub(super) unsafe fn do_modify_srq(
        &self,
        srq: u32,
        queue: &mut Mlx5Srq,
        change: SrqChange,
    ) -> Result<(), CreateError> {
        queue.ring();
        match change {
            SrqChange::Limit(limit) => Ok(self.arm_srq_limit(srq, limit)?),
            SrqChange::MaxWr(_) => Err(CreateError::Unsupported { feature: Feature::SrqResize }),
        }
    }

    /// The record of an XRC SRQ, which maps its CQEs to the queue. All of them are written to `cq`.
    fn record_of_srq(&self, cq: Arc<CqShared>, queue: &Mlx5Srq) -> Result<QueueRecordRef, IoctlError> {
        let source = Source::Shared(Arc::clone(queue.shared()));
        QueueRecord::new(&self.table, [Arc::clone(&cq), cq], SqTracker::new(1), source)
            .ok_or(IoctlError::new("SrqCreate (user index)", Errno::NOMEM))
    }

    fn arm_srq_limit(&self, srq: u32, limit: u32) -> Result<(), IoctlError> {
        let request = ModifySrqReq {
            srq_handle: srq,
            attr_mask: SrqAttrMask::LIMIT,
            srq_limit: limit,
            ..ModifySrqReq::zeroed()
        };
        // SAFETY: `do_create_srq` has just created the SRQ, or the caller of `do_modify_srq` owns
        // it. A limit does not change the ring. There is no payload.
        unsafe { command::modify_srq(&self.file, &request, DriverPayload::default()) }
    }
}
