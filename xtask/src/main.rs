//! The project's own commands: `cargo xtask lab …`.

mod build;
mod lab;
mod terminal;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The project's own commands")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Real kernels with Soft-RoCE, in QEMU.
    #[command(subcommand)]
    Lab(lab::Command),
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Lab(command) => lab::run(command),
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("lab: {error:#}");
            ExitCode::FAILURE
        }
    }
}
