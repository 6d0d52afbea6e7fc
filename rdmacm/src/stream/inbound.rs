//! The receiving side of a stream: which bytes have arrived, and what the peer may send next.

use std::collections::VecDeque;

use super::ProtocolError;
use super::wire::WordCarrier;

/// The receiving side's ring and the peer's credits.
///
/// The ring has two halves. The peer fills one after the other. A half is granted again when all of
/// its bytes were read.
#[derive(Debug)]
pub(super) struct Inbound {
    /// Bytes of half of the ring.
    half: u32,
    /// Messages that can be received without consuming one.
    window: u16,
    /// Lengths of the messages that were received and not wholly read.
    queue: VecDeque<u32>,
    /// Bytes in the queue's messages that were not read.
    unread: u32,
    /// Where the reader is in the ring.
    read: u32,
    /// Where the peer is in the ring.
    written: u32,
    /// Bytes that the peer may still write.
    granted_bytes: u32,
    /// Bytes that were read, or never used, and not granted again.
    free: u32,
    /// Messages received, wholly read, and granted; each modulo 2^16.
    received: u16,
    consumed: u16,
    limit: u16,
    /// The next grant of credits alone is due when `consumed` reaches this.
    mark: u16,
    /// The half that is granted next, 0 or 1, and the entry of the peer's table that announces it.
    next: u32,
}

/// A grant that the caller must send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Grant {
    /// The peer may send messages up to this number.
    pub(super) limit: u16,
    /// A half of the ring that the peer may write.
    pub(super) half: Option<Half>,
}

/// A half of the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Half {
    /// The entry of the peer's table that describes it.
    pub(super) entry: u32,
    /// Offset in the ring.
    pub(super) offset: u32,
    /// Length in bytes.
    pub(super) len: u32,
}

impl Inbound {
    /// A ring of two halves of `half` bytes, and receives for `window` messages. The peer owns the
    /// first half.
    pub(super) fn new(half: u32, window: u16) -> Self {
        Self {
            half,
            window,
            queue: VecDeque::with_capacity(window.into()),
            unread: 0,
            read: 0,
            written: 0,
            granted_bytes: half,
            free: half,
            received: 0,
            consumed: 0,
            limit: window,
            mark: window / 2,
            next: 1,
        }
    }

    /// The peer has written a message of `len` bytes.
    pub(super) fn data(&mut self, len: u32) -> Result<(), ProtocolError> {
        if self.received == self.limit {
            return Err(ProtocolError::Overrun { window: self.window });
        }
        // A message does not cross the end of a half.
        let room = (self.half - self.written % self.half).min(self.granted_bytes);
        if len > room {
            return Err(ProtocolError::BeyondBuffer { len, room });
        }
        self.received = self.received.wrapping_add(1);
        self.written = (self.written + len) % (2 * self.half);
        self.granted_bytes -= len;
        self.unread += len;
        self.queue.push_back(len);
        self.pop_read();
        Ok(())
    }

    /// The peer has announced an entry of its iomap table. Its word takes a credit on iWARP.
    pub(super) fn iomap(&mut self, carrier: WordCarrier) -> Result<(), ProtocolError> {
        if carrier == WordCarrier::Send {
            if self.received == self.limit {
                return Err(ProtocolError::Overrun { window: self.window });
            }
            self.received = self.received.wrapping_add(1);
            self.queue.push_back(0);
            self.pop_read();
        }
        Ok(())
    }

    /// Offset and length of bytes in the ring that were not read, up to the end of the ring.
    pub(super) fn readable(&self) -> (usize, usize) {
        let len = self.unread.min(2 * self.half - self.read);
        (self.read as usize, len as usize)
    }

    /// The caller has read `len` bytes of [`readable`](Self::readable).
    pub(super) fn consume(&mut self, len: usize) {
        let (_, readable) = self.readable();
        let mut left = len.min(readable) as u32;
        self.unread -= left;
        self.free += left;
        self.read = (self.read + left) % (2 * self.half);
        while left > 0 {
            let Some(first) = self.queue.front_mut() else { break };
            let part = left.min(*first);
            *first -= part;
            left -= part;
            self.pop_read();
        }
    }

    /// Counts the messages at the front that are wholly read.
    fn pop_read(&mut self) {
        while self.queue.front() == Some(&0) {
            self.queue.pop_front();
            self.consumed = self.consumed.wrapping_add(1);
        }
    }

    /// Whether [`take_grant`](Self::take_grant) returns a grant.
    pub(super) fn grant_is_due(&self) -> bool {
        self.free >= self.half || self.consumed.wrapping_sub(self.mark) as i16 >= 0
    }

    /// Takes a grant, which the caller must send.
    pub(super) fn take_grant(&mut self) -> Option<Grant> {
        if !self.grant_is_due() {
            return None;
        }
        self.limit = self.consumed.wrapping_add(self.window);
        self.mark = self.consumed.wrapping_add(self.window / 2);
        let half = (self.free >= self.half).then(|| {
            let half = Half { entry: self.next, offset: self.next * self.half, len: self.half };
            self.free -= self.half;
            self.granted_bytes += self.half;
            self.next = 1 - self.next;
            half
        });
        Some(Grant { limit: self.limit, half })
    }
}
