//! Async wrappers for [tokio](https://docs.rs/tokio) (feature `tokio`).
//!
//! ```no_run
//! use bareverbs::Endpoint;
//! use bareverbs_rdmacm::tokio::{Listener, connect};
//! use bareverbs_rdmacm::connection::Domains;
//! use std::net::SocketAddr;
//!
//! async fn server(addr: SocketAddr) -> bareverbs_rdmacm::Result<()> {
//!     let listener = Listener::bind(addr)?;
//!     loop {
//!         let mut peer = listener.accept(&Endpoint::options()).await?;
//!         println!("{}", peer.peer_addr()?);
//!         peer.disconnected().await?;
//!     }
//! }
//!
//! async fn client(addr: SocketAddr) -> bareverbs_rdmacm::Result<()> {
//!     let mut server = connect(addr, &Domains::default(), &Endpoint::options()).await?;
//!     // To wait for its operations in a task, attach the endpoint.
//!     server.attach(bareverbs::runtime::Tokio)?;
//!     server.disconnect().await
//! }
//! ```
//!
//! A server of many peers takes one request after the other, and answers each in a task of its own. Its
//! endpoints have buffers of a pool here:
//!
//! ```no_run
//! use bareverbs::{Endpoint, PoolBuffer, Op, Pd, Pool};
//! use bareverbs_rdmacm::tokio::{Incoming, Listener};
//! use bareverbs_rdmacm::{ConnectOptions, Result};
//! use std::net::SocketAddr;
//!
//! async fn serve(addr: SocketAddr) -> Result<()> {
//!     let listener = Listener::bind(addr)?;
//!     loop {
//!         let request = listener.get_request().await?;
//!         let pd = listener.domains().pd(request.device()?)?;
//!         tokio::spawn(answer(request, pd));
//!     }
//! }
//!
//! async fn answer(request: Incoming, pd: Pd) -> Result<()> {
//!     let pool = Pool::new(&pd, 16, 4096)?;
//!     let mut endpoint: Endpoint<PoolBuffer> = Endpoint::options().port(request.port()?).build(&pd)?;
//!     endpoint.post(Op::recv(pool.take().expect("a free buffer")))?;
//!     endpoint.attach(bareverbs::runtime::Tokio)?;
//!     let mut peer = request.accept(endpoint, &ConnectOptions::default()).await?;
//!     println!("{:?}", peer.next().await?.message());
//!     peer.disconnected().await
//! }
//! ```

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::task::{Context, Poll, ready};

use ::tokio::io::Interest;
use ::tokio::io::unix::AsyncFd;
use ::tokio::runtime::Handle;
use bareverbs::EndpointOptions;

use crate::connection::Domains;
use crate::runtime::{self, Descriptor, failed};
use crate::{Addr, Error, Name, Result};

type Queue = bareverbs::Endpoint;

/// An [event channel](crate::EventChannel) that tasks of tokio wait on.
pub type EventChannel = runtime::EventChannel<Readiness>;

/// A [listener](crate::Listener) that tasks of tokio wait on.
pub type Listener = runtime::Listener<Readiness>;

/// A [request](crate::connection::Incoming) that tasks of tokio answer.
pub type Incoming = runtime::Incoming<Readiness>;

/// A [connector](crate::Connector) that tasks of tokio use.
pub type Connector = runtime::Connector<Readiness>;

/// A [route](crate::connection::Route) that tasks of tokio use.
pub type Route = runtime::Route<Readiness>;

/// A [connection](crate::Connection) whose end tasks of tokio wait for.
pub type Connection<Q = Queue> = runtime::Connection<Readiness, Q>;

/// A [byte stream](crate::stream::RdmaStream) that tasks of tokio read and write.
pub type Stream = crate::stream::AsyncStream<crate::stream::TokioReactor>;

/// A [listener](crate::stream::RdmaListener) whose streams tasks of tokio wait for.
pub type StreamListener = crate::stream::AsyncListener<crate::stream::TokioReactor>;

/// Connects to a peer, with a new endpoint on a device of `domains`. Receives may be posted
/// afterwards: the peer's messages are repeated until then.
///
/// Dropping the future ends the attempt. Otherwise the kernel gives up after about 70 to 100
/// seconds on RoCE.
///
/// # Errors
/// The errors of [`connection::Route::resolve`](crate::connection::Route::resolve),
/// [`EndpointOptions::build`] and [`connection::Route::connect`](crate::connection::Route::connect).
#[doc(alias = "rdma_connect")]
pub async fn connect<B: Send>(
    peer: impl Into<Name>,
    domains: &Domains,
    options: &EndpointOptions,
) -> Result<Connection<bareverbs::Endpoint<B>>> {
    runtime::connect(peer.into(), domains, options).await
}

/// A file descriptor that is registered with tokio.
#[derive(Debug)]
pub struct Readiness(AsyncFd<Registered>);

#[derive(Debug)]
struct Registered(Descriptor);

impl AsRawFd for Registered {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

impl runtime::sealed::Readiness for Readiness {
    const RUNTIME: &'static str = "tokio";

    #[expect(unsafe_code, reason = "registration of a descriptor with tokio is unsafe")]
    fn new(descriptor: Descriptor) -> Result<Self> {
        if Handle::try_current().is_err() {
            return Err(Error::invalid("tokio", "no tokio runtime: call this in a task of one"));
        }
        // SAFETY: the descriptor stays open and unchanged while `Descriptor` exists, which owns it or
        // a clone of its channel.
        unsafe { AsyncFd::register_with_interest(Registered(descriptor), Interest::READABLE) }
            .map(Self)
            .map_err(|error| failed(&error.into()))
    }

    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let mut guard = ready!(self.0.poll_read_ready(cx)).map_err(|error| failed(&error))?;
        // The caller reads everything after this. What arrives meanwhile makes it readable again.
        guard.clear_ready();
        Poll::Ready(Ok(()))
    }

    async fn lookup(name: Name) -> Result<Vec<Addr>> {
        let text = name.to_string();
        let found = ::tokio::task::spawn_blocking(move || name.lookup()).await;
        found.unwrap_or_else(|error| {
            Err(Error::Name { verb: "Name::lookup", name: text, error: error.into() })
        })
    }
}
