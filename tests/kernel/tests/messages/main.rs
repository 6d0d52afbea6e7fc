//! Many rounds of all operations, with a check of the data on arrival.

mod atomics;
mod exchanges;
mod fields;
mod windows;

fn main() -> std::process::ExitCode {
    bareverbs_kernel_tests::run()
}
