//! Connecting and accepting streams.

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use bareverbs::values::RetryCount;
use bareverbs::{Endpoint, Errno, Pd, RegionMut};

use super::link::Link;
use super::session::{Prepared, Session};
use super::shared::Shared;
use super::wire::{CONTROL_RECVS, Offer, WordCarrier};
use super::{OfferError, RdmaStream, Result, StreamError, StreamOptions};
use crate::connection::{Domains, device_of};
use crate::event::RequestParam;
use crate::id::BoundDevice;
use crate::name::{first, first_of};
use crate::qp::bring_up;
use crate::waiting::{Waiter, Waiting};
use crate::{
    Addr, CmId, ConnParam, ConnectOptions, ConnectRequest, Error, Name, PeerParam, PortSpace, steps,
};

/// A stream needs no atomics, and reads on iWARP only. A peer that does not read makes a write wait, so that
/// RNR retries have no limit.
fn connect_options<'a>(offer: &'a [u8], retry_count: RetryCount, prepared: &Prepared) -> ConnectOptions<'a> {
    let rd_atomic = u8::from(prepared.needs_reads());
    ConnectOptions { private_data: offer, rd_atomic, retry_count, ..ConnectOptions::default() }
}

/// Whether both sides execute a read. The kernel has the two depths in either order.
fn has_reads(own: &ConnParam<'_>, peer: &PeerParam) -> bool {
    let depths =
        [own.responder_resources, own.initiator_depth, peer.responder_resources, peer.initiator_depth];
    depths.iter().all(|depth| *depth > 0)
}

fn param<'a>(options: &ConnectOptions<'a>, prepared: &mut Prepared) -> ConnParam<'a> {
    ConnParam { flow_control: true, ..options.param(prepared.endpoint()) }
}

impl StreamOptions {
    /// The memory and the queue pair of a stream on the identifier's port.
    fn prepare(&self, domains: &Domains, device: BoundDevice) -> Result<Prepared> {
        domains.build(device, StreamError::errno, |pd: &Pd| {
            let endpoint: Endpoint<RegionMut> = Endpoint::options()
                .port(device.port)
                .sends(WordCarrier::of(pd).sends(self.sends.into()))
                .recvs(u32::from(self.recvs) + CONTROL_RECVS)
                .inline(self.queue_inline())
                .build(pd)?;
            Prepared::new(endpoint, pd, self.clone())
        })
    }

    /// Connects to a listener at `peer`. Of several addresses of a name, the first that accepts is used.
    /// Drop ends the attempt. Otherwise the kernel gives up after about 70 to 100 seconds on RoCE.
    ///
    /// # Errors
    /// As for [`RdmaStream::connect`].
    pub fn connect(&self, peer: impl Into<Name>) -> Waiting<'static, Result<RdmaStream>> {
        const VERB: &str = "RdmaStream::connect";
        let (options, peer) = (self.clone(), peer.into());
        Waiting::new(move |waiter| async move {
            options.check(VERB)?;
            let addrs = peer.lookup_by(&waiter, options.runtime.clone(), VERB).await?;
            first_of(addrs, |addr| options.connect_to(&waiter, addr)).await
        })
    }

    /// An identifier of its own channel with the options.
    fn new_id(&self) -> Result<CmId> {
        let channel = self.list().private_channel()?;
        if let Some(runtime) = &self.runtime {
            channel.attach_to(runtime)?;
        }
        Ok(self.id_options.create_id_of(&channel, PortSpace::Tcp)?)
    }

    async fn connect_to(&self, waiter: &Waiter, peer: Addr) -> Result<RdmaStream> {
        let id = self.new_id()?;
        steps::resolve(waiter, &id, self.id_options.source, peer).await?;
        let (domains, device) = (self.list(), device_of(&id)?);
        domains.open(waiter, self.runtime.clone(), device).await?;
        let mut prepared = self.prepare(&domains, device)?;
        let offer = prepared.offer()?;
        let options = connect_options(&offer, self.retry_count, &prepared);
        let param = param(&options, &mut prepared);
        steps::connect(waiter, &id, &param).await?;
        let response = steps::response(waiter, &id).await?;
        bring_up(&id, prepared.endpoint(), &options, None)?.established(prepared.endpoint())?;
        let reads = has_reads(&param, &response);
        let mut session = prepared.start(&response.private_data, true, reads)?;
        id.establish().map_err(|error| steps::refused(&id, "connect", error))?;
        // Grants the peer the rest of the ring. The accepting side does so when it is used first after
        // the peer's confirmation.
        session.progress();
        let awaits_answer = session.ask_for_answer()?;
        let stream = self.stream(session, id, domains, true)?;
        if awaits_answer {
            stream.shared.await_answer()?;
        }
        Ok(stream)
    }

    /// Listens on the first of the addresses that can be bound. Streams that are accepted have these
    /// options.
    ///
    /// # Errors
    /// As for [`RdmaListener::bind`].
    pub fn listen(&self, name: impl Into<Name>) -> Result<RdmaListener> {
        const VERB: &str = "RdmaListener::bind";
        self.check(VERB)?;
        let addrs = name.into().resolve(VERB)?;
        first(addrs, |addr| RdmaListener::new(addr, self.clone()))
    }

    fn stream(&self, session: Session, id: CmId, domains: Domains, established: bool) -> Result<RdmaStream> {
        let addresses = id.addresses()?;
        let (local, peer) = (ip(addresses.local)?, ip(addresses.peer)?);
        let link = Link::new(id, domains, established);
        let shared = Shared::new(session, link, local, peer, self.runtime.as_ref())?;
        Ok(RdmaStream { shared: Arc::new(shared) })
    }
}

/// The IP address of a connection or a listener.
fn ip(addr: Option<Addr>) -> Result<SocketAddr> {
    let ip = addr.and_then(|addr| addr.ip());
    Ok(ip.ok_or_else(|| Error::invalid("RdmaStream", "streams have IP addresses"))?)
}

impl RdmaStream {
    /// Connects to a listener at `peer`, with default options. Drop ends the attempt. Otherwise the
    /// kernel gives up after about 70 to 100 seconds on RoCE.
    ///
    /// ```
    /// # let device = bareverbs_test_support::example::ip_device().unwrap();
    /// # let listener = bareverbs_rdmacm::stream::RdmaListener::bind("10.1.0.1:7471").unwrap();
    /// # std::thread::spawn(move || {
    /// #     let stream = listener.accept().wait().unwrap();
    /// #     std::io::copy(&mut &stream, &mut &stream)
    /// # });
    /// use bareverbs_rdmacm::stream::RdmaStream;
    /// use std::io::{Read, Write};
    ///
    /// let mut stream = RdmaStream::connect("10.1.0.1:7471").wait()?;
    /// stream.write_all(b"hello")?;
    /// let mut answer = String::new();
    /// stream.shutdown(std::net::Shutdown::Write)?;
    /// stream.read_to_string(&mut answer)?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    /// - [`StreamError::Cm`] with [`Error::Name`], [`Error::Address`], [`Error::Route`],
    ///   [`Error::Unreachable`], [`Error::TimedOut`]: the peer was not found.
    /// - [`StreamError::Cm`] with [`Error::Rejected`]: no listener, or the listener rejected. A peer that
    ///   ends during the handshake rejects, too.
    /// - [`StreamError::Cm`] with [`Error::Disconnected`]: the peer ended the connection during the
    ///   handshake.
    /// - [`StreamError::Offer`]: the listener is not an rsocket.
    #[doc(alias = "rconnect")]
    pub fn connect(peer: impl Into<Name>) -> Waiting<'static, Result<Self>> {
        StreamOptions::default().connect(peer)
    }
}

/// A listener that accepts [streams](RdmaStream), used like [`std::net::TcpListener`].
///
/// ```
/// # let _device = bareverbs_test_support::example::ip_device()?;
/// use bareverbs_rdmacm::stream::RdmaListener;
///
/// let listener = RdmaListener::bind("0.0.0.0:7471")?;
/// # std::thread::spawn(|| bareverbs_rdmacm::stream::RdmaStream::connect("10.1.0.1:7471").wait());
/// loop {
///     let stream = listener.accept().wait()?;
///     std::thread::spawn(move || std::io::copy(&mut &stream, &mut &stream));
/// #   break;
/// }
/// #
/// # Ok::<(), bareverbs::Report>(())
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
    /// Listens on the first of the addresses that can be bound, with default options. Port 0 lets the
    /// kernel choose.
    ///
    /// # Errors
    /// [`StreamError::Cm`] with [`Error::Command`]: `EADDRINUSE`, `EADDRNOTAVAIL`, or `ENODEV` if
    /// the network interface of the address has no RDMA device.
    #[doc(alias = "rbind")]
    pub fn bind(name: impl Into<Name>) -> Result<Self> {
        StreamOptions::default().listen(name)
    }

    fn new(addr: Addr, options: StreamOptions) -> Result<Self> {
        let id = options.new_id()?;
        id.bind_addr(addr)?;
        id.listen(options.id_options.backlog)?;
        let local = ip(id.addresses()?.local)?;
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

    /// Waits for a stream. A wait that is dropped loses no stream.
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
    #[doc(alias = "raccept")]
    pub fn accept(&self) -> Waiting<'_, Result<RdmaStream>> {
        Waiting::new(|waiter| async move {
            loop {
                let request = steps::request(&waiter, &self.id).await?;
                match self.admit(&waiter, request).await {
                    // A peer that is not a stream does not fail the listener.
                    Err(StreamError::Offer(_)) => {}
                    Err(error) if is_of_lost_peer(&error) => {}
                    admitted => return admitted,
                }
                waiter.pass(self.id.channel().file()).await;
            }
        })
    }

    /// Accepts a request. Drop of the request rejects it.
    async fn admit(&self, waiter: &Waiter, mut request: ConnectRequest) -> Result<RdmaStream> {
        let RequestParam::Connection(peer) = request.param().clone() else {
            return Err(OfferError::Length(0).into());
        };
        // Rejects a foreign peer before anything is created for it.
        Offer::from_bytes(&peer.private_data)?;
        request.move_to_own_channel()?;
        self.options.id_options.apply_to_child(request.id())?;
        let device = device_of(request.id())?;
        self.domains.open(waiter, self.options.runtime.clone(), device).await?;
        let mut prepared = self.options.prepare(&self.domains, device)?;
        let offer = prepared.offer()?;
        let options = connect_options(&offer, self.options.retry_count, &prepared);
        let param = param(&options, &mut prepared);
        let moved_by = bring_up(request.id(), prepared.endpoint(), &options, Some(&param))?;
        let reads = has_reads(&param, &peer);
        let mut session = prepared.start(&peer.private_data, false, reads)?;
        let id = request.accept(&param)?;
        // On iWARP, the kernel has moved the queue pair within the command.
        moved_by.established(session.endpoint())?;
        // The peer's confirmation is not awaited here: one that never comes would hold up the others. The
        // stream awaits it before its first message.
        self.options.stream(session, id, self.domains.clone(), false)
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
    use std::time::Duration;

    use bareverbs_uapi::rdma_cm::EventType;
    use bareverbs_uapi::rdma_cm::structs::EventResp;

    use super::*;

    #[test]
    fn accept_ends_in_time_although_foreign_peers_send_requests() {
        let channel = crate::EventChannel::simulated_private();
        let (id, options) = (CmId::new(&channel, PortSpace::Tcp).unwrap(), StreamOptions::default());
        let (uid, kernel) = (id.key().get(), channel.file().kernel());
        for id in 1..=2 {
            kernel.report(EventResp { id, uid, event: EventType::CONNECT_REQUEST, ..EventResp::zeroed() });
        }
        let local = (Ipv4Addr::LOCALHOST, 7174).into();
        let listener = RdmaListener { id, domains: options.list(), options, local };
        for rejected in [1..=1, 1..=2, 1..=2] {
            assert!(listener.accept().wait_timeout(Duration::ZERO).is_none());
            assert_eq!(kernel.destroyed(), rejected.collect::<Vec<_>>());
        }
    }
}
