//! Soft devices with the kernel's Soft-RoCE on the other end of a veth pair.

#[path = "soft/host.rs"]
mod host;
#[path = "soft/managed.rs"]
mod managed;
#[path = "soft/operations.rs"]
mod operations;
#[path = "soft/pingpong.rs"]
mod pingpong;

fn main() -> std::process::ExitCode {
    bareverbs_test_support::run()
}
