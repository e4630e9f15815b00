//! The catalogue, `policies-wasm/`: each policy loads within the limits, passes its cases in the
//! real host, and refuses invalid configurations with a message.
//!
//! The cases are those of `tollgate policy test`, run by the same crate.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::path::PathBuf;
use std::sync::LazyLock;

use serde_json::{Map, Value};
use tollgate_conformance::testbed::policy_file;
use tollgate_policy_host::{
    Capabilities, Host, HostConfig, Instance, LoadError, Policy, Setup, TenantLimits,
};
use tollgate_policy_tools::Cases;
use tollgate_schema::Schema;

/// The size of a module: one that parses JSON has about 165 KB.
const MODULE_BYTES: usize = 192 << 10;

/// The size of the module that checks three kinds of signatures.
const SIGNATURES_BYTES: usize = 512 << 10;

const POLICIES: [&str; 13] = [
    "null",
    "acl",
    "rate-limit",
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
    let wasm = std::fs::read(policy_file(&name.replace('-', "_"))).unwrap();
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
        let cases = Cases::read(&home(name).join("cases.json")).unwrap();
        let schema = Schema::load(&cases.proto, &cases.include).unwrap();
        let report = tollgate_policy_tools::test(&load(name), &schema, &cases).unwrap();
        assert_eq!(report.failed(), 0, "{name}: {:#}", report.to_json());
        evaluated += report.outcomes.len();
    }
    assert!(evaluated >= 30, "{evaluated}");
}

#[test]
fn configurations_are_refused_with_a_sentence() {
    for (name, config, expected) in [
        ("null", "{}", "this policy has no configuration"),
        (
            "acl",
            r#"{"blokced": []}"#,
            "unknown field `blokced`, expected `blocked` or `message`",
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
            "there is nothing to redact: set keep_of_name, remove_coupon or both",
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
            "",
            "there is none, and this policy needs one: push it with --config",
        ),
        ("quota", "[1, 60]", "it isn't a JSON object"),
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
        let refused = instance(&load(name), config, &TenantLimits::default());
        let refused = refused
            .err()
            .unwrap_or_else(|| panic!("{name} accepts {config}"));
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
