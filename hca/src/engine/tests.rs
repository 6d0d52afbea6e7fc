//! The engine as a driver sees it, without a kernel: queue pairs that talk to each other over a wire that may be bad.

mod bench_pair;
mod card_memory;
mod completions;
mod doorbells;
mod hostile;
mod keys;
mod limits;
mod order;
mod paging;
mod strictness;
mod transfers;
