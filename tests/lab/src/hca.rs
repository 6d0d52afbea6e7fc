//! RDMA cards for guests: the process that serves them.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail};
use bareverbs_lab_init::HcaPort;

use crate::process::bind_to_parent;

/// Cards that wait behind vfio-user sockets, one for each host. Dropping it takes them away.
#[derive(Debug)]
pub struct Hca {
    /// The kind of their ports.
    pub port: HcaPort,
    /// Their sockets.
    pub sockets: Vec<PathBuf>,
    folder: PathBuf,
    process: Child,
}

impl Hca {
    /// Starts `program` (the binary of `tests/hca`) with further arguments and waits until the cards are there.
    pub fn start(program: &Path, port: HcaPort, hosts: u8, arguments: &[String]) -> Result<Self> {
        let folder = std::env::temp_dir().join(format!("bareverbs-hca-{}", std::process::id()));
        fs::create_dir_all(&folder).with_context(|| format!("making {}", folder.display()))?;
        let sockets: Vec<_> = (1..=hosts).map(|host| folder.join(format!("host{host}"))).collect();
        let kind = match port {
            HcaPort::Ib => "ib",
            HcaPort::Roce => "roce",
        };
        let mut command = Command::new(program);
        command.args(["--port", kind]).args(arguments).args(&sockets);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        let process = bind_to_parent(&mut command).spawn().context("starting the cards")?;
        let mut cards = Self { port, sockets, folder, process };
        let mut line = String::new();
        let output = cards.process.stdout.take().context("the cards' output is piped")?;
        BufReader::new(output).read_line(&mut line)?;
        if line.trim() != "ready" {
            bail!("the cards did not start");
        }
        Ok(cards)
    }
}

impl Drop for Hca {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}
