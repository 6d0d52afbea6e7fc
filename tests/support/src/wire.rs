//! Two devices of this host whose packets cross a wire, where they can be lost.
//!
//! Soft-RoCE delivers packets to its own device without the network. The devices here are at the ends
//! of a veth pair, and rules keep the kernel from delivering their packets locally: each end takes only
//! what comes in by its own interface.
//!
//! Two siw devices are at the ends of such a pair too, for tests with the condition
//! [`iwarp`](crate::device::iwarp). Two soft devices are on one fabric, where faults are injected.

use std::fmt;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use bareverbs::Device;
use bareverbs::soft::{Fault, InjectedFault, SoftDevice};
use bareverbs_netlink::{RdmaNetlink, ResourceSummary};

use crate::device::{Requirement, is_iwarp, is_soft_device, soft_roce};
use crate::iproute2::{attempt, ip};
use crate::{TIMEOUT, device, iwarp, resources};

/// One end of the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The end with the address 10.77.0.1, of soft devices 127.0.0.9.
    Near,
    /// The end with the address 10.77.0.2, of soft devices 127.0.0.10.
    Far,
}

use End::{Far, Near};

impl End {
    /// Its IP address.
    pub fn ip(self) -> Ipv4Addr {
        match (self, is_soft_device()) {
            (Near, false) => Ipv4Addr::new(10, 77, 0, 1),
            (Far, false) => Ipv4Addr::new(10, 77, 0, 2),
            (Near, true) => Ipv4Addr::new(127, 0, 0, 9),
            (Far, true) => Ipv4Addr::new(127, 0, 0, 10),
        }
    }

    /// Its network interface.
    pub fn netdev(self) -> &'static str {
        match self {
            Near => "wire0",
            Far => "wire1",
        }
    }

    /// Its RDMA device.
    pub fn device(self) -> &'static str {
        match (self, is_soft_device()) {
            (Near, false) if is_iwarp() => "siwwire0",
            (Far, false) if is_iwarp() => "siwwire1",
            (Near, false) => "rxewire0",
            (Far, false) => "rxewire1",
            (Near, true) => "soft8",
            (Far, true) => "soft9",
        }
    }

    fn soft(self) -> Option<SoftDevice> {
        is_soft_device().then(|| Device::find(self.device()).expect("a soft device").soft().cloned())?
    }

    fn table(self) -> u32 {
        771 + self as u32
    }

    fn other(self) -> Self {
        match self {
            Near => Far,
            Far => Near,
        }
    }
}

/// What happens to packets that leave an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Impairment {
    /// This percentage is lost.
    Loss(u8),
    /// All are late.
    Delay(Duration),
    /// This percentage is late, so that packets after it arrive first.
    Reorder(Duration, u8),
    /// All arrive twice, each up to this time late.
    Duplicate(Duration),
}

/// The words of `tc-netem`.
impl fmt::Display for Impairment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Loss(percent) => write!(f, "loss {percent}%"),
            Self::Delay(delay) => write!(f, "delay {}us", delay.as_micros()),
            Self::Reorder(delay, percent) => {
                write!(f, "delay {}us reorder {}%", delay.as_micros(), 100 - percent)
            }
            Self::Duplicate(longest) => {
                let mean = longest.as_micros() / 2;
                write!(f, "delay {mean}us {mean}us duplicate 100%")
            }
        }
    }
}

impl Impairment {
    /// The faults of a fabric.
    fn faults(self) -> Vec<Fault> {
        let part = |percent: u8| f64::from(percent) / 100.0;
        match self {
            Self::Loss(percent) => vec![Fault::drop().probability(part(percent))],
            Self::Delay(delay) => vec![Fault::delay(delay)],
            Self::Reorder(delay, percent) => vec![Fault::delay(delay).probability(part(percent))],
            Self::Duplicate(longest) => vec![Fault::duplicate(), Fault::jitter(longest)],
        }
    }
}

/// For tests with a wire whose interfaces and devices they change.
///
/// # Errors
/// If the device is not Soft-RoCE.
pub fn wire() -> Requirement {
    soft_roce()
}

/// For tests with a wire that loses packets.
///
/// # Errors
/// If the device is neither Soft-RoCE nor a soft device, or the kernel has no `sch_netem`.
pub fn lossy_wire() -> Requirement {
    if is_soft_device() {
        return Ok(());
    }
    wire()?;
    match Path::new("/sys/module/sch_netem").exists() {
        true => Ok(()),
        false => Err("this kernel has no sch_netem".into()),
    }
}

/// Whether a QP 1 (GSI) that has stopped is reported in ERR. Before Linux 6.4, Soft-RoCE reports RTS.
///
/// # Panics
/// If the kernel does not tell its release.
pub fn stopped_gsi_qp_is_in_error() -> bool {
    !std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap().starts_with("6.1.")
}

/// The wire. Drop removes the devices and the interfaces.
#[derive(Debug)]
pub struct Wire {
    /// The objects of the devices without a program: those of the kernel.
    idle: Vec<(End, ResourceSummary)>,
    /// The faults of soft devices.
    faults: Mutex<Vec<(End, InjectedFault)>>,
}

/// Sets the routes and the neighbour of an end.
fn set_routes(end: End) {
    let (netdev, own, other) = (end.netdev(), end.ip(), end.other());
    let mac = std::fs::read_to_string(format!("/sys/class/net/{}/address", other.netdev())).unwrap();
    ip(&format!("neigh replace {} lladdr {} nud permanent dev {netdev}", other.ip(), mac.trim()));
    ip(&format!("route replace local {own} dev {netdev} table {}", end.table()));
    ip(&format!("route replace {} dev {netdev} src {own}", other.ip()));
}

/// Sets them again: the kernel removes them with the address, and when the interface goes down.
fn restore_routes(end: End) {
    set_routes(end);
    // The kernel has added it with the address, or when the interface came up.
    let _ = attempt("ip", &format!("route del local {} dev {} table local", end.ip(), end.netdev()));
}

/// Waits until the device of an end has a GID of this address, or has none any longer.
///
/// # Panics
/// After [`TIMEOUT`].
pub fn wait_for_gid(end: End, address: Ipv4Addr, present: bool) {
    let begin = Instant::now();
    let has_gid = || {
        let devices = bareverbs::devices().unwrap();
        let device = devices.iter().find(|device| device.name() == end.device()).expect("the device");
        let gids = device.open().unwrap().gid_table().unwrap();
        gids.iter().any(|entry| entry.gid.ipv4() == Some(address))
    };
    while has_gid() != present {
        assert!(begin.elapsed() < TIMEOUT, "the GIDs of {end:?} don't follow its address {address}");
        sleep(Duration::from_millis(10));
    }
}

/// Waits until both devices have a GID of their address.
fn wait_for_addresses() {
    [Near, Far].into_iter().for_each(|end| wait_for_gid(end, end.ip(), true));
}

/// Creates the device of an end.
fn add_device(end: End) {
    if is_iwarp() {
        return iwarp::add_device(end.device(), end.netdev());
    }
    RdmaNetlink::open().unwrap().new_link(end.device(), "rxe", end.netdev()).unwrap();
}

/// Lets sockets of the kernel have the addresses of the ends, which are not local in the kernel's own
/// table. siw binds sockets to them.
fn allow_foreign_addresses(allowed: bool) {
    let setting = "/proc/sys/net/ipv4/ip_nonlocal_bind";
    std::fs::write(setting, if allowed { "1" } else { "0" }).expect("the kernel has the setting");
}

impl Wire {
    /// Creates the interfaces and the devices, and waits until both have their address.
    pub fn new() -> Self {
        let _ = device::name();
        if is_soft_device() {
            let idle = [Near, Far].map(|end| (end, held(end))).into();
            return Self { idle, faults: Mutex::default() };
        }
        // A device is the same one, as its GUID says, when it is created again.
        let [near, far] = ["02:00:00:00:77:01", "02:00:00:00:77:02"];
        let (netdev, peer) = (Near.netdev(), Far.netdev());
        ip(&format!("link add name {netdev} address {near} type veth peer name {peer} address {far}"));
        let mut wire = Self { idle: Vec::new(), faults: Mutex::default() };
        for end in [Near, Far] {
            let netdev = end.netdev();
            for (setting, value) in [("rp_filter", "0"), ("accept_local", "1")] {
                let file = format!("/proc/sys/net/ipv4/conf/{netdev}/{setting}");
                std::fs::write(file, value).expect("the interface has the setting");
            }
            ip(&format!("address add {}/32 dev {netdev}", end.ip()));
            ip(&format!("link set up dev {netdev}"));
        }
        for (pref, end) in [(10, Near), (11, Far)] {
            let (netdev, own) = (end.netdev(), end.ip());
            ip(&format!("rule add pref {pref} iif {netdev} lookup {}", end.table()));
            // An end reaches itself within its device.
            ip(&format!("rule add pref {pref} from {own} to {own} lookup {}", end.table()));
            set_routes(end);
        }
        [Near, Far].into_iter().for_each(add_device);
        // From here on, packets to the other end leave by the interface.
        for end in [Near, Far] {
            ip(&format!("route del local {} dev {} table local", end.ip(), end.netdev()));
        }
        match is_iwarp() {
            true => allow_foreign_addresses(true),
            false => wait_for_addresses(),
        }
        wire.idle = [Near, Far].map(|end| (end, held(end))).into();
        wire
    }

    /// What happens to packets that leave an end of rxe, in the words of `tc-netem`: `rate 1mbit`.
    pub fn impair(&self, end: End, netem: &str) {
        let arguments = format!("qdisc replace dev {} root netem {netem}", end.netdev());
        attempt("tc", &arguments).unwrap_or_else(|failed| panic!("{failed}"));
    }

    /// The same for any device.
    pub fn inject(&self, end: End, impairment: Impairment) {
        let Some(soft) = end.soft() else {
            return self.impair(end, &impairment.to_string());
        };
        self.remove_faults(|of| of == end);
        let injected = impairment.faults().into_iter().map(|fault| soft.fabric().inject(fault.from(&soft)));
        self.faults().extend(injected.map(|fault| (end, fault)));
    }

    fn faults(&self) -> std::sync::MutexGuard<'_, Vec<(End, InjectedFault)>> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the faults of some ends.
    fn remove_faults(&self, is_removed: impl Fn(End) -> bool) {
        self.faults().retain(|(end, fault)| {
            let is_removed = is_removed(*end);
            if let Some(soft) = end.soft().filter(|_| is_removed) {
                soft.fabric().remove_fault(fault);
            }
            !is_removed
        });
    }

    /// Loses all packets that leave an end.
    pub fn cut(&self, end: End) {
        self.inject(end, Impairment::Loss(100));
    }

    /// Ends the impairments.
    pub fn heal(&self) {
        if is_soft_device() {
            return self.remove_faults(|_| true);
        }
        for end in [Near, Far] {
            // Without an impairment there is nothing to delete.
            let _ = attempt("tc", &format!("qdisc del dev {} root", end.netdev()));
        }
    }

    /// Takes the interface of an end down.
    pub fn take_down(&self, end: End) {
        ip(&format!("link set down dev {}", end.netdev()));
    }

    /// Brings the interface of an end up again.
    pub fn bring_up(&self, end: End) {
        ip(&format!("link set up dev {}", end.netdev()));
        restore_routes(end);
    }

    /// Removes the IP address of an end, and waits until its device has lost the GID.
    ///
    /// The kernel removes the routes with the address, but the GID in a work item. A MAD that is sent
    /// before that runs stops QP 1. See `docs/kernel-bugs.md`.
    ///
    /// # Panics
    /// After [`TIMEOUT`].
    pub fn remove_address(&self, end: End) {
        ip(&format!("address del {}/32 dev {}", end.ip(), end.netdev()));
        wait_for_gid(end, end.ip(), false);
    }

    /// Adds the IP address of an end again, and waits until its device has the GID.
    ///
    /// # Panics
    /// After [`TIMEOUT`].
    pub fn restore_address(&self, end: End) {
        let (netdev, own, other) = (end.netdev(), end.ip(), end.other());
        // With the GID, the device answers MADs. An answer without a route stops QP 1.
        ip(&format!("route replace {} dev {netdev}", other.ip()));
        ip(&format!("address add {own}/32 dev {netdev}"));
        restore_routes(end);
        wait_for_gid(end, own, true);
    }

    /// Deletes the device of an end, which no program has open, and creates it again.
    pub fn replace_device(&self, end: End) {
        let mut netlink = RdmaNetlink::open().unwrap();
        netlink.del_link(end.device()).unwrap();
        add_device(end);
        if !is_iwarp() {
            wait_for_addresses();
        }
    }

    /// Deletes both interfaces. The kernel deletes their devices, too, when no program has them open.
    pub fn delete(&self) {
        ip(&format!("link del dev {}", Near.netdev()));
    }

    /// Waits until the kernel has deleted both devices. Panics after [`TIMEOUT`].
    pub fn wait_deleted(&self) {
        let begin = Instant::now();
        let ends = [Near.device(), Far.device()];
        while bareverbs::devices().unwrap().iter().any(|device| ends.contains(&device.name())) {
            assert!(begin.elapsed() < TIMEOUT, "the devices are not deleted");
            sleep(Duration::from_millis(20));
        }
    }

    /// Waits until no program has an object of the devices. Panics after [`TIMEOUT`].
    pub fn settle(&self) {
        let begin = Instant::now();
        let devices = bareverbs::devices().unwrap();
        let exists =
            |end: End| is_soft_device() || devices.iter().any(|device| device.name() == end.device());
        for (end, idle) in &self.idle {
            while exists(*end) && held(*end) != *idle {
                assert!(begin.elapsed() < TIMEOUT, "{end:?} holds {:?} in place of {idle:?}", held(*end));
                sleep(Duration::from_millis(20));
            }
        }
    }
}

fn held(end: End) -> ResourceSummary {
    if let Some(soft) = end.soft() {
        return resources::of_soft_device(soft.resources());
    }
    let counted = RdmaNetlink::open().and_then(|mut netlink| netlink.resources(end.device()));
    counted.expect("the device counts its resources")
}

impl Default for Wire {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Wire {
    fn drop(&mut self) {
        if is_soft_device() {
            return self.remove_faults(|_| true);
        }
        if is_iwarp() {
            allow_foreign_addresses(false);
        }
        for (pref, end) in [(10, Near), (11, Far)] {
            // A test may have removed the device.
            let _ = RdmaNetlink::open().and_then(|mut netlink| netlink.del_link(end.device()));
            for _ in 0..2 {
                let _ = attempt("ip", &format!("rule del pref {pref}"));
            }
            let _ = attempt("ip", &format!("route flush table {}", end.table()));
        }
        let _ = attempt("ip", &format!("link del {}", Near.netdev()));
    }
}
