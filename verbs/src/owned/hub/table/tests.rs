use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Wake;

use proptest::prelude::*;

use super::*;

/// Counts how often it is woken.
#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn counting() -> (Arc<Count>, Waker) {
    let count = Arc::new(Count::default());
    (Arc::clone(&count), Waker::from(count))
}

fn idle() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

#[test]
fn result_wakes_the_last_task_that_polled() {
    let table = Table::new(1);
    let wr_id = table.insert(0, "read");
    let ((first, one), (last, two)) = (counting(), counting());
    for waker in [&one, &two, &two] {
        assert!(table.poll(wr_id, &Context::from_waker(waker)).is_pending());
    }
    let Reaped::Waiting(Some(waker)) = table.complete(wr_id, 7) else { panic!("a task waits") };
    waker.wake();
    assert_eq!((first.0.load(Ordering::Relaxed), last.0.load(Ordering::Relaxed)), (0, 1));
    assert_eq!(table.poll(wr_id, &idle()), Poll::Ready(Some(("read", 7))));
    assert_eq!(table.poll(wr_id, &idle()), Poll::Ready(None));
}

#[test]
fn detached_operation_is_kept_until_its_completion() {
    let table = Table::new(1);
    let wr_id = table.insert(0, Arc::new(()));
    assert!(table.detach(wr_id).is_none());
    let Reaped::Detached(operation) = table.complete(wr_id, ()) else { panic!("in flight until now") };
    assert_eq!(Arc::strong_count(&operation), 1);
    assert!(matches!(table.complete(wr_id, ()), Reaped::Unknown));
}

#[test]
fn zero_stale_and_repeated_wr_ids_match_no_operation() {
    let table = Table::<_, ()>::new(1);
    let first = table.insert(0, 1);
    for unknown in [0, 1, first + 1, first + (1 << 32), u64::MAX] {
        assert!(matches!(table.complete(unknown, ()), Reaped::Unknown), "{unknown:#x}");
        assert!(table.detach(unknown).is_none());
        assert_eq!(table.take_back(unknown), None);
    }
    assert!(matches!(table.complete(first, ()), Reaped::Waiting(None)));
    assert!(matches!(table.complete(first, ()), Reaped::Unknown), "repeated");
    assert_eq!(table.poll(first, &idle()), Poll::Ready(Some((1, ()))));
    let second = table.insert(0, 2);
    assert!(matches!(table.complete(first, ()), Reaped::Unknown), "stale");
    assert_eq!(table.take_back(second), Some(2));
    assert!(matches!(table.complete(second, ()), Reaped::Unknown), "taken back");
}

#[test]
fn abandoned_slot_is_free_in_every_state() {
    let table = Table::new(1);
    for end in 0..3 {
        let wr_id = table.insert(0, "buffer");
        match end {
            0 => {}
            1 => drop(table.complete(wr_id, ())),
            _ => drop(table.detach(wr_id)),
        }
        assert_eq!(table.abandon(0), Some(("buffer", end != 1)));
        assert_eq!(table.abandon(0), None);
        assert!(matches!(table.complete(wr_id, ()), Reaped::Unknown));
    }
    assert_eq!(table.abandon(1), None);
}

#[test]
fn generations_skip_zero_when_they_wrap() {
    let table = Table::<(), ()>::new(1);
    lock(&table.slots[0]).generation = NonZeroU32::new(LAST_GENERATION).unwrap();
    let last = table.insert(0, ());
    table.take_back(last).unwrap();
    assert_eq!(table.insert(0, ()), 1 << 32);
}

/// A waker whose clones and drops use the table, as code of users may.
#[test]
fn wakers_may_use_the_table_when_they_are_cloned_and_dropped() {
    use std::task::{RawWaker, RawWakerVTable};

    static TABLE: std::sync::LazyLock<Table<u8, ()>> = std::sync::LazyLock::new(|| Table::new(1));
    fn look() {
        // It would block if the lock of the slot was held.
        TABLE.inspect(1 << 32, |_| ());
    }
    fn clone(_: *const ()) -> RawWaker {
        look();
        RawWaker::new(std::ptr::null(), &VTABLE)
    }
    fn each(_: *const ()) {
        look();
    }
    static VTABLE: RawWakerVTable = RawWakerVTable::new(clone, each, each, each);
    // SAFETY: the functions use no data.
    let waker = unsafe { Waker::from_raw(RawWaker::new(std::ptr::null(), &VTABLE)) };
    let wr_id = TABLE.insert(0, 1);
    for waker in [&waker, Waker::noop(), &waker] {
        assert!(TABLE.poll(wr_id, &Context::from_waker(waker)).is_pending());
    }
    assert!(TABLE.detach(wr_id).is_none());
}

#[derive(Clone, Copy, Debug)]
enum Model {
    Posted,
    Detached,
    Done(u32),
}

proptest! {
    #[test]
    fn each_operation_ends_once_with_its_own_result(
        capacity in 1u32..4,
        steps in prop::collection::vec((0u8..7, any::<prop::sample::Index>(), 0u64..4, 0u64..5), 1..100),
    ) {
        let table = Table::new(capacity);
        let mut free: Vec<u32> = (0..capacity).collect();
        let mut model: HashMap<u64, (u32, Model)> = HashMap::new();
        for (step, (what, which, generation, slot)) in (0u32..).zip(steps) {
            // A `wr_id` of the model, or an arbitrary one.
            let mut ids: Vec<u64> = model.keys().copied().collect();
            ids.sort_unstable();
            ids.push(generation << 32 | slot);
            let id = ids[which.index(ids.len())];
            let known = model.get(&id).copied();
            match what {
                0 | 1 => if let Some(index) = free.pop() {
                    let id = table.insert(index, step);
                    prop_assert!(id != 0 && Table::<u32, u32>::index(id) == index);
                    prop_assert!(model.insert(id, (step, Model::Posted)).is_none());
                },
                2 => match (table.complete(id, step), known) {
                    (Reaped::Waiting(None), Some((operation, Model::Posted))) => {
                        model.insert(id, (operation, Model::Done(step)));
                    }
                    (Reaped::Detached(operation), Some((posted, Model::Detached))) => {
                        prop_assert_eq!(operation, posted);
                        model.remove(&id);
                        free.push(id as u32);
                    }
                    (Reaped::Unknown, None | Some((_, Model::Done(_)))) => {}
                    _ => prop_assert!(false, "completion of {:#x}", id),
                },
                3 => match (table.poll(id, &idle()), known) {
                    (Poll::Ready(Some(ended)), Some((operation, Model::Done(result)))) => {
                        prop_assert_eq!(ended, (operation, result));
                        model.remove(&id);
                        free.push(id as u32);
                    }
                    (Poll::Pending, Some((_, Model::Posted))) => {
                        // Leaves no waker, so that completions return none.
                        prop_assert!(table.with(id, |slot| slot.waker.take()).flatten().is_some());
                    }
                    (Poll::Ready(None), None | Some((_, Model::Detached))) => {}
                    _ => prop_assert!(false, "poll of {:#x}", id),
                },
                4 => match (table.detach(id), known) {
                    (None, Some((operation, Model::Posted))) => {
                        model.insert(id, (operation, Model::Detached));
                    }
                    (Some(operation), Some((posted, Model::Done(_)))) => {
                        prop_assert_eq!(operation, posted);
                        model.remove(&id);
                        free.push(id as u32);
                    }
                    (None, None | Some((_, Model::Detached))) => {}
                    _ => prop_assert!(false, "detach of {:#x}", id),
                },
                5 => match (table.lock_posted(id).and_then(Posted::take), known) {
                    (Some(operation), Some((posted, Model::Posted))) => {
                        prop_assert_eq!(operation, posted);
                        model.remove(&id);
                        free.push(id as u32);
                    }
                    (None, None | Some((_, Model::Done(_) | Model::Detached))) => {}
                    _ => prop_assert!(false, "success of {:#x}", id),
                },
                _ => match (table.take_back(id), known) {
                    (Some(operation), Some((posted, Model::Posted))) => {
                        prop_assert_eq!(operation, posted);
                        model.remove(&id);
                        free.push(id as u32);
                    }
                    (None, None | Some((_, Model::Done(_) | Model::Detached))) => {}
                    _ => prop_assert!(false, "take back of {:#x}", id),
                },
            }
        }
        for (operation, _) in model.values() {
            let left: Vec<_> = (0..capacity).filter(|slot| {
                lock(&table.slots[*slot as usize]).operation == Some(*operation)
            }).collect();
            prop_assert_eq!(left.len(), 1);
        }
    }
}
