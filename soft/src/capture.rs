//! Captures of a fabric's packets.

use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use bareverbs_transport::packet::Packet;
use bareverbs_transport::pcap::Recorder;
use bareverbs_transport::roce;

use crate::wire::icrc;

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
            let time = self.origin + Duration::from_nanos(now);
            // The writer is code of the program: its panic does not fail the fabric. It is not used
            // after one.
            let frame = roce::encode_with(packet, icrc::of);
            let written = catch_unwind(AssertUnwindSafe(|| self.recorder.frame(time, &frame)));
            self.error = written
                .unwrap_or_else(|panic| {
                    // Its drop may panic.
                    std::mem::forget(panic);
                    Err(io::Error::other("the writer of the capture has panicked"))
                })
                .err();
        }
    }

    /// Ends the capture.
    pub(crate) fn end(self) -> io::Result<()> {
        self.error.map_or(Ok(()), Err)
    }
}
