//! The environment of a program: events in threads and tasks, forked children, the neighbour table.

mod events;
mod forks;
mod load;
mod neighbours;
mod tasks;

#[path = "../../../../verbs/examples/async_io_echo.rs"]
#[expect(dead_code, reason = "its `main`")]
mod async_io_echo;
#[path = "../../../../verbs/examples/tokio_echo.rs"]
#[expect(dead_code, clippy::duplicate_mod, reason = "its `main`, and the module of its option")]
mod tokio_echo;

fn main() -> std::process::ExitCode {
    bareverbs_kernel_tests::run_not_short()
}
