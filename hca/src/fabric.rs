//! What lies between devices: a switch that finds the port of a packet or frame, and trunks to the switches of other processes.

mod faults;
mod late;
mod pcap;
pub(crate) mod subnet;
#[cfg(feature = "test-utils")]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod transport;
mod trunk;
pub(crate) mod wire;

use std::collections::VecDeque;
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, Weak};
use std::time::{Duration, Instant};

use crate::engine::Doorbell;
use crate::engine::packet::{Link, Packet};
pub use faults::Faults;
use faults::Injector;
use late::Delayed;
use pcap::Recorder;
use trunk::Trunk;

/// Packets that may wait at a port; more are lost, as at a switch.
const ROOM: usize = 1 << 16;
/// From how many waiting packets on senders pause.
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

/// What waits for a device.
#[derive(Debug, Default)]
pub(crate) struct Mail {
    /// Each with the UAR page on which it was rung.
    pub(crate) doorbells: Vec<(u32, Doorbell)>,
    pub(crate) packets: VecDeque<Packet>,
    pub(crate) frames: VecDeque<Vec<u8>>,
    pub(crate) stop: bool,
    /// Something changed that the thread should look at.
    pub(crate) nudge: bool,
}

impl Mail {
    fn is_empty(&self) -> bool {
        self.doorbells.is_empty()
            && self.packets.is_empty()
            && self.frames.is_empty()
            && !self.stop
            && !self.nudge
    }
}

/// A device's mailbox.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    mail: Mutex<Mail>,
    news: Condvar,
}

impl Mailbox {
    fn lock(&self) -> MutexGuard<'_, Mail> {
        self.mail.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the mail and wakes the device's thread.
    pub(crate) fn post(&self, change: impl FnOnce(&mut Mail)) {
        change(&mut self.lock());
        self.news.notify_one();
    }

    /// Takes what is there, after waiting for it up to `patience`.
    pub(crate) fn take(&self, patience: Option<Duration>, into: &mut Mail) {
        let mut mail = self.lock();
        if mail.is_empty() && patience != Some(Duration::ZERO) {
            mail = match patience {
                None => {
                    self.news.wait_while(mail, |mail| mail.is_empty()).unwrap_or_else(PoisonError::into_inner)
                }
                Some(patience) => {
                    self.news
                        .wait_timeout_while(mail, patience, |mail| mail.is_empty())
                        .unwrap_or_else(PoisonError::into_inner)
                        .0
                }
            };
        }
        std::mem::swap(&mut *mail, into);
    }

    fn waiting(&self) -> usize {
        self.lock().packets.len()
    }
}

struct Plug {
    addresses: Addresses,
    mailbox: Arc<Mailbox>,
}

/// Where a packet or frame came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Origin {
    Port(usize),
    Trunk(u64),
}

/// A switch. Ports keep their place for the fabric's life.
pub struct Fabric {
    me: Weak<Self>,
    plugs: RwLock<Vec<Plug>>,
    trunks: RwLock<Vec<Trunk>>,
    next_trunk: AtomicU64,
    listeners: Mutex<Vec<Arc<UnixListener>>>,
    injector: Option<Mutex<Injector>>,
    late: Option<Sender<Delayed>>,
    recorder: Option<Mutex<Option<Recorder>>>,
}

impl Fabric {
    /// A switch without ports.
    pub fn new() -> Arc<Self> {
        Self::build(None, None, None)
    }

    /// A switch whose wires misbehave, and that records what it carries.
    pub fn with(faults: Faults, recording: Option<&Path>) -> io::Result<Arc<Self>> {
        let recorder = recording.map(Recorder::create).transpose()?;
        let (mut late, mut injector) = (None, None);
        if faults.any() {
            injector = Some(Injector::new(faults));
            // The thread must know the fabric, which must know the thread.
            let mut failure = None;
            let fabric = Arc::new_cyclic(|me: &Weak<Self>| {
                if faults.delay > 0 {
                    match late::start(me.clone()) {
                        Ok(sender) => late = Some(sender),
                        Err(error) => failure = Some(error),
                    }
                }
                Self::parts(me.clone(), injector, late, recorder)
            });
            return failure.map_or(Ok(fabric), Err);
        }
        Ok(Self::build(injector, late, recorder))
    }

    fn build(
        injector: Option<Injector>,
        late: Option<Sender<Delayed>>,
        recorder: Option<Recorder>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|me| Self::parts(me.clone(), injector, late, recorder))
    }

    fn parts(
        me: Weak<Self>,
        injector: Option<Injector>,
        late: Option<Sender<Delayed>>,
        recorder: Option<Recorder>,
    ) -> Self {
        Self {
            me,
            plugs: RwLock::default(),
            trunks: RwLock::default(),
            next_trunk: AtomicU64::new(0),
            listeners: Mutex::default(),
            injector: injector.map(Mutex::new),
            late,
            recorder: recorder.map(|recorder| Mutex::new(Some(recorder))),
        }
    }

    /// Lets fabrics of other processes join this one through a socket at `path`.
    pub fn listen(&self, path: &Path, link: Link) -> io::Result<()> {
        let listener = Arc::new(UnixListener::bind(path)?);
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner).push(listener.clone());
        trunk::listen(self.me.clone(), listener, link)
    }

    /// Joins the fabric that listens at `path`. Fabrics joined this way must form a tree.
    pub fn join(&self, path: &Path, link: Link) -> io::Result<()> {
        trunk::join(&self.me, &UnixStream::connect(path)?, link)
    }

    /// Joins the fabric at the other end of a connected socket.
    pub fn join_over(&self, socket: &UnixStream, link: Link) -> io::Result<()> {
        trunk::join(&self.me, socket, link)
    }

    fn add_trunk(&self, make: impl FnOnce(u64) -> Trunk) -> u64 {
        let number = self.next_trunk.fetch_add(1, Ordering::Relaxed);
        self.trunks.write().unwrap_or_else(PoisonError::into_inner).push(make(number));
        number
    }

    fn remove_trunk(&self, number: u64) {
        let mut trunks = self.trunks.write().unwrap_or_else(PoisonError::into_inner);
        trunks.retain(|trunk| trunk.number != number);
    }

    /// How many other fabrics are joined directly.
    pub fn trunks(&self) -> usize {
        self.trunks.read().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Records what is sent, and does to it what the wires do.
    fn befall(&self, from: usize, link: Link, packets: &mut Vec<Packet>, frames: &[Vec<u8>]) {
        if let Some(recorder) = &self.recorder {
            let mut recorder = recorder.lock().unwrap_or_else(PoisonError::into_inner);
            let recorded = recorder.as_mut().map_or(Ok(()), |recorder| {
                recorder.record(packets)?;
                frames.iter().try_for_each(|frame| recorder.frame(frame))
            });
            if let Err(error) = recorded {
                eprintln!("bareverbs-hca: the recording ends: {error}");
                *recorder = None;
            }
        }
        if let Some(injector) = &self.injector {
            let mut delayed = Vec::new();
            injector.lock().unwrap_or_else(PoisonError::into_inner).pass(packets, &mut delayed);
            for (delay, packet) in delayed {
                let due = Instant::now() + delay;
                if let Some(late) = &self.late {
                    // The thread lives as long as the fabric.
                    let _ = late.send(Delayed { due, link, from, packet });
                }
            }
        }
    }

    /// Plugs a device in; the port's index.
    pub(crate) fn plug(&self, addresses: Addresses, mailbox: Arc<Mailbox>) -> usize {
        let mut plugs = self.plugs.write().unwrap_or_else(PoisonError::into_inner);
        plugs.push(Plug { addresses, mailbox });
        plugs.len() - 1
    }

    /// A port has other addresses from now on.
    pub(crate) fn readdress(&self, port: usize, addresses: Addresses) {
        if let Some(plug) = self.plugs.write().unwrap_or_else(PoisonError::into_inner).get_mut(port) {
            plug.addresses = addresses;
        }
    }

    /// Carries packets and frames to where they belong.
    pub(crate) fn send(&self, from: usize, link: Link, packets: &mut Vec<Packet>, frames: &mut Vec<Vec<u8>>) {
        self.befall(from, link, packets, frames);
        self.forward(Origin::Port(from), link, packets, frames);
    }

    /// Carries them on, from a port or from another fabric.
    fn forward(&self, origin: Origin, link: Link, packets: &mut Vec<Packet>, frames: &mut Vec<Vec<u8>>) {
        let plugs = self.plugs.read().unwrap_or_else(PoisonError::into_inner);
        // Runs of packets for the same port take its lock once.
        let mut batch = packets.drain(..).peekable();
        while let Some(packet) = batch.next() {
            if link == Link::InfiniBand && packet.route.destination_lid == subnet::LID {
                // Every fabric of a tree has one, for its own ports.
                let lid_of = |gid: &[u8; 16]| {
                    let addresses = plugs.iter().map(|plug| &plug.addresses);
                    addresses
                        .filter(|addresses| addresses.gids.contains(gid))
                        .map(|addresses| addresses.lid)
                        .next()
                };
                if let (Origin::Port(from), Some(answer)) = (origin, subnet::answer(&packet, lid_of)) {
                    deliver(&plugs[from].mailbox, std::iter::once(answer));
                }
                continue;
            }
            if packet.route.is_multicast() {
                for plug in plugs.iter() {
                    deliver(&plug.mailbox, std::iter::once(packet.clone()));
                }
                self.to_trunks(origin, |trunk| trunk.packet(link, &packet));
                continue;
            }
            let Some(plug) = plugs.iter().find(|plug| plug.addresses.is_for(link, &packet)) else {
                self.to_trunks(origin, |trunk| trunk.packet(link, &packet));
                continue;
            };
            let route = packet.route;
            let mut run = vec![packet];
            while let Some(next) = batch.next_if(|next| next.route == route) {
                run.push(next);
            }
            deliver(&plug.mailbox, run.into_iter());
        }
        for frame in frames.drain(..) {
            let Some(to) = frame.first_chunk::<6>() else { continue };
            let (group, mut known) = (to[0] & 1 != 0, false);
            for (port, plug) in plugs.iter().enumerate() {
                known |= plug.addresses.mac == *to;
                if origin != Origin::Port(port) && (group || plug.addresses.mac == *to) {
                    plug.mailbox.post(|mail| {
                        if mail.frames.len() < CONGESTED {
                            mail.frames.push_back(frame.clone());
                        }
                    });
                }
            }
            if group || !known {
                self.to_trunks(origin, |trunk| trunk.frame(&frame));
            }
        }
    }

    fn to_trunks(&self, origin: Origin, send: impl Fn(&Trunk)) {
        let trunks = self.trunks.read().unwrap_or_else(PoisonError::into_inner);
        for trunk in trunks.iter().filter(|trunk| origin != Origin::Trunk(trunk.number)) {
            send(trunk);
        }
    }

    /// Whether a port has so much waiting that senders should pause.
    pub(crate) fn congested(&self, from: usize) -> bool {
        let plugs = self.plugs.read().unwrap_or_else(PoisonError::into_inner);
        plugs.iter().enumerate().any(|(port, plug)| port != from && plug.mailbox.waiting() > CONGESTED)
    }
}

impl Drop for Fabric {
    fn drop(&mut self) {
        for listener in self.listeners.get_mut().unwrap_or_else(PoisonError::into_inner) {
            // Wakes the thread that accepts; one that has ended already doesn't mind.
            let _ = rustix::net::shutdown(&**listener, rustix::net::Shutdown::Both);
        }
    }
}

fn deliver(mailbox: &Mailbox, packets: impl Iterator<Item = Packet>) {
    mailbox.post(|mail| {
        for packet in packets {
            if mail.packets.len() < ROOM {
                mail.packets.push_back(packet);
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
