//! The administrative API with another project's gRPC client: grpcio, which learns the API from the
//! daemon by reflection.
//!
//! `.ci/grpc` installs it; without it this test fails and names it.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tollgate_admin::socket_beside;
use tollgate_conformance::process::programs;
use tollgate_conformance::testbed::{Options, Testbed, succeed};

/// grpcio's Python.
fn python() -> PathBuf {
    let programs = programs();
    let target = programs.parent().unwrap_or(&programs);
    let python = target.join("grpc/venv/bin/python");
    let shown = python.display();
    assert!(python.exists(), "{shown} isn't there; run first: .ci/grpc");
    python
}

/// What the client printed.
fn asked(target: &str, token: &str) -> Value {
    let client = Path::new(env!("CARGO_MANIFEST_DIR")).join("grpc/client.py");
    let mut command = Command::new(python());
    command.arg("-B").arg(client).args([target, "acme"]);
    // No proxy is between the client and loopback.
    command
        .env("TOLLGATE_TOKEN", token)
        .env("no_grpc_proxy", "*");
    serde_json::from_str(&succeed(&mut command)).unwrap()
}

#[track_caller]
fn is_served(target: &str, token: &str) {
    let said = asked(target, token);
    let services: Vec<_> = said["services"].as_array().unwrap().iter().collect();
    for name in [
        "tollgate.admin.v1.PolicyService",
        "tollgate.admin.v1.StateService",
        "tollgate.admin.v1.TenantService",
        "grpc.health.v1.Health",
    ] {
        assert!(services.iter().any(|one| *one == name), "{name}: {said}");
    }
    let health = said["health"].as_object().unwrap();
    assert_eq!(health.len(), 2);
    assert!(health.values().all(|one| one == "SERVING"), "{said}");
    for answer in ["listed", "watched"] {
        let text = said[answer].to_string();
        assert!(text.contains("\"mine\""), "{answer}: {said}");
        assert!(!text.contains("guard"), "{answer}: {said}");
    }
    assert_eq!(said["usage"]["tenant"], "acme", "{said}");
    for (answer, status, text) in [
        ("other", "NOT_FOUND", "there is no tenant \"evil\""),
        ("operators", "PERMISSION_DENIED", "may not send ListTenants"),
        ("wrong", "UNAUTHENTICATED", ""),
    ] {
        assert_eq!(said[answer]["status"], status, "{said}");
        let given = said[answer]["text"].as_str().unwrap();
        assert!(given.contains(text), "{said}");
    }
}

#[test]
fn grpcio_finds_the_api_by_reflection_and_acts_with_a_token() {
    let bed = Testbed::new();
    let options = Options {
        config: "[admin]\nlisten = '127.0.0.1:0'\n".to_owned(),
        ..Options::default()
    };
    let mut daemon = bed.daemon_with("a", &options);
    let token = daemon.tenant("acme");
    daemon.tenant("evil");
    daemon.push("--tenant acme", "null", "mine", None);
    daemon.push("--provider", "null", "guard", None);
    let socket = format!("unix:{}", socket_beside(daemon.socket()).display());
    let address = daemon.admin_address().to_string();
    for target in [&socket, &address] {
        is_served(target, &token);
    }
}
