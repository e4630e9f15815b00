//! The input of an OPA policy: the document `input`.
//!
//! ```json
//!   {"hook": "request", "service": "hotel.Reservation", "method": "Reserve",
//!    "metadata": {"x-user": ["ada"]}, "message": {"customer_name": "Ada"}}
//! ```
//!
//! Written by hand, because it is on the path of every call and the message is JSON already. Values
//! of `-bin` keys are in base64.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use tollgate_shm_abi::metadata::is_binary;

use crate::{CompatCall, Shown};

/// The document, as text.
pub(super) fn json(call: &CompatCall<'_>) -> String {
    let (service, method) = call.path.split_once('/').unwrap_or((call.path, ""));
    let mut out = String::with_capacity(128 + call.message.len());
    out.push_str("{\"hook\":");
    string(&mut out, call.hook.name());
    out.push_str(",\"service\":");
    string(&mut out, service);
    out.push_str(",\"method\":");
    string(&mut out, method);
    out.push_str(",\"metadata\":{");
    let mut told: Vec<&str> = Vec::new();
    for (key, _) in call.metadata {
        if told.contains(key) {
            continue;
        }
        if !told.is_empty() {
            out.push(',');
        }
        told.push(key);
        string(&mut out, key);
        out.push(':');
        values(&mut out, call, key);
    }
    out.push('}');
    if let Shown::Json(message) = call.message {
        out.push_str(",\"message\":");
        out.push_str(message);
    }
    out.push('}');
    out
}

fn values(out: &mut String, call: &CompatCall<'_>, key: &str) {
    let mut separator = '[';
    for (_, value) in call.metadata.iter().filter(|(known, _)| *known == key) {
        out.push(separator);
        separator = ',';
        match is_binary(key) {
            true => string(out, &BASE64_STANDARD.encode(value)),
            false => string(out, &String::from_utf8_lossy(value)),
        }
    }
    out.push(']');
}

fn string(out: &mut String, text: &str) {
    out.push_str(&serde_json::Value::from(text).to_string());
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::Hook;
    use serde_json::json;

    #[test]
    fn a_call_is_a_document() {
        let call = CompatCall {
            call: 1,
            hook: Hook::Reply,
            path: "hotel.Reservation/Reserve",
            metadata: &[("x-user", b"a\"da"), ("t-bin", &[255]), ("x-user", b"bob")],
            message: Shown::Json("{\"nights\":2}"),
        };
        let document: serde_json::Value = serde_json::from_str(&super::json(&call)).unwrap();
        let expected = json!({
            "hook": "reply", "service": "hotel.Reservation", "method": "Reserve",
            "metadata": {"x-user": ["a\"da", "bob"], "t-bin": ["/w=="]}, "message": {"nights": 2},
        });
        assert_eq!(document, expected);
        let bare = CompatCall {
            metadata: &[],
            message: Shown::Nothing,
            ..call
        };
        let document: serde_json::Value = serde_json::from_str(&super::json(&bare)).unwrap();
        assert_eq!(
            (&document["metadata"], document.get("message")),
            (&json!({}), None)
        );
    }
}
