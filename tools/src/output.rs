//! Lines to the reader. Unlike `println!`, these do not panic when nobody reads.

use std::io::{self, Write};

/// A line of the result, at once, so that whoever reads it can act on it.
pub(crate) fn line(text: &str) -> io::Result<()> {
    write(&format!("{text}\n"))
}

/// Lines of the result, with their ends.
pub(crate) fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// A remark beside the result.
pub(crate) fn diagnostic(text: &str) {
    // Where even remarks can't be written, there is no better place to complain.
    let _ = io::stderr().write_all(format!("{text}\n").as_bytes());
}
