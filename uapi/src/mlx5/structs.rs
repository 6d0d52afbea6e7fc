//! The driver's payloads of core calls, `rdma/mlx5-abi.h`.

use super::values::*;
use super::verbs::Reg;
use crate::verbs_values::CounterDescription;

abi_structs! {
    header = "rdma/mlx5-abi.h";

    /// Driver request of opening a context, first form.
    struct AllocUcontextReq = tag "mlx5_ib_alloc_ucontext_req" {
        /// Doorbell registers wanted.
        total_num_bfregs: u32;
        /// Of them, those for low latency.
        num_low_latency_bfregs: u32;
    }

    /// Driver request of opening a context.
    struct AllocUcontextReqV2 = tag "mlx5_ib_alloc_ucontext_req_v2" {
        /// Doorbell registers wanted.
        total_num_bfregs: u32;
        /// Of them, those for low latency.
        num_low_latency_bfregs: u32;
        /// What the context is to be able to do.
        flags: AllocUcontextFlags;
        /// Must be 0.
        comp_mask: u32;
        /// Newest format of completions that the caller reads.
        max_cqe_version: u8;
        /// Must be 0.
        reserved0: u8;
        /// Must be 0.
        reserved1: u16;
        /// Must be 0.
        reserved2: u32;
        /// What the caller can do.
        lib_caps: LibCaps;
    }

    /// Driver response of opening a context. The kernel fills as much as `response_length` says.
    struct AllocUcontextResp = tag "mlx5_ib_alloc_ucontext_resp" {
        /// Most QPs.
        qp_tab_size: u32;
        /// Bytes of a doorbell register.
        bf_reg_size: u32;
        /// Doorbell registers given.
        tot_bfregs: u32;
        /// Bytes of a cache line.
        cache_line_size: u32;
        /// Most bytes of a send request.
        max_sq_desc_sz: u16;
        /// Most bytes of a receive request.
        max_rq_desc_sz: u16;
        /// Most 64-byte blocks of a send queue.
        max_send_wqebb: u32;
        /// Most requests of a receive queue.
        max_recv_wr: u32;
        /// Most requests of an SRQ.
        max_srq_recv_wr: u32;
        /// Ports of the device.
        num_ports: u16;
        /// What IPsec the device can do.
        flow_action_flags: FlowActionCaps;
        /// Which of the fields count.
        comp_mask: AllocUcontextRespMask;
        /// Bytes that the kernel filled.
        response_length: u32;
        /// Format of completions.
        cqe_version: u8;
        /// Which commands take a driver's payload.
        cmds_supp_uhw: CommandsWithPayload;
        /// Headers that a send must carry inline.
        eth_min_inline: InlineMode;
        /// Formats of the clock page, bit by bit.
        clock_info_versions: u8;
        /// Where in its page the clock is.
        hca_core_clock_offset: u64;
        /// Log2 of the bytes of a doorbell page.
        log_uar_size: u32;
        /// Doorbell pages in a page of the system.
        num_uars_per_page: u32;
        /// Doorbell registers that can be made when needed.
        num_dyn_bfregs: u32;
        /// Memory key for sends that dump data.
        dump_fill_mkey: u32;
    }

    /// Driver response of making a PD.
    struct AllocPdResp = tag "mlx5_ib_alloc_pd_resp" {
        /// The device's number for it.
        pdn: u32;
    }

    /// TCP segmentation that the device can do.
    struct TsoCaps = tag "mlx5_ib_tso_caps" {
        /// Most bytes of payload.
        max_tso: u32;
        /// QP types, bit by bit.
        supported_qpts: u32;
    }

    /// Spreading of received packets that the device can do.
    struct RssCaps = tag "mlx5_ib_rss_caps" {
        /// What of a packet can count.
        rx_hash_fields_mask: RxHashFields;
        /// Functions.
        rx_hash_function: RxHashFunctions;
        /// Zero.
        reserved: [u8; 7];
    }

    /// Compression of completions that the device can do.
    struct CqeCompressionCaps = tag "mlx5_ib_cqe_comp_caps" {
        /// Most completions in one.
        max_num: u32;
        /// Formats.
        supported_format: CqeCompressionFormats;
    }

    /// Bounds of a sending rate that the device can keep.
    struct PacketPacingCaps = tag "mlx5_packet_pacing_caps" {
        /// Lowest rate in kbit/s.
        qp_rate_limit_min: u32;
        /// Highest rate in kbit/s.
        qp_rate_limit_max: u32;
        /// QP types, bit by bit.
        supported_qpts: u32;
        /// More.
        cap_flags: PacketPacingFlags;
        /// Zero.
        reserved: [u8; 3];
    }

    /// What sends may do that describe their headers themselves.
    struct SwParsingCaps = tag "mlx5_ib_sw_parsing_caps" {
        /// What they may do.
        sw_parsing_offloads: SwParsing;
        /// QP types, bit by bit.
        supported_qpts: u32;
    }

    /// Receive queues whose requests are cut into strides.
    struct StridingRqCaps = tag "mlx5_ib_striding_rq_caps" {
        /// Log2 of the fewest bytes of a stride.
        min_single_stride_log_num_of_bytes: u32;
        /// Log2 of the most bytes of a stride.
        max_single_stride_log_num_of_bytes: u32;
        /// Log2 of the fewest strides of a request.
        min_single_wqe_log_num_of_strides: u32;
        /// Log2 of the most strides of a request.
        max_single_wqe_log_num_of_strides: u32;
        /// QP types, bit by bit.
        supported_qpts: u32;
        /// Zero.
        reserved: u32;
    }

    /// Streams of a dynamically connected initiator that the device can do.
    struct DciStreamsCaps = tag "mlx5_ib_dci_streams_caps" {
        /// Log2 of the most at once.
        max_log_num_concurrent: u8 = "max_log_num_concurent";
        /// Log2 of the most in error.
        max_log_num_errored: u8;
    }

    /// Driver response of querying the device. The kernel fills as much as `response_length` says.
    struct QueryDeviceResp = tag "mlx5_ib_query_device_resp" {
        /// Zero.
        comp_mask: u32;
        /// Bytes that the kernel filled.
        response_length: u32;
        /// TCP segmentation.
        tso_caps: TsoCaps;
        /// Spreading of received packets.
        rss_caps: RssCaps;
        /// Compression of completions.
        cqe_comp_caps: CqeCompressionCaps;
        /// Bounds of a sending rate.
        packet_pacing_caps: PacketPacingCaps;
        /// Several packets in one request.
        multi_pkt_send_wqes: MultiPacketSends = "mlx5_ib_support_multi_pkt_send_wqes";
        /// More.
        flags: QueryDeviceFlags;
        /// Sends that describe their headers themselves.
        sw_parsing_caps: SwParsingCaps;
        /// Strides.
        striding_rq_caps: StridingRqCaps;
        /// Tunnels.
        tunnel_offloads_caps: TunnelOffloads;
        /// Streams.
        dci_streams_caps: DciStreamsCaps;
        /// Zero.
        reserved: u16;
        /// Metadata register that marks the port's packets.
        reg_c0: Reg = "reg_c0" since V6_12;
    }

    /// Driver request of making a CQ.
    struct CreateCqReq = tag "mlx5_ib_create_cq" {
        /// Address of the ring.
        buf_addr: u64;
        /// Address of the doorbell record.
        db_addr: u64;
        /// Bytes of a completion: 64 or 128.
        cqe_size: u32;
        /// Whether to compress.
        cqe_comp_en: u8;
        /// Format of compressed ones.
        cqe_comp_res_format: u8 as CqeCompressionFormats;
        /// How it is made.
        flags: CqFlags;
        /// Number of the doorbell page.
        uar_page_index: u16;
        /// Must be 0.
        reserved0: u16;
        /// Must be 0.
        reserved1: u32;
    }

    /// Driver response of making a CQ.
    struct CreateCqResp = tag "mlx5_ib_create_cq_resp" {
        /// The device's number for it.
        cqn: u32;
        /// Zero.
        reserved: u32;
    }

    /// Driver request of resizing a CQ.
    struct ResizeCqReq = tag "mlx5_ib_resize_cq" {
        /// Address of the new ring.
        buf_addr: u64;
        /// Bytes of a completion.
        cqe_size: u16;
        /// Must be 0.
        reserved0: u16;
        /// Must be 0.
        reserved1: u32;
    }

    /// Driver request of making an SRQ.
    struct CreateSrqReq = tag "mlx5_ib_create_srq" {
        /// Address of the ring.
        buf_addr: u64;
        /// Address of the doorbell record.
        db_addr: u64;
        /// How it is made.
        flags: SrqFlags;
        /// Must be 0.
        reserved0: u32;
        /// Number that completions are to carry.
        uidx: u32;
        /// Must be 0.
        reserved1: u32;
    }

    /// Driver response of making an SRQ.
    struct CreateSrqResp = tag "mlx5_ib_create_srq_resp" {
        /// The device's number for it.
        srqn: u32;
        /// Zero.
        reserved: u32;
    }

    /// Streams of a dynamically connected initiator.
    struct CreateQpDciStreams = tag "mlx5_ib_create_qp_dci_streams" {
        /// Log2 of those at once.
        log_num_concurrent: u8 = "log_num_concurent";
        /// Log2 of those in error.
        log_num_errored: u8;
    }

    /// Driver request of making a QP.
    struct CreateQpReq = tag "mlx5_ib_create_qp" {
        /// Address of the rings.
        buf_addr: u64;
        /// Address of the doorbell records.
        db_addr: u64;
        /// 64-byte blocks of the send ring.
        sq_wqe_count: u32;
        /// Requests of the receive ring.
        rq_wqe_count: u32;
        /// Log2 of the bytes of a receive request.
        rq_wqe_shift: u32;
        /// How it is made.
        flags: QpFlags;
        /// Number that completions are to carry.
        uidx: u32;
        /// Number of the doorbell register, or of its page with [`QpFlags::UAR_PAGE_INDEX`].
        bfreg_index: u32;
        /// Address of the send ring of a raw packet QP; for a dynamically connected target its
        /// access key.
        sq_buf_addr: u64;
        /// The vendor's options for the connection.
        ece_options: u32;
        /// Streams.
        dci_streams: CreateQpDciStreams;
        /// Must be 0.
        reserved: u16;
    }

    /// Driver request of making a QP that spreads received packets.
    struct CreateQpRssReq = tag "mlx5_ib_create_qp_rss" {
        /// What of a packet counts.
        rx_hash_fields_mask: RxHashFields;
        /// Function.
        rx_hash_function: RxHashFunctions;
        /// Bytes of `rx_hash_key` that count.
        rx_key_len: u8;
        /// Must be 0.
        reserved: [u8; 6];
        /// Key of the function.
        rx_hash_key: [u8; 128];
        /// Must be 0.
        comp_mask: u32;
        /// How it is made.
        flags: QpFlags;
    }

    /// Driver response of making a QP.
    struct CreateQpResp = tag "mlx5_ib_create_qp_resp" {
        /// Number of the doorbell register.
        bfreg_index: u32;
        /// The vendor's options for the connection that the device has.
        ece_options: u32;
        /// Which of the fields count.
        comp_mask: CreateQpRespMask;
        /// The device's number for the receive side's transport.
        tirn: u32;
        /// The device's number for the send side's transport.
        tisn: u32;
        /// The device's number for the receive queue.
        rqn: u32;
        /// The device's number for the send queue.
        sqn: u32;
        /// Zero.
        reserved1: u32;
        /// Address of the receive side's transport in the device.
        tir_icm_addr: u64;
    }

    /// Driver request of making an MW.
    struct AllocMwReq = tag "mlx5_ib_alloc_mw" {
        /// Must be 0.
        comp_mask: u32;
        /// Most entries.
        num_klms: u8;
        /// Must be 0.
        reserved1: u8;
        /// Must be 0.
        reserved2: u16;
    }

    /// Driver request of making a WQ.
    struct CreateWqReq = tag "mlx5_ib_create_wq" {
        /// Address of the ring.
        buf_addr: u64;
        /// Address of the doorbell record.
        db_addr: u64;
        /// Requests of the ring.
        rq_wqe_count: u32;
        /// Log2 of the bytes of a request.
        rq_wqe_shift: u32;
        /// Number that completions are to carry.
        user_index: u32;
        /// How it is made.
        flags: WqFlags;
        /// Which of the fields after it count.
        comp_mask: CreateWqMask;
        /// Log2 of the bytes of a stride.
        single_stride_log_num_of_bytes: u32;
        /// Log2 of the strides of a request.
        single_wqe_log_num_of_strides: u32;
        /// Whether packets start two bytes in.
        two_byte_shift_en: u32;
    }

    /// Driver response of making an AH.
    struct CreateAhResp = tag "mlx5_ib_create_ah_resp" {
        /// Bytes that the kernel filled.
        response_length: u32;
        /// Link-layer address of the destination.
        dmac: [u8; 6];
        /// Zero.
        reserved: [u8; 6];
    }

    /// Shape of the bursts of a bounded sending rate.
    struct BurstInfo = tag "mlx5_ib_burst_info" {
        /// Most bytes of a burst.
        max_burst_sz: u32;
        /// Bytes of a usual packet.
        typical_pkt_sz: u16;
        /// Must be 0.
        reserved: u16;
    }

    /// Driver request of modifying a QP.
    struct ModifyQpReq = tag "mlx5_ib_modify_qp" {
        /// What is asked for.
        comp_mask: ModifyQpMask;
        /// Shape of bursts.
        burst_info: BurstInfo;
        /// The vendor's options for the connection.
        ece_options: u32;
    }

    /// Driver response of modifying a QP.
    struct ModifyQpResp = tag "mlx5_ib_modify_qp_resp" {
        /// Bytes that the kernel filled.
        response_length: u32;
        /// The device's number for a dynamically connected target.
        dctn: u32;
        /// The vendor's options for the connection that the device has.
        ece_options: u32;
        /// Zero.
        reserved: u32;
    }

    /// Driver response of making a WQ.
    struct CreateWqResp = tag "mlx5_ib_create_wq_resp" {
        /// Bytes that the kernel filled.
        response_length: u32;
        /// Zero.
        reserved: u32;
    }

    /// Driver response of making an indirection table.
    struct CreateRwqIndTblResp = tag "mlx5_ib_create_rwq_ind_tbl_resp" {
        /// Bytes that the kernel filled.
        response_length: u32;
        /// Zero.
        reserved: u32;
    }

    /// Driver request of modifying a WQ.
    struct ModifyWqReq = tag "mlx5_ib_modify_wq" {
        /// Must be 0.
        comp_mask: u32;
        /// Must be 0.
        reserved: u32;
    }

    /// The page that turns the device's cycles into nanoseconds. The kernel writes it at any time;
    /// `sign` changes before and after.
    struct ClockInfo = tag "mlx5_ib_clock_info" {
        /// Counts the kernel's writes; [`CLOCK_INFO_KERNEL_UPDATING`] is set during one.
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
        /// Bits of the cycle counter.
        mask: u64;
        /// Nanoseconds after which the page is out of date.
        overflow_period: u64;
    }

    /// What one counter of a flow counts.
    struct FlowCountersDesc = tag "mlx5_ib_flow_counters_desc" {
        /// What.
        description: CounterDescription;
        /// Where its value is to be when the counters are read.
        index: u32;
    }

    /// The counters of a counters object.
    struct FlowCountersData = tag "mlx5_ib_flow_counters_data" {
        /// Address of an array of [`FlowCountersDesc`].
        counters_data: u64;
        /// Elements of it.
        ncounters: u32;
        /// Must be 0.
        reserved: u32;
    }

    /// Driver request of making a flow.
    struct CreateFlowReq = tag "mlx5_ib_create_flow" {
        /// How many [`FlowCountersData`] follow; the kernel takes one.
        ncounters_data: u32;
        /// Must be 0.
        reserved: u32;
        /// They follow.
        data: [FlowCountersData; 0];
    }
}
