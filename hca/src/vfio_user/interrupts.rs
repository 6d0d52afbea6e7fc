//! MSI-X vectors as eventfds.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use crate::engine::Interrupts;
use crate::engine::limits::VECTORS;

/// The eventfd of each vector.
#[derive(Clone, Default)]
pub(crate) struct Vectors {
    fds: Arc<Mutex<[Option<OwnedFd>; VECTORS as usize]>>,
}

impl Vectors {
    /// Sets or removes the eventfd of a vector. Returns `false` if the vector is out of range.
    pub(crate) fn set(&self, vector: u32, fd: Option<OwnedFd>) -> bool {
        let mut fds = self.fds.lock().unwrap_or_else(PoisonError::into_inner);
        match fds.get_mut(vector as usize) {
            Some(slot) => {
                *slot = fd;
                true
            }
            None => false,
        }
    }

    /// Removes all eventfds.
    pub(crate) fn clear(&self) {
        *self.fds.lock().unwrap_or_else(PoisonError::into_inner) = Default::default();
    }
}

impl Interrupts for Vectors {
    fn raise(&self, vector: u16) {
        let fds = self.fds.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(Some(fd)) = fds.get(usize::from(vector)) {
            // A full counter has a pending interrupt already. Other failures mean that the peer has
            // gone.
            let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
        }
    }
}
