//! Soft devices: RoCE v2 devices in this process, without a kernel module, a network interface or
//! privileges.
//!
//! A soft device has the ABI of Soft-RoCE and its provider, so a program uses it as any other
//! device. Devices on the same [`Fabric`] reach each other; [bound](SoftDevice::bind) devices also
//! reach other processes and hosts. Fabrics are separate: tests that run in parallel create one
//! each.
//!
//! ```
//! use bareverbs::soft::{Fabric, SoftDevice};
//! use bareverbs::{Access, Buffer, Device, Endpoint, Op};
//!
//! let fabric = Fabric::new();
//! let [alice, bob] = [(); 2].map(|()| Device::from(SoftDevice::new(&fabric)));
//! let [alice, bob] = [alice.open()?.alloc_pd()?, bob.open()?.alloc_pd()?];
//! let [mut sender, mut receiver] = [Endpoint::new(&alice, 1, 1)?, Endpoint::new(&bob, 1, 1)?];
//! sender.connect(&receiver.address())?;
//! receiver.connect(&sender.address())?;
//! receiver.post(Op::recv(bob.register(Buffer::zeroed(64)?, Access::LOCAL_WRITE)?))?;
//! sender.post(Op::send_inline(b"hello, bob"))?;
//! assert_eq!(receiver.next().wait()?.message(), Some(&b"hello, bob"[..]));
//! # Ok::<(), bareverbs::Error>(())
//! ```
//!
//! [`Device::find`] creates devices by name. The same name gives the same device until the process ends:
//!
//! | name | device |
//! |---|---|
//! | `soft0`, `soft1`, … | a device of a fabric that the process has for these names; it opens no network socket |
//! | `soft:ADDRESS` | a device with this IP address of the host, such as `soft:127.0.0.2`; it reaches other processes and hosts by UDP, see [`SoftDevice::bind`] |
//!
//! A device of the kernel that is named `soft0` is preferred.
//!
//! # Time
//!
//! | | real time, [`Fabric::new`] | virtual time, [`Fabric::seeded`] |
//! |---|---|---|
//! | packets are delivered by | calls, such as posts, and by a thread | [`step`](Fabric::step), [`run_until_idle`](Fabric::run_until_idle), [`advance`](Fabric::advance), and waits of threads |
//! | timers expire | by the clock | in [`advance`](Fabric::advance), and in waits when nothing else is left to do |
//! | the limit of a wait is | real time | virtual time |
//! | a wait that nothing can end | blocks | fails with `EDEADLK`, after a second without a call of another thread. So does one without a limit after 20,000 timers without a completion |
//! | the order of events is | that of the threads | the same for the same seed on each machine, if one thread uses the fabric |
//! | other processes | devices with a UDP wire | none |
//!
//! A wait is that of an endpoint, a hub, a channel or a stream of events. On a seeded fabric, waits
//! don't poll. Polling without a wait runs nothing. Neither does an await, because a task that waits
//! can't know whether another one is about to post: a task beside it calls
//! [`run_until_idle`](Fabric::run_until_idle) and [`advance`](Fabric::advance). Keepalives count virtual
//! time: a wait of a thread lets it pass until the next probe, at most 10 times. An await probes when it is
//! polled. With several threads, the order is that of their calls.
//!
//! ```
//! use std::time::Duration;
//!
//! use bareverbs::soft::{Fabric, Fault, SoftDevice};
//! use bareverbs::{Buffer, Device, Endpoint, Mr, Op};
//!
//! let fabric = Fabric::seeded(1);
//! let [alice, bob] = [(); 2].map(|()| Device::from(SoftDevice::new(&fabric)));
//! let [alice, bob] = [alice.open()?.alloc_pd()?, bob.open()?.alloc_pd()?];
//! let mut sender: Endpoint<Mr<Buffer>> = Endpoint::new(&alice, 1, 1)?;
//! let mut receiver: Endpoint<Mr<Buffer>> = Endpoint::new(&bob, 1, 1)?;
//! sender.connect(&receiver.address())?;
//! receiver.connect(&sender.address())?;
//!
//! // The wire is cut: the send fails after all retries, which take no real time.
//! fabric.inject(Fault::drop());
//! sender.post(Op::send_inline(b"hello?"))?;
//! assert!(sender.next().wait().is_err());
//! assert!(fabric.now() > Duration::from_secs(1));
//! # Ok::<(), bareverbs::Error>(())
//! ```
//!
//! # Injected faults
//!
//! [`Fabric::inject`] injects a [`Fault`] into packets, in real time and in virtual time, on the
//! wire of the process and on UDP. Each kind of fault takes each filter and each selection:
//!
//! ```
//! use std::time::Duration;
//!
//! use bareverbs::soft::{Fabric, Fault, Opcode, SoftDevice};
//! use bareverbs::{Access, Buffer, Device, Endpoint, Op};
//!
//! let fabric = Fabric::seeded(7);
//! let [alice, bob] = [(); 2].map(|()| SoftDevice::new(&fabric));
//! let [a, b] = [&alice, &bob].map(|device| Device::from(device.clone()));
//! let [a, b] = [a.open()?.alloc_pd()?, b.open()?.alloc_pd()?];
//! let [mut sender, mut receiver] = [Endpoint::new(&a, 1, 1)?, Endpoint::new(&b, 1, 1)?];
//! sender.connect(&receiver.address())?;
//! receiver.connect(&sender.address())?;
//! for fault in [
//!     // Lost: the first SEND of one packet.
//!     Fault::drop().opcode(Opcode::SendOnly).nth(1),
//!     // Delivered twice: packets from alice.
//!     Fault::duplicate().from(&alice),
//!     // Overtaken by the next one: each second packet.
//!     Fault::reorder().every(2),
//!     // Delivered later: the first packet to alice.
//!     Fault::delay(Duration::from_millis(2)).to(&alice).nth(1),
//!     // Delivered up to 500 µs later: half of all packets, by the seed.
//!     Fault::jitter(Duration::from_micros(500)).probability(0.5),
//!     // Damaged: the receiver drops the packet, as its ICRC is wrong, and counts it (`SoftDevice::dropped`).
//!     Fault::corrupt().to(&bob).nth(1),
//!     // RNR: the first message to this QP finds no receive.
//!     Fault::rnr().qp(receiver.address().qp_num).nth(1),
//! ] {
//!     let injected = fabric.inject(fault);
//!     receiver.post(Op::recv(b.register(Buffer::zeroed(64)?, Access::LOCAL_WRITE)?))?;
//!     sender.post(Op::send_inline(b"hello, bob"))?;
//!     assert_eq!(receiver.next().wait()?.message(), Some(&b"hello, bob"[..]));
//!     sender.next().wait()?;
//!     println!("{} packets affected at {:?}", injected.count(), fabric.now());
//!     fabric.remove_fault(&injected);
//! }
//! assert_eq!(bob.dropped().corrupt, 1);
//! # Ok::<(), bareverbs::Error>(())
//! ```
//!
//! # Connections by IP address
//!
//! `bareverbs-rdmacm` with its feature `soft` connects by the addresses of the devices. An event
//! channel serves the devices that the process has created by name, if there is one by then, beside
//! those of the kernel. For the devices of another fabric, there are `EventChannel::on` and
//! `Domains::on`. The messages are those of the kernel's connection manager, so the peer may be a
//! program on Soft-RoCE or a NIC.
//!
//! # Faults of a device
//!
//! | fault | call |
//! |---|---|
//! | the link is down, or flaps | [`SoftDevice::set_link`] |
//! | the device is removed | [`SoftDevice::remove`] |
//! | a call fails | [`SoftDevice::fail_call`], with the errnos of [`Method`] |
//! | an operation fails | [`SoftDevice::fail_completion`] |
//! | an asynchronous event | [`SoftDevice::raise_event`], [`SoftDevice::raise_qp_event`] |
//!
//! ```
//! use bareverbs::device::{EventType, PortState};
//! use bareverbs::soft::{Fabric, Method, SoftDevice};
//! use bareverbs::{Access, AsyncEvent, Device, Errno};
//!
//! let device = SoftDevice::new(&Fabric::new());
//! let context = Device::from(device.clone()).open()?;
//! let events = context.async_events();
//! device.set_link(false);
//! assert_eq!(context.query_port(1)?.state, PortState::DOWN);
//! assert!(matches!(events.next().wait()?, AsyncEvent::Port { event: EventType::PORT_ERR, .. }));
//!
//! let pd = context.alloc_pd()?;
//! pd.register(vec![0; 64], Access::LOCAL_WRITE)?;
//! device.fail_call(Method::RegMr, 1, Errno::NOMEM).unwrap();
//! let failed = pd.register(vec![0; 64], Access::LOCAL_WRITE).unwrap_err();
//! assert_eq!(failed.error.errno(), Some(Errno::NOMEM));
//! # Ok::<(), bareverbs::Error>(())
//! ```
//!
//! # Records
//!
//! [`Fabric::capture`] writes all packets in pcap format, for Wireshark. [`Fabric::log`] keeps the
//! latest actions of QPs: fetched WQEs, packets, retries, timeouts, states, completions, events. A
//! test prints it when it fails:
//!
//! ```
//! use bareverbs::soft::{Fabric, QpAction, SoftDevice};
//! use bareverbs::{Device, Endpoint, Mr, Buffer, Op};
//!
//! let fabric = Fabric::seeded(3);
//! let log = fabric.log(1000);
//! let _printed = log.print_on_panic();
//! let pd = Device::from(SoftDevice::new(&fabric)).open()?.alloc_pd()?;
//! let [mut a, mut b]: [Endpoint<Mr<Buffer>>; 2] = [Endpoint::new(&pd, 1, 1)?, Endpoint::new(&pd, 1, 1)?];
//! a.connect(&b.address())?;
//! b.connect(&a.address())?;
//! a.post(Op::send_inline(b"no receive"))?;
//! // The peer has no receive, so the message waits.
//! fabric.run_until_idle();
//! assert!(log.entries().iter().any(|entry| matches!(entry.action, QpAction::RnrWait(_))));
//! println!("{log}");
//! # Ok::<(), bareverbs::Error>(())
//! ```
//!
//! # Limits
//!
//! - Registered memory is not pinned. It must stay mapped while it is registered, which the owners of
//!   [`MemoryOwner`](crate::MemoryOwner) ensure. A range that is not mapped is rejected with `EFAULT`. An
//!   access to registered memory that was unmapped raises SIGSEGV.
//! - A device with an address belongs to one process: a second one gets `EADDRINUSE`. A seeded
//!   fabric has no such devices.
//! - On-demand paging and dma-buf MRs are [`Error::Unsupported`].
//! - [`devices`](crate::devices) and RDMA netlink don't list the devices. sysfs has no entry for them.
//! - [`Context::import`](crate::Context::import) rejects their descriptors with
//!   [`Error::Invalid`].
//! - Connections by IP address take no addresses of the family `AF_IB`: `ENODEV`. A channel that was
//!   opened before the first device was created by name serves the kernel's devices only.
//!   `BoundDevice::find` finds soft devices.
//! - Their GIDs have no network interface:
//!   [`Context::resolve_ethernet`](crate::Context::resolve_ethernet) is unsupported.
//! - A forked child can't use a device of its parent. It can create devices on a fabric of its own.
//!
//! [`Device::find`]: crate::Device::find

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Mutex, PoisonError};

use bareverbs_provider::process::PerProcess;

use crate::error::{Error, Result};

pub use bareverbs_provider::device::BeforeWait;
pub use bareverbs_soft::{
    AddressError, DroppedPackets, EventLog, Fabric, Fault, FaultError, InjectedFault, LogEntry, Method,
    Opcode, PacketSummary, PrintOnPanic, QpAction, Resources, SoftDevice,
};

const VERB: &str = "open_device";

/// The devices that the process has created by name.
static NAMED: PerProcess<Named> = PerProcess::empty();

#[derive(Default)]
struct Named {
    /// That of the devices without a socket.
    fabric: Fabric,
    devices: Mutex<Vec<(Name, SoftDevice)>>,
}

impl Named {
    /// Those of this process.
    fn get() -> Result<&'static Self> {
        NAMED.get().map_err(|errno| Error::system("mapping a page", errno))
    }
}

/// The fabric of the devices `soft0`, `soft1` and so on. `None` if the process has created no
/// device by name. Those with an address are on [siblings](Fabric::sibling) of it.
///
/// # Errors
///
/// [`Error::System`]: no page could be mapped.
pub fn named_fabric() -> Result<Option<Fabric>> {
    let named = Named::get()?;
    let is_empty = named.devices.lock().unwrap_or_else(PoisonError::into_inner).is_empty();
    Ok((!is_empty).then(|| named.fabric.clone()))
}

/// What a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Name {
    /// `soft0`.
    Numbered(u32),
    /// `soft:127.0.0.2`.
    Bound(IpAddr),
}

/// Most devices that are named by a number: the addresses of 127.0.0.0/8.
const MAX_NUMBERED: u32 = (1 << 24) - 2;

/// The soft device named `name`; `None` if it is not such a name.
pub(crate) fn find(name: &str) -> Option<Result<SoftDevice>> {
    let rest = name.strip_prefix("soft")?;
    if let Some(address) = rest.strip_prefix(':') {
        let reason = format!("device {name}: {address:?} is not an IP address, as in soft:127.0.0.2");
        let address = address.parse().map_err(|_| Error::invalid(VERB, reason));
        return Some(address.and_then(|address| find_or_create(name, Name::Bound(address))));
    }
    let is_number = rest.bytes().all(|byte| byte.is_ascii_digit()) && (rest == "0" || !rest.starts_with('0'));
    let number: u32 = rest.parse().ok().filter(|number| is_number && *number < MAX_NUMBERED)?;
    Some(find_or_create(name, Name::Numbered(number)))
}

fn find_or_create(name: &str, named: Name) -> Result<SoftDevice> {
    let all = Named::get()?;
    let mut devices = all.devices.lock().unwrap_or_else(PoisonError::into_inner);
    let device = match devices.iter().find(|(other, _)| *other == named) {
        Some((_, device)) => device.clone(),
        None => {
            let device = match named {
                Name::Numbered(number) => {
                    let address = Ipv4Addr::from(u32::from(Ipv4Addr::LOCALHOST) + number);
                    SoftDevice::with_address(&all.fabric, address.into())
                }
                Name::Bound(address) => SoftDevice::bind(&all.fabric.sibling(), address),
            };
            let device = device.map_err(|reason| Error::SoftAddress { device: name.into(), reason })?;
            devices.push((named, device.clone()));
            device
        }
    };
    Ok(device)
}
