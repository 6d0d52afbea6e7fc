//! Driver payloads of core calls, `rdma/mlx5-abi.h`.

use super::values::*;
use super::verbs::Reg;
use crate::verbs_values::CounterDescription;

abi_structs! {
    header = "rdma/mlx5-abi.h";

    /// Driver request of context creation, version 1.
    struct AllocUcontextReq = tag "mlx5_ib_alloc_ucontext_req" {
        /// Total number of doorbell registers (BFREGs) requested.
        total_num_bfregs: u32;
        /// Number of low-latency doorbell registers among them.
        num_low_latency_bfregs: u32;
    }

    /// Driver request of context creation.
    struct AllocUcontextReqV2 = tag "mlx5_ib_alloc_ucontext_req_v2" {
        /// Total number of doorbell registers (BFREGs) requested.
        total_num_bfregs: u32;
        /// Number of low-latency doorbell registers among them.
        num_low_latency_bfregs: u32;
        /// Flags.
        flags: AllocUcontextFlags;
        /// Must be 0.
        comp_mask: u32;
        /// Maximum CQE version that the caller supports.
        max_cqe_version: u8;
        /// Must be 0.
        reserved0: u8;
        /// Must be 0.
        reserved1: u16;
        /// Must be 0.
        reserved2: u32;
        /// Capabilities of the caller.
        lib_caps: LibCaps;
    }

    /// Driver response of context creation. The kernel fills `response_length` bytes.
    struct AllocUcontextResp = tag "mlx5_ib_alloc_ucontext_resp" {
        /// Size of the QP table: maximum number of QPs.
        qp_tab_size: u32;
        /// Size of a doorbell register in bytes.
        bf_reg_size: u32;
        /// Total number of doorbell registers granted.
        tot_bfregs: u32;
        /// Size of a cache line in bytes.
        cache_line_size: u32;
        /// Maximum size of a send WQE in bytes.
        max_sq_desc_sz: u16;
        /// Maximum size of a receive WQE in bytes.
        max_rq_desc_sz: u16;
        /// Maximum number of WQE basic blocks (64 bytes) of a send queue.
        max_send_wqebb: u32;
        /// Maximum number of WQEs of a receive queue.
        max_recv_wr: u32;
        /// Maximum number of WQEs of an SRQ.
        max_srq_recv_wr: u32;
        /// Number of ports of the device.
        num_ports: u16;
        /// IPsec capabilities of the device.
        flow_action_flags: FlowActionCaps;
        /// Mask of the valid fields.
        comp_mask: AllocUcontextRespMask;
        /// Number of bytes that the kernel filled.
        response_length: u32;
        /// CQE version.
        cqe_version: u8;
        /// Commands with driver payloads.
        cmds_supp_uhw: CommandsWithPayload;
        /// Minimum inline header mode of sends.
        eth_min_inline: InlineMode;
        /// Bitmap of clock page versions.
        clock_info_versions: u8;
        /// Offset of the clock in its page.
        hca_core_clock_offset: u64;
        /// Log2 of the UAR size in bytes.
        log_uar_size: u32;
        /// Number of UARs per system page.
        num_uars_per_page: u32;
        /// Number of dynamic doorbell registers.
        num_dyn_bfregs: u32;
        /// Memory key for dump and fill WQEs.
        dump_fill_mkey: u32;
    }

    /// Driver response of ALLOC_PD.
    struct AllocPdResp = tag "mlx5_ib_alloc_pd_resp" {
        /// Its number in the device.
        pdn: u32;
    }

    /// TSO capabilities of the device.
    struct TsoCaps = tag "mlx5_ib_tso_caps" {
        /// Maximum payload in bytes.
        max_tso: u32;
        /// QP types, as a mask of `1 << type`.
        supported_qpts: u32;
    }

    /// RSS capabilities of the device.
    struct RssCaps = tag "mlx5_ib_rss_caps" {
        /// Supported packet fields.
        rx_hash_fields_mask: RxHashFields;
        /// Supported hash functions.
        rx_hash_function: RxHashFunctions;
        /// Zero.
        reserved: [u8; 7];
    }

    /// CQE compression capabilities of the device.
    struct CqeCompressionCaps = tag "mlx5_ib_cqe_comp_caps" {
        /// Maximum number of CQEs per compressed CQE.
        max_num: u32;
        /// Supported mini CQE formats.
        supported_format: CqeCompressionFormats;
    }

    /// Packet pacing capabilities of the device.
    struct PacketPacingCaps = tag "mlx5_packet_pacing_caps" {
        /// Minimum rate in kbit/s.
        qp_rate_limit_min: u32;
        /// Maximum rate in kbit/s.
        qp_rate_limit_max: u32;
        /// QP types, as a mask of `1 << type`.
        supported_qpts: u32;
        /// Capability flags.
        cap_flags: PacketPacingFlags;
        /// Zero.
        reserved: [u8; 3];
    }

    /// Software parsing capabilities of sends.
    struct SwParsingCaps = tag "mlx5_ib_sw_parsing_caps" {
        /// Supported offloads.
        sw_parsing_offloads: SwParsing;
        /// QP types, as a mask of `1 << type`.
        supported_qpts: u32;
    }

    /// Capabilities of striding receive queues.
    struct StridingRqCaps = tag "mlx5_ib_striding_rq_caps" {
        /// Minimum log2 of the stride size in bytes.
        min_single_stride_log_num_of_bytes: u32;
        /// Maximum log2 of the stride size in bytes.
        max_single_stride_log_num_of_bytes: u32;
        /// Minimum log2 of the number of strides of a WQE.
        min_single_wqe_log_num_of_strides: u32;
        /// Maximum log2 of the number of strides of a WQE.
        max_single_wqe_log_num_of_strides: u32;
        /// QP types, as a mask of `1 << type`.
        supported_qpts: u32;
        /// Zero.
        reserved: u32;
    }

    /// DCI stream capabilities of the device.
    struct DciStreamsCaps = tag "mlx5_ib_dci_streams_caps" {
        /// Maximum log2 of the number of concurrent streams.
        max_log_num_concurrent: u8 = "max_log_num_concurent";
        /// Maximum log2 of the number of errored streams.
        max_log_num_errored: u8;
    }

    /// Driver response of QUERY_DEVICE_EX. The kernel fills `response_length` bytes.
    struct QueryDeviceResp = tag "mlx5_ib_query_device_resp" {
        /// Zero.
        comp_mask: u32;
        /// Number of bytes that the kernel filled.
        response_length: u32;
        /// TSO capabilities.
        tso_caps: TsoCaps;
        /// RSS capabilities.
        rss_caps: RssCaps;
        /// CQE compression capabilities.
        cqe_comp_caps: CqeCompressionCaps;
        /// Packet pacing capabilities.
        packet_pacing_caps: PacketPacingCaps;
        /// Multi-packet send WQEs.
        multi_pkt_send_wqes: MultiPacketSends = "mlx5_ib_support_multi_pkt_send_wqes";
        /// Capability flags.
        flags: QueryDeviceFlags;
        /// Software parsing capabilities.
        sw_parsing_caps: SwParsingCaps;
        /// Striding receive queue capabilities.
        striding_rq_caps: StridingRqCaps;
        /// Tunnel offload capabilities.
        tunnel_offloads_caps: TunnelOffloads;
        /// DCI streams.
        dci_streams_caps: DciStreamsCaps;
        /// Zero.
        reserved: u16;
        /// Metadata register that identifies packets of the port.
        reg_c0: Reg = "reg_c0" since V6_12;
    }

    /// Driver request of CREATE_CQ.
    struct CreateCqReq = tag "mlx5_ib_create_cq" {
        /// Address of the ring buffer.
        buf_addr: u64;
        /// Address of the doorbell record.
        db_addr: u64;
        /// CQE size in bytes: 64 or 128.
        cqe_size: u32;
        /// Whether CQE compression is enabled.
        cqe_comp_en: u8;
        /// Mini CQE format.
        cqe_comp_res_format: u8 as CqeCompressionFormats;
        /// Flags.
        flags: CqFlags;
        /// UAR page index.
        uar_page_index: u16;
        /// Must be 0.
        reserved0: u16;
        /// Must be 0.
        reserved1: u32;
    }

    /// Driver response of CREATE_CQ.
    struct CreateCqResp = tag "mlx5_ib_create_cq_resp" {
        /// Its number in the device.
        cqn: u32;
        /// Zero.
        reserved: u32;
    }

    /// Driver request of RESIZE_CQ.
    struct ResizeCqReq = tag "mlx5_ib_resize_cq" {
        /// Address of the new ring buffer.
        buf_addr: u64;
        /// CQE size in bytes.
        cqe_size: u16;
        /// Must be 0.
        reserved0: u16;
        /// Must be 0.
        reserved1: u32;
    }

    /// Driver request of CREATE_SRQ.
    struct CreateSrqReq = tag "mlx5_ib_create_srq" {
        /// Address of the ring buffer.
        buf_addr: u64;
        /// Address of the doorbell record.
        db_addr: u64;
        /// Flags.
        flags: SrqFlags;
        /// Must be 0.
        reserved0: u32;
        /// User index (UIDX) in CQEs.
        uidx: u32;
        /// Must be 0.
        reserved1: u32;
    }

    /// Driver response of CREATE_SRQ.
    struct CreateSrqResp = tag "mlx5_ib_create_srq_resp" {
        /// Its number in the device.
        srqn: u32;
        /// Zero.
        reserved: u32;
    }

    /// Streams of a DCI (dynamically connected initiator).
    struct CreateQpDciStreams = tag "mlx5_ib_create_qp_dci_streams" {
        /// Log2 of the number of concurrent streams.
        log_num_concurrent: u8 = "log_num_concurent";
        /// Log2 of the number of errored streams.
        log_num_errored: u8;
    }

    /// Driver request of CREATE_QP.
    struct CreateQpReq = tag "mlx5_ib_create_qp" {
        /// Address of the ring buffer.
        buf_addr: u64;
        /// Address of the doorbell records.
        db_addr: u64;
        /// Size of the send ring in WQE basic blocks (64 bytes).
        sq_wqe_count: u32;
        /// Number of WQEs of the receive ring.
        rq_wqe_count: u32;
        /// Log2 of the receive WQE size in bytes.
        rq_wqe_shift: u32;
        /// Flags.
        flags: QpFlags;
        /// User index (UIDX) in CQEs.
        uidx: u32;
        /// Index of the doorbell register, or of the UAR page with [`QpFlags::UAR_PAGE_INDEX`].
        bfreg_index: u32;
        /// Address of the send ring of a raw packet QP; access key of a DCT (dynamically connected
        /// target).
        sq_buf_addr: u64;
        /// ECE options.
        ece_options: u32;
        /// DCI streams.
        dci_streams: CreateQpDciStreams;
        /// Must be 0.
        reserved: u16;
    }

    /// Driver request of CREATE_QP for an RSS QP.
    struct CreateQpRssReq = tag "mlx5_ib_create_qp_rss" {
        /// Hash fields.
        rx_hash_fields_mask: RxHashFields;
        /// Hash function.
        rx_hash_function: RxHashFunctions;
        /// Length of `rx_hash_key` in bytes.
        rx_key_len: u8;
        /// Must be 0.
        reserved: [u8; 6];
        /// Hash key.
        rx_hash_key: [u8; 128];
        /// Must be 0.
        comp_mask: u32;
        /// Flags.
        flags: QpFlags;
    }

    /// Driver response of CREATE_QP.
    struct CreateQpResp = tag "mlx5_ib_create_qp_resp" {
        /// Index of the doorbell register.
        bfreg_index: u32;
        /// ECE options that the device supports.
        ece_options: u32;
        /// Mask of the valid fields.
        comp_mask: CreateQpRespMask;
        /// TIR number.
        tirn: u32;
        /// TIS number.
        tisn: u32;
        /// RQ number.
        rqn: u32;
        /// SQ number.
        sqn: u32;
        /// Zero.
        reserved1: u32;
        /// ICM address of the TIR.
        tir_icm_addr: u64;
    }

    /// Driver request of ALLOC_MW.
    struct AllocMwReq = tag "mlx5_ib_alloc_mw" {
        /// Must be 0.
        comp_mask: u32;
        /// Maximum number of KLM entries.
        num_klms: u8;
        /// Must be 0.
        reserved1: u8;
        /// Must be 0.
        reserved2: u16;
    }

    /// Driver request of CREATE_WQ.
    struct CreateWqReq = tag "mlx5_ib_create_wq" {
        /// Address of the ring buffer.
        buf_addr: u64;
        /// Address of the doorbell record.
        db_addr: u64;
        /// Number of WQEs of the ring.
        rq_wqe_count: u32;
        /// Log2 of the WQE size in bytes.
        rq_wqe_shift: u32;
        /// User index (UIDX) in CQEs.
        user_index: u32;
        /// Flags.
        flags: WqFlags;
        /// Mask of the valid fields after it.
        comp_mask: CreateWqMask;
        /// Log2 of the stride size in bytes.
        single_stride_log_num_of_bytes: u32;
        /// Log2 of the number of strides of a WQE.
        single_wqe_log_num_of_strides: u32;
        /// Whether packets start at an offset of 2 bytes.
        two_byte_shift_en: u32;
    }

    /// Driver response of CREATE_AH.
    struct CreateAhResp = tag "mlx5_ib_create_ah_resp" {
        /// Number of bytes that the kernel filled.
        response_length: u32;
        /// Ethernet address of the destination.
        dmac: [u8; 6];
        /// Zero.
        reserved: [u8; 6];
    }

    /// Burst parameters of packet pacing.
    struct BurstInfo = tag "mlx5_ib_burst_info" {
        /// Maximum burst in bytes.
        max_burst_sz: u32;
        /// Typical packet size in bytes.
        typical_pkt_sz: u16;
        /// Must be 0.
        reserved: u16;
    }

    /// Driver request of MODIFY_QP.
    struct ModifyQpReq = tag "mlx5_ib_modify_qp" {
        /// Mask of the valid fields.
        comp_mask: ModifyQpMask;
        /// Burst parameters.
        burst_info: BurstInfo;
        /// ECE options.
        ece_options: u32;
    }

    /// Driver response of MODIFY_QP.
    struct ModifyQpResp = tag "mlx5_ib_modify_qp_resp" {
        /// Number of bytes that the kernel filled.
        response_length: u32;
        /// DCT number.
        dctn: u32;
        /// ECE options that the device supports.
        ece_options: u32;
        /// Zero.
        reserved: u32;
    }

    /// Driver response of CREATE_WQ.
    struct CreateWqResp = tag "mlx5_ib_create_wq_resp" {
        /// Number of bytes that the kernel filled.
        response_length: u32;
        /// Zero.
        reserved: u32;
    }

    /// Driver response of CREATE_RWQ_IND_TBL.
    struct CreateRwqIndTblResp = tag "mlx5_ib_create_rwq_ind_tbl_resp" {
        /// Number of bytes that the kernel filled.
        response_length: u32;
        /// Zero.
        reserved: u32;
    }

    /// Driver request of MODIFY_WQ.
    struct ModifyWqReq = tag "mlx5_ib_modify_wq" {
        /// Must be 0.
        comp_mask: u32;
        /// Must be 0.
        reserved: u32;
    }

    /// The clock page, which converts device cycles to nanoseconds. The kernel may update it at any
    /// time. `sign` changes before and after an update.
    struct ClockInfo = tag "mlx5_ib_clock_info" {
        /// Sequence count of the kernel's updates; [`CLOCK_INFO_KERNEL_UPDATING`] is set during an
        /// update.
        sign: u32;
        /// Zero.
        reserved: u32 = "resv";
        /// Nanoseconds at `cycles`.
        nsec: u64;
        /// Cycles of the last update.
        cycles: u64;
        /// Fractions of a nanosecond at `cycles`.
        frac: u64;
        /// Multiplier from cycles to nanoseconds before the shift.
        mult: u32;
        /// Shift.
        shift: u32;
        /// Mask of the cycle counter.
        mask: u64;
        /// Overflow period in nanoseconds: the page is stale after it.
        overflow_period: u64;
    }

    /// Description of one flow counter.
    struct FlowCountersDesc = tag "mlx5_ib_flow_counters_desc" {
        /// Quantity that it counts.
        description: CounterDescription;
        /// Index of its value when the counters are read.
        index: u32;
    }

    /// The counters of a counters object.
    struct FlowCountersData = tag "mlx5_ib_flow_counters_data" {
        /// Address of an array of [`FlowCountersDesc`].
        counters_data: u64;
        /// Number of elements.
        ncounters: u32;
        /// Must be 0.
        reserved: u32;
    }

    /// Driver request of CREATE_FLOW.
    struct CreateFlowReq = tag "mlx5_ib_create_flow" {
        /// Number of [`FlowCountersData`] that follow; the kernel accepts one.
        ncounters_data: u32;
        /// Must be 0.
        reserved: u32;
        /// Start of the data.
        data: [FlowCountersData; 0];
    }
}
