//! The program under test: it sends a file to another process, in messages of 1 KiB.

use bareverbs::{Address, Endpoint, Op, Pd, Pool, Result};

/// Bytes of each message but the last, which is shorter and ends the file.
pub const CHUNK: usize = 1024;
/// Messages in flight.
pub const WINDOW: u32 = 16;

/// One end of a transfer.
#[derive(Debug)]
pub struct Transfer {
    endpoint: Endpoint,
    pool: Pool,
}

impl Transfer {
    /// An end on a device.
    ///
    /// # Errors
    /// The device has not enough memory or queues.
    pub fn new(pd: &Pd) -> Result<Self> {
        let endpoint = Endpoint::new(pd, 1, WINDOW)?;
        Ok(Self { endpoint, pool: Pool::new(pd, 2 * WINDOW as usize, CHUNK)? })
    }

    /// The address that the other end connects to.
    #[must_use]
    pub fn address(&self) -> Address {
        self.endpoint.address()
    }

    /// Connects to the other end, which does the same.
    ///
    /// # Errors
    /// The address is wrong, or the connection exists already.
    pub fn connect(&mut self, peer: &Address) -> Result<()> {
        self.endpoint.connect(peer)?;
        for _ in 0..WINDOW {
            self.endpoint.post(Op::recv(self.pool.take().expect("a buffer for each receive")))?;
        }
        Ok(())
    }

    /// Sends a file, and waits until the other end has it.
    ///
    /// # Errors
    /// The other end or the network is dead.
    pub fn send(&mut self, file: &[u8]) -> Result<()> {
        let mut in_flight = 0;
        let whole = file.len().is_multiple_of(CHUNK).then_some(&[][..]);
        for chunk in file.chunks(CHUNK).chain(whole) {
            if in_flight == WINDOW {
                self.endpoint.next().wait()?;
                in_flight -= 1;
            }
            let mut message = self.pool.take().expect("a buffer for each send");
            message.bytes_mut()[..chunk.len()].copy_from_slice(chunk);
            self.endpoint.post(Op::send(message, ..chunk.len()))?;
            in_flight += 1;
        }
        for _ in 0..in_flight {
            self.endpoint.next().wait()?;
        }
        Ok(())
    }

    /// Receives a file.
    ///
    /// # Errors
    /// The other end or the network is dead.
    pub fn receive(&mut self) -> Result<Vec<u8>> {
        let mut file = Vec::new();
        loop {
            let done = self.endpoint.next().wait()?;
            let len = done.len as usize;
            let message = done.into_buffer();
            file.extend_from_slice(&message.bytes()[..len]);
            self.endpoint.post(Op::recv(message))?;
            if len < CHUNK {
                return Ok(file);
            }
        }
    }
}
