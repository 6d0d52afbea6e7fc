//! The data path of the device: QPs, CQs, EQs and memory keys over any memory. The engine contains
//! neither PCI nor firmware commands.
//!
//! The engine is a state machine without threads and without a clock. Its owner passes in the time,
//! doorbells and packets, and takes the packets to transmit. The device is the owner for a guest;
//! tests and benches drive the engine directly.

mod core;
mod cq;
pub mod doorbell;
mod eq;
mod ethernet;
mod layout;
pub(crate) mod limits;
pub(crate) mod mkey;
mod objects;
pub(crate) mod page_fault;
mod paging;
pub(crate) mod port;
mod queue_pairs;
mod queues;
mod receive_queue;
mod recorder;
mod ring;
mod send_queue;
mod service;
mod srq;
mod transport;
mod umr;
mod wqe;

#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fmt;

pub(crate) use bareverbs_transport::{AddressVector, Counters, Tally, Traffic};
pub use bareverbs_transport::{AlternatePath, ManagementQp, Migration, QpAttributes, Rate, State, packet};
use bareverbs_transport::{Pool, Scheduler, Table};

use self::core::Core;
pub(crate) use cq::LONGEST_RUN;
pub use cq::{CqSetup, MiniFormat};
pub(crate) use cq::{Moderation, NO_USER_INDEX};
pub use doorbell::Doorbell;
pub(crate) use eq::PortEvent;
pub use eq::{EqSetup, EventKind, Interrupts};
use ethernet::Rq;
pub use ethernet::{RqSetup, RqState};
pub(crate) use layout::be32;
pub use mkey::KeyKind;
pub use packet::{Link, Packet};
pub use port::Port;
use queues::QpQueues;
pub use queues::{QpSetup, ReceiveQueue};
use recorder::Recording;
pub use recorder::{Queue, Recorder};
pub use ring::Ring;
pub use service::Service;
pub use srq::SrqSetup;

use crate::memory::DmaMap;

/// Why the engine rejects a request for an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineError {
    /// No such object.
    Missing,
    /// Other objects depend on it.
    Busy,
    /// All object numbers are in use.
    Full,
    /// The parameters are inconsistent.
    Invalid,
    /// The unread CQEs don't fit the smaller CQ.
    Outstanding,
}

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Missing => "no such object, or an object that it uses does not exist",
            Self::Busy => "other objects use it",
            Self::Full => "all object numbers are in use",
            Self::Invalid => "its attributes are inconsistent",
            Self::Outstanding => "the unread entries exceed the smaller queue",
        })
    }
}

impl std::error::Error for EngineError {}

/// The engine of one device.
pub struct Engine {
    pub(crate) core: Core,
    qps: Scheduler<Core>,
    rqs: Table<Rq>,
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").finish_non_exhaustive()
    }
}

impl Engine {
    /// Creates an engine for a port.
    pub fn new(port: Port, interrupts: Box<dyn Interrupts>) -> Self {
        Self {
            core: Core {
                memory: DmaMap::new(),
                mkeys: Table::new(0x1800, 1 << limits::LOG_MKEYS),
                faults: Table::new(1, 1 << limits::LOG_FAULTS),
                eqs: Table::new(1, limits::EQS),
                cqs: Table::new(0x400, 1 << limits::LOG_CQS),
                srqs: Table::new(1, 1 << limits::LOG_SRQS),
                port,
                interrupts,
                timers: BinaryHeap::new(),
                outgoing: Vec::new(),
                pool: Pool::default(),
                frames: Vec::new(),
                senders: Vec::new(),
                failed_cqs: Vec::new(),
                holding: Vec::new(),
                counters: Box::new([Counters::default(); 256]),
                traffic: Traffic::default(),
                now: 0,
                recording: Recording::default(),
            },
            qps: Scheduler::new(0x48, 1 << limits::LOG_QPS),
            rqs: Table::new(0x10, 1 << limits::LOG_RQS),
        }
    }

    /// Calls `recorder` for each fetched work request from now on.
    pub fn record(&mut self, recorder: Recorder) {
        self.core.recording = Recording(Some(recorder));
    }

    /// Discards every object. The memory map, the port and the recorder stay.
    pub fn reset(&mut self) {
        let recording = std::mem::take(&mut self.core.recording);
        let memory = std::mem::take(&mut self.core.memory);
        let port = self.core.port.clone();
        let interrupts = std::mem::replace(&mut self.core.interrupts, Box::new(NoInterrupts));
        *self = Self::new(Port { gids: vec![None; port::GIDS], enabled: true, ..port }, interrupts);
        (self.core.memory, self.core.recording) = (memory, recording);
        self.core.memory.device_memory_mut().clear();
    }

    /// The guest's memory.
    pub fn memory(&mut self) -> &mut DmaMap {
        &mut self.core.memory
    }

    /// The port.
    pub fn port(&self) -> &Port {
        &self.core.port
    }

    /// The pending outgoing frames, each with its send queue.
    pub(crate) fn outgoing_frames(&self) -> impl Iterator<Item = (u32, &[u8])> {
        self.core.senders.iter().copied().zip(self.core.frames.iter().map(Vec::as_slice))
    }

    /// Takes the packets and frames transmitted since the last call.
    pub fn take_outgoing(&mut self, packets: &mut Vec<Packet>, frames: &mut Vec<Vec<u8>>) {
        let Core { outgoing, frames: framed, traffic, .. } = &mut self.core;
        outgoing.iter().for_each(|packet| traffic.sent.packet(packet));
        framed.iter().for_each(|frame| traffic.sent.frame(frame));
        packets.append(outgoing);
        frames.append(framed);
        self.core.senders.clear();
    }

    /// Processes a doorbell. A doorbell for a missing object has no effect.
    pub fn ring(&mut self, doorbell: Doorbell) {
        match doorbell {
            Doorbell::Send { qp, blueflame: None } => self.ring_qp(qp),
            Doorbell::Send { qp, blueflame: Some(wqe) } => self.blueflame(qp, wqe),
            Doorbell::ArmCq { cq, consumer, solicited, sequence } => {
                self.arm_cq(cq, consumer, solicited, sequence);
            }
            Doorbell::Eq { eq, consumer, arm } => self.eq_consumed(eq, consumer, arm),
        }
    }

    /// Receives a packet from the wire.
    pub fn receive(&mut self, packet: Packet) {
        self.core.traffic.received.packet(&packet);
        self.qps.receive(&mut self.core, &packet);
        self.core.pool.give(packet.payload);
    }

    /// Runs the ready QPs and expired timers at the time `now`, in nanoseconds of a monotonic
    /// clock. Returns `true` if work is left to do at once.
    pub fn run(&mut self, now: u64) -> bool {
        self.core.now = now;
        self.qps.expire_timers(&mut self.core);
        self.end_moderation();
        self.qps.run(&mut self.core);
        self.core.end_runs();
        self.fail_users_of_cqs();
        self.has_work()
    }

    /// Raises the events of CQs whose moderation ends.
    fn end_moderation(&mut self) {
        let now = self.core.now;
        while let Some(&Reverse((deadline, cq))) = self.core.timers.peek()
            && deadline <= now
        {
            self.core.timers.pop();
            if self.core.cqs.get_mut(cq).is_some_and(|cq| cq.period_ended(now)) {
                self.core.follow(cq, cq::Outcome::Event);
            }
        }
    }

    /// Whether a QP is ready to run.
    pub fn has_work(&self) -> bool {
        self.qps.has_work()
    }

    /// Sets the time without running anything.
    pub fn set_time(&mut self, now: u64) {
        self.core.now = now;
    }

    /// Connects or disconnects the cable. A change of the link raises a port change event.
    pub(crate) fn set_cable(&mut self, connected: bool) {
        self.change_link(|port| port.cable = connected);
    }

    /// Sets the administrative status of the port, with the same event.
    pub(crate) fn set_enabled(&mut self, enabled: bool) {
        self.change_link(|port| port.enabled = enabled);
    }

    fn change_link(&mut self, change: impl FnOnce(&mut Port)) {
        let before = self.core.port.is_up();
        change(&mut self.core.port);
        let up = self.core.port.is_up();
        if up != before {
            self.core.traffic.link_downs += u32::from(!up);
            self.port_event(if up { PortEvent::Active } else { PortEvent::Down });
        }
    }

    /// Posts a port change event.
    pub(crate) fn port_event(&mut self, kind: PortEvent) {
        const PORT: usize = 8;
        let mut data = [0; 28];
        data[PORT] = 1 << 4;
        self.event(EventKind::PortChange, kind as u8, &data);
    }

    /// The port's tables, mutable.
    pub(crate) fn port_mut(&mut self) -> &mut Port {
        &mut self.core.port
    }

    /// The time of the next timer: [`Self::run`] must be called then at the latest.
    pub fn next_timer(&mut self) -> Option<u64> {
        let moderation = self.core.timers.peek().map(|Reverse((deadline, _))| *deadline);
        [moderation, self.qps.next_timer()].into_iter().flatten().min()
    }

    /// Moves the QPs of an overrun CQ to ERR.
    fn fail_users_of_cqs(&mut self) {
        while let Some(cq) = self.core.failed_cqs.pop() {
            let uses = |queues: &QpQueues| queues.setup.send_cq == cq || queues.setup.receive_cq == cq;
            let users = self.qps.iter().filter(|qp| uses(&qp.queues));
            let users: Vec<u32> = users.map(|qp| qp.queues.number).collect();
            for number in users {
                if self.qps.fail(&mut self.core, number) {
                    self.core.qp_event(EventKind::WqCatastrophic, number);
                }
            }
        }
    }
}

/// Counters of a QP.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    pub(crate) done: u16,
    pub(crate) posted: u16,
    pub(crate) next_psn: u32,
    pub(crate) acknowledged_psn: u32,
    pub(crate) expected_psn: u32,
    pub(crate) messages: u32,
    pub(crate) received: u16,
}

/// An interrupt sink: interrupts are discarded.
struct NoInterrupts;

impl Interrupts for NoInterrupts {
    fn raise(&self, _vector: u16) {}
}
