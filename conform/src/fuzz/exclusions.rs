//! Calls that are not made, because a known bug of the kernel would end the run.

use bareverbs_uapi::abi::Since;
use bareverbs_uapi::uverbs::ObjectClass;
use bareverbs_uapi::uverbs::types::DriverId;
use bareverbs_uapi::verbs_values::QpAttrMask;

use crate::target::Target;

use super::facts::Facts;

/// A known bug, and the calls that meet it.
pub(super) struct Exclusion {
    /// The driver that has the bug.
    driver: DriverId,
    /// The first series without it, if there is one.
    fixed: Option<Since>,
    /// What the calls do.
    pub(super) reason: &'static str,
    is: fn(&Facts) -> bool,
}

const EXCLUSIONS: [Exclusion; 2] = [
    Exclusion {
        driver: DriverId::RXE,
        fixed: Some(Since::V7_2),
        reason: "rxe before 7.2 writes beyond its read and atomic resources if max_dest_rd_atomic grows",
        is: |facts| {
            let mask = QpAttrMask::MAX_DEST_RD_ATOMIC.bits();
            facts.command.is_some_and(|command| command.rust == "ModifyQp")
                && facts.field("attr_mask") & u64::from(mask) != 0
                && facts.field("max_dest_rd_atomic") != 1
        },
    },
    Exclusion {
        driver: DriverId::MLX5,
        fixed: None,
        reason: "the method WQ_CREATE without its optional CQ_HANDLE crashes mlx5",
        is: |facts| {
            facts.creates == Some(ObjectClass::WQ.0)
                && facts.command.is_none()
                && !facts.needs.iter().any(|(class, _)| *class == ObjectClass::CQ.0)
        },
    },
];

/// The exclusion that a call meets.
pub(super) fn find(facts: &Facts, target: &dyn Target, series: Since) -> Option<&'static Exclusion> {
    EXCLUSIONS.iter().find(|exclusion| {
        exclusion.driver.0 == target.driver_id()
            && exclusion.fixed.is_none_or(|fixed| series < fixed)
            && (exclusion.is)(facts)
    })
}
