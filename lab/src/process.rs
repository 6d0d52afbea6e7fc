//! Child processes that end with this one.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::Signal;

/// Makes the kernel kill the command's process when the thread that started it ends.
pub(crate) fn bind_to_parent(command: &mut Command) -> &mut Command {
    // SAFETY: prctl is one system call and accesses no memory of this process, so it may run
    // between fork and exec.
    unsafe { command.pre_exec(|| set_pdeathsig(Signal::SIGKILL).map_err(io::Error::from)) }
}
