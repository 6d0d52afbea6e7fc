//! Commands for `write()`, with known bytes behind them, which the kernel
//! [may read](bareverbs_trace::overread_len).

use bareverbs_trace::{OVERREAD, overread_len};

use crate::guard::Guard;

/// Fill byte: the handle 0xffffffff is invalid.
const FILL: u8 = 0xff;

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
