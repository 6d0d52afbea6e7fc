//! Async wrappers for [async-io](::async_io), the reactor of smol and async-std (feature `async-io`).
//!
//! ```no_run
//! use bareverbs::Endpoint;
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
//!     // To wait for its operations in a task, attach the endpoint.
//!     server.attach(bareverbs::runtime::AsyncIo)?;
//!     server.disconnect().await
//! }
//! ```

use std::task::{Context, Poll};

use ::async_io::Async;
use bareverbs::EndpointOptions;
use bareverbs_provider::wake::in_thread;

use crate::connection::Domains;
use crate::runtime::{self, Descriptor, failed};
use crate::{Addr, Error, Name, Result};

type Queue = bareverbs::Endpoint;

/// An [event channel](crate::EventChannel) that tasks of async-io wait on.
pub type EventChannel = runtime::EventChannel<Readiness>;

/// A [listener](crate::Listener) that tasks of async-io wait on.
pub type Listener = runtime::Listener<Readiness>;

/// A [request](crate::connection::Incoming) that tasks of async-io answer.
pub type Incoming = runtime::Incoming<Readiness>;

/// A [connector](crate::Connector) that tasks of async-io use.
pub type Connector = runtime::Connector<Readiness>;

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

/// A file descriptor that is registered with the reactor.
#[derive(Debug)]
pub struct Readiness(Async<Descriptor>);

impl runtime::sealed::Readiness for Readiness {
    const RUNTIME: &'static str = "async-io";

    fn new(descriptor: Descriptor) -> Result<Self> {
        Async::new_nonblocking(descriptor).map(Self).map_err(|error| failed(&error))
    }

    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<Result<()>> {
        self.0.poll_readable(cx).map_err(|error| failed(&error))
    }

    async fn lookup(name: Name) -> Result<Vec<Addr>> {
        lookup_in_a_thread(name).await
    }
}

/// Looks a name up in a thread of its own: async-io has no threads for blocking calls.
async fn lookup_in_a_thread(name: Name) -> Result<Vec<Addr>> {
    let text = name.to_string();
    let looking = in_thread("bareverbs-lookup", move || name.lookup());
    looking.map_err(|error| Error::Name { verb: "Name::lookup", name: text, error })?.await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_looked_up_beside_the_task() {
        let found = ::async_io::block_on(lookup_in_a_thread("localhost:7".into())).unwrap();
        assert!(found.iter().all(|addr| addr.port() == 7));
        let unknown = ::async_io::block_on(lookup_in_a_thread("no-such-host.invalid:1".into())).unwrap_err();
        assert!(matches!(unknown, Error::Name { .. }), "{unknown}");
    }
}
