//! A check, and its result.

use std::fmt;

use bareverbs_uapi::abi::Since;

use crate::answer::{Answer, Change, Expect};
use crate::rules::Rule;
use crate::session::Session;
use crate::step::Step;

/// What a check does on a fresh file of the device.
pub(crate) type Body = Box<dyn Fn(&mut Session<'_>) -> Step<()>>;

/// A known bug of the kernel that is not fixed in each checked series.
#[derive(Clone, Copy, Debug)]
pub struct Bug {
    /// The anchor of its heading in docs/kernel-bugs.md.
    pub page: &'static str,
    /// The checked series that have the bug. Stable updates may fix it within a series.
    pub series: &'static [Since],
    /// The answer of a kernel with the bug. The check expects the answer of a kernel without it.
    pub answer: Answer,
}

impl Bug {
    /// The answer of kernels of this series, if they may have the bug.
    #[must_use]
    pub fn on(&self, series: Since) -> Option<Answer> {
        self.series.contains(&series).then_some(self.answer)
    }
}

/// One check: a rule of the ABI at one place where a kernel could break it.
pub struct Check {
    /// Its name: area, method, attribute and rule, joined by `::`.
    pub name: String,
    /// The rule.
    pub rule: Rule,
    /// The expected answer of its call.
    pub expect: Expect,
    /// The damage to a kernel that breaks the rule, such as a crash. Such checks run only on request.
    pub hazard: Option<&'static str>,
    /// The known bug of the kernel that the check shows.
    pub bug: Option<Bug>,
    pub(crate) body: Body,
}

impl Check {
    pub(crate) fn new(
        name: String,
        rule: Rule,
        expect: impl Into<Expect>,
        body: impl Fn(&mut Session<'_>) -> Step<()> + 'static,
    ) -> Self {
        Self { name, rule, expect: expect.into(), hazard: None, bug: None, body: Box::new(body) }
    }

    /// The check, which shows this bug.
    pub(crate) fn of_bug(mut self, bug: Bug) -> Self {
        self.bug = Some(bug);
        self
    }
}

/// All checked series.
pub(crate) const EVERY: &[Since] = &[Since::V6_1, Since::V6_12, Since::V7_2, Since::V7_3];

/// What a row does on a fresh file of the device. It gets the expected answer on this series.
pub(crate) type RowBody = fn(&mut Session<'_>, Answer) -> Step<()>;

/// A row of a table of checks that differ in what they do.
pub(crate) struct Row {
    /// The second and the third part of the name.
    place: &'static str,
    rule: Rule,
    /// What follows the rule in the name; empty for nothing.
    suffix: &'static str,
    expect: Expect,
    hazard: Option<&'static str>,
    bug: Option<Bug>,
    body: RowBody,
}

pub(crate) const fn row(
    place: &'static str,
    rule: Rule,
    suffix: &'static str,
    answer: Answer,
    body: RowBody,
) -> Row {
    Row { place, rule, suffix, expect: Expect::Is(answer), hazard: None, bug: None, body }
}

impl Row {
    /// The row, whose answer was another one before a change of the kernel.
    pub(crate) const fn since(mut self, change: &'static Change, before: Answer) -> Self {
        if let Expect::Is(after) = self.expect {
            self.expect = Expect::Changed { change, before, after };
        }
        self
    }

    /// The row, which shows a bug: its page, the series that have it, and their answer.
    pub(crate) const fn of_bug(
        mut self,
        page: &'static str,
        series: &'static [Since],
        answer: Answer,
    ) -> Self {
        self.bug = Some(Bug { page, series, answer });
        self
    }

    /// The row, which does this to kernels that break the rule.
    pub(crate) const fn hazardous(mut self, hazard: &'static str) -> Self {
        self.hazard = Some(hazard);
        self
    }

    /// The check of the row, in an area of names.
    pub(crate) fn check(&self, area: &str) -> Check {
        let Self { place, rule, suffix, expect, hazard, bug, body } = *self;
        let separator = if suffix.is_empty() { "" } else { "-" };
        let name = format!("{area}::{place}::{}{separator}{suffix}", rule.id());
        let body = Box::new(move |session: &mut Session<'_>| body(session, expect.on(session.series)));
        Check { name, rule, expect, hazard, bug, body }
    }
}

impl fmt::Debug for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Check").field("name", &self.name).field("rule", &self.rule).finish_non_exhaustive()
    }
}
