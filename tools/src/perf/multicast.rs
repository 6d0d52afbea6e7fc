//! The multicast group that a side receives from (`-g`). Its address record has the group in place of the
//! port, so the sender needs no option for it.

mod membership;

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use bareverbs::Gid;
use bareverbs::device::{GidEntry, LinkLayer};
use bareverbs::qp::{Qp, Ud};

use self::membership::Membership;
use super::plan::Plan;
use crate::session::path::LocalPort;
use crate::signal::{Interrupted, Stop, Wake};

/// The default group of perftest. On RoCE it needs the GID of an IPv6 address, and Linux sends its packets
/// to no other host, so there are others.
const GROUP: Ipv6Addr = Ipv6Addr::new(0xff01, 0, 2, 0xc985, 0, 0, 0, 0);
const ROCE_GROUP: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 2, 0xc985);
const IPV4_GROUP: Ipv4Addr = Ipv4Addr::new(239, 2, 201, 133);

/// The time in which the switches of InfiniBand learn of a member, as in perftest.
const SETTLE: Duration = Duration::from_millis(50);

/// A group that this side receives from.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) gid: Gid,
    joined: Joined,
}

/// How a port becomes a member.
#[derive(Debug)]
enum Joined {
    /// RoCE: the network interface of the GID joins the IP group.
    Ip(GidEntry),
    Subnet(Box<Membership>),
}

impl Group {
    /// The group of this side, if it receives from one. Rejects `-g` on ports that can't have groups, before
    /// a peer waits.
    pub(crate) fn new(plan: &Plan<'_>, port: &LocalPort) -> Result<Option<Self>> {
        let options = plan.options;
        if !options.mcg {
            return Ok(None);
        }
        let (context, device) = (&port.context, port.context.device().name());
        ensure!(context.query_device()?.max_mcast_grp > 0, "-g: {device} has no multicast groups");
        let (index, own) = port.gid.context("-g needs a GID index (-x), such as 0")?;
        let roce = port.attr.link_layer == LinkLayer::ETHERNET;
        let gid = options.mgid.unwrap_or_else(|| default_group(roce, own, plan.is_client()));
        ensure!(
            gid.ipv4().is_some() == own.ipv4().is_some(),
            "the group {gid} (-M) and the GID {own} are of different families: choose another group, or another \
             GID index (-x)"
        );
        if !plan.responds() {
            return Ok(None);
        }
        let joined = match roce {
            true => Joined::Ip(context.gid(port.number, index)?),
            false => Joined::Subnet(join(plan, port, gid)?.into()),
        };
        Ok(Some(Self { gid, joined }))
    }

    /// The LID of the group; 0 on RoCE.
    pub(crate) fn lid(&self) -> u16 {
        match &self.joined {
            Joined::Ip(_) => 0,
            Joined::Subnet(membership) => membership.lid,
        }
    }

    /// Attaches a queue pair.
    pub(crate) fn attach(&self, qp: &mut Qp<Ud>) -> bareverbs::Result<()> {
        match &self.joined {
            Joined::Ip(own) => qp.attach_mcast_via(self.gid, own),
            Joined::Subnet(membership) => qp.attach_mcast_with_lid(self.gid, membership.lid),
        }
    }
}

/// Makes the port a member of a group of InfiniBand.
fn join(plan: &Plan<'_>, port: &LocalPort, group: Gid) -> Result<Membership> {
    let (_, own) = port.gid.context("the port has no GID")?;
    let pkey = port.context.pkey(port.number, plan.options.pkey_index.unwrap_or(0))?;
    Membership::join(port, own, pkey, group)
}

/// The default group of a side. In latency tests both sides have one.
fn default_group(roce: bool, own: Gid, client: bool) -> Gid {
    let mut group = match (roce, own.ipv4()) {
        (false, _) => Gid::from(GROUP),
        (true, None) => ROCE_GROUP.into(),
        (true, Some(_)) => IPV4_GROUP.into(),
    };
    group.0[15] += u8::from(client);
    group
}

/// The group of the peer, which this side sends to.
#[derive(Debug)]
pub(crate) struct Target {
    /// Switches of InfiniBand forward the messages of members.
    _membership: Option<Membership>,
}

impl Target {
    /// Rejects a peer that this side can't send to: one without a group, and one with the group of this
    /// side, whose queue pair would receive its own messages.
    pub(crate) fn new(
        plan: &Plan<'_>,
        port: &LocalPort,
        own: Option<&Group>,
        peer: Option<Gid>,
        stop: &Stop,
    ) -> Result<Self> {
        let peer = check_peer(own.map(|own| own.gid), peer)?;
        if port.attr.link_layer == LinkLayer::ETHERNET {
            return Ok(Self { _membership: None });
        }
        let membership = join(plan, port, peer)?;
        if stop.sleep(Instant::now() + SETTLE)? == Wake::Stopped {
            return Err(Interrupted.into());
        }
        Ok(Self { _membership: Some(membership) })
    }
}

fn check_peer(own: Option<Gid>, peer: Option<Gid>) -> Result<Gid> {
    let peer = peer.filter(Gid::is_multicast);
    let peer = peer.context("the peer receives from no multicast group: start it with -g, too")?;
    ensure!(
        own != Some(peer),
        "both sides receive from the group {peer}, and so their own messages: choose another group (-M) on one \
         side"
    );
    Ok(peer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn default_groups_have_the_family_of_the_gid_and_differ() {
        for (roce, own, server, client) in [
            (true, "10.1.0.1", "::ffff:239.2.201.133", "::ffff:239.2.201.134"),
            (true, "fe80::1", "ff02::2:c985", "ff02::2:c986"),
            (false, "fe80::1", "ff01:0:2:c985::", "ff01:0:2:c985::1"),
        ] {
            let group = |client| default_group(roce, own.parse().unwrap(), client).to_string();
            assert_eq!([group(false), group(true)], [server, client]);
        }
    }

    #[test]
    fn peer_needs_a_group_of_its_own() {
        for (peer, words) in [
            (None, "start it with -g, too"),
            (Some("10.1.0.1"), "start it with -g, too"),
            (Some("fe80::1"), "start it with -g, too"),
            (Some("239.1.1.1"), "both sides receive from the group ::ffff:239.1.1.1"),
        ] {
            let gid = |text: &str| text.parse::<Gid>().unwrap();
            let refused = check_peer(Some(gid("239.1.1.1")), peer.map(gid)).unwrap_err().to_string();
            assert!(refused.contains(words), "{refused}");
        }
        let peer = Some(ROCE_GROUP.into());
        assert_eq!(check_peer(None, peer).ok(), peer);
    }
}
