//! Making queues.

use std::sync::Arc;

use bareverbs_provider::command::{self, ContextInfo, DriverPayload};
use bareverbs_provider::contract::{
    AhRequest, CqRequest, CreateError, CreatedAh, CreatedCq, CreatedQp, CreatedSrq, DoorbellChoice, Provider,
    QpRequest, QueueMemory, SendQueue, SrqChange, SrqRequest,
};
use bareverbs_provider::contract::{CompletionQueue, RecvQueue};
use bareverbs_provider::device::{DeviceFile, Refused};
use bareverbs_provider::mapping::{Mapping, Protection};
use bareverbs_provider::unfinished::Unfinished;
use bareverbs_uapi::rxe::{
    CreateAhResp, CreateCqResp, CreateQpResp, CreateSrqResp, MmapInfo, ModifySrqCmd, ResizeCqResp,
};
use bareverbs_uapi::uverbs::types::{DriverId, QpType};
use bareverbs_uapi::verbs_values::SrqAttrMask;
use bareverbs_uapi::write::structs::ModifySrqReq;
use bareverbs_uapi::write::types::DeviceCapFlags;
use zerocopy::IntoBytes;

use crate::completion::{KernelArm, RxeCq};
use crate::doorbell::KernelDoorbell;
use crate::recv::RxeRq;
use crate::send::{RxeAh, RxeSq, SendLimits};

/// A Soft-RoCE device, opened.
#[derive(Debug)]
pub struct Rxe {
    file: Arc<DeviceFile>,
    info: ContextInfo,
    capabilities: DeviceCapFlags,
}

impl Rxe {
    /// Maps a queue. What the kernel told is good for one mapping only.
    fn map(&self, info: &MmapInfo) -> Result<Mapping, Refused> {
        self.file.map(info.offset, info.size as usize, Protection::ReadWrite)
    }

    /// Bytes of the active MTU of the only port.
    fn mtu(&self) -> Result<u32, Refused> {
        let port = command::query_port(&self.file, 1)?;
        Ok(128 << port.legacy_resp.active_mtu.0.clamp(1, 5))
    }
}

/// Looks whether queues may lie where the kernel puts them.
fn in_memory_of_the_kernel(memory: QueueMemory) -> Result<(), CreateError> {
    match memory {
        QueueMemory::Ordinary => Ok(()),
        QueueMemory::HugePages => Err(CreateError::Unsupported { what: "queues in huge pages" }),
    }
}

impl Provider for Rxe {
    type Cq = RxeCq;
    type Sq = RxeSq;
    type Rq = RxeRq;
    type Srq = RxeRq;
    type Ah = RxeAh;

    fn drives(driver_id: u32) -> bool {
        driver_id == DriverId::RXE.0
    }

    fn open(file: Arc<DeviceFile>) -> Result<Self, Refused> {
        // SAFETY: rxe has no payload for contexts.
        let info = unsafe { command::get_context(&file, DriverPayload::default()) }?;
        let capabilities = command::query_device_ex(&file)?.device_cap_flags_ex;
        Ok(Self { file, info, capabilities })
    }

    fn context_info(&self) -> ContextInfo {
        self.info
    }

    fn alloc_pd(&self) -> Result<u32, Refused> {
        // SAFETY: rxe has no payload for domains.
        unsafe { command::alloc_pd(&self.file, DriverPayload::default()) }
    }

    fn create_cq(&self, request: &CqRequest) -> Result<CreatedCq<Self>, CreateError> {
        if request.compressed {
            return Err(CreateError::Unsupported { what: "compressed completions" });
        }
        in_memory_of_the_kernel(request.memory)?;
        let mut response = CreateCqResp::zeroed();
        let payload = DriverPayload { input: &[], output: response.as_mut_bytes() };
        // SAFETY: rxe reads no payload and writes its response into ours, which has its full size.
        let made = unsafe { command::create_cq(&self.file, request, payload) }?;
        // The handle goes if the rest fails; an error of its own could only be that it is gone already.
        let destroy = |file: &DeviceFile, handle| {
            let _ = command::destroy_cq(file, handle);
        };
        let unfinished = Unfinished::new(&self.file, made.handle, destroy);
        let memory = self.map(&response.mi)?;
        let arm = KernelArm::new(self.file.clone(), made.handle);
        let queue = RxeCq::new(memory, request.entries, arm)?;
        Ok(CreatedCq { handle: unfinished.finished(), entries: queue.capacity(), queue })
    }

    fn resize_cq(&self, cq: u32, queue: &mut RxeCq, entries: u32) -> Result<u32, CreateError> {
        queue.release();
        let mut response = ResizeCqResp::zeroed();
        let payload = DriverPayload { input: &[], output: response.as_mut_bytes() };
        // SAFETY: rxe reads no payload and writes its response into ours, which has its full size.
        unsafe { command::resize_cq(&self.file, cq, entries, payload) }?;
        queue.follow(self.map(&response.mi).map_err(CreateError::from), entries)?;
        Ok(queue.capacity())
    }

    fn create_qp(&self, request: &QpRequest) -> Result<CreatedQp<Self>, CreateError> {
        if request.doorbell == DoorbellChoice::Own {
            return Err(CreateError::Unsupported { what: "doorbells of one queue pair's own" });
        }
        let mut request = *request;
        // Kernels that check the element in work against the width refuse inline data on a queue of width 0.
        request.cap.max_send_sge = request.cap.max_send_sge.max(1);
        if request.scatter_to_cqe {
            return Err(CreateError::Unsupported { what: "messages in completions" });
        }
        if request.max_tso_header > 0 {
            return Err(CreateError::Unsupported { what: "large sends" });
        }
        in_memory_of_the_kernel(request.memory)?;
        if SendLimits::new(request.qp_type, 0, 0).is_none() {
            return Err(CreateError::Unsupported { what: "queue pairs of this type" });
        }
        let mtu = if request.qp_type == QpType::UD { self.mtu()? } else { 0 };
        let mut response = CreateQpResp::zeroed();
        let payload = DriverPayload { input: &[], output: response.as_mut_bytes() };
        // SAFETY: rxe reads no payload and writes its response into ours, which has its full size.
        let made = unsafe { command::create_qp(&self.file, &request, payload) }?;
        let destroy = |file: &DeviceFile, handle| {
            let _ = command::destroy_qp(file, handle);
        };
        let unfinished = Unfinished::new(&self.file, made.handle, destroy);

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
            .ok_or(CreateError::Unsupported { what: "queue pairs of this type" })?
            .with_mtu(mtu)
            .with_capabilities(self.capabilities);
        let doorbell = KernelDoorbell::new(self.file.clone(), made.handle);
        let sq = RxeSq::new(memory, request.cap.max_send_wr, limits, doorbell)?;
        // 6.1 reports the depths as asked for; the rings are deeper.
        cap.max_send_wr = sq.capacity();
        cap.max_recv_wr = rq.as_ref().map_or(0, RecvQueue::capacity);
        Ok(CreatedQp { handle: unfinished.finished(), qp_num: made.qp_num, cap, sq, rq })
    }

    fn create_srq(&self, request: &SrqRequest) -> Result<CreatedSrq<Self>, CreateError> {
        in_memory_of_the_kernel(request.memory)?;
        let mut response = CreateSrqResp::zeroed();
        let payload = DriverPayload { input: &[], output: response.as_mut_bytes() };
        // SAFETY: rxe reads no payload and writes its response into ours, which has its full size.
        let made = unsafe { command::create_srq(&self.file, request, payload) }?;
        let destroy = |file: &DeviceFile, handle| {
            let _ = command::destroy_srq(file, handle);
        };
        let unfinished = Unfinished::new(&self.file, made.handle, destroy);
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

    fn modify_srq(&self, srq: u32, queue: &mut RxeRq, change: SrqChange) -> Result<(), CreateError> {
        queue.ring();
        let mut info = MmapInfo::zeroed();
        // The kernel wants the address whatever the change, and answers a resize by writing there.
        let command = ModifySrqCmd { mmap_info_addr: (&raw mut info).expose_provenance() as u64 };
        let (attr_mask, max_wr, srq_limit) = match change {
            SrqChange::Limit(limit) => (SrqAttrMask::LIMIT, 0, limit),
            SrqChange::MaxWr(max_wr) => (SrqAttrMask::MAX_WR, max_wr, 0),
        };
        let request =
            ModifySrqReq { srq_handle: srq, attr_mask, max_wr, srq_limit, ..ModifySrqReq::zeroed() };
        let payload = DriverPayload { input: command.as_bytes(), output: &mut [] };
        // SAFETY: the address is that of `info`, which has the size of what the kernel writes.
        unsafe { command::modify_srq(&self.file, &request, payload) }?;
        let SrqChange::MaxWr(max_wr) = change else { return Ok(()) };
        // SAFETY: our own variable; volatile, because only the kernel knows that it was written.
        let info = unsafe { (&raw const info).read_volatile() };
        match self.map(&info) {
            Ok(memory) => queue.move_to(memory, max_wr),
            Err(refused) => {
                queue.lose();
                Err(refused.into())
            }
        }
    }

    fn create_ah(&self, request: &AhRequest) -> Result<CreatedAh<Self>, CreateError> {
        let mut response = CreateAhResp::zeroed();
        let payload = DriverPayload { input: &[], output: response.as_mut_bytes() };
        // SAFETY: rxe reads no payload and writes its response into ours, which has its full size.
        let made = unsafe { command::create_ah(&self.file, request, payload) }?;
        if response.ah_num == 0 {
            // It cannot fail: nothing uses the handle yet.
            let _ = command::destroy_ah(&self.file, made.handle);
            return Err(CreateError::Unsupported { what: "address handles that the kernel does not number" });
        }
        Ok(CreatedAh { handle: made.handle, ah: RxeAh { number: response.ah_num } })
    }
}
