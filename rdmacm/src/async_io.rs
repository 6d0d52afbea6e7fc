//! Async wrappers for [async-io](::async_io), the reactor of smol and async-std (feature `async-io`).
//!
//! ```no_run
//! use bareverbs::owned::Endpoint;
//! use bareverbs_rdmacm::async_io::{Listener, connect};
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
//!     // To wait for its operations in a task, wrap the endpoint.
//!     let mut server = server.try_map(bareverbs::async_io::Endpoint::new)?;
//!     server.disconnect().await
//! }
//! ```

use std::net::SocketAddr;

use ::async_io::Async;
use bareverbs::owned::EndpointOptions;

use crate::Result;
use crate::connection::Domains;
use crate::event::Event;
use crate::runtime::{self, Descriptor, failed};

type Queue = bareverbs::owned::Endpoint;

/// An [event channel](crate::EventChannel) that tasks of async-io wait on.
pub type EventChannel = runtime::EventChannel<Readiness>;

/// A [listener](crate::Listener) that tasks of async-io wait on.
pub type Listener = runtime::Listener<Readiness>;

/// A [request](crate::connection::Incoming) that tasks of async-io answer.
pub type Incoming = runtime::Incoming<Readiness>;

/// A [route](crate::connection::Route) that tasks of async-io use.
pub type Route = runtime::Route<Readiness>;

/// A [connection](crate::Connection) whose end tasks of async-io wait for.
pub type Connection<Q = Queue> = runtime::Connection<Readiness, Q>;

/// A [byte stream](crate::stream::RdmaStream) that tasks of async-io read and write.
pub type Stream = crate::stream::AsyncStream<crate::stream::AsyncIoReactor>;

/// A [listener](crate::stream::RdmaListener) whose streams tasks of async-io wait for.
pub type StreamListener = crate::stream::AsyncListener<crate::stream::AsyncIoReactor>;

/// Connects to a peer, with a new endpoint on a device of `domains`. Receives may be posted
/// afterwards: the peer's messages are repeated until then.
///
/// Dropping the future ends the attempt. The kernel gives up by itself after about 70 to 100
/// seconds on RoCE.
///
/// # Errors
/// Those of [`connection::Route::resolve`](crate::connection::Route::resolve), [`EndpointOptions::build`] and
/// [`connection::Route::connect`](crate::connection::Route::connect).
#[doc(alias = "rdma_connect")]
pub async fn connect(addr: SocketAddr, domains: &Domains, options: &EndpointOptions) -> Result<Connection> {
    runtime::connect(addr, domains, options).await
}

/// A file descriptor that is registered with the reactor.
#[derive(Debug)]
pub struct Readiness(Async<Descriptor>);

impl runtime::sealed::Readiness for Readiness {
    const RUNTIME: &'static str = "async-io";

    fn new(descriptor: Descriptor) -> Result<Self> {
        Async::new_nonblocking(descriptor).map(Self).map_err(|error| failed(&error))
    }

    fn descriptor(&self) -> &Descriptor {
        self.0.get_ref()
    }

    async fn next(&self) -> Result<Event> {
        loop {
            if let Some(event) = self.0.get_ref().get_event()? {
                return Ok(event);
            }
            self.0.readable().await.map_err(|error| failed(&error))?;
        }
    }
}
