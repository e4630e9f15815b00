//! `tollgate policy test`, `bench` and `inspect` as a user types them, with the repository's own
//! policies.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, missing_docs)]

use std::path::{Path, PathBuf};
use std::process::Command;

/// A policy of `policies-wasm`, built by `.ci/test`.
fn policy(name: &str) -> PathBuf {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap();
    let path = target.join(format!("wasm32-unknown-unknown/policy/{name}.wasm"));
    assert!(
        path.exists(),
        "{} is not built; run `cargo build --profile policy --target wasm32-unknown-unknown -p policy-{name}` first",
        path.display()
    );
    path
}

/// A file of cases in a directory of its own, next to the schema that it names. Tests run in
/// parallel: a shared schema would be empty for one test while another copies it.
fn cases(name: &str, text: &str) -> PathBuf {
    let protos = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../conformance/proto");
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"))
        .join("policy-tools")
        .join(name);
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::copy(protos.join("hotel.proto"), dir.join("hotel.proto")).unwrap();
    let path = dir.join(format!("{name}.json"));
    std::fs::write(&path, text).unwrap();
    path
}

/// Runs `tollgate`. Returns the exit status, the output, and the failure.
fn tollgate(arguments: &[&str], module: &Path, cases: Option<&Path>) -> (i32, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.arg("policy").args(arguments).arg(module);
    if let Some(cases) = cases {
        command.arg("--cases").arg(cases);
    }
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let status = output.status.code().unwrap();
    (status, text(output.stdout), text(output.stderr))
}

const ACL: &str = r#"{
    "proto": ["hotel.proto"], "config": {"blocked": ["Mallory"]},
    "cases": [
        {"name": "passes", "method": "hotel.Reservation/Reserve",
         "request": {"customer_name": "Ada"}, "expect": {"verdict": "allow"}},
        {"name": "blocked", "method": "hotel.Reservation/Reserve",
         "request": {"customer_name": "Mallory"},
         "expect": {"verdict": "deny", "status": "PERMISSION_DENIED", "message": "block list"}},
        {"name": "other", "method": "hotel.Reservation/CheckAvailability", "request": {}, "expect": {"verdict": "unasked"}}
    ]
}"#;

/// `null` and `spin` care about every method.
fn any(config: &str, cases: &str) -> String {
    let method = r#""method":"hotel.Echo/Echo","request":{}"#;
    let cases = cases.replace("METHOD", method);
    format!(r#"{{"proto":["hotel.proto"],"config":"{config}","cases":[{cases}]}}"#)
}

#[test]
fn cases_that_pass_and_cases_that_fail_have_their_status() {
    let (status, printed, failure) =
        tollgate(&["test"], &policy("hotel_acl"), Some(&cases("acl", ACL)));
    assert_eq!((status, failure.as_str()), (0, ""), "{printed}");
    assert!(
        printed.ends_with("3 cases, 3 passed, 0 failed\n"),
        "{printed}"
    );

    let wrong = cases("acl-wrong", &ACL.replace("\"Ada\"", "\"Mallory\""));
    let (status, printed, failure) = tollgate(&["test"], &policy("hotel_acl"), Some(&wrong));
    assert_eq!((status, failure.as_str()), (1, ""), "{printed}");
    assert!(
        printed.contains(
            "verdict: expected allow, got deny PERMISSION_DENIED \"customer is on the block list\""
        ),
        "{printed}"
    );
    let (status, printed, _) = tollgate(&["test", "--json"], &policy("hotel_acl"), Some(&wrong));
    let report: serde_json::Value = serde_json::from_str(&printed).unwrap();
    assert_eq!((status, &report["failed"]), (1, &1.into()));
}

#[test]
fn a_loop_is_stopped_and_the_next_case_meets_a_new_instance() {
    let allow = r#"{"name":"a",METHOD,"repeat":2,"expect":{"verdict":"allow"}}"#;
    let fault = r#"{"name":"b",METHOD,"expect":{"verdict":"fault","message":"350000"}}"#;
    let file = cases("spin", &any("calls 2", &[allow, fault, allow].join(",")));
    let (status, printed, failure) = tollgate(&["test"], &policy("spin"), Some(&file));
    assert_eq!(status, 0, "{printed}{failure}");

    let file = cases("null", &any("", allow));
    let (status, printed, failure) = tollgate(&["test"], &policy("null"), Some(&file));
    assert_eq!(status, 0, "{printed}{failure}");
    let (status, printed, _) = tollgate(&["test"], &policy("spin"), Some(&file));
    assert_eq!(status, 1);
    assert!(printed.contains("expected allow, got fault"), "{printed}");
}

#[test]
fn what_can_not_be_tested_is_one_sentence() {
    let acl = policy("hotel_acl");
    let refused = |module: &Path, cases: &Path| {
        let (status, printed, failure) = tollgate(&["test"], module, Some(cases));
        assert_eq!((printed.as_str(), failure.lines().count()), ("", 1));
        (status, failure)
    };
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR"));
    for (name, text, status, words) in [
        ("bad-json", "{", 3, "the cases: EOF"),
        (
            "bad-key",
            r#"{"cases":[],"case":1}"#,
            3,
            "unknown field `case`",
        ),
        (
            "bad-case",
            r#"{"cases":[{"name":"x","method":"a.B/C","request":{},"expect":{"verdict":"ok"}}]}"#,
            3,
            "case 1 (\"x\"): unknown variant `ok`",
        ),
        (
            "no-proto",
            &ACL.replace(r#""proto": ["hotel.proto"], "#, ""),
            3,
            "the services of the cases have no schema. Try: --proto",
        ),
        (
            "other-proto",
            &ACL.replace("[\"hotel.proto\"]", "[\"motel.proto\"]"),
            5,
            "motel.proto can't be read",
        ),
        (
            "bad-config",
            &ACL.replace("blocked\":", "banned\":"),
            3,
            "the policy: ",
        ),
    ] {
        let (code, failure) = refused(&acl, &cases(name, text));
        assert!(failure.contains(words), "{failure}");
        assert_eq!(code, status, "{failure}");
    }
    let acl_cases = cases("acl-again", ACL);
    let (code, failure) = refused(&dir.join("none.wasm"), &acl_cases);
    assert!(
        code == 5 && failure.contains("none.wasm can't be read"),
        "{failure}"
    );
    let (code, failure) = refused(&acl_cases, &acl_cases);
    assert!(code == 3 && failure.contains("the policy: "), "{failure}");
}

#[test]
fn a_bench_and_an_inspection_tell_their_facts() {
    let file = cases("acl-bench", ACL);
    let (status, printed, failure) = tollgate(&["bench"], &policy("hotel_acl"), Some(&file));
    assert_eq!(status, 0, "{failure}");
    for words in [
        "sha256",
        "customer_name",
        "100 us per call",
        "  passes\n",
        "  blocked\n",
    ] {
        assert!(printed.contains(words), "{printed}");
    }
    let (status, printed, failure) = tollgate(&["bench", "--json"], &policy("null"), None);
    assert_eq!(status, 0, "{failure}");
    let bench: serde_json::Value = serde_json::from_str(&printed).unwrap();
    assert!(bench["calls"][0]["batch_of_8_ns"]["median"].as_f64() > Some(0.0));
    let (status, printed, failure) = tollgate(&["inspect"], &policy("hotel_acl"), None);
    assert_eq!(status, 0, "{failure}");
    assert!(
        printed.starts_with("policy        acl \"1.0\"\n"),
        "{printed}"
    );
}
