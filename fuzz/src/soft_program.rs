//! A program that uses a soft device by commands and writes its rings itself.

use std::mem::offset_of;
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use bareverbs_provider::command::{self, CqHandle, DriverPayload, QpBuffers, RegMrMethod};
use bareverbs_provider::command::{CreatedMr, MrRequest};
use bareverbs_provider::device::DeviceFile;
use bareverbs_provider::mapping::{Mapping, Protection};
use bareverbs_provider::request::{CqRequest, CqeSize, DoorbellChoice, QpRequest, QueueMemory};
use bareverbs_soft::{Fabric, SoftDevice};
use bareverbs_uapi::rxe::{CreateCqResp, CreateQpResp, DmaInfo, MmapInfo, QueueBuf, RecvWqe, SendWqe, Sge};
use bareverbs_uapi::uverbs::ObjectClass;
use bareverbs_uapi::uverbs::types::{AccessFlags, QpCap, QpCreateFlags, QpType};
use bareverbs_uapi::verbs_values::{QpAttrMask as Mask, QpState, SendFlags, WcStatus};
use bareverbs_uapi::write;
use bareverbs_uapi::write::structs::{ModifyQpReq, PostSendReq, PostSendResp, Wc};
use bareverbs_uapi::write::types::{CqCreateFlags, WrOpcode};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Bytes of registered memory of a program, and of the unregistered memory behind them.
pub(crate) const MEMORY: usize = 1 << 14;
/// The Q_Key of all QPs.
pub(crate) const QKEY: u32 = 0x1234;
/// The first PSN of all QPs.
pub(crate) const PSN: u32 = 0xff_fff0;
/// Depth of the queues.
const DEPTH: u32 = 8;
const TIMEOUT: Duration = Duration::from_secs(30);

/// A queue in shared memory, and the index that the program advances.
pub(crate) struct Ring {
    memory: Mapping,
    log2: u32,
    mask: u32,
    index: u32,
}

impl Ring {
    fn new(file: &DeviceFile, info: &MmapInfo) -> Self {
        let memory = file.map(info.offset, info.size as usize, Protection::ReadWrite).expect("a new queue");
        let mut ring = Self { memory, log2: 0, mask: 0, index: 0 };
        ring.log2 = ring.word(offset_of!(QueueBuf, log2_elem_size));
        ring.mask = ring.word(offset_of!(QueueBuf, index_mask));
        ring
    }

    fn word(&self, at: usize) -> u32 {
        let mut bytes = [0; 4];
        self.read(at, &mut bytes);
        u32::from_ne_bytes(bytes)
    }

    fn read(&self, at: usize, bytes: &mut [u8]) {
        for (offset, byte) in bytes.iter_mut().enumerate() {
            assert!(at + offset < self.memory.len());
            // SAFETY: within the mapping. The device accesses it by volatile or atomic operations only.
            *byte = unsafe { self.memory.as_ptr().as_ptr().add(at + offset).read_volatile() };
        }
    }

    /// Writes anywhere in the memory.
    pub(crate) fn scribble(&self, at: usize, bytes: &[u8]) {
        for (offset, byte) in bytes.iter().enumerate() {
            let at = (at + offset) % self.memory.len();
            // SAFETY: as for `read`.
            unsafe { self.memory.as_ptr().as_ptr().add(at).write_volatile(*byte) };
        }
    }

    /// Fills the next slot.
    fn push(&mut self, bytes: &[u8]) {
        let slot = size_of::<QueueBuf>() + ((self.index & self.mask) as usize) * (1 << self.log2);
        self.scribble(slot, &bytes[..bytes.len().min(1 << self.log2)]);
        self.index = (self.index + 1) & self.mask;
        self.scribble(offset_of!(QueueBuf, producer_index), &self.index.to_ne_bytes());
    }

    /// Takes the next completion.
    pub(crate) fn pop(&mut self) -> Option<Wc> {
        if self.word(offset_of!(QueueBuf, producer_index)) & self.mask == self.index {
            return None;
        }
        let mut bytes = [0; size_of::<Wc>()];
        self.read(size_of::<QueueBuf>() + self.index as usize * (1 << self.log2), &mut bytes);
        self.index = (self.index + 1) & self.mask;
        self.scribble(offset_of!(QueueBuf, consumer_index), &self.index.to_ne_bytes());
        Wc::read_from_bytes(&bytes).ok()
    }
}

/// A queue pair with its rings.
pub(crate) struct Qp {
    pub(crate) handle: u32,
    pub(crate) number: u32,
    pub(crate) qp_type: QpType,
    pub(crate) sends: Ring,
    pub(crate) receives: Ring,
}

/// An open soft device with a CQ and registered memory.
pub(crate) struct Program {
    pub(crate) device: SoftDevice,
    pub(crate) file: DeviceFile,
    pub(crate) pd: u32,
    pub(crate) cq: u32,
    pub(crate) completions: Ring,
    memory: Mapping,
    pub(crate) mr: CreatedMr,
    pub(crate) qps: Vec<Qp>,
}

impl Program {
    pub(crate) fn new(fabric: &Fabric) -> Self {
        Self::on(SoftDevice::new(fabric))
    }

    /// Another program on a device.
    pub(crate) fn on(device: SoftDevice) -> Self {
        let file = device.open().expect("a device");
        let memory = Mapping::anonymous(2 * MEMORY).expect("memory");
        // SAFETY: no payload.
        unsafe { command::get_context(&file, DriverPayload::default()) }.expect("a context");
        // SAFETY: no payload.
        let pd = unsafe { command::alloc_pd(&file, DriverPayload::default()) }.expect("a PD");
        let request = CqRequest {
            entries: 4 * DEPTH,
            user_handle: 0,
            channel: None,
            vector: 0,
            compressed: false,
            cqe_size: CqeSize::Bytes64,
            flags: CqCreateFlags::empty(),
            memory: QueueMemory::default(),
        };
        let mut response = CreateCqResp::new_zeroed();
        let payload = DriverPayload { input: &[], output: response.as_mut_bytes() };
        // SAFETY: the response has its full size.
        let cq = unsafe { command::create_cq(&file, &request, None, payload) };
        let CqHandle { handle: cq, .. } = cq.expect("a CQ");
        let completions = Ring::new(&file, &response.mi);
        let start = memory.as_ptr().as_ptr().expose_provenance() as u64;
        let access = AccessFlags::LOCAL_WRITE
            | AccessFlags::REMOTE_WRITE
            | AccessFlags::REMOTE_READ
            | AccessFlags::REMOTE_ATOMIC
            | AccessFlags::MW_BIND;
        let request = MrRequest { pd, addr: start, length: MEMORY as u64, iova: start, access, dmah: None };
        // SAFETY: the memory outlives the file (fields are dropped in order).
        let mr = unsafe { RegMrMethod::default().register(&file, &request) }.expect("an MR");
        Self { device, file, pd, cq, completions, memory, mr, qps: Vec::new() }
    }

    /// The address of a byte of the registered memory.
    pub(crate) fn address(&self, at: usize) -> u64 {
        (self.memory.as_ptr().as_ptr().expose_provenance() + at) as u64
    }

    /// The first address of the registered memory, or of the unregistered behind it.
    fn bytes(&self, from: usize) -> Vec<u8> {
        let start = self.memory.as_ptr().as_ptr();
        // SAFETY: within the mapping, which no device writes now.
        (from..from + MEMORY).map(|at| unsafe { start.add(at).read_volatile() }).collect()
    }

    /// The bytes of the registered memory.
    pub(crate) fn registered(&self) -> Vec<u8> {
        self.bytes(0)
    }

    /// Checks that the memory behind the registered is as it was.
    pub(crate) fn check_unregistered(&self) {
        assert!(self.bytes(MEMORY).iter().all(|byte| *byte == 0), "unregistered memory was written");
    }

    fn fill(&self, value: u8) {
        for at in 0..MEMORY {
            // SAFETY: within the mapping, which no device accesses now.
            unsafe { self.memory.as_ptr().as_ptr().add(at).write_volatile(value) };
        }
    }

    /// Creates a QP. Returns its index.
    pub(crate) fn create(&mut self, qp_type: QpType) -> usize {
        let cap = QpCap {
            max_send_wr: DEPTH - 1,
            max_recv_wr: DEPTH - 1,
            max_send_sge: 2,
            max_recv_sge: 2,
            max_inline_data: 64,
        };
        let request = QpRequest {
            pd: self.pd,
            send_cq: self.cq,
            recv_cq: self.cq,
            srq: None,
            qp_type,
            cap,
            max_tso_header: 0,
            flags: QpCreateFlags::empty(),
            source_qpn: None,
            scatter_to_cqe: false,
            user_handle: 0,
            doorbell: DoorbellChoice::Any,
            memory: QueueMemory::default(),
        };
        let mut response = CreateQpResp::new_zeroed();
        let payload = DriverPayload { input: &[], output: response.as_mut_bytes() };
        // SAFETY: the response has its full size.
        let made = unsafe { command::create_qp(&self.file, &request, &QpBuffers::None, payload) };
        let made = made.expect("a QP");
        let sends = Ring::new(&self.file, &response.sq_mi);
        let receives = Ring::new(&self.file, &response.rq_mi);
        let (handle, number) = (made.handle, made.qp_num);
        self.qps.push(Qp { handle, number, qp_type, sends, receives });
        self.qps.len() - 1
    }

    /// Moves a QP from RESET to a state, or from any state to RESET or ERR.
    pub(crate) fn modify(&self, qp: usize, to: QpState, peer: (IpAddr, u32)) {
        let path: &[QpState] = match to {
            QpState::INIT => &[QpState::INIT],
            QpState::RTR => &[QpState::INIT, QpState::RTR],
            QpState::RTS => &[QpState::INIT, QpState::RTR, QpState::RTS],
            QpState::SQD => &[QpState::INIT, QpState::RTR, QpState::RTS, QpState::SQD],
            other => &[other],
        };
        for state in path {
            self.step(qp, *state, peer);
        }
    }

    fn step(&self, qp: usize, state: QpState, (address, peer): (IpAddr, u32)) {
        let Qp { handle, qp_type, .. } = self.qps[qp];
        let (is_rc, is_ud) = (qp_type == QpType::RC, qp_type == QpType::UD);
        let of_rc = |mask| if is_rc { mask } else { Mask::empty() };
        let of_connected = |mask| if is_ud { Mask::empty() } else { mask };
        let mask = match state {
            QpState::INIT => {
                Mask::PKEY_INDEX | Mask::PORT | if is_ud { Mask::QKEY } else { Mask::ACCESS_FLAGS }
            }
            QpState::RTR => {
                of_connected(Mask::AV | Mask::PATH_MTU | Mask::DEST_QPN | Mask::RQ_PSN)
                    | of_rc(Mask::MAX_DEST_RD_ATOMIC | Mask::MIN_RNR_TIMER)
            }
            QpState::RTS => {
                let timers = Mask::TIMEOUT | Mask::RETRY_CNT | Mask::RNR_RETRY | Mask::MAX_QP_RD_ATOMIC;
                Mask::SQ_PSN | of_rc(timers)
            }
            _ => Mask::empty(),
        };
        let mut request = ModifyQpReq::new_zeroed();
        (request.qp_handle, request.qp_state, request.attr_mask) = (handle, state, mask | Mask::STATE);
        request.dest.dgid = gid(address);
        (request.dest.sgid_index, request.dest.hop_limit) = (1, 64);
        (request.dest.is_global, request.dest.port_num, request.port_num) = (1, 1, 1);
        (request.dest_qp_num, request.qkey) = (peer, QKEY);
        (request.rq_psn, request.sq_psn) = (PSN, PSN);
        request.qp_access_flags =
            AccessFlags::REMOTE_WRITE | AccessFlags::REMOTE_READ | AccessFlags::REMOTE_ATOMIC;
        request.path_mtu.0 = 1;
        (request.max_rd_atomic, request.max_dest_rd_atomic) = (2, 2);
        request.min_rnr_timer.0 = 1;
        (request.timeout, request.retry_cnt, request.rnr_retry) = (8, 2, 1);
        // SAFETY: the QP is that of this program, which uses its queues by this type only.
        let _ = unsafe { command::modify_qp(&self.file, &request) };
    }

    /// Fills a slot of the send queue and rings the doorbell.
    pub(crate) fn post_send(&mut self, qp: usize, wqe: &SendWqe, sge: &Sge) {
        self.qps[qp].sends.push(&[wqe.as_bytes(), sge.as_bytes()].concat());
        self.ring(qp);
    }

    /// Rings the doorbell.
    pub(crate) fn ring(&self, qp: usize) {
        let request = PostSendReq {
            qp_handle: self.qps[qp].handle,
            wqe_size: size_of::<SendWqe>() as u32,
            ..PostSendReq::new_zeroed()
        };
        let mut response = PostSendResp::new_zeroed();
        // SAFETY: the requests in the ring name memory by keys; only registered memory is reached.
        let _ = unsafe { self.file.invoke::<write::PostSend>(&request, &mut response) };
    }

    /// Posts a receive.
    pub(crate) fn post_recv(&mut self, qp: usize, wr_id: u64, sge: &Sge) {
        let mut wqe = RecvWqe::new_zeroed();
        (wqe.wr_id, wqe.dma) = (wr_id, dma(sge.length));
        self.qps[qp].receives.push(&[wqe.as_bytes(), sge.as_bytes()].concat());
    }

    /// An SGE of the registered memory.
    pub(crate) fn sge(&self, at: usize, length: u32) -> Sge {
        let mut sge = Sge::new_zeroed();
        (sge.addr, sge.length, sge.lkey) = (self.address(at), length, self.mr.lkey);
        sge
    }

    fn wait(&mut self) -> Wc {
        let end = Instant::now() + TIMEOUT;
        let fabric = self.device.fabric();
        if fabric.has_virtual_time() {
            fabric.run_until_idle();
        }
        loop {
            if let Some(wc) = self.completions.pop() {
                return wc;
            }
            assert!(Instant::now() < end, "no completion");
            std::thread::yield_now();
        }
    }

    /// Destroys all objects. Nothing of the program is left.
    pub(crate) fn destroy(self) {
        for qp in &self.qps {
            // SAFETY: the handle is that of the program, which uses the QP no more.
            unsafe { command::destroy_qp(&self.file, qp.handle) }.expect("an unused QP");
        }
        // SAFETY: as above.
        unsafe { command::destroy_cq(&self.file, self.cq) }.expect("an unused CQ");
        // SAFETY: as above.
        unsafe { command::dereg_mr(&self.file, self.mr.handle) }.expect("an MR without windows");
        // SAFETY: as above.
        unsafe { command::dealloc_pd(&self.file, self.pd) }.expect("an unused PD");
        for class in [ObjectClass::QP, ObjectClass::CQ, ObjectClass::MR, ObjectClass::PD] {
            let left = command::info_handles(&self.file, class, &mut [0; 8]);
            assert_eq!(left.expect("a class of the device"), 0, "objects of class {class} are left");
        }
        let contexts = self.device.resources().contexts;
        let Self { device, file, .. } = self;
        drop(file);
        assert_eq!(device.resources().contexts, contexts - 1, "the context is left");
    }
}

/// The data of a request with one SGE.
pub(crate) fn dma(length: u32) -> DmaInfo {
    let mut dma = DmaInfo::new_zeroed();
    (dma.length, dma.resid, dma.num_sge) = (length, length, 1);
    dma
}

/// The GID of an address.
pub(crate) fn gid(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// An address of no device.
pub(crate) const NO_ADDRESS: IpAddr = IpAddr::V4(Ipv4Addr::new(127, 9, 9, 9));

/// Two programs with connected RC QPs.
pub(crate) struct Honest {
    pub(crate) sender: Program,
    pub(crate) receiver: Program,
}

impl Honest {
    pub(crate) fn new(sender: Program, receiver: Program) -> Self {
        let mut pair = Self { sender, receiver };
        let (from, to) = (pair.sender.create(QpType::RC), pair.receiver.create(QpType::RC));
        let numbers = [pair.sender.qps[from].number, pair.receiver.qps[to].number];
        let addresses = [pair.sender.device.address(), pair.receiver.device.address()];
        pair.sender.modify(from, QpState::RTS, (addresses[1], numbers[1]));
        pair.receiver.modify(to, QpState::RTS, (addresses[0], numbers[0]));
        pair
    }

    /// Sends a message. Checks its data and both completions.
    pub(crate) fn exchange(&mut self) {
        const LENGTH: u32 = 600;
        self.sender.fill(0x5a);
        self.receiver.fill(0);
        let sge = self.receiver.sge(64, LENGTH);
        self.receiver.post_recv(0, 7, &sge);
        let mut wqe = SendWqe::new_zeroed();
        (wqe.wr.wr_id, wqe.wr.opcode, wqe.wr.send_flags) = (8, WrOpcode::SEND, SendFlags::SIGNALED);
        wqe.dma = dma(LENGTH);
        let sge = self.sender.sge(0, LENGTH);
        self.sender.post_send(0, &wqe, &sge);
        for (program, wr_id) in [(&mut self.receiver, 7), (&mut self.sender, 8)] {
            let wc = program.wait();
            assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::SUCCESS));
        }
        let bytes = self.receiver.registered();
        assert!(bytes[64..][..LENGTH as usize].iter().all(|byte| *byte == 0x5a), "the message is wrong");
        assert!(bytes[..64].iter().chain(&bytes[64 + LENGTH as usize..]).all(|byte| *byte == 0));
    }

    pub(crate) fn destroy(self) {
        self.sender.destroy();
        self.receiver.destroy();
    }
}
