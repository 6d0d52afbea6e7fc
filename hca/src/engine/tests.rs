//! The engine as a driver sees it, without a kernel: queue pairs that talk to each other over a
//! wire that may be bad.

mod completions;
mod device_memory;
mod doorbells;
mod keys;
mod limits;
mod malicious;
mod ordering;
mod paging;
mod qp_pair;
mod transfers;
mod wqe_validation;
