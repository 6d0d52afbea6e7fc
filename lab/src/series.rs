//! The kernel series that Debian ships.

use std::fmt;
use std::str::FromStr;

use anyhow::{Result, bail};
use bareverbs_uapi::kernels::{KERNELS, KernelSeries, Since};

use crate::apt::Channel;

/// A kernel series that Debian ships.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Series {
    /// One of [`KERNELS`].
    Released(Since),
    /// The newest release candidate in Debian experimental.
    Rc,
}

impl Series {
    /// The series that the tests run on, oldest first.
    pub const RELEASED: [Self; KERNELS.len()] = {
        let mut released = [Self::Rc; KERNELS.len()];
        let mut i = 0;
        while i < KERNELS.len() {
            released[i] = Self::Released(KERNELS[i].since);
            i += 1;
        }
        released
    };

    /// The newest released series.
    pub const NEWEST: Self = Self::RELEASED[KERNELS.len() - 1];

    /// The names of the series for messages: `6.1, 6.12, 7.2, rc`.
    pub fn names() -> String {
        let names: Vec<_> = Self::RELEASED.iter().chain(&[Self::Rc]).map(Self::to_string).collect();
        names.join(", ")
    }

    pub(crate) fn channel(self) -> Channel {
        let listed = |series: &&KernelSeries| Self::Released(series.since) == self;
        KERNELS.iter().find(listed).map_or(Channel::EXPERIMENTAL, |series| Channel(series.debian))
    }

    pub(crate) fn matches(self, version: &str) -> bool {
        match self {
            Self::Released(since) => {
                version.strip_prefix(since.name()).is_some_and(|rest| rest.starts_with('.'))
            }
            Self::Rc => version.contains("~rc"),
        }
    }
}

impl fmt::Display for Series {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Released(since) => since.name(),
            Self::Rc => "rc",
        })
    }
}

impl FromStr for Series {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let mut known = Self::RELEASED.into_iter().chain([Self::Rc]);
        match known.find(|series| series.to_string() == text) {
            Some(series) => Ok(series),
            None => bail!("unknown kernel series `{text}`: use {}", Self::names()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_belong_to_one_series() {
        const LONG_TERM: Series = Series::Released(Since::V6_1);
        assert!(LONG_TERM.matches("6.1.192-2"));
        assert!(!LONG_TERM.matches("6.12.107-1"));
        assert!(Series::Rc.matches("7.3~rc7-1~exp1"));
        assert!(!Series::Rc.matches("7.2.13-1"));
    }

    #[test]
    fn series_display_round_trips() {
        for text in Series::names().split(", ") {
            assert_eq!(text.parse::<Series>().unwrap().to_string(), text);
        }
        assert_eq!("6.12".parse::<Series>().unwrap(), Series::Released(Since::V6_12));
        assert!("5.10".parse::<Series>().is_err());
    }
}
