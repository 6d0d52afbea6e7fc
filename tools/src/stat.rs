//! `bareverbs stat`: counters of ports, QPs and MRs.

use std::fmt::Write as _;

use anyhow::{Result, bail};
use bareverbs::PortNum;
use bareverbs_netlink::{Counter, CounterBinding, CounterMask, CounterMode, RdmaNetlink};
use serde::{Serialize, Serializer};

use crate::cli::device::LinkName;
use crate::cli::stat::{Criteria, Mode, QpAction, Scope, Stat, StatAction};
use crate::resources::rows::{Cell, Row};
use crate::resources::{bound_counters, counter_row};
use crate::{link, output};

/// The counters of a port.
#[derive(Debug, Serialize)]
struct Port {
    ifname: String,
    port: u32,
    counters: Row,
}

/// The optional counters of a port.
#[derive(Debug, Serialize)]
struct Optional {
    ifname: String,
    port: u32,
    #[serde(rename = "optional-counters")]
    counters: Vec<String>,
}

/// How the QPs of a port are bound to counters.
#[derive(Debug, Serialize)]
struct Binding {
    ifname: String,
    port: u32,
    #[serde(serialize_with = "mode_name")]
    mode: CounterMode,
    /// What the QPs of a counter have in common; automatic mode only.
    criteria: Vec<&'static str>,
    /// Linux 7.2 and later.
    #[serde(rename = "optional-counters", skip_serializing_if = "Option::is_none")]
    optional_counters: Option<bool>,
}

/// `bareverbs stat`.
pub(crate) fn run(options: &Stat) -> Result<()> {
    let mut netlink = RdmaNetlink::open()?;
    let json = options.json;
    match &options.action {
        None => show(&mut netlink, None, json),
        Some(StatAction::Show { scope }) => show(&mut netlink, Scope::link(scope), json),
        Some(StatAction::Mode { which }) => match which {
            None => show_optional(&mut netlink, None, false, json),
            Some(Mode::Link { link }) => show_optional(&mut netlink, Some(link), false, json),
            Some(Mode::Supported { scope }) => show_optional(&mut netlink, Scope::link(scope), true, json),
        },
        Some(StatAction::Set { link, counters }) => {
            let names: Vec<&str> = counters.iter().map(String::as_str).collect();
            Ok(netlink.set_optional_counters(&link.link.device, port(&link.link)?, &names)?)
        }
        Some(StatAction::Unset { link }) => {
            Ok(netlink.set_optional_counters(&link.link.device, port(&link.link)?, &[])?)
        }
        Some(StatAction::Qp { action }) => qp(&mut netlink, action.as_ref(), json),
        Some(StatAction::Mr) => show_mrs(&mut netlink, json),
    }
}

/// The port that a change applies to.
fn port(link: &LinkName) -> Result<PortNum> {
    match link.port {
        Some(port) => Ok(port),
        None => bail!("the port is missing: name it as {}/1", link.device),
    }
}

/// Prints rows as JSON, or their texts.
fn print<T: Serialize>(rows: &[T], json: bool, text: impl Fn(&T) -> String) -> Result<()> {
    let text = match json {
        true => serde_json::to_string_pretty(rows)? + "\n",
        false => rows.iter().map(text).collect(),
    };
    Ok(output::write(&text)?)
}

fn show(netlink: &mut RdmaNetlink, only: Option<&LinkName>, json: bool) -> Result<()> {
    let mut rows = Vec::new();
    for (device, port) in link::ports(netlink, only)? {
        let counters = netlink.port_counters(&device.name, port.port)?.unwrap_or_default();
        rows.push(Port { ifname: device.name, port: port.port.into(), counters: counter_row(&counters) });
    }
    print(&rows, json, |row| {
        let mut text = format!("link {}/{}\n", row.ifname, row.port);
        for (name, value) in &row.counters.0 {
            let _ = writeln!(text, "    {name:<28} {value}");
        }
        text
    })
}

fn show_optional(
    netlink: &mut RdmaNetlink,
    only: Option<&LinkName>,
    supported: bool,
    json: bool,
) -> Result<()> {
    let mut rows = Vec::new();
    for (device, port) in link::ports(netlink, only)? {
        let status = netlink.counter_status(&device.name, port.port)?.unwrap_or_default();
        let shown = status.into_iter().filter(|counter| match counter.enabled {
            Some(enabled) => enabled || supported,
            None => false,
        });
        let counters = shown.map(|counter| counter.name).collect();
        rows.push(Optional { ifname: device.name, port: port.port.into(), counters });
    }
    print(&rows, json, |row| {
        let list = if row.counters.is_empty() { "none".into() } else { row.counters.join(",") };
        format!("link {}/{} optional-counters {list}\n", row.ifname, row.port)
    })
}

fn show_mrs(netlink: &mut RdmaNetlink, json: bool) -> Result<()> {
    let mut rows = Vec::new();
    for device in netlink.devices()? {
        for mr in netlink.mr_counters(&device.name)? {
            rows.extend(mr_row(&device.name, mr.number, &mr.counters));
        }
    }
    print(&rows, json, |row| format!("{row}\n"))
}

/// `None` if the driver has no counters of MRs.
fn mr_row(device: &str, number: u32, counters: &[Counter]) -> Option<Row> {
    let mut row = named(device);
    row.0.push(("mrn".into(), Cell::Number(number.into())));
    row.0.extend(counter_row(counters).0);
    (!counters.is_empty()).then_some(row)
}

/// A row that begins with the name of the device.
fn named(device: &str) -> Row {
    Row(vec![("ifname".into(), Cell::Text(device.to_owned()))])
}

fn qp(netlink: &mut RdmaNetlink, action: Option<&QpAction>, json: bool) -> Result<()> {
    match action {
        None => show_qps(netlink, None, json),
        Some(QpAction::Show { scope }) => show_qps(netlink, Scope::link(scope), json),
        Some(QpAction::Mode { scope }) => show_modes(netlink, Scope::link(scope), json),
        Some(QpAction::Set { link, criteria, on, optional_counters, .. }) => {
            let mask = mask(*criteria, on.is_some())?;
            let optional = optional_counters.map(|switch| switch.is_on());
            Ok(netlink.set_counter_auto(&link.device, port(link)?, mask, optional)?)
        }
        Some(QpAction::Bind { port: on, qp_num, counter, .. }) => {
            let counter = netlink.bind_counter(&on.link.device, port(&on.link)?, *qp_num, *counter)?;
            let text = match json {
                true => serde_json::to_string(&serde_json::json!({ "cntn": counter }))?,
                false => format!("cntn {counter}"),
            };
            Ok(output::line(&text)?)
        }
        Some(QpAction::Unbind { port: on, counter, qp_num, .. }) => {
            let (device, port) = (&on.link.device, port(&on.link)?);
            let qps = match qp_num {
                Some(qp_num) => vec![*qp_num],
                None => qps_of(netlink, device, *counter)?,
            };
            for qp_num in qps {
                netlink.unbind_counter(device, port, qp_num, *counter)?;
            }
            Ok(())
        }
    }
}

/// The criteria as the kernel's mask.
fn mask(criteria: Criteria, on: bool) -> Result<CounterMask> {
    match (criteria, on) {
        (Criteria::Common(mask), true) => Ok(mask),
        (Criteria::Off, false) => Ok(CounterMask::empty()),
        (Criteria::Common(_), false) => bail!("write `on` after the criteria, or `auto off`"),
        (Criteria::Off, true) => bail!("`off` stands alone: write `auto off`"),
    }
}

/// The QPs of a counter.
fn qps_of(netlink: &mut RdmaNetlink, device: &str, counter: u32) -> Result<Vec<u32>> {
    let sets = netlink.qp_counters(device)?;
    match sets.into_iter().find(|set| set.number == counter) {
        Some(set) => Ok(set.queue_pairs.into_iter().flatten().collect()),
        None => bail!("{device} has no QP counter {counter}"),
    }
}

fn show_qps(netlink: &mut RdmaNetlink, only: Option<&LinkName>, json: bool) -> Result<()> {
    let mut names: Vec<String> =
        link::ports(netlink, only)?.into_iter().map(|(device, _)| device.name).collect();
    names.dedup();
    let mut rows = Vec::new();
    for name in names {
        let mut sets = netlink.qp_counters(&name)?;
        sets.retain(|set| only.is_none_or(|only| set.port.is_some_and(|port| only.matches(port))));
        rows.extend(bound_counters(&sets).into_iter().map(|set| {
            let mut row = named(&name);
            row.0.extend(set.0);
            row
        }));
    }
    print(&rows, json, |row| format!("{row}\n"))
}

fn show_modes(netlink: &mut RdmaNetlink, only: Option<&LinkName>, json: bool) -> Result<()> {
    let mut rows = Vec::new();
    for (device, port) in link::ports(netlink, only)? {
        if let Some(binding) = netlink.counter_binding(&device.name, port.port)? {
            rows.push(Binding::new(device.name, port.port.into(), &binding));
        }
    }
    print(&rows, json, Binding::text)
}

fn mode_name<S: Serializer>(mode: &CounterMode, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&crate::resources::rows::mode(Some(*mode)).unwrap_or_default())
}

impl Binding {
    fn new(ifname: String, port: u32, binding: &CounterBinding) -> Self {
        let mode = binding.mode.unwrap_or(CounterMode::NONE);
        let mask = binding.shared_by.filter(|_| mode == CounterMode::AUTO).unwrap_or_default();
        let criteria = [(CounterMask::QP_TYPE, "type"), (CounterMask::PID, "pid")];
        let criteria =
            criteria.iter().filter(|(bit, _)| mask.contains(*bit)).map(|(_, name)| *name).collect();
        Self { ifname, port, mode, criteria, optional_counters: binding.with_optional }
    }

    fn text(&self) -> String {
        let mut text = format!("link {}/{} mode ", self.ifname, self.port);
        match (self.mode, &self.criteria[..]) {
            (CounterMode::AUTO, criteria @ [_, ..]) => text += &format!("qp auto {} on", criteria.join(",")),
            (CounterMode::MANUAL, _) => text += "qp manual",
            _ => text += "qp auto off",
        }
        if let Some(on) = self.optional_counters {
            text += &format!(" optional-counters {}", output::on_off(on));
        }
        text + "\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn criteria_need_on_and_off_stands_alone() {
        let mask = |text: &str, on| mask(text.parse().unwrap(), on);
        assert_eq!(mask("type,pid", true).unwrap(), CounterMask::QP_TYPE | CounterMask::PID);
        assert_eq!(mask("type", true).unwrap(), CounterMask::QP_TYPE);
        assert_eq!(mask("off", false).unwrap(), CounterMask::empty());
        mask("type", false).unwrap_err();
        mask("off", true).unwrap_err();
        "off,pid".parse::<Criteria>().unwrap_err();
    }

    #[test]
    fn binding_prints_as_text_and_as_json() {
        let binding = |mode, criteria: &[&'static str], optional_counters| Binding {
            ifname: "mlx5_0".into(),
            port: 1,
            mode,
            criteria: criteria.to_vec(),
            optional_counters,
        };
        let auto = binding(CounterMode::AUTO, &["type", "pid"], Some(true));
        assert_eq!(auto.text(), "link mlx5_0/1 mode qp auto type,pid on optional-counters on\n");
        assert_eq!(
            serde_json::to_string(&auto).unwrap(),
            r#"{"ifname":"mlx5_0","port":1,"mode":"auto","criteria":["type","pid"],"optional-counters":true}"#
        );
        assert_eq!(binding(CounterMode::NONE, &[], None).text(), "link mlx5_0/1 mode qp auto off\n");
        assert_eq!(binding(CounterMode::MANUAL, &[], None).text(), "link mlx5_0/1 mode qp manual\n");
    }

    #[test]
    fn mrs_without_counters_have_no_row() {
        assert!(mr_row("mlx5_0", 3, &[]).is_none());
    }

    #[test]
    fn changes_need_a_port() {
        assert_eq!(port(&"rxe0/1".parse().unwrap()).unwrap(), PortNum(1));
        let missing = port(&"rxe0".parse().unwrap()).unwrap_err();
        assert_eq!(missing.to_string(), "the port is missing: name it as rxe0/1");
    }
}
