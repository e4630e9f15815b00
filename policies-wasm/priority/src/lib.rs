//! Sets the priority of calls, by the value of a metadata key or by a field.
//!
//! Only the operator can grant this: higher priority for some calls delays others.

#![forbid(unsafe_code)]

use std::collections::HashMap;

use serde::Deserialize;
use tollgate_policy::{Values, Verdict, json_object, policy};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    #[serde(default)]
    metadata: Vec<String>,
    #[serde(default)]
    values: HashMap<String, u8>,
    #[serde(default)]
    customers: HashMap<String, u8>,
    #[serde(default)]
    default: Option<u8>,
}

/// Priorities by value.
pub struct Priority {
    has_key: bool,
    values: HashMap<Vec<u8>, u8>,
    customers: HashMap<Vec<u8>, u8>,
    default: Option<u8>,
}

#[policy(
    name = "priority",
    version = "1.0",
    proto = "../../conformance/proto/hotel.proto",
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
        let all = config.values.iter().chain(&config.customers);
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
            customers: bytes(config.customers),
            default: config.default,
        })
    }

    #[request("hotel.Reservation/Reserve", reads(customer_name), metadata(*))]
    fn reserve(&mut self, request: &Reserve<'_>) -> Verdict<'_> {
        let name = request.customer_name_if_granted().unwrap_or_default();
        let by_name = self.customers.get(name.as_bytes()).copied();
        let values = self.has_key.then(|| request.metadata(0));
        self.decide(values, by_name)
    }

    #[request("*", metadata(*))]
    fn any(&mut self, call: &Any<'_>) -> Verdict<'_> {
        let values = self.has_key.then(|| call.metadata(0));
        self.decide(values, None)
    }

    /// Precedence: the metadata's value, the customer's name, the default.
    fn decide(&mut self, values: Option<Values<'_>>, by_name: Option<u8>) -> Verdict<'_> {
        let value = values.and_then(Values::first);
        let by_value = value.and_then(|value| self.values.get(value).copied());
        match by_value.or(by_name).or(self.default) {
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
    fn metadata_comes_before_the_name_and_the_default() {
        let config = r#"{"metadata": ["x-class"], "values": {"gold": 7, "bulk": 0}, "customers": {"Ada": 3}, "default": 1}"#;
        let desk = Desk::<Priority>::new(config).unwrap();
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
            let fields = [("customer_name", Field::Text(name))];
            let answer = desk.request_with("hotel.Reservation/Reserve", &fields, &pairs);
            assert_eq!(answer, priority(expected), "{name} {class:?}");
        }
        assert_eq!(desk.request("a.B/C", &[]), priority(1));
        assert_eq!(counter(0), 6);
    }

    #[test]
    fn without_a_word_a_call_stays_as_it_is() {
        let mut desk = Desk::<Priority>::new(r#"{"customers": {"Ada": 3}}"#).unwrap();
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
                r#"{"metadata": ["a", "b"], "values": {"a": 1}}"#,
                "lists 2 keys",
            ),
        ] {
            let sentence = Desk::<Priority>::new(config).err().unwrap();
            assert!(sentence.contains(words), "{sentence} lacks {words}");
        }
    }
}
