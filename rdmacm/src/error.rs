//! Errors of the connection manager.

use std::fmt;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::time::Duration;

use bareverbs::Refused;
use bareverbs::error::ErrorOrigin;
use rustix::io::Errno;

use crate::status::{Rejected, RouteStatus, SidrStatus};
use crate::{Addr, PrivateData};

/// The result of a call of the connection manager.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of the connection manager: the request, the cause and the remedy.
///
/// Programs match on the variant and on [`Error::errno`]. `Display` is for people; its text may
/// change. A `main` prints it if it returns a [`bareverbs::Report`]. The field `verb` names the call:
/// the step, such as `connect`, or the path of a function, such as `Listener::from_id`.
///
/// ```
/// use bareverbs_rdmacm::Error;
/// use bareverbs_rdmacm::event::RejectReason;
///
/// fn is_no_listener(error: &Error) -> bool {
///     matches!(error, Error::Rejected(rejected) if rejected.reason == RejectReason::InvalidServiceId)
/// }
/// # assert!(!is_no_listener(&Error::NoConnectionManager));
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel has no connection manager for user space.
    #[error(
        "the kernel has no RDMA connection manager for programs: load the kernel module rdma_ucm{}",
        soft_hint()
    )]
    NoConnectionManager,
    /// The character device of the connection manager can't be opened.
    #[error("cannot open {}: {errno}{}", path.display(), open_hint(*errno))]
    Open {
        /// Its path.
        path: PathBuf,
        /// The errno.
        errno: Errno,
    },
    /// The kernel refused a command.
    #[error(transparent)]
    Command(Box<CommandError>),
    /// The request is invalid. It was not sent to the kernel.
    #[error("{verb}: {reason}")]
    Invalid {
        /// The call.
        verb: &'static str,
        /// The reason.
        reason: String,
    },
    /// A host or service name was not resolved.
    #[error("{verb}: the name {name:?} was not resolved: {error}")]
    Name {
        /// The call.
        verb: &'static str,
        /// The name: a host, with its port if it has one, or a service.
        name: String,
        /// The error of the system's resolver.
        error: io::Error,
    },
    /// The private data of the peer is not an [`Address`](bareverbs::Address).
    #[error("{verb}: the peer's private data is not the address of a QP: {error}")]
    PeerAddress {
        /// The call.
        verb: &'static str,
        /// The error of its parser.
        error: bareverbs::error::ParseAddressError,
    },
    /// The private data is longer than its message carries. It was not sent to the kernel.
    #[error("{verb}: {length} bytes of private data; the message carries at most {max}")]
    PrivateData {
        /// The call.
        verb: &'static str,
        /// The requested number of bytes.
        length: usize,
        /// The maximum.
        max: usize,
    },
    /// The peer's address was not resolved. `ENODEV`: the network interface of its route has no
    /// RDMA device. `ETIMEDOUT`, of [`EventKind::AddrError`](crate::event::EventKind::AddrError) only: no
    /// neighbour answered. Calls that resolve fail with [`Error::TimedOut`] then.
    #[error("resolving the address failed: {}{}", .0, address_hint(*.0))]
    Address(Errno),
    /// No route to the peer was found.
    #[error("resolving the route failed: {0}")]
    Route(RouteStatus),
    /// The peer, or the kernel for it, rejected the connection.
    #[error("the connection{} was rejected: {}", to_peer(.0.peer), .0)]
    Rejected(Box<Rejected>),
    /// The peer did not answer. `ETIMEDOUT`, unless the kernel reports another errno. `EINVAL`, on iWARP:
    /// its response is not one of MPA, or a message came with it.
    #[error("the peer is unreachable: {}{}", .0, unreachable_hint(*.0))]
    Unreachable(Errno),
    /// The peer refused the SIDR request of a datagram QP.
    #[error(
        "the SIDR request{} for a datagram QP was refused: {status}{}", to_peer(*peer),
        private_data.suffix()
    )]
    Sidr {
        /// The address that the request was for.
        peer: Option<Addr>,
        /// The peer's answer.
        status: SidrStatus,
        /// Data from the application of the peer.
        private_data: Box<PrivateData>,
    },
    /// Joining a multicast group failed.
    #[error("joining the multicast group failed: {0}")]
    Multicast(Errno),
    /// The peer gave up its request before it was answered: it rejected, its time limit passed, or its
    /// process ended. The kernel reports no event of such a request.
    #[error("{verb}: the peer has withdrawn its request")]
    Withdrawn {
        /// The call.
        verb: &'static str,
    },
    /// The connection ended before it was established, or while the call waited.
    #[error("{verb}: the connection was disconnected")]
    Disconnected {
        /// The call.
        verb: &'static str,
    },
    /// The device is being removed. The identifier can only be dropped.
    #[error("{verb}: the RDMA device is being removed: drop the identifier")]
    DeviceRemoved {
        /// The call.
        verb: &'static str,
    },
    /// No neighbour answered for the address of the peer.
    #[error("{verb}: no neighbour answered within {limit:?}: is the address that of a host which is up?")]
    TimedOut {
        /// The call.
        verb: &'static str,
        /// Its time limit.
        limit: Duration,
    },
    /// The kernel or the device has no such operation.
    #[error("{verb}: {feature}")]
    Unsupported {
        /// The call.
        verb: &'static str,
        /// The missing feature.
        feature: Feature,
    },
    /// A system call other than a command failed.
    #[error("{what}: {errno}{}", descriptor_hint(*errno))]
    System {
        /// The attempted action.
        what: &'static str,
        /// The errno.
        errno: Errno,
    },
    /// A verb failed, such as a transition of the QP.
    #[error(transparent)]
    Verbs(#[from] bareverbs::Error),
}

/// A feature that the kernel or the device lacks: [`Error::Unsupported`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[non_exhaustive]
pub enum Feature {
    /// Events of applications and IB services, which are commands since Linux 7.2.
    #[error("user and IB service events require Linux 7.2 or later")]
    UserEvents,
    /// A subnet administrator, which only InfiniBand ports have.
    #[error("the port has no subnet administrator: it is not an InfiniBand port")]
    SubnetAdministrator,
    /// Datagrams: iWARP has no UD.
    #[error("the device is one of iWARP, which has no datagrams: use `RdmaStream`")]
    Datagrams,
    /// Version 4 of the ABI of rdma_cm.
    #[error("rdma_cm has ABI version {found}; this crate supports 4")]
    AbiVersion {
        /// The version of the kernel.
        found: u64,
    },
}

/// A command that the kernel or a soft device refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CommandError {
    /// The command, named as in the kernel's ABI without its prefix, such as `RESOLVE_ADDR`.
    pub command: &'static str,
    /// The request as text: its identifier and its arguments.
    pub asked: String,
    /// The errno.
    pub errno: Errno,
    /// What the errno is of: the kernel, or the soft devices.
    pub origin: ErrorOrigin,
    /// The likely cause and the remedy, if known.
    pub hint: Option<&'static str>,
}

impl fmt::Display for CommandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { command, asked, errno, origin, hint } = self;
        match *errno {
            Errno::STALE => write!(f, "{command} was not issued ({asked}): {errno}")?,
            _ => write!(f, "{command} was refused by {origin} ({asked}): {errno}")?,
        }
        match hint {
            Some(hint) => write!(f, ": {hint}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for CommandError {}

#[cfg(test)]
impl CommandError {
    /// A command that the kernel refused, without a hint.
    pub(crate) fn by_kernel(command: &'static str, asked: &str, errno: Errno) -> Self {
        Self { command, asked: asked.into(), errno, origin: ErrorOrigin::Kernel, hint: None }
    }
}

impl From<CommandError> for Error {
    fn from(error: CommandError) -> Self {
        Self::Command(Box::new(error))
    }
}

impl<B> From<bareverbs::Failed<B>> for Error {
    /// The buffer is dropped.
    fn from(failed: bareverbs::Failed<B>) -> Self {
        bareverbs::Error::from(failed).into()
    }
}

impl<T> From<Refused<T>> for Error {
    /// The object is dropped.
    fn from(refused: Refused<T>) -> Self {
        refused.error.into()
    }
}

impl<T> From<Refused<T, Self>> for Error {
    /// The object is dropped.
    fn from(refused: Refused<T, Self>) -> Self {
        refused.error
    }
}

fn soft_hint() -> &'static str {
    if cfg!(feature = "soft") {
        "; or open a soft device first, such as soft0, whose fabric has one"
    } else {
        ""
    }
}

fn open_hint(errno: Errno) -> &'static str {
    match errno {
        Errno::NOENT => {
            ": the kernel has the device, but its node is missing: start udev, or pass the node into the container"
        }
        Errno::ACCESS => ": the node should have mode 0666",
        Errno::PERM => ": a device cgroup of the container forbids it: pass the device into the container",
        errno => descriptor_hint(errno),
    }
}

/// The remedy if the process or the system has no descriptor left.
fn descriptor_hint(errno: Errno) -> &'static str {
    match errno {
        Errno::MFILE => ": close some descriptors or raise the limit with `ulimit -n`",
        Errno::NFILE => ": raise the system's limit fs.file-max",
        _ => "",
    }
}

fn to_peer(peer: Option<Addr>) -> String {
    peer.map_or_else(String::new, |peer| format!(" to {peer}"))
}

fn unreachable_hint(errno: Errno) -> &'static str {
    match errno {
        Errno::INVAL => {
            ": its response is not one of MPA; or it sent a message before this host had read its MPA \
             response, which only the connecting side may do on iWARP"
        }
        _ => "",
    }
}

fn address_hint(errno: Errno) -> &'static str {
    match errno {
        Errno::NODEV => {
            ": the network interface of the route has no RDMA device: use the IP address of a device, also \
             for a peer on this host; after an address was added, the device has it with a short delay"
        }
        Errno::TIMEDOUT => ": no neighbour answered",
        Errno::NETUNREACH | Errno::HOSTUNREACH => {
            ": the IP route to the address was removed, or its interface is down"
        }
        Errno::ADDRNOTAVAIL => ": the route has a gateway on an InfiniBand network, which needs ibacm",
        Errno::INVAL => {
            ": the port space is IPOIB and the device not InfiniBand; or the answer to a datagram request has \
             another Q_Key than the identifier"
        }
        _ => "",
    }
}

impl Error {
    pub(crate) fn invalid(verb: &'static str, reason: impl Into<String>) -> Self {
        Self::Invalid { verb, reason: reason.into() }
    }

    pub(crate) fn fork_guard(errno: Errno) -> Self {
        Self::System { what: "creating the page of the fork guard", errno }
    }

    /// The errno, if the kernel reported one.
    #[must_use]
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::Open { errno, .. } | Self::System { errno, .. } => Some(*errno),
            Self::Command(error) => Some(error.errno),
            Self::Address(errno) | Self::Unreachable(errno) | Self::Multicast(errno) => Some(*errno),
            Self::Route(RouteStatus::Errno(errno)) => Some(*errno),
            Self::Verbs(error) => error.errno(),
            _ => None,
        }
    }

    /// Whether the kernel refused a command because of the state of the identifier.
    pub(crate) fn is_wrong_state(&self) -> bool {
        matches!(self, Self::Command(error) if error.errno == Errno::INVAL)
    }

    /// The error of a command that answers a request. After the peer has given up, the kernel refuses it
    /// with `EINVAL`, on iWARP also with `ECONNRESET`. It reports no event of a request that is not accepted.
    pub(crate) fn withdrawn(self, verb: &'static str) -> Self {
        // siw has no connection any more.
        let is_closed = matches!(&self, Self::Command(error) if error.errno == Errno::CONNRESET);
        if self.is_wrong_state() || is_closed { Self::Withdrawn { verb } } else { self }
    }

    /// The kind of error that it is for `std::io`.
    pub(crate) fn kind(&self) -> ErrorKind {
        match (self, self.errno()) {
            (Self::Unreachable(Errno::TIMEDOUT), _) => ErrorKind::TimedOut,
            (_, Some(errno)) => io::Error::from(errno).kind(),
            (Self::Name { error, .. }, _) => error.kind(),
            (Self::PeerAddress { .. }, _) => ErrorKind::InvalidData,
            (Self::NoConnectionManager, _) => ErrorKind::NotFound,
            (Self::Invalid { .. } | Self::PrivateData { .. }, _) => ErrorKind::InvalidInput,
            (Self::Rejected(_) | Self::Sidr { .. }, _) => ErrorKind::ConnectionRefused,
            (Self::Withdrawn { .. }, _) => ErrorKind::ConnectionAborted,
            (Self::Disconnected { .. }, _) => ErrorKind::ConnectionReset,
            (Self::DeviceRemoved { .. }, _) => ErrorKind::NotConnected,
            (Self::TimedOut { .. }, _) => ErrorKind::TimedOut,
            (Self::Unsupported { .. }, _) => ErrorKind::Unsupported,
            _ => ErrorKind::Other,
        }
    }
}

impl From<Error> for io::Error {
    /// An error of the kind that the errno has, if there is one, with the whole error as its
    /// source. A rejected connection is [`ErrorKind::ConnectionRefused`].
    fn from(error: Error) -> Self {
        match error {
            Error::Verbs(error) if error.errno().is_none() => error.into(),
            error => Self::new(error.kind(), error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn io_errors_have_the_kind_of_their_cause() {
        let refused = CommandError::by_kernel("BIND", "x", Errno::ADDRINUSE);
        let kinds = [
            (Error::from(refused), ErrorKind::AddrInUse),
            (Error::Address(Errno::NETUNREACH), ErrorKind::NetworkUnreachable),
            (Error::Unreachable(Errno::TIMEDOUT), ErrorKind::TimedOut),
            (Error::NoConnectionManager, ErrorKind::NotFound),
            (Error::Withdrawn { verb: "accept" }, ErrorKind::ConnectionAborted),
            (Error::Disconnected { verb: "connect" }, ErrorKind::ConnectionReset),
            (Error::invalid("bind_addr", "x"), ErrorKind::InvalidInput),
            (Error::TimedOut { verb: "resolve_addr", limit: Duration::ZERO }, ErrorKind::TimedOut),
            (bareverbs::Error::NoDevice.into(), ErrorKind::NotFound),
        ];
        for (error, kind) in kinds {
            let text = error.to_string();
            let error = io::Error::from(error);
            assert_eq!(error.kind(), kind, "{text}");
            assert_eq!(error.to_string(), text);
        }
    }

    #[test]
    fn failed_operations_convert_to_their_error() {
        let failed: bareverbs::Failed<()> = bareverbs::Error::NoDevice.into();
        assert!(matches!(Error::from(failed), Error::Verbs(bareverbs::Error::NoDevice)));
    }

    #[test]
    fn report_of_an_error_has_its_text() {
        let error = CommandError {
            hint: Some("choose another port"),
            ..CommandError::by_kernel("BIND", "id 3 to 10.1.0.1:7471", Errno::ADDRINUSE)
        };
        let printed = |error| format!("{:?}", bareverbs::Report::from(error));
        assert_eq!(
            printed(Error::from(error)),
            "BIND was refused by the kernel (id 3 to 10.1.0.1:7471): Address already in use (os error 98): \
             choose another port"
        );
        let error = Error::Name {
            verb: "Connector::connect",
            name: "peer:7471".into(),
            error: io::Error::other("no such host"),
        };
        let text = "Connector::connect: the name \"peer:7471\" was not resolved: no such host";
        assert_eq!(printed(error), text);
        let verbs = Error::from(bareverbs::Error::DeviceRemoved { verb: "create_qp" });
        let text = "create_qp: the device was removed: open it again when it is back";
        assert_eq!(printed(verbs), text);
    }

    #[test]
    fn question_mark_converts_refused_calls() {
        let destroy = |refused: Refused<(), Error>| -> Result<()> { Err(refused)? };
        let error = destroy(Refused::new(Error::NoConnectionManager, ())).unwrap_err();
        assert!(matches!(error, Error::NoConnectionManager));
        let register = |refused: Refused<()>| -> Result<()> { Err(refused)? };
        let error = register(Refused::new(bareverbs::Error::NoDevice, ())).unwrap_err();
        assert!(matches!(error, Error::Verbs(bareverbs::Error::NoDevice)));
    }

    #[test]
    fn command_errors_name_command_request_errno_and_hint() {
        let error = CommandError {
            hint: Some("bind it first"),
            ..CommandError::by_kernel("LISTEN", "id 3", Errno::INVAL)
        };
        let text = "LISTEN was refused by the kernel (id 3): Invalid argument (os error 22): bind it first";
        assert_eq!(error.to_string(), text);
        let soft = CommandError { origin: ErrorOrigin::Device, ..error.clone() };
        assert!(soft.to_string().starts_with("LISTEN was refused by the device (id 3): "), "{soft}");
        let stale = CommandError { errno: Errno::STALE, hint: None, ..error };
        assert!(stale.to_string().starts_with("LISTEN was not issued (id 3): "), "{stale}");
    }

    #[test]
    fn refused_answer_to_a_request_means_that_the_peer_has_withdrawn_it() {
        let refused = |errno| Error::from(CommandError::by_kernel("ACCEPT", "", errno)).withdrawn("accept");
        let error = refused(Errno::INVAL);
        assert!(matches!(error, Error::Withdrawn { verb: "accept" }), "{error}");
        let error = refused(Errno::CONNRESET);
        assert!(matches!(error, Error::Withdrawn { verb: "accept" }), "{error}");
        assert_eq!(refused(Errno::NXIO).errno(), Some(Errno::NXIO));
    }
}
