//! The ioctl methods: how one is declared, described and called.
//!
//! A method is a type (`QpCreate`), its attributes are typed constants of it (`QpCreate::PD_HANDLE`), and a
//! [`Call`] accepts only those, each with a value of its own kind. The same declaration yields a [`MethodInfo`] for
//! the decoder, for printing and for generated conformance cases.

use core::marker::PhantomData;

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use crate::abi::{AbiField, EnumInfo, FieldKind, Since};
use crate::ioctl::{Attribute, AttributeFlags, Header};

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
    /// The kernel series that first had it.
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
    /// The kernel series that first had it.
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
    /// The kernel series that first had it.
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

/// A kind of attribute as a type, so that a wrong value does not compile.
pub trait Kind {
    /// Its description.
    const KIND: AttributeKind;
}

macro_rules! object_kinds {
    ($( $(#[$meta:meta])* $name:ident: $variant:ident, $access:ident; )*) => {$(
        $(#[$meta])*
        pub struct $name<O>(PhantomData<O>);
        impl<O: Object> Kind for $name<O> {
            const KIND: AttributeKind =
                AttributeKind::$variant { object: O::ID, access: Access::$access };
        }
    )*};
}

object_kinds! {
    /// The handle of an object that the call makes.
    NewHandle: Handle, New;
    /// The handle of an object that the call uses.
    Handle: Handle, Read;
    /// The handle of an object that the call changes.
    HandleWrite: Handle, Write;
    /// The handle of an object that the call destroys.
    DestroyHandle: Handle, Destroy;
    /// The descriptor of an object that the call makes.
    NewDescriptor: Descriptor, New;
    /// The descriptor of an object that the call uses.
    Descriptor: Descriptor, Read;
}

/// An array of handles, `MIN` to `MAX` of them.
pub struct Handles<O, const MIN: usize, const MAX: usize>(PhantomData<O>);
impl<O: Object, const MIN: usize, const MAX: usize> Kind for Handles<O, MIN, MAX> {
    const KIND: AttributeKind =
        AttributeKind::Handles { object: O::ID, access: Access::Read, minimum: MIN, maximum: MAX };
}

/// A descriptor of a kind that uverbs does not own.
pub struct RawDescriptor;
impl Kind for RawDescriptor {
    const KIND: AttributeKind = AttributeKind::RawDescriptor;
}

macro_rules! payload_kinds {
    ($( $(#[$meta:meta])* $variant:ident: $exact:ident, $bytes:ident, $extensible:ident; )*) => {$(
        $(#[$meta])*
        ///
        /// Exactly one `T`.
        pub struct $exact<T>(PhantomData<T>);
        impl<T: AbiField> Kind for $exact<T> {
            const KIND: AttributeKind = AttributeKind::$variant {
                size: PayloadSize::Exact(size_of::<T>()),
                payload: Some(T::KIND),
            };
        }
        $(#[$meta])*
        ///
        /// `MIN` bytes or more: an array or a driver's blob.
        pub struct $bytes<T, const MIN: usize>(PhantomData<T>);
        impl<T: AbiField, const MIN: usize> Kind for $bytes<T, MIN> {
            const KIND: AttributeKind = AttributeKind::$variant {
                size: PayloadSize::AtLeast(MIN),
                payload: Some(T::KIND),
            };
        }
        $(#[$meta])*
        ///
        /// A struct that grows with the kernel; `MIN` bytes are mandatory.
        pub struct $extensible<T, const MIN: usize>(PhantomData<T>);
        impl<T: AbiField, const MIN: usize> Kind for $extensible<T, MIN> {
            const KIND: AttributeKind = AttributeKind::$variant {
                size: PayloadSize::Extensible { minimum: MIN, known: size_of::<T>() },
                payload: Some(T::KIND),
            };
        }
    )*};
}

payload_kinds! {
    /// Bytes to the kernel.
    Input: In, InSlice, InStruct;
    /// Bytes from the kernel.
    Output: Out, OutSlice, OutStruct;
}

/// Bytes to the kernel: a `T` or a leading part of it, `MIN` bytes or more.
pub struct InPart<T, const MIN: usize>(PhantomData<T>);
impl<T: AbiField, const MIN: usize> Kind for InPart<T, MIN> {
    const KIND: AttributeKind = AttributeKind::Input {
        size: PayloadSize::Within { minimum: MIN, maximum: size_of::<T>() },
        payload: Some(T::KIND),
    };
}

/// A number or the value of an enumeration, passed in the attribute itself.
pub struct Constant<T>(PhantomData<T>);
impl<T: AbiField> Kind for Constant<T> {
    const KIND: AttributeKind = AttributeKind::Constant { size: size_of::<T>(), names: names::<T>() };
}

/// A flag word.
pub struct Flags<T>(PhantomData<T>);
impl<T: AbiField> Kind for Flags<T> {
    const KIND: AttributeKind = AttributeKind::Flags { size: size_of::<T>(), names: names::<T>() };
}

/// An element of an enumeration with a payload of up to 8 bytes.
pub struct Enumeration<T>(PhantomData<T>);
impl<T: AbiField> Kind for Enumeration<T> {
    const KIND: AttributeKind = AttributeKind::Enumeration { names: names::<T>() };
}

const fn names<T: AbiField>() -> Option<&'static EnumInfo> {
    match T::KIND {
        FieldKind::Named(info) => Some(info),
        _ => None,
    }
}

/// An attribute of method `M` that carries a `K`.
pub struct Attr<M, K> {
    id: u16,
    _of: PhantomData<(M, K)>,
}

impl<M, K> Clone for Attr<M, K> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M, K> Copy for Attr<M, K> {}

impl<M, K> Attr<M, K> {
    /// The attribute numbered `id`.
    #[must_use]
    pub const fn new(id: u16) -> Self {
        Self { id, _of: PhantomData }
    }

    /// Its number.
    #[must_use]
    pub const fn id(self) -> u16 {
        self.id
    }
}

/// Number of a driver's input payload.
pub const UHW_IN: u16 = 0x1000;
/// Number of a driver's output payload.
pub const UHW_OUT: u16 = 0x1001;
/// Most attributes of one [`Call`]: the widest method of the ABI with a driver's own.
pub const MAX_ATTRIBUTES: usize = 24;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Buffer {
    header: Header,
    attributes: [Attribute; MAX_ATTRIBUTES],
}

/// A call of method `M`, built on the stack.
///
/// It borrows what it points the kernel at: inputs are read and outputs written while the call is carried out, and
/// neither can be touched before the `Call` is gone.
///
/// Every attribute is marked mandatory, so that a kernel that does not know one refuses the call instead of
/// ignoring it; [`Call::optional`] lifts that from the attribute added last.
pub struct Call<'a, M> {
    buffer: Buffer,
    _borrows: PhantomData<(&'a mut [u8], M)>,
}

impl<'a, M: Method> Call<'a, M> {
    /// A call without attributes, in the namespace of driver `driver_id`.
    #[inline]
    #[must_use]
    pub fn new(driver_id: u32) -> Self {
        let mut buffer = Buffer::new_zeroed();
        buffer.header.object_id = M::INFO.object;
        buffer.header.method_id = M::INFO.id;
        buffer.header.driver_id = driver_id;
        buffer.header.length = size_of::<Header>() as u16;
        Self { buffer, _borrows: PhantomData }
    }

    #[inline]
    fn push(&mut self, id: u16, len: u16, data: u64) -> &mut Self {
        let n = usize::from(self.buffer.header.num_attrs);
        self.buffer.attributes[n] =
            Attribute { attr_id: id, len, flags: AttributeFlags::MANDATORY, attr_data: 0, data };
        self.buffer.header.num_attrs += 1;
        self.buffer.header.length += size_of::<Attribute>() as u16;
        self
    }

    fn find(&self, id: u16) -> Option<&Attribute> {
        let n = usize::from(self.buffer.header.num_attrs);
        self.buffer.attributes[..n].iter().find(|attribute| attribute.attr_id == id)
    }

    /// Lets the kernel ignore the attribute added last if it does not know it.
    pub fn optional(&mut self) -> &mut Self {
        if let Some(last) = usize::from(self.buffer.header.num_attrs).checked_sub(1) {
            self.buffer.attributes[last].flags = AttributeFlags::empty();
        }
        self
    }

    /// Asks for a new object; its number is [`Call::made`] afterwards.
    pub fn make<O: Object>(&mut self, attr: Attr<M, NewHandle<O>>) -> &mut Self {
        self.push(attr.id, 0, 0)
    }

    /// Asks for a new object behind a descriptor; it is [`Call::made_descriptor`] afterwards.
    pub fn make_descriptor<O: Object>(&mut self, attr: Attr<M, NewDescriptor<O>>) -> &mut Self {
        self.push(attr.id, 0, 0)
    }

    /// Names an object to use.
    pub fn handle<O: Object>(&mut self, attr: Attr<M, Handle<O>>, handle: u32) -> &mut Self {
        self.push(attr.id, 0, u64::from(handle))
    }

    /// Names an object to change.
    pub fn handle_write<O: Object>(&mut self, attr: Attr<M, HandleWrite<O>>, handle: u32) -> &mut Self {
        self.push(attr.id, 0, u64::from(handle))
    }

    /// Names the object to destroy.
    pub fn destroy<O: Object>(&mut self, attr: Attr<M, DestroyHandle<O>>, handle: u32) -> &mut Self {
        self.push(attr.id, 0, u64::from(handle))
    }

    /// Names an object by its descriptor.
    pub fn descriptor<O: Object>(&mut self, attr: Attr<M, Descriptor<O>>, fd: i32) -> &mut Self {
        self.push(attr.id, 0, i64::from(fd) as u64)
    }

    /// Passes a foreign descriptor.
    pub fn raw_descriptor(&mut self, attr: Attr<M, RawDescriptor>, fd: i32) -> &mut Self {
        self.push(attr.id, 0, i64::from(fd) as u64)
    }

    /// Passes one value; up to 8 bytes travel in the attribute itself.
    pub fn input<T>(&mut self, attr: Attr<M, In<T>>, value: &'a T) -> &mut Self
    where
        T: AbiField + IntoBytes + Immutable,
    {
        self.input_bytes(attr.id, value.as_bytes())
    }

    /// Passes a growing struct.
    pub fn input_struct<T, const MIN: usize>(
        &mut self,
        attr: Attr<M, InStruct<T, MIN>>,
        value: &'a T,
    ) -> &mut Self
    where
        T: AbiField + IntoBytes + Immutable,
    {
        self.input_bytes(attr.id, value.as_bytes())
    }

    /// Passes a struct that the kernel takes leading parts of too.
    pub fn input_part<T, const MIN: usize>(
        &mut self,
        attr: Attr<M, InPart<T, MIN>>,
        value: &'a T,
    ) -> &mut Self
    where
        T: AbiField + IntoBytes + Immutable,
    {
        self.input_bytes(attr.id, value.as_bytes())
    }

    /// Passes an array; of more than 65,535 bytes the kernel is told of the elements that fit.
    pub fn input_slice<T, const MIN: usize>(
        &mut self,
        attr: Attr<M, InSlice<T, MIN>>,
        values: &'a [T],
    ) -> &mut Self
    where
        T: AbiField + IntoBytes + Immutable,
    {
        let fits = usize::from(u16::MAX) / size_of::<T>().max(1);
        self.input_bytes(attr.id, values[..values.len().min(fits)].as_bytes())
    }

    /// Takes one value.
    pub fn output<T>(&mut self, attr: Attr<M, Out<T>>, value: &'a mut T) -> &mut Self
    where
        T: AbiField + FromBytes + IntoBytes,
    {
        self.output_bytes(attr.id, value.as_mut_bytes())
    }

    /// Takes a growing struct; a kernel that knows less of it leaves the rest zero.
    pub fn output_struct<T, const MIN: usize>(
        &mut self,
        attr: Attr<M, OutStruct<T, MIN>>,
        value: &'a mut T,
    ) -> &mut Self
    where
        T: AbiField + FromBytes + IntoBytes,
    {
        self.output_bytes(attr.id, value.as_mut_bytes())
    }

    /// Takes an array; of more than 65,535 bytes the kernel is told of the elements that fit.
    pub fn output_slice<T, const MIN: usize>(
        &mut self,
        attr: Attr<M, OutSlice<T, MIN>>,
        values: &'a mut [T],
    ) -> &mut Self
    where
        T: AbiField + FromBytes + IntoBytes,
    {
        let fits = values.len().min(usize::from(u16::MAX) / size_of::<T>().max(1));
        self.output_bytes(attr.id, values[..fits].as_mut_bytes())
    }

    /// Passes a number or the value of an enumeration.
    pub fn constant<T: Into<u64>>(&mut self, attr: Attr<M, Constant<T>>, value: T) -> &mut Self {
        self.push(attr.id, 8, value.into())
    }

    /// Passes a flag word.
    pub fn flags<T: Into<u64>>(&mut self, attr: Attr<M, Flags<T>>, value: T) -> &mut Self {
        self.push(attr.id, 8, value.into())
    }

    /// Passes an array of handles.
    pub fn handles<O: Object, const MIN: usize, const MAX: usize>(
        &mut self,
        attr: Attr<M, Handles<O, MIN, MAX>>,
        handles: &'a [u32],
    ) -> &mut Self {
        self.input_bytes(attr.id, handles.as_bytes())
    }

    /// Passes an element of an enumeration with the payload that the element asks for, which may be empty.
    pub fn enumeration<T: Into<u64>>(
        &mut self,
        attr: Attr<M, Enumeration<T>>,
        element: T,
        payload: &'a [u8],
    ) -> &mut Self {
        let last = usize::from(self.buffer.header.num_attrs);
        self.input_bytes(attr.id, payload);
        self.buffer.attributes[last].attr_data = u16::from_ne_bytes([element.into() as u8, 0]);
        self
    }

    #[inline]
    fn input_bytes(&mut self, id: u16, bytes: &'a [u8]) -> &mut Self {
        if bytes.len() <= 8 {
            let mut data = [0; 8];
            data[..bytes.len()].copy_from_slice(bytes);
            self.push(id, bytes.len() as u16, u64::from_ne_bytes(data))
        } else {
            self.push(
                id,
                bytes.len().min(usize::from(u16::MAX)) as u16,
                bytes.as_ptr().expose_provenance() as u64,
            )
        }
    }

    #[inline]
    fn output_bytes(&mut self, id: u16, bytes: &'a mut [u8]) -> &mut Self {
        let len = bytes.len().min(usize::from(u16::MAX)) as u16;
        self.push(id, len, bytes.as_mut_ptr().expose_provenance() as u64)
    }

    /// The handle of the object that the call made.
    #[must_use]
    pub fn made<O: Object>(&self, attr: Attr<M, NewHandle<O>>) -> u32 {
        self.find(attr.id).map_or(0, |attribute| attribute.data as u32)
    }

    /// The number of the descriptor that the call made; the caller owns it from here.
    #[must_use]
    pub fn made_descriptor<O: Object>(&self, attr: Attr<M, NewDescriptor<O>>) -> i32 {
        self.find(attr.id).map_or(-1, |attribute| attribute.data as i32)
    }

    /// Whether the kernel wrote the output attribute.
    #[must_use]
    pub fn wrote<K: Kind>(&self, attr: Attr<M, K>) -> bool {
        self.find(attr.id).is_some_and(|attribute| attribute.flags.contains(AttributeFlags::VALID_OUTPUT))
    }

    /// The call as the kernel reads it.
    #[inline]
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.buffer.as_bytes()[..usize::from(self.buffer.header.length)]
    }

    /// The call as the kernel reads and writes it.
    #[inline]
    #[must_use]
    pub fn as_mut_bytes(&mut self) -> &mut [u8] {
        let length = usize::from(self.buffer.header.length);
        &mut self.buffer.as_mut_bytes()[..length]
    }
}

impl<'a, M: DriverPayload> Call<'a, M> {
    /// Passes the driver's own request.
    pub fn driver_input(&mut self, bytes: &'a [u8]) -> &mut Self {
        self.input_bytes(UHW_IN, bytes)
    }

    /// Takes the driver's own response.
    pub fn driver_output(&mut self, bytes: &'a mut [u8]) -> &mut Self {
        self.output_bytes(UHW_OUT, bytes)
    }
}

/// Declares object classes with their methods and attributes.
///
/// `object Qp = 4, "UVERBS_OBJECT_QP" { method QpCreate = 0, "UVERBS_METHOD_QP_CREATE" with driver_payload {
/// HANDLE: NewHandle<Qp> = 0, "UVERBS_ATTR_CREATE_QP_HANDLE", mandatory; … } }`, each C name followed by
/// `since V7_2` where a later kernel first had it. A driver's additions to a core class are declared as an object of
/// their own with the core class's number.
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
