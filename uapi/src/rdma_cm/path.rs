//! Paths and services of an InfiniBand fabric, as its subnet administrator records them.

use crate::abi::{Be16, Be32, Be64};

abi_structs! {
    header = "rdma/ib_user_sa.h";

    /// A path record in its wire format.
    struct PathRecData = tag "ib_path_rec_data" {
        /// What the path is for.
        flags: PathFlags;
        /// Must be 0.
        reserved: u32;
        /// The record's 64 bytes as they travel.
        path_rec: [u32; 16];
    }

    /// A path record taken apart.
    struct PathRec = tag "ib_user_path_rec" {
        /// GID of the destination.
        dgid: [u8; 16];
        /// GID of the source.
        sgid: [u8; 16];
        /// Local identifier of the destination.
        dlid: Be16;
        /// Local identifier of the source.
        slid: Be16;
        /// Whether the path carries raw packets.
        raw_traffic: u32;
        /// Flow label.
        flow_label: Be32;
        /// Whether the same path leads back.
        reversible: u32;
        /// MTU, as the fabric numbers it: 1 is 256 bytes, 5 is 4096.
        mtu: u32;
        /// P_Key.
        pkey: Be16;
        /// Hop limit.
        hop_limit: u8;
        /// Traffic class.
        traffic_class: u8;
        /// Number of paths wanted.
        numb_path: u8;
        /// Service level.
        sl: u8;
        /// How `mtu` bounds: 0 greater, 1 less, 2 exactly, 3 largest.
        mtu_selector: u8;
        /// How `rate` bounds, in the same way.
        rate_selector: u8;
        /// Rate, as the fabric numbers it.
        rate: u8;
        /// How `packet_life_time` bounds, in the same way.
        packet_life_time_selector: u8;
        /// Packet life time: 4.096 µs times 2 to this power.
        packet_life_time: u8;
        /// Rank among equal paths, the lowest first.
        preference: u8;
    }

    /// A service record.
    struct ServiceRec = tag "ib_user_service_rec" since V7_2 {
        /// Service identifier.
        id: Be64 = "id" since V7_2;
        /// GID of the port that serves.
        gid: [u8; 16] = "gid" since V7_2;
        /// P_Key.
        pkey: Be16 = "pkey" since V7_2;
        /// Zero.
        reserved: [u8; 2] = "reserved" since V7_2;
        /// Seconds for which the record holds.
        lease: Be32 = "lease" since V7_2;
        /// Key that guards the record.
        key: [u8; 16] = "key" since V7_2;
        /// Name of the service.
        name: [u8; 64] = "name" since V7_2;
        /// Data of the service's own.
        data_8: [u8; 16] = "data_8" since V7_2;
        /// Data of the service's own.
        data_16: [Be16; 8] = "data_16" since V7_2;
        /// Data of the service's own.
        data_32: [Be32; 4] = "data_32" since V7_2;
        /// Data of the service's own.
        data_64: [Be64; 2] = "data_64" since V7_2;
    }
}

abi_flags! {
    header = "rdma/ib_user_sa.h";

    /// What a path is for.
    flags PathFlags: u32 = "" {
        /// Management datagrams.
        GMP = 1 << 0, "IB_PATH_GMP";
        /// The connection, at first.
        PRIMARY = 1 << 1, "IB_PATH_PRIMARY";
        /// The connection, after a migration.
        ALTERNATE = 1 << 2, "IB_PATH_ALTERNATE";
        /// Both directions.
        BIDIRECTIONAL = 1 << 3 | 1 << 5, "IB_PATH_BIDIRECTIONAL";
        /// From here to there.
        OUTBOUND = 1 << 3, "IB_PATH_OUTBOUND";
        /// From there to here.
        INBOUND = 1 << 4, "IB_PATH_INBOUND";
        /// From there to here, as the outbound path reversed.
        INBOUND_REVERSE = 1 << 5, "IB_PATH_INBOUND_REVERSE";
    }
}
