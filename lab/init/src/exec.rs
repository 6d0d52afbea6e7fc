//! Running one command at a time for the host.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use bareverbs_lab_init::frame::FromGuest;
use bareverbs_lab_init::{Exec, TerminalSize};
use nix::pty::{Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, setsid};

use crate::port::Sender;

const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Time for background processes to write output after their command ended.
const LINGER: Duration = Duration::from_millis(100);

nix::ioctl_write_int_bad!(set_controlling_terminal, nix::libc::TIOCSCTTY);
nix::ioctl_write_ptr_bad!(set_window_size, nix::libc::TIOCSWINSZ, Winsize);

/// The running command, if any, as seen by the port's listener.
#[derive(Clone, Default)]
pub(crate) struct Current(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    running: bool,
    terminal: Option<Terminal>,
    /// Input that arrived before the terminal existed.
    early: Vec<Vec<u8>>,
}

struct Terminal {
    device: File,
    writer: mpsc::Sender<Vec<u8>>,
}

impl Current {
    /// Passes input to the command's terminal.
    pub(crate) fn input(&self, bytes: Vec<u8>) {
        let mut state = self.lock();
        match &state.terminal {
            // The writer thread ends with the terminal; later input is dropped.
            Some(terminal) => drop(terminal.writer.send(bytes)),
            None => state.early.push(bytes),
        }
    }

    /// Changes the terminal's size.
    pub(crate) fn resize(&self, size: TerminalSize) {
        if let Some(terminal) = &self.lock().terminal {
            // SAFETY: TIOCSWINSZ reads one winsize, which outlives the call.
            let _ = unsafe { set_window_size(terminal.device.as_raw_fd(), &window(size)) };
        }
    }

    /// Kills all processes except this one.
    pub(crate) fn kill(&self) {
        if self.lock().running {
            kill_all();
        }
    }

    fn begin(&self, terminal: Option<Terminal>) {
        let mut state = self.lock();
        state.running = true;
        if let Some(terminal) = terminal {
            for bytes in state.early.drain(..) {
                let _ = terminal.writer.send(bytes);
            }
            state.terminal = Some(terminal);
        }
    }

    fn end(&self) {
        *self.lock() = State::default();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().expect("no holder panics")
    }
}

/// Runs the command to its end and forwards its output. Returns its status as a shell would.
pub(crate) fn run(request: &Exec, host: u8, sender: &Sender, current: &Current) -> u8 {
    let Some(program) = request.argv.first() else {
        return refuse(sender, "no command given", 127);
    };
    let mut command = Command::new(program);
    command
        .args(&request.argv[1..])
        .env_clear()
        .env("PATH", PATH)
        .env("HOME", "/root")
        .env("HOST", host.to_string())
        .envs(request.env.iter().map(|(name, value)| (name, value)))
        .current_dir("/");
    match start(&mut command, request.terminal, sender, current) {
        Ok((pid, forwarders)) => {
            let status = reap(pid);
            settle(&forwarders);
            current.end();
            status
        }
        Err(error) => {
            current.end();
            match error.kind() {
                ErrorKind::NotFound => {
                    refuse(sender, &format!("{program}: command not found in the guest"), 127)
                }
                _ => refuse(sender, &format!("{program}: {error}"), 126),
            }
        }
    }
}

type Forwarders = mpsc::Receiver<()>;

fn start(
    command: &mut Command,
    terminal: Option<TerminalSize>,
    sender: &Sender,
    current: &Current,
) -> io::Result<(Pid, Forwarders)> {
    // Each forwarder holds a sender. The receiver reports a disconnect when the last is dropped.
    let (alive, forwarders) = mpsc::channel();
    let child = match terminal {
        Some(size) => {
            let pty = openpty(&window(size), None)?;
            let slave: OwnedFd = pty.slave;
            command.stdin(slave.try_clone()?).stdout(slave.try_clone()?).stderr(slave);
            // SAFETY: setsid and ioctl are async-signal-safe, and descriptor 0 is the terminal set
            // up above.
            unsafe {
                command.pre_exec(|| {
                    setsid()?;
                    set_controlling_terminal(0, 0)?;
                    Ok(())
                });
            }
            let child = command.spawn()?;
            let master = File::from(pty.master);
            let (writer, input) = mpsc::channel::<Vec<u8>>();
            let mut sink = master.try_clone()?;
            std::thread::spawn(move || {
                for bytes in input {
                    if sink.write_all(&bytes).is_err() {
                        return;
                    }
                }
            });
            current.begin(Some(Terminal { device: master.try_clone()?, writer }));
            forward(master, sender, FromGuest::Stdout, alive);
            child
        }
        None => {
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            // SAFETY: setsid is async-signal-safe and accesses no memory.
            unsafe {
                command.pre_exec(|| {
                    setsid()?;
                    Ok(())
                });
            }
            let mut child = command.spawn()?;
            current.begin(None);
            if let Some(stdout) = child.stdout.take() {
                forward(stdout, sender, FromGuest::Stdout, alive.clone());
            }
            if let Some(stderr) = child.stderr.take() {
                forward(stderr, sender, FromGuest::Stderr, alive);
            }
            child
        }
    };
    let pid = i32::try_from(child.id()).map_err(io::Error::other)?;
    Ok((Pid::from_raw(pid), forwarders))
}

fn forward(
    mut source: impl Read + Send + 'static,
    sender: &Sender,
    frame: fn(Vec<u8>) -> FromGuest,
    alive: mpsc::Sender<()>,
) {
    let sender = sender.clone();
    std::thread::spawn(move || {
        let _alive = alive;
        let mut buffer = vec![0; 64 * 1024];
        // Reading a terminal fails with EIO once its last holder is gone.
        while let Ok(count @ 1..) = source.read(&mut buffer) {
            if sender.send(&frame(buffer[..count].to_vec())).is_err() {
                return;
            }
        }
    });
}

/// Waits for the command, and reaps orphans meanwhile.
fn reap(command: Pid) -> u8 {
    loop {
        match waitpid(None, None) {
            Ok(WaitStatus::Exited(pid, code)) if pid == command => return code as u8,
            Ok(WaitStatus::Signaled(pid, signal, _)) if pid == command => return 128 + signal as u8,
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(_) => return 255,
        }
    }
}

/// Waits until all output is sent, then kills the command's remaining processes.
fn settle(forwarders: &Forwarders) {
    if forwarders.recv_timeout(LINGER) == Err(RecvTimeoutError::Timeout) {
        kill_all();
    }
    let _ = forwarders.recv_timeout(Duration::from_secs(5));
    kill_all();
    while let Ok(status) = waitpid(None, Some(WaitPidFlag::WNOHANG)) {
        if status == WaitStatus::StillAlive {
            break;
        }
    }
}

/// For PID 1: kills all processes except this one.
fn kill_all() {
    let _ = kill(Pid::from_raw(-1), Signal::SIGKILL);
}

fn refuse(sender: &Sender, why: &str, status: u8) -> u8 {
    let _ = sender.send(&FromGuest::Stderr(format!("lab: {why}\n").into_bytes()));
    status
}

fn window(size: TerminalSize) -> Winsize {
    Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 }
}
