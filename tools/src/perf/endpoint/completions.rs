//! The completion queues of a thread.

use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::{Context as _, Result};
use bareverbs::Context;
use bareverbs::cq::{Arm, CompChannel, Cq, CqInit, WorkCompletion};

use crate::cli::perf::choice::CqUse;
use crate::perf::plan::Plan;
use crate::perf::transport::Service;
use crate::perf::watch::{Verdict, Watch};

/// The CQs of one direction: one, or one for each queue pair.
pub(super) struct CqSet {
    cqs: Vec<Cq>,
    /// The CQ that is polled next.
    next: usize,
    armed: bool,
}

impl CqSet {
    /// The CQ of a lane.
    pub(super) fn of_lane(&self, index: usize) -> &Cq {
        &self.cqs[index.min(self.cqs.len() - 1)]
    }

    /// Arms the CQs, unless they are armed. Returns whether it has armed them.
    fn arm(&mut self) -> Result<bool> {
        if self.armed {
            return Ok(false);
        }
        self.cqs.iter_mut().try_for_each(|cq| cq.arm(Arm::Any))?;
        self.armed = true;
        Ok(true)
    }

    /// Polls one completion, starting with the CQ after the last one that had some. Inlined, so that
    /// fields that the caller does not use are not computed.
    #[inline(always)]
    pub(super) fn poll(&mut self) -> Option<WorkCompletion> {
        for _ in 0..self.cqs.len() {
            let completion = self.cqs[self.next].poll_one();
            if completion.is_some() {
                return completion;
            }
            self.next = if self.next + 1 == self.cqs.len() { 0 } else { self.next + 1 };
        }
        None
    }
}

/// The CQs of a thread, and with `-e` their channel.
pub(super) struct Completions {
    pub(super) send: CqSet,
    pub(super) receive: CqSet,
    pub(super) channel: Option<CompChannel>,
}

impl Completions {
    /// The CQs of `count` queue pairs.
    pub(super) fn new<T: Service>(plan: &Plan<'_>, context: &Context, count: u32) -> Result<Self> {
        let channel = plan.options.events.then(|| context.create_comp_channel()).transpose()?;
        let (cqs, lanes_of_cq) = match plan.options.cq {
            CqUse::Shared => (1, count),
            CqUse::Own => (count, 1),
        };
        let create = |cqs: u32, lanes: u32, depth: u32, name| {
            let entries = lanes.checked_mul(depth).context("too many requests for a CQ (-q, -t, -r)")?;
            let init = CqInit { channel: channel.as_ref(), ..CqInit::new(entries.max(1)) };
            let create =
                || context.create_cq(&init).with_context(|| format!("cannot create the CQ of {name}"));
            let cqs = std::iter::repeat_with(create).take(cqs as usize).collect::<Result<Vec<_>>>()?;
            Ok::<_, anyhow::Error>(CqSet { cqs, next: 0, armed: false })
        };
        let cqs_of_sends = if T::requests(plan) { cqs } else { 0 };
        let send = create(cqs_of_sends, lanes_of_cq, plan.tx_depth, "sends (-t, -q)")?;
        // All receives of an SRQ may complete in one CQ, and no others do. Those of an XRC SRQ do.
        let cqs_of_receives = if T::HAS_TARGETS { 1 } else { cqs };
        let lanes_of_cq = if T::HAS_TARGETS || plan.options.srq { 1 } else { lanes_of_cq };
        let receive = create(cqs_of_receives, lanes_of_cq, plan.rx_depth, "receives (-r, -q)")?;
        Ok(Self { send, receive, channel })
    }

    /// Arms the CQs, and sleeps if they were armed. Without `for_sends`, completed sends need not end it.
    pub(super) fn sleep(
        &mut self,
        for_sends: bool,
        watch: &mut Watch<'_>,
        until: Option<Duration>,
    ) -> Result<Verdict> {
        if self.receive.arm()? | (for_sends && self.send.arm()?) {
            return Ok(Verdict::Wait);
        }
        let channel = self.channel.as_ref().context("there is no completion channel")?;
        let verdict = watch.sleep(channel.as_fd(), until)?;
        while channel.try_wait()?.is_some() {
            (self.send.armed, self.receive.armed) = (false, false);
        }
        Ok(verdict)
    }
}
