//! What the aliases in the sources don't say: items that are no alias, reasons for functions without
//! an item, and what items lack.

/// The answer for a function.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Why {
    Items(Vec<String>),
    None(String),
}

/// The answer for the functions whose names match.
#[derive(Debug)]
pub(super) struct Entry {
    /// A name; `*` at the end stands for any rest.
    pub(super) pattern: &'static str,
    pub(super) why: Why,
}

impl Entry {
    pub(super) fn matches(&self, function: &str) -> bool {
        match self.pattern.strip_suffix('*') {
            Some(prefix) => function.starts_with(prefix),
            None => function == self.pattern,
        }
    }
}

/// The entries, in order. The first that matches a function counts.
pub(super) fn entries() -> Vec<Entry> {
    let items = ITEMS.iter().map(|(pattern, items)| Entry {
        pattern,
        why: Why::Items(items.iter().map(|&item| item.to_owned()).collect()),
    });
    let none = NONE.iter().flat_map(|(reason, patterns)| {
        patterns.iter().map(|pattern| Entry { pattern, why: Why::None((*reason).to_owned()) })
    });
    items.chain(none).collect()
}

/// Functions whose items are no aliases of them.
const ITEMS: &[(&str, &[&str])] = &[
    ("_ibv_query_comp_cntr_caps", &["bareverbs::Context::query_comp_cntr_caps"]),
    ("_ibv_query_gid_ex", &["bareverbs::Context::gid"]),
    ("_ibv_query_gid_table", &["bareverbs::Context::gid_table"]),
    ("htonll", &["bareverbs_provider::Operation::CmpSwp"]),
    ("ibv_free_buf", &["bareverbs::Buffer"]),
    ("ibv_reg_buf_mr", &["bareverbs::Pd::register"]),
    ("mlx5dv_is_supported", &["bareverbs::Context::driver"]),
    ("mlx5dv_qp_ex_from_ibv_qp_ex", &["bareverbs::Qp::start_send"]),
    ("mlx5dv_query_device", &["bareverbs::Context::query_device", "bareverbs::Context::capabilities"]),
    ("mlx5dv_x86_set_ctrl_seg", &["bareverbs_mlx5::Control::segment"]),
    ("mlx5dv_x86_set_data_seg", &["bareverbs_mlx5::wqe::data"]),
    ("rdma_create_srq", &["bareverbs::Pd::create_srq"]),
    ("rdma_create_srq_ex", &["bareverbs::Pd::create_srq", "bareverbs::Pd::create_xrc_srq"]),
    ("rdma_destroy_srq", &["bareverbs::Srq::destroy", "bareverbs::XrcSrq::destroy"]),
];

/// Functions without an item, by reason.
const NONE: &[(&str, &[&str])] = &[
    (
        "called by libibverbs' provider libraries only; `bareverbs::raw` calls any method of the kernel",
        &["ibv_cmd_*", "execute_ioctl", "__ioctl_final_num_attrs"],
    ),
    (
        "called by libibverbs' provider libraries only",
        &[
            "__verbs_log",
            "_verbs_init_and_alloc_context",
            "ibv_dmabuf_heap_*",
            "ibv_read_ibdev_sysfs_file",
            "ibv_register_driver",
            "verbs_*",
            "vext_field_avail",
        ],
    ),
    ("converts between C structs", &["ibv_copy_*"]),
    ("arithmetic of the C headers; `u64::to_be`, `u64::from_be`", &["ntohll"]),
    ("a helper of the C headers", &["ib_addr_*", "rdma_seterrno"]),
    (
        "registered memory needs no marks: the kernel copies it for a child (`SystemInfo::copy_on_fork`)",
        &["ibv_dofork_range", "ibv_dontfork_range"],
    ),
    ("files of sysfs are read without this library", &["ibv_get_sysfs_path", "ibv_read_sysfs_file"]),
    ("the caller allocates memory, and has its dma-buf if it is one", &["ibv_export_buf_dmabuf_fd"]),
    (
        "ESP flow actions are not implemented",
        &["ibv_create_flow_action_esp", "ibv_destroy_flow_action", "ibv_modify_flow_action_esp"],
    ),
    ("tag matching is not implemented", &["ibv_post_srq_ops", "ibv_wc_read_tm_info"]),
    (
        "a property of the device that only libibverbs' providers know; polled memory is not offered",
        &["ibv_query_qp_data_in_order"],
    ),
    ("rates in Mbit/s are not converted back", &["mbps_to_ibv_rate"]),
    (
        "vectored calls and messages with flags are not implemented",
        &["rreadv", "rrecvmsg", "rsendmsg", "rwritev"],
    ),
    (
        "an epoll instance of rsockets; the descriptor of a stream is polled by `poll` and `epoll` themselves",
        &["repoll_create", "repoll_ctl"],
    ),
    (
        "DEVX is not implemented; `bareverbs::raw` calls its methods",
        &["mlx5dv_devx_*", "mlx5dv_get_export_sizes", "_mlx5dv_get_export_sizes"],
    ),
    (
        "device memory of the steering engine, and operations on addresses of it, are not implemented",
        &["mlx5dv_alloc_dm", "mlx5dv_dm_map_op_addr"],
    ),
    (
        "mlx5's own flow matchers and actions are not implemented; `Qp::create_flow` has the rules of verbs",
        &[
            "__mlx5dv_create_flow",
            "mlx5dv_create_flow",
            "mlx5dv_create_flow_action_*",
            "mlx5dv_create_flow_matcher",
            "mlx5dv_create_steering_anchor",
            "mlx5dv_destroy_flow_matcher",
            "mlx5dv_destroy_steering_anchor",
        ],
    ),
    ("software-managed steering (DR) is not implemented", &["mlx5dv_dr_*", "mlx5dv_dump_dr_*"]),
    (
        "needs DEVX to create: mkeys of several regions are not implemented",
        &[
            "mlx5dv_create_mkey",
            "mlx5dv_destroy_mkey",
            "mlx5dv_mkey_check",
            "_mlx5dv_mkey_check",
            "mlx5dv_wr_mkey_configure",
            "mlx5dv_wr_mr_*",
            "mlx5dv_wr_set_mkey_*",
        ],
    ),
    ("inline encryption is not implemented", &["mlx5dv_crypto_*", "mlx5dv_dek_*"]),
    (
        "DC (dynamically connected transport) is not implemented",
        &["mlx5dv_dci_stream_id_reset", "mlx5dv_map_ah_to_qp", "mlx5dv_wr_set_dc_addr*"],
    ),
    ("the memory copy of the device (MMO) is not implemented", &["mlx5dv_wr_memcpy"]),
    ("options of work queues, such as striding receive queues, are not implemented", &["mlx5dv_create_wq"]),
    (
        "doorbell pages for emulated devices (VAR) are not implemented; `bareverbs::raw` calls the methods",
        &["mlx5dv_alloc_var", "mlx5dv_free_var", "mlx5dv_var_*"],
    ),
    (
        "packet pacing entries shared by QPs are not implemented; `Qp::set_rate_limit` limits one QP",
        &["mlx5dv_pp_*"],
    ),
    ("scheduling of send queues is not implemented", &["mlx5dv_modify_qp_sched_elem", "mlx5dv_sched_*"]),
    (
        "the port of a QP in a bond (LAG) is not chosen",
        &["mlx5dv_modify_qp_lag_port", "mlx5dv_query_qp_lag_port"],
    ),
    (
        "the UDP source port follows the flow label of the path (`flow_label_to_udp_sport`)",
        &["mlx5dv_modify_qp_udp_sport"],
    ),
    (
        "the provider decodes CQEs; `bareverbs_mlx5::Cqe` has their opcode",
        &["mlx5dv_get_cqe_format", "mlx5dv_get_cqe_owner", "mlx5dv_get_cqe_se", "mlx5dv_set_cqe_owner"],
    ),
    ("posted requests are not cancelled", &["mlx5dv_qp_cancel_posted_send_wrs"]),
    (
        "mlx5's own attributes of a port have no verb; `bareverbs::raw` queries them",
        &["mlx5dv_query_port", "_mlx5dv_query_port"],
    ),
    ("the sysfs path of the data direct device is not read", &["mlx5dv_get_data_direct_sysfs_path"]),
    ("reserved QP numbers are not implemented", &["mlx5dv_reserved_qpn_*"]),
    ("modes of the C library; `QueueMemory::From` takes an allocator", &["mlx5dv_set_context_attr"]),
    ("devices bound to VFIO are not driven", &["mlx5dv_get_vfio_device_list", "mlx5dv_vfio_*"]),
];

/// What the items of a function lack.
pub(super) const PARTIAL: &[(&str, &str)] = &[
    ("ibv_alloc_buf", "memory that confidential guests share with the device"),
    ("ibv_create_flow", "ESP actions"),
    ("ibv_create_srq_ex", "SRQs with tag matching"),
    ("mlx5dv_create_cq", "the size of CQEs and their padding"),
    ("mlx5dv_create_qp", "DC, tunnel offloads, signature, out-of-order placement"),
    ("mlx5dv_init_obj", "address handles and device memory"),
    ("mlx5dv_open_device", "descriptors (`MLX5DV_CONTEXT_ATTR_MASK_FD_ARRAY`)"),
    ("mlx5dv_query_device", "attributes of features without an item"),
    ("rconnect", "connecting without blocking"),
    ("rdma_getaddrinfo", "`RAI_NOROUTE`, `RAI_SA`, `RAI_DNS`"),
    ("rgetsockopt", "options other than `SO_ERROR` and those that have a method"),
    ("rread", "`MSG_PEEK` and the other flags"),
    ("rrecv", "`MSG_PEEK` and the other flags"),
    ("rsetsockopt", "options that have no method"),
];
