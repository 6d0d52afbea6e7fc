//! The program `bareverbs`, as a library for its binary.
//!
//! It has no API for other programs; they use the crate `bareverbs`.

mod asyncwatch;
mod cli;
mod client_server;
mod cmtime;
mod conform;
mod decode;
mod dev;
mod devices;
mod devinfo;
mod dump;
mod link;
mod mckey;
mod monitor;
mod output;
mod packaging;
mod perf;
mod pingpong;
mod rcopy;
mod resources;
mod rping;
mod rstream;
mod session;
mod signal;
mod stat;
mod status;
mod system;
#[cfg(feature = "test-utils")]
pub mod testing;
mod trace;
mod ucmatose;
mod udaddy;
mod udpong;
mod xrc_client_server;

use std::ffi::OsString;
use std::io::{ErrorKind, Write as _};

use bareverbs::Device;
use clap::Parser;

use crate::cli::perf::PerfCommand;
use crate::cli::{Cli, Command};
use crate::perf::expect::NotMet;

/// The exit status if results do not meet `--expect`.
const NOT_MET: u8 = 3;

/// Runs the program: arguments in, exit status out.
#[must_use]
pub fn run(arguments: impl Iterator<Item = OsString>) -> u8 {
    let cli = match Cli::try_parse_from(arguments) {
        Ok(cli) => cli,
        Err(error) => return usage(&error),
    };
    // It lasts until the process ends.
    if let Err(error) = cli.command.soft_device().map(Device::find).transpose() {
        output::diagnostic(&format!("bareverbs: {error}"));
        return 1;
    }
    let result = match cli.command {
        Command::Devices(options) => devices::list(&options),
        Command::Devinfo(options) => devinfo::show(&options),
        Command::Asyncwatch(options) => asyncwatch::watch(&options),
        Command::Resources(options) => resources::show(&options),
        Command::Dump(options) => dump::show(&options),
        Command::Conform(options) => match conform::run(&options) {
            Ok(status) => return status,
            Err(error) => Err(error),
        },
        Command::Decode(options) => decode::show(&options),
        Command::Replay(options) => match trace::replay(&options) {
            Ok(status) => return status,
            Err(error) => Err(error),
        },
        Command::Trace(options) => match trace::run(&options) {
            Ok(status) => return status,
            Err(error) => Err(error),
        },
        Command::Pingpong(options) => pingpong::run(&options),
        Command::Perf(PerfCommand::Benchmark(options)) => perf::run(&options),
        Command::Perf(PerfCommand::Report(options)) => perf::compare::run(&options),
        Command::Perf(PerfCommand::Doctor(options)) => perf::doctor::run(&options),
        Command::Rping(options) => rping::run(&options),
        Command::Ucmatose(options) => ucmatose::run(&options),
        Command::Cmtime(options) => cmtime::run(&options),
        Command::RdmaServer(options) => client_server::serve(&options),
        Command::RdmaClient(options) => client_server::connect(&options),
        Command::RdmaXserver(options) => xrc_client_server::serve(&options),
        Command::RdmaXclient(options) => xrc_client_server::connect(&options),
        Command::Udaddy(options) => udaddy::run(&options),
        Command::Mckey(options) => mckey::run(&options),
        Command::Rstream(options) => rstream::run(&options),
        Command::Riostream(options) => rstream::run_mapped(&options),
        Command::Udpong(options) => udpong::run(&options),
        Command::Rcopy(options) => rcopy::run(&options),
        Command::Status(options) => status::show(&options),
        Command::Link(options) => link::run(&options),
        Command::Dev(options) => dev::run(&options),
        Command::System(options) => system::run(&options),
        Command::Stat(options) => stat::run(&options),
        Command::Monitor(options) => monitor::watch(&options),
        Command::Completions(options) => packaging::completions(&options),
        Command::Man(options) => packaging::man(&options),
    };
    // A signal that arrives after the last result counts, too.
    let Err(error) = result.and_then(|()| Ok(signal::check()?)) else { return 0 };
    let interrupted = signal::check().err();
    if interrupted.is_none() && output::is_closed(&error) {
        return output::CLOSED;
    }
    output::diagnostic(&format!("bareverbs: {error:#}"));
    match interrupted {
        Some(interrupted) => interrupted.exit_status(),
        None if error.is::<NotMet>() => NOT_MET,
        None => 1,
    }
}

/// Prints the help, the version or an error of the command line. Returns the exit status.
fn usage(error: &clap::Error) -> u8 {
    match error.print().and_then(|()| std::io::stdout().flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => output::CLOSED,
        _ => u8::try_from(error.exit_code()).unwrap_or(1),
    }
}
