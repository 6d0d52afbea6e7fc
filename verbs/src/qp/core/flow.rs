//! Flows that steer packets to the QP.

use bareverbs_provider::traits::Provider;

use super::QpCore;
use crate::error::Result;
use crate::qp::flow::{FlowId, FlowRule};
use crate::qp::flow_counters::FlowCounters;

impl<P: Provider> QpCore<P> {
    /// As [`Qp::create_flow`](crate::qp::Qp::create_flow).
    ///
    /// # Errors
    /// As for [`Qp::create_flow`](crate::qp::Qp::create_flow).
    pub fn create_flow(&mut self, rule: &FlowRule<'_>) -> Result<FlowId> {
        self.flows.create(self.pd.context(), self.kernel.handle, rule, None)
    }

    /// As [`Qp::create_counted_flow`](crate::qp::Qp::create_counted_flow).
    ///
    /// # Errors
    /// As for [`Qp::create_counted_flow`](crate::qp::Qp::create_counted_flow).
    pub fn create_counted_flow(&mut self, rule: &FlowRule<'_>, counters: &FlowCounters) -> Result<FlowId> {
        self.flows.create(self.pd.context(), self.kernel.handle, rule, Some(counters))
    }

    /// As [`Qp::destroy_flow`](crate::qp::Qp::destroy_flow).
    ///
    /// # Errors
    /// As for [`Qp::destroy_flow`](crate::qp::Qp::destroy_flow).
    pub fn destroy_flow(&mut self, flow: FlowId) -> Result<()> {
        self.flows.destroy(self.pd.context(), flow)
    }
}
