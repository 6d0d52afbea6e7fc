//! The enumerations, flag sets and constants of the write commands.

abi_enums! {
    header = "rdma/ib_user_verbs.h";

    /// Opcode of a completion; `IBV_WC_*` in libibverbs.
    #[doc(alias = "ibv_wc_opcode")]
    enum WcOpcode : u32 = "ib_uverbs_wc_opcode" {
        /// A send.
        #[doc(alias = "IBV_WC_SEND")]
        SEND = 0, "IB_UVERBS_WC_SEND";
        /// An RDMA write.
        #[doc(alias = "IBV_WC_RDMA_WRITE")]
        RDMA_WRITE = 1, "IB_UVERBS_WC_RDMA_WRITE";
        /// An RDMA read.
        #[doc(alias = "IBV_WC_RDMA_READ")]
        RDMA_READ = 2, "IB_UVERBS_WC_RDMA_READ";
        /// A compare and swap.
        #[doc(alias = "IBV_WC_COMP_SWAP")]
        COMP_SWAP = 3, "IB_UVERBS_WC_COMP_SWAP";
        /// A fetch and add.
        #[doc(alias = "IBV_WC_FETCH_ADD")]
        FETCH_ADD = 4, "IB_UVERBS_WC_FETCH_ADD";
        /// A bind of a memory window.
        #[doc(alias = "IBV_WC_BIND_MW")]
        BIND_MW = 5, "IB_UVERBS_WC_BIND_MW";
        /// An invalidation of a local key.
        #[doc(alias = "IBV_WC_LOCAL_INV")]
        LOCAL_INV = 6, "IB_UVERBS_WC_LOCAL_INV";
        /// A TCP segmentation offload.
        #[doc(alias = "IBV_WC_TSO")]
        TSO = 7, "IB_UVERBS_WC_TSO";
        /// A flush.
        #[doc(alias = "IBV_WC_FLUSH")]
        FLUSH = 8, "IB_UVERBS_WC_FLUSH" since V6_12;
        /// An atomic write.
        #[doc(alias = "IBV_WC_ATOMIC_WRITE")]
        ATOMIC_WRITE = 9, "IB_UVERBS_WC_ATOMIC_WRITE" since V6_12;
        /// A receive; this bit is set in all receive opcodes.
        #[doc(alias = "IBV_WC_RECV")]
        RECV = 128, "IB_WC_RECV" in "include/rdma/ib_verbs.h";
        /// A receive consumed by an RDMA WRITE with immediate data.
        #[doc(alias = "IBV_WC_RECV_RDMA_WITH_IMM")]
        RECV_RDMA_WITH_IMM = 129, "IB_WC_RECV_RDMA_WITH_IMM" in "include/rdma/ib_verbs.h";
    }

    /// Opcode of a send request.
    enum WrOpcode : u32 = "ib_uverbs_wr_opcode" {
        /// RDMA WRITE.
        RDMA_WRITE = 0, "IB_UVERBS_WR_RDMA_WRITE";
        /// RDMA WRITE with immediate data; consumes a receive of the peer.
        RDMA_WRITE_WITH_IMM = 1, "IB_UVERBS_WR_RDMA_WRITE_WITH_IMM";
        /// Send a message.
        SEND = 2, "IB_UVERBS_WR_SEND";
        /// Send a message with immediate data.
        SEND_WITH_IMM = 3, "IB_UVERBS_WR_SEND_WITH_IMM";
        /// RDMA READ.
        RDMA_READ = 4, "IB_UVERBS_WR_RDMA_READ";
        /// Atomic compare and swap of 8 bytes.
        ATOMIC_CMP_AND_SWP = 5, "IB_UVERBS_WR_ATOMIC_CMP_AND_SWP";
        /// Atomic fetch and add of 8 bytes.
        ATOMIC_FETCH_AND_ADD = 6, "IB_UVERBS_WR_ATOMIC_FETCH_AND_ADD";
        /// Invalidate a local key.
        LOCAL_INV = 7, "IB_UVERBS_WR_LOCAL_INV";
        /// Bind a memory window.
        BIND_MW = 8, "IB_UVERBS_WR_BIND_MW";
        /// Send a message and invalidate an rkey of the peer.
        SEND_WITH_INV = 9, "IB_UVERBS_WR_SEND_WITH_INV";
        /// Send with TCP segmentation (TSO).
        TSO = 10, "IB_UVERBS_WR_TSO";
        /// RDMA READ that invalidates the local key.
        RDMA_READ_WITH_INV = 11, "IB_UVERBS_WR_RDMA_READ_WITH_INV";
        /// Masked atomic compare and swap.
        MASKED_ATOMIC_CMP_AND_SWP = 12, "IB_UVERBS_WR_MASKED_ATOMIC_CMP_AND_SWP";
        /// Masked atomic fetch and add.
        MASKED_ATOMIC_FETCH_AND_ADD = 13, "IB_UVERBS_WR_MASKED_ATOMIC_FETCH_AND_ADD";
        /// RDMA FLUSH: earlier writes become visible or persistent.
        FLUSH = 14, "IB_UVERBS_WR_FLUSH" since V6_12;
        /// Atomic write of 8 bytes.
        ATOMIC_WRITE = 15, "IB_UVERBS_WR_ATOMIC_WRITE" since V6_12;
    }

    /// Selectivity level of a flush.
    #[doc(alias = "ibv_selectivity_level")]
    enum SelectivityLevel : u8 = "ib_selectivity_level" {
        /// The given range.
        #[doc(alias = "IBV_FLUSH_RANGE")]
        RANGE = 0, "IB_FLUSH_RANGE" since V6_12;
        /// The whole memory region.
        #[doc(alias = "IBV_FLUSH_MR")]
        MR = 1, "IB_FLUSH_MR" since V6_12;
    }
}

abi_flags! {
    header = "rdma/ib_user_verbs.h";

    /// Placement type of a flush.
    #[doc(alias = "ibv_placement_type")]
    flags PlacementType : u8 = "ib_placement_type" {
        /// Global visibility.
        #[doc(alias = "IBV_FLUSH_GLOBAL")]
        GLOBAL = 1 << 0, "IB_FLUSH_GLOBAL" since V6_12;
        /// Persistence.
        #[doc(alias = "IBV_FLUSH_PERSISTENT")]
        PERSISTENT = 1 << 1, "IB_FLUSH_PERSISTENT" since V6_12;
    }

    /// General ODP capabilities.
    #[doc(alias = "ibv_odp_general_caps")]
    flags OdpGeneralCaps : u64 = "ib_uverbs_odp_general_cap_bits" {
        /// Supported.
        #[doc(alias = "IBV_ODP_SUPPORT")]
        SUPPORT = 1 << 0, "IB_UVERBS_ODP_SUPPORT" since V7_2;
        /// Implicit ODP regions are supported.
        #[doc(alias = "IBV_ODP_SUPPORT_IMPLICIT")]
        SUPPORT_IMPLICIT = 1 << 1, "IB_UVERBS_ODP_SUPPORT_IMPLICIT" since V7_2;
    }

    /// ODP capabilities of one transport.
    #[doc(alias = "ibv_odp_transport_cap_bits")]
    flags OdpTransportCaps : u32 = "ib_uverbs_odp_transport_cap_bits" {
        /// Sends.
        #[doc(alias = "IBV_ODP_SUPPORT_SEND")]
        SEND = 1 << 0, "IB_UVERBS_ODP_SUPPORT_SEND" since V7_2;
        /// Receives.
        #[doc(alias = "IBV_ODP_SUPPORT_RECV")]
        RECV = 1 << 1, "IB_UVERBS_ODP_SUPPORT_RECV" since V7_2;
        /// RDMA writes.
        #[doc(alias = "IBV_ODP_SUPPORT_WRITE")]
        WRITE = 1 << 2, "IB_UVERBS_ODP_SUPPORT_WRITE" since V7_2;
        /// RDMA reads.
        #[doc(alias = "IBV_ODP_SUPPORT_READ")]
        READ = 1 << 3, "IB_UVERBS_ODP_SUPPORT_READ" since V7_2;
        /// Atomics.
        #[doc(alias = "IBV_ODP_SUPPORT_ATOMIC")]
        ATOMIC = 1 << 4, "IB_UVERBS_ODP_SUPPORT_ATOMIC" since V7_2;
        /// Receives through an SRQ.
        #[doc(alias = "IBV_ODP_SUPPORT_SRQ_RECV")]
        SRQ_RECV = 1 << 5, "IB_UVERBS_ODP_SUPPORT_SRQ_RECV" since V7_2;
        /// Flushes.
        #[doc(alias = "IBV_ODP_SUPPORT_FLUSH")]
        FLUSH = 1 << 6, "IB_UVERBS_ODP_SUPPORT_FLUSH" since V7_2;
        /// Atomic writes.
        #[doc(alias = "IBV_ODP_SUPPORT_ATOMIC_WRITE")]
        ATOMIC_WRITE = 1 << 7, "IB_UVERBS_ODP_SUPPORT_ATOMIC_WRITE" since V7_2;
    }

    /// Flags of a completion queue.
    flags CqCreateFlags : u32 = "ib_uverbs_ex_create_cq_flags" {
        /// Completions have device timestamps.
        TIMESTAMP_COMPLETION = 1 << 0, "IB_UVERBS_CQ_FLAGS_TIMESTAMP_COMPLETION";
        /// The device ignores overruns.
        IGNORE_OVERRUN = 1 << 1, "IB_UVERBS_CQ_FLAGS_IGNORE_OVERRUN";
    }

    /// Mask of the valid optional fields of [`ExCreateQp`](super::structs::ExCreateQp).
    flags CreateQpMask : u32 = "ib_uverbs_create_qp_mask" {
        /// The indirection table.
        IND_TABLE = 1 << 0, "IB_UVERBS_CREATE_QP_MASK_IND_TABLE";
    }

    /// Capability flags of a device.
    #[doc(alias = "ibv_device_cap_flags")]
    flags DeviceCapFlags : u64 = "ib_uverbs_device_cap_flags" {
        /// QPs can be resized.
        #[doc(alias = "IBV_DEVICE_RESIZE_MAX_WR")]
        RESIZE_MAX_WR = 1 << 0, "IB_UVERBS_DEVICE_RESIZE_MAX_WR";
        /// Counts packets with a wrong partition key.
        #[doc(alias = "IBV_DEVICE_BAD_PKEY_CNTR")]
        BAD_PKEY_CNTR = 1 << 1, "IB_UVERBS_DEVICE_BAD_PKEY_CNTR";
        /// Counts packets with a wrong queue key.
        #[doc(alias = "IBV_DEVICE_BAD_QKEY_CNTR")]
        BAD_QKEY_CNTR = 1 << 2, "IB_UVERBS_DEVICE_BAD_QKEY_CNTR";
        /// Multicast of raw packets.
        #[doc(alias = "IBV_DEVICE_RAW_MULTI")]
        RAW_MULTI = 1 << 3, "IB_UVERBS_DEVICE_RAW_MULTI";
        /// Automatic path migration.
        #[doc(alias = "IBV_DEVICE_AUTO_PATH_MIG")]
        AUTO_PATH_MIG = 1 << 4, "IB_UVERBS_DEVICE_AUTO_PATH_MIG";
        /// The port of a QP can change.
        #[doc(alias = "IBV_DEVICE_CHANGE_PHY_PORT")]
        CHANGE_PHY_PORT = 1 << 5, "IB_UVERBS_DEVICE_CHANGE_PHY_PORT";
        /// Checks a datagram's port against its address handle.
        #[doc(alias = "IBV_DEVICE_UD_AV_PORT_ENFORCE")]
        UD_AV_PORT_ENFORCE = 1 << 6, "IB_UVERBS_DEVICE_UD_AV_PORT_ENFORCE";
        /// MODIFY_QP checks the current state.
        #[doc(alias = "IBV_DEVICE_CURR_QP_STATE_MOD")]
        CURR_QP_STATE_MOD = 1 << 7, "IB_UVERBS_DEVICE_CURR_QP_STATE_MOD";
        /// A port can be shut down.
        #[doc(alias = "IBV_DEVICE_SHUTDOWN_PORT")]
        SHUTDOWN_PORT = 1 << 8, "IB_UVERBS_DEVICE_SHUTDOWN_PORT";
        /// Raises the port-active event.
        #[doc(alias = "IBV_DEVICE_PORT_ACTIVE_EVENT")]
        PORT_ACTIVE_EVENT = 1 << 10, "IB_UVERBS_DEVICE_PORT_ACTIVE_EVENT";
        /// Has a system image GUID.
        #[doc(alias = "IBV_DEVICE_SYS_IMAGE_GUID")]
        SYS_IMAGE_GUID = 1 << 11, "IB_UVERBS_DEVICE_SYS_IMAGE_GUID";
        /// RC QPs generate RNR NAKs.
        #[doc(alias = "IBV_DEVICE_RC_RNR_NAK_GEN")]
        RC_RNR_NAK_GEN = 1 << 12, "IB_UVERBS_DEVICE_RC_RNR_NAK_GEN";
        /// SRQs can be resized.
        #[doc(alias = "IBV_DEVICE_SRQ_RESIZE")]
        SRQ_RESIZE = 1 << 13, "IB_UVERBS_DEVICE_SRQ_RESIZE";
        /// A CQ can be armed for an event after N completions.
        #[doc(alias = "IBV_DEVICE_N_NOTIFY_CQ")]
        N_NOTIFY_CQ = 1 << 14, "IB_UVERBS_DEVICE_N_NOTIFY_CQ";
        /// Memory windows.
        #[doc(alias = "IBV_DEVICE_MEM_WINDOW")]
        MEM_WINDOW = 1 << 17, "IB_UVERBS_DEVICE_MEM_WINDOW";
        /// Checksum offload for IPoIB over UD.
        #[doc(alias = "IBV_DEVICE_UD_IP_CSUM")]
        UD_IP_CSUM = 1 << 18, "IB_UVERBS_DEVICE_UD_IP_CSUM";
        /// XRC.
        #[doc(alias = "IBV_DEVICE_XRC")]
        XRC = 1 << 20, "IB_UVERBS_DEVICE_XRC";
        /// Memory management extensions: invalidation by a send or by a work request.
        #[doc(alias = "IBV_DEVICE_MEM_MGT_EXTENSIONS")]
        MEM_MGT_EXTENSIONS = 1 << 21, "IB_UVERBS_DEVICE_MEM_MGT_EXTENSIONS";
        /// Memory windows of type 2A.
        #[doc(alias = "IBV_DEVICE_MEM_WINDOW_TYPE_2A")]
        MEM_WINDOW_TYPE_2A = 1 << 23, "IB_UVERBS_DEVICE_MEM_WINDOW_TYPE_2A";
        /// Memory windows of type 2B.
        #[doc(alias = "IBV_DEVICE_MEM_WINDOW_TYPE_2B")]
        MEM_WINDOW_TYPE_2B = 1 << 24, "IB_UVERBS_DEVICE_MEM_WINDOW_TYPE_2B";
        /// Checksum offload for IPoIB over RC.
        #[doc(alias = "IBV_DEVICE_RC_IP_CSUM")]
        RC_IP_CSUM = 1 << 25, "IB_UVERBS_DEVICE_RC_IP_CSUM";
        /// Checksum offload for raw packets; replaced by [`RawPacketCaps::IP_CSUM`].
        #[doc(alias = "IBV_DEVICE_RAW_IP_CSUM")]
        RAW_IP_CSUM = 1 << 26, "IB_UVERBS_DEVICE_RAW_IP_CSUM";
        /// Flow steering.
        #[doc(alias = "IBV_DEVICE_MANAGED_FLOW_STEERING")]
        MANAGED_FLOW_STEERING = 1 << 29, "IB_UVERBS_DEVICE_MANAGED_FLOW_STEERING";
        /// The frame check sequence can be scattered to memory; replaced by
        /// [`RawPacketCaps::SCATTER_FCS`].
        #[doc(alias = "IBV_DEVICE_RAW_SCATTER_FCS")]
        RAW_SCATTER_FCS = 1 << 34, "IB_UVERBS_DEVICE_RAW_SCATTER_FCS";
        /// Writes over the bus can be padded to whole cache lines.
        #[doc(alias = "IBV_DEVICE_PCI_WRITE_END_PADDING")]
        PCI_WRITE_END_PADDING = 1 << 36, "IB_UVERBS_DEVICE_PCI_WRITE_END_PADDING";
        /// Flush to global visibility.
        FLUSH_GLOBAL = 1 << 38, "IB_UVERBS_DEVICE_FLUSH_GLOBAL" since V6_12;
        /// Flush to persistence.
        FLUSH_PERSISTENT = 1 << 39, "IB_UVERBS_DEVICE_FLUSH_PERSISTENT" since V6_12;
        /// Atomic writes.
        ATOMIC_WRITE = 1 << 40, "IB_UVERBS_DEVICE_ATOMIC_WRITE" since V6_12;
        /// DMA of a confidential guest goes through bounce buffers.
        #[doc(alias = "IBV_DEVICE_CC_DMA_BOUNCE")]
        CC_DMA_BOUNCE = 1 << 41, "IB_UVERBS_DEVICE_CC_DMA_BOUNCE" since V7_2;
    }

    /// Raw packet capabilities of a device.
    #[doc(alias = "ibv_raw_packet_caps")]
    flags RawPacketCaps : u32 = "ib_uverbs_raw_packet_caps" {
        /// Strip VLAN tags.
        #[doc(alias = "IBV_RAW_PACKET_CAP_CVLAN_STRIPPING")]
        CVLAN_STRIPPING = 1 << 0, "IB_UVERBS_RAW_PACKET_CAP_CVLAN_STRIPPING";
        /// Scatter the frame check sequence to memory.
        #[doc(alias = "IBV_RAW_PACKET_CAP_SCATTER_FCS")]
        SCATTER_FCS = 1 << 1, "IB_UVERBS_RAW_PACKET_CAP_SCATTER_FCS";
        /// Check and compute checksums.
        #[doc(alias = "IBV_RAW_PACKET_CAP_IP_CSUM")]
        IP_CSUM = 1 << 2, "IB_UVERBS_RAW_PACKET_CAP_IP_CSUM";
        /// Delay drop: packets wait for a posted receive.
        #[doc(alias = "IBV_RAW_PACKET_CAP_DELAY_DROP")]
        DELAY_DROP = 1 << 3, "IB_UVERBS_RAW_PACKET_CAP_DELAY_DROP";
    }
}

abi_consts! {
    header = "rdma/ib_user_verbs.h";

    /// Version of the uverbs ABI, as in sysfs.
    const ABI_VERSION: u32 = 6, "IB_USER_VERBS_ABI_VERSION";
    /// First number of commands that exist only as extended commands.
    const CMD_THRESHOLD: u32 = 50, "IB_USER_VERBS_CMD_THRESHOLD";
    /// Mask of the command number in a command word.
    const CMD_COMMAND_MASK: u32 = 0xff, "IB_USER_VERBS_CMD_COMMAND_MASK";
    /// Flag of extended commands in a command word.
    const CMD_FLAG_EXTENDED: u32 = 1 << 31, "IB_USER_VERBS_CMD_FLAG_EXTENDED";
    /// Mask of all optional fields of extended QP creation.
    const CREATE_QP_SUP_COMP_MASK: u32 = 1, "IB_UVERBS_CREATE_QP_SUP_COMP_MASK";
    /// Maximum log2 of the size of an indirection table.
    const MAX_LOG_IND_TBL_SIZE: u32 = 0x0d, "IB_USER_VERBS_MAX_LOG_IND_TBL_SIZE";
    /// Maximum size of a device name in bytes.
    const DEVICE_NAME_MAX: u32 = 64, "IB_DEVICE_NAME_MAX";
    /// Number of a command without a handler.
    const CMD_MODIFY_AH: u32 = 6, "IB_USER_VERBS_CMD_MODIFY_AH";
    /// Number of a command without a handler.
    const CMD_QUERY_AH: u32 = 7, "IB_USER_VERBS_CMD_QUERY_AH";
    /// Number of a command without a handler.
    const CMD_REG_SMR: u32 = 10, "IB_USER_VERBS_CMD_REG_SMR";
    /// Number of a command without a handler.
    const CMD_QUERY_MR: u32 = 12, "IB_USER_VERBS_CMD_QUERY_MR";
    /// Number of a command without a handler.
    const CMD_BIND_MW: u32 = 15, "IB_USER_VERBS_CMD_BIND_MW";
    /// Number of a command without a handler.
    const CMD_PEEK_CQ: u32 = 22, "IB_USER_VERBS_CMD_PEEK_CQ";
}
