//! Object tables, indexed by object number.

use std::collections::VecDeque;

/// A freed number is reused only after this many other numbers were freed. A late doorbell thus
/// doesn't reach a new object.
const QUARANTINE: usize = 64;

/// An object table with number allocation.
#[derive(Debug)]
pub struct Table<T> {
    first: u32,
    limit: usize,
    slots: Vec<Option<Box<T>>>,
    free: VecDeque<u32>,
}

impl<T> Table<T> {
    /// Creates a table of up to `limit` objects, numbered from `first`.
    pub fn new(first: u32, limit: usize) -> Self {
        Self { first, limit, slots: Vec::new(), free: VecDeque::new() }
    }

    /// Creates an object with its number. Returns `None` if all numbers are in use.
    pub fn insert_with(&mut self, make: impl FnOnce(u32) -> T) -> Option<u32> {
        let full = self.slots.len() >= self.limit;
        let number = if full || self.free.len() > QUARANTINE { self.free.pop_front()? } else { self.next()? };
        self.slots[(number - self.first) as usize] = Some(Box::new(make(number)));
        Some(number)
    }

    fn next(&mut self) -> Option<u32> {
        let number = self.first.checked_add(u32::try_from(self.slots.len()).ok()?)?;
        self.slots.push(None);
        Some(number)
    }

    /// The object with this number.
    pub fn get(&self, number: u32) -> Option<&T> {
        self.slots.get(number.checked_sub(self.first)? as usize)?.as_deref()
    }

    /// The object with this number, mutable.
    pub fn get_mut(&mut self, number: u32) -> Option<&mut T> {
        self.slots.get_mut(number.checked_sub(self.first)? as usize)?.as_deref_mut()
    }

    /// Removes the object with this number.
    pub fn remove(&mut self, number: u32) -> Option<Box<T>> {
        let removed = self.slots.get_mut(number.checked_sub(self.first)? as usize)?.take();
        if removed.is_some() {
            self.free.push_back(number);
        }
        removed
    }

    /// The number of objects.
    pub(crate) fn count(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// The objects, by number.
    pub fn iter(&self) -> impl Iterator<Item = &T> {
        self.slots.iter().filter_map(Option::as_deref)
    }

    /// The objects, by number, mutable.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().filter_map(Option::as_deref_mut)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_numbers_are_quarantined() {
        let mut table = Table::new(5, 1000);
        let first = table.insert_with(|_| ()).unwrap();
        assert_eq!(first, 5);
        table.remove(first).unwrap();
        assert_eq!(table.insert_with(|_| ()), Some(6));
        assert!(table.get(5).is_none());
    }

    #[test]
    fn full_table_reuses_freed_numbers_then_fails() {
        let mut table = Table::new(0, 2);
        table.insert_with(|_| ()).unwrap();
        table.insert_with(|_| ()).unwrap();
        assert_eq!(table.insert_with(|_| ()), None);
        table.remove(1).unwrap();
        assert_eq!(table.insert_with(|_| ()), Some(1));
    }

    #[test]
    fn unknown_numbers_return_none() {
        let mut table = Table::<()>::new(8, 2);
        assert!(table.get(0).is_none() && table.get(8).is_none() && table.remove(u32::MAX).is_none());
    }
}
