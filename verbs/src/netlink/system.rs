//! System-wide settings of the kernel's RDMA core.

use bareverbs_uapi::netlink::{Attributes, Malformed, MessageFlags};
use bareverbs_uapi::nldev::{Attribute, Command};

use super::{RdmaNetlink, number8};
use crate::Result;

/// System-wide settings of the kernel's RDMA core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SystemInfo {
    /// Whether a forked child gets copies of pinned pages. If so, the parent and the device
    /// continue to share theirs. See [fork](crate#forks).
    #[doc(alias = "ibv_is_fork_initialized")]
    pub copy_on_fork: bool,
    /// Whether devices are visible in all network namespaces, not only in their own.
    pub shared_net_namespaces: bool,
}

impl RdmaNetlink {
    /// System-wide settings of the kernel's RDMA core.
    ///
    /// # Errors
    /// [`Error::System`](crate::Error::System) if the kernel rejects the request;
    /// [`Error::Netlink`](crate::Error::Netlink) if its response is malformed.
    pub fn system(&mut self) -> Result<SystemInfo> {
        let mut info = SystemInfo { copy_on_fork: false, shared_net_namespaces: false };
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
}

impl SystemInfo {
    pub(super) fn read(answer: &Attributes<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            copy_on_fork: number8(answer, Attribute::SYS_COPY_ON_FORK)? != 0,
            shared_net_namespaces: number8(answer, Attribute::SYS_NETNS_MODE)? != 0,
        })
    }
}

#[cfg(test)]
mod tests {
    use bareverbs_uapi::netlink::{MessageWriter, messages};

    use super::*;

    #[test]
    fn missing_copy_on_fork_attribute_is_false() {
        let mut buffer = [0; 64];
        let mut writer = MessageWriter::new(&mut buffer);
        writer.begin(0, MessageFlags::empty(), 1).put_u8(Attribute::SYS_NETNS_MODE.0, 1);
        let old = messages(writer.finish().unwrap()).next().unwrap().unwrap();
        let info = SystemInfo::read(&old.attributes()).unwrap();
        assert_eq!(info, SystemInfo { copy_on_fork: false, shared_net_namespaces: true });
    }
}
