//! `cargo xtask conform bisect`: the commit that changed the result of a check.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::thread::available_parallelism;

use anyhow::{Context, Result, ensure};
use bareverbs_conform::{Outcome, Verdict};
use bareverbs_lab::Accelerator;
use clap::Args;

use super::Testbed;
use crate::experiment::Tested;

#[derive(Args)]
pub(crate) struct Bisect {
    /// A revision on which the check passes.
    good: String,
    /// A revision on which the check fails, or shows its known bug.
    bad: String,
    #[command(flatten)]
    step: Step,
}

#[derive(Args)]
pub(crate) struct Step {
    /// The name of the check.
    check: String,
    /// The kernel tree, with a .config.
    #[arg(long, default_value = ".")]
    tree: PathBuf,
    /// Find the commit that made the check pass: status 0 is that of a commit without it.
    #[arg(long, hide = true)]
    fixed: bool,
}

fn git(tree: &Path) -> Command {
    let mut git = Command::new("git");
    git.arg("-C").arg(tree);
    git
}

impl Bisect {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let Self { good, bad, step } = self;
        let tree = step.tree.canonicalize().with_context(|| step.tree.display().to_string())?;
        ensure!(tree.join(".config").is_file(), "{} has no .config: see docs/conform.md", tree.display());
        // If the good revision is the newer one, the commit that fixed the kernel is searched.
        let ancestor = git(&tree).args(["merge-base", "--is-ancestor", &bad, &good]).status()?.success();
        let (terms, old, new) =
            if ancestor { (["broken", "fixed"], &bad, &good) } else { (["good", "bad"], &good, &bad) };
        let start = git(&tree)
            .args(["bisect", "start", "--term-old", terms[0], "--term-new", terms[1], new, old])
            .status()
            .context("running git")?;
        ensure!(start.success(), "git bisect start failed");
        let mut run = git(&tree);
        run.args(["bisect", "run"]).arg(std::env::current_exe()?).args(["conform", "bisect-step"]);
        run.arg(&step.check).arg("--tree").arg(&tree);
        run.args(ancestor.then_some("--fixed"));
        let run = run.status().context("running git bisect run")?;
        Ok(if run.success() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// What a check shows about a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shown {
    /// The check passes. If its answer has a documented change: the answer of the good revision.
    Good,
    /// It fails, shows its known bug, or ends the guest; or the answer of the bad revision.
    Bad,
    /// The commit can't be built or booted, or the check was skipped.
    Nothing,
}

impl Shown {
    /// `fixed`: the newer of the two revisions is the good one.
    fn of(outcome: &Outcome, fixed: bool) -> Self {
        match (outcome.verdict, outcome.is_changed) {
            (Verdict::Skipped, _) => Self::Nothing,
            _ if outcome.known_bug => Self::Bad,
            // The suite expects the answer of the kernel's series, which a commit between two series
            // need not have.
            (_, Some(changed)) if outcome.kernel_log.is_empty() => {
                if changed == fixed {
                    Self::Good
                } else {
                    Self::Bad
                }
            }
            (Verdict::Failed, _) => Self::Bad,
            (Verdict::Passed, _) => Self::Good,
        }
    }

    /// The exit status for `git bisect run`.
    fn status(self, fixed: bool) -> u8 {
        match self {
            Self::Nothing => 125,
            shown => u8::from((shown == Self::Bad) != fixed),
        }
    }
}

impl Step {
    pub(crate) fn run(&self) -> ExitCode {
        let shown = self.shown().unwrap_or_else(|error| {
            eprintln!("the commit is skipped: {error:#}");
            Shown::Nothing
        });
        eprintln!("{}: {shown:?}", self.check);
        shown.status(self.fixed).into()
    }

    fn shown(&self) -> Result<Shown> {
        let jobs = available_parallelism().map_or(1, usize::from);
        for arguments in [&["olddefconfig".to_owned()][..], &[format!("-j{jobs}")][..]] {
            let make = Command::new("make").arg("-C").arg(&self.tree).args(arguments).status();
            ensure!(make.context("running make")?.success(), "make {} failed", arguments.join(" "));
        }
        let tree = self.tree.display().to_string();
        let mut testbed = Testbed::boot(&tree, Tested::Rxe, Accelerator::Auto)?;
        // The check runs whatever it does to the kernel: the guest is thrown away.
        let outcome = testbed.hazardous(0, &self.check)?.context("there is no such check")?;
        Ok(Shown::of(&outcome, self.fixed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(verdict: &str, known_bug: bool, is_changed: Option<bool>) -> Outcome {
        let is_changed = is_changed.map_or("null".to_owned(), |changed| changed.to_string());
        let text = format!(
            r#"{{"name": "a::b::c::d", "rule": "d", "verdict": "{verdict}", "expected": "", "got": "",
                "call": "", "reason": "", "change": "", "is_changed": {is_changed},
                "known_bug": {known_bug}, "kernel_log": []}}"#
        );
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn status_is_that_of_git_bisect_run() {
        let status = |verdict, bug, fixed| Shown::of(&outcome(verdict, bug, None), fixed).status(fixed);
        assert_eq!(status("passed", false, false), 0);
        assert_eq!(status("failed", false, false), 1);
        assert_eq!(status("passed", true, false), 1, "a known bug");
        assert_eq!(status("skipped", false, false), 125);
        assert_eq!(status("failed", false, true), 0, "the fix is searched");
        assert_eq!(status("passed", false, true), 1);
        assert_eq!(status("skipped", false, true), 125);
    }

    #[test]
    fn documented_changes_divide_revisions_by_the_answer() {
        let status =
            |verdict, changed, fixed| Shown::of(&outcome(verdict, false, Some(changed)), fixed).status(fixed);
        for verdict in ["passed", "failed"] {
            for fixed in [false, true] {
                assert_eq!(status(verdict, false, fixed), 0, "the old answer");
                assert_eq!(status(verdict, true, fixed), 1, "the new answer");
            }
        }
        assert_eq!(status("skipped", true, false), 125);
    }
}
