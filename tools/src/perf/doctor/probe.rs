//! Connections and datagrams that try a path.
//!
//! The passive end of an RC connection only exposes memory, so no program delays its responses.

use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use bareverbs::datagram::DatagramAddress;
use bareverbs::values::{AckTimeout, GidIndex, Mtu};
use bareverbs::{
    Access, Address, Buffer, Datagrams, Destination, Endpoint, EndpointOptions, Failed, Op, Pd, Pool,
    PoolBuffer, RegionMut, Remote, RemoteRegion, WcStatus,
};
use serde::{Deserialize, Serialize};

use super::judge::Figures;
use crate::session::RETRY_CNT;
use crate::signal::Stop;

/// Bytes of the exposed memory, and of the writes that measure bandwidth.
const BYTES: usize = 64 << 10;
/// Writes that are outstanding at once.
const WINDOW: usize = 4;
/// Bytes of the reads that measure latency.
const WORD: usize = 8;
/// Reads that measure latency.
const SAMPLES: usize = 500;
/// Time of each measurement.
const MEASURE: Duration = Duration::from_secs(1);
/// 268 ms: the time after which a packet is retried.
const ACK_TIMEOUT: AckTimeout = AckTimeout::new(16).unwrap();
/// Time in which an operation completes or fails.
const OPERATION: Duration = Duration::from_secs(15);
/// Time of a wait between two checks for a signal.
const SLICE: Duration = Duration::from_millis(100);

/// The end of a path at this host.
#[derive(Clone, Copy)]
pub(crate) struct Origin<'a> {
    pub(crate) pd: &'a Pd,
    pub(crate) port: u8,
    pub(crate) gid_index: GidIndex,
    pub(crate) stop: &'a Stop,
}

/// What the active end of a connection needs to know about the passive one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Invitation {
    address: String,
    addr: u64,
    rkey: u32,
}

fn options(origin: Origin<'_>, mtu: Mtu) -> EndpointOptions {
    EndpointOptions::default()
        .port(origin.port)
        .gid_index(origin.gid_index)
        .mtu(mtu)
        .timeout(ACK_TIMEOUT)
        .retry_cnt(RETRY_CNT)
        .keepalive(None)
}

/// The passive end of an RC connection.
pub(crate) struct Passive {
    /// Declared before the memory: the QP is destroyed first.
    endpoint: Endpoint<PoolBuffer>,
    memory: RemoteRegion,
}

impl Passive {
    /// Creates the end for a connection with at most this path MTU.
    pub(crate) fn new(origin: Origin<'_>, mtu: Mtu) -> Result<Self> {
        let memory = RegionMut::register(origin.pd, Buffer::zeroed(BYTES)?).map_err(|failed| failed.error)?;
        let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let memory = memory.expose(access).map_err(|failed| failed.error)?;
        Ok(Self { endpoint: options(origin, mtu).build(origin.pd)?, memory })
    }

    /// Connects to the active end.
    pub(crate) fn connect(&mut self, active: &str) -> Result<()> {
        let address: Address = active.parse().context("the peer's address is not valid")?;
        Ok(self.endpoint.connect(&address)?)
    }

    pub(crate) fn invitation(&self) -> Result<Invitation> {
        let Remote { addr, rkey } = self.memory.remote(0)?;
        Ok(Invitation { address: self.endpoint.address().to_string(), addr, rkey })
    }
}

/// Why an operation of the active end failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProbeError {
    /// No packet was acknowledged after all retries.
    #[error("no packet was acknowledged after {RETRY_CNT} retries")]
    Unanswered,
    #[error("nothing completed for {} s", OPERATION.as_secs())]
    Silent,
    /// The connection was not established.
    #[error(transparent)]
    Setup(anyhow::Error),
    #[error(transparent)]
    Other(#[from] anyhow::Error),
}

impl ProbeError {
    fn of(failed: &Failed<PoolBuffer>) -> Self {
        if failed.cause == Some(WcStatus::RETRY_EXC_ERR) {
            Self::Unanswered
        } else {
            Self::Other(anyhow::anyhow!("{}", failed.error))
        }
    }
}

/// The direction of the data of a measurement.
#[derive(Clone, Copy, Debug)]
enum Direction {
    /// To the peer.
    There,
    /// From the peer.
    Back,
}

/// The active end of an RC connection.
pub(crate) struct Active<'a> {
    endpoint: Endpoint<PoolBuffer>,
    pool: Pool,
    remote: Remote,
    stop: &'a Stop,
}

impl<'a> Active<'a> {
    pub(crate) fn new(origin: Origin<'a>, mtu: Mtu) -> Result<Self> {
        let pool = Pool::new(origin.pd, WINDOW, BYTES)?;
        let endpoint = options(origin, mtu).build(origin.pd)?;
        Ok(Self { endpoint, pool, remote: Remote { addr: 0, rkey: 0 }, stop: origin.stop })
    }

    pub(crate) fn address(&self) -> String {
        self.endpoint.address().to_string()
    }

    pub(crate) fn connect(&mut self, invitation: &Invitation) -> Result<()> {
        let address: Address = invitation.address.parse().context("the peer's address is not valid")?;
        self.endpoint.connect(&address)?;
        self.remote = Remote { addr: invitation.addr, rkey: invitation.rkey };
        Ok(())
    }

    /// Waits for an operation.
    fn reap(&mut self) -> Result<(), ProbeError> {
        let deadline = Instant::now() + OPERATION;
        while Instant::now() < deadline {
            self.stop.check().map_err(anyhow::Error::from)?;
            match self.endpoint.next().wait_timeout(SLICE) {
                Some(Ok(_)) => return Ok(()),
                Some(Err(failed)) => return Err(ProbeError::of(&failed)),
                None => {}
            }
        }
        Err(ProbeError::Silent)
    }

    fn buffer(&self) -> Result<PoolBuffer, ProbeError> {
        Ok(self.pool.take().context("no buffer is free")?)
    }

    /// One packet of `bytes` in each direction: a write and the response to a read.
    pub(crate) fn packets(&mut self, bytes: usize) -> Result<(), ProbeError> {
        let bytes = bytes.min(BYTES);
        let not_posted = |error: bareverbs::Error| ProbeError::Other(error.into());
        let buffer = self.buffer()?;
        self.endpoint
            .post(Op::write(buffer, ..bytes, self.remote))
            .map_err(|failed| not_posted(failed.error))?;
        self.reap()?;
        let buffer = self.buffer()?;
        self.endpoint
            .post(Op::read(buffer, ..bytes, self.remote))
            .map_err(|failed| not_posted(failed.error))?;
        self.reap()
    }

    /// Measures latency and bandwidth.
    pub(crate) fn measure(&mut self) -> Result<Figures, ProbeError> {
        let (latency, latency_p99) = self.latency()?;
        let bandwidth = self.bandwidth(Direction::There)?;
        let bandwidth_back = Some(self.bandwidth(Direction::Back)?);
        Ok(Figures { latency, latency_p99, bandwidth, bandwidth_back })
    }

    /// Median and 99th percentile of reads, in microseconds.
    fn latency(&mut self) -> Result<(f64, f64), ProbeError> {
        let begun = Instant::now();
        let mut times = Vec::with_capacity(SAMPLES);
        while times.is_empty() || times.len() < SAMPLES && begun.elapsed() < MEASURE {
            let buffer = self.buffer()?;
            let start = Instant::now();
            let posted = self.endpoint.post(Op::read(buffer, ..WORD, self.remote));
            posted.map_err(|failed| ProbeError::Other(failed.error.into()))?;
            self.reap()?;
            times.push(start.elapsed());
        }
        times.sort_unstable();
        let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize].as_secs_f64() * 1e6;
        Ok((at(0.5), at(0.99)))
    }

    /// Of writes to the peer, or of reads, in Gbit/s.
    fn bandwidth(&mut self, direction: Direction) -> Result<f64, ProbeError> {
        let begun = Instant::now();
        let mut carried = 0;
        loop {
            let goes_on = carried == 0 || begun.elapsed() < MEASURE;
            while goes_on && self.endpoint.pending_sends() < WINDOW {
                let buffer = self.buffer()?;
                let posted = match direction {
                    Direction::There => self.endpoint.post(Op::write(buffer, .., self.remote)),
                    Direction::Back => self.endpoint.post(Op::read(buffer, .., self.remote)),
                };
                posted.map_err(|failed| ProbeError::Other(failed.error.into()))?;
            }
            if self.endpoint.pending_sends() == 0 {
                break;
            }
            self.reap()?;
            carried += BYTES;
        }
        Ok(carried as f64 * 8.0 / begun.elapsed().as_secs_f64() / 1e9)
    }
}

/// The figures of a connection of the device with itself.
pub(crate) fn loopback(origin: Origin<'_>, mtu: Mtu) -> Result<Figures, ProbeError> {
    let mut passive = Passive::new(origin, mtu)?;
    let mut active = Active::new(origin, mtu)?;
    passive.connect(&active.address())?;
    active.connect(&passive.invitation()?)?;
    active.measure()
}

/// Datagrams of a check.
pub(crate) const DATAGRAMS: u32 = 200;
/// Most datagrams that a peer may ask for.
const MOST_DATAGRAMS: u32 = 1000;
/// Bytes of a datagram.
const DATAGRAM: usize = 64;
/// Datagrams that are sent without a pause, and the longest pause.
const BURST: u32 = 10;
const PAUSE: Duration = Duration::from_millis(20);
/// The time without a datagram after which the rest counts as lost.
const QUIET: Duration = Duration::from_secs(2);
/// Bytes of the global route header before a received datagram.
const GRH: usize = 40;

/// An end of an exchange of datagrams.
pub(crate) struct Postcards<'a> {
    datagrams: Datagrams,
    count: u32,
    stop: &'a Stop,
}

impl<'a> Postcards<'a> {
    /// Creates the end, which can receive `count` datagrams at once.
    pub(crate) fn new(origin: Origin<'a>, count: u32) -> Result<Self> {
        ensure!(
            (1..=MOST_DATAGRAMS).contains(&count),
            "{count} datagrams are out of range (1 to {MOST_DATAGRAMS})"
        );
        let options = Datagrams::options().port(origin.port).gid_index(origin.gid_index);
        let mut datagrams: Datagrams =
            options.sends(count).recvs(count).inline(DATAGRAM as u32).build(origin.pd)?;
        let pool = Pool::new(origin.pd, count as usize, GRH + DATAGRAM)?;
        for _ in 0..count {
            let buffer = pool.take().context("the pool has a buffer for each receive")?;
            datagrams.post(Op::recv(buffer)).map_err(|failed| failed.error)?;
        }
        Ok(Self { datagrams, count, stop: origin.stop })
    }

    pub(crate) fn address(&self) -> String {
        self.datagrams.address().to_string()
    }

    fn destination(&self, peer: &str) -> Result<Destination> {
        let peer: DatagramAddress = peer.parse().context("the peer's address is not valid")?;
        Ok(self.datagrams.destination(&peer).wait()?)
    }

    fn send(&mut self, to: &Destination) -> Result<()> {
        self.datagrams.post(Op::send_to_inline(to, &[0; DATAGRAM]))?;
        Ok(())
    }

    /// Receives a datagram within the time.
    fn receive(&mut self, within: Duration) -> Result<bool> {
        let deadline = Instant::now() + within;
        loop {
            self.stop.check()?;
            let left = deadline.saturating_duration_since(Instant::now());
            let received = self
                .datagrams
                .next_recv()
                .wait_timeout(left.min(SLICE))
                .transpose()
                .map_err(|failed| failed.error)?;
            if received.is_some() || left.is_zero() {
                return Ok(received.is_some());
            }
        }
    }

    /// Sends all datagrams. Returns how many came back.
    pub(crate) fn send_all(&mut self, peer: &str) -> Result<u32> {
        let to = self.destination(peer)?;
        let (mut sent, mut echoed) = (0, 0);
        while sent < self.count {
            for _ in 0..BURST.min(self.count - sent) {
                self.send(&to)?;
                sent += 1;
            }
            let deadline = Instant::now() + PAUSE;
            while echoed < sent && self.receive(deadline.saturating_duration_since(Instant::now()))? {
                echoed += 1;
            }
        }
        while echoed < sent && self.receive(QUIET)? {
            echoed += 1;
        }
        Ok(echoed)
    }

    /// Echoes the datagrams of a peer. Returns how many arrived.
    pub(crate) fn echo(&mut self, peer: &str) -> Result<u32> {
        let to = self.destination(peer)?;
        let mut received = 0;
        while received < self.count && self.receive(QUIET)? {
            received += 1;
            self.send(&to)?;
        }
        // The last echo has left the queue when it has completed.
        let deadline = Instant::now() + QUIET;
        while self.datagrams.pending_sends() > 0 && Instant::now() < deadline {
            self.stop.check()?;
            if self.datagrams.poll_send().transpose().map_err(|failed| failed.error)?.is_none() {
                std::thread::yield_now();
            }
        }
        Ok(received)
    }
}
