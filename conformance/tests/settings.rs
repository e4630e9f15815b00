//! Settings that change while calls run: no call is lost, each setting takes effect, and values
//! persist across a restart until they are reset.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::thread;
use std::time::Duration;

use serde_json::{Value, json};
use tollgate_admin::proto::{AttachmentOptions, Isolation};
use tollgate_conformance::admin::{Admin, Place};
use tollgate_conformance::process::{runtimes_ns, threads};
use tollgate_conformance::testbed::{Daemon, Options, SOON, Testbed, eventually, policy_file};
use tollgate_conformance::traffic::{ECHO, Traffic};

/// The number of changes of each setting while calls run.
const ROUNDS: usize = 30;

fn with(config: &str) -> Options {
    Options {
        config: config.to_owned(),
        ..Options::default()
    }
}

fn settings(daemon: &Daemon) -> Value {
    serde_json::from_str(&daemon.ok("daemon settings --json")).unwrap()
}

/// A setting's value and its source.
fn setting(daemon: &Daemon, key: &str) -> (Value, String) {
    let report = settings(daemon);
    let all = report["settings"].as_array().unwrap();
    let found = all.iter().find(|setting| setting["key"] == key).unwrap();
    let from = found["from"].as_str().unwrap().to_owned();
    (found["value"].clone(), from)
}

/// A line of `/proc/PID/status`, or of a thread's.
fn allowed_cores(status: &std::path::Path) -> String {
    let status = std::fs::read_to_string(status).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    line.unwrap().trim().to_owned()
}

/// The cores available to this process and thus to its daemons.
fn usable_cores() -> Vec<usize> {
    let list = allowed_cores("/proc/self/status".as_ref());
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        first.parse::<usize>().unwrap()..=last.parse().unwrap()
    };
    list.split(',').flat_map(range).collect()
}

/// The first and the last core; they are equal if there is only one.
fn two_cores() -> [String; 2] {
    let usable = usable_cores();
    [usable.first(), usable.last()].map(|core| core.unwrap().to_string())
}

/// Attached to the calls of a tenant.
fn in_the_daemon(tenant: &str) -> Place {
    Place::client(tenant, ECHO).with(AttachmentOptions {
        isolation: Isolation::None.into(),
        ..AttachmentOptions::default()
    })
}

/// Three tenants call continuously, through a policy: two on one host, and one across hosts.
/// (Policies in processes are late on a busy machine, whatever the settings:
/// [`policies_may_use_what_the_setting_says_from_the_next_call_on`] tests them.)
#[test]
fn no_call_is_lost_while_every_setting_changes_back_and_forth() {
    let bed = Testbed::new();
    let (a, b) = (bed.daemon("a"), bed.daemon("b"));
    let before = [settings(&a), settings(&b)];
    let traffic = [
        Traffic::start("near", &a, &a),
        Traffic::start("beside", &a, &a),
        Traffic::start("far", &a, &b),
    ];
    let [mut at_a, mut at_b] = [&a, &b].map(Admin::connect);
    let null = std::fs::read(policy_file("null")).unwrap();
    for tenant in ["near", "beside", "far"] {
        at_a.install(&in_the_daemon(tenant), "null", &null, b"");
    }
    at_b.install(&in_the_daemon("far").at_server(), "null", &null, b"");
    let [first, last] = two_cores();
    // A setting, its alternating values, and its place in the datapath's report.
    let turns: [(&str, [&str; 2], &str); 13] = [
        ("waiting", ["sleep", "spin"], "waiting"),
        ("spin_us", ["0", "10000"], "spin_us"),
        ("scheduling", ["round-robin", "fair"], "scheduling"),
        ("wait_target_us", ["1000", "0"], "wait_target_us"),
        ("cores", [&first, &last], "core"),
        ("runtimes", ["3", "0"], ""),
        ("link.window_calls", ["1", "1048576"], ""),
        ("link.window_bytes", ["33554432", "1099511627776"], ""),
        ("policies.cpu_us", ["50", "10000"], ""),
        (
            "policies.cpu_share_percent",
            ["50", "100"],
            "cpu_share_percent",
        ),
        ("policies.memory_kib", ["2048", "16384"], ""),
        ("policies.quarantine_faults", ["1", "1000"], ""),
        ("policies.quarantine_window_s", ["1", "3600"], ""),
    ];
    // In the settings' notation: a number, a word or a list of one core.
    let is = |value: &Value, text: &str| {
        let number = || text.parse::<u64>().ok().map(|number| json!(number));
        let expected = number().unwrap_or_else(|| json!(text));
        *value == expected || *value == json!([expected])
    };
    for round in 0..ROUNDS {
        for (key, values, reported) in turns {
            let value = values[round % 2];
            for admin in [&mut at_a, &mut at_b] {
                let set = admin.set(key, Some(value));
                assert!(is(&set["value"], value), "{set}");
                assert_eq!(set["from"], "run time");
                let status = admin.status();
                let in_force = &status["datapath"][0][reported];
                assert!(
                    reported.is_empty() || is(in_force, value),
                    "{key}={value}: {status}"
                );
            }
        }
        traffic.iter().for_each(Traffic::assert_flows);
    }
    for (key, _, _) in turns {
        for admin in [&mut at_a, &mut at_b] {
            admin.set(key, None);
        }
    }
    traffic.iter().for_each(Traffic::assert_flows);
    assert_eq!([settings(&a), settings(&b)], before);
}

/// A spinning runtime may still sleep on a core that other processes want as well, but it needn't
/// sleep between two commands.
#[test]
fn a_runtime_sleeps_or_looks_for_work_as_it_is_told() {
    const COMMANDS: u64 = 20;
    let bed = Testbed::new();
    let mut daemon = bed.daemon_with("a", &with("waiting = 'sleep'"));
    let pid = daemon.process().pid();
    let mut admin = Admin::connect(&daemon);
    let slept = |admin: &mut Admin| admin.status()["datapath"][0]["sleeps"].as_u64().unwrap();
    for _ in 0..3 {
        let before = slept(&mut admin);
        eventually(SOON, || slept(&mut admin) >= before + COMMANDS).unwrap();
        let stands_still = || {
            let before = runtimes_ns(pid);
            thread::sleep(Duration::from_millis(50));
            runtimes_ns(pid) == before
        };
        eventually(SOON, stands_still).unwrap();
        let looks = || {
            admin.set("waiting", Some("spin"));
            let looks = slept(&mut admin) == slept(&mut admin);
            admin.set("waiting", None);
            looks
        };
        eventually(SOON, looks).unwrap();
    }
}

#[test]
fn runtimes_move_to_other_cores_and_become_as_many_as_there_are() {
    let bed = Testbed::new();
    let [first, last] = two_cores();
    let cores = |daemon: &mut Daemon| {
        let mut all = threads(daemon.process().pid());
        all.retain(|(name, _)| name.starts_with("runtime-"));
        all.sort();
        let of = |(_, task): &(String, std::path::PathBuf)| allowed_cores(&task.join("status"));
        all.iter().map(of).collect::<Vec<_>>()
    };
    let mut two = bed.daemon_with(
        "two",
        &Options {
            cores: Some(format!("{first},{last}")),
            ..Options::default()
        },
    );
    assert_eq!(setting(&two, "cores").1, "command line");
    for _ in 0..3 {
        two.ok(&format!("daemon set cores={last},{first}"));
        assert_eq!(cores(&mut two), [&*last, &first]);
        two.ok("daemon reset cores");
        assert_eq!(cores(&mut two), [&*first, &last]);
    }
    two.ok(&format!("daemon set cores={first}"));
    assert_eq!(cores(&mut two), [&*first], "the others are gone");
    two.ok(&format!("daemon set cores={last},{first},{last}"));
    assert_eq!(cores(&mut two), [&*last, &first, &last]);
    two.ok("daemon reset cores");
    assert_eq!(cores(&mut two), [&*first, &last]);
    let refused = two.run("daemon set spin_us=1 cores=1023");
    assert_eq!(refused.code, 3, "{}", refused.err);
    assert_eq!(setting(&two, "spin_us"), (json!(50), "default".to_owned()));

    let mut one = bed.daemon("one");
    let everywhere = allowed_cores("/proc/self/status".as_ref());
    one.ok(&format!("daemon set cores={last}"));
    assert_eq!(cores(&mut one), [&*last]);
    assert_eq!(one.status()["datapath"][0]["core"].to_string(), last);
    one.ok("daemon set cores=none");
    assert_eq!(cores(&mut one), [&*everywhere]);
    assert_eq!(one.status()["datapath"][0]["core"], Value::Null);
    // A core that no machine has.
    let refused = one.run("daemon set cores=1023");
    let usable: Vec<String> = usable_cores().iter().map(usize::to_string).collect();
    let usable = usable.join(",");
    let sentence =
        format!("tollgate: INVALID_ARGUMENT: cores = 1023: this daemon may use {usable}\n");
    assert_eq!((refused.code, refused.err), (3, sentence));
}

/// A policy that needs more than 5 us and less than 10 ms, in the daemon, with an instance per
/// call, and in a process.
#[test]
fn policies_may_use_what_the_setting_says_from_the_next_call_on() {
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let works = bed.file("works", "work 50000");
    for isolation in ["none", "process"] {
        for fresh in ["false", "true"] {
            let tenant = format!("{isolation}-{fresh}");
            let token = daemon.tenant(&tenant);
            let owner = format!("--tenant {tenant}");
            let _server = daemon.serve_hotel(&token, ECHO, &["--echo"]);
            let version = daemon.push(&owner, "spin", "spin", Some(&works));
            daemon.ok(&format!(
                "policy attach {version} {owner} --service {ECHO} --side client --isolation {isolation} --fresh {fresh}"
            ));
            let passes = || daemon.call_hotel(&token, "", "hotel.Echo/Echo", "{}").code == 0;
            for _ in 0..2 {
                // Faults end an instance, and a fresh one comes after a pause; too many faults
                // would end them all.
                daemon.ok("daemon set policies.cpu_us=10000 policies.quarantine_faults=1000");
                eventually(SOON, passes).unwrap_or_else(|_| panic!("{tenant}: nothing passes"));
                // A process that answers late because of the machine is replaced.
                let again = match isolation {
                    "process" => eventually(SOON, passes).is_ok(),
                    _ => passes(),
                };
                assert!(again, "{tenant}");
                daemon.ok("daemon set policies.cpu_us=5");
                assert!(!passes(), "{tenant}: 5 us are enough");
            }
            let quarantine = || {
                let status = daemon.status();
                let all = status["attachments"].as_array().unwrap();
                let of_it = all
                    .iter()
                    .find(|attachment| attachment["tenant"] == *tenant);
                of_it.unwrap()["quarantine"].is_string()
            };
            assert!(!quarantine());
            daemon.ok("daemon set policies.quarantine_faults=1");
            eventually(SOON, || !passes() && quarantine()).unwrap();
            daemon.ok("daemon reset policies.quarantine_faults policies.cpu_us");
        }
    }
}

/// An attachment's own value overrides the setting.
#[test]
fn an_attachment_that_says_what_its_policy_may_use_keeps_that() {
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let token = daemon.tenant("acme");
    let _server = daemon.serve_hotel(&token, ECHO, &["--echo"]);
    let works = bed.file("works", "work 50000");
    let version = daemon.push("--tenant acme", "spin", "spin", Some(&works));
    daemon.ok(&format!(
        "policy attach {version} --tenant acme --service {ECHO} --side client --cpu-us 10000"
    ));
    for cpu_us in [5, 10_000, 5] {
        daemon.ok(&format!("daemon set policies.cpu_us={cpu_us}"));
        let outcome = daemon.call_hotel(&token, "", "hotel.Echo/Echo", "{}");
        assert_eq!(outcome.code, 0, "{outcome}");
    }
}

#[test]
fn shares_and_memory_of_policies_change() {
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let traffic = Traffic::start("acme", &daemon, &daemon);
    let null = std::fs::read(policy_file("null")).unwrap();
    let mut admin = Admin::connect(&daemon);
    let place = in_the_daemon("acme");
    admin.install(&place, "null", &null, b"");
    traffic.assert_flows();
    for (set, share) in [(Some("90"), 90), (None, 25), (Some("100"), 100)] {
        admin.set("policies.cpu_share_percent", set);
        let status = admin.status();
        assert_eq!(status["accounts"][0]["share_percent"], share, "{status}");
    }
    admin.set("policies.memory_kib", Some("64"));
    let refused = admin.push(&place, "large", &null, None);
    assert!(refused.is_err(), "a policy in Rust needs 1,200 KiB");
    traffic.assert_flows();
    admin.set("policies.memory_kib", None);
    admin.install(&place, "large", &null, b"");
    traffic.assert_flows();
}

#[test]
fn a_window_changes_of_links_that_are_there() {
    let bed = Testbed::new();
    let (a, b) = (bed.daemon("a"), bed.daemon("b"));
    let traffic = Traffic::start("acme", &a, &b);
    let credit_is = |calls: std::ops::RangeInclusive<u64>| {
        let credit = || a.status()["links"][0]["credit_calls"].as_u64().unwrap();
        eventually(SOON, || calls.contains(&credit())).unwrap();
    };
    for _ in 0..3 {
        b.ok("daemon set link.window_calls=20000");
        assert_eq!(b.status()["links"][0]["window_calls"], 20_000);
        credit_is(16_385..=20_000);
        b.ok("daemon set link.window_calls=4");
        assert_eq!(b.status()["links"][0]["window_calls"], 4);
        // Calls use up the peer's earlier credit.
        credit_is(0..=4);
        traffic.assert_flows();
        b.ok("daemon reset link.window_calls");
        credit_is(8_192..=16_384);
    }
}

#[test]
fn what_is_no_value_is_refused_with_one_sentence_and_nothing_changes() {
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let before = settings(&daemon);
    let head = daemon.ok("audit head");
    for (words, sentence) in [
        ("spin_us=10001", "spin_us = 10001: 0 to 10000"),
        (
            "waiting=seldom",
            "waiting = seldom: adaptive, spin or sleep",
        ),
        ("scheduling=", "scheduling = : fair or round-robin"),
        (
            "wait_target_us=99",
            "wait_target_us = 99: 0 (off), or 100 to 1000000",
        ),
        ("policies.cpu_us=4", "policies.cpu_us = 4: 5 to 10000"),
        (
            "policies.cpu_share_percent=0",
            "policies.cpu_share_percent = 0: 1 to 100",
        ),
        ("link.window_calls=0", "link.window_calls = 0: 1 to 1048576"),
        (
            "link.window_bytes=1",
            "link.window_bytes = 1: 33554432 to 1099511627776",
        ),
        (
            "cores=one",
            "cores = one: at most 64 entries below 1024, or none",
        ),
        (
            "policies.memory_kib=65",
            "policies.memory_kib is named twice",
        ),
    ] {
        // The first is valid, and isn't set either.
        let outcome = daemon.run(&format!("daemon set policies.memory_kib=64 {words}"));
        let said = format!("tollgate: INVALID_ARGUMENT: {sentence}\n");
        assert_eq!((outcome.code, outcome.err), (3, said), "{words}");
    }
    for line in ["daemon set listen=127.0.0.1:1", "daemon reset listen"] {
        let outcome = daemon.run(line);
        let begins = "tollgate: INVALID_ARGUMENT: \"listen\" can't be changed while the daemon runs; cores, runtimes, waiting, ";
        assert!(
            outcome.code == 3 && outcome.err.starts_with(begins),
            "{outcome}"
        );
    }
    assert_eq!(settings(&daemon), before);
    assert_eq!(
        daemon.ok("audit head"),
        head,
        "and there is nothing to tell"
    );
}

#[test]
fn what_was_set_is_there_after_a_restart_until_it_is_reset() {
    let bed = Testbed::new();
    let [first, last] = two_cores();
    let options = Options {
        durable: true,
        cores: Some(first.clone()),
        ..with("spin_us = 7\nscheduling = 'round-robin'\n[policies]\ncpu_us = 60\n")
    };
    let mut daemon = bed.daemon_with("a", &options);
    let is = |daemon: &Daemon, expected: [(&str, Value, &str); 5]| {
        for (key, value, from) in expected {
            assert_eq!(setting(daemon, key), (value, from.to_owned()), "{key}");
        }
    };
    let core = |text: &str| json!([text.parse::<usize>().unwrap()]);
    let configured = [
        ("spin_us", json!(7), "file"),
        ("scheduling", json!("round-robin"), "file"),
        ("policies.cpu_us", json!(60), "file"),
        ("cores", core(&first), "command line"),
        ("waiting", json!("adaptive"), "default"),
    ];
    is(&daemon, configured.clone());
    let shown = daemon.ok(&format!(
        "daemon set spin_us=9 scheduling=fair policies.cpu_us=70 cores={last} waiting=sleep"
    ));
    assert!(
        shown.contains("spin_us=9  run time, otherwise 7\n"),
        "{shown}"
    );
    let set = [
        ("spin_us", json!(9), "run time"),
        ("scheduling", json!("fair"), "run time"),
        ("policies.cpu_us", json!(70), "run time"),
        ("cores", core(&last), "run time"),
        ("waiting", json!("sleep"), "run time"),
    ];
    is(&daemon, set.clone());
    let in_force = |daemon: &Daemon| {
        let mut datapath = daemon.status()["datapath"][0].clone();
        datapath["sleeps"] = Value::Null;
        datapath
    };
    let before = in_force(&daemon);
    daemon.process().kill();
    daemon = bed.daemon_with("a", &options);
    is(&daemon, set);
    assert_eq!(in_force(&daemon), before);
    daemon.ok("daemon reset spin_us scheduling policies.cpu_us cores waiting");
    is(&daemon, configured.clone());
    assert_eq!(in_force(&daemon)["spin_us"], 7);
    daemon.process().kill();
    daemon = bed.daemon_with("a", &options);
    is(&daemon, configured);
    let log = daemon.ok("audit show --json");
    let records = log.lines().map(serde_json::from_str);
    let records: Vec<Value> = records.collect::<Result<_, _>>().unwrap();
    let events: Vec<_> = records.iter().map(|record| &record["event"]).collect();
    assert_eq!(events, ["set", "reset"]);
    let (set, reset) = (&records[0]["details"], &records[1]["details"]);
    assert_eq!(set["spin_us"], json!({"from": "7", "to": "9"}));
    assert_eq!(reset["waiting"], json!({"from": "sleep", "to": "adaptive"}));
    assert!(
        daemon
            .ok("audit verify")
            .starts_with("2 records, not edited")
    );
}

/// The number of runtimes is a setting, too: a run-time value of one core overrides a configuration
/// of two, until it is reset.
#[test]
fn cores_that_were_set_override_a_configuration_with_another_number_of_them() {
    let bed = Testbed::new();
    let [first, last] = two_cores();
    let options = |cores: String| Options {
        durable: true,
        cores: Some(cores),
        ..Options::default()
    };
    let mut daemon = bed.daemon_with("a", &options(first.clone()));
    daemon.ok(&format!("daemon set cores={last}"));
    daemon.process().kill();
    daemon = bed.daemon_with("a", &options(format!("{first},{last}")));
    assert_eq!(daemon.status()["runtimes"], 1);
    let set = json!([last.parse::<usize>().unwrap()]);
    assert_eq!(setting(&daemon, "cores"), (set, "run time".to_owned()));
    assert_eq!(settings(&daemon)["unused"], json!([]));
    daemon.ok("daemon reset cores");
    assert_eq!(daemon.status()["runtimes"], 2);
    assert_eq!(setting(&daemon, "cores").1, "command line");
}
