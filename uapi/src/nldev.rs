//! RDMA netlink's device interface: devices, ports, links, resources in use, counters.
//!
//! A request is a netlink message ([`crate::netlink`]) of type [`Command::message_type`] with
//! [`Attribute`]s and no fixed struct. Asked with [`crate::netlink::MessageFlags::DUMP`], many
//! commands answer for every device.
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

    /// The users of RDMA netlink; bits 10 to 15 of a message's type.
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
        /// Notices of devices that come, go and change.
        NOTIFY = 4, "RDMA_NL_GROUP_NOTIFY" since V6_12;
    }

    /// What an nldev message asks or tells.
    enum Command: u16 = "rdma_nldev_command" {
        /// Tell of a device or, dumped, of all.
        GET = 1, "RDMA_NLDEV_CMD_GET";
        /// Rename a device, move it to a network namespace or set its CQ moderation; for
        /// administrators.
        SET = 2, "RDMA_NLDEV_CMD_SET";
        /// Make a software device over a network device; for administrators.
        NEWLINK = 3, "RDMA_NLDEV_CMD_NEWLINK";
        /// Remove a software device; for administrators.
        DELLINK = 4, "RDMA_NLDEV_CMD_DELLINK";
        /// Tell of a port or, dumped, of all of a device.
        PORT_GET = 5, "RDMA_NLDEV_CMD_PORT_GET";
        /// Tell of settings that hold for all devices.
        SYS_GET = 6, "RDMA_NLDEV_CMD_SYS_GET";
        /// Change a setting that holds for all devices; for administrators.
        SYS_SET = 7, "RDMA_NLDEV_CMD_SYS_SET";
        /// Count a device's resources in use; can be dumped.
        RES_GET = 9, "RDMA_NLDEV_CMD_RES_GET";
        /// Tell of a QP or, dumped, of all of a device.
        RES_QP_GET = 10, "RDMA_NLDEV_CMD_RES_QP_GET";
        /// Tell of a connection identifier or, dumped, of all.
        RES_CM_ID_GET = 11, "RDMA_NLDEV_CMD_RES_CM_ID_GET";
        /// Tell of a CQ or, dumped, of all of a device.
        RES_CQ_GET = 12, "RDMA_NLDEV_CMD_RES_CQ_GET";
        /// Tell of an MR or, dumped, of all of a device.
        RES_MR_GET = 13, "RDMA_NLDEV_CMD_RES_MR_GET";
        /// Tell of a PD or, dumped, of all of a device.
        RES_PD_GET = 14, "RDMA_NLDEV_CMD_RES_PD_GET";
        /// Tell the character device through which a device is used.
        GET_CHARDEV = 15, "RDMA_NLDEV_CMD_GET_CHARDEV";
        /// Bind counters to QPs or choose optional ones; for administrators.
        STAT_SET = 16, "RDMA_NLDEV_CMD_STAT_SET";
        /// Tell values of counters; can be dumped.
        STAT_GET = 17, "RDMA_NLDEV_CMD_STAT_GET";
        /// Unbind a counter from a QP; for administrators.
        STAT_DEL = 18, "RDMA_NLDEV_CMD_STAT_DEL";
        /// A QP in the device's own format; for administrators, can be dumped.
        RES_QP_GET_RAW = 19, "RDMA_NLDEV_CMD_RES_QP_GET_RAW";
        /// A CQ in the device's own format; for administrators, can be dumped.
        RES_CQ_GET_RAW = 20, "RDMA_NLDEV_CMD_RES_CQ_GET_RAW";
        /// An MR in the device's own format; for administrators, can be dumped.
        RES_MR_GET_RAW = 21, "RDMA_NLDEV_CMD_RES_MR_GET_RAW";
        /// Tell of an open device context or, dumped, of all of a device.
        RES_CTX_GET = 22, "RDMA_NLDEV_CMD_RES_CTX_GET";
        /// Tell of an SRQ or, dumped, of all of a device.
        RES_SRQ_GET = 23, "RDMA_NLDEV_CMD_RES_SRQ_GET";
        /// Tell which counters a port has and which optional ones are on.
        STAT_GET_STATUS = 24, "RDMA_NLDEV_CMD_STAT_GET_STATUS";
        /// An SRQ in the device's own format; for administrators, can be dumped.
        RES_SRQ_GET_RAW = 25, "RDMA_NLDEV_CMD_RES_SRQ_GET_RAW" since V6_12;
        /// Make a device under another; for administrators.
        NEWDEV = 26, "RDMA_NLDEV_CMD_NEWDEV" since V6_12;
        /// Remove a device made by [`Command::NEWDEV`]; for administrators.
        DELDEV = 27, "RDMA_NLDEV_CMD_DELDEV" since V6_12;
        /// Type of the notices to [`Group::NOTIFY`]; no request.
        MONITOR = 28, "RDMA_NLDEV_CMD_MONITOR" since V6_12;
        /// Dump a device's pools of fast-registration MRs.
        FRMR_POOLS_GET = 29, "RDMA_NLDEV_CMD_FRMR_POOLS_GET" since V7_2;
        /// Change a device's pools of fast-registration MRs; for administrators.
        FRMR_POOLS_SET = 30, "RDMA_NLDEV_CMD_FRMR_POOLS_SET" since V7_2;
    }

    /// What sort of node a device is: [`Attribute::DEV_NODE_TYPE`].
    enum NodeType: u8 = "" {
        /// An InfiniBand or RoCE channel adapter.
        CHANNEL_ADAPTER = 1, "RDMA_NODE_IB_CA";
        /// An InfiniBand switch.
        SWITCH = 2, "RDMA_NODE_IB_SWITCH";
        /// An InfiniBand router.
        ROUTER = 3, "RDMA_NODE_IB_ROUTER";
        /// An iWARP adapter.
        RNIC = 4, "RDMA_NODE_RNIC";
        /// A usNIC adapter.
        USNIC = 5, "RDMA_NODE_USNIC";
        /// A usNIC adapter over UDP.
        USNIC_UDP = 6, "RDMA_NODE_USNIC_UDP";
        /// None of these.
        UNSPECIFIED = 7, "RDMA_NODE_UNSPECIFIED";
    }

    /// How a driver wants a value printed: [`Attribute::DRIVER_PRINT_TYPE`].
    enum PrintType: u8 = "rdma_nldev_print_type" {
        /// In decimal.
        UNSPECIFIED = 0, "RDMA_NLDEV_PRINT_TYPE_UNSPEC";
        /// In hexadecimal.
        HEX = 1, "RDMA_NLDEV_PRINT_TYPE_HEX";
    }

    /// How QPs come to their counters: [`Attribute::STAT_MODE`].
    enum CounterMode: u32 = "rdma_nl_counter_mode" {
        /// Not at all.
        NONE = 0, "RDMA_COUNTER_MODE_NONE";
        /// By themselves, as [`CounterMask`] says.
        AUTO = 1, "RDMA_COUNTER_MODE_AUTO";
        /// One by one, as the administrator says.
        MANUAL = 2, "RDMA_COUNTER_MODE_MANUAL";
    }

    /// What sort of device to make under another: [`Attribute::DEV_TYPE`].
    enum DeviceType: u8 = "rdma_nl_dev_type" {
        /// A device for subnet management packets.
        SMI = 1, "RDMA_DEVICE_TYPE_SMI" since V6_12;
    }

    /// Where a device's name comes from: [`Attribute::NAME_ASSIGN_TYPE`].
    enum NameAssignType: u8 = "rdma_nl_name_assign_type" {
        /// Not known.
        UNKNOWN = 0, "RDMA_NAME_ASSIGN_TYPE_UNKNOWN" since V6_12;
        /// From user space.
        USER = 1, "RDMA_NAME_ASSIGN_TYPE_USER" since V6_12;
    }

    /// What a notice tells: [`Attribute::EVENT_TYPE`].
    enum EventType: u8 = "rdma_nl_notify_event_type" {
        /// A device came.
        REGISTER = 0, "RDMA_REGISTER_EVENT" since V6_12;
        /// A device went.
        UNREGISTER = 1, "RDMA_UNREGISTER_EVENT" since V6_12;
        /// A port got a network device.
        NETDEV_ATTACH = 2, "RDMA_NETDEV_ATTACH_EVENT" since V6_12;
        /// A port lost its network device.
        NETDEV_DETACH = 3, "RDMA_NETDEV_DETACH_EVENT" since V6_12;
        /// A device was renamed.
        RENAME = 4, "RDMA_RENAME_EVENT" since V7_2;
        /// A port's network device was renamed.
        NETDEV_RENAME = 5, "RDMA_NETDEV_RENAME_EVENT" since V7_2;
    }
}

abi_flags! {
    header = "rdma/rdma_netlink.h";

    /// What QPs share that share an automatic counter: [`Attribute::STAT_AUTO_MODE_MASK`].
    flags CounterMask: u32 = "rdma_nl_counter_mask" {
        /// Their type.
        QP_TYPE = 1 << 0, "RDMA_COUNTER_MASK_QP_TYPE";
        /// Their process.
        PID = 1 << 1, "RDMA_COUNTER_MASK_PID";
    }
}

impl Client {
    /// The netlink message type of the client's operation `op`, of which 10 bits count.
    #[doc(alias = "RDMA_NL_GET_TYPE")]
    #[must_use]
    pub const fn message_type(self, op: u16) -> u16 {
        self.0 << 10 | op & 0x3ff
    }
}

impl Command {
    /// The netlink message type of the command's requests and answers.
    #[must_use]
    pub const fn message_type(self) -> u16 {
        Client::NLDEV.message_type(self.0)
    }

    /// The command of a netlink message type; `None` for one of another client.
    #[doc(alias = "RDMA_NL_GET_OP")]
    #[must_use]
    pub const fn from_message_type(kind: u16) -> Option<Self> {
        if kind >> 10 == Client::NLDEV.0 { Some(Self(kind & 0x3ff)) } else { None }
    }
}
