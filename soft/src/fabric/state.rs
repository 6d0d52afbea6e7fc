//! What the lock of a fabric guards: the devices, the wire between them, and time.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::thread::Thread;
use std::time::{Duration, Instant};

use bareverbs_provider::Errno;
use bareverbs_transport::packet::Packet;

use super::schedule::VirtualTime;
use super::transit::{Faults, Origin};
use crate::capture::Capture;
use crate::engine::Engine;
use crate::event_log::EventLog;
use crate::wire::{UdpWire, WireThread};

/// How long a call runs the devices, about. The timer thread, or the thread of a wire, does the work
/// that is left. A backlog, or a program that posts without end on another thread, thus can't keep the
/// caller.
const RUN_TIME: Duration = Duration::from_millis(5);

pub(super) struct FabricState {
    pub(super) devices: Vec<Option<Box<Engine>>>,
    pub(super) addresses: HashMap<[u8; 16], usize>,
    /// The number of devices that the fabric has had.
    pub(super) added: u32,
    /// The threads of UDP wires, by device.
    pub(super) wires: HashMap<usize, WireThread>,
    pub(super) faults: Faults,
    /// `None` on a fabric of real time.
    pub(super) virtual_time: Option<VirtualTime>,
    start: Instant,
    /// Whether a panic has left an engine in an unknown state.
    failed: bool,
    /// [`RUN_TIME`], in effect unlimited in tests.
    pub(super) run_time: Duration,
    /// When the timer thread, or a thread of a wire, runs the devices next at the latest.
    pub(super) deadline: Option<u64>,
    /// The timer thread, if there is one.
    pub(super) timer_thread: Option<Thread>,
    /// The buffer for packets.
    pub(super) packets: Vec<Packet>,
    pub(super) capture: Option<Capture>,
    pub(super) log: Option<EventLog>,
}

impl FabricState {
    pub(super) fn new(seed: u64, virtual_time: Option<VirtualTime>) -> Self {
        Self {
            devices: Vec::new(),
            addresses: HashMap::new(),
            added: 0,
            wires: HashMap::new(),
            faults: Faults::new(seed),
            virtual_time,
            start: Instant::now(),
            failed: false,
            run_time: if cfg!(test) { Duration::from_secs(60) } else { RUN_TIME },
            deadline: None,
            timer_thread: None,
            packets: Vec::new(),
            capture: None,
            log: None,
        }
    }

    /// Nanoseconds since the fabric was made.
    pub(super) fn now(&self) -> u64 {
        match &self.virtual_time {
            Some(time) => time.now,
            None => self.start.elapsed().as_nanos() as u64,
        }
    }

    /// Calls `f`. After a panic, this and all later calls are `EIO`.
    pub(super) fn guarded<R>(&mut self, f: impl FnOnce(&mut Self) -> R) -> Result<R, Errno> {
        if self.failed {
            return Err(Errno::IO);
        }
        // The state is not used after a panic.
        let result = catch_unwind(AssertUnwindSafe(|| f(self)));
        self.failed = result.is_err();
        result.map_err(|_| Errno::IO)
    }

    /// The engine of a device, unless the device with this wire was removed.
    pub(super) fn engine_of_wire(&mut self, device: usize, wire: &UdpWire) -> Option<&mut Engine> {
        let engine = self.devices.get_mut(device)?.as_deref_mut()?;
        engine.wire().is_some_and(|current| ptr::eq(current, wire)).then_some(engine)
    }

    /// Runs all devices until nothing is ready, or for a limited time. Returns when to run them again.
    pub(super) fn run(&mut self) -> Option<u64> {
        for engine in self.devices.iter().flatten() {
            engine.wire().inspect(|wire| wire.begin_run());
        }
        let keeps_packets = self.capture.is_some()
            || self.log.is_some()
            || !self.faults.injector.is_empty()
            || !self.faults.held.is_empty();
        let mut now = self.now();
        let end = now.saturating_add(self.run_time.as_nanos() as u64);
        loop {
            let mut idle = true;
            // Packets arrive at devices that have their turn later.
            self.devices.iter_mut().flatten().for_each(|engine| engine.set_now(now));
            while self.deliver_due(now) {
                idle = false;
            }
            for sender in 0..self.devices.len() {
                let Some(engine) = &mut self.devices[sender] else { continue };
                idle &= !engine.run(now, !keeps_packets);
                let mut packets = engine.take_packets(std::mem::take(&mut self.packets));
                idle &= packets.is_empty();
                for packet in packets.drain(..) {
                    self.transmit(Origin::Device(sender), packet);
                }
                self.packets = packets;
                if let Some(engine) = &mut self.devices[sender] {
                    engine.post_withheld();
                }
            }
            if idle && !self.release_held() {
                self.flush_wires();
                return self.next_timer();
            }
            now = self.now();
            if now >= end {
                self.flush_wires();
                return Some(now);
            }
        }
    }

    /// Sends the packets that wires have kept for further ones.
    fn flush_wires(&self) {
        for engine in self.devices.iter().flatten() {
            engine.wire().inspect(|wire| wire.flush());
        }
    }

    /// The time of the next timer of a device or of a delayed packet.
    pub(super) fn next_timer(&mut self) -> Option<u64> {
        let timers = self.devices.iter_mut().flatten().filter_map(|engine| engine.next_timer());
        timers.chain(self.faults.next_delayed()).min()
    }

    /// Brings the next run of a wire's thread forward to `next`. Returns whether this has changed it.
    pub(super) fn run_earlier(&mut self, next: Option<u64>) -> bool {
        let earlier = next.is_some_and(|next| self.deadline.is_none_or(|deadline| next < deadline));
        if earlier {
            self.deadline = next;
        }
        earlier
    }
}
