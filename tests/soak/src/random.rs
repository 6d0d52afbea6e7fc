//! Random verbs for minutes: many iterations, each with a seed of its own.

use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use bareverbs::cq::CqInit;
use bareverbs::mw::{MwBind, MwType, inc_rkey};
use bareverbs::qp::{
    InitAttr, Operation, Payload, Qp, QpInit, QpState, RtrAttr, SendFlags, SendRequest, Sge, Uc, UcOperation,
    UcRtrAttr,
};
use bareverbs::values::{AckTimeout, MinRnrTimer, RnrRetry};
use bareverbs::{Access, Pd, WcStatus};
use bareverbs_test_support::device;
use bareverbs_test_support::loopback::{
    Plan as PairPlan, Side, domain, open, pair, region, request, side, take,
};
use bareverbs_test_support::resources::{held, settles_at};
use fastrand::Rng;

use crate::generate::{Capabilities, Generator};
use crate::iteration::{INVALID_KEY, Iteration, TIMEOUT, Tally};
use crate::model::Quirks;
use crate::op::Op;
use crate::{PORT, loopback_path};

/// Verbs in an iteration.
const OPS: usize = 400;
/// Verbs that an error report shows.
const SHOWN: usize = 25;

/// The parameters of a run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The seed of all iterations.
    pub seed: u64,
    /// No iteration starts after this time.
    pub time: Duration,
    /// Only this iteration.
    pub iteration: Option<u64>,
    /// Only the first verbs of it.
    pub ops: Option<usize>,
}

/// The results of a run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    /// Iterations that passed without a leak.
    pub iterations: u64,
    /// Their statistics.
    pub tally: Tally,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { iterations, tally: Tally { ops, requests, completions, failures, compared } } = self;
        write!(
            f,
            "{iterations} iterations, {ops} verbs, {requests} requests, {completions} completions as predicted, {failures} of them \
             failures; {compared} bytes compared; nothing left behind"
        )
    }
}

/// Runs iterations.
///
/// # Errors
/// If a result differs from the model, or objects are leaked. The error says how to reproduce it.
pub fn run(plan: &Plan) -> Result<Report> {
    let quirks = quirks()?;
    println!("seed {}; {quirks:?}", plan.seed);
    let begin = Instant::now();
    let mut report = Report::default();
    let mut number = plan.iteration.unwrap_or(0);
    while plan.iteration.is_none() || report.iterations == 0 {
        if begin.elapsed() > plan.time && report.iterations > 0 {
            break;
        }
        let before = held();
        let ops = plan.ops.unwrap_or(OPS);
        let tally = iteration(plan.seed, number, ops, quirks)
            .with_context(|| format!("again: --seed {} --iteration {number}", plan.seed))?;
        settles_at(before);
        report.add(&tally);
        number += 1;
    }
    Ok(report)
}

fn iteration(seed: u64, number: u64, ops: usize, quirks: Quirks) -> Result<Tally> {
    let context = open();
    let capabilities = context.capabilities();
    let generated =
        Capabilities { flush: capabilities.flush, atomic_write: capabilities.atomic_write, lossy: false };
    let mut seeds = Rng::with_seed(seed);
    let own = seeds.u64(..) ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut generator = Generator::new(own, generated);
    let mut iteration = Iteration::new(&context, quirks)?;
    let mut done: Vec<Op> = Vec::new();
    for place in 0..=ops {
        let op = if place == ops { Op::Settle } else { generator.next(&iteration.model) };
        done.push(op);
        iteration.run(&done[place]).with_context(|| format!("iteration {number}, {}", history(&done)))?;
    }
    let (tally, begin) = (iteration.tally, Instant::now());
    iteration.destroy()?;
    let took = begin.elapsed();
    ensure!(
        took < TIMEOUT,
        "the objects that were left of iteration {number} took {took:.1?} to be destroyed"
    );
    Ok(tally)
}

/// The last verbs of an iteration, for an error.
pub(crate) fn history(done: &[Op]) -> String {
    let first = done.len().saturating_sub(SHOWN);
    let lines: Vec<_> =
        done[first..].iter().enumerate().map(|(i, op)| format!("{}: {op:?}", first + i)).collect();
    format!("verb {}, after\n{}", done.len() - 1, lines.join("\n"))
}

impl Report {
    /// Adds an iteration.
    pub(crate) fn add(&mut self, tally: &Tally) {
        self.tally.add(tally);
        self.iterations += 1;
    }
}

impl Tally {
    fn add(&mut self, other: &Self) {
        self.ops += other.ops;
        self.requests += other.requests;
        self.completions += other.completions;
        self.failures += other.failures;
        self.compared += other.compared;
    }
}

/// Probes the kernel's deviations from the specification. No others are accepted.
///
/// # Errors
/// If the probe finds an unknown deviation.
pub fn quirks() -> Result<Quirks> {
    let pd = domain();
    let memory = region(&pd, &[0; 64], Access::LOCAL_WRITE);
    let own = memory.sge(..8)?;
    let reads = [WcStatus::LOC_PROT_ERR, WcStatus::LOC_QP_OP_ERR];
    let invalid_key = fails_by_itself(&pd, Operation::Send, &[Sge { lkey: INVALID_KEY, ..own }], reads)?;
    let beyond = fails_by_itself(&pd, Operation::Send, &[Sge { length: 65, ..own }], reads)?;
    let keys = [WcStatus::MW_BIND_ERR, WcStatus::LOC_QP_OP_ERR];
    let local_inv_unbound_status = fails_by_itself(&pd, Operation::LocalInv(INVALID_KEY), &[], keys)?;
    let (mut a, mut b) = pair(&pd, PairPlan::default());
    b.recv_into(0, 1, &[memory.sge(..4)?]);
    a.send(&[request(1, Operation::Send, Payload::Inline(&[&[1; 8]]))])?;
    let too_short = (a.completions(1)[0].status, b.completions(1)[0].status);
    ensure!(
        too_short == Quirks::NONE.too_short || too_short == (WcStatus::REM_OP_ERR, WcStatus::LOC_QP_OP_ERR),
        "a message that is too long ended with {too_short:?}"
    );
    let old_soft_roce = device::is_soft_roce() && !invalid_key.flushed;
    Ok(Quirks {
        failed_wr_reports_flush: invalid_key.flushed,
        bad_lkey: invalid_key.status,
        beyond: beyond.status,
        reset_under_traffic_corrupts: old_soft_roce,
        destroy_waits_for_responses: old_soft_roce,
        timer_outlives_reset: timer_outlives_reset(&pd)?,
        too_short,
        local_inv_unbound_status: local_inv_unbound_status.status,
        unsignalled_wr_holds_slot: unsignalled_wr_holds_slot(&pd)?,
        overtakes_reads: !device::is_soft_roce(),
        uc_goes_to_err: uc_goes_to_err(&pd)?,
        binds_to_any: binds_to_any(&pd)?,
    })
}

/// Whether a lost write is retried although its queue pair has no ACK timeout, because the RNR
/// timer survived a reset of the queue pair.
fn timer_outlives_reset(pd: &Pd) -> Result<bool> {
    const HALF_A_SECOND: u8 = 31;
    let plan = PairPlan {
        rnr_retry: RnrRetry::new(7).unwrap(),
        timeout: AckTimeout::new(0).unwrap(),
        ..PairPlan::default()
    };
    let (mut a, mut b) = (side(pd, plan), side(pd, plan));
    let numbers = (a.qp.qp_num(), b.qp.qp_num());
    let memory = region(pd, &[0; 8], Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    let bytes = Payload::Inline(&[&[1; 8]]);
    let up = |side: &mut Side, peer| {
        side.qp.init(&InitAttr { access: Access::REMOTE_WRITE, ..InitAttr::new(PORT) })?;
        side.qp.ready_to_receive(&RtrAttr {
            min_rnr_timer: MinRnrTimer::new(HALF_A_SECOND).unwrap(),
            ..side.towards(peer)
        })?;
        side.qp.ready_to_send(&side.sending())
    };

    up(&mut a, numbers.1)?;
    up(&mut b, numbers.0)?;
    a.send(&[request(1, Operation::Send, bytes)])?;
    thread::sleep(Duration::from_millis(100));
    a.qp.reset()?;
    b.qp.reset()?;

    up(&mut a, numbers.1)?;
    a.send(&[request(2, Operation::Write(memory.remote(0)?), bytes)])?;
    thread::sleep(Duration::from_millis(50));
    up(&mut b, numbers.0)?;
    let end = Instant::now() + Duration::from_secs(1);
    while Instant::now() < end {
        if a.cq.poll_one().is_some() {
            return Ok(true);
        }
        thread::sleep(Duration::from_millis(1));
    }
    Ok(false)
}

/// Whether a queue stays full of executed unsignalled requests.
fn unsignalled_wr_holds_slot(pd: &Pd) -> Result<bool> {
    let (mut a, _b) = pair(pd, PairPlan::default());
    let memory = region(pd, &[0; 8], Access::LOCAL_WRITE | Access::REMOTE_WRITE);
    let write = Operation::Write(memory.remote(0)?);
    let silent = |number| SendRequest {
        flags: SendFlags::empty(),
        ..request(number, write, Payload::Inline(&[&[0; 8]]))
    };
    let room = a.qp.split().0.capacity().into();
    for number in 0..room {
        a.send(&[silent(number)])?;
    }
    let end = Instant::now() + Duration::from_secs(1);
    while Instant::now() < end {
        if a.send(&[silent(room)]).is_ok() {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Whether a UC queue pair is in ERR, and not in SQE, after a send from memory without a valid key.
fn uc_goes_to_err(pd: &Pd) -> Result<bool> {
    let mut cq = pd.context().create_cq(&CqInit::new(4))?;
    let mut qp: Qp<Uc> = pd.create_qp(&QpInit::new(&cq, &cq))?;
    qp.init(&InitAttr::new(PORT))?;
    qp.ready_to_receive(&UcRtrAttr::new(loopback_path(pd.context())?, qp.qp_num()))?;
    qp.ready_to_send(0)?;
    let invalid_key = [Sge { addr: 0, length: 8, lkey: INVALID_KEY }];
    let send = request(1, Operation::Send, Payload::Sges(&invalid_key)).with(UcOperation::Send);
    // SAFETY: the key is invalid.
    unsafe { qp.post_send(&[send]) }?;
    take(&mut cq, 1);
    // The completion may arrive before the state changes.
    let begin = Instant::now();
    loop {
        match qp.query()?.0.qp_state {
            QpState::RTS => ensure!(begin.elapsed() < TIMEOUT, "a send that failed changed nothing"),
            state => return Ok(state == QpState::ERR),
        }
    }
}

/// Whether a window can be bound to a region that does not allow it.
fn binds_to_any(pd: &Pd) -> Result<bool> {
    let (mut a, _b) = pair(pd, PairPlan::default());
    let (memory, mw) = (region(pd, &[0; 64], Access::LOCAL_WRITE), pd.alloc_mw(MwType::TYPE_2)?);
    let bind = MwBind {
        mw_type: mw.mw_type(),
        mw_rkey: mw.rkey(),
        rkey: inc_rkey(mw.rkey()),
        mr_lkey: memory.lkey(),
        addr: memory.addr(),
        length: memory.len() as u64,
        access: Access::REMOTE_READ,
    };
    a.send(&[request(1, Operation::BindMw(bind), Payload::Sges(&[]))])?;
    Ok(a.completions(1)[0].status == WcStatus::SUCCESS)
}

/// The failure of a send that is rejected locally.
struct Failure {
    /// The status that the queue pair reports.
    status: WcStatus,
    /// Whether its completion is a flush error.
    flushed: bool,
}

fn fails_by_itself(pd: &Pd, operation: Operation, from: &[Sge], ways: [WcStatus; 2]) -> Result<Failure> {
    let (mut a, _b) = pair(pd, PairPlan::default());
    a.send(&[request(1, operation, Payload::Sges(from))])?;
    let status = a.completions(1)[0].status;
    let flushed = status == WcStatus::WR_FLUSH_ERR;
    let status = if flushed { a.qp.failure().context("it knows why")?.status } else { status };
    ensure!(ways.contains(&status), "{operation:?} from {from:?} ended with {status:?}");
    Ok(Failure { status, flushed })
}
