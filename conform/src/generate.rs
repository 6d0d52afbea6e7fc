//! The generators of checks.

pub(crate) mod alone;
mod commands;
mod life;
pub(crate) mod parser;
mod qp_states;

use bareverbs_uapi::uverbs::types::DriverId;

use crate::check::Check;

/// The checks for devices of a driver.
pub(crate) fn checks(driver_id: u32) -> Vec<Check> {
    let mut checks = Vec::new();
    if driver_id == DriverId::RXE.0 {
        checks.extend(parser::checks());
        checks.extend(commands::checks(driver_id));
        checks.extend(qp_states::checks());
        checks.extend(life::checks());
    } else {
        checks.extend(alone::checks(driver_id));
    }
    checks
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_have_four_parts() {
        for driver in [DriverId::RXE, DriverId::MLX5] {
            let checks = checks(driver.0);
            let mut names = BTreeSet::new();
            for check in &checks {
                assert!(names.insert(check.name.as_str()), "{} occurs twice", check.name);
                assert_eq!(check.name.split("::").count(), 4, "{}", check.name);
            }
            assert!(names.len() > 1500, "{driver:?}: {}", names.len());
        }
    }
}
