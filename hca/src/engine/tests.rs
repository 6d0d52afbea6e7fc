//! Tests of the engine by the driver's interface, without a kernel: pairs of QPs over a wire with
//! fault injection.

mod completions;
mod device_memory;
mod doorbells;
mod keys;
mod limits;
mod malicious;
mod migration;
mod ordering;
mod pacing;
mod paging;
mod qp_pair;
mod transfers;
mod wqe_validation;
