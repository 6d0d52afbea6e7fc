//! The queue pairs of a thread, with their memory and completion queues.

mod build;
mod compare;
mod completions;

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use anyhow::{Context as _, Result};
use bareverbs::cq::WorkCompletion;
use bareverbs::error::PostError;
use bareverbs::qp::{Payload, Qp, RecvRequest, SendFlags, SendRequest, Sge};
use bareverbs::srq::Srq;
use bareverbs::xrc::{XrcSrq, XrcTarget};
use bareverbs::{Context, Remote, WcStatus};

use self::completions::Completions;
use super::error::{PathInfo, Progress, RunError, advice};
use super::measure::Completed;
use super::memory::Memory;
use super::posting::Posting;
use super::transport::{Path, Service, connect_target};
use super::verify::Verifier;
use super::watch::{Verdict, Watch};
use super::wire::KeyRecord;
use crate::cli::perf::choice::Verb;
use crate::cli::perf::mix::Kind;
use crate::session::status;

pub(crate) use self::build::Setup;

/// A signalled request.
#[derive(Clone, Copy, Debug)]
struct Signal {
    /// The time from which its latency counts.
    time: u64,
    /// Messages and bytes of the queue pair up to it.
    messages: u64,
    bytes: u64,
    /// The index of its kind.
    kind: usize,
}

/// What a queue pair has sent.
#[derive(Debug)]
struct Sends {
    /// The index of the queue pair among all of this side.
    id: u32,
    /// The start of its memory.
    at: u64,
    remote: Remote,
    /// Offset of the next message.
    offset: u64,
    posted: u64,
    posted_bytes: u64,
    completed: u64,
    completed_bytes: u64,
    /// The last signalled message.
    signaled: u64,
    /// The signalled requests that are outstanding.
    signals: VecDeque<Signal>,
}

/// The next message of a queue pair.
struct Next {
    kind: Kind,
    /// The first message of a run has the number 0.
    number: u64,
    addr: u64,
    remote: Remote,
    flags: SendFlags,
}

impl Sends {
    /// Takes the next message. Its latency counts from `time`.
    #[inline(always)]
    fn next(&mut self, posting: &Posting, time: u64) -> Next {
        let (offset, number) = (self.offset, self.posted);
        let index = posting.order.index(self.id, number);
        let kind = posting.order.kinds()[index];
        self.offset = posting.send_steps.next(offset);
        self.posted += 1;
        self.posted_bytes += u64::from(kind.size);
        let signaled = self.posted.is_multiple_of(posting.cq_mod) || self.posted == posting.limit;
        if signaled {
            self.signaled = self.posted;
            let (messages, bytes) = (self.posted, self.posted_bytes);
            self.signals.push_back(Signal { time, messages, bytes, kind: index });
        }
        Next {
            kind,
            number,
            addr: self.at + offset,
            remote: self.remote.offset(offset),
            flags: if signaled { SendFlags::SIGNALED } else { SendFlags::empty() },
        }
    }
}

/// Receives of a queue pair or of an SRQ.
#[derive(Debug)]
struct Receives {
    /// The start of their memory.
    at: u64,
    /// Offset of the next one.
    offset: u64,
    /// Receives that were posted for this run.
    posted: u64,
}

impl Receives {
    fn new(at: u64) -> Self {
        Self { at, offset: 0, posted: 0 }
    }
}

/// A queue pair with its place in the memory.
struct Lane<T: Service> {
    /// With XRC it only sends. A side that does not send has none.
    qp: Option<Qp<T>>,
    route: Option<T::Route>,
    sends: Sends,
    /// With XRC, what executes the peer's requests.
    target: Option<XrcTarget>,
    /// Unused with an SRQ.
    receives: Receives,
    /// Where the peer writes.
    target_at: u64,
    received: u64,
    /// The number that the next received message has at least.
    next_number: u64,
}

/// The SRQ of a thread.
struct Shared {
    srq: SharedQueue,
    receives: Receives,
    /// From the number of the QP that receives to the index of its lane.
    lanes: HashMap<u32, usize>,
}

/// An SRQ for the queue pairs, or for the XRC targets.
enum SharedQueue {
    Srq(Srq),
    Xrc(XrcSrq),
}

/// The resources of a thread.
pub(crate) struct Endpoint<T: Service> {
    /// Declared before the memory, so that the queue pairs are destroyed first.
    lanes: Vec<Lane<T>>,
    shared: Option<Shared>,
    completions: Completions,
    memory: Memory,
    verifier: Option<Verifier>,
    /// A message for inline data.
    message: Vec<u8>,
    inline: u32,
    /// The records of the queue pairs that send, if this side has any.
    pub(crate) local: Vec<KeyRecord>,
    /// The records of the XRC targets.
    pub(crate) targets: Vec<KeyRecord>,
    paths: Vec<PathInfo>,
    /// The device and its port, whose link is looked at after a failure.
    context: Context,
    port: u8,
}

impl<T: Service> Endpoint<T> {
    /// Connects the queue pairs that send, and the XRC targets, to the peer's.
    pub(crate) fn connect(
        &mut self,
        paths: &[Path],
        targets: &[Path],
        link_layer: bareverbs::device::LinkLayer,
    ) -> Result<()> {
        let info = |path: &Path| {
            let Path { local, remote, mtu, timeout, .. } = *path;
            PathInfo { local, remote, mtu, timeout, link_layer }
        };
        let failed = |path| move || format!("cannot connect {}", info(path));
        for (lane, path) in self.lanes.iter_mut().zip(paths) {
            let qp = lane.qp.as_mut().context("the lane has no queue pair that sends")?;
            lane.route = Some(T::connect(qp, path).with_context(failed(path))?);
            lane.sends.remote = Remote { addr: path.remote.vaddr, rkey: path.remote.rkey };
        }
        for (lane, path) in self.lanes.iter_mut().zip(targets) {
            let target = lane.target.as_mut().context("the lane has no XRC target")?;
            connect_target(target, path).with_context(failed(path))?;
        }
        // Errors name the path of the sends, or that of the receives.
        self.paths = if paths.is_empty() { targets } else { paths }.iter().map(info).collect();
        Ok(())
    }

    /// The queue pairs that send.
    pub(crate) fn queue_pairs(&mut self) -> impl Iterator<Item = &mut Qp<T>> {
        self.lanes.iter_mut().filter_map(|lane| lane.qp.as_mut())
    }

    /// The record of the first queue pair.
    pub(crate) fn first_record(&self) -> Option<&KeyRecord> {
        self.local.first().or(self.targets.first())
    }

    pub(crate) fn count(&self) -> usize {
        self.lanes.len()
    }

    /// Starts a run: the counts are zero. Receives of an earlier run stay posted.
    pub(crate) fn reset(&mut self) {
        for lane in &mut self.lanes {
            let receives = self.shared.as_mut().map_or(&mut lane.receives, |shared| &mut shared.receives);
            receives.posted -= lane.received;
            receives.offset = 0;
            (lane.received, lane.next_number) = (0, 0);
            let sends = &mut lane.sends;
            (sends.posted, sends.posted_bytes, sends.completed, sends.completed_bytes) = (0, 0, 0, 0);
            (sends.signaled, sends.offset) = (0, 0);
            sends.signals.clear();
        }
    }

    /// Messages sent and received in this run.
    pub(crate) fn progress(&self) -> Progress {
        let mut progress = Progress::default();
        for lane in &self.lanes {
            progress.sent += lane.sends.completed;
            progress.received += lane.received;
        }
        progress
    }

    /// Posts receives until each queue pair, or the SRQ, has its depth outstanding.
    pub(crate) fn post_receives(&mut self, posting: &Posting) -> Result<()> {
        let depth = u64::from(posting.rx_depth);
        for index in 0..self.lanes.len() {
            while self.receives(index).posted < self.receive_limit(posting).min(depth) {
                self.post_receive(index, posting)?;
            }
        }
        Ok(())
    }

    #[inline]
    fn receives(&self, index: usize) -> &Receives {
        self.shared.as_ref().map_or(&self.lanes[index].receives, |shared| &shared.receives)
    }

    /// The receives of a queue pair, or of the SRQ, in this run.
    #[inline]
    fn receive_limit(&self, posting: &Posting) -> u64 {
        let queue_pairs = if self.shared.is_some() { self.lanes.len() as u64 } else { 1 };
        posting.limit.saturating_mul(queue_pairs)
    }

    /// Posts a receive, unless the receives of the run are posted.
    #[inline]
    pub(crate) fn repost(&mut self, index: usize, posting: &Posting) -> Result<()> {
        if self.receives(index).posted < self.receive_limit(posting) {
            self.post_receive(index, posting)?;
        }
        Ok(())
    }

    #[inline]
    fn post_receive(&mut self, index: usize, posting: &Posting) -> Result<()> {
        let length = posting.size + T::HEADROOM;
        let lkey = self.memory.lkey();
        let lane = &mut self.lanes[index];
        let receives = self.shared.as_mut().map_or(&mut lane.receives, |shared| &mut shared.receives);
        let sge = Sge { addr: receives.at + receives.offset, length, lkey };
        // The completion names the queue pair and the place: offsets are below 4 GiB.
        let request = RecvRequest { wr_id: receives.offset << 32 | index as u64, sges: &[sge] };
        receives.offset = posting.recv_steps.next(receives.offset);
        receives.posted += 1;
        let result = match &mut self.shared {
            // SAFETY: the range is in the area of the SRQ or in the receive area of the lane, and the
            // memory outlives the queue pairs and the SRQ (field order). Its bytes are only copied,
            // never borrowed.
            Some(Shared { srq: SharedQueue::Srq(srq), .. }) => unsafe { srq.post_recv(&[request]) },
            // SAFETY: as above.
            Some(Shared { srq: SharedQueue::Xrc(srq), .. }) => unsafe { srq.post_recv(&[request]) },
            None => {
                let qp = lane.qp.as_mut().expect("the side without queue pairs that send has an SRQ");
                // SAFETY: as above.
                unsafe { qp.post_recv(&[request]) }
            }
        };
        result.context("cannot post a receive")
    }

    /// The messages that the lane can post now.
    #[inline]
    pub(crate) fn room(&self, index: usize, posting: &Posting) -> u64 {
        let sends = &self.lanes[index].sends;
        (u64::from(posting.tx_depth) - (sends.posted - sends.completed)).min(posting.limit - sends.posted)
    }

    /// Posts `count` messages with one doorbell. Their latencies count from `time`.
    #[inline]
    pub(crate) fn post_sends(
        &mut self,
        index: usize,
        posting: &Posting,
        count: u64,
        time: u64,
    ) -> Result<()> {
        let Lane { qp, route, sends, .. } = &mut self.lanes[index];
        let (Some(qp), Some(route)) = (qp, route) else { unreachable!("the lane is connected") };
        let lkey = self.memory.lkey();
        let wr_id = index as u64;
        let result: Result<(), PostError> = if count == 1 {
            let next = sends.next(posting, time);
            if let Some(verifier) = &mut self.verifier {
                compare::prepare(verifier, &mut self.memory, &mut self.message, posting, sends, &next)?;
            }
            let Next { kind, number, addr, remote, flags } = next;
            let sges = [Sge { addr, length: kind.size, lkey }];
            let bytes = [self.message.get(..kind.size as usize).unwrap_or_default()];
            let payload =
                if is_inline(kind, self.inline) { Payload::Inline(&bytes) } else { Payload::Sges(&sges) };
            let operation = T::operation(kind.verb, remote, posting.atomic_of(number), route);
            // SAFETY: the range is in the send area of the lane, and the memory outlives the queue
            // pairs (field order). Completed reads and atomics change its bytes, and
            // `Memory::write` copies into it; nothing borrows them.
            unsafe { qp.post_send(&[SendRequest { wr_id, operation, flags, payload }]) }
        } else {
            let mut batch = qp.start_send();
            for _ in 0..count {
                let next = sends.next(posting, time);
                if let Some(verifier) = &mut self.verifier {
                    compare::prepare(verifier, &mut self.memory, &mut self.message, posting, sends, &next)?;
                }
                let Next { kind, number, addr, remote, flags } = next;
                let sges = [Sge { addr, length: kind.size, lkey }];
                let bytes = [self.message.get(..kind.size as usize).unwrap_or_default()];
                let payload =
                    if is_inline(kind, self.inline) { Payload::Inline(&bytes) } else { Payload::Sges(&sges) };
                let operation = T::operation(kind.verb, remote, posting.atomic_of(number), route);
                // SAFETY: as above.
                unsafe { batch.push(&SendRequest { wr_id, operation, flags, payload }) }
                    .context("cannot post a request")?;
            }
            batch.ring()
        };
        result.context("cannot post a request")
    }

    /// Polls a completion of a send. Returns its messages and the time from which they count.
    #[inline]
    pub(crate) fn poll_send(&mut self, posting: &Posting) -> Result<Option<(Completed, u64)>> {
        let Some(completion) = self.completions.send.poll() else { return Ok(None) };
        let index = lane_of(completion.wr_id);
        self.check(&completion, index, true)?;
        let sends = &mut self.lanes[index].sends;
        let Some(signal) = sends.signals.pop_front() else {
            return Err(RunError::UnknownRequest(completion.wr_id).into());
        };
        let done = Completed {
            messages: signal.messages - sends.completed,
            bytes: signal.bytes - sends.completed_bytes,
            latency: None,
            kind: signal.kind,
        };
        (sends.completed, sends.completed_bytes) = (signal.messages, signal.bytes);
        if self.verifier.is_some() {
            self.compare_responses(index, posting, signal.messages - done.messages..signal.messages)?;
        }
        Ok(Some((done, signal.time)))
    }

    /// Polls a received message. Returns the index of its queue pair and its bytes.
    #[inline]
    pub(crate) fn poll_receive(&mut self, posting: &Posting) -> Result<Option<(usize, Completed)>> {
        let Some(completion) = self.completions.receive.poll() else { return Ok(None) };
        // A receive of an SRQ does not name the queue pair that consumed it.
        let index = match &self.shared {
            Some(shared) => shared.lanes.get(&completion.qp_num).copied().unwrap_or(usize::MAX),
            None => lane_of(completion.wr_id),
        };
        self.check(&completion, index, false)?;
        let lane = &mut self.lanes[index];
        let size = match posting.sends {
            true => completion.byte_len.saturating_sub(T::HEADROOM),
            false => posting.order.kind(lane.sends.id, lane.received).size,
        };
        if posting.sends && !posting.order.has_size(size) {
            return Err(RunError::WrongLength { found: size, expected: posting.size }.into());
        }
        lane.received += 1;
        if self.verifier.is_some() {
            self.compare_received(index, posting, completion.wr_id >> 32, size)?;
        }
        let kind = posting.order.kinds().iter().position(|kind| kind.size == size).unwrap_or(0);
        Ok(Some((index, Completed { messages: 1, bytes: size.into(), latency: None, kind })))
    }

    /// Fails unless the completion is a success of a lane. `is_send`: it came from a CQ of sends.
    #[inline]
    fn check(&self, completion: &WorkCompletion, index: usize, is_send: bool) -> Result<()> {
        match completion.status == WcStatus::SUCCESS && index < self.lanes.len() {
            true => Ok(()),
            false => Err(self.failure(completion.status, completion.wr_id, index, is_send)),
        }
    }

    #[cold]
    fn failure(&self, status: WcStatus, wr_id: u64, index: usize, is_send: bool) -> anyhow::Error {
        let Some((lane, path)) = self.lanes.get(index).zip(self.paths.get(index)) else {
            return RunError::UnknownRequest(wr_id).into();
        };
        // Soft-RoCE completes the failed request itself with a flush error.
        let status = match (status, lane.qp.as_ref().and_then(Qp::failure)) {
            (WcStatus::WR_FLUSH_ERR, Some(failure)) => failure.status,
            (status, _) => status,
        };
        let down = if status::may_be_link(status) { self.context.link_down(self.port) } else { None };
        let cause = down.map_or_else(|| advice(status, path, is_send), |down| down.to_string());
        RunError::Status { status, path: Box::new(*path), cause, progress: self.progress() }.into()
    }

    /// Whether all messages of the run have completed.
    pub(crate) fn all_sent(&self, posting: &Posting) -> bool {
        self.lanes.iter().all(|lane| lane.sends.completed >= posting.limit)
    }

    /// Whether every signalled request has completed.
    pub(crate) fn drained(&self) -> bool {
        self.lanes.iter().all(|lane| lane.sends.completed >= lane.sends.signaled)
    }

    /// Whether all messages of the run have arrived.
    pub(crate) fn all_received(&self, posting: &Posting) -> bool {
        self.lanes.iter().all(|lane| lane.received >= posting.limit)
    }

    pub(crate) fn any_received(&self) -> bool {
        self.lanes.iter().any(|lane| lane.received > 0)
    }

    /// Waits after polls that found nothing: polls on, or sleeps with `-e`, up to `until`.
    #[inline]
    pub(crate) fn pause(&mut self, watch: &mut Watch<'_>, until: Option<Duration>) -> Result<()> {
        self.pause_for(true, watch, until)
    }

    /// Waits as [`Self::pause`], but completed sends need not end a sleep.
    #[inline]
    pub(crate) fn pause_for_receives(&mut self, watch: &mut Watch<'_>) -> Result<()> {
        self.pause_for(false, watch, None)
    }

    #[inline]
    fn pause_for(&mut self, for_sends: bool, watch: &mut Watch<'_>, until: Option<Duration>) -> Result<()> {
        if self.completions.channel.is_some() {
            return self.sleep(for_sends, watch, until);
        }
        match watch.spin()? {
            None | Some(Verdict::Wait) => Ok(()),
            Some(verdict) => Err(self.verdict(verdict)),
        }
    }

    /// Arms the CQs, and sleeps if they were armed.
    fn sleep(&mut self, for_sends: bool, watch: &mut Watch<'_>, until: Option<Duration>) -> Result<()> {
        match self.completions.sleep(for_sends, watch, until)? {
            Verdict::Wait => Ok(()),
            verdict => Err(self.verdict(verdict)),
        }
    }

    /// Notes that something completed. Fails if the run has to end.
    #[inline]
    pub(crate) fn note_progress(&self, watch: &mut Watch<'_>) -> Result<()> {
        match watch.progress()? {
            Verdict::Wait => Ok(()),
            verdict => Err(self.verdict(verdict)),
        }
    }

    #[cold]
    pub(crate) fn verdict(&self, verdict: Verdict) -> anyhow::Error {
        let progress = self.progress();
        if verdict == Verdict::Aborted {
            return RunError::Aborted.into();
        }
        if let Some(down) = self.context.link_down(self.port) {
            let end = match verdict {
                Verdict::PeerGone => "the peer closed its connection during the run",
                _ => "nothing completed for a long time",
            };
            return RunError::LinkDown { end, down, progress }.into();
        }
        match verdict {
            Verdict::PeerGone | Verdict::Wait | Verdict::Aborted => RunError::PeerGone(progress).into(),
            Verdict::Stalled(waited) if T::CONNECTION.is_reliable() => {
                RunError::Stalled { waited, progress }.into()
            }
            Verdict::Stalled(waited) => {
                RunError::Lost { waited, transport: T::CONNECTION.to_string(), progress }.into()
            }
        }
    }

    /// The offset of a lane's address in the memory.
    fn offset_of(&self, addr: u64) -> usize {
        (addr - self.memory.addr()) as usize
    }

    /// Sets the last byte of the message that a latency test of writes sends. With `--verify`, the
    /// rest of the message has its pattern.
    pub(crate) fn set_last_byte(&mut self, size: u32, byte: u8) -> Result<()> {
        if let Some(last) = self.message.get_mut(size as usize - 1) {
            *last = byte;
        }
        let start = self.offset_of(self.lanes[0].sends.at);
        self.memory.write(start + size as usize - 1, &[byte])
    }

    /// The last byte of the message that the peer writes.
    #[inline]
    pub(crate) fn last_byte(&self, size: u32) -> Result<u8> {
        let start = self.offset_of(self.lanes[0].target_at);
        let mut byte = [0];
        self.memory.read(start + size as usize - 1, &mut byte)?;
        Ok(byte[0])
    }
}

/// Whether a message is sent as inline data.
#[inline]
fn is_inline(kind: Kind, inline: u32) -> bool {
    inline > 0 && kind.size <= inline && !matches!(kind.verb, Verb::Read | Verb::Atomic)
}

/// The index of the lane in the low half of a `wr_id`.
#[inline]
fn lane_of(wr_id: u64) -> usize {
    wr_id as u32 as usize
}
