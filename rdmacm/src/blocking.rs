//! Identifiers with a channel of their own, whose calls wait.
//!
//! Each call of a [`BlockingId`] waits for exactly its events.
//! [`connection`](crate::connection) has connections with their queue pairs on top of it.
//!
//! ```no_run
//! use bareverbs_rdmacm::blocking::BlockingId;
//! use bareverbs_rdmacm::{ConnParam, PortSpace};
//! use std::net::Ipv4Addr;
//!
//! # fn move_qp(id: &bareverbs_rdmacm::CmId) -> bareverbs_rdmacm::Result<()> { Ok(()) }
//! # let qp_num = 0x11;
//! let id = BlockingId::new(PortSpace::Tcp)?;
//! id.resolve((Ipv4Addr::new(10, 1, 0, 1), 7174)).wait()?;
//! let peer = id.connect(&ConnParam::new(qp_num)).wait()?;
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
//!
//! fn service(domains: &Domains) -> bareverbs_rdmacm::Result<()> {
//!     let listener = BlockingId::new(PortSpace::Udp)?;
//!     listener.bind_addr((Ipv4Addr::UNSPECIFIED, 7174))?;
//!     listener.listen(0)?;
//!     let request = listener.request().wait()?;
//!     let device = request.id().addresses()?.device.expect("a request has a device");
//!     let pd = domains.pd(device)?;
//!     let mut datagrams: Datagrams = Datagrams::options().port(device.port).build(&pd)?;
//!     let pool = Pool::new(&pd, 1, 40 + datagrams.max_message() as usize)?;
//!     datagrams.post(Op::recv(pool.take().expect("a free buffer")))?;
//!     // A listener may answer all clients with the QP of the same datagrams.
//!     BlockingId::accept(request, &ConnParam::new(datagrams.qp().qp_num())).wait()?;
//!     println!("{:?}", datagrams.next_recv().wait()?.message());
//!     Ok(())
//! }
//!
//! fn client(domains: &Domains) -> bareverbs_rdmacm::Result<()> {
//!     let id = BlockingId::new(PortSpace::Udp)?;
//!     id.resolve((Ipv4Addr::new(10, 1, 0, 1), 7174)).wait()?;
//!     let device = id.addresses()?.device.expect("a resolved address has a device");
//!     let peer = id.connect_datagram(b"").wait()?;
//!     let options = Datagrams::options().port(device.port).inline(64).qkey(peer.qkey);
//!     let mut datagrams: Datagrams = options.build(&domains.pd(device)?)?;
//!     let to = datagrams.destination_with_path(&peer.address, peer.qp_num, peer.qkey).wait()?;
//!     datagrams.post(Op::send_to_inline(&to, b"hello"))?;
//!     datagrams.next_send().wait()?;
//!     Ok(())
//! }
//! ```

use std::ops::Deref;

use bareverbs::qp::QpType;

use crate::event::UdPeer;
use crate::steps;
use crate::waiting::Waiting;
use crate::{
    Addr, CmId, ConnParam, ConnectRequest, Error, EventChannel, IdOptions, JoinMode, Key, PeerParam,
    PortSpace, Result,
};

/// An identifier with a channel of its own, whose calls wait for their events.
///
/// It dereferences to [`CmId`] for the calls that need not wait.
///
/// Tasks wait after a runtime was [attached](EventChannel::attach) to its [channel](CmId::channel). The
/// kernel continues a call whose wait is dropped: drop the identifier then.
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
    /// - [`Error::TimedOut`]: no neighbour has answered within 10 seconds.
    /// - The errors of [`CmId::resolve_addr`] and [`CmId::resolve_route`].
    #[doc(alias = "rdma_resolve_addr")]
    #[doc(alias = "rdma_resolve_route")]
    pub fn resolve(&self, peer: impl Into<Addr>) -> Waiting<'_, Result<()>> {
        let peer = peer.into();
        Waiting::new(move |waiter| async move { steps::resolve(&waiter, &self.id, self.source, peer).await })
    }

    /// Connects to the resolved peer, up to its response. The caller then moves its QP to RTS and
    /// calls [`CmId::establish`].
    ///
    /// # Errors
    /// - [`Error::Rejected`], [`Error::Unreachable`]: the identifier can't connect again.
    /// - The errors of [`CmId::connect`].
    #[doc(alias = "rdma_connect")]
    pub fn connect<'a>(&'a self, param: &'a ConnParam<'a>) -> Waiting<'a, Result<PeerParam>> {
        Waiting::new(move |waiter| async move { steps::connect(&waiter, &self.id, param).await })
    }

    /// Asks the resolved peer for the address of its datagram QP.
    ///
    /// # Errors
    /// - [`Error::Sidr`], [`Error::Unreachable`]: the peer refused, or did not answer.
    /// - The errors of [`CmId::connect`].
    #[doc(alias = "rdma_connect")]
    pub fn connect_datagram<'a>(&'a self, private_data: &'a [u8]) -> Waiting<'a, Result<UdPeer>> {
        Waiting::new(
            move |waiter| async move { steps::connect_datagram(&waiter, &self.id, private_data).await },
        )
    }

    /// Waits for a request to this listener. Its identifier has a channel of its own.
    ///
    /// # Errors
    /// [`Error::DeviceRemoved`]
    #[doc(alias = "rdma_get_request")]
    #[doc(alias = "get_request")]
    pub fn request(&self) -> Waiting<'_, Result<ConnectRequest>> {
        Waiting::new(|waiter| async move {
            let mut request = steps::request(&waiter, &self.id).await?;
            request.move_to_own_channel()?;
            Ok(request)
        })
    }

    /// Accepts a request. For a connection it waits until the peer has confirmed.
    ///
    /// # Errors
    /// - [`Error::Rejected`], [`Error::Unreachable`], [`Error::Disconnected`]: the peer refused the
    ///   response, did not answer it, or has ended the connection already.
    /// - The errors of [`CmId::accept`].
    #[doc(alias = "rdma_accept")]
    pub fn accept<'a>(mut request: ConnectRequest, param: &'a ConnParam<'a>) -> Waiting<'a, Result<Self>> {
        Waiting::new(move |waiter| async move {
            request.move_to_own_channel()?;
            let id = request.accept(param)?;
            if id.qp_type() != QpType::UD {
                steps::established(&waiter, &id).await?;
            }
            Ok(Self { id, source: None })
        })
    }

    /// Ends the connection and waits until the peer has answered.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: a datagram QP has no connection.
    /// - [`Error::Unreachable`]: the peer never answered.
    /// - The errors of [`CmId::disconnect`].
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnect(&self) -> Waiting<'_, Result<()>> {
        Waiting::new(|waiter| async move {
            if self.id.qp_type() == QpType::UD {
                return Err(Error::invalid("disconnect", "a datagram QP has no connection"));
            }
            self.id.disconnect()?;
            match steps::disconnected(&waiter, &self.id, "disconnect").await? {
                None => Ok(()),
                Some(errno) => Err(Error::Unreachable(errno)),
            }
        })
    }

    /// Joins a multicast group, and waits for its address. The key is for
    /// [`CmId::leave_multicast`]. Drop of the wait leaves the membership to the identifier.
    ///
    /// # Errors
    /// [`Error::Multicast`]; those of [`CmId::join_multicast`].
    #[doc(alias = "rdma_join_multicast")]
    pub fn join_multicast_group(
        &self,
        group: impl Into<Addr>,
        mode: JoinMode,
    ) -> Waiting<'_, Result<(Key, UdPeer)>> {
        let group = group.into();
        Waiting::new(move |waiter| async move {
            let membership = self.id.join_multicast(group, mode)?;
            match steps::joined(&waiter, &self.id, membership).await {
                Ok(group) => Ok((membership, group)),
                Err(error) => {
                    // The error of joining is more useful than that of leaving.
                    let _ = self.id.leave_multicast(membership);
                    Err(error)
                }
            }
        })
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
