//! Connections of threads and tasks: hubs, servers, streams of endpoints, and waits for buffers.

mod connections;
mod pools;
mod server_buffers;
mod servers;
mod streams;
mod tasks;
mod threads;

fn main() -> std::process::ExitCode {
    bareverbs_kernel_tests::run_not_short()
}
