//! HCAs with CQE version 0.

use anyhow::Result;

use super::{Testbed, interop};

/// The second host's HCA, whose CQEs have the HCA's queue numbers in place of user indices.
pub(super) fn run(testbed: &mut Testbed<'_>) -> Result<()> {
    interop::bareverbs_within(testbed, 1)?;
    interop::dmesg_clean_of(testbed, 1)
}
