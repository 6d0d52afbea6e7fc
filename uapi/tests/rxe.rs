//! Soft-RoCE's structs.

use std::net::Ipv6Addr;

use bareverbs_uapi::rdma_cm::address::AddressFamily;
use bareverbs_uapi::rxe::{AtomicWr, RdmaWr, SendWr, SocketAddress};
use zerocopy::IntoBytes;

#[test]
fn ipv4_address_offset_matches_sockaddr_in() {
    let address = SocketAddress::from_ipv4([10, 1, 0, 1]);
    assert_eq!(address.family, AddressFamily::INET);
    // sa_family, sin_port, sin_addr
    assert_eq!(address.as_bytes()[..8], [2, 0, 0, 0, 10, 1, 0, 1]);
    assert!(address.as_bytes()[8..].iter().all(|byte| *byte == 0));
}

#[test]
fn ipv6_address_offset_matches_sockaddr_in6() {
    let ip = Ipv6Addr::new(0xfe80, 0, 0, 0, 1, 2, 3, 4).octets();
    let address = SocketAddress::from_ipv6(ip);
    assert_eq!(address.family, AddressFamily::INET6);
    // sa_family, sin6_port, sin6_flowinfo, sin6_addr, sin6_scope_id
    let bytes = address.as_bytes();
    assert_eq!(bytes[..8], [10, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(bytes[8..24], ip);
    assert!(bytes[24..].iter().all(|byte| *byte == 0));
}

#[test]
fn setting_a_wr_form_preserves_the_remaining_bytes() {
    let atomic = AtomicWr { remote_addr: 8, compare_add: 1, swap: 2, rkey: 3, ..AtomicWr::zeroed() };
    let mut request = SendWr::zeroed();
    request.set(&atomic);
    assert_eq!(request.get::<AtomicWr>(), atomic);
    let rdma = RdmaWr { remote_addr: 4096, rkey: 7, ..RdmaWr::zeroed() };
    request.set(&rdma);
    assert_eq!(request.get::<RdmaWr>(), rdma);
    assert_eq!(request.get::<AtomicWr>().swap, 2);
}
