//! The device of the tests, and conditions of tests on the device.
//!
//! Tests are the same for all devices. A test that needs an optional feature names a condition in
//! its attribute, and is skipped with the reason on other devices:
//!
//! ```
//! use bareverbs_test_support::{device, kernel_test};
//!
//! #[kernel_test(device::ethernet)]
//! fn peer_resolves_by_ip_address() {}
//! # fn main() {}
//! ```

use std::fs;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::Once;

use bareverbs::cq::CqInit;
use bareverbs::device::{DeviceCapFlags, DriverId, LinkLayer};
use bareverbs::error::ErrorOrigin;
use bareverbs::qp::{Operation, Payload, Qp, QpInit, QpState, Rc};
use bareverbs::{Access, Gid};

use crate::harness::in_lab;
use crate::iwarp;
pub use crate::iwarp::{is_iwarp, iwarp};
use crate::loopback::{Plan, domain, pair, request};
pub use crate::opened::{Requirement, between_processes, device, file, name, open};

/// Creates a queue pair and a region, so that the driver creates the internal objects that it
/// creates on first use. After this call, object counts change only with the objects of programs.
///
/// # Panics
/// If the device can't create them.
pub fn warm_up() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let pd = open().alloc_pd().expect("a protection domain");
        let cq = pd.context().create_cq(&CqInit::new(1)).expect("a CQ");
        let qp: Qp<Rc> = pd.create_qp(&QpInit::new(&cq, &cq)).expect("a queue pair");
        let region = pd.register(vec![0; 64], Access::LOCAL_WRITE).expect("a region");
        drop((region, qp, cq, pd));
    });
}

/// The path of the device's file in sysfs.
pub fn sysfs(file: &str) -> PathBuf {
    PathBuf::from(format!("/sys/class/infiniband/{}/{file}", name()))
}

/// The content of the device's file in sysfs, without the newline.
///
/// # Panics
/// If the device has no file of this name in sysfs.
pub fn read_sysfs(file: &str) -> String {
    let path = sysfs(file);
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.trim().to_owned()
}

/// The network interface of the device.
///
/// # Panics
/// If the device has no network interface, as on InfiniBand.
pub fn netdev() -> String {
    // The GID of an iWARP device is its MAC address.
    let index = if is_iwarp() { 0 } else { gid_index() };
    read_sysfs(&format!("ports/1/gid_attrs/ndevs/{index}"))
}

/// The GID that tests use, as [`Context::default_gid`](bareverbs::Context::default_gid) chooses it. On
/// Ethernet it is the GID of 10.1.0.1.
///
/// # Panics
/// If the port has no GID.
pub fn gid() -> Gid {
    open().default_gid(1).expect("the port has an address").gid
}

/// The IP address of the device: 10.2.0.1 of IPoIB on InfiniBand.
///
/// # Panics
/// If the port of a RoCE device has no GID of an IPv4 address.
pub fn ip() -> Ipv4Addr {
    match is_infiniband() {
        true => Ipv4Addr::new(10, 2, 0, 1),
        false if is_iwarp() => iwarp::address(),
        false => gid().ipv4().expect("the address is IPv4"),
    }
}

/// The index of [`gid`] in the GID table.
///
/// # Panics
/// If the port has no GID.
pub fn gid_index() -> u8 {
    open().default_gid(1).expect("the port has an address").index.into()
}

/// Whether the port's link layer is InfiniBand.
///
/// # Panics
/// If the query fails.
pub fn is_infiniband() -> bool {
    open().query_port(1).expect("the first port").link_layer == LinkLayer::INFINIBAND
}

/// Whether the device has the ABI of Soft-RoCE: it is Soft-RoCE, or a soft device.
pub fn has_rxe_abi() -> bool {
    device().driver_id() == Some(DriverId::RXE)
}

/// Whether a doorbell is a system call, because the driver executes requests.
pub fn posts_by_call() -> bool {
    has_rxe_abi() || is_iwarp()
}

/// The state of a QP in RESET, as queried from the kernel. Soft-iWARP has one state for RESET and INIT. Since
/// Linux 6.12 it reports INIT, and before that no state, which reads as RESET.
///
/// # Panics
/// If `/proc` is not mounted.
pub fn reported_reset() -> QpState {
    if is_iwarp() && !kernel_is("6.1.") { QpState::INIT } else { QpState::RESET }
}

/// Whether the device ends its connections when its interface goes down. Soft-iWARP does before Linux 6.12.
///
/// # Panics
/// If `/proc` is not mounted.
pub fn link_down_ends_connections() -> bool {
    is_iwarp() && kernel_is("6.1.")
}

/// What the errors of the device's calls name.
pub fn error_origin() -> ErrorOrigin {
    if is_soft_device() { ErrorOrigin::Device } else { ErrorOrigin::Kernel }
}

/// Whether the device is a soft device of this process.
pub fn is_soft_device() -> bool {
    device().soft().is_some()
}

/// Whether the device is Soft-RoCE, the kernel's driver.
pub fn is_soft_roce() -> bool {
    has_rxe_abi() && !is_soft_device()
}

/// For tests of sysfs, RDMA netlink, device nodes and other files of the kernel.
///
/// # Errors
/// If the device is a soft device.
pub fn has_device_node() -> Requirement {
    need(!is_soft_device(), || {
        "a soft device is unknown to the kernel: no device node, sysfs, RDMA netlink".into()
    })
}

/// For tests whose processes use the same device: programs that they run, and children that they fork or
/// kill.
///
/// # Errors
/// If the device is a soft device.
pub fn shared_between_processes() -> Requirement {
    need(!is_soft_device(), || "a soft device belongs to one process: no other process can use it".into())
}

/// For tests of what the device does while its process is stopped, or after it was killed.
///
/// # Errors
/// If the device is a soft device.
pub fn outlives_its_process() -> Requirement {
    need(!is_soft_device(), || {
        "a soft device stops and ends with its process: peers get no message of a killed process".into()
    })
}

/// For tests of the list of devices, and of programs that open the first device of it.
///
/// # Errors
/// If the device is a soft device, which is not listed.
pub fn is_listed() -> Requirement {
    need(!is_soft_device(), || "a soft device is opened by its name: it is not listed".into())
}

/// For tests that count the allocations or the system calls of a thread that posts, or rely on progress
/// without it.
///
/// # Errors
/// If the device is a soft device.
pub fn off_caller_thread() -> Requirement {
    need(!is_soft_device(), || {
        "a soft device executes in the thread that posts, also what it allocates".into()
    })
}

/// For tests with a network interface: they change its addresses, neighbours or link.
///
/// # Errors
/// If the port is InfiniBand, or that of a soft device.
pub fn has_netdev() -> Requirement {
    ethernet()?;
    need(!is_soft_device(), || "a soft device has no network interface".into())
}

/// For tests that change system settings or the user id.
///
/// # Errors
/// If the user is not root of a guest.
pub fn root() -> Requirement {
    need(in_lab(), || "the test changes settings or the user id as root of a guest".into())
}

/// For tests of the limit on locked memory.
///
/// # Errors
/// If the device is a soft device.
pub fn pins_memory() -> Requirement {
    need(!is_soft_device(), || "a soft device pins no memory, so RLIMIT_MEMLOCK has no effect".into())
}

/// For tests with IP addresses and network interfaces.
///
/// # Errors
/// If the port is InfiniBand.
pub fn ethernet() -> Requirement {
    need(!is_infiniband(), || {
        "the port's link layer is InfiniBand, without an IP address and a network interface".into()
    })
}

/// For tests that observe a process until it exits. A program with coverage instrumentation writes
/// its counts at exit.
///
/// # Errors
/// If the programs are instrumented.
pub fn not_instrumented() -> Requirement {
    let instrumented = std::env::var_os("LLVM_PROFILE_FILE").is_some();
    need(!instrumented, || "instrumented programs write their profiles at exit".into())
}

/// For tests of multicast groups that are identified by GID only.
///
/// # Errors
/// If the port is InfiniBand.
pub fn multicast_by_gid() -> Requirement {
    need(!is_infiniband(), || "the port's link layer is InfiniBand: a multicast group has an MLID too".into())
}

/// For tests of InfiniBand.
///
/// # Errors
/// If the port is Ethernet.
pub fn infiniband() -> Requirement {
    need(is_infiniband(), || "the port's link layer is not InfiniBand".into())
}

/// For tests of UC and UD queue pairs, address handles and multicast groups.
///
/// # Errors
/// If the device is one of iWARP, which has RC queue pairs only.
pub fn ib_transports() -> Requirement {
    without_iwarp("RC is the only transport of iWARP: it has no UC, UD, address handles and multicast groups")
}

/// For tests of the attributes and transitions that connect a queue pair, and of RESET after RTS.
///
/// # Errors
/// If the device is one of iWARP, where the kernel's connection manager moves the queue pair.
pub fn moves_qps() -> Requirement {
    without_iwarp("on iWARP the kernel's connection manager moves QPs, and a QP connects once")
}

/// For tests of the status that a peer gives to a SEND or WRITE, and of its receiver-not-ready retries.
///
/// # Errors
/// If the device is one of iWARP, where such a request completes before the peer has it.
pub fn acknowledges() -> Requirement {
    without_iwarp("a SEND or WRITE of iWARP completes before the peer has it: it has no status of the peer")
}

/// For tests in which a message waits until its receive is posted.
///
/// # Errors
/// If the device is one of iWARP, where such a message ends the connection.
pub fn waits_for_receives() -> Requirement {
    without_iwarp("a message without a posted receive ends a connection of iWARP")
}

/// For tests of connections whose queue pairs exist in name only.
///
/// # Errors
/// If the device is one of iWARP, whose connection manager looks queue pairs up.
pub fn connects_any_qp_number() -> Requirement {
    without_iwarp("the connection manager of iWARP connects QPs that exist")
}

/// For tests of immediate data.
///
/// # Errors
/// If the device is one of iWARP.
pub fn immediates() -> Requirement {
    without_iwarp("iWARP has no immediate data")
}

/// For tests of atomics.
///
/// # Errors
/// If the device is one of iWARP.
pub fn atomics() -> Requirement {
    without_iwarp("iWARP has no atomics")
}

/// For tests of READs with several SGEs.
///
/// # Errors
/// If the device is one of iWARP.
pub fn read_lists() -> Requirement {
    without_iwarp("a READ of iWARP has one SGE")
}

/// For tests of memory windows.
///
/// # Errors
/// If the device has none.
pub fn memory_windows() -> Requirement {
    let limit = open().query_device().expect("the device's attributes").max_mw;
    need(limit > 0, || format!("{} has no memory windows", name()))
}

/// For tests of CQ resize.
///
/// # Errors
/// If the device is Soft-iWARP, which does not support it. No capability reports this.
pub fn cq_resize() -> Requirement {
    without_iwarp("Soft-iWARP has no CQ resize")
}

/// For tests of CQs that solicited completions alone wake.
///
/// # Errors
/// If the device is Soft-iWARP: its driver does not report that a receive is solicited.
pub fn solicited_only() -> Requirement {
    without_iwarp("Soft-iWARP wakes a CQ for each completion")
}

/// For tests of memory regions with an address of their own.
///
/// # Errors
/// If the device is Soft-iWARP, which addresses memory by its address in the process.
pub fn iova() -> Requirement {
    without_iwarp("Soft-iWARP addresses a region by its memory's address")
}

/// For tests of the layout of queues in memory.
///
/// # Errors
/// If the provider does not report it: the entries of Soft-iWARP's queues are published one by one, by a
/// flag.
pub fn queue_layout() -> Requirement {
    without_iwarp("the queues of Soft-iWARP have no producer index")
}

/// For tests of P_Keys.
///
/// # Errors
/// If the device is one of iWARP.
pub fn pkeys() -> Requirement {
    without_iwarp("iWARP has no P_Keys")
}

/// For tests of path records.
///
/// # Errors
/// If the device is one of iWARP.
pub fn path_records() -> Requirement {
    without_iwarp("iWARP has no path records")
}

/// For tests of ports that only RDMA has.
///
/// # Errors
/// If the device is one of iWARP, whose ports are those of TCP.
pub fn has_own_ports() -> Requirement {
    without_iwarp("a port of iWARP is a TCP port of the host")
}

/// For tests of the device's own counters.
///
/// # Errors
/// If the device is Soft-iWARP, which has none.
pub fn has_counters() -> Requirement {
    without_iwarp("Soft-iWARP has no counters")
}

/// For tests of GIDs of IP addresses.
///
/// # Errors
/// If the device is one of iWARP.
pub fn gid_table() -> Requirement {
    without_iwarp("the only GID of an iWARP device is its MAC address")
}

/// Whether the release of the kernel starts like this.
fn kernel_is(start: &str) -> bool {
    fs::read_to_string("/proc/sys/kernel/osrelease").expect("the release of the kernel").starts_with(start)
}

fn without_iwarp(reason: &str) -> Requirement {
    need(!is_iwarp(), || reason.into())
}

/// For tests of datagrams with an invalid address handle. On Soft-RoCE, a request names an address
/// handle that the driver looks up. No capability reports this. Only a request with an invalid
/// handle would detect it.
///
/// # Errors
/// If the device has another driver.
pub fn soft_roce_validates_ah() -> Requirement {
    need(has_rxe_abi(), || format!("WQEs of {} contain the address vector, not the number of an AH", name()))
}

/// For tests of SRQ resize.
///
/// # Errors
/// If the device does not support it.
pub fn srq_resize() -> Requirement {
    let flags = open().query_device().expect("the device's attributes").device_cap_flags;
    need(flags.contains(DeviceCapFlags::SRQ_RESIZE), || format!("{} does not support SRQ resize", name()))
}

/// For tests of forbidden uses of windows and their regions. Soft-RoCE's driver executes binds and
/// checks them. No capability reports this.
///
/// # Errors
/// If the device has another driver. On a ConnectX a bind modifies an mkey. The device does not
/// check it, and the driver does not see it.
pub fn soft_roce_validates_binds() -> Requirement {
    need(has_rxe_abi(), || format!("{} executes binds as UMRs and does not check the MR", name()))
}

/// For tests of SQD.
///
/// # Errors
/// If the driver rejects the transition.
pub fn sqd() -> Requirement {
    let (mut a, _b) = pair(&domain(), Plan::default());
    let refused = a.qp.drain().err();
    need(refused.is_none(), || format!("{} does not support SQD: {refused:?}", name()))
}

/// For tests of deferred doorbells.
///
/// # Errors
/// If the provider rings the doorbell for each request, because a doorbell costs little.
///
/// # Panics
/// If the provider rejects a message of 0 bytes.
pub fn deferred_doorbells() -> Requirement {
    let (mut a, _b) = pair(&domain(), Plan::default());
    let nothing = request(1, Operation::Send, Payload::Inline(&[]));
    // SAFETY: the request has no SGEs.
    unsafe { a.qp.post_send_deferred(&[nothing]) }.expect("a message of no bytes");
    need(a.qp.split().0.deferred() == 1, || format!("{} has no deferred doorbells", name()))
}

/// The access rights that a query in INIT reports. ConnectX reports no local rights, and reports
/// remote read and atomic only with a non-zero responder depth (`mlx5_ib`'s `qp.c`).
pub fn reported_access(rights: Access) -> Access {
    if has_rxe_abi() { rights } else { rights & Access::REMOTE_WRITE }
}

/// For tests of Soft-RoCE's provider.
///
/// # Errors
/// If the device has another ABI.
pub fn rxe_abi() -> Requirement {
    need(has_rxe_abi(), || format!("{} has not the ABI of Soft-RoCE", name()))
}

/// For tests of Soft-RoCE's driver in the kernel and of RDMA netlink functions for its devices.
///
/// # Errors
/// If the device has another driver.
pub fn soft_roce() -> Requirement {
    need(is_soft_roce(), || format!("{} is not an rxe device of the kernel", name()))
}

/// For tests of the mlx5 provider.
///
/// # Errors
/// If the device has another driver.
pub fn connectx() -> Requirement {
    need(device().driver_id() == Some(DriverId::MLX5), || format!("{} is not a ConnectX", name()))
}

/// For tests that unbind the device's driver.
///
/// # Errors
/// If the device is on no bus. Soft-RoCE is not, and the kernel removes it only when it is unused.
pub fn unbindable() -> Requirement {
    need(sysfs("device/driver/unbind").exists(), || {
        format!("{} has no driver to unbind (virtual device)", name())
    })
}

/// For tests of XRC.
///
/// # Errors
/// If the device does not support XRC.
pub fn xrc() -> Requirement {
    need(open().capabilities().xrc, || format!("{} has no XRC domains", name()))
}

/// For tests that XRC is rejected as unsupported.
///
/// # Errors
/// If the device supports XRC.
pub fn no_xrc() -> Requirement {
    need(xrc().is_err(), || format!("{} has XRC domains", name()))
}

/// For tests of completion timestamps and of the device's clock.
///
/// # Errors
/// If the device has none.
pub fn timestamps() -> Requirement {
    need(open().capabilities().completion_timestamps, || format!("{} has no completion timestamps", name()))
}

/// For tests that completion timestamps are rejected as unsupported.
///
/// # Errors
/// If the device has them.
pub fn no_timestamps() -> Requirement {
    need(timestamps().is_err(), || format!("{} has completion timestamps", name()))
}

/// For tests of scatter to CQE.
///
/// # Errors
/// If the device or its provider does not support it.
pub fn scatter() -> Requirement {
    let pd = open().alloc_pd().map_err(|error| error.to_string())?;
    let cq = pd.context().create_cq(&CqInit::new(1)).map_err(|error| error.to_string())?;
    let made = pd.create_qp::<Rc>(&QpInit { scatter_to_cqe: true, ..QpInit::new(&cq, &cq) });
    need(made.is_ok(), || format!("{} does not support scatter to CQE", name()))
}

/// For tests of compressed CQEs.
///
/// # Errors
/// If the device does not support them.
pub fn compression() -> Requirement {
    need(open().capabilities().compressed_completions, || {
        format!("{} does not support CQE compression", name())
    })
}

/// For tests that compressed CQEs are rejected as unsupported.
///
/// # Errors
/// If the device supports them.
pub fn no_compression() -> Requirement {
    need(compression().is_err(), || format!("{} supports CQE compression", name()))
}

/// For tests of device memory.
///
/// # Errors
/// If the device has none.
pub fn device_memory() -> Requirement {
    need(open().capabilities().device_memory, || format!("{} has no device memory", name()))
}

/// For tests that device memory is rejected as unsupported.
///
/// # Errors
/// If the device has it.
pub fn no_device_memory() -> Requirement {
    need(device_memory().is_err(), || format!("{} has device memory", name()))
}

/// For tests of the null MR.
///
/// # Errors
/// If the device has none.
pub fn null_mr() -> Requirement {
    need(open().capabilities().null_mr, || format!("{} has no null MR", name()))
}

/// For tests of imported contexts.
///
/// # Errors
/// If the driver does not support import.
pub fn import() -> Requirement {
    need(open().capabilities().import, || format!("{} does not support the import of contexts", name()))
}

/// For tests that import is rejected as unsupported.
///
/// # Errors
/// If the driver supports it.
pub fn no_import() -> Requirement {
    need(import().is_err(), || format!("{} supports the import of contexts", name()))
}

/// For tests of raw packet queue pairs.
///
/// # Errors
/// If the device does not support them.
pub fn raw_packets() -> Requirement {
    need(open().capabilities().raw_packets, || format!("{} has no raw packet QPs", name()))
}

/// For tests that raw packet queue pairs are rejected as unsupported.
///
/// # Errors
/// If the device supports them.
pub fn no_raw_packets() -> Requirement {
    need(raw_packets().is_err(), || format!("{} has raw packet QPs", name()))
}

/// For tests of default flow rules. Only the rule itself would detect that the kernel parses memory
/// beyond its specification (docs/kernel-bugs.md).
///
/// # Errors
/// If the kernel is of series 7.
///
/// # Panics
/// If `/proc` is not mounted.
pub fn default_flows() -> Requirement {
    need(!kernel_is("7."), || "this kernel parses memory beyond the specification of default rules".into())
}

/// For tests of work queues and RSS.
///
/// # Errors
/// If the device has no work queues.
pub fn work_queues() -> Requirement {
    let capabilities = *open().capabilities();
    need(capabilities.work_queues && capabilities.rss, || format!("{} has no work queues", name()))
}

/// For tests that work queues are rejected as unsupported.
///
/// # Errors
/// If the device has them.
pub fn no_work_queues() -> Requirement {
    need(work_queues().is_err(), || format!("{} has work queues", name()))
}

/// The other end of the veth pair that the lab creates for Soft-RoCE.
pub const FAR: &str = "veth1";

/// For tests with a host at the other end of the veth pair.
///
/// # Errors
/// If the interface of the device is not the lab's.
pub fn has_peer_veth() -> Requirement {
    ethernet()?;
    let there = PathBuf::from(format!("/sys/class/net/{FAR}")).exists();
    need(there, || format!("there is no peer interface {FAR}"))
}

fn need(met: bool, otherwise: impl FnOnce() -> String) -> Requirement {
    if met { Ok(()) } else { Err(otherwise()) }
}
