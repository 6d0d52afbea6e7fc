//! Cards that are otherwise than most.

use anyhow::Result;

use super::{Bench, games};

/// Our programs with themselves and with the C programs, in both roles.
const GAMES: &str = "
games() {
    local kind
    for kind in rc uc ud srq xsrq; do
        $1 \"bareverbs pingpong $kind\" \"bareverbs pingpong $kind\" || return 1
        $1 \"bareverbs pingpong $kind\" ibv_${kind}_pingpong || return 1
        $1 ibv_${kind}_pingpong \"bareverbs pingpong $kind\" || return 1
    done
    $1 'bareverbs pingpong rc -e -c' 'bareverbs pingpong rc -e -c'
}
serve_one() { serve $1 $gid -n 20; }
play_other() { play $2 $gid -n 20; }
games serve_one
listening || exit 1
at=$first
games play_other && served";

/// The second host's card, whose completions name queues by its own numbers in place of the users'.
pub(super) fn by_number(bench: &mut Bench<'_>) -> Result<()> {
    bench.script(1, GAMES)?;
    games::no_complaints_of(bench, 1)
}
