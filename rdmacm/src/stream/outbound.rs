//! The sending side of a stream: which bytes may be written to which address of the peer.

use super::ProtocolError;
use super::wire::{Offer, SLOTS, Span, Word};

/// The sending side's view of the peer's buffers and credits.
///
/// The peer grants data buffers one after the other, alternately in the two entries of a table in
/// this side's memory. A message is written within one buffer and takes one credit.
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
    /// The entry of the table that the peer writes next.
    next: usize,
    /// By entry: `sent` when its last buffer was full.
    full_at: [u16; SLOTS],
    /// Whether the peer has announced the next entry.
    announced: bool,
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
    pub(super) fn new(peer: &Offer) -> Self {
        Self {
            sent: 0,
            limit: peer.credits,
            window: peer.credits,
            buffer: peer.data,
            next: 1,
            // The peer announces the second buffer with its first word.
            full_at: [0; SLOTS],
            announced: false,
        }
    }

    /// Messages that the peer has consumed, as far as it has said.
    fn consumed(&self) -> u16 {
        self.limit.wrapping_sub(self.window)
    }

    /// The peer grants messages up to `limit`.
    pub(super) fn grant(&mut self, limit: u16) -> Result<(), ProtocolError> {
        // Grants only rise, and never exceed what the peer can hold.
        let (rise, credits) = (limit.wrapping_sub(self.limit), limit.wrapping_sub(self.sent));
        if rise > self.window || credits > self.window {
            return Err(ProtocolError::Credits { limit, sent: self.sent, window: self.window });
        }
        self.announced |= self.full_at[self.next].wrapping_sub(self.consumed()) <= rise;
        self.limit = limit;
        Ok(())
    }

    /// The entry of the table to be read by the caller and passed to
    /// [`set_buffer`](Self::set_buffer).
    ///
    /// Only if the peer has announced the entry: a device that still writes it could show half of
    /// it. The peer announces an entry with the credits of all messages in the entry's buffer of
    /// before.
    pub(super) fn awaited_entry(&self) -> Option<usize> {
        (self.buffer.len == 0 && self.announced).then_some(self.next)
    }

    /// Takes the entry that was awaited. The caller clears it in memory. An entry of length 0 is
    /// not granted yet.
    pub(super) fn set_buffer(&mut self, buffer: Span) {
        if buffer.len > 0 {
            self.buffer = buffer;
            self.next = 1 - self.next;
            self.announced = self.full_at[self.next] == self.consumed();
        }
    }

    /// Whether [`take`](Self::take) returns a message.
    pub(super) fn may_send(&self) -> bool {
        self.sent != self.limit && self.buffer.len > 0
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
            self.full_at[1 - self.next] = self.sent;
        }
        Some(piece)
    }
}
