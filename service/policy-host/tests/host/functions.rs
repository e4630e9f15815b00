//! The host functions: effects, refusals, costs, and the right to import them.

use std::time::Duration;

use tollgate_policy_host::{
    Capabilities, EvaluateError, Fault, Hook, Instance, LoadError, PolicyTime, Rate, Setup,
    SharedState, StateLimits, TenantLimits, Verdict, limits,
};

use crate::guests::{limits, write};
use crate::wat::{ALLOW, Parts, request};

const IMPORTS: &str = r#"
  (import "tollgate" "log" (func $log (param i32 i32 i32)))
  (import "tollgate" "counter" (func $counter (param i32 i64)))
  (import "tollgate" "gauge" (func $gauge (param i32 i64)))
  (import "tollgate" "histogram" (func $histogram (param i32 i64)))
  (import "tollgate" "state_get" (func $get (param i32 i32 i32 i32) (result i32)))
  (import "tollgate" "state_set" (func $set (param i32 i32 i32 i32) (result i32)))
  (import "tollgate" "state_delete" (func $delete (param i32 i32) (result i32)))
  (import "tollgate" "state_add" (func $add (param i32 i32 i64) (result i64)))
  (import "tollgate" "state_replace" (func $replace (param i32 i32 i32 i32 i32 i32) (result i32)))
  (import "tollgate" "now_ms" (func $now (result i64)))
  (import "tollgate" "monotonic_us" (func $monotonic (result i64)))
  (import "tollgate" "random" (func $random (param i32 i32)))"#;

const MANIFEST: &str = r#"{"abi":1,"name":"t","hooks":["request"],"methods":[{"method":"*"}],
  "capabilities":["state","clock","random"],
  "counters":["c"],"gauges":["g","h"],"histograms":["i"]}"#;

/// A guest that may import everything, with the letters `key` at 4096 and `value` at 4100.
pub(crate) fn parts(body: &str) -> Parts {
    Parts {
        imports: IMPORTS,
        manifest: format!("(@custom \"tollgate.manifest\" {MANIFEST:?})"),
        rest: r#"(data (i32.const 4096) "key-value") (data (i32.const 4200) "out")"#.to_owned(),
        ..Parts::with_request(body)
    }
}

fn instance(parts: &Parts, limits: &TenantLimits, state: &SharedState) -> Instance {
    let setup = Setup {
        state: Some(state),
        ..granted(limits, Capabilities::ALL)
    };
    parts.load().unwrap().instantiate(&setup).unwrap()
}

fn granted(limits: &TenantLimits, granted: Capabilities) -> Setup<'_> {
    Setup {
        granted,
        ..Setup::new(limits)
    }
}

fn evaluate(instance: &mut Instance) -> Result<Verdict, Fault> {
    match instance.evaluate(Hook::Request, 0, 8, write(&[8, 0, 0, 0, 0, 0, 0, 0])) {
        Ok(verdict) => Ok(verdict),
        Err(EvaluateError::Fault(fault)) => Err(fault),
        Err(other) => panic!("{other:?}"),
    }
}

/// The value of `expression`, an i64: the guest stores it under `out`.
fn value(expression: &str, state: &SharedState) -> Result<i64, Fault> {
    let body = format!(
        "(i64.store (i32.const 4300) {expression})
         (drop (call $set (i32.const 4200) (i32.const 3) (i32.const 4300) (i32.const 8))) {ALLOW} i32.const 0"
    );
    let mut instance = instance(&parts(&body), &limits(), state);
    evaluate(&mut instance)?;
    let out = state.get(b"out").unwrap();
    Ok(i64::from_le_bytes(out.try_into().unwrap()))
}

fn fresh() -> SharedState {
    SharedState::new(&StateLimits::default())
}

#[test]
fn the_state_is_read_and_written() {
    let state = fresh();
    let set = "(i64.extend_i32_s (call $set (i32.const 4096) (i32.const 3) (i32.const 4100) (i32.const 5)))";
    let get = "(i64.extend_i32_s (call $get (i32.const 4096) (i32.const 3) (i32.const 4400) (i32.const 3)))";
    let delete = "(i64.extend_i32_s (call $delete (i32.const 4096) (i32.const 3)))";
    assert_eq!(value(get, &state), Ok(-1));
    assert_eq!(value(set, &state), Ok(0));
    assert_eq!(state.get(b"key").unwrap(), b"value");
    // The whole length, and as many bytes as fit.
    assert_eq!(value(get, &state), Ok(5));
    let copied = format!("(drop {get}) (i64.load (i32.const 4400))");
    assert_eq!(
        value(&copied, &state).map(i64::to_le_bytes),
        Ok(*b"val\0\0\0\0\0")
    );
    assert_eq!(value(delete, &state), Ok(1));
    assert_eq!(value(delete, &state), Ok(0));
    assert_eq!(state.get(b"key"), None);
}

#[test]
fn a_value_is_replaced_if_it_is_still_the_old_one() {
    let state = fresh();
    // From `old` of some bytes at 4100 ("value") to `len` bytes there.
    let replace = |old: &str, len: usize| {
        format!(
            "(i64.extend_i32_s (call $replace (i32.const 4096) (i32.const 3) {old} (i32.const 4100) (i32.const {len})))"
        )
    };
    let absent = "(i32.const 0x7fffffff) (i32.const -1)";
    let bytes = |len: usize| format!("(i32.const 4100) (i32.const {len})");
    assert_eq!(
        value(&replace(&bytes(0), 5), &state),
        Ok(2),
        "there is none"
    );
    assert_eq!(value(&replace(absent, 2), &state), Ok(0));
    assert_eq!(state.get(b"key").unwrap(), b"va");
    for (old, replaced) in [(absent, 2), (&bytes(1), 2), (&bytes(3), 2), (&bytes(2), 0)] {
        assert_eq!(value(&replace(old, 5), &state), Ok(replaced), "{old}");
    }
    assert_eq!(state.get(b"key").unwrap(), b"value");
    // An empty value isn't an absent one.
    assert_eq!(value(&replace(&bytes(5), 0), &state), Ok(0));
    assert_eq!(value(&replace(absent, 1), &state), Ok(2));
    assert_eq!(value(&replace(&bytes(0), 1), &state), Ok(0));
    let outside = "(i32.const 65534) (i32.const 9)";
    let Err(Fault::Trap(text)) = value(&replace(outside, 1), &state) else {
        panic!("it read outside of memory")
    };
    assert_eq!(text, "the old value at 65534+9 is outside of memory");
    // Without room it stays as it is.
    let room = SharedState::new(&StateLimits {
        total_bytes: 300,
        ..StateLimits::default()
    });
    assert_eq!(value(&replace(absent, 5), &room), Ok(0));
    assert_eq!(value(&replace(&bytes(5), 200), &room), Ok(1));
    assert_eq!(room.get(b"key").unwrap(), b"value");
}

#[test]
fn integers_are_added_to() {
    let state = fresh();
    let add =
        |delta: i64| format!("(call $add (i32.const 4096) (i32.const 3) (i64.const {delta}))");
    assert_eq!(value(&add(5), &state), Ok(5));
    assert_eq!(value(&add(-7), &state), Ok(-2));
    assert_eq!(value(&add(i64::MIN), &state), Ok(i64::MAX - 1));
    let text = "(i64.extend_i32_s (call $set (i32.const 4096) (i32.const 3) (i32.const 4100) (i32.const 5)))";
    value(text, &state).unwrap();
    let fault = Fault::Trap("state_add found a value of 5 bytes; an integer has 8".to_owned());
    assert_eq!(value(&add(1), &state), Err(fault));
}

#[test]
fn instances_share_a_state_and_others_do_not() {
    let add = "(call $add (i32.const 4096) (i32.const 3) (i64.const 1))";
    let (mine, theirs) = (fresh(), fresh());
    for sum in 1..4 {
        assert_eq!(value(add, &mine), Ok(sum));
    }
    assert_eq!(value(add, &theirs), Ok(1));
    // Without a shared state, an instance has its own.
    let body = format!("(drop {add}) {ALLOW} i32.const 0");
    let policy = parts(&body).load().unwrap();
    let mut own = policy
        .instantiate(&granted(&limits(), Capabilities::ALL))
        .unwrap();
    evaluate(&mut own).unwrap();
    assert_eq!(mine.keys(), 2);
}

#[test]
fn the_state_has_limits() {
    let set = |key: usize, value: usize| {
        format!(
            "(i64.extend_i32_s (call $set (i32.const 8192) (i32.const {key}) (i32.const 8192) (i32.const {value})))"
        )
    };
    let room = StateLimits {
        keys: 2,
        key_bytes: 10,
        value_bytes: 200,
        total_bytes: 400,
    };
    let full = |key, value_len| value(&set(key, value_len), &SharedState::new(&room)) == Ok(1);
    assert!(full(0, 1) && !full(1, 0) && !full(10, 1) && full(11, 1));
    assert!(!full(1, 150) && full(1, 201));
    // `out` takes one of the two keys.
    let state = SharedState::new(&room);
    assert_eq!(value(&set(1, 1), &state), Ok(0));
    assert_eq!(value(&set(2, 1), &state), Ok(1));
    assert_eq!(value(&set(1, 2), &state), Ok(0));
    assert_eq!(value(&set(1, 200), &state), Ok(1), "400 bytes in total");
    let add = "(call $add (i32.const 8192) (i32.const 9) (i64.const 1))";
    let Err(Fault::Trap(text)) = value(add, &state) else {
        panic!("there is no third key")
    };
    assert!(
        text.starts_with("state_add has no room for a key of 9 bytes among 2 keys"),
        "{text}"
    );
    let defaults = StateLimits::default();
    assert_eq!(
        (defaults.keys, defaults.key_bytes),
        (limits::STATE_KEYS, limits::STATE_KEY_BYTES)
    );
    assert_eq!(
        (defaults.value_bytes, defaults.total_bytes),
        (limits::STATE_VALUE_BYTES, limits::STATE_BYTES)
    );
}

#[test]
fn the_clocks_are_what_the_host_set() {
    let time = PolicyTime {
        unix_ms: 1_800_000_000_123,
        monotonic_us: 77_000_001,
    };
    for (clock, expected) in [("$now", time.unix_ms), ("$monotonic", time.monotonic_us)] {
        let state = fresh();
        let body = format!(
            "(drop (call $add (i32.const 4200) (i32.const 3) (call {clock}))) {ALLOW} i32.const 0"
        );
        let mut instance = instance(&parts(&body), &limits(), &state);
        evaluate(&mut instance).unwrap();
        assert_eq!(state.get(b"out").unwrap(), [0; 8], "nobody set it yet");
        instance.set_time(time);
        evaluate(&mut instance).unwrap();
        assert_eq!(state.get(b"out").unwrap(), expected.to_le_bytes());
    }
}

#[test]
fn random_bytes_differ_and_are_limited() {
    let random =
        "(call $random (i32.const 4400) (i32.const 256)) (i64.load (i32.const 4648))".to_owned();
    let state = fresh();
    assert_ne!(value(&random, &state), value(&random, &state));
    let more = random.replace("256", "257");
    let fault = Fault::Trap("random was asked for 257 bytes; 256 are allowed".to_owned());
    assert_eq!(value(&more, &state), Err(fault));
}

#[test]
fn gauges_and_histograms_are_measured() {
    let body = format!(
        "(call $gauge (i32.const 1) (i64.const -3)) (call $histogram (i32.const 0) (i64.const 1000))
         (call $histogram (i32.const 0) (i64.const 0)) (call $counter (i32.const 0) (i64.const 2)) {ALLOW} i32.const 0"
    );
    let mut instance = instance(&parts(&body), &limits(), &fresh());
    evaluate(&mut instance).unwrap();
    let metrics = instance.metrics();
    assert_eq!(metrics.gauges[..], [None, Some(-3)]);
    let histogram = &metrics.histograms[0];
    assert_eq!(
        (histogram.buckets[0], histogram.buckets[10], histogram.sum),
        (1, 1, 1000)
    );
    assert_eq!(metrics.counters[..], [2]);
    for (call, text) in [
        (
            "(call $gauge (i32.const 2) (i64.const 0))",
            "gauge 2 is not among the manifest's 2",
        ),
        (
            "(call $histogram (i32.const -1) (i64.const 0))",
            "histogram 4294967295 is not among the manifest's 1",
        ),
    ] {
        let call = format!("{call} (i64.const 0)");
        assert_eq!(value(&call, &fresh()), Err(Fault::Trap(text.to_owned())));
    }
}

#[test]
fn addresses_outside_of_memory_are_faults() {
    let cases = [
        (
            "(i64.extend_i32_s (call $get (i32.const 65535) (i32.const 2) (i32.const 0) (i32.const 0)))",
            "the key at 65535+2",
        ),
        (
            "(i64.extend_i32_s (call $get (i32.const 0) (i32.const 1) (i32.const 65530) (i32.const 7)))",
            "the room for a value at 65530+7",
        ),
        (
            "(i64.extend_i32_s (call $set (i32.const -1) (i32.const 1) (i32.const 0) (i32.const 1)))",
            "the key at 4294967295+1",
        ),
        (
            "(i64.extend_i32_s (call $set (i32.const 0) (i32.const 1) (i32.const 65536) (i32.const 1)))",
            "the value at 65536+1",
        ),
        (
            "(i64.extend_i32_s (call $delete (i32.const 65536) (i32.const 1)))",
            "the key at 65536+1",
        ),
        (
            "(call $add (i32.const 65536) (i32.const 1) (i64.const 1))",
            "the key at 65536+1",
        ),
        (
            "(call $random (i32.const 65535) (i32.const 2)) (i64.const 0)",
            "the room for random bytes at 65535+2",
        ),
    ];
    for (expression, text) in cases {
        let fault = Fault::Trap(format!("{text} is outside of memory"));
        assert_eq!(value(expression, &fresh()), Err(fault), "{expression}");
    }
    // An unaffordable length ends the call before any work.
    let huge =
        "(i64.extend_i32_s (call $set (i32.const 0) (i32.const 1) (i32.const 0) (i32.const -1)))";
    let fuel = limits::FUEL_PER_CALL;
    assert_eq!(value(huge, &fresh()), Err(Fault::OutOfFuel { fuel }));
}

#[test]
fn a_start_function_has_no_addresses_yet() {
    for (call, name) in [
        (
            "(drop (call $add (i32.const 0) (i32.const 1) (i64.const 1)))",
            "state_add",
        ),
        ("(call $random (i32.const 0) (i32.const 1))", "random"),
    ] {
        let parts = Parts {
            rest: format!("(func $s {call}) (start $s)"),
            ..parts("i32.const 0")
        };
        let policy = parts.load().unwrap();
        let refused = policy
            .instantiate(&granted(&limits(), Capabilities::ALL))
            .unwrap_err();
        let text = format!("{name} was called before the instance was complete");
        let fault = Fault::Trap(text);
        assert_eq!(
            refused,
            LoadError::Setup {
                step: "start",
                fault
            }
        );
    }
}

#[test]
fn undeclared_functions_do_not_link() {
    for (name, ty, capability) in [
        (
            "state_get",
            "(param i32 i32 i32 i32) (result i32)",
            Capabilities::STATE,
        ),
        (
            "state_set",
            "(param i32 i32 i32 i32) (result i32)",
            Capabilities::STATE,
        ),
        (
            "state_delete",
            "(param i32 i32) (result i32)",
            Capabilities::STATE,
        ),
        (
            "state_add",
            "(param i32 i32 i64) (result i64)",
            Capabilities::STATE,
        ),
        (
            "state_replace",
            "(param i32 i32 i32 i32 i32 i32) (result i32)",
            Capabilities::STATE,
        ),
        ("now_ms", "(result i64)", Capabilities::CLOCK),
        ("monotonic_us", "(result i64)", Capabilities::CLOCK),
        ("random", "(param i32 i32)", Capabilities::RANDOM),
    ] {
        let import = format!(r#"(import "tollgate" "{name}" (func {ty}))"#);
        let parts = Parts {
            imports: Box::leak(import.into()),
            ..Parts::default()
        };
        assert_eq!(
            parts.load().unwrap_err(),
            LoadError::UndeclaredImport { name, capability }
        );
    }
}

#[test]
fn what_is_not_granted_is_named() {
    let policy = parts("i32.const 0").load().unwrap();
    let refused = policy.instantiate(&Setup::new(&limits())).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "the policy needs capabilities that aren't granted: clock random"
    );
    let but_random = Capabilities::default() | Capabilities::CLOCK;
    let refused = policy
        .instantiate(&granted(&limits(), but_random))
        .unwrap_err();
    assert_eq!(refused, LoadError::NotGranted(Capabilities::RANDOM));
    // Log and metrics are always granted.
    let policy = Parts::default().load().unwrap();
    policy
        .instantiate(&granted(&limits(), "change".parse().unwrap()))
        .unwrap();
}

/// Each host function in an endless loop: the budget ends it, and tells the cost of one call.
#[test]
fn every_function_is_charged() {
    let cases = [
        (
            "(call $log (i32.const 1) (i32.const 0) (i32.const 100))",
            600,
        ),
        ("(call $counter (i32.const 0) (i64.const 1))", 50),
        ("(call $gauge (i32.const 0) (i64.const 1))", 50),
        ("(call $histogram (i32.const 0) (i64.const 1))", 50),
        ("(drop (call $now))", 50),
        (
            "(drop (call $get (i32.const 4096) (i32.const 3) (i32.const 4400) (i32.const 1000)))",
            1003 + 700,
        ),
        (
            "(drop (call $set (i32.const 4096) (i32.const 3) (i32.const 4400) (i32.const 700)))",
            2703,
        ),
        ("(drop (call $delete (i32.const 4100) (i32.const 3)))", 2003),
        (
            "(drop (call $add (i32.const 4100) (i32.const 3) (i64.const 1)))",
            2003,
        ),
        ("(call $random (i32.const 4400) (i32.const 10))", 3100),
    ];
    for (call, price) in cases {
        let used = |calls: usize| {
            let state = fresh();
            let body = format!(
                "(drop (call $set (i32.const 4096) (i32.const 3) (i32.const 8192) (i32.const 700)))
                 (drop (call $delete (i32.const 4100) (i32.const 3)))
                 {} {ALLOW} i32.const 0",
                call.repeat(calls)
            );
            let mut instance = instance(&parts(&body), &limits(), &state);
            evaluate(&mut instance).unwrap();
            instance.fuel_used()
        };
        // The call instruction and its operands are added.
        let paid = used(11) - used(1);
        assert!(
            (10 * price..10 * (price + 20)).contains(&paid),
            "{call}: {paid}"
        );
        let endless = format!("(loop {call} br 0) unreachable");
        let mut endless = instance(&parts(&endless), &limits(), &fresh());
        let fuel = limits::FUEL_PER_CALL;
        assert_eq!(
            evaluate(&mut endless),
            Err(Fault::OutOfFuel { fuel }),
            "{call}"
        );
        assert_eq!(endless.fuel_used(), fuel);
    }
}

#[test]
fn fuel_used_is_that_of_the_last_evaluation() {
    let loops = |n: u32| {
        format!(
            "(local.set 1 (i32.const {n})) (loop (br_if 0 (local.tee 1 (i32.sub (local.get 1) (i32.const 1))))) {ALLOW} i32.const 0"
        )
    };
    let used = |body: &str| {
        let mut instance = Parts::with_request(body).instantiate().unwrap();
        assert!(instance.fuel_used() > 0, "the set-up");
        let outcome = evaluate(&mut instance);
        (outcome.is_ok(), instance.fuel_used())
    };
    let (short, long) = (used(&loops(10)).1, used(&loops(1010)).1);
    assert!((4_000..8_000).contains(&(long - short)), "{short} {long}");
    // A trap leaves no exact count: everything granted counts as used.
    let trap = format!("(drop (i32.load (i32.const -4))) {}", loops(10));
    assert_eq!(used(&trap), (false, limits::FUEL_PER_CALL));
    // A bad answer is counted exactly.
    let (ok, bad) = used(&loops(10).replace(ALLOW, ""));
    assert!(!ok && bad < short);
    // Denials and their messages are paid for.
    let deny = |len: u32| {
        format!(
            "(i32.store (i32.const 1036) (i32.const 2)) (i32.store (i32.const 1040) (i32.const 7)) (i32.store (i32.const 1048) (i32.const {len})) i32.const 0"
        )
    };
    let (none, some) = (used(&deny(0)).1, used(&deny(500)).1);
    assert_eq!(some - none, 600);
    assert_eq!(used(&deny(5000)).1 - none, 1124, "what is read");
}

#[test]
fn a_message_that_cannot_be_paid_is_a_fault() {
    let body = "(i32.store (i32.const 1036) (i32.const 2)) (i32.store (i32.const 1040) (i32.const 7)) (i32.store (i32.const 1048) (i32.const 500)) i32.const 0";
    let fuel_per_call = 100;
    let limits = TenantLimits {
        fuel_per_call,
        ..limits()
    };
    let policy = Parts::with_request(body).load().unwrap();
    let mut instance = policy.instantiate(&Setup::new(&limits)).unwrap();
    let fuel = fuel_per_call;
    assert_eq!(evaluate(&mut instance), Err(Fault::OutOfFuel { fuel }));
    assert!(instance.is_dead());
}

#[test]
fn a_budget_of_time_is_cut_to_its_bounds() {
    let fuel = |micros, rate| {
        let limits = TenantLimits::for_cpu(Duration::from_micros(micros), rate);
        (limits.fuel_per_call, limits.fuel_for_setup)
    };
    let (full, half) = (Rate::default(), Rate::new(1750));
    assert_eq!(fuel(100, full), (350_000, limits::FUEL_FOR_SETUP));
    assert_eq!(fuel(100, half), (175_000, limits::FUEL_FOR_SETUP / 2));
    assert_eq!(fuel(1, full).0, limits::CPU_US_MIN * 3500);
    assert_eq!(fuel(1_000_000, full).0, limits::CPU_US_MAX * 3500);
    assert_eq!(
        TenantLimits::for_cpu(Duration::from_micros(100), full),
        TenantLimits::default()
    );
}

const HANDOVER: &str = r#"{"abi":1,"name":"t","hooks":["request","tick"],"tick_ms":100,"methods":[{"method":"*"}],"state":{"version":3}}"#;

/// A guest whose state is the 4 bytes at 4096; a tick adds 1 to them.
fn stateful(save: &str, restore: &str, tick: &str) -> Parts {
    Parts {
        manifest: format!("(@custom \"tollgate.manifest\" {HANDOVER:?})"),
        request: request(&format!("{ALLOW} i32.const 0")),
        rest: format!(
            r#"(func (export "tollgate_save") (result i64) {save})
               (func (export "tollgate_restore") (param i32 i32) (result i32) {restore})
               (func (export "tollgate_tick") (result i32) {tick})"#
        ),
        ..Parts::default()
    }
}

const SAVE: &str = "(i64.const 0x400001000)";
const RESTORE: &str =
    "(i32.store (i32.const 4096) (i32.load (i32.const 1024))) (i32.ne (local.get 0) (i32.const 3))";
const TICK: &str =
    "(i32.store (i32.const 4096) (i32.add (i32.const 1) (i32.load (i32.const 4096)))) i32.const 0";

#[test]
fn state_is_handed_over() {
    let parts = stateful(SAVE, RESTORE, TICK);
    let policy = parts.load().unwrap();
    assert_eq!(policy.manifest().state_version(), Some(3));
    assert_eq!(policy.manifest().tick(), Some(Duration::from_millis(100)));
    assert_eq!(policy.manifest().hooks(), [Hook::Request]);
    let mut old = parts.instantiate().unwrap();
    for _ in 0..5 {
        old.tick().unwrap();
        evaluate(&mut old).unwrap();
    }
    let saved = old.save().unwrap().unwrap();
    assert_eq!(saved, 5u32.to_le_bytes());
    assert!(old.fuel_used() > 0);
    let mut new = parts.instantiate().unwrap();
    new.restore(3, &saved).unwrap();
    new.tick().unwrap();
    assert_eq!(new.save().unwrap().unwrap(), 6u32.to_le_bytes());
    assert_eq!(
        evaluate(&mut old),
        Ok(Verdict::Allow),
        "the old one lives on"
    );
    let refused = Fault::RestoreRefused {
        version: 2,
        returned: 1,
    };
    assert_eq!(new.restore(2, &saved), Err(refused));
    assert!(new.is_dead());
    assert_eq!(new.save(), Err(Fault::Dead));
    assert_eq!(new.tick(), Err(Fault::Dead));
    assert_eq!(new.restore(3, &saved), Err(Fault::Dead));
}

#[test]
fn bad_hand_overs_are_faults() {
    let save = |save: &str| {
        let mut instance = stateful(save, RESTORE, TICK).instantiate().unwrap();
        let fault = instance.save().unwrap_err();
        assert!(instance.is_dead());
        fault
    };
    let bad = |address, len| Fault::BadSave {
        address,
        len,
        max: limits::SAVED_BYTES,
        memory: 65_536,
    };
    assert_eq!(save("(i64.const 0x20000ffff)"), bad(65_535, 2));
    assert_eq!(save("(i64.const -1)"), bad(u32::MAX, u32::MAX));
    let endless = "(loop br 0) unreachable";
    let fuel = limits::FUEL_FOR_HANDOVER;
    assert_eq!(save(endless), Fault::OutOfFuel { fuel });
    let mut instance = stateful(SAVE, endless, TICK).instantiate().unwrap();
    assert_eq!(instance.restore(3, b"four"), Err(Fault::OutOfFuel { fuel }));
    // More than the guest's buffer holds.
    let mut instance = stateful(SAVE, RESTORE, TICK).instantiate().unwrap();
    assert!(matches!(
        instance.restore(3, &[0; 70_000]),
        Err(Fault::BadBuffer { .. })
    ));
    let tick = |tick: &str| {
        let mut instance = stateful(SAVE, RESTORE, tick).instantiate().unwrap();
        instance.tick().unwrap_err()
    };
    let fuel = limits::FUEL_PER_CALL;
    assert_eq!(tick(endless), Fault::OutOfFuel { fuel });
    let function = "tick";
    let returned = 7;
    assert_eq!(tick("i32.const 7"), Fault::BadReturn { function, returned });
}

#[test]
fn the_largest_state_is_a_mebibyte() {
    let parts = |len: usize| Parts {
        memory: r#"(memory (export "memory") 20)"#,
        ..stateful(&format!("(i64.const {})", len << 32), RESTORE, TICK)
    };
    let save = |len| parts(len).instantiate().unwrap().save();
    assert_eq!(
        save(limits::SAVED_BYTES).unwrap().unwrap().len(),
        limits::SAVED_BYTES
    );
    assert!(matches!(
        save(limits::SAVED_BYTES + 1),
        Err(Fault::BadSave { .. })
    ));
}

#[test]
fn a_policy_without_state_has_nothing_to_hand_over() {
    let mut instance = Parts::default().instantiate().unwrap();
    assert_eq!(instance.save(), Ok(None));
    assert_eq!(instance.tick(), Ok(()));
    assert_eq!(instance.restore(1, b""), Err(Fault::NoState));
    assert_eq!(evaluate(&mut instance), Ok(Verdict::Allow));
}

#[test]
fn exports_for_state_and_ticks_are_asked_for() {
    for (name, wanted) in [
        ("tollgate_save", "function () -> (i64)"),
        ("tollgate_restore", "function (i32, i32) -> (i32)"),
        ("tollgate_tick", "function () -> (i32)"),
    ] {
        let mut parts = stateful(SAVE, RESTORE, TICK);
        parts.rest = parts.rest.replace(name, "elsewhere");
        assert_eq!(
            parts.load().unwrap_err().to_string(),
            format!("the module's export {name:?} is missing; ABI 1 needs {wanted}")
        );
    }
}

const WASI: &str = r#"
  (import "wasi_snapshot_preview1" "random_get" (func $random (param i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "clock_time_get" (func $clock (param i32 i64 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
  (import "wasi_snapshot_preview1" "proc_exit" (func $exit (param i32)))"#;

/// A guest with WASI and these capabilities. `$is` ends it if its arguments differ.
fn with_wasi(capabilities: &str, body: &str, rest: &str) -> Parts {
    let manifest = format!(
        r#"{{"abi":1,"name":"t","wasi":true,"hooks":["request"],"methods":[{{"method":"*"}}],
        "capabilities":[{capabilities}]}}"#
    );
    let is = r#"(func $is (param i32 i32)
        (if (i32.ne (local.get 0) (local.get 1)) (then unreachable)))
        (data (i32.const 4096) "\10\10\00\00\05\00\00\00") (data (i32.const 4112) "hello")"#;
    Parts {
        imports: WASI,
        manifest: format!("(@custom \"tollgate.manifest\" {manifest:?})"),
        rest: format!("{is} {rest}"),
        ..Parts::with_request(&format!("{body} {ALLOW} i32.const 0"))
    }
}

#[test]
fn wasi_has_no_more_than_the_policy_was_granted() {
    let body = |random: u32, real: u64, steady: u64| {
        format!(
            "(call $is (i32.const {random}) (call $random (i32.const 4300) (i32.const 8)))
             (call $is (i32.const 0) (call $clock (i32.const 0) (i64.const 1) (i32.const 4400)))
             (call $is (i32.const 1) (i64.eq (i64.load (i32.const 4400)) (i64.const {real})))
             (call $is (i32.const 0) (call $clock (i32.const 1) (i64.const 1) (i32.const 4400)))
             (call $is (i32.const 1) (i64.eq (i64.load (i32.const 4400)) (i64.const {steady})))
             (call $is (i32.const 21) (call $clock (i32.const 0) (i64.const 1) (i32.const -4)))
             (call $is (i32.const 8) (call $read (i32.const 0) (i32.const 0) (i32.const 0) (i32.const 0)))
             (call $is (i32.const 0) (call $write (i32.const 2) (i32.const 4096) (i32.const 1) (i32.const 4400)))"
        )
    };
    for (capabilities, body) in [
        ("", body(52, 0, 1)),
        (r#""clock","random""#, body(0, 1_234_000_000, 1_234_000_000)),
    ] {
        let parts = with_wasi(capabilities, &body, "");
        let mut instance = instance(&parts, &limits(), &fresh());
        instance.set_time(PolicyTime {
            unix_ms: 1234,
            ..PolicyTime::default()
        });
        assert_eq!(
            evaluate(&mut instance),
            Ok(Verdict::Allow),
            "{capabilities}"
        );
        let (log, dropped) = instance.take_log();
        assert_eq!((log.len(), dropped), (1, 0));
        assert_eq!(log[0].text, "hello");
    }
}

#[test]
fn a_run_time_library_starts_before_the_policy() {
    let start = r#"(global $started (mut i32) (i32.const 0))
        (func (export "_initialize") (global.set $started (i32.const 1)))"#;
    let body = "(call $is (i32.const 1) (global.get $started))";
    let started = with_wasi("", body, start);
    let mut its = instance(&started, &limits(), &fresh());
    assert_eq!(evaluate(&mut its), Ok(Verdict::Allow));

    // Without WASI in the manifest, the export is nobody's.
    let own = Parts {
        rest: r#"(func (export "_initialize") unreachable)"#.to_owned(),
        ..Parts::default()
    };
    assert!(own.instantiate().is_ok());

    for (rest, words) in [
        (
            r#"(func (export "_initialize") (call $exit (i32.const 3)))"#,
            "it ended itself with exit status 3",
        ),
        (
            r#"(func (export "_initialize") (loop $l (br $l)))"#,
            "exceeded its budget of 350000000 units",
        ),
        (
            r#"(func (export "_initialize") (result i32) i32.const 0)"#,
            "\"_initialize\" has the wrong type",
        ),
    ] {
        let refused = with_wasi("", "", rest)
            .instantiate()
            .unwrap_err()
            .to_string();
        assert!(refused.contains(words), "{refused}");
    }
}
