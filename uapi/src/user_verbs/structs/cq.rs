//! Completion queues.

use crate::user_verbs::types::{CqCreateFlags, WcOpcode};
use crate::verbs_values::{CqAttrMask, WcFlags, WcStatus};

abi_structs! {
    header = "rdma/ib_user_verbs.h";

    /// Request of CREATE_CQ.
    struct CreateCqReq = tag "ib_uverbs_create_cq" {
        /// Ignored by the ioctl.
        response: u64;
        /// User handle, which its events carry.
        user_handle: u64;
        /// Minimum number of entries.
        cqe: u32;
        /// Completion vector.
        comp_vector: u32;
        /// Descriptor of the completion channel; -1 for none.
        comp_channel: i32;
        /// Zero.
        reserved: u32;
        /// Start of the driver payload with `write()`.
        driver_data: [u64; 0];
    }

    /// Extended request for a completion queue.
    struct ExCreateCq = tag "ib_uverbs_ex_create_cq" {
        /// User handle, which its events carry.
        user_handle: u64;
        /// Minimum number of entries.
        cqe: u32;
        /// Completion vector.
        comp_vector: u32;
        /// Descriptor of the completion channel; -1 for none.
        comp_channel: i32;
        /// Must be 0.
        comp_mask: u32;
        /// Flags.
        flags: CqCreateFlags;
        /// Must be 0.
        reserved: u32;
    }

    /// A new completion queue.
    struct CreateCqResp = tag "ib_uverbs_create_cq_resp" {
        /// Its handle.
        cq_handle: u32;
        /// Number of entries.
        cqe: u32;
        /// Start of the driver payload with `write()`.
        driver_data: [u64; 0];
    }

    /// A new completion queue, extended.
    struct ExCreateCqResp = tag "ib_uverbs_ex_create_cq_resp" {
        /// The non-extended response.
        base: CreateCqResp;
        /// Zero.
        comp_mask: u32;
        /// Number of bytes that the kernel filled.
        response_length: u32;
    }

    /// Request to resize a completion queue.
    struct ResizeCqReq = tag "ib_uverbs_resize_cq" {
        /// Ignored by the ioctl.
        response: u64;
        /// The completion queue.
        cq_handle: u32;
        /// New minimum number of entries.
        cqe: u32;
        /// Start of the driver payload with `write()`.
        driver_data: [u64; 0];
    }

    /// A resized completion queue.
    struct ResizeCqResp = tag "ib_uverbs_resize_cq_resp" {
        /// Number of entries.
        cqe: u32;
        /// Zero.
        reserved: u32;
        /// Start of the driver payload with `write()`.
        driver_data: [u64; 0];
    }

    /// Request to poll a CQ by the kernel. No kernel driver allows it for user CQs.
    struct PollCqReq = tag "ib_uverbs_poll_cq" {
        /// Ignored by the ioctl.
        response: u64;
        /// The completion queue.
        cq_handle: u32;
        /// Maximum number of completions.
        ne: u32;
    }

    /// A completion. rxe's completion ring holds these too.
    struct Wc = tag "ib_uverbs_wc" {
        /// The `wr_id` of the work request.
        wr_id: u64;
        /// Status.
        status: WcStatus;
        /// Opcode; not valid on errors.
        opcode: WcOpcode;
        /// Vendor error.
        vendor_err: u32;
        /// Number of bytes received or read.
        byte_len: u32;
        /// Immediate data in network byte order, or the invalidated rkey in host byte order,
        /// depending on `wc_flags`.
        ex: u32;
        /// Local QPN.
        qp_num: u32;
        /// QPN of the sender; UD only.
        src_qp: u32;
        /// Flags.
        wc_flags: WcFlags;
        /// P_Key index.
        pkey_index: u16;
        /// LID of the sender.
        slid: u16;
        /// Service level.
        sl: u8;
        /// Destination path bits: low bits of the destination LID.
        dlid_path_bits: u8;
        /// Port, for directed-route packets on switches.
        port_num: u8;
        /// Zero.
        reserved: u8;
    }

    /// Completions polled by the kernel.
    struct PollCqResp = tag "ib_uverbs_poll_cq_resp" {
        /// Number of completions.
        count: u32;
        /// Zero.
        reserved: u32;
        /// Start of the completions.
        wc: [Wc; 0];
    }

    /// Request to arm a CQ.
    struct ReqNotifyCqReq = tag "ib_uverbs_req_notify_cq" {
        /// The completion queue.
        cq_handle: u32;
        /// 1 to arm for solicited completions and errors only.
        solicited_only: u32;
    }

    /// Destroys a completion queue.
    struct DestroyCqReq = tag "ib_uverbs_destroy_cq" {
        /// Ignored by the ioctl.
        response: u64;
        /// Its handle.
        cq_handle: u32;
        /// Zero.
        reserved: u32;
    }

    /// Events that a destroyed CQ had raised.
    struct DestroyCqResp = tag "ib_uverbs_destroy_cq_resp" {
        /// Number of completion events.
        comp_events_reported: u32;
        /// Number of asynchronous events.
        async_events_reported: u32;
    }

    /// Event moderation of a CQ.
    #[doc(alias = "ibv_moderate_cq")]
    struct CqModeration = tag "ib_uverbs_cq_moderation" {
        /// Number of completions per event.
        cq_count: u16;
        /// Maximum delay of an event in µs.
        cq_period: u16;
    }

    /// Request of MODIFY_CQ.
    struct ExModifyCq = tag "ib_uverbs_ex_modify_cq" {
        /// The completion queue.
        cq_handle: u32;
        /// Attribute mask.
        attr_mask: CqAttrMask;
        /// CQ event moderation.
        attr: CqModeration;
        /// Must be 0.
        reserved: u32;
    }
}

impl Wc {
    /// The immediate data in host byte order.
    #[must_use]
    pub const fn imm_data(&self) -> u32 {
        u32::from_be(self.ex)
    }
}
