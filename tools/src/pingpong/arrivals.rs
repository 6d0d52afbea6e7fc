//! Waiting for completions: by looking, or asleep until an event.

use std::ops::Range;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use bareverbs::{Arm, CompChannel, Completion, Context, Cq, CqInit, WorkCompletion};
use rustix::event::PollFlags;

use super::exchange::FOR_EACH;
use super::lost::PATIENCE;
use crate::stop::{Interrupted, Patience, Stop, Wake};

/// Looks at an empty completion queue between two looks at the clock and for a signal: few at first, then more.
const SPINS: Range<u32> = 1 << 12..1 << 20;
/// The completion queue's name in its events.
const CQ_DATA: u64 = 1;

/// How completions come.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner {
    /// By events.
    pub(crate) asleep: bool,
    /// With their times.
    pub(crate) timestamps: bool,
}

/// A completion, and its time where it tells that.
pub(crate) type Arrival = (WorkCompletion, Option<u64>);

/// A completion queue and how it is waited on.
pub(crate) struct Arrivals<'a> {
    pub(crate) cq: Cq,
    channel: Option<CompChannel>,
    stop: &'a Stop,
    /// How long the next completion may take.
    patience: Duration,
    /// Events slept for.
    events: u64,
}

impl<'a> Arrivals<'a> {
    /// A queue with so many entries, for so many queue pairs.
    pub(crate) fn new(
        context: &Context,
        entries: u32,
        queue_pairs: u32,
        manner: Manner,
        stop: &'a Stop,
    ) -> Result<Self> {
        let Manner { asleep, timestamps } = manner;
        let channel = asleep.then(|| context.create_comp_channel()).transpose()?;
        let init =
            CqInit { channel: channel.as_ref(), timestamps, user_data: CQ_DATA, ..CqInit::new(entries) };
        // The peer may connect them all before it sends.
        let patience = PATIENCE + FOR_EACH * queue_pairs.saturating_sub(1);
        Ok(Self { cq: context.create_cq(&init)?, channel, stop, patience, events: 0 })
    }

    /// Asks for the first event, where there are events.
    pub(crate) fn arm(&mut self) -> Result<()> {
        if self.channel.is_some() {
            self.cq.arm(Arm::Any)?;
        }
        Ok(())
    }

    /// Events slept for, where that was asked for.
    pub(crate) fn events(&self) -> Option<u64> {
        self.channel.is_some().then_some(self.events)
    }

    /// How long [`next`](Self::next) waits.
    pub(crate) fn patience(&self) -> Duration {
        self.patience
    }

    /// The next completion, or nothing where none came for too long.
    pub(crate) fn next(&mut self) -> Result<Option<Arrival>> {
        let arrival = match self.channel {
            None => self.spin(),
            Some(_) => self.sleep(),
        }?;
        if arrival.is_some() {
            self.patience = PATIENCE;
        }
        Ok(arrival)
    }

    /// Looks for a completion until there is one, or nothing for too long.
    fn spin(&mut self) -> Result<Option<Arrival>> {
        let mut deadline = None;
        let mut spins = SPINS.start;
        loop {
            self.stop.check()?;
            for _ in 0..spins {
                if let Some(arrival) = look(&mut self.cq) {
                    return Ok(Some(arrival));
                }
            }
            let now = Instant::now();
            if now >= *deadline.get_or_insert(now + self.patience) {
                return Ok(None);
            }
            spins = (2 * spins).min(SPINS.end);
        }
    }

    /// Takes a completion, asleep until there is one, or nothing for too long.
    fn sleep(&mut self) -> Result<Option<Arrival>> {
        loop {
            self.stop.check()?;
            if let Some(arrival) = look(&mut self.cq) {
                return Ok(Some(arrival));
            }
            let channel = self.channel.as_ref().context("events without a completion channel")?;
            match self.stop.wait(channel.as_fd(), PollFlags::IN, Some(&mut Patience::of(self.patience)))? {
                Wake::Ready => {}
                Wake::TimedOut => return Ok(None),
                Wake::Stopped => return Err(Interrupted.into()),
            }
            if let Some(event) = channel.try_get_event()? {
                anyhow::ensure!(event.user_data == CQ_DATA, "a completion event of an unknown queue");
                self.events += 1;
                self.cq.arm(Arm::Any)?;
            }
        }
    }
}

fn look(cq: &mut Cq) -> Option<Arrival> {
    let mut completions = cq.poll();
    let completion = completions.next()?;
    Some((completion.to_value(), completion.timestamp()))
}
