//! GIDs, address vectors and address handles.

use super::c_types;
use super::device::ibv_context;
use super::gid::ibv_gid;
use super::memory::ibv_pd;

c_types! {
    struct ibv_global_route {
        dgid: ibv_gid,
        flow_label: u32,
        sgid_index: u8,
        hop_limit: u8,
        traffic_class: u8,
    }

    struct ibv_ah_attr {
        grh: ibv_global_route,
        dlid: u16,
        sl: u8,
        src_path_bits: u8,
        static_rate: u8,
        is_global: u8,
        port_num: u8,
    }

    struct ibv_ah {
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        handle: u32,
    }

    /// Of `infiniband/sa.h`.
    struct ibv_sa_path_rec {
        dgid: ibv_gid,
        sgid: ibv_gid,
        dlid: u16,
        slid: u16,
        raw_traffic: i32,
        flow_label: u32,
        hop_limit: u8,
        traffic_class: u8,
        reversible: i32,
        numb_path: u8,
        pkey: u16,
        sl: u8,
        mtu_selector: u8,
        mtu: u8,
        rate_selector: u8,
        rate: u8,
        packet_life_time_selector: u8,
        packet_life_time: u8,
        preference: u8,
    }
}
