//! Multicast groups of UD QPs, and membership of the IP group on RoCE.

use std::net::Ipv6Addr;
use std::os::fd::OwnedFd;

use bareverbs_provider::command;
use bareverbs_provider::traits::Provider;
use bareverbs_uapi::uverbs::types::QpType;
use bareverbs_uapi::verbs_values::{LinkLayer, QpAttrMask};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with, sockopt};

use super::QpCore;
use crate::device::FoundBy;
use crate::error::{Error, Result};
use crate::gid::{Gid, GidEntry};
use crate::values::PortNum;

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

impl<P: Provider> QpCore<P> {
    /// As [`Qp::attach_mcast`](crate::qp::Qp::attach_mcast).
    ///
    /// # Errors
    /// As for [`Qp::attach_mcast`](crate::qp::Qp::attach_mcast).
    pub fn attach_mcast(&mut self, group: Gid) -> Result<()> {
        self.attach(group, 0, |qp| {
            let Some(port) = qp.roce_port()? else { return Ok(None) };
            let own = qp.pd.context().default_gid(port)?;
            join_via(group, &own).map(Some)
        })
    }

    /// As [`Qp::attach_mcast_via`](crate::qp::Qp::attach_mcast_via).
    ///
    /// # Errors
    /// As for [`Qp::attach_mcast_via`](crate::qp::Qp::attach_mcast_via).
    pub fn attach_mcast_via(&mut self, group: Gid, own: &GidEntry) -> Result<()> {
        self.attach(group, 0, |_| join_via(group, own).map(Some))
    }

    /// As [`Qp::attach_mcast_without_join`](crate::qp::Qp::attach_mcast_without_join).
    ///
    /// # Errors
    /// As for [`Qp::attach_mcast_without_join`](crate::qp::Qp::attach_mcast_without_join).
    pub fn attach_mcast_without_join(&mut self, group: Gid) -> Result<()> {
        self.attach(group, 0, |_| Ok(None))
    }

    /// As [`Qp::attach_mcast_with_lid`](crate::qp::Qp::attach_mcast_with_lid).
    ///
    /// # Errors
    /// As for [`Qp::attach_mcast_with_lid`](crate::qp::Qp::attach_mcast_with_lid).
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
            self.kernel.query(QpAttrMask::STATE | QpAttrMask::PORT)?.port_num
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
        // A soft device receives the group's packets without another socket.
        let is_soft = self.pd.context().device().found_by() == FoundBy::Soft;
        // Closed if the kernel rejects the command below.
        let membership = if is_soft { None } else { join(self)? };
        command::attach_mcast(self.pd.context().file(), self.handle(), group.0, lid).map_err(|refused| {
            Error::kernel(VERB, format!("QP {:#x}, {group}", self.qp_num()), refused).or_hint(|errno| {
                match errno {
                    Errno::NOMEM => {
                        Some("the device may have no free multicast group or member entry".to_owned())
                    }
                    Errno::INVAL if self.qp_type() != QpType::UD => {
                        Some("only UD QPs can be attached to multicast groups".to_owned())
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

    /// Whether the QP is attached to multicast groups. Its destruction detaches it from them.
    #[must_use]
    pub fn has_mcast_groups(&self) -> bool {
        !self.groups.is_empty()
    }

    /// As [`Qp::detach_mcast`](crate::qp::Qp::detach_mcast).
    ///
    /// # Errors
    /// As for [`Qp::detach_mcast`](crate::qp::Qp::detach_mcast).
    pub fn detach_mcast(&mut self, group: Gid) -> Result<()> {
        const VERB: &str = "detach_mcast";
        let Some(place) = self.groups.iter().position(|joined| joined.group == group) else {
            let reason = format!("QP {:#x} is not attached to group {group}", self.qp_num());
            return Err(Error::invalid(VERB, reason));
        };
        // SAFETY: `self` owns the QP.
        unsafe {
            command::detach_mcast(self.pd.context().file(), self.handle(), group.0, self.groups[place].lid)
        }
        .map_err(|refused| Error::kernel(VERB, format!("QP {:#x}, {group}", self.qp_num()), refused))?;
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
    use crate::qp::Ud;
    use crate::testing::{Plain, succeed_ioctls};
    use crate::values::GidIndex;

    #[test]
    fn group_is_attached_once_for_each_lid() {
        let plain = Plain::default();
        let mut qp = plain.queue_pair_of::<Ud>(&plain.domain());
        succeed_ioctls();
        let group = Gid::from(Ipv4Addr::new(239, 1, 2, 3));
        for lid in [0, 0xbfff, 0xffff] {
            let refused = qp.attach_mcast_with_lid(group, lid).unwrap_err();
            assert!(matches!(refused, Error::Invalid { verb: VERB, .. }), "{lid:#x}: {refused}");
        }
        for lid in [0xc000, 0xfffe, 0xc000] {
            qp.attach_mcast_with_lid(group, lid).unwrap();
        }
        assert!(qp.core.has_mcast_groups());
        qp.detach_mcast(group).unwrap();
        qp.detach_mcast(group).unwrap();
        assert!(!qp.core.has_mcast_groups());
        let refused = qp.detach_mcast(group).unwrap_err().to_string();
        assert!(refused.contains("is not attached to group"), "{refused}");
    }

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
