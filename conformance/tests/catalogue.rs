//! The catalogue, `policies-wasm/`: each policy loads within the limits, passes its cases in the
//! real host, and refuses invalid configurations with a message.
//!
//! The cases are those of `tollgate policy test`, run by the same crate.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::sync::LazyLock;

use serde_json::{Map, Value};
use tollgate_conformance::testbed::catalogue_file;
use tollgate_policy_host::{
    Capabilities, Host, HostConfig, Instance, LoadError, Policy, Setup, TenantLimits,
};
use tollgate_policy_tools::Cases;
use tollgate_schema::Schema;

/// The size of a module: one that parses JSON has about 165 KB.
const MODULE_BYTES: usize = 192 << 10;

/// The size of the module that checks three kinds of signatures.
const SIGNATURES_BYTES: usize = 512 << 10;

/// Fuel for the type of a field and the loop over the configured list.
const TYPE_FUEL: u64 = 250;

const POLICIES: [&str; 14] = [
    "null",
    "acl",
    "rate-limit",
    "traffic-shaping",
    "quota",
    "concurrency-limit",
    "redact",
    "fault-injection",
    "access-log",
    "metadata-edit",
    "metadata-acl",
    "priority",
    "canary-route",
    "jwt",
];

static HOST: LazyLock<Host> = LazyLock::new(|| {
    let config = HostConfig {
        instances: 50,
        ..HostConfig::default()
    };
    Host::new(config).unwrap()
});

fn load(name: &str) -> Policy {
    let wasm = std::fs::read(catalogue_file(&name.replace('-', "_"))).unwrap();
    let most = match name {
        "jwt" => SIGNATURES_BYTES,
        _ => MODULE_BYTES,
    };
    assert!(wasm.len() <= most, "{name} has {} bytes", wasm.len());
    HOST.load(&wasm).unwrap()
}

fn home(name: &str) -> PathBuf {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    root.join("policies-wasm").join(name)
}

fn json(name: &str, file: &str) -> Value {
    let path = home(name).join(file);
    let text = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    serde_json::from_slice(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn instance(policy: &Policy, config: &str, limits: &TenantLimits) -> Result<Instance, LoadError> {
    policy.instantiate(&Setup {
        config: Some(config.as_bytes()),
        granted: Capabilities::ALL,
        ..Setup::new(limits)
    })
}

#[test]
fn every_policy_judges_its_cases_as_its_file_says() {
    let mut evaluated = 0;
    for name in POLICIES {
        evaluated += evaluate(name, "cases.json").0;
    }
    assert!(evaluated >= 30, "{evaluated}");
}

/// Every policy works on a schema that it has never seen, by its configuration alone.
#[test]
fn every_policy_judges_another_schema_too() {
    let mut evaluated = 0;
    for name in POLICIES {
        let (outcomes, services) = evaluate(name, "cases-orders.json");
        assert!(
            services.iter().all(|service| service == "shop.Orders"),
            "{name}: {services:?}"
        );
        evaluated += outcomes;
    }
    assert!(evaluated >= 30, "{evaluated}");
}

/// The number of cases in a policy's file, all of which it passes, and their services.
fn evaluate(name: &str, file: &str) -> (usize, Vec<String>) {
    let cases = Cases::read(&home(name).join(file)).unwrap();
    let schema = Schema::load(&cases.proto, &cases.include).unwrap();
    let report = tollgate_policy_tools::test(&load(name), &schema, &cases).unwrap();
    assert_eq!(report.failed(), 0, "{name}: {:#}", report.to_json());
    let services = cases.cases.iter().map(|case| case.service.clone());
    (report.outcomes.len(), services.collect())
}

/// The refusal of one request of `shop.Orders` by an access list with this configuration.
fn misfit(policy: &str, config: &str, method: &str) -> String {
    let proto = home("orders.proto");
    let text = format!(
        r#"{{"proto": [{proto:?}], "config": {config}, "cases": [
            {{"name": "one", "method": {method:?}, "request": {{}}, "expect": {{"verdict": "unasked"}}}}]}}"#
    );
    let cases = Cases::parse(&text).unwrap();
    let schema = Schema::load(&cases.proto, &cases.include).unwrap();
    match tollgate_policy_tools::test(&load(policy), &schema, &cases) {
        Err(error) => error.to_string(),
        Ok(report) => format!("{:#}", report.to_json()),
    }
}

#[test]
fn a_field_that_does_not_fit_is_refused_by_name() {
    for (field, expected) in [
        (
            "customr.id",
            "field \"customr.id\": message shop.PlaceRequest has no field \"customr\"; did you mean \"customer\"?",
        ),
        (
            "customer.nmae",
            "message shop.Customer has no field \"nmae\"; did you mean \"name\"?",
        ),
        (
            "customerId",
            "message shop.PlaceRequest has no field \"customerId\"",
        ),
        (
            "items",
            "shop.PlaceRequest.items is repeated or a map; a policy can only read and change singular fields",
        ),
        ("items.sku", "shop.PlaceRequest.items is repeated or a map"),
        (
            "labels.color",
            "shop.PlaceRequest.labels is repeated or a map",
        ),
        (
            "customer",
            "shop.PlaceRequest.customer is a message; name one of its fields",
        ),
        (
            "voucher.code",
            "shop.PlaceRequest.voucher is not a message, so nothing can be named inside it",
        ),
        (
            "payment.iban",
            "shop.PlaceRequest.payment is a oneof; name one of its members without it: card_number, iban",
        ),
        (
            "weight_kg",
            "shop.PlaceRequest.weight_kg is of type double; the policy takes bool, int, uint, string, bytes, enum",
        ),
    ] {
        let config = format!(r#"{{"fields": [{field:?}], "blocked": ["x"]}}"#);
        let refused = misfit("acl", &config, "shop.Orders/Place");
        assert!(
            refused.contains("the policy doesn't fit shop.Orders/Place: ")
                && refused.contains(expected),
            "{field}: {refused}"
        );
    }
    let config = r#"{"mask": ["discount_cents"]}"#;
    let refused = misfit("redact", config, "shop.Orders/Place");
    assert!(
        refused.contains("discount_cents is of type int; the policy takes string"),
        "{refused}"
    );
}

/// A method without the field: refused unless the configuration says otherwise.
#[test]
fn a_method_that_lacks_a_field_is_refused_skipped_or_shown_an_absent_one() {
    let config = |more: &str| {
        format!(r#"{{"fields": ["customer.id"], "blocked": ["7"], "missing": "allow"{more}}}"#)
    };
    let list = "shop.Orders/List";
    for more in ["", r#", "absent": "refuse""#] {
        let refused = misfit("acl", &config(more), list);
        let expected = "message shop.ListRequest has no field \"customer\"; did you mean \"customer_id\"? \
            (its configuration can list the `methods` that it is for, or say `\"absent\": \"skip\"` or `\"empty\"`)";
        assert!(refused.contains(expected), "{refused}");
    }
    for (more, evaluated) in [
        (r#", "absent": "skip""#, false),
        (r#", "methods": ["shop.Orders/Place"]"#, false),
        (r#", "absent": "empty""#, true),
    ] {
        let report: Value = serde_json::from_str(&misfit("acl", &config(more), list)).unwrap();
        assert_eq!(report["failed"], u64::from(evaluated), "{more}: {report}");
    }
    // A wrong type is refused whatever the configuration says.
    let config = r#"{"fields": ["weight_kg"], "blocked": ["x"], "absent": "empty"}"#;
    assert!(misfit("acl", config, "shop.Orders/Place").contains("is of type double"));
}

/// The generic access list costs what the one costs that was built for the hotel's schema, give or
/// take the check of the field's type.
#[test]
fn a_configured_field_costs_what_a_declared_one_costs() {
    let fuel = |name: &str, config: Value| {
        let text = serde_json::json!({
            "proto": [home("../conformance/proto/hotel.proto")], "config": config,
            "cases": [{
                "name": "a name that isn't listed", "method": "hotel.Reservation/Reserve",
                "request": {"customer_name": "an honest customer"}, "expect": {"verdict": "allow"}
            }]
        });
        let cases = Cases::parse(&text.to_string()).unwrap();
        let schema = Schema::load(&cases.proto, &cases.include).unwrap();
        let report = tollgate_policy_tools::test(&load(name), &schema, &cases).unwrap();
        assert_eq!(report.failed(), 0, "{name}: {:#}", report.to_json());
        report.outcomes[0].fuel
    };
    let names: Vec<String> = (0..1000).map(|k| format!("blocked {k}")).collect();
    let declared = fuel("hotel-acl", serde_json::json!({ "blocked": names }));
    let configured = fuel(
        "acl",
        serde_json::json!({ "fields": ["customer_name"], "blocked": names, "absent": "skip" }),
    );
    println!("fuel: declared {declared}, configured {configured}");
    assert!(
        configured <= declared + TYPE_FUEL,
        "{configured} {declared}"
    );
}

#[test]
fn configurations_are_refused_with_a_sentence() {
    for (name, config, expected) in [
        ("null", "{}", "this policy has no configuration"),
        (
            "acl",
            r#"{"blokced": []}"#,
            "unknown field `blokced`, expected one of `fields`, `blocked`, `allowed`",
        ),
        (
            "acl",
            r#"{"fields": [], "blocked": ["a"]}"#,
            "fields lists no field; name at least one",
        ),
        (
            "acl",
            r#"{"fields": ["a"]}"#,
            "there are no rules: set blocked, allowed or both",
        ),
        (
            "rate-limit",
            r#"{"per_second": 0, "burst": 1}"#,
            "per_second is 0; 0.001 to 1000000 are allowed",
        ),
        (
            "rate-limit",
            r#"{"per_second": 1, "burst": 0}"#,
            "burst is 0; 1 to 1000000 are allowed",
        ),
        (
            "rate-limit",
            r#"{"per_second": 1, "burst": 1, "keys": 1}"#,
            "keys is 1; 8 to 16384 are allowed",
        ),
        (
            "traffic-shaping",
            r#"{"per_second": 1, "wait_ms": 1001}"#,
            "wait_ms is 1001; 1 to 1000 are allowed",
        ),
        (
            "quota",
            r#"{"calls": 1, "window_s": 0}"#,
            "window_s is 0; 1 to 31622400 (a year) are allowed",
        ),
        ("quota", r#"{"calls": 1}"#, "missing field `window_s`"),
        (
            "concurrency-limit",
            r#"{"calls": 0, "forget_after_ms": 1000}"#,
            "calls is 0; to stop all calls, detach",
        ),
        (
            "concurrency-limit",
            r#"{"calls": 1, "forget_after_ms": 1}"#,
            "forget_after_ms is 1; 100 to 3600000",
        ),
        (
            "redact",
            "{}",
            "there is nothing to redact: list fields in mask, remove, reply_mask or reply_remove",
        ),
        (
            "redact",
            r#"{"mask": ["a"], "remove": ["b"], "keep": -1}"#,
            "invalid value: integer `-1`",
        ),
        (
            "fault-injection",
            r#"{"percent": 101}"#,
            "percent is 101; 0 to 100 are allowed",
        ),
        (
            "fault-injection",
            r#"{"percent": 1, "status": 0}"#,
            "status is 0; 1 to 16 are errors",
        ),
        (
            "access-log",
            r#"{"percent": -1}"#,
            "percent is -1; 0 to 100 are allowed",
        ),
        (
            "access-log",
            r#"{"percent": 1, "measure": ["a", "b"]}"#,
            "measure lists 2 fields; at most 1 is allowed",
        ),
        (
            "concurrency-limit",
            "",
            "there is none, and this policy needs one: push it with --config",
        ),
        ("concurrency-limit", "[1, 60]", "it isn't a JSON object"),
        (
            "metadata-edit",
            r#"{"metadata_changes": ["a"], "edits": [{"remove": "b"}]}"#,
            "which metadata_changes doesn't list",
        ),
        (
            "metadata-acl",
            r#"{"metadata": ["a"]}"#,
            "there are no rules: set allow, deny or both",
        ),
        ("priority", r#"{"default": 8}"#, " is 8; 0 to 7 are allowed"),
        (
            "priority",
            r#"{"fields": ["a"], "default": 1}"#,
            "fields and field_values go together",
        ),
        (
            "canary-route",
            r#"{"route": "A"}"#,
            " is not a valid route; a label is 1 to 64 of a-z 0-9 - _ .",
        ),
        (
            "jwt",
            r#"{"keys": [], "issuer": "x", "metadata": ["authorization"]}"#,
            "there are 0 keys; 1 to 16 are allowed",
        ),
        (
            "jwt",
            r#"{"keys": [{"kty": "oct", "k": "AA"}], "issuer": "x", "metadata": ["authorization"]}"#,
            "key 1: it is a shared secret; only public keys are allowed",
        ),
        (
            "jwt",
            r#"{"keys": [], "issuer": "x", "metadata": []}"#,
            "metadata lists 0 keys; list the 1 key in which callers send their token",
        ),
    ] {
        let refused = refused(name, config);
        assert!(
            matches!(refused, LoadError::ConfigRefused(_)),
            "{name} {config}: {refused}"
        );
        assert!(
            refused.to_string().contains(expected),
            "{name} {config}: {refused}"
        );
    }
}

fn refused(name: &str, config: &str) -> LoadError {
    let refused = instance(&load(name), config, &TenantLimits::default());
    let refused = refused.err();
    refused.unwrap_or_else(|| panic!("{name} accepts {config}"))
}

/// The host refuses these before the policy sees them.
#[test]
fn configurations_without_the_fields_of_a_policy_are_refused() {
    for (name, config, expected) in [
        (
            "access-log",
            "",
            "the configuration is missing, and this policy takes fields or metadata keys from it",
        ),
        ("quota", "[1, 60]", "the configuration isn't a JSON object"),
        (
            "redact",
            r#"{"mask": ["a"], "remove": ["a"]}"#,
            "the configuration lists \"a\" twice in \"mask\" and \"remove\"",
        ),
        (
            "rate-limit",
            r#"{"fields": "user", "per_second": 1, "burst": 1}"#,
            "the configuration has a \"fields\" that isn't a list of fields' paths",
        ),
    ] {
        let refused = refused(name, config);
        assert!(
            matches!(refused, LoadError::ConfigKeys(_)) && refused.to_string().contains(expected),
            "{name} {config}: {refused}"
        );
    }
}

/// Every policy with cases is in the catalogue: it is tested here, and listed in the overview.
#[test]
fn the_catalogue_is_whole() {
    let overview = std::fs::read_to_string(home("README.md")).unwrap();
    let mut found: Vec<String> = std::fs::read_dir(home("."))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.join("cases.json").is_file())
        .map(|path| path.file_name().unwrap().to_string_lossy().into_owned())
        .collect();
    found.sort();
    let mut evaluated = POLICIES;
    evaluated.sort_unstable();
    assert_eq!(found, evaluated);
    for name in POLICIES {
        let row = format!("| [{name}]({name}/README.md) | ");
        assert!(overview.contains(&row), "{name} is not in the overview");
        let readme = std::fs::read_to_string(home(name).join("README.md")).unwrap();
        for command in [
            "policy test",
            "policy bench",
            "policy push",
            "policy attach",
        ] {
            assert!(
                readme.contains(command),
                "{name}: no {command} in its README"
            );
        }
    }
}

/// A policy's schema is for people and editors; its keys are those that the policy accepts.
#[test]
fn schemas_name_the_keys_that_policies_know() {
    for name in POLICIES {
        let schema = json(name, "config.schema.json");
        assert_eq!(schema["additionalProperties"], false, "{name}");
        let known = schema["properties"].as_object().unwrap();
        let config = json(name, "cases.json")["config"].clone();
        for key in config.as_object().into_iter().flat_map(Map::keys) {
            assert!(
                known.contains_key(key),
                "{name}: {key} is not in its schema"
            );
        }
        let source = std::fs::read_to_string(home(name).join("src/lib.rs")).unwrap();
        for key in known.keys() {
            assert!(
                source.contains(&format!("    {key}: ")),
                "{name}: {key} is not in its source"
            );
        }
        let readme = std::fs::read_to_string(home(name).join("README.md")).unwrap();
        for key in known.keys() {
            assert!(readme.contains(key), "{name}: {key} is not in its README");
        }
    }
}
