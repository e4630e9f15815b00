//! Measures the claims of `cost.rs` and DESIGN: the price of an evaluation, and nanoseconds per
//! unit of fuel.
//!
//! ```sh
//! cargo build --profile policy --target wasm32-unknown-unknown -p policy-null -p policy-hotel-acl
//! cargo run --release -p tollgate-policy-host --example cost -- target/wasm32-unknown-unknown/policy
//! ```

#![forbid(unsafe_code)]

use std::convert::Infallible;
use std::error::Error;
use std::hint::black_box;
use std::path::Path;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tollgate_policy_host::{
    FUEL_PER_MICROSECOND, Hook, Host, HostConfig, Instance, Setup, TenantLimits, Verdict,
};

type Outcome = Result<(), Box<dyn Error>>;

fn main() -> Outcome {
    let dir = std::env::args()
        .nth(1)
        .ok_or("usage: cost DIRECTORY-OF-WASM-FILES")?;
    let host = Host::new(HostConfig {
        instances: 8,
        ..HostConfig::default()
    })?;
    evaluations(&host, Path::new(&dir))?;
    fuel(&host)
}

fn setup<'a>(limits: &'a TenantLimits, config: Option<&'a [u8]>) -> Setup<'a> {
    Setup {
        config,
        ..Setup::new(limits)
    }
}

/// CPU time of this thread: other processes on the machine don't count.
struct Clock(Duration);

impl Clock {
    fn start() -> Clock {
        let now = clock_gettime(ClockId::ThreadCPUTime);
        Clock(Duration::new(
            now.tv_sec.cast_unsigned(),
            now.tv_nsec as u32,
        ))
    }

    fn elapsed(&self) -> Duration {
        Clock::start().0.saturating_sub(self.0)
    }
}

/// The median of batches of `n` runs, in nanoseconds per run.
fn median(n: usize, mut run: impl FnMut(usize)) -> f64 {
    let mut samples: Vec<f64> = (0..41)
        .map(|_| {
            let start = Clock::start();
            (0..n).for_each(&mut run);
            start.elapsed().as_nanos() as f64 / n as f64
        })
        .collect();
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

fn evaluations(host: &Host, dir: &Path) -> Outcome {
    let null = load(host, &dir.join("null.wasm"))?;
    let mut null = null.instantiate(&setup(&TenantLimits::default(), None))?;
    println!(
        "{:<36}{:>8.1} ns",
        "null, empty view",
        evaluate(&mut null, &[view("")[..8].to_vec()])
    );

    let names: Vec<String> = (0..1000)
        .map(|i| format!("blocked customer {i:05}"))
        .collect();
    let config = serde_json::json!({ "blocked": names }).to_string();
    let acl = load(host, &dir.join("hotel_acl.wasm"))?;
    let start = Clock::start();
    let mut acl = acl.instantiate(&setup(&TenantLimits::default(), Some(config.as_bytes())))?;
    println!(
        "{:<36}{:>8.1} us",
        "ACL, instantiate with 1,000 names",
        micros(start)
    );
    let views: Vec<_> = (0..4096)
        .map(|i| view(&format!("honest customer {i:08}")))
        .collect();
    println!(
        "{:<36}{:>8.1} ns",
        "ACL of 1,000, 24-byte name, allowed",
        evaluate(&mut acl, &views)
    );
    for count in [8, 32] {
        let per_call = batches(&mut acl, &views, count);
        println!(
            "{:<36}{per_call:>8.1} ns",
            format!("the same in batches of {count}")
        );
    }
    let denied = view(&names[500]);
    let per_call = median(20_000, |_| {
        let verdict = acl.evaluate::<Infallible>(Hook::Request, 0, denied.len(), |room| {
            Ok(copy(room, &denied))
        });
        assert!(matches!(verdict, Ok(Verdict::Deny { .. })));
    });
    println!("{:<36}{per_call:>8.1} ns", "ACL, denied with its message");
    Ok(())
}

fn load(host: &Host, path: &Path) -> Result<tollgate_policy_host::Policy, Box<dyn Error>> {
    let wasm = std::fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let start = Clock::start();
    let policy = host.load(&wasm)?;
    let what = format!(
        "{}, load {} KB",
        policy.manifest().name(),
        wasm.len() / 1024
    );
    println!("{what:<36}{:>8.1} us", micros(start));
    Ok(policy)
}

fn micros(start: Clock) -> f64 {
    start.elapsed().as_nanos() as f64 / 1e3
}

/// A view of one string.
fn view(name: &str) -> Vec<u8> {
    let mut view = Vec::new();
    for word in [24 + name.len() as u32, 1, 1, name.len() as u32, 24, 0] {
        view.extend(word.to_le_bytes());
    }
    view.extend(name.as_bytes());
    view
}

fn copy(room: &mut [u8], view: &[u8]) -> usize {
    room[..view.len()].copy_from_slice(view);
    view.len()
}

fn evaluate(instance: &mut Instance, views: &[Vec<u8>]) -> f64 {
    median(20_000, |i| {
        let view = &views[i % views.len()];
        let verdict = instance
            .evaluate::<Infallible>(Hook::Request, 0, view.len(), |room| Ok(copy(room, view)));
        assert_eq!(black_box(verdict), Ok(Verdict::Allow));
    })
}

fn batches(instance: &mut Instance, views: &[Vec<u8>], count: usize) -> f64 {
    let per_batch = median(2_000, |i| {
        let mut batch = instance
            .batch(Hook::Request, count, count * 64)
            .expect("within the limits");
        for k in 0..count {
            let view = &views[(i * count + k) % views.len()];
            let pushed = batch.push::<Infallible>(0, view.len(), |room| Ok(copy(room, view)));
            assert_eq!(pushed, Ok(()));
        }
        batch
            .evaluate(|_, verdict| assert_eq!(verdict, Verdict::Allow))
            .expect("the ACL is sound");
    });
    per_batch / count as f64
}

/// Endless loops over one instruction each, until the budget stops them: time per unit of fuel.
fn fuel(host: &Host) -> Outcome {
    println!(
        "\n{:<14}{:>10}   (promised: at most {:.3})",
        "loop over",
        "ns/unit",
        1e3 / FUEL_PER_MICROSECOND as f64
    );
    for (name, body) in LOOPS {
        let text = MODULE.replace("BODY", body);
        let policy = host.load(&wat::parse_str(&text)?)?;
        let fuel_per_call = 2_000_000;
        let limits = TenantLimits {
            fuel_per_call,
            ..TenantLimits::default()
        };
        let mut samples: Vec<f64> = Vec::new();
        for _ in 0..5 {
            let mut instance = policy.instantiate(&setup(&limits, None))?;
            let start = Clock::start();
            let verdict = instance.evaluate::<Infallible>(Hook::Request, 0, 0, |_| Ok(0));
            samples.push(start.elapsed().as_nanos() as f64 / fuel_per_call as f64);
            assert!(verdict.is_err(), "{name} ends only by its budget");
        }
        samples.sort_by(f64::total_cmp);
        println!("{name:<14}{:>10.3}", samples[2]);
    }
    Ok(())
}

const MODULE: &str = r#"(module
  (import "tollgate" "log" (func $log (param i32 i32 i32)))
  (import "tollgate" "counter" (func $counter (param i32 i64)))
  (memory (export "memory") 64) (table 16 64 funcref) (type $n (func)) (elem (i32.const 0) $nothing)
  (data $d "0123456789abcdef0123456789abcdef")
  (elem $e func $nothing $nothing)
  (func $nothing)
  (func $touch (memory.fill (i32.const 0) (i32.const 7) (i32.const 0x400000))) (start $touch)
  (func (export "tollgate_abi_v1"))
  (func (export "tollgate_buffer") (param i32) (result i32) i32.const 1024)
  (func (export "tollgate_configure") (param i32) (result i32) i32.const 0)
  (func (export "tollgate_request") (param i32) (result i32) (local $i i32) (local $l i64) (local $d f64) (local $f f32)
    (local.set $l (i64.const 0x7fffffffffffffff)) (local.set $d (f64.const 1e300)) (local.set $f (f32.const 1e30))
    (loop BODY (br 0)) unreachable)
  (@custom "tollgate.manifest" "{\"abi\":1,\"name\":\"cost\",\"hooks\":[\"request\"],\"methods\":[{\"method\":\"*\"}],\"counters\":[\"c\"]}"))"#;

const LOOPS: &[(&str, &str)] = &[
    (
        "add",
        "(local.set $i (i32.add (local.get $i) (i32.const 1)))",
    ),
    (
        "mul",
        "(local.set $l (i64.mul (local.get $l) (i64.const 0x9E3779B97F4A7C15)))",
    ),
    (
        "div",
        "(local.set $l (i64.or (i64.div_u (i64.const 0x7ffffffffffffff7) (local.get $l)) (i64.const 0x4000000000000001)))",
    ),
    (
        "rem",
        "(local.set $l (i64.or (i64.rem_s (i64.const 0x7ffffffffffffff7) (local.get $l)) (i64.const 0x4000000000000001)))",
    ),
    (
        "f64.add",
        "(local.set $d (f64.add (local.get $d) (f64.const 1e280)))",
    ),
    (
        "f64.mul",
        "(local.set $d (f64.mul (local.get $d) (f64.const 1.0000001)))",
    ),
    (
        "f64.sqrt",
        "(local.set $d (f64.add (f64.sqrt (local.get $d)) (f64.const 1e300)))",
    ),
    (
        "f64.div",
        "(local.set $d (f64.div (f64.const 1e300) (local.get $d)))",
    ),
    ("f64.floor", "(local.set $d (f64.floor (local.get $d)))"),
    (
        "f64.min",
        "(local.set $d (f64.min (local.get $d) (f64.const 1e299)))",
    ),
    (
        "trunc",
        "(local.set $l (i64.trunc_sat_f64_u (f64.convert_i64_u (local.get $l))))",
    ),
    ("popcnt", "(local.set $l (i64.popcnt (local.get $l)))"),
    (
        "random load",
        "(local.set $i (i32.and (i32.add (i32.mul (i32.add (local.get $i) (i32.load (local.get $i))) (i32.const 1664525)) (i32.const 1013904223)) (i32.const 0x3ffffc)))",
    ),
    (
        "random store",
        "(i32.store (local.tee $i (i32.and (i32.add (i32.mul (local.get $i) (i32.const 1664525)) (i32.const 1013904223)) (i32.const 0x3ffffc))) (i32.const 1))",
    ),
    ("call", "(call $nothing)"),
    ("call_indirect", "(call_indirect (type $n) (i32.const 0))"),
    ("memory.grow 0", "(drop (memory.grow (i32.const 0)))"),
    ("grow, fails", "(drop (memory.grow (i32.const 60000)))"),
    (
        "memory.fill 0",
        "(memory.fill (i32.const 0) (i32.const 0) (i32.const 0))",
    ),
    (
        "memory.fill 1M",
        "(memory.fill (i32.const 0) (i32.const 0) (i32.const 1048576))",
    ),
    (
        "memory.copy 64",
        "(memory.copy (i32.const 0) (i32.const 1000) (i32.const 64))",
    ),
    (
        "memory.init 32",
        "(memory.init $d (i32.const 0) (i32.const 0) (i32.const 32))",
    ),
    (
        "table.grow 0",
        "(drop (table.grow 0 (ref.null func) (i32.const 0)))",
    ),
    (
        "table.fill 16",
        "(table.fill 0 (i32.const 0) (ref.null func) (i32.const 16))",
    ),
    (
        "table.copy 8",
        "(table.copy (i32.const 0) (i32.const 8) (i32.const 8))",
    ),
    (
        "table.init 2",
        "(table.init $e (i32.const 0) (i32.const 0) (i32.const 2))",
    ),
    ("table.get", "(drop (table.get 0 (i32.const 1)))"),
    (
        "table.set",
        "(table.set 0 (i32.const 1) (ref.func $nothing))",
    ),
    ("set null", "(table.set 0 (i32.const 1) (ref.null func))"),
    ("ref.func", "(drop (ref.func $nothing))"),
    ("nothing", ""),
    (
        "log 1",
        "(call $log (i32.const 1) (i32.const 0) (i32.const 1))",
    ),
    (
        "log 512",
        "(call $log (i32.const 1) (i32.const 0) (i32.const 512))",
    ),
    ("counter", "(call $counter (i32.const 0) (i64.const 1))"),
];
