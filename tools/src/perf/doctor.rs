//! `bareverbs perf doctor`: checks of this machine and of the path to another host.
//!
//! The doctor at the other end (`--serve`) checks its own machine when it is asked, and is the
//! passive end of connections and datagrams.

mod control;
mod finding;
mod judge;
mod local;
mod probe;

use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result};
use bareverbs::values::Mtu;
use serde::Serialize;

use self::control::{Answer, Control, ControlError, Question};
use self::finding::{Check, Finding, Level, Place};
use self::judge::{Facts, Figures};
use self::local::End;
use self::probe::{Active, DATAGRAMS, Passive, Postcards, ProbeError};
use super::counters::Snapshot;
use crate::cli::doctor::DoctorOptions;
use crate::output;
use crate::session::exchange::{ExchangeError, Peer, Server};
use crate::signal::Stop;

/// The time in which the other end answers.
const ANSWER: Duration = Duration::from_secs(10);
/// The time in which it checks its machine.
const EXAMINATION: Duration = Duration::from_secs(60);
/// The time between two questions of a client. A step of the client takes less.
const QUESTION: Duration = Duration::from_secs(60);

/// The exit status is that of an error: something does not work.
#[derive(Debug, thiserror::Error)]
#[error("the doctor found {count} fault{}", if *count == 1 { "" } else { "s" })]
pub(crate) struct Faults {
    count: usize,
}

/// The results as JSON.
#[derive(Debug, Serialize)]
struct Report<'a> {
    program: &'static str,
    version: &'static str,
    /// The worst level of the findings.
    verdict: Level,
    findings: &'a [Finding],
    /// Facts about this end and the peer; `null` if they are not known.
    local: Option<&'a Facts>,
    peer: Option<&'a Facts>,
    /// Figures of the path.
    path: Option<Figures>,
}

/// The findings so far.
struct Log {
    findings: Vec<Finding>,
    print: bool,
}

impl Log {
    fn add(&mut self, finding: Finding) {
        if self.print {
            // A closed output is reported with the results.
            let _ = output::line(&finding.lines());
        }
        self.findings.push(finding);
    }

    fn path(&mut self, level: Level, check: Check, text: impl Into<String>, remedy: &str) {
        let finding = Finding::new(level, Place::Path, check, text);
        self.add(if remedy.is_empty() { finding } else { finding.remedy(remedy) });
    }
}

/// What the checks of the path found.
#[derive(Default)]
struct Seen {
    peer: Option<Facts>,
    figures: Option<Figures>,
}

/// `bareverbs perf doctor`.
pub(crate) fn run(options: &DoctorOptions) -> Result<()> {
    let stop = Stop::on_signals().context("cannot set up signal handling")?;
    let mut log = Log { findings: Vec::new(), print: !options.json };
    // Listening begins before the checks, so that a client need not wait for them.
    let server = options.serve.then(|| Server::listen_for(options.port, 16)).transpose()?;
    let end = local::examine(options, stop, &mut |finding| log.add(finding))?;
    let mut seen = Seen::default();
    if let Some(host) = &options.host {
        check_path(host, options, end.as_ref(), stop, &mut log, &mut seen)?;
    }
    let verdict = log.findings.iter().map(|finding| finding.level).max().unwrap_or(Level::Ok);
    let faults = log.findings.iter().filter(|finding| finding.level == Level::Fault).count();
    if options.json {
        output::line(&serde_json::to_string_pretty(&Report {
            program: "bareverbs perf doctor",
            version: env!("CARGO_PKG_VERSION"),
            verdict,
            findings: &log.findings,
            local: end.as_ref().map(|end| &end.facts),
            peer: seen.peer.as_ref(),
            path: seen.figures,
        })?)?;
    } else if faults == 0 {
        output::line(match verdict {
            Level::Warning => "no faults, but warnings",
            _ => "no faults",
        })?;
    }
    if let Some(server) = server {
        // The device is not kept: another process may remove it meanwhile.
        drop(end);
        return serve(options, &server, stop);
    }
    if faults > 0 { Err(Faults { count: faults }.into()) } else { Ok(()) }
}

/// Answers one client after the other.
fn serve(options: &DoctorOptions, server: &Server, stop: &Stop) -> Result<()> {
    output::diagnostic(&format!("waiting for clients on TCP port {}", options.port));
    loop {
        let peer = server.accept(stop)?;
        peer.keep_alive()?;
        match answer_all(options, &Control::new(peer, stop), stop) {
            Ok(()) => output::diagnostic("a client has ended its checks"),
            Err(error) => {
                stop.check()?;
                output::diagnostic(&format!("the checks of a client ended early: {error:#}"));
            }
        }
    }
}

/// Answers the questions of a client, until it closes the connection.
fn answer_all(options: &DoctorOptions, control: &Control<'_>, stop: &Stop) -> Result<()> {
    let mut end: Option<End> = None;
    let mut before: Option<Snapshot> = None;
    loop {
        let question = match control.receive(QUESTION) {
            Ok(question) => question,
            Err(ControlError::Closed) => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        match question {
            Question::Examine => {
                let mut findings = Vec::new();
                end = local::examine(options, stop, &mut |finding| findings.push(finding))?;
                let facts = end.as_ref().map(|end| Box::new(end.facts.clone()));
                before = facts.as_ref().map(|facts| Snapshot::take(&facts.device, facts.port));
                control.send(&Answer::Examined { findings, facts, clock: Some(clock()) })?;
            }
            Question::Counters => {
                let counters = end
                    .as_ref()
                    .zip(before.as_ref())
                    .map(|(end, before)| Snapshot::take(&end.facts.device, end.facts.port).since(before))
                    .unwrap_or_default();
                let findings = end.as_ref().map(End::changes).unwrap_or_default();
                control.send(&Answer::Counters { counters, findings })?;
            }
            other => {
                if let Err(error) = answer(other, end.as_ref(), control, stop) {
                    stop.check()?;
                    control.send(&Answer::Failed(format!("{error:#}")))?;
                }
            }
        }
    }
}

/// Answers a question that needs the device, and all that belong to it.
fn answer(question: Question, end: Option<&End>, control: &Control<'_>, stop: &Stop) -> Result<()> {
    let end = end.context("the device can't be used, or `Examine` was not requested before")?;
    match question {
        Question::Connect { address, mtu } => {
            let mtu = Mtu::from_bytes(mtu).context("the path MTU is not 256, 512, 1024, 2048 or 4096")?;
            let mut passive = Passive::new(end.origin(stop), mtu)?;
            passive.connect(&address)?;
            control.send(&Answer::Connected(passive.invitation()?))?;
            // The connection exists until the client has ended its part.
            match control.receive::<Question>(QUESTION)? {
                Question::Disconnect => Ok(control.send(&Answer::Disconnected)?),
                other => anyhow::bail!("{other:?} within a connection"),
            }
        }
        Question::Datagrams { count } => {
            let mut postcards = Postcards::new(end.origin(stop), count)?;
            control.send(&Answer::Datagrams { address: postcards.address() })?;
            match control.receive::<Question>(QUESTION)? {
                Question::Echo { address } => {
                    let received = postcards.echo(&address)?;
                    Ok(control.send(&Answer::Echoed { received })?)
                }
                other => anyhow::bail!("{other:?} in place of `Echo`"),
            }
        }
        other => anyhow::bail!("{other:?} was not expected"),
    }
}

/// Checks the path to the doctor at `host`. Errors are those of this program, not of the path.
fn check_path(
    host: &str,
    options: &DoctorOptions,
    end: Option<&End>,
    stop: &Stop,
    log: &mut Log,
    seen: &mut Seen,
) -> Result<()> {
    let control = match Peer::connect(host, options.port, stop) {
        Ok(peer) => Control::new(peer, stop),
        Err(error) => {
            stop.check()?;
            let remedy = match error {
                ExchangeError::NoAddress { .. } => "check the name and the name server, or use an address",
                _ => "start `bareverbs perf doctor --serve` there, and open the TCP port in its firewall",
            };
            let error = anyhow::Error::from(error);
            log.path(Level::Fault, Check::Peer, format!("{error:#}"), remedy);
            return Ok(());
        }
    };
    let mut path = PathCheck { control: &control, stop, log, seen };
    match path.run(end) {
        Ok(()) => Ok(()),
        Err(error) => {
            stop.check()?;
            let remedy = match error {
                ControlError::OtherProtocol(_) => "install the same version of the program on both ends",
                _ => "is `bareverbs perf doctor --serve` of the same version still running there?",
            };
            log.path(Level::Fault, Check::Peer, error.to_string(), remedy);
            Ok(())
        }
    }
}

/// The clock, in seconds since 1970.
fn clock() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// The client's part.
struct PathCheck<'a> {
    control: &'a Control<'a>,
    stop: &'a Stop,
    log: &'a mut Log,
    seen: &'a mut Seen,
}

/// An answer that does not fit the question.
fn unexpected(answer: Answer) -> ControlError {
    let text = match answer {
        Answer::Failed(text) => text,
        other => format!("{other:?}"),
    };
    ControlError::Unexpected(text)
}

impl PathCheck<'_> {
    /// All checks. Only the control connection fails.
    fn run(&mut self, end: Option<&End>) -> Result<(), ControlError> {
        let peer = match self.control.ask(&Question::Examine, EXAMINATION)? {
            Answer::Examined { findings, facts, clock: theirs } => {
                let skew = theirs.and_then(|theirs| judge::clocks(clock(), theirs));
                for finding in findings {
                    self.log.add(Finding { place: Place::Peer, ..finding });
                }
                skew.into_iter().for_each(|finding| self.log.add(finding));
                facts
            }
            other => return Err(unexpected(other)),
        };
        let (Some(end), Some(peer)) = (end, peer) else {
            self.log.path(Level::Note, Check::Ends, "the path was not checked: a device can't be used", "");
            return Ok(());
        };
        self.seen.peer = Some((*peer).clone());
        let findings = judge::ends(&end.facts, &peer);
        let can_connect = findings.iter().all(|finding| finding.level < Level::Fault);
        findings.into_iter().for_each(|finding| self.log.add(finding));
        if !can_connect {
            self.log.path(Level::Note, Check::Rc, "the path was not checked: the ports don't match", "");
            return Ok(());
        }
        let before = Snapshot::take(&end.facts.device, end.facts.port);
        self.reliable(end, &peer)?;
        self.datagrams(end)?;
        let ours = Snapshot::take(&end.facts.device, end.facts.port).since(&before);
        end.changes().into_iter().for_each(|finding| self.log.add(finding));
        let (theirs, findings) = match self.control.ask(&Question::Counters, ANSWER)? {
            Answer::Counters { counters, findings } => (counters, findings),
            other => return Err(unexpected(other)),
        };
        for finding in findings {
            self.log.add(Finding { place: Place::Peer, ..finding });
        }
        self.log.add(judge::counters(Place::Local, &ours));
        self.log.add(judge::counters(Place::Peer, &theirs));
        Ok(())
    }

    /// Finds the largest path MTU that works, and measures with it.
    fn reliable(&mut self, end: &End, peer: &Facts) -> Result<(), ControlError> {
        let largest = Mtu::from_bytes(peer.mtu).map_or(end.mtu, |mtu| mtu.min(end.mtu));
        let all = [Mtu::Mtu4096, Mtu::Mtu2048, Mtu::Mtu1024, Mtu::Mtu512, Mtu::Mtu256];
        let mut last = None;
        for mtu in all.into_iter().filter(|mtu| *mtu <= largest) {
            let mut measured = None;
            match self.connection(end, peer, mtu, &mut measured)? {
                Ok(()) => {
                    self.log.path(Level::Ok, Check::Rc, "an RC connection works in both directions", "");
                    self.log.add(judge::mtu(largest, mtu));
                    self.figures(measured, end, peer);
                    return Ok(());
                }
                Err(error @ ProbeError::Setup(_)) => {
                    last = Some(error);
                    break;
                }
                // A smaller packet may pass. Soft-RoCE fails a request whose packet its own interface
                // drops.
                Err(error) => last = Some(error),
            }
        }
        let text = last.map_or_else(|| "no path MTU fits".to_owned(), |error| format!("RC: {error:#}"));
        let remedy = if end.facts.ethernet {
            "check that UDP port 4791 is open in both directions, that both GIDs (-x) belong to one network and \
             VLAN, that a route to the peer's GID exists, that its entry in the neighbour table is \
             right (ip neigh), and that no other host has its IP address (arping -D)"
        } else {
            "check the LIDs, the partition (P_Key) and the subnet manager"
        };
        self.log.path(Level::Fault, Check::Rc, text, remedy);
        Ok(())
    }

    /// A connection with this path MTU. If its packets pass, it is measured.
    fn connection(
        &mut self,
        end: &End,
        peer: &Facts,
        mtu: Mtu,
        measured: &mut Option<Result<Figures, ProbeError>>,
    ) -> Result<Result<(), ProbeError>, ControlError> {
        let mut active = match Active::new(end.origin(self.stop), mtu) {
            Ok(active) => active,
            Err(error) => return Ok(Err(ProbeError::Setup(error))),
        };
        let question = Question::Connect { address: active.address(), mtu: mtu.bytes() };
        let invitation = match self.control.ask(&question, ANSWER)? {
            Answer::Connected(invitation) => invitation,
            Answer::Failed(text) => {
                return Ok(Err(ProbeError::Setup(anyhow::anyhow!("the peer can't connect: {text}"))));
            }
            other => return Err(unexpected(other)),
        };
        let mut result = active.connect(&invitation).map_err(ProbeError::Setup);
        if result.is_ok() {
            result = active.packets(mtu.bytes() as usize);
        }
        if result.is_ok() {
            let first = active.measure();
            let is_slow = |figures: &Figures| {
                let findings = judge::bandwidths(figures, &end.facts, peer);
                findings.iter().any(|finding| finding.level == Level::Fault)
            };
            // A busy machine may have slept during the first measurement.
            *measured = Some(match first {
                Ok(first) if is_slow(&first) => active.measure().map(|second| first.best(second)),
                first => first,
            });
        }
        match self.control.ask(&Question::Disconnect, ANSWER)? {
            Answer::Disconnected => Ok(result),
            other => Err(unexpected(other)),
        }
    }

    fn figures(&mut self, measured: Option<Result<Figures, ProbeError>>, end: &End, peer: &Facts) {
        match measured {
            Some(Ok(figures)) => {
                self.seen.figures = Some(figures);
                self.log.add(judge::latency(&figures, &end.facts, peer));
                for finding in judge::bandwidths(&figures, &end.facts, peer) {
                    self.log.add(finding);
                }
            }
            Some(Err(error)) => {
                let text = format!("single packets pass, but the connection fails under load: {error:#}");
                let remedy = "the path loses or reorders packets under load: look at drops of switches and \
                              interfaces, at paths in parallel, and at flow control (PFC, pauses)";
                self.log.path(Level::Fault, Check::Bandwidth, text, remedy);
            }
            None => {}
        }
    }

    /// Sends datagrams, which the peer echoes.
    fn datagrams(&mut self, end: &End) -> Result<(), ControlError> {
        let fault = |log: &mut Log, text: String| {
            log.path(Level::Fault, Check::Ud, text, "check the GIDs (-x) and the route to the peer's GID");
        };
        let theirs = match self.control.ask(&Question::Datagrams { count: DATAGRAMS }, ANSWER)? {
            Answer::Datagrams { address } => address,
            Answer::Failed(text) => {
                fault(self.log, format!("the peer can't receive datagrams: {text}"));
                return Ok(());
            }
            other => return Err(unexpected(other)),
        };
        let prepared = Postcards::new(end.origin(self.stop), DATAGRAMS);
        let address = prepared.as_ref().map_or_else(|_| String::new(), Postcards::address);
        self.control.send(&Question::Echo { address })?;
        let echoed = prepared.and_then(|mut postcards| postcards.send_all(&theirs));
        match (self.control.receive(EXAMINATION)?, echoed) {
            (Answer::Echoed { received }, Ok(echoed)) => {
                self.log.add(judge::datagrams(DATAGRAMS, received, echoed));
            }
            (_, Err(error)) => fault(self.log, format!("UD: {error:#}")),
            (Answer::Failed(text), _) => fault(self.log, format!("the peer can't echo datagrams: {text}")),
            (other, _) => return Err(unexpected(other)),
        }
        Ok(())
    }
}
