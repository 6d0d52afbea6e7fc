//! The attributes of nldev messages and their types.

use super::{Command, CounterMask, CounterMode, DeviceType, EventType, NameAssignType, NodeType, PrintType};
use crate::abi::{EnumInfo, Since};
use crate::rdma_cm::PortSpace;
use crate::uverbs::types::{DriverId, PortCapFlags};
use crate::verbs_values::{MigState, PollContext, PortPhysState, PortState};
use crate::write::types::DeviceCapFlags;

/// Type of an attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueKind {
    /// Padding that aligns the next attribute.
    Padding,
    /// One byte.
    U8,
    /// Four bytes.
    U32,
    /// Eight bytes.
    U64,
    /// Eight bytes: a GUID or the prefix of GIDs, in host byte order.
    Guid,
    /// Four bytes, signed.
    S32,
    /// Eight bytes, signed.
    S64,
    /// A NUL-terminated string.
    String,
    /// Nested attributes.
    Nested,
    /// A socket address (`struct __kernel_sockaddr_storage`, 128 bytes).
    SocketAddress,
    /// Bytes in device-specific format.
    Binary,
}

/// Description of an attribute.
#[derive(Clone, Copy, Debug)]
pub struct AttributeInfo {
    /// The attribute.
    pub attribute: Attribute,
    /// Its name in Rust.
    pub rust: &'static str,
    /// Its name in C.
    pub c: &'static str,
    /// First kernel series that has it.
    pub since: Since,
    /// Its type.
    pub value: ValueKind,
    /// The names of its values, if they have names.
    pub names: Option<&'static EnumInfo>,
    /// Other names of its values in messages about a port.
    pub port_names: Option<&'static EnumInfo>,
}

macro_rules! attributes {
    ($(
        $(#[$meta:meta])*
        $name:ident = $number:literal, $c:literal $(since $since:ident)?: $value:ident
            $(of $names:ident)? $(port $port_names:ident)?;
    )*) => {
        abi_enums! {
            header = "rdma/rdma_netlink.h";

            /// An attribute of an nldev message.
            enum Attribute: u16 = "rdma_nldev_attr" {
                $( $(#[$meta])* $name = $number, $c $(since $since)?; )*
            }
        }

        /// All attributes, in numerical order.
        pub const ATTRIBUTES: &[AttributeInfo] = &[$(
            AttributeInfo {
                attribute: Attribute::$name,
                rust: stringify!($name),
                c: $c,
                since: $crate::since!($($since)?),
                value: ValueKind::$value,
                names: attributes!(names $($names)?),
                port_names: attributes!(names $($port_names)?),
            },
        )*];
    };
    (names) => {
        None
    };
    (names $names:ident) => {
        Some(&$names::INFO)
    };
}

attributes! {
    /// Padding before a 64-bit value.
    PAD = 0, "RDMA_NLDEV_ATTR_PAD": Padding;
    /// Index of the device; identifies it in requests.
    DEV_INDEX = 1, "RDMA_NLDEV_ATTR_DEV_INDEX": U32;
    /// Name of the device.
    DEV_NAME = 2, "RDMA_NLDEV_ATTR_DEV_NAME": String;
    /// Port number, from 1. In a response to [`super::Command::GET`], the number of ports.
    PORT_INDEX = 3, "RDMA_NLDEV_ATTR_PORT_INDEX": U32;
    /// Capabilities of the device, or of the port with its second mask in bits 32 to 47.
    CAP_FLAGS = 4, "RDMA_NLDEV_ATTR_CAP_FLAGS": U64 of DeviceCapFlags port PortCapFlags;
    /// Version of the firmware.
    FW_VERSION = 5, "RDMA_NLDEV_ATTR_FW_VERSION": String;
    /// GUID of the node, in host byte order.
    NODE_GUID = 6, "RDMA_NLDEV_ATTR_NODE_GUID": Guid;
    /// System image GUID, in host byte order.
    SYS_IMAGE_GUID = 7, "RDMA_NLDEV_ATTR_SYS_IMAGE_GUID": Guid;
    /// Subnet prefix, in host byte order.
    SUBNET_PREFIX = 8, "RDMA_NLDEV_ATTR_SUBNET_PREFIX": Guid;
    /// LID of the port.
    LID = 9, "RDMA_NLDEV_ATTR_LID": U32;
    /// LID of the subnet manager.
    SM_LID = 10, "RDMA_NLDEV_ATTR_SM_LID": U32;
    /// LID mask control (LMC).
    LMC = 11, "RDMA_NLDEV_ATTR_LMC": U8;
    /// Logical state of the port.
    PORT_STATE = 12, "RDMA_NLDEV_ATTR_PORT_STATE": U8 of PortState;
    /// Physical state of the port.
    PORT_PHYS_STATE = 13, "RDMA_NLDEV_ATTR_PORT_PHYS_STATE": U8 of PortPhysState;
    /// Node type of the device.
    DEV_NODE_TYPE = 14, "RDMA_NLDEV_ATTR_DEV_NODE_TYPE": U8 of NodeType;
    /// Resource summary.
    RES_SUMMARY = 15, "RDMA_NLDEV_ATTR_RES_SUMMARY": Nested;
    /// Summary of one resource type.
    RES_SUMMARY_ENTRY = 16, "RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY": Nested;
    /// Its name: `pd`, `cq`, `qp`, `cm_id`, `mr`, `ctx`, `srq`.
    RES_SUMMARY_ENTRY_NAME = 17, "RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_NAME": String;
    /// Number of objects in use.
    RES_SUMMARY_ENTRY_CURR = 18, "RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_CURR": U64;
    /// QPs.
    RES_QP = 19, "RDMA_NLDEV_ATTR_RES_QP": Nested;
    /// One QP.
    RES_QP_ENTRY = 20, "RDMA_NLDEV_ATTR_RES_QP_ENTRY": Nested;
    /// QPN.
    RES_LQPN = 21, "RDMA_NLDEV_ATTR_RES_LQPN": U32;
    /// QPN of the peer.
    RES_RQPN = 22, "RDMA_NLDEV_ATTR_RES_RQPN": U32;
    /// Receive PSN.
    RES_RQ_PSN = 23, "RDMA_NLDEV_ATTR_RES_RQ_PSN": U32;
    /// Send PSN.
    RES_SQ_PSN = 24, "RDMA_NLDEV_ATTR_RES_SQ_PSN": U32;
    /// State of path migration.
    RES_PATH_MIG_STATE = 25, "RDMA_NLDEV_ATTR_RES_PATH_MIG_STATE": U8 of MigState;
    /// Type of the QP, or of the SRQ, as the kernel numbers it.
    RES_TYPE = 26, "RDMA_NLDEV_ATTR_RES_TYPE": U8;
    /// State of the QP or of the CM ID.
    RES_STATE = 27, "RDMA_NLDEV_ATTR_RES_STATE": U8;
    /// Process that owns the object; absent for kernel objects.
    RES_PID = 28, "RDMA_NLDEV_ATTR_RES_PID": U32;
    /// Kernel module that owns the object; absent for objects of processes.
    RES_KERN_NAME = 29, "RDMA_NLDEV_ATTR_RES_KERN_NAME": String;
    /// CM IDs.
    RES_CM_ID = 30, "RDMA_NLDEV_ATTR_RES_CM_ID": Nested;
    /// One CM ID.
    RES_CM_ID_ENTRY = 31, "RDMA_NLDEV_ATTR_RES_CM_ID_ENTRY": Nested;
    /// Its port space.
    RES_PS = 32, "RDMA_NLDEV_ATTR_RES_PS": U32 of PortSpace;
    /// Local address.
    RES_SRC_ADDR = 33, "RDMA_NLDEV_ATTR_RES_SRC_ADDR": SocketAddress;
    /// Remote address.
    RES_DST_ADDR = 34, "RDMA_NLDEV_ATTR_RES_DST_ADDR": SocketAddress;
    /// CQs.
    RES_CQ = 35, "RDMA_NLDEV_ATTR_RES_CQ": Nested;
    /// One CQ.
    RES_CQ_ENTRY = 36, "RDMA_NLDEV_ATTR_RES_CQ_ENTRY": Nested;
    /// Number of entries of the CQ.
    RES_CQE = 37, "RDMA_NLDEV_ATTR_RES_CQE": U32;
    /// Number of users of the object.
    RES_USECNT = 38, "RDMA_NLDEV_ATTR_RES_USECNT": U64;
    /// Context in which the kernel polls a kernel CQ.
    RES_POLL_CTX = 39, "RDMA_NLDEV_ATTR_RES_POLL_CTX": U8 of PollContext;
    /// MRs.
    RES_MR = 40, "RDMA_NLDEV_ATTR_RES_MR": Nested;
    /// One MR.
    RES_MR_ENTRY = 41, "RDMA_NLDEV_ATTR_RES_MR_ENTRY": Nested;
    /// Remote key of the MR; `CAP_NET_ADMIN` only.
    RES_RKEY = 42, "RDMA_NLDEV_ATTR_RES_RKEY": U32;
    /// Local key of the MR; `CAP_NET_ADMIN` only.
    RES_LKEY = 43, "RDMA_NLDEV_ATTR_RES_LKEY": U32;
    /// IOVA of the MR.
    RES_IOVA = 44, "RDMA_NLDEV_ATTR_RES_IOVA": U64;
    /// Length of the MR in bytes.
    RES_MRLEN = 45, "RDMA_NLDEV_ATTR_RES_MRLEN": U64;
    /// PDs.
    RES_PD = 46, "RDMA_NLDEV_ATTR_RES_PD": Nested;
    /// One PD.
    RES_PD_ENTRY = 47, "RDMA_NLDEV_ATTR_RES_PD_ENTRY": Nested;
    /// Local DMA lkey of the PD; `CAP_NET_ADMIN` only.
    RES_LOCAL_DMA_LKEY = 48, "RDMA_NLDEV_ATTR_RES_LOCAL_DMA_LKEY": U32;
    /// Unsafe global rkey of the PD; `CAP_NET_ADMIN` only.
    RES_UNSAFE_GLOBAL_RKEY = 49, "RDMA_NLDEV_ATTR_RES_UNSAFE_GLOBAL_RKEY": U32;
    /// Index of the network device of the port.
    NDEV_INDEX = 50, "RDMA_NLDEV_ATTR_NDEV_INDEX": U32;
    /// Name of the network device of the port.
    NDEV_NAME = 51, "RDMA_NLDEV_ATTR_NDEV_NAME": String;
    /// Driver-specific values: a `DRIVER_STRING` with the name, then the value.
    DRIVER = 52, "RDMA_NLDEV_ATTR_DRIVER": Nested;
    /// One entry of driver-specific values.
    DRIVER_ENTRY = 53, "RDMA_NLDEV_ATTR_DRIVER_ENTRY": Nested;
    /// Name of the next value, or a text value.
    DRIVER_STRING = 54, "RDMA_NLDEV_ATTR_DRIVER_STRING": String;
    /// Output format of the next value.
    DRIVER_PRINT_TYPE = 55, "RDMA_NLDEV_ATTR_DRIVER_PRINT_TYPE": U8 of PrintType;
    /// A driver-specific signed 32-bit value.
    DRIVER_S32 = 56, "RDMA_NLDEV_ATTR_DRIVER_S32": S32;
    /// A driver-specific 32-bit value.
    DRIVER_U32 = 57, "RDMA_NLDEV_ATTR_DRIVER_U32": U32;
    /// A driver-specific signed 64-bit value.
    DRIVER_S64 = 58, "RDMA_NLDEV_ATTR_DRIVER_S64": S64;
    /// A driver-specific 64-bit value.
    DRIVER_U64 = 59, "RDMA_NLDEV_ATTR_DRIVER_U64": U64;
    /// Number of the PD.
    RES_PDN = 60, "RDMA_NLDEV_ATTR_RES_PDN": U32;
    /// Number of the CQ.
    RES_CQN = 61, "RDMA_NLDEV_ATTR_RES_CQN": U32;
    /// Number of the MR.
    RES_MRN = 62, "RDMA_NLDEV_ATTR_RES_MRN": U32;
    /// Number of the CM ID.
    RES_CM_IDN = 63, "RDMA_NLDEV_ATTR_RES_CM_IDN": U32;
    /// Number of the context.
    RES_CTXN = 64, "RDMA_NLDEV_ATTR_RES_CTXN": U32;
    /// Link type of a software device: `rxe` or `siw`.
    LINK_TYPE = 65, "RDMA_NLDEV_ATTR_LINK_TYPE": String;
    /// 1 if devices are shared by all network namespaces, 0 if each device belongs to one.
    SYS_NETNS_MODE = 66, "RDMA_NLDEV_SYS_ATTR_NETNS_MODE": U8;
    /// Protocol of the device: `ib`, `roce`, `iw`, `opa` or `usnic`.
    DEV_PROTOCOL = 67, "RDMA_NLDEV_ATTR_DEV_PROTOCOL": String;
    /// Descriptor of the target network namespace of a move.
    NET_NS_FD = 68, "RDMA_NLDEV_NET_NS_FD": U32;
    /// Type of the character device: `uverbs`, `rdma_cm`, `umad` or `issm`.
    CHARDEV_TYPE = 69, "RDMA_NLDEV_ATTR_CHARDEV_TYPE": String;
    /// Its name under `/dev/infiniband`.
    CHARDEV_NAME = 70, "RDMA_NLDEV_ATTR_CHARDEV_NAME": String;
    /// Revision of its ABI.
    CHARDEV_ABI = 71, "RDMA_NLDEV_ATTR_CHARDEV_ABI": U64;
    /// Its device number, major and minor.
    CHARDEV = 72, "RDMA_NLDEV_ATTR_CHARDEV": U64;
    /// Driver id; four bytes, although the header says eight (`uverbs_main.c`).
    UVERBS_DRIVER_ID = 73, "RDMA_NLDEV_ATTR_UVERBS_DRIVER_ID": U32 of DriverId;
    /// Binding mode of QPs to counters.
    STAT_MODE = 74, "RDMA_NLDEV_ATTR_STAT_MODE": U32 of CounterMode;
    /// Type of the counted objects: the number of [`Attribute::RES_QP`] or [`Attribute::RES_MR`].
    STAT_RES = 75, "RDMA_NLDEV_ATTR_STAT_RES": U32 of Attribute;
    /// Properties that QPs of an automatic counter have in common.
    STAT_AUTO_MODE_MASK = 76, "RDMA_NLDEV_ATTR_STAT_AUTO_MODE_MASK": U32 of CounterMask;
    /// Counters.
    STAT_COUNTER = 77, "RDMA_NLDEV_ATTR_STAT_COUNTER": Nested;
    /// One counter.
    STAT_COUNTER_ENTRY = 78, "RDMA_NLDEV_ATTR_STAT_COUNTER_ENTRY": Nested;
    /// Number of the counter.
    STAT_COUNTER_ID = 79, "RDMA_NLDEV_ATTR_STAT_COUNTER_ID": U32;
    /// Hardware counters.
    STAT_HWCOUNTERS = 80, "RDMA_NLDEV_ATTR_STAT_HWCOUNTERS": Nested;
    /// One hardware counter.
    STAT_HWCOUNTER_ENTRY = 81, "RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY": Nested;
    /// Its name.
    STAT_HWCOUNTER_ENTRY_NAME = 82, "RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY_NAME": String;
    /// Its value.
    STAT_HWCOUNTER_ENTRY_VALUE = 83, "RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY_VALUE": U64;
    /// Whether adaptive CQ moderation (DIM) is enabled.
    DEV_DIM = 84, "RDMA_NLDEV_ATTR_DEV_DIM": U8;
    /// The object in device-specific format.
    RES_RAW = 85, "RDMA_NLDEV_ATTR_RES_RAW": Binary;
    /// Contexts.
    RES_CTX = 86, "RDMA_NLDEV_ATTR_RES_CTX": Nested;
    /// One context.
    RES_CTX_ENTRY = 87, "RDMA_NLDEV_ATTR_RES_CTX_ENTRY": Nested;
    /// SRQs.
    RES_SRQ = 88, "RDMA_NLDEV_ATTR_RES_SRQ": Nested;
    /// One SRQ.
    RES_SRQ_ENTRY = 89, "RDMA_NLDEV_ATTR_RES_SRQ_ENTRY": Nested;
    /// Number of the SRQ.
    RES_SRQN = 90, "RDMA_NLDEV_ATTR_RES_SRQN": U32;
    /// First number of a range.
    MIN_RANGE = 91, "RDMA_NLDEV_ATTR_MIN_RANGE": U32;
    /// Last number of a range.
    MAX_RANGE = 92, "RDMA_NLDEV_ATTR_MAX_RANGE": U32;
    /// Whether the kernel copies pinned pages at fork.
    SYS_COPY_ON_FORK = 93, "RDMA_NLDEV_SYS_ATTR_COPY_ON_FORK": U8;
    /// Index of the hardware counter.
    STAT_HWCOUNTER_INDEX = 94, "RDMA_NLDEV_ATTR_STAT_HWCOUNTER_INDEX": U32;
    /// Whether the optional hardware counter is enabled.
    STAT_HWCOUNTER_DYNAMIC = 95, "RDMA_NLDEV_ATTR_STAT_HWCOUNTER_DYNAMIC": U8;
    /// Whether unprivileged processes may set a privileged Q_Key.
    SYS_PRIVILEGED_QKEY_MODE = 96, "RDMA_NLDEV_SYS_ATTR_PRIVILEGED_QKEY_MODE": U8;
    /// Whether driver-specific details are requested.
    DRIVER_DETAILS = 97, "RDMA_NLDEV_ATTR_DRIVER_DETAILS": U8;
    /// Name of a driver-specific QP type.
    RES_SUBTYPE = 98, "RDMA_NLDEV_ATTR_RES_SUBTYPE": String;
    /// Type of a sub-device.
    DEV_TYPE = 99, "RDMA_NLDEV_ATTR_DEV_TYPE" since V6_12: U8 of DeviceType;
    /// Name of the parent device.
    PARENT_NAME = 100, "RDMA_NLDEV_ATTR_PARENT_NAME" since V6_12: String;
    /// Source of the name.
    NAME_ASSIGN_TYPE = 101, "RDMA_NLDEV_ATTR_NAME_ASSIGN_TYPE" since V6_12: U8 of NameAssignType;
    /// Type of a notification.
    EVENT_TYPE = 102, "RDMA_NLDEV_ATTR_EVENT_TYPE" since V6_12: U8 of EventType;
    /// Whether the kernel sends notifications.
    SYS_MONITOR_MODE = 103, "RDMA_NLDEV_SYS_ATTR_MONITOR_MODE" since V6_12: U8;
    /// Whether a counter includes optional hardware counters.
    STAT_OPCOUNTER_ENABLED = 104, "RDMA_NLDEV_ATTR_STAT_OPCOUNTER_ENABLED" since V7_2: U8;
    /// FRMR (fast registration MR) pools.
    FRMR_POOLS = 105, "RDMA_NLDEV_ATTR_FRMR_POOLS" since V7_2: Nested;
    /// One FRMR pool.
    FRMR_POOL_ENTRY = 106, "RDMA_NLDEV_ATTR_FRMR_POOL_ENTRY" since V7_2: Nested;
    /// Key of a pool: common properties of its MRs.
    FRMR_POOL_KEY = 107, "RDMA_NLDEV_ATTR_FRMR_POOL_KEY" since V7_2: Nested;
    /// Whether they use address translation services (ATS).
    FRMR_POOL_KEY_ATS = 108, "RDMA_NLDEV_ATTR_FRMR_POOL_KEY_ATS" since V7_2: U8;
    /// Their access flags.
    FRMR_POOL_KEY_ACCESS_FLAGS = 109, "RDMA_NLDEV_ATTR_FRMR_POOL_KEY_ACCESS_FLAGS" since V7_2: U32;
    /// Driver-specific part of the pool key.
    FRMR_POOL_KEY_VENDOR_KEY = 110, "RDMA_NLDEV_ATTR_FRMR_POOL_KEY_VENDOR_KEY" since V7_2: U64;
    /// Number of DMA blocks per MR.
    FRMR_POOL_KEY_NUM_DMA_BLOCKS = 111, "RDMA_NLDEV_ATTR_FRMR_POOL_KEY_NUM_DMA_BLOCKS" since V7_2: U64;
    /// Number of idle MRs of the pool.
    FRMR_POOL_QUEUE_HANDLES = 112, "RDMA_NLDEV_ATTR_FRMR_POOL_QUEUE_HANDLES" since V7_2: U32;
    /// Maximum number of MRs in use so far.
    FRMR_POOL_MAX_IN_USE = 113, "RDMA_NLDEV_ATTR_FRMR_POOL_MAX_IN_USE" since V7_2: U64;
    /// Number of objects in use.
    FRMR_POOL_IN_USE = 114, "RDMA_NLDEV_ATTR_FRMR_POOL_IN_USE" since V7_2: U64;
    /// Seconds until an idle MR is freed.
    FRMR_POOLS_AGING_PERIOD = 115, "RDMA_NLDEV_ATTR_FRMR_POOLS_AGING_PERIOD" since V7_2: U32;
    /// Number of idle MRs that are never freed.
    FRMR_POOL_PINNED_HANDLES = 116, "RDMA_NLDEV_ATTR_FRMR_POOL_PINNED_HANDLES" since V7_2: U32;
    /// Part of the pool key that the driver reserves for kernel MRs.
    FRMR_POOL_KEY_KERNEL_VENDOR_KEY = 117, "RDMA_NLDEV_ATTR_FRMR_POOL_KEY_KERNEL_VENDOR_KEY" since V7_2: U64;
    /// Maximum number of objects of an entry of the resource summary.
    RES_SUMMARY_ENTRY_MAX = 118, "RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_MAX" since V7_3: U64;
}

impl Attribute {
    /// Its description; `None` for unknown attributes.
    #[must_use]
    pub fn info(self) -> Option<&'static AttributeInfo> {
        ATTRIBUTES.get(usize::from(self.0))
    }
}

impl AttributeInfo {
    /// The names of its values in messages of this netlink message type.
    #[must_use]
    pub fn names_in(&self, message_type: u16) -> Option<&'static EnumInfo> {
        let is_port = Command::from_message_type(message_type) == Some(Command::PORT_GET);
        self.port_names.filter(|_| is_port).or(self.names)
    }
}
