//! Output of lines and files. Unlike `println!`, these functions do not panic on a closed pipe: they
//! fail, and [`is_closed`] recognizes their error. The program then ends without a message.

use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::path::Path;

/// Prints a line of the result and flushes it, so that a reader can act on it.
pub(crate) fn line(text: &str) -> io::Result<()> {
    write(&format!("{text}\n"))
}

/// Prints lines of the result, which contain their newlines.
pub(crate) fn write(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(of_output)
}

/// The exit status if the reader of the output has closed it: that of a shell for a program that
/// SIGPIPE killed.
pub(crate) const CLOSED: u8 = 141;

/// The reader of the program's output has closed it.
#[derive(Debug, thiserror::Error)]
#[error("the reader of the output has closed it")]
struct Closed;

/// Marks a broken pipe as one of the program's output. Other pipes and sockets break, too.
pub(crate) fn of_output(error: io::Error) -> io::Error {
    match error.kind() {
        ErrorKind::BrokenPipe => io::Error::new(ErrorKind::BrokenPipe, Closed),
        _ => error,
    }
}

/// Whether a cause of an error is that the reader of the output has closed it.
pub(crate) fn is_closed(error: &anyhow::Error) -> bool {
    let mut causes = error.chain().filter_map(|cause| cause.downcast_ref::<io::Error>());
    causes.any(|cause| cause.get_ref().is_some_and(|inner| inner.is::<Closed>()))
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
