//! The device: contexts, ports, GIDs and INVOKE_WRITE.

use crate::method::{Constant, Flags, InSlice, Out, OutSlice, OutStruct};
use crate::uverbs::ObjectClass;
use crate::uverbs::comp_cntr::CompCntrOps;
use crate::uverbs::types::{CoreSupport, GidEntry, QueryPortRespEx};

objects! {
    /// The device of the open file. It has no handle.
    object Device = ObjectClass::DEVICE.0, "UVERBS_OBJECT_DEVICE" {
        /// Executes a write command.
        method InvokeWrite = 0, "UVERBS_METHOD_INVOKE_WRITE" with driver_payload {
            /// The command's request.
            CORE_IN: InSlice<u8, 4> = 0, "UVERBS_ATTR_CORE_IN", optional;
            /// The command's response.
            CORE_OUT: OutSlice<u8, 0> = 1, "UVERBS_ATTR_CORE_OUT", optional;
            /// Number of the command, with [`EXTENDED`](crate::write::EXTENDED) for extended
            /// commands.
            WRITE_CMD: Constant<u32> = 2, "UVERBS_ATTR_WRITE_CMD", mandatory;
        }
        /// Lists the handles of one object class in the open file.
        method InfoHandles = 1, "UVERBS_METHOD_INFO_HANDLES" {
            /// The object class; driver-specific classes are allowed.
            OBJECT_ID: Constant<ObjectClass> = 0, "UVERBS_ATTR_INFO_OBJECT_ID", mandatory;
            /// Number of elements written.
            TOTAL_HANDLES: Out<u32> = 1, "UVERBS_ATTR_INFO_TOTAL_HANDLES", optional;
            /// The handles; handles that do not fit are omitted.
            HANDLES_LIST: OutSlice<u32, 4> = 2, "UVERBS_ATTR_INFO_HANDLES_LIST", optional;
        }
        /// Queries a port.
        method QueryPort = 2, "UVERBS_METHOD_QUERY_PORT" {
            /// The port, from 1.
            PORT_NUM: Constant<u8> = 0, "UVERBS_ATTR_QUERY_PORT_PORT_NUM", mandatory;
            /// Its attributes.
            RESP: OutStruct<QueryPortRespEx, 48> = 1, "UVERBS_ATTR_QUERY_PORT_RESP", mandatory;
        }
        /// Creates the context of the open file. All other methods except [`InfoHandles`] need it.
        method GetContext = 3, "UVERBS_METHOD_GET_CONTEXT" with driver_payload {
            /// Number of completion vectors.
            NUM_COMP_VECTORS: Out<u32> = 0, "UVERBS_ATTR_GET_CONTEXT_NUM_COMP_VECTORS", optional;
            /// Features of the kernel's core.
            CORE_SUPPORT: Out<CoreSupport> = 1, "UVERBS_ATTR_GET_CONTEXT_CORE_SUPPORT", optional;
            /// Descriptors of character devices that grant privileges.
            FD_ARR: InSlice<i32, 4> = 2, "UVERBS_ATTR_GET_CONTEXT_FD_ARR" since V7_2, optional;
        }
        /// Queries the response of context creation again, if the driver supports it.
        method QueryContext = 4, "UVERBS_METHOD_QUERY_CONTEXT" {
            /// Number of completion vectors.
            NUM_COMP_VECTORS: Out<u32> = 0, "UVERBS_ATTR_QUERY_CONTEXT_NUM_COMP_VECTORS", optional;
            /// Features of the kernel's core.
            CORE_SUPPORT: Out<CoreSupport> = 1, "UVERBS_ATTR_QUERY_CONTEXT_CORE_SUPPORT", optional;
        }
        /// Queries the filled entries of the GID tables of all ports.
        method QueryGidTable = 5, "UVERBS_METHOD_QUERY_GID_TABLE" {
            /// Size of an entry in bytes.
            ENTRY_SIZE: Constant<u64> = 0, "UVERBS_ATTR_QUERY_GID_TABLE_ENTRY_SIZE", mandatory;
            /// Flags; none are defined.
            FLAGS: Flags<u32> = 1, "UVERBS_ATTR_QUERY_GID_TABLE_FLAGS", optional;
            /// The entries; the call fails if they do not fit.
            RESP_ENTRIES: OutSlice<GidEntry, 0> = 2, "UVERBS_ATTR_QUERY_GID_TABLE_RESP_ENTRIES", mandatory;
            /// Number of elements written.
            RESP_NUM_ENTRIES: Out<u64> = 3, "UVERBS_ATTR_QUERY_GID_TABLE_RESP_NUM_ENTRIES", mandatory;
        }
        /// Queries one entry of a port's GID table; `ENODATA` for an empty entry.
        method QueryGidEntry = 6, "UVERBS_METHOD_QUERY_GID_ENTRY" {
            /// The port, from 1.
            PORT: Constant<u32> = 0, "UVERBS_ATTR_QUERY_GID_ENTRY_PORT", mandatory;
            /// Index in its table.
            GID_INDEX: Constant<u32> = 1, "UVERBS_ATTR_QUERY_GID_ENTRY_GID_INDEX", mandatory;
            /// Flags; none are defined, but the attribute is mandatory.
            FLAGS: Flags<u32> = 2, "UVERBS_ATTR_QUERY_GID_ENTRY_FLAGS", mandatory;
            /// The entry.
            RESP_ENTRY: OutStruct<GidEntry, 32> = 3, "UVERBS_ATTR_QUERY_GID_ENTRY_RESP_ENTRY", mandatory;
        }
        /// Queries the effective speed of a port, if the driver supports it.
        method QueryPortSpeed = 7, "UVERBS_METHOD_QUERY_PORT_SPEED" since V7_2 {
            /// The port, from 1.
            PORT_NUM: Constant<u32> = 0, "UVERBS_ATTR_QUERY_PORT_SPEED_PORT_NUM" since V7_2, mandatory;
            /// Its speed in units of 100 Mbit/s.
            RESP: Out<u64> = 1, "UVERBS_ATTR_QUERY_PORT_SPEED_RESP" since V7_2, mandatory;
        }
        /// Queries the limits of completion counters, if the driver supports them.
        method QueryCompCntrCaps = 8, "UVERBS_METHOD_QUERY_COMP_CNTR_CAPS" since V7_3 {
            /// Maximum number of counters.
            MAX_COUNTERS: Out<u32> = 0, "UVERBS_ATTR_QUERY_COMP_CNTR_CAPS_MAX_COUNTERS" since V7_3, optional;
            /// Maximum value of a counter.
            MAX_VALUE: Out<u64> = 1, "UVERBS_ATTR_QUERY_COMP_CNTR_CAPS_MAX_VALUE" since V7_3, optional;
            /// Operations whose completions can be counted.
            SUPPORTED_QP_ATTACH_OPS: Out<CompCntrOps> = 2,
                "UVERBS_ATTR_QUERY_COMP_CNTR_CAPS_SUPPORTED_QP_ATTACH_OPS" since V7_3, optional;
        }
    }
}
