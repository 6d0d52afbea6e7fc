//! Shared receive queues.

use super::RecvWr;
use crate::uverbs::types::SrqType;
use crate::verbs_values::SrqAttrMask;

abi_structs! {
    header = "rdma/ib_user_verbs.h";

    /// Request to post receives to a shared queue.
    struct PostSrqRecvReq = tag "ib_uverbs_post_srq_recv" {
        /// Ignored by the ioctl.
        response: u64;
        /// The shared receive queue.
        srq_handle: u32;
        /// Number of receive requests.
        wr_count: u32;
        /// Number of scatter entries of them all; they follow the requests.
        sge_count: u32;
        /// Bytes from one request to the next.
        wqe_size: u32;
        /// Where the requests start.
        recv: [RecvWr; 0];
    }

    /// How posting receives ended.
    struct PostSrqRecvResp = tag "ib_uverbs_post_srq_recv_resp" {
        /// Place of the request that was refused, from 1; 0 for none.
        bad_wr: u32;
    }

    /// Request for a shared receive queue.
    struct CreateSrqReq = tag "ib_uverbs_create_srq" {
        /// Ignored by the ioctl.
        response: u64;
        /// Number by which events name it.
        user_handle: u64;
        /// The protection domain.
        pd_handle: u32;
        /// Receive requests outstanding.
        max_wr: u32;
        /// Scatter entries of a request.
        max_sge: u32;
        /// Requests left below which an event is raised.
        srq_limit: u32;
        /// Where a driver's payload follows with `write()`.
        driver_data: [u64; 0];
    }

    /// Request for a shared receive queue of any type.
    struct CreateXsrqReq = tag "ib_uverbs_create_xsrq" {
        /// Ignored by the ioctl.
        response: u64;
        /// Number by which events name it.
        user_handle: u64;
        /// Its type.
        srq_type: SrqType;
        /// The protection domain.
        pd_handle: u32;
        /// Receive requests outstanding.
        max_wr: u32;
        /// Scatter entries of a request.
        max_sge: u32;
        /// Requests left below which an event is raised.
        srq_limit: u32;
        /// Entries of the tag matching list.
        max_num_tags: u32;
        /// The XRC domain.
        xrcd_handle: u32;
        /// The completion queue.
        cq_handle: u32;
        /// Where a driver's payload follows with `write()`.
        driver_data: [u64; 0];
    }

    /// A new shared receive queue.
    struct CreateSrqResp = tag "ib_uverbs_create_srq_resp" {
        /// Its handle.
        srq_handle: u32;
        /// Receive requests outstanding.
        max_wr: u32;
        /// Scatter entries of a request.
        max_sge: u32;
        /// Its number; set for all types but the basic one.
        srqn: u32;
        /// Where a driver's payload follows with `write()`.
        driver_data: [u32; 0];
    }

    /// Request to change a shared receive queue.
    struct ModifySrqReq = tag "ib_uverbs_modify_srq" {
        /// The shared receive queue.
        srq_handle: u32;
        /// Which attributes.
        attr_mask: SrqAttrMask;
        /// Receive requests outstanding.
        max_wr: u32;
        /// Requests left below which an event is raised, once.
        srq_limit: u32;
        /// Where a driver's payload follows with `write()`.
        driver_data: [u64; 0];
    }

    /// Request for a shared receive queue's attributes.
    struct QuerySrqReq = tag "ib_uverbs_query_srq" {
        /// Ignored by the ioctl.
        response: u64;
        /// The shared receive queue.
        srq_handle: u32;
        /// Zero.
        reserved: u32;
        /// Where a driver's payload follows with `write()`.
        driver_data: [u64; 0];
    }

    /// A shared receive queue's attributes.
    struct QuerySrqResp = tag "ib_uverbs_query_srq_resp" {
        /// Receive requests outstanding.
        max_wr: u32;
        /// Scatter entries of a request.
        max_sge: u32;
        /// Requests left below which an event is raised.
        srq_limit: u32;
        /// Zero.
        reserved: u32;
    }

    /// Gives a shared receive queue back.
    struct DestroySrqReq = tag "ib_uverbs_destroy_srq" {
        /// Ignored by the ioctl.
        response: u64;
        /// Its handle.
        srq_handle: u32;
        /// Zero.
        reserved: u32;
    }

    /// What the shared receive queue had raised.
    struct DestroySrqResp = tag "ib_uverbs_destroy_srq_resp" {
        /// Asynchronous events.
        events_reported: u32;
    }
}
