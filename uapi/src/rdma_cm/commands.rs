//! The commands and what each takes and gives.

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
    /// Tells the request where the response goes; does nothing where there is none.
    fn set_response(request: &mut Self::Request, address: u64);
}

/// What is known of a command.
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

/// Declares commands: `CreateId = 0, "RDMA_USER_CM_CMD_CREATE_ID": CreateIdReq => CreateIdResp;`,
/// without `=>` where there is no response, with `since V7_2` after the C name where a later kernel
/// first had it.
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

        /// Every command, in the order of the numbers.
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
    /// Makes an identifier.
    CreateId = 0, "RDMA_USER_CM_CMD_CREATE_ID": CreateIdReq => CreateIdResp;
    /// Destroys an identifier.
    DestroyId = 1, "RDMA_USER_CM_CMD_DESTROY_ID": DestroyIdReq => DestroyIdResp;
    /// Binds an identifier to an IP address.
    BindIp = 2, "RDMA_USER_CM_CMD_BIND_IP": BindIpReq;
    /// Finds the device and the address behind the peer's IP address; an event tells the end.
    ResolveIp = 3, "RDMA_USER_CM_CMD_RESOLVE_IP": ResolveIpReq;
    /// Finds a route to the peer; an event tells the end.
    ResolveRoute = 4, "RDMA_USER_CM_CMD_RESOLVE_ROUTE": ResolveRouteReq;
    /// Asks for the route and both IP addresses.
    QueryRoute = 5, "RDMA_USER_CM_CMD_QUERY_ROUTE": QueryReq => QueryRouteResp;
    /// Asks the peer to connect; an event tells the end.
    Connect = 6, "RDMA_USER_CM_CMD_CONNECT": ConnectReq;
    /// Waits for peers that want to connect; events tell of them.
    Listen = 7, "RDMA_USER_CM_CMD_LISTEN": ListenReq;
    /// Accepts a peer that wants to connect.
    Accept = 8, "RDMA_USER_CM_CMD_ACCEPT": AcceptReq;
    /// Refuses a peer that wants to connect.
    Reject = 9, "RDMA_USER_CM_CMD_REJECT": RejectReq;
    /// Ends a connection.
    Disconnect = 10, "RDMA_USER_CM_CMD_DISCONNECT": DisconnectReq;
    /// Asks with which attributes the QP reaches a state.
    InitQpAttr = 11, "RDMA_USER_CM_CMD_INIT_QP_ATTR": InitQpAttrReq => QpAttr;
    /// Takes the next event, waiting for one unless the file is non-blocking.
    GetEvent = 12, "RDMA_USER_CM_CMD_GET_EVENT": GetEventReq => EventResp;
    /// Sets an option of an identifier.
    SetOption = 14, "RDMA_USER_CM_CMD_SET_OPTION": SetOptionReq;
    /// Passes on an asynchronous event of the QP.
    Notify = 15, "RDMA_USER_CM_CMD_NOTIFY": NotifyReq;
    /// Joins a multicast group by its IP address; an event tells the end.
    JoinIpMcast = 16, "RDMA_USER_CM_CMD_JOIN_IP_MCAST": JoinIpMcastReq => CreateIdResp;
    /// Leaves a multicast group.
    LeaveMcast = 17, "RDMA_USER_CM_CMD_LEAVE_MCAST": DestroyIdReq => DestroyIdResp;
    /// Moves an identifier here from another open file.
    MigrateId = 18, "RDMA_USER_CM_CMD_MIGRATE_ID": MigrateIdReq => MigrateIdResp;
    /// Asks for addresses, GIDs, paths or services; the last two with [`super::Call::with_room`].
    Query = 19, "RDMA_USER_CM_CMD_QUERY": QueryReq => QueryAddrResp;
    /// Binds an identifier to an address of any family.
    Bind = 20, "RDMA_USER_CM_CMD_BIND": BindReq;
    /// Finds the device and the address behind the peer's address of any family; an event tells the
    /// end.
    ResolveAddr = 21, "RDMA_USER_CM_CMD_RESOLVE_ADDR": ResolveAddrReq;
    /// Joins a multicast group by its address of any family; an event tells the end.
    JoinMcast = 22, "RDMA_USER_CM_CMD_JOIN_MCAST": JoinMcastReq => CreateIdResp;
    /// Looks for services on the fabric; an event tells the end.
    ResolveIbService = 23, "RDMA_USER_CM_CMD_RESOLVE_IB_SERVICE" since V7_2: ResolveIbServiceReq;
    /// Puts an event of the application's own among the identifier's.
    WriteCmEvent = 24, "RDMA_USER_CM_CMD_WRITE_CM_EVENT" since V7_2: WriteCmEventReq;
}

/// The command with that number, if it has a handler in any kernel.
#[must_use]
pub fn find(number: u32) -> Option<&'static CommandInfo> {
    COMMANDS.iter().copied().find(|command| command.number == number)
}
