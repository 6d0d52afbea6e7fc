//! Bytes that the kernel reads behind a command of `write()`.
//!
//! rdma-core 18 and 19 send `DESTROY_CQ` with 16 of its 24 bytes. The kernel accepts this length and
//! reads 24 bytes (core/uverbs_main.c: verify_hdr). The handle of the CQ is in the 8 bytes behind the
//! written ones.

use bareverbs_uapi::write::structs::{CmdHdr, DestroyCqReq};
use bareverbs_uapi::write::{self, WriteCommand};
use zerocopy::FromBytes;

/// Length of `DESTROY_CQ` in rdma-core 18 and 19, in bytes.
const SHORT_DESTROY_CQ: usize = 16;

/// The maximum number of bytes that the kernel reads behind a command.
pub const OVERREAD: usize = size_of::<CmdHdr>() + size_of::<DestroyCqReq>() - SHORT_DESTROY_CQ;

/// The number of bytes that the kernel reads behind a command: [`OVERREAD`] for a `DESTROY_CQ` of 16
/// bytes, 0 for all others.
#[must_use]
pub fn overread_len(command: &[u8]) -> usize {
    let is_short = command.len() == SHORT_DESTROY_CQ
        && CmdHdr::read_from_prefix(command).is_ok_and(|(header, _)| {
            header.command == write::DestroyCq::INFO.number
                && usize::from(header.in_words) * 4 == SHORT_DESTROY_CQ
        });
    if is_short { OVERREAD } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(number: u8, len: u8) -> Vec<u8> {
        let mut command = vec![0; len.into()];
        (command[0], command[4]) = (number, len / 4);
        command
    }

    #[test]
    fn kernel_reads_behind_a_destroy_cq_of_16_bytes_only() {
        assert_eq!(overread_len(&command(20, 16)), 8);
        for (number, len) in [(20, 12), (20, 20), (20, 24), (27, 16), (4, 16)] {
            assert_eq!(overread_len(&command(number, len)), 0, "command {number} of {len} bytes");
        }
        let mut other_length = command(20, 16);
        other_length[4] = 6;
        assert_eq!(overread_len(&other_length), 0);
        assert_eq!(overread_len(&[]), 0);
    }
}
