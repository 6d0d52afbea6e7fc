use core::marker::PhantomData;

use super::{Access, AttributeKind, Object, PayloadSize};
use crate::abi::{AbiField, EnumInfo, FieldKind};

/// An attribute type, as a Rust type. Values of a wrong type do not compile.
pub trait Kind {
    /// Its description.
    const KIND: AttributeKind;
}

macro_rules! object_kinds {
    ($( $(#[$meta:meta])* $name:ident: $variant:ident, $access:ident; )*) => {$(
        $(#[$meta])*
        #[derive(Debug)]
        pub struct $name<O>(PhantomData<O>);
        impl<O: Object> Kind for $name<O> {
            const KIND: AttributeKind =
                AttributeKind::$variant { object: O::ID, access: Access::$access };
        }
    )*};
}

object_kinds! {
    /// The handle of an object that the call creates.
    NewHandle: Handle, New;
    /// The handle of an object that the call uses.
    Handle: Handle, Read;
    /// The handle of an object that the call modifies.
    HandleWrite: Handle, Write;
    /// The handle of an object that the call destroys.
    DestroyHandle: Handle, Destroy;
    /// The descriptor of an object that the call creates.
    NewDescriptor: Descriptor, New;
    /// The descriptor of an object that the call uses.
    Descriptor: Descriptor, Read;
}

/// An array of handles, `MIN` to `MAX` of them.
#[derive(Debug)]
pub struct Handles<O, const MIN: usize, const MAX: usize>(PhantomData<O>);
impl<O: Object, const MIN: usize, const MAX: usize> Kind for Handles<O, MIN, MAX> {
    const KIND: AttributeKind =
        AttributeKind::Handles { object: O::ID, access: Access::Read, minimum: MIN, maximum: MAX };
}

/// A descriptor that is not a uverbs object.
#[derive(Debug)]
pub struct RawDescriptor;
impl Kind for RawDescriptor {
    const KIND: AttributeKind = AttributeKind::RawDescriptor;
}

macro_rules! payload_kinds {
    ($( $(#[$meta:meta])* $variant:ident: $exact:ident, $bytes:ident, $extensible:ident; )*) => {$(
        $(#[$meta])*
        ///
        /// Exactly one `T`.
        #[derive(Debug)]
        pub struct $exact<T>(PhantomData<T>);
        impl<T: AbiField> Kind for $exact<T> {
            const KIND: AttributeKind = AttributeKind::$variant {
                size: PayloadSize::Exact(size_of::<T>()),
                payload: Some(T::KIND),
            };
        }
        $(#[$meta])*
        ///
        /// `MIN` bytes or more: an array or a driver payload.
        #[derive(Debug)]
        pub struct $bytes<T, const MIN: usize>(PhantomData<T>);
        impl<T: AbiField, const MIN: usize> Kind for $bytes<T, MIN> {
            const KIND: AttributeKind = AttributeKind::$variant {
                size: PayloadSize::AtLeast(MIN),
                payload: Some(T::KIND),
            };
        }
        $(#[$meta])*
        ///
        /// An extensible struct. `MIN` bytes are mandatory.
        #[derive(Debug)]
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
    /// Input bytes.
    Input: In, InSlice, InStruct;
    /// Output bytes.
    Output: Out, OutSlice, OutStruct;
}

/// Input bytes: a `T` or a prefix of it, `MIN` bytes or more.
#[derive(Debug)]
pub struct InPart<T, const MIN: usize>(PhantomData<T>);
impl<T: AbiField, const MIN: usize> Kind for InPart<T, MIN> {
    const KIND: AttributeKind = AttributeKind::Input {
        size: PayloadSize::Within { minimum: MIN, maximum: size_of::<T>() },
        payload: Some(T::KIND),
    };
}

/// A number or an enumeration value, stored in the attribute itself.
#[derive(Debug)]
pub struct Constant<T>(PhantomData<T>);
impl<T: AbiField> Kind for Constant<T> {
    const KIND: AttributeKind = AttributeKind::Constant { size: size_of::<T>(), names: names::<T>() };
}

/// A flag word.
#[derive(Debug)]
pub struct Flags<T>(PhantomData<T>);
impl<T: AbiField> Kind for Flags<T> {
    const KIND: AttributeKind = AttributeKind::Flags { size: size_of::<T>(), names: names::<T>() };
}

/// An enumeration element with a payload of up to 8 bytes.
#[derive(Debug)]
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
