//! Event queues.

use super::ring::Ring;
use crate::memory::DmaMap;

/// Sink of MSI-X interrupts.
pub trait Interrupts: Send {
    /// Raises an MSI-X vector.
    fn raise(&self, vector: u16);
}

/// Parameters of an EQ.
#[derive(Clone, Debug)]
pub struct EqSetup {
    /// The ring of EQEs.
    pub ring: Ring,
    /// Number of EQEs, log2.
    pub log_size: u8,
    /// The MSI-X vector.
    pub vector: u16,
    /// Bit mask of the subscribed event types.
    pub events: [u64; 4],
}

/// Size of an EQE in bytes.
pub(crate) const EQE_SIZE: u64 = 64;
const COUNTER_MASK: u32 = 0xff_ffff;

/// Event types, numbered as in `enum mlx5_event` of `include/linux/mlx5/device.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
#[expect(missing_docs, reason = "the names are those of the header")]
pub enum EventKind {
    Completion = 0x00,
    PathMigrated = 0x01,
    CommunicationEstablished = 0x02,
    SendQueueDrained = 0x03,
    CqError = 0x04,
    WqCatastrophic = 0x05,
    PathMigrationFailed = 0x07,
    PortChange = 0x09,
    Command = 0x0a,
    PageFault = 0x0c,
    InvalidRequest = 0x10,
    AccessError = 0x11,
    SrqCatastrophic = 0x12,
    SrqLastWqe = 0x13,
    SrqLimit = 0x14,
}

/// Subtypes of [`EventKind::PortChange`] (`MLX5_PORT_CHANGE_SUBTYPE_*` in
/// `include/linux/mlx5/device.h`).
#[derive(Clone, Copy)]
#[repr(u8)]
pub(crate) enum PortEvent {
    Down = 1,
    Active = 4,
    Lid = 6,
    Gid = 8,
}

/// An EQ.
pub(crate) struct Eq {
    pub(crate) setup: EqSetup,
    pub(crate) producer: u32,
    consumer: u32,
    armed: bool,
    /// Whether an EQE was lost because the EQ was full.
    pub(crate) overrun: bool,
}

impl Eq {
    pub(crate) fn new(setup: EqSetup) -> Self {
        Self { setup, producer: 0, consumer: 0, armed: false, overrun: false }
    }

    pub(crate) fn wants(&self, kind: EventKind) -> bool {
        self.setup.events[kind as usize / 64] >> (kind as usize % 64) & 1 != 0
    }

    /// Posts an EQE and raises the interrupt if the EQ is armed. Returns `false` if the EQ is full.
    pub(crate) fn post(
        &mut self,
        memory: &DmaMap,
        interrupts: &dyn Interrupts,
        kind: EventKind,
        sub_kind: u8,
        data: &[u8; 28],
    ) -> bool {
        let size = 1u32 << self.setup.log_size;
        if self.producer.wrapping_sub(self.consumer) & COUNTER_MASK >= size {
            self.overrun = true;
            return false;
        }
        let mut entry = [0; EQE_SIZE as usize];
        entry[1] = kind as u8;
        entry[3] = sub_kind;
        entry[32..60].copy_from_slice(data);
        entry[63] = (self.producer >> self.setup.log_size & 1) as u8;
        let slot = u64::from(self.producer & (size - 1));
        if self.setup.ring.publish(memory, slot * EQE_SIZE, &entry).is_err() {
            self.overrun = true;
            return false;
        }
        self.producer = self.producer.wrapping_add(1) & COUNTER_MASK;
        if std::mem::take(&mut self.armed) {
            interrupts.raise(self.setup.vector);
        }
        true
    }

    /// Sets the consumer index and, if asked, arms the EQ.
    pub(crate) fn consumed(&mut self, interrupts: &dyn Interrupts, consumer: u32, arm: bool) {
        self.consumer = consumer & COUNTER_MASK;
        if arm {
            self.armed = self.producer == self.consumer;
            if !self.armed {
                interrupts.raise(self.setup.vector);
            }
        }
    }
}
