//! Creation, modification and destruction of QPs, and their multicast groups.

use super::error_state::enter_error;
use super::qp::Qp;
use super::qp::migration;
use super::{Engine, EngineError, Progress, QpAttributes, QpSetup, Rate, ReceiveQueue, Service, State};
use super::{limits, requester};

impl Engine {
    /// Creates a QP in RESET.
    pub fn create_qp(&mut self, setup: QpSetup, attributes: QpAttributes) -> Result<u32, EngineError> {
        let receives = !matches!(setup.receive, ReceiveQueue::None);
        let cqs = [(setup.log_send_size.is_some(), setup.send_cq), (receives, setup.receive_cq)];
        if cqs.iter().any(|(used, cq)| *used && self.core.cqs.get(*cq).is_none()) {
            return Err(EngineError::Missing);
        }
        match setup.receive {
            ReceiveQueue::Shared(srq) if self.core.srqs.get(srq).is_none() => {
                return Err(EngineError::Missing);
            }
            ReceiveQueue::Own { log_size, log_stride }
                if log_size > 15 || !(4..=12).contains(&log_stride) =>
            {
                return Err(EngineError::Invalid);
            }
            _ => {}
        }
        if setup.log_send_size.is_some_and(|log_size| log_size > 15) {
            return Err(EngineError::Invalid);
        }
        for (inline, cq) in
            [(setup.inline_responses, setup.send_cq), (setup.inline_receives, setup.receive_cq)]
        {
            let wide = self.core.cqs.get(cq).is_some_and(|cq| cq.setup.wide);
            if !(inline == 0 || inline == 32 || inline == 64 && wide) {
                return Err(EngineError::Invalid);
            }
        }
        self.qps.insert_with(|number| Qp::new(number, setup, attributes)).ok_or(EngineError::Full)
    }

    /// Destroys a QP and discards its work.
    pub fn destroy_qp(&mut self, number: u32) -> Result<(), EngineError> {
        self.qps.remove(number).ok_or(EngineError::Missing)?;
        self.remove_faults_of_qp(number);
        for members in self.groups.values_mut() {
            members.retain(|member| *member != number);
        }
        self.groups.retain(|_, members| !members.is_empty());
        Ok(())
    }

    /// The state and attributes of a QP.
    pub fn qp_attributes(&self, number: u32) -> Result<(State, &QpAttributes), EngineError> {
        self.qps.get(number).map(|qp| (qp.state, &qp.attributes)).ok_or(EngineError::Missing)
    }

    /// The counters of a QP.
    pub(crate) fn qp_progress(&self, number: u32) -> Result<Progress, EngineError> {
        let qp = self.qps.get(number).ok_or(EngineError::Missing)?;
        let (done, posted) = qp.requester.counters();
        let (next_psn, acknowledged_psn) = qp.requester.sequence();
        let (expected_psn, messages) = qp.responder.sequence();
        let received = qp.responder.consumed();
        Ok(Progress { done, posted, next_psn, acknowledged_psn, expected_psn, messages, received })
    }

    /// The parameters of a QP.
    pub fn qp_setup(&self, number: u32) -> Result<&QpSetup, EngineError> {
        self.qps.get(number).map(|qp| &qp.setup).ok_or(EngineError::Missing)
    }

    /// Moves a QP to a state with new attributes. The caller checks that the transition is legal.
    pub fn modify_qp(
        &mut self,
        number: u32,
        state: State,
        attributes: QpAttributes,
    ) -> Result<(), EngineError> {
        let qp = self.qps.get_mut(number).ok_or(EngineError::Missing)?;
        let before = qp.state;
        qp.attributes = attributes;
        match state {
            State::Reset => qp.reset(),
            State::Error => enter_error(qp, &mut self.core),
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
        Ok(())
    }

    /// Sets the rate limit of a QP's sends.
    pub fn set_rate(&mut self, number: u32, rate: Option<Rate>) -> Result<(), EngineError> {
        let qp = self.qps.get_mut(number).ok_or(EngineError::Missing)?;
        qp.attributes.rate = rate;
        qp.requester.pace_until = None;
        qp.requester.paced_end = 0;
        self.wake(number);
        Ok(())
    }

    /// Moves an armed QP to its alternate path. `EngineError::Invalid` if it isn't armed.
    pub fn migrate_qp(&mut self, number: u32) -> Result<(), EngineError> {
        let qp = self.qps.get_mut(number).ok_or(EngineError::Missing)?;
        if migration::migrate(qp, &mut self.core) { Ok(()) } else { Err(EngineError::Invalid) }
    }

    /// Changes the parameters of a QP in RESET.
    pub(crate) fn rewire_qp(
        &mut self,
        number: u32,
        change: impl FnOnce(&mut QpSetup),
    ) -> Result<(), EngineError> {
        let qp = self.qps.get_mut(number).ok_or(EngineError::Missing)?;
        change(&mut qp.setup);
        Ok(())
    }

    /// Handles a send doorbell.
    pub fn ring_qp(&mut self, number: u32) {
        self.wake(number);
    }

    /// Handles a BlueFlame write of a whole WQE, which need not be read from the ring.
    pub(super) fn blueflame(&mut self, number: u32, wqe: Box<[u8]>) {
        if let Some(qp) = self.qps.get_mut(number) {
            qp.requester.set_bf_wqe(wqe);
        }
        self.wake(number);
    }

    pub(super) fn wake(&mut self, number: u32) {
        if let Some(qp) = self.qps.get_mut(number)
            && !std::mem::replace(&mut qp.queued, true)
        {
            self.ready.push_back(number);
        }
    }

    /// Adds a queue pair to a multicast group.
    pub(crate) fn attach(&mut self, group: [u8; 16], number: u32) -> Result<(), EngineError> {
        let qp = self.qps.get(number).ok_or(EngineError::Missing)?;
        if !matches!(qp.setup.service, Service::Datagram(None)) {
            return Err(EngineError::Invalid);
        }
        if !self.groups.contains_key(&group) && self.groups.len() >= limits::GROUPS {
            return Err(EngineError::Full);
        }
        let members = self.groups.entry(group).or_default();
        if members.contains(&number) {
            return Ok(());
        }
        if members.len() >= limits::QPS_PER_GROUP {
            return Err(EngineError::Full);
        }
        members.push(number);
        Ok(())
    }

    /// Removes a queue pair from a multicast group.
    pub(crate) fn detach(&mut self, group: [u8; 16], number: u32) -> Result<(), EngineError> {
        let members = self.groups.get_mut(&group).ok_or(EngineError::Missing)?;
        let at = members.iter().position(|member| *member == number).ok_or(EngineError::Missing)?;
        members.remove(at);
        if members.is_empty() {
            self.groups.remove(&group);
        }
        Ok(())
    }
}
