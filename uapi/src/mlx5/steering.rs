//! Flows in the firmware's own format.

use super::devx::DevxObj;
use super::verbs::{FlowTableType, PacketReformatType};
use crate::method::{
    Constant, DestroyHandle, Enumeration, Flags, Handle, Handles, In, InPart, InSlice, NewHandle, Object, Out,
};
use crate::uverbs::object;
use crate::verbs_values::FlowFlags;

abi_structs! {
    header = "rdma/mlx5_user_ioctl_cmds.h";

    /// What of a packet to compare and with what, in the firmware's own format.
    struct MatchParams = tag "mlx5_ib_match_params" {
        /// The format's words.
        match_params: [u32; DW_MATCH_PARAM];
    }
}

abi_enums! {
    header = "rdma/mlx5_user_ioctl_cmds.h";

    /// Which flows a matcher is for; the first takes a priority of two bytes, the others nothing.
    enum FlowType: u8 = "mlx5_ib_flow_type" {
        /// Those that match.
        NORMAL = 0, "MLX5_IB_FLOW_TYPE_NORMAL";
        /// A copy of everything.
        SNIFFER = 1, "MLX5_IB_FLOW_TYPE_SNIFFER";
        /// Whatever matches nothing else.
        ALL_DEFAULT = 2, "MLX5_IB_FLOW_TYPE_ALL_DEFAULT";
        /// Multicast packets that match nothing else.
        MC_DEFAULT = 3, "MLX5_IB_FLOW_TYPE_MC_DEFAULT";
    }
}

abi_flags! {
    header = "rdma/mlx5_user_ioctl_cmds.h";

    /// Where a flow's packets go, in place of a destination.
    flags CreateFlowFlags: u32 = "mlx5_ib_create_flow_flags" {
        /// Where packets go that match nothing.
        DEFAULT_MISS = 1 << 0, "MLX5_IB_ATTR_CREATE_FLOW_FLAGS_DEFAULT_MISS";
        /// Nowhere.
        DROP = 1 << 1, "MLX5_IB_ATTR_CREATE_FLOW_FLAGS_DROP";
    }
}

abi_consts! {
    header = "rdma/mlx5_user_ioctl_cmds.h";

    /// Words of [`MatchParams`].
    const DW_MATCH_PARAM: usize = 0xa0, "MLX5_IB_DW_MATCH_PARAM";
    /// Attribute of a method without a handler: how an IPsec action is made.
    const ATTR_CREATE_FLOW_ACTION_FLAGS: u16 = 0x1000, "MLX5_IB_ATTR_CREATE_FLOW_ACTION_FLAGS";
}

objects! {
    /// Which packets a table's flows compare, and by what.
    object FlowMatcher = 0x1003, "MLX5_IB_OBJECT_FLOW_MATCHER" {
        /// Makes one.
        method FlowMatcherCreate = 0x1000, "MLX5_IB_METHOD_FLOW_MATCHER_CREATE" {
            /// Its handle.
            HANDLE: NewHandle<FlowMatcher> = 0x1000, "MLX5_IB_ATTR_FLOW_MATCHER_CREATE_HANDLE", mandatory;
            /// Which bits count.
            MATCH_MASK: InPart<MatchParams, 1> = 0x1001, "MLX5_IB_ATTR_FLOW_MATCHER_MATCH_MASK", mandatory;
            /// Which flows it is for.
            FLOW_TYPE: Enumeration<FlowType> = 0x1002, "MLX5_IB_ATTR_FLOW_MATCHER_FLOW_TYPE", mandatory;
            /// Which parts of the mask count, bit by bit.
            MATCH_CRITERIA: In<u8> = 0x1003, "MLX5_IB_ATTR_FLOW_MATCHER_MATCH_CRITERIA", mandatory;
            /// How flows behave.
            FLOW_FLAGS: Flags<FlowFlags> = 0x1004, "MLX5_IB_ATTR_FLOW_MATCHER_FLOW_FLAGS", optional;
            /// The table.
            FT_TYPE: Constant<FlowTableType> = 0x1005, "MLX5_IB_ATTR_FLOW_MATCHER_FT_TYPE", optional;
            /// The port, for the tables of the RDMA transport.
            IB_PORT: In<u32> = 0x1006, "MLX5_IB_ATTR_FLOW_MATCHER_IB_PORT" since V7_2, optional;
        }
        /// Gives it back.
        method FlowMatcherDestroy = 0x1001, "MLX5_IB_METHOD_FLOW_MATCHER_DESTROY" {
            /// The matcher.
            HANDLE: DestroyHandle<FlowMatcher> = 0x1000, "MLX5_IB_ATTR_FLOW_MATCHER_DESTROY_HANDLE", mandatory;
        }
    }

    /// A table that software's own tables can send packets back to.
    object SteeringAnchor = 0x1009, "MLX5_IB_OBJECT_STEERING_ANCHOR" {
        /// Makes one.
        method SteeringAnchorCreate = 0x1000, "MLX5_IB_METHOD_STEERING_ANCHOR_CREATE" {
            /// Its handle.
            HANDLE: NewHandle<SteeringAnchor> = 0x1000, "MLX5_IB_ATTR_STEERING_ANCHOR_CREATE_HANDLE", mandatory;
            /// The table.
            FT_TYPE: Constant<FlowTableType> = 0x1001, "MLX5_IB_ATTR_STEERING_ANCHOR_FT_TYPE", mandatory;
            /// Its priority.
            PRIORITY: In<u16> = 0x1002, "MLX5_IB_ATTR_STEERING_ANCHOR_PRIORITY", mandatory;
            /// The firmware's number for the table. The driver declares it an input and yet writes
            /// to it (`fs.c`).
            FT_ID: Out<u32> = 0x1003, "MLX5_IB_ATTR_STEERING_ANCHOR_FT_ID", mandatory;
        }
        /// Gives it back.
        method SteeringAnchorDestroy = 0x1001, "MLX5_IB_METHOD_STEERING_ANCHOR_DESTROY" {
            /// The anchor.
            HANDLE: DestroyHandle<SteeringAnchor> = 0x1000,
                "MLX5_IB_ATTR_STEERING_ANCHOR_DESTROY_HANDLE", mandatory;
        }
    }

    /// What the driver adds to flows.
    object Flow = object::Flow::ID, "UVERBS_OBJECT_FLOW" {
        /// Makes one in the firmware's own format.
        method CreateFlow = 0x1000, "MLX5_IB_METHOD_CREATE_FLOW" {
            /// Its handle.
            HANDLE: NewHandle<object::Flow> = 0x1000, "MLX5_IB_ATTR_CREATE_FLOW_HANDLE", mandatory;
            /// What the compared bits must be.
            MATCH_VALUE: InPart<MatchParams, 1> = 0x1001, "MLX5_IB_ATTR_CREATE_FLOW_MATCH_VALUE", mandatory;
            /// QP that gets the packets.
            DEST_QP: Handle<object::Qp> = 0x1002, "MLX5_IB_ATTR_CREATE_FLOW_DEST_QP", optional;
            /// Firmware object that gets the packets.
            DEST_DEVX: Handle<DevxObj> = 0x1003, "MLX5_IB_ATTR_CREATE_FLOW_DEST_DEVX", optional;
            /// The matcher.
            MATCHER: Handle<FlowMatcher> = 0x1004, "MLX5_IB_ATTR_CREATE_FLOW_MATCHER", mandatory;
            /// What to do to the packets.
            ARR_FLOW_ACTIONS: Handles<object::FlowAction, 1, 2> = 0x1005,
                "MLX5_IB_ATTR_CREATE_FLOW_ARR_FLOW_ACTIONS", optional;
            /// Number that completions are to carry.
            TAG: In<u32> = 0x1006, "MLX5_IB_ATTR_CREATE_FLOW_TAG", optional;
            /// Counter of the packets.
            ARR_COUNTERS_DEVX: Handles<DevxObj, 1, 1> = 0x1007,
                "MLX5_IB_ATTR_CREATE_FLOW_ARR_COUNTERS_DEVX", optional;
            /// Which of a bulk of counters it is.
            ARR_COUNTERS_DEVX_OFFSET: InSlice<u32, 4> = 0x1008,
                "MLX5_IB_ATTR_CREATE_FLOW_ARR_COUNTERS_DEVX_OFFSET", optional;
            /// Where the packets go without a destination.
            FLAGS: Flags<CreateFlowFlags> = 0x1009, "MLX5_IB_ATTR_CREATE_FLOW_FLAGS", optional;
        }
        /// Gives it back.
        method DestroyFlow = 0x1001, "MLX5_IB_METHOD_DESTROY_FLOW" {
            /// The flow.
            HANDLE: DestroyHandle<object::Flow> = 0x1000, "MLX5_IB_ATTR_DESTROY_FLOW_HANDLE", mandatory;
        }
    }

    /// What the driver adds to flow actions.
    object FlowAction = object::FlowAction::ID, "UVERBS_OBJECT_FLOW_ACTION" {
        /// Makes one that changes headers.
        method FlowActionCreateModifyHeader = 0x1000, "MLX5_IB_METHOD_FLOW_ACTION_CREATE_MODIFY_HEADER" {
            /// Its handle.
            HANDLE: NewHandle<object::FlowAction> = 0x1000, "MLX5_IB_ATTR_CREATE_MODIFY_HEADER_HANDLE", mandatory;
            /// The changes, each of eight bytes in the firmware's own format.
            ACTIONS_PRM: InSlice<u64, 8> = 0x1001, "MLX5_IB_ATTR_CREATE_MODIFY_HEADER_ACTIONS_PRM", mandatory;
            /// The table.
            FT_TYPE: Constant<FlowTableType> = 0x1002, "MLX5_IB_ATTR_CREATE_MODIFY_HEADER_FT_TYPE", mandatory;
        }
        /// Makes one that puts headers on or takes them off.
        method FlowActionCreatePacketReformat = 0x1001, "MLX5_IB_METHOD_FLOW_ACTION_CREATE_PACKET_REFORMAT" {
            /// Its handle.
            HANDLE: NewHandle<object::FlowAction> = 0x1000,
                "MLX5_IB_ATTR_CREATE_PACKET_REFORMAT_HANDLE", mandatory;
            /// What to do.
            TYPE: Constant<PacketReformatType> = 0x1001, "MLX5_IB_ATTR_CREATE_PACKET_REFORMAT_TYPE", mandatory;
            /// The table.
            FT_TYPE: Constant<FlowTableType> = 0x1002,
                "MLX5_IB_ATTR_CREATE_PACKET_REFORMAT_FT_TYPE", mandatory;
            /// The headers to put on.
            DATA_BUF: InSlice<u8, 1> = 0x1003, "MLX5_IB_ATTR_CREATE_PACKET_REFORMAT_DATA_BUF", optional;
        }
    }
}
