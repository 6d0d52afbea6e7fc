//! The reasons for rows without a test of ours. Each is checked against the sources or the kernels, so
//! that none outlives what it says.

use std::collections::BTreeSet;

/// Why a reason is true.
pub(super) enum Basis {
    /// None of these C functions has an item of ours.
    NoItem(&'static [&'static str]),
    /// No released kernel of the lab has this option.
    NoOption(&'static str),
    /// It is about the suite, its machine or the kernel, which the sources of this project can't change.
    Outside,
}

use Basis::{NoItem, NoOption, Outside};

/// The text after `none: `, and why it is true.
pub(super) const REASONS: &[(&str, Basis)] = &[
    ("CQEs of 128 bytes are not padded", Outside),
    ("DC is not implemented", NoItem(&["mlx5dv_map_ah_to_qp", "mlx5dv_wr_set_dc_addr"])),
    (
        "DEVX is not implemented",
        NoItem(&["mlx5dv_devx_obj_create", "mlx5dv_devx_umem_reg", "mlx5dv_devx_alloc_uar"]),
    ),
    ("DMA handles need CONFIG_PCIE_TPH, which the lab's kernels lack", NoOption("CONFIG_PCIE_TPH")),
    ("about EFA, which has no provider here", Outside),
    ("an object is freed once, because freeing consumes it", Outside),
    (
        "buffers that confidential guests share with the device are not implemented",
        NoItem(&["ibv_export_buf_dmabuf_fd"]),
    ),
    ("clocks of network devices (PHC) are not read", Outside),
    ("devices bound to VFIO are not driven", NoItem(&["mlx5dv_get_vfio_device_list"])),
    ("doorbell pages for emulated devices (VAR) are not implemented", NoItem(&["mlx5dv_alloc_var"])),
    ("inline encryption is not implemented", NoItem(&["mlx5dv_dek_create", "mlx5dv_crypto_login"])),
    ("memory is allocated without a PD; any PD may register it", Outside),
    ("memory is registered by address only, without a descriptor", Outside),
    ("mkeys of several regions are not implemented", NoItem(&["mlx5dv_create_mkey"])),
    ("mlx5's own attributes of a port have no verb", NoItem(&["mlx5dv_query_port"])),
    (
        "mlx5's own flow matchers and actions are not implemented",
        NoItem(&["mlx5dv_create_flow_matcher", "mlx5dv_create_flow"]),
    ),
    ("needs an NVIDIA GPU", Outside),
    ("operations on addresses of device memory are not implemented", NoItem(&["mlx5dv_dm_map_op_addr"])),
    ("out-of-order placement is not implemented", Outside),
    ("packet pacing entries shared by QPs are not implemented", NoItem(&["mlx5dv_pp_alloc"])),
    ("relaxed ordering does not depend on the type of the QP; tested on RC and UD", Outside),
    ("reserved QP numbers are not implemented", NoItem(&["mlx5dv_reserved_qpn_alloc"])),
    ("scheduling of send queues is not implemented", NoItem(&["mlx5dv_sched_node_create"])),
    ("software-managed steering (DR) is not implemented", NoItem(&["mlx5dv_dr_domain_create"])),
    ("tag matching is not implemented", NoItem(&["ibv_post_srq_ops", "ibv_wc_read_tm_info"])),
    (
        "the UDP source port of a QP is not set; it follows the flow label",
        NoItem(&["mlx5dv_modify_qp_udp_sport"]),
    ),
    ("the behaviour is the driver's, without a part of the library", Outside),
    ("the memory copy of the device (MMO) is not implemented", NoItem(&["mlx5dv_wr_memcpy"])),
    ("the port of a QP in a bond (LAG) is not chosen", NoItem(&["mlx5dv_modify_qp_lag_port"])),
    ("the program allocates the memory, so there is no descriptor", NoItem(&["ibv_export_buf_dmabuf_fd"])),
    ("the result is a constant of libibverbs, not of the kernel", NoItem(&["ibv_query_qp_data_in_order"])),
    ("the size of CQEs is a value of a type, which no variable of the environment sets", Outside),
    ("the timestamp of a completion does not depend on the type of the QP; tested on RC", Outside),
];

/// What makes the basis of a reason untrue.
pub(super) fn refutation(
    basis: &Basis,
    implemented: &BTreeSet<String>,
    configs: &[String],
) -> Option<String> {
    match basis {
        NoItem(functions) => {
            let function = functions.iter().find(|function| implemented.contains(**function))?;
            Some(format!("{function} has an item"))
        }
        NoOption(option) => {
            let set = |config: &&String| config.lines().any(|line| line == format!("{option}=y"));
            configs.iter().find(set).map(|_| format!("a kernel has {option}"))
        }
        Outside => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_refuted_by_items_and_kernel_options() {
        let implemented = BTreeSet::from(["rdma_connect".to_owned()]);
        let refuted =
            |basis| refutation(&basis, &implemented, &["CONFIG_A=y\n# CONFIG_B is not set\n".to_owned()]);
        assert_eq!(refuted(NoItem(&["rdma_listen", "rdma_connect"])).unwrap(), "rdma_connect has an item");
        assert_eq!(refuted(NoOption("CONFIG_A")).unwrap(), "a kernel has CONFIG_A");
        assert_eq!(refuted(NoItem(&["rdma_listen"])), None);
        assert_eq!(refuted(NoOption("CONFIG_B")), None);
        assert_eq!(refuted(Outside), None);
    }
}
