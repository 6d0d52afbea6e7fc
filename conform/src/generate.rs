//! The generators of checks.
//!
//! Most checks are rows of tables: what is changed in a valid call, the rule that the change breaks, and
//! the answer. A function makes the checks of a table at each place that it applies to. Checks that
//! differ in all that they do are a [`Row`](crate::check::Row) each.

pub(crate) mod alone;
mod bugs;
mod cm;
pub(crate) mod commands;
pub(crate) mod data;
pub(crate) mod environment;
mod events;
mod fixed;
pub(crate) mod life;
mod limits;
pub(crate) mod nldev;
pub(crate) mod order;
pub(crate) mod pair;
pub(crate) mod parser;
pub(crate) mod qp_states;
pub(crate) mod rings;

use bareverbs_uapi::uverbs::types::DriverId;

use crate::check::Check;

/// A handle, number or index that no object has.
pub(crate) const NOWHERE: u32 = 0x7fff_fff0;

/// The checks for devices of a driver.
pub(crate) fn checks(driver_id: u32) -> Vec<Check> {
    let mut checks = Vec::new();
    if driver_id == DriverId::RXE.0 {
        checks.extend(parser::checks());
        checks.extend(commands::checks(driver_id));
        checks.extend(qp_states::checks());
        checks.extend(life::checks());
        checks.extend(limits::checks());
        checks.extend(order::checks());
        checks.extend(rings::checks());
        checks.extend(data::checks(data::Device::Rxe));
        checks.extend(bugs::checks());
        checks.extend(fixed::checks());
        checks.extend(events::checks());
        checks.extend(cm::checks());
        checks.extend(nldev::checks());
        checks.extend(environment::checks());
    } else {
        checks.extend(alone::checks(driver_id));
        if driver_id == DriverId::MLX5.0 {
            checks.extend(data::checks(data::Device::Mlx5));
            checks.extend(bugs::of_mlx5());
        }
        if driver_id == DriverId::SIW.0 {
            checks.extend(cm::checks());
        }
    }
    checks
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The anchor of a heading in Markdown.
    fn anchor(heading: &str) -> String {
        let kept = heading.chars().filter(|char| char.is_alphanumeric() || "-_ ".contains(*char));
        kept.collect::<String>().to_lowercase().replace(' ', "-")
    }

    #[test]
    fn each_known_bug_has_a_heading_in_the_docs() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/kernel-bugs.md");
        let page = std::fs::read_to_string(page).unwrap();
        let headings: BTreeSet<String> =
            page.lines().filter_map(|line| line.strip_prefix("### ")).map(anchor).collect();
        let checks = checks(DriverId::RXE.0);
        let bugs: Vec<_> = checks.iter().filter_map(|check| Some((check, check.bug?))).collect();
        assert!(bugs.len() > 10);
        for (check, bug) in bugs {
            assert!(headings.contains(bug.page), "{}: {}", check.name, bug.page);
        }
    }

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
