//! `bareverbs rcopy`: copies a file over a stream, wire-compatible with `rcopy` of librdmacm.
//!
//! Headers are in host byte order, as in the C program.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use bareverbs_rdmacm::stream::StreamOptions;
use rustix::io::Errno;
use serde::Serialize;

use crate::cli::rcopy::{Destination, Rcopy};
use crate::signal::Stop;
use crate::socket::{Server, Socket, Waiting};
use crate::{address, output};

const OPEN: u8 = 1;
const CLOSE: u8 = 2;
const WRITE: u8 = 3;
/// Bit of the command of a reply.
const REPLY: u8 = 0x80;

/// Bytes that are read from a file or a stream at a time.
const CHUNK: usize = 1 << 18;

/// What comes before a path or a size, and all of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Header {
    command: u8,
    /// Bytes of the message with its header.
    len: u16,
    /// The mode of a file, or the errno of a reply.
    data: u32,
    id: u64,
}

impl Header {
    const SIZE: usize = 16;

    fn new(command: u8, body: usize, data: u32) -> Result<Self> {
        let len = u16::try_from(Self::SIZE + body).ok().context("the path is longer than 65519 bytes")?;
        Ok(Self { command, len, data, id: 0 })
    }

    fn to_bytes(self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[1] = self.command;
        bytes[2..4].copy_from_slice(&self.len.to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.data.to_ne_bytes());
        bytes[8..].copy_from_slice(&self.id.to_ne_bytes());
        bytes
    }

    fn from_bytes(bytes: [u8; Self::SIZE]) -> Result<Self> {
        let [version, command, l0, l1, d0, d1, d2, d3, id @ ..] = bytes;
        let len = u16::from_ne_bytes([l0, l1]);
        ensure!(version == 0, "the peer has version {version} of the protocol, expected 0");
        ensure!(usize::from(len) >= Self::SIZE, "the peer sent a message of {len} bytes");
        let data = u32::from_ne_bytes([d0, d1, d2, d3]);
        Ok(Self { command, len, data, id: u64::from_ne_bytes(id) })
    }

    /// Bytes after the header.
    fn body(self) -> usize {
        usize::from(self.len) - Self::SIZE
    }

    fn reply(self, status: u32) -> Self {
        Self { command: self.command | REPLY, len: Self::SIZE as u16, data: status, id: self.id }
    }
}

/// The result of a copy, for `--json`.
#[derive(Debug, Serialize)]
struct Report {
    path: PathBuf,
    bytes: u64,
    seconds: f64,
    gbps: f64,
}

/// `bareverbs rcopy`.
pub(crate) fn run(options: &Rcopy) -> Result<()> {
    let stop = Stop::on_signals().context("cannot set up signal handling")?;
    match (&options.source, &options.destination) {
        (Some(source), Some(destination)) => run_client(options, source, destination, stop),
        _ => run_server(options, stop),
    }
}

fn say(options: &Rcopy, text: &str) -> Result<()> {
    if options.json { Ok(()) } else { Ok(output::write(text)?) }
}

fn run_client(options: &Rcopy, source: &Path, to: &Destination, stop: &'static Stop) -> Result<()> {
    let peer = address::first(&to.host, options.port)?;
    let path = to.path.as_deref().unwrap_or(source);
    say(options, "opening...")?;
    let mut file = File::open(source).with_context(|| format!("cannot open {}", source.display()))?;
    let attr = file.metadata().with_context(|| format!("cannot read {}", source.display()))?;
    let mut socket = Socket::rdma(StreamOptions::default().connect(peer)?, Waiting::Block, stop);

    // The path ends with a NUL, and is padded to a multiple of 8 bytes.
    let mut name = path.as_os_str().as_bytes().to_vec();
    name.resize((name.len() + 8) & !7, 0);
    request(&mut socket, Header::new(OPEN, name.len(), attr.mode())?, &name)?;
    reply(&mut socket, OPEN).with_context(|| format!("the server cannot open {}", path.display()))?;

    say(options, "transferring...")?;
    let start = Instant::now();
    request(&mut socket, Header::new(WRITE, 8, 0)?, &attr.len().to_ne_bytes())?;
    let mut left = attr.len();
    let mut chunk = vec![0; CHUNK];
    while left > 0 {
        let len = left.min(CHUNK as u64) as usize;
        file.read_exact(&mut chunk[..len]).with_context(|| format!("cannot read {}", source.display()))?;
        socket.send(&chunk[..len])?;
        left -= len as u64;
    }
    reply(&mut socket, WRITE).with_context(|| format!("the server cannot write {}", path.display()))?;
    let seconds = start.elapsed().as_secs_f64();

    say(options, "closing...")?;
    request(&mut socket, Header::new(CLOSE, 0, 0)?, &[])?;
    reply(&mut socket, CLOSE).context("the server cannot close the file")?;
    say(options, "done\n")?;
    socket.end()?;
    let (bytes, gbps) = (attr.len(), attr.len() as f64 * 8.0 / seconds / 1e9);
    if options.json {
        let report = Report { path: path.to_owned(), bytes, seconds, gbps };
        return Ok(output::line(&serde_json::to_string(&report)?)?);
    }
    Ok(output::line(&format!("{bytes} bytes in {seconds:.2} seconds = {gbps:.2} Gb/sec"))?)
}

fn request(socket: &mut Socket<'_>, header: Header, body: &[u8]) -> Result<()> {
    let mut message = header.to_bytes().to_vec();
    message.extend(body);
    socket.send(&message)
}

/// Receives the reply to a command.
///
/// # Errors
/// The server's errno, if it is not 0.
fn reply(socket: &mut Socket<'_>, command: u8) -> Result<()> {
    let mut bytes = [0; Header::SIZE];
    socket.recv(&mut bytes)?;
    let header = Header::from_bytes(bytes)?;
    if header.command != command | REPLY || header.body() != 0 {
        bail!("the server answered command {command} with {header:?}");
    }
    match i32::from_ne_bytes(header.data.to_ne_bytes()) {
        0 => Ok(()),
        errno => Err(std::io::Error::from_raw_os_error(errno).into()),
    }
}

fn run_server(options: &Rcopy, stop: &'static Stop) -> Result<()> {
    let server = Server::rdma(address::to_bind(None, options.port)?, &StreamOptions::default())?;
    loop {
        say(options, "waiting for connection...")?;
        let (mut socket, peer) = server.accept(Waiting::Block, stop)?;
        say(options, &format!("client: {}\n", peer.ip()))?;
        // An error of one client does not end the server.
        if let Err(error) = serve(&mut socket, options) {
            stop.check()?;
            output::diagnostic(&format!("bareverbs: {error:#}"));
        }
        if let Err(error) = socket.end() {
            output::diagnostic(&format!("bareverbs: ending the stream: {error:#}"));
        }
    }
}

/// A file that a client writes.
struct Target {
    path: PathBuf,
    file: File,
}

/// Serves a client until it ends the stream.
fn serve(socket: &mut Socket<'_>, options: &Rcopy) -> Result<()> {
    let mut target = None;
    loop {
        let mut bytes = [0; Header::SIZE];
        if !socket.recv_or_end(&mut bytes)? {
            return Ok(());
        }
        let header = Header::from_bytes(bytes)?;
        let result = match header.command {
            OPEN => open(socket, header, &mut target, options),
            WRITE => write(socket, header, target.as_mut(), options),
            CLOSE => {
                target = None;
                say(options, "closing...done\n")
            }
            _ => Err(Errno::INVAL.into()),
        };
        socket.send(&header.reply(status(&result)).to_bytes())?;
        result.with_context(|| format!("command {} of the client", header.command))?;
    }
}

/// The errno of a result, for the client.
fn status(result: &Result<()>) -> u32 {
    let Err(error) = result else { return 0 };
    let errno = error.chain().find_map(|cause| {
        let errno = cause.downcast_ref::<Errno>().map(|errno| errno.raw_os_error());
        errno.or_else(|| cause.downcast_ref::<std::io::Error>()?.raw_os_error())
    });
    errno.unwrap_or(Errno::IO.raw_os_error()) as u32
}

fn open(socket: &mut Socket<'_>, header: Header, target: &mut Option<Target>, options: &Rcopy) -> Result<()> {
    let mut name = vec![0; header.body()];
    socket.recv(&mut name)?;
    if target.is_some() {
        return Err(Errno::BUSY).context("the client has a file open");
    }
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    let path = PathBuf::from(std::ffi::OsStr::from_bytes(&name[..end]));
    say(options, &format!("opening: {}, ", path.display()))?;
    let mut open = OpenOptions::new();
    open.write(true).create(true).truncate(true).mode(header.data & 0o7777);
    let file = open.open(&path).with_context(|| format!("cannot open {}", path.display()))?;
    *target = Some(Target { path, file });
    Ok(())
}

fn write(
    socket: &mut Socket<'_>,
    header: Header,
    target: Option<&mut Target>,
    options: &Rcopy,
) -> Result<()> {
    let Some(Target { path, file }) = target else { return Err(Errno::INVAL).context("no file is open") };
    let mut size = [0; 8];
    if header.body() != size.len() {
        return Err(Errno::INVAL).context("the size of the file has 8 bytes");
    }
    socket.recv(&mut size)?;
    let bytes = u64::from_ne_bytes(size);
    say(options, &format!("transferring...{bytes} bytes..."))?;
    let start = Instant::now();
    let mut left = bytes;
    let mut chunk = vec![0; CHUNK];
    while left > 0 {
        let max = left.min(CHUNK as u64) as usize;
        let len = socket.recv_some(&mut chunk[..max])?;
        ensure!(len > 0, "the client has ended the stream {left} bytes before the end of the file");
        file.write_all(&chunk[..len]).with_context(|| format!("cannot write {}", path.display()))?;
        left -= len as u64;
    }
    if options.json {
        let seconds = start.elapsed().as_secs_f64();
        let gbps = bytes as f64 * 8.0 / seconds / 1e9;
        output::line(&serde_json::to_string(&Report { path: path.clone(), bytes, seconds, gbps })?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_round_trip() {
        let header = Header { id: 7, ..Header::new(OPEN, 24, 0o100_644).unwrap() };
        let bytes = header.to_bytes();
        assert_eq!((bytes[0], bytes[1], header.body()), (0, 1, 24));
        assert_eq!(Header::from_bytes(bytes).unwrap(), header);
        let reply = header.reply(2).to_bytes();
        assert_eq!(reply[1], 0x81);
        assert_eq!(Header::from_bytes(reply).unwrap(), header.reply(2));
        assert!(Header::new(OPEN, 65_520, 0).is_err());
    }

    #[test]
    fn malformed_headers_are_rejected() {
        let bytes = Header::new(CLOSE, 0, 0).unwrap().to_bytes();
        for (at, value) in [(0, 1), (2, 15)] {
            let mut wrong = bytes;
            wrong[at] = value;
            assert!(Header::from_bytes(wrong).is_err());
        }
    }

    #[test]
    fn status_is_the_errno_of_the_cause() {
        assert_eq!(status(&Ok(())), 0);
        let missing = File::open("/nonexistent").context("opening").map(drop);
        assert_eq!(status(&missing), Errno::NOENT.raw_os_error() as u32);
        assert_eq!(status(&Err(Errno::BUSY).context("busy")), Errno::BUSY.raw_os_error() as u32);
        assert_eq!(status(&Err(anyhow::anyhow!("other"))), Errno::IO.raw_os_error() as u32);
    }
}
