//! Counters of the port and of the RDMA device, before and after a run.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use bareverbs_netlink::RdmaNetlink;
use serde::{Deserialize, Serialize};

/// A counter that changed during the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Change {
    pub(crate) name: String,
    pub(crate) change: u64,
    /// Whether the counter is one of losses, retries, errors or congestion.
    pub(crate) trouble: bool,
}

/// Parts of the names of counters that a healthy run does not change. Names consist of words with
/// underscores in between, and `ack_deferred` has no `err`.
const TROUBLE: [&str; 14] = [
    "err",
    "retry",
    "retries",
    "out_of_seq",
    "out_of_sequence",
    "nak",
    "rnr",
    "dropped",
    "discard",
    "drop",
    "timeout",
    "duplicate",
    "cnp",
    "ecn_marked",
];

/// The counters at a time, by name.
pub(crate) struct Snapshot(BTreeMap<String, u64>);

impl Snapshot {
    /// The counters now. Those that can't be read are left out.
    pub(crate) fn take(device: &str, port: u8) -> Self {
        let folder = Path::new("/sys/class/infiniband").join(device).join(format!("ports/{port}/counters"));
        let mut counters = BTreeMap::new();
        for file in fs::read_dir(folder).into_iter().flatten().flatten() {
            let value = fs::read_to_string(file.path()).ok().and_then(|text| text.trim().parse().ok());
            if let (Ok(name), Some(value)) = (file.file_name().into_string(), value) {
                counters.insert(name, value);
            }
        }
        let own = RdmaNetlink::open().and_then(|mut netlink| netlink.port_counters(device, port));
        for counter in own.ok().flatten().into_iter().flatten() {
            counters.insert(counter.name, counter.value);
        }
        Self(counters)
    }

    /// The counters that changed since `before`.
    pub(crate) fn since(&self, before: &Self) -> Vec<Change> {
        let change = |(name, value): (&String, &u64)| {
            let change = value.wrapping_sub(*before.0.get(name)?);
            let words = name.replace("deferred", "");
            let trouble = TROUBLE.iter().any(|part| words.contains(part));
            (change != 0).then(|| Change { name: name.clone(), change, trouble })
        };
        self.0.iter().filter_map(change).collect()
    }
}

/// The line about counters of trouble, if any changed.
pub(crate) fn remark(changes: &[Change]) -> Option<String> {
    let trouble: Vec<_> = changes
        .iter()
        .filter(|change| change.trouble)
        .map(|Change { name, change, .. }| format!("{name} +{change}"))
        .collect();
    (!trouble.is_empty()).then(|| format!("counters: {}", trouble.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn snapshot(counters: &[(&str, u64)]) -> Snapshot {
        Snapshot(counters.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect())
    }

    #[test]
    fn changes_are_differences_of_counters_in_both_snapshots() {
        let before =
            snapshot(&[("sent_pkts", 10), ("retry_exceeded_err", 0), ("gone", 1), ("wraps", u64::MAX)]);
        let deferred = snapshot(&[("ack_deferred", 5)]).since(&snapshot(&[("ack_deferred", 1)]));
        assert_eq!(deferred.iter().map(|one| one.trouble).collect::<Vec<_>>(), [false], "it is no error");
        let after = snapshot(&[("sent_pkts", 30), ("retry_exceeded_err", 2), ("new", 5), ("wraps", 1)]);
        let changes = after.since(&before);
        let found: Vec<_> = changes.iter().map(|one| (one.name.as_str(), one.change, one.trouble)).collect();
        assert_eq!(found, [("retry_exceeded_err", 2, true), ("sent_pkts", 20, false), ("wraps", 2, false)]);
        assert_eq!(remark(&changes).unwrap(), "counters: retry_exceeded_err +2");
        assert_eq!(remark(&changes[1..]), None);
    }

    #[test]
    fn unknown_device_has_no_counters() {
        assert!(Snapshot::take("nosuch7", 1).0.is_empty());
    }
}
