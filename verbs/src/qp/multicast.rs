//! Multicast groups of UD QPs, and membership of the IP group on RoCE.

use std::net::Ipv6Addr;
use std::os::fd::OwnedFd;

use bareverbs_provider::command;
use bareverbs_provider::traits::Provider;
use bareverbs_uapi::verbs_values::QpAttrMask;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};

use super::{Qp, Ud};
use crate::device::{GidEntry, LinkLayer};
use crate::{Error, Gid, PortNum, Result};

const VERB: &str = "attach_mcast";

/// A group that a QP is attached to.
pub(super) struct Attachment {
    pub(super) group: Gid,
    /// The group's LID; 0 for none.
    pub(super) lid: u16,
    /// The socket that is a member of the IP group. The kernel leaves the group when it is closed.
    _membership: Option<OwnedFd>,
}

/// Joins the IP group on a network interface.
fn join(group: Gid, interface: u32) -> Result<OwnedFd> {
    let joined = match group.ipv4() {
        Some(group) => open(AddressFamily::INET).and_then(|socket| {
            let any = std::net::Ipv4Addr::UNSPECIFIED;
            sockopt::set_ip_add_membership_with_ifindex(&socket, &group, &any, interface)?;
            Ok(socket)
        }),
        None => open(AddressFamily::INET6).and_then(|socket| {
            sockopt::set_ipv6_add_membership(&socket, &Ipv6Addr::from(group.0), interface)?;
            Ok(socket)
        }),
    };
    joined.map_err(|errno| {
        let what = format!(
            "joining IP group {group} on network interface {interface}; `attach_mcast_without_join` needs no \
             membership"
        );
        Error::system(what, errno)
    })
}

fn open(family: AddressFamily) -> rustix::io::Result<OwnedFd> {
    // It is not bound, so it receives nothing.
    socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
}

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
    /// ```no_run
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
        self.attach(group, 0, |qp| {
            let Some(port) = qp.roce_port()? else { return Ok(None) };
            let own = qp.pd.context().default_gid(port)?;
            join_via(group, &own).map(Some)
        })
    }

    /// Attaches as [`Qp::attach_mcast`] does, and joins the IP group on the network interface of
    /// `own`, such as that of a VLAN. RoCE only.
    ///
    /// # Errors
    /// As for [`Qp::attach_mcast`].
    #[doc(alias = "ibv_attach_mcast")]
    pub fn attach_mcast_via(&mut self, group: Gid, own: &GidEntry) -> Result<()> {
        self.attach(group, 0, |_| join_via(group, own).map(Some))
    }

    /// Attaches without joining the IP group. On Soft-RoCE, the QP receives nothing until
    /// another socket of the host joins the group.
    ///
    /// # Errors
    /// As for [`Qp::attach_mcast`].
    #[doc(alias = "ibv_attach_mcast")]
    pub fn attach_mcast_without_join(&mut self, group: Gid) -> Result<()> {
        self.attach(group, 0, |_| Ok(None))
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
        if !(0xc000..0xffff).contains(&lid) {
            return Err(Error::invalid(VERB, format!("{lid:#x} is not a multicast LID (0xc000 to 0xfffe)")));
        }
        self.attach(group, lid, |_| Ok(None))
    }

    /// The QP's port if its link layer is Ethernet.
    fn roce_port(&self) -> Result<Option<PortNum>> {
        let context = self.pd.context();
        let port = if context.limits().phys_port_cnt == 1 {
            1
        } else {
            let resp = command::query_qp(context.file(), self.handle, QpAttrMask::STATE | QpAttrMask::PORT)
                .map_err(|refused| {
                Error::kernel("query_qp", format!("QP {:#x}", self.qp_num), refused)
            })?;
            resp.port_num
        };
        if port == 0 {
            let reason =
                "the device has several ports, and the QP has none before INIT: move it to INIT first";
            return Err(Error::wrong_state(VERB, reason));
        }
        let port = PortNum(port);
        let link_layer = context.query_port(port)?.link_layer;
        Ok((link_layer == LinkLayer::ETHERNET).then_some(port))
    }

    fn attach(
        &mut self,
        group: Gid,
        lid: u16,
        join: impl FnOnce(&Self) -> Result<Option<OwnedFd>>,
    ) -> Result<()> {
        if !group.is_multicast() {
            return Err(Error::invalid(VERB, format!("{group} is not a multicast GID")));
        }
        if self.groups.iter().any(|joined| (joined.group, joined.lid) == (group, lid)) {
            return Ok(());
        }
        // Closed if the kernel rejects the command below.
        let membership = join(self)?;
        command::attach_mcast(self.pd.context().file(), self.handle, group.0, lid).map_err(|refused| {
            Error::kernel(VERB, format!("QP {:#x}, {group}", self.qp_num), refused).or_hint(|errno| {
                match errno {
                    Errno::NOMEM => {
                        Some("the device may have no free multicast group or member entry".to_owned())
                    }
                    Errno::INVAL if lid == 0 => Some(
                        "InfiniBand requires the LID of the group: use `attach_mcast_with_lid`".to_owned(),
                    ),
                    _ => None,
                }
            })
        })?;
        self.groups.push(Attachment { group, lid, _membership: membership });
        Ok(())
    }

    /// Detaches the QP from a multicast group, and ends its membership of the IP group.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the QP is not attached to the group.
    /// - [`Error::Kernel`]: the kernel rejects the command.
    #[doc(alias = "ibv_detach_mcast")]
    pub fn detach_mcast(&mut self, group: Gid) -> Result<()> {
        const VERB: &str = "detach_mcast";
        let Some(place) = self.groups.iter().position(|joined| joined.group == group) else {
            let reason = format!("QP {:#x} is not attached to group {group}", self.qp_num);
            return Err(Error::invalid(VERB, reason));
        };
        // SAFETY: `self` owns the QP.
        unsafe {
            command::detach_mcast(self.pd.context().file(), self.handle, group.0, self.groups[place].lid)
        }
        .map_err(|refused| Error::kernel(VERB, format!("QP {:#x}, {group}", self.qp_num), refused))?;
        self.groups.swap_remove(place);
        Ok(())
    }
}

fn join_via(group: Gid, own: &GidEntry) -> Result<OwnedFd> {
    if own.netdev_ifindex == 0 {
        let reason = format!(
            "GID {} has no network interface on which the group could be joined: use \
             `attach_mcast_without_join`",
            own.gid
        );
        return Err(Error::invalid(VERB, reason));
    }
    join(group, own.netdev_ifindex)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::device::GidType;
    use crate::values::GidIndex;

    #[test]
    fn membership_ends_with_its_socket() {
        // On the loopback interface.
        let group = Ipv4Addr::new(239, 250, 3, 7);
        let number = format!("{:08X}", u32::from_le_bytes(group.octets()));
        let is_joined = || std::fs::read_to_string("/proc/net/igmp").unwrap().contains(&number);
        let (one, other) = (join(group.into(), 1).unwrap(), join(group.into(), 1).unwrap());
        drop(one);
        assert!(is_joined());
        drop(other);
        assert!(!is_joined());
    }

    #[test]
    fn group_can_not_be_joined_without_an_interface() {
        let group = Gid::from(Ipv4Addr::new(239, 1, 2, 3));
        let own = GidEntry {
            gid: Gid::from(Ipv4Addr::new(10, 1, 0, 1)),
            index: GidIndex(0),
            port: PortNum(1),
            gid_type: GidType::ROCE_V2,
            netdev_ifindex: 0,
        };
        let refused = join_via(group, &own).unwrap_err();
        assert!(matches!(refused, Error::Invalid { verb: VERB, .. }), "{refused}");
        let refused = join_via(group, &GidEntry { netdev_ifindex: i32::MAX as u32, ..own }).unwrap_err();
        assert_eq!(refused.errno(), Some(Errno::NODEV));
        assert!(refused.to_string().contains("attach_mcast_without_join"), "{refused}");
    }
}
