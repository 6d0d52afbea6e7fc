//! Keys: the numbers by which events name their identifiers.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock, RwLockWriteGuard};

use bareverbs::qp::QpType;
use bareverbs_provider::process::PerProcess;

use crate::PortSpace;

/// The key of an identifier or of a multicast membership. Events carry it.
///
/// A key is unique in the process and never reused. So an event of a destroyed identifier can't be
/// mistaken for one of another identifier.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(u64);

impl Key {
    /// The number, the kernel's `uid`. It is never 0.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({})", self.0)
    }
}

/// What the decoder of events must know about a live key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyInfo {
    pub(crate) port_space: PortSpace,
    pub(crate) qp_type: QpType,
}

/// The kernel gives no events to `uid` 0, so the first key is 1.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// The live keys of the process. It is one table for all channels, because an identifier may be
/// migrated while another thread has read an event of it from the old channel.
static LIVE: PerProcess<RwLock<BTreeMap<u64, KeyInfo>>> = PerProcess::empty();

/// `None` if the page of a fork guard can't be mapped. Then this process has no channel, and no key
/// gets events.
fn live() -> Option<&'static RwLock<BTreeMap<u64, KeyInfo>>> {
    LIVE.get().ok()
}

fn write() -> Option<RwLockWriteGuard<'static, BTreeMap<u64, KeyInfo>>> {
    Some(live()?.write().unwrap_or_else(PoisonError::into_inner))
}

/// Creates a key. It is live until [`retire`].
pub(crate) fn create(info: KeyInfo) -> Key {
    let key = Key(NEXT.fetch_add(1, Ordering::Relaxed));
    if let Some(mut live) = write() {
        live.insert(key.0, info);
    }
    key
}

/// Ends a key: its events are dropped from now on.
pub(crate) fn retire(key: Key) {
    if let Some(mut live) = write() {
        live.remove(&key.0);
    }
}

/// The key with the number `uid` of an event, if it is live.
pub(crate) fn find(uid: u64) -> Option<(Key, KeyInfo)> {
    let live = live()?.read().unwrap_or_else(PoisonError::into_inner);
    live.get(&uid).map(|info| (Key(uid), *info))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_unique_and_never_reused() {
        let info = KeyInfo { port_space: PortSpace::Udp, qp_type: QpType::UD };
        let (one, other) = (create(info), create(info));
        assert!(one != other && one.get() != 0 && other.get() > one.get());
        assert_eq!(find(one.get()), Some((one, info)));
        retire(one);
        assert_eq!(find(one.get()), None);
        assert_eq!(find(other.get()), Some((other, info)));
        retire(other);
        assert_eq!(find(0), None);
        assert!(create(info) > other);
    }
}
