//! `bareverbs system`: settings of the kernel's RDMA core.

use anyhow::Result;
use bareverbs_netlink::{NetnsMode, RdmaNetlink, SystemInfo};
use serde::Serialize;

use crate::cli::device::{self, System, SystemAction, SystemSetting};
use crate::output;

/// The settings. The names are those of `rdma system show`.
#[derive(Debug, Serialize)]
struct Settings {
    netns: String,
    /// Absent if the kernel doesn't have it.
    #[serde(rename = "privileged-qkey", skip_serializing_if = "Option::is_none")]
    privileged_qkey: Option<bool>,
    monitor: bool,
    #[serde(rename = "copy-on-fork")]
    copy_on_fork: bool,
}

/// `bareverbs system`.
pub(crate) fn run(options: &System) -> Result<()> {
    let mut netlink = RdmaNetlink::open()?;
    match &options.action {
        None | Some(SystemAction::Show) => {
            let settings = Settings::from(netlink.system()?);
            let text = match options.json {
                true => serde_json::to_string_pretty(&settings)?,
                false => settings.text(),
            };
            output::line(&text)?;
        }
        Some(SystemAction::Set(SystemSetting::Netns { mode })) => netlink.set_netns_mode(match mode {
            device::NetnsMode::Exclusive => NetnsMode::Exclusive,
            device::NetnsMode::Shared => NetnsMode::Shared,
        })?,
        Some(SystemAction::Set(SystemSetting::PrivilegedQkey { switch })) => {
            netlink.set_privileged_qkey(switch.is_on())?;
        }
    }
    Ok(())
}

impl From<SystemInfo> for Settings {
    fn from(info: SystemInfo) -> Self {
        Self {
            netns: info.netns_mode.to_string(),
            privileged_qkey: info.privileged_qkey,
            monitor: info.monitor,
            copy_on_fork: info.copy_on_fork,
        }
    }
}

impl Settings {
    fn text(&self) -> String {
        let qkey = self
            .privileged_qkey
            .map_or_else(String::new, |on| format!(" privileged-qkey {}", output::on_off(on)));
        let [monitor, copy] = [self.monitor, self.copy_on_fork].map(output::on_off);
        format!("netns {}{qkey} monitor {monitor} copy-on-fork {copy}", self.netns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_print_as_text_and_as_json() {
        let mut settings =
            Settings { netns: "shared".into(), privileged_qkey: None, monitor: false, copy_on_fork: true };
        assert_eq!(settings.text(), "netns shared monitor off copy-on-fork on");
        settings.privileged_qkey = Some(true);
        assert_eq!(settings.text(), "netns shared privileged-qkey on monitor off copy-on-fork on");
        assert_eq!(
            serde_json::to_string(&settings).unwrap(),
            r#"{"netns":"shared","privileged-qkey":true,"monitor":false,"copy-on-fork":true}"#
        );
    }
}
