//! The life cycle of policies as operators see it: versions on trial, roll-backs without
//! disruption, the provider's policies, the audit log, and every error of the command line.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use serde_json::Value;
use tollgate_conformance::process::{Process, program};
use tollgate_conformance::testbed::{
    Daemon, Options, Outcome, SOON, Testbed, eventually, policy_file, run,
};
use tollgate_conformance::wasm::{with_manifest, with_memory};

const RESERVE: &str = "hotel.Reservation/Reserve";

/// One daemon with a server and a caller of tenant `acme`.
struct Host {
    bed: Testbed,
    daemon: Daemon,
    token: String,
    _server: Process,
}

impl Host {
    fn new() -> Host {
        Host::with(&Options::default())
    }

    fn with(options: &Options) -> Host {
        let bed = Testbed::new();
        let daemon = bed.daemon_with("a", options);
        let token = daemon.tenant("acme");
        let _server = serve(&daemon, &token);
        Host {
            bed,
            daemon,
            token,
            _server,
        }
    }

    /// Runs a line of the command line, split at spaces.
    fn run(&self, line: &str) -> Outcome {
        self.daemon.run(line)
    }

    /// A command that must succeed; returns its output.
    #[track_caller]
    fn ok(&self, line: &str) -> String {
        self.daemon.ok(line)
    }

    /// Pushes a policy of `policies-wasm` under a name.
    #[track_caller]
    fn push(&self, owner: &str, policy: &str, name: &str, config: &str) -> String {
        let config = self.bed.file(&format!("{name}.config"), config);
        self.daemon.push(owner, policy, name, Some(&config))
    }

    fn book(&self, customer: &str) -> Outcome {
        book(&self.daemon, &self.token, customer)
    }

    /// Whether calls by Ada and by Mallory pass, according to `tollgate explain`.
    #[track_caller]
    fn is_explained(&self, pass: [bool; 2]) {
        for (customer, passes) in ["Ada", "Mallory"].into_iter().zip(pass) {
            let method = format!("explain --tenant acme --method {RESERVE}");
            let told = self.ok(&format!("{method} {{\"customer_name\":\"{customer}\"}}"));
            assert_eq!(told.ends_with("=> OK\n"), passes, "{told}");
        }
    }

    /// The only attachment of a policy, from `status --json`.
    fn attachment(&self, policy: &str) -> Value {
        self.daemon.attachment(policy)
    }

    /// The names of the audit log's events, oldest first.
    fn events(&self) -> Vec<String> {
        let shown = self.ok("audit show --last 1000 --json");
        let event = |line: &str| {
            let record: Value = serde_json::from_str(line).unwrap();
            record["event"].as_str().unwrap().to_owned()
        };
        shown.lines().map(event).collect()
    }
}

fn serve(daemon: &Daemon, token: &str) -> Process {
    daemon.serve_hotel(token, "hotel.Reservation", &["--reply", "{}"])
}

fn book(daemon: &Daemon, token: &str, customer: &str) -> Outcome {
    let request = format!("{{\"customer_name\": \"{customer}\"}}");
    daemon.call_hotel(token, "", RESERVE, &request)
}

/// The counts of a version of an attachment.
fn counted(attachment: &Value, version: u64, what: &str) -> u64 {
    let versions = attachment["versions"].as_array().unwrap();
    let of_it = versions.iter().find(|v| v["version"] == version);
    of_it.unwrap_or_else(|| panic!("version {version} in {attachment}"))[what]
        .as_u64()
        .unwrap()
}

fn blocks(customer: &str, message: &str) -> String {
    format!("{{\"blocked\": [\"{customer}\"], \"message\": \"{message}\"}}")
}

const AT: &str = "--tenant acme --service hotel.Reservation --side client";

#[test]
fn a_version_goes_from_shadow_over_canary_into_force_and_back() {
    let host = Host::new();
    assert_eq!(
        host.push("--tenant acme", "acl", "acl", &blocks("Mallory", "one")),
        "acl@1"
    );
    assert_eq!(
        host.push("--tenant acme", "acl", "acl", &blocks("Ada", "two")),
        "acl@2"
    );
    host.ok(&format!("policy attach acl@1 {AT}"));
    assert_eq!((host.book("Ada").code, host.book("Mallory").code), (0, 7));

    let shown = host.ok("policy upgrade acl@2 --tenant acme --mode shadow");
    assert_eq!(
        shown,
        "client hotel.Reservation/*: acl@1 decides, acl@2 on trial (shadow)\n"
    );
    assert_eq!(
        (host.book("Ada").code, host.book("Mallory").code),
        (0, 7),
        "a shadow decides nothing"
    );
    let acl = host.attachment("acl");
    assert_eq!(counted(&acl, 2, "would_deny"), 1, "{acl}");
    assert_eq!(counted(&acl, 2, "differs"), 2, "{acl}");

    host.ok("policy upgrade acl@2 --tenant acme --mode canary=50%");
    let denied = (0..40).filter(|_| host.book("Ada").code == 7).count();
    assert!(
        (1..40).contains(&denied),
        "{denied} of 40 were the canary's"
    );
    host.is_explained([true, false]);

    host.ok("policy rollback acl --tenant acme");
    host.ok("policy upgrade acl@2 --tenant acme --mode canary=100%");
    host.is_explained([false, true]);
    host.ok("policy rollback acl --tenant acme");
    host.ok("policy upgrade acl@2 --tenant acme --mode canary=50%");
    let both = ["Ada", "Mallory"].map(|who| host.book(who).code);
    assert!(both.iter().all(|code| [0, 7].contains(code)), "{both:?}");

    assert_eq!(
        host.ok("policy promote acl --tenant acme"),
        "client hotel.Reservation/*: acl@2 decides\n"
    );
    assert_eq!((host.book("Ada").code, host.book("Mallory").code), (7, 0));
    assert_eq!(
        host.ok("policy rollback acl --tenant acme"),
        "client hotel.Reservation/*: acl@1 decides\n"
    );
    assert_eq!((host.book("Ada").code, host.book("Mallory").code), (0, 7));
    let steps = [
        "tenant-add",
        "push",
        "push",
        "attach",
        "upgrade",
        "upgrade",
        "rollback",
        "upgrade",
        "rollback",
        "upgrade",
        "promote",
        "rollback",
    ];
    assert_eq!(host.events(), steps);
    assert!(
        host.ok("audit verify")
            .starts_with("12 records, not edited")
    );
}

#[test]
fn a_trial_without_a_stable_lets_the_other_calls_pass() {
    let host = Host::new();
    host.push("--tenant acme", "acl", "acl", &blocks("Ada", "no"));
    host.ok(&format!("policy attach acl@1 {AT} --mode shadow"));
    assert_eq!(host.book("Ada").code, 0);
    host.ok(&format!("policy attach acl@1 {AT} --mode canary=100%"));
    assert_eq!(host.book("Ada").code, 7);
    host.ok("policy rollback acl --tenant acme");
    assert_eq!(host.book("Ada").code, 0, "nothing decides any more");
}

/// The previous version evaluates the fault's own call: a caller can't notice the upgrade.
#[test]
fn an_upgrade_that_faults_rolls_back_by_itself_and_loses_no_call() {
    let host = Host::new();
    host.push("--tenant acme", "spin", "p", "calls 1000000");
    host.push("--tenant acme", "spin", "p", "calls 3");
    host.ok(&format!("policy attach p@1 {AT}"));
    let shown = host.ok("policy upgrade p@2 --tenant acme");
    let trial = "on trial (canary 100%, promoted after 60 s without a failure)";
    assert_eq!(
        shown,
        format!("client hotel.Reservation/*: p@2 decides {trial}, instead of p@1\n")
    );
    for call in 0..8 {
        let outcome = host.book("Ada");
        assert_eq!(outcome.code, 0, "call {call}: {outcome}");
    }
    eventually(SOON, || host.attachment("p")["candidate"].is_null()).unwrap();
    let after = host.attachment("p");
    assert_eq!(
        (&after["stable"], counted(&after, 2, "faults")),
        (&Value::from(1), 1),
        "{after}"
    );
    assert_eq!(counted(&after, 2, "allowed"), 3, "{after}");
    assert_eq!(counted(&after, 1, "allowed"), 5, "{after}");
    let record = host.ok("audit show --last 1");
    for word in [" daemon: rollback", "\"version\":2", "budget"] {
        assert!(record.contains(word), "{word} is missing: {record}");
    }
}

#[test]
fn a_probation_ends_in_promotion_also_after_a_restart() {
    let durable = Options {
        durable: true,
        ..Options::default()
    };
    let mut host = Host::with(&durable);
    for _ in 0..3 {
        host.push("--tenant acme", "null", "p", "");
    }
    host.ok(&format!("policy attach p@1 {AT}"));
    host.ok("policy upgrade p@2 --tenant acme --probation 100ms");
    eventually(SOON, || host.attachment("p")["stable"] == 2).unwrap();
    assert!(host.ok("audit show --last 1").contains(" daemon: promote"));

    // It isn't over when the next daemon starts.
    host.ok("policy upgrade p@3 --tenant acme --probation 8s");
    host.daemon.process().kill();
    host.daemon = host.bed.daemon_with("a", &durable);
    let restarted = host.attachment("p");
    assert_eq!(
        (&restarted["stable"], &restarted["candidate"]["version"]),
        (&Value::from(2), &Value::from(3))
    );
    eventually(SOON, || host.attachment("p")["stable"] == 3).unwrap();
    assert_eq!(host.attachment("p")["previous"], 2);
}

/// The denial that a caller gets shows which policy was evaluated first.
#[test]
fn the_providers_policies_enclose_those_of_every_tenant() {
    let host = Host::new();
    let evil = host.daemon.tenant("evil");
    let _evil_server = serve(&host.daemon, &evil);
    host.push("--provider", "acl", "guard", &blocks("Mallory", "said pre"));
    host.push(
        "--provider",
        "acl",
        "guard",
        &blocks("Mallory", "said post"),
    );
    host.push(
        "--tenant acme",
        "acl",
        "guard",
        &blocks("Mallory", "said tenant"),
    );
    host.ok("policy attach guard@2 --provider --post --side client");
    host.ok(&format!("policy attach guard@1 {AT}"));
    host.ok("policy attach guard@1 --provider --pre --side client");
    let says = |token: &str, word: &str| {
        let denied = book(&host.daemon, token, "Mallory");
        assert!(
            denied.code == 7 && denied.err.contains(word),
            "{word}: {denied}"
        );
        assert_eq!(book(&host.daemon, token, "Ada").code, 0);
    };
    says(&host.token, "said pre");
    says(&evil, "said pre");
    host.ok("policy detach guard --provider --pre");
    says(&host.token, "said tenant");
    says(&evil, "said post");
    host.ok("policy detach guard --tenant acme");
    says(&host.token, "said post");
    let listed = host.ok("policy list");
    assert!(listed.contains("(provider)  guard@2"), "{listed}");
    assert!(
        listed.contains("client */* of tenant * (provider-post)"),
        "{listed}"
    );
    host.ok("policy detach guard --provider");
    assert_eq!(host.book("Mallory").code, 0);
}

#[test]
fn a_tenant_learns_nothing_of_a_providers_policy_that_fails() {
    let host = Host::new();
    host.push("--provider", "spin", "inspector", "");
    host.ok("policy attach inspector@1 --provider --side client --on-fault closed");
    for _ in 0..3 {
        let refused = host.book("Ada");
        assert_eq!(refused.code, 13, "{refused}");
        assert!(
            refused.err.contains("the call was refused by the provider"),
            "{refused}"
        );
        for word in ["inspector", "spin", "fuel", "@1"] {
            assert!(!refused.err.contains(word), "{word}: {refused}");
        }
    }
    let seen = host.attachment("inspector");
    assert_eq!(
        counted(&seen, 1, "faults"),
        1,
        "closed: no fresh instance came: {seen}"
    );
    host.ok("policy attach inspector@1 --provider --side client --on-fault open");
    for _ in 0..3 {
        assert_eq!(host.book("Ada").code, 0, "open: not evaluated");
    }
}

#[test]
fn a_policy_that_keeps_failing_is_quarantined_until_it_is_released() {
    let durable = Options {
        durable: true,
        ..Options::default()
    };
    let mut host = Host::with(&durable);
    host.push("--tenant acme", "spin", "p", "");
    host.ok(&format!("policy attach p@1 {AT}"));
    let quarantined = |host: &Host| {
        let refused = host.book("Ada");
        assert_eq!(refused.code, 13, "{refused}");
        host.attachment("p")["quarantine"].is_string()
    };
    eventually(SOON, || quarantined(&host)).unwrap();
    let before = counted(&host.attachment("p"), 1, "faults");
    assert_eq!(before, 5, "{}", host.attachment("p"));
    for _ in 0..10 {
        host.book("Ada");
    }
    assert_eq!(
        counted(&host.attachment("p"), 1, "faults"),
        before,
        "it isn't run any more"
    );
    assert!(host.events().iter().any(|event| event == "quarantine"));
    host.daemon.process().kill();
    host.daemon = host.bed.daemon_with("a", &durable);
    assert!(
        host.attachment("p")["quarantine"].is_string(),
        "a restart is no pardon"
    );
    let released = host.ok("policy release p --tenant acme");
    assert_eq!(released, "client hotel.Reservation/*: p@1 decides\n");
    assert_eq!(counted(&host.attachment("p"), 1, "faults"), 0);
}

#[test]
fn recorded_calls_show_what_another_version_would_decide() {
    let host = Host::new();
    host.push("--tenant acme", "acl", "acl", &blocks("Mallory", "one"));
    host.push("--tenant acme", "acl", "acl", &blocks("Ada", "two"));
    host.push("--tenant acme", "null", "acl", "");
    host.ok(&format!("policy attach acl@1 {AT}"));
    let none = host.run("policy diff acl@1 acl@2 --tenant acme");
    assert!(
        none.code == 9 && none.err.contains("attach it with --record N"),
        "{none}"
    );
    host.ok(&format!("policy attach acl@1 {AT} --record 100"));
    for customer in ["Ada", "Mallory", "Bob", "Ada"] {
        host.book(customer);
    }
    let same = host.run("policy diff acl@1 acl@1 --tenant acme");
    assert_eq!(
        (same.code, same.out.as_str()),
        (0, "0 of 4 recorded decisions change\n"),
        "{same}"
    );
    let changed = host.run("policy diff acl@1 acl@2 --tenant acme --last 3");
    let denied = |before: &str, after: &str, who: &str| {
        format!(
            "request hotel.Reservation/Reserve: {before} -> {after}  {{\"customer_name\":\"{who}\"}}\n"
        )
    };
    let expected = denied("deny 7 \"one\"", "allow", "Mallory")
        + &denied("allow", "deny 7 \"two\"", "Ada")
        + "2 of 3 recorded decisions change\n";
    assert_eq!((changed.code, changed.out), (9, expected));
    let json = host.run("policy diff acl@1 acl@2 --tenant acme --json");
    let json: Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(
        (&json["replayed"], &json["changed"]),
        (&Value::from(4), &Value::from(3))
    );
    // A module without a hook for that method lets every call pass.
    let other = host.run("policy diff acl@1 acl@3 --tenant acme");
    assert!(
        other.out.ends_with("1 of 4 recorded decisions change\n"),
        "{other}"
    );
    // A module with other fields can't see the recorded ones.
    let manifest = r#"{"abi": 1, "name": "acl", "hooks": ["request"], "counters": ["denied"],
        "methods": [{"method": "hotel.Reservation/Reserve", "fields": []}]}"#;
    let acl = std::fs::read(policy_file("acl")).unwrap();
    let module = host
        .bed
        .file("other.wasm", with_manifest(&acl, Some(manifest)));
    let config = host.bed.file("any.config", blocks("Ada", "no"));
    let (module, config) = (module.display(), config.display());
    host.ok(&format!(
        "policy push {module} --tenant acme --name acl --config {config}"
    ));
    let unfit = host.run("policy diff acl@1 acl@4 --tenant acme");
    let words = "they show [customer_name] of hotel.Reservation/Reserve at the request hook, but acl@4 declares []";
    assert!(unfit.code == 9 && unfit.err.contains(words), "{unfit}");
    let names = host.run("policy diff acl@1 other@2 --tenant acme");
    assert!(
        names
            .err
            .contains("acl and other aren't two versions of one policy"),
        "{names}"
    );
}

#[test]
fn everything_survives_a_restart_and_the_log_tells_all_of_it() {
    let durable = Options {
        durable: true,
        ..Options::default()
    };
    let mut host = Host::with(&durable);
    host.push("--tenant acme", "acl", "acl", &blocks("Mallory", "one"));
    host.push("--tenant acme", "acl", "acl", &blocks("Ada", "two"));
    host.push("--provider", "null", "watch", "");
    host.ok(&format!("policy attach acl@1 {AT} --on-fault open --cpu-us 50 --record 9 --fields customer_name --fresh"));
    host.ok("policy upgrade acl@2 --tenant acme --mode shadow");
    host.ok("policy attach watch@1 --provider --tenant acme --service hotel.Reservation --post --side server");
    let shown = |host: &Host| {
        let shown: Value =
            serde_json::from_str(&host.ok("policy show acl --tenant acme --json")).unwrap();
        let mut attachment = shown["attachments"][0].clone();
        attachment["versions"] = Value::Null;
        (
            attachment,
            shown["manifest"].clone(),
            shown["versions"].clone(),
        )
    };
    let before = shown(&host);
    assert_eq!(before.0["options"]["on_fault"], "open");
    assert_eq!(before.0["options"]["cpu_us"], 50);
    assert_eq!(before.1["methods"][0]["fields"][0], "customer_name");
    assert_eq!(before.2, serde_json::json!([1, 2]));
    let head = host.ok("audit head").trim().to_owned();
    host.daemon.process().kill();
    host.daemon = host.bed.daemon_with("a", &durable);
    assert_eq!(shown(&host), before);
    host._server = serve(&host.daemon, &host.token);
    assert_eq!(host.book("Mallory").code, 7);
    assert_eq!(host.ok("audit head").trim(), head);
    assert!(host.ok("audit verify").starts_with("7 records, not edited"));

    let state = host.bed.path("a.state");
    let offline = |args: &[&str]| {
        run(
            &program("tollgate"),
            [&["audit", "verify"], args].concat(),
            b"",
        )
    };
    let in_use = offline(&["--state", &state.display().to_string()]);
    assert!(
        in_use.code == 9 && in_use.err.contains("another daemon uses"),
        "{in_use}"
    );
    let log = state.join("audit.jsonl").display().to_string();
    let verified = offline(&["--file", &log, "--head", &head]);
    assert_eq!(verified.code, 0, "{verified}");
    host.daemon.process().kill();
    let verified = offline(&["--state", &state.display().to_string()]);
    assert_eq!(verified.code, 0, "{verified}");

    let text = std::fs::read_to_string(&log).unwrap();
    let check = |edited: String, line: u64| {
        std::fs::write(&log, edited).unwrap();
        let found = offline(&["--state", &state.display().to_string()]);
        assert_eq!(found.code, 15, "{found}");
        assert!(found.err.contains(&format!("line {line}: ")), "{found}");
    };
    check(
        text.replacen("\"on_fault\":\"open\"", "\"on_fault\":\"closed\"", 1),
        5,
    );
    let lines: Vec<&str> = text.lines().collect();
    check(
        lines[..6].iter().map(|line| format!("{line}\n")).collect(),
        7,
    );
    let last = lines[6];
    std::fs::write(&log, text.replace(&format!("{last}\n"), "")).unwrap();
    host.daemon = host.bed.daemon_with("a", &durable);
    assert!(
        host.ok("audit show --last 1").contains("healed"),
        "the daemon had a copy of the last record"
    );
    assert!(host.ok("audit verify").starts_with("8 records, not edited"));
}

#[test]
fn an_edited_log_is_found_by_the_running_daemon() {
    let durable = Options {
        durable: true,
        ..Options::default()
    };
    let host = Host::with(&durable);
    host.ok("tenant add other");
    let log = host.bed.path("a.state").join("audit.jsonl");
    let text = std::fs::read_to_string(&log).unwrap();
    std::fs::write(&log, text.replace("other", "0ther")).unwrap();
    let found = host.run("audit verify");
    assert!(
        found.code == 15
            && found
                .err
                .contains("line 2: its hash isn't that of its bytes"),
        "{found}"
    );
}

#[test]
fn without_a_state_directory_the_log_says_that_it_is_in_memory() {
    let host = Host::new();
    let shown = host.ok("audit show");
    assert!(shown.contains("kept in memory only"), "{shown}");
    assert!(host.ok("audit verify").starts_with("1 records, not edited"));
}

/// A daemon whose policies have too little memory for the newest version runs the previous one, and
/// reports it.
#[test]
fn a_version_that_cannot_be_loaded_at_the_start_leaves_its_place_to_the_one_before() {
    let bed = Testbed::new();
    let start = |memory_kib: u32| {
        let options = Options {
            durable: true,
            config: format!("[policies]\nmemory_kib = {memory_kib}\n"),
            ..Options::default()
        };
        bed.daemon_with("a", &options)
    };
    let daemon = start(4_096);
    let token = daemon.tenant("acme");
    let acl = std::fs::read(policy_file("acl")).unwrap();
    let large = bed.file("large.wasm", with_memory(&acl, 48));
    let config = |who: &str| bed.file(&format!("{who}.json"), blocks(who, "no"));
    daemon.push("--tenant acme", "acl", "acl", Some(&config("Mallory")));
    daemon.ok(&format!(
        "policy push {} --tenant acme --name acl --config {}",
        large.display(),
        config("Ada").display()
    ));
    for version in [1, 2] {
        daemon.ok(&format!("policy attach acl@{version} {AT}"));
    }
    drop(daemon);

    let daemon = start(2_048);
    let _server = serve(&daemon, &token);
    let found = daemon.attachment("acl");
    assert_eq!(
        (&found["stable"], &found["fallback"]["running"]),
        (&Value::from(2), &Value::from(1))
    );
    assert!(
        found["fallback"]["why"]
            .as_str()
            .unwrap()
            .contains("acl@2 couldn't be loaded"),
        "{found}"
    );
    assert_eq!(
        ["Ada", "Mallory"].map(|who| book(&daemon, &token, who).code),
        [0, 7]
    );
    assert!(
        daemon
            .ok("audit show --last 1")
            .contains("daemon: load-failed")
    );
    drop(daemon);

    let daemon = start(4_096);
    let _server = serve(&daemon, &token);
    assert_eq!(
        ["Ada", "Mallory"].map(|who| book(&daemon, &token, who).code),
        [7, 0],
        "what is stored is tried again"
    );
}

/// A former version would be shown what it wasn't granted.
#[test]
fn a_rollback_goes_back_only_under_the_same_grants() {
    let host = Host::new();
    host.push("--tenant acme", "acl", "acl", &blocks("Mallory", "one"));
    host.push("--tenant acme", "acl", "acl", &blocks("Ada", "two"));
    let attach = |version: u32, options: &str| {
        host.ok(&format!("policy attach acl@{version} {AT} {options}"));
        host.run("policy rollback acl --tenant acme")
    };
    host.ok(&format!("policy attach acl@1 {AT} --grant state"));
    for options in ["--grant state,change", "--grant log"] {
        let refused = attach(2, options);
        assert_eq!(refused.code, 9, "{options}: {refused}");
        assert!(refused.err.contains("no rollback is possible"), "{refused}");
        host.ok(&format!("policy attach acl@1 {AT} --grant state"));
    }
    let back = attach(2, "--grant state --cpu-us 90");
    assert_eq!(back.code, 0, "{back}");
    assert_eq!(host.attachment("acl")["stable"], 1);
}

/// Each error is one sentence with culprit and value, and has the status code that scripts see.
#[test]
fn what_makes_no_sense_is_refused_in_a_sentence() {
    let host = Host::new();
    host.push("--tenant acme", "acl", "acl", &blocks("Mallory", "one"));
    host.push("--tenant acme", "acl", "acl", &blocks("Ada", "two"));
    host.push("--tenant acme", "spin", "spin", "");
    let check = |line: &str, code: i32, words: &str| {
        let outcome = host.run(line);
        assert_eq!(outcome.code, code, "{line}: {outcome}");
        assert!(
            outcome.err.contains(words),
            "{line}: {words:?} isn't in {outcome}"
        );
        assert_eq!(outcome.err.lines().count(), 1, "{line}: {outcome}");
    };
    // Attaching.
    check(
        "policy attach acl@9 --tenant acme --service a.B --side client",
        5,
        "tenant \"acme\" has no policy acl@9",
    );
    check(
        "policy attach acl --tenant acme --service a.B --side client",
        3,
        "a version of a policy is written name@version, like acl@1",
    );
    check(
        "policy attach acl@1 --tenant nobody --service a.B --side client",
        5,
        "there is no tenant \"nobody\"",
    );
    check(
        "policy attach acl@1 --tenant acme --service a.B --side client",
        3,
        "policy acl@1 is for hotel.Reservation/Reserve, not for a.B",
    );
    check(
        &format!("policy attach acl@1 {AT} --method Nothing"),
        3,
        "not for hotel.Reservation/Nothing",
    );
    check(
        &format!("policy attach acl@1 {AT} --cpu-us 4"),
        3,
        "cpu-us 4 is out of range: 5 to 10000 are allowed",
    );
    check(
        &format!("policy attach acl@1 {AT} --record 10001"),
        3,
        "record 10001 is out of range",
    );
    check(
        &format!("policy attach acl@1 {AT} --max-worse 101"),
        3,
        "max-worse 101 is out of range",
    );
    check(
        &format!("policy attach acl@1 {AT} --grant time"),
        3,
        "--grant time: there is no capability \"time\"",
    );
    check(
        &format!("policy attach acl@1 {AT} --hooks reply"),
        3,
        "--hooks reply: policy acl@1 declares the hooks request",
    );
    check(
        &format!("policy attach acl@1 {AT} --fields nights"),
        3,
        "--fields nights: policy acl@1 doesn't declare that field",
    );
    check(
        &format!("policy attach acl@1 {AT} --mode canary=0%"),
        3,
        "canary=N%",
    );
    check(
        "policy attach acl@1 --provider --side client",
        5,
        "the provider has no policy acl@1",
    );
    check(&format!("policy attach acl@1 {AT} --post"), 3, "--provider");
    // Steps.
    check(
        "policy upgrade acl@2 --tenant acme",
        5,
        "policy \"acl\" of tenant \"acme\" isn't attached at such a place",
    );
    host.ok(&format!("policy attach acl@1 {AT}"));
    let place = "at client hotel.Reservation/*, ";
    check(
        "policy upgrade acl@1 --tenant acme",
        9,
        &format!("{place}acl@1 decides already"),
    );
    check(
        "policy upgrade acl@7 --tenant acme",
        5,
        "tenant \"acme\" has no policy acl@7",
    );
    check(
        "policy upgrade acl@2 --tenant acme --mode enforce --probation 1s",
        3,
        "--mode enforce decides at once, without a probation",
    );
    check(
        "policy promote acl --tenant acme",
        9,
        &format!("{place}no version of acl is on trial"),
    );
    check(
        "policy rollback acl --tenant acme",
        9,
        &format!("{place}no version of acl is on trial and none decided before"),
    );
    check(
        &format!("policy attach acl@2 {AT} --mode shadow"),
        9,
        &format!("{place}acl@1 decides already"),
    );
    host.push("--tenant acme", "acl", "acl", "{\"blocked\": []}");
    host.ok("policy upgrade acl@2 --tenant acme --mode shadow");
    check(
        "policy upgrade acl@3 --tenant acme --mode shadow",
        9,
        &format!("{place}acl@2 is on trial already"),
    );
    check(
        "policy promote acl --tenant acme --service c.D",
        5,
        "isn't attached at such a place",
    );
    check(
        "policy release acl --tenant nobody",
        5,
        "there is no tenant \"nobody\"",
    );
    check(
        "policy detach spin --tenant acme",
        5,
        "policy \"spin\" of tenant \"acme\" isn't attached at such a place",
    );
    // Reading.
    check(
        "policy show nothing --tenant acme",
        5,
        "tenant \"acme\" has no policy nothing",
    );
    check(
        "policy show acl@9 --tenant acme",
        5,
        "tenant \"acme\" has no policy acl@9",
    );
    check("policy show acl@x --tenant acme", 3, "name@version");
    check(
        "policy diff acl@1 acl@2 --tenant acme",
        9,
        "no call of acl is recorded",
    );
    check(
        "audit show --last 1001",
        3,
        "1001 records are too many; at most 1000 can be shown",
    );
    check("audit verify --file /nowhere", 5, "/nowhere can't be read");
    let file = host.bed.file("empty.jsonl", "").display().to_string();
    check(
        &format!("audit verify --file {file} --head 7"),
        3,
        "\"7\" isn't the head of an audit log",
    );
    check(
        &format!("audit verify --file {file} --head 7:{}", "0".repeat(64)),
        15,
        "record 1 is missing",
    );
    let bytes = host.bed.file("not.wasm", "(module)").display().to_string();
    check(
        &format!("policy push {bytes} --tenant acme --name acl"),
        3,
        "module",
    );
    check(
        &format!("policy push {bytes} --provider --tenant acme --name acl"),
        3,
        "cannot be used with",
    );
    let null = policy_file("null").display().to_string();
    check(
        &format!("policy push {null} --tenant acme --name ACL"),
        3,
        "the policy",
    );
    check(
        &format!("policy push {null} --tenant nobody --name acl"),
        5,
        "there is no tenant \"nobody\"",
    );
    let refused = host
        .events()
        .iter()
        .filter(|event| *event == "attach")
        .count();
    assert_eq!(refused, 1, "what is refused isn't recorded as done");
}
