//! The device interface of RDMA netlink: devices, ports, links, resources, counters.
//!
//! A request is a netlink message ([`crate::netlink`]) of type [`Command::message_type`] with
//! [`Attribute`]s and no fixed struct. With [`crate::netlink::MessageFlags::DUMP`], many commands
//! return all devices or objects.
//!
//! ```
//! use bareverbs_uapi::netlink::{MessageFlags, MessageWriter};
//! use bareverbs_uapi::nldev::{self, Attribute, Command};
//!
//! let mut buffer = [0; 64];
//! let mut writer = MessageWriter::new(&mut buffer);
//! writer
//!     .begin(Command::NEWLINK.message_type(), MessageFlags::REQUEST | MessageFlags::ACK, 1)
//!     .put_str(Attribute::DEV_NAME.0, "rxe0")
//!     .put_str(Attribute::LINK_TYPE.0, "rxe")
//!     .put_str(Attribute::NDEV_NAME.0, "eth0");
//! let request = writer.finish()?;
//! assert_eq!(
//!     nldev::decode(request).to_string(),
//!     "NEWLINK REQUEST | ACK seq 1 { DEV_NAME \"rxe0\", LINK_TYPE \"rxe\", NDEV_NAME \"eth0\" }",
//! );
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod attribute;
mod decode;

pub use attribute::{ATTRIBUTES, Attribute, AttributeInfo, ValueKind};
pub use decode::{Decoded, decode};

abi_enums! {
    header = "rdma/rdma_netlink.h";

    /// The clients of RDMA netlink; bits 10 to 15 of a message type.
    enum Client: u16 = "" {
        /// The iWARP port mapper.
        IWCM = 2, "RDMA_NL_IWCM";
        /// Local services that resolve addresses and paths.
        LOCAL_SERVICE = 4, "RDMA_NL_LS";
        /// The device interface.
        NLDEV = 5, "RDMA_NL_NLDEV";
    }

    /// Multicast groups of RDMA netlink.
    enum Group: u32 = "" {
        /// Requests to the iWARP port mapper.
        IWPM = 2, "RDMA_NL_GROUP_IWPM";
        /// Requests to local services.
        LOCAL_SERVICE = 3, "RDMA_NL_GROUP_LS";
        /// Notifications of registered, unregistered and changed devices.
        NOTIFY = 4, "RDMA_NL_GROUP_NOTIFY" since V6_12;
    }

    /// Command of an nldev message.
    enum Command: u16 = "rdma_nldev_command" {
        /// Query a device; dump: all devices.
        GET = 1, "RDMA_NLDEV_CMD_GET";
        /// Rename a device, move it to a network namespace or set its CQ moderation; needs
        /// `CAP_NET_ADMIN`.
        SET = 2, "RDMA_NLDEV_CMD_SET";
        /// Create a software device over a network device; needs `CAP_NET_ADMIN`.
        NEWLINK = 3, "RDMA_NLDEV_CMD_NEWLINK";
        /// Remove a software device; needs `CAP_NET_ADMIN`.
        DELLINK = 4, "RDMA_NLDEV_CMD_DELLINK";
        /// Query a port; dump: all ports of a device.
        PORT_GET = 5, "RDMA_NLDEV_CMD_PORT_GET";
        /// Query system-wide settings.
        SYS_GET = 6, "RDMA_NLDEV_CMD_SYS_GET";
        /// Change a system-wide setting; needs `CAP_NET_ADMIN`.
        SYS_SET = 7, "RDMA_NLDEV_CMD_SYS_SET";
        /// Query the number of objects of a device; can be dumped.
        RES_GET = 9, "RDMA_NLDEV_CMD_RES_GET";
        /// Query a QP; dump: all QPs of a device.
        RES_QP_GET = 10, "RDMA_NLDEV_CMD_RES_QP_GET";
        /// Query a CM ID; dump: all CM IDs.
        RES_CM_ID_GET = 11, "RDMA_NLDEV_CMD_RES_CM_ID_GET";
        /// Query a CQ; dump: all CQs of a device.
        RES_CQ_GET = 12, "RDMA_NLDEV_CMD_RES_CQ_GET";
        /// Query an MR; dump: all MRs of a device.
        RES_MR_GET = 13, "RDMA_NLDEV_CMD_RES_MR_GET";
        /// Query a PD; dump: all PDs of a device.
        RES_PD_GET = 14, "RDMA_NLDEV_CMD_RES_PD_GET";
        /// Query a character device of a device.
        GET_CHARDEV = 15, "RDMA_NLDEV_CMD_GET_CHARDEV";
        /// Bind counters to QPs or enable optional counters; needs `CAP_NET_ADMIN`.
        STAT_SET = 16, "RDMA_NLDEV_CMD_STAT_SET";
        /// Query counter values; can be dumped.
        STAT_GET = 17, "RDMA_NLDEV_CMD_STAT_GET";
        /// Unbind a counter from a QP; needs `CAP_NET_ADMIN`.
        STAT_DEL = 18, "RDMA_NLDEV_CMD_STAT_DEL";
        /// Query a QP in device-specific format; needs `CAP_NET_ADMIN`, can be dumped.
        RES_QP_GET_RAW = 19, "RDMA_NLDEV_CMD_RES_QP_GET_RAW";
        /// Query a CQ in device-specific format; needs `CAP_NET_ADMIN`, can be dumped.
        RES_CQ_GET_RAW = 20, "RDMA_NLDEV_CMD_RES_CQ_GET_RAW";
        /// Query an MR in device-specific format; needs `CAP_NET_ADMIN`, can be dumped.
        RES_MR_GET_RAW = 21, "RDMA_NLDEV_CMD_RES_MR_GET_RAW";
        /// Query a context; dump: all contexts of a device.
        RES_CTX_GET = 22, "RDMA_NLDEV_CMD_RES_CTX_GET";
        /// Query an SRQ; dump: all SRQs of a device.
        RES_SRQ_GET = 23, "RDMA_NLDEV_CMD_RES_SRQ_GET";
        /// Query the counters of a port and which optional ones are enabled.
        STAT_GET_STATUS = 24, "RDMA_NLDEV_CMD_STAT_GET_STATUS";
        /// Query an SRQ in device-specific format; needs `CAP_NET_ADMIN`, can be dumped.
        RES_SRQ_GET_RAW = 25, "RDMA_NLDEV_CMD_RES_SRQ_GET_RAW" since V6_12;
        /// Create a sub-device of a device; needs `CAP_NET_ADMIN`.
        NEWDEV = 26, "RDMA_NLDEV_CMD_NEWDEV" since V6_12;
        /// Remove a device created by [`Command::NEWDEV`]; needs `CAP_NET_ADMIN`.
        DELDEV = 27, "RDMA_NLDEV_CMD_DELDEV" since V6_12;
        /// Notification to [`Group::NOTIFY`]; not a request.
        MONITOR = 28, "RDMA_NLDEV_CMD_MONITOR" since V6_12;
        /// Dump the FRMR (fast registration MR) pools of a device.
        FRMR_POOLS_GET = 29, "RDMA_NLDEV_CMD_FRMR_POOLS_GET" since V7_2;
        /// Change the FRMR pools of a device; needs `CAP_NET_ADMIN`.
        FRMR_POOLS_SET = 30, "RDMA_NLDEV_CMD_FRMR_POOLS_SET" since V7_2;
    }

    /// Node type of a device: [`Attribute::DEV_NODE_TYPE`].
    #[doc(alias = "ibv_node_type_str")]
    #[doc(alias = "ibv_node_type")]
    enum NodeType: u8 = "" {
        /// An InfiniBand or RoCE channel adapter.
        #[doc(alias = "IBV_NODE_CA")]
        CHANNEL_ADAPTER = 1, "RDMA_NODE_IB_CA";
        /// An InfiniBand switch.
        #[doc(alias = "IBV_NODE_SWITCH")]
        SWITCH = 2, "RDMA_NODE_IB_SWITCH";
        /// An InfiniBand router.
        #[doc(alias = "IBV_NODE_ROUTER")]
        ROUTER = 3, "RDMA_NODE_IB_ROUTER";
        /// An iWARP adapter.
        #[doc(alias = "IBV_NODE_RNIC")]
        RNIC = 4, "RDMA_NODE_RNIC";
        /// A usNIC adapter.
        #[doc(alias = "IBV_NODE_USNIC")]
        USNIC = 5, "RDMA_NODE_USNIC";
        /// A usNIC adapter over UDP.
        #[doc(alias = "IBV_NODE_USNIC_UDP")]
        USNIC_UDP = 6, "RDMA_NODE_USNIC_UDP";
        /// Unspecified.
        #[doc(alias = "IBV_NODE_UNSPECIFIED")]
        UNSPECIFIED = 7, "RDMA_NODE_UNSPECIFIED";
    }

    /// Output format of a driver-specific value: [`Attribute::DRIVER_PRINT_TYPE`].
    enum PrintType: u8 = "rdma_nldev_print_type" {
        /// In decimal.
        UNSPECIFIED = 0, "RDMA_NLDEV_PRINT_TYPE_UNSPEC";
        /// In hexadecimal.
        HEX = 1, "RDMA_NLDEV_PRINT_TYPE_HEX";
    }

    /// Binding mode of QPs to counters: [`Attribute::STAT_MODE`].
    enum CounterMode: u32 = "rdma_nl_counter_mode" {
        /// No binding.
        NONE = 0, "RDMA_COUNTER_MODE_NONE";
        /// Automatic, by [`CounterMask`].
        AUTO = 1, "RDMA_COUNTER_MODE_AUTO";
        /// Manual, per QP.
        MANUAL = 2, "RDMA_COUNTER_MODE_MANUAL";
    }

    /// Type of a sub-device: [`Attribute::DEV_TYPE`].
    enum DeviceType: u8 = "rdma_nl_dev_type" {
        /// A device for subnet management packets.
        SMI = 1, "RDMA_DEVICE_TYPE_SMI" since V6_12;
    }

    /// Source of a device name: [`Attribute::NAME_ASSIGN_TYPE`].
    enum NameAssignType: u8 = "rdma_nl_name_assign_type" {
        /// Unknown.
        UNKNOWN = 0, "RDMA_NAME_ASSIGN_TYPE_UNKNOWN" since V6_12;
        /// Set by user space.
        USER = 1, "RDMA_NAME_ASSIGN_TYPE_USER" since V6_12;
    }

    /// Type of a notification: [`Attribute::EVENT_TYPE`].
    enum EventType: u8 = "rdma_nl_notify_event_type" {
        /// A device was registered.
        REGISTER = 0, "RDMA_REGISTER_EVENT" since V6_12;
        /// A device was unregistered.
        UNREGISTER = 1, "RDMA_UNREGISTER_EVENT" since V6_12;
        /// A network device was attached to a port.
        NETDEV_ATTACH = 2, "RDMA_NETDEV_ATTACH_EVENT" since V6_12;
        /// A network device was detached from a port.
        NETDEV_DETACH = 3, "RDMA_NETDEV_DETACH_EVENT" since V6_12;
        /// A device was renamed.
        RENAME = 4, "RDMA_RENAME_EVENT" since V7_2;
        /// A port's network device was renamed.
        NETDEV_RENAME = 5, "RDMA_NETDEV_RENAME_EVENT" since V7_2;
    }
}

abi_flags! {
    header = "rdma/rdma_netlink.h";

    /// Properties that QPs of an automatic counter have in common:
    /// [`Attribute::STAT_AUTO_MODE_MASK`].
    flags CounterMask: u32 = "rdma_nl_counter_mask" {
        /// Their type.
        QP_TYPE = 1 << 0, "RDMA_COUNTER_MASK_QP_TYPE";
        /// Their process.
        PID = 1 << 1, "RDMA_COUNTER_MASK_PID";
    }
}

impl Client {
    /// The netlink message type of operation `op` (10 bits) of the client.
    #[doc(alias = "RDMA_NL_GET_TYPE")]
    #[must_use]
    pub const fn message_type(self, op: u16) -> u16 {
        self.0 << 10 | op & 0x3ff
    }
}

impl Command {
    /// The netlink message type of requests and responses of the command.
    #[must_use]
    pub const fn message_type(self) -> u16 {
        Client::NLDEV.message_type(self.0)
    }

    /// The command of a netlink message type; `None` for other clients.
    #[doc(alias = "RDMA_NL_GET_OP")]
    #[must_use]
    pub const fn from_message_type(kind: u16) -> Option<Self> {
        if kind >> 10 == Client::NLDEV.0 { Some(Self(kind & 0x3ff)) } else { None }
    }
}
