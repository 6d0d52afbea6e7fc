//! Connecting and accepting streams.

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use bareverbs::values::RetryCount;
use bareverbs::{AnyProvider, Endpoint, Errno, Pd, RegionMut};

use super::link::Link;
use super::session::{CONTROL_RECVS, Prepared, Session};
use super::shared::Shared;
use super::wire::Offer;
use super::{OfferError, RdmaStream, Result, StreamError, StreamOptions};
use crate::connection::{Domains, device_of};
use crate::event::RequestParam;
use crate::id::BoundDevice;
use crate::qp::bring_up;
use crate::steps::{self, Deadline, Wait, run};
use crate::{
    Addr, CmId, ConnParam, ConnectOptions, ConnectRequest, Error, EventChannel, PortSpace, ToAddrs, name,
};

/// How long connecting takes at most, unless the caller says otherwise.
const CONNECT_LIMIT: Duration = Duration::from_secs(30);

/// A stream needs no reads and no atomics. A peer that does not read makes a write wait, so that RNR
/// retries have no limit.
fn connect_options(offer: &[u8], retry_count: RetryCount) -> ConnectOptions<'_> {
    ConnectOptions { private_data: offer, rd_atomic: 0, retry_count, ..ConnectOptions::default() }
}

fn param<'a>(options: &ConnectOptions<'a>, prepared: &mut Prepared<AnyProvider>) -> ConnParam<'a> {
    ConnParam { flow_control: true, ..options.param(prepared.endpoint()) }
}

impl StreamOptions {
    /// The memory and the queue pair of a stream on the identifier's port.
    fn prepare(&self, domains: &Domains, device: BoundDevice) -> Result<Prepared<AnyProvider>> {
        domains.build(device, StreamError::errno, |pd: &Pd| {
            let endpoint: Endpoint<RegionMut> = Endpoint::options()
                .port(device.port)
                .sends(self.sends.into())
                .recvs(u32::from(self.recvs) + CONTROL_RECVS)
                .inline(self.queue_inline())
                .build(pd)?;
            Prepared::new(endpoint, pd, self.clone())
        })
    }

    /// Connects to a listener at `peer`, within 30 seconds. Of several addresses of a name, the
    /// first that accepts is used.
    ///
    /// # Errors
    /// As for [`RdmaStream::connect`].
    pub fn connect(&self, peer: impl ToAddrs) -> Result<RdmaStream> {
        each_address("RdmaStream::connect", peer, |addr| self.connect_timeout(addr, CONNECT_LIMIT))
    }

    /// Connects to a listener at `peer`, within `limit`.
    ///
    /// # Errors
    /// As for [`RdmaStream::connect`].
    pub fn connect_timeout(&self, peer: SocketAddr, limit: Duration) -> Result<RdmaStream> {
        self.check("RdmaStream::connect")?;
        let id = self.new_id()?;
        run(self.connect_with(&Deadline::new(limit), id, peer.into(), limit))
    }

    /// An identifier of its own channel with the options.
    pub(super) fn new_id(&self) -> Result<CmId> {
        Ok(self.id_options.create_id_of(&EventChannel::private()?, PortSpace::Tcp)?)
    }

    /// Connects an identifier, whose channel `wait` waits for.
    pub(super) async fn connect_with(
        &self,
        wait: &impl Wait,
        id: CmId,
        peer: Addr,
        limit: Duration,
    ) -> Result<RdmaStream> {
        steps::resolve(wait, &id, self.id_options.source, peer, limit).await?;
        let domains = self.list();
        let mut prepared = self.prepare(&domains, device_of(&id)?)?;
        let offer = prepared.offer()?;
        let options = connect_options(&offer, self.retry_count);
        let param = param(&options, &mut prepared);
        let response = steps::connect(wait, &id, &param).await?;
        bring_up(&id, prepared.endpoint(), &options, None)?;
        let mut session = prepared.start(&response.private_data, true)?;
        id.establish().map_err(|error| steps::refused(&id, "connect", error))?;
        // Grants the peer the rest of the ring. The accepting side does so when it is used first after the
        // peer's confirmation.
        session.progress();
        stream(session, id, domains, true)
    }

    /// Listens at `addr`. Streams that are accepted have these options.
    ///
    /// # Errors
    /// As for [`RdmaListener::bind`].
    pub fn listen(&self, addr: impl ToAddrs) -> Result<RdmaListener> {
        self.check("RdmaListener::bind")?;
        each_address("RdmaListener::bind", addr, |addr| RdmaListener::new(addr, self.clone()))
    }
}

/// The first success with the addresses of a name, or the last failure.
fn each_address<T>(
    verb: &'static str,
    name: impl ToAddrs,
    each: impl FnMut(SocketAddr) -> Result<T>,
) -> Result<T> {
    let resolved = name::resolve(verb, name).map_err(|error| match error {
        error @ Error::Name { .. } => StreamError::Name(Arc::new(error)),
        error => error.into(),
    })?;
    let mut failed = None;
    for result in resolved.into_iter().map(each) {
        match result {
            Ok(made) => return Ok(made),
            Err(error) => failed = Some(error),
        }
    }
    Err(failed.unwrap_or_else(|| unreachable!("a name without an address is an error")))
}

fn stream(
    session: Session<AnyProvider>,
    id: CmId,
    domains: Domains,
    established: bool,
) -> Result<RdmaStream> {
    let addresses = id.addresses()?;
    let ip = |addr: Option<Addr>| addr.and_then(|addr| addr.ip());
    let (Some(local), Some(peer)) = (ip(addresses.local), ip(addresses.peer)) else {
        return Err(Error::invalid("RdmaStream", "the connection has no IP addresses").into());
    };
    let link = Link::new(id, domains, established);
    Ok(RdmaStream { shared: Arc::new(Shared::new(session, link, local, peer)?) })
}

impl RdmaStream {
    /// Connects to a listener at `peer`, within 30 seconds, with default options.
    ///
    /// ```no_run
    /// use bareverbs_rdmacm::stream::RdmaStream;
    /// use std::io::{Read, Write};
    ///
    /// let mut stream = RdmaStream::connect("10.1.0.1:7471")?;
    /// stream.write_all(b"hello")?;
    /// let mut answer = String::new();
    /// stream.shutdown(std::net::Shutdown::Write)?;
    /// stream.read_to_string(&mut answer)?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// - [`StreamError::Cm`] with [`Error::Address`], [`Error::Route`], [`Error::Unreachable`],
    ///   [`Error::TimedOut`]: the peer was not found.
    /// - [`StreamError::Cm`] with [`Error::Rejected`]: no listener, or the listener rejected. A peer that
    ///   ends during the handshake rejects, too.
    /// - [`StreamError::Cm`] with [`Error::Disconnected`]: the peer ended the connection during the
    ///   handshake.
    /// - [`StreamError::Offer`]: the listener is not an rsocket.
    #[doc(alias = "rconnect")]
    pub fn connect(peer: impl ToAddrs) -> Result<Self> {
        StreamOptions::default().connect(peer)
    }
}

/// A listener that accepts [streams](RdmaStream), used like [`std::net::TcpListener`].
///
/// ```no_run
/// use bareverbs_rdmacm::stream::RdmaListener;
///
/// let listener = RdmaListener::bind("0.0.0.0:7471")?;
/// loop {
///     let stream = listener.accept()?;
///     std::thread::spawn(move || std::io::copy(&mut &stream, &mut &stream));
/// }
/// # #[allow(unreachable_code)]
/// # Ok::<(), bareverbs_rdmacm::stream::StreamError>(())
/// ```
#[doc(alias = "rlisten")]
pub struct RdmaListener {
    id: CmId,
    options: StreamOptions,
    local: SocketAddr,
    /// The devices that have accepted. The list of the process exists as long as the listener.
    domains: Domains,
}

impl RdmaListener {
    /// Listens at `addr`, with default options. Port 0 lets the kernel choose.
    ///
    /// # Errors
    /// [`StreamError::Cm`] with [`Error::Command`]: `EADDRINUSE`, `EADDRNOTAVAIL`, or `ENODEV` if
    /// the network interface of the address has no RDMA device.
    #[doc(alias = "rbind")]
    pub fn bind(addr: impl ToAddrs) -> Result<Self> {
        StreamOptions::default().listen(addr)
    }

    fn new(addr: SocketAddr, options: StreamOptions) -> Result<Self> {
        let id = options.new_id()?;
        id.bind_addr(addr)?;
        id.listen(options.id_options.backlog)?;
        let local = id.addresses()?.local.and_then(|addr| addr.ip()).unwrap_or(addr);
        let domains = options.list();
        Ok(Self { id, options, local, domains })
    }

    /// Sets the options of the streams that are accepted from now on. The options of the listener's own
    /// identifier stay as they are.
    ///
    /// # Errors
    /// [`StreamError::Cm`] with [`Error::Invalid`]: an option is out of its range.
    pub fn set_options(&mut self, options: StreamOptions) -> Result<()> {
        options.check("RdmaListener::set_options")?;
        self.domains = options.list();
        self.options = options;
        Ok(())
    }

    /// The address, with the port that the kernel chose.
    #[doc(alias = "rgetsockname")]
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// Waits for a stream.
    ///
    /// # Errors
    /// As for [`accept_timeout`](Self::accept_timeout).
    #[doc(alias = "raccept")]
    pub fn accept(&self) -> Result<RdmaStream> {
        loop {
            if let Some(stream) = self.accept_timeout(Duration::MAX)? {
                return Ok(stream);
            }
        }
    }

    /// Waits for a stream at most for `limit`; `None` if none came.
    ///
    /// A request that is not one of a stream is rejected, and the wait continues. It also
    /// continues if the peer has given up before it is accepted.
    ///
    /// The stream is returned before the peer has confirmed the connection. It can be read at once. The
    /// first write waits for the confirmation or the first message of the peer, because the peer's queue
    /// pair can't receive before.
    ///
    /// # Errors
    /// - [`StreamError::Verbs`], [`StreamError::Cm`]: the stream could not be created, for example
    ///   beyond the limit on locked memory. Its request was rejected.
    pub fn accept_timeout(&self, limit: Duration) -> Result<Option<RdmaStream>> {
        match run(self.accept_with(&Deadline::new(limit))) {
            Err(StreamError::Cm(error)) if matches!(*error, Error::TimedOut { .. }) => Ok(None),
            accepted => accepted.map(Some),
        }
    }

    /// Waits for a stream by `wait`, which waits for the listener's channel.
    pub(super) async fn accept_with(&self, wait: &impl Wait) -> Result<RdmaStream> {
        loop {
            let request = steps::request(wait, &self.id).await?;
            match self.admit(request) {
                // A peer that is not a stream does not fail the listener.
                Err(StreamError::Offer(_)) => {}
                Err(error) if is_of_lost_peer(&error) => {}
                admitted => return admitted,
            }
            wait.pass("accept").await?;
        }
    }

    #[cfg(any(feature = "async-io", feature = "tokio"))]
    pub(super) fn id(&self) -> &CmId {
        &self.id
    }

    /// Accepts a request. Drop of the request rejects it.
    fn admit(&self, mut request: ConnectRequest) -> Result<RdmaStream> {
        let RequestParam::Connection(peer) = request.param().clone() else {
            return Err(OfferError::Length(0).into());
        };
        // Rejects a foreign peer before anything is created for it.
        Offer::from_bytes(&peer.private_data)?;
        request.move_to_own_channel()?;
        self.options.id_options.apply_to_child(request.id())?;
        let mut prepared = self.options.prepare(&self.domains, device_of(request.id())?)?;
        let offer = prepared.offer()?;
        let options = connect_options(&offer, self.options.retry_count);
        let param = param(&options, &mut prepared);
        bring_up(request.id(), prepared.endpoint(), &options, Some(&param))?;
        let session = prepared.start(&peer.private_data, false)?;
        // The peer's confirmation is not awaited here: one that never comes would hold up the others. The
        // stream awaits it before its first message.
        stream(session, request.accept(&param)?, self.domains.clone(), false)
    }
}

/// Whether the peer of a request has given up: the kernel's connection manager refuses an answer, or
/// the attributes for one. Nothing else makes it refuse those of a new request.
fn is_of_lost_peer(error: &StreamError) -> bool {
    let StreamError::Cm(error) = error else { return false };
    match &**error {
        Error::Withdrawn { .. } => true,
        Error::Command(refused) => refused.command == "INIT_QP_ATTR" && refused.errno == Errno::INVAL,
        _ => false,
    }
}

impl AsFd for RdmaListener {
    /// The descriptor is readable while a request waits.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.id.channel().as_fd()
    }
}

impl fmt::Debug for RdmaListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RdmaListener").field("local", &self.local).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use bareverbs_uapi::rdma_cm::EventType;
    use bareverbs_uapi::rdma_cm::structs::EventResp;

    use super::*;

    #[test]
    fn accept_ends_in_time_although_foreign_peers_send_requests() {
        let channel = EventChannel::simulated_private();
        let (id, options) = (CmId::new(&channel, PortSpace::Tcp).unwrap(), StreamOptions::default());
        let (uid, kernel) = (id.key().get(), channel.file().kernel());
        for id in 1..=2 {
            kernel.report(EventResp { id, uid, event: EventType::CONNECT_REQUEST, ..EventResp::zeroed() });
        }
        let local = (Ipv4Addr::LOCALHOST, 7174).into();
        let listener = RdmaListener { id, domains: options.list(), options, local };
        for rejected in [1..=1, 1..=2, 1..=2] {
            assert!(listener.accept_timeout(Duration::ZERO).unwrap().is_none());
            assert_eq!(kernel.destroyed(), rejected.collect::<Vec<_>>());
        }
    }
}
