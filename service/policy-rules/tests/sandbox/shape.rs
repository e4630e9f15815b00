//! Modules: small, the same for the same file, and within the daemon's limits.

use serde_json::json;
use tollgate_policy_rules::{Options, compile, limits};
use tollgate_policy_tools::Seen;

use crate::bed::{Bed, compiled, rule};

#[test]
fn the_same_file_gives_the_same_small_module() {
    let rules = rule("when = \"request.s == 'Mallory' && request.i32 > 30\"\ndeny = true");
    let first = compiled(&rules).unwrap();
    assert_eq!(first, compiled(&rules).unwrap());
    let bytes = first.module.len();
    assert!(bytes < 1200, "{bytes} bytes");
    let text = first.to_string();
    let expected = format!(
        "policy  rules, {bytes} bytes\nrule    r (line 2): deny, request\ntest.Wide/Call (request): 1 rule\n  reads: s, i32\n"
    );
    assert_eq!(text, expected);
}

#[test]
fn many_rules_continue_in_further_functions() {
    let one = |at: usize| {
        let keys = format!(
            "when = \"request.s == 'name number {at}' || request.t.contains('{at}-')\"\ndeny = {{ text = 'no {at}' }}"
        );
        rule(&keys).replace("\"r\"", &format!("\"r{at}\""))
    };
    let bed = Bed::new(&(0..limits::RULES).map(one).collect::<String>());
    for at in [0, 1, 100, 255] {
        match bed.ask(&json!({ "s": format!("name number {at}") })) {
            Seen::Deny { message, .. } => assert!(
                message.starts_with(&format!("no {at} (rule r{at}, ")),
                "{message}"
            ),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(bed.ask(&json!({ "s": "name number 256" })), Seen::Allow);
}

#[test]
fn declared_fields_do_without_a_schema() {
    let text = r#"
[[method]]
name = "a.B/C"
request = { name = "string", nights = "int32", "stay.from" = "string", note = "optional string" }

[[rule]]
name = "r"
methods = ["a.B/C"]
when = "request.name == 'x' && request.nights > 3 && has(request.stay) && request.stay.from != '' && !has(request.note)"
deny = true
"#;
    let options = Options {
        name: "rules",
        schema: None,
    };
    let compiled = compile(text, &options).unwrap();
    assert!(
        compiled
            .to_string()
            .contains("  reads: name, nights, stay.from, note\n")
    );
    let said = |from: &str, to: &str| {
        compile(&text.replace(from, to), &options)
            .unwrap_err()
            .to_string()
    };
    let unknown = said("request.nights", "request.nigths");
    assert!(unknown.contains("declares no field \"nigths\" of the request of a.B/C; it declares name, nights, note, stay.from; did you mean \"nights\"?"), "{unknown}");
    let wrong = said("\"int32\"", "\"integer\"");
    assert!(
        wrong.contains("\"integer\" is no type of a field; there are bool, int32,"),
        "{wrong}"
    );
    let other = said("methods = [\"a.B/C\"]", "methods = [\"a.B/D\"]");
    assert!(
        other.contains("the fields of a.B/D aren't known; give its schema with --proto"),
        "{other}"
    );
}

#[test]
fn a_manifest_declares_what_the_rules_use_and_nothing_else() {
    use tollgate_policy_tools::Module;
    let rules = format!(
        "name = \"gate\"\nversion = \"1.2\"\n{}",
        rule(
            "when = \"metadata.k == 'v' && now > timestamp(0)\"\nset_fields = { s = 'x' }\nset_metadata = { m = 'y' }\npriority = 1\nroute = 'a'\ndelay_ms = 1"
        )
    );
    let module = Module::load(&compiled(&rules).unwrap().module).unwrap();
    let json = module.to_json();
    assert_eq!(json["name"], "gate");
    assert_eq!(json["version"], "1.2");
    assert_eq!(json["hooks"], json!(["request"]));
    assert_eq!(json["counters"], json!(["errors", "r"]));
    assert_eq!(json["methods"][0]["fields"], json!([]));
    assert_eq!(json["methods"][0]["changes"], json!(["s"]));
    assert_eq!(json["methods"][0]["metadata"], json!(["k"]));
    assert_eq!(json["methods"][0]["metadata_changes"], json!(["m"]));
    let capabilities = json["capabilities"].to_string();
    for capability in ["change", "clock", "delay", "priority", "route"] {
        assert!(capabilities.contains(capability), "{capabilities}");
    }
}

#[test]
fn the_limits_are_those_of_the_policy_host() {
    use tollgate_policy_host::limits as host;
    assert_eq!(limits::MANIFEST_BYTES, host::MANIFEST_BYTES);
    assert_eq!(limits::METHODS, host::METHODS);
    assert_eq!(limits::FIELDS, host::FIELDS);
    assert_eq!(limits::FIELDS, host::CHANGES);
    assert_eq!(limits::METADATA_KEYS, host::METADATA_KEYS);
    assert_eq!(limits::COUNTERS, host::COUNTERS);
    assert_eq!(limits::POLICY_NAME_BYTES, host::POLICY_NAME_BYTES);
    assert_eq!(limits::MODULE_BYTES, host::MODULE_BYTES);
    assert_eq!(limits::FUNCTION_BYTES, host::FUNCTION_BYTES);
    assert_eq!(limits::COMPUTED_BYTES, host::CHANGED_BYTES);
    assert_eq!(limits::BATCH, host::BATCH);
    assert_eq!(limits::DELAY_MS * 1000, host::DELAY_US);
    assert_eq!(limits::PRIORITY, host::PRIORITY);
    assert_eq!(limits::ROUTE_BYTES, host::ROUTE_BYTES);
    let names = tollgate_policy_host::Attribute::ALL.map(|attribute| attribute.name());
    assert_eq!(tollgate_policy_rules::CALLER, names);
}
