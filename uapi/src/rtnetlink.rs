//! rtnetlink, as far as it tells the way to a neighbour: routes, neighbours and links.
//!
//! ```
//! use bareverbs_uapi::netlink::{MessageFlags, MessageWriter};
//! use bareverbs_uapi::rtnetlink::{GET_ROUTE, ROUTE_DESTINATION, RouteMessage};
//!
//! // Which way goes to 10.1.0.2?
//! let mut buffer = [0; 64];
//! let mut writer = MessageWriter::new(&mut buffer);
//! let route = RouteMessage { family: 2, destination_length: 32, ..RouteMessage::zeroed() };
//! writer.begin(GET_ROUTE, MessageFlags::REQUEST, 1).put_struct(&route).put_bytes(ROUTE_DESTINATION, &[10, 1, 0, 2]);
//! assert_eq!(writer.finish()?.len(), 16 + 12 + 8);
//! # Ok::<(), bareverbs_uapi::netlink::WriteError>(())
//! ```

abi_structs! {
    header = "linux/rtnetlink.h";

    /// The head of a message about a route.
    struct RouteMessage = tag "rtmsg" {
        /// Address family.
        family: u8 = "rtm_family";
        /// Bits of the destination's prefix.
        destination_length: u8 = "rtm_dst_len";
        /// Bits of the source's prefix.
        source_length: u8 = "rtm_src_len";
        /// Type of service.
        tos: u8 = "rtm_tos";
        /// The table that it stands in.
        table: u8 = "rtm_table";
        /// Who made it.
        protocol: u8 = "rtm_protocol";
        /// How far the destination is.
        scope: u8 = "rtm_scope";
        /// What it does.
        kind: RouteKind = "rtm_type";
        /// Flags.
        flags: u32 = "rtm_flags";
    }

    /// The head of a message about a neighbour.
    struct NeighbourMessage = tag "ndmsg" in "linux/neighbour.h" {
        /// Address family.
        family: u8 = "ndm_family";
        /// Padding.
        pad1: u8 = "ndm_pad1";
        /// Padding.
        pad2: u16 = "ndm_pad2";
        /// The network interface.
        interface: i32 = "ndm_ifindex";
        /// How well its address is known.
        state: NeighbourState = "ndm_state";
        /// Flags.
        flags: u8 = "ndm_flags";
        /// As in [`RouteMessage::kind`].
        kind: u8 = "ndm_type";
    }

    /// The head of a message about a network interface.
    struct LinkMessage = tag "ifinfomsg" {
        /// Address family.
        family: u8 = "ifi_family";
        /// Padding.
        pad: u8 = "__ifi_pad";
        /// Hardware type.
        kind: u16 = "ifi_type";
        /// The network interface.
        interface: i32 = "ifi_index";
        /// Flags.
        flags: u32 = "ifi_flags";
        /// Which flags are to change.
        change: u32 = "ifi_change";
    }
}

abi_enums! {
    header = "linux/rtnetlink.h";

    /// What a route does.
    enum RouteKind: u8 = "" {
        /// Unknown.
        UNSPECIFIED = 0, "RTN_UNSPEC";
        /// Leads to a gateway or a host.
        UNICAST = 1, "RTN_UNICAST";
        /// Stays on this host.
        LOCAL = 2, "RTN_LOCAL";
        /// Reaches all hosts of a link.
        BROADCAST = 3, "RTN_BROADCAST";
        /// Reaches one of several hosts.
        ANYCAST = 4, "RTN_ANYCAST";
        /// Reaches a group.
        MULTICAST = 5, "RTN_MULTICAST";
    }
}

abi_flags! {
    header = "linux/neighbour.h";

    /// How well a neighbour's address is known.
    flags NeighbourState: u16 = "" {
        /// It is being asked for.
        INCOMPLETE = 0x01, "NUD_INCOMPLETE";
        /// Known and lately confirmed.
        REACHABLE = 0x02, "NUD_REACHABLE";
        /// Known and not lately confirmed.
        STALE = 0x04, "NUD_STALE";
        /// Known; it will be asked soon.
        DELAY = 0x08, "NUD_DELAY";
        /// Known; it is being asked.
        PROBE = 0x10, "NUD_PROBE";
        /// It did not answer.
        FAILED = 0x20, "NUD_FAILED";
        /// It needs no resolution.
        NO_ARP = 0x40, "NUD_NOARP";
        /// Known for good.
        PERMANENT = 0x80, "NUD_PERMANENT";
    }
}

abi_consts! {
    header = "linux/rtnetlink.h";

    /// Message type: tell of a link.
    const GET_LINK: u16 = 18, "RTM_GETLINK";
    /// Message type: tell the way to a destination.
    const GET_ROUTE: u16 = 26, "RTM_GETROUTE";
    /// Message type: tell of a neighbour.
    const GET_NEIGHBOUR: u16 = 30, "RTM_GETNEIGH";
    /// Attribute of a route: the destination.
    const ROUTE_DESTINATION: u16 = 1, "RTA_DST";
    /// Attribute of a route: the source.
    const ROUTE_SOURCE: u16 = 2, "RTA_SRC";
    /// Attribute of a route: the network interface that it leaves by.
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
    /// Attribute of a link: what is particular to its kind.
    const LINK_INFO: u16 = 18, "IFLA_LINKINFO" in "linux/if_link.h";
    /// In [`LINK_INFO`]: the kind, in words.
    const LINK_INFO_KIND: u16 = 1, "IFLA_INFO_KIND" in "linux/if_link.h";
    /// In [`LINK_INFO`]: the particulars.
    const LINK_INFO_DATA: u16 = 2, "IFLA_INFO_DATA" in "linux/if_link.h";
    /// Particulars of a VLAN: its number.
    const VLAN_ID: u16 = 1, "IFLA_VLAN_ID" in "linux/if_link.h";
}
