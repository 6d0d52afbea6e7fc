//! `bareverbs dev`: names, network namespaces and settings of devices.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use bareverbs::Error;
use bareverbs_netlink::{DeviceInfo, RdmaNetlink};
use serde::Serialize;

use crate::cli::device::{Dev, DevAction, DevSetting};
use crate::output;

/// A device. The names are those of `rdma dev show`.
#[derive(Debug, Serialize)]
struct Row {
    ifindex: u32,
    ifname: String,
    node_type: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    protocol: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    fw: String,
    node_guid: String,
    sys_image_guid: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    parent: Option<String>,
    #[serde(rename = "adaptive-moderation", skip_serializing_if = "Option::is_none")]
    adaptive_moderation: Option<bool>,
}

/// `bareverbs dev`.
pub(crate) fn run(options: &Dev) -> Result<()> {
    match &options.action {
        None => show(None, options.json),
        Some(DevAction::Show { dev }) => show(dev.as_deref(), options.json),
        Some(DevAction::Set { dev, setting }) => set(dev, setting),
    }
}

fn show(only: Option<&str>, json: bool) -> Result<()> {
    let mut devices = RdmaNetlink::open()?.devices()?;
    if let Some(name) = only {
        let known = devices.iter().map(|device| device.name.clone()).collect();
        devices.retain(|device| device.name == name);
        if devices.is_empty() {
            return Err(Error::UnknownDevice { name: name.to_owned(), known }.into());
        }
    }
    let rows: Vec<Row> = devices.into_iter().map(Row::from).collect();
    let text = match json {
        true => serde_json::to_string_pretty(&rows)? + "\n",
        false => rows.iter().map(Row::text).collect(),
    };
    Ok(output::write(&text)?)
}

fn set(dev: &str, setting: &DevSetting) -> Result<()> {
    let mut netlink = RdmaNetlink::open()?;
    match setting {
        DevSetting::Name { name } => netlink.set_device_name(dev, name)?,
        DevSetting::Netns { netns } => {
            let path = netns_path(netns, Path::exists);
            let file = File::open(&path)
                .with_context(|| format!("cannot open network namespace {netns:?} ({})", path.display()))?;
            netlink.set_device_netns(dev, file)?;
        }
        DevSetting::AdaptiveModeration { switch } => {
            netlink.set_adaptive_moderation(dev, switch.is_on())?;
        }
    }
    Ok(())
}

/// The file of a network namespace: a path, a name in `/run/netns`, or the id of a process.
fn netns_path(netns: &str, exists: impl Fn(&Path) -> bool) -> PathBuf {
    if netns.contains('/') {
        return netns.into();
    }
    let named = Path::new("/run/netns").join(netns);
    match netns.parse::<u32>() {
        Ok(pid) if !exists(&named) => format!("/proc/{pid}/ns/net").into(),
        _ => named,
    }
}

impl From<DeviceInfo> for Row {
    fn from(device: DeviceInfo) -> Self {
        Self {
            ifindex: device.index,
            ifname: device.name,
            node_type: match device.node_type.0 {
                1 => "ca".into(),
                2 => "switch".into(),
                3 => "router".into(),
                4 => "rnic".into(),
                5 => "usnic".into(),
                6 => "usnic_udp".into(),
                7 => "unspecified".into(),
                number => number.to_string(),
            },
            protocol: device.protocol,
            fw: device.fw_ver,
            node_guid: device.node_guid.to_string(),
            sys_image_guid: device.sys_image_guid.to_string(),
            parent: device.parent,
            adaptive_moderation: device.adaptive_moderation,
        }
    }
}

impl Row {
    fn text(&self) -> String {
        let mut text = format!("{}: {}: node_type {}", self.ifindex, self.ifname, self.node_type);
        let mut put = |name: &str, value: &str| {
            if !value.is_empty() {
                text += &format!(" {name} {value}");
            }
        };
        put("protocol", &self.protocol);
        put("fw", &self.fw);
        put("node_guid", &self.node_guid);
        put("sys_image_guid", &self.sys_image_guid);
        put("parent", self.parent.as_deref().unwrap_or_default());
        put("adaptive-moderation", self.adaptive_moderation.map_or("", output::on_off));
        text + "\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_namespaces_are_paths_names_and_processes() {
        let path = |netns: &str| netns_path(netns, |path| path.ends_with("77")).display().to_string();
        assert_eq!(path("/proc/self/ns/net"), "/proc/self/ns/net");
        assert_eq!(path("./blue"), "./blue");
        assert_eq!(path("blue"), "/run/netns/blue");
        assert_eq!(path("4711"), "/proc/4711/ns/net");
        // A namespace may have a number for a name.
        assert_eq!(path("77"), "/run/netns/77");
    }

    #[test]
    fn device_prints_as_names_and_values() {
        let row = Row {
            ifindex: 0,
            ifname: "rxe0".into(),
            node_type: "ca".into(),
            protocol: "roce".into(),
            fw: String::new(),
            node_guid: "0250:00ff:fe00:0001".into(),
            sys_image_guid: "0250:00ff:fe00:0001".into(),
            parent: None,
            adaptive_moderation: Some(false),
        };
        assert_eq!(
            row.text(),
            "0: rxe0: node_type ca protocol roce node_guid 0250:00ff:fe00:0001 sys_image_guid \
             0250:00ff:fe00:0001 adaptive-moderation off\n"
        );
        assert_eq!(
            serde_json::to_string(&row).unwrap(),
            r#"{"ifindex":0,"ifname":"rxe0","node_type":"ca","protocol":"roce","node_guid":"0250:00ff:fe00:0001","sys_image_guid":"0250:00ff:fe00:0001","adaptive-moderation":false}"#
        );
    }
}
