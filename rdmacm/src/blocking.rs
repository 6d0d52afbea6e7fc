//! Blocking calls with time limits, for programs without an event channel.
//!
//! A [`BlockingId`] is an identifier with a channel of its own. Each call waits for exactly its
//! events. [`connection`](crate::connection) has connections with their queue pairs on top of it.
//!
//! ```no_run
//! use bareverbs_rdmacm::blocking::BlockingId;
//! use bareverbs_rdmacm::{ConnParam, PortSpace};
//! use std::net::Ipv4Addr;
//! use std::time::Duration;
//!
//! const LIMIT: Duration = Duration::from_secs(5);
//!
//! # fn move_qp(id: &bareverbs_rdmacm::CmId) -> bareverbs_rdmacm::Result<()> { Ok(()) }
//! # let qp_num = 0x11;
//! let id = BlockingId::new(PortSpace::Tcp)?;
//! id.resolve((Ipv4Addr::new(10, 1, 0, 1), 7174), LIMIT)?;
//! let peer = id.connect(&ConnParam::new(qp_num), LIMIT)?;
//! println!("the peer has QP {:#x}", peer.qp_num);
//! // The caller moves its own QP by the attributes of `CmId::init_qp_attr`.
//! move_qp(&id)?;
//! id.establish()?;
//! # Ok::<(), bareverbs_rdmacm::Error>(())
//! ```
//!
//! # Datagram services
//!
//! A client asks a service by IP address for the QP of its datagrams
//! ([`Datagrams`](bareverbs::Datagrams)):
//!
//! ```no_run
//! use bareverbs::{Datagrams, Op, Pool};
//! use bareverbs_rdmacm::blocking::BlockingId;
//! use bareverbs_rdmacm::connection::Domains;
//! use bareverbs_rdmacm::{ConnParam, PortSpace};
//! use std::net::Ipv4Addr;
//! use std::time::Duration;
//!
//! const LIMIT: Duration = Duration::from_secs(5);
//!
//! fn service(domains: &Domains) -> bareverbs_rdmacm::Result<()> {
//!     let listener = BlockingId::new(PortSpace::Udp)?;
//!     listener.bind_addr((Ipv4Addr::UNSPECIFIED, 7174))?;
//!     listener.listen(0)?;
//!     let request = listener.get_request(LIMIT)?;
//!     let device = request.id().addresses()?.device.expect("a request has a device");
//!     let pd = domains.pd(device)?;
//!     let mut datagrams: Datagrams = Datagrams::options().port(device.port).build(&pd)?;
//!     let pool = Pool::new(&pd, 1, 40 + datagrams.max_message() as usize)?;
//!     datagrams.post(Op::recv(pool.take().expect("a free buffer")))?;
//!     // A listener may answer all clients with the QP of the same datagrams.
//!     BlockingId::accept(request, &ConnParam::new(datagrams.qp().qp_num()), LIMIT)?;
//!     println!("{:?}", datagrams.wait_recv()?.message());
//!     Ok(())
//! }
//!
//! fn client(domains: &Domains) -> bareverbs_rdmacm::Result<()> {
//!     let id = BlockingId::new(PortSpace::Udp)?;
//!     id.resolve((Ipv4Addr::new(10, 1, 0, 1), 7174), LIMIT)?;
//!     let device = id.addresses()?.device.expect("a resolved address has a device");
//!     let peer = id.connect_datagram(b"", LIMIT)?;
//!     let options = Datagrams::options().port(device.port).inline(64).qkey(peer.qkey);
//!     let mut datagrams: Datagrams = options.build(&domains.pd(device)?)?;
//!     let to = datagrams.destination_with_path(&peer.address, peer.qp_num, peer.qkey)?;
//!     datagrams.post(Op::send_to_inline(&to, b"hello"))?;
//!     datagrams.wait_send()?;
//!     Ok(())
//! }
//! ```

use std::ops::Deref;
use std::time::Duration;

use bareverbs::qp::QpType;

use crate::event::UdPeer;
use crate::steps::{self, Deadline, run};
use crate::{
    Addr, CmId, ConnParam, ConnectRequest, Error, EventChannel, IdOptions, JoinMode, Key, PeerParam,
    PortSpace, Result,
};

/// An identifier with a channel of its own, whose calls wait for their events.
///
/// It dereferences to [`CmId`] for the calls that need not wait.
///
/// A call whose time limit passes fails with [`Error::TimedOut`]. The kernel continues it; drop
/// the identifier then.
#[derive(Debug)]
pub struct BlockingId {
    id: CmId,
    /// The address that [`BlockingId::resolve`] resolves from.
    source: Option<Addr>,
}

impl BlockingId {
    /// Creates an identifier.
    ///
    /// # Errors
    /// As for [`EventChannel::new`] and [`CmId::new`].
    #[doc(alias = "rdma_create_id")]
    pub fn new(port_space: PortSpace) -> Result<Self> {
        Self::with_options(port_space, &IdOptions::default())
    }

    /// Creates an identifier with options. The backlog is that of [`CmId::listen`].
    ///
    /// # Errors
    /// As for [`EventChannel::new`], [`CmId::new`] and [`IdOptions::apply`].
    #[doc(alias = "rdma_set_option")]
    pub fn with_options(port_space: PortSpace, options: &IdOptions) -> Result<Self> {
        let id = options.create_id_of(&EventChannel::private()?, port_space)?;
        Ok(Self { id, source: options.source })
    }

    /// Resolves address and route of a peer.
    ///
    /// # Errors
    /// - [`Error::Address`], [`Error::Route`]: there is none.
    /// - [`Error::TimedOut`]: no neighbour, or on InfiniBand no subnet administrator, has answered within
    ///   `limit`.
    /// - The errors of [`CmId::resolve_addr`] and [`CmId::resolve_route`].
    #[doc(alias = "rdma_resolve_addr")]
    #[doc(alias = "rdma_resolve_route")]
    pub fn resolve(&self, peer: impl Into<Addr>, limit: Duration) -> Result<()> {
        run(steps::resolve(&Deadline::new(limit), &self.id, self.source, peer.into(), limit))
    }

    /// Connects to the resolved peer, up to its response. The caller then moves its QP to RTS and
    /// calls [`CmId::establish`].
    ///
    /// # Errors
    /// - [`Error::Rejected`], [`Error::Unreachable`]: the identifier can't connect again.
    /// - [`Error::TimedOut`]: `limit` has passed.
    /// - The errors of [`CmId::connect`].
    #[doc(alias = "rdma_connect")]
    pub fn connect(&self, param: &ConnParam<'_>, limit: Duration) -> Result<PeerParam> {
        run(steps::connect(&Deadline::new(limit), &self.id, param))
    }

    /// Asks the resolved peer for the address of its datagram QP.
    ///
    /// # Errors
    /// - [`Error::Sidr`], [`Error::Unreachable`]: the peer refused, or did not answer.
    /// - [`Error::TimedOut`]: `limit` has passed.
    /// - The errors of [`CmId::connect`].
    #[doc(alias = "rdma_connect")]
    pub fn connect_datagram(&self, private_data: &[u8], limit: Duration) -> Result<UdPeer> {
        run(steps::connect_datagram(&Deadline::new(limit), &self.id, private_data))
    }

    /// Waits for a request to this listener. Its identifier has a channel of its own.
    ///
    /// # Errors
    /// [`Error::TimedOut`]; [`Error::DeviceRemoved`].
    #[doc(alias = "rdma_get_request")]
    pub fn get_request(&self, limit: Duration) -> Result<ConnectRequest> {
        let mut request = run(steps::request(&Deadline::new(limit), &self.id))?;
        request.move_to_own_channel()?;
        Ok(request)
    }

    /// Accepts a request. For a connection it waits until the peer has confirmed.
    ///
    /// # Errors
    /// - [`Error::Rejected`], [`Error::Unreachable`], [`Error::Disconnected`]: the peer refused the
    ///   response, did not answer it, or has ended the connection already.
    /// - [`Error::TimedOut`]: `limit` has passed.
    /// - The errors of [`CmId::accept`].
    #[doc(alias = "rdma_accept")]
    pub fn accept(mut request: ConnectRequest, param: &ConnParam<'_>, limit: Duration) -> Result<Self> {
        request.move_to_own_channel()?;
        let id = request.accept(param)?;
        if id.qp_type() != QpType::UD {
            run(steps::established(&Deadline::new(limit), &id))?;
        }
        Ok(Self { id, source: None })
    }

    /// Ends the connection and waits until the peer has answered.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: a datagram QP has no connection.
    /// - [`Error::Unreachable`]: the peer never answered.
    /// - [`Error::TimedOut`]: it did not answer in time, or there is no connection.
    /// - The errors of [`CmId::disconnect`].
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect(&self, limit: Duration) -> Result<()> {
        if self.id.qp_type() == QpType::UD {
            return Err(Error::invalid("disconnect", "a datagram QP has no connection"));
        }
        self.id.disconnect()?;
        match run(steps::disconnected(&Deadline::new(limit), &self.id, "disconnect"))? {
            None => Ok(()),
            Some(errno) => Err(Error::Unreachable(errno)),
        }
    }

    /// Joins a multicast group, and waits for its address. The key is for
    /// [`CmId::leave_multicast`].
    ///
    /// # Errors
    /// [`Error::Multicast`], [`Error::TimedOut`]; those of [`CmId::join_multicast`].
    #[doc(alias = "rdma_join_multicast")]
    pub fn join_multicast_group(
        &self,
        group: impl Into<Addr>,
        mode: JoinMode,
        limit: Duration,
    ) -> Result<(Key, UdPeer)> {
        let membership = self.id.join_multicast(group, mode)?;
        match run(steps::joined(&Deadline::new(limit), &self.id, membership)) {
            Ok(group) => Ok((membership, group)),
            Err(error) => {
                // The error of joining is more useful than that of leaving.
                let _ = self.id.leave_multicast(membership);
                Err(error)
            }
        }
    }

    /// The identifier.
    #[must_use]
    pub fn into_inner(self) -> CmId {
        self.id
    }
}

impl Deref for BlockingId {
    type Target = CmId;

    fn deref(&self) -> &CmId {
        &self.id
    }
}
