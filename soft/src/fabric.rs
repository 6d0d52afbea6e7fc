//! Devices on one network in this process.
//!
//! A call of a device runs the engines until nothing is ready, under the fabric's lock, but not for longer
//! than about 5 ms. There is no thread in the ordinary case. One is needed for the rest of a longer run, and
//! for a retry timer that remains (RNR, a lost peer), because receives are posted without a call. It sleeps
//! until the earliest timer and ends when none remains.
//!
//! A device with a UDP wire has a thread, which waits for packets and timers. Its packets to other devices
//! of the fabric don't use the wire, and packets of the wire from their addresses are dropped.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Weak};
use std::thread;
use std::time::{Duration, Instant};

use bareverbs_provider::Errno;
use bareverbs_provider::process::ForkGuard;
use bareverbs_transport::packet::{Global, Packet};

use crate::address_error::AddressError;
use crate::engine::Engine;
use crate::rdma_cm::Namespace;
use crate::sys::lock;
use crate::wire::{UdpWire, WireThread, gid};

/// How long a call runs the devices, about. The timer thread, or the thread of a wire, does the work that is
/// left. A backlog, or a program that posts without end on another thread, thus can't keep the caller.
const RUN_TIME: Duration = Duration::from_millis(5);

/// A network in this process, and the devices on it. Clones are the same fabric.
///
/// Devices reach those on the same fabric, and those with a UDP wire also other processes and hosts.
#[derive(Clone)]
pub struct Fabric(Arc<FabricInner>);

struct FabricInner {
    state: Mutex<FabricState>,
    /// The connection manager of the devices.
    namespace: Arc<Namespace>,
    timer: Condvar,
    /// The process that made the fabric. In its forked child a lock may be held by a thread that the child
    /// doesn't have. `None` if the kernel can't tell one from the other: the fabric has no devices then.
    fork_guard: Option<ForkGuard>,
}

struct FabricState {
    devices: Vec<Option<Box<Engine>>>,
    addresses: HashMap<[u8; 16], usize>,
    /// Devices that the fabric has had.
    added: u32,
    /// The threads of UDP wires, by device.
    wires: HashMap<usize, WireThread>,
    start: Instant,
    /// Whether a panic has left an engine in an unknown state.
    failed: bool,
    /// [`RUN_TIME`], in effect unlimited in tests.
    run_time: Duration,
    /// When the timer thread, or a thread of a wire, runs the devices next at the latest.
    deadline: Option<u64>,
    /// Whether there is a timer thread.
    has_thread: bool,
    /// The buffer for packets.
    packets: Vec<Packet>,
}

impl fmt::Debug for Fabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fabric").finish_non_exhaustive()
    }
}

impl Default for Fabric {
    fn default() -> Self {
        Self::new()
    }
}

impl Fabric {
    /// A fabric without devices.
    #[must_use]
    pub fn new() -> Self {
        Self::of_namespace(Arc::default())
    }

    /// A fabric without devices, apart from this one: devices of one don't reach those of the other, except by
    /// UDP. A [`CmFile`](crate::CmFile) serves the devices of both.
    #[must_use]
    pub fn sibling(&self) -> Self {
        Self::of_namespace(Arc::clone(&self.0.namespace))
    }

    fn of_namespace(namespace: Arc<Namespace>) -> Self {
        let state = FabricState {
            devices: Vec::new(),
            addresses: HashMap::new(),
            added: 0,
            wires: HashMap::new(),
            start: Instant::now(),
            failed: false,
            run_time: if cfg!(test) { Duration::from_secs(60) } else { RUN_TIME },
            deadline: None,
            has_thread: false,
            packets: Vec::new(),
        };
        let fork_guard = ForkGuard::new().ok();
        Self(Arc::new(FabricInner { state: Mutex::new(state), namespace, timer: Condvar::new(), fork_guard }))
    }

    /// The connection manager of the devices.
    pub(crate) fn namespace(&self) -> &Arc<Namespace> {
        &self.0.namespace
    }

    /// Whether both are the same fabric.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Whether this process made the fabric. Nothing else may be called in a forked child.
    pub(crate) fn is_own(&self) -> bool {
        self.0.fork_guard.is_some_and(|guard| guard.is_same_process())
    }

    /// Adds a device with these GIDs. Returns its number on the fabric, or `None` if another device has
    /// one of the GIDs.
    pub(crate) fn add_device(&self, gids: Vec<[u8; 16]>, mac: [u8; 6]) -> Option<u32> {
        let has_guard = self.0.fork_guard.is_some();
        assert!(has_guard, "the kernel has mapped no page with MADV_WIPEONFORK, which detects forks");
        assert!(self.is_own(), "the fabric is that of the parent process");
        let mut state = self.0.lock();
        if gids.iter().any(|gid| state.addresses.contains_key(gid)) {
            return None;
        }
        let free = state.devices.iter().position(Option::is_none);
        let number = free.unwrap_or(state.devices.len());
        state.addresses.extend(gids.iter().map(|gid| (*gid, number)));
        state.added = state.added.wrapping_add(1);
        let engine = Some(Box::new(Engine::new(gids, mac, state.added)));
        match state.devices.get_mut(number) {
            Some(place) => *place = engine,
            None => state.devices.push(engine),
        }
        Some(number as u32)
    }

    /// Adds a device whose packets to other processes and hosts go over UDP port 4791 of an IP address.
    /// Returns its number on the fabric, and its MTU in bytes.
    pub(crate) fn add_udp_device(&self, address: IpAddr, mac: [u8; 6]) -> Result<(u32, u32), AddressError> {
        let wire = Arc::new(UdpWire::bind(address)?);
        let mtu = wire.mtu();
        let device = self.add_device(vec![gid(address)], mac).ok_or(AddressError::OnFabric { address })?;
        if let Some(engine) = &mut self.0.lock().devices[device as usize] {
            engine.connect(Arc::clone(&wire));
        }
        let shared = Arc::downgrade(&self.0);
        let thread = WireThread::start(Arc::clone(&wire), move |packets| {
            Weak::upgrade(&shared)?.run_wire(device as usize, &wire, packets)
        });
        match thread {
            Ok(thread) => {
                self.0.lock().wires.insert(device as usize, thread);
                Ok((device, mtu))
            }
            Err(errno) => {
                self.remove_device(device, &AtomicBool::new(false));
                Err(AddressError::System { address, errno })
            }
        }
    }

    /// Removes a device with all its objects, unless `removed` is set or this is a forked child. Sets
    /// `removed` when the device's engine is gone. Returns whether it has removed the device.
    pub(crate) fn remove_device(&self, device: u32, removed: &AtomicBool) -> bool {
        if !self.is_own() {
            return false;
        }
        let mut state = self.0.lock();
        if removed.load(Ordering::Acquire) {
            return false;
        }
        state.addresses.retain(|_, number| *number != device as usize);
        if let Some(place) = state.devices.get_mut(device as usize) {
            *place = None;
        }
        removed.store(true, Ordering::Release);
        if let Some(thread) = state.wires.remove(&(device as usize)) {
            // The thread's timers are left to another one.
            state.deadline = None;
            let next = state.next_timer();
            self.0.schedule(&mut state, next);
            drop(state);
            // Waits for the end of the thread, which may wait for the lock.
            drop(thread);
        }
        true
    }

    /// Whether there is a timer thread.
    #[cfg(test)]
    pub(crate) fn has_thread(&self) -> bool {
        self.0.lock().has_thread
    }

    /// Runs the devices as the thread of a wire of the device does.
    #[cfg(test)]
    pub(crate) fn run_wire(&self, device: u32, wire: &UdpWire) -> Option<Duration> {
        self.0.run_wire(device as usize, wire, &mut Vec::new())
    }

    /// Sets how long a call runs the devices.
    #[cfg(test)]
    pub(crate) fn set_run_time(&self, run_time: Duration) {
        self.0.lock().run_time = run_time;
    }

    /// Calls `f` with the engine of a device, then runs all devices until nothing is ready, or for about
    /// [`RUN_TIME`].
    ///
    /// # Errors
    ///
    /// Those of `f`; `EIO` if the device was removed, or if a panic has left the fabric in an unknown state.
    pub(crate) fn with<R>(
        &self,
        device: u32,
        f: impl FnOnce(&mut Engine) -> Result<R, Errno>,
    ) -> Result<R, Errno> {
        let mut state = self.0.lock();
        let result = state.guarded(|state| {
            let now = state.now();
            let engine = state.devices.get_mut(device as usize).and_then(Option::as_mut).ok_or(Errno::IO)?;
            engine.set_now(now);
            let result = f(engine);
            Ok((result, state.run()))
        });
        let (result, next) = result.and_then(|result| result)?;
        self.0.schedule(&mut state, next);
        result
    }
}

impl FabricInner {
    fn lock(&self) -> MutexGuard<'_, FabricState> {
        // A panic is caught while the lock is held, so the lock is never poisoned by one in an engine.
        lock(&self.state)
    }

    /// Makes the timer thread run the devices at `next`, or end.
    fn schedule(self: &Arc<Self>, state: &mut FabricState, next: Option<u64>) {
        if !state.wires.is_empty() {
            if state.promise(next) {
                state.wires.values().take(1).for_each(WireThread::wake);
            }
            return;
        }
        let before = std::mem::replace(&mut state.deadline, next);
        if state.has_thread {
            // A thread that wakes up too early looks at the deadline again.
            if next.is_none() || before.is_none_or(|before| next < Some(before)) {
                self.timer.notify_one();
            }
        } else if next.is_some() {
            let shared = Arc::clone(self);
            let thread = thread::Builder::new().name("bareverbs-soft".into());
            // Without a thread, the next call runs the timers.
            state.has_thread = thread.spawn(move || shared.run_timers()).is_ok();
        }
    }

    /// Runs the devices with packets from the wire of one of them. Returns the time until the next run at the
    /// latest. Does nothing if the device was removed, even if another one has its number.
    fn run_wire(&self, device: usize, wire: &UdpWire, packets: &mut Vec<Packet>) -> Option<Duration> {
        let mut state = self.lock();
        let current = state.devices[device].as_ref().and_then(|engine| engine.wire());
        if !current.is_some_and(|current| ptr::eq(current, wire)) {
            packets.clear();
            return None;
        }
        let next = state.guarded(|state| {
            let now = state.now();
            let FabricState { devices, addresses, .. } = state;
            if let Some(engine) = &mut devices[device] {
                engine.set_now(now);
                for packet in packets.drain(..) {
                    // Another process may have bound an address of the fabric.
                    let is_of_fabric = |global: Global| addresses.contains_key(&global.source);
                    if packet.route.is_multicast() || !packet.route.global.is_some_and(is_of_fabric) {
                        engine.receive(&packet);
                    }
                    engine.recycle(packet.payload);
                }
            }
            state.run()
        });
        packets.clear();
        let now = state.now();
        // A run for a timer that was cancelled costs less than a wake-up for each new timer.
        state.deadline = state.deadline.filter(|deadline| *deadline > now);
        state.promise(next.ok().flatten());
        state.deadline.map(|deadline| Duration::from_nanos(deadline.saturating_sub(now)))
    }

    fn run_timers(&self) {
        let mut state = self.lock();
        while let Some(deadline) = state.deadline {
            let wait = deadline.saturating_sub(state.now());
            if wait > 0 {
                let waited = self.timer.wait_timeout(state, Duration::from_nanos(wait));
                state = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
            } else {
                state.deadline = state.guarded(FabricState::run).ok().flatten();
                // Calls have their turn between runs.
                drop(state);
                thread::yield_now();
                state = self.lock();
            }
        }
        state.has_thread = false;
    }
}

impl FabricState {
    /// Nanoseconds since the fabric was made.
    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// Calls `f`. After a panic, this and all later calls are `EIO`.
    fn guarded<R>(&mut self, f: impl FnOnce(&mut Self) -> R) -> Result<R, Errno> {
        if self.failed {
            return Err(Errno::IO);
        }
        // The state is not used after a panic.
        let result = catch_unwind(AssertUnwindSafe(|| f(self)));
        self.failed = result.is_err();
        result.map_err(|_| Errno::IO)
    }

    /// Runs all devices until nothing is ready, or for a limited time. Returns when to run them again.
    fn run(&mut self) -> Option<u64> {
        for engine in self.devices.iter().flatten() {
            engine.wire().inspect(|wire| wire.begin_run());
        }
        let mut now = self.now();
        let end = now.saturating_add(self.run_time.as_nanos() as u64);
        loop {
            let mut idle = true;
            for sender in 0..self.devices.len() {
                let Some(engine) = &mut self.devices[sender] else { continue };
                idle &= !engine.run(now);
                let mut packets = engine.take_packets(std::mem::take(&mut self.packets));
                idle &= packets.is_empty();
                for packet in packets.drain(..) {
                    self.deliver(sender, &packet);
                    if let Some(engine) = &mut self.devices[sender] {
                        engine.recycle(packet.payload);
                    }
                }
                self.packets = packets;
            }
            if idle {
                return self.next_timer();
            }
            now = self.now();
            if now >= end {
                return Some(now);
            }
        }
    }

    fn next_timer(&mut self) -> Option<u64> {
        self.devices.iter_mut().flatten().filter_map(|engine| engine.next_timer()).min()
    }

    /// Brings the next run of a wire's thread forward to `next`. Returns whether this has changed it.
    fn promise(&mut self, next: Option<u64>) -> bool {
        let earlier = next.is_some_and(|next| self.deadline.is_none_or(|deadline| next < deadline));
        if earlier {
            self.deadline = next;
        }
        earlier
    }

    /// Delivers a packet of the device `sender`.
    fn deliver(&mut self, sender: usize, packet: &Packet) {
        if packet.route.is_multicast() {
            let wire = self.devices[sender].as_ref().and_then(|engine| engine.wire());
            if let Some(wire) = wire {
                wire.send(packet);
            }
            // The sockets of groups deliver packets of wires to wires.
            let by_wire = wire.is_some();
            for engine in self.devices.iter_mut().flatten() {
                if !(by_wire && engine.wire().is_some()) {
                    engine.receive(packet);
                }
            }
            return;
        }
        let destination = packet.route.global.and_then(|global| self.addresses.get(&global.destination));
        let destination = destination.copied().unwrap_or(usize::MAX);
        if let Some(Some(engine)) = self.devices.get_mut(destination) {
            engine.receive(packet);
        } else if let Some(wire) = self.devices[sender].as_ref().and_then(|engine| engine.wire()) {
            wire.send(packet);
        }
    }
}
