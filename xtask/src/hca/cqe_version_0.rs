//! HCAs that are otherwise than most.

use anyhow::Result;

use super::{Testbed, interop};

/// The second host's HCA, whose completions name queues by its own numbers in place of the users'.
pub(super) fn run(testbed: &mut Testbed<'_>) -> Result<()> {
    interop::bareverbs_within(testbed, 1)?;
    interop::dmesg_clean_of(testbed, 1)
}
