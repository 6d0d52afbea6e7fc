//! The card's engine: queue pairs, completion and event queues, memory keys, over any memory. It knows neither PCI nor the firmware's commands.
//!
//! The engine is a state machine without threads and without a clock of its own. Whoever owns it tells it the time, hands it packets, and takes the
//! packets that it wants to send; the device does that for a guest, tests and benches do it by hand.

mod core;
mod cq;
mod datagram;
mod eq;
mod ethernet;
pub(crate) mod mkey;
pub mod packet;
pub(crate) mod port;
mod qp;
mod requester;
mod responder;
mod ring;
mod srq;
pub(crate) mod table;
mod umr;
mod wqe;

#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

pub(crate) use self::core::Counters;
use self::core::{Core, Timer};
pub use cq::CqSetup;
pub(crate) use cq::Moderation;
pub use eq::{EqSetup, EventKind, Interrupts};
use ethernet::Rq;
pub use ethernet::RqSetup;
use mkey::Mkey;
pub use packet::{Link, Packet};
pub use port::Port;
use qp::Qp;
pub use qp::{Management, QpAttributes, QpSetup, ReceiveQueue, Service, State};
use requester::Turn;
pub use ring::Ring;
pub use srq::SrqSetup;
use table::Table;
pub(crate) use wqe::{AddressVector, be32};

use crate::memory::DmaMap;

/// Packets that one queue pair may send before the next one's turn.
const BUDGET: u32 = 32;

/// Why the engine refuses an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// No such object.
    Missing,
    /// Others depend on it.
    Busy,
    /// All numbers are taken.
    Full,
    /// Its parts don't fit together.
    Invalid,
    /// The unread entries don't fit a smaller completion queue.
    Outstanding,
}

/// The engine of one device.
pub struct Engine {
    pub(crate) core: Core,
    qps: Table<Qp>,
    rqs: Table<Rq>,
    ready: VecDeque<u32>,
    groups: BTreeMap<[u8; 16], Vec<u32>>,
}

/// Sizes of the tables.
pub(crate) mod limits {
    pub(crate) const LOG_QPS: u8 = 16;
    pub(crate) const LOG_CQS: u8 = 16;
    pub(crate) const LOG_SRQS: u8 = 16;
    pub(crate) const LOG_MKEYS: u8 = 20;
    pub(crate) const EQS: usize = 63;
    pub(crate) const LOG_RQS: u8 = 12;
    pub(crate) const GROUPS: usize = 256;
    pub(crate) const QPS_PER_GROUP: usize = 64;
}

impl Engine {
    /// A fresh engine for a port.
    pub fn new(port: Port, interrupts: Box<dyn Interrupts>) -> Self {
        Self {
            core: Core {
                memory: DmaMap::new(),
                mkeys: Table::new(0x1800, 1 << limits::LOG_MKEYS),
                eqs: Table::new(1, limits::EQS),
                cqs: Table::new(0x400, 1 << limits::LOG_CQS),
                srqs: Table::new(1, 1 << limits::LOG_SRQS),
                port,
                interrupts,
                timers: BinaryHeap::new(),
                outgoing: Vec::new(),
                frames: Vec::new(),
                failed_cqs: Vec::new(),
                counters: Box::new([Counters::default(); 256]),
                now: 0,
            },
            qps: Table::new(0x48, 1 << limits::LOG_QPS),
            rqs: Table::new(0x10, 1 << limits::LOG_RQS),
            ready: VecDeque::new(),
            groups: BTreeMap::new(),
        }
    }

    /// Forgets every object; the memory map and the port stay.
    pub fn reset(&mut self) {
        let memory = std::mem::take(&mut self.core.memory);
        let port = self.core.port.clone();
        let interrupts = std::mem::replace(&mut self.core.interrupts, Box::new(Silent));
        *self = Self::new(Port { gids: vec![None; port::GIDS], ..port }, interrupts);
        self.core.memory = memory;
    }

    /// The guest's memory.
    pub fn memory(&mut self) -> &mut DmaMap {
        &mut self.core.memory
    }

    /// The port.
    pub fn port(&self) -> &Port {
        &self.core.port
    }

    /// Packets and frames to send since the last call.
    pub fn take_outgoing(&mut self, packets: &mut Vec<Packet>, frames: &mut Vec<Vec<u8>>) {
        packets.append(&mut self.core.outgoing);
        frames.append(&mut self.core.frames);
    }

    // ---- event queues ----

    /// Makes an event queue.
    pub fn create_eq(&mut self, setup: EqSetup) -> Result<u32, Refused> {
        self.core.eqs.insert_with(|_| eq::Eq::new(setup)).ok_or(Refused::Full)
    }

    /// Destroys an event queue that no completion queue reports to.
    pub fn destroy_eq(&mut self, number: u32) -> Result<(), Refused> {
        if self.core.cqs.iter().any(|cq| cq.setup.eq == number) {
            return Err(Refused::Busy);
        }
        self.core.eqs.remove(number).map(drop).ok_or(Refused::Missing)
    }

    /// Sends an event that isn't about a queue pair or completion queue.
    pub(crate) fn event(&mut self, kind: EventKind, sub_kind: u8, data: &[u8; 28]) {
        self.core.event(kind, sub_kind, data);
    }

    /// Posts an event on one queue, whatever that queue asked for.
    pub(crate) fn event_on(&mut self, eq: u32, kind: EventKind, data: &[u8; 28]) {
        if let Some(eq) = self.core.eqs.get_mut(eq) {
            eq.post(&self.core.memory, &*self.core.interrupts, kind, 0, data);
        }
    }

    /// The driver read an event queue up to `consumer`.
    pub fn eq_consumed(&mut self, number: u32, consumer: u32, arm: bool) {
        if let Some(eq) = self.core.eqs.get_mut(number) {
            eq.consumed(&*self.core.interrupts, consumer, arm);
        }
    }

    /// The producer counter of an event queue.
    pub(crate) fn eq_producer(&self, number: u32) -> Result<u32, Refused> {
        self.core.eqs.get(number).map(|eq| eq.producer).ok_or(Refused::Missing)
    }

    // ---- completion queues ----

    /// Makes a completion queue.
    pub fn create_cq(&mut self, setup: CqSetup) -> Result<u32, Refused> {
        self.create_moderated_cq(setup, Moderation::default())
    }

    pub(crate) fn create_moderated_cq(
        &mut self,
        setup: CqSetup,
        moderation: Moderation,
    ) -> Result<u32, Refused> {
        if self.core.eqs.get(setup.eq).is_none() {
            return Err(Refused::Missing);
        }
        self.core.cqs.insert_with(|_| cq::Cq::new(setup, moderation)).ok_or(Refused::Full)
    }

    /// Destroys a completion queue that no other object uses.
    pub fn destroy_cq(&mut self, number: u32) -> Result<(), Refused> {
        let used = self.qps.iter().any(|qp| qp.setup.send_cq == number || qp.setup.receive_cq == number)
            || self.core.srqs.iter().any(|srq| srq.setup.cq == Some(number))
            || self.rqs.iter().any(|rq| rq.setup.cq == number);
        if used && self.core.cqs.get(number).is_some() {
            return Err(Refused::Busy);
        }
        self.core.cqs.remove(number).map(drop).ok_or(Refused::Missing)
    }

    /// Continues a completion queue in another buffer.
    pub(crate) fn resize_cq(&mut self, number: u32, ring: Ring, log_size: u8) -> Result<(), Refused> {
        let now = self.core.now;
        let cq = self.core.cqs.get_mut(number).ok_or(Refused::Missing)?;
        if cq.resize(&self.core.memory, now, ring, log_size) { Ok(()) } else { Err(Refused::Outstanding) }
    }

    /// Changes when a completion queue's events are held back.
    pub(crate) fn moderate_cq(&mut self, number: u32, moderation: Moderation) -> Result<(), Refused> {
        let cq = self.core.cqs.get_mut(number).ok_or(Refused::Missing)?;
        cq.moderation = moderation;
        Ok(())
    }

    /// Producer counter and whether the queue has failed.
    pub(crate) fn cq_progress(&self, number: u32) -> Result<(u32, bool), Refused> {
        self.core.cqs.get(number).map(|cq| (cq.producer, cq.failed)).ok_or(Refused::Missing)
    }

    /// The driver wants an event for the next completion.
    pub fn arm_cq(&mut self, number: u32, consumer: u32, solicited_only: bool) {
        let now = self.core.now;
        if let Some(cq) = self.core.cqs.get_mut(number) {
            let outcome = cq.arm(consumer, solicited_only, now);
            self.core.follow(number, outcome);
        }
    }

    // ---- memory keys ----

    /// Makes a key with all rights over a range whose addresses are the memory's own; the key.
    pub fn register(&mut self, pd: u32, start: u64, length: u64) -> Result<u32, Refused> {
        const VARIANT: u8 = 1;
        let mkey = Mkey {
            variant: VARIANT,
            free: false,
            mode: mkey::Mode::Physical,
            access: 0x1f,
            pd,
            qp: mkey::ANY_QP,
            start,
            length,
            unbounded: false,
            log_page: 0,
            remote_invalidate: true,
            umr: true,
            capacity: 0,
            translation: Vec::new(),
        };
        self.create_mkey(mkey).map(|index| index << 8 | u32::from(VARIANT))
    }

    pub(crate) fn create_mkey(&mut self, mkey: Mkey) -> Result<u32, Refused> {
        self.core.mkeys.insert_with(|_| mkey).ok_or(Refused::Full)
    }

    pub(crate) fn mkey(&self, index: u32) -> Result<&Mkey, Refused> {
        self.core.mkeys.get(index).ok_or(Refused::Missing)
    }

    pub(crate) fn destroy_mkey(&mut self, index: u32) -> Result<(), Refused> {
        self.core.mkeys.remove(index).map(drop).ok_or(Refused::Missing)
    }

    // ---- shared receive queues ----

    /// Makes a shared receive queue.
    pub fn create_srq(&mut self, setup: SrqSetup, limit: u16) -> Result<u32, Refused> {
        let smallest = if setup.linked { 5 } else { 4 };
        if !(smallest..=12).contains(&setup.log_stride) || setup.log_size > 16 {
            return Err(Refused::Invalid);
        }
        if setup.cq.is_some_and(|cq| self.core.cqs.get(cq).is_none()) {
            return Err(Refused::Missing);
        }
        self.core.srqs.insert_with(|number| srq::Srq::new(number, setup, limit)).ok_or(Refused::Full)
    }

    /// Destroys a shared receive queue that no queue pair uses.
    pub fn destroy_srq(&mut self, number: u32) -> Result<(), Refused> {
        if self.qps.iter().any(|qp| matches!(qp.setup.receive, ReceiveQueue::Shared(srq) if srq == number)) {
            return Err(Refused::Busy);
        }
        self.core.srqs.remove(number).map(drop).ok_or(Refused::Missing)
    }

    /// Wants an event when fewer than `limit` work requests are left.
    pub fn limit_srq(&mut self, number: u32, limit: u16) -> Result<(), Refused> {
        let srq = self.core.srqs.get_mut(number).ok_or(Refused::Missing)?;
        srq.limit = limit;
        Ok(())
    }

    /// The limit, and how many work requests were used.
    pub(crate) fn srq_progress(&self, number: u32) -> Result<(u16, u16), Refused> {
        self.core.srqs.get(number).map(|srq| (srq.limit, srq.consumed)).ok_or(Refused::Missing)
    }

    // ---- queue pairs ----

    /// Makes a queue pair, in the reset state.
    pub fn create_qp(&mut self, setup: QpSetup, attributes: QpAttributes) -> Result<u32, Refused> {
        let receives = !matches!(setup.receive, ReceiveQueue::None);
        let cqs = [(setup.log_send_size.is_some(), setup.send_cq), (receives, setup.receive_cq)];
        if cqs.iter().any(|(used, cq)| *used && self.core.cqs.get(*cq).is_none()) {
            return Err(Refused::Missing);
        }
        match setup.receive {
            ReceiveQueue::Shared(srq) if self.core.srqs.get(srq).is_none() => return Err(Refused::Missing),
            ReceiveQueue::Own { log_size, log_stride }
                if log_size > 15 || !(4..=12).contains(&log_stride) =>
            {
                return Err(Refused::Invalid);
            }
            _ => {}
        }
        if setup.log_send_size.is_some_and(|log_size| log_size > 15) {
            return Err(Refused::Invalid);
        }
        self.qps.insert_with(|number| Qp::new(number, setup, attributes)).ok_or(Refused::Full)
    }

    /// Destroys a queue pair, with whatever it was doing.
    pub fn destroy_qp(&mut self, number: u32) -> Result<(), Refused> {
        self.qps.remove(number).ok_or(Refused::Missing)?;
        for members in self.groups.values_mut() {
            members.retain(|member| *member != number);
        }
        self.groups.retain(|_, members| !members.is_empty());
        Ok(())
    }

    /// A queue pair's state and attributes.
    pub fn qp_attributes(&self, number: u32) -> Result<(State, &QpAttributes), Refused> {
        self.qps.get(number).map(|qp| (qp.state, &qp.attributes)).ok_or(Refused::Missing)
    }

    /// Where a queue pair's counters stand.
    pub(crate) fn qp_progress(&self, number: u32) -> Result<Progress, Refused> {
        let qp = self.qps.get(number).ok_or(Refused::Missing)?;
        let (done, posted) = qp.requester.counters();
        let (next_psn, acknowledged_psn) = qp.requester.sequence();
        let (expected_psn, messages) = qp.responder.sequence();
        let received = qp.responder.consumed();
        Ok(Progress { done, posted, next_psn, acknowledged_psn, expected_psn, messages, received })
    }

    /// What a queue pair was made of.
    pub fn qp_setup(&self, number: u32) -> Result<&QpSetup, Refused> {
        self.qps.get(number).map(|qp| &qp.setup).ok_or(Refused::Missing)
    }

    /// Moves a queue pair into a state, with the attributes it has from then on. Which moves are legal is the caller's business.
    pub fn move_qp(&mut self, number: u32, state: State, attributes: QpAttributes) -> Result<(), Refused> {
        let qp = self.qps.get_mut(number).ok_or(Refused::Missing)?;
        let before = qp.state;
        qp.attributes = attributes;
        match state {
            State::Reset => qp.reset(),
            State::Error => responder::enter_error(qp, &mut self.core),
            _ => qp.state = state,
        }
        match (before, state) {
            (State::Init, State::ReadyToReceive) => qp.responder.start(&qp.attributes),
            (State::ReadyToReceive, State::ReadyToSend) => qp.requester.start(&qp.attributes),
            (State::SendQueueError, State::ReadyToSend) => requester::recover(qp),
            _ => {}
        }
        self.wake(number);
        Ok(())
    }

    /// Changes what a queue pair in reset is made of.
    pub(crate) fn rewire_qp(
        &mut self,
        number: u32,
        change: impl FnOnce(&mut QpSetup),
    ) -> Result<(), Refused> {
        let qp = self.qps.get_mut(number).ok_or(Refused::Missing)?;
        change(&mut qp.setup);
        Ok(())
    }

    /// The driver rang a send doorbell.
    pub fn ring_qp(&mut self, number: u32) {
        self.wake(number);
    }

    fn wake(&mut self, number: u32) {
        if let Some(qp) = self.qps.get_mut(number)
            && !std::mem::replace(&mut qp.queued, true)
        {
            self.ready.push_back(number);
        }
    }

    /// Adds a queue pair to a multicast group.
    pub(crate) fn attach(&mut self, group: [u8; 16], number: u32) -> Result<(), Refused> {
        let qp = self.qps.get(number).ok_or(Refused::Missing)?;
        if !matches!(qp.setup.service, Service::Datagram(None)) {
            return Err(Refused::Invalid);
        }
        if !self.groups.contains_key(&group) && self.groups.len() >= limits::GROUPS {
            return Err(Refused::Full);
        }
        let members = self.groups.entry(group).or_default();
        if members.contains(&number) {
            return Ok(());
        }
        if members.len() >= limits::QPS_PER_GROUP {
            return Err(Refused::Full);
        }
        members.push(number);
        Ok(())
    }

    /// Removes a queue pair from a multicast group.
    pub(crate) fn detach(&mut self, group: [u8; 16], number: u32) -> Result<(), Refused> {
        let members = self.groups.get_mut(&group).ok_or(Refused::Missing)?;
        let at = members.iter().position(|member| *member == number).ok_or(Refused::Missing)?;
        members.remove(at);
        if members.is_empty() {
            self.groups.remove(&group);
        }
        Ok(())
    }

    // ---- queues of the netdev ----

    /// Makes a receive queue for frames.
    pub fn create_rq(&mut self, setup: RqSetup) -> Result<u32, Refused> {
        let smallest = if setup.linked { 5 } else { 4 };
        if !(smallest..=12).contains(&setup.log_stride) || setup.log_size > 15 {
            return Err(Refused::Invalid);
        }
        if self.core.cqs.get(setup.cq).is_none() {
            return Err(Refused::Missing);
        }
        self.rqs.insert_with(|number| Rq::new(number, setup)).ok_or(Refused::Full)
    }

    /// Starts or stops a receive queue for frames.
    pub fn set_rq_ready(&mut self, number: u32, ready: bool) -> Result<(), Refused> {
        self.rqs.get_mut(number).map(|rq| rq.set_ready(ready)).ok_or(Refused::Missing)
    }

    /// Destroys a receive queue for frames.
    pub fn destroy_rq(&mut self, number: u32) -> Result<(), Refused> {
        self.rqs.remove(number).map(drop).ok_or(Refused::Missing)
    }

    /// Whether a receive queue exists and takes frames.
    pub(crate) fn rq_ready(&self, number: u32) -> bool {
        self.rqs.get(number).is_some_and(|rq| rq.ready)
    }

    /// Puts a frame into a receive queue.
    pub fn receive_frame(&mut self, rq: u32, frame: &[u8]) -> bool {
        match self.rqs.get_mut(rq) {
            Some(rq) if rq.ready => ethernet::receive(rq, &mut self.core, frame),
            _ => false,
        }
    }

    // ---- what others ask ----

    /// Whether an object belongs to a protection domain.
    pub(crate) fn uses_pd(&self, pd: u32) -> bool {
        self.qps.iter().any(|qp| qp.setup.pd == pd)
            || self.core.srqs.iter().any(|srq| srq.setup.pd == pd)
            || self.rqs.iter().any(|rq| rq.setup.pd == pd)
            || self.core.mkeys.iter().any(|key| key.pd == pd && !key.free)
    }

    /// Whether an object belongs to an XRC domain.
    pub(crate) fn uses_xrcd(&self, xrcd: u32) -> bool {
        self.qps.iter().any(|qp| qp.setup.xrcd == Some(xrcd))
            || self.core.srqs.iter().any(|srq| srq.setup.xrcd == Some(xrcd))
    }

    /// A set of counters.
    pub(crate) fn counters(&mut self, set: u8) -> &mut Counters {
        &mut self.core.counters[usize::from(set)]
    }

    // ---- work ----

    /// Takes a packet off the wire.
    pub fn receive(&mut self, packet: Packet) {
        if packet.route.is_multicast() {
            self.receive_group(&packet);
            return;
        }
        let number = match packet.destination {
            0 => self.management(Management::Subnet),
            1 => self.management(Management::General),
            number => Some(number),
        };
        if let Some(number) = number {
            self.receive_for(number, packet);
        }
    }

    fn management(&self, wanted: Management) -> Option<u32> {
        let service = Service::Datagram(Some(wanted));
        self.qps.iter().find(|qp| qp.setup.service == service).map(|qp| qp.number)
    }

    fn receive_group(&mut self, packet: &Packet) {
        const EVERYONE: u32 = 0xff_ffff;
        let (Some(global), EVERYONE) = (packet.route.global, packet.destination) else { return };
        let members = self.groups.get(&global.destination).cloned().unwrap_or_default();
        let sender = packet.headers.datagram.map(|datagram| datagram.source_qp);
        let ours = packet.route.source_lid == self.core.port.lid && packet.route.source_mac == self.own_mac();
        for number in members {
            // What a queue pair sends to a group of its own does not come back to itself.
            if !(ours && sender == Some(number)) {
                self.receive_for(number, packet.clone());
            }
        }
    }

    fn own_mac(&self) -> [u8; 6] {
        if self.core.is_ethernet() { self.core.port.mac } else { [0; 6] }
    }

    fn receive_for(&mut self, number: u32, packet: Packet) {
        let Some(qp) = self.qps.get_mut(number) else { return };
        if qp.setup.service.transport() != Some(packet.transport) {
            return;
        }
        let management = matches!(qp.setup.service, Service::Datagram(Some(_)));
        if !management && !port::pkeys_match(packet.pkey, qp.attributes.pkey) {
            self.core.port.pkey_violations = self.core.port.pkey_violations.saturating_add(1);
            return;
        }
        if let Service::Datagram(_) = qp.setup.service {
            datagram::receive(qp, &mut self.core, &packet);
        } else if packet.operation.is_response() {
            requester::receive(qp, &mut self.core, &packet);
        } else {
            responder::receive(qp, &mut self.core, packet);
        }
        self.wake(number);
    }

    /// Works for a while at the time `now`, in nanoseconds of a clock that never goes back. `true` if there is more to do at once.
    pub fn run(&mut self, now: u64) -> bool {
        self.core.now = now;
        self.expire_timers();
        for _ in 0..self.ready.len() {
            let Some(number) = self.ready.pop_front() else { break };
            let Some(qp) = self.qps.get_mut(number) else { continue };
            qp.queued = false;
            let answers = responder::turn(qp, &mut self.core, BUDGET);
            let requests = requester::turn(qp, &mut self.core, BUDGET);
            if answers == Turn::More || requests == Turn::More {
                self.wake(number);
            }
            self.set_timer(number);
        }
        self.fail_users_of_cqs();
        !self.ready.is_empty()
    }

    fn set_timer(&mut self, number: u32) {
        if let Some(qp) = self.qps.get_mut(number)
            && let Some(deadline) = qp.deadline()
            && qp.timed.is_none_or(|timed| deadline < timed)
        {
            qp.timed = Some(deadline);
            self.core.timers.push(Reverse((deadline, Timer::Qp(number))));
        }
    }

    fn expire_timers(&mut self) {
        let now = self.core.now;
        while let Some(&Reverse((deadline, timer))) = self.core.timers.peek()
            && deadline <= now
        {
            self.core.timers.pop();
            match timer {
                Timer::Cq(number) => {
                    if self.core.cqs.get_mut(number).is_some_and(|cq| cq.period_ended(now)) {
                        self.core.follow(number, cq::Outcome::Event);
                    }
                }
                Timer::Qp(number) => {
                    if let Some(qp) = self.qps.get_mut(number) {
                        qp.timed = qp.timed.filter(|timed| *timed != deadline);
                        requester::expire(qp, &mut self.core);
                        responder::expire(qp, &mut self.core);
                        self.wake(number);
                        self.set_timer(number);
                    }
                }
            }
        }
    }

    /// Whether a queue pair waits for its turn.
    pub fn has_work(&self) -> bool {
        !self.ready.is_empty()
    }

    /// Tells the time without working.
    pub fn set_time(&mut self, now: u64) {
        self.core.now = now;
    }

    /// Puts the cable in or out; whether that changed anything.
    pub(crate) fn set_up(&mut self, up: bool) -> bool {
        std::mem::replace(&mut self.core.port.up, up) != up
    }

    /// Changes the port's tables.
    pub(crate) fn port_mut(&mut self) -> &mut Port {
        &mut self.core.port
    }

    /// When [`Self::run`] should be called again if nothing else happens.
    pub fn next_deadline(&self) -> Option<u64> {
        self.core.timers.peek().map(|Reverse((deadline, _))| *deadline)
    }

    /// A completion queue that lost entries takes its queue pairs down.
    fn fail_users_of_cqs(&mut self) {
        while let Some(cq) = self.core.failed_cqs.pop() {
            for qp in self.qps.iter_mut() {
                let uses = qp.setup.send_cq == cq || qp.setup.receive_cq == cq;
                if uses && !matches!(qp.state, State::Reset | State::Init | State::Error) {
                    responder::enter_error(qp, &mut self.core);
                    self.core.qp_event(EventKind::WqCatastrophic, qp.number);
                }
            }
        }
    }
}

/// Where a queue pair's counters stand.
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

/// Interrupts that go nowhere.
struct Silent;

impl Interrupts for Silent {
    fn raise(&self, _vector: u16) {}
}
