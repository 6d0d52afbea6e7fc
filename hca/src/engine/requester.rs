//! The requester: fetches WQEs, packetizes messages, tracks unacknowledged packets and retries
//! them.

mod complete;
mod packetize;
mod response;

use std::collections::VecDeque;

use super::core::Core;
use super::cq::Syndrome;
use super::eq::EventKind;
use super::packet::{PSN_MASK, psn_distance};
use super::paging::PageFaultInfo;
use super::qp::{Qp, QpAttributes, State};
use super::recorder::Queue;
use super::wqe::{self, Action, BLOCK, Fence, Segment, Work, units};
pub(crate) use complete::flush;
use complete::{fail, fatal_error};

/// Maximum number of unacknowledged packets.
const WINDOW: i32 = 128;
/// Maximum message size in bytes.
pub(crate) const MAX_MESSAGE: u64 = 1 << 30;

/// A WQE in execution.
#[derive(Clone, Debug)]
struct InflightWqe {
    wqe: u16,
    blocks: u16,
    opcode: u8,
    signaled: bool,
    response: Response,
    first_psn: u32,
    packets: u32,
    length: u32,
    done: bool,
    failure: Option<Syndrome>,
    /// Response data for scatter to CQE.
    inline_response: Box<[u8]>,
}

/// The response that completes a WQE.
#[derive(Clone, Debug)]
enum Response {
    /// None: it completes when it is sent.
    None,
    /// An ACK.
    Acknowledge,
    /// READ responses: the SGEs, and the number of packets received.
    Read { places: Box<[Segment]>, received: u32 },
    /// An atomic response of eight bytes.
    Atomic { places: Box<[Segment]> },
}

impl InflightWqe {
    fn last_psn(&self) -> u32 {
        self.first_psn.wrapping_add(self.packets.saturating_sub(1)) & PSN_MASK
    }

    fn awaits_data(&self) -> bool {
        !self.done && matches!(self.response, Response::Read { .. } | Response::Atomic { .. })
    }
}

/// State of the requester.
#[derive(Debug, Default)]
pub(crate) struct Requester {
    /// Index of the next WQE to fetch.
    next_wqe: u16,
    /// The driver's producer index as last read from the doorbell record.
    posted: u16,
    inflight: VecDeque<InflightWqe>,
    /// The next packet to send: index in `inflight`, packet number within that WQE.
    cursor: (usize, u32),
    /// A WQE that was written through a BlueFlame buffer.
    bf_wqe: Option<Box<[u8]>>,
    /// Index of the WQE that `work` contains.
    loaded: Option<u16>,
    pub(super) work: Work,
    next_psn: u32,
    oldest_psn: u32,
    retries: u8,
    rnr_retries: u8,
    /// The oldest unacknowledged PSN at the last retry. Further NAKs and gaps of the same loss are
    /// ignored.
    recovering: Option<u32>,
    /// Expiry of the ACK timeout.
    pub(crate) deadline: Option<u64>,
    /// End of the delay after an RNR NAK.
    pub(crate) rnr_until: Option<u64>,
    /// Whether fetching is stopped: a failed WQE waits for the completion of its predecessors.
    blocked: bool,
    /// Whether the SQ_DRAINED event was raised.
    pub(crate) drained: bool,
    /// The page fault that the requester waits for. Nothing is sent until it is answered.
    fault: Option<PendingFault>,
}

/// An unanswered page fault.
#[derive(Clone, Copy, Debug)]
struct PendingFault {
    token: u32,
    /// Index of the WQE whose SGE lacks the page.
    wqe: u16,
    /// Whether a response was dropped meanwhile, so that the request must be sent again.
    again: bool,
}

impl Requester {
    /// Applies the attributes of the transition to RTS.
    pub(crate) fn start(&mut self, attributes: &QpAttributes) {
        self.next_psn = attributes.send_psn;
        self.oldest_psn = attributes.send_psn;
        self.refill(attributes);
    }

    /// Stores a WQE that was written through a BlueFlame buffer.
    pub(crate) fn set_bf_wqe(&mut self, wqe: Box<[u8]>) {
        self.bf_wqe = Some(wqe);
    }

    /// Takes the BlueFlame WQE if it has this index and is complete.
    fn take_bf_wqe(&mut self, index: u16) -> Option<Box<[u8]>> {
        let wqe = self.bf_wqe.as_ref()?;
        let control: [u8; 16] = wqe.get(..16)?.try_into().ok()?;
        let fits = u16::from_be_bytes([control[1], control[2]]) == index
            && usize::from(units(&control)) * 16 <= wqe.len();
        if fits { self.bf_wqe.take() } else { None }
    }

    fn refill(&mut self, attributes: &QpAttributes) {
        self.retries = attributes.retry_count;
        self.rnr_retries = attributes.rnr_retry;
    }

    /// Whether sending is paused by an RNR delay or a page fault.
    fn paused(&self) -> bool {
        self.rnr_until.is_some() || self.fault.is_some()
    }

    fn outstanding(&self) -> i32 {
        psn_distance(self.cursor_psn(), self.oldest_psn)
    }

    fn cursor_psn(&self) -> u32 {
        match self.inflight.get(self.cursor.0) {
            Some(inflight) => inflight.first_psn.wrapping_add(self.cursor.1) & PSN_MASK,
            None => self.next_psn,
        }
    }

    fn data_under_way(&self) -> usize {
        self.inflight.iter().filter(|inflight| inflight.awaits_data()).count()
    }

    /// The WQE counters of QUERY_QP: completed and posted.
    pub(crate) fn counters(&self) -> (u16, u16) {
        (self.inflight.front().map_or(self.next_wqe, |inflight| inflight.wqe), self.posted)
    }

    /// The next PSN and the last acknowledged one.
    pub(crate) fn sequence(&self) -> (u32, u32) {
        (self.next_psn, self.oldest_psn.wrapping_sub(1) & PSN_MASK)
    }
}

/// Result of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// No work until the next event.
    Idle,
    /// The budget is exhausted and work is left.
    More,
}

/// Sends up to `budget` packets.
pub(crate) fn turn(qp: &mut Qp, core: &mut Core, budget: u32) -> Turn {
    let Some(log_size) = qp.setup.log_send_size else { return Turn::Idle };
    match qp.state {
        State::ReadyToSend => {}
        State::SendQueueDrained => {
            return drain(qp, core, log_size, budget);
        }
        State::Error | State::SendQueueError => {
            flush(qp, core);
            return Turn::Idle;
        }
        _ => return Turn::Idle,
    }
    match core.memory.read_be32(qp.setup.doorbell.wrapping_add(4)) {
        Ok(posted) => qp.requester.posted = posted as u16,
        Err(_) => {
            fatal_error(qp, core);
            return Turn::Idle;
        }
    }
    for _ in 0..budget {
        if qp.state != State::ReadyToSend || qp.requester.paused() {
            return Turn::Idle;
        }
        if reliable(qp) && qp.requester.outstanding() >= WINDOW {
            return Turn::Idle;
        }
        let fresh = qp.requester.cursor.0 >= qp.requester.inflight.len();
        if fresh && !begin_next(qp, core, log_size) {
            return Turn::Idle;
        }
        packetize::next(qp, core, log_size);
    }
    Turn::More
}

/// SQD: sends the rest of the WQEs in execution and starts no new one.
fn drain(qp: &mut Qp, core: &mut Core, log_size: u8, budget: u32) -> Turn {
    for _ in 0..budget {
        let waits = qp.requester.paused() || reliable(qp) && qp.requester.outstanding() >= WINDOW;
        if qp.state != State::SendQueueDrained
            || waits
            || qp.requester.cursor.0 >= qp.requester.inflight.len()
        {
            break;
        }
        packetize::next(qp, core, log_size);
    }
    let begun = qp.requester.cursor.0 < qp.requester.inflight.len();
    if qp.state == State::SendQueueDrained && qp.requester.inflight.is_empty() && !qp.requester.drained {
        qp.requester.drained = true;
        core.qp_event(EventKind::SendQueueDrained, qp.number);
    }
    if begun && !qp.requester.paused() && qp.requester.outstanding() < WINDOW {
        Turn::More
    } else {
        Turn::Idle
    }
}

fn reliable(qp: &Qp) -> bool {
    qp.setup.service.transport().is_some_and(super::packet::Transport::reliable)
}

/// Reads a WQE into `work`.
fn load(
    qp: &mut Qp,
    core: &Core,
    log_size: u8,
    index: u16,
) -> Result<Result<(), wqe::Malformed>, crate::memory::DmaFault> {
    let blocks = 1u64 << log_size;
    let first = u64::from(index) & (blocks - 1);
    let read = |from: u64, to: &mut [u8]| {
        let until_wrap = (((blocks - from) as usize) * BLOCK).min(to.len());
        let (before, after) = to.split_at_mut(until_wrap);
        qp.setup.ring.read(&core.memory, qp.setup.send_offset + from * BLOCK as u64, before)?;
        if after.is_empty() { Ok(()) } else { qp.setup.ring.read(&core.memory, qp.setup.send_offset, after) }
    };
    let mut control = [0; 16];
    let bf_wqe = qp.requester.take_bf_wqe(index);
    match &bf_wqe {
        Some(wqe) => control.copy_from_slice(&wqe[..16]),
        None => read(first, &mut control)?,
    }
    let work = &mut qp.requester.work;
    qp.requester.loaded = None;
    work.begin(index, &control);
    let length = usize::from(units(&control)) * 16;
    if length < 16 || usize::from(work.blocks) > blocks as usize {
        work.blocks = 1;
        return Ok(Err(wqe::Malformed));
    }
    work.bytes.resize(length, 0);
    match &bf_wqe {
        Some(wqe) => work.bytes.copy_from_slice(&wqe[..length]),
        None => read(first, &mut work.bytes)?,
    }
    // The driver may have changed the control segment since. The checked copy is used.
    work.bytes[..16].copy_from_slice(&control);
    let parsed = work.check_control(qp.number).and_then(|()| work.parse(qp.setup.service));
    if parsed.is_ok() {
        qp.requester.loaded = Some(index);
    }
    Ok(parsed)
}

/// Starts the next WQE. Returns `false` if there is none or it must wait.
fn begin_next(qp: &mut Qp, core: &mut Core, log_size: u8) -> bool {
    let index = qp.requester.next_wqe;
    if qp.requester.blocked || index == qp.requester.posted {
        return false;
    }
    let parsed =
        if qp.requester.loaded == Some(index) { Ok(Ok(())) } else { load(qp, core, log_size, index) };
    let Ok(parsed) = parsed else {
        fatal_error(qp, core);
        return false;
    };
    let (service, max_rd_atomic) = (qp.setup.service, usize::from(qp.attributes.max_rd_atomic.max(1)));
    let requester = &mut qp.requester;
    let work = &requester.work;
    let available = requester.posted.wrapping_sub(index);
    let failure = match parsed {
        Err(wqe::Malformed) => Some(Syndrome::LocalQpOperation),
        Ok(()) if work.blocks > available => Some(Syndrome::LocalQpOperation),
        Ok(()) if work.length > MAX_MESSAGE => Some(Syndrome::LocalLength),
        Ok(())
            if service.transport() == Some(super::packet::Transport::Ud)
                && work.length > u64::from(qp.attributes.mtu) =>
        {
            Some(Syndrome::LocalLength)
        }
        Ok(()) => None,
    };
    let wants_data = failure.is_none() && matches!(work.action, Action::Read | Action::Atomic { .. });
    let under_way = requester.data_under_way();
    let fenced = match work.fence {
        // UMRs execute in order, so none is ever outstanding.
        Fence::None | Fence::KeyUpdates => false,
        Fence::Answers => under_way > 0,
        Fence::Everything => requester.inflight.iter().any(|inflight| !inflight.done),
    };
    if fenced || wants_data && under_way >= max_rd_atomic {
        return false;
    }
    let places = || work.segments.clone().into_boxed_slice();
    let (response, packets) = match work.action {
        _ if failure.is_some() => (Response::None, 0),
        Action::Nop | Action::Umr | Action::Frame(_) => (Response::None, 0),
        Action::Read => {
            (Response::Read { places: places(), received: 0 }, packets_of(work.length, qp.attributes.mtu))
        }
        Action::Atomic { .. } => (Response::Atomic { places: places() }, 1),
        Action::Send { .. } | Action::Write { .. } => match service.transport() {
            Some(super::packet::Transport::Rc | super::packet::Transport::Xrc) => {
                (Response::Acknowledge, packets_of(work.length, qp.attributes.mtu))
            }
            Some(super::packet::Transport::Uc) => {
                (Response::None, packets_of(work.length, qp.attributes.mtu))
            }
            _ => (Response::None, 1),
        },
    };
    core.recording.record(Queue::Send(qp.number), index, &work.bytes);
    // The size of a WQE is limited to the posted blocks.
    let blocks = work.blocks.min(available);
    requester.inflight.push_back(InflightWqe {
        wqe: index,
        blocks,
        opcode: work.opcode,
        signaled: work.signaled,
        response,
        first_psn: requester.next_psn,
        packets,
        length: work.length as u32,
        done: false,
        failure: None,
        inline_response: Box::default(),
    });
    requester.next_psn = requester.next_psn.wrapping_add(packets) & PSN_MASK;
    requester.next_wqe = index.wrapping_add(blocks);
    requester.cursor = (requester.inflight.len() - 1, 0);
    if let Some(syndrome) = failure {
        fail(qp, core, qp.requester.inflight.len() - 1, syndrome);
        return false;
    }
    true
}

fn packets_of(length: u64, mtu: u32) -> u32 {
    length.div_ceil(u64::from(mtu.max(1))).max(1) as u32
}

/// Leaves SQE. The WQEs posted in SQE have been flushed.
pub(crate) fn recover(qp: &mut Qp) {
    qp.requester.blocked = false;
    qp.requester.refill(&qp.attributes);
}

/// The ACK timeout of a code in nanoseconds: 4.096 µs × 2^code. `None` for 0 (infinite).
fn ack_timeout(code: u8) -> Option<u64> {
    (code != 0).then(|| 4096u64 << code)
}

/// Handles expired timers.
pub(crate) fn expire(qp: &mut Qp, core: &mut Core) {
    let now = core.now;
    if qp.requester.rnr_until.is_some_and(|until| until <= now) {
        qp.requester.rnr_until = None;
        qp.requester.deadline = None;
    }
    if qp.requester.deadline.is_some_and(|deadline| deadline <= now) {
        qp.requester.deadline = None;
        if qp.requester.fault.is_some() {
            return;
        }
        let set = qp.attributes.counters;
        core.count(set, |counters| &mut counters.timeouts);
        qp.requester.recovering = None;
        response::retry(qp, core);
    }
}

/// Raises a page fault for an SGE of a WQE and waits for the answer. Without a page-fault EQ the
/// WQE fails with `LocalProtection`.
fn wait_for_page(
    qp: &mut Qp,
    core: &mut Core,
    which: usize,
    (kind, committed, packet): (u8, u32, usize),
    again: bool,
) {
    let Some(inflight) = qp.requester.inflight.get(which) else { return };
    let wqe = inflight.wqe;
    let info = PageFaultInfo::List { kind, queue: qp.number, index: wqe };
    match core.page_fault(qp.number, info, committed, packet) {
        Some(token) => qp.requester.fault = Some(PendingFault { token, wqe, again }),
        None => fail(qp, core, which, Syndrome::LocalProtection),
    }
}

/// Continues after the answer to a page fault, or fails the WQE.
pub(crate) fn resume(qp: &mut Qp, core: &mut Core, token: u32, failed: bool) {
    let Some(fault) = qp.requester.fault.take_if(|fault| fault.token == token) else { return };
    let faulted =
        qp.requester.inflight.iter().position(|inflight| inflight.wqe == fault.wqe && !inflight.done);
    if let Some(which) = faulted.filter(|_| failed) {
        fail(qp, core, which, Syndrome::LocalProtection);
    } else if fault.again {
        response::request_again(qp);
    }
}

pub(crate) use response::receive;

impl Requester {
    /// Advances past a WQE that sends no packets.
    pub(crate) fn cursor_passed(&mut self) {
        self.cursor = (self.cursor.0 + 1, 0);
    }
}

pub(crate) use packetize::gather;
