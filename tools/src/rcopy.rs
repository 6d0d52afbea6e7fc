//! `bareverbs rcopy`: copies a file over a stream, wire-compatible with `rcopy` of librdmacm.
//!
//! Headers are in host byte order, as in the C program.

use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context as _, Result, bail, ensure};
use bareverbs_rdmacm::stream::StreamOptions;
use rustix::io::Errno;
use serde::Serialize;
use tempfile::SpooledTempFile;

use crate::cli::rcopy::{Destination, Rcopy};
use crate::output;
use crate::session::address;
use crate::session::socket::{Server, Socket, Waiting};
use crate::signal::Stop;

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
    let ended = match (&options.source, &options.destination) {
        (Some(source), Some(destination)) => run_client(options, source, destination, stop),
        _ => run_server(options, stop),
    };
    // An error after a signal is not one of the server.
    stop.check()?;
    ended
}

fn say(options: &Rcopy, text: &str) -> Result<()> {
    if options.json { Ok(()) } else { Ok(output::write(text)?) }
}

fn run_client(options: &Rcopy, source: &Path, to: &Destination, stop: &'static Stop) -> Result<()> {
    let peer = address::first(&to.host, options.port)?;
    let path = to.path.as_deref().unwrap_or(source);
    say(options, "opening...")?;
    let mut source = Source::open(source, stop)?;
    let mut socket = Socket::rdma(StreamOptions::default().connect(peer).wait()?, Waiting::Block, stop);

    // The path ends with a NUL, and is padded to a multiple of 8 bytes.
    let mut name = path.as_os_str().as_bytes().to_vec();
    name.resize((name.len() + 8) & !7, 0);
    request(&mut socket, Header::new(OPEN, name.len(), source.mode)?, &name)?;
    reply(&mut socket, OPEN).with_context(|| format!("the server cannot open {}", path.display()))?;

    say(options, "transferring...")?;
    let start = Instant::now();
    request(&mut socket, Header::new(WRITE, 8, 0)?, &source.bytes.to_ne_bytes())?;
    send(&mut socket, &mut source, path)?;
    let seconds = start.elapsed().as_secs_f64();

    say(options, "closing...")?;
    request(&mut socket, Header::new(CLOSE, 0, 0)?, &[])?;
    reply(&mut socket, CLOSE).with_context(|| format!("the server cannot close {}", path.display()))?;
    say(options, "done\n")?;
    socket.end()?;
    let (bytes, gbps) = (source.bytes, source.bytes as f64 * 8.0 / seconds / 1e9);
    if options.json {
        let report = Report { path: path.to_owned(), bytes, seconds, gbps };
        return Ok(output::line(&serde_json::to_string(&report)?)?);
    }
    Ok(output::line(&format!("{bytes} bytes in {seconds:.2} seconds = {gbps:.2} Gb/sec"))?)
}

/// Sends the bytes of a file, and waits for the server's answer. An answer before the last byte is
/// an error: the server can't write the rest.
fn send(socket: &mut Socket<'_>, source: &mut Source<'_>, to: &Path) -> Result<()> {
    let refused = || format!("the server cannot write {}", to.display());
    let mut left = source.bytes;
    let mut chunk = vec![0; CHUNK];
    while left > 0 && !socket.has_ended()? {
        let max = left.min(CHUNK as u64) as usize;
        let len = source.read(&mut chunk[..max])?;
        ensure!(len > 0, source.changed("has become shorter"));
        let sent = socket.send(&chunk[..len]);
        // The answer names the cause if the server has ended the stream.
        sent.or_else(|error| reply(socket, WRITE).and(Err(error))).with_context(refused)?;
        left -= len as u64;
    }
    if left == 0 {
        source.check_end()?;
    }
    reply(socket, WRITE).with_context(refused)?;
    ensure!(left == 0, "the server has answered {left} bytes before the end of the file");
    Ok(())
}

/// A file to copy.
struct Source<'a> {
    path: &'a Path,
    file: File,
    /// The bytes of a file whose size is not known before its end was read.
    copy: Option<SpooledTempFile>,
    bytes: u64,
    mode: u32,
    is_regular: bool,
    stop: &'a Stop,
}

impl<'a> Source<'a> {
    /// Opens a file and finds its size, which is sent before its bytes. A pipe has no size, and the
    /// files of procfs and sysfs have a wrong one: small files and pipes are read up to their end.
    fn open(path: &'a Path, stop: &'a Stop) -> Result<Self> {
        let name = path.display();
        let file = File::open(path).with_context(|| format!("cannot open {name}"))?;
        let attr = file.metadata().with_context(|| format!("cannot read {name}"))?;
        let (kind, mode) = (attr.file_type(), attr.mode());
        ensure!(!kind.is_dir(), "cannot copy {name}: it is a directory");
        ensure!(
            !kind.is_char_device(),
            "cannot copy {name}: a character device has no size, and may have no end; use a file or a pipe"
        );
        let is_regular = kind.is_file();
        let mut source = Self { path, file, copy: None, bytes: attr.len(), mode, is_regular, stop };
        if kind.is_block_device() {
            let end = source.file.seek(SeekFrom::End(0)).and_then(|end| source.file.rewind().map(|()| end));
            source.bytes = end.with_context(|| format!("cannot find the size of {name}"))?;
        } else if !is_regular || source.bytes <= CHUNK as u64 {
            source.read_to_end()?;
        }
        Ok(source)
    }

    /// Reads up to the end of the file, into memory or, above [`CHUNK`] bytes, into a temporary
    /// file.
    fn read_to_end(&mut self) -> Result<()> {
        let mut copy = SpooledTempFile::new(CHUNK);
        let mut chunk = vec![0; CHUNK];
        let refused = || {
            let folder = std::env::temp_dir();
            format!("cannot write {} to {} (TMPDIR)", self.path.display(), folder.display())
        };
        let mut bytes = 0;
        loop {
            let len = read(&mut self.file, self.path, &mut chunk, self.stop)?;
            if len == 0 {
                break;
            }
            copy.write_all(&chunk[..len]).with_context(refused)?;
            bytes += len as u64;
        }
        copy.rewind().with_context(refused)?;
        (self.copy, self.bytes) = (Some(copy), bytes);
        Ok(())
    }

    fn read(&mut self, into: &mut [u8]) -> Result<usize> {
        match &mut self.copy {
            Some(copy) => read(copy, self.path, into, self.stop),
            None => read(&mut self.file, self.path, into, self.stop),
        }
    }

    /// Checks that nothing follows the bytes that were sent.
    fn check_end(&mut self) -> Result<()> {
        let is_end = !self.is_regular || read(&mut self.file, self.path, &mut [0], self.stop)? == 0;
        ensure!(is_end, self.changed("has become longer"));
        Ok(())
    }

    fn changed(&self, how: &str) -> String {
        format!("{} {how} than {} bytes while it was sent: copy it again", self.path.display(), self.bytes)
    }
}

/// Reads bytes of a file. 0: its end.
fn read(from: &mut impl Read, path: &Path, into: &mut [u8], stop: &Stop) -> Result<usize> {
    let len = from.read(into);
    stop.check()?;
    len.with_context(|| format!("cannot read {}", path.display()))
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
        errno @ 1.. => Err(std::io::Error::from_raw_os_error(errno).into()),
        other => bail!("the server has failed and sent no errno ({other})"),
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

impl Target {
    fn close(self) -> Result<()> {
        output::close(self.file).with_context(|| format!("cannot close {}", self.path.display()))
    }
}

/// Serves a client until it ends the stream.
fn serve(socket: &mut Socket<'_>, options: &Rcopy) -> Result<()> {
    let mut target = None;
    loop {
        let mut bytes = [0; Header::SIZE];
        if !socket.recv_or_end(&mut bytes)? {
            return target.map_or(Ok(()), Target::close);
        }
        let header = Header::from_bytes(bytes)?;
        let mut left = 0;
        let result = match header.command {
            OPEN => open(socket, header, &mut target, options),
            WRITE => write(socket, header, target.as_mut(), &mut left, options),
            CLOSE => close(target.take(), options),
            _ => Err(Errno::INVAL.into()),
        };
        socket.send(&header.reply(status(&result)).to_bytes())?;
        if result.is_err() {
            // The C client reads the answer after it has sent all bytes. Ours ends the stream, so
            // that the end is no error.
            let _ = discard(socket, left);
        }
        result.with_context(|| format!("command {} of the client", header.command))?;
    }
}

fn close(target: Option<Target>, options: &Rcopy) -> Result<()> {
    say(options, "closing...")?;
    target.map_or(Ok(()), Target::close)?;
    say(options, "done\n")
}

/// Receives bytes of a file that can't be written.
fn discard(socket: &mut Socket<'_>, mut left: u64) -> Result<()> {
    let mut chunk = vec![0; CHUNK];
    while left > 0 {
        let max = left.min(CHUNK as u64) as usize;
        match socket.recv_some(&mut chunk[..max])? {
            0 => break,
            len => left -= len as u64,
        }
    }
    Ok(())
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

/// Writes the bytes of a file. After an error, `left` is the number of bytes that are not received.
fn write(
    socket: &mut Socket<'_>,
    header: Header,
    target: Option<&mut Target>,
    left: &mut u64,
    options: &Rcopy,
) -> Result<()> {
    let Some(Target { path, file }) = target else { return Err(Errno::INVAL).context("no file is open") };
    let mut size = [0; 8];
    if header.body() != size.len() {
        return Err(Errno::INVAL).context("the size of the file has 8 bytes");
    }
    socket.recv(&mut size)?;
    let bytes = u64::from_ne_bytes(size);
    *left = bytes;
    say(options, &format!("transferring...{bytes} bytes..."))?;
    let start = Instant::now();
    let mut chunk = vec![0; CHUNK];
    while *left > 0 {
        let max = (*left).min(CHUNK as u64) as usize;
        let len = socket.recv_some(&mut chunk[..max])?;
        ensure!(len > 0, "the client has ended the stream {left} bytes before the end of the file");
        *left -= len as u64;
        file.write_all(&chunk[..len]).with_context(|| format!("cannot write {}", path.display()))?;
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
