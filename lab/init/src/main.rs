//! PID 1 of a lab guest: mounts file systems, loads modules, sets up links and the device, then runs the
//! host's commands from the port.

mod capture;
mod exec;
mod links;
mod listen;
mod modules;
mod mounts;
mod netlink;
mod port;
mod prompt;

use std::process::ExitCode;
use std::sync::mpsc;

use anyhow::{Context, Result};
use bareverbs_lab_init::frame::{FromGuest, ToGuest};
use bareverbs_lab_init::{JOB_PATH, Job};
use nix::sys::reboot::{RebootMode, reboot};
use nix::sys::resource::{RLIM_INFINITY, Resource, setrlimit};

use crate::port::Sender;

fn main() -> ExitCode {
    if std::process::id() != 1 {
        return prompt::run();
    }
    if let Err(error) = serve() {
        eprintln!("lab: {error:#}");
    }
    power_off()
}

/// Sets the guest up and serves the host until `PowerOff`.
fn serve() -> Result<()> {
    mounts::system("")?;
    let job: Job =
        serde_json::from_slice(&std::fs::read(JOB_PATH).context("reading the job")?).context(JOB_PATH)?;
    // On Linux 6.1, siw applies the limit to root as well.
    setrlimit(Resource::RLIMIT_MEMLOCK, RLIM_INFINITY, RLIM_INFINITY).context("raising RLIMIT_MEMLOCK")?;
    modules::load(&job.modules)?;
    let (sender, receiver) = port::open()?;
    match set_up(&job, &sender) {
        Ok(()) => sender.send(&FromGuest::Ready(kernel_release()?))?,
        Err(error) => return sender.send(&FromGuest::Failed(format!("{error:#}"))),
    }

    let (commands, queue) = mpsc::channel();
    let current = exec::Current::default();
    let listener = current.clone();
    std::thread::spawn(move || listen::listen(receiver, &commands, &listener));
    for command in queue {
        match command {
            ToGuest::Exec(request) => {
                let status = exec::run(&request, job.host, &sender, &current);
                sender.send(&FromGuest::Exited(status))?;
            }
            ToGuest::PowerOff => break,
            ToGuest::Stdin(_) | ToGuest::Resize(_) | ToGuest::Kill => {}
        }
    }
    Ok(())
}

fn set_up(job: &Job, sender: &Sender) -> Result<()> {
    if job.rdma_core {
        mounts::debian_root()?;
    } else {
        mounts::own_root()?;
    }
    mounts::shares(&job.shares)?;
    mounts::identity(job.host)?;
    links::set_up(job, sender)
}

fn kernel_release() -> Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/osrelease")
        .context("reading the kernel's release")?
        .trim()
        .to_owned())
}

fn power_off() -> ! {
    loop {
        // With -no-reboot a restart ends QEMU. It is faster than an ACPI power-off.
        let _ = reboot(RebootMode::RB_AUTOBOOT);
    }
}
