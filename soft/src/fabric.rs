//! Devices on one network in this process.
//!
//! A call of a device runs the engines until nothing is ready, under the fabric's lock, but not for
//! longer than about 5 ms. There is no thread in the ordinary case. One is needed for the rest of a
//! longer run, and for a retry timer that remains (RNR, a lost peer), because receives are posted
//! without a call. It sleeps until the earliest timer and ends when none remains.
//!
//! A device with a UDP wire has a thread, which waits for packets and timers. Its packets to other
//! devices of the fabric don't use the wire, and packets of the wire from their addresses are dropped.
//!
//! On a seeded fabric, calls run nothing. Steps and waits do.
//!
//! | module | content |
//! |---|---|
//! | `state` | the devices under the lock, and runs in real time |
//! | `transit` | injected faults, and packets that they hold |
//! | `delivery` | packets on the wire |
//! | `schedule` | the clock of a seeded fabric, and what its devices may do next |
//! | `virtual_time` | steps, and waits that run a seeded fabric |

mod delivery;
mod schedule;
mod state;
mod transit;
mod virtual_time;

use std::fmt;
use std::io::{self, Write};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use bareverbs_provider::Errno;
use bareverbs_provider::device::BeforeWait;
use bareverbs_provider::process::ForkGuard;
use bareverbs_transport::packet::Packet;
use bareverbs_transport::{Fault, InjectedFault};

use crate::address_error::AddressError;
use crate::capture::Capture;
use crate::engine::Engine;
use crate::event_log::EventLog;
use crate::rdma_cm::{CmFile, Namespace};
use crate::sys::lock;
use crate::wire::{UdpWire, WireThread, gid};
use schedule::VirtualTime;
use state::FabricState;

/// A network in this process, and the devices on it. Clones are the same fabric.
///
/// Devices reach those on the same fabric, and those with a UDP wire also other processes and hosts.
///
/// A fabric has [real time](Self::new) or [virtual time](Self::seeded).
#[derive(Clone)]
pub struct Fabric(Arc<FabricInner>);

struct FabricInner {
    state: Mutex<FabricState>,
    /// The connection manager of the devices.
    namespace: Arc<Namespace>,
    /// Calls and steps on a fabric of virtual time.
    activity: Condvar,
    has_virtual_time: bool,
    /// The process that made the fabric. In its forked child a lock may be held by a thread that the
    /// child doesn't have. `None` if the kernel can't tell one from the other: the fabric has no
    /// devices then.
    fork_guard: Option<ForkGuard>,
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
    /// A fabric of real time without devices. Its seed for faults is 0.
    ///
    /// Calls of the devices deliver packets. Timers expire by the clock, on a thread of the fabric.
    #[must_use]
    pub fn new() -> Self {
        Self::of(FabricState::new(0, None), Arc::default())
    }

    /// A fabric of virtual time without devices. It has no thread and no socket, and
    /// [`SoftDevice::bind`](crate::SoftDevice::bind) rejects it.
    ///
    /// Calls of the devices, such as posts, deliver no packets. [`step`](Self::step),
    /// [`run_until_idle`](Self::run_until_idle) and [`advance`](Self::advance) do, and so does each
    /// wait of a thread for an event: it runs the fabric until nothing is left to do at this time,
    /// then lets time pass until the next timer, and so on until the event or the limit of the
    /// wait, which is one of virtual time. A wait without a limit fails with `EDEADLK`, after a
    /// second in which no other thread has called a device, if nothing on the fabric can end it, or
    /// after 20,000 timers without a completion. RNR retries, which are infinite by default
    /// (`rnr_retry`), have such timers.
    ///
    /// The seed chooses the order of what may happen at the same time, such as the turns of QPs, and the
    /// packets that faults affect by [probability](Fault::probability). The same seed gives the same
    /// packets, completions and events on each machine, if one thread uses the fabric. With several
    /// threads, the order is that of their calls, and a wait lets time pass when no other thread has
    /// called a device for about 10 ms. A thread counts from its first call on.
    #[must_use]
    pub fn seeded(seed: u64) -> Self {
        // Each of the two sequences of random numbers has its own seed.
        Self::of(FabricState::new(!seed, Some(VirtualTime::new(seed))), Arc::default())
    }

    /// A fabric of real time without devices, apart from this one: devices of one don't reach those of
    /// the other, except by UDP. A [`CmFile`] serves the devices of both.
    #[must_use]
    pub fn sibling(&self) -> Self {
        Self::of(FabricState::new(0, None), Arc::clone(&self.0.namespace))
    }

    /// The connection manager of the devices.
    pub(crate) fn namespace(&self) -> &Arc<Namespace> {
        &self.0.namespace
    }

    /// A number that only clones of this fabric have.
    pub(crate) fn number(&self) -> usize {
        Arc::as_ptr(&self.0).addr()
    }

    fn of(state: FabricState, namespace: Arc<Namespace>) -> Self {
        let fork_guard = ForkGuard::new().ok();
        let activity = Condvar::new();
        let has_virtual_time = state.virtual_time.is_some();
        let state = Mutex::new(state);
        Self(Arc::new(FabricInner { state, namespace, activity, has_virtual_time, fork_guard }))
    }

    /// Does one unit of work of a [seeded](Self::seeded) fabric: the turn of a QP, or the delivery of
    /// a packet. Returns `false` if there is none at this time, and in a forked child.
    ///
    /// # Panics
    ///
    /// On a fabric of real time.
    pub fn step(&self) -> bool {
        self.is_own() && self.0.step()
    }

    /// Does the work of a [seeded](Self::seeded) fabric that there is at this time. No time passes, so
    /// no timer expires.
    ///
    /// # Panics
    ///
    /// On a fabric of real time.
    pub fn run_until_idle(&self) {
        while self.step() {}
    }

    /// Lets time pass on a [seeded](Self::seeded) fabric. Timers expire in order, and the work of each
    /// is done before the next one.
    ///
    /// A QP in ERR polls for receives every 20 ms, and RNR retries may have no end. If time has passed
    /// for about 260 000 timers without a completion on any device, the rest of it passes at once.
    /// Virtual time ends after about 292 years.
    ///
    /// # Panics
    ///
    /// On a fabric of real time.
    pub fn advance(&self, by: Duration) {
        if self.is_own() {
            self.0.advance(by);
        }
    }

    /// The time since the fabric was made: virtual time on a [seeded](Self::seeded) fabric. 0 in a
    /// forked child.
    #[must_use]
    pub fn now(&self) -> Duration {
        if self.is_own() { Duration::from_nanos(self.0.lock().now()) } else { Duration::ZERO }
    }

    /// Injects a fault into the packets that the devices of the fabric send, also by UDP, and into
    /// those that they receive by UDP. The returned value counts the packets that it has affected.
    ///
    /// Of several faults, each applies. [`Fault::rnr`] has no effect on packets that leave the
    /// process. In a forked child, nothing is injected.
    pub fn inject(&self, fault: Fault) -> InjectedFault {
        if self.is_own() {
            self.0.lock().faults.injector.inject(fault)
        } else {
            bareverbs_transport::FaultInjector::new(0).inject(fault)
        }
    }

    /// Ends a fault of this fabric. Packets that it has delayed are delivered at their time.
    pub fn remove_fault(&self, fault: &InjectedFault) {
        if self.is_own() {
            self.0.lock().faults.injector.remove(fault);
        }
    }

    /// Runs a [seeded](Self::seeded) fabric before a thread blocks on a descriptor, at most until
    /// `end`, as the waits of devices do: until `is_ready`, or nothing on the fabric can make it so.
    /// `is_ready` may use the fabric. With `alarm`, the wait is ready at this [time](Self::now), too: a
    /// timer of the program. For a program that waits by `poll` itself, for instance on several devices.
    /// On a fabric of real time, it returns at once.
    ///
    /// # Errors
    ///
    /// `EDEADLK` if there is no limit and no alarm, and no packet and no timer is left that could end
    /// the wait, or 20,000 timers have expired without a completion; `EIO` if the fabric has failed;
    /// `ESTALE` in a forked child.
    pub fn before_wait(
        &self,
        end: Option<Instant>,
        alarm: Option<Duration>,
        is_ready: &dyn Fn() -> bool,
    ) -> Result<BeforeWait, Errno> {
        if self.is_own() { self.0.before_wait(end, alarm, is_ready) } else { Err(Errno::STALE) }
    }

    /// Whether the fabric has [virtual time](Self::seeded).
    #[must_use]
    pub fn has_virtual_time(&self) -> bool {
        self.0.has_virtual_time
    }

    /// Whether this process made the fabric. Nothing else may be called in a forked child.
    pub(crate) fn is_own(&self) -> bool {
        self.0.fork_guard.is_some_and(|guard| guard.is_same_process())
    }

    fn check_process(&self) -> io::Result<()> {
        if self.is_own() { Ok(()) } else { Err(Errno::STALE.into()) }
    }

    /// Writes all packets from now on to `writer`, as a capture in pcap format that Wireshark dissects:
    /// RoCE v2 in UDP, IP and Ethernet. The packets have the ports and the ICRC of the wire, which is that
    /// of Soft-RoCE for FLUSH. MAC addresses are made from the addresses. Replaces an earlier capture.
    ///
    /// A packet is recorded when its device sends it, before any fault, or when it arrives from another
    /// process or host. Each one is written and flushed at once, so a failed test leaves a complete file.
    ///
    /// The devices wait for the writer. It must not block, and must not call the fabric or its devices.
    ///
    /// ```
    /// use bareverbs_soft::Fabric;
    ///
    /// let fabric = Fabric::new();
    /// let path = std::env::temp_dir().join(format!("capture-{}.pcap", std::process::id()));
    /// fabric.capture(std::fs::File::create(&path)?)?;
    /// // … packets …
    /// fabric.end_capture()?;
    /// # std::fs::remove_file(path)?;
    /// # Ok::<(), std::io::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of `writer`; `ESTALE` in a forked child.
    pub fn capture(&self, writer: impl Write + Send + 'static) -> io::Result<()> {
        self.check_process()?;
        // Virtual time begins at the UNIX epoch.
        let origin = match self.has_virtual_time() {
            true => Duration::ZERO,
            false => {
                let now = Duration::from_nanos(self.0.lock().now());
                SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default().saturating_sub(now)
            }
        };
        // Without the lock: the writers are code of the program.
        let capture = Capture::new(writer, origin)?;
        let replaced = self.0.lock().capture.replace(capture);
        drop(replaced);
        Ok(())
    }

    /// Ends the [capture](Self::capture), if there is one, and drops its writer.
    ///
    /// # Errors
    ///
    /// The first error of the writer, also for a panic of it. No later packet was recorded. `ESTALE` in a
    /// forked child.
    pub fn end_capture(&self) -> io::Result<()> {
        self.check_process()?;
        let capture = self.0.lock().capture.take();
        capture.map_or(Ok(()), Capture::end)
    }

    /// Begins a log of what the QPs do from now on: packets, retries, completions, states, events. It
    /// keeps the latest `capacity` entries, at least one. Replaces an earlier log.
    ///
    /// Without a log, there is no cost. In a forked child, the log stays empty.
    #[must_use]
    pub fn log(&self, capacity: usize) -> EventLog {
        let log = EventLog::new(capacity);
        if !self.is_own() {
            return log;
        }
        let mut state = self.0.lock();
        state.devices.iter_mut().flatten().for_each(|engine| engine.log_to(&log));
        state.log = Some(log.clone());
        log
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
        let mut engine = Box::new(Engine::new(gids, mac, state.added));
        if let Some(log) = &state.log {
            engine.log_to(log);
        }
        let engine = Some(engine);
        match state.devices.get_mut(number) {
            Some(place) => *place = engine,
            None => state.devices.push(engine),
        }
        Some(number as u32)
    }

    /// Adds a device whose packets to other processes and hosts go over UDP port 4791 of an IP address.
    /// Returns its number on the fabric, and its MTU in bytes.
    pub(crate) fn add_udp_device(&self, address: IpAddr, mac: [u8; 6]) -> Result<(u32, u32), AddressError> {
        if self.has_virtual_time() {
            return Err(AddressError::VirtualTime { address });
        }
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
        // The next device has the same number.
        state.drop_packets_of(device as usize);
        if let Some(place) = state.devices.get_mut(device as usize) {
            *place = None;
        }
        removed.store(true, Ordering::Release);
        if let Some(time) = &mut state.virtual_time {
            time.note_call();
            self.0.activity.notify_all();
        }
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

    /// Returns whether the fabric still exists, when called later.
    #[cfg(test)]
    pub(crate) fn watch(&self) -> impl Fn() -> bool + use<> {
        let shared = Arc::downgrade(&self.0);
        move || shared.strong_count() > 0
    }

    /// Whether there is a timer thread.
    #[cfg(test)]
    pub(crate) fn has_thread(&self) -> bool {
        self.0.lock().timer_thread.is_some()
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

    /// Calls `f` with the engine of a device. In real time, then runs all devices until nothing is
    /// ready, or for a limited time.
    ///
    /// # Errors
    ///
    /// Those of `f`; `EIO` if the device was removed, or if a panic has left the fabric in an unknown
    /// state.
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
            if let Some(time) = &mut state.virtual_time {
                time.note_call();
                return Ok((result, None));
            }
            Ok((result, state.run()))
        });
        let (result, next) = result.and_then(|result| result)?;
        if state.virtual_time.is_some() {
            self.0.activity.notify_all();
        } else {
            self.0.schedule(&mut state, next);
        }
        result
    }
}

impl CmFile {
    /// Opens the connection manager of a fabric.
    ///
    /// # Errors
    ///
    /// The error of `eventfd`, such as `EMFILE`; `ESTALE` in a forked child of the process that made the
    /// fabric; the error of `mmap` or `madvise`.
    pub fn on(fabric: &Fabric) -> Result<Self, Errno> {
        if fabric.is_own() { Self::new(fabric.namespace()) } else { Err(Errno::STALE) }
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
            if state.run_earlier(next) {
                state.wires.values().take(1).for_each(WireThread::wake);
            }
            return;
        }
        let before = std::mem::replace(&mut state.deadline, next);
        if let Some(thread) = &state.timer_thread {
            // A thread that wakes up too early looks at the deadline again.
            if next.is_none() || before.is_none_or(|before| next < Some(before)) {
                thread.unpark();
            }
        } else if next.is_some() {
            let shared = Arc::downgrade(self);
            let thread = thread::Builder::new().name("bareverbs-soft".into());
            // Without a thread, the next call runs the timers.
            let spawned = thread.spawn(move || Self::run_timers(&shared));
            state.timer_thread = spawned.ok().map(|handle| handle.thread().clone());
        }
    }

    /// Runs the devices with packets from the wire of one of them. Returns the time until the next run
    /// at the latest. Does nothing if the device was removed, even if another one has its number.
    ///
    /// Events are raised without the lock, before the answers are sent: the thread that waits for them may
    /// post at once, and its packets and the answers leave in one call.
    fn run_wire(&self, device: usize, wire: &UdpWire, packets: &mut Vec<Packet>) -> Option<Duration> {
        let mut state = self.lock();
        let delivered = state.guarded(|state| {
            let now = state.now();
            state.engine_of_wire(device, wire)?.set_now(now);
            state.transmit_from_wire(device, packets);
            Some(state.engine_of_wire(device, wire)?.take_withheld_events())
        });
        packets.clear();
        if let Ok(events) = delivered {
            let events = events?;
            if !events.is_empty() {
                drop(state);
                events.iter().for_each(|sink| sink.completed());
                state = self.lock();
                state.engine_of_wire(device, wire)?;
            }
        }
        let next = state.guarded(FabricState::run);
        let now = state.now();
        // A run for a timer that was cancelled costs less than a wake-up for each new timer.
        state.deadline = state.deadline.filter(|deadline| *deadline > now);
        state.run_earlier(next.ok().flatten());
        state.deadline.map(|deadline| Duration::from_nanos(deadline.saturating_sub(now)))
    }

    /// The timer thread. While it sleeps, it does not keep the fabric.
    fn run_timers(shared: &Weak<Self>) {
        while let Some(wait) = Weak::upgrade(shared).and_then(|fabric| fabric.run_due()) {
            if wait.is_zero() {
                // Calls have their turn between runs.
                thread::yield_now();
            } else {
                thread::park_timeout(wait);
            }
        }
    }

    /// Runs the devices if it is time. Returns the time until the next run; `None`: the timer thread
    /// ends.
    fn run_due(&self) -> Option<Duration> {
        let mut state = self.lock();
        let Some(deadline) = state.deadline else {
            state.timer_thread = None;
            return None;
        };
        let wait = deadline.saturating_sub(state.now());
        if wait == 0 {
            state.deadline = state.guarded(FabricState::run).ok().flatten();
        }
        Some(Duration::from_nanos(wait))
    }
}

impl Drop for FabricInner {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        state.timer_thread.iter().for_each(thread::Thread::unpark);
    }
}
