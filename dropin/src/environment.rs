//! Variables of the environment. Nothing else reads it. Setuid programs have none of them.
//!
//! Those of rdma-core have its names and meanings. [docs/drop-in.md](../../docs/drop-in.md) lists all.

use std::ffi::{CString, OsStr, OsString};
use std::fmt::Display;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::sync::LazyLock;

/// The addresses of the soft devices that are listed, separated by commas.
pub(crate) const SOFT: &str = "BAREVERBS_SOFT";

/// What the variables ask for. They are read once, as by libibverbs.
pub(crate) struct Environment {
    /// To prepare for forks, once devices are listed.
    pub(crate) is_fork_safe: bool,
    /// To let objects of removed devices be destroyed without an error.
    pub(crate) destroys_removed: bool,
    /// To report devices without a provider.
    pub(crate) shows_warnings: bool,
    /// The folder of sysfs, without a slash at its end.
    pub(crate) sysfs: CString,
    /// On ConnectX, to share one doorbell register without BlueFlame.
    pub(crate) shares_doorbells: bool,
    /// On ConnectX, to elide the locks of all queues.
    pub(crate) is_single_threaded: bool,
    /// On ConnectX, to let the device place short messages into CQEs.
    pub(crate) scatters_to_cqe: bool,
    /// The file for the trace of the data path.
    pub(crate) trace: Option<PathBuf>,
    /// The file with the rules of faults.
    pub(crate) faults: Option<PathBuf>,
    /// The file for the texts of errors.
    log: Option<File>,
}

static ENVIRONMENT: LazyLock<Environment> = LazyLock::new(|| Environment::read(variable));

pub(crate) fn environment() -> &'static Environment {
    &ENVIRONMENT
}

/// A variable, of a program that has the rights of its user only.
pub(crate) fn variable(name: &str) -> Option<OsString> {
    // SAFETY: the call reads the auxiliary vector of the process.
    let is_secure = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    std::env::var_os(name).filter(|_| !is_secure)
}

/// The bytes of a CQE of a ConnectX. It is read for each CQ, as by libmlx5.
pub(crate) fn cqe_size() -> Option<OsString> {
    variable("MLX5_CQE_SIZE")
}

impl Environment {
    fn read(variable: impl Fn(&str) -> Option<OsString>) -> Self {
        let is_set = |name| variable(name).is_some_and(|value| value != "0");
        Self {
            is_fork_safe: is_set("RDMAV_FORK_SAFE") || is_set("IBV_FORK_SAFE"),
            destroys_removed: is_set("RDMAV_ALLOW_DISASSOC_DESTROY") || is_set("MLX4_DEVICE_FATAL_CLEANUP"),
            shows_warnings: variable("IBV_SHOW_WARNINGS").is_some(),
            sysfs: sysfs(variable("SYSFS_PATH")),
            shares_doorbells: is_set("MLX5_SHUT_UP_BF"),
            is_single_threaded: variable("MLX5_SINGLE_THREADED").is_some_and(|value| value == "1"),
            scatters_to_cqe: is_set("MLX5_SCATTER_TO_CQE"),
            trace: variable("BAREVERBS_TRACE").map(PathBuf::from),
            faults: variable("BAREVERBS_FAULTS").map(PathBuf::from),
            log: log(variable("VERBS_LOG_LEVEL").as_deref(), variable("VERBS_LOG_FILE").as_deref()),
        }
    }

    /// Appends a line to the log, if there is one.
    pub(crate) fn log(&self, error: &impl Display) {
        if let Some(mut file) = self.log.as_ref() {
            // A log that can't be written changes nothing else.
            let _ = file.write_all(format!("libibverbs: {error}\n").as_bytes());
        }
    }
}

/// A path with a zero byte can't be of the environment, so none is lost.
fn sysfs(path: Option<OsString>) -> CString {
    let mut path = path.map_or(b"/sys".to_vec(), OsString::into_vec);
    while path.last() == Some(&b'/') {
        path.pop();
    }
    CString::new(path).unwrap_or_default()
}

/// Opens the log. libibverbs has none either without both variables, or with level 0.
fn log(level: Option<&OsStr>, path: Option<&OsStr>) -> Option<File> {
    let level: u32 = str::from_utf8(level?.as_bytes()).ok()?.trim().parse().ok()?;
    let options = || OpenOptions::new().append(true).create(true).open(path?).ok();
    if level > 0 { options() } else { None }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;
    use std::path::Path;

    use super::*;

    fn read(variables: &[(&str, &str)]) -> Environment {
        let variables: HashMap<_, _> = variables.iter().copied().collect();
        Environment::read(|name| variables.get(name).map(OsString::from))
    }

    #[test]
    fn variables_are_set_unless_they_are_zero() {
        let none = read(&[("RDMAV_FORK_SAFE", "0"), ("MLX5_SHUT_UP_BF", "0"), ("MLX5_SCATTER_TO_CQE", "0")]);
        assert!(
            !none.is_fork_safe && !none.shares_doorbells && !none.scatters_to_cqe && !none.destroys_removed
        );
        assert!(!none.shows_warnings);
        assert!(read(&[("IBV_FORK_SAFE", "1")]).is_fork_safe);
        assert!(read(&[("RDMAV_FORK_SAFE", "")]).is_fork_safe);
        for name in ["RDMAV_ALLOW_DISASSOC_DESTROY", "MLX4_DEVICE_FATAL_CLEANUP"] {
            assert!(read(&[(name, "1")]).destroys_removed);
        }
        assert!(read(&[("MLX5_SHUT_UP_BF", "1")]).shares_doorbells);
        assert!(read(&[("MLX5_SCATTER_TO_CQE", "1")]).scatters_to_cqe);
        // As in libmlx5, no other value elides the locks.
        assert!(read(&[("MLX5_SINGLE_THREADED", "1")]).is_single_threaded);
        assert!(!read(&[("MLX5_SINGLE_THREADED", "2")]).is_single_threaded);
        assert!(read(&[("IBV_SHOW_WARNINGS", "0")]).shows_warnings);
    }

    #[test]
    fn traces_and_rules_have_the_files_of_their_variables() {
        let files = read(&[("BAREVERBS_TRACE", "/trace"), ("BAREVERBS_FAULTS", "/faults")]);
        assert_eq!(files.trace.as_deref(), Some(Path::new("/trace")));
        assert_eq!(files.faults.as_deref(), Some(Path::new("/faults")));
        assert!(read(&[]).trace.is_none() && read(&[]).faults.is_none());
    }

    #[test]
    fn sysfs_has_no_slash_at_its_end() {
        assert_eq!(read(&[]).sysfs, *c"/sys");
        assert_eq!(read(&[("SYSFS_PATH", "/a/b//")]).sysfs, *c"/a/b");
    }

    #[test]
    fn errors_are_logged_with_level_and_file() {
        let path = std::env::temp_dir().join(format!("bareverbs-dropin-log-{}", std::process::id()));
        let name = path.to_str().unwrap();
        for variables in [&[("VERBS_LOG_FILE", name)][..], &[("VERBS_LOG_LEVEL", "4")]] {
            read(variables).log(&"lost");
        }
        read(&[("VERBS_LOG_FILE", name), ("VERBS_LOG_LEVEL", "0")]).log(&"lost");
        assert!(!Path::new(name).exists());
        for error in ["one", "two"] {
            read(&[("VERBS_LOG_FILE", name), ("VERBS_LOG_LEVEL", "1")]).log(&error);
        }
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(path).unwrap();
        assert_eq!(text, "libibverbs: one\nlibibverbs: two\n");
    }
}
