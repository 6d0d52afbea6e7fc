//! Random connects, answers, rejections, ends and kills, compared with a model.

mod model;

use std::fmt;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use bareverbs::Errno;
use bareverbs_rdmacm::event::{Event, EventKind, RejectReason, Unreachable};
use bareverbs_rdmacm::{CmId, ConnParam, EventChannel, PortSpace};
use bareverbs_test_support::resources::nothing_leaks;
use bareverbs_test_support::{TIMEOUT, child, device};
use fastrand::Rng;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::waitpid;

use self::model::{Action, Outcome, Seen, Side, State};
use crate::connections::ip;

/// Attempts at a time.
const MOST: usize = 16;
/// Actions between two checks for leaks.
const ACTIONS: u32 = 400;
/// Actions for each process that is killed, on average.
const KILL_EVERY: u32 = 40;
/// Attempts of such a process at most.
const KILLED: usize = 6;
/// Time limit for the end of an accepted attempt whose peer was killed. The kernel's REJ for the dead
/// peer is one datagram that may be lost. The retries of the REP end after 70 s then.
const RETRIES: Duration = Duration::from_secs(120);

/// The parameters of a run.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// The seed of all actions.
    pub seed: u64,
    /// No iteration starts after this time.
    pub time: Duration,
}

/// What was done. Every event was as predicted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    /// Times at which nothing was left.
    pub iterations: u32,
    /// Connection attempts, those of killed processes included.
    pub attempts: u64,
    /// Actions of all attempts.
    pub actions: u64,
    /// Attempts that were established.
    pub established: u64,
    /// Attempts that were rejected.
    pub rejected: u64,
    /// Processes that were killed.
    pub kills: u64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { iterations, attempts, actions, established, rejected, kills } = self;
        write!(
            f,
            "{iterations} iterations, {attempts} attempts, {actions} actions, {established} established, \
             {rejected} rejected, {kills} processes killed; nothing left behind"
        )
    }
}

/// Runs iterations of random actions.
///
/// # Errors
/// If an event differs from the model. Panics if the kernel has more objects after an iteration than
/// before.
pub fn run(plan: &Plan) -> Result<Report> {
    println!("seed {}", plan.seed);
    let mut report = Report::default();
    let (mut rng, begin) = (Rng::with_seed(plan.seed), Instant::now());
    let addr = SocketAddr::new(ip(&device::open())?.into(), 0);
    while report.iterations == 0 || begin.elapsed() < plan.time {
        nothing_leaks(|| iteration(addr, &mut rng, &mut report))
            .with_context(|| format!("seed {}, iteration {}", plan.seed, report.iterations))?;
        report.iterations += 1;
    }
    Ok(report)
}

fn iteration(addr: SocketAddr, rng: &mut Rng, report: &mut Report) -> Result<()> {
    let mut host = Host::new(addr, report)?;
    for _ in 0..ACTIONS {
        if rng.u32(..KILL_EVERY) == 0 {
            host.kill(rng)?;
        } else {
            host.act(rng)?;
        }
    }
    Ok(())
}

/// An attempt whose two ends belong to this process.
#[derive(Debug)]
struct Attempt {
    number: u32,
    state: State,
    active: Option<CmId>,
    /// That of the request, which the kernel takes as rejected if it is dropped.
    passive: Option<CmId>,
}

impl Attempt {
    fn id(&self, side: Side) -> Result<&CmId> {
        let id = match side {
            Side::Active => &self.active,
            Side::Passive => &self.passive,
        };
        id.as_ref().with_context(|| format!("the {side:?} end has no identifier"))
    }
}

/// How far an attempt of a process is when it is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Reached {
    Asked,
    Answered,
    Established,
}

/// A listener, and the attempts that are not over.
struct Host<'a> {
    listener: CmId,
    addr: SocketAddr,
    /// The channel of the active identifiers.
    active: EventChannel,
    attempts: Vec<Attempt>,
    report: &'a mut Report,
}

impl<'a> Host<'a> {
    fn new(addr: SocketAddr, report: &'a mut Report) -> Result<Self> {
        let listener = CmId::new(&EventChannel::new()?, PortSpace::Tcp)?;
        listener.bind_addr(addr)?;
        listener.listen(0)?;
        let addr = listener.addresses()?.local.and_then(|addr| addr.ip()).context("an IP address")?;
        Ok(Self { listener, addr, active: EventChannel::new()?, attempts: Vec::new(), report })
    }

    /// The number of the next attempt. It is also that of its queue pairs, of which none exists: a
    /// number must not be used again while the kernel holds it.
    fn next_number(&mut self) -> u32 {
        self.report.attempts += 1;
        let ids = std::process::id() << 14;
        ids.wrapping_add(2 * self.report.attempts as u32) & 0xff_fffe | 0x10_0000
    }

    /// A random action of a random attempt, or a new attempt.
    fn act(&mut self, rng: &mut Rng) -> Result<()> {
        let mut actions: Vec<(usize, Action)> = Vec::new();
        for (at, attempt) in self.attempts.iter().enumerate() {
            actions.extend(attempt.state.actions().map(|action| (at, action)));
        }
        self.report.actions += 1;
        let may_connect = self.attempts.len() < MOST;
        match rng.choice(&actions) {
            Some((at, action)) if !may_connect || rng.u8(..4) > 0 => self.run(*at, *action),
            _ => self.connect(),
        }
    }

    fn connect(&mut self) -> Result<()> {
        let number = self.next_number();
        let active = ask(&self.active, self.addr, number)?;
        let passive = Some(self.request(number)?);
        self.attempts.push(Attempt { number, state: State::Asked, active: Some(active), passive });
        Ok(())
    }

    /// The identifier of the next request, which is that with this number.
    fn request(&self, number: u32) -> Result<CmId> {
        match next(self.listener.channel())?.kind {
            EventKind::ConnectRequest(request) if starts_with(request.private_data(), number) => {
                Ok(request.into_id())
            }
            other => bail!("in place of request {number:#x}: {other:?}"),
        }
    }

    /// Carries an action out and takes its event.
    fn run(&mut self, at: usize, action: Action) -> Result<()> {
        let attempt = &mut self.attempts[at];
        let (number, from) = (attempt.number, attempt.state);
        let context = || format!("attempt {number:#x}, {from:?}, {action:?}");
        let Some(Outcome { state, seen }) = from.after(action) else { bail!("impossible: {}", context()) };
        // The key of an identifier that is destroyed is not needed: it gets no event.
        let key = seen.map(|(side, _)| attempt.id(side).map(CmId::key)).transpose().with_context(context)?;
        match action {
            Action::Accept if from == State::Abandoned => {
                let Some(id) = attempt.passive.take() else { bail!(context()) };
                self.accept_abandoned(id, number).with_context(context)?;
            }
            Action::Accept => {
                attempt.id(Side::Passive)?.accept(&ConnParam::new(number | 1)).with_context(context)?;
            }
            Action::Reject(Side::Passive) => {
                let Some(id) = attempt.passive.take() else { bail!(context()) };
                id.reject(&number.to_be_bytes()).with_context(context)?;
            }
            Action::Reject(Side::Active) => {
                attempt.id(Side::Active)?.reject(&number.to_be_bytes()).with_context(context)?;
            }
            Action::Establish => attempt.id(Side::Active)?.establish().with_context(context)?,
            Action::Disconnect(side) => attempt.id(side)?.disconnect().with_context(context)?,
            Action::Drop(Side::Active) => attempt.active = None,
            Action::Drop(Side::Passive) => attempt.passive = None,
        }
        if let Some(((side, seen), key)) = seen.zip(key) {
            let channel = match side {
                Side::Active => &self.active,
                Side::Passive => self.listener.channel(),
            };
            let event = next(channel).with_context(context)?;
            ensure!(
                event.key == key && is(&event.kind, seen, number),
                "{}: {:?} in place of {seen:?}",
                context(),
                event.kind
            );
            self.report.established += u64::from(seen == Seen::Established);
            self.report.rejected += u64::from(matches!(seen, Seen::Rejected | Seen::Dropped));
        }
        self.no_event().with_context(context)?;
        self.attempts[at].state = state;
        if state.is_gone() {
            self.attempts.swap_remove(at);
        }
        Ok(())
    }

    /// Accepts a request whose peer is gone: an error, or a rejection if that is on its way. If it is
    /// lost, the end of the retries.
    fn accept_abandoned(&self, id: CmId, number: u32) -> Result<()> {
        match id.accept(&ConnParam::new(number | 1)) {
            Err(refused) => ensure!(refused.errno() == Some(Errno::INVAL), "{refused}"),
            Ok(()) => {
                let event = next_within(self.listener.channel(), RETRIES)?;
                let ended = matches!(event.kind, EventKind::Rejected(_)) || is_unreachable(&event.kind);
                ensure!(event.key == id.key() && ended, "{:?}", event.kind);
            }
        }
        Ok(())
    }

    /// Fails if there is an event that was not predicted.
    fn no_event(&self) -> Result<()> {
        for channel in [&self.active, self.listener.channel()] {
            while let Some(event) = channel.try_wait()? {
                ensure!(matches!(event.kind, EventKind::TimewaitExit), "not predicted: {:?}", event.kind);
            }
        }
        Ok(())
    }

    /// Kills a process with attempts in random states, and takes their ends.
    fn kill(&mut self, rng: &mut Rng) -> Result<()> {
        let plan: Vec<(u32, Reached)> = (0..rng.usize(1..=KILLED))
            .map(|_| {
                (
                    self.next_number(),
                    [Reached::Asked, Reached::Answered, Reached::Established][rng.usize(..3)],
                )
            })
            .collect();
        let (mut its, mut pipe) = UnixStream::pair()?;
        pipe.set_read_timeout(Some(TIMEOUT))?;
        let addr = self.addr;
        let process = child::start(|| {
            let _ids: Vec<CmId> =
                plan.iter().map(|(number, reached)| reach(addr, *number, *reached)).collect();
            its.write_all(b"!").expect("the parent listens");
            loop {
                std::thread::park();
            }
        });
        drop(its);
        let reached = self.serve(&plan, &mut pipe);
        kill(process, Signal::SIGKILL)?;
        waitpid(process, None)?;
        let (requests, mut left) = reached?;
        while !left.is_empty() {
            let event = next_within(self.listener.channel(), RETRIES)?;
            let Some(at) = left.iter().position(|(id, _)| id.key() == event.key) else {
                bail!("after a kill: {:?}", event.kind)
            };
            let (_id, seen) = left.swap_remove(at);
            let lost = seen == Seen::Dropped && is_unreachable(&event.kind);
            ensure!(lost || is(&event.kind, seen, 0), "after a kill: {:?} in place of {seen:?}", event.kind);
        }
        for (id, number) in requests {
            self.accept_abandoned(id, number).context("after a kill")?;
        }
        self.report.kills += 1;
        self.no_event()
    }

    /// Serves the attempts of a process until it has reached its states. Returns the requests that were
    /// not accepted, and the identifiers with the event that ends them.
    #[expect(clippy::type_complexity, reason = "both lists are taken apart at once")]
    fn serve(
        &mut self,
        plan: &[(u32, Reached)],
        pipe: &mut UnixStream,
    ) -> Result<(Vec<(CmId, u32)>, Vec<(CmId, Seen)>)> {
        let (mut requests, mut accepted) = (Vec::new(), Vec::new());
        let mut unestablished = plan.iter().filter(|(_, reached)| *reached == Reached::Established).count();
        // The process does not wait for each of its messages, so that one may overtake another.
        while requests.len() + accepted.len() < plan.len() || unestablished > 0 {
            let event = next(self.listener.channel())?;
            match event.kind {
                EventKind::ConnectRequest(request) => {
                    let of = |(number, _): &&(u32, Reached)| starts_with(request.private_data(), *number);
                    let (number, reached) =
                        *plan.iter().find(of).context("the request of another process")?;
                    let id = request.into_id();
                    if reached == Reached::Asked {
                        requests.push((id, number));
                        continue;
                    }
                    id.accept(&ConnParam::new(number | 1))?;
                    let is_established = reached == Reached::Established;
                    accepted.push((id, if is_established { Seen::Disconnected } else { Seen::Dropped }));
                }
                EventKind::Established(_)
                    if accepted
                        .iter()
                        .any(|(id, seen)| id.key() == event.key && *seen == Seen::Disconnected) =>
                {
                    unestablished -= 1;
                    self.report.established += 1;
                }
                other => bail!("from a process: {other:?}"),
            }
        }
        pipe.read_exact(&mut [0]).context("waiting for the process")?;
        Ok((requests, accepted))
    }
}

/// An attempt of a process that is killed. Panics if it does not reach its state.
fn reach(addr: SocketAddr, number: u32, reached: Reached) -> CmId {
    let channel = EventChannel::new().expect("a channel");
    let id = ask(&channel, addr, number).expect("a request");
    if reached > Reached::Asked {
        let event = next(&channel).expect("a response");
        assert!(matches!(event.kind, EventKind::ConnectResponse(_)), "{:?}", event.kind);
    }
    if reached > Reached::Answered {
        id.establish().expect("established");
    }
    id
}

/// Sends a request.
fn ask(channel: &EventChannel, addr: SocketAddr, number: u32) -> Result<CmId> {
    let id = CmId::new(channel, PortSpace::Tcp)?;
    id.resolve_addr(None, addr, TIMEOUT)?;
    let event = next(channel)?;
    ensure!(event.key == id.key() && matches!(event.kind, EventKind::AddrResolved), "{:?}", event.kind);
    id.resolve_route(TIMEOUT)?;
    let event = next(channel)?;
    ensure!(event.key == id.key() && matches!(event.kind, EventKind::RouteResolved), "{:?}", event.kind);
    id.connect(&ConnParam { private_data: &number.to_be_bytes(), ..ConnParam::new(number) })?;
    Ok(id)
}

/// The next event that is no end of TIMEWAIT, which may come at any time.
fn next(channel: &EventChannel) -> Result<Event> {
    next_within(channel, TIMEOUT)
}

/// The same with a time limit of its own.
fn next_within(channel: &EventChannel, limit: Duration) -> Result<Event> {
    let end = Instant::now() + limit;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let event = channel.next().wait_timeout(left).context("no event in time")??;
        if !matches!(event.kind, EventKind::TimewaitExit) {
            return Ok(event);
        }
    }
}

/// Whether the retries of a message have ended.
fn is_unreachable(kind: &EventKind) -> bool {
    matches!(kind, EventKind::Unreachable(Unreachable::Errno(Errno::TIMEDOUT)))
}

fn starts_with(private_data: &[u8], number: u32) -> bool {
    private_data.starts_with(&number.to_be_bytes())
}

/// Whether the event is the predicted one of the attempt with this number.
fn is(kind: &EventKind, seen: Seen, number: u32) -> bool {
    match (kind, seen) {
        (EventKind::ConnectResponse(peer), Seen::Response) => peer.qp_num == number | 1,
        (EventKind::Established(_), Seen::Established) => true,
        (EventKind::Rejected(rejected), Seen::Rejected) => {
            rejected.reason == RejectReason::Consumer && starts_with(&rejected.private_data, number)
        }
        (EventKind::Rejected(rejected), Seen::Dropped) => {
            !rejected.private_data.iter().any(|byte| *byte != 0)
        }
        (EventKind::Disconnected(None), Seen::Disconnected) => true,
        _ => false,
    }
}
