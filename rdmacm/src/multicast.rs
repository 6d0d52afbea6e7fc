//! Multicast groups.

use std::net::SocketAddr;

use bareverbs::Provider;
use bareverbs::qp::{Qp, QpType, Ud};
use bareverbs_uapi::rdma_cm::JoinFlags;
use bareverbs_uapi::rdma_cm::structs::{DestroyIdReq, JoinIpMcastReq, JoinMcastReq};

use crate::addr::Addr;
use crate::event::UdPeer;
use crate::id::CmId;
use crate::key::{self, Key, KeyInfo};
use crate::{Error, Result, command};

/// A membership of an identifier in a group.
#[derive(Debug)]
pub(crate) struct Membership {
    pub(crate) key: Key,
    number: u32,
}

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
    /// ```no_run
    /// use bareverbs_rdmacm::{CmId, JoinMode};
    /// use std::net::Ipv4Addr;
    ///
    /// fn join(id: &CmId) -> bareverbs_rdmacm::Result<()> {
    ///     let membership = id.join_multicast((Ipv4Addr::new(239, 1, 2, 3), 0), JoinMode::Full)?;
    ///     // The event `MulticastJoin` of this key has the address of the group.
    ///     id.leave_multicast(membership)
    /// }
    /// ```
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the identifier has a connected QP; the IP address is neither a multicast
    ///   address nor unspecified. The kernel would join a group that nothing else uses.
    /// - [`Error::Command`] with `EINVAL`: it is not bound to a device. With errno 524: an IPv6
    ///   group on RoCE v2.
    #[doc(alias = "rdma_join_multicast_ex")]
    #[doc(alias = "rdma_cm_join_mc_attr_ex")]
    pub fn join_multicast(&self, group: impl Into<Addr>, mode: JoinMode) -> Result<Key> {
        let group = group.into();
        check_group("join_multicast", group.ip())?;
        let (addr, addr_size) = group.to_kernel();
        let join_flags = match mode {
            JoinMode::Full => JoinFlags::FULL_MEMBER,
            JoinMode::SendOnly => JoinFlags::SEND_ONLY_FULL_MEMBER,
        };
        self.join("join_multicast", |uid| {
            let request = JoinMcastReq {
                uid,
                id: self.number(),
                addr_size,
                join_flags,
                addr,
                ..JoinMcastReq::zeroed()
            };
            command::join_mcast(self.file(), request).map(|joined| joined.id)
        })
    }

    /// Joins the group of an IP address as a full member, by the kernel's older command. Otherwise
    /// as [`CmId::join_multicast`].
    ///
    /// # Errors
    /// As for [`CmId::join_multicast`].
    #[doc(alias = "rdma_join_multicast")]
    pub fn join_ip_multicast(&self, group: SocketAddr) -> Result<Key> {
        check_group("join_ip_multicast", Some(group))?;
        let addr = Addr::to_ip_kernel(group);
        self.join("join_ip_multicast", |uid| {
            let request = JoinIpMcastReq { uid, id: self.number(), addr, ..JoinIpMcastReq::zeroed() };
            command::join_ip_mcast(self.file(), request).map(|joined| joined.id)
        })
    }

    fn join(&self, verb: &'static str, join: impl FnOnce(u64) -> Result<u32>) -> Result<Key> {
        if self.qp_type() != QpType::UD {
            return Err(Error::invalid(verb, "only identifiers with datagram QPs join groups"));
        }
        let key = key::create(KeyInfo { port_space: self.port_space(), qp_type: QpType::UD });
        match join(key.get()) {
            Ok(number) => {
                self.memberships().push(Membership { key, number });
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

/// Rejects unicast addresses. The kernel makes a group of their low bits.
fn check_group(verb: &'static str, group: Option<SocketAddr>) -> Result<()> {
    match group.map(|group| group.ip()) {
        Some(ip) if !ip.is_multicast() && !ip.is_unspecified() => Err(Error::invalid(
            verb,
            format!("{ip} is not a multicast address: use one of 224.0.0.0/4 or ff00::/8"),
        )),
        _ => Ok(()),
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
