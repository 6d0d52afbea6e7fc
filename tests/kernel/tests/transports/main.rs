//! UC, UD, SRQs and multicast through the public API.

mod datagram;
mod host;
mod multicast;
mod neighbours;
mod owned;
mod shared;
mod source_qpn;
mod unreliable;
mod untyped;

fn main() -> std::process::ExitCode {
    bareverbs_kernel_tests::run()
}
