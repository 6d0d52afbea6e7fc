//! Connections with their queue pairs: [`Listener`], [`Connector`] and [`Connection`].
//!
//! A [`Connection`] owns an identifier and a queue that is in RTS: a [`Qp<Rc>`](bareverbs::qp::Qp), a
//! `Qp<Uc>`, or the safe [`Endpoint`]. Calls block, with time limits; the modules `tokio` and
//! `async_io` have the same types for tasks.
//!
//! ```no_run
//! use bareverbs::{Access, Buffer, Endpoint, Op};
//! use bareverbs_rdmacm::connection::{Connector, Listener};
//! use std::time::Duration;
//!
//! const LIMIT: Duration = Duration::from_secs(10);
//!
//! fn server() -> Result<(), Box<dyn std::error::Error>> {
//!     let listener = Listener::bind("0.0.0.0:7174")?;
//!     let mut peer = listener.accept(&Endpoint::options(), LIMIT)?;
//!     let pd = peer.qp().pd().clone();
//!     peer.post(Op::recv(pd.register(Buffer::zeroed(4096)?, Access::LOCAL_WRITE)?))?;
//!     println!("{:?}", peer.next().wait()?.message());
//!     // The acknowledgement of the last message needs the queue pair.
//!     peer.wait_disconnected(LIMIT)?;
//!     Ok(())
//! }
//!
//! fn client() -> Result<(), Box<dyn std::error::Error>> {
//!     let mut server = Connector::new().connect("10.1.0.1:7174", &Endpoint::options(), LIMIT)?;
//!     let pd = server.qp().pd().clone();
//!     let mut hello = pd.register(Buffer::zeroed(4096)?, Access::LOCAL_WRITE)?;
//!     hello.write(0, b"hello")?;
//!     server.post(Op::send(hello, ..5))?;
//!     server.next().wait()?;
//!     server.disconnect(LIMIT)?;
//!     Ok(())
//! }
//! ```
//!
//! # Memory
//!
//! A [`Connection`] of an [`Endpoint`] with 1 send and 1 receive takes 14 to 17 kB of the process on
//! Linux 7.2, and 20 to 27 kB of the system, which include those of the process. Buffers of messages
//! and larger queues come on top.

mod exchange;

use std::fmt;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use bareverbs::qp::{Ece, QpType};
use bareverbs::{Endpoint, EndpointOptions, Pd, PortNum};
use rustix::io::Errno;

use crate::channel::EventChannel;
use crate::event::{EventKind, RequestParam};
use crate::id::BoundDevice;
use crate::param::PrivateData;
pub use crate::qp::{ConnectOptions, ConnectQueue};
use crate::qp::{bring_up, check_type};
use crate::steps::{self, Deadline, Wait, run};
use crate::{Addr, CmId, ConnectRequest, Error, IdOptions, PeerParam, Result, ToAddrs, name};

/// A list of open devices, each with one protection domain (PD), that connections share. Clones are
/// the same list.
///
/// ```no_run
/// # fn example(route: &bareverbs_rdmacm::connection::Route) -> bareverbs_rdmacm::Result<()> {
/// use bareverbs_rdmacm::connection::Domains;
///
/// let domains = Domains::default();
/// let pd = domains.pd(route.device()?)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct Domains {
    known: Arc<Mutex<Known>>,
}

type Known = Vec<(BoundDevice, Pd)>;

/// The list of the process, while one of its users exists.
static OF_PROCESS: Mutex<Weak<Mutex<Known>>> = Mutex::new(Weak::new());

impl Domains {
    /// The list that streams share, unless their options name another one. Its devices are open
    /// while a stream, a listener or a value of this type uses it.
    ///
    /// ```
    /// use bareverbs_rdmacm::connection::Domains;
    ///
    /// assert_eq!(Domains::of_process(), Domains::of_process());
    /// assert_ne!(Domains::of_process(), Domains::default());
    /// ```
    #[must_use]
    pub fn of_process() -> Self {
        let mut shared = OF_PROCESS.lock().unwrap_or_else(PoisonError::into_inner);
        let known = shared.upgrade().unwrap_or_else(|| {
            let known = Arc::default();
            *shared = Arc::downgrade(&known);
            known
        });
        Self { known }
    }

    /// The protection domain of a device, which is opened on first use.
    ///
    /// # Errors
    /// [`Error::Verbs`]: the device can't be opened.
    pub fn pd(&self, device: BoundDevice) -> Result<Pd> {
        let mut known = self.lock();
        if let Some((_, pd)) = known.iter().find(|(of, _)| is_same(of, &device)) {
            return Ok(pd.clone());
        }
        let pd = device.find()?.open()?.alloc_pd()?;
        known.push((device, pd.clone()));
        Ok(pd)
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Builds an object on a device. If the device was removed and added again since it was opened,
    /// it is opened again.
    pub(crate) fn build<T, E: From<Error>>(
        &self,
        device: BoundDevice,
        errno: impl Fn(&E) -> Option<Errno>,
        build: impl Fn(&Pd) -> Result<T, E>,
    ) -> Result<T, E> {
        match build(&self.pd(device)?) {
            // Commands of a removed device fail with EIO, those of a device that the parent of this
            // process has opened with ESTALE.
            Err(error) if matches!(errno(&error), Some(Errno::IO | Errno::STALE)) => {
                self.lock().retain(|(of, _)| !is_same(of, &device));
                build(&self.pd(device)?)
            }
            built => built,
        }
    }

    /// An endpoint on the device and the port of a connection.
    pub(crate) fn endpoint<B>(&self, device: BoundDevice, options: &EndpointOptions) -> Result<Endpoint<B>> {
        self.build(device, Error::errno, |pd| Ok(options.clone().port(device.port).build(pd)?))
    }
}

impl PartialEq for Domains {
    /// Whether both are the same list.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.known, &other.known)
    }
}

impl Eq for Domains {}

impl fmt::Debug for Domains {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Counted first: the writer may use the list.
        let devices = self.lock().len();
        f.debug_struct("Domains").field("devices", &devices).finish()
    }
}

fn is_same(one: &BoundDevice, other: &BoundDevice) -> bool {
    (one.node_guid, one.index) == (other.node_guid, other.index)
}

/// The device of an identifier.
pub(crate) fn device_of(id: &CmId) -> Result<BoundDevice> {
    let bound = id.addresses()?.device;
    bound.ok_or_else(|| Error::invalid("device", "the identifier has no device: its address is not resolved"))
}

/// The address of the peer of an identifier.
fn peer_addr(id: &CmId) -> Result<Addr> {
    let peer = id.addresses()?.peer;
    peer.ok_or_else(|| Error::invalid("peer_addr", "the identifier has no peer"))
}

/// Calls `each` with the addresses of a name until one succeeds.
pub(crate) fn each_address<T>(
    verb: &'static str,
    addrs: impl ToAddrs,
    mut each: impl FnMut(SocketAddr) -> Result<T>,
) -> Result<T> {
    let mut last = None;
    for addr in name::resolve(verb, addrs)? {
        match each(addr) {
            Ok(done) => return Ok(done),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| unreachable!("a name without an address is an error")))
}

/// A listener for connections.
///
/// Its connections share its channel: all of them have one file of the connection manager. Each gets
/// its own events, also when several threads or tasks wait.
#[doc(alias = "rdma_create_ep")]
#[doc(alias = "rdma_destroy_ep")]
#[derive(Debug)]
pub struct Listener {
    id: CmId,
    domains: Domains,
    id_options: IdOptions,
}

impl Listener {
    /// Listens on the first of the addresses that can be bound. Host names are resolved by the
    /// system. Port 0 is a free port, which [`Listener::local_addr`] returns. An unspecified address
    /// is that of every device.
    ///
    /// # Errors
    /// - [`Error::Name`]: the name was not resolved.
    /// - [`Error::Invalid`]: it has no address.
    /// - The errors of [`EventChannel::new`], [`CmId::bind_addr`] and [`CmId::listen`].
    #[doc(alias = "rdma_create_ep")]
    #[doc(alias = "rdma_getaddrinfo")]
    pub fn bind(addrs: impl ToAddrs) -> Result<Self> {
        Self::bind_with(&IdOptions::default(), addrs)
    }

    /// Listens as [`Listener::bind`] does, with options.
    ///
    /// ```no_run
    /// use bareverbs_rdmacm::{IdOptions, Listener};
    ///
    /// let options = IdOptions { ipv6_only: Some(true), backlog: 16, ..IdOptions::default() };
    /// let listener = Listener::bind_with(&options, "[::]:7174")?;
    /// # Ok::<(), bareverbs_rdmacm::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`Listener::bind`] and [`IdOptions::apply`].
    #[doc(alias = "rdma_create_ep")]
    #[doc(alias = "rdma_set_option")]
    pub fn bind_with(options: &IdOptions, addrs: impl ToAddrs) -> Result<Self> {
        each_address("Listener::bind", addrs, |addr| {
            let id = options.create_id(&EventChannel::new()?)?;
            id.bind_addr(addr)?;
            id.listen(options.backlog)?;
            Ok(Self { id_options: *options, ..Self::from_id(id)? })
        })
    }

    /// A listener of an identifier that listens. Other identifiers may be on its channel: their events
    /// stay for the calls of [`EventChannel`].
    ///
    /// # Errors
    /// [`Error::Invalid`]: the identifier does not listen, or is for datagrams.
    pub fn from_id(id: CmId) -> Result<Self> {
        const VERB: &str = "Listener::from_id";
        if id.qp_type() == QpType::UD {
            return Err(Error::invalid(VERB, "the identifier is for datagrams"));
        }
        if !id.listens() {
            return Err(Error::invalid(VERB, "the identifier does not listen: call `CmId::listen`"));
        }
        id.claim();
        Ok(Self { id, domains: Domains::default(), id_options: IdOptions::default() })
    }

    /// The identifier.
    #[must_use]
    pub fn id(&self) -> &CmId {
        &self.id
    }

    /// The devices that [`Listener::accept`] has opened.
    #[must_use]
    pub fn domains(&self) -> &Domains {
        &self.domains
    }

    /// The address that it listens on.
    ///
    /// # Errors
    /// As for [`CmId::addresses`].
    #[doc(alias = "rdma_get_local_addr")]
    pub fn local_addr(&self) -> Result<SocketAddr> {
        let local = self.id.addresses()?.local.and_then(|addr| addr.ip());
        local.ok_or_else(|| Error::invalid("local_addr", "the identifier is not bound to an IP address"))
    }

    /// Waits for a request.
    ///
    /// # Errors
    /// - [`Error::TimedOut`]: no request arrived within `limit`.
    /// - [`Error::DeviceRemoved`].
    #[doc(alias = "rdma_get_request")]
    pub fn get_request(&self, limit: Duration) -> Result<Incoming> {
        run(self.next_request(&Deadline::new(limit)))
    }

    pub(crate) async fn next_request(&self, wait: &impl Wait) -> Result<Incoming> {
        let request = steps::request(wait, &self.id).await?;
        request.id().claim();
        self.id_options.apply_to_child(request.id())?;
        Ok(Incoming { request })
    }

    /// Waits for a request and accepts it with a new endpoint on its device. Receives may be posted
    /// afterwards: the peer's messages are repeated until then. For buffers of another type, such as
    /// leases of a pool, see [`Incoming::accept`].
    ///
    /// The time limit is for the request, and again for the confirmation by the peer.
    ///
    /// Of `options`, only the depths, the buffers, `access`, `spin` and `keepalive` are used. The port
    /// and the path are those of the identifier. Retries and the RNR timer are those of
    /// [`ConnectOptions::default`].
    ///
    /// An idle peer is probed by RDMA writes of length 0, so that a dead one ends a wait for receives:
    /// [`EndpointOptions::keepalive`]. The kernel's connection manager sets `REMOTE_WRITE` of the
    /// peer's QP. Set `keepalive(None)` for a peer that removes this right: a probe would end the
    /// connection.
    ///
    /// # Errors
    /// The errors of [`Listener::get_request`], [`EndpointOptions::build`] and [`Incoming::accept`].
    pub fn accept<B: Send>(
        &self,
        options: &EndpointOptions,
        limit: Duration,
    ) -> Result<Connection<Endpoint<B>>> {
        let incoming = self.get_request(limit)?;
        let endpoint = self.domains.endpoint(incoming.device()?, options)?;
        incoming.accept(endpoint, &ConnectOptions::default(), limit)
    }
}

/// A request of a peer. Drop rejects it.
#[derive(Debug)]
#[must_use = "drop rejects the request"]
pub struct Incoming {
    request: ConnectRequest,
}

impl Incoming {
    /// The request.
    pub fn request(&self) -> &ConnectRequest {
        &self.request
    }

    /// The request, to answer it by [`ConnectRequest`]. It shares its channel with the listener.
    /// [`EventChannel::try_wait`] returns its events from now on.
    pub fn into_request(self) -> ConnectRequest {
        self.request.id().unclaim();
        self.request
    }

    /// The address of the peer.
    ///
    /// # Errors
    /// As for [`CmId::addresses`].
    #[doc(alias = "rdma_get_peer_addr")]
    pub fn peer_addr(&self) -> Result<Addr> {
        peer_addr(self.request.id())
    }

    /// Data from the application of the peer, padded with zeros.
    #[must_use]
    pub fn private_data(&self) -> &PrivateData {
        self.request.private_data()
    }

    /// The device and the port on which the queue pair must be.
    ///
    /// # Errors
    /// As for [`CmId::addresses`].
    pub fn device(&self) -> Result<BoundDevice> {
        device_of(self.request.id())
    }

    /// The port on which the queue pair must be.
    ///
    /// # Errors
    /// As for [`CmId::addresses`].
    pub fn port(&self) -> Result<PortNum> {
        Ok(self.device()?.port)
    }

    /// Moves the queue to RTS, accepts the request, and waits until the peer has confirmed.
    /// Receives are posted to the queue before, or after.
    ///
    /// An idle peer is probed by RDMA writes of length 0, so that a dead one ends a wait for receives:
    /// [`EndpointOptions::keepalive`]. The kernel's connection manager sets `REMOTE_WRITE` of the
    /// peer's QP. Set `keepalive(None)` for a peer that removes this right: a probe would end the
    /// connection.
    ///
    /// ```no_run
    /// use bareverbs::{Endpoint, PoolBuffer};
    /// use bareverbs_rdmacm::{ConnectOptions, Listener};
    /// use std::time::Duration;
    ///
    /// # const LIMIT: Duration = Duration::from_secs(10);
    /// # fn accept(listener: &Listener) -> bareverbs_rdmacm::Result<()> {
    /// let request = listener.get_request(LIMIT)?;
    /// let pd = listener.domains().pd(request.device()?)?;
    /// let endpoint: Endpoint<PoolBuffer> = Endpoint::options().port(request.port()?).build(&pd)?;
    /// let peer = request.accept(endpoint, &ConnectOptions::default(), LIMIT)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The request is rejected then, and the queue dropped.
    ///
    /// - [`Error::Verbs`]: a transition of the queue pair failed.
    /// - [`Error::Withdrawn`]: the peer gave up before it was answered.
    /// - [`Error::Rejected`], [`Error::Unreachable`], [`Error::Disconnected`], [`Error::TimedOut`]
    /// - The errors of [`CmId::accept`].
    #[doc(alias = "rdma_accept")]
    pub fn accept<Q: ConnectQueue>(
        self,
        queue: Q,
        options: &ConnectOptions<'_>,
        limit: Duration,
    ) -> Result<Connection<Q>> {
        run(self.accept_with(&Deadline::new(limit), queue, options))
    }

    pub(crate) async fn accept_with<Q: ConnectQueue>(
        self,
        wait: &impl Wait,
        mut queue: Q,
        options: &ConnectOptions<'_>,
    ) -> Result<Connection<Q>> {
        let RequestParam::Connection(peer) = self.request.param().clone() else {
            return Err(Error::invalid("accept", "the request is for a datagram QP"));
        };
        check_type("accept", self.request.id(), &queue)?;
        let mut param = options.param(&queue);
        // What the peer can't use is not reserved.
        param.responder_resources = param.responder_resources.min(peer.responder_resources);
        param.initiator_depth = param.initiator_depth.min(peer.initiator_depth);
        agree_on_ece(&mut queue, options, peer.ece)?;
        bring_up(self.request.id(), &mut queue, options, Some(&param))?;
        param.ece = queue.ece().unwrap_or_default();
        let id = self.request.accept(&param)?;
        steps::established(wait, &id).await?;
        Ok(Connection { id, queue, peer, ended: false })
    }

    /// Rejects the request, with data for the peer's application.
    ///
    /// # Errors
    /// As for [`CmId::reject`].
    #[doc(alias = "rdma_reject")]
    pub fn reject(self, private_data: &[u8]) -> Result<()> {
        self.request.reject(private_data)
    }
}

/// Uses the peer's ECE options that the caller wants, if they are of this device's vendor, else none.
fn agree_on_ece<Q: ConnectQueue>(queue: &mut Q, options: &ConnectOptions<'_>, peer: Ece) -> Result<()> {
    if let Some(own) = queue.ece() {
        let offered = if peer.vendor_id == own.vendor_id { peer.options } else { 0 };
        queue.set_ece(options.limit_ece(Ece { options: offered, ..own }))?;
    }
    Ok(())
}

/// Connects to peers, on devices that it opens once.
///
/// Its connections share a channel: all of them have one file of the connection manager. Each gets its
/// own events, also when several threads wait. Clones share the devices and the channel.
#[doc(alias = "rdma_get_devices")]
#[doc(alias = "rdma_free_devices")]
#[derive(Clone, Default)]
pub struct Connector {
    domains: Domains,
    id_options: IdOptions,
    /// Opened on first use.
    channel: Arc<Mutex<Option<EventChannel>>>,
}

impl Connector {
    /// A connector without an open device.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// A connector with these devices, such as those of a [`Listener`].
    #[must_use]
    pub fn with_domains(domains: &Domains) -> Self {
        Self { domains: domains.clone(), ..Self::default() }
    }

    /// The same connector with options for the identifiers of its connections: source address, type of
    /// service, ACK timeout.
    ///
    /// ```
    /// use bareverbs_rdmacm::{Connector, IdOptions};
    ///
    /// let urgent = Connector::new().id_options(IdOptions { tos: Some(0x68), ..IdOptions::default() });
    /// ```
    #[must_use]
    pub fn id_options(mut self, options: IdOptions) -> Self {
        self.id_options = options;
        self
    }

    /// The devices that it has opened.
    #[must_use]
    pub fn domains(&self) -> &Domains {
        &self.domains
    }

    /// The channel that its connections share. It is opened on first use.
    ///
    /// # Errors
    /// As for [`EventChannel::new`].
    pub fn channel(&self) -> Result<EventChannel> {
        let mut channel = self.lock_channel();
        if let Some(channel) = &*channel {
            return Ok(channel.clone());
        }
        Ok(channel.insert(EventChannel::new()?).clone())
    }

    fn lock_channel(&self) -> MutexGuard<'_, Option<EventChannel>> {
        self.channel.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Resolves the first of the addresses that has a route, for a queue of the caller.
    ///
    /// # Errors
    /// As for [`Route::resolve`].
    #[doc(alias = "rdma_resolve_addr")]
    #[doc(alias = "rdma_resolve_route")]
    pub fn resolve(&self, addrs: impl ToAddrs, limit: Duration) -> Result<Route> {
        each_address("Connector::resolve", addrs, |addr| {
            run(self.resolve_with(&Deadline::new(limit), addr.into(), limit))
        })
    }

    pub(crate) async fn resolve_with(&self, wait: &impl Wait, peer: Addr, limit: Duration) -> Result<Route> {
        Route::on_channel(wait, &self.channel()?, &self.id_options, peer, limit).await
    }

    /// Connects to the first of the addresses that has a route, with a new endpoint. Receives may
    /// be posted afterwards: the peer's messages are repeated until then. For buffers of another type,
    /// such as leases of a pool, see [`Route::connect`].
    ///
    /// The time limit is for the resolution of an address, and again for the answer of the peer.
    ///
    /// Of `options`, only the depths, the buffers, `access`, `spin` and `keepalive` are used. The port
    /// and the path are those of the identifier. Retries and the RNR timer are those of
    /// [`ConnectOptions::default`].
    ///
    /// An idle peer is probed by RDMA writes of length 0, so that a dead one ends a wait for receives:
    /// [`EndpointOptions::keepalive`]. The kernel's connection manager sets `REMOTE_WRITE` of the
    /// peer's QP. Set `keepalive(None)` for a peer that removes this right: a probe would end the
    /// connection.
    ///
    /// # Errors
    /// The errors of [`Route::resolve`], [`EndpointOptions::build`] and [`Route::connect`].
    #[doc(alias = "rdma_create_ep")]
    #[doc(alias = "rdma_getaddrinfo")]
    pub fn connect<B: Send>(
        &self,
        addrs: impl ToAddrs,
        options: &EndpointOptions,
        limit: Duration,
    ) -> Result<Connection<Endpoint<B>>> {
        let route = self.resolve(addrs, limit)?;
        let endpoint = self.domains.endpoint(route.device()?, options)?;
        route.connect(endpoint, &ConnectOptions::default(), limit)
    }
}

impl fmt::Debug for Connector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { domains, id_options, .. } = self;
        // A clone: the writer may use the connector.
        let channel = self.lock_channel().clone();
        f.debug_struct("Connector")
            .field("domains", domains)
            .field("id_options", id_options)
            .field("channel", &channel)
            .finish()
    }
}

/// A route to a peer: the device and the port on which the queue pair must be.
#[derive(Debug)]
pub struct Route {
    id: CmId,
}

impl Route {
    /// Resolves the first of the addresses that has a route. Host names are resolved by the system. The
    /// route has a channel of its own; those of [`Connector::resolve`] share one.
    ///
    /// # Errors
    /// - [`Error::Name`]: the name was not resolved. [`Error::Invalid`]: it has no address.
    /// - [`Error::TimedOut`]: no neighbour, or on InfiniBand no subnet administrator, has answered within
    ///   `limit`.
    /// - [`Error::Address`], [`Error::Route`]; those of [`CmId::resolve_addr`].
    #[doc(alias = "rdma_resolve_addr")]
    #[doc(alias = "rdma_resolve_route")]
    #[doc(alias = "rdma_getaddrinfo")]
    pub fn resolve(addrs: impl ToAddrs, limit: Duration) -> Result<Self> {
        Self::resolve_with(&IdOptions::default(), addrs, limit)
    }

    /// Resolves a route from a local address, or from any if there is none.
    ///
    /// # Errors
    /// As for [`Route::resolve`]; [`Error::Command`] with `EADDRNOTAVAIL`: the address is not local.
    #[doc(alias = "rdma_resolve_addr")]
    pub fn resolve_from(src: Option<Addr>, addrs: impl ToAddrs, limit: Duration) -> Result<Self> {
        Self::resolve_with(&IdOptions { source: src, ..IdOptions::default() }, addrs, limit)
    }

    /// Resolves a route with options of its identifier.
    ///
    /// # Errors
    /// As for [`Route::resolve_from`] and [`IdOptions::apply`].
    #[doc(alias = "rdma_resolve_addr")]
    #[doc(alias = "rdma_set_option")]
    pub fn resolve_with(options: &IdOptions, addrs: impl ToAddrs, limit: Duration) -> Result<Self> {
        each_address("Route::resolve", addrs, |addr| {
            let channel = EventChannel::private()?;
            run(Self::on_channel(&Deadline::new(limit), &channel, options, addr.into(), limit))
        })
    }

    /// Resolves a route by an identifier on the channel that `wait` waits for.
    pub(crate) async fn on_channel(
        wait: &impl Wait,
        channel: &EventChannel,
        options: &IdOptions,
        peer: Addr,
        limit: Duration,
    ) -> Result<Self> {
        let id = options.create_id(channel)?;
        id.claim();
        steps::resolve(wait, &id, options.source, peer, limit).await?;
        Ok(Self { id })
    }

    /// The identifier.
    #[must_use]
    pub fn id(&self) -> &CmId {
        &self.id
    }

    /// The address of the peer.
    ///
    /// # Errors
    /// As for [`CmId::addresses`].
    #[doc(alias = "rdma_get_peer_addr")]
    pub fn peer_addr(&self) -> Result<Addr> {
        peer_addr(&self.id)
    }

    /// The device and the port on which the queue pair must be.
    ///
    /// # Errors
    /// As for [`CmId::addresses`].
    pub fn device(&self) -> Result<BoundDevice> {
        device_of(&self.id)
    }

    /// The port on which the queue pair must be.
    ///
    /// # Errors
    /// As for [`CmId::addresses`].
    pub fn port(&self) -> Result<PortNum> {
        Ok(self.device()?.port)
    }

    /// Connects the queue and moves it to RTS. Receives are posted to the queue before, or after.
    ///
    /// An idle peer is probed by RDMA writes of length 0, so that a dead one ends a wait for receives:
    /// [`EndpointOptions::keepalive`]. The kernel's connection manager sets `REMOTE_WRITE` of the
    /// peer's QP. Set `keepalive(None)` for a peer that removes this right: a probe would end the
    /// connection.
    ///
    /// ```no_run
    /// use bareverbs::{Endpoint, PoolBuffer};
    /// use bareverbs_rdmacm::{ConnectOptions, Connector};
    /// use std::time::Duration;
    ///
    /// # const LIMIT: Duration = Duration::from_secs(10);
    /// # fn connect(connector: &Connector) -> bareverbs_rdmacm::Result<()> {
    /// let route = connector.resolve("10.1.0.1:7174", LIMIT)?;
    /// let pd = connector.domains().pd(route.device()?)?;
    /// let endpoint: Endpoint<PoolBuffer> = Endpoint::options().port(route.port()?).build(&pd)?;
    /// let server = route.connect(endpoint, &ConnectOptions::default(), LIMIT)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// The queue is dropped then.
    ///
    /// - [`Error::Rejected`], [`Error::Unreachable`], [`Error::Disconnected`], [`Error::TimedOut`]
    /// - [`Error::Verbs`]: a transition of the queue pair failed. The peer's acceptance is rejected.
    /// - The errors of [`CmId::connect`].
    #[doc(alias = "rdma_connect")]
    pub fn connect<Q: ConnectQueue>(
        self,
        queue: Q,
        options: &ConnectOptions<'_>,
        limit: Duration,
    ) -> Result<Connection<Q>> {
        run(self.connect_with(&Deadline::new(limit), queue, options))
    }

    pub(crate) async fn connect_with<Q: ConnectQueue>(
        self,
        wait: &impl Wait,
        mut queue: Q,
        options: &ConnectOptions<'_>,
    ) -> Result<Connection<Q>> {
        let id = self.id;
        check_type("connect", &id, &queue)?;
        let peer = steps::connect(wait, &id, &options.param(&queue)).await?;
        agree_on_ece(&mut queue, options, peer.ece)?;
        bring_up(&id, &mut queue, options, None)?;
        id.establish().map_err(|error| steps::refused(&id, "connect", error))?;
        Ok(Connection { id, queue, peer, ended: false })
    }
}

/// A connection: its identifier and its queue, which is in RTS. It dereferences to the queue.
///
/// Drop sends one DREQ and does not wait for the DREP. Then it drops the queue. If the DREQ is lost,
/// the peer notices by errors of its operations only. [`Connection::disconnect`] retries it.
///
/// The inline functions of `rdma/rdma_verbs.h` are operations of the queue: of
/// [`Endpoint`], or of [`Qp`](bareverbs::qp::Qp) and [`Cq`](bareverbs::cq::Cq).
#[doc(alias = "rdma_post_recv")]
#[doc(alias = "rdma_post_recvv")]
#[doc(alias = "rdma_post_send")]
#[doc(alias = "rdma_post_sendv")]
#[doc(alias = "rdma_post_read")]
#[doc(alias = "rdma_post_readv")]
#[doc(alias = "rdma_post_write")]
#[doc(alias = "rdma_post_writev")]
#[doc(alias = "rdma_get_send_comp")]
#[doc(alias = "rdma_get_recv_comp")]
#[doc(alias = "rdma_reg_msgs")]
#[doc(alias = "rdma_reg_read")]
#[doc(alias = "rdma_reg_write")]
#[doc(alias = "rdma_dereg_mr")]
#[derive(Debug)]
pub struct Connection<Q> {
    /// Dropped before the queue: the kernel sends the DREQ while the QP still exists.
    id: CmId,
    queue: Q,
    peer: PeerParam,
    ended: bool,
}

impl<Q> Connection<Q> {
    /// The identifier.
    #[must_use]
    pub fn id(&self) -> &CmId {
        &self.id
    }

    /// The parameters and the private data of the peer.
    #[must_use]
    pub fn peer(&self) -> &PeerParam {
        &self.peer
    }

    /// The address of the peer.
    ///
    /// # Errors
    /// As for [`CmId::addresses`].
    #[doc(alias = "rdma_get_peer_addr")]
    pub fn peer_addr(&self) -> Result<Addr> {
        peer_addr(&self.id)
    }

    /// Gives the connection an event channel of its own. A thread that reads a shared channel takes
    /// the events of all its connections, so the descriptor of a shared channel does not show those
    /// of one. Call it before you wait by the descriptor of [`CmId::channel`].
    ///
    /// ```no_run
    /// use std::os::fd::AsFd;
    /// use std::time::Duration;
    ///
    /// use bareverbs::Endpoint;
    /// use bareverbs_rdmacm::Listener;
    ///
    /// let limit = Duration::from_secs(5);
    /// let listener = Listener::bind("0.0.0.0:7174")?;
    /// let mut peer = listener.accept(&Endpoint::options(), limit)?;
    /// peer.own_channel()?;
    /// // Readable when the peer has ended the connection: for `poll` or `epoll`.
    /// let events = peer.id().channel().as_fd();
    /// # Ok::<(), bareverbs_rdmacm::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`EventChannel::new`] and [`CmId::migrate`].
    #[doc(alias = "rdma_migrate_id")]
    pub fn own_channel(&mut self) -> Result<()> {
        self.id.move_to(&EventChannel::private()?)
    }

    /// Whether the peer has ended the connection. It does not wait. If a DREQ has arrived, a
    /// DREP is sent.
    ///
    /// # Errors
    /// - [`Error::DeviceRemoved`]
    /// - The errors of [`EventChannel::try_wait`].
    pub fn is_disconnected(&mut self) -> Result<bool> {
        while let Some(event) = self.id.channel().try_event(Some(self.id.key()))? {
            match event.kind {
                EventKind::Disconnected(_) => self.answer_end()?,
                EventKind::DeviceRemoval => return Err(Error::DeviceRemoved { verb: "is_disconnected" }),
                _ => {}
            }
        }
        Ok(self.ended)
    }

    /// Answers the end by the peer.
    fn answer_end(&mut self) -> Result<()> {
        self.ended = true;
        self.id.disconnect()
    }

    /// Waits until the peer ends the connection, and answers.
    ///
    /// # Errors
    /// - [`Error::TimedOut`]: the peer has not ended it within `limit`.
    /// - [`Error::DeviceRemoved`].
    pub fn wait_disconnected(&mut self, limit: Duration) -> Result<()> {
        run(self.until_disconnected(&Deadline::new(limit)))
    }

    pub(crate) async fn until_disconnected(&mut self, wait: &impl Wait) -> Result<()> {
        if !self.ended {
            steps::disconnected(wait, &self.id, "wait_disconnected").await?;
            self.answer_end()?;
        }
        Ok(())
    }

    /// Ends the connection, and waits until the peer has answered. Operations that are outstanding
    /// at either end may fail: end them before. A send of the peer may be outstanding there although
    /// this end has received its message. The queue is still in RTS afterwards.
    ///
    /// # Errors
    /// [`Error::TimedOut`]; [`Error::Unreachable`]: the peer never answered;
    /// [`Error::DeviceRemoved`].
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect(&mut self, limit: Duration) -> Result<()> {
        run(self.disconnect_with(&Deadline::new(limit)))
    }

    pub(crate) async fn disconnect_with(&mut self, wait: &impl Wait) -> Result<()> {
        if self.is_disconnected()? {
            return Ok(());
        }
        self.id.disconnect()?;
        let status = steps::disconnected(wait, &self.id, "disconnect").await?;
        self.ended = true;
        status.map_or(Ok(()), |errno| Err(Error::Unreachable(errno)))
    }

    /// The same connection with the queue that `wrap` makes from its queue.
    ///
    /// # Errors
    /// The errors of `wrap`. The connection is dropped then.
    pub fn try_map<T, E>(self, wrap: impl FnOnce(Q) -> Result<T, E>) -> Result<Connection<T>, E> {
        let Self { id, queue, peer, ended } = self;
        Ok(Connection { id, queue: wrap(queue)?, peer, ended })
    }

    /// The identifier and the queue. The identifier may share its channel with other connections.
    /// [`EventChannel::try_wait`] returns its events from now on.
    #[must_use]
    pub fn into_parts(self) -> (CmId, Q) {
        self.id.unclaim();
        (self.id, self.queue)
    }
}

impl<Q> Deref for Connection<Q> {
    type Target = Q;

    fn deref(&self) -> &Q {
        &self.queue
    }
}

impl<Q> DerefMut for Connection<Q> {
    fn deref_mut(&mut self) -> &mut Q {
        &mut self.queue
    }
}
