//! The Debian mirrors of the machine's own apt.

use std::fs;
use std::path::Path;

/// Suites in which Debian publishes the lab's packages, or that are closely related.
const DEBIAN_SUITES: [&str; 12] = [
    "bullseye",
    "bookworm",
    "trixie",
    "forky",
    "duke",
    "sid",
    "oldoldstable",
    "oldstable",
    "stable",
    "testing",
    "unstable",
    "experimental",
];

/// The mirrors to fetch Debian packages from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Mirrors {
    /// The main archive.
    pub(crate) archive: String,
    /// The security archive.
    pub(crate) security: String,
}

impl Default for Mirrors {
    fn default() -> Self {
        Self {
            archive: "http://deb.debian.org/debian".into(),
            security: "http://deb.debian.org/debian-security".into(),
        }
    }
}

impl Mirrors {
    /// The mirrors in the machine's own sources; Debian's usual ones for missing entries.
    pub(crate) fn of_machine() -> Self {
        let mut entries =
            fs::read_to_string("/etc/apt/sources.list").map(|text| one_line(&text)).unwrap_or_default();
        let mut parts: Vec<_> = fs::read_dir(Path::new("/etc/apt/sources.list.d"))
            .into_iter()
            .flatten()
            .filter_map(|entry| Some(entry.ok()?.path()))
            .collect();
        parts.sort();
        for path in parts {
            let Ok(text) = fs::read_to_string(&path) else {
                continue;
            };
            match path.extension().and_then(|extension| extension.to_str()) {
                Some("list") => entries.extend(one_line(&text)),
                Some("sources") => entries.extend(deb822(&text)),
                _ => {}
            }
        }
        Self::from_entries(&entries)
    }

    fn from_entries(entries: &[Entry]) -> Self {
        let usual = Self::default();
        let find = |security: bool| {
            entries
                .iter()
                .find(|entry| entry.is_debian(security))
                .map(|entry| entry.uri.trim_end_matches('/').to_owned())
        };
        Self { archive: find(false).unwrap_or(usual.archive), security: find(true).unwrap_or(usual.security) }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    uri: String,
    suite: String,
    components: Vec<String>,
}

impl Entry {
    fn is_debian(&self, security: bool) -> bool {
        let (release, rest) = self.suite.split_once(['-', '/']).unwrap_or((&self.suite, ""));
        let usable = self.uri.starts_with("http://") || self.uri.starts_with("https://");
        let kind = if security {
            matches!(rest, "security" | "updates" | "security/updates")
        } else {
            rest.is_empty()
        };
        usable
            && DEBIAN_SUITES.contains(&release)
            && kind
            && security == self.uri.contains("security")
            && self.components.iter().any(|component| component == "main")
    }
}

/// `deb [options] URI suite components…`
fn one_line(text: &str) -> Vec<Entry> {
    text.lines().filter_map(one_line_entry).collect()
}

fn one_line_entry(line: &str) -> Option<Entry> {
    let line = line.split('#').next()?.trim();
    let mut rest = line.strip_prefix("deb")?;
    if !rest.starts_with([' ', '\t']) {
        return None;
    }
    rest = rest.trim_start();
    if let Some(options) = rest.strip_prefix('[') {
        rest = options.split_once(']')?.1;
    }
    let mut words = rest.split_whitespace().map(str::to_owned);
    Some(Entry { uri: words.next()?, suite: words.next()?, components: words.collect() })
}

/// Stanzas of `Field: values`. Continuation lines begin with a blank.
fn deb822(text: &str) -> Vec<Entry> {
    let mut entries = Vec::new();
    for stanza in text.split("\n\n") {
        let words = |field: &str| stanza_field(stanza, field);
        let enabled = words("Enabled").first().is_none_or(|value| value != "no" && value != "false");
        if !enabled || !words("Types").iter().any(|kind| kind == "deb") {
            continue;
        }
        for uri in words("URIs") {
            for suite in words("Suites") {
                entries.push(Entry { uri: uri.clone(), suite, components: words("Components") });
            }
        }
    }
    entries
}

fn stanza_field(stanza: &str, wanted: &str) -> Vec<String> {
    let mut values = Vec::new();
    let mut inside = false;
    for line in stanza.lines().filter(|line| !line.starts_with('#')) {
        if line.starts_with([' ', '\t']) {
            if inside {
                values.extend(line.split_whitespace().map(str::to_owned));
            }
        } else if let Some((field, value)) = line.split_once(':') {
            inside = field.trim().eq_ignore_ascii_case(wanted);
            if inside {
                values.extend(value.split_whitespace().map(str::to_owned));
            }
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deb822_stanzas_name_the_mirrors() {
        let text = "Types: deb deb-src\n# a comment\nURIs: http://mirror.example/debian/\nSuites: trixie\n trixie-updates\n\
                    Components: main contrib\n\nTypes: deb\nURIs: http://mirror.example/debian-security\n\
                    Suites: trixie-security\nComponents: main\n";
        let mirrors = Mirrors::from_entries(&deb822(text));
        assert_eq!(mirrors.archive, "http://mirror.example/debian");
        assert_eq!(mirrors.security, "http://mirror.example/debian-security");
    }

    #[test]
    fn one_line_entries_may_have_options_and_comments() {
        let text = "# deb http://no.example/debian sid main\ndeb-src http://src.example/debian sid main\n\
                    deb [arch=amd64 signed-by=/k.gpg] https://yes.example/debian sid main # ours\n";
        let mirrors = Mirrors::from_entries(&one_line(text));
        assert_eq!(mirrors.archive, "https://yes.example/debian");
        assert_eq!(mirrors.security, Mirrors::default().security);
    }

    #[test]
    fn disabled_and_foreign_sources_are_skipped() {
        let text = "Types: deb\nEnabled: no\nURIs: http://off.example/debian\nSuites: sid\nComponents: main\n\n\
                    Types: deb\nURIs: http://ubuntu.example/ubuntu\nSuites: noble\nComponents: main\n\n\
                    Types: deb\nURIs: file:/media/disc\nSuites: bookworm\nComponents: main\n";
        assert_eq!(Mirrors::from_entries(&deb822(text)), Mirrors::default());
    }
}
