//! The tables of `docs/cookbook.md`: granted depths and completion statuses.

use std::fmt::Write;
use std::time::{Duration, Instant};

use bareverbs::cq::CqInit;
use bareverbs::qp::{InitAttr, Operation, Payload, QpCap, QpInit, QpState, Rc, RecvRequest, RtrAttr, Sge};
use bareverbs::srq::SrqInit;
use bareverbs::values::RnrRetry;
use bareverbs::{Access, AsyncEvent, Imm, Remote, WcStatus};
use bareverbs_kernel_tests::loopback::{ALL_REMOTE, Plan, Side, domain, region, request, side_on};
use bareverbs_kernel_tests::{device, kernel_test};

const COOKBOOK: &str = include_str!("../../../../docs/cookbook.md");
/// Times in which completions and events come: most often, and on a busy machine.
const TIMES: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(2)];

/// Two QPs, each in a context of its own, as in two processes.
struct Ends {
    requester: Side,
    responder: Side,
    /// How long the responder's completion and event may take.
    time: Duration,
}

impl Ends {
    /// Connected, with these rights of the requester and this number of its reads at a time.
    fn with(time: Duration, access: Access, max_dest_rd_atomic: u8) -> Self {
        let plan = Plan { rnr_retry: RnrRetry::new(1).unwrap(), ..Plan::default() };
        let [mut requester, mut responder] = [(); 2].map(|()| {
            let pd = domain();
            let cq = pd.context().create_cq(&CqInit::new(32)).unwrap();
            side_on(&pd, plan, cq, 1)
        });
        requester.connect(responder.qp.qp_num());
        let (rtr, rts) = (responder.towards(requester.qp.qp_num()), responder.sending());
        responder.qp.init(&InitAttr { access, ..InitAttr::new(1) }).unwrap();
        responder.qp.ready_to_receive(&RtrAttr { max_dest_rd_atomic, ..rtr }).unwrap();
        responder.qp.ready_to_send(&rts).unwrap();
        Self { requester, responder, time }
    }

    fn new(time: Duration) -> Self {
        Self::with(time, ALL_REMOTE, 4)
    }

    /// Posts a request and describes what each end sees.
    fn observe(&mut self, operation: Operation, payload: &[Sge]) -> [String; 2] {
        self.requester.send(&[request(1, operation, Payload::Sges(payload))]).unwrap();
        self.outcome()
    }

    fn outcome(&mut self) -> [String; 2] {
        let status = match self.requester.ends(1)[0].1 {
            // Soft-RoCE has the status of the request that moved the QP to ERR.
            WcStatus::WR_FLUSH_ERR => {
                self.requester.qp.failure().map_or(WcStatus::WR_FLUSH_ERR, |failure| failure.status)
            }
            status => status,
        };
        let (mut receive, mut events) = (None, Vec::new());
        let channel = self.responder.qp.pd().context().async_events();
        let begin = Instant::now();
        while begin.elapsed() < self.time {
            receive = receive.or_else(|| self.responder.cq.poll_one());
            if let Some(AsyncEvent::Qp { event, .. }) = channel.try_wait().unwrap() {
                events.push(event);
            }
        }
        let mut responder = receive.map_or("–".to_owned(), |done| format!("`{}`", done.status));
        if self.responder.kernel_state() == QpState::ERR {
            responder += ", ERR";
        }
        for event in events {
            write!(responder, ", `{event:?}`").unwrap();
        }
        [format!("`{status}`"), responder]
    }
}

/// The causes of the table, with what both ends see.
fn observations(time: Duration) -> Vec<(&'static str, [String; 2])> {
    let mut seen = Vec::new();

    let mut ends = Ends::new(time);
    let own = region(ends.requester.qp.pd(), &[1; 128], ALL_REMOTE);
    seen.push((
        "an R_Key of no MR",
        ends.observe(Operation::Write(Remote { addr: 0, rkey: 0 }), &[own.sge(..).unwrap()]),
    ));

    let mut ends = Ends::new(time);
    let own = region(ends.requester.qp.pd(), &[1; 128], ALL_REMOTE);
    let memory = region(ends.responder.qp.pd(), &[0; 64], ALL_REMOTE);
    let beyond = Operation::Write(memory.remote(0).unwrap());
    seen.push(("an access beyond the MR", ends.observe(beyond, &[own.sge(..).unwrap()])));

    let mut ends = Ends::new(time);
    let own = region(ends.requester.qp.pd(), &[1; 128], ALL_REMOTE);
    let memory = region(ends.responder.qp.pd(), &[0; 128], Access::REMOTE_READ);
    let write = Operation::Write(memory.remote(0).unwrap());
    seen.push(("a write to an MR without `REMOTE_WRITE`", ends.observe(write, &[own.sge(..).unwrap()])));

    let mut ends = Ends::with(time, Access::REMOTE_READ, 4);
    let own = region(ends.requester.qp.pd(), &[1; 128], ALL_REMOTE);
    let memory = region(ends.responder.qp.pd(), &[0; 128], ALL_REMOTE);
    let write = Operation::Write(memory.remote(0).unwrap());
    seen.push(("a write to a QP without `REMOTE_WRITE`", ends.observe(write, &[own.sge(..).unwrap()])));

    let mut ends = Ends::with(time, ALL_REMOTE, 0);
    let own = region(ends.requester.qp.pd(), &[1; 128], ALL_REMOTE);
    let memory = region(ends.responder.qp.pd(), &[0; 128], ALL_REMOTE);
    let read = Operation::Read(memory.remote(0).unwrap());
    seen.push(("a read of a QP with `max_dest_rd_atomic` 0", ends.observe(read, &[own.sge(..).unwrap()])));

    let mut ends = Ends::new(time);
    let own = region(ends.requester.qp.pd(), &[1; 4096], ALL_REMOTE);
    let short = region(ends.responder.qp.pd(), &[0; 64], ALL_REMOTE);
    ends.responder.recv(&[RecvRequest::new(2, &[short.sge(..).unwrap()])]).unwrap();
    seen.push(("a message longer than the receive", ends.observe(Operation::Send, &[own.sge(..).unwrap()])));

    let mut ends = Ends::new(time);
    let own = region(ends.requester.qp.pd(), &[1; 4096], ALL_REMOTE);
    let closed = region(ends.responder.qp.pd(), &[0; 4096], Access::empty());
    ends.responder.recv(&[RecvRequest::new(2, &[closed.sge(..).unwrap()])]).unwrap();
    let observed = ends.observe(Operation::Send, &[own.sge(..).unwrap()]);
    seen.push(("a receive into an MR without `LOCAL_WRITE`", observed));

    let mut ends = Ends::new(time);
    let own = region(ends.requester.qp.pd(), &[1; 64], ALL_REMOTE);
    seen.push((
        "no receive posted, `rnr_retry` finite",
        ends.observe(Operation::Send, &[own.sge(..).unwrap()]),
    ));

    let mut ends = Ends::new(time);
    let own = region(ends.requester.qp.pd(), &[1; 64], ALL_REMOTE);
    let memory = region(ends.responder.qp.pd(), &[0; 64], ALL_REMOTE);
    let write = Operation::WriteImm(memory.remote(0).unwrap(), Imm(1));
    let observed = ends.observe(write, &[own.sge(..).unwrap()]);
    seen.push(("a write with immediate data and no receive posted", observed));

    let mut ends = Ends::new(time);
    let own = region(ends.requester.qp.pd(), &[1; 64], ALL_REMOTE);
    ends.responder.recv(&[RecvRequest::new(2, &[])]).unwrap();
    ends.responder.qp.set_error().unwrap();
    seen.push((
        "the peer's QP is in ERR, or destroyed",
        ends.observe(Operation::Send, &[own.sge(..).unwrap()]),
    ));

    let mut ends = Ends::new(time);
    let other = region(ends.responder.qp.pd(), &[1; 4096], ALL_REMOTE);
    let wrong = Sge { lkey: 0xdead_be00, ..other.sge(..).unwrap() };
    seen.push(("a send with an L_Key of no MR", ends.observe(Operation::Send, &[wrong])));

    let mut ends = Ends::new(time);
    let closed = region(ends.requester.qp.pd(), &[1; 4096], Access::empty());
    let memory = region(ends.responder.qp.pd(), &[0; 4096], ALL_REMOTE);
    let read = Operation::Read(memory.remote(0).unwrap());
    let observed = ends.observe(read, &[closed.sge(..).unwrap()]);
    seen.push(("a read into an MR without `LOCAL_WRITE`", observed));

    let mut ends = Ends::new(time);
    let own = region(ends.requester.qp.pd(), &[1; 64], ALL_REMOTE);
    ends.requester.qp.set_error().unwrap();
    seen.push(("a post to a QP in ERR", ends.observe(Operation::Send, &[own.sge(..).unwrap()])));
    seen
}

/// The cells of the row that starts with these.
fn row(first: &str) -> Option<Vec<&'static str>> {
    let line = COOKBOOK.lines().find(|line| line.starts_with(&format!("| {first} |")))?;
    Some(line.trim_matches('|').split('|').map(str::trim).collect())
}

/// The rows of the cookbook that differ from what both ends see within a time.
fn wrong_statuses(time: Duration) -> String {
    // Requester and responder on rxe, then on mlx5.
    let first = if device::has_rxe_abi() { 1 } else { 3 };
    let mut wrong = String::new();
    for (cause, [requester, responder]) in observations(time) {
        let said = row(cause).map(|cells| [cells[first], cells[first + 1]]);
        // A cell names the alternatives of kernels.
        let matches = |cell: &str, seen: &str| cell.split(" or ").any(|one| one == seen);
        if !said.is_some_and(|[one, two]| matches(one, &requester) && matches(two, &responder)) {
            writeln!(wrong, "| {cause} | {requester} | {responder} | but the cookbook says {said:?}")
                .unwrap();
        }
    }
    wrong
}

#[kernel_test(device::acknowledges)]
fn statuses_are_those_of_the_cookbook() {
    let [soon, later] = TIMES;
    if !wrong_statuses(soon).is_empty() {
        assert_eq!(wrong_statuses(later), "");
    }
}

#[kernel_test]
fn granted_depths_are_those_of_the_cookbook() {
    let pd = domain();
    let context = pd.context();
    let mut wrong = String::new();
    for asked in [16, 64, 100] {
        let cq = context.create_cq(&CqInit::new(asked)).unwrap();
        let cap = QpCap { max_send_wr: asked, max_recv_wr: asked, ..QpCap::default() };
        let qp = pd.create_qp::<Rc>(&QpInit { cap, ..QpInit::new(&cq, &cq) }).unwrap();
        let srq = pd.create_srq(&SrqInit::new(asked)).unwrap();
        let cap = qp.cap();
        for (queue, granted) in [
            ("`max_send_wr`", cap.max_send_wr),
            ("`max_recv_wr`", cap.max_recv_wr),
            ("CQ entries", cq.capacity()),
            ("SRQ receives", srq.capacity()),
        ] {
            let column = match () {
                () if device::has_rxe_abi() => 2,
                () if device::is_iwarp() => 4,
                () => 3,
            };
            let said = row(&format!("{queue} | {asked}")).map(|cells| cells[column]);
            if said != Some(&granted.to_string()) {
                writeln!(wrong, "| {queue} | {asked} | {granted} | but the cookbook says {said:?}").unwrap();
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}
