//! The siw device of tests of iWARP.

use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Mutex;
use std::thread::sleep;
use std::time::{Duration, Instant};

use bareverbs::device::{DriverId, NodeType};
use bareverbs_netlink::RdmaNetlink;

use crate::TIMEOUT;
use crate::iproute2::{attempt, ip};
use crate::opened::{self, Requirement};

/// The device that a guest with rxe gets, its network interface, and the other end of this.
const ADDED: &str = "siwtest";
const NETDEV: &str = "siwnear";
const PEER: &str = "siwfar";
/// The IP address of that interface.
const ADDED_IP: Ipv4Addr = Ipv4Addr::new(10, 79, 0, 1);
/// The IP address of the lab's link.
const LAB_IP: Ipv4Addr = Ipv4Addr::new(10, 1, 0, 1);

/// The link that a test has added.
static LINK: Mutex<Option<Link>> = Mutex::new(None);

/// A siw device on a veth pair. Drop removes them.
struct Link;

impl Link {
    fn new() -> Self {
        // A test that was killed leaves them.
        remove();
        ip(&format!("link add name {NETDEV} type veth peer name {PEER}"));
        let link = Self;
        ip(&format!("address add {ADDED_IP}/24 dev {NETDEV}"));
        for netdev in [PEER, NETDEV] {
            ip(&format!("link set dev {netdev} up"));
        }
        add_device(ADDED, NETDEV);
        link
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        remove();
    }
}

fn remove() {
    // A test may have removed the device.
    let _ = RdmaNetlink::open().and_then(|mut netlink| netlink.del_link(ADDED));
    let _ = attempt("ip", &format!("link del {NETDEV}"));
}

/// Creates a siw device on a network interface, and waits until its port is active.
pub(crate) fn add_device(name: &str, netdev: &str) {
    RdmaNetlink::open().expect("RDMA netlink").new_link(name, "siw", netdev).expect("a siw device");
    let state = format!("/sys/class/infiniband/{name}/ports/1/state");
    let begin = Instant::now();
    while !std::fs::read_to_string(&state).is_ok_and(|state| state.contains("ACTIVE")) {
        assert!(begin.elapsed() < TIMEOUT, "the port of {name} does not come up");
        sleep(Duration::from_millis(5));
    }
}

/// For tests of iWARP: the device of the tests is siw. A guest with rxe gets a siw device for the test.
///
/// # Errors
/// If the guest has a software ConnectX, or the kernel has no `siw` module.
///
/// # Panics
/// If the guest has no RDMA device, or rejects the link.
pub fn iwarp() -> Requirement {
    let devices = bareverbs::devices().map_err(|error| error.to_string())?;
    let driver = |id| devices.iter().find(|device| device.driver_id() == Some(id));
    if let Some(siw) = driver(DriverId::SIW) {
        opened::choose(siw.name());
        return Ok(());
    }
    if driver(DriverId::RXE).is_none() {
        return Err("the test adds a siw device to a guest with rxe".into());
    }
    if !Path::new("/sys/module/siw").exists() {
        return Err("this kernel has no siw module".into());
    }
    *LINK.lock().expect("no thread panics with it") = Some(Link::new());
    opened::choose(ADDED);
    Ok(())
}

/// Removes the link of an earlier test that was killed: other tests count the devices.
pub(crate) fn remove_abandoned_link() {
    if Path::new("/sys/class/infiniband").join(ADDED).exists() {
        remove();
    }
}

/// Removes the link that [`iwarp`] has added.
pub(crate) fn remove_link() {
    *LINK.lock().expect("no thread panics with it") = None;
}

/// Whether the device of the tests speaks iWARP.
///
/// # Panics
/// If there is no RDMA device.
pub fn is_iwarp() -> bool {
    opened::device().node_type() == NodeType::RNIC
}

/// The IP address of the siw device.
pub(crate) fn address() -> Ipv4Addr {
    if opened::name() == ADDED { ADDED_IP } else { LAB_IP }
}
