//! Commands to the firmware and what comes of them: DEVX.
//!
//! Commands and answers are in the firmware's own format, whose first 16 bytes are the same for
//! all.

use super::verbs::DevxEventChannelFlags;
use crate::method::{
    Constant, Descriptor, DestroyHandle, Flags, Handle, In, InSlice, NewDescriptor, NewHandle, Object,
    ObjectInfo, Out, OutSlice, RawDescriptor,
};
use crate::uverbs::types::AccessFlags;

/// Bytes of the head of a command and of an answer.
const COMMAND_HEAD: usize = 16;

/// An object of any class: a QP, say, as well as one of the firmware's own.
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
        /// Passes a command that makes no object.
        method DevxOther = 0x1000, "MLX5_IB_METHOD_DEVX_OTHER" {
            /// The command.
            CMD_IN: InSlice<u8, COMMAND_HEAD> = 0x1000, "MLX5_IB_ATTR_DEVX_OTHER_CMD_IN", mandatory;
            /// The answer.
            CMD_OUT: OutSlice<u8, COMMAND_HEAD> = 0x1001, "MLX5_IB_ATTR_DEVX_OTHER_CMD_OUT", mandatory;
        }
        /// Asks for the firmware's number of a doorbell page.
        method DevxQueryUar = 0x1001, "MLX5_IB_METHOD_DEVX_QUERY_UAR" {
            /// The context's number for the doorbell register.
            USER_IDX: In<u32> = 0x1000, "MLX5_IB_ATTR_DEVX_QUERY_UAR_USER_IDX", mandatory;
            /// The firmware's number for the page.
            DEV_IDX: Out<u32> = 0x1001, "MLX5_IB_ATTR_DEVX_QUERY_UAR_DEV_IDX", mandatory;
        }
        /// Asks for the firmware's number of an event queue.
        method DevxQueryEqn = 0x1002, "MLX5_IB_METHOD_DEVX_QUERY_EQN" {
            /// The completion vector.
            USER_VEC: In<u32> = 0x1000, "MLX5_IB_ATTR_DEVX_QUERY_EQN_USER_VEC", mandatory;
            /// The firmware's number for its event queue.
            DEV_EQN: Out<u32> = 0x1001, "MLX5_IB_ATTR_DEVX_QUERY_EQN_DEV_EQN", mandatory;
        }
        /// Asks for events of an object or of the device.
        method DevxSubscribeEvent = 0x1003, "MLX5_IB_METHOD_DEVX_SUBSCRIBE_EVENT" {
            /// Channel that the events come by.
            FD_HANDLE: Descriptor<DevxAsyncEventFd> = 0x1000,
                "MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_FD_HANDLE", mandatory;
            /// The object; absent for events of the device.
            OBJ_HANDLE: Handle<DevxObj> = 0x1001, "MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_OBJ_HANDLE", optional;
            /// The firmware's numbers of the events.
            TYPE_NUM_LIST: InSlice<u16, 2> = 0x1002,
                "MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_TYPE_NUM_LIST", mandatory;
            /// An eventfd to signal in place of giving the events by the channel.
            FD_NUM: In<u32> = 0x1003, "MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_FD_NUM", optional;
            /// Number that the events are to carry.
            COOKIE: In<u64> = 0x1004, "MLX5_IB_ATTR_DEVX_SUBSCRIBE_EVENT_COOKIE", optional;
        }
    }

    /// An object of the firmware's own.
    object DevxObj = 0x1001, "MLX5_IB_OBJECT_DEVX_OBJ" {
        /// Makes one.
        method DevxObjCreate = 0x1000, "MLX5_IB_METHOD_DEVX_OBJ_CREATE" {
            /// Its handle.
            HANDLE: NewHandle<DevxObj> = 0x1000, "MLX5_IB_ATTR_DEVX_OBJ_CREATE_HANDLE", mandatory;
            /// The command.
            CMD_IN: InSlice<u8, COMMAND_HEAD> = 0x1001, "MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_IN", mandatory;
            /// The answer.
            CMD_OUT: OutSlice<u8, COMMAND_HEAD> = 0x1002, "MLX5_IB_ATTR_DEVX_OBJ_CREATE_CMD_OUT", mandatory;
        }
        /// Gives it back.
        method DevxObjDestroy = 0x1001, "MLX5_IB_METHOD_DEVX_OBJ_DESTROY" {
            /// The object.
            HANDLE: DestroyHandle<DevxObj> = 0x1000, "MLX5_IB_ATTR_DEVX_OBJ_DESTROY_HANDLE", mandatory;
        }
        /// Changes it.
        method DevxObjModify = 0x1002, "MLX5_IB_METHOD_DEVX_OBJ_MODIFY" {
            /// The object.
            HANDLE: Handle<AnyObject> = 0x1000, "MLX5_IB_ATTR_DEVX_OBJ_MODIFY_HANDLE", mandatory;
            /// The command.
            CMD_IN: InSlice<u8, COMMAND_HEAD> = 0x1001, "MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_IN", mandatory;
            /// The answer.
            CMD_OUT: OutSlice<u8, COMMAND_HEAD> = 0x1002, "MLX5_IB_ATTR_DEVX_OBJ_MODIFY_CMD_OUT", mandatory;
        }
        /// Asks of it.
        method DevxObjQuery = 0x1003, "MLX5_IB_METHOD_DEVX_OBJ_QUERY" {
            /// The object.
            HANDLE: Handle<AnyObject> = 0x1000, "MLX5_IB_ATTR_DEVX_OBJ_QUERY_HANDLE", mandatory;
            /// The command.
            CMD_IN: InSlice<u8, COMMAND_HEAD> = 0x1001, "MLX5_IB_ATTR_DEVX_OBJ_QUERY_CMD_IN", mandatory;
            /// The answer.
            CMD_OUT: OutSlice<u8, COMMAND_HEAD> = 0x1002, "MLX5_IB_ATTR_DEVX_OBJ_QUERY_CMD_OUT", mandatory;
        }
        /// Asks of it without waiting.
        method DevxObjAsyncQuery = 0x1004, "MLX5_IB_METHOD_DEVX_OBJ_ASYNC_QUERY" {
            /// The object.
            HANDLE: Handle<AnyObject> = 0x1000, "MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_HANDLE", mandatory;
            /// The command.
            CMD_IN: InSlice<u8, COMMAND_HEAD> = 0x1001, "MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_CMD_IN", mandatory;
            /// Channel that the answer comes by.
            FD: Descriptor<DevxAsyncCmdFd> = 0x1002, "MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_FD", mandatory;
            /// Number that the answer is to carry.
            WR_ID: In<u64> = 0x1003, "MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_WR_ID", mandatory;
            /// Bytes of the answer.
            OUT_LEN: Constant<u16> = 0x1004, "MLX5_IB_ATTR_DEVX_OBJ_QUERY_ASYNC_OUT_LEN", mandatory;
        }
    }

    /// Memory that firmware objects use.
    object DevxUmem = 0x1002, "MLX5_IB_OBJECT_DEVX_UMEM" {
        /// Registers it.
        method DevxUmemReg = 0x1000, "MLX5_IB_METHOD_DEVX_UMEM_REG" {
            /// Its handle.
            HANDLE: NewHandle<DevxUmem> = 0x1000, "MLX5_IB_ATTR_DEVX_UMEM_REG_HANDLE", mandatory;
            /// Address, or offset in the dma-buf.
            ADDR: In<u64> = 0x1001, "MLX5_IB_ATTR_DEVX_UMEM_REG_ADDR", mandatory;
            /// Bytes.
            LEN: In<u64> = 0x1002, "MLX5_IB_ATTR_DEVX_UMEM_REG_LEN", mandatory;
            /// What the device may do with it.
            ACCESS: Flags<AccessFlags> = 0x1003, "MLX5_IB_ATTR_DEVX_UMEM_REG_ACCESS", optional;
            /// The firmware's number for it.
            OUT_ID: Out<u32> = 0x1004, "MLX5_IB_ATTR_DEVX_UMEM_REG_OUT_ID", mandatory;
            /// Page sizes that will do, bit by bit.
            PGSZ_BITMAP: Constant<u64> = 0x1005, "MLX5_IB_ATTR_DEVX_UMEM_REG_PGSZ_BITMAP", optional;
            /// A dma-buf in place of the caller's memory.
            DMABUF_FD: RawDescriptor = 0x1006, "MLX5_IB_ATTR_DEVX_UMEM_REG_DMABUF_FD", optional;
        }
        /// Gives it back.
        method DevxUmemDereg = 0x1001, "MLX5_IB_METHOD_DEVX_UMEM_DEREG" {
            /// The memory.
            HANDLE: DestroyHandle<DevxUmem> = 0x1000, "MLX5_IB_ATTR_DEVX_UMEM_DEREG_HANDLE", mandatory;
        }
    }

    /// A channel that answers to [`DevxObjAsyncQuery`] come by.
    object DevxAsyncCmdFd = 0x1004, "MLX5_IB_OBJECT_DEVX_ASYNC_CMD_FD" {
        /// Makes one.
        method DevxAsyncCmdFdAlloc = 0x1000, "MLX5_IB_METHOD_DEVX_ASYNC_CMD_FD_ALLOC" {
            /// Its descriptor.
            HANDLE: NewDescriptor<DevxAsyncCmdFd> = 0x1000,
                "MLX5_IB_ATTR_DEVX_ASYNC_CMD_FD_ALLOC_HANDLE", mandatory;
        }
    }

    /// A channel that events come by.
    object DevxAsyncEventFd = 0x1005, "MLX5_IB_OBJECT_DEVX_ASYNC_EVENT_FD" {
        /// Makes one.
        method DevxAsyncEventFdAlloc = 0x1000, "MLX5_IB_METHOD_DEVX_ASYNC_EVENT_FD_ALLOC" {
            /// Its descriptor.
            HANDLE: NewDescriptor<DevxAsyncEventFd> = 0x1000,
                "MLX5_IB_ATTR_DEVX_ASYNC_EVENT_FD_ALLOC_HANDLE", mandatory;
            /// How it is made.
            FLAGS: Flags<DevxEventChannelFlags> = 0x1001,
                "MLX5_IB_ATTR_DEVX_ASYNC_EVENT_FD_ALLOC_FLAGS", mandatory;
        }
    }
}
