//! Protection domains, memory regions and windows, XRC domains, address handles and multicast.

use super::AhAttr;
use crate::uverbs_values::AccessFlags;
use crate::verbs_values::{MrReregFlags, MwType};

abi_structs! {
    header = "rdma/ib_user_verbs.h";

    /// Request for a protection domain.
    struct AllocPdReq = tag "ib_uverbs_alloc_pd" {
        /// Ignored by the ioctl.
        response: u64;
        /// Start of the driver payload with `write()`.
        driver_data: [u64; 0];
    }

    /// A new protection domain.
    struct AllocPdResp = tag "ib_uverbs_alloc_pd_resp" {
        /// Its handle.
        pd_handle: u32;
        /// Start of the driver payload with `write()`.
        driver_data: [u32; 0];
    }

    /// Deallocates a protection domain.
    struct DeallocPdReq = tag "ib_uverbs_dealloc_pd" {
        /// Its handle.
        pd_handle: u32;
    }

    /// Request for an XRC domain.
    struct OpenXrcdReq = tag "ib_uverbs_open_xrcd" {
        /// Ignored by the ioctl.
        response: u64;
        /// Descriptor of the file that identifies a shared domain; all ones for none.
        fd: u32;
        /// `O_CREAT` and `O_EXCL`, as for `open`.
        oflags: u32;
        /// Start of the driver payload with `write()`.
        driver_data: [u64; 0];
    }

    /// An XRC domain.
    struct OpenXrcdResp = tag "ib_uverbs_open_xrcd_resp" {
        /// Its handle.
        xrcd_handle: u32;
        /// Start of the driver payload with `write()`.
        driver_data: [u32; 0];
    }

    /// Closes an XRC domain.
    struct CloseXrcdReq = tag "ib_uverbs_close_xrcd" {
        /// Its handle.
        xrcd_handle: u32;
    }

    /// Request to register memory.
    struct RegMrReq = tag "ib_uverbs_reg_mr" {
        /// Ignored by the ioctl.
        response: u64;
        /// Address of the memory.
        start: u64;
        /// Length in bytes.
        length: u64;
        /// IOVA: address of the first byte in work requests. Its offset in the page must equal that
        /// of `start`.
        hca_va: u64;
        /// The protection domain.
        pd_handle: u32;
        /// Access flags.
        access_flags: AccessFlags;
        /// Start of the driver payload with `write()`.
        driver_data: [u64; 0];
    }

    /// A new memory region.
    struct RegMrResp = tag "ib_uverbs_reg_mr_resp" {
        /// Its handle.
        mr_handle: u32;
        /// Local key (lkey).
        lkey: u32;
        /// Remote key (rkey).
        rkey: u32;
        /// Start of the driver payload with `write()`.
        driver_data: [u32; 0];
    }

    /// Request of REREG_MR.
    struct ReregMrReq = tag "ib_uverbs_rereg_mr" {
        /// Ignored by the ioctl.
        response: u64;
        /// The memory region.
        mr_handle: u32;
        /// Mask of the attributes to change.
        flags: MrReregFlags;
        /// Address of the memory.
        start: u64;
        /// Length in bytes.
        length: u64;
        /// IOVA: address of the first byte in work requests.
        hca_va: u64;
        /// The protection domain.
        pd_handle: u32;
        /// Access flags.
        access_flags: AccessFlags;
        /// Start of the driver payload with `write()`.
        driver_data: [u64; 0];
    }

    /// The keys after re-registration.
    struct ReregMrResp = tag "ib_uverbs_rereg_mr_resp" {
        /// Local key (lkey).
        lkey: u32;
        /// Remote key (rkey).
        rkey: u32;
        /// Start of the driver payload with `write()`.
        driver_data: [u64; 0];
    }

    /// Deregisters a memory region.
    struct DeregMrReq = tag "ib_uverbs_dereg_mr" {
        /// Its handle.
        mr_handle: u32;
    }

    /// Request for a memory window.
    struct AllocMwReq = tag "ib_uverbs_alloc_mw" {
        /// Ignored by the ioctl.
        response: u64;
        /// The protection domain.
        pd_handle: u32;
        /// Its type.
        mw_type: MwType;
        /// Zero.
        reserved: [u8; 3];
        /// Start of the driver payload with `write()`.
        driver_data: [u64; 0];
    }

    /// A new memory window.
    struct AllocMwResp = tag "ib_uverbs_alloc_mw_resp" {
        /// Its handle.
        mw_handle: u32;
        /// Remote key (rkey).
        rkey: u32;
        /// Start of the driver payload with `write()`.
        driver_data: [u64; 0];
    }

    /// Deallocates a memory window.
    struct DeallocMwReq = tag "ib_uverbs_dealloc_mw" {
        /// Its handle.
        mw_handle: u32;
    }

    /// Request for an address handle.
    struct CreateAhReq = tag "ib_uverbs_create_ah" {
        /// Ignored by the ioctl.
        response: u64;
        /// User handle.
        user_handle: u64;
        /// The protection domain.
        pd_handle: u32;
        /// Zero.
        reserved: u32;
        /// The path.
        attr: AhAttr;
        /// Start of the driver payload with `write()`.
        driver_data: [u64; 0];
    }

    /// A new address handle.
    struct CreateAhResp = tag "ib_uverbs_create_ah_resp" {
        /// Its handle.
        ah_handle: u32;
        /// Start of the driver payload with `write()`.
        driver_data: [u32; 0];
    }

    /// Destroys an address handle.
    struct DestroyAhReq = tag "ib_uverbs_destroy_ah" {
        /// Its handle.
        ah_handle: u32;
    }

    /// Attaches a queue pair to a multicast group.
    struct AttachMcastReq = tag "ib_uverbs_attach_mcast" {
        /// The group.
        gid: [u8; 16];
        /// The queue pair.
        qp_handle: u32;
        /// LID of the group.
        mlid: u16;
        /// Zero.
        reserved: u16;
        /// Start of the driver payload with `write()`.
        driver_data: [u64; 0];
    }

    /// Detaches a queue pair from a multicast group.
    struct DetachMcastReq = tag "ib_uverbs_detach_mcast" {
        /// The group.
        gid: [u8; 16];
        /// The queue pair.
        qp_handle: u32;
        /// LID of the group.
        mlid: u16;
        /// Zero.
        reserved: u16;
        /// Start of the driver payload with `write()`.
        driver_data: [u64; 0];
    }
}
