//! Thread domains, and what parent domains add to PDs.

use std::alloc::Layout;
use std::ffi::c_void;
use std::fmt;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use bareverbs::MemoryOwner;
use bareverbs::error::CreateError;
use bareverbs::qp::{Allocation, QueueAllocator, QueueBuffer, QueueMemory, QueueResource, ThreadDomain};

use crate::abi::memory::{
    AllocQueue, FreeQueue, ibv_parent_domain_init_attr, ibv_pd, ibv_td, ibv_td_init_attr,
};
use crate::abi::values::{
    IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS, IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC,
    IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT, has,
};
use crate::context::ContextArgument;
use crate::convention::{Failure, OrErrno, OrNull, callback, required};
use crate::object::Object;

pub(crate) type TdObject = Object<ibv_td, Arc<ThreadDomain>>;

/// What a parent domain adds to its PD. Objects that use it have a reference.
pub(crate) struct ParentDomain {
    td: Option<Arc<ThreadDomain>>,
    callbacks: Option<Callbacks>,
}

impl ParentDomain {
    /// What these attributes add to the PD at `pd`, on a device of this driver.
    ///
    /// # Safety
    ///
    /// The thread domain is null or a live one. The functions uphold rdma-core's manual.
    pub(crate) unsafe fn new(
        init: &ibv_parent_domain_init_attr,
        pd: *mut ibv_pd,
        driver: u32,
    ) -> Result<Self, Failure> {
        let has = |flag| has(init.comp_mask, flag);
        let known = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS
            | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT
            | IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC;
        if has(!known) {
            return Err(Failure::INVALID);
        }
        // SAFETY: by the contract.
        let td = unsafe { init.td.cast::<TdObject>().as_ref() }.map(|td| Arc::clone(&td.inner));
        let functions = init.alloc.zip(init.free).filter(|_| has(IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS));
        let has_context = has(IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT);
        let pd_context = if has_context { init.pd_context } else { ptr::null_mut() };
        let callbacks = functions.map(|(alloc, free)| Callbacks { alloc, free, pd, pd_context, driver });
        Ok(Self { td, callbacks })
    }

    /// The thread domain, whose doorbell register its QPs use.
    pub(crate) fn td(&self) -> Option<&ThreadDomain> {
        self.td.as_deref()
    }

    /// The memory of queues that are created with a parent domain, or without one.
    pub(crate) fn memory(parent: Option<&Arc<Self>>) -> QueueMemory<'_> {
        match parent.and_then(|parent| parent.callbacks.as_ref()) {
            Some(callbacks) => QueueMemory::From(callbacks),
            None => QueueMemory::BasePages,
        }
    }
}

/// The allocator of the program.
#[derive(Clone, Copy)]
struct Callbacks {
    alloc: AllocQueue,
    free: FreeQueue,
    pd: *mut ibv_pd,
    pd_context: *mut c_void,
    /// The driver of the device, in the upper half of the resource types.
    driver: u32,
}

// SAFETY: the program's functions are called by the threads that create and destroy its queues.
unsafe impl Send for Callbacks {}
// SAFETY: as for `Send`.
unsafe impl Sync for Callbacks {}

impl fmt::Debug for Callbacks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Callbacks")
            .field("pd", &self.pd)
            .field("pd_context", &self.pd_context)
            .finish_non_exhaustive()
    }
}

/// `IBV_ALLOCATOR_USE_DEFAULT`.
const USE_DEFAULT: *mut c_void = ptr::without_provenance_mut(usize::MAX);

impl Callbacks {
    /// The resource type of C: `MLX5DV_RES_TYPE_QP`, for instance.
    fn resource_type(&self, resource: QueueResource) -> u64 {
        let code = match resource {
            QueueResource::Qp => 1,
            QueueResource::Wq => 2,
            QueueResource::DoorbellRecord => 3,
            QueueResource::Srq => 4,
            QueueResource::Cq => 5,
            _ => 0,
        };
        u64::from(self.driver) << 32 | code
    }
}

impl QueueAllocator for Callbacks {
    fn allocate(&self, resource: QueueResource, layout: Layout) -> Allocation {
        // Functions such as `aligned_alloc` require a size that is a multiple of the alignment.
        let (bytes, align) = (layout.pad_to_align().size(), layout.align());
        let resource_type = self.resource_type(resource);
        // SAFETY: the program's function has this signature.
        let start = unsafe { (self.alloc)(self.pd, self.pd_context, bytes, align, resource_type) };
        if start == USE_DEFAULT {
            return Ok(None);
        }
        let none = CreateError::NoMemory { bytes };
        let start = NonNull::new(start.cast()).ok_or(none)?;
        let memory = CallbackMemory { start, bytes, resource_type, callbacks: *self };
        Ok(Some(QueueBuffer::new(memory).map_err(|_| none)?.into()))
    }
}

/// Memory of the program, which drop returns to it.
struct CallbackMemory {
    start: NonNull<u8>,
    bytes: usize,
    resource_type: u64,
    callbacks: Callbacks,
}

// SAFETY: the memory belongs to the process, and `Callbacks` is `Send`.
unsafe impl Send for CallbackMemory {}
// SAFETY: a shared reference gives no access.
unsafe impl Sync for CallbackMemory {}

// SAFETY: the program keeps the memory at its address until it is freed, and does not access it.
unsafe impl MemoryOwner for CallbackMemory {
    fn region(&mut self) -> (NonNull<u8>, usize) {
        (self.start, self.bytes)
    }
}

impl Drop for CallbackMemory {
    fn drop(&mut self) {
        let Callbacks { free, pd, pd_context, .. } = self.callbacks;
        // SAFETY: the program's function has this signature. The memory came from its `alloc`, and the
        // parent domain exists while objects use it.
        unsafe { free(pd, pd_context, self.start.as_ptr().cast(), self.resource_type) };
    }
}

callback! {
    /// `ibv_alloc_td`.
    fn alloc_td(context: ContextArgument<'_>, init: Option<&ibv_td_init_attr>) -> OrNull<ibv_td> {
        let of_context = &context.required()?.context;
        if required(init)?.comp_mask != 0 {
            return Err(Failure::INVALID);
        }
        Object::create(|_| Ok((ibv_td { context: context.pointer() }, Arc::new(of_context.alloc_td()?))))
    }

    /// `ibv_dealloc_td`. It fails while parent domains have the thread domain.
    fn dealloc_td(td: Option<NonNull<TdObject>>) -> OrErrno {
        let td = required(td)?;
        // SAFETY: the argument is a live thread domain.
        if Arc::strong_count(unsafe { &(*td.as_ptr()).inner }) > 1 {
            return Err(Failure::BUSY);
        }
        // SAFETY: as above, and the program uses it no longer.
        unsafe { Object::free(td) };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::alloc;
    use std::ffi::c_int;
    use std::sync::Mutex;

    use super::*;

    /// The calls of the program's functions: allocations and frees, with address, size and type.
    type Calls = Mutex<Vec<(&'static str, usize, usize, u64)>>;

    /// Allocates memory for CQs, leaves QPs to the library, and fails else.
    unsafe extern "C" fn alloc(
        _pd: *mut ibv_pd,
        calls: *mut c_void,
        size: usize,
        align: usize,
        resource: u64,
    ) -> *mut c_void {
        let start = match resource {
            0x1_0000_0005 => {
                // SAFETY: the size is not 0.
                unsafe { alloc::alloc(Layout::from_size_align(size, align).unwrap()) }.cast()
            }
            0x1_0000_0001 => USE_DEFAULT,
            _ => ptr::null_mut(),
        };
        // SAFETY: the test passes its calls.
        let calls = unsafe { &*calls.cast::<Calls>() };
        calls.lock().unwrap().push(("alloc", start.addr(), size, resource));
        start
    }

    unsafe extern "C" fn free(_pd: *mut ibv_pd, calls: *mut c_void, start: *mut c_void, resource: u64) {
        // SAFETY: the test passes its calls.
        let calls = unsafe { &*calls.cast::<Calls>() };
        calls.lock().unwrap().push(("free", start.addr(), 0, resource));
        // SAFETY: `alloc` allocated it with this layout.
        unsafe { alloc::dealloc(start.cast(), Layout::from_size_align(8192, 4096).unwrap()) };
    }

    #[test]
    fn program_allocates_and_frees_the_memory_of_queues() {
        let calls = Calls::default();
        let pd_context = ptr::from_ref(&calls).cast_mut().cast();
        let callbacks = Callbacks { alloc, free, pd: ptr::null_mut(), pd_context, driver: 1 };
        let layout = Layout::from_size_align(5000, 4096).unwrap();
        let memory = callbacks.allocate(QueueResource::Cq, layout).unwrap().expect("memory of the program");
        assert_eq!((memory.len(), memory.is_dmabuf()), (8192, false));
        let [("alloc", start, 8192, resource)] = calls.lock().unwrap()[..] else {
            panic!("{:?}", calls.lock())
        };
        let mapping = memory.lease(layout).unwrap();
        assert_eq!(mapping.as_ptr().addr().get(), start);
        drop(memory);
        assert_eq!(calls.lock().unwrap().len(), 1, "the queue has the memory");
        drop(mapping);
        assert_eq!(calls.lock().unwrap()[1..], [("free", start, 0, resource)]);
    }

    #[test]
    fn program_declines_or_has_no_memory() {
        let calls = Calls::default();
        let pd_context = ptr::from_ref(&calls).cast_mut().cast();
        let callbacks = Callbacks { alloc, free, pd: ptr::null_mut(), pd_context, driver: 1 };
        let layout = Layout::new::<u64>();
        assert!(matches!(callbacks.allocate(QueueResource::Qp, layout), Ok(None)));
        let refused = callbacks.allocate(QueueResource::DoorbellRecord, layout).map(drop).unwrap_err();
        let none = CreateError::NoMemory { bytes: 8 };
        assert_eq!(refused, none);
        let types: Vec<_> = calls.lock().unwrap().iter().map(|call| call.3).collect();
        assert_eq!(types, [1 << 32 | 1, 1 << 32 | 3]);
        let all = [
            QueueResource::Qp,
            QueueResource::Wq,
            QueueResource::DoorbellRecord,
            QueueResource::Srq,
            QueueResource::Cq,
        ];
        assert_eq!(all.map(|resource| callbacks.resource_type(resource) as u32), [1, 2, 3, 4, 5]);
    }

    #[test]
    fn attributes_count_if_their_bits_are_set() {
        let calls = Calls::default();
        let pd_context = ptr::from_ref(&calls).cast_mut().cast();
        let parent = |comp_mask: c_int| {
            let comp_mask = comp_mask.cast_unsigned();
            let (pd, td) = (ptr::null_mut(), ptr::null_mut());
            let (alloc, free) = (Some(alloc as AllocQueue), Some(free as FreeQueue));
            let init = ibv_parent_domain_init_attr { pd, td, comp_mask, alloc, free, pd_context };
            // SAFETY: there is no thread domain.
            unsafe { ParentDomain::new(&init, ptr::null_mut(), 1) }.unwrap().callbacks
        };
        let (allocators, context) =
            (IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS, IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT);
        assert!(parent(context).is_none());
        assert_eq!(parent(allocators).map(|callbacks| callbacks.pd_context), Some(ptr::null_mut()));
        assert_eq!(parent(allocators | context).map(|callbacks| callbacks.pd_context), Some(pd_context));
    }
}
