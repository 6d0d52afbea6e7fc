//! The in-process HCA on its own thread, and queues for other threads.

use std::cell::UnsafeCell;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bareverbs_hca::InProcessHca;
use bareverbs_hca::engine::packet::Transport;
use bareverbs_hca::engine::{CqSetup, QpSetup, Service, State};
use bareverbs_mlx5::testing::{CqRef, DmaRange, Plain, resize};
use bareverbs_mlx5::{Mlx5Cq, Mlx5Rq, Mlx5Sq, Mlx5Srq};
use bareverbs_mlx5_testbed::{Device, post, push, request};
use bareverbs_provider::mapping::Mapping;
use bareverbs_provider::traits::{CompletionQueue, RecvQueue, SendQueue};
use bareverbs_provider::work::{Operation, PushError, RecvRequest, Remote, Sge, WorkCompletion};
use bareverbs_uapi::uverbs::types::{QpCap, QpType};

/// Bytes of the MR that messages use.
const REGION: usize = 0x1000;
/// Timeout of every wait, long enough for ThreadSanitizer on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A spin lock that ThreadSanitizer instruments in any build, because it uses no precompiled code
/// of the standard library.
pub(crate) struct SpinLock<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the lock gives one thread at a time access to the value.
unsafe impl<T: Send> Sync for SpinLock<T> {}

pub(crate) struct Guard<'a, T>(&'a SpinLock<T>);

impl<T> SpinLock<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { taken: AtomicBool::new(false), value: UnsafeCell::new(value) }
    }

    pub(crate) fn lock(&self) -> Guard<'_, T> {
        while self.taken.swap(true, Ordering::Acquire) {
            std::thread::yield_now();
        }
        Guard(self)
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: this guard holds the lock.
        unsafe { &*self.0.value.get() }
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: this guard holds the lock.
        unsafe { &mut *self.0.value.get() }
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        self.0.taken.store(false, Ordering::Release);
    }
}

/// The device, with the state that a kernel driver would keep.
struct Hca {
    device: Device,
    /// UAR pages of the queues.
    pages: Vec<NonNull<u8>>,
    qps: Vec<u32>,
    events_read: u32,
}

// SAFETY: the pages have no thread affinity.
unsafe impl Send for Hca {}

impl Hca {
    /// One iteration of the device's thread.
    fn turn(&mut self, events: &AtomicU32) {
        for page in self.pages.clone() {
            // SAFETY: queues remove their pages from the list before they free them.
            unsafe { self.device.hca.take_doorbells_of(page) };
        }
        // A page of memory keeps only the last doorbell, so every QP's doorbell record is read.
        for qp in &self.qps {
            self.device.hca.engine().ring_qp(*qp);
        }
        self.device.hca.pass(1_000);
        if self.device.hca.interrupts() != self.events_read {
            self.events_read = self.device.hca.interrupts();
            self.device.hca.engine().eq_consumed(InProcessHca::EVENTS, self.events_read, true);
            events.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The device's thread, the MR of messages, and the context of the queues.
pub(crate) struct Testbed {
    hca: Arc<SpinLock<Hca>>,
    stop: Arc<AtomicBool>,
    device: Option<JoinHandle<()>>,
    /// Completion events of the device.
    pub(crate) events: Arc<AtomicU32>,
    context: Plain,
    region: Mapping,
    key: u32,
}

impl Drop for Testbed {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(device) = self.device.take() {
            let _ = device.join();
        }
    }
}

/// A queue pair. Drop destroys it on the device first, as a kernel does.
pub(crate) struct Pair {
    pub(crate) sq: Mlx5Sq,
    pub(crate) rq: Option<Mlx5Rq>,
    pub(crate) number: u32,
    rings: DmaRange,
    /// Its exclusive UAR page, if it has one.
    page: Option<NonNull<u8>>,
    hca: Arc<SpinLock<Hca>>,
}

// SAFETY: the addresses have no thread affinity.
unsafe impl Send for Pair {}

impl Drop for Pair {
    fn drop(&mut self) {
        let mut hca = self.hca.lock();
        let _ = hca.device.hca.engine().destroy_qp(self.number);
        hca.device.take_back(self.rings);
        let number = self.number;
        hca.qps.retain(|qp| *qp != number);
        let own = self.page;
        hca.pages.retain(|page| Some(*page) != own);
    }
}

/// A completion queue.
pub(crate) struct Cq {
    pub(crate) queue: Mlx5Cq,
    number: u32,
    ring: DmaRange,
    log: u32,
    hca: Arc<SpinLock<Hca>>,
}

// SAFETY: the addresses have no thread affinity.
unsafe impl Send for Cq {}

impl Drop for Cq {
    fn drop(&mut self) {
        self.hca.lock().device.take_back(self.ring);
    }
}

/// A shared receive queue.
pub(crate) struct Srq {
    pub(crate) queue: Mlx5Srq,
    number: u32,
    ring: DmaRange,
    hca: Arc<SpinLock<Hca>>,
}

// SAFETY: the addresses have no thread affinity.
unsafe impl Send for Srq {}

impl Drop for Srq {
    fn drop(&mut self) {
        self.hca.lock().device.take_back(self.ring);
    }
}

/// A CQ's parameters for the creation of QPs: its name in the provider and its CQN.
#[derive(Clone)]
pub(crate) struct CqHandle(CqRef, u32);

impl Cq {
    pub(crate) fn handle(&self) -> CqHandle {
        CqHandle(CqRef::of(&self.queue), self.number)
    }

    /// Resizes the CQ to `1 << log` entries.
    pub(crate) fn resize(&mut self, log: u32) {
        let (number, old, hca) = (self.number, self.ring, &self.hca);
        let mut moved = old;
        resize(&mut self.queue, log, |ring| {
            hca.lock().device.resize_cq(number, old, ring, log);
            moved = ring;
        })
        .expect("memory");
        (self.ring, self.log) = (moved, log);
    }

    /// Polls some completions and calls `each` for them. Successive rounds use different methods of
    /// the CQ.
    pub(crate) fn poll(&mut self, round: usize, mut each: impl FnMut(&WorkCompletion)) {
        use bareverbs_provider::traits::Completion;
        match round % 3 {
            0 => {
                for _ in 0..16 {
                    let Some(completion) = self.queue.next() else { break };
                    each(&completion.to_value());
                }
                self.queue.release();
            }
            1 => {
                let mut values = [WorkCompletion::default(); 4];
                let taken = self.queue.next_values(&mut values);
                values[..taken].iter().for_each(each);
            }
            _ => self.queue.next_value().iter().for_each(each),
        }
    }
}

/// Parameters of a QP.
pub(crate) struct Kind<'a> {
    /// CQs of its sends and of its receives.
    pub(crate) cqs: [&'a CqHandle; 2],
    pub(crate) srq: Option<&'a Srq>,
    /// Whether receive CQEs carry short messages (scatter to CQE).
    pub(crate) scatters: bool,
    /// Whether it has an exclusive UAR page.
    pub(crate) own_page: bool,
}

impl<'a> Kind<'a> {
    /// A QP with its own receives, one CQ and the shared UAR page.
    pub(crate) fn plain(cq: &'a CqHandle) -> Self {
        Self { cqs: [cq, cq], srq: None, scatters: false, own_page: false }
    }
}

/// Depth of a QP's queues. The send queue may have more room.
pub(crate) const DEPTH: u32 = 16;

impl Testbed {
    /// A device with CQEs of this version, 0 or 1.
    pub(crate) fn of_version(cqe_version: u8) -> Self {
        // SAFETY: queues unmap their memory before they free it (`Drop`), and other memory outlives the
        // device. Queues use volatile or atomic accesses for memory that the device accesses.
        let mut device = unsafe { Device::new() };
        device.hca.engine().eq_consumed(InProcessHca::EVENTS, 0, true);
        let context = Plain::with_version(1 << 10, cqe_version).expect("memory");
        let region = Mapping::anonymous(REGION).expect("memory");
        let key = device.register(DmaRange { start: region.as_ptr(), len: REGION });
        let hca = Hca { device, pages: vec![context.uar()], qps: Vec::new(), events_read: 0 };
        let hca = Arc::new(SpinLock::new(hca));
        let (stop, events) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
        let device = std::thread::spawn({
            let (hca, stop, events) = (Arc::clone(&hca), Arc::clone(&stop), Arc::clone(&events));
            move || {
                while !stop.load(Ordering::Relaxed) {
                    hca.lock().turn(&events);
                    std::thread::yield_now();
                }
            }
        });
        Self { hca, stop, device: Some(device), events, context, region, key }
    }

    pub(crate) fn new() -> Self {
        Self::of_version(1)
    }

    pub(crate) fn cq(&self, log: u32) -> Cq {
        let parts = self.context.cq(log, 64).expect("memory");
        let shape = CqSetup { log_size: log as u8, ..CqSetup::default() };
        let (ring, number) = (parts.ring(), self.hca.lock().device.create_cq(&parts, shape));
        Cq { queue: parts.finish(number), number, ring, log, hca: Arc::clone(&self.hca) }
    }

    pub(crate) fn srq(&self, max_wr: u32) -> Srq {
        let parts = self.context.srq(max_wr, 1).expect("memory");
        let number = self.hca.lock().device.create_srq(&parts);
        Srq { ring: parts.ring, queue: parts.queue, number, hca: Arc::clone(&self.hca) }
    }

    pub(crate) fn qp(&self, kind: &Kind<'_>) -> Pair {
        let cap = QpCap {
            max_send_wr: DEPTH,
            max_recv_wr: DEPTH,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let Kind { cqs: [send_cq, recv_cq], srq, scatters, own_page } = *kind;
        let queue = srq.map(|srq| &srq.queue);
        let names = [&send_cq.0, &recv_cq.0];
        let parts =
            self.context.qp_beside_pollers(QpType::RC, &cap, names, queue, scatters).expect("a layout");
        let shape = QpSetup {
            service: Service::Connected(Transport::Rc),
            send_cq: send_cq.1,
            receive_cq: recv_cq.1,
            inline_receives: if scatters { 32 } else { 0 },
            ..QpSetup::default()
        };
        let rings = parts.rings();
        let mut hca = self.hca.lock();
        let number = hca.device.create_qp(&parts, shape, srq.map(|srq| srq.number));
        hca.qps.push(number);
        let (sq, rq, page) = parts.finish(number, own_page).expect("memory");
        if own_page {
            hca.pages.push(page);
        }
        drop(hca);
        let page = own_page.then_some(page);
        Pair { sq, rq, number, rings, page, hca: Arc::clone(&self.hca) }
    }

    /// Connects two QPs: moves them from RESET to RTS.
    pub(crate) fn connect(&self, left: &Pair, right: &Pair) {
        self.hca.lock().device.hca.connect(left.number, right.number).expect("a connection");
    }

    /// Two connected QPs of the same kind.
    pub(crate) fn connected(&self, kind: &Kind<'_>) -> [Pair; 2] {
        let [left, right] = [(), ()].map(|()| self.qp(kind));
        self.connect(&left, &right);
        [left, right]
    }

    /// Moves QPs to RESET: first on the device, as `ibv_modify_qp` does.
    pub(crate) fn reset(&self, pairs: &mut [Pair; 2]) {
        {
            let mut hca = self.hca.lock();
            for pair in pairs.iter() {
                hca.device
                    .hca
                    .engine()
                    .modify_qp(pair.number, State::Reset, Default::default())
                    .expect("any queue pair can be reset");
            }
        }
        for pair in pairs {
            // SAFETY: the device has moved the queue pair to RESET.
            unsafe { pair.sq.reset() };
            if let Some(rq) = &mut pair.rq {
                // SAFETY: the device has moved the queue pair to RESET.
                unsafe { rq.reset() };
            }
        }
    }

    /// An SGE of 8 bytes in the MR.
    pub(crate) fn sge(&self) -> Sge {
        Sge { addr: self.address(), length: 8, lkey: self.key }
    }

    fn address(&self) -> u64 {
        self.region.as_ptr().as_ptr().expose_provenance() as u64
    }

    /// Posts a write of 8 bytes.
    pub(crate) fn write(&self, sq: &mut Mlx5Sq, wr_id: u64) -> Result<(), PushError> {
        self.send(sq, wr_id, Operation::Write(self.remote()))
    }

    fn remote(&self) -> Remote {
        Remote { addr: self.address() + 64, rkey: self.key }
    }

    /// Posts a request of 8 bytes.
    pub(crate) fn send(&self, sq: &mut Mlx5Sq, wr_id: u64, operation: Operation) -> Result<(), PushError> {
        post(sq, &request(wr_id, operation, &[self.sge()]))
    }

    /// Pushes writes until the queue is full, and aborts them. Returns their number.
    pub(crate) fn room(&self, sq: &mut Mlx5Sq) -> u32 {
        let sges = [self.sge()];
        let request = request(0, Operation::Write(self.remote()), &sges);
        let mut room = 0;
        while push(sq, &request).is_ok() {
            room += 1;
            assert!(room <= 10 * DEPTH, "a queue without end");
        }
        sq.abort();
        room
    }
}

/// Posts a receive with one SGE. Returns whether the queue had room.
pub(crate) fn recv(queue: &mut impl RecvQueue, wr_id: u64, sge: Sge) -> bool {
    let sges = [sge];
    let request = RecvRequest { wr_id, sges: &sges };
    // SAFETY: tests keep the SGE's memory until its completion or the destruction of the queue
    // pair.
    let posted = unsafe { queue.try_push(&request) || queue.push(&request).is_ok() };
    queue.ring();
    posted
}

/// Waits until `done` returns `true`. Panics after [`TIMEOUT`].
pub(crate) fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < TIMEOUT, "{what}: not within {TIMEOUT:?}");
        std::thread::yield_now();
    }
}

/// Rounds of a test's main loop, from 1. They last half a second and are at least `at_least`.
/// `BAREVERBS_THREADS_MS` sets another duration in milliseconds and scales `at_least`.
pub(crate) fn rounds(at_least: u64) -> impl Iterator<Item = u64> {
    let asked = std::env::var("BAREVERBS_THREADS_MS").ok().and_then(|text| text.parse().ok());
    let milliseconds: u64 = asked.unwrap_or(500);
    let (begin, time) = (Instant::now(), Duration::from_millis(milliseconds));
    let at_least = at_least * milliseconds / 500;
    (1..).take_while(move |round| *round <= at_least || begin.elapsed() < time)
}

/// A thread that polls a CQ until [`Self::finish`].
pub(crate) struct Poller<T> {
    stop: Arc<AtomicBool>,
    polls: Arc<AtomicUsize>,
    pub(crate) thread: JoinHandle<(Cq, T)>,
}

impl<T: Send + 'static> Poller<T> {
    /// `each` is called for every completion, and `between` before each poll.
    pub(crate) fn start(
        mut cq: Cq,
        mut state: T,
        mut between: impl FnMut(&mut Cq, &mut T, usize) + Send + 'static,
        mut each: impl FnMut(&mut T, &WorkCompletion) + Send + 'static,
    ) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let polls = Arc::new(AtomicUsize::new(0));
        let (stopped, done) = (Arc::clone(&stop), Arc::clone(&polls));
        let thread = std::thread::spawn(move || {
            for round in 0.. {
                let last = stopped.load(Ordering::Relaxed);
                between(&mut cq, &mut state, round);
                cq.poll(round, |completion| each(&mut state, completion));
                done.store(round, Ordering::Relaxed);
                if last {
                    break;
                }
                if round % 64 == 0 {
                    std::thread::yield_now();
                }
            }
            (cq, state)
        });
        Self { stop, polls, thread }
    }

    /// Waits for ten further polls, which take some sixty completions. So the CQ does not overflow.
    pub(crate) fn let_poll(&self) {
        let before = self.polls.load(Ordering::Relaxed);
        wait_until("some polls", || {
            self.thread.is_finished() || self.polls.load(Ordering::Relaxed) > before + 10
        });
    }

    /// Stops the thread and returns its CQ and state.
    pub(crate) fn finish(self) -> (Cq, T) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}
