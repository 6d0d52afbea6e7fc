//! The commands `trace` and `replay`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use super::conform::TextOrJson;

#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("target").required(true))]
pub(crate) struct Trace {
    /// Trace this running process until it ends, or until SIGINT
    #[arg(short, long, value_name = "PID", group = "target", value_parser = clap::value_parser!(i32).range(1..))]
    pub(crate) pid: Option<i32>,
    /// Write to this file (default: standard error; with -p, standard output)
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// The form of the output; JSON has an object in each line
    #[arg(long, value_enum, default_value = "text")]
    pub(crate) format: TextOrJson,
    /// Print counts and times of each method instead of the calls
    #[arg(long)]
    pub(crate) summary: bool,
    /// Also record the calls to this file, for `bareverbs replay`
    #[arg(long, value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,
    /// The program to start, with its arguments
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, group = "target")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct Replay {
    /// The recording
    pub(crate) file: PathBuf,
    /// Replay on this device, with the driver of the recording: rxe or mlx5 (default: the first one
    /// with that driver that can be opened)
    #[arg(short, long, value_name = "DEV")]
    pub(crate) device: Option<String>,
    /// The form of the output
    #[arg(long, value_enum, default_value = "text")]
    pub(crate) format: TextOrJson,
}
