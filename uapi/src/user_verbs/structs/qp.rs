//! Queue pairs, paths and work requests.

use crate::user_verbs::types::{CreateQpMask, WrOpcode};
use crate::uverbs_values::{AccessFlags, QpCreateFlags, QpType};
use crate::verbs_values::{MigState, Mtu, QpAttrMask, QpState, Rate, RnrTimeout, SendFlags};

abi_structs! {
    header = "rdma/ib_user_verbs.h";

    /// Global route of a path (GRH).
    struct GlobalRoute = tag "ib_uverbs_global_route" {
        /// Destination GID.
        dgid: [u8; 16];
        /// Flow label, 20 bits.
        flow_label: u32;
        /// Source GID index.
        sgid_index: u8;
        /// Hop limit.
        hop_limit: u8;
        /// Traffic class.
        traffic_class: u8;
        /// Zero.
        reserved: u8;
    }

    /// A path.
    struct AhAttr = tag "ib_uverbs_ah_attr" {
        /// Global route (GRH).
        grh: GlobalRoute;
        /// Destination LID.
        dlid: u16;
        /// Service level.
        sl: u8;
        /// Source path bits: low bits of the source LID.
        src_path_bits: u8;
        /// Static rate.
        static_rate: Rate;
        /// 1 if the GRH is valid.
        is_global: u8;
        /// The port.
        port_num: u8;
        /// Zero.
        reserved: u8;
    }

    /// Attributes of a QP, as returned by the connection manager.
    struct QpAttr = tag "ib_uverbs_qp_attr" {
        /// Mask of the valid fields.
        qp_attr_mask: QpAttrMask;
        /// New state.
        qp_state: u32 as QpState;
        /// Current state.
        cur_qp_state: u32 as QpState;
        /// Path MTU.
        path_mtu: u32 as Mtu;
        /// Path migration state.
        path_mig_state: u32 as MigState;
        /// Q_Key.
        qkey: u32;
        /// Initial receive PSN, 24 bits.
        rq_psn: u32;
        /// Initial send PSN, 24 bits.
        sq_psn: u32;
        /// QPN of the peer.
        dest_qp_num: u32;
        /// Remote access flags.
        qp_access_flags: AccessFlags;
        /// Path.
        ah_attr: AhAttr;
        /// Alternate path.
        alt_ah_attr: AhAttr;
        /// Maximum number of outstanding send requests.
        max_send_wr: u32;
        /// Maximum number of outstanding receive requests.
        max_recv_wr: u32;
        /// Maximum number of SGEs of a send request.
        max_send_sge: u32;
        /// Maximum number of SGEs of a receive request.
        max_recv_sge: u32;
        /// Maximum inline data in bytes.
        max_inline_data: u32;
        /// P_Key index.
        pkey_index: u16;
        /// P_Key index of the alternate path.
        alt_pkey_index: u16;
        /// 1 to request the event SQ_DRAINED.
        en_sqd_async_notify: u8;
        /// 1 while the send queue drains.
        sq_draining: u8;
        /// Maximum outstanding RDMA READs and atomics as requester.
        max_rd_atomic: u8;
        /// Maximum outstanding RDMA READs and atomics as responder.
        max_dest_rd_atomic: u8;
        /// Minimum RNR NAK timer.
        min_rnr_timer: RnrTimeout;
        /// The port.
        port_num: u8;
        /// Local ACK timeout: 4.096 µs × 2^n; 0 means no timeout.
        timeout: u8;
        /// Retries after a timeout, 0 to 7.
        retry_cnt: u8;
        /// RNR retries, 0 to 6; 7 retries without limit.
        rnr_retry: u8;
        /// Port number of the alternate path.
        alt_port_num: u8;
        /// Local ACK timeout of the alternate path.
        alt_timeout: u8;
        /// Zero.
        reserved: [u8; 5];
    }

    /// Request for a queue pair.
    struct CreateQpReq = tag "ib_uverbs_create_qp" {
        /// Ignored by the ioctl.
        response: u64;
        /// User handle, which its events carry.
        user_handle: u64;
        /// The protection domain, or the XRC domain of an XRC target QP.
        pd_handle: u32;
        /// The send CQ.
        send_cq_handle: u32;
        /// The receive CQ.
        recv_cq_handle: u32;
        /// The shared receive queue, if `is_srq`.
        srq_handle: u32;
        /// Maximum number of outstanding send requests.
        max_send_wr: u32;
        /// Maximum number of outstanding receive requests.
        max_recv_wr: u32;
        /// Maximum number of SGEs of a send request.
        max_send_sge: u32;
        /// Maximum number of SGEs of a receive request.
        max_recv_sge: u32;
        /// Maximum inline data in bytes.
        max_inline_data: u32;
        /// 1 if all send requests are signaled.
        sq_sig_all: u8;
        /// The transport.
        qp_type: u8 as QpType;
        /// 1 if the QP has an SRQ.
        is_srq: u8;
        /// Zero.
        reserved: u8;
        /// Start of the driver payload with `write()`.
        driver_data: [u64; 0];
    }

    /// Extended request for a queue pair.
    struct ExCreateQp = tag "ib_uverbs_ex_create_qp" {
        /// User handle, which its events carry.
        user_handle: u64;
        /// The protection domain, or the XRC domain of an XRC target QP.
        pd_handle: u32;
        /// The send CQ.
        send_cq_handle: u32;
        /// The receive CQ.
        recv_cq_handle: u32;
        /// The shared receive queue, if `is_srq`.
        srq_handle: u32;
        /// Maximum number of outstanding send requests.
        max_send_wr: u32;
        /// Maximum number of outstanding receive requests.
        max_recv_wr: u32;
        /// Maximum number of SGEs of a send request.
        max_send_sge: u32;
        /// Maximum number of SGEs of a receive request.
        max_recv_sge: u32;
        /// Maximum inline data in bytes.
        max_inline_data: u32;
        /// 1 if all send requests are signaled.
        sq_sig_all: u8;
        /// The transport.
        qp_type: u8 as QpType;
        /// 1 if the QP has an SRQ.
        is_srq: u8;
        /// Zero.
        reserved: u8;
        /// Mask of the valid fields.
        comp_mask: CreateQpMask;
        /// Flags.
        create_flags: QpCreateFlags;
        /// Indirection table for RSS.
        rwq_ind_tbl_handle: u32;
        /// Source QPN of sends.
        source_qpn: u32;
    }

    /// Request to open an existing XRC target QP.
    struct OpenQpReq = tag "ib_uverbs_open_qp" {
        /// Ignored by the ioctl.
        response: u64;
        /// User handle, which its events carry.
        user_handle: u64;
        /// The XRC domain.
        pd_handle: u32;
        /// Its QPN.
        qpn: u32;
        /// The transport.
        qp_type: u8 as QpType;
        /// Zero.
        reserved: [u8; 7];
        /// Start of the driver payload with `write()`.
        driver_data: [u64; 0];
    }

    /// A new or opened queue pair.
    struct CreateQpResp = tag "ib_uverbs_create_qp_resp" {
        /// Its handle.
        qp_handle: u32;
        /// Its number.
        qpn: u32;
        /// Maximum number of outstanding send requests.
        max_send_wr: u32;
        /// Maximum number of outstanding receive requests.
        max_recv_wr: u32;
        /// Maximum number of SGEs of a send request.
        max_send_sge: u32;
        /// Maximum number of SGEs of a receive request.
        max_recv_sge: u32;
        /// Maximum inline data in bytes.
        max_inline_data: u32;
        /// Zero.
        reserved: u32;
        /// Start of the driver payload with `write()`.
        driver_data: [u32; 0];
    }

    /// A new queue pair, extended.
    struct ExCreateQpResp = tag "ib_uverbs_ex_create_qp_resp" {
        /// The non-extended response.
        base: CreateQpResp;
        /// Zero.
        comp_mask: u32;
        /// Number of bytes that the kernel filled.
        response_length: u32;
    }

    /// A path, as in MODIFY_QP and QUERY_QP.
    struct QpDest = tag "ib_uverbs_qp_dest" {
        /// Destination GID.
        dgid: [u8; 16];
        /// Flow label, 20 bits.
        flow_label: u32;
        /// Destination LID.
        dlid: u16;
        /// Zero.
        reserved: u16;
        /// Source GID index.
        sgid_index: u8;
        /// Hop limit.
        hop_limit: u8;
        /// Traffic class.
        traffic_class: u8;
        /// Service level.
        sl: u8;
        /// Source path bits: low bits of the source LID.
        src_path_bits: u8;
        /// Static rate.
        static_rate: Rate;
        /// 1 if the GRH is valid.
        is_global: u8;
        /// The port.
        port_num: u8;
    }

    /// Request of QUERY_QP.
    struct QueryQpReq = tag "ib_uverbs_query_qp" {
        /// Ignored by the ioctl.
        response: u64;
        /// The queue pair.
        qp_handle: u32;
        /// Attribute mask.
        attr_mask: QpAttrMask;
        /// Start of the driver payload with `write()`.
        driver_data: [u64; 0];
    }

    /// Attributes of a QP.
    struct QueryQpResp = tag "ib_uverbs_query_qp_resp" {
        /// Path.
        dest: QpDest;
        /// Alternate path.
        alt_dest: QpDest;
        /// Maximum number of outstanding send requests.
        max_send_wr: u32;
        /// Maximum number of outstanding receive requests.
        max_recv_wr: u32;
        /// Maximum number of SGEs of a send request.
        max_send_sge: u32;
        /// Maximum number of SGEs of a receive request.
        max_recv_sge: u32;
        /// Maximum inline data in bytes.
        max_inline_data: u32;
        /// Q_Key.
        qkey: u32;
        /// Next expected receive PSN.
        rq_psn: u32;
        /// Next send PSN.
        sq_psn: u32;
        /// QPN of the peer.
        dest_qp_num: u32;
        /// Remote access flags.
        qp_access_flags: AccessFlags;
        /// P_Key index.
        pkey_index: u16;
        /// P_Key index of the alternate path.
        alt_pkey_index: u16;
        /// State.
        qp_state: QpState;
        /// Current state, as of the last MODIFY_QP.
        cur_qp_state: QpState;
        /// Path MTU.
        path_mtu: Mtu;
        /// Path migration state.
        path_mig_state: MigState;
        /// 1 while the send queue drains.
        sq_draining: u8;
        /// Maximum outstanding RDMA READs and atomics as requester.
        max_rd_atomic: u8;
        /// Maximum outstanding RDMA READs and atomics as responder.
        max_dest_rd_atomic: u8;
        /// Minimum RNR NAK timer.
        min_rnr_timer: RnrTimeout;
        /// The port.
        port_num: u8;
        /// Local ACK timeout: 4.096 µs × 2^n; 0 means no timeout.
        timeout: u8;
        /// Retries after a timeout.
        retry_cnt: u8;
        /// RNR retries; 7 retries without limit.
        rnr_retry: u8;
        /// Port number of the alternate path.
        alt_port_num: u8;
        /// Local ACK timeout of the alternate path.
        alt_timeout: u8;
        /// 1 if all send requests are signaled.
        sq_sig_all: u8;
        /// Zero.
        reserved: [u8; 5];
        /// Start of the driver payload with `write()`.
        driver_data: [u64; 0];
    }

    /// Request of MODIFY_QP.
    struct ModifyQpReq = tag "ib_uverbs_modify_qp" {
        /// Path.
        dest: QpDest;
        /// Alternate path.
        alt_dest: QpDest;
        /// The queue pair.
        qp_handle: u32;
        /// Attribute mask.
        attr_mask: QpAttrMask;
        /// Q_Key.
        qkey: u32;
        /// Initial receive PSN, 24 bits.
        rq_psn: u32;
        /// Initial send PSN, 24 bits.
        sq_psn: u32;
        /// QPN of the peer.
        dest_qp_num: u32;
        /// Remote access flags.
        qp_access_flags: AccessFlags;
        /// P_Key index.
        pkey_index: u16;
        /// P_Key index of the alternate path.
        alt_pkey_index: u16;
        /// New state.
        qp_state: QpState;
        /// Current state, as the caller assumes it.
        cur_qp_state: QpState;
        /// Path MTU.
        path_mtu: Mtu;
        /// Path migration state.
        path_mig_state: MigState;
        /// 1 to request the event SQ_DRAINED.
        en_sqd_async_notify: u8;
        /// Maximum outstanding RDMA READs and atomics as requester.
        max_rd_atomic: u8;
        /// Maximum outstanding RDMA READs and atomics as responder.
        max_dest_rd_atomic: u8;
        /// Minimum RNR NAK timer.
        min_rnr_timer: RnrTimeout;
        /// The port.
        port_num: u8;
        /// Local ACK timeout: 4.096 µs × 2^n; 0 means no timeout.
        timeout: u8;
        /// Retries after a timeout, 0 to 7.
        retry_cnt: u8;
        /// RNR retries, 0 to 6; 7 retries without limit.
        rnr_retry: u8;
        /// Port number of the alternate path.
        alt_port_num: u8;
        /// Local ACK timeout of the alternate path.
        alt_timeout: u8;
        /// Zero.
        reserved: [u8; 2];
        /// Start of the driver payload with `write()`.
        driver_data: [u64; 0];
    }

    /// Request of the extended MODIFY_QP.
    struct ExModifyQp = tag "ib_uverbs_ex_modify_qp" {
        /// The non-extended request.
        base: ModifyQpReq;
        /// Packet pacing in kbit/s.
        rate_limit: u32;
        /// Zero.
        reserved: u32;
    }

    /// Response of the extended MODIFY_QP.
    struct ExModifyQpResp = tag "ib_uverbs_ex_modify_qp_resp" {
        /// Zero.
        comp_mask: u32;
        /// Number of bytes that the kernel filled.
        response_length: u32;
    }

    /// Destroys a queue pair.
    struct DestroyQpReq = tag "ib_uverbs_destroy_qp" {
        /// Ignored by the ioctl.
        response: u64;
        /// Its handle.
        qp_handle: u32;
        /// Zero.
        reserved: u32;
    }

    /// Events that a destroyed QP had raised.
    struct DestroyQpResp = tag "ib_uverbs_destroy_qp_resp" {
        /// Number of asynchronous events.
        events_reported: u32;
    }

    /// A scatter/gather element.
    struct Sge = tag "ib_uverbs_sge" {
        /// Address of the first byte.
        addr: u64;
        /// Length in bytes.
        length: u32;
        /// Local key (lkey).
        lkey: u32;
    }

    /// The part of a send request for RDMA reads and writes.
    struct SendWrRdma = expr "__typeof__(((struct ib_uverbs_send_wr *)0)->wr.rdma)" {
        /// Remote address.
        remote_addr: u64;
        /// Remote key (rkey).
        rkey: u32;
        /// Zero.
        reserved: u32;
    }

    /// The part of a send request for atomics.
    struct SendWrAtomic = expr "__typeof__(((struct ib_uverbs_send_wr *)0)->wr.atomic)" {
        /// Remote address, a multiple of 8.
        remote_addr: u64;
        /// Addend, or compare value.
        compare_add: u64;
        /// Swap value.
        swap: u64;
        /// Remote key (rkey).
        rkey: u32;
        /// Zero.
        reserved: u32;
    }

    /// The part of a send request for datagrams.
    struct SendWrUd = expr "__typeof__(((struct ib_uverbs_send_wr *)0)->wr.ud)" {
        /// Kernel handle of the address handle.
        ah: u32;
        /// QPN of the peer.
        remote_qpn: u32;
        /// Q_Key of the peer.
        remote_qkey: u32;
        /// Zero.
        reserved: u32;
    }

    /// A send request posted by the kernel.
    struct SendWr = tag "ib_uverbs_send_wr" {
        /// The `wr_id`.
        wr_id: u64;
        /// Number of SGEs.
        num_sge: u32;
        /// Opcode.
        opcode: WrOpcode;
        /// Flags.
        send_flags: SendFlags;
        /// Immediate data in network byte order, or the rkey to invalidate.
        ex: u32;
        /// [`SendWrRdma`], [`SendWrAtomic`] or [`SendWrUd`].
        wr: [u64; 4];
    }

    /// Request of POST_SEND. Without send requests it is the doorbell of drivers with rings in
    /// shared memory.
    struct PostSendReq = tag "ib_uverbs_post_send" {
        /// Ignored by the ioctl.
        response: u64;
        /// The queue pair.
        qp_handle: u32;
        /// Number of send requests.
        wr_count: u32;
        /// Total number of SGEs; they follow the requests.
        sge_count: u32;
        /// Size of a request in bytes; at least that of [`SendWr`], even without requests.
        wqe_size: u32;
        /// Start of the requests.
        send_wr: [SendWr; 0];
    }

    /// Response of POST_SEND.
    struct PostSendResp = tag "ib_uverbs_post_send_resp" {
        /// Index of the rejected request, from 1; 0 for none.
        bad_wr: u32;
    }

    /// A receive request posted by the kernel.
    struct RecvWr = tag "ib_uverbs_recv_wr" {
        /// The `wr_id`.
        wr_id: u64;
        /// Number of SGEs.
        num_sge: u32;
        /// Zero.
        reserved: u32;
    }

    /// Request of POST_RECV.
    struct PostRecvReq = tag "ib_uverbs_post_recv" {
        /// Ignored by the ioctl.
        response: u64;
        /// The queue pair.
        qp_handle: u32;
        /// Number of receive requests.
        wr_count: u32;
        /// Total number of SGEs; they follow the requests.
        sge_count: u32;
        /// Size of a request in bytes.
        wqe_size: u32;
        /// Start of the requests.
        recv_wr: [RecvWr; 0];
    }

    /// Response of posting receives.
    struct PostRecvResp = tag "ib_uverbs_post_recv_resp" {
        /// Index of the rejected request, from 1; 0 for none.
        bad_wr: u32;
    }
}
