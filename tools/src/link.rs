//! `bareverbs link`: ports, and software devices over network interfaces.

use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use bareverbs::device::{NodeType, PortPhysState, PortState};
use bareverbs::{Device, Error, Gid};
use bareverbs_netlink::{DeviceInfo, PortInfo, RdmaNetlink, RouteNetlink};
use serde::Serialize;

use crate::cli::device::{Link, LinkAction, LinkAdd, LinkName};
use crate::output;

/// Interval between checks of a new device.
const STEP: Duration = Duration::from_millis(20);

/// A port. The names are those of `rdma link show`.
#[derive(Debug, Serialize)]
struct Row {
    ifindex: u32,
    ifname: String,
    port: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    subnet_prefix: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    sm_lid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    lmc: Option<u8>,
    state: String,
    physical_state: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    netdev: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    netdev_index: Option<u32>,
}

/// `bareverbs link`.
pub(crate) fn run(options: &Link) -> Result<()> {
    match &options.action {
        None => show(None, options.json),
        Some(LinkAction::Show { link }) => show(link.as_ref(), options.json),
        Some(LinkAction::Add(add)) => create(add),
        Some(LinkAction::Del { name }) => Ok(RdmaNetlink::open()?.del_link(name)?),
    }
}

fn show(only: Option<&LinkName>, json: bool) -> Result<()> {
    let ports = ports(&mut RdmaNetlink::open()?, only)?;
    let rows: Vec<Row> = ports.into_iter().map(|(device, port)| Row::new(device, port)).collect();
    let text = match json {
        true => serde_json::to_string_pretty(&rows)? + "\n",
        false => rows.iter().map(Row::text).collect(),
    };
    Ok(output::write(&text)?)
}

/// The ports of the devices, or those that `only` names.
///
/// # Errors
/// Also if there is no such device or port.
pub(crate) fn ports(
    netlink: &mut RdmaNetlink,
    only: Option<&LinkName>,
) -> Result<Vec<(DeviceInfo, PortInfo)>> {
    let devices = netlink.devices()?;
    if let Some(only) = only
        && !devices.iter().any(|device| device.name == only.device)
    {
        let known = devices.into_iter().map(|device| device.name).collect();
        return Err(Error::UnknownDevice { name: only.device.clone(), known }.into());
    }
    let mut found = Vec::new();
    for device in devices {
        if only.is_some_and(|only| only.device != device.name) {
            continue;
        }
        let ports = netlink.ports(device.index)?;
        if let Some(port) = only.and_then(|only| only.port)
            && !ports.iter().any(|found| found.port == port)
        {
            let count = u8::try_from(ports.len()).unwrap_or(u8::MAX);
            return Err(Error::NoPort { device: device.name, port, count }.into());
        }
        let wanted = |port: &PortInfo| only.is_none_or(|only| only.matches(port.port));
        found.extend(ports.into_iter().filter(wanted).map(|port| (device.clone(), port)));
    }
    Ok(found)
}

/// The name of a port's state, as the kernel's headers have it.
pub(crate) fn state_name(state: PortState) -> String {
    state.name().map_or_else(|| state.0.to_string(), str::to_owned)
}

impl Row {
    fn new(device: DeviceInfo, port: PortInfo) -> Self {
        Self {
            ifindex: device.index,
            ifname: device.name,
            port: port.port.into(),
            subnet_prefix: port.subnet_prefix.map(groups),
            lid: port.lid,
            sm_lid: port.sm_lid,
            lmc: port.lmc,
            state: state_name(port.state),
            physical_state: match port.phys_state {
                // The driver doesn't report it.
                PortPhysState(0) => "NOP".to_owned(),
                state => state.name().map_or_else(|| state.0.to_string(), str::to_owned),
            },
            netdev: port.netdev_name,
            netdev_index: port.netdev_index,
        }
    }

    fn text(&self) -> String {
        let mut text = format!("link {}/{}", self.ifname, self.port);
        let mut put = |name: &str, value: Option<String>| {
            if let Some(value) = value {
                text += &format!(" {name} {value}");
            }
        };
        put("subnet_prefix", self.subnet_prefix.clone());
        put("lid", self.lid.map(|lid| lid.to_string()));
        put("sm_lid", self.sm_lid.map(|lid| lid.to_string()));
        put("lmc", self.lmc.map(|lmc| lmc.to_string()));
        put("state", Some(self.state.clone()));
        put("physical_state", Some(self.physical_state.clone()));
        put("netdev", self.netdev.clone());
        text + "\n"
    }
}

/// Four groups of hexadecimal digits.
fn groups(number: u64) -> String {
    let group = |shift: u32| (number >> shift) & 0xffff;
    format!("{:04x}:{:04x}:{:04x}:{:04x}", group(48), group(32), group(16), group(0))
}

fn create(add: &LinkAdd) -> Result<()> {
    if add.up || !add.address.is_empty() {
        let mut route = RouteNetlink::open()?;
        if add.up {
            route.set_up(&add.netdev)?;
        }
        for network in &add.address {
            route.add_address(&add.netdev, network.address, network.prefix)?;
        }
    }
    let mut netlink = RdmaNetlink::open()?;
    netlink.new_link(&add.name, &add.kind, &add.netdev)?;
    match add.wait {
        Some(seconds) => wait_until_usable(&mut netlink, add, Duration::try_from_secs_f64(seconds)?),
        None => Ok(()),
    }
}

/// Waits until a port of the device is active, its device node is there, and its GID table has the
/// new addresses, or any address. A work queue of the kernel fills the table. An iWARP device has no GIDs
/// of addresses.
fn wait_until_usable(netlink: &mut RdmaNetlink, add: &LinkAdd, limit: Duration) -> Result<()> {
    let wanted: Vec<Gid> = add.address.iter().map(|network| gid(network.address)).collect();
    let end = Instant::now() + limit;
    loop {
        let missing = match what_is_missing(netlink, &add.name, &wanted) {
            Ok(None) => return Ok(()),
            Ok(Some(missing)) => missing,
            Err(error) => format!("{error:#}"),
        };
        if Instant::now() >= end {
            bail!("{} was created, but is not usable after {} s: {missing}", add.name, limit.as_secs_f64());
        }
        sleep(STEP);
    }
}

fn what_is_missing(netlink: &mut RdmaNetlink, name: &str, wanted: &[Gid]) -> Result<Option<String>> {
    let only = LinkName { device: name.to_owned(), port: None };
    let states = ports(netlink, Some(&only))?;
    if !states.iter().any(|(_, port)| port.state == PortState::ACTIVE) {
        return Ok(Some("no port is ACTIVE; is the network interface up?".into()));
    }
    let device = Device::find(name)?;
    let table = device.open()?.gid_table()?;
    // The only GID of an iWARP device is made of the interface's MAC address.
    if device.node_type() == NodeType::RNIC {
        return Ok(None);
    }
    if table.is_empty() {
        return Ok(Some("its GID table is empty; has the network interface an address?".into()));
    }
    let missing = wanted.iter().find(|gid| !table.iter().any(|entry| entry.gid == **gid));
    Ok(missing.map(|gid| format!("its GID table lacks {gid}")))
}

fn gid(address: std::net::IpAddr) -> Gid {
    match address {
        std::net::IpAddr::V4(address) => address.into(),
        std::net::IpAddr::V6(address) => address.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> Row {
        Row {
            ifindex: 2,
            ifname: "rxe0".into(),
            port: 1,
            subnet_prefix: None,
            lid: None,
            sm_lid: None,
            lmc: None,
            state: "ACTIVE".into(),
            physical_state: "LINK_UP".into(),
            netdev: Some("eth0".into()),
            netdev_index: Some(3),
        }
    }

    #[test]
    fn port_prints_as_names_and_values() {
        assert_eq!(row().text(), "link rxe0/1 state ACTIVE physical_state LINK_UP netdev eth0\n");
        let ib = Row { subnet_prefix: Some(groups(0xfe80 << 48)), lid: Some(7), netdev: None, ..row() };
        assert_eq!(
            ib.text(),
            "link rxe0/1 subnet_prefix fe80:0000:0000:0000 lid 7 state ACTIVE physical_state LINK_UP\n"
        );
    }

    #[test]
    fn json_omits_what_the_port_does_not_have() {
        assert_eq!(
            serde_json::to_string(&row()).unwrap(),
            r#"{"ifindex":2,"ifname":"rxe0","port":1,"state":"ACTIVE","physical_state":"LINK_UP","netdev":"eth0","netdev_index":3}"#
        );
    }
}
