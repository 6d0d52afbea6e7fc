//! The switch between devices: it finds the port of a packet or frame, and has inter-switch links
//! to the switches of other processes.

mod delay;
mod inter_switch_link;
pub(crate) mod subnet;
#[cfg(feature = "test-utils")]
pub(crate) mod testing;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant, SystemTime};

use bareverbs_transport::FaultInjector;
use bareverbs_transport::pcap::Recorder;

use crate::engine::Doorbell;
use crate::engine::packet::{Link, Packet};
use delay::Delayed;
use inter_switch_link::InterSwitchLink;
use subnet::service::Services;

/// Most packets queued at a port; further ones are dropped.
const CAPACITY: usize = 1 << 16;
/// Number of queued packets at which senders pause.
const CONGESTED: usize = 1 << 12;

/// A port's addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Addresses {
    /// LID; 0 on Ethernet.
    pub(crate) lid: u16,
    /// GIDs.
    pub(crate) gids: Vec<[u8; 16]>,
    /// MAC.
    pub(crate) mac: [u8; 6],
}

/// Input of a device's worker thread.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    /// Doorbells, each with its UAR page.
    pub(crate) doorbells: Vec<(u32, Doorbell)>,
    pub(crate) packets: VecDeque<Packet>,
    pub(crate) frames: VecDeque<Vec<u8>>,
    pub(crate) stop: bool,
    /// Wakes the thread without an input.
    pub(crate) wake: bool,
}

impl Inbox {
    fn is_empty(&self) -> bool {
        self.doorbells.is_empty()
            && self.packets.is_empty()
            && self.frames.is_empty()
            && !self.stop
            && !self.wake
    }
}

/// A device's inbox, shared with its worker thread.
#[derive(Debug, Default)]
pub(crate) struct SharedInbox {
    inbox: Mutex<Inbox>,
    changed: Condvar,
}

impl SharedInbox {
    fn lock(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the inbox and wakes the device's thread.
    pub(crate) fn post(&self, change: impl FnOnce(&mut Inbox)) {
        change(&mut self.lock());
        self.changed.notify_one();
    }

    /// Takes the contents, after waiting up to `timeout` for the first.
    pub(crate) fn take(&self, timeout: Option<Duration>, into: &mut Inbox) {
        let mut inbox = self.lock();
        if inbox.is_empty() && timeout != Some(Duration::ZERO) {
            inbox = match timeout {
                None => self
                    .changed
                    .wait_while(inbox, |inbox| inbox.is_empty())
                    .unwrap_or_else(PoisonError::into_inner),
                Some(timeout) => {
                    self.changed
                        .wait_timeout_while(inbox, timeout, |inbox| inbox.is_empty())
                        .unwrap_or_else(PoisonError::into_inner)
                        .0
                }
            };
        }
        std::mem::swap(&mut *inbox, into);
    }

    fn waiting(&self) -> usize {
        self.lock().packets.len()
    }
}

struct SwitchPort {
    addresses: Addresses,
    shared_inbox: Arc<SharedInbox>,
}

/// The source of a packet or frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    Port(usize),
    InterSwitchLink(u64),
}

/// A switch. A port's index doesn't change.
pub struct Fabric {
    me: Weak<Self>,
    ports: RwLock<Vec<SwitchPort>>,
    inter_switch_links: RwLock<Vec<InterSwitchLink>>,
    next_link_number: AtomicU64,
    listeners: Mutex<Vec<Arc<UnixListener>>>,
    injector: Option<Mutex<FaultInjector>>,
    delay_queue: Option<Sender<Delayed>>,
    recorder: Option<Mutex<Option<Recorder>>>,
    /// Services that ports have registered with the subnet administrator.
    services: Mutex<Services>,
}

impl fmt::Debug for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fabric").finish_non_exhaustive()
    }
}

impl Fabric {
    /// A switch without ports.
    pub fn new() -> Arc<Self> {
        Self::build(None, None, None)
    }

    /// A switch with fault injection and, optionally, a recording of its traffic.
    pub fn with(faults: FaultInjector, recording: Option<&Path>) -> io::Result<Arc<Self>> {
        let recorder = recording.map(|path| Recorder::new(File::create(path)?)).transpose()?;
        let (mut delay_queue, mut injector) = (None, None);
        if !faults.is_empty() {
            let delays = faults.delays();
            injector = Some(faults);
            // The thread and the fabric refer to each other.
            let mut failure = None;
            let fabric = Arc::new_cyclic(|me: &Weak<Self>| {
                if delays {
                    match delay::start(me.clone()) {
                        Ok(sender) => delay_queue = Some(sender),
                        Err(error) => failure = Some(error),
                    }
                }
                Self::parts(me.clone(), injector, delay_queue, recorder)
            });
            return failure.map_or(Ok(fabric), Err);
        }
        Ok(Self::build(injector, delay_queue, recorder))
    }

    fn build(
        injector: Option<FaultInjector>,
        delay_queue: Option<Sender<Delayed>>,
        recorder: Option<Recorder>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|me| Self::parts(me.clone(), injector, delay_queue, recorder))
    }

    fn parts(
        me: Weak<Self>,
        injector: Option<FaultInjector>,
        delay_queue: Option<Sender<Delayed>>,
        recorder: Option<Recorder>,
    ) -> Self {
        Self {
            me,
            ports: RwLock::default(),
            inter_switch_links: RwLock::default(),
            next_link_number: AtomicU64::new(0),
            listeners: Mutex::default(),
            injector: injector.map(Mutex::new),
            delay_queue,
            recorder: recorder.map(|recorder| Mutex::new(Some(recorder))),
            services: Mutex::default(),
        }
    }

    /// Accepts fabrics of other processes through a socket at `path`.
    pub fn listen(&self, path: &Path, link: Link) -> io::Result<()> {
        let listener = Arc::new(UnixListener::bind(path)?);
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner).push(listener.clone());
        inter_switch_link::listen(self.me.clone(), listener, link)
    }

    /// Joins the fabric that listens at `path`. Fabrics joined this way must form a tree.
    pub fn join(&self, path: &Path, link: Link) -> io::Result<()> {
        inter_switch_link::join(&self.me, &UnixStream::connect(path)?, link)
    }

    /// Joins the fabric at the other end of a connected socket.
    pub fn join_over(&self, socket: &UnixStream, link: Link) -> io::Result<()> {
        inter_switch_link::join(&self.me, socket, link)
    }

    fn add_link(&self, make: impl FnOnce(u64) -> InterSwitchLink) -> u64 {
        let number = self.next_link_number.fetch_add(1, Ordering::Relaxed);
        self.inter_switch_links.write().unwrap_or_else(PoisonError::into_inner).push(make(number));
        number
    }

    fn remove_link(&self, number: u64) {
        let mut isls = self.inter_switch_links.write().unwrap_or_else(PoisonError::into_inner);
        isls.retain(|isl| isl.number != number);
    }

    /// The number of inter-switch links.
    pub fn inter_switch_links(&self) -> usize {
        self.inter_switch_links.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Records outgoing traffic and injects faults.
    fn apply_faults(&self, from: usize, link: Link, packets: &mut Vec<Packet>, frames: &[Vec<u8>]) {
        if let Some(recorder) = &self.recorder {
            let mut recorder = recorder.lock().unwrap_or_else(PoisonError::into_inner);
            let recorded = recorder.as_mut().map_or(Ok(()), |recorder| {
                let now = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
                packets.iter().try_for_each(|packet| recorder.packet(now, packet))?;
                frames.iter().try_for_each(|frame| recorder.frame(now, frame))
            });
            if let Err(error) = recorded {
                eprintln!("bareverbs-hca: the recording failed: {error}");
                *recorder = None;
            }
        }
        if let Some(injector) = &self.injector {
            let mut delayed = Vec::new();
            injector.lock().unwrap_or_else(PoisonError::into_inner).pass(packets, &mut delayed);
            for (delay, packet) in delayed {
                let due = Instant::now() + delay;
                if let Some(delay_queue) = &self.delay_queue {
                    // The thread runs as long as the fabric exists.
                    let _ = delay_queue.send(Delayed { due, link, from, packet });
                }
            }
        }
    }

    /// Adds a port for a device and returns its index.
    pub(crate) fn add_port(&self, addresses: Addresses, shared_inbox: Arc<SharedInbox>) -> usize {
        let mut ports = self.ports.write().unwrap_or_else(PoisonError::into_inner);
        ports.push(SwitchPort { addresses, shared_inbox });
        ports.len() - 1
    }

    /// Changes the addresses of a port.
    pub(crate) fn set_addresses(&self, port: usize, addresses: Addresses) {
        if let Some(switch_port) = self.ports.write().unwrap_or_else(PoisonError::into_inner).get_mut(port) {
            switch_port.addresses = addresses;
        }
    }

    /// Sends packets and frames from a port to their destinations.
    pub(crate) fn send(&self, from: usize, link: Link, packets: &mut Vec<Packet>, frames: &mut Vec<Vec<u8>>) {
        self.apply_faults(from, link, packets, frames);
        self.forward(Origin::Port(from), link, packets, frames);
    }

    /// Forwards packets and frames from a port or an inter-switch link.
    fn forward(&self, origin: Origin, link: Link, packets: &mut Vec<Packet>, frames: &mut Vec<Vec<u8>>) {
        let ports = self.ports.read().unwrap_or_else(PoisonError::into_inner);
        // Consecutive packets for the same port take its lock once.
        let mut batch = packets.drain(..).peekable();
        while let Some(packet) = batch.next() {
            if link == Link::InfiniBand && packet.route.destination_lid == subnet::LID {
                // Every fabric of a tree has a subnet administrator for its own ports.
                let lid_of = |gid: &[u8; 16]| {
                    let addresses = ports.iter().map(|switch_port| &switch_port.addresses);
                    addresses
                        .filter(|addresses| addresses.gids.contains(gid))
                        .map(|addresses| addresses.lid)
                        .next()
                };
                if let Origin::Port(from) = origin {
                    let answers = subnet::answer(&packet, lid_of, &self.services);
                    deliver(&ports[from].shared_inbox, answers.into_iter());
                }
                continue;
            }
            if packet.route.is_multicast() {
                for switch_port in ports.iter() {
                    deliver(&switch_port.shared_inbox, std::iter::once(packet.clone()));
                }
                self.to_links(origin, |isl| isl.packet(link, &packet));
                continue;
            }
            let Some(switch_port) =
                ports.iter().find(|switch_port| switch_port.addresses.is_for(link, &packet))
            else {
                self.to_links(origin, |isl| isl.packet(link, &packet));
                continue;
            };
            let route = packet.route;
            let mut run = vec![packet];
            while let Some(next) = batch.next_if(|next| next.route == route) {
                run.push(next);
            }
            deliver(&switch_port.shared_inbox, run.into_iter());
        }
        for frame in frames.drain(..) {
            let Some(to) = frame.first_chunk::<6>() else { continue };
            let (group, mut known) = (to[0] & 1 != 0, false);
            for (port, switch_port) in ports.iter().enumerate() {
                known |= switch_port.addresses.mac == *to;
                if origin != Origin::Port(port) && (group || switch_port.addresses.mac == *to) {
                    switch_port.shared_inbox.post(|inbox| {
                        if inbox.frames.len() < CONGESTED {
                            inbox.frames.push_back(frame.clone());
                        }
                    });
                }
            }
            if group || !known {
                self.to_links(origin, |isl| isl.frame(&frame));
            }
        }
    }

    fn to_links(&self, origin: Origin, send: impl Fn(&InterSwitchLink)) {
        let isls = self.inter_switch_links.read().unwrap_or_else(PoisonError::into_inner);
        for isl in isls.iter().filter(|isl| origin != Origin::InterSwitchLink(isl.number)) {
            send(isl);
        }
    }

    /// Whether a port other than `from` has so many queued packets that senders should pause.
    pub(crate) fn congested(&self, from: usize) -> bool {
        let ports = self.ports.read().unwrap_or_else(PoisonError::into_inner);
        ports
            .iter()
            .enumerate()
            .any(|(port, switch_port)| port != from && switch_port.shared_inbox.waiting() > CONGESTED)
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        for listener in self.listeners.get_mut().unwrap_or_else(PoisonError::into_inner) {
            // Wakes the accepting thread, if it still runs.
            let _ = rustix::net::shutdown(&**listener, rustix::net::Shutdown::Both);
        }
    }
}

fn deliver(shared_inbox: &SharedInbox, packets: impl Iterator<Item = Packet>) {
    shared_inbox.post(|inbox| {
        for packet in packets {
            if inbox.packets.len() < CAPACITY {
                inbox.packets.push_back(packet);
            }
        }
    });
}

impl Addresses {
    fn is_for(&self, link: Link, packet: &Packet) -> bool {
        match link {
            Link::InfiniBand => self.lid == packet.route.destination_lid,
            Link::Ethernet => {
                packet.route.global.is_some_and(|global| self.gids.contains(&global.destination))
            }
        }
    }
}
