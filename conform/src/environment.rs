//! Restrictions of the calling process: capabilities, limits, cgroup and network namespace.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

use bareverbs_netlink::{NetnsMode, RdmaNetlink};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::{Resource, Rlimit, getpid, getrlimit, setrlimit};
use rustix::thread::{
    CapabilitySet, LinkNameSpaceType, UnshareFlags, move_into_link_name_space, unshare_unsafe,
};

use crate::privilege::Dropped;

/// What the calling process may not do.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Restriction {
    /// The thread lacks these effective capabilities.
    Without(CapabilitySet),
    /// The thread lacks CAP_IPC_LOCK, and the process may pin this number of bytes.
    Memlock(u64),
    /// The process is in a cgroup that may use this number of contexts and objects of the device.
    Cgroup { handles: Option<u32>, objects: Option<u32> },
    /// The thread is in a new network namespace.
    Namespace,
    /// As `Namespace`, and devices are exclusive to their namespaces (`rdma system set netns
    /// exclusive`).
    ExclusiveNamespace,
}

/// A restriction, lifted when dropped.
pub(crate) trait Restricted {}

/// Why a restriction is unavailable.
type Unavailable = String;

fn reason(what: &str, errno: Errno) -> Unavailable {
    format!("{what}: {errno}")
}

/// Restricts this process.
pub(crate) fn restrict(device: &str, restriction: Restriction) -> Result<Box<dyn Restricted>, Unavailable> {
    Ok(match restriction {
        Restriction::Without(capabilities) => Box::new(without(capabilities)?),
        Restriction::Memlock(bytes) => Box::new(Memlock::new(bytes)?),
        Restriction::Cgroup { handles, objects } => Box::new(Cgroup::new(device, handles, objects)?),
        Restriction::Namespace => Box::new(Namespace::new()?),
        Restriction::ExclusiveNamespace => Box::new(Exclusive::new()?),
    })
}

impl Restricted for Dropped {}

fn without(capabilities: CapabilitySet) -> Result<Dropped, Unavailable> {
    Dropped::new(capabilities).map_err(|errno| reason("the capabilities can't be dropped", errno))
}

/// A limit of pinned memory.
struct Memlock {
    before: Rlimit,
    /// Lifted after the limit.
    _dropped: Dropped,
}

impl Memlock {
    fn new(bytes: u64) -> Result<Self, Unavailable> {
        let before = getrlimit(Resource::Memlock);
        let limit = Rlimit { current: Some(bytes), ..before };
        setrlimit(Resource::Memlock, limit).map_err(|errno| reason("RLIMIT_MEMLOCK can't be set", errno))?;
        match without(CapabilitySet::IPC_LOCK) {
            Ok(dropped) => Ok(Self { before, _dropped: dropped }),
            Err(error) => {
                let _ = setrlimit(Resource::Memlock, before);
                Err(error)
            }
        }
    }
}

impl Drop for Memlock {
    fn drop(&mut self) {
        // The hard limit is unchanged, so the kernel does not refuse it.
        let _ = setrlimit(Resource::Memlock, self.before);
    }
}

impl Restricted for Memlock {}

/// A cgroup of this process alone, in a mount of its own.
struct Cgroup {
    /// The mounted hierarchy.
    root: PathBuf,
    /// The cgroup in it.
    group: PathBuf,
    /// The cgroup in which the process was.
    before: PathBuf,
}

impl Cgroup {
    fn new(device: &str, handles: Option<u32>, objects: Option<u32>) -> Result<Self, Unavailable> {
        let unavailable = |what: &str, error: std::io::Error| format!("{what}: {error}");
        let root = std::env::temp_dir().join(format!("bareverbs-conform-{}", getpid().as_raw_pid()));
        fs::create_dir_all(&root).map_err(|error| unavailable("no folder for cgroups", error))?;
        if let Err(errno) = mount("none", &root, "cgroup2", MountFlags::empty(), None) {
            let _ = fs::remove_dir(&root);
            return Err(reason("cgroup2 can't be mounted", errno));
        }
        let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let own = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
        let this = Self { group: root.join("bareverbs-conform"), before: root.join(own), root };
        // Dropping `this` undoes what was done before an error.
        let write = |path: PathBuf, text: &str| {
            fs::write(&path, text).map_err(|error| unavailable(&path.display().to_string(), error))
        };
        write(this.root.join("cgroup.subtree_control"), "+rdma")?;
        fs::create_dir_all(&this.group).map_err(|error| unavailable("no cgroup", error))?;
        let limit = |limit: Option<u32>| limit.map_or_else(|| "max".to_owned(), |limit| limit.to_string());
        let limits = format!("{device} hca_handle={} hca_object={}", limit(handles), limit(objects));
        write(this.group.join("rdma.max"), &limits)?;
        write(this.group.join("cgroup.procs"), &getpid().as_raw_pid().to_string())?;
        Ok(this)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::write(self.before.join("cgroup.procs"), getpid().as_raw_pid().to_string());
        let _ = fs::remove_dir(&self.group);
        let _ = unmount(&self.root, UnmountFlags::DETACH);
        let _ = fs::remove_dir(&self.root);
    }
}

impl Restricted for Cgroup {}

/// A new network namespace of this thread.
struct Namespace {
    before: OwnedFd,
}

impl Namespace {
    fn new() -> Result<Self, Unavailable> {
        let path = Path::new("/proc/thread-self/ns/net");
        let before = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .map_err(|errno| reason("the network namespace can't be opened", errno))?;
        // SAFETY: NEWNET affects neither descriptors nor memory of the thread.
        unsafe { unshare_unsafe(UnshareFlags::NEWNET) }
            .map_err(|errno| reason("a network namespace can't be made", errno))?;
        Ok(Self { before })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let back = move_into_link_name_space(self.before.as_fd(), Some(LinkNameSpaceType::Network));
        back.expect("a thread with CAP_SYS_ADMIN returns to its namespace");
    }
}

impl Restricted for Namespace {}

/// The exclusive mode of namespaces, and a new namespace of this thread.
struct Exclusive {
    namespace: Option<Namespace>,
    /// A socket of the first namespace.
    netlink: RdmaNetlink,
}

/// The kernel takes down namespaces in a worker. It changes the mode only without further ones.
const SETTLE: Duration = Duration::from_secs(10);

/// Changes the mode of namespaces as soon as the first one is alone.
fn set_mode(netlink: &mut RdmaNetlink, mode: NetnsMode) -> bareverbs_netlink::Result<()> {
    let begin = Instant::now();
    loop {
        match netlink.set_netns_mode(mode) {
            Err(error) if error.errno() == Some(Errno::BUSY) && begin.elapsed() < SETTLE => {
                sleep(Duration::from_millis(20));
            }
            result => return result,
        }
    }
}

impl Exclusive {
    fn new() -> Result<Self, Unavailable> {
        let mut netlink = RdmaNetlink::open().map_err(|error| error.to_string())?;
        set_mode(&mut netlink, NetnsMode::Exclusive).map_err(|error| error.to_string())?;
        // Dropping `this` restores the mode.
        let mut this = Self { namespace: None, netlink };
        this.namespace = Some(Namespace::new()?);
        Ok(this)
    }
}

impl Drop for Exclusive {
    fn drop(&mut self) {
        self.namespace = None;
        let shared = set_mode(&mut self.netlink, NetnsMode::Shared);
        shared.expect("the mode of namespaces is restored when the other namespace is gone");
    }
}

impl Restricted for Exclusive {}
