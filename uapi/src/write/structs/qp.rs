//! Queue pairs, paths and work requests.

use crate::uverbs::types::{AccessFlags, QpCreateFlags, QpType};
use crate::verbs_values::{MigState, Mtu, QpAttrMask, QpState, Rate, RnrTimeout, SendFlags};
use crate::write::types::{CreateQpMask, WrOpcode};

abi_structs! {
    header = "rdma/ib_user_verbs.h";

    /// The global part of a path.
    struct GlobalRoute = tag "ib_uverbs_global_route" {
        /// The destination's GID.
        dgid: [u8; 16];
        /// Flow label, 20 bits.
        flow_label: u32;
        /// Index of the source's GID.
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
        /// The global part.
        grh: GlobalRoute;
        /// The destination's local identifier.
        dlid: u16;
        /// Service level.
        sl: u8;
        /// Low bits of the source's local identifier.
        src_path_bits: u8;
        /// Static rate.
        static_rate: Rate;
        /// 1 if the global part counts.
        is_global: u8;
        /// The port.
        port_num: u8;
        /// Zero.
        reserved: u8;
    }

    /// A queue pair's attributes as the connection manager hands them out.
    struct QpAttr = tag "ib_uverbs_qp_attr" {
        /// Which of the following count.
        qp_attr_mask: QpAttrMask;
        /// The state to go to.
        qp_state: u32 as QpState;
        /// The state it is in.
        cur_qp_state: u32 as QpState;
        /// Path MTU.
        path_mtu: u32 as Mtu;
        /// Path migration.
        path_mig_state: u32 as MigState;
        /// Key of datagrams.
        qkey: u32;
        /// First packet number expected, 24 bits.
        rq_psn: u32;
        /// First packet number sent, 24 bits.
        sq_psn: u32;
        /// The peer's QP number.
        dest_qp_num: u32;
        /// Remote access allowed.
        qp_access_flags: AccessFlags;
        /// Path.
        ah_attr: AhAttr;
        /// Alternate path.
        alt_ah_attr: AhAttr;
        /// Send requests outstanding.
        max_send_wr: u32;
        /// Receive requests outstanding.
        max_recv_wr: u32;
        /// Scatter/gather entries of a send request.
        max_send_sge: u32;
        /// Scatter/gather entries of a receive request.
        max_recv_sge: u32;
        /// Bytes of inline data.
        max_inline_data: u32;
        /// Index of the partition key.
        pkey_index: u16;
        /// The same for the alternate path.
        alt_pkey_index: u16;
        /// 1 if the drained event is wanted.
        en_sqd_async_notify: u8;
        /// 1 while the send queue drains.
        sq_draining: u8;
        /// Reads and atomics outstanding as initiator.
        max_rd_atomic: u8;
        /// Reads and atomics outstanding as target.
        max_dest_rd_atomic: u8;
        /// Wait asked of a peer when no receive is posted.
        min_rnr_timer: RnrTimeout;
        /// The port.
        port_num: u8;
        /// Acknowledgement timeout: 4.096 µs times 2 to this power; 0 waits for ever.
        timeout: u8;
        /// Retries after a timeout, 0 to 7.
        retry_cnt: u8;
        /// Retries when the peer has no receive, 0 to 6; 7 retries for ever.
        rnr_retry: u8;
        /// Port of the alternate path.
        alt_port_num: u8;
        /// Timeout of the alternate path.
        alt_timeout: u8;
        /// Zero.
        reserved: [u8; 5];
    }

    /// Request for a queue pair.
    struct CreateQpReq = tag "ib_uverbs_create_qp" {
        /// Ignored by the ioctl.
        response: u64;
        /// Number by which events name it.
        user_handle: u64;
        /// The protection domain; for an XRC target the XRC domain.
        pd_handle: u32;
        /// The completion queue of sends.
        send_cq_handle: u32;
        /// The completion queue of receives.
        recv_cq_handle: u32;
        /// The shared receive queue, if `is_srq`.
        srq_handle: u32;
        /// Send requests outstanding.
        max_send_wr: u32;
        /// Receive requests outstanding.
        max_recv_wr: u32;
        /// Scatter/gather entries of a send request.
        max_send_sge: u32;
        /// Scatter/gather entries of a receive request.
        max_recv_sge: u32;
        /// Bytes of inline data.
        max_inline_data: u32;
        /// 1 if every send request is signaled.
        sq_sig_all: u8;
        /// The transport.
        qp_type: u8 as QpType;
        /// 1 if receives come from a shared queue.
        is_srq: u8;
        /// Zero.
        reserved: u8;
        /// Where a driver's payload follows with `write()`.
        driver_data: [u64; 0];
    }

    /// Extended request for a queue pair.
    struct ExCreateQp = tag "ib_uverbs_ex_create_qp" {
        /// Number by which events name it.
        user_handle: u64;
        /// The protection domain; for an XRC target the XRC domain.
        pd_handle: u32;
        /// The completion queue of sends.
        send_cq_handle: u32;
        /// The completion queue of receives.
        recv_cq_handle: u32;
        /// The shared receive queue, if `is_srq`.
        srq_handle: u32;
        /// Send requests outstanding.
        max_send_wr: u32;
        /// Receive requests outstanding.
        max_recv_wr: u32;
        /// Scatter/gather entries of a send request.
        max_send_sge: u32;
        /// Scatter/gather entries of a receive request.
        max_recv_sge: u32;
        /// Bytes of inline data.
        max_inline_data: u32;
        /// 1 if every send request is signaled.
        sq_sig_all: u8;
        /// The transport.
        qp_type: u8 as QpType;
        /// 1 if receives come from a shared queue.
        is_srq: u8;
        /// Zero.
        reserved: u8;
        /// Which of the following count.
        comp_mask: CreateQpMask;
        /// Options.
        create_flags: QpCreateFlags;
        /// Indirection table of receives.
        rwq_ind_tbl_handle: u32;
        /// QP number to send under.
        source_qpn: u32;
    }

    /// Request to share an XRC target that exists.
    struct OpenQpReq = tag "ib_uverbs_open_qp" {
        /// Ignored by the ioctl.
        response: u64;
        /// Number by which events name it.
        user_handle: u64;
        /// The XRC domain.
        pd_handle: u32;
        /// Its QP number.
        qpn: u32;
        /// The transport.
        qp_type: u8 as QpType;
        /// Zero.
        reserved: [u8; 7];
        /// Where a driver's payload follows with `write()`.
        driver_data: [u64; 0];
    }

    /// A new or shared queue pair.
    struct CreateQpResp = tag "ib_uverbs_create_qp_resp" {
        /// Its handle.
        qp_handle: u32;
        /// Its number.
        qpn: u32;
        /// Send requests outstanding.
        max_send_wr: u32;
        /// Receive requests outstanding.
        max_recv_wr: u32;
        /// Scatter/gather entries of a send request.
        max_send_sge: u32;
        /// Scatter/gather entries of a receive request.
        max_recv_sge: u32;
        /// Bytes of inline data.
        max_inline_data: u32;
        /// Zero.
        reserved: u32;
        /// Where a driver's payload follows with `write()`.
        driver_data: [u32; 0];
    }

    /// A new queue pair, extended.
    struct ExCreateQpResp = tag "ib_uverbs_ex_create_qp_resp" {
        /// The older response.
        base: CreateQpResp;
        /// Zero.
        comp_mask: u32;
        /// Bytes that the kernel filled.
        response_length: u32;
    }

    /// A path, in the form of modify and query.
    struct QpDest = tag "ib_uverbs_qp_dest" {
        /// The destination's GID.
        dgid: [u8; 16];
        /// Flow label, 20 bits.
        flow_label: u32;
        /// The destination's local identifier.
        dlid: u16;
        /// Zero.
        reserved: u16;
        /// Index of the source's GID.
        sgid_index: u8;
        /// Hop limit.
        hop_limit: u8;
        /// Traffic class.
        traffic_class: u8;
        /// Service level.
        sl: u8;
        /// Low bits of the source's local identifier.
        src_path_bits: u8;
        /// Static rate.
        static_rate: Rate;
        /// 1 if the GIDs count.
        is_global: u8;
        /// The port.
        port_num: u8;
    }

    /// Request for a queue pair's attributes.
    struct QueryQpReq = tag "ib_uverbs_query_qp" {
        /// Ignored by the ioctl.
        response: u64;
        /// The queue pair.
        qp_handle: u32;
        /// Which attributes.
        attr_mask: QpAttrMask;
        /// Where a driver's payload follows with `write()`.
        driver_data: [u64; 0];
    }

    /// A queue pair's attributes.
    struct QueryQpResp = tag "ib_uverbs_query_qp_resp" {
        /// Path.
        dest: QpDest;
        /// Alternate path.
        alt_dest: QpDest;
        /// Send requests outstanding.
        max_send_wr: u32;
        /// Receive requests outstanding.
        max_recv_wr: u32;
        /// Scatter/gather entries of a send request.
        max_send_sge: u32;
        /// Scatter/gather entries of a receive request.
        max_recv_sge: u32;
        /// Bytes of inline data.
        max_inline_data: u32;
        /// Key of datagrams.
        qkey: u32;
        /// Next packet number expected.
        rq_psn: u32;
        /// Next packet number sent.
        sq_psn: u32;
        /// The peer's QP number.
        dest_qp_num: u32;
        /// Remote access allowed.
        qp_access_flags: AccessFlags;
        /// Index of the partition key.
        pkey_index: u16;
        /// The same for the alternate path.
        alt_pkey_index: u16;
        /// State.
        qp_state: QpState;
        /// State as the last modify call knew it.
        cur_qp_state: QpState;
        /// Path MTU.
        path_mtu: Mtu;
        /// Path migration.
        path_mig_state: MigState;
        /// 1 while the send queue drains.
        sq_draining: u8;
        /// Reads and atomics outstanding as initiator.
        max_rd_atomic: u8;
        /// Reads and atomics outstanding as target.
        max_dest_rd_atomic: u8;
        /// Wait asked of a peer when no receive is posted.
        min_rnr_timer: RnrTimeout;
        /// The port.
        port_num: u8;
        /// Acknowledgement timeout: 4.096 µs times 2 to this power; 0 waits for ever.
        timeout: u8;
        /// Retries after a timeout.
        retry_cnt: u8;
        /// Retries when the peer has no receive; 7 retries for ever.
        rnr_retry: u8;
        /// Port of the alternate path.
        alt_port_num: u8;
        /// Timeout of the alternate path.
        alt_timeout: u8;
        /// 1 if every send request is signaled.
        sq_sig_all: u8;
        /// Zero.
        reserved: [u8; 5];
        /// Where a driver's payload follows with `write()`.
        driver_data: [u64; 0];
    }

    /// Request to change a queue pair.
    struct ModifyQpReq = tag "ib_uverbs_modify_qp" {
        /// Path.
        dest: QpDest;
        /// Alternate path.
        alt_dest: QpDest;
        /// The queue pair.
        qp_handle: u32;
        /// Which attributes.
        attr_mask: QpAttrMask;
        /// Key of datagrams.
        qkey: u32;
        /// First packet number expected, 24 bits.
        rq_psn: u32;
        /// First packet number sent, 24 bits.
        sq_psn: u32;
        /// The peer's QP number.
        dest_qp_num: u32;
        /// Remote access allowed.
        qp_access_flags: AccessFlags;
        /// Index of the partition key.
        pkey_index: u16;
        /// The same for the alternate path.
        alt_pkey_index: u16;
        /// State to go to.
        qp_state: QpState;
        /// State that the caller believes it to be in.
        cur_qp_state: QpState;
        /// Path MTU.
        path_mtu: Mtu;
        /// Path migration.
        path_mig_state: MigState;
        /// 1 if the drained event is wanted.
        en_sqd_async_notify: u8;
        /// Reads and atomics outstanding as initiator.
        max_rd_atomic: u8;
        /// Reads and atomics outstanding as target.
        max_dest_rd_atomic: u8;
        /// Wait asked of a peer when no receive is posted.
        min_rnr_timer: RnrTimeout;
        /// The port.
        port_num: u8;
        /// Acknowledgement timeout: 4.096 µs times 2 to this power; 0 waits for ever.
        timeout: u8;
        /// Retries after a timeout, 0 to 7.
        retry_cnt: u8;
        /// Retries when the peer has no receive, 0 to 6; 7 retries for ever.
        rnr_retry: u8;
        /// Port of the alternate path.
        alt_port_num: u8;
        /// Timeout of the alternate path.
        alt_timeout: u8;
        /// Zero.
        reserved: [u8; 2];
        /// Where a driver's payload follows with `write()`.
        driver_data: [u64; 0];
    }

    /// Extended request to change a queue pair.
    struct ExModifyQp = tag "ib_uverbs_ex_modify_qp" {
        /// The older request.
        base: ModifyQpReq;
        /// Packet pacing in kbit/s.
        rate_limit: u32;
        /// Zero.
        reserved: u32;
    }

    /// Answer to the extended request.
    struct ExModifyQpResp = tag "ib_uverbs_ex_modify_qp_resp" {
        /// Zero.
        comp_mask: u32;
        /// Bytes that the kernel filled.
        response_length: u32;
    }

    /// Gives a queue pair back.
    struct DestroyQpReq = tag "ib_uverbs_destroy_qp" {
        /// Ignored by the ioctl.
        response: u64;
        /// Its handle.
        qp_handle: u32;
        /// Zero.
        reserved: u32;
    }

    /// What the queue pair had raised.
    struct DestroyQpResp = tag "ib_uverbs_destroy_qp_resp" {
        /// Asynchronous events.
        events_reported: u32;
    }

    /// A piece of registered memory.
    struct Sge = tag "ib_uverbs_sge" {
        /// Address of the first byte.
        addr: u64;
        /// Bytes.
        length: u32;
        /// Key of the memory region.
        lkey: u32;
    }

    /// The part of a send request for RDMA reads and writes.
    struct SendWrRdma = expr "__typeof__(((struct ib_uverbs_send_wr *)0)->wr.rdma)" {
        /// The peer's address.
        remote_addr: u64;
        /// The peer's key.
        rkey: u32;
        /// Zero.
        reserved: u32;
    }

    /// The part of a send request for atomics.
    struct SendWrAtomic = expr "__typeof__(((struct ib_uverbs_send_wr *)0)->wr.atomic)" {
        /// The peer's address, a multiple of 8.
        remote_addr: u64;
        /// The value to add or to compare with.
        compare_add: u64;
        /// The value to swap in.
        swap: u64;
        /// The peer's key.
        rkey: u32;
        /// Zero.
        reserved: u32;
    }

    /// The part of a send request for datagrams.
    struct SendWrUd = expr "__typeof__(((struct ib_uverbs_send_wr *)0)->wr.ud)" {
        /// Handle of the address handle.
        ah: u32;
        /// The peer's QP number.
        remote_qpn: u32;
        /// The peer's queue key.
        remote_qkey: u32;
        /// Zero.
        reserved: u32;
    }

    /// A send request passed through the kernel.
    struct SendWr = tag "ib_uverbs_send_wr" {
        /// The caller's number.
        wr_id: u64;
        /// Scatter/gather entries.
        num_sge: u32;
        /// What to do.
        opcode: WrOpcode;
        /// Options.
        send_flags: SendFlags;
        /// Immediate data as they go over the wire, or the key to invalidate.
        ex: u32;
        /// [`SendWrRdma`], [`SendWrAtomic`] or [`SendWrUd`].
        wr: [u64; 4];
    }

    /// Request to post sends; without any it is the doorbell of drivers that keep their rings in
    /// shared memory.
    struct PostSendReq = tag "ib_uverbs_post_send" {
        /// Ignored by the ioctl.
        response: u64;
        /// The queue pair.
        qp_handle: u32;
        /// Number of send requests.
        wr_count: u32;
        /// Number of scatter/gather entries of them all; they follow the requests.
        sge_count: u32;
        /// Bytes from one request to the next; at least those of [`SendWr`], even without requests.
        wqe_size: u32;
        /// Where the requests start.
        send_wr: [SendWr; 0];
    }

    /// How posting sends ended.
    struct PostSendResp = tag "ib_uverbs_post_send_resp" {
        /// Place of the request that was refused, from 1; 0 for none.
        bad_wr: u32;
    }

    /// A receive request passed through the kernel.
    struct RecvWr = tag "ib_uverbs_recv_wr" {
        /// The caller's number.
        wr_id: u64;
        /// Scatter entries.
        num_sge: u32;
        /// Zero.
        reserved: u32;
    }

    /// Request to post receives.
    struct PostRecvReq = tag "ib_uverbs_post_recv" {
        /// Ignored by the ioctl.
        response: u64;
        /// The queue pair.
        qp_handle: u32;
        /// Number of receive requests.
        wr_count: u32;
        /// Number of scatter entries of them all; they follow the requests.
        sge_count: u32;
        /// Bytes from one request to the next.
        wqe_size: u32;
        /// Where the requests start.
        recv_wr: [RecvWr; 0];
    }

    /// How posting receives ended.
    struct PostRecvResp = tag "ib_uverbs_post_recv_resp" {
        /// Place of the request that was refused, from 1; 0 for none.
        bad_wr: u32;
    }
}
