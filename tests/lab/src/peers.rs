//! A Debian root with the C stack: rdma-core and its tools, perftest, pyverbs, strace, iproute2.

use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use crate::apt::{Apt, Channel};
use crate::cache::Cache;
use crate::deb;

/// What people expect of a Debian system, then the C stack.
const PACKAGES: [&str; 30] = [
    "base-files",
    "bash",
    "coreutils",
    "dash",
    "debianutils",
    "diffutils",
    "findutils",
    "grep",
    "gzip",
    "hostname",
    "iproute2",
    "iputils-ping",
    "kmod",
    "libc-bin",
    "mawk",
    "mount",
    "ncurses-base",
    "procps",
    "python3",
    "sed",
    "strace",
    "tar",
    "tcpdump",
    "util-linux",
    "rdma-core",
    "ibverbs-utils",
    "infiniband-diags",
    "perftest",
    "python3-pyverbs",
    "rdmacm-utils",
];

/// The unpacked root.
#[derive(Clone, Debug)]
pub struct Peers {
    /// The folder to share with guests.
    pub root: PathBuf,
    /// The version of rdma-core in it.
    pub version: String,
}

#[derive(Serialize, Deserialize)]
struct Manifest {
    version: String,
}

impl Peers {
    /// The root, fetched if it isn't cached.
    pub fn fetch(cache: &Cache, refresh: bool) -> Result<Self> {
        let (folder, manifest) = cache.ensure("peers", refresh, |folder| {
            let apt = Apt::open(cache, Channel::Sid)?;
            let debs = folder.join("debs");
            let packages = apt.download_closure("Debian root with rdma-core", &PACKAGES, None, &debs)?;
            deb::unpack_all("Debian root with rdma-core", &debs, &folder.join("root"))?;
            let core = packages.into_iter().find(|package| package.name == "rdma-core");
            Ok(Manifest { version: core.context("apt planned no rdma-core")?.version })
        })?;
        Ok(Self { root: folder.join("root"), version: manifest.version })
    }
}
