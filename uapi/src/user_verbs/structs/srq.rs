//! Shared receive queues.

use super::RecvWr;
use crate::uverbs_values::SrqType;
use crate::verbs_values::SrqAttrMask;

abi_structs! {
    header = "rdma/ib_user_verbs.h";

    /// Request of POST_SRQ_RECV.
    struct PostSrqRecvReq = tag "ib_uverbs_post_srq_recv" {
        /// Ignored by the ioctl.
        response: u64;
        /// The shared receive queue.
        srq_handle: u32;
        /// Number of receive requests.
        wr_count: u32;
        /// Total number of SGEs; they follow the requests.
        sge_count: u32;
        /// Size of a request in bytes.
        wqe_size: u32;
        /// Start of the requests.
        recv: [RecvWr; 0];
    }

    /// Response of posting receives.
    struct PostSrqRecvResp = tag "ib_uverbs_post_srq_recv_resp" {
        /// Index of the rejected request, from 1; 0 for none.
        bad_wr: u32;
    }

    /// Request for a shared receive queue.
    struct CreateSrqReq = tag "ib_uverbs_create_srq" {
        /// Ignored by the ioctl.
        response: u64;
        /// User handle, which its events carry.
        user_handle: u64;
        /// The protection domain.
        pd_handle: u32;
        /// Maximum number of outstanding receive requests.
        max_wr: u32;
        /// Maximum number of SGEs of a request.
        max_sge: u32;
        /// SRQ limit: fewer posted receives raise an event.
        srq_limit: u32;
        /// Start of the driver payload with `write()`.
        driver_data: [u64; 0];
    }

    /// Request for a shared receive queue of any type.
    struct CreateXsrqReq = tag "ib_uverbs_create_xsrq" {
        /// Ignored by the ioctl.
        response: u64;
        /// User handle, which its events carry.
        user_handle: u64;
        /// Its type.
        srq_type: SrqType;
        /// The protection domain.
        pd_handle: u32;
        /// Maximum number of outstanding receive requests.
        max_wr: u32;
        /// Maximum number of SGEs of a request.
        max_sge: u32;
        /// SRQ limit: fewer posted receives raise an event.
        srq_limit: u32;
        /// Maximum number of entries of the tag matching list.
        max_num_tags: u32;
        /// The XRC domain.
        xrcd_handle: u32;
        /// The completion queue.
        cq_handle: u32;
        /// Start of the driver payload with `write()`.
        driver_data: [u64; 0];
    }

    /// A new shared receive queue.
    struct CreateSrqResp = tag "ib_uverbs_create_srq_resp" {
        /// Its handle.
        srq_handle: u32;
        /// Maximum number of outstanding receive requests.
        max_wr: u32;
        /// Maximum number of SGEs of a request.
        max_sge: u32;
        /// SRQ number; set for all types except basic.
        srqn: u32;
        /// Start of the driver payload with `write()`.
        driver_data: [u32; 0];
    }

    /// Request of MODIFY_SRQ.
    struct ModifySrqReq = tag "ib_uverbs_modify_srq" {
        /// The shared receive queue.
        srq_handle: u32;
        /// Attribute mask.
        attr_mask: SrqAttrMask;
        /// Maximum number of outstanding receive requests.
        max_wr: u32;
        /// SRQ limit: fewer posted receives raise an event, once.
        srq_limit: u32;
        /// Start of the driver payload with `write()`.
        driver_data: [u64; 0];
    }

    /// Request of QUERY_SRQ.
    struct QuerySrqReq = tag "ib_uverbs_query_srq" {
        /// Ignored by the ioctl.
        response: u64;
        /// The shared receive queue.
        srq_handle: u32;
        /// Zero.
        reserved: u32;
        /// Start of the driver payload with `write()`.
        driver_data: [u64; 0];
    }

    /// Attributes of an SRQ.
    struct QuerySrqResp = tag "ib_uverbs_query_srq_resp" {
        /// Maximum number of outstanding receive requests.
        max_wr: u32;
        /// Maximum number of SGEs of a request.
        max_sge: u32;
        /// SRQ limit: fewer posted receives raise an event.
        srq_limit: u32;
        /// Zero.
        reserved: u32;
    }

    /// Destroys a shared receive queue.
    struct DestroySrqReq = tag "ib_uverbs_destroy_srq" {
        /// Ignored by the ioctl.
        response: u64;
        /// Its handle.
        srq_handle: u32;
        /// Zero.
        reserved: u32;
    }

    /// Events that a destroyed SRQ had raised.
    struct DestroySrqResp = tag "ib_uverbs_destroy_srq_resp" {
        /// Number of asynchronous events.
        events_reported: u32;
    }
}
