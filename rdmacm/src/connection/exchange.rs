//! Connections of queues that connect by [`Address`]: those of hubs and servers, and any other. The
//! private data of the request and the response is the address of each side.

use ::bareverbs;
use bareverbs::buffer::Source;
use bareverbs::server::{Client, Handle, PeerId};
use bareverbs::{Address, EndpointOptions, Hub, Pd, Provider};

use super::{Connected, Connector, Incoming, Listener, Route};
use crate::event::RequestParam;
use crate::id::BoundDevice;
use crate::waiting::{Waiter, Waiting};
use crate::{ConnParam, Error, Name, PeerParam, Result, steps};

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
    ///
    /// let connector = Connector::new();
    /// let route = connector.resolve("10.1.0.1:7174").wait()?;
    /// let pd = route.pd().wait()?;
    /// let mut endpoint: Endpoint = Endpoint::options().port(route.port()?).build(&pd)?;
    /// let connecting = route.exchange(&endpoint.address(), |peer| {
    ///     endpoint.connect(peer)?;
    ///     Ok(endpoint)
    /// });
    /// let connected = connecting.wait()?;
    /// # Ok::<(), bareverbs_rdmacm::Error>(())
    /// ```
    ///
    /// # Errors
    /// - [`Error::PeerAddress`]: the private data of the response is not an `Address`. The response is
    ///   rejected.
    /// - [`Error::Verbs`]: those of `connect`. The response is rejected.
    /// - [`Error::Rejected`], [`Error::Unreachable`], [`Error::Disconnected`]; those of
    ///   [`CmId::connect`](crate::CmId::connect).
    #[doc(alias = "rdma_connect")]
    pub fn exchange<'a, T: Send + 'a>(
        self,
        local: &Address,
        connect: impl FnOnce(&Address) -> bareverbs::Result<T> + Send + 'a,
    ) -> Waiting<'a, Result<Connected<T>>> {
        let local = *local;
        Waiting::new(move |waiter| async move { self.exchange_with(&waiter, &local, connect).await })
    }

    async fn exchange_with<T>(
        self,
        waiter: &Waiter,
        local: &Address,
        connect: impl FnOnce(&Address) -> bareverbs::Result<T>,
    ) -> Result<Connected<T>> {
        let (id, bytes) = (self.id, local.to_bytes());
        let peer = steps::connect(waiter, &id, &param(local, &bytes)).await?;
        let queue = connect(&address_of("exchange", &peer)?)?;
        id.establish().map_err(|error| steps::refused(&id, "connect", error))?;
        Ok(Connected::new(id, queue, peer))
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
    /// - [`Error::Rejected`], [`Error::Unreachable`], [`Error::Disconnected`]
    /// - The errors of [`CmId::accept`](crate::CmId::accept).
    #[doc(alias = "rdma_accept")]
    pub fn exchange<'a, T: Send + 'a>(
        self,
        answer: impl FnOnce(&Address) -> bareverbs::Result<(T, Address)> + Send + 'a,
    ) -> Waiting<'a, Result<Connected<T>>> {
        Waiting::new(move |waiter| async move { self.exchange_with(&waiter, answer).await })
    }

    async fn exchange_with<T>(
        self,
        waiter: &Waiter,
        answer: impl FnOnce(&Address) -> bareverbs::Result<(T, Address)>,
    ) -> Result<Connected<T>> {
        const VERB: &str = "exchange";
        let RequestParam::Connection(peer) = self.request.param().clone() else {
            return Err(Error::invalid(VERB, "the request is for a datagram QP"));
        };
        let (queue, local) = answer(&address_of(VERB, &peer)?)?;
        let bytes = local.to_bytes();
        let id = self.request.accept(&param(&local, &bytes))?;
        steps::established(waiter, &id).await?;
        Ok(Connected::new(id, queue, peer))
    }

    /// Accepts the request with a new connection of a hub. The peer connects by
    /// [`Connector::connect_on`] or [`Route::exchange`].
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the hub is on another device than the request.
    /// - The errors of [`Hub::connection_with`] and [`Incoming::exchange`].
    pub fn accept_on<'a, B: Send, P: Provider>(
        self,
        hub: &'a Hub<B, P>,
        options: &'a EndpointOptions,
    ) -> Waiting<'a, Result<Connected<bareverbs::Connection<B, P>>>> {
        Waiting::new(move |waiter| async move { self.accept_on_with(&waiter, hub, options).await })
    }

    async fn accept_on_with<B, P: Provider>(
        self,
        waiter: &Waiter,
        hub: &Hub<B, P>,
        options: &EndpointOptions,
    ) -> Result<Connected<bareverbs::Connection<B, P>>> {
        let device = self.device()?;
        check_device("accept_on", hub.pd(), &device)?;
        self.exchange_with(waiter, |peer| {
            let queue = hub.connection_with(&options.clone().port(device.port))?;
            queue.connect(peer)?;
            let local = queue.address();
            Ok((queue, local))
        })
        .await
    }

    /// Admits the client to a server of [`bareverbs::server`]. The client connects by
    /// [`Connector::connect_client`]. [`Link::ended`](super::Link::ended) reports the end of the client's
    /// process; the server notices it by its keepalive too.
    ///
    /// # Errors
    /// The errors of [`Handle::admit`] and [`Incoming::exchange`]. A client that was admitted is closed
    /// then, or when the wait is dropped.
    pub fn admit<'a, B: Source + Send, P: Provider>(
        self,
        server: &'a Handle<B, P>,
    ) -> Waiting<'a, Result<Connected<PeerId>>> {
        Waiting::new(move |waiter| async move { self.admit_with(&waiter, server).await })
    }

    async fn admit_with<B: Source, P: Provider>(
        self,
        waiter: &Waiter,
        server: &Handle<B, P>,
    ) -> Result<Connected<PeerId>> {
        let accepted = self.exchange_with(waiter, |client| {
            let (peer, local) = server.admit(client)?;
            Ok((Admitted { server, peer }, local))
        });
        let Connected { link, queue } = accepted.await?;
        Ok(Connected { link, queue: queue.keep() })
    }
}

/// A client that is closed on drop.
struct Admitted<'a, B: Source, P: Provider> {
    server: &'a Handle<B, P>,
    peer: PeerId,
}

impl<B: Source, P: Provider> Admitted<'_, B, P> {
    fn keep(self) -> PeerId {
        std::mem::ManuallyDrop::new(self).peer
    }
}

impl<B: Source, P: Provider> Drop for Admitted<'_, B, P> {
    fn drop(&mut self) {
        self.server.close(self.peer);
    }
}

impl Connector {
    /// Connects a new connection of a hub to a peer, which accepts by [`Listener::accept_on`] or
    /// [`Incoming::exchange`].
    ///
    /// The end of the connection is reported by [`Link::ended`](super::Link::ended). It does not end the
    /// hub's connection: [`abort`](bareverbs::Connection::abort) it then.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the hub is on another device than the route to the peer.
    /// - The errors of [`Connector::resolve`], [`Hub::connection_with`] and [`Route::exchange`].
    pub fn connect_on<'a, B: Send, P: Provider>(
        &'a self,
        hub: &'a Hub<B, P>,
        name: impl Into<Name>,
        options: &'a EndpointOptions,
    ) -> Waiting<'a, Result<Connected<bareverbs::Connection<B, P>>>> {
        let name = name.into();
        Waiting::new(move |waiter| async move {
            let route = self.route(&waiter, name).await?;
            let device = route.device()?;
            check_device("connect_on", hub.pd(), &device)?;
            let queue = hub.connection_with(&options.clone().port(device.port))?;
            let local = queue.address();
            route.exchange_with(&waiter, &local, |peer| queue.connect(peer).map(|()| queue)).await
        })
    }

    /// Connects a client of [`bareverbs::server`] to its server, which admits it by
    /// [`Listener::admit`]. [`Link::ended`](super::Link::ended) reports the end of the server's process;
    /// the client notices it by its keepalive too.
    ///
    /// # Errors
    /// The errors of [`Connector::resolve`] and [`Route::exchange`].
    pub fn connect_client<'a, B: Source + Send, P: Provider>(
        &'a self,
        client: &'a Client<B, P>,
        name: impl Into<Name>,
    ) -> Waiting<'a, Result<Connected<()>>> {
        let name = name.into();
        Waiting::new(move |waiter| async move {
            let route = self.route(&waiter, name).await?;
            route.exchange_with(&waiter, &client.address(), |server| client.connect(server)).await
        })
    }
}

impl Listener {
    /// Waits for a request and accepts it with a new connection of a hub.
    ///
    /// # Errors
    /// The errors of [`Listener::request`] and [`Incoming::accept_on`].
    pub fn accept_on<'a, B: Send, P: Provider>(
        &'a self,
        hub: &'a Hub<B, P>,
        options: &'a EndpointOptions,
    ) -> Waiting<'a, Result<Connected<bareverbs::Connection<B, P>>>> {
        Waiting::new(move |waiter| async move {
            self.next_request(&waiter).await?.accept_on_with(&waiter, hub, options).await
        })
    }

    /// Waits for a request of a client and admits it to a server of [`bareverbs::server`].
    ///
    /// # Errors
    /// The errors of [`Listener::request`] and [`Incoming::admit`].
    pub fn admit<'a, B: Source + Send, P: Provider>(
        &'a self,
        server: &'a Handle<B, P>,
    ) -> Waiting<'a, Result<Connected<PeerId>>> {
        Waiting::new(move |waiter| async move {
            self.next_request(&waiter).await?.admit_with(&waiter, server).await
        })
    }
}
