//! Tests of the data path with the queues of Soft-RoCE's provider.

mod hostile;
mod management;
mod objects;
mod records;
mod responder;
mod seeded;
mod speed;
mod time;
mod transfers;
mod udp;
mod zero_copy;

use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use bareverbs_provider::Errno;
use bareverbs_provider::device::IoctlError;
use bareverbs_provider::doorbell::Doorbell;
use bareverbs_provider::mapping::Mapping;
use bareverbs_provider::traits::{Completion, CompletionQueue, RecvQueue, SendQueue};
use bareverbs_provider::work::{
    Datagram, Operation, Payload, RecvRequest, Remote, SendFlags, SendRequest, Sge, WcStatus, WorkCompletion,
};
use bareverbs_rxe::{Arm, RxeAh, RxeCq, RxeRq, RxeSq, SendLimits};
use bareverbs_transport::{QpAttributes, State};
use bareverbs_uapi::rxe::{Av, GlobalRoute, NetworkType};
use bareverbs_uapi::uverbs::types::{AccessFlags, QpType};
use bareverbs_uapi::verbs_values::EventType;
use bareverbs_uapi::write::structs::AsyncEventDesc;
use bareverbs_uapi::write::types::DeviceCapFlags;
use std::os::fd::AsFd;
use zerocopy::FromZeros;

use super::{CreatedQp, Engine, Mr, MrAttr, QpInit, QueueMemory};
use crate::channel::{Channel, ChannelKind, ChannelUse, CqSink, ObjectSink};
use crate::fabric::Fabric;

const TIMEOUT: Duration = Duration::from_secs(30);

const PD: u32 = 1;
const MTU: u32 = 1024;
const QKEY: u32 = 0x1234;

/// Bytes of a peer's memory.
const MEMORY: usize = 1 << 20;

struct Memory(QueueMemory);

// SAFETY: a mapping is page aligned, valid and in place while it exists, and gives out raw pointers only.
unsafe impl bareverbs_rxe::QueueMemory for Memory {
    fn start(&self) -> NonNull<u8> {
        self.0.mapping().as_ptr()
    }

    fn size(&self) -> usize {
        self.0.len()
    }
}

/// The doorbell of a QP.
struct Bell {
    fabric: Fabric,
    device: u32,
    qpn: u32,
}

impl Doorbell for Bell {
    fn ring(&mut self) -> Result<(), Errno> {
        self.fabric.with(self.device, |engine| engine.post_send(self.qpn))
    }
}

struct ArmCq {
    fabric: Fabric,
    device: u32,
    cq: u32,
}

impl Arm for ArmCq {
    fn arm(&mut self, solicited_only: bool) -> Result<(), IoctlError> {
        let arm = |engine: &mut Engine| {
            engine.arm_cq(self.cq, solicited_only);
            Ok(())
        };
        self.fabric.with(self.device, arm).map_err(|errno| IoctlError::new("arm", errno))
    }
}

/// Reads the event types of an asynchronous channel.
fn events(channel: &OwnedFd) -> Vec<EventType> {
    let mut found = Vec::new();
    let mut bytes = [0; size_of::<AsyncEventDesc>()];
    let flags = rustix::fs::fcntl_getfl(channel).unwrap();
    rustix::fs::fcntl_setfl(channel, flags | rustix::fs::OFlags::NONBLOCK).unwrap();
    while rustix::io::read(channel, &mut bytes) == Ok(bytes.len()) {
        found.push(EventType(u32::from_ne_bytes(bytes[8..12].try_into().unwrap())));
    }
    found
}

/// A device with memory and a CQ.
struct Peer {
    fabric: Fabric,
    device: u32,
    memory: Mapping,
    mr: Mr,
    cq: u32,
    completions: RxeCq<ArmCq, Memory>,
    channel: (ChannelUse, OwnedFd),
    comp_channel: (ChannelUse, OwnedFd),
}

fn all_rights() -> AccessFlags {
    AccessFlags::LOCAL_WRITE
        | AccessFlags::REMOTE_WRITE
        | AccessFlags::REMOTE_READ
        | AccessFlags::REMOTE_ATOMIC
        | AccessFlags::MW_BIND
        | AccessFlags::FLUSH_GLOBAL
}

fn gid(last: u8) -> [u8; 16] {
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 127, 0, 0, last]
}

fn av(last: u8) -> Av {
    let grh = GlobalRoute { dgid: gid(last), hop_limit: 64, ..GlobalRoute::new_zeroed() };
    Av { port_num: 1, network_type: NetworkType::IPV4, grh, ..Av::new_zeroed() }
}

fn channel(kind: ChannelKind) -> (ChannelUse, OwnedFd) {
    let (channel, program) = Channel::new(kind, Arc::default()).unwrap();
    (channel.used(program.as_fd()).unwrap(), program)
}

impl Peer {
    fn new(fabric: &Fabric, last: u8, cqes: u32) -> Self {
        let device = fabric.add_device(vec![gid(last)], [2, 0, 0, 0, 0, last]);
        Self::of(fabric, device.expect("a free address"), cqes)
    }

    /// A device of the fabric with memory and a CQ.
    fn of(fabric: &Fabric, device: u32, cqes: u32) -> Self {
        let memory = Mapping::anonymous(MEMORY).unwrap();
        let (async_channel, comp_channel) = (channel(ChannelKind::Async), channel(ChannelKind::Completion));
        let start = memory.as_ptr().addr().get() as u64;
        let attr = MrAttr { pd: PD, start, length: MEMORY as u64, iova: start, access: all_rights() };
        let sink = CqSink::new(Some(comp_channel.0.clone()), Some(async_channel.0.clone()), 1);
        let made = fabric.with(device, |engine| {
            let mr = engine.register(attr.prepare()?)?;
            let (cq, ring) = engine.create_cq(cqes, Arc::new(sink))?;
            Ok((mr, cq, ring))
        });
        let (mr, cq, ring) = made.unwrap();
        let arm = ArmCq { fabric: fabric.clone(), device, cq };
        // SAFETY: the ring is that of the CQ, and this is its only consumer.
        let completions = unsafe { RxeCq::new(Memory(ring), cqes, arm) }.unwrap();
        let fabric = fabric.clone();
        Self { fabric, device, memory, mr, cq, completions, channel: async_channel, comp_channel }
    }

    fn with<R>(&self, f: impl FnOnce(&mut Engine) -> R) -> R {
        self.fabric.with(self.device, |engine| Ok(f(engine))).expect("a fabric that works")
    }

    fn start(&self) -> u64 {
        self.memory.as_ptr().addr().get() as u64
    }

    fn sge(&self, at: usize, length: usize) -> Sge {
        Sge { addr: self.start() + at as u64, length: length as u32, lkey: self.mr.lkey }
    }

    fn remote(&self, at: usize) -> Remote {
        Remote { addr: self.start() + at as u64, rkey: self.mr.rkey }
    }

    fn fill(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= MEMORY);
        // SAFETY: within the mapping, which no device accesses now.
        unsafe {
            self.memory.as_ptr().as_ptr().add(at).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
        };
    }

    fn bytes(&self, at: usize, length: usize) -> Vec<u8> {
        assert!(at + length <= MEMORY);
        let mut bytes = vec![0; length];
        // SAFETY: within the mapping, which no device accesses now.
        unsafe { self.memory.as_ptr().as_ptr().add(at).copy_to_nonoverlapping(bytes.as_mut_ptr(), length) };
        bytes
    }

    fn poll(&mut self) -> Option<WorkCompletion> {
        let found = self.completions.next().map(|completion| completion.to_value());
        self.completions.release();
        found
    }

    fn wait(&mut self) -> WorkCompletion {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if let Some(found) = self.poll() {
                return found;
            }
            assert!(Instant::now() < deadline, "no completion");
            std::thread::yield_now();
        }
    }

    /// The completions that are there: `wr_id` and status.
    fn drain(&mut self) -> Vec<(u64, WcStatus)> {
        std::iter::from_fn(|| self.poll()).map(|found| (found.wr_id, found.status)).collect()
    }

    fn remove(&self) {
        assert!(self.fabric.remove_device(self.device, &AtomicBool::new(false)));
    }

    fn events(&self) -> Vec<EventType> {
        events(&self.channel.1)
    }

    fn sink(&self) -> Arc<ObjectSink> {
        Arc::new(ObjectSink::new(Some(self.channel.0.clone()), 2))
    }

    fn init(&self, qp_type: QpType) -> QpInit {
        QpInit {
            pd: PD,
            qp_type,
            send_cq: self.cq,
            recv_cq: self.cq,
            srq: None,
            max_send_wr: 16,
            max_recv_wr: 16,
            max_send_sge: 4,
            max_recv_sge: 4,
            max_inline: 64,
            all_signaled: false,
            sink: self.sink(),
        }
    }

    fn qp(&self, qp_type: QpType) -> Qp {
        self.qp_of(self.init(qp_type))
    }

    fn qp_of(&self, init: QpInit) -> Qp {
        let (depth, recv_depth, sges) = (init.max_send_wr, init.max_recv_wr, init.max_recv_sge);
        let qp_type = init.qp_type;
        let made: CreatedQp = self.with(|engine| engine.create_qp(init)).unwrap();
        let limits = SendLimits::new(qp_type, made.max_send_sge, made.max_inline).unwrap();
        let limits = limits.with_capabilities(DeviceCapFlags::FLUSH_GLOBAL | DeviceCapFlags::ATOMIC_WRITE);
        let bell = Bell { fabric: self.fabric.clone(), device: self.device, qpn: made.qpn };
        let sq_ring = made.sq.clone();
        // SAFETY: the ring is that of the QP, this is its only producer, and the doorbell is the QP's.
        let sq = unsafe { RxeSq::new(Memory(made.sq), depth, limits, bell) }.unwrap();
        let rq_ring = made.rq.clone();
        // SAFETY: as above.
        let rq = made.rq.map(|ring| unsafe { RxeRq::new(Memory(ring), recv_depth, sges) }.unwrap());
        Qp { qpn: made.qpn, sq, rq, sq_ring, rq_ring }
    }

    fn modify(&self, qpn: u32, state: State, attributes: &QpAttributes) {
        self.with(|engine| engine.modify_qp(qpn, state, attributes.clone()));
    }

    fn attributes(&self, to: (u8, u32)) -> QpAttributes {
        QpAttributes {
            mtu: MTU,
            remote_qp: to.1,
            route: self.with(|engine| engine.route(&av(to.0))).unwrap(),
            qkey: QKEY,
            remote_read: true,
            remote_write: true,
            remote_atomic: true,
            remote_flush: 1,
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            min_rnr_timer: 1,
            retry_count: 6,
            rnr_retry: 7,
            ack_timeout: 12,
            send_psn: 0xff_fff8,
            receive_psn: 0xff_fff8,
            ..QpAttributes::default()
        }
    }

    /// Moves a QP to RTS, connected to a QP of the device with this address.
    fn connect(&self, qp: &Qp, to: (u8, u32)) {
        self.connect_with(qp, &self.attributes(to));
    }

    fn connect_with(&self, qp: &Qp, attributes: &QpAttributes) {
        for state in [State::Init, State::ReadyToReceive, State::ReadyToSend] {
            self.modify(qp.qpn, state, attributes);
        }
    }

    fn state(&self, qp: &Qp) -> State {
        self.with(|engine| engine.qp_state(qp.qpn)).unwrap()
    }
}

struct Qp {
    qpn: u32,
    sq: RxeSq<Bell, Memory>,
    rq: Option<RxeRq<Memory>>,
    sq_ring: QueueMemory,
    rq_ring: Option<QueueMemory>,
}

impl Qp {
    fn push(&mut self, wr_id: u64, operation: Operation, flags: SendFlags, payload: Payload<'_>) {
        let request = SendRequest { wr_id, operation, flags, payload };
        // SAFETY: the memory of requests outlives the test.
        unsafe { self.sq.push(&request) }.expect("a request within the limits");
    }

    /// Posts a signaled request.
    fn post(&mut self, wr_id: u64, operation: Operation, sges: &[Sge]) {
        self.push(wr_id, operation, SendFlags::SIGNALED, Payload::Sges(sges));
        self.sq.ring().expect("a QP in RTS");
    }

    fn post_datagram(&mut self, wr_id: u64, ah: u32, to: u32, sges: &[Sge]) {
        let operation =
            Datagram { ah: &RxeAh { number: ah }, qp_num: to, qkey: QKEY, imm: None, header: &[] };
        let payload = Payload::Sges(sges);
        let request = SendRequest { wr_id, operation, flags: SendFlags::SIGNALED, payload };
        // SAFETY: the memory of requests outlives the test.
        unsafe { self.sq.push_datagram(&request) }.expect("a request within the limits");
        self.sq.ring().expect("a QP in RTS");
    }

    fn receive(&mut self, wr_id: u64, sges: &[Sge]) {
        receive(self.rq.as_mut().expect("an RQ"), wr_id, sges);
    }
}

fn receive(queue: &mut RxeRq<Memory>, wr_id: u64, sges: &[Sge]) {
    // SAFETY: the memory of requests outlives the test.
    unsafe { queue.push(&RecvRequest { wr_id, sges }) }.expect("a request within the limits");
    queue.ring();
}

/// Two devices with a pair of connected QPs.
struct Pair {
    a: Peer,
    b: Peer,
    qa: Qp,
    qb: Qp,
}

impl Pair {
    fn new(qp_type: QpType) -> Self {
        Self::on(&Fabric::new(), qp_type, |_| {})
    }

    fn rc() -> Self {
        Self::new(QpType::RC)
    }

    fn on(fabric: &Fabric, qp_type: QpType, change: impl Fn(&mut QpAttributes)) -> Self {
        let (a, b) = (Peer::new(fabric, 2, 64), Peer::new(fabric, 3, 64));
        let (qa, qb) = (a.qp(qp_type), b.qp(qp_type));
        for (peer, qp, to) in [(&a, &qa, (3, qb.qpn)), (&b, &qb, (2, qa.qpn))] {
            let mut attributes = peer.attributes(to);
            change(&mut attributes);
            peer.connect_with(qp, &attributes);
        }
        Self { a, b, qa, qb }
    }
}

fn pattern(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|at| (at as u8).wrapping_mul(31).wrapping_add((at >> 8) as u8 ^ seed)).collect()
}
