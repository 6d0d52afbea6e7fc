//! Objects of the kernel without a type of `bareverbs`: those of a driver's own methods.

use std::ptr::NonNull;

use bareverbs::raw::uapi::method::{Attr, Call, Method, NewHandle, Object as ObjectClass};
use bareverbs::raw::{Mapping, RawContext, RawObject};

use crate::convention::{Failure, required};

/// A struct of C, and the kernel's object behind it.
#[repr(C)]
pub(crate) struct DriverObject<A> {
    pub(crate) abi: A,
    /// `None` only while [`destroy`](Self::destroy) runs.
    object: Option<RawObject>,
    _mapping: Option<Mapping>,
}

impl<A> DriverObject<A> {
    /// A pointer of C to a new object.
    pub(crate) fn create<C>(abi: A, object: RawObject, mapping: Option<Mapping>) -> *mut C {
        Box::into_raw(Box::new(Self { abi, object: Some(object), _mapping: mapping })).cast()
    }

    pub(crate) fn object(&self) -> Result<&RawObject, Failure> {
        self.object.as_ref().ok_or(Failure::INVALID)
    }

    /// # Safety
    ///
    /// [`create`](Self::create) made the object. The program uses it no longer if the call succeeds.
    pub(crate) unsafe fn destroy(object: Option<NonNull<Self>>) -> Result<(), Failure> {
        let object = required(object)?;
        // SAFETY: by the contract, the object exists and nothing else uses it.
        let kernel = &mut unsafe { &mut *object.as_ptr() }.object;
        if let Some(Err(refused)) = kernel.take().map(RawObject::destroy) {
            *kernel = Some(refused.object);
            return Err(refused.errno.into());
        }
        // SAFETY: by the contract.
        drop(unsafe { Box::from_raw(object.as_ptr()) });
        Ok(())
    }

    /// Frees the struct of an imported object, which stays.
    ///
    /// # Safety
    ///
    /// [`create`](Self::create) made the object, and the program uses it no longer.
    pub(crate) unsafe fn release(object: Option<NonNull<Self>>) -> Result<(), Failure> {
        // SAFETY: by the contract.
        let made = unsafe { Box::from_raw(required(object)?.as_ptr()) };
        let _handle = made.object.map(RawObject::into_handle);
        Ok(())
    }
}

/// Executes a call that makes an object of this class.
///
/// # Safety
///
/// As for [`RawContext::execute`].
pub(crate) unsafe fn make<M: Method, O: ObjectClass>(
    raw: &RawContext,
    call: &mut Call<'_, M>,
    handle: Attr<M, NewHandle<O>>,
) -> Result<RawObject, Failure> {
    // SAFETY: by the contract. The object is new, and nothing else has its handle.
    unsafe {
        raw.execute(call)?;
        Ok(RawObject::of::<O>(raw, call.made(handle)))
    }
}
