//! Soft devices.

mod registry;

use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, Weak};

use bareverbs_provider::Errno;
use bareverbs_provider::device::{DeviceFile, ErrorOrigin, IoctlError};
use bareverbs_uapi::uverbs::types::DriverId;
use bareverbs_uapi::values::Guid;
use bareverbs_uapi::verbs_values::{EventType, WcStatus};

use crate::address_error::AddressError;
use crate::call_faults::{FaultError, Method};
use crate::fabric::Fabric;
use crate::file::Context;
use crate::objects::Resources;
use crate::port::Port;
use crate::rdma_cm::CmPort;
use crate::sys::lock;
use crate::wire::DroppedPackets;

/// A soft device, a RoCE v2 device in this process: one port on a [`Fabric`]. Clones are the same device.
///
/// Its ABI is that of Soft-RoCE on Linux 7.2, without on-demand paging. Registered memory is not pinned:
/// if it is unmapped, an access of the device raises SIGSEGV.
///
/// The device leaves the fabric when its last clone is dropped and all its files are closed.
#[derive(Clone, Debug)]
pub struct SoftDevice {
    port: Arc<Port>,
    name: Arc<str>,
    files: Arc<Mutex<Vec<Weak<Context>>>>,
}

/// A device that may be gone.
#[derive(Debug)]
struct WeakDevice {
    index: u32,
    port: Weak<Port>,
    name: Arc<str>,
    files: Arc<Mutex<Vec<Weak<Context>>>>,
}

impl WeakDevice {
    fn exists(&self) -> bool {
        self.port.strong_count() > 0
    }

    fn upgrade(&self) -> Option<SoftDevice> {
        let (name, files) = (Arc::clone(&self.name), Arc::clone(&self.files));
        Some(SoftDevice { port: self.port.upgrade()?, name, files })
    }
}

impl SoftDevice {
    /// Adds a device with the lowest free address of 127.0.0.0/8.
    ///
    /// # Panics
    ///
    /// If all 16,777,214 addresses are in use, in a forked child of the process that created the fabric,
    /// and if the kernel has mapped no page with `MADV_WIPEONFORK` for the fabric.
    #[must_use]
    pub fn new(fabric: &Fabric) -> Self {
        let first = u32::from(Ipv4Addr::LOCALHOST);
        let last = u32::from(Ipv4Addr::new(127, 255, 255, 254));
        let devices = (first..=last).map(|bits| Self::with_address(fabric, Ipv4Addr::from(bits).into()));
        devices.flatten().next().expect("the fabric has a free address")
    }

    /// Adds a device with an address.
    ///
    /// # Errors
    ///
    /// [`AddressError::OnFabric`].
    ///
    /// # Panics
    ///
    /// In a forked child of the process that created the fabric, and if the kernel has mapped no page
    /// with `MADV_WIPEONFORK` for the fabric.
    pub fn with_address(fabric: &Fabric, address: IpAddr) -> Result<Self, AddressError> {
        let name = match address {
            IpAddr::V4(v4) if v4.is_loopback() && v4 >= Ipv4Addr::LOCALHOST => {
                format!("soft{}", u32::from(v4) - u32::from(Ipv4Addr::LOCALHOST))
            }
            _ => format!("soft-{address}"),
        };
        Ok(Self::of(Port::new(fabric, address)?, name))
    }

    /// Adds a device that also reaches other processes and hosts: it sends and receives RoCE v2 on UDP
    /// port 4791 of an IP address of this host. No privilege is needed. Processes of one host use one
    /// address of 127.0.0.0/8 each.
    ///
    /// The peer may be Soft-RoCE of the kernel or a NIC, unless address translation is on the path:
    /// the ICRC of a packet contains its addresses. The GID table has one entry. The port's MTU
    /// follows from that of the network interface; the loopback interface has 4096 bytes. A thread
    /// waits for packets until the device has left the fabric. A child of `fork` doesn't keep the
    /// address.
    ///
    /// The ICRC of IPv4 packets is verified for any identification, so a damaged packet passes with a
    /// probability of 2^-16. That of IPv6 is verified exactly.
    ///
    /// The receive buffer of the socket has up to 8 MiB. The kernel limits it to `net.core.rmem_max`,
    /// of which the default holds about 50 packets of 4 KiB. Lost packets of RC are repeated.
    ///
    /// The device ends with the process, also for what it still has to acknowledge. A queue pair that is
    /// dropped acknowledges first what it has received; one that is left to `process::exit` may not.
    ///
    /// # Errors
    ///
    /// - [`AddressError::OnFabric`]: another device of the fabric has the address.
    /// - [`AddressError::InUse`]: another soft device has the address, or `rdma_rxe` has the port.
    /// - [`AddressError::NotLocal`]: no network interface has the address.
    /// - [`AddressError::VirtualTime`]: the fabric is [seeded](Fabric::seeded).
    /// - [`AddressError::System`]: a system call failed.
    ///
    /// # Panics
    ///
    /// In a forked child of the process that created the fabric, and if the kernel has mapped no page
    /// with `MADV_WIPEONFORK` for the fabric.
    pub fn bind(fabric: &Fabric, address: IpAddr) -> Result<Self, AddressError> {
        Port::bind(fabric, address).map(|port| Self::of(port, format!("soft:{address}")))
    }

    fn of(port: Port, name: String) -> Self {
        let device = Self { port: Arc::new(port), name: name.into(), files: Arc::default() };
        registry::add(&device);
        let namespace = device.port.namespace();
        let port: Arc<dyn CmPort> = Arc::<Port>::clone(&device.port);
        namespace.add_device(&port);
        namespace.listen_on_new(&port);
        device
    }

    fn downgrade(&self) -> WeakDevice {
        let (name, files) = (Arc::clone(&self.name), Arc::clone(&self.files));
        WeakDevice { index: self.index(), port: Arc::downgrade(&self.port), name, files }
    }

    /// The device with an [index](Self::index), if it exists.
    #[must_use]
    pub fn find(index: u32) -> Option<Self> {
        registry::find(index).filter(|device| !device.port.is_removed())
    }

    /// The index of the device, which is unique in the process: 0x8000_0000 or more. A
    /// [`CmFile`](crate::CmFile) names devices by it.
    #[must_use]
    pub fn index(&self) -> u32 {
        self.port.index
    }

    /// `soft0` for 127.0.0.1, `soft1` for 127.0.0.2 and so on, `soft-ADDRESS` for other addresses.
    /// `soft:ADDRESS` for a [bound](Self::bind) device.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The fabric of the device.
    #[must_use]
    pub fn fabric(&self) -> &Fabric {
        self.port.fabric()
    }

    /// The address of the port.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.port.address
    }

    /// The GID table of the port: the link-local GID, unless the device is [bound](Self::bind), then
    /// that of the address. They are of RoCE v2.
    #[must_use]
    pub fn gids(&self) -> &[[u8; 16]] {
        &self.port.gids
    }

    /// The GUID of the node, which follows from the address.
    #[must_use]
    pub fn node_guid(&self) -> Guid {
        self.port.node_guid()
    }

    /// The packets that the wire of the device has dropped. Devices that are not [bound](Self::bind)
    /// only have corrupt ones, by [`Fault::corrupt`](crate::Fault::corrupt). None in a forked child.
    #[must_use]
    pub fn dropped(&self) -> DroppedPackets {
        if self.port.is_own() { self.port.dropped() } else { DroppedPackets::default() }
    }

    #[cfg(feature = "test-utils")]
    pub(crate) fn port(&self) -> &Port {
        &self.port
    }

    /// Opens the device. Its driver id is that of Soft-RoCE.
    ///
    /// # Errors
    ///
    /// The error of `eventfd`, such as `EMFILE`; `ENXIO` if the device was removed; the error of
    /// `mmap` or `madvise`; `ESTALE` in a forked child.
    pub fn open(&self) -> Result<DeviceFile, IoctlError> {
        let refused = |errno| IoctlError { method: "open", errno, origin: ErrorOrigin::Device };
        if !self.port.is_own() {
            return Err(refused(Errno::STALE));
        }
        let context = Arc::new(Context::new(Arc::clone(&self.port)).map_err(refused)?);
        let mut files = lock(&self.files);
        // Under the lock: a removal ends all files that it finds.
        if self.port.is_removed() {
            return Err(refused(Errno::NXIO));
        }
        files.retain(|file| file.strong_count() > 0);
        files.push(Arc::downgrade(&context));
        DeviceFile::with_backend(context, DriverId::RXE.0)
    }

    /// The number of objects of all open files; none in a forked child.
    #[must_use]
    pub fn resources(&self) -> Resources {
        if !self.port.is_own() {
            return Resources::default();
        }
        let files = lock(&self.files);
        let mut all = Resources::default();
        files.iter().filter_map(Weak::upgrade).for_each(|file| file.count(&mut all));
        all
    }

    /// Sets the link of the port up or down, as when a cable is plugged or unplugged. A new device has
    /// its link up.
    ///
    /// Without the link, the port is in state `DOWN`, and all packets from and to the device are lost,
    /// those to itself too. RC QPs retry. Each change raises the event `PORT_ERR` or `PORT_ACTIVE` in
    /// all open files. In a forked child, and after the removal, nothing happens.
    pub fn set_link(&self, up: bool) {
        if self.port.is_own() && self.port.set_link(up) {
            self.raise_everywhere(if up { EventType::PORT_ACTIVE } else { EventType::PORT_ERR });
        }
    }

    /// Makes the n-th call of a method from now on fail, once. The first is 1; 0 is none. All open
    /// files count. A failed call has no effect, as if the kernel had refused it first of all.
    ///
    /// A failed `POST_SEND` leaves the WQEs of its batch in the ring. The next post executes them.
    ///
    /// A call is an ioctl or a write command. The first registration of memory in a context is
    /// repeated by the write command if the ioctl fails, which makes two calls. In a forked child,
    /// nothing happens.
    ///
    /// ```
    /// use bareverbs_provider::Errno;
    /// use bareverbs_soft::{Fabric, Method, SoftDevice};
    ///
    /// let device = SoftDevice::new(&Fabric::new());
    /// device.fail_call(Method::RegMr, 2, Errno::NOMEM)?;
    /// assert!(device.fail_call(Method::DeregMr, 1, Errno::NOMEM).is_err());
    /// # Ok::<(), bareverbs_soft::FaultError>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`FaultError::Errno`] if the method doesn't return this errno, see [`Method`].
    pub fn fail_call(&self, method: Method, nth: u64, errno: Errno) -> Result<(), FaultError> {
        // No call of a forked child counts. A thread of the parent may hold the lock.
        let nth = if self.port.is_own() { nth } else { 0 };
        self.port.call_faults.add(method, nth, errno)
    }

    /// Makes the n-th completion of a QP from now on fail with this status, once, if it is no failure
    /// already. The first is 1; 0 is none. Send and receive WQEs count, also unsignaled ones. The QP
    /// is in ERR then, and its other WQEs are flushed.
    ///
    /// The operation itself is executed: a message whose send fails in this way has arrived. As on
    /// Soft-RoCE, `LOC_LEN_ERR`, `LOC_QP_OP_ERR` and `MW_BIND_ERR` of a send appear as `WR_FLUSH_ERR`
    /// in its CQE.
    ///
    /// # Errors
    ///
    /// [`FaultError::Status`] for `SUCCESS` and `WR_FLUSH_ERR`, which are no first failure;
    /// [`FaultError::NoQp`], also in a forked child.
    pub fn fail_completion(&self, qp_num: u32, nth: u64, status: WcStatus) -> Result<(), FaultError> {
        if status == WcStatus::SUCCESS || status == WcStatus::WR_FLUSH_ERR {
            return Err(FaultError::Status(status));
        }
        let added = || self.port.with(|engine| Ok(engine.fail_completion(qp_num, nth, status)));
        if self.port.is_own() && added() == Ok(true) { Ok(()) } else { Err(FaultError::NoQp(qp_num)) }
    }

    /// Raises an asynchronous event of the device or its port in all open files. The event changes
    /// nothing else: [`set_link`](Self::set_link) and [`remove`](Self::remove) raise theirs. In a
    /// forked child, nothing happens.
    ///
    /// # Errors
    ///
    /// [`FaultError::Event`] for events of QPs, CQs and SRQs.
    pub fn raise_event(&self, event: EventType) -> Result<(), FaultError> {
        const EVENTS: [EventType; 8] = [
            EventType::DEVICE_FATAL,
            EventType::PORT_ACTIVE,
            EventType::PORT_ERR,
            EventType::LID_CHANGE,
            EventType::PKEY_CHANGE,
            EventType::SM_CHANGE,
            EventType::CLIENT_REREGISTER,
            EventType::GID_CHANGE,
        ];
        if !EVENTS.contains(&event) {
            return Err(FaultError::Event(event));
        }
        if self.port.is_own() {
            self.raise_everywhere(event);
        }
        Ok(())
    }

    /// Raises an asynchronous event of a QP. The state of the QP doesn't change. In a forked child,
    /// nothing happens.
    ///
    /// # Errors
    ///
    /// [`FaultError::Event`] for events of other objects, [`FaultError::NoQp`].
    pub fn raise_qp_event(&self, qp_num: u32, event: EventType) -> Result<(), FaultError> {
        const EVENTS: [EventType; 8] = [
            EventType::QP_FATAL,
            EventType::QP_REQ_ERR,
            EventType::QP_ACCESS_ERR,
            EventType::COMM_EST,
            EventType::SQ_DRAINED,
            EventType::PATH_MIG,
            EventType::PATH_MIG_ERR,
            EventType::QP_LAST_WQE_REACHED,
        ];
        if !EVENTS.contains(&event) {
            return Err(FaultError::Event(event));
        }
        if !self.port.is_own() {
            return Ok(());
        }
        let raised = self.port.with(|engine| Ok(engine.raise(qp_num, event)));
        if raised == Ok(true) { Ok(()) } else { Err(FaultError::NoQp(qp_num)) }
    }

    fn raise_everywhere(&self, event: EventType) {
        let files = lock(&self.files);
        files.iter().filter_map(Weak::upgrade).for_each(|file| file.raise(event));
    }

    /// Removes the device, as when its hardware is unplugged. Open files get the event `DEVICE_FATAL`,
    /// and their event streams end. Handles can be destroyed, all other calls fail with `EIO`.
    /// In a forked child, nothing happens.
    pub fn remove(&self) {
        if !self.port.is_own() {
            return;
        }
        let files = lock(&self.files);
        if self.port.remove() {
            files.iter().filter_map(Weak::upgrade).for_each(|file| file.end());
        }
    }
}

/// The GID table of the port, for the filters [`Fault::from`](crate::Fault::from) and
/// [`Fault::to`](crate::Fault::to).
impl AsRef<[[u8; 16]]> for SoftDevice {
    fn as_ref(&self) -> &[[u8; 16]] {
        self.gids()
    }
}
