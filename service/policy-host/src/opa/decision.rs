//! The decision of an OPA policy.
//!
//! | decision | meaning |
//! |---|---|
//! | `true` | allow |
//! | `false`, or none at all | deny with PERMISSION_DENIED |
//! | `{"allow": bool, "status": 1..16, "message": text, "metadata": {key: text, [text, ..] or null}}` | as stated; only `allow` is required |
//!
//! Everything else is a fault: an unknown answer must not let a call pass.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::Value;
use tollgate_shm_abi::metadata::is_binary;

use crate::text::{cut, text};
use crate::{CompatChange, CompatVerdict, Fault, KeyChange, limits};

const PERMISSION_DENIED: u32 = 7;

/// Reads the result set of an evaluation.
pub(super) fn read(
    answer: &[u8],
    may_change: impl Fn(&str) -> bool,
) -> Result<CompatVerdict, Fault> {
    let results: Vec<Value> = serde_json::from_slice(answer)
        .map_err(|error| bad(format!("the decision isn't a list in JSON: {error}")))?;
    match results.first().map(|result| &result["result"]) {
        None => Ok(denial(
            PERMISSION_DENIED,
            "the policy's decision is undefined",
        )),
        Some(Value::Bool(true)) => Ok(CompatVerdict::Allow),
        Some(Value::Bool(false)) => Ok(denial(PERMISSION_DENIED, "the policy denies the call")),
        Some(Value::Object(decision)) => object(decision, may_change),
        Some(other) => Err(bad(format!(
            "the decision is {}; a boolean or an object with `allow` is expected",
            cut(&other.to_string())
        ))),
    }
}

fn bad(what: String) -> Fault {
    Fault::BadAnswer(what)
}

fn denial(code: u32, message: &str) -> CompatVerdict {
    CompatVerdict::Deny {
        code,
        message: text(message.as_bytes(), limits::MESSAGE_BYTES),
    }
}

fn object(
    decision: &serde_json::Map<String, Value>,
    may_change: impl Fn(&str) -> bool,
) -> Result<CompatVerdict, Fault> {
    let Some(allow) = decision.get("allow").and_then(Value::as_bool) else {
        return Err(bad("the decision has no boolean `allow`".to_owned()));
    };
    if !allow {
        let code = match decision.get("status") {
            None => PERMISSION_DENIED,
            Some(status) => match status.as_u64() {
                Some(code @ 1..=16) => code as u32,
                _ => {
                    return Err(bad(format!(
                        "the status {} isn't 1 to 16",
                        cut(&status.to_string())
                    )));
                }
            },
        };
        let message = match decision.get("message") {
            None => "the policy denies the call",
            Some(Value::String(message)) => message,
            Some(_) => return Err(bad("the decision's message isn't a string".to_owned())),
        };
        return Ok(denial(code, message));
    }
    let metadata = match decision.get("metadata") {
        None => Vec::new(),
        Some(Value::Object(keys)) => {
            let changes = keys
                .iter()
                .map(|(key, value)| change(key, value, &may_change));
            changes.collect::<Result<_, _>>()?
        }
        Some(_) => return Err(bad("the decision's metadata isn't an object".to_owned())),
    };
    if metadata.is_empty() {
        return Ok(CompatVerdict::Allow);
    }
    Ok(CompatVerdict::Change(CompatChange {
        metadata,
        body: None,
    }))
}

fn change(key: &str, value: &Value, may_change: impl Fn(&str) -> bool) -> Result<KeyChange, Fault> {
    if !may_change(key) {
        return Err(Fault::NotItsToChange {
            what: format!("the metadata {:?}", cut(key)),
        });
    }
    let odd = || bad(format!("the values of {:?} aren't strings", cut(key)));
    let one = |value: &Value| -> Result<Vec<u8>, Fault> {
        let text = value.as_str().ok_or_else(odd)?;
        match is_binary(key) {
            true => BASE64_STANDARD.decode(text).map_err(|_| odd()),
            false => Ok(text.as_bytes().to_vec()),
        }
    };
    let values = match value {
        Value::Null => Vec::new(),
        Value::Array(values) => values.iter().map(one).collect::<Result<_, _>>()?,
        value => vec![one(value)?],
    };
    KeyChange::new(key, values)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn decide(answer: &str) -> Result<CompatVerdict, Fault> {
        read(answer.as_bytes(), |key| key != "no")
    }

    #[test]
    fn decisions_become_verdicts() {
        let deny = |code, message: &str| Ok(denial(code, message));
        assert_eq!(decide(r#"[{"result": true}]"#), Ok(CompatVerdict::Allow));
        assert_eq!(
            decide(r#"[{"result": false}]"#),
            deny(7, "the policy denies the call")
        );
        assert_eq!(decide("[]"), deny(7, "the policy's decision is undefined"));
        assert_eq!(
            decide(r#"[{"result": {"allow": true}}]"#),
            Ok(CompatVerdict::Allow)
        );
        let full = r#"[{"result": {"allow": false, "status": 16, "message": "who are you"}}]"#;
        assert_eq!(decide(full), deny(16, "who are you"));
        let set = r#"[{"result": {"allow": true, "metadata": {"a": "1", "b": ["1", "2"], "c": null, "d-bin": "/w=="}}}]"#;
        let change = |key: &str, values: &[&[u8]]| KeyChange {
            key: key.to_owned(),
            values: values.iter().map(|value| value.to_vec()).collect(),
        };
        let CompatVerdict::Change(mut made) = decide(set).unwrap() else {
            panic!("nothing is changed");
        };
        made.metadata.sort_by(|one, other| one.key.cmp(&other.key));
        let expected = [
            change("a", &[b"1"]),
            change("b", &[b"1", b"2"]),
            change("c", &[]),
            change("d-bin", &[&[255]]),
        ];
        assert_eq!(made.metadata, expected);
    }

    #[test]
    fn what_is_not_understood_is_a_fault() {
        let odd = [
            "",
            "{}",
            "[{}]",
            r#"[{"result": 1}]"#,
            r#"[{"result": {}}]"#,
            r#"[{"result": {"allow": "yes"}}]"#,
            r#"[{"result": {"allow": false, "status": 0}}]"#,
            r#"[{"result": {"allow": false, "status": 17}}]"#,
            r#"[{"result": {"allow": false, "message": 3}}]"#,
            r#"[{"result": {"allow": true, "metadata": []}}]"#,
            r#"[{"result": {"allow": true, "metadata": {"a": 1}}}]"#,
            r#"[{"result": {"allow": true, "metadata": {"a-bin": "!"}}}]"#,
            r#"[{"result": {"allow": true, "metadata": {"Capitals": "1"}}}]"#,
            r#"[{"result": {"allow": true, "metadata": {"a": "two\nlines"}}}]"#,
        ];
        for answer in odd {
            assert!(
                matches!(decide(answer), Err(Fault::BadAnswer(_))),
                "{answer}"
            );
        }
        let held = decide(r#"[{"result": {"allow": true, "metadata": {"no": "1"}}}]"#).unwrap_err();
        assert_eq!(
            held.to_string(),
            "the policy changes the metadata \"no\", which it isn't granted"
        );
    }
}
