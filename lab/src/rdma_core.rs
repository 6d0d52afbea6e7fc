//! A Debian root with rdma-core and its tools, perftest, pyverbs, strace and iproute2.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use crate::apt::{Apt, Channel, Package};
use crate::cache::Cache;
use crate::deb;
use crate::process::bind_to_parent;

/// The usual programs of a Debian system, then rdma-core.
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

/// The packages of the headers of libibverbs, libmlx5 and librdmacm.
const HEADER_PACKAGES: [&str; 2] = ["libibverbs-dev", "librdmacm-dev"];

/// The packages with libibverbs and with its provider libraries.
const LIBRARY_PACKAGES: [&str; 2] = ["ibverbs-providers", "libibverbs1"];

/// The set of the cache with the headers, and their folder in it.
const HEADERS: &str = "headers-rdma-core";
const INCLUDE: &str = "root/usr/include";

/// The Python library by which rdma-core's suite encodes commands of the firmware of ConnectX devices.
const SCAPY: &str = "python3-scapy";
const SCAPY_FOLDER: &str = "usr/lib/python3/dist-packages/scapy";

/// The folder that [`compile`] writes last.
const COMPILED: &str = "usr/lib/python3/dist-packages/scapy/__pycache__";

/// The unpacked root.
#[derive(Clone, Debug)]
pub struct RdmaCore {
    /// The folder to share with guests.
    pub root: PathBuf,
    /// The version of rdma-core in it.
    pub version: String,
}

#[derive(Serialize, Deserialize)]
struct Manifest {
    version: String,
}

impl RdmaCore {
    /// The root, fetched if it isn't cached.
    pub fn fetch(cache: &Cache, refresh: bool) -> Result<Self> {
        let (folder, manifest) = cache.ensure("peers", refresh, |folder| {
            let apt = Apt::open(cache, Channel::SID)?;
            let debs = folder.join("debs");
            let packages = apt.download_closure("Debian root with rdma-core", &PACKAGES, None, &debs)?;
            deb::unpack_all("Debian root with rdma-core", &debs, &folder.join("root"))?;
            let core = packages.into_iter().find(|package| package.name == "rdma-core");
            Ok(Manifest { version: core.context("apt planned no rdma-core")?.version })
        })?;
        let root = folder.join("root");
        if !root.join(COMPILED).exists() {
            let _lock = cache.lock("peers")?;
            if !root.join(SCAPY_FOLDER).exists() {
                add_scapy(cache, &folder.join("debs"), &root)?;
            }
            compile(&root)?;
        }
        Ok(Self { root, version: manifest.version })
    }

    /// The folder of `infiniband/verbs.h` and `rdma/rdma_cma.h`, fetched if it isn't cached. The
    /// headers have the root's version, or the newest if Debian no longer offers that one.
    pub fn headers(&self, cache: &Cache) -> Result<PathBuf> {
        let (folder, _) = cache.ensure(HEADERS, false, |folder| {
            let apt = Apt::open(cache, Channel::SID)?;
            let packages: Vec<_> =
                HEADER_PACKAGES.iter().map(|name| self.offered(&apt, name)).collect::<Result<_>>()?;
            let manifest = Manifest { version: packages[0].version.clone() };
            let debs = folder.join("debs");
            fs::create_dir_all(&debs)?;
            apt.download("rdma-core's headers", &packages, &debs)?;
            deb::unpack_all("rdma-core's headers", &debs, &folder.join("root"))?;
            Ok(manifest)
        })?;
        Ok(folder.join(INCLUDE))
    }

    /// The folder of the headers; `None` if they are not cached. Does not use the network.
    pub fn cached_headers() -> Option<PathBuf> {
        let (folder, _) = Cache::open().ok()?.get::<Manifest>(HEADERS)?;
        Some(folder.join(INCLUDE))
    }

    /// The folder with libibverbs and the provider libraries of a release of Debian, such as `trixie`,
    /// fetched if it isn't cached.
    pub fn libraries_of(release: &'static str, cache: &Cache) -> Result<PathBuf> {
        let set = format!("libraries-{release}");
        let (folder, _) = cache.ensure(&set, false, |folder| {
            let apt = Apt::open(cache, Channel(release))?;
            let newest = |name: &&str| {
                let offered = apt.show(name)?.into_iter().next();
                offered.with_context(|| format!("{name} is not available"))
            };
            let packages: Vec<_> = LIBRARY_PACKAGES.iter().map(newest).collect::<Result<_>>()?;
            let manifest = Manifest { version: packages[0].version.clone() };
            let debs = folder.join("debs");
            fs::create_dir_all(&debs)?;
            apt.download("libraries of rdma-core", &packages, &debs)?;
            deb::unpack_all("libraries of rdma-core", &debs, &folder.join("root"))?;
            Ok(manifest)
        })?;
        Ok(folder.join("root/usr/lib/x86_64-linux-gnu"))
    }

    /// The package of the root's version, or the newest.
    fn offered(&self, apt: &Apt, name: &str) -> Result<Package> {
        let mut offered = apt.show(name)?;
        let same = offered.iter().position(|package| package.version == self.version);
        ensure!(!offered.is_empty(), "{name} is not available");
        Ok(offered.swap_remove(same.unwrap_or(0)))
    }
}

/// Adds scapy to a root, without the packages that it depends on: the root has those that are needed.
fn add_scapy(cache: &Cache, debs: &Path, root: &Path) -> Result<()> {
    let apt = Apt::open(cache, Channel::SID)?;
    let offered = apt.show(SCAPY)?.into_iter().next();
    let package = offered.with_context(|| format!("{SCAPY} is not available"))?;
    fs::create_dir_all(debs)?;
    apt.download(SCAPY, &[package], debs)?;
    deb::unpack_all(SCAPY, debs, root)
}

/// Compiles Python bytecode, as the install scripts would. Otherwise each guest compiles it, which
/// takes a quarter of a minute.
fn compile(root: &Path) -> Result<()> {
    let libraries = root.join("usr/lib");
    let mut folders: Vec<_> = fs::read_dir(&libraries)
        .with_context(|| format!("reading {}", libraries.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"python3")))
        .collect();
    eprintln!("lab: compiling the Python files of the Debian root");
    // `COMPILED` must be written last.
    folders.sort();
    folders.reverse();
    let mut python = Command::new(root.join("usr/lib64/ld-linux-x86-64.so.2"));
    python.arg("--library-path").arg(libraries.join("x86_64-linux-gnu"));
    python.args(["--argv0", "python3"]).arg(root.join("usr/bin/python3")).env("PYTHONHOME", root.join("usr"));
    python.args(["-m", "compileall", "-qq", "-s"]).arg(root).args(["-p", "/"]).args(folders);
    let run = bind_to_parent(&mut python).output().context("running the Python of the Debian root")?;
    if !run.status.success() {
        bail!("compiling the Python of the Debian root: {}", String::from_utf8_lossy(&run.stderr).trim_end());
    }
    Ok(())
}
