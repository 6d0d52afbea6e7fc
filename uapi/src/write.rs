//! The write commands: the ABI's older half, reached here through the ioctl method `INVOKE_WRITE`
//! only.
//!
//! Each command is a type with a request and a response struct. A command of the extended kind has
//! bit 31 set in its number.
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
use crate::uverbs::InvokeWrite;
use structs::*;

/// Bit of the command number that marks the extended kind.
pub const EXTENDED: u32 = 1 << 31;

/// A write command that the kernel has a handler for.
pub trait WriteCommand {
    /// What the kernel reads.
    type Request: IntoBytes + Immutable + KnownLayout;
    /// What the kernel writes; `()` where it writes nothing.
    type Response: FromBytes + IntoBytes + KnownLayout;
    /// Its description.
    const INFO: WriteCommandInfo;
}

/// What is known of a write command.
#[derive(Clone, Copy, Debug)]
pub struct WriteCommandInfo {
    /// Its name in Rust.
    pub rust: &'static str,
    /// Its name in C.
    pub c: &'static str,
    /// Its number, with [`EXTENDED`] for the extended kind.
    pub number: u32,
    /// The kernel series that first had it.
    pub since: Since,
    /// The request.
    pub request: Option<&'static StructInfo>,
    /// The response.
    pub response: Option<&'static StructInfo>,
    /// Bytes of the request without which the kernel fails with `ENOSPC`.
    pub request_minimum: usize,
    /// Room for the response without which the kernel fails with `ENOSPC`.
    pub response_minimum: usize,
    /// Whether a driver's request may follow.
    pub driver_input: bool,
    /// Whether a driver's response may follow.
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

/// A call that carries out command `C`; [`invoke_without_response`] is for those without a
/// response.
///
/// A driver's own payloads are added with [`Call::driver_input`] and [`Call::driver_output`].
#[must_use]
pub fn invoke<'a, C: WriteCommand>(
    driver_id: u32,
    request: &'a C::Request,
    response: &'a mut C::Response,
) -> Call<'a, InvokeWrite> {
    invoke_bytes::<C>(driver_id, request.as_bytes(), response.as_mut_bytes())
}

/// A call that carries out a command to which the kernel answers nothing.
#[must_use]
pub fn invoke_without_response<C: WriteCommand<Response = ()>>(
    driver_id: u32,
    request: &C::Request,
) -> Call<'_, InvokeWrite> {
    invoke_bytes::<C>(driver_id, request.as_bytes(), &mut [])
}

/// [`invoke`] for requests that go on after their struct, and for the wrong sizes that tests of the
/// kernel want.
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

/// Bytes of a struct up to the end of its field `last`.
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
/// `AllocPd = 3, "IB_USER_VERBS_CMD_ALLOC_PD": AllocPdReq => AllocPdResp, driver both;` with
/// `EXTENDED` before the number for the extended kind, `()` for an absent struct, and
/// `driver input`, `driver output` or `driver both` where a driver's payload may follow.
/// `grows reserved => response_length` names the last fields that the kernel insists on where those
/// are not the last of the structs.
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
pub mod structs;
pub mod types;

write_commands! {
    /// Makes the open file's context and its channel of asynchronous events.
    GetContext = 0, "IB_USER_VERBS_CMD_GET_CONTEXT": GetContextReq => GetContextResp, driver both;
    /// Reads the device's attributes.
    QueryDevice = 1, "IB_USER_VERBS_CMD_QUERY_DEVICE": QueryDeviceReq => QueryDeviceResp;
    /// Reads a port's attributes.
    QueryPort = 2, "IB_USER_VERBS_CMD_QUERY_PORT": QueryPortReq => QueryPortResp;
    /// Makes a protection domain.
    AllocPd = 3, "IB_USER_VERBS_CMD_ALLOC_PD": AllocPdReq => AllocPdResp, driver both;
    /// Gives a protection domain back.
    DeallocPd = 4, "IB_USER_VERBS_CMD_DEALLOC_PD": DeallocPdReq => ();
    /// Makes an address handle.
    CreateAh = 5, "IB_USER_VERBS_CMD_CREATE_AH": CreateAhReq => CreateAhResp, driver both;
    /// Gives an address handle back.
    DestroyAh = 8, "IB_USER_VERBS_CMD_DESTROY_AH": DestroyAhReq => ();
    /// Registers memory.
    RegMr = 9, "IB_USER_VERBS_CMD_REG_MR": RegMrReq => RegMrResp, driver both;
    /// Changes a registration.
    ReregMr = 11, "IB_USER_VERBS_CMD_REREG_MR": ReregMrReq => ReregMrResp, driver both;
    /// Gives a memory region back.
    DeregMr = 13, "IB_USER_VERBS_CMD_DEREG_MR": DeregMrReq => ();
    /// Makes a memory window.
    AllocMw = 14, "IB_USER_VERBS_CMD_ALLOC_MW": AllocMwReq => AllocMwResp, driver both;
    /// Gives a memory window back.
    DeallocMw = 16, "IB_USER_VERBS_CMD_DEALLOC_MW": DeallocMwReq => ();
    /// Makes a channel of completion events.
    CreateCompChannel = 17, "IB_USER_VERBS_CMD_CREATE_COMP_CHANNEL":
        CreateCompChannelReq => CreateCompChannelResp;
    /// Makes a completion queue.
    CreateCq = 18, "IB_USER_VERBS_CMD_CREATE_CQ": CreateCqReq => CreateCqResp, driver both;
    /// Resizes a completion queue.
    ResizeCq = 19, "IB_USER_VERBS_CMD_RESIZE_CQ": ResizeCqReq => ResizeCqResp, driver both;
    /// Gives a completion queue back.
    DestroyCq = 20, "IB_USER_VERBS_CMD_DESTROY_CQ": DestroyCqReq => DestroyCqResp;
    /// Takes completions, for drivers that ask for it.
    PollCq = 21, "IB_USER_VERBS_CMD_POLL_CQ": PollCqReq => PollCqResp;
    /// Arms a completion queue, for drivers that ask for it.
    ReqNotifyCq = 23, "IB_USER_VERBS_CMD_REQ_NOTIFY_CQ": ReqNotifyCqReq => ();
    /// Makes a queue pair.
    CreateQp = 24, "IB_USER_VERBS_CMD_CREATE_QP": CreateQpReq => CreateQpResp, driver both;
    /// Reads a queue pair's attributes.
    QueryQp = 25, "IB_USER_VERBS_CMD_QUERY_QP": QueryQpReq => QueryQpResp;
    /// Changes a queue pair.
    ModifyQp = 26, "IB_USER_VERBS_CMD_MODIFY_QP": ModifyQpReq => ();
    /// Gives a queue pair back.
    DestroyQp = 27, "IB_USER_VERBS_CMD_DESTROY_QP": DestroyQpReq => DestroyQpResp;
    /// Posts sends or rings the doorbell, for drivers that ask for it.
    PostSend = 28, "IB_USER_VERBS_CMD_POST_SEND": PostSendReq => PostSendResp;
    /// Posts receives, for drivers that ask for it.
    PostRecv = 29, "IB_USER_VERBS_CMD_POST_RECV": PostRecvReq => PostRecvResp;
    /// Lets a queue pair join a multicast group.
    AttachMcast = 30, "IB_USER_VERBS_CMD_ATTACH_MCAST": AttachMcastReq => ();
    /// Lets a queue pair leave a multicast group.
    DetachMcast = 31, "IB_USER_VERBS_CMD_DETACH_MCAST": DetachMcastReq => ();
    /// Makes a basic shared receive queue.
    CreateSrq = 32, "IB_USER_VERBS_CMD_CREATE_SRQ": CreateSrqReq => CreateSrqResp, driver both;
    /// Changes a shared receive queue.
    ModifySrq = 33, "IB_USER_VERBS_CMD_MODIFY_SRQ": ModifySrqReq => (), driver input;
    /// Reads a shared receive queue's attributes.
    QuerySrq = 34, "IB_USER_VERBS_CMD_QUERY_SRQ": QuerySrqReq => QuerySrqResp;
    /// Gives a shared receive queue back.
    DestroySrq = 35, "IB_USER_VERBS_CMD_DESTROY_SRQ": DestroySrqReq => DestroySrqResp;
    /// Posts receives to a shared queue, for drivers that ask for it.
    PostSrqRecv = 36, "IB_USER_VERBS_CMD_POST_SRQ_RECV": PostSrqRecvReq => PostSrqRecvResp;
    /// Opens a domain of extended reliable connections.
    OpenXrcd = 37, "IB_USER_VERBS_CMD_OPEN_XRCD": OpenXrcdReq => OpenXrcdResp, driver both;
    /// Closes it.
    CloseXrcd = 38, "IB_USER_VERBS_CMD_CLOSE_XRCD": CloseXrcdReq => ();
    /// Makes a shared receive queue of any type.
    CreateXsrq = 39, "IB_USER_VERBS_CMD_CREATE_XSRQ": CreateXsrqReq => CreateSrqResp, driver both;
    /// Shares an XRC target that exists.
    OpenQp = 40, "IB_USER_VERBS_CMD_OPEN_QP": OpenQpReq => CreateQpResp, driver both;
}
