//! An open device.

mod capabilities;
mod open;

use std::sync::Arc;

use bareverbs_provider::caps::MrQuirks;
use bareverbs_provider::clock::ClockInfo;
use bareverbs_provider::command::{self, RegMrMethod};
use bareverbs_provider::device::{DeviceFile, IoctlError};
use bareverbs_provider::pci_atomic::PciAtomicCaps;
use bareverbs_provider::traits::Provider;
use bareverbs_uapi::method::Call;
use bareverbs_uapi::uverbs::types::GidEntry as KernelGidEntry;
use bareverbs_uapi::uverbs::types::{DriverId, QpType};
use bareverbs_uapi::uverbs::{ObjectClass, QueryPortSpeed};
use bareverbs_uapi::verbs_values::{LinkLayer, WcStatus};
use bareverbs_uapi::write::structs::{ExQueryDeviceResp, QueryDeviceResp};
use rustix::io::Errno;

pub use capabilities::Capabilities;

use crate::ah_attr::AhAttr;
use crate::attributes::{DeviceAttr, PortAttr};
use crate::device::Device;
use crate::error::{Error, Feature, Limit, Result};
use crate::events::AsyncEvents;
use crate::gid::{GidEntry, select_gid};
use crate::provider::AnyProvider;
use crate::values::{GidIndex, PortNum};

/// Most GID entries that one call can return: an attribute has at most 65,535 bytes.
const MAX_GID_ENTRIES: u32 = (u16::MAX as usize / size_of::<KernelGidEntry>()) as u32;

/// Most handles of one class that [`Context::object_count`] can count, because of the same limit.
const MAX_HANDLES: usize = u16::MAX as usize / size_of::<u32>();

/// An open device. All other objects are created from it.
///
/// Cloning is cheap. The device stays open until the last object that was created from it is
/// dropped.
///
/// ```
/// let context = bareverbs::Device::find("soft0")?.open()?;
/// let port = context.query_port(1)?;
/// println!("{:?}, MTU {}, GID {}", port.state, port.active_mtu, context.default_gid(1)?.gid);
/// # Ok::<(), bareverbs::Error>(())
/// ```
#[doc(alias = "ibv_context")]
#[doc(alias = "ibv_close_device")]
pub struct Context<P: Provider = AnyProvider> {
    shared: Arc<ContextShared<P>>,
}

struct ContextShared<P> {
    inner: Arc<ContextInner>,
    provider: P,
}

/// The part of a context that does not depend on the provider type.
pub(crate) struct ContextInner {
    pub(crate) file: Arc<DeviceFile>,
    pub(crate) device: Device,
    pub(crate) capabilities: Capabilities,
    pub(crate) mr_quirks: MrQuirks,
    pub(crate) link_down_statuses: &'static [WcStatus],
    pub(crate) reg_mr: RegMrMethod,
    /// The kernel's response to QUERY_DEVICE_EX at open. It does not change.
    pub(crate) device_attr: ExQueryDeviceResp,
    events: AsyncEvents,
}

/// The most RDMA reads and atomics of a QP at a time: [`Context::rd_atomic_limits`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RdAtomicLimits {
    /// Reads and atomics that it executes for the peer: the maximum of
    /// [`RtrAttr::max_dest_rd_atomic`](crate::qp::RtrAttr::max_dest_rd_atomic).
    #[doc(alias = "max_qp_rd_atom")]
    pub responder: u32,
    /// Reads and atomics that it has outstanding: the maximum of
    /// [`RtsAttr::max_rd_atomic`](crate::qp::RtsAttr::max_rd_atomic).
    #[doc(alias = "max_qp_init_rd_atom")]
    pub requester: u32,
}

impl<P: Provider> Clone for Context<P> {
    fn clone(&self) -> Self {
        Self { shared: Arc::clone(&self.shared) }
    }
}

impl<P: Provider> Context<P> {
    pub(crate) fn inner(&self) -> &Arc<ContextInner> {
        &self.shared.inner
    }

    pub(crate) fn file(&self) -> &Arc<DeviceFile> {
        &self.shared.inner.file
    }

    pub(crate) fn provider(&self) -> &P {
        &self.shared.provider
    }

    /// The limits of RDMA reads and atomics of a QP. It needs no system call.
    #[must_use]
    pub fn rd_atomic_limits(&self) -> RdAtomicLimits {
        let limits = self.limits();
        RdAtomicLimits { responder: limits.max_qp_rd_atom, requester: limits.max_qp_init_rd_atom }
    }

    pub(crate) fn limits(&self) -> &QueryDeviceResp {
        &self.shared.inner.device_attr.base
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.shared.inner.device
    }

    /// Capabilities of the kernel and the device, determined at open.
    #[must_use]
    pub fn capabilities(&self) -> &Capabilities {
        &self.shared.inner.capabilities
    }

    /// Properties and limits of the device.
    ///
    /// # Errors
    /// [`Error::Kernel`].
    #[doc(alias = "ibv_query_device")]
    #[doc(alias = "ibv_query_device_ex")]
    pub fn query_device(&self) -> Result<DeviceAttr> {
        let mut attr = DeviceAttr::from(&self.shared.inner.device_attr).with(self.provider().capabilities());
        // The driver formats the version itself if the device has firmware.
        if !self.device().fw_ver().is_empty() {
            self.device().fw_ver().clone_into(&mut attr.fw_ver);
        }
        Ok(attr)
    }

    /// The atomic operations of the PCI bus that the device can use. If they include 8-byte fetch and
    /// add, and compare and swap, its atomics are atomic with respect to the CPU too
    /// ([`AtomicCap::GLOB`](crate::device::AtomicCap::GLOB) in C). A ConnectX asks its firmware.
    ///
    /// # Errors
    /// [`Error::Kernel`].
    #[doc(alias = "ibv_query_device_ex")]
    #[doc(alias = "ibv_pci_atomic_caps")]
    pub fn query_pci_atomic_caps(&self) -> Result<PciAtomicCaps> {
        let queried = self.provider().pci_atomic_caps();
        queried.map_err(|refused| Error::kernel("query_device", "PCI atomic operations", refused))
    }

    /// Whether QPs of this type can be created. A QP of another type, and an RSS QP, fails with
    /// [`Error::Unsupported`].
    ///
    /// The attributes `tso_supported_qpts`, `rss_supported_qpts` and `rate_limit_supported_qpts` of
    /// [`DeviceAttr`] are masks of `1 << qp_type.0` for TSO, RSS and packet pacing.
    #[must_use]
    pub fn is_qpt_supported(&self, qp_type: QpType) -> bool {
        match qp_type {
            QpType::RC | QpType::UC | QpType::UD => true,
            QpType::XRC_INI | QpType::XRC_TGT => self.capabilities().xrc,
            QpType::RAW_PACKET => self.capabilities().raw_packets,
            _ => false,
        }
    }

    /// Properties of a port. Ports are numbered from 1.
    ///
    /// # Errors
    /// [`Error::NoPort`] if the device has no such port; [`Error::Kernel`].
    #[doc(alias = "ibv_query_port")]
    pub fn query_port(&self, port: impl Into<PortNum>) -> Result<PortAttr> {
        let port = self.check_port(port)?;
        command::query_port(self.file(), port.0)
            .map(|resp| PortAttr::from(&resp))
            .map_err(|refused| Error::kernel("query_port", format!("port {port}"), refused))
    }

    /// Effective speed of a port in Mbit/s. Needs [`Capabilities::port_speed`].
    ///
    /// # Errors
    /// [`Error::NoPort`]; [`Error::Unsupported`] if the kernel or the driver does not report it, such
    /// as Soft-RoCE; [`Error::Kernel`]. [`Context::query_port`] has [`PortAttr::active_speed`] and
    /// [`PortAttr::active_width`] on every device.
    #[doc(alias = "ibv_query_port_speed")]
    pub fn port_speed(&self, port: impl Into<PortNum>) -> Result<u64> {
        let port = self.check_port(port)?;
        if !self.capabilities().port_speed {
            return Err(Error::unsupported("query_port_speed", Feature::PortSpeed));
        }
        query_port_speed(self.file(), port.into())
            .map(|speed| speed.saturating_mul(100))
            .map_err(|refused| Error::kernel("query_port_speed", format!("port {port}"), refused))
    }

    /// The filled entries of the GID tables of all ports. Entries with an index above 255, which
    /// no QP and no address handle can use, are left out.
    ///
    /// # Errors
    /// [`Error::Kernel`].
    #[doc(alias = "ibv_query_gid_table")]
    pub fn gid_table(&self) -> Result<Vec<GidEntry>> {
        let mut room = 0;
        for port in 1..=self.port_count() {
            room += self.query_port(port)?.gid_tbl_len.min(MAX_GID_ENTRIES);
        }
        self.gid_entries(room)
    }

    /// Reads up to `room` entries of the GID tables of all ports.
    fn gid_entries(&self, room: u32) -> Result<Vec<GidEntry>> {
        let mut entries = vec![KernelGidEntry::zeroed(); room.clamp(1, MAX_GID_ENTRIES) as usize];
        let filled = command::query_gid_table(self.file(), &mut entries)
            .map_err(|refused| Error::kernel("query_gid_table", self.device().name(), refused))?;
        Ok(entries[..filled].iter().filter_map(|entry| GidEntry::try_from(*entry).ok()).collect())
    }

    /// One entry of a port's GID table.
    ///
    /// # Errors
    /// [`Error::NoPort`]; [`Error::NoGid`] if the entry is empty or the index is outside the table;
    /// [`Error::Kernel`].
    #[doc(alias = "ibv_query_gid")]
    #[doc(alias = "ibv_query_gid_ex")]
    pub fn gid(&self, port: impl Into<PortNum>, index: impl Into<GidIndex>) -> Result<GidEntry> {
        let (port, index) = (self.check_port(port)?, index.into());
        let entry =
            command::query_gid_entry(self.file(), port.into(), index.into()).map_err(
                |refused| match refused.errno {
                    Errno::NODATA => self.no_gid(port, index),
                    Errno::INVAL => match self.query_port(port) {
                        Ok(attr) if u32::from(index) >= attr.gid_tbl_len => self.no_gid(port, index),
                        _ => Error::kernel("query_gid", format!("port {port} index {index}"), refused),
                    },
                    _ => Error::kernel("query_gid", format!("port {port} index {index}"), refused),
                },
            )?;
        Ok(entry.try_into()?)
    }

    pub(crate) fn no_gid(&self, port: PortNum, index: GidIndex) -> Error {
        let table_len = self.query_port(port).map_or(0, |attr| attr.gid_tbl_len);
        let table = self.gid_table().unwrap_or_default();
        Error::NoGid {
            device: self.device().name().to_owned(),
            port,
            index,
            table_len,
            filled: table.iter().filter(|entry| entry.port == port).map(|entry| entry.index).collect(),
        }
    }

    /// The default GID entry of `port`.
    ///
    /// On Ethernet, entries are ranked by type (RoCE v2 before v1), then by address (IPv4 before
    /// global IPv6 before link-local IPv6), then by index. On other link layers the lowest index is
    /// chosen.
    ///
    /// # Errors
    /// [`Error::NoPort`]; [`Error::NoGid`] if no entry of the port is filled; [`Error::Kernel`].
    pub fn default_gid(&self, port: impl Into<PortNum>) -> Result<GidEntry> {
        let port = port.into();
        let PortAttr { link_layer, gid_tbl_len, .. } = self.query_port(port)?;
        let only_port = self.port_count() == 1;
        let table = if only_port { self.gid_entries(gid_tbl_len) } else { self.gid_table() }?;
        select_gid(&table, port, link_layer).ok_or_else(|| self.no_gid(port, GidIndex(0)))
    }

    /// Number of objects of `class` in this context, as counted by the kernel. At most 16,382 can
    /// be counted.
    ///
    /// # Errors
    /// [`Error::Limit`] if there are more than can be counted; [`Error::Kernel`], for example for a
    /// class that the device does not have.
    pub fn object_count(&self, class: ObjectClass) -> Result<usize> {
        const VERB: &str = "info_handles";
        let mut handles = vec![0; MAX_HANDLES];
        let count = command::info_handles(self.file(), class, &mut handles).map_err(|refused| {
            Error::kernel(VERB, format!("{class:?}"), refused).or_hint(|errno| {
                matches!(errno, Errno::INVAL | Errno::NOENT)
                    .then(|| "this kernel or device may not support that object class".into())
            })
        })?;
        // The kernel fills the array and does not report whether there are more.
        let max = MAX_HANDLES as u64 - 1;
        Error::check_limit(VERB, Limit::Objects, count as u64, max)?;
        Ok(count)
    }

    /// The stream of asynchronous events of the context.
    #[must_use]
    pub fn async_events(&self) -> AsyncEvents {
        self.shared.inner.events.clone()
    }

    /// The conversion of the device clock to wall-clock time, from a page that the kernel updates.
    /// [`ClockInfo::time`] gives the time of a [completion](crate::cq::Completion::timestamp).
    ///
    /// The result is valid for about a second: read it again for each batch of completions. A read
    /// needs no system call after the first one.
    ///
    /// ```
    /// use bareverbs::Context;
    /// use bareverbs::cq::{Completion, Cq};
    /// use std::time::SystemTime;
    ///
    /// fn print_times(context: &Context, cq: &mut Cq) -> bareverbs::Result<()> {
    ///     let clock = context.clock_info()?;
    ///     let mut completions = cq.poll();
    ///     while let Some(done) = completions.next() {
    ///         if let Some(ticks) = done.timestamp() {
    ///             println!("{:?}", SystemTime::UNIX_EPOCH + clock.time(ticks));
    ///         }
    ///     }
    ///     Ok(())
    /// }
    /// # use bareverbs_test_support::example;
    /// # let context = example::context()?;
    /// # let mut cq = context.create_cq(&bareverbs::cq::CqInit::new(16))?;
    /// # example::unsupported(print_times(&context, &mut cq));
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the kernel has no clock page for the device; [`Error::Kernel`] with
    /// `EBUSY` if the kernel updates the page all the time.
    #[doc(alias = "mlx5dv_get_clock_info")]
    #[doc(alias = "ibv_wc_read_completion_wallclock_ns")]
    #[doc(alias = "IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK")]
    pub fn clock_info(&self) -> Result<ClockInfo> {
        self.provider()
            .clock_info()
            .map_err(|reason| Error::create("get_clock_info", "the clock page", reason))
    }

    /// The device clock now, in ticks. [`Completion::timestamp`](crate::cq::Completion::timestamp) uses
    /// the same clock.
    ///
    /// [`DeviceAttr::hca_core_clock`] is its frequency in kHz.
    /// [`DeviceAttr::completion_timestamp_mask`] has the bits that count before the clock wraps
    /// around. A read needs no system call after the first one.
    ///
    /// ```
    /// # fn measure(context: &bareverbs::Context) -> bareverbs::Result<()> {
    /// let khz = context.query_device()?.hca_core_clock;
    /// let before = context.raw_clock()?;
    /// let ticks = context.raw_clock()? - before;
    /// println!("looking takes {} ns", ticks * 1_000_000 / khz);
    /// # Ok(())
    /// # }
    /// # use bareverbs_test_support::example;
    /// # let context = example::context()?;
    /// # example::unsupported(measure(&context));
    /// # Ok::<(), bareverbs::Report>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Unsupported`] if the device has no such clock or the kernel does not expose it;
    /// [`Error::Provider`] for an invalid clock page; [`Error::Kernel`] if the kernel refuses to map it.
    #[doc(alias = "ibv_query_rt_values_ex")]
    #[doc(alias = "ibv_values_ex")]
    pub fn raw_clock(&self) -> Result<u64> {
        const VERB: &str = "query_rt_values";
        if !self.capabilities().completion_timestamps {
            return Err(Error::unsupported(VERB, Feature::DeviceClock));
        }
        // The clock page of the device is not mapped in a forked child.
        self.file()
            .check_same_process()
            .map_err(|errno| Error::kernel(VERB, "the device clock", IoctlError::new("mmap", errno)))?;
        self.provider().read_clock().map_err(|reason| Error::create(VERB, "the device clock", reason))
    }

    /// Fails if an object named by a request belongs to another context. Its handle would name a
    /// different object in this context.
    pub(crate) fn check_same_context(
        &self,
        verb: &'static str,
        what: &'static str,
        owner: &Arc<DeviceFile>,
    ) -> Result<()> {
        if Arc::ptr_eq(owner, &self.shared.inner.file) {
            return Ok(());
        }
        let reason = format!("the {what} belongs to another context: create it in the same context");
        Err(Error::foreign(verb, reason))
    }

    /// The driver of the device, for [`Error::Completion`].
    #[must_use]
    pub fn driver(&self) -> DriverId {
        DriverId(self.file().driver_id())
    }

    fn port_count(&self) -> u8 {
        self.limits().phys_port_cnt
    }

    pub(crate) fn check_port(&self, port: impl Into<PortNum>) -> Result<PortNum> {
        let (port, count) = (port.into(), self.port_count());
        if (1..=count).contains(&port.0) {
            return Ok(port);
        }
        Err(Error::NoPort { device: self.device().name().to_owned(), port, count })
    }

    /// Validates a path and completes it for the kernel. On InfiniBand, a path without a DLID to a
    /// local GID gets the port's own LID.
    ///
    /// Fails if the path lacks the address that the link layer needs (a global route or a LID), or
    /// if a field has more bits than its packet header field.
    pub(crate) fn validate_path(
        &self,
        verb: &'static str,
        address: &AhAttr,
        port: &PortAttr,
    ) -> Result<AhAttr> {
        Error::check_range(verb, "service level", address.sl.into(), 15)?;
        let Some(grh) = address.grh else {
            if port.link_layer == LinkLayer::ETHERNET {
                let reason = "RoCE addresses require a global route: set `grh`";
                return Err(Error::invalid(verb, reason));
            }
            return if address.dlid == 0 { Err(no_lid(verb)) } else { Ok(*address) };
        };
        Error::check_range(verb, "flow label", grh.flow_label.into(), 0xf_ffff)?;
        if grh.dgid.is_zero() {
            return Err(Error::invalid(verb, "the destination GID is zero"));
        }
        if address.dlid != 0 || port.link_layer != LinkLayer::INFINIBAND {
            return Ok(*address);
        }
        let own = |entry: &GidEntry| entry.port == address.port && entry.gid == grh.dgid;
        if self.gid_table()?.iter().any(own) {
            Ok(AhAttr { dlid: port.lid, ..*address })
        } else {
            Err(no_lid(verb))
        }
    }

    /// Adds the likely cause to an error of a command that had a path to a peer.
    pub(crate) fn path_error(&self, error: Error, address: &AhAttr) -> Error {
        let (Some(errno), Some(grh)) = (error.errno(), address.grh) else { return error };
        match errno {
            Errno::NODATA | Errno::INVAL | Errno::NOENT => {
                let index = grh.sgid_index;
                match self.gid(address.port, index) {
                    Err(no_gid @ Error::NoGid { .. }) => no_gid,
                    Ok(own) if own.gid.ipv4().is_some() != grh.dgid.ipv4().is_some() => error.or_hint(|_| {
                        Some(format!(
                            "{} and the local GID {} at index {index} have different address \
                             families: use a local GID of the same family",
                            grh.dgid, own.gid
                        ))
                    }),
                    _ => error,
                }
            }
            Errno::NETUNREACH | Errno::HOSTUNREACH | Errno::TIMEDOUT | Errno::ADDRNOTAVAIL => {
                let (peer, index) = (grh.dgid, grh.sgid_index);
                error.or_hint(|errno| {
                    Some(match self.link_down(address.port) {
                        Some(down) => down.to_string(),
                        None if errno == Errno::TIMEDOUT => format!(
                            "{peer} did not answer the address resolution: its host or its link is down, or it \
                             is not in the network of the GID at index {index}"
                        ),
                        None => format!(
                            "no route to {peer} from the GID at index {index}: check the address, the link \
                             and the routing table"
                        ),
                    })
                })
            }
            _ => error,
        }
    }
}

fn no_lid(verb: &'static str) -> Error {
    let reason =
        "InfiniBand addresses require a LID: set `dlid` to the `lid` that `query_port` returns at the peer";
    Error::invalid(verb, reason)
}

fn query_port_speed(file: &DeviceFile, port: u32) -> Result<u64, IoctlError> {
    let mut speed = 0;
    let mut call = Call::<QueryPortSpeed>::new(file.driver_id());
    call.constant(QueryPortSpeed::PORT_NUM, port);
    call.output(QueryPortSpeed::RESP, &mut speed);
    // SAFETY: the method writes only its attributes.
    unsafe { file.execute(&mut call) }?;
    Ok(speed)
}
