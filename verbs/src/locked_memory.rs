//! The limit on locked memory, as the cause of a refused command.
//!
//! The kernel pins the memory of a region that is not ODP, and with some drivers that of queues
//! (`ib_umem_get` of `core/umem.c`). It refuses with `EPERM` if `RLIMIT_MEMLOCK` is 0, and with
//! `ENOMEM` if the process would pin more than the limit. `CAP_IPC_LOCK` in the initial user
//! namespace lifts both.

use std::fs;

use bareverbs_provider::traits::Provider;
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};
use rustix::thread::{CapabilitySet, capabilities};

const REMEDY: &str = "raise it with `ulimit -l` or LimitMEMLOCK=, or run with CAP_IPC_LOCK";

/// The cause of `errno` for a command that pins `length` bytes; `None` if the length is unknown.
/// Returns `None` if the limit is not the cause.
pub(crate) fn hint(errno: Errno, length: Option<u64>) -> Option<String> {
    matches!(errno, Errno::PERM | Errno::NOMEM).then(Limits::of_process)?.cause(errno, length)
}

/// The cause of `errno` for a command that creates or resizes a queue.
pub(crate) fn queue_hint(errno: Errno, provider: &impl Provider) -> Option<String> {
    if provider.capabilities().pins_queues { hint(errno, None) } else { None }
}

/// Whether the capability is effective, in the user namespace of the process.
pub(crate) fn has_capability(capability: CapabilitySet) -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(capability))
}

/// The limit on locked memory and what counts against it, in bytes.
struct Limits {
    /// `RLIMIT_MEMLOCK`; `None` if it is unlimited.
    limit: Option<u64>,
    pinned: u64,
    /// Whether the process has `CAP_IPC_LOCK` in the initial user namespace.
    exempt: bool,
}

impl Limits {
    fn of_process() -> Self {
        let read = |file| fs::read_to_string(file).unwrap_or_default();
        let (status, uid_map) = (read("/proc/self/status"), read("/proc/self/uid_map"));
        let limit = getrlimit(Resource::Memlock).current;
        Self::new(limit, has_capability(CapabilitySet::IPC_LOCK), &status, &uid_map)
    }

    /// Those of a process with these `/proc/self/status` and `/proc/self/uid_map`. `capable`: it has
    /// `CAP_IPC_LOCK` in its user namespace.
    fn new(limit: Option<u64>, capable: bool, status: &str, uid_map: &str) -> Self {
        Self { limit, pinned: pinned(status), exempt: capable && is_identity(uid_map) }
    }

    fn cause(&self, errno: Errno, length: Option<u64>) -> Option<String> {
        let limit = self.limit.filter(|_| !self.exempt)?;
        if errno == Errno::PERM {
            return (limit == 0)
                .then(|| format!("RLIMIT_MEMLOCK is 0, so the process may not pin memory: {REMEDY}"));
        }
        let pinned = self.pinned;
        match length {
            Some(length) if pinned.saturating_add(length) > limit => Some(format!(
                "{length} bytes and the {pinned} bytes that the process has pinned exceed the limit on \
                 locked memory, RLIMIT_MEMLOCK = {limit} bytes: {REMEDY}"
            )),
            Some(_) => None,
            None => Some(format!(
                "the memory of the queue may exceed the limit on locked memory, RLIMIT_MEMLOCK = {limit} \
                 bytes, of which {pinned} are pinned: {REMEDY}; or the kernel or the device has no \
                 memory left"
            )),
        }
    }
}

/// The pinned memory in bytes that `/proc/self/status` reports.
fn pinned(status: &str) -> u64 {
    let kibibytes = || {
        let line = status.lines().find_map(|line| line.strip_prefix("VmPin:"))?;
        line.trim().strip_suffix(" kB")?.parse::<u64>().ok()
    };
    kibibytes().unwrap_or(0).saturating_mul(1024)
}

/// Whether `/proc/self/uid_map` is that of the initial user namespace.
fn is_identity(uid_map: &str) -> bool {
    uid_map.split_whitespace().eq(["0", "0", "4294967295"])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Plain;

    const LIMITS: Limits = Limits { limit: Some(65536), pinned: 61440, exempt: false };

    #[test]
    fn limit_of_zero_is_the_cause_of_eperm() {
        let cause = |limit, exempt| Limits { limit, exempt, ..LIMITS }.cause(Errno::PERM, Some(4096));
        assert!(cause(Some(0), false).unwrap().starts_with("RLIMIT_MEMLOCK is 0, so"));
        assert_eq!(cause(Some(4096), false), None);
        assert_eq!(cause(None, false), None);
        assert_eq!(cause(Some(0), true), None);
    }

    #[test]
    fn exceeded_limit_is_the_cause_of_enomem() {
        let cause = |length| LIMITS.cause(Errno::NOMEM, length);
        assert_eq!(cause(Some(4096)), None, "it fits exactly");
        let exceeded = cause(Some(4097)).unwrap();
        assert!(
            exceeded.starts_with("4097 bytes and the 61440 bytes that the process has pinned exceed"),
            "{exceeded}"
        );
        assert!(exceeded.contains("RLIMIT_MEMLOCK = 65536 bytes: raise it"), "{exceeded}");
        assert!(cause(None).unwrap().contains("the memory of the queue may exceed"));
        let unlimited = Limits { limit: None, ..LIMITS };
        assert_eq!(unlimited.cause(Errno::NOMEM, Some(u64::MAX)), None);
        assert_eq!(unlimited.cause(Errno::NOMEM, None), None);
    }

    #[test]
    fn capability_exempts_in_the_initial_user_namespace_only() {
        let (initial, mapped) = ("         0          0 4294967295\n", "         0     100000      65536\n");
        let rootless = "         0       1000          1\n         1     100000      65536\n";
        for (capable, uid_map, exempt) in [
            (true, initial, true),
            (false, initial, false),
            (true, mapped, false),
            (true, rootless, false),
            (true, "", false),
        ] {
            let limits = Limits::new(Some(0), capable, "VmPin:\t      60 kB\n", uid_map);
            assert_eq!((limits.exempt, limits.pinned), (exempt, 61440), "{capable}, {uid_map:?}");
            assert_eq!(limits.cause(Errno::PERM, Some(4096)).is_none(), exempt);
        }
    }

    #[test]
    fn queues_that_are_not_pinned_have_no_hint() {
        assert_eq!(queue_hint(Errno::NOMEM, &Plain::default()), None);
    }

    #[test]
    fn procfs_lines_are_parsed() {
        assert_eq!(pinned("VmLck:\t       0 kB\nVmPin:\t      60 kB\nVmHWM:\t 100 kB\n"), 61440);
        assert_eq!(pinned(""), 0);
        assert!(is_identity("         0          0 4294967295\n"));
        assert!(!is_identity("         0     100000      65536\n"));
    }
}
