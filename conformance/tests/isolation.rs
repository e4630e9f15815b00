//! Policies in their tenant's process, as operators and callers see them: their decisions are the
//! same, and the process's death or silence costs only its current calls, which fail closed.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tollgate_conformance::module::{BUFFER, Module};
use tollgate_conformance::process::Process;
use tollgate_conformance::testbed::{
    Daemon, Options, Outcome, SOON, Testbed, eventually, policy_file, proto_file,
};

const RESERVE: &str = "hotel.Reservation/Reserve";
const AT: &str = "--service hotel.Reservation --side client";

/// A daemon, a tenant with a server, and a second tenant with another server.
struct Host {
    bed: Testbed,
    daemon: Daemon,
    acme: String,
    other: String,
    /// The number of times that a process was late although no test had stopped it.
    stalls: AtomicU64,
    _servers: [Process; 2],
}

impl Host {
    fn new() -> Host {
        Host::with("")
    }

    fn with(config: &str) -> Host {
        let bed = Testbed::new();
        let options = Options {
            config: config.to_owned(),
            ..Options::default()
        };
        let daemon = bed.daemon_with("a", &options);
        let [acme, other] = ["acme", "other"].map(|tenant| daemon.tenant(tenant));
        let proto = proto_file("hotel.proto").display().to_string();
        let servers = [&acme, &other].map(|token| {
            let service = ["--service", "hotel.Reservation", "--reply", "{}"];
            daemon.serve(["--token", token, "--proto", &proto].iter().chain(&service))
        });
        Host {
            bed,
            daemon,
            acme,
            other,
            stalls: AtomicU64::new(0),
            _servers: servers,
        }
    }

    #[track_caller]
    fn ok(&self, line: &str) -> String {
        let outcome = self.daemon.tollgate(line.split(' '));
        assert_eq!(outcome.code, 0, "{line}: {outcome}");
        outcome.out
    }

    /// Pushes a module of acme's.
    #[track_caller]
    fn push(&self, name: &str, module: &Module) {
        let file = self.bed.file("module.wasm", module.wasm());
        let file = file.display();
        self.ok(&format!("policy push {file} --tenant acme --name {name}"));
    }

    /// A tenant's list that blocks Mallory, in a process of the tenant.
    fn isolate(&self, tenant: &str, options: &str) {
        let config = self.bed.file("list.json", r#"{"blocked": ["Mallory"]}"#);
        let (file, config) = (policy_file("acl"), config.display().to_string());
        self.ok(&format!(
            "policy push {} --tenant {tenant} --name acl --config {config}",
            file.display()
        ));
        let attach =
            format!("policy attach acl@1 --tenant {tenant} {AT} --isolation process {options}");
        self.ok(attach.trim_end());
    }

    fn line(&self, token: &str, customer: &str) -> Vec<String> {
        let proto = proto_file("hotel.proto").display().to_string();
        let request = format!("{{\"customer_name\": \"{customer}\"}}");
        let words = [
            "call", "--token", token, "--proto", &proto, RESERVE, &request,
        ];
        words.map(str::to_owned).into()
    }

    fn book(&self, token: &str, customer: &str) -> Outcome {
        self.daemon.tollgate(self.line(token, customer))
    }

    /// A call that is evaluated by a process that no test has stopped. If the machine delays it, it
    /// is killed; then this waits for the next process, and for the account that pays for the time.
    fn evaluated(&self, token: &str, customer: &str) -> Outcome {
        let mut last = self.book(token, customer);
        let _still_late = eventually(SOON, || {
            let is_late = last.is_late();
            self.stalls.fetch_add(u64::from(is_late), Ordering::Relaxed);
            let follows = self.stalls() > 0 && last.err.contains("is out of order");
            let again = is_late || follows || last.is_throttled();
            if again {
                last = self.book(token, customer);
            }
            !again
        });
        last
    }

    fn stalls(&self) -> u64 {
        self.stalls.load(Ordering::Relaxed)
    }

    /// Process ids of the tenants' policy processes.
    fn pids(&self) -> Vec<(String, i32)> {
        let status = self.daemon.status();
        let running = status["processes"]["running"].as_array().unwrap().clone();
        let pid = |process: &Value| {
            let tenant = process["tenant"].as_str().unwrap().to_owned();
            (tenant, process["pid"].as_i64().unwrap() as i32)
        };
        running.iter().map(pid).collect()
    }

    /// Calls of a tenant that wait.
    fn waiting(&self, tenant: &str) -> u64 {
        let status = self.daemon.status();
        let accounts = status["accounts"].as_array().unwrap();
        let its = accounts.iter().find(|account| account["tenant"] == tenant);
        its.map_or(0, |account| account["waiting"].as_u64().unwrap())
    }

    fn signal(&self, tenant: &str, signal: Signal) {
        let pid = self.pid(tenant);
        kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
    }

    fn pid(&self, tenant: &str) -> i32 {
        let pids = self.pids();
        pids.iter().find(|(its, _)| its == tenant).unwrap().1
    }

    /// Stops a tenant's policy process, with all its threads when this returns. The signal alone
    /// stops the other threads only after the thread that received it has run.
    fn stop(&self, tenant: &str) {
        self.signal(tenant, Signal::STOP);
        let tasks = format!("/proc/{}/task", self.pid(tenant));
        let stopped = || {
            let mut tasks = std::fs::read_dir(&tasks).unwrap();
            tasks.all(|task| {
                let status = std::fs::read_to_string(task.unwrap().path().join("status"));
                status.unwrap().contains("State:\tT")
            })
        };
        eventually(SOON, stopped).expect("it stops");
    }

    /// The list decides again.
    fn recovers(&self, token: &str) {
        let evaluates = || {
            (
                self.book(token, "Ada").code,
                self.book(token, "Mallory").code,
            ) == (0, 7)
        };
        eventually(SOON, evaluates).expect("the policy evaluates again");
    }
}

#[test]
fn a_policy_evaluates_in_a_process_of_its_tenants() {
    let host = Host::new();
    host.isolate("acme", "");
    host.isolate("other", "");
    for token in [&host.acme, &host.other] {
        assert_eq!(host.evaluated(token, "Ada").code, 0);
        let denied = host.evaluated(token, "Mallory");
        assert_eq!(denied.code, 7, "{denied}");
        assert!(
            denied.err.contains("customer is on the block list"),
            "{denied}"
        );
    }
    let mut pids = host.pids();
    pids.sort();
    let tenants: Vec<&str> = pids.iter().map(|(tenant, _)| tenant.as_str()).collect();
    assert_eq!(tenants, ["acme", "other"]);
    assert_ne!(pids[0].1, pids[1].1, "a process each");
    let status = host.daemon.status();
    let attachment = &status["attachments"][0];
    assert_eq!(attachment["options"]["isolation"], "process", "{status}");
    let audit = host.ok("audit show --last 1000 --json");
    assert!(audit.contains(r#""isolation":"process""#), "{audit}");
    // An unknown value is refused.
    let diff = host
        .daemon
        .tollgate("policy diff acl@1 acl@1 --tenant acme --last 10".split(' '));
    assert!(diff.err.contains("runs in its tenant's process"), "{diff}");
    let provider = host.daemon.tollgate(
        format!(
            "policy push {} --provider --name null",
            policy_file("null").display()
        )
        .split(' '),
    );
    assert_eq!(provider.code, 0, "{provider}");
    let provider = host.daemon.tollgate(
        format!("policy attach null@1 --provider --pre --tenant acme {AT} --isolation process")
            .split(' '),
    );
    assert!(
        provider
            .err
            .contains("the provider's policies run in the daemon"),
        "{provider}"
    );
    // Back into the daemon, and the process isn't needed any more.
    host.ok(&format!(
        "policy attach acl@1 --tenant acme {AT} --isolation none"
    ));
    assert_eq!(host.evaluated(&host.acme, "Mallory").code, 7);
    eventually(SOON, || host.pids().len() == 1).expect("the process ends");
}

#[test]
fn kill_9_in_mid_call_closes_the_call_and_the_next_process_judges() {
    let host = Host::new();
    host.isolate("acme", "--cpu-us 10000");
    host.isolate("other", "");
    let mut died = 0;
    for _ in 0..8 {
        host.recovers(&host.acme);
        // It can't answer, so the call is in flight when the process is killed; unless the machine
        // is so busy that it counts as hung.
        let pid = Pid::from_raw(host.pid("acme")).unwrap();
        host.stop("acme");
        let call = std::thread::scope(|scope| {
            let call = scope.spawn(|| host.book(&host.acme, "Ada"));
            let is_under_way = || host.waiting("acme") > 0 || call.is_finished();
            eventually(SOON, is_under_way).expect("the call waits for the process");
            let _gone = kill_process(pid, Signal::KILL);
            call.join().unwrap()
        });
        assert!(call.code == 13 || call.is_throttled(), "closed: {call}");
        died += u32::from(call.err.contains("it died"));
        assert_eq!(
            host.evaluated(&host.other, "Mallory").code,
            7,
            "another tenant's goes on"
        );
        assert_eq!(host.evaluated(&host.other, "Ada").code, 0);
        if died > 0 {
            break;
        }
    }
    assert!(died > 0, "its death is noticed before its silence");
    host.recovers(&host.acme);
    let audit = host.ok("audit show --last 1000 --json");
    assert!(
        audit.contains("the tenant's policy process ended"),
        "{audit}"
    );
}

#[test]
fn a_process_that_hangs_is_killed_and_its_calls_fare_as_the_attachment_says() {
    let host = Host::new();
    host.isolate("acme", "--on-fault open");
    host.recovers(&host.acme);
    host.stop("acme");
    let passed = host.evaluated(&host.acme, "Mallory");
    assert_eq!(passed.code, 0, "{passed}");
    host.recovers(&host.acme);
    let status = host.daemon.status();
    assert!(
        status["processes"]["ended"].as_u64().unwrap() >= 1,
        "{status}"
    );
}

/// Like a debugger, or a suspended machine.
#[test]
fn a_process_that_is_stopped_for_a_moment_goes_on() {
    let host = Host::new();
    host.isolate("acme", "--cpu-us 10000");
    assert_eq!(host.evaluated(&host.acme, "Mallory").code, 7);
    let (pid, stalls) = (host.pid("acme"), host.stalls());
    host.stop("acme");
    host.signal("acme", Signal::CONT);
    assert_eq!(host.evaluated(&host.acme, "Mallory").code, 7);
    host.ok(&format!(
        "policy attach acl@1 --tenant acme {AT} --isolation process --cpu-us 200"
    ));
    let is_the_same = host.pid("acme") == pid;
    assert!(
        is_the_same || host.stalls() > stalls,
        "another took its place"
    );
}

/// Changes of its tenant wait until it is killed; other tenants' don't.
#[test]
fn a_process_that_hangs_holds_up_the_changes_of_its_own_tenant_only() {
    let host = Host::new();
    host.isolate("acme", "");
    host.isolate("other", "");
    host.stop("acme");
    let attach = |tenant: &str, options: &str| {
        let line = format!("policy attach acl@1 --tenant {tenant} {AT} --isolation process");
        format!("{line} --cpu-us {options}")
    };
    let mut waits = host.daemon.start(attach("acme", "200").split(' '));
    for cpu_us in 200..203 {
        host.ok(&attach("other", &cpu_us.to_string()));
    }
    assert_eq!(host.evaluated(&host.other, "Mallory").code, 7);
    let ended = waits.ended(Duration::ZERO);
    assert!(
        ended.is_none(),
        "it waits for a process that hangs: {ended:?}"
    );
    let ended = waits.ended(SOON).expect("the process is given up");
    assert!(ended.success(), "its next one takes the policy: {ended}");
    assert_eq!(
        host.daemon.status()["processes"]["ended"],
        1 + host.stalls()
    );
    host.recovers(&host.acme);
}

#[test]
fn processes_end_with_what_needs_them() {
    let mut host = Host::new();
    host.isolate("acme", "");
    host.isolate("other", "");
    let lives = |pid: i32| std::path::Path::new(&format!("/proc/{pid}")).exists();
    let [acme, other] = ["acme", "other"].map(|tenant| host.pid(tenant));
    host.ok("policy detach acl --tenant acme");
    eventually(SOON, || !lives(acme)).expect("nobody needs it any more");
    assert!(lives(other));
    assert_eq!(host.book(&host.acme, "Mallory").code, 0);
    host.daemon.process().kill();
    eventually(SOON, || !lives(other)).expect("it doesn't outlive its daemon");
}

/// Effects, counters and logs, and that they are reported.
#[test]
fn changes_and_counters_come_out_of_the_process() {
    let host = Host::new();
    let redact = r#"{"mask": ["customer_name"], "keep": 1, "absent": "skip"}"#;
    let config = host.bed.file("redact.json", redact);
    let (file, config) = (policy_file("redact"), config.display().to_string());
    let file = file.display();
    host.ok(&format!(
        "policy push {file} --tenant acme --name redact --config {config}"
    ));
    for isolation in ["process", "process --fresh", "none"] {
        host.ok(&format!(
            "policy attach redact@1 --tenant acme {AT} --isolation {isolation}"
        ));
        assert_eq!(host.evaluated(&host.acme, "Ada").code, 0);
        let options = isolation.split(' ').next().unwrap();
        let shown = host.ok("policy show redact --tenant acme --json");
        let shown: Value = serde_json::from_str(&shown).unwrap();
        let attachment = &shown["attachments"][0];
        assert_eq!(attachment["isolation"], options, "{shown}");
    }
    let status = host.daemon.status();
    let version = &status["attachments"][0]["versions"][0];
    assert_eq!(version["changed"], 3, "{status}");
    assert_eq!(version["metrics"]["counters"]["masked"], 3, "{status}");
}

/// A module for reservations, otherwise as made by `Module`.
fn reservations(module: Module) -> Module {
    Module {
        methods: format!(r#"{{"method":"{RESERVE}"}}"#),
        ..module
    }
}

/// The whole process has a limit, in addition to each instance's; beyond it, new instances and
/// growing memory are refused.
#[test]
fn memory_that_a_process_may_not_have_costs_its_own_calls_and_nobody_elses() {
    const MANY: usize = 24;
    let host = Host::with("[policies]\nprocess_memory_mib = 64\n");
    host.isolate("acme", "");
    host.isolate("other", "");
    let resident = || {
        let status = host.daemon.status();
        let running = status["processes"]["running"].as_array().unwrap().clone();
        let mut all = running
            .iter()
            .map(|p| p["resident_bytes"].as_u64().unwrap());
        all.all(|bytes| bytes < 128 << 20)
    };
    let serves = |customer: &str| {
        let code = host.evaluated(&host.other, customer).code;
        assert_eq!(code, if customer == "Ada" { 0 } else { 7 });
    };
    let before = host.pids();
    let attach = |name: &str| {
        let line = format!("policy attach {name}@1 --tenant acme {AT} --isolation process");
        host.daemon.run(&line)
    };
    // 60 of the 64 pages that an instance may have, from the start.
    let large = reservations(Module {
        memory: r#"(memory (export "memory") 60)"#.to_owned(),
        ..Module::default()
    });
    let refused = (0..MANY).map(|k| {
        host.push(&format!("large{k}"), &large);
        (k, attach(&format!("large{k}")))
    });
    let refused = refused.into_iter().find(|(_, attached)| attached.code != 0);
    let (seated, refused) = refused.expect("24 times 4 MB are more than 64 MiB");
    assert!(seated >= 2, "{refused}");
    assert!(refused.err.contains("Cannot allocate memory"), "{refused}");
    assert_eq!(
        host.evaluated(&host.acme, "Mallory").code,
        7,
        "the existing policy evaluates"
    );
    assert_eq!(host.evaluated(&host.acme, "Ada").code, 0);
    assert!(host.pids() == before || host.stalls() > 0);
    for k in 0..seated {
        host.ok(&format!("policy detach large{k} --tenant acme"));
    }
    // As many later, during a call.
    let grows = reservations(Module::that(
        "(if (i32.lt_u (memory.size) (i32.const 60))
           (then (if (i32.eq (memory.grow (i32.const 57)) (i32.const -1)) (then unreachable))))",
    ));
    for k in 0..MANY {
        host.push(&format!("grows{k}"), &grows);
        let attached = attach(&format!("grows{k}"));
        assert_eq!(attached.code, 0, "{attached}");
    }
    let closed = host.evaluated(&host.acme, "Ada");
    assert_eq!(closed.code, 13, "{closed}");
    assert!(resident());
    serves("Ada");
    serves("Mallory");
    let pid = |pids: &[(String, i32)]| pids.iter().find(|(t, _)| t == "other").unwrap().1;
    assert!(pid(&host.pids()) == pid(&before) || host.stalls() > 0);
    // Without them, everything is as before.
    for k in 0..MANY {
        host.ok(&format!("policy detach grows{k} --tenant acme"));
    }
    host.recovers(&host.acme);
}

/// Machine code isn't writable memory, so the kernel's limit doesn't count it: the daemon counts it
/// itself.
#[test]
fn a_process_that_keeps_too_much_is_killed() {
    let mut host = Host::with("[policies]\nprocess_memory_mib = 64\n");
    host.isolate("acme", "");
    host.isolate("other", "");
    let others = |host: &Host| {
        let pids = host.pids();
        pids.into_iter().find(|(tenant, _)| tenant == "other")
    };
    let before = others(&host);
    // Each of these takes two bytes, and about 100 once it is compiled.
    let code = "(local.set 0 (f64.convert_i64_s (i64.trunc_f64_u (local.get 0))))".repeat(150);
    let large = Module {
        methods: r#"{"method":"*"}"#.to_owned(),
        rest: format!("(func (param f64) {code})").repeat(400),
        ..Module::default()
    };
    host.push("large", &large);
    let ended = |host: &Host| host.daemon.status()["processes"]["ended"].as_u64().unwrap();
    // Each attachment has its own copy.
    let copies = (0..100).take_while(|k| {
        let place = format!("--tenant acme --service s{k}.S --side client --isolation process");
        let _refused_as_it_dies = host.daemon.run(&format!("policy attach large@1 {place}"));
        ended(&host) == 0
    });
    assert!(copies.count() < 100, "{}", host.daemon.status());
    let killed = |line: &str| line.contains("policy process") && line.contains("bytes: killed");
    host.daemon.process().line(SOON, killed).unwrap();
    assert_eq!(others(&host), before);
    assert_eq!(host.evaluated(&host.other, "Mallory").code, 7);
    host.ok("policy detach large --tenant acme");
    host.ok("policy release acl --tenant acme");
    host.recovers(&host.acme);
}

/// It denies with the number of calls that it has evaluated, and saves that number. It restores as
/// `restore` says, and continues with 4 more.
fn counter(restore: &str) -> Module {
    let state = format!(
        r#"(func (export "tollgate_save") (result i64)
             (i64.or (i64.const 16) (i64.shl (i64.const 8) (i64.const 32))))
           (func (export "tollgate_restore") (param i32 i32) (result i32)
             {restore}
             (i64.store (i32.const 16) (i64.add (i64.load (i32.const {BUFFER})) (i64.const 4)))
             (i32.const 0))"#
    );
    reservations(Module {
        manifest: r#""state":{"version":1},"#.to_owned(),
        rest: state,
        ..Module::with_verdict(
            "(i64.store (i32.const 16) (i64.add (i64.load (i32.const 16)) (i64.const 1)))
             (i32.store offset=12 (local.get $entry) (i32.const 2))
             (i32.store offset=16 (local.get $entry) (i32.load (i32.const 16)))",
        )
    })
}

#[test]
fn state_goes_from_version_to_version_in_the_process_or_the_last_good_one_stays() {
    let host = Host::new();
    for restore in ["", "", "unreachable", "(loop $ever (br $ever))"] {
        host.push("count", &counter(restore));
    }
    // The longest time limit for an answer: the state is lost with the process.
    host.ok(&format!(
        "policy attach count@1 --tenant acme {AT} --isolation process --cpu-us 10000"
    ));
    let codes = |calls: usize| {
        let calls = (0..calls).map(|_| host.evaluated(&host.acme, "Ada").code);
        calls.collect::<Vec<_>>()
    };
    assert_eq!(codes(2), [1, 2]);
    let pids = host.pids();
    host.ok("policy upgrade count@2 --tenant acme");
    assert_eq!(codes(1), [2 + 4 + 1], "it goes on");
    host.ok("policy promote count --tenant acme");
    assert_eq!(codes(1), [8]);
    for (version, why) in [(3, "unreachable"), (4, "budget")] {
        let refused = host
            .daemon
            .run(&format!("policy upgrade count@{version} --tenant acme"));
        assert_ne!(refused.code, 0, "{refused}");
        let words = format!("count@{version} of tenant acme can't restore the state of count@2");
        assert!(refused.err.contains(&words), "{refused}");
        assert!(refused.err.contains(why), "{refused}");
    }
    let attachment = host.daemon.attachment("count");
    assert_eq!(attachment["stable"], 2, "{attachment}");
    assert!(attachment["candidate"].is_null(), "{attachment}");
    assert_eq!(
        codes(2),
        [9, 10],
        "the last good one, as if nothing had been"
    );
    assert_eq!(host.pids(), pids, "and where it was");
}

/// Each call has an instance that has evaluated no other call; the shared state is shared.
#[test]
fn fresh_instances_in_a_process_remember_what_they_share_and_nothing_else() {
    let host = Host::new();
    host.push("count", &counter(""));
    let attach = format!("policy attach count@1 --tenant acme {AT} --isolation process");
    host.ok(&format!("{attach} --fresh"));
    for _ in 0..3 {
        assert_eq!(host.evaluated(&host.acme, "Ada").code, 1);
    }
    host.ok("policy detach count --tenant acme");
    let config = r#"{"fields": ["customer_name"], "methods": ["hotel.Reservation/Reserve"],
        "calls": 2, "window_s": 31622400}"#;
    let config = host.bed.file("quota.json", config);
    let quota = host
        .daemon
        .push("--tenant acme", "quota", "quota", Some(&config));
    let attach = format!("policy attach {quota} --tenant acme {AT} --isolation process");
    // As above: the shared state is lost with the process.
    host.ok(&format!(
        "{attach} --fresh --grant state,clock --cpu-us 10000"
    ));
    let codes = ["Ada", "Ada", "Ada", "Bob"].map(|name| host.evaluated(&host.acme, name).code);
    assert_eq!(codes, [0, 0, 8, 0]);
}

/// The daemon's configuration sets the default place of policies; a module for another host is
/// recognized.
#[test]
fn modules_for_other_hosts_are_refused_with_what_to_do() {
    let bed = Testbed::new();
    let options = Options {
        config: "[policies]\nisolation = \"process\"\nprocess_memory_mib = 64\n".to_owned(),
        ..Options::default()
    };
    let daemon = bed.daemon_with("a", &options);
    daemon.tenant("acme");
    let filter = r#"(module
        (memory (export "memory") 1)
        (func (export "proxy_abi_version_0_2_1"))
        (func (export "proxy_on_memory_allocate") (param i32) (result i32) (i32.const 0)))"#;
    let file = bed.file("filter.wasm", wat::parse_str(filter).unwrap());
    let file = file.display();
    daemon.ok(&format!(
        "policy push {file} --tenant acme --name filter --hooks request"
    ));
    let attach = format!("policy attach filter@1 --tenant acme {AT}");
    let refused = daemon.run(&attach);
    assert_eq!(refused.code, 3, "{refused}");
    let words = "policy filter@1 speaks proxy-wasm; such modules can't run in a separate process yet; --isolation none";
    assert!(refused.err.contains(words), "{refused}");
    let opa = r#"(module
        (import "env" "memory" (memory 2))
        (global (export "opa_wasm_abi_version") i32 (i32.const 1))
        (global (export "opa_wasm_abi_minor_version") i32 (i32.const 3)))"#;
    let file = bed.file("opa.wasm", wat::parse_str(opa).unwrap());
    let file = file.display();
    daemon.ok(&format!("policy push {file} --tenant acme --name opa"));
    let refused = daemon.run(&format!(
        "policy attach opa@1 --tenant acme {AT} --isolation process"
    ));
    assert_eq!(refused.code, 3, "{refused}");
    let words = "policy opa@1 speaks opa; such modules can't run in a separate process yet; --isolation none";
    assert!(refused.err.contains(words), "{refused}");
    daemon.ok(&format!("{attach} --isolation none"));
    assert_eq!(daemon.attachment("filter")["isolation"], "none");
    let file = policy_file("null").display().to_string();
    daemon.ok(&format!("policy push {file} --tenant acme --name null"));
    daemon.ok(&format!("policy attach null@1 --tenant acme {AT}"));
    assert_eq!(daemon.attachment("null")["isolation"], "process");
    let audit = daemon.ok("audit show --last 1 --json");
    assert!(audit.contains(r#""isolation":"process""#), "{audit}");
}
