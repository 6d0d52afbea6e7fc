//! Rules by which calls fail or wait, and completions become errors.

use std::ffi::c_int;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use bareverbs::raw::uapi::verbs_values::WcStatus;
use bareverbs::soft::Method;

use crate::abi::qp::ibv_qp;
use crate::environment::environment;

/// The errnos of rules, by name.
const ERRNOS: [(&str, c_int); 14] = [
    ("EACCES", libc::EACCES),
    ("EAGAIN", libc::EAGAIN),
    ("EBUSY", libc::EBUSY),
    ("EFAULT", libc::EFAULT),
    ("EINVAL", libc::EINVAL),
    ("EIO", libc::EIO),
    ("EMFILE", libc::EMFILE),
    ("ENODEV", libc::ENODEV),
    ("ENOENT", libc::ENOENT),
    ("ENOMEM", libc::ENOMEM),
    ("ENOSPC", libc::ENOSPC),
    ("EOPNOTSUPP", libc::EOPNOTSUPP),
    ("EPERM", libc::EPERM),
    ("ETIMEDOUT", libc::ETIMEDOUT),
];

pub(crate) fn errno_name(errno: c_int) -> String {
    let known = ERRNOS.iter().find(|(_, number)| *number == errno);
    known.map_or_else(|| errno.to_string(), |(name, _)| (*name).to_owned())
}

/// The method of a soft device that a function of C calls.
fn method(function: &str) -> Option<Method> {
    Some(match function {
        "ibv_open_device" => Method::Open,
        "ibv_query_device" | "query_device_ex" => Method::QueryDevice,
        "ibv_query_port" | "query_port" => Method::QueryPort,
        "ibv_query_gid" | "_ibv_query_gid_ex" | "_ibv_query_gid_table" => Method::QueryGid,
        "ibv_create_comp_channel" => Method::CreateCompChannel,
        "ibv_alloc_pd" => Method::AllocPd,
        "ibv_dealloc_pd" => Method::DeallocPd,
        "ibv_reg_mr"
        | "ibv_reg_mr_iova"
        | "ibv_reg_mr_iova2"
        | "ibv_reg_mr_ex"
        | "ibv_reg_buf_mr"
        | "ibv_reg_dmabuf_mr"
        | "mlx5dv_reg_dmabuf_mr" => Method::RegMr,
        "ibv_rereg_mr" => Method::ReregMr,
        "ibv_dereg_mr" => Method::DeregMr,
        "alloc_mw" => Method::AllocMw,
        "dealloc_mw" => Method::DeallocMw,
        "ibv_create_cq" | "create_cq_ex" => Method::CreateCq,
        "ibv_resize_cq" => Method::ResizeCq,
        "req_notify_cq" => Method::ReqNotifyCq,
        "ibv_destroy_cq" => Method::DestroyCq,
        "ibv_create_srq" | "create_srq_ex" => Method::CreateSrq,
        "ibv_modify_srq" => Method::ModifySrq,
        "ibv_query_srq" => Method::QuerySrq,
        "ibv_destroy_srq" => Method::DestroySrq,
        "ibv_create_qp" | "create_qp_ex" | "mlx5dv_create_qp" => Method::CreateQp,
        "ibv_modify_qp" => Method::ModifyQp,
        "ibv_query_qp" => Method::QueryQp,
        "ibv_destroy_qp" => Method::DestroyQp,
        "post_send" | "wr_complete" => Method::PostSend,
        "ibv_create_ah" | "ibv_create_ah_from_wc" => Method::CreateAh,
        "ibv_destroy_ah" => Method::DestroyAh,
        "ibv_attach_mcast" => Method::AttachMcast,
        "ibv_detach_mcast" => Method::DetachMcast,
        _ => return None,
    })
}

/// Which calls or completions a rule is about.
#[derive(Debug)]
struct Turn {
    nth: u64,
    /// Whether the later ones follow.
    repeats: bool,
    seen: AtomicU64,
}

impl Turn {
    /// `3` is the third, `3+` the third and those after it.
    fn parse(word: &str) -> Option<Self> {
        let number = word.strip_suffix('+');
        let nth = number.unwrap_or(word).parse().ok().filter(|&nth| nth > 0)?;
        Some(Self { nth, repeats: number.is_some(), seen: AtomicU64::new(0) })
    }

    /// Counts one. Returns whether it is one of them.
    fn next(&self) -> bool {
        let number = self.seen.fetch_add(1, Ordering::Relaxed) + 1;
        number == self.nth || self.repeats && number > self.nth
    }
}

#[derive(Debug, PartialEq)]
enum Effect {
    Fail(c_int),
    Wait(Duration),
}

/// Moves a QP to ERR. Its caller holds no lock of a queue, but that of `ibv_wr_start`, and the QP is live.
pub(crate) type FailQp = unsafe fn(*const ibv_qp);

/// A live QP.
struct LiveQp {
    qp_num: u32,
    address: *const ibv_qp,
    fail: FailQp,
}

// SAFETY: the address is used while the list is locked, and a QP is removed from it before it is destroyed.
unsafe impl Send for LiveQp {}

pub(crate) struct Faults {
    calls: Vec<(Method, Turn, Effect)>,
    completions: Vec<(Turn, WcStatus)>,
    qps: Mutex<Vec<LiveQp>>,
}

static FAULTS: LazyLock<Option<Faults>> =
    LazyLock::new(|| environment().faults.as_deref().and_then(Faults::read));

/// The rules of the environment. `None`: there are none, or their file can't be used.
pub(crate) fn faults() -> Option<&'static Faults> {
    FAULTS.as_ref()
}

/// Counts a call of a function of C, and fails or delays it by the rules.
///
/// # Errors
///
/// The errno of a rule.
pub(crate) fn before(function: &str) -> Result<(), c_int> {
    faults().map_or(Ok(()), |faults| faults.call(function))
}

/// Remembers a new QP, if its completions may become errors: then `fail` is called.
///
/// # Safety
///
/// The QP is live until [`forget`].
pub(crate) unsafe fn remember(qp: *const ibv_qp, fail: FailQp) {
    if let Some(faults) = faults() {
        // SAFETY: the QP is live.
        let qp_num = unsafe { (*qp).qp_num };
        faults.qps().push(LiveQp { qp_num, address: qp, fail });
    }
}

/// Forgets a QP, which is destroyed next.
pub(crate) fn forget(qp: *const ibv_qp) {
    if let Some(faults) = faults() {
        faults.qps().retain(|known| known.address != qp);
    }
}

impl Faults {
    /// Reads the rules. A file that can't be read, or a line that is no rule, is reported on standard error.
    fn read(path: &Path) -> Option<Self> {
        let text = fs::read_to_string(path).map_err(|error| error.to_string());
        match text.and_then(|text| Self::parse(&text)) {
            Ok(faults) => Some(faults),
            Err(reason) => {
                eprintln!("libibverbs: BAREVERBS_FAULTS: {}: {reason}", path.display());
                None
            }
        }
    }

    fn parse(text: &str) -> Result<Self, String> {
        let (mut calls, mut completions) = (Vec::new(), Vec::new());
        for (at, line) in text.lines().enumerate() {
            let words: Vec<_> = line.split('#').next().unwrap_or_default().split_whitespace().collect();
            let wrong = |what: &str| format!("line {}: {what}", at + 1);
            let [subject, turn, effect] = words[..] else {
                if words.is_empty() {
                    continue;
                }
                return Err(wrong("a rule has three words, such as RegMr 2 ENOMEM"));
            };
            let turn = Turn::parse(turn).ok_or_else(|| wrong("the second word is no number from 1 on"))?;
            if subject == "completion" {
                let status =
                    status(effect).ok_or_else(|| wrong("the third word is no error of a completion"))?;
                completions.push((turn, status));
            } else {
                let method = Method::ALL.iter().find(|method| format!("{method:?}") == subject);
                let method = *method.ok_or_else(|| wrong("the first word is no method"))?;
                let effect =
                    parse_effect(effect).ok_or_else(|| wrong("the third word is no errno or time"))?;
                calls.push((method, turn, effect));
            }
        }
        Ok(Self { calls, completions, qps: Mutex::default() })
    }

    /// Counts a call.
    fn call(&self, function: &str) -> Result<(), c_int> {
        let Some(method) = method(function) else { return Ok(()) };
        let mut failure = Ok(());
        for (of, turn, effect) in &self.calls {
            if *of == method && turn.next() {
                match *effect {
                    Effect::Fail(errno) => failure = failure.and(Err(errno)),
                    Effect::Wait(time) => thread::sleep(time),
                }
            }
        }
        failure
    }

    /// Counts a completion, and returns the error that it becomes.
    pub(crate) fn completion(&self) -> Option<WcStatus> {
        let due = self.completions.iter().filter(|(turn, _)| turn.next()).map(|(_, status)| *status);
        // Each rule counts.
        due.collect::<Vec<_>>().first().copied()
    }

    /// A panic ends the process, so the lock is never poisoned.
    fn qps(&self) -> MutexGuard<'_, Vec<LiveQp>> {
        self.qps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Moves the QP of a completion that became an error to ERR, as a device does. The caller holds no lock
    /// of a queue, but that of `ibv_wr_start`.
    pub(crate) fn fail_qp(&self, qp_num: u32) {
        for qp in self.qps().iter().filter(|qp| qp.qp_num == qp_num) {
            // SAFETY: the QP is live while it is in the list, which is locked.
            unsafe { (qp.fail)(qp.address) };
        }
    }
}

/// An error that a device reports first.
fn status(word: &str) -> Option<WcStatus> {
    let all = (1..64).map(WcStatus);
    all.filter(|status| *status != WcStatus::WR_FLUSH_ERR).find(|status| status.name() == Some(word))
}

/// An errno, or a time in `us`, `ms` or `s`.
fn parse_effect(word: &str) -> Option<Effect> {
    if let Some((_, errno)) = ERRNOS.iter().find(|(name, _)| *name == word) {
        return Some(Effect::Fail(*errno));
    }
    let units = [("us", 1), ("ms", 1000), ("s", 1_000_000)];
    let time =
        |(unit, factor): (&str, u64)| word.strip_suffix(unit)?.parse::<u64>().ok()?.checked_mul(factor);
    units.into_iter().find_map(time).map(|time| Effect::Wait(Duration::from_micros(time)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_select_calls_by_their_number() {
        let faults =
            Faults::parse("# none\nRegMr 2 ENOMEM\n\nCreateQp 1+ EIO # all\n").unwrap_or_else(|_| panic!());
        let call = |function| faults.call(function).err().unwrap_or(0);
        assert_eq!([call("ibv_reg_mr"), call("ibv_reg_mr_iova2"), call("ibv_reg_mr")], [0, libc::ENOMEM, 0]);
        assert_eq!([call("ibv_create_qp"), call("create_qp_ex"), call("ibv_free_device_list")], [5, 5, 0]);
        for (rule, functions) in [
            ("PostSend", ["post_send", "wr_complete"]),
            ("CreateCq", ["ibv_create_cq", "create_cq_ex"]),
            ("CreateSrq", ["ibv_create_srq", "create_srq_ex"]),
            ("QueryDevice", ["ibv_query_device", "query_device_ex"]),
            ("QueryPort", ["ibv_query_port", "query_port"]),
            ("RegMr", ["ibv_reg_mr_ex", "ibv_reg_dmabuf_mr"]),
            ("CreateAh", ["ibv_create_ah", "ibv_create_ah_from_wc"]),
        ] {
            // Each rule counts, also behind one that fails the call.
            let rules = format!("{rule} 1 EPERM\n{rule} 2 EMFILE");
            let faults = Faults::parse(&rules).unwrap_or_else(|_| panic!());
            let failed = functions.map(|function| faults.call(function).err());
            assert_eq!(failed, [Some(libc::EPERM), Some(libc::EMFILE)], "{rule}");
        }
    }

    #[test]
    fn rules_select_completions_by_their_number() {
        let faults = Faults::parse("completion 2 RNR_RETRY_EXC_ERR").unwrap_or_else(|_| panic!());
        let all = [(); 3].map(|()| faults.completion());
        assert_eq!(all, [None, Some(WcStatus::RNR_RETRY_EXC_ERR), None]);
    }

    #[test]
    fn times_are_delays() {
        assert_eq!(parse_effect("250us"), Some(Effect::Wait(Duration::from_micros(250))));
        assert_eq!(parse_effect("3ms"), Some(Effect::Wait(Duration::from_millis(3))));
        assert_eq!(parse_effect("1s"), Some(Effect::Wait(Duration::from_secs(1))));
        assert_eq!(parse_effect("1h"), None);
    }

    #[test]
    fn lines_that_are_no_rules_are_reported_with_their_number() {
        for (text, reason) in [
            ("RegMr 1", "line 1: a rule has three words"),
            ("\nreg_mr 1 EIO", "line 2: the first word is no method"),
            ("RegMr 0 EIO", "the second word"),
            ("RegMr 1 EWHAT", "the third word is no errno or time"),
            ("completion 1 SUCCESS", "the third word is no error of a completion"),
            ("completion 1 WR_FLUSH_ERR", "the third word is no error of a completion"),
        ] {
            let error = Faults::parse(text).err().unwrap_or_default();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
