//! The sending side of a stream: which bytes may be written to which address of the peer.

use std::collections::VecDeque;

use super::ProtocolError;
use super::wire::{CONTROL_RECVS, Offer, SLOTS, Span, Word, WordCarrier};

/// The sending side's view of the peer's buffers and credits.
///
/// The peer grants data buffers one after the other, alternately in the two entries of a table in
/// this side's memory. A message is written within one buffer and takes one credit.
///
/// # Announced entries
///
/// The peer writes an entry and sends a word with the credits of all messages that it has consumed.
/// An entry must not be read before its own word has arrived: the peer's device may still write it.
/// The credits alone do not tell which of two entries a word belongs to, because a peer that has
/// consumed two buffers at once sends both words with the same credits.
///
/// Each buffer is in one of four states: current, full, consumed, announced. A word that arrives
/// while a buffer is consumed carries the entry that announces it again, because a peer grants a
/// buffer with the first word after it has consumed it.
#[derive(Debug)]
pub(super) struct Outbound {
    /// Messages sent, modulo 2^16.
    sent: u16,
    /// Messages that may be sent, modulo 2^16.
    limit: u16,
    /// Messages that the peer can receive without consuming one.
    window: u16,
    /// What is left of the current buffer.
    buffer: Span,
    /// The entry of the table that is taken next.
    next: usize,
    /// `sent` when a buffer was full, for buffers that the peer has not consumed, oldest first.
    full_at: VecDeque<u16>,
    /// Buffers that the peer has consumed and not announced again.
    consumed: usize,
    /// Entries that the peer has announced and this side has not taken.
    announced: usize,
    /// Credits that data leaves to words without credits: on iWARP, a message without a receive ends the
    /// connection.
    reserve: u16,
}

/// A message that the caller must write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// Address in the peer's memory.
    pub(super) addr: u64,
    /// R_Key.
    pub(super) key: u32,
    /// Bytes.
    pub(super) len: u32,
}

impl Outbound {
    /// The state after the connection was made.
    pub(super) fn new(peer: &Offer, carrier: WordCarrier) -> Self {
        let reserve = match carrier {
            WordCarrier::Immediate => 0,
            // The peer grants more when half of its window is consumed.
            WordCarrier::Send => (CONTROL_RECVS as u16).min(peer.credits / 4),
        };
        Self {
            reserve,
            sent: 0,
            limit: peer.credits,
            window: peer.credits,
            buffer: peer.data,
            next: 1,
            full_at: VecDeque::with_capacity(SLOTS),
            // The peer announces the second buffer with its first word.
            consumed: 1,
            announced: 0,
        }
    }

    /// The peer grants messages up to `limit`.
    pub(super) fn grant(&mut self, limit: u16) -> Result<(), ProtocolError> {
        // Grants only rise, and never exceed what the peer can hold.
        let (rise, credits) = (limit.wrapping_sub(self.limit), limit.wrapping_sub(self.sent));
        if rise > self.window || credits > self.window {
            return Err(ProtocolError::Credits { limit, sent: self.sent, window: self.window });
        }
        // Messages that the peer had consumed before this word.
        let before = self.limit.wrapping_sub(self.window);
        self.limit = limit;
        while self.full_at.front().is_some_and(|full_at| full_at.wrapping_sub(before) <= rise) {
            self.full_at.pop_front();
            self.consumed += 1;
        }
        if self.consumed > 0 {
            self.consumed -= 1;
            self.announced += 1;
        }
        Ok(())
    }

    /// The entry of the table to be read by the caller and passed to
    /// [`set_buffer`](Self::set_buffer).
    pub(super) fn awaited_entry(&self) -> Option<usize> {
        (self.buffer.len == 0 && self.announced > 0).then_some(self.next)
    }

    /// Takes the entry that was awaited.
    pub(super) fn set_buffer(&mut self, buffer: Span) -> Result<(), ProtocolError> {
        if buffer.len == 0 {
            return Err(ProtocolError::EmptyBuffer);
        }
        self.buffer = buffer;
        self.announced -= 1;
        self.next = 1 - self.next;
        Ok(())
    }

    /// Whether [`take`](Self::take) returns a message.
    pub(super) fn may_send(&self) -> bool {
        self.has_credit() && self.buffer.len > 0
    }

    fn has_credit(&self) -> bool {
        self.limit.wrapping_sub(self.sent) > self.reserve
    }

    /// Whether an entry of the iomap table may be announced.
    pub(super) fn may_send_iomap(&self, carrier: WordCarrier) -> bool {
        carrier == WordCarrier::Immediate || self.has_credit()
    }

    /// An entry of the iomap table was announced.
    pub(super) fn iomap(&mut self, carrier: WordCarrier) {
        if carrier == WordCarrier::Send {
            self.sent = self.sent.wrapping_add(1);
        }
    }

    /// Takes the room of a message of at most `max` bytes, which the caller must send.
    pub(super) fn take(&mut self, max: usize) -> Option<Piece> {
        if max == 0 || !self.may_send() {
            return None;
        }
        let len = self.buffer.len.min(Word::MAX).min(u32::try_from(max).unwrap_or(u32::MAX));
        let piece = Piece { addr: self.buffer.addr, key: self.buffer.key, len };
        self.buffer.addr = self.buffer.addr.wrapping_add(len.into());
        self.buffer.len -= len;
        self.sent = self.sent.wrapping_add(1);
        if self.buffer.len == 0 {
            self.full_at.push_back(self.sent);
        }
        Some(piece)
    }
}
