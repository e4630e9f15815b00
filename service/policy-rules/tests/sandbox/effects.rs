//! Actions: what rules do to calls.

use serde_json::{Value, json};
use tollgate_policy_tools::{Change, Seen};
use tollgate_shm_abi::status::Code;

use crate::bed::{Bed, CALL, refused, rule};

fn changed(bed: &Bed, case: &Value) -> (Box<Change>, Value) {
    match bed.file(&json!({}), case) {
        (Seen::Change(change), json, _) => {
            let json = json.map_or(Value::Null, |json| serde_json::from_str(&json).unwrap());
            (change, json)
        }
        (other, ..) => panic!("{other:?}"),
    }
}

fn denied(code: Code, message: &str) -> Seen {
    Seen::Deny {
        code,
        message: message.to_owned(),
    }
}

#[test]
fn the_first_rule_that_denies_decides() {
    let bed = Bed::new(
        r#"
methods = ["test.Wide/Call"]

[lists]
blocked = ["Mallory", "Trudy"]

[[rule]]
name = "friends"
when = "request.s == 'Ada'"
allow = true

[[rule]]
name = "blocked"
when = "request.s in blocked"
deny = { status = "RESOURCE_EXHAUSTED", text = "on the block list" }

[[rule]]
name = "long stays"
when = "request.i32 > 30"
deny = { text = { cel = "request.s + ' stays ' + string(request.i32) + ' nights'" } }
"#,
    );
    let ask = |s: &str, i32: i32| bed.ask(&json!({ "s": s, "i32": i32 }));
    assert_eq!(ask("Ada", 99), Seen::Allow);
    assert_eq!(ask("Bob", 30), Seen::Allow);
    let blocked = "on the block list (rule blocked, line 13)";
    assert_eq!(
        ask("Mallory", 99),
        denied(Code::RESOURCE_EXHAUSTED, blocked)
    );
    let long = "Bob stays 31 nights (rule long stays, line 18)";
    assert_eq!(ask("Bob", 31), denied(Code::PERMISSION_DENIED, long));
}

#[test]
fn texts_may_leave_out_the_rules_name() {
    let bed = Bed::new(&format!(
        "name_rules = false\n{}",
        rule("when = 'request.b'\ndeny = { text = 'no' }")
    ));
    assert_eq!(
        bed.ask(&json!({ "b": true })),
        denied(Code::PERMISSION_DENIED, "no")
    );
    let bed = Bed::new(&format!(
        "name_rules = false\n{}",
        rule("when = '1 / request.i32 > 0'\ndeny = 'ABORTED'")
    ));
    let text = "a rule can't be decided: a division by zero";
    assert_eq!(bed.ask(&json!({})), denied(Code::ABORTED, text));
    let bed = Bed::new(&rule("deny = true"));
    assert_eq!(
        bed.ask(&json!({})),
        denied(Code::PERMISSION_DENIED, "denied by a rule (rule r, line 2)")
    );
}

#[test]
fn errors_deny_unless_the_rule_skips_them() {
    let keys = "when = \"metadata.role == 'admin'\"\n";
    let text = "rule r (line 2) can't be decided: metadata \"role\" is missing";
    let bed = Bed::new(&rule(&format!("{keys}deny = 'UNAUTHENTICATED'")));
    assert_eq!(bed.ask(&json!({})), denied(Code::UNAUTHENTICATED, text));
    let bed = Bed::new(&rule(&format!("{keys}priority = 3")));
    assert_eq!(bed.ask(&json!({})), denied(Code::INTERNAL, text));
    let bed = Bed::new(&rule(&format!("{keys}on_error = 'skip'\ndeny = true")));
    assert_eq!(bed.ask(&json!({})), Seen::Allow);
    // An error in a value leaves the rule's other actions undone.
    let keys = "set_fields = { i32 = { cel = 'int(request.i64)' }, s = 'new' }\nwhen = 'true'";
    let bed = Bed::new(&rule(keys));
    let text = "rule r (line 2) can't be decided: the new value doesn't fit the field i32";
    assert_eq!(
        bed.ask(&json!({ "i64": "2147483648" })),
        denied(Code::INTERNAL, text)
    );
    let bed = Bed::new(&rule(&format!("{keys}\non_error = 'skip'")));
    assert_eq!(bed.ask(&json!({ "i64": "2147483648" })), Seen::Allow);
}

#[test]
fn withheld_fields_are_errors() {
    let bed = Bed::new(&rule("when = \"request.s == 'a'\"\ndeny = true"));
    let file = json!({ "grant": { "fields": [] } });
    let (seen, ..) = bed.file(&file, &json!({ "request": { "s": "b" } }));
    let text = "rule r (line 2) can't be decided: the field s isn't granted to the rules";
    assert_eq!(seen, denied(Code::PERMISSION_DENIED, text));
}

#[test]
fn fields_are_set_and_cleared() {
    let bed = Bed::new(&rule(
        r#"
clear_fields = ["note", "inner.title"]

[rule.set_fields]
b = true
i32 = { cel = "request.i32 + 1" }
u32 = 9
f = 0.5
d = { cel = "double(request.u32)" }
s = { cel = "request.t + request.s" }
raw = { cel = "b'\\x00\\xff'" }
color = { cel = "test.Color.BLUE" }
count = -3
inner.name = "new"
"#,
    ));
    let request =
        json!({ "i32": 1, "s": "S", "t": "T", "u32": 4, "note": "n", "inner": { "title": "x" } });
    let (_, json) = changed(&bed, &json!({ "request": request }));
    let expected = json!({
        "b": true, "i32": 2, "u32": 9, "f": 0.5, "d": 4.0, "s": "TS", "t": "T", "raw": "AP8=", "color": "BLUE",
        "count": "-3", "inner": { "name": "new" },
    });
    assert_eq!(json, expected);
    let text = "rule r (line 2) can't be decided: inner is absent, so inner.name can't be set";
    assert_eq!(bed.ask(&json!({})), denied(Code::INTERNAL, text));
}

#[test]
fn a_later_rule_replaces_what_an_earlier_one_has_set() {
    let bed = Bed::new(
        r#"
methods = ["test.Wide/Call"]
[[rule]]
name = "first"
set_fields = { s = "one", t = "kept" }
set_metadata = { tier = "bronze", "x-bin" = { cel = "b'\\x01'" } }
remove_metadata = ["secret"]
priority = 1
delay_ms = 2
route = "blue"
[[rule]]
name = "second"
when = "request.b"
set_fields = { s = "two" }
set_metadata = { tier = { cel = "metadata.tier + '+'" } }
priority = 5
route = { cel = "request.b ? 'green' : 'red'" }
[[rule]]
name = "end"
when = "request.i32 == 1"
allow = true
[[rule]]
name = "third"
set_fields = { s = "three" }
"#,
    );
    let metadata = json!({ "tier": "gold", "secret": "x", "other": "y" });
    let case = |request: Value| json!({ "request": request, "metadata": metadata });
    let (change, json) = changed(&bed, &case(json!({ "b": true, "i32": 1 })));
    assert_eq!(
        json,
        json!({ "b": true, "i32": 1, "s": "two", "t": "kept" })
    );
    let value = |key: &str| change.message.metadata.view().get(key).map(<[u8]>::to_vec);
    assert_eq!(value("tier"), Some(b"gold+".to_vec()));
    assert_eq!(value("x-bin"), Some(vec![1]));
    assert_eq!(
        (value("secret"), value("other")),
        (None, Some(b"y".to_vec()))
    );
    assert_eq!(
        (change.priority, change.delay_us, change.route.as_deref()),
        (Some(5), 2000, Some("green"))
    );
    let (change, json) = changed(&bed, &case(json!({})));
    assert_eq!(json, json!({ "s": "three", "t": "kept" }));
    assert_eq!(
        (change.priority, change.route.as_deref()),
        (Some(1), Some("blue"))
    );
}

#[test]
fn computed_values_are_checked_before_the_host_would() {
    let check = |keys: &str, request: Value, reason: &str| {
        let bed = Bed::new(&rule(keys));
        let text = format!("rule r (line 2) can't be decided: {reason}");
        assert_eq!(bed.ask(&request), denied(Code::INTERNAL, &text), "{keys}");
    };
    let s = "{ cel = 'request.s' }";
    let ascii = "the new value of metadata \"k\" has other bytes than printable ASCII";
    check(
        &format!("set_metadata = {{ k = {s} }}"),
        json!({ "s": "ü" }),
        ascii,
    );
    check(
        &format!("set_metadata = {{ k = {s} }}"),
        json!({ "s": "a\n" }),
        ascii,
    );
    let label = "the route isn't 1 to 64 of a-z 0-9 - _ .";
    for wrong in ["", "Blue", "a b", &"a".repeat(65)] {
        check(&format!("route = {s}"), json!({ "s": wrong }), label);
    }
    let misfit = "the new value doesn't fit the field u32";
    check(
        "set_fields = { u32 = { cel = 'request.u64' } }",
        json!({ "u64": "4294967296" }),
        misfit,
    );
    let text = "{ cel = 'request.s + request.s' }";
    check(
        &format!("set_fields = {{ s = {text} }}"),
        json!({ "s": "x".repeat(32_769) }),
        "a computed text is too long",
    );
    // Each value is short enough, and all of them aren't.
    let bed = Bed::new(&rule(&format!("set_fields = {{ s = {text}, t = {text} }}")));
    let long = "the values that the rules set have more than 65536 bytes";
    assert_eq!(
        bed.ask(&json!({ "s": "x".repeat(16_385) })),
        denied(Code::INTERNAL, long)
    );
    let bed = Bed::new(&rule(&format!("route = {s}")));
    let (change, _) = changed(&bed, &json!({ "request": { "s": "az09-_." } }));
    assert_eq!(change.route.as_deref(), Some("az09-_."));
}

#[test]
fn lines_are_logged() {
    let bed = Bed::new(&rule(
        "when = 'request.b'\nlog = { cel = \"'seen ' + request.s\" }",
    ));
    let (seen, _, log) = bed.file(&json!({}), &json!({ "request": { "b": true, "s": "S" } }));
    assert_eq!((seen, log), (Seen::Allow, vec!["seen S".to_owned()]));
    let (seen, _, log) = bed.file(&json!({}), &json!({ "request": { "s": "S" } }));
    assert_eq!((seen, log), (Seen::Allow, vec![]));
}

#[test]
fn replies_have_rules_of_their_own() {
    let rules = format!(
        "[[rule]]\nname = \"r\"\nhook = \"reply\"\nmethods = [\"{CALL}\"]\nwhen = \"reply.i32 > 1 && metadata.k == 'v'\"\nset_fields = {{ s = \"hidden\" }}\nset_metadata = {{ k = \"w\" }}\n"
    );
    let bed = Bed::new(&rules);
    let case = json!({ "reply": { "i32": 2, "s": "x" }, "metadata": { "k": "v" } });
    let (change, json) = changed(&bed, &case);
    assert_eq!(json, json!({ "i32": 2, "s": "hidden" }));
    assert_eq!(change.message.metadata.view().get("k"), Some(&b"w"[..]));
    assert_eq!(bed.ask(&json!({})), Seen::Unasked);
    let route = rules.replace("set_metadata = { k = \"w\" }", "route = \"a\"");
    assert_eq!(
        refused(&route),
        "line 7, column 9: a reply has no route; the rule needs hook = \"request\""
    );
}

#[test]
fn rules_of_services_cover_methods_that_come_later() {
    let bed = Bed::new(
        r#"
[[rule]]
name = "call only"
methods = ["test.Wide/Call"]
when = "request.i32 == 1"
deny = true
[[rule]]
name = "any"
methods = ["*"]
when = "metadata_values['stop'].size() > 0"
deny = "ABORTED"
[[rule]]
name = "by name"
methods = ["test.Wide/*"]
when = "method == 'test.Wide/Other'"
deny = "UNAVAILABLE"
"#,
    );
    let ask = |method: &str, stop: bool| {
        let metadata = if stop {
            json!({ "stop": "1" })
        } else {
            json!({})
        };
        bed.case(&json!({ "method": method, "request": {}, "metadata": metadata }))
    };
    let code = |seen: Seen| match seen {
        Seen::Deny { code, .. } => Some(code),
        Seen::Allow => None,
        other => panic!("{other:?}"),
    };
    assert_eq!(code(ask("test.Wide/Call", false)), None);
    assert_eq!(code(ask("test.Wide/Call", true)), Some(Code::ABORTED));
    assert_eq!(code(ask("test.Wide/Other", false)), Some(Code::UNAVAILABLE));
    assert_eq!(code(ask("test.Wide/Other", true)), Some(Code::ABORTED));
}
