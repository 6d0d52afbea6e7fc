//! A device without a kernel: the engine over memory of this process. Stores to a page of that
//! memory ring its doorbells.
//!
//! The program that creates the device is driver and application at once. The device reaches
//! [`Memory`] at the addresses of this process. The page of [`InProcessHca::uar`] replaces the UAR
//! registers: a provider stores doorbells and BlueFlame copies there as on a real device, and
//! [`InProcessHca::run`] reads them.
//!
//! The device works only inside `run` and [`InProcessHca::pass`], on the calling thread. Its clock
//! advances only in `pass`. Every run is therefore deterministic, and a provider's instructions can
//! be counted.
//!
//! ```
//! use bareverbs_hca::engine::packet::Transport;
//! use bareverbs_hca::engine::{CqSetup, QpSetup, ReceiveQueue, Service};
//! use bareverbs_hca::{Link, InProcessHca};
//!
//! let mut device = InProcessHca::new(Link::InfiniBand)?;
//! let memory = device.allocate(0x4000)?;
//! let cq = device.engine().create_cq(CqSetup {
//!     ring: memory.ring(0, 64 << 4),
//!     log_size: 4,
//!     eq: InProcessHca::EVENTS,
//!     doorbell: memory.address() + 0x3000,
//!     ..CqSetup::default()
//! })?;
//! let setup = |ring: usize, doorbell: u64| QpSetup {
//!     service: Service::Connected(Transport::Rc),
//!     pd: 1,
//!     ring: memory.ring(ring, 64 << 4),
//!     log_send_size: Some(4),
//!     receive: ReceiveQueue::None,
//!     doorbell: memory.address() + doorbell,
//!     send_cq: cq,
//!     receive_cq: cq,
//!     ..QpSetup::default()
//! };
//! let left = device.engine().create_qp(setup(0x1000, 0x3040), Default::default())?;
//! let right = device.engine().create_qp(setup(0x2000, 0x3080), Default::default())?;
//! device.connect(left, right)?;
//!
//! // A NOP of one unit, in the ring, counted, and rung.
//! let wqe = [[0, 0, 0, 0], (left << 8 | 1).to_be_bytes(), [0, 0, 0, 8], [0; 4]].concat();
//! memory.write(0x1000, &wqe);
//! memory.write(0x3044, &1u32.to_be_bytes());
//! device.store(0x800, &wqe[..8]);
//! device.run();
//! assert_eq!(memory.read(63, 1)[0] >> 4, 0, "a requester's completion");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::fmt;
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::engine::doorbell::{ARM_CQ, ARM_EQ, BLUEFLAME, Doorbell, READ_EQ, SEND};
use crate::engine::packet::Route;
use crate::engine::{
    Engine, EngineError, EqSetup, Interrupts, Link, Packet, Port, QpAttributes, Ring, State,
};
use crate::memory::{ProcessMemory, take_word};

const PAGE: usize = 0x1000;
const LOG_PAGE: u32 = 12;

/// Memory of this process that the device reaches at the same addresses: whole pages, initially
/// zero.
///
/// The pages are freed when the device and every clone are dropped. The device accesses them only
/// during [`InProcessHca::run`] and [`InProcessHca::pass`].
#[derive(Clone, Debug)]
pub struct Memory {
    pages: Arc<ProcessMemory>,
}

impl Memory {
    /// Start address, the same for this process and for the device.
    pub fn address(&self) -> u64 {
        self.pointer().as_ptr().expose_provenance() as u64
    }

    /// Pointer to the start. Accesses through it must be volatile or atomic. No reference into the
    /// memory may exist while the device runs.
    pub fn pointer(&self) -> NonNull<u8> {
        self.pages.pointer()
    }

    /// Length in bytes.
    pub fn length(&self) -> usize {
        self.pages.length()
    }

    /// Copies `length` bytes from offset `at`.
    ///
    /// # Panics
    /// If the range exceeds the memory.
    pub fn read(&self, at: usize, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        assert!(self.pages.read(at, &mut bytes), "{length} bytes at {at:#x} exceed the memory");
        bytes
    }

    /// Copies `bytes` to offset `at`.
    ///
    /// # Panics
    /// If the range exceeds the memory.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        assert!(self.pages.write(at, bytes), "{} bytes at {at:#x} exceed the memory", bytes.len());
    }

    /// A range of the memory as a queue buffer.
    ///
    /// # Panics
    /// If the range exceeds the memory.
    pub fn ring(&self, at: usize, length: usize) -> Ring {
        assert!(
            at.checked_add(length).is_some_and(|end| end <= self.length()),
            "the ring exceeds the memory"
        );
        ring(self.address() + at as u64, length)
    }
}

/// A range of addresses as a queue buffer.
fn ring(start: u64, length: usize) -> Ring {
    let inside = start % PAGE as u64;
    let pages = (start - inside..start + length as u64).step_by(PAGE).collect();
    Ring::new(pages, LOG_PAGE, inside, length as u64).unwrap_or_default()
}

#[derive(Default)]
struct Count(Arc<AtomicU32>);

impl Interrupts for Count {
    fn raise(&self, _vector: u16) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// A device over memory of this process, on a loopback wire.
pub struct InProcessHca {
    engine: Engine,
    uar: Memory,
    events: Memory,
    now: u64,
    interrupts: Arc<AtomicU32>,
    packets: Vec<Packet>,
    /// Transmitted Ethernet frames; they are not looped back.
    frames: Vec<Vec<u8>>,
}

impl fmt::Debug for InProcessHca {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InProcessHca").field("now", &self.now).finish_non_exhaustive()
    }
}

impl InProcessHca {
    /// The EQ that every device has: 64 entries at [`Self::events`], subscribed to all event types.
    pub const EVENTS: u32 = 1;
    const LOG_EVENTS: u8 = 6;

    /// Creates a device with its port up.
    pub fn new(link: Link) -> io::Result<Self> {
        let interrupts = Arc::<AtomicU32>::default();
        let mut engine = Engine::new(Port::new(link, 0), Box::new(Count(interrupts.clone())));
        let uar = allocate(&mut engine, PAGE)?;
        let events = allocate(&mut engine, 64 << Self::LOG_EVENTS)?;
        let setup = EqSetup {
            ring: events.ring(0, 64 << Self::LOG_EVENTS),
            log_size: Self::LOG_EVENTS,
            vector: 0,
            events: [u64::MAX; 4],
        };
        let eq = engine.create_eq(setup);
        debug_assert_eq!(eq, Ok(Self::EVENTS));
        let (packets, frames) = (Vec::new(), Vec::new());
        Ok(Self { engine, uar, events, now: 0, interrupts, packets, frames })
    }

    /// Allocates memory for queues and data.
    pub fn allocate(&mut self, bytes: usize) -> io::Result<Memory> {
        allocate(&mut self.engine, bytes)
    }

    /// Maps memory of the caller, in whole pages, for DMA by the device.
    ///
    /// # Safety
    ///
    /// The memory must be readable and writable until the device is dropped. While the device runs,
    /// all other accesses to it must be volatile or atomic.
    pub unsafe fn map_memory(&mut self, start: NonNull<u8>, length: usize) -> io::Result<()> {
        // SAFETY: the caller upholds the same contract.
        let memory = Arc::new(unsafe { ProcessMemory::borrowed(start, length) });
        self.engine.memory().map_shared(memory).map_err(io::Error::other)
    }

    /// Unmaps [mapped](Self::map_memory) memory, even under running work.
    pub fn take_back(&mut self, start: u64, length: usize) {
        self.engine.memory().unmap(start, length as u64);
    }

    /// A range of [mapped](Self::map_memory) memory as a queue buffer.
    pub fn ring_at(start: u64, length: usize) -> Ring {
        ring(start, length)
    }

    /// Unmaps memory, even under running work.
    pub fn revoke(&mut self, memory: &Memory) {
        self.engine.memory().unmap(memory.address(), memory.length() as u64);
    }

    /// The engine, which creates and destroys objects.
    pub fn engine(&mut self) -> &mut Engine {
        &mut self.engine
    }

    /// The doorbell page. It takes eight-byte stores at 0x20, 0x40 and 0x48, and doorbells or
    /// BlueFlame copies at 0x800 and every 0x100 bytes after it.
    pub fn uar(&self) -> &Memory {
        &self.uar
    }

    /// Stores to the doorbell page.
    pub fn store(&self, at: usize, bytes: &[u8]) {
        self.uar.write(at, bytes);
    }

    /// The entries of [`Self::EVENTS`].
    pub fn events(&self) -> &Memory {
        &self.events
    }

    /// Number of interrupts raised since creation.
    pub fn interrupts(&self) -> u32 {
        self.interrupts.load(Ordering::Relaxed)
    }

    /// Takes the frames transmitted since the last call.
    pub fn take_frames(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.frames)
    }

    /// The device's clock in nanoseconds.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Moves two QPs of this device from RESET to RTS, connected to each other, with all access
    /// rights and the timeouts of [`Self::attributes`].
    pub fn connect(&mut self, left: u32, right: u32) -> Result<(), EngineError> {
        for (qp, peer) in [(left, right), (right, left)] {
            let attributes = self.attributes(peer);
            for state in [State::Init, State::ReadyToReceive, State::ReadyToSend] {
                self.engine.modify_qp(qp, state, attributes.clone())?;
            }
        }
        Ok(())
    }

    /// The QP attributes that [`Self::connect`] sets, for a peer on this device.
    pub fn attributes(&self, peer: u32) -> QpAttributes {
        let lid = self.engine.port().lid;
        QpAttributes {
            remote_qp: peer,
            route: Route { source_lid: lid, destination_lid: lid, ..Route::default() },
            remote_read: true,
            remote_write: true,
            remote_atomic: true,
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
            min_rnr_timer: 1,
            retry_count: 7,
            rnr_retry: 7,
            ack_timeout: 14,
            ..QpAttributes::default()
        }
    }

    /// Reads the doorbell page and works until nothing is left to do at the current time.
    pub fn run(&mut self) {
        self.take_doorbells();
        loop {
            let more = self.engine.run(self.now);
            self.engine.take_outgoing(&mut self.packets, &mut self.frames);
            if !more && self.packets.is_empty() {
                return;
            }
            for packet in self.packets.drain(..) {
                if self.engine.port().answers_to(&packet.route) {
                    self.engine.receive(packet);
                }
            }
        }
    }

    /// Advances the clock by `nanoseconds` and runs the device at every timer in that interval.
    pub fn pass(&mut self, nanoseconds: u64) {
        let end = self.now.saturating_add(nanoseconds);
        self.run();
        while let Some(deadline) = self.engine.next_timer().filter(|deadline| *deadline <= end) {
            self.now = self.now.max(deadline);
            self.run();
        }
        self.now = end;
    }

    /// Reads the doorbells of another page than [`Self::uar`]: CQ arms and send doorbells. A
    /// BlueFlame copy counts as a doorbell of its first eight bytes, because other threads may
    /// still write the rest.
    ///
    /// # Safety
    ///
    /// The page must be aligned and valid for reads and writes. All other accesses to it must be
    /// volatile or atomic.
    pub unsafe fn take_doorbells_of(&mut self, page: NonNull<u8>) {
        let registers = (SEND..PAGE as u16).step_by(usize::from(BLUEFLAME));
        for at in [ARM_CQ].into_iter().chain(registers) {
            // SAFETY: this is an aligned word of the page, by this function's contract.
            let bytes = unsafe { take_word(page.add(usize::from(at)).cast().as_ptr()) }.to_ne_bytes();
            if bytes != [0; 8] {
                self.follow(at, &bytes);
            }
        }
    }

    fn take_doorbells(&mut self) {
        for at in [ARM_CQ, ARM_EQ, READ_EQ] {
            let bytes = self.take(at).to_ne_bytes();
            if bytes != [0; 8] {
                self.follow(at, &bytes);
            }
        }
        for at in (SEND..PAGE as u16).step_by(usize::from(BLUEFLAME)) {
            let mut buffer = [0; BLUEFLAME as usize];
            for (word, bytes) in buffer.chunks_exact_mut(8).enumerate() {
                bytes.copy_from_slice(&self.take(at + 8 * word as u16).to_ne_bytes());
            }
            let copied = buffer[8..].iter().any(|byte| *byte != 0);
            if copied || buffer[..8] != [0; 8] {
                self.follow(at, if copied { &buffer } else { &buffer[..8] });
            }
        }
    }

    /// Takes a stored word from the doorbell page and clears it.
    fn take(&self, at: u16) -> u64 {
        let word = self.uar.pages.word(usize::from(at));
        let none = AtomicU64::new(0);
        let word = word.unwrap_or(&none);
        // Most words are zero, and an exchange is more expensive than a load.
        if word.load(Ordering::Relaxed) == 0 { 0 } else { word.swap(0, Ordering::Acquire) }
    }

    fn follow(&mut self, at: u16, bytes: &[u8]) {
        if let Some(doorbell) = Doorbell::decode(at, bytes) {
            self.engine.ring(doorbell);
        }
    }
}

fn allocate(engine: &mut Engine, bytes: usize) -> io::Result<Memory> {
    let pages = Arc::new(ProcessMemory::new(bytes.next_multiple_of(PAGE))?);
    engine.memory().map_shared(pages.clone()).map_err(io::Error::other)?;
    Ok(Memory { pages })
}
