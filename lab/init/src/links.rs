//! The guest's network: loopback, the link below the software device, the device itself.

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bareverbs_lab_init::{HcaPort, Job, Link, LinkType};

use crate::netlink::{Netlink, Rdma, Route};
use crate::port::Sender;
use crate::{capture, netlink};

/// IP over the HCA's InfiniBand port.
const IPOIB: &str = "ib0";

/// Brings up `lo`, the link, its address and the software device, and waits until that is ready to use.
pub(crate) fn set_up(job: &Job, sender: &Sender) -> Result<()> {
    // Without this, link-local addresses are unusable for the first second.
    for scope in ["all", "default"] {
        fs::write(format!("/proc/sys/net/ipv6/conf/{scope}/accept_dad"), "0")
            .context("switching off IPv6 DAD")?;
    }
    let mut route: Netlink<Route> = Netlink::open()?;
    route.set_up("lo")?;
    let address = Ipv4Addr::new(10, 1, 0, job.host);
    if job.hca == Some(HcaPort::Roce) {
        let device = find_netdev("mlx5_core")?;
        route.set_up(&device)?;
        route.add_address(&device, address, 24)?;
        return wait_until_usable("mlx5_0", Some(address));
    }
    let device = match job.link {
        Link::Veth => {
            route.add_veth("veth0", "veth1")?;
            route.set_up("veth1")?;
            "veth0".to_owned()
        }
        Link::Nic => find_netdev("virtio_net")?,
    };
    route.set_up(&device)?;
    route.add_address(&device, address, 24)?;
    if job.capture {
        capture::start(netlink::index(&device)?, sender)?;
    }
    if job.hca.is_some() {
        wait_until_usable("mlx5_0", None)?;
        // Kernels without IPoIB have no such interface.
        if netlink::index(IPOIB).is_ok() {
            route.set_up(IPOIB)?;
            route.add_address(IPOIB, Ipv4Addr::new(10, 2, 0, job.host), 24)?;
        }
        return Ok(());
    }
    let mut rdma: Netlink<Rdma> = Netlink::open()?;
    // The only GID of siw is made of the link's MAC address.
    let (name, kind, gid_of) = match job.link_type {
        LinkType::Rxe => ("rxe0", "rxe", Some(address)),
        LinkType::Siw => ("siw0", "siw", None),
    };
    rdma.add_link(name, kind, &device)?;
    wait_until_usable(name, gid_of)
}

/// The first NIC of this driver.
fn find_netdev(driver: &str) -> Result<String> {
    let deadline = Instant::now() + Duration::from_secs(10);
    while Instant::now() < deadline {
        for entry in fs::read_dir("/sys/class/net")? {
            let entry = entry?;
            let bound = fs::read_link(entry.path().join("device/driver"));
            if bound.is_ok_and(|bound| bound.ends_with(driver)) {
                return Ok(entry.file_name().to_string_lossy().into_owned());
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    bail!("no NIC of {driver} in /sys/class/net")
}

/// A work queue of the kernel fills the GID table, and the device nodes appear asynchronously.
fn wait_until_usable(device: &str, address: Option<Ipv4Addr>) -> Result<()> {
    let port = Path::new("/sys/class/infiniband").join(device).join("ports/1");
    let gid = address.map(|address| {
        let octets = address.octets();
        format!(
            "0000:0000:0000:0000:0000:ffff:{:02x}{:02x}:{:02x}{:02x}",
            octets[0], octets[1], octets[2], octets[3]
        )
    });
    let deadline = Instant::now() + Duration::from_secs(20);
    loop {
        let active = read(&port.join("state")).contains("ACTIVE");
        let addressed = gid
            .as_ref()
            .is_none_or(|gid| (0..8).any(|index| read(&port.join(format!("gids/{index}"))).trim() == gid));
        if active && addressed && Path::new("/dev/infiniband/uverbs0").exists() {
            return Ok(());
        }
        if Instant::now() > deadline {
            bail!("{device} did not come up: port active: {active}, GID of its address present: {addressed}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default()
}
