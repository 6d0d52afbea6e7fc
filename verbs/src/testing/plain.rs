//! A provider for tests, on plain memory. Objects are created and dropped without a kernel, and tests
//! supply the completions.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};

use bareverbs_provider::caps::{Capabilities, MrQuirks};
use bareverbs_provider::device::{DeviceFile, IoctlError};
use bareverbs_provider::error::{CreateError, DoorbellError};
use bareverbs_provider::request::{AhRequest, CqRequest, QpRequest, SrqChange, SrqRequest};
use bareverbs_provider::traits::{
    Completion, CompletionQueue, CreatedAh, CreatedCq, CreatedQp, CreatedSrq, Provider, QpControl, RecvQueue,
    SendQueue, Visitor,
};
use bareverbs_provider::work::{
    Datagram, Frame, Imm, Payload, PushError, RecvRequest, SendFlags, SendRequest, WcFlags, WcOpcode,
    WcStatus, WorkCompletion, XrcOperation,
};
use bareverbs_test_support::allocations::CountingAllocator;
use bareverbs_uapi::verbs_values::QpState;
use bareverbs_uapi::write::structs::{ExQueryDeviceResp, ModifyQpReq};

use crate::Pd;
use crate::cq::CqInit;
use crate::device::DriverId;
use crate::qp::{Qp, QpInit, Rc, Transport};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Records the calls of its queues, and supplies their completions.
#[derive(Debug, Default)]
pub(crate) struct Log {
    /// Completions for polls, in this order.
    pub(crate) completions: VecDeque<WorkCompletion>,
    /// Posted send requests whose doorbell was rung: QP number and `wr_id`.
    pub(crate) sent: Vec<(u32, u64)>,
    /// The `wr_id`s of the posted send requests that are fenced.
    pub(crate) fenced: Vec<u64>,
    /// The number of SGEs of each posted send request.
    pub(crate) sges: Vec<usize>,
    /// The `wr_id`s of the posted RDMA reads.
    pub(crate) reads: Vec<u64>,
    /// The `wr_id`s of the posted send requests that are signalled.
    pub(crate) signaled: Vec<u64>,
    /// The number of doorbells of send queues.
    pub(crate) doorbells: u32,
    /// Errors of the next doorbells of send queues, in this order. Later doorbells succeed.
    pub(crate) refusals: VecDeque<DoorbellError>,
    /// Posted receives whose doorbell was rung.
    pub(crate) received: Vec<u64>,
    /// Numbers of the rings that were freed.
    pub(crate) freed: Vec<u32>,
    /// QP states that were set by `modify`.
    pub(crate) states: Vec<QpState>,
    /// Number of receive queues that were abandoned.
    pub(crate) abandoned: u32,
    /// Results of the next calls of `modify`, in this order. Later calls succeed.
    pub(crate) answers: VecDeque<Result<(), IoctlError>>,
    /// Is called after `modify` has set a QP state, with the state.
    pub(crate) modified: Hook,
    /// Whether RESET is issued twice.
    pub(crate) needs_second_reset: bool,
    /// Whether a QP is moved to ERR before it is destroyed.
    pub(crate) needs_error_before_destroy: bool,
    /// Numbers of the rings that were reset.
    pub(crate) reset: Vec<u32>,
    /// Errors of the next receives, in this order.
    pub(crate) rejections: VecDeque<PushError>,
    /// Errors of the next sends, in this order.
    pub(crate) send_rejections: VecDeque<PushError>,
    /// Is called with the `wr_id` of each send after it was pushed.
    pub(crate) pushed: Hook,
    /// Whether receives panic after they were pushed.
    pub(crate) panics: bool,
    /// How many of the next polls panic.
    pub(crate) poll_panics: u32,
    /// The number of times that CQs were armed.
    pub(crate) arms: u32,
    /// Is called after a CQ was armed, with 0.
    pub(crate) armed: Hook,
    /// Is called after a poll that found nothing, with 0.
    pub(crate) empty: Hook,
    /// Whether the fast path of polls declines every completion.
    pub(crate) declines: bool,
    /// The quirks of the driver.
    pub(crate) mr_quirks: MrQuirks,
    /// Whether the device speaks iWARP. Read when a context is created.
    pub(crate) iwarp: bool,
    /// QP states of which send queues were notified.
    pub(crate) notified: Vec<QpState>,
    rings: u32,
}

/// A function that a test supplies.
#[derive(Clone, Default)]
pub(crate) struct Hook(pub(crate) Option<Arc<dyn Fn(u64) + Send + Sync>>);

impl std::fmt::Debug for Hook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Hook").field(&self.0.is_some()).finish()
    }
}

/// The provider.
#[derive(Clone, Default)]
pub(crate) struct Plain(Arc<Mutex<Log>>);

impl Plain {
    /// A provider of a driver with these quirks.
    pub(crate) fn with(quirks: MrQuirks) -> Self {
        let plain = Self::default();
        plain.log().mr_quirks = quirks;
        plain
    }

    /// A provider of an iWARP device.
    pub(crate) fn iwarp() -> Self {
        let plain = Self::default();
        plain.log().iwarp = true;
        plain
    }

    pub(crate) fn log(&self) -> MutexGuard<'_, Log> {
        self.0.lock().expect("no test panics with the log in hand")
    }

    /// Makes room for `entries` of each kind in the log.
    pub(crate) fn reserve(&self, entries: usize) {
        let mut log = self.log();
        log.completions.reserve(entries);
        log.sent.reserve(entries);
        log.sges.reserve(entries);
        log.signaled.reserve(entries);
        log.received.reserve(entries);
    }

    /// A protection domain of a new context.
    pub(crate) fn domain(&self) -> Pd<Self> {
        self.domain_of(DriverId::UNKNOWN)
    }

    /// A protection domain of a new context with this driver id.
    pub(crate) fn domain_of(&self, driver: DriverId) -> Pd<Self> {
        self.domain_behind("/dev/null", driver)
    }

    /// A protection domain of a new context with this driver id. Commands fail with the errno that
    /// `path`, `/dev/null` or `/dev/urandom`, returns for an unknown ioctl.
    pub(crate) fn domain_behind(&self, path: &str, driver: DriverId) -> Pd<Self> {
        let mut resp = ExQueryDeviceResp::zeroed();
        let base = &mut resp.base;
        (base.max_qp_wr, base.max_sge, base.max_cqe) = (1 << 10, 4, 1 << 10);
        (base.max_srq_wr, base.max_srq_sge, base.phys_port_cnt) = (1 << 10, 4, 1);
        (base.max_qp_rd_atom, base.max_qp_init_rd_atom) = (8, 4);
        super::pd_behind(path, driver, self.clone(), resp)
    }

    /// A queue pair in RTS. Its destruction fails.
    pub(crate) fn queue_pair(&self, pd: &Pd<Self>) -> Qp<Rc, Self> {
        self.queue_pair_of(pd)
    }

    /// A queue pair of a transport, as [`Plain::queue_pair`].
    pub(crate) fn queue_pair_of<T: Transport>(&self, pd: &Pd<Self>) -> Qp<T, Self> {
        let cq = pd.context().create_cq(&CqInit::new(8)).expect("a CQ");
        let mut qp = pd.create_qp(&QpInit::new(&cq, &cq)).expect("a queue pair");
        qp.assume_state(QpState::RTS);
        qp
    }

    pub(crate) fn ring(&self) -> Ring {
        let mut log = self.log();
        log.rings += 1;
        Ring { number: log.rings, pushed: Vec::new(), plain: self.clone() }
    }
}

/// Makes every ioctl of this thread succeed without effect.
pub(crate) fn succeed_ioctls() {
    answer_ioctls(0);
}

/// Makes every ioctl of this thread fail, also after [`succeed_ioctls`].
pub(crate) fn refuse_ioctls() {
    answer_ioctls(libc::ENOTTY as u32);
}

/// The filter that was installed last decides.
fn answer_ioctls(errno: u32) {
    let statement = |code: u32, jt, jf, k| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut filter = [
        // The number of the system call.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 0, 1, libc::SYS_ioctl as u32),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ERRNO | errno),
        statement(libc::BPF_RET | libc::BPF_K, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the calls change this thread only, and the program is valid.
    let installed = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
            | libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
    };
    assert_eq!(installed, 0, "{}", std::io::Error::last_os_error());
}

/// Whether `work` ends in time on another thread. It does not if it needs a lock that this thread holds.
pub(crate) fn ends(work: impl FnOnce() + Send + 'static) -> bool {
    let (ended, wait) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        work();
        // It fails if the test has given up.
        let _ = ended.send(());
    });
    wait.recv_timeout(std::time::Duration::from_secs(5)).is_ok()
}

/// What tests of tasks use.
pub(crate) mod tasks {
    use std::io;
    use std::os::fd::OwnedFd;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
    use std::task::{Context, Poll, Wake};

    use crate::runtime::{Readable, Runtime};

    /// A runtime whose descriptors are not readable, or once. Blocking work runs at once.
    #[derive(Clone, Copy, Debug)]
    pub(crate) enum Never {
        /// Waiting for a descriptor fails the test.
        Waits,
        Readable,
        ReadableAgain,
    }

    #[derive(Debug)]
    struct Descriptor(Never, AtomicBool);

    impl Runtime for Never {
        fn register(&self, _: Arc<OwnedFd>) -> io::Result<Box<dyn Readable>> {
            Ok(Box::new(Descriptor(*self, AtomicBool::new(false))))
        }

        fn blocking(&self, work: Box<dyn FnOnce() + Send>) -> io::Result<()> {
            work();
            Ok(())
        }
    }

    impl Readable for Descriptor {
        fn poll_readable(&self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            match self.0 {
                Never::Waits => panic!("it waits for the descriptor"),
                Never::ReadableAgain if !self.1.swap(true, Ordering::Relaxed) => Poll::Ready(Ok(())),
                Never::Readable | Never::ReadableAgain => Poll::Pending,
            }
        }
    }

    /// Counts how often it was woken.
    #[derive(Default)]
    pub(crate) struct Wakes(pub(crate) AtomicUsize);

    impl Wake for Wakes {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A completion of the request `wr_id`.
pub(crate) fn completion(wr_id: u64, status: WcStatus) -> WorkCompletion {
    WorkCompletion {
        wr_id,
        status,
        opcode: WcOpcode::RECV,
        byte_len: 1,
        qp_num: 1,
        ..WorkCompletion::default()
    }
}

/// A queue of any kind.
pub(crate) struct Ring {
    pub(crate) number: u32,
    pub(crate) pushed: Vec<u64>,
    plain: Plain,
}

impl Ring {
    fn push_any<O>(&mut self, request: &SendRequest<'_, O>) -> Result<(), PushError> {
        let hook = {
            let mut log = self.plain.log();
            if let Some(rejection) = log.send_rejections.pop_front() {
                return Err(rejection);
            }
            if let Payload::Sges(sges) = request.payload {
                log.sges.push(sges.len());
            }
            if request.flags.contains(SendFlags::FENCE) {
                log.fenced.push(request.wr_id);
            }
            if request.flags.contains(SendFlags::SIGNALED) {
                log.signaled.push(request.wr_id);
            }
            log.pushed.clone()
        };
        self.pushed.push(request.wr_id);
        if let Hook(Some(hook)) = hook {
            hook(request.wr_id);
        }
        Ok(())
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.plain.log().freed.push(self.number);
    }
}

// SAFETY: there is no device, so nothing accesses the memory of requests, and rings are plain
// vectors.
unsafe impl SendQueue for Ring {
    type Ah = ();

    fn capacity(&self) -> u32 {
        16
    }

    unsafe fn push(&mut self, request: &SendRequest<'_>) -> Result<(), PushError> {
        if matches!(request.operation, bareverbs_provider::work::Operation::Read(_)) {
            self.plain.log().reads.push(request.wr_id);
        }
        self.push_any(request)
    }

    unsafe fn push_datagram(&mut self, request: &SendRequest<'_, Datagram<'_, ()>>) -> Result<(), PushError> {
        self.push_any(request)
    }

    unsafe fn push_xrc(&mut self, request: &SendRequest<'_, XrcOperation>) -> Result<(), PushError> {
        self.push_any(request)
    }

    unsafe fn push_frame(&mut self, request: &SendRequest<'_, Frame<'_>>) -> Result<(), PushError> {
        self.push_any(request)
    }

    fn ring(&mut self) -> Result<(), DoorbellError> {
        let mut log = self.plain.log();
        if let Some(refused) = log.refusals.pop_front() {
            self.pushed.clear();
            return Err(refused);
        }
        log.doorbells += 1;
        log.sent.extend(self.pushed.drain(..).map(|request| (self.number, request)));
        Ok(())
    }

    fn abort(&mut self) {
        self.pushed.clear();
    }

    unsafe fn reset(&mut self) {
        self.pushed.clear();
        self.plain.log().reset.push(self.number);
    }
}

// SAFETY: there is no kernel and no device: `modify` records the request.
unsafe impl QpControl for Ring {
    unsafe fn modify(&mut self, _: &DeviceFile, request: &ModifyQpReq) -> Result<(), IoctlError> {
        let hook = {
            let mut log = self.plain.log();
            log.answers.pop_front().unwrap_or(Ok(()))?;
            log.states.push(request.qp_state);
            log.modified.clone()
        };
        if let Hook(Some(hook)) = hook {
            hook(request.qp_state.0.into());
        }
        Ok(())
    }

    fn modified(&mut self, request: &ModifyQpReq) {
        self.plain.log().notified.push(request.qp_state);
    }

    fn needs_second_reset(&self) -> bool {
        self.plain.log().needs_second_reset
    }

    fn needs_error_before_destroy(&self) -> bool {
        self.plain.log().needs_error_before_destroy
    }
}

// SAFETY: there is no device, so nothing accesses the memory of requests, and rings are plain
// vectors.
unsafe impl RecvQueue for Ring {
    fn capacity(&self) -> u32 {
        16
    }

    unsafe fn push(&mut self, request: &RecvRequest<'_>) -> Result<(), PushError> {
        let (rejection, panics) = {
            let mut log = self.plain.log();
            (log.rejections.pop_front(), log.panics)
        };
        if let Some(rejection) = rejection {
            return Err(rejection);
        }
        self.pushed.push(request.wr_id);
        assert!(!panics, "the test asked for it");
        Ok(())
    }

    fn ring(&mut self) {
        self.plain.log().received.append(&mut self.pushed);
    }

    fn abort(&mut self) {
        self.pushed.clear();
    }

    fn abandon(&mut self) {
        self.plain.log().abandoned += 1;
    }

    unsafe fn reset(&mut self) {
        self.pushed.clear();
        self.plain.log().reset.push(self.number);
    }
}

// SAFETY: there is no device, so no memory is in use whatever the completions say.
unsafe impl CompletionQueue for Ring {
    type Completion<'a> = Taken;

    fn capacity(&self) -> u32 {
        8
    }

    fn next(&mut self) -> Option<Taken> {
        let (panics, next, hook) = {
            let mut log = self.plain.log();
            let panics = log.poll_panics > 0;
            log.poll_panics -= u32::from(panics);
            (panics, if panics { None } else { log.completions.pop_front() }, log.empty.clone())
        };
        assert!(!panics, "the test asked for it");
        if let (None, Hook(Some(hook))) = (next, hook) {
            hook(0);
        }
        next.map(Taken)
    }

    fn visit_next<V: Visitor>(&mut self, visitor: V) -> V::Output {
        if self.plain.log().declines {
            return visitor.declined();
        }
        match self.next() {
            Some(completion) => visitor.completion(completion),
            None => visitor.empty(),
        }
    }

    fn release(&mut self) {}

    fn arm(&mut self, _: bool) -> Result<(), IoctlError> {
        let hook = {
            let mut log = self.plain.log();
            log.arms += 1;
            log.armed.clone()
        };
        if let Hook(Some(hook)) = hook {
            hook(0);
        }
        Ok(())
    }
}

/// A completion returned by a poll.
pub(crate) struct Taken(WorkCompletion);

macro_rules! fields {
    ($($field:ident: $ty:ty),*) => {$(
        fn $field(&self) -> $ty {
            self.0.$field
        }
    )*};
}

impl Completion for Taken {
    fields! {
        wr_id: u64, status: WcStatus, opcode: WcOpcode, byte_len: u32, qp_num: u32, src_qp: u32, vendor_err: u32,
        wc_flags: WcFlags, slid: u16, sl: u8, dlid_path_bits: u8
    }

    fn imm(&self) -> Option<Imm> {
        None
    }

    fn invalidated_rkey(&self) -> Option<u32> {
        None
    }

    fn to_value(&self) -> WorkCompletion {
        self.0
    }
}

// SAFETY: there is no device, so nothing accesses the memory of requests or of queues.
unsafe impl Provider for Plain {
    type Cq = Ring;
    type Sq = Ring;
    type Rq = Ring;
    type Srq = Ring;
    type Ah = ();

    fn explain(status: WcStatus) -> Option<&'static str> {
        (status == WcStatus::FATAL_ERR).then_some("on plain memory also: never")
    }

    fn drives(_: u32) -> bool {
        false
    }

    fn open(_: Arc<DeviceFile>) -> Result<Self, IoctlError> {
        Ok(Self::default())
    }

    fn capabilities(&self) -> Capabilities {
        let log = self.log();
        let (mr_quirks, iwarp) = (log.mr_quirks, log.iwarp);
        Capabilities { num_comp_vectors: 1, mr_quirks, iwarp, ..Capabilities::default() }
    }

    fn alloc_pd(&self) -> Result<u32, IoctlError> {
        Ok(1)
    }

    unsafe fn create_cq(&self, request: &CqRequest<'_>) -> Result<CreatedCq<Self>, CreateError> {
        Ok(CreatedCq { handle: 1, entries: request.entries, queue: self.ring() })
    }

    unsafe fn create_qp(&self, request: &QpRequest<'_>) -> Result<CreatedQp<Self>, CreateError> {
        let (sq, rq) = (self.ring(), request.srq.is_none().then(|| self.ring()));
        Ok(CreatedQp { handle: 1, qp_num: sq.number, cap: request.cap, sq, rq })
    }

    unsafe fn create_srq(&self, request: &SrqRequest<'_>) -> Result<CreatedSrq<Self>, CreateError> {
        let SrqRequest { max_wr, max_sge, .. } = *request;
        Ok(CreatedSrq { handle: 1, max_wr, max_sge, srq_num: 1, queue: self.ring() })
    }

    unsafe fn modify_srq(&self, _: u32, _: &mut Ring, _: SrqChange) -> Result<(), CreateError> {
        Ok(())
    }

    fn create_ah(&self, _: &AhRequest) -> Result<CreatedAh<Self>, CreateError> {
        Ok(CreatedAh { handle: 1, ah: () })
    }
}
