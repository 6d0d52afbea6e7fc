//! A device that runs on the calling thread, its queues, and messages of one MR.

use std::fmt;
use std::ptr::NonNull;

use bareverbs_hca::InProcessHca;
use bareverbs_hca::engine::packet::Transport;
use bareverbs_hca::engine::{CqSetup, MiniFormat, QpSetup, Service, State};
use bareverbs_mlx5::testing::{DmaRange, Plain, PlainQp, resize};
use bareverbs_mlx5::{Mlx5Cq, Mlx5Rq, Mlx5Sq, Mlx5Srq};
use bareverbs_provider::mapping::Mapping;
use bareverbs_provider::traits::{Completion, CompletionQueue, RecvQueue, SendQueue};
use bareverbs_provider::work::{
    Operation, Payload, PushError, RecvRequest, Remote, SendFlags, SendRequest, Sge, WorkCompletion,
};
use bareverbs_uapi::mlx5::CqeCompressionFormats;
use bareverbs_uapi::uverbs::types::{QpCap, QpType};

use crate::device::Device;

const PAGE: usize = 0x1000;

/// Bytes of the MR that messages use.
pub const REGION: usize = 0x10000;

/// A device, queues and an MR. The device is dropped first, because the memory mapped to it belongs to
/// the other fields.
pub struct Testbed {
    device: Device,
    /// UAR pages of the queues.
    uars: Vec<NonNull<u8>>,
    context: Plain,
    region: Mapping,
    key: u32,
}

impl fmt::Debug for Testbed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Testbed").field("device", &self.device).finish_non_exhaustive()
    }
}

/// A queue pair: its two halves and its QPN.
#[derive(Debug)]
pub struct Qp {
    /// The send queue.
    pub sq: Mlx5Sq,
    /// The receive queue; `None` if an SRQ replaces it.
    pub rq: Option<Mlx5Rq>,
    /// The QPN.
    pub number: u32,
    rings: DmaRange,
    /// The UAR page of its doorbell.
    uar: NonNull<u8>,
}

/// A completion queue.
#[derive(Debug)]
pub struct Cq {
    /// The provider's queue.
    pub queue: Mlx5Cq,
    /// The CQN.
    pub number: u32,
    ring: DmaRange,
}

/// Depths and sizes of a QP with 16 receives and 4 SGEs.
#[must_use]
pub fn cap(max_send_wr: u32, max_inline_data: u32) -> QpCap {
    QpCap { max_send_wr, max_recv_wr: 16, max_send_sge: 4, max_recv_sge: 4, max_inline_data }
}

impl Testbed {
    /// Creates a device with CQEs of version 1.
    #[must_use]
    #[expect(clippy::new_without_default, reason = "creating a device is too costly for `Default`")]
    pub fn new() -> Self {
        Self::of_version(1)
    }

    /// Creates a device with CQEs of this version, 0 or 1.
    ///
    /// # Panics
    /// If there is not enough memory.
    #[must_use]
    pub fn of_version(cqe_version: u8) -> Self {
        // SAFETY: `destroy`, `destroy_wq` and `resize` unmap memory before it is freed. Other memory
        // outlives the last run of the device. While the device runs, no other code accesses the
        // memory.
        let mut device = unsafe { Device::new() };
        let context = Plain::with_version(1 << 10, cqe_version).expect("memory");
        let region = Mapping::anonymous(REGION).expect("memory");
        let key = device.register(DmaRange { start: region.as_ptr(), len: REGION });
        Self { device, uars: vec![context.uar()], context, region, key }
    }

    /// The HCA.
    pub fn hca(&mut self) -> &mut InProcessHca {
        &mut self.device.hca
    }

    /// Registers other memory as an MR. Returns its key.
    ///
    /// # Safety
    ///
    /// The memory must be valid until the testbed is dropped. Nothing else may access it while the
    /// device runs.
    ///
    /// # Panics
    /// If it overlaps other mapped memory.
    pub unsafe fn register(&mut self, memory: DmaRange) -> u32 {
        self.device.register(memory)
    }

    /// The address of byte `at` of the MR.
    #[must_use]
    pub fn address(&self, at: usize) -> u64 {
        self.region.as_ptr().as_ptr().expose_provenance() as u64 + at as u64
    }

    /// An SGE from byte `at` of the MR on.
    #[must_use]
    pub fn sge(&self, at: usize, length: u32) -> Sge {
        Sge { addr: self.address(at), length, lkey: self.key }
    }

    /// Byte `at` of the MR as remote memory.
    #[must_use]
    pub fn remote(&self, at: usize) -> Remote {
        Remote { addr: self.address(at), rkey: self.key }
    }

    /// Copies bytes to byte `at` of the MR.
    ///
    /// # Panics
    /// If they exceed the MR.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= REGION);
        // SAFETY: within the MR, and the device is not running.
        unsafe {
            self.region.as_ptr().as_ptr().add(at).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
        };
    }

    /// Copies `length` bytes from byte `at` of the MR.
    ///
    /// # Panics
    /// If they exceed the MR.
    #[must_use]
    pub fn read(&self, at: usize, length: usize) -> Vec<u8> {
        assert!(at + length <= REGION);
        let mut bytes = vec![0; length];
        // SAFETY: within the MR, and the device is not running.
        unsafe { self.region.as_ptr().as_ptr().add(at).copy_to_nonoverlapping(bytes.as_mut_ptr(), length) };
        bytes
    }

    /// Creates a CQ of `1 << log` CQEs of 64 or 128 bytes.
    pub fn cq(&mut self, log: u32, cqe_size: usize) -> Cq {
        self.cq_of(log, cqe_size, None)
    }

    /// Creates a CQ with CQE compression and CQEs of 64 bytes.
    pub fn compressed_cq(&mut self, log: u32, format: CqeCompressionFormats) -> Cq {
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
        let shape = CqSetup { log_size: log as u8, wide: cqe_size == 128, compression, ..CqSetup::default() };
        let number = self.device.create_cq(&parts, shape);
        Cq { ring: parts.ring(), queue: parts.finish(number), number }
    }

    /// Creates an SRQ of at least `max_wr` receives of 4 SGEs. Returns it and its number.
    ///
    /// # Panics
    /// If there is not enough memory.
    pub fn srq(&mut self, max_wr: u32) -> (Mlx5Srq, u32) {
        let parts = self.context.srq(max_wr, 4).expect("memory");
        let number = self.device.create_srq(&parts);
        (parts.queue, number)
    }

    /// Creates a WQ in RESET that flushes its receives when it moves to ERR. Returns it, its number and
    /// its ring.
    ///
    /// # Panics
    /// If there is not enough memory.
    pub fn wq(&mut self, max_wr: u32, cq: &Cq) -> (Mlx5Rq, u32, DmaRange) {
        let parts = self.context.wq(max_wr, 2, &cq.queue).expect("a layout");
        let (number, ring) = (self.device.create_wq(&parts, cq.number), parts.ring);
        (parts.finish(), number, ring)
    }

    /// Destroys a WQ and frees its memory.
    ///
    /// # Panics
    /// If the WQ is not one of this testbed.
    pub fn destroy_wq(&mut self, (queue, number, ring): (Mlx5Rq, u32, DmaRange)) {
        self.hca().engine().destroy_rq(number).expect("a work queue");
        self.device.take_back(ring);
        drop(queue);
    }

    /// Creates a QP, with a receive queue of its own or with an SRQ. With `blue_flame` it has a
    /// BlueFlame register of its own.
    ///
    /// # Panics
    /// If `cap` exceeds the limits of a ConnectX.
    pub fn qp(
        &mut self,
        qp_type: QpType,
        cap: &QpCap,
        (send_cq, recv_cq): (&Cq, &Cq),
        srq: Option<(&Mlx5Srq, u32)>,
        blue_flame: bool,
    ) -> Qp {
        let (queue, srq) = srq.unzip();
        let parts = self.context.qp(qp_type, cap, &send_cq.queue, &recv_cq.queue, queue).expect("a layout");
        let shape = shape(qp_type, send_cq, recv_cq);
        self.finish(parts, shape, srq, blue_flame)
    }

    /// Creates a QP with scatter to CQE: its receive CQEs carry messages of up to 32 bytes.
    ///
    /// # Panics
    /// As [`Self::qp`].
    pub fn scattering_qp(&mut self, qp_type: QpType, cap: &QpCap, cq: &Cq) -> Qp {
        let parts = self.context.scattering_qp(qp_type, cap, &cq.queue, &cq.queue).expect("a layout");
        let shape = QpSetup { inline_receives: 32, ..shape(qp_type, cq, cq) };
        self.finish(parts, shape, None, false)
    }

    /// Creates a raw packet QP in RTS, with TSO headers of at most `tso_header` bytes.
    ///
    /// # Panics
    /// As [`Self::qp`].
    pub fn frames(&mut self, cap: &QpCap, tso_header: u16, cq: &Cq) -> Qp {
        let parts = self.context.qp_of_frames(cap, tso_header, &cq.queue).expect("a layout");
        let qp = self.finish(parts, shape(QpType::RAW_PACKET, cq, cq), None, false);
        let ready = self.hca().engine().modify_qp(qp.number, State::ReadyToSend, Default::default());
        ready.expect("a step of send queues");
        qp
    }

    /// Creates a UD QP in RTS whose datagrams have the source QPN `underlay_qp`.
    ///
    /// # Panics
    /// As [`Self::qp`].
    pub fn ipoib(&mut self, cap: &QpCap, underlay_qp: u32, cq: &Cq) -> Qp {
        let parts = self.context.ipoib_qp(cap, &cq.queue).expect("a layout");
        let shape = QpSetup { service: Service::Ipoib { underlay_qp }, ..shape(QpType::UD, cq, cq) };
        let qp = self.finish(parts, shape, None, true);
        let ready = self.hca().engine().modify_qp(qp.number, State::ReadyToSend, Default::default());
        ready.expect("a step of send queues");
        qp
    }

    fn finish(&mut self, parts: PlainQp, shape: QpSetup, srq: Option<u32>, blue_flame: bool) -> Qp {
        let (rings, number) = (parts.rings(), self.device.create_qp(&parts, shape, srq));
        let (sq, rq, uar) = parts.finish(number, blue_flame).expect("memory");
        if blue_flame {
            self.uars.push(uar);
        }
        Qp { sq, rq, number, rings, uar }
    }

    /// Two connected QPs and their CQ of 64 entries.
    pub fn connected(&mut self, qp_type: QpType, cap: &QpCap) -> (Qp, Qp, Cq) {
        let cq = self.cq(6, 64);
        let left = self.qp(qp_type, cap, (&cq, &cq), None, true);
        let right = self.qp(qp_type, cap, (&cq, &cq), None, false);
        self.hca().connect(left.number, right.number).expect("a connection");
        (left, right, cq)
    }

    /// Destroys a QP and frees its memory.
    ///
    /// # Panics
    /// If the QP is not one of this testbed.
    pub fn destroy(&mut self, qp: Qp) {
        self.hca().engine().destroy_qp(qp.number).expect("a queue pair");
        self.device.take_back(qp.rings);
        // The shared UAR page stays.
        let shared = self.context.uar();
        self.uars.retain(|page| *page != qp.uar || *page == shared);
    }

    /// Resizes a CQ to `1 << log` entries.
    ///
    /// # Panics
    /// If there is not enough memory.
    pub fn resize(&mut self, cq: &mut Cq, log: u32) {
        let old = cq.ring;
        resize(&mut cq.queue, log, |ring| {
            self.device.resize_cq(cq.number, old, ring, log);
            cq.ring = ring;
        })
        .expect("memory");
    }

    /// Passes the doorbells to the device and runs it.
    pub fn run(&mut self) {
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
                    self.hca().store(at, &value.to_ne_bytes());
                }
            }
            self.hca().run();
        }
        // Advances the device's clock by 1 ns.
        self.hca().pass(1);
    }
}

/// A QP of this type.
fn shape(qp_type: QpType, send_cq: &Cq, recv_cq: &Cq) -> QpSetup {
    let service = match qp_type {
        QpType::RC => Service::Connected(Transport::Rc),
        QpType::UC => Service::Connected(Transport::Uc),
        QpType::RAW_PACKET => Service::Ethernet,
        _ => Service::Datagram(None),
    };
    QpSetup { service, send_cq: send_cq.number, receive_cq: recv_cq.number, ..QpSetup::default() }
}

/// A signalled request with SGEs.
#[must_use]
pub fn request(wr_id: u64, operation: Operation, sges: &[Sge]) -> SendRequest<'_> {
    SendRequest { wr_id, operation, flags: SendFlags::SIGNALED, payload: Payload::Sges(sges) }
}

/// Pushes a request: on the fast path, or on the slow path if the fast path declines.
///
/// # Errors
/// The queue rejects the request.
pub fn push(sq: &mut Mlx5Sq, request: &SendRequest<'_>) -> Result<(), PushError> {
    // SAFETY: the device accesses only memory of MRs, which stays registered until it is dropped.
    if unsafe { sq.try_push(request) } {
        return Ok(());
    }
    // SAFETY: as above.
    unsafe { sq.push(request) }
}

/// Posts a request, as applications do.
///
/// # Errors
/// The queue rejects the request.
///
/// # Panics
/// If the doorbell fails; those of mlx5 don't.
pub fn post(sq: &mut Mlx5Sq, request: &SendRequest<'_>) -> Result<(), PushError> {
    // SAFETY: as in `push`.
    if unsafe { sq.try_post(request, false) }.is_none() {
        push(sq, request)?;
        sq.ring().expect("doorbells are not refused");
    }
    Ok(())
}

/// Posts a request, as [`post`].
///
/// # Panics
/// If the queue rejects the request.
pub fn send(sq: &mut Mlx5Sq, request: &SendRequest<'_>) {
    post(sq, request).expect("room for the request");
}

/// Posts a receive.
///
/// # Panics
/// If the queue rejects the receive.
pub fn recv(queue: &mut impl RecvQueue, wr_id: u64, sges: &[Sge]) {
    let request = RecvRequest { wr_id, sges };
    // SAFETY: as in `push`.
    if !unsafe { queue.try_push(&request) } {
        // SAFETY: as in `push`.
        unsafe { queue.push(&request) }.expect("room for the receive");
    }
    queue.ring();
}

/// Polls the CQ until it is empty.
pub fn poll(cq: &mut Cq) -> Vec<WorkCompletion> {
    let mut taken = Vec::new();
    while let Some(completion) = cq.queue.next() {
        taken.push(completion.to_value());
    }
    cq.queue.release();
    taken
}
