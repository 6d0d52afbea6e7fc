use std::mem;

use rustix::io::Errno;

use super::uapi::method::{AttributeKind, Object};
use super::{RawContext, UntypedCall};

/// A kernel object of any class, named by its handle. It is destroyed on drop by the method that
/// the table declares for its class, such as [`PdDestroy`](super::uapi::uverbs::PdDestroy).
///
/// It does not keep the objects that it uses: the kernel refuses to destroy those while it exists
/// (`EBUSY`). Objects are dropped in the reverse order of creation.
///
/// ```
/// use bareverbs::raw::RawObject;
/// use bareverbs::raw::uapi::uverbs::object;
///
/// # let context = bareverbs_test_support::example::context()?;
/// # let cq = context.create_cq(&bareverbs::cq::CqInit::new(16))?;
/// // The safe handle is released: its queue is leaked, and the object still exists.
/// let handle = cq.into_handle();
/// // SAFETY: nothing else has the handle.
/// let cq = unsafe { RawObject::of::<object::Cq>(&context.raw(), handle) };
/// let answer = cq.destroy()?;
/// println!("{} bytes of event counts", answer.len());
/// # Ok::<(), bareverbs::Report>(())
/// ```
#[derive(Debug)]
pub struct RawObject {
    context: RawContext,
    class: u16,
    handle: u32,
}

/// The kernel refused to destroy an object, which is returned.
#[derive(Debug, thiserror::Error)]
#[error("object {} of class {:#x} was not destroyed: {errno}", object.handle, object.class)]
#[non_exhaustive]
pub struct RawDestroyError {
    /// The kernel's error, such as `EBUSY` while another object uses it.
    pub errno: Errno,
    /// The object.
    pub object: RawObject,
}

impl RawObject {
    /// Adopts the object of class `class` with this handle, created by a raw call.
    ///
    /// # Safety
    ///
    /// The object may be destroyed at any time from now on: the caller owns it, and no other value
    /// has or uses its handle. Memory that the kernel or the device accesses for the object stays
    /// valid until it is destroyed.
    #[must_use]
    pub unsafe fn from_handle(context: &RawContext, class: u16, handle: u32) -> Self {
        Self { context: context.clone(), class, handle }
    }

    /// Adopts the object of class `O` with this handle.
    ///
    /// # Safety
    ///
    /// As for [`RawObject::from_handle`].
    #[must_use]
    pub unsafe fn of<O: Object>(context: &RawContext, handle: u32) -> Self {
        // SAFETY: the caller upholds the contract.
        unsafe { Self::from_handle(context, O::ID, handle) }
    }

    /// The id of its class.
    #[must_use]
    pub fn class(&self) -> u16 {
        self.class
    }

    /// Its handle.
    #[must_use]
    pub fn handle(&self) -> u32 {
        self.handle
    }

    /// Its context.
    #[must_use]
    pub fn context(&self) -> &RawContext {
        &self.context
    }

    /// Releases the handle: drop no longer destroys the kernel object. The kernel destroys it when
    /// the device file is closed.
    #[must_use = "nothing else has the handle"]
    pub fn into_handle(self) -> u32 {
        self.release().1
    }

    fn release(self) -> (RawContext, u32) {
        let object = mem::ManuallyDrop::new(self);
        // SAFETY: the object is in a `ManuallyDrop` and its context is not used again.
        (unsafe { std::ptr::read(&object.context) }, object.handle)
    }

    /// Destroys it. Returns the response of the method, such as numbers of events; empty for most
    /// classes.
    ///
    /// # Errors
    /// The kernel's error and the object. `EPROTONOSUPPORT` for a class without such a method.
    pub fn destroy(self) -> Result<Vec<u8>, RawDestroyError> {
        match self.destroy_inner() {
            Ok(answer) => {
                drop(self.release());
                Ok(answer)
            }
            Err(errno) => Err(RawDestroyError { errno, object: self }),
        }
    }

    fn destroy_inner(&self) -> Result<Vec<u8>, Errno> {
        let method = self.context.rules().destructor(self.class).ok_or(Errno::PROTONOSUPPORT)?;
        let mut call = UntypedCall::new(self.context.driver_id(), method.object, method.id);
        for attribute in method.attributes.iter().filter(|attribute| attribute.mandatory) {
            call.attribute_of_kind(attribute.id, attribute.kind, self.handle);
        }
        // SAFETY: the method destroys this object, which is this value's, by the contract of
        // `from_handle`. Its other attributes are outputs in buffers of the call.
        unsafe { self.context.execute_untyped(&mut call) }?;
        let mut outputs =
            method.attributes.iter().filter(|info| matches!(info.kind, AttributeKind::Output { .. }));
        Ok(outputs.find_map(|info| call.answer(info.id)).unwrap_or_default().to_vec())
    }
}

impl Drop for RawObject {
    fn drop(&mut self) {
        // If the kernel refuses, closing the device file destroys the object.
        let _ = self.destroy_inner();
    }
}
