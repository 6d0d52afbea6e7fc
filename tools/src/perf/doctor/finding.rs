//! What the doctor finds: a sentence, how bad it is, and what to do.

use serde::{Deserialize, Serialize};

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Level {
    Ok,
    /// A fact that explains others.
    Note,
    /// It works, but not as well as it could.
    Warning,
    /// It does not work. The exit status is 1.
    Fault,
}

impl Level {
    fn label(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Fault => "FAULT",
        }
    }
}

/// What was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Check {
    Device,
    Port,
    Gid,
    Memory,
    Loopback,
    /// The doctor at the other end.
    Peer,
    /// Whether both ends fit each other.
    Ends,
    Mtu,
    Rc,
    Ud,
    Latency,
    Bandwidth,
    Counters,
}

impl Check {
    fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Port => "port",
            Self::Gid => "gid",
            Self::Memory => "memory",
            Self::Loopback => "loopback",
            Self::Peer => "peer",
            Self::Ends => "ends",
            Self::Mtu => "mtu",
            Self::Rc => "rc",
            Self::Ud => "ud",
            Self::Latency => "latency",
            Self::Bandwidth => "bandwidth",
            Self::Counters => "counters",
        }
    }
}

/// Where it was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Place {
    Local,
    Peer,
    Path,
}

/// A finding.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Finding {
    pub(crate) level: Level,
    pub(crate) place: Place,
    pub(crate) check: Check,
    pub(crate) text: String,
    /// What to do. Absent if there is nothing to do.
    pub(crate) remedy: Option<String>,
}

impl Finding {
    pub(crate) fn new(level: Level, place: Place, check: Check, text: impl Into<String>) -> Self {
        Self { level, place, check, text: text.into(), remedy: None }
    }

    pub(crate) fn remedy(self, remedy: impl Into<String>) -> Self {
        Self { remedy: Some(remedy.into()), ..self }
    }

    /// The finding in words. Text of a peer may contain control characters, which are left out.
    pub(crate) fn lines(&self) -> String {
        let place = match self.place {
            Place::Local => "here",
            Place::Peer => "peer",
            Place::Path => "path",
        };
        let label = self.level.label();
        let mut text = format!("{label:<8} {place} {:<10} {}", self.check.name(), self.text);
        if let Some(remedy) = &self.remedy {
            text += &format!("\n{:24} {remedy}", "->");
        }
        text.chars().filter(|&c| c == '\n' || !c.is_control()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_name_level_place_check_and_remedy() {
        let finding = Finding::new(Level::Fault, Place::Local, Check::Port, "rxe0/1 is DOWN");
        assert_eq!(finding.lines(), "FAULT    here port       rxe0/1 is DOWN");
        let lines = finding.remedy("set it up").lines();
        assert!(lines.ends_with("\n->                       set it up"), "{lines:?}");
        assert!(Level::Ok < Level::Warning && Level::Warning < Level::Fault);
    }

    #[test]
    fn control_characters_of_a_peer_are_not_printed() {
        let finding = Finding::new(Level::Ok, Place::Peer, Check::Peer, "a\x1b[31mb\rc");
        assert!(finding.lines().ends_with("a[31mbc"));
    }
}
