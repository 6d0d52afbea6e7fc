//! Enumerations, flags and constants of `rdma/mlx5-abi.h`.

abi_enums! {
    header = "rdma/mlx5-abi.h";

    /// How many bytes of headers a send must carry inline:
    /// [`super::AllocUcontextResp::eth_min_inline`].
    enum InlineMode: u8 = "mlx5_user_inline_mode" {
        /// The kernel does not say.
        NA = 0, "MLX5_USER_INLINE_MODE_NA";
        /// None.
        NONE = 1, "MLX5_USER_INLINE_MODE_NONE";
        /// The link layer's.
        L2 = 2, "MLX5_USER_INLINE_MODE_L2";
        /// Up to the network layer's.
        IP = 3, "MLX5_USER_INLINE_MODE_IP";
        /// Up to the transport layer's.
        TCP_UDP = 4, "MLX5_USER_INLINE_MODE_TCP_UDP";
    }

    /// What a mapping of the device file gives: bits 8 to 15 of the offset in pages.
    enum MmapCommand: u8 = "mlx5_ib_mmap_cmd" {
        /// A page of the doorbell area, as it was asked for when the context was made.
        REGULAR_PAGE = 0, "MLX5_IB_MMAP_REGULAR_PAGE";
        /// Contiguous memory; no longer given.
        GET_CONTIGUOUS_PAGES = 1, "MLX5_IB_MMAP_GET_CONTIGUOUS_PAGES";
        /// A page of the doorbell area, write-combining.
        WC_PAGE = 2, "MLX5_IB_MMAP_WC_PAGE";
        /// A page of the doorbell area, not cached.
        NC_PAGE = 3, "MLX5_IB_MMAP_NC_PAGE";
        /// The page with the device's clock.
        CORE_CLOCK = 5, "MLX5_IB_MMAP_CORE_CLOCK";
        /// A page of the doorbell area made by the mapping itself, write-combining.
        ALLOC_WC = 6, "MLX5_IB_MMAP_ALLOC_WC";
        /// The page with [`super::ClockInfo`].
        CLOCK_INFO = 7, "MLX5_IB_MMAP_CLOCK_INFO";
        /// Device memory.
        DEVICE_MEM = 8, "MLX5_IB_MMAP_DEVICE_MEM";
    }
}

abi_flags! {
    header = "rdma/mlx5-abi.h";

    /// How a QP is made: [`super::CreateQpReq::flags`].
    flags QpFlags: u32 = "" {
        /// Requests carry a signature.
        SIGNATURE = 1 << 0, "MLX5_QP_FLAG_SIGNATURE";
        /// Short data comes in the completion.
        SCATTER_CQE = 1 << 1, "MLX5_QP_FLAG_SCATTER_CQE";
        /// Stateless offloads reach into tunnels.
        TUNNEL_OFFLOADS = 1 << 2, "MLX5_QP_FLAG_TUNNEL_OFFLOADS";
        /// `bfreg_index` says which doorbell register to use.
        BFREG_INDEX = 1 << 3, "MLX5_QP_FLAG_BFREG_INDEX";
        /// A dynamically connected target.
        TYPE_DCT = 1 << 4, "MLX5_QP_FLAG_TYPE_DCT";
        /// A dynamically connected initiator.
        TYPE_DCI = 1 << 5, "MLX5_QP_FLAG_TYPE_DCI";
        /// Unicast packets loop back to the sender.
        TIR_ALLOW_SELF_LB_UC = 1 << 6, "MLX5_QP_FLAG_TIR_ALLOW_SELF_LB_UC";
        /// Multicast packets loop back to the sender.
        TIR_ALLOW_SELF_LB_MC = 1 << 7, "MLX5_QP_FLAG_TIR_ALLOW_SELF_LB_MC";
        /// Short data may come in the completion.
        ALLOW_SCATTER_CQE = 1 << 8, "MLX5_QP_FLAG_ALLOW_SCATTER_CQE";
        /// Credits count packets.
        PACKET_BASED_CREDIT_MODE = 1 << 9, "MLX5_QP_FLAG_PACKET_BASED_CREDIT_MODE";
        /// `bfreg_index` is the number of a page of the doorbell area.
        UAR_PAGE_INDEX = 1 << 10, "MLX5_QP_FLAG_UAR_PAGE_INDEX";
        /// `dci_streams` counts.
        DCI_STREAM = 1 << 11, "MLX5_QP_FLAG_DCI_STREAM";
    }

    /// How an SRQ is made: [`super::CreateSrqReq::flags`].
    flags SrqFlags: u32 = "" {
        /// Requests carry a signature.
        SIGNATURE = 1 << 0, "MLX5_SRQ_FLAG_SIGNATURE";
    }

    /// How a WQ is made: [`super::CreateWqReq::flags`].
    flags WqFlags: u32 = "" {
        /// Requests carry a signature.
        SIGNATURE = 1 << 0, "MLX5_WQ_FLAG_SIGNATURE";
    }

    /// What the user-space driver can do: [`super::AllocUcontextReqV2::lib_caps`].
    flags LibCaps: u64 = "mlx5_lib_caps" {
        /// Doorbell pages of 4 KiB, whatever the system's pages are.
        FOUR_K_UAR = 1 << 0, "MLX5_LIB_CAP_4K_UAR";
        /// Doorbell pages made when needed.
        DYN_UAR = 1 << 1, "MLX5_LIB_CAP_DYN_UAR";
    }

    /// What a context is to be able to do: [`super::AllocUcontextReqV2::flags`].
    flags AllocUcontextFlags: u32 = "mlx5_ib_alloc_uctx_v2_flags" {
        /// Pass commands to the firmware.
        DEVX = 1 << 0, "MLX5_IB_ALLOC_UCTX_DEVX";
    }

    /// Which fields of [`super::AllocUcontextResp`] count or what the kernel can do: its
    /// `comp_mask`.
    flags AllocUcontextRespMask: u32 = "mlx5_ib_alloc_ucontext_resp_mask" {
        /// `hca_core_clock_offset` counts.
        CORE_CLOCK_OFFSET = 1 << 0, "MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_CORE_CLOCK_OFFSET";
        /// `dump_fill_mkey` counts.
        DUMP_FILL_MKEY = 1 << 1, "MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_DUMP_FILL_MKEY";
        /// QPs take vendor options when they connect.
        ECE = 1 << 2, "MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_ECE";
        /// A QP can go from drained to ready.
        SQD2RTS = 1 << 3, "MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_SQD2RTS";
        /// Completions can carry real time.
        REAL_TIME_TS = 1 << 4, "MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_REAL_TIME_TS";
        /// The tag of a memory key can be changed.
        MKEY_UPDATE_TAG = 1 << 5, "MLX5_IB_ALLOC_UCONTEXT_RESP_MASK_MKEY_UPDATE_TAG";
    }

    /// Which commands take a driver's payload: [`super::AllocUcontextResp::cmds_supp_uhw`].
    flags CommandsWithPayload: u8 = "mlx5_user_cmds_supp_uhw" {
        /// Query device.
        QUERY_DEVICE = 1 << 0, "MLX5_USER_CMDS_SUPP_UHW_QUERY_DEVICE";
        /// Create AH.
        CREATE_AH = 1 << 1, "MLX5_USER_CMDS_SUPP_UHW_CREATE_AH";
    }

    /// What IPsec the device can do: [`super::AllocUcontextResp::flow_action_flags`].
    flags FlowActionCaps: u16 = "" {
        /// AES-GCM.
        ESP_AES_GCM = 1 << 0, "MLX5_USER_ALLOC_UCONTEXT_FLOW_ACTION_FLAGS_ESP_AES_GCM";
        /// AES-GCM needs metadata.
        ESP_AES_GCM_REQ_METADATA = 1 << 1,
            "MLX5_USER_ALLOC_UCONTEXT_FLOW_ACTION_FLAGS_ESP_AES_GCM_REQ_METADATA";
        /// Steering by security parameter index.
        ESP_AES_GCM_SPI_STEERING = 1 << 2,
            "MLX5_USER_ALLOC_UCONTEXT_FLOW_ACTION_FLAGS_ESP_AES_GCM_SPI_STEERING";
        /// The device does all of it.
        ESP_AES_GCM_FULL_OFFLOAD = 1 << 3,
            "MLX5_USER_ALLOC_UCONTEXT_FLOW_ACTION_FLAGS_ESP_AES_GCM_FULL_OFFLOAD";
        /// The sent initialization vector is the extended sequence number.
        ESP_AES_GCM_TX_IV_IS_ESN = 1 << 4,
            "MLX5_USER_ALLOC_UCONTEXT_FLOW_ACTION_FLAGS_ESP_AES_GCM_TX_IV_IS_ESN";
    }

    /// Formats of compressed completions: [`super::CqeCompressionCaps::supported_format`], one of
    /// them as [`super::CreateCqReq::cqe_comp_res_format`].
    flags CqeCompressionFormats: u32 = "mlx5_ib_cqe_comp_res_format" {
        /// With the hash.
        HASH = 1 << 0, "MLX5_IB_CQE_RES_FORMAT_HASH";
        /// With the checksum.
        CSUM = 1 << 1, "MLX5_IB_CQE_RES_FORMAT_CSUM";
        /// With checksum and stride.
        CSUM_STRIDX = 1 << 2, "MLX5_IB_CQE_RES_FORMAT_CSUM_STRIDX";
    }

    /// How a sending rate can be bounded: [`super::PacketPacingCaps::cap_flags`].
    flags PacketPacingFlags: u8 = "mlx5_ib_packet_pacing_cap_flags" {
        /// With bursts.
        BURST = 1 << 0, "MLX5_IB_PP_SUPPORT_BURST";
    }

    /// Sends of several packets in one request: [`super::QueryDeviceResp::multi_pkt_send_wqes`].
    flags MultiPacketSends: u32 = "mlx5_ib_mpw_caps" {
        /// Without meaning.
        RESERVED = 1 << 0, "MPW_RESERVED";
        /// Of the same size.
        ALLOW_MPW = 1 << 1, "MLX5_IB_ALLOW_MPW";
        /// Of any size.
        SUPPORT_EMPW = 1 << 2, "MLX5_IB_SUPPORT_EMPW";
    }

    /// What a send's own description of its headers allows:
    /// [`super::SwParsingCaps::sw_parsing_offloads`].
    flags SwParsing: u32 = "mlx5_ib_sw_parsing_offloads" {
        /// Parsing.
        PARSING = 1 << 0, "MLX5_IB_SW_PARSING";
        /// Checksums.
        CSUM = 1 << 1, "MLX5_IB_SW_PARSING_CSUM";
        /// Segmentation.
        LSO = 1 << 2, "MLX5_IB_SW_PARSING_LSO";
    }

    /// What a device can do: [`super::QueryDeviceResp::flags`].
    flags QueryDeviceFlags: u32 = "mlx5_ib_query_dev_resp_flags" {
        /// Compressed completions of 128 bytes.
        CQE_128B_COMP = 1 << 0, "MLX5_IB_QUERY_DEV_RESP_FLAGS_CQE_128B_COMP";
        /// Padded completions of 128 bytes.
        CQE_128B_PAD = 1 << 1, "MLX5_IB_QUERY_DEV_RESP_FLAGS_CQE_128B_PAD";
        /// Credits that count packets.
        PACKET_BASED_CREDIT_MODE = 1 << 2, "MLX5_IB_QUERY_DEV_RESP_PACKET_BASED_CREDIT_MODE";
        /// Short data in the completion of a dynamically connected target.
        SCAT2CQE_DCT = 1 << 3, "MLX5_IB_QUERY_DEV_RESP_FLAGS_SCAT2CQE_DCT";
        /// Data placed out of order.
        OOO_DP = 1 << 4, "MLX5_IB_QUERY_DEV_RESP_FLAGS_OOO_DP" since V7_2;
    }

    /// Tunnels that stateless offloads reach into:
    /// [`super::QueryDeviceResp::tunnel_offloads_caps`].
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

    /// How a CQ is made: [`super::CreateCqReq::flags`].
    flags CqFlags: u16 = "mlx5_ib_create_cq_flags" {
        /// Completions of 128 bytes are padded.
        CQE_128B_PAD = 1 << 0, "MLX5_IB_CREATE_CQ_FLAGS_CQE_128B_PAD";
        /// `uar_page_index` counts.
        UAR_PAGE_INDEX = 1 << 1, "MLX5_IB_CREATE_CQ_FLAGS_UAR_PAGE_INDEX";
        /// Completions carry real time.
        REAL_TIME_TS = 1 << 2, "MLX5_IB_CREATE_CQ_FLAGS_REAL_TIME_TS";
    }

    /// Functions that spread received packets: [`super::CreateQpRssReq::rx_hash_function`].
    flags RxHashFunctions: u8 = "mlx5_rx_hash_function_flags" {
        /// Toeplitz.
        TOEPLITZ = 1 << 0, "MLX5_RX_HASH_FUNC_TOEPLITZ";
    }

    /// What of a packet counts when received packets are spread:
    /// [`super::CreateQpRssReq::rx_hash_fields_mask`]. IPv4 and IPv6 exclude each other, and so do
    /// TCP and UDP.
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

    /// Which fields of [`super::CreateQpResp`] count: its `comp_mask`.
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

    /// Which fields of [`super::CreateWqReq`] count: its `comp_mask`.
    flags CreateWqMask: u32 = "mlx5_ib_create_wq_mask" {
        /// Those of striding.
        STRIDING_RQ = 1 << 0, "MLX5_IB_CREATE_WQ_STRIDING_RQ";
    }

    /// What [`super::ModifyQpReq`] asks for: its `comp_mask`.
    flags ModifyQpMask: u32 = "mlx5_ib_modify_qp_mask" {
        /// Data placed out of order.
        OOO_DP = 1 << 0, "MLX5_IB_MODIFY_QP_OOO_DP" since V7_2;
    }
}

abi_consts! {
    header = "rdma/mlx5-abi.h";

    /// Version of the driver's ABI, as query of the device's ABI tells it.
    const ABI_VERSION: u32 = 1, "MLX5_IB_UVERBS_ABI_VERSION";
    /// Bit of [`super::ClockInfo::sign`]: the kernel is writing.
    const CLOCK_INFO_KERNEL_UPDATING: u32 = 1, "MLX5_IB_CLOCK_INFO_KERNEL_UPDATING";
    /// Number of the bit of [`super::AllocUcontextResp::clock_info_versions`] for the first format.
    const CLOCK_INFO_V1: u32 = 0, "MLX5_IB_CLOCK_INFO_V1";
}
