//! Captures of a fabric's packets.

use std::io::{self, Write};
use std::time::Duration;

use bareverbs_transport::packet::Packet;
use bareverbs_transport::pcap::Recorder;

/// A capture of the packets of a fabric.
#[derive(Debug)]
pub(crate) struct Capture {
    recorder: Recorder,
    /// The UNIX time at which the fabric's time is 0.
    origin: Duration,
    /// The first error of the writer, after which nothing is recorded.
    error: Option<io::Error>,
}

impl Capture {
    pub(crate) fn new(writer: impl Write + Send + 'static, origin: Duration) -> io::Result<Self> {
        Ok(Self { recorder: Recorder::new(writer)?, origin, error: None })
    }

    /// Records a packet at a time of the fabric in nanoseconds.
    pub(crate) fn record(&mut self, now: u64, packet: &Packet) {
        if self.error.is_none() {
            self.error = self.recorder.packet(self.origin + Duration::from_nanos(now), packet).err();
        }
    }

    /// Ends the capture.
    pub(crate) fn end(self) -> io::Result<()> {
        self.error.map_or(Ok(()), Err)
    }
}
