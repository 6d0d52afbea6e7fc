//! A device on a thread of its own, and queues that other threads use.

use std::cell::UnsafeCell;
use std::collections::HashSet;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bareverbs_hca::engine::packet::Transport;
use bareverbs_hca::engine::{CqSetup, QpSetup, ReceiveQueue, Service, SrqSetup, State};
use bareverbs_hca::{InProcessHca, Link};
use bareverbs_mlx5::testing::{CqName, Place, Plain, page_of, resize};
use bareverbs_mlx5::{Mlx5Cq, Mlx5Rq, Mlx5Sq, Mlx5Srq};
use bareverbs_provider::mapping::Mapping;
use bareverbs_provider::traits::{CompletionQueue, RecvQueue, SendQueue};
use bareverbs_provider::work::{
    Operation, Payload, PushError, RecvRequest, Remote, SendFlags, SendRequest, Sge, WcStatus, WorkCompletion,
};
use bareverbs_uapi::uverbs::types::{QpCap, QpType};

/// The protection domain of everything.
const PD: u32 = 7;
/// Bytes of the region that messages lie in.
const REGION: usize = 0x1000;
/// Nothing takes longer, under ThreadSanitizer and on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A lock that ThreadSanitizer sees through in any build: nothing of it is compiled into the
/// standard library.
pub(crate) struct SpinLock<T> {
    taken: AtomicBool,
    value: UnsafeCell<T>,
}

// SAFETY: the lock lets one thread at a time to the value.
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

/// The device, and what its driver in the kernel would know.
struct Hca {
    device: InProcessHca,
    mapped: HashSet<u64>,
    /// Doorbell pages that queues ring.
    pages: Vec<NonNull<u8>>,
    qps: Vec<u32>,
    events_read: u32,
}

// SAFETY: the pages belong to no thread.
unsafe impl Send for Hca {}

impl Hca {
    fn map_memory(&mut self, place: Place) {
        if self.mapped.insert(place.address()) {
            // SAFETY: queues take their memory back before it goes (`take_back`), and what is not a
            // queue's outlives the device. Queues access it by volatile or atomic accesses as far
            // as the device touches it.
            unsafe { self.device.map_memory(place.start, place.len) }.expect("room in the device's map");
        }
    }

    fn take_back(&mut self, place: Place) {
        self.device.take_back(place.address(), place.len);
        self.mapped.remove(&place.address());
    }

    /// What the device does when it is awake.
    fn turn(&mut self, events: &AtomicU32) {
        for page in self.pages.clone() {
            // SAFETY: queues take their pages out of the list before these go.
            unsafe { self.device.take_doorbells_of(page) };
        }
        // A page of memory keeps the last doorbell only, so each queue is looked at.
        for qp in &self.qps {
            self.device.engine().ring_qp(*qp);
        }
        self.device.pass(1_000);
        if self.device.interrupts() != self.events_read {
            self.events_read = self.device.interrupts();
            self.device.engine().eq_consumed(InProcessHca::EVENTS, self.events_read, true);
            events.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The device's thread, memory that messages lie in, and what queues of a context share.
pub(crate) struct Testbed {
    hca: Arc<SpinLock<Hca>>,
    stop: Arc<AtomicBool>,
    device: Option<JoinHandle<()>>,
    /// Events that the device has raised.
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

/// A queue pair. Dropped, it is destroyed: on the device first, as a kernel does it.
pub(crate) struct Pair {
    pub(crate) sq: Mlx5Sq,
    pub(crate) rq: Option<Mlx5Rq>,
    pub(crate) number: u32,
    rings: Place,
    /// The doorbell page of its own, if it has one.
    page: Option<NonNull<u8>>,
    hca: Arc<SpinLock<Hca>>,
}

// SAFETY: the addresses belong to no thread.
unsafe impl Send for Pair {}

impl Drop for Pair {
    fn drop(&mut self) {
        let mut hca = self.hca.lock();
        let _ = hca.device.engine().destroy_qp(self.number);
        hca.take_back(self.rings);
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
    ring: Place,
    log: u32,
    hca: Arc<SpinLock<Hca>>,
}

// SAFETY: the addresses belong to no thread.
unsafe impl Send for Cq {}

impl Drop for Cq {
    fn drop(&mut self) {
        self.hca.lock().take_back(self.ring);
    }
}

/// A shared receive queue.
pub(crate) struct Srq {
    pub(crate) queue: Mlx5Srq,
    number: u32,
    ring: Place,
    hca: Arc<SpinLock<Hca>>,
}

// SAFETY: the addresses belong to no thread.
unsafe impl Send for Srq {}

impl Drop for Srq {
    fn drop(&mut self) {
        self.hca.lock().take_back(self.ring);
    }
}

/// What queue pairs know of a completion queue, the device's number among it.
#[derive(Clone)]
pub(crate) struct CqHandle(CqName, u32);

impl Cq {
    pub(crate) fn handle(&self) -> CqHandle {
        CqHandle(CqName::of(&self.queue), self.number)
    }

    /// Moves to a ring of `1 << log` entries.
    pub(crate) fn resize(&mut self, log: u32) {
        let (number, old, hca) = (self.number, self.ring, &self.hca);
        let mut moved = old;
        resize(&mut self.queue, log, |ring| {
            let mut hca = hca.lock();
            hca.map_memory(ring);
            moved = ring;
            let ring = InProcessHca::ring_at(ring.address(), 64 << log);
            hca.device.engine().resize_cq(number, ring, log as u8).expect("room for what is there");
            hca.take_back(old);
        })
        .expect("memory");
        (self.ring, self.log) = (moved, log);
    }

    /// Takes some completions, by each of the ways in turn; `each` gets them.
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
                let mut values = [NO_COMPLETION; 4];
                let taken = self.queue.next_values(&mut values);
                values[..taken].iter().for_each(each);
            }
            _ => self.queue.next_value().iter().for_each(each),
        }
    }
}

const NO_COMPLETION: WorkCompletion = WorkCompletion {
    wr_id: u64::MAX,
    status: WcStatus::GENERAL_ERR,
    opcode: bareverbs_provider::work::WcOpcode::SEND,
    vendor_err: 0,
    byte_len: 0,
    imm_data: 0,
    qp_num: 0,
    src_qp: 0,
    wc_flags: bareverbs_provider::work::WcFlags::empty(),
    pkey_index: 0,
    slid: 0,
    sl: 0,
    dlid_path_bits: 0,
};

/// How a queue pair is made.
pub(crate) struct Kind<'a> {
    /// Where its sends and its receives complete.
    pub(crate) cqs: [&'a CqHandle; 2],
    pub(crate) srq: Option<&'a Srq>,
    /// Whether short messages come in their completions.
    pub(crate) scatters: bool,
    /// Whether it has a doorbell page of its own.
    pub(crate) own_page: bool,
}

impl<'a> Kind<'a> {
    /// Sends and receives of its own that complete to `cq`, on the shared doorbell page.
    pub(crate) fn plain(cq: &'a CqHandle) -> Self {
        Self { cqs: [cq, cq], srq: None, scatters: false, own_page: false }
    }
}

/// Sends that a queue pair has room for, at least, and its receives.
pub(crate) const DEPTH: u32 = 16;

impl Testbed {
    /// A device whose completions are of this version, 0 or 1.
    pub(crate) fn of_version(cqe_version: u8) -> Self {
        let mut device = InProcessHca::new(Link::InfiniBand).expect("a device");
        device.engine().eq_consumed(InProcessHca::EVENTS, 0, true);
        let context = Plain::with_version(1 << 10, cqe_version).expect("memory");
        let region = Mapping::anonymous(REGION).expect("memory");
        let place = Place { start: region.as_ptr(), len: REGION };
        let mut hca = Hca {
            device,
            mapped: HashSet::new(),
            pages: vec![context.uar()],
            qps: Vec::new(),
            events_read: 0,
        };
        hca.map_memory(place);
        let key = hca.device.engine().register(PD, place.address(), REGION as u64).expect("a key");
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
        let (ring, doorbell) = (parts.ring(), parts.doorbell());
        let mut hca = self.hca.lock();
        hca.map_memory(ring);
        hca.map_memory(page_of(doorbell));
        let setup = CqSetup {
            ring: InProcessHca::ring_at(ring.address(), 64 << log),
            log_size: log as u8,
            eq: InProcessHca::EVENTS,
            doorbell,
            ..CqSetup::default()
        };
        let number = hca.device.engine().create_cq(setup).expect("a completion queue");
        drop(hca);
        Cq { queue: parts.finish(number), number, ring, log, hca: Arc::clone(&self.hca) }
    }

    pub(crate) fn srq(&self, max_wr: u32) -> Srq {
        let parts = self.context.srq(max_wr, 1).expect("memory");
        let mut hca = self.hca.lock();
        hca.map_memory(parts.ring);
        hca.map_memory(page_of(parts.doorbell));
        let setup = SrqSetup {
            ring: InProcessHca::ring_at(parts.ring.address(), (parts.slots as usize) << parts.shift),
            log_size: parts.slots.trailing_zeros() as u8,
            log_stride: parts.shift as u8,
            doorbell: parts.doorbell,
            pd: PD,
            user_index: 0,
            cq: None,
            xrcd: None,
            linked: true,
        };
        let number = hca.device.engine().create_srq(setup, 0).expect("a shared receive queue");
        parts.number(number);
        drop(hca);
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
        let (slots, shift) = parts.receives();
        let (send_offset, blocks) = parts.sends();
        let receive = match srq {
            Some(srq) => ReceiveQueue::Shared(srq.number),
            None => ReceiveQueue::Own { log_size: slots.trailing_zeros() as u8, log_stride: shift as u8 },
        };
        let (rings, doorbell) = (parts.rings(), parts.doorbell());
        let mut hca = self.hca.lock();
        hca.map_memory(rings);
        hca.map_memory(page_of(doorbell));
        let setup = QpSetup {
            service: Service::Connected(Transport::Rc),
            pd: PD,
            user_index: parts.user_index(),
            ring: InProcessHca::ring_at(rings.address(), rings.len),
            send_offset: send_offset as u64,
            log_send_size: Some(blocks.trailing_zeros() as u8),
            receive,
            doorbell,
            send_cq: send_cq.1,
            receive_cq: recv_cq.1,
            inline_receives: if scatters { 32 } else { 0 },
            ..QpSetup::default()
        };
        let number = hca.device.engine().create_qp(setup, Default::default()).expect("a queue pair");
        hca.qps.push(number);
        let (sq, rq, page) = parts.finish(number, own_page).expect("memory");
        if own_page {
            hca.pages.push(page);
        }
        drop(hca);
        let page = own_page.then_some(page);
        Pair { sq, rq, number, rings, page, hca: Arc::clone(&self.hca) }
    }

    /// Takes two queue pairs from RESET to RTS, connected to each other.
    pub(crate) fn connect(&self, left: &Pair, right: &Pair) {
        self.hca.lock().device.connect(left.number, right.number).expect("a connection");
    }

    /// Two queue pairs connected to each other, of the same kind.
    pub(crate) fn connected(&self, kind: &Kind<'_>) -> [Pair; 2] {
        let [left, right] = [(), ()].map(|()| self.qp(kind));
        self.connect(&left, &right);
        [left, right]
    }

    /// Takes queue pairs to RESET, as `ibv_modify_qp` does it: the device first.
    pub(crate) fn reset(&self, pairs: &mut [Pair; 2]) {
        {
            let mut hca = self.hca.lock();
            for pair in pairs.iter() {
                hca.device
                    .engine()
                    .move_qp(pair.number, State::Reset, Default::default())
                    .expect("any queue pair can be reset");
            }
        }
        for pair in pairs {
            // SAFETY: the device has the queue pair in RESET.
            unsafe { pair.sq.reset() };
            if let Some(rq) = &mut pair.rq {
                // SAFETY: the device has the queue pair in RESET.
                unsafe { rq.reset() };
            }
        }
    }

    /// An element in the region.
    pub(crate) fn sge(&self) -> Sge {
        Sge { addr: self.address(), length: 8, lkey: self.key }
    }

    fn address(&self) -> u64 {
        self.region.as_ptr().as_ptr().expose_provenance() as u64
    }

    /// Posts a write of 8 bytes.
    pub(crate) fn write(&self, sq: &mut Mlx5Sq, wr_id: u64) -> Result<(), PushError> {
        let remote = Remote { addr: self.address() + 64, rkey: self.key };
        self.send(sq, wr_id, Operation::Write(remote))
    }

    /// Posts a request of 8 bytes as users do: the fast path, and where that declines, the slow
    /// one.
    pub(crate) fn send(&self, sq: &mut Mlx5Sq, wr_id: u64, operation: Operation) -> Result<(), PushError> {
        let sges = [self.sge()];
        let request =
            SendRequest { wr_id, operation, flags: SendFlags::SIGNALED, payload: Payload::Sges(&sges) };
        // SAFETY: the element is of the region, which stays registered.
        if unsafe { sq.try_post(&request, false) }.is_none() {
            // SAFETY: the element is of the region, which stays registered.
            unsafe { sq.push(&request) }?;
            sq.ring().expect("doorbells are not refused");
        }
        Ok(())
    }

    /// Pushes writes until there is no room, and takes them back; how many found room.
    pub(crate) fn room(&self, sq: &mut Mlx5Sq) -> u32 {
        let sges = [self.sge()];
        let remote = Remote { addr: self.address() + 64, rkey: self.key };
        let (operation, flags) = (Operation::Write(remote), SendFlags::SIGNALED);
        let request = SendRequest { wr_id: 0, operation, flags, payload: Payload::Sges(&sges) };
        let mut room = 0;
        // SAFETY: the element is of the region, which stays registered.
        while unsafe { sq.try_push(&request) || sq.push(&request).is_ok() } {
            room += 1;
            assert!(room <= 10 * DEPTH, "a queue without end");
        }
        sq.abort();
        room
    }
}

/// Posts a receive of one element; whether there was room.
pub(crate) fn recv(queue: &mut impl RecvQueue, wr_id: u64, sge: Sge) -> bool {
    let sges = [sge];
    let request = RecvRequest { wr_id, sges: &sges };
    // SAFETY: tests keep the element's memory until its completion, or the end of the queue pair.
    let posted = unsafe { queue.try_push(&request) || queue.push(&request).is_ok() };
    queue.ring();
    posted
}

/// Waits.
pub(crate) fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !done() {
        assert!(begin.elapsed() < TIMEOUT, "{what}: not within {TIMEOUT:?}");
        std::thread::yield_now();
    }
}

/// Rounds of a test's main loop, from 1: half a second of them and at least so many, or as many
/// times that as `BAREVERBS_THREADS_MS` has half seconds.
pub(crate) fn rounds(at_least: u64) -> impl Iterator<Item = u64> {
    let asked = std::env::var("BAREVERBS_THREADS_MS").ok().and_then(|text| text.parse().ok());
    let milliseconds: u64 = asked.unwrap_or(500);
    let (begin, time) = (Instant::now(), Duration::from_millis(milliseconds));
    let at_least = at_least * milliseconds / 500;
    (1..).take_while(move |round| *round <= at_least || begin.elapsed() < time)
}

/// A thread that polls until it is stopped.
pub(crate) struct Poller<T> {
    stop: Arc<AtomicBool>,
    polls: Arc<AtomicUsize>,
    pub(crate) thread: JoinHandle<(Cq, T)>,
}

impl<T: Send + 'static> Poller<T> {
    /// `each` gets every completion, and `between` is called before each poll.
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

    /// Waits for as many polls as take some sixty completions, so that the completion queue does
    /// not run over.
    pub(crate) fn let_poll(&self) {
        let before = self.polls.load(Ordering::Relaxed);
        wait_until("some polls", || {
            self.thread.is_finished() || self.polls.load(Ordering::Relaxed) > before + 10
        });
    }

    /// Its queue and what it has noted.
    pub(crate) fn finish(self) -> (Cq, T) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}
