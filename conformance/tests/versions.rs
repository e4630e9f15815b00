//! Versions whose trial fails, whose state can't be handed over, that run on several runtimes, or
//! that are compiled again: an operator's view of them, through real daemons.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tollgate::{Code, Session, SessionOptions, Status, block_on};
use tollgate_conformance::admin::{Admin, Place};
use tollgate_conformance::module::{BUFFER, Module};
use tollgate_conformance::testbed::{Daemon, Options, SOON, Testbed, eventually, policy_file};
use tollgate_conformance::traffic::{ECHO, echo_block, hotel};

/// An application of a tenant that calls its own echo server.
struct App {
    session: Session,
    handle: u32,
    request: Vec<u8>,
}

impl App {
    fn new(daemon: &Daemon, token: String) -> App {
        let session = Session::open(SessionOptions::new(daemon.socket(), token)).unwrap();
        let schema = hotel();
        let echo = |_, request: &[u8]| Ok(request.to_vec());
        block_on(
            &session,
            session.serve_raw(schema.descriptor_set(), ECHO, echo),
        )
        .unwrap();
        let bound = block_on(
            &session,
            session.bind_client(schema.descriptor_set(), ECHO, ""),
        );
        let handle = bound.unwrap().handle("Echo").unwrap();
        App {
            session,
            handle,
            request: echo_block(&schema, "Y2FsbA=="),
        }
    }

    /// `ok`, or the status.
    fn call(&self) -> String {
        let timeout = Some(Duration::from_secs(20));
        let call = self.session.call_raw(self.handle, &self.request, timeout);
        match block_on(&self.session, call) {
            Ok(_) => "ok".to_owned(),
            Err(status) => status.to_string(),
        }
    }
}

fn injecting(percent: u32) -> Vec<u8> {
    format!("{{\"percent\": {percent}, \"status\": 10, \"message\": \"injected\"}}").into_bytes()
}

/// It works without faults, and denies more than the previous version: that suffices.
#[test]
fn a_canary_that_errs_more_often_is_rolled_back_by_itself() {
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let mut admin = Admin::connect(&daemon);
    let app = App::new(&daemon, admin.tenant("acme"));
    let fault = std::fs::read(policy_file("fault_injection")).unwrap();
    let place = Place::client("acme", ECHO).granting(&["delay"]);
    admin.install(&place, "f", &fault, &injecting(0));
    // 10 % more of its calls fail; 5 percentage points are tolerated.
    admin
        .push(&place, "f", &fault, Some(&injecting(10)))
        .unwrap();
    daemon.ok("policy upgrade f@2 --tenant acme --mode canary=50%");
    let mut injected = 0;
    let mut on_trial = true;
    for _ in 0..5_000 {
        match app.call().as_str() {
            "ok" => {}
            text if text.contains("injected") => injected += 1,
            other => panic!("{other}"),
        }
        on_trial = daemon.attachment("f")["candidate"] != Value::Null;
        if !on_trial {
            break;
        }
    }
    assert!(
        !on_trial,
        "{injected} of 5,000 calls were denied, and it is still on trial"
    );
    assert!(injected > 0);
    let now = daemon.attachment("f");
    assert_eq!(
        (&now["stable"], &now["candidate"]),
        (&Value::from(1), &Value::Null),
        "{now}"
    );
    // It takes 200 evaluations of each.
    let versions = now["versions"].as_array().unwrap();
    let first = versions.iter().find(|v| v["version"] == 1).unwrap();
    assert!(first["allowed"].as_u64().unwrap() >= 200, "{now}");
    let last = daemon.ok("audit show --last 1");
    assert!(last.contains("daemon: rollback"), "{last}");
    for _ in 0..50 {
        assert_eq!(
            app.call(),
            "ok",
            "the version before decides all calls again"
        );
    }
}

/// A policy that hands over a word, and accepts one or refuses it.
fn stateful(restore: &str) -> Vec<u8> {
    let module = Module {
        manifest: r#""state":{"version":1},"#.to_owned(),
        rest: format!(
            r#"(func (export "tollgate_save") (result i64) (i64.const 0x800000400))
               (func (export "tollgate_restore") (param i32 i32) (result i32) {restore})"#
        ),
        ..Module::default()
    };
    module.wasm()
}

#[test]
fn an_upgrade_whose_state_is_refused_leaves_everything_as_it_was() {
    let bed = Testbed::new();
    let options = Options {
        durable: true,
        ..Options::default()
    };
    let mut daemon = bed.daemon_with("a", &options);
    let mut admin = Admin::connect(&daemon);
    let token = admin.tenant("acme");
    let app = App::new(&daemon, token);
    let place = Place::client("acme", ECHO);
    admin.install(&place, "s", &stateful("i32.const 0"), b"");
    assert_eq!(app.call(), "ok");
    for (number, module, words) in [
        (2, stateful("i32.const 7"), "restore returned 7"),
        (3, stateful("unreachable"), "trapped"),
        (
            4,
            stateful("(loop $ever (br $ever)) unreachable"),
            "exceeded its budget",
        ),
    ] {
        admin.push(&place, "s", &module, None).unwrap();
        let before = daemon.ok("audit head");
        for mode in ["", " --mode enforce"] {
            let refused = daemon.run(&format!("policy upgrade s@{number} --tenant acme{mode}"));
            assert_ne!(refused.code, 0, "{refused}");
            assert!(refused.err.contains(words), "{words:?} isn't in {refused}");
            assert_eq!(refused.err.lines().count(), 1, "{refused}");
        }
        let now = daemon.attachment("s");
        assert_eq!(
            (&now["stable"], &now["candidate"]),
            (&Value::from(1), &Value::Null),
            "{now}"
        );
        assert_eq!(
            daemon.ok("audit head"),
            before,
            "what is refused isn't recorded as done"
        );
        assert_eq!(app.call(), "ok");
    }
    admin
        .push(&place, "s", &stateful("i32.const 0"), None)
        .unwrap();
    daemon.ok("policy upgrade s@5 --tenant acme");
    daemon.ok("policy promote s --tenant acme");
    assert_eq!(app.call(), "ok");
    drop(app);
    daemon.process().kill();
    let daemon = bed.daemon_with("a", &options);
    let now = daemon.attachment("s");
    assert_eq!(
        (&now["stable"], &now["candidate"]),
        (&Value::from(5), &Value::Null),
        "{now}"
    );
}

/// A provider's policy for every tenant has an instance on each runtime; an operator sees one
/// attachment.
#[test]
fn a_providers_policy_for_every_tenant_judges_on_every_runtime() {
    let bed = Testbed::new();
    let options = Options::on_cores("0,1");
    let daemon = bed.daemon_with("a", &options);
    let mut admin = Admin::connect(&daemon);
    let fault = std::fs::read(policy_file("fault_injection")).unwrap();
    let everywhere = Place::client("*", "*").pre().granting(&["delay"]);
    // Eight tenants use both runtimes.
    let apps: Vec<App> = (0..8)
        .map(|n| App::new(&daemon, admin.tenant(&format!("tenant-{n}"))))
        .collect();
    admin.install(&everywhere, "f", &fault, &injecting(100));
    let calls = || apps.iter().map(App::call).collect::<Vec<_>>();
    assert!(
        calls().iter().all(|text| text.contains("injected")),
        "{:?}",
        calls()
    );
    let one = daemon.attachment("f");
    let evaluated = one["versions"][0]["denied"].as_u64().unwrap();
    assert_eq!(evaluated, 8, "counted over all runtimes: {one}");
    admin
        .push(&everywhere, "f", &fault, Some(&injecting(0)))
        .unwrap();
    daemon.ok("policy upgrade f@2 --provider");
    assert!(calls().iter().all(|text| text == "ok"), "{:?}", calls());
    daemon.ok("policy rollback f --provider");
    assert!(
        calls().iter().all(|text| text.contains("injected")),
        "{:?}",
        calls()
    );
    // A later tenant gets it, too.
    let late = App::new(&daemon, admin.tenant("late"));
    assert!(late.call().contains("injected"));
    daemon.ok("policy detach f --provider");
    assert!(calls().iter().all(|text| text == "ok"), "{:?}", calls());
    let runtimes = [&apps[0], &late].map(|app| app.session.id());
    assert_ne!(runtimes[0], runtimes[1]);
}

/// A policy that denies with the number of requests that it has evaluated, and hands that over;
/// `refusal` is its reaction to the given state, as `$count`.
fn counting(refusal: &str) -> Vec<u8> {
    let module = Module {
        manifest: r#""state":{"version":1},"#.to_owned(),
        rest: format!(
            r#"(func (export "tollgate_save") (result i64)
                 (i64.or (i64.const 16) (i64.shl (i64.const 8) (i64.const 32))))
               (func (export "tollgate_restore") (param i32 i32) (result i32) (local $count i64)
                 (local.set $count (i64.load (i32.const {BUFFER})))
                 (i64.store (i32.const 16) (local.get $count))
                 (i32.mul (i32.const 7) {refusal}))"#
        ),
        ..Module::with_verdict(
            "(i64.store (i32.const 16) (i64.add (i64.load (i32.const 16)) (i64.const 1)))
             (i32.store offset=12 (local.get $entry) (i32.const 2))
             (i32.store offset=16 (local.get $entry) (i32.load (i32.const 16)))",
        )
    };
    module.wasm()
}

/// If one runtime has replaced a version when another finds that it can't, the first goes back,
/// with its state.
#[test]
fn a_version_is_replaced_with_its_state_on_all_runtimes_or_on_none() {
    let bed = Testbed::new();
    let options = Options::on_cores("0,1");
    let daemon = bed.daemon_with("a", &options);
    let mut admin = Admin::connect(&daemon);
    let apps = [0, 1].map(|runtime| {
        let tenant = format!("tenant-{runtime}");
        let app = App::new(&daemon, admin.tenant(&tenant));
        daemon.ok(&format!("tenant move {tenant} --runtime {runtime}"));
        app
    });
    let everywhere = Place::client("*", "*").pre();
    let all = "(i32.const 0)";
    let more_than_two = "(i64.gt_u (local.get $count) (i64.const 2))";
    admin.install(&everywhere, "count", &counting(all), b"");
    for refusal in [more_than_two, all] {
        let pushed = admin.push(&everywhere, "count", &counting(refusal), None);
        pushed.unwrap();
    }
    let counts = |calls: [usize; 2]| {
        let of = |(app, calls): (&App, usize)| (1..calls).fold(app.call(), |_, _| app.call());
        let last = apps.iter().zip(calls).map(of);
        last.collect::<Vec<_>>()
    };
    let said = |counts: [u32; 2]| counts.map(|count| Status::new(Code(count), "").to_string());
    assert_eq!(counts([1, 3]), said([1, 3]));
    let refused = daemon.run("policy upgrade count@2 --provider --mode enforce");
    let words = "count@2 of the provider can't restore the state of count@1 of the provider";
    assert!(refused.err.contains(words), "{refused}");
    assert_eq!(daemon.attachment("count")["stable"], 1);
    assert_eq!(counts([1, 1]), said([2, 4]), "each from where it was");
    daemon.ok("policy upgrade count@3 --provider --mode enforce");
    let now = daemon.attachment("count");
    assert_eq!((&now["stable"], &now["previous"]), (&json!(3), &json!(1)));
    assert_eq!(counts([1, 1]), said([3, 5]), "each goes on");
    assert!(daemon.ok("audit show --last 1").contains("upgrade"));
}

/// The daemon's children.
fn workers(daemon: u32) -> Vec<Pid> {
    let tasks = std::fs::read_dir(format!("/proc/{daemon}/task")).unwrap();
    let lists: Vec<String> = tasks
        .flatten()
        .map(|task| std::fs::read_to_string(task.path().join("children")).unwrap_or_default())
        .collect();
    let words = lists.iter().flat_map(|list| list.split_whitespace());
    words
        .map(|word| Pid::from_raw(word.parse().unwrap()).unwrap())
        .collect()
}

/// A version that is in no cache any more is compiled when it is attached, in its own time: other
/// changes proceed meanwhile.
#[test]
fn nobody_waits_while_another_tenants_policy_is_compiled_again() {
    let bed = Testbed::new();
    let options = Options {
        durable: true,
        ..Options::default()
    };
    let mut daemon = bed.daemon_with("a", &options);
    let mut admin = Admin::connect(&daemon);
    admin.tenant("slow");
    let token = admin.tenant("acme");
    let null = std::fs::read(policy_file("null")).unwrap();
    // The compiler needs seconds for it, so that the test can meet it.
    let code = "(local.set 0 (f64.convert_i64_s (i64.trunc_f64_u (local.get 0))))".repeat(150);
    let large = Module {
        methods: r#"{"method":"hotel.Reservation/*"}"#.to_owned(),
        rest: format!("(func (param f64) {code})").repeat(400),
        ..Module::default()
    };
    let slow = Place::client("slow", "hotel.Reservation");
    let acme = Place::client("acme", ECHO);
    admin.install(&acme, "null", &null, b"");
    let compiled = || {
        let files = std::fs::read_dir(bed.path("a.state").join("compiled")).unwrap();
        let paths = files.map(|file| file.unwrap().path());
        paths.collect::<Vec<_>>()
    };
    let attached = compiled();
    admin.push(&slow, "p", &large.wasm(), None).unwrap();
    daemon.process().signal(Signal::TERM);
    assert!(daemon.process().ended(SOON).is_some());
    // A version that isn't attached must be compiled for its attachment.
    for path in compiled() {
        if !attached.contains(&path) {
            std::fs::remove_file(path).unwrap();
        }
    }
    let mut daemon = bed.daemon_with("a", &options);
    let app = App::new(&daemon, token);
    let pid = daemon.process().pid();
    let (mut attacker, mut admin) = (Admin::connect(&daemon), Admin::connect(&daemon));
    std::thread::scope(|scope| {
        let attaching = scope.spawn(|| attacker.attach(&slow, "p", 1));
        let found = eventually(SOON, || !workers(pid).is_empty());
        assert!(found.is_ok(), "a worker compiles");
        let held = workers(pid)[0];
        kill_process(held, Signal::STOP).unwrap();
        // The worker is stopped, so these end only if they don't wait for it.
        admin.attach(&acme, "null", 1).unwrap();
        admin.detach(&acme, "null").unwrap();
        admin.attach(&acme, "null", 1).unwrap();
        assert_eq!(app.call(), "ok");
        assert_eq!(workers(pid), [held], "it is still being compiled");
        assert!(!attaching.is_finished());
        kill_process(held, Signal::CONT).unwrap();
        attaching.join().unwrap().unwrap();
    });
    let found = daemon.attachment("p");
    assert_eq!(found["stable"], 1, "{found}");
}

/// `RETIRED_VERSIONS` of the daemon: older retired versions are forgotten, so that a busy operator
/// fills no memory.
#[test]
fn of_versions_that_have_left_their_place_the_last_eight_are_reported() {
    const RETIRED: u64 = 8;
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let mut admin = Admin::connect(&daemon);
    admin.tenant("acme");
    let fault = std::fs::read(policy_file("fault_injection")).unwrap();
    let place = Place::client("acme", ECHO).granting(&["delay"]);
    let versions = RETIRED + 4;
    for percent in 0..versions as u32 {
        admin.install(&place, "f", &fault, &injecting(percent));
    }
    let now = daemon.attachment("f");
    let reported = now["versions"].as_array().unwrap().iter();
    let reported: Vec<u64> = reported.map(|v| v["version"].as_u64().unwrap()).collect();
    let expected: Vec<u64> = (versions - RETIRED..=versions).collect();
    assert_eq!(
        reported, expected,
        "the one in force and the eight before: {now}"
    );
}

/// `COMPILED_POLICIES` of the daemon: an older version is loaded from its artifact when it is
/// attached, and nothing is compiled.
#[test]
fn the_newest_compiled_policies_are_at_hand_and_older_ones_are_loaded() {
    const AT_HAND: u32 = 64;
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let mut admin = Admin::connect(&daemon);
    admin.tenant("acme");
    let place = Place::client("acme", ECHO);
    let name = |number: u32| format!("p{}", number / 8);
    for number in 0..=AT_HAND {
        // Different modules, so that each is compiled; eight versions of each policy.
        let module = Module::that(&format!("(local.set $n (i32.const {number}))"));
        let pushed = admin.push(&place, &name(number), &module.wasm(), None);
        assert_eq!(pushed, Ok(1 + number % 8));
    }
    let counter = |admin: &mut Admin, name: &str| admin.status()["compiler"][name].as_u64();
    let workers = counter(&mut admin, "workers_started");
    assert_eq!(workers, Some(u64::from(AT_HAND) + 1));
    assert_eq!(counter(&mut admin, "found_compiled"), Some(0));
    admin
        .attach(&place, &name(AT_HAND), 1 + AT_HAND % 8)
        .unwrap();
    assert_eq!(
        counter(&mut admin, "found_compiled"),
        Some(0),
        "the newest is at hand"
    );
    admin.attach(&place, &name(0), 1).unwrap();
    assert_eq!(
        counter(&mut admin, "found_compiled"),
        Some(1),
        "the oldest was loaded"
    );
    assert_eq!(
        counter(&mut admin, "workers_started"),
        workers,
        "and not compiled"
    );
}
