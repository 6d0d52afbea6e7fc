//! Path and service records of the subnet administrator (SA).

use crate::abi::{Be16, Be32, Be64};

abi_structs! {
    header = "rdma/ib_user_sa.h";

    /// A path record in its wire format.
    struct PathRecData = tag "ib_path_rec_data" {
        /// Use of the path.
        flags: PathFlags;
        /// Must be 0.
        reserved: u32;
        /// The 64 bytes of the record in wire format.
        path_rec: [u32; 16];
    }

    /// A decoded path record.
    struct PathRec = tag "ib_user_path_rec" {
        /// Destination GID.
        dgid: [u8; 16];
        /// Source GID.
        sgid: [u8; 16];
        /// Destination LID.
        dlid: Be16;
        /// Source LID.
        slid: Be16;
        /// Whether the path carries raw packets.
        raw_traffic: u32;
        /// Flow label.
        flow_label: Be32;
        /// Whether the path is reversible.
        reversible: u32;
        /// MTU, in InfiniBand encoding: 1 is 256 bytes, 5 is 4096.
        mtu: u32;
        /// P_Key.
        pkey: Be16;
        /// Hop limit.
        hop_limit: u8;
        /// Traffic class.
        traffic_class: u8;
        /// Number of requested paths.
        numb_path: u8;
        /// Service level.
        sl: u8;
        /// Selector of `mtu`: 0 greater, 1 less, 2 exactly, 3 largest.
        mtu_selector: u8;
        /// Selector of `rate`, with the same values.
        rate_selector: u8;
        /// Rate, in InfiniBand encoding.
        rate: u8;
        /// Selector of `packet_life_time`, with the same values.
        packet_life_time_selector: u8;
        /// Packet lifetime: 4.096 µs × 2^n.
        packet_life_time: u8;
        /// Preference among equal paths; the lowest value is preferred.
        preference: u8;
    }

    /// A service record.
    struct ServiceRec = tag "ib_user_service_rec" since V7_2 {
        /// Service identifier.
        id: Be64 = "id" since V7_2;
        /// GID of the service port.
        gid: [u8; 16] = "gid" since V7_2;
        /// P_Key.
        pkey: Be16 = "pkey" since V7_2;
        /// Zero.
        reserved: [u8; 2] = "reserved" since V7_2;
        /// Lease of the record in seconds.
        lease: Be32 = "lease" since V7_2;
        /// Service key.
        key: [u8; 16] = "key" since V7_2;
        /// Name of the service.
        name: [u8; 64] = "name" since V7_2;
        /// Service-specific data.
        data_8: [u8; 16] = "data_8" since V7_2;
        /// Service-specific data.
        data_16: [Be16; 8] = "data_16" since V7_2;
        /// Service-specific data.
        data_32: [Be32; 4] = "data_32" since V7_2;
        /// Service-specific data.
        data_64: [Be64; 2] = "data_64" since V7_2;
    }
}

abi_flags! {
    header = "rdma/ib_user_sa.h";

    /// Use of a path.
    flags PathFlags: u32 = "" {
        /// General management datagrams (GMP).
        GMP = 1 << 0, "IB_PATH_GMP";
        /// Primary path of the connection.
        PRIMARY = 1 << 1, "IB_PATH_PRIMARY";
        /// Alternate path of the connection.
        ALTERNATE = 1 << 2, "IB_PATH_ALTERNATE";
        /// Both directions.
        BIDIRECTIONAL = 1 << 3 | 1 << 5, "IB_PATH_BIDIRECTIONAL";
        /// Outbound.
        OUTBOUND = 1 << 3, "IB_PATH_OUTBOUND";
        /// Inbound.
        INBOUND = 1 << 4, "IB_PATH_INBOUND";
        /// Inbound, as the reversed outbound path.
        INBOUND_REVERSE = 1 << 5, "IB_PATH_INBOUND_REVERSE";
    }
}
