use core::fmt;
use core::marker::PhantomData;

use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::{
    Constant, Descriptor, DestroyHandle, DriverPayload, Enumeration, Flags, Handle, HandleWrite, Handles, In,
    InPart, InSlice, InStruct, Kind, Method, NewDescriptor, NewHandle, Object, Out, OutSlice, OutStruct,
    RawDescriptor, UHW_IN, UHW_OUT,
};
use crate::abi::AbiField;
use crate::ioctl::{Attribute, AttributeFlags, Header};

/// An attribute of method `M` of type `K`.
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

impl<M, K> fmt::Debug for Attr<M, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Attr({:#x})", self.id)
    }
}

impl<M, K> Attr<M, K> {
    /// The attribute with that id.
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

/// Maximum number of attributes of a [`Call`]. It fits the largest method of the ABI with
/// driver-specific attributes.
pub const MAX_ATTRIBUTES: usize = 24;

#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct Buffer {
    header: Header,
    attributes: [Attribute; MAX_ATTRIBUTES],
}

/// A call of method `M`, built on the stack.
///
/// It borrows its inputs and outputs. The kernel reads the inputs and writes the outputs during the
/// call. They are not accessible until the `Call` is dropped.
///
/// Every attribute is marked mandatory: a kernel that does not know it rejects the call.
/// [`Call::optional`] clears the mark of the last added attribute.
///
/// ```
/// use bareverbs_uapi::method::Call;
/// use bareverbs_uapi::uverbs::types::{DriverId, GidEntry};
/// use bareverbs_uapi::uverbs::QueryGidEntry;
///
/// let mut entry = GidEntry::zeroed();
/// let mut call = Call::<QueryGidEntry>::new(DriverId::RXE.0);
/// call.constant(QueryGidEntry::PORT, 1)
///     .constant(QueryGidEntry::GID_INDEX, 0)
///     .flags(QueryGidEntry::FLAGS, 0)
///     .output_struct(QueryGidEntry::RESP_ENTRY, &mut entry);
/// assert_eq!(call.as_bytes().len(), 24 + 4 * 16);
/// ```
///
/// An attribute of another method does not compile:
///
/// ```compile_fail,E0308
/// # use bareverbs_uapi::{method::Call, uverbs::{CqCreate, QpCreate}};
/// Call::<QpCreate>::new(14).make(CqCreate::HANDLE);
/// ```
///
/// A value of another type does not compile:
///
/// ```compile_fail,E0308
/// # use bareverbs_uapi::{method::Call, uverbs::{QpCreate, types::SrqType}};
/// Call::<QpCreate>::new(14).constant(QpCreate::TYPE, SrqType::BASIC);
/// ```
///
/// A read of a response that the call still borrows does not compile:
///
/// ```compile_fail,E0502
/// # use bareverbs_uapi::{method::Call, uverbs::QueryMr};
/// let mut key = 0;
/// let mut call = Call::<QueryMr>::new(14);
/// call.output(QueryMr::RESP_LKEY, &mut key);
/// assert_eq!(key, 0);
/// call.as_mut_bytes();
/// ```
///
/// # Panics
///
/// Adding more than [`MAX_ATTRIBUTES`] attributes panics. No method has so many.
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

    /// Allows the kernel to ignore the last added attribute if it does not know it.
    pub fn optional(&mut self) -> &mut Self {
        if let Some(last) = usize::from(self.buffer.header.num_attrs).checked_sub(1) {
            self.buffer.attributes[last].flags = AttributeFlags::empty();
        }
        self
    }

    /// Creates an object. Its handle is [`Call::made`] afterwards.
    pub fn make<O: Object>(&mut self, attr: Attr<M, NewHandle<O>>) -> &mut Self {
        self.push(attr.id, 0, 0)
    }

    /// Creates an object with a file descriptor, which is [`Call::made_descriptor`] afterwards.
    pub fn make_descriptor<O: Object>(&mut self, attr: Attr<M, NewDescriptor<O>>) -> &mut Self {
        // The kernel does not read the value. -1 remains if it writes no descriptor.
        self.push(attr.id, 0, -1_i64 as u64)
    }

    /// Adds the handle of an object that is used.
    pub fn handle<O: Object>(&mut self, attr: Attr<M, Handle<O>>, handle: u32) -> &mut Self {
        self.push(attr.id, 0, u64::from(handle))
    }

    /// Adds the handle of an object that is modified.
    pub fn handle_write<O: Object>(&mut self, attr: Attr<M, HandleWrite<O>>, handle: u32) -> &mut Self {
        self.push(attr.id, 0, u64::from(handle))
    }

    /// Adds the handle of the object that is destroyed.
    pub fn destroy<O: Object>(&mut self, attr: Attr<M, DestroyHandle<O>>, handle: u32) -> &mut Self {
        self.push(attr.id, 0, u64::from(handle))
    }

    /// Adds the descriptor of an object.
    pub fn descriptor<O: Object>(&mut self, attr: Attr<M, Descriptor<O>>, fd: i32) -> &mut Self {
        self.push(attr.id, 0, i64::from(fd) as u64)
    }

    /// Adds a descriptor that is not a uverbs object.
    pub fn raw_descriptor(&mut self, attr: Attr<M, RawDescriptor>, fd: i32) -> &mut Self {
        self.push(attr.id, 0, i64::from(fd) as u64)
    }

    /// Adds one value. Up to 8 bytes are stored in the attribute itself.
    pub fn input<T>(&mut self, attr: Attr<M, In<T>>, value: &'a T) -> &mut Self
    where
        T: AbiField + IntoBytes + Immutable,
    {
        self.input_bytes(attr.id, value.as_bytes())
    }

    /// Adds an extensible struct as input.
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

    /// Adds a struct of which the kernel also accepts a prefix.
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

    /// Adds the first bytes of a struct of which the kernel also accepts a prefix.
    pub fn input_prefix<T, const MIN: usize>(
        &mut self,
        attr: Attr<M, InPart<T, MIN>>,
        bytes: &'a [u8],
    ) -> &mut Self {
        self.input_bytes(attr.id, bytes)
    }

    /// Adds an array as input. It is truncated to the elements that fit 65,535 bytes.
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

    /// Adds one value as output.
    pub fn output<T>(&mut self, attr: Attr<M, Out<T>>, value: &'a mut T) -> &mut Self
    where
        T: AbiField + FromBytes + IntoBytes,
    {
        self.output_bytes(attr.id, value.as_mut_bytes())
    }

    /// Adds an extensible struct as output. Fields that the kernel does not know are zero.
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

    /// Adds an array as output. It is truncated to the elements that fit 65,535 bytes.
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

    /// Adds a number or an enumeration value.
    pub fn constant<T: Into<u64>>(&mut self, attr: Attr<M, Constant<T>>, value: T) -> &mut Self {
        self.push(attr.id, 8, value.into())
    }

    /// Adds a flag word.
    pub fn flags<T: Into<u64>>(&mut self, attr: Attr<M, Flags<T>>, value: T) -> &mut Self {
        self.push(attr.id, 8, value.into())
    }

    /// Adds an array of handles.
    pub fn handles<O: Object, const MIN: usize, const MAX: usize>(
        &mut self,
        attr: Attr<M, Handles<O, MIN, MAX>>,
        handles: &'a [u32],
    ) -> &mut Self {
        self.input_bytes(attr.id, handles.as_bytes())
    }

    /// Adds an enumeration element with its payload, which may be empty.
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

    /// The handle of the object that the call created.
    #[must_use]
    pub fn made<O: Object>(&self, attr: Attr<M, NewHandle<O>>) -> u32 {
        self.find(attr.id).map_or(0, |attribute| attribute.data as u32)
    }

    /// The descriptor that the call created. The caller owns it. Negative if the kernel wrote none.
    #[must_use]
    pub fn made_descriptor<O: Object>(&self, attr: Attr<M, NewDescriptor<O>>) -> i32 {
        self.find(attr.id).map_or(-1, |attribute| i32::try_from(attribute.data as i64).unwrap_or(-1))
    }

    /// Whether the kernel wrote the output attribute.
    #[must_use]
    pub fn wrote<K: Kind>(&self, attr: Attr<M, K>) -> bool {
        self.find(attr.id).is_some_and(|attribute| attribute.flags.contains(AttributeFlags::VALID_OUTPUT))
    }

    /// The bytes of the call.
    #[inline]
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.buffer.as_bytes()[..usize::from(self.buffer.header.length)]
    }

    /// The bytes of the call, also if the caller has changed the length in the header.
    pub(crate) fn bytes_in_buffer(&self) -> &[u8] {
        let bytes = self.buffer.as_bytes();
        &bytes[..bytes.len().min(self.buffer.header.length.into())]
    }

    /// The mutable bytes of the call, for the ioctl.
    #[inline]
    #[must_use]
    pub fn as_mut_bytes(&mut self) -> &mut [u8] {
        let length = usize::from(self.buffer.header.length);
        &mut self.buffer.as_mut_bytes()[..length]
    }
}

impl<'a, M: DriverPayload> Call<'a, M> {
    /// Adds the driver request.
    pub fn driver_input(&mut self, bytes: &'a [u8]) -> &mut Self {
        self.input_bytes(UHW_IN, bytes)
    }

    /// Adds the driver response.
    pub fn driver_output(&mut self, bytes: &'a mut [u8]) -> &mut Self {
        self.output_bytes(UHW_OUT, bytes)
    }
}
