//! The write commands: the ABI's older half, reached here through the ioctl method `INVOKE_WRITE` only.
//!
//! Each command is a type with a request and a response struct. A command of the extended kind has bit 31 set in
//! its number.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::abi::{Since, StructInfo};

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

/// Declares write commands: `AllocPd = 3, "IB_USER_VERBS_CMD_ALLOC_PD": AllocPdReq => AllocPdResp, driver both;`
/// with `EXTENDED` before the number for the extended kind, `()` for an absent struct, and `driver input`,
/// `driver output` or `driver both` where a driver's payload may follow.
macro_rules! write_commands {
    ($(
        $(#[$meta:meta])*
        $name:ident = $($extended:ident)? $number:literal, $c:literal $(since $since:ident)? :
            $request:ty => $response:ty $(, driver $direction:ident)?;
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
