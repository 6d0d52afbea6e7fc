//! Cards that are otherwise than most.

use anyhow::{Context, Result, bail, ensure};
use bareverbs_lab::{Guests, Hca, Setup};

use super::{Bench, LIMIT, games};
use crate::build;

/// Our programs with themselves and with the C programs, in both roles.
const GAMES: &str = "
play() {
    $1 $gid -n 300 >/tmp/server 2>&1 & server=$!
    try $2 $gid -n 300 127.0.0.1 || exit 1
    wait $server || { echo $1; cat /tmp/server; exit 1; }
}
for kind in rc uc ud srq xsrq; do
    play \"bareverbs pingpong $kind\" \"bareverbs pingpong $kind\"
    play \"bareverbs pingpong $kind\" ibv_${kind}_pingpong
    play ibv_${kind}_pingpong \"bareverbs pingpong $kind\"
done
play 'bareverbs pingpong rc -e -c' 'bareverbs pingpong rc -e -c'";

/// A card whose completions name queues by its own numbers, in place of the users'.
pub(super) fn by_number(bench: &mut Bench<'_>) -> Result<()> {
    bench.end()?;
    let arguments = ["--cqe-version=0".to_owned()];
    let cards = Hca::start(&build::card()?, bench.port, 1, &arguments)?;
    let setup = Setup { hosts: 1, hca: Some(&cards), shares: Vec::new(), ..bench.setup.clone() };
    let mut guests = Guests::boot(&setup).context("booting a host with such a card")?;
    for script in [GAMES, games::COMPLAINTS] {
        let finished = guests.run(0, bench.exec(script), LIMIT)?;
        let (out, err) =
            (String::from_utf8_lossy(&finished.stdout), String::from_utf8_lossy(&finished.stderr));
        if finished.status != 0 || finished.timed_out {
            bail!("status {}:\n{out}{err}", finished.status);
        }
        ensure!(script == GAMES || out.trim().is_empty(), "the kernel complains:\n{out}");
    }
    let warnings = guests.shut_down()?;
    ensure!(warnings.is_empty(), "{}", warnings.join("\n"));
    Ok(())
}
