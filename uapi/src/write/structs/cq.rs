//! Completion queues.

use crate::verbs_values::{CqAttrMask, WcFlags, WcStatus};
use crate::write::types::{CqCreateFlags, WcOpcode};

abi_structs! {
    header = "rdma/ib_user_verbs.h";

    /// Request for a completion queue.
    struct CreateCqReq = tag "ib_uverbs_create_cq" {
        /// Ignored by the ioctl.
        response: u64;
        /// Number by which events name it.
        user_handle: u64;
        /// Fewest entries.
        cqe: u32;
        /// Completion vector that raises its events.
        comp_vector: u32;
        /// Descriptor of the completion channel; -1 for none.
        comp_channel: i32;
        /// Zero.
        reserved: u32;
        /// Where a driver's payload follows with `write()`.
        driver_data: [u64; 0];
    }

    /// Extended request for a completion queue.
    struct ExCreateCq = tag "ib_uverbs_ex_create_cq" {
        /// Number by which events name it.
        user_handle: u64;
        /// Fewest entries.
        cqe: u32;
        /// Completion vector that raises its events.
        comp_vector: u32;
        /// Descriptor of the completion channel; -1 for none.
        comp_channel: i32;
        /// Must be 0.
        comp_mask: u32;
        /// Options.
        flags: CqCreateFlags;
        /// Must be 0.
        reserved: u32;
    }

    /// A new completion queue.
    struct CreateCqResp = tag "ib_uverbs_create_cq_resp" {
        /// Its handle.
        cq_handle: u32;
        /// Its entries.
        cqe: u32;
        /// Where a driver's payload follows with `write()`.
        driver_data: [u64; 0];
    }

    /// A new completion queue, extended.
    struct ExCreateCqResp = tag "ib_uverbs_ex_create_cq_resp" {
        /// The older response.
        base: CreateCqResp;
        /// Zero.
        comp_mask: u32;
        /// Bytes that the kernel filled.
        response_length: u32;
    }

    /// Request to resize a completion queue.
    struct ResizeCqReq = tag "ib_uverbs_resize_cq" {
        /// Ignored by the ioctl.
        response: u64;
        /// The completion queue.
        cq_handle: u32;
        /// Fewest entries from now on.
        cqe: u32;
        /// Where a driver's payload follows with `write()`.
        driver_data: [u64; 0];
    }

    /// A resized completion queue.
    struct ResizeCqResp = tag "ib_uverbs_resize_cq_resp" {
        /// Its entries.
        cqe: u32;
        /// Zero.
        reserved: u32;
        /// Where a driver's payload follows with `write()`.
        driver_data: [u64; 0];
    }

    /// Request to take completions through the kernel; no driver in the kernel allows it to user
    /// space.
    struct PollCqReq = tag "ib_uverbs_poll_cq" {
        /// Ignored by the ioctl.
        response: u64;
        /// The completion queue.
        cq_handle: u32;
        /// Most completions.
        ne: u32;
    }

    /// A completion. rxe's completion ring holds these too.
    struct Wc = tag "ib_uverbs_wc" {
        /// The caller's number of the work request.
        wr_id: u64;
        /// How it ended.
        status: WcStatus;
        /// What it was; not valid if it failed.
        opcode: WcOpcode;
        /// The driver's own error number.
        vendor_err: u32;
        /// Bytes received or read.
        byte_len: u32;
        /// Immediate data, the bytes as they came over the wire, or the key that was invalidated in
        /// the machine's byte order; `wc_flags` says which.
        ex: u32;
        /// The local queue pair.
        qp_num: u32;
        /// The sender's queue pair, for datagrams.
        src_qp: u32;
        /// What else the completion carries.
        wc_flags: WcFlags;
        /// Index of the partition key.
        pkey_index: u16;
        /// The sender's local identifier.
        slid: u16;
        /// Service level.
        sl: u8;
        /// Low bits of the local identifier that the message came to.
        dlid_path_bits: u8;
        /// Port, for directed routes on switches.
        port_num: u8;
        /// Zero.
        reserved: u8;
    }

    /// Completions taken through the kernel.
    struct PollCqResp = tag "ib_uverbs_poll_cq_resp" {
        /// How many.
        count: u32;
        /// Zero.
        reserved: u32;
        /// Where they start.
        wc: [Wc; 0];
    }

    /// Request for an event at the next completion.
    struct ReqNotifyCqReq = tag "ib_uverbs_req_notify_cq" {
        /// The completion queue.
        cq_handle: u32;
        /// 1 for solicited completions and errors only.
        solicited_only: u32;
    }

    /// Gives a completion queue back.
    struct DestroyCqReq = tag "ib_uverbs_destroy_cq" {
        /// Ignored by the ioctl.
        response: u64;
        /// Its handle.
        cq_handle: u32;
        /// Zero.
        reserved: u32;
    }

    /// What the completion queue had raised.
    struct DestroyCqResp = tag "ib_uverbs_destroy_cq_resp" {
        /// Completion events.
        comp_events_reported: u32;
        /// Asynchronous events.
        async_events_reported: u32;
    }

    /// When a completion event is raised.
    struct CqModeration = tag "ib_uverbs_cq_moderation" {
        /// After so many completions.
        cq_count: u16;
        /// Or after so many microseconds.
        cq_period: u16;
    }

    /// Request to change a completion queue.
    struct ExModifyCq = tag "ib_uverbs_ex_modify_cq" {
        /// The completion queue.
        cq_handle: u32;
        /// Which attributes.
        attr_mask: CqAttrMask;
        /// Event moderation.
        attr: CqModeration;
        /// Must be 0.
        reserved: u32;
    }
}

impl Wc {
    /// The immediate data in the machine's byte order.
    #[must_use]
    pub const fn imm_data(&self) -> u32 {
        u32::from_be(self.ex)
    }
}
