//! The provider: creation of queues.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, Weak};

use bareverbs_provider::Errno;
use bareverbs_provider::caps::{Capabilities, MrQuirks};
use bareverbs_provider::command::{self, ContextInfo, DriverPayload, MrPayload, QpBuffers};
use bareverbs_provider::device::{DeviceFile, IoctlError};
use bareverbs_provider::doorbell::KernelDoorbell;
use bareverbs_provider::error::{CreateError, Feature, Limit};
use bareverbs_provider::handle_guard::HandleGuard;
use bareverbs_provider::mapping::Protection;
use bareverbs_provider::request::{
    AhRequest, CqRequest, CqeSize, DoorbellChoice, QpRequest, SrqChange, SrqRequest,
};
use bareverbs_provider::traits::{
    CompletionQueue, CreatedAh, CreatedCq, CreatedQp, CreatedSrq, Provider, RecvQueue, SendQueue,
};
use bareverbs_provider::work::WcStatus;
use bareverbs_uapi::siw::{
    CreateCqResp, CreateQpResp, CreateSrqResp, GetContextResp, MAX_INLINE, MAX_SGE, RegMrCmd, RegMrResp, Rqe,
    Sqe,
};
use bareverbs_uapi::uverbs::types::{DriverId, QpCap, QpCreateFlags, QpType};
use bareverbs_uapi::verbs_values::SrqAttrMask;
use bareverbs_uapi::write::structs::ModifySrqReq;
use zerocopy::IntoBytes;

use crate::completion::{SiwCq, cq_bytes};
use crate::control::{Control, KernelControl};
use crate::memory::{KernelQueue, SharedMemory, bytes, check_count};
use crate::recv::SiwRq;
use crate::send::{QpMemory, SiwAh, SiwSq};
use crate::shared::{CqShared, lock};

/// An open Soft-iWARP device.
#[derive(Debug)]
pub struct Siw {
    file: Arc<DeviceFile>,
    info: ContextInfo,
    /// The CQs by their handles. The kernel gives the handle of a destroyed CQ to a new object.
    cqs: Mutex<HashMap<u32, Weak<CqShared>>>,
    max_cqe: u32,
}

impl Siw {
    /// Maps a queue. Any key is valid, also 0 and `SIW_INVAL_UOBJ_KEY`.
    fn map(&self, key: u64, len: usize) -> Result<SharedMemory, CreateError> {
        let queue: KernelQueue = self.file.map(key, len, Protection::ReadWrite)?.try_into()?;
        Ok(Arc::new(queue))
    }

    fn cq(&self, handle: u32) -> Result<Arc<CqShared>, CreateError> {
        let known = lock(&self.cqs).get(&handle).and_then(Weak::upgrade);
        known.ok_or_else(|| IoctlError::new("QpCreate", Errno::INVAL).into())
    }
}

/// The number of elements to ask for: room for `entries` completions, and for as many that are not reported.
fn elements(entries: u32, max: u32) -> u32 {
    entries.saturating_mul(2).min(max).max(entries)
}

// SAFETY: by the numbers of the trait's obligations:
// 1. Handles are results of the kernel's create commands in the context of `file`, and are returned to the
//    caller only.
// 2. The kernel gives each ring its own pages (`siw_mmap_entry_insert` of `siw_verbs.c`). The queues own
//    the mapping. Other owners of them (`CqShared`, `QpShared`) keep it. For an object, the kernel accesses
//    its own mapping of those pages, and memory that requests name.
// 3. `HandleGuard` destroys an object whose rings could not be mapped or are invalid. No request was posted
//    to it.
// 4. siw has no resize: `resize_cq` and a change of an SRQ's size return `Unsupported`.
// 5. and 6. siw has no device memory and no null key; the default methods return `Unsupported`.
// 7. siw has no REREG_MR. Its MRs are addressed by their address (`MrQuirks::iova_is_addr`). Writes of peers
//    may outlast DEREG_MR (`MrQuirks::dereg_is_early`).
unsafe impl Provider for Siw {
    type Cq = SiwCq;
    type Sq = SiwSq;
    type Rq = SiwRq;
    type Srq = SiwRq;
    type Ah = SiwAh;

    fn drives(driver_id: u32) -> bool {
        driver_id == DriverId::SIW.0
    }

    fn open(file: Arc<DeviceFile>) -> Result<Self, IoctlError> {
        if !Self::drives(file.driver_id()) {
            return Err(IoctlError::new("GetContext", Errno::INVAL));
        }
        let mut response = GetContextResp::zeroed();
        let payload = DriverPayload { input: &[], output: response.as_mut_bytes() };
        // SAFETY: siw reads no payload and writes its response into `response`, which has its full size.
        let info = unsafe { command::get_context(&file, payload) }?;
        let max_cqe = command::query_device(&file)?.max_cqe;
        Ok(Self { file, info, cqs: Mutex::default(), max_cqe })
    }

    fn capabilities(&self) -> Capabilities {
        let ContextInfo { num_comp_vectors, core_support } = self.info;
        // `siw_dereg_mr` of `siw_verbs.c` does not wait. Messages are placed while the socket's
        // `sk_callback_lock` is read-locked (`siw_qp_llp_data_ready` of `siw_qp.c`).
        let mr_quirks = MrQuirks { iova_is_addr: true, dereg_is_early: true, ..MrQuirks::default() };
        Capabilities { num_comp_vectors, core_support, iwarp: true, mr_quirks, ..Capabilities::default() }
    }

    /// The low 8 bits of the keys count up, so that a key of a deregistered MR is not valid again at once.
    fn mr_payload(&self) -> Option<MrPayload> {
        let next = AtomicU8::new(0);
        let request = move || {
            let stag_key = next.fetch_add(1, Ordering::Relaxed);
            RegMrCmd { stag_key, ..RegMrCmd::zeroed() }.as_bytes().to_vec()
        };
        Some(MrPayload { request: Box::new(request), response_len: size_of::<RegMrResp>() })
    }

    fn alloc_pd(&self) -> Result<u32, IoctlError> {
        // SAFETY: siw has no payload for PDs.
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
        let asked = CqRequest { entries: elements(request.entries, self.max_cqe), ..*request };
        let mut response = CreateCqResp::zeroed();
        let payload = DriverPayload { input: &[], output: response.as_mut_bytes() };
        // SAFETY: siw reads no payload and writes its response into `response`, which has its full size.
        let made = unsafe { command::create_cq(&self.file, &asked, None, payload) }?;
        // SAFETY: the kernel has just created the object, and no other code knows its handle before this
        // function returns it.
        let guard = unsafe { HandleGuard::new(&self.file, made.handle, command::destroy_cq, ()) };
        let count = response.num_cqe;
        check_count("CQ", count, request.entries)?;
        let memory = self.map(response.cq_key, cq_bytes(count))?;
        let entries = (count / 2).max(request.entries);
        // SAFETY: the kernel shares these pages for this queue only.
        let queue = unsafe { SiwCq::new(memory, count, entries) }?;
        let mut cqs = lock(&self.cqs);
        cqs.retain(|_, cq| cq.strong_count() > 0);
        cqs.insert(made.handle, Arc::downgrade(queue.shared()));
        Ok(CreatedCq { handle: guard.disarm().0, entries: queue.capacity(), queue })
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
        if request.qp_type != QpType::RC {
            return Err(CreateError::Unsupported { feature: Feature::QpType });
        }
        let (asked, max) = (request.cap.max_inline_data, MAX_INLINE);
        if asked > max {
            let (asked, max) = (asked.into(), max.into());
            return Err(CreateError::Limit { limit: Limit::MaxInlineData, asked, max });
        }
        let cqs = [self.cq(request.send_cq)?, self.cq(request.recv_cq)?];
        let mut request = *request;
        // An element has the largest width. The kernel has no empty send queue, and a receive queue of one
        // element spares the case of none.
        request.cap.max_send_wr = request.cap.max_send_wr.max(1);
        request.cap.max_send_sge = request.cap.max_send_sge.max(1);
        let with_rq = request.srq.is_none();
        request.cap.max_recv_wr = if with_rq { request.cap.max_recv_wr.max(1) } else { 0 };
        let mut response = CreateQpResp::zeroed();
        let payload = DriverPayload { input: &[], output: response.as_mut_bytes() };
        // SAFETY: siw reads no payload and writes its response into `response`, which has its full size.
        let made = unsafe { command::create_qp(&self.file, &request, &QpBuffers::None, payload) }?;
        // SAFETY: the kernel has just created the object, and no other code knows its handle before this
        // function returns it.
        let guard = unsafe { HandleGuard::new(&self.file, made.handle, command::destroy_qp, ()) };
        let CreateQpResp { num_sqe, num_rqe, sq_key, rq_key, .. } = response;
        check_count("send queue", num_sqe, request.cap.max_send_wr)?;
        let sq = (self.map(sq_key, bytes::<Sqe>(num_sqe))?, num_sqe);
        let rq = if with_rq {
            check_count("receive queue", num_rqe, request.cap.max_recv_wr)?;
            Some((self.map(rq_key, bytes::<Rqe>(num_rqe))?, num_rqe))
        } else {
            None
        };
        let doorbell = KernelDoorbell::new(self.file.clone(), made.handle);
        // SAFETY: the queues use the value in their own methods, whose caller owns the QP, and in those of a
        // CQ until `release_handle`, before which the caller owns it too.
        let control: Arc<dyn Control> =
            Arc::new(unsafe { KernelControl::new(self.file.clone(), made.handle) });
        let signal_all = request.flags.contains(QpCreateFlags::SQ_SIG_ALL);
        let [send_cq, recv_cq] = &cqs;
        let memory = QpMemory { sq, rq };
        // SAFETY: the kernel shares these pages for this QP only, zeroed. Doorbell and commands are those of
        // this QP.
        let (sq, rq) =
            unsafe { SiwSq::new(made.qp_num, memory, signal_all, [send_cq, recv_cq], doorbell, control) }?;
        let cap = QpCap {
            max_send_wr: sq.capacity(),
            max_recv_wr: rq.as_ref().map_or(0, RecvQueue::capacity),
            max_send_sge: MAX_SGE,
            max_recv_sge: if with_rq { MAX_SGE } else { 0 },
            max_inline_data: MAX_INLINE,
        };
        Ok(CreatedQp { handle: guard.disarm().0, qp_num: made.qp_num, cap, sq, rq })
    }

    unsafe fn create_srq(&self, request: &SrqRequest<'_>) -> Result<CreatedSrq<Self>, CreateError> {
        request.memory.check_is_default()?;
        if request.xrc.is_some() {
            return Err(CreateError::Unsupported { feature: Feature::XrcQps });
        }
        let mut response = CreateSrqResp::zeroed();
        let payload = DriverPayload { input: &[], output: response.as_mut_bytes() };
        // SAFETY: siw reads no payload and writes its response into `response`, which has its full size.
        let made = unsafe { command::create_srq(&self.file, request, payload) }?;
        // SAFETY: the kernel has just created the object, and no other code knows its handle before this
        // function returns it.
        let guard = unsafe { HandleGuard::new(&self.file, made.handle, command::destroy_srq, ()) };
        let count = response.num_rqe;
        check_count("SRQ", count, request.max_wr)?;
        let memory = self.map(response.srq_key, bytes::<Rqe>(count))?;
        // SAFETY: the kernel shares these pages for this queue only, zeroed.
        let queue = unsafe { SiwRq::srq(memory, count, request.max_wr) }?;
        Ok(CreatedSrq {
            handle: guard.disarm().0,
            max_wr: queue.capacity(),
            max_sge: MAX_SGE,
            srq_num: 0,
            queue,
        })
    }

    unsafe fn modify_srq(&self, srq: u32, queue: &mut SiwRq, change: SrqChange) -> Result<(), CreateError> {
        let SrqChange::Limit(srq_limit) = change else {
            return Err(CreateError::Unsupported { feature: Feature::SrqResize });
        };
        queue.ring();
        let request = ModifySrqReq {
            srq_handle: srq,
            attr_mask: SrqAttrMask::LIMIT,
            srq_limit,
            ..ModifySrqReq::zeroed()
        };
        // SAFETY: siw has no payload. The caller owns the SRQ.
        unsafe { command::modify_srq(&self.file, &request, DriverPayload::default()) }.map_err(Into::into)
    }

    fn create_ah(&self, _: &AhRequest) -> Result<CreatedAh<Self>, CreateError> {
        Err(CreateError::Unsupported { feature: Feature::AddressHandles })
    }

    fn explain(status: WcStatus) -> Option<&'static str> {
        match status {
            WcStatus::LOC_QP_OP_ERR => Some(
                "on Soft-iWARP also: an lkey that is wrong or of another PD, or a range beyond its MR; or the connection \
                 was lost while the request was sent",
            ),
            WcStatus::WR_FLUSH_ERR => Some(
                "on Soft-iWARP also: the connection has ended: the peer closed it or was killed, or it refused an earlier \
                 request (a wrong rkey, range or access right, no receive posted, or one that is too short)",
            ),
            WcStatus::GENERAL_ERR => Some(
                "on Soft-iWARP also: the memory of a receive or of a read is not registered, not writable or of another PD",
            ),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use bareverbs_provider::request::QueueMemory;
    use bareverbs_uapi::uverbs::types::CoreSupport;
    use bareverbs_uapi::write::types::CqCreateFlags;

    use super::*;

    #[test]
    fn open_rejects_files_of_other_drivers() {
        let null = std::fs::File::open("/dev/null").unwrap();
        // SAFETY: `/dev/null` fails every ioctl and mmap.
        let file = unsafe { DeviceFile::from_fd_unchecked(null.into(), DriverId::UNKNOWN.0) }.unwrap();
        let refused = Siw::open(Arc::new(file)).map(drop).unwrap_err();
        assert_eq!(refused, IoctlError::new("GetContext", Errno::INVAL));
    }

    /// A device that fails every command with `ENOTTY`.
    fn without_kernel() -> Siw {
        let null = std::fs::File::open("/dev/null").unwrap();
        // SAFETY: `/dev/null` fails every ioctl and mmap.
        let file = unsafe { DeviceFile::from_fd_unchecked(null.into(), DriverId::SIW.0) }.unwrap();
        let info = ContextInfo { num_comp_vectors: 1, core_support: CoreSupport::empty() };
        Siw { file: Arc::new(file), info, cqs: Mutex::default(), max_cqe: 1000 }
    }

    #[test]
    fn payload_of_mrs_has_8_bytes_and_a_new_key_each_time() {
        assert_eq!((size_of::<RegMrCmd>(), size_of::<RegMrResp>()), (8, 8));
        let MrPayload { request, response_len } = without_kernel().mr_payload().unwrap();
        let keys: HashSet<_> = (0..256).map(|_| request()).collect();
        assert_eq!((keys.len(), response_len), (256, 8));
        assert!(keys.iter().all(|key| key.len() == 8));
    }

    #[test]
    fn cq_has_room_for_as_many_completions_that_are_not_reported() {
        assert_eq!(elements(100, 1000), 200);
        assert_eq!(elements(600, 1000), 1000);
        assert_eq!(elements(2000, 1000), 2000, "the kernel refuses it");
    }

    #[test]
    fn qps_and_cqs_that_siw_lacks_are_refused_before_any_command() {
        let siw = without_kernel();
        let cq = CqRequest {
            entries: 1,
            user_handle: 0,
            channel: None,
            vector: 0,
            compressed: false,
            cqe_size: CqeSize::Bytes64,
            flags: CqCreateFlags::empty(),
            memory: QueueMemory::BasePages,
        };
        let cq_error = |request| {
            // SAFETY: the kernel creates nothing.
            unsafe { siw.create_cq(&request) }.map(drop).unwrap_err()
        };
        assert_eq!(cq_error(cq), IoctlError::new("CqCreate", Errno::NOTTY).into());
        for (request, feature) in [
            (CqRequest { cqe_size: CqeSize::Bytes128, ..cq }, Feature::CqeSize),
            (CqRequest { compressed: true, ..cq }, Feature::CompressedCompletions),
            (CqRequest { flags: CqCreateFlags::IGNORE_OVERRUN, ..cq }, Feature::CqIgnoreOverrun),
        ] {
            assert_eq!(cq_error(request), CreateError::Unsupported { feature });
        }
        let qp = QpRequest {
            pd: 1,
            send_cq: 1,
            recv_cq: 1,
            srq: None,
            qp_type: QpType::RC,
            cap: QpCap { max_inline_data: MAX_INLINE, ..QpCap::zeroed() },
            max_tso_header: 0,
            flags: QpCreateFlags::SQ_SIG_ALL,
            source_qpn: None,
            scatter_to_cqe: false,
            user_handle: 0,
            doorbell: DoorbellChoice::Any,
            memory: QueueMemory::BasePages,
        };
        let qp_error = |request| {
            // SAFETY: as above.
            unsafe { siw.create_qp(&request) }.map(drop).unwrap_err()
        };
        assert_eq!(qp_error(qp), IoctlError::new("QpCreate", Errno::INVAL).into(), "the CQ is unknown");
        for (request, feature) in [
            (QpRequest { doorbell: DoorbellChoice::Own, ..qp }, Feature::DedicatedDoorbells),
            (QpRequest { scatter_to_cqe: true, ..qp }, Feature::ScatterToCqe),
            (QpRequest { max_tso_header: 1, ..qp }, Feature::Tso),
            (QpRequest { flags: QpCreateFlags::CVLAN_STRIPPING, ..qp }, Feature::QpCreateFlags),
            (QpRequest { source_qpn: Some(1), ..qp }, Feature::QpCreateFlags),
            (QpRequest { qp_type: QpType::UD, ..qp }, Feature::QpType),
        ] {
            assert_eq!(qp_error(request), CreateError::Unsupported { feature });
        }
        let cap = QpCap { max_inline_data: MAX_INLINE + 1, ..qp.cap };
        let limit = CreateError::Limit { limit: Limit::MaxInlineData, asked: 81, max: 80 };
        assert_eq!(qp_error(QpRequest { cap, ..qp }), limit);
    }
}
