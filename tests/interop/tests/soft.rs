//! Soft devices with the kernel's Soft-RoCE on the other end of a veth pair.

#[path = "soft/host.rs"]
mod host;
#[path = "soft/hostile.rs"]
mod hostile;
#[path = "soft/impaired.rs"]
mod impaired;
#[path = "soft/killed.rs"]
mod killed;
#[path = "soft/managed.rs"]
mod managed;
#[path = "soft/messages.rs"]
mod messages;
#[path = "soft/operations.rs"]
mod operations;
#[path = "soft/perf.rs"]
mod perf;
#[path = "soft/pingpong.rs"]
mod pingpong;
#[path = "soft/recorded.rs"]
mod recorded;
#[path = "soft/unreliable.rs"]
mod unreliable;

fn main() -> std::process::ExitCode {
    bareverbs_test_support::run()
}
