//! Multicast groups.

use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr};

use bareverbs::ah::{AhAttr, Grh};
use bareverbs::device::GidEntry;
use bareverbs::qp::{Datagram, GRH_BYTES, MULTICAST_QP, Qp, QpCreateFlags, QpInit, SendFlags, Ud};
use bareverbs::{Errno, Error, Gid};
use bareverbs_kernel_tests::{device, kernel_test};

use crate::host::{CAP, Host, QKEY, QUIET, bytes, done, on_device, quiet, ready, receive};

const GROUP: Ipv4Addr = Ipv4Addr::new(239, 7, 7, 7);
const GROUP6: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 7, 7);

/// The LID of the groups on InfiniBand. The device's switch forwards a group's messages to all
/// ports, and ports filter by GID.
pub(crate) const LID: u16 = 0xc007;

fn join(member: &mut Qp<Ud>, group: Gid) -> Result<(), Error> {
    if device::is_infiniband() {
        member.attach_mcast_with_lid(group, LID)
    } else {
        member.attach_mcast(group)
    }
}

fn way(group: Gid, own: &GidEntry) -> AhAttr {
    let dlid = if device::is_infiniband() { LID } else { 0 };
    AhAttr { dlid, ..AhAttr::global(1, group, own.index) }
}

fn send(qp: &mut Qp<Ud>, to: Datagram<'_>, text: &[u8]) {
    let mut batch = qp.start_send();
    batch.send_to_inline(77, to, text, SendFlags::SIGNALED).unwrap();
    batch.ring().unwrap();
}

/// One sender and two members. Each member receives the message and can answer.
fn reaches_every_member(host: &Host, group: Gid, own: GidEntry) {
    let mut from_cq = host.cq();
    let mut from = host.datagrams(&from_cq, QKEY);
    let ah = host.pd.create_ah(&way(group, &own)).unwrap();
    let mut cqs = [host.cq(), host.cq()];
    let memory = [host.memory(4096), host.memory(4096)];
    let mut members = [host.datagrams(&cqs[0], QKEY), host.datagrams(&cqs[1], QKEY)];
    for (member, memory) in members.iter_mut().zip(&memory) {
        join(member, group).unwrap();
        receive(member, 1, memory);
    }
    send(&mut from, Datagram::new(&ah, MULTICAST_QP, QKEY), b"to all");
    assert_eq!(done(&mut from_cq).wr_id, 77);
    for (cq, memory) in cqs.iter_mut().zip(&memory) {
        let received = done(cq);
        assert_eq!((received.wr_id, received.src_qp), (1, from.qp_num()));
        assert_eq!(bytes(memory, GRH_BYTES, 6), b"to all");
        let header: [u8; GRH_BYTES] = bytes(memory, 0, GRH_BYTES).try_into().unwrap();
        assert_eq!(Grh::parse(&header).unwrap().dgid, group);
        let back = host.context.ah_attr_from_wc(1, &received, &header).unwrap();
        assert_eq!(back.grh.unwrap().dgid, own.gid);
        host.pd.create_ah(&back).unwrap();
    }
    drop((from, members));
}

/// The requests that complete at a sender which is a member itself, and created with these flags.
/// The datagram has the id 77, the receive 1.
fn own_datagram(host: &Host, flags: QpCreateFlags) -> Vec<u64> {
    let (mut own_cq, mut other_cq) = (host.cq(), host.cq());
    let init = QpInit { flags, cap: CAP, ..QpInit::new(&own_cq, &own_cq) };
    let mut own = host.pd.create_qp::<Ud>(&init).unwrap();
    ready(&mut own, QKEY);
    let mut other = host.datagrams(&other_cq, QKEY);
    let memory = [host.memory(4096), host.memory(4096)];
    let group = Gid::from(GROUP);
    for (member, memory) in [(&mut own, &memory[0]), (&mut other, &memory[1])] {
        join(member, group).unwrap();
        receive(member, 1, memory);
    }
    let ah = host.pd.create_ah(&way(group, &host.gid())).unwrap();
    send(&mut own, Datagram::new(&ah, MULTICAST_QP, QKEY), b"to all");
    assert_eq!(done(&mut other_cq).wr_id, 1);
    std::thread::sleep(QUIET);
    let mut ids: Vec<_> = std::iter::from_fn(|| own_cq.poll_one()).map(|done| done.wr_id).collect();
    ids.sort_unstable();
    drop((own, other));
    ids
}

#[kernel_test]
fn member_receives_its_own_multicast_datagrams() {
    on_device(|host| assert_eq!(own_datagram(host, QpCreateFlags::empty()), [1, 77]));
}

#[kernel_test(device::connectx)]
fn blocked_multicast_loopback_spares_the_sender_only() {
    on_device(|host| assert_eq!(own_datagram(host, QpCreateFlags::BLOCK_MULTICAST_LOOPBACK), [77]));
}

#[kernel_test]
fn multicast_datagram_reaches_every_member() {
    on_device(|host| reaches_every_member(host, GROUP.into(), host.gid()));
}

#[kernel_test(device::ethernet)]
fn ipv6_multicast_datagram_reaches_every_member() {
    on_device(|host| reaches_every_member(host, GROUP6.into(), host.ipv6_gid()));
}

#[kernel_test]
fn detached_qp_receives_no_multicast() {
    on_device(|host| {
        let (mut from_cq, mut stays_cq, mut leaves_cq) = (host.cq(), host.cq(), host.cq());
        let mut from = host.datagrams(&from_cq, QKEY);
        let (mut stays, mut leaves) = (host.datagrams(&stays_cq, QKEY), host.datagrams(&leaves_cq, QKEY));
        let memory = [host.memory(4096), host.memory(4096)];
        let group = Gid::from(GROUP);
        for (member, memory) in [(&mut stays, &memory[0]), (&mut leaves, &memory[1])] {
            join(member, group).unwrap();
            join(member, group).expect("once more changes nothing");
            receive(member, 1, memory);
        }
        leaves.detach_mcast(group).unwrap();
        assert!(matches!(leaves.detach_mcast(group), Err(Error::Invalid { .. })));
        let ah = host.pd.create_ah(&way(group, &host.gid())).unwrap();
        send(&mut from, Datagram::new(&ah, MULTICAST_QP, QKEY), b"to those who stay");
        assert_eq!(done(&mut from_cq).wr_id, 77);
        assert_eq!(done(&mut stays_cq).wr_id, 1);
        quiet(&mut leaves_cq);
        drop((from, stays, leaves));
    });
}

/// Whether a socket of the host is a member of the group.
fn is_joined(group: Gid) -> bool {
    let (file, number) = match group.ipv4() {
        Some(group) => ("/proc/net/igmp", format!("{:08X}", u32::from_le_bytes(group.octets()))),
        None => ("/proc/net/igmp6", group.0.iter().map(|byte| format!("{byte:02x}")).collect()),
    };
    fs::read_to_string(file).unwrap().contains(&number)
}

#[kernel_test(device::has_netdev)]
fn ip_group_is_joined_until_the_last_qp_is_detached() {
    on_device(|host| {
        for group in
            [Gid::from(Ipv4Addr::new(239, 7, 7, 9)), Gid::from(Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 7, 9))]
        {
            let cq = host.cq();
            let (mut a, mut b) = (host.datagrams(&cq, QKEY), host.datagrams(&cq, QKEY));
            assert!(!is_joined(group));
            a.attach_mcast(group).unwrap();
            a.attach_mcast(group).expect("once more changes nothing");
            b.attach_mcast_via(group, &host.gid()).unwrap();
            assert!(is_joined(group));
            a.detach_mcast(group).unwrap();
            assert!(is_joined(group));
            drop(b);
            assert!(!is_joined(group));
            a.attach_mcast_without_join(group).unwrap();
            assert!(!is_joined(group));
        }
    });
}

/// A limit on memberships of a socket, until it is dropped.
struct Limit(String);

impl Limit {
    const FILE: &str = "/proc/sys/net/ipv4/igmp_max_memberships";

    fn set(limit: &str) -> Self {
        let before = fs::read_to_string(Self::FILE).unwrap();
        fs::write(Self::FILE, limit).unwrap();
        Self(before)
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        fs::write(Self::FILE, &self.0).unwrap();
    }
}

#[kernel_test(device::has_netdev)]
fn qp_is_not_attached_if_the_ip_group_can_not_be_joined() {
    on_device(|host| {
        let group = Gid::from(Ipv4Addr::new(239, 7, 7, 10));
        let cq = host.cq();
        let mut qp = host.datagrams(&cq, QKEY);
        let limit = Limit::set("0");
        let refused = qp.attach_mcast(group).unwrap_err();
        drop(limit);
        assert!(matches!(refused, Error::System { .. }), "{refused}");
        assert_eq!(refused.errno(), Some(Errno::NOBUFS));
        assert!(refused.to_string().contains("attach_mcast_without_join"), "{refused}");
        assert!(matches!(qp.detach_mcast(group), Err(Error::Invalid { .. })));
        qp.attach_mcast(group).unwrap();
        qp.detach_mcast(group).unwrap();
    });
}

#[kernel_test]
fn attach_mcast_requires_a_multicast_gid() {
    on_device(|host| {
        let cq = host.cq();
        let mut qp = host.datagrams(&cq, QKEY);
        assert!(matches!(qp.attach_mcast(host.gid().gid), Err(Error::Invalid { .. })));
    });
}

#[kernel_test]
fn attached_qp_can_be_dropped() {
    on_device(|host| {
        let cq = host.cq();
        let mut qp = host.datagrams(&cq, QKEY);
        join(&mut qp, GROUP.into()).unwrap();
        join(&mut qp, GROUP6.into()).unwrap();
        drop(qp);
    });
}

#[kernel_test(device::infiniband)]
fn infiniband_multicast_requires_a_multicast_lid() {
    on_device(|host| {
        let cq = host.cq();
        let mut qp = host.datagrams(&cq, QKEY);
        for lid in [0, 1, 0xbfff, 0xffff] {
            assert!(matches!(qp.attach_mcast_with_lid(GROUP6.into(), lid), Err(Error::Invalid { .. })));
        }
        let refused = qp.attach_mcast(GROUP6.into()).unwrap_err().to_string();
        assert!(refused.contains("requires the LID of the group"), "{refused}");
    });
}
