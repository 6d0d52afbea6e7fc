//! Completion counters.

use zerocopy::{Immutable, IntoBytes};

use super::c_types;
use super::device::ibv_context;

c_types! {
    #[derive(IntoBytes, Immutable)]
    struct ibv_comp_cntr_caps {
        max_value: u64,
        max_counters: u32,
        supported_qp_attach_ops: u32,
    }

    struct ibv_comp_cntr {
        context: *mut ibv_context,
        handle: u32,
    }

    struct ibv_comp_cntr_init_attr {
        comp_mask: u32,
        counter_type as "type": u32,
        flags: u32,
    }

    struct ibv_qp_attach_comp_cntr_attr {
        comp_mask: u32,
        op_mask: u32,
    }
}
