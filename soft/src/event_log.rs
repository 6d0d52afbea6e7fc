//! The log of what the QPs of a fabric do.

use std::collections::VecDeque;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bareverbs_transport::packet::{Operation, Packet, syndrome};
use bareverbs_uapi::verbs_values::{EventType, QpState, WcStatus};
use bareverbs_uapi::write::types::WcOpcode;

use crate::sys::lock;

/// The latest actions of the QPs of a [`Fabric`](crate::Fabric), in order. Clones are the same log.
///
/// [`Fabric::log`](crate::Fabric::log) begins it. A fabric without a log spends no time on it. The log is
/// readable text by `Display`, one line for each entry.
///
/// ```
/// use bareverbs_soft::{Fabric, SoftDevice};
///
/// let fabric = Fabric::new();
/// // The last 200 entries are printed if this test panics.
/// let log = fabric.log(200);
/// let _printed = log.print_on_panic();
/// let device = SoftDevice::new(&fabric);
/// // …
/// assert!(log.entries().is_empty());
/// # drop(device);
/// ```
#[derive(Clone)]
pub struct EventLog(Arc<Mutex<Entries>>);

struct Entries {
    latest: VecDeque<LogEntry>,
    capacity: usize,
    discarded: u64,
}

/// An action of a QP, with its time and place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogEntry {
    /// Time since the fabric was made: virtual time on a seeded fabric.
    pub time: Duration,
    /// The address of the device.
    pub device: IpAddr,
    /// The QPN. For a multicast packet that was received, 0xffffff.
    pub qp_num: u32,
    /// What the QP did.
    pub action: QpAction,
}

/// An action of a QP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum QpAction {
    /// It is in this state now.
    State(QpState),
    /// It has fetched a send WQE and begins to execute it.
    Fetched {
        /// The `wr_id` of the WQE.
        wr_id: u64,
        /// The operation.
        opcode: WcOpcode,
    },
    /// It has sent a packet.
    Sent(PacketSummary),
    /// A packet for it has arrived, which it may discard.
    Received(PacketSummary),
    /// Its ACK timer has expired.
    AckTimeout,
    /// The peer has no receive WQE: it waits for this time.
    RnrWait(Duration),
    /// It sends again from this PSN on.
    Retry {
        /// The oldest PSN without an acknowledgement.
        psn: u32,
    },
    /// It has completed a WQE. Unsignaled send WQEs have no CQE.
    Completed {
        /// The `wr_id` of the WQE.
        wr_id: u64,
        /// The operation. It has no meaning if the WQE failed.
        opcode: WcOpcode,
        /// The status. Of a send that fails before it is sent, the CQE has `WR_FLUSH_ERR` instead.
        status: WcStatus,
    },
    /// It has raised an asynchronous event.
    Raised(EventType),
}

/// The headers of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PacketSummary {
    /// The QPN of the destination.
    pub destination: u32,
    /// The operation.
    pub operation: Operation,
    /// The PSN, 24 bits.
    pub psn: u32,
    /// Length of the payload in bytes.
    pub length: usize,
    /// The AETH syndrome of a response.
    pub syndrome: Option<u8>,
}

impl PacketSummary {
    pub(crate) fn of(packet: &Packet) -> Self {
        Self {
            destination: packet.destination,
            operation: packet.operation,
            psn: packet.psn,
            length: packet.payload_length(),
            syndrome: packet.headers.acknowledge.map(|acknowledge| acknowledge.syndrome),
        }
    }
}

impl EventLog {
    pub(crate) fn new(capacity: usize) -> Self {
        let capacity = capacity.max(1);
        Self(Arc::new(Mutex::new(Entries { latest: VecDeque::new(), capacity, discarded: 0 })))
    }

    /// The entries, oldest first.
    #[must_use]
    pub fn entries(&self) -> Vec<LogEntry> {
        lock(&self.0).latest.iter().copied().collect()
    }

    /// The entries of one QP of the device with this address, oldest first.
    #[must_use]
    pub fn of_qp(&self, device: IpAddr, qp_num: u32) -> Vec<LogEntry> {
        let mut entries = self.entries();
        entries.retain(|entry| entry.device == device && entry.qp_num == qp_num);
        entries
    }

    /// The number of entries that were discarded, because the log was full.
    #[must_use]
    pub fn discarded(&self) -> u64 {
        lock(&self.0).discarded
    }

    /// Removes all entries.
    pub fn clear(&self) {
        let mut entries = lock(&self.0);
        entries.latest.clear();
        entries.discarded = 0;
    }

    /// A guard that prints the log to standard error if it is dropped by a panic, as that of a failed
    /// assertion.
    #[must_use = "the log is printed if the guard is dropped by a panic"]
    pub fn print_on_panic(&self) -> PrintOnPanic {
        PrintOnPanic(self.clone())
    }

    fn add(&self, entry: LogEntry) {
        let mut entries = lock(&self.0);
        if entries.latest.len() == entries.capacity {
            entries.latest.pop_front();
            entries.discarded += 1;
        }
        entries.latest.push_back(entry);
    }
}

impl fmt::Debug for EventLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventLog").finish_non_exhaustive()
    }
}

impl fmt::Display for EventLog {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let entries = lock(&self.0);
        if entries.discarded > 0 {
            writeln!(f, "({} earlier entries were discarded)", entries.discarded)?;
        }
        entries.latest.iter().try_for_each(|entry| writeln!(f, "{entry}"))
    }
}

impl fmt::Display for LogEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { time, device, qp_num, action } = self;
        write!(f, "{:>14.9} {device} QP {qp_num:#x}: {action}", time.as_secs_f64())
    }
}

impl fmt::Display for QpAction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::State(state) => write!(f, "state {state:?}"),
            Self::Fetched { wr_id, opcode } => write!(f, "fetches WQE {wr_id:#x}, {opcode:?}"),
            Self::Sent(packet) => write!(f, "sends {packet}"),
            Self::Received(packet) => write!(f, "receives {packet}"),
            Self::AckTimeout => f.write_str("ACK timeout"),
            Self::RnrWait(time) => write!(f, "waits {time:?} after an RNR NAK"),
            Self::Retry { psn } => write!(f, "retries from PSN {psn:#x}"),
            Self::Completed { wr_id, opcode, status } => {
                write!(f, "completes WQE {wr_id:#x}, {opcode:?}, {status:?}")
            }
            Self::Raised(event) => write!(f, "event {event:?}"),
        }
    }
}

impl fmt::Display for PacketSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { destination, operation, psn, length, syndrome } = self;
        write!(f, "{operation:?} PSN {psn:#x} to QP {destination:#x}, {length} bytes")?;
        match *syndrome {
            None => Ok(()),
            Some(code) if code & 0xe0 == 0 => f.write_str(", ACK"),
            Some(code) if code & 0xe0 == syndrome::RNR => write!(f, ", RNR NAK with timer {}", code & 0x1f),
            Some(syndrome::NAK_SEQUENCE) => f.write_str(", NAK: sequence error"),
            Some(syndrome::NAK_INVALID) => f.write_str(", NAK: invalid request"),
            Some(syndrome::NAK_ACCESS) => f.write_str(", NAK: remote access error"),
            Some(syndrome::NAK_OPERATION) => f.write_str(", NAK: remote operational error"),
            Some(other) => write!(f, ", syndrome {other:#x}"),
        }
    }
}

/// Prints an [`EventLog`] if it is dropped by a panic.
#[derive(Debug)]
pub struct PrintOnPanic(EventLog);

impl Drop for PrintOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprint!("{}", self.0);
        }
    }
}

/// The log as a device adds to it.
#[derive(Clone, Debug)]
pub(crate) struct DeviceLog {
    log: EventLog,
    device: IpAddr,
}

impl DeviceLog {
    pub(crate) fn new(log: EventLog, device: IpAddr) -> Self {
        Self { log, device }
    }

    /// Adds an action of a QP at a time of the fabric in nanoseconds.
    pub(crate) fn add(&self, now: u64, qp_num: u32, action: QpAction) {
        self.log.add(LogEntry { time: Duration::from_nanos(now), device: self.device, qp_num, action });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_log_keeps_the_latest_entries() {
        let log = EventLog::new(2);
        let device = DeviceLog::new(log.clone(), IpAddr::from([127, 0, 0, 1]));
        for psn in 0..5 {
            device.add(u64::from(psn) * 1_000, 0x11, QpAction::Retry { psn });
        }
        let psns: Vec<_> = log.entries().iter().map(|entry| entry.action).collect();
        assert_eq!(psns, [QpAction::Retry { psn: 3 }, QpAction::Retry { psn: 4 }]);
        assert_eq!(log.discarded(), 3);
        let text = "(3 earlier entries were discarded)\n   0.000003000 127.0.0.1 QP 0x11: retries from PSN 0x3\n   \
                    0.000004000 127.0.0.1 QP 0x11: retries from PSN 0x4\n";
        assert_eq!(log.to_string(), text);
        assert_eq!(log.of_qp(IpAddr::from([127, 0, 0, 2]), 0x11), []);
        log.clear();
        assert_eq!((log.entries(), log.discarded()), (Vec::new(), 0));
    }
}
