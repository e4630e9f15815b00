//! The price list against time: a unit of fuel takes about as long for the slowest instruction as
//! for any other.
//!
//! There are no absolute times: a loop over each operator runs together with a loop over a
//! division, which defines the unit, and may take at most [`MARGIN`] times as long per unit.

use std::convert::Infallible;
use std::fmt::Write;
use std::time::{Duration, Instant};

use tollgate_policy_host::{
    Capabilities, Hook, Host, HostConfig, Instance, Rate, Setup, SharedState, StateLimits,
    TenantLimits, Verdict, limits,
};

use crate::guests::HOST;
use crate::wat::{ALLOW, Parts};

/// The maximum factor of time per unit over the reference. The machine is shared; a missing price
/// shows as a factor of 10 and more.
const MARGIN: u64 = 4;

/// Runs of each loop; the fastest counts.
const RUNS: usize = 15;

const REFERENCE: &str = "(local.set $l (i64.or (i64.rem_s (i64.const 0x7ffffffffffffff7) (local.get $l)) (i64.const 0x4000000000000001)))";

/// A loop over each operator that a module may have, each waiting for its own last result where it
/// has one.
fn operators() -> Vec<(String, String)> {
    let mut loops = Vec::new();
    for (ty, local, constant) in [
        ("i32", "$i", "0x6b8b4567"),
        ("i64", "$l", "0x7fffffffffffffff"),
        ("f32", "$f", "1.0000001"),
        ("f64", "$d", "1.0000001"),
    ] {
        numeric(&mut loops, ty, local, constant);
    }
    conversions(&mut loops);
    memory(&mut loops);
    control(&mut loops);
    loops
}

fn numeric(loops: &mut Vec<(String, String)>, ty: &str, local: &str, constant: &str) {
    let integer = ty.starts_with('i');
    let (unary, binary, compare) = if integer {
        (
            "clz ctz popcnt extend8_s extend16_s",
            "add sub mul and or xor shl shr_s shr_u rotl rotr",
            "eq ne lt_s lt_u gt_s gt_u le_s le_u ge_s ge_u",
        )
    } else {
        (
            "abs neg ceil floor trunc nearest sqrt",
            "add sub mul div min max copysign",
            "eq ne lt gt le ge",
        )
    };
    let get = format!("(local.get {local})");
    let operand = format!("({ty}.const {constant})");
    for op in unary.split(' ') {
        let body = format!("(local.set {local} ({ty}.{op} {get}))");
        loops.push((format!("{ty}.{op}"), body));
    }
    for op in binary.split(' ') {
        let body = format!("(local.set {local} ({ty}.{op} {get} {operand}))");
        loops.push((format!("{ty}.{op}"), body));
    }
    for op in compare.split(' ') {
        let body = format!("(local.set $i (i32.add (local.get $i) ({ty}.{op} {get} {operand})))");
        loops.push((format!("{ty}.{op}"), body));
    }
    if integer {
        let eqz = format!("(local.set $i (i32.add (local.get $i) ({ty}.eqz {get})))");
        loops.push((format!("{ty}.eqz"), eqz));
        for op in ["div_s", "div_u", "rem_s", "rem_u"] {
            // The divisor depends on the last quotient, and is never 0 or -1.
            let odd = format!("({ty}.or ({ty}.and {get} ({ty}.const 0xffff)) ({ty}.const 0x4001))");
            let body = format!("(local.set {local} ({ty}.{op} {operand} {odd}))");
            loops.push((format!("{ty}.{op}"), body));
        }
    }
}

fn conversions(loops: &mut Vec<(String, String)>) {
    for (integer, i) in [("i32", "$i"), ("i64", "$l")] {
        for (float, f) in [("f32", "$f"), ("f64", "$d")] {
            for sign in ["s", "u"] {
                for trunc in ["trunc", "trunc_sat"] {
                    let small = format!("({integer}.and (local.get {i}) ({integer}.const 0xffff))");
                    let body = format!(
                        "(local.set {i} ({integer}.{trunc}_{float}_{sign} ({float}.convert_{integer}_{sign} {small})))"
                    );
                    loops.push((format!("{integer}.{trunc}_{float}_{sign}"), body));
                }
            }
            if integer.ends_with(&float[1..]) {
                let body = format!(
                    "(local.set {i} ({integer}.reinterpret_{float} ({float}.reinterpret_{integer} (local.get {i}))))"
                );
                loops.push((format!("{integer}.reinterpret_{float}"), body));
                let _ = f;
            }
        }
    }
    for (name, body) in [
        (
            "f32.demote_f64",
            "(local.set $d (f64.promote_f32 (f32.demote_f64 (local.get $d))))",
        ),
        (
            "i32.wrap_i64",
            "(local.set $l (i64.extend_i32_u (i32.wrap_i64 (local.get $l))))",
        ),
        (
            "i64.extend_i32_s",
            "(local.set $l (i64.extend_i32_s (i32.wrap_i64 (local.get $l))))",
        ),
        (
            "i64.extend32_s",
            "(local.set $l (i64.extend32_s (local.get $l)))",
        ),
    ] {
        loops.push((name.to_owned(), body.to_owned()));
    }
}

/// Loads and stores of 4 KiB, which stay in the first-level cache; the account of time covers loads
/// that miss all caches.
fn memory(loops: &mut Vec<(String, String)>) {
    let address = "(local.tee $i (i32.and (i32.add (i32.mul (local.get $i) (i32.const 1664525)) (i32.const 1013904223)) (i32.const 0xff8)))";
    for op in [
        "i32.load",
        "i32.load8_s",
        "i32.load8_u",
        "i32.load16_s",
        "i32.load16_u",
        "i64.load",
        "i64.load8_s",
        "i64.load8_u",
        "i64.load16_s",
        "i64.load16_u",
        "i64.load32_s",
        "i64.load32_u",
        "f32.load",
        "f64.load",
    ] {
        loops.push((op.to_owned(), format!("(drop ({op} {address}))")));
    }
    for (op, value) in [
        ("i32.store", "(i32.const 1)"),
        ("i32.store8", "(i32.const 1)"),
        ("i32.store16", "(i32.const 1)"),
        ("i64.store", "(i64.const 1)"),
        ("i64.store8", "(i64.const 1)"),
        ("i64.store16", "(i64.const 1)"),
        ("i64.store32", "(i64.const 1)"),
        ("f32.store", "(f32.const 1)"),
        ("f64.store", "(f64.const 1)"),
    ] {
        loops.push((op.to_owned(), format!("({op} {address} {value})")));
    }
    for (name, body) in [
        (
            "chased load",
            "(local.set $i (i32.and (i32.load (local.get $i)) (i32.const 0xff8)))",
        ),
        (
            "memory.size",
            "(local.set $i (i32.add (local.get $i) (memory.size)))",
        ),
        ("memory.grow 0", "(drop (memory.grow (i32.const 0)))"),
        (
            "memory.grow, refused",
            "(drop (memory.grow (i32.const 60000)))",
        ),
        (
            "memory.fill 0",
            "(memory.fill (i32.const 0) (i32.const 0) (i32.const 0))",
        ),
        (
            "memory.fill 64",
            "(memory.fill (i32.const 0) (i32.const 0) (i32.const 64))",
        ),
        (
            "memory.fill 4096",
            "(memory.fill (i32.const 0) (i32.const 0) (i32.const 4096))",
        ),
        (
            "memory.copy 1",
            "(memory.copy (i32.const 0) (i32.const 1000) (i32.const 1))",
        ),
        (
            "memory.copy 4096",
            "(memory.copy (i32.const 0) (i32.const 1000) (i32.const 4096))",
        ),
        (
            "memory.init 32",
            "(memory.init $d (i32.const 0) (i32.const 0) (i32.const 32))",
        ),
    ] {
        loops.push((name.to_owned(), body.to_owned()));
    }
}

fn control(loops: &mut Vec<(String, String)>) {
    for (name, body) in [
        ("nothing", ""),
        (
            "select",
            "(local.set $i (select (local.get $i) (i32.const 7) (local.get $i)))",
        ),
        (
            "br_if",
            "(block (br_if 0 (local.get $i)) (local.set $i (i32.const 1)))",
        ),
        (
            "br_table",
            "(block (block (block (br_table 0 1 2 (i32.and (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 3))))))",
        ),
        (
            "if",
            "(if (i32.and (local.tee $i (i32.add (local.get $i) (i32.const 1))) (i32.const 1)) (then (local.set $l (i64.const 1))) (else (local.set $l (i64.const 2))))",
        ),
        (
            "global.get",
            "(local.set $i (i32.add (local.get $i) (global.get $g)))",
        ),
        (
            "global.set",
            "(global.set $g (i32.add (global.get $g) (i32.const 1)))",
        ),
        ("call", "(call $nothing)"),
        ("call_indirect", "(call_indirect (type $n) (i32.const 0))"),
        (
            "table.size",
            "(local.set $i (i32.add (local.get $i) (table.size 0)))",
        ),
        (
            "table.grow 0",
            "(drop (table.grow 0 (ref.null func) (i32.const 0)))",
        ),
        (
            "table.grow, refused",
            "(drop (table.grow 0 (ref.null func) (i32.const 60000)))",
        ),
        (
            "table.fill 0",
            "(table.fill 0 (i32.const 1) (ref.null func) (i32.const 0))",
        ),
        (
            "table.fill 15",
            "(table.fill 0 (i32.const 1) (ref.null func) (i32.const 15))",
        ),
        (
            "table.copy 8",
            "(table.copy (i32.const 8) (i32.const 1) (i32.const 7))",
        ),
        (
            "table.init 2",
            "(table.init $e (i32.const 1) (i32.const 0) (i32.const 2))",
        ),
        ("table.get", "(drop (table.get 0 (i32.const 0)))"),
        (
            "table.set",
            "(table.set 0 (i32.const 1) (ref.func $nothing))",
        ),
        (
            "table.set null",
            "(table.set 0 (i32.const 1) (ref.null func))",
        ),
        ("ref.func", "(drop (ref.func $nothing))"),
        (
            "ref.is_null",
            "(local.set $i (ref.is_null (ref.null func)))",
        ),
    ] {
        loops.push((name.to_owned(), body.to_owned()));
    }
}

/// One module with a loop of 2,000 steps per method of its manifest.
fn module(loops: &[(String, String)]) -> Parts {
    let mut functions = String::new();
    let mut choice = String::new();
    let mut methods = Vec::new();
    for (index, (_, body)) in loops.iter().enumerate() {
        write!(
            functions,
            "(func $loop{index} (local $i i32) (local $l i64) (local $d f64) (local $f f32) (local $n i32)
               (local.set $n (i32.const 250)) (local.set $l (i64.const 0x7fffffffffffffff))
               (local.set $d (f64.const 1e300)) (local.set $f (f32.const 1e30)) (local.set $i (i32.const 8))
               (loop $again {} (br_if $again (local.tee $n (i32.sub (local.get $n) (i32.const 1))))))",
            body.repeat(8)
        )
        .unwrap();
        write!(
            choice,
            "(if (i32.eq (local.get 1) (i32.const {index})) (then (call $loop{index})))"
        )
        .unwrap();
        methods.push(format!("{{\"method\":\"a.B/M{index}\"}}"));
    }
    let manifest = format!(
        r#"{{"abi":1,"name":"t","hooks":["request"],"methods":[{}],"counters":["c"],"gauges":["g"],"histograms":["h"],"capabilities":["state","clock","random"]}}"#,
        methods.join(",")
    );
    Parts {
        manifest: format!("(@custom \"tollgate.manifest\" {manifest:?})"),
        rest: format!(
            r#"(table 16 64 funcref) (type $n (func)) (elem (i32.const 0) $nothing) (func $nothing) (global $g (mut i32) (i32.const 0))
               (data $d "0123456789abcdef0123456789abcdef") (elem $e func $nothing $nothing) {functions}"#
        ),
        // The loops overwrite the entry.
        ..Parts::with_request(&format!(
            "(local.set 1 (i32.load (i32.const 1032))) {choice} {ALLOW} i32.const 0"
        ))
    }
}

/// Time and fuel of one run of a loop.
fn run(instance: &mut Instance, method: u32) -> (Duration, u64) {
    let start = Instant::now();
    let ran = instance.evaluate::<Infallible>(Hook::Request, method, 0, |_| Ok(0));
    let took = start.elapsed();
    assert_eq!(ran, Ok(Verdict::Allow));
    instance.take_log();
    (took, instance.fuel_used())
}

/// Picoseconds per unit of each loop, the fastest of several runs that alternate with the other
/// loops; the first is the reference.
fn picoseconds_per_unit(
    loops: &[(String, String)],
    parts: impl FnOnce(Parts) -> Parts,
) -> Vec<u64> {
    let limits = TenantLimits {
        fuel_per_call: u64::MAX,
        ..TenantLimits::default()
    };
    let state = SharedState::new(&StateLimits::default());
    let setup = Setup {
        granted: Capabilities::ALL,
        state: Some(&state),
        ..Setup::new(&limits)
    };
    let policy = parts(module(loops)).load().unwrap();
    let mut instance = policy.instantiate(&setup).unwrap();
    let mut fastest = vec![u64::MAX; loops.len()];
    for _ in 0..RUNS {
        for (method, fastest) in (0..).zip(&mut fastest) {
            let (took, fuel) = run(&mut instance, method);
            *fastest = (*fastest).min(took.as_nanos() as u64 * 1000 / fuel);
        }
    }
    fastest
}

fn check(loops: &[(String, String)], parts: impl Fn(Parts) -> Parts) {
    let reference = ("reference".to_owned(), REFERENCE.to_owned());
    for chunk in loops.chunks(limits::METHODS - 1) {
        let loops: Vec<_> = std::iter::once(reference.clone())
            .chain(chunk.iter().cloned())
            .collect();
        let measured = picoseconds_per_unit(&loops, &parts);
        let bound = measured[0] * MARGIN;
        let slowest = loops.iter().zip(&measured).max_by_key(|(_, ps)| **ps);
        println!(
            "reference: {} ps per unit, slowest: {slowest:?}",
            measured[0]
        );
        let slow: Vec<_> = loops
            .iter()
            .zip(&measured)
            .filter(|(_, ps)| **ps > bound)
            .map(|((name, _), ps)| format!("{name}: {ps} ps per unit"))
            .collect();
        assert!(
            slow.is_empty(),
            "the reference takes {} ps per unit; {slow:?}",
            measured[0]
        );
    }
}

#[test]
fn no_operator_outruns_its_price() {
    let operators = operators();
    assert!(operators.len() > 170, "{}", operators.len());
    check(&operators, |parts| parts);
}

/// Accounting: the host's work for each function, in time per unit charged.
#[test]
fn no_host_function_outruns_its_price() {
    let imports = r#"
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
    // A key of 256 bytes at 8192, all alike except for the last 4: the longest possible
    // comparisons.
    let next = "(i32.store (i32.const 8444) (local.tee $i (i32.and (i32.const 4095) (i32.add (local.get $i) (i32.const 997)))))";
    let key = "(i32.const 8192) (i32.const 256)";
    let loops: Vec<(String, String)> = [
        ("fill", format!("{next} (drop (call $set {key} (i32.const 0) (i32.const 8)))")),
        ("log 1", "(call $log (i32.const 1) (i32.const 0) (i32.const 1))".to_owned()),
        ("log 512", "(call $log (i32.const 1) (i32.const 0) (i32.const 512))".to_owned()),
        ("counter", "(call $counter (i32.const 0) (i64.const 1))".to_owned()),
        ("gauge", "(call $gauge (i32.const 0) (i64.const 1))".to_owned()),
        ("histogram", "(call $histogram (i32.const 0) (i64.const 1000))".to_owned()),
        ("now_ms", "(drop (call $now))".to_owned()),
        ("monotonic_us", "(drop (call $monotonic))".to_owned()),
        ("replace", format!("{next} (drop (call $replace {key} (i32.const 0) (i32.const 8) (i32.const 0) (i32.const 8)))")),
        ("replace with another length", format!("{next} (drop (call $replace {key} (i32.const 0) (i32.and (local.get $i) (i32.const 127)) (i32.const 0) (i32.and (local.get $i) (i32.const 127))))")),
        ("get", format!("{next} (drop (call $get {key} (i32.const 0) (i32.const 8)))")),
        ("add", format!("{next} (drop (call $add {key} (i64.const 1)))")),
        ("delete and set", format!("{next} (drop (call $delete {key})) (drop (call $set {key} (i32.const 0) (i32.const 8)))")),
        ("set of another length", format!("{next} (drop (call $set {key} (i32.const 0) (i32.and (local.get $i) (i32.const 127))))")),
        ("random 1", "(call $random (i32.const 0) (i32.const 1))".to_owned()),
        ("random 256", "(call $random (i32.const 0) (i32.const 256))".to_owned()),
    ]
    .map(|(name, body)| (name.to_owned(), body))
    .into();
    check(&loops, |parts| Parts { imports, ..parts });
}

#[test]
fn calibration_stays_within_its_bounds() {
    let rate = HOST.calibrated();
    assert!(rate <= Rate::default(), "{rate:?}");
    // A machine a hundred times slower than the measured ones would be an error of the measurement.
    assert!(rate.units_per_microsecond() > 35, "{rate:?}");
}

#[test]
fn calibration_without_room_is_the_default() {
    let host = Host::new(HostConfig {
        instances: 1,
        ..HostConfig::default()
    })
    .unwrap();
    let policy = host.load(&Parts::default().wasm()).unwrap();
    let limits = TenantLimits::default();
    let _only = policy.instantiate(&Setup::new(&limits)).unwrap();
    assert_eq!(host.calibrated(), Rate::default());
}
