//! Public functions that no test calls, each with the reason.

use super::functions::Function;

/// Crate and function, and why no test calls it.
const UNCALLED: [(&str, &str); 0] = [];

/// The violations: functions that no test calls and that have no reason, and reasons that no
/// function needs.
pub(super) fn violations(functions: &[(Function, bool)]) -> Vec<String> {
    let mut violations = Vec::new();
    for (function, called) in functions {
        let reason = UNCALLED.iter().find(|(name, _)| *name == function.name);
        match (called, reason) {
            (false, None) => {
                violations.push(format!("{}: no test calls {}", function.place(), function.name))
            }
            (true, Some(_)) => violations.push(format!(
                "{}: {} is listed as called by no test, but one calls it",
                function.place(),
                function.name
            )),
            _ => {}
        }
    }
    for (name, _) in UNCALLED {
        if functions.iter().all(|(function, _)| function.name != name) {
            violations.push(format!("{name} is listed as called by no test, but does not exist"));
        }
    }
    violations
}
