//! Flow rules that match parts of headers, tunnels and the packets in them, tags, rules that don't trap,
//! sniffers and default rules.

use std::time::Instant;

use bareverbs::cq::Completion as _;
use bareverbs::flow::{
    EthernetMatch, FlowAttrType, FlowEthFilter, FlowFlags, FlowGreFilter, FlowIpv4Filter, FlowIpv6Filter,
    FlowMplsFilter, FlowRule, FlowTcpUdpFilter, FlowTunnelFilter, Header, Layer, Masked,
};
use bareverbs::raw::uapi::abi::{Be16, Be32};
use bareverbs::values::MacAddress;
use bareverbs_kernel_tests::loopback::domain;
use bareverbs_kernel_tests::resources::nothing_leaks;
use bareverbs_kernel_tests::{TIMEOUT, device, kernel_test};
use rustix::io::Errno;

use crate::raw_packets::{BOB, EXPERIMENT, IPV4, Side, frame, to_bob};

fn eth(dst_mac: [u8; 6], ether_type: u16, vlan_tag: u16) -> FlowEthFilter {
    let (ether_type, vlan_tag) = (Be16::new(ether_type), Be16::new(vlan_tag));
    FlowEthFilter { dst_mac, ether_type, vlan_tag, ..FlowEthFilter::zeroed() }
}

fn to_address(dst_ip: [u8; 4]) -> FlowIpv4Filter {
    FlowIpv4Filter { dst_ip: Be32::new(u32::from_be_bytes(dst_ip)), ..FlowIpv4Filter::zeroed() }
}

fn to_port(port: u16) -> FlowTcpUdpFilter {
    FlowTcpUdpFilter { dst_port: Be16::new(port), ..FlowTcpUdpFilter::zeroed() }
}

fn label(label: u32) -> FlowIpv6Filter {
    FlowIpv6Filter { flow_label: Be32::new(label), ..FlowIpv6Filter::zeroed() }
}

fn vni(id: u32) -> FlowTunnelFilter {
    FlowTunnelFilter { tunnel_id: Be32::new(id) }
}

fn gre(protocol: u16, key: u32) -> FlowGreFilter {
    FlowGreFilter { protocol: Be16::new(protocol), key: Be32::new(key), ..FlowGreFilter::zeroed() }
}

fn any<T: Copy>(zeros: T) -> Masked<T> {
    Masked { value: zeros, mask: zeros }
}

/// A packet to this address with this protocol of IP, in a frame to BOB.
fn packet(to: [u8; 4], protocol: u8, payload: &[u8]) -> Vec<u8> {
    let [high, low] = (20 + payload.len() as u16).to_be_bytes();
    let ip = [0x45, 0, high, low, 0, 0, 0, 0, 64, protocol, 0, 0, 10, 9, 8, 1];
    frame(BOB, IPV4, &[&ip[..], &to, payload].concat())
}

fn udp(to: [u8; 4], port: u16, payload: &[u8]) -> Vec<u8> {
    let length = 8 + payload.len() as u16;
    packet(to, 17, &[&[0, 7][..], &port.to_be_bytes(), &length.to_be_bytes(), &[0, 0], payload].concat())
}

/// A frame in a VXLAN tunnel.
fn vxlan(id: u32, inner: &[u8]) -> Vec<u8> {
    udp([10, 9, 8, 7], 4789, &[&[8, 0, 0, 0][..], &(id << 8).to_be_bytes(), inner].concat())
}

/// A frame in a GRE tunnel with a key.
fn in_gre(key: u32, inner: &[u8]) -> Vec<u8> {
    packet([10, 9, 8, 7], 47, &[&[0x20, 0, 0x65, 0x58][..], &key.to_be_bytes(), inner].concat())
}

/// A packet of IPv6 without a payload.
fn v6(flow_label: u32) -> Vec<u8> {
    let head = (6 << 28 | flow_label).to_be_bytes();
    frame(BOB, 0x86dd, &[&head[..], &[0, 0, 59, 64], &[1; 32]].concat())
}

/// The tag of the next frame.
#[track_caller]
fn next_tag(side: &mut Side) -> Option<u32> {
    let begin = Instant::now();
    loop {
        if let Some(completion) = side.cq.poll().next() {
            return completion.flow_tag();
        }
        assert!(begin.elapsed() < TIMEOUT, "no completion");
        std::thread::yield_now();
    }
}

#[kernel_test(device::raw_packets)]
fn flows_match_parts_of_headers_tunnels_and_inner_headers() {
    use Header::{Ethernet, Gre, Ipv4, Ipv6, Udp, Vxlan};
    use Layer::{Inner, Outer};

    nothing_leaks(|| {
        let (mut a, mut b) = (Side::new(&domain()), Side::new(&domain()));
        let bob = Outer(Ethernet(Masked { value: eth(BOB.0, 0, 0), mask: eth([0xff; 6], 0, 0) }));
        let ip = Outer(Ipv4(any(FlowIpv4Filter::zeroed())));
        let in_tunnel = Outer(Udp(Masked { value: to_port(4789), mask: to_port(u16::MAX) }));
        let tagged = |tci: u16| {
            let inner = udp([10, 9, 8, 7], 9, b"");
            [&inner[..12], &[0x81, 0], &tci.to_be_bytes(), &inner[12..]].concat()
        };
        let inner = |to, port| udp(to, port, b"inner");
        let cases = [
            // A group of Ethernet addresses.
            (
                vec![Outer(Ethernet(Masked {
                    value: eth([3, 0, 0, 0, 0, 0], EXPERIMENT, 0),
                    mask: eth([0xff, 0, 0, 0, 0, 0], u16::MAX, 0),
                }))],
                frame(BOB, EXPERIMENT, b"hit"),
                frame(BOB, EXPERIMENT + 1, b"miss"),
            ),
            // The priority of a VLAN tag.
            (
                vec![Outer(Ethernet(Masked {
                    value: eth(BOB.0, 0, 0xa000),
                    mask: eth([0xff; 6], 0, 0xe000),
                }))],
                tagged(0xa005),
                tagged(0x2005),
            ),
            // A network of IPv4.
            (
                vec![
                    bob,
                    Outer(Ipv4(Masked {
                        value: to_address([10, 9, 0, 0]),
                        mask: to_address([255, 255, 0, 0]),
                    })),
                ],
                udp([10, 9, 8, 7], 9, b"hit"),
                udp([10, 8, 8, 7], 9, b"miss"),
            ),
            // 16 ports.
            (
                vec![bob, ip, Outer(Udp(Masked { value: to_port(0x10), mask: to_port(0xfff0) }))],
                udp([10, 9, 8, 7], 0x17, b"hit"),
                udp([10, 9, 8, 7], 0x27, b"miss"),
            ),
            (
                vec![bob, Outer(Ipv6(Masked { value: label(0x1_2300), mask: label(0xf_ff00) }))],
                v6(0x1_2345),
                v6(0x1_2445),
            ),
            (
                vec![
                    bob,
                    ip,
                    in_tunnel,
                    Outer(Vxlan(Masked { value: vni(0x0a_0b00), mask: vni(0xff_ff00) })),
                ],
                vxlan(0x0a_0b0c, &inner([10, 0, 0, 1], 1)),
                vxlan(0x0a_0c0c, &inner([10, 0, 0, 1], 1)),
            ),
            (
                vec![
                    bob,
                    ip,
                    in_tunnel,
                    Outer(Vxlan(any(FlowTunnelFilter::zeroed()))),
                    Inner(Ethernet(Masked { value: eth(BOB.0, 0, 0), mask: eth([0xff; 6], 0, 0) })),
                    Inner(Ipv4(Masked { value: to_address([10, 0, 0, 2]), mask: to_address([255; 4]) })),
                    Inner(Udp(Masked { value: to_port(7), mask: to_port(u16::MAX) })),
                ],
                vxlan(5, &inner([10, 0, 0, 2], 7)),
                vxlan(5, &inner([10, 0, 0, 2], 8)),
            ),
            (
                vec![
                    bob,
                    ip,
                    Outer(Gre(Masked { value: gre(0x6558, 0x0102_0000), mask: gre(u16::MAX, 0xffff_0000) })),
                ],
                in_gre(0x0102_0304, &inner([10, 0, 0, 1], 1)),
                in_gre(0x0103_0304, &inner([10, 0, 0, 1], 1)),
            ),
        ];
        for (index, (headers, hit, miss)) in cases.iter().enumerate() {
            let tag = index as u32 * 0x01_0101;
            let rule = FlowRule { tag: Some(tag), ..FlowRule::with_headers(1, headers) };
            let flow = b.qp.create_flow(&rule).unwrap_or_else(|error| panic!("{headers:?}: {error}"));
            (0..3).for_each(|wr_id| b.receive(wr_id));
            a.send(miss);
            a.send(hit);
            a.send(hit);
            assert_eq!(b.next(), *hit, "{headers:?}");
            assert_eq!(next_tag(&mut b), Some(tag), "{headers:?}");
            b.qp.destroy_flow(flow).unwrap();
            // A rule without a tag takes what the other one did not.
            let any = b.qp.create_flow(&to_bob()).unwrap();
            a.send(miss);
            assert_eq!(next_tag(&mut b), Some(0), "{headers:?}");
            b.qp.destroy_flow(any).unwrap();
        }
    });
}

/// Sends a frame until `to` has received it: other frames of the port may come before it.
#[track_caller]
fn send_until_received(from: &mut Side, to: &mut Side, frame: &[u8]) {
    let begin = Instant::now();
    loop {
        to.receive(0);
        from.send(frame);
        if to.next() == frame {
            return;
        }
        assert!(begin.elapsed() < TIMEOUT, "the frame did not arrive");
    }
}

#[kernel_test(device::raw_packets)]
fn rule_that_does_not_trap_leaves_frames_to_lower_priorities() {
    nothing_leaks(|| {
        let [mut a, mut b, mut c] = [(); 3].map(|()| Side::new(&domain()));
        let of_type = EthernetMatch { ether_type: Some(EXPERIMENT), ..EthernetMatch::default() };
        let last = c.qp.create_flow(&FlowRule { priority: 1, ..FlowRule::new(1, of_type) }).unwrap();
        let copy = b.qp.create_flow(&FlowRule { flags: FlowFlags::DONT_TRAP, ..to_bob() }).unwrap();
        let [both, trapped] = [b"both", b"trap"].map(|payload| frame(BOB, EXPERIMENT, payload));
        b.receive(0);
        c.receive(0);
        a.send(&both);
        assert_eq!((b.next(), c.next()), (both.clone(), both));
        b.qp.destroy_flow(copy).unwrap();
        // The driver gives a rule with a multicast address the lowest priority if it traps.
        let trap = b.qp.create_flow(&FlowRule::new(1, of_type)).unwrap();
        b.receive(0);
        a.send(&trapped);
        assert_eq!(b.next(), trapped);
        b.qp.destroy_flow(trap).unwrap();
        let left = frame(BOB, EXPERIMENT, b"left");
        c.receive(0);
        a.send(&left);
        assert_eq!(c.next(), left);
        c.qp.destroy_flow(last).unwrap();
    });
}

#[kernel_test(device::raw_packets)]
fn sniffer_receives_copies_of_sent_frames() {
    nothing_leaks(|| {
        let (mut a, mut b) = (Side::new(&domain()), Side::new(&domain()));
        let rule = FlowRule { kind: FlowAttrType::SNIFFER, ..FlowRule::with_headers(1, &[]) };
        let sniffer = b.qp.create_flow(&rule).unwrap();
        // A unicast address, so the frame is sent to the wire and not looped back.
        let away = frame(MacAddress([2, 0, 0, 0, 0, 0xc]), EXPERIMENT, b"away");
        send_until_received(&mut a, &mut b, &away);
        b.qp.destroy_flow(sniffer).unwrap();
    });
}

#[kernel_test(device::raw_packets, device::default_flows)]
fn default_rules_take_frames_that_match_no_other_rule() {
    nothing_leaks(|| {
        let (mut a, mut b) = (Side::new(&domain()), Side::new(&domain()));
        let hello = frame(BOB, EXPERIMENT, b"hello");
        for kind in [FlowAttrType::ALL_DEFAULT, FlowAttrType::MC_DEFAULT] {
            let rule = FlowRule { kind, ..FlowRule::with_headers(1, &[]) };
            let default = b.qp.create_flow(&rule).unwrap_or_else(|error| panic!("{kind:?}: {error}"));
            send_until_received(&mut a, &mut b, &hello);
            b.qp.destroy_flow(default).unwrap();
        }
    });
}

#[kernel_test(device::raw_packets)]
fn flow_rules_for_mpls_are_unsupported() {
    nothing_leaks(|| {
        let mut side = Side::new(&domain());
        let label = FlowMplsFilter { label: Be32::new(u32::MAX) };
        let mpls = [Layer::Outer(Header::Mpls(Masked { value: label, mask: label }))];
        let refused = side.qp.create_flow(&FlowRule::with_headers(1, &mpls)).unwrap_err();
        assert_eq!(refused.errno(), Some(Errno::OPNOTSUPP), "{refused}");
    });
}
