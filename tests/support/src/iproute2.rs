//! The programs of iproute2: `ip` and `tc`.

use std::process::Command;

/// Runs a program. Returns its output.
///
/// # Errors
/// Its message, if it fails.
///
/// # Panics
/// If there is no such program.
pub fn attempt(program: &str, arguments: &str) -> Result<String, String> {
    let output = Command::new(program).args(arguments.split(' ')).output();
    let output = output.expect("the Debian root has iproute2");
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(format!("{program} {arguments}: {}", String::from_utf8_lossy(&output.stderr))),
    }
}

/// Runs `ip`. Returns its output.
///
/// # Panics
/// If it fails.
#[track_caller]
pub fn ip(arguments: &str) -> String {
    attempt("ip", arguments).unwrap_or_else(|failed| panic!("{failed}"))
}
