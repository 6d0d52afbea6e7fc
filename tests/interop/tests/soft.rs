//! Soft devices with the kernel's Soft-RoCE on the other end of a veth pair.

#[path = "soft/pingpong.rs"]
mod pingpong;

fn main() -> std::process::ExitCode {
    bareverbs_test_support::run()
}
