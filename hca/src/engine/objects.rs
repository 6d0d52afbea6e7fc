//! Making, changing and destroying the objects that queue pairs use: event and completion queues,
//! keys, shared receive queues, and the netdev's receive queues.

use super::core::Counters;
use super::cq::{self, CqSetup, Moderation};
use super::eq::{self, EqSetup, EventKind};
use super::ethernet::{self, Rq, RqSetup, RqState};
use super::mkey::{self, Mkey};
use super::srq::{self, SrqSetup};
use super::{Engine, EngineError, ReceiveQueue, Ring, Traffic};

/// How a key that is filled in later finds memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    /// Through a table of pages (MTT).
    Mtt,
    /// Through a list of other keys' ranges (KLM).
    Klm,
    /// Through a table of other keys' ranges, all of the same size (KSM).
    Ksm,
}

impl Engine {
    // ---- event queues ----

    /// Makes an event queue.
    pub fn create_eq(&mut self, setup: EqSetup) -> Result<u32, EngineError> {
        self.core.eqs.insert_with(|_| eq::Eq::new(setup)).ok_or(EngineError::Full)
    }

    /// Destroys an event queue that no completion queue reports to.
    pub fn destroy_eq(&mut self, number: u32) -> Result<(), EngineError> {
        if self.core.cqs.iter().any(|cq| cq.setup.eq == number) {
            return Err(EngineError::Busy);
        }
        self.core.eqs.remove(number).map(drop).ok_or(EngineError::Missing)
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
    pub(crate) fn eq_producer(&self, number: u32) -> Result<u32, EngineError> {
        self.core.eqs.get(number).map(|eq| eq.producer).ok_or(EngineError::Missing)
    }

    // ---- completion queues ----

    /// Makes a completion queue.
    pub fn create_cq(&mut self, setup: CqSetup) -> Result<u32, EngineError> {
        self.create_moderated_cq(setup, Moderation::default())
    }

    pub(crate) fn create_moderated_cq(
        &mut self,
        setup: CqSetup,
        moderation: Moderation,
    ) -> Result<u32, EngineError> {
        if setup.wide && setup.compression.is_some() || setup.log_size > 22 {
            return Err(EngineError::Invalid);
        }
        if self.core.eqs.get(setup.eq).is_none() {
            return Err(EngineError::Missing);
        }
        self.core.cqs.insert_with(|_| cq::Cq::new(setup, moderation)).ok_or(EngineError::Full)
    }

    /// Destroys a completion queue that no other object uses.
    pub fn destroy_cq(&mut self, number: u32) -> Result<(), EngineError> {
        let used = self.qps.iter().any(|qp| qp.setup.send_cq == number || qp.setup.receive_cq == number)
            || self.core.srqs.iter().any(|srq| srq.setup.cq == Some(number))
            || self.rqs.iter().any(|rq| rq.setup.cq == number);
        if used && self.core.cqs.get(number).is_some() {
            return Err(EngineError::Busy);
        }
        self.core.cqs.remove(number).map(drop).ok_or(EngineError::Missing)
    }

    /// Continues a completion queue in another buffer.
    pub fn resize_cq(&mut self, number: u32, ring: Ring, log_size: u8) -> Result<(), EngineError> {
        let now = self.core.now;
        let cq = self.core.cqs.get_mut(number).ok_or(EngineError::Missing)?;
        if cq.resize(&self.core.memory, now, ring, log_size) { Ok(()) } else { Err(EngineError::Outstanding) }
    }

    /// Changes when a completion queue's events are held back; one that is being held back goes by
    /// the new rule.
    pub(crate) fn moderate_cq(&mut self, number: u32, moderation: Moderation) -> Result<(), EngineError> {
        let now = self.core.now;
        let cq = self.core.cqs.get_mut(number).ok_or(EngineError::Missing)?;
        let outcome = cq.moderate(moderation, now);
        self.core.follow(number, outcome);
        Ok(())
    }

    /// Producer counter and whether the queue has failed.
    pub(crate) fn cq_progress(&self, number: u32) -> Result<(u32, bool), EngineError> {
        self.core.cqs.get(number).map(|cq| (cq.producer, cq.failed)).ok_or(EngineError::Missing)
    }

    /// The driver wants an event for the next completion. `sequence` counts the events of the queue
    /// that the driver has seen, modulo 4: an arming that an event has answered already asks for
    /// nothing.
    pub fn arm_cq(&mut self, number: u32, consumer: u32, solicited_only: bool, sequence: u8) {
        let now = self.core.now;
        if let Some(cq) = self.core.cqs.get_mut(number) {
            let outcome = cq.arm(consumer, solicited_only, sequence, now);
            self.core.follow(number, outcome);
        }
    }

    // ---- memory keys ----

    /// Makes a key with all rights over a range whose addresses are the memory's own; the key.
    pub fn register(&mut self, pd: u32, start: u64, length: u64) -> Result<u32, EngineError> {
        const VARIANT: u8 = 1;
        let mkey = Mkey {
            variant: VARIANT,
            free: false,
            mode: mkey::AccessMode::Pa,
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

    /// Makes a key that leads nowhere until an update (UMR) fills it in, with room for so many
    /// entries of 16 bytes; the key.
    pub fn reserve_key(&mut self, pd: u32, kind: KeyKind, entries: u32) -> Result<u32, EngineError> {
        const VARIANT: u8 = 1;
        let mode = match kind {
            KeyKind::Mtt => mkey::AccessMode::Mtt,
            KeyKind::Klm => mkey::AccessMode::Klm,
            KeyKind::Ksm => mkey::AccessMode::Ksm,
        };
        let mkey = Mkey {
            variant: VARIANT,
            free: true,
            mode,
            access: 0,
            pd,
            qp: mkey::ANY_QP,
            start: 0,
            length: 0,
            unbounded: false,
            log_page: 12,
            remote_invalidate: true,
            umr: true,
            capacity: entries,
            translation: Vec::new(),
        };
        self.create_mkey(mkey).map(|index| index << 8 | u32::from(VARIANT))
    }

    pub(crate) fn create_mkey(&mut self, mkey: Mkey) -> Result<u32, EngineError> {
        let on_device = mkey.mode == mkey::AccessMode::Memic;
        if on_device && !self.core.memory.device_memory().is_allocated(mkey.start, mkey.length) {
            return Err(EngineError::Missing);
        }
        self.core.mkeys.insert_with(|_| mkey).ok_or(EngineError::Full)
    }

    /// Whether a key leads to a part of the device's own memory.
    pub(crate) fn uses_device_memory(&self, start: u64, length: u64) -> bool {
        self.core.mkeys.iter().any(|mkey| {
            mkey.mode == mkey::AccessMode::Memic
                && mkey.start < start.saturating_add(length)
                && start < mkey.start.saturating_add(mkey.length)
        })
    }

    pub(crate) fn mkey(&self, index: u32) -> Result<&Mkey, EngineError> {
        self.core.mkeys.get(index).ok_or(EngineError::Missing)
    }

    pub(crate) fn destroy_mkey(&mut self, index: u32) -> Result<(), EngineError> {
        self.core.mkeys.remove(index).map(drop).ok_or(EngineError::Missing)
    }

    // ---- shared receive queues ----

    /// Makes a shared receive queue.
    pub fn create_srq(&mut self, setup: SrqSetup, limit: u16) -> Result<u32, EngineError> {
        let smallest = if setup.linked { 5 } else { 4 };
        if !(smallest..=12).contains(&setup.log_stride) || setup.log_size > 16 {
            return Err(EngineError::Invalid);
        }
        if setup.cq.is_some_and(|cq| self.core.cqs.get(cq).is_none()) {
            return Err(EngineError::Missing);
        }
        self.core.srqs.insert_with(|number| srq::Srq::new(number, setup, limit)).ok_or(EngineError::Full)
    }

    /// Destroys a shared receive queue that no queue pair uses.
    pub fn destroy_srq(&mut self, number: u32) -> Result<(), EngineError> {
        if self.qps.iter().any(|qp| matches!(qp.setup.receive, ReceiveQueue::Shared(srq) if srq == number)) {
            return Err(EngineError::Busy);
        }
        self.core.srqs.remove(number).ok_or(EngineError::Missing)?;
        self.forget_faults_of_srq(number);
        Ok(())
    }

    /// Wants an event when fewer than `limit` work requests are left.
    pub fn limit_srq(&mut self, number: u32, limit: u16) -> Result<(), EngineError> {
        let srq = self.core.srqs.get_mut(number).ok_or(EngineError::Missing)?;
        srq.limit = limit;
        Ok(())
    }

    /// The limit, and how many work requests were used.
    pub(crate) fn srq_progress(&self, number: u32) -> Result<(u16, u16), EngineError> {
        self.core.srqs.get(number).map(|srq| (srq.limit, srq.consumed)).ok_or(EngineError::Missing)
    }

    // ---- queues of the netdev ----

    /// Makes a receive queue for frames.
    pub fn create_rq(&mut self, setup: RqSetup) -> Result<u32, EngineError> {
        let smallest = if setup.linked { 5 } else { 4 };
        if !(smallest..=12).contains(&setup.log_stride) || setup.log_size > 15 {
            return Err(EngineError::Invalid);
        }
        if self.core.cqs.get(setup.cq).is_none() {
            return Err(EngineError::Missing);
        }
        self.rqs.insert_with(|number| Rq::new(number, setup)).ok_or(EngineError::Full)
    }

    /// Brings a receive queue for frames to a state.
    pub fn move_rq(&mut self, number: u32, state: RqState) -> Result<(), EngineError> {
        self.rqs.get_mut(number).map(|rq| rq.enter(&mut self.core, state)).ok_or(EngineError::Missing)
    }

    /// The state of a receive queue for frames.
    pub(crate) fn rq_state(&self, number: u32) -> Result<RqState, EngineError> {
        self.rqs.get(number).map(|rq| rq.state).ok_or(EngineError::Missing)
    }

    /// Whether VLAN tags of frames go into their completions from now on.
    pub(crate) fn strip_vlan(&mut self, number: u32, strips: bool) -> Result<(), EngineError> {
        self.rqs.get_mut(number).map(|rq| rq.setup.strips_vlan = strips).ok_or(EngineError::Missing)
    }

    /// Destroys a receive queue for frames.
    pub fn destroy_rq(&mut self, number: u32) -> Result<(), EngineError> {
        self.rqs.remove(number).map(drop).ok_or(EngineError::Missing)
    }

    /// Whether a receive queue exists and takes frames.
    pub(crate) fn rq_ready(&self, number: u32) -> bool {
        self.rq_state(number) == Ok(RqState::Ready)
    }

    /// Puts a frame into a receive queue.
    pub fn receive_frame(&mut self, rq: u32, frame: &[u8]) -> bool {
        match self.rqs.get_mut(rq) {
            Some(rq) if rq.state == RqState::Ready => ethernet::receive(rq, &mut self.core, frame),
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

    /// Counts a frame that came off the wire, whoever will get it.
    pub(crate) fn frame_arrived(&mut self, frame: &[u8]) {
        self.core.traffic.received.frame(frame);
    }

    /// What has gone through the port since power-on or reset.
    pub(crate) fn traffic(&self) -> &Traffic {
        &self.core.traffic
    }

    /// A set of counters.
    pub(crate) fn counters(&mut self, set: u8) -> &mut Counters {
        &mut self.core.counters[usize::from(set)]
    }
}
