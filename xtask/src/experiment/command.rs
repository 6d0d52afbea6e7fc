//! Commands in guests.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use bareverbs_lab::{Exec, Guests, Stream};

/// Runs a command on the first host to its end. Returns its output.
pub(crate) fn run(guests: &mut Guests, command: &[&str], limit: Duration) -> Result<String> {
    run_named(guests, command, command, limit)
}

/// Runs a shell script with arguments. Returns its output.
pub(crate) fn script(
    guests: &mut Guests,
    script: &str,
    arguments: &[&str],
    limit: Duration,
) -> Result<String> {
    run_named(guests, &[&["sh", "-c", script, "sh"], arguments].concat(), arguments, limit)
}

/// `name` is what errors call the command.
fn run_named(guests: &mut Guests, command: &[&str], name: &[&str], limit: Duration) -> Result<String> {
    let argv = command.iter().copied().map(str::to_owned).collect();
    let finished = guests.run(0, Exec { argv, ..Exec::default() }, limit)?;
    let text = String::from_utf8_lossy(&finished.stdout).into_owned();
    if finished.timed_out || finished.status != 0 {
        let errors = String::from_utf8_lossy(&finished.stderr);
        bail!("{} failed with status {}:\n{text}{errors}", name.join(" "), finished.status);
    }
    Ok(text)
}

/// Runs a command as [`run`], and shows its output meanwhile.
pub(crate) fn show(guests: &mut Guests, argv: Vec<String>, limit: Duration) -> Result<String> {
    let mut text = Vec::new();
    let mut show = |_: usize, stream: Stream, bytes: &[u8]| match stream {
        Stream::Stdout => {
            text.extend_from_slice(bytes);
            io::stdout().write_all(bytes)?;
            io::stdout().flush()
        }
        Stream::Stderr => io::stderr().write_all(bytes),
    };
    guests.start(0, Exec { argv, ..Exec::default() })?;
    let statuses = guests.wait(Some(Instant::now() + limit), &mut show)?;
    if statuses != [0] {
        bail!("it failed with status {statuses:?}");
    }
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// A shell function that waits until a port, four hexadecimal digits, listens; for 20 s at most.
pub(crate) const UNTIL_LISTENING: &str = r#"
until_listening() {
    for _ in $(seq 200); do
        grep -q " [0-9A-F]*:$1 0*:0000 0A " /proc/net/tcp /proc/net/tcp6 && break
        sleep 0.1
    done
}
"#;

/// Wraps a ping-pong server so that it prints `listening` to standard error when its port (18515,
/// hexadecimal 4853) is open.
pub(crate) fn announced(server: &[String]) -> Vec<String> {
    let script = "\"$@\" & until grep -q ':4853 .* 0A ' /proc/net/tcp /proc/net/tcp6; do \
                  kill -0 $! 2>/dev/null || break; sleep 0.05; done; echo listening >&2; wait $!";
    ["bash", "-c", script, "server"].into_iter().map(str::to_owned).chain(server.iter().cloned()).collect()
}
