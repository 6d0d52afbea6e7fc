//! A device: engine and firmware behind one lock, and the worker thread.
//!
//! A doorbell is only queued for the worker thread, so a driver's store returns at once. The thread
//! holds the lock for one bounded turn at a time. Commands, resets and changes of the memory map
//! take the same lock, so no work is running during them.

#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::engine::{Doorbell, Engine, Interrupts, Link, Port, PortEvent, Recorder};
use crate::fabric::{Addresses, Fabric, Inbox, SharedInbox};
use crate::firmware::{Delivery, Firmware, execute_slot, opcode};
use crate::memory::{DEVICE_MEMORY_SIZE, DEVICE_MEMORY_START, DmaMap, MapError};

/// Pause of a sender whose receiver is congested.
const PAUSE: Duration = Duration::from_micros(50);

/// Parameters of a device.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// The link layer of its port.
    pub link: Link,
    /// The index in the fabric, from 0. LID, GUID and MAC are derived from it.
    pub index: u8,
    /// The CQE version: 1, or 0, where CQEs name queues by their numbers rather than by user
    /// indices.
    pub cqe_version: u8,
    /// Whether commands are logged to standard error.
    pub verbose: bool,
}

/// A port change that is requested from outside the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PortChange {
    /// Link up (`true`) or down.
    Link(bool),
    /// New LID of an InfiniBand port.
    Lid(u16),
    /// New subnet prefix of an InfiniBand port.
    Prefix(u64),
}

struct DeviceState {
    engine: Engine,
    firmware: Firmware,
}

struct Shared {
    setup: Setup,
    state: Mutex<DeviceState>,
    shared_inbox: Arc<SharedInbox>,
    fabric: Arc<Fabric>,
    port: usize,
    start: Instant,
}

/// A device, connected to a fabric.
pub(crate) struct Device {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Device {
    pub(crate) fn new(
        setup: Setup,
        fabric: &Arc<Fabric>,
        interrupts: Box<dyn Interrupts>,
    ) -> std::io::Result<Self> {
        let engine = Engine::new(Port::new(setup.link, setup.index), interrupts);
        let shared_inbox = Arc::<SharedInbox>::default();
        let port = fabric.add_port(addresses(&engine), shared_inbox.clone());
        let state =
            Mutex::new(DeviceState { engine, firmware: Firmware::of_version(setup.link, setup.cqe_version) });
        let shared = Arc::new(Shared {
            setup,
            state,
            shared_inbox,
            fabric: fabric.clone(),
            port,
            start: Instant::now(),
        });
        let worker = shared.clone();
        let thread =
            std::thread::Builder::new().name(format!("hca{}", setup.index)).spawn(move || worker.work())?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// The device's clock in nanoseconds.
    pub(crate) fn now(&self) -> u64 {
        self.shared.now()
    }

    /// Queues a doorbell for the worker thread.
    pub(crate) fn ring(&self, uar: u32, doorbell: Doorbell) {
        self.shared.shared_inbox.post(|inbox| inbox.doorbells.push((uar, doorbell)));
    }

    /// Executes the commands in these slots of the command queue.
    pub(crate) fn command(&self, queue: u64, slots: u32) {
        for slot in (0..32).filter(|slot| slots >> slot & 1 != 0) {
            let mut guard = self.shared.lock();
            let DeviceState { engine, firmware } = &mut *guard;
            let before = addresses(engine);
            let outcome = execute_slot(firmware, engine, queue, slot);
            let after = addresses(engine);
            drop(guard);
            if before != after {
                self.shared.fabric.set_addresses(self.shared.port, after);
            }
            // The command may have made a QP ready to run.
            self.shared.shared_inbox.post(|inbox| inbox.wake = true);
            if self.shared.setup.verbose {
                log(self.shared.setup.index, self.shared.now(), &outcome);
            }
        }
    }

    /// Copies from device memory. Unallocated memory reads as ones. Returns `false` for a range
    /// beyond the BAR.
    pub(crate) fn read_memory(&self, at: u64, to: &mut [u8]) -> bool {
        if self.shared.lock().engine.memory().device_memory().read(at, to).is_err() {
            to.fill(0xff);
        }
        at.checked_add(to.len() as u64).is_some_and(|end| end <= DEVICE_MEMORY_START + DEVICE_MEMORY_SIZE)
    }

    /// Copies to device memory. Writes to unallocated memory are discarded.
    pub(crate) fn write_memory(&self, at: u64, from: &[u8]) {
        let _ = self.shared.lock().engine.memory().device_memory().write(at, from);
    }

    /// Changes the memory map while no work is running.
    pub(crate) fn remap<T>(
        &self,
        change: impl FnOnce(&mut DmaMap) -> Result<T, MapError>,
    ) -> Result<T, MapError> {
        change(self.shared.lock().engine.memory())
    }

    /// Discards all state but the memory map.
    pub(crate) fn reset(&self) {
        let mut guard = self.shared.lock();
        guard.engine.reset();
        guard.firmware = Firmware::of_version(self.shared.setup.link, self.shared.setup.cqe_version);
        let after = addresses(&guard.engine);
        drop(guard);
        self.shared.fabric.set_addresses(self.shared.port, after);
        self.shared.shared_inbox.post(|inbox| *inbox = Inbox { wake: true, ..Inbox::default() });
    }

    /// Discards all state.
    pub(crate) fn discard_state(&self) {
        self.reset();
        self.shared.lock().engine.memory().clear();
    }

    /// Changes the port and posts the event to the driver. Returns `false` if the change doesn't
    /// apply to the link layer.
    pub(crate) fn change(&self, change: PortChange) -> bool {
        let mut guard = self.shared.lock();
        let engine = &mut guard.engine;
        match change {
            PortChange::Link(up) => engine.set_cable(up),
            _ if self.shared.setup.link == Link::Ethernet => return false,
            PortChange::Lid(lid) if engine.port().lid != lid => {
                engine.port_mut().lid = lid;
                engine.port_event(PortEvent::Lid);
            }
            PortChange::Prefix(prefix) if engine.port().prefix != prefix => {
                engine.port_mut().prefix = prefix;
                engine.port_event(PortEvent::Gid);
            }
            PortChange::Lid(_) | PortChange::Prefix(_) => {}
        }
        let after = addresses(engine);
        drop(guard);
        self.shared.fabric.set_addresses(self.shared.port, after);
        true
    }

    /// Calls `recorder` for each fetched work request from now on.
    pub(crate) fn record(&self, recorder: Recorder) {
        self.shared.lock().engine.record(recorder);
    }

    /// The number of the driver's objects of each kind.
    pub(crate) fn objects(&self) -> String {
        self.shared.lock().firmware.objects()
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        self.shared.shared_inbox.post(|inbox| inbox.stop = true);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has already been reported.
            let _ = thread.join();
        }
        self.shared.fabric.set_addresses(self.shared.port, Addresses::default());
    }
}

fn addresses(engine: &Engine) -> Addresses {
    let port = engine.port();
    let gids = match port.link {
        Link::InfiniBand => vec![port.own_gid()],
        Link::Ethernet => port.gid_addresses(),
    };
    Addresses { lid: port.lid, gids, mac: port.mac }
}

fn log(index: u8, now: u64, outcome: &Result<crate::firmware::Outcome, crate::memory::DmaFault>) {
    let seconds = now as f64 / 1e9;
    match outcome {
        Err(fault) => eprintln!("{seconds:10.6} hca{index}: command queue: {fault}"),
        Ok(outcome) => {
            let name = opcode::name(outcome.opcode);
            let delivery =
                outcome.delivery.map(|delivery: Delivery| format!(" {delivery:?}")).unwrap_or_default();
            eprintln!(
                "{seconds:10.6} hca{index}: {name} ({:#x}) modifier {:#x}: status {:#x}{delivery}",
                outcome.opcode, outcome.modifier, outcome.status
            );
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, DeviceState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// The worker thread: takes the inbox, runs one turn, and sends the resulting packets and
    /// frames.
    fn work(&self) {
        let (mut inbox, mut packets, mut frames) = (Inbox::default(), Vec::new(), Vec::new());
        let mut timeout = None;
        loop {
            self.shared_inbox.take(timeout, &mut inbox);
            if inbox.stop {
                return;
            }
            let congested = self.fabric.congested(self.port);
            let mut guard = self.lock();
            let DeviceState { engine, firmware } = &mut *guard;
            let now = self.now();
            engine.set_time(now);
            for (uar, doorbell) in inbox.doorbells.drain(..) {
                if sq_uses_uar(firmware, uar, &doorbell) {
                    engine.ring(doorbell);
                }
            }
            for packet in inbox.packets.drain(..) {
                if engine.port().is_up() && engine.port().answers_to(&packet.route) {
                    engine.receive(packet);
                }
            }
            for frame in inbox.frames.drain(..) {
                if engine.port().is_up() {
                    engine.frame_arrived(&frame);
                    for to in firmware.steer(engine, &frame) {
                        engine.receive_frame(to.rq, to.tag, &frame);
                    }
                }
            }
            let more = if congested { engine.has_work() } else { engine.run(now) };
            let up = engine.port().is_up();
            loop_back(engine, firmware);
            engine.take_outgoing(&mut packets, &mut frames);
            let deadline = engine.next_timer();
            drop(guard);
            inbox.wake = false;
            if up {
                self.fabric.send(self.port, self.setup.link, &mut packets, &mut frames);
            } else {
                packets.clear();
                frames.clear();
            }
            timeout = match (more, deadline) {
                (true, _) if congested => Some(PAUSE),
                (true, _) => Some(Duration::ZERO),
                (false, Some(deadline)) => Some(Duration::from_nanos(deadline.saturating_sub(self.now()))),
                (false, None) => None,
            };
        }
    }
}

/// Delivers outgoing frames to receive queues of the same port. They are sent to the wire too.
pub(crate) fn loop_back(engine: &mut Engine, firmware: &Firmware) {
    let back =
        engine.outgoing_frames().map(|(sq, frame)| (firmware.steer_sent(engine, sq, frame), frame.to_vec()));
    let back: Vec<_> = back.filter(|(queues, _)| !queues.is_empty()).collect();
    for (queues, frame) in back {
        for to in queues {
            engine.receive_frame(to.rq, to.tag, &frame);
        }
    }
}

/// Whether the doorbell was rung through the UAR page of its object.
pub(crate) fn sq_uses_uar(firmware: &Firmware, uar: u32, doorbell: &Doorbell) -> bool {
    match *doorbell {
        Doorbell::Send { qp, .. } => firmware.sq_uses_uar(qp, uar),
        Doorbell::ArmCq { cq, .. } => firmware.cq_uses_uar(cq, uar),
        Doorbell::Eq { eq, .. } => firmware.eq_uses_uar(eq, uar),
    }
}
