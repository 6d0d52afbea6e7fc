//! The control socket: link and subnet changes that a driver can't request.
//!
//! Each line is a command. The answer is a line that begins with `ok` or `error`. Devices count
//! from 1.
//!
//! | command | effect |
//! |---|---|
//! | `DEVICE link down`, `DEVICE link up` | link down or up |
//! | `DEVICE lid NUMBER` | another LID of an InfiniBand port |
//! | `DEVICE prefix NUMBER` | another subnet prefix, and so another GID, of an InfiniBand port |
//! | `DEVICE objects` | number of objects of the driver on the device |

use std::fmt;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use crate::device::PortChange;
use crate::vfio_user::Server;

/// Maximum length of a command line in bytes.
const MAX_LINE: u64 = 256;

enum Command {
    Change(PortChange),
    Objects,
}

/// The control socket.
pub struct Control {
    path: PathBuf,
    listener: UnixListener,
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Control").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Control {
    /// Creates the socket. A stale socket file is replaced.
    pub fn bind(path: &Path) -> io::Result<Self> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        Ok(Self { path: path.to_owned(), listener: UnixListener::bind(path)? })
    }

    /// Serves connections one at a time. Returns only when the socket fails.
    pub fn serve(&self, devices: &[Server]) -> io::Error {
        loop {
            match self.listener.accept() {
                // A connection that is closed early does not affect the next one.
                Ok((connection, _)) => drop(serve_connection(&connection, devices)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return error,
            }
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // The file may already be gone.
        let _ = fs::remove_file(&self.path);
    }
}

fn serve_connection(connection: &UnixStream, devices: &[Server]) -> io::Result<()> {
    let mut lines = BufReader::new(connection);
    loop {
        let mut line = Vec::new();
        if io::Read::take(&mut lines, MAX_LINE).read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        let answer = match answer(&String::from_utf8_lossy(&line), devices) {
            Ok(said) => format!("ok {said}").trim_end().to_owned(),
            Err(why) => format!("error: {why}"),
        };
        (&*connection).write_all(format!("{answer}\n").as_bytes())?;
    }
}

fn answer(line: &str, devices: &[Server]) -> Result<String, String> {
    let (number, command) = parse(line)?;
    let device = number
        .checked_sub(1)
        .and_then(|index| devices.get(index))
        .ok_or_else(|| format!("no device {number}: use 1 to {}", devices.len()))?;
    match command {
        Command::Objects => Ok(device.objects()),
        Command::Change(change) if device.change(change) => Ok(String::new()),
        Command::Change(change) => Err(format!("{change:?} is not supported by this port type")),
    }
}

fn parse(line: &str) -> Result<(usize, Command), String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let device = |word: &str| word.parse().map_err(|_| format!("`{word}` is not a device number"));
    let command = match words[..] {
        [_, "link", "up"] => Command::Change(PortChange::Link(true)),
        [_, "link", "down"] => Command::Change(PortChange::Link(false)),
        [_, "lid", lid] => Command::Change(PortChange::Lid(
            number(lid)
                .and_then(|lid| u16::try_from(lid).ok())
                .filter(|lid| (1..0xc000).contains(lid))
                .ok_or_else(|| format!("invalid LID `{lid}`: use 1 to 0xbfff"))?,
        )),
        [_, "prefix", prefix] => Command::Change(PortChange::Prefix(
            number(prefix).ok_or_else(|| format!("invalid prefix `{prefix}`: use a 64-bit number"))?,
        )),
        [_, "objects"] => Command::Objects,
        _ => return Err(format!("unknown command `{}`: use link, lid, prefix or objects", line.trim())),
    };
    Ok((device(words[0])?, command))
}

/// Parses a decimal number, or a hexadecimal one after `0x`.
fn number(word: &str) -> Option<u64> {
    match word.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => word.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn change(line: &str) -> Option<(usize, PortChange)> {
        match parse(line) {
            Ok((device, Command::Change(change))) => Some((device, change)),
            _ => None,
        }
    }

    #[test]
    fn commands_are_parsed() {
        assert_eq!(change("1 link down\n"), Some((1, PortChange::Link(false))));
        assert_eq!(change("12 link up"), Some((12, PortChange::Link(true))));
        assert_eq!(change("2 lid 0x7f"), Some((2, PortChange::Lid(0x7f))));
        assert_eq!(
            change("1 prefix 0xfec0000000000001"),
            Some((1, PortChange::Prefix(0xfec0_0000_0000_0001)))
        );
        assert!(matches!(parse("3 objects"), Ok((3, Command::Objects))));
    }

    #[test]
    fn unknown_command_lists_valid_commands() {
        for line in
            ["", "link up", "x link up", "1 link", "1 lid 0", "1 lid 0xc000", "1 lid -3", "1 prefix z"]
        {
            assert!(parse(line).is_err(), "{line}");
        }
    }

    proptest! {
        #[test]
        fn arbitrary_line_is_answered(line: String) {
            let _ = answer(&line, &[]);
        }
    }
}
