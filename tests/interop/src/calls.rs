//! Records a program's system calls with a tracer. Verbs ioctls are recorded by method name.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};

use bareverbs_uapi::decode::{NoMemory, decode};
use nix::errno::Errno;
use nix::libc;
use nix::sys::ptrace;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::Pid;

use crate::program::LIMIT;

/// The type of the verbs ioctl (`RDMA_IOCTL_MAGIC`), in bits 8 to 15 of the request.
const RDMA_IOCTL_MAGIC: u64 = 0x1b;

/// A verbs call.
#[derive(Clone, Debug)]
pub struct Verb {
    /// The call as the decoder prints it.
    pub call: String,
    /// The kernel's return value: 0 for success.
    pub returned: i64,
}

/// The recorded calls of a program until its exit.
#[derive(Clone, Debug, Default)]
pub struct Calls {
    /// Verbs calls, in order.
    pub verbs: Vec<Verb>,
    /// Address families of the created sockets, in order.
    pub sockets: Vec<u64>,
    /// The program's exit status; `None` if a signal killed it.
    pub status: Option<i32>,
    /// The program's standard error.
    pub stderr: String,
}

/// Runs a program of one thread under a tracer.
///
/// # Panics
/// If the program can't be traced.
#[expect(clippy::zombie_processes, reason = "the tracer waits, by system calls of its own")]
pub fn trace(command: &mut Command) -> Calls {
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    // SAFETY: PTRACE_TRACEME is one system call, which may run between fork and exec.
    unsafe { command.pre_exec(|| ptrace::traceme().map_err(io::Error::from)) };
    let mut child = command.spawn().expect("the program starts");
    let process = Pid::from_raw(child.id().try_into().expect("process ids are positive"));
    let (ended, end) = channel::<()>();
    let guard = std::thread::spawn(move || {
        if end.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
            // The tracer reports the kill as the end of the program.
            let _ = kill(process, Signal::SIGKILL);
        }
    });
    let mut calls = follow(process).expect("the program can be traced");
    drop(ended);
    guard.join().expect("the guard does not panic");
    if let Some(mut stderr) = child.stderr.take() {
        calls.stderr = io::read_to_string(&mut stderr).expect("the program's errors are text");
    }
    calls
}

fn follow(process: Pid) -> nix::Result<Calls> {
    waitpid(process, None)?;
    ptrace::setoptions(process, ptrace::Options::PTRACE_O_TRACESYSGOOD | ptrace::Options::PTRACE_O_EXITKILL)?;
    let memory = File::open(format!("/proc/{process}/mem")).map_err(|_| Errno::EACCES)?;
    let mut calls = Calls::default();
    let mut entering = true;
    let mut pass_on = None::<Signal>;
    loop {
        ptrace::syscall(process, pass_on.take())?;
        match waitpid(process, None)? {
            WaitStatus::PtraceSyscall(_) => {
                let registers = ptrace::getregs(process)?;
                match entering {
                    true => calls.enter(&registers, &memory),
                    false => calls.leave(&registers),
                }
                entering = !entering;
            }
            WaitStatus::Stopped(_, signal) => pass_on = Some(signal),
            WaitStatus::Exited(_, status) => {
                calls.status = Some(status);
                return Ok(calls);
            }
            WaitStatus::Signaled(..) => return Ok(calls),
            _ => {}
        }
    }
}

fn is_verb(registers: &libc::user_regs_struct) -> bool {
    registers.orig_rax.cast_signed() == libc::SYS_ioctl && registers.rsi >> 8 & 0xff == RDMA_IOCTL_MAGIC
}

impl Calls {
    fn enter(&mut self, registers: &libc::user_regs_struct, memory: &File) {
        if registers.orig_rax.cast_signed() == libc::SYS_socket {
            self.sockets.push(registers.rdi);
        } else if is_verb(registers) {
            let mut bytes = [0; 4096];
            let length = memory.read_at(&mut bytes, registers.rdx).unwrap_or(0);
            let call = decode(&bytes[..length], &NoMemory)
                .map_or_else(|error| error.to_string(), |call| call.to_string());
            self.verbs.push(Verb { call, returned: -1 });
        }
    }

    fn leave(&mut self, registers: &libc::user_regs_struct) {
        if let (true, Some(verb)) = (is_verb(registers), self.verbs.last_mut()) {
            verb.returned = registers.rax.cast_signed();
        }
    }

    /// Whether the program created an IPv4 or IPv6 socket.
    pub fn network(&self) -> bool {
        self.sockets
            .iter()
            .any(|&family| [libc::AF_INET, libc::AF_INET6].iter().any(|&inet| family == inet as u64))
    }

    /// The successful methods and commands that created or modified an object, without queries and
    /// the commands that open the device.
    pub fn making(&self) -> Vec<&str> {
        let succeeded = self.verbs.iter().filter(|verb| verb.returned == 0).map(|verb| verb.call.as_str());
        let named = succeeded.map(|call| match call.split_once("WRITE_CMD: ") {
            Some((_, command)) => command.split(',').next().unwrap_or(command),
            None => call.split(' ').next().unwrap_or(call),
        });
        // Opening an mlx5 context allocates a UAR page.
        let harmless = ["GetContext", "UarObj", "AsyncEventAlloc", "Query", "ex::Query"];
        named.filter(|name| !harmless.iter().any(|start| name.starts_with(start))).collect()
    }
}
