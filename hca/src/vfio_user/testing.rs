//! Messages and accesses of a virtual machine monitor, exported for fuzzing.

use std::fmt;
use std::io::{self, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use super::bar::{Registers, Ring};
use super::interrupts::Vectors;
use super::pci::Config;
use super::protocol::{Errno, Message, receive, reply_bytes};
use super::server::Function;
use crate::device::{Device, Setup};
use crate::engine::Link;
use crate::fabric::Fabric;

/// A monitor that is connected to a device.
pub struct Monitor<'a>(Function<'a>);

impl fmt::Debug for Monitor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Monitor").finish_non_exhaustive()
    }
}

/// A message from a monitor.
#[derive(Debug)]
pub struct MonitorMessage {
    /// Message ID, repeated in the reply.
    pub id: u16,
    /// Command number.
    pub command: u16,
    /// The bytes after the header.
    pub body: Vec<u8>,
    /// The attached file descriptors.
    pub fds: Vec<OwnedFd>,
}

/// Runs `script` with a monitor that is connected to a new device with a running worker thread.
///
/// # Errors
/// The device could not be created.
pub fn with_monitor(link: Link, script: impl FnOnce(&mut Monitor<'_>)) -> io::Result<()> {
    let setup = Setup { link, index: 0, cqe_version: 1, verbose: false };
    let vectors = Vectors::default();
    let device = Device::new(setup, &Fabric::new(), Box::new(vectors.clone()))?;
    script(&mut Monitor(Function {
        config: Config::new(link),
        registers: Registers::default(),
        device: &device,
        vectors: &vectors,
        setup,
    }));
    Ok(())
}

impl Monitor<'_> {
    /// Sends a message that requests a reply, and returns the reply with its header.
    pub fn send(&mut self, message: MonitorMessage) -> Vec<u8> {
        let MonitorMessage { id, command, body, fds } = message;
        let mut message = Message { id, command, wants_reply: true, body, fds };
        let answer = self.0.handle(&mut message);
        reply_bytes(&message, answer).expect("the message wants a reply")
    }

    /// Sends arbitrary bytes over a socket, closes it, and returns the replies.
    ///
    /// # Errors
    /// The bytes are malformed, and the connection is closed.
    pub fn send_bytes(&mut self, bytes: &[u8]) -> io::Result<Vec<Vec<u8>>> {
        let (ours, mut theirs) = UnixStream::pair()?;
        theirs.set_nonblocking(true)?;
        // Bytes beyond the socket's buffer are not sent.
        let _ = theirs.write(bytes);
        theirs.shutdown(Shutdown::Write)?;
        let mut replies = Vec::new();
        while let Some(mut message) = receive(&ours)? {
            let answer: Result<Vec<u8>, Errno> = self.0.handle(&mut message);
            replies.extend(reply_bytes(&message, answer));
        }
        Ok(replies)
    }
}

/// Configuration space and registers without a device.
pub struct Bar {
    config: Config,
    registers: Registers,
}

impl fmt::Debug for Bar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bar").field("registers", &self.registers).finish_non_exhaustive()
    }
}

impl Bar {
    /// The state after power-on.
    pub fn new(link: Link) -> Self {
        Self { config: Config::new(link), registers: Registers::default() }
    }

    /// Reads the configuration space. Returns `false` for a range outside of it.
    pub fn read_config(&self, at: u64, to: &mut [u8]) -> bool {
        self.config.read(at, to)
    }

    /// Writes the configuration space. Returns whether the write resets the function, or `None` for
    /// a range outside of the space.
    pub fn write_config(&mut self, at: u64, from: &[u8]) -> Option<bool> {
        self.config.write(at, from)
    }

    /// Reads the registers at the time `now`, in nanoseconds.
    pub fn read(&self, at: u64, to: &mut [u8], now: u64) {
        self.registers.read(at, to, now);
    }

    /// Writes the registers. Returns the command slots that it rings, or as an error the UAR page
    /// of its doorbell.
    pub fn write(&mut self, at: u64, from: &[u8]) -> Option<Result<u32, u32>> {
        self.registers.write(at, from).map(|ring| match ring {
            Ring::Commands(slots) => Ok(slots),
            Ring::Doorbell { uar, .. } => Err(uar),
        })
    }

    /// The address of the command queue, once set.
    pub fn command_queue(&self) -> Option<u64> {
        self.registers.command_queue()
    }
}
