//! Connections with their queue pairs: [`Listener`], [`Connector`] and [`Connected`].
//!
//! A [`Connected`] is a queue that is in RTS, and the [`Link`] of its connection. The queue is a
//! [`Qp<Rc>`](bareverbs::qp::Qp), a `Qp<Uc>`, the safe [`Endpoint`], or one that connects by
//! addresses, such as a connection of a hub.
//!
//! ```
//! use bareverbs::{Access, Buffer, Endpoint, Op, Report};
//! use bareverbs_rdmacm::{ConnectOptions, Connected, Connector, Listener};
//!
//! fn server() -> Result<(), Report> {
//!     let listener = Listener::bind("10.1.0.1:7174")?;
//!     let request = listener.request().wait()?;
//!     let pd = request.pd().wait()?;
//!     let mut client = Endpoint::options().port(request.port()?).build(&pd)?;
//!     // The client may send as soon as it is accepted.
//!     client.post(Op::recv(pd.register(Buffer::zeroed(4096)?, Access::LOCAL_WRITE)?))?;
//!     let accepted = request.accept(client, &ConnectOptions::default()).wait()?;
//!     let Connected { queue: mut client, mut link } = accepted;
//!     println!("{:?}", client.next().wait()?.message());
//!     // The acknowledgement of the last message needs the queue pair.
//!     link.ended().wait()?;
//!     Ok(())
//! }
//!
//! fn client() -> Result<(), Report> {
//!     let connector = Connector::new();
//!     let connected = connector.connect("10.1.0.1:7174", &Endpoint::options()).wait()?;
//!     let Connected { queue: mut server, mut link } = connected;
//!     let pd = server.qp().pd().clone();
//!     let mut hello = pd.register(Buffer::zeroed(4096)?, Access::LOCAL_WRITE)?;
//!     hello.write(0, b"hello")?;
//!     server.post(Op::send(hello, ..5))?;
//!     server.next().wait()?;
//!     link.disconnect().wait()?;
//!     Ok(())
//! }
//! # let device = bareverbs_test_support::example::ip_device().unwrap();
//! # std::thread::scope(|scope| {
//! #     scope.spawn(|| server().unwrap());
//! #     while client().is_err() {}
//! # });
//! ```
//!
//! # Tasks
//!
//! Calls that wait return a [`Waiting`]: a thread calls `wait`, a task awaits it. A runtime is attached
//! once, to the listener or the connector. Its connections have the same one, and so has an [`Endpoint`]
//! that a task accepts or connects. One task may wait for `queue.next()` and `link.ended()` at once, by
//! `select!`.
//!
//! ```no_run
//! use bareverbs::runtime::Runtime;
//! use bareverbs::{Access, Buffer, Endpoint, Op};
//! use bareverbs_rdmacm::{ConnectOptions, Listener, Result};
//!
//! // `runtime` is `Tokio` or `AsyncIo` of `bareverbs::runtime`.
//! async fn serve(runtime: impl Runtime) -> Result<()> {
//!     let listener = Listener::bind("10.1.0.1:7174")?;
//!     listener.attach(runtime)?;
//!     loop {
//!         // To take the next request before this one is answered, spawn a task for the rest.
//!         let request = listener.request().await?;
//!         let pd = request.pd().await?;
//!         let mut endpoint = Endpoint::options().port(request.port()?).build(&pd)?;
//!         endpoint.post(Op::recv(pd.register(Buffer::zeroed(4096)?, Access::LOCAL_WRITE)?))?;
//!         let mut peer = request.accept(endpoint, &ConnectOptions::default()).await?;
//!         println!("{:?}", peer.queue.next().await?.message());
//!         peer.queue.post(Op::send_inline(b"welcome"))?;
//!         peer.queue.next().await?;
//!         peer.link.ended().await?;
//!     }
//! }
//! ```
//!
//! # iWARP
//!
//! On a device of iWARP, the kernel's connection manager connects queue pairs and moves them:
//!
//! - **The connecting side sends first.** The kernel of the connecting side takes a message that comes with
//!   the MPA response for an error. An accepted queue posts its first send when it has received something.
//! - Without a posted receive, a message ends the connection: there are no RNR retries. [`Listener::accept`]
//!   and [`Connector::connect`] post none before the peer may send. [`Incoming::accept`] and
//!   [`Route::connect`] take a queue that has receives.
//! - Bind a listener to the address of the device: on Linux 6.1, one on an unspecified address refused
//!   connections of another network namespace.
//! - The port is one of TCP: a TCP socket may use it already.
//! - A connection attempt blocks until the peer's host has accepted the TCP connection. Only then does the
//!   limit of `wait_timeout` count. In a task, another thread blocks.
//! - Private data has up to [`Message::MAX_ON_IWARP`](crate::Message::MAX_ON_IWARP) bytes.
//!
//! # Memory
//!
//! A [`Connected`] with an [`Endpoint`] of 1 send and 1 receive takes 14 to 17 kB of the process on
//! Linux 7.2, and 20 to 27 kB of the system, which include those of the process. Buffers of messages
//! and larger queues come on top.

mod exchange;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use bareverbs::qp::QpType;
use bareverbs::runtime::Runtime;
#[cfg(feature = "soft")]
use bareverbs::soft::Fabric;
use bareverbs::{Endpoint, EndpointOptions, Pd, PortNum};
use bareverbs_provider::process::PerProcess;
use rustix::io::Errno;

use crate::channel::EventChannel;
use crate::command::CmFile;
use crate::event::EventKind;
use crate::id::BoundDevice;
use crate::name::{Name, first, first_of};
pub use crate::qp::{ConnectOptions, ConnectQueue};
use crate::qp::{answered, check_type, prepare_accept, with_offer};
use crate::waiting::{Waiter, Waiting};
use crate::{Addr, CmId, ConnectRequest, Error, IdOptions, PeerParam, PrivateData, Result, steps};

/// A list of open devices, each with one protection domain (PD), that connections share. Clones are
/// the same list.
///
/// ```
/// # bareverbs::Device::find("soft0").unwrap();
/// use bareverbs_rdmacm::connection::Domains;
/// use bareverbs_rdmacm::{Connector, Listener};
///
/// let listener = Listener::bind("0.0.0.0:7174")?;
/// let connector = Connector::with_domains(listener.domains());
/// assert_eq!(connector.domains(), listener.domains());
/// # Ok::<(), bareverbs_rdmacm::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct Domains {
    known: Arc<Mutex<Known>>,
    /// The fabric of the devices; `None`: those of [`EventChannel::new`].
    #[cfg(feature = "soft")]
    fabric: Option<Fabric>,
}

type Known = Vec<(BoundDevice, Pd)>;

/// The list of the process, while one of its users exists.
static OF_PROCESS: PerProcess<Mutex<Weak<Mutex<Known>>>> = PerProcess::empty();

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
        // Without the page of a fork guard, no device can be opened.
        let Ok(shared) = OF_PROCESS.get() else { return Self::default() };
        let mut shared = shared.lock().unwrap_or_else(PoisonError::into_inner);
        let known = shared.upgrade().unwrap_or_else(|| {
            let known = Arc::default();
            *shared = Arc::downgrade(&known);
            known
        });
        Self {
            known,
            #[cfg(feature = "soft")]
            fabric: None,
        }
    }

    /// A list of devices of a fabric. Connectors, listeners, streams and datagram sockets with this
    /// list have their connections on the fabric.
    ///
    /// ```
    /// use bareverbs::soft::{Fabric, SoftDevice};
    /// use bareverbs::{Endpoint, Op, PoolBuffer};
    /// use bareverbs_rdmacm::connection::Domains;
    /// use bareverbs_rdmacm::{Connector, IdOptions, Listener};
    /// use std::net::Ipv4Addr;
    ///
    /// let fabric = Fabric::new();
    /// let devices = [(); 2].map(|()| SoftDevice::new(&fabric));
    /// let domains = Domains::on(&fabric);
    /// let listener = Listener::bind_with_domains(&domains, &IdOptions::default(), (devices[1].address(), 0))?;
    /// let server = listener.local_addr()?;
    /// let options = Endpoint::options();
    /// std::thread::scope(|scope| {
    ///     scope.spawn(|| listener.accept::<PoolBuffer>(&options).wait().unwrap());
    ///     let connector = Connector::with_domains(&domains);
    ///     let connected = connector.connect::<PoolBuffer>(server, &options).wait();
    ///     assert_eq!(connected.unwrap().link.peer_addr().unwrap().port(), server.port());
    /// });
    /// # Ok::<(), bareverbs_rdmacm::Error>(())
    /// ```
    #[cfg(feature = "soft")]
    #[must_use]
    pub fn on(fabric: &Fabric) -> Self {
        Self { fabric: Some(fabric.clone()), ..Self::default() }
    }

    /// A channel for the devices.
    fn channel(&self) -> Result<EventChannel> {
        #[cfg(feature = "soft")]
        if let Some(fabric) = &self.fabric {
            return EventChannel::on(fabric);
        }
        EventChannel::new()
    }

    /// A channel of one identifier for the devices.
    pub(crate) fn private_channel(&self) -> Result<EventChannel> {
        #[cfg(feature = "soft")]
        if let Some(fabric) = &self.fabric {
            return Ok(EventChannel::private(CmFile::on(fabric)?));
        }
        Ok(EventChannel::private(CmFile::open()?))
    }

    /// The protection domain of a device, which is opened on first use.
    ///
    /// # Errors
    /// [`Error::Verbs`]: the device can't be opened.
    pub fn pd(&self, device: BoundDevice) -> Result<Pd> {
        let mut known = self.lock();
        if let Some(pd) = find(&known, &device) {
            return Ok(pd);
        }
        let pd = device.find()?.open()?.alloc_pd()?;
        known.push((device, pd.clone()));
        Ok(pd)
    }

    /// As [`Domains::pd`]. A task of the runtime does not block.
    pub(crate) async fn open(
        &self,
        waiter: &Waiter,
        runtime: Option<Arc<dyn Runtime>>,
        device: BoundDevice,
    ) -> Result<Pd> {
        let found = find(&self.lock(), &device);
        match found {
            Some(pd) => Ok(pd),
            None => {
                let domains = self.clone();
                waiter.blocking(runtime, move || domains.pd(device)).await?
            }
        }
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

    /// An endpoint on the device and the port of an identifier.
    async fn endpoint<B>(
        &self,
        waiter: &Waiter,
        id: &CmId,
        options: &EndpointOptions,
    ) -> Result<Endpoint<B>> {
        let device = device_of(id)?;
        self.open(waiter, id.channel().runtime(), device).await?;
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

fn find(known: &Known, device: &BoundDevice) -> Option<Pd> {
    known.iter().find(|(of, _)| is_same(of, device)).map(|(_, pd)| pd.clone())
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
    /// Listens on the first of the addresses that can be bound. The system's resolver looks host names
    /// up, which blocks. Port 0 is a free port, which [`Listener::local_addr`] returns. An unspecified
    /// address is that of every device.
    ///
    /// # Errors
    /// - [`Error::Name`]: the name was not resolved.
    /// - [`Error::Invalid`]: it has no address.
    /// - The errors of [`EventChannel::new`], [`CmId::bind_addr`] and [`CmId::listen`].
    #[doc(alias = "rdma_create_ep")]
    #[doc(alias = "rdma_getaddrinfo")]
    pub fn bind(name: impl Into<Name>) -> Result<Self> {
        Self::bind_with(&IdOptions::default(), name)
    }

    /// Listens as [`Listener::bind`] does, with options.
    ///
    /// ```
    /// # bareverbs::Device::find("soft0").unwrap();
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
    pub fn bind_with(options: &IdOptions, name: impl Into<Name>) -> Result<Self> {
        Self::bind_with_domains(&Domains::default(), options, name)
    }

    /// Listens as [`Listener::bind_with`] does, with a list of devices that others share.
    ///
    /// # Errors
    /// As for [`Listener::bind_with`].
    pub fn bind_with_domains(domains: &Domains, options: &IdOptions, name: impl Into<Name>) -> Result<Self> {
        first(name.into().resolve("Listener::bind")?, |addr| {
            let id = options.create_id(&domains.channel()?)?;
            id.bind_addr(addr)?;
            id.listen(options.backlog)?;
            Ok(Self { id_options: *options, domains: domains.clone(), ..Self::from_id(id)? })
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

    /// Registers the channel of the listener with an async runtime, for tasks. Its connections have the
    /// same runtime, and the endpoints that tasks accept. Threads may wait, too.
    ///
    /// # Errors
    /// As for [`EventChannel::attach`].
    pub fn attach(&self, runtime: impl Runtime) -> Result<()> {
        self.id.channel().attach(runtime)
    }

    /// The protection domain of the requests to a local address, before the first request arrives. The
    /// device is opened on first use.
    ///
    /// ```
    /// # let device = bareverbs_test_support::example::ip_device().unwrap();
    /// use bareverbs::Pool;
    /// use bareverbs_rdmacm::Listener;
    /// use std::net::Ipv4Addr;
    ///
    /// let listener = Listener::bind("0.0.0.0:7174")?;
    /// let pd = listener.pd(Ipv4Addr::new(10, 1, 0, 1)).wait()?;
    /// let buffers = Pool::new(&pd, 64, 4096)?;
    /// # Ok::<(), bareverbs_rdmacm::Error>(())
    /// ```
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the address is that of every device.
    /// - [`Error::Command`] with `EADDRNOTAVAIL`: it is not local. With `ENODEV`: its network interface
    ///   has no RDMA device.
    /// - [`Error::Verbs`]: the device can't be opened.
    pub fn pd(&self, local: impl Into<IpAddr>) -> Waiting<'_, Result<Pd>> {
        let local = SocketAddr::new(local.into(), 0);
        Waiting::new(move |waiter| async move {
            let channel = self.id.channel();
            let id = self.id_options.create_id(channel)?;
            id.bind_addr(local)?;
            self.domains.open(&waiter, channel.runtime(), device_of(&id)?).await
        })
    }

    /// Waits for a request. A wait that is dropped loses no request.
    ///
    /// # Errors
    /// [`Error::DeviceRemoved`]; those of [`EventChannel::next`].
    #[doc(alias = "rdma_get_request")]
    #[doc(alias = "get_request")]
    pub fn request(&self) -> Waiting<'_, Result<Incoming>> {
        Waiting::new(move |waiter| async move {
            let request = steps::request(&waiter, &self.id).await?;
            request.id().claim();
            self.id_options.apply_to_child(request.id())?;
            Ok(Incoming { request, domains: self.domains.clone() })
        })
    }

    /// Waits for a request and accepts it with a new endpoint on its device. Receives may be posted
    /// afterwards: the peer's messages are repeated until then.
    ///
    /// While it waits for the confirmation of one peer, it takes no other request: to do both, answer
    /// each [`Incoming`] in a thread or task of its own. Drop rejects a request that was taken.
    ///
    /// Of `options`, only the depths, the buffers, `access`, `spin` and `keepalive` are used. The port
    /// and the path are those of the identifier. Retries and the RNR timer are those of
    /// [`ConnectOptions::default`].
    ///
    /// An idle peer is [probed](ConnectOptions#keepalive).
    ///
    /// The type of the buffers is that of the operations which are posted. A program that posts none
    /// names one: `accept::<PoolBuffer>`.
    ///
    /// # Errors
    /// The errors of [`Listener::request`], [`EndpointOptions::build`] and [`Incoming::accept`].
    #[doc(alias = "rdma_accept")]
    pub fn accept<'a, B: Send + 'a>(
        &'a self,
        options: &'a EndpointOptions,
    ) -> Waiting<'a, Result<Connected<Endpoint<B>>>> {
        Waiting::new(move |waiter| async move {
            let incoming = self.request().within(&waiter).await?;
            let endpoint = self.domains.endpoint(&waiter, incoming.request.id(), options).await?;
            incoming.accept(endpoint, &ConnectOptions::default()).within(&waiter).await
        })
    }
}

/// A request of a peer. Drop rejects it.
#[derive(Debug)]
#[must_use = "drop rejects the request"]
pub struct Incoming {
    request: ConnectRequest,
    domains: Domains,
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

    /// Data from the application of the peer, padded with zeros. It does not contain the memory of probes
    /// that [an endpoint on iWARP sends](ConnectOptions::private_data).
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

    /// The protection domain of the listener on the device of the request. The device is opened on first
    /// use.
    ///
    /// # Errors
    /// As for [`Domains::pd`] and [`CmId::addresses`].
    pub fn pd(&self) -> Waiting<'_, Result<Pd>> {
        pd(&self.domains, self.request.id())
    }

    /// Moves the queue to RTS, accepts the request, and waits until the peer has confirmed.
    /// Receives are posted to the queue before, or after. Drop ends the connection.
    ///
    /// An idle peer is [probed](ConnectOptions#keepalive).
    ///
    /// ```
    /// use bareverbs::{Endpoint, PoolBuffer};
    /// use bareverbs_rdmacm::{ConnectOptions, Listener};
    ///
    /// # fn accept(listener: &Listener) -> bareverbs_rdmacm::Result<()> {
    /// let request = listener.request().wait()?;
    /// let pd = request.pd().wait()?;
    /// let endpoint: Endpoint<PoolBuffer> = Endpoint::options().port(request.port()?).build(&pd)?;
    /// let peer = request.accept(endpoint, &ConnectOptions::default()).wait()?;
    /// # Ok(())
    /// # }
    /// # let _device = bareverbs_test_support::example::ip_device()?;
    /// # let listener = Listener::bind("0.0.0.0:7174")?;
    /// # let connector = bareverbs_rdmacm::Connector::new();
    /// # let connect = move || connector.connect::<PoolBuffer>("10.1.0.1:7174", &Endpoint::options()).wait();
    /// # let connecting = std::thread::spawn(connect);
    /// # accept(&listener)?;
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    ///
    /// # Errors
    /// The request is rejected then, and the queue dropped.
    ///
    /// - [`Error::Verbs`]: a transition of the queue pair failed.
    /// - [`Error::Withdrawn`]: the peer gave up before it was answered.
    /// - [`Error::Rejected`], [`Error::Unreachable`], [`Error::Disconnected`]
    /// - The errors of [`CmId::accept`].
    #[doc(alias = "rdma_accept")]
    pub fn accept<'a, Q: ConnectQueue + Send + 'a>(
        self,
        mut queue: Q,
        options: &'a ConnectOptions<'a>,
    ) -> Waiting<'a, Result<Connected<Q>>> {
        Waiting::new(move |waiter| async move {
            let offer = queue.probe_offer();
            let options = with_offer(options, offer.as_ref());
            let (peer, param, moved_by) = prepare_accept("accept", &self.request, &mut queue, &options)?;
            attach(&waiter, self.request.id(), &mut queue)?;
            let id = self.request.accept(&param)?;
            steps::established(&waiter, &id).await?;
            moved_by.established_with(&mut queue, &peer)?;
            Ok(Connected::new(id, queue, peer))
        })
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

/// Connects to peers, on devices that it opens once.
///
/// Its connections share a channel: all of them have one file of the connection manager. Each gets its
/// own events, also when several threads wait. Clones share the devices and the channel.
#[doc(alias = "rdma_get_devices")]
#[doc(alias = "rdma_free_devices")]
#[derive(Clone, Debug, Default)]
pub struct Connector {
    domains: Domains,
    id_options: IdOptions,
    /// Opened on first use.
    channel: Arc<OnceLock<EventChannel>>,
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
        if let Some(channel) = self.channel.get() {
            return Ok(channel.clone());
        }
        let opened = self.domains.channel()?;
        // Another thread may have opened one.
        Ok(self.channel.get_or_init(|| opened).clone())
    }

    /// Registers the channel of the connector with an async runtime, for tasks. Its connections have the
    /// same runtime, and the endpoints that tasks connect. Threads may wait, too.
    ///
    /// # Errors
    /// As for [`Connector::channel`] and [`EventChannel::attach`].
    pub fn attach(&self, runtime: impl Runtime) -> Result<()> {
        self.channel()?.attach(runtime)
    }

    /// Resolves address and route of the first of the addresses that has a route, for a queue of the
    /// caller. Host names are looked up by the system's resolver.
    ///
    /// # Errors
    /// - [`Error::Name`]: the name was not resolved. [`Error::Invalid`]: it has no address.
    /// - [`Error::TimedOut`]: no neighbour has answered within 10 seconds.
    /// - [`Error::Address`], [`Error::Route`]: there is no route. On InfiniBand, the subnet administrator
    ///   has not answered within 10 seconds.
    /// - Those of [`Connector::channel`], [`IdOptions::apply`] and [`CmId::resolve_addr`].
    #[doc(alias = "rdma_resolve_addr")]
    #[doc(alias = "rdma_resolve_route")]
    #[doc(alias = "rdma_getaddrinfo")]
    pub fn resolve(&self, name: impl Into<Name>) -> Waiting<'_, Result<Route>> {
        let name = name.into();
        Waiting::new(move |waiter| async move {
            let (waiter, channel, options) = (&waiter, &self.channel()?, &self.id_options);
            let addrs = name.lookup_by(waiter, channel.runtime(), "Connector::resolve").await?;
            first_of(addrs, |addr| async move {
                let id = options.create_id(channel)?;
                id.claim();
                steps::resolve(waiter, &id, options.source, addr).await?;
                Ok(Route { id, domains: self.domains.clone() })
            })
            .await
        })
    }

    /// Connects to the first of the addresses that has a route, with a new endpoint. Receives may
    /// be posted afterwards: the peer's messages are repeated until then.
    ///
    /// Drop ends the attempt. Otherwise the kernel gives up after about 70 to 100 seconds on RoCE.
    ///
    /// Of `options`, only the depths, the buffers, `access`, `spin` and `keepalive` are used. The port
    /// and the path are those of the identifier. Retries and the RNR timer are those of
    /// [`ConnectOptions::default`].
    ///
    /// An idle peer is [probed](ConnectOptions#keepalive).
    ///
    /// The type of the buffers is that of the operations which are posted. A program that posts none
    /// names one: `connect::<PoolBuffer>`.
    ///
    /// # Errors
    /// The errors of [`Connector::resolve`], [`EndpointOptions::build`] and [`Route::connect`].
    #[doc(alias = "rdma_connect")]
    #[doc(alias = "rdma_create_ep")]
    pub fn connect<'a, B: Send + 'a>(
        &'a self,
        name: impl Into<Name>,
        options: &'a EndpointOptions,
    ) -> Waiting<'a, Result<Connected<Endpoint<B>>>> {
        let name = name.into();
        Waiting::new(move |waiter| async move {
            let route = self.resolve(name).within(&waiter).await?;
            let endpoint = self.domains.endpoint(&waiter, &route.id, options).await?;
            route.connect(endpoint, &ConnectOptions::default()).within(&waiter).await
        })
    }
}

/// A route to a peer: the device and the port on which the queue pair must be.
#[derive(Debug)]
pub struct Route {
    id: CmId,
    domains: Domains,
}

impl Route {
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

    /// The protection domain of the connector on the device of the route. The device is opened on first
    /// use.
    ///
    /// # Errors
    /// As for [`Domains::pd`] and [`CmId::addresses`].
    pub fn pd(&self) -> Waiting<'_, Result<Pd>> {
        pd(&self.domains, &self.id)
    }

    /// Connects the queue and moves it to RTS. Receives are posted to the queue before, or after. Drop
    /// ends the attempt.
    ///
    /// An idle peer is [probed](ConnectOptions#keepalive).
    ///
    /// ```
    /// use bareverbs::{Endpoint, PoolBuffer};
    /// use bareverbs_rdmacm::{ConnectOptions, Connector};
    ///
    /// # fn connect(connector: &Connector) -> bareverbs_rdmacm::Result<()> {
    /// let route = connector.resolve("10.1.0.1:7174").wait()?;
    /// let pd = route.pd().wait()?;
    /// let endpoint: Endpoint<PoolBuffer> = Endpoint::options().port(route.port()?).build(&pd)?;
    /// let server = route.connect(endpoint, &ConnectOptions::default()).wait()?;
    /// # Ok(())
    /// # }
    /// # let _device = bareverbs_test_support::example::ip_device()?;
    /// # let listener = bareverbs_rdmacm::Listener::bind("0.0.0.0:7174")?;
    /// # let accepting = std::thread::spawn(move || listener.accept::<PoolBuffer>(&Endpoint::options()).wait());
    /// # connect(&Connector::new())?;
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    ///
    /// # Errors
    /// The queue is dropped then.
    ///
    /// - [`Error::Rejected`], [`Error::Unreachable`], [`Error::Disconnected`]
    /// - [`Error::Verbs`]: a transition of the queue pair failed. The peer's acceptance is rejected.
    /// - The errors of [`CmId::connect`].
    #[doc(alias = "rdma_connect")]
    pub fn connect<'a, Q: ConnectQueue + Send + 'a>(
        self,
        mut queue: Q,
        options: &'a ConnectOptions<'a>,
    ) -> Waiting<'a, Result<Connected<Q>>> {
        Waiting::new(move |waiter| async move {
            let id = self.id;
            check_type("connect", &id, &queue)?;
            let offer = queue.probe_offer();
            let options = with_offer(options, offer.as_ref());
            steps::connect(&waiter, &id, &options.param(&queue)).await?;
            let peer = steps::response(&waiter, &id).await?;
            answered(&id, &mut queue, &options, &peer)?;
            attach(&waiter, &id, &mut queue)?;
            id.establish().map_err(|error| steps::refused(&id, "connect", error))?;
            Ok(Connected::new(id, queue, peer))
        })
    }
}

/// Gives the queue of a task the runtime of its connection.
fn attach<Q: ConnectQueue>(waiter: &Waiter, id: &CmId, queue: &mut Q) -> Result<()> {
    match id.channel().runtime() {
        Some(runtime) if waiter.is_task() => Ok(queue.attach(runtime)?),
        _ => Ok(()),
    }
}

/// The protection domain of an identifier.
fn pd<'a>(domains: &'a Domains, id: &'a CmId) -> Waiting<'a, Result<Pd>> {
    Waiting::new(
        move |waiter| async move { domains.open(&waiter, id.channel().runtime(), device_of(id)?).await },
    )
}

/// A connection: its queue, which is in RTS, and its link. One task may wait for `queue.next()` and
/// `link.ended()` at once, by `select!`.
///
/// ```
/// # use bareverbs::Endpoint;
/// # use bareverbs_rdmacm::{Connected, Result};
/// # fn end(connected: Connected<Endpoint>) -> Result<()> {
/// let Connected { queue: mut endpoint, mut link } = connected;
/// println!("{}: QP {:#x}", link.peer_addr()?, endpoint.qp().qp_num());
/// link.disconnect().wait()
/// # }
/// # let _device = bareverbs_test_support::example::ip_device()?;
/// # let listener = bareverbs_rdmacm::Listener::bind("0.0.0.0:7174")?;
/// # let accept = move || listener.accept::<bareverbs::PoolBuffer>(&Endpoint::options()).wait();
/// # let accepting = move || accept()?.link.ended().wait();
/// # std::thread::spawn(accepting);
/// # let connector = bareverbs_rdmacm::Connector::new();
/// # end(connector.connect("10.1.0.1:7174", &Endpoint::options()).wait()?)?;
/// # Ok::<(), bareverbs::Report>(())
/// ```
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
#[doc(alias = "Connection")]
#[derive(Debug)]
pub struct Connected<Q> {
    /// The connection. It is dropped before the queue: the kernel sends the DREQ while the QP still
    /// exists.
    pub link: Link,
    /// The queue.
    pub queue: Q,
}

impl<Q> Connected<Q> {
    fn new(id: CmId, queue: Q, peer: PeerParam) -> Self {
        Self { link: Link { id, peer, ended: false }, queue }
    }
}

/// A connection without its queue: its identifier and its end.
///
/// Drop sends one DREQ and does not wait for the DREP. If the DREQ is lost, the peer notices by errors of
/// its operations only. [`Link::disconnect`] retries it.
#[derive(Debug)]
pub struct Link {
    id: CmId,
    peer: PeerParam,
    ended: bool,
}

impl Link {
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

    /// Gives the connection an event channel of its own, with the same runtime. A thread that reads a
    /// shared channel takes the events of all its connections, so the descriptor of a shared channel does
    /// not show those of one. Call it before you wait by the descriptor of [`CmId::channel`].
    ///
    /// ```
    /// # let _device = bareverbs_test_support::example::ip_device()?;
    /// use std::os::fd::AsFd;
    ///
    /// use bareverbs::{Endpoint, PoolBuffer};
    /// use bareverbs_rdmacm::Listener;
    ///
    /// let listener = Listener::bind("0.0.0.0:7174")?;
    /// # let connector = bareverbs_rdmacm::Connector::new();
    /// # let connect = move || connector.connect::<PoolBuffer>("10.1.0.1:7174", &Endpoint::options()).wait();
    /// # let connecting = std::thread::spawn(connect);
    /// let mut peer = listener.accept::<PoolBuffer>(&Endpoint::options()).wait()?;
    /// peer.link.own_channel()?;
    /// // Readable when the peer has ended the connection: for `poll` or `epoll`.
    /// let events = peer.link.id().channel().as_fd();
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`EventChannel::new`], [`EventChannel::attach`] and [`CmId::migrate`].
    #[doc(alias = "rdma_migrate_id")]
    pub fn own_channel(&mut self) -> Result<()> {
        let channel = self.id.channel().private_for_same_devices()?;
        if let Some(runtime) = self.id.channel().runtime() {
            channel.attach_to(&runtime)?;
        }
        self.id.move_to(&channel)
    }

    /// Whether the peer has ended the connection. It does not wait. If a DREQ has arrived, a
    /// DREP is sent.
    ///
    /// # Errors
    /// - [`Error::DeviceRemoved`]
    /// - The errors of [`EventChannel::try_wait`].
    #[doc(alias = "is_disconnected")]
    pub fn has_ended(&mut self) -> Result<bool> {
        while let Some(event) = self.id.channel().try_event(Some(self.id.key()))? {
            match event.kind {
                EventKind::Disconnected(_) => self.answer_end()?,
                EventKind::DeviceRemoval => return Err(Error::DeviceRemoved { verb: "has_ended" }),
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

    /// Waits until the peer ends the connection, and answers. A wait that is dropped loses no end.
    ///
    /// A thread that also waits for the queue calls [`has_ended`](Self::has_ended) between waits with a
    /// limit. A peer without an answer waits in [`disconnect`](Self::disconnect) for about a minute.
    ///
    /// # Errors
    /// [`Error::DeviceRemoved`]; those of [`EventChannel::next`].
    #[doc(alias = "wait_disconnected")]
    #[doc(alias = "disconnected")]
    pub fn ended(&mut self) -> Waiting<'_, Result<()>> {
        Waiting::new(|waiter| async move {
            if !self.ended {
                steps::disconnected(&waiter, &self.id, "ended").await?;
                self.answer_end()?;
            }
            Ok(())
        })
    }

    /// Ends the connection, and waits until the peer has answered. Operations that are outstanding
    /// at either end may fail: end them before. A send of the peer may be outstanding there although
    /// this end has received its message. The queue is still in RTS afterwards.
    ///
    /// # Errors
    /// [`Error::Unreachable`]: the peer never answered; [`Error::DeviceRemoved`]; those of
    /// [`EventChannel::next`].
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect(&mut self) -> Waiting<'_, Result<()>> {
        Waiting::new(|waiter| async move {
            if self.has_ended()? {
                return Ok(());
            }
            self.id.disconnect()?;
            let status = steps::disconnected(&waiter, &self.id, "disconnect").await?;
            self.ended = true;
            status.map_or(Ok(()), |errno| Err(Error::Unreachable(errno)))
        })
    }

    /// The identifier. It may share its channel with other connections. [`EventChannel::try_wait`]
    /// returns its events from now on.
    #[doc(alias = "into_parts")]
    #[must_use]
    pub fn into_id(self) -> CmId {
        self.id.unclaim();
        self.id
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bareverbs::qp::Ece;
    use bareverbs_uapi::rdma_cm::EventType;
    use bareverbs_uapi::rdma_cm::structs::EventResp;

    use super::*;
    use crate::PortSpace;

    /// The link of a connection whose kernel is simulated, and reports these events.
    fn link(events: impl IntoIterator<Item = EventType>) -> (EventChannel, Link) {
        let channel = EventChannel::simulated();
        let id = CmId::new(&channel, PortSpace::Tcp).unwrap();
        id.claim();
        for event in events {
            let event = EventResp { uid: id.key().get(), event, ..EventResp::zeroed() };
            channel.file().kernel().report(event);
        }
        let peer = PeerParam {
            qp_num: 1,
            srq: false,
            responder_resources: 0,
            initiator_depth: 0,
            flow_control: false,
            retry_count: 0,
            rnr_retry_count: 0,
            private_data: PrivateData::EMPTY,
            ece: Ece::default(),
            probe_offer: None,
        };
        (channel, Link { id, peer, ended: false })
    }

    fn answers(channel: &EventChannel) -> usize {
        channel.file().kernel().disconnected().len()
    }

    #[test]
    fn end_of_a_connection_is_found_behind_other_events() {
        let (channel, mut link) = link([EventType::ADDR_CHANGE, EventType::DISCONNECTED]);
        assert!(link.has_ended().unwrap());
        assert_eq!(answers(&channel), 1);
        assert!(link.has_ended().unwrap(), "once more");
        assert_eq!(answers(&channel), 1);
    }

    #[test]
    fn end_by_the_peer_is_answered_once() {
        let (channel, mut link) = link([EventType::DISCONNECTED]);
        for _ in 0..2 {
            link.ended().wait().unwrap();
            assert_eq!(answers(&channel), 1);
        }
    }

    #[test]
    fn disconnect_after_the_end_by_the_peer_waits_for_no_event() {
        for known in [false, true] {
            let (channel, mut link) = link([EventType::DISCONNECTED]);
            if known {
                assert!(link.has_ended().unwrap());
            }
            link.disconnect().wait_timeout(Duration::ZERO).expect("the connection has ended").unwrap();
            assert_eq!(answers(&channel), 1);
        }
    }

    #[test]
    fn events_of_an_identifier_without_its_link_are_for_any_caller() {
        let (channel, link) = link([EventType::DISCONNECTED]);
        assert!(channel.try_wait().unwrap().is_none());
        let id = link.into_id();
        assert_eq!(channel.try_wait().unwrap().unwrap().key, id.key());
    }
}
