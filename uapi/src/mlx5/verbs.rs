//! What the driver's own methods take and give, `rdma/mlx5_user_ioctl_verbs.h`.

abi_structs! {
    header = "rdma/mlx5_user_ioctl_verbs.h";

    /// Head of what is read from a [`super::DevxAsyncCmdFd`]: the answer to a query follows.
    struct DevxAsyncCmdHeader = tag "mlx5_ib_uapi_devx_async_cmd_hdr" {
        /// The query's own number.
        wr_id: u64;
        /// The firmware's answer follows.
        out_data: [u8; 0];
    }

    /// Head of what is read from a [`super::DevxAsyncEventFd`]: the event follows unless it was
    /// left out.
    struct DevxAsyncEventHeader = tag "mlx5_ib_uapi_devx_async_event_hdr" {
        /// The subscription's own number.
        cookie: u64;
        /// The firmware's event follows.
        out_data: [u8; 0];
    }

    /// A metadata register of packets.
    struct Reg = tag "mlx5_ib_uapi_reg" {
        /// Value.
        value: u32;
        /// Bits of the value that count.
        mask: u32;
    }

    /// What is known of a port of a switch in the adapter.
    struct PortInfo = tag "mlx5_ib_uapi_query_port" {
        /// Which of the fields count.
        flags: QueryPortFlags;
        /// Its virtual port.
        vport: u16;
        /// Number of the virtual port's function.
        vport_vhca_id: u16;
        /// Number of the function that owns the switch.
        esw_owner_vhca_id: u16;
        /// Zero.
        reserved: u16 = "rsvd0";
        /// Where in the device its received packets are steered.
        vport_steering_icm_rx: u64;
        /// Where in the device its sent packets are steered.
        vport_steering_icm_tx: u64;
        /// Metadata register that marks its packets.
        reg_c0: Reg;
    }
}

abi_enums! {
    header = "rdma/mlx5_user_ioctl_verbs.h";

    /// A table of flows.
    enum FlowTableType: u32 = "mlx5_ib_uapi_flow_table_type" {
        /// Received by the network device.
        NIC_RX = 0, "MLX5_IB_UAPI_FLOW_TABLE_TYPE_NIC_RX";
        /// Sent by the network device.
        NIC_TX = 1, "MLX5_IB_UAPI_FLOW_TABLE_TYPE_NIC_TX";
        /// Through the switch in the adapter.
        FDB = 2, "MLX5_IB_UAPI_FLOW_TABLE_TYPE_FDB";
        /// Received by the RDMA device.
        RDMA_RX = 3, "MLX5_IB_UAPI_FLOW_TABLE_TYPE_RDMA_RX";
        /// Sent by the RDMA device.
        RDMA_TX = 4, "MLX5_IB_UAPI_FLOW_TABLE_TYPE_RDMA_TX";
        /// Received by the RDMA transport.
        RDMA_TRANSPORT_RX = 5, "MLX5_IB_UAPI_FLOW_TABLE_TYPE_RDMA_TRANSPORT_RX" since V7_2;
        /// Sent by the RDMA transport.
        RDMA_TRANSPORT_TX = 6, "MLX5_IB_UAPI_FLOW_TABLE_TYPE_RDMA_TRANSPORT_TX" since V7_2;
    }

    /// What to do to a packet's headers.
    enum PacketReformatType: u32 = "mlx5_ib_uapi_flow_action_packet_reformat_type" {
        /// Take a packet with its link layer out of a tunnel.
        L2_TUNNEL_TO_L2 = 0, "MLX5_IB_UAPI_FLOW_ACTION_PACKET_REFORMAT_TYPE_L2_TUNNEL_TO_L2";
        /// Put a packet with its link layer into a tunnel.
        L2_TO_L2_TUNNEL = 1, "MLX5_IB_UAPI_FLOW_ACTION_PACKET_REFORMAT_TYPE_L2_TO_L2_TUNNEL";
        /// Take a packet without a link layer out of a tunnel and give it one.
        L3_TUNNEL_TO_L2 = 2, "MLX5_IB_UAPI_FLOW_ACTION_PACKET_REFORMAT_TYPE_L3_TUNNEL_TO_L2";
        /// Put a packet without its link layer into a tunnel.
        L2_TO_L3_TUNNEL = 3, "MLX5_IB_UAPI_FLOW_ACTION_PACKET_REFORMAT_TYPE_L2_TO_L3_TUNNEL";
    }

    /// What device memory is for.
    enum DmType: u32 = "mlx5_ib_uapi_dm_type" {
        /// The application.
        MEMIC = 0, "MLX5_IB_UAPI_DM_TYPE_MEMIC";
        /// Steering by software.
        STEERING_SW_ICM = 1, "MLX5_IB_UAPI_DM_TYPE_STEERING_SW_ICM";
        /// Actions that change headers.
        HEADER_MODIFY_SW_ICM = 2, "MLX5_IB_UAPI_DM_TYPE_HEADER_MODIFY_SW_ICM";
        /// Patterns of such actions.
        HEADER_MODIFY_PATTERN_SW_ICM = 3, "MLX5_IB_UAPI_DM_TYPE_HEADER_MODIFY_PATTERN_SW_ICM";
        /// Headers of tunnels.
        ENCAP_SW_ICM = 4, "MLX5_IB_UAPI_DM_TYPE_ENCAP_SW_ICM" since V6_12;
    }

    /// How a doorbell page is mapped.
    enum UarType: u32 = "mlx5_ib_uapi_uar_alloc_type" {
        /// Write-combining.
        BF = 0, "MLX5_IB_UAPI_UAR_ALLOC_TYPE_BF";
        /// Not cached.
        NC = 1, "MLX5_IB_UAPI_UAR_ALLOC_TYPE_NC";
    }
}

abi_flags! {
    header = "rdma/mlx5_user_ioctl_verbs.h";

    /// How an IPsec action is made.
    flags FlowActionFlags: u32 = "mlx5_ib_uapi_flow_action_flags" {
        /// Packets carry metadata.
        REQUIRE_METADATA = 1 << 0, "MLX5_IB_UAPI_FLOW_ACTION_FLAGS_REQUIRE_METADATA";
    }

    /// How a dma-buf is registered.
    flags RegDmabufFlags: u32 = "mlx5_ib_uapi_reg_dmabuf_flags" {
        /// Through the function for direct data.
        DATA_DIRECT = 1 << 0, "MLX5_IB_UAPI_REG_DMABUF_ACCESS_DATA_DIRECT" since V6_12;
    }

    /// How a channel of firmware events is made.
    flags DevxEventChannelFlags: u32 = "mlx5_ib_uapi_devx_create_event_channel_flags" {
        /// Only subscriptions' numbers are read from it.
        OMIT_DATA = 1 << 0, "MLX5_IB_UAPI_DEVX_CR_EV_CH_FLAGS_OMIT_DATA";
    }

    /// How a packet pacing entry is made.
    flags PpFlags: u32 = "mlx5_ib_uapi_pp_alloc_flags" {
        /// Not shared.
        DEDICATED_INDEX = 1 << 0, "MLX5_IB_UAPI_PP_ALLOC_FLAGS_DEDICATED_INDEX";
    }

    /// Which fields of [`PortInfo`] count.
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

    /// How a virtio emulation doorbell is made.
    flags VarFlags: u32 = "mlx5_ib_uapi_var_alloc_flags" {
        /// For transport-layer packets of the bus.
        TLP = 1 << 0, "MLX5_IB_UAPI_VAR_ALLOC_FLAG_TLP" since V7_2;
    }
}
