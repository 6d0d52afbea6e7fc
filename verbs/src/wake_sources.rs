//! The sources that wake a task of the safe layer.

use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Instant;

use crate::alarm::Alarm;
use crate::channel::CompChannel;
use crate::error::Result;
use crate::runtime::{Registration, Runtime};

/// The sources that wake a task: the events of a completion channel, and a timer for keepalives.
#[derive(Debug)]
pub(crate) struct WakeSources {
    channel: Registration,
    alarm: Alarm,
}

impl WakeSources {
    pub(crate) fn new(runtime: Arc<dyn Runtime>, channel: &CompChannel) -> Result<Self> {
        Ok(Self {
            channel: Registration::new(runtime, channel.events().fd())?,
            alarm: Alarm::new(channel.events().file()),
        })
    }

    pub(crate) fn runtime(&self) -> &Arc<dyn Runtime> {
        self.channel.runtime()
    }

    /// Waits until the channel may have events, or `due` has passed. The caller then reads its events
    /// until none is left.
    pub(crate) fn poll(&mut self, waker: &Waker, due: Option<Instant>) -> Poll<Result<()>> {
        match self.channel.poll_readable(waker) {
            Poll::Pending => self.alarm.poll(self.channel.runtime(), waker, due),
            readable => readable,
        }
    }
}
