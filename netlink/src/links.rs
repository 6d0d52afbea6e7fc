//! Software devices, and settings of devices.

use std::os::fd::{AsFd, AsRawFd};

use bareverbs_uapi::nldev::{Attribute, Command};
use rustix::io::Errno;

use crate::Result;
use crate::error::with_hint;
use crate::system::NetnsMode;
use crate::{DEVICE_NAME_LEN, INTERFACE_NAME_LEN, RdmaNetlink, check_name};

/// Software devices, and settings of devices. All require `CAP_NET_ADMIN` in the initial user
/// namespace.
impl RdmaNetlink {
    /// Creates a software device named `name` of type `kind` (`rxe` or `siw`) over the network
    /// interface `netdev`.
    ///
    /// If the kernel does not have the type, it loads the module `rdma-link-KIND` by `modprobe`.
    ///
    /// ```no_run
    /// use bareverbs_netlink::RdmaNetlink;
    ///
    /// RdmaNetlink::open()?.new_link("rxe0", "rxe", "eth0")?;
    /// # Ok::<(), bareverbs_netlink::Error>(())
    /// ```
    ///
    /// # Errors
    /// - [`Error::Invalid`](crate::Error::Invalid): a name is empty or has forbidden characters.
    /// - [`Error::Kernel`](crate::Error::Kernel) with
    ///   - `EPERM`: the capability is missing, or the interface is a VLAN and the type is `rxe`;
    ///   - `ENODEV`: there is no such network interface;
    ///   - `EEXIST`: the interface has a device of the type already, or the name is taken;
    ///   - `ENFILE`: the name is taken;
    ///   - `EINVAL`: the kernel has no such type.
    #[doc(alias = "rdma link add")]
    #[doc(alias = "RDMA_NLDEV_CMD_NEWLINK")]
    pub fn new_link(&mut self, name: &str, kind: &str, netdev: &str) -> Result<()> {
        const VERB: &str = "RdmaNetlink::new_link";
        check_name(VERB, "device name", name, DEVICE_NAME_LEN)?;
        check_name(VERB, "type", kind, INTERFACE_NAME_LEN)?;
        check_name(VERB, "network interface", netdev, INTERFACE_NAME_LEN)?;
        let made =
            self.change(&format!("creating {kind} device {name} on {netdev}"), Command::NEWLINK, |request| {
                request
                    .put_str(Attribute::DEV_NAME.0, name)
                    .put_str(Attribute::LINK_TYPE.0, kind)
                    .put_str(Attribute::NDEV_NAME.0, netdev);
            });
        let taken = made.as_ref().is_err_and(|error| error.errno() == Some(Errno::EXIST))
            && self.devices()?.iter().any(|device| device.name == name);
        with_hint(made, |errno| {
            Some(match errno {
                Errno::PERM => {
                    "it requires CAP_NET_ADMIN in the initial user namespace; rxe also refuses VLAN \
                     interfaces"
                }
                Errno::NODEV => "there is no such network interface in this network namespace",
                Errno::EXIST if taken => "the device name is taken",
                Errno::EXIST => "the network interface has a device of this type already",
                Errno::NFILE => "the device name is taken",
                Errno::INVAL => {
                    "the kernel does not have this type (load the module rdma_rxe or siw), or the type \
                     refuses the network interface"
                }
                _ => return None,
            })
        })
    }

    /// Removes the software device named `device`.
    ///
    /// siw waits until all processes have closed the device, and so does rxe before Linux 7.3.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`](crate::Error::UnknownDevice) if there is no such device;
    /// [`Error::Kernel`](crate::Error::Kernel) with `EPERM` without the capability,
    /// with `EINVAL` if it is not a software device.
    #[doc(alias = "rdma link delete")]
    #[doc(alias = "RDMA_NLDEV_CMD_DELLINK")]
    pub fn del_link(&mut self, device: &str) -> Result<()> {
        let index = self.index_of(device)?;
        let removed = self.change(&format!("removing device {device}"), Command::DELLINK, |request| {
            request.put_u32(Attribute::DEV_INDEX.0, index);
        });
        with_hint(removed, |errno| {
            (errno == Errno::INVAL).then_some("only software devices (rxe, siw) can be removed")
        })
    }

    /// Renames the device `device` to `name`.
    ///
    /// # Errors
    /// - [`Error::Invalid`](crate::Error::Invalid) for an invalid name.
    /// - [`Error::UnknownDevice`](crate::Error::UnknownDevice) if there is no such device.
    /// - [`Error::Kernel`](crate::Error::Kernel) with `EPERM` without the
    ///   capability, with `EEXIST` if the name is taken.
    #[doc(alias = "rdma dev set name")]
    #[doc(alias = "RDMA_NLDEV_CMD_SET")]
    pub fn set_device_name(&mut self, device: &str, name: &str) -> Result<()> {
        check_name("RdmaNetlink::set_device_name", "device name", name, DEVICE_NAME_LEN)?;
        let index = self.index_of(device)?;
        let renamed = self.change(&format!("renaming {device} to {name}"), Command::SET, |request| {
            request.put_u32(Attribute::DEV_INDEX.0, index).put_str(Attribute::DEV_NAME.0, name);
        });
        with_hint(renamed, |errno| (errno == Errno::EXIST).then_some("the device name is taken"))
    }

    /// Moves the device `device` to the network namespace `netns`, which is an open file of
    /// `/proc/PID/ns/net` or `/run/netns/NAME`.
    ///
    /// Processes that have the device open lose it. The system-wide mode must be
    /// [`NetnsMode::Exclusive`]. The driver must support the move: mlx5 does, rxe of Linux 6.1,
    /// 6.12 and 7.2 does not.
    ///
    /// ```no_run
    /// use std::fs::File;
    ///
    /// use bareverbs_netlink::RdmaNetlink;
    ///
    /// RdmaNetlink::open()?.set_device_netns("mlx5_0", &File::open("/run/netns/blue").unwrap())?;
    /// # Ok::<(), bareverbs_netlink::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::UnknownDevice`](crate::Error::UnknownDevice) if there is no such device;
    /// [`Error::Kernel`](crate::Error::Kernel) with
    /// - `EPERM`: the capability is missing, here or in the target namespace;
    /// - `EINVAL`: the file is not a network namespace;
    /// - `EEXIST`: the name is taken in the target namespace;
    /// - `EOPNOTSUPP`: the mode or the driver doesn't allow it.
    #[doc(alias = "rdma dev set netns")]
    #[doc(alias = "RDMA_NLDEV_NET_NS_FD")]
    pub fn set_device_netns(&mut self, device: &str, netns: impl AsFd) -> Result<()> {
        let index = self.index_of(device)?;
        let fd = netns.as_fd().as_raw_fd().cast_unsigned();
        let what = format!("moving {device} to another network namespace");
        let moved = self.change(&what, Command::SET, |request| {
            request.put_u32(Attribute::DEV_INDEX.0, index).put_u32(Attribute::NET_NS_FD.0, fd);
        });
        let Err(error) = moved else { return Ok(()) };
        let shared = self.system().is_ok_and(|system| system.netns_mode == NetnsMode::Shared);
        with_hint(Err(error), |errno| match errno {
            Errno::OPNOTSUPP if shared => {
                Some("devices are shared by all network namespaces: set the mode to exclusive first")
            }
            Errno::OPNOTSUPP => Some("the driver does not support it"),
            Errno::EXIST => Some("the device name is taken in that network namespace"),
            Errno::INVAL => Some("the file is not a network namespace"),
            _ => None,
        })
    }

    /// Turns adaptive moderation (DIM) of the CQs of kernel users on or off. It applies to CQs
    /// that are created later.
    ///
    /// # Errors
    /// [`Error::UnknownDevice`](crate::Error::UnknownDevice) if there is no such device;
    /// [`Error::Kernel`](crate::Error::Kernel) with `EPERM` without the capability.
    #[doc(alias = "rdma dev set adaptive-moderation")]
    #[doc(alias = "RDMA_NLDEV_ATTR_DEV_DIM")]
    pub fn set_adaptive_moderation(&mut self, device: &str, on: bool) -> Result<()> {
        let index = self.index_of(device)?;
        let what = format!("turning adaptive moderation of {device} {}", if on { "on" } else { "off" });
        self.change(&what, Command::SET, |request| {
            request.put_u32(Attribute::DEV_INDEX.0, index).put_u8(Attribute::DEV_DIM.0, on.into());
        })
    }
}
