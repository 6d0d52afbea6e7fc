//! Connecting an RC or UC QP to the address of its peer.

use bareverbs_provider::traits::Provider;
use bareverbs_uapi::verbs_values::QpState;

use super::{Connected, InitAttr, Qp, Rc, RtrAttr, RtsAttr, Uc, UcRtrAttr};
use crate::ah::AhAttr;
use crate::error::{Error, Feature, Result};
use crate::values::{AckTimeout, GidIndex, MinRnrTimer, RetryCount, RnrRetry};
use crate::{Access, Address, PortNum};

/// Most reads and atomics at a time that [`Qp::address`] offers.
const MAX_RD_ATOMIC: u32 = 16;

/// Attributes of a connection that an end chooses for itself; see [`Qp::connect`]. UC has no
/// acknowledgements, and ignores the timers and retry counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectAttr {
    /// Local port.
    pub port: PortNum,
    /// Index of the local GID in the port's GID table.
    pub gid_index: GidIndex,
    /// Index into the port's P_Key table.
    pub pkey_index: u16,
    /// Remote operations that the QP allows: RDMA reads, writes and atomics.
    pub access: Access,
    /// Service level, 0 to 15; on RoCE the VLAN priority, 0 to 7. mlx5 uses the low 3 bits.
    pub sl: u8,
    /// Traffic class; TOS (DSCP and ECN) of RoCE v2 packets.
    pub traffic_class: u8,
    /// Hop limit: the number of routers that a packet may pass, plus 1. On RoCE the kernel replaces
    /// it by the hop limit of the IP route.
    pub hop_limit: u8,
    /// RNR NAK timer, as [`RtrAttr::min_rnr_timer`].
    pub min_rnr_timer: MinRnrTimer,
    /// Local ACK timeout, as [`RtsAttr::timeout`].
    pub timeout: AckTimeout,
    /// Retries after a timeout, as [`RtsAttr::retry_cnt`].
    pub retry_cnt: RetryCount,
    /// RNR retries, as [`RtsAttr::rnr_retry`].
    pub rnr_retry: RnrRetry,
}

impl ConnectAttr {
    /// The port and the GID, no remote access, the defaults of [`RtrAttr::new`] and [`RtsAttr`].
    #[must_use]
    pub fn new(port: impl Into<PortNum>, gid_index: impl Into<GidIndex>) -> Self {
        let RtsAttr { timeout, retry_cnt, rnr_retry, .. } = RtsAttr::default();
        let RtrAttr { min_rnr_timer, .. } = RtrAttr::new(AhAttr::default(), 0);
        Self {
            port: port.into(),
            gid_index: gid_index.into(),
            pkey_index: 0,
            access: Access::empty(),
            sl: 0,
            traffic_class: 0,
            hop_limit: 64,
            min_rnr_timer,
            timeout,
            retry_cnt,
            rnr_retry,
        }
    }

    /// The address vector of the peer.
    fn towards(&self, remote: &Address) -> AhAttr {
        let mut address =
            AhAttr { dlid: remote.lid, sl: self.sl, ..AhAttr::global(self.port, remote.gid, self.gid_index) };
        if let Some(grh) = &mut address.grh {
            (grh.traffic_class, grh.hop_limit) = (self.traffic_class, self.hop_limit);
        }
        address
    }

    /// The attributes of RESET → INIT.
    fn init(&self) -> InitAttr {
        InitAttr { port: self.port, pkey_index: self.pkey_index, access: self.access }
    }
}

impl<T: Connected, P: Provider> Qp<T, P> {
    /// The address of the QP at a port, for its peer. It offers the port's active MTU, and up to 16
    /// reads and atomics at a time. A program may offer less before it sends the address.
    ///
    /// # Errors
    /// [`Error::NoPort`], [`Error::NoGid`],
    /// [`Error::Kernel`].
    pub fn address(&self, port: impl Into<PortNum>, gid_index: impl Into<GidIndex>) -> Result<Address> {
        let (context, port) = (self.pd().context(), port.into());
        let attr = context.query_port(port)?;
        let gid = context.gid(port, gid_index)?.gid;
        let limits = context.limits();
        Ok(Address {
            lid: attr.lid,
            mtu: attr.active_mtu,
            rd_atomic: limits.max_qp_rd_atom.min(limits.max_qp_init_rd_atom).min(MAX_RD_ATOMIC) as u8,
            recvs: self.cap().max_recv_wr,
            max_message: attr.max_msg_sz,
            ..Address::new(gid, self.qp_num())
        })
    }
}

impl<P: Provider> Qp<Rc, P> {
    /// Connects the QP, which is in RESET or INIT, to the QP at `remote`: RESET → INIT → RTR → RTS.
    /// The peer calls it too, with the addresses exchanged.
    ///
    /// The connection uses the smaller MTU of the two addresses, and the smaller number of reads
    /// and atomics. `local` is what the peer was sent.
    ///
    /// ```
    /// use bareverbs::cq::CqInit;
    /// use bareverbs::qp::{ConnectAttr, QpInit, Rc};
    /// use bareverbs::{Access, Address, Device};
    ///
    /// # fn exchange(own: &Address) -> Result<Address, bareverbs::error::ParseAddressError> { own.to_string().parse() }
    /// let context = Device::find("soft0")?.open()?;
    /// let cq = context.create_cq(&CqInit::new(32))?;
    /// let mut qp = context.alloc_pd()?.create_qp::<Rc>(&QpInit::new(&cq, &cq))?;
    /// let gid_index = context.default_gid(1)?.index;
    /// let local = qp.address(1, gid_index)?;
    /// // Send `local` over a socket, and receive the peer's address.
    /// let remote = exchange(&local).expect("an address");
    /// let access = Access::REMOTE_READ | Access::REMOTE_WRITE;
    /// qp.connect(&local, &remote, &ConnectAttr { access, ..ConnectAttr::new(1, gid_index) })?;
    /// # Ok::<(), bareverbs::Error>(())
    /// ```
    ///
    /// On iWARP, the kernel's connection manager connects QPs: `remote` is an address that
    /// `bareverbs-rdmacm` passes on, and no command follows.
    ///
    /// # Errors
    /// - As for [`Qp::init`], [`Qp::ready_to_receive`] and [`Qp::ready_to_send`]. After an error the
    ///   QP is in the state that it reached; [`Qp::reset`] makes it ready for another attempt.
    /// - [`Error::Unsupported`]: the device is one of iWARP, and the connection
    ///   not one of its connection manager.
    #[doc(alias = "ibv_modify_qp")]
    pub fn connect(&mut self, local: &Address, remote: &Address, attr: &ConnectAttr) -> Result<()> {
        let is_iwarp = self.pd().context().capabilities().iwarp;
        if is_iwarp && !remote.over_cm {
            return Err(Error::unsupported("Qp::connect", Feature::ConnectByAddress));
        }
        if self.state() == QpState::RESET {
            self.init(&attr.init())?;
        }
        if is_iwarp {
            return self.set_cm_state(QpState::RTS);
        }
        let rd_atomic = local.rd_atomic.min(remote.rd_atomic);
        self.ready_to_receive(&RtrAttr {
            address: attr.towards(remote),
            dest_qp_num: remote.qp_num,
            rq_psn: remote.psn,
            path_mtu: local.mtu.min(remote.mtu),
            max_dest_rd_atomic: rd_atomic,
            min_rnr_timer: attr.min_rnr_timer,
        })?;
        self.ready_to_send(&RtsAttr {
            sq_psn: local.psn,
            timeout: attr.timeout,
            retry_cnt: attr.retry_cnt,
            rnr_retry: attr.rnr_retry,
            max_rd_atomic: rd_atomic,
        })
    }
}

impl<P: Provider> Qp<Uc, P> {
    /// Connects the QP, which is in RESET or INIT, to the QP at `remote`: RESET → INIT → RTR → RTS.
    /// The peer calls it too, with the addresses exchanged.
    ///
    /// The connection uses the smaller MTU of the two addresses. `local` is what the peer was sent.
    ///
    /// ```
    /// # use bareverbs::qp::{ConnectAttr, Qp, Uc};
    /// # use bareverbs::{Address, Result};
    /// # fn example(qp: &mut Qp<Uc>, local: &Address, remote: &Address) -> Result<()> {
    /// let gid_index = qp.pd().context().default_gid(1)?.index;
    /// qp.connect(local, remote, &ConnectAttr::new(1, gid_index))
    /// # }
    /// # let pd = bareverbs_test_support::example::pd()?;
    /// # let cq = pd.context().create_cq(&bareverbs::cq::CqInit::new(32))?;
    /// # let mut qp = pd.create_qp::<Uc>(&bareverbs::qp::QpInit::new(&cq, &cq))?;
    /// # let address = qp.address(1, pd.context().default_gid(1)?.index)?;
    /// # example(&mut qp, &address, &address)?;
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    ///
    /// # Errors
    /// As for [`Qp::init`], [`Qp::ready_to_receive`] and [`Qp::ready_to_send`]. After an error the
    /// QP is in the state that it reached; [`Qp::reset`] makes it ready for another attempt.
    #[doc(alias = "ibv_modify_qp")]
    pub fn connect(&mut self, local: &Address, remote: &Address, attr: &ConnectAttr) -> Result<()> {
        if self.state() == QpState::RESET {
            self.init(&attr.init())?;
        }
        self.ready_to_receive(&UcRtrAttr {
            address: attr.towards(remote),
            dest_qp_num: remote.qp_num,
            rq_psn: remote.psn,
            path_mtu: local.mtu.min(remote.mtu),
        })?;
        self.ready_to_send(local.psn)
    }
}
