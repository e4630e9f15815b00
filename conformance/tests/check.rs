//! `tollgate check`, as run by a user with a problem.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::os::unix::fs::PermissionsExt;

use serde_json::Value;
use tollgate_conformance::process::program;
use tollgate_conformance::testbed::{Daemon, Options, Outcome, Testbed, run};

/// The verdicts and messages of one area's checks.
fn of(shown: &str, area: &str) -> Vec<(String, String)> {
    let report: Value = serde_json::from_str(shown).unwrap();
    let checks = report["checks"].as_array().unwrap();
    let numbers = checks.iter().map(|check| check["number"].as_u64().unwrap());
    assert!(numbers.eq(1..=checks.len() as u64), "{shown}");
    for check in checks {
        assert_eq!(check["verdict"] == "ok", check["fix"].is_null(), "{check}");
    }
    let its = checks.iter().filter(|check| check["area"] == area);
    let text = |check: &Value, key: &str| check[key].as_str().unwrap().to_owned();
    its.map(|check| (text(check, "verdict"), text(check, "sentence")))
        .collect()
}

fn durable(bed: &Testbed) -> Daemon {
    let options = Options {
        durable: true,
        ..Options::default()
    };
    bed.daemon_with("a", &options)
}

#[test]
fn a_daemon_that_is_as_it_should_be_passes_every_check() {
    let bed = Testbed::new();
    let daemon = durable(&bed);
    let shown = daemon.ok("check");
    assert!(shown.contains(", failed: 0\n"), "{shown}");
    let json = daemon.ok("check --json");
    for (area, count) in [
        ("host", 3),
        ("daemon", 2),
        ("state", 2),
        ("policies", 1),
        ("links", 1),
        ("rdma", 1),
    ] {
        let found = of(&json, area);
        assert_eq!(found.len(), count, "{area}: {json}");
        assert!(
            found.iter().all(|(verdict, _)| verdict == "ok"),
            "{area}: {json}"
        );
    }
    assert_eq!(of(&json, "limits").len(), 4, "{json}");
}

#[test]
fn what_is_wrong_is_said_and_how_to_mend_it() {
    let bed = Testbed::new();
    let memory = bed.daemon("m");
    let json = memory.ok("check --json");
    let [(verdict, sentence), ..] = &of(&json, "state")[..] else {
        panic!("{json}");
    };
    assert_eq!(verdict, "warning");
    assert!(sentence.contains("in memory"), "{sentence}");

    let mut daemon = durable(&bed);
    let state = bed.path("a.state");
    let mode = |mode| {
        std::fs::set_permissions(&state, std::fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(0o755);
    let outcome = daemon.run("check");
    assert_eq!(outcome.code, 9, "{outcome}");
    assert!(outcome.out.contains("FAILED   state     "), "{outcome}");
    let fix = format!("fix: chmod 700 {}", state.display());
    assert!(outcome.out.contains(&fix), "{outcome}");
    assert!(outcome.err.contains("1 of "), "{outcome}");
    mode(0o700);
    assert_eq!(daemon.run("check").code, 0);

    daemon.tenant("acme");
    let log = state.join("audit.jsonl");
    let text = std::fs::read_to_string(&log).unwrap();
    std::fs::write(&log, text.replacen("acme", "acne", 1)).unwrap();
    let outcome = daemon.run("check --json");
    assert_eq!(outcome.code, 9, "{outcome}");
    assert_eq!(of(&outcome.out, "state")[1].0, "failed", "{outcome}");

    daemon.process().kill();
    let outcome = daemon.run(&format!("check --json --state {}", state.display()));
    assert_eq!(outcome.code, 9, "{outcome}");
    assert_eq!(of(&outcome.out, "daemon")[0].0, "failed", "{outcome}");
    assert_eq!(of(&outcome.out, "state").len(), 1, "{outcome}");
    assert!(of(&outcome.out, "links").is_empty(), "{outcome}");
}

#[test]
fn a_configuration_is_summed_without_a_daemon() {
    let bed = Testbed::new();
    let check = |config: &str| -> Outcome {
        let (socket, file) = (bed.path("a.sock"), bed.file("a.toml", config));
        let (socket, file) = (socket.display().to_string(), file.display().to_string());
        let words = ["--socket", &socket, "check", "--json", "--config", &file];
        run(&program("tollgate"), words, b"")
    };
    let sum = |config: &str| {
        let checked = check(config);
        assert_eq!(checked.code, 0, "{checked}");
        let found = of(&checked.out, "limits");
        let is_sum =
            |sentence: &String| sentence.contains("a daemon with this configuration needs");
        let mut sums = found.into_iter().map(|(_, sentence)| sentence);
        sums.find(is_sum).unwrap()
    };
    assert_ne!(sum(""), sum("[policies]\ninstances = 20000\n"));
    let refused = check("[policies]\ninstances = 0\n");
    assert_eq!(refused.code, 9, "{refused}");
    let [(verdict, sentence)] = &of(&refused.out, "config")[..] else {
        panic!("{refused}");
    };
    assert_eq!(verdict, "failed");
    assert!(sentence.contains("policies.instances"), "{sentence}");
}
