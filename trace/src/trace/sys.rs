//! The system calls of a tracer, by `ptrace(2)`.
//!
//! nix names signals by an enumeration without the real-time signals, which the C library uses, so
//! stops and signals are numbers here.

use std::ffi::CString;
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::mem::size_of_val;

use nix::libc;
use nix::sys::signal::{SigHandler, SigSet, SigmaskHow, Signal, raise, signal, sigprocmask};
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::{ForkResult, Pid, execvp, fork};

use super::filter;

/// `PTRACE_EVENT_…`: bits 16 and up of the status of a stop.
pub(super) const EVENT_EXEC: i32 = libc::PTRACE_EVENT_EXEC;
pub(super) const EVENT_SECCOMP: i32 = libc::PTRACE_EVENT_SECCOMP;
pub(super) const EVENT_STOP: i32 = 128;
/// Signal number of a stop at a system call.
pub(super) const SYSCALL_STOP: i32 = libc::SIGTRAP | 0x80;

/// Requests that access no memory of this process, of `linux/ptrace.h`.
#[derive(Clone, Copy)]
enum Control {
    Cont = 7,
    Detach = 17,
    Syscall = 24,
    Seize = 0x4206,
    Interrupt = 0x4207,
    Listen = 0x4208,
}

/// Requests that write to this process.
const GETEVENTMSG: u32 = 0x4201;
const GET_SYSCALL_INFO: u32 = 0x420e;

/// Number of bytes of the kernel's `struct ptrace_syscall_info`.
const INFO: usize = 88;

/// # Safety
///
/// The request accesses no memory of this process, or `data` is the address of a buffer that it may
/// write, of the size in `address` or, for `GETEVENTMSG`, of an `unsigned long`.
unsafe fn request(request: u32, thread: i32, address: usize, data: usize) -> io::Result<i64> {
    // SAFETY: as the caller guarantees. The type of the request differs between C libraries.
    let result = unsafe { libc::ptrace(request as _, thread, address, data) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn control(control: Control, thread: i32, data: usize) -> io::Result<()> {
    // SAFETY: a `Control` accesses no memory of this process.
    unsafe { request(control as u32, thread, 0, data) }.map(drop)
}

/// Attaches to a thread without a stop. Threads and processes that it creates are attached too.
/// `kill` kills it when this process ends.
pub(super) fn seize(thread: i32, kill: bool) -> io::Result<()> {
    let options = libc::PTRACE_O_TRACESYSGOOD
        | libc::PTRACE_O_TRACECLONE
        | libc::PTRACE_O_TRACEFORK
        | libc::PTRACE_O_TRACEVFORK
        | libc::PTRACE_O_TRACEEXEC
        | libc::PTRACE_O_TRACESECCOMP
        | if kill { libc::PTRACE_O_EXITKILL } else { 0 };
    control(Control::Seize, thread, options as usize)
}

/// Stops a thread.
pub(super) fn interrupt(thread: i32) -> io::Result<()> {
    control(Control::Interrupt, thread, 0)
}

/// Resumes a stopped thread up to the next event, and delivers a signal (0: none).
pub(super) fn resume(thread: i32, signal: i32) -> io::Result<()> {
    control(Control::Cont, thread, signal as usize)
}

/// The same, up to the next beginning or end of a system call.
pub(super) fn resume_to_syscall(thread: i32, signal: i32) -> io::Result<()> {
    control(Control::Syscall, thread, signal as usize)
}

/// Leaves a thread stopped with its group, until SIGCONT.
pub(super) fn listen(thread: i32) -> io::Result<()> {
    control(Control::Listen, thread, 0)
}

/// Detaches from a stopped thread, and delivers a signal (0: none).
pub(super) fn detach(thread: i32, signal: i32) -> io::Result<()> {
    control(Control::Detach, thread, signal as usize)
}

/// The message of an event: for exec, the former id of the thread.
pub(super) fn event_message(thread: i32) -> io::Result<u64> {
    let mut message = 0_u64;
    // SAFETY: the kernel writes an `unsigned long`, which is not longer.
    unsafe { request(GETEVENTMSG, thread, 0, (&raw mut message).expose_provenance())? };
    Ok(message)
}

/// What a thread does at a stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Syscall {
    /// It begins a system call.
    Entry {
        /// Its number.
        number: i64,
        /// Its arguments.
        arguments: [u64; 6],
    },
    /// It ends one with this result: a negative errno for an error.
    Exit(i64),
    /// Neither, or a system call of another architecture.
    Other,
}

/// The system call of a stopped thread.
pub(super) fn syscall(thread: i32) -> io::Result<Syscall> {
    let mut info = [0_u64; INFO / 8];
    let size = size_of_val(&info);
    // SAFETY: `info` has `size` bytes.
    unsafe { request(GET_SYSCALL_INFO, thread, size, info.as_mut_ptr().expose_provenance())? };
    let [kind, ..] = info[0].to_ne_bytes();
    let [_, _, _, _, architecture @ ..] = info[0].to_ne_bytes();
    if filter::ARCHITECTURE.is_some_and(|native| native != u32::from_ne_bytes(architecture)) {
        return Ok(Syscall::Other);
    }
    Ok(match kind {
        1 | 3 => {
            let mut arguments = [0; 6];
            arguments.copy_from_slice(&info[4..10]);
            Syscall::Entry { number: info[3].cast_signed(), arguments }
        }
        2 => Syscall::Exit(info[3].cast_signed()),
        _ => Syscall::Other,
    })
}

/// A change of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Change {
    Exited(i32),
    Killed(i32),
    /// It stopped with a signal and an event (0: none).
    Stopped(i32, i32),
}

/// The next change of any thread that has happened already; `Ok(None)` if there is none.
///
/// # Errors
/// `ECHILD` if no thread is left.
pub(super) fn wait() -> io::Result<Option<(i32, Change)>> {
    let mut status = 0;
    // SAFETY: `status` is an integer that the kernel writes.
    let thread = unsafe { libc::waitpid(-1, &raw mut status, libc::__WALL | libc::WNOHANG) };
    let change = match thread {
        ..0 => return Err(io::Error::last_os_error()),
        0 => return Ok(None),
        _ if libc::WIFEXITED(status) => Change::Exited(libc::WEXITSTATUS(status)),
        _ if libc::WIFSIGNALED(status) => Change::Killed(libc::WTERMSIG(status)),
        _ => Change::Stopped(libc::WSTOPSIG(status), status >> 16),
    };
    Ok(Some((thread, change)))
}

/// Fills `buffer` from the memory of a process; `false` if it can't be read entirely.
pub(super) fn read_memory(process: i32, address: u64, buffer: &mut [u8]) -> bool {
    let len = buffer.len();
    let Ok(base) = usize::try_from(address) else { return false };
    let remote = [RemoteIoVec { base, len }];
    len == 0 || process_vm_readv(Pid::from_raw(process), &mut [IoSliceMut::new(buffer)], &remote) == Ok(len)
}

/// Starts a program that stops before it runs. After its continuation it makes only the calls of the
/// filter stop, if `filtered`, and has the signal mask `mask`.
///
/// The caller must have one thread.
pub(super) fn start(command: &[CString], filtered: bool, mask: &SigSet) -> io::Result<i32> {
    let filter = filtered.then(filter::program).flatten();
    let failure = |what: &str| format!("bareverbs: {what} {:?}: ", command[0]).into_bytes();
    let (no_program, no_filter) = (failure("can't run"), failure("can't filter the system calls of"));
    // SAFETY: the child makes system calls on values that exist already, and ends with exec or
    // _exit. It allocates only to format an error, which this process with one thread may do.
    if let ForkResult::Parent { child } = unsafe { fork() }? {
        return Ok(child.as_raw());
    }
    // SAFETY: the default handler runs no code of this process.
    let _ = unsafe { signal(Signal::SIGPIPE, SigHandler::SigDfl) };
    let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(mask), None);
    let _ = raise(Signal::SIGSTOP);
    let (text, error, status) = match filter.map(|filter| filter::install(&filter)) {
        Some(Err(error)) => (no_filter, error, 126),
        _ => {
            let Err(errno) = execvp(&command[0], command);
            let missing = errno == nix::errno::Errno::ENOENT;
            (no_program, errno.into(), if missing { 127 } else { 126 })
        }
    };
    let line = format!("{error}\n");
    let _ = io::stderr().write_vectored(&[IoSlice::new(&text), IoSlice::new(line.as_bytes())]);
    // SAFETY: _exit ends the process and runs no code of it.
    unsafe { libc::_exit(status) }
}

/// Waits until a child has stopped.
pub(super) fn wait_for_stop(child: i32) -> io::Result<()> {
    // SAFETY: no status is asked for.
    let result = unsafe { libc::waitpid(child, std::ptr::null_mut(), libc::WUNTRACED) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// Sends a signal to a process.
pub(super) fn kill(process: i32, signal: i32) -> io::Result<()> {
    // SAFETY: kill has no pointer argument.
    let result = unsafe { libc::kill(process, signal) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
