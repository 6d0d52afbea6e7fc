//! The error of a `main`.

use std::error::Error;
use std::fmt::{self, Write};

/// The error of a `main`. It is printed as text: what failed, the cause and the remedy.
///
/// A `main` that returns an error prints `Debug` of it. That of an [`Error`](crate::Error) has its
/// fields, such as `Error: NoDevice`. `Debug` of a report is the error's text, followed by one line
/// for each of its sources that the text does not contain. `?` converts every error to it.
///
/// ```
/// use bareverbs::{Device, Report};
///
/// fn main() -> Result<(), Report> {
///     // If it is missing, the program prints its name and the remedy.
///     println!("{:?}", Device::find("soft0")?.open()?.device());
///     Ok(())
/// }
/// ```
///
/// A text of the program is an error, too: `Err(std::io::Error::other("usage: echo HOST"))?`.
///
/// It is no [`std::error::Error`] itself: functions that handle errors return those.
pub struct Report(String);

impl<E: Error + 'static> From<E> for Report {
    fn from(error: E) -> Self {
        let mut text = error.to_string();
        let mut source = error.source();
        while let Some(cause) = source {
            let line = cause.to_string();
            if !text.contains(&line) {
                write!(text, "\n  caused by: {line}").expect("a string takes any text");
            }
            source = cause.source();
        }
        Self(text)
    }
}

impl fmt::Debug for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use bareverbs_provider::device::IoctlError;
    use rustix::io::Errno;

    use super::*;
    use crate::Refused;

    /// What a `main` prints that returns `error`.
    fn printed(error: impl Error + 'static) -> String {
        format!("{:?}", Report::from(error))
    }

    #[derive(Debug, thiserror::Error)]
    enum Failed {
        #[error("no configuration")]
        Missing(#[source] Box<Self>),
        #[error("cannot read /etc/peers")]
        Read(#[source] io::Error),
        #[error("cannot read /etc/peers: {0}")]
        Told(#[source] io::Error),
    }

    const NO_DEVICE: &str = "no RDMA device found: load its driver, or create a software device with `rdma \
                             link add rxe0 type rxe netdev eth0` or `bareverbs link add ...`";

    #[test]
    fn error_is_reported_by_its_text_with_the_remedy() {
        assert!(printed(crate::Error::NoDevice).starts_with(NO_DEVICE));
        assert!(printed(Refused::new(crate::Error::NoDevice, ())).starts_with(NO_DEVICE));
        let refused = IoctlError::new("CQ_CREATE", Errno::MFILE);
        let error = crate::Error::kernel("create_cq", "64 entries", refused)
            .or_hint(|_| Some("raise the limit".into()));
        assert_eq!(
            printed(error),
            "create_cq (64 entries): CQ_CREATE was refused by the kernel: Too many open files (os error 24): \
             raise the limit"
        );
    }

    #[test]
    fn each_source_is_reported_once_on_a_line() {
        let denied = || io::Error::from_raw_os_error(Errno::ACCESS.raw_os_error());
        let read = Failed::Read(denied());
        let text = "cannot read /etc/peers\n  caused by: Permission denied (os error 13)";
        assert_eq!(printed(read), text);
        let missing = Failed::Missing(Box::new(Failed::Read(denied())));
        assert_eq!(printed(missing), format!("no configuration\n  caused by: {}", text));
        // The text contains that of the source.
        let text = "cannot read /etc/peers: Permission denied (os error 13)";
        assert_eq!(printed(Failed::Told(denied())), text);
    }

    #[test]
    fn io_error_is_reported_by_its_text() {
        let refused = io::Error::from_raw_os_error(Errno::CONNREFUSED.raw_os_error());
        assert_eq!(printed(refused), "Connection refused (os error 111)");
        assert_eq!(printed(io::Error::other("usage: echo HOST")), "usage: echo HOST");
        assert!(printed(io::Error::from(crate::Error::NoDevice)).starts_with(NO_DEVICE));
        let text = "cannot read /etc/peers\n  caused by: Connection refused (os error 111)";
        let nested = Failed::Read(io::Error::from_raw_os_error(Errno::CONNREFUSED.raw_os_error()));
        assert_eq!(printed(io::Error::other(nested)), text);
    }
}
