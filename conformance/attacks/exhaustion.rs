//! Policies that use up memory, tables and the stack, or trap, on every call. Only that call is
//! affected, and the daemon doesn't grow.

use tollgate_admin::proto::AttachmentOptions;
use tollgate_conformance::admin::{Admin, Place};
use tollgate_conformance::module::Module;
use tollgate_conformance::testbed::Testbed;
use tollgate_conformance::traffic::{ECHO, Traffic};

use crate::caller::{Caller, passed, patient_daemon, total};
use crate::measure::{Limit, measured, say, together};

/// Calls of each attack. Faults come at the rate of fresh instances, so there are fewer of them.
const CALLS: u64 = 300;

/// The most bytes that all attacks together may leave in the daemon: one instance of each at its
/// cap, and the allocator's reserve.
const DAEMON_MAY_GROW: u64 = 64 << 20;

/// The attacks: a name, the policy, and the words of the fault. `None`: the call passes, because it
/// stays within the limits after all.
fn attacks() -> Vec<(&'static str, Module, Option<&'static str>)> {
    let grow_memory =
        "(loop $more (br_if $more (i32.ne (memory.grow (i32.const 1)) (i32.const -1))))
        (local.set $at (i32.const 65536))
        (loop $touch
          (i32.store8 (local.get $at) (i32.const 1))
          (br_if $touch (i32.lt_u (local.tee $at (i32.add (local.get $at) (i32.const 4096)))
            (i32.mul (memory.size) (i32.const 65536)))))";
    let grow_table = "(loop $more (br_if $more (i32.ne (table.grow $t (ref.null func) (i32.const 16)) (i32.const -1))))";
    vec![
        ("memory.grow", Module::that(grow_memory), None),
        (
            "memory.grow, then a trap",
            Module::that(&format!("{grow_memory} unreachable")),
            Some("the policy trapped"),
        ),
        (
            "table.grow",
            Module {
                rest: "(table $t 1 funcref)".to_owned(),
                ..Module::that(grow_table)
            },
            None,
        ),
        (
            "deep recursion",
            Module {
                rest: "(func $deep (param i64 i64 i64 i64) (result i64)
                    (i64.add (local.get 0) (call $deep (local.get 3) (local.get 0) (local.get 1) (local.get 2))))"
                    .to_owned(),
                ..Module::that("(drop (call $deep (i64.const 1) (i64.const 2) (i64.const 3) (i64.const 4)))")
            },
            Some("the policy "),
        ),
        ("a trap", Module::that("unreachable"), Some("the policy trapped")),
        (
            "a load outside of memory",
            Module::that("(drop (i32.load (i32.const 0xfffffff0)))"),
            Some("the policy trapped"),
        ),
        (
            "a division by zero",
            Module::that("(drop (i32.div_u (i32.const 1) (local.get $n)))"),
            Some("the policy trapped"),
        ),
    ]
}

#[test]
fn exhaustion_and_traps_cost_the_call_only() {
    let _machine = together();
    let bed = Testbed::new();
    let daemon = patient_daemon(&bed, "cpu_share_percent = 100");
    let mut admin = Admin::connect(&daemon);
    let victim = Traffic::start("acme", &daemon, &daemon);
    let before = daemon.footprint().resident_bytes;
    for (at, (what, module, fault)) in attacks().into_iter().enumerate() {
        let tenant = format!("mallory{at}");
        let caller = Caller::new(&daemon, admin.tenant(&tenant));
        let place = Place::client(&tenant, ECHO).with(AttachmentOptions {
            cpu_us: Some(10_000),
            ..AttachmentOptions::default()
        });
        admin.install(&place, "hostile", &module.wasm(), b"");
        let outcomes = caller.calls(CALLS);
        assert_eq!(total(&outcomes), CALLS, "{what}: every call is answered");
        match fault {
            None => assert_eq!(passed(&outcomes), CALLS, "{what}: {outcomes:?}"),
            Some(words) => {
                let named = format!("tenant {tenant}");
                let blamed = |text: &String| text.contains(words) && text.contains(&named);
                assert!(outcomes.keys().all(blamed), "{what}: {outcomes:?}");
            }
        }
        // The same tenant's next version works normally.
        admin.install(&place, "hostile", &Module::default().wasm(), b"");
        assert_eq!(caller.evaluated(), "ok", "{what}");
        victim.assert_flows();
    }
    let grown = daemon.footprint().resident_bytes.saturating_sub(before);
    measured(
        "memory, tables, stack and traps, MiB that the daemon grew by",
        grown as f64 / f64::from(1 << 20),
        Limit::AtMost(64.0),
        Limit::AtMost(DAEMON_MAY_GROW as f64 / f64::from(1 << 20)),
    );
}

/// One instance per call: a trap affects only its own call, and each instance gets zeroed memory.
#[test]
fn fresh_instances_that_fill_their_memory_do_not_add_up() {
    let _machine = together();
    let bed = Testbed::new();
    let daemon = patient_daemon(&bed, "cpu_share_percent = 100");
    let mut admin = Admin::connect(&daemon);
    let caller = Caller::new(&daemon, admin.tenant("mallory"));
    let place = Place::client("mallory", ECHO).with(AttachmentOptions {
        cpu_us: Some(10_000),
        fresh: Some(true),
        ..AttachmentOptions::default()
    });
    let (_, module, _) = attacks().remove(0);
    admin.install(&place, "hostile", &module.wasm(), b"");
    let warm = caller.calls(20);
    let before = daemon.footprint().resident_bytes;
    let outcomes = caller.calls(CALLS);
    let grown = daemon.footprint().resident_bytes.saturating_sub(before);
    assert_eq!(passed(&outcomes), CALLS, "{outcomes:?} after {warm:?}");
    say(&format!(
        "{CALLS} instances of 4 MiB, one per call: the daemon grew by {} KiB",
        grown >> 10
    ));
    assert!(grown < 16 << 20, "{grown} bytes");
}
