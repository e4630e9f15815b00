//! Allows and denies requests by the values of their fields.

#![forbid(unsafe_code)]

use serde::Deserialize;
use serde::de::IgnoredAny;
use tollgate_policy::{NameSet, Status, Value, Verdict, json_object, policy};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    fields: Vec<String>,
    #[serde(default)]
    blocked: Vec<String>,
    #[serde(default)]
    allowed: Option<Vec<String>>,
    #[serde(default)]
    missing: Missing,
    #[serde(default = "default_message")]
    message: String,
    #[serde(default)]
    #[expect(dead_code, reason = "the daemon reads it")]
    methods: IgnoredAny,
    #[serde(default)]
    #[expect(dead_code, reason = "the daemon reads it")]
    absent: IgnoredAny,
}

#[derive(Clone, Copy, Default, Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
enum Missing {
    Allow,
    #[default]
    Deny,
}

fn default_message() -> String {
    "the call's fields aren't allowed".to_owned()
}

/// The lists, and the decision for fields without a value.
pub struct Acl {
    fields: u32,
    blocked: NameSet,
    allowed: Option<NameSet>,
    missing: Missing,
    message: String,
}

#[policy(name = "acl", version = "2.0", counters(denied))]
impl Acl {
    fn configure(config: &[u8]) -> Result<Acl, String> {
        let config: Config =
            serde_json::from_slice(json_object(config)?).map_err(|e| e.to_string())?;
        if config.fields.is_empty() {
            return Err("fields lists no field; name at least one".to_owned());
        }
        if config.blocked.is_empty() && config.allowed.is_none() {
            return Err("there are no rules: set blocked, allowed or both".to_owned());
        }
        Ok(Acl {
            fields: config.fields.len() as u32,
            blocked: config.blocked.iter().collect(),
            allowed: config.allowed.map(|list| list.iter().collect()),
            missing: config.missing,
            message: config.message,
        })
    }

    fn lists(&self) -> Lists {
        Lists {
            fields: self.fields,
        }
    }

    #[request("*", reads(config(fields: string, bytes, int, uint, bool, enum)))]
    fn any(&mut self, request: &Any<'_>) -> Verdict<'_> {
        // Checks every field: an allowed value must not hide a forbidden one.
        let passes = request.fields_all().all(|value| match value {
            Some(value) => self.allows(value.key(&mut [0; Value::NUMBER_BYTES])),
            None => self.missing == Missing::Allow,
        });
        if passes {
            return Verdict::Allow;
        }
        DENIED.add(1);
        Verdict::deny(Status::PERMISSION_DENIED, &self.message)
    }

    fn allows(&self, value: &[u8]) -> bool {
        let allowed = self.allowed.as_ref();
        allowed.is_none_or(|allowed| allowed.contains(value)) && !self.blocked.contains(value)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use tollgate_policy::testing::{Desk, Field, counter};

    /// Whether a call with these values of `name` and `room` passes.
    fn passes(rules: &str, name: Field<'_>, room: Field<'_>) -> bool {
        let config = format!(r#"{{"fields": ["name", "room"], {rules}}}"#);
        let desk = Desk::<Acl>::new(&config).unwrap();
        let mut desk = desk.with_list("fields", &["name", "room"]);
        let passes = desk
            .request("a.B/C", &[("name", name), ("room", room)])
            .passes();
        assert_eq!(counter(0), u64::from(!passes));
        passes
    }

    #[test]
    fn every_field_has_to_be_allowed_and_none_blocked() {
        let (ada, seven) = (Field::Text("Ada"), Field::Int(7));
        for (rules, expected) in [
            (r#""blocked": ["Eve"]"#, true),
            (r#""blocked": ["Ada"]"#, false),
            (r#""blocked": ["7"]"#, false),
            (r#""blocked": ["ada", "07"]"#, true),
            (r#""allowed": ["Ada"]"#, false),
            (r#""allowed": ["Ada", "7"]"#, true),
            (r#""allowed": ["Ada", "7"], "blocked": ["7"]"#, false),
        ] {
            assert_eq!(passes(rules, ada, seven), expected, "{rules}");
        }
        let raw = Field::Bytes(b"Ada");
        assert!(!passes(r#""blocked": ["Ada"]"#, raw, seven));
        assert!(!passes(r#""blocked": ["true"]"#, ada, Field::Bool(true)));
        assert!(!passes(r#""blocked": [""]"#, Field::Text(""), seven));
    }

    #[test]
    fn a_field_without_a_value_is_denied_unless_it_is_said_otherwise() {
        let rules = r#""blocked": ["Eve"]"#;
        assert!(!passes(rules, Field::Absent, Field::Int(7)));
        let lax = r#""blocked": ["Eve"], "missing": "allow""#;
        assert!(passes(lax, Field::Absent, Field::Int(7)));
        assert!(!passes(lax, Field::Absent, Field::Text("Eve")));
    }
}
