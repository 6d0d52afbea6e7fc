//! System-wide settings of the kernel's RDMA core.

use std::fmt;

use bareverbs_uapi::netlink::{Attributes, Malformed, MessageFlags};
use bareverbs_uapi::nldev::{Attribute, Command};
use rustix::io::Errno;

use crate::attrs::FromAttribute;
use crate::error::with_hint;
use crate::{Error, Result};
use crate::{RdmaNetlink, number8};

/// Visibility of devices in network namespaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NetnsMode {
    /// A device is visible in its own network namespace only.
    Exclusive,
    /// A device is visible in all network namespaces.
    Shared,
}

/// System-wide settings of the kernel's RDMA core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SystemInfo {
    /// Visibility of devices in network namespaces.
    #[doc(alias = "RDMA_NLDEV_SYS_ATTR_NETNS_MODE")]
    pub netns_mode: NetnsMode,
    /// Whether a forked child gets copies of pinned pages. If so, the parent and the device
    /// continue to share theirs.
    #[doc(alias = "ibv_fork_init")]
    #[doc(alias = "ibv_is_fork_initialized")]
    #[doc(alias = "rdma system set copy-on-fork")]
    pub copy_on_fork: bool,
    /// Whether unprivileged processes may set Q_Keys with the highest bit set; `None` if the kernel
    /// doesn't have the setting.
    #[doc(alias = "RDMA_NLDEV_SYS_ATTR_PRIVILEGED_QKEY_MODE")]
    pub privileged_qkey: Option<bool>,
    /// Whether the kernel notifies of devices that come, go and change ([`Events`](super::Events)).
    /// Linux 6.12 and later.
    #[doc(alias = "RDMA_NLDEV_SYS_ATTR_MONITOR_MODE")]
    pub monitor: bool,
}

impl RdmaNetlink {
    /// System-wide settings of the kernel's RDMA core.
    ///
    /// # Errors
    /// [`Error::Kernel`] if the kernel refuses the request;
    /// [`Error::Malformed`] if its response is malformed.
    pub fn system(&mut self) -> Result<SystemInfo> {
        let mut info = SystemInfo::default();
        self.request(
            "querying the system settings",
            Command::SYS_GET,
            MessageFlags::empty(),
            |_| {},
            |answer| {
                info = SystemInfo::read(answer)?;
                Ok(())
            },
        )?;
        Ok(info)
    }

    /// Sets the visibility of devices in network namespaces, system-wide.
    ///
    /// # Errors
    /// [`Error::Kernel`] with `EPERM` without `CAP_NET_ADMIN` in the initial user
    /// namespace, with `EBUSY` while other network namespaces than the initial one exist.
    #[doc(alias = "rdma system set netns")]
    #[doc(alias = "RDMA_NLDEV_CMD_SYS_SET")]
    pub fn set_netns_mode(&mut self, mode: NetnsMode) -> Result<()> {
        let set = self.change(
            &format!("setting the mode of network namespaces to {mode}"),
            Command::SYS_SET,
            |request| {
                request.put_u8(Attribute::SYS_NETNS_MODE.0, (mode == NetnsMode::Shared).into());
            },
        );
        with_hint(set, |errno| {
            (errno == Errno::BUSY)
                .then_some("it can change only while there is no network namespace beside the initial one")
        })
    }

    /// Sets whether unprivileged processes may set Q_Keys with the highest bit set, system-wide.
    /// The kernel reserves these Q_Keys for privileged users by default.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the kernel doesn't have the setting;
    /// [`Error::Kernel`] with `EPERM` without `CAP_NET_ADMIN`
    /// in the initial user namespace.
    #[doc(alias = "rdma system set privileged-qkey")]
    pub fn set_privileged_qkey(&mut self, on: bool) -> Result<()> {
        if self.system()?.privileged_qkey.is_none() {
            return Err(Error::Unsupported {
                verb: "RdmaNetlink::set_privileged_qkey",
                feature: "privileged Q_Keys of unprivileged processes",
            });
        }
        let what = format!("setting privileged-qkey {}", if on { "on" } else { "off" });
        self.change(&what, Command::SYS_SET, |request| {
            request.put_u8(Attribute::SYS_PRIVILEGED_QKEY_MODE.0, on.into());
        })
    }
}

impl fmt::Display for NetnsMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Exclusive => "exclusive",
            Self::Shared => "shared",
        })
    }
}

impl Default for SystemInfo {
    /// The settings of a kernel that reports none.
    fn default() -> Self {
        Self { netns_mode: NetnsMode::Exclusive, copy_on_fork: false, privileged_qkey: None, monitor: false }
    }
}

impl SystemInfo {
    pub(crate) fn read(answer: &Attributes<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            netns_mode: match number8(answer, Attribute::SYS_NETNS_MODE)? {
                0 => NetnsMode::Exclusive,
                _ => NetnsMode::Shared,
            },
            copy_on_fork: number8(answer, Attribute::SYS_COPY_ON_FORK)? != 0,
            privileged_qkey: FromAttribute::from_attribute(answer, Attribute::SYS_PRIVILEGED_QKEY_MODE)?,
            monitor: number8(answer, Attribute::SYS_MONITOR_MODE)? != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use bareverbs_uapi::netlink::{MessageWriter, messages};

    use super::*;

    fn read(fill: impl FnOnce(&mut MessageWriter<'_>)) -> SystemInfo {
        let mut buffer = [0; 64];
        let mut writer = MessageWriter::new(&mut buffer);
        fill(writer.begin(0, MessageFlags::empty(), 1));
        let message = messages(writer.finish().unwrap()).next().unwrap().unwrap();
        SystemInfo::read(&message.attributes()).unwrap()
    }

    #[test]
    fn missing_settings_are_absent_or_off() {
        let old = read(|writer| _ = writer.put_u8(Attribute::SYS_NETNS_MODE.0, 1));
        assert_eq!(old, SystemInfo { netns_mode: NetnsMode::Shared, ..SystemInfo::default() });
        assert_eq!((old.copy_on_fork, old.privileged_qkey, old.monitor), (false, None, false));
    }

    #[test]
    fn settings_are_read() {
        let new = read(|writer| {
            writer
                .put_u8(Attribute::SYS_NETNS_MODE.0, 0)
                .put_u8(Attribute::SYS_PRIVILEGED_QKEY_MODE.0, 0)
                .put_u8(Attribute::SYS_COPY_ON_FORK.0, 1)
                .put_u8(Attribute::SYS_MONITOR_MODE.0, 1);
        });
        assert_eq!(new.netns_mode, NetnsMode::Exclusive);
        assert_eq!((new.copy_on_fork, new.privileged_qkey, new.monitor), (true, Some(false), true));
    }
}
