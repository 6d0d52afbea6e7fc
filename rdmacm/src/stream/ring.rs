//! The ring of bytes that are sent: parts of one registered region.

use bareverbs::owned::Part;

/// Free bytes of the send ring.
///
/// Parts are taken in the order of the ring and come back in that order, so that what is free is at
/// most two parts: one to the end of the ring, one from its beginning.
#[derive(Debug)]
pub(super) struct SendRing {
    free: Part,
    /// The free part at the beginning of the ring, while `free` is the one at its end.
    wrapped: Option<Part>,
}

impl SendRing {
    pub(super) fn new(ring: Part) -> Self {
        Self { free: ring, wrapped: None }
    }

    /// Takes a part of at least 1 byte and at most `max` bytes.
    pub(super) fn take(&mut self, max: usize) -> Option<Part> {
        if self.free.is_empty() {
            self.free = self.wrapped.take()?;
        }
        let len = max.min(self.free.len());
        if len == 0 {
            return None;
        }
        let rest = self.free.split_off(len);
        Some(std::mem::replace(&mut self.free, rest))
    }

    /// Gives back a part, or its end that was not used.
    pub(super) fn give(&mut self, part: Part) {
        let Err(part) = self.free.try_join(part) else { return };
        match &mut self.wrapped {
            None => self.wrapped = Some(part),
            // A part that is no neighbour of either would be lost until the ring is dropped. Parts
            // come back in the order of the ring, so it is a neighbour.
            Some(wrapped) => drop(wrapped.try_join(part)),
        }
    }

    /// Whether [`take`](Self::take) returns a part.
    pub(super) fn has_room(&self) -> bool {
        !self.free.is_empty() || self.wrapped.as_ref().is_some_and(|part| !part.is_empty())
    }
}
