//! Expensive host calls: their tenant pays for the daemon's work.
//!
//! The kernel reports the real CPU time of a runtime's thread. The daemon doesn't spin here, so all
//! of a thread's time is work.

use tollgate_admin::proto::{AttachmentOptions, Names};
use tollgate_conformance::admin::{Admin, Place};
use tollgate_conformance::module::Module;
use tollgate_conformance::process::runtimes_ns;
use tollgate_conformance::testbed::{Daemon, Testbed};
use tollgate_conformance::traffic::ECHO;

use crate::caller::{Caller, passed, with_config};
use crate::measure::{Limit, alone, is_long, measured, unless_stalled};

fn account_ns(admin: &mut Admin, tenant: &str) -> u64 {
    let status = admin.status();
    let accounts = status["accounts"].as_array().unwrap();
    let of_it = accounts.iter().find(|account| account["tenant"] == tenant);
    of_it.map_or(0, |account| account["cpu_ns"].as_u64().unwrap())
}

/// A host call that is made many times per evaluation.
struct Attack {
    what: &'static str,
    imports: &'static str,
    /// Code that runs before the calls.
    first: &'static str,
    call: &'static str,
    /// How often, in CI: enough for at least a hundred microseconds, and less than the fuel of 10
    /// ms on a slow machine.
    times: u32,
}

impl Attack {
    fn module(&self, times: u32) -> Vec<u8> {
        let Attack {
            imports,
            first,
            call,
            ..
        } = self;
        let module = Module {
            manifest: r#""capabilities":["log","state","random","metrics"],"counters":["c"],"#.to_owned(),
            imports: (*imports).to_owned(),
            ..Module::that(&format!(
                "{first}
                 (local.set $n (i32.const {times}))
                 (loop $again {call} (br_if $again (local.tee $n (i32.sub (local.get $n) (i32.const 1)))))"
            ))
        };
        module.wasm()
    }
}

const ATTACKS: [Attack; 5] = [
    Attack {
        what: "log of 512 bytes",
        imports: r#"(import "tollgate" "log" (func $f (param i32 i32 i32)))"#,
        first: "",
        call: "(call $f (i32.const 3) (i32.const 8192) (i32.const 512))",
        times: 3_000,
    },
    Attack {
        what: "state_set of 32 KiB",
        imports: r#"(import "tollgate" "state_set" (func $f (param i32 i32 i32 i32) (result i32)))"#,
        first: "",
        call: "(drop (call $f (i32.const 8192) (i32.const 8) (i32.const 16384) (i32.const 32768)))",
        times: 150,
    },
    Attack {
        what: "state_get of 32 KiB",
        imports: r#"(import "tollgate" "state_get" (func $f (param i32 i32 i32 i32) (result i32)))
            (import "tollgate" "state_set" (func $set (param i32 i32 i32 i32) (result i32)))"#,
        first: "(drop (call $set (i32.const 8192) (i32.const 8) (i32.const 16384) (i32.const 32768)))",
        call: "(drop (call $f (i32.const 8192) (i32.const 8) (i32.const 16384) (i32.const 32768)))",
        times: 150,
    },
    Attack {
        what: "random of 256 bytes",
        imports: r#"(import "tollgate" "random" (func $f (param i32 i32)))"#,
        first: "",
        call: "(call $f (i32.const 8192) (i32.const 256))",
        times: 1_000,
    },
    Attack {
        what: "counter",
        imports: r#"(import "tollgate" "counter" (func $f (param i32 i64)))"#,
        first: "",
        call: "(call $f (i32.const 0) (i64.const 1))",
        times: 20_000,
    },
];

/// A tenant with a policy that makes a host call this many times.
struct Tenant {
    name: String,
    caller: Caller,
    /// The cost of its calls for the daemon's runtime, in ns.
    real_ns: u64,
}

impl Tenant {
    fn new(name: String, daemon: &Daemon, admin: &mut Admin, module: &[u8]) -> Tenant {
        let caller = Caller::new(daemon, admin.tenant(&name));
        let names = ["state", "random", "log", "metrics"].map(str::to_owned);
        let place = Place::client(&name, ECHO).with(AttachmentOptions {
            cpu_us: Some(10_000),
            capabilities: Some(Names {
                names: names.to_vec(),
            }),
            ..AttachmentOptions::default()
        });
        admin.install(&place, "busy", module, b"");
        let _warm = caller.calls(2);
        Tenant {
            name,
            caller,
            real_ns: 0,
        }
    }

    fn call(&mut self, daemon: &mut Daemon, calls: u64) {
        let pid = daemon.process().pid();
        let before = runtimes_ns(pid);
        let outcomes = self.caller.calls(calls);
        self.real_ns += runtimes_ns(pid) - before;
        assert_eq!(passed(&outcomes), calls, "{}: {outcomes:?}", self.name);
    }
}

/// By how much more the second account has been charged than the first.
fn charged_more(admin: &mut Admin, [few, many]: &[Tenant; 2]) -> u64 {
    account_ns(admin, &many.name).saturating_sub(account_ns(admin, &few.name))
}

#[test]
fn expensive_host_calls_are_charged_what_they_cost() {
    let _machine = alone();
    let bed = Testbed::new();
    let config = "spin_us = 0\n[policies]\ncpu_share_percent = 100\n";
    let mut daemon = bed.daemon_with("a", &with_config(config));
    let mut admin = Admin::connect(&daemon);
    let (rounds, calls) = if is_long() { (20, 40) } else { (3, 20) };
    for (at, attack) in ATTACKS.into_iter().enumerate() {
        let what = attack.what;
        // A tenth and the full number. The difference between the two is host calls, and not the
        // time that a call's application has slept.
        let most = attack.times * if is_long() { 2 } else { 1 };
        let mut tenants = [most / 10, most].map(|times| {
            let module = attack.module(times);
            Tenant::new(
                format!("mallory-{at}-{times}"),
                &daemon,
                &mut admin,
                &module,
            )
        });
        let price = || {
            let before = charged_more(&mut admin, &tenants);
            tenants.iter_mut().for_each(|tenant| tenant.real_ns = 0);
            // In turns, because the machine's speed changes.
            for _ in 0..rounds {
                for tenant in &mut tenants {
                    tenant.call(&mut daemon, calls);
                }
            }
            let [few, many] = &tenants;
            let real = many.real_ns.saturating_sub(few.real_ns);
            let charged = charged_more(&mut admin, &tenants).saturating_sub(before);
            (charged, real)
        };
        // A stall hits one tenant's turn, and so the difference.
        let (charged, real) = unless_stalled(price, |(charged, real)| *charged > real / 2);
        let ratio = charged as f64 / real as f64;
        measured(
            &format!(
                "{what}, {} us, the account's error in percent",
                real / (rounds * calls) / 1000
            ),
            (ratio - 1.0).abs() * 100.0,
            Limit::AtMost(5.0),
            Limit::AtMost(10_000.0),
        );
        // A tenant that pays too little has found a hole.
        assert!(ratio > 0.5, "{what}: {charged} ns charged of {real}");
    }
}
