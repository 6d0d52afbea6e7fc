//! Every default of the public attribute structs. A default is part of the API: programs rely on it
//! without naming it.
//!
//! The patterns name every field, so a new field needs its default here. The structs that borrow a
//! queue need a kernel, and are in `tests/kernel`.

use std::time::Duration;

use bareverbs::ah::{AhAttr, GlobalRoute, Rate};
use bareverbs::cq::{CqInit, CqeSize};
use bareverbs::dm::DmInit;
use bareverbs::flow::{EthernetMatch, FlowAttrType, FlowFlags, FlowRule, Ipv4Match, PortMatch};
use bareverbs::qp::{
    DoorbellChoice, Ece, Frame, InitAttr, MigState, QpAttr, QpAttrMask, QpCap, QpState, QueueMemory, RtrAttr,
    RtsAttr, UcRtrAttr, UdInitAttr,
};
use bareverbs::srq::SrqInit;
use bareverbs::values::{AckTimeout, GidIndex, MinRnrTimer, Mtu, RetryCount, RnrRetry};
use bareverbs::xrc::XrcTargetRtsAttr;
use bareverbs::{Access, Gid, PortNum};

const GID: Gid = Gid([9; 16]);

#[test]
fn reset_to_init_grants_no_remote_access() {
    let InitAttr { port, pkey_index, access } = InitAttr::new(3);
    assert_eq!((port, pkey_index, access), (PortNum(3), 0, Access::empty()));
    let UdInitAttr { port, pkey_index, qkey } = UdInitAttr::new(3, 0x1234);
    assert_eq!((port, pkey_index, qkey), (PortNum(3), 0, 0x1234));
}

#[test]
fn init_to_rtr_defaults() {
    let way = AhAttr::global(1, GID, 2);
    let RtrAttr { address, dest_qp_num, rq_psn, path_mtu, max_dest_rd_atomic, min_rnr_timer } =
        RtrAttr::new(way, 77);
    assert_eq!((address, dest_qp_num, rq_psn, path_mtu), (way, 77, 0, Mtu::Mtu1024));
    assert_eq!((max_dest_rd_atomic, min_rnr_timer.duration()), (1, Duration::from_micros(640)));
    let UcRtrAttr { address, dest_qp_num, rq_psn, path_mtu } = UcRtrAttr::new(way, 77);
    assert_eq!((address, dest_qp_num, rq_psn, path_mtu), (way, 77, 0, Mtu::Mtu1024));
}

#[test]
fn rtr_to_rts_defaults() {
    let RtsAttr { sq_psn, timeout, retry_cnt, rnr_retry, max_rd_atomic } = RtsAttr::default();
    assert_eq!((sq_psn, max_rd_atomic), (0, 1));
    assert_eq!(timeout.duration(), Some(Duration::from_nanos(4096 << 17)));
    // Soft-RoCE would retry for ever if it were 7.
    assert_eq!((retry_cnt, rnr_retry), (RetryCount::new(6).unwrap(), RnrRetry::INFINITE));
    let XrcTargetRtsAttr { sq_psn, timeout } = XrcTargetRtsAttr::default();
    assert_eq!((sq_psn, timeout), (0, AckTimeout::new(17).unwrap()));
}

#[test]
fn ah_attr_defaults() {
    let AhAttr { port, dlid, sl, src_path_bits, static_rate, grh } = AhAttr::global(2, GID, 5);
    assert_eq!((port, dlid, sl, src_path_bits, static_rate), (PortNum(2), 0, 0, 0, Rate::PORT_CURRENT));
    let GlobalRoute { dgid, sgid_index, flow_label, hop_limit, traffic_class } = grh.expect("a global route");
    assert_eq!((dgid, sgid_index, flow_label, hop_limit, traffic_class), (GID, GidIndex(5), 0, 1, 0));
    let AhAttr { port, dlid, sl, src_path_bits, static_rate, grh } = AhAttr::local(2, 0x1234);
    assert_eq!(
        (port, dlid, sl, src_path_bits, static_rate, grh),
        (PortNum(2), 0x1234, 0, 0, Rate::PORT_CURRENT, None)
    );
    let AhAttr { port, dlid, sl, src_path_bits, static_rate, grh } = AhAttr::default();
    assert_eq!(
        (port, dlid, sl, src_path_bits, static_rate, grh),
        (PortNum(0), 0, 0, 0, Rate::PORT_CURRENT, None)
    );
}

#[test]
fn qp_cap_defaults() {
    let QpCap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data } = QpCap::default();
    assert_eq!((max_send_wr, max_recv_wr), (16, 16));
    assert_eq!((max_send_sge, max_recv_sge, max_inline_data), (1, 1, 0));
    let SrqInit { max_wr, max_sge, limit, memory, user_data } = SrqInit::new(100);
    assert_eq!((max_wr, max_sge, limit, user_data), (100, 1, 0, 0));
    assert!(matches!(memory, QueueMemory::BasePages));
}

#[test]
fn cq_init_defaults() {
    let check = |init: CqInit<'_>, wanted: u32| {
        let CqInit { entries, channel, vector, timestamps, compressed, cqe_size, memory, user_data } = init;
        assert_eq!((entries, vector, user_data), (wanted, 0, 0));
        assert_eq!(cqe_size, CqeSize::default());
        assert!(channel.is_none() && !timestamps && !compressed);
        assert!(matches!(memory, QueueMemory::BasePages));
    };
    check(CqInit::new(64), 64);
    check(CqInit::default(), 0);
}

#[test]
fn dm_and_flow_defaults() {
    let DmInit { len, log_align } = DmInit::new(4096);
    assert_eq!((len, log_align), (4096, 0));
    let EthernetMatch { dst_mac, src_mac, ether_type, vlan } = EthernetMatch::default();
    assert!(vlan.is_none());
    assert_eq!((dst_mac, src_mac, ether_type), (None, None, None));
    let Ipv4Match { src_ip, dst_ip, protocol, tos } = Ipv4Match::default();
    assert!(protocol.is_none() && tos.is_none());
    assert_eq!((src_ip, dst_ip), (None, None));
    let PortMatch { src_port, dst_port } = PortMatch::default();
    assert_eq!((src_port, dst_port), (None, None));
    let FlowRule { kind, port, priority, flags, ethernet, ipv4, ipv6, l4, headers, tag, drop } =
        FlowRule::new(1, EthernetMatch::default());
    assert!(ipv6.is_none() && !drop);
    assert_eq!((kind, flags, headers, tag), (FlowAttrType::NORMAL, FlowFlags::empty(), &[][..], None));
    // 0 is the highest priority.
    assert_eq!((port, priority, ipv4, l4), (PortNum(1), 0, None, None));
    assert_eq!(ethernet, Some(EthernetMatch::default()));
}

#[test]
fn enum_defaults() {
    assert!(matches!(QueueMemory::default(), QueueMemory::BasePages));
    assert!(matches!(DoorbellChoice::default(), DoorbellChoice::Any));
    let Ece { vendor_id, options } = Ece::default();
    assert_eq!((vendor_id, options), (0, 0));
    let Frame { header, checksums, mss } = Frame::default();
    assert_eq!((header, checksums, mss), (&[][..], false, None));
}

#[test]
fn raw_modify_attributes_default_to_zero() {
    let QpAttr {
        qp_state,
        cur_qp_state,
        path_mtu,
        path_mig_state,
        qkey,
        rq_psn,
        sq_psn,
        dest_qp_num,
        access,
        cap,
        ah_attr,
        alt_ah_attr,
        pkey_index,
        alt_pkey_index,
        en_sqd_async_notify,
        sq_draining,
        max_rd_atomic,
        max_dest_rd_atomic,
        min_rnr_timer,
        port_num,
        timeout,
        retry_cnt,
        rnr_retry,
        alt_port_num,
        alt_timeout,
        rate_limit,
    } = QpAttr::default();
    assert_eq!((qp_state, cur_qp_state), (QpState::RESET, QpState::RESET));
    assert_eq!((path_mtu, path_mig_state, access), (None, MigState::MIGRATED, Access::empty()));
    assert_eq!((qkey, rq_psn, sq_psn, dest_qp_num, rate_limit), (0, 0, 0, 0, 0));
    let none = QpCap { max_send_wr: 0, max_recv_wr: 0, max_send_sge: 0, max_recv_sge: 0, max_inline_data: 0 };
    assert_eq!((cap, ah_attr, alt_ah_attr), (none, AhAttr::default(), AhAttr::default()));
    assert_eq!((pkey_index, alt_pkey_index), (0, 0));
    assert!(!en_sqd_async_notify && !sq_draining);
    assert_eq!((max_rd_atomic, max_dest_rd_atomic, u8::from(min_rnr_timer)), (0, 0, 0));
    assert_eq!((port_num, timeout), (PortNum(0), AckTimeout::INFINITE));
    assert_eq!((retry_cnt, rnr_retry), (RetryCount::ZERO, RnrRetry::ZERO));
    assert_eq!((alt_port_num, alt_timeout), (PortNum(0), AckTimeout::INFINITE));
}

/// The attributes that a typed transition sets.
fn step(attr: impl Into<(QpAttr, QpAttrMask)>) -> QpAttr {
    attr.into().0
}

#[test]
fn every_transition_attribute_is_passed_to_modify_qp() {
    let access = Access::REMOTE_READ;
    let init = InitAttr { port: PortNum(3), pkey_index: 4, access };
    let expected =
        QpAttr { qp_state: QpState::INIT, port_num: PortNum(3), pkey_index: 4, access, ..QpAttr::default() };
    assert_eq!(step(&init), expected);
    let init = UdInitAttr { port: PortNum(3), pkey_index: 4, qkey: 5 };
    let expected =
        QpAttr { qp_state: QpState::INIT, port_num: PortNum(3), pkey_index: 4, qkey: 5, ..QpAttr::default() };
    assert_eq!(step(&init), expected);

    let address = AhAttr::global(1, GID, 2);
    let rtr = RtrAttr {
        address,
        dest_qp_num: 6,
        rq_psn: 7,
        path_mtu: Mtu::Mtu4096,
        max_dest_rd_atomic: 8,
        min_rnr_timer: MinRnrTimer::new(9).unwrap(),
    };
    let connected = QpAttr {
        qp_state: QpState::RTR,
        ah_attr: address,
        dest_qp_num: 6,
        rq_psn: 7,
        path_mtu: Some(Mtu::Mtu4096),
        ..QpAttr::default()
    };
    assert_eq!(
        step(&rtr),
        QpAttr { max_dest_rd_atomic: 8, min_rnr_timer: MinRnrTimer::new(9).unwrap(), ..connected }
    );
    let rtr = UcRtrAttr { address, dest_qp_num: 6, rq_psn: 7, path_mtu: Mtu::Mtu4096 };
    assert_eq!(step(&rtr), connected);

    let rts = RtsAttr {
        sq_psn: 10,
        timeout: AckTimeout::new(11).unwrap(),
        retry_cnt: RetryCount::new(3).unwrap(),
        rnr_retry: RnrRetry::new(4).unwrap(),
        max_rd_atomic: 5,
    };
    let expected = QpAttr {
        qp_state: QpState::RTS,
        sq_psn: 10,
        timeout: rts.timeout,
        retry_cnt: rts.retry_cnt,
        rnr_retry: rts.rnr_retry,
        max_rd_atomic: 5,
        ..QpAttr::default()
    };
    assert_eq!(step(&rts), expected);
}
