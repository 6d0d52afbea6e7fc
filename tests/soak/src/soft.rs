//! Random verbs on soft devices, by seed: virtual time, packet faults, and calls that fail.
//!
//! An even seed has all transports and no packet fault. An odd seed has RC only, and packets are lost,
//! damaged, duplicated, reordered and delayed, receives are hidden (RNR), and the link flaps: RC
//! delivers everything once and in order all the same.

use std::any::Any;
use std::fs::File;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::Duration;
use std::{env, fs};

use anyhow::{Context as _, Result, anyhow, ensure};
use bareverbs::soft::{Fabric, Fault, Method, Resources, SoftDevice};
use bareverbs::{Access, Device, Errno, WcStatus};
use fastrand::Rng;

use crate::generate::{Capabilities, Generator};
use crate::iteration::{Clock, Iteration, Tally};
use crate::model::Quirks;
use crate::op::Op;
use crate::random::{self, Report};

/// Verbs of a seed.
pub const OPS: usize = 150;
/// Verbs of a seed in `cargo test`.
#[cfg(test)]
const SHORT: usize = 60;
/// The longest delay of a packet.
const JITTER: Duration = Duration::from_millis(1);
/// Virtual time after which RC has repeated what was lost, with high probability.
const RECOVERY: Duration = Duration::from_millis(20);
/// Actions of QPs that the log of a failed seed keeps.
const LOGGED: usize = 5_000;

/// What soft devices deviate from the specification in: as Soft-RoCE of Linux 7.2, except that a write
/// may overtake an earlier read.
const QUIRKS: Quirks = Quirks {
    failed_wr_reports_flush: true,
    bad_lkey: WcStatus::LOC_QP_OP_ERR,
    beyond: WcStatus::LOC_QP_OP_ERR,
    too_short: (WcStatus::REM_OP_ERR, WcStatus::LOC_QP_OP_ERR),
    local_inv_unbound_status: WcStatus::LOC_QP_OP_ERR,
    overtakes_reads: true,
    uc_goes_to_err: true,
    ..Quirks::NONE
};

/// Runs seeds.
///
/// # Errors
/// If a result differs from the model, or objects are leaked. The failed seed is repeated; the error
/// names the files with its log and its packets.
pub fn run(seeds: Range<u64>, ops: usize) -> Result<Report> {
    let mut report = Report::default();
    for number in seeds {
        match run_seed(number, ops, None) {
            Ok(tally) => report.add(&tally),
            Err(failure) => return Err(replay(number, ops, failure)),
        }
    }
    Ok(report)
}

/// Runs a failed seed again, with its records.
fn replay(number: u64, ops: usize, failure: anyhow::Error) -> anyhow::Error {
    let file = |kind: &str| env::temp_dir().join(format!("bareverbs-soak-{number}.{kind}"));
    let records = Records { log: file("log"), capture: file("pcap") };
    let again = run_seed(number, ops, Some(&records));
    let same = again.is_err_and(|again| format!("{again:#}") == format!("{failure:#}"));
    let replayed = if same { "the same" } else { "something else" };
    let Records { log, capture } = records;
    failure.context(format!(
        "seed {number}: a second run gave {replayed}; its log is {}, its packets are {}",
        log.display(),
        capture.display()
    ))
}

struct Records {
    log: PathBuf,
    capture: PathBuf,
}

/// Runs a seed. A panic is an error.
fn run_seed(number: u64, ops: usize, records: Option<&Records>) -> Result<Tally> {
    let fabric = Fabric::seeded(number);
    let log = records.map(|_| fabric.log(LOGGED));
    if let Some(Records { capture, .. }) = records {
        fabric.capture(File::create(capture)?)?;
    }
    let result = catch_unwind(AssertUnwindSafe(|| seed(&fabric, number, ops)));
    let result = result.unwrap_or_else(|panic| Err(anyhow!("a panic: {}", panic_message(&*panic))));
    if let Some((log, Records { log: path, .. })) = log.zip(records) {
        fs::write(path, log.to_string())?;
    }
    result
}

fn panic_message(panic: &(dyn Any + Send)) -> &str {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => text,
        (None, Some(text)) => text,
        _ => "without a message",
    }
}

fn seed(fabric: &Fabric, number: u64, ops: usize) -> Result<Tally> {
    let device = SoftDevice::new(fabric);
    let context = Device::from(device.clone()).open()?;
    // A failed first registration of a context is repeated by a write command.
    drop(context.alloc_pd()?.register(vec![0; 8], Access::empty()).map_err(|failed| failed.error)?);
    let faulty = number % 2 == 1;
    let capabilities = context.capabilities();
    let capabilities =
        Capabilities { flush: capabilities.flush, atomic_write: capabilities.atomic_write, lossy: faulty };
    let mut rng = Rng::with_seed(number);
    let mut generator = Generator::new(rng.u64(..), capabilities);
    if faulty {
        inject(fabric, &mut rng);
    }
    let mut iteration = Iteration::with_clock(&context, QUIRKS, Clock::Virtual(fabric.clone()))?;
    let mut done: Vec<Op> = Vec::new();
    for place in 0..=ops {
        let op = if place == ops { Op::Settle } else { generator.next(&iteration.model) };
        done.push(op);
        let op = &done[place];
        let mut execute = || -> Result<()> {
            if rng.u32(..20) == 0 {
                fail_call(&device, &mut iteration, op)?;
            }
            if matches!(op, Op::Connect(_)) {
                // Packets of the last connection of these QPs arrive before.
                fabric.advance(if faulty { 2 * JITTER } else { Duration::ZERO });
            }
            iteration.run(op)?;
            run_fabric(&device, fabric, faulty, op, &mut rng);
            Ok(())
        };
        execute().with_context(|| random::history(&done))?;
    }
    let tally = iteration.tally;
    iteration.destroy()?;
    let mut left = Resources::default();
    left.contexts = 1;
    ensure!(device.resources() == left, "objects are left: {:?}", device.resources());
    drop(context);
    ensure!(device.resources() == Resources::default(), "the context is left: {:?}", device.resources());
    Ok(tally)
}

/// Injects faults of random kinds and probabilities. They are so rare that no QP runs out of retries.
fn inject(fabric: &Fabric, rng: &mut Rng) {
    let faults = [
        Fault::drop(),
        Fault::corrupt(),
        Fault::duplicate(),
        Fault::reorder(),
        Fault::jitter(JITTER),
        Fault::rnr(),
    ];
    for fault in faults {
        if rng.bool() {
            fabric.inject(fault.probability(rng.f64() * 0.02));
        }
    }
}

/// Runs part of the work, so that verbs find QPs in the middle of it.
fn run_fabric(device: &SoftDevice, fabric: &Fabric, faulty: bool, op: &Op, rng: &mut Rng) {
    let flaps = faulty && rng.u32(..50) == 0;
    if flaps {
        device.set_link(false);
    }
    for _ in 0..rng.u32(..30) {
        fabric.step();
    }
    if flaps {
        device.set_link(true);
    }
    if faulty && *op == Op::Settle {
        fabric.advance(RECOVERY);
    }
}

/// Makes the call of a creation fail first.
fn fail_call(device: &SoftDevice, iteration: &mut Iteration, op: &Op) -> Result<()> {
    let method = match op {
        Op::AllocPd(_) => Method::AllocPd,
        Op::MakeCq(..) => Method::CreateCq,
        Op::MakeSrq(..) => Method::CreateSrq,
        Op::Register(..) => Method::RegMr,
        Op::AllocMw(..) => Method::AllocMw,
        Op::MakeQp(..) => Method::CreateQp,
        _ => return Ok(()),
    };
    let before = device.resources();
    device.fail_call(method, 1, Errno::NOMEM)?;
    let refused = iteration.expect_error(op);
    let errno = refused.downcast_ref::<bareverbs::Error>().and_then(bareverbs::Error::errno);
    ensure!(errno == Some(Errno::NOMEM), "{op:?} failed with {refused:?}");
    ensure!(device.resources() == before, "a failed {op:?} left something: {:?}", device.resources());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verbs_on_soft_devices_match_the_model() {
        let report = run(0..2_000, SHORT).unwrap_or_else(|error| panic!("{error:?}"));
        println!("{report}");
        assert!(report.tally.failures > 0 && report.tally.completions > 10_000, "{report}");
    }
}
