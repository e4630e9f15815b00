//! The interoperability suite's cases: the instructions for a client of any language with
//! `interop.Semantics`, and the required results.
//!
//! ```text
//!   case, a line of JSON ──▶ interop-client SOCKET TOKEN TARGET ──▶ the result, a line of JSON
//! ```
//!
//! A case has its method, its requests and the way to send them; absent fields are zero, empty or
//! false, `cancel_after` is -1. Payloads are given by length and byte; `details` and the values of
//! keys that end in `-bin` are base64. After the client's own cancellation the code is 1.
//! `grpc-status-details-bin` isn't among the trailers, but in `details`.
//!
//! There are also the golden vectors of the stubs (`marshal-codegen/golden/zoo.json`), which are
//! sent through `everything.Everything/Swap` and returned: the case has the canonical `block` of a
//! message in base64, and so has the result. Rust's and Python's programs convert blocks to
//! messages and back with their stubs; C's sends them unchanged.

use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tollgate_schema::dynamic::{from_json, write_block};
use tollgate_schema::{MessageId, Schema};

/// A case with its required result.
#[derive(Clone, Debug)]
pub struct Case {
    /// Its unique description.
    pub name: String,
    /// The instructions for the client.
    pub told: Value,
    /// The required result of the client. If an object has no `message`, any message is right.
    pub expected: Value,
}

/// Bytes in the suite's encoding.
pub fn base64(bytes: &[u8]) -> String {
    STANDARD.encode(bytes)
}

/// Bytes from the suite's encoding; empty if it isn't base64.
pub fn from_base64(text: &str) -> Vec<u8> {
    STANDARD.decode(text).unwrap_or_default()
}

fn answers(numbers: impl IntoIterator<Item = u64>, len: usize) -> Vec<Value> {
    let answer = |number: u64| {
        let byte = if len == 0 { 0 } else { number as u8 };
        json!({"number": number, "len": len, "byte": byte})
    };
    numbers.into_iter().map(answer).collect()
}

fn ok(responses: Vec<Value>) -> Value {
    json!({"responses": responses, "metadata": [], "trailers": [], "code": 0, "message": "", "details": ""})
}

fn failed(responses: Vec<Value>, code: u32, message: Option<&str>) -> Value {
    let mut result = ok(responses);
    result["code"] = code.into();
    match message {
        Some(message) => result["message"] = message.into(),
        None => drop(
            result
                .as_object_mut()
                .map(|result| result.remove("message")),
        ),
    }
    result
}

/// The size of a message that exceeds the limit of 16 MiB.
const TOO_LONG: u32 = 17_000_000;

/// Every case.
pub fn cases() -> Vec<Case> {
    let case = |name: &str, told, expected| Case {
        name: name.to_owned(),
        told,
        expected,
    };
    let ask = |number: u64, responses: u32, bytes: u32| json!({"number": number, "responses": responses, "response_bytes": bytes});
    let count = |n: u64| (0..n).map(|k| json!({"number": k, "responses": 1, "response_bytes": 3}));
    vec![
        case(
            "a unary call",
            json!({"method": "Unary", "requests": [ask(7, 1, 5)]}),
            ok(answers([7], 5)),
        ),
        case(
            "a unary call of large messages",
            json!({"method": "Unary", "requests": [{"number": 9, "payload_len": 3_000_000, "payload_byte": 1, "responses": 1, "response_bytes": 2_000_000}]}),
            ok(answers([9], 2_000_000)),
        ),
        case(
            "a unary error with details",
            json!({"method": "Unary", "requests": [{"code": 9, "message": "not yet: \u{e4}", "details": base64(&[8, 9, 255])}]}),
            {
                let mut result = failed(vec![], 9, Some("not yet: \u{e4}"));
                result["details"] = base64(&[8, 9, 255]).into();
                result
            },
        ),
        case(
            "an unknown code",
            json!({"method": "Unary", "requests": [{"code": 77, "message": "seventy-seven"}]}),
            failed(vec![], 77, Some("seventy-seven")),
        ),
        case(
            "metadata and trailers of a unary call",
            json!({"method": "Unary", "requests": [{"number": 1, "responses": 1, "echo": ["head", "blob-bin"], "echo_as_trailers": ["tail", "blob-bin"]}],
                   "metadata": [["head", "a"], ["tail", "b"], ["head", "c"], ["blob-bin", base64(&[0, 255])], ["unasked", "d"]]}),
            {
                let mut result = ok(answers([1], 0));
                result["metadata"] = json!([
                    ["head", "a"],
                    ["head", "c"],
                    ["blob-bin", base64(&[0, 255])]
                ]);
                result["trailers"] = json!([["tail", "b"], ["blob-bin", base64(&[0, 255])]]);
                result
            },
        ),
        case(
            "trailers of an error",
            json!({"method": "Unary", "requests": [{"code": 5, "message": "gone", "echo_as_trailers": ["tail"]}], "metadata": [["tail", "x"], ["tail", "y"]]}),
            {
                let mut result = failed(vec![], 5, Some("gone"));
                result["trailers"] = json!([["tail", "x"], ["tail", "y"]]);
                result
            },
        ),
        case(
            "a request that is too long",
            json!({"method": "Unary", "requests": [{"number": 1, "payload_len": TOO_LONG}]}),
            failed(vec![], 8, None),
        ),
        case(
            "a reply that is too long",
            json!({"method": "Unary", "requests": [ask(1, 1, TOO_LONG)]}),
            failed(vec![], 8, None),
        ),
        case(
            "metadata that is too long",
            json!({"method": "Unary", "requests": [ask(1, 1, 1)], "metadata": [["long", "x".repeat(9_000)]]}),
            failed(vec![], 3, None),
        ),
        case(
            "a reserved key",
            json!({"method": "Unary", "requests": [ask(1, 1, 1)], "metadata": [["grpc-timeout", "1S"]]}),
            failed(vec![], 3, None),
        ),
        case(
            "a deadline of a unary call",
            json!({"method": "Unary", "requests": [{"number": 1, "responses": 1, "delay_ms": 20_000}], "timeout_ms": 100}),
            failed(vec![], 4, None),
        ),
        case(
            "a stream of requests",
            json!({"method": "Collect", "requests": (1..=100).map(|k| json!({"number": k, "payload_len": 10, "payload_byte": 3})).collect::<Vec<_>>()}),
            ok(vec![json!({"number": 5050, "len": 1000, "byte": 3})]),
        ),
        case(
            "a stream of no requests",
            json!({"method": "Collect", "requests": []}),
            ok(answers([0], 0)),
        ),
        case(
            "a stream of large requests",
            json!({"method": "Collect", "requests": vec![json!({"number": 1, "payload_len": 1_000_000, "payload_byte": 5}); 4]}),
            ok(vec![json!({"number": 4, "len": 4_000_000, "byte": 5})]),
        ),
        case(
            "an error before all requests were read",
            json!({"method": "Collect", "requests": (0..500).map(|k| json!({"number": k, "code": if k == 3 { 10 } else { 0 }, "message": "enough"})).collect::<Vec<_>>()}),
            failed(vec![], 10, Some("enough")),
        ),
        case(
            "a request of a stream that is too long",
            json!({"method": "Collect", "requests": [{"number": 1, "payload_len": TOO_LONG}]}),
            failed(vec![], 8, None),
        ),
        case(
            "a stream of responses",
            json!({"method": "Spread", "requests": [ask(1000, 300, 10)]}),
            ok(answers(1000..1300, 10)),
        ),
        case(
            "a stream of no responses",
            json!({"method": "Spread", "requests": [ask(1, 0, 0)]}),
            ok(vec![]),
        ),
        case(
            "a stream of large responses",
            json!({"method": "Spread", "requests": [ask(1, 4, 1_500_000)]}),
            ok(answers(1..5, 1_500_000)),
        ),
        case(
            "a response of a stream that is too long",
            json!({"method": "Spread", "requests": [ask(1, 1, TOO_LONG)]}),
            failed(vec![], 8, None),
        ),
        case(
            "an error after responses",
            json!({"method": "Spread", "requests": [{"number": 1, "responses": 3, "code": 8, "message": "no more"}]}),
            failed(answers(1..4, 0), 8, Some("no more")),
        ),
        case(
            "metadata and trailers of a stream",
            json!({"method": "Spread", "requests": [{"number": 1, "responses": 2, "echo": ["head"], "echo_as_trailers": ["tail-bin"]}],
                   "metadata": [["head", "a"], ["tail-bin", base64(b"b")]]}),
            {
                let mut result = ok(answers([1, 2], 0));
                result["metadata"] = json!([["head", "a"]]);
                result["trailers"] = json!([["tail-bin", base64(b"b")]]);
                result
            },
        ),
        case(
            "a stream that is cancelled",
            json!({"method": "Spread", "requests": [ask(1, 100_000, 100)], "cancel_after": 5}),
            failed(answers(1..6, 100), 1, None),
        ),
        case(
            "a deadline of a stream",
            json!({"method": "Chat", "requests": [{"number": 1, "responses": 1}, {"delay_ms": 20_000}], "timeout_ms": 1_000}),
            failed(answers([1], 0), 4, None),
        ),
        case(
            "a conversation",
            json!({"method": "Chat", "requests": count(200).collect::<Vec<_>>()}),
            ok(answers(0..200, 3)),
        ),
        case(
            "a conversation in which each waits for the other",
            json!({"method": "Chat", "requests": count(50).collect::<Vec<_>>(), "lockstep": true}),
            ok(answers(0..50, 3)),
        ),
        case(
            "a conversation that the server ends",
            json!({"method": "Chat", "requests": [ask(1, 2, 1), {"number": 3, "responses": 1, "code": 2, "message": "enough said"}, ask(9, 1, 1)]}),
            failed(
                [answers([1, 2], 1), answers([3], 0)].concat(),
                2,
                Some("enough said"),
            ),
        ),
        case(
            "a conversation that is cancelled",
            json!({"method": "Chat", "requests": [ask(1, 3, 1)], "lockstep": true, "cancel_after": 2}),
            failed(answers([1, 2], 1), 1, None),
        ),
    ]
}

/// The golden vectors of all messages that are, or can be a field of, `everything.All`.
///
/// # Panics
/// If they differ from the reviewed ones.
pub fn goldens() -> Vec<Case> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../marshal-codegen/golden/zoo.json");
    let zoo = std::fs::read(file).expect("the vectors are committed");
    let zoo: Vec<Value> = serde_json::from_slice(&zoo).expect("they are JSON");
    let protos = Path::new(env!("CARGO_MANIFEST_DIR")).join("proto");
    let schema = Schema::compile_proto(&[protos.join("everything.proto")], &[protos]);
    let schema = schema.expect("the schema is sound");
    let layouts = schema.layouts(&["everything.All"]).expect("it has All");
    let all = schema.message("everything.All").expect("it has All");
    let mut cases = Vec::new();
    for vector in zoo {
        let text = |key: &str| vector[key].as_str().unwrap_or_default();
        let message = match text("message") {
            "everything.All" => vector["json"].clone(),
            name => {
                let field = name.strip_prefix("everything.").map(str::to_lowercase);
                let field = field.filter(|field| all.get_field_by_json_name(field).is_some());
                let Some(field) = field else { continue };
                json!({field: vector["json"]})
            }
        };
        let message = from_json(&all, &message.to_string()).expect("it is an All");
        let block = write_block(&layouts, MessageId(0), &message).expect("it fits");
        let mut expected = ok(vec![]);
        expected["block"] = base64(&block).into();
        cases.push(Case {
            name: format!("the golden vector {}", text("name")),
            told: json!({"method": "Swap", "block": expected["block"]}),
            expected,
        });
    }
    cases
}

/// The difference between the result and the required one.
pub fn difference(case: &Case, came: &Value) -> Option<String> {
    let expected = case.expected.as_object()?;
    let differs = |(key, value): &(&String, &Value)| came.get(key.as_str()) != Some(value);
    let (key, value) = expected.iter().find(differs)?;
    let short = |value: &Value| {
        let text = value.to_string();
        text.chars().take(300).collect::<String>()
    };
    let came = came
        .get(key.as_str())
        .map_or_else(|| "nothing".to_owned(), short);
    Some(format!("{key} is {came} instead of {}", short(value)))
}
