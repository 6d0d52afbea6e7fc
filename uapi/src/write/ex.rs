//! The extended write commands. Their structs grow: a longer one than the kernel knows must end in
//! zeros, and the kernel says in `response_length` how much of the response it filled.

use super::structs::*;

write_commands! {
    /// Reads the device's attributes.
    QueryDevice = EXTENDED 1, "IB_USER_VERBS_EX_CMD_QUERY_DEVICE":
        ExQueryDevice => ExQueryDeviceResp, driver both,
        grows reserved => response_length;
    /// Makes a completion queue.
    CreateCq = EXTENDED 18, "IB_USER_VERBS_EX_CMD_CREATE_CQ":
        ExCreateCq => ExCreateCqResp, driver both,
        grows reserved => response_length;
    /// Makes a queue pair.
    CreateQp = EXTENDED 24, "IB_USER_VERBS_EX_CMD_CREATE_QP":
        ExCreateQp => ExCreateQpResp, driver both,
        grows comp_mask => response_length;
    /// Changes a queue pair.
    ModifyQp = EXTENDED 26, "IB_USER_VERBS_EX_CMD_MODIFY_QP":
        ExModifyQp => ExModifyQpResp, driver both,
        grows base => response_length;
    /// Makes a flow.
    CreateFlow = EXTENDED 50, "IB_USER_VERBS_EX_CMD_CREATE_FLOW":
        CreateFlowReq => CreateFlowResp, driver both,
        grows flow_attr => flow_handle;
    /// Gives a flow back.
    DestroyFlow = EXTENDED 51, "IB_USER_VERBS_EX_CMD_DESTROY_FLOW": DestroyFlowReq => (), driver input;
    /// Makes a work queue.
    CreateWq = EXTENDED 52, "IB_USER_VERBS_EX_CMD_CREATE_WQ":
        ExCreateWq => ExCreateWqResp, driver both,
        grows max_sge => wqn;
    /// Changes a work queue.
    ModifyWq = EXTENDED 53, "IB_USER_VERBS_EX_CMD_MODIFY_WQ":
        ExModifyWq => (), driver input,
        grows curr_wq_state;
    /// Gives a work queue back.
    DestroyWq = EXTENDED 54, "IB_USER_VERBS_EX_CMD_DESTROY_WQ":
        ExDestroyWq => ExDestroyWqResp, driver both,
        grows wq_handle => reserved;
    /// Makes an indirection table.
    CreateRwqIndTbl = EXTENDED 55, "IB_USER_VERBS_EX_CMD_CREATE_RWQ_IND_TBL":
        ExCreateRwqIndTable => ExCreateRwqIndTableResp, driver both,
        grows log_ind_tbl_size => ind_tbl_num;
    /// Gives an indirection table back.
    DestroyRwqIndTbl = EXTENDED 56, "IB_USER_VERBS_EX_CMD_DESTROY_RWQ_IND_TBL":
        ExDestroyRwqIndTable => (), driver input;
    /// Changes when a completion queue raises events.
    ModifyCq = EXTENDED 57, "IB_USER_VERBS_EX_CMD_MODIFY_CQ": ExModifyCq => (), driver input;
}
