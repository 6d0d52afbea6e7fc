//! The operations of an endpoint that are in flight.

use std::num::NonZeroU32;

use crate::{Mr, WrId};

/// An operation in flight.
pub(super) struct InFlight<M> {
    pub(super) verb: &'static str,
    pub(super) buffer: Mr<M>,
}

/// The operations in flight, by the `wr_id` of their requests. The lower half of a `wr_id` is the
/// slot index. The upper half is the generation of the slot, which counts its operations from 1.
///
/// So a `wr_id` is unique until a slot has been used 2^32 - 1 times. 0 is never a valid `wr_id`.
pub(super) struct Operations<T> {
    slots: Vec<Slot<T>>,
    /// Indices of the free slots. Its capacity is that of `slots`, so returning an index never
    /// allocates.
    free: Vec<u32>,
}

struct Slot<T> {
    /// Generation of the current operation, or of the next one if the slot is free.
    generation: NonZeroU32,
    operation: Option<T>,
}

impl<T> Operations<T> {
    /// Creates slots for `capacity` operations.
    pub(super) fn new(capacity: u32) -> Self {
        let slot = || Slot { generation: NonZeroU32::MIN, operation: None };
        Self { slots: (0..capacity).map(|_| slot()).collect(), free: (0..capacity).rev().collect() }
    }

    /// The number of operations in flight.
    pub(super) fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Stores `operation` and returns its `wr_id`. Returns the operation if no slot is free.
    pub(super) fn insert(&mut self, operation: T) -> Result<u64, T> {
        let Some(index) = self.free.pop() else { return Err(operation) };
        let slot = &mut self.slots[index as usize];
        slot.operation = Some(operation);
        Ok(WrId { owner: slot.generation.get(), request: index }.into())
    }

    /// Removes the operation with this `wr_id`. `None` if no operation in flight has it.
    pub(super) fn take(&mut self, number: u64) -> Option<T> {
        let WrId { owner, request: index } = number.into();
        let slot = self.slots.get_mut(index as usize)?;
        if slot.generation.get() != owner {
            return None;
        }
        let operation = slot.operation.take()?;
        slot.generation = slot.generation.checked_add(1).unwrap_or(NonZeroU32::MIN);
        self.free.push(index);
        Some(operation)
    }
}

impl<T> Default for Operations<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn zero_stale_and_repeated_wr_ids_match_no_operation() {
        let mut operations = Operations::new(1);
        assert_eq!(operations.take(0), None);
        let first = operations.insert("first").unwrap();
        assert_eq!(operations.take(0), None);
        assert_eq!(operations.take(first), Some("first"));
        assert_eq!(operations.take(first), None, "a repeated number");
        let second = operations.insert("second").unwrap();
        assert_eq!(operations.take(first), None, "a stale number");
        assert_eq!(operations.insert("third"), Err("third"));
        assert_eq!(operations.take(second), Some("second"));
        assert_eq!(operations.len(), 0);
    }

    #[test]
    fn generations_skip_zero_when_they_wrap() {
        let mut operations = Operations::new(1);
        operations.slots[0].generation = NonZeroU32::MAX;
        let last = operations.insert(()).unwrap();
        operations.take(last).unwrap();
        assert_eq!(operations.insert(()).unwrap(), 1 << 32);
    }

    proptest! {
        #[test]
        fn only_the_operations_wr_id_matches(
            capacity in 1u32..5,
            steps in proptest::collection::vec((any::<bool>(), any::<prop::sample::Index>(), 0u64..4, 0u64..6), 1..60),
        ) {
            let mut operations = Operations::new(capacity);
            let mut model = HashMap::new();
            for (step, (insert, which, generation, slot)) in (0..).zip(steps) {
                if insert {
                    match operations.insert(step) {
                        Ok(number) => prop_assert_eq!(model.insert(number, step), None),
                        Err(_) => prop_assert_eq!(model.len(), capacity as usize),
                    }
                } else {
                    // The `wr_id` of an operation in flight, or an arbitrary one.
                    let mut numbers: Vec<u64> = model.keys().copied().collect();
                    numbers.sort_unstable();
                    numbers.push(generation << 32 | slot);
                    let number = numbers[which.index(numbers.len())];
                    prop_assert_eq!(operations.take(number), model.remove(&number));
                }
                prop_assert_eq!(operations.len(), model.len());
            }
        }
    }
}
