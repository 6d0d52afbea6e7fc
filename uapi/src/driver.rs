//! Driver-specific attributes of core methods.

use crate::method::{AttributeInfo, MethodInfo};

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
