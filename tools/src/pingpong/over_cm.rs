//! The exchange of address records by the connection manager (`--cm`).
//!
//! Each queue pair has an identifier, whose request and response carry the records of both sides as
//! private data. For UD, the request is for the server's QPN.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use bareverbs::qp::QpType;
use bareverbs_rdmacm::event::{EstablishedParam, Event, EventKind, UdPeer};
use bareverbs_rdmacm::{CmId, ConnParam, EventChannel, PeerParam, PortSpace, PrivateData};

use super::queues::Queues;
use super::record::{RECORD_LEN, Record};
use super::run::Endpoint;
use crate::cli::pingpong::{Config, Kind};
use crate::session::address;
use crate::session::connected::{RESOLVE_LIMIT, failure, next_event_within};
use crate::session::exchange::{EXCHANGE_TIMEOUT, TIMEOUT_PER_QP};
use crate::session::path::LocalPort;
use crate::signal::{Stop, Timeout};

/// The identifiers of the queue pairs.
pub(super) struct Manager<'a> {
    channel: EventChannel,
    ids: Vec<CmId>,
    /// The records of the client's requests, for a server.
    requests: Vec<Record>,
    kind: Kind,
    stop: &'a Stop,
}

impl<'a> Manager<'a> {
    /// Waits for the requests of a client, or resolves the routes to the server.
    pub(super) fn open(config: &Config<'_>, stop: &'a Stop) -> Result<Self> {
        let (channel, kind) = (EventChannel::new()?, config.kind);
        let mut manager = Self { channel, ids: Vec::new(), requests: Vec::new(), kind, stop };
        let (port, count) = (config.common.port, config.num_qp as usize);
        match &config.common.host {
            Some(host) => manager.resolve(address::first(host, port)?, count)?,
            None => manager.listen(port, count)?,
        }
        Ok(manager)
    }

    /// An identifier for queue pairs of the kind.
    fn create(&self) -> Result<CmId> {
        Ok(match self.kind {
            Kind::Rc | Kind::Srq => CmId::new(&self.channel, PortSpace::Tcp)?,
            // The port space TCP implies RC.
            Kind::Uc => CmId::with_qp_type(&self.channel, PortSpace::Ib, QpType::UC)?,
            Kind::Ud => CmId::new(&self.channel, PortSpace::Udp)?,
        })
    }

    fn next(&self, limit: Option<&mut Timeout>) -> Result<Option<Event>> {
        let event = next_event_within(&self.channel, self.stop, limit)?;
        if let Some(event) = &event {
            let id = self.ids.iter().find(|id| id.key() == event.key);
            if let Some(reason) = failure(&event.kind, id) {
                bail!(reason);
            }
        }
        Ok(event)
    }

    /// The time limit of a step, and of those for several queue pairs.
    fn limit(count: usize) -> Duration {
        EXCHANGE_TIMEOUT + TIMEOUT_PER_QP * u32::try_from(count).unwrap_or(u32::MAX)
    }

    fn listen(&mut self, port: u16, count: usize) -> Result<()> {
        let listener = self.create()?;
        listener.bind_addr(address::to_bind(None, port)?)?;
        listener.listen(0)?;
        let mut limit = Timeout::after(Self::limit(count));
        while self.ids.len() < count {
            // The wait for the client has no limit.
            let limit = if self.ids.is_empty() { None } else { Some(&mut limit) };
            let Some(event) = self.next(limit)? else {
                let came = self.ids.len();
                bail!("the client asked for {came} of {count} queue pairs: both sides need the same -q");
            };
            if let EventKind::ConnectRequest(request) = event.kind {
                self.requests.push(record(request.private_data())?);
                self.ids.push(request.into_id());
            }
        }
        Ok(())
    }

    fn resolve(&mut self, server: std::net::SocketAddr, count: usize) -> Result<()> {
        for _ in 0..count {
            let id = self.create()?;
            id.resolve_addr(None, server, RESOLVE_LIMIT)?;
            self.ids.push(id);
        }
        let mut left = count;
        while left > 0 {
            let Some(Event { key, kind, .. }) = self.next(None)? else { continue };
            match kind {
                EventKind::AddrResolved => {
                    if let Some(id) = self.ids.iter().find(|id| id.key() == key) {
                        id.resolve_route(RESOLVE_LIMIT)?;
                    }
                }
                EventKind::RouteResolved => left -= 1,
                _ => {}
            }
        }
        Ok(())
    }

    /// The port that the address of the peer leads to.
    pub(super) fn port(&self) -> Result<LocalPort> {
        LocalPort::of_route(self.ids.first().context("there is no connection")?)
    }

    /// Exchanges the records. The queue pairs of a server are connected then.
    pub(super) fn exchange<Q: Queues>(&mut self, endpoint: &mut Endpoint<'_, Q>) -> Result<Vec<Record>> {
        if self.requests.is_empty() { self.connect(endpoint.local()) } else { self.accept(endpoint) }
    }

    fn accept<Q: Queues>(&mut self, endpoint: &mut Endpoint<'_, Q>) -> Result<Vec<Record>> {
        endpoint.connect(&self.requests)?;
        for (id, local) in self.ids.iter().zip(endpoint.local()) {
            id.accept(&ConnParam { private_data: &local.encode(), ..ConnParam::new(local.qpn) })?;
        }
        let mut limit = Timeout::after(Self::limit(self.ids.len()));
        // A request for a QPN is not confirmed.
        let mut left = if self.kind == Kind::Ud { 0 } else { self.ids.len() };
        while left > 0 {
            let Some(event) = self.next(Some(&mut limit))? else {
                bail!("the client did not confirm {left} of {} connections", self.ids.len());
            };
            left -= usize::from(matches!(event.kind, EventKind::Established(_)));
        }
        Ok(self.requests.clone())
    }

    fn connect(&mut self, local: &[Record]) -> Result<Vec<Record>> {
        for (id, local) in self.ids.iter().zip(local) {
            id.connect(&ConnParam { private_data: &local.encode(), ..ConnParam::new(local.qpn) })?;
        }
        let mut remote = vec![None; self.ids.len()];
        let mut limit = Timeout::after(Self::limit(self.ids.len()));
        while remote.contains(&None) {
            let Some(Event { key, kind, .. }) = self.next(Some(&mut limit))? else {
                bail!("the server did not answer for {} s", Self::limit(self.ids.len()).as_secs());
            };
            let data = match kind {
                EventKind::ConnectResponse(PeerParam { private_data, .. })
                | EventKind::Established(EstablishedParam::Datagram(UdPeer { private_data, .. })) => {
                    private_data
                }
                _ => continue,
            };
            if let Some(place) = self.ids.iter().position(|id| id.key() == key) {
                remote[place] = Some(record(&data)?);
            }
        }
        Ok(remote.into_iter().flatten().collect())
    }

    /// Confirms the server's responses, as a client whose queue pairs are connected.
    pub(super) fn establish(&self) -> Result<()> {
        if self.kind != Kind::Ud {
            self.ids.iter().try_for_each(CmId::establish)?;
        }
        Ok(())
    }
}

/// The record in private data.
fn record(data: &PrivateData) -> Result<Record> {
    ensure!(
        data.len() >= RECORD_LEN,
        "the peer's {} bytes of private data are not an address record",
        data.len()
    );
    let bytes = data.first_chunk().context("the length is that of a record")?;
    Record::decode(bytes).context("invalid address record from the peer: it needs --cm, too")
}
