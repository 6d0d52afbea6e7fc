//! Both sides of a stream against each other, without queues: memory is a vector, and messages
//! arrive in the order of sending, as RC delivers them.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::ProtocolError;
use super::inbound::{Grant, Inbound};
use super::outbound::Outbound;
use super::wire::{IomapSize, Offer, Span, Word, WordCarrier};

const RING: u64 = 0x10_0000;
const KEY: u32 = 7;

/// The offer of a receiver.
fn offer(half: u32, window: u16) -> Offer {
    Offer {
        big_endian: false,
        iomap: true,
        readable: false,
        credits: window,
        iomap_size: IomapSize::at_most(0),
        table: Span { addr: 0x20_0000, key: 8, len: 2 },
        data: Span { addr: RING, key: KEY, len: half },
    }
}

/// One direction: a sender with the peer's offer, a receiver with its ring.
struct Direction {
    outbound: Outbound,
    inbound: Inbound,
    ring: Vec<u8>,
    /// The entries that the device has written, each with whether its word has arrived.
    table: [Option<(Span, bool)>; 2],
    /// Messages to the receiver, and grants to the sender, that are on the wire.
    messages: VecDeque<(usize, Vec<u8>)>,
    grants: VecDeque<(u16, Option<(usize, Span)>)>,
    /// Whether the device has written the entry of the first grant.
    written: bool,
    sent: Vec<u8>,
    received: Vec<u8>,
}

impl Direction {
    fn new(half: u32, window: u16) -> Self {
        Self::with(half, window, WordCarrier::Immediate)
    }

    fn with(half: u32, window: u16, carrier: WordCarrier) -> Self {
        Self {
            outbound: Outbound::new(&offer(half, window), carrier),
            inbound: Inbound::new(half, window),
            ring: vec![0; 2 * half as usize],
            table: [None; 2],
            messages: VecDeque::new(),
            grants: VecDeque::new(),
            written: false,
            sent: Vec::new(),
            received: Vec::new(),
        }
    }

    fn send(&mut self, max: usize, byte: u8) -> bool {
        if let Some(entry) = self.outbound.awaited_entry() {
            let (span, announced) = self.table[entry].take().expect("the entry was written");
            assert!(announced, "the device may still write the entry");
            self.outbound.set_buffer(span).expect("a buffer with room");
        }
        let Some(piece) = self.outbound.take(max) else { return false };
        assert_eq!(piece.key, KEY);
        let bytes: Vec<u8> = (0..piece.len).map(|at| byte.wrapping_add(at as u8)).collect();
        self.sent.extend(&bytes);
        self.messages.push_back(((piece.addr - RING) as usize, bytes));
        true
    }

    fn deliver(&mut self) -> bool {
        let Some((offset, bytes)) = self.messages.pop_front() else { return false };
        self.ring[offset..][..bytes.len()].copy_from_slice(&bytes);
        self.inbound.data(bytes.len() as u32).expect("a sender within its grants");
        true
    }

    fn read(&mut self, max: usize) -> usize {
        let (offset, len) = self.inbound.readable();
        let len = len.min(max);
        self.received.extend(&self.ring[offset..][..len]);
        self.inbound.consume(len);
        len
    }

    fn grant(&mut self) -> bool {
        let Some(grant) = self.inbound.take_grant() else { return false };
        let half = grant.half.map(|half| {
            (half.entry as usize, Span { addr: RING + u64::from(half.offset), key: KEY, len: half.len })
        });
        self.grants.push_back((grant.limit, half));
        true
    }

    /// The device writes the entry of the first grant.
    fn write_entry(&mut self) {
        if let Some((_, half)) = self.grants.front()
            && !std::mem::replace(&mut self.written, true)
            && let Some((entry, span)) = half
        {
            let before = self.table[*entry].replace((*span, false));
            assert_eq!(before, None, "an entry is written once before it is taken");
        }
    }

    /// The device writes the entry first, then completes the word.
    fn deliver_grant(&mut self) -> bool {
        self.write_entry();
        let Some((limit, half)) = self.grants.pop_front() else { return false };
        self.written = false;
        if let Some((_, announced)) = half.and_then(|(entry, _)| self.table[entry].as_mut()) {
            *announced = true;
        }
        let Word::Credits(limit) = Word::from_imm(Word::Credits(limit).to_imm()) else { unreachable!() };
        self.outbound.grant(limit).expect("a receiver within its room");
        true
    }
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Send(usize, u8),
    Deliver,
    Read(usize),
    Grant,
    WriteEntry,
    DeliverGrant,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        3 => (1usize..200, any::<u8>()).prop_map(|(max, byte)| Step::Send(max, byte)),
        3 => Just(Step::Deliver),
        3 => (1usize..200).prop_map(Step::Read),
        2 => Just(Step::Grant),
        1 => Just(Step::WriteEntry),
        2 => Just(Step::DeliverGrant),
    ]
}

proptest! {
    #[test]
    fn bytes_arrive_whole_and_in_order_in_any_schedule(
        half in 1u32..80,
        window in 2u16..20,
        by_messages: bool,
        steps in prop::collection::vec(step(), 0..400),
    ) {
        let carrier = if by_messages { WordCarrier::Send } else { WordCarrier::Immediate };
        let mut stream = Direction::with(half, window, carrier);
        for step in steps {
            match step {
                Step::Send(max, byte) => { stream.send(max, byte); }
                Step::Deliver => { stream.deliver(); }
                Step::Read(max) => { stream.read(max); }
                Step::Grant => { stream.grant(); }
                Step::WriteEntry => stream.write_entry(),
                Step::DeliverGrant => { stream.deliver_grant(); }
            }
        }
        // It never stalls: whatever came before, another ring of bytes gets through.
        let goal = stream.sent.len() + 4 * half as usize;
        let mut idle = 0;
        while stream.sent.len() < goal {
            let moved = stream.send(goal - stream.sent.len(), 0)
                | stream.deliver()
                | (stream.read(usize::MAX) > 0)
                | stream.grant()
                | stream.deliver_grant();
            idle = if moved { 0 } else { idle + 1 };
            prop_assert!(idle < 2, "stalled: {:?} {:?}", stream.outbound, stream.inbound);
        }
        while stream.deliver() | (stream.read(usize::MAX) > 0) {}
        prop_assert_eq!(stream.sent, stream.received);
    }
}

/// A reader that takes a whole ring at once grants both halves with the same credits. The second
/// entry must wait for its own word: reading it earlier races with the peer's device.
#[test]
fn entry_is_read_only_after_its_own_word() {
    let mut stream = Direction::new(3, 16);
    assert!(stream.grant() && stream.deliver_grant());
    while stream.send(3, 0) {
        stream.deliver();
    }
    assert_eq!((stream.sent.len(), stream.read(3) + stream.read(3)), (6, 6));
    assert!(stream.grant() && stream.grant());
    assert_eq!(stream.grants[0].0, stream.grants[1].0);
    assert!(stream.deliver_grant());
    assert!(stream.send(3, 1));
    assert!(!stream.send(3, 2), "the second word has not arrived");
    assert!(stream.deliver_grant());
    assert!(stream.send(3, 2));
}

/// On iWARP, a word without a receive ends the connection.
#[test]
fn data_leaves_receives_to_the_words_without_credits() {
    for (window, carrier, sent) in [
        (16, WordCarrier::Immediate, 16),
        (16, WordCarrier::Send, 12),
        (384, WordCarrier::Send, 376),
        (3, WordCarrier::Send, 3),
    ] {
        let mut outbound = Outbound::new(&offer(1 << 20, window), carrier);
        let messages = std::iter::from_fn(|| outbound.take(1)).count();
        assert_eq!(messages, sent, "{carrier:?}, {window} receives");
        assert_eq!(outbound.may_send_iomap(carrier), carrier == WordCarrier::Immediate);
    }
}

/// The entries of the iomap table take credits on iWARP, and the receiver returns them.
#[test]
fn iomap_entries_return_their_credits_on_iwarp() {
    let (mut outbound, mut inbound) = (Outbound::new(&offer(8, 16), WordCarrier::Send), Inbound::new(8, 16));
    for entries in 0..1000 {
        if !outbound.may_send_iomap(WordCarrier::Send) {
            let grant = inbound.take_grant().unwrap_or_else(|| panic!("no grant after {entries} entries"));
            outbound.grant(grant.limit).unwrap();
        }
        outbound.iomap(WordCarrier::Send);
        inbound.iomap(WordCarrier::Send).unwrap();
    }
    assert!(Outbound::new(&offer(8, 16), WordCarrier::Immediate).may_send_iomap(WordCarrier::Immediate));
}

#[test]
fn counters_wrap_after_65536_messages() {
    let mut stream = Direction::new(64, 16);
    for round in 0..70_000u32 {
        while !stream.send(8, round as u8) {
            assert!(stream.grant() | stream.deliver_grant(), "stalled after {round} messages");
        }
        stream.deliver();
        stream.read(8);
    }
    assert_eq!(stream.sent, stream.received);
}

#[test]
fn messages_beyond_the_buffer_or_the_credits_are_violations() {
    let mut inbound = Inbound::new(8, 2);
    let beyond = |len, room| Err(ProtocolError::BeyondBuffer { len, room });
    assert_eq!(inbound.data(9), beyond(9, 8));
    inbound.data(5).unwrap();
    assert_eq!(inbound.data(4), beyond(4, 3));
    inbound.data(3).unwrap();
    assert_eq!(inbound.data(0), Err(ProtocolError::Overrun { window: 2 }));
    // The second half was not granted.
    let mut inbound = Inbound::new(8, 3);
    inbound.data(8).unwrap();
    assert_eq!(inbound.data(1), beyond(1, 0));
    assert!(inbound.take_grant().is_some());
    assert_eq!(inbound.data(9), beyond(9, 8));
    inbound.data(8).unwrap();
}

#[test]
fn messages_without_bytes_return_their_credits_at_half_of_the_window() {
    let mut inbound = Inbound::new(8, 4);
    assert!(inbound.take_grant().is_some_and(|grant| grant.half.is_some()));
    inbound.data(0).unwrap();
    assert_eq!(inbound.take_grant(), None);
    inbound.data(0).unwrap();
    assert_eq!(inbound.take_grant(), Some(Grant { limit: 6, half: None }));
}

#[test]
fn grants_that_fall_or_exceed_the_window_are_violations() {
    let mut outbound = Outbound::new(&offer(8, 16), WordCarrier::Immediate);
    let violation = |limit, sent| Err(ProtocolError::Credits { limit, sent, window: 16 });
    for limit in [15, 17] {
        assert_eq!(outbound.grant(limit), violation(limit, 0));
    }
    outbound.grant(16).unwrap();
    assert!(outbound.take(1).is_some());
    outbound.grant(17).unwrap();
    for limit in [16, 18] {
        assert_eq!(outbound.grant(limit), violation(limit, 1));
    }
}

#[test]
fn announced_buffer_without_room_is_a_violation() {
    let mut outbound = Outbound::new(&offer(1, 16), WordCarrier::Immediate);
    assert!(outbound.take(1).is_some());
    outbound.grant(16).unwrap();
    assert_eq!(outbound.awaited_entry(), Some(1));
    assert_eq!(outbound.set_buffer(Span::default()), Err(ProtocolError::EmptyBuffer));
}

#[test]
fn length_of_a_message_fits_in_its_word() {
    let mut outbound = Outbound::new(&offer(u32::MAX, 16), WordCarrier::Immediate);
    let piece = outbound.take(usize::MAX).unwrap();
    assert_eq!(piece.len, Word::MAX);
    assert_eq!(Word::from_imm(Word::Data(piece.len).to_imm()), Word::Data(piece.len));
}
