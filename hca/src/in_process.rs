//! A device without a kernel: its engine over memory of this process, rung by stores to a page of
//! that memory.
//!
//! The program that makes the device is driver and application at once. What it lays out in
//! [`Memory`] the device reaches at the same addresses, and the page of [`InProcessHca::uar`] takes
//! the place of the device's registers: a provider stores doorbells and BlueFlame copies there as
//! it would on a real device, and [`InProcessHca::run`] finds them. The device works only inside of
//! `run` and [`InProcessHca::pass`], on the thread that calls them, and its clock stands still
//! outside of `pass`, so that what happens is the same every time and what a provider costs can be
//! counted.
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

/// Memory of this process that the device reaches at its own addresses; whole pages, zeroed at
/// first.
///
/// It lives until the device and every clone are gone. The device touches it only while
/// [`InProcessHca::run`] or [`InProcessHca::pass`] is running.
#[derive(Clone, Debug)]
pub struct Memory {
    pages: Arc<ProcessMemory>,
}

impl Memory {
    /// Where it begins, for this process and for the device.
    pub fn address(&self) -> u64 {
        self.pointer().as_ptr().expose_provenance() as u64
    }

    /// Where it begins. Reads and writes through the pointer must be volatile or atomic, and no
    /// reference into the memory may be held while the device runs.
    pub fn pointer(&self) -> NonNull<u8> {
        self.pages.pointer()
    }

    /// Its length in bytes.
    pub fn length(&self) -> usize {
        self.pages.length()
    }

    /// Copies out of it.
    ///
    /// # Panics
    /// If the range isn't inside.
    pub fn read(&self, at: usize, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        assert!(self.pages.read(at, &mut bytes), "{length} bytes at {at:#x} leave the memory");
        bytes
    }

    /// Copies into it.
    ///
    /// # Panics
    /// If the range isn't inside.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        assert!(self.pages.write(at, bytes), "{} bytes at {at:#x} leave the memory", bytes.len());
    }

    /// A part of it as a queue's buffer.
    ///
    /// # Panics
    /// If the range isn't inside.
    pub fn ring(&self, at: usize, length: usize) -> Ring {
        assert!(at.checked_add(length).is_some_and(|end| end <= self.length()), "the ring leaves the memory");
        ring(self.address() + at as u64, length)
    }
}

/// A range of addresses as a queue's buffer.
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

/// A device over memory of this process, on a wire that leads back to itself.
pub struct InProcessHca {
    engine: Engine,
    uar: Memory,
    events: Memory,
    now: u64,
    interrupts: Arc<AtomicU32>,
    packets: Vec<Packet>,
    /// What was sent into the void.
    frames: Vec<Vec<u8>>,
}

impl InProcessHca {
    /// The event queue that every device has: 64 entries at [`Self::events`], all kinds of events.
    pub const EVENTS: u32 = 1;
    const LOG_EVENTS: u8 = 6;

    /// A fresh device with its port up.
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

    /// Memory for queues and data.
    pub fn allocate(&mut self, bytes: usize) -> io::Result<Memory> {
        allocate(&mut self.engine, bytes)
    }

    /// Lets the device reach memory that the caller allocated, in whole pages.
    ///
    /// # Safety
    ///
    /// The memory must be readable and writable until the device is dropped. While the device runs,
    /// nobody else may access it but by volatile or atomic accesses.
    pub unsafe fn lend(&mut self, start: NonNull<u8>, length: usize) -> io::Result<()> {
        // SAFETY: the caller's promise is the same.
        let memory = Arc::new(unsafe { ProcessMemory::lent(start, length) });
        self.engine.memory().map_shared(memory).map_err(io::Error::other)
    }

    /// Takes lent memory back, whatever the device is doing with it.
    pub fn take_back(&mut self, start: u64, length: usize) {
        self.engine.memory().unmap(start, length as u64);
    }

    /// A part of [lent](Self::lend) memory as a queue's buffer.
    pub fn ring_at(start: u64, length: usize) -> Ring {
        ring(start, length)
    }

    /// Takes memory away from the device, whatever it is doing with it.
    pub fn revoke(&mut self, memory: &Memory) {
        self.engine.memory().unmap(memory.address(), memory.length() as u64);
    }

    /// The engine, to make and destroy objects.
    pub fn engine(&mut self) -> &mut Engine {
        &mut self.engine
    }

    /// The page that takes doorbells and BlueFlame copies: eight-byte stores at 0x20, 0x40, 0x48,
    /// and at 0x800 and every 0x100 bytes from there.
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

    /// Interrupts that were raised since the beginning.
    pub fn interrupts(&self) -> u32 {
        self.interrupts.load(Ordering::Relaxed)
    }

    /// The frames that left since this was last asked.
    pub fn take_frames(&mut self) -> Vec<Vec<u8>> {
        std::mem::take(&mut self.frames)
    }

    /// Nanoseconds of the device's clock.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Takes two queue pairs of this device from reset to ready-to-send, connected to each other,
    /// with all rights and some patience.
    pub fn connect(&mut self, left: u32, right: u32) -> Result<(), EngineError> {
        for (qp, peer) in [(left, right), (right, left)] {
            let attributes = self.attributes(peer);
            for state in [State::Init, State::ReadyToReceive, State::ReadyToSend] {
                self.engine.move_qp(qp, state, attributes.clone())?;
            }
        }
        Ok(())
    }

    /// The attributes of a queue pair that [`Self::connect`] gives, for a peer on this device.
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

    /// Follows the doorbells and works until there is nothing to do at this instant.
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

    /// Lets so many nanoseconds pass, with what the device does in them.
    pub fn pass(&mut self, nanoseconds: u64) {
        let end = self.now.saturating_add(nanoseconds);
        self.run();
        while let Some(deadline) = self.engine.next_deadline().filter(|deadline| *deadline <= end) {
            self.now = self.now.max(deadline);
            self.run();
        }
        self.now = end;
    }

    /// Follows what stores have left in another doorbell page than [`Self::uar`]. A BlueFlame copy
    /// rings as its first eight bytes would: other threads may be writing the rest.
    ///
    /// # Safety
    ///
    /// The page must be aligned and valid for reads and writes. Others may only access it by
    /// volatile or atomic accesses.
    pub unsafe fn take_doorbells_of(&mut self, page: NonNull<u8>) {
        let registers = (SEND..PAGE as u16).step_by(usize::from(BLUEFLAME));
        for at in [ARM_CQ].into_iter().chain(registers) {
            // SAFETY: an aligned word of the page, by this function's contract.
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

    /// Takes a word that a store has left in the doorbell page.
    fn take(&self, at: u16) -> u64 {
        let word = self.uar.pages.word(usize::from(at));
        let none = AtomicU64::new(0);
        let word = word.unwrap_or(&none);
        // Most words are empty, and an exchange costs more than a load.
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
