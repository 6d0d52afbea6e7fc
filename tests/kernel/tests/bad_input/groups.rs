//! Multicast groups that can't be joined, and too many members.

use std::net::{Ipv4Addr, Ipv6Addr};

use bareverbs::cq::{Cq, CqInit};
use bareverbs::qp::{Qp, QpCap, QpInit, Ud, UdInitAttr};
use bareverbs::{Error, Gid, Pd};
use bareverbs_kernel_tests::loopback::domain;
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{device, kernel_test};

use crate::refusals::invalid;

fn datagrams(pd: &Pd, cq: &Cq) -> Qp<Ud> {
    let cap = QpCap { max_send_wr: 1, max_recv_wr: 1, ..QpCap::default() };
    let mut qp = pd.create_qp::<Ud>(&QpInit { cap, ..QpInit::new(cq, cq) }).unwrap();
    qp.init(&UdInitAttr::new(1, 7)).unwrap();
    qp
}

#[kernel_test(device::multicast_by_gid, device::ib_transports)]
fn multicast_verbs_reject_other_gids() {
    nothing_leaks(|| {
        let pd = domain();
        let cq = pd.context().create_cq(&CqInit::new(4)).unwrap();
        let mut qp = datagrams(&pd, &cq);
        let own = pd.context().default_gid(1).unwrap().gid;
        let link_local = Gid::from("fe80::1".parse::<Ipv6Addr>().unwrap());
        for gid in
            [own, Gid::default(), link_local, Ipv4Addr::new(240, 0, 0, 1).into(), Ipv4Addr::BROADCAST.into()]
        {
            invalid(qp.attach_mcast(gid), &format!("attach_mcast: {gid} is not a multicast GID"));
            let text = format!("detach_mcast: QP {:#x} is not attached to group {gid}", qp.qp_num());
            invalid(qp.detach_mcast(gid), &text);
        }
        // A group that it has not joined, one that it has left, and one that a dropped queue pair
        // had joined.
        let group = Gid::from(Ipv4Addr::new(239, 9, 9, 9));
        let text = format!("detach_mcast: QP {:#x} is not attached to group {group}", qp.qp_num());
        invalid(qp.detach_mcast(group), &text);
        let mut other = datagrams(&pd, &cq);
        other.attach_mcast(group).unwrap();
        invalid(qp.detach_mcast(group), &text);
        drop(other);
        qp.attach_mcast(group).unwrap();
        qp.detach_mcast(group).unwrap();
        invalid(qp.detach_mcast(group), &text);
    });
}

#[kernel_test(device::multicast_by_gid, device::ib_transports)]
fn multicast_attach_limits_are_enforced() {
    nothing_leaks(|| {
        let pd = domain();
        let cq = pd.context().create_cq(&CqInit::new(4)).unwrap();
        let most = pd.context().query_device().unwrap().max_mcast_qp_attach as usize;
        let group = Gid::from(Ipv4Addr::new(239, 9, 9, 10));
        let mut members: Vec<_> = (0..=most).map(|_| datagrams(&pd, &cq)).collect();
        let (last, members) = members.split_last_mut().unwrap();
        for member in members.iter_mut() {
            member.attach_mcast(group).unwrap();
        }
        let refused = last.attach_mcast(group).unwrap_err();
        assert!(matches!(refused, Error::Kernel(_)), "{refused:?}");
        let text = refused.to_string();
        assert!(text.starts_with(&format!("attach_mcast (QP {:#x}, {group}): ", last.qp_num())), "{text}");
        assert!(text.ends_with("the device may have no free multicast group or member entry"), "{text}");
        members[0].detach_mcast(group).unwrap();
        last.attach_mcast(group).unwrap();
    });
}
