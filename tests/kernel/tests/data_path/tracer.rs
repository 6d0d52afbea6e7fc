//! A process under `ptrace`: records all its system calls.

use std::fs;
use std::os::fd::RawFd;
use std::path::PathBuf;

use bareverbs_kernel_tests::child;
use nix::libc;
use nix::sys::ptrace;
use nix::sys::signal::{Signal, raise};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{Pid, close};

/// A system call of the traced process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    /// Its number.
    pub(crate) number: i64,
    /// The file of its first argument, if that is an open descriptor.
    pub(crate) file: Option<PathBuf>,
    first_argument: u64,
}

impl Call {
    /// Whether it operates on the device file.
    pub(crate) fn is_on_the_device(&self) -> bool {
        self.file.as_ref().is_some_and(|file| file.to_string_lossy().starts_with("/dev/infiniband/uverbs"))
    }
}

/// A descriptor that is never open. Closing it only marks a position.
const MARK: RawFd = 0x6d61_726b;

/// Marks a position in the calls of a traced process.
pub(crate) fn mark() {
    assert!(close(MARK).is_err(), "nothing is open there");
}

/// The system calls of `work` in a child process, which must succeed.
pub(crate) fn calls_of(work: impl FnOnce()) -> Vec<Call> {
    let process = child::start(|| {
        ptrace::traceme().expect("the parent traces");
        raise(Signal::SIGSTOP).expect("it stops");
        work();
    });
    assert_eq!(waitpid(process, None), Ok(WaitStatus::Stopped(process, Signal::SIGSTOP)));
    let options = ptrace::Options::PTRACE_O_TRACESYSGOOD
        | ptrace::Options::PTRACE_O_EXITKILL
        | ptrace::Options::PTRACE_O_TRACEEXEC;
    ptrace::setoptions(process, options).expect("it is stopped");

    let (mut calls, mut entering, mut signal) = (Vec::new(), true, None);
    loop {
        ptrace::syscall(process, signal.take()).expect("it is stopped");
        match waitpid(process, None).expect("it is a child") {
            WaitStatus::PtraceSyscall(_) => {
                if entering {
                    calls.push(call(process));
                }
                entering = !entering;
            }
            WaitStatus::Stopped(_, arrived) => signal = Some(arrived),
            WaitStatus::PtraceEvent(..) => {}
            WaitStatus::Exited(_, 0) => return calls,
            ended => panic!("the traced process failed: {ended:?}"),
        }
    }
}

fn call(process: Pid) -> Call {
    let registers = ptrace::getregs(process).expect("it is stopped");
    let file = fs::read_link(format!("/proc/{process}/fd/{}", registers.rdi)).ok();
    Call { number: registers.orig_rax as i64, file, first_argument: registers.rdi }
}

/// The calls between each mark and the next.
pub(crate) fn between_marks(calls: &[Call]) -> Vec<&[Call]> {
    let is_mark = |call: &Call| call.number == libc::SYS_close && call.first_argument as u32 == MARK as u32;
    let parts: Vec<_> = calls.split(is_mark).collect();
    assert!(parts.len() > 2, "fewer than two marks");
    parts[1..parts.len() - 1].to_vec()
}
