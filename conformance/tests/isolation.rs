//! Policies in a process of their tenant's, as operators and callers meet them: they judge as ever, and the process's death or
//! silence costs the calls that it had, closed, and nothing else.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tollgate_conformance::process::Process;
use tollgate_conformance::testbed::{
    Daemon, Options, Outcome, SOON, Testbed, eventually, policy_file, proto_file,
};

const RESERVE: &str = "hotel.Reservation/Reserve";
const AT: &str = "--service hotel.Reservation --side client";

/// One daemon, a tenant with a server, and a second one with another.
struct Host {
    bed: Testbed,
    daemon: Daemon,
    acme: String,
    other: String,
    _servers: [Process; 2],
}

impl Host {
    fn new() -> Host {
        let bed = Testbed::new();
        let daemon = bed.daemon_with("a", &Options::default());
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
            _servers: servers,
        }
    }

    #[track_caller]
    fn ok(&self, line: &str) -> String {
        let outcome = self.daemon.tollgate(line.split(' '));
        assert_eq!(outcome.code, 0, "{line}: {outcome}");
        outcome.out
    }

    /// A tenant's list that blocks Mallory, in a process of the tenant's.
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

    fn signal(&self, tenant: &str, signal: Signal) {
        let pids = self.pids();
        let (_, pid) = pids.iter().find(|(its, _)| its == tenant).unwrap();
        kill_process(Pid::from_raw(*pid).unwrap(), signal).unwrap();
    }

    /// The list decides again.
    fn recovers(&self, token: &str) {
        let judges = || {
            (
                self.book(token, "Ada").code,
                self.book(token, "Mallory").code,
            ) == (0, 7)
        };
        eventually(SOON, judges).expect("the policy judges again");
    }
}

#[test]
fn a_policy_judges_in_a_process_of_its_tenants() {
    let host = Host::new();
    host.isolate("acme", "");
    host.isolate("other", "");
    for token in [&host.acme, &host.other] {
        assert_eq!(host.book(token, "Ada").code, 0);
        let denied = host.book(token, "Mallory");
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
    // What isn't there is refused.
    let diff = host
        .daemon
        .tollgate("policy diff acl@1 acl@1 --tenant acme --last 10".split(' '));
    assert!(
        diff.err.contains("runs in a process of its tenant's"),
        "{diff}"
    );
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
        provider.err.contains("the provider's run in the daemon"),
        "{provider}"
    );
    // Back into the daemon, and nobody needs the process any more.
    host.ok(&format!(
        "policy attach acl@1 --tenant acme {AT} --isolation none"
    ));
    assert_eq!(host.book(&host.acme, "Mallory").code, 7);
    eventually(SOON, || host.pids().len() == 1).expect("the process ends");
}

#[test]
fn kill_9_in_mid_call_closes_the_call_and_the_next_process_judges() {
    let host = Host::new();
    host.isolate("acme", "--cpu-us 10000");
    host.isolate("other", "");
    let mut died = 0;
    for _ in 0..4 {
        host.recovers(&host.acme);
        // It can't answer, so the call is under way when it is killed; unless the machine is so busy that it is taken for hung.
        host.signal("acme", Signal::STOP);
        let call = std::thread::scope(|scope| {
            let call = scope.spawn(|| host.book(&host.acme, "Ada"));
            std::thread::sleep(Duration::from_millis(60));
            if let Some((_, pid)) = host.pids().iter().find(|(tenant, _)| tenant == "acme") {
                let _gone = kill_process(Pid::from_raw(*pid).unwrap(), Signal::KILL);
            }
            call.join().unwrap()
        });
        assert_eq!(call.code, 13, "closed: {call}");
        died += u32::from(call.err.contains("it died"));
        assert_eq!(
            host.book(&host.other, "Mallory").code,
            7,
            "another tenant's goes on"
        );
        assert_eq!(host.book(&host.other, "Ada").code, 0);
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
    assert_eq!(host.book(&host.acme, "Mallory").code, 7);
    host.signal("acme", Signal::STOP);
    let passed = host.book(&host.acme, "Mallory");
    assert_eq!(passed.code, 0, "{passed}");
    host.recovers(&host.acme);
    let status = host.daemon.status();
    assert!(
        status["processes"]["ended"].as_u64().unwrap() >= 1,
        "{status}"
    );
}

#[test]
fn processes_end_with_what_needs_them() {
    let mut host = Host::new();
    host.isolate("acme", "");
    host.isolate("other", "");
    let lives = |pid: i32| std::path::Path::new(&format!("/proc/{pid}")).exists();
    let pids = host.pids();
    let of = |tenant: &str| pids.iter().find(|(its, _)| its == tenant).unwrap().1;
    host.ok("policy detach acl --tenant acme");
    eventually(SOON, || !lives(of("acme"))).expect("nobody needs it any more");
    assert!(lives(of("other")));
    assert_eq!(host.book(&host.acme, "Mallory").code, 0);
    host.daemon.process().kill();
    eventually(SOON, || !lives(of("other"))).expect("it doesn't outlive its daemon");
}

/// What is changed, counted and logged, and that it is told.
#[test]
fn changes_and_counters_come_out_of_the_process() {
    let host = Host::new();
    let config = host.bed.file("redact.json", r#"{"keep_of_name": 1}"#);
    let (file, config) = (policy_file("redact"), config.display().to_string());
    let file = file.display();
    host.ok(&format!(
        "policy push {file} --tenant acme --name redact --config {config}"
    ));
    for isolation in ["process", "process --fresh", "none"] {
        host.ok(&format!(
            "policy attach redact@1 --tenant acme {AT} --isolation {isolation}"
        ));
        assert_eq!(host.book(&host.acme, "Ada").code, 0);
        let options = isolation.split(' ').next().unwrap();
        let shown = host.ok("policy show redact --tenant acme --json");
        let shown: Value = serde_json::from_str(&shown).unwrap();
        let attachment = &shown["attachments"][0];
        assert_eq!(attachment["isolation"], options, "{shown}");
    }
    let status = host.daemon.status();
    let version = &status["attachments"][0]["versions"][0];
    assert_eq!(version["changed"], 3, "{status}");
    assert_eq!(version["metrics"]["counters"]["names"], 3, "{status}");
}

/// The daemon's configuration says where policies run that don't; a module for another host is told apart.
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
    let words = "policy filter@1 speaks proxy-wasm, and such modules can't run in a process of their own yet; --isolation none";
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
