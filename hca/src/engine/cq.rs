//! Completion queues.

mod compress;

pub(crate) use compress::LONGEST as LONGEST_RUN;
pub use compress::MiniFormat;
use compress::Run;

use super::layout::{cqe as field, error_cqe};
use super::ring::Ring;
use crate::memory::{DmaFault, DmaMap};

const COUNTER_MASK: u32 = 0xff_ffff;
/// How long a message the first half of an entry holds.
const NARROW: usize = 32;

/// What a completion queue is made of.
#[derive(Clone, Debug, Default)]
pub struct CqSetup {
    /// The entries' buffer.
    pub ring: Ring,
    /// The number of entries, as a power of two.
    pub log_size: u8,
    /// Whether entries have 128 bytes rather than 64.
    pub wide: bool,
    /// The event queue.
    pub eq: u32,
    /// Guest address of the doorbell record.
    pub doorbell: u64,
    /// Whether entries may overwrite unread ones.
    pub ignore_overrun: bool,
    /// Whether runs of alike completions are compressed; only entries of 64 bytes can be.
    pub compression: Option<MiniFormat>,
}

/// Opcodes of completion entries (`MLX5_CQE_*` in `include/linux/mlx5/device.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum CqeOpcode {
    Requester = 0,
    ReceiveWriteImmediate = 1,
    Receive = 2,
    ReceiveImmediate = 3,
    ReceiveInvalidate = 4,
    Resize = 5,
    RequesterError = 13,
    ResponderError = 14,
}

/// Why a work request failed (`MLX5_CQE_SYNDROME_*` in `include/linux/mlx5/device.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Syndrome {
    LocalLength = 0x01,
    LocalQpOperation = 0x02,
    LocalProtection = 0x04,
    Flushed = 0x05,
    MemoryWindowBind = 0x06,
    BadResponse = 0x10,
    RemoteInvalidRequest = 0x12,
    RemoteAccess = 0x13,
    RemoteOperation = 0x14,
    TransportRetriesExceeded = 0x15,
    RnrRetriesExceeded = 0x16,
}

impl Syndrome {
    /// A vendor's code beside the syndrome; only people read it.
    const fn vendor(self) -> u8 {
        match self {
            Self::Flushed => 0xf5,
            Self::TransportRetriesExceeded => 0x81,
            Self::RnrRetriesExceeded => 0x87,
            Self::RemoteAccess => 0x88,
            Self::RemoteInvalidRequest => 0x8a,
            Self::RemoteOperation => 0x89,
            _ => 0x52,
        }
    }
}

/// In place of a user's index: completions are of version 0, which names queues by their numbers.
pub(crate) const NO_USER_INDEX: u32 = 0xff_ffff;

/// A completion, before it is an entry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completion<'a> {
    pub(crate) opcode: CqeOpcode,
    pub(crate) syndrome: Option<Syndrome>,
    pub(crate) qp: u32,
    /// The user's index of the QP or SRQ; [`NO_USER_INDEX`] for an entry of version 0.
    pub(crate) user_index: u32,
    /// The shared queue that a receive came from; 0 for none. It is told in entries of version 0.
    pub(crate) srq: u32,
    /// Opcode of the send work request.
    pub(crate) send_opcode: u8,
    pub(crate) wqe_counter: u16,
    pub(crate) byte_count: u32,
    pub(crate) immediate: u32,
    pub(crate) source_lid: u16,
    /// Flags and source QP of a datagram.
    pub(crate) flags_rqpn: u32,
    /// Ones' complement sum of a frame's payload.
    pub(crate) checksum: u16,
    /// The VLAN tag that was taken out of a frame.
    pub(crate) vlan: Option<u16>,
    pub(crate) solicited: bool,
    /// A message that the entry carries itself, at most 32 bytes, or 64 in a wide entry.
    pub(crate) inline: &'a [u8],
}

impl Completion<'_> {
    pub(crate) fn new(opcode: CqeOpcode, qp: u32, user_index: u32, wqe_counter: u16) -> Self {
        Self {
            opcode,
            syndrome: None,
            qp,
            user_index,
            srq: 0,
            send_opcode: 0,
            wqe_counter,
            byte_count: 0,
            immediate: 0,
            source_lid: 0,
            flags_rqpn: 0,
            checksum: 0,
            vlan: None,
            solicited: false,
            inline: &[],
        }
    }

    /// The 64 bytes, owner bit excepted.
    fn encode(&self, now: u64) -> [u8; 64] {
        let mut entry = [0; field::SIZE];
        let mut put = |at: usize, bytes: &[u8]| entry[at..at + bytes.len()].copy_from_slice(bytes);
        let queue = if self.user_index == NO_USER_INDEX { self.srq } else { self.user_index };
        put(field::SRQN, &queue.to_be_bytes());
        match self.syndrome {
            Some(syndrome) => {
                put(error_cqe::VENDOR_ERR_SYND, &[syndrome.vendor()]);
                put(error_cqe::SYNDROME, &[syndrome as u8]);
            }
            None => {
                put(field::CHECK_SUM, &self.checksum.to_be_bytes());
                put(field::SLID, &self.source_lid.to_be_bytes());
                put(field::FLAGS_RQPN, &self.flags_rqpn.to_be_bytes());
                put(field::IMMEDIATE, &self.immediate.to_be_bytes());
                put(field::BYTE_CNT, &self.byte_count.to_be_bytes());
                put(field::TIMESTAMP_H, &now.to_be_bytes());
                if let Some(vlan) = self.vlan {
                    /// `cqe_has_vlan` of the kernel's `device.h`.
                    const HAS_VLAN: u8 = 1 << 0;
                    put(field::L4_L3_HDR_TYPE, &[HAS_VLAN]);
                    put(field::VLAN_INFO, &vlan.to_be_bytes());
                }
            }
        }
        let opcode_qpn = u32::from(self.send_opcode) << 24 | self.qp & 0xff_ffff;
        put(field::SOP_DROP_QPN, &opcode_qpn.to_be_bytes());
        put(field::WQE_COUNTER, &self.wqe_counter.to_be_bytes());
        put(field::OP_OWN, &[(self.opcode as u8) << 4 | u8::from(self.solicited) << 1]);
        entry
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Armed {
    No,
    Solicited,
    Any,
}

/// A completion queue.
pub(crate) struct Cq {
    pub(crate) setup: CqSetup,
    pub(crate) producer: u32,
    /// The consumer index as last read or told.
    consumer: u32,
    /// The producer index after the last entry that a solicited arm waits for.
    solicited: u32,
    armed: Armed,
    /// The sequence number of the latest arming, and of the latest that an event answered.
    sequence: u8,
    answered: Option<u8>,
    /// Whether entries were lost; nothing is written any more.
    pub(crate) failed: bool,
    pub(crate) moderation: Moderation,
    run: Run,
}

/// When events are held back.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Moderation {
    /// Completions since the last event that raise the next one at once.
    pub(crate) count: u16,
    /// Nanoseconds after which an event comes anyway.
    pub(crate) period: u64,
    pub(crate) waiting: u16,
    pub(crate) deadline: Option<u64>,
}

impl Moderation {
    pub(crate) fn new(count: u16, microseconds: u16) -> Self {
        Self { count, period: u64::from(microseconds) * 1000, ..Self::default() }
    }

    fn active(&self) -> bool {
        self.count > 1 && self.period > 0
    }
}

/// What follows from a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Quiet,
    Event,
    /// An event is due later, at the moderation's deadline.
    Delayed,
    /// Completions are held back until the run ends.
    Held,
    Overrun,
}

impl Outcome {
    /// This one, or what came after it if this asks for nothing.
    fn or(self, after: Self) -> Self {
        if self == Self::Quiet { after } else { self }
    }
}

impl Cq {
    pub(crate) fn new(setup: CqSetup, moderation: Moderation) -> Self {
        Self {
            setup,
            producer: 0,
            consumer: 0,
            solicited: 0,
            armed: Armed::No,
            sequence: 0,
            answered: None,
            failed: false,
            moderation,
            run: Run::default(),
        }
    }

    fn size(&self) -> u32 {
        1 << self.setup.log_size
    }

    fn outstanding(&self) -> u32 {
        self.producer.wrapping_sub(self.consumer) & COUNTER_MASK
    }

    fn read_consumer(&mut self, memory: &DmaMap) {
        if let Ok(consumer) = memory.read_be32(self.setup.doorbell) {
            self.consumer = consumer & COUNTER_MASK;
        }
    }

    /// Reports a completion, now or with others that are like it.
    pub(crate) fn post(&mut self, memory: &DmaMap, now: u64, completion: &Completion<'_>) -> Outcome {
        if self.failed {
            return Outcome::Quiet;
        }
        let held = self.run.entries.len() as u32;
        if self.outstanding() + held >= self.size() && !self.setup.ignore_overrun {
            self.read_consumer(memory);
            if self.outstanding() + held >= self.size() {
                self.failed = true;
                return Outcome::Overrun;
            }
        }
        let mut entry = completion.encode(now);
        let Some(format) = self.setup.compression else {
            return self.post_entry(memory, now, &mut entry, completion);
        };
        let takes = completion.inline.is_empty() && Run::takes(&entry);
        let mut outcome = Outcome::Quiet;
        if !takes || !self.run.continues(&entry, format) || held as usize >= LONGEST_RUN {
            outcome = self.end_run(memory, now);
        }
        if takes {
            self.run.entries.push(entry);
            outcome.or(Outcome::Held)
        } else {
            outcome.or(self.post_entry(memory, now, &mut entry, completion))
        }
    }

    fn post_entry(
        &mut self,
        memory: &DmaMap,
        now: u64,
        entry: &mut [u8; 64],
        completion: &Completion<'_>,
    ) -> Outcome {
        let slot = self.slot(0);
        entry[field::OP_OWN] |= self.owner();
        if self.write(memory, slot, entry, completion.inline).is_err() {
            self.failed = true;
            return Outcome::Overrun;
        }
        self.wrote(1, completion.solicited || completion.syndrome.is_some(), now)
    }

    /// Writes the completions that were held back in the hope of more like them.
    pub(crate) fn end_run(&mut self, memory: &DmaMap, now: u64) -> Outcome {
        let (Some(format), false) = (self.setup.compression, self.run.entries.is_empty()) else {
            return Outcome::Quiet;
        };
        let mut run = std::mem::take(&mut self.run);
        let count = run.entries.len() as u32;
        let written = if count == 1 {
            run.entries[0][field::OP_OWN] |= self.owner();
            self.setup.ring.publish(memory, self.slot(0) * 64, &run.entries[0])
        } else {
            let mut title = run.title();
            title[field::OP_OWN] |= self.owner();
            run.arrays(format)
                .try_for_each(|(ahead, array)| self.setup.ring.publish(memory, self.slot(ahead) * 64, &array))
                .and_then(|()| self.setup.ring.publish(memory, self.slot(0) * 64, &title))
        };
        if written.is_err() {
            self.failed = true;
            return Outcome::Overrun;
        }
        const SOLICITED: u8 = 1 << 1;
        let solicited = run.entries.iter().any(|entry| entry[field::OP_OWN] & SOLICITED != 0);
        run.entries.clear();
        self.run = run;
        self.wrote(count, solicited, now)
    }

    /// The slot so many after the next one.
    fn slot(&self, ahead: u32) -> u64 {
        u64::from(self.producer.wrapping_add(ahead) & (self.size() - 1))
    }

    fn owner(&self) -> u8 {
        (self.producer >> self.setup.log_size & 1) as u8
    }

    /// Counts entries that were written, and says whether somebody waited for them.
    fn wrote(&mut self, count: u32, solicited: bool, now: u64) -> Outcome {
        self.producer = self.producer.wrapping_add(count) & COUNTER_MASK;
        if solicited {
            self.solicited = self.producer;
        }
        match self.armed {
            Armed::No => Outcome::Quiet,
            Armed::Solicited if !solicited => Outcome::Quiet,
            _ => self.event_or_wait(now),
        }
    }

    /// Writes an entry, with a message inside: in its own first half, or in the first half of a
    /// wide one.
    fn write(&self, memory: &DmaMap, slot: u64, entry: &mut [u8; 64], inline: &[u8]) -> Result<(), DmaFault> {
        /// Formats of entries, `MLX5_INLINE_DATA32_SEG` and `MLX5_INLINE_DATA64_SEG`.
        const IN_FIRST_HALF: u8 = 1 << 2;
        const IN_WIDE: u8 = 2 << 2;
        if !inline.is_empty() && inline.len() <= NARROW {
            entry[..inline.len()].copy_from_slice(inline);
            entry[field::OP_OWN] |= IN_FIRST_HALF;
        }
        if !self.setup.wide {
            return self.setup.ring.publish(memory, slot * 64, entry);
        }
        if inline.len() > NARROW {
            entry[field::OP_OWN] |= IN_WIDE;
            self.setup.ring.publish(memory, slot * 128, inline)?;
        }
        self.setup.ring.publish(memory, slot * 128 + 64, entry)
    }

    fn event_or_wait(&mut self, now: u64) -> Outcome {
        if self.moderation.active() {
            self.moderation.waiting += 1;
            if self.moderation.waiting < self.moderation.count {
                let fresh = self.moderation.deadline.is_none();
                self.moderation.deadline.get_or_insert(now + self.moderation.period);
                return if fresh { Outcome::Delayed } else { Outcome::Quiet };
            }
        }
        self.disarm();
        Outcome::Event
    }

    /// Changes when events are held back, which begins anew for one that is.
    pub(crate) fn moderate(&mut self, moderation: Moderation, now: u64) -> Outcome {
        let held_back = self.moderation.deadline.is_some();
        self.moderation = moderation;
        if held_back { self.event_or_wait(now) } else { Outcome::Quiet }
    }

    fn disarm(&mut self) {
        self.answered = Some(self.sequence);
        self.armed = Armed::No;
        self.moderation.waiting = 0;
        self.moderation.deadline = None;
    }

    /// Whether the moderation's time is up and an event must go out.
    pub(crate) fn period_ended(&mut self, now: u64) -> bool {
        let due = self.moderation.deadline.is_some_and(|deadline| deadline <= now) && self.armed != Armed::No;
        if due {
            self.disarm();
        }
        due
    }

    /// The driver rang the arm doorbell.
    pub(crate) fn arm(&mut self, consumer: u32, solicited_only: bool, sequence: u8, now: u64) -> Outcome {
        self.consumer = consumer & COUNTER_MASK;
        if self.answered == Some(sequence) {
            return Outcome::Quiet;
        }
        // Whoever waits for any completion isn't satisfied with less by asking again.
        if !(self.armed == Armed::Any && self.sequence == sequence) {
            self.armed = if solicited_only { Armed::Solicited } else { Armed::Any };
        }
        self.sequence = sequence;
        let news = if self.armed == Armed::Solicited {
            let unread = self.solicited.wrapping_sub(self.consumer) & COUNTER_MASK;
            unread != 0 && unread <= self.outstanding()
        } else {
            self.outstanding() != 0
        };
        if news { self.event_or_wait(now) } else { Outcome::Quiet }
    }

    /// Continues in another buffer; `false` if the unread entries don't fit.
    pub(crate) fn resize(&mut self, memory: &DmaMap, now: u64, ring: Ring, log_size: u8) -> bool {
        self.end_run(memory, now);
        self.read_consumer(memory);
        if self.outstanding() > 1 << log_size {
            return false;
        }
        let marker = Completion::new(CqeOpcode::Resize, 0, 0, 0);
        if self.outstanding() < self.size() {
            // It is no completion, so who waits for one goes on waiting.
            let waiting = std::mem::replace(&mut self.armed, Armed::No);
            self.post(memory, now, &marker);
            self.armed = waiting;
        }
        self.setup.ring = ring;
        self.setup.log_size = log_size;
        true
    }
}
