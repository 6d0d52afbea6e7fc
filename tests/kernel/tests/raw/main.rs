//! The raw level: every declared method, invalid calls, adopted handles and addresses of queues.

mod buffers;
mod calls;
mod handles;
mod layouts;

#[path = "../../../../verbs/examples/raw_level.rs"]
#[expect(dead_code, reason = "its `main`")]
mod raw_level;

fn main() -> std::process::ExitCode {
    bareverbs_kernel_tests::run_not_short()
}
