//! Enumerations, flags and constants of `ib_user_ioctl_verbs.h`, for the structs of both parts of the
//! ABI. Public in [`crate::uverbs::types`].

abi_enums! {
    header = "rdma/ib_user_ioctl_verbs.h";

    /// The transport of a queue pair; `IBV_QPT_*` in libibverbs.
    #[doc(alias = "ibv_qp_type")]
    enum QpType : u32 = "ib_uverbs_qp_type" {
        /// Subnet management; kernel only.
        SMI = 0, "IB_QPT_SMI" in "include/rdma/ib_verbs.h";
        /// General services; kernel only.
        GSI = 1, "IB_QPT_GSI" in "include/rdma/ib_verbs.h";
        /// Reliable connection.
        RC = 2, "IB_UVERBS_QPT_RC";
        /// Unreliable connection.
        UC = 3, "IB_UVERBS_QPT_UC";
        /// Unreliable datagrams.
        UD = 4, "IB_UVERBS_QPT_UD";
        /// Raw packets: whole Ethernet frames.
        RAW_PACKET = 8, "IB_UVERBS_QPT_RAW_PACKET";
        /// XRC initiator.
        XRC_INI = 9, "IB_UVERBS_QPT_XRC_INI";
        /// XRC target.
        XRC_TGT = 10, "IB_UVERBS_QPT_XRC_TGT";
        /// Driver-specific transport.
        #[doc(alias = "IBV_QPT_DRIVER")]
        DRIVER = 0xff, "IB_UVERBS_QPT_DRIVER";
    }

    /// Type of a shared receive queue.
    #[doc(alias = "ibv_srq_type")]
    enum SrqType : u32 = "ib_uverbs_srq_type" {
        /// Basic: for QPs of one protection domain.
        #[doc(alias = "IBV_SRQT_BASIC")]
        BASIC = 0, "IB_UVERBS_SRQT_BASIC";
        /// For XRC.
        XRC = 1, "IB_UVERBS_SRQT_XRC";
        /// With tag matching.
        #[doc(alias = "IBV_SRQT_TM")]
        TM = 2, "IB_UVERBS_SRQT_TM";
    }

    /// Type of a work queue.
    #[doc(alias = "ibv_wq_type")]
    enum WqType : u32 = "ib_uverbs_wq_type" {
        /// Receives.
        #[doc(alias = "IBV_WQT_RQ")]
        RQ = 0, "IB_UVERBS_WQT_RQ";
    }

    /// Advice for a range of a memory region.
    enum AdviseMrAdvice : u32 = "ib_uverbs_advise_mr_advice" {
        /// Prefetch pages for reading.
        PREFETCH = 0, "IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH";
        /// Prefetch pages for writing.
        PREFETCH_WRITE = 1, "IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_WRITE";
        /// Map pages that are present, without page faults.
        PREFETCH_NO_FAULT = 2, "IB_UVERBS_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT";
    }

    /// Driver id: the namespace of a call.
    enum DriverId : u32 = "rdma_driver_id" {
        /// None.
        UNKNOWN = 0, "RDMA_DRIVER_UNKNOWN";
        /// NVIDIA ConnectX-4 and later.
        MLX5 = 1, "RDMA_DRIVER_MLX5";
        /// Mellanox ConnectX-3.
        MLX4 = 2, "RDMA_DRIVER_MLX4";
        /// Chelsio T3.
        CXGB3 = 3, "RDMA_DRIVER_CXGB3";
        /// Chelsio T4 and later.
        CXGB4 = 4, "RDMA_DRIVER_CXGB4";
        /// Mellanox InfiniHost.
        MTHCA = 5, "RDMA_DRIVER_MTHCA";
        /// Broadcom NetXtreme.
        BNXT_RE = 6, "RDMA_DRIVER_BNXT_RE";
        /// Emulex OneConnect.
        OCRDMA = 7, "RDMA_DRIVER_OCRDMA";
        /// Intel NetEffect.
        NES = 8, "RDMA_DRIVER_NES";
        /// Intel Ethernet X722 and 800 series.
        IRDMA = 9, "RDMA_DRIVER_IRDMA";
        /// The same number under the older driver's name.
        I40IW = 9, "RDMA_DRIVER_I40IW";
        /// VMware's paravirtual device.
        VMW_PVRDMA = 10, "RDMA_DRIVER_VMW_PVRDMA";
        /// Marvell FastLinQ.
        QEDR = 11, "RDMA_DRIVER_QEDR";
        /// HiSilicon.
        HNS = 12, "RDMA_DRIVER_HNS";
        /// Cisco usNIC.
        USNIC = 13, "RDMA_DRIVER_USNIC";
        /// Soft-RoCE.
        RXE = 14, "RDMA_DRIVER_RXE";
        /// Intel Omni-Path.
        HFI1 = 15, "RDMA_DRIVER_HFI1";
        /// Intel TrueScale.
        QIB = 16, "RDMA_DRIVER_QIB";
        /// Amazon Elastic Fabric Adapter.
        EFA = 17, "RDMA_DRIVER_EFA";
        /// Soft-iWARP.
        SIW = 18, "RDMA_DRIVER_SIW";
        /// Alibaba Elastic RDMA.
        ERDMA = 19, "RDMA_DRIVER_ERDMA";
        /// Microsoft Azure Network Adapter.
        MANA = 20, "RDMA_DRIVER_MANA" since V6_12;
        /// AMD Pensando.
        IONIC = 21, "RDMA_DRIVER_IONIC" since V7_2;
    }

    /// Type of a GID.
    #[doc(alias = "ibv_gid_type")]
    enum GidType : u32 = "ib_uverbs_gid_type" {
        /// InfiniBand.
        #[doc(alias = "IBV_GID_TYPE_IB")]
        IB = 0, "IB_UVERBS_GID_TYPE_IB";
        /// RoCE directly over Ethernet.
        #[doc(alias = "IBV_GID_TYPE_ROCE_V1")]
        ROCE_V1 = 1, "IB_UVERBS_GID_TYPE_ROCE_V1";
        /// RoCE over UDP.
        #[doc(alias = "IBV_GID_TYPE_ROCE_V2")]
        ROCE_V2 = 2, "IB_UVERBS_GID_TYPE_ROCE_V2";
    }

    /// Type of a [`BufferDesc`](crate::uverbs::types::BufferDesc).
    enum BufferType : u32 = "ib_uverbs_buffer_type" {
        /// Part of a dma-buf.
        DMABUF = 0, "IB_UVERBS_BUFFER_TYPE_DMABUF" since V7_2;
        /// Memory of the calling process.
        VA = 1, "IB_UVERBS_BUFFER_TYPE_VA" since V7_2;
    }

    /// Kind of key material.
    enum FlowActionEspKeymat : u32 = "ib_uverbs_flow_action_esp_keymat" {
        /// [`FlowActionEspKeymatAesGcm`](crate::uverbs::types::FlowActionEspKeymatAesGcm).
        AES_GCM = 0, "IB_UVERBS_FLOW_ACTION_ESP_KEYMAT_AES_GCM";
    }

    /// Algorithm of an initialisation vector.
    enum FlowActionIvAlgo : u32 = "ib_uverbs_flow_action_esp_keymat_aes_gcm_iv_algo" {
        /// Sequential.
        SEQ = 0, "IB_UVERBS_FLOW_ACTION_IV_ALGO_SEQ";
    }

    /// Kind of replay protection.
    enum FlowActionEspReplay : u32 = "ib_uverbs_flow_action_esp_replay" {
        /// None.
        NONE = 0, "IB_UVERBS_FLOW_ACTION_ESP_REPLAY_NONE";
        /// [`FlowActionEspReplayBmp`](crate::uverbs::types::FlowActionEspReplayBmp).
        BMP = 1, "IB_UVERBS_FLOW_ACTION_ESP_REPLAY_BMP";
    }
}

abi_flags! {
    header = "rdma/ib_user_ioctl_verbs.h";

    /// Features of the kernel's core.
    flags CoreSupport : u64 = "ib_uverbs_core_support" {
        /// Unknown access flags of the optional range are ignored.
        OPTIONAL_MR_ACCESS = 1 << 0, "IB_UVERBS_CORE_SUPPORT_OPTIONAL_MR_ACCESS";
        /// The driver validates the tail of its payloads.
        ROBUST_UDATA = 1 << 1, "IB_UVERBS_CORE_SUPPORT_ROBUST_UDATA" since V7_2;
    }

    /// Access flags of a memory region; `IBV_ACCESS_*` in libibverbs.
    #[doc(alias = "ibv_access_flags")]
    flags AccessFlags : u32 = "ib_uverbs_access_flags" {
        /// Local write.
        #[doc(alias = "IBV_ACCESS_LOCAL_WRITE")]
        LOCAL_WRITE = 1 << 0, "IB_UVERBS_ACCESS_LOCAL_WRITE";
        /// Remote write.
        #[doc(alias = "IBV_ACCESS_REMOTE_WRITE")]
        REMOTE_WRITE = 1 << 1, "IB_UVERBS_ACCESS_REMOTE_WRITE";
        /// Remote read.
        #[doc(alias = "IBV_ACCESS_REMOTE_READ")]
        REMOTE_READ = 1 << 2, "IB_UVERBS_ACCESS_REMOTE_READ";
        /// Remote atomics.
        #[doc(alias = "IBV_ACCESS_REMOTE_ATOMIC")]
        REMOTE_ATOMIC = 1 << 3, "IB_UVERBS_ACCESS_REMOTE_ATOMIC";
        /// Memory windows can be bound.
        #[doc(alias = "IBV_ACCESS_MW_BIND")]
        MW_BIND = 1 << 4, "IB_UVERBS_ACCESS_MW_BIND";
        /// Zero-based: addresses start at 0.
        #[doc(alias = "IBV_ACCESS_ZERO_BASED")]
        ZERO_BASED = 1 << 5, "IB_UVERBS_ACCESS_ZERO_BASED";
        /// On-demand paging (ODP): pages are not pinned.
        #[doc(alias = "IBV_ACCESS_ON_DEMAND")]
        ON_DEMAND = 1 << 6, "IB_UVERBS_ACCESS_ON_DEMAND";
        /// The memory has huge pages.
        #[doc(alias = "IBV_ACCESS_HUGETLB")]
        HUGETLB = 1 << 7, "IB_UVERBS_ACCESS_HUGETLB";
        /// Remote flush to global visibility.
        #[doc(alias = "IBV_ACCESS_FLUSH_GLOBAL")]
        FLUSH_GLOBAL = 1 << 8, "IB_UVERBS_ACCESS_FLUSH_GLOBAL" since V6_12;
        /// Remote flush to persistence.
        #[doc(alias = "IBV_ACCESS_FLUSH_PERSISTENT")]
        FLUSH_PERSISTENT = 1 << 9, "IB_UVERBS_ACCESS_FLUSH_PERSISTENT" since V6_12;
        /// Relaxed ordering of the device's accesses; ignored if unknown.
        #[doc(alias = "IBV_ACCESS_RELAXED_ORDERING")]
        RELAXED_ORDERING = 1 << 20, "IB_UVERBS_ACCESS_RELAXED_ORDERING";
    }

    /// Flags of a work queue.
    #[doc(alias = "ibv_wq_flags")]
    flags WqFlags : u32 = "ib_uverbs_wq_flags" {
        /// VLAN tags of received packets are stripped.
        CVLAN_STRIPPING = 1 << 0, "IB_UVERBS_WQ_FLAGS_CVLAN_STRIPPING";
        /// The frame check sequence is scattered to memory.
        #[doc(alias = "IBV_WQ_FLAGS_SCATTER_FCS")]
        SCATTER_FCS = 1 << 1, "IB_UVERBS_WQ_FLAGS_SCATTER_FCS";
        /// Delay drop: packets wait for a posted receive.
        #[doc(alias = "IBV_WQ_FLAGS_DELAY_DROP")]
        DELAY_DROP = 1 << 2, "IB_UVERBS_WQ_FLAGS_DELAY_DROP";
        /// Writes over the bus are padded to whole cache lines.
        #[doc(alias = "IBV_WQ_FLAGS_PCI_WRITE_END_PADDING")]
        PCI_WRITE_END_PADDING = 1 << 3, "IB_UVERBS_WQ_FLAGS_PCI_WRITE_END_PADDING";
    }

    /// Flags of a queue pair.
    #[doc(alias = "ibv_qp_create_flags")]
    flags QpCreateFlags : u32 = "ib_uverbs_qp_create_flags" {
        /// Block multicast loopback.
        #[doc(alias = "IBV_QP_CREATE_BLOCK_SELF_MCAST_LB")]
        BLOCK_MULTICAST_LOOPBACK = 1 << 1, "IB_UVERBS_QP_CREATE_BLOCK_MULTICAST_LOOPBACK";
        /// The frame check sequence is scattered to memory.
        #[doc(alias = "IBV_QP_CREATE_SCATTER_FCS")]
        SCATTER_FCS = 1 << 8, "IB_UVERBS_QP_CREATE_SCATTER_FCS";
        /// VLAN tags of received packets are stripped.
        #[doc(alias = "IBV_QP_CREATE_CVLAN_STRIPPING")]
        CVLAN_STRIPPING = 1 << 9, "IB_UVERBS_QP_CREATE_CVLAN_STRIPPING";
        /// Writes over the bus are padded to whole cache lines.
        #[doc(alias = "IBV_QP_CREATE_PCI_WRITE_END_PADDING")]
        PCI_WRITE_END_PADDING = 1 << 11, "IB_UVERBS_QP_CREATE_PCI_WRITE_END_PADDING";
        /// All send requests are signaled.
        SQ_SIG_ALL = 1 << 12, "IB_UVERBS_QP_CREATE_SQ_SIG_ALL";
    }

    /// Capabilities of a port: CapabilityMask of PortInfo, and one bit that the kernel defines.
    #[doc(alias = "ibv_port_cap_flags")]
    flags PortCapFlags : u32 = "ib_uverbs_query_port_cap_flags" {
        /// Is a subnet manager.
        #[doc(alias = "IBV_PORT_SM")]
        SM = 1 << 1, "IB_UVERBS_PCF_SM";
        /// Notices.
        #[doc(alias = "IBV_PORT_NOTICE_SUP")]
        NOTICE_SUP = 1 << 2, "IB_UVERBS_PCF_NOTICE_SUP";
        /// Traps.
        #[doc(alias = "IBV_PORT_TRAP_SUP")]
        TRAP_SUP = 1 << 3, "IB_UVERBS_PCF_TRAP_SUP";
        /// Optional inter-packet delays.
        #[doc(alias = "IBV_PORT_OPT_IPD_SUP")]
        OPT_IPD_SUP = 1 << 4, "IB_UVERBS_PCF_OPT_IPD_SUP";
        /// Automatic path migration.
        #[doc(alias = "IBV_PORT_AUTO_MIGR_SUP")]
        AUTO_MIGR_SUP = 1 << 5, "IB_UVERBS_PCF_AUTO_MIGR_SUP";
        /// Mapping of service levels to virtual lanes.
        #[doc(alias = "IBV_PORT_SL_MAP_SUP")]
        SL_MAP_SUP = 1 << 6, "IB_UVERBS_PCF_SL_MAP_SUP";
        /// Management key kept over power cycles.
        #[doc(alias = "IBV_PORT_MKEY_NVRAM")]
        MKEY_NVRAM = 1 << 7, "IB_UVERBS_PCF_MKEY_NVRAM";
        /// Partition keys kept over power cycles.
        #[doc(alias = "IBV_PORT_PKEY_NVRAM")]
        PKEY_NVRAM = 1 << 8, "IB_UVERBS_PCF_PKEY_NVRAM";
        /// LED.
        #[doc(alias = "IBV_PORT_LED_INFO_SUP")]
        LED_INFO_SUP = 1 << 9, "IB_UVERBS_PCF_LED_INFO_SUP";
        /// Its subnet manager is disabled.
        SM_DISABLED = 1 << 10, "IB_UVERBS_PCF_SM_DISABLED";
        /// System image GUID.
        #[doc(alias = "IBV_PORT_SYS_IMAGE_GUID_SUP")]
        SYS_IMAGE_GUID_SUP = 1 << 11, "IB_UVERBS_PCF_SYS_IMAGE_GUID_SUP";
        /// Traps of a switch's external port for partition keys.
        #[doc(alias = "IBV_PORT_PKEY_SW_EXT_PORT_TRAP_SUP")]
        PKEY_SW_EXT_PORT_TRAP_SUP = 1 << 12, "IB_UVERBS_PCF_PKEY_SW_EXT_PORT_TRAP_SUP";
        /// Speeds above 10 Gbit/s a lane.
        #[doc(alias = "IBV_PORT_EXTENDED_SPEEDS_SUP")]
        EXTENDED_SPEEDS_SUP = 1 << 14, "IB_UVERBS_PCF_EXTENDED_SPEEDS_SUP";
        /// Communication management.
        #[doc(alias = "IBV_PORT_CM_SUP")]
        CM_SUP = 1 << 16, "IB_UVERBS_PCF_CM_SUP";
        /// Tunnelled SNMP.
        #[doc(alias = "IBV_PORT_SNMP_TUNNEL_SUP")]
        SNMP_TUNNEL_SUP = 1 << 17, "IB_UVERBS_PCF_SNMP_TUNNEL_SUP";
        /// Reinitialisation without loss of state.
        #[doc(alias = "IBV_PORT_REINIT_SUP")]
        REINIT_SUP = 1 << 18, "IB_UVERBS_PCF_REINIT_SUP";
        /// Device management.
        #[doc(alias = "IBV_PORT_DEVICE_MGMT_SUP")]
        DEVICE_MGMT_SUP = 1 << 19, "IB_UVERBS_PCF_DEVICE_MGMT_SUP";
        /// Vendor management classes.
        #[doc(alias = "IBV_PORT_VENDOR_CLASS_SUP")]
        VENDOR_CLASS_SUP = 1 << 20, "IB_UVERBS_PCF_VENDOR_CLASS_SUP";
        /// Notices by directed route.
        #[doc(alias = "IBV_PORT_DR_NOTICE_SUP")]
        DR_NOTICE_SUP = 1 << 21, "IB_UVERBS_PCF_DR_NOTICE_SUP";
        /// Notices of changes to this mask.
        #[doc(alias = "IBV_PORT_CAP_MASK_NOTICE_SUP")]
        CAP_MASK_NOTICE_SUP = 1 << 22, "IB_UVERBS_PCF_CAP_MASK_NOTICE_SUP";
        /// Boot management.
        #[doc(alias = "IBV_PORT_BOOT_MGMT_SUP")]
        BOOT_MGMT_SUP = 1 << 23, "IB_UVERBS_PCF_BOOT_MGMT_SUP";
        /// Measured round-trip latency of the link.
        #[doc(alias = "IBV_PORT_LINK_LATENCY_SUP")]
        LINK_LATENCY_SUP = 1 << 24, "IB_UVERBS_PCF_LINK_LATENCY_SUP";
        /// Client re-registration.
        #[doc(alias = "IBV_PORT_CLIENT_REG_SUP")]
        CLIENT_REG_SUP = 1 << 25, "IB_UVERBS_PCF_CLIENT_REG_SUP";
        /// IP-based GIDs; defined by the kernel, not by PortInfo.
        #[doc(alias = "IBV_PORT_IP_BASED_GIDS")]
        IP_BASED_GIDS = 1 << 26, "IB_UVERBS_PCF_IP_BASED_GIDS";
        /// Table of link speeds by width.
        LINK_SPEED_WIDTH_TABLE_SUP = 1 << 27, "IB_UVERBS_PCF_LINK_SPEED_WIDTH_TABLE_SUP";
        /// Table of vendor specific management datagrams.
        VENDOR_SPECIFIC_MADS_TABLE_SUP = 1 << 28, "IB_UVERBS_PCF_VENDOR_SPECIFIC_MADS_TABLE_SUP";
        /// Suppression of partition key traps for multicast.
        MCAST_PKEY_TRAP_SUPPRESSION_SUP = 1 << 29, "IB_UVERBS_PCF_MCAST_PKEY_TRAP_SUPPRESSION_SUP";
        /// Top of the multicast forwarding table.
        MCAST_FDB_TOP_SUP = 1 << 30, "IB_UVERBS_PCF_MCAST_FDB_TOP_SUP";
        /// Hierarchy information.
        HIERARCHY_INFO_SUP = 1 << 31, "IB_UVERBS_PCF_HIERARCHY_INFO_SUP";
    }

    /// Port flags with requirements for users.
    flags PortFlags : u8 = "ib_uverbs_query_port_flags" {
        /// Every path needs a GRH.
        GRH_REQUIRED = 1 << 0, "IB_UVERBS_QPF_GRH_REQUIRED";
    }

    /// Flags of counter reads.
    #[doc(alias = "ibv_read_counters_flags")]
    flags ReadCountersFlags : u32 = "ib_uverbs_read_counters_flags" {
        /// Cached values of the driver are sufficient.
        PREFER_CACHED = 1 << 0, "IB_UVERBS_READ_COUNTERS_PREFER_CACHED";
    }

    /// Flags of memory advice.
    flags AdviseMrFlag : u32 = "ib_uverbs_advise_mr_flag" {
        /// Wait for completion.
        FLUSH = 1 << 0, "IB_UVERBS_ADVISE_MR_FLAG_FLUSH";
    }

    /// Flags of an ESP flow action.
    flags FlowActionEspFlags : u32 = "ib_uverbs_flow_action_esp_flags" {
        /// Full offload instead of inline crypto.
        FULL_OFFLOAD = 1 << 0, "IB_UVERBS_FLOW_ACTION_ESP_FLAGS_FULL_OFFLOAD";
        /// Transport mode instead of tunnel mode.
        TRANSPORT = 1 << 1, "IB_UVERBS_FLOW_ACTION_ESP_FLAGS_TRANSPORT";
        /// Encryption instead of decryption.
        ENCRYPT = 1 << 2, "IB_UVERBS_FLOW_ACTION_ESP_FLAGS_ENCRYPT";
        /// The extended sequence number is in a new window.
        ESN_NEW_WINDOW = 1 << 3, "IB_UVERBS_FLOW_ACTION_ESP_FLAGS_ESN_NEW_WINDOW";
    }
}

abi_consts! {
    header = "rdma/ib_user_ioctl_verbs.h";

    /// First optional access flag.
    const ACCESS_OPTIONAL_FIRST: u32 = 1 << 20, "IB_UVERBS_ACCESS_OPTIONAL_FIRST";
    /// Last optional access flag.
    const ACCESS_OPTIONAL_LAST: u32 = 1 << 29, "IB_UVERBS_ACCESS_OPTIONAL_LAST";
    /// Mask of the optional access flags, which a kernel may ignore.
    const ACCESS_OPTIONAL_RANGE: u32 = 0x3ff0_0000, "IB_UVERBS_ACCESS_OPTIONAL_RANGE";
    /// Inline crypto.
    const FLOW_ACTION_ESP_FLAGS_INLINE_CRYPTO: u32 = 0, "IB_UVERBS_FLOW_ACTION_ESP_FLAGS_INLINE_CRYPTO";
    /// Tunnel mode.
    const FLOW_ACTION_ESP_FLAGS_TUNNEL: u32 = 0, "IB_UVERBS_FLOW_ACTION_ESP_FLAGS_TUNNEL";
    /// Decryption.
    const FLOW_ACTION_ESP_FLAGS_DECRYPT: u32 = 0, "IB_UVERBS_FLOW_ACTION_ESP_FLAGS_DECRYPT";
}

#[cfg(test)]
mod tests {
    extern crate std;

    use std::string::ToString;

    use super::*;

    #[test]
    fn flags_are_parsed_as_printed() {
        for bits in (0..=9).map(|n| 1 << n).chain([0, 3, 1 << 20, 1 << 30, !0]) {
            let flags = AccessFlags::from_bits_retain(bits);
            assert_eq!(flags.to_string().parse(), Ok(flags), "{flags}");
        }
        assert_eq!(
            "LOCAL_WRITE|REMOTE_READ".parse(),
            Ok(AccessFlags::LOCAL_WRITE | AccessFlags::REMOTE_READ)
        );
        for wrong in ["LOCAL", "LOCAL_WRITE,REMOTE_READ", "LOCAL_WRITE |", "-1"] {
            assert!(wrong.parse::<AccessFlags>().is_err(), "{wrong}");
        }
    }
}
