//! The extended write commands. Their structs can grow. Request bytes that the kernel does not know
//! must be zero. The kernel reports in `response_length` how much of the response it filled.

use super::structs::*;

write_commands! {
    /// Queries the device.
    QueryDevice = EXTENDED 1, "IB_USER_VERBS_EX_CMD_QUERY_DEVICE":
        ExQueryDevice => ExQueryDeviceResp, driver both,
        grows reserved => response_length;
    /// Creates a completion queue.
    CreateCq = EXTENDED 18, "IB_USER_VERBS_EX_CMD_CREATE_CQ":
        ExCreateCq => ExCreateCqResp, driver both,
        grows reserved => response_length;
    /// Creates a queue pair.
    CreateQp = EXTENDED 24, "IB_USER_VERBS_EX_CMD_CREATE_QP":
        ExCreateQp => ExCreateQpResp, driver both,
        grows comp_mask => response_length;
    /// Modifies a queue pair.
    ModifyQp = EXTENDED 26, "IB_USER_VERBS_EX_CMD_MODIFY_QP":
        ExModifyQp => ExModifyQpResp, driver both,
        grows base => response_length;
    /// Creates a flow.
    CreateFlow = EXTENDED 50, "IB_USER_VERBS_EX_CMD_CREATE_FLOW":
        CreateFlowReq => CreateFlowResp, driver both,
        grows flow_attr => flow_handle;
    /// Destroys a flow.
    DestroyFlow = EXTENDED 51, "IB_USER_VERBS_EX_CMD_DESTROY_FLOW": DestroyFlowReq => (), driver input;
    /// Creates a work queue.
    CreateWq = EXTENDED 52, "IB_USER_VERBS_EX_CMD_CREATE_WQ":
        ExCreateWq => ExCreateWqResp, driver both,
        grows max_sge => wqn;
    /// Modifies a work queue.
    ModifyWq = EXTENDED 53, "IB_USER_VERBS_EX_CMD_MODIFY_WQ":
        ExModifyWq => (), driver input,
        grows curr_wq_state;
    /// Destroys a work queue.
    DestroyWq = EXTENDED 54, "IB_USER_VERBS_EX_CMD_DESTROY_WQ":
        ExDestroyWq => ExDestroyWqResp, driver both,
        grows wq_handle => reserved;
    /// Creates an indirection table.
    CreateRwqIndTbl = EXTENDED 55, "IB_USER_VERBS_EX_CMD_CREATE_RWQ_IND_TBL":
        ExCreateRwqIndTable => ExCreateRwqIndTableResp, driver both,
        grows log_ind_tbl_size => ind_tbl_num;
    /// Destroys an indirection table.
    DestroyRwqIndTbl = EXTENDED 56, "IB_USER_VERBS_EX_CMD_DESTROY_RWQ_IND_TBL":
        ExDestroyRwqIndTable => (), driver input;
    /// Modifies the event moderation of a completion queue.
    ModifyCq = EXTENDED 57, "IB_USER_VERBS_EX_CMD_MODIFY_CQ": ExModifyCq => (), driver input;
}
