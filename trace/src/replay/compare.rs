//! Comparison of a recorded answer with that of the replay.

use serde_json::Value;

use crate::trace::{CallKind, Record};

/// Where two answers differ.
pub(super) struct Different {
    pub(super) place: String,
    pub(super) recorded: String,
    pub(super) here: String,
}

/// Members of values that name an object, a port or a machine, or count events.
const NAMES: [&str; 18] = [
    "address",
    "ah",
    "async_events_reported",
    "comp_events_reported",
    "dest_qp_num",
    "driver",
    "events_reported",
    "fd",
    "async_fd",
    "gid",
    "node_guid",
    "qpn",
    "response",
    "srqn",
    "sys_image_guid",
    "netdev_ifindex",
    "text",
    "wqn",
];
/// The same, of attributes of ioctls.
const ATTRIBUTES: [&str; 18] = [
    "DEV_EQN",
    "DEV_IDX",
    "FT_ID",
    "HANDLES_LIST",
    "INDEX",
    "MMAP_OFFSET",
    "OUT_ID",
    "PAGE_ID",
    "RESP_IOVA",
    "RESP_LKEY",
    "RESP_PAGE_INDEX",
    "RESP_PDN",
    "RESP_QP_NUM",
    "RESP_RKEY",
    "RESP_SRQ_NUM",
    "RESP_START_OFFSET",
    "RESP_WQ_NUM",
    "UHW_OUT",
];

fn is_name(member: &str) -> bool {
    NAMES.contains(&member) || member.ends_with("handle") || member.ends_with("key")
}

/// The first place where the answers differ: the result, or a value that the kernel wrote.
pub(super) fn first_difference(recorded: &Record, here: &Record) -> Option<Different> {
    if recorded.result != here.result {
        let place = "result".to_owned();
        return Some(Different { place, recorded: recorded.result_text(), here: here.result_text() });
    }
    let value = |record: &Record| {
        let after = record.after().map(|decoded| decoded.value).unwrap_or_default();
        match record.call {
            CallKind::Ioctl => outputs(&after),
            _ => after.into(),
        }
    };
    let (place, recorded, here) = walk("", &value(recorded), &value(here))?;
    Some(Different { place, recorded, here })
}

/// The outputs of an ioctl by name, which are compared.
fn outputs(after: &serde_json::Map<String, Value>) -> Value {
    let attributes = after.get("attributes").and_then(Value::as_array).into_iter().flatten();
    let outputs = attributes.filter(|attribute| attribute["type"] == "output").filter_map(|attribute| {
        let name = attribute["name"].as_str()?;
        let value = if ATTRIBUTES.contains(&name) { Value::Null } else { attribute["value"].clone() };
        Some((name.to_owned(), serde_json::json!({ "flags": attribute["flags"], "value": value })))
    });
    outputs.collect::<serde_json::Map<_, _>>().into()
}

fn walk(place: &str, recorded: &Value, here: &Value) -> Option<(String, String, String)> {
    let missing = || (place.to_owned(), recorded.to_string(), here.to_string());
    match (recorded, here) {
        (Value::Object(was), Value::Object(is)) => {
            for (name, value) in was.iter().filter(|(name, _)| !is_name(name)) {
                let place = if place.is_empty() { name.clone() } else { format!("{place}.{name}") };
                match is.get(name) {
                    Some(other) => {
                        if let Some(found) = walk(&place, value, other) {
                            return Some(found);
                        }
                    }
                    None => return Some((place, value.to_string(), "nothing".to_owned())),
                }
            }
            let new = is.iter().find(|(name, _)| !was.contains_key(*name) && !is_name(name))?;
            Some((format!("{place}.{}", new.0), "nothing".to_owned(), new.1.to_string()))
        }
        (Value::Array(was), Value::Array(is)) if was.len() == is.len() => {
            let pairs = was.iter().zip(is).enumerate();
            pairs.into_iter().find_map(|(i, (was, is))| walk(&format!("{place}[{i}]"), was, is))
        }
        _ => (recorded != here).then(missing),
    }
}
