//! The connection manager, `/dev/infiniband/rdma_cm`: address resolution, connections, events.
//!
//! It has no ioctl. A command is a `write` of a [`Header`] and the request. The request has the
//! address of the response, which the kernel writes before `write` returns. A [`Call`] has the
//! bytes of such a write; [`decode`] prints them.
//!
//! ```
//! use bareverbs_uapi::rdma_cm::{Call, CreateId, PortSpace, decode, structs::{CreateIdReq, CreateIdResp}};
//!
//! let mut response = CreateIdResp::zeroed();
//! let request = CreateIdReq { uid: 7, ps: PortSpace::TCP, qp_type: 2, ..CreateIdReq::zeroed() };
//! let call = Call::<CreateId>::new(request, &mut response);
//! // The bytes go to the file in one write.
//! assert_eq!(call.as_bytes().len(), 8 + 24);
//! assert!(decode(call.as_bytes()).to_string().starts_with("CreateId: CreateIdReq { uid: 7, "));
//! ```

pub mod address;
#[deny(missing_debug_implementations)]
mod call;
#[deny(missing_debug_implementations)]
pub mod commands;
#[deny(missing_debug_implementations)]
mod decode;
pub mod event;
mod event_type;
#[deny(missing_debug_implementations)]
mod option;
pub mod path;
pub mod structs;

pub use call::Call;
pub use commands::*;
pub use decode::{Decoded, DecodedResponse, decode};
pub use event::{EventParam, EventType, ParamKind};
pub use option::{DecodedOption, option_name};

abi_structs! {
    header = "rdma/rdma_user_cm.h";

    /// The header of a command.
    struct Header = tag "rdma_ucm_cmd_hdr" {
        /// Number of the command.
        command: u32 = "cmd";
        /// Size of the request after this header in bytes.
        input: u16 = "in";
        /// Size of the response buffer in bytes.
        output: u16 = "out";
    }
}

abi_enums! {
    header = "rdma/rdma_user_cm.h";

    /// Port space of an identifier, which implies the QP type.
    enum PortSpace: u16 = "rdma_ucm_port_space" {
        /// IPoIB: UD with the Q_Key of IPoIB.
        IPOIB = 0x0002, "RDMA_PS_IPOIB";
        /// Native InfiniBand service IDs.
        IB = 0x013f, "RDMA_PS_IB";
        /// Connected transports.
        TCP = 0x0106, "RDMA_PS_TCP";
        /// UD.
        UDP = 0x0111, "RDMA_PS_UDP";
    }

    /// Option of [`Query`].
    enum QueryOption: u32 = "" {
        /// Both addresses: [`structs::QueryAddrResp`].
        ADDR = 0, "RDMA_USER_CM_QUERY_ADDR";
        /// The paths: [`structs::QueryPathResp`] and records after it.
        PATH = 1, "RDMA_USER_CM_QUERY_PATH";
        /// Both GIDs, as [`address::SocketAddressIb`] in a [`structs::QueryAddrResp`].
        GID = 2, "RDMA_USER_CM_QUERY_GID";
        /// The resolved services: [`structs::QueryIbServiceResp`] and records after it.
        IB_SERVICE = 3, "RDMA_USER_CM_QUERY_IB_SERVICE" since V7_2;
    }

    /// Join mode of a multicast group.
    enum JoinFlags: u16 = "" {
        /// Send and receive.
        FULL_MEMBER = 0, "RDMA_MC_JOIN_FLAG_FULLMEMBER";
        /// Send only.
        SEND_ONLY_FULL_MEMBER = 1, "RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER";
    }

    /// Level of an option.
    enum OptionLevel: u32 = "" {
        /// [`IdOption`].
        ID = 0, "RDMA_OPTION_ID";
        /// [`IbOption`].
        IB = 1, "RDMA_OPTION_IB";
    }

    /// Options of an identifier.
    enum IdOption: u32 = "" {
        /// Type of service; one byte.
        TOS = 0, "RDMA_OPTION_ID_TOS";
        /// Whether the address can be reused (REUSEADDR); four bytes.
        REUSE_ADDR = 1, "RDMA_OPTION_ID_REUSEADDR";
        /// Whether an IPv6 identifier is IPv6-only; four bytes.
        AF_ONLY = 2, "RDMA_OPTION_ID_AFONLY";
        /// Local ACK timeout of the QP, 4.096 µs × 2^n; one byte.
        ACK_TIMEOUT = 3, "RDMA_OPTION_ID_ACK_TIMEOUT";
    }

    /// Options of an identifier on an InfiniBand fabric.
    enum IbOption: u32 = "" {
        /// The paths, an array of [`path::PathRecData`], instead of route resolution.
        PATH = 1, "RDMA_OPTION_IB_PATH";
    }
}

abi_flags! {
    header = "rdma/rdma_user_cm.h";

    /// Search keys of [`structs::IbService`].
    flags IbServiceFlags: u32 = "" {
        /// The identifier.
        ID = 1 << 0, "RDMA_USER_CM_IB_SERVICE_FLAG_ID" since V7_2;
        /// The name.
        NAME = 1 << 1, "RDMA_USER_CM_IB_SERVICE_FLAG_NAME" since V7_2;
    }
}

abi_consts! {
    header = "rdma/rdma_user_cm.h";

    /// Version of this ABI, in `/sys/class/misc/rdma_cm/abi_version`.
    const ABI_VERSION: u32 = 4, "RDMA_USER_CM_ABI_VERSION";
    /// Maximum private data of a command or event in bytes.
    const MAX_PRIVATE_DATA: usize = 256, "RDMA_MAX_PRIVATE_DATA";
    /// Size of a service name in bytes.
    const IB_SERVICE_NAME_SIZE: usize = 64, "RDMA_USER_CM_IB_SERVICE_NAME_SIZE" since V7_2;
    /// The only command without a handler in any kernel; it fails with `ENOSYS`.
    const GET_OPTION: u32 = 13, "RDMA_USER_CM_CMD_GET_OPTION";
}
