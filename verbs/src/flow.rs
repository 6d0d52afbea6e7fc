//! Flow steering: rules that direct Ethernet frames to a QP, and counters of their frames.

pub use crate::qp::flow::{EthernetMatch, FlowId, FlowRule, Ipv4Match, Ipv6Match, L4Match, PortMatch};
pub use crate::qp::flow_counters::{FlowCount, FlowCounters};
