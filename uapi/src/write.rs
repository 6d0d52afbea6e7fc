//! The write commands, the older part of the ABI. This crate encodes them for the ioctl method
//! `INVOKE_WRITE` only.
//!
//! Each command is a type with a request and a response struct. The number of an extended command
//! has bit 31 set.
//!
//! ```
//! use bareverbs_uapi::uverbs::types::DriverId;
//! use bareverbs_uapi::write::{self, structs::{AllocPdReq, AllocPdResp}};
//!
//! let request = AllocPdReq::zeroed();
//! let mut response = AllocPdResp::zeroed();
//! let call = write::invoke::<write::AllocPd>(DriverId::RXE.0, &request, &mut response);
//! assert_eq!(call.as_bytes().len(), 24 + 3 * 16);
//! ```

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::abi::{Since, StructInfo};
use crate::method::Call;
pub use crate::user_verbs::{structs, types};
use crate::uverbs::InvokeWrite;
use structs::*;

/// Flag of extended commands in the command number.
pub const EXTENDED: u32 = types::CMD_FLAG_EXTENDED;

/// A write command that the kernel has a handler for.
pub trait WriteCommand {
    /// The request.
    type Request: IntoBytes + Immutable + KnownLayout;
    /// The response; `()` if there is none.
    type Response: FromBytes + IntoBytes + KnownLayout;
    /// Its description.
    const INFO: WriteCommandInfo;
}

/// Description of a write command.
#[derive(Clone, Copy, Debug)]
pub struct WriteCommandInfo {
    /// Its name in Rust.
    pub rust: &'static str,
    /// Its name in C.
    pub c: &'static str,
    /// Its number, with [`EXTENDED`] for extended commands.
    pub number: u32,
    /// First kernel series that has it.
    pub since: Since,
    /// The request.
    pub request: Option<&'static StructInfo>,
    /// The response.
    pub response: Option<&'static StructInfo>,
    /// Minimum size of the request in bytes; the kernel fails with `ENOSPC` below it.
    pub request_minimum: usize,
    /// Minimum size of the response buffer in bytes; the kernel fails with `ENOSPC` below it.
    pub response_minimum: usize,
    /// Whether a driver request may follow.
    pub driver_input: bool,
    /// Whether a driver response may follow.
    pub driver_output: bool,
}

/// A request or response that may be absent.
pub trait OptionalStruct {
    /// Its description, if there is one.
    const INFO: Option<&'static StructInfo>;
}

impl OptionalStruct for () {
    const INFO: Option<&'static StructInfo> = None;
}

impl<T: crate::abi::AbiStruct> OptionalStruct for T {
    const INFO: Option<&'static StructInfo> = Some(&T::INFO);
}

/// A call that executes command `C`. Commands without a response use [`invoke_without_response`].
///
/// [`Call::driver_input`] and [`Call::driver_output`] add driver payloads.
#[must_use]
pub fn invoke<'a, C: WriteCommand>(
    driver_id: u32,
    request: &'a C::Request,
    response: &'a mut C::Response,
) -> Call<'a, InvokeWrite> {
    invoke_bytes::<C>(driver_id, request.as_bytes(), response.as_mut_bytes())
}

/// A call that executes a command without a response.
#[must_use]
pub fn invoke_without_response<C: WriteCommand<Response = ()>>(
    driver_id: u32,
    request: &C::Request,
) -> Call<'_, InvokeWrite> {
    invoke_bytes::<C>(driver_id, request.as_bytes(), &mut [])
}

/// Like [`invoke`], for requests with data after their struct, and for invalid sizes in kernel
/// tests.
#[must_use]
pub fn invoke_bytes<'a, C: WriteCommand>(
    driver_id: u32,
    request: &'a [u8],
    response: &'a mut [u8],
) -> Call<'a, InvokeWrite> {
    let mut call = Call::new(driver_id);
    call.constant(InvokeWrite::WRITE_CMD, C::INFO.number);
    if !request.is_empty() {
        call.input_slice(InvokeWrite::CORE_IN, request);
    }
    if !response.is_empty() {
        call.output_slice(InvokeWrite::CORE_OUT, response);
    }
    call
}

/// Size of a struct up to the end of its field `last`.
pub(crate) const fn end_of(info: &StructInfo, last: &str) -> usize {
    let mut i = 0;
    while i < info.fields.len() {
        let field = &info.fields[i];
        if same(field.rust.as_bytes(), last.as_bytes()) {
            return field.offset + field.size;
        }
        i += 1;
    }
    panic!("the struct has no such field")
}

const fn same(a: &[u8], b: &[u8]) -> bool {
    let mut i = 0;
    while i < a.len() && i < b.len() && a[i] == b[i] {
        i += 1;
    }
    i == a.len() && i == b.len()
}

macro_rules! minimum {
    ($ty:ty) => {
        size_of::<$ty>()
    };
    ($ty:ty, $last:ident) => {
        $crate::write::end_of(&<$ty as $crate::abi::AbiStruct>::INFO, stringify!($last))
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! driver_direction {
    ($asked:ident) => {
        false
    };
    ($asked:ident both) => {
        true
    };
    (input input) => {
        true
    };
    (output output) => {
        true
    };
    ($asked:ident $other:ident) => {
        false
    };
}

/// Declares write commands:
/// `AllocPd = 3, "IB_USER_VERBS_CMD_ALLOC_PD": AllocPdReq => AllocPdResp, driver both;`
///
/// `EXTENDED` before the number marks an extended command. `()` means no struct. `driver input`,
/// `driver output` or `driver both` marks commands with driver payloads.
/// `grows reserved => response_length` names the last mandatory fields, if they are not the last
/// fields of the structs.
macro_rules! write_commands {
    ($(
        $(#[$meta:meta])*
        $name:ident = $($extended:ident)? $number:literal, $c:literal $(since $since:ident)? :
            $request:ty => $response:ty $(, driver $direction:ident)?
            $(, grows $request_last:ident $(=> $response_last:ident)?)?;
    )*) => {
        $(
            $(#[$meta])*
            #[doc = concat!("\n\nC: `", $c, "`.")]
            #[doc(alias = $c)]
            #[derive(Clone, Copy, Debug)]
            pub struct $name;

            impl $crate::write::WriteCommand for $name {
                type Request = $request;
                type Response = $response;
                const INFO: $crate::write::WriteCommandInfo = $crate::write::WriteCommandInfo {
                    rust: stringify!($name),
                    c: $c,
                    number: $number $(| $crate::write::$extended)?,
                    since: $crate::since!($($since)?),
                    request: <$request as $crate::write::OptionalStruct>::INFO,
                    response: <$response as $crate::write::OptionalStruct>::INFO,
                    request_minimum: minimum!($request $(, $request_last)?),
                    response_minimum: minimum!($response $($(, $response_last)?)?),
                    driver_input: $crate::driver_direction!(input $($direction)?),
                    driver_output: $crate::driver_direction!(output $($direction)?),
                };
            }
        )*

        /// The write commands declared here.
        pub const COMMANDS: &[&$crate::write::WriteCommandInfo] =
            &[$(&<$name as $crate::write::WriteCommand>::INFO),*];
    };
}

pub mod ex;

write_commands! {
    /// Creates the context of the open file and its asynchronous event channel.
    GetContext = 0, "IB_USER_VERBS_CMD_GET_CONTEXT": GetContextReq => GetContextResp, driver both;
    /// Queries the device.
    QueryDevice = 1, "IB_USER_VERBS_CMD_QUERY_DEVICE": QueryDeviceReq => QueryDeviceResp;
    /// Queries a port.
    QueryPort = 2, "IB_USER_VERBS_CMD_QUERY_PORT": QueryPortReq => QueryPortResp;
    /// Allocates a protection domain.
    AllocPd = 3, "IB_USER_VERBS_CMD_ALLOC_PD": AllocPdReq => AllocPdResp, driver both;
    /// Deallocates a protection domain.
    DeallocPd = 4, "IB_USER_VERBS_CMD_DEALLOC_PD": DeallocPdReq => ();
    /// Creates an address handle.
    CreateAh = 5, "IB_USER_VERBS_CMD_CREATE_AH": CreateAhReq => CreateAhResp, driver both;
    /// Destroys an address handle.
    DestroyAh = 8, "IB_USER_VERBS_CMD_DESTROY_AH": DestroyAhReq => ();
    /// Registers memory.
    RegMr = 9, "IB_USER_VERBS_CMD_REG_MR": RegMrReq => RegMrResp, driver both;
    /// Re-registers a memory region.
    ReregMr = 11, "IB_USER_VERBS_CMD_REREG_MR": ReregMrReq => ReregMrResp, driver both;
    /// Deregisters a memory region.
    DeregMr = 13, "IB_USER_VERBS_CMD_DEREG_MR": DeregMrReq => ();
    /// Allocates a memory window.
    AllocMw = 14, "IB_USER_VERBS_CMD_ALLOC_MW": AllocMwReq => AllocMwResp, driver both;
    /// Deallocates a memory window.
    DeallocMw = 16, "IB_USER_VERBS_CMD_DEALLOC_MW": DeallocMwReq => ();
    /// Creates a completion event channel.
    CreateCompChannel = 17, "IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL":
        CreateCompChannelReq => CreateCompChannelResp;
    /// Creates a completion queue.
    CreateCq = 18, "IB_USER_VERBS_CMD_CREATE_CQ": CreateCqReq => CreateCqResp, driver both;
    /// Resizes a completion queue.
    ResizeCq = 19, "IB_USER_VERBS_CMD_RESIZE_CQ": ResizeCqReq => ResizeCqResp, driver both;
    /// Destroys a completion queue.
    DestroyCq = 20, "IB_USER_VERBS_CMD_DESTROY_CQ": DestroyCqReq => DestroyCqResp;
    /// Polls a completion queue, for drivers that need it.
    PollCq = 21, "IB_USER_VERBS_CMD_POLL_CQ": PollCqReq => PollCqResp;
    /// Arms a completion queue, for drivers that need it.
    ReqNotifyCq = 23, "IB_USER_VERBS_CMD_REQ_NOTIFY_CQ": ReqNotifyCqReq => ();
    /// Creates a queue pair.
    CreateQp = 24, "IB_USER_VERBS_CMD_CREATE_QP": CreateQpReq => CreateQpResp, driver both;
    /// Queries a queue pair.
    QueryQp = 25, "IB_USER_VERBS_CMD_QUERY_QP": QueryQpReq => QueryQpResp;
    /// Modifies a queue pair.
    ModifyQp = 26, "IB_USER_VERBS_CMD_MODIFY_QP": ModifyQpReq => ();
    /// Destroys a queue pair.
    DestroyQp = 27, "IB_USER_VERBS_CMD_DESTROY_QP": DestroyQpReq => DestroyQpResp;
    /// Posts sends or rings the doorbell, for drivers that need it.
    PostSend = 28, "IB_USER_VERBS_CMD_POST_SEND": PostSendReq => PostSendResp;
    /// Posts receives, for drivers that need it.
    PostRecv = 29, "IB_USER_VERBS_CMD_POST_RECV": PostRecvReq => PostRecvResp;
    /// Attaches a queue pair to a multicast group.
    AttachMcast = 30, "IB_USER_VERBS_CMD_ATTACH_MCAST": AttachMcastReq => ();
    /// Detaches a queue pair from a multicast group.
    DetachMcast = 31, "IB_USER_VERBS_CMD_DETACH_MCAST": DetachMcastReq => ();
    /// Creates a basic shared receive queue.
    CreateSrq = 32, "IB_USER_VERBS_CMD_CREATE_SRQ": CreateSrqReq => CreateSrqResp, driver both;
    /// Modifies a shared receive queue.
    ModifySrq = 33, "IB_USER_VERBS_CMD_MODIFY_SRQ": ModifySrqReq => (), driver input;
    /// Queries a shared receive queue.
    QuerySrq = 34, "IB_USER_VERBS_CMD_QUERY_SRQ": QuerySrqReq => QuerySrqResp;
    /// Destroys a shared receive queue.
    DestroySrq = 35, "IB_USER_VERBS_CMD_DESTROY_SRQ": DestroySrqReq => DestroySrqResp;
    /// Posts receives to a shared receive queue, for drivers that need it.
    PostSrqRecv = 36, "IB_USER_VERBS_CMD_POST_SRQ_RECV": PostSrqRecvReq => PostSrqRecvResp;
    /// Opens an XRC domain.
    OpenXrcd = 37, "IB_USER_VERBS_CMD_OPEN_XRCD": OpenXrcdReq => OpenXrcdResp, driver both;
    /// Closes an XRC domain.
    CloseXrcd = 38, "IB_USER_VERBS_CMD_CLOSE_XRCD": CloseXrcdReq => ();
    /// Creates a shared receive queue of any type.
    CreateXsrq = 39, "IB_USER_VERBS_CMD_CREATE_XSRQ": CreateXsrqReq => CreateSrqResp, driver both;
    /// Opens an existing XRC target QP.
    OpenQp = 40, "IB_USER_VERBS_CMD_OPEN_QP": OpenQpReq => CreateQpResp, driver both;
}
