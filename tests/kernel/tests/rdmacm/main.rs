//! The connection manager: connections within this host, their events and their errors.

mod addresses;
mod beside;
mod channels;
mod connections;
mod datagrams;
mod endpoints;
mod faults;
mod host;
mod iwarp;
mod iwarp_faults;
mod limits;
mod migration;
mod neighbours;
mod network;
mod options;
mod owned;
mod provider_siw;
mod services;
mod sharing;
mod sockets;
mod states;

fn main() -> std::process::ExitCode {
    bareverbs_kernel_tests::run_not_short()
}
