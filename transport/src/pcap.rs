//! Recordings of packets in pcap format.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::time::SystemTime;

use crate::packet::Packet;
use crate::roce;

/// A recording of packets and frames.
#[derive(Debug)]
pub struct Recorder {
    file: BufWriter<File>,
}

impl Recorder {
    /// Creates the file and writes its header.
    pub fn create(path: &Path) -> io::Result<Self> {
        const MAGIC: u32 = 0xa1b2_3c4d;
        const ETHERNET: u32 = 1;
        let mut file = BufWriter::new(File::create(path)?);
        // Nanosecond timestamps, version 2.4.
        for word in [MAGIC, 4 << 16 | 2, 0, 0, u32::MAX >> 8, ETHERNET] {
            file.write_all(&word.to_le_bytes())?;
        }
        Ok(Self { file })
    }

    /// Appends packets. Those of an InfiniBand port are recorded as RoCE v2 frames.
    pub fn record(&mut self, packets: &[Packet]) -> io::Result<()> {
        packets.iter().try_for_each(|packet| self.frame(&roce::encode(packet)))
    }

    /// Appends a frame.
    pub fn frame(&mut self, frame: &[u8]) -> io::Result<()> {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let length = frame.len() as u32;
        for word in [now.as_secs() as u32, now.subsec_nanos(), length, length] {
            self.file.write_all(&word.to_le_bytes())?;
        }
        self.file.write_all(frame)?;
        self.file.flush()
    }
}
