//! The project's own commands: `cargo xtask demo`, `test`, `pyverbs`, `soak`, `lab …`.

mod build;
mod counts;
mod coverage;
mod demo;
mod deny;
mod fastpath;
mod filter;
mod fuzz;
mod guest_tests;
mod hca;
mod installed;
mod lab;
mod loom;
mod mutants;
mod native;
mod outcome;
mod package;
mod plot;
mod print;
mod pyverbs;
mod soak;
mod spelling;
mod terminal;
mod test;
mod tsan;
mod two_hosts;
mod wqe_diff;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", about = "The project's own commands")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Ping-pong between two hosts, each with its own kernel, over Soft-RoCE.
    Demo(demo::Demo),
    /// Formatting, lints, documentation and all tests, those on real kernels included.
    Test(test::Test),
    /// rdma-core's test suite against ours, case by case.
    Pyverbs(pyverbs::Pyverbs),
    /// Scale and endurance, at length, in a guest.
    Soak(soak::Soak),
    /// What the data path costs in instructions, beside the C library; fails above the ceilings.
    Fastpath(fastpath::Fastpath),
    /// Count what the mlx5 data path costs in instructions, on the software HCA in the same
    /// process.
    Counts(counts::Counts),
    /// Measure which lines of the product crates the tests reach; fails where a public function is
    /// called by none.
    Coverage(coverage::Measure),
    /// Fuzz the parsers of what devices, kernels and peers say; needs a nightly compiler.
    Fuzz(fuzz::Fuzz),
    /// Explore how threads that share queues interleave, with models of them.
    Loom(loom::Loom),
    /// Compare what an HCA fetches of our requests and of the C library's, field by field.
    #[command(alias = "wqes")]
    WqeDiff(wqe_diff::WqeDiff),
    /// Change the product line by line and see whether a test notices.
    Mutants(mutants::Mutants),
    /// Check the dependencies: licenses, sources, no C in the product.
    Deny(deny::Deny),
    /// Package the published crates, or publish them.
    Package(package::Package),
    /// Build the documentation of all crates; warnings are errors.
    Doc,
    /// Check that all crates build with the compiler that runs this, the minimum Rust version in CI.
    Msrv,
    /// Run the threaded tests of the mlx5 provider under ThreadSanitizer.
    Tsan(tsan::Tsan),
    /// Real kernels with Soft-RoCE, in QEMU.
    #[command(subcommand)]
    Lab(lab::Command),
}

fn main() -> ExitCode {
    if let Some(code) = coverage::compile_if_wrapper() {
        return code;
    }
    let result = match Cli::parse().command {
        Command::Demo(demo) => demo.run(),
        Command::Test(test) => test.run(),
        Command::Pyverbs(pyverbs) => pyverbs.run(),
        Command::Soak(soak) => soak.run(),
        Command::Counts(counts) => counts.run(),
        Command::Coverage(coverage) => coverage.run(),
        Command::Fuzz(fuzz) => fuzz.run(),
        Command::Loom(loom) => loom.run(),
        Command::WqeDiff(diff) => diff.run(),
        Command::Fastpath(fastpath) => fastpath.run(),
        Command::Mutants(mutants) => mutants.run(),
        Command::Deny(deny) => deny.run(),
        Command::Package(package) => package.run(),
        Command::Doc => test::documentation().map(|()| ExitCode::SUCCESS),
        Command::Msrv => test::minimum_rust().map(|()| ExitCode::SUCCESS),
        Command::Tsan(tsan) => tsan.run(),
        Command::Lab(command) => lab::run(command),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
