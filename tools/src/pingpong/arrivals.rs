//! Waiting for completions: by looking, or asleep until an event.

use std::os::fd::AsFd;
use std::time::Instant;

use std::ops::Range;

use anyhow::{Context as _, Result};
use bareverbs::{Arm, CompChannel, Context, Cq, CqInit, WorkCompletion};
use rustix::event::PollFlags;

use super::lost::PATIENCE;
use crate::stop::{Interrupted, Patience, Stop, Wake};

/// Looks at an empty completion queue between two looks at the clock and for a signal: few at first, then more.
const SPINS: Range<u32> = 1 << 12..1 << 20;
/// The completion queue's name in its events.
const CQ_DATA: u64 = 1;

/// A completion queue and how it is waited on.
pub(crate) struct Arrivals<'a> {
    pub(crate) cq: Cq,
    channel: Option<CompChannel>,
    stop: &'a Stop,
    /// Events slept for.
    events: u64,
}

impl<'a> Arrivals<'a> {
    /// A queue with so many entries.
    pub(crate) fn new(context: &Context, entries: u32, asleep: bool, stop: &'a Stop) -> Result<Self> {
        let channel = asleep.then(|| context.create_comp_channel()).transpose()?;
        let init = CqInit { channel: channel.as_ref(), user_data: CQ_DATA, ..CqInit::new(entries) };
        Ok(Self { cq: context.create_cq(&init)?, channel, stop, events: 0 })
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

    /// The next completion, or nothing where none came for too long.
    pub(crate) fn next(&mut self) -> Result<Option<WorkCompletion>> {
        match self.channel {
            None => self.spin(),
            Some(_) => self.sleep(),
        }
    }

    /// Looks for a completion until there is one, or nothing for too long.
    fn spin(&mut self) -> Result<Option<WorkCompletion>> {
        let mut deadline = None;
        let mut spins = SPINS.start;
        loop {
            self.stop.check()?;
            for _ in 0..spins {
                if let Some(completion) = self.cq.poll_one() {
                    return Ok(Some(completion));
                }
            }
            let now = Instant::now();
            if now >= *deadline.get_or_insert(now + PATIENCE) {
                return Ok(None);
            }
            spins = (2 * spins).min(SPINS.end);
        }
    }

    /// Takes a completion, asleep until there is one, or nothing for too long.
    fn sleep(&mut self) -> Result<Option<WorkCompletion>> {
        loop {
            self.stop.check()?;
            if let Some(completion) = self.cq.poll_one() {
                return Ok(Some(completion));
            }
            let channel = self.channel.as_ref().context("events without a completion channel")?;
            match self.stop.wait(channel.as_fd(), PollFlags::IN, Some(&mut Patience::of(PATIENCE)))? {
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
