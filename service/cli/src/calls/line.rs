//! A call as a line.

use std::fmt::Write as _;

use serde_json::Value;

use crate::output;
use crate::render::flat;

/// One line of a call, such as `2026-11-25T06:00:00.000Z acme client hotel.Reservation/Reserve
/// PERMISSION_DENIED 12 us by acl@1: no guests`.
pub(super) fn line(call: &Value) -> String {
    let mut line = String::new();
    for field in ["began", "tenant", "side", "method", "status"] {
        if call[field].is_string() {
            let _infallible = write!(line, "{} ", flat(&call[field]));
        }
    }
    let _infallible = write!(line, "{} us", call["took_us"]);
    line += &ending(call);
    if call["trace"].is_string() {
        let _infallible = write!(line, " trace {}", flat(&call["trace"]));
    }
    line.push('\n');
    line
}

/// The policy that denied it, and the message of its status.
pub(super) fn ending(call: &Value) -> String {
    let mut text = String::new();
    if call["denied_by"].is_string() {
        let policy = flat(&call["denied_by"]);
        let whose = match call["providers"].as_bool() {
            Some(true) => " of the provider",
            _ => "",
        };
        let _infallible = write!(text, " by {policy}{whose}");
    }
    match call["message"].as_str() {
        Some(message) if !message.is_empty() => text + ": " + &output::plain(message),
        _ => text,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_call_is_a_line() {
        let call = json!({
            "began": "T", "tenant": "acme", "side": "client", "method": "a.B/C", "status": "PERMISSION_DENIED", "took_us": 12,
            "denied_by": "acl@1", "providers": true, "message": "no guests", "trace": "4bf9",
        });
        let want = "T acme client a.B/C PERMISSION_DENIED 12 us by acl@1 of the provider: no guests trace 4bf9\n";
        assert_eq!(line(&call), want);
        let _no_panic = line(&json!({"began": 3, "denied_by": [], "message": {}}));
        // An application or a policy chooses the text of a status.
        let hostile = json!({"status": "ABORTED", "took_us": 1, "message": "\u{1b}[2J\nT acme"});
        assert_eq!(line(&hostile), "ABORTED 1 us: \\u{1b}[2J\\nT acme\n");
    }
}
