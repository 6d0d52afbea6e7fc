//! The connection behind a stream, as the connection manager sees it.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use bareverbs::device::EventType;

use super::Result;
use crate::connection::Domains;
use crate::event::{Event, EventKind, Unreachable};
use crate::{CmId, Error, EventChannel};

/// Time limit for the kernel's work after a notification.
const ESTABLISHMENT: Duration = Duration::from_secs(1);

/// An identifier of the connection manager with a channel of its own.
#[derive(Debug)]
pub(super) struct Link {
    id: CmId,
    /// Whether the peer has confirmed the connection.
    established: bool,
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

    /// The channel of the connection's events.
    pub(super) fn channel(&self) -> &EventChannel {
        self.id.channel()
    }

    /// `established`: whether the peer has confirmed the connection. That of a listener may be on its
    /// way.
    pub(super) fn new(id: CmId, domains: Domains, established: bool) -> Self {
        Self { id, established, end: None, abandoned: false, _domains: domains }
    }

    /// Ends the connection after an error of this side. Without it, a peer that waits for room would
    /// wait until this side drops the stream.
    pub(super) fn abandon(&mut self) {
        if !self.abandoned {
            self.abandoned = true;
            // Messages of the peer may come before its confirmation, without which there is nothing to
            // disconnect. It fails if the connection is gone or established already.
            if !self.established && self.id.notify(EventType::COMM_EST).is_ok() {
                self.wait_for_establishment();
            }
            // It fails if the device or the connection is gone, and then the peer knows.
            let _ = self.id.disconnect();
        }
    }

    /// Waits until the kernel has carried out a notification of COMM_EST, which takes it a moment.
    ///
    /// The kernel cancels the retries of its REP then (`cm_establish_handler` of
    /// `drivers/infiniband/core/cm.c`). After an earlier DREQ it would not, and destroying the
    /// identifier would wait until the retries are exhausted, for over a minute.
    fn wait_for_establishment(&mut self) {
        let end = Instant::now() + ESTABLISHMENT;
        while !self.established && self.end.is_none() {
            let Ok(Some(event)) = self.id.channel().wait_event(None, Some(end)) else { break };
            if self.take(event).is_err() {
                break;
            }
        }
    }

    /// Whether the peer has confirmed the connection, as far as [`end`](Self::end) has found.
    pub(super) fn is_established(&self) -> bool {
        self.established
    }

    /// How the connection has ended, as far as the connection manager knows: without an error if the
    /// peer ended it.
    pub(super) fn end(&mut self) -> Result<Option<Result<()>>> {
        while let Some(event) = self.id.channel().try_wait()? {
            self.take(event)?;
        }
        Ok(self.end.clone())
    }

    fn take(&mut self, event: Event) -> Result<()> {
        match event.kind {
            EventKind::Established(_) => self.established = true,
            // After ESTABLISHED, it only reports a new MAC address of a neighbour.
            EventKind::Unreachable(Unreachable::Errno(errno)) | EventKind::ConnectError(errno)
                if !self.established =>
            {
                self.end = Some(Err(Error::Unreachable(errno).into()));
            }
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
        Ok(())
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.id.channel().as_fd()
    }
}
