//! The tests of `bareverbs riostream`.
//!
//! Each side maps memory of the size of a transfer, and the other side writes to it. The last byte
//! is a marker: the receiver waits until it has the next number. The client sends even numbers and
//! the server odd ones.

use std::time::Instant;

use anyhow::{Result, bail};
use bareverbs::RemoteRegion;

use super::{SYNC, Test, Tool};
use crate::session::socket::Socket;
use crate::signal::Stop;

/// The marker before the first one, which no message of a test begins with.
const NO_MARKER: u8 = 0xff;

/// Reads of the marker between two checks of the stream and of signals.
const SPINS: u32 = 1 << 12;

impl Tool<'_> {
    pub(super) fn run_mapped_test(&mut self, socket: &mut Socket<'_>, test: &Test) -> Result<()> {
        let is_client = self.options.server.is_some();
        let last = test.size as usize - 1;
        let memory = socket.expose(test.size as usize)?;
        memory.write(last, &[NO_MARKER])?;
        let mapping = socket.map(&memory)?;
        // The C program receives into the mapped memory, and a marker of a short test may be there.
        let mut sync = [NO_MARKER; SYNC];
        for sends in [is_client, !is_client] {
            if sends {
                socket.send(&sync)?
            } else {
                socket.recv(&mut sync)?
            }
            sync = [NO_MARKER; SYNC];
        }
        let mut bytes = vec![NO_MARKER; test.size as usize];
        let mut marker = 0_u8;
        let start = Instant::now();
        for _ in 0..test.iterations {
            for sends in [is_client, !is_client] {
                if sends {
                    // Only the last transfer has the next marker.
                    bytes[last] = marker.wrapping_sub(1);
                    for _ in 1..test.transfers {
                        socket.write_mapped(&bytes)?;
                    }
                    self.fill(&mut bytes[..last]);
                    bytes[last] = marker;
                    socket.write_mapped(&bytes)?;
                } else {
                    wait_for(&memory, last, marker, socket, self.stop)?;
                    if self.options.verifies() {
                        let mut received = vec![0; last];
                        memory.read(0, &mut received)?;
                        self.verify(&received)?;
                    }
                }
                marker = marker.wrapping_add(1);
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        socket.unmap(mapping);
        self.report(test, seconds)
    }
}

/// Waits until the byte at `at` is the marker.
fn wait_for(memory: &RemoteRegion, at: usize, marker: u8, socket: &Socket<'_>, stop: &Stop) -> Result<()> {
    let mut has_ended = false;
    loop {
        for _ in 0..SPINS {
            let mut byte = [0];
            memory.read(at, &mut byte)?;
            if byte == [marker] {
                return Ok(());
            }
        }
        stop.check()?;
        // The marker may have come before the end.
        if has_ended {
            bail!("the peer has ended the stream before marker {marker}");
        }
        has_ended = socket.has_ended()?;
    }
}
