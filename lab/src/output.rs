//! Forwards the output of several hosts with a prefix for each.

use std::io::{self, Write};

/// Adds a prefix to each line and forwards whole lines only.
#[derive(Debug)]
pub struct Prefixed {
    prefix: String,
    partial: Vec<u8>,
}

impl Prefixed {
    /// Lines get this prefix.
    pub fn new(prefix: impl Into<String>) -> Self {
        Self { prefix: prefix.into(), partial: Vec::new() }
    }

    /// Adds bytes and writes the completed lines.
    pub fn write(&mut self, bytes: &[u8], out: &mut impl Write) -> io::Result<()> {
        for line in bytes.split_inclusive(|&byte| byte == b'\n') {
            self.partial.extend_from_slice(line);
            if line.ends_with(b"\n") {
                self.flush_line(out)?;
            }
        }
        out.flush()
    }

    /// Writes a last line without a newline.
    pub fn finish(&mut self, out: &mut impl Write) -> io::Result<()> {
        if !self.partial.is_empty() {
            self.partial.push(b'\n');
            self.flush_line(out)?;
        }
        out.flush()
    }

    fn flush_line(&mut self, out: &mut impl Write) -> io::Result<()> {
        let mut line = self.prefix.clone().into_bytes();
        line.append(&mut self.partial);
        out.write_all(&line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_prefixed_whole() {
        let mut out = Vec::new();
        let mut lines = Prefixed::new("1| ");
        lines.write(b"one\ntw", &mut out).unwrap();
        assert_eq!(out, b"1| one\n");
        lines.write(b"o\n\nthree", &mut out).unwrap();
        lines.finish(&mut out).unwrap();
        assert_eq!(out, b"1| one\n1| two\n1| \n1| three\n");
    }
}
