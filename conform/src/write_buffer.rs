//! Commands for `write()`, with known bytes behind them.
//!
//! rdma-core 18 and 19 send `DESTROY_CQ` with 16 of its 24 bytes. The kernel accepts this length and
//! reads 24 bytes (core/uverbs_main.c: verify_hdr). The handle of the CQ is in the 8 bytes behind the
//! written ones. So a command lies in memory where those bytes are known.

use bareverbs_uapi::write::structs::{CmdHdr, DestroyCqReq};
use bareverbs_uapi::write::{self, WriteCommand};
use zerocopy::FromBytes;

use crate::guard::Guard;

/// Length of `DESTROY_CQ` in rdma-core 18 and 19, in bytes.
const SHORT_DESTROY_CQ: usize = 16;

/// The maximum number of bytes that the kernel reads behind a command.
pub(crate) const OVERREAD: usize = size_of::<CmdHdr>() + size_of::<DestroyCqReq>() - SHORT_DESTROY_CQ;

/// Fill byte: the handle 0xffffffff is invalid.
const FILL: u8 = 0xff;

/// The number of bytes that the kernel reads behind a command.
pub(crate) fn overread_len(command: &[u8]) -> usize {
    let is_short = command.len() == SHORT_DESTROY_CQ
        && CmdHdr::read_from_prefix(command).is_ok_and(|(header, _)| {
            header.command == write::DestroyCq::INFO.number
                && usize::from(header.in_words) * 4 == SHORT_DESTROY_CQ
        });
    if is_short { OVERREAD } else { 0 }
}

enum Memory {
    Heap(Vec<u8>),
    Guard(Guard),
}

/// A command and the bytes behind it.
pub(crate) struct WriteBuffer {
    memory: Memory,
    len: usize,
}

impl WriteBuffer {
    /// A command with bytes of 0xff behind it, which are no valid handle.
    pub(crate) fn new(command: &[u8]) -> Self {
        Self::with_tail(command, [FILL; OVERREAD])
    }

    /// A command with these bytes behind it.
    pub(crate) fn with_tail(command: &[u8], tail: [u8; OVERREAD]) -> Self {
        Self { memory: Memory::Heap([command, &tail].concat()), len: command.len() }
    }

    /// A command with a page without access behind it. `None`: there is no memory.
    pub(crate) fn before_unmapped(command: &[u8]) -> Option<Self> {
        Some(Self { memory: Memory::Guard(Guard::ending_with(command)?), len: command.len() })
    }

    fn all(&self) -> &[u8] {
        match &self.memory {
            Memory::Heap(bytes) => bytes,
            Memory::Guard(guard) => guard.bytes(),
        }
    }

    /// The command.
    pub(crate) fn command(&self) -> &[u8] {
        &self.all()[..self.len]
    }

    /// The bytes behind the command that the kernel reads.
    pub(crate) fn overread(&self) -> &[u8] {
        let tail = &self.all()[self.len..];
        &tail[..overread_len(self.command()).min(tail.len())]
    }
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

    #[test]
    fn bytes_behind_a_command_are_known() {
        let short = command(20, 16);
        let buffer = WriteBuffer::new(&short);
        assert_eq!((buffer.command(), buffer.overread()), (&short[..], &[0xff; 8][..]));
        // The kernel reads them at the address that it gets.
        assert_eq!(buffer.all()[16..], [0xff; 8]);
        let buffer = WriteBuffer::with_tail(&short, [1, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!((buffer.command(), buffer.overread()), (&short[..], &[1, 0, 0, 0, 0, 0, 0, 0][..]));
        let buffer = WriteBuffer::before_unmapped(&short).unwrap();
        assert_eq!((buffer.command(), buffer.overread()), (&short[..], &[][..]));
        let whole = command(20, 24);
        assert!(WriteBuffer::new(&whole).overread().is_empty());
    }
}
