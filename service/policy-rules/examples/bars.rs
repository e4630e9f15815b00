//! Measures a rule of two fields beside a policy in Rust with the same decision, and beside the
//! evaluator of the crate `cel` with its context prepared.
//!
//! ```text
//!   cargo run --profile bench -p tollgate-policy-rules --example bars -- HAND_WRITTEN.wasm
//! ```
//!
//! Rounds of the three take turns, so that a busy machine is busy for all. The module in Rust reads
//! `customer_name` and `room_count` of `hotel.Reservation/Reserve`, in this order.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::collections::HashMap;
use std::hint::black_box;
use std::time::Instant;

use tollgate_policy_host::{Hook, Instance, Setup, TenantLimits};
use tollgate_policy_rules::{Options, compile};
use tollgate_policy_tools::Module;

const RULES: &str = r#"
[[method]]
name = "hotel.Reservation/Reserve"
request = { customer_name = "string", room_count = "uint32" }

[[rule]]
name = "r"
methods = ["hotel.Reservation/Reserve"]
when = "request.customer_name == 'Mallory' && request.room_count > 3u"
deny = { text = "too many rooms" }
"#;
const EXPRESSION: &str = "request.customer_name == 'Mallory' && request.room_count > 3u";
const ROUNDS: usize = 41;
const CALLS: u32 = 20_000;

/// The view of a request.
fn view(name: &str, rooms: u64) -> Vec<u8> {
    let len = 8 + 2 * 16 + name.len() as u32;
    let words = [len, 2, 1, name.len() as u32, 40, 0, 1, 0, rooms as u32, 0];
    let mut view: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
    view.extend_from_slice(name.as_bytes());
    view
}

fn evaluate(instance: &mut Instance, view: &[u8]) -> f64 {
    let start = Instant::now();
    for _ in 0..CALLS {
        let verdict = instance.evaluate(Hook::Request, 0, view.len(), |room| {
            room[..view.len()].copy_from_slice(view);
            Ok::<_, std::convert::Infallible>(view.len())
        });
        black_box(verdict).unwrap();
    }
    start.elapsed().as_nanos() as f64 / f64::from(CALLS)
}

fn main() {
    let path = std::env::args()
        .nth(1)
        .expect("the hand-written module's path");
    let start = Instant::now();
    let options = Options {
        name: "rules",
        schema: None,
    };
    let compiled = compile(RULES, &options).unwrap();
    let compiling = start.elapsed();
    let bytes = compiled.module.len();
    let rules = Module::load(&compiled.module).unwrap();
    println!(
        "compiled in {compiling:.1?}, and loaded after {:.1?}; {bytes} bytes",
        start.elapsed()
    );
    let rust = Module::load(&std::fs::read(path).unwrap()).unwrap();
    let limits = TenantLimits::default();
    let instance = |module: &Module| {
        let policy = module.policy();
        let setup = Setup {
            limits: &limits,
            config: None,
            granted: policy.manifest().capabilities(),
            state: None,
        };
        policy.instantiate(&setup).unwrap()
    };
    let (mut rules, mut rust) = (instance(&rules), instance(&rust));
    let program = cel::Program::compile(EXPRESSION).unwrap();
    for (name, rooms) in [("Ada", 1), ("Mallory", 1), ("Mallory", 4)] {
        let view = view(name, rooms);
        let fields = HashMap::from([
            (
                "customer_name".to_owned(),
                cel::Value::from(name.to_owned()),
            ),
            ("room_count".to_owned(), cel::Value::UInt(rooms)),
        ]);
        let mut context = cel::Context::default();
        context.add_variable_from_value("request", cel::Value::from(fields));
        let mut times = [const { Vec::new() }; 3];
        for _ in 0..ROUNDS {
            times[0].push(evaluate(&mut rules, &view));
            times[1].push(evaluate(&mut rust, &view));
            let start = Instant::now();
            for _ in 0..CALLS {
                black_box(program.execute(black_box(&context))).unwrap();
            }
            times[2].push(start.elapsed().as_nanos() as f64 / f64::from(CALLS));
        }
        let [rules_ns, rust_ns, cel_ns] = times.map(|mut times| {
            times.sort_by(f64::total_cmp);
            times[ROUNDS / 2]
        });
        evaluate(&mut rules, &view);
        let (fuel, other) = (rules.fuel_used(), rust.fuel_used());
        println!(
            "{name}, {rooms} rooms: rules {rules_ns:.1} ns, {fuel} fuel; Rust {rust_ns:.1} ns, {other} fuel; cel {cel_ns:.1} ns: {:.2} times Rust, cel {:.1} times rules",
            rules_ns / rust_ns,
            cel_ns / rules_ns
        );
    }
}
