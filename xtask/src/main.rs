//! The project's own commands: `cargo xtask demo`, `test`, `pyverbs`, `soak`, `lab …`.

mod build;
mod c_functions;
mod cmtime;
mod conform;
mod counts;
mod coverage;
mod crates;
mod demo;
mod deny;
mod dropin;
mod examples;
mod experiment;
mod exports;
mod fastpath;
mod filter;
mod flaky;
mod fuzz;
mod guest_sources;
mod guest_tests;
mod hca;
mod imports;
mod installed;
mod lab;
mod loom;
mod mutants;
mod native;
#[cfg(test)]
mod no_run;
mod outcome;
mod package;
mod perf_compare;
mod plot;
mod print;
mod pyverbs;
mod rstream;
mod soak;
mod sources;
mod spelling;
mod syzlang;
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
    /// RC ping-pong between two processes with devices in user space, or between two virtual hosts.
    Demo(demo::Demo),
    /// Formatting, lints, documentation and all tests, including those on real kernels.
    Test(test::Test),
    /// Compare rdma-core's test suite with this project's tests, case by case.
    Pyverbs(pyverbs::Pyverbs),
    /// List each C function of libibverbs, librdmacm and libmlx5 with our item, or why there is none.
    CFunctions(c_functions::CFunctions),
    /// Run the conformance suite of the kernel's ABI on several kernels, and write a page.
    Conform(conform::Conform),
    /// Write descriptions of the verbs ABI for syzkaller.
    Syzlang(syzlang::Syzlang),
    /// Long scale and endurance tests, in a guest.
    Soak(soak::Soak),
    /// Count the data path's instructions, beside rdma-core's; fails above the ceilings.
    Fastpath(fastpath::Fastpath),
    /// Time the steps of connections, and count their system calls, beside librdmacm's.
    Cmtime(cmtime::Cmtime),
    /// Measure latencies and bandwidths, beside perftest's.
    PerfCompare(perf_compare::PerfCompare),
    /// Measure the throughput of streams, beside librdmacm's.
    Rstream(rstream::Rstream),
    /// Count the mlx5 data path's instructions, on the software HCA in the same process.
    Counts(counts::Counts),
    /// Measure which lines of the product crates the tests reach; fails if no test calls a public
    /// function.
    Coverage(coverage::Measure),
    /// Fuzz the parsers of untrusted input; needs a nightly compiler.
    Fuzz(fuzz::Fuzz),
    /// Check models of shared queues in all interleavings of their threads.
    Loom(loom::Loom),
    /// Compare our WQEs with rdma-core's, as fetched by an HCA, field by field.
    #[command(alias = "wqes")]
    WqeDiff(wqe_diff::WqeDiff),
    /// Mutation testing of the product.
    Mutants(mutants::Mutants),
    /// Check the dependencies: licenses, sources, no C in the product.
    Deny(deny::Deny),
    /// Build libibverbs.so.1 over bareverbs, or run a program with it.
    #[command(subcommand)]
    Dropin(dropin::Dropin),
    /// List the imports between files that run in circles; fails if there are any.
    Imports(imports::Check),
    /// Package the published crates, or publish them.
    Package(package::Package),
    /// Build the documentation of all crates; warnings are errors.
    Doc,
    /// Check that all crates build with the compiler that runs this, the minimum Rust version in
    /// CI.
    Msrv,
    /// Run the threaded tests of the mlx5 provider and of the drop-in library under ThreadSanitizer.
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
        Command::CFunctions(functions) => functions.run(),
        Command::Conform(conform) => conform.run(),
        Command::Syzlang(syzlang) => syzlang.run(),
        Command::Soak(soak) => soak.run(),
        Command::Counts(counts) => counts.run(),
        Command::Coverage(coverage) => coverage.run(),
        Command::Fuzz(fuzz) => fuzz.run(),
        Command::Loom(loom) => loom.run(),
        Command::WqeDiff(diff) => diff.run(),
        Command::Fastpath(fastpath) => fastpath.run(),
        Command::Cmtime(cmtime) => cmtime.run(),
        Command::PerfCompare(compare) => compare.run(),
        Command::Rstream(rstream) => rstream.run(),
        Command::Mutants(mutants) => mutants.run(),
        Command::Deny(deny) => deny.run(),
        Command::Dropin(dropin) => dropin.run(),
        Command::Imports(check) => check.run(),
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
