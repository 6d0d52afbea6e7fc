//! What the examples with two ends share: the exchange of addresses over TCP.

mod device;

use std::error::Error;
use std::fmt::Display;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::str::FromStr;

use anyhow::{Context, Result, ensure};
use device::DeviceOption;

/// The options of both ends.
#[derive(clap::Args, Clone, Debug)]
pub(crate) struct Ends {
    /// The server's host. Without it, run as server.
    pub(crate) host: Option<String>,
    /// The server's TCP port.
    #[arg(short, long, default_value_t = 7471)]
    pub(crate) port: u16,
    #[command(flatten)]
    device: DeviceOption,
}

impl Ends {
    /// Opens the RDMA device.
    pub(crate) fn open(&self) -> bareverbs::Result<bareverbs::Context> {
        self.device.open()
    }

    /// Listens for clients.
    pub(crate) fn listen(&self) -> Result<TcpListener> {
        let listener = TcpListener::bind(("::", self.port)).context("listening")?;
        println!("listening on TCP port {}", self.port);
        Ok(listener)
    }
}

/// A TCP connection that carries lines of text.
pub(crate) struct Lines(BufReader<TcpStream>);

impl Lines {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self(BufReader::new(stream))
    }

    /// Connects to the server.
    pub(crate) fn connect(host: &str, port: u16) -> Result<Self> {
        Ok(Self::new(TcpStream::connect((host, port)).with_context(|| format!("connecting to {host}"))?))
    }

    pub(crate) fn send(&mut self, line: impl Display) -> Result<()> {
        Ok(writeln!(self.0.get_mut(), "{line}")?)
    }

    /// Receives a line and parses it.
    pub(crate) fn receive<T: FromStr<Err: Error + Send + Sync + 'static>>(&mut self) -> Result<T> {
        let mut line = String::new();
        ensure!(self.0.read_line(&mut line)? > 0, "the other end has closed its TCP connection");
        line.trim_end().parse().with_context(|| format!("parsing `{}`", line.trim_end()))
    }
}
