//! Multicast groups of UD QPs.

use bareverbs_provider::traits::Provider;

use super::{Qp, Ud};
#[cfg(doc)]
use crate::Error;
use crate::error::Result;
use crate::gid::{Gid, GidEntry};

impl<P: Provider> Qp<Ud, P> {
    /// Attaches the QP to a multicast group: the QP receives datagrams to the group that carry its
    /// Q_Key. A second attach to the same group does nothing. Dropping the QP detaches it.
    ///
    /// On InfiniBand it attaches the QP only: the port must be a full member of the group at the
    /// subnet administrator (`rdma_join_multicast`). A group also has a LID:
    /// [`Qp::attach_mcast_with_lid`].
    ///
    /// # RoCE
    ///
    /// The group's GID is an IPv6 multicast address, or a mapped IPv4 one. Until it is detached,
    /// the QP is also a member of the IP group, by a socket of its own: the host's network stack
    /// and switches drop packets to other groups. The network interface is that of the port's
    /// [default GID](crate::Context::default_gid), or of the GID that [`Qp::attach_mcast_via`]
    /// names.
    ///
    /// - Loopback: members on the host of the sender receive its datagrams, too.
    /// - Routers: a sender's [`hop_limit`](crate::ah::GlobalRoute::hop_limit) is the TTL of its
    ///   packets. It is the number of routers that they may pass, plus 1.
    ///
    /// ```
    /// # fn join(pd: &bareverbs::Pd, qp: &mut bareverbs::qp::Qp<bareverbs::qp::Ud>) -> Result<(), Box<dyn std::error::Error>> {
    /// use bareverbs::Gid;
    /// use bareverbs::ah::AhAttr;
    /// use bareverbs::qp::{Datagram, MULTICAST_QP, SendFlags};
    ///
    /// let group: Gid = "239.1.2.3".parse::<std::net::Ipv4Addr>()?.into();
    /// qp.attach_mcast(group)?;
    /// // A sender to the group need not be attached to it.
    /// let own = pd.context().default_gid(1)?;
    /// let ah = pd.create_ah(&AhAttr::global(1, group, own.index))?;
    /// let mut batch = qp.start_send();
    /// batch.send_to_inline(1, Datagram::new(&ah, MULTICAST_QP, 0x1234), b"to all", SendFlags::SIGNALED)?;
    /// batch.ring()?;
    /// # Ok(())
    /// # }
    /// # let pd = bareverbs_test_support::example::pd()?;
    /// # let cq = pd.context().create_cq(&bareverbs::cq::CqInit::new(32))?;
    /// # let cap = bareverbs::qp::QpCap { max_inline_data: 64, ..Default::default() };
    /// # let init = bareverbs::qp::QpInit { cap, ..bareverbs::qp::QpInit::new(&cq, &cq) };
    /// # let mut qp = pd.create_qp::<bareverbs::qp::Ud>(&init)?;
    /// # qp.bring_up(&bareverbs::qp::UdInitAttr::new(1, 0x1234), &(), &0)?;
    /// # join(&pd, &mut qp).expect("a group");
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    ///
    /// # Errors
    /// The QP is not attached then.
    ///
    /// - [`Error::Invalid`]: `group` is not a multicast GID.
    /// - [`Error::Invalid`]: the default GID has no network interface. Or the device has several
    ///   ports, and the QP is in RESET.
    /// - [`Error::NoGid`]: the RoCE port has no GID.
    /// - [`Error::System`]: the IP group can't be joined, for instance because the network
    ///   interface is in another network namespace. [`Qp::attach_mcast_without_join`] needs no
    ///   membership.
    /// - [`Error::Kernel`]: the kernel rejects the command, for instance above the device's number
    ///   of groups.
    #[doc(alias = "ibv_attach_mcast")]
    pub fn attach_mcast(&mut self, group: Gid) -> Result<()> {
        self.core.attach_mcast(group)
    }

    /// Attaches as [`Qp::attach_mcast`] does, and joins the IP group on the network interface of
    /// `own`, such as that of a VLAN. RoCE only.
    ///
    /// # Errors
    /// As for [`Qp::attach_mcast`].
    #[doc(alias = "ibv_attach_mcast")]
    pub fn attach_mcast_via(&mut self, group: Gid, own: &GidEntry) -> Result<()> {
        self.core.attach_mcast_via(group, own)
    }

    /// Attaches without joining the IP group. On Soft-RoCE, the QP receives nothing until
    /// another socket of the host joins the group.
    ///
    /// # Errors
    /// As for [`Qp::attach_mcast`].
    #[doc(alias = "ibv_attach_mcast")]
    pub fn attach_mcast_without_join(&mut self, group: Gid) -> Result<()> {
        self.core.attach_mcast_without_join(group)
    }

    /// Attaches the QP to a multicast group of an InfiniBand subnet, named by `group` and its LID.
    /// The subnet administrator assigns the LID to members. Otherwise as [`Qp::attach_mcast`]. A
    /// sender to the group also names the LID, as [`AhAttr::dlid`](crate::ah::AhAttr::dlid).
    ///
    /// # Errors
    /// As for [`Qp::attach_mcast`]. [`Error::Invalid`] also if the LID is not a multicast LID
    /// (0xc000 to 0xfffe).
    #[doc(alias = "ibv_attach_mcast")]
    pub fn attach_mcast_with_lid(&mut self, group: Gid, lid: u16) -> Result<()> {
        self.core.attach_mcast_with_lid(group, lid)
    }

    /// Detaches the QP from a multicast group, and ends its membership of the IP group.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the QP is not attached to the group.
    /// - [`Error::Kernel`]: the kernel rejects the command.
    #[doc(alias = "ibv_detach_mcast")]
    pub fn detach_mcast(&mut self, group: Gid) -> Result<()> {
        self.core.detach_mcast(group)
    }
}
