//! Values of `infiniband/verbs.h` that differ from those of the kernel, or that it lacks.
//!
//! The other enumerations of the header have the values of the kernel's, for which `bareverbs` has
//! types. They pass through this library as numbers. The tests compare them too.

macro_rules! values {
    ($( $name:ident = $value:expr; )*) => {
        $( pub(crate) const $name: std::ffi::c_int = $value; )*

        /// What the tests compare with the header.
        #[cfg(test)]
        pub(super) const VALUES: &[(&str, i64)] = &[ $( (stringify!($name), $name as i64), )* ];
    };
}

values! {
    IBV_TRANSPORT_UNKNOWN = -1;
    IBV_TRANSPORT_IB = 0;
    IBV_TRANSPORT_IWARP = 1;
    IBV_TRANSPORT_USNIC = 2;
    IBV_TRANSPORT_USNIC_UDP = 3;
    IBV_TRANSPORT_UNSPECIFIED = 4;

    IBV_WC_GRH = 1 << 0;
    IBV_WC_WITH_IMM = 1 << 1;
    IBV_WC_IP_CSUM_OK = 1 << 2;
    IBV_WC_WITH_INV = 1 << 3;

    IBV_WC_EX_WITH_BYTE_LEN = 1 << 0;
    IBV_WC_EX_WITH_IMM = 1 << 1;
    IBV_WC_EX_WITH_QP_NUM = 1 << 2;
    IBV_WC_EX_WITH_SRC_QP = 1 << 3;
    IBV_WC_EX_WITH_SLID = 1 << 4;
    IBV_WC_EX_WITH_SL = 1 << 5;
    IBV_WC_EX_WITH_DLID_PATH_BITS = 1 << 6;
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP = 1 << 7;
    IBV_WC_EX_WITH_CVLAN = 1 << 8;
    IBV_WC_EX_WITH_FLOW_TAG = 1 << 9;
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK = 1 << 11;

    IBV_CQ_INIT_ATTR_MASK_FLAGS = 1 << 0;
    IBV_CQ_INIT_ATTR_MASK_PD = 1 << 1;

    IBV_CREATE_CQ_ATTR_SINGLE_THREADED = 1 << 0;
    IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN = 1 << 1;

    IBV_CQ_ATTR_MODERATE = 1 << 0;

    IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS = 1 << 0;
    IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT = 1 << 1;
    IBV_PARENT_DOMAIN_INIT_ATTR_ALLOW_CC_UNPROTECTED_ALLOC = 1 << 2;

    IBV_REG_MR_MASK_IOVA = 1 << 0;
    IBV_REG_MR_MASK_ADDR = 1 << 1;
    IBV_REG_MR_MASK_FD = 1 << 2;
    IBV_REG_MR_MASK_FD_OFFSET = 1 << 3;
    IBV_REG_MR_MASK_DMAH = 1 << 4;
    IBV_REG_MR_MASK_BUF = 1 << 5;

    IBV_REREG_MR_CHANGE_TRANSLATION = 1 << 0;
    IBV_REREG_MR_CHANGE_PD = 1 << 1;
    IBV_REREG_MR_CHANGE_ACCESS = 1 << 2;

    IBV_REREG_MR_ERR_INPUT = -1;
    IBV_REREG_MR_ERR_CMD = -4;

    IBV_DMAH_INIT_ATTR_MASK_CPU_ID = 1 << 0;
    IBV_DMAH_INIT_ATTR_MASK_PH = 1 << 1;
    IBV_DMAH_INIT_ATTR_MASK_TPH_MEM_TYPE = 1 << 2;

    IBV_VALUES_MASK_RAW_CLOCK = 1 << 0;

    IBV_XRCD_INIT_ATTR_FD = 1 << 0;
    IBV_XRCD_INIT_ATTR_OFLAGS = 1 << 1;

    IBV_SRQT_BASIC = 0;
    IBV_SRQT_XRC = 1;
    IBV_SRQT_TM = 2;

    IBV_SRQ_INIT_ATTR_TYPE = 1 << 0;
    IBV_SRQ_INIT_ATTR_PD = 1 << 1;
    IBV_SRQ_INIT_ATTR_XRCD = 1 << 2;
    IBV_SRQ_INIT_ATTR_CQ = 1 << 3;

    IBV_QP_OPEN_ATTR_NUM = 1 << 0;
    IBV_QP_OPEN_ATTR_XRCD = 1 << 1;
    IBV_QP_OPEN_ATTR_CONTEXT = 1 << 2;
    IBV_QP_OPEN_ATTR_TYPE = 1 << 3;

    IBV_QP_INIT_ATTR_PD = 1 << 0;
    IBV_QP_INIT_ATTR_XRCD = 1 << 1;
    IBV_QP_INIT_ATTR_CREATE_FLAGS = 1 << 2;
    IBV_QP_INIT_ATTR_MAX_TSO_HEADER = 1 << 3;
    IBV_QP_INIT_ATTR_IND_TABLE = 1 << 4;
    IBV_QP_INIT_ATTR_RX_HASH = 1 << 5;
    IBV_QP_INIT_ATTR_SEND_OPS_FLAGS = 1 << 6;

    IBV_QP_CREATE_SOURCE_QPN = 1 << 10;

    IBV_QP_EX_WITH_RDMA_WRITE = 1 << 0;
    IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM = 1 << 1;
    IBV_QP_EX_WITH_SEND = 1 << 2;
    IBV_QP_EX_WITH_SEND_WITH_IMM = 1 << 3;
    IBV_QP_EX_WITH_RDMA_READ = 1 << 4;
    IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP = 1 << 5;
    IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD = 1 << 6;
    IBV_QP_EX_WITH_LOCAL_INV = 1 << 7;
    IBV_QP_EX_WITH_BIND_MW = 1 << 8;
    IBV_QP_EX_WITH_SEND_WITH_INV = 1 << 9;
    IBV_QP_EX_WITH_TSO = 1 << 10;
    IBV_QP_EX_WITH_FLUSH = 1 << 11;
    IBV_QP_EX_WITH_ATOMIC_WRITE = 1 << 12;

    IBV_WQ_INIT_ATTR_FLAGS = 1 << 0;

    IBV_FLOW_SPEC_IPV4_EXT = 0x32;

    IBV_COMP_CNTR_TYPE_WRS = 0;
    IBV_COMP_CNTR_TYPE_BYTES = 1;

    IBV_FORK_DISABLED = 0;
    IBV_FORK_UNNEEDED = 2;
}
