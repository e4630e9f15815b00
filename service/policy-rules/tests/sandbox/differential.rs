//! Generated expressions: the module and the evaluator of the crate `cel` find the same.

use std::collections::HashMap;

use cel::{Context, Program, Value};
use fastrand::Rng;
use serde_json::json;

use crate::bed::{Bed, rule};
use tollgate_policy_tools::Seen;

/// Expressions per run.
const EXPRESSIONS: usize = 300;
/// Messages per expression.
const MESSAGES: usize = 6;

/// A message, for both.
struct Fields {
    b: bool,
    i64: i64,
    u64: u64,
    d: f64,
    s: String,
    t: String,
}

impl Fields {
    fn any(random: &mut Rng) -> Fields {
        let texts = [
            "",
            "a",
            "ab",
            "abc",
            "Mallory",
            "grüße",
            "a longer text than sixteen",
        ];
        let text = |random: &mut Rng| texts[random.usize(0..texts.len())].to_owned();
        let ints = [0, 1, -1, 2, 3, 7, -7, 100, i64::MAX, i64::MIN];
        Fields {
            b: random.bool(),
            i64: ints[random.usize(0..ints.len())],
            u64: [0, 1, 2, 7, 100, u64::MAX][random.usize(0..6)],
            d: [0.0, 1.0, -1.5, 2.0, 7.25, 1e300][random.usize(0..6)],
            s: text(random),
            t: text(random),
        }
    }

    fn json(&self) -> serde_json::Value {
        let (i64, u64) = (self.i64.to_string(), self.u64.to_string());
        json!({ "b": self.b, "i64": i64, "u64": u64, "d": self.d, "s": self.s, "t": self.t })
    }

    fn value(&self) -> Value {
        let fields: HashMap<String, Value> = HashMap::from([
            ("b".to_owned(), Value::Bool(self.b)),
            ("i64".to_owned(), Value::Int(self.i64)),
            ("u64".to_owned(), Value::UInt(self.u64)),
            ("d".to_owned(), Value::Float(self.d)),
            ("s".to_owned(), self.s.clone().into()),
            ("t".to_owned(), self.t.clone().into()),
        ]);
        fields.into()
    }
}

/// Writes expressions of a type.
struct Writer<'a> {
    random: &'a mut Rng,
}

impl Writer<'_> {
    fn one<'t>(&mut self, of: &[&'t str]) -> &'t str {
        of[self.random.usize(0..of.len())]
    }

    fn boolean(&mut self, depth: usize) -> String {
        if depth == 0 {
            return self
                .one(&["request.b", "true", "false", "(1 / 0 == 1)"])
                .to_owned();
        }
        let less = depth - 1;
        match self.random.u8(0..11) {
            0 | 1 => format!("({} && {})", self.boolean(less), self.boolean(less)),
            2 | 3 => format!("({} || {})", self.boolean(less), self.boolean(less)),
            4 => format!("!{}", self.boolean(less)),
            5 => format!(
                "({} ? {} : {})",
                self.boolean(less),
                self.boolean(less),
                self.boolean(less)
            ),
            6 => {
                let operator = self.one(&["==", "!=", "<", "<=", ">", ">="]);
                format!("({} {operator} {})", self.int(less), self.int(less))
            }
            7 => {
                let operator = self.one(&["==", "!=", "<", "<=", ">", ">="]);
                format!("({} {operator} {})", self.text(less), self.text(less))
            }
            8 => {
                let test = self.one(&["startsWith", "endsWith", "contains"]);
                format!("{}.{test}({})", self.text(less), self.text(less))
            }
            9 => {
                let list = self.one(&[
                    "['a', 'ab']",
                    "['', 'Mallory', 'grüße', 'abc', 'x']",
                    "['a longer text than sixteen', 'b', 'c', 'd']",
                ]);
                format!("({} in {list})", self.text(less))
            }
            _ => {
                let quantifier = self.one(&["all", "exists", "exists_one"]);
                let inner = self.boolean(less);
                format!("[1, 7, -1].{quantifier}(x, x == request.i64 || {inner})")
            }
        }
    }

    fn int(&mut self, depth: usize) -> String {
        if depth == 0 {
            return self
                .one(&[
                    "request.i64",
                    "0",
                    "1",
                    "-7",
                    "100",
                    "size(request.s)",
                    "9223372036854775807",
                ])
                .to_owned();
        }
        let less = depth - 1;
        match self.random.u8(0..3) {
            0 => self.int(0),
            1 => {
                let operator = self.one(&["+", "-", "*", "/", "%"]);
                format!("({} {operator} {})", self.int(less), self.int(less))
            }
            _ => format!(
                "({} ? {} : {})",
                self.boolean(less),
                self.int(less),
                self.int(less)
            ),
        }
    }

    fn text(&mut self, depth: usize) -> String {
        if depth == 0 {
            return self
                .one(&["request.s", "request.t", "'a'", "''", "'Mallory'", "'ü'"])
                .to_owned();
        }
        let less = depth - 1;
        match self.random.u8(0..3) {
            0 => self.text(0),
            1 => format!("({} + {})", self.text(less), self.text(less)),
            _ => format!(
                "({} ? {} : {})",
                self.boolean(less),
                self.text(less),
                self.text(less)
            ),
        }
    }
}

#[test]
fn another_evaluator_finds_the_same() {
    let seed = std::env::var("TOLLGATE_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or(34);
    let mut random = Rng::with_seed(seed);
    let mut errors = 0;
    for _ in 0..EXPRESSIONS {
        let depth = random.usize(1..4);
        let expression = Writer {
            random: &mut random,
        }
        .boolean(depth);
        let program = Program::compile(&expression).unwrap();
        let bed = Bed::new(&rule(&format!("when = {}\ndeny = true", json!(expression))));
        for _ in 0..MESSAGES {
            let fields = Fields::any(&mut random);
            let mut context = Context::default();
            context.add_variable_from_value("request", fields.value());
            let theirs = match program.execute(&context) {
                Ok(Value::Bool(value)) => Some(value),
                _ => None,
            };
            let ours = match bed.ask(&fields.json()) {
                Seen::Allow => Some(false),
                Seen::Deny { message, .. } if message.contains("can't be decided") => None,
                Seen::Deny { .. } => Some(true),
                other => panic!("{expression}: {other:?}"),
            };
            errors += usize::from(ours.is_none());
            assert_eq!(
                ours,
                theirs,
                "seed {seed}: {expression} about {}",
                fields.json()
            );
        }
    }
    assert!(errors > 20, "errors are compared, too: {errors}");
}
