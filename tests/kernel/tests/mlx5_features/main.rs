//! ConnectX features that Soft-RoCE lacks, through the public API; other devices return
//! `Error::Unsupported`.

mod alternate_path;
mod clocks;
mod compression;
mod device_memory;
mod device_state;
mod devx;
mod dma_handles;
mod doorbells;
mod flow_headers;
mod foreign_memory;
mod huge_pages;
mod imported;
mod large_sends;
mod options;
mod queue_buffers;
mod raw_packets;
mod rss;
mod scatter;
mod traffic;
mod untyped;
mod xrc;

#[path = "../../../../verbs/examples/raw_wqe.rs"]
mod raw_wqe;

fn main() -> std::process::ExitCode {
    bareverbs_kernel_tests::run_not_short()
}
