//! The clock of a seeded fabric, and what its devices may do next.

use std::collections::VecDeque;
use std::thread::{self, ThreadId};

use bareverbs_transport::SplitMix64;
use bareverbs_transport::packet::Packet;

/// The state of virtual time.
#[derive(Debug)]
pub(super) struct VirtualTime {
    /// Nanoseconds since the fabric was made.
    pub(super) now: u64,
    /// Chooses the order of what may happen at the same time.
    pub(super) random: SplitMix64,
    /// Packets that the devices have sent, oldest first.
    pub(super) sent: Vec<VecDeque<Packet>>,
    /// What may happen next; a buffer.
    pub(super) choices: Vec<Choice>,
    /// Counts calls and steps.
    pub(super) activity: u64,
    last_thread: Option<ThreadId>,
    /// Whether several threads have used the fabric.
    pub(super) is_shared: bool,
}

/// A unit of work.
#[derive(Clone, Copy, Debug)]
pub(super) enum Choice {
    /// The turn of a QP of a device.
    Turn(usize),
    /// The delivery of the oldest packet that a device has sent.
    Delivery(usize),
}

impl VirtualTime {
    pub(super) fn new(seed: u64) -> Self {
        Self {
            now: 0,
            random: SplitMix64::new(seed),
            sent: Vec::new(),
            choices: Vec::new(),
            activity: 0,
            last_thread: None,
            is_shared: false,
        }
    }

    /// Notes a call of this thread.
    pub(super) fn note_call(&mut self) {
        self.activity += 1;
        let thread = thread::current().id();
        self.is_shared |= self.last_thread.is_some_and(|last| last != thread);
        self.last_thread = Some(thread);
    }
}
