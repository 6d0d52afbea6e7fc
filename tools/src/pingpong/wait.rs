//! Waiting for completions, by polling or by events.

use std::ops::Range;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use bareverbs::Context;
use bareverbs::cq::{Arm, CompChannel, Completion, Cq, CqInit, WorkCompletion};
use rustix::event::PollFlags;

use super::run_error::COMPLETION_TIMEOUT;
use crate::session::exchange::TIMEOUT_PER_QP;
use crate::signal::{Interrupted, Stop, Timeout, Wake};

/// Polls of an empty CQ between two checks of the clock and of signals: few at first, then more.
const SPINS: Range<u32> = 1 << 12..1 << 20;
/// The user data of the CQ in its events.
const CQ_DATA: u64 = 1;

/// How completions are reported.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WaitMode {
    /// By events.
    pub(crate) events: bool,
    /// With timestamps.
    pub(crate) timestamps: bool,
}

/// A completion, with its timestamp if requested.
pub(crate) type TimedCompletion = (WorkCompletion, Option<u64>);

/// A CQ and how to wait on it.
pub(crate) struct CompletionWaiter<'a> {
    pub(crate) cq: Cq,
    context: Context,
    channel: Option<CompChannel>,
    stop: &'a Stop,
    /// Timeout of the next completion.
    timeout: Duration,
    /// Events that ended a sleep.
    events: u64,
}

impl<'a> CompletionWaiter<'a> {
    /// A CQ with `entries` entries, for `queue_pairs` queue pairs.
    pub(crate) fn new(
        context: &Context,
        entries: u32,
        queue_pairs: u32,
        mode: WaitMode,
        stop: &'a Stop,
    ) -> Result<Self> {
        let WaitMode { events, timestamps } = mode;
        let channel = events.then(|| context.create_comp_channel()).transpose()?;
        let init =
            CqInit { channel: channel.as_ref(), timestamps, user_data: CQ_DATA, ..CqInit::new(entries) };
        // The peer may connect all queue pairs before it sends.
        let timeout = COMPLETION_TIMEOUT + TIMEOUT_PER_QP * queue_pairs.saturating_sub(1);
        let (cq, context) = (context.create_cq(&init)?, context.clone());
        Ok(Self { cq, context, channel, stop, timeout, events: 0 })
    }

    /// The context of the CQ.
    pub(crate) fn context(&self) -> &Context {
        &self.context
    }

    /// Arms the CQ for the first event, if events are used.
    pub(crate) fn arm(&mut self) -> Result<()> {
        if self.channel.is_some() {
            self.cq.arm(Arm::Any)?;
        }
        Ok(())
    }

    /// The number of events that ended a sleep; `None` when polling.
    pub(crate) fn events(&self) -> Option<u64> {
        self.channel.is_some().then_some(self.events)
    }

    /// The timeout of [`next`](Self::next).
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// The next completion, or `None` after the timeout.
    pub(crate) fn next(&mut self) -> Result<Option<TimedCompletion>> {
        let completion = match self.channel {
            None => self.spin(),
            Some(_) => self.sleep(),
        }?;
        if completion.is_some() {
            self.timeout = COMPLETION_TIMEOUT;
        }
        Ok(completion)
    }

    /// Polls until a completion is found or the timeout expires.
    fn spin(&mut self) -> Result<Option<TimedCompletion>> {
        let mut deadline = None;
        let mut spins = SPINS.start;
        loop {
            self.stop.check()?;
            for _ in 0..spins {
                if let Some(completion) = poll(&mut self.cq) {
                    return Ok(Some(completion));
                }
            }
            let now = Instant::now();
            if now >= *deadline.get_or_insert(now + self.timeout) {
                return Ok(None);
            }
            spins = (2 * spins).min(SPINS.end);
        }
    }

    /// Sleeps until a completion is found or the timeout expires.
    fn sleep(&mut self) -> Result<Option<TimedCompletion>> {
        loop {
            self.stop.check()?;
            if let Some(completion) = poll(&mut self.cq) {
                return Ok(Some(completion));
            }
            let channel = self.channel.as_ref().context("events without a completion channel")?;
            match self.stop.wait(channel.as_fd(), PollFlags::IN, Some(&mut Timeout::after(self.timeout)))? {
                Wake::Ready => {}
                Wake::TimedOut => return Ok(None),
                Wake::Stopped => return Err(Interrupted.into()),
            }
            if let Some(event) = channel.try_wait()? {
                anyhow::ensure!(event.user_data == CQ_DATA, "a completion event of an unknown queue");
                self.events += 1;
                self.cq.arm(Arm::Any)?;
            }
        }
    }
}

fn poll(cq: &mut Cq) -> Option<TimedCompletion> {
    let mut completions = cq.poll();
    let completion = completions.next()?;
    Some((completion.to_value(), completion.timestamp()))
}
