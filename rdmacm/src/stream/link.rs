//! The connection behind a stream, as the connection manager sees it.

use std::os::fd::{AsFd, BorrowedFd};

use super::Result;
use crate::connection::Domains;
use crate::event::EventKind;
use crate::{CmId, Error};

/// An identifier of the connection manager with a channel of its own.
#[derive(Debug)]
pub(super) struct Link {
    id: CmId,
    end: Option<Result<()>>,
    /// Whether a DREQ was sent because this side has failed.
    abandoned: bool,
    /// Keeps the device in the list for the next stream.
    _domains: Domains,
}

impl Link {
    /// Whether this process opened it. Otherwise it was inherited by a fork.
    pub(super) fn is_of_this_process(&self) -> bool {
        self.id.channel().file().is_of_this_process()
    }

    pub(super) fn new(id: CmId, domains: Domains) -> Self {
        Self { id, end: None, abandoned: false, _domains: domains }
    }

    /// Ends the connection after an error of this side. Without it, a peer that waits for room would
    /// wait until this side drops the stream.
    pub(super) fn abandon(&mut self) {
        if !self.abandoned {
            self.abandoned = true;
            // It fails if the device or the connection is gone, and then the peer knows.
            let _ = self.id.disconnect();
        }
    }

    /// How the connection has ended, as far as the connection manager knows: without an error if the
    /// peer ended it.
    pub(super) fn end(&mut self) -> Result<Option<Result<()>>> {
        while let Some(event) = self.id.channel().get_event()? {
            // UNREACHABLE of an established connection tells of a neighbour's new MAC address only.
            match event.kind {
                EventKind::Disconnected(_) => {
                    self.end = Some(Ok(()));
                    // Without an answer the peer waits until its retries are exhausted.
                    self.id.disconnect()?;
                }
                EventKind::Rejected(_) => self.end = Some(Ok(())),
                EventKind::DeviceRemoval => {
                    self.end = Some(Err(Error::DeviceRemoved { verb: "RdmaStream" }.into()));
                }
                _ => {}
            }
        }
        Ok(self.end.clone())
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.id.channel().as_fd()
    }
}
