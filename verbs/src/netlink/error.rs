//! Requests that the kernel refused.

use std::fmt;

use rustix::io::Errno;

use crate::{Error, Result};

/// A netlink request that the kernel refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NetlinkError {
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

impl NetlinkError {
    pub(super) fn new(request: &str, errno: Errno, message: Option<String>) -> Self {
        let hint =
            (errno == Errno::PERM).then_some("it requires CAP_NET_ADMIN in the initial user namespace");
        Self { request: request.to_owned(), errno, message, hint }
    }
}

impl fmt::Display for NetlinkError {
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

impl std::error::Error for NetlinkError {}

impl From<NetlinkError> for Error {
    fn from(error: NetlinkError) -> Self {
        Self::NetlinkRefused(Box::new(error))
    }
}

/// Adds the likely cause that `hint` returns for the errno of a refused request.
pub(super) fn with_hint<T>(result: Result<T>, hint: impl FnOnce(Errno) -> Option<&'static str>) -> Result<T> {
    result.map_err(|mut error| {
        if let Error::NetlinkRefused(refused) = &mut error {
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
            NetlinkError::new("renaming rxe0 to rxe1", errno, message.map(str::to_owned))
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
        let refused = || Err::<(), _>(NetlinkError::new("x", Errno::PERM, None).into());
        let hint = |result: Result<()>| match result {
            Err(Error::NetlinkRefused(refused)) => refused.hint,
            other => panic!("{other:?}"),
        };
        assert_eq!(hint(with_hint(refused(), |_| Some("special"))), Some("special"));
        assert!(hint(with_hint(refused(), |_| None)).unwrap().contains("CAP_NET_ADMIN"));
    }
}
