//! The frames on the port between host and guest: one kind byte, a little-endian 32-bit length, the
//! body.

use std::io::{self, Read, Write};

use crate::{Exec, TerminalSize};

/// Longest body that is accepted.
pub const MAX_BODY: usize = 1 << 20;

/// Messages from the guest to the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FromGuest {
    /// Set-up is done; the text is the kernel's release.
    Ready(String),
    /// Set-up failed for this reason; the guest powers off.
    Failed(String),
    /// Bytes of the command's standard output.
    Stdout(Vec<u8>),
    /// Bytes of the command's standard error.
    Stderr(Vec<u8>),
    /// The command ended with this status (128+n after signal n), and all its output was sent.
    Exited(u8),
    /// A packet of the captured link.
    Packet(Vec<u8>),
}

/// Messages from the host to the guest.
#[derive(Clone, Debug)]
pub enum ToGuest {
    /// Run a command.
    Exec(Exec),
    /// Bytes for the command's terminal.
    Stdin(Vec<u8>),
    /// The terminal's size changed.
    Resize(TerminalSize),
    /// Kill the command and everything it started.
    Kill,
    /// Power off.
    PowerOff,
}

impl FromGuest {
    /// Writes the frame in one piece.
    pub fn write_to(&self, out: &mut impl Write) -> io::Result<()> {
        let status;
        let (kind, body): (u8, &[u8]) = match self {
            Self::Ready(text) => (1, text.as_bytes()),
            Self::Failed(text) => (2, text.as_bytes()),
            Self::Stdout(bytes) => (3, bytes),
            Self::Stderr(bytes) => (4, bytes),
            Self::Exited(code) => {
                status = [*code];
                (5, &status)
            }
            Self::Packet(bytes) => (6, bytes),
        };
        write_frame(out, kind, body)
    }

    /// Reads the next frame; `None` at the end of the stream.
    pub fn read_from(input: &mut impl Read) -> io::Result<Option<Self>> {
        let Some((kind, body)) = read_frame(input)? else {
            return Ok(None);
        };
        Ok(Some(match kind {
            1 => Self::Ready(text(body)),
            2 => Self::Failed(text(body)),
            3 => Self::Stdout(body),
            4 => Self::Stderr(body),
            5 => Self::Exited(*body.first().ok_or_else(|| invalid("an exit frame without a status"))?),
            6 => Self::Packet(body),
            _ => return Err(invalid(format!("frame kind {kind} from the guest"))),
        }))
    }
}

impl ToGuest {
    /// Writes the frame in one piece.
    pub fn write_to(&self, out: &mut impl Write) -> io::Result<()> {
        match self {
            Self::Exec(exec) => write_frame(out, 1, &serde_json::to_vec(exec)?),
            Self::Stdin(bytes) => write_frame(out, 2, bytes),
            Self::Resize(size) => write_frame(out, 3, &serde_json::to_vec(size)?),
            Self::Kill => write_frame(out, 4, &[]),
            Self::PowerOff => write_frame(out, 5, &[]),
        }
    }

    /// Reads the next frame; `None` at the end of the stream.
    pub fn read_from(input: &mut impl Read) -> io::Result<Option<Self>> {
        let Some((kind, body)) = read_frame(input)? else {
            return Ok(None);
        };
        Ok(Some(match kind {
            1 => Self::Exec(serde_json::from_slice(&body)?),
            2 => Self::Stdin(body),
            3 => Self::Resize(serde_json::from_slice(&body)?),
            4 => Self::Kill,
            5 => Self::PowerOff,
            _ => return Err(invalid(format!("frame kind {kind} from the host"))),
        }))
    }
}

fn write_frame(out: &mut impl Write, kind: u8, body: &[u8]) -> io::Result<()> {
    let length = u32::try_from(body.len())
        .ok()
        .filter(|&length| length as usize <= MAX_BODY)
        .ok_or_else(|| invalid(format!("a frame body of {} bytes", body.len())))?;
    let mut frame = Vec::with_capacity(5 + body.len());
    frame.push(kind);
    frame.extend_from_slice(&length.to_le_bytes());
    frame.extend_from_slice(body);
    out.write_all(&frame)
}

fn read_frame(input: &mut impl Read) -> io::Result<Option<(u8, Vec<u8>)>> {
    let mut head = [0; 5];
    if input.read(&mut head[..1])? == 0 {
        return Ok(None);
    }
    input.read_exact(&mut head[1..])?;
    let length = u32::from_le_bytes([head[1], head[2], head[3], head[4]]) as usize;
    if length > MAX_BODY {
        return Err(invalid(format!("a frame body of {length} bytes")));
    }
    let mut body = vec![0; length];
    input.read_exact(&mut body)?;
    Ok(Some((head[0], body)))
}

fn text(body: Vec<u8>) -> String {
    String::from_utf8_lossy(&body).into_owned()
}

fn invalid(what: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_round_trip() {
        let frames = [
            FromGuest::Ready("6.12".into()),
            FromGuest::Stdout(b"a\0b\xff".to_vec()),
            FromGuest::Stderr(Vec::new()),
            FromGuest::Packet(vec![7; 1500]),
            FromGuest::Exited(137),
            FromGuest::Failed("no such link".into()),
        ];
        let mut stream = Vec::new();
        for frame in &frames {
            frame.write_to(&mut stream).unwrap();
        }
        let mut input = stream.as_slice();
        for frame in frames {
            assert_eq!(FromGuest::read_from(&mut input).unwrap(), Some(frame));
        }
        assert_eq!(FromGuest::read_from(&mut input).unwrap(), None);
    }

    #[test]
    fn truncated_stream_is_an_error() {
        let mut stream = Vec::new();
        FromGuest::Stdout(vec![1; 10]).write_to(&mut stream).unwrap();
        stream.pop();
        assert!(FromGuest::read_from(&mut stream.as_slice()).is_err());
    }

    #[test]
    fn oversized_frame_length_is_rejected_before_allocation() {
        let stream = [3, 0xff, 0xff, 0xff, 0xff];
        assert!(FromGuest::read_from(&mut stream.as_slice()).is_err());
    }

    #[test]
    fn exec_frame_preserves_arguments() {
        let mut stream = Vec::new();
        let exec = Exec { argv: vec!["sh".into(), "-c".into(), "echo \"ü\n\"".into()], ..Exec::default() };
        ToGuest::Exec(exec.clone()).write_to(&mut stream).unwrap();
        match ToGuest::read_from(&mut stream.as_slice()).unwrap() {
            Some(ToGuest::Exec(read)) => assert_eq!(read.argv, exec.argv),
            other => panic!("{other:?}"),
        }
    }
}
