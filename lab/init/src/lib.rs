//! The protocol between the lab's host side and the guest's init.
//!
//! The host puts a [`Job`] into the initramfs as [`JOB_PATH`]. Both ends then exchange [`frame`]s
//! over one virtio-serial port.

pub mod frame;

use serde::{Deserialize, Serialize};

/// Path of the [`Job`] in the initramfs, as JSON.
pub const JOB_PATH: &str = "/lab/job.json";

/// Folder in the initramfs of the kernel modules that [`Job::modules`] names.
pub const MODULE_DIR: &str = "/lab/modules";

/// Folder in the initramfs of the programs for the PATH.
pub const PROGRAM_DIR: &str = "/lab/bin";

/// Name of the virtio-serial port that carries the [`frame`]s.
pub const PORT_NAME: &str = "bareverbs.lab";

/// A word on the guest's kernel command line. Programs detect the lab by it.
pub const CMDLINE_MARK: &str = "bareverbs.lab";

/// The 9p mount tag of the Debian root.
pub const RDMA_CORE_TAG: &str = "rdma-core";

/// The configuration of one guest.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    /// This guest's number, from 1. Its address is `10.1.0.HOST/24`.
    pub host: u8,
    /// Modules to load, in order: file names in [`MODULE_DIR`].
    pub modules: Vec<String>,
    /// Whether a Debian root is shared over 9p under the tag [`RDMA_CORE_TAG`].
    pub rdma_core: bool,
    /// Further host folders, mounted read-only.
    pub shares: Vec<Share>,
    /// The Ethernet device of the software device.
    pub link: Link,
    /// The RDMA link that is added to it.
    pub link_type: LinkType,
    /// The HCA's port, if the guest has an HCA. It replaces the software device.
    pub hca: Option<HcaPort>,
    /// Whether each packet of the link is sent to the host.
    pub capture: bool,
}

/// A host folder in the guest.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Share {
    /// The 9p mount tag.
    pub tag: String,
    /// The folder to mount it on.
    pub target: String,
}

/// The type of an RDMA link, as in `rdma link add … type`: a software device of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LinkType {
    /// Soft-RoCE: `rxe0`.
    Rxe,
    /// Soft-iWARP: `siw0`.
    Siw,
}

/// The Ethernet device below the software device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Link {
    /// One end of a veth pair inside the guest.
    Veth,
    /// The guest's virtio NIC, on the wire between the hosts.
    Nic,
}

/// The kind of an HCA's port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum HcaPort {
    /// InfiniBand.
    Ib,
    /// RDMA over Ethernet: the HCA's own netdev gets the guest's address.
    Roce,
}

/// A command to run in the guest.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Exec {
    /// The program (looked up on the PATH unless it holds a slash) and its arguments.
    pub argv: Vec<String>,
    /// Environment variables on top of the guest's own.
    pub env: Vec<(String, String)>,
    /// Size of the command's terminal. If `None`, it gets pipes and an empty standard input.
    pub terminal: Option<TerminalSize>,
}

/// Rows and columns of a terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminalSize {
    /// Rows.
    pub rows: u16,
    /// Columns.
    pub columns: u16,
}
