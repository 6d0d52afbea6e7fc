use bareverbs_provider::work::Sge;
use proptest::collection::vec;
use proptest::prelude::*;

use super::*;
use crate::testing::{Plain, PlainSrq};

/// A device that reads published receives in the order of the list.
struct Device {
    srq: PlainSrq,
    /// The slot of the next receive.
    next: u16,
    published: u16,
    /// Slots and `wr_id`s of the receives that the device has read.
    taken: Vec<(u16, u64)>,
}

impl Device {
    fn fetch(&mut self, ids: &mut Vec<u64>) {
        self.published = self.published.wrapping_add(ids.len() as u16);
        assert_eq!(self.srq.queue.record.get(Word::First), u32::from(self.published));
        for id in ids.drain(..) {
            self.taken.push((self.next, id));
            // SAFETY: a slot of the SRQ, which owns its memory.
            let [link, _] = unsafe { self.srq.queue.slot(self.next.into()).read() };
            self.next = (u64::from_be(link) >> 32) as u16;
        }
    }
}

#[test]
fn returned_slots_are_reused_in_order() {
    let context = Plain::new(4).expect("memory");
    let srq = context.srq(3, 1).expect("memory");
    let mut device = Device { srq, next: 0, published: 0, taken: Vec::new() };
    let post = |device: &mut Device, id| {
        // SAFETY: no device accesses the memory.
        unsafe { device.srq.queue.push(&RecvRequest { wr_id: id, sges: &[] }) }.expect("room");
        device.srq.queue.ring();
        device.fetch(&mut vec![id]);
    };
    (0..3).for_each(|id| post(&mut device, id));
    for slot in [1, 0, 2] {
        assert!(device.srq.queue.shared.complete(slot).is_some());
    }
    (3..6).for_each(|id| post(&mut device, id));
    let slots: Vec<_> = device.taken.iter().map(|(slot, _)| *slot).collect();
    assert_eq!(slots, [0, 1, 2, 3, 1, 0]);
}

proptest! {
    #[test]
    fn srq_free_list_never_becomes_cyclic(
        steps in vec((0u8..8, any::<prop::sample::Index>()), 0..200),
    ) {
        let context = Plain::new(4).expect("memory");
        let srq = context.srq(7, 2).expect("memory");
        let capacity = srq.queue.capacity() as usize;
        let mut device = Device { srq, next: 0, published: 0, taken: Vec::new() };
        let mut pushed = Vec::new();
        let sges = [Sge { addr: 64, length: 8, lkey: 1 }; 2];
        for (id, (step, which)) in (1..).zip(steps) {
            let queue = &mut device.srq.queue;
            let room = pushed.len() + device.taken.len() < capacity;
            let request = RecvRequest { wr_id: id, sges: &sges[..1 + usize::from(step & 1)] };
            match step {
                // SAFETY: no device accesses the memory.
                0 | 1 => match unsafe { queue.try_push(&request) || queue.push(&request).is_ok() } {
                    true => pushed.push(id),
                    false => prop_assert!(!room),
                },
                // SAFETY: no device accesses the memory.
                2 | 3 => if unsafe { queue.try_post(&request) } {
                    prop_assert!(room && pushed.is_empty());
                    device.fetch(&mut vec![id]);
                },
                4 => {
                    queue.ring();
                    device.fetch(&mut pushed);
                }
                5 => {
                    queue.abort();
                    pushed.clear();
                }
                _ if device.taken.is_empty() => {}
                _ => {
                    let (slot, id) = device.taken.swap_remove(which.index(device.taken.len()));
                    prop_assert_eq!(device.srq.queue.shared.complete(slot), Some(id));
                    // A repeated CQE is ignored.
                    prop_assert_eq!(device.srq.queue.shared.complete(slot), None);
                }
            }
        }
    }
}
