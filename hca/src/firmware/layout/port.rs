//! Adapter, registers and ports.

use crate::firmware::bits::layout;

layout! {
    /// Output of QUERY_ADAPTER (`mlx5_ifc_query_adapter_out_bits`).
    QueryAdapterOut: 0x110 {
        QUERY_ADAPTER_STRUCT: 0x80 => AdapterBlock,
    }
}

layout! {
    /// Adapter parameter block (`mlx5_ifc_query_adapter_param_block_bits`).
    AdapterBlock: 0x100 {
        IEEE_VENDOR_ID: 0xc8, 24,
        VSD_VENDOR_ID: 0xf0, 16,
        VSD_CONTD_PSID: 0x780, bytes 16,
    }
}

layout! {
    /// ACCESS_REG (`mlx5_ifc_access_register_in_bits`).
    AccessRegisterIn: 0x10 {
        REGISTER_ID: 0x50, 16,
    }
}

layout! {
    /// PTYS: port type and speed (`mlx5_ifc_ptys_reg_bits`).
    PtysReg: 0x40 {
        IB_LINK_WIDTH_CAPABILITY: 0x80, 16,
        IB_PROTO_CAPABILITY: 0x90, 16,
        IB_LINK_WIDTH_ADMIN: 0xe0, 16,
        IB_PROTO_ADMIN: 0xf0, 16,
        IB_LINK_WIDTH_OPER: 0x140, 16,
        IB_PROTO_OPER: 0x150, 16,
        ETH_PROTO_CAPABILITY: 0x60, 32,
        ETH_PROTO_ADMIN: 0xc0, 32,
        ETH_PROTO_OPER: 0x120, 32,
    }
}

layout! {
    /// PMTU: the port's MTU (`mlx5_ifc_pmtu_reg_bits`).
    PmtuReg: 0x10 {
        MAX_MTU: 0x20, 16,
        ADMIN_MTU: 0x40, 16,
        OPER_MTU: 0x60, 16,
    }
}

layout! {
    /// PAOS: administrative and operational status (`mlx5_ifc_paos_reg_bits`).
    PaosReg: 0x10 {
        ADMIN_STATUS: 0x14, 4,
        OPER_STATUS: 0x1c, 4,
        ASE: 0x20, 1,
    }
}

layout! {
    /// PVLC: virtual lanes (`mlx5_ifc_pvlc_reg_bits`).
    PvlcReg: 0x10 {
        VL_HW_CAP: 0x3c, 4,
        VL_ADMIN: 0x5c, 4,
        VL_OPERATIONAL: 0x7c, 4,
    }
}

layout! {
    /// Output of QUERY_HCA_VPORT_CONTEXT (`mlx5_ifc_query_hca_vport_context_out_bits`).
    QueryHcaVportContextOut: 0x210 {
        HCA_VPORT_CONTEXT: 0x80 => HcaVportContext,
    }
}

layout! {
    /// MODIFY_HCA_VPORT_CONTEXT (`mlx5_ifc_modify_hca_vport_context_in_bits`).
    ModifyHcaVportContextIn: 0x210 {
        HCA_VPORT_CONTEXT: 0x80 => HcaVportContext,
    }
}

layout! {
    /// Context of an InfiniBand port (`mlx5_ifc_hca_vport_context_bits`).
    HcaVportContext: 0x200 {
        FIELD_SELECT: 0x0, 32,
        PORT_PHYSICAL_STATE: 0x110, 4,
        PORT_STATE: 0x118, 4,
        VPORT_STATE: 0x11c, 4,
        SYSTEM_IMAGE_GUID: 0x140, 64,
        PORT_GUID: 0x180, 64,
        NODE_GUID: 0x1c0, 64,
        CAP_MASK1: 0x200, 32,
        CAP_MASK1_FIELD_SELECT: 0x220, 32,
        LID: 0x300, 16,
        SUBNET_TIMEOUT: 0x31b, 5,
        SM_LID: 0x320, 16,
        QKEY_VIOLATION_COUNTER: 0x340, 16,
        PKEY_VIOLATION_COUNTER: 0x350, 16,
    }
}

layout! {
    /// QUERY_HCA_VPORT_GID (`mlx5_ifc_query_hca_vport_gid_in_bits`).
    QueryHcaVportGidIn: 0x10 {
        GID_INDEX: 0x70, 16,
    }
}

layout! {
    /// Output of QUERY_HCA_VPORT_GID (`mlx5_ifc_query_hca_vport_gid_out_bits`).
    QueryHcaVportGidOut: 0x10 {
        GIDS_NUM: 0x60, 16,
    }
}

layout! {
    /// QUERY_HCA_VPORT_PKEY (`mlx5_ifc_query_hca_vport_pkey_in_bits`).
    QueryHcaVportPkeyIn: 0x10 {
        PKEY_INDEX: 0x70, 16,
    }
}

layout! {
    /// Output of QUERY_VPORT_STATE (`mlx5_ifc_query_vport_state_out_bits`).
    QueryVportStateOut: 0x10 {
        MAX_TX_SPEED: 0x60, 16,
        ADMIN_STATE: 0x78, 4,
        STATE: 0x7c, 4,
    }
}

layout! {
    /// Output of QUERY_NIC_VPORT_CONTEXT (`mlx5_ifc_query_nic_vport_context_out_bits`).
    QueryNicVportContextOut: 0x110 {
        NIC_VPORT_CONTEXT: 0x80 => NicVportContext,
    }
}

layout! {
    /// MODIFY_NIC_VPORT_CONTEXT (`mlx5_ifc_modify_nic_vport_context_in_bits`).
    ModifyNicVportContextIn: 0x200 {
        FIELD_SELECT: 0x60, 32,
    }
}

layout! {
    /// Context of an Ethernet port (`mlx5_ifc_nic_vport_context_bits`).
    NicVportContext: 0x100 {
        MIN_WQE_INLINE_MODE: 0x5, 3,
        ROCE_EN: 0x1f, 1,
        MTU: 0x130, 16,
        SYSTEM_IMAGE_GUID: 0x140, 64,
        PORT_GUID: 0x180, 64,
        NODE_GUID: 0x1c0, 64,
        PERMANENT_ADDRESS: 0x7a0, 64,
    }
}
