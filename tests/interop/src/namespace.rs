//! A host for a soft device: a network namespace with an address, which an rxe device reaches.
//!
//! Soft-RoCE has UDP port 4791 of the initial network namespace, so a soft device of this guest needs
//! another one.

use std::fs::File;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use bareverbs::{Context, Device};
use bareverbs_netlink::RdmaNetlink;
use bareverbs_test_support::TIMEOUT;
use bareverbs_test_support::iproute2::{attempt, ip};
use nix::sched::{CloneFlags, setns, unshare};

/// The rxe device.
pub const RXE: &str = "rxesoft";
/// The network interface of the rxe device.
pub const NETDEV: &str = "softnear";
/// The network interface of the namespace.
pub const SOFT_NETDEV: &str = "softfar";
/// The IPv4 address of the rxe device.
pub const RXE_IP: &str = "10.78.0.1";
/// The IPv4 address of the namespace.
pub const SOFT_IP: &str = "10.78.0.2";
/// The soft device of the IPv4 address.
pub const SOFT: &str = "soft:10.78.0.2";
/// The IPv6 address of the rxe device.
pub const RXE_IP6: &str = "fd00:78::1";
/// The IPv6 address of the namespace.
pub const SOFT_IP6: &str = "fd00:78::2";
/// The soft device of the IPv6 address.
pub const SOFT6: &str = "soft:fd00:78::2";
/// The MTU of both interfaces: RoCE packets with 4096 bytes of payload fit.
const NETDEV_MTU: &str = "4200";

/// A network namespace, a veth pair, and an rxe device on the end of the initial namespace. Drop removes
/// them.
#[derive(Debug)]
pub struct Namespace {
    /// Keeps the namespace.
    file: File,
}

/// Adds the addresses and brings the interface up.
fn set_up(netdev: &str, address: &str, address6: &str) {
    ip(&format!("address add {address}/24 dev {netdev}"));
    ip(&format!("address add {address6}/64 dev {netdev} nodad"));
    ip(&format!("link set dev {netdev} mtu {NETDEV_MTU} up"));
}

/// Removes the device and the interfaces, if they exist.
fn remove() {
    // A test may have removed the device.
    let _ = RdmaNetlink::open().and_then(|mut netlink| netlink.del_link(RXE));
    let _ = attempt("ip", &format!("link del {NETDEV}"));
}

impl Namespace {
    /// Creates the namespace, the interfaces and the device, and waits until the device has its addresses.
    pub fn new() -> Self {
        // A test that was killed leaves them.
        remove();
        let file = std::thread::spawn(|| {
            unshare(CloneFlags::CLONE_NEWNET).expect("root may have network namespaces");
            File::open("/proc/thread-self/ns/net").expect("a thread has a network namespace")
        });
        let namespace = Self { file: file.join().expect("the thread has the namespace") };
        ip(&format!("link add name {NETDEV} type veth peer name {SOFT_NETDEV}"));
        let path = namespace.path();
        ip(&format!("link set dev {SOFT_NETDEV} netns {path}"));
        namespace.run(|| {
            ip("link set dev lo up");
            set_up(SOFT_NETDEV, SOFT_IP, SOFT_IP6);
        });
        set_up(NETDEV, RXE_IP, RXE_IP6);
        RdmaNetlink::open().unwrap().new_link(RXE, "rxe", NETDEV).unwrap();
        for address in [RXE_IP, RXE_IP6] {
            wait_for_gid(address.parse().expect("an address"));
        }
        namespace
    }

    /// The path of the namespace, for programs of other processes.
    pub fn path(&self) -> String {
        use std::os::fd::AsRawFd;
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }

    /// Runs `work` on a thread in the namespace. Programs that it starts and devices that it opens are in
    /// the namespace.
    ///
    /// # Panics
    /// If `work` panics.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                setns(&self.file, CloneFlags::CLONE_NEWNET).expect("root may enter the namespace");
                work()
            });
            inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Impairs the packets that leave the soft device, in the words of `tc-netem`.
    ///
    /// # Panics
    /// If the kernel refuses it.
    pub fn impair_soft(&self, netem: &str) {
        self.run(|| impair(SOFT_NETDEV, netem));
    }

    /// Impairs the packets that leave the rxe device, in the words of `tc-netem`.
    ///
    /// # Panics
    /// If the kernel refuses it.
    pub fn impair_rxe(&self, netem: &str) {
        impair(NETDEV, netem);
    }

    /// Ends the impairments.
    pub fn heal(&self) {
        // Without an impairment there is nothing to delete.
        let _ = attempt("tc", &format!("qdisc del dev {NETDEV} root"));
        let _ = self.run(|| attempt("tc", &format!("qdisc del dev {SOFT_NETDEV} root")));
    }
}

fn impair(netdev: &str, netem: &str) {
    let arguments = format!("qdisc replace dev {netdev} root netem {netem}");
    attempt("tc", &arguments).unwrap_or_else(|failed| panic!("{failed}"));
}

impl Default for Namespace {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        remove();
    }
}

/// Gives the host of the rxe device another address.
///
/// # Panics
/// If the kernel refuses it.
pub fn add_address(address: IpAddr) {
    ip(&format!("address add {address}/24 dev {NETDEV}"));
}

/// Opens the rxe device.
///
/// # Panics
/// If it can't be opened.
pub fn open_rxe() -> Context {
    Device::find(RXE).and_then(|device| device.open()).expect("the rxe device opens")
}

/// The index of the address in the GID table of the rxe device, if it is there.
///
/// # Panics
/// If the table can't be read.
pub fn rxe_gid_index(address: IpAddr) -> Option<u8> {
    let table = open_rxe().gid_table().expect("the GID table");
    let bytes = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    let entry = table.iter().find(|entry| entry.gid.0 == bytes.octets())?;
    Some(entry.index.into())
}

fn wait_for_gid(address: IpAddr) {
    let begin = Instant::now();
    while rxe_gid_index(address).is_none() {
        assert!(begin.elapsed() < TIMEOUT, "{RXE} has no GID of {address}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
