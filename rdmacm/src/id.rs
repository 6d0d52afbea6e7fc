//! Identifiers: the kernel's objects for listeners and connections.

use std::fmt;
use std::mem;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bareverbs::qp::{QpAttr, QpAttrMask, QpState, QpType};
use bareverbs::values::Guid;
use bareverbs::{Device, PortNum, Refused};
use bareverbs_uapi::rdma_cm::path::{PathRecData, PathRecord, ServiceRec};
use bareverbs_uapi::rdma_cm::structs::*;
use bareverbs_uapi::rdma_cm::{EventType, IbServiceFlags, QueryOption};
use bareverbs_uapi::verbs_values;
use rustix::io::Errno;
use zerocopy::FromBytes;

use crate::addr::{Addr, IbAddr, PortSpace};
use crate::attr::qp_attr;
use crate::channel::EventChannel;
use crate::command::{self, CmFile, is_iwarp_mask};
use crate::key::{self, Key, KeyInfo};
use crate::param::{ConnParam, Message};
use crate::status::RejectReason;
use crate::{Error, Feature, Result};

/// Number of records that a query offers room for. The kernel has one path for each identifier, or
/// two with an alternate path; 6.12 returns one record less than fits.
const PATHS: usize = 4;
const SERVICES: usize = 64;

/// An identifier: a listener, or one end of a connection.
///
/// The kernel keeps its state and checks each call against it. Calls that the state forbids fail
/// with [`Error::Command`] and `EINVAL`. An identifier connects once: after an attempt failed,
/// create another.
///
/// ```text
/// active:   resolve_addr → resolve_route → connect → (QP to RTS) → establish → disconnect
/// passive:  bind_addr → listen → ConnectRequest → (QP to RTS) → accept → disconnect
/// ```
///
/// Drop destroys the kernel's identifier. An established connection then ends: the peer gets
/// [`EventKind::Disconnected`](crate::event::EventKind::Disconnected) if the one message about it
/// is not lost. [`CmId::disconnect`] repeats the message until it is answered. Drop may block for a
/// moment, while the kernel handles an event of the identifier or sends its messages. It waits for
/// no event to be read or acknowledged.
///
/// Calls issue one command each, and return at once. Those that return a
/// [`Waiting`](crate::Waiting) wait for an event: [`CmId::resolve`], [`CmId::response`] and so on.
/// A program that is driven by events reads the channel instead.
///
/// ```no_run
/// use bareverbs_rdmacm::{CmId, ConnParam, EventChannel, PortSpace};
/// use std::net::Ipv4Addr;
///
/// # fn move_qp(id: &bareverbs_rdmacm::CmId) -> bareverbs_rdmacm::Result<()> { Ok(()) }
/// # let qp_num = 0x11;
/// let id = CmId::new(&EventChannel::new()?, PortSpace::Tcp)?;
/// id.resolve(None, (Ipv4Addr::new(10, 1, 0, 1), 7174)).wait()?;
/// id.connect(&ConnParam::new(qp_num))?;
/// let peer = id.response().wait()?;
/// println!("the peer has QP {:#x}", peer.qp_num);
/// // The caller moves its own QP by the attributes of `CmId::init_qp_attr`.
/// move_qp(&id)?;
/// id.establish()?;
/// # Ok::<(), bareverbs_rdmacm::Error>(())
/// ```
///
/// # Datagram services
///
/// A client asks a service by IP address for the QP of its datagrams
/// ([`Datagrams`](bareverbs::Datagrams)):
///
/// ```
/// use bareverbs::{Datagrams, Op, Pool};
/// use bareverbs_rdmacm::connection::Domains;
/// use bareverbs_rdmacm::{CmId, ConnParam, EventChannel, PortSpace};
/// use std::net::Ipv4Addr;
///
/// fn service(domains: &Domains) -> bareverbs_rdmacm::Result<()> {
///     let listener = CmId::new(&EventChannel::new()?, PortSpace::Udp)?;
///     listener.bind_addr((Ipv4Addr::UNSPECIFIED, 7174))?;
///     listener.listen(0)?;
///     let request = listener.request().wait()?;
///     let device = request.id().addresses()?.device.expect("a request has a device");
///     let pd = domains.pd(device)?;
///     let mut datagrams: Datagrams = Datagrams::options().port(device.port).build(&pd)?;
///     let pool = Pool::new(&pd, 1, 40 + datagrams.max_message() as usize)?;
///     datagrams.post(Op::recv(pool.take().expect("a free buffer")))?;
///     // A listener may answer all clients with the QP of the same datagrams.
///     request.accept(&ConnParam::new(datagrams.qp().qp_num()))?;
///     println!("{:?}", datagrams.next_recv().wait()?.message());
///     Ok(())
/// }
///
/// fn client(domains: &Domains) -> bareverbs_rdmacm::Result<()> {
///     let id = CmId::new(&EventChannel::new()?, PortSpace::Udp)?;
///     id.resolve(None, (Ipv4Addr::new(10, 1, 0, 1), 7174)).wait()?;
///     let device = id.addresses()?.device.expect("a resolved address has a device");
///     id.connect(&ConnParam::new(0))?;
///     let peer = id.ud_peer().wait()?;
///     let options = Datagrams::options().port(device.port).inline(64).qkey(peer.qkey);
///     let mut datagrams: Datagrams = options.build(&domains.pd(device)?)?;
///     let to = datagrams.destination_with_path(&peer.address, peer.qp_num, peer.qkey).wait()?;
///     datagrams.post(Op::send_to_inline(&to, b"hello"))?;
///     datagrams.next_send().wait()?;
///     Ok(())
/// }
/// # let device = bareverbs_test_support::example::ip_device().unwrap();
/// # let domains = Domains::default();
/// # std::thread::scope(|scope| {
/// #     scope.spawn(|| service(&domains).unwrap());
/// #     while client(&domains).is_err() {}
/// # });
/// ```
#[doc(alias = "BlockingId")]
#[doc(alias = "rdma_cm_id")]
#[doc(alias = "rdma_destroy_id")]
#[doc(alias = "rdma_create_qp")]
#[doc(alias = "rdma_destroy_qp")]
#[doc(alias = "rdma_create_qp_ex")]
pub struct CmId {
    channel: EventChannel,
    number: u32,
    key: Key,
    info: KeyInfo,
    /// Whether the address to connect to is an InfiniBand address.
    to_ib_addr: AtomicBool,
    listens: AtomicBool,
    /// Of a listener; 0 is the maximum of the kernel.
    backlog: AtomicU32,
    accepted: AtomicBool,
    /// Whether the kernel has confirmed the response of the peer itself, as it does on iWARP.
    established: AtomicBool,
    memberships: Mutex<Vec<Membership>>,
    destroyed: bool,
}

/// A membership of an identifier in a multicast group.
#[derive(Debug)]
pub(crate) struct Membership {
    pub(crate) key: Key,
    pub(crate) number: u32,
}

/// The device that an identifier is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BoundDevice {
    /// Its node GUID.
    pub node_guid: Guid,
    /// Its index in RDMA netlink, or 0x8000_0000 and above for a soft device.
    pub index: u32,
    /// The port.
    pub port: PortNum,
}

impl BoundDevice {
    /// The device, also a soft device.
    ///
    /// # Errors
    /// [`Error::Verbs`]: it can't be listed, or is gone ([`bareverbs::Error::NoDevice`]).
    pub fn find(&self) -> Result<Device> {
        #[cfg(feature = "soft")]
        if let Some(device) = bareverbs::soft::SoftDevice::find(self.index) {
            return Ok(device.into());
        }
        let is_it = |device: &Device| {
            device.node_guid() == self.node_guid && device.index().is_none_or(|index| index == self.index)
        };
        let found = bareverbs::devices()?.into_iter().find(is_it);
        Ok(found.ok_or(bareverbs::Error::NoDevice)?)
    }
}

/// Addresses of an identifier.
#[doc(alias = "rdma_addr")]
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Addresses {
    /// The device; `None` for an identifier that is not bound, or bound to all devices.
    pub device: Option<BoundDevice>,
    /// The P_Key.
    pub pkey: u16,
    /// The local address; `None` before the identifier is bound.
    pub local: Option<Addr>,
    /// The address of the peer; `None` before it is known.
    pub peer: Option<Addr>,
}

/// A service of the subnet, from [`CmId::ib_services`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct IbService {
    /// Service ID.
    pub id: u64,
    /// GID of the port that has the service.
    pub gid: bareverbs::Gid,
    /// P_Key.
    pub pkey: u16,
    /// Lease in seconds.
    pub lease: u32,
    /// Name, without the zeros at its end.
    pub name: Vec<u8>,
}

impl IbService {
    fn from_kernel(record: &ServiceRec) -> Self {
        let end = record.name.iter().position(|byte| *byte == 0).unwrap_or(record.name.len());
        Self {
            id: record.id.get(),
            gid: bareverbs::Gid(record.gid),
            pkey: record.pkey.get(),
            lease: record.lease.get(),
            name: record.name[..end].to_vec(),
        }
    }
}

/// The search key of [`CmId::resolve_ib_service`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceKey<'a> {
    /// A service ID (`RDMA_USER_CM_IB_SERVICE_FLAG_ID`).
    #[doc(alias = "RDMA_USER_CM_IB_SERVICE_FLAG_ID")]
    Id(u64),
    /// A name of at most 63 bytes (`RDMA_USER_CM_IB_SERVICE_FLAG_NAME`).
    #[doc(alias = "RDMA_USER_CM_IB_SERVICE_FLAG_NAME")]
    Name(&'a str),
}

/// Milliseconds of a time limit, rounded up. The kernel's limit is about 24 days.
fn millis(timeout: Duration) -> u32 {
    timeout.as_nanos().div_ceil(1_000_000).min(i32::MAX as u128) as u32
}

impl PortSpace {
    /// Rejects a QP type that the port space does not have.
    pub(crate) fn check(self, verb: &'static str, qp_type: QpType) -> Result<()> {
        if self == Self::Ib || qp_type == self.qp_type() {
            return Ok(());
        }
        let reason = format!("port space {self:?} implies {:?}, not {qp_type:?}", self.qp_type());
        Err(Error::invalid(verb, reason))
    }
}

impl CmId {
    /// Creates an identifier on a channel, with the QP type of the port space.
    ///
    /// # Errors
    /// [`Error::Command`]: the kernel refused it.
    #[doc(alias = "rdma_create_id")]
    pub fn new(channel: &EventChannel, port_space: PortSpace) -> Result<Self> {
        Self::with_qp_type(channel, port_space, port_space.qp_type())
    }

    /// Creates an identifier for QPs of a type. Only [`PortSpace::Ib`] leaves the choice: RC, UC,
    /// UD, or one of the XRC types.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the port space implies another QP type.
    /// - [`Error::Command`]: the kernel refused it.
    #[doc(alias = "rdma_create_id")]
    pub fn with_qp_type(channel: &EventChannel, port_space: PortSpace, qp_type: QpType) -> Result<Self> {
        port_space.check("CmId::with_qp_type", qp_type)?;
        let info = KeyInfo { port_space, qp_type };
        let key = key::create(info);
        let request = CreateIdReq {
            uid: key.get(),
            ps: port_space.to_kernel(),
            qp_type: qp_type.0 as u8,
            ..CreateIdReq::zeroed()
        };
        match command::create_id(channel.file(), request) {
            Ok(created) => Ok(Self::from_parts(channel, created.id, key, info)),
            Err(error) => {
                key::retire(key);
                Err(error)
            }
        }
    }

    /// The identifier that the kernel created for a request.
    pub(crate) fn adopt(channel: &EventChannel, number: u32, info: KeyInfo) -> Self {
        Self::from_parts(channel, number, key::create(info), info)
    }

    fn from_parts(channel: &EventChannel, number: u32, key: Key, info: KeyInfo) -> Self {
        Self {
            channel: channel.clone(),
            number,
            key,
            info,
            to_ib_addr: AtomicBool::new(false),
            listens: AtomicBool::new(false),
            backlog: AtomicU32::new(0),
            accepted: AtomicBool::new(false),
            established: AtomicBool::new(false),
            memberships: Mutex::new(Vec::new()),
            destroyed: false,
        }
    }

    pub(crate) fn file(&self) -> &CmFile {
        self.channel.file()
    }

    /// The kernel's number of the identifier, for [`command`](crate::command). It is unique in the
    /// system, and may be 0. [`CmIdResource`](bareverbs_netlink::CmIdResource) lists it.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// The key by which events name the identifier.
    #[must_use]
    pub fn key(&self) -> Key {
        self.key
    }

    /// The channel that delivers its events.
    #[must_use]
    pub fn channel(&self) -> &EventChannel {
        &self.channel
    }

    /// Its port space.
    #[must_use]
    pub fn port_space(&self) -> PortSpace {
        self.info.port_space
    }

    /// The type of its QP.
    #[must_use]
    pub fn qp_type(&self) -> QpType {
        self.info.qp_type
    }

    /// Destroys the identifier. Drop does it too, and ignores errors.
    ///
    /// # Errors
    /// The identifier and [`Error::Command`]: the kernel refused it, for instance with `EACCES`
    /// after a change of credentials. The kernel destroys the identifier when the file is closed,
    /// after the last identifier and clone of the channel.
    #[doc(alias = "rdma_destroy_id")]
    #[expect(clippy::result_large_err, reason = "the error returns the identifier without an allocation")]
    pub fn destroy(mut self) -> Result<(), Refused<Self, Error>> {
        match self.destroy_inner() {
            Ok(()) => {
                self.destroyed = true;
                self.retire_keys();
                Ok(())
            }
            Err(error) => Err(Refused::new(error, self)),
        }
    }

    fn destroy_inner(&self) -> Result<()> {
        let request = DestroyIdReq { id: self.number, ..DestroyIdReq::zeroed() };
        command::destroy_id(self.file(), request).map(drop)
    }

    /// Events that name the keys are dropped from now on, also those that were read already.
    fn retire_keys(&self) {
        // In a forked child the tables of keys may be locked by a thread that is not there.
        if self.file().is_of_this_process() {
            let keys = self.keys();
            self.memberships().clear();
            keys.iter().for_each(|key| key::retire(*key));
            // No thread queues an event of a retired key.
            self.channel.purge(&keys);
        }
    }

    /// Binds to a local address. An unspecified IP address is that of every device, and port 0 is
    /// a free port of `net.ipv4.ip_local_port_range`; [`CmId::addresses`] returns it.
    ///
    /// A loopback address (127.0.0.1, `::1`) means every device too, because no RDMA device of the kernel
    /// has one. It is that of a soft device, if the channel serves one with this address. An
    /// identifier that is bound to every device listens on all of them, or gets its device from
    /// [`CmId::resolve_addr`].
    ///
    /// The kernel adds a new address to the device with a short delay, during which binding fails
    /// with `ENODEV`.
    ///
    /// # Errors
    /// [`Error::Command`] with
    /// - `EADDRNOTAVAIL`: the address is not local; another identifier uses the port, and one of the two
    ///   has an unspecified or loopback address; no port is free, if it is 0.
    /// - `EADDRINUSE`: another identifier uses the address and the port in this port space.
    /// - `ENODEV`: the address is local, but its network interface has no RDMA device; no interface has
    ///   the scope id.
    /// - `EINVAL`: the identifier is bound already; a link-local IPv6 address without scope id;
    ///   [`PortSpace::Ipoib`] on RoCE.
    /// - `EACCES`: ports below 1024 require `CAP_NET_BIND_SERVICE`.
    ///
    /// The error names the cause: it looks which one it is.
    #[doc(alias = "rdma_bind_addr")]
    pub fn bind_addr(&self, addr: impl Into<Addr>) -> Result<()> {
        let own = addr.into();
        let (addr, addr_size) = own.to_kernel();
        command::bind(self.file(), BindReq { id: self.number, addr_size, addr, ..BindReq::zeroed() })?;
        // The peer's address is of the same family.
        self.to_ib_addr.store(matches!(own, Addr::Ib(_)), Ordering::Relaxed);
        Ok(())
    }

    /// Resolves the address of a peer to a device and the peer's hardware address. `src` is the
    /// local address; `None` leaves the choice to the routing table. The kernel ignores `src` if
    /// [`CmId::bind_addr`] was called. `timeout` is rounded up to milliseconds, at most about 24 days.
    ///
    /// [`EventKind::AddrResolved`](crate::event::EventKind::AddrResolved) or
    /// [`EventKind::AddrError`](crate::event::EventKind::AddrError) follows. After the latter the
    /// identifier may resolve again.
    ///
    /// The kernel may miss the answer of the peer. It then looks again at the end of `timeout` only. So a
    /// caller that waits longer gives a short one, such as 500 ms, and resolves again after
    /// `ETIMEDOUT`, as [`CmId::resolve`] does.
    ///
    /// Use the address of a device, also for a peer on this host: a loopback address resolves, but
    /// has no route on RoCE.
    ///
    /// # Errors
    /// No event follows then.
    ///
    /// - [`Error::Command`] with `ENETUNREACH`, `EHOSTUNREACH`, `EACCES`: no route, or one that rejects
    ///   the address. `EACCES` is also the errno of a source port below 1024.
    /// - [`Error::Command`] with `EADDRNOTAVAIL`, `EADDRINUSE`, `ENODEV`: those of
    ///   [`CmId::bind_addr`], for `src`. `EADDRNOTAVAIL` also: the route has a gateway on InfiniBand, and
    ///   no ibacm runs.
    /// - [`Error::Command`] with `EINVAL`: the identifier has resolved an address already, or is
    ///   resolving one; the two addresses differ in their family; a blackhole route.
    #[doc(alias = "rdma_resolve_addr")]
    pub fn resolve_addr(&self, src: Option<Addr>, dst: impl Into<Addr>, timeout: Duration) -> Result<()> {
        let dst = dst.into();
        let (dst_addr, dst_size) = dst.to_kernel();
        let mut request = ResolveAddrReq {
            id: self.number,
            timeout_ms: millis(timeout),
            dst_addr,
            dst_size,
            ..ResolveAddrReq::zeroed()
        };
        if let Some(src) = src {
            (request.src_addr, request.src_size) = src.to_kernel();
        }
        command::resolve_addr(self.file(), request)?;
        self.to_ib_addr.store(matches!(dst, Addr::Ib(_)), Ordering::Relaxed);
        Ok(())
    }

    /// Resolves the route to the resolved address. `timeout` is more than 0. It is rounded up to
    /// milliseconds, at most about 24 days. On RoCE the event follows at once.
    ///
    /// [`EventKind::RouteResolved`](crate::event::EventKind::RouteResolved) or
    /// [`EventKind::RouteError`](crate::event::EventKind::RouteError) follows.
    ///
    /// # Errors
    /// No event follows then.
    ///
    /// - [`Error::Invalid`]: `timeout` is 0.
    /// - [`Error::Command`] with `ENODEV`: the address is a loopback address, on RoCE.
    /// - [`Error::Command`] with `EINVAL`: the address is not resolved, or the MTU of the network
    ///   interface is below 352 bytes. With `EAGAIN`: the port knows no subnet manager.
    #[doc(alias = "rdma_resolve_route")]
    pub fn resolve_route(&self, timeout: Duration) -> Result<()> {
        if timeout.is_zero() {
            return Err(Error::invalid("resolve_route", "the time limit is 0"));
        }
        let request = ResolveRouteReq { id: self.number, timeout_ms: millis(timeout) };
        command::resolve_route(self.file(), request)
    }

    /// Listens for requests, each an
    /// [`EventKind::ConnectRequest`](crate::event::EventKind::ConnectRequest). An identifier that
    /// is not bound is bound to a free port of all devices.
    ///
    /// `backlog` is the number of requests that wait to be read; 0 means the maximum, the sysctl
    /// `net.rdma_ucm.max_backlog` (default 1024). Above it, requests of connected QPs are ignored
    /// until the peer repeats them, and requests of datagram QPs are refused.
    ///
    /// # Errors
    /// [`Error::Command`] with `EADDRINUSE` or `EADDRNOTAVAIL`: the port is one that several identifiers
    /// [use](CmId::set_reuse_addr). With `EINVAL`: the identifier listens already, or is in use as a
    /// client; a service of the kernel listens on its service ID. [`Error::Unsupported`]: the identifier is
    /// for datagrams and bound to an address of iWARP.
    #[doc(alias = "rdma_listen")]
    pub fn listen(&self, backlog: u32) -> Result<()> {
        // Without a device, it listens on all of them.
        if self.qp_type() == QpType::UD && self.is_iwarp().unwrap_or(false) {
            return Err(Error::Unsupported { verb: "listen", feature: Feature::Datagrams });
        }
        // The kernel resets the count of waiting requests even if it then refuses a second call.
        if self.listens.swap(true, Ordering::Relaxed) {
            return Err(Error::invalid("listen", "the identifier listens already"));
        }
        let backlog = backlog.min(i32::MAX.cast_unsigned());
        let listened = command::listen(self.file(), ListenReq { id: self.number, backlog });
        match listened {
            Ok(()) => self.backlog.store(backlog, Ordering::Relaxed),
            Err(_) => self.listens.store(false, Ordering::Relaxed),
        }
        listened
    }

    /// Connects to the resolved peer.
    ///
    /// One of these events follows: for a connected QP
    /// [`ConnectResponse`](crate::event::EventKind::ConnectResponse), for a datagram QP
    /// [`Established`](crate::event::EventKind::Established); else
    /// [`Rejected`](crate::event::EventKind::Rejected) or
    /// [`Unreachable`](crate::event::EventKind::Unreachable). The kernel repeats the request 15
    /// times, for about 70 to 100 seconds on RoCE.
    ///
    /// # Errors
    /// - [`Error::PrivateData`]: the private data is too long; see [`Message::max_private_data`].
    /// - [`Error::Invalid`]: a connected QP without a QPN.
    /// - [`Error::Command`] with `EINVAL`: the route is not resolved, or the identifier was used
    ///   for a connection.
    #[doc(alias = "rdma_connect")]
    pub fn connect(&self, param: &ConnParam<'_>) -> Result<()> {
        const VERB: &str = "connect";
        command::connect(self.file(), self.connect_request(VERB, param)?)
    }

    /// The checked request of CONNECT.
    pub(crate) fn connect_request(&self, verb: &'static str, param: &ConnParam<'_>) -> Result<ConnectReq> {
        let to_ib_addr = self.to_ib_addr.load(Ordering::Relaxed);
        self.check_private_data(Message::Connect, verb, param.private_data, to_ib_addr)?;
        self.check_qp_num(verb, param)?;
        Ok(ConnectReq {
            conn_param: param.to_kernel(),
            id: self.number,
            ece: param.kernel_ece(),
            ..ConnectReq::zeroed()
        })
    }

    fn check_private_data(
        &self,
        message: Message,
        verb: &'static str,
        data: &[u8],
        to_ib_addr: bool,
    ) -> Result<()> {
        message.check(verb, data, self.qp_type(), to_ib_addr, || self.is_iwarp())
    }

    /// Whether its device is one of iWARP, such as siw. The kernel's connection manager moves the queue
    /// pairs of such a device, and the program does not:
    ///
    /// | | InfiniBand, RoCE | iWARP |
    /// |---|---|---|
    /// | active side | `ConnectResponse`, QP to RTS, [`CmId::establish`] | `Established`: the QP is in RTS |
    /// | passive side | QP to RTS, [`accept`](crate::ConnectRequest::accept) | `accept`: the QP is in RTS |
    /// | [`CmId::connect`] | returns at once | blocks until the peer's host accepts the TCP connection |
    /// | first message | either side | the active side: see [`connection`](crate::connection#iwarp) |
    ///
    /// [`CmId::establish_qp`] and [`ConnectRequest::accept_qp`](crate::ConnectRequest::accept_qp) do what the
    /// device needs.
    ///
    /// # Errors
    /// [`Error::Command`] with `EINVAL`: the identifier has no device, or listens.
    pub fn is_iwarp(&self) -> Result<bool> {
        let (_, mask) = self.kernel_qp_attr(QpState::INIT)?;
        Ok(is_iwarp_mask(mask))
    }

    /// Rejects QP numbers of more than 24 bits, which the kernel would truncate, and QP 0 and QP 1,
    /// which are the kernel's. On iWARP, QP 1 is one of a program.
    fn check_qp_num(&self, verb: &'static str, param: &ConnParam<'_>) -> Result<()> {
        let qp_num = param.qp_num;
        if qp_num >> 24 != 0 {
            return Err(Error::invalid(verb, format!("QP number {qp_num:#x} has more than 24 bits")));
        }
        let is_special = qp_num == 0 || qp_num == 1 && !self.is_iwarp()?;
        if is_special && self.qp_type() != QpType::UD {
            let reason = format!("QP number {qp_num}: a connection needs a queue pair of this process");
            return Err(Error::invalid(verb, reason));
        }
        Ok(())
    }

    /// Accepts the request that this identifier was created for.
    ///
    /// # Errors
    /// - [`Error::PrivateData`]: the private data is too long.
    /// - [`Error::Invalid`]: the QPN has more than 24 bits, or a connected QP has none; the request
    ///   was accepted already. The kernel would reject it after all then, and block the destruction
    ///   of the identifier for about a minute.
    /// - [`Error::Command`] with `EINVAL`: the peer gave up, or the identifier is for no request.
    ///   After other errors, the kernel has rejected the request.
    #[doc(alias = "rdma_accept")]
    pub fn accept(&self, param: &ConnParam<'_>) -> Result<()> {
        const VERB: &str = "accept";
        self.check_private_data(Message::Accept, VERB, param.private_data, false)?;
        self.check_qp_num(VERB, param)?;
        let request = AcceptReq {
            uid: self.key.get(),
            conn_param: param.to_kernel(),
            id: self.number,
            ece: param.kernel_ece(),
            ..AcceptReq::zeroed()
        };
        if self.accepted.swap(true, Ordering::Relaxed) {
            return Err(Error::invalid(VERB, "the request was accepted already"));
        }
        let accepted = command::accept(self.file(), request);
        if accepted.is_err() {
            self.accepted.store(false, Ordering::Relaxed);
        }
        accepted
    }

    /// Confirms the response of the peer, after the QP was moved to RTS. No event follows; the peer
    /// gets [`Established`](crate::event::EventKind::Established). After [`CmId::response`] on iWARP it
    /// does nothing: the kernel has confirmed the response.
    ///
    /// # Errors
    /// [`Error::Command`] with `EINVAL`: there is no response, or it was confirmed. On iWARP, after
    /// [`Established`](crate::event::EventKind::Established) was read as an event.
    #[doc(alias = "rdma_establish")]
    pub fn establish(&self) -> Result<()> {
        if self.is_established() {
            return Ok(());
        }
        command::accept(self.file(), AcceptReq { id: self.number, ..AcceptReq::zeroed() })
    }

    /// Rejects the request, or the response of the peer, with data for the peer's application. No
    /// event follows.
    ///
    /// # Errors
    /// - [`Error::PrivateData`]: the private data is too long.
    /// - [`Error::Invalid`]: the request was accepted. The destruction of the identifier would block
    ///   for about a minute then. Drop it instead, which rejects too.
    /// - [`Error::Command`] with `EINVAL`: there is nothing to reject.
    #[doc(alias = "rdma_reject")]
    pub fn reject(&self, private_data: &[u8]) -> Result<()> {
        self.reject_with(private_data, 0)
    }

    /// Rejects because of the peer's ECE options
    /// ([`RejectReason::VendorOptionNotSupported`](crate::event::RejectReason::VendorOptionNotSupported)).
    ///
    /// # Errors
    /// As for [`CmId::reject`].
    #[doc(alias = "rdma_reject_ece")]
    pub fn reject_ece(&self, private_data: &[u8]) -> Result<()> {
        self.reject_with(private_data, RejectReason::VendorOptionNotSupported.code() as u8)
    }

    fn reject_with(&self, private_data: &[u8], reason: u8) -> Result<()> {
        self.check_private_data(Message::Reject, "reject", private_data, false)?;
        if self.accepted.load(Ordering::Relaxed) {
            return Err(Error::invalid("reject", "the request was accepted already: drop the identifier"));
        }
        let mut request = RejectReq {
            id: self.number,
            private_data_len: private_data.len() as u8,
            reason,
            ..RejectReq::zeroed()
        };
        request.private_data[..private_data.len()].copy_from_slice(private_data);
        command::reject(self.file(), request)
    }

    /// Ends the connection, or answers the end by the peer. The end that asks first gets
    /// [`Disconnected`](crate::event::EventKind::Disconnected) when the peer has answered.
    ///
    /// Without a connection it does nothing, and no event follows. That includes datagram QPs.
    ///
    /// # Errors
    /// [`Error::Command`] with `EINVAL`: the identifier was never used for a connection.
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect(&self) -> Result<()> {
        command::disconnect(self.file(), DisconnectReq { id: self.number })
    }

    /// The attributes for the transition of a QP to `state`, for
    /// [`Qp::modify`](bareverbs::qp::Qp::modify).
    ///
    /// `min_rnr_timer` is 0 for RTR, which means 655 ms: set it. INIT has the rights of the
    /// request; before a connection, none.
    ///
    /// | QP | INIT | RTR | RTS |
    /// |---|---|---|---|
    /// | connected, active | when the address is resolved | after `ConnectResponse` | after `ConnectResponse` |
    /// | connected, passive | in `ConnectRequest` | in `ConnectRequest` | in `ConnectRequest` |
    /// | datagram | when the address is resolved | the same | the same |
    ///
    /// ```no_run
    /// use bareverbs::qp::{Qp, QpState, Rc};
    /// use bareverbs::values::MinRnrTimer;
    /// use bareverbs_rdmacm::CmId;
    ///
    /// fn to_rtr(id: &CmId, qp: &mut Qp<Rc>) -> bareverbs_rdmacm::Result<()> {
    ///     let (mut attr, mask) = id.init_qp_attr(QpState::RTR)?;
    ///     attr.min_rnr_timer = MinRnrTimer::MIN;
    ///     qp.modify(&attr, mask)?;
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Errors
    /// - [`Error::Command`] with `EINVAL`: the identifier has no device, or the state of the
    ///   connection has no such attributes.
    /// - [`Error::Unsupported`]: the QP is for datagrams, which iWARP does not have.
    /// - [`Error::Verbs`]: a value is out of the range of its type.
    #[doc(alias = "rdma_init_qp_attr")]
    pub fn init_qp_attr(&self, state: QpState) -> Result<(QpAttr, QpAttrMask)> {
        let (mut attr, mut mask) = self.kernel_qp_attr(state)?;
        attr.qp_state = state;
        if self.qp_type() == QpType::UD {
            if is_iwarp_mask(mask) {
                return Err(Error::Unsupported { verb: "init_qp_attr", feature: Feature::Datagrams });
            }
            // The kernel returns the mask of INIT for each state.
            mask = match state {
                QpState::RTR => QpAttrMask::STATE,
                QpState::RTS => QpAttrMask::STATE | QpAttrMask::SQ_PSN,
                _ => mask,
            };
        }
        Ok((attr, mask))
    }

    /// The attributes of the kernel.
    fn kernel_qp_attr(&self, state: QpState) -> Result<(QpAttr, QpAttrMask)> {
        let request = InitQpAttrReq { id: self.number, qp_state: state.0.into(), ..InitQpAttrReq::zeroed() };
        Ok(qp_attr(&command::init_qp_attr(self.file(), request)?)?)
    }

    /// Reports an event of the QP to the kernel's connection manager:
    ///
    /// - [`COMM_EST`](bareverbs::device::EventType::COMM_EST): a message arrived before the connection
    ///   was established. The connection is established then. Does nothing if it was already.
    /// - [`PATH_MIG`](bareverbs::device::EventType::PATH_MIG): the QP has migrated to the alternate
    ///   path that the peer offered in its request.
    ///
    /// After `COMM_EST`, wait for [`Established`](crate::event::EventKind::Established) before
    /// [`CmId::disconnect`]. Otherwise the kernel may keep repeating its REP, and destroying the
    /// identifier blocks for over a minute (`cm_establish_handler` of `cm.c`).
    ///
    /// # Errors
    /// - [`Error::Invalid`]: `PATH_MIG` of a connection with one [path](Self::paths). The kernel would
    ///   send its own messages on an empty path then: [`CmId::disconnect`] would succeed, and the peer
    ///   would not notice.
    /// - [`Error::Command`] with `EINVAL`: another event, or no connection.
    #[doc(alias = "rdma_notify")]
    pub fn notify(&self, event: bareverbs::device::EventType) -> Result<()> {
        if event == bareverbs::device::EventType::PATH_MIG && self.paths()?.len() < 2 {
            return Err(Error::invalid("notify", "the connection has no alternate path"));
        }
        let event = verbs_values::EventType(event.0);
        match command::notify(self.file(), NotifyReq { id: self.number, event }) {
            Err(Error::Command(error)) if error.errno == Errno::ISCONN => Ok(()),
            notified => notified,
        }
    }

    /// The device and the addresses.
    ///
    /// # Errors
    /// [`Error::Command`]: the device was removed (`ENXIO`).
    #[doc(alias = "RDMA_USER_CM_QUERY_ADDR")]
    #[doc(alias = "rdma_get_local_addr")]
    #[doc(alias = "rdma_get_peer_addr")]
    #[doc(alias = "rdma_get_src_port")]
    #[doc(alias = "rdma_get_dst_port")]
    pub fn addresses(&self) -> Result<Addresses> {
        let resp = self.query_addr(QueryOption::ADDR)?;
        let device = BoundDevice {
            node_guid: Guid(resp.node_guid.to_ne_bytes()),
            index: resp.ibdev_index,
            port: PortNum(resp.port_num),
        };
        Ok(Addresses {
            device: (resp.node_guid != 0).then_some(device),
            pkey: u16::from_be(resp.pkey),
            local: Addr::from_kernel(&resp.src_addr),
            peer: Addr::from_kernel(&resp.dst_addr),
        })
    }

    /// The local address and that of the peer as GIDs.
    ///
    /// # Errors
    /// As for [`CmId::addresses`].
    #[doc(alias = "RDMA_USER_CM_QUERY_GID")]
    pub fn gids(&self) -> Result<[Option<IbAddr>; 2]> {
        let resp = self.query_addr(QueryOption::GID)?;
        Ok([resp.src_addr, resp.dst_addr].map(|storage| match Addr::from_kernel(&storage) {
            Some(Addr::Ib(addr)) => Some(addr),
            _ => None,
        }))
    }

    fn query_addr(&self, option: QueryOption) -> Result<QueryAddrResp> {
        command::query_addr(self.file(), QueryReq { id: self.number, option, ..QueryReq::zeroed() })
    }

    /// The paths to the peer: one when the route is resolved, and another one with an alternate
    /// path.
    ///
    /// # Errors
    /// As for [`CmId::addresses`].
    #[doc(alias = "rdma_route")]
    #[doc(alias = "RDMA_USER_CM_QUERY_PATH")]
    pub fn paths(&self) -> Result<Vec<PathRecord>> {
        const HEAD: usize = size_of::<QueryPathResp>();
        let mut room = [0; HEAD + PATHS * size_of::<PathRecData>()];
        let request = QueryReq { id: self.number, option: QueryOption::PATH, ..QueryReq::zeroed() };
        command::query(self.file(), request, &mut room)?;
        Ok(records::<PathRecData>(&room, HEAD).iter().map(PathRecData::record).collect())
    }

    /// Moves the identifier, with its undelivered events, to another channel. Readers that wait
    /// there are woken.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the identifier listens. The kernel would deliver its requests on the
    ///   new channel and leave their identifiers on the old one, and would use freed memory once
    ///   that is closed.
    /// - [`Error::Invalid`]: the channel is not one of [`EventChannel::new`], but was opened for one
    ///   identifier. Its readers could not be woken.
    /// - [`Error::Command`]: the kernel refused it. The identifier is on its old channel then.
    #[doc(alias = "rdma_migrate_id")]
    pub fn migrate(&mut self, channel: &EventChannel) -> Result<()> {
        if channel.is_private() && !self.channel.same_channel(channel) {
            let reason = "the channel was opened for one identifier: pass one of `EventChannel::new`";
            return Err(Error::invalid("migrate", reason));
        }
        self.move_to(channel)
    }

    /// As [`CmId::migrate`]. No reader waits on a private channel.
    pub(crate) fn move_to(&mut self, channel: &EventChannel) -> Result<()> {
        if self.listens.load(Ordering::Relaxed) {
            let reason = "a listener is not migrated, because its waiting requests would not be: close it and \
                          listen on the new channel";
            return Err(Error::invalid("migrate", reason));
        }
        if self.channel.same_channel(channel) {
            return Ok(());
        }
        channel.file().migrate(self.number, self.file())?;
        // Before wakers are called, which may panic: the kernel has the identifier on the new channel.
        let old = mem::replace(&mut self.channel, channel.clone());
        channel.take_over(&old, &self.keys());
        Ok(())
    }

    fn require_user_events(&self, verb: &'static str) -> Result<()> {
        match self.file().has_user_events() {
            true => Ok(()),
            false => Err(Error::Unsupported { verb, feature: Feature::UserEvents }),
        }
    }

    /// Queues [`EventKind::User`](crate::event::EventKind::User) for this identifier, to wake the
    /// reader of its channel for instance. Linux 7.2 and later.
    ///
    /// # Errors
    /// [`Error::Unsupported`]: an older kernel.
    #[doc(alias = "rdma_write_cm_event")]
    pub fn write_user_event(&self, arg: u64, status: u32) -> Result<()> {
        self.require_user_events("write_user_event")?;
        let mut request =
            WriteCmEventReq { id: self.number, event: EventType::USER, status, ..WriteCmEventReq::zeroed() };
        request.set_arg(arg);
        command::write_cm_event(self.file(), request)
    }

    /// Asks the subnet administrator for services. The identifier must be bound to a port of an
    /// InfiniBand device. The kernel waits 2 seconds. Linux 7.2 and later.
    ///
    /// [`AddrinfoResolved`](crate::event::EventKind::AddrinfoResolved) or
    /// [`AddrinfoError`](crate::event::EventKind::AddrinfoError) follows, then
    /// [`CmId::ib_services`] lists them, and [`CmId::resolve_route`] may follow.
    ///
    /// # Errors
    /// - [`Error::Unsupported`]: an older kernel, or a RoCE port, which has no subnet
    ///   administrator.
    /// - [`Error::Invalid`]: the name is longer than 63 bytes, or has a NUL byte.
    /// - [`Error::Command`] with `EINVAL`: the identifier is not bound to a device, or has resolved
    ///   services already.
    #[doc(alias = "rdma_resolve_addrinfo")]
    pub fn resolve_ib_service(&self, service: ServiceKey<'_>) -> Result<()> {
        const VERB: &str = "resolve_ib_service";
        self.require_user_events(VERB)?;
        let mut request = ResolveIbServiceReq { id: self.number, ..ResolveIbServiceReq::zeroed() };
        match service {
            ServiceKey::Id(id) => {
                (request.ibs.service_id, request.ibs.flags) = (id, IbServiceFlags::ID);
            }
            ServiceKey::Name(name) => {
                if name.len() >= request.ibs.service_name.len() || name.contains('\0') {
                    let reason = format!("a service name has at most 63 bytes and no NUL: {name:?}");
                    return Err(Error::invalid(VERB, reason));
                }
                request.ibs.service_name[..name.len()].copy_from_slice(name.as_bytes());
                request.ibs.flags = IbServiceFlags::NAME;
            }
        }
        match command::resolve_ib_service(self.file(), request) {
            Err(Error::Command(error)) if error.errno == Errno::OPNOTSUPP => {
                Err(Error::Unsupported { verb: VERB, feature: Feature::SubnetAdministrator })
            }
            asked => asked,
        }
    }

    /// The services that [`CmId::resolve_ib_service`] found. Linux 7.2 and later.
    ///
    /// # Errors
    /// [`Error::Command`] with `ENODATA`: none were resolved; with `ENOSYS`: an older kernel.
    #[doc(alias = "rdma_query_addrinfo")]
    #[doc(alias = "RDMA_USER_CM_QUERY_IB_SERVICE")]
    pub fn ib_services(&self) -> Result<Vec<IbService>> {
        const HEAD: usize = size_of::<QueryIbServiceResp>();
        let mut room = vec![0; HEAD + SERVICES * size_of::<ServiceRec>()];
        let request = QueryReq { id: self.number, option: QueryOption::IB_SERVICE, ..QueryReq::zeroed() };
        command::query(self.file(), request, &mut room)?;
        Ok(records::<ServiceRec>(&room, HEAD).iter().map(IbService::from_kernel).collect())
    }

    /// Whether the kernel has confirmed the response of the peer itself.
    pub(crate) fn is_established(&self) -> bool {
        self.established.load(Ordering::Relaxed)
    }

    pub(crate) fn set_established(&self) {
        self.established.store(true, Ordering::Relaxed);
    }

    /// Whether the identifier is on the passive side of a connection.
    pub(crate) fn has_accepted(&self) -> bool {
        self.accepted.load(Ordering::Relaxed)
    }

    /// Whether it listens.
    pub(crate) fn listens(&self) -> bool {
        self.listens.load(Ordering::Relaxed)
    }

    /// Delivers its events to those who wait for this identifier only.
    pub(crate) fn claim(&self) {
        self.channel.claim(self.key, self.backlog());
    }

    /// The backlog of a listener.
    pub(crate) fn backlog(&self) -> u32 {
        self.backlog.load(Ordering::Relaxed)
    }

    /// Ends [`claim`](Self::claim).
    pub(crate) fn unclaim(&self) {
        self.channel.unclaim(self.key);
    }

    /// The key of the identifier, and those of its memberships.
    fn keys(&self) -> Vec<Key> {
        let memberships = self.memberships();
        [self.key].into_iter().chain(memberships.iter().map(|membership| membership.key)).collect()
    }

    pub(crate) fn memberships(&self) -> MutexGuard<'_, Vec<Membership>> {
        self.memberships.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The records after the head of a response, whose first word is their number.
fn records<T: FromBytes>(room: &[u8], head: usize) -> Vec<T> {
    let Ok((count, _)) = u32::read_from_prefix(room) else { return Vec::new() };
    let (_, rest) = room.split_at(head);
    let records = rest.chunks_exact(size_of::<T>()).take(count as usize);
    records.filter_map(|bytes| T::read_from_bytes(bytes).ok()).collect()
}

impl Drop for CmId {
    fn drop(&mut self) {
        if !self.destroyed {
            // The kernel refuses it only to a process that may not destroy it.
            let _ = self.destroy_inner();
            self.retire_keys();
        }
    }
}

impl fmt::Debug for CmId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CmId")
            .field("number", &self.number)
            .field("key", &self.key)
            .field("port_space", &self.info.port_space)
            .field("qp_type", &self.info.qp_type)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use bareverbs_uapi::rdma_cm::path::PathFlags;
    use proptest::prelude::*;
    use zerocopy::IntoBytes;

    use super::*;

    #[test]
    fn time_limits_are_rounded_up_to_milliseconds() {
        assert_eq!(millis(Duration::ZERO), 0);
        assert_eq!(millis(Duration::from_nanos(1)), 1);
        assert_eq!(millis(Duration::from_millis(2000)), 2000);
        assert_eq!(millis(Duration::from_micros(1001)), 2);
        assert_eq!(millis(Duration::MAX), i32::MAX as u32);
    }

    /// An identifier of a simulated kernel, on a device of iWARP or not.
    fn simulated(is_iwarp: bool) -> CmId {
        let channel = EventChannel::simulated();
        if is_iwarp {
            channel.file().kernel().set_iwarp();
        }
        CmId::new(&channel, PortSpace::Tcp).unwrap()
    }

    #[test]
    fn iwarp_is_known_by_the_attributes_without_a_pkey() {
        for is_iwarp in [false, true] {
            assert_eq!(simulated(is_iwarp).is_iwarp().unwrap(), is_iwarp);
        }
        assert!(!is_iwarp_mask(QpAttrMask::empty()));
    }

    #[test]
    fn mpa_carries_251_bytes_of_private_data() {
        for (is_iwarp, length, max) in [(true, 251, None), (true, 252, Some(251)), (false, 57, Some(56))] {
            let (id, data) = (simulated(is_iwarp), vec![1; length]);
            let refused = id.connect(&ConnParam { private_data: &data, ..ConnParam::new(2) }).err();
            let limit = refused.map(|error| match error {
                Error::PrivateData { max, .. } => max,
                other => panic!("{other}"),
            });
            assert_eq!(limit, max, "{length} bytes");
        }
        for (is_iwarp, length, accepted) in [(true, 251, true), (true, 252, false), (false, 197, false)] {
            let (id, data) = (simulated(is_iwarp), vec![1; length]);
            let param = ConnParam { private_data: &data, ..ConnParam::new(2) };
            assert_eq!(id.accept(&param).is_ok(), accepted, "{length} bytes");
            assert_eq!(simulated(is_iwarp).reject(&data).is_ok(), accepted, "{length} bytes");
        }
    }

    #[test]
    fn queue_pair_1_is_one_of_a_program_on_iwarp() {
        for (is_iwarp, qp_num, accepted) in
            [(true, 0, false), (true, 1, true), (false, 1, false), (false, 2, true)]
        {
            let connected = simulated(is_iwarp).connect(&ConnParam::new(qp_num));
            assert_eq!(connected.is_ok(), accepted, "QP {qp_num}: {connected:?}");
        }
    }

    proptest! {
        #[test]
        fn records_are_those_that_fit(count: u32, lids in proptest::collection::vec(any::<u16>(), 0..5)) {
            let mut room = [count, 0].as_bytes().to_vec();
            for dlid in &lids {
                let record = PathRecord { dlid: *dlid, ..PathRecord::default() };
                room.extend(PathRecData::new(PathFlags::GMP, &record).as_bytes());
            }
            let found = records::<PathRecData>(&room, 8);
            prop_assert_eq!(found.len(), lids.len().min(count as usize));
            for (record, dlid) in found.iter().zip(lids) {
                prop_assert_eq!(record.record().dlid, dlid);
            }
        }
    }
}
