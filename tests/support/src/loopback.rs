//! Two queue pairs of the device, connected to each other.

use std::time::Instant;

use bareverbs::ah::AhAttr;
use bareverbs::cq::{Cq, CqInit, WorkCompletion};
use bareverbs::error::PostError;
use bareverbs::qp::{
    InitAttr, Operation, Payload, Qp, QpAttr, QpAttrMask, QpCap, QpInit, QpState, QueueMemory, Rc,
    RecvRequest, RtrAttr, RtsAttr, SendFlags, SendRequest, Sge,
};
use bareverbs::values::{AckTimeout, MinRnrTimer, RnrRetry};
use bareverbs::{Access, Buffer, Mr, Pd, WcStatus};

use crate::iwarp::is_iwarp;
use crate::{TIMEOUT, cm};

/// All remote access rights.
pub const ALL_REMOTE: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

/// The READs and atomics that a side has outstanding, and those that it answers.
const RD_ATOMIC: u8 = 4;

/// The parameters of a side.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The capabilities of the queue pair.
    pub cap: QpCap,
    /// RNR retries.
    pub rnr_retry: RnrRetry,
    /// ACK timeout.
    pub timeout: AckTimeout,
    /// The remote access rights.
    pub access: Access,
    /// Whether to use scatter to CQE.
    pub scatter: bool,
    /// The memory of the queue pair's rings.
    pub memory: QueueMemory<'static>,
}

impl Plan {
    /// The default with an ACK timeout of at least 1 s, so that lost packets are retried and late
    /// packets are not.
    pub fn long_timeouts() -> Self {
        Self { rnr_retry: RnrRetry::INFINITE, timeout: AckTimeout::new(18).unwrap(), ..Self::default() }
    }
}

impl Default for Plan {
    /// Four SGEs, 64 bytes of inline data, all access rights, and an ACK timeout of half a second
    /// for a slow guest.
    fn default() -> Self {
        let cap = QpCap { max_send_sge: 4, max_recv_sge: 4, max_inline_data: 64, ..QpCap::default() };
        Self {
            cap,
            rnr_retry: RnrRetry::new(1).unwrap(),
            timeout: AckTimeout::default(),
            access: ALL_REMOTE,
            scatter: false,
            memory: QueueMemory::BasePages,
        }
    }
}

/// A queue pair with a CQ of its own.
pub struct Side {
    /// The queue pair.
    pub qp: Qp<Rc>,
    /// Its CQ.
    pub cq: Cq,
    plan: Plan,
}

pub use crate::opened::open;

/// A PD in a new context.
pub fn domain() -> Pd {
    open().alloc_pd().expect("a protection domain")
}

/// A side in RESET.
pub fn side(pd: &Pd, plan: Plan) -> Side {
    let entries = plan.cap.max_send_wr + plan.cap.max_recv_wr;
    Side::on(pd, plan, pd.context().create_cq(&CqInit::new(entries)).expect("a CQ"))
}

/// A side in RESET with the CQ `cq` and this user data.
pub fn side_on(pd: &Pd, plan: Plan, cq: Cq, user_data: u64) -> Side {
    let init = QpInit { cap: plan.cap, user_data, ..QpInit::new(&cq, &cq) };
    let qp = pd.create_qp::<Rc>(&init).expect("a queue pair");
    Side { qp, cq, plan }
}

/// Two sides in `pd`, connected to each other.
pub fn pair(pd: &Pd, plan: Plan) -> (Side, Side) {
    let (mut a, mut b) = (side(pd, plan), side(pd, plan));
    join(&mut a, &mut b);
    (a, b)
}

/// Connects two sides in RESET to each other. On iWARP, the kernel's connection manager connects them.
pub fn join(a: &mut Side, b: &mut Side) {
    if !is_iwarp() {
        a.connect(b.qp.qp_num());
        b.connect(a.qp.qp_num());
        return;
    }
    for side in [&mut *a, &mut *b] {
        side.init();
    }
    cm::connect(&mut a.qp, &mut b.qp, RD_ATOMIC);
}

/// Connects a side to a queue pair that has no side. Both are in RESET.
pub fn join_qp(side: &mut Side, qp: &mut Qp<Rc>) {
    qp.init(&InitAttr { access: ALL_REMOTE, ..InitAttr::new(1) }).expect("INIT");
    if is_iwarp() {
        side.init();
        return cm::connect(&mut side.qp, qp, RD_ATOMIC);
    }
    qp.ready_to_receive(&side.towards(side.qp.qp_num())).expect("RTR");
    qp.ready_to_send(&side.sending()).expect("RTS");
    side.connect(qp.qp_num());
}

/// Registers a region with these bytes.
pub fn region(pd: &Pd, bytes: &[u8], access: Access) -> Mr<Buffer> {
    let mut buffer = Buffer::zeroed(bytes.len()).expect("memory");
    buffer.copy_from_slice(bytes);
    pd.register(buffer, access).expect("a region")
}

/// A copy of a region's bytes.
pub fn contents<M>(region: &Mr<M>) -> Vec<u8> {
    let mut bytes = vec![0; region.len()];
    region.read(0, &mut bytes).expect("the whole region");
    bytes
}

/// A signalled request.
pub fn request(wr_id: u64, operation: Operation, payload: Payload<'_>) -> SendRequest<'_> {
    SendRequest { wr_id, operation, flags: SendFlags::SIGNALED, payload }
}

/// The next completion, with any status.
#[track_caller]
pub fn next(cq: &mut Cq) -> WorkCompletion {
    take(cq, 1).remove(0)
}

/// Polls until there are `count` completions. Other threads run meanwhile: a guest may have one
/// processor.
#[track_caller]
pub fn take(cq: &mut Cq, count: usize) -> Vec<WorkCompletion> {
    let begin = Instant::now();
    let mut taken = Vec::new();
    while taken.len() < count {
        match cq.poll_one() {
            Some(completion) => taken.push(completion),
            None => std::thread::yield_now(),
        }
        assert!(begin.elapsed() < TIMEOUT, "{} of {count} completions: {taken:?}", taken.len());
    }
    taken
}

impl Side {
    /// A side in RESET with this CQ.
    pub fn on(pd: &Pd, plan: Plan, cq: Cq) -> Self {
        let Plan { cap, scatter, memory, .. } = plan;
        let init = QpInit { cap, scatter_to_cqe: scatter, memory, ..QpInit::new(&cq, &cq) };
        let qp = pd.create_qp::<Rc>(&init).expect("a queue pair");
        Self { qp, cq, plan }
    }

    /// A side of this queue pair in RESET and its CQ.
    pub fn of(qp: Qp<Rc>, cq: Cq, plan: Plan) -> Self {
        Self { qp, cq, plan }
    }

    /// The RTR attributes for the queue pair `peer` of the same port.
    pub fn towards(&self, peer: u32) -> RtrAttr {
        let context = self.qp.pd().context();
        let gid = context.default_gid(1).expect("the port has an address");
        let dlid = context.query_port(1).expect("the first port").lid;
        let address = AhAttr { dlid, ..AhAttr::global(1, gid.gid, gid.index) };
        RtrAttr {
            max_dest_rd_atomic: RD_ATOMIC,
            min_rnr_timer: MinRnrTimer::MIN,
            ..RtrAttr::new(address, peer)
        }
    }

    /// The RTS attributes.
    pub fn sending(&self) -> RtsAttr {
        let Plan { rnr_retry, timeout, .. } = self.plan;
        RtsAttr { timeout, rnr_retry, max_rd_atomic: RD_ATOMIC, ..RtsAttr::default() }
    }

    /// Brings the queue pair from RESET to RTS, connected to the queue pair `peer`.
    pub fn connect(&mut self, peer: u32) {
        let (rtr, rts) = (self.towards(peer), self.sending());
        self.init();
        self.qp.ready_to_receive(&rtr).expect("RTR");
        self.qp.ready_to_send(&rts).expect("RTS");
    }

    fn init(&mut self) {
        self.qp.init(&InitAttr { access: self.plan.access, ..InitAttr::new(1) }).expect("INIT");
    }

    /// Brings the queue pair to `state` by valid transitions.
    ///
    /// # Errors
    /// If the kernel rejects a transition.
    pub fn go_to(&mut self, state: QpState) -> bareverbs::Result<()> {
        self.qp.modify(&QpAttr { qp_state: state, ..QpAttr::default() }, QpAttrMask::STATE)
    }

    /// The queue pair's state, as queried from the kernel.
    pub fn kernel_state(&self) -> QpState {
        self.qp.query().expect("a queue pair can be queried in any state").0.qp_state
    }

    /// Posts sends.
    ///
    /// # Errors
    /// As for [`Qp::post_send`].
    pub fn send(&mut self, requests: &[SendRequest<'_>]) -> Result<(), PostError> {
        // SAFETY: tests keep their regions longer than their queue pairs and only copy their bytes.
        unsafe { self.qp.post_send(requests) }
    }

    /// Posts receives.
    ///
    /// # Errors
    /// As for [`Qp::post_recv`].
    pub fn recv(&mut self, requests: &[RecvRequest<'_>]) -> Result<(), PostError> {
        // SAFETY: tests keep their regions longer than their queue pairs and only copy their bytes.
        unsafe { self.qp.post_recv(requests) }
    }

    /// Posts `count` receives with the same SGEs and ids from `first` on.
    pub fn recv_into(&mut self, first: u64, count: u64, sges: &[Sge]) {
        for wr_id in first..first + count {
            self.recv(&[RecvRequest { wr_id, sges }]).expect("the receive queue has room");
        }
    }

    /// Polls until there are `count` completions.
    pub fn completions(&mut self, count: usize) -> Vec<WorkCompletion> {
        take(&mut self.cq, count)
    }

    /// Ids and statuses of the next `count` completions.
    pub fn ends(&mut self, count: usize) -> Vec<(u64, WcStatus)> {
        self.completions(count).iter().map(|completion| (completion.wr_id, completion.status)).collect()
    }
}
