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

/// The fields of a path record, which [`PathRecData::path_rec`] has in wire format (IBA 15.2.5.16).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathRecord {
    /// Service identifier; 0 for none.
    pub service_id: u64,
    /// Destination GID.
    pub dgid: [u8; 16],
    /// Source GID.
    pub sgid: [u8; 16],
    /// Destination LID.
    pub dlid: u16,
    /// Source LID.
    pub slid: u16,
    /// Whether the path carries raw packets.
    pub raw_traffic: bool,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Hop limit.
    pub hop_limit: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Whether the path is reversible.
    pub reversible: bool,
    /// Number of requested paths, 7 bits.
    pub numb_path: u8,
    /// P_Key.
    pub pkey: u16,
    /// QoS class, 12 bits.
    pub qos_class: u16,
    /// Service level, 4 bits.
    pub sl: u8,
    /// Selector of `mtu`, 2 bits: 0 greater, 1 less, 2 exactly, 3 largest.
    pub mtu_selector: u8,
    /// MTU, 6 bits: 1 is 256 bytes, 5 is 4096.
    pub mtu: u8,
    /// Selector of `rate`, with the same values.
    pub rate_selector: u8,
    /// Rate in InfiniBand encoding, 6 bits.
    pub rate: u8,
    /// Selector of `packet_life_time`, with the same values.
    pub packet_life_time_selector: u8,
    /// Packet lifetime, 6 bits: 4.096 µs × 2^n.
    pub packet_life_time: u8,
    /// Preference among equal paths; the lowest value is preferred.
    pub preference: u8,
}

impl PathRecord {
    /// Length in wire format in bytes.
    pub const LEN: usize = 64;

    /// The record in wire format. Bits beyond the width of a field are discarded.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let packed = |selector: u8, value: u8| selector << 6 | value & 0x3f;
        let route =
            u32::from(self.raw_traffic) << 31 | (self.flow_label & 0xf_ffff) << 8 | u32::from(self.hop_limit);
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&self.service_id.to_be_bytes());
        bytes[8..24].copy_from_slice(&self.dgid);
        bytes[24..40].copy_from_slice(&self.sgid);
        bytes[40..42].copy_from_slice(&self.dlid.to_be_bytes());
        bytes[42..44].copy_from_slice(&self.slid.to_be_bytes());
        bytes[44..48].copy_from_slice(&route.to_be_bytes());
        bytes[48] = self.traffic_class;
        bytes[49] = u8::from(self.reversible) << 7 | self.numb_path & 0x7f;
        bytes[50..52].copy_from_slice(&self.pkey.to_be_bytes());
        bytes[52..54].copy_from_slice(&(self.qos_class << 4 | u16::from(self.sl & 0xf)).to_be_bytes());
        bytes[54] = packed(self.mtu_selector, self.mtu);
        bytes[55] = packed(self.rate_selector, self.rate);
        bytes[56] = packed(self.packet_life_time_selector, self.packet_life_time);
        bytes[57] = self.preference;
        bytes
    }

    /// The record with these bytes in wire format. Reserved bits are ignored.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; Self::LEN]) -> Self {
        fn array<const N: usize>(bytes: &[u8; PathRecord::LEN], at: usize) -> [u8; N] {
            core::array::from_fn(|i| bytes[at + i])
        }
        let half = |at| u16::from_be_bytes(array(bytes, at));
        let route = u32::from_be_bytes(array(bytes, 44));
        let service = half(52);
        Self {
            service_id: u64::from_be_bytes(array(bytes, 0)),
            dgid: array(bytes, 8),
            sgid: array(bytes, 24),
            dlid: half(40),
            slid: half(42),
            raw_traffic: route >> 31 != 0,
            flow_label: route >> 8 & 0xf_ffff,
            hop_limit: route as u8,
            traffic_class: bytes[48],
            reversible: bytes[49] >> 7 != 0,
            numb_path: bytes[49] & 0x7f,
            pkey: half(50),
            qos_class: service >> 4,
            sl: service as u8 & 0xf,
            mtu_selector: bytes[54] >> 6,
            mtu: bytes[54] & 0x3f,
            rate_selector: bytes[55] >> 6,
            rate: bytes[55] & 0x3f,
            packet_life_time_selector: bytes[56] >> 6,
            packet_life_time: bytes[56] & 0x3f,
            preference: bytes[57],
        }
    }
}

impl PathRecData {
    /// The data of a record with its use.
    #[must_use]
    pub fn new(flags: PathFlags, record: &PathRecord) -> Self {
        let bytes = record.to_bytes();
        let word = |i: usize| core::array::from_fn(|byte| bytes[4 * i + byte]);
        Self { flags, reserved: 0, path_rec: core::array::from_fn(|i| u32::from_ne_bytes(word(i))) }
    }

    /// The fields of the record.
    #[must_use]
    pub fn record(&self) -> PathRecord {
        let words = self.path_rec.map(u32::to_ne_bytes);
        PathRecord::from_bytes(&core::array::from_fn(|i| words[i / 4][i % 4]))
    }
}
