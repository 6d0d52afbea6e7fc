//! `bareverbs`: RDMA from one static program.

mod asyncwatch;
mod cli;
mod devices;
mod devinfo;
mod pingpong;
mod resources;
mod say;
mod stop;

use std::process::ExitCode;

use clap::Parser;

use crate::cli::{Cli, Command};
use crate::stop::Interrupted;

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Devices(options) => devices::list(&options),
        Command::Devinfo(options) => devinfo::show(&options),
        Command::Asyncwatch(options) => asyncwatch::watch(&options),
        Command::Resources(options) => resources::show(&options),
        Command::Pingpong(options) => pingpong::play(&options),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say::remark(&format!("bareverbs: {error:#}"));
            let interrupted = error.chain().find_map(|cause| cause.downcast_ref::<Interrupted>());
            interrupted.map_or(ExitCode::FAILURE, |interrupted| interrupted.exit_status().into())
        }
    }
}
