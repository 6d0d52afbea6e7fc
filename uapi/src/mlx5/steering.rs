//! Flow steering in PRM format.

use super::devx::DevxObj;
use super::verbs::{FlowTableType, PacketReformatType};
use crate::method::{
    Constant, DestroyHandle, Enumeration, Flags, Handle, Handles, In, InPart, InSlice, NewHandle, Object, Out,
};
use crate::uverbs::object;
use crate::verbs_values::FlowFlags;

abi_structs! {
    header = "rdma/mlx5_user_ioctl_cmds.h";

    /// Match parameters of packets, in PRM format.
    struct MatchParams = tag "mlx5_ib_match_params" {
        /// The words of the parameters.
        match_params: [u32; DW_MATCH_PARAM];
    }
}

abi_enums! {
    header = "rdma/mlx5_user_ioctl_cmds.h";

    /// Flow type of a matcher. The payload of the first is a priority of two bytes; the others have
    /// none.
    enum FlowType: u8 = "mlx5_ib_flow_type" {
        /// Packets that match.
        NORMAL = 0, "MLX5_IB_FLOW_TYPE_NORMAL";
        /// A copy of all packets.
        SNIFFER = 1, "MLX5_IB_FLOW_TYPE_SNIFFER";
        /// Packets that match no other flow.
        ALL_DEFAULT = 2, "MLX5_IB_FLOW_TYPE_ALL_DEFAULT";
        /// Multicast packets that match no other flow.
        MC_DEFAULT = 3, "MLX5_IB_FLOW_TYPE_MC_DEFAULT";
    }
}

abi_flags! {
    header = "rdma/mlx5_user_ioctl_cmds.h";

    /// Action of a flow without a destination.
    flags CreateFlowFlags: u32 = "mlx5_ib_create_flow_flags" {
        /// The default miss action.
        DEFAULT_MISS = 1 << 0, "MLX5_IB_ATTR_CREATE_FLOW_FLAGS_DEFAULT_MISS";
        /// Drop.
        DROP = 1 << 1, "MLX5_IB_ATTR_CREATE_FLOW_FLAGS_DROP";
    }
}

abi_consts! {
    header = "rdma/mlx5_user_ioctl_cmds.h";

    /// Number of words of [`MatchParams`].
    const DW_MATCH_PARAM: usize = 0xa0, "MLX5_IB_DW_MATCH_PARAM";
    /// Attribute of a method without a handler: flags of an IPsec action.
    const ATTR_CREATE_FLOW_ACTION_FLAGS: u16 = 0x1000, "MLX5_IB_ATTR_CREATE_FLOW_ACTION_FLAGS";
}

objects! {
    /// A matcher: the packet fields that the flows of a table compare.
    object FlowMatcher = 0x1003, "MLX5_IB_OBJECT_FLOW_MATCHER" {
        /// Creates one.
        method FlowMatcherCreate = 0x1000, "MLX5_IB_METHOD_FLOW_MATCHER_CREATE" {
            /// Its handle.
            HANDLE: NewHandle<FlowMatcher> = 0x1000, "MLX5_IB_ATTR_FLOW_MATCHER_CREATE_HANDLE", mandatory;
            /// Match mask.
            MATCH_MASK: InPart<MatchParams, 1> = 0x1001, "MLX5_IB_ATTR_FLOW_MATCHER_MATCH_MASK", mandatory;
            /// Flow type.
            FLOW_TYPE: Enumeration<FlowType> = 0x1002, "MLX5_IB_ATTR_FLOW_MATCHER_FLOW_TYPE", mandatory;
            /// Match criteria: bitmap of the valid parts of the mask.
            MATCH_CRITERIA: In<u8> = 0x1003, "MLX5_IB_ATTR_FLOW_MATCHER_MATCH_CRITERIA", mandatory;
            /// Flow flags.
            FLOW_FLAGS: Flags<FlowFlags> = 0x1004, "MLX5_IB_ATTR_FLOW_MATCHER_FLOW_FLAGS", optional;
            /// Flow table type.
            FT_TYPE: Constant<FlowTableType> = 0x1005, "MLX5_IB_ATTR_FLOW_MATCHER_FT_TYPE", optional;
            /// The port, for RDMA transport tables.
            IB_PORT: In<u32> = 0x1006, "MLX5_IB_ATTR_FLOW_MATCHER_IB_PORT" since V7_2, optional;
        }
        /// Destroys it.
        method FlowMatcherDestroy = 0x1001, "MLX5_IB_METHOD_FLOW_MATCHER_DESTROY" {
            /// The matcher.
            HANDLE: DestroyHandle<FlowMatcher> = 0x1000, "MLX5_IB_ATTR_FLOW_MATCHER_DESTROY_HANDLE", mandatory;
        }
    }

    /// A steering anchor: a table to which tables of software steering can return packets.
    object SteeringAnchor = 0x1009, "MLX5_IB_OBJECT_STEERING_ANCHOR" {
        /// Creates one.
        method SteeringAnchorCreate = 0x1000, "MLX5_IB_METHOD_STEERING_ANCHOR_CREATE" {
            /// Its handle.
            HANDLE: NewHandle<SteeringAnchor> = 0x1000, "MLX5_IB_ATTR_STEERING_ANCHOR_CREATE_HANDLE", mandatory;
            /// Flow table type.
            FT_TYPE: Constant<FlowTableType> = 0x1001, "MLX5_IB_ATTR_STEERING_ANCHOR_FT_TYPE", mandatory;
            /// Its priority.
            PRIORITY: In<u16> = 0x1002, "MLX5_IB_ATTR_STEERING_ANCHOR_PRIORITY", mandatory;
            /// The firmware's number for the table. The driver declares it as an input but writes
            /// to it (`fs.c`).
            FT_ID: Out<u32> = 0x1003, "MLX5_IB_ATTR_STEERING_ANCHOR_FT_ID", mandatory;
        }
        /// Destroys it.
        method SteeringAnchorDestroy = 0x1001, "MLX5_IB_METHOD_STEERING_ANCHOR_DESTROY" {
            /// The anchor.
            HANDLE: DestroyHandle<SteeringAnchor> = 0x1000,
                "MLX5_IB_ATTR_STEERING_ANCHOR_DESTROY_HANDLE", mandatory;
        }
    }

    /// Driver-specific methods of flows.
    object Flow = object::Flow::ID, "UVERBS_OBJECT_FLOW" {
        /// Creates one in PRM format.
        method CreateFlow = 0x1000, "MLX5_IB_METHOD_CREATE_FLOW" {
            /// Its handle.
            HANDLE: NewHandle<object::Flow> = 0x1000, "MLX5_IB_ATTR_CREATE_FLOW_HANDLE", mandatory;
            /// Match value.
            MATCH_VALUE: InPart<MatchParams, 1> = 0x1001, "MLX5_IB_ATTR_CREATE_FLOW_MATCH_VALUE", mandatory;
            /// Destination QP.
            DEST_QP: Handle<object::Qp> = 0x1002, "MLX5_IB_ATTR_CREATE_FLOW_DEST_QP", optional;
            /// Destination DEVX object.
            DEST_DEVX: Handle<DevxObj> = 0x1003, "MLX5_IB_ATTR_CREATE_FLOW_DEST_DEVX", optional;
            /// The matcher.
            MATCHER: Handle<FlowMatcher> = 0x1004, "MLX5_IB_ATTR_CREATE_FLOW_MATCHER", mandatory;
            /// Flow actions.
            ARR_FLOW_ACTIONS: Handles<object::FlowAction, 1, 2> = 0x1005,
                "MLX5_IB_ATTR_CREATE_FLOW_ARR_FLOW_ACTIONS", optional;
            /// Flow tag in completions.
            TAG: In<u32> = 0x1006, "MLX5_IB_ATTR_CREATE_FLOW_TAG", optional;
            /// Counter object.
            ARR_COUNTERS_DEVX: Handles<DevxObj, 1, 1> = 0x1007,
                "MLX5_IB_ATTR_CREATE_FLOW_ARR_COUNTERS_DEVX", optional;
            /// Offset in bulk counters.
            ARR_COUNTERS_DEVX_OFFSET: InSlice<u32, 4> = 0x1008,
                "MLX5_IB_ATTR_CREATE_FLOW_ARR_COUNTERS_DEVX_OFFSET", optional;
            /// Action without a destination.
            FLAGS: Flags<CreateFlowFlags> = 0x1009, "MLX5_IB_ATTR_CREATE_FLOW_FLAGS", optional;
        }
        /// Destroys it.
        method DestroyFlow = 0x1001, "MLX5_IB_METHOD_DESTROY_FLOW" {
            /// The flow.
            HANDLE: DestroyHandle<object::Flow> = 0x1000, "MLX5_IB_ATTR_DESTROY_FLOW_HANDLE", mandatory;
        }
    }

    /// Driver-specific methods of flow actions.
    object FlowAction = object::FlowAction::ID, "UVERBS_OBJECT_FLOW_ACTION" {
        /// Creates a modify-header action.
        method FlowActionCreateModifyHeader = 0x1000, "MLX5_IB_METHOD_FLOW_ACTION_CREATE_MODIFY_HEADER" {
            /// Its handle.
            HANDLE: NewHandle<object::FlowAction> = 0x1000, "MLX5_IB_ATTR_CREATE_MODIFY_HEADER_HANDLE", mandatory;
            /// The modifications, each of 8 bytes in PRM format.
            ACTIONS_PRM: InSlice<u64, 8> = 0x1001, "MLX5_IB_ATTR_CREATE_MODIFY_HEADER_ACTIONS_PRM", mandatory;
            /// Flow table type.
            FT_TYPE: Constant<FlowTableType> = 0x1002, "MLX5_IB_ATTR_CREATE_MODIFY_HEADER_FT_TYPE", mandatory;
        }
        /// Creates a packet reformat action.
        method FlowActionCreatePacketReformat = 0x1001, "MLX5_IB_METHOD_FLOW_ACTION_CREATE_PACKET_REFORMAT" {
            /// Its handle.
            HANDLE: NewHandle<object::FlowAction> = 0x1000,
                "MLX5_IB_ATTR_CREATE_PACKET_REFORMAT_HANDLE", mandatory;
            /// Reformat type.
            TYPE: Constant<PacketReformatType> = 0x1001, "MLX5_IB_ATTR_CREATE_PACKET_REFORMAT_TYPE", mandatory;
            /// Flow table type.
            FT_TYPE: Constant<FlowTableType> = 0x1002,
                "MLX5_IB_ATTR_CREATE_PACKET_REFORMAT_FT_TYPE", mandatory;
            /// The headers to add.
            DATA_BUF: InSlice<u8, 1> = 0x1003, "MLX5_IB_ATTR_CREATE_PACKET_REFORMAT_DATA_BUF", optional;
        }
    }
}
