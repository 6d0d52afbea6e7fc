//! The device that the guest has, and what tests need of it.
//!
//! Tests are the same for every device. What only some devices have, a test names beside itself in
//! [`kernel_tests!`](crate::kernel_tests), and is skipped with the reason elsewhere:
//!
//! ```
//! use bareverbs_kernel_tests::device;
//!
//! fn a_peer_is_found_by_its_ip_address() {}
//!
//! bareverbs_kernel_tests::kernel_tests! { a_peer_is_found_by_its_ip_address if device::ethernet }
//! ```

use std::fs;
use std::path::PathBuf;
use std::sync::{Once, OnceLock};

use bareverbs::{
    Access, Context, CqInit, Device, DeviceCapFlags, DriverId, Gid, LinkLayer, Operation, Payload, Qp,
    QpInit, Rc,
};

use crate::loopback::{Plan, domain, pair, request};

/// What a test that can't run says.
pub type Requirement = Result<(), String>;

/// The device's name; that of the first where there are several.
///
/// # Panics
/// If there is none.
pub fn name() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| Device::first().expect("the guest has an RDMA device").name().to_owned())
}

/// The device.
///
/// # Panics
/// If there is none.
pub fn device() -> Device {
    Device::find(name()).expect("the guest's device")
}

/// Makes what the driver makes objects of its own for, at the first time: a queue pair and a
/// region. Whoever counts objects afterwards counts those of programs.
///
/// # Panics
/// If the device makes none.
pub fn warm_up() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let pd = open().alloc_pd().expect("a protection domain");
        let cq = pd.context().create_cq(&CqInit::new(1)).expect("a completion queue");
        let qp: Qp<Rc> = pd.create_qp(&QpInit::new(&cq, &cq)).expect("a queue pair");
        let region = pd.register(vec![0; 64], Access::LOCAL_WRITE).expect("a region");
        drop((region, qp, cq, pd));
    });
}

/// Opens it.
///
/// # Panics
/// If it can't be opened.
pub fn open() -> Context {
    device().open().expect("the device opens")
}

/// A file about it in sysfs.
pub fn sysfs(file: &str) -> PathBuf {
    PathBuf::from(format!("/sys/class/infiniband/{}/{file}", name()))
}

/// What a file about it in sysfs holds, without the end of its line.
///
/// # Panics
/// If there is no such file.
pub fn read_sysfs(file: &str) -> String {
    let path = sysfs(file);
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.trim().to_owned()
}

/// The network interface under it.
///
/// # Panics
/// If it has none, as on InfiniBand.
pub fn netdev() -> String {
    read_sysfs(&format!("ports/1/gid_attrs/ndevs/{}", gid_index()))
}

/// The GID that tests use, as [`Context::default_gid`] chooses it: that of 10.1.0.1 on Ethernet.
///
/// # Panics
/// If the port has none.
pub fn gid() -> Gid {
    open().default_gid(1).expect("the port has an address").gid
}

/// Its place in the table.
///
/// # Panics
/// If the port has none.
pub fn gid_index() -> u32 {
    open().default_gid(1).expect("the port has an address").index
}

/// Whether the port is of InfiniBand.
///
/// # Panics
/// If the device can't be asked.
pub fn is_infiniband() -> bool {
    open().query_port(1).expect("the first port").link_layer == LinkLayer::INFINIBAND
}

/// Whether it is Soft-RoCE.
pub fn is_soft_roce() -> bool {
    device().driver_id() == Some(DriverId::RXE)
}

/// For tests of what goes over IP addresses and network interfaces.
///
/// # Errors
/// The port is of InfiniBand.
pub fn ethernet() -> Requirement {
    need(!is_infiniband(), || {
        "its port is of InfiniBand, and has neither an IP address nor a network interface".into()
    })
}

/// For tests of what a process does up to its end: a program instrumented for coverage writes its
/// counts then.
///
/// # Errors
/// The programs are instrumented.
pub fn not_instrumented() -> Requirement {
    let instrumented = std::env::var_os("LLVM_PROFILE_FILE").is_some();
    need(!instrumented, || "the programs are instrumented, and write their counts when they exit".into())
}

/// For tests of multicast groups that are known by their GIDs alone.
///
/// # Errors
/// The port is of InfiniBand.
pub fn multicast_by_gid() -> Requirement {
    need(!is_infiniband(), || "its port is of InfiniBand, where a group has a LID too".into())
}

/// For tests of what only InfiniBand has.
///
/// # Errors
/// The port is of another kind.
pub fn infiniband() -> Requirement {
    need(is_infiniband(), || "its port is not of InfiniBand".into())
}

/// For tests of what becomes of datagrams over an address handle that they should not go over:
/// Soft-RoCE's own way, whose requests name a handle, which the driver looks up. No capability
/// tells of it, and only a wrong handle could show it.
///
/// # Errors
/// Another driver's device.
pub fn soft_roce_validates_ah() -> Requirement {
    need(is_soft_roce(), || {
        format!("a request to {} holds the address itself, and no handle that could be a wrong one", name())
    })
}

/// For tests of shared receive queues that change their size.
///
/// # Errors
/// The device has none.
pub fn srq_resize() -> Requirement {
    let flags = open().query_device().expect("the device's attributes").device_cap_flags;
    need(flags.contains(DeviceCapFlags::SRQ_RESIZE), || {
        format!("{} does not resize shared receive queues", name())
    })
}

/// For tests of what may not be done with windows and the regions beneath: Soft-RoCE's own way,
/// whose driver carries binds out and looks after what is bound to what. No capability tells of it.
///
/// # Errors
/// Another driver's device. On a ConnectX a bind is a change of a memory key, which the device
/// carries out as it is told, and no driver knows of.
pub fn soft_roce_validates_binds() -> Requirement {
    need(is_soft_roce(), || {
        format!("a bind on {} is a change of a memory key, carried out as it is told", name())
    })
}

/// For tests of send queues that are drained.
///
/// # Errors
/// The driver refuses that step of the state machine.
pub fn sqd() -> Requirement {
    let (mut a, _b) = pair(&domain(), Plan::default());
    let refused = a.qp.drain().err();
    need(refused.is_none(), || format!("{} drains no send queue: {refused:?}", name()))
}

/// For tests of sends that wait for their doorbell.
///
/// # Errors
/// A doorbell costs the device so little that its provider tells it of every request at once.
///
/// # Panics
/// If the provider refuses a message of no bytes.
pub fn deferred_doorbells() -> Requirement {
    let (mut a, _b) = pair(&domain(), Plan::default());
    let nothing = request(1, Operation::Send, Payload::Inline(&[]));
    // SAFETY: the request names no memory.
    unsafe { a.qp.post_send_deferred(&[nothing]) }.expect("a message of no bytes");
    need(a.qp.split().0.deferred() == 1, || format!("{} is told of every request at once", name()))
}

/// What a query in INIT tells of a queue pair's rights. ConnectX has no place for local ones, and
/// none for those of reads and atomics until it is to serve some (`mlx5_ib`'s `qp.c`).
pub fn reported_access(rights: Access) -> Access {
    if is_soft_roce() { rights } else { rights & Access::REMOTE_WRITE }
}

/// For tests of Soft-RoCE's provider, and of what RDMA netlink can do with its devices alone.
///
/// # Errors
/// Another driver's device.
pub fn soft_roce() -> Requirement {
    need(is_soft_roce(), || format!("{} is no device of Soft-RoCE", name()))
}

/// For tests of the ConnectX's provider.
///
/// # Errors
/// Another driver's device.
pub fn connectx() -> Requirement {
    need(device().driver_id() == Some(DriverId::MLX5), || format!("{} is no ConnectX", name()))
}

/// For tests that take the device from its driver.
///
/// # Errors
/// It is on no bus, as that of Soft-RoCE, for whose removal the kernel waits until nobody uses it.
pub fn unbindable() -> Requirement {
    need(sysfs("device/driver/unbind").exists(), || {
        format!("{} is on no bus that it could be taken from", name())
    })
}

/// For tests of extended reliable connections.
///
/// # Errors
/// The device has no XRC domains.
pub fn xrc() -> Requirement {
    need(open().capabilities().xrc, || format!("{} has no XRC domains", name()))
}

/// For tests of what a device refuses that has no extended reliable connections.
///
/// # Errors
/// The device has XRC domains.
pub fn no_xrc() -> Requirement {
    need(xrc().is_err(), || format!("{} has XRC domains", name()))
}

/// For tests of completion timestamps, and of the clock that they are of.
///
/// # Errors
/// The device has none.
pub fn timestamps() -> Requirement {
    need(open().capabilities().completion_timestamps, || format!("{} has no completion timestamps", name()))
}

/// For tests of what a device refuses that has no completion timestamps.
///
/// # Errors
/// The device has some.
pub fn no_timestamps() -> Requirement {
    need(timestamps().is_err(), || format!("{} has completion timestamps", name()))
}

/// For tests of messages that come in their completions.
///
/// # Errors
/// The device, or its provider, does not do that.
pub fn scatter() -> Requirement {
    let pd = open().alloc_pd().map_err(|error| error.to_string())?;
    let cq = pd.context().create_cq(&CqInit::new(1)).map_err(|error| error.to_string())?;
    let made = pd.create_qp::<Rc>(&QpInit { scatter_to_cqe: true, ..QpInit::new(&cq, &cq) });
    need(made.is_ok(), || format!("completions of {} carry no messages", name()))
}

/// For tests of compressed completions.
///
/// # Errors
/// The device compresses none.
pub fn compression() -> Requirement {
    need(open().capabilities().compressed_completions, || format!("{} compresses no completions", name()))
}

/// For tests of what a device refuses that compresses no completions.
///
/// # Errors
/// The device compresses some.
pub fn no_compression() -> Requirement {
    need(compression().is_err(), || format!("{} compresses completions", name()))
}

/// For tests of memory on the device.
///
/// # Errors
/// The device has none.
pub fn device_memory() -> Requirement {
    need(open().capabilities().device_memory, || format!("{} has no device memory", name()))
}

/// For tests of what a device refuses that has no memory of its own.
///
/// # Errors
/// The device has some.
pub fn no_device_memory() -> Requirement {
    need(device_memory().is_err(), || format!("{} has device memory", name()))
}

/// For tests of the null MR.
///
/// # Errors
/// The device has none.
pub fn null_mr() -> Requirement {
    need(open().capabilities().null_mr, || format!("{} has no null MR", name()))
}

/// For tests of contexts that several processes use.
///
/// # Errors
/// The driver's contexts are for one.
pub fn import() -> Requirement {
    need(open().capabilities().import, || format!("{} has contexts for one process only", name()))
}

/// For tests of what a device refuses whose contexts are for one process.
///
/// # Errors
/// They are for several.
pub fn no_import() -> Requirement {
    need(import().is_err(), || format!("{} has contexts that several processes can use", name()))
}

/// For tests of whole frames.
///
/// # Errors
/// The device has no queue pairs for them.
pub fn raw_packets() -> Requirement {
    need(open().capabilities().raw_packets, || format!("{} has no queue pairs of raw packets", name()))
}

/// For tests of what a device refuses that has no queue pairs of whole frames.
///
/// # Errors
/// It has some.
pub fn no_raw_packets() -> Requirement {
    need(raw_packets().is_err(), || format!("{} has queue pairs of raw packets", name()))
}

/// For tests of work queues, and of what spreads frames over them.
///
/// # Errors
/// The device has none.
pub fn work_queues() -> Requirement {
    let capabilities = *open().capabilities();
    need(capabilities.work_queues && capabilities.rss, || format!("{} has no work queues", name()))
}

/// For tests of what a device refuses that has no work queues.
///
/// # Errors
/// It has some.
pub fn no_work_queues() -> Requirement {
    need(work_queues().is_err(), || format!("{} has work queues", name()))
}

/// The other end of the wire that the lab puts Soft-RoCE on.
pub const FAR: &str = "veth1";

/// For tests with a host at the other end of the wire, and of the wire itself.
///
/// # Errors
/// The interface under the device is not the lab's.
pub fn wired() -> Requirement {
    ethernet()?;
    let there = PathBuf::from(format!("/sys/class/net/{FAR}")).exists();
    need(there, || format!("there is nobody at the other end of the wire, as {FAR} is with Soft-RoCE"))
}

fn need(met: bool, otherwise: impl FnOnce() -> String) -> Requirement {
    if met { Ok(()) } else { Err(otherwise()) }
}
