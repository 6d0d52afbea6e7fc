//! Driver-specific attributes and payloads of core methods and write commands.

use crate::abi::StructInfo;
use crate::method::{AttributeInfo, MethodInfo};
use crate::write::WriteCommandInfo;

/// The driver payload of write commands and of the core methods that replace them: the bytes of
/// [`UHW_IN`](crate::method::UHW_IN) and [`UHW_OUT`](crate::method::UHW_OUT).
#[derive(Clone, Copy, Debug)]
pub struct DriverPayload {
    /// The write commands.
    pub commands: &'static [&'static WriteCommandInfo],
    /// The methods.
    pub methods: &'static [&'static MethodInfo],
    /// The driver's request, if it has one.
    pub request: Option<&'static StructInfo>,
    /// The driver's response, if it has one.
    pub response: Option<&'static StructInfo>,
}

/// Declares the driver payloads of a driver:
/// `CreateCqReq => CreateCqResp, for [CreateCq, ex::CreateCq] methods [CqCreate];`. `()` means no
/// struct.
macro_rules! driver_payloads {
    ($($request:ty => $response:ty, for [$($command:ty),+] $(methods [$($method:ty),+])?;)*) => {
        /// The driver payloads of write commands and core methods.
        pub const PAYLOADS: &[&$crate::driver::DriverPayload] = &[$(
            &$crate::driver::DriverPayload {
                commands: &[$(&<$command as $crate::write::WriteCommand>::INFO),+],
                methods: &[$($(&<$method as $crate::method::Method>::INFO),+)?],
                request: <$request as $crate::write::OptionalStruct>::INFO,
                response: <$response as $crate::write::OptionalStruct>::INFO,
            },
        )*];
    };
}

/// The driver-specific attributes of one core method.
#[derive(Clone, Copy, Debug)]
pub struct DriverAttributes {
    /// Name of the Rust type of the attributes.
    pub rust: &'static str,
    /// The method.
    pub method: &'static MethodInfo,
    /// The attributes.
    pub attributes: &'static [AttributeInfo],
}

/// Declares driver-specific attributes of core methods: `on CqCreate = uverbs::CqCreate { … }`
/// generates a type `CqCreate`. Its constants are attributes for calls of the core method, each
/// declared as in [`objects!`].
macro_rules! driver_attributes {
    ($(
        $(#[$meta:meta])*
        on $name:ident = $method:ty {$(
            $(#[$ameta:meta])*
            $attr:ident : $kind:ty = $aid:expr, $ac:literal $(since $asince:ident)?, $presence:ident;
        )*}
    )*) => {
        $(
            $(#[$meta])*
            #[derive(Clone, Copy, Debug)]
            pub struct $name;

            impl $name {
                $(
                    $(#[$ameta])*
                    #[doc = concat!("\n\nC: `", $ac, "`, ", stringify!($presence), ".")]
                    #[doc(alias = $ac)]
                    pub const $attr: $crate::method::Attr<$method, $kind> = $crate::method::Attr::new($aid);
                )*

                /// Their descriptions.
                pub const DESCRIPTION: $crate::driver::DriverAttributes = $crate::driver::DriverAttributes {
                    rust: stringify!($name),
                    method: &<$method as $crate::method::Method>::INFO,
                    attributes: &[$(
                        $crate::method::AttributeInfo {
                            rust: stringify!($attr),
                            c: $ac,
                            id: $aid,
                            mandatory: $crate::mandatory!($presence),
                            since: $crate::since!($($asince)?),
                            kind: <$kind as $crate::method::Kind>::KIND,
                        },
                    )*],
                };
            }
        )*

        /// The attributes added to methods of the core.
        pub const ATTRIBUTES: &[&$crate::driver::DriverAttributes] = &[$(&$name::DESCRIPTION),*];
    };
}
