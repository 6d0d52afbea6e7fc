//! The thread of a wire.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use bareverbs_provider::process::ForkGuard;
use bareverbs_transport::packet::Packet;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::{Inbox, UdpWire};

/// A thread that waits for the packets of a wire and for timers. It ends when this is dropped.
pub(crate) struct WireThread {
    poller: Arc<Poller>,
    thread: Option<JoinHandle<()>>,
    fork_guard: ForkGuard,
}

#[derive(Debug)]
struct Poller {
    wire: Arc<UdpWire>,
    stopped: AtomicBool,
}

impl fmt::Debug for WireThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WireThread").field("wire", &self.poller.wire.address()).finish_non_exhaustive()
    }
}

impl WireThread {
    /// Starts the thread. It calls `run` with received packets, or none if it was woken or a time has
    /// passed. `run` takes the packets, and returns the time after which it is called at the latest.
    pub(crate) fn start(
        wire: Arc<UdpWire>,
        run: impl FnMut(&mut Vec<Packet>) -> Option<Duration> + Send + 'static,
    ) -> Result<Self, Errno> {
        let fork_guard = ForkGuard::new()?;
        let poller = Arc::new(Poller { wire, stopped: AtomicBool::new(false) });
        let thread = thread::Builder::new().name("bareverbs-wire".into()).spawn({
            let poller = Arc::clone(&poller);
            move || poller.serve(run)
        });
        let thread = thread.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))?;
        Ok(Self { poller, thread: Some(thread), fork_guard })
    }

    /// Has the thread call `run` soon.
    pub(crate) fn wake(&self) {
        self.poller.wire.wake();
    }
}

impl Drop for WireThread {
    fn drop(&mut self) {
        // A forked child has no such thread, which a handle would detach.
        if !self.fork_guard.is_same_process() {
            std::mem::forget(self.thread.take());
            return;
        }
        self.poller.stopped.store(true, Ordering::Release);
        self.poller.wire.wake();
        // The thread itself may drop the last reference to a device.
        if let Some(thread) =
            self.thread.take().filter(|thread| thread.thread().id() != thread::current().id())
        {
            let _ = thread.join();
        }
    }
}

impl Poller {
    fn serve(&self, mut run: impl FnMut(&mut Vec<Packet>) -> Option<Duration>) {
        let mut inbox = Inbox::new();
        let mut wait = Some(Duration::ZERO);
        while self.wait(wait) && !self.stopped.load(Ordering::Acquire) {
            self.wire.receive(&mut inbox);
            wait = run(&mut inbox.packets);
        }
    }

    /// Waits for a packet, a wake-up, or the end of a time. Returns `false` if it can't wait any more.
    fn wait(&self, time: Option<Duration>) -> bool {
        let (socket, groups) = self.wire.sockets();
        let sockets = [socket].into_iter().chain(groups.iter().map(|group| &**group));
        let mut descriptors = vec![PollFd::new(&self.wire.wake, PollFlags::IN)];
        descriptors.extend(sockets.map(|socket| PollFd::new(socket, PollFlags::IN)));
        let time = time.and_then(|time| Timespec::try_from(time).ok());
        // An interruption is a wake-up.
        let _ = poll(&mut descriptors, time.as_ref());
        let is_closed = |descriptor: &PollFd<'_>| descriptor.revents().contains(PollFlags::NVAL);
        if descriptors[1..].iter().any(is_closed) {
            // The program has closed a socket that isn't its own. The timers still run, so retries end.
            descriptors.truncate(1);
            let _ = poll(&mut descriptors, time.as_ref());
        }
        if is_closed(&descriptors[0]) {
            return false;
        }
        if !descriptors[0].revents().is_empty() {
            let _ = rustix::io::read(&self.wire.wake, &mut [0; 8]);
        }
        true
    }
}
