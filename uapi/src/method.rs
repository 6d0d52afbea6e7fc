//! The ioctl methods: how one is declared, described and called.
//!
//! A method is a type (`QpCreate`), its attributes are typed constants of it
//! (`QpCreate::PD_HANDLE`), and a [`Call`] accepts only those, each with a value of its own kind.
//! The same declaration yields a [`MethodInfo`] for the decoder, for printing and for generated
//! conformance cases.

mod call;
mod kinds;

use crate::abi::{EnumInfo, FieldKind, Since};

pub use call::{Attr, Call, MAX_ATTRIBUTES};
pub use kinds::{
    Constant, Descriptor, DestroyHandle, Enumeration, Flags, Handle, HandleWrite, Handles, In, InPart,
    InSlice, InStruct, Kind, NewDescriptor, NewHandle, Out, OutSlice, OutStruct, RawDescriptor,
};

/// An object class of the ABI.
pub trait Object {
    /// Its number.
    const ID: u16;
    /// Its description.
    const INFO: ObjectInfo;
}

/// A method of an object class.
pub trait Method {
    /// The class it belongs to.
    type Object: Object;
    /// Its description.
    const INFO: MethodInfo;
}

/// A method that carries a driver's own payload beside its attributes (`UHW_IN`, `UHW_OUT`).
pub trait DriverPayload: Method {}

/// What is known of an object class.
#[derive(Clone, Copy, Debug)]
pub struct ObjectInfo {
    /// Its name in Rust.
    pub rust: &'static str,
    /// Its name in C.
    pub c: &'static str,
    /// Its number; bit 12 marks a driver's own.
    pub id: u16,
    /// First kernel series that has it.
    pub since: Since,
    /// Its methods; for a driver's addition to a core class, the added ones.
    pub methods: &'static [&'static MethodInfo],
}

/// What is known of a method.
#[derive(Clone, Copy, Debug)]
pub struct MethodInfo {
    /// Its name in Rust.
    pub rust: &'static str,
    /// Its name in C.
    pub c: &'static str,
    /// Its number within the class; bit 12 marks a driver's own.
    pub id: u16,
    /// The number of its class.
    pub object: u16,
    /// First kernel series that has it.
    pub since: Since,
    /// Whether it takes a driver's payload.
    pub driver_payload: bool,
    /// Its attributes.
    pub attributes: &'static [AttributeInfo],
}

/// What is known of an attribute.
#[derive(Clone, Copy, Debug)]
pub struct AttributeInfo {
    /// Its name in Rust.
    pub rust: &'static str,
    /// Its name in C.
    pub c: &'static str,
    /// Its number within the method.
    pub id: u16,
    /// Whether the method fails with `EINVAL` without it.
    pub mandatory: bool,
    /// First kernel series that has it.
    pub since: Since,
    /// What it carries.
    pub kind: AttributeKind,
}

/// What a call may do with an object that an attribute names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The object is made, its handle is an output.
    New,
    /// The object is used.
    Read,
    /// The object is changed and locked meanwhile.
    Write,
    /// The object is destroyed.
    Destroy,
}

/// The size that the kernel accepts for a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadSize {
    /// Exactly that many bytes.
    Exact(usize),
    /// That many bytes or more.
    AtLeast(usize),
    /// A struct or a leading part of it.
    Within {
        /// Fewest bytes.
        minimum: usize,
        /// Most bytes: those of the whole struct.
        maximum: usize,
    },
    /// A struct that grows: at least `minimum` bytes; beyond `known` bytes an input must be zero.
    Extensible {
        /// Bytes up to the end of the last mandatory field.
        minimum: usize,
        /// Bytes of the struct as declared here.
        known: usize,
    },
}

/// What an attribute carries.
#[derive(Clone, Copy, Debug)]
pub enum AttributeKind {
    /// A handle number of an object of class `object` in this open file.
    Handle {
        /// The class's number.
        object: u16,
        /// What is done with it.
        access: Access,
    },
    /// A file descriptor that stands for an object of class `object`.
    Descriptor {
        /// The class's number.
        object: u16,
        /// What is done with it.
        access: Access,
    },
    /// An array of 32-bit handles.
    Handles {
        /// The class's number.
        object: u16,
        /// What is done with each.
        access: Access,
        /// Fewest elements.
        minimum: usize,
        /// Most elements.
        maximum: usize,
    },
    /// A file descriptor of another kind (a dma-buf, say), as a plain number.
    RawDescriptor,
    /// Bytes to the kernel.
    Input {
        /// Accepted sizes.
        size: PayloadSize,
        /// How to read them, where that is known.
        payload: Option<FieldKind>,
    },
    /// Bytes from the kernel.
    Output {
        /// Accepted sizes.
        size: PayloadSize,
        /// How to read them, where that is known.
        payload: Option<FieldKind>,
    },
    /// A number of at most that many bytes, with names where it is an enumeration.
    Constant {
        /// Bytes of the number.
        size: usize,
        /// Its named values.
        names: Option<&'static EnumInfo>,
    },
    /// A flag word of 4 or 8 bytes.
    Flags {
        /// Bytes of the widest word.
        size: usize,
        /// Its named bits.
        names: Option<&'static EnumInfo>,
    },
    /// A number chosen by the attribute's element id, with a payload.
    Enumeration {
        /// The element's names.
        names: Option<&'static EnumInfo>,
    },
}

/// Number of a driver's input payload.
pub const UHW_IN: u16 = 0x1000;
/// Number of a driver's output payload.
pub const UHW_OUT: u16 = 0x1001;

/// Declares object classes with their methods and attributes.
///
/// `object Qp = 4, "UVERBS_OBJECT_QP" { method QpCreate = 0, "UVERBS_METHOD_QP_CREATE" with driver_payload { HANDLE: NewHandle<Qp> = 0, "UVERBS_ATTR_CREATE_QP_HANDLE", mandatory; … } }`,
/// each C name followed by `since V7_2` where a later kernel first had it. A driver's additions to
/// a core class are declared as an object of their own with the core class's number.
#[macro_export]
macro_rules! objects {
    ($(
        $(#[$ometa:meta])*
        object $object:ident = $oid:expr, $oc:literal $(since $osince:ident)? {$(
            $(#[$mmeta:meta])*
            method $method:ident = $mid:expr, $mc:literal $(since $msince:ident)? $(with $payload:ident)? {$(
                $(#[$ameta:meta])*
                $attr:ident : $kind:ty = $aid:expr, $ac:literal $(since $asince:ident)?, $presence:ident;
            )*}
        )*}
    )*) => {
        $(
            $(#[$ometa])*
            #[doc = concat!("\n\nC: `", $oc, "`.")]
            #[doc(alias = $oc)]
            #[derive(Clone, Copy, Debug)]
            pub struct $object;

            impl $crate::method::Object for $object {
                const ID: u16 = $oid;
                const INFO: $crate::method::ObjectInfo = $crate::method::ObjectInfo {
                    rust: stringify!($object),
                    c: $oc,
                    id: $oid,
                    since: $crate::since!($($osince)?),
                    methods: &[$(&<$method as $crate::method::Method>::INFO),*],
                };
            }

            $(
                $(#[$mmeta])*
                #[doc = concat!("\n\nC: `", $mc, "`.")]
                #[doc(alias = $mc)]
                #[derive(Clone, Copy, Debug)]
                pub struct $method;

                impl $method {
                    $(
                        $(#[$ameta])*
                        #[doc = concat!("\n\nC: `", $ac, "`, ", stringify!($presence), ".")]
                        #[doc(alias = $ac)]
                        pub const $attr: $crate::method::Attr<Self, $kind> = $crate::method::Attr::new($aid);
                    )*
                }

                impl $crate::method::Method for $method {
                    type Object = $object;
                    const INFO: $crate::method::MethodInfo = $crate::method::MethodInfo {
                        rust: stringify!($method),
                        c: $mc,
                        id: $mid,
                        object: $oid,
                        since: $crate::since!($($msince)?),
                        driver_payload: $crate::driver_payload!($($payload)?),
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

                $($crate::driver_payload!($method $payload);)?
            )*
        )*

        /// The object classes declared here.
        pub const OBJECTS: &[&$crate::method::ObjectInfo] =
            &[$(&<$object as $crate::method::Object>::INFO),*];
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! driver_payload {
    () => {
        false
    };
    (driver_payload) => {
        true
    };
    ($method:ident driver_payload) => {
        impl $crate::method::DriverPayload for $method {}
    };
}

#[doc(hidden)]
#[macro_export]
macro_rules! mandatory {
    (mandatory) => {
        true
    };
    (optional) => {
        false
    };
}
