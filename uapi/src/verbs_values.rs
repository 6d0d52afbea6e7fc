//! Values that cross the user ABI but are named only in the kernel's own `include/rdma/ib_verbs.h`.
//!
//! User space is not given that header, yet the numbers are ABI: they stand in the fields of
//! [`crate::write`] structs, in queue entries and in events.

abi_enums! {
    header = "include/rdma/ib_verbs.h";

    /// State of a queue pair.
    enum QpState : u8 = "ib_qp_state" {
        /// Just made; work is neither accepted nor carried out.
        RESET = 0, "IB_QPS_RESET";
        /// Receives may be posted.
        INIT = 1, "IB_QPS_INIT";
        /// Ready to receive.
        RTR = 2, "IB_QPS_RTR";
        /// Ready to send.
        RTS = 3, "IB_QPS_RTS";
        /// The send queue finishes what it began and stops.
        SQD = 4, "IB_QPS_SQD";
        /// The send queue failed, the receive queue still works (not on reliable connections).
        SQE = 5, "IB_QPS_SQE";
        /// Everything posted is flushed with an error.
        ERR = 6, "IB_QPS_ERR";
    }

    /// State of path migration.
    enum MigState : u8 = "ib_mig_state" {
        /// On the alternate path, or migration is not in use.
        MIGRATED = 0, "IB_MIG_MIGRATED";
        /// A new alternate path is being loaded.
        REARM = 1, "IB_MIG_REARM";
        /// Ready to move to the alternate path.
        ARMED = 2, "IB_MIG_ARMED";
    }

    /// Largest payload of a packet.
    enum Mtu : u8 = "ib_mtu" {
        /// 256 bytes.
        MTU_256 = 1, "IB_MTU_256";
        /// 512 bytes.
        MTU_512 = 2, "IB_MTU_512";
        /// 1024 bytes.
        MTU_1024 = 3, "IB_MTU_1024";
        /// 2048 bytes.
        MTU_2048 = 4, "IB_MTU_2048";
        /// 4096 bytes.
        MTU_4096 = 5, "IB_MTU_4096";
        /// 8192 bytes; Omni-Path only.
        OPA_8192 = 6, "OPA_MTU_8192";
        /// 10,240 bytes; Omni-Path only.
        OPA_10240 = 7, "OPA_MTU_10240";
    }

    /// Logical state of a port.
    enum PortState : u8 = "ib_port_state" {
        /// No state; used in requests only.
        NOP = 0, "IB_PORT_NOP";
        /// No link.
        DOWN = 1, "IB_PORT_DOWN";
        /// Link without a configuration.
        INIT = 2, "IB_PORT_INIT";
        /// Configured, data not yet allowed.
        ARMED = 3, "IB_PORT_ARMED";
        /// Data flows.
        ACTIVE = 4, "IB_PORT_ACTIVE";
        /// Active, with a link fault that may heal.
        ACTIVE_DEFER = 5, "IB_PORT_ACTIVE_DEFER";
    }

    /// Physical state of a port.
    enum PortPhysState : u8 = "ib_port_phys_state" {
        /// Powered down.
        SLEEP = 1, "IB_PORT_PHYS_STATE_SLEEP";
        /// Looking for a partner.
        POLLING = 2, "IB_PORT_PHYS_STATE_POLLING";
        /// Switched off.
        DISABLED = 3, "IB_PORT_PHYS_STATE_DISABLED";
        /// Training with a partner.
        TRAINING = 4, "IB_PORT_PHYS_STATE_PORT_CONFIGURATION_TRAINING";
        /// Up.
        LINK_UP = 5, "IB_PORT_PHYS_STATE_LINK_UP";
        /// Recovering from errors.
        LINK_ERROR_RECOVERY = 6, "IB_PORT_PHYS_STATE_LINK_ERROR_RECOVERY";
        /// Under a transmitter test.
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

    /// What carries the port's packets.
    enum LinkLayer : u8 = "rdma_link_layer" {
        /// Not known.
        UNSPECIFIED = 0, "IB_LINK_LAYER_UNSPECIFIED";
        /// InfiniBand.
        INFINIBAND = 1, "IB_LINK_LAYER_INFINIBAND";
        /// Ethernet: RoCE or iWARP.
        ETHERNET = 2, "IB_LINK_LAYER_ETHERNET";
    }

    /// What remote atomic operations are atomic against.
    enum AtomicCap : u32 = "ib_atomic_cap" {
        /// There are none.
        NONE = 0, "IB_ATOMIC_NONE";
        /// Other atomics through the same device.
        HCA = 1, "IB_ATOMIC_HCA";
        /// Everything, the processors included.
        GLOB = 2, "IB_ATOMIC_GLOB";
    }

    /// What an asynchronous event tells.
    enum EventType : u32 = "ib_event_type" {
        /// A CQ overran or failed.
        CQ_ERR = 0, "IB_EVENT_CQ_ERR";
        /// A QP failed.
        QP_FATAL = 1, "IB_EVENT_QP_FATAL";
        /// A QP refused a transport request.
        QP_REQ_ERR = 2, "IB_EVENT_QP_REQ_ERR";
        /// A QP saw an access violation.
        QP_ACCESS_ERR = 3, "IB_EVENT_QP_ACCESS_ERR";
        /// The first packet came to a QP in RTR.
        COMM_EST = 4, "IB_EVENT_COMM_EST";
        /// A send queue in SQD has drained.
        SQ_DRAINED = 5, "IB_EVENT_SQ_DRAINED";
        /// A connection moved to its alternate path.
        PATH_MIG = 6, "IB_EVENT_PATH_MIG";
        /// A connection could not move to its alternate path.
        PATH_MIG_ERR = 7, "IB_EVENT_PATH_MIG_ERR";
        /// The device failed or is being removed.
        DEVICE_FATAL = 8, "IB_EVENT_DEVICE_FATAL";
        /// A port came up.
        PORT_ACTIVE = 9, "IB_EVENT_PORT_ACTIVE";
        /// A port went down.
        PORT_ERR = 10, "IB_EVENT_PORT_ERR";
        /// A port's local identifier changed.
        LID_CHANGE = 11, "IB_EVENT_LID_CHANGE";
        /// A port's partition table changed.
        PKEY_CHANGE = 12, "IB_EVENT_PKEY_CHANGE";
        /// A port's subnet manager changed.
        SM_CHANGE = 13, "IB_EVENT_SM_CHANGE";
        /// An SRQ failed.
        SRQ_ERR = 14, "IB_EVENT_SRQ_ERR";
        /// An SRQ fell below its limit.
        SRQ_LIMIT_REACHED = 15, "IB_EVENT_SRQ_LIMIT_REACHED";
        /// A QP on an SRQ took its last receive.
        QP_LAST_WQE_REACHED = 16, "IB_EVENT_QP_LAST_WQE_REACHED";
        /// The subnet manager asks for registrations anew.
        CLIENT_REREGISTER = 17, "IB_EVENT_CLIENT_REREGISTER";
        /// A port's GID table changed.
        GID_CHANGE = 18, "IB_EVENT_GID_CHANGE";
        /// A WQ failed.
        WQ_FATAL = 19, "IB_EVENT_WQ_FATAL";
        /// A port's speed changed.
        DEVICE_SPEED_CHANGE = 20, "IB_EVENT_DEVICE_SPEED_CHANGE" since V7_2;
    }

    /// How a work request ended.
    enum WcStatus : u32 = "ib_wc_status" {
        /// Done.
        SUCCESS = 0, "IB_WC_SUCCESS";
        /// The local buffers do not fit the message.
        LOC_LEN_ERR = 1, "IB_WC_LOC_LEN_ERR";
        /// The request is not possible on this QP.
        LOC_QP_OP_ERR = 2, "IB_WC_LOC_QP_OP_ERR";
        /// The same for an end-to-end context, which no device has.
        LOC_EEC_OP_ERR = 3, "IB_WC_LOC_EEC_OP_ERR";
        /// A local key does not allow the access.
        LOC_PROT_ERR = 4, "IB_WC_LOC_PROT_ERR";
        /// The QP was in the error state.
        WR_FLUSH_ERR = 5, "IB_WC_WR_FLUSH_ERR";
        /// A memory window could not be bound.
        MW_BIND_ERR = 6, "IB_WC_MW_BIND_ERR";
        /// The peer's answer made no sense.
        BAD_RESP_ERR = 7, "IB_WC_BAD_RESP_ERR";
        /// An RDMA write with immediate met a local protection error.
        LOC_ACCESS_ERR = 8, "IB_WC_LOC_ACCESS_ERR";
        /// The peer found the request invalid.
        REM_INV_REQ_ERR = 9, "IB_WC_REM_INV_REQ_ERR";
        /// The peer's key does not allow the access.
        REM_ACCESS_ERR = 10, "IB_WC_REM_ACCESS_ERR";
        /// The peer could not carry out the request.
        REM_OP_ERR = 11, "IB_WC_REM_OP_ERR";
        /// No answer in the allowed number of retries.
        RETRY_EXC_ERR = 12, "IB_WC_RETRY_EXC_ERR";
        /// The peer had no receive posted in the allowed number of retries.
        RNR_RETRY_EXC_ERR = 13, "IB_WC_RNR_RETRY_EXC_ERR";
        /// Reliable datagram domain violated.
        LOC_RDD_VIOL_ERR = 14, "IB_WC_LOC_RDD_VIOL_ERR";
        /// The peer found a reliable datagram read invalid.
        REM_INV_RD_REQ_ERR = 15, "IB_WC_REM_INV_RD_REQ_ERR";
        /// The peer gave up.
        REM_ABORT_ERR = 16, "IB_WC_REM_ABORT_ERR";
        /// Invalid end-to-end context number.
        INV_EECN_ERR = 17, "IB_WC_INV_EECN_ERR";
        /// Invalid end-to-end context state.
        INV_EEC_STATE_ERR = 18, "IB_WC_INV_EEC_STATE_ERR";
        /// The device failed.
        FATAL_ERR = 19, "IB_WC_FATAL_ERR";
        /// The response took too long.
        RESP_TIMEOUT_ERR = 20, "IB_WC_RESP_TIMEOUT_ERR";
        /// None of the above.
        GENERAL_ERR = 21, "IB_WC_GENERAL_ERR";
    }

    /// Static rate of a path.
    enum Rate : u8 = "ib_rate" {
        /// As fast as the port.
        PORT_CURRENT = 0, "IB_RATE_PORT_CURRENT";
        /// 2.5 Gbit/s.
        GBPS_2_5 = 2, "IB_RATE_2_5_GBPS";
        /// 5 Gbit/s.
        GBPS_5 = 5, "IB_RATE_5_GBPS";
        /// 10 Gbit/s.
        GBPS_10 = 3, "IB_RATE_10_GBPS";
        /// 20 Gbit/s.
        GBPS_20 = 6, "IB_RATE_20_GBPS";
        /// 30 Gbit/s.
        GBPS_30 = 4, "IB_RATE_30_GBPS";
        /// 40 Gbit/s.
        GBPS_40 = 7, "IB_RATE_40_GBPS";
        /// 60 Gbit/s.
        GBPS_60 = 8, "IB_RATE_60_GBPS";
        /// 80 Gbit/s.
        GBPS_80 = 9, "IB_RATE_80_GBPS";
        /// 120 Gbit/s.
        GBPS_120 = 10, "IB_RATE_120_GBPS";
        /// 14 Gbit/s.
        GBPS_14 = 11, "IB_RATE_14_GBPS";
        /// 56 Gbit/s.
        GBPS_56 = 12, "IB_RATE_56_GBPS";
        /// 112 Gbit/s.
        GBPS_112 = 13, "IB_RATE_112_GBPS";
        /// 168 Gbit/s.
        GBPS_168 = 14, "IB_RATE_168_GBPS";
        /// 25 Gbit/s.
        GBPS_25 = 15, "IB_RATE_25_GBPS";
        /// 100 Gbit/s.
        GBPS_100 = 16, "IB_RATE_100_GBPS";
        /// 200 Gbit/s.
        GBPS_200 = 17, "IB_RATE_200_GBPS";
        /// 300 Gbit/s.
        GBPS_300 = 18, "IB_RATE_300_GBPS";
        /// 28 Gbit/s.
        GBPS_28 = 19, "IB_RATE_28_GBPS";
        /// 50 Gbit/s.
        GBPS_50 = 20, "IB_RATE_50_GBPS";
        /// 400 Gbit/s.
        GBPS_400 = 21, "IB_RATE_400_GBPS";
        /// 600 Gbit/s.
        GBPS_600 = 22, "IB_RATE_600_GBPS";
        /// 800 Gbit/s.
        GBPS_800 = 23, "IB_RATE_800_GBPS" since V6_12;
        /// 1600 Gbit/s.
        GBPS_1600 = 25, "IB_RATE_1600_GBPS" since V7_2;
    }

    /// How long a peer without a posted receive asks the sender to wait.
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
    enum MwType : u8 = "ib_mw_type" {
        /// Bound by a call, for every QP of the PD.
        TYPE_1 = 1, "IB_MW_TYPE_1";
        /// Bound by a work request, for one QP.
        TYPE_2 = 2, "IB_MW_TYPE_2";
    }

    /// Where the kernel polls a CQ of its own.
    enum PollContext : u8 = "ib_poll_context" {
        /// In a software interrupt.
        SOFTIRQ = 0, "IB_POLL_SOFTIRQ";
        /// In a work queue bound to a processor.
        WORKQUEUE = 1, "IB_POLL_WORKQUEUE";
        /// In a work queue on any processor.
        UNBOUND_WORKQUEUE = 2, "IB_POLL_UNBOUND_WORKQUEUE";
        /// Where its owner calls for it.
        DIRECT = 3, "IB_POLL_DIRECT";
    }

    /// State of a work queue.
    enum WqState : u32 = "ib_wq_state" {
        /// Just made.
        RESET = 0, "IB_WQS_RESET";
        /// Ready to receive.
        RDY = 1, "IB_WQS_RDY";
        /// Failed.
        ERR = 2, "IB_WQS_ERR";
    }

    /// What a flow steers.
    enum FlowAttrType : u32 = "ib_flow_attr_type" {
        /// What its specifications match.
        NORMAL = 0, "IB_FLOW_ATTR_NORMAL";
        /// Everything that no other flow takes.
        ALL_DEFAULT = 1, "IB_FLOW_ATTR_ALL_DEFAULT";
        /// Multicast that no other flow takes.
        MC_DEFAULT = 2, "IB_FLOW_ATTR_MC_DEFAULT";
        /// A copy of all the port's traffic.
        SNIFFER = 3, "IB_FLOW_ATTR_SNIFFER";
    }

    /// Kind of a flow specification.
    enum FlowSpecType : u32 = "ib_flow_spec_type" {
        /// Ethernet header.
        ETH = 0x20, "IB_FLOW_SPEC_ETH";
        /// InfiniBand local header.
        IB = 0x22, "IB_FLOW_SPEC_IB";
        /// IPv4 header.
        IPV4 = 0x30, "IB_FLOW_SPEC_IPV4";
        /// IPv6 header.
        IPV6 = 0x31, "IB_FLOW_SPEC_IPV6";
        /// IPsec ESP header.
        ESP = 0x34, "IB_FLOW_SPEC_ESP";
        /// TCP header.
        TCP = 0x40, "IB_FLOW_SPEC_TCP";
        /// UDP header.
        UDP = 0x41, "IB_FLOW_SPEC_UDP";
        /// VXLAN header.
        VXLAN_TUNNEL = 0x50, "IB_FLOW_SPEC_VXLAN_TUNNEL";
        /// GRE header.
        GRE = 0x51, "IB_FLOW_SPEC_GRE";
        /// MPLS label.
        MPLS = 0x60, "IB_FLOW_SPEC_MPLS";
        /// Bit that turns a header's kind into its tunnelled form.
        INNER = 0x100, "IB_FLOW_SPEC_INNER";
        /// Mark the completions.
        ACTION_TAG = 0x1000, "IB_FLOW_SPEC_ACTION_TAG";
        /// Drop the packets.
        ACTION_DROP = 0x1001, "IB_FLOW_SPEC_ACTION_DROP";
        /// Apply a flow action object.
        ACTION_HANDLE = 0x1002, "IB_FLOW_SPEC_ACTION_HANDLE";
        /// Count into a counters object.
        ACTION_COUNT = 0x1003, "IB_FLOW_SPEC_ACTION_COUNT";
    }

    /// What a counter of a counters object counts.
    enum CounterDescription : u32 = "ib_counters_description" {
        /// Packets.
        PACKETS = 0, "IB_COUNTER_PACKETS";
        /// Bytes.
        BYTES = 1, "IB_COUNTER_BYTES";
    }
}

abi_flags! {
    header = "include/rdma/ib_verbs.h";

    /// Which attributes of a queue pair a modify or query call is about.
    flags QpAttrMask : u32 = "ib_qp_attr_mask" {
        /// The state.
        STATE = 1, "IB_QP_STATE";
        /// The state that the caller believes the QP to be in.
        CUR_STATE = 1 << 1, "IB_QP_CUR_STATE";
        /// Whether the drained event is wanted.
        EN_SQD_ASYNC_NOTIFY = 1 << 2, "IB_QP_EN_SQD_ASYNC_NOTIFY";
        /// Remote access allowed.
        ACCESS_FLAGS = 1 << 3, "IB_QP_ACCESS_FLAGS";
        /// Index into the partition table.
        PKEY_INDEX = 1 << 4, "IB_QP_PKEY_INDEX";
        /// Physical port.
        PORT = 1 << 5, "IB_QP_PORT";
        /// Key of datagrams.
        QKEY = 1 << 6, "IB_QP_QKEY";
        /// Path to the peer.
        AV = 1 << 7, "IB_QP_AV";
        /// Path MTU.
        PATH_MTU = 1 << 8, "IB_QP_PATH_MTU";
        /// Acknowledgement timeout.
        TIMEOUT = 1 << 9, "IB_QP_TIMEOUT";
        /// Retries after a timeout.
        RETRY_CNT = 1 << 10, "IB_QP_RETRY_CNT";
        /// Retries when the peer has no receive.
        RNR_RETRY = 1 << 11, "IB_QP_RNR_RETRY";
        /// First packet number expected.
        RQ_PSN = 1 << 12, "IB_QP_RQ_PSN";
        /// Reads and atomics outstanding as initiator.
        MAX_QP_RD_ATOMIC = 1 << 13, "IB_QP_MAX_QP_RD_ATOMIC";
        /// Alternate path.
        ALT_PATH = 1 << 14, "IB_QP_ALT_PATH";
        /// Wait asked of a peer when no receive is posted.
        MIN_RNR_TIMER = 1 << 15, "IB_QP_MIN_RNR_TIMER";
        /// First packet number sent.
        SQ_PSN = 1 << 16, "IB_QP_SQ_PSN";
        /// Reads and atomics outstanding as target.
        MAX_DEST_RD_ATOMIC = 1 << 17, "IB_QP_MAX_DEST_RD_ATOMIC";
        /// Path migration.
        PATH_MIG_STATE = 1 << 18, "IB_QP_PATH_MIG_STATE";
        /// Queue sizes.
        CAP = 1 << 19, "IB_QP_CAP";
        /// The peer's QP number.
        DEST_QPN = 1 << 20, "IB_QP_DEST_QPN";
        /// Packet pacing; the extended modify command only.
        RATE_LIMIT = 1 << 25, "IB_QP_RATE_LIMIT";
    }

    /// Options of a send request.
    flags SendFlags : u32 = "ib_send_flags" {
        /// Wait for earlier reads and atomics.
        FENCE = 1, "IB_SEND_FENCE";
        /// Report the completion.
        SIGNALED = 1 << 1, "IB_SEND_SIGNALED";
        /// Raise an event at a peer that waits for solicited ones.
        SOLICITED = 1 << 2, "IB_SEND_SOLICITED";
        /// The data are copied into the request.
        INLINE = 1 << 3, "IB_SEND_INLINE";
        /// The device fills IP and TCP or UDP checksums.
        IP_CSUM = 1 << 4, "IB_SEND_IP_CSUM";
    }

    /// What else a completion carries.
    flags WcFlags : u32 = "ib_wc_flags" {
        /// A global route header in the first 40 bytes of the buffer.
        GRH = 1, "IB_WC_GRH";
        /// Immediate data.
        WITH_IMM = 1 << 1, "IB_WC_WITH_IMM";
        /// A key that the peer invalidated.
        WITH_INVALIDATE = 1 << 2, "IB_WC_WITH_INVALIDATE";
        /// Checksums are good.
        IP_CSUM_OK = 1 << 3, "IB_WC_IP_CSUM_OK";
        /// The source's Ethernet address.
        WITH_SMAC = 1 << 4, "IB_WC_WITH_SMAC";
        /// A VLAN tag.
        WITH_VLAN = 1 << 5, "IB_WC_WITH_VLAN";
        /// The kind of network header.
        WITH_NETWORK_HDR_TYPE = 1 << 6, "IB_WC_WITH_NETWORK_HDR_TYPE";
    }

    /// Which attributes of an SRQ to modify.
    flags SrqAttrMask : u32 = "ib_srq_attr_mask" {
        /// The size.
        MAX_WR = 1 << 0, "IB_SRQ_MAX_WR";
        /// The limit below which an event is raised.
        LIMIT = 1 << 1, "IB_SRQ_LIMIT";
    }

    /// Which attributes of a CQ to modify.
    flags CqAttrMask : u32 = "ib_cq_attr_mask" {
        /// Event moderation.
        MODERATE = 1 << 0, "IB_CQ_MODERATE";
    }

    /// Which attributes of a WQ to modify.
    flags WqAttrMask : u32 = "ib_wq_attr_mask" {
        /// The state.
        STATE = 1 << 0, "IB_WQ_STATE";
        /// The state that the caller believes the WQ to be in.
        CUR_STATE = 1 << 1, "IB_WQ_CUR_STATE";
        /// The flags.
        FLAGS = 1 << 2, "IB_WQ_FLAGS";
    }

    /// What re-registration of memory changes.
    flags MrReregFlags : u32 = "ib_mr_rereg_flags" {
        /// The memory itself.
        TRANS = 1, "IB_MR_REREG_TRANS";
        /// The protection domain.
        PD = 1 << 1, "IB_MR_REREG_PD";
        /// The access allowed.
        ACCESS = 1 << 2, "IB_MR_REREG_ACCESS";
    }

    /// Options of a flow.
    flags FlowFlags : u32 = "ib_flow_flags" {
        /// Packets go on to later flows too.
        DONT_TRAP = 1 << 1, "IB_FLOW_ATTR_FLAGS_DONT_TRAP";
        /// The flow is about packets sent.
        EGRESS = 1 << 2, "IB_FLOW_ATTR_FLAGS_EGRESS";
    }

    /// What tag matching can do.
    flags TmCapFlags : u32 = "ib_tm_cap_flags" {
        /// Rendezvous on reliable connections.
        RNDV_RC = 1 << 0, "IB_TM_CAP_RNDV_RC";
    }
}
