//! Tracing of programs: every call of a kernel's RDMA interface, before and after the kernel.
//!
//! The tracer uses `ptrace(2)` and follows any program, with its threads and child processes. In a
//! program that it starts, a seccomp filter stops only the calls that can be of such an interface: verbs
//! ioctls, reads, writes, and the sends and receives of sockets. All other calls run at full speed.
//! A process that runs already is stopped at each system call.
//!
//! ```no_run
//! use std::ops::ControlFlow;
//!
//! use bareverbs_trace::trace::{Target, trace};
//!
//! let command = ["ibv_devinfo", "-v"].map(Into::into).to_vec();
//! let end = trace(&Target::Command(command), |record| {
//!     println!("{}", record.text());
//!     ControlFlow::Continue(())
//! })?;
//! println!("{end:?}");
//! # Ok::<(), bareverbs_trace::trace::TraceError>(())
//! ```

mod files;
mod filter;
mod hex;
mod record;
mod summary;
mod sys;

use std::collections::HashMap;
use std::ffi::{CString, OsString};
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStringExt;
use std::time::Instant;
use std::{fs, io};

use bareverbs_uapi::decode::Memory;
use bareverbs_uapi::ioctl::{Header, VERBS_IOCTL};
use bareverbs_uapi::print::native;
use bareverbs_uapi::rdma_cm;
use bareverbs_uapi::registry;
use bareverbs_uapi::write::EXTENDED;
use bareverbs_uapi::write::structs::{CmdHdr, ExCmdHdr};
use nix::libc;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, sigprocmask};
use zerocopy::FromBytes;

pub use files::Interface;
pub use record::{CallKind, Chunk, Record};
pub use summary::Summary;

use crate::overread_len;
use files::Files;
use sys::{Change, Syscall};

/// What is traced.
#[derive(Clone, Debug)]
pub enum Target {
    /// A program that is started, and its arguments.
    Command(Vec<OsString>),
    /// A running process, by its id.
    Process(i32),
}

/// How a trace ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The program ended with this exit status.
    Exited(i32),
    /// A signal killed the program.
    Killed(i32),
    /// This signal ended the trace of a running process: SIGINT, SIGTERM or SIGHUP. The process
    /// continues.
    Interrupted(i32),
    /// The callback ended the trace of a running process, which continues.
    Detached,
}

/// A program can't be traced.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TraceError {
    /// The kernel does not permit it.
    #[error("can't trace process {process}: {error}; {remedy}")]
    Refused {
        /// The process.
        process: i32,
        /// The remedy.
        remedy: String,
        /// The answer of ptrace.
        error: io::Error,
    },
    /// The command is empty or has a NUL character.
    #[error("the command is empty or has a NUL character")]
    Command,
    /// Another system call of the tracer failed.
    #[error("the tracer failed: {0}")]
    System(#[from] io::Error),
}

/// The largest transfer that is recorded, in bytes.
const MAX_TRANSFER: u64 = 1 << 20;

/// The signals that the tracer waits for.
const SIGNALS: [Signal; 4] = [Signal::SIGCHLD, Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];

/// Traces a program until it ends, and its child processes end. `found` gets each call of an RDMA
/// interface when the call has ended; it can end the trace.
///
/// A program that is started gets SIGTERM and SIGHUP of this process, and is killed if this process
/// ends. SIGINT is left to the program: a terminal sends it to both. If `found` ends the trace, the
/// program is killed. A running process is left as it was: the tracer detaches from it.
///
/// While it runs, this thread blocks SIGCHLD, SIGINT, SIGTERM and SIGHUP. The calling process must
/// have no other child processes, and for [`Target::Command`] no other threads.
///
/// # Errors
/// [`TraceError`].
#[doc(alias = "ptrace")]
pub fn trace(target: &Target, found: impl FnMut(&Record) -> ControlFlow<()>) -> Result<End, TraceError> {
    let mut signals = SigSet::empty();
    SIGNALS.into_iter().for_each(|signal| signals.add(signal));
    let mut before = SigSet::empty();
    sigprocmask(SigmaskHow::SIG_BLOCK, Some(&signals), Some(&mut before)).map_err(io::Error::from)?;
    let result = run(target, &signals, &before, found);
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&before), None).map_err(io::Error::from)?;
    result
}

fn run(
    target: &Target,
    signals: &SigSet,
    mask: &SigSet,
    found: impl FnMut(&Record) -> ControlFlow<()>,
) -> Result<End, TraceError> {
    let started = matches!(target, Target::Command(_));
    let filtered = started && filter::is_supported();
    let process = match target {
        Target::Command(words) => start(words, filtered, mask)?,
        Target::Process(process) => {
            attach(*process)?;
            *process
        }
    };
    let mut tracer = Tracer {
        process,
        started,
        filtered,
        threads: HashMap::new(),
        files: Files::default(),
        start: Instant::now(),
        detaching: false,
        interrupted: None,
        end: None,
        found,
    };
    if !started {
        tasks(process).for_each(|task| tracer.know(task));
    }
    loop {
        match sys::wait() {
            Ok(Some((thread, change))) => tracer.changed(thread, change)?,
            Ok(None) => match signals.wait().map_err(io::Error::from)? {
                Signal::SIGCHLD => {}
                signal => tracer.signalled(signal),
            },
            Err(error) if error.raw_os_error() == Some(libc::ECHILD) => break,
            Err(error) => return Err(error.into()),
        }
    }
    let detached = tracer.interrupted.map_or(End::Detached, |signal| End::Interrupted(signal as i32));
    Ok(tracer.end.unwrap_or(detached))
}

fn start(words: &[OsString], filtered: bool, mask: &SigSet) -> Result<i32, TraceError> {
    let words = words.iter().map(|word| CString::new(word.clone().into_vec()));
    let words: Vec<_> = words.collect::<Result<_, _>>().map_err(|_| TraceError::Command)?;
    if words.is_empty() {
        return Err(TraceError::Command);
    }
    let process = sys::start(&words, filtered, mask)?;
    sys::wait_for_stop(process)?;
    if let Err(source) = sys::seize(process, true) {
        // It waits for its continuation and has done nothing.
        let _ = sys::kill(process, libc::SIGKILL);
        return Err(refused(process, source));
    }
    sys::kill(process, libc::SIGCONT)?;
    Ok(process)
}

fn tasks(process: i32) -> impl Iterator<Item = i32> {
    let tasks = fs::read_dir(format!("/proc/{process}/task")).into_iter().flatten().flatten();
    tasks.filter_map(|task| task.file_name().to_str()?.parse().ok())
}

/// Attaches to all threads of a process, and stops each once.
fn attach(process: i32) -> Result<(), TraceError> {
    let mut attached = Vec::new();
    loop {
        let new: Vec<_> = tasks(process).filter(|task| !attached.contains(task)).collect();
        if new.is_empty() {
            break;
        }
        for thread in new {
            // A thread that an attached one has created is attached already, and a thread may have ended.
            match sys::seize(thread, false) {
                Ok(()) => sys::interrupt(thread)?,
                Err(error) if thread == process || attached.is_empty() => {
                    return Err(refused(process, error));
                }
                Err(_) => {}
            }
            attached.push(thread);
        }
    }
    match attached.is_empty() {
        true => Err(refused(process, io::Error::from_raw_os_error(libc::ESRCH))),
        false => Ok(()),
    }
}

fn refused(process: i32, error: io::Error) -> TraceError {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let status = read(&format!("/proc/{process}/status"));
    let tracer = status.lines().find_map(|line| line.strip_prefix("TracerPid:")).map(str::trim);
    let scope = read("/proc/sys/kernel/yama/ptrace_scope");
    let remedy = match (error.raw_os_error(), tracer, scope.trim()) {
        (Some(libc::ESRCH), ..) => "it has ended, or it is of another PID namespace".to_owned(),
        (_, Some(tracer), _) if tracer != "0" => {
            format!("process {tracer} traces it already, and a process can have one tracer")
        }
        (_, _, "3") => "kernel.yama.ptrace_scope is 3, which forbids tracing until the next boot".to_owned(),
        (_, _, scope @ ("1" | "2")) => format!(
            "kernel.yama.ptrace_scope is {scope}: start the program by `bareverbs trace -- COMMAND`, run as \
             root, or set it to 0"
        ),
        _ => "run as the user of the process or with CAP_SYS_PTRACE; in a container, add the capability \
              SYS_PTRACE and permit ptrace in its seccomp profile"
            .to_owned(),
    };
    TraceError::Refused { process, remedy, error }
}

/// A call that has begun.
#[derive(Debug)]
struct Pending {
    record: Record,
    start: Instant,
    /// The argument of an ioctl, or the buffer of a read or receive.
    address: u64,
    /// The bytes of an ioctl, or the room of a buffer.
    len: usize,
}

#[derive(Debug)]
struct Thread {
    process: i32,
    pending: Option<Pending>,
}

struct Tracer<F> {
    process: i32,
    started: bool,
    filtered: bool,
    threads: HashMap<i32, Thread>,
    files: Files,
    start: Instant,
    detaching: bool,
    /// The signal that ended the trace of a running process.
    interrupted: Option<Signal>,
    end: Option<End>,
    found: F,
}

/// The memory of a traced process.
struct Remote(i32);

impl Memory for Remote {
    fn read(&self, address: u64, buffer: &mut [u8]) -> bool {
        sys::read_memory(self.0, address, buffer)
    }
}

impl Remote {
    fn bytes(&self, address: u64, len: u64) -> Vec<u8> {
        let mut bytes = vec![0; len.min(MAX_TRANSFER) as usize];
        if self.read(address, &mut bytes) { bytes } else { Vec::new() }
    }

    /// The header and attributes of an ioctl, as many as there are.
    fn ioctl(&self, address: u64) -> Vec<u8> {
        let header = self.bytes(address, size_of::<Header>() as u64);
        match header.first_chunk().map(|length| u16::from_ne_bytes(*length)) {
            Some(length) if usize::from(length) > header.len() => {
                let whole = self.bytes(address, length.into());
                if whole.is_empty() { header } else { whole }
            }
            _ => header,
        }
    }

    /// The parts of memory that a message header of a socket names.
    fn parts(&self, header: u64) -> Vec<(u64, u64)> {
        let words = |bytes: &[u8]| bytes.chunks_exact(8).map(native).collect::<Vec<_>>();
        // msg_name, msg_namelen, msg_iov, msg_iovlen
        let header = words(&self.bytes(header, 32));
        let [_, _, parts, count] = header[..] else { return Vec::new() };
        let parts = words(&self.bytes(parts, count.min(64) * 16));
        parts.chunks_exact(2).map(|part| (part[0], part[1])).collect()
    }

    fn gather(&self, parts: &[(u64, u64)], mut len: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (address, size) in parts {
            let part = len.min(*size);
            bytes.extend(self.bytes(*address, part));
            len -= part;
        }
        bytes
    }
}

impl<F: FnMut(&Record) -> ControlFlow<()>> Tracer<F> {
    /// Notes a thread when it is first seen.
    fn know(&mut self, thread: i32) {
        self.threads.entry(thread).or_insert_with(|| {
            let status = fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
            let process = status.lines().find_map(|line| line.strip_prefix("Tgid:")?.trim().parse().ok());
            Thread { process: process.unwrap_or(thread), pending: None }
        });
    }

    fn signalled(&mut self, signal: Signal) {
        match signal {
            signal if !self.started => {
                self.interrupted = Some(signal);
                self.detach_all();
            }
            // The terminal sends it to the program as well.
            Signal::SIGINT => {}
            // It may have ended.
            signal => drop(sys::kill(self.process, signal as i32)),
        }
    }

    /// Ends the trace. Each thread is stopped, and detached when it has stopped.
    fn detach_all(&mut self) {
        if self.started {
            let _ = sys::kill(self.process, libc::SIGKILL);
            return;
        }
        self.detaching = true;
        for thread in self.threads.keys() {
            // A thread that ends is reported as such.
            let _ = sys::interrupt(*thread);
        }
    }

    fn changed(&mut self, thread: i32, change: Change) -> Result<(), TraceError> {
        let stopped = match change {
            Change::Exited(status) => self.ended(thread, End::Exited(status)),
            Change::Killed(signal) => self.ended(thread, End::Killed(signal)),
            Change::Stopped(signal, event) => {
                self.know(thread);
                self.stopped(thread, signal, event)
            }
        };
        match stopped {
            // A thread that a signal kills while it is stopped is gone. Its end is reported next.
            Err(error) if error.raw_os_error() != Some(libc::ESRCH) => Err(error.into()),
            _ => Ok(()),
        }
    }

    fn ended(&mut self, thread: i32, end: End) -> io::Result<()> {
        if thread == self.process {
            self.end = Some(end);
        }
        self.forget(thread);
        Ok(())
    }

    /// A call that a thread was in has no result.
    fn forget(&mut self, thread: i32) {
        if let Some(Thread { pending: Some(pending), .. }) = self.threads.remove(&thread) {
            self.report(pending, None);
        }
    }

    fn stopped(&mut self, thread: i32, signal: i32, event: i32) -> io::Result<()> {
        let delivered = match (signal, event) {
            (signal, 0) if signal != sys::SYSCALL_STOP => signal,
            _ => 0,
        };
        if self.detaching {
            self.threads.remove(&thread);
            return sys::detach(thread, delivered);
        }
        match event {
            sys::EVENT_STOP if signal != libc::SIGTRAP => return sys::listen(thread),
            sys::EVENT_EXEC => {
                // The thread has taken the id of its process. Its other threads have ended.
                let former = sys::event_message(thread)?;
                if let Ok(former) = i32::try_from(former)
                    && former != thread
                {
                    self.threads.remove(&former);
                }
            }
            sys::EVENT_SECCOMP => self.at_syscall(thread)?,
            0 if signal == sys::SYSCALL_STOP => self.at_syscall(thread)?,
            _ => {}
        }
        let known = self.threads.get(&thread);
        match !self.filtered || known.is_some_and(|known| known.pending.is_some()) {
            true => sys::resume_to_syscall(thread, delivered),
            false => sys::resume(thread, delivered),
        }
    }

    fn at_syscall(&mut self, thread: i32) -> io::Result<()> {
        let info = sys::syscall(thread)?;
        let Some(known) = self.threads.get_mut(&thread) else { return Ok(()) };
        match (info, known.pending.take()) {
            (Syscall::Entry { number, arguments }, None) => {
                let process = known.process;
                let pending = self.entry(process, thread, number, arguments);
                if let Some(known) = self.threads.get_mut(&thread) {
                    known.pending = pending;
                }
            }
            (Syscall::Exit(result), Some(pending)) => self.report(pending, Some(result)),
            // Stopped at its beginning by the filter and as a system call.
            (Syscall::Entry { .. } | Syscall::Other, pending) => known.pending = pending,
            (Syscall::Exit(_), None) => {}
        }
        Ok(())
    }

    /// The call that begins, if it is of an RDMA interface.
    fn entry(&mut self, process: i32, thread: i32, number: i64, arguments: [u64; 6]) -> Option<Pending> {
        let [fd, first, second, ..] = arguments;
        let call = match number {
            libc::SYS_ioctl if first as u32 == VERBS_IOCTL => CallKind::Ioctl,
            libc::SYS_write => CallKind::Write,
            libc::SYS_read => CallKind::Read,
            libc::SYS_sendto | libc::SYS_sendmsg => CallKind::Send,
            libc::SYS_recvfrom | libc::SYS_recvmsg => CallKind::Receive,
            _ => return None,
        };
        let fd = fd as i32;
        let mut interface = self.files.interface(thread, fd)?;
        let memory = Remote(thread);
        let (mut address, mut len) = (first, second as usize);
        let request = match number {
            libc::SYS_ioctl => {
                address = second;
                memory.ioctl(address)
            }
            libc::SYS_write | libc::SYS_sendto => memory.bytes(first, second),
            libc::SYS_sendmsg => memory.gather(&memory.parts(first), MAX_TRANSFER),
            _ => Vec::new(),
        };
        if call == CallKind::Ioctl {
            len = request.len();
            if let (Interface::Uverbs { driver: known @ 0, .. }, Some(driver)) =
                (&mut interface, record::driver_of(&request))
            {
                *known = driver.0;
            }
        }
        let inputs = match call {
            CallKind::Ioctl => record::payloads(&request, &memory, false),
            _ => Vec::new(),
        };
        let overread = match (call, &interface) {
            (CallKind::Write, Interface::Uverbs { .. }) => {
                memory.bytes(first + second, overread_len(&request) as u64)
            }
            _ => Vec::new(),
        };
        let start = Instant::now();
        let record = Record {
            time: nanoseconds(start.duration_since(self.start)),
            duration: 0,
            process,
            thread,
            call,
            fd,
            interface,
            result: None,
            request,
            overread,
            inputs,
            answer: Vec::new(),
            outputs: Vec::new(),
        };
        // A message header is read again when its parts are filled.
        if number == libc::SYS_recvmsg {
            len = 0;
        }
        Some(Pending { record, start, address, len })
    }

    fn report(&mut self, pending: Pending, result: Option<i64>) {
        let Pending { mut record, start, address, len } = pending;
        record.duration = nanoseconds(start.elapsed());
        record.result = result;
        let memory = Remote(record.thread);
        let count = result.and_then(|result| u64::try_from(result).ok());
        match (record.call, count) {
            (CallKind::Ioctl, Some(_)) => {
                record.answer = memory.bytes(address, len as u64);
                record.outputs = record::payloads(&record.answer, &memory, true);
            }
            (CallKind::Write, Some(_)) => {
                let (address, len) = response_place(&record).unwrap_or((0, 0));
                record.answer = memory.bytes(address, len);
            }
            // The kernel returns more than the room for a truncated datagram, on request.
            (CallKind::Read | CallKind::Receive, Some(count)) if len > 0 => {
                record.answer = memory.bytes(address, count.min(len as u64));
            }
            (CallKind::Receive, Some(count)) => {
                record.answer = memory.gather(&memory.parts(address), count);
            }
            _ => {}
        }
        if (self.found)(&record).is_break() && !self.detaching {
            self.detach_all();
        }
    }
}

/// The address and length of the response to a command that was written.
fn response_place(record: &Record) -> Option<(u64, u64)> {
    let request = &record.request;
    if record.interface == Interface::RdmaCm {
        let decoded = rdma_cm::decode(request);
        let (header, command) = (decoded.header()?, decoded.command()?);
        let field = command.request.fields.iter().find(|field| field.rust == "response")?;
        let at = size_of::<rdma_cm::Header>() + field.offset;
        let address = native(request.get(at..at + field.size)?);
        return Some((address, header.output.into()));
    }
    let (header, rest) = CmdHdr::read_from_prefix(request).ok()?;
    if header.command & EXTENDED != 0 {
        let (extra, _) = ExCmdHdr::read_from_prefix(rest).ok()?;
        return Some((
            extra.response,
            8 * (u64::from(header.out_words) + u64::from(extra.provider_out_words)),
        ));
    }
    registry::command(header.command)?.response?;
    Some((native(rest.get(..8)?), u64::from(header.out_words) * 4))
}

fn nanoseconds(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
