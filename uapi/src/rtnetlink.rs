//! The part of rtnetlink that resolves neighbours and configures links: routes, neighbours, links
//! and addresses.
//!
//! ```
//! use bareverbs_uapi::netlink::{MessageFlags, MessageWriter};
//! use bareverbs_uapi::rtnetlink::{GET_ROUTE, ROUTE_DESTINATION, RouteMessage};
//!
//! // The route to 10.1.0.2
//! let mut buffer = [0; 64];
//! let mut writer = MessageWriter::new(&mut buffer);
//! let route = RouteMessage { family: 2, destination_length: 32, ..RouteMessage::zeroed() };
//! writer.begin(GET_ROUTE, MessageFlags::REQUEST, 1).put_struct(&route).put_bytes(ROUTE_DESTINATION, &[10, 1, 0, 2]);
//! assert_eq!(writer.finish()?.len(), 16 + 12 + 8);
//! # Ok::<(), bareverbs_uapi::netlink::WriteError>(())
//! ```

abi_structs! {
    header = "linux/rtnetlink.h";

    /// The header of a route message.
    struct RouteMessage = tag "rtmsg" {
        /// Address family.
        family: u8 = "rtm_family";
        /// Length of the destination prefix in bits.
        destination_length: u8 = "rtm_dst_len";
        /// Length of the source prefix in bits.
        source_length: u8 = "rtm_src_len";
        /// Type of service.
        tos: u8 = "rtm_tos";
        /// Routing table.
        table: u8 = "rtm_table";
        /// Origin of the route.
        protocol: u8 = "rtm_protocol";
        /// Scope of the destination.
        scope: u8 = "rtm_scope";
        /// Type of the route.
        kind: RouteKind = "rtm_type";
        /// Flags.
        flags: u32 = "rtm_flags";
    }

    /// The header of a neighbour message.
    struct NeighbourMessage = tag "ndmsg" in "linux/neighbour.h" {
        /// Address family.
        family: u8 = "ndm_family";
        /// Padding.
        pad1: u8 = "ndm_pad1";
        /// Padding.
        pad2: u16 = "ndm_pad2";
        /// Index of the network interface.
        interface: i32 = "ndm_ifindex";
        /// State of the neighbour.
        state: NeighbourState = "ndm_state";
        /// Flags.
        flags: u8 = "ndm_flags";
        /// As in [`RouteMessage::kind`].
        kind: u8 = "ndm_type";
    }

    /// The header of a link message.
    struct LinkMessage = tag "ifinfomsg" {
        /// Address family.
        family: u8 = "ifi_family";
        /// Padding.
        pad: u8 = "__ifi_pad";
        /// Hardware type.
        kind: u16 = "ifi_type";
        /// Index of the network interface.
        interface: i32 = "ifi_index";
        /// Flags: `IFF_UP` and others of `linux/if.h`.
        flags: u32 = "ifi_flags";
        /// Mask of the flags to change.
        change: u32 = "ifi_change";
    }

    /// The header of an address message.
    struct AddressMessage = tag "ifaddrmsg" in "linux/if_addr.h" {
        /// Address family.
        family: u8 = "ifa_family";
        /// Length of the network prefix in bits.
        prefix_length: u8 = "ifa_prefixlen";
        /// Flags.
        flags: u8 = "ifa_flags";
        /// Scope of the address.
        scope: u8 = "ifa_scope";
        /// Index of the network interface.
        interface: u32 = "ifa_index";
    }
}

abi_enums! {
    header = "linux/rtnetlink.h";

    /// Type of a route.
    enum RouteKind: u8 = "" {
        /// Unknown.
        UNSPECIFIED = 0, "RTN_UNSPEC";
        /// A route to a gateway or a host.
        UNICAST = 1, "RTN_UNICAST";
        /// A local address of this host.
        LOCAL = 2, "RTN_LOCAL";
        /// Broadcast on a link.
        BROADCAST = 3, "RTN_BROADCAST";
        /// Anycast.
        ANYCAST = 4, "RTN_ANYCAST";
        /// Multicast.
        MULTICAST = 5, "RTN_MULTICAST";
    }
}

abi_flags! {
    header = "linux/neighbour.h";

    /// State of a neighbour.
    flags NeighbourState: u16 = "" {
        /// Resolution in progress.
        INCOMPLETE = 0x01, "NUD_INCOMPLETE";
        /// Valid and recently confirmed.
        REACHABLE = 0x02, "NUD_REACHABLE";
        /// Valid, not recently confirmed.
        STALE = 0x04, "NUD_STALE";
        /// Valid; a probe will be sent soon.
        DELAY = 0x08, "NUD_DELAY";
        /// Valid; a probe is in progress.
        PROBE = 0x10, "NUD_PROBE";
        /// Resolution failed.
        FAILED = 0x20, "NUD_FAILED";
        /// It needs no resolution.
        NO_ARP = 0x40, "NUD_NOARP";
        /// Permanent.
        PERMANENT = 0x80, "NUD_PERMANENT";
    }
}

abi_consts! {
    header = "linux/rtnetlink.h";

    /// Message type: create or change a link; as a notification: it was.
    const NEW_LINK: u16 = 16, "RTM_NEWLINK";
    /// Message type: remove a link; as a notification: it was removed.
    const DEL_LINK: u16 = 17, "RTM_DELLINK";
    /// Message type: query a link.
    const GET_LINK: u16 = 18, "RTM_GETLINK";
    /// Message type: add an address; as a notification: it was added or changed.
    const NEW_ADDRESS: u16 = 20, "RTM_NEWADDR";
    /// Message type: remove an address; as a notification: it was removed.
    const DEL_ADDRESS: u16 = 21, "RTM_DELADDR";
    /// Message type: query the route to a destination.
    const GET_ROUTE: u16 = 26, "RTM_GETROUTE";
    /// Message type: query a neighbour.
    const GET_NEIGHBOUR: u16 = 30, "RTM_GETNEIGH";
    /// Attribute of a route: the destination.
    const ROUTE_DESTINATION: u16 = 1, "RTA_DST";
    /// Attribute of a route: the source.
    const ROUTE_SOURCE: u16 = 2, "RTA_SRC";
    /// Attribute of a route: the output network interface.
    const ROUTE_INTERFACE: u16 = 4, "RTA_OIF";
    /// Attribute of a route: the gateway.
    const ROUTE_GATEWAY: u16 = 5, "RTA_GATEWAY";
    /// Attribute of a route: the gateway, of another address family.
    const ROUTE_VIA: u16 = 18, "RTA_VIA";
    /// Attribute of a neighbour: its address.
    const NEIGHBOUR_ADDRESS: u16 = 1, "NDA_DST" in "linux/neighbour.h";
    /// Attribute of a neighbour: its link-layer address.
    const NEIGHBOUR_LINK_ADDRESS: u16 = 2, "NDA_LLADDR" in "linux/neighbour.h";
    /// Attribute of a link: its link-layer address.
    const LINK_ADDRESS: u16 = 1, "IFLA_ADDRESS" in "linux/if_link.h";
    /// Attribute of a link: its name.
    const LINK_NAME: u16 = 3, "IFLA_IFNAME" in "linux/if_link.h";
    /// Attribute of a link: its MTU.
    const LINK_MTU: u16 = 4, "IFLA_MTU" in "linux/if_link.h";
    /// Attribute of a link: type-specific information.
    const LINK_INFO: u16 = 18, "IFLA_LINKINFO" in "linux/if_link.h";
    /// In [`LINK_INFO`]: the link type, as text.
    const LINK_INFO_KIND: u16 = 1, "IFLA_INFO_KIND" in "linux/if_link.h";
    /// In [`LINK_INFO`]: the type-specific data.
    const LINK_INFO_DATA: u16 = 2, "IFLA_INFO_DATA" in "linux/if_link.h";
    /// Type-specific data of a VLAN: the VLAN id.
    const VLAN_ID: u16 = 1, "IFLA_VLAN_ID" in "linux/if_link.h";
    /// Attribute of an address: the address, or the peer's on a point-to-point link.
    const ADDRESS: u16 = 1, "IFA_ADDRESS" in "linux/if_addr.h";
    /// Attribute of an address: the local address.
    const ADDRESS_LOCAL: u16 = 2, "IFA_LOCAL" in "linux/if_addr.h";
    /// Mask of the multicast group of link notifications.
    const GROUP_LINK: u32 = 1, "RTMGRP_LINK";
    /// Mask of the multicast group of IPv4 address notifications.
    const GROUP_IPV4_ADDRESS: u32 = 0x10, "RTMGRP_IPV4_IFADDR";
    /// Mask of the multicast group of IPv6 address notifications.
    const GROUP_IPV6_ADDRESS: u32 = 0x100, "RTMGRP_IPV6_IFADDR";
}
