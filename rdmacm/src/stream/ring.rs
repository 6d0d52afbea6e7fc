//! The ring of bytes that are sent: parts of one registered region.

use bareverbs::RegionMut;

/// A range of the ring.
pub(super) trait Piece: Sized {
    fn len(&self) -> usize;
    /// Keeps the bytes up to `at` and returns the rest.
    fn split_off(&mut self, at: usize) -> Self;
    /// Joins a neighbour, or returns it if it is none.
    fn try_join(&mut self, other: Self) -> Result<(), Self>;
}

impl Piece for RegionMut {
    fn len(&self) -> usize {
        self.len()
    }

    fn split_off(&mut self, at: usize) -> Self {
        self.split_off(at)
    }

    fn try_join(&mut self, other: Self) -> Result<(), Self> {
        self.try_join(other)
    }
}

/// Free bytes of the send ring.
///
/// Parts are taken in the order of the ring and come back in that order, so that what is free is at
/// most two parts: one to the end of the ring, one from its beginning.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct SendRing<T = RegionMut> {
    free: T,
    /// The free part at the beginning of the ring, while `free` is the one at its end.
    wrapped: Option<T>,
}

impl<T: Piece> SendRing<T> {
    pub(super) fn new(ring: T) -> Self {
        Self { free: ring, wrapped: None }
    }

    /// Takes a part of at least 1 byte and at most `max` bytes.
    pub(super) fn take(&mut self, max: usize) -> Option<T> {
        if self.free.len() == 0 {
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
    pub(super) fn give(&mut self, part: T) {
        let Err(part) = self.free.try_join(part) else { return };
        match &mut self.wrapped {
            None => self.wrapped = Some(part),
            // A part that is not a neighbour of either would be lost until the ring is dropped. Parts
            // come back in the order of the ring, so it is a neighbour: the tests visit all states
            // of small rings.
            Some(wrapped) => drop(wrapped.try_join(part)),
        }
    }

    /// Whether [`take`](Self::take) returns a part.
    pub(super) fn has_room(&self) -> bool {
        self.free.len() > 0 || self.wrapped.as_ref().is_some_and(|part| part.len() > 0)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashSet, VecDeque};

    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    struct Range {
        start: usize,
        len: usize,
    }

    impl Piece for Range {
        fn len(&self) -> usize {
            self.len
        }

        fn split_off(&mut self, at: usize) -> Self {
            let rest = Self { start: self.start + at, len: self.len - at };
            self.len = at;
            rest
        }

        fn try_join(&mut self, other: Self) -> Result<(), Self> {
            let (before, after) =
                (self.start + self.len == other.start, other.start + other.len == self.start);
            if !before && !after {
                return Err(other);
            }
            *self = Self { start: self.start.min(other.start), len: self.len + other.len };
            Ok(())
        }
    }

    /// A ring, and the parts that are outstanding, oldest first.
    type State = (SendRing<Range>, VecDeque<Range>);

    /// What a message, a refused message and a completion can make of a state.
    fn successors((ring, outstanding): &State, size: usize) -> Vec<State> {
        let mut next = Vec::new();
        for max in 1..=size {
            let mut taken = ring.clone();
            let Some(part) = taken.take(max) else {
                assert!(!ring.has_room());
                break;
            };
            assert!(ring.has_room());
            for used in 0..=part.len {
                let (mut ring, mut outstanding, mut part) = (taken.clone(), outstanding.clone(), part);
                ring.give(part.split_off(used));
                if used > 0 {
                    outstanding.push_back(part);
                }
                next.push((ring, outstanding));
            }
        }
        let (mut ring, mut outstanding) = (ring.clone(), outstanding.clone());
        if let Some(oldest) = outstanding.pop_front() {
            ring.give(oldest);
            next.push((ring, outstanding));
        }
        next
    }

    #[test]
    fn no_byte_of_a_small_ring_is_lost_in_any_state() {
        for size in 1..=9 {
            let whole = Range { start: 0, len: size };
            let mut todo = vec![(SendRing::new(whole), VecDeque::new())];
            let mut seen = HashSet::new();
            while let Some(state) = todo.pop() {
                if !seen.insert(state.clone()) {
                    continue;
                }
                let (SendRing { free, wrapped }, outstanding) = &state;
                let parts = [free].into_iter().chain(wrapped).chain(outstanding);
                let mut bytes: Vec<_> = parts.flat_map(|part| part.start..part.start + part.len).collect();
                bytes.sort_unstable();
                assert!(bytes.into_iter().eq(0..size), "{state:?}");
                todo.extend(successors(&state, size));
            }
            assert!(seen.len() >= 1 << size, "{} states of {size} bytes", seen.len());
        }
    }
}
