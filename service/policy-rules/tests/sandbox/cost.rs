//! What a rule costs, compared with the interpreter of the crate `cel`.

use std::hint::black_box;
use std::time::{Duration, Instant};

use cel::{Context, Program, Value};
use serde_json::json;
use tollgate_policy_tools::{Cases, Module, bench_cases, test};

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

/// A search in a long list of texts that look alike takes as many steps as one in a short list.
#[test]
fn long_lists_of_similar_texts_are_searched_fast() {
    for name in ["user ", "customer-", "a-very-long-prefix-of-", ""] {
        let fuel = |count: usize| {
            let texts: Vec<_> = (0..count).map(|at| format!("{name}{at:04}")).collect();
            let rules = format!(
                "[lists]\nall = {texts:?}\n{}",
                rule("when = 'request.s in all'\ndeny = true")
            );
            let module = Module::load(&compiled(&rules).unwrap().module).unwrap();
            let cases = texts.iter().step_by(count.div_ceil(64)).map(|text| {
                json!({"name": text, "method": CALL, "request": {"s": text}, "expect": {"verdict": "deny"}})
            });
            let cases: Vec<_> = cases.collect();
            let cases = Cases::parse(&json!({ "cases": cases }).to_string()).unwrap();
            let report = test(module.policy(), schema(), &cases).unwrap();
            assert_eq!(report.failed(), 0);
            report.outcomes.iter().map(|case| case.fuel).max().unwrap()
        };
        let (short, long) = (fuel(64), fuel(8192));
        assert!(long <= short + short / 2, "{name}: {long}, {short}");
    }
}
