//! Allows and denies calls by the values of a metadata key.
//!
//! A key that the operator withholds looks like a missing key. So `missing` decides about it; with
//! an allow list the default is to deny.

#![forbid(unsafe_code)]

use serde::Deserialize;
use tollgate_policy::{NameSet, Status, Verdict, json_object, policy};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    metadata: Vec<String>,
    #[serde(default)]
    allow: Option<Vec<String>>,
    #[serde(default)]
    deny: Vec<String>,
    #[serde(default)]
    missing: Option<Missing>,
    #[serde(default = "default_message")]
    message: String,
}

#[derive(Clone, Copy, Deserialize, PartialEq)]
#[serde(rename_all = "lowercase")]
enum Missing {
    Allow,
    Deny,
}

fn default_message() -> String {
    "the call's metadata isn't allowed".to_owned()
}

/// The lists, and the decision for calls without the key.
pub struct MetadataAcl {
    allow: Option<NameSet>,
    deny: NameSet,
    missing: Missing,
    message: String,
}

#[policy(name = "metadata-acl", version = "1.0", counters(denied))]
impl MetadataAcl {
    fn configure(config: &[u8]) -> Result<MetadataAcl, String> {
        let config: Config =
            serde_json::from_slice(json_object(config)?).map_err(|e| e.to_string())?;
        if config.metadata.len() != 1 {
            let count = config.metadata.len();
            return Err(format!("metadata lists {count} keys; exactly 1 is needed"));
        }
        if config.allow.is_none() && config.deny.is_empty() {
            return Err("there are no rules: set allow, deny or both".to_owned());
        }
        let default = match config.allow {
            Some(_) => Missing::Deny,
            None => Missing::Allow,
        };
        Ok(MetadataAcl {
            allow: config.allow.map(|list| list.iter().collect()),
            deny: config.deny.iter().collect(),
            missing: config.missing.unwrap_or(default),
            message: config.message,
        })
    }

    #[request("*", metadata(*))]
    fn any(&mut self, call: &Any<'_>) -> Verdict<'_> {
        let mut values = call.metadata(0);
        let passes = match values.is_empty() {
            true => self.missing == Missing::Allow,
            // Checks every value: an allowed value must not hide a forbidden one.
            false => values.all(|value| {
                let allowed = self
                    .allow
                    .as_ref()
                    .is_none_or(|allow| allow.contains(value));
                allowed && !self.deny.contains(value)
            }),
        };
        if passes {
            return Verdict::Allow;
        }
        DENIED.add(1);
        Verdict::deny(Status::PERMISSION_DENIED, &self.message)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use tollgate_policy::testing::{Desk, counter};

    /// Whether calls with these values pass.
    fn passes(config: &str, values: &[&str]) -> bool {
        let desk = Desk::<MetadataAcl>::new(config).unwrap();
        let mut desk = desk.with_keys(&["x-role"], &[]);
        let pairs: Vec<(&str, &[u8])> = values.iter().map(|v| ("x-role", v.as_bytes())).collect();
        let passes = desk.request_with("a.B/C", &[], &pairs).passes();
        assert_eq!(counter(0), u64::from(!passes));
        passes
    }

    #[test]
    fn every_value_has_to_be_allowed_and_none_denied() {
        let both = r#"{"metadata": ["x-role"], "allow": ["admin", "guest"], "deny": ["guest"]}"#;
        for (values, expected) in [
            (&["admin"][..], true),
            (&["admin", "admin"], true),
            (&["guest"], false),
            (&["admin", "guest"], false),
            (&["admin", "other"], false),
            (&["Admin"], false),
            (&[""], false),
            (&[], false),
        ] {
            assert_eq!(passes(both, values), expected, "{values:?}");
        }
    }

    #[test]
    fn a_missing_key_fails_an_allow_list_and_passes_a_deny_list_unless_said_otherwise() {
        for (config, expected) in [
            (r#"{"metadata": ["x-role"], "allow": ["a"]}"#, false),
            (r#"{"metadata": ["x-role"], "deny": ["a"]}"#, true),
            (
                r#"{"metadata": ["x-role"], "allow": ["a"], "missing": "allow"}"#,
                true,
            ),
            (
                r#"{"metadata": ["x-role"], "deny": ["a"], "missing": "deny"}"#,
                false,
            ),
        ] {
            assert_eq!(passes(config, &[]), expected, "{config}");
        }
    }
}
