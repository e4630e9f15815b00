//! The part of CEL's own conformance tests that needs no message: `cel-spec.md` says which.

use base64::Engine as _;
use serde_json::{Value, json};

use crate::bed::{Is, evaluate};

/// Tests whose value rules have.
const PASSED: usize = 590;
/// Tests that are refused when they are compiled, by the name of what rules don't have.
const REFUSED: usize = 400;

#[test]
fn the_specification_s_tests_pass_or_are_refused_by_name() {
    let tests: Vec<(String, String, Value)> =
        serde_json::from_str(include_str!("cel-spec.json")).unwrap();
    let (mut passed, mut refused, mut failed) = (0, 0, Vec::new());
    for (name, expression, value) in &tests {
        let Some((condition, expected)) = condition(expression, value) else {
            refused += 1;
            continue;
        };
        match evaluate(&condition, &json!({}), &json!({})) {
            Is::Refused(reason) => {
                println!("{name}: {reason}");
                refused += 1;
            }
            found if matches!(found, Is::Error(_)) == expected.is_none() && found != Is::False => {
                passed += 1;
            }
            found => failed.push(format!("{name}: {condition} is {found:?}")),
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert_eq!((passed, refused), (PASSED, REFUSED));
}

/// A boolean expression that is true, or an error if there is no value; `None` if the value can't
/// be written as a constant.
fn condition(expression: &str, value: &Value) -> Option<(String, Option<()>)> {
    let (kind, value) = value.as_object()?.iter().next()?;
    let literal = match kind.as_str() {
        "error" => return Some((format!("({expression}) == ({expression})"), None)),
        "boolValue" if value == true => return Some((expression.to_owned(), Some(()))),
        "boolValue" => return Some((format!("!({expression})"), Some(()))),
        "int64Value" => value.as_str()?.to_owned(),
        "uint64Value" => format!("{}u", value.as_str()?),
        "doubleValue" => format!("{:?}", value.as_f64()?),
        "stringValue" => value.to_string(),
        "bytesValue" => {
            let bytes = base64::engine::general_purpose::STANDARD
                .decode(value.as_str()?)
                .ok()?;
            let digits: String = bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect();
            format!("b'{digits}'")
        }
        _ => return None,
    };
    Some((format!("({expression}) == {literal}"), Some(())))
}
