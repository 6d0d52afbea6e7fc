//! The cost of the data path on a real kernel: system calls, as traced, and allocations, as
//! counted.

mod allocations;
mod system_calls;
mod tracer;

fn main() -> std::process::ExitCode {
    bareverbs_kernel_tests::run()
}
