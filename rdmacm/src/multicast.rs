//! Multicast groups.

use bareverbs::Provider;
use bareverbs::qp::{Qp, QpType, Ud};
use bareverbs_uapi::rdma_cm::JoinFlags;
use bareverbs_uapi::rdma_cm::structs::{DestroyIdReq, JoinMcastReq};

use crate::addr::Addr;
use crate::id::{CmId, Membership};
use crate::key::{self, Key, KeyInfo};
use crate::param::UdPeer;
use crate::{Error, Result, command};

/// How a member uses a group.
#[doc(alias = "rdma_cm_mc_join_flags")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinMode {
    /// It sends and receives.
    #[doc(alias = "RDMA_MC_JOIN_FLAG_FULLMEMBER")]
    Full,
    /// It only sends.
    #[doc(alias = "RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER")]
    SendOnly,
}

impl CmId {
    /// Joins a multicast group. The identifier is bound to a device and has datagram QPs.
    ///
    /// [`MulticastJoin`](crate::event::EventKind::MulticastJoin) or
    /// [`MulticastError`](crate::event::EventKind::MulticastError) follows, under the returned key.
    /// To receive, attach the QP with [`UdPeer::attach`].
    ///
    /// [`Datagrams`](bareverbs::Datagrams) with the Q_Key of the group receive by their own
    /// `join` (InfiniBand: `join_with_lid`), and send to their `destination_with_path`.
    ///
    /// On RoCE a full member of an IPv4 group also joins it on the network interface. There are no
    /// IPv6 groups on RoCE v2.
    ///
    /// ```
    /// use bareverbs_rdmacm::{CmId, JoinMode};
    /// use std::net::Ipv4Addr;
    ///
    /// fn join(id: &CmId) -> bareverbs_rdmacm::Result<()> {
    ///     let membership = id.join_multicast((Ipv4Addr::new(239, 1, 2, 3), 0), JoinMode::Full)?;
    ///     // The event `MulticastJoin` of this key has the address of the group.
    ///     id.leave_multicast(membership)
    /// }
    /// # let device = bareverbs_test_support::example::ip_device().unwrap();
    /// # let channel = bareverbs_rdmacm::EventChannel::new().unwrap();
    /// # let id = CmId::new(&channel, bareverbs_rdmacm::PortSpace::Udp).unwrap();
    /// # id.bind_addr((device.address(), 0)).unwrap();
    /// # join(&id).unwrap();
    /// ```
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the identifier has a connected QP; the IP address is neither a multicast
    ///   address nor unspecified. The kernel would join a group that nothing else uses.
    /// - [`Error::Command`] with `EINVAL`: it is not bound to a device. With errno 524: an IPv6
    ///   group on RoCE v2.
    #[doc(alias = "rdma_join_multicast")]
    #[doc(alias = "rdma_join_multicast_ex")]
    #[doc(alias = "join_ip_multicast")]
    #[doc(alias = "rdma_cm_join_mc_attr_ex")]
    pub fn join_multicast(&self, group: impl Into<Addr>, mode: JoinMode) -> Result<Key> {
        let group = group.into();
        // The kernel makes a group of the low bits of a unicast address.
        if let Some(ip) = group.ip().map(|addr| addr.ip())
            && !ip.is_multicast()
            && !ip.is_unspecified()
        {
            let reason = format!("{ip} is not a multicast address: use one of 224.0.0.0/4 or ff00::/8");
            return Err(Error::invalid("join_multicast", reason));
        }
        if self.qp_type() != QpType::UD {
            let reason = "only identifiers with datagram QPs join groups";
            return Err(Error::invalid("join_multicast", reason));
        }
        let (addr, addr_size) = group.to_kernel();
        let join_flags = match mode {
            JoinMode::Full => JoinFlags::FULL_MEMBER,
            JoinMode::SendOnly => JoinFlags::SEND_ONLY_FULL_MEMBER,
        };
        let key = key::create(KeyInfo { port_space: self.port_space(), qp_type: QpType::UD });
        let (id, uid) = (self.number(), key.get());
        let request = JoinMcastReq { uid, id, addr_size, join_flags, addr, ..JoinMcastReq::zeroed() };
        match command::join_mcast(self.file(), request) {
            Ok(joined) => {
                self.memberships().push(Membership { key, number: joined.id });
                Ok(key)
            }
            Err(error) => {
                key::retire(key);
                Err(error)
            }
        }
    }

    /// Leaves a group. No event follows. Drop of the identifier leaves all of its groups.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the key is not that of a membership of this identifier.
    /// - [`Error::Command`]: the kernel refused it.
    #[doc(alias = "rdma_leave_multicast")]
    pub fn leave_multicast(&self, membership: Key) -> Result<()> {
        let mut memberships = self.memberships();
        let Some(place) = memberships.iter().position(|of| of.key == membership) else {
            let reason = format!("{membership:?} is not a membership of this identifier");
            return Err(Error::invalid("leave_multicast", reason));
        };
        let request = DestroyIdReq { id: memberships[place].number, ..DestroyIdReq::zeroed() };
        command::leave_mcast(self.file(), request)?;
        key::retire(memberships.swap_remove(place).key);
        Ok(())
    }
}

impl UdPeer {
    /// Attaches a QP to the group of [`MulticastJoin`](crate::event::EventKind::MulticastJoin). Drop
    /// of the QP detaches it. A sender needs no attachment.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the address has no GID.
    /// - [`Error::Verbs`]: the GID is not that of a multicast group, or the kernel refused it.
    #[doc(alias = "ibv_attach_mcast")]
    pub fn attach<P: Provider>(&self, qp: &mut Qp<Ud, P>) -> Result<()> {
        let Some(grh) = self.address.grh else {
            return Err(Error::invalid("UdPeer::attach", "the address is not a multicast group"));
        };
        match self.address.dlid {
            0 => qp.attach_mcast_without_join(grh.dgid)?,
            lid => qp.attach_mcast_with_lid(grh.dgid, lid)?,
        }
        Ok(())
    }
}
