//! Failures of the environment, and invalid arguments. Each is reported as an error, and no object
//! leaks. The modules, by verb:
//!
//! - `devices`, `Device::find`, `open`, `RdmaNetlink`: names that are empty, long, paths or have
//!   special bytes; numbers; no node, no permission, no descriptor: `names`, `devices`, `limits`
//! - `query_port`, `gid`, `pkey`, `port_speed`, `object_count`: port, index, class: `devices`,
//!   `regions`
//! - `register`, `register_raw`, `register_borrowed`: null, empty, unmapped, not writable, wrapping
//!   memory; access rights; address for peers; locked memory: `memory`, `regions`
//! - `Mr`: ranges; advice; changes of access rights and PD: `regions`, `contexts`
//! - `alloc_mw`, `Mw::bind`: type; PD, access rights, length, range: `contexts`, `failures`
//! - `create_cq`, `create_srq`, `create_qp`, resizes: depths, widths, vectors, limits; objects of
//!   another context: `devices`, `contexts`, `random`
//! - `init`, `ready_to_receive`, `ready_to_send`, `modify`: state, mask, every attribute:
//!   `attributes`, `states`, `random`
//! - `drain`, `resume`, `set_error`, `reset`: state: `states`
//! - `create_ah`, `ah_attr_from_wc`, `attach_mcast`, `detach_mcast`: port, GID and its index,
//!   header; group; members: `attributes`, `datagrams`, `groups`
//! - `post_send`, `post_recv`, inline data and datagrams: state; SGEs, lengths, sums; payload of
//!   the wrong type; full queue; keys and ranges, local and remote; no receive, too short receive:
//!   `posting`, `states`, `failures`, `cookbook`, `datagrams`, `zero`, `random`
//! - `Endpoint`: port, depth, peer, range, PD; use after a failure: `endpoints`
//! - all verbs: device removal: `removal`
//! - `provider::command`: handles that never existed, freed handles, handles of another type or
//!   file; descriptors; files: `commands`

mod attributes;
mod commands;
mod contexts;
mod cookbook;
mod datagrams;
mod devices;
mod endpoints;
mod failures;
mod groups;
mod limits;
mod memory;
mod names;
mod posting;
mod processes;
mod random;
mod refusals;
mod regions;
mod removal;
mod root_only;
mod states;
mod tool;
mod zero;

fn main() -> std::process::ExitCode {
    bareverbs_kernel_tests::run_not_short()
}
