//! Flow steering: rules that direct Ethernet frames to a QP, and counters of their frames.

pub use crate::qp::flow::{
    EthernetMatch, FlowAttrType, FlowEthFilter, FlowFlags, FlowGreFilter, FlowId, FlowIpv4Filter,
    FlowIpv6Filter, FlowMplsFilter, FlowRule, FlowSpecEspFilter, FlowTcpUdpFilter, FlowTunnelFilter, Header,
    Ipv4Match, Ipv6Match, L4Match, Layer, Masked, PortMatch,
};
pub use crate::qp::flow_counters::{FlowCount, FlowCounters};
