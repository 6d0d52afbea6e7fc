//! The side that connects.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use bareverbs::qp::QpState;
use bareverbs_rdmacm::connection::Domains;
use bareverbs_rdmacm::event::EventKind;
use bareverbs_rdmacm::{Addr, CmId, EventChannel, Key, PortSpace};

use super::Progress;
use super::conn::{Next, Over, Queue, QueuePairs, Verbs, in_threads};
use super::mesh::Mesh;
use super::steps::{Report, Step, Times, Totals};
use crate::session::connected::failure;
use crate::signal::{Stop, Timeout};

/// How long the client waits for the answers to the ends of its connections. A peer may have lost one,
/// and the kernel repeats the message.
const END_LIMIT: Duration = Duration::from_secs(10);

/// What all connections have in common.
pub(super) struct Plan {
    pub(super) source: SocketAddr,
    /// The peers that listen. The connections take turns.
    pub(super) listeners: Vec<SocketAddr>,
    pub(super) timeout: Duration,
    /// Repetitions of the resolution of an address, and of a route.
    pub(super) retries: u32,
}

/// A connection.
struct Conn {
    id: CmId,
    queue: Option<Queue>,
    times: Times,
    retries: u32,
    target: SocketAddr,
}

/// The connections of a thread, which share an event channel.
struct Shard {
    channel: EventChannel,
    verbs: Verbs,
    targets: Vec<SocketAddr>,
    conns: Vec<Conn>,
    index: HashMap<Key, usize>,
    /// The times of the connections of the round that were destroyed.
    ended: Vec<Times>,
}

/// The client over its rounds.
pub(super) struct Client<'a> {
    plan: &'a Plan,
    progress: Progress,
    stop: &'a Stop,
    shards: Vec<Shard>,
}

impl<'a> Client<'a> {
    pub(super) fn new(plan: &'a Plan, threads: u32, progress: Progress, stop: &'a Stop) -> Result<Self> {
        let domains = Domains::default();
        let shard = |_| {
            let (channel, verbs) = (EventChannel::new()?, Verbs::new(&domains));
            let (targets, conns, ended) = (Vec::new(), Vec::new(), Vec::new());
            Ok(Shard { channel, verbs, targets, conns, index: HashMap::new(), ended })
        };
        Ok(Self { plan, progress, stop, shards: (0..threads).map(shard).collect::<Result<_>>()? })
    }

    /// Makes connections and ends them.
    pub(super) fn round(
        &mut self,
        connections: u32,
        queues: &QueuePairs,
        mesh: &mut Mesh<'_>,
    ) -> Result<Report> {
        let (plan, threads) = (self.plan, self.shards.len());
        let mut targets = plan.listeners.iter().copied().cycle().take(connections as usize);
        for (at, shard) in self.shards.iter_mut().enumerate() {
            let share = connections as usize / threads + usize::from(at < connections as usize % threads);
            shard.targets = targets.by_ref().take(share).collect();
        }
        let mut totals = Totals::default();
        mesh.barrier(super::RESET)?;
        let start = Instant::now();
        self.phase("Creating IDs", Step::CreateId, &mut totals, Shard::create_ids)?;
        self.phase("Binding addresses", Step::Bind, &mut totals, |shard, _| shard.bind(plan.source))?;
        let stop = self.stop;
        self.phase("Resolving addresses", Step::ResolveAddr, &mut totals, |shard, over| {
            shard.resolve_addrs(plan, over, stop)
        })?;
        self.phase("Resolving routes", Step::ResolveRoute, &mut totals, |shard, over| {
            shard.resolve_routes(plan, over, stop)
        })?;
        self.phase("Creating QPs", Step::CreateQp, &mut totals, |shard, _| shard.create_qps(queues))?;
        self.phase("Modify QPs to INIT", Step::InitQp, &mut totals, |shard, _| shard.init_qps())?;
        mesh.barrier(super::INITIALIZED)?;
        self.phase("Connecting", Step::Connect, &mut totals, |shard, over| shard.connect(over, stop))?;
        totals.set(Step::FullConnect, start.elapsed());
        mesh.barrier(super::CONNECTED)?;
        self.phase("Disconnecting", Step::Disconnect, &mut totals, |shard, _| shard.disconnect())?;
        let over = Over::new()?;
        in_threads(&mut self.shards, &over, |shard| shard.read_ends(&over, stop))?;
        mesh.barrier(super::DISCONNECTED)?;
        self.phase("Destroying QPs", Step::DestroyQp, &mut totals, |shard, _| shard.destroy_qps())?;
        self.phase("Destroying IDs", Step::DestroyId, &mut totals, |shard, _| shard.destroy_ids())?;
        let times: Vec<Times> = self.shards.iter_mut().flat_map(|shard| shard.ended.drain(..)).collect();
        Ok(Report::new(queues.are_real(), "client", threads as u32, &totals, &times))
    }

    /// Runs a step of all connections.
    fn phase(
        &mut self,
        title: &str,
        step: Step,
        totals: &mut Totals,
        work: impl Fn(&mut Shard, &Over) -> Result<()> + Sync,
    ) -> Result<()> {
        self.progress.say(&format!("\t{title}"))?;
        let over = Over::new()?;
        let start = Instant::now();
        in_threads(&mut self.shards, &over, |shard| work(shard, &over))?;
        totals.set(step, start.elapsed());
        Ok(())
    }
}

impl Shard {
    fn create_ids(&mut self, _: &Over) -> Result<()> {
        let mut start = Instant::now();
        for target in self.targets.drain(..) {
            let mut times = Times::default();
            times.start(Step::FullConnect, start);
            let id = CmId::new(&self.channel, PortSpace::Tcp)?;
            self.index.insert(id.key(), self.conns.len());
            let end = Instant::now();
            times.took(Step::CreateId, start, end);
            self.conns.push(Conn { id, queue: None, times, retries: 0, target });
            start = end;
        }
        Ok(())
    }

    /// A step of each connection that is done when its call returns.
    fn each(&mut self, step: Step, mut call: impl FnMut(&mut Conn) -> Result<()>) -> Result<()> {
        let mut start = Instant::now();
        for conn in &mut self.conns {
            call(conn)?;
            let end = Instant::now();
            conn.times.took(step, start, end);
            start = end;
        }
        Ok(())
    }

    /// The begin of a step that an event ends.
    fn begin(
        &mut self,
        step: Step,
        retries: u32,
        mut call: impl FnMut(&mut Conn) -> Result<()>,
    ) -> Result<()> {
        for conn in &mut self.conns {
            conn.retries = retries;
            conn.times.start(step, Instant::now());
            call(conn)?;
        }
        Ok(())
    }

    /// Handles events until each connection has had the one that `is_it` takes.
    fn until_all(
        &mut self,
        over: &Over,
        stop: &Stop,
        mut is_it: impl FnMut(&mut Conn, &EventKind) -> Result<bool>,
    ) -> Result<()> {
        let mut left = self.conns.len();
        while left > 0 {
            // If another thread has failed, its error is the result.
            let Some(event) = over.next(&self.channel, stop)? else { return Ok(()) };
            let Some(conn) = self.index.get(&event.key).and_then(|at| self.conns.get_mut(*at)) else {
                continue;
            };
            if is_it(conn, &event.kind)? {
                left -= 1;
            } else if let Some(reason) = failure(&event.kind, Some(&conn.id)) {
                bail!(reason);
            }
        }
        Ok(())
    }

    fn bind(&mut self, source: SocketAddr) -> Result<()> {
        self.each(Step::Bind, |conn| Ok(conn.id.bind_addr(source)?))
    }

    fn resolve_addrs(&mut self, plan: &Plan, over: &Over, stop: &Stop) -> Result<()> {
        let source = Some(Addr::from(plan.source));
        let resolve = |conn: &mut Conn| Ok(conn.id.resolve_addr(source, conn.target, plan.timeout)?);
        self.begin(Step::ResolveAddr, plan.retries, resolve)?;
        self.until_all(over, stop, |conn, kind| match kind {
            EventKind::AddrResolved => {
                conn.times.end(Step::ResolveAddr, Instant::now());
                Ok(true)
            }
            EventKind::AddrError(errno) => {
                conn.retry(&format!("cannot resolve the address: {errno}"))?;
                resolve(conn).map(|()| false)
            }
            _ => Ok(false),
        })
    }

    fn resolve_routes(&mut self, plan: &Plan, over: &Over, stop: &Stop) -> Result<()> {
        let resolve = |conn: &mut Conn| Ok(conn.id.resolve_route(plan.timeout)?);
        self.begin(Step::ResolveRoute, plan.retries, resolve)?;
        self.until_all(over, stop, |conn, kind| match kind {
            EventKind::RouteResolved => {
                conn.times.end(Step::ResolveRoute, Instant::now());
                Ok(true)
            }
            EventKind::RouteError(status) => {
                conn.retry(&format!("cannot resolve the route: {status}"))?;
                resolve(conn).map(|()| false)
            }
            _ => Ok(false),
        })
    }

    fn create_qps(&mut self, queues: &QueuePairs) -> Result<()> {
        for conn in &mut self.conns {
            conn.queue = Some(Queue::create(&conn.id, queues, &mut self.verbs, &mut conn.times)?.0);
        }
        Ok(())
    }

    fn init_qps(&mut self) -> Result<()> {
        let mut start = Instant::now();
        for conn in &mut self.conns {
            start = conn.modify(QpState::INIT, start)?;
        }
        Ok(())
    }

    fn connect(&mut self, over: &Over, stop: &Stop) -> Result<()> {
        self.begin(Step::Connect, 0, |conn| {
            let Some(queue) = &conn.queue else { bail!("the connection has no queue pair") };
            Ok(conn.id.connect(&queue.param())?)
        })?;
        self.until_all(over, stop, |conn, kind| {
            let mut end = Instant::now();
            match kind {
                EventKind::ConnectResponse(_) => {
                    let start = conn.modify(QpState::RTR, end)?;
                    let start = conn.modify(QpState::RTS, start)?;
                    conn.id.establish()?;
                    end = Instant::now();
                    conn.times.took(Step::Establish, start, end);
                }
                // The kernel of an iWARP device has done these steps.
                EventKind::Established(_) => {}
                _ => return Ok(false),
            }
            conn.times.end(Step::Connect, end);
            conn.times.end(Step::FullConnect, end);
            Ok(true)
        })
    }

    fn disconnect(&mut self) -> Result<()> {
        self.each(Step::Disconnect, |conn| Ok(conn.id.disconnect()?))
    }

    /// Reads the answers to the ends of the connections, which belong to no step. The destruction of an
    /// identifier would include the kernel's work for an answer that arrives meanwhile.
    fn read_ends(&mut self, over: &Over, stop: &Stop) -> Result<()> {
        let (mut left, mut limit) = (self.conns.len(), Timeout::after(END_LIMIT));
        while left > 0 {
            let Next::Event(event) = over.next_within(&self.channel, stop, Some(&mut limit))? else { break };
            match event.kind {
                EventKind::Disconnected(_) => left -= 1,
                EventKind::DeviceRemoval => bail!("the device was removed"),
                _ => {}
            }
        }
        Ok(())
    }

    fn destroy_qps(&mut self) -> Result<()> {
        self.each(Step::DestroyQp, |conn| {
            conn.queue = None;
            Ok(())
        })
    }

    fn destroy_ids(&mut self) -> Result<()> {
        let mut start = Instant::now();
        for Conn { id, mut times, .. } in self.conns.drain(..) {
            id.destroy()?;
            let end = Instant::now();
            times.took(Step::DestroyId, start, end);
            self.ended.push(times);
            start = end;
        }
        self.index.clear();
        Ok(())
    }
}

impl Conn {
    /// Counts a repetition. Fails with `reason` if there are none left.
    fn retry(&mut self, reason: &str) -> Result<()> {
        match self.retries.checked_sub(1) {
            Some(left) => self.retries = left,
            None => bail!("{reason}"),
        }
        Ok(())
    }

    fn modify(&mut self, state: QpState, start: Instant) -> Result<Instant> {
        let Some(queue) = &mut self.queue else { bail!("the connection has no queue pair") };
        queue.modify(&self.id, state, &mut self.times, start)
    }
}
