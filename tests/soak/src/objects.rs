//! The cost to create and to free an object, by the number of existing objects.

use std::fmt;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use bareverbs::Access;
use bareverbs::cq::CqInit;
use bareverbs::qp::{QpCap, QpInit, Rc};
use bareverbs_test_support::loopback::domain;

/// The number of steps.
const STEPS: usize = 100;
/// Created or freed objects between two reference calls, whose cost does not depend on the number
/// of objects.
const CALL_EVERY: usize = 4;

/// The cost of the objects of one step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// The number of objects in the step, its own included.
    pub held: usize,
    /// Time to create one.
    pub make: Duration,
    /// To free one.
    pub free: Duration,
    /// Time of a reference call, during creation and while freeing.
    pub calls: [Duration; 2],
}

/// The costs of one type of object.
#[derive(Clone, Debug)]
pub struct Costs {
    /// The type of the objects.
    pub what: &'static str,
    /// From few objects to all.
    pub steps: Vec<Step>,
}

/// Registers `count` regions and frees them.
///
/// # Errors
/// If the kernel refuses.
pub fn regions(count: usize) -> Result<Costs> {
    let pd = domain();
    let most = pd.context().query_device()?.max_mr as usize;
    ensure!(count <= most, "the device has {most} regions");
    let call = || Ok(pd.context().query_port(1)?);
    measure("MR", count, || Ok(pd.register(vec![0; 64], Access::LOCAL_WRITE)?), call)
}

/// Creates `count` RC queue pairs on one CQ and destroys them.
///
/// # Errors
/// If the kernel refuses.
pub fn queue_pairs(count: usize) -> Result<Costs> {
    let pd = domain();
    let cq = pd.context().create_cq(&CqInit::new(64))?;
    let init = QpInit { cap: QpCap::default(), ..QpInit::new(&cq, &cq) };
    let call = || Ok(pd.context().query_port(1)?);
    measure("QP", count, || Ok(pd.create_qp::<Rc>(&init)?), call)
}

fn measure<T, U>(
    what: &'static str,
    count: usize,
    mut make: impl FnMut() -> Result<T>,
    call: impl Fn() -> Result<U>,
) -> Result<Costs> {
    let each = count / STEPS;
    ensure!(each > 0, "{count} objects are too few for {STEPS} steps");
    let mut objects = Vec::with_capacity(each * STEPS);
    let mut steps = Vec::with_capacity(STEPS);
    for _ in 0..STEPS {
        let (mut times, mut calls) = (Vec::with_capacity(each), Vec::new());
        for i in 0..each {
            objects.push(timed(&mut times, &mut make)?);
            if i % CALL_EVERY == 0 {
                timed(&mut calls, &call)?;
            }
        }
        let calls = [median(calls), Duration::ZERO];
        steps.push(Step { held: objects.len(), make: median(times), free: Duration::ZERO, calls });
    }
    for step in steps.iter_mut().rev() {
        let (mut times, mut calls) = (Vec::with_capacity(each), Vec::new());
        for (i, object) in objects.split_off(objects.len() - each).into_iter().enumerate() {
            timed(&mut times, || {
                drop(object);
                Ok(())
            })?;
            if i % CALL_EVERY == 0 {
                timed(&mut calls, &call)?;
            }
        }
        (step.free, step.calls[1]) = (median(times), median(calls));
    }
    Ok(Costs { what, steps })
}

fn timed<T>(times: &mut Vec<Duration>, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let begin = Instant::now();
    let done = work()?;
    times.push(begin.elapsed());
    Ok(done)
}

/// The median, which other load on the machine hardly changes.
fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}

impl Costs {
    /// The cost among many objects divided by the cost among few, to create and to free: the last
    /// tenth of the steps and the first. Costs are measured in reference calls made in between, so
    /// that changes of the machine's speed cancel out.
    #[must_use]
    pub fn growth(&self) -> (f64, f64) {
        let tenth = (self.steps.len() / 10).max(1);
        let (first, last) = (&self.steps[..tenth], &self.steps[self.steps.len() - tenth..]);
        let middle = |steps: &[Step], cost: fn(&Step) -> f64| {
            let mut costs: Vec<_> = steps.iter().map(cost).collect();
            costs.sort_unstable_by(f64::total_cmp);
            costs[costs.len() / 2]
        };
        let ratio = |cost: fn(&Step) -> f64| middle(last, cost) / middle(first, cost);
        (
            ratio(|step| step.make.as_secs_f64() / step.calls[0].as_secs_f64()),
            ratio(|step| step.free.as_secs_f64() / step.calls[1].as_secs_f64()),
        )
    }
}

impl fmt::Display for Costs {
    /// A line for each step: type, number, microseconds to create one and to free one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Step { held, make, free, .. } in &self.steps {
            let (make, free) = (make.as_secs_f64() * 1e6, free.as_secs_f64() * 1e6);
            writeln!(f, "{}\t{held}\t{make:.2}\t{free:.2}", self.what)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn costs(make: impl Fn(usize) -> u64) -> Costs {
        let (free, calls) = (Duration::from_nanos(50), [Duration::from_nanos(25); 2]);
        let step = |i| Step { held: i, make: Duration::from_nanos(make(i)), free, calls };
        Costs { what: "X", steps: (1..=100).map(step).collect() }
    }

    #[test]
    fn growth_distinguishes_flat_from_rising_cost() {
        assert_eq!(costs(|_| 100).growth(), (1.0, 1.0));
        assert!(costs(|i| 100 * i as u64).growth().0 > 10.0);
        assert_eq!(
            costs(|i| if i % 7 == 0 { 9000 } else { 100 }).growth(),
            (1.0, 1.0),
            "hiccups don't count"
        );
    }

    #[test]
    fn slower_machine_is_not_growth() {
        let mut slow = costs(|_| 100);
        for step in &mut slow.steps[50..] {
            let Step { make, free, calls: [one, other], .. } = step;
            for time in [make, free, one, other] {
                *time *= 5;
            }
        }
        assert_eq!(slow.growth(), (1.0, 1.0));
    }

    #[test]
    fn objects_are_freed_in_reverse_order() {
        let mut made = 0;
        let make = || {
            made += 1;
            Ok(made)
        };
        let costs = measure("X", 1000, make, || Ok(())).unwrap();
        assert_eq!(made, 1000);
        assert_eq!(
            costs.steps.iter().map(|step| step.held).collect::<Vec<_>>(),
            Vec::from_iter((10..=1000).step_by(10))
        );
        assert!(measure("X", 99, || Ok(()), || Ok(())).is_err());
    }

    #[test]
    fn cost_table_has_one_line_per_step() {
        let table = costs(|_| 1500).to_string();
        assert_eq!((table.lines().count(), table.lines().next()), (100, Some("X\t1\t1.50\t0.05")));
    }
}
