//! The SDK against the ABI's vectors, natively: it reads the host's bytes and writes bytes for the
//! host.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use serde_json::Value;
use tollgate_policy::rt::Runtime;
use tollgate_policy::testing::{Field, view};
use tollgate_policy::{Call, Policy, Status, Verdict};

fn vectors(name: &str) -> Vec<Value> {
    let path = format!("{}/vectors/{name}", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn bytes(hex: &Value) -> Vec<u8> {
    let digits = hex.as_str().unwrap().as_bytes();
    digits
        .chunks(2)
        .map(|d| u8::from_str_radix(str::from_utf8(d).unwrap(), 16).unwrap())
        .collect()
}

/// A field of the vectors; `raw` holds its bytes.
fn field<'a>(value: &'a Value, raw: &'a mut Vec<u8>) -> Field<'a> {
    let (kind, value) = value.as_object().unwrap().iter().next().unwrap();
    match kind.as_str() {
        "absent" => Field::Absent,
        "int" => Field::Int(value.as_i64().unwrap()),
        "uint" => Field::Uint(value.as_u64().unwrap()),
        "bool" => Field::Bool(value.as_bool().unwrap()),
        "float" => Field::Float(value.as_f64().unwrap() as f32),
        "double" => Field::Double(value.as_f64().unwrap()),
        "text" => Field::Text(value.as_str().unwrap()),
        "bytes" => {
            *raw = bytes(value);
            Field::Bytes(raw)
        }
        "values" => Field::Values(values(value)),
        other => panic!("unknown kind {other}"),
    }
}

/// Leaked, since it lives as long as the test.
fn values(list: &Value) -> &'static [&'static [u8]] {
    let one = |hex: &Value| -> &'static [u8] { bytes(hex).leak() };
    let list: Vec<&[u8]> = list.as_array().unwrap().iter().map(one).collect();
    list.leak()
}

fn check_field(call: &Call<'_>, index: u32, expected: Field<'_>) {
    match expected {
        Field::Absent => {
            assert_eq!(call.bytes(index), None);
            assert_eq!(call.uint(index), None);
        }
        Field::Int(value) => assert_eq!(call.int(index), Some(value)),
        Field::Uint(value) => assert_eq!(call.uint(index), Some(value)),
        Field::Bool(value) => assert_eq!(call.boolean(index), Some(value)),
        Field::Float(value) => assert_eq!(call.float(index), Some(value)),
        Field::Double(value) => assert_eq!(call.double(index), Some(value)),
        Field::Text(value) => assert_eq!(call.text(index), Some(value)),
        Field::Bytes(value) => assert_eq!(call.bytes(index), Some(value)),
        Field::Values(expected) => {
            let values = call.values(index);
            assert_eq!(
                (values.len(), values.is_empty()),
                (expected.len(), expected.is_empty())
            );
            assert_eq!(values.first(), expected.first().copied());
            assert!(values.eq(expected.iter().copied()));
        }
    }
}

/// Denies every call; the message reports the method and each field's value.
struct Witness;

impl Policy for Witness {
    fn configure(_config: &[u8]) -> Result<Witness, String> {
        Ok(Witness)
    }

    fn request(&mut self, call: &Call<'_>) -> Verdict<'_> {
        let values: Vec<_> = (0..call.field_count())
            .map(|field| call.uint(field))
            .collect();
        Verdict::deny(Status::INTERNAL, format!("{} {values:?}", call.method()))
    }
}

#[test]
fn views_read_as_the_vectors_say() {
    for batch in vectors("batches.json") {
        for call in batch["calls"].as_array().unwrap() {
            let fields = call["fields"].as_array().unwrap();
            let mut raw = vec![Vec::new(); fields.len()];
            let fields: Vec<_> = fields
                .iter()
                .zip(&mut raw)
                .map(|(f, raw)| field(f, raw))
                .collect();
            let view_bytes = bytes(&call["view"]);
            assert_eq!(
                view(&fields),
                view_bytes,
                "{}: the test builder",
                batch["name"]
            );
            let read = Call::new(0, &view_bytes);
            assert_eq!(read.field_count() as usize, fields.len());
            for (index, expected) in fields.into_iter().enumerate() {
                check_field(&read, index as u32, expected);
            }
        }
    }
}

#[test]
fn batches_are_evaluated_call_by_call() {
    for batch in vectors("batches.json") {
        let buffer = bytes(&batch["buffer"]);
        let calls = batch["calls"].as_array().unwrap();
        let mut runtime = Runtime::<Witness>::new();
        runtime.buffer(buffer.len() as u32);
        assert_eq!(runtime.configure(0), 0);
        runtime.bytes_mut()[..buffer.len()].copy_from_slice(&buffer);
        assert_eq!(runtime.request(calls.len() as u32), 0);
        for (index, call) in calls.iter().enumerate() {
            let view = bytes(&call["view"]);
            let method = call["method"].as_u64().unwrap() as u32;
            let mut witness = Witness;
            let Verdict::Deny(_, message) = witness.request(&Call::new(method, &view)) else {
                panic!("the witness denies")
            };
            let entry = &runtime.bytes_mut()[index * 32..][..32];
            assert_eq!(entry[..12], buffer[index * 32..][..12], "{}", batch["name"]);
            assert_eq!(word(entry, 3), 2);
            assert_eq!(word(entry, 4), Status::INTERNAL.code());
            assert_eq!(word(entry, 6) as usize, message.len());
            assert_eq!(word(entry, 7), 0);
        }
    }
}

fn word(entry: &[u8], index: usize) -> u32 {
    u32::from_le_bytes(entry[index * 4..][..4].try_into().unwrap())
}

/// Answers with its configuration: nothing to allow, or a status byte and a message.
struct Parrot(Option<(Status, String)>);

impl Policy for Parrot {
    fn configure(config: &[u8]) -> Result<Parrot, String> {
        let Some((code, text)) = config.split_first() else {
            return Ok(Parrot(None));
        };
        let status = Status::new((*code).into()).ok_or_else(|| format!("{code} is no error"))?;
        Ok(Parrot(Some((
            status,
            String::from_utf8(text.to_vec()).unwrap(),
        ))))
    }

    fn request(&mut self, _call: &Call<'_>) -> Verdict<'_> {
        match &self.0 {
            None => Verdict::Allow,
            Some((status, text)) => Verdict::deny(*status, text),
        }
    }
}

fn parrot(config: &[u8]) -> Runtime<Parrot> {
    let mut runtime = Runtime::<Parrot>::new();
    runtime.buffer(8192);
    runtime.bytes_mut()[..config.len()].copy_from_slice(config);
    assert_eq!(runtime.configure(config.len() as u32), 0);
    runtime
}

fn evaluate_empty_view(runtime: &mut Runtime<Parrot>) -> Vec<u8> {
    let buffer = bytes(&vectors("batches.json")[0]["buffer"]);
    runtime.bytes_mut()[..buffer.len()].copy_from_slice(&buffer);
    assert_eq!(runtime.request(1), 0);
    runtime.bytes_mut()[..32].to_vec()
}

#[test]
fn verdicts_are_written_as_the_vectors_say() {
    for answer in vectors("answers.json") {
        let words: Vec<u32> = answer["words"]
            .as_array()
            .unwrap()
            .iter()
            .map(|w| w.as_u64().unwrap() as u32)
            .collect();
        let config = if answer["allow"] == true {
            // The SDK writes nothing else for an allow.
            if words != [1, 0, 0, 0] {
                continue;
            }
            Vec::new()
        } else if let Some(deny) = answer["deny"].as_array() {
            let text = deny[1].as_str().unwrap();
            if text.len() != words[3] as usize {
                continue; // Not UTF-8, so it can't be a `&str`.
            }
            let mut config = vec![words[1] as u8];
            config.extend(text.as_bytes());
            config
        } else {
            continue; // A fault, which the SDK can't write.
        };
        let entry = evaluate_empty_view(&mut parrot(&config));
        for (index, expected) in [(3, words[0]), (4, words[1]), (6, words[3])] {
            assert_eq!(
                word(&entry, index),
                expected,
                "{}, word {index}",
                answer["name"]
            );
        }
    }
}

#[test]
fn a_long_message_is_cut_at_a_character() {
    let mut config = vec![7];
    config.extend("a".bytes());
    config.extend("é".repeat(1000).bytes());
    let entry = evaluate_empty_view(&mut parrot(&config));
    assert_eq!(word(&entry, 6), 1023);
}

#[test]
fn a_refused_configuration_leaves_its_reason_in_the_buffer() {
    let mut runtime = Runtime::<Parrot>::new();
    runtime.buffer(64);
    runtime.bytes_mut()[0] = 99;
    assert_eq!(runtime.configure(1), 14);
    assert_eq!(&runtime.bytes_mut()[..14], b"99 is no error");
}

#[test]
fn the_buffer_is_aligned_and_long_enough() {
    let mut runtime = Runtime::<Witness>::new();
    for len in [1, 4096, 65_536, 1_000_003] {
        runtime.buffer(len);
        let buffer = runtime.bytes_mut();
        assert!(buffer.len() >= len as usize && buffer.as_ptr().addr().is_multiple_of(8));
    }
}

#[test]
#[should_panic(expected = "the manifest declares fewer fields")]
fn a_field_that_is_not_declared_ends_the_policy() {
    let view = view(&[Field::Absent]);
    let _ = Call::new(0, &view).bytes(1);
}

#[test]
fn a_hook_that_was_forgotten_denies() {
    let view = view(&[]);
    let verdict = Witness;
    let mut witness = verdict;
    assert!(matches!(
        witness.reply(&Call::new(0, &view)),
        Verdict::Deny(Status::INTERNAL, _)
    ));
}
