//! Two queue pairs of the device, connected to each other.

use std::time::{Duration, Instant};

use bareverbs::{
    Access, AhAttr, Buffer, Cq, CqInit, InitAttr, Mr, Operation, Payload, Pd, PostError, Qp, QpAttr,
    QpAttrMask, QpCap, QpInit, QpState, QueueMemory, Rc, RecvRequest, RtrAttr, RtsAttr, SendFlags,
    SendRequest, Sge, WcStatus, WorkCompletion,
};

/// How long anything in these tests may take.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Everything a peer may be allowed.
pub const ALL_REMOTE: Access =
    Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

/// What a side is to be.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Depths and widths.
    pub cap: QpCap,
    /// Retries when the peer has no receive posted; 7 is for ever.
    pub rnr_retry: u8,
    /// How long an acknowledgement may take before packets are sent again: 4.096 µs times two to
    /// this power.
    pub timeout: u8,
    /// What the peer may do.
    pub access: Access,
    /// Whether completions may carry messages.
    pub scatter: bool,
    /// What its rings lie in.
    pub memory: QueueMemory,
}

impl Plan {
    /// The default, but with retries that are there for what is lost, not for what is late: a
    /// second or more each.
    pub fn long_timeouts() -> Self {
        Self { rnr_retry: 7, timeout: 18, ..Self::default() }
    }
}

impl Default for Plan {
    /// Four elements, 64 bytes inline, everything allowed, and half a second for a slow guest to
    /// acknowledge.
    fn default() -> Self {
        let cap = QpCap { max_send_sge: 4, max_recv_sge: 4, max_inline_data: 64, ..QpCap::default() };
        Self {
            cap,
            rnr_retry: 1,
            timeout: 14,
            access: ALL_REMOTE,
            scatter: false,
            memory: QueueMemory::Ordinary,
        }
    }
}

/// A queue pair with a completion queue of its own.
pub struct Side {
    /// The queue pair.
    pub qp: Qp<Rc>,
    /// Its completions.
    pub cq: Cq,
    plan: Plan,
}

pub use crate::device::open;

/// A domain of a context of its own.
pub fn domain() -> Pd {
    open().alloc_pd().expect("a protection domain")
}

/// A side in RESET.
pub fn side(pd: &Pd, plan: Plan) -> Side {
    let entries = plan.cap.max_send_wr + plan.cap.max_recv_wr;
    Side::on(pd, plan, pd.context().create_cq(&CqInit::new(entries)).expect("a completion queue"))
}

/// A side in RESET whose completions go to `cq`, with user data of its own.
pub fn side_on(pd: &Pd, plan: Plan, cq: Cq, user_data: u64) -> Side {
    let init = QpInit { cap: plan.cap, user_data, ..QpInit::new(&cq, &cq) };
    let qp = pd.create_qp::<Rc>(&init).expect("a queue pair");
    Side { qp, cq, plan }
}

/// Two sides in `pd`, connected to each other.
pub fn pair(pd: &Pd, plan: Plan) -> (Side, Side) {
    let (mut a, mut b) = (side(pd, plan), side(pd, plan));
    a.connect(b.qp.qp_num());
    b.connect(a.qp.qp_num());
    (a, b)
}

/// A region of these bytes.
pub fn region(pd: &Pd, bytes: &[u8], access: Access) -> Mr<Buffer> {
    let mut buffer = Buffer::zeroed(bytes.len()).expect("memory");
    buffer.copy_from_slice(bytes);
    pd.register(buffer, access).expect("a region")
}

/// What a region holds.
pub fn contents<M>(region: &Mr<M>) -> Vec<u8> {
    let mut bytes = vec![0; region.len()];
    region.read(0, &mut bytes).expect("the whole region");
    bytes
}

/// A signalled request.
pub fn request(wr_id: u64, operation: Operation, payload: Payload<'_>) -> SendRequest<'_> {
    SendRequest { wr_id, operation, flags: SendFlags::SIGNALED, payload }
}

/// Polls until `count` completions are there.
#[track_caller]
pub fn take(cq: &mut Cq, count: usize) -> Vec<WorkCompletion> {
    let begin = Instant::now();
    let mut taken = Vec::new();
    while taken.len() < count {
        taken.extend(cq.poll_one());
        assert!(begin.elapsed() < PATIENCE, "{} of {count} completions: {taken:?}", taken.len());
    }
    taken
}

impl Side {
    /// A side in RESET with this completion queue.
    pub fn on(pd: &Pd, plan: Plan, cq: Cq) -> Self {
        let Plan { cap, scatter, memory, .. } = plan;
        let init = QpInit { cap, scatter_to_cqe: scatter, memory, ..QpInit::new(&cq, &cq) };
        let qp = pd.create_qp::<Rc>(&init).expect("a queue pair");
        Self { qp, cq, plan }
    }

    /// What RTR sets towards the queue pair `peer` of the same port.
    pub fn towards(&self, peer: u32) -> RtrAttr {
        let context = self.qp.pd().context();
        let gid = context.default_gid(1).expect("the port has an address");
        let dlid = context.query_port(1).expect("the first port").lid;
        let address = AhAttr { dlid, ..AhAttr::global(1, gid.gid, gid.index as u8) };
        RtrAttr { max_dest_rd_atomic: 4, min_rnr_timer: 1, ..RtrAttr::new(address, peer) }
    }

    /// What RTS sets.
    pub fn sending(&self) -> RtsAttr {
        let Plan { rnr_retry, timeout, .. } = self.plan;
        RtsAttr { timeout, rnr_retry, max_rd_atomic: 4, ..RtsAttr::default() }
    }

    /// Brings it from RESET to RTS, towards the queue pair `peer`.
    pub fn connect(&mut self, peer: u32) {
        let (rtr, rts) = (self.towards(peer), self.sending());
        self.qp.init(&InitAttr { access: self.plan.access, ..InitAttr::new(1) }).expect("INIT");
        self.qp.ready_to_receive(&rtr).expect("RTR");
        self.qp.ready_to_send(&rts).expect("RTS");
    }

    /// Brings it to `state` as the kernel allows.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn go_to(&mut self, state: QpState) -> bareverbs::Result<()> {
        self.qp.modify(&QpAttr { qp_state: state, ..QpAttr::default() }, QpAttrMask::STATE)
    }

    /// The kernel's word on its state.
    pub fn kernel_state(&self) -> QpState {
        self.qp.query().expect("a queue pair can be queried in any state").0.qp_state
    }

    /// Posts sends.
    ///
    /// # Errors
    /// As for [`Qp::post_send`].
    pub fn send(&mut self, requests: &[SendRequest<'_>]) -> Result<(), PostError> {
        // SAFETY: tests keep their regions longer than their queue pairs and look at them by copies
        // only.
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

    /// Posts `count` receives into the same elements, numbered from `first`.
    pub fn recv_into(&mut self, first: u64, count: u64, sges: &[Sge]) {
        for wr_id in first..first + count {
            self.recv(&[RecvRequest { wr_id, sges }]).expect("the receive queue has room");
        }
    }

    /// Polls until `count` completions are there.
    pub fn completions(&mut self, count: usize) -> Vec<WorkCompletion> {
        take(&mut self.cq, count)
    }

    /// Numbers and statuses of the next `count` completions.
    pub fn ends(&mut self, count: usize) -> Vec<(u64, WcStatus)> {
        self.completions(count).iter().map(|completion| (completion.wr_id, completion.status)).collect()
    }
}
