//! Removal of the device.
//!
//! When a driver unregisters a device, the kernel destroys the objects of each open file of the device
//! (`uverbs_destroy_ufile_hw`) and closes its completion channels: reading them fails with `EIO`. Commands
//! fail with `EIO` as well, but begin to do so before the objects are destroyed. So neither shows that the
//! device has stopped its accesses.
//!
//! The command that destroys the QP does. It takes the lock under which the kernel destroys the objects, so
//! it returns after that, and it is not among the commands that fail. It succeeds if the QP is destroyed,
//! by the kernel or by the command itself. So `EIO` and a closed channel are hints only: they make the
//! owner of operations destroy their QPs, and the operations end if the kernel says that it succeeded.

use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::Error;

/// How often a wait that polls looks whether the device was removed.
const INTERVAL: Duration = Duration::from_secs(1);

/// Whether the error of arming a CQ or reading its events hints at the removal of the device.
pub(crate) fn is_hint(error: &Error) -> bool {
    error.errno() == Some(Errno::IO)
}

/// When a wait that polls looks at the completion channel.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    next: Option<Instant>,
}

impl Watch {
    /// Whether a look is due at `now`. The first call starts the interval.
    pub(crate) fn is_due(&mut self, now: Instant) -> bool {
        let due = self.next.is_some_and(|next| next <= now);
        if due || self.next.is_none() {
            self.next = now.checked_add(INTERVAL);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eio_hints_at_a_removal_and_no_other_errno_does() {
        let failed = |errno| Error::system("reading events", errno);
        assert!(is_hint(&failed(Errno::IO)));
        // That of a forked child, whose parent goes on.
        for errno in [Errno::STALE, Errno::NOMEM, Errno::INVAL, Errno::BADF] {
            assert!(!is_hint(&failed(errno)), "{errno}");
        }
    }

    #[test]
    fn look_is_due_an_interval_after_the_first_call() {
        let (mut watch, start) = (Watch::default(), Instant::now());
        assert!(!watch.is_due(start));
        assert!(!watch.is_due(start + INTERVAL / 2));
        assert!(watch.is_due(start + INTERVAL));
        assert!(!watch.is_due(start + INTERVAL));
        assert!(watch.is_due(start + 3 * INTERVAL));
    }
}
