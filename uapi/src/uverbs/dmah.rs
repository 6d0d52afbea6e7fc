//! DMA handles: hints for the device's memory accesses.

use crate::method::{DestroyHandle, Enumeration, In, NewHandle};
use crate::uverbs::ObjectClass;

objects! {
    /// DMA handle: hints for the device's accesses to a memory region.
    object Dmah = ObjectClass::DMAH.0, "UVERBS_OBJECT_DMAH" since V7_2 {
        /// Creates one.
        method DmahAlloc = 0, "UVERBS_METHOD_DMAH_ALLOC" since V7_2 {
            /// Its handle.
            HANDLE: NewHandle<Dmah> = 0, "UVERBS_ATTR_ALLOC_DMAH_HANDLE" since V7_2, mandatory;
            /// CPU whose cache the data is intended for.
            CPU_ID: In<u32> = 1, "UVERBS_ATTR_ALLOC_DMAH_CPU_ID" since V7_2, optional;
            /// Memory type; its payload is empty.
            TPH_MEM_TYPE: Enumeration<TphMemType> = 2, "UVERBS_ATTR_ALLOC_DMAH_TPH_MEM_TYPE" since V7_2, optional;
            /// PCIe processing hint, two bits.
            PH: In<u8> = 3, "UVERBS_ATTR_ALLOC_DMAH_PH" since V7_2, optional;
        }
        /// Destroys it.
        method DmahFree = 1, "UVERBS_METHOD_DMAH_FREE" since V7_2 {
            /// The hints.
            HANDLE: DestroyHandle<Dmah> = 0, "UVERBS_ATTR_FREE_DMA_HANDLE" since V7_2, mandatory;
        }
    }
}

abi_enums! {
    header = "include/linux/pci-tph.h";

    /// Memory type of the device's accesses.
    enum TphMemType : u8 = "tph_mem_type" {
        /// Volatile.
        #[doc(alias = "IBV_TPH_MEM_TYPE_VM")]
        VOLATILE = 0, "TPH_MEM_TYPE_VM" since V7_2;
        /// Persistent.
        #[doc(alias = "IBV_TPH_MEM_TYPE_PM")]
        PERSISTENT = 1, "TPH_MEM_TYPE_PM" since V7_2;
    }
}
