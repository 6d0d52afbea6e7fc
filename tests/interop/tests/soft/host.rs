//! Two devices in this process, rxe and a soft device in a network namespace, and connected QPs on them.

use std::net::IpAddr;

use bareverbs::ah::AhAttr;
use bareverbs::cq::{Cq, CqInit, WorkCompletion};
use bareverbs::qp::{
    InitAttr, Operation, Payload, Qp, QpCap, QpInit, Rc, RecvRequest, RtrAttr, RtsAttr, Transport,
};
use bareverbs::soft::{Fabric, SoftDevice};
use bareverbs::values::{AckTimeout, MinRnrTimer, Mtu, RetryCount, RnrRetry};
use bareverbs::{Access, Buffer, Device, Gid, Mr, Pd, WcStatus};
use bareverbs_interop_tests::namespace::{Namespace, RXE_IP, RXE_IP6, SOFT_IP, SOFT_IP6, open_rxe};
use bareverbs_test_support::loopback::{ALL_REMOTE, next, region, request};

/// The IP version of the packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ip {
    V4,
    V6,
}

impl Ip {
    pub(crate) fn rxe(self) -> IpAddr {
        if self == Self::V4 { RXE_IP } else { RXE_IP6 }.parse().expect("an address")
    }

    pub(crate) fn soft(self) -> IpAddr {
        if self == Self::V4 { SOFT_IP } else { SOFT_IP6 }.parse().expect("an address")
    }
}

fn gid(address: IpAddr) -> Gid {
    match address {
        IpAddr::V4(address) => Gid(address.to_ipv6_mapped().octets()),
        IpAddr::V6(address) => Gid(address.octets()),
    }
}

/// Both devices. Fields are dropped in order: programs have no device open when it is removed.
pub(crate) struct Hosts {
    pub(crate) rxe: Pd,
    pub(crate) soft: Pd,
    pub(crate) soft_device: SoftDevice,
    pub(crate) ip: Ip,
    pub(crate) namespace: Namespace,
}

impl Hosts {
    pub(crate) fn new(ip: Ip) -> Self {
        let namespace = Namespace::new();
        let soft_device = namespace.run(|| SoftDevice::bind(&Fabric::new(), ip.soft())).expect("the address");
        let soft = Device::from(soft_device.clone()).open().expect("the soft device opens");
        let [rxe, soft] = [open_rxe(), soft].map(|context| context.alloc_pd().expect("a PD"));
        Self { rxe, soft, soft_device, ip, namespace }
    }

    /// The addresses of rxe and of the soft device.
    pub(crate) fn addresses(&self) -> [IpAddr; 2] {
        [self.ip.rxe(), self.ip.soft()]
    }

    /// Two connected RC QPs, of rxe and of the soft device, each with `len` bytes of memory.
    pub(crate) fn peers(&self, mtu: Mtu, len: usize) -> [Peer; 2] {
        let mut peers = [&self.rxe, &self.soft].map(|pd| Peer::new(pd, len));
        self.connect(&mut peers, mtu, patient());
        peers
    }

    /// Connects two QPs in RESET, of rxe and of the soft device.
    pub(crate) fn connect(&self, peers: &mut [Peer; 2], mtu: Mtu, rts: RtsAttr) {
        let addresses = self.addresses();
        let numbers = peers.each_ref().map(|peer| peer.qp.qp_num());
        for (own, peer) in peers.iter_mut().enumerate() {
            let other = 1 - own;
            let address = path(peer.qp.pd(), addresses[own], addresses[other]);
            let rtr = RtrAttr {
                path_mtu: mtu,
                max_dest_rd_atomic: 4,
                min_rnr_timer: MinRnrTimer::MIN,
                ..RtrAttr::new(address, numbers[other])
            };
            let access = peer.memory.access() & (ALL_REMOTE | Access::FLUSH_GLOBAL);
            peer.qp.init(&InitAttr { access, ..InitAttr::new(1) }).expect("INIT");
            peer.qp.ready_to_receive(&rtr).expect("RTR");
            peer.qp.ready_to_send(&rts).expect("RTS");
        }
    }
}

/// The path from a local address of a device to that of a peer.
pub(crate) fn path(pd: &Pd, from: IpAddr, to: IpAddr) -> AhAttr {
    let table = pd.context().gid_table().expect("the GID table");
    let entry = table.iter().find(|entry| entry.gid == gid(from)).expect("the device has the address");
    AhAttr::global(1, gid(to), entry.index)
}

/// Timeouts of more than 1 s: Soft-RoCE miscounts reads and atomics that are retried. On a busy machine, the
/// thread of a soft device waits hundreds of milliseconds for a processor. Each timeout of Soft-RoCE in this
/// time takes a retry, and a NAK does not refill them.
pub(crate) fn patient() -> RtsAttr {
    RtsAttr {
        timeout: AckTimeout::new(18).expect("a timeout"),
        retry_cnt: RetryCount::new(6).expect("a count"),
        rnr_retry: RnrRetry::INFINITE,
        max_rd_atomic: 4,
        ..RtsAttr::default()
    }
}

/// A QP, its CQ and memory.
pub(crate) struct Peer<T: Transport = Rc> {
    pub(crate) qp: Qp<T>,
    pub(crate) cq: Cq,
    pub(crate) memory: Mr<Buffer>,
}

impl<T: Transport> Peer<T> {
    pub(crate) fn new(pd: &Pd, len: usize) -> Self {
        let flush = if pd.context().capabilities().flush { Access::FLUSH_GLOBAL } else { Access::empty() };
        let access = ALL_REMOTE | Access::MW_BIND | flush;
        let cq = pd.context().create_cq(&CqInit::new(256)).expect("a CQ");
        let cap = QpCap { max_send_wr: 64, max_recv_wr: 128, max_inline_data: 64, ..QpCap::default() };
        let qp = pd.create_qp::<T>(&QpInit { cap, ..QpInit::new(&cq, &cq) }).expect("a QP");
        Self { qp, cq, memory: region(pd, &vec![0; len], access) }
    }

    /// Posts a receive into part of the memory.
    pub(crate) fn receive(&mut self, wr_id: u64, range: std::ops::Range<usize>) {
        let sges = [self.memory.sge(range).expect("the memory has the range")];
        // SAFETY: the memory is registered, and only copied from while requests use it. The QP is dropped
        // first.
        unsafe { self.qp.post_recv(&[RecvRequest { wr_id, sges: &sges }]) }.expect("the queue has room");
    }

    /// The next completion.
    #[track_caller]
    pub(crate) fn completion(&mut self) -> WorkCompletion {
        next(&mut self.cq)
    }
}

impl Peer {
    /// Posts a request with part of the memory.
    pub(crate) fn post(&mut self, wr_id: u64, operation: Operation, range: std::ops::Range<usize>) {
        let sges = [self.memory.sge(range).expect("the memory has the range")];
        let payload = match operation {
            Operation::Flush { .. }
            | Operation::AtomicWrite { .. }
            | Operation::BindMw(_)
            | Operation::LocalInv(_) => Payload::Sges(&[]),
            _ => Payload::Sges(&sges),
        };
        // SAFETY: as in `receive`.
        unsafe { self.qp.post_send(&[request(wr_id, operation, payload)]) }.expect("the queue has room");
    }

    /// Executes a request, and returns its successful completion.
    #[track_caller]
    pub(crate) fn execute(&mut self, operation: Operation, range: std::ops::Range<usize>) -> WorkCompletion {
        let completion = self.attempt(operation, range);
        assert_eq!(completion.status, WcStatus::SUCCESS, "{operation:?}: {completion:?}");
        completion
    }

    /// Executes a request, and returns its completion.
    #[track_caller]
    pub(crate) fn attempt(&mut self, operation: Operation, range: std::ops::Range<usize>) -> WorkCompletion {
        self.post(7, operation, range);
        let completion = self.completion();
        assert_eq!(completion.wr_id, 7, "{operation:?}: {completion:?}");
        completion
    }
}
