//! The calls of identifiers that wait for their events.

use crate::event::UdPeer;
use crate::waiting::Waiting;
use crate::{Addr, CmId, ConnectRequest, Error, Key, PeerParam, Result, steps};

/// # Waits
///
/// A thread calls `wait` or `wait_timeout`, a task awaits, after a runtime was
/// [attached](crate::EventChannel::attach) to the channel. From its begin to its end, the events that belong
/// to a wait go to it, and not to the readers of the channel. A wait that is dropped loses no event.
///
/// A wait also gets earlier events that no reader has taken. Let no other thread or task read the channel
/// between a command, such as [`CmId::connect`], and its wait. [`CmId::resolve`] issues its commands itself
/// and loses none of their events.
///
/// An identifier has one wait at a time, and so has a membership: a wait skips events that another one of
/// the same key waits for.
impl CmId {
    /// Resolves address and route of a peer: [`CmId::resolve_addr`] and [`CmId::resolve_route`], repeated
    /// while the kernel may have missed the answer of the peer. `src` is the local address; `None` leaves
    /// the choice to the routing table.
    ///
    /// # Errors
    /// - [`Error::Address`], [`Error::Route`]: there is none.
    /// - [`Error::TimedOut`]: no neighbour has answered within 10 seconds.
    /// - The errors of [`CmId::resolve_addr`] and [`CmId::resolve_route`].
    #[doc(alias = "rdma_resolve_addr")]
    #[doc(alias = "rdma_resolve_route")]
    pub fn resolve(&self, src: Option<Addr>, peer: impl Into<Addr>) -> Waiting<'_, Result<()>> {
        let peer = peer.into();
        Waiting::new(move |waiter| async move { steps::resolve(&waiter, self, src, peer).await })
    }

    /// Waits for the response to [`CmId::connect`]. The caller then moves its QP to RTS and calls
    /// [`CmId::establish`].
    ///
    /// # Errors
    /// - [`Error::Rejected`], [`Error::Unreachable`]: the identifier can't connect again.
    /// - [`Error::Invalid`]: the identifier is for datagrams.
    #[doc(alias = "rdma_connect")]
    pub fn response(&self) -> Waiting<'_, Result<PeerParam>> {
        Waiting::new(move |waiter| async move { steps::response(&waiter, self).await })
    }

    /// Waits for the address of the peer's datagram QP, for which [`CmId::connect`] has asked.
    ///
    /// # Errors
    /// - [`Error::Sidr`], [`Error::Unreachable`]: the peer refused, or did not answer.
    /// - [`Error::Invalid`]: the identifier is for a connection.
    #[doc(alias = "rdma_connect")]
    #[doc(alias = "connect_datagram")]
    pub fn ud_peer(&self) -> Waiting<'_, Result<UdPeer>> {
        Waiting::new(move |waiter| async move { steps::ud_peer(&waiter, self).await })
    }

    /// Waits for a request to this listener.
    ///
    /// # Errors
    /// [`Error::DeviceRemoved`]
    #[doc(alias = "rdma_get_request")]
    #[doc(alias = "get_request")]
    pub fn request(&self) -> Waiting<'_, Result<ConnectRequest>> {
        Waiting::new(move |waiter| async move { steps::request(&waiter, self).await })
    }

    /// Waits until the peer has confirmed a connection that was [accepted](ConnectRequest::accept).
    ///
    /// # Errors
    /// - [`Error::Rejected`], [`Error::Unreachable`], [`Error::Disconnected`]: the peer refused the
    ///   response, did not answer it, or has ended the connection already.
    /// - [`Error::Invalid`]: the identifier is for datagrams.
    #[doc(alias = "rdma_accept")]
    pub fn established(&self) -> Waiting<'_, Result<()>> {
        Waiting::new(move |waiter| async move { steps::established(&waiter, self).await })
    }

    /// Waits for the end of the connection: until the peer has answered [`CmId::disconnect`], or has ended
    /// the connection itself. In the latter case, [`CmId::disconnect`] answers.
    ///
    /// # Errors
    /// - [`Error::Unreachable`]: the peer never answered.
    /// - [`Error::Invalid`]: the identifier is for datagrams.
    #[doc(alias = "rdma_disconnect")]
    pub fn disconnected(&self) -> Waiting<'_, Result<()>> {
        Waiting::new(move |waiter| async move {
            let status = steps::disconnected(&waiter, self, "disconnected").await?;
            status.map_or(Ok(()), |errno| Err(Error::Unreachable(errno)))
        })
    }

    /// Waits for the address of a group that [`CmId::join_multicast`] joins. After an error, leave the
    /// group or drop the identifier.
    ///
    /// # Errors
    /// [`Error::Multicast`]
    #[doc(alias = "rdma_join_multicast")]
    #[doc(alias = "join_multicast_group")]
    pub fn joined(&self, membership: Key) -> Waiting<'_, Result<UdPeer>> {
        Waiting::new(move |waiter| async move { steps::joined(&waiter, self, membership).await })
    }
}
