//! Events of a channel that were read and not taken yet, by identifier.
//!
//! Connections that share a channel wait for their own events only. Any reader of the channel delivers
//! what it reads to the inbox of the event's key. Events of keys without an inbox are for the callers
//! of [`EventChannel::try_wait`](crate::EventChannel::try_wait).

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::task::Waker;

use bareverbs_uapi::rdma_cm::EventType;
use bareverbs_uapi::rdma_cm::structs::EventResp;

use crate::Key;

/// An inbox with this many events, or as many as the backlog of its listener, takes no requests.
///
/// A reader of another key reads them as well. The kernel counts only those that were not read, so its
/// backlog does not limit them.
pub(crate) const REQUESTS: usize = 4096;

/// The largest backlog that counts. That of the kernel has a maximum, too, which a listener may ask for.
const MAX_BACKLOG: u32 = 1 << 16;

/// The inboxes of a channel.
///
/// They hold the kernel's form of events. An event that owned an identifier would own the channel, and
/// keep itself alive.
#[derive(Default)]
pub(crate) struct Inboxes {
    claimed: BTreeMap<u64, Inbox>,
    unclaimed: Inbox,
    /// Whether a thread sleeps on the descriptor. Only that thread reads events then. Another reader
    /// would take the event that ends the sleep.
    pub(crate) sleeping: bool,
    /// Whether a task has waited.
    have_tasks: bool,
    /// Requests for which there was no room.
    refused: Vec<EventResp>,
}

#[derive(Default)]
struct Inbox {
    /// Those who have claimed the events.
    claims: usize,
    events: VecDeque<EventResp>,
    /// The backlog of the listener.
    backlog: usize,
    /// Tasks that wait for an event.
    wakers: Vec<Waker>,
}

impl Inboxes {
    /// Whether a key has an inbox.
    pub(crate) fn are_claimed(&self) -> bool {
        !self.claimed.is_empty()
    }

    /// Whether tasks may wait, which leave the events to a thread that sleeps.
    pub(crate) fn have_tasks(&self) -> bool {
        self.have_tasks
    }

    /// Claims the events of a key, which get an inbox of their own. Those that wait for any caller move
    /// there. `backlog` is that of a listener.
    pub(crate) fn claim(&mut self, key: Key, backlog: u32) {
        let events = remove(&mut self.unclaimed.events, &[key]);
        let inbox = self.claimed.entry(key.get()).or_default();
        inbox.claims += 1;
        inbox.events.extend(events);
        inbox.backlog = backlog.min(MAX_BACKLOG) as usize;
    }

    /// Ends a claim, and with the last one the inbox of the key. Its events wait for any caller then.
    /// Returns whether there are such events. Tasks to be woken are added to `wakers`.
    #[must_use]
    pub(crate) fn unclaim(&mut self, key: Key, wakers: &mut Vec<Waker>) -> bool {
        let Entry::Occupied(mut inbox) = self.claimed.entry(key.get()) else { return false };
        inbox.get_mut().claims -= 1;
        if inbox.get().claims > 0 {
            return false;
        }
        let inbox = inbox.remove();
        wakers.extend(inbox.wakers);
        if inbox.events.is_empty() {
            return false;
        }
        self.unclaimed.events.extend(inbox.events);
        wakers.append(&mut self.unclaimed.wakers);
        true
    }

    /// Ends the inboxes of the keys, and removes their events. Returns the number of claims of the first
    /// key, and the events. Tasks that wait for the inboxes are added to `wakers`.
    pub(crate) fn remove(&mut self, keys: &[Key], wakers: &mut Vec<Waker>) -> (usize, Vec<EventResp>) {
        let (mut claims, mut events) = (None, Vec::new());
        for key in keys {
            let inbox = self.claimed.remove(&key.get()).unwrap_or_default();
            claims.get_or_insert(inbox.claims);
            events.extend(inbox.events);
            wakers.extend(inbox.wakers);
        }
        events.extend(remove(&mut self.unclaimed.events, keys));
        (claims.unwrap_or_default(), events)
    }

    fn of(&mut self, key: Option<Key>) -> &mut Inbox {
        let claimed = key.and_then(|key| self.claimed.get_mut(&key.get()));
        claimed.unwrap_or(&mut self.unclaimed)
    }

    /// Whether [`take`](Self::take) returns an event.
    pub(crate) fn has(&mut self, key: Option<Key>) -> bool {
        !self.of(key).events.is_empty()
    }

    /// Takes the oldest event of a key that has an inbox, or else one of any key that has none.
    pub(crate) fn take(&mut self, key: Option<Key>) -> Option<EventResp> {
        self.of(key).events.pop_front()
    }

    /// Adds an event. Tasks that wait for it are added to `wakers`. Requests for which there is no room
    /// are those of [`take_refused`](Self::take_refused).
    pub(crate) fn deliver(&mut self, event: EventResp, wakers: &mut Vec<Waker>) {
        let inbox = self.claimed.get_mut(&event.uid).unwrap_or(&mut self.unclaimed);
        let is_full = inbox.events.len() >= REQUESTS.max(inbox.backlog);
        if is_full && event.event == EventType::CONNECT_REQUEST {
            self.refused.push(event);
            return;
        }
        inbox.events.push_back(event);
        wakers.append(&mut inbox.wakers);
    }

    /// Takes the requests for which there was no room. The caller must destroy their identifiers, without
    /// a lock.
    #[must_use]
    pub(crate) fn take_refused(&mut self) -> Vec<EventResp> {
        std::mem::take(&mut self.refused)
    }

    /// Registers a task that waits for what [`take`](Self::take) would return, by a clone of `waker`.
    /// `false`: `clone` is empty. The caller clones `waker` without a lock, because that may run any
    /// code, and tries again.
    #[must_use]
    pub(crate) fn register(&mut self, key: Option<Key>, waker: &Waker, clone: &mut Option<Waker>) -> bool {
        self.have_tasks = true;
        let wakers = &mut self.of(key).wakers;
        if wakers.iter().any(|known| known.will_wake(waker)) {
            return true;
        }
        let clone = clone.take();
        let registered = clone.is_some();
        wakers.extend(clone);
        registered
    }

    /// Takes the tasks that wait for events of keys without an inbox.
    pub(crate) fn take_unclaimed_wakers(&mut self, wakers: &mut Vec<Waker>) {
        wakers.append(&mut self.unclaimed.wakers);
    }

    /// Takes all tasks that wait.
    pub(crate) fn take_wakers(&mut self, wakers: &mut Vec<Waker>) {
        self.take_unclaimed_wakers(wakers);
        self.claimed.values_mut().for_each(|inbox| wakers.append(&mut inbox.wakers));
    }
}

/// Removes the events of the keys.
fn remove(events: &mut VecDeque<EventResp>, keys: &[Key]) -> Vec<EventResp> {
    let (removed, kept) = events.drain(..).partition(|event| keys.iter().any(|key| key.get() == event.uid));
    *events = kept;
    removed.into()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use bareverbs::qp::QpType;
    use proptest::prelude::*;

    use super::*;
    use crate::PortSpace;
    use crate::key::{self, KeyInfo};
    use crate::testing::Count;

    fn keys<const N: usize>() -> [Key; N] {
        [(); N].map(|()| key::create(KeyInfo { port_space: PortSpace::Tcp, qp_type: QpType::RC }))
    }

    /// An event of a key, numbered by its status.
    fn event(key: Key, status: u32) -> EventResp {
        EventResp { uid: key.get(), status, ..EventResp::zeroed() }
    }

    proptest! {
        #[test]
        fn each_reader_gets_its_events_in_order(sent in proptest::collection::vec(0..4_usize, 0..50)) {
            let keys: [Key; 4] = keys();
            let mut inboxes = Inboxes::default();
            // The other two have none.
            keys[..2].iter().for_each(|key| inboxes.claim(*key, 0));
            for (status, of) in sent.iter().enumerate() {
                inboxes.deliver(event(keys[*of], status as u32), &mut Vec::new());
            }
            let mut take = |key| -> Vec<u32> {
                std::iter::from_fn(|| inboxes.take(key)).map(|event| event.status).collect()
            };
            let of = |which: std::ops::Range<usize>| -> Vec<u32> {
                let sent = sent.iter().enumerate().filter(|(_, of)| which.contains(of));
                sent.map(|(status, _)| status as u32).collect()
            };
            prop_assert_eq!(take(Some(keys[0])), of(0..1));
            prop_assert_eq!(take(Some(keys[1])), of(1..2));
            // A key without an inbox shares the events of the others.
            prop_assert_eq!(take(Some(keys[3])), of(2..4));
            prop_assert_eq!(take(None), []);
        }
    }

    #[test]
    fn events_move_with_their_inbox() {
        let [one, other] = keys();
        let (mut inboxes, mut wakers) = (Inboxes::default(), Vec::new());
        inboxes.deliver(event(one, 1), &mut wakers);
        inboxes.deliver(event(other, 2), &mut wakers);
        inboxes.claim(one, 0);
        assert!(inboxes.are_claimed());
        assert_eq!(inboxes.take(None).map(|event| event.status), Some(2));
        assert!(inboxes.unclaim(one, &mut wakers));
        assert!(!inboxes.are_claimed());
        assert_eq!(inboxes.take(None).map(|event| event.status), Some(1));

        inboxes.claim(one, 0);
        inboxes.deliver(event(one, 3), &mut wakers);
        inboxes.deliver(event(other, 4), &mut wakers);
        let (claims, events) = inboxes.remove(&[one, other], &mut wakers);
        assert!(claims == 1 && inboxes.take(None).is_none());
        assert_eq!(events.iter().map(|event| event.status).collect::<Vec<_>>(), [3, 4]);
    }

    #[test]
    fn delivery_wakes_the_tasks_of_its_inbox_once() {
        let [one, other] = keys();
        let counts = [Arc::new(Count::default()), Arc::new(Count::default())];
        let [of_one, of_any] = counts.clone().map(Waker::from);
        let mut inboxes = Inboxes::default();
        inboxes.claim(one, 0);
        for _ in 0..2 {
            for (key, waker) in [(Some(one), &of_one), (None, &of_any)] {
                assert!(inboxes.register(key, waker, &mut Some(waker.clone())));
            }
        }
        let mut deliver = |key| {
            let mut wakers = Vec::new();
            inboxes.deliver(event(key, 0), &mut wakers);
            wakers.into_iter().for_each(Waker::wake);
            counts.each_ref().map(|count| count.wakes())
        };
        assert_eq!(deliver(one), [1, 0]);
        assert_eq!(deliver(one), [1, 0]);
        assert_eq!(deliver(other), [1, 1]);
    }

    #[test]
    fn requests_beyond_the_room_of_an_inbox_are_refused() {
        let [key] = keys();
        for (backlog, room) in [(0, REQUESTS), (5000, 5000), (16, REQUESTS), (u32::MAX, 65_536)] {
            let mut inboxes = Inboxes::default();
            inboxes.claim(key, backlog);
            let request = EventResp { event: EventType::CONNECT_REQUEST, ..event(key, 0) };
            (0..room).for_each(|_| inboxes.deliver(request, &mut Vec::new()));
            assert!(inboxes.take_refused().is_empty());
            // Other events have room.
            for event in [request, event(key, 0)] {
                inboxes.deliver(event, &mut Vec::new());
            }
            assert_eq!(inboxes.take_refused().len(), 1);
            assert_eq!(std::iter::from_fn(|| inboxes.take(Some(key))).count(), room + 1);
        }
    }

    #[test]
    fn end_of_an_inbox_wakes_its_tasks_and_those_of_the_other_keys() {
        let [key] = keys();
        let counts = [Arc::new(Count::default()), Arc::new(Count::default())];
        let [own, of_any] = counts.clone().map(Waker::from);
        let (mut inboxes, mut wakers) = (Inboxes::default(), Vec::new());
        inboxes.claim(key, 0);
        inboxes.deliver(event(key, 1), &mut wakers);
        for (key, waker) in [(Some(key), own), (None, of_any)] {
            assert!(inboxes.register(key, &waker, &mut Some(waker.clone())));
        }
        assert!(inboxes.unclaim(key, &mut wakers));
        wakers.into_iter().for_each(Waker::wake);
        assert_eq!(counts.map(|count| count.wakes()), [1, 1]);
        assert!(inboxes.has(None), "any caller gets its event");
    }

    #[test]
    fn inbox_lasts_until_its_last_claim_ends() {
        let [key] = keys();
        let (mut inboxes, mut wakers) = (Inboxes::default(), Vec::new());
        inboxes.claim(key, 0);
        inboxes.claim(key, 0);
        inboxes.deliver(event(key, 1), &mut wakers);
        assert!(!inboxes.unclaim(key, &mut wakers));
        assert!(inboxes.take(None).is_none());
        assert!(inboxes.unclaim(key, &mut wakers));
        assert_eq!(inboxes.take(None).map(|event| event.status), Some(1));
        inboxes.claim(key, 0);
        assert!(!inboxes.unclaim(key, &mut wakers), "there is no event");
    }

    #[test]
    fn tasks_of_a_removed_inbox_are_handed_out() {
        let [key] = keys();
        let waker = Waker::from(Arc::new(Count::default()));
        let (mut inboxes, mut wakers) = (Inboxes::default(), Vec::new());
        inboxes.claim(key, 0);
        assert!(!inboxes.register(Some(key), &waker, &mut None), "it is to be cloned first");
        assert!(inboxes.register(Some(key), &waker, &mut Some(waker.clone())));
        let _ = inboxes.remove(&[key], &mut wakers);
        assert!(wakers.len() == 1 && wakers[0].will_wake(&waker));
    }
}
