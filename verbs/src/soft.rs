//! Soft devices: RoCE v2 devices in this process, without a kernel module, a network interface or
//! privileges.
//!
//! A soft device has the ABI of Soft-RoCE and its provider, so a program uses it as any other device. Two
//! devices reach each other if they are on the same [`Fabric`]. Fabrics are separate: tests that run in
//! parallel create one each.
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
//! # Limits
//!
//! - Registered memory is not pinned. It must stay mapped while it is registered, which the owners of
//!   [`MemoryOwner`](crate::MemoryOwner) ensure. A range that is not mapped is rejected with `EFAULT`.
//! - `bareverbs-rdmacm` doesn't know the devices: exchange an [`Address`](crate::Address).
//! - On-demand paging and dma-buf MRs are [`Error::Unsupported`].
//! - [`devices`](crate::devices) and RDMA netlink don't list the devices. sysfs has no entry for them.
//! - [`Context::import`](crate::Context::import) rejects their descriptors with
//!   [`Error::Invalid`].
//! - Their GIDs have no network interface:
//!   [`Context::resolve_ethernet`](crate::Context::resolve_ethernet) is unsupported.
//! - A forked child can't use a device of its parent. It can create devices on a fabric of its own.
//!
//! [`Device::find`]: crate::Device::find

use std::net::{IpAddr, Ipv4Addr};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, PoisonError};

use bareverbs_provider::process::ForkGuard;
use rustix::io::Errno;

use crate::error::{Error, Result};

pub use bareverbs_soft::{
    AddressError, Dropped, EventLog, Fabric, Fault, FaultError, InjectedFault, LogEntry, Method, Operation,
    PacketSummary, PrintOnPanic, QpAction, Resources, SoftDevice,
};

const VERB: &str = "open_device";

/// The devices that the process has created by name. In a forked child, they are at first those of the
/// parent: a thread that the child doesn't have may hold their lock.
static NAMED: AtomicPtr<Named> = AtomicPtr::new(ptr::null_mut());

struct Named {
    fork_guard: ForkGuard,
    /// That of the devices without a socket.
    fabric: Fabric,
    devices: Mutex<Vec<(Name, SoftDevice)>>,
}

impl Named {
    /// Those of this process.
    fn get() -> Result<&'static Self> {
        let known = NAMED.load(Ordering::Acquire);
        // SAFETY: the pointer is null or that of a value that is never dropped.
        match unsafe { known.as_ref() } {
            Some(named) if named.fork_guard.is_same_process() => return Ok(named),
            _ => {}
        }
        let fork_guard = ForkGuard::new().map_err(|errno| Error::system("mapping a page", errno))?;
        let new = Box::new(Self { fork_guard, fabric: Fabric::new(), devices: Mutex::default() });
        let new = Box::into_raw(new);
        match NAMED.compare_exchange(known, new, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: from here on, the value is never dropped.
            Ok(_) => Ok(unsafe { &*new }),
            // Another thread of this process was faster.
            Err(other) => {
                // SAFETY: `new` is the box of above, which no one else has.
                drop(unsafe { Box::from_raw(new) });
                // SAFETY: as for `known`, and it isn't null.
                Ok(unsafe { &*other })
            }
        }
    }
}

/// The fabric of the devices `soft0`, `soft1` and so on. `None` if the process has created no device by name.
/// Those with an address are on [siblings](Fabric::sibling) of it.
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
        let reason = format!("device {name}: {address:?} is not an IP address");
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
            let device = device.map_err(|error| unavailable(name, &error))?;
            devices.push((named, device.clone()));
            device
        }
    };
    Ok(device)
}

/// The error of a device that can't have its address.
fn unavailable(name: &str, error: &AddressError) -> Error {
    let errno = match error {
        AddressError::OnFabric { .. } | AddressError::InUse { .. } => Errno::ADDRINUSE,
        AddressError::System { errno, .. } => *errno,
        _ => Errno::ADDRNOTAVAIL,
    };
    Error::system(format!("device {name}: {error}"), errno)
}
