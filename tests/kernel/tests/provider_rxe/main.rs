//! The rxe provider on a real kernel: two RC queue pairs of one process, connected to each other.

mod host;
mod objects;
mod operations;
mod pair;
mod queues;
mod states;

fn main() -> std::process::ExitCode {
    bareverbs_kernel_tests::run()
}
