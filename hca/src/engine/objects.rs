//! Creation, modification and destruction of EQs, CQs, mkeys, SRQs and the netdev's RQs.

use super::core::Core;
use super::cq::{self, CqSetup, Moderation};
use super::eq::{self, EqSetup, EventKind};
use super::ethernet::{self, Rq, RqSetup, RqState};
use super::mkey::{self, Accessor, KeyKind, Mkey};
use super::srq::{self, SrqSetup};
use super::{Counters, Engine, EngineError, ReceiveQueue, Ring, Traffic};

impl Engine {
    // ---- event queues ----

    /// Creates an EQ.
    pub fn create_eq(&mut self, setup: EqSetup) -> Result<u32, EngineError> {
        self.core.eqs.insert_with(|_| eq::Eq::new(setup)).ok_or(EngineError::Full)
    }

    /// Destroys an EQ. `EngineError::Busy` if a CQ reports to it.
    pub fn destroy_eq(&mut self, number: u32) -> Result<(), EngineError> {
        if self.core.cqs.iter().any(|cq| cq.setup.eq == number) {
            return Err(EngineError::Busy);
        }
        self.core.eqs.remove(number).map(drop).ok_or(EngineError::Missing)
    }

    /// Posts an asynchronous event that isn't about a QP or CQ.
    pub(crate) fn event(&mut self, kind: EventKind, sub_kind: u8, data: &[u8; 28]) {
        self.core.event(kind, sub_kind, data);
    }

    /// Posts an event on one EQ, regardless of its subscription.
    pub(crate) fn event_on(&mut self, eq: u32, kind: EventKind, data: &[u8; 28]) {
        if let Some(eq) = self.core.eqs.get_mut(eq) {
            eq.post(&self.core.memory, &*self.core.interrupts, kind, 0, data);
        }
    }

    /// Sets the consumer index of an EQ and, if asked, arms it.
    pub fn eq_consumed(&mut self, number: u32, consumer: u32, arm: bool) {
        if let Some(eq) = self.core.eqs.get_mut(number) {
            eq.consumed(&*self.core.interrupts, consumer, arm);
        }
    }

    /// The producer index of an EQ.
    pub(crate) fn eq_producer(&self, number: u32) -> Result<u32, EngineError> {
        self.core.eqs.get(number).map(|eq| eq.producer).ok_or(EngineError::Missing)
    }

    // ---- completion queues ----

    /// Creates a CQ.
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

    /// Destroys a CQ. `EngineError::Busy` if another object uses it.
    pub fn destroy_cq(&mut self, number: u32) -> Result<(), EngineError> {
        let used = self
            .qps
            .iter()
            .any(|qp| qp.queues.setup.send_cq == number || qp.queues.setup.receive_cq == number)
            || self.core.srqs.iter().any(|srq| srq.setup.cq == Some(number))
            || self.rqs.iter().any(|rq| rq.setup.cq == number);
        if used && self.core.cqs.get(number).is_some() {
            return Err(EngineError::Busy);
        }
        self.core.cqs.remove(number).map(drop).ok_or(EngineError::Missing)
    }

    /// Switches a CQ to another ring (resize).
    pub fn resize_cq(&mut self, number: u32, ring: Ring, log_size: u8) -> Result<(), EngineError> {
        let now = self.core.now;
        let cq = self.core.cqs.get_mut(number).ok_or(EngineError::Missing)?;
        if cq.resize(&self.core.memory, now, ring, log_size) { Ok(()) } else { Err(EngineError::Outstanding) }
    }

    /// Changes the moderation of a CQ. A pending event is rescheduled by the new moderation.
    pub(crate) fn moderate_cq(&mut self, number: u32, moderation: Moderation) -> Result<(), EngineError> {
        let now = self.core.now;
        let cq = self.core.cqs.get_mut(number).ok_or(EngineError::Missing)?;
        let outcome = cq.moderate(moderation, now);
        self.core.follow(number, outcome);
        Ok(())
    }

    /// The producer index of a CQ, and whether the CQ has failed.
    pub(crate) fn cq_progress(&self, number: u32) -> Result<(u32, bool), EngineError> {
        self.core.cqs.get(number).map(|cq| (cq.producer, cq.failed)).ok_or(EngineError::Missing)
    }

    /// Arms a CQ. `sequence` is the number of events that the driver has seen, modulo 4. An arm
    /// whose sequence number an event has already answered has no effect.
    pub fn arm_cq(&mut self, number: u32, consumer: u32, solicited_only: bool, sequence: u8) {
        let now = self.core.now;
        if let Some(cq) = self.core.cqs.get_mut(number) {
            let outcome = cq.arm(consumer, solicited_only, sequence, now);
            self.core.follow(number, outcome);
        }
    }

    // ---- memory keys ----

    /// Creates a key with all access rights over a range of guest addresses and returns it.
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
            relaxed_ordering_write: false,
            relaxed_ordering_read: false,
            umr: true,
            capacity: 0,
            translation: Vec::new(),
        };
        self.create_mkey(mkey).map(|index| index << 8 | u32::from(VARIANT))
    }

    /// Creates a free key and returns it. A UMR sets its contents later. `entries` is its capacity
    /// in entries of 16 bytes.
    pub fn create_mkey_free(&mut self, pd: u32, kind: KeyKind, entries: u32) -> Result<u32, EngineError> {
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
            relaxed_ordering_write: false,
            relaxed_ordering_read: false,
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

    /// Whether a key refers to the given range of device memory.
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

    /// Writes for the firmware through a key of any PD.
    pub(crate) fn write_by_key(&self, key: u32, address: u64, bytes: &[u8]) -> Result<(), EngineError> {
        let who = Accessor { pd: 0, qp: mkey::ANY_QP, reserved_lkey: false, any_pd: true };
        let Core { mkeys, memory, .. } = &self.core;
        mkey::write(mkeys, memory, who, (key, address), mkey::access::LOCAL_WRITE, bytes)
            .map_err(|_| EngineError::Invalid)
    }

    pub(crate) fn destroy_mkey(&mut self, index: u32) -> Result<(), EngineError> {
        self.core.mkeys.remove(index).map(drop).ok_or(EngineError::Missing)
    }

    // ---- shared receive queues ----

    /// Creates an SRQ.
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

    /// Destroys an SRQ. `EngineError::Busy` if a QP uses it.
    pub fn destroy_srq(&mut self, number: u32) -> Result<(), EngineError> {
        if self
            .qps
            .iter()
            .any(|qp| matches!(qp.queues.setup.receive, ReceiveQueue::Shared(srq) if srq == number))
        {
            return Err(EngineError::Busy);
        }
        self.core.srqs.remove(number).ok_or(EngineError::Missing)?;
        self.remove_faults_of_srq(number);
        Ok(())
    }

    /// Arms the SRQ limit event: it is raised when fewer than `limit` WQEs are left.
    pub fn arm_srq_limit(&mut self, number: u32, limit: u16) -> Result<(), EngineError> {
        let srq = self.core.srqs.get_mut(number).ok_or(EngineError::Missing)?;
        srq.limit = limit;
        Ok(())
    }

    /// The limit of an SRQ, and its number of consumed WQEs.
    pub(crate) fn srq_progress(&self, number: u32) -> Result<(u16, u16), EngineError> {
        self.core.srqs.get(number).map(|srq| (srq.limit, srq.consumed)).ok_or(EngineError::Missing)
    }

    // ---- queues of the netdev ----

    /// Creates an RQ of the netdev.
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

    /// Moves an RQ to a state.
    pub fn move_rq(&mut self, number: u32, state: RqState) -> Result<(), EngineError> {
        self.rqs.get_mut(number).map(|rq| rq.enter(&mut self.core, state)).ok_or(EngineError::Missing)
    }

    /// The state of an RQ.
    pub(crate) fn rq_state(&self, number: u32) -> Result<RqState, EngineError> {
        self.rqs.get(number).map(|rq| rq.state).ok_or(EngineError::Missing)
    }

    /// Enables or disables VLAN stripping of an RQ.
    pub(crate) fn strip_vlan(&mut self, number: u32, strips: bool) -> Result<(), EngineError> {
        self.rqs.get_mut(number).map(|rq| rq.setup.strips_vlan = strips).ok_or(EngineError::Missing)
    }

    /// Enables or disables the writing of FCSs by an RQ.
    pub(crate) fn scatter_fcs(&mut self, number: u32, scatters: bool) -> Result<(), EngineError> {
        self.rqs.get_mut(number).map(|rq| rq.setup.scatters_fcs = scatters).ok_or(EngineError::Missing)
    }

    /// Destroys an RQ.
    pub fn destroy_rq(&mut self, number: u32) -> Result<(), EngineError> {
        self.rqs.remove(number).map(drop).ok_or(EngineError::Missing)
    }

    /// Whether an RQ exists and is in RDY.
    pub(crate) fn rq_ready(&self, number: u32) -> bool {
        self.rq_state(number) == Ok(RqState::Ready)
    }

    /// Writes a frame into an RQ. Its CQE has the flow tag, of 24 bits.
    pub fn receive_frame(&mut self, rq: u32, tag: u32, frame: &[u8]) -> bool {
        match self.rqs.get_mut(rq) {
            Some(rq) if rq.state == RqState::Ready => ethernet::receive(rq, &mut self.core, tag, frame),
            _ => false,
        }
    }

    // ---- queries ----

    /// Whether an object uses a PD.
    pub(crate) fn uses_pd(&self, pd: u32) -> bool {
        self.qps.iter().any(|qp| qp.queues.setup.pd == pd)
            || self.core.srqs.iter().any(|srq| srq.setup.pd == pd)
            || self.rqs.iter().any(|rq| rq.setup.pd == pd)
            || self.core.mkeys.iter().any(|key| key.pd == pd && !key.free)
    }

    /// Whether an object uses an XRC domain.
    pub(crate) fn uses_xrcd(&self, xrcd: u32) -> bool {
        self.qps.iter().any(|qp| qp.queues.setup.xrcd == Some(xrcd))
            || self.core.srqs.iter().any(|srq| srq.setup.xrcd == Some(xrcd))
    }

    /// Counts a received frame in the port counters.
    pub(crate) fn frame_arrived(&mut self, frame: &[u8]) {
        self.core.traffic.received.frame(frame);
    }

    /// The port counters since power-on or reset.
    pub(crate) fn traffic(&self) -> &Traffic {
        &self.core.traffic
    }

    /// A counter set.
    pub(crate) fn counters(&mut self, set: u8) -> &mut Counters {
        &mut self.core.counters[usize::from(set)]
    }
}
