//! The in-process HCA, and queues whose memory is mapped to it.

use std::collections::HashSet;
use std::ptr::NonNull;

use bareverbs_hca::engine::packet::Transport;
use bareverbs_hca::engine::{CqSetup, MiniFormat, QpSetup, ReceiveQueue, RqSetup, Service, SrqSetup, State};
use bareverbs_hca::{InProcessHca, Link};
use bareverbs_mlx5::testing::{DmaRange, Plain, PlainQp, page_of, resize};
use bareverbs_mlx5::{Mlx5Cq, Mlx5Rq, Mlx5Sq, Mlx5Srq};
use bareverbs_provider::mapping::Mapping;
use bareverbs_provider::traits::{Completion, CompletionQueue, RecvQueue, SendQueue};
use bareverbs_provider::work::{
    Operation, Payload, PushError, RecvRequest, Remote, SendFlags, SendRequest, Sge, WorkCompletion,
};
use bareverbs_uapi::mlx5::CqeCompressionFormats;
use bareverbs_uapi::uverbs::types::{QpCap, QpType};

/// The protection domain of all objects.
const PD: u32 = 7;

const PAGE: usize = 0x1000;

/// Bytes of the MR that messages use.
pub(crate) const REGION: usize = 0x10000;

/// The device is dropped first, because the memory mapped to it belongs to the other fields.
pub(crate) struct Testbed {
    pub(crate) hca: InProcessHca,
    mapped: HashSet<u64>,
    /// UAR pages of the queues.
    uars: Vec<NonNull<u8>>,
    pub(crate) context: Plain,
    region: Mapping,
    pub(crate) key: u32,
}

/// A queue pair: its two halves and its QPN.
pub(crate) struct Pair {
    pub(crate) sq: Mlx5Sq,
    pub(crate) rq: Option<Mlx5Rq>,
    pub(crate) number: u32,
    rings: DmaRange,
    /// The UAR page of its doorbell.
    uar: NonNull<u8>,
}

pub(crate) struct Cq {
    pub(crate) queue: Mlx5Cq,
    pub(crate) number: u32,
    ring: DmaRange,
}

pub(crate) fn cap(max_send_wr: u32, max_inline_data: u32) -> QpCap {
    QpCap { max_send_wr, max_recv_wr: 16, max_send_sge: 4, max_recv_sge: 4, max_inline_data }
}

impl Testbed {
    pub(crate) fn new() -> Self {
        Self::of_version(1)
    }

    /// A testbed with CQEs of this version, 0 or 1.
    pub(crate) fn of_version(cqe_version: u8) -> Self {
        let hca = InProcessHca::new(Link::InfiniBand).expect("a device");
        let context = Plain::with_version(1 << 10, cqe_version).expect("memory");
        let region = Mapping::anonymous(REGION).expect("memory");
        let uars = vec![context.uar()];
        let mut testbed = Self { hca, mapped: HashSet::new(), uars, context, region, key: 0 };
        let place = DmaRange { start: testbed.region.as_ptr(), len: REGION };
        testbed.map_memory(place);
        testbed.key = testbed.hca.engine().register(PD, place.address(), REGION as u64).expect("a key");
        testbed
    }

    fn map_memory(&mut self, place: DmaRange) {
        if self.mapped.insert(place.address()) {
            // SAFETY: `destroy`, `destroy_wq` and `resize` unmap memory before it is freed. Other
            // memory outlives the last run of the device. While the device runs, no other code
            // accesses the memory.
            unsafe { self.hca.map_memory(place.start, place.len) }.expect("room in the device's map");
        }
    }

    /// Address of byte `at` of the MR.
    pub(crate) fn address(&self, at: usize) -> u64 {
        self.region.as_ptr().as_ptr().expose_provenance() as u64 + at as u64
    }

    pub(crate) fn sge(&self, at: usize, length: u32) -> Sge {
        Sge { addr: self.address(at), length, lkey: self.key }
    }

    pub(crate) fn remote(&self, at: usize) -> Remote {
        Remote { addr: self.address(at), rkey: self.key }
    }

    pub(crate) fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= REGION);
        // SAFETY: within the MR, and the device is not running.
        unsafe {
            self.region.as_ptr().as_ptr().add(at).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
        };
    }

    pub(crate) fn read(&self, at: usize, length: usize) -> Vec<u8> {
        assert!(at + length <= REGION);
        let mut bytes = vec![0; length];
        // SAFETY: within the MR, and the device is not running.
        unsafe { self.region.as_ptr().as_ptr().add(at).copy_to_nonoverlapping(bytes.as_mut_ptr(), length) };
        bytes
    }

    pub(crate) fn cq(&mut self, log: u32, cqe_size: usize) -> Cq {
        self.cq_of(log, cqe_size, None)
    }

    /// A CQ with CQE compression and CQEs of 64 bytes.
    pub(crate) fn compressed_cq(&mut self, log: u32, format: CqeCompressionFormats) -> Cq {
        self.cq_of(log, 64, Some(format))
    }

    fn cq_of(&mut self, log: u32, cqe_size: usize, format: Option<CqeCompressionFormats>) -> Cq {
        let parts = self.context.cq(log, cqe_size).expect("memory");
        let parts = match format {
            Some(format) => parts.compressed(format),
            None => parts,
        };
        let compression = format.map(|format| match format {
            CqeCompressionFormats::HASH => MiniFormat::Hash,
            CqeCompressionFormats::CSUM => MiniFormat::Checksum,
            _ => MiniFormat::ChecksumAndIndex,
        });
        let (ring, doorbell) = (parts.ring(), parts.doorbell());
        let setup = CqSetup {
            ring: InProcessHca::ring_at(ring.address(), cqe_size << log),
            log_size: log as u8,
            wide: cqe_size == 128,
            eq: InProcessHca::EVENTS,
            doorbell,
            compression,
            ..CqSetup::default()
        };
        let number = self.hca.engine().create_cq(setup).expect("a CQ");
        let queue = parts.finish(number);
        self.map_memory(ring);
        self.map_memory(page_of(doorbell));
        Cq { queue, number, ring }
    }

    pub(crate) fn srq(&mut self, max_wr: u32) -> (Mlx5Srq, u32) {
        let parts = self.context.srq(max_wr, 4).expect("memory");
        let setup = SrqSetup {
            ring: InProcessHca::ring_at(parts.ring.address(), (parts.slots as usize) << parts.shift),
            log_size: parts.slots.trailing_zeros() as u8,
            log_stride: parts.shift as u8,
            doorbell: parts.doorbell,
            pd: PD,
            user_index: 0,
            cq: None,
            xrcd: None,
            linked: true,
        };
        let number = self.hca.engine().create_srq(setup, 0).expect("an SRQ");
        parts.number(number);
        self.map_memory(parts.ring);
        self.map_memory(page_of(parts.doorbell));
        (parts.queue, number)
    }

    /// A WQ in RESET that flushes its receives when it moves to ERR; its number, and its ring.
    pub(crate) fn wq(&mut self, max_wr: u32, cq: &Cq) -> (Mlx5Rq, u32, DmaRange) {
        let parts = self.context.wq(max_wr, 2, &cq.queue).expect("a layout");
        let (slots, shift) = parts.receives();
        let setup = RqSetup {
            ring: InProcessHca::ring_at(parts.ring.address(), (slots as usize) << shift),
            log_size: slots.trailing_zeros() as u8,
            log_stride: shift as u8,
            linked: false,
            doorbell: parts.doorbell,
            pd: PD,
            cq: cq.number,
            user_index: parts.user_index(),
            flushes: true,
            strips_vlan: false,
            scatters_fcs: false,
        };
        let number = self.hca.engine().create_rq(setup).expect("a work queue");
        let ring = parts.ring;
        self.map_memory(ring);
        self.map_memory(page_of(parts.doorbell));
        (parts.finish(), number, ring)
    }

    /// Destroys a WQ and frees its memory.
    pub(crate) fn destroy_wq(&mut self, (queue, number, ring): (Mlx5Rq, u32, DmaRange)) {
        self.hca.engine().destroy_rq(number).expect("a work queue");
        self.hca.take_back(ring.address(), ring.len);
        self.mapped.remove(&ring.address());
        drop(queue);
    }

    pub(crate) fn qp(
        &mut self,
        qp_type: QpType,
        cap: &QpCap,
        (send_cq, recv_cq): (&Cq, &Cq),
        srq: Option<(&Mlx5Srq, u32)>,
        blue_flame: bool,
    ) -> Pair {
        let queue = srq.map(|(queue, _)| queue);
        let parts = self.context.qp(qp_type, cap, &send_cq.queue, &recv_cq.queue, queue).expect("a layout");
        self.finish(parts, qp_type, (send_cq, recv_cq), srq, blue_flame, 0)
    }

    /// A QP with scatter to CQE: its receive CQEs carry messages of up to 32 bytes.
    pub(crate) fn scattering_qp(&mut self, qp_type: QpType, cap: &QpCap, cq: &Cq) -> Pair {
        let parts = self.context.scattering_qp(qp_type, cap, &cq.queue, &cq.queue).expect("a layout");
        self.finish(parts, qp_type, (cq, cq), None, false, 32)
    }

    /// A raw packet QP in RTS, with TSO headers of at most `tso_header` bytes.
    pub(crate) fn frames(&mut self, cap: &QpCap, tso_header: u16, cq: &Cq) -> Pair {
        let parts = self.context.qp_of_frames(cap, tso_header, &cq.queue).expect("a layout");
        let pair = self.finish(parts, QpType::RAW_PACKET, (cq, cq), None, false, 0);
        let ready = self.hca.engine().modify_qp(pair.number, State::ReadyToSend, Default::default());
        ready.expect("a step of send queues");
        pair
    }

    fn finish(
        &mut self,
        parts: PlainQp,
        qp_type: QpType,
        (send_cq, recv_cq): (&Cq, &Cq),
        srq: Option<(&Mlx5Srq, u32)>,
        blue_flame: bool,
        inline_receives: u8,
    ) -> Pair {
        let (slots, shift) = parts.receives();
        let (send_offset, blocks) = parts.sends();
        let receive = match srq {
            Some((_, number)) => ReceiveQueue::Shared(number),
            // Frames are received by WQs.
            None if qp_type == QpType::RAW_PACKET => ReceiveQueue::None,
            None => ReceiveQueue::Own { log_size: slots.trailing_zeros() as u8, log_stride: shift as u8 },
        };
        let service = match qp_type {
            QpType::RC => Service::Connected(Transport::Rc),
            QpType::UC => Service::Connected(Transport::Uc),
            QpType::RAW_PACKET => Service::Ethernet,
            _ => Service::Datagram(None),
        };
        let (rings, doorbell) = (parts.rings(), parts.doorbell());
        let setup = QpSetup {
            service,
            pd: PD,
            user_index: parts.user_index(),
            ring: InProcessHca::ring_at(rings.address(), rings.len),
            send_offset: send_offset as u64,
            log_send_size: Some(blocks.trailing_zeros() as u8),
            receive,
            doorbell,
            send_cq: send_cq.number,
            receive_cq: recv_cq.number,
            inline_receives,
            ..QpSetup::default()
        };
        let number = self.hca.engine().create_qp(setup, Default::default()).expect("a queue pair");
        self.map_memory(rings);
        self.map_memory(page_of(doorbell));
        let (sq, rq, uar) = parts.finish(number, blue_flame).expect("memory");
        if blue_flame {
            self.uars.push(uar);
        }
        Pair { sq, rq, number, rings, uar }
    }

    /// Two connected QPs and their CQ of 64 entries.
    pub(crate) fn connected(&mut self, qp_type: QpType, cap: &QpCap) -> (Pair, Pair, Cq) {
        let cq = self.cq(6, 64);
        let left = self.qp(qp_type, cap, (&cq, &cq), None, true);
        let right = self.qp(qp_type, cap, (&cq, &cq), None, false);
        self.hca.connect(left.number, right.number).expect("a connection");
        (left, right, cq)
    }

    /// Destroys a QP and frees its memory.
    pub(crate) fn destroy(&mut self, pair: Pair) {
        self.hca.engine().destroy_qp(pair.number).expect("a queue pair");
        self.hca.take_back(pair.rings.address(), pair.rings.len);
        self.mapped.remove(&pair.rings.address());
        // The shared UAR page stays.
        let shared = self.context.uar();
        self.uars.retain(|page| *page != pair.uar || *page == shared);
    }

    /// Resizes a CQ to `1 << log` entries.
    pub(crate) fn resize(&mut self, cq: &mut Cq, log: u32) {
        let number = cq.number;
        let old = cq.ring;
        resize(&mut cq.queue, log, |ring| {
            // SAFETY: the old ring is unmapped below, and `resize` frees it after that. The new
            // ring is unmapped before it is freed. While the device runs, no other code accesses
            // either.
            unsafe { self.hca.map_memory(ring.start, ring.len) }.expect("room in the device's map");
            cq.ring = ring;
            let ring = InProcessHca::ring_at(ring.address(), 64 << log);
            self.hca.engine().resize_cq(number, ring, log as u8).expect("room for what is there");
            self.hca.take_back(old.address(), old.len);
        })
        .expect("memory");
        self.mapped.remove(&old.address());
        self.mapped.insert(cq.ring.address());
    }

    /// Passes the doorbells to the device and runs it.
    pub(crate) fn run(&mut self) {
        for page in self.uars.clone() {
            for at in (0..PAGE).step_by(8) {
                // SAFETY: within a page that is valid as long as its queue.
                let word = unsafe { page.add(at).cast::<u64>() };
                // SAFETY: within a page that is valid as long as its queue. No other thread writes
                // it.
                let value = unsafe { word.read_volatile() };
                if value != 0 {
                    // SAFETY: within a page that is valid as long as its queue.
                    unsafe { word.write_volatile(0) };
                    self.hca.store(at, &value.to_ne_bytes());
                }
            }
            self.hca.run();
        }
        // Advances the device's clock by 1 ns.
        self.hca.pass(1);
    }
}

pub(crate) const SIGNALED: SendFlags = SendFlags::SIGNALED;

/// A signalled request with SGEs.
pub(crate) fn request(wr_id: u64, operation: Operation, sges: &[Sge]) -> SendRequest<'_> {
    SendRequest { wr_id, operation, flags: SIGNALED, payload: Payload::Sges(sges) }
}

/// Pushes a request: on the fast path, or on the slow path if the fast path declines.
pub(crate) fn push(sq: &mut Mlx5Sq, request: &SendRequest<'_>) -> Result<(), PushError> {
    // SAFETY: the SGEs lie in the testbed's MR, which stays registered.
    if unsafe { sq.try_push(request) } {
        return Ok(());
    }
    // SAFETY: the SGEs lie in the testbed's MR, which stays registered.
    unsafe { sq.push(request) }
}

/// Posts a request, as applications do.
pub(crate) fn send(sq: &mut Mlx5Sq, request: &SendRequest<'_>) {
    // SAFETY: the SGEs lie in the testbed's MR, which stays registered.
    let posted = unsafe { sq.try_post(request, false) };
    if posted.is_none() {
        push(sq, request).expect("room for the request");
        sq.ring().expect("doorbells are not refused");
    }
}

/// Posts a receive.
pub(crate) fn recv(queue: &mut impl RecvQueue, wr_id: u64, sges: &[Sge]) {
    let request = RecvRequest { wr_id, sges };
    // SAFETY: the SGEs lie in the testbed's MR, which stays registered.
    if !unsafe { queue.try_push(&request) } {
        // SAFETY: the SGEs lie in the testbed's MR, which stays registered.
        unsafe { queue.push(&request) }.expect("room for the receive");
    }
    queue.ring();
}

/// Polls the CQ until it is empty.
pub(crate) fn poll(cq: &mut Cq) -> Vec<WorkCompletion> {
    let mut taken = Vec::new();
    while let Some(completion) = cq.queue.next() {
        taken.push(completion.to_value());
    }
    cq.queue.release();
    taken
}
