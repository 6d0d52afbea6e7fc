//! The endpoint (queue pairs and memory) and the run.

use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use bareverbs::cq::WorkCompletion;
use bareverbs::device::LinkLayer;
use bareverbs::qp::{Payload, RecvRequest};
use bareverbs::values::{GidIndex, Mtu};
use bareverbs::{Access, Gid, Pd, WcStatus};

use super::check::{Checker, FILL, Scheme};
use super::latency::{Latency, LatencyFigures};
use super::memory::Memory;
use super::queues::{Queues, Route};
use super::record::Record;
use super::run_error::{Failure, Progress, RunError};
use super::state::{Actions, RECV_ID, RunState, SEND_ID};
use super::wait::{CompletionWaiter, TimedCompletion, WaitMode};
use crate::cli::pingpong::{Config, Kind};
use crate::output;
use crate::session::path::{LocalPort, ah_attr, random_psn};
use crate::session::{Role, status};
use crate::signal::Stop;

/// Timeout of the probe of the peer's queue pair: many times the 2 s of all retries, which take longer
/// on a busy machine.
const PROBE_TIMEOUT: Duration = Duration::from_secs(20);
/// Timeout of the flush of a failed queue pair's receives.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);
/// A buffer of `size` bytes, or an error if memory is short.
fn filled(size: usize, fill: u8) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(size).with_context(|| format!("out of memory: a message of {size} bytes"))?;
    bytes.resize(size, fill);
    Ok(bytes)
}

/// One side of a run: its queue pairs with their objects.
pub(crate) struct Endpoint<'a, Q> {
    config: Config<'a>,
    side: Role,
    stop: &'a Stop,
    waiter: CompletionWaiter<'a>,
    /// Declared before the memory, so that the queue pairs are destroyed first.
    queues: Q,
    memory: Memory,
    layout: Layout,
    /// Whether messages are sent as inline data.
    inline: bool,
    /// A message buffer outside of registered memory, for data that is generated, checked or sent
    /// inline.
    message: Vec<u8>,
    checker: Option<Checker>,
    link_layer: LinkLayer,
    gid_index: Option<GidIndex>,
    local: Vec<Record>,
    /// Messages posted and received, by queue pair.
    posted: Vec<u64>,
    received: Vec<u64>,
    /// Intervals between received messages, with `-t`.
    latency: Option<Latency>,
}

/// The measurements of a run.
pub(crate) struct Outcome {
    pub(crate) time: Duration,
    pub(crate) events: Option<u64>,
    pub(crate) latency: Option<LatencyFigures>,
}

/// The offsets in the memory at which messages are sent and received.
///
/// Without `-c` both are the same bytes, so a received message is sent back, as in the C programs.
/// With `-c` on a shared receive queue, each receive has bytes of its own, because other messages
/// arrive before it is checked.
#[derive(Clone, Copy, Debug)]
struct Layout {
    headroom: usize,
    size: usize,
    receives: usize,
    distance: usize,
    slots: u32,
}

impl Layout {
    fn new(config: &Config<'_>, headroom: usize) -> Self {
        let size = config.size as usize;
        let stride = (headroom + size).next_multiple_of(rustix::param::page_size());
        match (config.common.chk, config.num_qp) {
            (false, _) => Self { headroom, size, receives: 0, distance: 0, slots: 1 },
            (true, 1) => Self { headroom, size, receives: stride, distance: 0, slots: 1 },
            (true, _) => {
                Self { headroom, size, receives: stride, distance: stride, slots: config.common.rx_depth }
            }
        }
    }

    fn bytes(&self) -> Option<usize> {
        let slots = self.distance.checked_mul(self.slots as usize - 1)?;
        slots.checked_add(self.receives + self.headroom + self.size)
    }

    fn outgoing(&self) -> Range<usize> {
        self.headroom..self.headroom + self.size
    }

    /// The memory range that a receive posts.
    fn receive(&self, slot: u32) -> Range<usize> {
        let start = self.receives + self.distance * slot as usize;
        start..start + self.headroom + self.size
    }

    /// The offset of the message in that range.
    fn incoming(&self, slot: u32) -> usize {
        self.receive(slot).start + self.headroom
    }
}

/// Registers the memory that the options name.
fn register(config: &Config<'_>, pd: &Pd, bytes: usize, fill: u8) -> Result<Memory> {
    let mut access = Access::LOCAL_WRITE;
    access.set(Access::ON_DEMAND, config.odp);
    let memory = match config {
        Config { dm: true, .. } => Memory::device(pd, bytes, fill)?,
        Config { iodp: true, .. } => Memory::implicit_odp(pd, bytes, fill)?,
        _ => Memory::host(pd, bytes, fill, access)?,
    };
    if config.prefetch
        && let Err(error) = memory.prefetch()
    {
        output::diagnostic(&format!("Couldn't prefetch MR. Continue anyway: {error}"));
    }
    Ok(memory)
}

/// Whether the `wr_id` is that of a send, or of the probe of the peer.
fn is_send(wr_id: u64) -> bool {
    u64::from(wr_id as u32) != RECV_ID
}

/// The `wr_id` of a receive into this slot. Its low 32 bits are the `wr_id` of the C programs.
fn recv_id(slot: u32) -> u64 {
    u64::from(slot) << 32 | RECV_ID
}

impl<'a, Q: Queues> Endpoint<'a, Q> {
    /// Creates all objects, brings the queue pairs to INIT and posts the receives.
    pub(crate) fn new(config: Config<'a>, port: &LocalPort, stop: &'a Stop) -> Result<Self> {
        let (common, context) = (config.common, &port.context);
        let side = if common.host.is_some() { Role::Client } else { Role::Server };
        let size = config.size as usize;
        let depth = common.rx_depth;
        let latency = match config.ts {
            true => Some(Latency::new(context.query_device()?.completion_timestamp_mask)),
            false => None,
        };
        let fill = if config.kind == Kind::Srq { 0 } else { FILL };
        let pd = context.alloc_pd()?;

        let layout = Layout::new(&config, Q::HEADROOM);
        let bytes = layout.bytes().context("the buffer size overflows")?;
        let memory = register(&config, &pd, bytes, fill)?;

        let mode = WaitMode { events: common.events, timestamps: config.ts };
        let waiter = CompletionWaiter::new(context, depth + config.num_qp, config.num_qp, mode, stop)?;
        let queues = Q::create(&config, &pd, &waiter.cq)?;
        // Messages in device memory are sent from there.
        let inline = queues.max_inline() as usize >= size && !config.dm;

        let numbers = queues.qp_nums();
        let local = numbers
            .iter()
            .map(|&qpn| Ok(Record { lid: port.attr.lid, qpn, psn: random_psn()?, gid: port.record_gid() }));
        let scheme = match config.kind {
            Kind::Srq => Scheme::Identical,
            _ => Scheme::Distinct(common.iters.into()),
        };
        let checker = match common.chk {
            true => Some(Checker::new(side, scheme, filled(size, fill)?)),
            false => None,
        };
        let mut endpoint = Self {
            config,
            side,
            stop,
            waiter,
            queues,
            memory,
            layout,
            inline,
            message: if inline || common.chk { filled(size, fill)? } else { Vec::new() },
            checker,
            link_layer: port.attr.link_layer,
            gid_index: port.gid.map(|(index, _)| index),
            local: local.collect::<Result<_>>()?,
            posted: vec![0; numbers.len()],
            received: vec![0; numbers.len()],
            latency,
        };
        endpoint.post_all_recvs()?;
        endpoint.waiter.arm()?;
        Ok(endpoint)
    }

    pub(crate) fn side(&self) -> Role {
        self.side
    }

    /// The addresses of these queue pairs.
    pub(crate) fn local(&self) -> &[Record] {
        &self.local
    }

    pub(crate) fn inline(&self) -> bool {
        self.inline
    }

    pub(crate) fn checker(&self) -> Option<&Checker> {
        self.checker.as_ref()
    }

    /// Brings the queue pairs to RTS, connected to the peer's.
    pub(crate) fn connect(&mut self, remote: &[Record]) -> Result<()> {
        let common = self.config.common;
        let routes = self.local.iter().zip(remote).map(|(local, remote)| {
            let gid = remote.has_gid().then(|| Gid(remote.gid.octets()));
            anyhow::ensure!(
                self.link_layer != LinkLayer::ETHERNET || gid.is_some(),
                "the peer sent no GID, which RoCE requires: set its GID index (-g)"
            );
            Ok(Route {
                address: ah_attr((common.ib_port, common.sl), self.gid_index, remote.lid, gid)?,
                mtu: self.config.mtu.unwrap_or(Mtu::Mtu256),
                remote_qpn: remote.qpn,
                remote_psn: remote.psn,
                local_psn: local.psn,
            })
        });
        let routes: Vec<_> = routes.collect::<Result<_>>()?;
        self.queues.connect(&routes)
    }

    /// Runs until all messages are sent and received.
    pub(crate) fn run(&mut self) -> Result<Outcome> {
        let (common, queue_pairs) = (self.config.common, self.local.len());
        let mut state = RunState::new(self.side, common.iters.into(), common.rx_depth, queue_pairs);
        if self.side == Role::Client {
            (0..queue_pairs).try_for_each(|place| self.post_send(place))?;
        }
        let start = Instant::now();
        while !state.is_over() {
            let Some(completion) = self.waiter.next()? else {
                return Err(self.probe_peer(&mut state)?.into());
            };
            self.on_completion(&mut state, completion)?;
        }
        let time = start.elapsed();
        let latency = self.latency.and_then(|latency| latency.figures());
        Ok(Outcome { time, events: self.waiter.events(), latency })
    }

    /// Counts a completion, checks a received message, and posts the requests that are due.
    fn on_completion(&mut self, state: &mut RunState, (completion, time): TimedCompletion) -> Result<()> {
        let WorkCompletion { wr_id, status, byte_len, qp_num, .. } = completion;
        if status != WcStatus::SUCCESS {
            let (cause, progress) = self.fail_and_drain(state, Some((status, wr_id)));
            let (status, wr_id) = cause.unwrap_or((status, wr_id));
            return Err(self.status_error(status, wr_id, progress).into());
        }
        let place = self.local.iter().position(|local| local.qpn == qp_num);
        let place = place.with_context(|| format!("a completion for unknown QP {qp_num:#x}"))?;
        let slot = (wr_id >> 32) as u32;
        let Actions { recvs, send } = match u64::from(wr_id as u32) {
            SEND_ID => state.on_send(place),
            RECV_ID => {
                self.check(place, slot, byte_len)?;
                self.received[place] += 1;
                if let (Some(latency), Some(time)) = (&mut self.latency, time) {
                    latency.note(time);
                }
                state.on_recv(place)
            }
            other => anyhow::bail!("a completion for unknown wr_id {other}"),
        };
        match (self.layout.slots, wr_id == SEND_ID) {
            (1, _) => self.post_recvs(recvs)?,
            // The slot's memory is free again.
            (_, false) => self.post_slots(slot..slot + 1)?,
            (_, true) => {}
        }
        if send {
            self.post_send(place)?;
        }
        Ok(())
    }

    /// Checks a received message, with `-c`.
    fn check(&mut self, place: usize, slot: u32, byte_len: u32) -> Result<()> {
        let Some(checker) = &mut self.checker else { return Ok(()) };
        let came = (byte_len as usize).saturating_sub(Q::HEADROOM);
        anyhow::ensure!(
            came == self.layout.size,
            "received a message of {came} bytes instead of {}: both sides need the same -s",
            self.layout.size
        );
        let at = self.layout.incoming(slot);
        self.memory.read(at, &mut self.message)?;
        checker.verify(self.received[place], &self.message)?;
        // Every byte is inverted, so the next message must overwrite it, even if the messages are
        // equal.
        self.message.iter_mut().for_each(|byte| *byte = !*byte);
        Ok(self.memory.write(at, &self.message)?)
    }

    /// Probes the peer after a timeout, and returns why no request completes.
    ///
    /// If the peer exits during its turn, all messages of this side are acknowledged, so no retry
    /// count can be exceeded. The probe is a write of 0 bytes, which needs an acknowledgement. A
    /// running peer may reject the write. This ends the run, which has failed already.
    fn probe_peer(&mut self, state: &mut RunState) -> Result<RunError> {
        let waited = self.waiter.timeout();
        if !Q::DETECTS_PEER_LOSS {
            let (_, progress) = self.fail_and_drain(state, None);
            return Ok(match self.waiter.context().link_down(self.config.common.ib_port) {
                Some(down) => RunError::LinkDown { waited, down, progress },
                None => RunError::PeerLost { waited, progress },
            });
        }
        for place in 0..self.local.len() {
            if state.start_sending(place) {
                self.queues.probe(place)?;
            }
        }
        let deadline = Instant::now() + PROBE_TIMEOUT;
        let answer = loop {
            match self.waiter.cq.poll_one() {
                Some(completion) => break Some((completion.status, completion.wr_id)),
                None if Instant::now() >= deadline => break None,
                None => self.stop.check()?,
            }
        };
        Ok(match self.fail_and_drain(state, answer) {
            (None, progress) => RunError::ProbeUnanswered { waited, probe: PROBE_TIMEOUT, progress },
            // Only a running peer can accept or reject the write.
            (
                Some((WcStatus::SUCCESS | WcStatus::REM_INV_REQ_ERR | WcStatus::REM_ACCESS_ERR, _)),
                progress,
            ) => RunError::PeerStalled { waited, progress },
            (Some((status, wr_id)), progress) => self.status_error(status, wr_id, progress),
        })
    }

    fn status_error(&self, status: WcStatus, wr_id: u64, progress: Progress) -> RunError {
        let port = self.config.common.ib_port;
        let cause = status::cause(self.waiter.context(), port, status, is_send(wr_id));
        RunError::Status { status, wr_id: wr_id as u32, cause, progress }
    }

    /// Brings the queue pairs to ERR and polls the flushed requests. Returns the first failure that
    /// is not a flush error, beginning with `cause`. Without one, returns `cause`.
    fn fail_and_drain(
        &mut self,
        state: &RunState,
        mut cause: Option<Failure>,
    ) -> (Option<Failure>, Progress) {
        let is_flush = |&(status, _): &Failure| status == WcStatus::WR_FLUSH_ERR;
        let mut flushed = u64::from(cause.as_ref().is_some_and(is_flush));
        let mut taken = u64::from(cause.is_some());
        self.queues.set_error();
        let receives = if self.queues.flushes_receives() { state.outstanding_recvs() } else { 0 };
        let outstanding = state.outstanding_sends() + receives;
        let deadline = Instant::now() + FLUSH_TIMEOUT;
        while taken < outstanding && Instant::now() < deadline {
            let Some(WorkCompletion { status, wr_id, .. }) = self.waiter.cq.poll_one() else { continue };
            taken += 1;
            if status == WcStatus::WR_FLUSH_ERR {
                flushed += 1;
            } else if status != WcStatus::SUCCESS && cause.as_ref().is_none_or(is_flush) {
                cause = Some((status, wr_id));
            }
        }
        (cause, Progress { sent: state.sent(), received: state.received(), flushed })
    }

    fn post_all_recvs(&mut self) -> Result<()> {
        match self.layout.slots {
            1 => self.post_recvs(self.config.common.rx_depth),
            slots => self.post_slots(0..slots),
        }
    }

    /// Posts receives that share their memory.
    fn post_recvs(&mut self, count: u32) -> Result<()> {
        let sges = [self.memory.sge(self.layout.receive(0))?];
        let requests = [RecvRequest { wr_id: recv_id(0), sges: &sges }; 64];
        let mut left = count as usize;
        while left > 0 {
            let batch = &requests[..left.min(requests.len())];
            // SAFETY: the region outlives the queue pairs (field order). Its bytes are only copied,
            // never borrowed.
            unsafe { self.queues.post_recv(batch) }.context("cannot post receives")?;
            left -= batch.len();
        }
        Ok(())
    }

    /// Posts receives, each with its own memory.
    fn post_slots(&mut self, slots: Range<u32>) -> Result<()> {
        for slot in slots {
            let sges = [self.memory.sge(self.layout.receive(slot))?];
            let request = RecvRequest { wr_id: recv_id(slot), sges: &sges };
            // SAFETY: the region outlives the queue pairs (field order). Its bytes are only copied.
            unsafe { self.queues.post_recv(&[request]) }.context("cannot post receives")?;
        }
        Ok(())
    }

    /// Posts a queue pair's next message.
    fn post_send(&mut self, place: usize) -> Result<()> {
        let outgoing = self.layout.outgoing();
        if let Some(checker) = &self.checker {
            checker.fill(self.posted[place], &mut self.message);
            if !self.inline {
                self.memory.write(outgoing.start, &self.message)?;
            }
        } else if self.inline {
            self.memory.read(outgoing.start, &mut self.message)?;
        }
        self.posted[place] += 1;

        let sges = [self.memory.sge(outgoing)?];
        let bytes = [&self.message[..]];
        let payload = if self.inline { Payload::Inline(&bytes) } else { Payload::Sges(&sges) };
        // SAFETY: the region outlives the queue pairs (field order). Its bytes do not change until
        // the send completes, because the peer sends nothing before it has this message. A peer
        // that sends earlier, or a message on another queue pair, only changes the data that the
        // peer itself receives.
        unsafe { self.queues.post_send(place, payload) }.context("cannot post a send")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::pingpong::Pingpong;
    use crate::cli::{Cli, Command};
    use clap::Parser;

    fn layout(line: &[&str], headroom: usize) -> Layout {
        let line = ["bareverbs", "pingpong"].iter().chain(line);
        let Command::Pingpong(Pingpong::SingleClient(options)) = Cli::try_parse_from(line).unwrap().command
        else {
            panic!("not a ping-pong")
        };
        Layout::new(&options.config(), headroom)
    }

    #[test]
    fn unchecked_messages_are_echoed_from_the_same_memory() {
        let plain = layout(&["ud", "-s", "100"], 40);
        assert_eq!((plain.outgoing(), plain.receive(0), plain.incoming(0)), (40..140, 0..140, 40));
        assert_eq!(plain.bytes(), Some(140));
        let checked = layout(&["ud", "-s", "100", "-c"], 40);
        assert_eq!((checked.outgoing(), checked.receive(0)), (40..140, 4096..4236));
    }

    #[test]
    fn checked_srq_receives_have_separate_slots() {
        let several = layout(&["srq", "-c", "-s", "5000", "-r", "20"], 0);
        assert_eq!(several.slots, 20);
        assert_eq!((several.outgoing(), several.receive(0)), (0..5000, 8192..13_192));
        for slot in 1..20 {
            assert!(several.receive(slot).start >= several.receive(slot - 1).end);
        }
        assert_eq!(several.bytes(), Some(several.receive(19).end));
        assert_eq!(layout(&["srq", "-c", "-q", "1"], 0).slots, 1);
    }
}
