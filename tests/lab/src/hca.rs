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
/// The name of the socket that takes wishes.
const CONTROL: &str = "control";

/// Cards that wait behind vfio-user sockets, one for each host. Dropping it takes them away.
#[derive(Debug)]
pub struct Hca {
    /// The kind of their ports.
    pub port: HcaPort,
    /// Their sockets.
    pub sockets: Vec<PathBuf>,
    folder: PathBuf,
    command: Command,
    process: Child,
}

impl Hca {
    /// Starts `program` (the binary of `tests/hca`) with further arguments and waits until the cards are there.
    pub fn start(program: &Path, port: HcaPort, hosts: u8, arguments: &[String]) -> Result<Self> {
        let number = STARTED.fetch_add(1, Ordering::Relaxed);
        let folder = std::env::temp_dir().join(format!("bareverbs-hca-{}-{number}", std::process::id()));
        fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
        let sockets: Vec<_> = (1..=hosts).map(|host| folder.join(format!("host{host}"))).collect();
        let kind = match port {
            HcaPort::Ib => "ib",
            HcaPort::Roce => "roce",
        };
        let mut command = Command::new(program);
        command.args(["--port", kind]).arg("--control").arg(folder.join(CONTROL));
        command.args(arguments).args(&sockets).stdin(Stdio::null()).stdout(Stdio::piped());
        let process = start(&mut command)?;
        Ok(Self { port, sockets, folder, command, process })
    }

    /// Tells the cards a wish, such as `1 link down`, and answers what they say; the words are those of `tests/hca/src/control.rs`.
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
        self.process.kill()?;
        self.process.wait()?;
        self.process = start(&mut self.command)?;
        Ok(())
    }
}

/// Starts the process and waits until the cards are there.
fn start(command: &mut Command) -> Result<Child> {
    let mut process = bind_to_parent(command).spawn().context("starting the cards")?;
    let mut line = String::new();
    let output = process.stdout.take().context("the cards' output is piped")?;
    BufReader::new(output).read_line(&mut line)?;
    if line.trim() != "ready" {
        let _ = process.kill();
        process.wait()?;
        bail!("the cards did not start");
    }
    Ok(process)
}

impl Drop for Hca {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}
