//! Exemptions from the comparison, each with its reason. An exemption that is not needed is an
//! error.

use std::collections::BTreeSet;
use std::sync::Mutex;

/// An exemption and its reason. A `*` at the end of `item` matches any suffix.
#[derive(Clone, Copy, Debug)]
pub struct Exemption {
    /// The C name; `struct x: member` for a member.
    pub item: &'static str,
    /// The reason.
    pub reason: &'static str,
}

/// A list of exemptions that records which were used.
#[derive(Debug)]
pub struct Exemptions {
    name: &'static str,
    list: &'static [Exemption],
    used: Mutex<BTreeSet<usize>>,
}

impl Exemptions {
    const fn new(name: &'static str, list: &'static [Exemption]) -> Exemptions {
        Exemptions { name, list, used: Mutex::new(BTreeSet::new()) }
    }

    /// Whether the item is exempt.
    pub fn cover(&self, item: &str) -> bool {
        let found = self.list.iter().position(|exemption| match exemption.item.strip_suffix('*') {
            Some(start) => item.starts_with(start),
            None => item == exemption.item,
        });
        if let (Some(index), Ok(mut used)) = (found, self.used.lock()) {
            used.insert(index);
        }
        found.is_some()
    }

    /// The exemptions that were not used.
    pub fn unused(&self) -> Vec<String> {
        let used = self.used.lock().map(|used| used.clone()).unwrap_or_default();
        let unused = self.list.iter().enumerate().filter(|(index, _)| !used.contains(index));
        unused
            .map(|(_, line)| format!("{}: `{}` ({}) is no longer needed", self.name, line.item, line.reason))
            .collect()
    }
}

const fn exempt(item: &'static str, reason: &'static str) -> Exemption {
    Exemption { item, reason }
}

/// Items of the covered headers that are not declared in Rust.
pub static UNDECLARED: Exemptions = Exemptions::new(
    "UNDECLARED",
    &[
        exempt(
            "struct ib_uverbs_ioctl_hdr: attrs",
            "flexible array member; `method::Call` lays out the attributes",
        ),
        exempt("struct ib_uverbs_attr: attr_data.enum_data.elem_id", "low byte of `attr_data`"),
        exempt("struct ib_uverbs_attr: attr_data.enum_data.reserved", "high byte of `attr_data`"),
        exempt(
            "struct ib_uverbs_attr: data_s64",
            "the bytes of `data`; descriptors are converted at the call",
        ),
        exempt("struct rdma_ls_*", "path resolution by local services, which ibacm serves"),
        exempt("struct rdma_nla_ls_gid", "path resolution by local services"),
        exempt("RDMA_NL_LS_*", "path resolution by local services"),
        exempt("LS_*", "path resolution by local services"),
        exempt("RDMA_NL_IWPM_*", "the iWARP port mapper, which iwpmd serves"),
        exempt("IWPM_*", "the iWARP port mapper, which iwpmd serves"),
        exempt("struct __kernel_sockaddr_storage: __align", "a pointer that only aligns the struct"),
        exempt("struct mlx5_ib_create_qp: access_key", "the bytes of `sq_buf_addr`, for another kind of QP"),
        exempt("struct rdma_ucm_event_resp: param.conn", "the first bytes of `param.ud`: `EventResp::conn`"),
        exempt("struct rdma_ucm_event_resp: param.arg32", "the first bytes of `param.ud`: `EventResp::arg`"),
        exempt("struct rdma_ucm_write_cm_event: param.conn", "no event that the kernel accepts uses it"),
        exempt(
            "struct rdma_ucm_write_cm_event: param.arg",
            "the first bytes of `param.ud`: `WriteCmEventReq::set_arg`",
        ),
        exempt(
            "struct rxe_av: sgid_addr._sockaddr_in.sin_family",
            "the bytes of `_sockaddr_in6.sin6_family`",
        ),
        exempt("struct rxe_av: sgid_addr._sockaddr_in.sin_port", "the bytes of `_sockaddr_in6.sin6_port`"),
        exempt("struct rxe_av: sgid_addr._sockaddr_in.__pad", "the first bytes of `_sockaddr_in6.sin6_addr`"),
        exempt(
            "struct rxe_av: sgid_addr._sockaddr_in6.sin6_flowinfo",
            "the bytes of `_sockaddr_in.sin_addr`",
        ),
        exempt("struct rxe_av: dgid_addr._sockaddr_in", "`dgid_addr` is of the type of `sgid_addr`"),
        exempt("union rxe_gid", "its 16 bytes are the field `dgid`"),
        exempt("struct siw_sqe: base_mr", "the bytes of `raddr`, for the kernel only"),
        exempt("struct siw_sqe: access", "the first bytes of `sge`, for the kernel only"),
        exempt("struct siw_cqe: inval_stag", "the first bytes of `imm_data`, for the kernel only"),
        exempt("struct siw_cqe: base_qp", "the bytes of `qp_id`, for the kernel only"),
        exempt("SIW_NODE_DESC_COMMON", "a text"),
        exempt("SIW_NOTIFY_NOT", "no flag"),
        exempt("SIW_NOTIFY_ALL", "all flags of the enumeration together"),
        exempt("IB_FLOW_ATTR_FLAGS_RESERVED", "ends the flags that user space may set"),
        exempt("IB_MR_REREG_SUPPORTED", "all flags of the enumeration together"),
        exempt("IB_QP_ATTR_STANDARD_BITS", "all older bits of the enumeration together"),
        exempt("IB_QP_RESERVED*", "reserved bits"),
        exempt("IB_SEND_RESERVED_*", "bits reserved to the kernel"),
        exempt("NLMSGERR_ATTR_MAX", "count of the enumeration"),
        exempt("__NLMSGERR_ATTR_MAX", "count of the enumeration"),
        exempt("NLMSGERR_ATTR_UNUSED", "0, which no message carries"),
        exempt("HFI1_IOCTL_*", "the hfi1 driver's own device file"),
        exempt("IB_USER_MAD_*", "commands of the umad device file"),
        exempt("IB_IOCTL_MAGIC", "the old name of `RDMA_IOCTL_MAGIC`"),
        exempt("IB_POLL_LAST_POOL_TYPE", "end marker, equal to `IB_POLL_UNBOUND_WORKQUEUE`"),
        exempt("RDMA_COUNTER_MODE_MAX", "count of the enumeration"),
        exempt("RDMA_MC_JOIN_FLAG_RESERVED", "count of the enumeration"),
        exempt("RDMA_NLDEV_ATTR_MAX", "count of the enumeration; it grows with the kernel"),
        exempt("RDMA_NLDEV_NUM_OPS", "count of the enumeration; it grows with the kernel"),
        exempt("RDMA_NLDEV_ATTR_UNSPEC", "0, which no message carries"),
        exempt("RDMA_NLDEV_CMD_UNSPEC", "0, which no message carries"),
        exempt("RDMA_NLA_F_MANDATORY", "path resolution by local services"),
        exempt("RDMA_NLA_TYPE_MASK", "path resolution by local services"),
        exempt("UVERBS_UDATA_DRIVER_DATA_*", "unused names of 6.1 for bit 12 of an attribute's number"),
        exempt("RDMA_UAPI_PTR", "macro that declares a member for a user address"),
        exempt("RDMA_NL_RSVD", "reserved numbers"),
        exempt("RDMA_NL_NUM_*", "count of the enumeration; it grows with the kernel"),
        exempt("RDMA_NL_GET_*", "arithmetic on message types, as `nldev::Command::message_type` does it"),
    ],
);

/// Values that Rust declares in an enumeration and C declares elsewhere.
pub static MISPLACED_VALUES: Exemptions = Exemptions::new(
    "MISPLACED_VALUES",
    &[
        exempt("IB_QPT_SMI", "the uapi enumeration omits kernel QPs; query_qp and nldev report them"),
        exempt("IB_QPT_GSI", "as `IB_QPT_SMI`"),
        exempt("OPA_MTU_*", "Omni-Path's MTUs continue InfiniBand's in the same fields"),
        exempt("IB_WC_RECV*", "the uapi enumeration omits completions of receives"),
    ],
);

/// The unused exemptions of all lists. Call it after all kernels were compared.
pub fn unused() -> Vec<String> {
    [&UNDECLARED, &MISPLACED_VALUES].iter().flat_map(|list| list.unused()).collect()
}
