//! Lies: in the module, in the manifest, in the returned values. Each is refused with one sentence
//! that names the tenant's policy. No other tenant is affected.
//!
//! Property tests in `service/policy-host/tests/host` search the space of a guest's answers
//! (`whatever_a_guest_answers_…`, `any_effect_list_…`, `damaged_modules_never_panic`). Here one lie
//! of each kind goes through a whole daemon.

use tollgate_conformance::admin::{Admin, Place};
use tollgate_conformance::module::Module;
use tollgate_conformance::testbed::{Testbed, policy_file};
use tollgate_conformance::traffic::{ECHO, Traffic};
use tollgate_conformance::wasm::with_manifest;
use tollgate_shm_abi::status::Code;

use crate::caller::{Caller, patient_daemon};
use crate::measure::{Limit, measured, together};

/// A verdict's words as stores into the entry.
fn words(verdict: u32, status: u32, address: u32, len: u32) -> String {
    format!(
        "(i32.store offset=12 (local.get $entry) (i32.const {verdict}))
         (i32.store offset=16 (local.get $entry) (i32.const {status}))
         (i32.store offset=20 (local.get $entry) (i32.const {address}))
         (i32.store offset=24 (local.get $entry) (i32.const {len}))"
    )
}

/// A policy that may change the payload, with this list of effects at 1024.
fn effects(records: &[[u32; 4]]) -> Module {
    let stores: String = (0u32..)
        .zip(records.as_flattened())
        .map(|(at, word)| {
            format!(
                "(i32.store (i32.const {}) (i32.const {word}))",
                1024 + 4 * at
            )
        })
        .collect();
    Module {
        methods: r#"{"method":"hotel.Echo/Echo","changes":["payload"]}"#.to_owned(),
        manifest: r#""capabilities":["change"],"#.to_owned(),
        request: stores,
        ..Module::with_verdict(&words(3, 0, 1024, 16 * records.len() as u32))
    }
}

/// The answers of a hostile policy, and the words of the refusal.
fn lies() -> Vec<(&'static str, Module, &'static str)> {
    let answer =
        |verdict, status, address, len| Module::with_verdict(&words(verdict, status, address, len));
    let outside = u32::MAX - 7;
    vec![
        ("no verdict", answer(0, 0, 0, 0), "left verdict 0"),
        (
            "a verdict that doesn't exist",
            answer(4, 0, 0, 0),
            "left verdict 4",
        ),
        (
            "a verdict of all ones",
            answer(u32::MAX, 0, 0, 0),
            "left verdict 4294967295",
        ),
        ("a denial that says ok", answer(2, 0, 0, 0), "with status 0"),
        (
            "a denial beyond all codes",
            answer(2, 17, 0, 0),
            "with status 17",
        ),
        (
            "a message outside of memory",
            answer(2, 7, outside, 64),
            "message at 4294967288+64",
        ),
        (
            "a message of 4 GiB",
            answer(2, 7, 0, u32::MAX),
            "message at 0+4294967295",
        ),
        (
            "effects without the capability",
            answer(3, 0, 1024, 16),
            "doesn't declare the capability change",
        ),
        (
            "effects outside of memory",
            Module {
                verdict: words(3, 0, outside, 16),
                ..effects(&[])
            },
            "4294967288+16",
        ),
        (
            "half an effect",
            Module {
                verdict: words(3, 0, 1024, 15),
                ..effects(&[])
            },
            "impossible",
        ),
        (
            "an effect of no kind",
            effects(&[[99, 0, 0, 0]]),
            "impossible kind: 99",
        ),
        (
            "an effect on a field that isn't listed",
            effects(&[[3, 1, 0, 0]]),
            "impossible field: 1",
        ),
        (
            "a value outside of memory",
            effects(&[[3, 0, outside, 16]]),
            "4294967288+16",
        ),
        (
            "two effects on one field",
            effects(&[[3, 0, 0, 8], [3, 0, 4, 8]]),
            "impossible field (for the second time): 0",
        ),
        ("a number for bytes", effects(&[[2, 0, 1, 0]]), "policy"),
    ]
}

#[test]
fn forged_answers_are_refused_and_blamed_on_the_tenant() {
    let _machine = together();
    let bed = Testbed::new();
    let daemon = patient_daemon(&bed, "");
    let mut admin = Admin::connect(&daemon);
    let victim = Traffic::start("acme", &daemon, &daemon);
    let caller = Caller::new(&daemon, admin.tenant("mallory"));
    let place = Place::client("mallory", ECHO);
    let (mut told, mut passed) = (0, 0);
    for (what, module, words) in lies() {
        admin.install(&place, "liar", &module.wasm(), b"");
        let outcome = caller.outcome();
        passed += u32::from(outcome == "ok");
        assert!(
            outcome.starts_with("INTERNAL: policy liar@")
                && outcome.contains("of tenant mallory failed, so the call is refused")
                && outcome.contains(words),
            "{what}: {outcome}"
        );
        told += 1;
    }
    victim.assert_flows();
    measured(
        &format!("{told} forged answers, calls that passed"),
        f64::from(passed),
        Limit::AtMost(0.0),
        Limit::AtMost(0.0),
    );
}

/// Overlapping values are no lie. Each is copied out, so the daemon's copies don't alias.
#[test]
fn effects_that_overlap_in_memory_change_what_they_say() {
    let _machine = together();
    let bed = Testbed::new();
    let daemon = patient_daemon(&bed, "");
    let mut admin = Admin::connect(&daemon);
    let caller = Caller::new(&daemon, admin.tenant("mallory"));
    // The value is the list itself.
    let place = Place::client("mallory", ECHO);
    admin.install(&place, "liar", &effects(&[[3, 0, 1024, 16]]).wasm(), b"");
    let answer = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| caller.call()));
    assert!(
        answer.is_err(),
        "the payload is another, so the echo differs"
    );
}

#[test]
fn modules_that_lie_about_themselves_are_refused_at_the_push() {
    let _machine = together();
    let bed = Testbed::new();
    let daemon = bed.daemon("a");
    let mut admin = Admin::connect(&daemon);
    admin.tenant("mallory");
    let place = Place::client("mallory", ECHO);
    let null = std::fs::read(policy_file("null")).unwrap();
    let manifest = |json: &str| with_manifest(&null, Some(json));
    let entry = r#""hooks":["request"],"methods":[{"method":"*"}]"#;
    let lies = [
        (
            "no manifest",
            with_manifest(&null, None),
            "tollgate.manifest",
        ),
        (
            "another ABI",
            manifest(&format!(r#"{{"abi":2,"name":"n",{entry}}}"#)),
            "ABI 2",
        ),
        (
            "no ABI",
            manifest(&format!(r#"{{"name":"n",{entry}}}"#)),
            "abi",
        ),
        (
            "fields of a schema that it can't know",
            manifest(
                r#"{"abi":1,"name":"n","hooks":["request"],"methods":[{"method":"*","fields":["x"]}]}"#,
            ),
            "*",
        ),
        (
            "an unknown capability",
            manifest(&format!(
                r#"{{"abi":1,"name":"n","capabilities":["root"],{entry}}}"#
            )),
            "root",
        ),
        (
            "changes without the capability",
            manifest(
                r#"{"abi":1,"name":"n","hooks":["request"],"methods":[{"method":"a.B/C","changes":["x"]}]}"#,
            ),
            "change",
        ),
        (
            "a key that doesn't exist",
            manifest(&format!(r#"{{"abi":1,"name":"n","root":true,{entry}}}"#)),
            "root",
        ),
        ("half a module", null[..null.len() / 2].to_vec(), "module"),
        ("a text", b"(module)".to_vec(), "module"),
    ];
    let (mut accepted, mut unclear) = (0, Vec::new());
    for (what, module, words) in &lies {
        match admin.push(&place, "liar", module, None) {
            Ok(_) => accepted += 1,
            Err(failure)
                if failure.code == Code::INVALID_ARGUMENT && failure.message.contains(words) => {}
            Err(failure) => unclear.push(format!("{what}: {failure:?} lacks {words:?}")),
        }
    }
    assert_eq!(unclear, Vec::<String>::new());
    measured(
        &format!("{} lying modules, accepted", lies.len()),
        f64::from(accepted),
        Limit::AtMost(0.0),
        Limit::AtMost(0.0),
    );
}
