//! The names that ibv_devinfo prints for bits and numbers.

/// A table of flag names: a bit's number and its name.
pub(super) type Flags = &'static [(u32, &'static str)];

pub(super) const DEVICE_CAPS: Flags = &[
    (0, "RESIZE_MAX_WR"),
    (1, "BAD_PKEY_CNTR"),
    (2, "BAD_QKEY_CNTR"),
    (3, "RAW_MULTI"),
    (4, "AUTO_PATH_MIG"),
    (5, "CHANGE_PHY_PORT"),
    (6, "UD_AV_PORT_ENFORCE"),
    (7, "CURR_QP_STATE_MOD"),
    (8, "SHUTDOWN_PORT"),
    (9, "INIT_TYPE"),
    (10, "PORT_ACTIVE_EVENT"),
    (11, "SYS_IMAGE_GUID"),
    (12, "RC_RNR_NAK_GEN"),
    (13, "SRQ_RESIZE"),
    (14, "N_NOTIFY_CQ"),
    (17, "MEM_WINDOW"),
    (18, "UD_IP_CSUM"),
    (20, "XRC"),
    (21, "MEM_MGT_EXTENSIONS"),
    (23, "MEM_WINDOW_TYPE_2A"),
    (24, "MEM_WINDOW_TYPE_2B"),
    (25, "RC_IP_CSUM"),
    (26, "RAW_IP_CSUM"),
    (29, "MANAGED_FLOW_STEERING"),
];
/// Names of the flags in the upper 32 bits. ibv_devinfo prints them with all others as
/// device_cap_flags_ex.
pub(super) const DEVICE_CAPS_EX: Flags =
    &[(34, "RAW_SCATTER_FCS"), (36, "PCI_WRITE_END_PADDING"), (37, "CC_DMA_BOUNCE")];
pub(super) const ODP_GENERAL: Flags = &[(0, "ODP_SUPPORT"), (1, "ODP_SUPPORT_IMPLICIT")];
pub(super) const ODP_TRANSPORT: Flags = &[
    (0, "SUPPORT_SEND"),
    (1, "SUPPORT_RECV"),
    (2, "SUPPORT_WRITE"),
    (3, "SUPPORT_READ"),
    (4, "SUPPORT_ATOMIC"),
    (5, "SUPPORT_SRQ"),
    (6, "SUPPORT_FLUSH"),
    (7, "SUPPORT_ATOMIC_WRITE"),
];
pub(super) const RAW_PACKET: Flags =
    &[(0, "C-VLAN stripping offload"), (1, "Scatter FCS offload"), (2, "IP csum offload"), (3, "Delay drop")];
pub(super) const QP_TYPES: Flags = &[(8, "SUPPORT_RAW_PACKET"), (4, "SUPPORT_UD")];
pub(super) const PACED_QP_TYPES: Flags = &[(8, "SUPPORT_RAW_PACKET"), (4, "SUPPORT_UD"), (2, "SUPPORT_RC")];

/// The name of a port's state.
pub(super) fn port_state(state: u8) -> &'static str {
    match state {
        1 => "PORT_DOWN",
        2 => "PORT_INIT",
        3 => "PORT_ARMED",
        4 => "PORT_ACTIVE",
        _ => "invalid state",
    }
}

/// The name of a port's physical state.
pub(super) fn phys_state(state: u8) -> &'static str {
    match state {
        1 => "SLEEP",
        2 => "POLLING",
        3 => "DISABLED",
        4 => "PORT_CONFIGURATION TRAINNING",
        5 => "LINK_UP",
        6 => "LINK_ERROR_RECOVERY",
        7 => "PHY TEST",
        _ => "invalid physical state",
    }
}

/// The number of virtual lanes, decoded.
pub(super) fn virtual_lanes(number: u8) -> &'static str {
    match number {
        1 => "1",
        2 => "2",
        3 => "4",
        4 => "8",
        5 => "15",
        _ => "invalid value",
    }
}

/// The link width.
pub(super) fn width(bit: u8) -> &'static str {
    match bit {
        1 => "1",
        2 => "4",
        4 => "8",
        8 => "12",
        16 => "2",
        _ => "invalid width",
    }
}

/// The speed of one lane.
pub(super) fn speed(bit: u32) -> &'static str {
    match bit {
        1 => "2.5 Gbps",
        2 => "5.0 Gbps",
        4 | 8 => "10.0 Gbps",
        16 => "14.0 Gbps",
        32 => "25.0 Gbps",
        64 => "50.0 Gbps",
        128 => "100.0 Gbps",
        256 => "200.0 Gbps",
        _ => "invalid speed",
    }
}
