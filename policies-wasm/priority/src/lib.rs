//! Sets the priority of calls, by the value of a metadata key or of a field.
//!
//! Only the operator can grant this: higher priority for some calls delays others.

#![forbid(unsafe_code)]

use std::collections::HashMap;

use serde::Deserialize;
use serde::de::IgnoredAny;
use tollgate_policy::{Value, Verdict, json_object, policy};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    #[serde(default)]
    metadata: Vec<String>,
    #[serde(default)]
    values: HashMap<String, u8>,
    #[serde(default)]
    fields: Vec<String>,
    #[serde(default)]
    field_values: HashMap<String, u8>,
    #[serde(default)]
    default: Option<u8>,
    #[serde(default)]
    #[expect(dead_code, reason = "the daemon reads it")]
    methods: IgnoredAny,
    #[serde(default)]
    #[expect(dead_code, reason = "the daemon reads it")]
    absent: IgnoredAny,
}

/// Priorities by value.
pub struct Priority {
    has_key: bool,
    values: HashMap<Vec<u8>, u8>,
    fields: u32,
    field_values: HashMap<Vec<u8>, u8>,
    default: Option<u8>,
}

#[policy(
    name = "priority",
    version = "2.0",
    capabilities(priority),
    counters(raised)
)]
impl Priority {
    fn configure(config: &[u8]) -> Result<Priority, String> {
        let config: Config =
            serde_json::from_slice(json_object(config)?).map_err(|e| e.to_string())?;
        if config.metadata.len() > 1 {
            let count = config.metadata.len();
            return Err(format!("metadata lists {count} keys; at most 1 is allowed"));
        }
        if config.metadata.is_empty() != config.values.is_empty() {
            return Err(
                "metadata and values go together: set the key and its values' priorities"
                    .to_owned(),
            );
        }
        if config.fields.len() > 1 {
            let count = config.fields.len();
            return Err(format!("fields lists {count} fields; at most 1 is allowed"));
        }
        if config.fields.is_empty() != config.field_values.is_empty() {
            return Err(
                "fields and field_values go together: set the field and its values' priorities"
                    .to_owned(),
            );
        }
        let all = config.values.iter().chain(&config.field_values);
        let all = all.map(|(value, priority)| (value.as_str(), *priority));
        let default = config.default.map(|priority| ("default", priority));
        if let Some((what, priority)) = all.chain(default).find(|(_, priority)| *priority > 7) {
            return Err(format!(
                "the priority of {what:?} is {priority}; 0 to 7 are allowed"
            ));
        }
        let bytes = |map: HashMap<String, u8>| {
            let pairs = map.into_iter();
            pairs
                .map(|(value, priority)| (value.into_bytes(), priority))
                .collect()
        };
        Ok(Priority {
            has_key: !config.metadata.is_empty(),
            values: bytes(config.values),
            fields: config.fields.len() as u32,
            field_values: bytes(config.field_values),
            default: config.default,
        })
    }

    fn lists(&self) -> Lists {
        Lists {
            fields: self.fields,
        }
    }

    /// Precedence: the metadata's value, the field's value, the default.
    #[request("*", reads(config(fields: string, bytes, int, uint, bool, enum)), metadata(*))]
    fn any(&mut self, call: &Any<'_>) -> Verdict<'_> {
        let value = match self.has_key {
            true => call.metadata(0).first(),
            false => None,
        };
        let by_value = value.and_then(|value| self.values.get(value).copied());
        let by_field = || {
            let value = call.fields_all().next().flatten()?;
            let mut room = [0; Value::NUMBER_BYTES];
            self.field_values.get(value.key(&mut room)).copied()
        };
        match by_value.or_else(by_field).or(self.default) {
            Some(priority) => {
                RAISED.add(u64::from(priority > 0));
                Verdict::Allow.with_priority(priority)
            }
            None => Verdict::Allow,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use tollgate_policy::testing::{Answer, Desk, Done, Field, counter};

    fn priority(priority: u8) -> Answer {
        Answer::Effects(Done {
            priority: Some(priority),
            ..Done::default()
        })
    }

    #[test]
    fn metadata_comes_before_the_field_and_the_default() {
        let config = r#"{"metadata": ["x-class"], "values": {"gold": 7, "bulk": 0}, "fields": ["name"], "field_values": {"Ada": 3}, "default": 1}"#;
        let desk = Desk::<Priority>::new(config).unwrap();
        let desk = desk.with_list("fields", &["name"]);
        let mut desk = desk.with_keys(&["x-class"], &[]);
        for (name, class, expected) in [
            ("Ada", Some("gold"), 7),
            ("Ada", Some("bulk"), 0),
            ("Ada", Some("other"), 3),
            ("Ada", None, 3),
            ("Bob", Some("gold"), 7),
            ("Bob", None, 1),
        ] {
            let pairs: Vec<(&str, &[u8])> = class
                .iter()
                .map(|class| ("x-class", class.as_bytes()))
                .collect();
            let fields = [("name", Field::Text(name))];
            let answer = desk.request_with("a.B/C", &fields, &pairs);
            assert_eq!(answer, priority(expected), "{name} {class:?}");
        }
        assert_eq!(desk.request("a.B/C", &[]), priority(1));
        assert_eq!(counter(0), 6);
    }

    #[test]
    fn without_a_word_a_call_stays_as_it_is() {
        let config = r#"{"fields": ["name"], "field_values": {"Ada": 3}}"#;
        let desk = Desk::<Priority>::new(config).unwrap();
        let mut desk = desk.with_list("fields", &["name"]);
        assert_eq!(desk.request("a.B/C", &[]), Answer::Allow);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        for (config, words) in [
            (
                r#"{"default": 8}"#,
                r#"the priority of "default" is 8; 0 to 7 are allowed"#,
            ),
            (r#"{"values": {"a": 1}}"#, "metadata and values go together"),
            (
                r#"{"field_values": {"a": 1}}"#,
                "fields and field_values go together",
            ),
            (
                r#"{"metadata": ["a", "b"], "values": {"a": 1}}"#,
                "lists 2 keys",
            ),
        ] {
            let sentence = Desk::<Priority>::new(config).err().unwrap();
            assert!(sentence.contains(words), "{sentence} lacks {words}");
        }
    }
}
