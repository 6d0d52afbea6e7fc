//! Device memory, and device memory as a dma-buf.

use crate::method::{DestroyHandle, In, NewDescriptor, NewHandle};
use crate::uverbs::ObjectClass;

objects! {
    /// Device memory.
    object Dm = ObjectClass::DM.0, "UVERBS_OBJECT_DM" {
        /// Allocates device memory. Drivers have attributes of their own on this method.
        method DmAlloc = 0, "UVERBS_METHOD_DM_ALLOC" {
            /// Its handle.
            HANDLE: NewHandle<Dm> = 0, "UVERBS_ATTR_ALLOC_DM_HANDLE", mandatory;
            /// Length in bytes.
            LENGTH: In<u64> = 1, "UVERBS_ATTR_ALLOC_DM_LENGTH", mandatory;
            /// Log2 of the alignment.
            ALIGNMENT: In<u32> = 2, "UVERBS_ATTR_ALLOC_DM_ALIGNMENT", mandatory;
        }
        /// Destroys it.
        method DmFree = 1, "UVERBS_METHOD_DM_FREE" {
            /// The device memory.
            HANDLE: DestroyHandle<Dm> = 0, "UVERBS_ATTR_FREE_DM_HANDLE", mandatory;
        }
    }

    /// A device mapping exported as a dma-buf.
    object Dmabuf = ObjectClass::DMABUF.0, "UVERBS_OBJECT_DMABUF" since V7_2 {
        /// Creates one.
        method DmabufAlloc = 0, "UVERBS_METHOD_DMABUF_ALLOC" since V7_2 {
            /// Its descriptor.
            HANDLE: NewDescriptor<Dmabuf> = 0, "UVERBS_ATTR_ALLOC_DMABUF_HANDLE" since V7_2, mandatory;
            /// Offset of the mapping for `mmap` of the device file, in pages.
            PGOFF: In<u64> = 1, "UVERBS_ATTR_ALLOC_DMABUF_PGOFF" since V7_2, mandatory;
        }
    }
}
