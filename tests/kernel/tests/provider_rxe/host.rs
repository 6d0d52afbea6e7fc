//! The opened device, and memory registered with it.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::sync::Arc;

use bareverbs_kernel_tests::device;
use bareverbs_provider::command::{self, CreatedMr, DriverPayload, MrRequest, RegMrMethod};
use bareverbs_provider::device::DeviceFile;
use bareverbs_provider::request::{CqRequest, CqeSize, DoorbellChoice, QpRequest, QueueMemory};
use bareverbs_provider::traits::{CreatedCq, CreatedQp, Provider};
use bareverbs_provider::work::{Remote, Sge};
use bareverbs_rxe::Rxe;
use bareverbs_uapi::uverbs::types::{AccessFlags, QpCap, QpCreateFlags, QpType};
use bareverbs_uapi::verbs_values::{Mtu, QpAttrMask, QpState, RnrTimeout};
use bareverbs_uapi::write::structs::{ModifyQpReq, QpDest};

/// Registered memory that is only accessed through raw pointers.
pub(crate) struct Memory {
    start: *mut u8,
    layout: Layout,
    pub(crate) mr: CreatedMr,
}

impl Memory {
    pub(crate) fn new(host: &Host, len: usize) -> Self {
        let layout = Layout::from_size_align(len, 4096).unwrap();
        // SAFETY: the size is not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let access = AccessFlags::LOCAL_WRITE
            | AccessFlags::REMOTE_READ
            | AccessFlags::REMOTE_WRITE
            | AccessFlags::REMOTE_ATOMIC;
        let addr = start.expose_provenance() as u64;
        let request = MrRequest { pd: host.pd, addr, length: len as u64, iova: addr, access, dmah: None };
        // SAFETY: the memory is freed only after the file is closed or the region is deregistered.
        let mr = unsafe { host.reg_mr.register(&host.file, &request) }.unwrap();
        Self { start, layout, mr }
    }

    pub(crate) fn addr(&self, offset: usize) -> u64 {
        self.start.expose_provenance() as u64 + offset as u64
    }

    pub(crate) fn sge(&self, offset: usize, length: u32) -> Sge {
        Sge { addr: self.addr(offset), length, lkey: self.mr.lkey }
    }

    pub(crate) fn remote(&self, offset: usize) -> Remote {
        Remote { addr: self.addr(offset), rkey: self.mr.rkey }
    }

    pub(crate) fn write(&self, offset: usize, bytes: &[u8]) {
        assert!(offset + bytes.len() <= self.layout.size());
        for (i, byte) in bytes.iter().enumerate() {
            // SAFETY: inside the allocation.
            unsafe { self.start.add(offset + i).write_volatile(*byte) };
        }
    }

    pub(crate) fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        assert!(offset + len <= self.layout.size());
        // SAFETY: inside the allocation.
        (0..len).map(|i| unsafe { self.start.add(offset + i).read_volatile() }).collect()
    }

    pub(crate) fn deregister(self, host: &Host) {
        // SAFETY: this test owns the object and no longer uses it.
        unsafe { command::dereg_mr(&host.file, self.mr.handle) }.unwrap();
        // SAFETY: allocated with this layout, and no longer registered.
        unsafe { dealloc(self.start, self.layout) };
    }
}

pub(crate) struct Host {
    pub(crate) file: Arc<DeviceFile>,
    pub(crate) rxe: Rxe,
    pub(crate) pd: u32,
    reg_mr: RegMrMethod,
}

impl Host {
    pub(crate) fn new() -> Self {
        let file = Arc::new(device::file());
        let rxe = Rxe::open(file.clone()).unwrap();
        assert!(rxe.capabilities().num_comp_vectors > 0);
        // SAFETY: rxe has no payload for protection domains.
        let pd = unsafe { command::alloc_pd(&file, DriverPayload::default()) }.unwrap();
        Self { file, rxe, pd, reg_mr: RegMrMethod::default() }
    }

    pub(crate) fn cq(&self, entries: u32) -> CreatedCq<Rxe> {
        let request = CqRequest {
            entries,
            user_handle: 0,
            channel: None,
            vector: 0,
            compressed: false,
            cqe_size: CqeSize::Bytes64,
            flags: bareverbs_uapi::write::types::CqCreateFlags::empty(),
            memory: QueueMemory::BasePages,
        };
        // SAFETY: `destroy` keeps the queue until the kernel has destroyed the object.
        unsafe { self.rxe.create_cq(&request) }.unwrap()
    }

    pub(crate) fn qp(&self, cq: &CreatedCq<Rxe>, srq: Option<u32>, cap: QpCap) -> CreatedQp<Rxe> {
        let request = QpRequest {
            pd: self.pd,
            send_cq: cq.handle,
            recv_cq: cq.handle,
            srq,
            qp_type: QpType::RC,
            cap,
            max_tso_header: 0,
            flags: QpCreateFlags::empty(),
            source_qpn: None,
            scatter_to_cqe: false,
            user_handle: 0,
            doorbell: DoorbellChoice::Any,
            memory: QueueMemory::BasePages,
        };
        // SAFETY: `destroy` keeps the queues until the kernel has destroyed the object.
        unsafe { self.rxe.create_qp(&request) }.unwrap()
    }

    pub(crate) fn modify(&self, qp: &CreatedQp<Rxe>, mask: QpAttrMask, request: ModifyQpReq) {
        let request = ModifyQpReq { qp_handle: qp.handle, attr_mask: mask | QpAttrMask::STATE, ..request };
        // SAFETY: this test owns the object and no longer uses it.
        unsafe { command::modify_qp(&self.file, &request) }.unwrap();
    }

    pub(crate) fn state(&self, qp: &CreatedQp<Rxe>, state: QpState) {
        self.modify(qp, QpAttrMask::empty(), ModifyQpReq { qp_state: state, ..ModifyQpReq::zeroed() });
    }

    pub(crate) fn init(&self, qp: &CreatedQp<Rxe>) {
        let access = AccessFlags::REMOTE_READ | AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_ATOMIC;
        self.modify(
            qp,
            QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::ACCESS_FLAGS,
            ModifyQpReq {
                qp_state: QpState::INIT,
                port_num: 1,
                qp_access_flags: access,
                ..ModifyQpReq::zeroed()
            },
        );
    }

    pub(crate) fn ready_to_receive(&self, qp: &CreatedQp<Rxe>, peer: &CreatedQp<Rxe>) {
        let gid = command::query_gid_entry(&self.file, 1, 1).unwrap();
        let dest = QpDest {
            dgid: gid.gid,
            sgid_index: 1,
            hop_limit: 1,
            is_global: 1,
            port_num: 1,
            ..QpDest::zeroed()
        };
        self.modify(
            qp,
            QpAttrMask::AV
                | QpAttrMask::PATH_MTU
                | QpAttrMask::DEST_QPN
                | QpAttrMask::RQ_PSN
                | QpAttrMask::MAX_DEST_RD_ATOMIC
                | QpAttrMask::MIN_RNR_TIMER,
            ModifyQpReq {
                dest,
                qp_state: QpState::RTR,
                path_mtu: Mtu::MTU_1024,
                dest_qp_num: peer.qp_num,
                rq_psn: 0,
                max_dest_rd_atomic: 1,
                min_rnr_timer: RnrTimeout(12),
                ..ModifyQpReq::zeroed()
            },
        );
    }

    pub(crate) fn ready_to_send(&self, qp: &CreatedQp<Rxe>) {
        self.modify(
            qp,
            QpAttrMask::TIMEOUT
                | QpAttrMask::RETRY_CNT
                | QpAttrMask::RNR_RETRY
                | QpAttrMask::SQ_PSN
                | QpAttrMask::MAX_QP_RD_ATOMIC,
            ModifyQpReq {
                qp_state: QpState::RTS,
                timeout: 14,
                retry_cnt: 7,
                rnr_retry: 7,
                sq_psn: 0,
                max_rd_atomic: 1,
                ..ModifyQpReq::zeroed()
            },
        );
    }

    pub(crate) fn connect(&self, one: &CreatedQp<Rxe>, other: &CreatedQp<Rxe>) {
        for (qp, peer) in [(one, other), (other, one)] {
            self.init(qp);
            self.ready_to_receive(qp, peer);
            self.ready_to_send(qp);
        }
    }

    pub(crate) fn destroy(
        &self,
        qps: impl IntoIterator<Item = CreatedQp<Rxe>>,
        cqs: impl IntoIterator<Item = CreatedCq<Rxe>>,
    ) {
        for qp in qps {
            // SAFETY: this test owns the object and no longer uses it.
            unsafe { command::destroy_qp(&self.file, qp.handle) }.unwrap();
        }
        for cq in cqs {
            // SAFETY: this test owns the object and no longer uses it.
            unsafe { command::destroy_cq(&self.file, cq.handle) }.unwrap();
        }
    }
}
