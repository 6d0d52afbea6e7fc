//! Output of lines and files. Unlike `println!`, these functions do not panic on a closed pipe.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;

/// Prints a line of the result and flushes it, so that a reader can act on it.
pub(crate) fn line(text: &str) -> io::Result<()> {
    write(&format!("{text}\n"))
}

/// Prints lines of the result, which contain their newlines.
pub(crate) fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// Prints a remark to standard error.
pub(crate) fn diagnostic(text: &str) {
    // A failure to write to standard error is ignored: it can't be reported.
    let _ = io::stderr().write_all(format!("{text}\n").as_bytes());
}

/// Prints a remark to standard error in place of the last one, for a terminal.
pub(crate) fn progress(text: &str) {
    // As in `diagnostic`.
    let _ = io::stderr().write_all(format!("\r{text}").as_bytes());
}

/// Writes a file.
pub(crate) fn file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(bytes)?;
    close(file)
}

/// Closes a file that was written. Some file systems report only here that there is no space.
pub(crate) fn close(file: File) -> io::Result<()> {
    Ok(nix::unistd::close(file)?)
}

/// A setting as text.
pub(crate) fn on_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}
