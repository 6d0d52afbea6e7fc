//! Cards that are otherwise than most.

use anyhow::Result;

use super::{Bench, games};

/// The second host's card, whose completions name queues by its own numbers in place of the users'.
pub(super) fn by_number(bench: &mut Bench<'_>) -> Result<()> {
    games::ours_within(bench, 1)?;
    games::no_complaints_of(bench, 1)
}
