//! The attributes of nldev messages and what each carries.

use super::{CounterMask, CounterMode, DeviceType, EventType, NameAssignType, NodeType, PrintType};
use crate::abi::{EnumInfo, Since};
use crate::rdma_cm::PortSpace;
use crate::uverbs::types::DriverId;
use crate::verbs_values::{MigState, PollContext, PortPhysState, PortState};

/// What an attribute carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueKind {
    /// Nothing: space that aligns the attribute after it.
    Padding,
    /// One byte.
    U8,
    /// Four bytes.
    U32,
    /// Eight bytes.
    U64,
    /// Four bytes, signed.
    S32,
    /// Eight bytes, signed.
    S64,
    /// Text that a zero byte ends.
    String,
    /// Attributes.
    Nested,
    /// A socket address (`struct __kernel_sockaddr_storage`, 128 bytes).
    SocketAddress,
    /// Bytes in a format of the device's own.
    Binary,
}

/// What is known of an attribute.
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
    /// What it carries.
    pub value: ValueKind,
    /// The names of its values, where they have some.
    pub names: Option<&'static EnumInfo>,
}

macro_rules! attributes {
    ($(
        $(#[$meta:meta])*
        $name:ident = $number:literal, $c:literal $(since $since:ident)?: $value:ident $(of $names:ident)?;
    )*) => {
        abi_enums! {
            header = "rdma/rdma_netlink.h";

            /// An attribute of an nldev message.
            enum Attribute: u16 = "rdma_nldev_attr" {
                $( $(#[$meta])* $name = $number, $c $(since $since)?; )*
            }
        }

        /// Every attribute, in the order of the numbers.
        pub const ATTRIBUTES: &[AttributeInfo] = &[$(
            AttributeInfo {
                attribute: Attribute::$name,
                rust: stringify!($name),
                c: $c,
                since: $crate::since!($($since)?),
                value: ValueKind::$value,
                names: attributes!(names $($names)?),
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
    /// Space before a 64-bit value.
    PAD = 0, "RDMA_NLDEV_ATTR_PAD": Padding;
    /// Number of the device; names it in requests.
    DEV_INDEX = 1, "RDMA_NLDEV_ATTR_DEV_INDEX": U32;
    /// Name of the device.
    DEV_NAME = 2, "RDMA_NLDEV_ATTR_DEV_NAME": String;
    /// Number of the port, from 1; in an answer to [`super::Command::GET`] how many ports there
    /// are.
    PORT_INDEX = 3, "RDMA_NLDEV_ATTR_PORT_INDEX": U32;
    /// Capabilities of the device, or of the port with the second mask in bits 32 to 47.
    CAP_FLAGS = 4, "RDMA_NLDEV_ATTR_CAP_FLAGS": U64;
    /// Version of the firmware.
    FW_VERSION = 5, "RDMA_NLDEV_ATTR_FW_VERSION": String;
    /// GUID of the node, in the machine's byte order.
    NODE_GUID = 6, "RDMA_NLDEV_ATTR_NODE_GUID": U64;
    /// GUID that devices of one system share, in the machine's byte order.
    SYS_IMAGE_GUID = 7, "RDMA_NLDEV_ATTR_SYS_IMAGE_GUID": U64;
    /// Prefix of the subnet, in the machine's byte order.
    SUBNET_PREFIX = 8, "RDMA_NLDEV_ATTR_SUBNET_PREFIX": U64;
    /// Local identifier of the port.
    LID = 9, "RDMA_NLDEV_ATTR_LID": U32;
    /// Local identifier of the subnet manager.
    SM_LID = 10, "RDMA_NLDEV_ATTR_SM_LID": U32;
    /// How many low bits of the local identifier choose a path.
    LMC = 11, "RDMA_NLDEV_ATTR_LMC": U8;
    /// Logical state of the port.
    PORT_STATE = 12, "RDMA_NLDEV_ATTR_PORT_STATE": U8 of PortState;
    /// Physical state of the port.
    PORT_PHYS_STATE = 13, "RDMA_NLDEV_ATTR_PORT_PHYS_STATE": U8 of PortPhysState;
    /// Sort of the device.
    DEV_NODE_TYPE = 14, "RDMA_NLDEV_ATTR_DEV_NODE_TYPE": U8 of NodeType;
    /// The resources in use.
    RES_SUMMARY = 15, "RDMA_NLDEV_ATTR_RES_SUMMARY": Nested;
    /// One sort of resource in use.
    RES_SUMMARY_ENTRY = 16, "RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY": Nested;
    /// Its name: `pd`, `cq`, `qp`, `cm_id`, `mr`, `ctx`, `srq`.
    RES_SUMMARY_ENTRY_NAME = 17, "RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_NAME": String;
    /// How many are in use.
    RES_SUMMARY_ENTRY_CURR = 18, "RDMA_NLDEV_ATTR_RES_SUMMARY_ENTRY_CURR": U64;
    /// QPs.
    RES_QP = 19, "RDMA_NLDEV_ATTR_RES_QP": Nested;
    /// One QP.
    RES_QP_ENTRY = 20, "RDMA_NLDEV_ATTR_RES_QP_ENTRY": Nested;
    /// Number of the QP.
    RES_LQPN = 21, "RDMA_NLDEV_ATTR_RES_LQPN": U32;
    /// Number of the QP it is connected to.
    RES_RQPN = 22, "RDMA_NLDEV_ATTR_RES_RQPN": U32;
    /// Packet sequence number that the receive queue expects.
    RES_RQ_PSN = 23, "RDMA_NLDEV_ATTR_RES_RQ_PSN": U32;
    /// Packet sequence number that the send queue uses next.
    RES_SQ_PSN = 24, "RDMA_NLDEV_ATTR_RES_SQ_PSN": U32;
    /// State of path migration.
    RES_PATH_MIG_STATE = 25, "RDMA_NLDEV_ATTR_RES_PATH_MIG_STATE": U8 of MigState;
    /// Type of the QP, or of the SRQ, as the kernel numbers it.
    RES_TYPE = 26, "RDMA_NLDEV_ATTR_RES_TYPE": U8;
    /// State of the QP or of the connection identifier.
    RES_STATE = 27, "RDMA_NLDEV_ATTR_RES_STATE": U8;
    /// Process that made the object; absent for the kernel's own.
    RES_PID = 28, "RDMA_NLDEV_ATTR_RES_PID": U32;
    /// Kernel module that made the object; absent for a process's.
    RES_KERN_NAME = 29, "RDMA_NLDEV_ATTR_RES_KERN_NAME": String;
    /// Connection identifiers.
    RES_CM_ID = 30, "RDMA_NLDEV_ATTR_RES_CM_ID": Nested;
    /// One connection identifier.
    RES_CM_ID_ENTRY = 31, "RDMA_NLDEV_ATTR_RES_CM_ID_ENTRY": Nested;
    /// Its port space.
    RES_PS = 32, "RDMA_NLDEV_ATTR_RES_PS": U32 of PortSpace;
    /// Its own address.
    RES_SRC_ADDR = 33, "RDMA_NLDEV_ATTR_RES_SRC_ADDR": SocketAddress;
    /// The other side's address.
    RES_DST_ADDR = 34, "RDMA_NLDEV_ATTR_RES_DST_ADDR": SocketAddress;
    /// CQs.
    RES_CQ = 35, "RDMA_NLDEV_ATTR_RES_CQ": Nested;
    /// One CQ.
    RES_CQ_ENTRY = 36, "RDMA_NLDEV_ATTR_RES_CQ_ENTRY": Nested;
    /// Entries that the CQ holds.
    RES_CQE = 37, "RDMA_NLDEV_ATTR_RES_CQE": U32;
    /// How many objects use this one.
    RES_USECNT = 38, "RDMA_NLDEV_ATTR_RES_USECNT": U64;
    /// Context in which the kernel polls a kernel CQ.
    RES_POLL_CTX = 39, "RDMA_NLDEV_ATTR_RES_POLL_CTX": U8 of PollContext;
    /// MRs.
    RES_MR = 40, "RDMA_NLDEV_ATTR_RES_MR": Nested;
    /// One MR.
    RES_MR_ENTRY = 41, "RDMA_NLDEV_ATTR_RES_MR_ENTRY": Nested;
    /// Remote key of the MR; for administrators.
    RES_RKEY = 42, "RDMA_NLDEV_ATTR_RES_RKEY": U32;
    /// Local key of the MR; for administrators.
    RES_LKEY = 43, "RDMA_NLDEV_ATTR_RES_LKEY": U32;
    /// Address at which the device sees the MR start.
    RES_IOVA = 44, "RDMA_NLDEV_ATTR_RES_IOVA": U64;
    /// Bytes of the MR.
    RES_MRLEN = 45, "RDMA_NLDEV_ATTR_RES_MRLEN": U64;
    /// PDs.
    RES_PD = 46, "RDMA_NLDEV_ATTR_RES_PD": Nested;
    /// One PD.
    RES_PD_ENTRY = 47, "RDMA_NLDEV_ATTR_RES_PD_ENTRY": Nested;
    /// Key of the PD for all of memory; for administrators.
    RES_LOCAL_DMA_LKEY = 48, "RDMA_NLDEV_ATTR_RES_LOCAL_DMA_LKEY": U32;
    /// Remote key of the PD for all of memory; for administrators.
    RES_UNSAFE_GLOBAL_RKEY = 49, "RDMA_NLDEV_ATTR_RES_UNSAFE_GLOBAL_RKEY": U32;
    /// Number of the port's network device.
    NDEV_INDEX = 50, "RDMA_NLDEV_ATTR_NDEV_INDEX": U32;
    /// Name of the port's network device.
    NDEV_NAME = 51, "RDMA_NLDEV_ATTR_NDEV_NAME": String;
    /// What the driver tells of its own: a `DRIVER_STRING` that names, then the value.
    DRIVER = 52, "RDMA_NLDEV_ATTR_DRIVER": Nested;
    /// One entry of it.
    DRIVER_ENTRY = 53, "RDMA_NLDEV_ATTR_DRIVER_ENTRY": Nested;
    /// Name of the value after it, or a value that is text.
    DRIVER_STRING = 54, "RDMA_NLDEV_ATTR_DRIVER_STRING": String;
    /// How to print the value after it.
    DRIVER_PRINT_TYPE = 55, "RDMA_NLDEV_ATTR_DRIVER_PRINT_TYPE": U8 of PrintType;
    /// A signed 32-bit value of the driver's.
    DRIVER_S32 = 56, "RDMA_NLDEV_ATTR_DRIVER_S32": S32;
    /// A 32-bit value of the driver's.
    DRIVER_U32 = 57, "RDMA_NLDEV_ATTR_DRIVER_U32": U32;
    /// A signed 64-bit value of the driver's.
    DRIVER_S64 = 58, "RDMA_NLDEV_ATTR_DRIVER_S64": S64;
    /// A 64-bit value of the driver's.
    DRIVER_U64 = 59, "RDMA_NLDEV_ATTR_DRIVER_U64": U64;
    /// Number of the PD.
    RES_PDN = 60, "RDMA_NLDEV_ATTR_RES_PDN": U32;
    /// Number of the CQ.
    RES_CQN = 61, "RDMA_NLDEV_ATTR_RES_CQN": U32;
    /// Number of the MR.
    RES_MRN = 62, "RDMA_NLDEV_ATTR_RES_MRN": U32;
    /// Number of the connection identifier.
    RES_CM_IDN = 63, "RDMA_NLDEV_ATTR_RES_CM_IDN": U32;
    /// Number of the open device context.
    RES_CTXN = 64, "RDMA_NLDEV_ATTR_RES_CTXN": U32;
    /// Driver of a software device: `rxe` or `siw`.
    LINK_TYPE = 65, "RDMA_NLDEV_ATTR_LINK_TYPE": String;
    /// 1 where every network namespace sees every device, 0 where each device has one.
    SYS_NETNS_MODE = 66, "RDMA_NLDEV_SYS_ATTR_NETNS_MODE": U8;
    /// What the device speaks: `ib`, `roce`, `iw`, `opa`, `usnic`.
    DEV_PROTOCOL = 67, "RDMA_NLDEV_ATTR_DEV_PROTOCOL": String;
    /// Descriptor of the network namespace that the device is to move to.
    NET_NS_FD = 68, "RDMA_NLDEV_NET_NS_FD": U32;
    /// Which sort of character device is meant: `uverbs`, `rdma_cm`, `umad`, `issm`.
    CHARDEV_TYPE = 69, "RDMA_NLDEV_ATTR_CHARDEV_TYPE": String;
    /// Its name under `/dev/infiniband`.
    CHARDEV_NAME = 70, "RDMA_NLDEV_ATTR_CHARDEV_NAME": String;
    /// Revision of its ABI.
    CHARDEV_ABI = 71, "RDMA_NLDEV_ATTR_CHARDEV_ABI": U64;
    /// Its device number, major and minor.
    CHARDEV = 72, "RDMA_NLDEV_ATTR_CHARDEV": U64;
    /// The driver; four bytes, though the header says eight (`uverbs_main.c`).
    UVERBS_DRIVER_ID = 73, "RDMA_NLDEV_ATTR_UVERBS_DRIVER_ID": U32 of DriverId;
    /// How QPs come to their counters.
    STAT_MODE = 74, "RDMA_NLDEV_ATTR_STAT_MODE": U32 of CounterMode;
    /// Which sort of object is counted: the number of [`Attribute::RES_QP`] or
    /// [`Attribute::RES_MR`].
    STAT_RES = 75, "RDMA_NLDEV_ATTR_STAT_RES": U32 of Attribute;
    /// What QPs share that share an automatic counter.
    STAT_AUTO_MODE_MASK = 76, "RDMA_NLDEV_ATTR_STAT_AUTO_MODE_MASK": U32 of CounterMask;
    /// Counters.
    STAT_COUNTER = 77, "RDMA_NLDEV_ATTR_STAT_COUNTER": Nested;
    /// One counter.
    STAT_COUNTER_ENTRY = 78, "RDMA_NLDEV_ATTR_STAT_COUNTER_ENTRY": Nested;
    /// Number of the counter.
    STAT_COUNTER_ID = 79, "RDMA_NLDEV_ATTR_STAT_COUNTER_ID": U32;
    /// What the hardware counts.
    STAT_HWCOUNTERS = 80, "RDMA_NLDEV_ATTR_STAT_HWCOUNTERS": Nested;
    /// One thing that it counts.
    STAT_HWCOUNTER_ENTRY = 81, "RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY": Nested;
    /// Its name.
    STAT_HWCOUNTER_ENTRY_NAME = 82, "RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY_NAME": String;
    /// Its value.
    STAT_HWCOUNTER_ENTRY_VALUE = 83, "RDMA_NLDEV_ATTR_STAT_HWCOUNTER_ENTRY_VALUE": U64;
    /// Whether CQs moderate themselves.
    DEV_DIM = 84, "RDMA_NLDEV_ATTR_DEV_DIM": U8;
    /// The object in the device's own format.
    RES_RAW = 85, "RDMA_NLDEV_ATTR_RES_RAW": Binary;
    /// Open device contexts.
    RES_CTX = 86, "RDMA_NLDEV_ATTR_RES_CTX": Nested;
    /// One open device context.
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
    /// Whether the kernel copies registered pages when a process forks.
    SYS_COPY_ON_FORK = 93, "RDMA_NLDEV_SYS_ATTR_COPY_ON_FORK": U8;
    /// Number of the thing that the hardware counts.
    STAT_HWCOUNTER_INDEX = 94, "RDMA_NLDEV_ATTR_STAT_HWCOUNTER_INDEX": U32;
    /// Whether it is optional and switched on.
    STAT_HWCOUNTER_DYNAMIC = 95, "RDMA_NLDEV_ATTR_STAT_HWCOUNTER_DYNAMIC": U8;
    /// Whether unprivileged processes may set a privileged Q_Key.
    SYS_PRIVILEGED_QKEY_MODE = 96, "RDMA_NLDEV_SYS_ATTR_PRIVILEGED_QKEY_MODE": U8;
    /// Whether to tell what the driver adds.
    DRIVER_DETAILS = 97, "RDMA_NLDEV_ATTR_DRIVER_DETAILS": U8;
    /// Name of a driver's own QP type.
    RES_SUBTYPE = 98, "RDMA_NLDEV_ATTR_RES_SUBTYPE": String;
    /// Sort of a device under another.
    DEV_TYPE = 99, "RDMA_NLDEV_ATTR_DEV_TYPE" since V6_12: U8 of DeviceType;
    /// Name of the device above.
    PARENT_NAME = 100, "RDMA_NLDEV_ATTR_PARENT_NAME" since V6_12: String;
    /// Where the name comes from.
    NAME_ASSIGN_TYPE = 101, "RDMA_NLDEV_ATTR_NAME_ASSIGN_TYPE" since V6_12: U8 of NameAssignType;
    /// What a notice tells.
    EVENT_TYPE = 102, "RDMA_NLDEV_ATTR_EVENT_TYPE" since V6_12: U8 of EventType;
    /// Whether the kernel sends notices.
    SYS_MONITOR_MODE = 103, "RDMA_NLDEV_SYS_ATTR_MONITOR_MODE" since V6_12: U8;
    /// Whether a counter counts the optional things too.
    STAT_OPCOUNTER_ENABLED = 104, "RDMA_NLDEV_ATTR_STAT_OPCOUNTER_ENABLED" since V7_2: U8;
    /// Pools of fast-registration MRs.
    FRMR_POOLS = 105, "RDMA_NLDEV_ATTR_FRMR_POOLS" since V7_2: Nested;
    /// One pool.
    FRMR_POOL_ENTRY = 106, "RDMA_NLDEV_ATTR_FRMR_POOL_ENTRY" since V7_2: Nested;
    /// What the MRs of a pool have in common.
    FRMR_POOL_KEY = 107, "RDMA_NLDEV_ATTR_FRMR_POOL_KEY" since V7_2: Nested;
    /// Whether they use address translation services.
    FRMR_POOL_KEY_ATS = 108, "RDMA_NLDEV_ATTR_FRMR_POOL_KEY_ATS" since V7_2: U8;
    /// Their access flags.
    FRMR_POOL_KEY_ACCESS_FLAGS = 109, "RDMA_NLDEV_ATTR_FRMR_POOL_KEY_ACCESS_FLAGS" since V7_2: U32;
    /// The driver's part of the key.
    FRMR_POOL_KEY_VENDOR_KEY = 110, "RDMA_NLDEV_ATTR_FRMR_POOL_KEY_VENDOR_KEY" since V7_2: U64;
    /// How many DMA blocks each covers.
    FRMR_POOL_KEY_NUM_DMA_BLOCKS = 111, "RDMA_NLDEV_ATTR_FRMR_POOL_KEY_NUM_DMA_BLOCKS" since V7_2: U64;
    /// How many wait in the pool.
    FRMR_POOL_QUEUE_HANDLES = 112, "RDMA_NLDEV_ATTR_FRMR_POOL_QUEUE_HANDLES" since V7_2: U32;
    /// The most that were in use at once.
    FRMR_POOL_MAX_IN_USE = 113, "RDMA_NLDEV_ATTR_FRMR_POOL_MAX_IN_USE" since V7_2: U64;
    /// How many are in use.
    FRMR_POOL_IN_USE = 114, "RDMA_NLDEV_ATTR_FRMR_POOL_IN_USE" since V7_2: U64;
    /// Seconds after which an idle one is freed.
    FRMR_POOLS_AGING_PERIOD = 115, "RDMA_NLDEV_ATTR_FRMR_POOLS_AGING_PERIOD" since V7_2: U32;
    /// How many stay however long they are idle.
    FRMR_POOL_PINNED_HANDLES = 116, "RDMA_NLDEV_ATTR_FRMR_POOL_PINNED_HANDLES" since V7_2: U32;
    /// The part of the key that the driver keeps to the kernel's own MRs.
    FRMR_POOL_KEY_KERNEL_VENDOR_KEY = 117, "RDMA_NLDEV_ATTR_FRMR_POOL_KEY_KERNEL_VENDOR_KEY" since V7_2: U64;
}

impl Attribute {
    /// What is known of it; `None` for a number that this crate has no name for.
    #[must_use]
    pub fn info(self) -> Option<&'static AttributeInfo> {
        ATTRIBUTES.get(usize::from(self.0))
    }
}
