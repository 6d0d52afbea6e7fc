//! RDMA cards for guests: the process that serves them.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context, Result, bail};
use bareverbs_lab_init::HcaPort;

use crate::process::bind_to_parent;

/// How often cards were started; each time they lie in another folder.
static STARTED: AtomicUsize = AtomicUsize::new(0);
/// The names of the socket that takes wishes, and of the one by which processes join their cards.
const CONTROL: &str = "control";
const TRUNK: &str = "trunk";

/// Cards that wait behind vfio-user sockets, one for each host. Dropping it takes them away.
#[derive(Debug)]
pub struct Hca {
    /// The kind of their ports.
    pub port: HcaPort,
    /// Their sockets.
    pub sockets: Vec<PathBuf>,
    folder: PathBuf,
    processes: Vec<Process>,
}

impl Hca {
    /// Starts `program` (the binary of `hca`) with further arguments and waits until the cards are there.
    pub fn start(program: &Path, port: HcaPort, hosts: u8, arguments: &[String]) -> Result<Self> {
        Self::in_processes(program, port, hosts, usize::from(hosts), arguments)
    }

    /// The same with a process for each card. Their fabrics are joined over a socket.
    pub fn start_apart(program: &Path, port: HcaPort, hosts: u8, arguments: &[String]) -> Result<Self> {
        Self::in_processes(program, port, hosts, 1, arguments)
    }

    fn in_processes(
        program: &Path,
        port: HcaPort,
        hosts: u8,
        cards_of_each: usize,
        arguments: &[String],
    ) -> Result<Self> {
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("bareverbs-hca-{}-{number}", std::process::id()));
        fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
        let sockets: Vec<_> = (1..=hosts).map(|host| folder.join(format!("host{host}"))).collect();
        let kind = match port {
            HcaPort::Ib => "ib",
            HcaPort::Roce => "roce",
        };
        let mut cards = Self { port, sockets, folder, processes: Vec::new() };
        for (process, sockets) in cards.sockets.chunks(cards_of_each).enumerate() {
            let mut command = Command::new(program);
            command.args(["--port", kind]);
            if process == 0 {
                command.arg("--control").arg(cards.folder.join(CONTROL));
            } else {
                command.arg("--first").arg((process * cards_of_each).to_string());
            }
            if cards_of_each < cards.sockets.len() {
                let end = if process == 0 { "--listen" } else { "--join" };
                command.arg(end).arg(cards.folder.join(TRUNK));
            }
            command.args(arguments).args(sockets).stdin(Stdio::null()).stdout(Stdio::piped());
            cards.processes.push(Process::start(command)?);
        }
        Ok(cards)
    }

    /// Tells the cards of the first process a wish, such as `1 link down`, and answers what they say; the words are those of
    /// `hca/src/control.rs`.
    pub fn wish(&self, wish: &str) -> Result<String> {
        let mut control = UnixStream::connect(self.folder.join(CONTROL)).context("speaking to the cards")?;
        control.write_all(format!("{wish}\n").as_bytes())?;
        let mut answer = String::new();
        BufReader::new(control).read_line(&mut answer)?;
        match answer.trim().strip_prefix("ok") {
            Some(said) => Ok(said.trim().to_owned()),
            None => bail!("the cards answered `{wish}` with `{}`", answer.trim()),
        }
    }

    /// Kills the cards, as a power failure would, and puts fresh ones into their place.
    pub fn replace(&mut self) -> Result<()> {
        let commands: Vec<_> = self.processes.drain(..).map(Process::end).collect();
        // There is none where all cards are of one process.
        let _ = fs::remove_file(self.folder.join(TRUNK));
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

/// A process that serves cards.
#[derive(Debug)]
struct Process {
    command: Command,
    child: Child,
}

impl Process {
    /// Starts it and waits until the cards are there.
    fn start(mut command: Command) -> Result<Self> {
        let mut child = bind_to_parent(&mut command).spawn().context("starting the cards")?;
        let mut line = String::new();
        let output = child.stdout.take().context("the cards' output is piped")?;
        BufReader::new(output).read_line(&mut line)?;
        let process = Self { command, child };
        if line.trim() != "ready" {
            process.end();
            bail!("the cards did not start");
        }
        Ok(process)
    }

    /// Kills it. The command starts it again.
    fn end(mut self) -> Command {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.command
    }
}
