//! Completion queues.

mod armed;
mod moved;
mod ring;
mod runs;
mod strays;
mod taken;

use std::mem::MaybeUninit;
use std::ptr::NonNull;
use std::sync::Arc;

use bareverbs_provider::barrier;
use bareverbs_provider::contract::{Completion, CompletionQueue};
use bareverbs_provider::device::Refused;
use bareverbs_provider::work::{WcStatus, WorkCompletion};

use self::armed::Armed;
pub(crate) use self::ring::Ring;
use self::ring::{COUNT, OWNER, is_before};
pub(crate) use self::runs::Minis;
use self::runs::is_title;
pub(crate) use self::strays::CqShared;
use self::strays::Strays;
pub use self::taken::Mlx5Completion;
use self::taken::{Taken, carried, outcome};
use crate::cqe::{Cqe, CqeOpcode};
use crate::doorbell::{DoorbellRecord, RecordWord, Uar, Word};
use crate::sync::Ordering;
use crate::table::{Done, Entry, Receives, Record, Sends, Side, Source, Table, tag};

/// A completion queue.
#[derive(Debug)]
pub struct Mlx5Cq {
    ring: Ring,
    /// Entries taken, in the bits of [`COUNT`].
    consumer: u32,
    /// Entries less one.
    mask: u32,
    /// The next entry, and bytes from one to the next.
    next: *const u8,
    stride: usize,
    /// The lowest bit of the next entry's last byte when the device has written it.
    owner: u8,
    /// The whole byte where the entry is the success of a send, and where it is that of a receive of a plain message.
    sent: u8,
    received: u8,
    /// How far the queue has been read, in the doorbell record that `shared` keeps.
    read: RecordWord,
    /// The send and the receive queue whose completion was taken last; nobody's while the short way is closed.
    recent_sends: NonNull<Sends>,
    recent_receives: NonNull<Receives>,
    /// Whether the ring's end was passed while there were strays.
    has_wrapped: bool,
    /// What the long way found last.
    rare: Taken,
    /// What they are where there was none.
    nobody: Box<(Sends, Receives)>,
    /// What entries of the table name it by.
    tag: u32,
    table: Arc<Table>,
    shared: Arc<CqShared>,
    uar: Arc<Uar>,
    armed: Armed,
    /// Events that the device has raised, counted on. It takes an arming for late that does not know of the last one.
    events: u32,
}

// SAFETY: the memory behind the pointers is kept by `ring`, `shared` and `nobody` and as the module `table` says, and
// belongs to no thread.
unsafe impl Send for Mlx5Cq {}

impl Mlx5Cq {
    pub(crate) fn new(
        ring: Ring,
        cqn: u32,
        table: &Arc<Table>,
        doorbell: DoorbellRecord,
        uar: &Arc<Uar>,
    ) -> Self {
        let shared = CqShared::new(cqn, doorbell, ring.clone());
        let nobody = Box::new((Sends::new(1), Receives::new(1)));
        let mut queue = Self {
            consumer: 0,
            mask: 0,
            next: ring.start,
            stride: 0,
            owner: 0,
            sent: 0,
            received: 0,
            read: shared.doorbell.word(Word::First),
            recent_sends: NonNull::from(&nobody.0),
            recent_receives: NonNull::from(&nobody.1),
            has_wrapped: false,
            rare: Taken::fault(ring.start),
            nobody,
            ring,
            tag: tag(cqn),
            table: Arc::clone(table),
            shared: Arc::new(shared),
            uar: Arc::clone(uar),
            armed: Armed::Not,
            events: 0,
        };
        queue.look_up();
        queue
    }

    /// Works out anew what follows from the ring, the entries taken and what the queue is armed for.
    fn look_up(&mut self) {
        self.mask = self.ring.entries() - 1;
        self.consumer &= COUNT;
        self.next = self.ring.at(self.consumer);
        self.stride = 1 << self.ring.shift;
        self.owner = (self.consumer >> self.ring.log & 1) as u8;
        self.sent = self.owner | CqeOpcode::REQ.0 << 4;
        self.received = self.owner | CqeOpcode::RESP_SEND.0 << 4;
    }

    /// Goes on to the next entry.
    #[inline(always)]
    fn advance(&mut self) {
        self.consumer = self.consumer.wrapping_add(1);
        // SAFETY: the next entry, or, where `wrap` makes it another one, the end of the ring.
        self.next = unsafe { self.next.add(self.stride) };
        if self.consumer & self.mask == 0 {
            self.wrap();
        }
    }

    /// Inlined: a call would cost the fast path two instructions for its argument and the counter.
    #[inline(always)]
    fn wrap(&mut self) {
        self.next = self.ring.start;
        self.consumer &= COUNT;
        self.owner ^= OWNER;
        self.sent ^= OWNER;
        self.received ^= OWNER;
        if self.shared.has_strays.load(Ordering::Relaxed) {
            // The next entry takes the slow path, on which calls cost the fast path nothing.
            self.forget_recent();
            self.has_wrapped = true;
        }
    }

    /// Forgets which queues' completions were taken last.
    fn forget_recent(&mut self) {
        self.recent_sends = NonNull::from(&self.nobody.0);
        self.recent_receives = NonNull::from(&self.nobody.1);
    }

    pub(crate) fn shared(&self) -> &Arc<CqShared> {
        &self.shared
    }

    /// The next entry to be taken, written or not, for tools that show it.
    #[must_use]
    pub fn peek(&self) -> Cqe<'_> {
        self.ring.entry(self.consumer)
    }

    /// The queue that an entry is of, if it is one of this completion queue's.
    #[inline(always)]
    fn find(&self, id: u32, side: Side) -> Option<&Record> {
        // SAFETY: this is the completion queue's poller, and it drops its dead in `tidy` and `pass_strays` only.
        self.table.entry(id).and_then(|entry: &Entry| unsafe { entry.record(side, self.tag) })
    }

    /// What an entry is about that no queue was found for.
    #[cold]
    fn stray(&self, id: u32, side: Side, cqe: &Cqe<'_>) -> Stray {
        let mut strays = self.shared.strays();
        let dead = strays.dead.iter().map(|(record, _)| record).find(|record| record.is_named(id, side, cqe));
        let Some(at) = strays.reset.iter().position(|(record, which, _)| record.id() == id && *which == side)
        else {
            let Some(dead) = dead else { return Stray::Unknown };
            dead.discard(side, cqe.wqe_counter());
            return Stray::Nobodys;
        };
        let (record, _, until) = &strays.reset[at];
        if is_before(self.consumer.wrapping_sub(1), *until) {
            // By CQE version 0, the entry may be that of a queue whose number this one got meanwhile.
            let named = dead.or_else(|| record.is_named(id, side, cqe).then_some(record));
            named.into_iter().for_each(|record| record.discard(side, cqe.wqe_counter()));
            return Stray::Nobodys;
        }
        record.show_again(side);
        strays.reset.swap_remove(at);
        Stray::Back
    }

    /// Lets go of strays, of which nothing is left in the ring where it is empty.
    #[cold]
    fn tidy(&mut self) {
        self.forget_recent();
        let mut strays = self.shared.strays();
        // What the strays' owners saw the device write is seen here too; were there any of it, it would come first.
        if self.ring.written(self.consumer, self.peek().op_own()) {
            return;
        }
        for (record, side, _) in strays.reset.drain(..) {
            record.show_again(side);
        }
        self.shared.has_strays.store(false, Ordering::Relaxed);
        let dead = std::mem::take(&mut strays.dead);
        drop(strays);
        drop(dead);
    }

    /// Lets go of strays of which the entries were all passed. The CQ consumer index has 24 bits: this must be done within
    /// half of that, or `is_before` gives the wrong order. And a queue that is never found empty would keep every queue pair
    /// that was destroyed.
    #[cold]
    fn pass_strays(&mut self) {
        // Before the dead are dropped.
        self.forget_recent();
        let mut strays = self.shared.strays();
        strays.show_passed(self.consumer);
        let passed = strays.take_passed(self.consumer, self.ring.entries());
        if strays.is_empty() {
            self.shared.has_strays.store(false, Ordering::Relaxed);
        }
        drop(strays);
        drop(passed);
    }

    /// The next entry, and what it is the completion of: the short way, for the success of a queue whose completion was
    /// the last one taken of its side.
    #[inline(always)]
    fn take_short(&mut self) -> Short {
        let entry = self.next;
        // SAFETY: an entry of the ring, which this queue keeps; entries are aligned to 64. A borrow of the
        // ring would outlast the changes below.
        let cqe = unsafe { Cqe::new(entry) };
        let last_word = cqe.last_word();
        let op_own = last_word as u8;
        if op_own == self.sent {
            barrier::after_device_wrote();
            // SAFETY: this is the completion queue's poller, and it forgets them when it drops its dead.
            let sends = unsafe { self.recent_sends.as_ref() };
            let _used = sends.lifetime.used();
            // In this order, as the module `table` says.
            if let Some(sent) = sends.read_plain(last_word)
                && sends.name.is(&cqe)
            {
                sends.finish_plain(sent);
                self.advance();
                return Short::Taken(Taken::plain(entry, sent.wr_id, 0, CqeOpcode::REQ));
            }
        } else if op_own == self.received {
            barrier::after_device_wrote();
            // SAFETY: this is the completion queue's poller, and it forgets them when it drops its dead.
            let receives = unsafe { self.recent_receives.as_ref() };
            let _used = receives.lifetime.used();
            // In this order, as the module `table` says.
            let wr_id = receives.read((last_word >> 16) as u16);
            if receives.name.is(&cqe) {
                receives.finish();
                self.advance();
                return Short::Taken(Taken::plain(entry, wr_id, cqe.byte_count(), CqeOpcode::RESP_SEND));
            }
        } else if (op_own ^ self.owner) & OWNER != 0 && !self.shared.has_strays.load(Ordering::Acquire) {
            return Short::Nothing;
        }
        Short::Declined
    }

    #[inline(always)]
    fn take(&mut self) -> Option<Taken> {
        match self.take_short() {
            Short::Taken(taken) => Some(taken),
            Short::Nothing => None,
            Short::Declined => {
                if self.take_rare() {
                    Some(self.rare)
                } else {
                    None
                }
            }
        }
    }

    /// Takes the next completion by value; whether there was one.
    #[inline(always)]
    fn take_into(&mut self, into: &mut MaybeUninit<WorkCompletion>) -> bool {
        match self.take_short() {
            Short::Taken(taken) if taken.opcode == CqeOpcode::REQ => {
                // SAFETY: this queue keeps the ring.
                into.write(unsafe { taken.plain_send() });
                true
            }
            Short::Taken(taken) => {
                // SAFETY: this queue keeps the ring.
                unsafe { taken.write_all_fields(into) };
                true
            }
            Short::Nothing => false,
            Short::Declined => self.take_rare_into(into),
        }
    }

    #[inline(never)]
    fn value_of(&mut self, taken: Taken) -> Option<WorkCompletion> {
        // SAFETY: the ring is kept while this method runs.
        let value = unsafe { taken.completion() }.to_value();
        self.release();
        Some(value)
    }

    #[inline(never)]
    fn rare_value(&mut self) -> Option<WorkCompletion> {
        self.find_next().and_then(|taken| self.value_of(taken))
    }

    #[inline(never)]
    fn take_rare_into(&mut self, into: &mut MaybeUninit<WorkCompletion>) -> bool {
        let taken = self.find_next();
        if let Some(taken) = taken {
            // SAFETY: this queue keeps the ring.
            unsafe { taken.write_all_fields(into) };
        }
        taken.is_some()
    }

    /// The same for any entry. What it finds is left in `rare`: where it is returned, the short way's result has to lie
    /// in memory too.
    #[inline(never)]
    fn take_rare(&mut self) -> bool {
        let taken = self.find_next();
        self.rare = taken.unwrap_or(self.rare);
        taken.is_some()
    }

    /// Finds the next completion. Where there is none, entries that were discarded on the way are
    /// given back to the device here: the caller took nothing, so it releases nothing.
    fn find_next(&mut self) -> Option<Taken> {
        let first = self.consumer;
        let found = self.find_entry();
        if found.is_none() && self.consumer != first {
            self.release();
        }
        found
    }

    fn find_entry(&mut self) -> Option<Taken> {
        // Bounds the loop: a faulty device can write stale CQEs without limit.
        'entries: for _ in 0..=self.ring.entries() {
            let entry = self.ring.at(self.consumer);
            // SAFETY: an entry of the ring, which this queue keeps; entries are aligned to 64. A borrow of the
            // ring would outlast the changes below.
            let cqe = unsafe { Cqe::new(entry) };
            let op_own = cqe.op_own();
            if !self.ring.written(self.consumer, op_own) {
                if self.shared.has_strays.load(Ordering::Acquire) {
                    self.tidy();
                }
                return None;
            }
            barrier::after_device_wrote();
            if std::mem::take(&mut self.has_wrapped) {
                self.pass_strays();
            }
            if is_title(op_own) && self.ring.expand(self.consumer) {
                continue;
            }
            self.advance();
            if is_title(op_own) {
                return Some(Taken::fault(entry));
            }
            if let Armed::Solicited(_) = self.armed {
                self.settle(self.consumer);
            }
            let opcode = CqeOpcode(op_own >> 4);
            let side = match opcode {
                CqeOpcode::REQ | CqeOpcode::REQ_ERR => Side::Send,
                CqeOpcode::RESP_WR_IMM
                | CqeOpcode::RESP_SEND
                | CqeOpcode::RESP_SEND_IMM
                | CqeOpcode::RESP_SEND_INV
                | CqeOpcode::RESP_ERR => Side::Recv,
                _ => return Some(Taken::fault(entry)),
            };
            let id = self.table.id(&cqe, side);
            let counter = cqe.wqe_counter();
            let message = carried(&cqe, opcode);
            let message = message.as_ref().map(|(bytes, length)| &bytes[..*length]);
            let (record, done) = loop {
                if let Some(record) = self.find(id, side) {
                    let _used = record.lifetime.used();
                    // SAFETY: whoever posted the receive vouches for its memory until it is complete or taken back.
                    let done =
                        unsafe { record.complete(side, counter, message, || self.find(id, side).is_some()) };
                    if let Some(done) = done {
                        break (record, done);
                    }
                }
                // Not found, or hidden since.
                match self.stray(id, side, &cqe) {
                    Stray::Nobodys => continue 'entries,
                    Stray::Unknown => return Some(Taken::fault(entry)),
                    Stray::Back => {}
                }
            };
            let sends = NonNull::from(&record.sends);
            let receives = match &record.source {
                Source::Own(receives) if receives.kept().is_none() => Some(NonNull::from(receives)),
                _ => None,
            };
            // At the ring's end the next entry takes the slow path.
            if !self.has_wrapped && !matches!(self.armed, Armed::Solicited(_)) {
                match side {
                    Side::Send => self.recent_sends = sends,
                    Side::Recv => self.recent_receives = receives.unwrap_or(self.recent_receives),
                }
            }
            let (status, byte_len) = outcome(&cqe, opcode);
            let Done { wr_id, purpose, has_arrived } = done;
            let status = if has_arrived { status } else { WcStatus::GENERAL_ERR };
            return Some(Taken { entry, wr_id, status, byte_len, opcode, purpose });
        }
        None
    }
}

/// What became of an entry whose queue was not found.
enum Stray {
    /// Its queue pair was destroyed or reset since.
    Nobodys,
    /// Its queue pair was reset before it was written, and is found again.
    Back,
    /// It can't be.
    Unknown,
}

/// What the short way found.
enum Short {
    Taken(Taken),
    /// The device has written no more.
    Nothing,
    /// Something for the long way.
    Declined,
}

// SAFETY: by the numbers of the trait's obligations:
// 1. `ring` and `shared` keep the entries and the doorbell record; a lent completion borrows the
//    queue.
// 2. and 3. The device writes one entry when it is done with a request. An entry is taken once: the
//    owner bit and the consumer's count tell it from those before. `wr_id` is that of the request
//    whose place in its queue the entry names. `barrier::after_device_wrote` comes before all else
//    is read.
// 4. An entry that leads to no queue of this completion queue, or has no meaning, becomes
//    `Taken::fault`.
// 5. The device writes up to the counter in the doorbell record, which `release` stores.
unsafe impl CompletionQueue for Mlx5Cq {
    type Completion<'a>
        = Mlx5Completion<'a>
    where
        Self: 'a;

    #[inline]
    fn capacity(&self) -> u32 {
        self.ring.entries() - 1
    }

    #[inline(always)]
    fn next(&mut self) -> Option<Mlx5Completion<'_>> {
        // SAFETY: the ring stays while the queue is borrowed.
        Some(unsafe { self.take()?.completion() })
    }

    /// The common result and the rare one are returned each by itself: what is one value for both lies in memory first.
    #[inline(always)]
    fn next_value(&mut self) -> Option<WorkCompletion> {
        match self.take_short() {
            Short::Taken(taken) if taken.opcode == CqeOpcode::REQ => {
                // SAFETY: this queue keeps the ring.
                let value = unsafe { taken.plain_send() };
                self.release();
                Some(value)
            }
            Short::Taken(taken) => self.value_of(taken),
            Short::Nothing => None,
            Short::Declined => self.rare_value(),
        }
    }

    #[inline(always)]
    fn next_values(&mut self, into: &mut [WorkCompletion]) -> usize {
        let mut taken = 0;
        for slot in into {
            // SAFETY: a place that only ever gets values written.
            if !self.take_into(unsafe { &mut *std::ptr::from_mut(slot).cast() }) {
                break;
            }
            taken += 1;
        }
        if taken > 0 {
            self.release();
        }
        taken
    }

    #[inline(always)]
    fn release(&mut self) {
        let (read, consumer) = (self.read, self.consumer);
        // What was read was read before the device may write over it.
        barrier::before_device_overwrites();
        // SAFETY: `shared` keeps the record.
        unsafe { read.set(consumer) };
    }

    fn arm(&mut self, solicited_only: bool) -> Result<(), Refused> {
        self.ask_for_event(solicited_only);
        Ok(())
    }
}

impl Drop for Mlx5Cq {
    fn drop(&mut self) {
        let closed = Strays { closed: true, ..Strays::default() };
        // Records that go with it end in this queue's own lists, so they are dropped outside of the lock.
        let strays = std::mem::replace(&mut *self.shared.strays(), closed);
        drop(strays);
    }
}

#[cfg(test)]
mod exhaustive;
#[cfg(all(test, not(loom)))]
mod faulty_device;
