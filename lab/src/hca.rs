//! The process that serves HCAs to guests.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, bail};
use bareverbs_lab_init::HcaPort;

use crate::process::bind_to_parent;

/// The number of starts; each uses a new folder.
static STARTED: AtomicUsize = AtomicUsize::new(0);
/// The names of the control socket, and of the inter-switch link's socket between processes.
const CONTROL_SOCKET: &str = "control";
const ISL_SOCKET: &str = "inter-switch-link";

/// HCAs behind vfio-user sockets, one for each host. Drop ends them.
#[derive(Debug)]
pub struct Hca {
    /// The link type of their ports.
    pub port: HcaPort,
    /// Their sockets.
    pub sockets: Vec<PathBuf>,
    folder: PathBuf,
    processes: Vec<Process>,
}

impl Hca {
    /// Starts `program` (the binary of `hca`) with further arguments and waits until the HCAs are
    /// ready.
    pub fn start(program: &Path, port: HcaPort, hosts: u8, arguments: &[String]) -> Result<Self> {
        Self::in_processes(program, port, hosts, usize::from(hosts), arguments)
    }

    /// The same with one process for each HCA. A socket connects their fabrics.
    pub fn start_separately(program: &Path, port: HcaPort, hosts: u8, arguments: &[String]) -> Result<Self> {
        Self::in_processes(program, port, hosts, 1, arguments)
    }

    fn in_processes(
        program: &Path,
        port: HcaPort,
        hosts: u8,
        devices_per_process: usize,
        arguments: &[String],
    ) -> Result<Self> {
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("bareverbs-hca-{}-{number}", std::process::id()));
        fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
        let sockets: Vec<_> = (1..=hosts).map(|host| folder.join(format!("host{host}"))).collect();
        let kind = match port {
            HcaPort::Ib => "ib",
            HcaPort::Roce => "roce",
        };
        let mut devices = Self { port, sockets, folder, processes: Vec::new() };
        for (process, sockets) in devices.sockets.chunks(devices_per_process).enumerate() {
            let mut command = Command::new(program);
            command.args(["--port", kind]);
            if process == 0 {
                command.arg("--control").arg(devices.folder.join(CONTROL_SOCKET));
            } else {
                command.arg("--first").arg((process * devices_per_process).to_string());
            }
            if devices_per_process < devices.sockets.len() {
                let end = if process == 0 { "--listen" } else { "--join" };
                command.arg(end).arg(devices.folder.join(ISL_SOCKET));
            }
            command.args(arguments).args(sockets).stdin(Stdio::null()).stdout(Stdio::piped());
            devices.processes.push(Process::start(command)?);
        }
        Ok(devices)
    }

    /// Sends a control command, such as `1 link down`, to the HCAs of the first process, and
    /// returns the reply. `hca/src/control.rs` has the commands.
    pub fn control(&self, command: &str) -> Result<String> {
        let mut control =
            UnixStream::connect(self.folder.join(CONTROL_SOCKET)).context("connecting to the HCAs")?;
        control.write_all(format!("{command}\n").as_bytes())?;
        let mut answer = String::new();
        BufReader::new(control).read_line(&mut answer)?;
        match answer.trim().strip_prefix("ok") {
            Some(said) => Ok(said.trim().to_owned()),
            None => bail!("the HCAs responded to `{command}` with `{}`", answer.trim()),
        }
    }

    /// Kills the HCAs, like a power failure, and starts new ones in their place.
    pub fn replace(&mut self) -> Result<()> {
        let commands: Vec<_> = self.processes.drain(..).map(Process::end).collect();
        // The socket does not exist if one process serves all HCAs.
        let _ = fs::remove_file(self.folder.join(ISL_SOCKET));
        for command in commands {
            self.processes.push(Process::start(command)?);
        }
        Ok(())
    }
}

impl Drop for Hca {
    fn drop(&mut self) {
        self.processes.drain(..).for_each(|process| drop(process.end()));
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// A process that serves HCAs.
#[derive(Debug)]
struct Process {
    command: Command,
    child: Child,
}

impl Process {
    /// Starts it and waits until the HCAs are ready.
    fn start(mut command: Command) -> Result<Self> {
        let mut child = bind_to_parent(&mut command).spawn().context("starting the HCAs")?;
        let mut line = String::new();
        let output = child.stdout.take().context("the HCAs' output is piped")?;
        BufReader::new(output).read_line(&mut line)?;
        let process = Self { command, child };
        if line.trim() != "ready" {
            process.end();
            bail!("the HCAs did not start");
        }
        Ok(process)
    }

    /// Kills it. Returns the command, to start it again.
    fn end(mut self) -> Command {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.command
    }
}
