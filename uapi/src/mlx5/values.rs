//! Enumerations, flags and constants of `rdma/mlx5-abi.h`.

abi_enums! {
    header = "rdma/mlx5-abi.h";

    /// Minimum inline header mode of sends: [`super::AllocUcontextResp::eth_min_inline`].
    enum InlineMode: u8 = "mlx5_user_inline_mode" {
        /// Unknown.
        NA = 0, "MLX5_USER_INLINE_MODE_NA";
        /// None.
        NONE = 1, "MLX5_USER_INLINE_MODE_NONE";
        /// L2 headers.
        L2 = 2, "MLX5_USER_INLINE_MODE_L2";
        /// Headers up to L3 (IP).
        IP = 3, "MLX5_USER_INLINE_MODE_IP";
        /// Headers up to L4 (TCP/UDP).
        TCP_UDP = 4, "MLX5_USER_INLINE_MODE_TCP_UDP";
    }

    /// Command of `mmap` of the device file: bits 8 to 15 of the offset in pages.
    enum MmapCommand: u8 = "mlx5_ib_mmap_cmd" {
        /// A UAR page that was allocated at context creation.
        REGULAR_PAGE = 0, "MLX5_IB_MMAP_REGULAR_PAGE";
        /// Contiguous memory; no longer supported.
        GET_CONTIGUOUS_PAGES = 1, "MLX5_IB_MMAP_GET_CONTIGUOUS_PAGES";
        /// A UAR page, write-combining.
        WC_PAGE = 2, "MLX5_IB_MMAP_WC_PAGE";
        /// A UAR page, non-cached.
        NC_PAGE = 3, "MLX5_IB_MMAP_NC_PAGE";
        /// The page with the device clock.
        CORE_CLOCK = 5, "MLX5_IB_MMAP_CORE_CLOCK";
        /// A UAR page that the mapping allocates, write-combining.
        ALLOC_WC = 6, "MLX5_IB_MMAP_ALLOC_WC";
        /// The page with [`super::ClockInfo`].
        CLOCK_INFO = 7, "MLX5_IB_MMAP_CLOCK_INFO";
        /// Device memory.
        DEVICE_MEM = 8, "MLX5_IB_MMAP_DEVICE_MEM";
    }
}

abi_flags! {
    header = "rdma/mlx5-abi.h";

    /// Flags of QP creation: [`super::CreateQpReq::flags`].
    flags QpFlags: u32 = "" {
        /// WQEs have signatures.
        SIGNATURE = 1 << 0, "MLX5_QP_FLAG_SIGNATURE";
        /// Scatter to CQE.
        SCATTER_CQE = 1 << 1, "MLX5_QP_FLAG_SCATTER_CQE";
        /// Stateless offloads for tunnels.
        TUNNEL_OFFLOADS = 1 << 2, "MLX5_QP_FLAG_TUNNEL_OFFLOADS";
        /// `bfreg_index` is valid.
        BFREG_INDEX = 1 << 3, "MLX5_QP_FLAG_BFREG_INDEX";
        /// The QP is a DCT (dynamically connected target).
        TYPE_DCT = 1 << 4, "MLX5_QP_FLAG_TYPE_DCT";
        /// The QP is a DCI (dynamically connected initiator).
        TYPE_DCI = 1 << 5, "MLX5_QP_FLAG_TYPE_DCI";
        /// Unicast loopback is enabled.
        TIR_ALLOW_SELF_LB_UC = 1 << 6, "MLX5_QP_FLAG_TIR_ALLOW_SELF_LB_UC";
        /// Multicast loopback is enabled.
        TIR_ALLOW_SELF_LB_MC = 1 << 7, "MLX5_QP_FLAG_TIR_ALLOW_SELF_LB_MC";
        /// Scatter to CQE is allowed.
        ALLOW_SCATTER_CQE = 1 << 8, "MLX5_QP_FLAG_ALLOW_SCATTER_CQE";
        /// Packet-based credit mode.
        PACKET_BASED_CREDIT_MODE = 1 << 9, "MLX5_QP_FLAG_PACKET_BASED_CREDIT_MODE";
        /// `bfreg_index` is a UAR page index.
        UAR_PAGE_INDEX = 1 << 10, "MLX5_QP_FLAG_UAR_PAGE_INDEX";
        /// `dci_streams` is valid.
        DCI_STREAM = 1 << 11, "MLX5_QP_FLAG_DCI_STREAM";
    }

    /// Flags of SRQ creation: [`super::CreateSrqReq::flags`].
    flags SrqFlags: u32 = "" {
        /// WQEs have signatures.
        SIGNATURE = 1 << 0, "MLX5_SRQ_FLAG_SIGNATURE";
    }

    /// Flags of WQ creation: [`super::CreateWqReq::flags`].
    flags WqFlags: u32 = "" {
        /// WQEs have signatures.
        SIGNATURE = 1 << 0, "MLX5_WQ_FLAG_SIGNATURE";
    }

    /// Capabilities of the user-space driver: [`super::AllocUcontextReqV2::lib_caps`].
    flags LibCaps: u64 = "mlx5_lib_caps" {
        /// UARs of 4 KiB, independent of the system page size.
        FOUR_K_UAR = 1 << 0, "MLX5_LIB_CAP_4K_UAR";
        /// Dynamic UARs.
        DYN_UAR = 1 << 1, "MLX5_LIB_CAP_DYN_UAR";
    }

    /// Flags of context creation: [`super::AllocUcontextReqV2::flags`].
    flags AllocUcontextFlags: u32 = "mlx5_ib_alloc_uctx_v2_flags" {
        /// DEVX.
        DEVX = 1 << 0, "MLX5_IB_ALLOC_UCTX_DEVX";
    }

    /// Valid fields of [`super::AllocUcontextResp`] and features of the kernel: its `comp_mask`.
    flags AllocUcontextRespMask: u32 = "mlx5_ib_alloc_ucontext_resp_mask" {
        /// `hca_core_clock_offset` is valid.
        CORE_CLOCK_OFFSET = 1 << 0, "MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_CORE_CLOCK_OFFSET";
        /// `dump_fill_mkey` is valid.
        DUMP_FILL_MKEY = 1 << 1, "MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_DUMP_FILL_MKEY";
        /// ECE is supported.
        ECE = 1 << 2, "MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_ECE";
        /// The transition from SQD to RTS is supported.
        SQD2RTS = 1 << 3, "MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_SQD2RTS";
        /// Real-time timestamps in CQEs are supported.
        REAL_TIME_TS = 1 << 4, "MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_REAL_TIME_TS";
        /// The tag of a memory key can be updated.
        MKEY_UPDATE_TAG = 1 << 5, "MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_MKEY_UPDATE_TAG";
    }

    /// Commands with driver payloads: [`super::AllocUcontextResp::cmds_supp_uhw`].
    flags CommandsWithPayload: u8 = "mlx5_user_cmds_supp_uhw" {
        /// Query device.
        QUERY_DEVICE = 1 << 0, "MLX5_USER_CMDS_SUPP_UHW_QUERY_DEVICE";
        /// Create AH.
        CREATE_AH = 1 << 1, "MLX5_USER_CMDS_SUPP_UHW_CREATE_AH";
    }

    /// IPsec capabilities of the device: [`super::AllocUcontextResp::flow_action_flags`].
    flags FlowActionCaps: u16 = "" {
        /// AES-GCM.
        ESP_AES_GCM = 1 << 0, "MLX5_USER_ALLOC_UCONTEXT_FLOW_ACTION_FLAGS_ESP_AES_GCM";
        /// AES-GCM needs metadata.
        ESP_AES_GCM_REQ_METADATA = 1 << 1,
            "MLX5_USER_ALLOC_UCONTEXT_FLOW_ACTION_FLAGS_ESP_AES_GCM_REQ_METADATA";
        /// Steering by security parameter index.
        ESP_AES_GCM_SPI_STEERING = 1 << 2,
            "MLX5_USER_ALLOC_UCONTEXT_FLOW_ACTION_FLAGS_ESP_AES_GCM_SPI_STEERING";
        /// Full offload.
        ESP_AES_GCM_FULL_OFFLOAD = 1 << 3,
            "MLX5_USER_ALLOC_UCONTEXT_FLOW_ACTION_FLAGS_ESP_AES_GCM_FULL_OFFLOAD";
        /// The transmitted initialisation vector is the extended sequence number.
        ESP_AES_GCM_TX_IV_IS_ESN = 1 << 4,
            "MLX5_USER_ALLOC_UCONTEXT_FLOW_ACTION_FLAGS_ESP_AES_GCM_TX_IV_IS_ESN";
    }

    /// Mini CQE formats: [`super::CqeCompressionCaps::supported_format`], and one of them in
    /// [`super::CreateCqReq::cqe_comp_res_format`].
    flags CqeCompressionFormats: u32 = "mlx5_ib_cqe_comp_res_format" {
        /// With the hash.
        HASH = 1 << 0, "MLX5_IB_CQE_RES_FORMAT_HASH";
        /// With the checksum.
        CSUM = 1 << 1, "MLX5_IB_CQE_RES_FORMAT_CSUM";
        /// With checksum and stride.
        CSUM_STRIDX = 1 << 2, "MLX5_IB_CQE_RES_FORMAT_CSUM_STRIDX";
    }

    /// Packet pacing capabilities: [`super::PacketPacingCaps::cap_flags`].
    flags PacketPacingFlags: u8 = "mlx5_ib_packet_pacing_cap_flags" {
        /// Burst control.
        BURST = 1 << 0, "MLX5_IB_PP_SUPPORT_BURST";
    }

    /// Multi-packet send WQEs: [`super::QueryDeviceResp::multi_pkt_send_wqes`].
    flags MultiPacketSends: u32 = "mlx5_ib_mpw_caps" {
        /// Reserved.
        RESERVED = 1 << 0, "MPW_RESERVED";
        /// Packets of the same size.
        ALLOW_MPW = 1 << 1, "MLX5_IB_ALLOW_MPW";
        /// Packets of any size.
        SUPPORT_EMPW = 1 << 2, "MLX5_IB_SUPPORT_EMPW";
    }

    /// Software parsing offloads: [`super::SwParsingCaps::sw_parsing_offloads`].
    flags SwParsing: u32 = "mlx5_ib_sw_parsing_offloads" {
        /// Parsing.
        PARSING = 1 << 0, "MLX5_IB_SW_PARSING";
        /// Checksums.
        CSUM = 1 << 1, "MLX5_IB_SW_PARSING_CSUM";
        /// Segmentation.
        LSO = 1 << 2, "MLX5_IB_SW_PARSING_LSO";
    }

    /// Capabilities of a device: [`super::QueryDeviceResp::flags`].
    flags QueryDeviceFlags: u32 = "mlx5_ib_query_dev_resp_flags" {
        /// Compression of 128-byte CQEs.
        CQE_128B_COMP = 1 << 0, "MLX5_IB_QUERY_DEV_RESP_FLAGS_CQE_128B_COMP";
        /// Padding of 128-byte CQEs.
        CQE_128B_PAD = 1 << 1, "MLX5_IB_QUERY_DEV_RESP_FLAGS_CQE_128B_PAD";
        /// Packet-based credit mode.
        PACKET_BASED_CREDIT_MODE = 1 << 2, "MLX5_IB_QUERY_DEV_RESP_PACKET_BASED_CREDIT_MODE";
        /// Scatter to CQE for DCTs.
        SCAT2CQE_DCT = 1 << 3, "MLX5_IB_QUERY_DEV_RESP_FLAGS_SCAT2CQE_DCT";
        /// Out-of-order data placement.
        OOO_DP = 1 << 4, "MLX5_IB_QUERY_DEV_RESP_FLAGS_OOO_DP" since V7_2;
    }

    /// Tunnels with stateless offloads: [`super::QueryDeviceResp::tunnel_offloads_caps`].
    flags TunnelOffloads: u32 = "mlx5_ib_tunnel_offloads" {
        /// VXLAN.
        VXLAN = 1 << 0, "MLX5_IB_TUNNELED_OFFLOADS_VXLAN";
        /// GRE.
        GRE = 1 << 1, "MLX5_IB_TUNNELED_OFFLOADS_GRE";
        /// Geneve.
        GENEVE = 1 << 2, "MLX5_IB_TUNNELED_OFFLOADS_GENEVE";
        /// MPLS over GRE.
        MPLS_GRE = 1 << 3, "MLX5_IB_TUNNELED_OFFLOADS_MPLS_GRE";
        /// MPLS over UDP.
        MPLS_UDP = 1 << 4, "MLX5_IB_TUNNELED_OFFLOADS_MPLS_UDP";
    }

    /// Flags of CQ creation: [`super::CreateCqReq::flags`].
    flags CqFlags: u16 = "mlx5_ib_create_cq_flags" {
        /// 128-byte CQEs are padded.
        CQE_128B_PAD = 1 << 0, "MLX5_IB_CREATE_CQ_FLAGS_CQE_128B_PAD";
        /// `uar_page_index` is valid.
        UAR_PAGE_INDEX = 1 << 1, "MLX5_IB_CREATE_CQ_FLAGS_UAR_PAGE_INDEX";
        /// CQEs have real-time timestamps.
        REAL_TIME_TS = 1 << 2, "MLX5_IB_CREATE_CQ_FLAGS_REAL_TIME_TS";
    }

    /// RSS hash functions: [`super::CreateQpRssReq::rx_hash_function`].
    flags RxHashFunctions: u8 = "mlx5_rx_hash_function_flags" {
        /// Toeplitz.
        TOEPLITZ = 1 << 0, "MLX5_RX_HASH_FUNC_TOEPLITZ";
    }

    /// RSS hash fields: [`super::CreateQpRssReq::rx_hash_fields_mask`]. IPv4 and IPv6 are mutually
    /// exclusive. TCP and UDP are mutually exclusive.
    flags RxHashFields: u64 = "mlx5_rx_hash_fields" {
        /// IPv4 source.
        SRC_IPV4 = 1 << 0, "MLX5_RX_HASH_SRC_IPV4";
        /// IPv4 destination.
        DST_IPV4 = 1 << 1, "MLX5_RX_HASH_DST_IPV4";
        /// IPv6 source.
        SRC_IPV6 = 1 << 2, "MLX5_RX_HASH_SRC_IPV6";
        /// IPv6 destination.
        DST_IPV6 = 1 << 3, "MLX5_RX_HASH_DST_IPV6";
        /// TCP source port.
        SRC_PORT_TCP = 1 << 4, "MLX5_RX_HASH_SRC_PORT_TCP";
        /// TCP destination port.
        DST_PORT_TCP = 1 << 5, "MLX5_RX_HASH_DST_PORT_TCP";
        /// UDP source port.
        SRC_PORT_UDP = 1 << 6, "MLX5_RX_HASH_SRC_PORT_UDP";
        /// UDP destination port.
        DST_PORT_UDP = 1 << 7, "MLX5_RX_HASH_DST_PORT_UDP";
        /// IPsec security parameter index.
        IPSEC_SPI = 1 << 8, "MLX5_RX_HASH_IPSEC_SPI";
        /// The inner packet of a tunnel.
        INNER = 1 << 31, "MLX5_RX_HASH_INNER";
    }

    /// Valid fields of [`super::CreateQpResp`]: its `comp_mask`.
    flags CreateQpRespMask: u32 = "mlx5_ib_create_qp_resp_mask" {
        /// `tirn`.
        TIRN = 1 << 0, "MLX5_IB_CREATE_QP_RESP_MASK_TIRN";
        /// `tisn`.
        TISN = 1 << 1, "MLX5_IB_CREATE_QP_RESP_MASK_TISN";
        /// `rqn`.
        RQN = 1 << 2, "MLX5_IB_CREATE_QP_RESP_MASK_RQN";
        /// `sqn`.
        SQN = 1 << 3, "MLX5_IB_CREATE_QP_RESP_MASK_SQN";
        /// `tir_icm_addr`.
        TIR_ICM_ADDR = 1 << 4, "MLX5_IB_CREATE_QP_RESP_MASK_TIR_ICM_ADDR";
    }

    /// Valid fields of [`super::CreateWqReq`]: its `comp_mask`.
    flags CreateWqMask: u32 = "mlx5_ib_create_wq_mask" {
        /// The fields of striding receive queues.
        STRIDING_RQ = 1 << 0, "MLX5_IB_CREATE_WQ_STRIDING_RQ";
    }

    /// Requested changes of [`super::ModifyQpReq`]: its `comp_mask`.
    flags ModifyQpMask: u32 = "mlx5_ib_modify_qp_mask" {
        /// Out-of-order data placement.
        OOO_DP = 1 << 0, "MLX5_IB_MODIFY_QP_OOO_DP" since V7_2;
    }
}

abi_consts! {
    header = "rdma/mlx5-abi.h";

    /// Version of the driver ABI.
    const ABI_VERSION: u32 = 1, "MLX5_IB_UVERBS_ABI_VERSION";
    /// Flag of [`super::ClockInfo::sign`]: the kernel is updating the page.
    const CLOCK_INFO_KERNEL_UPDATING: u32 = 1, "MLX5_IB_CLOCK_INFO_KERNEL_UPDATING";
    /// Bit number of version 1 in [`super::AllocUcontextResp::clock_info_versions`].
    const CLOCK_INFO_V1: u32 = 0, "MLX5_IB_CLOCK_INFO_V1";
}
