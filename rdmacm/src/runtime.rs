//! Waiting in tasks: one implementation for all async runtimes.
//!
//! The types are generic over a sealed [`Readiness`](sealed::Readiness), by which a runtime waits
//! for a file descriptor. The modules of the runtimes name them.
//!
//! A channel is registered once, whatever the number of its connections. The waker that the runtime
//! gets delivers events to their inboxes, which wakes the tasks that wait for them.

use std::fmt;
use std::future::{Future, poll_fn};
use std::io;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Wake, Waker};

use bareverbs::{Address, Endpoint, EndpointOptions};
use bareverbs_provider::wake::FirstPanic;
use rustix::io::Errno;

use crate::connection::{self, ConnectOptions, ConnectQueue, Domains};
use crate::event::Event;
use crate::steps::{self, Wait};
use crate::{Addr, Error, IdOptions, Key, Name, Result};

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
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.combined.as_ref().map_or_else(|| self.channel.as_fd(), AsFd::as_fd)
    }
}

pub(crate) mod sealed {
    use std::future::Future;
    use std::task::{Context, Poll};

    use super::Descriptor;
    use crate::{Addr, Name, Result};

    /// A channel's descriptor that is registered with a runtime.
    pub trait Readiness: Sized + Send + Sync + 'static {
        /// Name of the runtime.
        const RUNTIME: &'static str;

        /// Registers the descriptor.
        fn new(descriptor: Descriptor) -> Result<Self>;

        /// Waits until the descriptor becomes readable, and forgets that it did: the caller reads all
        /// there is before the next call. One waker is kept.
        fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<Result<()>>;

        /// Looks a name up, beside the tasks of the runtime.
        fn lookup(name: Name) -> impl Future<Output = Result<Vec<Addr>>> + Send;
    }
}

use self::sealed::Readiness;

/// The addresses of a name. Only a host name takes the detour over another thread.
pub(crate) async fn lookup<R: Readiness>(name: Name) -> Result<Vec<Addr>> {
    match name.addr() {
        Some(addr) => Ok(vec![addr]),
        None => R::lookup(name).await,
    }
}

/// A channel that is registered with a runtime.
pub(crate) struct Registration<R> {
    channel: crate::EventChannel,
    readiness: R,
    /// The waker of [`Serve`], which is the only one that the runtime gets.
    waker: Waker,
}

/// The task that serves a channel. It runs when the runtime finds the descriptor readable. It does not
/// keep the registration alive, which keeps this waker.
struct Serve<R>(Weak<Registration<R>>);

impl<R: Readiness> Wake for Serve<R> {
    fn wake(self: Arc<Self>) {
        if let Some(registration) = self.0.upgrade() {
            let mut panics = FirstPanic::default();
            registration.serve(&mut panics);
            panics.resume();
        }
    }
}

impl<R: Readiness> Registration<R> {
    pub(crate) fn new(channel: &crate::EventChannel) -> Result<Arc<Self>> {
        let readiness = R::new(Descriptor::new(channel)?)?;
        Ok(Arc::new_cyclic(|registration| {
            let waker = Waker::from(Arc::new(Serve(registration.clone())));
            Self { channel: channel.clone(), readiness, waker }
        }))
    }

    /// Serves the channel and arms the descriptor. A waker that panics does not keep the descriptor from
    /// being armed for the other tasks.
    fn serve(&self, panics: &mut FirstPanic) {
        let mut goes_on = true;
        while goes_on {
            match self.poll_readable() {
                // The next wait of a task arms the descriptor, if the tasks read. With unread events,
                // arming it here would run this without end.
                Poll::Ready(Ok(())) => panics.catch(|| goes_on = self.channel.serve()),
                Poll::Ready(Err(_)) => {
                    panics.catch(|| self.channel.wake_tasks());
                    goes_on = false;
                }
                Poll::Pending => goes_on = false,
            }
        }
    }

    fn poll_readable(&self) -> Poll<Result<()>> {
        self.readiness.poll_readable(&mut Context::from_waker(&self.waker))
    }

    /// Serves the channel, whose descriptor was readable. The caller arms the descriptor, unless this
    /// panics.
    fn serve_readable(&self) {
        let mut panics = FirstPanic::default();
        panics.catch(|| _ = self.channel.serve());
        if panics.caught() {
            self.serve(&mut panics);
        }
        panics.resume();
    }

    /// The next event that [`EventChannel::try_event`](crate::EventChannel) takes. Cancel-safe.
    async fn next(&self, key: Option<Key>) -> Result<Event> {
        poll_fn(|cx| {
            loop {
                if let Some(event) = self.channel.poll_event(key, cx.waker())? {
                    return Poll::Ready(Ok(event));
                }
                match self.poll_readable() {
                    Poll::Ready(Ok(())) => self.serve_readable(),
                    Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                    Poll::Pending => return Poll::Pending,
                }
            }
        })
        .await
    }
}

/// Waiting by a registered channel.
pub(crate) struct Task<'a, R>(pub(crate) &'a Registration<R>);

impl<R: Readiness> Task<'_, R> {
    /// Rejects a channel that is not the registered one. Safe code can exchange the connections of two
    /// wrappers, by `DerefMut`.
    fn check(&self, channel: &crate::EventChannel, verb: &'static str) -> Result<()> {
        if self.0.channel.same_channel(channel) {
            return Ok(());
        }
        let reason = "the connection was exchanged: its events are not those that the task waits for";
        Err(Error::invalid(verb, reason))
    }
}

impl<R: Readiness> Wait for Task<'_, R> {
    async fn event(&self, channel: &crate::EventChannel, key: Key, verb: &'static str) -> Result<Event> {
        self.check(channel, verb)?;
        self.0.next(Some(key)).await
    }

    async fn pass(&self, _: &'static str) -> Result<()> {
        let mut has_passed = false;
        poll_fn(|cx| {
            if std::mem::replace(&mut has_passed, true) {
                return Poll::Ready(Ok(()));
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await
    }
}

/// An [event channel](crate::EventChannel) that tasks wait on.
pub struct EventChannel<R> {
    registration: Arc<Registration<R>>,
}

impl<R: Readiness> EventChannel<R> {
    /// Registers the channel with the runtime.
    ///
    /// # Errors
    /// [`Error::Invalid`]: there is no runtime. [`Error::System`]: the runtime refused the
    /// descriptor.
    pub fn new(channel: crate::EventChannel) -> Result<Self> {
        Ok(Self { registration: Registration::new(&channel)? })
    }

    /// The channel.
    #[must_use]
    pub fn channel(&self) -> &crate::EventChannel {
        &self.registration.channel
    }

    /// Unregisters the channel from the runtime and returns it.
    #[must_use]
    pub fn into_inner(self) -> crate::EventChannel {
        self.channel().clone()
    }

    /// Waits for an event. The future is cancel-safe: dropping it loses no event.
    ///
    /// # Errors
    /// As for [`EventChannel::try_wait`](crate::EventChannel::try_wait).
    pub async fn wait(&self) -> Result<Event> {
        self.registration.next(None).await
    }
}

/// A [listener](connection::Listener) that tasks wait on. Its connections share its channel, which is
/// registered with the runtime once.
pub struct Listener<R> {
    listener: connection::Listener,
    registration: Arc<Registration<R>>,
}

impl<R: Readiness> Listener<R> {
    /// Listens on an address. Port 0 is a free port: [`connection::Listener::local_addr`]. For options,
    /// see [`connection::Listener::bind_with`] and [`Listener::new`].
    ///
    /// # Errors
    /// As for [`connection::Listener::bind`] and [`Listener::new`].
    #[doc(alias = "rdma_create_ep")]
    pub fn bind(addr: impl Into<std::net::SocketAddr>) -> Result<Self> {
        Self::new(connection::Listener::bind(addr.into())?)
    }

    /// Registers a listener with the runtime.
    ///
    /// # Errors
    /// [`Error::Invalid`]: there is no runtime. [`Error::System`]: the runtime refused the
    /// descriptor.
    pub fn new(listener: connection::Listener) -> Result<Self> {
        Ok(Self { registration: Registration::new(listener.id().channel())?, listener })
    }

    /// Waits for a request. The future is cancel-safe: dropping it loses no request.
    ///
    /// # Errors
    /// [`Error::DeviceRemoved`]; those of [`EventChannel::try_wait`](crate::EventChannel::try_wait).
    #[doc(alias = "rdma_get_request")]
    pub async fn get_request(&self) -> Result<Incoming<R>> {
        let incoming = self.listener.next_request(&Task(&self.registration)).await?;
        Ok(Incoming { registration: Arc::clone(&self.registration), incoming })
    }

    /// Waits for a request and accepts it with a new endpoint on its device. Receives may be posted
    /// afterwards: the peer's messages are repeated until then. For buffers of another type, such as
    /// leases of a pool, see [`Incoming::accept`].
    ///
    /// While it waits for the confirmation of one peer, it takes no other request: to do both, spawn
    /// a task for each [`Incoming`]. Dropping the future rejects a request that was taken.
    ///
    /// # Errors
    /// The errors of [`Listener::get_request`], [`EndpointOptions::build`] and [`Incoming::accept`].
    #[doc(alias = "rdma_accept")]
    pub async fn accept<B: Send>(&self, options: &EndpointOptions) -> Result<Connection<R, Endpoint<B>>> {
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
    registration: Arc<Registration<R>>,
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
        let Self { incoming, registration } = self;
        let connection = incoming.accept_with(&Task(&registration), queue, options).await?;
        Ok(Connection { connection, registration })
    }

    /// Accepts by a queue that connects by addresses, such as one of a hub or a server.
    ///
    /// # Errors
    /// As for [`connection::Incoming::exchange`], without a time limit.
    #[doc(alias = "rdma_accept")]
    pub async fn exchange<T: Send>(
        self,
        answer: impl FnOnce(&Address) -> bareverbs::Result<(T, Address)> + Send,
    ) -> Result<Connection<R, T>> {
        let Self { incoming, registration } = self;
        let connection = incoming.exchange_with(&Task(&registration), answer).await?;
        Ok(Connection { connection, registration })
    }

    /// Rejects the request, with data for the peer's application.
    ///
    /// # Errors
    /// As for [`CmId::reject`](crate::CmId::reject).
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
/// Dropping the future ends the attempt. Otherwise the kernel gives up after about 70 to 100
/// seconds on RoCE.
///
/// # Errors
/// The errors of [`Route::resolve`], [`EndpointOptions::build`] and [`Route::connect`].
#[doc(alias = "rdma_connect")]
pub(crate) async fn connect<R: Readiness, B: Send>(
    name: Name,
    domains: &Domains,
    options: &EndpointOptions,
) -> Result<Connection<R, Endpoint<B>>> {
    let route = Route::resolve(name).await?;
    let endpoint = domains.endpoint(route.device()?, options)?;
    route.connect(endpoint, &ConnectOptions::default()).await
}

/// A [connector](connection::Connector) whose connections tasks wait for. They share its channel, which
/// is registered with the runtime once.
pub struct Connector<R> {
    connector: connection::Connector,
    registration: Arc<Registration<R>>,
}

impl<R: Readiness> Connector<R> {
    /// Registers the channel of a connector with the runtime.
    ///
    /// # Errors
    /// [`Error::Invalid`]: there is no runtime. [`Error::System`]: the runtime refused the
    /// descriptor. The errors of [`connection::Connector::channel`].
    pub fn new(connector: connection::Connector) -> Result<Self> {
        Ok(Self { registration: Registration::new(&connector.channel()?)?, connector })
    }

    /// Resolves address and route of the first address of a name that has a route, for a queue of the
    /// caller.
    ///
    /// # Errors
    /// As for [`Route::resolve`].
    #[doc(alias = "rdma_resolve_addr")]
    pub async fn resolve(&self, name: impl Into<Name>) -> Result<Route<R>> {
        let registration = &self.registration;
        first(lookup::<R>(name.into()).await?, |addr| async move {
            let task = Task(registration);
            let route = self.connector.resolve_with(&task, addr, steps::RESOLVE).await?;
            Ok(Route { route, registration: Arc::clone(registration) })
        })
        .await
    }

    /// Connects to a peer, with a new endpoint on one of the connector's devices. Receives may be
    /// posted afterwards: the peer's messages are repeated until then. For buffers of another type,
    /// such as leases of a pool, see [`Connector::resolve`] and [`Route::connect`].
    ///
    /// Dropping the future ends the attempt. Otherwise the kernel gives up after about 70 to 100
    /// seconds on RoCE.
    ///
    /// # Errors
    /// The errors of [`Connector::resolve`], [`EndpointOptions::build`] and [`Route::connect`].
    #[doc(alias = "rdma_connect")]
    pub async fn connect<B: Send>(
        &self,
        name: impl Into<Name>,
        options: &EndpointOptions,
    ) -> Result<Connection<R, Endpoint<B>>> {
        let route = self.resolve(name).await?;
        let endpoint = self.connector.domains().endpoint(route.device()?, options)?;
        route.connect(endpoint, &ConnectOptions::default()).await
    }
}

impl<R> Deref for Connector<R> {
    type Target = connection::Connector;

    fn deref(&self) -> &connection::Connector {
        &self.connector
    }
}

/// The first success with the addresses, or the last failure.
pub(crate) async fn first<T, E: From<Error>, F: Future<Output = Result<T, E>> + Send>(
    addrs: Vec<Addr>,
    mut each: impl FnMut(Addr) -> F + Send,
) -> Result<T, E> {
    let mut last = None;
    for addr in addrs {
        match each(addr).await {
            Ok(done) => return Ok(done),
            Err(error) => last = Some(error),
        }
    }
    Err(last.unwrap_or_else(|| Error::invalid("resolve", "the name has no address").into()))
}

/// A [route](connection::Route) to a peer.
pub struct Route<R> {
    route: connection::Route,
    registration: Arc<Registration<R>>,
}

impl<R: Readiness> Route<R> {
    /// Resolves address and route of the first address of a name that has a route. The route has a
    /// channel of its own; those of a [`Connector`] share one.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: there is no runtime.
    /// - [`Error::Name`]: the name was not resolved.
    /// - [`Error::TimedOut`]: no neighbour answered within 10 seconds.
    /// - [`Error::Address`], [`Error::Route`]: there is no route. The errors of
    ///   [`CmId::resolve_addr`](crate::CmId::resolve_addr).
    #[doc(alias = "rdma_resolve_addr")]
    #[doc(alias = "rdma_resolve_route")]
    pub async fn resolve(name: impl Into<Name>) -> Result<Self> {
        Self::resolve_with(&IdOptions::default(), name).await
    }

    /// Resolves with options of the identifier.
    ///
    /// # Errors
    /// As for [`Route::resolve`] and [`IdOptions::apply`].
    #[doc(alias = "rdma_set_option")]
    pub async fn resolve_with(options: &IdOptions, name: impl Into<Name>) -> Result<Self> {
        first(lookup::<R>(name.into()).await?, |addr| async move {
            let channel = crate::EventChannel::private()?;
            let registration = Registration::new(&channel)?;
            let task = Task(&*registration);
            let route = connection::Route::on_channel(&task, &channel, options, addr, steps::RESOLVE).await?;
            Ok(Self { route, registration })
        })
        .await
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
        let Self { route, registration } = self;
        let connection = route.connect_with(&Task(&registration), queue, options).await?;
        Ok(Connection { connection, registration })
    }

    /// Connects a queue that connects by addresses, such as one of a hub or a client of a server.
    ///
    /// # Errors
    /// As for [`connection::Route::exchange`], without a time limit.
    #[doc(alias = "rdma_connect")]
    pub async fn exchange<T: Send>(
        self,
        local: &Address,
        connect: impl FnOnce(&Address) -> bareverbs::Result<T> + Send,
    ) -> Result<Connection<R, T>> {
        let Self { route, registration } = self;
        let connection = route.exchange_with(&Task(&registration), local, connect).await?;
        Ok(Connection { connection, registration })
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
    registration: Arc<Registration<R>>,
}

impl<R: Readiness, Q: Send> Connection<R, Q> {
    /// Waits until the peer ends the connection, and answers. The future is cancel-safe.
    ///
    /// # Errors
    /// - [`Error::DeviceRemoved`]
    /// - [`Error::Invalid`]: the connection was exchanged by `DerefMut`, so the task waits for the
    ///   events of another one.
    pub async fn disconnected(&mut self) -> Result<()> {
        self.connection.until_disconnected(&Task(&self.registration)).await
    }

    /// Ends the connection, and waits until the peer has answered.
    ///
    /// # Errors
    /// As for [`connection::Connection::disconnect`], without a time limit. [`Error::Invalid`]: as for
    /// [`Connection::disconnected`].
    #[doc(alias = "rdma_disconnect")]
    pub async fn disconnect(&mut self) -> Result<()> {
        let task = Task(&*self.registration);
        task.check(self.connection.id().channel(), "disconnect")?;
        self.connection.disconnect_with(&task).await
    }

    /// Unregisters the connection from the runtime and returns it.
    #[must_use]
    pub fn into_inner(self) -> connection::Connection<Q> {
        self.connection
    }

    /// The same connection with another queue that `wrap` makes of its queue.
    ///
    /// # Errors
    /// The errors of `wrap`. The connection is dropped then.
    pub fn try_map<T, E>(self, wrap: impl FnOnce(Q) -> Result<T, E>) -> Result<Connection<R, T>, E> {
        Ok(Connection { connection: self.connection.try_map(wrap)?, registration: self.registration })
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

impl<R: Readiness> fmt::Debug for EventChannel<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventChannel").field("channel", self.channel()).field("runtime", &R::RUNTIME).finish()
    }
}

debug! {
    Listener<R> { listener }
    Connector<R> { connector }
    Incoming<R> { incoming }
    Route<R> { route }
    Connection<R, Q: fmt::Debug> { connection }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::pin::pin;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use bareverbs_uapi::rdma_cm::EventType;
    use bareverbs_uapi::rdma_cm::structs::EventResp;

    use super::*;

    /// A runtime whose descriptor becomes readable when the test says so. Its first wait that finds it
    /// readable calls the function.
    #[derive(Default)]
    struct Manual(Mutex<(bool, Option<Waker>)>, Mutex<Option<Box<dyn FnOnce() + Send>>>);

    impl Manual {
        fn become_readable(&self) {
            let mut state = self.0.lock().unwrap();
            state.0 = true;
            let waker = state.1.take();
            drop(state);
            waker.into_iter().for_each(Waker::wake);
        }
    }

    impl Readiness for Manual {
        const RUNTIME: &'static str = "manual";

        fn new(_: Descriptor) -> Result<Self> {
            Ok(Self::default())
        }

        fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<Result<()>> {
            let mut state = self.0.lock().unwrap();
            if std::mem::take(&mut state.0) {
                if let Some(call) = self.1.lock().unwrap().take() {
                    call();
                }
                return Poll::Ready(Ok(()));
            }
            state.1 = Some(cx.waker().clone());
            Poll::Pending
        }

        async fn lookup(name: Name) -> Result<Vec<Addr>> {
            name.lookup()
        }
    }

    fn new_key() -> Key {
        crate::key::create(crate::key::KeyInfo {
            port_space: crate::PortSpace::Tcp,
            qp_type: bareverbs::qp::QpType::RC,
        })
    }

    #[test]
    fn wait_for_the_events_of_another_channel_is_rejected() {
        let (own, other) = (crate::EventChannel::for_test(), crate::EventChannel::for_test());
        let registered = Registration::<Manual>::new(&own).unwrap();
        let key = new_key();
        let wait = |channel| steps::run(Task(&*registered).event(channel, key, "disconnect")).unwrap_err();
        assert!(matches!(wait(&own), Error::Command(_)));
        let rejected = wait(&other);
        assert!(matches!(rejected, Error::Invalid { verb: "disconnect", .. }), "{rejected}");
    }

    #[test]
    fn registration_is_freed_while_the_runtime_keeps_its_waker() {
        let registered = Registration::<Manual>::new(&crate::EventChannel::for_test()).unwrap();
        assert!(registered.poll_readable().is_pending());
        let waker = registered.waker.clone();
        let weak = Arc::downgrade(&registered);
        drop(registered);
        assert!(weak.upgrade().is_none());
        waker.wake();
    }

    #[test]
    fn readable_descriptor_arms_itself_again() {
        let registered = Registration::<Manual>::new(&crate::EventChannel::for_test()).unwrap();
        registered.channel.claim(new_key(), 0);
        assert!(registered.poll_readable().is_pending());
        for _ in 0..3 {
            registered.readiness.become_readable();
            assert!(registered.readiness.0.lock().unwrap().1.is_some());
        }
    }

    /// The waker of a task. It panics, or counts.
    struct Waiter {
        panics: bool,
        woken: AtomicUsize,
    }

    impl Waiter {
        /// A task that waits for the events of a new key.
        fn new(channel: &crate::EventChannel, panics: bool) -> (Arc<Self>, Key) {
            let (task, key) = (Arc::new(Self { panics, woken: AtomicUsize::new(0) }), new_key());
            channel.claim(key, 0);
            assert!(channel.poll_event(Some(key), &Waker::from(Arc::clone(&task))).unwrap().is_none());
            (task, key)
        }
    }

    impl Wake for Waiter {
        fn wake(self: Arc<Self>) {
            assert!(!self.panics, "the test asked for it");
            self.woken.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn report(channel: &crate::EventChannel, key: Key) {
        let event = EventResp { uid: key.get(), event: EventType::ADDR_CHANGE, ..EventResp::zeroed() };
        channel.file().kernel().report(event);
    }

    #[test]
    fn waker_that_panics_does_not_disarm_the_descriptor() {
        for by_task in [false, true] {
            let channel = crate::EventChannel::simulated();
            let registered = Registration::<Manual>::new(&channel).unwrap();
            let ((_, one), (task, other)) = (Waiter::new(&channel, true), Waiter::new(&channel, false));
            let serve = || {
                if !by_task {
                    assert!(registered.poll_readable().is_pending());
                    report(&channel, one);
                    return registered.readiness.become_readable();
                }
                // The event comes after the task has looked for its own.
                let late = channel.clone();
                *registered.readiness.1.lock().unwrap() = Some(Box::new(move || report(&late, one)));
                registered.readiness.become_readable();
                let own = new_key();
                channel.claim(own, 0);
                let next = pin!(registered.next(Some(own)));
                assert!(next.poll(&mut Context::from_waker(Waker::noop())).is_pending());
            };
            let panic = catch_unwind(AssertUnwindSafe(serve)).unwrap_err();
            assert_eq!(panic.downcast_ref(), Some(&"the test asked for it"), "{by_task}");
            report(&channel, other);
            registered.readiness.become_readable();
            assert_eq!(task.woken.load(Ordering::Relaxed), 1, "{by_task}");
        }
    }

    /// A runtime with a level-triggered poller would report it again and again.
    #[test]
    fn descriptor_is_not_armed_while_its_events_are_left_unread() {
        let registered = Registration::<Manual>::new(&crate::EventChannel::for_test()).unwrap();
        assert!(registered.poll_readable().is_pending());
        registered.readiness.become_readable();
        assert!(registered.readiness.0.lock().unwrap().1.is_none());
        assert!(registered.poll_readable().is_pending(), "the next wait arms it");
        assert!(registered.readiness.0.lock().unwrap().1.is_some());
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
                    connector: &crate::$runtime::Connector,
                    addr: std::net::SocketAddr,
                ) {
                    let options = bareverbs::Endpoint::options();
                    can_move(&channel.wait());
                    can_move(&listener.accept::<bareverbs::PoolBuffer>(&options));
                    can_move(&connection.disconnected());
                    can_move(&connection.disconnect());
                    can_move(&streams.accept());
                    can_move(&crate::$runtime::Stream::connect(addr, &Default::default()));
                    can_move(&connector.connect::<bareverbs::PoolBuffer>("host:1", &options));
                    can_move(&crate::$runtime::Route::resolve("host:1"));
                    can_move(&crate::$runtime::connect::<bareverbs::PoolBuffer>(
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
