//! Automatic path migration between two hosts, with a path that fails.

use std::time::Instant;

use anyhow::{Result, ensure};

use super::{EXAMPLES, LIMIT, Testbed};

/// The LID that the first host's port gets under traffic. The second host has loaded it as its
/// alternate path. No port has the old LID then.
const LID: u16 = 9;
const WRITES: u16 = 200;

pub(super) fn failing_path(testbed: &mut Testbed<'_>) -> Result<()> {
    let program = format!("exec {EXAMPLES}/path_migration -n {WRITES}");
    testbed.until(0, &format!("{program} --alternate-lid {LID}"), "listening")?;
    testbed.until(1, &format!("{program} 10.1.0.1"), "the alternate path is armed")?;
    testbed.control(&format!("1 lid {LID}"))?;
    let ended = testbed.ends();
    testbed.control("1 lid 1")?;
    let output = ended?;
    let migrated = format!("{WRITES} writes are complete, 1 migrations");
    let moved = output[1].contains(&format!("over LID {LID}"));
    ensure!(moved && output.iter().all(|text| text.contains(&migrated)), "the hosts printed {output:#?}");
    Ok(())
}

impl Testbed<'_> {
    /// Waits until the running scripts have ended with success, and returns what they print.
    fn ends(&mut self) -> Result<[String; 2]> {
        let deadline = Some(Instant::now() + LIMIT);
        let guests = self.guests()?;
        let mut output = [String::new(), String::new()];
        while (0..2).any(|host| guests.is_running(host)) {
            guests.step(deadline, &mut |host, _, bytes| {
                output[host] += &String::from_utf8_lossy(bytes);
                Ok(())
            })?;
        }
        let statuses = [0, 1].map(|host| guests.status(host));
        ensure!(statuses == [Some(0); 2], "statuses {statuses:?}: {output:#?}");
        Ok(output)
    }
}
