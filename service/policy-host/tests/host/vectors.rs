//! The host against the ABI's vectors: it writes and reads what they specify.

use serde_json::Value;
use tollgate_policy_host::{
    Capabilities, Effects, EvaluateError, Fault, FieldChange, Hook, Instance, MetadataChange,
    Setup, Value as NewValue, Verdict,
};

use crate::guests::write;
use crate::isolated::evaluate_isolated;
use crate::wat::Parts;

fn vectors(name: &str) -> Vec<Value> {
    let path = format!(
        "{}/../../guest-sdk/vectors/{name}",
        env!("CARGO_MANIFEST_DIR")
    );
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

fn bytes(hex: &Value) -> Vec<u8> {
    let digits = hex.as_str().unwrap().as_bytes();
    digits
        .chunks(2)
        .map(|d| u8::from_str_radix(str::from_utf8(d).unwrap(), 16).unwrap())
        .collect()
}

/// A guest with two methods. It first copies its buffer to 32,768, in hexadecimal (two letters a-p
/// per byte, low half first), and denies the first call with that as the message, in slices. The
/// slice's number is in the configuration.
fn copier(slice: usize) -> Instance {
    let manifest = r#"{"abi":1,"name":"t","hooks":["request"],"methods":[{"method":"a.B/C"},{"method":"a.B/D"}]}"#;
    let parts = Parts {
        manifest: format!("(@custom \"tollgate.manifest\" {manifest:?})"),
        ..Parts::with_request(&format!(
            "(loop
               (i32.store8 (i32.add (i32.const 32768) (i32.mul (local.get 1) (i32.const 2)))
                 (i32.add (i32.const 97) (i32.and (i32.const 15) (i32.load8_u (i32.add (i32.const 1024) (local.get 1))))))
               (i32.store8 (i32.add (i32.const 32769) (i32.mul (local.get 1) (i32.const 2)))
                 (i32.add (i32.const 97) (i32.shr_u (i32.load8_u (i32.add (i32.const 1024) (local.get 1))) (i32.const 4))))
               (br_if 0 (i32.lt_u (local.tee 1 (i32.add (local.get 1) (i32.const 1))) (i32.const 1024))))
             (local.set 1 (i32.const 1024))
             (loop
               (i32.store offset=12 (local.get 1) (i32.const 2)) (i32.store offset=16 (local.get 1) (i32.const 8))
               (i32.store offset=20 (local.get 1) (i32.const {})) (i32.store offset=24 (local.get 1) (i32.const 1024))
               (local.set 1 (i32.add (local.get 1) (i32.const 32)))
               (br_if 0 (local.tee 0 (i32.sub (local.get 0) (i32.const 1)))))
             i32.const 0",
            32_768 + slice * 1024
        ))
    };
    parts.instantiate().unwrap()
}

/// The first 1,024 bytes of the guest's buffer, as the guest reads them.
fn buffer_of(batch: &Value) -> Vec<u8> {
    let calls: Vec<_> = batch["calls"]
        .as_array()
        .unwrap()
        .iter()
        .map(|call| {
            (
                call["method"].as_u64().unwrap() as u32,
                bytes(&call["view"]),
            )
        })
        .collect();
    let mut letters = String::new();
    for slice in 0..2 {
        let mut instance = copier(slice);
        let announced = batch["announced"].as_u64().unwrap() as usize;
        let mut room = instance.batch(Hook::Request, announced, 512).unwrap();
        for (method, view) in &calls {
            room.push(*method, view.len(), write(view)).unwrap();
        }
        room.evaluate(|index, verdict| {
            let Verdict::Deny { message, .. } = verdict else {
                panic!("denied")
            };
            if index == 0 {
                letters.push_str(&message);
            }
        })
        .unwrap();
    }
    letters
        .as_bytes()
        .chunks(2)
        .map(|pair| (pair[0] - b'a') | (pair[1] - b'a') << 4)
        .collect()
}

#[test]
fn batches_are_written_as_the_vectors_say() {
    for batch in vectors("batches.json") {
        let mut expected = bytes(&batch["buffer"]);
        expected.resize(1024, 0);
        assert_eq!(buffer_of(&batch), expected, "{}", batch["name"]);
    }
}

#[test]
fn answers_are_read_as_the_vectors_say() {
    for answer in vectors("answers.json") {
        let verdict = read(&answer);
        let name = &answer["name"];
        if answer["allow"] == true {
            assert_eq!(verdict, Ok(Verdict::Allow), "{name}");
        } else if let Some(deny) = answer["deny"].as_array() {
            let code = deny[0].as_u64().unwrap() as u32;
            let message = deny[1].as_str().unwrap().to_owned();
            assert_eq!(verdict, Ok(Verdict::Deny { code, message }), "{name}");
        } else {
            assert_eq!(
                verdict.unwrap_err().to_string(),
                answer["fault"].as_str().unwrap(),
                "{name}"
            );
        }
    }
}

/// Evaluates with a guest that writes these words and bytes.
fn read(answer: &Value) -> Result<Verdict, Fault> {
    let parts = Parts {
        rest: data(&answer["message_bytes"]),
        ..Parts::with_request(&leave(answer))
    };
    evaluate(&parts, Hook::Request)
}

/// A request function that writes these words to the first entry.
fn leave(answer: &Value) -> String {
    let mut body = String::new();
    for (index, word) in answer["words"].as_array().unwrap().iter().enumerate() {
        body += &format!(
            "(i32.store (i32.const {}) (i32.const {word}))",
            1036 + 4 * index
        );
    }
    body + " i32.const 0"
}

/// A data segment of these bytes (none, if it isn't a string) at 4096.
fn data(hex: &Value) -> String {
    let bytes = hex.is_string().then(|| bytes(hex));
    let escaped: String = bytes
        .iter()
        .flatten()
        .map(|byte| format!("\\{byte:02x}"))
        .collect();
    format!("(data (i32.const 4096) \"{escaped}\")")
}

/// Evaluates here, and in a separate process: both verdicts must be equal.
fn evaluate(parts: &Parts, hook: Hook) -> Result<Verdict, Fault> {
    let limits = crate::guests::limits();
    let setup = Setup {
        granted: Capabilities::ALL,
        ..Setup::new(&limits)
    };
    let mut instance = parts.load().unwrap().instantiate(&setup).unwrap();
    let view = [8, 0, 0, 0, 0, 0, 0, 0];
    let here = match instance.evaluate(hook, 0, 8, write(&view)) {
        Ok(verdict) => Ok(verdict),
        Err(EvaluateError::Fault(fault)) => Err(fault),
        Err(other) => panic!("{other:?}"),
    };
    let isolated = evaluate_isolated(parts, hook, &view);
    // The process cuts long reasons.
    let said = here
        .clone()
        .map_err(|fault| fault.to_string().chars().take(256).collect());
    assert_eq!(isolated, said);
    here
}

/// Evaluates with a guest that may change this many fields and these keys of its method.
fn effects(vector: &Value) -> Result<Verdict, Fault> {
    let changes: Vec<String> = (0..vector["changes"].as_u64().unwrap())
        .map(|i| format!("f{i}"))
        .collect();
    let or = |key: &str, default: Value| match &vector[key] {
        Value::Null => default,
        given => given.clone(),
    };
    let keys = or("keys", serde_json::json!([]));
    let hook = match vector["hook"].as_str() {
        Some("reply") => Hook::Reply,
        _ => Hook::Request,
    };
    let (list, key_list) = match hook {
        Hook::Request => ("changes", "metadata_changes"),
        Hook::Reply => ("reply_changes", "reply_metadata_changes"),
    };
    let manifest = serde_json::json!({
        "abi": 1, "name": "t", "hooks": [hook.name()],
        "capabilities": or("capabilities", serde_json::json!(["change"])),
        "methods": [{ "method": "a.B/C", list: changes, key_list: keys }],
    })
    .to_string();
    let request = Parts::with_request(&leave(vector)).request;
    let parts = Parts {
        manifest: format!("(@custom \"tollgate.manifest\" {manifest:?})"),
        rest: data(&vector["memory"]),
        request: request.replace("tollgate_request", &format!("tollgate_{}", hook.name())),
        ..Parts::default()
    };
    evaluate(&parts, hook)
}

#[test]
fn effects_are_read_as_the_vectors_say() {
    for vector in vectors("effects.json") {
        let name = &vector["name"];
        match effects(&vector) {
            Ok(Verdict::Allow) => assert_eq!(vector["allow"], true, "{name}"),
            Ok(Verdict::Effects(effects)) => check_effects(&vector, &effects),
            Ok(other) => panic!("{name}: {other:?}"),
            Err(fault) => {
                assert_eq!(
                    fault.to_string(),
                    vector["fault"].as_str().unwrap_or("no"),
                    "{name}"
                );
            }
        }
    }
}

fn check_effects(vector: &Value, effects: &Effects) {
    let (name, changes) = (&vector["name"], &effects.fields);
    if let Some(lengths) = vector["lengths"].as_array() {
        for (change, len) in changes.iter().zip(lengths) {
            let NewValue::Bytes(bytes) = &change.value else {
                panic!("{name}: bytes")
            };
            assert_eq!(bytes.len() as u64, len.as_u64().unwrap(), "{name}");
        }
        return assert_eq!(changes.len(), lengths.len());
    }
    let meant = match &vector["effects"] {
        Value::Null => &serde_json::json!({ "fields": vector["change"] }),
        effects => effects,
    };
    let number = |value: &Value| value.as_u64().map(|number| number as u32);
    let list = |key: &str| meant[key].as_array().cloned().unwrap_or_default();
    let fields = list("fields").into_iter().map(|change| FieldChange {
        field: number(&change[0]).unwrap(),
        value: match change[1].as_object().unwrap().iter().next().unwrap() {
            (kind, _) if kind == "clear" => NewValue::Clear,
            (kind, bits) if kind == "bits" => NewValue::Bits(bits.as_u64().unwrap()),
            (_, hex) => NewValue::Bytes(bytes(hex)),
        },
    });
    let metadata = list("metadata").into_iter().map(|change| MetadataChange {
        key: number(&change[0]).unwrap(),
        value: change[1].is_string().then(|| bytes(&change[1])),
    });
    let expected = Effects {
        fields: fields.collect(),
        metadata: metadata.collect(),
        delay_us: number(&meant["delay_us"]).unwrap_or(0),
        priority: number(&meant["priority"]).map(|priority| priority as u8),
        route: meant["route"].as_str().map(str::to_owned),
    };
    assert!(!expected.is_empty(), "{name}: {effects:?}");
    assert_eq!(*effects, expected, "{name}");
}
