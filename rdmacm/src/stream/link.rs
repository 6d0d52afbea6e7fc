//! The connection behind a stream, as the connection manager sees it.

use std::os::fd::{AsFd, BorrowedFd};

use super::Result;
use crate::CmId;
use crate::connection::Domains;
use crate::event::EventKind;

/// An identifier of the connection manager with a channel of its own.
#[derive(Debug)]
pub(super) struct Link {
    id: CmId,
    lost: bool,
    /// Keeps the device in the list for the next stream.
    _domains: Domains,
}

impl Link {
    pub(super) fn new(id: CmId, domains: Domains) -> Self {
        Self { id, lost: false, _domains: domains }
    }

    /// Whether the connection has ended, as far as the connection manager knows.
    pub(super) fn is_lost(&mut self) -> Result<bool> {
        while let Some(event) = self.id.channel().get_event()? {
            // UNREACHABLE of an established connection tells of a neighbour's new MAC address only.
            match event.kind {
                EventKind::Disconnected(_) => {
                    self.lost = true;
                    // Without an answer the peer waits until its retries are exhausted.
                    self.id.disconnect()?;
                }
                EventKind::DeviceRemoval | EventKind::Rejected(_) => self.lost = true,
                _ => {}
            }
        }
        Ok(self.lost)
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.id.channel().as_fd()
    }
}
