//! The kernel's responses about links, routes and neighbours.
//!
//! Any datagram is decoded or is malformed, with at most one message for every 16 bytes. Encoded
//! messages are decoded unchanged.

use std::net::IpAddr;

use bareverbs::parsers::{read_route_answers, RouteAnswer};
use bareverbs::values::MacAddress;
use bareverbs_uapi::netlink::{MessageFlags, MessageHeader, MessageWriter};
use bareverbs_uapi::rtnetlink::{
    LINK_ADDRESS, LINK_INFO, LINK_INFO_DATA, LINK_INFO_KIND, LinkMessage, NEIGHBOUR_LINK_ADDRESS,
    NeighbourMessage, NeighbourState, ROUTE_GATEWAY, ROUTE_INTERFACE, ROUTE_VIA, RouteKind, RouteMessage,
    VLAN_ID,
};

use crate::input::Input;

const TO: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 9, 0, 1));

fn read(datagram: &[u8]) -> Option<Vec<RouteAnswer>> {
    let answers = read_route_answers(datagram, TO).ok()?;
    assert!(answers.len() <= datagram.len() / size_of::<MessageHeader>());
    for answer in &answers {
        assert!(answer.hop.is_none_or(|(address, _)| !address.to_string().is_empty()));
    }
    Some(answers)
}

fn one(fill: impl FnOnce(&mut MessageWriter<'_>)) -> RouteAnswer {
    let mut buffer = [0; 512];
    let mut writer = MessageWriter::new(&mut buffer);
    fill(writer.begin(24, MessageFlags::empty(), 1));
    let answers = read(writer.finish().expect("there is room")).expect("well formed");
    let [answer] = <[_; 1]>::try_from(answers).expect("one message");
    answer
}

pub(crate) fn run(data: &[u8]) {
    let _ = read(data);

    let mut input = Input(data);
    let (mac, vlan): (MacAddress, u16) = (MacAddress(input.array()), input.half());
    let link = one(|link| {
        link.put_struct(&LinkMessage::zeroed()).put_bytes(LINK_ADDRESS, &mac.0).put_nested(LINK_INFO, |info| {
            info.put_str(LINK_INFO_KIND, "vlan").put_nested(LINK_INFO_DATA, |data| {
                data.put_u16(VLAN_ID, vlan);
            });
        });
    });
    assert_eq!(link.link, Some((Some(mac), Some(vlan))));

    let (v4, v6, interface): ([u8; 4], [u8; 16], u32) = (input.array(), input.array(), input.word());
    let by = input.byte() % 4;
    let route = one(|route| {
        route.put_struct(&RouteMessage { kind: RouteKind::UNICAST, ..RouteMessage::zeroed() });
        match by {
            0 => route,
            1 => route.put_bytes(ROUTE_GATEWAY, &v4),
            2 => route.put_bytes(ROUTE_GATEWAY, &v6),
            _ => route.put_bytes(ROUTE_VIA, &[&[10, 0], &v6[..]].concat()),
        }
        .put_u32(ROUTE_INTERFACE, interface);
    });
    let hop = match by {
        0 => TO,
        1 => v4.into(),
        _ => v6.into(),
    };
    assert_eq!(route.hop, Some((hop, interface)));

    let state = NeighbourState::from_bits_retain(input.half());
    let unknown = state.intersects(NeighbourState::INCOMPLETE | NeighbourState::FAILED) || state.is_empty();
    let neighbour = one(|neighbour| {
        neighbour
            .put_struct(&NeighbourMessage { state, ..NeighbourMessage::zeroed() })
            .put_bytes(NEIGHBOUR_LINK_ADDRESS, &mac.0);
    });
    assert_eq!(neighbour.neighbour, (!unknown).then_some(mac));
}
