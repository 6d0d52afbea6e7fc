//! Datagrams and address handles.

use std::net::Ipv4Addr;

use bareverbs::ah::{AhAttr, Grh};
use bareverbs::cq::{WcFlags, WorkCompletion};
use bareverbs::device::GidEntry;
use bareverbs::error::{PostReason, PushError};
use bareverbs::qp::{
    Datagram, GRH_BYTES, Payload, Qp, QpAttr, QpAttrMask, QpInit, QpState, SendFlags, SendRequest, Ud,
    UdInitAttr,
};
use bareverbs::values::GidIndex;
use bareverbs::{Error, Gid, Imm, PortNum, WcOpcode, WcStatus};
use bareverbs_kernel_tests::{device, kernel_test, neighbour};

use crate::host::{CAP, Host, QKEY, bytes, done, next, on_device, quiet, receive};

fn send(qp: &mut Qp<Ud>, wr_id: u64, to: Datagram<'_>, text: &[u8]) {
    let mut batch = qp.start_send();
    batch.send_to_inline(wr_id, to, text, SendFlags::SIGNALED).unwrap();
    batch.ring().unwrap();
}

#[kernel_test]
fn datagram_payload_follows_the_40_byte_grh() {
    on_device(|host| {
        let (mut from_cq, mut to_cq) = (host.cq(), host.cq());
        let (mut from, mut to) = (host.datagrams(&from_cq, QKEY), host.datagrams(&to_cq, QKEY));
        let (mut text, memory) = (host.memory(4096), host.memory(4096));
        text.write(0, b"registered").unwrap();
        let ah = host.pd.create_ah(&host.here()).unwrap();
        assert_eq!(ah.pd().handle(), host.pd.handle());
        receive(&mut to, 1, &memory);

        let operation = Datagram { imm: Some(Imm(0xaabb)), ..Datagram::new(&ah, to.qp_num(), QKEY) };
        let sges = [text.sge(..4).unwrap(), text.sge(4..10).unwrap()];
        let payload = Payload::Sges(&sges);
        let request = SendRequest { wr_id: 2, operation, flags: SendFlags::SIGNALED, payload };
        // SAFETY: the memory stays registered until the completion.
        unsafe { from.post_send(&[request]) }.unwrap();

        assert_eq!(done(&mut from_cq).wr_id, 2);
        let received = done(&mut to_cq);
        assert_eq!((received.wr_id, received.opcode), (1, WcOpcode::RECV));
        assert_eq!(received.byte_len as usize, GRH_BYTES + 10);
        assert_eq!((received.src_qp, received.qp_num), (from.qp_num(), to.qp_num()));
        assert!(received.wc_flags.contains(WcFlags::GRH | WcFlags::WITH_IMM));
        assert_eq!(received.imm(), Some(Imm(0xaabb)));
        assert_eq!(bytes(&memory, GRH_BYTES, 10), b"registered");
        drop((from, to));
    });
}

/// Sends from one end to the other and back. Returns the first GRH.
fn round_trip(host: &Host, gid: GidEntry) -> Grh {
    let (mut alice_cq, mut bob_cq) = (host.cq(), host.cq());
    let (mut alice, mut bob) = (host.datagrams(&alice_cq, QKEY), host.datagrams(&bob_cq, 0x0bad_cafe));
    let (at_alice, at_bob) = (host.memory(4096), host.memory(4096));
    let ah = host.pd.create_ah(&AhAttr::global(1, gid.gid, gid.index)).unwrap();
    receive(&mut alice, 1, &at_alice);
    receive(&mut bob, 2, &at_bob);

    send(&mut alice, 3, Datagram::new(&ah, bob.qp_num(), 0x0bad_cafe), b"there");
    assert_eq!(done(&mut alice_cq).wr_id, 3);
    let received = done(&mut bob_cq);
    let header: [u8; GRH_BYTES] = bytes(&at_bob, 0, GRH_BYTES).try_into().unwrap();

    let attr = host.context.ah_attr_from_wc(1, &received, &header).unwrap();
    assert_eq!(attr.grh.unwrap().dgid, gid.gid);
    assert_eq!(attr.grh.unwrap().sgid_index, gid.index);
    assert_eq!(attr.sl, 0, "only InfiniBand has other service levels");
    let back = host.pd.create_ah(&attr).unwrap();
    assert_eq!(back.attr(), &attr);
    send(&mut bob, 4, Datagram::new(&back, received.src_qp, QKEY), b"and back");
    assert_eq!(done(&mut bob_cq).wr_id, 4);
    assert_eq!(done(&mut alice_cq).byte_len as usize, GRH_BYTES + 8);
    assert_eq!(bytes(&at_alice, GRH_BYTES, 8), b"and back");
    drop((alice, bob));
    Grh::parse(&header).unwrap()
}

/// Also over RoCE v1, if the device supports it.
fn datagram_round_trip_with_every_gid(host: &Host, which: impl Fn(&GidEntry) -> bool) {
    for gid in host.context.gid_table().unwrap().iter().filter(|entry| which(entry)) {
        let header = round_trip(host, *gid);
        assert_eq!((header.sgid, header.dgid), (gid.gid, gid.gid), "{gid:?}");
    }
}

#[kernel_test]
fn datagram_is_answered_by_ah_attr_from_wc() {
    on_device(|host| {
        let own = host.gid().gid;
        datagram_round_trip_with_every_gid(host, |entry| entry.gid == own);
    });
}

#[kernel_test(device::ethernet)]
fn datagram_over_ipv6_has_a_parsable_grh() {
    on_device(|host| datagram_round_trip_with_every_gid(host, |entry| entry.gid.ipv4().is_none()));
}

#[kernel_test]
fn one_qp_sends_to_several_peers_with_one_doorbell() {
    on_device(|host| {
        let (mut from_cq, mut to_cq) = (host.cq(), host.cq());
        let mut from = host.datagrams(&from_cq, QKEY);
        let mut peers = [1, 2, 3].map(|qkey| host.datagrams(&to_cq, qkey));
        let memory = [(); 3].map(|()| host.memory(4096));
        let ah = host.pd.create_ah(&host.here()).unwrap();
        let mut batch = from.start_send();
        for (i, peer) in peers.iter_mut().enumerate() {
            receive(peer, i as u64, &memory[i]);
            let to = Datagram::new(&ah, peer.qp_num(), i as u32 + 1);
            batch.send_to_inline(i as u64, to, &[i as u8; 5], SendFlags::SIGNALED).unwrap();
        }
        batch.ring().unwrap();
        for _ in &peers {
            done(&mut from_cq);
            let received = done(&mut to_cq);
            let i = received.wr_id as usize;
            assert_eq!(received.qp_num, peers[i].qp_num());
            assert_eq!(bytes(&memory[i], GRH_BYTES, 5), [i as u8; 5]);
        }
        drop((from, peers));
    });
}

#[kernel_test]
fn datagram_size_is_limited_to_the_mtu() {
    on_device(|host| {
        let mtu = host.context.query_port(1).unwrap().active_mtu.bytes();
        let (mut from_cq, mut to_cq) = (host.cq(), host.cq());
        let (mut from, mut to) = (host.datagrams(&from_cq, QKEY), host.datagrams(&to_cq, QKEY));
        let (text, memory) = (host.memory(8192), host.memory(8192));
        let ah = host.pd.create_ah(&host.here()).unwrap();
        receive(&mut to, 1, &memory);
        let mut post = |len: u32| {
            let sges = [text.sge(..len as usize).unwrap()];
            let operation = Datagram::new(&ah, to.qp_num(), QKEY);
            let payload = Payload::Sges(&sges);
            let request = SendRequest { wr_id: 2, operation, flags: SendFlags::SIGNALED, payload };
            // SAFETY: the memory stays registered until the completion.
            unsafe { from.post_send(&[request]) }
        };
        let refused = post(mtu + 1).unwrap_err();
        let reason = PushError::DatagramTooLong { given: u64::from(mtu) + 1, max: mtu };
        assert_eq!((refused.accepted, refused.reason), (0, PostReason::Queue(reason)));
        quiet(&mut from_cq);

        post(mtu).unwrap();
        assert_eq!(done(&mut from_cq).wr_id, 2);
        assert_eq!(done(&mut to_cq).byte_len, mtu + GRH_BYTES as u32);
        drop((from, to));
    });
}

#[kernel_test]
fn datagram_with_wrong_qkey_is_dropped() {
    on_device(|host| {
        let (mut from_cq, mut to_cq) = (host.cq(), host.cq());
        let (mut from, mut to) = (host.datagrams(&from_cq, QKEY), host.datagrams(&to_cq, QKEY));
        let memory = host.memory(4096);
        let ah = host.pd.create_ah(&host.here()).unwrap();
        receive(&mut to, 1, &memory);
        send(&mut from, 2, Datagram::new(&ah, to.qp_num(), QKEY + 1), b"wrong");
        assert_eq!(done(&mut from_cq).wr_id, 2);
        quiet(&mut to_cq);
        send(&mut from, 3, Datagram::new(&ah, to.qp_num(), QKEY), b"right");
        assert_eq!(done(&mut from_cq).wr_id, 3);
        assert_eq!(done(&mut to_cq).wr_id, 1);
        assert_eq!(bytes(&memory, GRH_BYTES, 5), b"right");
        drop((from, to));
    });
}

/// The kernel does not find the address. It fails the request, or flushes it with the queue pair.
fn failed(qp: &Qp<Ud>, completion: WorkCompletion) {
    let status = completion.status;
    assert!(matches!(status, WcStatus::LOC_QP_OP_ERR | WcStatus::WR_FLUSH_ERR), "{completion:?}");
    assert_eq!(qp.query().unwrap().0.qp_state, QpState::ERR);
}

#[kernel_test(device::soft_roce_validates_ah)]
fn datagram_over_destroyed_ah_fails() {
    on_device(|host| {
        let (mut from_cq, to_cq) = (host.cq(), host.cq());
        let (mut from, to) = (host.datagrams(&from_cq, QKEY), host.datagrams(&to_cq, QKEY));
        let ah = host.pd.create_ah(&host.here()).unwrap();
        let mut batch = from.start_send();
        batch.send_to_inline(1, Datagram::new(&ah, to.qp_num(), QKEY), b"late", SendFlags::SIGNALED).unwrap();
        drop(ah);
        batch.ring().unwrap();
        failed(&from, next(&mut from_cq));
        drop((from, to));
    });
}

#[kernel_test(device::soft_roce_validates_ah)]
fn datagram_over_ah_of_another_pd_fails() {
    on_device(|host| {
        let (mut from_cq, to_cq) = (host.cq(), host.cq());
        let (mut from, to) = (host.datagrams(&from_cq, QKEY), host.datagrams(&to_cq, QKEY));
        let ah = host.context.alloc_pd().unwrap().create_ah(&host.here()).unwrap();
        send(&mut from, 1, Datagram::new(&ah, to.qp_num(), QKEY), b"foreign");
        failed(&from, next(&mut from_cq));
        drop((from, to));
    });
}

#[kernel_test]
fn ud_bring_up_sets_exactly_the_required_attributes() {
    on_device(|host| {
        let cq = host.cq();
        let mut qp = host.pd.create_qp::<Ud>(&QpInit { cap: CAP, ..QpInit::new(&cq, &cq) }).unwrap();
        let init = QpAttr { qp_state: QpState::INIT, port_num: PortNum(1), ..QpAttr::default() };
        let mask = QpAttrMask::STATE | QpAttrMask::PKEY_INDEX | QpAttrMask::PORT | QpAttrMask::ACCESS_FLAGS;
        qp.modify(&init, mask).expect_err("a queue key takes the place of access");
        assert!(matches!(qp.ready_to_receive(), Err(Error::Invalid { .. })), "not from RESET");
        qp.init(&UdInitAttr::new(1, QKEY)).unwrap();
        qp.ready_to_receive().unwrap();
        assert!(matches!(qp.ready_to_send(1 << 24), Err(Error::Invalid { .. })), "24 bits");
        qp.ready_to_send(0x00ab_cdef).unwrap();
        let (attr, _) = qp.query().unwrap();
        assert_eq!((attr.qp_state, attr.qkey, attr.sq_psn), (QpState::RTS, QKEY, 0x00ab_cdef));
    });
}

#[kernel_test(device::has_netdev)]
fn create_ah_requires_a_route() {
    on_device(|host| {
        let gid = host.gid();
        let to = |address| AhAttr::global(1, Gid::from(address), gid.index);
        let Err(error) = host.pd.create_ah(&to(Ipv4Addr::new(10, 1, 0, 77))) else {
            panic!("an AH without a route was created")
        };
        assert!(error.to_string().contains("::ffff:10.1.0.77"), "{error}");
        assert!(error.to_string().contains("did not answer the address resolution"), "{error}");

        // An entry for the other end of the link is added by hand to the kernel's neighbour table.
        let known = Ipv4Addr::new(10, 1, 0, 78);
        neighbour::add(&device::netdev(), known);
        let created = host.pd.create_ah(&to(known));
        // Other tests expect that no neighbour answers.
        neighbour::forget(&device::netdev(), known);
        assert_eq!(created.unwrap().attr().grh.unwrap().dgid, known.into());
    });
}

#[kernel_test]
fn create_ah_validates_attributes() {
    on_device(|host| {
        let refused = |attr: &AhAttr| host.pd.create_ah(attr).expect_err("refused");
        if device::ethernet().is_ok() {
            assert!(matches!(refused(&AhAttr::local(1, 5)), Error::Invalid { .. }), "RoCE needs a GID");
        }
        assert!(matches!(
            refused(&AhAttr { port: PortNum(2), ..host.here() }),
            Error::NoPort { port: PortNum(2), .. }
        ));
        let nowhere = AhAttr::global(1, host.gid().gid, 200);
        assert!(matches!(refused(&nowhere), Error::NoGid { index: GidIndex(200), .. }));
    });
}
