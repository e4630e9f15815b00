//! A daemon's JSON as text for a terminal. Untrusted text has no effect on the terminal.

use std::time::Duration;

use serde_json::Value;

use crate::output;

/// One line for each item.
pub(crate) fn lines(items: &[String]) -> String {
    items
        .iter()
        .map(|item| format!("{}\n", output::plain(item)))
        .collect()
}

/// JSON as an indented outline. It works for any report, of older and newer daemons too.
pub(crate) fn outline(text: &mut String, depth: usize, value: &Value) {
    let indent = "  ".repeat(depth);
    let children: Vec<(String, &Value)> = match value {
        Value::Object(fields) => fields
            .iter()
            .map(|(name, value)| (name.clone(), value))
            .collect(),
        Value::Array(items) => items.iter().map(|item| ("-".to_owned(), item)).collect(),
        _ => return,
    };
    for (name, child) in children {
        match child {
            Value::Object(_) | Value::Array(_) if !is_flat(child) => {
                text.push_str(&format!("{indent}{}\n", output::plain(&name)));
                outline(text, depth + 1, child);
            }
            child => {
                let name = output::plain(&name);
                text.push_str(&format!("{indent}{name} {}\n", flat(child)));
            }
        }
    }
}

/// Whether a value fits a line: a scalar, or a collection of at most eight scalars.
fn is_flat(value: &Value) -> bool {
    let scalar = |value: &Value| !value.is_object() && !value.is_array();
    match value {
        Value::Object(fields) => fields.len() <= 8 && fields.values().all(scalar),
        Value::Array(items) => items.len() <= 8 && items.iter().all(scalar),
        _ => true,
    }
}

/// A value in a line, without control characters.
pub(crate) fn flat(value: &Value) -> String {
    match value {
        Value::String(text) => output::plain(text).into_owned(),
        Value::Array(items) if items.is_empty() => "none".to_owned(),
        Value::Array(items) => items.iter().map(flat).collect::<Vec<_>>().join(" "),
        Value::Object(fields) => {
            let fields: Vec<_> = fields
                .iter()
                .map(|(name, value)| format!("{}={}", output::plain(name), flat(value)))
                .collect();
            fields.join(" ")
        }
        scalar => scalar.to_string(),
    }
}

/// The items of an array; empty for any other value.
pub(crate) fn items(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// A time in its two largest units, such as `2d 3h`.
pub(crate) fn age(up: Duration) -> String {
    let seconds = up.as_secs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) => format!("{seconds}s"),
        (0, 0, minutes) => format!("{minutes}m {}s", seconds % 60),
        (0, hours, minutes) => format!("{hours}h {minutes}m"),
        (days, hours, _) => format!("{days}d {hours}h"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_report_reads_as_an_outline() {
        let report = json!({
            "name": "a",
            "tenants": ["acme", "evil"],
            "links": [],
            "sessions": [{"session": 1, "tenant": "acme"}, {"session": 2, "tenant": "acme"}],
            "policies": [{"name": "acl", "attachments": [{"service": "hotel.Reservation"}]}],
        });
        let mut text = String::new();
        outline(&mut text, 0, &report);
        let expected = "links none\nname a\npolicies\n  -\n    attachments\n      - service=hotel.Reservation\n    name acl\n\
                        sessions\n  - session=1 tenant=acme\n  - session=2 tenant=acme\ntenants acme evil\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn a_time_has_its_two_largest_units() {
        let ages = [59, 61, 3_661, 90_061].map(|s| age(Duration::from_secs(s)));
        assert_eq!(ages, ["59s", "1m 1s", "1h 1m", "1d 1h"]);
    }
}
