//! The connection manager of `/dev/infiniband/rdma_cm`: find a peer by its address, connect, hear
//! of events.
//!
//! It has no ioctl: a command is written to the file as a [`Header`] and the command's request, and
//! the kernel puts the answer where the request says before the write returns. A [`Call`] holds
//! such a write; [`decode`] tells one in words.
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
mod call;
pub mod commands;
mod decode;
pub mod event;
pub mod path;
pub mod structs;

pub use call::Call;
pub use commands::*;
pub use decode::{Decoded, DecodedResponse, decode};
pub use event::EventType;

abi_structs! {
    header = "rdma/rdma_user_cm.h";

    /// The head of a command.
    struct Header = tag "rdma_ucm_cmd_hdr" {
        /// Number of the command.
        command: u32 = "cmd";
        /// Bytes of the request after this head.
        input: u16 = "in";
        /// Bytes that there is room for where the response goes.
        output: u16 = "out";
    }
}

abi_enums! {
    header = "rdma/rdma_user_cm.h";

    /// Whose port numbers an identifier uses, and with it the kind of QP.
    enum PortSpace: u16 = "rdma_ucm_port_space" {
        /// IP over InfiniBand: unreliable datagrams that share its Q_Key.
        IPOIB = 0x0002, "RDMA_PS_IPOIB";
        /// Native InfiniBand service identifiers.
        IB = 0x013f, "RDMA_PS_IB";
        /// Connections.
        TCP = 0x0106, "RDMA_PS_TCP";
        /// Unreliable datagrams.
        UDP = 0x0111, "RDMA_PS_UDP";
    }

    /// What [`Query`] asks for.
    enum QueryOption: u32 = "" {
        /// Both addresses: [`structs::QueryAddrResp`].
        ADDR = 0, "RDMA_USER_CM_QUERY_ADDR";
        /// The paths: [`structs::QueryPathResp`] and records after it.
        PATH = 1, "RDMA_USER_CM_QUERY_PATH";
        /// Both GIDs, as [`address::SocketAddressIb`] in a [`structs::QueryAddrResp`].
        GID = 2, "RDMA_USER_CM_QUERY_GID";
        /// The services found: [`structs::QueryIbServiceResp`] and records after it.
        IB_SERVICE = 3, "RDMA_USER_CM_QUERY_IB_SERVICE" since V7_2;
    }

    /// How to take part in a multicast group.
    enum JoinFlags: u16 = "" {
        /// Send and receive.
        FULL_MEMBER = 0, "RDMA_MC_JOIN_FLAG_FULLMEMBER";
        /// Send only.
        SEND_ONLY_FULL_MEMBER = 1, "RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER";
    }

    /// Which set of options an option belongs to.
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
        /// Whether several may bind to the address; four bytes.
        REUSE_ADDR = 1, "RDMA_OPTION_ID_REUSEADDR";
        /// Whether an IPv6 identifier keeps to IPv6; four bytes.
        AF_ONLY = 2, "RDMA_OPTION_ID_AFONLY";
        /// The QP's timeout, 4.096 µs times 2 to this power; one byte.
        ACK_TIMEOUT = 3, "RDMA_OPTION_ID_ACK_TIMEOUT";
    }

    /// Options of an identifier on an InfiniBand fabric.
    enum IbOption: u32 = "" {
        /// The paths, an array of [`path::PathRecData`], in place of resolving a route.
        PATH = 1, "RDMA_OPTION_IB_PATH";
    }
}

abi_flags! {
    header = "rdma/rdma_user_cm.h";

    /// Which parts of [`structs::IbService`] say what to look for.
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
    /// Most bytes of private data in a command or event.
    const MAX_PRIVATE_DATA: usize = 256, "RDMA_MAX_PRIVATE_DATA";
    /// Bytes of a service's name.
    const IB_SERVICE_NAME_SIZE: usize = 64, "RDMA_USER_CM_IB_SERVICE_NAME_SIZE" since V7_2;
    /// The one command number that no kernel has a handler for; it fails with `ENOSYS`.
    const GET_OPTION: u32 = 13, "RDMA_USER_CM_CMD_GET_OPTION";
}
