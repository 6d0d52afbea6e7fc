//! The commands with their requests and responses.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::structs::*;
use crate::abi::{ConstInfo, Since, StructInfo};
use crate::write::structs::QpAttr;

/// A command that the connection manager has a handler for.
pub trait Command {
    /// The request.
    type Request: IntoBytes + Immutable + KnownLayout;
    /// The response; `()` if there is none.
    type Response: FromBytes + IntoBytes + KnownLayout;
    /// Its description.
    const INFO: CommandInfo;
    /// Sets the response address of the request. Does nothing if there is no response.
    fn set_response(request: &mut Self::Request, address: u64);
}

/// Description of a command.
#[derive(Clone, Copy, Debug)]
pub struct CommandInfo {
    /// Its name in Rust.
    pub rust: &'static str,
    /// Its name in C.
    pub c: &'static str,
    /// Its number.
    pub number: u32,
    /// First kernel series that has it.
    pub since: Since,
    /// The request.
    pub request: &'static StructInfo,
    /// The response; for [`Query`] the one to [`super::QueryOption::ADDR`] and
    /// [`super::QueryOption::GID`].
    pub response: Option<&'static StructInfo>,
}

/// Declares commands: `CreateId = 0, "RDMA_USER_CM_CMD_CREATE_ID": CreateIdReq => CreateIdResp;`. A
/// command without `=>` has no response. `since V7_2` after the C name is the first kernel series
/// that has it.
macro_rules! commands {
    ($(
        $(#[$meta:meta])*
        $name:ident = $number:literal, $c:literal $(since $since:ident)?: $request:ident $(=> $response:ident)?;
    )*) => {
        $(
            $(#[$meta])*
            #[doc = concat!("\n\nC: `", $c, "`.")]
            #[doc(alias = $c)]
            #[derive(Clone, Copy, Debug)]
            pub struct $name;

            impl Command for $name {
                type Request = $request;
                type Response = commands!(response $($response)?);
                const INFO: CommandInfo = CommandInfo {
                    rust: stringify!($name),
                    c: $c,
                    number: $number,
                    since: $crate::since!($($since)?),
                    request: &<$request as $crate::abi::AbiStruct>::INFO,
                    response: <commands!(response $($response)?) as $crate::write::OptionalStruct>::INFO,
                };
                commands!(set_response $request $($response)?);
            }
        )*

        /// All commands, in numerical order.
        pub const COMMANDS: &[&CommandInfo] = &[$(&<$name as Command>::INFO),*];

        /// The numbers of the commands.
        pub const NUMBERS: &[ConstInfo] = &[$(
            ConstInfo {
                rust: stringify!($name),
                c: $c,
                value: $number,
                header: "rdma/rdma_user_cm.h",
                since: $crate::since!($($since)?),
            },
        )*];
    };
    (response) => {
        ()
    };
    (response $response:ident) => {
        $response
    };
    (set_response $request:ident) => {
        fn set_response(_: &mut $request, _: u64) {}
    };
    (set_response $request:ident $response:ident) => {
        fn set_response(request: &mut $request, address: u64) {
            request.response = address;
        }
    };
}

commands! {
    /// Creates an identifier.
    CreateId = 0, "RDMA_USER_CM_CMD_CREATE_ID": CreateIdReq => CreateIdResp;
    /// Destroys an identifier.
    DestroyId = 1, "RDMA_USER_CM_CMD_DESTROY_ID": DestroyIdReq => DestroyIdResp;
    /// Binds an identifier to an IP address.
    BindIp = 2, "RDMA_USER_CM_CMD_BIND_IP": BindIpReq;
    /// Resolves the peer's IP address to a device and an address; an event reports completion.
    ResolveIp = 3, "RDMA_USER_CM_CMD_RESOLVE_IP": ResolveIpReq;
    /// Resolves a route to the peer; an event reports completion.
    ResolveRoute = 4, "RDMA_USER_CM_CMD_RESOLVE_ROUTE": ResolveRouteReq;
    /// Queries the route and both IP addresses.
    QueryRoute = 5, "RDMA_USER_CM_CMD_QUERY_ROUTE": QueryReq => QueryRouteResp;
    /// Connects to the peer; an event reports completion.
    Connect = 6, "RDMA_USER_CM_CMD_CONNECT": ConnectReq;
    /// Listens for connection requests, which events report.
    Listen = 7, "RDMA_USER_CM_CMD_LISTEN": ListenReq;
    /// Accepts a connection request.
    Accept = 8, "RDMA_USER_CM_CMD_ACCEPT": AcceptReq;
    /// Rejects a connection request.
    Reject = 9, "RDMA_USER_CM_CMD_REJECT": RejectReq;
    /// Disconnects.
    Disconnect = 10, "RDMA_USER_CM_CMD_DISCONNECT": DisconnectReq;
    /// Queries the QP attributes for the transition to a state.
    InitQpAttr = 11, "RDMA_USER_CM_CMD_INIT_QP_ATTR": InitQpAttrReq => QpAttr;
    /// Returns the next event. Blocks unless the file is non-blocking.
    GetEvent = 12, "RDMA_USER_CM_CMD_GET_EVENT": GetEventReq => EventResp;
    /// Sets an option of an identifier.
    SetOption = 14, "RDMA_USER_CM_CMD_SET_OPTION": SetOptionReq;
    /// Notifies the kernel of an asynchronous event of the QP.
    Notify = 15, "RDMA_USER_CM_CMD_NOTIFY": NotifyReq;
    /// Joins a multicast group by its IP address; an event reports completion.
    JoinIpMcast = 16, "RDMA_USER_CM_CMD_JOIN_IP_MCAST": JoinIpMcastReq => CreateIdResp;
    /// Leaves a multicast group.
    LeaveMcast = 17, "RDMA_USER_CM_CMD_LEAVE_MCAST": DestroyIdReq => DestroyIdResp;
    /// Migrates an identifier from another open file.
    MigrateId = 18, "RDMA_USER_CM_CMD_MIGRATE_ID": MigrateIdReq => MigrateIdResp;
    /// Queries addresses, GIDs, paths or services; the last two with [`super::Call::with_room`].
    Query = 19, "RDMA_USER_CM_CMD_QUERY": QueryReq => QueryAddrResp;
    /// Binds an identifier to an address of any family.
    Bind = 20, "RDMA_USER_CM_CMD_BIND": BindReq;
    /// Resolves the peer's address of any family to a device and an address; an event reports
    /// completion.
    ResolveAddr = 21, "RDMA_USER_CM_CMD_RESOLVE_ADDR": ResolveAddrReq;
    /// Joins a multicast group by its address of any family; an event reports completion.
    JoinMcast = 22, "RDMA_USER_CM_CMD_JOIN_MCAST": JoinMcastReq => CreateIdResp;
    /// Resolves services on the fabric; an event reports completion.
    ResolveIbService = 23, "RDMA_USER_CM_CMD_RESOLVE_IB_SERVICE" since V7_2: ResolveIbServiceReq;
    /// Queues an application event for the identifier.
    WriteCmEvent = 24, "RDMA_USER_CM_CMD_WRITE_CM_EVENT" since V7_2: WriteCmEventReq;
}

/// The command with that number, if it has a handler in any kernel.
#[must_use]
pub fn find(number: u32) -> Option<&'static CommandInfo> {
    COMMANDS.iter().copied().find(|command| command.number == number)
}
