//! Declarations, descriptions and calls of ioctl methods.
//!
//! A method is a type (`QpCreate`). Its attributes are typed constants of it
//! (`QpCreate::PD_HANDLE`). A [`Call`] accepts only the attributes of its method, each with a value
//! of its type. The same declaration generates a [`MethodInfo`] for the decoder, for printing and
//! for the conformance tests.

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
    /// Its object class.
    type Object: Object;
    /// Its description.
    const INFO: MethodInfo;
}

/// A method with driver payloads (`UHW_IN`, `UHW_OUT`).
pub trait DriverPayload: Method {}

/// Description of an object class.
#[derive(Clone, Copy, Debug)]
pub struct ObjectInfo {
    /// Its name in Rust.
    pub rust: &'static str,
    /// Its name in C.
    pub c: &'static str,
    /// Its id; bit 12 is set for driver-specific classes.
    pub id: u16,
    /// First kernel series that has it.
    pub since: Since,
    /// Its methods; for a driver's addition to a core class, the added methods.
    pub methods: &'static [&'static MethodInfo],
}

/// Description of a method.
#[derive(Clone, Copy, Debug)]
pub struct MethodInfo {
    /// Its name in Rust.
    pub rust: &'static str,
    /// Its name in C.
    pub c: &'static str,
    /// Its id within the class; bit 12 is set for driver-specific methods.
    pub id: u16,
    /// The id of its class.
    pub object: u16,
    /// First kernel series that has it.
    pub since: Since,
    /// Whether it has driver payloads.
    pub driver_payload: bool,
    /// Its attributes.
    pub attributes: &'static [AttributeInfo],
}

impl MethodInfo {
    /// Whether this describes the method `M`.
    ///
    /// ```
    /// use bareverbs_uapi::method::Method;
    /// use bareverbs_uapi::uverbs::{QueryMr, RegMr};
    ///
    /// assert!(QueryMr::INFO.is::<QueryMr>() && !QueryMr::INFO.is::<RegMr>());
    /// ```
    #[must_use]
    pub const fn is<M: Method>(&self) -> bool {
        self.object == M::INFO.object && self.id == M::INFO.id
    }

    /// Whether the method is a query by its attributes: they are handles of objects that the method
    /// only uses, numbers of up to 8 bytes, and outputs.
    ///
    /// A query creates, modifies and destroys no object, gets no address and no descriptor, and
    /// writes only to its outputs. It may reserve an offset for `mmap`. A method with driver
    /// payloads is not a query.
    ///
    /// ```
    /// use bareverbs_uapi::method::Method;
    /// use bareverbs_uapi::uverbs::{AdviseMr, GetContext, QueryGidTable, QueryMr};
    ///
    /// assert!(QueryMr::INFO.is_query() && QueryGidTable::INFO.is_query());
    /// assert!(!AdviseMr::INFO.is_query() && !GetContext::INFO.is_query());
    /// ```
    #[must_use]
    pub const fn is_query(&self) -> bool {
        let mut i = 0;
        while i < self.attributes.len() {
            if !self.attributes[i].kind.is_harmless() {
                return false;
            }
            i += 1;
        }
        !self.driver_payload && !self.attributes.is_empty()
    }
}

/// Description of an attribute.
#[derive(Clone, Copy, Debug)]
pub struct AttributeInfo {
    /// Its name in Rust.
    pub rust: &'static str,
    /// Its name in C.
    pub c: &'static str,
    /// Its id within the method.
    pub id: u16,
    /// Whether it is mandatory: the method fails with `EINVAL` without it.
    pub mandatory: bool,
    /// First kernel series that has it.
    pub since: Since,
    /// Its type.
    pub kind: AttributeKind,
}

/// Access of a call to an object of an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// The object is created; its handle is an output.
    New,
    /// The object is used.
    Read,
    /// The object is modified, and locked during the call.
    Write,
    /// The object is destroyed.
    Destroy,
}

/// Payload sizes that the kernel accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadSize {
    /// Exactly that many bytes.
    Exact(usize),
    /// That many bytes or more.
    AtLeast(usize),
    /// A struct or a prefix of it.
    Within {
        /// Minimum size in bytes.
        minimum: usize,
        /// Maximum size in bytes: the size of the struct.
        maximum: usize,
    },
    /// An extensible struct of at least `minimum` bytes. Input beyond `known` bytes must be zero.
    Extensible {
        /// Size up to the end of the last mandatory field in bytes.
        minimum: usize,
        /// Size of the struct as declared here in bytes.
        known: usize,
    },
}

/// Type of an attribute.
#[derive(Clone, Copy, Debug)]
pub enum AttributeKind {
    /// A handle of an object of class `object` in this open file.
    Handle {
        /// The id of the class.
        object: u16,
        /// The access to it.
        access: Access,
    },
    /// A file descriptor of an object of class `object`.
    Descriptor {
        /// The id of the class.
        object: u16,
        /// The access to it.
        access: Access,
    },
    /// An array of 32-bit handles.
    Handles {
        /// The id of the class.
        object: u16,
        /// The access to each object.
        access: Access,
        /// Minimum number of elements.
        minimum: usize,
        /// Maximum number of elements.
        maximum: usize,
    },
    /// A file descriptor that is not a uverbs object, such as a dma-buf.
    RawDescriptor,
    /// Input bytes.
    Input {
        /// Accepted sizes.
        size: PayloadSize,
        /// Interpretation of the bytes, if known.
        payload: Option<FieldKind>,
    },
    /// Output bytes.
    Output {
        /// Accepted sizes.
        size: PayloadSize,
        /// Interpretation of the bytes, if known.
        payload: Option<FieldKind>,
    },
    /// A constant; named if it is an enumeration.
    Constant {
        /// Maximum size of the number in bytes.
        size: usize,
        /// Its named values.
        names: Option<&'static EnumInfo>,
    },
    /// A flag word of 4 or 8 bytes.
    Flags {
        /// Maximum size of the word in bytes.
        size: usize,
        /// Its named bits.
        names: Option<&'static EnumInfo>,
    },
    /// An enumeration element (the element id of the attribute) with a payload.
    Enumeration {
        /// The names of the elements.
        names: Option<&'static EnumInfo>,
    },
}

impl AttributeKind {
    /// The kind without named values and without the interpretation of its bytes.
    pub(crate) const fn without_names(self) -> Self {
        match self {
            Self::Input { size, .. } => Self::Input { size, payload: None },
            Self::Output { size, .. } => Self::Output { size, payload: None },
            Self::Constant { size, .. } => Self::Constant { size, names: None },
            Self::Flags { size, .. } => Self::Flags { size, names: None },
            Self::Enumeration { .. } => Self::Enumeration { names: None },
            Self::Handle { .. } | Self::Descriptor { .. } | Self::Handles { .. } | Self::RawDescriptor => {
                self
            }
        }
    }

    /// Whether a method with such attributes only can be a query.
    const fn is_harmless(self) -> bool {
        match self {
            Self::Handle { access: Access::Read, .. }
            | Self::Output { .. }
            | Self::Constant { .. }
            | Self::Flags { .. } => true,
            Self::Input { size: PayloadSize::Exact(bytes), payload: Some(kind) } => {
                bytes <= 8 && matches!(kind, FieldKind::Unsigned(_) | FieldKind::Named(_))
            }
            _ => false,
        }
    }
}

/// Attribute id of the driver's input payload.
pub const UHW_IN: u16 = 0x1000;
/// Attribute id of the driver's output payload.
pub const UHW_OUT: u16 = 0x1001;

/// Declares object classes with their methods and attributes.
///
/// ```text
/// object Qp = 4, "UVERBS_OBJECT_QP" {
///     method QpCreate = 0, "UVERBS_METHOD_QP_CREATE" with driver_payload {
///         HANDLE: NewHandle<Qp> = 0, "UVERBS_ATTR_CREATE_QP_HANDLE", mandatory;
///         …
///     }
/// }
/// ```
///
/// `since V7_2` after a C name is the first kernel series that has it. A driver's additions to a
/// core class are declared as a separate object with the id of the core class.
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
