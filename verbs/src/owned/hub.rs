//! One CQ for many connections of many threads and tasks.
//!
//! A [`Hub`] owns a CQ. Each of its connections, a [`Connection`], posts on its own QP and reports to
//! that CQ. A post returns a [`Pending`](super::Pending): a future that returns the result and the
//! buffer, and that a thread can wait for as well.
//!
//! ```
//! use bareverbs::{Device, Hub, Op, Pool};
//!
//! let pd = Device::find("soft0")?.open()?.alloc_pd()?;
//! let hub = Hub::new(&pd, 1024)?;
//! let pool = Pool::new(&pd, 64, 4096)?;
//! let (alice, bob) = (hub.connection(1, 16)?, hub.connection(1, 16)?);
//! alice.connect(&bob.address())?;
//! bob.connect(&alice.address())?;
//!
//! let received = bob.post(Op::recv(pool.take().expect("a free buffer")));
//! let mut hello = pool.take().expect("a free buffer");
//! hello.bytes_mut()[..10].copy_from_slice(b"hello, bob");
//! let sent = alice.post(Op::send(hello, ..10));
//!
//! assert_eq!(received.wait()?.message(), Some(&b"hello, bob"[..]));
//! sent.wait()?;
//! # Ok::<(), bareverbs::Error>(())
//! ```
//!
//! # Polling of the CQ
//!
//! Each thread or task that waits for a result polls the CQ. It delivers the completions of other
//! waiters too, and wakes them. It polls at most 32 completions with the CQ locked, and delivers
//! all of them before it continues. If another thread holds the lock, it does not wait for it.
//!
//! The first poll of an operation looks at the next completion only. If that is the operation's own,
//! it takes the result and leaves the completions behind it to other waiters.
//!
//! An awaited operation whose completion is in the CQ makes no system call. Posting and awaiting
//! allocate no memory, except that the first block of a thread allocates its waker.
//!
//! # What does not compile
//!
//! Access to a posted buffer:
//!
//! ```compile_fail,E0382
//! # use bareverbs::{Connection, PoolBuffer, Op};
//! # fn touch(peer: &Connection<PoolBuffer>, mut buffer: PoolBuffer) {
//! peer.post(Op::send(buffer, ..)).detach();
//! buffer.bytes_mut()[0] = 1;
//! # }
//! ```
//!
//! Posting borrowed memory, which a forgotten `Pending` would outlive:
//!
//! ```compile_fail,E0599
//! # use bareverbs::{Borrowed, Connection, Mr, Op};
//! # fn lend<'a>(peer: &Connection<Mr<Borrowed<'a>>>, buffer: Mr<Borrowed<'a>>) {
//! peer.post(Op::recv(buffer)).detach();
//! # }
//! ```
//!
//! Receiving into read-only memory:
//!
//! ```compile_fail,E0277
//! # use bareverbs::{Connection, Op, Region};
//! # fn overwrite(peer: &Connection<Region>, buffer: Region) {
//! peer.post(Op::recv(buffer)).detach();
//! # }
//! ```

pub(crate) mod connection;
pub(crate) mod connection_inner;
pub(crate) mod driver;
pub(crate) mod election;
#[cfg(all(test, loom))]
mod loom_models;
mod parts;
pub(crate) mod pending;
pub(crate) mod reaper;
mod sweep;
pub(crate) mod table;
mod wait;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bareverbs_provider::traits::Provider;
use bareverbs_provider::wake::{FirstPanic, wake_all};

pub use self::connection::Connection;
use self::connection_inner::ConnectionInner;
pub use self::driver::Driver;
use self::election::Election;
use self::reaper::service::Service;
use self::reaper::{BATCH, Conn, Cqe, Deferred, Depths, NextCqe, OpEntry, OpTable, Reaper, SmallList};
use self::sweep::Sweeps;
use super::keepalive::{Policy, ProbeMemory};
use super::removal::is_hint;
use super::resolve::ResolveTimeout;
use super::spin::SpinState;
use super::{EndpointOptions, PoolBuffer, Spin};
use crate::address::Address;
use crate::cq::{Arm, CompChannel, Cq, CqInit};
use crate::debug::debug;
use crate::error::Limit;
use crate::qp::{ConnectAttr, InitAttr, Qp, QpCap, QpInit, Rc};
use crate::runtime::Runtime;
use crate::sync::{Mutex, MutexGuard, lock};
use crate::{AnyProvider, Error, Pd, PortNum, Result};

/// Blocked threads for which a hub has room without an allocation.
const THREADS: usize = 64;

/// Why [`HubInner::poll_own`] took no operation.
pub(crate) enum NotTaken {
    /// The cooperative budget is spent: the task must yield.
    Yield,
    /// The next completion is not its success, or another thread polls: the slow path is needed.
    Slow,
}

/// A CQ that many connections share; see the [module](self).
///
/// Clones are the same hub. `B` is the type of the buffers, such as [`PoolBuffer`] or
/// [`RegionMut`](super::RegionMut). A hub of [`AnyBuffer`](super::AnyBuffer) receives by
/// [`Op::any`](super::Op::any). One of [`Region`](super::Region) or
/// [`RemoteRegionSource`](super::RemoteRegionSource) can't receive, because these are no
/// [`Target`](super::Target)s.
///
/// # Drivers
///
/// A driver waits for the events of the CQ while tasks sleep:
///
/// | driver | for |
/// |---|---|
/// | [`Hub::drive`], a future | tasks of tokio or async-io: spawn it |
/// | [`Hub::spawn_driver_thread`], a thread | any runtime, or threads only |
/// | none | threads only: one of the blocked threads waits for all of them |
///
/// Blocked threads don't rely on a driver that is a task, because it may share their thread: one of
/// them waits for events as well. If the driver is dropped, a blocked thread takes over. Awaiting
/// tasks get an error; see
/// [`Pending`](super::Pending#without-a-driver).
///
/// # Drop
///
/// Connections and `Pending`s keep the hub. It is dropped with the last of them. A driver does not
/// keep it, and ends with it.
pub struct Hub<B = PoolBuffer, P: Provider = AnyProvider, S: Service<P> = ()> {
    pub(crate) inner: Arc<HubInner<B, P, S>>,
}

/// What the handles of a hub share.
pub(crate) struct HubInner<B, P: Provider, S: Service<P>> {
    pub(crate) pd: Pd<P>,
    channel: CompChannel,
    pub(crate) table: OpTable<B>,
    pub(crate) election: Election,
    spin: SpinState,
    /// When the peers of its connections are probed.
    sweeps: Sweeps,
    /// The protocol that runs on its connections.
    pub(crate) service: S,
    /// Whether the device was removed. All operations have ended.
    removed: AtomicBool,
    reaper: Mutex<Reaper<P, S>>,
}

impl<B, P: Provider, S: Service<P>> HubInner<B, P, S> {
    fn lock(&self) -> MutexGuard<'_, Reaper<P, S>> {
        lock(&self.reaper)
    }

    /// Takes the operation `wr_id`, for which no task waits, if the next completion of the CQ is its
    /// success. Its slot is free, and to be given back to its connection, and its service is to count
    /// it. Otherwise it reaps as [`HubInner::poll`] does.
    #[inline(always)]
    pub(crate) fn poll_own(&self, wr_id: u64) -> Result<(OpEntry<B>, Cqe), NotTaken> {
        let Some(mut reaper) = self.reaper.try_lock() else { return Err(NotTaken::Slow) };
        if reaper.spend_budget() {
            return Err(NotTaken::Yield);
        }
        // Before the poll, so that the operation of a polled completion is there.
        let Some(slot) = self.table.lock_posted(wr_id) else {
            self.reap_polled(reaper);
            return Err(NotTaken::Slow);
        };
        match reaper.poll_own(wr_id) {
            NextCqe::Success(cqe) => {
                let entry = slot.take();
                drop(reaper);
                entry.map(|entry| (entry, cqe)).ok_or(NotTaken::Slow)
            }
            NextCqe::Empty => Err(NotTaken::Slow),
            NextCqe::Foreign => {
                drop(slot);
                self.reap_polled(reaper);
                Err(NotTaken::Slow)
            }
        }
    }

    /// Hands out the completion that was polled, if there is one, and reaps those behind it.
    #[inline(never)]
    fn reap_polled(&self, mut reaper: MutexGuard<'_, Reaper<P, S>>) {
        let mut deferred = Deferred::new();
        reaper.reap_polled(self, &mut deferred);
        drop(reaper);
        deferred.finish();
    }

    /// Reaps up to about `max` completions, unless another thread reaps. Returns their number.
    #[inline]
    pub(crate) fn poll(&self, max: usize) -> usize {
        let mut all = 0;
        while all < max {
            let mut deferred = Deferred::new();
            let reaped = match self.reaper.try_lock() {
                Some(mut reaper) => reaper.reap(self, &mut deferred),
                None => break,
            };
            deferred.finish();
            all += reaped;
            if reaped < BATCH {
                break;
            }
        }
        all
    }

    /// Reaps all completions that are in the CQ at the time of the call, and maybe later ones. `panics`
    /// gets the panics of wakers.
    fn reap_all(&self, panics: &mut FirstPanic) {
        let mut left = self.lock().cq.capacity() as usize;
        loop {
            let mut deferred = Deferred::new();
            let reaped = self.lock().reap(self, &mut deferred);
            panics.catch(|| deferred.finish());
            left = left.saturating_sub(reaped);
            if reaped == 0 || left == 0 {
                break;
            }
        }
    }

    /// Reaps completions that the provider may have flushed on iWARP. Such a flush raises no completion
    /// event, so waiting threads and tasks are woken here.
    #[cold]
    pub(crate) fn reap_flushed(&self) {
        if self.pd.context().capabilities().iwarp {
            let mut panics = FirstPanic::default();
            self.reap_all(&mut panics);
            panics.resume();
        }
    }

    /// Prepares a sleep: the next completion raises an event. Returns whether completions were
    /// reaped instead; then the CQ may not be armed.
    fn arm(&self) -> Result<bool> {
        let mut deferred = Deferred::new();
        let mut reaper = self.lock();
        let mut reaped = reaper.reap(self, &mut deferred);
        if reaped == 0 && !reaper.armed {
            if let Err(error) = reaper.cq.arm(Arm::Any) {
                drop(reaper);
                self.check_removed(error)?;
                return Ok(true);
            }
            reaper.armed = true;
            // Completions before the arm raise no event.
            reaped = reaper.reap(self, &mut deferred);
        }
        drop(reaper);
        deferred.finish();
        Ok(reaped > 0)
    }

    /// Reads the events of the channel, with the CQ locked: otherwise another thread could rely on
    /// an armed CQ whose event was read.
    fn take_events(&self) -> Result<()> {
        let mut reaper = self.lock();
        loop {
            match self.channel.try_wait() {
                Ok(None) => return Ok(()),
                Ok(Some(_)) => reaper.armed = false,
                Err(error) => {
                    drop(reaper);
                    return self.check_removed(error);
                }
            }
        }
    }

    /// Whether the device was removed, and all operations have ended.
    fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Acquire)
    }

    /// Handles an error of arming the CQ or of reading its events. `Ok`: the device was removed, and all
    /// operations have ended.
    #[cold]
    fn check_removed(&self, error: Error) -> Result<()> {
        if is_hint(&error) && self.end_removed() { Ok(()) } else { Err(error) }
    }

    /// The device seems to be removed: ends all operations whose QP the kernel has destroyed. Returns
    /// whether these are all.
    #[cold]
    fn end_removed(&self) -> bool {
        let mut panics = FirstPanic::default();
        let (mut all, mut from) = (true, Some(0));
        while let Some(start) = from {
            let mut conns = SmallList::new();
            from = self.lock().connections(start, &mut conns);
            for conn in &conns {
                all &= conn.destroy_removed() != Some(false);
            }
            // Completions from before the removal.
            self.reap_all(&mut panics);
            for conn in conns {
                let mut deferred = Deferred::new();
                self.end_operations(&conn, &mut deferred);
                panics.catch(|| deferred.finish());
            }
        }
        self.removed.store(all, Ordering::Release);
        // Those that wait for the service look at `removed`.
        panics.catch(|| wake_all(self.service.take_wakers()));
        panics.resume();
        all
    }

    /// The error of a task that nothing would wake.
    pub(crate) fn no_driver(&self, verb: &'static str) -> Error {
        if self.is_removed() { Error::DeviceRemoved { verb } } else { Error::NoDriver { verb } }
    }
}

impl<B, P: Provider, S: Service<P>> Drop for HubInner<B, P, S> {
    fn drop(&mut self) {
        // The driver ends, because the hub is dropped. The thread may unwind.
        wake_all(self.election.driver());
    }
}

impl<B, P: Provider> Hub<B, P> {
    /// Creates a hub whose CQ has room for `entries` completions: the sum of the depths of all its
    /// connections, in both directions. The CQ also has room for probes, half as many. Waiting threads
    /// and the driver poll before they sleep, by the default of [`Spin`].
    ///
    /// # Errors
    /// - [`Error::Invalid`]: `entries` is 0.
    /// - [`Error::Limit`]: `entries` is above the device's limit.
    /// - [`Error::Kernel`]: a command of the setup failed.
    pub fn new(pd: &Pd<P>, entries: u32) -> Result<Self> {
        Self::with_spin(pd, entries, Spin::default())
    }

    /// Creates a hub whose waiting threads and driver poll before they sleep, by the policy `spin`.
    ///
    /// # Errors
    /// As for [`Hub::new`].
    pub fn with_spin(pd: &Pd<P>, entries: u32, spin: Spin) -> Result<Self> {
        Self::with_service(pd, entries, spin, (), 0)
    }

    /// Creates a connection at `port` (counted from 1) for `depth` sends, writes, reads and
    /// atomics, and for `depth` receives at a time. The other options have their defaults; see
    /// [`Hub::connection_with`].
    ///
    /// # Errors
    /// As for [`Hub::connection_with`].
    pub fn connection(&self, port: impl Into<PortNum>, depth: u32) -> Result<Connection<B, P>> {
        self.connection_with(&EndpointOptions::default().port(port).sends(depth).recvs(depth))
    }

    /// Creates a connection.
    ///
    /// It reserves room for the completions of its sends and receives. The room is released after
    /// the connection's last completion was reaped.
    ///
    /// [`EndpointOptions::signal_every`] and [`EndpointOptions::spin`] are refused: every operation is
    /// signalled, and the hub has the policy of waits.
    ///
    /// ```
    /// use bareverbs::values::Mtu;
    /// use bareverbs::{Device, Endpoint, Hub, PoolBuffer};
    ///
    /// let pd = Device::find("soft0")?.open()?.alloc_pd()?;
    /// let hub: Hub<PoolBuffer> = Hub::new(&pd, 1024)?;
    /// let options = Endpoint::options().sends(64).recvs(16).inline(64).mtu(Mtu::Mtu1024);
    /// let connection = hub.connection_with(&options)?;
    /// # Ok::<(), bareverbs::Error>(())
    /// ```
    ///
    /// # Errors
    /// - [`Error::Limit`]: there is not enough room in the CQ, or an option is above the device's
    ///   limits.
    /// - [`Error::Invalid`]: an option is out of range. The error names it.
    /// - [`Error::NoPort`], [`Error::NoGid`].
    /// - [`Error::Kernel`]: a command of the setup failed.
    pub fn connection_with(&self, options: &EndpointOptions) -> Result<Connection<B, P>> {
        const VERB: &str = "Hub::connection";
        options.check_for_hub(VERB)?;
        let attr = options.check(VERB, self.inner.pd.context())?;
        let describe = |address| options.address(address);
        let [sends, recvs, inline, max_sge] = options.capacity();
        let depths = Depths { sends, recvs, max_sge, ..Depths::default() };
        let create = |init: &QpInit<'_, P>| self.inner.pd.create_qp(init);
        let attr = (attr, options.keepalive_policy(), options.resolve());
        self.open(VERB, attr, (depths, inline), describe, create, (0, ()))
    }
}

impl<B, P: Provider, S: Service<P>> Hub<B, P, S> {
    /// Creates a hub for `service`, and reserves room for `reserved` completions that are not of its
    /// connections.
    pub(crate) fn with_service(
        pd: &Pd<P>,
        entries: u32,
        spin: Spin,
        service: S,
        reserved: usize,
    ) -> Result<Self> {
        let context = pd.context();
        let channel = context.create_comp_channel()?;
        // Each connection has at least two entries, and at most one probe. Those of a service are among
        // its reserved requests.
        let probes = if S::OWNS { 0 } else { entries / 2 };
        let all = entries.saturating_add(probes).min(context.limits().max_cqe.max(entries));
        let cq = context.create_cq(&CqInit { channel: Some(&channel), ..CqInit::new(all) })?;
        let hub = Self::over(pd, (cq, channel), (entries, all - entries), spin, service);
        // Never released.
        drop(hub.inner.lock().reserve(reserved));
        Ok(hub)
    }

    /// A hub of a CQ, which has room for `entries` completions and for `probes`.
    fn over(
        pd: &Pd<P>,
        (cq, channel): (Cq<P>, CompChannel),
        (entries, probes): (u32, u32),
        spin: Spin,
        service: S,
    ) -> Self {
        let inner = HubInner {
            pd: pd.clone(),
            channel,
            table: OpTable::new(entries),
            election: Election::new(THREADS),
            spin: SpinState::new(spin),
            sweeps: Sweeps::new(),
            service,
            removed: AtomicBool::new(false),
            reaper: Mutex::new(Reaper::new(cq, entries, probes)),
        };
        Self { inner: Arc::new(inner) }
    }

    /// A hub whose channel has no events.
    #[cfg(test)]
    pub(crate) fn for_test(pd: &Pd<P>, entries: u32, service: S) -> Self {
        let cq = pd.context().create_cq(&CqInit::new(entries)).expect("a CQ");
        Self::of_cq(pd, cq, entries, service)
    }

    /// A hub of `cq` whose channel has no events.
    #[cfg(any(test, feature = "test-utils"))]
    pub(crate) fn of_cq(pd: &Pd<P>, cq: Cq<P>, entries: u32, service: S) -> Self {
        let channel = CompChannel::for_test(pd.context().file());
        Self::over(pd, (cq, channel), (entries, entries / 2), Spin::Never, service)
    }

    /// A connection on a QP that the test has made.
    #[cfg(any(test, feature = "test-utils"))]
    pub(crate) fn connection_for_test(
        &self,
        qp: Qp<Rc, P>,
        [sends, more]: [usize; 2],
        service: (u64, S::Conn),
    ) -> Connection<B, P, S> {
        let (sends, more) = (sends as u32, more as u32);
        let depths = match S::OWNS {
            true => Depths { sends: 2, service: sends, reserved: more, ..Depths::default() },
            false => Depths { sends, recvs: more, ..Depths::default() },
        };
        let slots = self.inner.lock().reserve(depths.completions()).expect("room");
        let local = Address::new(crate::Gid::default(), qp.qp_num());
        let probe = !S::OWNS && self.inner.lock().reserve_probe();
        let conn = Arc::new(Conn::new((qp, None), slots, depths, probe, service));
        self.inner.lock().add(&conn);
        let hub = Arc::clone(&self.inner);
        let attr = ConnectAttr::new(1, 0);
        let (policy, resolve) = (Policy::default(), ResolveTimeout::default());
        Connection { inner: Arc::new(ConnectionInner { hub, conn, local, attr, policy, resolve }) }
    }

    /// Ends all operations, as a removal of the device does.
    #[cfg(test)]
    pub(crate) fn remove_for_test(&self) -> bool {
        self.inner.end_removed()
    }

    /// Creates a connection with slots for all operations of `depths`. `describe` completes its address,
    /// and `create` creates its QP.
    pub(crate) fn open(
        &self,
        verb: &'static str,
        (attr, policy, resolve): (ConnectAttr, Policy, ResolveTimeout),
        (depths, max_inline_data): (Depths, u32),
        describe: impl FnOnce(Address) -> Address,
        create: impl FnOnce(&QpInit<'_, P>) -> Result<Qp<Rc, P>>,
        service: (u64, S::Conn),
    ) -> Result<Connection<B, P, S>> {
        let ConnectAttr { port, gid_index, pkey_index, access, .. } = attr;
        let asked = depths.completions();
        let mut reaper = self.inner.lock();
        let room = reaper.free_entries();
        let Some(slots) = reaper.reserve(asked) else {
            return Err(Error::Limit {
                verb,
                limit: Limit::HubCompletions,
                asked: asked as u64,
                max: room as u64,
            });
        };
        // The probe of a service's connection is among its reserved requests.
        let max_qp_wr = self.inner.pd.context().limits().max_qp_wr;
        let probe = !S::OWNS && depths.sends < max_qp_wr && reaper.reserve_probe();
        let policy = if probe || S::OWNS { policy } else { Policy::Never };
        let Depths { sends, recvs: max_recv_wr, service: counted, reserved, max_sge } = depths;
        let max_send_wr = (sends + counted + reserved + u32::from(probe)).min(max_qp_wr);
        let (max_send_sge, max_recv_sge) = (max_sge, max_sge);
        let cap = QpCap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data };
        let cq = &reaper.cq;
        // A peer may invalidate the key that it received, so each connection registers its own memory.
        let ready = ProbeMemory::of(&self.inner.pd).and_then(|memory| {
            let mut qp = create(&QpInit { cap, signal_all: true, ..QpInit::new(cq, cq) })?;
            qp.init(&InitAttr { pkey_index, access, ..InitAttr::new(port) })?;
            let local = describe(qp.address(port, gid_index)?);
            let probe = memory.as_ref().map(ProbeMemory::remote);
            Ok(((qp, memory), Address { probe, ..local }))
        });
        let (qp, local) = match ready {
            Ok(ready) => ready,
            Err(error) => {
                reaper.release(&slots, probe);
                return Err(error);
            }
        };
        let conn = Arc::new(Conn::new(qp, slots, depths, probe, service));
        drop(reaper);
        let inner = ConnectionInner { hub: Arc::clone(&self.inner), conn, local, attr, policy, resolve };
        // The kernel may have reused the QPN of a destroyed QP.
        let mut panics = FirstPanic::default();
        self.inner.reap_all(&mut panics);
        panics.resume();
        self.inner.lock().add(&inner.conn);
        Ok(Connection { inner: Arc::new(inner) })
    }

    /// Reaps up to about `max` completions and wakes their tasks. Returns their number. It does not
    /// wait.
    ///
    /// For busy-polling loops; a driver may run as well.
    pub fn poll(&self, max: usize) -> usize {
        self.inner.poll(max)
    }

    /// A driver for a task of the [runtime](crate::runtime), such as `Tokio`. See
    /// [drivers](Self#drivers).
    ///
    /// A hub has one driver at a time, a task or a thread. A second one is refused, and the first one
    /// goes on. Another one can follow after it was dropped.
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the hub has a driver, or there is no runtime.
    /// - [`Error::System`]: the channel could not be registered with the runtime.
    pub fn drive(&self, runtime: impl Runtime) -> Result<Driver<B, P, S>> {
        Driver::new(&self.inner, runtime)
    }

    /// Starts a thread that drives the hub. It ends with the hub. See [drivers](Self#drivers).
    ///
    /// # Errors
    /// - [`Error::Invalid`]: the hub has a driver.
    /// - [`Error::System`]: the thread could not be started.
    pub fn spawn_driver_thread(&self) -> Result<()>
    where
        B: Send + 'static,
    {
        driver::spawn(&self.inner)
    }

    /// The protection domain of its connections.
    #[must_use]
    pub fn pd(&self) -> &Pd<P> {
        &self.inner.pd
    }

    /// The completions for which there is room: the depths that further connections can have.
    #[must_use]
    pub fn free_entries(&self) -> usize {
        self.inner.lock().free_entries()
    }
}

impl<B, P: Provider, S: Service<P>> Clone for Hub<B, P, S> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

debug! {
    it: "Hub" [B, P: Provider, S: Service<P>] Hub<B, P, S> { driver = it.inner.election.has_driver() }
}

#[cfg(all(test, not(loom)))]
mod tests;
