//! Output of lines. Unlike `println!`, these functions do not panic on a closed pipe.

use std::io::{self, Write};

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

/// A setting as text.
pub(crate) fn on_off(on: bool) -> &'static str {
    if on { "on" } else { "off" }
}
