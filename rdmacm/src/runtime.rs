//! Waiting in tasks: one implementation for all async runtimes.
//!
//! The types are generic over a sealed [`Readiness`](sealed::Readiness), by which a runtime waits
//! for a file descriptor. The modules of the runtimes name them.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use bareverbs::owned::{Endpoint, EndpointOptions};
use rustix::io::Errno;

use crate::connection::{self, ConnectOptions, ConnectQueue, Domains};
use crate::event::Event;
use crate::steps::{self, Wait};
use crate::{Addr, CmId, Error, PortSpace, Result};

pub(crate) fn failed(error: &io::Error) -> Error {
    let errno = Errno::from_io_error(error).unwrap_or(Errno::IO);
    Error::System { what: "waiting for events in an async task", errno }
}

/// The descriptor of a channel, for a runtime. It stays open and the same while the value exists.
#[derive(Debug)]
pub struct Descriptor {
    channel: crate::EventChannel,
    /// For a channel that identifiers are migrated to: readable also after a migration.
    combined: Option<OwnedFd>,
}

impl Descriptor {
    fn new(channel: &crate::EventChannel) -> Result<Self> {
        Ok(Self { combined: channel.combined()?, channel: channel.clone() })
    }

    /// Reads an event if there is one.
    pub(crate) fn get_event(&self) -> Result<Option<Event>> {
        self.channel.forget_migration();
        self.channel.get_event()
    }
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.combined.as_ref().map_or_else(|| self.channel.as_fd(), AsFd::as_fd)
    }
}

pub(crate) mod sealed {
    use std::future::Future;

    use super::Descriptor;
    use crate::Result;
    use crate::event::Event;

    /// A channel's descriptor that is registered with a runtime.
    pub trait Readiness: Sized + Send + Sync {
        /// Name of the runtime.
        const RUNTIME: &'static str;

        /// Registers the descriptor.
        fn new(descriptor: Descriptor) -> Result<Self>;

        /// The descriptor that was registered.
        fn descriptor(&self) -> &Descriptor;

        /// The next event of the channel.
        fn next(&self) -> impl Future<Output = Result<Event>> + Send;
    }
}

use self::sealed::Readiness;

/// Waiting by a registered descriptor.
pub(crate) struct Task<'a, R>(pub(crate) &'a R);

impl<R: Readiness> Task<'_, R> {
    /// Rejects a channel that is not the registered one. Safe code can exchange the connections of two
    /// wrappers, by `DerefMut`.
    fn check(&self, channel: &crate::EventChannel, verb: &'static str) -> Result<()> {
        if self.0.descriptor().channel.is(channel) {
            return Ok(());
        }
        let reason = "the connection was exchanged: its events are not those that the task waits for";
        Err(Error::invalid(verb, reason))
    }
}

impl<R: Readiness> Wait for Task<'_, R> {
    async fn event(&self, channel: &crate::EventChannel, verb: &'static str) -> Result<Event> {
        self.check(channel, verb)?;
        self.0.next().await
    }
}

pub(crate) fn register<R: Readiness>(id: &CmId) -> Result<R> {
    R::new(Descriptor::new(id.channel())?)
}

/// An [event channel](crate::EventChannel) that tasks wait on.
pub struct EventChannel<R> {
    channel: crate::EventChannel,
    readiness: R,
}

impl<R: Readiness> EventChannel<R> {
    /// Registers the channel with the runtime.
    ///
    /// # Errors
    /// [`Error::Invalid`]: there is no runtime. [`Error::System`]: the runtime refused the
    /// descriptor.
    pub fn new(channel: crate::EventChannel) -> Result<Self> {
        Ok(Self { readiness: R::new(Descriptor::new(&channel)?)?, channel })
    }

    /// The channel.
    #[must_use]
    pub fn channel(&self) -> &crate::EventChannel {
        &self.channel
    }

    /// Unregisters the channel from the runtime and returns it.
    #[must_use]
    pub fn into_inner(self) -> crate::EventChannel {
        self.channel
    }

    /// Waits for an event. The future is cancel-safe: dropping it loses no event.
    ///
    /// # Errors
    /// As for [`EventChannel::get_event`](crate::EventChannel::get_event).
    pub async fn get_event(&self) -> Result<Event> {
        self.readiness.next().await
    }
}

/// A [listener](connection::Listener) that tasks wait on.
pub struct Listener<R> {
    listener: connection::Listener,
    readiness: R,
}

impl<R: Readiness> Listener<R> {
    /// Listens on an address. Port 0 is a free port: [`connection::Listener::local_addr`].
    ///
    /// # Errors
    /// As for [`connection::Listener::bind`] and [`Listener::new`].
    #[doc(alias = "rdma_create_ep")]
    pub fn bind(addr: impl Into<SocketAddr>) -> Result<Self> {
        Self::new(connection::Listener::bind(addr.into())?)
    }

    /// Registers a listener with the runtime.
    ///
    /// # Errors
    /// [`Error::Invalid`]: there is no runtime. [`Error::System`]: the runtime refused the
    /// descriptor.
    pub fn new(listener: connection::Listener) -> Result<Self> {
        Ok(Self { readiness: register(listener.id())?, listener })
    }

    /// Waits for a request. The future is cancel-safe: dropping it loses no request.
    ///
    /// # Errors
    /// [`Error::DeviceRemoved`]; those of [`CmId::migrate`]; the request is rejected then.
    #[doc(alias = "rdma_get_request")]
    pub async fn get_request(&self) -> Result<Incoming<R>> {
        let incoming = self.listener.next_request(&Task(&self.readiness)).await?;
        Ok(Incoming { readiness: register(incoming.request().id())?, incoming })
    }

    /// Waits for a request and accepts it with a new endpoint on its device. Receives may be posted
    /// afterwards: the peer's messages are repeated until then.
    ///
    /// While it waits for the confirmation of one peer, it takes no other request: to do both, spawn
    /// a task for each [`Incoming`]. Dropping the future rejects a request that was taken.
    ///
    /// # Errors
    /// Those of [`Listener::get_request`], [`EndpointOptions::build`] and [`Incoming::accept`].
    #[doc(alias = "rdma_accept")]
    pub async fn accept(&self, options: &EndpointOptions) -> Result<Connection<R, Endpoint>> {
        let incoming = self.get_request().await?;
        let endpoint = self.listener.domains().endpoint(incoming.device()?, options)?;
        incoming.accept(endpoint, &ConnectOptions::default()).await
    }
}

impl<R> Deref for Listener<R> {
    type Target = connection::Listener;

    fn deref(&self) -> &connection::Listener {
        &self.listener
    }
}

/// A [request](connection::Incoming) of a peer. Drop rejects it.
#[must_use = "drop rejects the request"]
pub struct Incoming<R> {
    incoming: connection::Incoming,
    readiness: R,
}

impl<R: Readiness> Incoming<R> {
    /// Moves the queue to RTS, accepts the request, and waits until the peer has confirmed.
    /// Dropping the future ends the connection.
    ///
    /// # Errors
    /// As for [`connection::Incoming::accept`], without a time limit.
    #[doc(alias = "rdma_accept")]
    pub async fn accept<Q: ConnectQueue + Send>(
        self,
        queue: Q,
        options: &ConnectOptions<'_>,
    ) -> Result<Connection<R, Q>> {
        let Self { incoming, readiness } = self;
        let connection = incoming.accept_with(&Task(&readiness), queue, options).await?;
        Ok(Connection { connection, readiness })
    }

    /// Rejects the request, with data for the peer's application.
    ///
    /// # Errors
    /// As for [`CmId::reject`].
    #[doc(alias = "rdma_reject")]
    pub fn reject(self, private_data: &[u8]) -> Result<()> {
        self.incoming.reject(private_data)
    }
}

impl<R> Deref for Incoming<R> {
    type Target = connection::Incoming;

    fn deref(&self) -> &connection::Incoming {
        &self.incoming
    }
}

/// Connects to a peer, with a new endpoint on a device of `domains`. Receives may be posted
/// afterwards: the peer's messages are repeated until then.
///
/// Dropping the future ends the attempt. The kernel gives up by itself after about 70 to 100
/// seconds on RoCE.
///
/// # Errors
/// Those of [`Route::resolve`], [`EndpointOptions::build`] and [`Route::connect`].
#[doc(alias = "rdma_connect")]
pub(crate) async fn connect<R: Readiness>(
    addr: SocketAddr,
    domains: &Domains,
    options: &EndpointOptions,
) -> Result<Connection<R, Endpoint>> {
    let route = Route::resolve(addr).await?;
    let endpoint = domains.endpoint(route.device()?, options)?;
    route.connect(endpoint, &ConnectOptions::default()).await
}

/// A [route](connection::Route) to a peer.
pub struct Route<R> {
    route: connection::Route,
    readiness: R,
}

impl<R: Readiness> Route<R> {
    /// Resolves address and route of a peer.
    ///
    /// # Errors
    /// [`Error::Invalid`]: there is no runtime. [`Error::Address`], [`Error::Route`]: there is no
    /// route. Those of [`CmId::resolve_addr`].
    #[doc(alias = "rdma_resolve_addr")]
    #[doc(alias = "rdma_resolve_route")]
    pub async fn resolve(addr: impl Into<Addr>) -> Result<Self> {
        let id = CmId::new(&crate::EventChannel::private()?, PortSpace::Tcp)?;
        let readiness: R = register(&id)?;
        let addr = addr.into();
        let route = connection::Route::resolve_on(&Task(&readiness), id, addr, steps::RESOLVE).await?;
        Ok(Self { route, readiness })
    }

    /// Connects the queue and moves it to RTS. Dropping the future ends the attempt.
    ///
    /// # Errors
    /// As for [`connection::Route::connect`], without a time limit.
    #[doc(alias = "rdma_connect")]
    pub async fn connect<Q: ConnectQueue + Send>(
        self,
        queue: Q,
        options: &ConnectOptions<'_>,
    ) -> Result<Connection<R, Q>> {
        let Self { route, readiness } = self;
        let connection = route.connect_with(&Task(&readiness), queue, options).await?;
        Ok(Connection { connection, readiness })
    }
}

impl<R> Deref for Route<R> {
    type Target = connection::Route;

    fn deref(&self) -> &connection::Route {
        &self.route
    }
}

/// A [connection](connection::Connection) whose end tasks wait for.
pub struct Connection<R, Q> {
    connection: connection::Connection<Q>,
    readiness: R,
}

impl<R: Readiness, Q: Send> Connection<R, Q> {
    /// Waits until the peer ends the connection, and answers. The future is cancel-safe.
    ///
    /// # Errors
    /// - [`Error::DeviceRemoved`]
    /// - [`Error::Invalid`]: the connection was exchanged by `DerefMut`, so the task waits for the
    ///   events of another one.
    pub async fn disconnected(&mut self) -> Result<()> {
        self.connection.until_disconnected(&Task(&self.readiness)).await
    }

    /// Ends the connection, and waits until the peer has answered.
    ///
    /// # Errors
    /// As for [`connection::Connection::disconnect`], without a time limit. [`Error::Invalid`]: as for
    /// [`Connection::disconnected`].
    #[doc(alias = "rdma_disconnect")]
    pub async fn disconnect(&mut self) -> Result<()> {
        let task = Task(&self.readiness);
        task.check(self.connection.id().channel(), "disconnect")?;
        self.connection.disconnect_with(&task).await
    }

    /// Unregisters the connection from the runtime and returns it.
    #[must_use]
    pub fn into_inner(self) -> connection::Connection<Q> {
        self.connection
    }

    /// The same connection with another queue that `wrap` makes of its queue, such as
    /// `bareverbs::tokio::Endpoint::new`.
    ///
    /// # Errors
    /// Those of `wrap`. The connection is dropped then.
    pub fn try_map<T, E>(self, wrap: impl FnOnce(Q) -> Result<T, E>) -> Result<Connection<R, T>, E> {
        Ok(Connection { connection: self.connection.try_map(wrap)?, readiness: self.readiness })
    }
}

impl<R, Q> Deref for Connection<R, Q> {
    type Target = connection::Connection<Q>;

    fn deref(&self) -> &connection::Connection<Q> {
        &self.connection
    }
}

impl<R, Q> DerefMut for Connection<R, Q> {
    fn deref_mut(&mut self) -> &mut connection::Connection<Q> {
        &mut self.connection
    }
}

macro_rules! debug {
    ($($name:ident<R $(, $queue:ident: fmt::Debug)?> { $field:ident })*) => {$(
        impl<R: Readiness $(, $queue: fmt::Debug)?> fmt::Debug for $name<R $(, $queue)?> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name))
                    .field(stringify!($field), &self.$field)
                    .field("runtime", &R::RUNTIME)
                    .finish()
            }
        }
    )*};
}

debug! {
    EventChannel<R> { channel }
    Listener<R> { listener }
    Incoming<R> { incoming }
    Route<R> { route }
    Connection<R, Q: fmt::Debug> { connection }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits that end at once.
    struct NoEvents(Descriptor);

    impl Readiness for NoEvents {
        const RUNTIME: &'static str = "none";

        fn new(descriptor: Descriptor) -> Result<Self> {
            Ok(Self(descriptor))
        }

        fn descriptor(&self) -> &Descriptor {
            &self.0
        }

        async fn next(&self) -> Result<Event> {
            Err(Error::System { what: "waiting", errno: Errno::AGAIN })
        }
    }

    #[test]
    fn wait_for_the_events_of_another_channel_is_rejected() {
        let (own, other) = (crate::EventChannel::for_test(), crate::EventChannel::for_test());
        let registered = NoEvents::new(Descriptor::new(&own).unwrap()).unwrap();
        let wait = |channel| steps::run(Task(&registered).event(channel, "disconnect")).unwrap_err();
        assert!(matches!(wait(&own), Error::System { .. }));
        let rejected = wait(&other);
        assert!(matches!(rejected, Error::Invalid { verb: "disconnect", .. }), "{rejected}");
    }

    /// Requires a `Send` future, as multi-threaded runtimes do.
    fn can_move<T: Send>(_: &T) {}

    macro_rules! futures_can_move {
        ($name:ident, $runtime:ident) => {
            #[test]
            fn $name() {
                #[expect(dead_code, reason = "compiling it is the test")]
                fn futures(
                    channel: &crate::$runtime::EventChannel,
                    listener: &crate::$runtime::Listener,
                    connection: &mut crate::$runtime::Connection,
                    streams: &crate::$runtime::StreamListener,
                    addr: std::net::SocketAddr,
                ) {
                    let options = bareverbs::owned::Endpoint::<bareverbs::Mr<bareverbs::Buffer>>::options();
                    can_move(&channel.get_event());
                    can_move(&listener.accept(&options));
                    can_move(&connection.disconnected());
                    can_move(&connection.disconnect());
                    can_move(&streams.accept());
                    can_move(&crate::$runtime::Stream::connect(addr, &Default::default()));
                    can_move(&crate::$runtime::connect(
                        addr,
                        &crate::connection::Domains::default(),
                        &options,
                    ));
                }
            }
        };
    }

    #[cfg(feature = "tokio")]
    futures_can_move!(tokio_futures_are_send, tokio);
    #[cfg(feature = "async-io")]
    futures_can_move!(async_io_futures_are_send, async_io);
}
