//! The queue pairs of a thread, with their memory and completion queues.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::os::fd::AsFd;
use std::time::Duration;

use anyhow::{Context as _, Result};
use bareverbs::cq::{Arm, CompChannel, Cq, CqInit, WorkCompletion};
use bareverbs::device::DriverId;
use bareverbs::error::PostError;
use bareverbs::qp::{Payload, Qp, QpCap, QpInit, RecvRequest, SendFlags, SendRequest, Sge};
use bareverbs::srq::{Srq, SrqInit};
use bareverbs::xrc::{XrcSrq, XrcSrqInit, XrcTarget, XrcdShare};
use bareverbs::{Access, Buffer, Context, Mr, Remote, WcStatus};

use super::error::{PathInfo, Progress, RunError, advice};
use super::exchange::Preamble;
use super::measure::Completed;
use super::mix::{Kind, Order};
use super::transport::{Path, Service, connect_target, init_target};
use super::verify::{Pattern, Place, Verifier};
use super::watch::{Verdict, Watch};
use super::wire::KeyRecord;
use crate::cli::perf::{CqUse, Measure, Plan, Verb};
use crate::session::exchange::EXCHANGE_TIMEOUT;
use crate::session::path::random_psn;
use crate::session::status;

/// perftest's limits of inline data in latency tests on ConnectX.
const INLINE_SEND: u32 = 236;
const INLINE_WRITE: u32 = 220;
const INLINE_DATAGRAM: u32 = 188;

/// Slots of a send queue, at least. If all are in use, as after each post to a queue of one slot, the
/// next post takes the slow path, which reads how far the device is.
const SEND_SLOTS: u32 = 64;

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

    /// So many places, which do not share cache lines.
    pub(crate) fn apart(size: u32, places: u32) -> Self {
        let distance = u64::from(size).next_multiple_of(64);
        Self { distance, end: distance * u64::from(places) }
    }

    /// Bytes from the start of the first place to the end of the last one, for messages of `size`.
    fn bytes(self, size: u32) -> u64 {
        if self.distance == 0 { size.into() } else { self.end }
    }

    /// The number of places.
    fn places(self) -> u64 {
        self.end.checked_div(self.distance).unwrap_or(1)
    }

    /// The place of a message.
    fn place_of(self, number: u64) -> u64 {
        number % self.places() * self.distance
    }

    #[inline]
    fn next(self, offset: u64) -> u64 {
        let next = offset + self.distance;
        if next == self.end { 0 } else { next }
    }
}

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

/// How messages of a run are posted.
#[derive(Clone, Debug)]
pub(crate) struct Posting {
    pub(crate) order: Order,
    /// The largest size.
    pub(crate) size: u32,
    pub(crate) send_steps: Steps,
    pub(crate) recv_steps: Steps,
    /// A request in so many is signalled.
    pub(crate) cq_mod: u64,
    /// Messages and receives of each queue pair; `u64::MAX` without a limit.
    pub(crate) limit: u64,
    /// Requests and receives that each queue has outstanding.
    pub(crate) tx_depth: u32,
    pub(crate) rx_depth: u32,
    /// Whether the messages consume receives and have their length checked.
    pub(crate) sends: bool,
    /// Whether messages may be lost.
    pub(crate) lossy: bool,
    /// Whether the peer polls the last byte of each message.
    pub(crate) polled: bool,
}

impl Posting {
    /// The messages of a run of this size.
    pub(crate) fn new<T: Service>(plan: &Plan<'_>, agreed: &Preamble, size: u32) -> Self {
        let depths = plan.depths(size);
        // One place more than outstanding messages: a write with immediate data begins before it
        // consumes a receive.
        let places = depths.send.max(depths.receive).saturating_add(1);
        let steps = |size| match (plan.measure, plan.options.verify) {
            (Measure::Latency, _) => Steps::NONE,
            (Measure::Bandwidth, true) => Steps::apart(size, places),
            (Measure::Bandwidth, false) => Steps::new(size, agreed),
        };
        Self {
            order: plan.order(size),
            size,
            send_steps: steps(size),
            recv_steps: steps(size + T::HEADROOM),
            cq_mod: plan.cq_mod_of(size).into(),
            limit: match plan.length {
                crate::cli::perf::Length::Messages(messages) => messages,
                crate::cli::perf::Length::Time { .. } => u64::MAX,
            },
            tx_depth: depths.send,
            rx_depth: depths.receive,
            sends: plan.verb == Verb::Send,
            lossy: !plan.options.connection.is_reliable(),
            polled: plan.verb == Verb::Write && plan.measure == Measure::Latency,
        }
    }
}

/// The resources of a thread.
pub(crate) struct Endpoint<T: Service> {
    /// Declared before the memory, so that the queue pairs are destroyed first.
    lanes: Vec<Lane<T>>,
    shared: Option<Shared>,
    /// One, or one for each queue pair.
    send_cqs: Vec<Cq>,
    recv_cqs: Vec<Cq>,
    /// The CQs that are polled next.
    next_send_cq: usize,
    next_recv_cq: usize,
    channel: Option<CompChannel>,
    armed: bool,
    memory: Mr<Buffer>,
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

/// The memory of a thread: areas for sends, then areas for receives and for the peer's writes, then
/// one for the receives of an SRQ.
#[derive(Clone, Copy, Debug)]
struct Layout {
    /// Bytes of an area.
    area: u64,
    count: u64,
    srq_area: u64,
}

impl Layout {
    fn new<T: Service>(plan: &Plan<'_>, agreed: &Preamble, count: u32) -> Self {
        let page = rustix::param::page_size() as u64;
        let postings = || plan.sizes.iter().map(|&size| Posting::new::<T>(plan, agreed, size));
        let receive = |posting: &Posting| posting.recv_steps.bytes(posting.size + T::HEADROOM);
        let bytes = |posting: Posting| posting.send_steps.bytes(posting.size).max(receive(&posting));
        let area = postings().map(bytes).max().unwrap_or(0).max(agreed.cycle_buffer.into());
        let srq_area = match plan.shares_receives() {
            true => postings().map(|one| receive(&one)).max().unwrap_or(0).max(agreed.cycle_buffer.into()),
            false => 0,
        };
        let pages = |bytes: u64| bytes.next_multiple_of(page);
        Self { area: pages(area), count: count.into(), srq_area: pages(srq_area) }
    }

    fn bytes(self) -> Option<usize> {
        let bytes = self.area.checked_mul(2 * self.count)?.checked_add(self.srq_area)?;
        usize::try_from(bytes).ok()
    }

    fn send(self, index: u64) -> u64 {
        index * self.area
    }

    fn receive(self, index: u64) -> u64 {
        (self.count + index) * self.area
    }

    fn srq(self) -> u64 {
        2 * self.count * self.area
    }
}

impl<T: Service> Endpoint<T> {
    /// Creates the objects of the queue pairs `ids`, and brings the queue pairs to INIT.
    pub(crate) fn new(
        plan: &Plan<'_>,
        context: &Context,
        agreed: &Preamble,
        out_reads: u8,
        address: &KeyRecord,
        ids: Range<u32>,
    ) -> Result<Self> {
        let options = plan.options;
        let count = u32::try_from(ids.len()).unwrap_or(u32::MAX);
        let pd = context.alloc_pd()?;
        let layout = Layout::new::<T>(plan, agreed, count);
        let mut buffer = Buffer::zeroed(layout.bytes().context("the buffers exceed the address space")?)?;
        if plan.verb != Verb::Write || plan.measure == Measure::Bandwidth {
            fill(&mut buffer);
        }
        let mut remote = Access::empty();
        for verb in plan.verbs() {
            remote |= match verb {
                Verb::Send => Access::empty(),
                Verb::Write | Verb::WriteImm => Access::REMOTE_WRITE,
                Verb::Read => Access::REMOTE_READ,
                Verb::Atomic => Access::REMOTE_ATOMIC,
            };
        }
        let memory = pd.register(buffer, Access::LOCAL_WRITE | remote)?;
        let channel = options.events.then(|| context.create_comp_channel()).transpose()?;
        let (cqs_of_sends, lanes_of_cq) = match options.cq {
            CqUse::Shared => (1, count),
            CqUse::Own => (count, 1),
        };
        let cqs = |cqs: u32, lanes: u32, depth: u32, name| {
            let entries = lanes.checked_mul(depth).context("too many requests for a CQ (-q, -t, -r)")?;
            let init = CqInit { channel: channel.as_ref(), ..CqInit::new(entries.max(1)) };
            let create =
                || context.create_cq(&init).with_context(|| format!("cannot create the CQ of {name}"));
            std::iter::repeat_with(create).take(cqs as usize).collect::<Result<Vec<_>>>()
        };
        // With XRC, the side that does not send has no queue pairs that do.
        let requests = !T::HAS_TARGETS || plan.requests();
        let cqs_of_requests = if requests { cqs_of_sends } else { 0 };
        let send_cqs = cqs(cqs_of_requests, lanes_of_cq, plan.tx_depth, "sends (-t, -q)")?;
        // All receives of an SRQ may complete in one CQ, and no others do. Those of an XRC SRQ do.
        let cqs_of_receives = if T::HAS_TARGETS { 1 } else { cqs_of_sends };
        let lanes_of_cq = if T::HAS_TARGETS || options.srq { 1 } else { lanes_of_cq };
        let recv_cqs = cqs(cqs_of_receives, lanes_of_cq, plan.rx_depth, "receives (-r, -q)")?;
        let base = memory.addr();
        let srq = SrqInit::new(plan.rx_depth.max(1));
        let mut xrcd = None;
        let srq = if T::HAS_TARGETS && plan.responds() {
            let xrcd = xrcd.insert(context.open_xrcd(XrcdShare::Private)?);
            let srq = pd.create_xrc_srq(&XrcSrqInit { srq, xrcd, cq: &recv_cqs[0] });
            Some(SharedQueue::Xrc(srq.context("cannot create the XRC SRQ")?))
        } else if !T::HAS_TARGETS && options.srq {
            Some(SharedQueue::Srq(pd.create_srq(&srq).context("cannot create the SRQ")?))
        } else {
            None
        };
        let receives = Receives::new(base + layout.srq());
        let mut shared = srq.map(|srq| Shared { srq, receives, lanes: HashMap::new() });
        let srqn = match &shared {
            Some(Shared { srq: SharedQueue::Xrc(srq), .. }) => srq.srq_num(),
            _ => 0,
        };
        let inline = plan.inline(context.driver());
        let cap = QpCap {
            max_send_wr: plan.tx_depth.max(SEND_SLOTS),
            max_recv_wr: if shared.is_some() { 0 } else { plan.rx_depth.max(1) },
            max_inline_data: inline,
            ..QpCap::default()
        };
        let mut lanes = Vec::new();
        let (mut local, mut targets) = (Vec::new(), Vec::new());
        for (index, id) in (0..).zip(ids) {
            let cq = |cqs: &[Cq]| index.min(cqs.len() - 1);
            let srq = match &shared {
                Some(Shared { srq: SharedQueue::Srq(srq), .. }) => Some(srq),
                _ => None,
            };
            let failed = || format!("cannot create queue pair {id}");
            let mut qp = None;
            if requests {
                let (send_cq, recv_cq) = (&send_cqs[cq(&send_cqs)], &recv_cqs[cq(&recv_cqs)]);
                let init = QpInit { cap, srq, ..QpInit::new(send_cq, recv_cq) };
                let qp = qp.insert(pd.create_qp::<T>(&init).with_context(failed)?);
                T::init(qp, options.ib_port, remote)?;
            }
            let mut target =
                xrcd.as_ref().map(|xrcd| xrcd.create_target(0)).transpose().with_context(failed)?;
            let receive_at = base + layout.receive(index as u64);
            let record = |qpn| -> Result<KeyRecord> {
                let (rkey, vaddr, out_reads) = (memory.rkey(), receive_at, out_reads.into());
                Ok(KeyRecord { qpn, psn: random_psn()?, rkey, vaddr, out_reads, srqn, ..*address })
            };
            if let Some(qp) = &qp {
                local.push(record(qp.qp_num())?);
            }
            if let Some(target) = &mut target {
                init_target(target, options.ib_port, remote)?;
                targets.push(record(target.qp_num())?);
            }
            let receiver = target.as_ref().map(XrcTarget::qp_num).or(qp.as_ref().map(Qp::qp_num));
            if let (Some(shared), Some(number)) = (&mut shared, receiver) {
                shared.lanes.insert(number, index);
            }
            lanes.push(Lane {
                qp,
                route: None,
                target,
                sends: Sends {
                    id,
                    at: base + layout.send(index as u64),
                    remote: Remote { addr: 0, rkey: 0 },
                    offset: 0,
                    posted: 0,
                    posted_bytes: 0,
                    completed: 0,
                    completed_bytes: 0,
                    signaled: 0,
                    signals: VecDeque::with_capacity(plan.tx_depth as usize + 1),
                },
                receives: Receives::new(receive_at),
                target_at: receive_at,
                received: 0,
                next_number: 0,
            });
        }
        let message = vec![0; inline.min(plan.largest()) as usize];
        Ok(Self {
            lanes,
            shared,
            send_cqs,
            recv_cqs,
            next_send_cq: 0,
            next_recv_cq: 0,
            channel,
            armed: false,
            memory,
            verifier: options.verify.then(Verifier::default),
            message,
            inline,
            local,
            targets,
            paths: Vec::new(),
            context: context.clone(),
            port: options.ib_port,
        })
    }

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
                prepare(verifier, &mut self.memory, &mut self.message, posting, sends, &next)?;
            }
            let Next { kind, addr, remote, flags, .. } = next;
            let sges = [Sge { addr, length: kind.size, lkey }];
            let bytes = [self.message.get(..kind.size as usize).unwrap_or_default()];
            let payload =
                if is_inline(kind, self.inline) { Payload::Inline(&bytes) } else { Payload::Sges(&sges) };
            let operation = T::operation(kind.verb, remote, route);
            // SAFETY: the range is in the send area of the lane, and the memory outlives the queue
            // pairs (field order). Completed reads and atomics change its bytes, and `Mr::write`
            // copies into it; nothing borrows them.
            unsafe { qp.post_send(&[SendRequest { wr_id, operation, flags, payload }]) }
        } else {
            let mut batch = qp.start_send();
            for _ in 0..count {
                let next = sends.next(posting, time);
                if let Some(verifier) = &mut self.verifier {
                    prepare(verifier, &mut self.memory, &mut self.message, posting, sends, &next)?;
                }
                let Next { kind, addr, remote, flags, .. } = next;
                let sges = [Sge { addr, length: kind.size, lkey }];
                let bytes = [self.message.get(..kind.size as usize).unwrap_or_default()];
                let payload =
                    if is_inline(kind, self.inline) { Payload::Inline(&bytes) } else { Payload::Sges(&sges) };
                let operation = T::operation(kind.verb, remote, route);
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
        let Some(completion) = poll(&mut self.send_cqs, &mut self.next_send_cq) else { return Ok(None) };
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
        let Some(completion) = poll(&mut self.recv_cqs, &mut self.next_recv_cq) else { return Ok(None) };
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
        let down = if status::may_be_link(status, self.context.driver()) {
            self.context.link_down(self.port)
        } else {
            None
        };
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
        if self.channel.is_some() {
            return self.sleep(watch, until);
        }
        match watch.spin()? {
            None | Some(Verdict::Wait) => Ok(()),
            Some(verdict) => Err(self.verdict(verdict)),
        }
    }

    /// Arms the CQs, and sleeps if they were armed.
    fn sleep(&mut self, watch: &mut Watch<'_>, until: Option<Duration>) -> Result<()> {
        if !self.armed {
            for cq in self.send_cqs.iter_mut().chain(&mut self.recv_cqs) {
                cq.arm(Arm::Any)?;
            }
            self.armed = true;
            return Ok(());
        }
        let channel = self.channel.as_ref().context("there is no completion channel")?;
        let verdict = watch.sleep(channel.as_fd(), until)?;
        while channel.try_wait()?.is_some() {
            self.armed = false;
        }
        match verdict {
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
        Ok(self.memory.write(start + size as usize - 1, &[byte])?)
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

/// Writes the data of a message, or spoils the memory that a read or an atomic replaces.
fn prepare(
    verifier: &mut Verifier,
    memory: &mut Mr<Buffer>,
    message: &mut [u8],
    posting: &Posting,
    sends: &Sends,
    next: &Next,
) -> Result<()> {
    let pattern = Pattern::new(sends.id, next.number);
    let start = (next.addr - memory.addr()) as usize;
    let bytes = start..start + next.kind.size as usize - usize::from(posting.polled);
    if matches!(next.kind.verb, Verb::Read | Verb::Atomic) {
        return verifier.spoil(memory, bytes, pattern);
    }
    let data = verifier.fill(memory, bytes, pattern)?;
    if let Some(message) = message.get_mut(..data.len()) {
        message.copy_from_slice(data);
    }
    Ok(())
}

/// The comparisons of `--verify`.
impl<T: Service> Endpoint<T> {
    /// Messages that were compared since the last call; `None` without `--verify`.
    pub(crate) fn take_compared(&mut self) -> Option<u64> {
        self.verifier.as_mut().map(|verifier| std::mem::take(&mut verifier.compared))
    }

    /// Writes the memory that the peer reads, writes or counts in: patterns of the places for reads,
    /// otherwise zeros.
    pub(crate) fn fill_targets(&mut self, posting: &Posting) -> Result<()> {
        let Some(verifier) = &mut self.verifier else { return Ok(()) };
        let reads = posting.order.kinds().iter().any(|kind| kind.verb == Verb::Read);
        let (base, steps) = (self.memory.addr(), posting.send_steps);
        for lane in &self.lanes {
            for place in 0..steps.places() {
                let start = (lane.target_at + steps.place_of(place) - base) as usize;
                let bytes = start..start + posting.size as usize;
                if reads {
                    verifier.fill(&mut self.memory, bytes, Pattern::new(lane.sends.id, place))?;
                } else {
                    self.memory.write(start, &vec![0; bytes.len()])?;
                }
            }
        }
        Ok(())
    }

    /// Compares what reads and atomics returned.
    fn compare_responses(&mut self, index: usize, posting: &Posting, numbers: Range<u64>) -> Result<()> {
        let Some(verifier) = &mut self.verifier else { return Ok(()) };
        let (sends, steps) = (&self.lanes[index].sends, posting.send_steps);
        for number in numbers {
            let kind = posting.order.kind(sends.id, number);
            let start = (sends.at - self.memory.addr() + steps.place_of(number)) as usize;
            let bytes = start..start + kind.size as usize;
            let (what, queue_pair) = ("the peer's memory, as read", sends.id);
            match kind.verb {
                Verb::Read => {
                    let place = Place { what, queue_pair, bytes };
                    verifier.compare(&self.memory, &place, number % steps.places())?;
                }
                // Nothing else adds to the counters.
                Verb::Atomic => {
                    let place = Place { what: "the value that an atomic returned", queue_pair, bytes };
                    verifier.compare_counter(&self.memory, &place, number, number / steps.places())?;
                }
                Verb::Send | Verb::Write | Verb::WriteImm => {}
            }
        }
        Ok(())
    }

    /// Compares a message that arrived: sent data in its receive at `offset`, or written data.
    fn compare_received(&mut self, index: usize, posting: &Posting, offset: u64, size: u32) -> Result<()> {
        let Some(verifier) = &mut self.verifier else { return Ok(()) };
        let lane = &mut self.lanes[index];
        let receives = self.shared.as_ref().map_or(&lane.receives, |shared| &shared.receives);
        let (at, what) = match posting.sends {
            true => (receives.at + offset + u64::from(T::HEADROOM), "a received message"),
            // The data lies where the peer wrote it, not in the receive.
            false => (lane.target_at + posting.send_steps.place_of(lane.next_number), "a written message"),
        };
        let start = (at - self.memory.addr()) as usize;
        let place = Place { what, queue_pair: lane.sends.id, bytes: start..start + size as usize };
        let number = match posting.lossy {
            true => verifier.compare_later(&self.memory, &place, lane.next_number)?,
            false => verifier.compare(&self.memory, &place, lane.next_number).map(|()| lane.next_number)?,
        };
        lane.next_number = number + 1;
        Ok(())
    }

    /// Compares the message of a latency test of writes, but for its last byte. The bytes may become
    /// visible after the last one, so a difference counts only if it stays.
    pub(crate) fn compare_write(&mut self, posting: &Posting, number: u64) -> Result<()> {
        let start = self.offset_of(self.lanes[0].target_at);
        let Some(verifier) = &mut self.verifier else { return Ok(()) };
        let bytes = start..start + posting.size as usize - 1;
        let place = Place { what: "a written message", queue_pair: self.lanes[0].sends.id, bytes };
        let deadline = std::time::Instant::now() + SETTLE;
        loop {
            match verifier.compare(&self.memory, &place, number) {
                Err(_) if std::time::Instant::now() < deadline => verifier.compared -= 1,
                result => return result,
            }
        }
    }

    /// Messages that each queue pair has sent.
    pub(crate) fn sent(&self) -> impl Iterator<Item = u64> {
        self.lanes.iter().map(|lane| lane.sends.completed)
    }

    /// Compares what the peer wrote or counted at the end of a run. `sent` are its messages on each
    /// queue pair.
    pub(crate) fn compare_targets(&mut self, posting: &Posting, sent: &[u64]) -> Result<()> {
        let Some(verifier) = self.verifier.as_mut().filter(|_| !posting.polled) else { return Ok(()) };
        let (base, steps) = (self.memory.addr(), posting.send_steps);
        for (lane, &sent) in self.lanes.iter().zip(sent) {
            let queue_pair = lane.sends.id;
            for place in 0..steps.places().min(sent) {
                // The last message in this place.
                let number = place + (sent - 1 - place) / steps.places() * steps.places();
                let kind = posting.order.kind(queue_pair, number);
                let start = (lane.target_at + steps.place_of(place) - base) as usize;
                let bytes = start..start + kind.size as usize;
                match kind.verb {
                    Verb::Write => {
                        let place = Place { what: "memory that the peer wrote", queue_pair, bytes };
                        verifier.compare(&self.memory, &place, number)?;
                    }
                    Verb::Atomic => {
                        let place = Place { what: "the sum of the peer's atomics", queue_pair, bytes };
                        let count = (sent - 1 - number % steps.places()) / steps.places() + 1;
                        verifier.compare_counter(&self.memory, &place, number, count)?;
                    }
                    Verb::Send | Verb::WriteImm | Verb::Read => {}
                }
            }
        }
        Ok(())
    }
}

/// Whether a message is sent as inline data.
#[inline]
fn is_inline(kind: Kind, inline: u32) -> bool {
    inline > 0 && kind.size <= inline && !matches!(kind.verb, Verb::Read | Verb::Atomic)
}

/// The time in which all bytes of a message become visible after its last one.
const SETTLE: Duration = Duration::from_millis(200);

/// The index of the lane in the low half of a `wr_id`.
#[inline]
fn lane_of(wr_id: u64) -> usize {
    wr_id as u32 as usize
}

/// Polls one completion, starting with the CQ after the last one that had some. Inlined, so that fields
/// that the caller does not use are not computed.
#[inline(always)]
fn poll(cqs: &mut [Cq], next: &mut usize) -> Option<WorkCompletion> {
    for _ in 0..cqs.len() {
        let completion = cqs[*next].poll_one();
        if completion.is_some() {
            return completion;
        }
        *next = if *next + 1 == cqs.len() { 0 } else { *next + 1 };
    }
    None
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
    use bareverbs::values::Mtu;
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
