//! Values of the user ABI that only the kernel's internal `include/rdma/ib_verbs.h` names.
//!
//! The header is not part of the UAPI headers, but the values are ABI: they are used in the fields
//! of [`crate::write`] structs, in queue entries and in events.

abi_enums! {
    header = "include/rdma/ib_verbs.h";

    /// State of a queue pair; `IBV_QPS_*` in libibverbs.
    #[doc(alias = "ibv_qp_state")]
    enum QpState : u8 = "ib_qp_state" {
        /// RESET: requests are neither accepted nor processed.
        #[doc(alias = "IBV_QPS_RESET")]
        RESET = 0, "IB_QPS_RESET";
        /// INIT: receives can be posted.
        #[doc(alias = "IBV_QPS_INIT")]
        INIT = 1, "IB_QPS_INIT";
        /// RTR: ready to receive.
        #[doc(alias = "IBV_QPS_RTR")]
        RTR = 2, "IB_QPS_RTR";
        /// RTS: ready to send.
        #[doc(alias = "IBV_QPS_RTS")]
        RTS = 3, "IB_QPS_RTS";
        /// SQD: the send queue drains and stops.
        #[doc(alias = "IBV_QPS_SQD")]
        SQD = 4, "IB_QPS_SQD";
        /// SQE: the send queue failed, the receive queue works (not for RC).
        #[doc(alias = "IBV_QPS_SQE")]
        SQE = 5, "IB_QPS_SQE";
        /// ERR: all requests are flushed.
        #[doc(alias = "IBV_QPS_ERR")]
        ERR = 6, "IB_QPS_ERR";
    }

    /// State of path migration.
    #[doc(alias = "ibv_mig_state")]
    enum MigState : u8 = "ib_mig_state" {
        /// MIGRATED: on the alternate path, or migration is not in use.
        #[doc(alias = "IBV_MIG_MIGRATED")]
        MIGRATED = 0, "IB_MIG_MIGRATED";
        /// REARM: a new alternate path is being loaded.
        #[doc(alias = "IBV_MIG_REARM")]
        REARM = 1, "IB_MIG_REARM";
        /// ARMED: ready to migrate to the alternate path.
        #[doc(alias = "IBV_MIG_ARMED")]
        ARMED = 2, "IB_MIG_ARMED";
    }

    /// Path MTU: maximum payload of a packet.
    enum Mtu : u8 = "ib_mtu" {
        /// 256 bytes.
        #[doc(alias = "IBV_MTU_256")]
        MTU_256 = 1, "IB_MTU_256";
        /// 512 bytes.
        #[doc(alias = "IBV_MTU_512")]
        MTU_512 = 2, "IB_MTU_512";
        /// 1024 bytes.
        #[doc(alias = "IBV_MTU_1024")]
        MTU_1024 = 3, "IB_MTU_1024";
        /// 2048 bytes.
        #[doc(alias = "IBV_MTU_2048")]
        MTU_2048 = 4, "IB_MTU_2048";
        /// 4096 bytes.
        #[doc(alias = "IBV_MTU_4096")]
        MTU_4096 = 5, "IB_MTU_4096";
        /// 8192 bytes; Omni-Path only.
        OPA_8192 = 6, "OPA_MTU_8192";
        /// 10,240 bytes; Omni-Path only.
        OPA_10240 = 7, "OPA_MTU_10240";
    }

    /// Logical state of a port.
    #[doc(alias = "ibv_port_state_str")]
    #[doc(alias = "ibv_port_state")]
    enum PortState : u8 = "ib_port_state" {
        /// NOP: used in requests only.
        #[doc(alias = "IBV_PORT_NOP")]
        NOP = 0, "IB_PORT_NOP";
        /// DOWN: no link.
        #[doc(alias = "IBV_PORT_DOWN")]
        DOWN = 1, "IB_PORT_DOWN";
        /// INIT: link up, not configured.
        #[doc(alias = "IBV_PORT_INIT")]
        INIT = 2, "IB_PORT_INIT";
        /// ARMED: configured, no data traffic yet.
        #[doc(alias = "IBV_PORT_ARMED")]
        ARMED = 3, "IB_PORT_ARMED";
        /// ACTIVE: data traffic.
        #[doc(alias = "IBV_PORT_ACTIVE")]
        ACTIVE = 4, "IB_PORT_ACTIVE";
        /// ACTIVE_DEFER: active, with a transient link error.
        #[doc(alias = "IBV_PORT_ACTIVE_DEFER")]
        ACTIVE_DEFER = 5, "IB_PORT_ACTIVE_DEFER";
    }

    /// Physical state of a port.
    enum PortPhysState : u8 = "ib_port_phys_state" {
        /// Sleep.
        SLEEP = 1, "IB_PORT_PHYS_STATE_SLEEP";
        /// Polling.
        POLLING = 2, "IB_PORT_PHYS_STATE_POLLING";
        /// Disabled.
        DISABLED = 3, "IB_PORT_PHYS_STATE_DISABLED";
        /// Port configuration training.
        TRAINING = 4, "IB_PORT_PHYS_STATE_PORT_CONFIGURATION_TRAINING";
        /// Link up.
        LINK_UP = 5, "IB_PORT_PHYS_STATE_LINK_UP";
        /// Link error recovery.
        LINK_ERROR_RECOVERY = 6, "IB_PORT_PHYS_STATE_LINK_ERROR_RECOVERY";
        /// PHY test.
        PHY_TEST = 7, "IB_PORT_PHYS_STATE_PHY_TEST";
    }

    /// Number of lanes of a link; the values are bits for historical reasons.
    enum PortWidth : u8 = "ib_port_width" {
        /// One lane.
        X1 = 1, "IB_WIDTH_1X";
        /// Two lanes.
        X2 = 16, "IB_WIDTH_2X";
        /// Four lanes.
        X4 = 2, "IB_WIDTH_4X";
        /// Eight lanes.
        X8 = 4, "IB_WIDTH_8X";
        /// Twelve lanes.
        X12 = 8, "IB_WIDTH_12X";
    }

    /// Signalling rate of one lane.
    enum PortSpeed : u32 = "ib_port_speed" {
        /// 2.5 Gbit/s.
        SDR = 1, "IB_SPEED_SDR";
        /// 5 Gbit/s.
        DDR = 2, "IB_SPEED_DDR";
        /// 10 Gbit/s.
        QDR = 4, "IB_SPEED_QDR";
        /// 10.3125 Gbit/s.
        FDR10 = 8, "IB_SPEED_FDR10";
        /// 14.0625 Gbit/s.
        FDR = 16, "IB_SPEED_FDR";
        /// 25.78125 Gbit/s.
        EDR = 32, "IB_SPEED_EDR";
        /// 53.125 Gbit/s.
        HDR = 64, "IB_SPEED_HDR";
        /// 106.25 Gbit/s.
        NDR = 128, "IB_SPEED_NDR";
        /// 212.5 Gbit/s.
        XDR = 256, "IB_SPEED_XDR" since V6_12;
    }

    /// Link layer of a port.
    enum LinkLayer : u8 = "rdma_link_layer" {
        /// Not known.
        #[doc(alias = "IBV_LINK_LAYER_UNSPECIFIED")]
        UNSPECIFIED = 0, "IB_LINK_LAYER_UNSPECIFIED";
        /// InfiniBand.
        #[doc(alias = "IBV_LINK_LAYER_INFINIBAND")]
        INFINIBAND = 1, "IB_LINK_LAYER_INFINIBAND";
        /// Ethernet: RoCE or iWARP.
        #[doc(alias = "IBV_LINK_LAYER_ETHERNET")]
        ETHERNET = 2, "IB_LINK_LAYER_ETHERNET";
    }

    /// Scope of atomicity of remote atomics.
    #[doc(alias = "ibv_atomic_cap")]
    enum AtomicCap : u32 = "ib_atomic_cap" {
        /// No atomics.
        #[doc(alias = "IBV_ATOMIC_NONE")]
        NONE = 0, "IB_ATOMIC_NONE";
        /// Atomic with respect to atomics of the same device.
        #[doc(alias = "IBV_ATOMIC_HCA")]
        HCA = 1, "IB_ATOMIC_HCA";
        /// Atomic with respect to all accesses, also by CPUs.
        #[doc(alias = "IBV_ATOMIC_GLOB")]
        GLOB = 2, "IB_ATOMIC_GLOB";
    }

    /// Type of an asynchronous event.
    #[doc(alias = "ibv_event_type")]
    #[doc(alias = "ibv_event_type_str")]
    enum EventType : u32 = "ib_event_type" {
        /// A CQ overran or failed.
        #[doc(alias = "IBV_EVENT_CQ_ERR")]
        CQ_ERR = 0, "IB_EVENT_CQ_ERR";
        /// A QP failed (QP_FATAL).
        #[doc(alias = "IBV_EVENT_QP_FATAL")]
        QP_FATAL = 1, "IB_EVENT_QP_FATAL";
        /// A QP received an invalid request (QP_REQ_ERR).
        #[doc(alias = "IBV_EVENT_QP_REQ_ERR")]
        QP_REQ_ERR = 2, "IB_EVENT_QP_REQ_ERR";
        /// A QP detected an access violation (QP_ACCESS_ERR).
        #[doc(alias = "IBV_EVENT_QP_ACCESS_ERR")]
        QP_ACCESS_ERR = 3, "IB_EVENT_QP_ACCESS_ERR";
        /// A QP in RTR received its first packet.
        #[doc(alias = "IBV_EVENT_COMM_EST")]
        COMM_EST = 4, "IB_EVENT_COMM_EST";
        /// A send queue in SQD has drained.
        #[doc(alias = "IBV_EVENT_SQ_DRAINED")]
        SQ_DRAINED = 5, "IB_EVENT_SQ_DRAINED";
        /// A connection migrated to its alternate path.
        #[doc(alias = "IBV_EVENT_PATH_MIG")]
        PATH_MIG = 6, "IB_EVENT_PATH_MIG";
        /// A connection failed to migrate to its alternate path.
        #[doc(alias = "IBV_EVENT_PATH_MIG_ERR")]
        PATH_MIG_ERR = 7, "IB_EVENT_PATH_MIG_ERR";
        /// The device failed or is being removed.
        #[doc(alias = "IBV_EVENT_DEVICE_FATAL")]
        DEVICE_FATAL = 8, "IB_EVENT_DEVICE_FATAL";
        /// A port became active.
        #[doc(alias = "IBV_EVENT_PORT_ACTIVE")]
        PORT_ACTIVE = 9, "IB_EVENT_PORT_ACTIVE";
        /// A port went down.
        #[doc(alias = "IBV_EVENT_PORT_ERR")]
        PORT_ERR = 10, "IB_EVENT_PORT_ERR";
        /// The LID of a port changed.
        #[doc(alias = "IBV_EVENT_LID_CHANGE")]
        LID_CHANGE = 11, "IB_EVENT_LID_CHANGE";
        /// The P_Key table of a port changed.
        #[doc(alias = "IBV_EVENT_PKEY_CHANGE")]
        PKEY_CHANGE = 12, "IB_EVENT_PKEY_CHANGE";
        /// The subnet manager of a port changed.
        #[doc(alias = "IBV_EVENT_SM_CHANGE")]
        SM_CHANGE = 13, "IB_EVENT_SM_CHANGE";
        /// An SRQ failed.
        #[doc(alias = "IBV_EVENT_SRQ_ERR")]
        SRQ_ERR = 14, "IB_EVENT_SRQ_ERR";
        /// The number of posted receives of an SRQ fell below its limit.
        #[doc(alias = "IBV_EVENT_SRQ_LIMIT_REACHED")]
        SRQ_LIMIT_REACHED = 15, "IB_EVENT_SRQ_LIMIT_REACHED";
        /// A QP with an SRQ has consumed its last WQE.
        #[doc(alias = "IBV_EVENT_QP_LAST_WQE_REACHED")]
        QP_LAST_WQE_REACHED = 16, "IB_EVENT_QP_LAST_WQE_REACHED";
        /// The subnet manager requests client re-registration.
        #[doc(alias = "IBV_EVENT_CLIENT_REREGISTER")]
        CLIENT_REREGISTER = 17, "IB_EVENT_CLIENT_REREGISTER";
        /// The GID table of a port changed.
        #[doc(alias = "IBV_EVENT_GID_CHANGE")]
        GID_CHANGE = 18, "IB_EVENT_GID_CHANGE";
        /// A WQ failed.
        #[doc(alias = "IBV_EVENT_WQ_FATAL")]
        WQ_FATAL = 19, "IB_EVENT_WQ_FATAL";
        /// The speed of a port changed.
        #[doc(alias = "IBV_EVENT_DEVICE_SPEED_CHANGE")]
        DEVICE_SPEED_CHANGE = 20, "IB_EVENT_DEVICE_SPEED_CHANGE" since V7_2;
    }

    /// Status of a completion; `IBV_WC_*` in libibverbs.
    #[doc(alias = "ibv_wc_status")]
    enum WcStatus : u32 = "ib_wc_status" {
        /// Success.
        #[doc(alias = "IBV_WC_SUCCESS")]
        SUCCESS = 0, "IB_WC_SUCCESS";
        /// Local length error: the buffers do not fit the message.
        #[doc(alias = "IBV_WC_LOC_LEN_ERR")]
        LOC_LEN_ERR = 1, "IB_WC_LOC_LEN_ERR";
        /// Local QP operation error: the QP can't execute the request.
        #[doc(alias = "IBV_WC_LOC_QP_OP_ERR")]
        LOC_QP_OP_ERR = 2, "IB_WC_LOC_QP_OP_ERR";
        /// Local EE context operation error. No device has EE contexts.
        #[doc(alias = "IBV_WC_LOC_EEC_OP_ERR")]
        LOC_EEC_OP_ERR = 3, "IB_WC_LOC_EEC_OP_ERR";
        /// Local protection error: an lkey does not allow the access.
        #[doc(alias = "IBV_WC_LOC_PROT_ERR")]
        LOC_PROT_ERR = 4, "IB_WC_LOC_PROT_ERR";
        /// Flushed: the QP was in ERR.
        #[doc(alias = "IBV_WC_WR_FLUSH_ERR")]
        WR_FLUSH_ERR = 5, "IB_WC_WR_FLUSH_ERR";
        /// Memory window bind error.
        #[doc(alias = "IBV_WC_MW_BIND_ERR")]
        MW_BIND_ERR = 6, "IB_WC_MW_BIND_ERR";
        /// Bad response of the peer.
        #[doc(alias = "IBV_WC_BAD_RESP_ERR")]
        BAD_RESP_ERR = 7, "IB_WC_BAD_RESP_ERR";
        /// Local access error: an RDMA WRITE with immediate failed the local protection check.
        #[doc(alias = "IBV_WC_LOC_ACCESS_ERR")]
        LOC_ACCESS_ERR = 8, "IB_WC_LOC_ACCESS_ERR";
        /// Remote invalid request error.
        #[doc(alias = "IBV_WC_REM_INV_REQ_ERR")]
        REM_INV_REQ_ERR = 9, "IB_WC_REM_INV_REQ_ERR";
        /// Remote access error: the peer's rkey does not allow the access.
        #[doc(alias = "IBV_WC_REM_ACCESS_ERR")]
        REM_ACCESS_ERR = 10, "IB_WC_REM_ACCESS_ERR";
        /// Remote operation error: the peer could not complete the request.
        #[doc(alias = "IBV_WC_REM_OP_ERR")]
        REM_OP_ERR = 11, "IB_WC_REM_OP_ERR";
        /// Retries exceeded: no response of the peer.
        #[doc(alias = "IBV_WC_RETRY_EXC_ERR")]
        RETRY_EXC_ERR = 12, "IB_WC_RETRY_EXC_ERR";
        /// RNR retries exceeded: the peer had no receive posted.
        #[doc(alias = "IBV_WC_RNR_RETRY_EXC_ERR")]
        RNR_RETRY_EXC_ERR = 13, "IB_WC_RNR_RETRY_EXC_ERR";
        /// Local RDD violation.
        #[doc(alias = "IBV_WC_LOC_RDD_VIOL_ERR")]
        LOC_RDD_VIOL_ERR = 14, "IB_WC_LOC_RDD_VIOL_ERR";
        /// Remote invalid RD request.
        #[doc(alias = "IBV_WC_REM_INV_RD_REQ_ERR")]
        REM_INV_RD_REQ_ERR = 15, "IB_WC_REM_INV_RD_REQ_ERR";
        /// Aborted by the peer.
        #[doc(alias = "IBV_WC_REM_ABORT_ERR")]
        REM_ABORT_ERR = 16, "IB_WC_REM_ABORT_ERR";
        /// Invalid end-to-end context number.
        #[doc(alias = "IBV_WC_INV_EECN_ERR")]
        INV_EECN_ERR = 17, "IB_WC_INV_EECN_ERR";
        /// Invalid end-to-end context state.
        #[doc(alias = "IBV_WC_INV_EEC_STATE_ERR")]
        INV_EEC_STATE_ERR = 18, "IB_WC_INV_EEC_STATE_ERR";
        /// Fatal error of the device.
        #[doc(alias = "IBV_WC_FATAL_ERR")]
        FATAL_ERR = 19, "IB_WC_FATAL_ERR";
        /// Response timeout.
        #[doc(alias = "IBV_WC_RESP_TIMEOUT_ERR")]
        RESP_TIMEOUT_ERR = 20, "IB_WC_RESP_TIMEOUT_ERR";
        /// General error.
        #[doc(alias = "IBV_WC_GENERAL_ERR")]
        GENERAL_ERR = 21, "IB_WC_GENERAL_ERR";
    }

    /// Static rate of a path.
    #[doc(alias = "ibv_rate")]
    enum Rate : u8 = "ib_rate" {
        /// Rate of the port.
        PORT_CURRENT = 0, "IB_RATE_PORT_CURRENT";
        /// 2.5 Gbit/s.
        #[doc(alias = "IBV_RATE_2_5_GBPS")]
        GBPS_2_5 = 2, "IB_RATE_2_5_GBPS";
        /// 5 Gbit/s.
        #[doc(alias = "IBV_RATE_5_GBPS")]
        GBPS_5 = 5, "IB_RATE_5_GBPS";
        /// 10 Gbit/s.
        #[doc(alias = "IBV_RATE_10_GBPS")]
        GBPS_10 = 3, "IB_RATE_10_GBPS";
        /// 20 Gbit/s.
        #[doc(alias = "IBV_RATE_20_GBPS")]
        GBPS_20 = 6, "IB_RATE_20_GBPS";
        /// 30 Gbit/s.
        #[doc(alias = "IBV_RATE_30_GBPS")]
        GBPS_30 = 4, "IB_RATE_30_GBPS";
        /// 40 Gbit/s.
        #[doc(alias = "IBV_RATE_40_GBPS")]
        GBPS_40 = 7, "IB_RATE_40_GBPS";
        /// 60 Gbit/s.
        #[doc(alias = "IBV_RATE_60_GBPS")]
        GBPS_60 = 8, "IB_RATE_60_GBPS";
        /// 80 Gbit/s.
        #[doc(alias = "IBV_RATE_80_GBPS")]
        GBPS_80 = 9, "IB_RATE_80_GBPS";
        /// 120 Gbit/s.
        #[doc(alias = "IBV_RATE_120_GBPS")]
        GBPS_120 = 10, "IB_RATE_120_GBPS";
        /// 14 Gbit/s.
        #[doc(alias = "IBV_RATE_14_GBPS")]
        GBPS_14 = 11, "IB_RATE_14_GBPS";
        /// 56 Gbit/s.
        #[doc(alias = "IBV_RATE_56_GBPS")]
        GBPS_56 = 12, "IB_RATE_56_GBPS";
        /// 112 Gbit/s.
        #[doc(alias = "IBV_RATE_112_GBPS")]
        GBPS_112 = 13, "IB_RATE_112_GBPS";
        /// 168 Gbit/s.
        #[doc(alias = "IBV_RATE_168_GBPS")]
        GBPS_168 = 14, "IB_RATE_168_GBPS";
        /// 25 Gbit/s.
        #[doc(alias = "IBV_RATE_25_GBPS")]
        GBPS_25 = 15, "IB_RATE_25_GBPS";
        /// 100 Gbit/s.
        #[doc(alias = "IBV_RATE_100_GBPS")]
        GBPS_100 = 16, "IB_RATE_100_GBPS";
        /// 200 Gbit/s.
        #[doc(alias = "IBV_RATE_200_GBPS")]
        GBPS_200 = 17, "IB_RATE_200_GBPS";
        /// 300 Gbit/s.
        #[doc(alias = "IBV_RATE_300_GBPS")]
        GBPS_300 = 18, "IB_RATE_300_GBPS";
        /// 28 Gbit/s.
        #[doc(alias = "IBV_RATE_28_GBPS")]
        GBPS_28 = 19, "IB_RATE_28_GBPS";
        /// 50 Gbit/s.
        #[doc(alias = "IBV_RATE_50_GBPS")]
        GBPS_50 = 20, "IB_RATE_50_GBPS";
        /// 400 Gbit/s.
        #[doc(alias = "IBV_RATE_400_GBPS")]
        GBPS_400 = 21, "IB_RATE_400_GBPS";
        /// 600 Gbit/s.
        #[doc(alias = "IBV_RATE_600_GBPS")]
        GBPS_600 = 22, "IB_RATE_600_GBPS";
        /// 800 Gbit/s.
        #[doc(alias = "IBV_RATE_800_GBPS")]
        GBPS_800 = 23, "IB_RATE_800_GBPS" since V6_12;
        /// 1600 Gbit/s.
        GBPS_1600 = 25, "IB_RATE_1600_GBPS" since V7_2;
    }

    /// RNR NAK timer: delay that a responder without a posted receive requests.
    enum RnrTimeout : u8 = "ib_rnr_timeout" {
        /// 655.36 ms.
        MS_655_36 = 0, "IB_RNR_TIMER_655_36";
        /// 0.01 ms.
        MS_0_01 = 1, "IB_RNR_TIMER_000_01";
        /// 0.02 ms.
        MS_0_02 = 2, "IB_RNR_TIMER_000_02";
        /// 0.03 ms.
        MS_0_03 = 3, "IB_RNR_TIMER_000_03";
        /// 0.04 ms.
        MS_0_04 = 4, "IB_RNR_TIMER_000_04";
        /// 0.06 ms.
        MS_0_06 = 5, "IB_RNR_TIMER_000_06";
        /// 0.08 ms.
        MS_0_08 = 6, "IB_RNR_TIMER_000_08";
        /// 0.12 ms.
        MS_0_12 = 7, "IB_RNR_TIMER_000_12";
        /// 0.16 ms.
        MS_0_16 = 8, "IB_RNR_TIMER_000_16";
        /// 0.24 ms.
        MS_0_24 = 9, "IB_RNR_TIMER_000_24";
        /// 0.32 ms.
        MS_0_32 = 10, "IB_RNR_TIMER_000_32";
        /// 0.48 ms.
        MS_0_48 = 11, "IB_RNR_TIMER_000_48";
        /// 0.64 ms.
        MS_0_64 = 12, "IB_RNR_TIMER_000_64";
        /// 0.96 ms.
        MS_0_96 = 13, "IB_RNR_TIMER_000_96";
        /// 1.28 ms.
        MS_1_28 = 14, "IB_RNR_TIMER_001_28";
        /// 1.92 ms.
        MS_1_92 = 15, "IB_RNR_TIMER_001_92";
        /// 2.56 ms.
        MS_2_56 = 16, "IB_RNR_TIMER_002_56";
        /// 3.84 ms.
        MS_3_84 = 17, "IB_RNR_TIMER_003_84";
        /// 5.12 ms.
        MS_5_12 = 18, "IB_RNR_TIMER_005_12";
        /// 7.68 ms.
        MS_7_68 = 19, "IB_RNR_TIMER_007_68";
        /// 10.24 ms.
        MS_10_24 = 20, "IB_RNR_TIMER_010_24";
        /// 15.36 ms.
        MS_15_36 = 21, "IB_RNR_TIMER_015_36";
        /// 20.48 ms.
        MS_20_48 = 22, "IB_RNR_TIMER_020_48";
        /// 30.72 ms.
        MS_30_72 = 23, "IB_RNR_TIMER_030_72";
        /// 40.96 ms.
        MS_40_96 = 24, "IB_RNR_TIMER_040_96";
        /// 61.44 ms.
        MS_61_44 = 25, "IB_RNR_TIMER_061_44";
        /// 81.92 ms.
        MS_81_92 = 26, "IB_RNR_TIMER_081_92";
        /// 122.88 ms.
        MS_122_88 = 27, "IB_RNR_TIMER_122_88";
        /// 163.84 ms.
        MS_163_84 = 28, "IB_RNR_TIMER_163_84";
        /// 245.76 ms.
        MS_245_76 = 29, "IB_RNR_TIMER_245_76";
        /// 327.68 ms.
        MS_327_68 = 30, "IB_RNR_TIMER_327_68";
        /// 491.52 ms.
        MS_491_52 = 31, "IB_RNR_TIMER_491_52";
    }

    /// Type of a memory window.
    #[doc(alias = "ibv_mw_type")]
    enum MwType : u8 = "ib_mw_type" {
        /// Type 1: bound by a verb, for all QPs of the PD.
        #[doc(alias = "IBV_MW_TYPE_1")]
        TYPE_1 = 1, "IB_MW_TYPE_1";
        /// Type 2: bound by a work request, for one QP.
        #[doc(alias = "IBV_MW_TYPE_2")]
        TYPE_2 = 2, "IB_MW_TYPE_2";
    }

    /// Context in which the kernel polls a kernel CQ.
    enum PollContext : u8 = "ib_poll_context" {
        /// In a softirq.
        SOFTIRQ = 0, "IB_POLL_SOFTIRQ";
        /// In a bound kernel workqueue.
        WORKQUEUE = 1, "IB_POLL_WORKQUEUE";
        /// In an unbound kernel workqueue.
        UNBOUND_WORKQUEUE = 2, "IB_POLL_UNBOUND_WORKQUEUE";
        /// By direct calls of its owner.
        DIRECT = 3, "IB_POLL_DIRECT";
    }

    /// State of a work queue.
    #[doc(alias = "ibv_wq_state")]
    enum WqState : u32 = "ib_wq_state" {
        /// RESET.
        #[doc(alias = "IBV_WQS_RESET")]
        RESET = 0, "IB_WQS_RESET";
        /// RDY: ready to receive.
        #[doc(alias = "IBV_WQS_RDY")]
        RDY = 1, "IB_WQS_RDY";
        /// ERR.
        #[doc(alias = "IBV_WQS_ERR")]
        ERR = 2, "IB_WQS_ERR";
    }

    /// Type of a flow.
    #[doc(alias = "ibv_flow_attr_type")]
    enum FlowAttrType : u32 = "ib_flow_attr_type" {
        /// Packets that match its specifications.
        #[doc(alias = "IBV_FLOW_ATTR_NORMAL")]
        NORMAL = 0, "IB_FLOW_ATTR_NORMAL";
        /// All packets that match no other flow.
        #[doc(alias = "IBV_FLOW_ATTR_ALL_DEFAULT")]
        ALL_DEFAULT = 1, "IB_FLOW_ATTR_ALL_DEFAULT";
        /// Multicast packets that match no other flow.
        #[doc(alias = "IBV_FLOW_ATTR_MC_DEFAULT")]
        MC_DEFAULT = 2, "IB_FLOW_ATTR_MC_DEFAULT";
        /// A copy of all traffic of the port.
        #[doc(alias = "IBV_FLOW_ATTR_SNIFFER")]
        SNIFFER = 3, "IB_FLOW_ATTR_SNIFFER";
    }

    /// Type of a flow specification.
    #[doc(alias = "ibv_flow_spec_type")]
    enum FlowSpecType : u32 = "ib_flow_spec_type" {
        /// Ethernet header.
        #[doc(alias = "IBV_FLOW_SPEC_ETH")]
        ETH = 0x20, "IB_FLOW_SPEC_ETH";
        /// InfiniBand local header.
        IB = 0x22, "IB_FLOW_SPEC_IB";
        /// IPv4 header.
        #[doc(alias = "IBV_FLOW_SPEC_IPV4")]
        IPV4 = 0x30, "IB_FLOW_SPEC_IPV4";
        /// IPv6 header.
        #[doc(alias = "IBV_FLOW_SPEC_IPV6")]
        IPV6 = 0x31, "IB_FLOW_SPEC_IPV6";
        /// IPsec ESP header.
        #[doc(alias = "IBV_FLOW_SPEC_ESP")]
        ESP = 0x34, "IB_FLOW_SPEC_ESP";
        /// TCP header.
        #[doc(alias = "IBV_FLOW_SPEC_TCP")]
        TCP = 0x40, "IB_FLOW_SPEC_TCP";
        /// UDP header.
        #[doc(alias = "IBV_FLOW_SPEC_UDP")]
        UDP = 0x41, "IB_FLOW_SPEC_UDP";
        /// VXLAN header.
        #[doc(alias = "IBV_FLOW_SPEC_VXLAN_TUNNEL")]
        VXLAN_TUNNEL = 0x50, "IB_FLOW_SPEC_VXLAN_TUNNEL";
        /// GRE header.
        #[doc(alias = "IBV_FLOW_SPEC_GRE")]
        GRE = 0x51, "IB_FLOW_SPEC_GRE";
        /// MPLS label.
        #[doc(alias = "IBV_FLOW_SPEC_MPLS")]
        MPLS = 0x60, "IB_FLOW_SPEC_MPLS";
        /// Flag: the inner header of a tunnel.
        #[doc(alias = "IBV_FLOW_SPEC_INNER")]
        INNER = 0x100, "IB_FLOW_SPEC_INNER";
        /// Set a tag in completions.
        #[doc(alias = "IBV_FLOW_SPEC_ACTION_TAG")]
        ACTION_TAG = 0x1000, "IB_FLOW_SPEC_ACTION_TAG";
        /// Drop the packets.
        #[doc(alias = "IBV_FLOW_SPEC_ACTION_DROP")]
        ACTION_DROP = 0x1001, "IB_FLOW_SPEC_ACTION_DROP";
        /// Apply a flow action object.
        #[doc(alias = "IBV_FLOW_SPEC_ACTION_HANDLE")]
        ACTION_HANDLE = 0x1002, "IB_FLOW_SPEC_ACTION_HANDLE";
        /// Count in a counters object.
        #[doc(alias = "IBV_FLOW_SPEC_ACTION_COUNT")]
        ACTION_COUNT = 0x1003, "IB_FLOW_SPEC_ACTION_COUNT";
    }

    /// Quantity of a counter of a counters object.
    #[doc(alias = "ibv_counter_description")]
    enum CounterDescription : u32 = "ib_counters_description" {
        /// Packets.
        PACKETS = 0, "IB_COUNTER_PACKETS";
        /// Length in bytes.
        BYTES = 1, "IB_COUNTER_BYTES";
    }
}

abi_flags! {
    header = "include/rdma/ib_verbs.h";

    /// Attribute mask of MODIFY_QP and QUERY_QP.
    #[doc(alias = "ibv_qp_attr_mask")]
    flags QpAttrMask : u32 = "ib_qp_attr_mask" {
        /// The state.
        #[doc(alias = "IBV_QP_STATE")]
        STATE = 1, "IB_QP_STATE";
        /// The current state, as the caller assumes it.
        #[doc(alias = "IBV_QP_CUR_STATE")]
        CUR_STATE = 1 << 1, "IB_QP_CUR_STATE";
        /// Whether the event SQ_DRAINED is requested.
        #[doc(alias = "IBV_QP_EN_SQD_ASYNC_NOTIFY")]
        EN_SQD_ASYNC_NOTIFY = 1 << 2, "IB_QP_EN_SQD_ASYNC_NOTIFY";
        /// Remote access flags.
        #[doc(alias = "IBV_QP_ACCESS_FLAGS")]
        ACCESS_FLAGS = 1 << 3, "IB_QP_ACCESS_FLAGS";
        /// P_Key index.
        #[doc(alias = "IBV_QP_PKEY_INDEX")]
        PKEY_INDEX = 1 << 4, "IB_QP_PKEY_INDEX";
        /// Physical port.
        #[doc(alias = "IBV_QP_PORT")]
        PORT = 1 << 5, "IB_QP_PORT";
        /// Q_Key.
        #[doc(alias = "IBV_QP_QKEY")]
        QKEY = 1 << 6, "IB_QP_QKEY";
        /// Path to the peer.
        #[doc(alias = "IBV_QP_AV")]
        AV = 1 << 7, "IB_QP_AV";
        /// Path MTU.
        #[doc(alias = "IBV_QP_PATH_MTU")]
        PATH_MTU = 1 << 8, "IB_QP_PATH_MTU";
        /// Local ACK timeout.
        #[doc(alias = "IBV_QP_TIMEOUT")]
        TIMEOUT = 1 << 9, "IB_QP_TIMEOUT";
        /// Retries after a timeout.
        #[doc(alias = "IBV_QP_RETRY_CNT")]
        RETRY_CNT = 1 << 10, "IB_QP_RETRY_CNT";
        /// RNR retries.
        #[doc(alias = "IBV_QP_RNR_RETRY")]
        RNR_RETRY = 1 << 11, "IB_QP_RNR_RETRY";
        /// Initial receive PSN.
        #[doc(alias = "IBV_QP_RQ_PSN")]
        RQ_PSN = 1 << 12, "IB_QP_RQ_PSN";
        /// Maximum outstanding RDMA READs and atomics as requester.
        #[doc(alias = "IBV_QP_MAX_QP_RD_ATOMIC")]
        MAX_QP_RD_ATOMIC = 1 << 13, "IB_QP_MAX_QP_RD_ATOMIC";
        /// Alternate path.
        #[doc(alias = "IBV_QP_ALT_PATH")]
        ALT_PATH = 1 << 14, "IB_QP_ALT_PATH";
        /// Minimum RNR NAK timer.
        #[doc(alias = "IBV_QP_MIN_RNR_TIMER")]
        MIN_RNR_TIMER = 1 << 15, "IB_QP_MIN_RNR_TIMER";
        /// Initial send PSN.
        #[doc(alias = "IBV_QP_SQ_PSN")]
        SQ_PSN = 1 << 16, "IB_QP_SQ_PSN";
        /// Maximum outstanding RDMA READs and atomics as responder.
        #[doc(alias = "IBV_QP_MAX_DEST_RD_ATOMIC")]
        MAX_DEST_RD_ATOMIC = 1 << 17, "IB_QP_MAX_DEST_RD_ATOMIC";
        /// Path migration state.
        #[doc(alias = "IBV_QP_PATH_MIG_STATE")]
        PATH_MIG_STATE = 1 << 18, "IB_QP_PATH_MIG_STATE";
        /// Queue sizes.
        #[doc(alias = "IBV_QP_CAP")]
        CAP = 1 << 19, "IB_QP_CAP";
        /// QPN of the peer.
        #[doc(alias = "IBV_QP_DEST_QPN")]
        DEST_QPN = 1 << 20, "IB_QP_DEST_QPN";
        /// Packet pacing rate; extended modify command only.
        #[doc(alias = "IBV_QP_RATE_LIMIT")]
        RATE_LIMIT = 1 << 25, "IB_QP_RATE_LIMIT";
    }

    /// Flags of a send request; `IBV_SEND_*` in libibverbs.
    #[doc(alias = "ibv_send_flags")]
    flags SendFlags : u32 = "ib_send_flags" {
        /// Fence: wait for earlier RDMA READs and atomics.
        #[doc(alias = "IBV_SEND_FENCE")]
        FENCE = 1, "IB_SEND_FENCE";
        /// Signaled: write a CQE.
        #[doc(alias = "IBV_SEND_SIGNALED")]
        SIGNALED = 1 << 1, "IB_SEND_SIGNALED";
        /// Solicited event at the peer.
        #[doc(alias = "IBV_SEND_SOLICITED")]
        SOLICITED = 1 << 2, "IB_SEND_SOLICITED";
        /// Inline: the data is copied into the WQE.
        #[doc(alias = "IBV_SEND_INLINE")]
        INLINE = 1 << 3, "IB_SEND_INLINE";
        /// The device computes IP and TCP or UDP checksums.
        #[doc(alias = "IBV_SEND_IP_CSUM")]
        IP_CSUM = 1 << 4, "IB_SEND_IP_CSUM";
    }

    /// Flags of a completion; `IBV_WC_*` in libibverbs.
    #[doc(alias = "ibv_wc_flags")]
    flags WcFlags : u32 = "ib_wc_flags" {
        /// A GRH is in the first 40 bytes of the receive buffer.
        #[doc(alias = "IBV_WC_GRH")]
        GRH = 1, "IB_WC_GRH";
        /// Immediate data.
        #[doc(alias = "IBV_WC_WITH_IMM")]
        WITH_IMM = 1 << 1, "IB_WC_WITH_IMM";
        /// The rkey that the peer invalidated.
        #[doc(alias = "IBV_WC_WITH_INV")]
        WITH_INVALIDATE = 1 << 2, "IB_WC_WITH_INVALIDATE";
        /// Checksums are valid.
        #[doc(alias = "IBV_WC_IP_CSUM_OK")]
        IP_CSUM_OK = 1 << 3, "IB_WC_IP_CSUM_OK";
        /// Source Ethernet address.
        WITH_SMAC = 1 << 4, "IB_WC_WITH_SMAC";
        /// A VLAN tag.
        WITH_VLAN = 1 << 5, "IB_WC_WITH_VLAN";
        /// Type of the network header.
        WITH_NETWORK_HDR_TYPE = 1 << 6, "IB_WC_WITH_NETWORK_HDR_TYPE";
    }

    /// Attribute mask of MODIFY_SRQ.
    #[doc(alias = "ibv_srq_attr_mask")]
    flags SrqAttrMask : u32 = "ib_srq_attr_mask" {
        /// The size.
        #[doc(alias = "IBV_SRQ_MAX_WR")]
        MAX_WR = 1 << 0, "IB_SRQ_MAX_WR";
        /// The SRQ limit.
        #[doc(alias = "IBV_SRQ_LIMIT")]
        LIMIT = 1 << 1, "IB_SRQ_LIMIT";
    }

    /// Attribute mask of MODIFY_CQ.
    #[doc(alias = "ibv_cq_attr_mask")]
    flags CqAttrMask : u32 = "ib_cq_attr_mask" {
        /// CQ event moderation.
        MODERATE = 1 << 0, "IB_CQ_MODERATE";
    }

    /// Attribute mask of MODIFY_WQ.
    #[doc(alias = "ibv_wq_attr_mask")]
    flags WqAttrMask : u32 = "ib_wq_attr_mask" {
        /// The state.
        STATE = 1 << 0, "IB_WQ_STATE";
        /// The current state, as the caller assumes it.
        CUR_STATE = 1 << 1, "IB_WQ_CUR_STATE";
        /// The flags.
        FLAGS = 1 << 2, "IB_WQ_FLAGS";
    }

    /// Change mask of REREG_MR.
    #[doc(alias = "ibv_rereg_mr_flags")]
    flags MrReregFlags : u32 = "ib_mr_rereg_flags" {
        /// Address and length (translation).
        #[doc(alias = "IBV_REREG_MR_CHANGE_TRANSLATION")]
        TRANS = 1, "IB_MR_REREG_TRANS";
        /// The protection domain.
        #[doc(alias = "IBV_REREG_MR_CHANGE_PD")]
        PD = 1 << 1, "IB_MR_REREG_PD";
        /// The access flags.
        #[doc(alias = "IBV_REREG_MR_CHANGE_ACCESS")]
        ACCESS = 1 << 2, "IB_MR_REREG_ACCESS";
    }

    /// Flags of a flow.
    #[doc(alias = "ibv_flow_flags")]
    flags FlowFlags : u32 = "ib_flow_flags" {
        /// Packets also continue to later flows (no trap).
        #[doc(alias = "IBV_FLOW_ATTR_FLAGS_DONT_TRAP")]
        DONT_TRAP = 1 << 1, "IB_FLOW_ATTR_FLAGS_DONT_TRAP";
        /// The flow matches egress packets.
        #[doc(alias = "IBV_FLOW_ATTR_FLAGS_EGRESS")]
        EGRESS = 1 << 2, "IB_FLOW_ATTR_FLAGS_EGRESS";
    }

    /// Tag matching capabilities.
    #[doc(alias = "ibv_tm_cap_flags")]
    flags TmCapFlags : u32 = "ib_tm_cap_flags" {
        /// Rendezvous over RC.
        RNDV_RC = 1 << 0, "IB_TM_CAP_RNDV_RC";
    }
}

impl Rate {
    /// The rates in megabit per second, as in `ib_rate_to_mbps` of the kernel, and as multiples of
    /// 2.5 Gbit/s, as in `ib_rate_to_mult`. Linux 6.1 lacks the last two, 6.12 the last.
    const TABLE: [(Self, u32, u32); 23] = [
        (Self::GBPS_2_5, 2_500, 1),
        (Self::GBPS_5, 5_000, 2),
        (Self::GBPS_10, 10_000, 4),
        (Self::GBPS_20, 20_000, 8),
        (Self::GBPS_30, 30_000, 12),
        (Self::GBPS_40, 40_000, 16),
        (Self::GBPS_60, 60_000, 24),
        (Self::GBPS_80, 80_000, 32),
        (Self::GBPS_120, 120_000, 48),
        (Self::GBPS_14, 14_062, 6),
        (Self::GBPS_56, 56_250, 22),
        (Self::GBPS_112, 112_500, 45),
        (Self::GBPS_168, 168_750, 67),
        (Self::GBPS_25, 25_781, 10),
        (Self::GBPS_100, 103_125, 40),
        (Self::GBPS_200, 206_250, 80),
        (Self::GBPS_300, 309_375, 120),
        (Self::GBPS_28, 28_125, 11),
        (Self::GBPS_50, 53_125, 20),
        (Self::GBPS_400, 425_000, 160),
        (Self::GBPS_600, 637_500, 240),
        (Self::GBPS_800, 850_000, 320),
        (Self::GBPS_1600, 1_700_000, 640),
    ];

    /// The rate in Mbit/s. `None` for [`Rate::PORT_CURRENT`] and for unknown values.
    #[must_use]
    #[doc(alias = "ibv_rate_to_mbps")]
    pub fn mbps(self) -> Option<u32> {
        Self::TABLE.iter().find(|(rate, ..)| *rate == self).map(|(_, mbps, _)| *mbps)
    }

    /// The rate as a multiple of 2.5 Gbit/s, within 10 %. `None` where [`Rate::mbps`] is.
    #[must_use]
    #[doc(alias = "ibv_rate_to_mult")]
    pub fn multiple(self) -> Option<u32> {
        Self::TABLE.iter().find(|(rate, ..)| *rate == self).map(|(.., multiple)| *multiple)
    }

    /// The rate that is this multiple of 2.5 Gbit/s.
    #[must_use]
    #[doc(alias = "mult_to_ibv_rate")]
    pub fn from_multiple(multiple: u32) -> Option<Self> {
        Self::TABLE.iter().find(|(.., of_rate)| *of_rate == multiple).map(|(rate, ..)| *rate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_convert_to_mbps_and_multiples_and_back() {
        for (rate, mbps, multiple) in Rate::TABLE {
            assert_eq!((rate.mbps(), rate.multiple()), (Some(mbps), Some(multiple)), "{rate:?}");
            assert_eq!(Rate::from_multiple(multiple), Some(rate));
            assert!(mbps.abs_diff(2500 * multiple) * 10 < mbps, "{rate:?}");
        }
        for rate in [Rate::PORT_CURRENT, Rate(1), Rate(255)] {
            assert_eq!((rate.mbps(), rate.multiple()), (None, None), "{rate:?}");
        }
        assert_eq!((Rate::GBPS_14.mbps(), Rate::GBPS_1600.mbps()), (Some(14_062), Some(1_700_000)));
        assert_eq!((Rate::from_multiple(0), Rate::from_multiple(3)), (None, None));
    }
}
