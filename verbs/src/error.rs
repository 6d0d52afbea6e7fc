//! Errors of verbs.

mod cause;
mod refused;
mod report;

use std::borrow::Cow;
use std::fmt;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::time::Duration;

use bareverbs_provider::work::WcError;
use bareverbs_uapi::uverbs::types::DriverId;
use bareverbs_uapi::verbs_values::WcStatus;
use rustix::io::Errno;

pub use cause::InvalidCause;
pub use refused::Refused;
pub use report::Report;

use crate::values::{GidIndex, ValueError};
use crate::{PortNum, provider};

pub use crate::post_error::{PostError, PostReason, SendFailure};
pub use crate::values::ParseAddressError;
pub use bareverbs_provider::device::{ErrorOrigin, IoctlError};
pub use bareverbs_provider::error::{CreateError, DoorbellError, Feature, Limit};
pub use bareverbs_provider::work::{ParseRemoteError, PushError};
pub use bareverbs_uapi::abi::ParseNameError;
pub use bareverbs_uapi::uverbs::ObjectClass;

/// The result of a verb.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a verb: the request, the cause and the remedy.
///
/// Programs match on the variant, the [`Feature`], the [`Limit`], the [`InvalidCause`] and the
/// [errno](Error::errno).
/// [`Error::verb`] is the name of the verb as in C without its prefix, such as `create_qp`, or the
/// path of a function that C lacks, such as `Handle::send`. Typed transitions append the states,
/// such as `modify_qp INIT→RTR`: match by `starts_with`. `Display` is for people; its text may
/// change.
///
/// ```
/// use bareverbs::Error;
/// use bareverbs::error::{Feature, Limit};
///
/// fn is_permanent(error: &Error) -> bool {
///     match error {
///         Error::Unsupported { feature: Feature::Wqs | Feature::RssQps, .. } => true,
///         Error::Limit { limit: Limit::MaxSendWr, asked, max, .. } => asked > max,
///         _ => false,
///     }
/// }
/// # assert!(!is_permanent(&Error::NoDevice));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No RDMA device is visible to this process.
    #[error(
        "no RDMA device found: load its driver, or create a software device with `rdma link add \
         rxe0 type rxe netdev eth0` or `bareverbs link add ...`{}",
        if cfg!(feature = "soft") { "; or name a soft device, such as soft:127.0.0.2" } else { "" }
    )]
    NoDevice,
    /// No device has that name.
    #[error("no RDMA device is named {name:?}; {}{}", known_devices(known), soft_name_hint(name))]
    UnknownDevice {
        /// The requested name.
        name: String,
        /// The names of all devices.
        known: Vec<String>,
    },
    /// The device has no uverbs character device.
    #[error("device {device} has no uverbs character device: load the kernel module ib_uverbs")]
    NoUverbs {
        /// The device.
        device: String,
    },
    /// The device file could not be opened.
    #[error("cannot open {} of device {device}: {errno}{}", path.display(), open_hint(*errno))]
    Open {
        /// The device.
        device: String,
        /// The device node.
        path: PathBuf,
        /// The errno.
        errno: Errno,
    },
    /// There are RDMA devices, but none can be opened.
    #[error("{}", none_opened(reasons))]
    NoneOpened {
        /// The error of each device, in the kernel's order; at least one. Each names its device.
        reasons: Vec<Error>,
    },
    /// This build has no provider for the device's driver.
    #[error(
        "this build has no provider for {}, the driver of device {device}: {}",
        driver_name(*driver),
        provider_remedy(*driver)
    )]
    UnsupportedDriver {
        /// The device.
        device: String,
        /// Its driver, if it is known.
        driver: Option<DriverId>,
    },
    /// The device has no port of that number.
    #[error("device {device} has no port {port}: {}", port_range(*count))]
    NoPort {
        /// The device.
        device: String,
        /// The requested port.
        port: PortNum,
        /// The number of ports of the device.
        count: u8,
    },
    /// The GID table has no entry of that index, or the entry is empty.
    #[error("GID index {index} of port {port} of device {device} {}", gid_error(*index, *table_len, filled))]
    NoGid {
        /// The device.
        device: String,
        /// The port.
        port: PortNum,
        /// The requested index.
        index: GidIndex,
        /// Number of entries of the table.
        table_len: u32,
        /// Indices of the filled entries.
        filled: Vec<GidIndex>,
    },
    /// A requested quantity is above the limit of the device, the queue or the peer.
    #[error("{verb}: {limit} {asked} is above the maximum of {max}")]
    Limit {
        /// The verb.
        verb: &'static str,
        /// The quantity.
        limit: Limit,
        /// The requested value.
        asked: u64,
        /// The maximum.
        max: u64,
    },
    /// The request is invalid. It was not sent to the kernel.
    #[error("{verb}: {cause}")]
    Invalid {
        /// The verb.
        verb: &'static str,
        /// The cause.
        cause: InvalidCause,
    },
    /// The connection or the server has ended, or is ending: it accepts no more operations.
    #[error("{verb}: {reason}")]
    Closed {
        /// The operation.
        verb: &'static str,
        /// The reason: the object that has ended.
        reason: &'static str,
    },
    /// The peer [drains](crate::owned::server::Handle::drain): it answers the messages that it has, and
    /// accepts no more. The message was not sent.
    #[error(
        "{verb}: the peer drains and accepts no more messages or operations on its memory; this one was not posted: \
         send it to another peer"
    )]
    Draining {
        /// The operation.
        verb: &'static str,
    },
    /// The peer is a `Server` or a `Client` of another version of the flow control between them. No
    /// version connects to another one.
    #[error(
        "{verb}: the peer has version {peer} of the flow control of servers and clients, this end has version \
         {own}: use the same version of bareverbs at both ends"
    )]
    FlowControlVersion {
        /// The operation.
        verb: &'static str,
        /// The version of this end.
        own: u8,
        /// The version in the [address](crate::Address::flow_control) of the peer.
        peer: u8,
    },
    /// Operations did not complete within the time limit. The QP was moved to ERR.
    #[error(
        "{verb}: operations are outstanding after {limit:?}; the QP was moved to ERR: create a new \
         endpoint"
    )]
    TimedOut {
        /// The operation.
        verb: &'static str,
        /// The time limit.
        limit: Duration,
    },
    /// The device was removed: its driver was unbound or unloaded, or it was unplugged. The kernel has
    /// destroyed all objects of the context, so the operation has ended. It is unknown whether it was
    /// executed.
    #[error("{verb}: the device was removed: open it again when it is back")]
    DeviceRemoved {
        /// The operation.
        verb: &'static str,
    },
    /// A task waits, and the [hub](crate::owned::Hub#drivers) has no driver that would wake it. The
    /// operation continues.
    #[error("{verb}: the hub has no driver: spawn `Hub::drive`, or call `Hub::spawn_driver_thread`")]
    NoDriver {
        /// The operation.
        verb: &'static str,
    },
    /// A number or a time is out of the range of its type.
    #[error(transparent)]
    Value(#[from] ValueError),
    /// The kernel, the driver or the device does not support the request.
    #[error("{verb}: {feature}")]
    Unsupported {
        /// The verb.
        verb: &'static str,
        /// The unsupported feature.
        feature: Feature,
    },
    /// The kernel rejected the request.
    #[error(transparent)]
    Kernel(#[from] Box<KernelError>),
    /// Not all work requests were posted.
    #[error(transparent)]
    Post(#[from] PostError),
    /// A request was not posted.
    #[error(transparent)]
    Rejected(#[from] PostReason),
    /// An operation completed with an error.
    #[error(
        "{verb} failed: {status:?}, {} (vendor error {vendor_err:#x})",
        explain(*status, *driver, *link_down)
    )]
    Completion {
        /// The operation.
        verb: &'static str,
        /// The status of its completion.
        status: WcStatus,
        /// The vendor error of its completion.
        vendor_err: u32,
        /// The driver of the device. The likely causes of a status differ by driver.
        driver: DriverId,
        /// The port whose link was down after the failure, if this may be the cause
        /// ([`Context::link_down`](crate::Context::link_down)).
        link_down: Option<PortNum>,
    },
    /// The device reported a completion whose `wr_id` matches no outstanding operation: it was
    /// never posted or has already completed. [`Endpoint`](crate::Endpoint) then
    /// moves its QP to ERR.
    #[error(
        "the device completed request {wr_id:#x}, which is not outstanding; the QP is in \
         ERR: drop the endpoint or datagrams and create a new one"
    )]
    UnknownCompletion {
        /// The `wr_id` of the completion.
        wr_id: u64,
    },
    /// A buffer is too short for the operation. It was not posted.
    #[error("{verb}: the buffer has {len} bytes, and needs at least {min}: 40 for the GRH, then the message")]
    BufferTooShort {
        /// The verb.
        verb: &'static str,
        /// Length of the buffer in bytes.
        len: u64,
        /// The shortest length in bytes.
        min: u64,
    },
    /// The device reported a received datagram with an impossible length. The bytes of the buffer are
    /// undefined. [`Datagrams`](crate::Datagrams) stays usable.
    #[error(
        "the device reported a datagram of {len} bytes, with its GRH, in a buffer of {max} bytes: \
         only 40 to {max} are possible; post the buffer again"
    )]
    DatagramLength {
        /// The reported length in bytes, with the 40 bytes of the GRH.
        len: u32,
        /// Length of the buffer in bytes.
        max: u64,
    },
    /// The kernel's description of the object is unusable, or no huge pages are free.
    #[error("{verb} ({asked}): {reason}")]
    Provider {
        /// The verb.
        verb: &'static str,
        /// The request, as text.
        asked: String,
        /// The provider's reason.
        reason: CreateError,
    },
    /// A system call other than a uverbs command failed.
    #[error("{what}: {errno}{}", system_hint(*errno))]
    System {
        /// The attempted action.
        what: String,
        /// The errno.
        errno: Errno,
    },
    /// A soft device can't have the address of its name.
    #[cfg(feature = "soft")]
    #[error("device {device}: {reason}")]
    SoftAddress {
        /// The name of the device.
        device: String,
        /// The reason.
        reason: bareverbs_soft::AddressError,
    },
    /// A request to netlink failed.
    #[doc(alias = "NetlinkRefused")]
    #[doc(alias = "NetlinkError")]
    #[error(transparent)]
    Netlink(#[from] bareverbs_netlink::Error),
}

/// A request that the kernel rejected.
#[derive(Debug)]
#[non_exhaustive]
pub struct KernelError {
    /// The verb.
    pub verb: &'static str,
    /// The request, as text.
    pub asked: String,
    /// The ABI method and the errno.
    pub refused: IoctlError,
    /// The likely cause and the remedy, if known.
    pub hint: Option<String>,
}

impl fmt::Display for KernelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({}): ", self.verb, self.asked)?;
        match &self.hint {
            Some(hint) => write!(f, "{}: {hint}", self.refused.without_causes()),
            None => self.refused.fmt(f),
        }
    }
}

impl std::error::Error for KernelError {}

impl Error {
    /// Whether the peer did not respond to any retry
    /// ([`RETRY_EXC_ERR`](WcStatus::RETRY_EXC_ERR)): it is dead or unreachable.
    ///
    /// ```
    /// assert!(!bareverbs::Error::NoDevice.is_peer_lost());
    /// ```
    #[must_use]
    pub fn is_peer_lost(&self) -> bool {
        matches!(self, Self::Completion { status: WcStatus::RETRY_EXC_ERR, .. })
    }

    /// Whether a post was refused because its queue was full: the same post may succeed after a
    /// completion.
    #[must_use]
    pub fn is_full(&self) -> bool {
        let full = |error: &PostError| matches!(error.reason, PostReason::Queue(PushError::QueueFull { .. }));
        matches!(self, Self::Post(error) if full(error))
    }

    /// The kernel's errno, if a system call failed. Of [`Error::NoneOpened`] it is the errno that all
    /// devices share, of [`Error::DeviceRemoved`] it is `EIO`.
    #[must_use]
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Open { errno, .. } | Self::System { errno, .. } => Some(*errno),
            Self::Kernel(refusal) => Some(refusal.refused.errno),
            #[cfg(feature = "soft")]
            Self::SoftAddress { reason, .. } => Some(reason.errno()),
            Self::DeviceRemoved { .. } => Some(Errno::IO),
            Self::Netlink(error) => error.errno(),
            Self::Post(PostError { reason, .. }) | Self::Rejected(reason) => reason.errno(),
            Self::Provider { reason: CreateError::Ioctl(refused), .. } => Some(refused.errno),
            Self::NoneOpened { reasons } => {
                let first = reasons.first()?.errno();
                first.filter(|_| reasons.iter().all(|reason| reason.errno() == first))
            }
            _ => None,
        }
    }

    /// The verb that failed, if the error is one of a verb. See [`Error`] for the names.
    #[must_use]
    pub fn verb(&self) -> Option<&'static str> {
        match self {
            Self::Limit { verb, .. }
            | Self::Invalid { verb, .. }
            | Self::Unsupported { verb, .. }
            | Self::Completion { verb, .. }
            | Self::Closed { verb, .. }
            | Self::Draining { verb }
            | Self::FlowControlVersion { verb, .. }
            | Self::TimedOut { verb, .. }
            | Self::BufferTooShort { verb, .. }
            | Self::NoDriver { verb }
            | Self::DeviceRemoved { verb }
            | Self::Provider { verb, .. } => Some(verb),
            Self::Kernel(refusal) => Some(refusal.verb),
            _ => None,
        }
    }

    pub(crate) fn invalid(verb: &'static str, cause: impl Into<InvalidCause>) -> Self {
        Self::Invalid { verb, cause: cause.into() }
    }

    pub(crate) fn foreign(verb: &'static str, text: impl Into<Cow<'static, str>>) -> Self {
        Self::invalid(verb, InvalidCause::ForeignObject(text.into()))
    }

    pub(crate) fn in_use(verb: &'static str, text: &'static str) -> Self {
        Self::invalid(verb, InvalidCause::InUse(text.into()))
    }

    pub(crate) fn wrong_state(verb: &'static str, text: impl Into<Cow<'static, str>>) -> Self {
        Self::invalid(verb, InvalidCause::WrongState(text.into()))
    }

    pub(crate) fn out_of_bounds(verb: &'static str, text: impl Into<Cow<'static, str>>) -> Self {
        Self::invalid(verb, InvalidCause::OutOfBounds(text.into()))
    }

    pub(crate) fn empty(verb: &'static str, text: &'static str) -> Self {
        Self::invalid(verb, InvalidCause::Empty(text.into()))
    }

    /// Fails with [`InvalidCause::OutOfRange`] if `value` is above `max`.
    pub(crate) fn check_range(verb: &'static str, field: &'static str, value: u64, max: u64) -> Result<()> {
        if value > max {
            Err(Self::invalid(verb, InvalidCause::OutOfRange { field, value, max }))
        } else {
            Ok(())
        }
    }

    pub(crate) fn unsupported(verb: &'static str, feature: Feature) -> Self {
        Self::Unsupported { verb, feature }
    }

    pub(crate) fn system(what: impl Into<String>, errno: Errno) -> Self {
        Self::System { what: what.into(), errno }
    }

    pub(crate) fn kernel(verb: &'static str, asked: impl Into<String>, refused: IoctlError) -> Self {
        Self::Kernel(Box::new(KernelError { verb, asked: asked.into(), refused, hint: None }))
    }

    /// The error of a command for a feature that the driver lacks with `EOPNOTSUPP`, and the kernel or
    /// the driver with `EPROTONOSUPPORT`.
    pub(crate) fn kernel_lacks(
        verb: &'static str,
        feature: Feature,
        asked: impl Into<String>,
        refused: IoctlError,
    ) -> Self {
        match refused.errno {
            Errno::OPNOTSUPP | Errno::PROTONOSUPPORT => Self::unsupported(verb, feature),
            _ => Self::kernel(verb, asked, refused),
        }
    }

    pub(crate) fn create(verb: &'static str, asked: impl Into<String>, reason: CreateError) -> Self {
        match reason {
            CreateError::Ioctl(refused) => Self::kernel(verb, asked, refused),
            CreateError::Limit { limit, asked, max } => Self::Limit { verb, limit, asked, max },
            CreateError::Unsupported { feature } => Self::unsupported(verb, feature),
            CreateError::BufferInUse | CreateError::Misaligned { .. } => {
                Self::invalid(verb, reason.to_string())
            }
            reason => Self::Provider { verb, asked: asked.into(), reason },
        }
    }

    /// The error of a failed import.
    pub(crate) fn import(verb: &'static str, handle: u32, reason: CreateError) -> Self {
        Self::create(verb, format!("handle {handle}"), reason)
    }

    /// Adds the likely cause that `hint` returns for the errno, unless one is set already.
    pub(crate) fn or_hint(mut self, hint: impl FnOnce(Errno) -> Option<String>) -> Self {
        if let Self::Kernel(refusal) = &mut self
            && refusal.hint.is_none()
        {
            refusal.hint = hint(refusal.refused.errno);
        }
        self
    }

    /// Fails with [`Error::Limit`] if `asked` is above `max`.
    pub(crate) fn check_limit(verb: &'static str, limit: Limit, asked: u64, max: u64) -> Result<()> {
        if asked > max { Err(Self::Limit { verb, limit, asked, max }) } else { Ok(()) }
    }
}

impl From<WcError> for Error {
    /// The driver is unknown, so the description has the causes that all devices share.
    fn from(failed: WcError) -> Self {
        let WcError { status, vendor_err, .. } = failed;
        Self::Completion { verb: "poll_cq", status, vendor_err, driver: DriverId::UNKNOWN, link_down: None }
    }
}

impl From<PushError> for Error {
    fn from(error: PushError) -> Self {
        Self::Rejected(error.into())
    }
}

impl From<DoorbellError> for Error {
    fn from(error: DoorbellError) -> Self {
        Self::Rejected(PostReason::Doorbell(error))
    }
}

impl From<Error> for io::Error {
    /// An error of the kind that the errno has, if there is one, with the whole error as its
    /// source.
    fn from(error: Error) -> Self {
        if let Error::Netlink(error) = error {
            return error.into();
        }
        let kind = match (&error, error.errno()) {
            (Error::DeviceRemoved { .. }, _) => ErrorKind::NotConnected,
            (_, Some(errno)) => Self::from(errno).kind(),
            (
                Error::NoDevice
                | Error::UnknownDevice { .. }
                | Error::NoUverbs { .. }
                | Error::NoneOpened { .. },
                _,
            ) => ErrorKind::NotFound,
            (Error::NoPort { .. } | Error::NoGid { .. }, _) => ErrorKind::NotFound,
            (
                Error::Unsupported { .. }
                | Error::UnsupportedDriver { .. }
                | Error::FlowControlVersion { .. },
                _,
            ) => ErrorKind::Unsupported,
            (
                Error::Invalid { .. } | Error::Limit { .. } | Error::Value(_) | Error::BufferTooShort { .. },
                _,
            ) => ErrorKind::InvalidInput,
            (Error::Closed { .. } | Error::Draining { .. }, _) => ErrorKind::NotConnected,
            (Error::DatagramLength { .. }, _) => ErrorKind::InvalidData,
            (Error::TimedOut { .. } | Error::Completion { status: WcStatus::RETRY_EXC_ERR, .. }, _) => {
                ErrorKind::TimedOut
            }
            (Error::Completion { status: WcStatus::WR_FLUSH_ERR, .. }, _) => ErrorKind::ConnectionAborted,
            _ => ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}

/// Describes the status of a completion and its likely causes on the devices of `driver`, if it is that
/// of a built-in provider. If the link of a port is down, this is the cause.
pub(crate) fn explain(status: WcStatus, driver: DriverId, link_down: Option<PortNum>) -> String {
    describe(status, provider::explain(driver, status), link_down)
}

/// As [`explain`], with the causes that only devices of the driver have.
pub(crate) fn describe(status: WcStatus, of_driver: Option<&str>, link_down: Option<PortNum>) -> String {
    if let Some(port) = link_down {
        return format!(
            "the link of port {port} is down: set its network interface up, or check the cable and the port of \
             the switch"
        );
    }
    let text = wc_status_str(status);
    of_driver.map_or_else(|| text.to_owned(), |of_driver| format!("{text}; {of_driver}"))
}

/// Describes the status of a completion and its causes on every device, the most likely first.
/// [`Context::explain`](crate::Context::explain) adds the causes on a certain device.
#[doc(alias = "ibv_wc_status_str")]
#[must_use]
pub fn wc_status_str(status: WcStatus) -> &'static str {
    match status {
        WcStatus::SUCCESS => "success",
        WcStatus::LOC_LEN_ERR => {
            "the message exceeds the receive buffers, or the maximum message size of the port"
        }
        WcStatus::LOC_QP_OP_ERR => {
            "the QP cannot execute the request: it is malformed, not supported, or not enabled for the QP"
        }
        WcStatus::LOC_PROT_ERR => {
            "an lkey does not allow the access: wrong lkey, range or access flags, or an MR of another PD"
        }
        WcStatus::WR_FLUSH_ERR => {
            "the QP is in ERR and flushed the request: an earlier request of the QP failed, the peer's request \
             failed here, or the program or a disconnect moved the QP to ERR"
        }
        WcStatus::MW_BIND_ERR => {
            "the memory window could not be bound: wrong key, range or access flags, an MR without MW_BIND or \
             of another PD"
        }
        WcStatus::BAD_RESP_ERR => "unexpected response of the peer",
        WcStatus::LOC_ACCESS_ERR => "the local MR does not allow the remote write",
        WcStatus::REM_INV_REQ_ERR => {
            "the peer rejected the request: too long for its receive, not allowed by the access flags of its \
             QP, more outstanding reads and atomics than it allows, or not supported"
        }
        WcStatus::REM_ACCESS_ERR => {
            "the rkey does not allow the access: wrong rkey, range or access flags, an MR of another PD than \
             the peer's QP, or one that was deregistered"
        }
        WcStatus::REM_OP_ERR => {
            "the peer could not execute the request: an error of its receive or its memory, which its own \
             completion names"
        }
        WcStatus::RETRY_EXC_ERR => {
            "the peer did not respond to any retry: its program or QP has ended, its host is down, or the path is \
             broken (link down, wrong address, MTU above that of a switch, UDP port 4791 closed), or it is slow \
             and the timeout too short"
        }
        WcStatus::RNR_RETRY_EXC_ERR => "the peer had no receive posted at any retry",
        WcStatus::REM_ABORT_ERR => "the peer aborted the operation",
        WcStatus::FATAL_ERR => "the device failed",
        WcStatus::RESP_TIMEOUT_ERR => "the response timed out",
        WcStatus::GENERAL_ERR => {
            "general error: the CQE matches no outstanding request, or has an unknown syndrome"
        }
        _ => "a status without a description",
    }
}

fn known_devices(known: &[String]) -> String {
    match known {
        [] => "no device exists".into(),
        [one] => format!("the only device is {one}"),
        several => format!("devices: {}", several.join(", ")),
    }
}

fn soft_name_hint(name: &str) -> &'static str {
    match name.starts_with("soft") {
        true if cfg!(feature = "soft") => "; soft devices are named soft0, soft1, … or soft:ADDRESS",
        true => "; soft devices need the cargo feature `soft` of bareverbs",
        false => "",
    }
}

fn none_opened(reasons: &[Error]) -> String {
    let reasons: Vec<_> = reasons.iter().map(Error::to_string).collect();
    match &reasons[..] {
        [one] => one.clone(),
        several => format!("none of {} RDMA devices can be opened: {}", several.len(), several.join("; ")),
    }
}

fn open_hint(errno: Errno) -> &'static str {
    match errno {
        Errno::ACCESS => {
            ": permission denied: grant this user read and write access by a udev rule or a group"
        }
        // The permissions of the file give EACCES.
        Errno::PERM => {
            ": the device cgroup of the container forbids it (pass the device in), or the device belongs to \
             another network namespace (`rdma system` shows the mode, `rdma dev set DEV netns` moves it)"
        }
        Errno::NOENT => ": the device node is missing; in a container, pass it in",
        Errno::NXIO | Errno::NODEV | Errno::IO => ": the device is gone",
        Errno::MFILE => ": close some descriptors or raise the limit with `ulimit -n`",
        _ => "",
    }
}

fn system_hint(errno: Errno) -> &'static str {
    match errno {
        Errno::MFILE => ": close some descriptors or raise the limit with `ulimit -n`",
        _ => "",
    }
}

fn driver_name(driver: Option<DriverId>) -> String {
    driver.map_or_else(|| "an unknown driver".into(), |driver| format!("{driver:?}"))
}

fn provider_remedy(driver: Option<DriverId>) -> String {
    let feature = match driver {
        Some(DriverId::RXE) => "rxe",
        Some(DriverId::MLX5) => "mlx5",
        Some(DriverId::SIW) => "siw",
        _ => {
            let drivers = provider::FEATURES.join(", ");
            return format!(
                "use a device of another driver ({drivers}), or open it by `Device::open_as` with a provider of your own"
            );
        }
    };
    format!("enable the cargo feature `{feature}`")
}

fn port_range(count: u8) -> String {
    match count {
        0 => "it has no ports".into(),
        1 => "its only port is 1".into(),
        count => format!("its ports are 1 to {count}"),
    }
}

fn gid_error(index: GidIndex, table_len: u32, filled: &[GidIndex]) -> String {
    let filled = match filled {
        [] => "all entries are empty: assign an address to the network interface".into(),
        filled => {
            let list: Vec<String> = filled.iter().map(GidIndex::to_string).collect();
            format!("filled entries: {}", list.join(", "))
        }
    };
    if u32::from(index) < table_len {
        format!("is empty; {filled}")
    } else {
        format!("exceeds the table of {table_len} entries; {filled}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_without_a_provider_has_the_remedy_of_its_driver() {
        let text = |driver| Error::UnsupportedDriver { device: "siw0".into(), driver }.to_string();
        let known = [(DriverId::RXE, "rxe"), (DriverId::MLX5, "mlx5"), (DriverId::SIW, "siw")];
        for (driver, feature) in known {
            assert!(text(Some(driver)).ends_with(&format!("enable the cargo feature `{feature}`")));
            assert!(
                text(Some(driver))
                    .contains(&format!("no provider for {driver:?}, the driver of device siw0"))
            );
        }
        let other = text(Some(DriverId::EFA));
        assert!(other.contains("Device::open_as") && !other.contains("enable"), "{other}");
        assert!(provider::FEATURES.iter().all(|feature| known.iter().any(|(_, known)| known == feature)));
    }

    #[test]
    fn unknown_device_error_lists_the_devices() {
        let error = |known: &[&str]| {
            let known = known.iter().map(|name| (*name).to_owned()).collect();
            Error::UnknownDevice { name: "mlx9".into(), known }.to_string()
        };
        assert_eq!(error(&[]), "no RDMA device is named \"mlx9\"; no device exists");
        assert_eq!(error(&["rxe0"]), "no RDMA device is named \"mlx9\"; the only device is rxe0");
        assert_eq!(error(&["rxe0", "rxe1"]), "no RDMA device is named \"mlx9\"; devices: rxe0, rxe1");
        let soft = Error::UnknownDevice { name: "soft".into(), known: Vec::new() }.to_string();
        let remedy = if cfg!(feature = "soft") { "soft:ADDRESS" } else { "the cargo feature `soft`" };
        assert!(soft.contains(remedy), "{soft}");
    }

    /// The texts of an error and of its sources, as reports of error chains print them.
    fn chain(error: &dyn std::error::Error) -> Vec<String> {
        std::iter::successors(Some(error), |error| error.source()).map(ToString::to_string).collect()
    }

    #[test]
    fn chain_of_an_error_shows_its_text_once() {
        let refused = IoctlError::new("CQ_CREATE", Errno::NOMEM);
        let reason = CreateError::NoHugePages { pages: 2 };
        let doorbell = PostReason::Doorbell(DoorbellError::TakenBack(refused));
        for error in [
            Error::kernel("create_cq", "64 entries", refused),
            Error::create("create_cq", "64 entries", reason),
            PostError { accepted: 0, reason: doorbell }.into(),
            PostReason::State(crate::qp::QpState::INIT).into(),
        ] {
            let text = error.to_string();
            assert_eq!(chain(&error), std::slice::from_ref(&text));
            let refused = Refused::new(error, ());
            assert_eq!(chain(&refused), [text]);
        }
    }

    #[test]
    fn open_permission_error_names_path_and_remedy() {
        let error = Error::Open {
            device: "rxe0".into(),
            path: "/dev/infiniband/uverbs0".into(),
            errno: Errno::ACCESS,
        };
        let text = error.to_string();
        assert!(text.starts_with("cannot open /dev/infiniband/uverbs0 of device rxe0: "), "{text}");
        assert!(text.ends_with("grant this user read and write access by a udev rule or a group"), "{text}");
        assert_eq!(error.errno(), Some(Errno::ACCESS));
    }

    #[test]
    fn error_of_no_opened_device_has_the_reason_of_each() {
        let open = |device: &str, errno| Error::Open {
            device: device.into(),
            path: "/dev/infiniband/uverbs0".into(),
            errno,
        };
        let none = |reasons| Error::NoneOpened { reasons };
        let [missing, refused] =
            [open("rxe0", Errno::NOENT), open("rxe1", Errno::ACCESS)].map(|e| e.to_string());
        let one = none(vec![open("rxe0", Errno::NOENT)]);
        assert_eq!((one.to_string(), one.errno()), (missing.clone(), Some(Errno::NOENT)));
        let two = none(vec![open("rxe0", Errno::NOENT), open("rxe1", Errno::ACCESS)]);
        assert_eq!(two.to_string(), format!("none of 2 RDMA devices can be opened: {missing}; {refused}"));
        assert_eq!(two.errno(), None);
        let no_uverbs = Error::NoUverbs { device: "rxe1".into() };
        let two = none(vec![open("rxe0", Errno::NOENT), no_uverbs]);
        assert_eq!((two.errno(), io::Error::from(two).kind()), (None, ErrorKind::NotFound));
        let denied = none(vec![open("rxe0", Errno::ACCESS), open("rxe1", Errno::ACCESS)]);
        assert_eq!(io::Error::from(denied).kind(), ErrorKind::PermissionDenied);
    }

    #[test]
    fn port_error_names_the_range() {
        let error = |count| Error::NoPort { device: "rxe0".into(), port: PortNum(3), count }.to_string();
        assert_eq!(error(1), "device rxe0 has no port 3: its only port is 1");
        assert_eq!(error(2), "device rxe0 has no port 3: its ports are 1 to 2");
    }

    #[test]
    fn gid_error_distinguishes_empty_and_out_of_range() {
        let error = |table_len, filled: &[u8]| {
            let filled = filled.iter().copied().map(GidIndex).collect();
            let (port, index) = (PortNum(1), GidIndex(7));
            Error::NoGid { device: "rxe0".into(), port, index, table_len, filled }.to_string()
        };
        assert_eq!(error(8, &[0, 1]), "GID index 7 of port 1 of device rxe0 is empty; filled entries: 0, 1");
        assert_eq!(
            error(4, &[]),
            "GID index 7 of port 1 of device rxe0 exceeds the table of 4 entries; all entries are empty: \
             assign an address to the network interface"
        );
    }

    #[test]
    fn limit_error_names_request_and_limit() {
        let error = Error::check_limit("create_qp", Limit::MaxSendSge, 64, 32).unwrap_err();
        assert_eq!(error.to_string(), "create_qp: max_send_sge 64 is above the maximum of 32");
        assert!(matches!(
            error,
            Error::Limit { verb: "create_qp", limit: Limit::MaxSendSge, asked: 64, max: 32 }
        ));
        assert_eq!(error.verb(), Some("create_qp"));
        assert!(Error::check_limit("create_qp", Limit::MaxSendSge, 32, 32).is_ok());
    }

    #[test]
    fn creation_errors_become_typed_errors() {
        let convert = |reason| Error::create("create_cq", "8 entries", reason);
        let feature = Feature::CompressedCompletions;
        let error = convert(CreateError::Unsupported { feature });
        assert!(
            matches!(error, Error::Unsupported { verb: "create_cq", feature: found } if found == feature)
        );
        let text = "create_cq: compressed completions are not supported by this kernel or device";
        assert_eq!(error.to_string(), text);
        let (limit, asked, max) = (Limit::CqEntries, 9, 8);
        let error = convert(CreateError::Limit { limit, asked, max });
        assert!(matches!(error, Error::Limit { limit: Limit::CqEntries, asked: 9, max: 8, .. }));
        let refused = IoctlError::new("CqCreate", Errno::NOMEM);
        let error = convert(CreateError::Ioctl(refused));
        assert_eq!((error.verb(), error.errno()), (Some("create_cq"), Some(Errno::NOMEM)));
        assert_eq!(Error::NoDevice.verb(), None);
    }

    #[test]
    fn kernel_error_names_verb_request_method_and_cause() {
        let refused = IoctlError::new("REG_MR", Errno::FAULT);
        let error = Error::kernel("reg_mr", "16 bytes at 0x1000", refused)
            .or_hint(|errno| (errno == Errno::FAULT).then(|| "that range cannot be read".into()));
        let errno = Errno::FAULT;
        // Without the causes that the errno has in general.
        let text = format!(
            "reg_mr (16 bytes at 0x1000): REG_MR was refused by the kernel: {errno}: that range cannot be read"
        );
        assert_eq!(error.to_string(), text);
        let text = Error::kernel("reg_mr", "16 bytes at 0x1000", refused).to_string();
        assert!(text.ends_with(" can't be pinned)"), "{text}");
    }

    #[test]
    fn statuses_are_explained_for_the_driver() {
        let text = |driver| explain(WcStatus::WR_FLUSH_ERR, driver, None);
        assert!(text(DriverId::MLX5).ends_with("moved the QP to ERR"));
        assert!(text(DriverId::RXE).contains("to ERR; on Soft-RoCE also: the request itself failed locally"));
        for number in 0..=255 {
            let status = WcStatus(number);
            assert!(!wc_status_str(status).contains("Soft-RoCE"));
            assert!(explain(status, DriverId::RXE, None).starts_with(wc_status_str(status)));
        }
        let (verb, status) = ("post_send", WcStatus::REM_OP_ERR);
        let error = |status, link_down| {
            Error::Completion { verb, status, vendor_err: 0, driver: DriverId::RXE, link_down }.to_string()
        };
        let text = error(status, None);
        assert!(text.contains("its MR is not writable"), "{text}");
        let text = error(WcStatus::LOC_QP_OP_ERR, Some(PortNum(1)));
        assert!(text.starts_with("post_send failed: LOC_QP_OP_ERR, the link of port 1 is down: "), "{text}");
        assert!(!text.contains("malformed"), "{text}");
    }

    #[test]
    fn question_mark_converts_errors_of_posting() {
        let full = PushError::QueueFull { capacity: 8 };
        let refused = IoctlError::new("POST_SEND", Errno::IO);
        let convert = |result: Result<(), PushError>| -> Result<()> { Ok(result?) };
        assert!(
            matches!(convert(Err(full)), Err(Error::Rejected(PostReason::Queue(reason))) if reason == full)
        );
        let convert = |result: Result<(), PostReason>| -> Result<()> { Ok(result?) };
        assert!(matches!(convert(Err(full.into())), Err(Error::Rejected(_))));
        let convert = |result: Result<(), DoorbellError>| -> Result<()> { Ok(result?) };
        let error = convert(Err(DoorbellError::Posted(refused))).unwrap_err();
        assert_eq!(error.errno(), Some(Errno::IO));
        let reason = PostReason::Doorbell(DoorbellError::TakenBack(refused));
        assert_eq!(Error::from(PostError { accepted: 0, reason }).errno(), Some(Errno::IO));
    }

    #[test]
    fn io_errors_have_the_kind_of_the_errno_and_the_whole_message() {
        let refused = IoctlError::new("REG_MR", Errno::ACCESS);
        let error = io::Error::from(Error::kernel("reg_mr", "16 bytes", refused));
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        assert!(error.to_string().starts_with("reg_mr (16 bytes): "), "{error}");
        assert_eq!(io::Error::from(Error::NoDevice).kind(), ErrorKind::NotFound);
        let late = Error::TimedOut { verb: "Endpoint::scope", limit: Duration::from_millis(50) };
        assert_eq!(io::Error::from(late).kind(), ErrorKind::TimedOut);
        let removed = Error::DeviceRemoved { verb: "Endpoint::post(Op::recv)" };
        assert_eq!((removed.errno(), removed.verb()), (Some(Errno::IO), Some("Endpoint::post(Op::recv)")));
        let removed = io::Error::from(removed);
        assert_eq!(removed.kind(), ErrorKind::NotConnected);
        assert!(removed.to_string().contains("the device was removed"), "{removed}");
        let (verb, status) = ("post_send", WcStatus::RETRY_EXC_ERR);
        let lost = Error::Completion { verb, status, vendor_err: 0, driver: DriverId::RXE, link_down: None };
        assert_eq!(io::Error::from(lost).kind(), ErrorKind::TimedOut);
    }
}
