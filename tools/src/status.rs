//! `bareverbs status`: one line for each port.

use std::path::Path;

use anyhow::Result;
use bareverbs::Device;
use bareverbs::device::{DriverId, PortAttr};
use bareverbs_netlink::{DeviceInfo, PortInfo, RdmaNetlink};
use serde::Serialize;

use crate::cli::device::Status;
use crate::{link, output};

/// A port. A missing value is not known: the device can't be opened, or the port has none.
#[derive(Debug, Serialize)]
struct Row {
    device: String,
    port: u32,
    state: String,
    netdev: Option<String>,
    /// The default GID.
    gid: Option<String>,
    gid_index: Option<u8>,
    /// The signalling rate in Gbit/s.
    rate: Option<f64>,
    /// The active MTU in bytes.
    mtu: Option<u32>,
    driver: Option<String>,
}

const HEADINGS: [&str; 8] = ["DEVICE/PORT", "STATE", "NETDEV", "GID", "INDEX", "RATE", "MTU", "DRIVER"];

/// `bareverbs status`.
pub(crate) fn show(options: &Status) -> Result<()> {
    let mut netlink = RdmaNetlink::open()?;
    let ports = link::ports(&mut netlink, options.link.as_ref())?;
    let devices = bareverbs::devices()?;
    let mut opened: Option<(u32, Option<bareverbs::Context>)> = None;
    let mut rows = Vec::new();
    for (info, port) in ports {
        // Ports of a device are neighbours in the list.
        if opened.as_ref().is_none_or(|(index, _)| *index != info.index) {
            let device = devices.iter().find(|device| device.index() == Some(info.index));
            opened = Some((info.index, device.and_then(|device| device.open().ok())));
        }
        let context = opened.as_ref().and_then(|(_, context)| context.as_ref());
        let device = devices.iter().find(|device| device.index() == Some(info.index));
        rows.push(Row::new(&info, port, device, context));
    }
    let text = if options.json { serde_json::to_string_pretty(&rows)? + "\n" } else { table(&rows) };
    Ok(output::write(&text)?)
}

impl Row {
    fn new(
        info: &DeviceInfo,
        port: PortInfo,
        device: Option<&Device>,
        context: Option<&bareverbs::Context>,
    ) -> Self {
        let open = context.map(|context| (context, port.port));
        let attr = open.and_then(|(context, port)| context.query_port(port).ok());
        let gid = open.and_then(|(context, port)| context.default_gid(port).ok());
        let driver = device.and_then(Device::driver_id).and_then(DriverId::name).map(str::to_lowercase);
        Self {
            device: info.name.clone(),
            port: port.port.into(),
            state: link::state_name(port.state),
            netdev: port.netdev_name,
            gid: gid.as_ref().map(|gid| gid.gid.to_string()),
            gid_index: gid.as_ref().map(|gid| gid.index.into()),
            rate: attr.as_ref().and_then(rate),
            mtu: attr.as_ref().map(|attr| attr.active_mtu.bytes()),
            driver: driver.or_else(|| driver_of_sysfs(&info.name)),
        }
    }

    fn cells(&self) -> [String; 8] {
        let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".into());
        [
            format!("{}/{}", self.device, self.port),
            self.state.clone(),
            or_dash(self.netdev.clone()),
            or_dash(self.gid.clone()),
            or_dash(self.gid_index.map(|index| index.to_string())),
            or_dash(self.rate.map(|rate| format!("{rate} Gbit/s"))),
            or_dash(self.mtu.map(|mtu| mtu.to_string())),
            or_dash(self.driver.clone()),
        ]
    }
}

/// The rate of the port: the lanes times the nominal speed of a lane, as in
/// `/sys/class/infiniband/DEV/ports/PORT/rate`.
pub(crate) fn rate(attr: &PortAttr) -> Option<f64> {
    let lanes = match attr.active_width.0 {
        1 => 1,
        16 => 2,
        2 => 4,
        4 => 8,
        8 => 12,
        _ => return None,
    };
    let speed = match attr.active_speed.0 {
        1 => 2.5,
        2 => 5.0,
        4 | 8 => 10.0,
        16 => 14.0,
        32 => 25.0,
        64 => 50.0,
        128 => 100.0,
        256 => 200.0,
        _ => return None,
    };
    Some(f64::from(lanes) * speed)
}

/// The driver of the device below, which a software device doesn't have.
fn driver_of_sysfs(device: &str) -> Option<String> {
    let path = Path::new("/sys/class/infiniband").join(device).join("device/driver");
    Some(std::fs::read_link(path).ok()?.file_name()?.to_string_lossy().into_owned())
}

fn table(rows: &[Row]) -> String {
    let mut lines = vec![HEADINGS.map(str::to_owned)];
    lines.extend(rows.iter().map(Row::cells));
    let mut widths = [0; 8];
    for line in &lines {
        for (width, cell) in widths.iter_mut().zip(line) {
            *width = cell.len().max(*width);
        }
    }
    let mut text = String::new();
    for line in &lines {
        let cells: Vec<_> = line.iter().zip(widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
        text += cells.join("  ").trim_end();
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row() -> Row {
        Row {
            device: "rxe0".into(),
            port: 1,
            state: "ACTIVE".into(),
            netdev: Some("eth0".into()),
            gid: Some("::ffff:10.1.0.1".into()),
            gid_index: Some(1),
            rate: Some(2.5),
            mtu: Some(1024),
            driver: Some("rxe".into()),
        }
    }

    #[test]
    fn ports_are_lines_of_a_table() {
        let closed = Row { gid: None, gid_index: None, rate: None, mtu: None, state: "DOWN".into(), ..row() };
        assert_eq!(
            table(&[row(), closed]),
            "DEVICE/PORT  STATE   NETDEV  GID              INDEX  RATE        MTU   DRIVER\n\
             rxe0/1       ACTIVE  eth0    ::ffff:10.1.0.1  1      2.5 Gbit/s  1024  rxe\n\
             rxe0/1       DOWN    eth0    -                -      -           -     rxe\n"
        );
    }

    #[test]
    fn json_has_every_field() {
        assert_eq!(
            serde_json::to_string(&Row { netdev: None, ..row() }).unwrap(),
            r#"{"device":"rxe0","port":1,"state":"ACTIVE","netdev":null,"gid":"::ffff:10.1.0.1","gid_index":1,"rate":2.5,"mtu":1024,"driver":"rxe"}"#
        );
    }
}
