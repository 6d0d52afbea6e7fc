//! Connections of queues that connect by [`Address`]: those of hubs and servers, and any other. The
//! private data of the request and the response is the address of each side.

use ::bareverbs;
use bareverbs::buffer::Source;
use bareverbs::server::{Client, Handle, PeerId};
use bareverbs::{Address, EndpointOptions, Hub, Pd, Provider};

use super::{Connected, Incoming, Route};
use crate::event::RequestParam;
use crate::id::BoundDevice;
use crate::waiting::Waiting;
use crate::{ConnParam, Error, PeerParam, Result, steps};

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
    let address =
        Address::from_private_data(&peer.private_data).map_err(|error| Error::PeerAddress { verb, error })?;
    // MPA does not carry it.
    let is_other = peer.qp_num != 0 && address.qp_num != peer.qp_num;
    if is_other {
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
    /// In a task, `connect` blocks the runtime's thread while the kernel resolves the peer's Ethernet
    /// address. The kernel usually knows it from the messages of the connection manager. Otherwise it
    /// takes the `resolve_timeout` of the queue's options and one second at most.
    ///
    /// ```
    /// # let _device = bareverbs_test_support::example::ip_device()?;
    /// # let listener = bareverbs_rdmacm::Listener::bind("0.0.0.0:7174")?;
    /// # let pd = listener.pd(std::net::Ipv4Addr::new(10, 1, 0, 1)).wait()?;
    /// # let server = bareverbs::Hub::<bareverbs::PoolBuffer>::new(&pd, 64)?;
    /// # let accept = move || listener.request().wait()?.accept_on(&server, &Endpoint::options()).wait().map(drop);
    /// # std::thread::spawn(accept);
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
    /// # Ok::<(), bareverbs::Report>(())
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
        Waiting::new(move |waiter| async move {
            let (id, bytes) = (self.id, local.to_private_data());
            steps::connect(&waiter, &id, &param(&local, &bytes)).await?;
            let peer = steps::response(&waiter, &id).await?;
            let address = address_of("exchange", &peer)?;
            let (queue, peer) = (connect(&address)?, PeerParam { qp_num: address.qp_num, ..peer });
            id.establish().map_err(|error| steps::refused(&id, "connect", error))?;
            Ok(Connected::new(id, queue, peer))
        })
    }

    /// Connects a new connection of a hub to the peer, which accepts by [`Incoming::accept_on`] or
    /// [`Incoming::exchange`].
    ///
    /// The end of the connection is reported by [`Link::ended`](super::Link::ended). It does not end the
    /// hub's connection: [`abort`](bareverbs::Connection::abort) it then.
    ///
    /// ```
    /// # let _device = bareverbs_test_support::example::ip_device()?;
    /// # let listener = bareverbs_rdmacm::Listener::bind("0.0.0.0:7174")?;
    /// # let pd = listener.pd(std::net::Ipv4Addr::new(10, 1, 0, 1)).wait()?;
    /// # let server = bareverbs::Hub::<bareverbs::PoolBuffer>::new(&pd, 64)?;
    /// # let accept = move || listener.request().wait()?.accept_on(&server, &Endpoint::options()).wait().map(drop);
    /// # std::thread::spawn(accept);
    /// use bareverbs::{Endpoint, Hub};
    /// use bareverbs_rdmacm::Connector;
    ///
    /// let route = Connector::new().resolve("10.1.0.1:7174").wait()?;
    /// let hub: Hub = Hub::new(&route.pd().wait()?, 64)?;
    /// let connected = route.connect_on(&hub, &Endpoint::options()).wait()?;
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the hub is on another device than the route.
    /// - The errors of [`Hub::connection_with`] and [`Route::exchange`].
    pub fn connect_on<'a, B: Send, P: Provider>(
        self,
        hub: &'a Hub<B, P>,
        options: &'a EndpointOptions,
    ) -> Waiting<'a, Result<Connected<bareverbs::Connection<B, P>>>> {
        Waiting::new(move |waiter| async move {
            let device = self.device()?;
            check_device("connect_on", hub.pd(), &device)?;
            let queue = hub.connection_with(&options.clone().port(device.port))?;
            let local = queue.address();
            self.exchange(&local, |peer| queue.connect(peer).map(|()| queue)).within(&waiter).await
        })
    }

    /// Connects a client of [`bareverbs::server`] to its server, which admits it by
    /// [`Incoming::admit`]. [`Link::ended`](super::Link::ended) reports the end of the server's process;
    /// the client notices it by its keepalive too.
    ///
    /// ```
    /// # let _device = bareverbs_test_support::example::ip_device()?;
    /// # let listener = bareverbs_rdmacm::Listener::bind("0.0.0.0:7174")?;
    /// # let pd = listener.pd(std::net::Ipv4Addr::new(10, 1, 0, 1)).wait()?;
    /// # let server = bareverbs::server::Server::options().build(&pd)?;
    /// # let handle = server.handle().clone();
    /// # std::thread::spawn(move || listener.request().wait()?.admit(&handle).wait().map(drop));
    /// use bareverbs::server::Client;
    /// use bareverbs_rdmacm::Connector;
    ///
    /// let route = Connector::new().resolve("10.1.0.1:7174").wait()?;
    /// let client: Client = Client::options().port(route.port()?).build(&route.pd().wait()?)?;
    /// let link = route.connect_client(&client).wait()?.link;
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Client::connect`] and [`Route::exchange`].
    pub fn connect_client<B: Source + Send, P: Provider>(
        self,
        client: &Client<B, P>,
    ) -> Waiting<'_, Result<Connected<()>>> {
        let local = client.address();
        self.exchange(&local, |server| client.connect(server))
    }
}

impl Incoming {
    /// Accepts the request by a queue that connects by addresses. `answer` gets the address of the
    /// peer, connects the queue to it, and returns the queue with its own address, which the peer
    /// gets. In a task, `answer` may block as `connect` of [`Route::exchange`] does.
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
        const VERB: &str = "exchange";
        Waiting::new(move |waiter| async move {
            let RequestParam::Connection(peer) = self.request.param().clone() else {
                return Err(Error::invalid(VERB, "the request is for a datagram QP"));
            };
            let address = address_of(VERB, &peer)?;
            let peer = PeerParam { qp_num: address.qp_num, ..peer };
            let (queue, local) = answer(&address)?;
            let bytes = local.to_private_data();
            let id = self.request.accept(&param(&local, &bytes))?;
            steps::established(&waiter, &id).await?;
            Ok(Connected::new(id, queue, peer))
        })
    }

    /// Accepts the request with a new connection of a hub. The peer connects by
    /// [`Route::connect_on`] or [`Route::exchange`].
    ///
    /// ```
    /// use bareverbs::{Endpoint, Hub, PoolBuffer};
    /// use bareverbs_rdmacm::Listener;
    ///
    /// # fn accept(listener: &Listener, hub: &Hub<PoolBuffer>) -> bareverbs_rdmacm::Result<()> {
    /// let options = Endpoint::options();
    /// let connected = listener.request().wait()?.accept_on(hub, &options).wait()?;
    /// println!("{}", connected.link.peer_addr()?);
    /// # Ok(())
    /// # }
    /// # let _device = bareverbs_test_support::example::ip_device()?;
    /// # let listener = Listener::bind("0.0.0.0:7174")?;
    /// # let hub = Hub::new(&listener.pd(std::net::Ipv4Addr::new(10, 1, 0, 1)).wait()?, 64)?;
    /// # let connect = || -> bareverbs_rdmacm::Result<()> {
    /// #     let route = bareverbs_rdmacm::Connector::new().resolve("10.1.0.1:7174").wait()?;
    /// #     let client: Hub = Hub::new(&route.pd().wait()?, 64)?;
    /// #     route.connect_on(&client, &Endpoint::options()).wait().map(drop)
    /// # };
    /// # std::thread::spawn(connect);
    /// # accept(&listener, &hub)?;
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the hub is on another device than the request.
    /// - The errors of [`Hub::connection_with`] and [`Incoming::exchange`].
    pub fn accept_on<'a, B: Send, P: Provider>(
        self,
        hub: &'a Hub<B, P>,
        options: &'a EndpointOptions,
    ) -> Waiting<'a, Result<Connected<bareverbs::Connection<B, P>>>> {
        Waiting::new(move |waiter| async move {
            let device = self.device()?;
            check_device("accept_on", hub.pd(), &device)?;
            let accepting = self.exchange(|peer| {
                let queue = hub.connection_with(&options.clone().port(device.port))?;
                queue.connect(peer)?;
                let local = queue.address();
                Ok((queue, local))
            });
            accepting.within(&waiter).await
        })
    }

    /// Admits the client to a server of [`bareverbs::server`]. The client connects by
    /// [`Route::connect_client`]. [`Link::ended`](super::Link::ended) reports the end of the client's
    /// process at once, and the server by its keepalive within seconds. [`Handle::abort`] ends a client
    /// that is known to be dead.
    ///
    /// # Errors
    /// The errors of [`Handle::admit`] and [`Incoming::exchange`]. A client that was admitted is closed
    /// then, or when the wait is dropped.
    pub fn admit<'a, B: Source + Send, P: Provider>(
        self,
        server: &'a Handle<B, P>,
    ) -> Waiting<'a, Result<Connected<PeerId>>> {
        Waiting::new(move |waiter| async move {
            let accepting = self.exchange(|client| {
                let (peer, local) = server.admit(client)?;
                Ok((Admitted { server, peer }, local))
            });
            let Connected { link, queue } = accepting.within(&waiter).await?;
            Ok(Connected { link, queue: queue.keep() })
        })
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
