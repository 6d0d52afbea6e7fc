//! The command line of the doctor.

use clap::Args;

use super::values::{gid_index, number};

/// The options of `bareverbs perf doctor`.
#[derive(Clone, Debug, Args)]
pub(crate) struct DoctorOptions {
    /// Host to check the path to; `bareverbs perf doctor --serve` must run there. Without it, only
    /// this machine is checked
    #[arg(conflicts_with = "serve")]
    pub(crate) host: Option<String>,
    /// After this machine's checks, answer `bareverbs perf doctor` of other hosts until interrupted
    #[arg(long)]
    pub(crate) serve: bool,
    /// Listen on or connect to this TCP port
    #[arg(short, long, default_value = "18516", value_parser = number::<u16>(0, 65535))]
    pub(crate) port: u16,
    /// Use this device, such as rxe0 or soft:127.0.0.2 (default: the first one with an active port)
    #[arg(short = 'd', long, value_name = "DEV")]
    pub(crate) ib_dev: Option<String>,
    /// Use this port of the device
    #[arg(short = 'i', long, value_name = "PORT", default_value = "1", value_parser = number::<u8>(1, 255))]
    pub(crate) ib_port: u8,
    /// Local GID index (default: the best one)
    #[arg(short = 'x', long, value_name = "INDEX", value_parser = gid_index)]
    pub(crate) gid_index: Option<i32>,
    /// Print JSON instead of lines
    #[arg(long)]
    pub(crate) json: bool,
}
