//! A check, and its result.

use std::fmt;

use crate::answer::Expect;
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
    pub(crate) body: Body,
}

impl Check {
    pub(crate) fn new(
        name: String,
        rule: Rule,
        expect: impl Into<Expect>,
        body: impl Fn(&mut Session<'_>) -> Step<()> + 'static,
    ) -> Self {
        Self { name, rule, expect: expect.into(), body: Box::new(body) }
    }
}

impl fmt::Debug for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Check").field("name", &self.name).field("rule", &self.rule).finish_non_exhaustive()
    }
}
