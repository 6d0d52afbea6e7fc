//! Completes the receives of a small SRQ in every order.

use super::*;
use crate::testing::{Plain, PlainSrq};

/// A device that reads the list of slots.
struct Device {
    srq: PlainSrq,
    next: u16,
}

impl Device {
    fn new(capacity: u32) -> Self {
        let srq = Plain::new(4).unwrap().srq(capacity, 1).unwrap();
        assert_eq!(srq.queue.capacity(), capacity);
        Self { srq, next: 0 }
    }

    /// Posts a receive and returns the slot that the device reads it from.
    fn post(&mut self, wr_id: u64) -> u16 {
        let queue = &mut self.srq.queue;
        // SAFETY: no device accesses the memory.
        unsafe { queue.push(&RecvRequest { wr_id, sges: &[] }) }.expect("room");
        queue.ring();
        let slot = self.next;
        // SAFETY: a slot of the SRQ, which owns its memory.
        let [link, _] = unsafe { queue.slot(slot.into()).read() };
        self.next = (u64::from_be(link) >> 32) as u16;
        slot
    }

    fn is_full(&mut self) -> bool {
        let capacity = self.srq.queue.capacity();
        // SAFETY: no device accesses the memory.
        let pushed = unsafe { self.srq.queue.push(&RecvRequest { wr_id: u64::MAX, sges: &[] }) };
        self.srq.queue.abort();
        pushed == Err(PushError::QueueFull { capacity })
    }
}

/// All permutations of `0..count`.
fn orders(count: usize) -> Vec<Vec<usize>> {
    let Some(less) = count.checked_sub(1) else { return vec![Vec::new()] };
    let insert = |order: Vec<usize>| {
        (0..count).map(move |at| {
            let mut longer = order.clone();
            longer.insert(at, less);
            longer
        })
    };
    orders(less).into_iter().flat_map(insert).collect()
}

/// Posts `room` receives, which must fill the SRQ; returns their slots and `wr_id`s.
fn fill(device: &mut Device, room: usize, next_id: &mut u64) -> Vec<(u16, u64)> {
    let posted = (0..room).map(|_| {
        *next_id += 1;
        (device.post(*next_id), *next_id)
    });
    let posted = posted.collect();
    assert!(device.is_full());
    posted
}

#[test]
fn slots_return_in_every_order_over_three_rounds() {
    for capacity in [1, 3] {
        let orders = orders(capacity);
        for rounds in 0..orders.len().pow(3) {
            let mut device = Device::new(capacity as u32);
            let (mut next_id, mut rest) = (0, rounds);
            let mut posted = fill(&mut device, capacity, &mut next_id);
            for _ in 0..3 {
                let order = &orders[rest % orders.len()];
                rest /= orders.len();
                for &at in order {
                    let (slot, id) = posted[at];
                    assert_eq!(device.srq.queue.shared.complete(slot), Some(id));
                }
                posted = fill(&mut device, capacity, &mut next_id);
                let mut slots: Vec<_> = posted.iter().map(|(slot, _)| *slot).collect();
                slots.sort_unstable();
                slots.dedup();
                assert_eq!(slots.len(), capacity, "no slot is given twice");
            }
        }
    }
}

#[test]
fn any_subset_of_seven_slots_returns_in_any_order() {
    for (at, order) in orders(7).into_iter().enumerate() {
        let mut device = Device::new(7);
        let mut next_id = 0;
        let posted = fill(&mut device, 7, &mut next_id);
        let part = at % 8;
        for &at in &order[..part] {
            let (slot, id) = posted[at];
            assert_eq!(device.srq.queue.shared.complete(slot), Some(id));
            // A slot is returned once, even if the device completes it repeatedly.
            assert_eq!(device.srq.queue.shared.complete(slot), None, "a repeated CQE");
        }
        let again = fill(&mut device, part, &mut next_id);
        // The old end of the list is used first, then the returned slots in the order of their
        // return.
        let expected: Vec<_> = order[..part].iter().map(|&at| posted[at].0).collect();
        let slots: Vec<_> = again.iter().map(|(slot, _)| *slot).collect();
        assert_eq!(slots.get(1..).unwrap_or(&[]), &expected[..part.saturating_sub(1)]);
        // The receives that did not complete are still posted, with their `wr_id`s.
        for &at in &order[part..] {
            let (slot, id) = posted[at];
            assert_eq!(device.srq.queue.shared.complete(slot), Some(id));
        }
    }
}
