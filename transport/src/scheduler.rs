//! The QPs of a device: delivery of packets, order of execution, timers, multicast groups.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::fmt;

use crate::device::{Device, Queues};
use crate::error_state::enter_error;
use crate::packet::{Packet, pkeys_match};
use crate::qp::attributes::{QpAttributes, State};
use crate::qp::pacing::Rate;
use crate::qp::{Qp, Turn, migration};
use crate::service::{ManagementQp, Service};
use crate::table::Table;
use crate::{datagram, requester, responder};

/// The timer heap is not rebuilt below this number of entries.
const STALE_TIMERS: usize = 64;

/// The QPs of a device. It has neither threads nor a clock: its owner passes in doorbells, packets
/// and the time.
pub struct Scheduler<D: Device> {
    qps: Table<Qp<D>>,
    ready: VecDeque<u32>,
    timers: BinaryHeap<Reverse<(u64, u32)>>,
    groups: BTreeMap<[u8; 16], Vec<u32>>,
}

impl<D: Device> fmt::Debug for Scheduler<D> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Scheduler")
            .field("ready", &self.ready)
            .field("timers", &self.timers.len())
            .finish_non_exhaustive()
    }
}

impl<D: Device> Scheduler<D> {
    /// Creates a table of up to `limit` QPs, numbered from `first`.
    pub fn new(first: u32, limit: usize) -> Self {
        Self {
            qps: Table::new(first, limit),
            ready: VecDeque::new(),
            timers: BinaryHeap::new(),
            groups: BTreeMap::new(),
        }
    }

    /// Creates a QP in RESET. `queues` makes its queues for its number. Returns `None` if all numbers
    /// are in use.
    pub fn create(&mut self, queues: impl FnOnce(u32) -> D::Queues, attributes: QpAttributes) -> Option<u32> {
        self.qps.insert_with(|number| Qp::new(queues(number), attributes))
    }

    /// Sends the answers that a QP owes for received packets, up to those of one turn.
    pub fn answer(&mut self, device: &mut D, number: u32) {
        if let Some(qp) = self.qps.get_mut(number) {
            responder::turn(qp, device, D::POLICY.packets_per_turn);
        }
    }

    /// Destroys a QP and discards its work. Returns `false` if there is no such QP.
    pub fn destroy(&mut self, number: u32) -> bool {
        if self.qps.remove(number).is_none() {
            return false;
        }
        for members in self.groups.values_mut() {
            members.retain(|member| *member != number);
        }
        self.groups.retain(|_, members| !members.is_empty());
        true
    }

    /// The QP with this number.
    pub fn get(&self, number: u32) -> Option<&Qp<D>> {
        self.qps.get(number)
    }

    /// The QP with this number, mutable.
    pub fn get_mut(&mut self, number: u32) -> Option<&mut Qp<D>> {
        self.qps.get_mut(number)
    }

    /// The QPs.
    pub fn iter(&self) -> impl Iterator<Item = &Qp<D>> {
        self.qps.iter()
    }

    /// Moves a QP to a state with new attributes. The caller checks that the transition is legal.
    /// Returns `false` if there is no such QP.
    pub fn modify(&mut self, device: &mut D, number: u32, state: State, attributes: QpAttributes) -> bool {
        let Some(qp) = self.qps.get_mut(number) else { return false };
        let before = qp.state;
        qp.attributes = attributes;
        match state {
            State::Reset => qp.reset(),
            State::Error => enter_error(qp, device),
            _ => qp.state = state,
        }
        match (before, state) {
            (State::Init, State::ReadyToReceive) => qp.responder.start(&qp.attributes),
            (State::ReadyToReceive, State::ReadyToSend) => qp.requester.start(&qp.attributes),
            (State::SendQueueError, State::ReadyToSend) => requester::recover(qp),
            (_, State::SendQueueDrained) => qp.requester.drained = false,
            _ => {}
        }
        self.wake(number);
        true
    }

    /// Moves a QP to ERR, unless it is in RESET, INIT or ERR. Returns whether it was moved.
    pub fn fail(&mut self, device: &mut D, number: u32) -> bool {
        let Some(qp) = self.qps.get_mut(number) else { return false };
        let fails = !matches!(qp.state, State::Reset | State::Init | State::Error);
        if fails {
            enter_error(qp, device);
        }
        fails
    }

    /// Sets the rate limit of a QP's sends. Returns `false` if there is no such QP.
    pub fn set_rate(&mut self, number: u32, rate: Option<Rate>) -> bool {
        let Some(qp) = self.qps.get_mut(number) else { return false };
        qp.attributes.rate = rate;
        qp.requester.pace_until = None;
        qp.requester.paced_end = 0;
        self.wake(number);
        true
    }

    /// Moves an armed QP to its alternate path. Returns `false` if it isn't armed.
    pub fn migrate(&mut self, device: &mut D, number: u32) -> bool {
        self.qps.get_mut(number).is_some_and(|qp| migration::migrate(qp, device))
    }

    /// Resumes a QP that waits for this page fault, after the page has become present or the fault-in
    /// has failed.
    pub fn resume(&mut self, device: &mut D, number: u32, token: u32, failed: bool) {
        if let Some(qp) = self.qps.get_mut(number) {
            requester::resume(qp, device, token, failed);
            responder::resume(qp, device, token, failed);
            self.wake(number);
        }
    }

    /// Makes a QP ready to run, as after a send doorbell.
    pub fn wake(&mut self, number: u32) {
        if let Some(qp) = self.qps.get_mut(number)
            && !std::mem::replace(&mut qp.queued, true)
        {
            self.ready.push_back(number);
        }
    }

    /// Receives a packet from the wire.
    pub fn receive(&mut self, device: &mut D, packet: &Packet) {
        if packet.route.is_multicast() {
            self.receive_group(device, packet);
            return;
        }
        let number = match packet.destination {
            0 => self.management(ManagementQp::Smi),
            1 => self.management(ManagementQp::Gsi),
            number => Some(number),
        };
        if let Some(number) = number {
            self.receive_for(device, number, packet);
        }
    }

    fn management(&self, wanted: ManagementQp) -> Option<u32> {
        let service = Some(Service::Datagram(Some(wanted)));
        self.qps.iter().find(|qp| qp.queues.service() == service).map(|qp| qp.queues.number())
    }

    fn receive_group(&mut self, device: &mut D, packet: &Packet) {
        const EVERYONE: u32 = 0xff_ffff;
        let (Some(global), EVERYONE) = (packet.route.global, packet.destination) else { return };
        let members = self.groups.get(&global.destination).cloned().unwrap_or_default();
        let sender = packet.headers.datagram.map(|datagram| datagram.source_qp);
        let ours = device.is_own(&packet.route);
        for number in members {
            let own = ours && sender == Some(number);
            if !(own && self.qps.get(number).is_some_and(|qp| qp.queues.blocks_own_multicast())) {
                self.receive_for(device, number, packet);
            }
        }
    }

    fn receive_for(&mut self, device: &mut D, number: u32, packet: &Packet) {
        let Some(qp) = self.qps.get_mut(number).filter(|qp| qp.queues.source_qp().is_none()) else { return };
        let Some(service) = qp.queues.service().filter(|service| service.transport() == packet.transport)
        else {
            return;
        };
        let management = matches!(service, Service::Datagram(Some(_)));
        if !management && !pkeys_match(packet.pkey, qp.attributes.pkey) {
            device.pkey_violation();
            return;
        }
        if let Service::Datagram(_) = service {
            datagram::receive(qp, device, packet);
        } else if !migration::received(qp, device, packet) {
            return;
        } else if packet.operation.is_response() {
            requester::receive(qp, device, packet);
        } else {
            responder::receive(qp, device, packet);
        }
        self.wake(number);
    }

    /// Runs the ready QPs at the time of the device. Returns `true` if work is left to do at once.
    pub fn run(&mut self, device: &mut D) -> bool {
        for _ in 0..self.ready.len() {
            self.step(device);
        }
        self.has_work()
    }

    /// Gives one turn to the QP that has been ready for the longest time. Returns `false` if none is
    /// ready.
    pub fn step(&mut self, device: &mut D) -> bool {
        let Some(number) = self.ready.pop_front() else { return false };
        let Some(qp) = self.qps.get_mut(number) else { return true };
        qp.queued = false;
        let answers = responder::turn(qp, device, D::POLICY.packets_per_turn);
        let requests = requester::turn(qp, device, D::POLICY.packets_per_turn);
        if answers == Turn::More || requests == Turn::More {
            self.wake(number);
        }
        self.set_timer(number);
        true
    }

    /// Whether a QP is ready to run.
    pub fn has_work(&self) -> bool {
        !self.ready.is_empty()
    }

    fn set_timer(&mut self, number: u32) {
        if let Some(qp) = self.qps.get_mut(number)
            && let Some(deadline) = qp.deadline()
            && qp.timed.is_none_or(|timed| deadline < timed)
        {
            qp.timed = Some(deadline);
            self.timers.push(Reverse((deadline, number)));
            self.forget_stale_timers();
        }
    }

    /// Rebuilds the heap when most entries are stale: a QP whose timer is brought forward leaves its old
    /// entry.
    fn forget_stale_timers(&mut self) {
        if self.timers.len() > 2 * self.qps.count() + STALE_TIMERS {
            let timed = self.qps.iter().filter_map(|qp| Some((qp.timed?, qp.queues.number())));
            self.timers = timed.map(Reverse).collect();
        }
    }

    /// Handles the timers that have expired at the time of the device.
    pub fn expire_timers(&mut self, device: &mut D) {
        let now = device.now();
        while let Some(&Reverse((deadline, number))) = self.timers.peek()
            && deadline <= now
        {
            self.timers.pop();
            if let Some(qp) = self.qps.get_mut(number) {
                qp.timed = qp.timed.filter(|timed| *timed != deadline);
                requester::expire(qp, device);
                responder::expire(qp, device);
                self.wake(number);
                self.set_timer(number);
            }
        }
    }

    /// The time of the next timer that was not cancelled. Forgets the cancelled ones before it.
    pub fn next_timer(&mut self) -> Option<u64> {
        while let Some(&Reverse((deadline, number))) = self.timers.peek() {
            let qp = self.qps.get_mut(number);
            if qp.as_ref().is_some_and(|qp| qp.timed == Some(deadline) && qp.deadline() == Some(deadline)) {
                return Some(deadline);
            }
            self.timers.pop();
            if let Some(qp) = qp.filter(|qp| qp.timed == Some(deadline)) {
                qp.timed = None;
                self.set_timer(number);
            }
        }
        None
    }

    /// The members of a multicast group.
    pub fn group(&self, group: &[u8; 16]) -> &[u32] {
        self.groups.get(group).map_or(&[], Vec::as_slice)
    }

    /// The number of multicast groups with members.
    pub fn groups(&self) -> usize {
        self.groups.len()
    }

    /// Adds a QP to a multicast group, unless it is a member.
    pub fn attach(&mut self, group: [u8; 16], number: u32) {
        let members = self.groups.entry(group).or_default();
        if !members.contains(&number) {
            members.push(number);
        }
    }

    /// Removes a QP from a multicast group. Returns `false` if it is not a member.
    pub fn detach(&mut self, group: &[u8; 16], number: u32) -> bool {
        let Some(members) = self.groups.get_mut(group) else { return false };
        let Some(at) = members.iter().position(|member| *member == number) else { return false };
        members.remove(at);
        if members.is_empty() {
            self.groups.remove(group);
        }
        true
    }
}
