//! Errors of netlink requests.

use std::fmt;
use std::io::{self, ErrorKind};

use bareverbs_uapi::values::PortNum;
use rustix::io::Errno;

/// The result of a netlink request.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of a netlink request: the request, the cause and the remedy.
///
/// Programs match on the variant and on the [errno](Error::errno). `Display` is for people; its text
/// may change.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No device has that name.
    #[error("no RDMA device is named {name:?}; {}", known_devices(known))]
    UnknownDevice {
        /// The requested name.
        name: String,
        /// The names of all devices.
        known: Vec<String>,
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
    /// The request is invalid. It was not sent to the kernel.
    #[error("{verb}: {reason}")]
    Invalid {
        /// The function, such as `RdmaNetlink::new_link`.
        verb: &'static str,
        /// The reason.
        reason: String,
    },
    /// The kernel does not support the request.
    #[doc(alias = "PrivilegedQkey")]
    #[error("{verb}: {feature} are not supported by this kernel")]
    Unsupported {
        /// The function.
        verb: &'static str,
        /// What the kernel does not support.
        feature: &'static str,
    },
    /// The kernel refused the request.
    #[doc(alias = "NetlinkRefused")]
    #[error(transparent)]
    Kernel(#[from] Box<KernelError>),
    /// The kernel's response is malformed.
    #[error("{what}: malformed netlink response: {reason}")]
    Malformed {
        /// The request, as text.
        what: String,
        /// The reason.
        reason: String,
    },
    /// A system call failed.
    #[error("{what}: {errno}{}", system_hint(*errno))]
    System {
        /// The attempted action.
        what: String,
        /// The errno.
        errno: Errno,
    },
}

/// A netlink request that the kernel refused.
#[doc(alias = "NetlinkError")]
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KernelError {
    /// The request, as text.
    pub request: String,
    /// The errno.
    pub errno: Errno,
    /// The kernel's explanation (extended acknowledgement), if it gave one.
    #[doc(alias = "NLMSGERR_ATTR_MSG")]
    pub message: Option<String>,
    /// The likely cause and the remedy, if known.
    pub hint: Option<&'static str>,
}

impl Error {
    /// The kernel's errno, if a system call or the request failed.
    #[must_use]
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Self::System { errno, .. } => Some(*errno),
            Self::Kernel(refused) => Some(refused.errno),
            _ => None,
        }
    }

    pub(crate) fn invalid(verb: &'static str, reason: impl Into<String>) -> Self {
        Self::Invalid { verb, reason: reason.into() }
    }

    pub(crate) fn malformed(what: &str, reason: impl fmt::Display) -> Self {
        Self::Malformed { what: what.to_owned(), reason: reason.to_string() }
    }

    pub(crate) fn system(what: impl Into<String>, errno: Errno) -> Self {
        Self::System { what: what.into(), errno }
    }
}

impl From<KernelError> for Error {
    fn from(refused: KernelError) -> Self {
        Self::Kernel(Box::new(refused))
    }
}

impl From<Error> for io::Error {
    /// An error of the kind that the errno has, if there is one, with the whole error as its
    /// source.
    fn from(error: Error) -> Self {
        let kind = match (&error, error.errno()) {
            (_, Some(errno)) => Self::from(errno).kind(),
            (Error::UnknownDevice { .. } | Error::NoPort { .. }, _) => ErrorKind::NotFound,
            (Error::Unsupported { .. }, _) => ErrorKind::Unsupported,
            (Error::Invalid { .. }, _) => ErrorKind::InvalidInput,
            (Error::Malformed { .. }, _) => ErrorKind::InvalidData,
            _ => ErrorKind::Other,
        };
        Self::new(kind, error)
    }
}

fn known_devices(known: &[String]) -> String {
    match known {
        [] => "no device exists".into(),
        [one] => format!("the only device is {one}"),
        several => format!("devices: {}", several.join(", ")),
    }
}

fn port_range(count: u8) -> String {
    match count {
        0 => "it has no ports".into(),
        1 => "its only port is 1".into(),
        count => format!("its ports are 1 to {count}"),
    }
}

fn system_hint(errno: Errno) -> &'static str {
    match errno {
        Errno::MFILE => ": close some descriptors or raise the limit with `ulimit -n`",
        // Only opening a socket of RDMA netlink fails so.
        Errno::PROTONOSUPPORT => {
            ": the kernel has no RDMA netlink: load ib_core, such as by `modprobe rdma_rxe`"
        }
        _ => "",
    }
}

impl KernelError {
    pub(crate) fn new(request: &str, errno: Errno, message: Option<String>) -> Self {
        let hint =
            (errno == Errno::PERM).then_some("it requires CAP_NET_ADMIN in the initial user namespace");
        Self { request: request.to_owned(), errno, message, hint }
    }
}

impl fmt::Display for KernelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.request, self.errno)?;
        if let Some(message) = &self.message {
            write!(f, " ({message:?})")?;
        }
        match self.hint {
            Some(hint) => write!(f, ": {hint}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for KernelError {}

/// Adds the likely cause that `hint` returns for the errno of a refused request.
pub(crate) fn with_hint<T>(result: Result<T>, hint: impl FnOnce(Errno) -> Option<&'static str>) -> Result<T> {
    result.map_err(|mut error| {
        if let Error::Kernel(refused) = &mut error {
            refused.hint = hint(refused.errno).or(refused.hint);
        }
        error
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_shows_the_kernels_explanation_and_the_remedy() {
        let refused = |errno, message: Option<&str>| {
            KernelError::new("renaming rxe0 to rxe1", errno, message.map(str::to_owned))
        };
        let plain = refused(Errno::EXIST, None).to_string();
        assert!(plain.starts_with("renaming rxe0 to rxe1: File exists"), "{plain}");
        let explained = refused(Errno::EXIST, Some("Device name already exists")).to_string();
        assert_eq!(explained, format!("{plain} (\"Device name already exists\")"));
        let denied = refused(Errno::PERM, None).to_string();
        assert!(denied.ends_with(": it requires CAP_NET_ADMIN in the initial user namespace"), "{denied}");
    }

    #[test]
    fn hint_of_the_request_replaces_the_general_one() {
        let refused = || Err::<(), _>(KernelError::new("x", Errno::PERM, None).into());
        let hint = |result: Result<()>| match result {
            Err(Error::Kernel(refused)) => refused.hint,
            other => panic!("{other:?}"),
        };
        assert_eq!(hint(with_hint(refused(), |_| Some("special"))), Some("special"));
        assert!(hint(with_hint(refused(), |_| None)).unwrap().contains("CAP_NET_ADMIN"));
    }
}
