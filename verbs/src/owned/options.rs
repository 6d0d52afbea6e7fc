//! Options of an endpoint.

use bareverbs_provider::traits::Provider;

use super::keepalive::{Policy, ProbeMemory};
use super::operation::MAX_PARTS;
use super::resolve::ResolveTimeout;
use super::spin::Spin;
use crate::address::Address;
use crate::cq::{CompChannel, Cq, CqInit};
use crate::error::Limit;
use crate::qp::{ConnectAttr, Qp, QpCap, QpInit, Transport};
use crate::values::{GidIndex, Mtu};
use crate::{Access, Context, Error, Pd, PortNum, Result};

/// Options of an [`Endpoint`](super::Endpoint), from
/// [`Endpoint::options`](super::Endpoint::options).
///
/// | option | default |
/// |---|---|
/// | [`port`](Self::port) | 1 |
/// | [`gid_index`](Self::gid_index) | the port's [default GID](crate::Context::default_gid) |
/// | [`sends`](Self::sends), [`recvs`](Self::recvs) | 16 |
/// | [`inline`](Self::inline) | 0 bytes |
/// | [`max_sge`](Self::max_sge) | 1 |
/// | [`signal_every`](Self::signal_every) | a quarter of `sends` |
/// | [`mtu`](Self::mtu) | the port's active MTU |
/// | [`rd_atomic`](Self::rd_atomic) | 16, or the device's limit |
/// | [`access`](Self::access) | `REMOTE_READ` and `REMOTE_WRITE` |
/// | [`timeout`](Self::timeout), [`retry_cnt`](Self::retry_cnt), [`rnr_retry`](Self::rnr_retry) | those of [`RtsAttr`](crate::qp::RtsAttr) |
/// | [`min_rnr_timer`](Self::min_rnr_timer) | that of [`RtrAttr::new`](crate::qp::RtrAttr::new) |
/// | [`sl`](Self::sl), [`traffic_class`](Self::traffic_class), [`pkey_index`](Self::pkey_index) | 0 |
/// | [`hop_limit`](Self::hop_limit) | 64 |
/// | [`resolve_timeout`](Self::resolve_timeout) | 3 seconds |
/// | [`keepalive`](Self::keepalive) | every 2 seconds, if the peer permits RDMA writes |
/// | [`spin`](Self::spin) | adaptive, at most 20 µs |
///
/// ```
/// use bareverbs::values::Mtu;
/// use bareverbs::{Device, Endpoint};
///
/// let pd = Device::find("soft0")?.open()?.alloc_pd()?;
/// let endpoint: Endpoint = Endpoint::options().sends(64).recvs(256).mtu(Mtu::Mtu1024).build(&pd)?;
/// # Ok::<(), bareverbs::Error>(())
/// ```
///
/// # Shared queues
///
/// An endpoint has a CQ, a send queue and a receive queue of its own, and one owner. The same options
/// create connections that share them:
///
/// | for | use |
/// |---|---|
/// | one CQ for many connections | [`Hub::connection_with`](super::Hub::connection_with) with these options |
/// | operations of one connection in several threads or tasks | clones of a [`Connection`](super::Connection) of a hub |
/// | one SRQ for the messages of many peers | a [`Server`](super::server::Server), whose options have the same setters |
#[derive(Clone, Debug)]
#[must_use = "`build` creates the endpoint"]
pub struct EndpointOptions {
    connection: ConnectionOptions,
    sends: u32,
    recvs: u32,
    inline: u32,
    max_sge: u32,
    signal_every: Option<u32>,
    spin: Option<Spin>,
}

/// The options that all connections have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConnectionOptions {
    pub(super) port: PortNum,
    pub(super) gid_index: Option<GidIndex>,
    pub(super) mtu: Option<Mtu>,
    pub(super) rd_atomic: Option<u8>,
    pub(super) keepalive: Policy,
    pub(super) resolve: ResolveTimeout,
    pub(super) attr: ConnectAttr,
}

impl ConnectionOptions {
    pub(super) fn new(access: Access) -> Self {
        let attr = ConnectAttr { access, ..ConnectAttr::new(1, 0) };
        Self {
            port: PortNum(1),
            gid_index: None,
            mtu: None,
            rd_atomic: None,
            keepalive: Policy::Default,
            resolve: ResolveTimeout::default(),
            attr,
        }
    }

    /// Checks the options against the device and its port. Returns them with the GID index.
    pub(super) fn check<P: Provider>(&self, verb: &'static str, context: &Context<P>) -> Result<ConnectAttr> {
        self.keepalive.check(verb)?;
        let port = context.query_port(self.port)?;
        if let Some(mtu) = self.mtu.filter(|mtu| *mtu > port.active_mtu) {
            let active = port.active_mtu;
            return Err(Error::invalid(verb, format!("mtu: {mtu} is above the port's active MTU {active}")));
        }
        if let Some(asked) = self.rd_atomic {
            let limits = context.limits();
            let max = limits.max_qp_rd_atom.min(limits.max_qp_init_rd_atom);
            Error::check_limit(verb, Limit::RdAtomic, asked.into(), max.into())?;
        }
        let gid_index = match self.gid_index {
            Some(index) => index,
            None => context.default_gid(self.port)?.index,
        };
        Ok(ConnectAttr { port: self.port, gid_index, ..self.attr })
    }

    /// The address of a QP with these options. `offered` is that of the QP without them.
    pub(super) fn address(&self, offered: Address) -> Address {
        let mtu = self.mtu.unwrap_or(offered.mtu);
        let rd_atomic = self.rd_atomic.unwrap_or(offered.rd_atomic);
        let remote_write = self.attr.access.contains(Access::REMOTE_WRITE);
        Address { mtu, rd_atomic, remote_write, ..offered }
    }
}

/// The setters that the options of endpoints, servers and clients share.
macro_rules! connection_setters {
    ($type:ty, $($connection:ident).+) => {
        impl $type {
            /// The local port.
            pub fn port(mut self, port: impl Into<$crate::PortNum>) -> Self {
                self.$($connection).+.port = port.into();
                self
            }

            /// Index of the local GID in the port's GID table.
            #[doc(alias = "sgid_index")]
            pub fn gid_index(mut self, index: impl Into<$crate::values::GidIndex>) -> Self {
                self.$($connection).+.gid_index = Some(index.into());
                self
            }

            /// Largest path MTU. The connection uses the smaller one of both ends.
            #[doc(alias = "path_mtu")]
            pub fn mtu(mut self, mtu: $crate::values::Mtu) -> Self {
                self.$($connection).+.mtu = Some(mtu);
                self
            }

            /// Outstanding reads and atomics in each direction (`max_rd_atomic`,
            /// `max_dest_rd_atomic`). The connection uses the smaller number of both ends.
            #[doc(alias = "max_rd_atomic")]
            #[doc(alias = "max_dest_rd_atomic")]
            pub fn rd_atomic(mut self, operations: u8) -> Self {
                self.$($connection).+.rd_atomic = Some(operations);
                self
            }

            /// Local ACK timeout, as [`RtsAttr::timeout`](crate::qp::RtsAttr::timeout).
            pub fn timeout(mut self, timeout: $crate::values::AckTimeout) -> Self {
                self.$($connection).+.attr.timeout = timeout;
                self
            }

            /// Retries after a timeout, as [`RtsAttr::retry_cnt`](crate::qp::RtsAttr::retry_cnt). An
            /// unreachable peer is reported after `retry_cnt` + 1 timeouts.
            pub fn retry_cnt(mut self, retries: $crate::values::RetryCount) -> Self {
                self.$($connection).+.attr.retry_cnt = retries;
                self
            }

            /// Retries of a message for which the peer has no receive posted, as
            /// [`RtsAttr::rnr_retry`](crate::qp::RtsAttr::rnr_retry).
            pub fn rnr_retry(mut self, retries: $crate::values::RnrRetry) -> Self {
                self.$($connection).+.attr.rnr_retry = retries;
                self
            }

            /// RNR NAK timer, as [`RtrAttr::min_rnr_timer`](crate::qp::RtrAttr::min_rnr_timer).
            pub fn min_rnr_timer(mut self, timer: $crate::values::MinRnrTimer) -> Self {
                self.$($connection).+.attr.min_rnr_timer = timer;
                self
            }

            /// Service level, 0 to 15.
            pub fn sl(mut self, sl: u8) -> Self {
                self.$($connection).+.attr.sl = sl;
                self
            }

            /// Traffic class; TOS (DSCP and ECN) of RoCE v2 packets.
            pub fn traffic_class(mut self, class: u8) -> Self {
                self.$($connection).+.attr.traffic_class = class;
                self
            }

            /// Hop limit: the number of routers that a packet may pass, plus 1. On RoCE the kernel
            /// replaces it by the hop limit of the IP route.
            pub fn hop_limit(mut self, limit: u8) -> Self {
                self.$($connection).+.attr.hop_limit = limit;
                self
            }

            /// How long the resolution of the peer's Ethernet address is repeated on RoCE. Default: 3
            /// seconds.
            ///
            /// The kernel waits one second for the answer of a neighbour, and fails with `ETIMEDOUT`.
            /// Then it is asked again, if less than `timeout` has passed. So the call blocks for at most
            /// `timeout` and one second. 0: it is asked once.
            pub fn resolve_timeout(mut self, timeout: std::time::Duration) -> Self {
                self.$($connection).+.resolve = $crate::owned::resolve::ResolveTimeout(timeout);
                self
            }

            /// How long a connection may be idle before its peer is probed, 1 ms or more. `None`: it is
            /// never probed.
            ///
            /// A peer that dies is noticed by a request to it only. So a connection that only waits
            /// for receives probes its peer by an RDMA write of length 0 (on iWARP a read), which consumes
            /// no receive. If the peer is dead, the connection fails within two intervals and the time of
            /// the retries, and the wait returns that.
            ///
            /// Default: 2 seconds, if the peer permits RDMA writes: [`Address::remote_write`] of the
            /// address that it was connected to. With the default timeout and retries, a dead peer
            /// is noticed within 10 seconds. A peer that is given by
            /// [`Endpoint::modify_qp`](crate::owned::Endpoint::modify_qp) is assumed to permit them.
            ///
            /// An explicit interval probes every peer. One that does not permit RDMA writes rejects
            /// the first probe, and both ends of the connection fail.
            ///
            /// Probes are posted by waits, blocking or in tasks, and by the driver of a
            /// [`Hub`](crate::owned::Hub). A loop that only calls `poll` posts none: see
            /// [`Endpoint::probe`](crate::owned::Endpoint::probe). A hub probes each connection once
            /// in an interval, idle or not.
            ///
            /// Probes need a free entry of the SQ and of the CQ: see
            /// [`Endpoint::probe`](crate::owned::Endpoint::probe).
            ///
            /// On iWARP, probes are reads. The connection fails after 3 intervals without an
            /// answer, if no send is outstanding.
            ///
            /// [`Address::remote_write`]: crate::Address::remote_write
            pub fn keepalive(mut self, interval: impl Into<Option<std::time::Duration>>) -> Self {
                self.$($connection).+.keepalive = interval.into().into();
                self
            }

            /// Index into the port's P_Key table.
            pub fn pkey_index(mut self, index: u16) -> Self {
                self.$($connection).+.attr.pkey_index = index;
                self
            }
        }
    };
}
pub(super) use connection_setters;

connection_setters!(EndpointOptions, connection);

impl Default for EndpointOptions {
    fn default() -> Self {
        Self {
            connection: ConnectionOptions::new(Access::REMOTE_READ | Access::REMOTE_WRITE),
            sends: 16,
            recvs: 16,
            inline: 0,
            max_sge: 1,
            signal_every: None,
            spin: None,
        }
    }
}

/// A QP with its CQ, and the limits of its operations.
pub(super) struct QueueParts<P: Provider, T: Transport> {
    pub(super) qp: Qp<T, P>,
    pub(super) cq: Cq<P>,
    pub(super) channel: CompChannel,
    pub(super) sends: u32,
    pub(super) recvs: u32,
    /// Maximum of the buffers of an operation.
    pub(super) max_sge: u32,
    pub(super) signal_every: u32,
    pub(super) spin: Spin,
    pub(super) keepalive: Policy,
    /// Whether the SQ and the CQ have an entry for a probe.
    pub(super) probes: bool,
    /// The memory of probes, on iWARP.
    pub(super) probe_memory: Option<ProbeMemory>,
}

impl EndpointOptions {
    /// Maximum of outstanding sends, writes, reads and atomics (`max_send_wr`).
    #[doc(alias = "max_send_wr")]
    pub fn sends(mut self, sends: u32) -> Self {
        self.sends = sends;
        self
    }

    /// Maximum of posted receives (`max_recv_wr`).
    #[doc(alias = "max_recv_wr")]
    pub fn recvs(mut self, recvs: u32) -> Self {
        self.recvs = recvs;
        self
    }

    /// Maximum of an inline send or write, in bytes. A device may grant more, but not every device
    /// does: longer inline data is rejected on some.
    #[doc(alias = "max_inline_data")]
    pub fn inline(mut self, bytes: u32) -> Self {
        self.inline = bytes;
        self
    }

    /// Maximum of the buffers of an operation (`max_send_sge`, `max_recv_sge`), 1 to 8; see
    /// [`Op::send_parts`](super::Op::send_parts). Each buffer counts as an operation of `sends` or `recvs`.
    #[doc(alias = "max_send_sge")]
    #[doc(alias = "max_recv_sge")]
    pub fn max_sge(mut self, buffers: u32) -> Self {
        self.max_sge = buffers;
        self
    }

    /// Every `signal_every`-th operation of a run is signalled, even if it is
    /// [unsignalled](super::Op::unsignaled). 1 to `sends`.
    #[doc(alias = "sq_sig_all")]
    pub fn signal_every(mut self, operations: u32) -> Self {
        self.signal_every = Some(operations);
        self
    }

    /// Remote operations that the peer may execute, on memory that allows them.
    #[doc(alias = "qp_access_flags")]
    pub fn access(mut self, access: Access) -> Self {
        self.connection.attr.access = access;
        self
    }

    /// How long a wait polls before it sleeps.
    pub fn spin(mut self, spin: Spin) -> Self {
        self.spin = Some(spin);
        self
    }

    /// Creates a QP in RESET with its CQ, after it has checked the options. Returns them with the
    /// GID index.
    pub(super) fn queues<T: Transport, P: Provider>(
        &self,
        verb: &'static str,
        pd: &Pd<P>,
        has_probes: bool,
    ) -> Result<(QueueParts<P, T>, ConnectAttr)> {
        let context = pd.context();
        let signal_every = self.check_signal_every(verb)?;
        let attr = self.check(verb, context)?;
        let channel = context.create_comp_channel()?;
        let limits = context.limits();
        let probes = has_probes && self.has_room_for_a_probe(limits.max_qp_wr, limits.max_cqe);
        let entries = self.sends + self.recvs + u32::from(probes);
        let cq = context.create_cq(&CqInit { channel: Some(&channel), ..CqInit::new(entries) })?;
        let cap = QpCap {
            max_send_wr: self.sends + u32::from(probes),
            max_recv_wr: self.recvs,
            max_send_sge: self.max_sge,
            max_recv_sge: self.max_sge,
            max_inline_data: self.inline,
        };
        let qp = pd.create_qp::<T>(&QpInit { cap, ..QpInit::new(&cq, &cq) })?;
        let Self { sends, recvs, max_sge, connection: ConnectionOptions { keepalive, .. }, .. } = *self;
        let spin = self.spin.unwrap_or_default();
        let probe_memory = ProbeMemory::of(pd)?;
        let parts = QueueParts {
            qp,
            cq,
            channel,
            sends,
            recvs,
            max_sge,
            signal_every,
            spin,
            keepalive,
            probes,
            probe_memory,
        };
        Ok((parts, attr))
    }

    /// Whether the SQ and the CQ have an entry beside those of the depths, which are within the limits.
    fn has_room_for_a_probe(&self, max_qp_wr: u32, max_cqe: u32) -> bool {
        self.sends < max_qp_wr && self.sends + self.recvs < max_cqe
    }

    pub(super) fn check_max_sge(&self, verb: &'static str) -> Result<()> {
        if !(1..=MAX_PARTS as u32).contains(&self.max_sge) {
            let reason = format!("max_sge is {}: it must be from 1 to {MAX_PARTS}", self.max_sge);
            return Err(Error::invalid(verb, reason));
        }
        Ok(())
    }

    /// Refuses options that the connections of a hub do not have.
    pub(super) fn check_for_hub(&self, verb: &'static str) -> Result<()> {
        self.check_max_sge(verb)?;
        let reason = if self.signal_every.is_some() {
            "signal_every: every operation of a hub is signalled"
        } else if self.spin.is_some() {
            "spin: the waits of a hub have one policy, that of `Hub::with_spin`"
        } else {
            return Ok(());
        };
        Err(Error::invalid(verb, reason))
    }

    /// Which connections are probed.
    pub(super) fn keepalive_policy(&self) -> Policy {
        self.connection.keepalive
    }

    /// How long peers are resolved.
    pub(super) fn resolve(&self) -> ResolveTimeout {
        self.connection.resolve
    }

    /// The depths of both directions, and the maxima of inline data and of buffers.
    pub(super) fn capacity(&self) -> [u32; 4] {
        [self.sends, self.recvs, self.inline, self.max_sge]
    }

    /// Checks the options against the device and its port. Returns them with the GID index.
    pub(super) fn check<P: Provider>(&self, verb: &'static str, context: &Context<P>) -> Result<ConnectAttr> {
        self.check_depths(verb, context)?;
        self.connection.check(verb, context)
    }

    /// The address of a QP with these options. `offered` is that of the QP without them.
    pub(super) fn address(&self, offered: Address) -> Address {
        // The granted depth may be larger. The endpoint keeps to what was asked for.
        Address { recvs: self.recvs, ..self.connection.address(offered) }
    }

    fn check_depths<P: Provider>(&self, verb: &'static str, context: &Context<P>) -> Result<()> {
        let limits = context.limits();
        for (limit, depth) in [(Limit::Sends, self.sends), (Limit::Recvs, self.recvs)] {
            if depth == 0 {
                return Err(Error::invalid(verb, format!("{limit}: must be at least 1")));
            }
            Error::check_limit(verb, limit, depth.into(), limits.max_qp_wr.into())?;
        }
        let entries = u64::from(self.sends) + u64::from(self.recvs);
        Error::check_limit(verb, Limit::SendsAndRecvs, entries, limits.max_cqe.into())
    }

    /// Returns the longest run of unsignalled operations, plus 1.
    fn check_signal_every(&self, verb: &'static str) -> Result<u32> {
        let signal_every = self.signal_every.unwrap_or((self.sends / 4).max(1));
        if signal_every == 0 {
            return Err(Error::invalid(verb, "signal_every: must be at least 1"));
        }
        Error::check_limit(verb, Limit::SignalEvery, signal_every.into(), self.sends.max(1).into())?;
        Ok(signal_every)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probe_needs_an_entry_of_the_sq_and_of_the_cq_beside_the_depths() {
        let options = EndpointOptions::default().sends(8).recvs(8);
        for (max_qp_wr, max_cqe, room) in [(9, 17, true), (8, 17, false), (9, 16, false)] {
            assert_eq!(options.has_room_for_a_probe(max_qp_wr, max_cqe), room, "{max_qp_wr} {max_cqe}");
        }
    }
}
