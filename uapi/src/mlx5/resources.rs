//! Doorbells, sending rates, and what the driver adds to the device, PDs and device memory.

use super::verbs::{PortInfo, PpFlags, UarType, VarFlags};
use crate::method::{
    Constant, DestroyHandle, Flags, Handle, In, InPart, NewHandle, Object, Out, OutSlice, OutStruct,
};
use crate::uverbs::object;

/// Bytes of a packet pacing context in the firmware's own format.
const PP_CONTEXT: usize = 48;

objects! {
    /// A doorbell of an emulated virtio device.
    object Var = 0x1006, "MLX5_IB_OBJECT_VAR" {
        /// Makes one.
        method VarObjAlloc = 0x1000, "MLX5_IB_METHOD_VAR_OBJ_ALLOC" {
            /// Its handle.
            HANDLE: NewHandle<Var> = 0x1000, "MLX5_IB_ATTR_VAR_OBJ_ALLOC_HANDLE", mandatory;
            /// Offset of its mapping in the device file.
            MMAP_OFFSET: Out<u64> = 0x1001, "MLX5_IB_ATTR_VAR_OBJ_ALLOC_MMAP_OFFSET", mandatory;
            /// Bytes of its mapping.
            MMAP_LENGTH: Out<u32> = 0x1002, "MLX5_IB_ATTR_VAR_OBJ_ALLOC_MMAP_LENGTH", mandatory;
            /// The firmware's number for its page.
            PAGE_ID: Out<u32> = 0x1003, "MLX5_IB_ATTR_VAR_OBJ_ALLOC_PAGE_ID", mandatory;
            /// How it is made.
            FLAGS: Flags<VarFlags> = 0x1004, "MLX5_IB_ATTR_VAR_OBJ_ALLOC_FLAGS" since V7_2, optional;
        }
        /// Gives it back.
        method VarObjDestroy = 0x1001, "MLX5_IB_METHOD_VAR_OBJ_DESTROY" {
            /// The doorbell.
            HANDLE: DestroyHandle<Var> = 0x1000, "MLX5_IB_ATTR_VAR_OBJ_DESTROY_HANDLE", mandatory;
        }
    }

    /// A sending rate.
    object Pp = 0x1007, "MLX5_IB_OBJECT_PP" {
        /// Makes one.
        method PpObjAlloc = 0x1000, "MLX5_IB_METHOD_PP_OBJ_ALLOC" {
            /// Its handle.
            HANDLE: NewHandle<Pp> = 0x1000, "MLX5_IB_ATTR_PP_OBJ_ALLOC_HANDLE", mandatory;
            /// Rate and bursts, in the firmware's own format.
            CTX: InPart<[u8; PP_CONTEXT], 1> = 0x1001, "MLX5_IB_ATTR_PP_OBJ_ALLOC_CTX", mandatory;
            /// How it is made.
            FLAGS: Flags<PpFlags> = 0x1002, "MLX5_IB_ATTR_PP_OBJ_ALLOC_FLAGS", mandatory;
            /// The firmware's number for it.
            INDEX: Out<u16> = 0x1003, "MLX5_IB_ATTR_PP_OBJ_ALLOC_INDEX", mandatory;
        }
        /// Gives it back.
        method PpObjDestroy = 0x1001, "MLX5_IB_METHOD_PP_OBJ_DESTROY" {
            /// The rate.
            HANDLE: DestroyHandle<Pp> = 0x1000, "MLX5_IB_ATTR_PP_OBJ_DESTROY_HANDLE", mandatory;
        }
    }

    /// A doorbell page.
    object Uar = 0x1008, "MLX5_IB_OBJECT_UAR" {
        /// Makes one.
        method UarObjAlloc = 0x1000, "MLX5_IB_METHOD_UAR_OBJ_ALLOC" {
            /// Its handle.
            HANDLE: NewHandle<Uar> = 0x1000, "MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE", mandatory;
            /// How it is mapped.
            TYPE: Constant<UarType> = 0x1001, "MLX5_IB_ATTR_UAR_OBJ_ALLOC_TYPE", mandatory;
            /// Offset of its mapping in the device file.
            MMAP_OFFSET: Out<u64> = 0x1002, "MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET", mandatory;
            /// Bytes of its mapping.
            MMAP_LENGTH: Out<u32> = 0x1003, "MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH", mandatory;
            /// The firmware's number for it.
            PAGE_ID: Out<u32> = 0x1004, "MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID", mandatory;
        }
        /// Gives it back.
        method UarObjDestroy = 0x1001, "MLX5_IB_METHOD_UAR_OBJ_DESTROY" {
            /// The page.
            HANDLE: DestroyHandle<Uar> = 0x1000, "MLX5_IB_ATTR_UAR_OBJ_DESTROY_HANDLE", mandatory;
        }
    }

    /// What the driver adds to the device.
    object Device = object::Device::ID, "UVERBS_OBJECT_DEVICE" {
        /// Asks of a port of a switch in the adapter.
        method QueryPort = 0x1000, "MLX5_IB_METHOD_QUERY_PORT" {
            /// The port.
            PORT_NUM: In<u32> = 0x1000, "MLX5_IB_ATTR_QUERY_PORT_PORT_NUM", mandatory;
            /// What is known of it.
            INFO: OutStruct<PortInfo, { size_of::<PortInfo>() }> = 0x1001, "MLX5_IB_ATTR_QUERY_PORT", mandatory;
        }
        /// Asks where the function for direct data is.
        method GetDataDirectSysfsPath = 0x1001, "MLX5_IB_METHOD_GET_DATA_DIRECT_SYSFS_PATH" since V6_12 {
            /// Its path under `/sys`, with a zero byte at the end; `ENOSPC` where the room is too
            /// small.
            PATH: OutSlice<u8, 0> = 0x1000, "MLX5_IB_ATTR_GET_DATA_DIRECT_SYSFS_PATH" since V6_12, mandatory;
        }
    }

    /// What the driver adds to PDs.
    object Pd = object::Pd::ID, "UVERBS_OBJECT_PD" {
        /// Asks the firmware's number of one.
        method PdQuery = 0x1000, "MLX5_IB_METHOD_PD_QUERY" {
            /// The PD.
            HANDLE: Handle<object::Pd> = 0x1000, "MLX5_IB_ATTR_QUERY_PD_HANDLE", mandatory;
            /// The number.
            RESP_PDN: Out<u32> = 0x1001, "MLX5_IB_ATTR_QUERY_PD_RESP_PDN", mandatory;
        }
    }

    /// What the driver adds to device memory.
    object Dm = object::Dm::ID, "UVERBS_OBJECT_DM" {
        /// Maps the address at which the memory does an operation on what is written.
        method DmMapOpAddr = 0x1000, "MLX5_IB_METHOD_DM_MAP_OP_ADDR" {
            /// The memory.
            REQ_HANDLE: Handle<object::Dm> = 0x1000, "MLX5_IB_ATTR_DM_MAP_OP_ADDR_REQ_HANDLE", mandatory;
            /// The operation, as the firmware numbers it.
            REQ_OP: In<u8> = 0x1001, "MLX5_IB_ATTR_DM_MAP_OP_ADDR_REQ_OP", mandatory;
            /// Where in the mapping it starts.
            RESP_START_OFFSET: Out<u64> = 0x1002, "MLX5_IB_ATTR_DM_MAP_OP_ADDR_RESP_START_OFFSET", mandatory;
            /// Page of the device file that maps it.
            RESP_PAGE_INDEX: Out<u16> = 0x1003, "MLX5_IB_ATTR_DM_MAP_OP_ADDR_RESP_PAGE_INDEX", optional;
        }
        /// Asks of device memory.
        method DmQuery = 0x1001, "MLX5_IB_METHOD_DM_QUERY" {
            /// The memory.
            REQ_HANDLE: Handle<object::Dm> = 0x1000, "MLX5_IB_ATTR_QUERY_DM_REQ_HANDLE", mandatory;
            /// Where in the mapping it starts.
            RESP_START_OFFSET: Out<u64> = 0x1001, "MLX5_IB_ATTR_QUERY_DM_RESP_START_OFFSET", mandatory;
            /// Page of the device file that maps it.
            RESP_PAGE_INDEX: Out<u16> = 0x1002, "MLX5_IB_ATTR_QUERY_DM_RESP_PAGE_INDEX", mandatory;
            /// Its bytes.
            RESP_LENGTH: Out<u64> = 0x1003, "MLX5_IB_ATTR_QUERY_DM_RESP_LENGTH", mandatory;
        }
    }
}
