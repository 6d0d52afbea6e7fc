//! What runs have in common and where they differ: their environments and options.

use serde_json::Value;

use super::report::Report;

/// A property of the runs.
pub(crate) struct Fact {
    pub(crate) name: String,
    /// The values of the runs, in order.
    pub(crate) values: Vec<String>,
}

impl Fact {
    pub(crate) fn differs(&self) -> bool {
        self.values.windows(2).any(|pair| pair[0] != pair[1])
    }
}

/// The environments and the options of the runs.
pub(crate) fn facts(runs: &[(&str, &Report)]) -> Vec<Fact> {
    let tables: Vec<_> = runs.iter().map(|(_, run)| properties(run)).collect();
    let Some(first) = tables.first() else { return Vec::new() };
    let fact = |(name, _): &(String, String)| {
        let value = |table: &Vec<(String, String)>| {
            let found = table.iter().find(|(other, _)| other == name);
            found.map_or_else(|| "-".to_owned(), |(_, value)| value.clone())
        };
        Fact { name: name.clone(), values: tables.iter().map(value).collect() }
    };
    first.iter().map(fact).collect()
}

/// Names and values of a run's environment and options.
fn properties(run: &Report) -> Vec<(String, String)> {
    let mut properties = vec![("version".to_owned(), run.version.clone())];
    for part in [serde_json::to_value(&run.environment), serde_json::to_value(&run.options)] {
        let Ok(Value::Object(fields)) = part else { continue };
        for (name, value) in fields {
            let value = match value {
                Value::Null => "-".to_owned(),
                Value::String(text) if text.is_empty() => "-".to_owned(),
                Value::String(text) => text,
                other => other.to_string(),
            };
            let unit = match name.as_str() {
                "rate" if properties.iter().any(|(known, _)| known == "rate (Gbit/s)") => " (messages/s)",
                "rate" => " (Gbit/s)",
                "active_mtu" | "mtu" => " (bytes)",
                "duration" | "margin" => " (s)",
                _ => "",
            };
            properties.push((name.replace('_', " ") + unit, value));
        }
    }
    properties
}

/// A warning if the runs are of devices that can't be compared.
pub(crate) fn different_natures(runs: &[(&str, &Report)]) -> Option<String> {
    let mut natures: Vec<_> = runs.iter().map(|(_, run)| run.environment.nature.name()).collect();
    natures.sort_unstable();
    natures.dedup();
    let what = natures.join(" and ");
    (natures.len() > 1).then(|| format!("The figures are of {what}: they can't be compared."))
}
