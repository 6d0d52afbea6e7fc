//! Objects as rows of names and values. The names are those of `rdma resource show`.

use std::borrow::Cow;
use std::fmt;
use std::ops::RangeInclusive;

use bareverbs_netlink::{
    CmIdResource, ContextResource, CounterMode, CqResource, DriverDetail, DriverValue, MigState, MrResource,
    Owner, PdResource, PollContext, PortSpace, QpCounters, QpResource, QpType, SrqResource,
};
use serde::{Serialize, Serializer};

/// Connection states by number (`enum rdma_cm_state` in the kernel's cma_priv.h).
const CM_STATES: [&str; 12] = [
    "IDLE",
    "ADDR_QUERY",
    "ADDR_RESOLVED",
    "ROUTE_QUERY",
    "ROUTE_RESOLVED",
    "CONNECT",
    "DISCONNECT",
    "ADDR_BOUND",
    "LISTEN",
    "DEVICE_REMOVAL",
    "DESTROYING",
    "ADDRINFO_RESOLVED",
];

/// A value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Cell {
    Number(u64),
    /// A number that is printed in hexadecimal.
    Key(u32),
    Signed(i64),
    Text(String),
    /// The name of a kernel module, printed in brackets.
    Kernel(String),
    /// Numbers, in ranges.
    Ranges(Vec<RangeInclusive<u32>>),
}

/// Names and values, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Row(pub(crate) Vec<(Cow<'static, str>, Cell)>);

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Key(key) => write!(f, "{key:#x}"),
            Self::Signed(number) => write!(f, "{number}"),
            Self::Text(text) => f.write_str(text),
            Self::Kernel(name) => write!(f, "[{name}]"),
            Self::Ranges(ranges) => {
                for (place, range) in ranges.iter().enumerate() {
                    f.write_str(if place == 0 { "" } else { "," })?;
                    match (range.start(), range.end()) {
                        (first, last) if first == last => write!(f, "{first}")?,
                        (first, last) => write!(f, "{first}-{last}")?,
                    }
                }
                Ok(())
            }
        }
    }
}

impl Serialize for Cell {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Number(number) => serializer.serialize_u64(*number),
            Self::Key(key) => serializer.serialize_u32(*key),
            Self::Signed(number) => serializer.serialize_i64(*number),
            Self::Text(text) | Self::Kernel(text) => serializer.serialize_str(text),
            Self::Ranges(ranges) => serializer.collect_seq(ranges.iter().cloned().flatten()),
        }
    }
}

impl Serialize for Row {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fields: Vec<_> = self.0.iter().map(|(name, value)| format!("{name} {value}")).collect();
        f.write_str(&fields.join(" "))
    }
}

impl Row {
    fn put(&mut self, name: &'static str, value: Cell) -> &mut Self {
        self.0.push((name.into(), value));
        self
    }

    fn number(&mut self, name: &'static str, value: impl Into<Option<u32>>) -> &mut Self {
        self.long(name, value.into().map(u64::from))
    }

    fn long(&mut self, name: &'static str, value: impl Into<Option<u64>>) -> &mut Self {
        value.into().into_iter().for_each(|value| _ = self.put(name, Cell::Number(value)));
        self
    }

    fn key(&mut self, name: &'static str, value: Option<u32>) -> &mut Self {
        value.into_iter().for_each(|value| _ = self.put(name, Cell::Key(value)));
        self
    }

    fn text(&mut self, name: &'static str, value: Option<String>) -> &mut Self {
        value.into_iter().for_each(|value| _ = self.put(name, Cell::Text(value)));
        self
    }

    fn owner(&mut self, owner: &Owner) -> &mut Self {
        match owner {
            Owner::Process(pid) => {
                self.number("pid", *pid).text("comm", comm(*pid));
            }
            Owner::Kernel(name) => {
                self.put("comm", Cell::Kernel(name.clone()));
            }
            _ => {}
        }
        self
    }

    fn driver(&mut self, details: &[DriverDetail]) -> &mut Self {
        for detail in details {
            let value = match &detail.value {
                DriverValue::Unsigned(number) if detail.hex => Cell::Text(format!("{number:#x}")),
                DriverValue::Unsigned(number) => Cell::Number(*number),
                DriverValue::Signed(number) => Cell::Signed(*number),
                DriverValue::Text(text) => Cell::Text(text.clone()),
                _ => continue,
            };
            self.0.push((format!("drv_{}", detail.name).into(), value));
        }
        self
    }
}

/// The name of a process's program; `None` if the process has ended.
fn comm(pid: u32) -> Option<String> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(text.trim_end().to_owned())
}

/// An object type that is printed as a row.
pub(super) trait WqeDisplay {
    fn fill(&self, row: &mut Row);
}

pub(super) fn from_objects<T: WqeDisplay>(list: &[T]) -> Vec<Row> {
    let row = |object: &T| {
        let mut row = Row::default();
        object.fill(&mut row);
        row
    };
    list.iter().map(row).collect()
}

/// The name of a value, or its number if `name` has no name for it.
fn named<T: Copy + Into<u64>>(value: Option<T>, name: impl Fn(T) -> Option<&'static str>) -> Option<String> {
    value.map(|value| name(value).map_or_else(|| value.into().to_string(), str::to_owned))
}

fn qp_type(value: Option<QpType>) -> Option<String> {
    named(value, QpType::name)
}

/// The mode that binds queue pairs to counters.
pub(crate) fn mode(value: Option<CounterMode>) -> Option<String> {
    named(value, CounterMode::name).map(|name| name.to_lowercase())
}

impl WqeDisplay for ContextResource {
    fn fill(&self, row: &mut Row) {
        row.number("ctxn", self.number).owner(&self.owner);
    }
}

impl WqeDisplay for PdResource {
    fn fill(&self, row: &mut Row) {
        row.key("local_dma_lkey", self.local_dma_lkey)
            .key("unsafe_global_rkey", self.unsafe_global_rkey)
            .long("users", self.users)
            .number("pdn", self.number)
            .number("ctxn", self.context)
            .owner(&self.owner);
    }
}

impl WqeDisplay for MrResource {
    fn fill(&self, row: &mut Row) {
        row.number("mrn", self.number)
            .key("rkey", self.rkey)
            .key("lkey", self.lkey)
            .long("iova", self.iova)
            .long("mrlen", self.length)
            .number("pdn", self.pd)
            .owner(&self.owner)
            .driver(&self.driver);
    }
}

impl WqeDisplay for CqResource {
    fn fill(&self, row: &mut Row) {
        row.number("cqn", self.number)
            .number("cqe", self.cqe)
            .long("users", self.users)
            .text("poll-ctx", named(self.poll_context, PollContext::name))
            .text(
                "adaptive-moderation",
                self.adaptive_moderation.map(|on| if on { "on" } else { "off" }.into()),
            )
            .number("ctxn", self.context)
            .owner(&self.owner)
            .driver(&self.driver);
    }
}

impl WqeDisplay for QpResource {
    fn fill(&self, row: &mut Row) {
        row.number("port", self.port.map(u32::from))
            .number("lqpn", self.qp_num)
            .number("pdn", self.pd)
            .number("rqpn", self.remote_qp_num)
            .text("type", qp_type(self.qp_type))
            .text("subtype", self.subtype.clone())
            .text("state", named(self.state, bareverbs::qp::QpState::name))
            .number("rq-psn", self.rq_psn)
            .number("sq-psn", self.sq_psn)
            .text("path-mig-state", named(self.path_mig_state, MigState::name))
            .owner(&self.owner)
            .driver(&self.driver);
    }
}

impl WqeDisplay for SrqResource {
    fn fill(&self, row: &mut Row) {
        row.number("srqn", self.number)
            .text("type", named(self.srq_type, bareverbs_netlink::SrqType::name))
            .put("lqpn", Cell::Ranges(self.queue_pairs.clone()))
            .number("pdn", self.pd)
            .number("cqn", self.cq)
            .owner(&self.owner)
            .driver(&self.driver);
    }
}

impl WqeDisplay for CmIdResource {
    fn fill(&self, row: &mut Row) {
        let state = self.state.map(|state| {
            CM_STATES.get(usize::from(state)).map_or_else(|| state.to_string(), |name| (*name).to_owned())
        });
        row.number("cm-idn", self.number)
            .number("port", self.port.map(u32::from))
            .number("lqpn", self.qp_num)
            .text("qp-type", qp_type(self.qp_type))
            .text("state", state)
            .text("ps", named(self.port_space, PortSpace::name))
            .text("src-addr", self.source.map(|address| address.to_string()))
            .text("dst-addr", self.destination.map(|address| address.to_string()))
            .owner(&self.owner)
            .driver(&self.driver);
    }
}

impl WqeDisplay for QpCounters {
    fn fill(&self, row: &mut Row) {
        row.number("port", self.port.map(u32::from))
            .number("cntn", self.number)
            .text("mode", mode(self.mode))
            .text("qp-type", qp_type(self.qp_type))
            .put("lqpn", Cell::Ranges(self.queue_pairs.clone()))
            .owner(&self.owner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_print_as_text_and_as_json_maps() {
        let mut row = Row::default();
        row.number("lqpn", 17).number("rqpn", None).key("rkey", Some(0x2a3)).long("mrlen", 1 << 40);
        row.owner(&Owner::Kernel("ib_core".into()));
        row.put("lqpns", Cell::Ranges(vec![17..=17, 19..=21]));
        assert_eq!(row.to_string(), "lqpn 17 rkey 0x2a3 mrlen 1099511627776 comm [ib_core] lqpns 17,19-21");
        assert_eq!(
            serde_json::to_string(&row).unwrap(),
            r#"{"lqpn":17,"rkey":675,"mrlen":1099511627776,"comm":"ib_core","lqpns":[17,19,20,21]}"#
        );
    }

    #[test]
    fn comm_is_shown_for_live_processes_only() {
        let mut row = Row::default();
        row.owner(&Owner::Process(std::process::id()));
        assert_eq!(row.0.len(), 2, "{row}");
        let mut gone = Row::default();
        gone.owner(&Owner::Process(u32::MAX)).owner(&Owner::Unknown);
        assert_eq!(gone.to_string(), format!("pid {}", u32::MAX));
    }

    #[test]
    fn values_without_a_name_print_as_numbers() {
        assert_eq!(qp_type(Some(QpType::GSI)).unwrap(), "GSI");
        assert_eq!(qp_type(Some(QpType(77))).unwrap(), "77");
        assert_eq!(mode(Some(CounterMode::AUTO)).unwrap(), "auto");
        assert_eq!(qp_type(None), None);
    }
}
