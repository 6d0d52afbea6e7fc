//! A connection that is measured, and its queue pair.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use bareverbs::Pd;
use bareverbs::cq::{Cq, CqInit};
use bareverbs::qp::{Qp, QpCap, QpInit, QpState, Rc};
use bareverbs::values::{RetryCount, RnrRetry};
use bareverbs_rdmacm::connection::Domains;
use bareverbs_rdmacm::event::Event;
use bareverbs_rdmacm::{CmId, ConnParam, EventChannel};
use rustix::event::{EventfdFlags, eventfd};

use super::steps::{Step, Times};
use crate::signal::{Interrupted, Stop, Timeout, Wake};

/// Where the queue pairs of a round come from.
#[derive(Debug)]
pub(super) enum QueuePairs {
    /// The device.
    Real,
    /// There are none: their numbers are counted, and each call takes `delay`.
    Simulated { delay: Duration, next: AtomicU32 },
}

impl QueuePairs {
    pub(super) fn simulated(delay: Duration, base: u32) -> Self {
        Self::Simulated { delay, next: AtomicU32::new(base) }
    }

    pub(super) fn are_real(&self) -> bool {
        matches!(self, Self::Real)
    }
}

/// The verbs objects that the queue pairs of a thread share.
#[derive(Debug, Default)]
pub(super) struct Verbs {
    domains: Domains,
    objects: Option<(Pd, Cq)>,
}

impl Verbs {
    /// Objects on the same devices as others.
    pub(super) fn new(domains: &Domains) -> Self {
        Self { domains: domains.clone(), objects: None }
    }

    /// The objects, on the device of the first identifier.
    fn objects(&mut self, id: &CmId) -> Result<&(Pd, Cq)> {
        let objects = match self.objects.take() {
            Some(objects) => objects,
            None => {
                let device = id.addresses()?.device.context("the identifier has no device")?;
                let pd = self.domains.pd(device)?;
                let cq = pd.context().create_cq(&CqInit::new(1))?;
                (pd, cq)
            }
        };
        Ok(self.objects.insert(objects))
    }
}

/// The queue pair of a connection.
#[expect(clippy::large_enum_variant, reason = "a measured step does not allocate")]
#[derive(Debug)]
pub(super) enum Queue {
    Real(Qp<Rc>),
    Simulated { qp_num: u32, delay: Duration },
}

impl Queue {
    /// Creates a queue pair. Returns the time at which it is there.
    pub(super) fn create(
        id: &CmId,
        from: &QueuePairs,
        verbs: &mut Verbs,
        times: &mut Times,
    ) -> Result<(Self, Instant)> {
        let (queue, start) = match from {
            QueuePairs::Real => {
                let (pd, cq) = verbs.objects(id)?;
                let cap = QpCap { max_send_wr: 1, max_recv_wr: 1, ..QpCap::default() };
                let start = Instant::now();
                let qp = pd.create_qp(&QpInit { cap, signal_all: true, ..QpInit::new(cq, cq) })?;
                (Self::Real(qp), start)
            }
            QueuePairs::Simulated { delay, next } => {
                let start = Instant::now();
                pause(*delay);
                let qp_num = next.fetch_add(1, Ordering::Relaxed);
                (Self::Simulated { qp_num, delay: *delay }, start)
            }
        };
        let end = Instant::now();
        times.took(Step::CreateQp, start, end);
        Ok((queue, end))
    }

    /// Takes the queue pair to a state: two steps. `start` and the result are times. The kernel takes a
    /// queue pair of iWARP to RTR and RTS.
    pub(super) fn modify(
        &mut self,
        id: &CmId,
        state: QpState,
        times: &mut Times,
        start: Instant,
    ) -> Result<Instant> {
        let steps = match state {
            QpState::INIT => [Step::InitQpAttr, Step::InitQp],
            QpState::RTR => [Step::RtrQpAttr, Step::RtrQp],
            _ => [Step::RtsQpAttr, Step::RtsQp],
        };
        if let Self::Real(qp) = self
            && state != QpState::INIT
            && qp.pd().context().capabilities().iwarp
        {
            return Ok(start);
        }
        // Not destructured here: a measured step does not copy the attributes.
        let found = id.init_qp_attr(state)?;
        let between = Instant::now();
        match self {
            Self::Real(qp) => qp.modify(&found.0, found.1)?,
            Self::Simulated { delay, .. } => pause(*delay),
        }
        let end = Instant::now();
        times.took(steps[0], start, between);
        times.took(steps[1], between, end);
        Ok(end)
    }

    /// The parameters of the C program: no retries.
    pub(super) fn param(&self) -> ConnParam<'static> {
        let qp_num = match self {
            Self::Real(qp) => qp.qp_num(),
            Self::Simulated { qp_num, .. } => *qp_num,
        };
        let (retry_count, rnr_retry_count) = (RetryCount::ZERO, RnrRetry::ZERO);
        ConnParam { retry_count, rnr_retry_count, ..ConnParam::new(qp_num) }
    }
}

fn pause(delay: Duration) {
    if !delay.is_zero() {
        thread::sleep(delay);
    }
}

/// The end of a phase, which wakes the threads that wait for events.
#[derive(Debug)]
pub(super) struct Over {
    event: OwnedFd,
    is_set: AtomicBool,
}

impl Over {
    pub(super) fn new() -> Result<Self> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { event, is_set: AtomicBool::new(false) })
    }

    pub(super) fn set(&self) {
        self.is_set.store(true, Ordering::Relaxed);
        // It fails only if the counter is at its maximum, and then the event is set.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }

    pub(super) fn is_set(&self) -> bool {
        self.is_set.load(Ordering::Relaxed)
    }

    /// The next event of a channel. `None`: the phase is over.
    pub(super) fn next(&self, channel: &EventChannel, stop: &Stop) -> Result<Option<Event>> {
        match self.next_within(channel, stop, None)? {
            Next::Event(event) => Ok(Some(event)),
            Next::Over => Ok(None),
            Next::TimedOut => bail!("the wait for an event has no time limit"),
        }
    }

    /// The next event of a channel, up to a time limit.
    pub(super) fn next_within(
        &self,
        channel: &EventChannel,
        stop: &Stop,
        mut limit: Option<&mut Timeout>,
    ) -> Result<Next> {
        loop {
            stop.check()?;
            if self.is_set() {
                return Ok(Next::Over);
            }
            if let Some(event) = channel.try_wait()? {
                return Ok(Next::Event(event));
            }
            match stop.wait_either(channel.as_fd(), self.event.as_fd(), limit.as_deref_mut())? {
                Wake::Ready => {}
                Wake::TimedOut => return Ok(Next::TimedOut),
                Wake::Stopped => return Err(Interrupted.into()),
            }
        }
    }
}

/// Why a wait for an event ended.
#[expect(clippy::large_enum_variant, reason = "it is taken apart at once")]
pub(super) enum Next {
    Event(Event),
    Over,
    TimedOut,
}

/// Runs `work` in a thread for each element; the first one in this thread. An error ends the phase
/// for all.
pub(super) fn in_threads<T: Send>(
    elements: &mut [T],
    over: &Over,
    work: impl Fn(&mut T) -> Result<()> + Sync,
) -> Result<()> {
    let run = |element: &mut T| work(element).inspect_err(|_| over.set());
    let Some((first, rest)) = elements.split_first_mut() else { return Ok(()) };
    if rest.is_empty() {
        return run(first);
    }
    thread::scope(|scope| {
        let run = &run;
        let others: Vec<_> = rest.iter_mut().map(|element| scope.spawn(move || run(element))).collect();
        let mut result = run(first);
        for other in others {
            let ended = other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            result = result.and(ended);
        }
        result
    })
}
