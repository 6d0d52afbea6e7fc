//! Making queues.

use std::sync::Arc;

use bareverbs_provider::command::{self, ContextInfo, DriverPayload};
use bareverbs_provider::contract::{CompletionQueue, RecvQueue};
use bareverbs_provider::contract::{
    CqRequest, CreateError, CreatedCq, CreatedQp, CreatedSrq, Provider, QpRequest, SendQueue, SrqRequest,
};
use bareverbs_provider::device::{DeviceFile, Refused};
use bareverbs_provider::mapping::{Mapping, Protection};
use bareverbs_uapi::rxe::{CreateCqResp, CreateQpResp, CreateSrqResp, MmapInfo};
use bareverbs_uapi::uverbs::types::DriverId;
use zerocopy::IntoBytes;

use crate::completion::{KernelArm, RxeCq};
use crate::doorbell::KernelDoorbell;
use crate::recv::RxeRq;
use crate::send::{RxeSq, SendLimits};

/// A Soft-RoCE device, opened.
#[derive(Debug)]
pub struct Rxe {
    file: Arc<DeviceFile>,
    info: ContextInfo,
}

impl Rxe {
    /// Maps a queue. What the kernel told is good for one mapping only.
    fn map(&self, info: &MmapInfo) -> Result<Mapping, Refused> {
        self.file.map(info.offset, info.size as usize, Protection::ReadWrite)
    }
}

/// Destroys a half-made object unless it is completed.
struct Unfinished<'a> {
    file: &'a DeviceFile,
    handle: u32,
    destroy: fn(&DeviceFile, u32),
}

impl Unfinished<'_> {
    fn finished(self) -> u32 {
        let handle = self.handle;
        std::mem::forget(self);
        handle
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        (self.destroy)(self.file, self.handle);
    }
}

impl Provider for Rxe {
    type Cq = RxeCq;
    type Sq = RxeSq;
    type Rq = RxeRq;
    type Srq = RxeRq;

    fn drives(driver_id: u32) -> bool {
        driver_id == DriverId::RXE.0
    }

    fn open(file: Arc<DeviceFile>) -> Result<Self, Refused> {
        // SAFETY: rxe has no payload for contexts.
        let info = unsafe { command::get_context(&file, DriverPayload::default()) }?;
        Ok(Self { file, info })
    }

    fn context_info(&self) -> ContextInfo {
        self.info
    }

    fn create_cq(&self, request: &CqRequest) -> Result<CreatedCq<Self>, CreateError> {
        let mut response = CreateCqResp::zeroed();
        let payload = DriverPayload { input: &[], output: response.as_mut_bytes() };
        // SAFETY: rxe reads no payload and writes its response into ours, which has its full size.
        let made = unsafe { command::create_cq(&self.file, request, payload) }?;
        // The handle goes if the rest fails; an error of its own could only be that it is gone already.
        let destroy = |file: &DeviceFile, handle| {
            let _ = command::destroy_cq(file, handle);
        };
        let unfinished = Unfinished { file: &self.file, handle: made.handle, destroy };
        let memory = self.map(&response.mi)?;
        let arm = KernelArm::new(self.file.clone(), made.handle);
        let queue = RxeCq::new(memory, request.entries, arm)?;
        Ok(CreatedCq { handle: unfinished.finished(), entries: queue.capacity(), queue })
    }

    fn create_qp(&self, request: &QpRequest) -> Result<CreatedQp<Self>, CreateError> {
        let mut request = *request;
        // Kernels that check the element in work against the width refuse inline data on a queue of width 0.
        request.cap.max_send_sge = request.cap.max_send_sge.max(1);
        if SendLimits::new(request.qp_type, 0, 0).is_none() {
            return Err(CreateError::Unsupported { what: "queue pairs of this type" });
        }
        let mut response = CreateQpResp::zeroed();
        let payload = DriverPayload { input: &[], output: response.as_mut_bytes() };
        // SAFETY: rxe reads no payload and writes its response into ours, which has its full size.
        let made = unsafe { command::create_qp(&self.file, &request, payload) }?;
        let destroy = |file: &DeviceFile, handle| {
            let _ = command::destroy_qp(file, handle);
        };
        let unfinished = Unfinished { file: &self.file, handle: made.handle, destroy };

        let mut cap = made.cap;
        let rq = match request.srq {
            Some(_) => {
                cap.max_recv_sge = 0;
                None
            }
            None => {
                let memory = self.map(&response.rq_mi)?;
                // The kernel keeps the width that was asked for.
                cap.max_recv_sge = request.cap.max_recv_sge;
                Some(RxeRq::new(memory, request.cap.max_recv_wr, cap.max_recv_sge)?)
            }
        };
        let memory = self.map(&response.sq_mi)?;
        let limits = SendLimits::new(request.qp_type, cap.max_send_sge, cap.max_inline_data)
            .ok_or(CreateError::Unsupported { what: "queue pairs of this type" })?;
        let doorbell = KernelDoorbell::new(self.file.clone(), made.handle);
        let sq = RxeSq::new(memory, request.cap.max_send_wr, limits, doorbell)?;
        // 6.1 reports the depths as asked for; the rings are deeper.
        cap.max_send_wr = sq.capacity();
        cap.max_recv_wr = rq.as_ref().map_or(0, RecvQueue::capacity);
        Ok(CreatedQp { handle: unfinished.finished(), qp_num: made.qp_num, cap, sq, rq })
    }

    fn create_srq(&self, request: &SrqRequest) -> Result<CreatedSrq<Self>, CreateError> {
        let mut response = CreateSrqResp::zeroed();
        let payload = DriverPayload { input: &[], output: response.as_mut_bytes() };
        // SAFETY: rxe reads no payload and writes its response into ours, which has its full size.
        let made = unsafe { command::create_srq(&self.file, request, payload) }?;
        let destroy = |file: &DeviceFile, handle| {
            let _ = command::destroy_srq(file, handle);
        };
        let unfinished = Unfinished { file: &self.file, handle: made.handle, destroy };
        let memory = self.map(&response.mi)?;
        let queue = RxeRq::new(memory, request.max_wr, made.max_sge)?;
        Ok(CreatedSrq {
            handle: unfinished.finished(),
            max_wr: queue.capacity(),
            max_sge: made.max_sge,
            srq_num: response.srq_num,
            queue,
        })
    }
}
