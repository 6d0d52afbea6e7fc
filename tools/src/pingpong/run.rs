//! The queue pair, its memory, and the run itself.

use std::net::Ipv6Addr;
use std::ops::Range;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use bareverbs::{
    Access, AhAttr, Arm, Buffer, CompChannel, Context, Cq, CqInit, Gid, InitAttr, LinkLayer, Mr, Operation,
    Payload, PortAttr, QpAttrMask, QpCap, QpInit, QpState, Rc, RecvRequest, Remote, RtrAttr, RtsAttr,
    SendFlags, SendRequest, WcStatus, WorkCompletion,
};
use rustix::event::PollFlags;

use super::check::{Checker, FILL};
use super::rally::{Due, RECV_ID, Rally, SEND_ID, Side};
use super::record::Record;
use super::status;
use crate::cli::RcPingpong;
use crate::say;
use crate::stop::{Interrupted, Stop, Wake};

/// How long nothing may complete before the run is given up.
const PATIENCE: Duration = Duration::from_secs(10);
/// Retransmissions before a message counts as lost. Not the largest number, 7, with which Soft-RoCE goes on forever
/// (rxe_comp.c, COMPST_ERROR_RETRY) and would never tell that the peer is gone.
const RETRIES: u8 = 6;
/// Time before each: 4.096 µs times 2 to this power, 0.27 s. With the 14 of ibv_rc_pingpong, a peer whose machine stands
/// still for half a second would count as gone.
const TIMEOUT: u8 = 16;
/// How long the peer's queue pair gets to answer the question whether it is still there: all retries, and more.
const ANSWER: Duration = Duration::from_secs(5);
/// How long a failed queue pair gets to flush its receives.
const FLUSH: Duration = Duration::from_secs(1);
/// Looks at an empty completion queue between two looks at the clock and for a signal.
const SPINS: u32 = 4096;
/// The completion queue's name in its events.
const CQ_DATA: u64 = 1;

/// Why a run ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Lost {
    #[error("Failed status {} ({}) for wr_id {wr_id}{}{}", status::words(*.status), .status.0, reason(*.status), progress)]
    Status { status: WcStatus, wr_id: u64, progress: Progress },
    #[error("nothing completed for {} s, though the peer's queue pair is still there{progress}", PATIENCE.as_secs())]
    Silence { progress: Progress },
}

fn reason(status: WcStatus) -> String {
    status::likely_reason(status).map_or_else(String::new, |reason| format!(": {reason}"))
}

/// A failed request: its status and its `wr_id`.
type Failure = (WcStatus, u64);

/// A write of no bytes.
const QUESTION: SendRequest<'_> = SendRequest {
    wr_id: SEND_ID,
    operation: Operation::Write(Remote { addr: 0, rkey: 0 }),
    flags: SendFlags::SIGNALED,
    payload: Payload::Sges(&[]),
};

/// How far a run came.
#[derive(Debug)]
pub(crate) struct Progress {
    sent: u64,
    received: u64,
    flushed: u64,
}

impl std::fmt::Display for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let flush = WcStatus::WR_FLUSH_ERR;
        write!(
            f,
            "; {} messages were sent and {} received, then {} requests ended as {} ({})",
            self.sent,
            self.received,
            self.flushed,
            status::words(flush),
            flush.0
        )
    }
}

/// `size` bytes, or an error where there is not so much memory.
fn filled(size: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(size).with_context(|| format!("no memory for a message of {size} bytes"))?;
    bytes.resize(size, FILL);
    Ok(bytes)
}

/// One side of the table: a queue pair with what it needs.
pub(crate) struct Player<'a> {
    options: &'a RcPingpong,
    side: Side,
    stop: &'a Stop,
    cq: Cq,
    channel: Option<CompChannel>,
    /// Before the memory, so that nothing is posted any more when that goes.
    qp: bareverbs::Qp<Rc>,
    memory: Mr<Buffer>,
    /// Where messages are sent from and received to. The same bytes unless the data is checked: then what was
    /// received goes back, as with ibv_rc_pingpong.
    outgoing: Range<usize>,
    incoming: Range<usize>,
    /// Whether messages go into the queue by value.
    inline: bool,
    /// A message outside of registered memory, for data that is made, checked or sent inline.
    message: Vec<u8>,
    checker: Option<Checker>,
    posted: u64,
    link_layer: LinkLayer,
    gid_index: Option<u32>,
    local: Record,
}

/// What a run measured.
pub(crate) struct Outcome {
    pub(crate) time: Duration,
    pub(crate) events: Option<u64>,
}

impl<'a> Player<'a> {
    /// Makes everything up to the queue pair in INIT with its receives posted.
    pub(crate) fn new(
        options: &'a RcPingpong,
        context: &Context,
        port: &PortAttr,
        gid: Option<(u32, Gid)>,
        stop: &'a Stop,
    ) -> Result<Self> {
        let side = if options.host.is_some() { Side::Client } else { Side::Server };
        let size = options.size as usize;
        let depth = options.rx_depth;
        let channel = options.events.then(|| context.create_comp_channel()).transpose()?;
        let pd = context.alloc_pd()?;

        let outgoing = 0..size;
        let incoming = if options.chk {
            let start = size.next_multiple_of(rustix::param::page_size());
            start..start + size
        } else {
            outgoing.clone()
        };
        let mut buffer = Buffer::zeroed(incoming.end)?;
        buffer.fill(FILL);
        let mut access = Access::LOCAL_WRITE;
        access.set(Access::ON_DEMAND, options.odp);
        let memory = pd.register(buffer, access)?;
        if options.prefetch
            && let Err(error) = memory.prefetch(..)
        {
            say::remark(&format!("Couldn't prefetch MR. Continue anyway: {error}"));
        }

        let cq = context.create_cq(&CqInit {
            channel: channel.as_ref(),
            user_data: CQ_DATA,
            ..CqInit::new(depth + 1)
        })?;
        let cap = QpCap { max_send_wr: 1, max_recv_wr: depth, ..QpCap::default() };
        let mut qp = pd.create_qp::<Rc>(&QpInit { cap, ..QpInit::new(&cq, &cq) })?;
        let inline = qp.cap().max_inline_data as usize >= size;
        qp.init(&InitAttr::new(options.ib_port))?;

        let mut psn = [0; 4];
        rustix::rand::getrandom(&mut psn, rustix::rand::GetRandomFlags::empty())
            .context("no random numbers")?;
        let local = Record {
            lid: port.lid,
            qpn: qp.qp_num(),
            psn: u32::from_ne_bytes(psn) & 0xff_ffff,
            gid: gid.map_or(Ipv6Addr::UNSPECIFIED, |(_, gid)| gid.0.into()),
        };
        let mut player = Self {
            options,
            side,
            stop,
            cq,
            channel,
            qp,
            memory,
            outgoing,
            incoming,
            inline,
            message: if inline || options.chk { filled(size)? } else { Vec::new() },
            checker: match options.chk {
                true => Some(Checker::new(side, options.iters.into(), filled(size)?)),
                false => None,
            },
            posted: 0,
            link_layer: port.link_layer,
            gid_index: gid.map(|(index, _)| index),
            local,
        };
        player.post_recvs(depth)?;
        if player.channel.is_some() {
            player.cq.arm(Arm::Any)?;
        }
        Ok(player)
    }

    pub(crate) fn side(&self) -> Side {
        self.side
    }

    /// Where the peer can reach this queue pair.
    pub(crate) fn local(&self) -> &Record {
        &self.local
    }

    pub(crate) fn inline(&self) -> bool {
        self.inline
    }

    pub(crate) fn checker(&self) -> Option<&Checker> {
        self.checker.as_ref()
    }

    /// Brings the queue pair to RTS, towards the peer.
    pub(crate) fn connect(&mut self, remote: &Record) -> Result<()> {
        let options = self.options;
        let port = options.ib_port;
        let route = match self.gid_index {
            Some(index) if remote.has_gid() => AhAttr {
                dlid: remote.lid,
                ..AhAttr::global(port, Gid(remote.gid.octets()), u8::try_from(index)?)
            },
            _ if self.link_layer == LinkLayer::ETHERNET => anyhow::bail!(
                "the peer sent no GID, and without one RoCE has no way to it: give it a GID index (-g)"
            ),
            _ => AhAttr::local(port, remote.lid),
        };
        self.qp.ready_to_receive(&RtrAttr {
            rq_psn: remote.psn,
            path_mtu: options.mtu,
            max_dest_rd_atomic: 1,
            min_rnr_timer: 12,
            ..RtrAttr::new(AhAttr { sl: options.sl, ..route }, remote.qpn)
        })?;
        self.qp.ready_to_send(&RtsAttr {
            sq_psn: self.local.psn,
            timeout: TIMEOUT,
            retry_cnt: RETRIES,
            rnr_retry: 7,
            max_rd_atomic: 1,
        })?;
        Ok(())
    }

    /// Plays to the end.
    pub(crate) fn play(&mut self) -> Result<Outcome> {
        let mut rally = Rally::new(self.side, self.options.iters.into(), self.options.rx_depth);
        if self.side == Side::Client {
            self.post_send()?;
        }
        let start = Instant::now();
        let mut events = 0;
        while !rally.is_over() {
            let completion = match &self.channel {
                None => self.spin(),
                Some(_) => self.sleep(&mut events),
            }?;
            let Some(completion) = completion else {
                return Err(self.ask(&mut rally)?.into());
            };
            self.take(&mut rally, completion)?;
        }
        let time = start.elapsed();
        Ok(Outcome { time, events: self.channel.is_some().then_some(events) })
    }

    /// Looks for a completion until there is one, or nothing for too long.
    fn spin(&mut self) -> Result<Option<WorkCompletion>> {
        let mut deadline = None;
        loop {
            self.stop.check()?;
            for _ in 0..SPINS {
                if let Some(completion) = self.cq.poll_one() {
                    return Ok(Some(completion));
                }
            }
            let now = Instant::now();
            if now >= *deadline.get_or_insert(now + PATIENCE) {
                return Ok(None);
            }
        }
    }

    /// Takes a completion, asleep until there is one, or nothing for too long.
    fn sleep(&mut self, events: &mut u64) -> Result<Option<WorkCompletion>> {
        loop {
            self.stop.check()?;
            if let Some(completion) = self.cq.poll_one() {
                return Ok(Some(completion));
            }
            let channel = self.channel.as_ref().context("events without a completion channel")?;
            match self.stop.wait(channel.as_fd(), PollFlags::IN, Some(Instant::now() + PATIENCE))? {
                Wake::Ready => {}
                Wake::TimedOut => return Ok(None),
                Wake::Stopped => return Err(Interrupted.into()),
            }
            if let Some(event) = channel.try_get_event()? {
                anyhow::ensure!(event.user_data == CQ_DATA, "a completion event of an unknown queue");
                *events += 1;
                self.cq.arm(Arm::Any)?;
            }
        }
    }

    /// Counts a completion, checks what came, and does what is due.
    fn take(&mut self, rally: &mut Rally, completion: WorkCompletion) -> Result<()> {
        let WorkCompletion { wr_id, status, byte_len, .. } = completion;
        if status != WcStatus::SUCCESS {
            let (cause, progress) = self.give_up(rally, Some((status, wr_id)));
            let (status, wr_id) = cause.unwrap_or((status, wr_id));
            return Err(Lost::Status { status, wr_id, progress }.into());
        }
        let Due { recvs, send } = match wr_id {
            SEND_ID => rally.on_send(),
            RECV_ID => {
                if let Some(checker) = &mut self.checker {
                    anyhow::ensure!(
                        byte_len == self.options.size,
                        "a message of {byte_len} bytes came instead of {}: is the peer's -s the same?",
                        self.options.size
                    );
                    self.memory.read(self.incoming.start, &mut self.message)?;
                    checker.verify(rally.received(), &self.message)?;
                }
                rally.on_recv()
            }
            other => anyhow::bail!("a completion for unknown wr_id {other}"),
        };
        self.post_recvs(recvs)?;
        if send {
            self.post_send()?;
        }
        Ok(())
    }

    /// Finds out why nothing completes.
    ///
    /// When the peer ends while it is its turn, every message of this side is acknowledged, so no retry can run out. A
    /// write of no bytes needs an acknowledgement too. Where the peer is alive, it may not like it, but the run is lost
    /// all the same.
    fn ask(&mut self, rally: &mut Rally) -> Result<Lost> {
        if rally.start_sending() {
            // SAFETY: the request names no memory.
            unsafe { self.qp.post_send(&[QUESTION]) }.context("couldn't post a send")?;
        }
        let deadline = Instant::now() + ANSWER;
        let answer = loop {
            match self.cq.poll_one() {
                Some(completion) => break Some((completion.status, completion.wr_id)),
                None if Instant::now() >= deadline => break None,
                None => self.stop.check()?,
            }
        };
        Ok(match self.give_up(rally, answer) {
            // Only somebody who is there can accept the write, or refuse it.
            (
                None | Some((WcStatus::SUCCESS | WcStatus::REM_INV_REQ_ERR | WcStatus::REM_ACCESS_ERR, _)),
                progress,
            ) => Lost::Silence { progress },
            (Some((status, wr_id)), progress) => Lost::Status { status, wr_id, progress },
        })
    }

    /// Fails the queue pair and takes what it flushes. Of all failures, with the one that is known already, returns the
    /// one that is no mere flush.
    fn give_up(&mut self, rally: &Rally, mut cause: Option<Failure>) -> (Option<Failure>, Progress) {
        let is_flush = |&(status, _): &Failure| status == WcStatus::WR_FLUSH_ERR;
        let mut flushed = u64::from(cause.as_ref().is_some_and(is_flush));
        let mut taken = u64::from(cause.is_some());
        // The run has failed already; where this fails too, there is only less to tell.
        if let Ok((mut attributes, _)) = self.qp.query() {
            attributes.qp_state = QpState::ERR;
            let _ = self.qp.modify(&attributes, QpAttrMask::STATE);
        }
        let deadline = Instant::now() + FLUSH;
        while taken < rally.outstanding() && Instant::now() < deadline {
            let Some(WorkCompletion { status, wr_id, .. }) = self.cq.poll_one() else { continue };
            taken += 1;
            if status == WcStatus::WR_FLUSH_ERR {
                flushed += 1;
            } else if status != WcStatus::SUCCESS && cause.as_ref().is_none_or(is_flush) {
                cause = Some((status, wr_id));
            }
        }
        (cause, Progress { sent: rally.sent(), received: rally.received(), flushed })
    }

    fn post_recvs(&mut self, count: u32) -> Result<()> {
        let sges = [self.memory.sge(self.incoming.clone())?];
        let requests = [RecvRequest { wr_id: RECV_ID, sges: &sges }; 64];
        let mut left = count as usize;
        while left > 0 {
            let batch = &requests[..left.min(requests.len())];
            // SAFETY: the region outlives the queue pair (field order), and its bytes are only ever copied, never
            // referred to.
            unsafe { self.qp.post_recv(batch) }.context("couldn't post receives")?;
            left -= batch.len();
        }
        Ok(())
    }

    /// Posts this side's next message.
    fn post_send(&mut self) -> Result<()> {
        if let Some(checker) = &self.checker {
            checker.fill(self.posted, &mut self.message);
            if !self.inline {
                self.memory.write(self.outgoing.start, &self.message)?;
            }
        } else if self.inline {
            self.memory.read(self.outgoing.start, &mut self.message)?;
        }
        self.posted += 1;

        let sges = [self.memory.sge(self.outgoing.clone())?];
        let bytes = [&self.message[..]];
        let request = SendRequest {
            wr_id: SEND_ID,
            operation: Operation::Send,
            flags: SendFlags::SIGNALED,
            payload: if self.inline { Payload::Inline(&bytes) } else { Payload::Sges(&sges) },
        };
        if self.options.new_send {
            let mut batch = self.qp.start_send();
            // SAFETY: as below.
            unsafe { batch.push(&request) }.context("couldn't post a send")?;
            batch.ring().context("couldn't post a send")?;
        } else {
            // SAFETY: the region outlives the queue pair (field order). Its bytes stay as they are until the send is
            // complete, for the peer sends nothing before it has this message; a peer that does so all the same
            // changes what itself receives.
            unsafe { self.qp.post_send(&[request]) }.context("couldn't post a send")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PROGRESS: Progress = Progress { sent: 7, received: 6, flushed: 500 };

    #[test]
    fn a_lost_peer_is_named_by_the_status_and_what_followed() {
        let lost = Lost::Status { status: WcStatus::RETRY_EXC_ERR, wr_id: SEND_ID, progress: PROGRESS };
        assert_eq!(
            lost.to_string(),
            "Failed status transport retry counter exceeded (12) for wr_id 2: the peer has ended or can't be reached; \
             7 messages were sent and 6 received, then 500 requests ended as Work Request Flushed Error (5)"
        );
    }

    #[test]
    fn a_silent_peer_is_named_with_the_time_limit() {
        let text = Lost::Silence { progress: PROGRESS }.to_string();
        assert!(
            text.starts_with("nothing completed for 10 s, though the peer's queue pair is still there; 7 "),
            "{text}"
        );
    }
}
