//! DEVX: firmware commands, and the objects and events of the firmware.
//!
//! Commands and responses are in PRM format. The first 16 bytes have the same layout for all
//! commands.

use super::verbs::DevxEventChannelFlags;
use crate::method::{
    Constant, Descriptor, DestroyHandle, Flags, Handle, In, InSlice, NewDescriptor, NewHandle, Object,
    ObjectInfo, Out, OutSlice, RawDescriptor,
};
use crate::uverbs::types::AccessFlags;

/// Size of the header of a command and of a response in bytes.
const COMMAND_HEAD: usize = 16;

/// An object of any class, such as a QP or a DEVX object.
#[doc(alias = "UVERBS_IDR_ANY_OBJECT")]
#[derive(Clone, Copy, Debug)]
pub struct AnyObject;

impl Object for AnyObject {
    const ID: u16 = 0xffff;
    const INFO: ObjectInfo = ObjectInfo {
        rust: "AnyObject",
        c: "UVERBS_IDR_ANY_OBJECT",
        id: Self::ID,
        since: crate::abi::Since::V6_1,
        methods: &[],
    };
}

objects! {
    /// The firmware.
    object Devx = 0x1000, "MLX5_IB_OBJECT_DEVX" {
        /// Executes a command that creates no object.
        method DevxOther = 0x1000, "MLX5_IB_METHOD_DEVX_OTHER" {
            /// The command.
            CMD_IN: InSlice<u8, COMMAND_HEAD> = 0x1000, "MLX5_IB_ATTR_DEVX_OTHER_CMD_IN", mandatory;
            /// The response.
            CMD_OUT: OutSlice<u8, COMMAND_HEAD> = 0x1001, "MLX5_IB_ATTR_DEVX_OTHER_CMD_OUT", mandatory;
        }
        /// Queries the firmware's UAR number of a doorbell register.
        method DevxQueryUar = 0x1001, "MLX5_IB_METHOD_DEVX_QUERY_UAR" {
            /// Index of the doorbell register in the context.
            USER_IDX: In<u32> = 0x1000, "MLX5_IB_ATTR_DEVX_QUERY_UAR_USER_IDX", mandatory;
            /// The firmware's UAR number.
            DEV_IDX: Out<u32> = 0x1001, "MLX5_IB_ATTR_DEVX_QUERY_UAR_DEV_IDX", mandatory;
        }
        /// Queries the firmware's EQ number of a completion vector.
        method DevxQueryEqn = 0x1002, "MLX5_IB_METHOD_DEVX_QUERY_EQN" {
            /// The completion vector.
            USER_VEC: In<u32> = 0x1000, "MLX5_IB_ATTR_DEVX_QUERY_EQN_USER_VEC", mandatory;
            /// The firmware's EQ number.
            DEV_EQN: Out<u32> = 0x1001, "MLX5_IB_ATTR_DEVX_QUERY_EQN_DEV_EQN", mandatory;
        }
        /// Subscribes to events of an object or of the device.
        method DevxSubscribeEvent = 0x1003, "MLX5_IB_METHOD_DEVX_SUBSCRIBE_EVENT" {
            /// Event channel.
            FD_HANDLE: Descriptor<DevxAsyncEventFd> = 0x1000,
                "MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_FD_HANDLE", mandatory;
            /// The object; absent for device events.
            OBJ_HANDLE: Handle<DevxObj> = 0x1001, "MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_OBJ_HANDLE", optional;
            /// Event types of the firmware.
            TYPE_NUM_LIST: InSlice<u16, 2> = 0x1002,
                "MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_TYPE_NUM_LIST", mandatory;
            /// An eventfd that is signalled instead of the event channel.
            FD_NUM: In<u32> = 0x1003, "MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_FD_NUM", optional;
            /// Cookie of the events.
            COOKIE: In<u64> = 0x1004, "MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_COOKIE", optional;
        }
    }

    /// A DEVX object of the firmware.
    object DevxObj = 0x1001, "MLX5_IB_OBJECT_DEVX_OBJ" {
        /// Creates one.
        method DevxObjCreate = 0x1000, "MLX5_IB_METHOD_DEVX_OBJ_CREATE" {
            /// Its handle.
            HANDLE: NewHandle<DevxObj> = 0x1000, "MLX5_IB_ATTR_DEVX_OBJ_CREATE_HANDLE", mandatory;
            /// The command.
            CMD_IN: InSlice<u8, COMMAND_HEAD> = 0x1001, "MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_IN", mandatory;
            /// The response.
            CMD_OUT: OutSlice<u8, COMMAND_HEAD> = 0x1002, "MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_OUT", mandatory;
        }
        /// Destroys it.
        method DevxObjDestroy = 0x1001, "MLX5_IB_METHOD_DEVX_OBJ_DESTROY" {
            /// The object.
            HANDLE: DestroyHandle<DevxObj> = 0x1000, "MLX5_IB_ATTR_DEVX_OBJ_DESTROY_HANDLE", mandatory;
        }
        /// Modifies it.
        method DevxObjModify = 0x1002, "MLX5_IB_METHOD_DEVX_OBJ_MODIFY" {
            /// The object.
            HANDLE: Handle<AnyObject> = 0x1000, "MLX5_IB_ATTR_DEVX_OBJ_MODIFY_HANDLE", mandatory;
            /// The command.
            CMD_IN: InSlice<u8, COMMAND_HEAD> = 0x1001, "MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_IN", mandatory;
            /// The response.
            CMD_OUT: OutSlice<u8, COMMAND_HEAD> = 0x1002, "MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_OUT", mandatory;
        }
        /// Queries it.
        method DevxObjQuery = 0x1003, "MLX5_IB_METHOD_DEVX_OBJ_QUERY" {
            /// The object.
            HANDLE: Handle<AnyObject> = 0x1000, "MLX5_IB_ATTR_DEVX_OBJ_QUERY_HANDLE", mandatory;
            /// The command.
            CMD_IN: InSlice<u8, COMMAND_HEAD> = 0x1001, "MLX5_IB_ATTR_DEVX_OBJ_QUERY_CMD_IN", mandatory;
            /// The response.
            CMD_OUT: OutSlice<u8, COMMAND_HEAD> = 0x1002, "MLX5_IB_ATTR_DEVX_OBJ_QUERY_CMD_OUT", mandatory;
        }
        /// Queries it asynchronously.
        method DevxObjAsyncQuery = 0x1004, "MLX5_IB_METHOD_DEVX_OBJ_ASYNC_QUERY" {
            /// The object.
            HANDLE: Handle<AnyObject> = 0x1000, "MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_HANDLE", mandatory;
            /// The command.
            CMD_IN: InSlice<u8, COMMAND_HEAD> = 0x1001, "MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_CMD_IN", mandatory;
            /// Channel of the response.
            FD: Descriptor<DevxAsyncCmdFd> = 0x1002, "MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_FD", mandatory;
            /// Id of the response.
            WR_ID: In<u64> = 0x1003, "MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_WR_ID", mandatory;
            /// Size of the response in bytes.
            OUT_LEN: Constant<u16> = 0x1004, "MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_OUT_LEN", mandatory;
        }
    }

    /// User memory (UMEM) for firmware objects.
    object DevxUmem = 0x1002, "MLX5_IB_OBJECT_DEVX_UMEM" {
        /// Registers it.
        method DevxUmemReg = 0x1000, "MLX5_IB_METHOD_DEVX_UMEM_REG" {
            /// Its handle.
            HANDLE: NewHandle<DevxUmem> = 0x1000, "MLX5_IB_ATTR_DEVX_UMEM_REG_HANDLE", mandatory;
            /// Address, or offset in the dma-buf.
            ADDR: In<u64> = 0x1001, "MLX5_IB_ATTR_DEVX_UMEM_REG_ADDR", mandatory;
            /// Length in bytes.
            LEN: In<u64> = 0x1002, "MLX5_IB_ATTR_DEVX_UMEM_REG_LEN", mandatory;
            /// Access flags.
            ACCESS: Flags<AccessFlags> = 0x1003, "MLX5_IB_ATTR_DEVX_UMEM_REG_ACCESS", optional;
            /// Its firmware index.
            OUT_ID: Out<u32> = 0x1004, "MLX5_IB_ATTR_DEVX_UMEM_REG_OUT_ID", mandatory;
            /// Bitmap of allowed page sizes.
            PGSZ_BITMAP: Constant<u64> = 0x1005, "MLX5_IB_ATTR_DEVX_UMEM_REG_PGSZ_BITMAP", optional;
            /// A dma-buf instead of user memory.
            DMABUF_FD: RawDescriptor = 0x1006, "MLX5_IB_ATTR_DEVX_UMEM_REG_DMABUF_FD", optional;
        }
        /// Destroys it.
        method DevxUmemDereg = 0x1001, "MLX5_IB_METHOD_DEVX_UMEM_DEREG" {
            /// The memory.
            HANDLE: DestroyHandle<DevxUmem> = 0x1000, "MLX5_IB_ATTR_DEVX_UMEM_DEREG_HANDLE", mandatory;
        }
    }

    /// A channel for responses of [`DevxObjAsyncQuery`].
    object DevxAsyncCmdFd = 0x1004, "MLX5_IB_OBJECT_DEVX_ASYNC_CMD_FD" {
        /// Creates one.
        method DevxAsyncCmdFdAlloc = 0x1000, "MLX5_IB_METHOD_DEVX_ASYNC_CMD_FD_ALLOC" {
            /// Its descriptor.
            HANDLE: NewDescriptor<DevxAsyncCmdFd> = 0x1000,
                "MLX5_IB_ATTR_DEVX_ASYNC_CMD_FD_ALLOC_HANDLE", mandatory;
        }
    }

    /// An event channel.
    object DevxAsyncEventFd = 0x1005, "MLX5_IB_OBJECT_DEVX_ASYNC_EVENT_FD" {
        /// Creates one.
        method DevxAsyncEventFdAlloc = 0x1000, "MLX5_IB_METHOD_DEVX_ASYNC_EVENT_FD_ALLOC" {
            /// Its descriptor.
            HANDLE: NewDescriptor<DevxAsyncEventFd> = 0x1000,
                "MLX5_IB_ATTR_DEVX_ASYNC_EVENT_FD_ALLOC_HANDLE", mandatory;
            /// Flags.
            FLAGS: Flags<DevxEventChannelFlags> = 0x1001,
                "MLX5_IB_ATTR_DEVX_ASYNC_EVENT_FD_ALLOC_FLAGS", mandatory;
        }
    }
}
