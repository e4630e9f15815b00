//! A tenant searches for another tenant's data.
//!
//! The daemon has room for one instance, and each call gets a fresh one, so the two tenants'
//! policies use the very same slot in turns. One policy fills its memory with a canary. The other
//! searches its own memory with loads at every offset, before and after the host writes anything
//! into it. `service/policy-host/tests/host/isolation.rs` does the same with every load
//! instruction, the table and globals.

use tollgate_admin::proto::{AttachmentOptions, Names};
use tollgate_conformance::admin::{Admin, Place};
use tollgate_conformance::module::{ALLOW, Module};
use tollgate_conformance::testbed::Testbed;
use tollgate_conformance::traffic::ECHO;

use crate::caller::{Caller, passed, patient_daemon};
use crate::measure::{Limit, is_long, measured, together};

/// `CANARIES` many times, in base64, and as a guest loads it.
const PAYLOAD: &str = "Q0FOQVJJRVM=";
const CANARY: u64 = u64::from_le_bytes(*b"CANARIES");

const READS: &str = r#"{"method":"hotel.Echo/Echo","fields":["payload"]}"#;

/// Copies the contents of its view to every eighth byte of its memory behind the buffer.
fn hoarder() -> Vec<u8> {
    let module = Module {
        methods: READS.to_owned(),
        // The view of the one entry, the value of its first field: the start of the bytes.
        request: "(local.set $n (i32.add (i32.const 4096) (i32.load (i32.const 4096))))
            (local.set $wide (i64.load (i32.add (local.get $n) (i32.load offset=16 (local.get $n)))))
            (local.set $at (i32.const 65536))
            (loop $copy
              (i64.store (local.get $at) (local.get $wide))
              (br_if $copy (i32.lt_u (local.tee $at (i32.add (local.get $at) (i32.const 8))) (i32.const 196600))))"
            .to_owned(),
        ..Module::default()
    };
    module.wasm()
}

/// Denies with DATA_LOSS if the canary is anywhere in its memory.
fn searcher(methods: &str) -> Vec<u8> {
    let module = Module {
        methods: methods.to_owned(),
        request: format!(
            "(loop $search
               (if (i64.eq (i64.load (local.get $at)) (i64.const {CANARY}))
                 (then (local.set $wide (i64.add (local.get $wide) (i64.const 1)))))
               (br_if $search (i32.le_u (local.tee $at (i32.add (local.get $at) (i32.const 1))) (i32.const 196600))))"
        ),
        verdict: format!(
            "(if (i64.eqz (local.get $wide)) (then {ALLOW}) (else
               (i32.store offset=12 (local.get $entry) (i32.const 2))
               (i32.store offset=16 (local.get $entry) (i32.const 15))))"
        ),
        ..Module::default()
    };
    module.wasm()
}

#[test]
fn canaries_of_another_tenant_are_not_found_in_the_same_slot() {
    let _machine = together();
    let bed = Testbed::new();
    let daemon = patient_daemon(&bed, "instances = 1\ncpu_share_percent = 100");
    let mut admin = Admin::connect(&daemon);
    let fresh = |tenant: &str| {
        Place::client(tenant, ECHO).with(AttachmentOptions {
            cpu_us: Some(10_000),
            fresh: Some(true),
            ..AttachmentOptions::default()
        })
    };
    let callers = ["acme", "mallory", "control"].map(|tenant| {
        let token = admin.tenant(tenant);
        Caller::with_payload(&daemon, token, PAYLOAD)
    });
    let wildcard = r#"{"method":"hotel.Echo/*"}"#;
    admin.install(&fresh("acme"), "hoarder", &hoarder(), b"");
    admin.install(&fresh("mallory"), "searcher", &searcher(wildcard), b"");
    // A control: the same search in its own view, which contains the canary.
    admin.install(&fresh("control"), "searcher", &searcher(READS), b"");
    let rounds = if is_long() { 20_000 } else { 300 };
    let (mut found, mut clean) = (0, 0);
    for _ in 0..rounds {
        let [acme, mallory, control] = callers.each_ref().map(Caller::evaluated);
        assert_eq!(acme, "ok");
        assert!(
            control.starts_with("DATA_LOSS"),
            "the search finds: {control}"
        );
        match mallory.as_str() {
            "ok" => clean += 1,
            text if text.starts_with("DATA_LOSS") => found += 1,
            other => panic!("{other}"),
        }
    }
    assert_eq!(clean + found, rounds);
    measured(
        &format!("canaries found in {rounds} searches of 196,601 offsets"),
        f64::from(found),
        Limit::AtMost(0.0),
        Limit::AtMost(0.0),
    );
}

/// A field that the operator doesn't grant never enters the sandbox.
#[test]
fn a_field_that_is_not_granted_is_not_in_memory() {
    let _machine = together();
    let bed = Testbed::new();
    let daemon = patient_daemon(&bed, "cpu_share_percent = 100");
    let mut admin = Admin::connect(&daemon);
    let caller = Caller::with_payload(&daemon, admin.tenant("mallory"), PAYLOAD);
    let place = |fields: &[&str]| {
        let names = fields.iter().map(|field| (*field).to_owned()).collect();
        Place::client("mallory", ECHO).with(AttachmentOptions {
            cpu_us: Some(10_000),
            fields: Some(Names { names }),
            ..AttachmentOptions::default()
        })
    };
    admin.install(&place(&["payload"]), "searcher", &searcher(READS), b"");
    assert!(
        caller.evaluated().starts_with("DATA_LOSS"),
        "granted, so found"
    );
    admin.install(&place(&[]), "searcher", &searcher(READS), b"");
    let outcomes = caller.calls(50);
    assert_eq!(passed(&outcomes), 50, "{outcomes:?}");
}
