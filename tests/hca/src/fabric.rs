//! What lies between devices: a switch that finds the port of a packet or frame.

mod faults;
mod pcap;
pub(crate) mod wire;

use std::collections::VecDeque;
use std::io;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use crate::engine::Doorbell;
use crate::engine::packet::{Link, Packet};
pub use faults::Faults;
use faults::Injector;
use pcap::Recorder;

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

/// A switch. Ports keep their place for the fabric's life.
#[derive(Default)]
pub struct Fabric {
    plugs: RwLock<Vec<Plug>>,
    injector: Option<Mutex<Injector>>,
    recorder: Mutex<Option<Recorder>>,
}

impl Fabric {
    /// A switch without ports.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// A switch whose wires misbehave, and that records what it carries.
    pub fn with(faults: Faults, recording: Option<&Path>) -> io::Result<Arc<Self>> {
        let recorder = recording.map(Recorder::create).transpose()?;
        Ok(Arc::new(Self {
            plugs: RwLock::default(),
            injector: Some(Mutex::new(Injector::new(faults))),
            recorder: Mutex::new(recorder),
        }))
    }

    /// Records what is sent, and does to it what the wires do.
    fn befall(&self, packets: &mut Vec<Packet>, frames: &[Vec<u8>]) {
        if let Some(injector) = &self.injector {
            let mut recorder = self.recorder.lock().unwrap_or_else(PoisonError::into_inner);
            let recorded = recorder.as_mut().map_or(Ok(()), |recorder| {
                recorder.record(packets)?;
                frames.iter().try_for_each(|frame| recorder.frame(frame))
            });
            if let Err(error) = recorded {
                eprintln!("the recording ends: {error}");
                *recorder = None;
            }
            drop(recorder);
            injector.lock().unwrap_or_else(PoisonError::into_inner).pass(packets);
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
        self.befall(packets, frames);
        let plugs = self.plugs.read().unwrap_or_else(PoisonError::into_inner);
        // Runs of packets for the same port take its lock once.
        let mut batch = packets.drain(..).peekable();
        while let Some(packet) = batch.next() {
            if packet.route.is_multicast() {
                for plug in plugs.iter() {
                    deliver(&plug.mailbox, std::iter::once(packet.clone()));
                }
                continue;
            }
            let Some(plug) = plugs.iter().find(|plug| plug.addresses.is_for(link, &packet)) else { continue };
            let route = packet.route;
            let mut run = vec![packet];
            while let Some(next) = batch.next_if(|next| next.route == route) {
                run.push(next);
            }
            deliver(&plug.mailbox, run.into_iter());
        }
        for frame in frames.drain(..) {
            let Some(to) = frame.first_chunk::<6>() else { continue };
            for (_, plug) in plugs.iter().enumerate().filter(|(port, _)| *port != from) {
                if to[0] & 1 != 0 || plug.addresses.mac == *to {
                    plug.mailbox.post(|mail| {
                        if mail.frames.len() < CONGESTED {
                            mail.frames.push_back(frame.clone());
                        }
                    });
                }
            }
        }
    }

    /// Whether a port has so much waiting that senders should pause.
    pub(crate) fn congested(&self, from: usize) -> bool {
        let plugs = self.plugs.read().unwrap_or_else(PoisonError::into_inner);
        plugs.iter().enumerate().any(|(port, plug)| port != from && plug.mailbox.waiting() > CONGESTED)
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
