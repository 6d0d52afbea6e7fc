//! Queue pairs.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bareverbs_provider::Errno;
use bareverbs_provider::caps::Capabilities;
use bareverbs_provider::command::{self, DriverPayload, QpBuffers};
use bareverbs_provider::device::IoctlError;
use bareverbs_provider::error::{CreateError, Feature};
use bareverbs_provider::layout::RawPacketNumbers;
use bareverbs_provider::queue_allocator::QueueResource;
use bareverbs_provider::request::{DoorbellChoice, QpRequest};
use bareverbs_provider::thread_domain::ThreadDomain;
use bareverbs_provider::traits::CreatedQp;
use bareverbs_uapi::mlx5::verbs::UarType;
use bareverbs_uapi::mlx5::{CreateQpReq, CreateQpResp, CreateQpRespMask, InlineMode, QpFlags};
use bareverbs_uapi::uverbs::types::{QpCreateFlags, QpType};
use zerocopy::IntoBytes;

use super::{Mlx5, ioctl_error, lookup, memory};
use crate::doorbell::{BlueFlame, SendRegister, Uar};
use crate::qp_memory::{Layout, QpMemory};
use crate::rq::Mlx5Rq;
use crate::sq::{Datagrams, ECE_VERSION_1, EceState, FRAME_HEADER, Mlx5Sq, SendLimits};
use crate::uidx_table::{QueueRecord, RqTracker, Source, SqTracker};
use crate::wqe::SEGMENT;

/// The objects behind a raw packet QP, which the driver reports to contexts with DEVX.
fn raw_packet(response: &CreateQpResp) -> Option<RawPacketNumbers> {
    let numbers =
        CreateQpRespMask::TIRN | CreateQpRespMask::TISN | CreateQpRespMask::RQN | CreateQpRespMask::SQN;
    let has = |bit| response.comp_mask.contains(bit);
    response.comp_mask.intersects(numbers).then(|| RawPacketNumbers {
        tirn: if has(CreateQpRespMask::TIRN) { response.tirn } else { 0 },
        tisn: if has(CreateQpRespMask::TISN) { response.tisn } else { 0 },
        rqn: if has(CreateQpRespMask::RQN) { response.rqn } else { 0 },
        sqn: if has(CreateQpRespMask::SQN) { response.sqn } else { 0 },
        tir_icm_addr: if has(CreateQpRespMask::TIR_ICM_ADDR) { response.tir_icm_addr } else { 0 },
    })
}

impl Mlx5 {
    /// # Safety
    ///
    /// As for [`Provider::create_qp`](bareverbs_provider::traits::Provider::create_qp).
    pub(super) unsafe fn do_create_qp(
        &self,
        request: &QpRequest<'_>,
    ) -> Result<CreatedQp<Self>, CreateError> {
        const METHOD: &str = "QpCreate";
        let known_type = match request.qp_type {
            QpType::RC | QpType::UC | QpType::UD | QpType::XRC_INI => true,
            QpType::RAW_PACKET => self.caps.raw_packets,
            _ => false,
        };
        if !known_type {
            return Err(CreateError::Unsupported { feature: Feature::QpType });
        }
        // The driver makes such a QP of an SQ and an RQ (`create_raw_packet_qp` in its `qp.c`), as a raw
        // packet QP. CQEs of version 0 would name two queues.
        let is_ipoib = request.source_qpn.is_some();
        if is_ipoib && (request.qp_type != QpType::UD || self.ucontext.cqe_version == 0) {
            return Err(CreateError::Unsupported { feature: Feature::QpCreateFlags });
        }
        let receives = request.srq.is_none() && request.qp_type != QpType::XRC_INI;
        let mut flags = QpFlags::UAR_PAGE_INDEX;
        if request.scatter_to_cqe {
            let signals_all = request.flags.contains(QpCreateFlags::SQ_SIG_ALL);
            // If all sends are signalled, CQEs would carry the results of reads too.
            if !receives || signals_all || !matches!(request.qp_type, QpType::RC | QpType::UC) {
                return Err(CreateError::Unsupported { feature: Feature::ScatterToCqe });
            }
            flags |= QpFlags::SCATTER_CQE;
        }
        let max_tso = self.max_tso(request)?;
        let layout = if is_ipoib {
            Layout::ipoib(&request.cap, !receives, self.limits())?
        } else {
            Layout::new(request.qp_type, &request.cap, request.max_tso_header, !receives, self.limits())?
        };
        let cqs = [lookup(&self.cqs, request.send_cq, METHOD)?, lookup(&self.cqs, request.recv_cq, METHOD)?];
        let source = match request.srq {
            Some(srq) => Source::Shared(lookup(&self.srqs, srq, METHOD)?),
            None if request.scatter_to_cqe => {
                let receives = RqTracker::with_scatter_to_cqe(layout.recv_slots, layout.recv_sge);
                Source::Own(receives.map_err(ioctl_error("madvise"))?)
            }
            None => Source::Own(RqTracker::new(layout.recv_slots)),
        };
        let max_message = self.max_message(request.qp_type)?;
        let record = QueueRecord::new(&self.table, cqs, SqTracker::new(layout.send_blocks), source)
            .ok_or(IoctlError::new("QpCreate (user index)", Errno::NOMEM))?;
        let (rings, dmabuf) =
            memory::ring(QueueResource::Qp, layout.bytes(), request.memory, self.caps.queue_dmabufs)?;
        let doorbell = memory::doorbell_record(&self.records, request.memory)?;
        let register = self.register(request.doorbell)?;
        let start = rings.as_ptr().as_ptr().expose_provenance() as u64;
        let driver = CreateQpReq {
            buf_addr: start,
            sq_buf_addr: if layout.is_separate() { start + layout.send_offset() as u64 } else { 0 },
            db_addr: doorbell.address(),
            sq_wqe_count: layout.send_blocks,
            rq_wqe_count: layout.recv_slots,
            rq_wqe_shift: layout.rq_wqe_shift(),
            flags,
            uidx: record.user_index(),
            bfreg_index: register.page_id(),
            ece_options: if self.caps.ece { ECE_VERSION_1 } else { 0 },
            ..CreateQpReq::zeroed()
        };
        let mut response = CreateQpResp::zeroed();
        let payload = DriverPayload { input: driver.as_bytes(), output: response.as_mut_bytes() };
        let cap = layout.cap();
        let memory = Arc::new(QpMemory::new(rings, doorbell, record.clone()));
        let buffers = dmabuf.map_or(QpBuffers::None, |dmabuf| layout.buffers(&dmabuf));
        // SAFETY: the rings have the size that the kernel computes from their counts
        // (`set_user_buf_size` of its `qp.c`), and so have the descriptions of them. The returned
        // queues keep the rings and the doorbell record. The caller keeps the queues until the kernel
        // has destroyed the QP.
        let made =
            unsafe { command::create_qp(&self.file, &QpRequest { cap, ..*request }, &buffers, payload) }?;
        let limits = SendLimits {
            qp_type: request.qp_type,
            datagrams: Datagrams::new(request.qp_type, is_ipoib),
            requests: layout.sends,
            max_sge: layout.send_sge,
            max_inline: layout.inline,
            max_message,
            frame_header: if self.ucontext.eth_min_inline == InlineMode::NONE { 0 } else { FRAME_HEADER },
            tso_header: request.max_tso_header.into(),
            max_tso,
            signal_all: request.flags.contains(QpCreateFlags::SQ_SIG_ALL),
        };
        let rq = receives.then(|| {
            let (slots, shift) = (layout.recv_slots.max(1), layout.recv_shift - SEGMENT.trailing_zeros());
            Mlx5Rq::new(record.clone(), Arc::clone(&memory), slots, shift, layout.recv_sge)
        });
        let place = (layout.send_offset(), layout.send_blocks);
        let sq = Mlx5Sq::new(record.clone(), memory, register, place, made.qp_num, limits)
            .with_ece(self.caps.ece.then(|| EceState::new(response.ece_options)))
            .with_raw_packet(raw_packet(&response));
        let srq_num = match &record.source {
            Source::Shared(srq) => srq.number(),
            Source::Own(_) => 0,
        };
        QueueRecord::store(&record, made.qp_num, srq_num);
        Ok(CreatedQp { handle: made.handle, qp_num: made.qp_num, cap, sq, rq })
    }

    fn register(&self, choice: DoorbellChoice<'_>) -> Result<SendRegister, CreateError> {
        match choice {
            DoorbellChoice::Any => Ok(self.alloc_register()),
            DoorbellChoice::Shared => Ok(SendRegister::Shared(Arc::clone(&self.uar))),
            DoorbellChoice::Own => {
                let combined = match Uar::alloc(&self.file, UarType::BF) {
                    Ok(uar) => BlueFlame::new(uar, self.ucontext.bf_reg_size).ok(),
                    Err(IoctlError { errno: Errno::OPNOTSUPP, .. }) => None,
                    Err(refused) => return Err(refused.into()),
                };
                Ok(match combined {
                    Some(register) => SendRegister::Exclusive(register),
                    // The machine has no write combining. The register is exclusive, but WQEs are
                    // not copied.
                    None => SendRegister::Shared(Arc::new(Uar::alloc(&self.file, UarType::NC)?)),
                })
            }
            DoorbellChoice::Domain(domain) => {
                let uar = domain.register().map(SendRegister::Shared);
                uar.ok_or(CreateError::Unsupported { feature: Feature::ForeignObjects })
            }
        }
    }

    pub(super) fn do_alloc_td(&self) -> Result<ThreadDomain, CreateError> {
        let uar = Uar::alloc(&self.file, UarType::NC)?;
        Ok(ThreadDomain::new(Arc::clone(&self.file), Arc::new(uar)))
    }

    /// Allocates an exclusive register, or returns the shared one if none is left.
    fn alloc_register(&self) -> SendRegister {
        let shared = || SendRegister::Shared(Arc::clone(&self.uar));
        let take = |left: u32| left.checked_sub(1);
        if self.exclusive.fetch_update(Ordering::Relaxed, Ordering::Relaxed, take).is_err() {
            return shared();
        }
        match Uar::alloc(&self.file, UarType::BF) {
            Ok(uar) => BlueFlame::new(uar, self.ucontext.bf_reg_size)
                .map_or_else(|_| shared(), SendRegister::Exclusive),
            Err(_) => {
                // The machine has no write combining, or the device has no pages left. Later calls
                // use the shared register.
                self.exclusive.store(0, Ordering::Relaxed);
                shared()
            }
        }
    }

    /// Maximum bytes of a message, or of a datagram, on port 1.
    fn max_message(&self, qp_type: QpType) -> Result<u64, IoctlError> {
        let port = command::query_port(&self.file, 1)?.legacy_resp;
        Ok(match qp_type {
            QpType::UD => 128 << port.active_mtu.0.clamp(1, 5),
            _ => port.max_msg_sz.into(),
        })
    }

    /// Maximum TSO payload in bytes; 0 for a queue pair without TSO.
    fn max_tso(&self, request: &QpRequest<'_>) -> Result<u64, CreateError> {
        if request.max_tso_header == 0 {
            return Ok(0);
        }
        let Capabilities { max_tso, tso_supported_qpts, .. } = self.caps;
        if max_tso == 0 || tso_supported_qpts >> request.qp_type.0 & 1 == 0 {
            return Err(CreateError::Unsupported { feature: Feature::Tso });
        }
        Ok(max_tso.into())
    }
}
