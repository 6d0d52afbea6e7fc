//! The provider: creation and resize of queues.

use std::sync::Arc;

use bareverbs_provider::Errno;
use bareverbs_provider::caps::{Capabilities, MrQuirks};
use bareverbs_provider::command::{self, ContextInfo, DriverPayload, QpBuffers};
use bareverbs_provider::device::{DeviceFile, IoctlError};
use bareverbs_provider::error::{CreateError, Feature};
use bareverbs_provider::handle_guard::HandleGuard;
use bareverbs_provider::mapping::Protection;
use bareverbs_provider::request::{
    AhRequest, CqRequest, CqeSize, DoorbellChoice, QpRequest, QueueMemory, SrqChange, SrqRequest,
};
use bareverbs_provider::traits::{CompletionQueue, RecvQueue};
use bareverbs_provider::traits::{CreatedAh, CreatedCq, CreatedQp, CreatedSrq, Provider, SendQueue};
use bareverbs_provider::work::WcStatus;
use bareverbs_uapi::rxe::{
    CreateAhResp, CreateCqResp, CreateQpResp, CreateSrqResp, MmapInfo, ModifySrqCmd, ResizeCqResp,
};
use bareverbs_uapi::uverbs::types::{DriverId, QpCreateFlags, QpType};
use bareverbs_uapi::verbs_values::SrqAttrMask;
use bareverbs_uapi::write::structs::ModifySrqReq;
use bareverbs_uapi::write::types::DeviceCapFlags;
use zerocopy::IntoBytes;

use crate::completion::{KernelArm, RxeCq};
use crate::memory::KernelQueue;
use crate::recv::RxeRq;
use crate::send::{RxeAh, RxeSq, SendLimits};
use bareverbs_provider::doorbell::KernelDoorbell;

/// An open Soft-RoCE device.
#[derive(Debug)]
pub struct Rxe {
    file: Arc<DeviceFile>,
    info: ContextInfo,
    device_cap_flags: DeviceCapFlags,
}

impl Rxe {
    /// Maps a queue. The kernel allows one mapping per `MmapInfo`.
    fn map(&self, info: &MmapInfo) -> Result<KernelQueue, CreateError> {
        self.file.map(info.offset, info.size as usize, Protection::ReadWrite)?.try_into()
    }

    /// The active MTU of the only port, in bytes.
    fn mtu(&self) -> Result<u32, IoctlError> {
        let port = command::query_port(&self.file, 1)?;
        Ok(128 << port.legacy_resp.active_mtu.0.clamp(1, 5))
    }
}

// SAFETY: by the numbers of the trait's obligations:
// 1. Handles are results of the kernel's create commands in the context of `file`, and are returned
//    to the caller only.
// 2. The kernel gives each ring its own pages and allows one mapping of them (`rxe_mmap` in
//    `rxe_mmap.c`). The queue owns that mapping. For an object, the kernel accesses its own mapping
//    of those pages, which lasts as long as the object, and memory that requests name.
// 3. `HandleGuard` destroys an object whose rings could not be mapped or are invalid. No request
//    was posted to it.
// 4. After a resize the kernel uses the new ring only, and `finish_resize` keeps its mapping. If
//    the mapping fails, the queue keeps the old pages, which the kernel no longer uses. `resize_cq`
//    releases all polled completions first.
// 5. and 6. rxe has no device memory and no null key; the default methods return `Unsupported`.
// 7. The quirks of `capabilities` are those of docs/kernel-bugs.md. rxe checks a REREG_MR of one
//    change before it changes anything (`rxe_rereg_user_mr` of `rxe_verbs.c`). The core then fails
//    only with `EFAULT`, if it can't write the response.
unsafe impl Provider for Rxe {
    type Cq = RxeCq;
    type Sq = RxeSq;
    type Rq = RxeRq;
    type Srq = RxeRq;
    type Ah = RxeAh;

    fn drives(driver_id: u32) -> bool {
        driver_id == DriverId::RXE.0
    }

    fn open(file: Arc<DeviceFile>) -> Result<Self, IoctlError> {
        if !Self::drives(file.driver_id()) {
            return Err(IoctlError::new("GetContext", Errno::INVAL));
        }
        // SAFETY: rxe has no payload for contexts.
        let info = unsafe { command::get_context(&file, DriverPayload::default()) }?;
        let device_cap_flags = command::query_device_ex(&file)?.device_cap_flags_ex;
        Ok(Self { file, info, device_cap_flags })
    }

    fn capabilities(&self) -> Capabilities {
        let ContextInfo { num_comp_vectors, core_support } = self.info;
        let mr_quirks = MrQuirks {
            // docs/kernel-bugs.md, "ODP copies ignore the offset in the page".
            odp_ignores_page_offset: true,
            // docs/kernel-bugs.md, "ODP lookups ignore the difference of iova and address".
            odp_ignores_addr: true,
            // `rxe_rereg_user_mr` of `rxe_verbs.c` keeps the pages as they are.
            odp_is_fixed: true,
            dereg_is_early: false,
            iova_is_addr: false,
            // docs/soundness.md, "Errnos of REREG_MR".
            rereg_is_atomic: true,
        };
        Capabilities {
            num_comp_vectors,
            core_support,
            // rxe finds no route, or the interface takes no packet (`rxe_requester` of `rxe_req.c`).
            link_down_statuses: &[WcStatus::LOC_QP_OP_ERR],
            mr_quirks,
            ..Capabilities::default()
        }
    }

    fn alloc_pd(&self) -> Result<u32, IoctlError> {
        // SAFETY: rxe has no payload for PDs.
        unsafe { command::alloc_pd(&self.file, DriverPayload::default()) }
    }

    unsafe fn create_cq(&self, request: &CqRequest<'_>) -> Result<CreatedCq<Self>, CreateError> {
        if request.cqe_size != CqeSize::Bytes64 {
            return Err(CreateError::Unsupported { feature: Feature::CqeSize });
        }
        if request.compressed {
            return Err(CreateError::Unsupported { feature: Feature::CompressedCompletions });
        }
        if !request.flags.is_empty() {
            return Err(CreateError::Unsupported { feature: Feature::CqIgnoreOverrun });
        }
        request.memory.check_is_default()?;
        let mut response = CreateCqResp::zeroed();
        let payload = DriverPayload { input: &[], output: response.as_mut_bytes() };
        // SAFETY: rxe reads no payload and writes its response into `response`, which has its full
        // size.
        let made = unsafe { command::create_cq(&self.file, request, None, payload) }?;
        // SAFETY: the kernel has just created the object, and no other code knows its handle before
        // this function returns it.
        let guard = unsafe { HandleGuard::new(&self.file, made.handle, command::destroy_cq, ()) };
        let memory = self.map(&response.mi)?;
        let arm = KernelArm::new(self.file.clone(), made.handle);
        // SAFETY: the kernel shares these pages for this queue and allows one mapping.
        let queue = unsafe { RxeCq::new(memory, request.entries, arm) }?;
        Ok(CreatedCq { handle: guard.disarm().0, entries: queue.capacity(), queue })
    }

    unsafe fn resize_cq(
        &self,
        cq: u32,
        queue: &mut RxeCq,
        entries: u32,
        memory: QueueMemory<'_>,
    ) -> Result<u32, CreateError> {
        memory.check_is_default()?;
        queue.release();
        let mut response = ResizeCqResp::zeroed();
        let payload = DriverPayload { input: &[], output: response.as_mut_bytes() };
        // SAFETY: rxe reads no payload and writes its response into `response`, which has its full
        // size. The caller owns the CQ, and its ring is replaced below.
        unsafe { command::resize_cq(&self.file, cq, entries, payload) }?;
        // SAFETY: the kernel has just moved this queue to these pages and allows one mapping.
        // `release` was called before.
        unsafe { queue.finish_resize(self.map(&response.mi), entries) }?;
        Ok(queue.capacity())
    }

    unsafe fn create_qp(&self, request: &QpRequest<'_>) -> Result<CreatedQp<Self>, CreateError> {
        match request.doorbell {
            DoorbellChoice::Any | DoorbellChoice::Shared => {}
            DoorbellChoice::Own => {
                return Err(CreateError::Unsupported { feature: Feature::DedicatedDoorbells });
            }
            DoorbellChoice::Domain(_) => {
                return Err(CreateError::Unsupported { feature: Feature::ThreadDomains });
            }
        }
        let mut request = *request;
        // Kernels that check the WQE in progress against the SGE width reject inline data on a
        // queue of width 0.
        request.cap.max_send_sge = request.cap.max_send_sge.max(1);
        if request.scatter_to_cqe {
            return Err(CreateError::Unsupported { feature: Feature::ScatterToCqe });
        }
        if request.max_tso_header > 0 {
            return Err(CreateError::Unsupported { feature: Feature::Tso });
        }
        if !QpCreateFlags::SQ_SIG_ALL.contains(request.flags) || request.source_qpn.is_some() {
            return Err(CreateError::Unsupported { feature: Feature::QpCreateFlags });
        }
        request.memory.check_is_default()?;
        if SendLimits::new(request.qp_type, 0, 0).is_none() {
            return Err(CreateError::Unsupported { feature: Feature::QpType });
        }
        let mtu = if request.qp_type == QpType::UD { self.mtu()? } else { 0 };
        let mut response = CreateQpResp::zeroed();
        let payload = DriverPayload { input: &[], output: response.as_mut_bytes() };
        // SAFETY: rxe reads no payload and writes its response into `response`, which has its full
        // size.
        let made = unsafe { command::create_qp(&self.file, &request, &QpBuffers::None, payload) }?;
        // SAFETY: the kernel has just created the object, and no other code knows its handle before
        // this function returns it.
        let guard = unsafe { HandleGuard::new(&self.file, made.handle, command::destroy_qp, ()) };

        let mut cap = made.cap;
        let rq = match request.srq {
            Some(_) => {
                cap.max_recv_sge = 0;
                None
            }
            None => {
                let memory = self.map(&response.rq_mi)?;
                // The kernel uses the requested width.
                cap.max_recv_sge = request.cap.max_recv_sge;
                // SAFETY: the kernel shares these pages for this queue and allows one mapping.
                Some(unsafe { RxeRq::new(memory, request.cap.max_recv_wr, cap.max_recv_sge) }?)
            }
        };
        let memory = self.map(&response.sq_mi)?;
        let limits = SendLimits::new(request.qp_type, cap.max_send_sge, cap.max_inline_data)
            .ok_or(CreateError::Unsupported { feature: Feature::QpType })?
            .with_mtu(mtu)
            .with_capabilities(self.device_cap_flags);
        let doorbell = KernelDoorbell::new(self.file.clone(), made.handle);
        // SAFETY: the kernel shares these pages for this queue and allows one mapping. The doorbell
        // belongs to this QP.
        let sq = unsafe { RxeSq::new(memory, request.cap.max_send_wr, limits, doorbell) }?;
        // 6.1 reports the requested depths; the rings are deeper.
        cap.max_send_wr = sq.capacity();
        cap.max_recv_wr = rq.as_ref().map_or(0, RecvQueue::capacity);
        Ok(CreatedQp { handle: guard.disarm().0, qp_num: made.qp_num, cap, sq, rq })
    }

    unsafe fn create_srq(&self, request: &SrqRequest<'_>) -> Result<CreatedSrq<Self>, CreateError> {
        request.memory.check_is_default()?;
        let mut response = CreateSrqResp::zeroed();
        let payload = DriverPayload { input: &[], output: response.as_mut_bytes() };
        // SAFETY: rxe reads no payload and writes its response into `response`, which has its full
        // size.
        let made = unsafe { command::create_srq(&self.file, request, payload) }?;
        // SAFETY: the kernel has just created the object, and no other code knows its handle before
        // this function returns it.
        let guard = unsafe { HandleGuard::new(&self.file, made.handle, command::destroy_srq, ()) };
        let memory = self.map(&response.mi)?;
        // SAFETY: the kernel shares these pages for this queue and allows one mapping.
        let queue = unsafe { RxeRq::new(memory, request.max_wr, made.max_sge) }?;
        Ok(CreatedSrq {
            handle: guard.disarm().0,
            max_wr: queue.capacity(),
            max_sge: made.max_sge,
            srq_num: response.srq_num,
            queue,
        })
    }

    unsafe fn modify_srq(&self, srq: u32, queue: &mut RxeRq, change: SrqChange) -> Result<(), CreateError> {
        queue.ring();
        let mut info = MmapInfo::zeroed();
        // The kernel requires the address for every change, and writes to it on a resize.
        let command = ModifySrqCmd { mmap_info_addr: (&raw mut info).expose_provenance() as u64 };
        let (attr_mask, max_wr, srq_limit) = match change {
            SrqChange::Limit(limit) => (SrqAttrMask::LIMIT, 0, limit),
            SrqChange::MaxWr(max_wr) => (SrqAttrMask::MAX_WR, max_wr, 0),
        };
        let request =
            ModifySrqReq { srq_handle: srq, attr_mask, max_wr, srq_limit, ..ModifySrqReq::zeroed() };
        let payload = DriverPayload { input: command.as_bytes(), output: &mut [] };
        // SAFETY: the address is that of `info`, which has the size of the struct that the kernel
        // writes. The caller owns the SRQ, and its ring is replaced below.
        unsafe { command::modify_srq(&self.file, &request, payload) }?;
        let SrqChange::MaxWr(max_wr) = change else { return Ok(()) };
        // SAFETY: a local variable. The read is volatile because the kernel wrote it without the
        // compiler's knowledge.
        let info = unsafe { (&raw const info).read_volatile() };
        // SAFETY: the kernel has just moved this queue to these pages, allows one mapping, and no
        // longer uses the old pages.
        unsafe { queue.finish_resize(self.map(&info), max_wr) }
    }

    /// The number of the address handle, 4 bytes in host byte order.
    fn address_vector(ah: &RxeAh) -> Vec<u8> {
        ah.number.to_ne_bytes().to_vec()
    }

    fn explain(status: WcStatus) -> Option<&'static str> {
        match status {
            WcStatus::LOC_QP_OP_ERR => Some(
                "on Soft-RoCE also: an lkey that is wrong or of another PD, or a range beyond its MR; of a receive, \
                 it is shorter than the message; of a send, no packet can be sent: the link was down, there is no \
                 route to the peer, the local address was removed, or a firewall drops it",
            ),
            WcStatus::WR_FLUSH_ERR => Some(
                "on Soft-RoCE also: the request itself failed locally: a wrong lkey, range or access flags, an MR of \
                 another PD, or no packet can be sent (link down, no route)",
            ),
            WcStatus::REM_INV_REQ_ERR => {
                Some("on Soft-RoCE also: a receive whose message was too long or invalidated an invalid rkey")
            }
            WcStatus::REM_OP_ERR => {
                Some("on Soft-RoCE also: the peer's receive is too short, or its MR is not writable")
            }
            _ => None,
        }
    }

    fn create_ah(&self, request: &AhRequest) -> Result<CreatedAh<Self>, CreateError> {
        let mut response = CreateAhResp::zeroed();
        let payload = DriverPayload { input: &[], output: response.as_mut_bytes() };
        // SAFETY: rxe reads no payload and writes its response into `response`, which has its full
        // size.
        let made = unsafe { command::create_ah(&self.file, request, payload) }?;
        if response.ah_num == 0 {
            // Destroying it cannot fail: nothing uses the handle yet.
            // SAFETY: the kernel has just created it, and no other code knows its handle.
            let _ = unsafe { command::destroy_ah(&self.file, made.handle) };
            return Err(CreateError::Unsupported { feature: Feature::AddressHandles });
        }
        Ok(CreatedAh { handle: made.handle, ah: RxeAh { number: response.ah_num } })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_rejects_files_of_other_drivers() {
        let null = std::fs::File::open("/dev/null").unwrap();
        // SAFETY: `/dev/null` fails every ioctl and mmap.
        let file = unsafe { DeviceFile::from_fd_unchecked(null.into(), DriverId::UNKNOWN.0) }.unwrap();
        let file = Arc::new(file);
        let refused = Rxe::open(file).map(drop).unwrap_err();
        assert_eq!(refused, IoctlError::new("GetContext", Errno::INVAL));
    }
}
