//! Two connected queue pairs of one device.

use bareverbs::ah::AhAttr;
use bareverbs::cq::{Cq, CqInit, WorkCompletion};
use bareverbs::qp::{InitAttr, Qp, QpCap, QpInit, Rc, RecvRequest, RtrAttr, RtsAttr, SendRequest};
use bareverbs::values::{AckTimeout, MinRnrTimer, RetryCount, RnrRetry};
use bareverbs::{Buffer, Mr, Pd, WcStatus};
pub(crate) use bareverbs_kernel_tests::TIMEOUT;
use bareverbs_kernel_tests::loopback::{self, take};
pub(crate) use bareverbs_kernel_tests::loopback::{ALL_REMOTE, contents};
pub(crate) use bareverbs_kernel_tests::resources::held as counts;
use bareverbs_kernel_tests::{cm, device};

pub(crate) use bareverbs_kernel_tests::device::open;

/// The READs and atomics that an end has outstanding, and those that it answers.
const RD_ATOMIC: u8 = 4;

/// Major and minor version of the running kernel.
pub(crate) fn kernel() -> (u32, u32) {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map_while(|part| part.trim().parse().ok());
    (numbers.next().unwrap(), numbers.next().unwrap())
}

/// A queue pair with a CQ of its own.
pub(crate) struct End {
    pub(crate) qp: Qp<Rc>,
    pub(crate) cq: Cq,
}

impl End {
    pub(crate) fn new(pd: &Pd, cap: QpCap) -> Self {
        let entries = cap.max_send_wr + cap.max_recv_wr;
        let cq = pd.context().create_cq(&CqInit::new(entries)).unwrap();
        Self::on(pd, cap, cq)
    }

    pub(crate) fn on(pd: &Pd, cap: QpCap, cq: Cq) -> Self {
        let qp = pd.create_qp::<Rc>(&QpInit { cap, ..QpInit::new(&cq, &cq) }).unwrap();
        Self { qp, cq }
    }

    /// Connects it to `peer`, with this RNR retry count; 7 is unlimited. The timeouts are finite, but long
    /// enough for a slow guest: Soft-RoCE loses count of reads and atomics that are retried, and a fence
    /// then waits without limit.
    pub(crate) fn connect_with(&mut self, peer: u32, rnr_retry: u8) {
        let gid = self.qp.pd().context().default_gid(1).unwrap();
        let address = AhAttr::global(1, gid.gid, gid.index);
        self.qp.init(&InitAttr { access: ALL_REMOTE, ..InitAttr::new(1) }).unwrap();
        self.qp
            .ready_to_receive(&RtrAttr {
                max_dest_rd_atomic: RD_ATOMIC,
                min_rnr_timer: MinRnrTimer::new(1).unwrap(),
                ..RtrAttr::new(address, peer)
            })
            .unwrap();
        let rts = RtsAttr {
            timeout: AckTimeout::new(16).unwrap(),
            retry_cnt: RetryCount::new(2).unwrap(),
            rnr_retry: RnrRetry::new(rnr_retry).unwrap(),
            max_rd_atomic: RD_ATOMIC,
            ..RtsAttr::default()
        };
        self.qp.ready_to_send(&rts).unwrap();
    }

    pub(crate) fn recv(&mut self, wr_id: u64, buffer: &Mr<Buffer>) {
        let sges = [buffer.sge(..).unwrap()];
        // SAFETY: these tests keep the region longer than the queue pair and only copy its bytes.
        unsafe { self.qp.post_recv(&[RecvRequest { wr_id, sges: &sges }]) }.unwrap();
    }

    pub(crate) fn send(&mut self, request: &SendRequest<'_>) {
        // SAFETY: these tests keep their regions longer than the queue pair and only copy their
        // bytes.
        unsafe { self.qp.post_send(std::slice::from_ref(request)) }.unwrap();
    }

    /// Polls until there are `count` completions.
    pub(crate) fn completions(&mut self, count: usize) -> Vec<WorkCompletion> {
        take(&mut self.cq, count)
    }

    /// Polls until there is one completion, which must be successful.
    pub(crate) fn completion(&mut self) -> WorkCompletion {
        let completion = self.completions(1)[0];
        assert_eq!(completion.status, WcStatus::SUCCESS, "{completion:?}");
        completion
    }
}

/// Two ends in `pd`, connected to each other.
pub(crate) fn pair_in(pd: &Pd, cap: QpCap) -> (End, End) {
    let (mut a, mut b) = (End::new(pd, cap), End::new(pd, cap));
    join(&mut a, &mut b);
    (a, b)
}

/// Connects two ends to each other. On iWARP, the kernel's connection manager connects them.
pub(crate) fn join(a: &mut End, b: &mut End) {
    if device::is_iwarp() {
        return cm::connect(&mut a.qp, &mut b.qp, RD_ATOMIC);
    }
    a.connect_with(b.qp.qp_num(), 7);
    b.connect_with(a.qp.qp_num(), 7);
}

/// The same in a PD of its own, with several SGEs and inline data.
pub(crate) fn pair() -> (Pd, End, End) {
    let pd = open().alloc_pd().unwrap();
    let cap = QpCap { max_send_sge: 4, max_recv_sge: 4, max_inline_data: 64, ..QpCap::default() };
    let (a, b) = pair_in(&pd, cap);
    (pd, a, b)
}

pub(crate) fn region(pd: &Pd, bytes: &[u8]) -> Mr<Buffer> {
    loopback::region(pd, bytes, ALL_REMOTE)
}

/// A signalled send of a message.
pub(crate) fn message<'a>(wr_id: u64, payload: bareverbs::qp::Payload<'a>) -> SendRequest<'a> {
    loopback::request(wr_id, bareverbs::qp::Operation::Send, payload)
}
