//! The connections of the measured queue pairs by the connection manager (`--cm`).

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use bareverbs::qp::{Qp, Rc};
use bareverbs::values::AckTimeout;
use bareverbs::{Access, Errno};
use bareverbs_rdmacm::event::{Event, EventKind};
use bareverbs_rdmacm::{CmId, ConnectOptions, EventChannel, PortSpace};

use super::control::{Control, OPTIONS};
use crate::session::address;
use crate::session::connected::{RESOLVE_LIMIT, failure, next_event_within};
use crate::session::exchange::{EXCHANGE_TIMEOUT, TIMEOUT_PER_QP};
use crate::signal::{Interrupted, Stop, Timeout, Wake};

/// Attempts of a client: perftest's server listens shortly after it has asked for connections.
const ATTEMPTS: u32 = 10;
/// The time between two attempts.
const PAUSE: Duration = Duration::from_millis(100);

/// What connections are requested or accepted with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    pub(crate) access: Access,
    /// Outstanding reads and atomics; 0 for other operations.
    pub(crate) rd_atomic: u8,
    pub(crate) timeout: AckTimeout,
}

/// The connections of a run. They end when this is dropped.
pub(crate) struct Connections<'s> {
    channel: EventChannel,
    ids: Vec<CmId>,
    request: Request,
    /// The identifier of a server that listens.
    listener: Option<CmId>,
    /// The address of a client's server.
    server: Option<SocketAddr>,
    /// The control connection: a server accepts connections of its peer only.
    control: &'s Control<'s>,
    stop: &'s Stop,
}

impl<'s> Connections<'s> {
    /// Of the server `host`, or as the server.
    pub(crate) fn new(
        (host, port): (Option<&str>, u16),
        request: Request,
        control: &'s Control<'s>,
        stop: &'s Stop,
    ) -> Result<Self> {
        let channel = EventChannel::new()?;
        let (mut listener, mut server) = (None, None);
        match host {
            Some(host) => server = Some(address::first(host, port)?),
            None => {
                let id = listener.insert(CmId::new(&channel, PortSpace::Tcp)?);
                id.bind_addr(address::to_bind(None, port)?)?;
                id.listen(0)?;
            }
        }
        Ok(Self { channel, ids: Vec::new(), request, listener, server, control, stop })
    }

    /// Connects queue pairs in RESET, and moves them to RTS.
    pub(crate) fn connect(&mut self, mut queue_pairs: Vec<&mut Qp<Rc>>) -> Result<()> {
        let more = TIMEOUT_PER_QP * u32::try_from(queue_pairs.len()).unwrap_or(u32::MAX);
        let limit = &mut Timeout::after(EXCHANGE_TIMEOUT + more);
        match self.server {
            None => self.accept(&mut queue_pairs, limit)?,
            Some(server) => {
                // One after the other, so that those of both sides are in the same order.
                for qp in queue_pairs {
                    let id = self.connect_one(server, qp, limit)?;
                    self.ids.push(id);
                }
            }
        }
        self.listener = None;
        Ok(())
    }

    fn connect_one(&self, server: SocketAddr, qp: &mut Qp<Rc>, limit: &mut Timeout) -> Result<CmId> {
        for attempt in 1.. {
            let id = CmId::new(&self.channel, PortSpace::Tcp)?;
            id.set_ack_timeout(self.request.timeout)?;
            id.resolve_addr(None, server, RESOLVE_LIMIT)?;
            loop {
                let Event { key, kind, .. } = self.next(limit)?;
                if key != id.key() {
                    continue;
                }
                match kind {
                    EventKind::AddrResolved => id.resolve_route(RESOLVE_LIMIT)?,
                    EventKind::RouteResolved => match id.connect_qp(qp, &self.options()) {
                        // On iWARP, a TCP port on which nothing listens.
                        Err(error) if error.errno() == Some(Errno::CONNREFUSED) && attempt < ATTEMPTS => {
                            break;
                        }
                        sent => sent?,
                    },
                    EventKind::Rejected(_) if attempt < ATTEMPTS => break,
                    kind => {
                        if let Some(reason) = failure(&kind, Some(&id)) {
                            bail!(reason);
                        }
                        if id.establish_qp(qp, &self.options(), kind)? {
                            return Ok(id);
                        }
                    }
                }
            }
            if self.stop.sleep(Instant::now() + PAUSE)? == Wake::Stopped {
                return Err(Interrupted.into());
            }
        }
        unreachable!("the last attempt returns")
    }

    fn accept(&mut self, queue_pairs: &mut [&mut Qp<Rc>], limit: &mut Timeout) -> Result<()> {
        let mut established = 0;
        while established < queue_pairs.len() {
            let Event { kind, .. } = self.next(limit).with_context(|| {
                format!("{established} of {} connections are established", queue_pairs.len())
            })?;
            match kind {
                EventKind::ConnectRequest(request)
                    if !self.control.is_of_peer(&request.id().addresses()?) =>
                {
                    // It fails if the other host has given up.
                    let _ = request.reject(&[]);
                }
                EventKind::ConnectRequest(request) => {
                    let Some(qp) = queue_pairs.get_mut(self.ids.len()) else {
                        bail!("the client asks for more than {} connections (-q)", queue_pairs.len());
                    };
                    request.id().set_ack_timeout(self.request.timeout)?;
                    self.ids.push(request.accept_qp(*qp, &self.options())?);
                }
                EventKind::Established(_) => established += 1,
                kind => {
                    if let Some(reason) = failure(&kind, None) {
                        bail!(reason);
                    }
                }
            }
        }
        Ok(())
    }

    fn options(&self) -> ConnectOptions<'static> {
        let Request { access, rd_atomic, .. } = self.request;
        ConnectOptions { access, rd_atomic, ..OPTIONS }
    }

    fn next(&self, limit: &mut Timeout) -> Result<Event> {
        let event = next_event_within(&self.channel, self.stop, Some(limit))?;
        event.context("the peer does not answer the connection manager (--cm)")
    }
}
