//! `bareverbs devices`, and the device that a command uses.

use anyhow::Result;
use bareverbs::device::PortState;
use bareverbs::{Context, Device};
use serde::Serialize;

use crate::cli::Devices;
use crate::output;

/// A device in the list.
#[derive(Debug, Serialize)]
struct Row {
    name: String,
    /// 16 hexadecimal digits, as in the table.
    node_guid: String,
}

/// `bareverbs devices`.
pub(crate) fn list(options: &Devices) -> Result<()> {
    let rows: Vec<Row> = bareverbs::devices()?
        .iter()
        .map(|device| Row {
            name: device.name().into(),
            node_guid: format!("{:016x}", u64::from_be_bytes(device.node_guid().0)),
        })
        .collect();
    let text = if options.json { serde_json::to_string_pretty(&rows)? } else { table(&rows) };
    Ok(output::line(&text)?)
}

fn table(rows: &[Row]) -> String {
    let mut text = format!("    {:<16}\t   node GUID\n    {:<16}\t----------------", "device", "------");
    for Row { name, node_guid } in rows {
        text += &format!("\n    {name:<16}\t{node_guid}");
    }
    text
}

/// Opens the device named `name`. Without a name, it opens the first device whose port is active,
/// or the first device that can be opened if the port of none is active.
pub(crate) fn open(name: Option<&str>, port: u8) -> bareverbs::Result<Context> {
    if let Some(name) = name {
        return Device::find(name)?.open();
    }
    let is_active =
        |context: &Context| context.query_port(port).is_ok_and(|port| port.state == PortState::ACTIVE);
    let devices = bareverbs::devices()?;
    let active = devices.iter().filter_map(|device| device.open().ok()).find(is_active);
    active.map_or_else(Context::open_first, Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn table_matches_ibv_devices() {
        let rows = [Row { name: "rxe0".into(), node_guid: "b04a90fffe5d1c63".into() }];
        assert_eq!(
            table(&rows),
            "    device          \t   node GUID\n    ------          \t----------------\n    rxe0            \tb04a90fffe5d1c63"
        );
    }
}
