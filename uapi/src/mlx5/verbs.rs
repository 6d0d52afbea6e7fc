//! Types of driver-specific methods, `rdma/mlx5_user_ioctl_verbs.h`.

abi_structs! {
    header = "rdma/mlx5_user_ioctl_verbs.h";

    /// Header of data read from a [`super::DevxAsyncCmdFd`]. The response of a query follows.
    struct DevxAsyncCmdHeader = tag "mlx5_ib_uapi_devx_async_cmd_hdr" {
        /// The `wr_id` of the query.
        wr_id: u64;
        /// Start of the response of the firmware.
        out_data: [u8; 0];
    }

    /// Header of data read from a [`super::DevxAsyncEventFd`]. The event follows, unless it is
    /// omitted.
    struct DevxAsyncEventHeader = tag "mlx5_ib_uapi_devx_async_event_hdr" {
        /// The cookie of the subscription.
        cookie: u64;
        /// Start of the event of the firmware.
        out_data: [u8; 0];
    }

    /// A metadata register of packets.
    struct Reg = tag "mlx5_ib_uapi_reg" {
        /// Value.
        value: u32;
        /// Mask of the value.
        mask: u32;
    }

    /// Information about a port of the e-switch.
    struct PortInfo = tag "mlx5_ib_uapi_query_port" {
        /// Mask of the valid fields.
        flags: QueryPortFlags;
        /// Its vport number.
        vport: u16;
        /// VHCA id of the function of the vport.
        vport_vhca_id: u16;
        /// VHCA id of the function that owns the e-switch.
        esw_owner_vhca_id: u16;
        /// Zero.
        reserved: u16 = "rsvd0";
        /// ICM address of receive steering.
        vport_steering_icm_rx: u64;
        /// ICM address of transmit steering.
        vport_steering_icm_tx: u64;
        /// Metadata register that identifies its packets.
        reg_c0: Reg;
    }
}

abi_enums! {
    header = "rdma/mlx5_user_ioctl_verbs.h";

    /// Type of a flow table.
    enum FlowTableType: u32 = "mlx5_ib_uapi_flow_table_type" {
        /// NIC receive.
        NIC_RX = 0, "MLX5_IB_UAPI_FLOW_TABLE_TYPE_NIC_RX";
        /// NIC transmit.
        NIC_TX = 1, "MLX5_IB_UAPI_FLOW_TABLE_TYPE_NIC_TX";
        /// E-switch (FDB).
        FDB = 2, "MLX5_IB_UAPI_FLOW_TABLE_TYPE_FDB";
        /// RDMA receive.
        RDMA_RX = 3, "MLX5_IB_UAPI_FLOW_TABLE_TYPE_RDMA_RX";
        /// RDMA transmit.
        RDMA_TX = 4, "MLX5_IB_UAPI_FLOW_TABLE_TYPE_RDMA_TX";
        /// RDMA transport receive.
        RDMA_TRANSPORT_RX = 5, "MLX5_IB_UAPI_FLOW_TABLE_TYPE_RDMA_TRANSPORT_RX" since V7_2;
        /// RDMA transport transmit.
        RDMA_TRANSPORT_TX = 6, "MLX5_IB_UAPI_FLOW_TABLE_TYPE_RDMA_TRANSPORT_TX" since V7_2;
    }

    /// Type of a packet reformat action.
    enum PacketReformatType: u32 = "mlx5_ib_uapi_flow_action_packet_reformat_type" {
        /// Decapsulate an L2 tunnel.
        L2_TUNNEL_TO_L2 = 0, "MLX5_IB_UAPI_FLOW_ACTION_PACKET_REFORMAT_TYPE_L2_TUNNEL_TO_L2";
        /// Encapsulate in an L2 tunnel.
        L2_TO_L2_TUNNEL = 1, "MLX5_IB_UAPI_FLOW_ACTION_PACKET_REFORMAT_TYPE_L2_TO_L2_TUNNEL";
        /// Decapsulate an L3 tunnel and add an L2 header.
        L3_TUNNEL_TO_L2 = 2, "MLX5_IB_UAPI_FLOW_ACTION_PACKET_REFORMAT_TYPE_L3_TUNNEL_TO_L2";
        /// Encapsulate in an L3 tunnel, without the L2 header.
        L2_TO_L3_TUNNEL = 3, "MLX5_IB_UAPI_FLOW_ACTION_PACKET_REFORMAT_TYPE_L2_TO_L3_TUNNEL";
    }

    /// Type of device memory.
    enum DmType: u32 = "mlx5_ib_uapi_dm_type" {
        /// Memory for applications.
        MEMIC = 0, "MLX5_IB_UAPI_DM_TYPE_MEMIC";
        /// ICM for software steering.
        STEERING_SW_ICM = 1, "MLX5_IB_UAPI_DM_TYPE_STEERING_SW_ICM";
        /// ICM for modify-header actions.
        HEADER_MODIFY_SW_ICM = 2, "MLX5_IB_UAPI_DM_TYPE_HEADER_MODIFY_SW_ICM";
        /// ICM for modify-header patterns.
        HEADER_MODIFY_PATTERN_SW_ICM = 3, "MLX5_IB_UAPI_DM_TYPE_HEADER_MODIFY_PATTERN_SW_ICM";
        /// ICM for encapsulation headers.
        ENCAP_SW_ICM = 4, "MLX5_IB_UAPI_DM_TYPE_ENCAP_SW_ICM" since V6_12;
    }

    /// Allocation type of a UAR.
    enum UarType: u32 = "mlx5_ib_uapi_uar_alloc_type" {
        /// Write-combining.
        BF = 0, "MLX5_IB_UAPI_UAR_ALLOC_TYPE_BF";
        /// Not cached.
        NC = 1, "MLX5_IB_UAPI_UAR_ALLOC_TYPE_NC";
    }
}

abi_flags! {
    header = "rdma/mlx5_user_ioctl_verbs.h";

    /// Flags of an IPsec action.
    flags FlowActionFlags: u32 = "mlx5_ib_uapi_flow_action_flags" {
        /// Packets have metadata.
        REQUIRE_METADATA = 1 << 0, "MLX5_IB_UAPI_FLOW_ACTION_FLAGS_REQUIRE_METADATA";
    }

    /// Flags of dma-buf registration.
    flags RegDmabufFlags: u32 = "mlx5_ib_uapi_reg_dmabuf_flags" {
        /// Use the data direct function.
        DATA_DIRECT = 1 << 0, "MLX5_IB_UAPI_REG_DMABUF_ACCESS_DATA_DIRECT" since V6_12;
    }

    /// Flags of a firmware event channel.
    flags DevxEventChannelFlags: u32 = "mlx5_ib_uapi_devx_create_event_channel_flags" {
        /// Event data is omitted: reads return cookies only.
        OMIT_DATA = 1 << 0, "MLX5_IB_UAPI_DEVX_CR_EV_CH_FLAGS_OMIT_DATA";
    }

    /// Flags of a packet pacing entry.
    flags PpFlags: u32 = "mlx5_ib_uapi_pp_alloc_flags" {
        /// Not shared.
        DEDICATED_INDEX = 1 << 0, "MLX5_IB_UAPI_PP_ALLOC_FLAGS_DEDICATED_INDEX";
    }

    /// Mask of the valid fields of [`PortInfo`].
    flags QueryPortFlags: u64 = "mlx5_ib_uapi_query_port_flags" {
        /// `vport`.
        VPORT = 1 << 0, "MLX5_IB_UAPI_QUERY_PORT_VPORT";
        /// `vport_vhca_id`.
        VPORT_VHCA_ID = 1 << 1, "MLX5_IB_UAPI_QUERY_PORT_VPORT_VHCA_ID";
        /// `vport_steering_icm_rx`.
        VPORT_STEERING_ICM_RX = 1 << 2, "MLX5_IB_UAPI_QUERY_PORT_VPORT_STEERING_ICM_RX";
        /// `vport_steering_icm_tx`.
        VPORT_STEERING_ICM_TX = 1 << 3, "MLX5_IB_UAPI_QUERY_PORT_VPORT_STEERING_ICM_TX";
        /// `reg_c0`.
        VPORT_REG_C0 = 1 << 4, "MLX5_IB_UAPI_QUERY_PORT_VPORT_REG_C0";
        /// `esw_owner_vhca_id`.
        ESW_OWNER_VHCA_ID = 1 << 5, "MLX5_IB_UAPI_QUERY_PORT_ESW_OWNER_VHCA_ID";
    }

    /// Flags of a virtio emulation doorbell.
    flags VarFlags: u32 = "mlx5_ib_uapi_var_alloc_flags" {
        /// PCIe transaction layer packets (TLP).
        TLP = 1 << 0, "MLX5_IB_UAPI_VAR_ALLOC_FLAG_TLP" since V7_2;
    }
}
