//! Options of servers and clients.

use std::collections::VecDeque;
use std::sync::Arc;

use bareverbs_provider::traits::Provider;

use super::flow::{CONTROL_RECEIVES, CONTROL_SENDS, MAX_WINDOW};
use super::reap::inbound::Inbound;
use super::reap::words;
use super::{Client, Handle, Inner, Server};
use crate::error::Limit;
use crate::owned::hub::Hub;
use crate::owned::options::{ConnectionOptions, connection_setters};
use crate::owned::{Pool, PoolBuffer, Source, Spin};
use crate::srq::SrqInit;
use crate::{Access, Error, Pd, Result};

const SERVER: &str = "ServerOptions::build";
const CLIENT: &str = "ClientOptions::build";

/// Options of a [`Server`], from [`Server::options`].
///
/// | option | default |
/// |---|---|
/// | [`peers`](Self::peers) | 16 |
/// | [`window`](Self::window) | 16 messages |
/// | [`sends`](Self::sends) | 16 messages |
/// | [`message_size`](Self::message_size) | 4096 bytes |
/// | [`operations`](Self::operations) | 4 |
/// | [`receives`](Self::receives) | `peers` × (`window` + 5), or the device's limit |
/// | [`inline`](Self::inline) | 0 bytes |
/// | [`access`](Self::access) | `REMOTE_WRITE` |
/// | those of the connections, such as [`port`](Self::port) and [`timeout`](Self::timeout) | those of [`EndpointOptions`](crate::owned::EndpointOptions) |
/// | [`spin`](Self::spin) | that of [`Spin`] |
///
/// It takes `receives` + `peers` × `sends` buffers of the message size, in one registration.
///
/// # Thousands of peers
///
/// The CQ has `receives` + `peers` × (`sends` + `operations` + 5) entries. On Soft-RoCE a CQ has at
/// most 32,767, and a ConnectX has SRQs of at most 32,767 receives. So lower `sends`, `operations` and
/// `receives` for thousands of peers that are seldom busy at the same time:
///
/// ```
/// use bareverbs::Device;
/// use bareverbs::server::Server;
///
/// let pd = Device::find("soft0")?.open()?.alloc_pd()?;
/// let options = Server::options().peers(3000).window(8).receives(4096).sends(4).operations(0);
/// let server = options.message_size(512).build(&pd)?;
/// # Ok::<(), bareverbs::Error>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[must_use = "`build` creates the server"]
pub struct ServerOptions {
    pub(super) peers: u32,
    pub(super) window: u32,
    pub(super) sends: u32,
    pub(super) message_size: u32,
    pub(super) operations: u32,
    receives: Option<u32>,
    pub(super) inline: u32,
    pub(super) connection: ConnectionOptions,
    spin: Spin,
}

/// Options of a [`Client`], from [`Client::options`]. They are those of a server with one peer.
#[derive(Clone, Copy, Debug, Default)]
#[must_use = "`build` creates the client"]
pub struct ClientOptions {
    options: ServerOptions,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            peers: 16,
            window: 16,
            sends: 16,
            message_size: 4096,
            operations: 4,
            receives: None,
            inline: 0,
            // A keepalive is a zero-length RDMA write.
            connection: ConnectionOptions::new(Access::REMOTE_WRITE),
            spin: Spin::default(),
        }
    }
}

macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident($argument:ident: $ty:ty) $($of:ident).+ = $value:expr;)*) => {
        impl ServerOptions {
            $($(#[$doc])*
            pub fn $name(mut self, $argument: $ty) -> Self {
                self.$($of).+ = $value;
                self
            })*
        }

        impl ClientOptions {
            $($(#[$doc])*
            pub fn $name(mut self, $argument: $ty) -> Self {
                self.options.$($of).+ = $value;
                self
            })*
        }
    };
}

setters! {
    /// Credits of each peer: messages that a peer may send before the application drops one. 1 to
    /// 2^20.
    window(messages: u32) window = messages;
    /// Outstanding and queued messages for each peer. 1 to 2^20.
    sends(messages: u32) sends = messages;
    /// Length in bytes of the longest message that is received, and of the buffers of `take`.
    message_size(bytes: u32) message_size = bytes;
    /// Outstanding writes, reads and atomics for each peer: [`Handle::post`]. They take no room from
    /// `sends`. 0 to 2^20.
    operations(operations: u32) operations = operations;
    /// Receives of the SRQ, which all peers share. At least `window` + 5.
    ///
    /// With the default each message finds a posted receive. With fewer, a message may arrive when none
    /// is posted. Its sender's device then repeats it until one is (RNR retries, without limit by
    /// default), and the application must drop messages without waiting for sends meanwhile: the
    /// credits for those sends need receives as well. On iWARP, such a message ends the connection: fewer
    /// receives are rejected.
    receives(receives: u32) receives = Some(receives);
    /// Maximum of the bytes of an inline write ([`Op::write_inline`](crate::owned::Op::write_inline)).
    /// Messages are never inline.
    inline(bytes: u32) inline = bytes;
    /// Remote operations that peers may execute, on memory of the PD that allows them.
    /// `REMOTE_WRITE` is always among them: a keepalive is an RDMA write of length 0.
    access(access: Access) connection.attr.access = access | Access::REMOTE_WRITE;
    /// How long waiting threads and the driver poll before they sleep.
    spin(spin: Spin) spin = spin;
}

connection_setters!(ServerOptions, connection);
connection_setters!(ClientOptions, options.connection);

impl ServerOptions {
    /// Peers at a time.
    pub fn peers(mut self, peers: u32) -> Self {
        self.peers = peers;
        self
    }

    /// Creates the server in `pd`. It sends [`PoolBuffer`]s.
    ///
    /// # Errors
    /// As for [`build_for`](Self::build_for).
    pub fn build<P: Provider>(&self, pd: &Pd<P>) -> Result<Server<PoolBuffer, P>> {
        self.build_for(pd)
    }

    /// Creates the server in `pd`. It sends buffers of the type `B`.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: an option is 0 or too large. The error names it.
    /// - [`Error::Limit`]: the CQ or the SRQ would be larger than the device's limits.
    /// - [`Error::NoPort`], [`Error::NoGid`], [`Error::System`], [`Error::Kernel`].
    pub fn build_for<B: Source, P: Provider>(&self, pd: &Pd<P>) -> Result<Server<B, P>> {
        self.build_as(SERVER, pd)
    }

    fn build_as<B: Source, P: Provider>(&self, verb: &'static str, pd: &Pd<P>) -> Result<Server<B, P>> {
        for (option, value) in [("peers", self.peers), ("window", self.window), ("sends", self.sends)] {
            if !(1..=MAX_WINDOW).contains(&value) {
                return Err(Error::invalid(
                    verb,
                    format!("{option} is {value}: it must be from 1 to {MAX_WINDOW}"),
                ));
            }
        }
        if self.operations > MAX_WINDOW {
            let reason = format!("operations is {}: it must be from 0 to {MAX_WINDOW}", self.operations);
            return Err(Error::invalid(verb, reason));
        }
        let each = self.window + CONTROL_RECEIVES;
        if let Some(receives) = self.receives.filter(|receives| *receives < each) {
            let reason =
                format!("receives is {receives}: it must be at least `window` + {CONTROL_RECEIVES}, {each}");
            return Err(Error::invalid(verb, reason));
        }
        if self.message_size == 0 {
            return Err(Error::invalid(verb, "message_size is 0: it must be at least 1"));
        }
        let context = pd.context();
        let attr = self.connection.check(verb, context)?;
        let times_peers = |each: u32| {
            let all = u64::from(self.peers) * u64::from(each);
            u32::try_from(all).map_err(|_| {
                Error::invalid(verb, format!("{all} messages of all peers exceed 2^32: lower `peers`"))
            })
        };
        let limits = context.limits();
        let receives = match self.receives {
            None => times_peers(each)?.min(limits.max_srq_wr.max(each)),
            Some(receives) => receives,
        };
        let is_iwarp = context.capabilities().iwarp;
        if is_iwarp && receives < times_peers(each)? {
            let reason = format!(
                "receives is {receives}, at most {} for each SRQ of the device: on iWARP, a message without a \
                 receive ends the connection, so that it must be at least `peers` × (`window` + \
                 {CONTROL_RECEIVES})",
                limits.max_srq_wr
            );
            return Err(Error::invalid(verb, reason));
        }
        let sends = times_peers(self.sends + self.operations + CONTROL_SENDS)?;
        let entries = u64::from(receives) + u64::from(sends);
        Error::check_limit(verb, Limit::PeerCompletions, entries, limits.max_cqe.into())?;
        let count = receives as usize + times_peers(self.sends)? as usize;
        let pool = Pool::new(pd, count, self.message_size as usize)?;
        let max_sge = if is_iwarp { 2 } else { 1 };
        let srq = pd.create_srq(&SrqInit { max_sge, ..SrqInit::new(receives) })?;
        let words = if is_iwarp { words(pd, receives as usize)? } else { VecDeque::new() };
        let inbound = Arc::new(Inbound::new(srq, pool, receives as usize, self.peers as usize, words));
        let hub = Hub::with_service(pd, entries as u32, self.spin, Arc::clone(&inbound), receives as usize)?;
        for index in 0..receives {
            let buffer = inbound
                .pool
                .take()
                .ok_or_else(|| Error::invalid(verb, "the pool has no buffer left for a receive"))?;
            inbound.post(index, buffer)?;
        }
        let handle = Handle { inner: Inner::new(*self, attr, hub, inbound) };
        Ok(Server { handle, ended: false, is_client: false })
    }
}

impl ClientOptions {
    /// Creates the client in `pd`. It sends [`PoolBuffer`]s.
    ///
    /// # Errors
    /// As for [`ServerOptions::build_for`].
    pub fn build<P: Provider>(&self, pd: &Pd<P>) -> Result<Client<PoolBuffer, P>> {
        self.build_for(pd)
    }

    /// Creates the client in `pd`. It sends buffers of the type `B`.
    ///
    /// # Errors
    /// As for [`ServerOptions::build_for`].
    pub fn build_for<B: Source, P: Provider>(&self, pd: &Pd<P>) -> Result<Client<B, P>> {
        let mut server: Server<B, P> = self.options.peers(1).build_as(CLIENT, pd)?;
        server.is_client = true;
        let (id, address) = server.handle.open(CLIENT)?;
        Ok(Client { server, id, address })
    }
}

impl Server {
    /// Options of a server.
    pub fn options() -> ServerOptions {
        ServerOptions::default()
    }
}

impl Client {
    /// Options of a client.
    pub fn options() -> ClientOptions {
        ClientOptions::default()
    }
}
