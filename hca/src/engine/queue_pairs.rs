//! Creation, modification and destruction of QPs, and their multicast groups.

use super::queues::QpQueues;
use super::{
    Engine, EngineError, Progress, QpAttributes, QpSetup, Rate, ReceiveQueue, Service, State, limits,
};

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
        self.qps.create(|number| QpQueues::new(number, setup), attributes).ok_or(EngineError::Full)
    }

    /// Destroys a QP and discards its work.
    pub fn destroy_qp(&mut self, number: u32) -> Result<(), EngineError> {
        if !self.qps.destroy(number) {
            return Err(EngineError::Missing);
        }
        self.remove_faults_of_qp(number);
        Ok(())
    }

    /// The state and attributes of a QP.
    pub fn qp_attributes(&self, number: u32) -> Result<(State, &QpAttributes), EngineError> {
        self.qps.get(number).map(|qp| (qp.state(), &qp.attributes)).ok_or(EngineError::Missing)
    }

    /// The counters of a QP.
    pub(crate) fn qp_progress(&self, number: u32) -> Result<Progress, EngineError> {
        let qp = self.qps.get(number).ok_or(EngineError::Missing)?;
        let queues = &qp.queues;
        Ok(Progress {
            done: qp.oldest_send().map_or(queues.next_wqe, |wqe| wqe.index),
            posted: queues.posted,
            next_psn: qp.next_psn(),
            acknowledged_psn: qp.acknowledged_psn(),
            expected_psn: qp.expected_psn(),
            messages: qp.messages(),
            received: queues.consumed,
        })
    }

    /// The parameters of a QP.
    pub fn qp_setup(&self, number: u32) -> Result<&QpSetup, EngineError> {
        self.qps.get(number).map(|qp| &qp.queues.setup).ok_or(EngineError::Missing)
    }

    /// Moves a QP to a state with new attributes. The caller checks that the transition is legal.
    pub fn modify_qp(
        &mut self,
        number: u32,
        state: State,
        attributes: QpAttributes,
    ) -> Result<(), EngineError> {
        let moved = self.qps.modify(&mut self.core, number, state, attributes);
        if moved { Ok(()) } else { Err(EngineError::Missing) }
    }

    /// Sets the rate limit of a QP's sends.
    pub fn set_rate(&mut self, number: u32, rate: Option<Rate>) -> Result<(), EngineError> {
        if self.qps.set_rate(number, rate) { Ok(()) } else { Err(EngineError::Missing) }
    }

    /// Moves an armed QP to its alternate path. `EngineError::Invalid` if it isn't armed.
    pub fn migrate_qp(&mut self, number: u32) -> Result<(), EngineError> {
        self.qps.get(number).ok_or(EngineError::Missing)?;
        if self.qps.migrate(&mut self.core, number) { Ok(()) } else { Err(EngineError::Invalid) }
    }

    /// Changes the parameters of a QP in RESET.
    pub(crate) fn rewire_qp(
        &mut self,
        number: u32,
        change: impl FnOnce(&mut QpSetup),
    ) -> Result<(), EngineError> {
        let qp = self.qps.get_mut(number).ok_or(EngineError::Missing)?;
        change(&mut qp.queues.setup);
        Ok(())
    }

    /// Handles a send doorbell.
    pub fn ring_qp(&mut self, number: u32) {
        self.qps.wake(number);
    }

    /// Handles a BlueFlame write of a whole WQE, which need not be read from the ring.
    pub(super) fn blueflame(&mut self, number: u32, wqe: Box<[u8]>) {
        if let Some(qp) = self.qps.get_mut(number) {
            qp.queues.set_bf_wqe(wqe);
        }
        self.qps.wake(number);
    }

    /// Adds a queue pair to a multicast group.
    pub(crate) fn attach(&mut self, group: [u8; 16], number: u32) -> Result<(), EngineError> {
        let qp = self.qps.get(number).ok_or(EngineError::Missing)?;
        if !matches!(qp.queues.setup.service, Service::Datagram(None)) {
            return Err(EngineError::Invalid);
        }
        let members = self.qps.group(&group);
        if members.contains(&number) {
            return Ok(());
        }
        let full = members.is_empty() && self.qps.groups() >= limits::GROUPS;
        if full || members.len() >= limits::QPS_PER_GROUP {
            return Err(EngineError::Full);
        }
        self.qps.attach(group, number);
        Ok(())
    }

    /// Removes a queue pair from a multicast group.
    pub(crate) fn detach(&mut self, group: [u8; 16], number: u32) -> Result<(), EngineError> {
        if self.qps.detach(&group, number) { Ok(()) } else { Err(EngineError::Missing) }
    }
}
