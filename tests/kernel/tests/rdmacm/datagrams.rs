//! Datagram queue pairs: service resolution and multicast groups.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

use bareverbs::cq::CqInit;
use bareverbs::qp::{Datagram, GRH_BYTES, MULTICAST_QP, QpCap, QpInit, QpState, RecvRequest, Ud};
use bareverbs::{Access, Buffer, Errno, WcStatus};
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{device, kernel_test};
use bareverbs_rdmacm::event::{EstablishedParam, EventKind, RequestParam, SidrStatus, UdPeer, Unreachable};
use bareverbs_rdmacm::{CmId, ConnParam, Error, EventChannel, JoinMode, PortSpace};

use crate::host::*;

/// The Q_Key of all identifiers of the port space.
const QKEY: u32 = 0x0123_4567;

#[kernel_test(crate::host::has_ip, device::ib_transports)]
fn datagram_service_is_resolved() {
    nothing_leaks(|| {
        let (listener, addr) = listener(PortSpace::Udp, 8);
        let active = resolved(addr, PortSpace::Udp);
        let longest = [5; 180];
        active.connect(&ConnParam { private_data: &longest, ..ConnParam::new(0) }).unwrap();
        let request = request(&listener);
        let RequestParam::Datagram(data) = request.param() else { panic!("{:?}", request.param()) };
        assert_eq!(data[..], longest);
        let passive = request.accept(&ConnParam { private_data: b"mine", ..ConnParam::new(0x4321) }).unwrap();
        let kind = next_of(active.channel(), active.key());
        let EventKind::Established(EstablishedParam::Datagram(peer)) = kind else { panic!("{kind:?}") };
        assert_eq!((peer.qp_num, peer.qkey, peer.private_data.len()), (0x4321, QKEY, 136));
        assert_eq!(&peer.private_data[..5], b"mine\0");
        let [_, gid] = active.gids().unwrap();
        // Within a subnet of InfiniBand, the LID is the address.
        let (lid, gid) = match device::is_infiniband() {
            true => (active.paths().unwrap()[0].dlid, None),
            false => (0, gid.map(|addr| addr.gid)),
        };
        assert_eq!((peer.address.dlid, peer.address.grh.map(|grh| grh.dgid)), (lid, gid));
        // The address is one for an address handle.
        device::open().alloc_pd().unwrap().create_ah(&peer.address).unwrap();
        // There is no connection that could end.
        passive.disconnect().unwrap();
        quiet(listener.channel());
        quiet(active.channel());
    });
}

/// The answer to a request of a datagram QP.
fn sidr(active: &CmId) -> (SidrStatus, bareverbs_rdmacm::PrivateData) {
    match next_of(active.channel(), active.key()) {
        EventKind::Unreachable(Unreachable::Sidr(status, data)) => (status, data),
        other => panic!("{other:?}"),
    }
}

#[kernel_test(crate::host::has_ip, device::ib_transports)]
fn datagram_request_is_refused_with_private_data() {
    nothing_leaks(|| {
        let (listener, addr) = listener(PortSpace::Udp, 8);
        let active = resolved(addr, PortSpace::Udp);
        active.connect(&ConnParam::new(0)).unwrap();
        request(&listener).reject(b"full").unwrap();
        let (status, data) = sidr(&active);
        assert_eq!((status, &data[..5]), (SidrStatus::Rejected, &b"full\0"[..]));
    });
}

#[kernel_test(crate::host::has_ip, device::ib_transports)]
fn datagram_request_without_listener_is_refused() {
    nothing_leaks(|| {
        let (listener, addr) = listener(PortSpace::Udp, 8);
        drop(listener);
        let active = resolved(addr, PortSpace::Udp);
        active.connect(&ConnParam::new(0)).unwrap();
        assert_eq!(sidr(&active).0, SidrStatus::Unsupported);
    });
}

#[kernel_test(crate::host::has_ip, device::ib_transports)]
fn datagram_requests_above_the_backlog_are_refused() {
    nothing_leaks(|| {
        let (listener, addr) = listener(PortSpace::Udp, 2);
        let ids: Vec<_> = (0..3).map(|_| resolved(addr, PortSpace::Udp)).collect();
        for id in &ids {
            id.connect(&ConnParam::new(0)).unwrap();
            std::thread::sleep(QUIET);
        }
        assert_eq!(sidr(&ids[2]).0, SidrStatus::Rejected);
        // The first two wait.
        let passive = [request(&listener), request(&listener)];
        let passive = passive.map(|request| request.accept(&ConnParam::new(7)).unwrap());
        for id in &ids[..2] {
            let kind = next_of(id.channel(), id.key());
            assert!(matches!(kind, EventKind::Established(EstablishedParam::Datagram(_))), "{kind:?}");
        }
        drop(passive);
    });
}

/// An identifier that is bound to the device.
fn bound() -> CmId {
    let id = CmId::new(&EventChannel::new().unwrap(), PortSpace::Udp).unwrap();
    id.bind_addr((ip(), 0)).unwrap();
    id
}

fn group(number: u8) -> SocketAddr {
    SocketAddr::new(Ipv4Addr::new(239, 1, 2, number).into(), 0)
}

fn joined(id: &CmId, membership: bareverbs_rdmacm::Key) -> UdPeer {
    match next_of(id.channel(), membership) {
        EventKind::MulticastJoin(group) => group,
        other => panic!("{other:?}"),
    }
}

#[kernel_test(crate::host::has_ip, device::ib_transports)]
fn multicast_group_is_joined_and_left() {
    nothing_leaks(|| {
        let id = bound();
        let memberships = [
            id.join_multicast(group(1), JoinMode::Full).unwrap(),
            id.join_multicast(group(2), JoinMode::Full).unwrap(),
            id.join_multicast(group(3), JoinMode::SendOnly).unwrap(),
        ];
        for membership in memberships {
            assert_ne!(membership, id.key());
            let group = joined(&id, membership);
            assert_eq!((group.qp_num, group.qkey), (MULTICAST_QP, QKEY));
            assert!(group.address.grh.is_some_and(|grh| grh.dgid.is_multicast()), "{group:?}");
            id.leave_multicast(membership).unwrap();
            let again = id.leave_multicast(membership).unwrap_err();
            assert!(matches!(again, Error::Invalid { .. }), "{again}");
        }
        quiet(id.channel());
        // Left by drop, before the event is read.
        id.join_multicast(group(1), JoinMode::Full).unwrap();
    });
}

#[kernel_test(crate::host::has_ip, device::ib_transports)]
fn multicast_errors_name_their_cause() {
    nothing_leaks(|| {
        let unbound = CmId::new(&EventChannel::new().unwrap(), PortSpace::Udp).unwrap();
        assert_eq!(errno(unbound.join_multicast(group(1), JoinMode::Full)), Errno::INVAL);
        let connected = CmId::new(unbound.channel(), PortSpace::Tcp).unwrap();
        let refused = connected.join_multicast(group(1), JoinMode::Full).unwrap_err();
        assert!(matches!(refused, Error::Invalid { verb: "join_multicast", .. }), "{refused}");
        let refused = bound().join_multicast((Ipv4Addr::new(10, 1, 0, 9), 0), JoinMode::Full).unwrap_err();
        assert!(refused.to_string().contains("is not a multicast address"), "{refused}");
        if !device::is_infiniband() {
            let group = (Ipv6Addr::new(0xff0e, 0, 0, 0, 0, 0, 0, 5), 0);
            let refused = bound().join_multicast(group, JoinMode::Full).unwrap_err();
            assert_eq!(refused.errno().map(Errno::raw_os_error), Some(524));
            assert!(refused.to_string().contains("RoCE v2 has no IPv6 multicast groups"), "{refused}");
        }
    });
}

#[kernel_test(crate::host::has_ip, device::ib_transports)]
fn members_of_a_group_receive_its_datagrams() {
    nothing_leaks(|| {
        let id = bound();
        let membership = id.join_multicast(group(9), JoinMode::Full).unwrap();
        let group = joined(&id, membership);

        let context = device::open();
        let pd = context.alloc_pd().unwrap();
        let mut cq = context.create_cq(&CqInit::new(8)).unwrap();
        let cap = QpCap { max_inline_data: 16, ..QpCap::default() };
        let mut qp = pd.create_qp::<Ud>(&QpInit { cap, ..QpInit::new(&cq, &cq) }).unwrap();
        for state in [QpState::INIT, QpState::RTR, QpState::RTS] {
            let (attr, mask) = id.init_qp_attr(state).unwrap();
            qp.modify(&attr, mask).unwrap();
        }
        group.attach(&mut qp).unwrap();
        let memory = pd.register(Buffer::zeroed(256).unwrap(), Access::LOCAL_WRITE).unwrap();
        let sges = [memory.sge(..).unwrap()];
        // SAFETY: the memory outlives the queue pair, and is read by copying after the completion.
        unsafe { qp.post_recv(&[RecvRequest { wr_id: 1, sges: &sges }]) }.unwrap();

        let ah = pd.create_ah(&group.address).unwrap();
        let mut batch = qp.start_send();
        let datagram = Datagram::new(&ah, group.qp_num, group.qkey);
        batch.send_to_inline(2, datagram, b"to all", bareverbs::qp::SendFlags::SIGNALED).unwrap();
        batch.ring().unwrap();
        let begin = std::time::Instant::now();
        let mut left = vec![1, 2];
        while !left.is_empty() {
            assert!(begin.elapsed() < TIMEOUT, "no completion of {left:?}");
            if let Some(completion) = cq.poll_one() {
                assert_eq!(completion.status, WcStatus::SUCCESS, "{completion:?}");
                left.retain(|id| *id != completion.wr_id);
            }
        }
        let mut bytes = [0; 6];
        memory.read(GRH_BYTES, &mut bytes).unwrap();
        assert_eq!(&bytes, b"to all");
        drop(qp);
        id.leave_multicast(membership).unwrap();
    });
}
