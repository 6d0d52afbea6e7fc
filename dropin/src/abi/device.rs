//! Devices and contexts.

use std::ffi::{c_char, c_int, c_void};

use zerocopy::{Immutable, IntoBytes};

use super::gid::ibv_gid;
use super::{Function, Unused, c_types};

c_types! {
    /// `ibv_device.ops` of the first ABI, which nothing calls.
    struct _ibv_device_ops {
        _dummy1: Function,
        _dummy2: Function,
    }

    struct ibv_device {
        _ops: _ibv_device_ops,
        node_type: c_int,
        transport_type: c_int,
        name: [c_char; 64],
        dev_name: [c_char; 64],
        dev_path: [c_char; 256],
        ibdev_path: [c_char; 256],
    }

    /// The functions that the inline functions of the first ABI call.
    struct ibv_context_ops {
        _compat_query_device: Function,
        _compat_query_port: Function,
        _compat_alloc_pd: Function,
        _compat_dealloc_pd: Function,
        _compat_reg_mr: Function,
        _compat_rereg_mr: Function,
        _compat_dereg_mr: Function,
        alloc_mw: Function,
        bind_mw: Function,
        dealloc_mw: Function,
        _compat_create_cq: Function,
        poll_cq: Function,
        req_notify_cq: Function,
        _compat_cq_event: Function,
        _compat_resize_cq: Function,
        _compat_destroy_cq: Function,
        _compat_create_srq: Function,
        _compat_modify_srq: Function,
        _compat_query_srq: Function,
        _compat_destroy_srq: Function,
        post_srq_recv: Function,
        _compat_create_qp: Function,
        _compat_query_qp: Function,
        _compat_modify_qp: Function,
        _compat_destroy_qp: Function,
        post_send: Function,
        post_recv: Function,
        _compat_create_ah: Function,
        _compat_destroy_ah: Function,
        _compat_attach_mcast: Function,
        _compat_detach_mcast: Function,
        _compat_async_event: Function,
    }

    struct ibv_context {
        device: *mut ibv_device,
        ops: ibv_context_ops,
        cmd_fd: c_int,
        async_fd: c_int,
        num_comp_vectors: c_int,
        mutex: Unused<libc::pthread_mutex_t>,
        abi_compat: *mut c_void,
    }

    /// The functions that the inline functions of later ABIs call, in front of the context.
    struct verbs_context {
        free_buf: Function,
        alloc_buf: Function,
        dm_export_dmabuf_fd: Function,
        reg_mr_ex: Function,
        dealloc_dmah: Function,
        alloc_dmah: Function,
        query_port: Function,
        advise_mr: Function,
        alloc_null_mr: Function,
        read_counters: Function,
        attach_counters_point_flow: Function,
        create_counters: Function,
        destroy_counters: Function,
        reg_dm_mr: Function,
        alloc_dm: Function,
        free_dm: Function,
        modify_flow_action_esp: Function,
        destroy_flow_action: Function,
        create_flow_action_esp: Function,
        modify_qp_rate_limit: Function,
        alloc_parent_domain: Function,
        dealloc_td: Function,
        alloc_td: Function,
        modify_cq: Function,
        post_srq_ops: Function,
        destroy_rwq_ind_table: Function,
        create_rwq_ind_table: Function,
        destroy_wq: Function,
        modify_wq: Function,
        create_wq: Function,
        query_rt_values: Function,
        create_cq_ex: Function,
        private as "priv": *mut c_void,
        query_device_ex: Function,
        ibv_destroy_flow: Function,
        ABI_placeholder2: Function,
        ibv_create_flow: Function,
        ABI_placeholder1: Function,
        open_qp: Function,
        create_qp_ex: Function,
        get_srq_num: Function,
        create_srq_ex: Function,
        open_xrcd: Function,
        close_xrcd: Function,
        _ABI_placeholder3: u64,
        sz: usize,
        context: ibv_context,
    }

    #[derive(IntoBytes, Immutable)]
    struct ibv_device_attr {
        fw_ver: [c_char; 64],
        /// In network byte order, as the next one.
        node_guid: u64,
        sys_image_guid: u64,
        max_mr_size: u64,
        page_size_cap: u64,
        vendor_id: u32,
        vendor_part_id: u32,
        hw_ver: u32,
        max_qp: u32,
        max_qp_wr: u32,
        device_cap_flags: u32,
        max_sge: u32,
        max_sge_rd: u32,
        max_cq: u32,
        max_cqe: u32,
        max_mr: u32,
        max_pd: u32,
        max_qp_rd_atom: u32,
        max_ee_rd_atom: u32,
        max_res_rd_atom: u32,
        max_qp_init_rd_atom: u32,
        max_ee_init_rd_atom: u32,
        atomic_cap: u32,
        max_ee: u32,
        max_rdd: u32,
        max_mw: u32,
        max_raw_ipv6_qp: u32,
        max_raw_ethy_qp: u32,
        max_mcast_grp: u32,
        max_mcast_qp_attach: u32,
        max_total_mcast_qp_attach: u32,
        max_ah: u32,
        max_fmr: u32,
        max_map_per_fmr: u32,
        max_srq: u32,
        max_srq_wr: u32,
        max_srq_sge: u32,
        max_pkeys: u16,
        local_ca_ack_delay: u8,
        phys_port_cnt: u8,
        padding as "": u32,
    }

    #[derive(IntoBytes, Immutable)]
    struct odp_transport_caps in "__typeof__(((struct ibv_odp_caps *)0)->per_transport_caps)" {
        rc_odp_caps: u32,
        uc_odp_caps: u32,
        ud_odp_caps: u32,
    }

    #[derive(IntoBytes, Immutable)]
    struct ibv_odp_caps {
        general_caps: u64,
        per_transport_caps: odp_transport_caps,
        padding as "": u32,
    }

    #[derive(IntoBytes, Immutable)]
    struct ibv_tso_caps {
        max_tso: u32,
        supported_qpts: u32,
    }

    #[derive(IntoBytes, Immutable)]
    struct ibv_rss_caps {
        supported_qpts: u32,
        max_rwq_indirection_tables: u32,
        max_rwq_indirection_table_size: u32,
        padding as "": u32,
        rx_hash_fields_mask: u64,
        rx_hash_function: u8,
        more_padding as "": [u8; 7],
    }

    #[derive(IntoBytes, Immutable)]
    struct ibv_packet_pacing_caps {
        qp_rate_limit_min: u32,
        qp_rate_limit_max: u32,
        supported_qpts: u32,
    }

    #[derive(IntoBytes, Immutable)]
    struct ibv_tm_caps {
        max_rndv_hdr_size: u32,
        max_num_tags: u32,
        flags: u32,
        max_ops: u32,
        max_sge: u32,
    }

    #[derive(IntoBytes, Immutable)]
    struct ibv_cq_moderation_caps {
        max_cq_count: u16,
        max_cq_period: u16,
    }

    #[derive(IntoBytes, Immutable)]
    struct ibv_pci_atomic_caps {
        fetch_add: u16,
        swap: u16,
        compare_swap: u16,
    }

    #[derive(IntoBytes, Immutable)]
    struct ibv_device_attr_ex {
        orig_attr: ibv_device_attr,
        comp_mask: u32,
        padding as "": u32,
        odp_caps: ibv_odp_caps,
        completion_timestamp_mask: u64,
        hca_core_clock: u64,
        device_cap_flags_ex: u64,
        tso_caps: ibv_tso_caps,
        rss_caps: ibv_rss_caps,
        max_wq_type_rq: u32,
        packet_pacing_caps: ibv_packet_pacing_caps,
        raw_packet_caps: u32,
        tm_caps: ibv_tm_caps,
        cq_mod_caps: ibv_cq_moderation_caps,
        more_padding as "": u32,
        max_dm_size: u64,
        pci_atomic_caps: ibv_pci_atomic_caps,
        last_padding as "": u16,
        xrc_odp_caps: u32,
        phys_port_cnt_ex: u32,
    }

    struct ibv_query_device_ex_input {
        comp_mask: u32,
    }

    #[derive(IntoBytes, Immutable)]
    struct ibv_port_attr {
        state: u32,
        max_mtu: u32,
        active_mtu: u32,
        gid_tbl_len: u32,
        port_cap_flags: u32,
        max_msg_sz: u32,
        bad_pkey_cntr: u32,
        qkey_viol_cntr: u32,
        pkey_tbl_len: u16,
        lid: u16,
        sm_lid: u16,
        lmc: u8,
        max_vl_num: u8,
        sm_sl: u8,
        subnet_timeout: u8,
        init_type_reply: u8,
        active_width: u8,
        active_speed: u8,
        phys_state: u8,
        link_layer: u8,
        flags: u8,
        port_cap_flags2: u16,
        padding as "": u16,
        active_speed_ex: u32,
    }

    struct ibv_values_ex {
        comp_mask: u32,
        raw_clock: libc::timespec,
    }

    #[derive(IntoBytes, Immutable)]
    struct ibv_gid_entry {
        gid: ibv_gid,
        gid_index: u32,
        port_num: u32,
        gid_type: u32,
        ndev_ifindex: u32,
    }
}
