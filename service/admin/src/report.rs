//! Reports: JSON as `google.protobuf.Struct`.

use prost_types::value::Kind;
use prost_types::{ListValue, Struct, Value};
use serde_json::Value as Json;

/// Numbers up to here are exact as doubles.
const EXACT: f64 = 9_007_199_254_740_992.0;

/// A JSON object as a report. Another value becomes the field `value` of one.
pub fn from_json(json: Json) -> Struct {
    let fields = match json {
        Json::Object(fields) => fields,
        other => serde_json::Map::from_iter([("value".to_owned(), other)]),
    };
    let fields = fields
        .into_iter()
        .map(|(key, value)| (key, value_of(value)));
    Struct {
        fields: fields.collect(),
    }
}

fn value_of(json: Json) -> Value {
    let kind = match json {
        Json::Null => Kind::NullValue(0),
        Json::Bool(value) => Kind::BoolValue(value),
        Json::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or(f64::NAN)),
        Json::String(text) => Kind::StringValue(text),
        Json::Array(values) => Kind::ListValue(ListValue {
            values: values.into_iter().map(value_of).collect(),
        }),
        object @ Json::Object(_) => Kind::StructValue(from_json(object)),
    };
    Value { kind: Some(kind) }
}

/// A report as JSON. Whole numbers are integers again.
pub fn to_json(report: Struct) -> Json {
    let fields = report.fields.into_iter();
    Json::Object(fields.map(|(key, value)| (key, json_of(value))).collect())
}

fn json_of(value: Value) -> Json {
    match value.kind {
        None | Some(Kind::NullValue(_)) => Json::Null,
        Some(Kind::BoolValue(value)) => Json::Bool(value),
        Some(Kind::NumberValue(number)) => number_of(number),
        Some(Kind::StringValue(text)) => Json::String(text),
        Some(Kind::ListValue(list)) => list.values.into_iter().map(json_of).collect(),
        Some(Kind::StructValue(report)) => to_json(report),
    }
}

fn number_of(number: f64) -> Json {
    if number.fract() == 0.0 && number.abs() <= EXACT {
        return match number < 0.0 {
            true => (number as i64).into(),
            false => (number as u64).into(),
        };
    }
    // Not a number: null, as in JSON.
    number.into()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_report_comes_back_as_it_was() {
        let report = json!({
            "a": null, "b": true, "c": [1, -2, 0.5, "x", {}], "d": {"e": 9_007_199_254_740_992_u64},
        });
        assert_eq!(to_json(from_json(report.clone())), report);
        assert_eq!(to_json(from_json(json!([1]))), json!({"value": [1]}));
        assert_eq!(number_of(f64::NAN), Json::Null);
    }
}
