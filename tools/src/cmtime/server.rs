//! The side that listens.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use bareverbs::qp::QpState;
use bareverbs_rdmacm::connection::Domains;
use bareverbs_rdmacm::event::EventKind;
use bareverbs_rdmacm::{CmId, ConnectRequest, EventChannel, Key};

use super::Progress;
use super::conn::{Next, Over, Queue, QueuePairs, Verbs, in_threads};
use super::mesh::Mesh;
use super::steps::{Report, Step, Times, Totals};
use crate::output;
use crate::session::connected::failure;
use crate::signal::{Stop, Timeout};

/// How long the clients have to end their connections, as in the C program. The message about the
/// end of one of many connections may be lost.
const DISCONNECT_LIMIT: Duration = Duration::from_secs(60);

/// A connection.
struct Conn {
    id: Arc<CmId>,
    queue: Queue,
    times: Times,
    has_ended: bool,
}

/// The server over its rounds.
pub(super) struct Server<'a> {
    /// The listener's; its connections have the same.
    channel: EventChannel,
    progress: Progress,
    stop: &'a Stop,
    /// One for each thread.
    verbs: Vec<Verbs>,
}

/// The connections of a round.
struct Round<'a> {
    channel: &'a EventChannel,
    stop: &'a Stop,
    progress: Progress,
    queues: &'a QueuePairs,
    connections: u32,
    conns: Mutex<HashMap<Key, Conn>>,
    /// Connections that are established, and that have ended.
    established: AtomicU32,
    ended: AtomicU32,
    first_request: OnceLock<Instant>,
    first_end: OnceLock<Instant>,
}

impl<'a> Server<'a> {
    pub(super) fn new(channel: EventChannel, threads: u32, progress: Progress, stop: &'a Stop) -> Self {
        let domains = Domains::default();
        let verbs = (0..threads).map(|_| Verbs::new(&domains)).collect();
        Self { channel, progress, stop, verbs }
    }

    /// Accepts connections and waits for their end.
    pub(super) fn round(
        &mut self,
        connections: u32,
        queues: &QueuePairs,
        mesh: &mut Mesh<'_>,
    ) -> Result<Report> {
        let round = Round {
            channel: &self.channel,
            stop: self.stop,
            progress: self.progress,
            queues,
            connections,
            conns: Mutex::default(),
            established: AtomicU32::new(0),
            ended: AtomicU32::new(0),
            first_request: OnceLock::new(),
            first_end: OnceLock::new(),
        };
        let mut totals = Totals::default();
        mesh.barrier(super::RESET)?;
        mesh.barrier(super::INITIALIZED)?;
        let over = Over::new()?;
        in_threads(&mut self.verbs, &over, |verbs| round.accept_all(verbs, &over))?;
        let elapsed = |start: &OnceLock<Instant>| start.get().map(Instant::elapsed).unwrap_or_default();
        totals.set(Step::Connect, elapsed(&round.first_request));
        mesh.barrier(super::CONNECTED)?;
        let over = Over::new()?;
        in_threads(&mut self.verbs, &over, |_| round.disconnect_all(&over))?;
        totals.set(Step::Disconnect, elapsed(&round.first_end));
        mesh.barrier(super::DISCONNECTED)?;
        let conns = round.conns.into_inner().unwrap_or_else(PoisonError::into_inner).into_values();
        let mut start = Instant::now();
        let first = start;
        let mut ids = Vec::with_capacity(connections as usize);
        for Conn { id, queue, mut times, .. } in conns {
            drop(queue);
            let end = Instant::now();
            times.took(Step::DestroyQp, start, end);
            ids.push((id, times));
            start = end;
        }
        totals.set(Step::DestroyQp, start - first);
        let (first, mut all) = (start, Vec::with_capacity(ids.len()));
        for (id, mut times) in ids {
            // No thread is left that uses it.
            drop(id);
            let end = Instant::now();
            times.took(Step::DestroyId, start, end);
            all.push(times);
            start = end;
        }
        totals.set(Step::DestroyId, start - first);
        let threads = self.verbs.len() as u32;
        Ok(Report::new(queues.are_real(), "server", threads, &totals, &all))
    }
}

impl Round<'_> {
    fn conns(&self) -> MutexGuard<'_, HashMap<Key, Conn>> {
        self.conns.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Accepts requests until all connections are established.
    fn accept_all(&self, verbs: &mut Verbs, over: &Over) -> Result<()> {
        while let Some(event) = over.next(self.channel, self.stop)? {
            match event.kind {
                EventKind::ConnectRequest(request) => self.accept(request, verbs)?,
                EventKind::Established(_) => {
                    if self.established.fetch_add(1, Ordering::Relaxed) + 1 == self.connections {
                        over.set();
                    }
                }
                other => {
                    if let Some(reason) = failure(&other, None) {
                        bail!(reason);
                    }
                }
            }
        }
        Ok(())
    }

    fn accept(&self, request: ConnectRequest, verbs: &mut Verbs) -> Result<()> {
        let now = Instant::now();
        if self.first_request.set(now).is_ok() {
            self.progress.say("\tAccepting")?;
        }
        let id = Arc::new(request.into_id());
        let mut times = Times::default();
        let (mut queue, mut start) = Queue::create(&id, self.queues, verbs, &mut times)?;
        for state in [QpState::INIT, QpState::RTR, QpState::RTS] {
            start = queue.modify(&id, state, &mut times, start)?;
        }
        let param = queue.param();
        {
            let mut conns = self.conns();
            ensure!(conns.len() < self.connections as usize, "there are more requests than connections (-c)");
            // Another thread may get its events as soon as it is accepted.
            conns.insert(id.key(), Conn { id: id.clone(), queue, times, has_ended: false });
        }
        Ok(id.accept(&param)?)
    }

    /// Answers the ends of all connections.
    fn disconnect_all(&self, over: &Over) -> Result<()> {
        loop {
            let mut limit = Timeout::after(DISCONNECT_LIMIT);
            match over.next_within(self.channel, self.stop, Some(&mut limit))? {
                Next::Event(event) => match event.kind {
                    EventKind::Disconnected(_) => {
                        let now = Instant::now();
                        if self.first_end.set(now).is_ok() {
                            self.progress.say("\tDisconnecting")?;
                        }
                        self.disconnect(event.key, over)?;
                    }
                    EventKind::DeviceRemoval => bail!("the device was removed"),
                    _ => {}
                },
                Next::Over => return Ok(()),
                Next::TimedOut => {
                    let open = |conns: &HashMap<Key, Conn>| -> Vec<Key> {
                        let open = conns.iter().filter(|(_, conn)| !conn.has_ended);
                        open.map(|(key, _)| *key).collect()
                    };
                    let open = open(&self.conns());
                    output::diagnostic(&format!(
                        "Timeout waiting for clients to disconnect (got {}/{})",
                        self.ended.load(Ordering::Relaxed),
                        self.connections
                    ));
                    open.into_iter().try_for_each(|key| self.disconnect(key, over))?;
                }
            }
        }
    }

    fn disconnect(&self, key: Key, over: &Over) -> Result<()> {
        let id = {
            let mut conns = self.conns();
            let Some(conn) = conns.get_mut(&key) else { return Ok(()) };
            if std::mem::replace(&mut conn.has_ended, true) {
                return Ok(());
            }
            conn.id.clone()
        };
        let start = Instant::now();
        id.disconnect()?;
        let end = Instant::now();
        drop(id);
        if let Some(conn) = self.conns().get_mut(&key) {
            conn.times.took(Step::Disconnect, start, end);
        }
        if self.ended.fetch_add(1, Ordering::Relaxed) + 1 == self.connections {
            over.set();
        }
        Ok(())
    }
}
