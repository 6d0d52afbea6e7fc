//! Devices and their objects: attributes, parameters and actual capacities.

mod completion_queues;
mod devices;
mod domains;
mod options;
mod queue_pairs;

fn main() -> std::process::ExitCode {
    bareverbs_kernel_tests::run()
}
