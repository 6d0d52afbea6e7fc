//! A socket by which people and tests do to cards what only a hand at the machine or a subnet manager can.
//!
//! Each line is a wish, answered by a line that begins with `ok` or `error`. Cards count from 1.
//!
//! | wish | |
//! |---|---|
//! | `CARD link down`, `CARD link up` | pulls the cable, or puts it back |
//! | `CARD lid NUMBER` | the subnet manager gives an InfiniBand port another LID |
//! | `CARD prefix NUMBER` | the subnet manager gives an InfiniBand port another subnet prefix, and so another GID |
//! | `CARD objects` | how many objects the driver has on the card |

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use crate::shell::Server;

/// The longest line that is a wish.
const LONGEST: u64 = 256;

/// What happens to a card from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The cable is in, or out.
    Link(bool),
    /// An InfiniBand port has this LID.
    Lid(u16),
    /// An InfiniBand port's GIDs begin with this.
    Prefix(u64),
}

enum Wish {
    Change(Change),
    Objects,
}

/// The socket.
pub struct Control {
    path: PathBuf,
    listener: UnixListener,
}

impl Control {
    /// Makes the socket. A stale socket file is replaced.
    pub fn bind(path: &Path) -> io::Result<Self> {
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        Ok(Self { path: path.to_owned(), listener: UnixListener::bind(path)? })
    }

    /// Serves one visitor after the other; returns only when the socket fails.
    pub fn serve(&self, cards: &[Server]) -> io::Error {
        loop {
            match self.listener.accept() {
                // A visitor who goes away in the middle is no concern of the next.
                Ok((visitor, _)) => drop(converse(&visitor, cards)),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return error,
            }
        }
    }
}

impl Drop for Control {
    fn drop(&mut self) {
        // Gone already is as good.
        let _ = fs::remove_file(&self.path);
    }
}

fn converse(visitor: &UnixStream, cards: &[Server]) -> io::Result<()> {
    let mut lines = BufReader::new(visitor);
    loop {
        let mut line = Vec::new();
        if io::Read::take(&mut lines, LONGEST).read_until(b'\n', &mut line)? == 0 {
            return Ok(());
        }
        let answer = match answer(&String::from_utf8_lossy(&line), cards) {
            Ok(said) => format!("ok {said}").trim_end().to_owned(),
            Err(why) => format!("error: {why}"),
        };
        (&*visitor).write_all(format!("{answer}\n").as_bytes())?;
    }
}

fn answer(line: &str, cards: &[Server]) -> Result<String, String> {
    let (number, wish) = parse(line)?;
    let card = number
        .checked_sub(1)
        .and_then(|index| cards.get(index))
        .ok_or_else(|| format!("no card {number}: there are 1 to {}", cards.len()))?;
    match wish {
        Wish::Objects => Ok(card.objects()),
        Wish::Change(change) if card.change(change) => Ok(String::new()),
        Wish::Change(change) => Err(format!("{change:?} is nothing for this kind of port")),
    }
}

fn parse(line: &str) -> Result<(usize, Wish), String> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let card = |word: &str| word.parse().map_err(|_| format!("`{word}` is no card's number"));
    let wish = match words[..] {
        [_, "link", "up"] => Wish::Change(Change::Link(true)),
        [_, "link", "down"] => Wish::Change(Change::Link(false)),
        [_, "lid", lid] => Wish::Change(Change::Lid(
            number(lid)
                .and_then(|lid| u16::try_from(lid).ok())
                .filter(|lid| (1..0xc000).contains(lid))
                .ok_or_else(|| format!("`{lid}` is no LID: give 1 to 0xbfff"))?,
        )),
        [_, "prefix", prefix] => Wish::Change(Change::Prefix(
            number(prefix).ok_or_else(|| format!("`{prefix}` is no prefix: give a 64-bit number"))?,
        )),
        [_, "objects"] => Wish::Objects,
        _ => return Err(format!("`{}`: not one of link, lid, prefix, objects", line.trim())),
    };
    Ok((card(words[0])?, wish))
}

/// Decimal, or hexadecimal after `0x`.
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

    fn change(line: &str) -> Option<(usize, Change)> {
        match parse(line) {
            Ok((card, Wish::Change(change))) => Some((card, change)),
            _ => None,
        }
    }

    #[test]
    fn wishes_are_understood() {
        assert_eq!(change("1 link down\n"), Some((1, Change::Link(false))));
        assert_eq!(change("12 link up"), Some((12, Change::Link(true))));
        assert_eq!(change("2 lid 0x7f"), Some((2, Change::Lid(0x7f))));
        assert_eq!(change("1 prefix 0xfec0000000000001"), Some((1, Change::Prefix(0xfec0_0000_0000_0001))));
        assert!(matches!(parse("3 objects"), Ok((3, Wish::Objects))));
    }

    #[test]
    fn what_is_no_wish_says_what_there_is() {
        for line in
            ["", "link up", "x link up", "1 link", "1 lid 0", "1 lid 0xc000", "1 lid -3", "1 prefix z"]
        {
            assert!(parse(line).is_err(), "{line}");
        }
    }

    proptest! {
        #[test]
        fn any_line_is_answered(line: String) {
            let _ = answer(&line, &[]);
        }
    }
}
