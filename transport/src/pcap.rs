//! Recordings of packets in pcap format.

use std::fmt;
use std::io::{self, Write};
use std::time::Duration;

use crate::packet::Packet;
use crate::roce;

/// A recording of packets and frames.
pub struct Recorder(Box<dyn Write + Send>);

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").finish_non_exhaustive()
    }
}

impl Recorder {
    /// Begins a recording: writes the header of the file.
    pub fn new(mut writer: impl Write + Send + 'static) -> io::Result<Self> {
        const MAGIC: u32 = 0xa1b2_3c4d;
        const ETHERNET: u32 = 1;
        // Nanosecond timestamps, version 2.4.
        let words = [MAGIC, 4 << 16 | 2, 0, 0, u32::MAX >> 8, ETHERNET];
        writer.write_all(words.map(u32::to_le_bytes).as_flattened())?;
        Ok(Self(Box::new(writer)))
    }

    /// Appends a packet that was sent at a UNIX time. One of an InfiniBand port is recorded as RoCE v2
    /// frame.
    pub fn packet(&mut self, time: Duration, packet: &Packet) -> io::Result<()> {
        self.frame(time, &roce::encode(packet))
    }

    /// Appends a frame that was sent at a UNIX time, and flushes the writer.
    pub fn frame(&mut self, time: Duration, frame: &[u8]) -> io::Result<()> {
        let length = frame.len() as u32;
        let words = [time.as_secs() as u32, time.subsec_nanos(), length, length];
        let mut record = Vec::with_capacity(16 + frame.len());
        record.extend_from_slice(words.map(u32::to_le_bytes).as_flattened());
        record.extend_from_slice(frame);
        self.0.write_all(&record)?;
        self.0.flush()
    }
}
