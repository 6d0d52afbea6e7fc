//! Connections of queues that connect by [`Address`]: those of hubs and servers, and any other. The
//! private data of the request and the response is the address of each side.

use std::time::Duration;

use ::bareverbs;
use bareverbs::buffer::Source;
use bareverbs::server::{Client, Handle, PeerId};
use bareverbs::{Address, EndpointOptions, Hub, Pd, Provider};

use super::{Connection, Connector, Incoming, Listener, Route};
use crate::event::RequestParam;
use crate::id::BoundDevice;
use crate::steps::{self, Deadline, Wait, run};
use crate::{ConnParam, Error, PeerParam, Result, ToAddrs};

/// The parameters with the address of this side as private data.
fn param<'a>(local: &Address, bytes: &'a [u8]) -> ConnParam<'a> {
    ConnParam {
        private_data: bytes,
        responder_resources: local.rd_atomic,
        initiator_depth: local.rd_atomic,
        ..ConnParam::new(local.qp_num)
    }
}

/// The address in the private data of a peer. Bytes after it are padding.
fn address_of(verb: &'static str, peer: &PeerParam) -> Result<Address> {
    let bytes = &peer.private_data[..peer.private_data.len().min(Address::LEN)];
    let address = Address::from_bytes(bytes).map_err(|error| Error::PeerAddress { verb, error })?;
    if address.qp_num != peer.qp_num {
        let reason = "the QP number of the peer's address is not that of its message";
        return Err(Error::invalid(verb, reason));
    }
    Ok(address)
}

/// Rejects a queue on another device than the route has.
fn check_device<P: Provider>(verb: &'static str, pd: &Pd<P>, device: &BoundDevice) -> Result<()> {
    let own = pd.context().device();
    if own.node_guid() == device.node_guid && own.index().is_none_or(|index| index == device.index) {
        return Ok(());
    }
    Err(Error::invalid(verb, format!("{} is not the device of the connection", own.name())))
}

impl Route {
    /// Connects a queue that connects by addresses. The peer gets `local`, and answers with its own
    /// address, to which `connect` connects the queue. The connection owns what `connect` returns.
    ///
    /// ```no_run
    /// use bareverbs::Endpoint;
    /// use bareverbs_rdmacm::Connector;
    /// use std::time::Duration;
    ///
    /// # const LIMIT: Duration = Duration::from_secs(10);
    /// let connector = Connector::new();
    /// let route = connector.resolve("10.1.0.1:7174", LIMIT)?;
    /// let pd = connector.domains().pd(route.device()?)?;
    /// let mut endpoint: Endpoint = Endpoint::options().port(route.port()?).build(&pd)?;
    /// let connection = route.exchange(&endpoint.address(), LIMIT, |peer| {
    ///     endpoint.connect(peer)?;
    ///     Ok(endpoint)
    /// })?;
    /// # Ok::<(), bareverbs_rdmacm::Error>(())
    /// ```
    ///
    /// # Errors
    /// - [`Error::PeerAddress`]: the private data of the response is not an `Address`. The response is
    ///   rejected.
    /// - [`Error::Verbs`]: those of `connect`. The response is rejected.
    /// - [`Error::Rejected`], [`Error::Unreachable`], [`Error::Disconnected`], [`Error::TimedOut`]; those
    ///   of [`CmId::connect`](crate::CmId::connect).
    #[doc(alias = "rdma_connect")]
    pub fn exchange<T>(
        self,
        local: &Address,
        limit: Duration,
        connect: impl FnOnce(&Address) -> bareverbs::Result<T>,
    ) -> Result<Connection<T>> {
        run(self.exchange_with(&Deadline::new(limit), local, connect))
    }

    pub(crate) async fn exchange_with<T>(
        self,
        wait: &impl Wait,
        local: &Address,
        connect: impl FnOnce(&Address) -> bareverbs::Result<T>,
    ) -> Result<Connection<T>> {
        let (id, bytes) = (self.id, local.to_bytes());
        let peer = steps::connect(wait, &id, &param(local, &bytes)).await?;
        let queue = connect(&address_of("exchange", &peer)?)?;
        id.establish().map_err(|error| steps::refused(&id, "connect", error))?;
        Ok(Connection { id, queue, peer, ended: false })
    }
}

impl Incoming {
    /// Accepts the request by a queue that connects by addresses. `answer` gets the address of the
    /// peer, connects the queue to it, and returns the queue with its own address, which the peer gets.
    ///
    /// # Errors
    /// The request is rejected then, and the queue dropped.
    ///
    /// - [`Error::PeerAddress`]: the private data of the request is not an `Address`.
    /// - [`Error::Verbs`]: those of `answer`.
    /// - [`Error::Rejected`], [`Error::Unreachable`], [`Error::Disconnected`], [`Error::TimedOut`]
    /// - The errors of [`CmId::accept`](crate::CmId::accept).
    #[doc(alias = "rdma_accept")]
    pub fn exchange<T>(
        self,
        limit: Duration,
        answer: impl FnOnce(&Address) -> bareverbs::Result<(T, Address)>,
    ) -> Result<Connection<T>> {
        run(self.exchange_with(&Deadline::new(limit), answer))
    }

    pub(crate) async fn exchange_with<T>(
        self,
        wait: &impl Wait,
        answer: impl FnOnce(&Address) -> bareverbs::Result<(T, Address)>,
    ) -> Result<Connection<T>> {
        const VERB: &str = "exchange";
        let RequestParam::Connection(peer) = self.request.param().clone() else {
            return Err(Error::invalid(VERB, "the request is for a datagram QP"));
        };
        let (queue, local) = answer(&address_of(VERB, &peer)?)?;
        let bytes = local.to_bytes();
        let id = self.request.accept(&param(&local, &bytes))?;
        steps::established(wait, &id).await?;
        Ok(Connection { id, queue, peer, ended: false })
    }
}

impl Connector {
    /// Connects a new connection of a hub to a peer, which accepts by [`Listener::accept_on`] or
    /// [`Incoming::exchange`].
    ///
    /// The end of the connection is reported by [`Connection::wait_disconnected`]. It does not end the
    /// hub's connection: [`abort`](bareverbs::Connection::abort) it then.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the hub is on another device than the route to the peer.
    /// - The errors of [`Route::resolve`], [`Hub::connection_with`] and [`Route::exchange`].
    pub fn connect_on<B, P: Provider>(
        &self,
        hub: &Hub<B, P>,
        addrs: impl ToAddrs,
        options: &EndpointOptions,
        limit: Duration,
    ) -> Result<Connection<bareverbs::Connection<B, P>>> {
        let route = self.resolve(addrs, limit)?;
        let device = route.device()?;
        check_device("connect_on", hub.pd(), &device)?;
        let queue = hub.connection_with(&options.clone().port(device.port))?;
        let local = queue.address();
        route.exchange(&local, limit, |peer| queue.connect(peer).map(|()| queue))
    }

    /// Connects a client of [`bareverbs::server`] to its server, which admits it by
    /// [`Listener::admit`]. [`Connection::wait_disconnected`] reports the end of the server's process;
    /// the client notices it by its keepalive too.
    ///
    /// # Errors
    /// The errors of [`Route::resolve`] and [`Route::exchange`].
    pub fn connect_client<B: Source, P: Provider>(
        &self,
        client: &Client<B, P>,
        addrs: impl ToAddrs,
        limit: Duration,
    ) -> Result<Connection<()>> {
        let route = self.resolve(addrs, limit)?;
        route.exchange(&client.address(), limit, |server| client.connect(server))
    }
}

impl Listener {
    /// Waits for a request and accepts it with a new connection of a hub. The peer connects by
    /// [`Connector::connect_on`] or [`Route::exchange`]. The time limit is for the request, and again
    /// for the confirmation by the peer.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the hub is on another device than the request.
    /// - The errors of [`Listener::get_request`], [`Hub::connection_with`] and [`Incoming::exchange`].
    pub fn accept_on<B, P: Provider>(
        &self,
        hub: &Hub<B, P>,
        options: &EndpointOptions,
        limit: Duration,
    ) -> Result<Connection<bareverbs::Connection<B, P>>> {
        let incoming = self.get_request(limit)?;
        let device = incoming.device()?;
        check_device("accept_on", hub.pd(), &device)?;
        incoming.exchange(limit, |peer| {
            let queue = hub.connection_with(&options.clone().port(device.port))?;
            queue.connect(peer)?;
            let local = queue.address();
            Ok((queue, local))
        })
    }

    /// Waits for a request of a client and admits it to a server of [`bareverbs::server`]. The
    /// client connects by [`Connector::connect_client`]. [`Connection::wait_disconnected`]
    /// reports the end of the client's process; the server notices it by its keepalive too.
    ///
    /// # Errors
    /// The errors of [`Listener::get_request`], [`Handle::admit`] and [`Incoming::exchange`]. A client that
    /// was admitted is closed then.
    pub fn admit<B: Source, P: Provider>(
        &self,
        server: &Handle<B, P>,
        limit: Duration,
    ) -> Result<Connection<PeerId>> {
        let mut admitted = None;
        let accepted = self.get_request(limit)?.exchange(limit, |client| {
            let (peer, local) = server.admit(client)?;
            admitted = Some(peer);
            Ok((peer, local))
        });
        if let (Err(_), Some(peer)) = (&accepted, admitted) {
            server.close(peer);
        }
        accepted
    }
}
