//! Probes of idle peers.
//!
//! A probe is an RDMA write of length 0. It consumes no receive of the peer and names no memory. The
//! peer's device acknowledges it. If the peer is dead, it fails after the retries, as any request
//! does, and moves the QP to ERR.
//!
//! On iWARP a write is complete when the local TCP has it, so a probe is a read of one byte. The connection
//! managers exchange its address. Without an address it has length 0. Workaround: docs/kernel-bugs.md, "siw
//! answers a READ of no bytes with data". The retries are those of TCP, which take a quarter of an hour. A
//! connection without an answer in [`SILENT`] intervals has failed, unless sends are outstanding: they may be
//! slow.

use std::time::{Duration, Instant};

use bareverbs_provider::traits::Provider;
use bareverbs_provider::work::{Operation, Payload, SendFlags, SendRequest, Sge};

use crate::error::PostError;
use crate::qp::{Qp, Rc};
use crate::{Access, Buffer, Error, Mr, Pd, Remote, Result};

/// The interval of [`Policy::Default`].
pub(crate) const INTERVAL: Duration = Duration::from_secs(2);

/// The shortest interval that the options accept.
pub(crate) const MIN_INTERVAL: Duration = Duration::from_millis(1);

/// Rounds of a wait that polls without limit between two looks at the clock.
pub(crate) const ROUNDS: u32 = 1024;

/// Intervals without an answer, after which a peer is dead on iWARP: 8 seconds at [`INTERVAL`], which
/// include the first one.
pub(crate) const SILENT: u32 = 3;

/// Which connections are probed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Policy {
    /// Those whose peer permits RDMA writes by its address, every [`INTERVAL`].
    #[default]
    Default,
    /// All.
    Every(Duration),
    /// None.
    Never,
}

impl Policy {
    /// The interval for a peer that permits RDMA writes, or may not.
    pub(crate) fn interval(self, remote_write: bool) -> Option<Duration> {
        match self {
            Self::Default => remote_write.then_some(INTERVAL),
            Self::Every(interval) => Some(interval),
            Self::Never => None,
        }
    }

    /// Rejects an interval below [`MIN_INTERVAL`], which would probe without end.
    pub(crate) fn check(self, verb: &'static str) -> Result<()> {
        match self {
            Self::Every(interval) if interval < MIN_INTERVAL => {
                let reason =
                    format!("keepalive: {interval:?} is below {MIN_INTERVAL:?}; `None` turns probes off");
                Err(Error::invalid(verb, reason))
            }
            _ => Ok(()),
        }
    }
}

impl From<Option<Duration>> for Policy {
    fn from(interval: Option<Duration>) -> Self {
        interval.map_or(Self::Never, Self::Every)
    }
}

/// When the peer of an endpoint is probed.
#[derive(Debug, Default)]
pub(crate) struct Keepalive {
    interval: Option<Duration>,
    /// When to look whether the connection was idle.
    next: Option<Instant>,
    /// The operations that had completed at the last look.
    completed: u64,
}

impl Keepalive {
    /// Probes every `interval` from now on.
    pub(crate) fn start(&mut self, interval: Option<Duration>) {
        *self = Self { interval, ..Self::default() };
    }

    /// The time of the next look; `None` if the peer is not probed. The first call of a wait starts
    /// the interval.
    pub(crate) fn next(&mut self, completed: u64, now: Instant) -> Option<Instant> {
        let interval = self.interval?;
        if self.next.is_none() {
            (self.next, self.completed) = (now.checked_add(interval), completed);
        }
        self.next
    }

    /// Whether a look is due and no operation has completed since the last one. It starts the next
    /// interval if one is due.
    pub(crate) fn is_idle(&mut self, completed: u64, now: Instant) -> bool {
        if self.next(completed, now).is_none_or(|next| now < next) {
            return false;
        }
        self.next = self.interval.and_then(|interval| now.checked_add(interval));
        std::mem::replace(&mut self.completed, completed) == completed
    }
}

/// The looks at the keepalive in one wait in virtual time. They end: a peer that answers probes would
/// keep a wait that nothing ends from failing.
#[derive(Debug, Default)]
pub(crate) struct Alarms(u32);

impl Alarms {
    const MAX: u32 = 10;

    /// The time of the next look, which is due at `due`.
    pub(crate) fn next(&mut self, due: Option<Instant>) -> Option<Instant> {
        self.0 = self.0.saturating_add(1);
        due.filter(|_| self.0 <= Self::MAX)
    }
}

/// The earlier one of two times, of which either may be missing.
pub(crate) fn earlier(one: Option<Instant>, other: Option<Instant>) -> Option<Instant> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}

/// Posts a signalled RDMA write of length 0.
pub(crate) fn post_empty_write<P: Provider>(qp: &mut Qp<Rc, P>, wr_id: u64) -> Result<(), PostError> {
    let operation = Operation::Write(Remote { addr: 0, rkey: 0 });
    let (flags, payload) = (SendFlags::SIGNALED, Payload::Sges(&[]));
    // SAFETY: the request names no memory.
    unsafe { qp.post_send(&[SendRequest { wr_id, operation, flags, payload }]) }
}

/// Memory of one byte, which the peer on iWARP reads as a probe, and which gets the byte of the peer. Closing
/// reads it as well, so a connection without probes has it too.
///
/// siw lets a peer invalidate any key of the PD. So each connection has memory of its own: a peer that
/// invalidates the key that it received ends its own connection only.
#[derive(Debug)]
pub(crate) struct ProbeMemory(Mr<Buffer>);

impl ProbeMemory {
    /// `None` where probes are writes.
    pub(crate) fn of<P: Provider>(pd: &Pd<P>) -> Result<Option<Self>> {
        if !pd.context().capabilities().iwarp {
            return Ok(None);
        }
        let access = Access::LOCAL_WRITE | Access::REMOTE_READ;
        let registered = pd.register(Buffer::zeroed(1)?, access);
        registered.map(|memory| Some(Self(memory))).map_err(|refused| refused.error)
    }

    /// Where the peer reads.
    pub(crate) fn remote(&self) -> Remote {
        Remote { addr: self.0.addr(), rkey: self.0.rkey() }
    }

    /// The probe of a peer whose memory is at `peer`.
    ///
    /// # Safety
    ///
    /// This memory must stay registered until the QP that posts the probe is destroyed.
    pub(crate) unsafe fn path(&self, peer: Remote) -> ProbePath {
        ProbePath { peer, local: Sge { addr: self.0.addr(), length: 1, lkey: self.0.lkey() } }
    }
}

/// What a probe reads, and where to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProbePath {
    peer: Remote,
    local: Sge,
}

/// Posts a signalled request that the peer answers.
pub(crate) fn post_probe<P: Provider>(
    qp: &mut Qp<Rc, P>,
    wr_id: u64,
    path: Option<ProbePath>,
) -> Result<(), PostError> {
    if !qp.pd().context().capabilities().iwarp {
        return post_empty_write(qp, wr_id);
    }
    let peer = path.map_or(Remote { addr: 0, rkey: 0 }, |path| path.peer);
    let local = path.map(|path| path.local);
    let (operation, flags, payload) =
        (Operation::Read(peer), SendFlags::SIGNALED, Payload::Sges(local.as_slice()));
    // SAFETY: the request names no memory but that of `path`, which stays registered until the QP is
    // destroyed, by the contract of `ProbeMemory::path`. Nothing accesses its byte.
    unsafe { qp.post_send(&[SendRequest { wr_id, operation, flags, payload }]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn peer_is_probed_after_an_interval_without_completions() {
        let (mut keepalive, start) = (Keepalive::default(), Instant::now());
        assert_eq!(keepalive.next(0, start), None, "it is off");
        keepalive.start(Some(SECOND));
        assert_eq!(keepalive.next(7, start), Some(start + SECOND));
        assert!(!keepalive.is_idle(7, start + SECOND / 2));
        assert!(keepalive.is_idle(7, start + SECOND));
        assert_eq!(keepalive.next(7, start + SECOND), Some(start + 2 * SECOND));
        assert!(!keepalive.is_idle(7, start + SECOND), "once in an interval");
        assert!(!keepalive.is_idle(8, start + 2 * SECOND), "an operation has completed");
        assert!(keepalive.is_idle(8, start + 3 * SECOND));
    }

    #[test]
    fn default_policy_spares_peers_that_refuse_writes() {
        assert_eq!(Policy::Default.interval(false), None);
        assert_eq!(Policy::Default.interval(true), Some(INTERVAL));
        assert_eq!(Policy::from(Some(SECOND)).interval(false), Some(SECOND));
        assert_eq!(Policy::from(None).interval(true), None);
    }

    #[test]
    fn intervals_below_a_millisecond_are_rejected() {
        for (interval, accepted) in
            [(Duration::ZERO, false), (MIN_INTERVAL - Duration::from_nanos(1), false), (MIN_INTERVAL, true)]
        {
            let checked = Policy::from(Some(interval)).check("EndpointOptions::build");
            assert_eq!(checked.is_ok(), accepted, "{interval:?}");
        }
        let error = Policy::from(Some(Duration::ZERO)).check("EndpointOptions::build").unwrap_err();
        assert!(matches!(error, Error::Invalid { verb: "EndpointOptions::build", .. }), "{error}");
        assert!(error.to_string().contains("`None` turns probes off"), "{error}");
        assert!(Policy::Never.check("").is_ok() && Policy::Default.check("").is_ok());
    }

    #[test]
    fn earlier_time_wins() {
        let (one, other) = (Instant::now(), Instant::now() + SECOND);
        assert_eq!(earlier(Some(one), Some(other)), Some(one));
        assert_eq!(earlier(None, Some(other)), Some(other));
        assert_eq!(earlier(None, None), None);
    }
}
