//! A check, and its result.

use std::fmt;

use bareverbs_uapi::abi::Since;

use crate::answer::{Answer, Expect};
use crate::rules::Rule;
use crate::session::{Session, Step};

/// What a check does on a fresh file of the device.
pub(crate) type Body = Box<dyn Fn(&mut Session<'_>) -> Step<()>>;

/// One check: a rule of the ABI at one place where a kernel could break it.
pub struct Check {
    /// Its name: area, method, attribute and rule, joined by `::`.
    pub name: String,
    /// The rule.
    pub rule: Rule,
    /// The expected answer of its call.
    pub expect: Expect,
    /// What the check does to kernels that break the rule, if that is more than a wrong answer. Such
    /// checks run only on request.
    pub hazard: Option<&'static str>,
    /// The right answer, if kernels with a known bug give another one.
    pub right: Option<Answer>,
    pub(crate) body: Body,
}

impl Check {
    pub(crate) fn new(
        name: String,
        rule: Rule,
        expect: impl Into<Expect>,
        body: impl Fn(&mut Session<'_>) -> Step<()> + 'static,
    ) -> Self {
        Self { name, rule, expect: expect.into(), hazard: None, right: None, body: Box::new(body) }
    }

    /// The check of a known bug, whose expectation is the answer of kernels with the bug.
    pub(crate) fn of_bug(mut self, right: Answer) -> Self {
        self.right = Some(right);
        self
    }

    /// Whether the kernels of a series have the known bug that the check shows.
    pub(crate) fn is_bug_of(&self, series: Since) -> bool {
        self.right.is_some_and(|right| self.expect.on(series) != right)
    }

    /// The check, which does this to kernels that break the rule.
    pub(crate) fn hazardous(mut self, hazard: &'static str) -> Self {
        self.hazard = Some(hazard);
        self
    }
}

impl fmt::Debug for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Check").field("name", &self.name).field("rule", &self.rule).finish_non_exhaustive()
    }
}
