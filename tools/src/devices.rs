//! `bareverbs devices`.

use anyhow::Result;
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
