//! The device itself: contexts, ports, GIDs, and the way to the write commands.

use crate::method::{Constant, Flags, InSlice, Out, OutSlice, OutStruct};
use crate::uverbs::ObjectClass;
use crate::uverbs::types::{CoreSupport, GidEntry, QueryPortRespEx};

objects! {
    /// The device that the open file stands for; it has no handles.
    object Device = ObjectClass::DEVICE.0, "UVERBS_OBJECT_DEVICE" {
        /// Carries out a write command.
        method InvokeWrite = 0, "UVERBS_METHOD_INVOKE_WRITE" with driver_payload {
            /// The command's request.
            CORE_IN: InSlice<u8, 4> = 0, "UVERBS_ATTR_CORE_IN", optional;
            /// The command's response.
            CORE_OUT: OutSlice<u8, 0> = 1, "UVERBS_ATTR_CORE_OUT", optional;
            /// The command's number, with [`EXTENDED`](crate::write::EXTENDED) for the extended
            /// kind.
            WRITE_CMD: Constant<u32> = 2, "UVERBS_ATTR_WRITE_CMD", mandatory;
        }
        /// Lists the handles that the open file holds of one class.
        method InfoHandles = 1, "UVERBS_METHOD_INFO_HANDLES" {
            /// The class; a driver's own works too.
            OBJECT_ID: Constant<ObjectClass> = 0, "UVERBS_ATTR_INFO_OBJECT_ID", mandatory;
            /// How many were written.
            TOTAL_HANDLES: Out<u32> = 1, "UVERBS_ATTR_INFO_TOTAL_HANDLES", optional;
            /// The handles; more than fit are left out.
            HANDLES_LIST: OutSlice<u32, 4> = 2, "UVERBS_ATTR_INFO_HANDLES_LIST", optional;
        }
        /// Reads a port's attributes.
        method QueryPort = 2, "UVERBS_METHOD_QUERY_PORT" {
            /// The port, from 1.
            PORT_NUM: Constant<u8> = 0, "UVERBS_ATTR_QUERY_PORT_PORT_NUM", mandatory;
            /// Its attributes.
            RESP: OutStruct<QueryPortRespEx, 48> = 1, "UVERBS_ATTR_QUERY_PORT_RESP", mandatory;
        }
        /// Makes the open file's context; every other method but [`InfoHandles`] needs it.
        method GetContext = 3, "UVERBS_METHOD_GET_CONTEXT" with driver_payload {
            /// Number of completion vectors.
            NUM_COMP_VECTORS: Out<u32> = 0, "UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS", optional;
            /// What the kernel's core supports.
            CORE_SUPPORT: Out<CoreSupport> = 1, "UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT", optional;
            /// Descriptors of character devices that grant privileges.
            FD_ARR: InSlice<i32, 4> = 2, "UVERBS_ATTR_GET_CONTEXT_FD_ARR" since V7_2, optional;
        }
        /// Reads again what making the context told, where the driver supports it.
        method QueryContext = 4, "UVERBS_METHOD_QUERY_CONTEXT" {
            /// Number of completion vectors.
            NUM_COMP_VECTORS: Out<u32> = 0, "UVERBS_ATTR_QUERY_CONTEXT_NUM_COMP_VECTORS", optional;
            /// What the kernel's core supports.
            CORE_SUPPORT: Out<CoreSupport> = 1, "UVERBS_ATTR_QUERY_CONTEXT_CORE_SUPPORT", optional;
        }
        /// Reads the GID tables of all ports, without empty entries.
        method QueryGidTable = 5, "UVERBS_METHOD_QUERY_GID_TABLE" {
            /// Bytes from one entry to the next.
            ENTRY_SIZE: Constant<u64> = 0, "UVERBS_ATTR_QUERY_GID_TABLE_ENTRY_SIZE", mandatory;
            /// None are defined.
            FLAGS: Flags<u32> = 1, "UVERBS_ATTR_QUERY_GID_TABLE_FLAGS", optional;
            /// The entries; the call fails if they do not all fit.
            RESP_ENTRIES: OutSlice<GidEntry, 0> = 2, "UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES", mandatory;
            /// How many were written.
            RESP_NUM_ENTRIES: Out<u64> = 3, "UVERBS_ATTR_QUERY_GID_TABLE_RESP_NUM_ENTRIES", mandatory;
        }
        /// Reads one entry of a port's GID table; `ENODATA` for an empty one.
        method QueryGidEntry = 6, "UVERBS_METHOD_QUERY_GID_ENTRY" {
            /// The port, from 1.
            PORT: Constant<u32> = 0, "UVERBS_ATTR_QUERY_GID_ENTRY_PORT", mandatory;
            /// Index in its table.
            GID_INDEX: Constant<u32> = 1, "UVERBS_ATTR_QUERY_GID_ENTRY_GID_INDEX", mandatory;
            /// None are defined, yet the word must be there.
            FLAGS: Flags<u32> = 2, "UVERBS_ATTR_QUERY_GID_ENTRY_FLAGS", mandatory;
            /// The entry.
            RESP_ENTRY: OutStruct<GidEntry, 32> = 3, "UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY", mandatory;
        }
        /// Reads a port's effective speed, where the driver knows it.
        method QueryPortSpeed = 7, "UVERBS_METHOD_QUERY_PORT_SPEED" since V7_2 {
            /// The port, from 1.
            PORT_NUM: Constant<u32> = 0, "UVERBS_ATTR_QUERY_PORT_SPEED_PORT_NUM" since V7_2, mandatory;
            /// Its speed in units of 100 Mbit/s.
            RESP: Out<u64> = 1, "UVERBS_ATTR_QUERY_PORT_SPEED_RESP" since V7_2, mandatory;
        }
    }
}
