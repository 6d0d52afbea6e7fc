//! The queue pairs of a side, with their memory and completion queues.

use std::collections::VecDeque;
use std::os::fd::AsFd;

use anyhow::{Context as _, Result};
use bareverbs::{
    Access, Arm, Buffer, CompChannel, Context, Cq, CqInit, DriverId, Mr, Payload, PostError, Qp, QpCap,
    QpInit, RecvRequest, Remote, SendFlags, SendRequest, Sge, WcStatus, WorkCompletion,
};

use super::error::{PathInfo, Progress, RunError};
use super::session::Preamble;
use super::transport::{Path, Service};
use super::watch::{Verdict, Watch};
use super::wire::KeyRecord;
use crate::cli::perf::{Measure, Plan, Verb};
use crate::pingpong::exchange::EXCHANGE_TIMEOUT;
use crate::pingpong::run::random_psn;

/// perftest's limits of inline data in latency tests on ConnectX.
const INLINE_SEND: u32 = 236;
const INLINE_WRITE: u32 = 220;
const INLINE_DATAGRAM: u32 = 188;

/// Where messages of a size are placed in a buffer: one after the other, in cache lines, until the
/// cycle buffer is full; large messages all at its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Steps {
    distance: u64,
    end: u64,
}

impl Steps {
    pub(crate) fn new(size: u32, agreed: &Preamble) -> Self {
        let (cycle, line) = (u64::from(agreed.cycle_buffer), u64::from(agreed.cache_line));
        let distance = u64::from(size).next_multiple_of(line);
        if u64::from(size) > cycle / 2 || distance > cycle {
            return Self::NONE;
        }
        Self { distance, end: cycle / distance * distance }
    }

    /// All messages at the start.
    pub(crate) const NONE: Self = Self { distance: 0, end: u64::MAX };

    #[inline]
    fn next(self, offset: u64) -> u64 {
        let next = offset + self.distance;
        if next == self.end { 0 } else { next }
    }
}

/// A queue pair with its place in the memory.
struct Lane<T: Service> {
    qp: Qp<T>,
    route: Option<T::Route>,
    /// The start of its halves of the memory.
    send_at: u64,
    recv_at: u64,
    remote: Remote,
    /// Offsets of the next message and the next receive.
    send_offset: u64,
    recv_offset: u64,
    posted: u64,
    completed: u64,
    /// The last signalled message.
    signaled: u64,
    /// Of each signalled request: the time of its post and the messages up to it.
    times: VecDeque<(u64, u64)>,
    receives_posted: u64,
    received: u64,
}

/// How messages of a run are posted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Posting {
    pub(crate) verb: Verb,
    pub(crate) size: u32,
    pub(crate) send_steps: Steps,
    pub(crate) recv_steps: Steps,
    /// A request in so many is signalled.
    pub(crate) cq_mod: u64,
    /// Messages and receives of each queue pair; `u64::MAX` without a limit.
    pub(crate) limit: u64,
}

/// The resources of a side.
pub(crate) struct Endpoint<T: Service> {
    /// Declared before the memory, so that the queue pairs are destroyed first.
    lanes: Vec<Lane<T>>,
    pub(crate) send_cq: Cq,
    pub(crate) recv_cq: Cq,
    channel: Option<CompChannel>,
    armed: bool,
    memory: Mr<Buffer>,
    /// A message for inline data.
    message: Vec<u8>,
    inline: u32,
    pub(crate) local: Vec<KeyRecord>,
    paths: Vec<PathInfo>,
}

impl<T: Service> Endpoint<T> {
    /// Creates all objects and brings the queue pairs to INIT.
    pub(crate) fn new(
        plan: &Plan<'_>,
        context: &Context,
        agreed: &Preamble,
        out_reads: u8,
        address: &KeyRecord,
    ) -> Result<Self> {
        let (options, count) = (plan.options, plan.num_qp);
        let pd = context.alloc_pd()?;
        let area = u64::from(plan.largest() + T::HEADROOM).max(agreed.cycle_buffer.into());
        let area = area.next_multiple_of(rustix::param::page_size() as u64);
        let bytes = area.checked_mul(2 * u64::from(count)).and_then(|bytes| usize::try_from(bytes).ok());
        let mut buffer = Buffer::zeroed(bytes.context("the buffers exceed the address space")?)?;
        if plan.verb != Verb::Write || plan.measure == Measure::Bandwidth {
            fill(&mut buffer);
        }
        let remote = match plan.verb {
            Verb::Send => Access::empty(),
            Verb::Write | Verb::WriteImm => Access::REMOTE_WRITE,
            Verb::Read => Access::REMOTE_READ,
            Verb::Atomic => Access::REMOTE_ATOMIC,
        };
        let memory = pd.register(buffer, Access::LOCAL_WRITE | remote)?;
        let channel = options.events.then(|| context.create_comp_channel()).transpose()?;
        let cq = |depth: u32, name| {
            let entries = count.checked_mul(depth).context("too many requests for a CQ (-q, -t, -r)")?;
            let init = CqInit { channel: channel.as_ref(), ..CqInit::new(entries.max(1)) };
            context.create_cq(&init).with_context(|| format!("cannot create the CQ of {name}"))
        };
        let (send_cq, recv_cq) =
            (cq(plan.tx_depth, "sends (-t, -q)")?, cq(plan.rx_depth, "receives (-r, -q)")?);
        let inline = plan.inline(context.driver());
        let cap = QpCap {
            max_send_wr: plan.tx_depth,
            max_recv_wr: plan.rx_depth.max(1),
            max_inline_data: inline,
            ..QpCap::default()
        };
        let init = QpInit { cap, ..QpInit::new(&send_cq, &recv_cq) };
        let mut lanes = Vec::new();
        let mut local = Vec::new();
        for index in 0..u64::from(count) {
            let mut qp = pd.create_qp::<T>(&init)?;
            T::init(&mut qp, options.ib_port, remote)?;
            let (send_at, recv_at) =
                (memory.addr() + index * area, memory.addr() + (u64::from(count) + index) * area);
            local.push(KeyRecord {
                qpn: qp.qp_num(),
                psn: random_psn()?,
                rkey: memory.rkey(),
                vaddr: recv_at,
                out_reads: out_reads.into(),
                ..*address
            });
            lanes.push(Lane {
                qp,
                route: None,
                send_at,
                recv_at,
                remote: Remote { addr: 0, rkey: 0 },
                send_offset: 0,
                recv_offset: 0,
                posted: 0,
                completed: 0,
                signaled: 0,
                times: VecDeque::with_capacity(plan.tx_depth as usize + 1),
                receives_posted: 0,
                received: 0,
            });
        }
        let message = vec![0; inline.min(plan.largest()) as usize];
        Ok(Self {
            lanes,
            send_cq,
            recv_cq,
            channel,
            armed: false,
            memory,
            message,
            inline,
            local,
            paths: Vec::new(),
        })
    }

    /// Connects the queue pairs to the peer's.
    pub(crate) fn connect(&mut self, paths: &[Path], link_layer: bareverbs::LinkLayer) -> Result<()> {
        for (lane, path) in self.lanes.iter_mut().zip(paths) {
            let Path { local, remote, mtu, timeout, .. } = *path;
            let info = PathInfo { local, remote, mtu, timeout, link_layer };
            lane.route =
                Some(T::connect(&mut lane.qp, path).with_context(|| format!("cannot connect {info}"))?);
            lane.remote = Remote { addr: remote.vaddr, rkey: remote.rkey };
            self.paths.push(info);
        }
        Ok(())
    }

    pub(crate) fn count(&self) -> usize {
        self.lanes.len()
    }

    /// Starts a run: the counts are zero. Receives of an earlier run stay posted.
    pub(crate) fn reset(&mut self) {
        for lane in &mut self.lanes {
            lane.receives_posted -= lane.received;
            (lane.posted, lane.completed, lane.signaled, lane.received) = (0, 0, 0, 0);
            (lane.send_offset, lane.recv_offset) = (0, 0);
            lane.times.clear();
        }
    }

    /// Messages sent and received in this run.
    pub(crate) fn progress(&self) -> Progress {
        let mut progress = Progress::default();
        for lane in &self.lanes {
            progress.sent += lane.completed;
            progress.received += lane.received;
        }
        progress
    }

    /// Posts receives until each queue pair has `depth` outstanding.
    pub(crate) fn post_receives(&mut self, posting: &Posting, depth: u32) -> Result<()> {
        for index in 0..self.lanes.len() {
            while self.lanes[index].receives_posted < posting.limit.min(depth.into()) {
                self.post_receive(index, posting)?;
            }
        }
        Ok(())
    }

    /// Posts a receive, unless the receives of the run are posted.
    #[inline]
    pub(crate) fn repost(&mut self, index: usize, posting: &Posting) -> Result<()> {
        if self.lanes[index].receives_posted < posting.limit {
            self.post_receive(index, posting)?;
        }
        Ok(())
    }

    #[inline]
    fn post_receive(&mut self, index: usize, posting: &Posting) -> Result<()> {
        let lane = &mut self.lanes[index];
        let length = posting.size + T::HEADROOM;
        let sge = Sge { addr: lane.recv_at + lane.recv_offset, length, lkey: self.memory.lkey() };
        let request = RecvRequest { wr_id: index as u64, sges: &[sge] };
        // SAFETY: the range is in the receive half of the lane's memory, which outlives the queue
        // pairs (field order). Its bytes are only copied, never borrowed.
        unsafe { lane.qp.post_recv(&[request]) }.context("cannot post a receive")?;
        lane.recv_offset = posting.recv_steps.next(lane.recv_offset);
        lane.receives_posted += 1;
        Ok(())
    }

    /// The messages that the lane can post now, in whole lists.
    #[inline]
    pub(crate) fn room(&self, index: usize, posting: &Posting, depth: u64) -> u64 {
        let lane = &self.lanes[index];
        (depth - (lane.posted - lane.completed)).min(posting.limit - lane.posted)
    }

    /// Posts `count` messages with one doorbell.
    #[inline]
    pub(crate) fn post_sends(&mut self, index: usize, posting: &Posting, count: u64, now: u64) -> Result<()> {
        let lane = &mut self.lanes[index];
        let route = lane.route.as_ref().expect("the lane is connected");
        let lkey = self.memory.lkey();
        let bytes = [self.message.get(..posting.size as usize).unwrap_or_default()];
        let inline = posting.size <= self.inline
            && !matches!(posting.verb, Verb::Read | Verb::Atomic)
            && self.inline > 0;
        let (mut offset, mut posted) = (lane.send_offset, lane.posted);
        let mut next = || {
            let sge = Sge { addr: lane.send_at + offset, length: posting.size, lkey };
            let remote = Remote { addr: lane.remote.addr + offset, rkey: lane.remote.rkey };
            offset = posting.send_steps.next(offset);
            posted += 1;
            let signaled = posted.is_multiple_of(posting.cq_mod) || posted == posting.limit;
            if signaled {
                lane.signaled = posted;
                lane.times.push_back((now, posted));
            }
            let flags = if signaled { SendFlags::SIGNALED } else { SendFlags::empty() };
            (sge, T::operation(posting.verb, remote, route), flags)
        };
        let wr_id = index as u64;
        let result: Result<(), PostError> = if count == 1 {
            let (sge, operation, flags) = next();
            let sges = [sge];
            let payload = if inline { Payload::Inline(&bytes) } else { Payload::Sges(&sges) };
            // SAFETY: the range is in the send half of the lane's memory, which outlives the queue
            // pairs (field order). Only completed reads and atomics change its bytes, and nothing
            // borrows them.
            unsafe { lane.qp.post_send(&[SendRequest { wr_id, operation, flags, payload }]) }
        } else {
            let mut batch = lane.qp.start_send();
            for _ in 0..count {
                let (sge, operation, flags) = next();
                let sges = [sge];
                let payload = if inline { Payload::Inline(&bytes) } else { Payload::Sges(&sges) };
                // SAFETY: as above.
                unsafe { batch.push(&SendRequest { wr_id, operation, flags, payload }) }
                    .context("cannot post a request")?;
            }
            batch.ring()
        };
        result.context("cannot post a request")?;
        (lane.send_offset, lane.posted) = (offset, posted);
        Ok(())
    }

    /// Polls a completion of a send. Returns its messages and the time of its post.
    #[inline]
    pub(crate) fn poll_send(&mut self) -> Result<Option<(u64, u64)>> {
        let Some(completion) = self.send_cq.poll_one() else { return Ok(None) };
        let index = self.check(&completion)?;
        let lane = &mut self.lanes[index];
        let Some((time, upto)) = lane.times.pop_front() else {
            return Err(RunError::UnknownRequest(completion.wr_id).into());
        };
        let messages = upto - lane.completed;
        lane.completed = upto;
        Ok(Some((messages, time)))
    }

    /// Polls a received message. Returns the index of its queue pair.
    #[inline]
    pub(crate) fn poll_receive(&mut self, posting: &Posting) -> Result<Option<usize>> {
        let Some(completion) = self.recv_cq.poll_one() else { return Ok(None) };
        let index = self.check(&completion)?;
        if posting.verb == Verb::Send && completion.byte_len != posting.size + T::HEADROOM {
            let found = completion.byte_len.saturating_sub(T::HEADROOM);
            return Err(RunError::WrongLength { found, expected: posting.size }.into());
        }
        self.lanes[index].received += 1;
        Ok(Some(index))
    }

    /// The index of the lane of a successful completion.
    #[inline]
    fn check(&self, completion: &WorkCompletion) -> Result<usize> {
        if completion.status != WcStatus::SUCCESS {
            return Err(self.failure(completion));
        }
        let index = usize::try_from(completion.wr_id).ok().filter(|&index| index < self.lanes.len());
        index.ok_or_else(|| RunError::UnknownRequest(completion.wr_id).into())
    }

    #[cold]
    fn failure(&self, completion: &WorkCompletion) -> anyhow::Error {
        let index = usize::try_from(completion.wr_id).unwrap_or(usize::MAX);
        let Some((lane, path)) = self.lanes.get(index).zip(self.paths.get(index)) else {
            return RunError::UnknownRequest(completion.wr_id).into();
        };
        // Soft-RoCE completes the failed request itself with a flush error.
        let status = match (completion.status, lane.qp.failure()) {
            (WcStatus::WR_FLUSH_ERR, Some(failure)) => failure.status,
            (status, _) => status,
        };
        RunError::Status { status, path: Box::new(*path), progress: self.progress() }.into()
    }

    /// Whether all messages of the run have completed.
    pub(crate) fn all_sent(&self, posting: &Posting) -> bool {
        self.lanes.iter().all(|lane| lane.completed >= posting.limit)
    }

    /// Whether every signalled request has completed.
    pub(crate) fn drained(&self) -> bool {
        self.lanes.iter().all(|lane| lane.completed >= lane.signaled)
    }

    /// Whether all messages of the run have arrived.
    pub(crate) fn all_received(&self, posting: &Posting) -> bool {
        self.lanes.iter().all(|lane| lane.received >= posting.limit)
    }

    pub(crate) fn any_received(&self) -> bool {
        self.lanes.iter().any(|lane| lane.received > 0)
    }

    /// Waits after polls that found nothing: polls on, or sleeps with `-e`.
    #[inline]
    pub(crate) fn pause(&mut self, watch: &mut Watch<'_>) -> Result<()> {
        if self.channel.is_some() {
            return self.sleep(watch);
        }
        match watch.spin()? {
            None | Some(Verdict::Wait) => Ok(()),
            Some(verdict) => Err(self.verdict(verdict)),
        }
    }

    /// Arms the CQs, and sleeps if they were armed.
    fn sleep(&mut self, watch: &mut Watch<'_>) -> Result<()> {
        if !self.armed {
            self.send_cq.arm(Arm::Any)?;
            self.recv_cq.arm(Arm::Any)?;
            self.armed = true;
            return Ok(());
        }
        let channel = self.channel.as_ref().context("there is no completion channel")?;
        let verdict = watch.sleep(channel.as_fd(), None)?;
        while channel.try_wait()?.is_some() {
            self.armed = false;
        }
        match verdict {
            Verdict::Wait => Ok(()),
            verdict => Err(self.verdict(verdict)),
        }
    }

    #[cold]
    pub(crate) fn verdict(&self, verdict: Verdict) -> anyhow::Error {
        let (waited, progress) = (super::watch::STALL_TIMEOUT, self.progress());
        match verdict {
            Verdict::PeerGone | Verdict::Wait => RunError::PeerGone(progress).into(),
            Verdict::Stalled if T::CONNECTION == crate::cli::perf::Connection::Rc => {
                RunError::Stalled { waited, progress }.into()
            }
            Verdict::Stalled => {
                RunError::Lost { waited, transport: T::CONNECTION.to_string(), progress }.into()
            }
        }
    }

    /// Sets the last byte of the message that a latency test of writes sends.
    pub(crate) fn set_last_byte(&mut self, size: u32, byte: u8) -> Result<()> {
        if let Some(last) = self.message.get_mut(size as usize - 1) {
            *last = byte;
        }
        let start = (self.lanes[0].send_at - self.memory.addr()) as usize;
        Ok(self.memory.write(start + size as usize - 1, &[byte])?)
    }

    /// The last byte of the message that the peer writes.
    #[inline]
    pub(crate) fn last_byte(&self, size: u32) -> Result<u8> {
        let start = (self.lanes[0].recv_at - self.memory.addr()) as usize;
        let mut byte = [0];
        self.memory.read(start + size as usize - 1, &mut byte)?;
        Ok(byte[0])
    }
}

/// Fills a buffer with words that differ from each other.
fn fill(buffer: &mut [u8]) {
    for (index, word) in buffer.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        *word = (index as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_ne_bytes();
    }
}

impl Plan<'_> {
    /// Bytes that are sent inline.
    fn inline(&self, driver: DriverId) -> u32 {
        if matches!(self.verb, Verb::Read | Verb::Atomic) {
            return 0;
        }
        if let Some(size) = self.options.inline_size {
            return size;
        }
        match (self.measure, driver) {
            (Measure::Latency, DriverId::MLX5) => match self.verb {
                Verb::Send if self.datagrams() => INLINE_DATAGRAM,
                Verb::Send => INLINE_SEND,
                _ => INLINE_WRITE,
            },
            _ => 0,
        }
    }
}

/// The exchange of many records takes longer than its timeout if a side connects in between.
const _: () = assert!(EXCHANGE_TIMEOUT.as_secs() >= 10);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::wire::Version;
    use bareverbs::Mtu;
    use proptest::prelude::*;

    fn agreed(cycle_buffer: u32, cache_line: u32) -> Preamble {
        Preamble { peer: Version::OURS, cycle_buffer, cache_line, mtu: Mtu::Mtu1024 }
    }

    #[test]
    fn short_messages_cycle_and_long_ones_stay() {
        let offsets = |size| {
            let steps = Steps::new(size, &agreed(4096, 64));
            std::iter::successors(Some(0), move |&offset| Some(steps.next(offset)))
        };
        assert_eq!(offsets(8).take(3).collect::<Vec<_>>(), [0, 64, 128]);
        assert_eq!(offsets(8).nth(64), Some(0));
        assert_eq!(offsets(1300).take(5).collect::<Vec<_>>(), [0, 1344, 2688, 0, 1344]);
        assert_eq!(offsets(2048).take(3).collect::<Vec<_>>(), [0, 2048, 0]);
        assert!(offsets(2049).take(9).all(|offset| offset == 0));
        assert!(offsets(1 << 20).take(9).all(|offset| offset == 0));
    }

    proptest! {
        #[test]
        fn messages_stay_within_the_buffer(size in 1..100_000u32, cycle in 1..100_000u32, line in 1..4096u32) {
            let steps = Steps::new(size, &agreed(cycle, line));
            let mut offset = 0;
            for _ in 0..300 {
                prop_assert!(offset + u64::from(size) <= u64::from(size.max(cycle)));
                offset = steps.next(offset);
            }
        }
    }
}
