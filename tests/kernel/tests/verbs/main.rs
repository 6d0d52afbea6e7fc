//! The public API on a real kernel with an RDMA device.

mod dead_peer;
mod deferred;
mod devices;
mod events;
mod lifetime;
mod memory;
mod owned;
mod pair;
mod polling;
mod posting;
mod queue_pairs;
mod remote_region;
mod scopes;
mod traffic;

fn main() -> std::process::ExitCode {
    bareverbs_kernel_tests::run()
}
