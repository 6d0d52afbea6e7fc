//! Completion queues.

mod compress;

pub(crate) use compress::LONGEST as LONGEST_RUN;
pub use compress::MiniFormat;
use compress::Run;

use bareverbs_transport::Status;

use super::layout::{cqe as field, error_cqe};
use super::ring::Ring;
use crate::memory::{DmaFault, DmaMap};

const COUNTER_MASK: u32 = 0xff_ffff;
/// Most bytes of inline data in the first half of a CQE.
const NARROW: usize = 32;

/// Parameters of a CQ.
#[derive(Clone, Debug, Default)]
pub struct CqSetup {
    /// The ring of CQEs.
    pub ring: Ring,
    /// Number of CQEs, log2.
    pub log_size: u8,
    /// Whether CQEs have 128 bytes rather than 64.
    pub wide: bool,
    /// The EQ of its completion events.
    pub eq: u32,
    /// Guest address of the doorbell record.
    pub doorbell: u64,
    /// Whether CQEs may overwrite unread ones (`ignore_overrun`).
    pub ignore_overrun: bool,
    /// Format of the mini CQEs if compression is enabled; only CQEs of 64 bytes are compressed.
    pub compression: Option<MiniFormat>,
}

/// CQE opcodes (`MLX5_CQE_*` in `include/linux/mlx5/device.h`).
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

/// The syndrome of an error CQE, and the vendor error syndrome, which is diagnostic only
/// (`MLX5_CQE_SYNDROME_*` in `include/linux/mlx5/device.h`).
const fn syndromes(status: Status) -> (u8, u8) {
    match status {
        Status::LocalLength => (0x01, 0x52),
        Status::LocalQpOperation => (0x02, 0x52),
        Status::LocalProtection => (0x04, 0x52),
        Status::Flushed => (0x05, 0xf5),
        Status::MemoryWindowBind => (0x06, 0x52),
        Status::BadResponse => (0x10, 0x52),
        Status::RemoteInvalidRequest => (0x12, 0x8a),
        Status::RemoteAccess => (0x13, 0x88),
        Status::RemoteOperation => (0x14, 0x89),
        Status::RetriesExceeded => (0x15, 0x81),
        Status::RnrRetriesExceeded => (0x16, 0x87),
    }
}

/// The user index that selects CQE version 0: the CQE names queues by their numbers.
pub(crate) const NO_USER_INDEX: u32 = 0xff_ffff;

/// The contents of a CQE before encoding.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Completion<'a> {
    pub(crate) opcode: CqeOpcode,
    pub(crate) status: Option<Status>,
    pub(crate) qp: u32,
    /// The user index of the QP or SRQ; [`NO_USER_INDEX`] for CQE version 0.
    pub(crate) user_index: u32,
    /// The SRQ of a receive; 0 for none. Only CQEs of version 0 carry it.
    pub(crate) srq: u32,
    /// Opcode of the send WQE.
    pub(crate) send_opcode: u8,
    pub(crate) wqe_counter: u16,
    pub(crate) byte_count: u32,
    pub(crate) immediate: u32,
    pub(crate) source_lid: u16,
    /// Flags and source QP of a datagram.
    pub(crate) flags_rqpn: u32,
    /// Ones' complement sum of a frame's payload.
    pub(crate) checksum: u16,
    /// The VLAN tag stripped from a frame.
    pub(crate) vlan: Option<u16>,
    pub(crate) solicited: bool,
    /// Inline scatter data: at most 32 bytes, or 64 in a CQE of 128 bytes.
    pub(crate) inline: &'a [u8],
}

impl Completion<'_> {
    pub(crate) fn new(opcode: CqeOpcode, qp: u32, user_index: u32, wqe_counter: u16) -> Self {
        Self {
            opcode,
            status: None,
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

    /// Encodes the 64 bytes without the owner bit.
    fn encode(&self, now: u64) -> [u8; 64] {
        let mut entry = [0; field::SIZE];
        let mut put = |at: usize, bytes: &[u8]| entry[at..at + bytes.len()].copy_from_slice(bytes);
        let queue = if self.user_index == NO_USER_INDEX { self.srq } else { self.user_index };
        put(field::SRQN, &queue.to_be_bytes());
        match self.status {
            Some(status) => {
                let (syndrome, vendor) = syndromes(status);
                put(error_cqe::VENDOR_ERR_SYND, &[vendor]);
                put(error_cqe::SYNDROME, &[syndrome]);
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

/// A CQ.
pub(crate) struct Cq {
    pub(crate) setup: CqSetup,
    pub(crate) producer: u32,
    /// The consumer index from the last read of the doorbell record or the last arm doorbell.
    consumer: u32,
    /// The producer index after the last solicited CQE.
    solicited: u32,
    armed: Armed,
    /// The arm sequence number of the latest arm doorbell. `answered` is that of the latest event.
    sequence: u8,
    answered: Option<u8>,
    /// Whether CQEs were lost, by an overrun or a DMA fault. Such a CQ writes no more CQEs.
    pub(crate) failed: bool,
    pub(crate) moderation: Moderation,
    run: Run,
}

/// CQ moderation.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Moderation {
    /// Number of CQEs after which an event is raised at once.
    pub(crate) count: u16,
    /// Nanoseconds after which an event is raised with fewer CQEs.
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

/// What the caller must do after a CQ operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Quiet,
    Event,
    /// An event is due at the moderation deadline.
    Delayed,
    /// CQEs are held back for compression until the run ends.
    Held,
    Overrun,
}

impl Outcome {
    /// `self`, or `after` if `self` is [`Outcome::Quiet`].
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

    /// Posts a completion. With compression it may be held back.
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
        self.wrote(1, completion.solicited || completion.status.is_some(), now)
    }

    /// Writes the CQEs that were held back for compression.
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

    /// The slot `ahead` entries after the producer index.
    fn slot(&self, ahead: u32) -> u64 {
        u64::from(self.producer.wrapping_add(ahead) & (self.size() - 1))
    }

    fn owner(&self) -> u8 {
        (self.producer >> self.setup.log_size & 1) as u8
    }

    /// Advances the producer index by `count` and returns whether an event is due.
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

    /// Writes a CQE with inline data: in its own first half, or in the first half of a 128-byte
    /// CQE.
    fn write(&self, memory: &DmaMap, slot: u64, entry: &mut [u8; 64], inline: &[u8]) -> Result<(), DmaFault> {
        /// CQE formats `MLX5_INLINE_DATA32_SEG` and `MLX5_INLINE_DATA64_SEG`.
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

    /// Changes the moderation. The period of a pending event starts anew.
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

    /// Whether the moderation period has expired on an armed CQ. If so the CQ is disarmed, and the
    /// caller raises the event.
    pub(crate) fn period_ended(&mut self, now: u64) -> bool {
        let due = self.moderation.deadline.is_some_and(|deadline| deadline <= now) && self.armed != Armed::No;
        if due {
            self.disarm();
        }
        due
    }

    /// Handles the arm doorbell.
    pub(crate) fn arm(&mut self, consumer: u32, solicited_only: bool, sequence: u8, now: u64) -> Outcome {
        self.consumer = consumer & COUNTER_MASK;
        if self.answered == Some(sequence) {
            return Outcome::Quiet;
        }
        // An arm for solicited CQEs doesn't weaken an arm for any CQE with the same sequence
        // number.
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

    /// Switches to another ring. Returns `false` if the unread CQEs don't fit.
    pub(crate) fn resize(&mut self, memory: &DmaMap, now: u64, ring: Ring, log_size: u8) -> bool {
        self.end_run(memory, now);
        self.read_consumer(memory);
        if self.outstanding() > 1 << log_size {
            return false;
        }
        let marker = Completion::new(CqeOpcode::Resize, 0, 0, 0);
        if self.outstanding() < self.size() {
            // The resize CQE raises no event and doesn't disarm the CQ.
            let waiting = std::mem::replace(&mut self.armed, Armed::No);
            self.post(memory, now, &marker);
            self.armed = waiting;
        }
        self.setup.ring = ring;
        self.setup.log_size = log_size;
        true
    }
}
