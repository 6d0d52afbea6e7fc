//! The selection of checks by name.

use crate::Check;

/// Selects checks by name.
///
/// A pattern with `*` or `?` must match the whole name. Another pattern selects the check with that
/// name or, if there is none, all checks whose names contain it.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    pattern: Option<String>,
}

impl Filter {
    /// A filter with a pattern; `None` selects all checks.
    #[must_use]
    pub fn new(pattern: Option<&str>) -> Self {
        Self { pattern: pattern.map(str::to_owned) }
    }

    /// The selected checks.
    #[must_use]
    pub fn select<'c>(&self, checks: &'c [Check]) -> Vec<&'c Check> {
        let Some(pattern) = &self.pattern else { return checks.iter().collect() };
        let exact = checks.iter().any(|check| check.name == *pattern);
        let wild = pattern.contains(['*', '?']);
        checks
            .iter()
            .filter(|check| match (exact, wild) {
                (true, _) => check.name == *pattern,
                (false, true) => matches(pattern.as_bytes(), check.name.as_bytes()),
                (false, false) => check.name.contains(pattern.as_str()),
            })
            .collect()
    }
}

/// Whether a name matches a pattern with `*` and `?`.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    let mut star = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(&byte) if byte == b'?' || byte == name[n] => {
                p += 1;
                n += 1;
            }
            _ => match star {
                Some((at, from)) => {
                    p = at + 1;
                    n = from + 1;
                    star = Some((at, n));
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_whole_names() {
        let matches = |pattern: &str, name: &str| matches(pattern.as_bytes(), name.as_bytes());
        assert!(matches("parser::*::missing", "parser::QpCreate::CAP::missing"));
        assert!(!matches("parser::*::missing", "parser::QpCreate::CAP::missing-x"));
        assert!(matches("*", "") && matches("a?c*", "abcd") && !matches("a?c", "ac"));
        assert!(matches("*b*b", "abab") && !matches("*b*b", "aba"));
    }
}
