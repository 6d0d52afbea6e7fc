//! How the kernel's RDMA core is set up as a whole.

use bareverbs_uapi::netlink::{Attributes, Malformed, MessageFlags};
use bareverbs_uapi::nldev::{Attribute, Command};

use super::{RdmaNetlink, number8};
use crate::Result;

/// How the kernel's RDMA core is set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SystemInfo {
    /// A forked child gets its own copy of registered pages, so that parent and device go on
    /// sharing theirs; see [the crate's word on forks](crate#forks).
    #[doc(alias = "ibv_is_fork_initialized")]
    pub copy_on_fork: bool,
    /// Devices are seen in all network namespaces, not in their own alone.
    pub shared_net_namespaces: bool,
}

impl RdmaNetlink {
    /// How the kernel's RDMA core is set up.
    ///
    /// # Errors
    /// The kernel refused, or its answer could not be read.
    pub fn system(&mut self) -> Result<SystemInfo> {
        let mut info = SystemInfo { copy_on_fork: false, shared_net_namespaces: false };
        self.request(
            "asking for the system's settings",
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
