//! Doorbells, packet pacing, and driver-specific methods of the device, PDs and device memory.

use super::verbs::{PortInfo, PpFlags, UarType, VarFlags};
use crate::method::{
    Constant, DestroyHandle, Flags, Handle, In, InPart, NewHandle, Object, Out, OutSlice, OutStruct,
};
use crate::uverbs::object;

/// Size of a packet pacing context in PRM format in bytes.
const PP_CONTEXT: usize = 48;

objects! {
    /// A doorbell of an emulated virtio device.
    object Var = 0x1006, "MLX5_IB_OBJECT_VAR" {
        /// Creates one.
        method VarObjAlloc = 0x1000, "MLX5_IB_METHOD_VAR_OBJ_ALLOC" {
            /// Its handle.
            HANDLE: NewHandle<Var> = 0x1000, "MLX5_IB_ATTR_VAR_OBJ_ALLOC_HANDLE", mandatory;
            /// Offset for `mmap` of the device file.
            MMAP_OFFSET: Out<u64> = 0x1001, "MLX5_IB_ATTR_VAR_OBJ_ALLOC_MMAP_OFFSET", mandatory;
            /// Length of its mapping in bytes.
            MMAP_LENGTH: Out<u32> = 0x1002, "MLX5_IB_ATTR_VAR_OBJ_ALLOC_MMAP_LENGTH", mandatory;
            /// The firmware's UAR number.
            PAGE_ID: Out<u32> = 0x1003, "MLX5_IB_ATTR_VAR_OBJ_ALLOC_PAGE_ID", mandatory;
            /// Flags.
            FLAGS: Flags<VarFlags> = 0x1004, "MLX5_IB_ATTR_VAR_OBJ_ALLOC_FLAGS" since V7_2, optional;
        }
        /// Destroys it.
        method VarObjDestroy = 0x1001, "MLX5_IB_METHOD_VAR_OBJ_DESTROY" {
            /// The doorbell.
            HANDLE: DestroyHandle<Var> = 0x1000, "MLX5_IB_ATTR_VAR_OBJ_DESTROY_HANDLE", mandatory;
        }
    }

    /// A packet pacing entry.
    object Pp = 0x1007, "MLX5_IB_OBJECT_PP" {
        /// Creates one.
        method PpObjAlloc = 0x1000, "MLX5_IB_METHOD_PP_OBJ_ALLOC" {
            /// Its handle.
            HANDLE: NewHandle<Pp> = 0x1000, "MLX5_IB_ATTR_PP_OBJ_ALLOC_HANDLE", mandatory;
            /// Packet pacing context, in PRM format.
            CTX: InPart<[u8; PP_CONTEXT], 1> = 0x1001, "MLX5_IB_ATTR_PP_OBJ_ALLOC_CTX", mandatory;
            /// Flags.
            FLAGS: Flags<PpFlags> = 0x1002, "MLX5_IB_ATTR_PP_OBJ_ALLOC_FLAGS", mandatory;
            /// Its firmware index.
            INDEX: Out<u16> = 0x1003, "MLX5_IB_ATTR_PP_OBJ_ALLOC_INDEX", mandatory;
        }
        /// Destroys it.
        method PpObjDestroy = 0x1001, "MLX5_IB_METHOD_PP_OBJ_DESTROY" {
            /// The rate.
            HANDLE: DestroyHandle<Pp> = 0x1000, "MLX5_IB_ATTR_PP_OBJ_DESTROY_HANDLE", mandatory;
        }
    }

    /// A UAR (doorbell page).
    object Uar = 0x1008, "MLX5_IB_OBJECT_UAR" {
        /// Creates one.
        method UarObjAlloc = 0x1000, "MLX5_IB_METHOD_UAR_OBJ_ALLOC" {
            /// Its handle.
            HANDLE: NewHandle<Uar> = 0x1000, "MLX5_IB_ATTR_UAR_OBJ_ALLOC_HANDLE", mandatory;
            /// Allocation type.
            TYPE: Constant<UarType> = 0x1001, "MLX5_IB_ATTR_UAR_OBJ_ALLOC_TYPE", mandatory;
            /// Offset for `mmap` of the device file.
            MMAP_OFFSET: Out<u64> = 0x1002, "MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_OFFSET", mandatory;
            /// Length of its mapping in bytes.
            MMAP_LENGTH: Out<u32> = 0x1003, "MLX5_IB_ATTR_UAR_OBJ_ALLOC_MMAP_LENGTH", mandatory;
            /// Its firmware index.
            PAGE_ID: Out<u32> = 0x1004, "MLX5_IB_ATTR_UAR_OBJ_ALLOC_PAGE_ID", mandatory;
        }
        /// Destroys it.
        method UarObjDestroy = 0x1001, "MLX5_IB_METHOD_UAR_OBJ_DESTROY" {
            /// The UAR.
            HANDLE: DestroyHandle<Uar> = 0x1000, "MLX5_IB_ATTR_UAR_OBJ_DESTROY_HANDLE", mandatory;
        }
    }

    /// Driver-specific methods of the device.
    object Device = object::Device::ID, "UVERBS_OBJECT_DEVICE" {
        /// Queries a port of the e-switch.
        method QueryPort = 0x1000, "MLX5_IB_METHOD_QUERY_PORT" {
            /// The port.
            PORT_NUM: In<u32> = 0x1000, "MLX5_IB_ATTR_QUERY_PORT_PORT_NUM", mandatory;
            /// Its information.
            INFO: OutStruct<PortInfo, { size_of::<PortInfo>() }> = 0x1001, "MLX5_IB_ATTR_QUERY_PORT", mandatory;
        }
        /// Queries the sysfs path of the data direct function.
        method GetDataDirectSysfsPath = 0x1001, "MLX5_IB_METHOD_GET_DATA_DIRECT_SYSFS_PATH" since V6_12 {
            /// Its path under `/sys`, NUL-terminated; `ENOSPC` if the buffer is too small.
            PATH: OutSlice<u8, 0> = 0x1000, "MLX5_IB_ATTR_GET_DATA_DIRECT_SYSFS_PATH" since V6_12, mandatory;
        }
    }

    /// Driver-specific methods of PDs.
    object Pd = object::Pd::ID, "UVERBS_OBJECT_PD" {
        /// Queries the firmware's PD number.
        method PdQuery = 0x1000, "MLX5_IB_METHOD_PD_QUERY" {
            /// The PD.
            HANDLE: Handle<object::Pd> = 0x1000, "MLX5_IB_ATTR_QUERY_PD_HANDLE", mandatory;
            /// The number.
            RESP_PDN: Out<u32> = 0x1001, "MLX5_IB_ATTR_QUERY_PD_RESP_PDN", mandatory;
        }
    }

    /// Driver-specific methods of device memory.
    object Dm = object::Dm::ID, "UVERBS_OBJECT_DM" {
        /// Maps an address at which writes execute an operation on the device memory.
        method DmMapOpAddr = 0x1000, "MLX5_IB_METHOD_DM_MAP_OP_ADDR" {
            /// The memory.
            REQ_HANDLE: Handle<object::Dm> = 0x1000, "MLX5_IB_ATTR_DM_MAP_OP_ADDR_REQ_HANDLE", mandatory;
            /// The operation, in firmware encoding.
            REQ_OP: In<u8> = 0x1001, "MLX5_IB_ATTR_DM_MAP_OP_ADDR_REQ_OP", mandatory;
            /// Offset of its start in the mapping.
            RESP_START_OFFSET: Out<u64> = 0x1002, "MLX5_IB_ATTR_DM_MAP_OP_ADDR_RESP_START_OFFSET", mandatory;
            /// Page index for `mmap` of the device file.
            RESP_PAGE_INDEX: Out<u16> = 0x1003, "MLX5_IB_ATTR_DM_MAP_OP_ADDR_RESP_PAGE_INDEX", optional;
        }
        /// Queries device memory.
        method DmQuery = 0x1001, "MLX5_IB_METHOD_DM_QUERY" {
            /// The memory.
            REQ_HANDLE: Handle<object::Dm> = 0x1000, "MLX5_IB_ATTR_QUERY_DM_REQ_HANDLE", mandatory;
            /// Offset of its start in the mapping.
            RESP_START_OFFSET: Out<u64> = 0x1001, "MLX5_IB_ATTR_QUERY_DM_RESP_START_OFFSET", mandatory;
            /// Page index for `mmap` of the device file.
            RESP_PAGE_INDEX: Out<u16> = 0x1002, "MLX5_IB_ATTR_QUERY_DM_RESP_PAGE_INDEX", mandatory;
            /// Its length in bytes.
            RESP_LENGTH: Out<u64> = 0x1003, "MLX5_IB_ATTR_QUERY_DM_RESP_LENGTH", mandatory;
        }
    }
}
