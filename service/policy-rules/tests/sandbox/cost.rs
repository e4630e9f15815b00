//! What a rule costs, compared with the interpreter of the crate `cel`.

use std::hint::black_box;
use std::time::{Duration, Instant};

use cel::{Context, Program, Value};
use serde_json::json;
use tollgate_policy_tools::{Cases, Module, bench_cases};

use crate::bed::{CALL, compiled, rule, schema};

/// Both are measured this often, in turn.
const ROUNDS: usize = 5;

/// A condition about two fields.
const WHEN: &str = "request.s == 'Mallory' && request.right > 3";

#[test]
fn a_rule_in_its_sandbox_is_faster_than_an_interpreter() {
    let module = compiled(&rule(&format!("when = \"{WHEN}\"\ndeny = true"))).unwrap();
    let module = Module::load(&module.module).unwrap();
    let case = json!({
        "name": "passes", "method": CALL, "request": {"s": "Mallory", "right": 3}, "expect": {"verdict": "allow"},
    });
    let cases = Cases::parse(&json!({ "cases": [case] }).to_string()).unwrap();
    let program = Program::compile(WHEN).unwrap();
    let mut context = Context::default();
    let request = [("s", Value::from("Mallory")), ("right", Value::from(3i64))];
    let request: std::collections::HashMap<_, _> = request.into();
    context.add_variable_from_value("request", request);
    let mut ratios = Vec::new();
    for _ in 0..ROUNDS {
        let bench = bench_cases(&module, schema(), &cases).unwrap();
        let [one, batched] = bench.measured[0].times.as_ref().unwrap();
        let begun = Instant::now();
        let mut count = 0;
        while begun.elapsed() < Duration::from_millis(50) {
            for _ in 0..100 {
                let found = program.execute(black_box(&context)).unwrap();
                assert_eq!(found, Value::Bool(false));
            }
            count += 100;
        }
        let interpreted_ns = begun.elapsed().as_nanos() as f64 / f64::from(count);
        println!(
            "a rule: {:.0} ns a call, {:.0} ns in batches; the interpreter: {interpreted_ns:.0} ns",
            one.median_ns, batched.median_ns
        );
        ratios.push(interpreted_ns / one.median_ns);
    }
    ratios.sort_by(f64::total_cmp);
    let ratio = ratios[ROUNDS / 2];
    println!("the interpreter takes {ratio:.1} times as long as a rule in its sandbox (bar 5)");
    assert!(ratio > 1.5, "{ratio}");
}
