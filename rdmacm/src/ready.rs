//! Descriptors that stand for several, and their registration with a runtime.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use bareverbs::runtime::{Readable, Runtime};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::io;

use crate::{Error, Result};

/// An epoll instance that is readable while one of the descriptors is. Each has a number, which a wait
/// returns.
pub(crate) fn combine(fds: &[(BorrowedFd<'_>, u64)]) -> io::Result<OwnedFd> {
    let combined = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    fds.iter().try_for_each(|(fd, number)| add(&combined, fd, *number))?;
    Ok(combined)
}

/// Adds a descriptor.
pub(crate) fn add(combined: &OwnedFd, fd: impl AsFd, number: u64) -> io::Result<()> {
    epoll::add(combined, fd, epoll::EventData::new_u64(number), epoll::EventFlags::IN)
}

/// Whether a descriptor is readable.
pub(crate) fn is_readable(fd: BorrowedFd<'_>) -> bool {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    matches!(poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], Some(&now)), Ok(1..))
}

/// Registers a descriptor with the runtime, if there is one.
pub(crate) fn register(
    runtime: Option<&Arc<dyn Runtime>>,
    fd: &Arc<OwnedFd>,
) -> Result<Option<Box<dyn Readable>>> {
    let registered = runtime.map(|runtime| runtime.register(Arc::clone(fd))).transpose();
    registered.map_err(|error| refused(&error))
}

/// The error of a call of the runtime.
pub(crate) fn refused(error: &std::io::Error) -> Error {
    match rustix::io::Errno::from_io_error(error) {
        Some(errno) => Error::System { what: "a call of the async runtime", errno },
        None => Error::invalid("attach", format!("the async runtime has refused the call: {error}")),
    }
}
