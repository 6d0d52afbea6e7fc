//! Ethernet addresses of peers, compared with the kernel's own tables.

use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use bareverbs::ah::AhAttr;
use bareverbs::device::{GidEntry, GidType};
use bareverbs::values::EthernetAddress;
use bareverbs::{Context, Error, Gid};
use bareverbs_kernel_tests::device::{FAR, netdev};
use bareverbs_kernel_tests::iproute2::ip;
use bareverbs_kernel_tests::loopback::open;
use bareverbs_kernel_tests::{TIMEOUT, device, kernel_test};
use rustix::io::Errno;

fn mac_of(interface: &str) -> String {
    fs::read_to_string(format!("/sys/class/net/{interface}/address")).unwrap().trim().to_owned()
}

fn link_local_of(interface: &str) -> Ipv6Addr {
    let reported = ip(&format!("-6 -o address show dev {interface} scope link"));
    let address = reported.split_whitespace().find_map(|word| word.strip_suffix("/64")).expect("an address");
    address.parse().unwrap()
}

fn resolve(context: &Context, from: &GidEntry, to: Gid) -> bareverbs::Result<EthernetAddress> {
    context.resolve_ethernet(&AhAttr::global(1, to, from.index), Duration::from_secs(10))
}

#[track_caller]
fn mac(context: &Context, from: &GidEntry, to: Gid) -> String {
    let found = resolve(context, from, to).unwrap();
    assert_eq!(found.vlan, None);
    found.mac.to_string()
}

fn own(context: &Context, wanted: impl Fn(&GidEntry) -> bool) -> GidEntry {
    let table = context.gid_table().unwrap();
    *table.iter().find(|entry| wanted(entry)).unwrap_or_else(|| panic!("no such entry in {table:?}"))
}

#[kernel_test(device::has_netdev)]
fn peer_resolves_by_neighbour_or_gateway() {
    let context = open();
    let (from, near) = (context.default_gid(1).unwrap(), netdev());
    ip(&format!("neigh replace 10.1.0.77 lladdr 02:00:00:00:00:77 nud permanent dev {near}"));
    ip(&format!("route replace 10.99.0.0/24 via 10.1.0.77 dev {near}"));
    let reported = ip("neigh show 10.1.0.77");
    assert!(reported.contains("02:00:00:00:00:77"), "{reported}");
    assert_eq!(mac(&context, &from, Ipv4Addr::new(10, 1, 0, 77).into()), "02:00:00:00:00:77");
    assert_eq!(mac(&context, &from, Ipv4Addr::new(10, 99, 0, 5).into()), "02:00:00:00:00:77", "the router's");
    ip("route del 10.99.0.0/24");
    ip(&format!("neigh del 10.1.0.77 dev {near}"));
}

#[kernel_test(device::has_peer_veth, device::ib_transports)]
fn unknown_neighbour_is_solicited() {
    let context = open();
    let near = netdev();
    let from = own(&context, |entry| entry.gid.is_link_local() && entry.gid_type == GidType::ROCE_V2);
    let peer = link_local_of(FAR);
    ip(&format!("neigh flush dev {near}"));
    assert_eq!(mac(&context, &from, peer.into()), mac_of(FAR));
    let reported = ip(&format!("-6 neigh show {peer} dev {near}"));
    assert!(reported.contains(&mac_of(FAR)), "the kernel has learnt it too: {reported}");
}

#[kernel_test(device::has_netdev)]
fn local_gids_resolve_to_the_local_mac() {
    let context = open();
    for from in context.gid_table().unwrap().iter().filter(|entry| entry.gid_type == GidType::ROCE_V2) {
        assert_eq!(mac(&context, from, from.gid), mac_of(&netdev()), "{from:?}");
    }
}

#[kernel_test(device::has_netdev)]
fn multicast_and_roce_v1_macs_are_derived() {
    let context = open();
    let v2 = context.default_gid(1).unwrap();
    assert_eq!(mac(&context, &v2, Ipv4Addr::new(239, 1, 2, 3).into()), "01:00:5e:01:02:03");
    assert_eq!(mac(&context, &v2, "ff0e::1".parse::<Ipv6Addr>().unwrap().into()), "33:33:00:00:00:01");
    if let Some(v1) = context.gid_table().unwrap().iter().find(|entry| entry.gid_type == GidType::ROCE_V1) {
        let peer: Ipv6Addr = "fe80::ff:fe00:42".parse().unwrap();
        assert_eq!(mac(&context, v1, peer.into()), "02:00:00:00:00:42");
    }
}

#[kernel_test(device::has_netdev)]
fn silent_neighbour_has_no_address() {
    let context = open();
    let from = context.default_gid(1).unwrap();
    let absent = AhAttr::global(1, Ipv4Addr::new(10, 1, 0, 222).into(), from.index);
    let error = context.resolve_ethernet(&absent, Duration::from_millis(50)).unwrap_err();
    assert_eq!(error.errno(), Some(Errno::HOSTUNREACH), "{error}");
    assert!(error.to_string().contains("10.1.0.222"), "{error}");

    let elsewhere = AhAttr::global(1, Ipv4Addr::new(203, 0, 113, 1).into(), from.index);
    let error = context.resolve_ethernet(&elsewhere, TIMEOUT).unwrap_err();
    assert!(error.to_string().contains("203.0.113.1"), "{error}");

    let no_route = context.resolve_ethernet(&AhAttr::local(1, 5), TIMEOUT).unwrap_err();
    assert!(matches!(no_route, Error::Invalid { .. }), "{no_route}");
    let no_gid = AhAttr::global(1, Ipv4Addr::new(10, 1, 0, 2).into(), 200);
    assert!(matches!(context.resolve_ethernet(&no_gid, TIMEOUT), Err(Error::NoGid { .. })));
}
